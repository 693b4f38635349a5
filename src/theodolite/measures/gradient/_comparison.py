"""Other measures of the agreement of gradients: diversity, confusion, relative norm."""

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import (
    require_finite,
    require_nonempty,
    require_same_shape,
    require_symmetric,
)
from theodolite.linalg import array_function, double, full_precision, ratio_or_nan
from theodolite.measures.gradient.alignment import flat_vectors, require_pairs, scale_free_moments

_BLOCK = 1024  # rows of the Gram matrix held at once


@array_function
def gradient_diversity(vectors: Float[Tensor, "n *d"]) -> Float[Tensor, ""]:
    r"""Sum of squared norms divided by the squared norm of the sum: lower is more aligned.

    .. math:: D(V) = \frac{\sum_i\|v_i\|^2}{\|\sum_i v_i\|^2}

    Ill-conditioned when the vectors nearly cancel, as they do near a stationary point of the loss.

    Range: [1/n, inf]; 1/n for equal vectors, 1 for orthogonal ones, inf for vectors that cancel.
    Invariant to: scaling all vectors; orthogonal maps; order of the vectors; added zero columns.
    Undefined (``nan``): all vectors are zero.

    Args:
        vectors: :math:`v_1 \dots v_n`, flattened after axis 0; one vector is enough.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If there are no vectors, or they are empty.
        DomainError: If an entry is not finite.

    Examples:
        >>> v = torch.tensor([[3.0, 0.0], [0.0, 4.0], [3.0, 4.0]])
        >>> gradient_diversity(v).item()
        0.5

    References:
        [yin2018]; [mehta2021], section 4.
    """
    return scale_free_moments(vectors).set_sums().diversity().squeeze(0)


@array_function
def gradient_confusion(vectors: Float[Tensor, "n *d"]) -> Float[Tensor, ""]:
    r"""Smallest inner product of two different vectors.

    .. math:: F(V) = \min_{i\ne j}\langle v_i, v_j\rangle

    The bound of [sankararaman2020] is :math:`\eta = \max(0, -F)`.
    The smallest product needs all pairs: ``O(n² d)`` time, ``O(n)`` memory times a block of rows.

    Range: (-inf, inf).
    Invariant to: orthogonal maps; order of the vectors; added zero columns. A factor of all vectors
        enters as its square.
    Undefined: never, for two or more vectors.

    Args:
        vectors: :math:`v_1 \dots v_n`, flattened after axis 0.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If there are fewer than two vectors, or they are empty.
        DomainError: If an entry is not finite.

    Examples:
        >>> v = torch.tensor([[1.0, 0.0], [0.0, 4.0], [-2.0, 1.0]])
        >>> gradient_confusion(v).item()
        -2.0

    References:
        [sankararaman2020]; [mehta2021], section 4.
    """
    require_pairs(vectors)
    flat = flat_vectors(vectors)
    require_finite(vectors=vectors)
    minima = []
    with full_precision():
        for start in range(0, len(flat), _BLOCK):
            rows = flat[start : start + _BLOCK]
            products = rows @ flat[start:].mT  # earlier blocks have the pairs with earlier rows
            # Leave out pairs of a vector with itself, and pairs that were seen before.
            upper = torch.ones_like(products, dtype=torch.bool).triu(1)
            minima.append(products.masked_fill(~upper, torch.inf).amin())
    return torch.stack(minima).amin()


@array_function
def confusion_of_gram(gram: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    r"""Gradient confusion from the matrix of inner products.

    .. math:: F(K) = \min_{i \ne j} K_{ij}

    Range: (-inf, inf).
    Invariant to: order of the examples. Scales with the matrix.
    Undefined: never, for two or more examples.

    Args:
        gram: inner products of the examples' gradients, e.g. a tangent kernel of the loss.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If the matrix is not square or has fewer than two rows.
        DomainError: If it is not symmetric or not finite.

    Examples:
        >>> confusion_of_gram(torch.tensor([[1.0, -2.0], [-2.0, 5.0]])).item()
        -2.0

    References:
        [sankararaman2020].
    """
    require_symmetric(gram=gram)
    require_pairs(gram)
    same = torch.eye(len(gram), dtype=torch.bool, device=gram.device)
    return gram.masked_fill(same, torch.inf).amin()


@array_function
def relative_norm(
    gradient: Float[Tensor, "*shape"], weight: Float[Tensor, "*shape"]
) -> Float[Tensor, ""]:
    r"""Norm of a layer's gradient divided by the norm of its weight: small in lazy training.

    .. math:: \tau_l = \|\nabla_{W_l} L\|_F / \|W_l\|_F

    Here :math:`L` is the mean loss of a batch. This number times the learning rate is the relative
    length of a step of plain gradient descent.

    Range: [0, inf).
    Invariant to: scaling both arguments alike. Not invariant to the scale of the loss.
    Undefined (``nan``): the weight is zero.

    Args:
        gradient: gradient of the mean loss with respect to the weight.
        weight: :math:`W_l`, of the same shape.

    Returns:
        A scalar: a 0-d tensor, or a 0-d array for NumPy input.

    Raises:
        ShapeError: If the shapes differ or are empty.
        DomainError: If an entry is not finite.

    Examples:
        >>> relative_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([[10.0, 0.0]])).item()
        0.5

    References:
        [mehta2021], Figure 2(b).
    """
    require_same_shape(gradient=gradient, weight=weight)
    require_nonempty(gradient=gradient)
    require_finite(gradient=gradient, weight=weight)
    return ratio_or_nan(
        torch.linalg.vector_norm(double(gradient)), torch.linalg.vector_norm(double(weight))
    )
