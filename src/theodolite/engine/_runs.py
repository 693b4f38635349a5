"""Run a model on some examples with every use of its parameters recorded."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from theodolite.engine._examples import Check, alike, output_differences, tolerance_of
from theodolite.engine._places import Prints, shuffled_halves
from theodolite.engine._signatures import Signature, was_checked
from theodolite.engine.batches import Batch
from theodolite.engine.calls import NotFollowedError, tensors_in
from theodolite.engine.layers import Ownership
from theodolite.engine.readouts import OutputChoice, Readout, read_outputs
from theodolite.engine.state import (
    generator_states,
    quiet_vmap,
    rounding_dtypes,
)
from theodolite.engine.uses import CallTensors, Use, UseRecorder, require_complete, require_visible
from theodolite.errors import CaptureError, NotFiniteError

__all__ = [
    "BatchLoss",
    "ForwardRun",
    "ModelRecorder",
    "Progress",
    "ProgressCounter",
    "as_real",
    "plain_gradients",
    "without_gradients",
]

Progress = Callable[[float, str], None]
BatchLoss = Callable[[Tensor, Batch], Tensor]


class ProgressCounter:
    """Counts pieces of work of about the same size.

    Args:
        watch: A function of (share that is done, what was done); None to tell nobody.
        total: Number of pieces.
    """

    def __init__(self, watch: Progress | None, total: int) -> None:
        self._watch, self._total, self._count = watch, max(1, total), 0

    def done(self, text: str) -> None:
        """One more piece is asked for; on a GPU it may still be running."""
        self._count += 1
        if self._watch is not None:
            self._watch(min(1.0, self._count / self._total), text)


_MemoryKey = tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]
# Model -> where the examples lie in the tensors of all calls; no tensors are kept.
_REMEMBERED: WeakKeyDictionary[nn.Module, dict[_MemoryKey, list[CallTensors]]] = WeakKeyDictionary()


@dataclass(frozen=True)
class ForwardRun:
    """One recorded forward pass: functions of the examples (n, c) and the uses of parameters.

    Args:
        outputs: The functions.
        uses: The uses.
        result_bytes: Bytes of all results of calls.
        dtypes: In which numbers results were rounded.
        decisions: Numbers that the model's Python code got to decide by.
        draws: Whether random numbers were drawn.
        require_complete: Raises if a use of a parameter went unseen.
        losses: One number per example, where they were asked for.
        signature: Equal for passes that differ in weights and numbers alone; None if unsure.
        remembered: Whether a pass with this signature has agreed with autograd before.
    """

    outputs: Tensor
    uses: list[Use]
    result_bytes: int
    dtypes: frozenset[torch.dtype] = frozenset()
    decisions: tuple[Any, ...] = ()
    draws: bool = False
    require_complete: Callable[[], None] = lambda: None
    losses: Tensor | None = None
    signature: Signature | None = None
    remembered: bool = False

    @property
    def kind(self) -> tuple[Any, ...]:
        """Equal for runs that took the same way through the model."""
        return self.decisions, tuple((use.function, use.by_rule) for use in self.uses)

    def passes(
        self, keep_graph: bool = False, wanted: Collection[int] | None = None
    ) -> Iterator[tuple[int, list[tuple[Tensor | None, ...]]]]:
        """For every output: the gradients of its sum that arrive at each use, None where zero.

        Args:
            keep_graph: Whether the graph is needed afterwards.
            wanted: Places of the uses that matter; nothing comes for others. None for all.
        """
        edges = self._edges(wanted)
        count = self.outputs.shape[1] if edges else 0
        for index in range(count):  # nothing here holds on to the gradients of an output
            keep = keep_graph or index + 1 < count
            yield index, self._by_use(self._pass(edges, index, keep), wanted)

    def _edges(self, wanted: Collection[int] | None) -> list[GradientEdge]:
        uses = enumerate(self.uses)
        return [e for place, use in uses if wanted is None or place in wanted for e in use.edges]

    def _pass(self, edges: list[GradientEdge], index: int, keep: bool) -> list[Tensor | None]:
        total = self.outputs[:, index].sum()
        return list(torch.autograd.grad(total, edges, retain_graph=keep, allow_unused=True))

    def joint_passes(
        self, outputs: range, wanted: Collection[int] | None = None
    ) -> list[tuple[Tensor, ...]] | None:
        """Gradients of several outputs in one vectorised pass, (outputs, n, ...) at each edge.

        Returns None where an operation cannot be vectorised, or a use does not reach all outputs.
        """
        edges = self._edges(wanted)
        n, c = self.outputs.shape
        seeds = torch.eye(c, dtype=self.outputs.dtype, device=self.outputs.device)

        def single(seed: Tensor) -> tuple[Tensor, ...]:
            # Not of a weighted sum: what is vectorised must be the weights, not the outputs.
            return torch.autograd.grad(
                self.outputs, edges, seed.expand(n, c), retain_graph=True, allow_unused=False
            )

        try:
            grads: tuple[Tensor, ...] = quiet_vmap(single)(seeds[outputs.start : outputs.stop])
        except RuntimeError:
            return None
        found = self._by_use([*grads], wanted)
        return [tuple(item for item in use if item is not None) for use in found]

    @property
    def output_grad_bytes(self) -> int:
        """Bytes of the gradients of all outputs at all uses; 0 if some are nested."""
        if any(shape == () for use in self.uses for shape in use.results):
            return 0
        calls = {use.call: use.results for use in self.uses}  # uses of one call share its results
        sizes = (torch.Size(shape).numel() for shapes in calls.values() for shape in shapes)
        return sum(sizes) * self.outputs.shape[1] * self.outputs.element_size()

    def _by_use(
        self, grads: list[Tensor | None], wanted: Collection[int] | None
    ) -> list[tuple[Tensor | None, ...]]:
        position, grouped = 0, []
        for place, use in enumerate(self.uses):
            count = len(use.edges) if wanted is None or place in wanted else 0
            grouped.append(tuple(grads[position : position + count]))
            position += count
        return grouped


@dataclass
class ModelRecorder:
    """A model with everything that decides what is differentiated with respect to what.

    Args:
        model: The model.
        ownership: Its parameters.
        readout: From its outputs to (n, c).
        choice: Which functions of those.
        trusted: Whether nothing is checked.
        check: Whether examples are looked for, in one batch of each kind or in ``"every"`` one.

    Attributes:
        unsure: Whether some examples could not be compared beside others, as where lengths depend
            on the batch: all of them must then be compared with plain autograd.
        dtypes: In which numbers the results of all runs so far were rounded.
        decided: Numbers that the model's Python code decided by, of all runs so far.
        remembers: Whether an earlier call has told where examples lie, instead of a pass of one
            example alone.
        arithmetic: What else decides how gradients are made of what passes leave.
    """

    model: nn.Module
    ownership: Ownership
    readout: Readout
    choice: OutputChoice
    trusted: bool = False
    check: Check = True
    unsure: bool = False
    dtypes: set[torch.dtype] = field(default_factory=set)
    decided: set[tuple[Any, ...]] = field(default_factory=set)
    remembers: bool = False
    arithmetic: tuple[Any, ...] = ()
    _kinds: set[tuple[Any, ...]] = field(default_factory=set)
    _looked: bool = False
    _references: dict[tuple[tuple[int, ...], ...], list[CallTensors]] = field(default_factory=dict)

    def run(self, batch: Batch, loss: BatchLoss | None = None) -> ForwardRun:
        """Record a forward pass; the first of each shape is preceded by one example alone.

        Args:
            batch: The examples.
            loss: From outputs and batch to one number per example, if it is wanted too.
        """
        reference = None if len(batch) == 1 else self._reference(batch)
        checked = bool(self.check) and not self.trusted
        # Where one batch had to be looked at, the next are noted while they are recorded.
        prints = Prints() if checked and self.check == "every" and self._looked else None
        run, recorded = self._record(batch, reference, prints, loss=loss)
        if recorded.moved is not None:
            raise NotFollowedError(f"{recorded.moved} moves examples about by what they contain")
        new = run.kind not in self._kinds
        self._kinds.add(run.kind)
        if not self.trusted and new and not run.remembered:
            run.require_complete()  # another way through the model than the first example's
        looked = self.check == "every" or (new and not run.remembered)
        if checked and looked and not recorded.leaves_in_place(run.outputs):
            self._look_for_examples(batch, run, reference, prints)
        if reference is not None:
            self._remember(batch, reference)
        return run

    def _look_for_examples(
        self,
        batch: Batch,
        run: ForwardRun,
        reference: list[CallTensors] | None,
        prints: Prints | None,
    ) -> None:
        """All examples once more, beside others: every call must receive the same from each.

        Args:
            batch: The examples.
            run: Their pass.
            reference: Where one example alone lies in the tensors of all calls.
            prints: What calls received in that pass; None where it was not noted.

        Raises:
            NotFollowedError: If one receives anything else; names its function.
        """
        if len(batch) == 1:
            return
        self._looked = True
        if prints is None:
            prints = Prints()
            self._record(batch, reference, prints)
        allowed = tolerance_of({run.outputs.dtype} | self.rounding)
        for places in shuffled_halves(len(batch)):
            again = Prints(prints)
            other, _ = self._record(batch.take(places), reference, again)
            if not prints.like(again):
                self.unsure = True
                continue
            name = prints.misplaced(again, places, allowed)
            if name is not None:
                raise NotFollowedError(f"{name} receives other examples than those in its places")
            outputs = (run.outputs[places].nan_to_num(), other.outputs.nan_to_num())
            if not alike(output_differences(*outputs), allowed):
                raise NotFollowedError("examples have other outputs beside other examples")

    def run_alone(self, batch: Batch) -> ForwardRun:
        """One example alone, with a check that no use of a parameter went unseen."""
        run, recorded = self._record(batch, None)
        run.require_complete()
        self._references[_key(batch)] = recorded.calls
        return run

    def run_plainly(self, batch: Batch) -> Tensor:
        """Functions of one example, (1, c), for plain autograd."""
        outputs = self.outputs(batch)
        self.require_usable(outputs)
        require_visible(outputs)
        return outputs

    def outputs(self, batch: Batch, around: AbstractContextManager[Any] | None = None) -> Tensor:
        """Functions of the examples, (n, c), without recording anything.

        Args:
            batch: The examples.
            around: What the call of the model, and nothing else, is put into.
        """
        with around or nullcontext():
            returned = batch.run(self.model)
        return self.choice.select(read_outputs(returned, batch, self.readout), batch)

    def _reference(self, batch: Batch) -> list[CallTensors]:
        key = _key(batch)
        if key not in self._references:
            remembered = _REMEMBERED.get(self.model, {}).get(self._memory_key(batch))
            if remembered is not None:
                self._references[key] = remembered
                self.remembers = True
        if key not in self._references:
            self.run_alone(batch.take(slice(0, 1)))
        return self._references[key]

    def forget(self) -> bool:
        """Look up again where examples lie; whether it had been remembered from earlier calls."""
        _REMEMBERED.pop(self.model, None)
        self._references.clear()
        remembered, self.remembers = self.remembers, False
        return remembered

    def _memory_key(self, batch: Batch) -> _MemoryKey:
        return tuple(self.ownership.parameters), _key(batch)

    def _remember(self, batch: Batch, reference: list[CallTensors]) -> None:
        known = _REMEMBERED.setdefault(self.model, {})
        key = self._memory_key(batch)
        if key not in known:
            kept = [found for call in reference if (found := call.without_tensors()) is not None]
            if len(kept) == len(reference):
                known[key] = kept

    def _record(
        self,
        batch: Batch,
        reference: list[CallTensors] | None,
        prints: Prints | None = None,
        loss: BatchLoss | None = None,
    ) -> tuple[ForwardRun, UseRecorder]:
        recorded = UseRecorder(
            self.ownership.parameters,
            (batch.args, dict(batch.kwargs)),
            len(batch),
            reference,
            prints,
            self._others,
            signed=bool(self.check) and not self.trusted and prints is None,
            targets=(batch.targets, batch.mask, batch.positions),
        )
        device = next(iter(self.ownership.parameters.values())).device
        before = generator_states(device)
        with recorded:
            returned = batch.run(self.model)
            recorded.in_model = False
            outputs = read_outputs(returned, batch, self.readout)
            values = self.choice.select(outputs, batch)
            recorded.in_outputs = False
            losses = None if loss is None else loss(values, batch)
        self.require_usable(values)
        if recorded.made_of_parameters(values):
            raise NotFollowedError(
                "outputs are not seen to depend on the examples: NumPy, nested tensors or code out "
                "of sight made what the layers receive"
            )
        states = zip(before, generator_states(device), strict=True)
        draws = any(not torch.equal(*pair) for pair in states)
        others = (*self.arithmetic, values.device, tuple(recorded.decisions))
        signature = None if draws else recorded.signature(*others)
        run = ForwardRun(
            values,
            recorded.uses,
            recorded.result_bytes,
            frozenset(recorded.dtypes),
            tuple(recorded.decisions),
            draws,
            partial(require_complete, values, recorded),
            losses,
            signature,
            self.check is True and was_checked(self.model, signature),
        )
        self.dtypes |= run.dtypes
        self.decided.add(run.decisions)
        return run, recorded

    @cached_property
    def _others(self) -> list[Tensor]:
        """Parameters that have gradients and are not followed."""
        followed = set(map(id, self.ownership.parameters.values()))
        return [p for p in self.ownership.trained if id(p) not in followed]

    def wrong_rule(self, functions: Sequence[str]) -> str:
        """What to make of a single example whose gradients are not those of plain autograd."""
        parameters = self.ownership.parameters.items()
        hooked = [name for name, parameter in parameters if parameter._backward_hooks]
        if hooked:
            return f"hooks change the gradient of {hooked[0]!r}: remove them while measuring"
        return (
            "unless a hook changes gradients, or the model changes from pass to pass, the rule of "
            f"one of {list(functions)} is wrong for this call: report it, or remove it from "
            "theodolite.engine.rules.RULES"
        )

    @property
    def branches(self) -> bool:
        """Whether the model's Python code has decided in one way for some examples only."""
        return len(self.decided) > 1

    @property
    def rounding(self) -> set[torch.dtype]:
        """In which numbers the model's results are rounded, as far as runs have shown."""
        return self.dtypes | rounding_dtypes(self.ownership.parameters.values())

    def require_usable(self, values: Tensor) -> None:
        """The outputs have a gradient."""
        if values.grad_fn is None:
            raise CaptureError(
                "model: expected outputs that depend on its parameters, got a constant; a "
                "no_grad block or a detach inside the model is the usual cause"
            )

    def model_outputs(self, batch: Batch) -> Tensor:
        """Outputs of the model, (n, c), without gradients, whatever is made of them."""
        return without_gradients(lambda: read_outputs(batch.run(self.model), batch, self.readout))

    def values(self, batch: Batch) -> Tensor:
        """Functions of the examples, (n, c), without gradients."""
        return without_gradients(lambda: self.outputs(batch))

    def require_finite(self, values: Tensor) -> None:
        """The outputs are finite; otherwise the message names the parameter that is not."""
        if values.detach().cpu().isfinite().all():  # few numbers: one copy instead of five kernels
            return
        for name, parameter in self.model.named_parameters():
            if not parameter.detach().isfinite().all():
                raise NotFiniteError(
                    f"model: expected finite weights, got NaN or infinity in {name!r}; a diverged "
                    "run is the usual cause, load an earlier checkpoint"
                )
        raise NotFiniteError(
            "model: expected finite outputs, got NaN or infinity; check the inputs and the scale "
            "of the activations"
        )


