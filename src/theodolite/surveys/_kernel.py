"""Kernel: alignment of each layer's kernel with target and input, its spectrum and power."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from theodolite.engine.batches import Batch
from theodolite.measures.kernel import (
    CenteredGrams,
    centered_cka,
    cumulative_power,
    kernel_spectrum,
    linear_spectrum,
    modes_to_reach,
    participation_from_traces,
    permuted_cka,
    power_area,
)
from theodolite.records import Estimate
from theodolite.surveys._bench import Bench
from theodolite.surveys._layers import Layer
from theodolite.surveys._sheet import Sheet, spread
from theodolite.surveys._views import View, input_view, stackable, why_undefined

__all__ = ["measure_kernel"]

_FAMILY = "kernel"
_SHOWN = 200  # modes of spectra that are kept
_FEW = 50  # examples, below which chance alone moves CKA visibly


@dataclass(frozen=True)
class References:
    """What every layer is compared with: names of measures, and kernels in the same order."""

    names: list[str]
    kernels: CenteredGrams


def measure_kernel(bench: Bench, sheet: Sheet) -> None:
    """Rows and curves of all layers."""
    batch, task = bench.examples(_FAMILY)
    references: References | None = None
    for group in stackable(bench.views(_FAMILY)):
        with sheet.timed(_FAMILY):
            grams = torch.stack([view.gram for _, view in group])
            references = references or _references(bench, batch, grams.device)
            kernels = CenteredGrams.of(grams, [view.eps for _, view in group])
        if references is not None:
            _alignments(bench, sheet, [layer for layer, _ in group], (kernels, references))
    sheet.section()
    for layer, view in bench.spectrum_views() if bench.settings.curves else ():
        with bench.step(sheet, _FAMILY, layer):
            _spectrum(sheet, layer, view, task.columns)
    config = bench.settings.describe()
    sheet.routes[_FAMILY] = {
        "method": "debiased",
        "n": len(batch),
        "pool": config["pool"],
        "spectrum_pool": config["spectrum_pool"],
        "spectrum_centered": False,
    }


def _references(bench: Bench, batch: Batch, device: torch.device) -> References | None:
    columns = bench.probe.label_columns(bench.count(_FAMILY))
    grams = {f"cka_{name}": Y @ Y.mT for name, Y in columns.items()}
    eps = [torch.finfo(torch.float64).eps] * len(grams)
    inputs = input_view(batch)
    if inputs is not None:
        grams["cka_input"] = inputs.gram
        eps.append(inputs.eps)
    if not grams:
        return None
    stacked = torch.stack([gram.to(device) for gram in grams.values()])
    return References(list(grams), CenteredGrams.of(stacked, eps))


def _alignments(
    bench: Bench, sheet: Sheet, layers: list[Layer], parts: tuple[CenteredGrams, References]
) -> None:
    """Rows of layers side by side: one copy from the device for all of them."""
    kernels, references = parts
    n = kernels.grams.shape[1]
    columns = bench.probe.label_columns(bench.count(_FAMILY))
    with sheet.timed(_FAMILY):
        values = centered_cka(kernels, references.kernels).tolist()
        errors = _errors(bench, kernels, references.kernels)
    method = "exact" if errors is None else "half-sampling"
    for row, layer in enumerate(layers):
        with bench.step(sheet, _FAMILY, layer):
            if n < _FEW:
                text = f"{n} examples: chance alone moves this number, read it beside its null"
                sheet.warn(layer, (_FAMILY, "cka_target"), text)
            for column, measure in enumerate(references.names):
                targets = columns.get(measure.removeprefix("cka_"))
                null = _null(bench, kernels.grams[row], targets)
                error = None if errors is None else errors[row][column]
                estimate = Estimate(values[row][column], error, *spread(null), method)
                why = None
                if math.isnan(estimate.value):
                    why = why_undefined(kernels.grams[row], _undefined(n, targets))
                sheet.row(layer, (_FAMILY, measure), estimate, n, why)


def _undefined(n: int, targets: Tensor | None) -> str:
    if n < 4:
        return "fewer than four examples"
    same = targets is not None and bool((targets == targets[0]).all())
    return "all examples have the same label" if same else "the features are constant"


def _null(bench: Bench, centered: Tensor, targets: Tensor | None) -> Tensor | None:
    if targets is None or bench.settings.nulls == 0 or len(centered) < 4:
        return None
    return permuted_cka(centered, bench.draws.shuffled(targets.to(centered.device)))


def _errors(
    bench: Bench, kernels: CenteredGrams, references: CenteredGrams
) -> list[list[float]] | None:
    halves = bench.draws.halves(kernels.grams.shape[1]).to(kernels.grams.device)
    if len(halves) < 2:
        return None
    draws = [centered_cka(kernels.take(half), references.take(half)) for half in halves]
    found: list[list[float]] = torch.stack(draws).std(0).tolist()
    return found


def _spectrum(sheet: Sheet, layer: Layer, view: View, columns: Tensor | None) -> None:
    n = len(view)
    if view.rows is not None and view.width <= n:
        spectrum = linear_spectrum(view.rows)
    else:
        spectrum = kernel_spectrum(view.gram)
    values = spectrum.eigenvalues
    ratio = float(participation_from_traces(values.sum(), values.square().sum()))
    why = "all features are zero"
    sheet.row(layer, (_FAMILY, "participation_ratio"), Estimate(ratio), n, why)
    shares = {
        "x": torch.arange(1, len(values[:_SHOWN]) + 1),
        "y": values[:_SHOWN] / values.sum().clamp(min=torch.finfo(torch.float64).tiny),
    }
    sheet.curve(layer, (_FAMILY, "spectrum"), shares, x="mode", y="share of the trace")
    if columns is None:
        return
    found = cumulative_power(spectrum, columns.to(values.device))
    power = found.curve
    modes, area = float(modes_to_reach(found)), float(power_area(power))
    sheet.row(layer, (_FAMILY, "modes_to_reach"), Estimate(modes), n, why)
    sheet.row(layer, (_FAMILY, "power_area"), Estimate(area), n, why)
    shown = {"x": torch.arange(len(power[: _SHOWN + 1])), "y": power[: _SHOWN + 1]}
    sheet.curve(layer, (_FAMILY, "cumulative_power"), shown, x="modes", y="share of the target")
