"""Layer-wise feature maximisation: each hidden layer is trained alone to separate the classes."""

from collections import OrderedDict
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal
from warnings import warn

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from theodolite.checks import (
    require_choice,
    require_count,
    require_finite,
    require_labels,
    require_positive,
    require_same_length,
)
from theodolite.errors import DomainError, ShapeError
from theodolite.interventions.matrix_layers import is_matrix_layer

__all__ = [
    "FeatureMaximization",
    "FeatureMaximizationRecipe",
    "UnitNorm",
    "feature_pair_loss",
    "layerwise_feature_maximization",
]

Reduction = Literal["sum", "mean"]


class UnitNorm(nn.Module):
    """Each example divided by its norm; an example of zeros stays as it is."""

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Rows of unit length."""
        norms = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        return x / torch.where(norms > 0, norms, torch.ones_like(norms))


def feature_pair_loss(
    features: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    reduction: Reduction = "sum",
) -> Float[Tensor, ""]:
    r"""How far the inner products of features are from 1/2 within classes and 0 between them.

    .. math:: \sum_{i,j} \big(\phi_i\cdot\phi_j - \tfrac12\,1[y_i = y_j]\big)^2

    over ordered pairs, :math:`i = j` included. Zero for :math:`\phi_i = e_{y_i}/\sqrt2`.

    Args:
        features: :math:`\phi`, one row per example, not normalised.
        labels: classes.
        reduction: the sum of the definition, or the mean over pairs.

    Raises:
        ShapeError: If features and labels differ in number.
        DomainError: If labels are no classes.

    Examples:
        >>> feature_pair_loss(torch.eye(2) / 2**0.5, torch.tensor([0, 1])).item() < 1e-12
        True

    References:
        [lou2022], appendix on layer-wise feature maximisation. Differs from paper: it prints
        the features of the layer below, which the trained weights do not enter.
    """
    require_choice(("sum", "mean"), reduction=reduction)
    require_same_length(features=features, labels=labels)
    require_labels(labels)
    return _pair_loss(features, labels, reduction)


def _pair_loss(features: Tensor, labels: Tensor, reduction: Reduction) -> Tensor:
    """The same without checks."""
    same = (labels.unsqueeze(0) == labels.unsqueeze(1)).to(features)
    squares = (features @ features.mT - 0.5 * same).square()
    return squares.sum() if reduction == "sum" else squares.mean()


Labelled = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class FeatureMaximizationRecipe:
    """How each layer is trained.

    Args:
        learning_rate: of Adam.
        batch_size: examples whose pairs make one step.
        patience: epochs without a lower validation loss before a layer stops.
        max_epochs: most epochs of one layer.
        reduction: of the pair loss; the learning rate is meant for the sum.
        normalize: ``"forward"`` divides every example by its norm between layers, as part of the
            network; ``"absorb"`` multiplies a layer's weight and bias by one number, after which
            the mean squared norm of its features is 1, and leaves a plain network.
    """

    learning_rate: float = 0.01
    batch_size: int = 128
    patience: int = 3
    max_epochs: int = 100
    reduction: Reduction = "sum"
    normalize: Literal["forward", "absorb"] = "forward"

    def __post_init__(self) -> None:
        require_positive(learning_rate=self.learning_rate)
        require_count(1, batch_size=self.batch_size, patience=self.patience)
        require_count(0, max_epochs=self.max_epochs)
        require_choice(("sum", "mean"), reduction=self.reduction)
        require_choice(("forward", "absorb"), normalize=self.normalize)


@dataclass(frozen=True)
class FeatureMaximization:
    """A network trained layer by layer, and its validation losses.

    Args:
        network: the trained network, with its normalisations.
        losses: layer -> validation loss before training and after each epoch; hidden layers have
            the pair loss, the last one cross-entropy. The weights kept are those of the minimum.
    """

    network: nn.Sequential
    losses: dict[str, list[float]]


def layerwise_feature_maximization(
    model: nn.Sequential,
    data: Labelled,
    validation: Labelled,
    recipe: FeatureMaximizationRecipe | None = None,
    *,
    generator: torch.Generator | None = None,
) -> FeatureMaximization:
    r"""Train a fully connected network one layer at a time, without signals from the layers above.

    Each hidden layer in turn minimises :func:`feature_pair_loss` of its activations over
    mini-batches, given normalised inputs, until the validation loss has not fallen for some epochs;
    the best weights come back. Then the last layer alone is trained with cross-entropy.

    Args:
        model: linear layers, each but the last followed by an activation, e.g.
            ``Linear, LeakyReLU, ..., Linear``; it is not changed.
        data: training inputs and labels. Inputs have unit norm; ``normalize="forward"`` sees to it.
        validation: inputs and labels that decide when a layer stops.
        recipe: optimiser and stopping; by default Adam at 0.01, batches of 128, patience 3.
        generator: source of the order of examples.

    Raises:
        ShapeError: If the model has no hidden layer, or is not a sequence of layers.
        DomainError: If labels are no classes, or ``"absorb"`` meets inputs of other norms.

    Warns:
        UserWarning: If features of an example are all zero; they stay zero.

    Examples:
        >>> from theodolite.interventions import initialize_
        >>> x, y = torch.eye(4).repeat(8, 1), torch.tensor([0, 0, 1, 1]).repeat(8)
        >>> recipe = FeatureMaximizationRecipe(max_epochs=5)
        >>> layers = {"fc1": nn.Linear(4, 8), "act1": nn.LeakyReLU(), "fc2": nn.Linear(8, 2)}
        >>> net = initialize_(nn.Sequential(OrderedDict(layers)), generator=torch.manual_seed(0))
        >>> result = layerwise_feature_maximization(net, (x, y), (x, y), recipe)
        >>> result.losses["fc1"][0] > min(result.losses["fc1"])
        True

    References:
        [lou2022], appendix on layer-wise feature maximisation (figures 16, 17). Differs from
        paper: batch size, patience and how to normalise a layer are not given there.
    """
    recipe = recipe or FeatureMaximizationRecipe()
    stages = _stages(deepcopy(model))
    train, held_out = _prepared(data, stages, recipe), _prepared(validation, stages, recipe)
    losses: dict[str, list[float]] = {}
    names = list(stages)[1:]
    for name in names[:-1]:
        fit = _Fit(recipe, lambda z, y: _pair_loss(z, y, recipe.reduction), generator)
        losses[name] = fit.run(stages[name], train, held_out)
        train, held_out = _pass_on(name, stages[name], train, held_out, recipe)
    fit = _Fit(recipe, functional.cross_entropy, generator)
    losses[names[-1]] = fit.run(stages[names[-1]], train, held_out)
    return FeatureMaximization(_assembled(stages, recipe), losses)


_START = ""  # no module of a network has this name


def _stages(model: nn.Sequential) -> dict[str, nn.Sequential]:
    """Modules before the first linear layer, then each linear layer with those after it."""
    stages: dict[str, nn.Sequential] = {_START: nn.Sequential()}
    current = _START
    for name, module in model.named_children():
        if not is_matrix_layer(module) and next(module.parameters(), None) is not None:
            raise ShapeError(
                f"model: expected linear layers and activations, got {name!r}, a "
                f"{type(module).__name__} with parameters; use Linear and LeakyReLU"
            )
        if is_matrix_layer(module):
            current = name
            stages[name] = nn.Sequential()
        stages[current].add_module(name, module)
    if len(stages) < 3:
        raise ShapeError(
            "model: expected at least one hidden layer and a last one in an nn.Sequential, got "
            f"{len(stages) - 1} linear layers; use nn.Sequential(Linear, LeakyReLU, Linear)"
        )
    return stages


def _prepared(
    data: Labelled, stages: dict[str, nn.Sequential], recipe: FeatureMaximizationRecipe
) -> Labelled:
    weight = next(stages[list(stages)[1]].parameters())
    x, y = data[0].to(weight), data[1].to(weight.device)
    require_same_length(inputs=x, labels=y)
    require_finite(inputs=x)
    require_labels(y)
    rows = stages[_START](x).flatten(1)
    if recipe.normalize == "forward":
        return UnitNorm()(rows), y
    norms = torch.linalg.vector_norm(rows, dim=1)
    if (norms - 1).abs().max() > 1e-3:
        raise DomainError(
            "data: expected inputs of unit norm, got norms from "
            f"{norms.min().item():.4g} to {norms.max().item():.4g}; divide each by its norm"
        )
    return rows, y


@dataclass(frozen=True)
class _Fit:
    """Adam on one layer until its validation loss stops falling."""

    recipe: FeatureMaximizationRecipe
    loss: Callable[[Tensor, Tensor], Tensor]
    generator: torch.Generator | None

    def run(self, layer: nn.Sequential, train: Labelled, held_out: Labelled) -> list[float]:
        optimizer = torch.optim.Adam(layer.parameters(), lr=self.recipe.learning_rate)
        best, curve = deepcopy(layer.state_dict()), [self.value(layer, held_out)]
        for _epoch in range(self.recipe.max_epochs):
            self.epoch(layer, optimizer, train)
            curve.append(self.value(layer, held_out))
            lowest = min(range(len(curve)), key=curve.__getitem__)
            if lowest == len(curve) - 1:
                best = deepcopy(layer.state_dict())
            if len(curve) - 1 - lowest >= self.recipe.patience:
                break
        layer.load_state_dict(best)
        return curve

    def epoch(self, layer: nn.Sequential, optimizer: torch.optim.Optimizer, data: Labelled) -> None:
        x, y = data
        order = torch.randperm(len(x), generator=self.generator).to(x.device)
        for batch in torch.split(order, self.recipe.batch_size):
            optimizer.zero_grad()
            torch.autograd.backward(self.loss(layer(x[batch]), y[batch]))
            optimizer.step()

    def value(self, layer: nn.Sequential, data: Labelled) -> float:
        """The same loss, averaged over batches in fixed order."""
        size = self.recipe.batch_size
        with torch.no_grad():
            parts = zip(*(torch.split(part, size) for part in data), strict=True)
            values = [self.loss(layer(x), y) for x, y in parts]
        return float(torch.stack(values).double().mean())


def _pass_on(
    name: str,
    layer: nn.Sequential,
    train: Labelled,
    held_out: Labelled,
    recipe: FeatureMaximizationRecipe,
) -> tuple[Labelled, Labelled]:
    """Inputs of the next layer: features divided by their norm, or by one number for all."""
    with torch.no_grad():
        features = layer(train[0])
        silent = int((features == 0).all(1).sum())
        if silent:
            warn(f"features of {silent} examples are zero after layer {name!r}", stacklevel=3)
        if recipe.normalize == "forward":
            normalize = UnitNorm()
            return (normalize(features), train[1]), (normalize(layer(held_out[0])), held_out[1])
        _absorb_(layer, features)
        return (layer(train[0]), train[1]), (layer(held_out[0]), held_out[1])


def _absorb_(layer: nn.Sequential, features: Tensor) -> None:
    mean_square = features.square().sum(1).mean()
    if mean_square == 0:
        return
    for parameter in layer.parameters():
        parameter.div_(mean_square.sqrt())


def _assembled(
    stages: dict[str, nn.Sequential], recipe: FeatureMaximizationRecipe
) -> nn.Sequential:
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for index, stage in enumerate(stages.values()):
        parts.update(stage.named_children())
        if recipe.normalize == "forward" and index < len(stages) - 1:
            parts[f"norm{index}"] = UnitNorm()
    return nn.Sequential(parts)
