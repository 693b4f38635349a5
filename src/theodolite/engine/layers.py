"""Selection of layers by name, pattern, list or predicate, and ownership of parameters.

A layer is a name of ``named_modules()``. It owns every trainable parameter below it. A tensor with
several names belongs to the first.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor, nn

from theodolite.engine.calls import CannotSplitError
from theodolite.errors import DomainError, DtypeError, UnknownNameError

Layers = str | Iterable[str] | Mapping[str, Iterable[str]] | Callable[[str, nn.Module], bool]
Parameters = str | Iterable[str] | Callable[[str, nn.Parameter], bool] | None
T = TypeVar("T")

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def is_matrix(module: nn.Module) -> bool:
    """Linear, convolution, or GPT-2's transposed linear layer, if its weight has real numbers."""
    known = isinstance(module, (nn.Linear, *CONVOLUTIONS)) or is_transposed_linear(module)
    weight = module.weight if known else None
    return isinstance(weight, Tensor) and weight.numel() > 0 and not weight.is_complex()


def is_transposed_linear(module: nn.Module) -> bool:
    """GPT-2's ``Conv1D``, whose weight is (inputs, outputs): one column per neuron."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def unwrap(model: nn.Module) -> nn.Module:
    """The user's module, without wrappers of ``torch.compile`` and data parallelism."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(
            model, (nn.DataParallel, nn.parallel.DistributedDataParallel)
        ):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


@dataclass(frozen=True)
class Ownership:
    """The trainable parameters of a model and the layers that own them.

    Args:
        parameters: First name -> parameter, in order of registration, each tensor once.
        layers: Layer -> names of the parameters that it owns.
        shared: Name of a parameter -> its other names, for tensors with several names.
        trained: All trainable parameters, selected or not.
    """

    parameters: dict[str, nn.Parameter]
    layers: dict[str, tuple[str, ...]]
    shared: dict[str, tuple[str, ...]]
    trained: tuple[nn.Parameter, ...] = ()


def own_parameters(model: nn.Module, layers: Layers = "*", params: Parameters = None) -> Ownership:
    """Select layers that own trainable parameters.

    Args:
        model: The model, unwrapped.
        layers: See :func:`select_layers`, except that ``"*"`` selects every layer at any depth with
            its own parameters. A mapping names the parameters of each layer.
        params: The trainable parameters to include: a pattern, names, or a predicate of (name,
            parameter); None includes all. In a pattern ``*`` matches one component of the dotted
            name, or any number of components if nothing matches otherwise.

    Raises:
        DomainError: If nothing is trainable, nothing is left after the selection, or weights were
            made in inference mode.
        UnknownNameError: If a name does not exist.
    """
    names: dict[int, list[str]] = {}
    tensors: dict[int, nn.Parameter] = {}
    named = list(model.named_parameters(remove_duplicate=False))
    for name, parameter in named:
        if parameter.requires_grad:
            names.setdefault(id(parameter), []).append(name)
            tensors[id(parameter)] = parameter
    first = {aliases[0]: tensors[key] for key, aliases in names.items()}
    if not named:
        raise DomainError(
            "model: expected parameters, got none; tangent features are gradients with respect "
            "to parameters"
        )
    if not first:
        raise DomainError(
            "model: expected trainable parameters, got none; unfreeze some with "
            "requires_grad_(True), tangent features are gradients with respect to them"
        )
    if any(parameter.is_inference() for parameter in first.values()):
        raise DomainError(
            "model: expected weights that take gradients, got some made in torch.inference_mode(); "
            "make or load the model outside it"
        )
    chosen = _chosen_parameters(first, params)
    shared = {
        aliases[0]: tuple(aliases[1:])
        for aliases in names.values()
        if len(aliases) > 1 and aliases[0] in chosen
    }
    owned = _owned(model, layers, chosen)
    return Ownership(chosen, owned, shared, tuple(first.values()))


@contextmanager
def only_trainable(model: nn.Module, params: Parameters) -> Iterator[None]:
    """Run a block in which only these parameters are trainable; None changes nothing.

    Raises:
        DomainError: If nothing is trainable, or nothing is left after the selection.
        UnknownNameError: If a name does not exist.
    """
    if params is None:
        yield
        return
    kept = {id(value) for value in own_parameters(model, "*", params).parameters.values()}
    frozen = [p for p in model.parameters() if p.requires_grad and id(p) not in kept]
    try:
        for parameter in frozen:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)


def require_real(ownership: Ownership) -> None:
    """Check that all parameters are real."""
    for name, parameter in ownership.parameters.items():
        if parameter.is_complex():
            raise CannotSplitError(
                f"parameter {name!r} is complex, its gradients are pairs of numbers"
            )


