"""Alignment of a set of vectors, over all pairs, within classes, and by direction alone."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from theodolite.checks import require_choice
from theodolite.errors import ShapeError
from theodolite.linalg import (
    array_function,
    contrast_from_sums,
    mean_over_classes,
    nan_unless,
    ratio_or_nan,
)
from theodolite.measures.gradient._sums import VectorMoments, scale_free_moments

_ZERO = ("nan", "zero")


def require_pairs(vectors: Tensor) -> None:
    """All-pairs measures need two vectors."""
    count = len(vectors) if vectors.ndim else 1
    if count < 2:
        raise ShapeError(
            f"vectors: expected at least 2 (the measure averages over pairs), got {count}"
        )


@array_function
def vector_alignment(vectors: Float[Tensor, "n *d"]) -> Float[Tensor, ""]:
    r"""Omega: mean inner product of two different vectors over their squared mean norm.

    .. math:: \Omega(V) = \frac{E_{i\ne j}\langle v_i, v_j\rangle}{(E_i\|v_i\|)^2}
              = \frac{n\,(\|\sum_i v_i\|^2 - \sum_i\|v_i\|^2)}{(n-1)\,(\sum_i\|v_i\|)^2}

    Costs ``O(n d)`` time and ``O(d)`` memory beyond the input. The absolute error is a small
    multiple of the round-off; relative accuracy near zero does not exist.

    Range: [-n / (2 (n - 1)), 1]; 1 for equal vectors only (equal directions are not enough).
    Invariant to: scaling all vectors; orthogonal maps; order of the vectors; added zero columns.
    Undefined (``nan``): all vectors are zero.

    Args:
        vectors: :math:`v_1 \dots v_n`, flattened after axis 0: gradients or features of examples.

    Raises:
        ShapeError: If there are fewer than two vectors, or they are empty.
        DomainError: If an entry is not finite.

    Example:
        >>> v = torch.tensor([[3.0, 0.0], [0.0, 4.0], [3.0, 4.0]])
        >>> round(vector_alignment(v).item(), 4)  # 25 / 48
        0.5208

    References:
        [mehta2021], Eq. (2)-(4).
    """
    require_pairs(vectors)
    return scale_free_moments(vectors).set_sums().alignment().squeeze(0)


@array_function
def weighted_alignment(vectors: Float[Tensor, "n *d"]) -> Float[Tensor, ""]:
    r"""Cosine of two different vectors, averaged with the product of their norms as weight.

    .. math:: \Omega_w(V) = \frac{\sum_{i\ne j}\langle v_i, v_j\rangle}
              {\sum_{i\ne j}\|v_i\|\,\|v_j\|} = \frac{Q - S_2}{S_1^2 - S_2}

    Equals Omega for vectors of equal norm, and 1 for parallel vectors of any norms; the better
    choice for few examples per class, where the denominator of Omega is biased.

    Range: [-1, 1].
    Invariant to: scaling all vectors; orthogonal maps; order of the vectors; added zero columns.
    Undefined (``nan``): fewer than two vectors are not zero.

    Args:
        vectors: :math:`v_1 \dots v_n`, flattened after axis 0.

    Raises:
        ShapeError: If there are fewer than two vectors, or they are empty.
        DomainError: If an entry is not finite.

    Example:
        >>> v = torch.tensor([[3.0, 0.0], [0.0, 4.0], [3.0, 4.0]])
        >>> round(weighted_alignment(v).item(), 4)  # 50 / 94
        0.5319

    References:
        [mehta2021]. Differs from paper: not in it; Omega with an unbiased denominator.
    """
    require_pairs(vectors)
    return scale_free_moments(vectors).set_sums().weighted_alignment().squeeze(0)


@array_function
def class_alignment(
    vectors: Float[Tensor, "n *d"],
    labels: Int[Tensor, " n"],
    num_classes: int | None = None,
    zero: str = "nan",
) -> Float[Tensor, " k"]:
    r"""Omega of the vectors of each class.

    .. math:: \Omega_c = \Omega(\{v_i : y_i = c\})

    Range: [-1, 1] in each entry.
    Invariant to: scaling all vectors; orthogonal maps; order of the examples.
    Undefined (``nan``): a class with fewer than two examples, or with zero vectors only.

    Args:
        vectors: :math:`v_1 \dots v_n`, flattened after axis 0.
        labels: class :math:`y_i` of each example.
        num_classes: number of classes; one more than the largest label if not given.
        zero: value of a class whose vectors are all zero (fitted examples under a hinge loss),
            ``"nan"`` or ``"zero"``.

    Raises:
        ShapeError: If lengths differ, or vectors are empty.
        DomainError: If an entry is not finite or a label is out of range.

    Example:
        >>> v = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
        >>> class_alignment(v, torch.tensor([0, 0, 1]))
        tensor([1., nan])

    References:
        [mehta2021], Eq. (5).
    """
    require_choice(_ZERO, zero=zero)
    return scale_free_moments(vectors, labels, num_classes).set_sums().alignment(zero)


@array_function
def in_class_alignment(
    vectors: Float[Tensor, "n *d"],
    labels: Int[Tensor, " n"],
    num_classes: int | None = None,
    zero: str = "nan",
) -> Float[Tensor, ""]:
    r"""Plain mean of the classes' Omega, over the classes where it is defined.

    .. math:: \Omega_\text{in-class} = \frac1k \sum_c \Omega_c

    Range: [-1, 1].
    Invariant to: scaling all vectors; orthogonal maps; order of the examples; names of classes.
    Undefined (``nan``): no class has two examples that are not zero.

    Args:
        vectors: :math:`v_1 \dots v_n`, flattened after axis 0.
        labels: class :math:`y_i` of each example.
        num_classes: number of classes; one more than the largest label if not given.
        zero: value of a class whose vectors are all zero, ``"nan"`` (left out) or ``"zero"``.

    Raises:
        ShapeError: If lengths differ, or vectors are empty.
        DomainError: If an entry is not finite or a label is out of range.

    Example:
        >>> v = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0], [2.0, 0.0]])
        >>> round(in_class_alignment(v, torch.tensor([0, 0, 1, 1])).item(), 4)
        0.5

    References:
        [mehta2021], Eq. (6). Differs from paper: classes without a value are left out of the mean,
        as the authors' program does.
    """
    return mean_over_classes(class_alignment(vectors, labels, num_classes, zero))


@array_function
def alignment_contrast(
    vectors: Float[Tensor, "n *d"],
    labels: Int[Tensor, " n"],
    num_classes: int | None = None,
    zero: str = "nan",
) -> Float[Tensor, ""]:
    r"""In-class alignment minus the alignment of all pairs.

    .. math:: \Omega_\text{in-class} - \Omega

    Removes the floor that a common mean (of ReLU or sigmoid features, say) gives both of them.

    Range: [-2, 2]; 0 when classes mean nothing.
    Invariant to: scaling all vectors; orthogonal maps; order of the examples; names of classes.
    Undefined (``nan``): either part is.

    Args:
        vectors: :math:`v_1 \dots v_n`, flattened after axis 0.
        labels: class :math:`y_i` of each example.
        num_classes: number of classes; one more than the largest label if not given.
        zero: value of a class whose vectors are all zero, ``"nan"`` (left out) or ``"zero"``.

    Raises:
        ShapeError: If lengths differ, or there are fewer than two vectors.
        DomainError: If an entry is not finite or a label is out of range.

    Example:
        >>> v = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> round(alignment_contrast(v, torch.tensor([0, 0, 1, 1])).item(), 4)
        0.6667

    References:
        [mehta2021]. Differs from paper: not in it; both terms are.
    """
    require_choice(_ZERO, zero=zero)
    require_pairs(vectors)
    moments = scale_free_moments(vectors, labels, num_classes)
    overall = moments.pooled().set_sums()
    return contrast_from_sums(moments.set_sums(), overall[0], zero)


@array_function
def class_alignment_matrix(
    vectors: Float[Tensor, "n *d"], labels: Int[Tensor, " n"], num_classes: int | None = None
) -> Float[Tensor, "k k"]:
    r"""Alignment between the classes: Omega of pairs with one vector in each.

    .. math:: M_{ab} = \frac{\langle\sum_{i\in a} v_i, \sum_{j\in b} v_j\rangle}
              {\sum_{i\in a}\|v_i\|\;\sum_{j\in b}\|v_j\|},\qquad M_{aa} = \Omega_a

    Range: [-1, 1] in each entry.
    Invariant to: scaling all vectors; orthogonal maps; order of the examples.
    Undefined (``nan``): a class without examples or with zero vectors only; on the diagonal also
    one with a single example.

    Args:
        vectors: :math:`v_1 \dots v_n`, flattened after axis 0.
        labels: class of each example.
        num_classes: number of classes; one more than the largest label if not given.

    Raises:
        ShapeError: If lengths differ, or vectors are empty.
        DomainError: If an entry is not finite or a label is out of range.

    Example:
        >>> v = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.0, 2.0]])
        >>> class_alignment_matrix(v, torch.tensor([0, 0, 1, 1]))
        tensor([[1., 0.],
                [0., 1.]])

    References:
        [mehta2021]. Differs from paper: not in it; its diagonal is Eq. (5).
    """
    moments = scale_free_moments(vectors, labels, num_classes)
    return class_matrix(moments, moments.set_sums().alignment())


def class_matrix(moments: VectorMoments, diagonal: Tensor) -> Tensor:
    """Products of class sums over products of norm sums, with a diagonal of its own."""
    norms = moments.norm_sums
    between = ratio_or_nan(moments.sums @ moments.sums.mT, torch.outer(norms, norms))
    same = torch.eye(len(norms), dtype=torch.bool, device=norms.device)
    off = torch.where(same, torch.zeros_like(between), between)
    return torch.where(same, torch.diag(nan_unless(~diagonal.isnan(), diagonal)), off)


@array_function
def cosine_stiffness(vectors: Float[Tensor, "n *d"]) -> Float[Tensor, ""]:
    r"""Mean cosine of two different vectors; zero vectors are left out.

    .. math:: S(V) = E_{i\ne j}\cos(v_i, v_j)
              = \frac{\|\sum_i u_i\|^2 - m}{m(m-1)},\qquad u_i = v_i/\|v_i\|

    over the :math:`m` vectors that are not zero. ``O(n d)``, without any pair being formed.

    Range: [-1 / (m - 1), 1].
    Invariant to: scaling of each vector; orthogonal maps; order; added zero columns.
    Undefined (``nan``): fewer than two vectors are not zero.

    Args:
        vectors: :math:`v_1 \dots v_n`, flattened after axis 0.

    Raises:
        ShapeError: If there are fewer than two vectors, or they are empty.
        DomainError: If an entry is not finite.

    Example:
        >>> v = torch.tensor([[3.0, 0.0], [0.0, 4.0], [3.0, 3.0]])
        >>> round(cosine_stiffness(v).item(), 4)  # (0 + 2 sqrt(1/2)) / 3
        0.4714

    References:
        [fort2019]; [mehta2021], section 4. Differs from paper: linear in n, where it takes the
        measure to need all pairs.
    """
    require_pairs(vectors)
    return scale_free_moments(vectors, unit_length=True).set_sums().alignment().squeeze(0)


@array_function
def stiffness_matrix(
    vectors: Float[Tensor, "n *d"], labels: Int[Tensor, " n"], num_classes: int | None = None
) -> Float[Tensor, "k k"]:
    r"""Mean cosine between the vectors of two classes, different vectors within one class.

    .. math:: C_{ab} = E_{i\in a,\, j\in b,\, i\ne j} \cos(v_i, v_j)

    Range: [-1, 1] in each entry.
    Invariant to: scaling of each vector; orthogonal maps; order of the examples.
    Undefined (``nan``): a class without vectors that are not zero; on the diagonal, with one.

    Args:
        vectors: :math:`v_1 \dots v_n`, flattened after axis 0.
        labels: class of each example.
        num_classes: number of classes; one more than the largest label if not given.

    Raises:
        ShapeError: If lengths differ, or vectors are empty.
        DomainError: If an entry is not finite or a label is out of range.

    Example:
        >>> v = torch.tensor([[1.0, 0.0], [5.0, 0.0], [0.0, 2.0], [0.0, -1.0]])
        >>> stiffness_matrix(v, torch.tensor([0, 0, 1, 1]))
        tensor([[ 1.,  0.],
                [ 0., -1.]])

    References:
        [fort2019].
    """
    moments = scale_free_moments(vectors, labels, num_classes, unit_length=True)
    return class_matrix(moments, moments.set_sums().alignment())


@array_function
def within_class_stiffness(
    vectors: Float[Tensor, "n *d"], labels: Int[Tensor, " n"], num_classes: int | None = None
) -> Float[Tensor, ""]:
    r"""Mean of the diagonal of :func:`stiffness_matrix`, over the classes where it is defined.

    .. math:: \frac1k \sum_a E_{i \ne j \in a} \cos(v_i, v_j)

    Range: [-1, 1].
    Invariant to: scaling of each vector; orthogonal maps; order of the examples; names of classes.
    Undefined (``nan``): no class has two vectors that are not zero.

    Args:
        vectors: one vector per example, flattened after axis 0.
        labels: class of each example.
        num_classes: number of classes; one more than the largest label if not given.

    Raises:
        ShapeError: If lengths differ, or vectors are empty.
        DomainError: If an entry is not finite or a label is out of range.

    Example:
        >>> v = torch.tensor([[1.0, 0.0], [5.0, 0.0], [0.0, 2.0], [0.0, -1.0]])
        >>> within_class_stiffness(v, torch.tensor([0, 0, 1, 1])).item()
        0.0

    References:
        [fort2019].
    """
    moments = scale_free_moments(vectors, labels, num_classes, unit_length=True)
    return mean_over_classes(moments.set_sums().alignment())


@array_function
def between_class_stiffness(
    vectors: Float[Tensor, "n *d"], labels: Int[Tensor, " n"], num_classes: int | None = None
) -> Float[Tensor, ""]:
    r"""Mean of :func:`stiffness_matrix` off its diagonal, over the pairs where it is defined.

    .. math:: \frac{\|\sum_a \bar u_a\|^2 - \sum_a \|\bar u_a\|^2}{k (k - 1)},
              \qquad \bar u_a = E_{i \in a}\, v_i / \|v_i\|

    Range: [-1, 1].
    Invariant to: scaling of each vector; orthogonal maps; order of the examples; names of classes.
    Undefined (``nan``): fewer than two classes have a vector that is not zero.

    Args:
        vectors: one vector per example, flattened after axis 0.
        labels: class of each example.
        num_classes: number of classes; one more than the largest label if not given.

    Raises:
        ShapeError: If lengths differ, or vectors are empty.
        DomainError: If an entry is not finite or a label is out of range.

    Example:
        >>> v = torch.tensor([[1.0, 0.0], [5.0, 0.0], [3.0, 4.0]])
        >>> round(between_class_stiffness(v, torch.tensor([0, 0, 1])).item(), 4)
        0.6

    References:
        [fort2019].
    """
    moments = scale_free_moments(vectors, labels, num_classes, unit_length=True)
    means = moments.sums / moments.counts.clamp(min=1).unsqueeze(1)  # of empty classes: zero
    classes = (moments.counts > 0).sum()
    products = means.sum(0).square().sum() - means.square().sum()
    return ratio_or_nan(products, (classes * (classes - 1)).to(products))
