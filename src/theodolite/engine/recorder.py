"""Records every use of a parameter in a forward pass, inside and outside of modules.

It records torch functions, not modules. So it also sees functional calls, second uses, attention's
output projection, tied and re-parametrised weights and bare parameters. It takes the gradient edge
of a result when the call returns, because an in-place operation may later change the tensor. The
graph of autograd then shows whether any use was missed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import FunctionType
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from theodolite.engine.batches import Batch
from theodolite.engine.calls import (
    PLAIN,
    Axis,
    Call,
    CannotSplitError,
    Lookup,
    Outer,
    Structure,
    find_axis,
    find_orders,
    function_name,
    has_storage,
    split_examples,
    tensors_in,
)
from theodolite.engine.check import is_suspect
from theodolite.engine.rounding import Rounding
from theodolite.engine.rules import RULES, STEP_BY_STEP, replay
from theodolite.engine.state import quiet_vmap
from theodolite.errors import CaptureError

# Functions that return entries of their argument, each at most once.
SELECTIONS = frozenset(
    {"t", "T", "mT", "transpose", "permute", "movedim", "swapaxes", "swapdims"}
    | {"view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "squeeze", "unsqueeze"}
    | {"chunk", "split", "unbind", "select", "narrow", "contiguous", "to", "float", "double"}
)


@dataclass(slots=True)
class Origin:
    """The origin of a tensor.

    Args:
        roots: Names of the parameters that it is computed from.
        tensor: The tensor, attached to the graph that leads to the roots.
        scale: Set if the tensor consists of entries of its only root, each at most once, times this
            number. Inner products of gradients then agree up to its square.
    """

    roots: tuple[str, ...]
    tensor: Tensor = field(repr=False)
    scale: float | None = None


def _origin_of(
    function: Callable[..., Any], arguments: Any, sources: list[Origin], result: Tensor
) -> Origin:
    """Origin of a result that depends on parameters and not on examples."""
    roots = tuple(dict.fromkeys(name for source in sources for name in source.roots))
    scale = None
    if len(sources) == 1 and sources[0].scale is not None:
        factor = _factor_of(function, arguments, sources[0].tensor)
        scale = None if factor is None else sources[0].scale * factor
    return Origin(roots, result, scale)


def _factor_of(
    function: Callable[..., Any], arguments: tuple[Any, Any], source: Tensor
) -> float | None:
    """The factor of a function that selects entries; None for other functions."""
    name = function_name(function)
    args, kwargs = arguments
    if name in SELECTIONS:
        return 1.0
    if name == "__getitem__":
        return 1.0 if _is_basic_index(args[1]) else None
    if function is functional.embedding and args[1] is source and args[2:] in ((), (None,)):
        tokens = args[0]
        return 1.0 if not kwargs and tokens.unique().numel() == tokens.numel() else None
    others = [value for value in args if value is not source]
    if name in ("mul", "__mul__", "__rmul__", "div", "__truediv__") and len(others) == 1:
        value = _number(others[0])
        if value is None or kwargs or (name in ("div", "__truediv__") and args[0] is not source):
            return None
        return value if "mul" in name else 1.0 / value
    return -1.0 if name in ("neg", "__neg__") else None


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        return float(value) if value.dim() == 0 and not value.requires_grad else None
    return float(value) if isinstance(value, (int, float)) else None


def _is_basic_index(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or part is Ellipsis or isinstance(part, (int, slice)) for part in parts)


def pull_back(origin: Origin, root: Tensor, gradients: Tensor) -> Tensor:
    """Convert gradients of a derived tensor into gradients of one of its roots.

    Args:
        origin: The derived tensor.
        root: The parameter.
        gradients: One gradient per row, (rows, ...) with the shape of the derived tensor.
    """
    if origin.tensor is root:
        return gradients

    def single(gradient: Tensor) -> Tensor:
        return torch.autograd.grad(
            origin.tensor, root, gradient.to(origin.tensor.dtype), retain_graph=True
        )[0]

    return quiet_vmap(single)(gradients)


class GraphCall(NamedTuple):
    """A call that received parameters, in the graph of autograd."""

    sources: tuple[int, ...]  # ids of the parameters, or of tensors made of them
    parameter: str  # name of one of the parameters
    before: set[Any]  # nodes of its arguments before the call
    results: list[Any]  # nodes of its results


@dataclass(slots=True)
class CallTensors:
    """All tensor arguments and results of one call, for a single example.

    ``axes`` keeps the axes of examples in the same call for many examples, once they are known.
    """

    function: str
    given: tuple[Tensor, ...]
    returned: tuple[Tensor, ...]
    axes: list[Axis | None] | None = None

    def find_axes(self, tensors: list[Tensor], examples: int, row: int) -> list[Axis | None]:
        """Axes of examples in the tensors of the same call for many examples, in order.

        ``row`` of the batch is the single example.
        """
        if self.axes is None:
            pairs = [*zip((*self.given, *self.returned), tensors, strict=True)]
            self.axes = [find_axis(one, tensor, examples) for one, tensor in pairs]
            find_orders(pairs, self.axes, examples, row)
            return self.axes
        for tensor, axis in zip(tensors, self.axes, strict=True):
            if axis is not None and not _fits_axis(tensor, examples, axis):
                raise CannotSplitError(
                    f"{self.function}: the axis of examples is another one in some batches"
                )
        return self.axes


def _fits_axis(tensor: Tensor, examples: int, axis: Axis) -> bool:
    if tensor.is_nested:
        return True
    return axis.index < tensor.dim() and tensor.shape[axis.index] % examples == 0


@dataclass(slots=True)
class Use:
    """One parameter, or a tensor made of parameters, in one call of a torch function.

    Args:
        origin: The used tensor and the parameters that it is computed from.
        structure: How gradients of the call's result become gradients of examples.
        edges: Where the gradients of the call's results arrive.
        result_shapes: Shapes of these results; empty for nested tensors.
        function: Name of the torch function.
        call_number: Number of the call; uses in one call share it.
        by_rule: Whether there is a rule; otherwise the call is replayed.
        result_axes: Axes of examples in these results.
        watched: Tensors that are needed later, with their versions.
    """

    origin: Origin
    structure: Structure
    edges: tuple[GradientEdge, ...]
    result_shapes: tuple[tuple[int, ...], ...]
    function: str
    call_number: int
    by_rule: bool
    result_axes: tuple[Axis | None, ...] = ()
    watched: tuple[tuple[Tensor, int], ...] = field(repr=False, default=())

    def require_not_overwritten(self) -> None:
        """Check that no tensor that is needed later has been overwritten."""
        for tensor, version in self.watched:
            if tensor._version != version:
                raise CaptureError(
                    f"{self.function}: expected its input to stay as it was until the backward "
                    "pass, but an in-place operation has overwritten it; autograd would refuse the "
                    "weight's gradient too: replace that operation by its out-of-place form"
                )


# Calls and properties that do not read the numbers of a tensor.
_ABOUT_SHAPES = frozenset({
    "__len__", "device", "dim", "dtype", "element_size", "get_device", "is_complex",
    "is_contiguous", "is_cuda", "is_floating_point", "is_leaf", "is_nested", "is_sparse",
    "itemsize", "layout", "nbytes", "ndim", "nelement", "numel", "requires_grad", "shape", "size",
    "stride",
})  # fmt: skip

# Python functions whose inner calls are recorded instead of the function.
OPENED: tuple[Callable[..., Any], ...] = (functional.multi_head_attention_forward,)


def _opened(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function without its dispatch line, so that its inner calls are recorded."""
    if not isinstance(function, FunctionType):
        return function
    names = {**function.__globals__, "has_torch_function": lambda _tensors: False}
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__)


