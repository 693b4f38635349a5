"""KTA and CKA of linear kernels straight from features, without an n x n matrix."""

from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_axes, require_finite, require_nonempty, require_same_length
from theodolite.linalg import array_function, eps_of, ratio_or_nan, safe_sqrt
from theodolite.measures.kernel._alignment import cka_from_products
from theodolite.measures.kernel._factors import Factor, factor_products, vanishing

__all__ = ["linear_cka", "linear_kta", "require_paired_features"]


def require_paired_features(**features: Tensor) -> None:
    """Finite matrices with one row per example, of the same examples."""
    require_axes(2, **features)
    require_nonempty(**features)
    require_same_length(**features)
    require_finite(**features)


@array_function
def linear_kta(
    features_a: Float[Tensor, "n d"], features_b: Float[Tensor, "n e"]
) -> Float[Tensor, ""]:
    r"""Kernel-target alignment of the linear kernels of two sets of features.

    .. math:: A = \frac{\|F^\top G\|_F^2}{\|F^\top F\|_F\,\|G^\top G\|_F}

    The same number as :func:`kta` of the two Gram matrices, by the cheaper side, in bounded memory.

    Range: [0, 1].
    Invariant to: swapping arguments; scaling and orthogonal maps of either side; a joint
        permutation of examples. Not to a shift of the features.
    Undefined (``nan``): either side is zero.

    Args:
        features_a: :math:`F`, one row per example.
        features_b: :math:`G`, of the same examples in the same order, e.g. one-hot targets.

    Raises:
        ShapeError: If these are not matrices with equally many rows.
        DomainError: If an entry is not finite.

    Example:
        >>> x = torch.tensor([[1.0], [0.0]])
        >>> round(linear_kta(x, torch.tensor([[1.0], [1.0]])).item(), 4)
        0.5

    References:
        [canatar2022], Eq. (4); [kornblith2019], Sec. 3.
    """
    require_paired_features(features_a=features_a, features_b=features_b)
    factors = [Factor.of(features, center=False) for features in (features_a, features_b)]
    products = factor_products(factors).products
    own = products.diagonal()
    return ratio_or_nan(products[0, 1], safe_sqrt(own[0]) * safe_sqrt(own[1]))


@array_function
def linear_cka(
    features_a: Float[Tensor, "n d"], features_b: Float[Tensor, "n e"], debiased: bool = True
) -> Float[Tensor, ""]:
    r"""Centred kernel alignment of the linear kernels of two sets of features.

    .. math:: \mathrm{CKA} =
              \frac{\|F_c^\top G_c\|_F^2}{\|F_c^\top F_c\|_F\,\|G_c^\top G_c\|_F} \quad
              \text{(biased)}, \qquad F_c = HF

    The same number as :func:`cka` of the two Gram matrices. Features are centred first, in float64,
    so that a large mean costs no digits; the cheaper of d x d blocks and tiles of the n x n
    matrices is used, and memory beyond the input stays bounded.

    Range: [-1, 1]; biased: [0, 1].
    Invariant to: swapping arguments; scaling, orthogonal maps and shifts of either side; a joint
        permutation of examples. Not to a general invertible map.
    Undefined (``nan``): features constant up to rounding; debiased: fewer than four examples, or
        all pairs of examples equally similar.

    Args:
        features_a: :math:`F`, one row per example.
        features_b: :math:`G`, of the same examples in the same order.
        debiased: the estimator: debiased, or the paper's plug-in form.

    Raises:
        ShapeError: If these are not matrices with equally many rows.
        DomainError: If an entry is not finite.

    Example:
        >>> x = torch.tensor([[1.0], [2.0], [3.0]])
        >>> y = torch.tensor([[1.0], [3.0], [2.0]])
        >>> round(linear_cka(x, y, debiased=False).item(), 4)  # squared correlation
        0.25

    References:
        [canatar2022], Sec. III; [kornblith2019], Sec. 3; [song2012], Eq. (5).

    Differs from paper: debiased by default.
    """
    require_paired_features(features_a=features_a, features_b=features_b)
    return _linear_cka(features_a, features_b, debiased, eps_of(features_a, features_b))


def _linear_cka(features_a: Tensor, features_b: Tensor, debiased: bool, eps: float) -> Tensor:
    factors = [Factor.of(features_a), Factor.of(features_b)]
    products = factor_products(factors)
    defined = ~vanishing(factors, products.traces, eps)
    return cka_from_products(products, debiased=debiased, eps=eps, defined=defined)[0, 1]
