"""Inputs, outputs and features of layers, captured while the model runs.

Captured tensors are reduced (by default: copied) inside the hook. A later in-place operation, such
as ``nn.ReLU(inplace=True)`` after a convolution, would otherwise overwrite them. All hooks are
removed at the end of the block.

Features are what the next layer receives. The output of a layer usually passes a normalisation and
an activation, as modules or as functions, before another layer takes it. A forward pass of a few
examples finds these operations. Each tensor that is computed from one layer's output by such
operations only keeps the name of this layer and the number of operations between them. The chain
ends at the first tensor that anything else takes: another layer, a sum of two branches, or the end
of the model. Features are read after the last normalisation or activation of the chain. If the
output of a layer branches before that, features are read at the output.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from theodolite.checks import require_function, require_kind
from theodolite.engine.calls import function_name, tensors_in
from theodolite.errors import ShapeError, UnknownNameError

Reduce = Callable[[str, Tensor], Tensor]

# Attributes in which outputs of transformers keep the input of the next layer.
_FIRST_KEYS = ("last_hidden_state", "hidden_states", "logits")


def first_tensor(value: Any, where: str) -> Tensor:
    """The tensor in a layer's input or output: the value itself, or the first of a collection.

    Raises:
        ShapeError: If there is no tensor.
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


def capture_outputs(
    model: nn.Module, layers: Sequence[str], reduce: Reduce | None = None
) -> AbstractContextManager[dict[str, list[Tensor]]]:
    """Collect the outputs of named layers while the block runs.

    Each call of a layer appends one tensor, so a layer with two calls in a forward pass gives two.
    All hooks are removed when the block ends, also after an error.

    Args:
        model: Any module.
        layers: Names of ``model.named_modules()``.
        reduce: (name, output) -> the value to keep, called at once; by default a detached copy.

    Returns:
        A context that gives a dictionary, which collects the outputs of each layer.

    Raises:
        UnknownNameError: If a name is not a module of the model.

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(inplace=True))
        >>> with capture_outputs(model, ["0"]) as outputs:
        ...     _ = model(torch.ones(4, 2))
        >>> outputs["0"][0].shape
        torch.Size([4, 3])
    """
    return _captured(model, layers, reduce, inputs=False)


def capture_inputs(
    model: nn.Module, layers: Sequence[str], reduce: Reduce | None = None
) -> AbstractContextManager[dict[str, list[Tensor]]]:
    """Collect the first input of named layers while the block runs; see :func:`capture_outputs`."""
    return _captured(model, layers, reduce, inputs=True)


@contextmanager
def _captured(
    model: nn.Module, layers: Sequence[str], reduce: Reduce | None, *, inputs: bool
) -> Iterator[dict[str, list[Tensor]]]:
    require_kind(nn.Module, model=model)
    require_kind(Sequence, layers=layers)
    if reduce is not None:
        require_function(reduce=reduce)
    modules = dict(model.named_modules(remove_duplicate=False))
    for name in layers:
        if name not in modules:
            raise UnknownNameError("layer", name, modules)
    keep = reduce or (lambda _name, tensor: tensor.detach().clone())
    kept: dict[str, list[Tensor]] = {name: [] for name in layers}

    def hook_for(name: str) -> Callable[..., None]:
        where = f"{'input' if inputs else 'output'} of layer {name!r}"

        def hook(_module: nn.Module, args: Any, kwargs: Any, *output: Any) -> None:
            value = [*args, *kwargs.values()] if inputs else output[0]
            kept[name].append(keep(name, first_tensor(value, where)))

        return hook

    with ExitStack() as hooks:
        for name in layers:
            module = modules[name]
            register: Any = (
                module.register_forward_pre_hook if inputs else module.register_forward_hook
            )
            hooks.callback(register(hook_for(name), with_kwargs=True).remove)
        yield kept


Read = Literal["next", "raw"]
_Kind = Literal["output", "activation", "normalization", "arithmetic", "neutral"]