class UseRecorder(TorchFunctionMode):
    """Record uses of parameters while the block runs.

    Args:
        parameters: Name -> parameter.
        inputs: Tensors that depend on the examples: the inputs of the model.
        examples: Number of examples.
        reference: The same calls for a single example, to find the axes of examples.
        kept_rows: Rows of the batch whose inputs to every call are kept, to compare with single
            runs.
        others: Parameters that are not recorded and do not depend on examples either.
        calls_only: Whether to record only the tensors of calls, for a single example.
        targets: Tensors of the examples that readouts and losses use.

    Attributes:
        in_outputs: False once the outputs exist; calls of a loss are only observed.
        suspects: Names of calls through which one example may affect another.
        rounding: Rounding of the results.
        received: For every recorded call, its inputs at ``kept_rows``; None for a tensor
            without an axis of examples.
    """

    def __init__(
        self,
        parameters: dict[str, torch.nn.Parameter],
        inputs: Any,
        examples: int,
        reference: list[CallTensors] | None = None,
        kept_rows: Sequence[int] = (),
        others: Iterable[Tensor] = (),
        *,
        calls_only: bool = False,
        targets: Any = (),
    ) -> None:
        super().__init__()
        self._calls_only = calls_only
        self.uses: list[Use] = []
        self.calls: list[CallTensors] = []
        self.received: list[tuple[str, list[Tensor | None]]] = []
        self._kept_rows = [*kept_rows]
        self._row_index: dict[torch.device, Tensor] = {}
        self._first_row = kept_rows[0] if kept_rows else 0
        self._call_count = 0
        self.graph_calls: list[GraphCall] = []
        self.result_bytes = 0
        self.in_outputs = True
        self.suspects: set[str] = set()
        self.rounding = Rounding()
        self.origins = {id(p): Origin((name,), p, 1.0) for name, p in parameters.items()}
        self._examples, self._reference = examples, reference
        # Tensors that require a gradient but depend on no example: they come from parameters that
        # are not recorded.
        self._constants: dict[int, tuple[Tensor, int]] = {}
        self._note_constants(others)
        self._example_tensors = WeakTensorKeyDictionary()
        # These are ids. Stale ids may belong to newer tensors, so `_example_tensors` checks again.
        self._example_ids: set[int] = set()
        for tensor in tensors_in((inputs, targets)):
            self._example_tensors[tensor] = True
            self._example_ids.add(id(tensor))

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call the function; record the call if it uses a parameter."""
        traits = _traits(func)
        kwargs = kwargs or {}
        if traits.reads_shape:  # there are thousands of these calls: sizes, dtypes, devices
            return func(*args, **kwargs)
        sources: dict[int, Origin] = {}
        depends = self._origins_among(args, sources)
        if kwargs:
            depends |= self._origins_among(kwargs.values(), sources)
        if sources and self.in_outputs:
            return self._call_with_parameter(func, traits, args, kwargs, sources, depends)
        result = self._call(func, traits, args, kwargs, depends)
        self._note_results(result, depends, traits.rounds)
        if not depends and self._constants:
            self._note_constants([result] if isinstance(result, Tensor) else tensors_in(result))
        return result

    def _origins_among(self, values: Iterable[Any], sources: dict[int, Origin]) -> bool:
        """Find arguments that depend on parameters only, and whether others depend on examples."""
        depends, origins = False, self.origins
        for value in values:
            if type(value) in PLAIN:  # fast path for thousands of calls
                continue
            if isinstance(value, Tensor):
                origin = origins.get(id(value))
                if origin is not None:  # it is alive, so no other tensor has its id
                    sources[id(value)] = origin
                elif not depends:
                    depends = self._has_examples(value)
            elif isinstance(value, list | tuple):
                depends |= self._origins_among(value, sources)
            elif isinstance(value, dict):
                depends |= self._origins_among(value.values(), sources)
        return depends

    def _call(
        self,
        func: Callable[..., Any],
        traits: "_Traits",
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        depends: bool,
    ) -> Any:
        """Make the call; record whether it is suspect."""
        result = func(*args, **kwargs)
        if not depends:
            return result
        count = self._examples
        if count > 1 and is_suspect(traits.name, (args, kwargs), result, count):
            self.suspects.add(traits.name)
        if traits.name == "__setitem__":
            self._note_results(_written(args[0]), depends)
        return result

    def _call_with_parameter(
        self,
        func: Callable[..., Any],
        traits: "_Traits",
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        sources: dict[int, Origin],
        depends: bool,
    ) -> Any:
        """Record a call that received a parameter."""
        if func in OPENED or func in STEP_BY_STEP:
            with self:
                result = STEP_BY_STEP.get(func, _opened(func))(*args, **kwargs)
            if result is not None:
                return result
        kept = args
        if traits.overwrites and isinstance(args[0], Tensor):
            kept = (args[0].clone(), *args[1:])
        given = tensors_in((args, kwargs))
        before = _nodes_of(given)
        result = self._call(func, traits, args, kwargs, depends)
        if isinstance(result, Tensor) and _views_inside(result, given):
            result = result.clone()
        self._note_results(result, depends, traits.rounds)
        returned = [result] if isinstance(result, Tensor) else tensors_in(result)
        results = [t for t in returned if t.requires_grad and id(t) not in sources]
        if not results:
            return result
        if depends and len(results) > 1 and type(result) is tuple:
            # One result may depend on another, as in LSTM cells.
            result = tuple(_behind_own_node(part) for part in result)
            returned = tensors_in(result)
        name = next(iter(sources.values())).roots[0]
        nodes = [tensor.grad_fn for tensor in returned]
        self.graph_calls.append(GraphCall((*sources,), name, before, nodes))
        if depends:
            self._record_uses(func, traits.name, kept, kwargs, list(sources.values()), returned)
        else:
            for tensor in results:
                found = _origin_of(func, (args, kwargs), list(sources.values()), tensor)
                self.origins[id(tensor)] = found
        return result

    def made_of_parameters(self, tensor: Tensor) -> bool:
        """Whether a tensor depends on parameters and not on examples."""
        origin = self.origins.get(id(tensor))
        return origin is not None and origin.tensor is tensor

    def _has_examples(self, tensor: Tensor) -> bool:
        """Whether a tensor depends on the examples.

        Only called for tensors that do not depend on recorded parameters alone.
        """
        if not tensor.requires_grad:
            return id(tensor) in self._example_ids and tensor in self._example_tensors
        if not self._constants:
            return True
        kept, version = self._constants.get(id(tensor), (None, 0))
        return kept is not tensor or tensor._version != version or tensor in self._example_tensors

    def _note_constants(self, constants: Iterable[Tensor]) -> None:
        for tensor in constants:
            if tensor.requires_grad and not tensor.is_inference():
                self._constants[id(tensor)] = tensor, tensor._version

    def _note_results(self, result: Any, depends: bool, rounds: bool = True) -> None:
        """Record the results of a call, and the tensors that it wrote to."""
        tensors = (result,) if isinstance(result, Tensor) else tensors_in(result)
        if depends and rounds:
            self.rounding.add(tensors)
        for tensor in tensors:
            if depends and not tensor.requires_grad:
                self._example_tensors[tensor] = True
                self._example_ids.add(id(tensor))
            if not tensor._is_view() and tensor.layout == torch.strided:
                self.result_bytes += tensor.nbytes

    def _record_uses(
        self,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        sources: list[Origin],
        returned: list[Tensor],
    ) -> None:
        given: list[Tensor] = []
        detached: dict[int, Tensor] = {}
        args, kwargs = (
            _detached_arguments(args, given, detached),
            _detached_arguments(kwargs, given, detached),
        )
        copies = [detached[id(tensor)] for tensor in given]
        self._call_count += 1
        if self._examples == 1:
            after = tuple([tensor.detach().clone() for tensor in returned])
            self.calls.append(CallTensors(name, tuple(copies), after))
            if self._calls_only:
                return
        found = self._axes(name, given, sources, returned)
        if self._kept_rows:
            self.received.append((name, self._kept_inputs(copies, found)))
        axes = {id(copy): axis for copy, axis in zip(copies, found, strict=False)}
        result_axes = tuple(found[len(given) :])
        keep = tuple([tensor.requires_grad for tensor in returned])
        kept = [pair for pair in zip(returned, result_axes, strict=True) if pair[0].requires_grad]
        edges = tuple([get_gradient_edge(tensor) for tensor, _ in kept])
        sizes = tuple([_sizes(tensor) for tensor, _ in kept])
        kept_axes = tuple([axis for _, axis in kept])
        rule = RULES.get(func)
        for origin in sources:
            source = detached[id(origin.tensor)]
            call = Call(func, args, kwargs, source, self._examples, axes, result_axes)
            structure = rule(call) if rule is not None else None
            by_rule = structure is not None
            if structure is None:
                structure = replay(call, keep)
            watched = tuple([(tensor, tensor._version) for tensor in _needs(structure)])
            self.uses.append(
                Use(
                    origin,
                    structure,
                    edges,
                    sizes,
                    name,
                    self._call_count,
                    by_rule,
                    kept_axes,
                    watched,
                )
            )

    def _kept_inputs(self, given: list[Tensor], axes: list[Axis | None]) -> list[Tensor | None]:
        """The inputs of a call at the examples that also run alone."""
        return [
            None
            if axis is None or tensor.is_nested or not has_storage(tensor)
            else split_examples(tensor, self._examples, axis)[self._rows_on(tensor.device)]
            for tensor, axis in zip(given, axes, strict=False)
        ]

    def _rows_on(self, device: torch.device) -> Int[Tensor, " k"]:
        """The kept rows as a tensor; each copy to a device takes as long as a short call."""
        if device not in self._row_index:
            self._row_index[device] = torch.tensor(self._kept_rows, device=device)
        return self._row_index[device]

    def _axes(
        self, function: str, given: list[Tensor], sources: list[Origin], returned: list[Tensor]
    ) -> list[Axis | None]:
        """The axes of examples in all tensors of a call."""
        tensors = [*given, *returned]
        if self._examples == 1:
            return [None] * len(tensors)
        reference = self._reference or []
        one = reference[self._call_count - 1] if self._call_count <= len(reference) else None
        counts = (function, len(given), len(returned))
        if one is not None and (one.function, len(one.given), len(one.returned)) == counts:
            row = self._first_row
            return one.find_axes(tensors, self._examples, row)
        made = {id(origin.tensor) for origin in sources}  # these have no axis of examples
        return [None if id(t) in made else find_axis(None, t, self._examples) for t in tensors]


def watch_calls(batch: Batch) -> UseRecorder:
    """Observe the calls of a pass over a batch: suspect ones, and their rounding."""
    inputs = batch.args, dict(batch.kwargs), batch.targets, batch.mask, batch.positions
    return UseRecorder({}, inputs, len(batch))


def _written(target: Tensor) -> list[Tensor]:
    """Tensors that an assignment changes: the tensor, and the tensor that it is a view of."""
    base = target._base
    return [target] if base is None else [target, base]


def _nodes_of(tensors: Iterable[Tensor]) -> set[Any]:
    """The graph nodes of tensors, and of the tensors that they are views of."""
    nodes = set()
    for tensor in tensors:
        nodes.add(tensor.grad_fn)
        if tensor._base is not None:
            nodes.add(tensor._base.grad_fn)
    return nodes


def _views_inside(result: Tensor, given: Sequence[Tensor]) -> bool:
    """Whether a result is a view of a tensor that only this call has created and used.

    An in-place operation on such a view, such as a ReLU after instance normalisation, would move
    the graph away from the edge of the result.
    """
    base = result._base
    if base is None:
        return False
    return all(base is not tensor and base is not tensor._base for tensor in given)


def _behind_own_node(value: Any) -> Any:
    """Give a result its own graph node, so that only gradients from later calls arrive there."""
    if isinstance(value, Tensor) and value.requires_grad and not value.is_nested:
        return value.view_as(value)
    return value


def _detached_arguments(value: Any, given: list[Tensor], detached: dict[int, Tensor]) -> Any:
    """Nested arguments with detached tensors.

    Tensors are appended to ``given``; ``detached`` has their copies by id.
    """
    if type(value) in PLAIN:
        return value
    if isinstance(value, Tensor):
        given.append(value)
        if id(value) not in detached:
            detached[id(value)] = value.detach()
        return detached[id(value)]
    if isinstance(value, list | tuple):
        copies = [_detached_arguments(item, given, detached) for item in value]
        return type(value)(copies) if type(value) in (list, tuple) else value
    if isinstance(value, dict):
        return {key: _detached_arguments(item, given, detached) for key, item in value.items()}
    return value


def _sizes(tensor: Tensor) -> tuple[int, ...]:
    return () if tensor.is_nested else tuple(tensor.shape)


def _needs(structure: Structure) -> tuple[Tensor, ...]:
    if isinstance(structure, Outer):
        return (structure.inputs,)
    return (structure.tokens,) if isinstance(structure, Lookup) else structure.needs


@dataclass(frozen=True)
class _Traits:
    """Facts about a function that every call of it needs."""

    name: str
    reads_shape: bool
    overwrites: bool
    rounds: bool


@lru_cache(maxsize=4096)
def _traits(func: Callable[..., Any]) -> _Traits:
    """The traits of a function, mostly from its name; computed once per function."""
    name = function_name(func)
    overwrites = (name.endswith("_") and not name.endswith("__")) or (
        name.startswith("__i") and name not in ("__index__", "__invert__", "__int__")
    )
    return _Traits(name, name in _ABOUT_SHAPES, overwrites, rounds=func is not Tensor.clone)


def require_complete(output: Tensor, recorder: UseRecorder) -> None:
    """Check that every edge of the graph into a parameter was made by a recorded call.

    The nodes between the results of a call and its arguments belong to the call.

    Raises:
        CannotSplitError: If another node uses a parameter, or an inner node of a call; the message
            names both.
    """
    targets = _targets(recorder)
    results: set[Any] = {edge.node for use in recorder.uses for edge in use.edges}
    results |= {origin.tensor.grad_fn for origin in recorder.origins.values()}
    owners = _owners(recorder.graph_calls)
    for node, edges in _nodes(output):
        call = owners.get(node)
        for following, _ in edges:
            if following is None:
                continue
            leaf = type(following).__name__ == "AccumulateGrad"  # the end of a graph
            target = targets.get(id(following.variable if leaf else following))
            if target is not None:
                if call is not None and not target.tensors.isdisjoint(call.sources):
                    continue
                name = target.parameter
            else:
                inside = owners.get(following)
                if inside is None or inside is call or following in results:
                    continue
                name = inside.parameter
            raise CannotSplitError(
                f"parameter {name!r}: expected all of its uses to be recorded, but {node.name()} "
                "uses it in a way that cannot be recorded; a custom autograd.Function, a gradient "
                "taken inside the model or compiled code is the usual cause"
            )


def require_visible(output: Tensor) -> None:
    """Check that the graph has all operations, so that plain autograd finds all gradients.

    Raises:
        CaptureError: If reentrant checkpointing hides some.
    """
    for _ in _nodes(output):
        pass


def _owners(calls: Iterable[GraphCall]) -> dict[Any, GraphCall]:
    """Node -> the call that made it, for the nodes between results and arguments of calls."""
    owners: dict[Any, GraphCall] = {}  # nodes are keys, so that their wrappers stay alive
    for call in calls:
        stack = [*call.results]
        while stack:
            node = stack.pop()
            if node is None or node in owners or node in call.before:
                continue
            edges = node.next_functions
            if edges:  # a leaf belongs to no call
                owners[node] = call
                stack += [following for following, _ in edges]
    return owners


class _Target(NamedTuple):
    """A parameter, or a node whose tensor depends on parameters only."""

    made_by: Any  # kept alive, because a released wrapper gives its id to the next one
    parameter: str
    tensors: set[int]  # ids of the tensors


def _targets(recorder: UseRecorder) -> dict[int, _Target]:
    """Targets by their ids. One node may give several tensors: the chunks of a packed weight."""
    targets: dict[int, _Target] = {}
    for key, origin in recorder.origins.items():
        made_by = origin.tensor if origin.tensor.grad_fn is None else origin.tensor.grad_fn
        target = targets.setdefault(id(made_by), _Target(made_by, origin.roots[0], set()))
        target.tensors.add(key)
    return targets


def _nodes(output: Tensor) -> Iterator[tuple[Any, Any]]:
    """All nodes of the graph below a tensor, with their edges.

    Raises:
        CaptureError: If reentrant checkpointing hides some.
    """
    stack: list[Any] = [output.grad_fn]
    seen: dict[int, Any] = {}  # nodes are values, so that their wrappers stay alive
    while stack:
        node = stack.pop()
        if node is None or id(node) in seen:
            continue
        seen[id(node)] = node
        if "CheckpointFunction" in node.name():
            raise CaptureError(
                "model: expected all operations in the graph, but reentrant checkpointing hides "
                "those inside it; pass use_reentrant=False to checkpoint, or turn it off"
            )
        edges = node.next_functions
        yield node, edges
        stack += [following for following, _ in edges]