def without_gradients(compute: Callable[[], Tensor]) -> Tensor:
    """A result without its graph; with one for models that take gradients themselves."""
    try:
        with torch.no_grad():
            return compute()
    except RuntimeError:
        return compute().detach()


def plain_gradients(
    outputs: Tensor,
    parameters: Mapping[str, Tensor],
    seed: Tensor | None = None,
    *,
    keep: bool = False,
) -> dict[str, Tensor]:
    """Autograd's own gradients, as real dense tensors; a complex entry is two numbers.

    Args:
        outputs: What is differentiated.
        parameters: Name -> tensor; those that the outputs do not depend on are left out.
        seed: Weights of the outputs; None for a single number.
        keep: Whether the graph is needed again.
    """
    total = outputs if seed is None else (outputs * seed).sum()
    wanted = list(parameters.values())
    found = torch.autograd.grad(total, wanted, retain_graph=keep, allow_unused=True)
    present = {name: g for name, g in zip(parameters, found, strict=True) if g is not None}
    return {name: as_real(gradient) for name, gradient in present.items()}


def as_real(gradient: Tensor) -> Tensor:
    """A gradient as a real dense tensor; a complex entry is two numbers."""
    gradient = gradient.detach()
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    return torch.view_as_real(dense) if dense.is_complex() else dense


def _key(batch: Batch) -> tuple[tuple[int, ...], ...]:
    """Shapes of one example, which decide the axes of examples in later calls."""
    tensors = tensors_in((batch.args, dict(batch.kwargs)))
    return tuple(tuple(tensor.shape[1:]) if not tensor.is_nested else () for tensor in tensors)
