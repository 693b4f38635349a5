"""The calls of a pass, written down: a model that makes the same ones again was checked before.

The check against autograd asks whether rules are right for the calls of a model, and whether each
example is where it is taken to be. Both follow from the calls: which functions, on tensors of which
shapes and dtypes, with which other arguments, which of them parameters, and how many nodes of the
graph each made. Weights decide neither. A signature is kept only where every call leaves examples
in place whatever they contain, from the inputs to the loss.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from operator import sub
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._C import _are_functorch_transforms_active
from torch._C._autograd import _get_sequence_nr

from theodolite.engine._in_place import MadeCall, reads_numbers, stays_in_place
from theodolite.engine.calls import PLAIN

__all__ = ["Signature", "SignedCalls", "remember_check", "was_checked"]

Signature = tuple[Any, ...]
HasExamples = Callable[[Tensor], bool]

# Arguments, as far as they decide what a call does -> its number, and whether it leaves examples in
# place. Numbers are never given twice: a table that was emptied makes calls new, not alike.
_NUMBERS: dict[tuple[Any, ...], tuple[int, bool]] = {}
_COUNTER = count()
_MOST_CALLS = 2**16
_TOLD = frozenset({type(Ellipsis), torch.layout, torch.memory_format})  # as they are
_MOST_CHECKS = 64  # signatures of one model

# Model -> signatures of passes that agreed with autograd; no tensors are kept.
_CHECKED: WeakKeyDictionary[nn.Module, dict[Signature, None]] = WeakKeyDictionary()


def was_checked(model: nn.Module, signature: Signature | None) -> bool:
    """Whether a pass of this model with the same signature has agreed with autograd before."""
    return signature is not None and signature in _CHECKED.get(model, {})


def remember_check(model: nn.Module, signature: Signature | None) -> None:
    """A pass has agreed with autograd."""
    if signature is None:
        return
    known = _CHECKED.setdefault(model, {})
    known[signature] = None
    while len(known) > _MOST_CHECKS:
        del known[next(iter(known))]


class SignedCalls:
    """Calls of one pass, in order.

    Args:
        examples: Number of examples.
        origins: Identity of a tensor that is made of parameters -> its ``uses.Origin``.
        sure: Whether every other tensor with a gradient depends on the examples.

    Attributes:
        complete: Cleared where a call may move examples, has arguments that cannot be written down,
            or comes behind nodes of the graph that no call has made.
        starts: Running number of the graph's next node before each call.
        ends: The same after it.
    """

    def __init__(self, examples: int, origins: Mapping[int, Any], *, sure: bool) -> None:
        self.complete = True
        self.starts: list[int] = []
        self.ends: list[int] = []
        self._examples, self._origins, self._sure = examples, origins, sure
        self._entries: list[Any] = []
        self._last = _get_sequence_nr()
        self._key: list[Any] = []
        self._by_value, self._start = False, 0

    def begin(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        sources: dict[int, Any],
        has_examples: HasExamples,
    ) -> bool:
        """Write down a call that is about to be made; whether an argument depends on the examples.

        Args:
            function: The torch function.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            sources: Arguments that are made of parameters are added here.
            has_examples: Whether any other tensor depends on the examples. It is not kept: whose
                method it is would live until the next collection of garbage, with all its tensors.
        """
        self._by_value = False
        self._key = [function, self._examples]
        depends = self._describe(args, sources, has_examples)
        if kwargs:
            self._key += kwargs
            depends |= self._describe(kwargs.values(), sources, has_examples)
        self._start = _get_sequence_nr()
        return depends

    def _describe(
        self, values: Iterable[Any], sources: dict[int, Any], has_examples: HasExamples
    ) -> bool:
        key, depends, sure, origins = self._key, False, self._sure, self._origins
        for value in values:
            kind = type(value)
            known = kind is Tensor and sure and value.requires_grad and not value.is_nested
            if known and id(value) not in origins:  # by far the most
                key += (value.shape, value.dtype, True)
                depends = True
            elif isinstance(value, Tensor):
                depends |= self._describe_tensor(value, sources, has_examples)
            elif kind is bool:
                key += (kind, value)  # no 0 and no 1
            elif kind in PLAIN or kind in _TOLD:
                key.append(value)
            elif isinstance(value, list | tuple):
                key += (kind, len(value))
                depends |= self._describe(value, sources, has_examples)
            elif isinstance(value, dict):
                key += (kind, *value)
                depends |= self._describe(value.values(), sources, has_examples)
            elif kind is slice:
                key.append(kind)
                self._describe((value.start, value.stop, value.step), {}, has_examples)
            else:
                self.complete = False
        return depends

    def _describe_tensor(
        self, tensor: Tensor, sources: dict[int, Any], has_examples: HasExamples
    ) -> bool:
        origin = self._origins.get(id(tensor))
        if origin is not None:
            sources[id(tensor)] = origin
            self._key += (tensor.shape, tensor.dtype, origin.roots, origin.scale)
            return False
        depends = has_examples(tensor)
        if tensor.is_nested:
            self.complete = False
            return depends
        shape = tensor.shape
        self._key += (shape, tensor.dtype, depends)
        if not depends and len(shape) > 0 and shape[0] != 1 and tensor.stride(0) != 0:
            self._key.append(Tensor)  # of whose numbers nothing is known
            self._by_value = True
        return depends

    def end(self) -> bool:
        """Note the call once it was made; whether it is known to leave examples in place."""
        start, last = self._start, _get_sequence_nr()
        self.starts.append(start)
        self.ends.append(last)
        if start != self._last:
            self.complete = False
        self._last = last
        found = _NUMBERS.get(tuple(self._key))
        if found is None or self._by_value or _are_functorch_transforms_active():
            return False
        number, fine = found
        if fine:
            self._entries.append(number)
        return fine

    def learn(self, name: str, call: MadeCall | None) -> bool:
        """Whether the last call, which is not known to, leaves examples in place.

        Args:
            name: Name of the function.
            call: The call; None where no argument depends on the examples.
        """
        entry = tuple(self._key)
        found = _NUMBERS.get(entry)
        if found is None or (call is not None and reads_numbers(name)):
            fine = call is None or stays_in_place(name, call)
            if len(_NUMBERS) >= _MOST_CALLS:
                _NUMBERS.clear()
            found = _NUMBERS[entry] = (next(_COUNTER) if found is None else found[0], fine)
        number, fine = found
        self._entries.append(number)
        fine &= not _are_functorch_transforms_active()
        self.complete &= fine
        return fine

    def note(self, *what: Any) -> None:
        """What else decides about the last call."""
        self._entries.append(what)

    def resume(self) -> None:
        """Nodes of the graph that were made since the last call are nobody's."""
        self._last = _get_sequence_nr()

    def signature(self, *others: Any) -> Signature | None:
        """All calls, and what else decides; None where they cannot be told from others."""
        if not self.complete or self._last != _get_sequence_nr():
            return None
        nodes = map(sub, self.ends, self.starts)  # that each call has made
        return (*others, *self._entries, *nodes)
