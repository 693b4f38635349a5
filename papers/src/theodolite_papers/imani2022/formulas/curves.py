"""Curves against chance, against each other, and over all pairs of classes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from jaxtyping import Float, Int, Integer, Shaped
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_between,
    require_count,
    require_finite,
    require_labels,
    require_nonempty,
    require_same_length,
)
from theodolite.errors import DomainError
from theodolite.linalg import (
    LabelProjections,
    array_function,
    double,
    eigenvalue_groups,
    eps_of,
    prints_shapes,
    ratio_or_nan,
    row_chunks,
)
from theodolite.measures.representation.curve import (
    AlignmentCurve,
    Grid,
    Scale,
    grid_of,
    mass_above,
    measure_grid,
    tie_tolerance,
)
from theodolite.measures.representation.projections import (
    LabelColumns,
    Rows,
    project,
    read_features,
    read_targets,
)


@prints_shapes
@dataclass(frozen=True)
class CurveAverage:
    """Mean of several curves, its standard error (nan for a single one), and the curves."""

    thresholds: Float[Tensor, " t"]
    mean: Float[Tensor, " t"]
    standard_error: Float[Tensor, " t"]
    curves: Float[Tensor, "r t"]
    scale: str


@array_function
def curve_difference(first: AlignmentCurve, second: AlignmentCurve) -> AlignmentCurve:
    r"""Difference of two curves on a common grid, :math:`D(\tau) = A_1(\tau) - A_2(\tau)`.

    Zero at threshold 0 when both belong to the same targets, and above both spectra; its integral
    is the difference of the areas.

    Args:
        first: :math:`A_1`.
        second: :math:`A_2`, same grid and scale.

    Raises:
        DomainError: If grids or scales differ.

    Examples:
        >>> from theodolite.measures.representation import alignment_curve
        >>> grid, y = torch.tensor([0.0, 0.6, 0.9]), torch.ones(2)
        >>> high = alignment_curve(torch.ones(2, 1), y, grid)
        >>> curve_difference(high, alignment_curve(torch.eye(2), y, grid)).values.tolist()
        [0.0, 0.0, 1.0]

    References:
        [imani2022], Figure 14.
    """
    _require_common_grid([first, second])
    values = double(first.values) - double(second.values)
    route = first.route if first.route == second.route else f"{first.route}, {second.route}"
    return AlignmentCurve(first.thresholds, values, first.scale, route)


@array_function
def curve_average(curves: Sequence[AlignmentCurve]) -> CurveAverage:
    r"""Pointwise mean over runs or tasks, with its standard error :math:`\mathrm{sd}/\sqrt R`.

    Average normalised curves where tasks differ in size.

    Args:
        curves: one per run or task, same grid and scale.

    Raises:
        DomainError: If there is no curve, or grids or scales differ.

    Examples:
        >>> grid = torch.tensor([0.0, 1.0])
        >>> one = AlignmentCurve(grid, torch.tensor([1.0, 2.0]), "absolute", "svd")
        >>> two = AlignmentCurve(grid, torch.tensor([3.0, 2.0]), "absolute", "svd")
        >>> average = curve_average([one, two])
        >>> average.mean.tolist(), average.standard_error.tolist()
        ([2.0, 2.0], [1.0, 0.0])

    References:
        [imani2022], Figures 6 and 14.
    """
    require_count(1, number_of_curves=len(curves))
    _require_common_grid(curves)
    values = torch.stack([double(curve.values) for curve in curves])
    return average_of(curves[0].thresholds, values, curves[0].scale)


@array_function
def dominance_fraction(
    first: AlignmentCurve, second: AlignmentCurve, *, slack: float = 0.0
) -> Float[Tensor, ""]:
    """Share of grid points at which the first curve is at least the second, less some slack.

    A value of 1 makes gradient descent at a common step size at least as fast at every step.
    Points at which either curve is unknown do not count; without any other, ``nan``.

    Args:
        first: the curve that may dominate.
        second: the curve that may be dominated, same grid and scale.
        slack: tolerated deficit, in units of the values.

    Raises:
        DomainError: If grids or scales differ, or the slack is negative.

    Examples:
        >>> from theodolite.measures.representation import alignment_curve
        >>> grid, y = torch.tensor([0.0, 0.6, 0.9]), torch.ones(2)
        >>> low = alignment_curve(torch.eye(2), y, grid)
        >>> high = alignment_curve(torch.ones(2, 1), y, grid)
        >>> dominance_fraction(high, low).item(), round(dominance_fraction(low, high).item(), 4)
        (1.0, 0.6667)

    References:
        [imani2022], Figure 3, where curves are compared by eye.
    """
    require_between(0.0, float("inf"), open_high=True, slack=slack)
    _require_common_grid([first, second])
    lead = double(first.values) - double(second.values)
    known = lead[~lead.isnan()]
    return (known >= -slack).double().mean()


def average_of(thresholds: Tensor, values: Tensor, scale: str) -> CurveAverage:
    """Mean and standard error over the first axis; nan where there is nothing to average."""
    count = len(values)
    mean = values.mean(0)
    squares = (values - mean).square().sum(0)
    error = (squares / (count - 1)).sqrt() / count**0.5 if count > 1 else mean * torch.nan
    return CurveAverage(thresholds, mean, error.detach(), values, scale)


def _require_common_grid(curves: Sequence[AlignmentCurve]) -> None:
    scales = sorted({curve.scale for curve in curves})
    if len(scales) > 1:
        raise DomainError(f"curves: expected one scale, got {scales}; recompute with one scale=")
    grids = [double(curve.thresholds) for curve in curves]
    eps = max(eps_of(curve.thresholds) for curve in curves)
    same = all(
        len(grid) == len(grids[0]) and torch.allclose(grid, grids[0], rtol=8 * eps, atol=0)
        for grid in grids
    )
    if not same:
        raise DomainError(
            "curves: expected the same thresholds in all of them, got different grids; "
            "pass one thresholds= to every alignment_curve"
        )


@array_function
def one_vs_one_curve(
    features: Float[Tensor, "n d"],
    labels: Integer[Tensor, " n"],
    thresholds: Float[Tensor, " t"] | None = None,
    *,
    scale: Scale = "normalized",
) -> CurveAverage:
    r"""Alignment curves of all pairs of classes, labels +1 and -1, and their mean.

    .. math:: \bar A(\tau) = \binom k2^{-1} \sum_{a < b} A(\Phi_{ab}, y_{ab}, \tau),
              \qquad y_{ab} = \pm 1 \text{ on the rows of } a \text{ and } b

    Tasks of different sizes are comparable in the normalised scale, the default. A class with few
    examples is legal, but its curve says little: below about ten rows almost all of the label mass
    lies above the smallest singular value.

    Range: [0, 1] in the scales ``"normalized"`` and ``"relative"``.
    Invariant to: joint permutation of the examples; rotation of the features; appended zero
        columns; names of the classes.
    Undefined (``nan``): fewer than two classes.

    Args:
        features: :math:`\Phi`, prepared with :func:`prepare_features`.
        labels: class of each example, from 0; classes without examples are left out.
        thresholds: in units of the scale; default grid as in :func:`alignment_curve`.
        scale: ``"normalized"``, ``"absolute"`` (the paper's) or ``"relative"``.

    Raises:
        ShapeError: If lengths differ.
        DomainError: If an entry is not finite, a label or a threshold is negative.

    Examples:
        >>> average = one_vs_one_curve(torch.eye(3), torch.tensor([0, 1, 2]), torch.tensor([0.5]))
        >>> average.mean.tolist(), len(average.curves)
        ([1.0], 3)

    References:
        [imani2022], Figures 14 and 21.
    """
    require_axes(2, features=features)
    require_nonempty(features=features)
    require_same_length(features=features, labels=labels)
    require_labels(labels)
    grid = grid_of(thresholds, scale, len(features), features)
    curves = [measure_grid(features[rows], signs, grid)[0] for rows, signs in _pairs(labels)]
    return average_of(grid.thresholds, _stacked(curves, grid), scale)


@array_function
def one_vs_one_difference(
    features: Float[Tensor, "n d"],
    other_features: Float[Tensor, "n e"],
    labels: Integer[Tensor, " n"],
    thresholds: Float[Tensor, " t"] | None = None,
    *,
    scale: Scale = "normalized",
) -> CurveAverage:
    r"""Differences of two representations' alignment curves over all pairs of classes.

    .. math:: D_{ab}(\tau) = A(\Phi_{ab}, y_{ab}, \tau) - A(\Phi'_{ab}, y_{ab}, \tau)

    Both representations see the same examples. Positive: the first is the better start for the
    average task of separating two of these classes.

    Range: [-1, 1] in the scales ``"normalized"`` and ``"relative"``.
    Invariant to: joint permutation of the examples; rotation of either side's features; appended
        zero columns; names of the classes.
    Undefined (``nan``): fewer than two classes.

    Args:
        features: :math:`\Phi`, e.g. of a network pre-trained on the similar source.
        other_features: :math:`\Phi'` of the same examples, prepared in the same way.
        labels: class of each example, from 0; classes without examples are left out.
        thresholds: in units of the scale; default grid as in :func:`alignment_curve`.
        scale: ``"normalized"``, ``"absolute"`` (the paper's) or ``"relative"``.

    Raises:
        ShapeError: If lengths differ.
        DomainError: If an entry is not finite, a label or a threshold is negative.

    Examples:
        >>> labels = torch.tensor([0, 0, 1, 1])
        >>> good = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]])
        >>> one_vs_one_difference(good, torch.ones(4, 1), labels, torch.tensor([0.5])).mean.tolist()
        [1.0]

    References:
        [imani2022], Figures 14 and 16.

    Differs from paper:
        Normalised curves are averaged by default; ``scale="absolute"`` is the paper's.
    """
    require_axes(2, features=features, other_features=other_features)
    require_nonempty(features=features, other_features=other_features)
    require_same_length(features=features, other_features=other_features, labels=labels)
    require_labels(labels)
    grid = grid_of(thresholds, scale, len(features), features)
    curves = [
        measure_grid(features[rows], signs, grid)[0]
        - measure_grid(other_features[rows], signs, grid)[0]
        for rows, signs in _pairs(labels)
    ]
    return average_of(grid.thresholds, _stacked(curves, grid), scale)


def _pairs(labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of each pair of classes that occur, and their labels +1 and -1."""
    for first, second in combinations(torch.unique(labels).tolist(), 2):
        rows = ((labels == first) | (labels == second)).nonzero().flatten()
        yield rows, torch.where(labels[rows] == first, 1.0, -1.0).double()


