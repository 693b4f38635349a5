"""Small examples whose alignment is known by hand."""

from collections.abc import Mapping
from math import pi

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_between,
    require_count,
    require_finite,
    require_nonempty,
)
from theodolite.errors import DomainError
from theodolite.linalg import Singular, array_function, double, thin_svd

__all__ = [
    "labels_along",
    "singular_vector_labels",
    "two_arcs",
]


def two_arcs(
    count: int = 1000, spread: float = 0.297, generator: torch.Generator | None = None
) -> Float[Tensor, "n 2"]:
    r"""Unit vectors in the plane, half around :math:`\pi/4`, half around :math:`-3\pi/4`.

    With normal angles of standard deviation :math:`s` the squared singular values are close to
    :math:`n(1 \pm e^{-2s^2})/2`.

    Args:
        count: number of points, even.
        spread: :math:`s`; the default reproduces the ratio of the printed singular values.
        generator: source of randomness.

    Example:
        >>> two_arcs(4).norm(dim=1).round(decimals=4)
        tensor([1., 1., 1., 1.], dtype=torch.float64)

    References:
        [imani2022], Figure 4.
    """
    require_count(2, count=count)
    require_between(0.0, float("inf"), open_high=True, spread=spread)
    if count % 2:
        raise DomainError(f"count: expected an even number of points, got {count}")
    offsets = torch.randn(count, generator=generator, dtype=torch.float64) * spread
    centers = torch.tensor([pi / 4, -3 * pi / 4], dtype=torch.float64).repeat_interleave(count // 2)
    angles = centers + offsets
    return torch.stack([angles.cos(), angles.sin()], dim=1)


@array_function
def labels_along(features: Float[Tensor, "n d"], direction: int) -> Float[Tensor, " n"]:
    r"""Labels :math:`\operatorname{sign}(\Phi v_k)` along a right singular vector; 0 counts as +1.

    Args:
        features: :math:`\Phi`.
        direction: :math:`k`, from 1.

    Example:
        >>> labels_along(torch.tensor([[2.0, 0.1], [-2.0, 0.1]]), 1).sum()
        tensor(0.)

    References:
        [imani2022], Figure 4.
    """
    require_axes(2, features=features)
    _, _, right = _singular(features)
    _require_direction(direction, right.shape[1])
    scores = double(features) @ right[:, direction - 1]
    return torch.where(scores < 0, -1.0, 1.0).to(scores)


@array_function
def singular_vector_labels(
    features: Float[Tensor, "n d"], weights: Mapping[int, float]
) -> Float[Tensor, " n"]:
    r"""Labels :math:`y = \sum_k a_k u_k` from left singular vectors.

    Args:
        features: :math:`\Phi`.
        weights: :math:`a_k` by index :math:`k`, from 1, e.g. ``{10: 1.0}``.

    Example:
        >>> y = singular_vector_labels(torch.eye(3), {1: 0.6, 3: 0.8})
        >>> round(y.norm().item(), 4)
        1.0

    References:
        [imani2022], Figure 9.
    """
    require_axes(2, features=features)
    left, _, _ = _singular(features)
    labels = left.new_zeros(len(left))
    for index, weight in weights.items():
        _require_direction(index, left.shape[1])
        labels = labels + weight * left[:, index - 1]
    return labels


def _singular(features: Tensor) -> Singular:
    require_nonempty(features=features)
    require_finite(features=features)
    return thin_svd(double(features))


def _require_direction(index: int, count: int) -> None:
    if not 1 <= index <= count:
        raise DomainError(f"direction: expected an index in 1..{count}, got {index}")
