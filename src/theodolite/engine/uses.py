"""Record every use of a parameter during a forward pass, whoever makes the call.

Modules are not asked: functional and second uses, attention's output projection, tied and
re-parametrised weights and bare parameters are seen alike. The gradient edge of a result is taken
when the call returns; after an in-place operation the stored tensor would be silently wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active
from torch._C._autograd import _get_sequence_nr, _top_saved_tensors_default_hooks
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from theodolite.engine.axes import Axis, find_axis
from theodolite.engine.fixed_norms import fixed_norm
from theodolite.engine.forms import Form, Lookup, Outer
from theodolite.engine.origins import Origin, derive
from theodolite.engine.rules import RULES, replay
from theodolite.engine.sites import Site, function_name, tensors_in
from theodolite.engine.turned_convs import turned_convolution
from theodolite.errors import CaptureError

__all__ = ["CallTensors", "Use", "UseRecorder"]

Interval = tuple[int, int]


@dataclass(frozen=True)
class CallTensors:
    """All tensors that went into and came out of one call, for a single example.

    ``axes`` remembers where examples lie in the same call for many, once that was found.
    """

    function: str
    given: tuple[Tensor, ...]
    returned: tuple[Tensor, ...]
    axes: dict[int, Axis | None] = field(default_factory=dict)

    def find_axes(self, tensors: list[Tensor], examples: int) -> list[Axis | None]:
        """Axes of examples in the tensors of the same call for many examples, in order."""
        for index, (one, tensor) in enumerate(
            zip((*self.given, *self.returned), tensors, strict=True)
        ):
            if index not in self.axes:
                self.axes[index] = find_axis(one, tensor, examples)
        return [self.axes[index] for index in range(len(tensors))]

    def without_tensors(self) -> "CallTensors | None":
        """What the call has shown about axes, without its tensors; None if nothing yet."""
        if len(self.axes) < len(self.given) + len(self.returned):
            return None
        empty = torch.empty(0)
        given, returned = (empty,) * len(self.given), (empty,) * len(self.returned)
        return CallTensors(self.function, given, returned, self.axes)


@dataclass(frozen=True)
class Use:
    """One call of a torch function that received a parameter, or a tensor made of parameters.

    Args:
        origin: The tensor that was used and the parameters behind it.
        form: How gradients of the call's result become gradients of examples.
        edges: Where the gradients of the call's results arrive.
        results: Shapes of those results; empty for nested tensors.
        function: Name of the torch function.
        call: Number of the call; uses of one call share it.
        by_rule: Whether a rule was found; otherwise the call is replayed.
        watched: Tensors kept for later, with the version they had.
    """

    origin: Origin
    form: Form
    edges: tuple[GradientEdge, ...]
    results: tuple[tuple[int, ...], ...]
    function: str
    call: int
    by_rule: bool
    watched: tuple[tuple[Tensor, int], ...] = field(repr=False, default=())

    def require_unchanged(self) -> None:
        """No tensor that was kept has been overwritten since."""
        for tensor, version in self.watched:
            if tensor._version != version:
                raise CaptureError(
                    f"{self.function}: expected its input to stay as it was until the backward "
                    "pass, but an in-place operation has overwritten it; autograd would refuse the "
                    "weight's gradient too: replace that operation by its out-of-place form"
                )


# Python functions that are looked into rather than taken as one call.
OPENED: tuple[Callable[..., Any], ...] = (functional.multi_head_attention_forward,)


def _opened(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, past its dispatch line, so that the calls inside are seen."""
    assert isinstance(function, FunctionType)
    names = {**function.__globals__, "has_torch_function": lambda _tensors: False}
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__)


