"""Representation family: the labels in the singular basis of each layer's features.

It reads features. Headline: ``alignment_area``, by
``measures.representation.area_from_projections``.
"""

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.advice.reasons import reason
from theodolite.linalg import LabelProjections, projections_from_kernel
from theodolite.measures import representation
from theodolite.records import Estimate, Note
from theodolite.surveys.context import LayerFeatures, SurveyContext
from theodolite.surveys.layers import Layer
from theodolite.surveys.progress import Cost
from theodolite.surveys.record import RecordBuilder, chance
from theodolite.theory.convergence import gradient_descent_loss, steps_to_reduce

_SHOWN = 200  # largest number of directions of the label power
_LONGEST = 5.0  # decades of steps of the predicted loss


def measure_representation(context: SurveyContext, record: RecordBuilder) -> None:
    """Rows and curves of all layers."""
    targets = context.row_targets("representation")
    columns = targets.columns
    assert columns is not None  # the family would not apply
    # The labels, followed by all their permutations.
    sets = torch.cat([columns[None], context.draws.permutations_of(columns)])
    for layer, features in context.features("representation"):
        with context.step("representation", layer):
            sets = sets.to(features.device)  # copied once: with many classes they are large
            _layer_rows(context, record, layer, features, columns, sets)
    record.routes["representation"] = {
        "method": "exact",
        "n": len(columns),
        "rows": "unit length",
        "bias": False,
        "targets": f"{columns.shape[1]} columns, not centered",
        "pool": context.pool_name,
    }


def representation_cost(context: SurveyContext, n: int) -> Cost:
    """Cost of decompositions for all examples and for halves, and of projections of all labels."""
    options, layers = context.options, context.layout.with_features()
    columns = (1 + options.permutations) * context.target_count
    projected = sum(n * min(n, layer.features) * columns for layer in layers)
    halves = options.half_samples * context.decomposed_cost(n // 2)
    return Cost((), context.decomposed_cost(n) + halves + projected)


def _layer_rows(
    context: SurveyContext,
    record: RecordBuilder,
    layer: Layer,
    features: LayerFeatures,
    columns: Tensor,
    sets: Float[Tensor, "m n c"],
) -> None:
    n, c = columns.shape
    if n <= features.width:
        text = reason(Note.FEW_EXAMPLES, n=n, width=features.width)
        record.warn(layer, "representation", "alignment_area", text)
    if not bool(features.lengths().any()):
        for measure in ("alignment_area", "top_share", "predicted_steps"):
            why, nothing = reason(Note.ZERO_FEATURES), Estimate(math.nan)
            record.row(layer, "representation", measure, nothing, n=n, reason=why)
        return
    every = _projections(features, sets)
    areas = representation.area_from_projections(every, normalized=True).cpu()
    error = _error(context, features, columns)
    method = "exact" if error is None else "half-sampling"
    estimate = Estimate(float(areas[0]), error, *chance(areas[1:]), method)
    record.row(layer, "representation", "alignment_area", estimate, n=n)
    tops = representation.top_share_from_projections(every, c).cpu()
    estimate = Estimate(float(tops[0]), None, *chance(tops[1:]))
    record.row(layer, "representation", "top_share", estimate, n=n)
    if not context.plan.curves:
        return
    found = _single_set(every, every.coefficients[..., 0], every.residual[..., 0])
    record.row(layer, "representation", "predicted_steps", Estimate(_steps(found)), n=n)
    _curves(record, layer, found, _mean(every) if len(sets) > 1 else None)


def _projections(features: LayerFeatures, columns: Float[Tensor, "m n c"]) -> LabelProjections:
    """Coordinates of several sets of targets in the singular basis of unit-length features.

    Coefficients are (r, c, m), residuals (c, m).
    """
    m, n, c = columns.shape
    flat = columns.to(features.device).permute(1, 2, 0).reshape(n, c * m)
    if features.rows is not None and features.width <= n:
        prepared = representation.prepare_features(features.rows).features
        found = representation.label_projections(prepared, flat)
    else:
        norms = features.lengths()
        scale = torch.where(norms > 0, 1 / norms, torch.zeros_like(norms))
        unit = features.gram * scale * scale.unsqueeze(1)
        found = projections_from_kernel(unit, flat, features.width, features.eps)
    coefficients = found.coefficients.reshape(len(found.coefficients), c, m)
    return replace(found, coefficients=coefficients, residual=found.residual.view(c, m))


def _mean(every: LabelProjections) -> LabelProjections:
    """Projections in which every direction has its mean mass over permutations."""
    coefficients = every.mass.sum(1)[:, 1:].mean(1).sqrt().unsqueeze(1)
    return _single_set(every, coefficients, every.residual.sum(0)[1:].mean().reshape(1))


def _single_set(
    every: LabelProjections, coefficients: Tensor, residual: Tensor
) -> LabelProjections:
    """One set of targets, on the CPU, because many small steps follow."""
    values = every.singular_values.cpu()
    return replace(
        every,
        singular_values=values,
        coefficients=coefficients.cpu(),
        residual=residual.cpu(),
    )


def _error(context: SurveyContext, features: LayerFeatures, columns: Tensor) -> float | None:
    halves = context.draws.halves(len(columns))
    if len(halves) < 2:
        return None
    areas = [
        representation.area_from_projections(
            _projections(features.take(half), columns[half][None]), normalized=True
        )
        for half in halves
    ]
    return float(torch.cat(areas).std())


def _steps(found: LabelProjections) -> float:
    """Number of steps of gradient descent, with the largest safe step size, that halve the loss."""
    energy = float(found.energy.sum())
    if float(found.mass.sum()) <= energy / 2:
        return math.inf
    return float(steps_to_reduce(found, energy / 2, 1 / float(found.singular_values[0]) ** 2))


def _curves(
    record: RecordBuilder, layer: Layer, found: LabelProjections, null: LabelProjections | None
) -> None:
    curve = representation.curve_from_projections(found)
    arrays = {"x": curve.thresholds, "y": curve.values}
    if null is not None:
        arrays["chance"] = representation.curve_from_projections(null).values
    labels = {"x": "threshold / √n", "y": "share of the label mass", "chance": "random labels"}
    record.curve(layer, "representation", "alignment_curve", arrays, **labels)
    energy = found.energy.sum()
    arrays = {
        "x": found.singular_values[:_SHOWN] / found.count**0.5,
        "y": found.mass.sum(1)[:_SHOWN] / energy,
    }
    labels = {"x": "singular value / √n", "y": "share of the label mass"}
    record.curve(layer, "representation", "label_power", arrays, **labels)
    decades = torch.linspace(0, _LONGEST, 61, dtype=torch.float64)
    steps = torch.tensor(sorted({0, *(round(10.0**decade) for decade in decades.tolist())}))
    losses = gradient_descent_loss(found, 1 / float(found.singular_values[0]) ** 2, steps)
    labels = {"x": "steps of gradient descent", "y": "loss / loss at the start"}
    arrays = {"x": steps, "y": losses / energy}
    record.curve(layer, "representation", "predicted_loss", arrays, **labels)
