"""The transfer function from data variance to weight variance, and whether it has one peak."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_count, require_finite, require_symmetric
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import (
    Eigen,
    array_function,
    double,
    eigenvalue_groups,
    eps_of,
    equality_tolerance,
    nan_unless,
    prints_shapes,
    safe_sqrt,
    top_eigen,
    unit_peak,
)
from theodolite.measures.covariance._matrices import (
    Eigenspaces,
    grouping_tolerance,
    require_dimension,
    require_symmetric_stack,
    symmetrized,
)


@prints_shapes
@dataclass(frozen=True)
class TransferFunction:
    """Pairs ``tau = f(sigma)``, one per data direction, sigma decreasing."""

    sigma: Float[Tensor, " d"]  # standard deviation of the data
    tau: Float[Tensor, "*batch d"]  # standard deviation of the weights in the same direction


@array_function
def transfer_function(
    data_covariance: Float[Tensor, "d d"] | Eigen,
    weights: Float[Tensor, "*batch f d"],
    *,
    centered: bool = True,
    count: int | None = None,
    rtol: float | None = None,
) -> TransferFunction:
    r"""How widely a layer's weights spread along each principal direction of its data.

    .. math:: \tau_i^2 = \frac1F \sum_k \langle w_k - \bar w, v_i\rangle^2 = v_i^\top \Sigma_w v_i,
              \qquad f(\sigma_i) = \tau_i

    In a degenerate data eigenspace :math:`V`: :math:`\tau^2 = \operatorname{tr}(\Sigma_w|_V) /
    \dim V` for each of its directions. Works for any number of filters.

    Range: [0, inf).
    Invariant to: rotating both; adding a constant to all weights (if centred); order of filters.
    Undefined: never.

    Args:
        data_covariance: :math:`\Sigma_x`, positive semi-definite, or its leading eigenpairs.
        weights: :math:`w_k` as rows, ``weight.flatten(1)`` of a convolution; a stack of runs or
            checkpoints gives one curve each. To pool runs, concatenate their rows.
        centered: remove the mean filter.
        count: only so many leading directions (default: all). Where that cuts an eigenspace in
            two, the directions inside it stand for the whole.
        rtol: relative gap of eigenvalues that count as equal.

    Raises:
        ShapeError: If the covariance is not square or the weights have another dimension.
        DomainError: If the covariance is not symmetric or has negative eigenvalues beyond
            rounding, or an entry is not finite.

    Example:
        >>> weights = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
        >>> curve = transfer_function(torch.diag(torch.tensor([4.0, 1.0])), weights)
        >>> curve.sigma.tolist(), (curve.tau**2).round(decimals=1).tolist()
        ([2.0, 1.0], [0.5, 2.0])

    References:
        [maennel2020], Equations (2), (3) and Definition 3; degenerate spaces are ours.
    """
    if weights.ndim < 2 or 0 in weights.shape:
        raise ShapeError(
            f"weights: expected at least one filter as a row, got shape {tuple(weights.shape)}; "
            "pass weight.flatten(1)"
        )
    require_finite(weights=weights)
    spaces = _directions(data_covariance, count, rtol)
    require_dimension(len(spaces.vectors), weights=weights)
    W = double(weights)
    if centered:
        W = W - W.mean(-2, keepdim=True)
    return _curve(spaces, (W @ spaces.vectors).square().mean(-2))


@array_function
def transfer_from_covariance(
    data_covariance: Float[Tensor, "d d"],
    weight_covariance: Float[Tensor, "*batch d d"],
    *,
    count: int | None = None,
    rtol: float | None = None,
) -> TransferFunction:
    r"""The transfer function where only the covariance of the weights is known.

    .. math:: f(\sigma_i) = \tau_i = \sqrt{v_i^\top \Sigma_w v_i}

    Range: [0, inf).
    Invariant to: rotating both.
    Undefined: never.

    Args:
        data_covariance: :math:`\Sigma_x`, positive semi-definite.
        weight_covariance: :math:`\Sigma_w`, positive semi-definite, or a stack.
        count: only so many leading directions (default: all), see :func:`transfer_function`.
        rtol: relative gap of eigenvalues that count as equal.

    Raises:
        ShapeError: If a matrix is not square or they differ in size.
        DomainError: If a matrix is not symmetric or not finite, or a variance is negative beyond
            rounding.

    Example:
        >>> data = torch.diag(torch.tensor([4.0, 1.0]))
        >>> transfer_from_covariance(data, data @ data).tau.tolist()
        [4.0, 1.0]

    References:
        [maennel2020], Equation (2).
    """
    require_symmetric_stack(weight_covariance=weight_covariance)
    spaces = _directions(data_covariance, count, rtol)
    require_dimension(len(data_covariance), weight_covariance=weight_covariance)
    forms = (spaces.vectors * (symmetrized(weight_covariance) @ spaces.vectors)).sum(-2)
    scale = double(weight_covariance.detach()).abs().amax((-2, -1))[..., None]
    tolerance = equality_tolerance(len(data_covariance), eps_of(weight_covariance))
    _require_no_negative(forms, scale, tolerance, "weight_covariance")
    return _curve(spaces, forms)


@array_function
def curve_deviation(
    curve_1: Float[Tensor, "*batch d"], curve_2: Float[Tensor, "*batch d"]
) -> Float[Tensor, "*batch"]:
    r"""Difference in shape between two curves on one grid.

    .. math:: \left\| \frac{f}{\|f\|} - \frac{g}{\|g\|} \right\|_2

    Range: [0, 2]; at most :math:`\sqrt 2` for curves that are nowhere negative.
    Invariant to: swapping; scaling either.
    Undefined (``nan``): a curve is zero. At equality, where there is no gradient, it is zero.

    Args:
        curve_1: :math:`f`, e.g. ``transfer_function(...).tau``.
        curve_2: :math:`g`, at the same points.

    Raises:
        ShapeError: If the curves differ in shape or are empty.
        DomainError: If an entry is not finite.

    Example:
        >>> round(curve_deviation(torch.tensor([1.0, 0.0]), torch.tensor([3.0, 3.0])).item(), 4)
        0.7654

    References:
        [maennel2020], Figures 21 and 22, where curves are compared by eye; the number is ours.
    """
    for name, curve in {"curve_1": curve_1, "curve_2": curve_2}.items():
        if curve.ndim == 0 or curve.numel() == 0 or curve.shape != curve_1.shape:
            raise ShapeError(
                f"{name}: expected a curve of shape {tuple(curve_1.shape)} like the other, got "
                f"shape {tuple(curve.shape)}; evaluate both at the same points"
            )
    require_finite(curve_1=curve_1, curve_2=curve_2)
    f, g = (unit_peak(double(curve)[..., None])[..., 0] for curve in (curve_1, curve_2))
    defined = (f != 0).any(-1) & (g != 0).any(-1)
    # No nan before the last step: it would reach the gradient of the other curve.
    f, g = (torch.where(defined[..., None], curve, torch.ones_like(curve)) for curve in (f, g))
    difference = f / f.norm(dim=-1, keepdim=True) - g / g.norm(dim=-1, keepdim=True)
    return nan_unless(defined, safe_sqrt(difference.square().sum(-1)))


def _directions(
    data_covariance: Tensor | Eigen, count: int | None, rtol: float | None
) -> Eigenspaces:
    """Leading eigenpairs with their groups; eigenvalues below 0 by rounding count as 0."""
    if isinstance(data_covariance, Eigen):
        values, vectors = (double(part) for part in data_covariance)
        count = len(values) if count is None else count
        require_count(1, count=count)
        if count > len(values):
            raise DomainError(f"count: expected at most the {len(values)} given, got {count}")
        values, vectors = values[:count].clamp(min=0), vectors[:, :count]
        fine = equality_tolerance(len(vectors), torch.finfo(torch.float64).eps)
        groups = eigenvalue_groups(values, fine if rtol is None else rtol)
        return Eigenspaces(values, vectors, tuple(groups))
    require_symmetric(data_covariance=data_covariance)
    size = len(data_covariance)
    count = size if count is None else count
    require_count(1, count=count)
    if count > size:
        raise DomainError(f"count: expected at most {size} directions, got {count}")
    values, vectors = top_eigen(symmetrized(data_covariance.detach()), count)
    tolerance = grouping_tolerance(data_covariance, None)
    _require_no_negative(values, values.abs().max(), tolerance, "data_covariance")
    groups = eigenvalue_groups(values, grouping_tolerance(data_covariance, rtol))
    return Eigenspaces(values.clamp(min=0), vectors, tuple(groups))


def _require_no_negative(values: Tensor, scale: Tensor, tolerance: float, name: str) -> None:
    if bool((values.detach() < -tolerance * scale).any()):
        raise DomainError(
            f"{name}: expected a covariance, without negative variances, got "
            f"{values.min().item():.3g} along an eigenvector; was something subtracted from it?"
        )


def _curve(spaces: Eigenspaces, variances: Tensor) -> TransferFunction:
    means = spaces.spread(spaces.means(variances))
    return TransferFunction(spaces.values.sqrt(), safe_sqrt(means))


@array_function
def unimodality_defect(curve: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
    r"""Share of a curve's variance that no rising-then-falling curve explains.

    .. math:: \min_k \frac{\min_{g \uparrow} \sum_{i \le k} (y_i - g_i)^2
              + \min_{h \downarrow} \sum_{i > k} (y_i - h_i)^2}{\sum_i (y_i - \bar y)^2}

    Either part may be absent. White noise on 27 points scores 0.67 on average.

    Range: [0, 1]; 0 for a curve that only rises, only falls, or rises and then falls.
    Invariant to: scaling and shifting the curve; reversing its order.
    Undefined: never; a constant curve has defect 0.

    Args:
        curve: :math:`y_i`, ordered by :math:`\sigma` (either way), e.g.
            ``transfer_function(...).tau``; a stack gives one number each.

    Raises:
        ShapeError: If the curve is empty.
        DomainError: If an entry is not finite.

    Example:
        >>> unimodality_defect(torch.tensor([1.0, 2.0, 4.0, 3.0])).item()
        0.0
        >>> round(unimodality_defect(torch.tensor([2.0, 1.0, 0.0, 1.0, 2.0])).item(), 4)
        0.7143

    References:
        [maennel2020], Section 2.3: "increasing, then decreasing"; the number is ours.
    """
    if curve.ndim == 0 or curve.numel() == 0:
        raise ShapeError(f"curve: expected at least one point, got shape {tuple(curve.shape)}")
    require_finite(curve=curve)
    y = unit_peak(double(curve)[..., None])[..., 0]
    rows = y.reshape(-1, y.shape[-1])
    owner = torch.stack([_best_blocks(row.tolist()) for row in rows.detach()]).to(y.device)
    residual = (rows - _block_means(rows, owner)).square().sum(-1)
    centered = rows - rows.mean(-1, keepdim=True)
    total = centered.square().sum(-1)
    varies = total.detach().sqrt() > 8 * eps_of(curve) * rows.detach().norm(dim=-1)
    share = residual / torch.where(varies, total, torch.ones_like(total))
    return torch.where(varies, share, torch.zeros_like(share)).reshape(y.shape[:-1])


def _best_blocks(values: list[float]) -> Tensor:
    """For each point the number of its block in the best fit, which is constant on blocks."""
    rising, rising_errors = _pooled_prefixes(values)
    falling, falling_errors = _pooled_prefixes(values[::-1])
    size = len(values)
    split = min(range(size + 1), key=lambda k: rising_errors[k] + falling_errors[size - k])
    lengths = [*rising[split], *falling[size - split][::-1]]
    return torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths, dtype=torch.long))


def _pooled_prefixes(values: list[float]) -> tuple[list[list[int]], list[float]]:
    """Pool adjacent violators: lengths of the blocks and squared error for every prefix."""
    lengths: list[int] = []
    means: list[float] = []
    errors: list[float] = []
    partitions: list[list[int]] = [[]]
    totals = [0.0]
    for value in values:
        length, mean, error = 1, value, 0.0
        while lengths and means[-1] >= mean:
            other, other_mean, other_error = lengths.pop(), means.pop(), errors.pop()
            gap, both = mean - other_mean, length + other
            error += other_error + gap * gap * length * other / both
            mean, length = other_mean + gap * length / both, both
        lengths.append(length)
        means.append(mean)
        errors.append(error)
        partitions.append(list(lengths))
        totals.append(sum(errors))
    return partitions, totals


def _block_means(rows: Tensor, owner: Tensor) -> Tensor:
    """Mean over its block at each point; differentiable, the blocks being locally constant."""
    sums = torch.zeros_like(rows).scatter_add(-1, owner, rows)
    sizes = torch.zeros_like(rows).scatter_add(-1, owner, torch.ones_like(rows))
    return (sums / sizes.clamp(min=1)).gather(-1, owner)
