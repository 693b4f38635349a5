"""Filters from a covariance: random samples of it, and strengths of its eigenvectors."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_count, require_nonnegative, require_symmetric
from theodolite.errors import DomainError, DtypeError, ShapeError, UnknownNameError
from theodolite.linalg import array_function, double, eps_of, symmetric_eigen

TAU_CURVES = ("f1", "f2", "f3")
Tau = Literal["f1", "f2", "f3"] | Sequence[float] | Callable[[Tensor], Tensor]

# First two positions; from the third on the curves fall linearly from 4 to 1.
_STARTS = {"f1": (1.0, 2.5), "f3": (3.0, 3.5)}


def tau_curve(name: str, count: int) -> Float[Tensor, " count"]:
    """Strengths of filters along ``count`` directions of the data, most important first.

    ``f2`` is 1 everywhere. ``f1`` damps the first direction strongly, ``f3`` less. From the third
    direction on both fall linearly from 4 to 1.

    Args:
        name: ``"f1"``, ``"f2"`` or ``"f3"``.
        count: number of directions, 16 in the paper.

    Returns:
        One strength per direction.

    Raises:
        UnknownNameError: If there is no such curve.

    Examples:
        >>> tau_curve("f1", 6).tolist()
        [1.0, 2.5, 4.0, 3.0, 2.0, 1.0]

    References:
        [maennel2020], figure 23. Differs from paper: it shows f1 and f3 only as a drawing.
    """
    require_count(1, count=count)
    if not isinstance(name, str) or name not in TAU_CURVES:
        raise UnknownNameError("tau curve", name, TAU_CURVES)
    if name == "f2":
        return torch.ones(count, dtype=torch.float64)
    fall = torch.linspace(4.0, 1.0, max(count - 2, 1), dtype=torch.float64)
    return torch.cat([fall.new_tensor(_STARTS[name]), fall])[:count]


def tau_values(
    tau: Tau, eigenvalues: Float[Tensor, " k"], *, exact: bool = True
) -> Float[Tensor, " k"]:
    r"""One strength per chosen direction.

    Args:
        tau: a curve by name; numbers, one per direction; or a function of
            :math:`\sigma = \sqrt\lambda`, the data's standard deviations along the directions.
        eigenvalues: :math:`\lambda` of the chosen directions.
        exact: require as many numbers as directions; otherwise fewer numbers leave directions out.

    Raises:
        ShapeError: If the number of strengths does not fit.
        DomainError: If one is negative or not finite.
    """
    count = len(eigenvalues)
    if isinstance(tau, str):
        return tau_curve(tau, count).to(eigenvalues)
    if callable(tau):
        values = tau(eigenvalues.clamp(min=0).sqrt())
    else:
        try:
            values = torch.as_tensor(list(tau), dtype=eigenvalues.dtype)
        except (TypeError, ValueError, RuntimeError):
            raise DtypeError(
                f"tau: expected 'f1', 'f2', 'f3', a list of numbers or a function, got {tau!r}"
            ) from None
    short = not exact and 0 < len(values) < count
    if values.ndim != 1 or (len(values) != count and not short):
        raise ShapeError(
            f"tau: expected one strength per direction ({count}), got shape {tuple(values.shape)}; "
            "a named curve ('f1', 'f2', 'f3') or a function fits layers of every width"
        )
    require_nonnegative(tau=values)
    padded = values.new_zeros(count)
    padded[: len(values)] = values
    return padded.to(eigenvalues)


@array_function
def sample_filters(
    covariance: Float[Tensor, "d d"],
    count: int,
    *,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "count d"]:
    r"""Gaussian filters of mean zero with a given covariance, one per row.

    .. math:: W = Z\,\Lambda^{1/2} V^\top, \qquad \Sigma = V \Lambda V^\top,\; Z_{ij} \sim N(0, 1)

    The covariance may be singular: filters stay in its range.

    Args:
        covariance: :math:`\Sigma`, for instance of learned filters or of data.
        count: number of filters.
        generator: source of randomness.

    Returns:
        One filter per row.

    Raises:
        ShapeError: If the covariance is not square.
        DomainError: If it is not symmetric, or has an eigenvalue below zero beyond rounding.

    Examples:
        >>> sigma = torch.tensor([[4.0, 0.0], [0.0, 0.0]])
        >>> w = sample_filters(sigma, 1000, generator=torch.Generator().manual_seed(0))
        >>> round(w[:, 0].std().item(), 1), w[:, 1].abs().max().item()
        (2.0, 0.0)

    References:
        [maennel2020], section 2.4.
    """
    require_symmetric(covariance=covariance)
    require_count(1, count=count)
    values, vectors = symmetric_eigen(double(covariance))
    noise = len(values) * eps_of(covariance)
    peak = values.abs().max()
    if values[-1] < -max(1e-8, noise) * peak:
        raise DomainError(
            "covariance: expected no negative eigenvalue, got "
            f"{values[-1].item():.3g} beside {values[0].item():.3g}; a covariance has none; pass "
            "a covariance matrix"
        )
    # The root of a rounded zero eigenvalue is not small: eigenvalues within rounding become zero.
    roots = torch.where(values > noise * peak, values, torch.zeros_like(values)).sqrt()
    return (_normal(count, len(values), generator).to(roots) * roots) @ vectors.mT


def _normal(rows: int, columns: int, generator: torch.Generator | None) -> Tensor:
    """Drawn where the generator lives, so that one seed gives the same filters on every device."""
    device = "cpu" if generator is None else generator.device
    return torch.randn(rows, columns, generator=generator, device=device, dtype=torch.float64)
