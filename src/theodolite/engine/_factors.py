"""What is kept of each atom between the backward passes and the contraction."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from theodolite.engine._atoms import Atom
from theodolite.engine._patch_views import TapColumns, has_strips, strip_windows
from theodolite.engine._routes import Route
from theodolite.engine.forms import Geometry, Lookup, Outer
from theodolite.engine.uses import Use
from theodolite.errors import ShapeError

__all__ = ["Factors", "Frame", "Gradients", "LookupFactors", "OuterFactors", "compact"]

Gradients = tuple[Tensor | None, ...]

_WAITING_BYTES = 2**26  # signals that wait to be turned into gradients


@dataclass(frozen=True)
class Frame:
    """What all factors of one block of examples have in common."""

    examples: int
    outputs: int
    dtype: torch.dtype
    device: torch.device

    def zeros(self, *shape: int) -> Tensor:
        """A tensor of zeros with one row per example."""
        return torch.zeros(self.examples, *shape, dtype=self.dtype, device=self.device)


def compact(tensor: Tensor) -> Tensor:
    """A copy of what is a part of something larger, which would be kept in memory with it."""
    part = tensor.numel() * tensor.element_size() < tensor.untyped_storage().nbytes()
    return tensor.clone() if part else tensor


class Factors(ABC):
    """Factors of the gradients of one atom, for one block of examples."""

    def __init__(self, atom: Atom, frame: Frame) -> None:
        self.atom, self.frame = atom, frame

    @abstractmethod
    def begin(self, rows: slice, uses: Sequence[Use]) -> None:
        """Take what is needed from a forward pass over these examples."""

    @abstractmethod
    def add(self, output: int, gradients: Sequence[Gradients]) -> None:
        """Take the gradients of one output at each use, for the examples begun with."""

    def add_joint(self, outputs: range, gradients: Sequence[tuple[Tensor, ...]]) -> None:
        """Take the gradients of several outputs at each use, (outputs, n, ...)."""
        for index, output in enumerate(outputs):
            self.add(output, [tuple(part[index] for part in given) for given in gradients])

    @abstractmethod
    def end(self) -> None:
        """Let go of what only the backward passes needed."""

    @abstractmethod
    def release(self) -> None:
        """Let go of everything, after the contraction."""


def _padded(tensor: Tensor, axis: int, length: int) -> Tensor:
    """Zeros appended along one axis up to this length; positions of zero weight change nothing."""
    if tensor.shape[axis] == length:
        return tensor
    shape = list(tensor.shape)
    shape[axis] = length - shape[axis]
    return torch.cat([tensor, tensor.new_zeros(shape)], axis)


def _joined(parts: list[Tensor], axis: int) -> Tensor:
    """Parts side by side; no copy of a single one."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


class _Positions(Factors):
    """Signals (n, c, C, T) of all uses side by side, whatever the number of positions."""

    signals: Tensor | None = None

    def begin(self, rows: slice, uses: Sequence[Use]) -> None:
        """Remember the forms, which know how to read gradients."""
        for use in uses:
            use.require_unchanged()
        self._rows, self._uses = rows, uses

    def add(self, output: int, gradients: Sequence[Gradients]) -> None:
        """Copy signals into place; the only copy that is made of them."""
        signals = self._signals(gradients)
        if signals is None:
            return
        length = signals.shape[2]
        if self.signals is None:
            self.signals = self.frame.zeros(self.frame.outputs, signals.shape[1], length)
        if length > self.signals.shape[3]:
            self.signals = _padded(self.signals, 3, length)
        self.signals[self._rows, output, :, :length].copy_(signals)

    def _signals(self, gradients: Sequence[Gradients]) -> Tensor | None:
        parts = []
        for use, (gradient,) in zip(self._uses, gradients, strict=True):
            assert isinstance(use.form, (Outer, Lookup))
            if gradient is None:
                gradient = torch.zeros(
                    use.results[0], dtype=self.frame.dtype, device=self.frame.device
                )
            parts.append(use.form.signals(gradient))
        if all(given[0] is None for given in gradients):
            return None
        return _joined(parts, 2)

    def end(self) -> None:
        """Forget the graph."""
        self._uses = ()

    def release(self) -> None:
        """Forget signals and inputs."""
        self.signals = None


