"""Shapes of kernel spectra and of cumulative power, and the optimal kernel."""

import torch
from jaxtyping import Float, Integer, Shaped
from torch import Tensor

from theodolite.checks import require_axes, require_count, require_finite, require_nonempty
from theodolite.errors import DomainError
from theodolite.linalg import array_function, double, ratio_or_nan
from theodolite.measures.kernel.alignment import target_matrix
from theodolite.measures.kernel.spectrum import require_curve


@array_function
def power_evenness(curve: Float[Tensor, " m"], num_classes: int) -> Float[Tensor, ""]:
    r"""Largest distance of the cumulative power from an even spread over the first modes.

    .. math:: \max_{\rho \le C} |C(\rho) - \rho / C|

    Zero when the leading eigenspace is the span of balanced one-hot targets, as after collapse.

    Range: [0, 1].
    Invariant to: what :func:`cumulative_power` is.
    Undefined (``nan``): the curve is, or it ends before mode ``num_classes``.

    Args:
        curve: :math:`C(0), C(1), ...` from :func:`cumulative_power`.
        num_classes: :math:`C`, the number of modes compared.

    Raises:
        ShapeError: If the curve is not a vector.
        DomainError: If it does not start at 0 or falls, or there is no class.

    Examples:
        >>> round(power_evenness(torch.tensor([0.0, 0.8, 1.0, 1.0]), num_classes=2).item(), 4)
        0.3

    References:
        [canatar2022], Fig. 3b; the number is ours.
    """
    require_curve(curve)
    require_count(1, num_classes=num_classes)
    values = double(curve)[: num_classes + 1]
    if len(values) <= num_classes:
        return values.new_tensor(torch.nan)
    even = torch.arange(num_classes + 1).to(values) / num_classes
    return (values - even).abs().max()


@array_function
def spectral_gap(eigenvalues: Float[Tensor, " r"], num_classes: int) -> Float[Tensor, ""]:
    r"""Ratio of an eigenvalue to the next: does the spectrum break off after the classes?

    .. math:: \eta_C / \eta_{C+1}

    Range: at least 1; infinite if the kernel has exactly that rank.
    Invariant to: scaling.
    Undefined (``nan``): fewer than C + 1 eigenvalues are listed, or both are zero.

    Args:
        eigenvalues: :math:`\eta`, in decreasing order.
        num_classes: :math:`C`.

    Raises:
        ShapeError: If the eigenvalues are not a vector.
        DomainError: If one is negative or not finite, they are not sorted, or there is no class.

    Examples:
        >>> spectral_gap(torch.tensor([3.0, 2.0, 0.5]), num_classes=2).item()
        4.0

    References:
        [canatar2022], Fig. 3a and 5a; the number is ours.
    """
    require_axes(1, eigenvalues=eigenvalues)
    require_nonempty(eigenvalues=eigenvalues)
    require_finite(eigenvalues=eigenvalues)
    require_count(1, num_classes=num_classes)
    if eigenvalues[-1] < 0 or (eigenvalues[1:] > eigenvalues[:-1]).any():
        raise DomainError(
            "eigenvalues: expected numbers of at least 0 in decreasing order, got "
            f"{eigenvalues[:4].tolist()}...; pass kernel_spectrum(...).eigenvalues"
        )
    eta = double(eigenvalues)
    if len(eta) <= num_classes:
        return eta.new_tensor(torch.nan)
    above, below = eta[num_classes - 1], eta[num_classes]
    ratio = ratio_or_nan(above, below)
    return torch.where((below == 0) & (above > 0), torch.full_like(ratio, torch.inf), ratio)


@array_function
def optimal_kernel(
    targets: Integer[Tensor, " n"] | Shaped[Tensor, "n c"], num_classes: int | None = None
) -> Float[Tensor, "n c n c"]:
    r"""Operator-valued kernel of rank one: one example suffices to learn all outputs.

    .. math:: K^{opt}_{ij}(x, x') = \bar f_i(x)\,\bar f_j(x')

    Its trace over classes is :func:`target_gram`. Index order: example, class, example, class.

    Args:
        targets: integer class labels, or any real matrix of target vectors.
        num_classes: for labels, the number of classes when some are absent.

    Raises:
        ShapeError: If neither labels nor a matrix came.
        DomainError: If a label is out of range or an entry is not finite.

    Examples:
        >>> optimal_kernel(torch.tensor([[1.0], [-2.0]])).reshape(2, 2)
        tensor([[ 1., -2.],
                [-2.,  4.]])

    References:
        [canatar2022], Sec. III and VI.

    Differs from paper: Sec. III omits the prime on the second argument; this is Sec. VI's form.
    """
    Y = target_matrix(targets, num_classes)
    return torch.einsum("mi,nj->minj", Y, Y)
