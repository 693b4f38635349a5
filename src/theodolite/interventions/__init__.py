"""Changes to a user's network: initialisation and freezing."""

from theodolite.interventions.data_init import covariance_init_
from theodolite.interventions.filters import (
    TAU_CURVES,
    sample_filters,
    tau_curve,
)
from theodolite.interventions.freezing import freeze_except_
from theodolite.interventions.initializers import (
    INITIALIZERS,
    Initializer,
    fans,
    init_weight_,
    initialize_,
)

__all__ = [
    "INITIALIZERS",
    "TAU_CURVES",
    "Initializer",
    "covariance_init_",
    "fans",
    "freeze_except_",
    "init_weight_",
    "initialize_",
    "sample_filters",
    "tau_curve",
]