class LookupFactors(_Positions):
    """Tokens (n, T) and signals of a table."""

    tokens: Tensor | None = None

    def begin(self, rows: slice, uses: Sequence[Use]) -> None:
        """Keep the tokens; -1 stands for a position that does not exist."""
        super().begin(rows, uses)
        tokens = torch.cat([use.form.tokens for use in uses if isinstance(use.form, Lookup)], 1)
        if self.tokens is None:
            shape = (self.frame.examples, tokens.shape[1])
            self.tokens = torch.full(shape, -1, dtype=torch.long, device=tokens.device)
        missing = tokens.shape[1] - self.tokens.shape[1]
        if missing > 0:
            filler = self.tokens.new_full((len(self.tokens), missing), -1)
            self.tokens = torch.cat([self.tokens, filler], 1)
        self.tokens[rows, : tokens.shape[1]] = tokens

    def _signals(self, gradients: Sequence[Gradients]) -> Tensor | None:
        signals, scale = super()._signals(gradients), self._uses[0].origin.scale
        return signals if signals is None or scale in (None, 1.0) else signals * scale


class OuterFactors(_Positions):
    """Inputs and signals of a matrix, or its gradients where they are smaller.

    Args:
        atom: The atom.
        frame: Sizes.
        route: How the kernel will be contracted.
        eager: Whether to turn signals into gradients after every backward pass.
    """

    def __init__(self, atom: Atom, frame: Frame, route: Route, eager: bool) -> None:
        super().__init__(atom, frame)
        self.route, self.eager = route, eager
        self.geometry: Geometry | None = None
        self.inputs: Tensor | None = None
        self.gradients: list[Tensor] = []
        self._waiting: Tensor | None = None

    def begin(self, rows: slice, uses: Sequence[Use]) -> None:
        """Keep the inputs, as images where patches can be cut from them later."""
        super().begin(rows, uses)
        forms = [use.form for use in uses if isinstance(use.form, Outer)]
        single = len(forms) == 1 and forms[0].geometry is not None
        scale = uses[0].origin.scale
        if single:
            self.geometry = forms[0].geometry
            inputs = forms[0].inputs
        else:
            inputs = _joined([form.rows_of_inputs() for form in forms], 1)
        inputs = inputs.to(self.frame.dtype)
        self._inputs = inputs if scale in (None, 1.0) else inputs * scale
        if not self.eager:
            self._store(rows, self._inputs)

    def _store(self, rows: slice, inputs: Tensor) -> None:
        if inputs.shape[0] == self.frame.examples:
            self.inputs = compact(inputs)
            return
        if self.inputs is None:
            self.inputs = self.frame.zeros(*inputs.shape[1:])
        if self.geometry is not None and inputs.shape[1:] != self.inputs.shape[1:]:
            raise ShapeError(
                f"inputs: expected images of one size, got {tuple(self.inputs.shape[2:])} and "
                f"{tuple(inputs.shape[2:])}; resize them or pass one size at a time"
            )
        if self.geometry is None and inputs.shape[1] > self.inputs.shape[1]:
            self.inputs = _padded(self.inputs, 1, inputs.shape[1])
        self.inputs[(rows, slice(0, inputs.shape[1]))] = inputs

    def add(self, output: int, gradients: Sequence[Gradients]) -> None:
        """Keep signals, or the gradients that they make with the inputs."""
        if not self.eager:
            super().add(output, gradients)
            return
        signals = self._signals(gradients)
        if signals is not None:
            self._wait(output, signals)
        if self._waiting is not None and output + 1 == self._first + self._waiting.shape[1]:
            self._flush()

    def _wait(self, output: int, signals: Tensor) -> None:
        """Keep signals of a few outputs, so that patches are cut once for all of them."""
        if self._waiting is None:
            n, C, T = signals.shape
            size = n * C * T * self.frame.dtype.itemsize
            count = max(1, min(self.frame.outputs - output, _WAITING_BYTES // size))
            self._first = output
            if count == 1:  # large ones do not wait: no copy is made of them
                self._waiting = self._own(signals.unsqueeze(1))
                return
            self._waiting = torch.zeros(
                n, count, C, T, dtype=self.frame.dtype, device=signals.device
            )
        self._waiting[:, output - self._first].copy_(signals)

    def _flush(self) -> None:
        assert self._waiting is not None
        signals, self._waiting = self._waiting, None
        _, count, C, _ = signals.shape
        place = (self._rows, slice(self._first, self._first + count))
        number = 0
        for number, columns in enumerate(self._columns()):
            target = self._part(number, C, columns.shape[1])[place]
            torch.bmm(signals.flatten(1, 2), columns.transpose(1, 2), out=target.flatten(1, 2))
        if self.atom.shift is not None:
            self._part(number + 1, C, 1)[place] = signals.sum(3, keepdim=True)

    def add_joint(self, outputs: range, gradients: Sequence[tuple[Tensor, ...]]) -> None:
        """The same, in one copy where the matrix has a single use."""
        if len(gradients) > 1:
            super().add_joint(outputs, gradients)
            return
        form = self._uses[0].form
        assert isinstance(form, Outer)
        signals = _joint_signals(form, gradients[0][0])  # (n, outputs, C, T)
        if self.eager:
            self._waiting, self._first = self._own(signals), outputs.start
            self._flush()
        elif len(outputs) == self.frame.outputs and len(signals) == self.frame.examples:
            self.signals = self._own(signals)
        else:
            self._place(outputs, signals)

    def _own(self, signals: Tensor) -> Tensor:
        return signals.to(self.frame.dtype).contiguous()

    def _place(self, outputs: range, signals: Tensor) -> None:
        if self.signals is None:
            self.signals = self.frame.zeros(self.frame.outputs, *signals.shape[2:])
        length = signals.shape[3]
        self.signals = _padded(self.signals, 3, max(length, self.signals.shape[3]))
        self.signals[self._rows, outputs.start : outputs.stop, :, :length] = signals

    def _part(self, number: int, rows: int, columns: int) -> Tensor:
        if len(self.gradients) == number:
            self.gradients.append(self.frame.zeros(self.frame.outputs, rows, columns))
        return self.gradients[number]

    def _columns(self) -> Iterable[Tensor]:
        if self.geometry is None:
            return [self._inputs.transpose(1, 2)]
        if has_strips(self.geometry):
            return strip_windows(self._inputs, self.geometry)
        return TapColumns(self.geometry, self._inputs)

    def end(self) -> None:
        """Forget the graph and the inputs of the last run."""
        if self._waiting is not None:
            self._flush()
        super().end()
        del self._inputs

    def release(self) -> None:
        """Forget signals, inputs and gradients."""
        super().release()
        self.inputs = None
        self.gradients = []


def _joint_signals(form: Outer, gradients: Tensor) -> Tensor:
    """Signals of several outputs, from (outputs, n, ...) to (n, outputs, C, T), a view if possible.

    Those of the first output are a view in most cases. All others then lie in the same way, each at
    its place, and nothing has to be asked for output by output.
    """
    first = form.signals(gradients[0])
    if first.untyped_storage().data_ptr() != gradients.untyped_storage().data_ptr():
        return torch.stack([first, *(form.signals(part) for part in gradients[1:])], 1)
    shape, steps = (len(gradients), *first.shape), (gradients.stride(0), *first.stride())
    return gradients.as_strided(shape, steps, first.storage_offset()).transpose(0, 1)