def _stacked(curves: list[Tensor], grid: Grid) -> Tensor:
    return torch.stack(curves) if curves else grid.thresholds.new_zeros(0, len(grid.thresholds))


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

    Examples:
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


def _chance_projections(features: Tensor, targets: LabelColumns, grid: Grid) -> LabelProjections:
    """Expected mass per direction, from the overlap of each with the constant vector."""
    count = len(features)
    columns = targets.columns.detach()
    constant = LabelColumns(columns.new_ones(count, 1), None)
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


@prints_shapes
@dataclass(frozen=True)
class AlignmentSteps:
    """The alignment curve as the step function it is: where it drops, and by how much."""

    singular_values: Float[Tensor, " s"]  # distinct, largest first
    mass: Float[Tensor, " s"]  # label mass at each of them
    residual: Float[Tensor, ""]  # label mass at singular value zero


@array_function
def alignment_steps(
    features: Float[Tensor, "n d"], targets: Shaped[Tensor, "n *c"]
) -> AlignmentSteps:
    r"""The exact alignment curve: distinct singular values and the label mass at each.

    Singular values closer than ``max(1e-10, 8 eps)`` of the largest count as equal.

    Args:
        features: :math:`\Phi`, prepared with :func:`prepare_features`.
        targets: :math:`y`: a vector, columns, or integer class labels (one-hot columns).

    Raises:
        ShapeError: If features are not a non-empty matrix or targets differ in length.
        DomainError: If an entry is not finite.

    Examples:
        >>> steps = alignment_steps(torch.diag(torch.tensor([2.0, 2.0, 1.0])), torch.ones(3))
        >>> steps.singular_values.tolist(), steps.mass.tolist()
        ([2.0, 1.0], [2.0, 1.0])

    References:
        [imani2022], Eq. (2).
    """
    read_features(features, targets)
    found = project(features, read_targets(targets), None)
    return _steps(found, tie_tolerance(eps_of(features)))


