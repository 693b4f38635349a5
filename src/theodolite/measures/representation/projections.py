r"""Preparation of features and labels, and targets in the singular basis of the features.

Projections use the cheapest route that is accurate enough. Their derivative needs only the divided
differences of ``f`` (Daleckii-Krein), not the derivatives of single singular vectors. So ties need
no special case, and all directions outside the range of the features enter together. If both ends
of a difference vanish, the derivative does not exist; zero is used.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Integer, Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable

from theodolite.checks import (
    require_axes,
    require_between,
    require_choice,
    require_finite,
    require_labels,
    require_nonempty,
    require_same_length,
)
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import (
    GRAM_ACCURATE_ABOVE,
    LabelProjections,
    array_function,
    double,
    dual_gram,
    eps_of,
    gram_sums,
    prints_shapes,
    projections_from_gram,
    projections_from_kernel,
    qr_projections,
    svd_projections,
    target_columns,
    thin_svd,
    unit_peak,
)

Rows = Literal["unit", "max", "none"]
ROWS = ("unit", "max", "none")


class LabelColumns(NamedTuple):
    """Checked targets: columns, or class labels that become one-hot chunk by chunk."""

    values: Tensor
    num_classes: int | None

    @property
    def columns(self) -> Tensor:
        """All columns in float64."""
        return target_columns(self.values, self.num_classes)

    @property
    def energy(self) -> Tensor:
        """Squared norm over all columns; every one-hot row adds 1."""
        if self.num_classes is not None:
            return torch.tensor(
                float(len(self.values)), dtype=torch.float64, device=self.values.device
            )
        return double(self.values).square().sum()


def read_features(features: Tensor, targets: Tensor, rows: Rows = "none") -> Tensor:
    """Features with rows of the given length; the sums over them check that they are finite."""
    require_axes(2, features=features)
    require_nonempty(features=features, targets=targets)
    require_same_length(features=features, targets=targets)
    require_choice(ROWS, rows=rows)
    if rows != "none":
        require_finite(features=features)  # an infinite entry would make a row of nan
    return scaled_rows(features, rows)


def require_rows(**arrays: Tensor) -> None:
    """Check that the first array is a finite matrix and the others have as many rows."""
    name, features = next(iter(arrays.items()))
    require_axes(2, **{name: features})
    require_nonempty(**{name: features})
    require_same_length(**arrays)
    require_finite(**{name: features})


def scaled_rows(features: Tensor, rows: Rows) -> Tensor:
    """Rows divided by their own length, by the largest length, or by 1; zeros stay zero."""
    if rows == "none":
        return features
    peaks = features.detach().abs().amax(1, keepdim=True)  # before squaring, which may overflow
    peaks = peaks.amax(0, keepdim=True) if rows == "max" else peaks
    scaled = features / torch.where(peaks > 0, peaks, torch.ones_like(peaks))
    squares = scaled.square().sum(1, keepdim=True)
    squares = squares.amax(0, keepdim=True) if rows == "max" else squares
    return scaled / torch.where(squares > 0, squares, torch.ones_like(squares)).sqrt()


def read_targets(targets: Tensor, *, shares: bool = False) -> LabelColumns:
    """Read targets as columns.

    One axis of integers holds class labels, except -1 and +1, which are the label vector of two
    classes. Every other array holds columns of targets. If only shares of their mass are needed,
    columns are divided by their largest entry, so that squares neither overflow nor vanish.
    """
    if targets.ndim not in (1, 2):
        raise ShapeError(
            f"targets: expected (n,) or (n, c), got shape {tuple(targets.shape)}; "
            "flatten the outputs of one example into columns"
        )
    if targets.ndim == 2 or targets.is_floating_point():
        require_finite(targets=targets)
        return LabelColumns(_scaled(targets) if shares else targets, None)
    if targets.dtype != torch.bool and bool((targets.abs() == 1).all() & (targets < 0).any()):
        return LabelColumns(targets, None)
    return LabelColumns(targets, require_labels(targets, name="targets"))


def _scaled(targets: Tensor) -> Tensor:
    return unit_peak(double(targets).reshape(1, -1)).reshape(targets.shape)


@prints_shapes
@dataclass(frozen=True)
class PreparedFeatures:
    """Features ready for measuring, and how many of their rows are zero (dead units).

    Args:
        features: the scaled features, with the bias column last if there is one.
        zero_rows: number of rows of zeros.
    """

    features: Float[Tensor, "n k"]
    zero_rows: Integer[Tensor, ""]


@prints_shapes
@dataclass(frozen=True)
class ScaledTargets:
    """Targets scaled to [-1, 1], and the map ``slope * y + offset`` of this scaling.

    Args:
        values: the scaled targets.
        slope: factor of the map.
        offset: constant of the map.
    """

    values: Float[Tensor, "n *c"]
    slope: Float[Tensor, ""]
    offset: Float[Tensor, ""]

    @array_function
    def apply(self, targets: Float[Tensor, "m *c"]) -> Float[Tensor, "m *c"]:
        """Apply the same map to other targets, e.g. of a test set; they may leave [-1, 1]."""
        return self.slope * targets + self.offset


@array_function
def prepare_features(
    features: Float[Tensor, "n d"],
    *,
    bias: bool = False,
    normalize: Rows = "unit",
) -> PreparedFeatures:
    r"""Scale features so that :math:`\|\phi_i\| \le 1`, as the definition of alignment assumes.

    There are two steps: append a constant column for the bias of the linear probe (optional), and
    scale the rows. Compare only representations that were prepared in the same
    way. After row normalisation the bias column is no longer constant, and it changes the curve.

    Args:
        features: :math:`\Phi`, one example per row.
        bias: append a column of ones before rows are scaled.
        normalize: ``"unit"`` divides each row by its own length, ``"max"`` all rows by the largest
            (keeps the geometry), ``"none"`` leaves them. A row of zeros stays zero.

    Returns:
        The prepared features and the number of rows that are zero.

    Raises:
        ShapeError: If features are not a non-empty matrix.
        DomainError: If an entry is not finite, or ``normalize`` is unknown.

    Examples:
        >>> prepared = prepare_features(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        >>> prepared.features.tolist(), prepared.zero_rows.item()
        ([[0.6000000238418579, 0.800000011920929], [0.0, 0.0]], 1)

    References:
        [imani2022], Eq. (2), which assumes rows of length at most 1.

    Differs from paper:
        The bias column is off by default; ``"max"`` is an addition.
    """
    require_axes(2, features=features)
    require_nonempty(features=features)
    require_finite(features=features)
    require_choice(ROWS, normalize=normalize)
    rows = double(features)
    if bias:
        rows = torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)
    dead = (rows == 0).all(1)
    return PreparedFeatures(scaled_rows(rows, normalize), dead.sum())


@array_function
def scaled_targets(targets: Float[Tensor, "n *c"]) -> ScaledTargets:
    r"""Scale regression targets to [-1, 1] by :math:`2(y - \min)/(\max - \min) - 1`.

    Args:
        targets: training targets; the map is taken from all of their entries.

    Returns:
        The scaled targets and the map, which also applies to other targets.

    Raises:
        DomainError: If the targets are constant or not finite.

    Examples:
        >>> scaled = scaled_targets(torch.tensor([10.0, 15.0, 20.0]))
        >>> scaled.values.tolist(), scaled.apply(torch.tensor([25.0])).tolist()
        ([-1.0, 0.0, 1.0], [2.0])

    References:
        [imani2022], Figure 5.
    """
    require_nonempty(targets=targets)
    require_finite(targets=targets)
    wide = double(targets)
    low, high = wide.min(), wide.max()
    if bool(low == high):
        raise DomainError(
            f"targets: expected at least two different values, got only {low.item()}; "
            "constant targets cannot be moved to [-1, 1]"
        )
    slope = 2 / (high - low)
    return ScaledTargets(slope * (wide - low) - 1, slope, -1 - slope * low)


_TIE = 1e-8  # relative gap below which a divided difference is replaced by the derivative
RouteChoice = Literal["auto", "svd", "gram", "dual", "qr"]
ROUTES = ("auto", "svd", "gram", "dual", "qr")
_SMALL = 2**16  # entries of features: below, the accurate route costs next to nothing
_SVD_BELOW = 2**20  # entries: above, tall features are triangularised chunk by chunk first
_SMALLEST_TRACE = 1e-280  # below it squares of features underflow


class Filter(NamedTuple):
    """Values of ``t`` functions on the kernel's eigenvalues, at zero, and their derivatives."""

    weights: Tensor  # (t, r): f(sigma_i^2)
    null: Tensor  # (t,): f(0)
    slopes: Tensor  # (t, r): sigma_i f'(sigma_i^2), half the derivative by sigma_i


def spectral_form(
    features: Tensor, targets: Tensor, noise: float, make_filter: Callable[[Tensor], Filter]
) -> Tensor:
    """One value per function of the filter; features and targets in float64.

    Singular values of at most ``noise`` times the largest count as zero.
    """
    return _SpectralForm.apply(features, targets, noise, make_filter)  # type: ignore[no-untyped-call]


class _SpectralForm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        targets: Tensor,
        noise: float,
        make_filter: Callable[[Tensor], Filter],
    ) -> Tensor:
        left, sigma, right = thin_svd(features)
        kept = sigma > noise * sigma.max()
        left, sigma, right = left[:, kept], sigma[kept], right[:, kept]
        coefficients = left.mT @ targets
        rest = targets - left @ coefficients
        weights, null, slopes = make_filter(sigma)
        ctx.save_for_backward(left, sigma, right, coefficients, rest, weights, null, slopes)
        return weights @ coefficients.square().sum(1) + null * rest.square().sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        left, sigma, right, c, rest, weights, null, slopes = ctx.saved_tensors
        (outer,) = gradients
        f, at_zero = outer @ weights, outer @ null
        inside = _scaled_differences(sigma, f, outer @ slopes) * (c @ c.mT)
        outside = rest @ (c.mT * ((f - at_zero) / sigma))
        to_features = 2 * (left @ inside + outside) @ right.mT
        to_targets = 2 * (left @ (f.unsqueeze(1) * c) + at_zero * rest)
        return to_features, to_targets, None, None


