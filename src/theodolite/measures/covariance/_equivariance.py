"""Does training commute with rotations of the input space? The premise of Proposition 1."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_axes, require_finite, require_nonempty
from theodolite.errors import ShapeError
from theodolite.linalg import array_function, double
from theodolite.measures.covariance._haar import haar_basis
from theodolite.measures.covariance._validation import require_dimension, require_orthonormal

__all__ = ["EquivarianceDeviation", "rotation_equivariance_check"]

Train = Callable[[Tensor, Tensor], Sequence[Tensor]]


@dataclass(frozen=True)
class EquivarianceDeviation:
    """Largest absolute differences between the rotated run and the plain run, rotated."""

    weights: Float[Tensor, ""]  # of the first layer
    others: Float[Tensor, ""]  # of all that must not change: biases, later layers, losses


@array_function
def rotation_equivariance_check(
    train: Train,
    weights: Float[Tensor, "f d"],
    inputs: Float[Tensor, "n d"],
    rotation: Float[Tensor, "d d"] | None = None,
    generator: torch.Generator | None = None,
) -> EquivarianceDeviation:
    r"""Train twice, once in a rotated input space, and compare.

    Where a step of the optimiser commutes with rotations, training from
    :math:`(W G^\top, X G^\top)` ends at :math:`W_T G^\top` with identical biases, later layers and
    losses. Gradient descent, momentum, weight decay: yes. Adam, RMSProp, an L1 penalty: no, unless
    :math:`G` is a signed permutation.

    Args:
        train: maps first-layer weights and inputs to ``(weights, *others)`` after training. It must
            use the same other parameters, labels and order of batches in every call.
        weights: :math:`W`, initial first-layer weights.
        inputs: :math:`X`.
        rotation: :math:`G`, orthogonal; drawn uniformly if not given.
        generator: of that draw.

    Raises:
        ShapeError: If weights, inputs and rotation differ in dimension, or the two runs of
            ``train`` in what they return.
        DomainError: If the rotation is not orthogonal, or an entry is not finite.

    Example:
        >>> def train(w, x):
        ...     for _ in range(5):  # gradient descent on the mean squared output
        ...         w = w - 0.1 * (x @ w.T).T @ x / len(x)
        ...     return (w,)
        >>> generator = torch.Generator().manual_seed(0)
        >>> w, x = (torch.randn(4, 3, generator=generator, dtype=torch.float64) for _ in range(2))
        >>> bool(rotation_equivariance_check(train, w, x, generator=generator).weights < 1e-12)
        True

    References:
        [maennel2020], Appendix C, Claim 2. Differs from paper: coordinate-wise adaptive methods
        (Adam, AdaGrad) are not equivariant, which this check shows.
    """
    require_axes(2, weights=weights, inputs=inputs)
    require_nonempty(weights=weights, inputs=inputs)
    require_finite(weights=weights, inputs=inputs)
    require_dimension(weights.shape[1], inputs=inputs)
    if rotation is None:
        rotation = haar_basis(weights.shape[1], generator).to(weights.device)
    require_orthonormal(rotation=rotation)
    require_dimension(weights.shape[1], rotation=rotation)
    turn = double(rotation).mT
    final, *others = train(weights, inputs)
    rotated_final, *rotated_others = train(_turned(weights, turn), _turned(inputs, turn))
    return EquivarianceDeviation(
        _largest_difference([rotated_final], [double(final) @ turn]),
        _largest_difference(rotated_others, others),
    )


def _turned(rows: Tensor, turn: Tensor) -> Tensor:
    return (double(rows) @ turn).to(rows.dtype)


def _largest_difference(first: Sequence[Tensor], second: Sequence[Tensor]) -> Tensor:
    if [part.shape for part in first] != [part.shape for part in second]:
        raise ShapeError(
            "train: expected results of the same shapes in both runs, got "
            f"{[tuple(part.shape) for part in first]} and {[tuple(part.shape) for part in second]}"
        )
    differences = [
        (double(one) - double(two)).abs().max() for one, two in zip(first, second, strict=True)
    ]
    return torch.stack(differences).max() if differences else torch.zeros((), dtype=torch.float64)
