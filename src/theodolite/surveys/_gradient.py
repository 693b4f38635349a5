"""Gradient: how the gradients, and the features, of examples agree within classes and overall."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from theodolite.engine import (
    GradientAlignment,
    gradient_alignment,
    per_example_loss,
    shared_tangent_kernels,
)
from theodolite.errors import MemoryLimitError
from theodolite.measures.gradient import confusion_of_gram
from theodolite.records import Estimate
from theodolite.surveys._bench import Bench, model_outputs, own_layers, owners, within_step
from theodolite.surveys._groups import GroupAlignment, grouped_alignment
from theodolite.surveys._layers import Layer
from theodolite.surveys._memory import engine_options
from theodolite.surveys._sheet import Sheet, spread
from theodolite.surveys._views import View, stackable, why_undefined

__all__ = ["measure_features", "measure_gradient", "measure_loss"]

_FAMILY = "gradient"
_DEFAULT_LIMIT = 2 * 2**30
_SUMS = 20  # float32 copies of the parameters: sums over examples and unit vectors, in float64
_GRADIENTS = 4  # copies of an example's gradient
_KEPT_COPIES = 12  # of a layer's output: norms, activations and gradients beside it
_CHEAP = 5 * 10**8  # numbers in all gradients of all examples
_FEWER = 100  # examples whose pairs of gradients are compared in larger models


def measure_gradient(bench: Bench, sheet: Sheet) -> None:
    """Rows and curves of the gradients of all layers that own trainable parameters."""
    layers = [layer for layer in bench.layout.layers if layer.parameters]
    names = [layer.name for layer in layers]
    batch, task = bench.examples(_FAMILY)
    with bench.step(sheet, _FAMILY):
        found = gradient_alignment(
            bench.model,
            batch,
            loss=bench.loss,
            labels=task.labels,
            layers=names,
            readout=bench.settings.readout,
            stiffness=bench.settings.stiffness,
            batch_size=_backward_batch(bench),
            check=bench.settings.check,
            progress=within_step(bench),
            processes=bench.settings.processes,
        )
    pairs = _pairs(bench, sheet, layers)
    sheet.section()
    for layer in own_layers(bench, layers):
        if layer.name in found.sums.names:
            with bench.step(sheet, _FAMILY, layer):
                gram = None if pairs is None else pairs[layer.name]
                _layer_rows(bench, sheet, layer, (found, gram))
    _model_rows(sheet, found, len(batch), task.labels is not None)
    _warn_classes(sheet, task.labels)
    sheet.routes[_FAMILY] = {
        "method": "sums over examples",
        "n": len(batch),
        "pairs": 0 if pairs is None else _pair_count(bench),
        "null": "the grouping into classes is permuted",
    }


def _backward_batch(bench: Bench) -> int:
    """Examples in one backward pass, so that what it keeps stays within the memory limit.

    Raises:
        MemoryLimitError: If the sums alone, or one example, do not fit.
    """
    weights = 4 * sum(p.numel() for p in bench.model.parameters() if p.requires_grad)
    fixed = _SUMS * weights
    each = _KEPT_COPIES * 4 * sum(layer.width for layer in bench.layout.layers)
    each += _GRADIENTS * weights
    room = bench.settings.room or _DEFAULT_LIMIT
    if fixed + each > room:
        raise MemoryLimitError(
            f"gradients: sums of the size of the parameters take {fixed:,} bytes and one example "
            f"{each:,}, {room:,} are left of memory_limit; pass a larger memory_limit"
        )
    return max(1, min(bench.settings.batch_size, (room - fixed) // max(each, 1)))


def _pairs(bench: Bench, sheet: Sheet, layers: list[Layer]) -> Mapping[str, Tensor] | None:
    """Inner products of all pairs of gradients, for fewer examples."""
    count = _pair_count(bench)
    if count < 2:
        return None
    batch, _ = bench.probe.take(count)
    with bench.step(sheet, _FAMILY):
        try:
            with bench.settings.processes.together():
                return shared_tangent_kernels(
                    bench.model,
                    batch,
                    owners(bench, layers),
                    bench.settings.processes,
                    outputs=bench.loss,
                    readout=bench.settings.readout,
                    **engine_options(bench.settings, bench.layout, 1),
                    check=bench.settings.check,
                    progress=within_step(bench),
                )
        except MemoryLimitError as error:
            sheet.warn(None, (_FAMILY, "gradient_confusion"), f"not measured: {error}")
            return None


def _pair_count(bench: Bench) -> int:
    """As many as the sums take where all their gradients are few numbers, else fewer."""
    count = bench.count(_FAMILY)
    asked = bench.settings.sizes["pairs"]
    if asked is None:
        numbers = count * sum(p.numel() for p in bench.model.parameters())
        asked = count if numbers <= _CHEAP else _FEWER
    return min(count, asked)


def _layer_rows(
    bench: Bench, sheet: Sheet, layer: Layer, parts: tuple[GradientAlignment, Tensor | None]
) -> None:
    found, gram = parts
    values = found[layer.name]
    n = len(found.sums.labels)
    labels = bench.examples(_FAMILY)[1].labels
    nulls = GroupAlignment.nothing() if gram is None else _null(bench, gram, labels)
    errors = {} if gram is None else _errors(bench, gram, labels, n)
    method = "half-sampling" if errors else "exact"
    why = "all gradients are zero, or every class has a single example"

    def add(measure: str, value: Tensor, null: Tensor | None = None) -> None:
        estimate = Estimate(float(value), errors.get(measure), *spread(null), method)
        sheet.row(layer, (_FAMILY, measure), estimate, n, why)

    if labels is not None:
        add("omega_contrast", values.contrast, nulls.contrast)
    add("omega", values.omega)
    if labels is not None:
        add("in_class_omega", values.in_class, nulls.in_class)
    add("gradient_diversity", values.diversity)
    if values.stiffness is not None:
        add("stiffness", values.stiffness)
    if gram is not None:
        confusion = Estimate(float(confusion_of_gram(gram)))
        sheet.row(layer, (_FAMILY, "gradient_confusion"), confusion, len(gram), why)
    if labels is not None:
        _class_curves(sheet, layer, "class", values.classes, values.omega)


def _class_curves(sheet: Sheet, layer: Layer, prefix: str, classes: Tensor, omega: Tensor) -> None:
    numbers = torch.arange(len(classes))
    if prefix == "class":
        arrays = {"x": numbers, "y": classes}
        sheet.curve(layer, (_FAMILY, "class_omega"), arrays, x="class", y="Ω within the class")
    arrays = {"x": numbers, "y": classes - omega}
    sheet.curve(layer, (_FAMILY, f"{prefix}_contrast"), arrays, x="class", y="Ω minus Ω of all")


def _null(bench: Bench, gram: Tensor, labels: Tensor | None) -> GroupAlignment:
    """Omega when the grouping into classes is permuted and gradients stay as they are."""
    if labels is None:
        return GroupAlignment.nothing()
    one_hot = torch.nn.functional.one_hot(labels[: len(gram)]).double()
    shuffled = bench.draws.shuffled(one_hot)
    if len(shuffled) == 0:
        return GroupAlignment.nothing()
    return grouped_alignment(gram.double(), shuffled.to(gram.device))


def _errors(bench: Bench, gram: Tensor, labels: Tensor | None, n: int) -> dict[str, float]:
    """Standard errors of n examples from halves of those with all pairs."""
    halves = bench.draws.halves(len(gram))
    if len(halves) < 2:
        return {}
    groups = torch.zeros(len(gram), dtype=torch.long) if labels is None else labels[: len(gram)]
    one_hot = torch.nn.functional.one_hot(groups).double().to(gram.device)
    wide = gram.double()
    draws = [
        grouped_alignment(wide[h][:, h], one_hot[h].unsqueeze(0)) for h in halves.to(gram.device)
    ]
    shrink = math.sqrt(len(gram) / n)
    named = {
        "omega": torch.stack([draw.omega for draw in draws]),
        "in_class_omega": torch.stack([draw.in_class[0] for draw in draws]),
        "omega_contrast": torch.stack([draw.contrast[0] for draw in draws]),
    }
    return {name: shrink * float(values.std()) for name, values in named.items()}


def _model_rows(sheet: Sheet, found: GradientAlignment, n: int, classes: bool) -> None:
    """All parameters together, and the gradients with respect to the outputs."""
    total, logits = found.total, found.logits
    rows = {"omega": total.omega}
    if classes:
        rows |= {"in_class_omega": total.in_class, "omega_contrast": total.contrast}
        rows |= {"logit_omega_contrast": logits.contrast}
    for measure, value in rows.items():
        why = "all gradients are zero, or every class has a single example"
        sheet.row(None, (_FAMILY, measure), Estimate(float(value)), n, why)


def measure_loss(bench: Bench, sheet: Sheet) -> None:
    """Mean loss of the family's examples, from the pass that reads the features."""
    batch, _ = bench.examples(_FAMILY)
    if bench.settings.processes.rank != 0:  # the row and the outputs are those of the first
        return
    with sheet.timed(_FAMILY), torch.no_grad():
        losses = per_example_loss(bench.loss)(model_outputs(bench, batch), batch)
        value = float(losses.double().mean())
    why = "the loss of an example is not a number"
    sheet.row(None, (_FAMILY, "loss"), Estimate(value), len(batch), why)


