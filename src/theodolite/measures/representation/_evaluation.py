"""Label mass at and above thresholds: one evaluation behind alignment, curves and their nulls."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from theodolite.checks import require_between, require_choice, require_finite
from theodolite.linalg import LabelProjections, double, eps_of, rank_tolerance, ratio_or_nan
from theodolite.measures.representation._projections import RouteChoice, project
from theodolite.measures.representation._spectral_form import Filter, spectral_form
from theodolite.measures.representation._targets import Targets, read_targets

__all__ = ["Grid", "Scale", "mass_above", "measure_grid", "wants_gradient"]

Scale = Literal["absolute", "normalized", "relative"]


@dataclass(frozen=True)
class Grid:
    """Thresholds, the unit they count in, and the slack with which they are compared."""

    thresholds: Tensor  # in units of the scale
    scale: Scale = "absolute"
    rtol: float = 0.0

    def __post_init__(self) -> None:
        require_choice(("absolute", "normalized", "relative"), scale=self.scale)
        require_between(0.0, 1.0, open_high=True, rtol=self.rtol)

    def absolute(self, count: int, singular_values: Tensor) -> Tensor:
        """Thresholds on singular values themselves, the slack taken off."""
        relaxed = double(self.thresholds) * (1 - self.rtol)
        if self.scale == "normalized":
            return relaxed * count**0.5
        if self.scale == "relative":
            return relaxed * (singular_values.amax() if len(singular_values) else 0.0)
        return relaxed

    def smallest(self, count: int) -> float:
        """The smallest positive threshold, in units of the largest singular value if relative."""
        positive = self.thresholds[self.thresholds > 0]
        least = float(positive.detach().min()) if len(positive) else float("inf")
        return least * (count**0.5 if self.scale == "normalized" else 1.0)


def wants_gradient(*tensors: Tensor) -> bool:
    """Whether autograd will ask for the derivative by one of these."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def measure_grid(
    features: Tensor, targets: Tensor, grid: Grid, route: RouteChoice = "auto"
) -> tuple[Tensor, str]:
    """Alignment on the grid in its scale, and the route that found it; shapes have been checked."""
    columns = read_targets(targets, shares=grid.scale != "absolute")
    if wants_gradient(features, targets):
        require_finite(features=features)
        mass, taken = _differentiable(features, columns, grid), "svd"
    else:
        smallest, relative = grid.smallest(len(features)), grid.scale == "relative"
        found = project(features, columns, smallest, relative=relative, route=route)
        mass, taken = mass_above(found, grid), str(found.route)
    if grid.scale == "absolute":
        return mass, taken
    defined = features.detach().any() if grid.scale == "relative" else True
    return ratio_or_nan(mass, columns.energy, defined), taken


def mass_above(projections: LabelProjections, grid: Grid) -> Tensor:
    """Sum of the label mass over all singular values of at least each threshold.

    At threshold 0 everything counts, the implicit zero singular values included. Thresholds that
    the route of the projections does not resolve give nan.
    """
    sigma = double(projections.singular_values)
    mass = double(projections.mass).sum(1)
    levels = grid.absolute(projections.count, sigma)
    below = torch.searchsorted(sigma.flip(0), levels)
    cumulative = torch.cat([mass.new_zeros(1), mass.cumsum(0)])
    values = cumulative[len(sigma) - below]
    values = torch.where(levels == 0, mass.sum() + double(projections.residual).sum(), values)
    unknown = (levels > 0) & (levels < projections.resolved_above * (1 - grid.rtol))
    if grid.scale == "relative" and len(sigma) == 0:
        unknown = torch.ones_like(unknown)  # features of zeros have no largest singular value
    return torch.where(unknown, torch.full_like(values, torch.nan), values)


def _differentiable(features: Tensor, targets: Targets, grid: Grid) -> Tensor:
    def steps(sigma: Tensor) -> Filter:
        levels = grid.absolute(len(features), sigma).unsqueeze(1)
        counted = (sigma >= levels).to(sigma)
        return Filter(counted, (levels.squeeze(1) == 0).to(sigma), torch.zeros_like(counted))

    noise = rank_tolerance(features.shape, eps_of(features))
    return spectral_form(double(features), targets.columns, noise, steps)
