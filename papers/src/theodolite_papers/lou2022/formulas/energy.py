"""Energy of tangent directions by layer, and the decay of a spectrum."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_count,
    require_finite,
    require_nonempty,
    require_symmetric,
)
from theodolite.errors import ShapeError
from theodolite.linalg import (
    array_function,
    double,
    eigenvalue_groups,
    eps_of,
    equality_tolerance,
    prints_shapes,
    ratio_or_nan,
    safe_sqrt,
    symmetric_eigenvalues,
    top_eigen,
    unit_peak,
)

_DENSE_BELOW = 512


@array_function
def normalized_spectrum(matrix: Float[Tensor, "m m"], count: int = 200) -> Float[Tensor, " k"]:
    r"""Leading eigenvalues of a positive semi-definite matrix, over the largest.

    .. math:: \lambda_i / \lambda_1, \qquad i = 1 \dots \min(\mathrm{count}, m)

    What does not exceed the rounding noise :math:`m\,\varepsilon` is zero.

    Range: [0, 1]; starts at 1, non-increasing.
    Invariant to: positive scaling, orthogonal maps of both sides together.
    Undefined (``nan``): no eigenvalue is positive.

    Args:
        matrix: symmetric, e.g. a :func:`stacked_kernel`.
        count: how many, at most.

    Raises:
        ShapeError: If the matrix is not square.
        DomainError: If it is not symmetric or finite, or ``count`` is below 1.

    Examples:
        >>> normalized_spectrum(torch.diag(torch.tensor([1.0, 4.0, 2.0])), count=2).tolist()
        [1.0, 0.5]

    References:
        [lou2022], Figure 19.
    """
    require_symmetric(matrix=matrix)
    require_count(1, count=count)
    values = _leading_eigenvalues(unit_peak(double(matrix)), count)
    ratios = ratio_or_nan(values, values[0].clamp(min=0).expand_as(values))
    return torch.where(ratios <= len(matrix) * eps_of(matrix), torch.zeros_like(ratios), ratios)


def _leading_eigenvalues(matrix: Tensor, count: int) -> Tensor:
    if len(matrix) <= _DENSE_BELOW or 4 * count >= len(matrix):
        return symmetric_eigenvalues(matrix)[:count]
    vectors = top_eigen(matrix.detach(), count).vectors
    return ((matrix @ vectors) * vectors).sum(0)  # vectors held fixed: differentiable


@prints_shapes
@dataclass(frozen=True)
class LayerEnergy:
    """Energy of each vector in each layer, three ways, and the mean over the vectors."""

    squared: Float[Tensor, "k layers"]  # sums to 1 over the layers
    norm: Float[Tensor, "k layers"]  # its root, what the paper plots
    per_parameter: Float[Tensor, "k layers"]  # squared, over the number of parameters
    mean: Float[Tensor, " layers"]  # of squared


@array_function
def layer_energy(
    vectors: Float[Tensor, "p k"],
    sizes: Sequence[int],
    values: Float[Tensor, " k"] | None = None,
) -> LayerEnergy:
    r"""Share of the squared length of each parameter vector that lies in each layer.

    .. math:: e_l(v) = \|v_l\|^2 / \|v\|^2

    Single eigenvectors of equal eigenvalues are arbitrary: with ``values`` given, energies are
    averaged over each group of equals, which does not depend on the choice.

    Range: [0, 1]; squared energies sum to 1 over the layers.
    Invariant to: scaling of the vectors.
    Undefined (``nan``): a vector of zeros.

    Args:
        vectors: one vector :math:`v` per column, e.g. orthonormal eigenvectors.
        sizes: number of parameters of each layer, in the order of the rows.
        values: eigenvalue of each vector, in any order.

    Raises:
        ShapeError: If the sizes do not add up to the rows, or values and vectors differ in number.
        DomainError: If an entry is not finite, or a size is not positive.

    Examples:
        >>> energy = layer_energy(torch.tensor([[0.6], [0.0], [0.8]]), sizes=[2, 1])
        >>> [round(share, 4) for share in energy.squared[0].tolist()]
        [0.36, 0.64]

    References:
        [lou2022], Figure 5.
        Differs from paper: the paper plots the norm and calls it energy; both are returned.
    """
    _require_vectors(vectors, sizes, values)
    squares = unit_peak(double(vectors).mT.unsqueeze(1)).squeeze(1).square()
    parts = torch.stack([part.sum(1) for part in torch.split(squares, list(sizes), dim=1)], dim=1)
    energy = ratio_or_nan(parts, parts.sum(1, keepdim=True).expand_as(parts))
    if values is not None:
        energy = _averaged_over_ties(energy, double(values), eps_of(values))
    counts = energy.new_tensor(list(sizes))
    return LayerEnergy(energy, _root(energy), energy / counts, energy.mean(0))


def _root(energy: Tensor) -> Tensor:
    """Root of the energies; nan stays nan."""
    return torch.where(energy.isnan(), energy, safe_sqrt(energy))


def _averaged_over_ties(energy: Tensor, values: Tensor, eps: float) -> Tensor:
    # Lanczos gives values to a few eps of the largest for any number of parameters: the
    # size that counts is the number of vectors.
    order = values.argsort(descending=True, stable=True)
    ordered = values[order]
    averaged = torch.empty_like(energy)
    for group in eigenvalue_groups(ordered, equality_tolerance(len(values), eps)):
        averaged[order[group]] = energy[order[group]].mean(0)
    return averaged


def _require_vectors(vectors: Tensor, sizes: Sequence[int], values: Tensor | None) -> None:
    require_axes(2, vectors=vectors)
    require_nonempty(vectors=vectors)
    require_finite(vectors=vectors)
    for size in sizes:
        require_count(1, sizes=size)
    if sum(sizes) != len(vectors):
        raise ShapeError(
            f"sizes: expected numbers that add up to {len(vectors)}, the rows of vectors, "
            f"got {list(sizes)} with sum {sum(sizes)}"
        )
    if values is not None:
        require_axes(1, values=values)
        require_finite(values=values)
        if len(values) != vectors.shape[1]:
            raise ShapeError(
                f"values: expected {vectors.shape[1]}, one per column of vectors, got {len(values)}"
            )
