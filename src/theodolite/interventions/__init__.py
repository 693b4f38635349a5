"""Changes to a user's network: initialisation, rescaling, freezing."""

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
from theodolite.interventions.rescaling import layer_norms, rescale_to_

__all__ = [
    "INITIALIZERS",
    "TAU_CURVES",
    "Initializer",
    "covariance_init_",
    "fans",
    "freeze_except_",
    "init_weight_",
    "initialize_",
    "layer_norms",
    "rescale_to_",
    "sample_filters",
    "tau_curve",
]
