"""One step of training: PyTorch's optimizers with a rate per layer, and the step itself.

Small networks on a GPU spend their time launching kernels. After a few ordinary steps one step is
recorded as a CUDA graph for each size of batch. Later steps launch this graph.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from theodolite.engine.layers import select_layers
from theodolite.errors import DomainError
from theodolite_papers.lab.training.recipe import Recipe

__all__ = ["Stepper", "build_optimizer", "frozen", "own_stream", "parameter_rates", "set_rates"]

_WARM_UP = 3  # libraries set themselves up in the first steps, which cannot be recorded


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


@dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    arguments: tuple[Tensor, ...]
    losses: Tensor

    def replay(self, arguments: tuple[Tensor, ...]) -> Tensor:
        for ours, given in zip(self.arguments, arguments, strict=True):
            ours.copy_(given)
        self.graph.replay()
        return self.losses


class Stepper:
    """Calls ``losses(*arguments)``, differentiates the sum, and updates.

    Args:
        losses: mean loss of the batch that the arguments describe, or one per network of an
            ensemble. Arguments of equal size have equal shapes.
        optimizer: over the parameters that ``losses`` uses.
        graphs: whether to record steps; only on a GPU.
    """

    def __init__(
        self,
        losses: Callable[..., Tensor],
        optimizer: torch.optim.Optimizer,
        graphs: bool,
    ) -> None:
        self._losses, self._optimizer, self._graphs = losses, optimizer, graphs
        self._seen: Counter[int] = Counter()
        self._recordings: dict[int, _Recording] = {}

    def __call__(self, *arguments: Tensor) -> Tensor:
        """Do one step; the losses before it, which the next call may overwrite."""
        size = arguments[-1].numel()
        if not (self._graphs and arguments[0].is_cuda):
            return self._eager(arguments)
        self._seen[size] += 1
        if self._seen[size] <= _WARM_UP:
            return self._eager(arguments)
        if size not in self._recordings and not self._record(arguments):
            return self._eager(arguments)
        return self._recordings[size].replay(arguments)

    def _eager(self, arguments: tuple[Tensor, ...]) -> Tensor:
        self._optimizer.zero_grad(set_to_none=True)
        losses = self._losses(*arguments)
        (losses.sum() if losses.ndim else losses).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return losses.detach()

    def _record(self, arguments: tuple[Tensor, ...]) -> bool:
        """Record a step without doing it; False where the network cannot be recorded."""
        graph = torch.cuda.CUDAGraph()
        arguments = tuple(argument.clone() for argument in arguments)
        self._optimizer.zero_grad(set_to_none=True)
        try:
            with torch.cuda.graph(graph):
                losses = self._eager(arguments)
        except RuntimeError as error:
            self._graphs = False
            first = str(error).partition("\n")[0]
            warnings.warn(
                f"this network cannot be recorded as a CUDA graph ({first}), so steps run one "
                "kernel at a time; pass Recipe(graphs=False) to avoid this warning",
                stacklevel=2,
            )
            return False
        self._recordings[arguments[-1].numel()] = _Recording(graph, arguments, losses)
        return True


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """On a GPU run the block on a separate stream, which recording needs."""
    if device.type != "cuda":
        yield
        return
    outer = torch.cuda.current_stream(device)
    inner = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    inner.wait_stream(outer)
    try:
        with torch.cuda.device(device), torch.cuda.stream(inner):
            yield
    finally:
        outer.wait_stream(inner)
