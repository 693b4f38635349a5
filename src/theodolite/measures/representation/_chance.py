"""What alignment would be if labels had nothing to do with features: labels shuffled at random."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from theodolite.checks import require_between, require_count, require_finite
from theodolite.linalg import (
    LabelProjections,
    array_function,
    eps_of,
    rank_tolerance,
    ratio_or_nan,
    thin_svd,
)
from theodolite.measures.representation._curve import AlignmentCurve, grid_of
from theodolite.measures.representation._evaluation import Grid, Scale, mass_above
from theodolite.measures.representation._projections import project
from theodolite.measures.representation._targets import Rows, Targets, read_features, read_targets

__all__ = ["alignment_z_score", "chance_curve"]


@array_function
def chance_curve(
    features: Float[Tensor, "n d"],
    targets: Shaped[Tensor, "n *c"],
    thresholds: Float[Tensor, " t"] | None = None,
    *,
    rows: Rows = "unit",
    scale: Scale = "normalized",
) -> AlignmentCurve:
    r"""Mean alignment over all permutations of the labels, in closed form.

    .. math:: \mathbb{E}_\pi (u_i^\top y_\pi)^2 = \bar y^2 (1^\top u_i)^2
              + s^2 \Bigl(1 - \frac{(1^\top u_i)^2}{n}\Bigr),
              \qquad s^2 = \frac{1}{n-1}\sum_i (y_i - \bar y)^2

    About one unit of mass per direction for balanced labels of -1 and +1, so roughly the number of
    singular values at or above the threshold. Subtract it with :func:`curve_difference` for the
    alignment above chance.

    Range: [0, 1]; [0, :math:`\|y\|^2`] in the scale ``"absolute"``.
    Invariant to: any permutation of the targets; joint permutation of the examples; rotation of the
        features; appended zero columns; the sign of the targets.
    Undefined (``nan``): as for :func:`alignment_curve`.

    Args:
        features: :math:`\Phi`, one row per example.
        targets: :math:`y`: a vector, columns, or integer class labels (one-hot columns).
        thresholds: as for :func:`alignment_curve`.
        rows: as for :func:`alignment_curve`.
        scale: as for :func:`alignment_curve`.

    Raises:
        ShapeError: If features are not a non-empty matrix or targets differ in length.
        DomainError: If an entry is not finite, or a threshold is negative.

    Example:
        >>> y = torch.tensor([1.0, -1.0, 1.0, -1.0])
        >>> chance = chance_curve(torch.eye(4), y, torch.tensor([0.0, 0.5, 0.6]))
        >>> [round(value, 4) for value in chance.values.tolist()]
        [1.0, 1.0, 0.0]

    References:
        [imani2022], Figure 2, in closed form.
    """
    Phi = read_features(features, targets, rows)
    grid = grid_of(thresholds, scale, len(features), features)
    columns = read_targets(targets, shares=scale != "absolute")
    found = _chance_projections(Phi, columns, grid)
    values = mass_above(found, grid)
    if scale != "absolute":
        values = ratio_or_nan(values, columns.energy.detach())
    return AlignmentCurve(grid.thresholds, values, scale, found.route)


def _chance_projections(features: Tensor, targets: Targets, grid: Grid) -> LabelProjections:
    """Expected mass per direction, from the overlap of each with the constant vector."""
    count = len(features)
    columns = targets.columns.detach()
    constant = Targets(columns.new_ones(count, 1), None)
    found = project(features, constant, grid.smallest(count), relative=grid.scale == "relative")
    mass = _expected_mass(found.mass[:, 0], columns)
    rest = (columns.square().sum() - mass.sum()).clamp(min=0)
    return LabelProjections(
        found.singular_values,
        mass.sqrt().unsqueeze(1),
        rest.reshape(1),
        count,
        found.route,
        found.resolved_above,
    )


def _expected_mass(overlaps: Tensor, columns: Tensor) -> Tensor:
    """Mean over permutations of the mass on directions with these squared sums of entries."""
    count = len(columns)
    overlaps = overlaps.clamp(max=count)
    mean = columns.mean(0)
    variance = (columns - mean).square().sum() / max(count - 1, 1)
    return mean.square().sum() * overlaps + variance * (1 - overlaps / count)


@array_function
def alignment_z_score(
    features: Float[Tensor, "n d"],
    targets: Shaped[Tensor, "n *c"],
    threshold: float,
    *,
    draws: int = 200,
    generator: torch.Generator | None = None,
) -> Float[Tensor, ""]:
    r"""Alignment above chance in standard deviations of shuffled labels.

    .. math:: z = \frac{A(\tau) - \mathbb{E}_\pi A_\pi(\tau)}{\mathrm{sd}_\pi A_\pi(\tau)}

    The mean is exact, the standard deviation is that of the permutations drawn.

    Range: (-inf, inf).
    Undefined (``nan``): shuffling changes nothing (constant labels, threshold 0, one example).

    Args:
        features: :math:`\Phi`, prepared with :func:`prepare_features`.
        targets: :math:`y`: a vector, columns, or integer class labels (one-hot columns).
        threshold: :math:`\tau \ge 0`.
        draws: number of permutations, at least 2.
        generator: source of randomness, on the CPU.

    Raises:
        ShapeError: If features are not a non-empty matrix or targets differ in length.
        DomainError: If an entry is not finite, the threshold is negative, or draws is below 2.

    Example:
        >>> y = torch.tensor([1.0] * 10 + [-1.0] * 10)
        >>> generator = torch.Generator().manual_seed(0)
        >>> bool(alignment_z_score(y.unsqueeze(1), y, 1.0, generator=generator) > 5)
        True

    References:
        [imani2022], Figure 2, as a test of significance.
    """
    require_between(0.0, float("inf"), open_high=True, threshold=threshold)
    require_count(2, draws=draws)
    read_features(features, targets)
    columns = read_targets(targets, shares=True).columns.detach()
    require_finite(features=features)
    left, sigma, _ = thin_svd(features.detach())
    floor = rank_tolerance(features.shape, eps_of(features)) * sigma.max()
    left = left[:, (sigma >= threshold) & (sigma > floor)]
    orders = (torch.randperm(len(left), generator=generator) for _ in range(draws))
    shuffled = [(left.mT @ columns[order.to(left.device)]).square().sum() for order in orders]
    spread = torch.stack(shuffled).std()
    excess = (left.mT @ columns).square().sum() - _expected_mass(
        left.sum(0).square(), columns
    ).sum()
    varies = (spread > 1e-9 * columns.square().sum()) & (threshold > 0)
    return ratio_or_nan(excess, spread, varies)