def _owned(
    model: nn.Module, layers: Layers, chosen: dict[str, nn.Parameter]
) -> dict[str, tuple[str, ...]]:
    if isinstance(layers, Mapping):
        owners = dict.fromkeys(layers)
        owned = {
            layer: tuple(name for name in chosen if name in set(_patterns(layers=names)))
            for layer, names in layers.items()
        }
    else:
        owners = (
            dict.fromkeys(owner_of(name) for name in chosen)
            if isinstance(layers, str) and layers == "*"
            else dict.fromkeys(select_layers(model, layers))
        )
        below: dict[str, list[str]] = {layer: [] for layer in owners}
        for name in chosen:
            for layer in _ancestors(name):
                if layer in below:
                    below[layer].append(name)
        owned = {layer: tuple(names) for layer, names in below.items()}
    kept = {layer: names for layer, names in owned.items() if names}
    if not kept:
        raise DomainError(
            f"layers: expected at least one layer that owns trainable parameters, got "
            f"{list(owners)}; tied tensors belong to the first layer that names them"
        )
    return kept


def owner_of(parameter: str) -> str:
    """The layer of a parameter; the original of a re-parametrised weight belongs to its layer."""
    module = parameter.rpartition(".")[0]
    return module.partition("parametrizations.")[0].rstrip(".")


def _ancestors(name: str) -> Iterator[str]:
    """All modules that contain the module with this name, from the model itself."""
    yield ""
    for place, letter in enumerate(name):
        if letter == ".":
            yield name[:place]


def _chosen_parameters(
    first: dict[str, nn.Parameter], params: Parameters
) -> dict[str, nn.Parameter]:
    if params is None:
        return first
    if callable(params) and not isinstance(params, type):
        chosen = {name: value for name, value in first.items() if params(name, value)}
    else:
        patterns = _patterns(params=params)
        matched = {name for pattern in patterns for name in _matches("parameter", pattern, first)}
        chosen = {name: value for name, value in first.items() if name in matched}
    if not chosen:
        raise DomainError(
            f"params: expected a pattern that selects at least one parameter, got {params!r}, "
            "which selects none"
        )
    return chosen


class LayerMapping(Mapping[str, T]):
    """Layer -> its result, in order; an unknown name gives an error with the nearest names.

    Subclasses have the mapping in ``layers``.
    """

    layers: Any  # Mapping[str, T]; a field or a property

    def __getitem__(self, layer: str) -> T:
        if not isinstance(layer, str) or layer not in self.layers:
            raise UnknownNameError("layer", layer, self.layers)
        found: T = self.layers[layer]
        return found

    def __contains__(self, layer: object) -> bool:
        return layer in self.layers

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def get(self, layer: str, default: Any = None) -> Any:
        """The result of a layer, or the default."""
        return self.layers.get(layer, default)


def layers_text(names: Iterable[str]) -> str:
    """Number and names of layers; of many layers the first and the last three."""
    known = list(names)
    shown = known if len(known) <= 6 else [*known[:3], "...", *known[-3:]]
    return f"{len(known)} layers: {', '.join(shown)}"


def select_layers(model: nn.Module, layers: Layers) -> list[str]:
    """Names of modules, in order of registration.

    Args:
        model: The model, unwrapped.
        layers: A name, a pattern, several of these, or a predicate of (name, module). In a pattern
            ``*`` matches one component of the dotted name and ``**`` any number of components.
            ``""`` is the model itself, ``"*"`` its children. (In :func:`own_parameters` ``"*"`` is
            every layer with its own parameters.)

    Raises:
        UnknownNameError: If a name or pattern matches nothing; the message has the nearest names.
    """
    modules = dict(model.named_modules())
    if callable(layers) and not isinstance(layers, type):
        found = {name for name, module in modules.items() if layers(name, module)}
        if not found:
            raise DomainError("layers: expected the predicate to accept at least one module")
    else:
        patterns = _patterns(layers=layers)
        found = {name for pattern in patterns for name in _matches("layer", pattern, modules)}
        if not found:
            raise DomainError("layers: expected at least one name or pattern, got none")
    return [name for name in modules if name in found]


def _patterns(**given: Any) -> list[str]:
    """Names or patterns as a list."""
    ((option, value),) = given.items()
    patterns = [value] if isinstance(value, str) or not isinstance(value, Iterable) else [*value]
    for pattern in patterns:
        if not isinstance(pattern, str):
            shown = pattern.__name__ if isinstance(pattern, type) else repr(pattern)
            raise DtypeError(
                f"{option}: expected names or patterns as text, or a predicate, got {shown}"
            )
    return patterns


def _matches(kind: str, pattern: str, known: Iterable[str]) -> list[str]:
    names = list(known)
    if pattern in names:
        return [pattern]
    expression = re.compile(_expression(pattern))
    matched = [name for name in names if name and expression.fullmatch(name)]
    if not matched and kind == "parameter":  # "*lora*" rarely means one component
        across = re.compile(_expression(pattern.replace("**", "*").replace("*", "**")))
        matched = [name for name in names if across.fullmatch(name)]
    if not matched:
        raise UnknownNameError(kind, pattern, names)
    return matched


def _expression(pattern: str) -> str:
    """A pattern as a regular expression: ``**`` crosses dots, ``*`` and ``?`` do not."""
    parts = re.split(r"(\*\*|\*|\?)", pattern)
    wild = {"**": ".*", "*": "[^.]*", "?": "[^.]"}
    return "".join(wild.get(part, re.escape(part)) for part in parts)
