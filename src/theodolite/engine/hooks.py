"""Inputs and outputs of layers, caught while the model runs; no hook outlives the block.

What is kept is reduced (by default: copied) inside the hook. A later in-place operation, such as
``nn.ReLU(inplace=True)`` after a convolution, would otherwise overwrite it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from theodolite.errors import ShapeError, UnknownNameError

__all__ = [
    "capture_inputs",
    "capture_outputs",
    "first_tensor",
]

Reduce = Callable[[str, Tensor], Tensor]

# Where model outputs of transformers keep what the next layer sees.
_FIRST_KEYS = ("last_hidden_state", "hidden_states", "logits")


def first_tensor(value: Any, where: str) -> Tensor:
    """The tensor in a layer's input or output: itself, or the first of a tuple or mapping.

    Raises:
        ShapeError: If there is none.
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        keys = [key for key in _FIRST_KEYS if isinstance(value.get(key), Tensor)]
        value = [value[key] for key in keys] or list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            if isinstance(item, Tensor) or (isinstance(item, (list, tuple, Mapping)) and item):
                return first_tensor(item, where)
    raise ShapeError(
        f"{where}: expected a tensor, or a tuple or mapping that holds one, got "
        f"{type(value).__name__}; leave this layer out, or measure the layer inside it"
    )


@contextmanager
def capture_outputs(
    model: nn.Module, layers: Sequence[str], reduce: Reduce | None = None
) -> Iterator[dict[str, list[Tensor]]]:
    """Collect the outputs of named layers while the block runs.

    Each call of a layer appends one tensor, so a layer used twice in one forward pass gives two.
    All hooks are gone when the block ends, also after an error.

    Args:
        model: any module.
        layers: names of ``model.named_modules()``.
        reduce: (name, output) -> what is kept, called at once; by default a detached copy.

    Raises:
        UnknownNameError: If a name is not a module of the model.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(inplace=True))
        >>> with capture_outputs(model, ["0"]) as outputs:
        ...     _ = model(torch.ones(4, 2))
        >>> outputs["0"][0].shape
        torch.Size([4, 3])
    """
    keep = reduce or _copy
    kept: dict[str, list[Tensor]] = {name: [] for name in layers}

    def hook_for(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            kept[name].append(keep(name, first_tensor(output, f"output of layer {name!r}")))

        return hook

    with ExitStack() as hooks:
        for name, module in _find(model, layers):
            hooks.callback(module.register_forward_hook(hook_for(name)).remove)
        yield kept


@contextmanager
def capture_inputs(
    model: nn.Module, layers: Sequence[str], reduce: Reduce | None = None
) -> Iterator[dict[str, list[Tensor]]]:
    """Collect the first input of named layers while the block runs; see :func:`capture_outputs`."""
    keep = reduce or _copy
    kept: dict[str, list[Tensor]] = {name: [] for name in layers}

    def hook_for(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_module: nn.Module, args: Any, kwargs: Any) -> None:
            value = first_tensor([*args, *kwargs.values()], f"input of layer {name!r}")
            kept[name].append(keep(name, value))

        return hook

    with ExitStack() as hooks:
        for name, module in _find(model, layers):
            handle = module.register_forward_pre_hook(hook_for(name), with_kwargs=True)
            hooks.callback(handle.remove)
        yield kept


def _copy(_name: str, tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _find(model: nn.Module, layers: Sequence[str]) -> list[tuple[str, nn.Module]]:
    modules = dict(model.named_modules(remove_duplicate=False))
    for name in layers:
        if name not in modules:
            raise UnknownNameError("layer", name, modules)
    return [(name, modules[name]) for name in layers]
