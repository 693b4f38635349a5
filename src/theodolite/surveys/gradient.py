"""Gradient family: agreement of the features, and of the gradients, within classes and overall.

It reads features, and sums and pairs of gradients. Headline: ``feature_omega_contrast``, computed
by ``measures.gradient.contrast_from_sums``; its formula is in ``linalg``.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from theodolite.advice.reasons import failure, reason
from theodolite.engine import (
    Checked,
    GradientAlignment,
    LayerGradientAlignment,
    LayerSums,
    alignment_of_sums,
    per_example_loss,
)
from theodolite.errors import MemoryLimitError
from theodolite.measures import gradient
from theodolite.measures.gradient import SetSums
from theodolite.records import Estimate, Note
from theodolite.surveys.context import LayerFeatures, SurveyContext, side_by_side, why_undefined
from theodolite.surveys.layers import Layer
from theodolite.surveys.progress import Cost
from theodolite.surveys.record import RecordBuilder, chance

_CHEAP = 5 * 10**8  # with fewer numbers in all gradients, all pairs are compared
_PASSES = 8  # products with all gradients that take as long as their sums, in forward passes
_FEWER = 100  # number of examples whose pairs of gradients are compared otherwise
_ZERO_GRADIENTS = reason(Note.ZERO_GRADIENTS)
_ZERO_FEATURES = reason(Note.ZERO_VECTORS)


@dataclass(frozen=True)
class GroupAlignment:
    """Omega of all pairs, and within groups, for every grouping."""

    omega: Float[Tensor, "*layers"]
    classes: Float[Tensor, "*layers b k"]
    in_class: Float[Tensor, "*layers b"]
    contrast: Float[Tensor, "*layers b"]


def grouped_alignment(
    gram: Float[Tensor, "*layers n n"], groups: Float[Tensor, "b n k"]
) -> GroupAlignment:
    """Omega within groups from Gram matrices, for many groupings at once.

    References:
        [mehta2021], Eqs. (4) to (6).
    """
    count, n, k = groups.shape
    flat = SetSums.of_gram(gram, groups.permute(1, 0, 2).reshape(n, count * k))
    within = SetSums(*(part.unflatten(-1, (count, k)) for part in vars(flat).values()))
    every = SetSums.of_gram(gram, groups.new_ones(n, 1))
    classes = within.alignment()
    return GroupAlignment(
        every.alignment().squeeze(-1),
        classes,
        gradient.mean_over_classes(classes),
        gradient.contrast_from_sums(within, every),
    )


def _groups(labels: Tensor | None, count: int) -> Float[Tensor, "n k"]:
    """One-hot classes of the first examples; without labels all examples form one class."""
    return torch.ones(count, 1).double() if labels is None else one_hot(labels[:count]).double()


def measure_feature_contrast(context: SurveyContext, record: RecordBuilder) -> None:
    """Omega of the features, overall and within classes. It is cheap and needs no loss."""
    labels, count = context.row_targets("gradient").labels, context.row_count("gradient")
    groups = _groups(labels, count)
    permuted = context.draws.permutations_of(groups)[: None if labels is not None else 0]
    every = torch.cat([groups.unsqueeze(0), permuted])  # the labels first, then permutations
    for stack in side_by_side(context.features("gradient"), context.plan.stacked_bytes):
        with record.timed("gradient"):
            grams = torch.stack([features.gram for _, features in stack])
            every = every.to(grams.device)  # copied once: with many classes they are large
            found = grouped_alignment(grams, every)
            parts = [part.cpu() for part in vars(found).values()]
        for row, (layer, features) in enumerate(stack):
            with record.timed("gradient"):  # not a stage of the progress, which comes later
                values = GroupAlignment(*(part[row] for part in parts))
                _feature_rows(record, layer, features, values, labels is not None)


def _feature_rows(
    record: RecordBuilder,
    layer: Layer,
    features: LayerFeatures,
    found: GroupAlignment,
    labeled: bool,
) -> None:
    n, why, at = len(features), _ZERO_FEATURES, layer.read_at
    if math.isnan(float(found.omega)):
        why = why_undefined(features.gram, why)

    def add(measure: str, values: Tensor) -> None:
        estimate = Estimate(float(values[0]), None, *chance(values[1:]))
        record.row(layer, "gradient", measure, estimate, n=n, reason=why, read_at=at)

    if labeled:
        add("feature_omega_contrast", found.contrast)
    add("feature_omega", found.omega.reshape(1))
    if labeled:
        add("feature_omega_in_class", found.in_class)
        classes = found.classes[0]
        arrays = {"x": torch.arange(len(classes)), "y": classes - found.omega}
        labels = {"x": "class", "y": "Ω minus Ω of all"}
        record.curve(layer, "gradient", "feature_class_contrast", arrays, **labels)


def measure_gradient(context: SurveyContext, record: RecordBuilder) -> None:
    """Rows and curves of the gradients of all layers that own trainable parameters."""
    layers = context.layout.with_parameters()
    batch, targets = context.examples("gradient")
    (found, total, logits), pairs, complete = _agreement(context, record, layers)
    if context.options.details and total.stiffness is None:
        record.warn(None, "gradient", "stiffness", reason(Note.UNIT_GRADIENT_BYTES))
    permuted = _permuted_groups(context, pairs)
    for layer in layers:
        if layer.name in found:
            with context.step("gradient", layer):
                gram = None if pairs is None else pairs[layer.name]
                _gradient_rows(context, record, layer, found[layer.name], gram, permuted)
    rows = {"omega": total.omega}
    if targets.labels is not None:
        rows["in_class_omega"] = total.in_class
        rows["omega_contrast"] = total.contrast
        if context.task is None:  # otherwise outputs are losses, not logits
            rows["logit_omega_contrast"] = logits.contrast
        counts = targets.labels.bincount()
        single = int((counts == 1).sum())
        if single:
            text = reason(Note.SINGLE_EXAMPLES, single=single, classes=int((counts > 0).sum()))
            record.warn(None, "gradient", "in_class_omega", text)
    for measure, value in rows.items():
        estimate, why = Estimate(float(value)), _ZERO_GRADIENTS
        record.row(None, "gradient", measure, estimate, n=len(batch), reason=why)
    record.routes["gradient"] = {
        "method": "all pairs of examples" if complete else "sums over examples",
        "n": len(batch),
        "pairs": 0 if pairs is None else len(batch) if complete else _pair_count(context),
        "null": "none: the loss contains the labels"
        if context.probe.groups is None
        else "the grouping of examples is permuted",
        **({"checked": _asked(found.sums.checked)} if isinstance(found, GradientAlignment) else {}),
    }


def _asked(checked: Checked) -> dict[str, bool | int]:
    """The words of a record about the check."""
    names = (
        "batched",
        "batches",
        "checked_batches",
        "in_other_batches",
        "single_examples",
    )
    return {name: getattr(checked, name) for name in names}


_Agreement = tuple[
    Mapping[str, LayerGradientAlignment], LayerGradientAlignment, LayerGradientAlignment
]


def _agreement(
    context: SurveyContext, record: RecordBuilder, layers: Sequence[Layer]
) -> tuple[_Agreement, Mapping[str, Tensor] | None, bool]:
    """Alignment of gradients, their pairs (or None), and whether pairs are of all examples.

    The alignment follows from pairs of all examples, or from sums. Sums have the size of the
    parameters. If sums do not fit into memory, pairs of few examples may fit.
    """
    if _all_from_pairs(context, layers):
        with suppress(MemoryLimitError):  # sums may still fit
            return _by_pairs(context, layers)
    try:
        with context.step("gradient"):
            sums = context.gradient_sums(layers)
    except MemoryLimitError:
        if context.count("gradient") > _FEWER or not _add_up(context, layers):
            raise
        return _by_pairs(context, layers)
    few = None
    try:
        few = _pairs(context, layers, _pair_count(context))
    except MemoryLimitError as error:
        record.not_measured("gradient", "gradient_confusion", failure(error))
    return (sums, sums.total, sums.logits), few, False


def _by_pairs(
    context: SurveyContext, layers: Sequence[Layer]
) -> tuple[_Agreement, Mapping[str, Tensor] | None, bool]:
    """Sums over all examples, computed from their pairs; with the pairs if requested."""
    pairs = _pairs(context, layers, context.count("gradient"))
    assert pairs is not None
    with context.step("gradient"):
        found = _from_pairs(context, pairs, layers)
    return found, None if context.plan.sizes["pairs"] == 0 else pairs, True


def gradient_cost(context: SurveyContext, n: int) -> Cost:
    """Cost of a pass for sums and one for pairs. Pairs of all examples need no sums."""
    asked = context.plan.sizes["pairs"]
    parameters = sum(p.numel() for p in context.model.parameters())
    if asked is None:
        every = n * parameters <= max(_CHEAP, _PASSES * context.pass_cost)
        asked = n if every else _FEWER
    pairs = min(n, asked)
    grams = Cost((4.0 * pairs,), context.kernels_cost(pairs, 1)) if pairs > 1 else Cost()
    if pairs == n:
        return grams
    return Cost((8.0 * n, *grams.passes), grams.products)


def _pair_count(context: SurveyContext) -> int:
    """Number of examples with pairs: all if their gradients have few numbers, otherwise fewer."""
    count = context.count("gradient")
    asked = context.plan.sizes["pairs"]
    if asked is None:
        numbers = count * sum(p.numel() for p in context.model.parameters())
        asked = count if numbers <= _CHEAP else _FEWER
    return min(count, asked)


def _pairs(
    context: SurveyContext, layers: Sequence[Layer], count: int
) -> Mapping[str, Tensor] | None:
    """Inner products of all pairs of gradients of the first examples.

    Raises:
        MemoryLimitError: If the gradients do not fit.
    """
    if count < 2:
        return None
    with context.step("gradient"):
        return context.tangent_kernels(layers, "gradient", count, of_loss=True)


def _add_up(context: SurveyContext, layers: Sequence[Layer]) -> bool:
    """Whether kernels of layers add up to that of all parameters: each parameter is in one."""
    names = [name for layer in layers for name in layer.owned]
    trained = [name for name, p in context.model.named_parameters() if p.requires_grad]
    return sorted(names) == sorted(trained)


def _all_from_pairs(context: SurveyContext, layers: Sequence[Layer]) -> bool:
    """Whether to use pairs of all examples; sums then follow without a pass.

    This is so if all pairs are requested, or if they cost less than sums. Pairs of n examples take
    n/2 products with each of p numbers. Sums, with those of unit vectors, take some passes over n
    examples.
    """
    if not _add_up(context, layers):
        return False
    count, asked = context.count("gradient"), context.plan.sizes["pairs"]
    if _pair_count(context) == count or asked:
        return _pair_count(context) == count
    passes = _PASSES * context.pass_cost
    parameters = sum(p.numel() for p in context.model.parameters())
    return context.options.details and count * parameters <= passes


def _from_pairs(
    context: SurveyContext, pairs: Mapping[str, Tensor], layers: Sequence[Layer]
) -> _Agreement:
    """Alignment of the gradients of every layer, of all parameters, and of the logits."""
    batch, targets = context.examples("gradient")
    outputs = context.outputs(batch).detach().requires_grad_()
    with torch.enable_grad():
        losses = per_example_loss(context.loss)(outputs, batch)
        (slopes,) = torch.autograd.grad(losses.sum(), outputs)
    groups = _groups(targets.labels, len(batch)).to(slopes.device)

    def alignments(grams: Sequence[Tensor]) -> list[LayerGradientAlignment]:
        stacked = torch.stack([gram.double() for gram in grams])
        found = alignment_of_sums(LayerSums.of_gram(stacked, groups))
        values = {name: part.cpu() for name, part in vars(found).items() if part is not None}
        together = replace(found, **values)
        return [together.row(index) for index in range(len(grams))]

    total = torch.zeros_like(groups @ groups.mT)
    found: dict[str, LayerGradientAlignment] = {}
    named = ((layer, pairs[layer.name]) for layer in layers)
    for group in side_by_side(named, context.plan.stacked_bytes):
        grams = [gram for _, gram in group]
        found |= zip([layer.name for layer, _ in group], alignments(grams), strict=True)
        total += sum(gram.double() for gram in grams)
    wide = slopes.double()
    whole, logits = alignments([total, wide @ wide.mT])
    return found, whole, logits


def _gradient_rows(
    context: SurveyContext,
    record: RecordBuilder,
    layer: Layer,
    values: LayerGradientAlignment,
    gram: Tensor | None,
    permuted: Float[Tensor, "b n k"] | None,
) -> None:
    n, labels = context.count("gradient"), context.examples("gradient")[1].labels
    # Groups such as data sources may be permuted, because gradients do not depend on them.
    nulls = None
    if gram is not None and permuted is not None:
        nulls = grouped_alignment(gram.double(), permuted.to(gram.device))
    errors = {} if gram is None else _errors(context, gram, labels, n)
    method = "half-sampling" if errors else "exact"

    def add(measure: str, value: Tensor, null: Tensor | None = None) -> None:
        estimate = Estimate(float(value), errors.get(measure), *chance(null), method)
        record.row(layer, "gradient", measure, estimate, n=n, reason=_ZERO_GRADIENTS)

    if labels is not None:
        add("omega_contrast", values.contrast, None if nulls is None else nulls.contrast)
    add("omega", values.omega)
    if labels is not None:
        add("in_class_omega", values.in_class, None if nulls is None else nulls.in_class)
    add("gradient_diversity", values.diversity)
    if values.stiffness is not None and context.options.details:
        add("stiffness", values.stiffness)
    if gram is not None:
        confusion, why = Estimate(float(gradient.confusion_of_gram(gram))), _ZERO_GRADIENTS
        record.row(layer, "gradient", "gradient_confusion", confusion, n=len(gram), reason=why)
    if labels is not None:
        numbers = torch.arange(len(values.classes))
        arrays = {"x": numbers, "y": values.classes - values.omega}
        record.curve(layer, "gradient", "class_contrast", arrays, x="class", y="Ω minus Ω of all")


def _permuted_groups(
    context: SurveyContext, pairs: Mapping[str, Tensor] | None
) -> Float[Tensor, "b n k"] | None:
    """Permuted groupings of the examples with pairs; None without permutations or groups.

    Classes in the loss have no chance level. Gradients of one class agree even if labels are
    independent of inputs, and permuting the classes of given gradients does not show this.
    """
    labels = context.examples("gradient")[1].labels
    if pairs is None or labels is None or len(pairs) == 0 or context.probe.groups is None:
        return None
    first = next(iter(pairs.values()))
    permuted = context.draws.permutations_of(_groups(labels, len(first)))
    return permuted.to(first.device) if len(permuted) else None


def _errors(
    context: SurveyContext, gram: Tensor, labels: Tensor | None, n: int
) -> dict[str, float]:
    """Standard errors for n examples, from halves of the examples with pairs."""
    halves = context.draws.halves(len(gram))
    if len(halves) < 2:
        return {}
    groups, wide = _groups(labels, len(gram)).to(gram.device), gram.double()
    draws = [
        grouped_alignment(wide[h][:, h], groups[h].unsqueeze(0)) for h in halves.to(gram.device)
    ]
    shrink = math.sqrt(len(gram) / n)
    named = {
        "omega": torch.stack([draw.omega for draw in draws]),
        "in_class_omega": torch.stack([draw.in_class[0] for draw in draws]),
        "omega_contrast": torch.stack([draw.contrast[0] for draw in draws]),
    }
    return {name: shrink * float(values.std()) for name, values in named.items()}