_ACTIVATIONS = frozenset({
    "celu", "clamp", "clamp_max", "clamp_min", "clip", "cos", "elu", "gelu", "glu", "hardshrink",
    "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logsigmoid", "maximum", "minimum",
    "mish", "prelu", "relu", "relu6", "rrelu", "selu", "sigmoid", "silu", "sin", "softplus",
    "softshrink", "softsign", "tanh", "tanhshrink", "threshold", "where",
})  # fmt: skip
_NORMALIZATIONS = frozenset({
    "batch_norm", "group_norm", "instance_norm", "layer_norm", "local_response_norm",
    "normalize", "rms_norm",
})  # fmt: skip
# Formulas such as x * sigmoid(x) count as activations if they use one layer's tensors and numbers.
_ARITHMETIC = frozenset({
    "abs", "add", "div", "erf", "exp", "expm1", "ge", "gt", "le", "log1p", "lt", "mul", "neg",
    "pow", "reciprocal", "rsqrt", "rsub", "sqrt", "square", "sub", "true_divide", "truediv",
})  # fmt: skip
# Operations on the way to an activation; features are never read directly after them.
_NEUTRAL = frozenset({
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "alpha_dropout", "avg_pool1d", "avg_pool2d",
    "avg_pool3d", "bfloat16", "clone", "contiguous", "double", "dropout", "dropout1d",
    "dropout2d", "dropout3d", "feature_alpha_dropout", "float", "half", "max_pool1d",
    "max_pool2d", "max_pool3d", "to", "type_as",
})  # fmt: skip
_KINDS: dict[str, _Kind] = {
    **dict.fromkeys(_ACTIVATIONS, "activation"),
    **dict.fromkeys(_NORMALIZATIONS, "normalization"),
    **dict.fromkeys(_ARITHMETIC, "arithmetic"),
    **dict.fromkeys(_NEUTRAL, "neutral"),
}


@dataclass(frozen=True)
class ReadPoint:
    """The place where the features of one layer are read.

    Args:
        steps: Operations between the layer's output and this tensor; 0 is the output itself.
        path: Names of the normalisations and activations on the way.
        layers: Other followed layers whose outputs are on the way, such as norms.
        shape: Shape of the tensor in the trial pass; None for nested tensors.
    """

    steps: int = 0
    path: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    shape: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return f"after {', '.join(self.path)}" if self.path else "own output"


@dataclass
class _Node:
    """A tensor that follows from one call of a layer."""

    kind: _Kind
    name: str
    parents: tuple[int, ...]
    shape: tuple[int, ...] | None
    layers: list[str] = field(default_factory=list)  # layers with this tensor as their output
    consumed: bool = False  # whether an operation that takes it ends the chain


@dataclass(eq=False)
class _Chain:
    """All tensors that follow from one call of a layer, in order of appearance."""

    layer: str
    nodes: list[_Node] = field(default_factory=list)

    def read_point(self) -> ReadPoint:
        """Go back from the first tensor that ends the chain to an activation or normalisation."""
        nodes = self.nodes
        consumed = [index for index, node in enumerate(nodes) if node.consumed]
        end = consumed[0] if consumed else len(nodes) - 1
        if not all(end in self._history(index) for index in (*consumed, len(nodes) - 1)):
            end = 0  # two branches, which share the output only
        history = self._history(end)
        while end and not self._is_read(end):
            end = nodes[end].parents[0]
            history = self._history(end)
        path = tuple(
            nodes[index].name
            for index in sorted(history)
            if nodes[index].kind in ("activation", "normalization")
        )
        layers = tuple(name for index in sorted(history - {0}) for name in nodes[index].layers)
        return ReadPoint(end, path, layers, nodes[end].shape)

    def _is_read(self, index: int) -> bool:
        """Whether features may be read at a tensor: after an activation or a normalisation."""
        kind = self.nodes[index].kind
        if kind == "arithmetic":
            return any(self.nodes[i].kind == "activation" for i in self._history(index))
        return kind in ("activation", "normalization")

    def _history(self, index: int) -> set[int]:
        """The tensor and all tensors of the chain that it was computed from."""
        found, waiting = {index}, [index]
        while waiting:
            for parent in self.nodes[waiting.pop()].parents:
                if parent not in found:
                    found.add(parent)
                    waiting.append(parent)
        return found


