"""Representation: how the labels lie in the singular basis of each layer's features."""

import math

import torch
from torch import Tensor

from theodolite.linalg import LabelProjections
from theodolite.measures.representation import area_from_projections, curve_from_projections
from theodolite.records import Estimate
from theodolite.surveys._bench import Bench
from theodolite.surveys._layers import Layer
from theodolite.surveys._sheet import Sheet, spread
from theodolite.surveys._views import Basis, View
from theodolite.theory.convergence import gradient_descent_loss, steps_to_reduce

__all__ = ["measure_representation"]

_FAMILY = "representation"
_SHOWN = 200  # directions of the label power that are kept
_LONGEST = 5.0  # decades of steps of the predicted loss


def measure_representation(bench: Bench, sheet: Sheet) -> None:
    """Rows and curves of all layers."""
    columns = bench.columns(_FAMILY)
    shuffled = bench.draws.shuffled(columns)
    for layer, view in bench.views(_FAMILY):
        with bench.step(sheet, _FAMILY, layer):
            _measure(bench, sheet, layer, view, (columns, shuffled))
    n = len(columns)
    sheet.routes[_FAMILY] = {
        "method": "exact",
        "n": n,
        "rows": "unit length",
        "bias": False,
        "targets": f"{columns.shape[1]} columns, not centered",
        "pool": bench.settings.describe()["pool"],
    }


def _measure(
    bench: Bench, sheet: Sheet, layer: Layer, view: View, targets: tuple[Tensor, Tensor]
) -> None:
    columns, shuffled = (part.to(view.gram.device) for part in targets)
    n, c = columns.shape
    if n <= view.width:
        text = f"{n} examples for {view.width} features: a linear read-out fits any labels"
        sheet.warn(layer, (_FAMILY, "alignment_area"), f"{text}; read the number beside its null")
    if not bool(view.gram.diagonal().any()):
        _undefined(sheet, layer, n)
        return
    basis = view.basis
    projections = project(basis, columns)
    masses = _masses(basis, shuffled)
    energy = float(columns.square().sum())
    null_area = None if masses is None else basis.values @ masses / (n**0.5 * energy)
    null_top = None if masses is None else masses[:c].sum(0) / energy
    area = float(area_from_projections(projections, normalized=True))
    error = _error(bench, view, columns)
    method = "exact" if error is None else "half-sampling"
    name = (_FAMILY, "alignment_area")
    sheet.row(layer, name, Estimate(area, error, *spread(null_area), method), n)
    top = float(projections.mass.sum(1)[:c].sum()) / energy
    sheet.row(layer, (_FAMILY, "top_share"), Estimate(top, None, *spread(null_top)), n)
    if not bench.settings.curves:
        return
    steps = _steps(projections, energy)
    sheet.row(layer, (_FAMILY, "predicted_steps"), Estimate(steps), n)
    _draw(sheet, layer, projections, None if masses is None else masses.mean(1))


def _undefined(sheet: Sheet, layer: Layer, n: int) -> None:
    for measure in ("alignment_area", "top_share", "predicted_steps"):
        nothing = Estimate(math.nan)
        sheet.row(layer, (_FAMILY, measure), nothing, n, "all features are zero")


def project(basis: Basis, columns: Tensor) -> LabelProjections:
    """Targets in a layer's singular basis."""
    coefficients = basis.left.mT @ columns
    outside = columns.square().sum(0) - coefficients.square().sum(0)
    return LabelProjections(
        basis.values,
        coefficients,
        outside.clamp(min=0.0),
        len(columns),
        "svd" if basis.resolved_above == 0 else "dual",
        basis.resolved_above,
    )


def _masses(basis: Basis, shuffled: Tensor) -> Tensor | None:
    """Label mass on every direction, for every permutation: (r, b)."""
    if len(shuffled) == 0:
        return None
    count, n, c = shuffled.shape
    flat = shuffled.permute(1, 0, 2).reshape(n, count * c)
    return (basis.left.mT @ flat).square().reshape(-1, count, c).sum(2)


def _error(bench: Bench, view: View, columns: Tensor) -> float | None:
    halves = bench.draws.halves(len(columns))
    if len(halves) < 2:
        return None
    areas = [
        area_from_projections(
            project(view.take(half).basis, columns[half.to(columns.device)]), normalized=True
        )
        for half in halves
    ]
    return float(torch.stack(areas).std())


def _steps(projections: LabelProjections, energy: float) -> float:
    """Steps of gradient descent, at the largest safe step, that halve the loss."""
    step_size = 1 / float(projections.singular_values[0]) ** 2
    if float(projections.mass.sum()) <= energy / 2:
        return math.inf
    return float(steps_to_reduce(projections, energy / 2, step_size))


def _draw(sheet: Sheet, layer: Layer, found: LabelProjections, chance: Tensor | None) -> None:
    curve = curve_from_projections(found, scale="normalized")
    arrays = {"x": curve.thresholds, "y": curve.values}
    if chance is not None:
        arrays["chance"] = _chance_curve(found, chance)
    labels = {"x": "threshold / √n", "y": "share of the label mass", "chance": "shuffled labels"}
    sheet.curve(layer, (_FAMILY, "alignment_curve"), arrays, **labels)
    energy = found.energy.sum()
    power = {
        "x": found.singular_values[:_SHOWN] / found.count**0.5,
        "y": found.mass.sum(1)[:_SHOWN] / energy,
    }
    labels = {"x": "singular value / √n", "y": "share of the label mass"}
    sheet.curve(layer, (_FAMILY, "label_power"), power, **labels)
    decades = torch.linspace(0, _LONGEST, 61, dtype=torch.float64)
    steps = torch.tensor(sorted({0, *(round(10.0**decade) for decade in decades.tolist())}))
    losses = gradient_descent_loss(found, 1 / float(found.singular_values[0]) ** 2, steps)
    labels = {"x": "steps of gradient descent", "y": "loss / loss at the start"}
    prediction = {"x": steps, "y": losses / energy}
    sheet.curve(layer, (_FAMILY, "predicted_loss"), prediction, **labels)


def _chance_curve(found: LabelProjections, mass: Tensor) -> Tensor:
    """The curve if every direction had its mean mass over permutations."""
    outside = (found.energy.sum() - mass.sum()).clamp(min=0.0)
    expected = LabelProjections(
        found.singular_values,
        mass.sqrt().unsqueeze(1),
        outside.reshape(1),
        found.count,
        found.route,
        found.resolved_above,
    )
    return curve_from_projections(expected, scale="normalized").values
