"""Angle between two Gram matrices, as they are (KTA) and centred (CKA)."""

from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_same_shape, require_symmetric
from theodolite.linalg import (
    array_function,
    centered_products,
    double,
    double_center,
    eps_of,
    gram_cosine,
    unit_peak,
    vanishes_when_centered,
)

__all__ = ["cka", "kta"]


@array_function
def kta(gram_a: Float[Tensor, "n n"], gram_b: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    r"""Kernel-target alignment: cosine of the angle between two Gram matrices.

    .. math:: A(K, L) = \frac{\mathrm{tr}(KL)}{\sqrt{\mathrm{tr}(KK)\,\mathrm{tr}(LL)}}

    A large mean of the features drives it to the same number whatever the labels; :func:`cka`
    does not move.

    Range: [-1, 1]; [0, 1] if both are positive semi-definite.
    Invariant to: swapping arguments; positive scaling; a joint permutation of examples.
    Undefined (``nan``): either matrix is zero.

    Args:
        gram_a: :math:`K`, e.g. the kernel of a layer or a tangent kernel.
        gram_b: :math:`L`, e.g. ``target_gram(labels)``, of the same examples in the same order.

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: If one is not symmetric or not finite.

    Example:
        >>> a = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
        >>> round(kta(a, torch.diag(torch.tensor([1.0, 4.0]))).item(), 4)
        0.8767

    References:
        [canatar2022], Eq. (4) and the display after it; [cristianini2001], Def. 1.

    Differs from paper: Eq. (4) read literally, with norms of operator products, is the alignment
        of the squared kernels; this is the finite form given below it.
    """
    require_symmetric(gram_a=gram_a, gram_b=gram_b)
    require_same_shape(gram_a=gram_a, gram_b=gram_b)
    return gram_cosine(double(gram_a), double(gram_b))


@array_function
def cka(
    gram_a: Float[Tensor, "n n"], gram_b: Float[Tensor, "n n"], debiased: bool = True
) -> Float[Tensor, ""]:
    r"""Centred kernel alignment: cosine of the angle between two centred Gram matrices.

    .. math:: \mathrm{CKA}(K, L) =
              \frac{\mathrm{HSIC}(K, L)}{\sqrt{\mathrm{HSIC}(K, K)\,\mathrm{HSIC}(L, L)}}

    The biased estimator is the paper's: :func:`kta` of :math:`HKH` and :math:`HLH`. It is far from
    zero for independent features when their width is comparable to ``n``; the debiased one (the
    default) uses the unbiased estimate of every HSIC and is not.

    Range: [-1, 1]; biased: [0, 1] if both are positive semi-definite.
    Invariant to: swapping arguments; positive scaling; adding :math:`v1^\top + 1v^\top`; a joint
        permutation of examples.
    Undefined (``nan``): either matrix is zero after centring, up to rounding; debiased: fewer than
        four examples, or all pairs of examples equally similar.

    Args:
        gram_a: :math:`K`, e.g. the kernel of a layer or a tangent kernel.
        gram_b: :math:`L`, e.g. ``target_gram(labels)``, of the same examples in the same order.
        debiased: the estimator: debiased, or the paper's plug-in form.

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: If one is not symmetric or not finite.

    Example:
        >>> x = torch.tensor([[1.0], [2.0], [3.0]])
        >>> y = torch.tensor([[1.0], [3.0], [2.0]])
        >>> round(cka(x @ x.T, y @ y.T, debiased=False).item(), 4)  # squared correlation
        0.25

    References:
        [canatar2022], Sec. III; [cortes2012], Def. 4; [kornblith2019], Eq. (3);
        [song2012], Eq. (5).

    Differs from paper: debiased by default.
    """
    require_symmetric(gram_a=gram_a, gram_b=gram_b)
    require_same_shape(gram_a=gram_a, gram_b=gram_b)
    return _cka(double(gram_a), double(gram_b), debiased, eps_of(gram_a, gram_b))


def _cka(gram_a: Tensor, gram_b: Tensor, debiased: bool, eps: float) -> Tensor:
    K, L = unit_peak(gram_a), unit_peak(gram_b)
    Kc, Lc = double_center(K), double_center(L)
    defined = ~vanishes_when_centered(Kc, K, eps) & ~vanishes_when_centered(Lc, L, eps)
    return centered_products(Kc, Lc).cka(debiased=debiased, eps=eps, defined=defined)[0, 1]