class UseRecorder(TorchFunctionMode):
    """Record uses of parameters while the block runs.

    Args:
        parameters: Name -> parameter.
        inputs: Tensors that depend on the examples: the model's inputs.
        examples: Number of examples.
        reference: The same calls for a single example, which tell where examples lie.
    """

    def __init__(
        self,
        parameters: dict[str, torch.nn.Parameter],
        inputs: Any,
        examples: int,
        reference: list[CallTensors] | None = None,
    ) -> None:
        super().__init__()
        self.uses: list[Use] = []
        self.calls: list[CallTensors] = []
        self._count = 0
        self.intervals: dict[int, list[Interval]] = {}
        self.result_bytes = 0
        self.origins = {id(p): Origin((name,), p, 1.0) for name, p in parameters.items()}
        self._examples, self._reference = examples, reference
        self._of_examples = WeakTensorKeyDictionary()
        for tensor in tensors_in(inputs):
            self._of_examples[tensor] = True

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call the function; keep what is needed where a parameter takes part."""
        kwargs = kwargs or {}
        given = tensors_in((args, kwargs))
        sources = {id(tensor): self.origins[id(tensor)] for tensor in given if self._made(tensor)}
        if sources and func in OPENED:
            with self:
                return _opened(func)(*args, **kwargs)
        if sources and _overwrites(func):
            kept = (args[0].clone() if isinstance(args[0], Tensor) else args[0], *args[1:])
        else:
            kept = args
        start = _get_sequence_nr()
        result = self._result(func, args, kwargs, followed=bool(sources))
        returned = tensors_in(result)
        depends = any(self._depends(tensor) for tensor in given)
        self._mark(returned, depends)
        results = [t for t in returned if t.requires_grad and id(t) not in sources]
        if sources and results:
            self._note_interval(sources, (start, _get_sequence_nr()))
            if depends:
                self._record(func, kept, kwargs, list(sources.values()), returned)
            else:
                self._derive(func, args, kwargs, list(sources.values()), results)
        return result

    def _result(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        followed: bool,
    ) -> Any:
        """What the function returns, where many examples follow with a cheaper way back."""
        cheaper: Tensor | None = None
        if self._examples > 1 and not _wrapped():
            cheaper = turned_convolution(func, args, kwargs)
            if cheaper is None and not followed:
                cheaper = fixed_norm(func, args, kwargs)
        return func(*args, **kwargs) if cheaper is None else cheaper

    def _made(self, tensor: Tensor) -> bool:
        """Whether a tensor is a parameter or made of parameters only."""
        origin = self.origins.get(id(tensor))
        return origin is not None and origin.tensor is tensor

    def _depends(self, tensor: Tensor) -> bool:
        """Whether a tensor depends on the examples."""
        if self._made(tensor):
            return False
        return tensor.requires_grad or tensor in self._of_examples

    def _mark(self, returned: list[Tensor], depends: bool) -> None:
        for tensor in returned:
            if depends and not tensor.requires_grad:
                self._of_examples[tensor] = True
            if not tensor._is_view():
                self.result_bytes += tensor.numel() * tensor.element_size()

    def _note_interval(self, sources: dict[int, Origin], interval: Interval) -> None:
        for key in sources:
            self.intervals.setdefault(key, []).append(interval)

    def _derive(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        sources: list[Origin],
        results: list[Tensor],
    ) -> None:
        for tensor in results:
            self.origins[id(tensor)] = derive(func, (args, kwargs), sources, tensor)

    def _record(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        sources: list[Origin],
        returned: list[Tensor],
    ) -> None:
        given = tensors_in((args, kwargs))
        detached = {id(tensor): tensor.detach() for tensor in given}
        self._count += 1
        if self._examples == 1:
            kept = tuple(detached[id(tensor)] for tensor in given)
            after = tuple(tensor.detach().clone() for tensor in returned)
            self.calls.append(CallTensors(function_name(func), kept, after))
        found = self._axes(function_name(func), given, sources, returned)
        axes = {id(detached[id(tensor)]): axis for tensor, axis in zip(given, found, strict=False)}
        result_axes = tuple(found[len(given) :])
        args, kwargs = _replaced((args, kwargs), detached)
        edges = tuple(get_gradient_edge(tensor) for tensor in returned if tensor.requires_grad)
        for origin in sources:
            source = detached[id(origin.tensor)]
            site = Site(func, args, kwargs, source, self._examples, axes, result_axes)
            self._add(site, origin, edges, returned)

    def _add(
        self,
        site: Site,
        origin: Origin,
        edges: tuple[GradientEdge, ...],
        returned: list[Tensor],
    ) -> None:
        keep = tuple(tensor.requires_grad for tensor in returned)
        results = tuple(_sizes(tensor) for tensor in returned if tensor.requires_grad)
        rule = RULES.get(site.function)
        form = rule(site) if rule is not None else None
        by_rule = form is not None
        if form is None:
            form = replay(site, keep)
        watched = tuple((tensor, tensor._version) for tensor in _needs(form))
        name = function_name(site.function)
        self.uses.append(Use(origin, form, edges, results, name, self._count, by_rule, watched))

    def _axes(
        self, function: str, given: list[Tensor], sources: list[Origin], returned: list[Tensor]
    ) -> list[Axis | None]:
        """Where the examples lie in all tensors of a call."""
        tensors = [*given, *returned]
        if self._examples == 1:
            return [None] * len(tensors)
        reference = self._reference or []
        one = reference[self._count - 1] if self._count <= len(reference) else None
        counts = (function, len(given), len(returned))
        if one is not None and (one.function, len(one.given), len(one.returned)) == counts:
            return one.find_axes(tensors, self._examples)
        made = {id(origin.tensor) for origin in sources}  # no axis of examples, for all we know
        return [None if id(t) in made else find_axis(None, t, self._examples) for t in tensors]


def _wrapped() -> bool:
    """Whether the model has wrapped the call: in a vmap, or a checkpoint that will repeat it."""
    return _are_functorch_transforms_active() or _top_saved_tensors_default_hooks(True) is not None


def _replaced(value: Any, detached: dict[int, Tensor]) -> Any:
    """Nested arguments with every tensor replaced by its detached twin."""
    if isinstance(value, Tensor):
        return detached[id(value)]
    if isinstance(value, dict):
        return {key: _replaced(item, detached) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_replaced(item, detached) for item in value)
    return value


def _sizes(tensor: Tensor) -> tuple[int, ...]:
    return () if tensor.is_nested else tuple(tensor.shape)


def _needs(form: Form) -> tuple[Tensor, ...]:
    if isinstance(form, Outer):
        return (form.inputs,)
    return (form.tokens,) if isinstance(form, Lookup) else form.needs


def _overwrites(func: Callable[..., Any]) -> bool:
    name = function_name(func)
    return (name.endswith("_") and not name.endswith("__")) or (
        name.startswith("__i") and name not in ("__index__", "__invert__", "__int__")
    )
