"""Agreement of vectors between classes: Omega and the mean cosine, class by class."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from theodolite.linalg import array_function, mean_over_classes, nan_unless, ratio_or_nan
from theodolite.measures.gradient.alignment import VectorMoments, scale_free_moments


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

    Examples:
        >>> v = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.0, 2.0]])
        >>> class_alignment_matrix(v, torch.tensor([0, 0, 1, 1]))
        tensor([[1., 0.],
                [0., 1.]])

    References:
        [mehta2021]. Differs from paper: the paper has only the diagonal, Eq. (5).
    """
    moments = scale_free_moments(vectors, labels, num_classes)
    return class_matrix(moments, moments.set_sums().alignment())


def class_matrix(moments: VectorMoments, diagonal: Tensor) -> Tensor:
    """Products of class sums divided by products of norm sums, with the given diagonal."""
    norms = moments.norm_sums
    between = ratio_or_nan(moments.sums @ moments.sums.mT, torch.outer(norms, norms))
    same = torch.eye(len(norms), dtype=torch.bool, device=norms.device)
    off = torch.where(same, torch.zeros_like(between), between)
    return torch.where(same, torch.diag(nan_unless(~diagonal.isnan(), diagonal)), off)


@array_function
def stiffness_matrix(
    vectors: Float[Tensor, "n *d"], labels: Int[Tensor, " n"], num_classes: int | None = None
) -> Float[Tensor, "k k"]:
    r"""Mean cosine between the vectors of two classes, different vectors within one class.

    .. math:: C_{ab} = E_{i\in a,\, j\in b,\, i\ne j} \cos(v_i, v_j)

    Range: [-1, 1] in each entry.
    Invariant to: scaling of each vector; orthogonal maps; order of the examples.
    Undefined (``nan``): a class without a non-zero vector; on the diagonal, also with a single
    one.

    Args:
        vectors: :math:`v_1 \dots v_n`, flattened after axis 0.
        labels: class of each example.
        num_classes: number of classes; one more than the largest label if not given.

    Raises:
        ShapeError: If lengths differ, or vectors are empty.
        DomainError: If an entry is not finite or a label is out of range.

    Examples:
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

    Examples:
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

    Examples:
        >>> v = torch.tensor([[1.0, 0.0], [5.0, 0.0], [3.0, 4.0]])
        >>> round(between_class_stiffness(v, torch.tensor([0, 0, 1])).item(), 4)
        0.6

    References:
        [fort2019].
    """
    moments = scale_free_moments(vectors, labels, num_classes, unit_length=True)
    means = moments.sums / moments.counts.clamp(min=1).unsqueeze(1)  # zero for empty classes
    classes = (moments.counts > 0).sum()
    products = means.sum(0).square().sum() - means.square().sum()
    return ratio_or_nan(products, (classes * (classes - 1)).to(products))
