"""The families of a survey: every part that is measured, in order.

A part is a family, or a piece of one with its own cost. A new family gets its row here;
CONTRIBUTING.md lists its other places.
"""

from collections.abc import Callable
from dataclasses import dataclass

from theodolite.surveys.context import SurveyContext
from theodolite.surveys.covariance import covariance_cost, measure_covariance
from theodolite.surveys.fit import measure_fit, measure_probes, measure_shift, probe_cost
from theodolite.surveys.gradient import (
    gradient_cost,
    measure_feature_contrast,
    measure_gradient,
)
from theodolite.surveys.kernel import kernel_cost, measure_kernel
from theodolite.surveys.progress import Cost
from theodolite.surveys.record import RecordBuilder
from theodolite.surveys.representation import measure_representation, representation_cost
from theodolite.surveys.tangent import measure_tangent, tangent_cost

Measure = Callable[[SurveyContext, RecordBuilder], None]


@dataclass(frozen=True)
class Part:
    """A part of a family. If one part fails, the others go on.

    Args:
        family: family of its rows.
        measure: function that measures the part.
        stage: name of the part during the survey and in the times of the record.
        cost: cost of a number of examples.
        fewest: smallest number of examples with an error bar; a time limit never takes fewer.
        share: share of the time left when its turn comes.
        tried: whether few examples are measured first, to learn the time of more.
        reads_features: whether it needs the pass that collects features.
        row: measure that gets the reason if the part fails; by default the whole family.
        always: measured even if the family is not due or does not apply.
    """

    family: str
    measure: Measure
    stage: str = ""
    cost: Callable[[SurveyContext, int], Cost] | None = None
    fewest: int = 0
    share: float = 1.0
    tried: bool = False
    reads_features: bool = False
    row: str = ""
    always: bool = False


# Cheap parts first. Parts that read features share the time of the pass that collects them.
PARTS = (
    Part(
        "representation",
        measure_representation,
        "representation",
        representation_cost,
        reads_features=True,
    ),
    Part(
        "representation",
        measure_probes,
        "probes",
        probe_cost,
        reads_features=True,
        row="probe_accuracy",
    ),
    Part("representation", measure_fit, row="accuracy"),
    Part("representation", measure_shift, row="shift_accuracy", reads_features=True),
    Part("kernel", measure_kernel, "kernel", kernel_cost, reads_features=True),
    # The headline needs features and no gradients, so it is cheap.
    Part(
        "gradient",
        measure_feature_contrast,
        reads_features=True,
        row="feature_omega_contrast",
        always=True,
    ),
    Part("covariance", measure_covariance, "covariance", covariance_cost, 32, 0.35),
    Part("gradient", measure_gradient, "gradient", gradient_cost, 32, 0.5, tried=True),
    Part("tangent", measure_tangent, "tangent", tangent_cost, 16, 0.85, tried=True),
)