def _tie_index(sigma: Float[Tensor, " r"], rtol: float) -> Int[Tensor, " r"]:
    """Number of the group of equal singular values, for each singular value."""
    index = torch.zeros(len(sigma), dtype=torch.long, device=sigma.device)
    for number, group in enumerate(eigenvalue_groups(sigma, rtol)):
        index[group] = number
    return index


def _steps(projections: LabelProjections, rtol: float) -> AlignmentSteps:
    sigma, mass = double(projections.singular_values), double(projections.mass).sum(1)
    index = _tie_index(sigma, rtol)
    sizes = index.bincount()
    centers = sigma.new_zeros(len(sizes)).index_add(0, index, sigma) / sizes
    masses = mass.new_zeros(len(sizes)).index_add(0, index, mass)
    return AlignmentSteps(centers, masses, double(projections.residual).sum())


@array_function
def alignment_second_moment(
    features: Float[Tensor, "n d"], targets: Shaped[Tensor, "n *c"]
) -> Float[Tensor, ""]:
    r"""Second moment of the alignment curve: the numerator of kernel-target alignment.

    .. math:: \int_0^\infty 2\tau A(\tau)\,d\tau = \sum_i \sigma_i^2 (u_i^\top y)^2
              = \|\Phi^\top y\|^2

    Range: [0, inf).
    Invariant to: joint permutation or rotation of the examples; rotation of the features; appended
        zero columns; the sign of the targets.
    Undefined: never.

    Args:
        features: :math:`\Phi`.
        targets: :math:`y`: a vector, columns, or integer class labels (one-hot columns).

    Raises:
        ShapeError: If features are not a non-empty matrix or targets differ in length.
        DomainError: If an entry is not finite.

    Examples:
        >>> features = torch.diag(torch.tensor([3.0, 2.0, 0.0]))
        >>> alignment_second_moment(features, torch.tensor([1.0, 2.0, 3.0])).item()
        25.0

    References:
        [imani2022], Eq. (2), integrated with twice the threshold.
    """
    read_features(features, targets)
    require_finite(features=features)
    values, num_classes = read_targets(targets)
    parts = [
        double(rows).mT @ LabelColumns(labels, num_classes).columns
        for rows, labels in row_chunks(features, values)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total.square().sum()


@array_function
def picard_ratios(
    features: Float[Tensor, "n d"], targets: Shaped[Tensor, "n *c"]
) -> Float[Tensor, "m *k"]:
    r"""How far each weight must travel: coefficients of the targets over singular values.

    .. math:: |u_i^\top y| / \sigma_i = |v_i^\top \Phi^+ y|, \qquad i = 1, \dots, \min(n, d)

    Small and falling ratios mean that a small linear model suffices (discrete Picard condition).
    Inside a group of equal singular values only the norm over the group is determined: each
    direction gets the root mean square.

    Range: [0, inf).
    Invariant to: joint permutation or rotation of the examples; rotation of the features; the sign
        of the targets.
    Undefined (``nan``): directions whose singular value counts as zero.

    Args:
        features: :math:`\Phi`.
        targets: :math:`y`: a vector (one ratio per direction), or columns or integer class labels
            (one ratio per direction and column).

    Raises:
        ShapeError: If features are not a non-empty matrix or targets differ in length.
        DomainError: If an entry is not finite.

    Examples:
        >>> features = torch.diag(torch.tensor([4.0, 2.0]))
        >>> picard_ratios(features, torch.tensor([2.0, -3.0])).tolist()
        [0.5, 1.5]

    References:
        [hansen1990], the discrete Picard condition.
    """
    read_features(features, targets)
    columns = read_targets(targets)
    found = project(features, columns, None)
    sigma = found.singular_values
    ratios = _coefficients(found, eps_of(features)) / sigma.unsqueeze(1)
    missing = min(features.shape) - len(sigma)
    undefined = ratios.new_full((missing, ratios.shape[1]), torch.nan)
    whole = torch.cat([ratios, undefined])
    return whole.squeeze(1) if columns.num_classes is None and targets.ndim == 1 else whole


def _coefficients(found: LabelProjections, eps: float) -> Tensor:
    """Absolute coefficients; over equal singular values, where the basis is free, their RMS."""
    index = _tie_index(found.singular_values, tie_tolerance(eps))
    peak = found.coefficients.abs().amax().clamp(min=torch.finfo(torch.float64).tiny)
    squares = (found.coefficients / peak).square()
    sizes = index.bincount().unsqueeze(1)
    sums = squares.new_zeros(len(sizes), squares.shape[1]).index_add(0, index, squares)
    return (sums / sizes)[index].sqrt() * peak
