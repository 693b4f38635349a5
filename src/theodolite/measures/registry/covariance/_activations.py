"""Rows about the activity of neurons."""

from math import inf

from theodolite.measures import covariance
from theodolite.measures.registry.measure import Invariance, Measure

__all__ = ["ROWS"]


ROWS: tuple[Measure, ...] = (
    Measure(
        name="activation_fractions",
        function=covariance.activation_fractions,
        family="covariance",
        inputs={"activations": "features"},
        values=lambda result: result.mean,
        meaning="Share of pairs of neuron and example in which the neuron is active.",
        reference="[maennel2020], Section 3 and Appendix F",
        range=(0.0, 1.0),
        invariances=(
            Invariance("scale", ("activations",)),
            Invariance("permute_rows", ("activations",)),
        ),
        differentiable={"activations": False},
    ),
    Measure(
        name="activation_fractions.neurons",
        function=covariance.activation_fractions,
        family="covariance",
        inputs={"activations": "features"},
        values=lambda result: result.neurons,
        meaning="Share of examples that activate each neuron.",
        reference="[maennel2020], Section 3 and Appendix F",
        range=(0.0, 1.0),
        invariances=(
            Invariance("scale", ("activations",)),
            Invariance("permute_rows", ("activations",)),
        ),
        differentiable={"activations": False},
    ),
    Measure(
        name="activation_fractions.examples",
        function=covariance.activation_fractions,
        family="covariance",
        inputs={"activations": "features"},
        values=lambda result: result.examples,
        meaning="Share of neurons that each example activates.",
        reference="[maennel2020], Section 3 and Appendix F",
        range=(0.0, 1.0),
        invariances=(Invariance("scale", ("activations",)),),
        differentiable={"activations": False},
    ),
    Measure(
        name="activation_fractions.dead",
        function=covariance.activation_fractions,
        family="covariance",
        inputs={"activations": "features"},
        values=lambda result: result.dead,
        meaning="Share of neurons that no example activates.",
        reference="[maennel2020], Section 3 and Appendix F",
        range=(0.0, 1.0),
        invariances=(
            Invariance("scale", ("activations",)),
            Invariance("permute_rows", ("activations",)),
        ),
        differentiable={"activations": False},
    ),
    Measure(
        name="specialization_index",
        function=covariance.specialization_index,
        family="covariance",
        inputs={"activation": "fractions", "initial_activation": "fractions"},
        meaning="How much rarer a layer's neurons fire than at initialisation.",
        reference="[maennel2020], Section 3",
        range=(-inf, 1.0),
        differentiable={"activation": True, "initial_activation": True},
        scale=lambda initial_activation, **_: 1 + float(1 / initial_activation.min()),
    ),
)
