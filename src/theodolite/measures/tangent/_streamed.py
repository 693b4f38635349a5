"""Tangent alignment from sums over a kernel that was never held in memory."""

from jaxtyping import Float
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_finite,
    require_nonempty,
    require_same_shape,
)
from theodolite.errors import DomainError
from theodolite.linalg import (
    array_function,
    centered_square_sum,
    double,
    eps_of,
    ratio_or_nan,
    safe_sqrt,
)
from theodolite.measures.tangent._labels import centered_over_all

__all__ = ["alignment_from_norms", "alignment_from_sums"]


@array_function
def alignment_from_sums(
    label_energy: Float[Tensor, ""],
    square_sum: Float[Tensor, ""],
    row_sums: Float[Tensor, "n c"] | None,
    targets: Float[Tensor, "n c"],
) -> Float[Tensor, ""]:
    r"""Tangent alignment from what one pass over the tiles of a kernel can sum up.

    .. math:: A = \frac{\|\Psi\tilde y\|^2}{\|C_m K C_m\|_F\,\|\tilde y\|^2}, \qquad
              \|C_m K C_m\|_F^2 = \sum_{ab} K_{ab}^2 - \tfrac2m \|K1\|^2
              + \tfrac1{m^2} (1^\top K 1)^2

    The difference loses digits when the kernel is nearly constant. Subtract one number (the mean
    of the first tile will do) from every entry before it is summed: no centred quantity changes.
    A layer with fewer parameters than pairs needs no kernel: pass
    :math:`\|\Psi C_m\Psi^\top\|_F^2` as the square sum, no row sums, and the centred targets.

    Range: [0, 1] for positive semi-definite kernels.
    Invariant to: as :func:`tangent_alignment`, with which it agrees up to rounding.
    Undefined (``nan``): the targets are constant, or the centred kernel drowns in the rounding of
    the sums.

    Args:
        label_energy: :math:`\|\Psi\tilde y\|^2 = \tilde y^\top K\tilde y` for the centred targets
            (one backward pass); for the uncentred form :math:`y^\top K y`.
        square_sum: :math:`\sum_{ab} K_{ab}^2`.
        row_sums: :math:`K1`, one per example and output; ``None`` for the uncentred form.
        targets: :math:`Y`.

    Raises:
        ShapeError: If row sums and targets differ in shape.
        DomainError: If a number is not finite, or the square sum is negative.

    Example:
        >>> y = torch.tensor([[1.0], [-1.0]])  # K = y y^T
        >>> sums = torch.tensor(4.0), torch.tensor(4.0), torch.zeros(2, 1)
        >>> round(alignment_from_sums(*sums, y).item(), 4)
        1.0

    References:
        [lou2022], Eq. (7).
    """
    _require_sums(label_energy, square_sum, row_sums, targets)
    noise = eps_of(square_sum, targets)
    square_sum, Y = double(square_sum), double(targets)
    y = Y if row_sums is None else centered_over_all(Y)
    energy = square_sum if row_sums is None else centered_square_sum(square_sum, double(row_sums))
    defined = energy > 8 * noise * square_sum
    defined = defined & (y.square().sum() > (8 * noise) ** 2 * Y.square().sum())
    return alignment_from_norms(double(label_energy), safe_sqrt(energy), y.square().sum(), defined)


def alignment_from_norms(
    label_energy: Float[Tensor, "*layers"],
    kernel_norm: Float[Tensor, "*layers"],
    label_square: Float[Tensor, "*layers"] | float,
    defined: Tensor | bool = True,
) -> Float[Tensor, "*layers"]:
    r"""Tangent alignment from its three parts, however they were found; the one formula.

    .. math:: A = \frac{\tilde y^\top K\tilde y}{\|C_m K C_m\|_F\,\|\tilde y\|^2}

    Args:
        label_energy: :math:`\tilde y^\top K\tilde y` for the centred targets.
        kernel_norm: :math:`\|C_m K C_m\|_F`, or an estimate of it.
        label_square: :math:`\|\tilde y\|^2`.
        defined: whether kernel and targets are more than rounding after centring.

    Example:
        >>> alignment_from_norms(torch.tensor(2.0), torch.tensor(4.0), 1.0).item()
        0.5

    References:
        [lou2022], Eq. (7).
    """
    return ratio_or_nan(label_energy, kernel_norm * label_square, defined)


def _require_sums(
    label_energy: Tensor, square_sum: Tensor, row_sums: Tensor | None, targets: Tensor
) -> None:
    require_axes(0, label_energy=label_energy, square_sum=square_sum)
    require_axes(2, targets=targets)
    require_nonempty(targets=targets)
    if row_sums is not None:
        require_same_shape(row_sums=row_sums, targets=targets)
        require_finite(row_sums=row_sums)
    require_finite(label_energy=label_energy, square_sum=square_sum, targets=targets)
    if square_sum < 0:
        raise DomainError(
            f"square_sum: expected a sum of squares, at least 0, got {square_sum.item()}"
        )
