"""Alignment of features with targets: at one threshold, on a grid, as exact steps."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_between,
    require_choice,
    require_finite,
    require_nonempty,
    require_nonnegative,
)
from theodolite.linalg import (
    LabelProjections,
    array_function,
    double,
    eps_of,
    prints_shapes,
    rank_tolerance,
    ratio_or_nan,
)
from theodolite.measures.representation.projections import (
    Filter,
    LabelColumns,
    Rows,
    project,
    read_features,
    read_targets,
    spectral_form,
)

Scale = Literal["absolute", "normalized", "relative"]
GRID_POINTS = 200  # of the default grid


@prints_shapes
@dataclass(frozen=True)
class Grid:
    """Thresholds and their unit."""

    thresholds: Tensor  # in units of the scale
    scale: Scale = "absolute"

    def __post_init__(self) -> None:
        require_choice(("absolute", "normalized", "relative"), scale=self.scale)

    def absolute(self, count: int, singular_values: Tensor) -> Tensor:
        """Thresholds in units of the singular values."""
        given = double(self.thresholds)
        if self.scale == "normalized":
            return given * count**0.5
        if self.scale == "relative":
            return given * (singular_values.amax() if len(singular_values) else 0.0)
        return given

    def smallest(self, count: int) -> float:
        """The smallest positive threshold, in units of the largest singular value if relative."""
        positive = self.thresholds[self.thresholds > 0]
        least = float(positive.detach().min()) if len(positive) else float("inf")
        return least * (count**0.5 if self.scale == "normalized" else 1.0)


def wants_gradient(*tensors: Tensor) -> bool:
    """Whether autograd needs the derivative by one of these tensors."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def measure_grid(features: Tensor, targets: Tensor, grid: Grid) -> tuple[Tensor, str]:
    """Alignment on the grid in its scale, and the route of the computation; shapes are checked."""
    columns = read_targets(targets, shares=grid.scale != "absolute")
    if wants_gradient(features, targets):
        require_finite(features=features)
        mass, taken = _differentiable(features, columns, grid), "svd"
    else:
        smallest, relative = grid.smallest(len(features)), grid.scale == "relative"
        found = project(features, columns, smallest, relative=relative)
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
    unknown = (levels > 0) & (levels < projections.resolved_above)
    if grid.scale == "relative" and len(sigma) == 0:
        unknown = torch.ones_like(unknown)  # features of zeros have no largest singular value
    return torch.where(unknown, torch.full_like(values, torch.nan), values)


def _differentiable(features: Tensor, targets: LabelColumns, grid: Grid) -> Tensor:
    def steps(sigma: Tensor) -> Filter:
        levels = grid.absolute(len(features), sigma).unsqueeze(1)
        counted = (sigma >= levels).to(sigma)
        return Filter(counted, (levels.squeeze(1) == 0).to(sigma), torch.zeros_like(counted))

    noise = rank_tolerance(features.shape, eps_of(features))
    return spectral_form(double(features), targets.columns, noise, steps)


@array_function
def representation_alignment(
    features: Float[Tensor, "n d"],
    targets: Shaped[Tensor, "n *c"],
    threshold: float,
) -> Float[Tensor, ""]:
    r"""Label mass on left singular vectors whose singular value is at least a threshold.

    .. math:: A(\Phi, y, \tau) = \sum_{i:\,\sigma_i \ge \tau} (u_i^\top y)^2

    If it is high at large thresholds, gradient descent on a linear probe is fast and needs small
    weights. Several target columns are added up. At threshold 0 all n directions count, and the sum
    is the squared norm of the targets. A group of equal singular values counts as a whole. If a
    threshold may equal a singular value, lower it slightly, so that rounding does not decide.

    Range: [0, :math:`\|y\|^2`].
    Invariant to: joint permutation or rotation of the examples; rotation of the features; appended
        zero columns; the sign of the targets.
    Undefined: never.

    Args:
        features: :math:`\Phi`, prepared with :func:`prepare_features`.
        targets: :math:`y`: a vector, columns, or integer class labels (one-hot columns).
        threshold: :math:`\tau \ge 0`.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If features are not a non-empty matrix or targets differ in length.
        DomainError: If an entry is not finite, or a threshold is negative or not finite.

    Examples:
        >>> features = torch.diag(torch.tensor([3.0, 2.0, 0.0]))
        >>> representation_alignment(features, torch.tensor([1.0, 2.0, 3.0]), 2.0).item()
        5.0

    References:
        [imani2022], Eq. (2).

    Differs from paper:
        Singular values below :func:`theodolite.linalg.rank_tolerance` of the largest count as
        zero; several target columns are summed.
    """
    read_features(features, targets)
    require_between(0.0, float("inf"), open_high=True, threshold=threshold)
    level = torch.tensor([threshold], dtype=torch.float64, device=double(features[:0]).device)
    values, _ = measure_grid(features, targets, Grid(level))
    return values.squeeze(0)


def tie_tolerance(eps: float) -> float:
    """Gap, in units of the largest singular value, below which two values count as equal."""
    return max(1e-10, 8 * eps)


