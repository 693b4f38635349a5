"""The layers that a survey shows, in order of execution; each parameter belongs to one."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from theodolite.advice.reasons import Reason, failure
from theodolite.engine import (
    AtPositions,
    Batch,
    Layers,
    Pool,
    Read,
    Readout,
    ReadPoint,
    first_tensor,
    follow_layers,
    gives_channels_first,
    has_storage,
    pooled,
    read_outputs,
    resolve_readout,
    select_layers,
    tensors_in,
)
from theodolite.errors import DomainError, ShapeError

Shape = tuple[int, ...] | None

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_TRIAL = 3  # examples; two examples could be confused with a sequence of two


@dataclass(frozen=True)
class Layer:
    """One layer of a survey.

    Args:
        index: number of the layer, in order of execution.
        name: name in ``named_modules()``.
        type: name of its class.
        role: "layer"; "block", which stands for the layers inside it; or "parameters", those that
            a module has outside the layers inside it.
        parent: the shown layer that contains it, if the user named containers.
        parameters: number of its trainable parameters.
        owned: names of its parameters.
        shape: shape of its features for one example; None if it has none per example, or the same
            features as the layer before it.
        input_shape: shape of its first input for one example; None if it has none per example.
        point: the place where its features are read.
        features: number of its features after pooling of positions; 0 if there are none.
        read_at: that place in words.
    """

    index: int
    name: str
    type: str
    role: str
    parent: str | None
    parameters: int
    owned: tuple[str, ...]
    shape: Shape
    input_shape: Shape = None
    point: ReadPoint = field(default_factory=ReadPoint)
    features: int = 0
    read_at: str = ""

    @property
    def width(self) -> int:
        """Number of features of one example at all positions; 0 if there are none."""
        return 0 if self.shape is None else torch.Size(self.shape).numel()

    def describe(self) -> dict[str, Any]:
        """The layer as plain data for the record."""
        known = {
            key: getattr(self, key)
            for key in ("index", "name", "type", "role", "parent", "parameters")
        }
        shape = None if self.shape is None else list(self.shape)
        width = None if self.shape is None else self.features
        read_at = None if self.shape is None else self.read_at
        return known | {"output_shape": shape, "width": width, "read_at": read_at}


@dataclass
class Footprint:
    """Memory and work of one forward pass over some examples, counted operation by operation.

    Args:
        examples: number of examples.
        largest: bytes of the largest result of an operation.
        total: bytes of all results; a backward pass needs at most this.
        products: multiply-adds.
    """

    examples: int = 1
    largest: int = 0
    total: int = 0
    products: int = 0

    def per_example(self, number: int) -> int:
        """A count divided among the examples, rounded up."""
        return -(-number // self.examples)


@dataclass(frozen=True)
class Layout:
    """The layers of a model, and the findings of a pass over a few examples.

    Args:
        layers: the layers, in order of execution.
        outputs: number of columns after the readout; None if the model does not give (n, c).
        problem: why there are no outputs.
        footprint: memory and work of the pass.
        fed: layers whose input is the data itself, for any weights.
        sample: outputs of the model in that pass.
    """

    layers: tuple[Layer, ...]
    outputs: int | None
    problem: Reason | None = None
    footprint: Footprint = field(default_factory=Footprint)
    fed: frozenset[str] = frozenset()
    sample: Tensor | None = None

    def at_positions(self, model: nn.Module, pool: AtPositions, outside: str | None) -> "Layout":
        """The same layers with shapes of single positions; layers without positions have none."""
        layers = []
        for layer in self.layers:
            first = gives_channels_first(model.get_submodule(layer.name))
            other = outside is not None and f"{layer.name}.".startswith(f"{outside}.")
            known = layer.shape is not None and not other
            width = pool.width(layer.shape or (), channels_first=first) if known else None
            shape = None if width is None else (width,)
            layers.append(replace(layer, shape=shape, features=width or 0))
        return replace(self, layers=tuple(layers))

    def with_features(self) -> list[Layer]:
        """Layers that give one row of features per example."""
        return [layer for layer in self.layers if layer.shape is not None]

    def with_parameters(self) -> list[Layer]:
        """Layers that own trainable parameters."""
        return [layer for layer in self.layers if layer.parameters]

    @property
    def raw_input(self) -> Layer:
        """Row 0 of a survey: the inputs as they are, without a network.

        It is called "input", or "raw input" where a layer has that name.
        """
        name, taken = "input", {layer.name for layer in self.layers}
        while name in taken:
            name = f"raw {name}"
        return Layer(-1, name, "input", "input", None, 0, (), None, read_at="inputs")

    def __getitem__(self, name: str) -> Layer:
        return next(layer for layer in self.layers if layer.name == name)


def survey_layers(
    model: nn.Module,
    batch: Batch,
    layers: Layers | None = None,
    *,
    readout: str | Readout | None = None,
    read: Read = "next",
    pool: Pool = "grid",
    most: int = 40,
) -> Layout:
    """Choose layers, and run a few examples through the model to see when each is called.

    By default these are the modules with their own parameters. If they have more than ``most``
    weight matrices, blocks stand for the layers inside them. Parameters of a normalisation belong
    to the layer that it normalises. Parameters of a module that is never called belong to the
    module around it. A container that the user names owns all parameters inside it.

    Raises:
        DomainError: If no layer has parameters.
        UnknownNameError: If a name does not exist.
    """
    each = isinstance(layers, str) and layers == "*"
    by_default = layers is None or each
    blocks = _blocks(model)
    if layers is not None and not each:
        names = select_layers(model, layers)
    elif layers is None and len(_owners(model, matrices=True)) > most:
        outside = [name for name in _owners(model) if _enclosing(name, blocks) is None]
        names = [*blocks, *outside]
    else:
        names = _owners(model)
    if by_default and not names:
        raise DomainError(
            "model: expected layers with parameters, got none; pass layers= to choose others"
        )
    trial = batch.take(slice(0, min(_TRIAL, len(batch))))
    pass_ = _Pass(model, trial, names)
    if by_default:
        hosts = _normalized(model, names, pass_)
        owned = _partition(model, names, pass_, hosts)
    else:
        ran = [name for name in pass_.shapes if name in names]
        ran += [name for name in names if name not in ran]
        owned = {name: _below(model, name) for name in ran}
    if not owned:
        raise DomainError("layers: expected layers that run in the forward pass, got none")
    points = pass_.points if read == "next" else {}
    hidden = _inside_paths(model, points, owned) if by_default else frozenset()
    found = tuple(
        _layer(
            model, index, name, owned, pass_, points, block=name in blocks, hidden=name in hidden
        )
        for index, name in enumerate(owned)
    )
    found = tuple(replace(layer, features=_features(model, layer, pool)) for layer in found)
    problem, sample = None, None
    try:
        sample = read_outputs(pass_.output, trial, resolve_readout(readout))
    except (ShapeError, TypeError) as error:
        problem = failure(error)
    columns = None if sample is None else int(sample.shape[1])
    return Layout(found, columns, problem, pass_.footprint, pass_.fed & set(owned), sample)


class _Pass:
    """A forward pass of a few examples: the modules that run, their inputs and outputs."""

    def __init__(self, model: nn.Module, batch: Batch, names: list[str]) -> None:
        around = {name.rpartition(".")[0] for name in names if name}
        while around - set(names):
            names = [*names, *sorted(around - set(names))]
            around = {name.rpartition(".")[0] for name in around if name}
        self.shapes: dict[str, tuple[Shape, Shape]] = {}  # of output and input, as layers finish
        takes: dict[str, list[bool]] = {name: [] for name in names}
        batch = batch.copied()  # the model may overwrite what it gets
        given = {_identity(tensor) for tensor in tensors_in(batch.inputs)}

        def hook_for(name: str) -> Any:
            def hook(_module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
                inputs = [*args, *kwargs.values()]
                self.shapes[name] = (_shape(output, len(batch)), _shape(inputs, len(batch)))
                taken = {_identity(tensor) for tensor in tensors_in(inputs)}
                takes[name].append(None not in taken and taken <= given)

            return hook

        with ExitStack() as hooks, torch.no_grad():
            self.footprint = hooks.enter_context(count_operations(len(batch)))
            for name in names:
                module = model.get_submodule(name)
                handle = module.register_forward_hook(hook_for(name), with_kwargs=True)
                hooks.callback(handle.remove)
            follower = hooks.enter_context(follow_layers(model, names))
            self.output = model(*batch.args, **batch.kwargs)
        self.count = len(batch)
        self.points = follower.read_points()
        self.used = follower.parameters
        self.fed = frozenset(name for name, fed in takes.items() if fed and all(fed))


def _identity(tensor: Tensor) -> tuple[int, int, int] | None:
    """A common key for views of one tensor that keep all its numbers, until it is changed.

    None if such views cannot be recognised.
    """
    if tensor.is_nested or tensor.layout != torch.strided or tensor.is_inference():
        return None
    if not has_storage(tensor):
        return None
    return tensor.untyped_storage().data_ptr(), tensor.numel(), tensor._version


def _shape(output: Any, count: int) -> Shape:
    """Shape for one example; None unless there is one row for each example."""
    try:
        tensor = first_tensor(output, "output")
    except ShapeError:
        return None
    if tensor.is_nested or tensor.ndim == 0 or len(tensor) != count:
        return None
    return tuple(tensor.shape[1:])


def _features(model: nn.Module, layer: Layer, pool: Pool) -> int:
    """Number of features of a layer after pooling of positions."""
    if layer.shape is None or isinstance(pool, AtPositions):
        return layer.width
    try:
        return pooled(torch.zeros(1, *layer.shape), pool, model.get_submodule(layer.name)).shape[1]
    except (ShapeError, RuntimeError):  # the pass that reads features gives the reason
        return layer.width


def _owner(parameter: str) -> str:
    """The module of a parameter; the original of a re-parametrised weight belongs to its layer."""
    return parameter.rpartition(".")[0].partition("parametrizations.")[0].rstrip(".")


def _owners(model: nn.Module, matrices: bool = False) -> list[str]:
    """Modules with parameters of their own that hold numbers, or with matrices."""
    named = [(name, p) for name, p in model.named_parameters() if p.numel() > 0]
    return list(dict.fromkeys(_owner(name) for name, p in named if p.ndim >= 2 or not matrices))


def _below(model: nn.Module, layer: str) -> tuple[str, ...]:
    return tuple(
        name for name, _ in model.named_parameters() if not layer or name.startswith(layer + ".")
    )


def _normalized(model: nn.Module, names: list[str], pass_: _Pass) -> dict[str, str]:
    """Normalisation -> the layer that it normalises.

    This is the layer after which the norm is read. Otherwise it is the next layer in the same
    module (a norm before attention), the one before it (a norm after a sum), or the nearest layer.
    """
    ran = list(pass_.shapes)

    def points(layer: str) -> tuple[str, ...]:
        return pass_.points.get(layer, ReadPoint()).layers

    norms = [name for name in names if name in pass_.shapes and _is_norm(model.get_submodule(name))]
    shown = [name for name in ran if name in names and name not in norms]
    hosts = {norm: layer for layer in shown for norm in points(layer) if norm in norms}
    for norm in norms if shown else ():
        place = ran.index(norm)
        later = [name for name in ran[place:] if name in shown]
        before = [name for name in ran[:place][::-1] if name in shown]
        around = norm.rpartition(".")[0]
        near = [name for name in (*later, *before) if not around or name.startswith(f"{around}.")]
        hosts.setdefault(norm, (near or [*later, *before])[0])
    return hosts


def _is_norm(module: nn.Module) -> bool:
    own = [parameter.ndim for parameter in module.parameters()]
    plain = not list(module.children()) and max(own, default=0) == 1
    return plain and "norm" in type(module).__name__.lower()


def _partition(
    model: nn.Module, names: list[str], pass_: _Pass, hosts: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Layer -> its parameters. Each parameter is in one layer that runs, or in none if unused."""
    owned: dict[str, list[str]] = {}
    for parameter, tensor in model.named_parameters():
        owner = _owner(parameter)
        layer = hosts.get(owner) or (owner if owner in names else _enclosing(owner, names) or "")
        unused = layer not in pass_.shapes and id(tensor) not in pass_.used
        if unused or tensor.numel() == 0:
            continue
        while layer not in pass_.shapes:
            layer = layer.rpartition(".")[0]
        owned.setdefault(layer, []).append(parameter)
    return {name: tuple(owned[name]) for name in pass_.shapes if name in owned}


