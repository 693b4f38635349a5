"""Cosine stiffness in linear time: Omega of the vectors divided by their norms."""

from jaxtyping import Float, Int
from torch import Tensor

from theodolite.linalg import array_function, ratio_or_nan
from theodolite.measures.gradient._alignment import class_matrix, require_pairs
from theodolite.measures.gradient._moments import scale_free_moments
from theodolite.measures.gradient._sums import mean_over_classes

__all__ = [
    "between_class_stiffness",
    "cosine_stiffness",
    "stiffness_matrix",
    "within_class_stiffness",
]


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
