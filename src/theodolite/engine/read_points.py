"""Where a layer's features are read: at what the next layer receives.

A layer's output usually passes a normalisation and an activation before another layer takes it,
called as modules or as functions. A forward pass of a few examples shows which: every tensor that
follows from one layer's output by such operations alone remembers that layer, and how many
operations lie between. The first such tensor that anything else takes (another layer, a sum of two
branches, the end of the model) is where the chain ends; the features are read after its last
normalisation or activation. A layer whose output branches before that is read at its output.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from theodolite.engine.calls import function_name, tensors_in
from theodolite.engine.hooks import Reduce, first_tensor
from theodolite.errors import ShapeError

__all__ = ["Read", "ReadPoint", "capture_features", "follow_layers"]

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
# Formulas such as x * sigmoid(x): of one layer's tensors and plain numbers they stay activations.
_ARITHMETIC = frozenset({
    "abs", "add", "div", "erf", "exp", "expm1", "ge", "gt", "le", "log1p", "lt", "mul", "neg",
    "pow", "reciprocal", "rsqrt", "rsub", "sqrt", "square", "sub", "true_divide", "truediv",
})  # fmt: skip
# Passed on the way to an activation, never the end of the way: what they give is not read.
_NEUTRAL = frozenset({
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "alpha_dropout", "avg_pool1d", "avg_pool2d",
    "avg_pool3d", "bfloat16", "clone", "contiguous", "double", "dropout", "dropout1d",
    "dropout2d", "dropout3d", "feature_alpha_dropout", "float", "half", "max_pool1d",
    "max_pool2d", "max_pool3d", "to", "type_as",
})  # fmt: skip


@dataclass(frozen=True)
class ReadPoint:
    """Where the features of one layer are read.

    Args:
        steps: operations between the layer's output and this tensor; 0 is the output itself.
        path: names of the normalisations and activations on the way.
        layers: those of the followed layers whose own outputs lie on the way, as those of norms.
        shape: of the tensor in the pass that found it; None where it has none, as nested tensors.
    """

    steps: int = 0
    path: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    shape: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return f"after {', '.join(self.path)}" if self.path else "own output"


@dataclass
class _Node:
    """A tensor that follows from one call of a layer; ``taken`` by something that ends the way."""

    kind: _Kind
    name: str
    parents: tuple[int, ...]
    shape: tuple[int, ...] | None
    layers: list[str] = field(default_factory=list)  # that gave this tensor as their output
    taken: bool = False


@dataclass(eq=False)
class _Chain:
    """All tensors that follow from one call of a layer, in the order in which they appeared."""

    layer: str
    nodes: list[_Node] = field(default_factory=list)

    def read_point(self) -> ReadPoint:
        nodes = self.nodes
        taken = [index for index, node in enumerate(nodes) if node.taken]
        end = taken[0] if taken else len(nodes) - 1
        if not all(end in self._history(index) for index in (*taken, len(nodes) - 1)):
            end = 0  # two branches: they have the output in common
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
        kind = self.nodes[index].kind
        if kind == "arithmetic":
            return any(self.nodes[i].kind == "activation" for i in self._history(index))
        return kind in ("activation", "normalization")

    def _history(self, index: int) -> set[int]:
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
        reached: is told (layer, operations since its output, tensor) as tensors appear.

    Attributes:
        parameters: identities of the parameters that some call received.
    """

    def __init__(self, reached: Callable[[str, int, Tensor], None] | None = None) -> None:
        super().__init__()
        self.parameters: set[int] = set()
        self._chains: dict[str, _Chain] = {}  # of the last call of every layer
        # tensor -> (chain, index of its node), for every chain that it belongs to
        self._known: MutableMapping[Tensor, list[tuple[_Chain, int]]] = WeakTensorKeyDictionary()
        self._reached = reached
        self._inside = 0  # modules that count as one operation

    def read_points(self) -> dict[str, ReadPoint]:
        """Layer -> where its features are read, after a forward pass."""
        return {layer: chain.read_point() for layer, chain in self._chains.items()}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call the function; its result follows from a layer, or takes what follows from it."""
        result = func(*args, **(kwargs or {}))
        given = tensors_in((args, kwargs))
        self.parameters |= {id(tensor) for tensor in given if isinstance(tensor, nn.Parameter)}
        if self._inside:
            return result
        name = function_name(func).strip("_")
        plain = name[1:] if name[:1] in "ri" and name[1:] in _ARITHMETIC else name
        if plain == "setitem" and given:
            self._take(given)
            self._known.pop(given[0], None)
            return result
        returned = tensors_in(result)
        if not returned:
            return result
        kind = _kind(plain)
        if kind == "normalization" or plain == "prelu":
            given = given[:1]  # the others are weights and statistics
        if kind is None or len(returned) > 1:
            self._take(given)
            for tensor in returned:
                self._known.pop(tensor, None)  # written in place
        else:
            self._follow(given, returned[0], kind, plain)
        return result

    def begin(self, layer: str, output: Tensor) -> None:
        """A layer has given its output."""
        chain = self._chains[layer] = _Chain(layer)
        others = [entry for entry in self._known.get(output, ()) if entry[0].layer != layer]
        self._known[output] = others
        for other, index in others:
            other.nodes[index].layers.append(layer)
        self._add(chain, "output", layer, (), output)

    def enter(self) -> None:
        """What is called until :meth:`leave` counts as one operation."""
        self._inside += 1

    def leave(self, name: str, tensors: tuple[Tensor, Tensor] | None) -> None:
        """That operation is done; ``tensors`` are its input and output, where it has one each."""
        self._inside -= 1
        if not self._inside and tensors is not None and tensors[0].shape == tensors[1].shape:
            self._follow([tensors[0]], tensors[1], "normalization", name)

    def _follow(self, given: list[Tensor], output: Tensor, kind: _Kind, name: str) -> None:
        """The output belongs to the layers that all inputs follow from; for others it ends here."""
        entries = [self._known.get(tensor, ()) for tensor in given if tensor.ndim or len(given) < 2]
        parents: dict[_Chain, list[int]] = {}
        for chain, index in (entry for known in entries for entry in known):
            parents.setdefault(chain, []).append(index)
        shared = [
            chain
            for chain in parents
            if all(any(other is chain for other, _ in known) for known in entries)
        ]
        self._take(given, except_for=shared)
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
            self._reached(chain.layer, len(chain.nodes) - 1, tensor)

    def _take(self, given: list[Tensor], except_for: Sequence[_Chain] = ()) -> None:
        for tensor in given:
            for chain, index in self._known.get(tensor, ()):
                if chain not in except_for:
                    chain.nodes[index].taken = True


def _kind(name: str) -> _Kind | None:
    if name in _ACTIVATIONS:
        return "activation"
    if name in _NORMALIZATIONS:
        return "normalization"
    if name in _ARITHMETIC:
        return "arithmetic"
    return "neutral" if name in _NEUTRAL else None


@contextmanager
def follow_layers(
    model: nn.Module,
    layers: Sequence[str],
    reached: Callable[[str, int, Tensor], None] | None = None,
) -> Iterator[LayerFollower]:
    """Follow the outputs of named layers through the forward passes of a block.

    Normalisations that are written as modules of their own, whatever they call, count as one
    operation; they are known by the word "Norm" in the name of their class.
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
                if reached is not None:  # its features are wanted
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
    """Collect what layers hand on while the block runs, reduced as it appears.

    Each call of a layer appends one tensor.

    Args:
        model: any module.
        points: layer -> where it is read.
        reduce: (name, tensor) -> what is kept, called at once.
    """
    found: dict[str, list[Tensor]] = {name: [] for name in points}

    def reached(name: str, steps: int, tensor: Tensor) -> None:
        if steps == points[name].steps:
            with torch._C.DisableTorchFunction():
                found[name].append(reduce(name, tensor))

    with follow_layers(model, list(points), reached):
        yield found
