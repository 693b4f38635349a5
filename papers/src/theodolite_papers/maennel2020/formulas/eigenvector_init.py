"""Initialisation of layers by eigenvectors of their inputs, as in the tables of the paper."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theodolite.checks import require_choice, require_count, require_symmetric
from theodolite.engine.layers import Layers
from theodolite.errors import ShapeError
from theodolite.interventions.data_init import initialize_layers_, random_signs
from theodolite.interventions.filters import Tau, tau_values
from theodolite.linalg import Eigen, array_function, double, symmetric_eigen, top_eigen

Select = Literal["top", "smallest"]
Signs = Literal["random", "+1", "largest"]


@dataclass(frozen=True)
class Directions:
    """A choice of eigenvectors of a covariance, and their order.

    Args:
        count: number of eigenvectors.
        select: ``"top"`` for the largest eigenvalues first, otherwise the smallest first.
        first: place of the first eigenvector, counted from 1.
    """

    count: int
    select: Select = "top"
    first: int = 1

    def __post_init__(self) -> None:
        require_choice(("top", "smallest"), select=self.select)
        require_count(1, count=self.count, first=self.first)

    def of(self, covariance: Float[Tensor, "d d"]) -> Eigen:
        """The chosen eigenpairs.

        Raises:
            ShapeError: If the matrix has too few dimensions.
        """
        d, last = len(covariance), self.first + self.count - 1
        if last > d:
            raise ShapeError(
                f"expected at least {last} dimensions for eigenvectors {self.first} to {last}, "
                f"one per filter, got {d}; covariance_init_ samples any number of filters"
            )
        chosen = slice(self.first - 1, last)
        if self.select == "top":
            values, vectors = top_eigen(covariance, last)
        else:
            values, vectors = (part.flip(-1) for part in symmetric_eigen(covariance))
        return Eigen(values[chosen], vectors[:, chosen])


@array_function
def eigenvector_filters(
    covariance: Float[Tensor, "d d"],
    directions: int | Directions,
    *,
    tau: Tau = "f2",
    signs: Signs = "random",
    generator: torch.Generator | None = None,
) -> Float[Tensor, "K d"]:
    r"""Eigenvectors of a covariance as filters: row k is :math:`\pm\tau_k e_k`.

    On the data their outputs are uncorrelated, with variance :math:`\tau_k^2\lambda_k`.

    Args:
        covariance: covariance of the inputs or patches that the weights multiply.
        directions: number of filters (for the largest eigenvalues), or a choice of eigenvectors.
        tau: strengths: a name of :func:`theodolite.interventions.tau_curve`, numbers, or a function
            of sigma.
        signs: ``"random"``; ``"+1"`` leaves them as the solver gives them; ``"largest"`` makes
            the entry of largest magnitude positive. With ReLU the two signs differ.
        generator: source of random signs.

    Returns:
        One filter per row.

    Raises:
        ShapeError: If there are more filters than dimensions.
        DomainError: If the covariance is not symmetric or a strength is negative.

    Examples:
        >>> eigenvector_filters(torch.diag(torch.tensor([1.0, 9.0])), 1, signs="largest")
        tensor([[0., 1.]])

    References:
        [maennel2020], section 2.5 and appendix E.3.
    """
    require_symmetric(covariance=covariance)
    require_choice(("random", "+1", "largest"), signs=signs)
    chosen = Directions(directions) if isinstance(directions, int) else directions
    values, vectors = chosen.of(double(covariance))
    strengths = tau_values(tau, values) * _signs(vectors, signs, generator)
    return (vectors * strengths).mT + 0.0  # no negative zeros


def _signs(vectors: Tensor, signs: Signs, generator: torch.Generator | None) -> Tensor:
    if signs == "random":
        return random_signs(vectors, generator)
    if signs == "largest":
        places = vectors.abs().argmax(0, keepdim=True)
        return vectors.gather(0, places).squeeze(0).sign()
    return torch.ones_like(vectors[0])


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
        try:
            return eigenvector_filters(covariance, along, tau=tau, signs=signs, generator=generator)
        except ShapeError as error:
            raise ShapeError(f"layer {name!r}: {error}") from None

    return initialize_layers_(model, images, layers, {}, make, match_norms)
