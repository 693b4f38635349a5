"""Hilbert-Schmidt independence criterion: plug-in and unbiased, of Gram matrices and features."""

from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_same_shape, require_symmetric
from theodolite.linalg import array_function, centered_products, double, double_center
from theodolite.measures.kernel._factors import Factor, factor_products
from theodolite.measures.kernel._linear import require_paired_features

__all__ = ["hsic", "linear_hsic"]


@array_function
def hsic(
    gram_a: Float[Tensor, "n n"], gram_b: Float[Tensor, "n n"], debiased: bool = True
) -> Float[Tensor, ""]:
    r"""Hilbert-Schmidt independence criterion of two Gram matrices.

    .. math:: \mathrm{HSIC}_0 = \tfrac1{n^2}\,\mathrm{tr}(HKH\,HLH), \qquad
              \mathrm{HSIC}_1 = \tfrac1{n(n-3)}\Big[\mathrm{tr}(\tilde K\tilde L)
              + \tfrac{1^\top\tilde K1\;1^\top\tilde L1}{(n-1)(n-2)}
              - \tfrac{2}{n-2}1^\top\tilde K\tilde L1\Big]

    with :math:`\tilde K` the matrix without its diagonal. :math:`\mathrm{HSIC}_1` (the default) is
    the mean over all quadruples of distinct examples and unbiased for the population's value.

    Range: any number; biased: at least 0 if both are positive semi-definite.
    Invariant to: swapping arguments; adding :math:`v1^\top + 1v^\top`; a joint permutation.
    Undefined (``nan``): debiased with fewer than four examples.

    Args:
        gram_a: :math:`K`.
        gram_b: :math:`L`, of the same examples in the same order.
        debiased: the unbiased estimator, or the plug-in one.

    Raises:
        ShapeError: If the matrices are not square or differ in size.
        DomainError: If one is not symmetric or not finite.

    Example:
        >>> x = torch.tensor([[1.0], [2.0], [3.0]])
        >>> round(hsic(x @ x.T, x @ x.T, debiased=False).item(), 4)  # squared variance
        0.4444

    References:
        [song2012], Eq. (4) and (5).

    Differs from paper: the plug-in form divides by n², not (n - 1)².
    """
    require_symmetric(gram_a=gram_a, gram_b=gram_b)
    require_same_shape(gram_a=gram_a, gram_b=gram_b)
    K, L = double_center(double(gram_a)), double_center(double(gram_b))
    return centered_products(K, L).hsic(debiased=debiased)[0, 1]


@array_function
def linear_hsic(
    features_a: Float[Tensor, "n d"], features_b: Float[Tensor, "n e"], debiased: bool = True
) -> Float[Tensor, ""]:
    r"""HSIC of the linear kernels of two sets of features, without an n x n matrix.

    .. math:: \mathrm{HSIC}_0 = \tfrac1{n^2}\|F_c^\top G_c\|_F^2

    the squared Frobenius norm of the cross-covariance. The same numbers as :func:`hsic` of the two
    Gram matrices; features are centred first, which changes neither estimator.

    Range: any number; biased: at least 0.
    Invariant to: swapping arguments; orthogonal maps and shifts of either side; a joint
        permutation of examples.
    Undefined (``nan``): debiased with fewer than four examples.

    Args:
        features_a: :math:`F`, one row per example.
        features_b: :math:`G`, of the same examples in the same order.
        debiased: the unbiased estimator, or the plug-in one.

    Raises:
        ShapeError: If these are not matrices with equally many rows.
        DomainError: If an entry is not finite.

    Example:
        >>> x = torch.tensor([[1.0], [2.0], [3.0]])
        >>> round(linear_hsic(x, x, debiased=False).item(), 4)  # squared variance
        0.4444

    References:
        [song2012], Eq. (4) and (5).
    """
    require_paired_features(features_a=features_a, features_b=features_b)
    a, b = Factor.of(features_a), Factor.of(features_b)
    value = factor_products([a, b]).hsic(debiased=debiased)[0, 1]
    return value * a.scale * a.scale * b.scale * b.scale  # inf, where a power would raise