def _inside_paths(
    model: nn.Module, points: Mapping[str, ReadPoint], owned: Mapping[str, Any]
) -> frozenset[str]:
    """Normalisations and activations that only transform the features of another shown layer."""
    inside = {name for layer in owned if layer in points for name in points[layer].layers}
    return frozenset(n for n in inside & set(owned) if not list(model.get_submodule(n).children()))


def _blocks(model: nn.Module) -> list[str]:
    """Outermost modules with several matrices that are in a container or have equal siblings."""
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


def _enclosing(name: str, layers: list[str]) -> str | None:
    """The innermost layer that contains the module with this name."""
    around = [layer for layer in layers if layer and name.startswith(layer + ".")]
    return max(around, key=len, default=None)


def _layer(
    model: nn.Module,
    index: int,
    name: str,
    owned: Mapping[str, tuple[str, ...]],
    pass_: _Pass,
    points: Mapping[str, ReadPoint],
    *,
    block: bool,
    hidden: bool,
) -> Layer:
    module, named = model.get_submodule(name), dict(model.named_parameters())
    trainable = sum(named[p].numel() for p in owned[name] if named[p].requires_grad)
    kind = type(module).__name__.removeprefix("Parametrized")
    inside = any(other != name and other.startswith(name and name + ".") for other in owned)
    parts = inside and len(owned[name]) < len(_below(model, name))
    role = "parameters" if parts else "block" if block else "layer"
    point = points.get(name, ReadPoint())
    shape, input_shape = pass_.shapes.get(name, (None, None))
    if shape is not None and point.steps:
        sizes = point.shape
        shape = None if sizes is None or sizes[:1] != (pass_.count,) else sizes[1:]
    if role == "parameters" or hidden:
        shape = None
    parent = _enclosing(name, list(owned))
    return Layer(
        index,
        name,
        kind,
        role,
        parent,
        trainable,
        owned[name],
        shape,
        input_shape,
        point,
        read_at=str(point),
    )


@contextmanager
def count_operations(examples: int) -> Iterator[Footprint]:
    """Count the operations in the block."""
    found = Footprint(examples)
    with _Counting(found):
        yield found


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False; otherwise torch imports its compiler, which takes two seconds."""
        return False

    def __init__(self, found: Footprint) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found = found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        held = {_storage(value) for value in tensors_in((args, kwargs)) if _dense(value)}
        fresh = [v for v in tensors_in(result) if _dense(v) and _storage(v) not in held]
        size = sum(value.nbytes for value in fresh)
        self._found.total += size
        self._found.largest = max(self._found.largest, size)
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            # Torch's formulas do not cover every operation, such as attention with fewer heads for
            # keys. Operations that they cannot count are left out of the estimate.
            try:
                self._found.products += int(count(*args, **(kwargs or {}), out_val=result)) // 2
            except Exception:
                return result
        return result


def _dense(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.is_nested and value.layout == torch.strided


def _storage(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()
