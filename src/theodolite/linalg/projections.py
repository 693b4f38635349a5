"""Targets seen in the left singular basis of features: what alignment and convergence both read."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.linalg.arrays import double, eps_of
from theodolite.linalg.moments import CrossMoments
from theodolite.linalg.spectra import symmetric_eigen

__all__ = ["LabelProjections", "projections_from_gram", "projections_from_moments"]


@dataclass(frozen=True)
class LabelProjections:
    r"""Singular values of features and the targets' coordinates on their left singular vectors.

    With :math:`\Phi = U\Sigma V^\top` of rank :math:`r` and targets :math:`y`: the positive
    :math:`\sigma_i`, largest first, :math:`c_i = u_i^\top y` per target column, and the mass
    :math:`\|y\|^2 - \sum_i c_i^2` that lies outside the range of the features.
    """

    singular_values: Float[Tensor, " r"]
    coefficients: Float[Tensor, "r c"]
    residual: Float[Tensor, " c"]
    count: int  # examples

    @property
    def mass(self) -> Float[Tensor, "r c"]:
        """Squared coefficients: the label mass on each direction, per target column."""
        return self.coefficients.square()


def projections_from_gram(
    gram: Float[Tensor, "d d"],
    cross: Float[Tensor, "d c"],
    energy: Float[Tensor, " c"],
    count: int,
    eps: float | None = None,
) -> LabelProjections:
    r"""Projections from :math:`\Phi^\top\Phi`, :math:`\Phi^\top Y` and the squared column norms.

    .. math:: \sigma_i = \sqrt{\lambda_i}, \qquad c_i = v_i^\top\Phi^\top y / \sigma_i

    Singular values below :math:`\sqrt{d\,\varepsilon}\,\sigma_1` drown in the rounding of the Gram
    matrix and count as zero: their mass goes into the residual.
    """
    values, vectors = symmetric_eigen(gram)
    noise = len(values) * (eps_of(gram, cross) if eps is None else eps) * values.max()
    kept = values > noise.clamp(min=0)
    sigma = values[kept].sqrt()
    coefficients = vectors[:, kept].mT @ double(cross) / sigma.unsqueeze(1)
    residual = (double(energy) - coefficients.square().sum(0)).clamp(min=0)
    return LabelProjections(sigma, coefficients, residual, count)


def projections_from_moments(
    moments: CrossMoments, *, scale: float = 1.0, offset: float = 0.0
) -> LabelProjections:
    """Projections of the targets ``scale * y + offset`` from one pass over features and ``y``.

    The affine map may be chosen after the pass, e.g. when it needs the targets' mean or range.
    """
    gram, cross, targets = moments.blocks(centered=False)
    sums = moments.both.mean * moments.both.count
    feature_sum, target_sum = sums[: moments.split], sums[moments.split :]
    shifted = scale * cross + offset * feature_sum.unsqueeze(1)
    energy = (
        scale**2 * torch.diagonal(targets)
        + 2 * scale * offset * target_sum
        + offset**2 * moments.both.count
    )
    return projections_from_gram(gram, shifted, energy, int(moments.both.count))
