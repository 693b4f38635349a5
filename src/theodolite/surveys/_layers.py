"""Which layers a survey shows: blocks and layers with weight matrices, in order of execution."""

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from theodolite.engine import tensors_in
from theodolite.engine.batches import Batch
from theodolite.engine.hooks import first_tensor
from theodolite.engine.layers import Layers, select_layers
from theodolite.engine.readouts import Readout, read_outputs, resolve_readout
from theodolite.errors import DomainError, ShapeError
from theodolite.surveys._footprint import Footprint, footprint_of

__all__ = ["Layer", "Layout", "survey_layers"]

Shape = tuple[int, ...] | None

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_TRIAL = 3  # examples; two could be taken for the length of a sequence of two


@dataclass(frozen=True)
class Layer:
    """One row of a survey.

    Args:
        index: its number, in order of execution.
        name: of ``named_modules()``.
        type: name of its class.
        role: "block" or "layer".
        parent: the block that it is part of.
        parameters: trainable numbers below it.
        shape: of its output for one example; None if it gives none per example.
        input_shape: of its first input for one example; None if it takes none per example.
    """

    index: int
    name: str
    type: str
    role: str
    parent: str | None
    parameters: int
    shape: tuple[int, ...] | None
    input_shape: tuple[int, ...] | None = None

    @property
    def width(self) -> int:
        """Numbers that it gives for one example; 0 if it gives none."""
        return 0 if self.shape is None else torch.Size(self.shape).numel()

    def describe(self) -> dict[str, Any]:
        """Plain data for the record."""
        shape = None if self.shape is None else list(self.shape)
        width = None if self.shape is None else self.width
        kept = (key for key in vars(self) if not key.endswith("shape"))
        described = {key: getattr(self, key) for key in kept}
        return {**described, "output_shape": shape, "width": width}


@dataclass(frozen=True)
class Layout:
    """The layers of a model, and the shape of what it gives."""

    layers: tuple[Layer, ...]
    outputs: int | None  # columns after the readout; None if it does not give (n, c)
    problem: str | None = None  # why there are none
    footprint: Footprint = field(default_factory=Footprint)  # of a pass of a few examples
    fed: frozenset[str] = frozenset()  # layers whose input is the data itself, whatever the weights

    def with_features(self) -> list[str]:
        """Layers that give one row per example."""
        return [layer.name for layer in self.layers if layer.shape is not None]

    def __getitem__(self, name: str) -> Layer:
        return next(layer for layer in self.layers if layer.name == name)


def survey_layers(
    model: nn.Module,
    batch: Batch,
    layers: Layers | None,
    readout: str | Readout | None,
    most: int = 40,
) -> Layout:
    """Choose layers and run a few examples through the model to see when each is called.

    With more than ``most`` of them, layers inside blocks are left out.

    Raises:
        DomainError: If no layer has parameters.
        UnknownNameError: If a name does not exist.
    """
    blocks = _blocks(model)
    names = _default(model, blocks, most) if layers is None else _selected(model, layers)
    trial = batch.take(slice(0, min(_TRIAL, len(batch))))
    with torch.no_grad(), footprint_of(len(trial)) as footprint:
        output, shapes, fed = _trial(model, trial, names)
    ran = [*shapes, *(name for name in names if name not in shapes and layers is not None)]
    found = tuple(
        _layer(model, index, name, blocks, shapes.get(name, (None, None)))
        for index, name in enumerate(ran)
    )
    if not found:
        raise DomainError("layers: expected layers that run in the forward pass, got none")
    try:
        outputs = read_outputs(output, trial, resolve_readout(readout)).shape[1]
    except (ShapeError, TypeError) as error:
        return Layout(found, None, str(error), footprint, fed)
    return Layout(found, int(outputs), None, footprint, fed)


