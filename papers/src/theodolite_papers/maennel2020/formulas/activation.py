"""Which neurons fire for which examples: fractions, histograms, specialisation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import (
    require_choice,
    require_count,
    require_finite,
    require_nonempty,
)
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import array_function, double, prints_shapes


@prints_shapes
@dataclass(frozen=True)
class ActivationFractions:
    """How often neurons are active: a share for each neuron, and for each example."""

    neurons: Float[Tensor, " u"]  # fraction of examples that activate each neuron
    examples: Float[Tensor, " n"]  # fraction of neurons that each example activates
    mean: Float[Tensor, ""]  # over neurons, equal to that over examples
    dead: Float[Tensor, ""]  # share of neurons that no example activates
    always: Float[Tensor, ""]  # share of neurons that every example activates


@array_function
def activation_fractions(
    activations: Float[Tensor, "n c *positions"],
    neuron: Literal["element", "channel", "channel_mean"] = "element",
) -> ActivationFractions:
    r"""How often the neurons of a layer are active, that is greater than zero.

    .. math:: p_u = \frac1n \sum_i [a_{iu} > 0], \qquad q_i = \frac1U \sum_u [a_{iu} > 0]

    over the :math:`n` examples for each neuron, and over the :math:`U` neurons for each example.
    For a ReLU active means not zero; for leaky activations it means positive.

    Range: [0, 1], all of them.
    Invariant to: positive scaling; order of examples.
    Undefined: never.

    Args:
        activations: outputs of a layer after its activation function, examples first, channels or
            units second.
        neuron: what counts as one in a convolution: every ``"element"`` of the map; a
            ``"channel"``, active if any of its positions is; or ``"channel_mean"``, the share of a
            channel's positions that are active instead of a yes or no.

    Raises:
        ShapeError: If there are no examples, or no axis of neurons.
        DomainError: If an activation is not finite.

    Examples:
        >>> relu = torch.tensor([[1.0, 0.0, 0.0], [2.0, 0.0, 3.0]])
        >>> fractions = activation_fractions(relu)
        >>> fractions.neurons.tolist(), fractions.mean.item(), round(fractions.dead.item(), 4)
        ([1.0, 0.0, 0.5], 0.5, 0.3333)

    References:
        [maennel2020], Section 3 and Appendix F; what a neuron of a convolution is, is ours.
    """
    require_choice(("element", "channel", "channel_mean"), neuron=neuron)
    if activations.ndim < 2:
        raise ShapeError(
            "activations: expected an axis of examples and one of neurons, got shape "
            f"{tuple(activations.shape)}"
        )
    require_nonempty(activations=activations)
    require_finite(activations=activations)
    active = activations.detach() > 0
    if neuron == "element":
        active = active.flatten(1)
    else:
        positions = active.flatten(2) if active.ndim > 2 else active[..., None]
        active = positions.any(-1) if neuron == "channel" else double(positions).mean(-1)
    share = double(active)
    return _summary(share.mean(0), share.mean(1))


@array_function
def merge_activation_fractions(parts: Sequence[ActivationFractions]) -> ActivationFractions:
    """Fractions of several batches of examples together, in their order.

    Args:
        parts: results of :func:`activation_fractions` for one layer.

    Raises:
        ShapeError: If there are no parts, or they differ in their number of neurons.

    Examples:
        >>> relu = torch.tensor([[1.0, 0.0], [2.0, 3.0], [0.0, 0.0], [0.0, 0.0]])
        >>> parts = [activation_fractions(relu[:3]), activation_fractions(relu[3:])]
        >>> merge_activation_fractions(parts).neurons.tolist()
        [0.5, 0.25]

    References:
        [maennel2020], Appendix F; merging batches is ours.
    """
    sizes = {len(part.neurons) for part in parts}
    if len(sizes) != 1:
        raise ShapeError(
            f"parts: expected batches of one layer, got {len(parts)} of {sorted(sizes)} neurons"
        )
    counts = [len(part.examples) for part in parts]
    sums = [double(part.neurons) * count for part, count in zip(parts, counts, strict=True)]
    neurons = torch.stack(sums).sum(0) / sum(counts)
    return _summary(neurons, torch.cat([double(part.examples) for part in parts]))


@array_function
def activation_histogram(fractions: Float[Tensor, " n"], bins: int = 20) -> Float[Tensor, " bins"]:
    """Share of the fractions in each of equal bins on [0, 1]: half-open, the last one closed.

    Args:
        fractions: of neurons or of examples, see :func:`activation_fractions`.
        bins: number of bins.

    Raises:
        ShapeError: If there are no fractions.
        DomainError: If a fraction lies outside [0, 1], or there is no bin.

    Examples:
        >>> activation_histogram(torch.tensor([0.0, 0.5, 0.6, 1.0]), bins=2).tolist()
        [0.25, 0.75]

    References:
        [maennel2020], Figures 7, 10 and 11; the number of bins is ours.
    """
    require_count(1, bins=bins)
    _require_fractions(fractions=fractions)
    # i / bins rounded like the fractions, so that a fraction on an edge is found on it.
    edges = (torch.arange(1, bins, dtype=torch.float64) / bins).to(fractions)
    counts = torch.bucketize(fractions.detach(), edges, right=True).bincount(minlength=bins)
    return double(counts) / len(fractions)


def _require_fractions(**tensors: Tensor) -> None:
    require_nonempty(**tensors)
    require_finite(**tensors)
    for name, values in tensors.items():
        low, high = values.min().item(), values.max().item()
        if low < 0 or high > 1:
            raise DomainError(
                f"{name}: expected fractions from 0 to 1, got values from {low} to {high}; "
                "percentages must be divided by 100"
            )


def _summary(neurons: Tensor, examples: Tensor) -> ActivationFractions:
    return ActivationFractions(
        neurons,
        examples,
        neurons.mean(),
        (neurons == 0).double().mean(),
        (neurons == 1).double().mean(),
    )
