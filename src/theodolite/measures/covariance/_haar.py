"""Orthonormal bases drawn uniformly (Haar measure)."""

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_count

__all__ = ["haar_basis", "random_bases"]


def haar_basis(size: int, generator: torch.Generator | None) -> Tensor:
    """One draw from O(size), in float64 on the generator's device (default: CPU)."""
    device = generator.device if generator is not None else torch.device("cpu")
    gaussian = torch.randn(size, size, dtype=torch.float64, device=device, generator=generator)
    q, r = torch.linalg.qr(gaussian)
    # Without the signs of R's diagonal the draw would follow the convention of the QR routine.
    return q * torch.where(r.diagonal() < 0, -1.0, 1.0)


def random_bases(
    dimensions: int, draws: int = 10, generator: torch.Generator | None = None
) -> Float[Tensor, "draws d d"]:
    """Orthonormal bases of a space, uniformly distributed, to be reused over training steps.

    Args:
        dimensions: of the space.
        draws: number of bases.
        generator: of the draws; torch's global one if not given.

    Raises:
        DomainError: If there are no dimensions or no draws.

    Example:
        >>> bases = random_bases(3, draws=2, generator=torch.Generator().manual_seed(0))
        >>> tuple(bases.shape), round((bases.mT @ bases).diagonal(0, 1, 2).sum().item(), 4)
        ((2, 3, 3), 6.0)

    References:
        [maennel2020], Section 2.2, Figure 2: the random basis.
    """
    require_count(1, dimensions=dimensions, draws=draws)
    return torch.stack([haar_basis(dimensions, generator) for _ in range(draws)])
