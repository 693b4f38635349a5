"""PyTorch's optimizers with one learning rate per layer, and their schedule."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from theodolite.engine.layers import select_layers
from theodolite.errors import DomainError
from theodolite_papers.lab.training.recipe import Recipe

__all__ = ["build_optimizer", "frozen", "parameter_rates", "set_rates"]


def parameter_rates(model: nn.Module, recipe: Recipe) -> dict[str, float]:
    """Learning rate of every trainable parameter; the last matching pattern decides.

    Raises:
        UnknownNameError: If a pattern of ``layer_rates`` matches no layer.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Linear(3, 1, bias=False))
        >>> parameter_rates(net, Recipe(learning_rate=0.1, layer_rates={"0": 0.0}, epochs=1))
        {'0.weight': 0.0, '1.weight': 0.1}
    """
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    rates = dict.fromkeys(names, recipe.learning_rate)
    for pattern, rate in recipe.layer_rates.items():
        for layer in select_layers(model, pattern):
            inside = [name for name in names if layer == "" or name.startswith(layer + ".")]
            rates.update(dict.fromkeys(inside, rate))
    if not any(rates.values()):
        raise DomainError("layer_rates: expected at least one layer that is trained, got none")
    return rates


@contextmanager
def frozen(model: nn.Module, rates: Mapping[str, float]) -> Iterator[None]:
    """Parameters with rate 0 need no gradients inside the block."""
    still = [p for name, p in model.named_parameters() if rates.get(name) == 0]
    for parameter in still:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in still:
            parameter.requires_grad_(True)


def build_optimizer(
    parameters: Iterable[tuple[str, Tensor]], rates: Mapping[str, float], recipe: Recipe
) -> torch.optim.Optimizer:
    """The recipe's optimizer over all parameters with a positive rate, grouped by rate.

    On a GPU the rates are tensors there, which a recorded step reads anew at every replay.
    """
    groups: dict[float, list[Tensor]] = {}
    for name, parameter in parameters:
        if rates.get(name, 0.0) > 0:
            groups.setdefault(rates[name], []).append(parameter)
    device = next(iter(groups.values()))[0].device
    cuda = device.type == "cuda"
    settings: list[dict[str, Any]] = [
        {"params": members, "lr": torch.tensor(rate, device=device) if cuda else rate, "base": rate}
        for rate, members in groups.items()
    ]
    decay = recipe.weight_decay
    if recipe.optimizer == "adam":
        return torch.optim.Adam(settings, weight_decay=decay, fused=cuda or None, capturable=cuda)
    if recipe.optimizer == "rmsprop":
        return torch.optim.RMSprop(settings, weight_decay=decay, capturable=cuda)
    momentum = 0.0 if recipe.optimizer == "sgd" else recipe.momentum
    return torch.optim.SGD(
        settings,
        momentum=momentum,
        nesterov=recipe.optimizer == "nesterov" and momentum > 0,
        weight_decay=decay,
        fused=cuda or None,
    )


def set_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Multiply every group's own rate by the schedule's factor."""
    for group in optimizer.param_groups:
        rate = group["base"] * factor
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
