"""Every row of the registry with its law."""

from dataclasses import dataclass

import numpy as np

from tests.conformance.inputs import draw
from tests.conformance.laws import covariance, gradient, kernel, representation, tangent
from tests.conformance.laws.law import Law
from theodolite.measures.registry import MEASURES, Measure

FAMILIES = {
    "representation": representation,
    "covariance": covariance,
    "kernel": kernel,
    "tangent": tangent,
    "gradient": gradient,
}
LAWS = {name: law for family in FAMILIES.values() for name, law in family.LAWS.items()}


@dataclass(frozen=True)
class Row(Law, Measure):
    """A measure and its law."""

    @property
    def differentiable(self) -> dict[str, bool]:
        """For each array of real numbers: whether gradients flow to it."""
        return {
            name: name in self.gradients
            for name, value in draw(self.inputs, "random").items()
            if isinstance(value, np.ndarray) and value.dtype.kind == "f"
        }


ROWS = {name: Row(**vars(measure), **vars(LAWS[name])) for name, measure in MEASURES.items()}
