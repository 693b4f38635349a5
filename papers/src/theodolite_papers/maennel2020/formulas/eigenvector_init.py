"""Initialisation of layers by eigenvectors of their inputs, as in the tables of the paper."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from theodolite.engine.layers import Layers
from theodolite.interventions.data_init import (
    filters_from_eigenvectors,
    initialize_layers_,
)
from theodolite.interventions.filters import Directions, Select, Signs, Tau


def eigenvector_init_(
    model: nn.Module,
    images: Any,
    layers: Layers | None = None,
    *,
    tau: Tau = "f2",
    select: Select = "top",
    first: int | Mapping[str, int] = 1,
    signs: Signs = "random",
    match_norms: bool = True,
    generator: torch.Generator | None = None,
) -> nn.Module:
    r"""Set the filters of a network to scaled eigenvectors of its data, layer by layer.

    A layer of K filters gets :math:`\tau_1 e_1, \dots, \tau_K e_K`, eigenvectors of the covariance
    of what its weights multiply, seen through the layers already set. Their outputs are
    uncorrelated on the data. Biases of the chosen layers become zero.

    Args:
        model: any network; changed in place. It runs in evaluation mode here.
        images: examples as :func:`theodolite.survey` takes them; a few thousand are enough.
        layers: which linear and convolutional layers; by default the convolutions, and in a
            network without them all linear layers but the last.
        tau: the same strengths for every layer: ``"f1"``, ``"f2"``, ``"f3"``; K numbers; or a
            function of the data's standard deviations along the chosen eigenvectors.
        select: eigenvectors of the largest eigenvalues (``"top"``) or of the ``"smallest"``.
        first: place of the first eigenvector used, counted from 1; one number or one per layer.
        signs: ``"random"``, ``"+1"`` (the solver's) or ``"largest"`` (largest entry positive).
        match_norms: give each new weight the Frobenius norm of the one that it replaces.
        generator: source of random signs.

    Returns:
        The model.

    Raises:
        ShapeError: If a layer has more filters than there are eigenvectors left.
        DomainError: If a layer is not linear or convolutional, or does not run.

    Examples:
        >>> net = nn.Sequential(nn.Linear(8, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> _ = eigenvector_init_(net, torch.randn(50, 8), match_norms=False)
        >>> torch.allclose(net[0].weight @ net[0].weight.T, torch.eye(3), atol=1e-5)
        True

    References:
        [maennel2020], section 2.5, appendix E.3, tables 1-3, 5, 6. Differs from paper: norms are
        matched and signs are random, neither of which it mentions.
    """

    def make(name: str, covariance: Tensor, count: int) -> Tensor:
        start = first if isinstance(first, int) else first.get(name, 1)
        along = Directions(count, select, start)
        return filters_from_eigenvectors(
            name, covariance, along, tau=tau, signs=signs, generator=generator
        )

    return initialize_layers_(model, images, layers, {}, make, match_norms)
