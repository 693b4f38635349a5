"""What the steps of a survey cost, in multiply-adds, from counts: for the bar and its estimate.

Rough on purpose: a constant factor cancels, since the estimate goes by the time that the steps
before have taken.
"""

from collections.abc import Mapping

import torch
from torch import nn

from theodolite.engine import ContractionSizes, contraction_costs
from theodolite.surveys._layers import Layer, Layout
from theodolite.surveys._probe import Probe
from theodolite.surveys._settings import FEATURE_READERS, MANY_OUTPUTS, Settings

__all__ = ["Costs", "predicted_costs"]

# (family, layer) -> costs of the steps in order; the layer is empty for work on all of them.
Costs = Mapping[tuple[str, str], list[float]]

_STEP = 2e7  # what a step of tiny matrices costs
_EIGEN = 10.0  # of a decomposition, times the cube of the size
_LARGE, _DENSE = 1024, 512  # beyond which few eigenvectors are taken
_PAIRS = 100  # examples whose pairs of gradients are compared in large models


def predicted_costs(model: nn.Module, layout: Layout, probe: Probe, settings: Settings) -> Costs:
    """Costs of all steps of the families that were asked for."""
    table: dict[tuple[str, str], list[float]] = {}
    passing = layout.footprint
    single = float(passing.per_example(passing.products))
    outputs = layout.outputs or 1
    matrices = {la.name: _matrix(model, la) for la in layout.layers}
    known = {name: sizes for name, sizes in matrices.items() if sizes is not None}

    def pairs(n: int, c: int) -> float:
        return sum(_contraction(n, c, *sizes) for sizes in known.values())

    def add(family: str, layer: str, cost: float) -> None:
        if family in settings.families:
            table.setdefault((family, layer), []).append(cost + _STEP)

    counts = {family: settings.size(family, len(probe)) for family in settings.families}
    read = max((counts[family] for family in FEATURE_READERS if family in counts), default=0)
    if read:
        table["features", ""] = [read * single + _STEP]
    n, few = counts.get("covariance", 0), counts.get("tangent", 0)
    if settings.sizes["covariance"] is None:
        n = probe.given
    add("covariance", "", n * (single + sum(t * d * d / 4 for t, _, d in known.values())))
    exact = settings.tangent != "sketch" and outputs <= MANY_OUTPUTS
    columns = outputs if exact else settings.probes
    add("tangent", "", few * single * (2 + columns) + (pairs(few, outputs) if exact else 0.0))
    many = counts.get("gradient", 0)
    compared = min(many, _PAIRS if settings.sizes["pairs"] is None else settings.sizes["pairs"])
    add("gradient", "", 8 * many * single)
    add("gradient", "", 3 * compared * single + pairs(compared, 1))
    for layer in layout.layers:
        for family in ("representation", "kernel", "kernel", "gradient"):
            size = counts.get(family, 0)
            add(family, layer.name, _EIGEN * size * min(size, layer.width or 1) ** 2)
        if layer.name in known:
            add("covariance", layer.name, _covariance(*known[layer.name][1:]))
        if layer.parameters:
            add("tangent", layer.name, _decomposition(few * outputs) if exact else 0.0)
            add("gradient", layer.name, 40.0 * compared**2)
    return table


def _matrix(model: nn.Module, layer: Layer) -> tuple[int, int, int] | None:
    """Positions, rows and columns of a layer's matrix; None if it has none of its own."""
    weight = getattr(model.get_submodule(layer.name), "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.ndim < 2 or not layer.width:
        return None
    return max(1, layer.width // len(weight)), len(weight), weight[0].numel()


def _covariance(filters: int, columns: int) -> float:
    """Eigenvectors of the data, few of them where there are many, and random bases."""
    directions = min(columns, filters // 4)
    factor = 1.5 * _EIGEN if columns <= _LARGE else 3.0
    return factor * columns**3 + 2 * _EIGEN * columns * directions**2


def _decomposition(size: int) -> float:
    """Norm and leading direction of a kernel: dense where it is small, else by iteration."""
    return (1 + _EIGEN) * size**3 if size <= _DENSE else 100.0 * size**2


def _contraction(n: int, c: int, positions: int, rows: int, columns: int) -> float:
    return min(contraction_costs(ContractionSizes(n, n, c, rows, columns, positions)).values())
