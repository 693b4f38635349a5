r"""The quadratic form :math:`\mathrm{tr}\,Y^\top f(\Phi\Phi^\top)\,Y` with a gradient safe at ties.

Its derivative needs the divided differences of ``f`` alone (Daleckii-Krein), never the derivative
of a single singular vector, so ties cost nothing, and directions outside the range of the features
enter as a whole. Where both ends of a difference vanish the derivative does not exist: zero there.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from theodolite.linalg import thin_svd

__all__ = ["Filter", "spectral_form"]

_TIE = 1e-8  # relative gap below which a divided difference is replaced by the derivative


class Filter(NamedTuple):
    """Values of ``t`` functions on the kernel's eigenvalues, at zero, and their derivatives."""

    weights: Tensor  # (t, r): f(sigma_i^2)
    null: Tensor  # (t,): f(0)
    slopes: Tensor  # (t, r): sigma_i f'(sigma_i^2), half the derivative by sigma_i


def spectral_form(
    features: Tensor, targets: Tensor, noise: float, make_filter: Callable[[Tensor], Filter]
) -> Tensor:
    """One value per function of the filter; features and targets in float64.

    Singular values of at most ``noise`` times the largest count as zero.
    """
    return _SpectralForm.apply(features, targets, noise, make_filter)  # type: ignore[no-untyped-call]


class _SpectralForm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        targets: Tensor,
        noise: float,
        make_filter: Callable[[Tensor], Filter],
    ) -> Tensor:
        left, sigma, right = thin_svd(features)
        kept = sigma > noise * sigma.max()
        left, sigma, right = left[:, kept], sigma[kept], right[:, kept]
        coefficients = left.mT @ targets
        rest = targets - left @ coefficients
        weights, null, slopes = make_filter(sigma)
        ctx.save_for_backward(left, sigma, right, coefficients, rest, weights, null, slopes)
        return weights @ coefficients.square().sum(1) + null * rest.square().sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        left, sigma, right, c, rest, weights, null, slopes = ctx.saved_tensors
        (outer,) = gradients
        f, at_zero = outer @ weights, outer @ null
        inside = _scaled_differences(sigma, f, outer @ slopes) * (c @ c.mT)
        outside = rest @ (c.mT * ((f - at_zero) / sigma))
        to_features = 2 * (left @ inside + outside) @ right.mT
        to_targets = 2 * (left @ (f.unsqueeze(1) * c) + at_zero * rest)
        return to_features, to_targets, None, None


def _scaled_differences(sigma: Tensor, values: Tensor, slopes: Tensor) -> Tensor:
    r""":math:`\sigma_j (f_i - f_j)/(\sigma_i^2 - \sigma_j^2)`, without overflow of the squares."""
    top = sigma.amax() if len(sigma) else sigma.new_ones(())
    points = (sigma / top).square()
    gaps = points.unsqueeze(1) - points
    tied = gaps.abs() <= _TIE * (points.unsqueeze(1) + points)
    rises = (values.unsqueeze(1) - values) * (sigma / top) / top
    mean_slope = (slopes.unsqueeze(1) + slopes) / 2
    return torch.where(tied, mean_slope, rises / torch.where(tied, torch.ones_like(gaps), gaps))
