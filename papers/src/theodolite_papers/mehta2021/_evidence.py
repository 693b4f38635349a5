"""Evidence for learning or memorising: what a trained network shows on its training set."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from theodolite.engine import features, tangent_kernels
from theodolite.measures.gradient import alignment_contrast
from theodolite.measures.kernel import target_cka
from theodolite_papers.lab.training import Softmax

__all__ = ["evidence", "places"]

_NULLS = 20  # permutations of the labels, as in a survey
Measure = Callable[[Tensor, Tensor], Tensor]


def places(layers: Sequence[str]) -> Mapping[str, str]:
    """Layers of a network by their place: the first, the last hidden one, and the output."""
    return {"first": layers[0], "hidden": layers[-2], "output": layers[-1]}


def evidence(
    model: nn.Module,
    data: tuple[Tensor, Tensor],
    truth: Tensor,
    layers: Sequence[str],
    generator: torch.Generator,
) -> dict[str, float]:
    """Contrast of features and gradients, and CKA with labels, by place; each with its null.

    Args:
        model: trained.
        data: training inputs, and the labels that were trained on.
        truth: the true labels.
        layers: with weights, in order.
        generator: draws the permutations behind the nulls.

    Returns:
        ``"quantity_place"`` -> value minus mean of the null, ``"..._z"`` -> the same over the
        null's standard deviation.
    """
    inputs, labels = data
    orders = [torch.randperm(len(labels), generator=generator) for _ in range(_NULLS)]
    named = places(layers)
    found = features(model, inputs, list(dict.fromkeys(named.values())), read="raw")
    grams = tangent_kernels(
        model, (inputs, labels), list(dict.fromkeys(named.values())), outputs=Softmax()
    )
    answer: dict[str, float] = {}
    for place, layer in named.items():
        rows, gradients = found[layer].cpu(), _embedded(grams[layer].cpu())
        for name, vectors, measure, classes in (
            ("feature_contrast", rows, alignment_contrast, labels),
            ("gradient_contrast", gradients, alignment_contrast, labels),
            ("cka_trained", rows, target_cka, labels),
            ("cka_true", rows, target_cka, truth),
        ):
            value, z = _against_null(measure, vectors, classes.cpu(), orders)
            answer[f"{name}_{place}"] = value
            answer[f"{name}_{place}_z"] = z
    return answer


def _embedded(gram: Tensor) -> Tensor:
    """Vectors with the inner products of a Gram matrix, as many as examples."""
    values, vectors = torch.linalg.eigh(gram.double())
    return vectors * values.clamp(min=0).sqrt()


def _against_null(
    measure: Measure, vectors: Tensor, labels: Tensor, orders: Sequence[Tensor]
) -> tuple[float, float]:
    """A value minus the mean over permuted labels, and that in deviations of the latter."""
    null = torch.stack([measure(vectors, labels[order]) for order in orders]).double()
    excess = float(measure(vectors, labels)) - float(null.mean())
    return excess, excess / float(null.std())