def _scaled_differences(sigma: Tensor, values: Tensor, slopes: Tensor) -> Tensor:
    r""":math:`\sigma_j (f_i - f_j)/(\sigma_i^2 - \sigma_j^2)`, without overflow of the squares."""
    top = sigma.amax() if len(sigma) else sigma.new_ones(())
    points = (sigma / top).square()
    gaps = points.unsqueeze(1) - points
    tied = gaps.abs() <= _TIE * (points.unsqueeze(1) + points)
    rises = (values.unsqueeze(1) - values) * (sigma / top) / top
    mean_slope = (slopes.unsqueeze(1) + slopes) / 2
    return torch.where(tied, mean_slope, rises / torch.where(tied, torch.ones_like(gaps), gaps))


@array_function
def label_projections(
    features: Float[Tensor, "n d"],
    targets: Shaped[Tensor, "n *c"],
    *,
    threshold: float | None = None,
    route: RouteChoice = "auto",
) -> LabelProjections:
    r"""Singular values of the features and the targets' coordinates on the left singular vectors.

    .. math:: \Phi = U\Sigma V^\top, \qquad c_i = u_i^\top y, \qquad
              \|y\|^2 - \sum_{i \le r} c_i^2

    All of representation alignment and of the convergence of a linear probe is a function of
    these numbers. Singular values within rounding of zero, by
    :func:`theodolite.linalg.rank_tolerance`, count as zero.

    Not differentiable (single directions have no derivative at ties); the measures are.
    A single coefficient is meaningless inside a group of nearly equal singular values, where only
    sums over the group are determined.

    Args:
        features: :math:`\Phi`, prepared with :func:`prepare_features`.
        targets: :math:`y`: a vector, columns, or integer class labels (one-hot columns).
        threshold: smallest singular value that matters. If a float64 Gram matrix resolves it
            (about 3e-7 of the largest singular value), this cheaper route is taken. By default
            all singular values matter.
        route: ``"svd"`` and ``"qr"`` (one pass over tall features, O(d²) memory) are accurate to
            rounding. ``"gram"`` and ``"dual"`` (for n < d) lose singular values below
            ``resolved_above`` of the result. ``"auto"`` chooses, and the result names its choice.
            If autograd needs the gradient of a measure, the measure takes ``"svd"``.

    Returns:
        Singular values, coefficients of every target column, and the mass outside the
        range.

    Raises:
        ShapeError: If features are not a non-empty matrix or targets differ in length.
        DomainError: If an entry is not finite, or the threshold or route is outside its domain.

    Examples:
        >>> p = label_projections(torch.diag(torch.tensor([3.0, 2.0, 0.0])), torch.ones(3))
        >>> p.singular_values.tolist(), p.residual.tolist(), p.route
        ([3.0, 2.0], [1.0], 'svd')

    References:
        [imani2022], Eq. (2) and Proposition 1.
    """
    if threshold is not None:
        require_between(0.0, float("inf"), open_high=True, threshold=threshold)
    read_features(features, targets)
    return project(features, read_targets(targets), threshold, route=route)


