"""Alignment of an operator-valued kernel, which keeps all pairs of outputs instead of a trace."""

from jaxtyping import Float
from torch import Tensor
from torch.linalg import matrix_norm

from theodolite.linalg import (
    alignment_from_norms,
    array_function,
    center_columns,
    double,
    eps_of,
    unit_peak,
    vanishes_when_centered,
)
from theodolite.measures.tangent.alignment import require_kernel_and_targets, stacked, unit_vector


@array_function
def operator_alignment(
    kernel: Float[Tensor, "n c n c"], targets: Float[Tensor, "n c"], *, center: bool = True
) -> Float[Tensor, ""]:
    r"""Alignment of an operator-valued kernel with the rank-one kernel of the targets.

    .. math:: \frac{\mathrm{vec}(Y)^\top K\,\mathrm{vec}(Y)}{\|K\|_F\,\|Y\|_F^2},
              \qquad K \to (H \otimes I_c) K (H \otimes I_c), \; Y \to HY,
              \; H = I - \tfrac1n 11^\top

    A kernel of the form :math:`k \otimes I_c` treats all outputs alike. It reaches at most
    :math:`1/\sqrt c`. For one output this is the kernel alignment (centred: CKA).

    Range: [0, 1] for positive semi-definite kernels, [-1, 1] for symmetric ones.
    Invariant to: positive scaling of the kernel, scaling of the targets, a common permutation of
    the examples; when centred also a constant row added to the targets.
    Undefined (``nan``): kernel or targets are zero (after centring), up to rounding.

    Args:
        kernel: :math:`K`, e.g. the tangent kernel of a network with c outputs.
        targets: :math:`Y`, one column per output.
        center: whether to centre over the examples, output by output.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If the shapes do not match.
        DomainError: If the kernel is not symmetric, or either is not finite.

    Examples:
        >>> y = torch.eye(2)
        >>> kernel = torch.einsum("xy,ij->xiyj", y @ y.T, torch.eye(2))
        >>> round(operator_alignment(kernel, y, center=False).item(), 4)
        0.5

    References:
        [canatar2022], Section VI, where the full operator is mentioned but traced over outputs.
    """
    require_kernel_and_targets(kernel, targets=targets)
    K, Y = unit_peak(double(stacked(kernel))), unit_peak(double(targets))
    Kc, Yc = K, Y
    if center:
        rows = K.reshape(kernel.shape)
        rows = rows - rows.mean(2, keepdim=True)
        Kc, Yc = stacked(rows - rows.mean(0, keepdim=True)), center_columns(Y)
    defined = ~vanishes_when_centered(Kc, K, eps_of(kernel))
    defined &= ~vanishes_when_centered(Yc, Y, eps_of(targets))
    y = unit_vector(Yc.flatten())
    return alignment_from_norms(y @ Kc @ y, matrix_norm(Kc), 1.0, defined)