def _trial(
    model: nn.Module, batch: Batch, names: list[str]
) -> tuple[Any, dict[str, tuple[Shape, Shape]], frozenset[str]]:
    """What the model gives; shapes of what its layers take and give, in order of execution.

    Also the layers that take the data as they are: views of it that nothing has written to.
    """
    shapes: dict[str, tuple[Shape, Shape]] = {}
    takes: dict[str, list[bool]] = {name: [] for name in names}
    given = {_identity(tensor) for tensor in tensors_in((batch.args, dict(batch.kwargs)))}

    def hook_for(name: str) -> Any:
        def hook(_module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            inputs = [*args, *kwargs.values()]
            shapes[name] = (_shape(output, len(batch)), _shape(inputs, len(batch)))
            taken = {_identity(tensor) for tensor in tensors_in(inputs)}
            takes[name].append(None not in taken and taken <= given)

        return hook

    with ExitStack() as hooks:
        for name in names:
            module = model.get_submodule(name)
            handle = module.register_forward_hook(hook_for(name), with_kwargs=True)
            hooks.callback(handle.remove)
        output = batch.run(model)
    return output, shapes, frozenset(name for name, fed in takes.items() if fed and all(fed))


def _identity(tensor: torch.Tensor) -> tuple[int, int, int] | None:
    """The same for views of one tensor that keep all its numbers, until it is written to.

    None where that cannot be seen.
    """
    if tensor.is_nested or tensor.layout != torch.strided or tensor.is_inference():
        return None
    return tensor.untyped_storage().data_ptr(), tensor.numel(), tensor._version


def _shape(output: Any, count: int) -> Shape:
    """Shape for one example; None if there is not one row for each."""
    try:
        tensor = first_tensor(output, "output")
    except ShapeError:
        return None
    if tensor.is_nested or tensor.ndim == 0 or len(tensor) != count:
        return None
    return tuple(tensor.shape[1:])


def _selected(model: nn.Module, layers: Layers) -> list[str]:
    if layers == "*":
        owners = dict.fromkeys(_owner(name) for name, _ in model.named_parameters())
        return list(owners)
    return select_layers(model, layers)


def _owner(parameter: str) -> str:
    return parameter.rpartition(".")[0].partition("parametrizations.")[0].rstrip(".")


def _default(model: nn.Module, blocks: list[str], most: int) -> list[str]:
    matrices = dict.fromkeys(
        _owner(name) for name, parameter in model.named_parameters() if parameter.ndim >= 2
    )
    every = matrices or dict.fromkeys(_owner(name) for name, _ in model.named_parameters())
    if not every:
        raise DomainError(
            "model: expected layers with parameters, got none; pass layers= to choose others"
        )
    leaves = [name for name in every if name] or list(every)
    outside = [name for name in leaves if _enclosing(name, blocks) is None]
    if len(leaves) + len(blocks) > most and blocks:
        return [*blocks, *outside]
    return [*blocks, *leaves]


def _blocks(model: nn.Module) -> list[str]:
    """Outermost modules with several matrices that stand in a container or have equals."""
    modules = dict(model.named_modules())
    matrices = [name for name, parameter in model.named_parameters() if parameter.ndim >= 2]

    def composite(name: str, module: nn.Module) -> bool:
        inside = sum(matrix.startswith(name + ".") for matrix in matrices)
        direct = {_owner(matrix) for matrix in matrices if matrix.startswith(name + ".")}
        return type(module) not in _CONTAINERS and inside >= 2 and direct != {name}

    candidates = {name: m for name, m in modules.items() if name and composite(name, m)}
    kinds = Counter(type(module) for module in candidates.values())
    blocks: list[str] = []
    for name, module in candidates.items():
        listed = isinstance(modules[name.rpartition(".")[0]], _CONTAINERS)
        inside = _enclosing(name, blocks) is not None
        if not inside and (listed or kinds[type(module)] > 1):
            blocks.append(name)
    return blocks


def _enclosing(name: str, blocks: list[str]) -> str | None:
    return next((block for block in blocks if name.startswith(block + ".")), None)


def _layer(
    model: nn.Module,
    index: int,
    name: str,
    blocks: list[str],
    shapes: tuple[Shape, Shape],
) -> Layer:
    module = model.get_submodule(name)
    trainable = sum(p.numel() for p in module.parameters() if p.requires_grad)
    role = "block" if name in blocks else "layer"
    kind = type(module).__name__.removeprefix("Parametrized")
    return Layer(index, name, kind, role, _enclosing(name, blocks), trainable, *shapes)
