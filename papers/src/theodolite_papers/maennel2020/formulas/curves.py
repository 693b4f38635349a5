"""Shapes of transfer functions: how far two differ, and how far one is from a single peak."""

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_finite
from theodolite.errors import ShapeError
from theodolite.linalg import array_function, double, eps_of, nan_unless, safe_sqrt, unit_peak


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

    Examples:
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

    Examples:
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
