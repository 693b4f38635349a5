"""Tangent features that point all one way: along the labels."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from torch.linalg import matrix_norm, vector_norm

from theodolite.checks import require_axes, require_finite
from theodolite.errors import ShapeError
from theodolite.linalg import (
    array_function,
    double,
    eps_of,
    nan_unless,
    ratio_or_nan,
    unit_peak,
    vanishes_when_centered,
)
from theodolite.measures.tangent._label_angle import unit_vector
from theodolite.measures.tangent._labels import centered_over_all
from theodolite.measures.tangent._leading import spectral_norm
from theodolite.measures.tangent._stacking import require_tangent_features

__all__ = ["RankOneModel", "rank_one_model"]


@dataclass(frozen=True)
class RankOneModel:
    """Centred tangent features as ``strength * direction`` times the unit label vector."""

    direction: Float[Tensor, " p"]  # unit vector in parameter space
    strength: Float[Tensor, ""]  # largest singular value of the centred features
    error: Float[Tensor, ""]  # relative Frobenius norm of what the model leaves out


@array_function
def rank_one_model(
    tangent_features: Float[Tensor, "n c p"], targets: Float[Tensor, "n c"]
) -> RankOneModel:
    r"""Rank-one model of tangent features that have aligned with the labels.

    .. math:: \Psi C_m \approx \sqrt{\lambda_1}\,v\,\hat y^\top, \qquad
              v = \Psi\hat y / \|\Psi\hat y\|, \quad \lambda_1 = \lambda_1(C_m K C_m)

    Where it holds, a change of parameters moves the outputs along the labels only, by
    :math:`\langle\Delta\theta, v\rangle\sqrt{\lambda_1}\,\hat y`.

    Range: error in [0, :math:`\sqrt2`], 0 exactly for rank-one features along the labels.
    Invariant to: positive scaling of the features (error), orthogonal maps of the parameters,
    scaling and shifting all targets.
    Undefined (``nan``): centred features or centred targets are zero, or they are orthogonal.

    Args:
        tangent_features: :math:`\Psi`; entry ``[x, i]`` is the gradient of output i at example x.
        targets: :math:`Y`, e.g. one-hot labels.

    Raises:
        ShapeError: If the shapes do not match.
        DomainError: If an entry is not finite.

    Example:
        >>> y = torch.tensor([[1.0], [-1.0]])
        >>> model = rank_one_model(y.unsqueeze(-1) * torch.tensor([3.0, 4.0]), y)
        >>> [round(v, 4) for v in model.direction.tolist()], round(model.error.item(), 4)
        ([0.6, 0.8], 0.0)

    References:
        [lou2022], Appendix G, Eq. (26) and (27).
    """
    require_tangent_features(tangent_features)
    require_axes(2, targets=targets)
    if targets.shape != tangent_features.shape[:2]:
        raise ShapeError(
            f"targets: expected shape {tuple(tangent_features.shape[:2])}, one number per example "
            f"and output of tangent_features, got {tuple(targets.shape)}"
        )
    require_finite(targets=targets)
    rows = double(tangent_features).flatten(0, 1)
    peak = rows.detach().abs().max()
    return _model(
        unit_peak(rows), unit_peak(double(targets)), peak, eps_of(tangent_features, targets)
    )


def _model(rows: Tensor, targets: Tensor, peak: Tensor, eps: float) -> RankOneModel:
    features = rows - rows.mean(0)  # (m, p): one centred gradient per pair
    y = centered_over_all(targets)
    defined = ~vanishes_when_centered(features, rows, eps)
    defined = defined & ~vanishes_when_centered(y, targets, eps)
    label = unit_vector(y.flatten())
    image = label @ features
    length, size = vector_norm(image), matrix_norm(features)
    defined = defined & (length > 8 * eps * size)
    direction = unit_vector(image)
    sigma = spectral_norm(features)
    residual = features - sigma * label.unsqueeze(1) * direction
    return RankOneModel(
        direction=ratio_or_nan(image, length.expand_as(image), defined),
        strength=nan_unless(defined, sigma * peak),
        error=ratio_or_nan(matrix_norm(residual), size, defined),
    )