def project(
    features: Tensor,
    targets: LabelColumns,
    smallest: float | None,
    *,
    relative: bool = False,
    route: RouteChoice = "auto",
) -> LabelProjections:
    """Projections that resolve every threshold from ``smallest`` on (None: accurate to rounding).

    With ``relative`` the threshold counts in units of the largest singular value. Pass zero for an
    area, because small singular values add little to it. The Gram route is then used if it
    resolves all singular values.
    """
    require_choice(ROUTES, route=route)
    rows, values = features.detach(), LabelColumns(targets.values.detach(), targets.num_classes)
    auto = route == "auto"
    if route in ("gram", "dual") or (auto and smallest is not None and rows.numel() > _SMALL):
        found = _by_gram(rows, values, route)
        if found is not None:
            unit = found.singular_values.amax() if relative and len(found.singular_values) else 1
            if not auto or _resolves(found, float((smallest or 0.0) * unit), eps_of(features)):
                return found
    require_finite(features=rows)
    tall = rows.shape[0] > rows.shape[1] and rows.numel() > _SVD_BELOW
    if route == "qr" or (route != "svd" and tall):
        return qr_projections(rows, values.values, values.num_classes)
    return svd_projections(rows, values.columns)


def _resolves(found: LabelProjections, level: float, eps: float) -> bool:
    """Whether a Gram matrix resolves all thresholds from a level on, as far as the data do."""
    if found.resolved_above > level:
        return False
    counted = found.singular_values[found.singular_values >= level]
    if level == 0 or eps > torch.finfo(torch.float64).eps or len(counted) == 0:
        return True  # rounding of coarser data exceeds that of the float64 Gram matrix
    return float(counted[-1]) >= GRAM_ACCURATE_ABOVE * float(found.singular_values[0])


def _by_gram(
    features: Tensor, targets: LabelColumns, route: RouteChoice
) -> LabelProjections | None:
    """Projections from the smaller Gram matrix; None if its squares overflow or vanish."""
    n, d = features.shape
    eps = eps_of(features)
    if route == "dual" or (route == "auto" and n < d):
        kernel = dual_gram(features)
        if not _usable(kernel, features):
            return None
        return projections_from_kernel(kernel, targets.columns, d, eps)
    sums = gram_sums(features, targets.values, targets.num_classes)
    if not _usable(sums.gram, features):
        return None
    return projections_from_gram(*sums, n, eps)


def _usable(gram: Tensor, features: Tensor) -> bool:
    """Whether the trace is an ordinary number: it sums the squares of all entries."""
    trace = float(gram.diagonal().sum())
    if _SMALLEST_TRACE < trace < float("inf"):
        return True
    require_finite(features=features)  # the error names the entry
    return False
