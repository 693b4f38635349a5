"""Theorem 1 of the random-features argument, put to the test."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from theodolite.checks import require_count
from theodolite.linalg import array_function, double
from theodolite.theory.random_features._sin import require_inputs, sin_bound, sin_kernel

__all__ = ["SinTheorem", "check_sin_theorem"]

_STANDARD_ERRORS = 5.0


@dataclass(frozen=True)
class SinTheorem:
    """Exact value, simulation and bounds of the sin kernel for every pair of inputs."""

    exact: Float[Tensor, "n n"]
    simulated: Float[Tensor, "n n"]
    standard_error: Float[Tensor, "n n"]
    printed: Float[Tensor, "n n"]
    corrected: Float[Tensor, "n n"]
    proof: Float[Tensor, "n n"]
    simulation_agrees: Bool[Tensor, "n n"]  # within five standard errors
    printed_holds: Bool[Tensor, "n n"]  # for the value itself
    printed_holds_absolute: Bool[Tensor, "n n"]  # may fail where the inner product is negative
    corrected_holds: Bool[Tensor, "n n"]
    proof_holds: Bool[Tensor, "n n"]


@array_function
def check_sin_theorem(
    inputs: Float[Tensor, "n d"],
    sigma: float,
    width: int = 256,
    draws: int = 100,
    generator: torch.Generator | None = None,
) -> SinTheorem:
    """Theorem 1 put to the test on every pair of inputs, with a Monte Carlo of the layer itself.

    Args:
        inputs: One per row.
        sigma: Standard deviation of the weights.
        width: Hidden units of each simulated layer.
        draws: Simulated layers, at least 2.
        generator: Source of the weights.

    Raises:
        DomainError: If an input is not finite, sigma not positive or a count too small.

    Example:
        >>> x = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
        >>> check = check_sin_theorem(x, 1.0, generator=torch.Generator().manual_seed(0))
        >>> bool(check.simulation_agrees.all()), bool(check.corrected_holds.all())
        (True, True)
        >>> check.printed_holds_absolute
        tensor([[ True, False],
                [False,  True]])

    References:
        [mehta2021], Theorem 1.
    """
    require_inputs(inputs, inputs, sigma)
    require_count(1, width=width)
    require_count(2, draws=draws)
    x = double(inputs)
    exact = sin_kernel(x, x, sigma)
    bounds = {form: sin_bound(x, x, sigma, form) for form in ("printed", "corrected", "proof")}
    mean, error = _simulate(x, sigma, width, draws, generator)
    slack = 1 + 1e-12  # the corrected bound is attained
    return SinTheorem(
        exact=exact,
        simulated=mean,
        standard_error=error,
        **bounds,
        simulation_agrees=(mean - exact).abs() <= _STANDARD_ERRORS * error + 1e-15,
        printed_holds=exact <= bounds["printed"] * slack,
        printed_holds_absolute=exact.abs() <= bounds["printed"] * slack,
        corrected_holds=exact.abs() <= bounds["corrected"] * slack,
        proof_holds=exact.abs() <= bounds["proof"] * slack,
    )


def _simulate(
    x: Tensor, sigma: float, width: int, draws: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Mean and standard error, over layers, of the product of two inputs' features per unit."""
    total, squares = torch.zeros(2, len(x), len(x), dtype=x.dtype, device=x.device)
    for _ in range(draws):
        weights = torch.randn(width, x.shape[1], generator=generator, dtype=x.dtype)
        hidden = torch.sin(x @ (sigma * weights.to(x.device)).mT)
        product = hidden @ hidden.mT / width
        total, squares = total + product, squares + product.square()
    mean = total / draws
    variance = (squares / draws - mean.square()).clamp(min=0) * draws / (draws - 1)
    return mean, (variance / draws).sqrt()
