"""Kernel family: alignment of each layer's kernel with targets and inputs, spectrum and power.

It reads features. Headline: ``cka_target``, computed by ``measures.kernel.centered_cka``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.advice.reasons import Reason, reason
from theodolite.advice.sentences import percent
from theodolite.measures import kernel
from theodolite.measures.kernel import CenteredGrams
from theodolite.records import Estimate, Note
from theodolite.surveys.context import (
    LayerFeatures,
    SurveyContext,
    side_by_side,
    why_undefined,
)
from theodolite.surveys.layers import Layer
from theodolite.surveys.progress import Cost
from theodolite.surveys.record import RecordBuilder, chance

_SHOWN = 200  # largest number of modes of a spectrum
_PRODUCTS = 2**26  # bytes of the products of kernels with permuted labels
_FEW = 50  # with fewer examples chance changes CKA visibly
_LONG, _FEWEST = 0.01, 20  # share of examples that may dominate; smallest number to check


def measure_kernel(context: SurveyContext, record: RecordBuilder) -> None:
    """Rows and curves of all layers."""
    references: list[_Reference] = []
    for group in side_by_side(context.features("kernel"), context.plan.stacked_bytes):
        with record.timed("kernel"):
            grams = torch.stack([features.gram for _, features in group])
            kernels = CenteredGrams.of(grams, [features.eps for _, features in group])
            references = references or _references(context, record, grams.device)
            _warn_of_long_ones(record, [layer for layer, _ in group], grams)
        if references:
            _alignment_rows(context, record, [layer for layer, _ in group], kernels, references)
    columns = context.row_targets("kernel").columns
    for layer, features in context.features("kernel") if context.plan.curves else ():
        with context.step("kernel", layer):
            _spectrum_rows(record, layer, features, columns)
    record.routes["kernel"] = {
        "method": "debiased",
        "n": context.row_count("kernel"),
        "pool": context.pool_name,
        "spectrum_centered": False,
    }


def _warn_of_long_ones(
    record: RecordBuilder, layers: Sequence[Layer], grams: Float[Tensor, "l n n"]
) -> None:
    """Warn if a few examples dominate, as first tokens do in language models."""
    n = grams.shape[1]
    if n < _FEWEST:
        return
    squares, few = grams.diagonal(dim1=1, dim2=2), math.ceil(_LONG * n)
    shares = (squares.topk(few).values.sum(1) / squares.sum(1)).tolist()
    for layer, share in zip(layers, shares, strict=True):
        if share > 0.5:
            text = reason(Note.LONG_ROWS, few=few, n=n, share=percent(share))
            record.warn(layer, "kernel", "features", text)


def kernel_cost(context: SurveyContext, n: int) -> Cost:
    """Cost of a spectrum of every layer, and of products with permuted labels."""
    shuffled = context.options.permutations * context.target_count * n**2
    return Cost((), context.decomposed_cost(n) + len(context.layout.with_features()) * shuffled)


@dataclass(frozen=True)
class _Reference:
    """A reference kernel, and the measure of agreement with it."""

    measure: str
    kernel: CenteredGrams
    columns: Float[Tensor, "n c"] | None = None  # label columns, which can be permuted


def _references(
    context: SurveyContext, record: RecordBuilder, device: torch.device
) -> list[_Reference]:
    """The references that the data allow: targets, true labels, inputs."""
    targets, truth = context.row_targets("kernel"), context.probe.truth
    true = None if truth is None else truth.take(context.count("kernel")).columns
    found = [
        _Reference(measure, CenteredGrams.of(kernel.target_gram(Y)[None].to(device)), Y)
        for measure, Y in (("cka_target", targets.columns), ("cka_truth", true))
        if Y is not None
    ]
    inputs = context.inputs("kernel")
    if inputs is not None:
        gram = inputs.gram[None].to(device)
        found.append(_Reference("cka_input", CenteredGrams.of(gram, [inputs.eps])))
    elif context.given is not None:
        record.not_measured("kernel", "cka_input", reason(Note.NO_MODEL))
    return found


def _alignment_rows(
    context: SurveyContext,
    record: RecordBuilder,
    layers: Sequence[Layer],
    kernels: CenteredGrams,
    references: Sequence[_Reference],
) -> None:
    """Rows of several layers, copied from the device in one copy."""
    n = kernels.grams.shape[1]
    halves = context.draws.halves(n).to(kernels.grams.device)
    with record.timed("kernel"):
        values = [kernel.centered_cka(kernels, r.kernel)[:, 0].tolist() for r in references]
        errors = [_errors(kernels, r.kernel, halves) for r in references]
        nulls = [_nulls(context, kernels, r.columns) for r in references]
    for row, layer in enumerate(layers):
        with context.step("kernel", layer):
            if n < _FEW:
                record.warn(layer, "kernel", "cka_target", reason(Note.NOISY, n=n))
            for column, reference in enumerate(references):
                value, error = values[column][row], errors[column]
                null = nulls[column]
                estimate = Estimate(
                    value,
                    None if error is None else error[row],
                    *chance(None if null is None else null[row]),
                    "exact" if error is None else "half-sampling",
                )
                why = None
                if math.isnan(value):
                    why = why_undefined(kernels.grams[row], _undefined(n, reference.columns))
                record.row(layer, "kernel", reference.measure, estimate, n=n, reason=why)


def _undefined(n: int, targets: Tensor | None) -> Reason:
    if n < 4:
        return reason(Note.FEWER_THAN_FOUR)
    same = targets is not None and bool((targets == targets[0]).all())
    return reason(Note.SAME_LABEL if same else Note.CONSTANT_FEATURES)


def _nulls(
    context: SurveyContext, kernels: CenteredGrams, targets: Tensor | None
) -> Float[Tensor, "l b"] | None:
    grams = kernels.grams
    if targets is None or context.options.permutations == 0 or grams.shape[1] < 4:
        return None
    permuted = context.draws.permutations_of(targets.to(grams.device))
    together = max(1, _PRODUCTS // (8 * permuted.numel()))
    parts = [slice(low, low + together) for low in range(0, len(grams), together)]
    found = [kernel.permuted_cka(grams[p], permuted, eps=kernels.eps[p]) for p in parts]
    return torch.cat(found).cpu()


def _errors(kernels: CenteredGrams, other: CenteredGrams, halves: Tensor) -> list[float] | None:
    if len(halves) < 2:
        return None
    draws = [kernel.centered_cka(kernels.take(h), other.take(h))[:, 0] for h in halves]
    found: list[float] = torch.stack(draws).std(0).tolist()
    return found


def _spectrum_rows(
    record: RecordBuilder, layer: Layer, features: LayerFeatures, columns: Tensor | None
) -> None:
    n = len(features)
    if features.rows is not None and features.width <= n:
        spectrum = kernel.linear_spectrum(features.rows)
    else:
        spectrum = kernel.kernel_spectrum(features.gram)
    values = spectrum.eigenvalues
    why = reason(Note.ZERO_FEATURES)
    ratio = float(kernel.participation_from_traces(values.sum(), values.square().sum()))
    record.row(layer, "kernel", "participation_ratio", Estimate(ratio), n=n, reason=why)
    shares = {
        "x": torch.arange(1, len(values[:_SHOWN]) + 1),
        "y": values[:_SHOWN] / values.sum().clamp(min=torch.finfo(torch.float64).tiny),
    }
    record.curve(layer, "kernel", "spectrum", shares, x="mode", y="share of the trace")
    if columns is None:
        return
    found = kernel.cumulative_power(spectrum, columns.to(values.device))
    power = found.curve
    modes, area = float(kernel.modes_to_reach(found)), float(kernel.power_area(power))
    record.row(layer, "kernel", "modes_to_reach", Estimate(modes), n=n, reason=why)
    record.row(layer, "kernel", "power_area", Estimate(area), n=n, reason=why)
    shown = {"x": torch.arange(len(power[: _SHOWN + 1])), "y": power[: _SHOWN + 1]}
    record.curve(layer, "kernel", "cumulative_power", shown, x="modes", y="share of the target")