class LayerFollower(TorchFunctionMode):
    """Follows the outputs of layers through a forward pass.

    Args:
        reached: Called with (layer, operations since its output, tensor) for each new tensor.

    Attributes:
        parameters: Ids of the parameters that some call received.
    """

    def __init__(self, reached: Callable[[str, int, Tensor], None] | None = None) -> None:
        super().__init__()
        self.parameters: set[int] = set()
        self._chains: dict[str, _Chain] = {}  # chains of the last call of every layer
        # tensor -> (chain, index of its node), for every chain that contains it
        self._known: MutableMapping[Tensor, list[tuple[_Chain, int]]] = WeakTensorKeyDictionary()
        self._reached = reached
        self._inside = 0  # number of open modules that count as one operation

    def read_points(self) -> dict[str, ReadPoint]:
        """Layer -> the place of its features, after a forward pass."""
        return {layer: chain.read_point() for layer, chain in self._chains.items()}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call the function; its result continues a chain, or the call ends a chain."""
        result = func(*args, **(kwargs or {}))
        given = tensors_in((args, kwargs))
        self.parameters |= {id(tensor) for tensor in given if isinstance(tensor, nn.Parameter)}
        if self._inside:
            return result
        name = function_name(func).strip("_")
        plain = name[1:] if name[:1] in "ri" and name[1:] in _ARITHMETIC else name
        if plain == "setitem" and given:
            self._consume(given)
            self._known.pop(given[0], None)
            return result
        returned = tensors_in(result)
        if not returned:
            return result
        kind = _KINDS.get(plain)
        if kind == "normalization" or plain == "prelu":
            given = given[:1]  # the other arguments are weights and statistics
        if kind is None or len(returned) > 1:
            self._consume(given)
            for tensor in returned:
                self._known.pop(tensor, None)  # overwritten in place
        else:
            self._follow(given, returned[0], kind, plain)
        return result

    def begin(self, layer: str, output: Tensor) -> None:
        """Record the output of a layer."""
        chain = self._chains[layer] = _Chain(layer)
        others = [entry for entry in self._known.get(output, ()) if entry[0].layer != layer]
        self._known[output] = others
        for other, index in others:
            other.nodes[index].layers.append(layer)
        self._add(chain, "output", layer, (), output)

    def enter(self) -> None:
        """Count all calls until :meth:`leave` as one operation."""
        self._inside += 1

    def leave(self, name: str, tensors: tuple[Tensor, Tensor] | None) -> None:
        """End this operation; ``tensors`` are its input and output if it has one of each."""
        self._inside -= 1
        if not self._inside and tensors is not None and tensors[0].shape == tensors[1].shape:
            self._follow([tensors[0]], tensors[1], "normalization", name)

    def _follow(self, given: list[Tensor], output: Tensor, kind: _Kind, name: str) -> None:
        """The output continues the chains of layers behind all inputs; other chains end here."""
        entries = [self._known.get(tensor, ()) for tensor in given if tensor.ndim or len(given) < 2]
        parents: dict[_Chain, list[int]] = {}
        for chain, index in (entry for known in entries for entry in known):
            parents.setdefault(chain, []).append(index)
        shared = [
            chain
            for chain in parents
            if all(any(other is chain for other, _ in known) for known in entries)
        ]
        self._consume(given, except_for=shared)
        self._known[output] = []
        for chain in shared:
            self._add(chain, kind, name, tuple(dict.fromkeys(parents[chain])), output)

    def _add(
        self, chain: _Chain, kind: _Kind, name: str, parents: tuple[int, ...], tensor: Tensor
    ) -> None:
        shape = None if tensor.is_nested else tuple(tensor.shape)
        chain.nodes.append(_Node(kind, name, parents, shape))
        self._known[tensor].append((chain, len(chain.nodes) - 1))
        if self._reached is not None:
            self._inside += 1  # the following work on the tensor belongs to no layer
            self._reached(chain.layer, len(chain.nodes) - 1, tensor)
            self._inside -= 1

    def _consume(self, given: list[Tensor], except_for: Sequence[_Chain] = ()) -> None:
        for tensor in given:
            for chain, index in self._known.get(tensor, ()):
                if chain not in except_for:
                    chain.nodes[index].consumed = True


@contextmanager
def follow_layers(
    model: nn.Module,
    layers: Sequence[str],
    reached: Callable[[str, int, Tensor], None] | None = None,
) -> Iterator[LayerFollower]:
    """Follow the outputs of named layers through the forward passes of a block.

    A normalisation in its own module counts as one operation, whatever it calls. It is recognised
    by the word "Norm" in the name of its class.
    """
    follower = LayerFollower(reached)
    modules = dict(model.named_modules(remove_duplicate=False))
    shown = {name: modules[name] for name in layers}

    def enter(_module: nn.Module, _args: Any) -> None:
        follower.enter()

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        single = args and isinstance(args[0], Tensor) and isinstance(output, Tensor)
        follower.leave(type(module).__name__, (args[0], output) if single else None)

    def begin_for(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def begin(_module: nn.Module, _args: Any, output: Any) -> None:
            try:
                tensor = first_tensor(output, f"output of layer {name!r}")
            except ShapeError:
                if reached is not None:  # its features are requested
                    raise
                return
            follower.begin(name, tensor)

        return begin

    with ExitStack() as stack:
        for module in dict.fromkeys(modules.values()):
            if "norm" in type(module).__name__.lower() and not list(module.children()):
                stack.callback(module.register_forward_pre_hook(enter).remove)
                stack.callback(module.register_forward_hook(leave).remove)
        for name, module in shown.items():
            stack.callback(module.register_forward_hook(begin_for(name)).remove)
        with follower:
            yield follower


@contextmanager
def capture_features(
    model: nn.Module, points: Mapping[str, ReadPoint], reduce: Reduce
) -> Iterator[dict[str, list[Tensor]]]:
    """Collect the features of layers at their read points, as :func:`capture_outputs` does."""
    found: dict[str, list[Tensor]] = {name: [] for name in points}

    def reached(name: str, steps: int, tensor: Tensor) -> None:
        if steps == points[name].steps:
            found[name].append(reduce(name, tensor))

    with follow_layers(model, list(points), reached):
        yield found