def _warn_classes(sheet: Sheet, labels: Tensor | None) -> None:
    if labels is None:
        return
    counts = labels.bincount()
    single = int((counts == 1).sum())
    if single:
        text = f"{single} of {int((counts > 0).sum())} classes have a single example: left out"
        sheet.warn(None, (_FAMILY, "in_class_omega"), text)


def measure_features(bench: Bench, sheet: Sheet) -> None:
    """Omega of the features, overall and within classes: cheap, and the same for every loss."""
    labels = bench.examples(_FAMILY)[1].labels
    groups = torch.zeros(bench.count(_FAMILY), dtype=torch.long) if labels is None else labels
    one_hot = torch.nn.functional.one_hot(groups).double()
    shuffled = bench.draws.shuffled(one_hot)
    for group in stackable(bench.views(_FAMILY)):
        with sheet.timed(_FAMILY):
            grams = torch.stack([view.gram for _, view in group])
            found = grouped_alignment(grams, one_hot.unsqueeze(0).to(grams.device)).rows()
            nulls = [GroupAlignment.nothing()] * len(group)
            if labels is not None and len(shuffled):
                nulls = grouped_alignment(grams, shuffled.to(grams.device)).rows()
        for (layer, view), values, null in zip(group, found, nulls, strict=True):
            with bench.step(sheet, _FAMILY, layer):
                _feature_rows(sheet, layer, (values, null), view, labels is not None)


def _feature_rows(
    sheet: Sheet,
    layer: Layer,
    parts: tuple[GroupAlignment, GroupAlignment],
    view: View,
    labeled: bool,
) -> None:
    found, null = parts
    n, why = len(view), "all features are zero, or every class has a single example"
    if math.isnan(float(found.omega)):
        why = why_undefined(view.gram, why)
    sheet.row(layer, (_FAMILY, "feature_omega"), Estimate(float(found.omega)), n, why)
    if not labeled:
        return
    for measure, value, draws in (
        ("feature_omega_in_class", found.in_class[0], null.in_class),
        ("feature_omega_contrast", found.contrast[0], null.contrast),
    ):
        estimate = Estimate(float(value), None, *spread(draws))
        sheet.row(layer, (_FAMILY, measure), estimate, n, why)
    _class_curves(sheet, layer, "feature_class", found.classes[0], found.omega)
