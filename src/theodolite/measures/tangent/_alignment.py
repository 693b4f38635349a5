"""Alignment of a tangent kernel with the labels, centred over pairs or over examples."""

from jaxtyping import Float
from torch import Tensor
from torch.linalg import matrix_norm

from theodolite.linalg import array_function
from theodolite.measures.tangent._label_angle import Centering, kernel_and_label
from theodolite.measures.tangent._stacking import require_kernel_and_targets
from theodolite.measures.tangent._streamed import alignment_from_norms

__all__ = ["alignment_of", "operator_alignment", "tangent_alignment"]


@array_function
def tangent_alignment(
    kernel: Float[Tensor, "n c n c"], targets: Float[Tensor, "n c"], *, center: bool = True
) -> Float[Tensor, ""]:
    r"""How well one gradient step on a layer moves the outputs along the labels.

    .. math:: A = \frac{\tilde y^\top K \tilde y}{\|C_m K C_m\|_F\,\|\tilde y\|^2},
              \qquad C_m = I - \tfrac1m 11^\top, \; \tilde y = C_m\,\mathrm{vec}(Y), \; m = nc

    Centring runs over all m pairs of example and output, not over examples; for one output the
    two coincide and this is the centred kernel alignment with :math:`YY^\top`.

    Range: [0, 1] for positive semi-definite kernels, [-1, 1] for symmetric ones.
    Invariant to: positive scaling of the kernel, scaling of the targets, a constant added to every
    entry of either, a common permutation of the examples.
    Undefined (``nan``): kernel or targets are zero after centring, up to rounding.

    Args:
        kernel: :math:`K`, the tangent kernel of one layer or of the whole network.
        targets: :math:`Y`, e.g. one-hot labels.
        center: ``False`` takes kernel and targets as they are (:math:`C_m = I`).

    Raises:
        ShapeError: If the shapes do not match.
        DomainError: If the kernel is not symmetric, or either is not finite.

    Example:
        >>> y = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> kernel = torch.einsum("xi,yj->xiyj", y, y)
        >>> round(tangent_alignment(kernel, y).item(), 4)
        1.0

    References:
        [lou2022], Eq. (7).
        Differs from paper: the range needs positive semi-definite kernels.
    """
    require_kernel_and_targets(kernel, targets=targets)
    return alignment_of(kernel, targets, "stacked" if center else "none")


@array_function
def operator_alignment(
    kernel: Float[Tensor, "n c n c"], targets: Float[Tensor, "n c"], *, center: bool = True
) -> Float[Tensor, ""]:
    r"""Alignment of an operator-valued kernel with the rank-one kernel of the targets.

    .. math:: \frac{\mathrm{vec}(Y)^\top K\,\mathrm{vec}(Y)}{\|K\|_F\,\|Y\|_F^2},
              \qquad K \to (H \otimes I_c) K (H \otimes I_c), \; Y \to HY,
              \; H = I - \tfrac1n 11^\top

    A kernel of the form :math:`k \otimes I_c`, blind to which output is asked for, reaches at most
    :math:`1/\sqrt c`. For one output this is the kernel alignment (centred: CKA).

    Range: [0, 1] for positive semi-definite kernels, [-1, 1] for symmetric ones.
    Invariant to: positive scaling of the kernel, scaling of the targets, a common permutation of
    the examples; when centred also a constant row added to the targets.
    Undefined (``nan``): kernel or targets are zero (after centring), up to rounding.

    Args:
        kernel: :math:`K`, e.g. the tangent kernel of a network with c outputs.
        targets: :math:`Y`.
        center: whether to centre over the examples, output by output.

    Raises:
        ShapeError: If the shapes do not match.
        DomainError: If the kernel is not symmetric, or either is not finite.

    Example:
        >>> y = torch.eye(2)
        >>> kernel = torch.einsum("xy,ij->xiyj", y @ y.T, torch.eye(2))
        >>> round(operator_alignment(kernel, y, center=False).item(), 4)
        0.5

    References:
        [canatar2022], Section VI, where the full operator is mentioned but traced over outputs.
    """
    require_kernel_and_targets(kernel, targets=targets)
    return alignment_of(kernel, targets, "examples" if center else "none")


def alignment_of(kernel: Tensor, targets: Tensor, centering: Centering) -> Tensor:
    """The formula without checks of values; it vmaps, e.g. over permuted targets."""
    pair = kernel_and_label(kernel, targets, centering)
    return alignment_from_norms(pair.label_energy, matrix_norm(pair.kernel), 1.0, pair.defined)
