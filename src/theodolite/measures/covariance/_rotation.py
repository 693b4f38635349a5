"""How well samples determine the angle of a rotation between two eigenvectors."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_count, require_finite
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import array_function, double, safe_sqrt

__all__ = [
    "rotation_angle_deviation",
    "rotation_chain",
    "rotation_information",
    "rotation_length",
]

Numbers = Float[Tensor, "*batch"] | float


@array_function
def rotation_information(eigenvalue_1: Numbers, eigenvalue_2: Numbers) -> Float[Tensor, "*batch"]:
    r"""Fisher information about the angle of a two-dimensional Gaussian with given eigenvalues.

    .. math:: I(\alpha) = \frac{(\lambda_1 - \lambda_2)^2}{\lambda_1 \lambda_2}

    Range: [0, inf); 0 for equal eigenvalues, where no angle can be measured.
    Invariant to: swapping; common scaling.
    Undefined: never.

    Args:
        eigenvalue_1: :math:`\lambda_1 > 0`, a number or an array.
        eigenvalue_2: :math:`\lambda_2 > 0`.

    Raises:
        ShapeError: If shapes do not broadcast.
        DomainError: If an eigenvalue is not a positive finite number.

    Example:
        >>> round(100 * rotation_information(11.0, 1.0).item(), 2)
        909.09

    References:
        [maennel2020], Appendix D.3.
    """
    l1, l2 = _positive(eigenvalue_1=eigenvalue_1, eigenvalue_2=eigenvalue_2)
    return _information(l1, l2)


@array_function
def rotation_angle_deviation(
    eigenvalue_1: Numbers, eigenvalue_2: Numbers, count: int
) -> Float[Tensor, "*batch"]:
    r"""Standard deviation of an eigenvector's angle estimated from samples, in radians.

    .. math:: \frac{1}{\sqrt{n\, I(\alpha)}}

    First order in :math:`1/n`: estimates cannot spread by more than a uniform angle does,
    :math:`\pi / \sqrt{12} = 0.907`.

    Range: (0, inf]; infinite for equal eigenvalues.
    Invariant to: swapping; common scaling.
    Undefined: never.

    Args:
        eigenvalue_1: :math:`\lambda_1 > 0`, a number or an array.
        eigenvalue_2: :math:`\lambda_2 > 0`.
        count: :math:`n`, the number of samples.

    Raises:
        ShapeError: If shapes do not broadcast.
        DomainError: If an eigenvalue is not a positive finite number, or there is no sample.

    Example:
        >>> round(rotation_angle_deviation(11.0, 1.0, count=100).item(), 4)
        0.0332

    References:
        [maennel2020], Appendix D.3, Figure 19.
    """
    require_count(1, count=count)
    l1, l2 = _positive(eigenvalue_1=eigenvalue_1, eigenvalue_2=eigenvalue_2)
    scale = safe_sqrt(count * _information(l1, l2))
    differ = scale > 0
    inverse = torch.where(differ, scale, torch.ones_like(scale)).reciprocal()
    return torch.where(differ, inverse, torch.full_like(scale, torch.inf))


@array_function
def rotation_length(
    angle: Numbers, eigenvalue_1: Numbers, eigenvalue_2: Numbers
) -> Float[Tensor, "*batch"]:
    r"""Length, in the Fisher-Rao metric, of the path that turns a Gaussian by an angle.

    .. math:: \delta = |\alpha| \sqrt{I(\alpha)}

    Range: [0, inf).
    Invariant to: swapping the eigenvalues; scaling them together; negating the angle.
    Undefined: never.

    Args:
        angle: :math:`\alpha` in radians, a number or an array.
        eigenvalue_1: :math:`\lambda_1 > 0`.
        eigenvalue_2: :math:`\lambda_2 > 0`.

    Raises:
        ShapeError: If shapes do not broadcast.
        DomainError: If an eigenvalue is not a positive finite number, or the angle not finite.

    Example:
        >>> round(rotation_length(0.1, 11.0, 1.0).item(), 4)
        0.3015

    References:
        [maennel2020], Appendix D.3.
    """
    l1, l2 = _positive(eigenvalue_1=eigenvalue_1, eigenvalue_2=eigenvalue_2)
    alpha = _wide(angle)
    require_finite(angle=alpha)
    alpha, l1, l2 = _broadcast(angle=alpha, eigenvalue_1=l1, eigenvalue_2=l2)
    return alpha.abs() * safe_sqrt(_information(l1, l2))


@array_function
def rotation_chain(
    angle: Numbers, eigenvalue_1: Numbers, eigenvalue_2: Numbers, count: int
) -> Float[Tensor, "*batch"]:
    r"""How many rotated Gaussians fit in between, each indistinguishable from the next.

    .. math:: \lfloor \delta \sqrt n \rfloor

    Args:
        angle: :math:`\alpha` in radians, a number or an array.
        eigenvalue_1: :math:`\lambda_1 > 0`.
        eigenvalue_2: :math:`\lambda_2 > 0`.
        count: :math:`n`, the number of samples with which one tries to tell them apart.

    Raises:
        ShapeError: If shapes do not broadcast.
        DomainError: If an eigenvalue is not a positive finite number, or there is no sample.

    Example:
        >>> rotation_chain(0.5, 11.0, 1.0, count=100).item()
        15.0

    References:
        [maennel2020], Appendix D.3.
    """
    require_count(1, count=count)
    length: Tensor = rotation_length(angle, eigenvalue_1, eigenvalue_2)
    return (double(length) * count**0.5).floor()


def _information(l1: Tensor, l2: Tensor) -> Tensor:
    return ((l1 - l2) / l1) * ((l1 - l2) / l2)


def _wide(value: Tensor | float) -> Tensor:
    return double(torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.double))


def _positive(**values: Tensor | float) -> list[Tensor]:
    wide = {name: _wide(value) for name, value in values.items()}
    require_finite(**wide)
    for name, value in wide.items():
        if not bool((value > 0).all()):
            raise DomainError(
                f"{name}: expected positive eigenvalues, got {value.min().item()}; "
                "leave out directions in which nothing varies"
            )
    return _broadcast(**wide)


def _broadcast(**values: Tensor) -> list[Tensor]:
    try:
        shape = np.broadcast_shapes(*(tuple(value.shape) for value in values.values()))
    except ValueError:
        listed = ", ".join(f"{name} is {tuple(value.shape)}" for name, value in values.items())
        raise ShapeError(f"expected shapes that broadcast, but {listed}") from None
    return [value.expand(shape) for value in values.values()]
