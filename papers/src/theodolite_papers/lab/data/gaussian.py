"""Gaussian inputs with a given covariance."""

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_axes, require_count, require_nonnegative, require_symmetric
from theodolite.data import Dataset
from theodolite.errors import DomainError
from theodolite.linalg import double, eps_of, symmetric_eigen
from theodolite_papers.lab.data.labels import random_labels

__all__ = ["covariance_root", "gaussian", "gaussian_inputs", "rotated_covariance"]


def covariance_root(covariance: Float[Tensor, "d d"]) -> Float[Tensor, "d d"]:
    """The symmetric square root of a covariance, singular or not, in float64.

    Raises:
        DomainError: If the matrix has a negative eigenvalue beyond rounding.

    Example:
        >>> covariance_root(torch.tensor([[4.0, 0.0], [0.0, 0.0]])).round(decimals=4)
        tensor([[2., 0.],
                [0., 0.]], dtype=torch.float64)
    """
    require_symmetric(covariance=covariance)
    values, vectors = symmetric_eigen(double(covariance))
    floor = len(covariance) * eps_of(covariance) * values.abs().max()
    if (values < -floor).any():
        raise DomainError(
            f"covariance: expected no negative eigenvalue, got {values.min().item():.3g}"
        )
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.mT


def gaussian_inputs(
    count: int,
    covariance: Float[Tensor, "d d"],
    mean: Float[Tensor, " d"] | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "n d"]:
    r"""Independent rows from :math:`N(\mu, \Sigma)`, also for a singular covariance.

    Args:
        count: number of rows.
        covariance: :math:`\Sigma`, symmetric, positive semi-definite.
        mean: :math:`\mu`; 0 if left out.
        generator: source of randomness.

    Raises:
        DomainError: If the covariance is not symmetric or has a negative eigenvalue.

    Example:
        >>> gaussian_inputs(3, torch.diag(torch.tensor([1.0, 0.0])))[:, 1]
        tensor([0., 0., 0.])

    References:
        [maennel2020], Figure 20.
    """
    require_count(1, count=count)
    root = covariance_root(covariance).cpu()
    noise = torch.randn(count, len(root), generator=generator, dtype=torch.float64)
    rows = noise @ root
    return (rows if mean is None else rows + double(mean).cpu()).to(covariance)


def rotated_covariance(
    eigenvalues: Float[Tensor, " d"], generator: torch.Generator | None = None
) -> Float[Tensor, "d d"]:
    """A covariance with given eigenvalues in a uniformly random orthonormal basis.

    Example:
        >>> covariance = rotated_covariance(torch.tensor([2.0, 1.0]))
        >>> torch.linalg.eigvalsh(covariance).round(decimals=4)
        tensor([1., 2.])
    """
    require_axes(1, eigenvalues=eigenvalues)
    require_nonnegative(eigenvalues=eigenvalues)
    size = len(eigenvalues)
    noise = torch.randn(size, size, generator=generator, dtype=torch.float64)
    basis, triangle = torch.linalg.qr(noise)
    basis = basis * triangle.diagonal().sign()  # makes the distribution uniform
    matrix = (basis * double(eigenvalues).cpu()) @ basis.mT
    return ((matrix + matrix.mT) / 2).to(eigenvalues)


def gaussian(
    covariance: Float[Tensor, "d d"] | None = None,
    train: int = 2000,
    test: int = 500,
    num_classes: int = 2,
    generator: torch.Generator | None = None,
) -> Dataset:
    """Gaussian inputs with uniformly random labels, which nothing but memory can fit.

    Args:
        covariance: of the inputs; by default 20 dimensions with variances 1, 1/2, ..., 1/20 in a
            random basis.
        train: number of training examples.
        test: number of test examples.
        num_classes: number of classes the labels are drawn from.
        generator: source of randomness.

    Example:
        >>> gaussian(torch.eye(3), train=5, test=2).x_train.shape
        torch.Size([5, 3])

    References:
        [maennel2020], Figure 20.
    """
    if covariance is None:
        covariance = rotated_covariance(1 / torch.arange(1.0, 21.0), generator)
    x = gaussian_inputs(train + test, covariance, generator=generator)
    y = random_labels(train + test, num_classes, generator)
    names = tuple(str(index) for index in range(num_classes))
    return Dataset("gaussian", x[:train], y[:train], x[train:], y[train:], classes=names)