@prints_shapes
@dataclass(frozen=True)
class AlignmentCurve:
    """Values on a grid of thresholds, in one of three scales.

    ``"absolute"``: label mass against singular values. It predicts the speed of gradient descent at
    a common step size. ``"normalized"``: share of the label mass against singular values divided by
    the root of n. It is comparable across sample sizes. ``"relative"``: share of the label mass
    against singular values in units of the largest. It predicts the speed if the step size is tuned
    to each representation.

    Args:
        thresholds: thresholds in units of the scale.
        values: alignment at each threshold.
        scale: ``"absolute"``, ``"normalized"`` or ``"relative"``.
        route: computation of the projections: ``"svd"``, ``"gram"``, ``"dual"`` or ``"qr"``.
    """

    thresholds: Float[Tensor, " t"]
    values: Float[Tensor, " t"]
    scale: str
    route: str


def grid_of(thresholds: Tensor | None, scale: Scale, count: int, like: Tensor) -> Grid:
    """The given thresholds, or 200 equispaced points up to the largest possible value."""
    if thresholds is None:
        top = count**0.5 if scale == "absolute" else 1.0
        grid = torch.linspace(0, top, GRID_POINTS, dtype=torch.float64)
        return Grid(grid.to(double(like[:0]).device), scale)
    require_axes(1, thresholds=thresholds)
    require_nonempty(thresholds=thresholds)
    require_nonnegative(thresholds=thresholds)
    return Grid(double(thresholds), scale)


@array_function
def alignment_curve(
    features: Float[Tensor, "n d"],
    targets: Shaped[Tensor, "n *c"],
    thresholds: Float[Tensor, " t"] | None = None,
    *,
    rows: Rows = "unit",
    scale: Scale = "normalized",
) -> AlignmentCurve:
    r"""Alignment on a grid of thresholds.

    .. math:: A(\tau) = \sum_{i:\,\sigma_i \ge \tau} (u_i^\top y)^2

    The curve is a non-increasing step function that starts at :math:`\|y\|^2`. With its defaults
    this is the curve of a survey: rows of unit length, and shares of the label mass against
    thresholds in units of :math:`\sqrt n`. It takes one Gram matrix and one eigendecomposition of
    the smaller side: O(n d²) time and O(d²) memory beyond the input. A slower and more accurate
    route is used if a threshold requires it. ``route`` of the result names the route.

    Range: [0, 1]; [0, :math:`\|y\|^2`] in the scale ``"absolute"``.
    Invariant to: joint permutation of the examples; rotation of the features; appended zero
        columns; the sign of the targets; scaling of any row (``rows="unit"``); joint rotation of
        the examples (``rows="none"``).
    Undefined (``nan``): targets of zeros where values are shares; features of zeros in the scale
        ``"relative"``.

    Args:
        features: :math:`\Phi`, one row per example.
        targets: :math:`y`: a vector, columns, or integer class labels (one-hot columns).
        thresholds: thresholds in units of the scale. By default 200 points on [0, 1], or on
            :math:`[0, \sqrt n]` in the scale ``"absolute"``. All singular values of rows of unit
            length lie there.
        rows: length of the rows, as in :func:`alignment_area`.
        scale: ``"absolute"``, ``"normalized"`` or ``"relative"``, see :class:`AlignmentCurve`.

    Returns:
        The thresholds and the alignment at each, with the scale and the route.

    Raises:
        ShapeError: If features are not a non-empty matrix or targets differ in length.
        DomainError: If an entry is not finite, or a threshold is negative.

    Examples:
        >>> features = torch.diag(torch.tensor([3.0, 2.0, 0.0]))
        >>> grid = torch.tensor([0.0, 1.0, 2.5, 4.0])
        >>> y = torch.tensor([1.0, 2.0, 3.0])
        >>> alignment_curve(features, y, grid, rows="none", scale="absolute").values.tolist()
        [14.0, 5.0, 1.0, 0.0]

    References:
        [imani2022], Eq. (2) and Figure 3.
    """
    Phi = read_features(features, targets, rows)
    grid = grid_of(thresholds, scale, len(features), features)
    values, taken = measure_grid(Phi, targets, grid)
    return AlignmentCurve(grid.thresholds, values, scale, taken)


@array_function
def curve_from_projections(
    projections: LabelProjections,
    thresholds: Float[Tensor, " t"] | None = None,
    *,
    scale: Scale = "normalized",
) -> AlignmentCurve:
    """The alignment curve from projections that exist already, e.g. from streamed sums.

    Args:
        projections: from :func:`label_projections`, or from sums over batches.
        thresholds: thresholds in units of the scale; by default as in :func:`alignment_curve`.
        scale: ``"absolute"``, ``"normalized"`` or ``"relative"``.

    Returns:
        The thresholds and the alignment at each.

    Raises:
        DomainError: If a threshold is negative or not finite.

    Examples:
        >>> from theodolite.measures.representation import label_projections
        >>> p = label_projections(torch.eye(2), torch.tensor([1.0, 2.0]))
        >>> curve_from_projections(p, torch.tensor([0.0, 0.7, 2.0])).values.tolist()
        [1.0, 1.0, 0.0]

    References:
        [imani2022], Eq. (2).
    """
    grid = grid_of(thresholds, scale, projections.count, projections.singular_values)
    values = mass_above(projections, grid)
    if scale != "absolute":
        values = ratio_or_nan(values, double(projections.energy).sum())
    return AlignmentCurve(grid.thresholds, values, scale, projections.route)
