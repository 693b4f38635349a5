"""From a model and data to the tensors that measures need, in bounded memory."""

from theodolite.quantities._covariances import (
    PositionCovariance,
    patch_covariance,
    weight_covariance,
)

__all__ = ["PositionCovariance", "patch_covariance", "weight_covariance"]
