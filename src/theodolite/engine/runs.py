"""Run a model on some examples with every use of its parameters recorded."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from theodolite.engine.batches import Batch
from theodolite.engine.calls import CannotSplitError, ResultGrads, split_examples, tensors_in
from theodolite.engine.check import Cause, Checker, SingleRun
from theodolite.engine.compare import require_finite
from theodolite.engine.layers import Ownership
from theodolite.engine.readouts import OutputChoice, Readout, read_outputs
from theodolite.engine.recorder import (
    CallTensors,
    Use,
    UseRecorder,
    require_complete,
    require_visible,
)
from theodolite.engine.rounding import Comparison, Rounding
from theodolite.engine.state import (
    quiet_vmap,
    rounding_dtypes,
    trim_memory,
    without_gradients,
)
from theodolite.errors import CaptureError

Progress = Callable[[float, str], None]
BatchLoss = Callable[[Tensor, Batch], Tensor]


@dataclass(frozen=True)
class ForwardRun:
    """One recorded forward pass: the differentiated outputs and the uses of parameters."""

    outputs: Tensor  # the differentiated outputs, (n, c)
    uses: list[Use]
    result_bytes: int  # bytes of all results of calls
    rounding: Rounding = field(default_factory=Rounding)
    # Names of calls through which one example may affect another.
    suspects: frozenset[str] = frozenset()
    losses: Tensor | None = None  # one number per example, if a loss was given
    single: SingleRun | None = None  # one of the examples alone, if it was run and compared

    @property
    def signature(self) -> tuple[Any, ...]:
        """A key that is equal for runs with the same calls."""
        return tuple((use.function, use.by_rule) for use in self.uses)

    def first_uses(self, wanted: Collection[int] | None = None) -> dict[int, Use]:
        """Number of a call -> its first use. All uses in a call share the edges of its results.

        ``wanted`` are the indices of the requested uses, here and below; None for all.
        """
        found: dict[int, Use] = {}
        for index, use in enumerate(self.uses):
            if wanted is None or index in wanted:
                found.setdefault(use.call_number, use)
        return found

    def edges(self, wanted: Collection[int] | None = None) -> list[GradientEdge]:
        """Where gradients arrive: at the results of calls."""
        return [edge for use in self.first_uses(wanted).values() for edge in use.edges]

    def passes(
        self, keep_graph: bool = False, wanted: Collection[int] | None = None
    ) -> Iterator[tuple[int, list[ResultGrads]]]:
        """For every output the gradients of its sum over examples, at each use; None if zero."""
        edges = self.edges(wanted)
        count = self.outputs.shape[1] if edges else 0
        for index in range(count):  # no reference to the gradients of an output is kept here
            keep = keep_graph or index + 1 < count
            yield index, self.by_use(self._pass(edges, index, keep), wanted)

    def _pass(self, edges: list[GradientEdge], index: int, keep: bool) -> list[Tensor | None]:
        total = self.outputs[:, index].sum()
        return list(torch.autograd.grad(total, edges, retain_graph=keep, allow_unused=True))

    def joint_passes(
        self,
        outputs: range,
        wanted: Collection[int] | None = None,
        extra_seed: Float[Tensor, "n c"] | None = None,
    ) -> list[Tensor]:
        """Gradients of several outputs in one vectorised pass, (outputs, n, ...) at each edge.

        ``extra_seed`` starts one more pass, the last of each result. torch raises a RuntimeError if
        it cannot vectorise an operation, or if a use does not reach all outputs.
        """
        edges = self.edges(wanted)
        n, c = self.outputs.shape
        one_output = torch.eye(c, dtype=self.outputs.dtype, device=self.outputs.device)
        seeds = one_output[outputs.start : outputs.stop, None].expand(-1, n, -1)
        seeds = seeds if extra_seed is None else torch.cat([seeds, extra_seed[None]])

        def backward(seed: Tensor) -> tuple[Tensor, ...]:
            # The seeds are vectorised, not the outputs, so this is not a weighted sum.
            return torch.autograd.grad(
                self.outputs, edges, seed, retain_graph=True, allow_unused=False
            )

        return [*quiet_vmap(backward)(seeds)]

    @property
    def output_grad_bytes(self) -> int:
        """Bytes of the gradients of all outputs at all uses; 0 if some are nested."""
        if any(shape == () for use in self.uses for shape in use.result_shapes):
            return 0
        calls = {
            use.call_number: use.result_shapes for use in self.uses
        }  # uses in one call share its results
        sizes = (torch.Size(shape).numel() for shapes in calls.values() for shape in shapes)
        return sum(sizes) * self.outputs.shape[1] * self.outputs.element_size()

    def by_use(
        self, grads: Sequence[Tensor | None], wanted: Collection[int] | None = None
    ) -> list[ResultGrads]:
        """Gradients at the results of calls, for each requested use."""
        arrived: dict[int, ResultGrads] = {}
        position = 0
        for call, use in self.first_uses(wanted).items():
            arrived[call] = tuple(grads[position : position + len(use.edges)])
            position += len(use.edges)
        return [
            arrived[use.call_number] if wanted is None or index in wanted else ()
            for index, use in enumerate(self.uses)
        ]


class _SingleRecord(NamedTuple):
    """A recorded run of a single example, and the tensors of its calls."""

    batch: Batch
    run: ForwardRun
    calls: list[CallTensors]


@dataclass
class ModelRecorder:
    """A model with the choice of outputs and parameters for gradients.

    Args:
        model: The model.
        ownership: Its parameters.
        readout: Function of its output that returns (n, c).
        choice: The differentiated outputs.
        checker: The checks and their results so far.

    Attributes:
        batch: The batch of the last run.
        tolerance: Relative difference between two passes that rounding can explain, the largest of
            all runs so far.
        unit: The unit of rounding of the coarsest result.
    """

    model: nn.Module
    ownership: Ownership
    readout: Readout
    choice: OutputChoice
    checker: Checker = field(default_factory=lambda: Checker(False))
    batch: Batch | None = None
    tolerance: float = 0.0
    unit: float = 0.0
    # A copy begins anew with these three. Signatures of runs in which no use was missed.
    _verified: set[tuple[Any, ...]] = field(default_factory=set, init=False)
    # Calls of a single example, by the shapes of its inputs.
    _references: dict[Any, list[CallTensors]] = field(default_factory=dict, init=False)
    # An example that has run before its batch, with its index in the data.
    _run_before: tuple[int, "_SingleRecord"] | None = field(default=None, init=False)

    def run(
        self, batch: Batch, loss: BatchLoss | None = None, examples: Sequence[int] | None = None
    ) -> ForwardRun:
        """Record a forward pass, after a pass of one of its examples alone.

        The single example shows the axes of examples in the tensors of all calls. If batches are
        checked, it must make the same calls with the same numbers as in the batch, and have the
        same outputs. In a batch with a suspect call several examples must.

        Args:
            batch: The examples.
            loss: Function of outputs and batch that returns one number per example, or None.
            examples: Their indices in the data, for messages; None if they are its beginning.

        Raises:
            CannotSplitError: If a single run of an example differs from its batch.
            NotFiniteError: If an output is not finite.
        """
        self.batch = batch
        run_before, self._run_before = self._run_before, None
        named = range(len(batch)) if examples is None else examples
        checked = bool(self.checker.mode) and len(batch) > 1
        single_rows: list[int] = []
        singles: list[_SingleRecord] = []
        if checked:
            single_rows = self.checker.draw_single_rows(len(batch))
            if run_before is not None and run_before[0] in named:
                row = named.index(run_before[0])
                single_rows = [row, *(other for other in single_rows if other != row)]
                singles = [run_before[1]]
            else:
                singles = [self._record_single(batch, single_rows[0])]
        reference = singles[0].calls if checked else self._reference(batch)
        run, use_recorder = self._record(batch, reference, single_rows, loss=loss)
        if run.signature not in self._verified:
            require_complete(run.outputs, use_recorder)
            self._verified.add(run.signature)
        require_finite(self.model, run.outputs, batch, named)
        if not checked:
            if self.checker.mode and run_before is not None and run_before[0] in named:
                self._compare_again(run, run_before[1].run)
            return run
        self.checker.suspects.update(run.suspects)
        if run.suspects:
            singles += [self._record_single(batch, row) for row in single_rows[1:]]
        self.checker.single_examples += len(singles)
        self._compare_singles(run, use_recorder, single_rows, singles)
        first = singles[0]
        return replace(run, single=SingleRun(single_rows[0], first.batch, first.run.outputs))

    def _record_single(self, batch: Batch, row: int) -> "_SingleRecord":
        """Run a single example, and keep the tensors of all its calls."""
        single = batch.take([row])
        run, use_recorder = self._record(single, None, calls_only=True)
        return _SingleRecord(single, run, use_recorder.calls)

    def _compare_singles(
        self,
        run: ForwardRun,
        use_recorder: UseRecorder,
        single_rows: Sequence[int],
        singles: Sequence[_SingleRecord],
    ) -> None:
        compared = Comparison()
        for index, (_, single, calls) in enumerate(singles):
            names = [name for name, _ in use_recorder.received]
            if [call.function for call in calls] != names:
                text = "a single example makes other calls than in its batch"
                raise self._single_differs(text, run, single_rows[index], single)
            for call, (name, received) in zip(calls, use_recorder.received, strict=True):
                text = f"{name} receives other numbers from a single example than in its batch"
                for tensor, rows in zip(call.given, received, strict=True):
                    if rows is not None:
                        wanted = split_examples(tensor, 1, None)
                        compared.add_rows(text, rows[index : index + 1], wanted, whole=rows)
            text = "a single example has other outputs than in its batch"
            row = single_rows[index]
            own = run.outputs[row : row + 1]
            compared.add_rows(text, own, single.outputs, whole=run.outputs)
        found = compared.first_above(self.tolerance)
        if found is not None:
            raise self._single_differs(found[0], run, single_rows[0], singles[0].run)

    def _compare_again(self, run: ForwardRun, before: ForwardRun) -> None:
        """Check that the only example of a batch has the same outputs as in its run before."""
        compared = Comparison()
        compared.add_rows("outputs", run.outputs, before.outputs)
        if compared.first_above(self.tolerance) is not None:
            text = "an example has other outputs in a second pass"
            raise self._single_differs(text, run, 0, before)

    def _single_differs(
        self, text: str, run: ForwardRun, row: int, single: ForwardRun
    ) -> CannotSplitError:
        assert self.batch is not None
        one = self.batch.take([row])
        seen = [(self.batch, run.outputs.detach()), (one, single.outputs.detach())]
        return CannotSplitError(text, Cause.SINGLE_EXAMPLE, seen)

    def run_single(self, batch: Batch, example: int | None = None) -> ForwardRun:
        """One example by itself.

        Args:
            batch: The example.
            example: Its index in the data. If the first batch contains it, both are compared.
        """
        run, use_recorder = self._record(batch, None)
        self._references[_key(batch)] = use_recorder.calls
        if example is not None:
            self._run_before = example, _SingleRecord(batch, run, use_recorder.calls)
        return run

    def usable_outputs(self, batch: Batch) -> Tensor:
        """The differentiated outputs of one example, (1, c), for plain autograd."""
        outputs = self.chosen_outputs(batch)
        _require_gradient(outputs)
        require_visible(outputs)
        return outputs

    def chosen_outputs(self, batch: Batch) -> Tensor:
        """The differentiated outputs, (n, c), without recording."""
        return self.choice.select(read_outputs(batch.run(self.model), batch, self.readout), batch)

    def _reference(self, batch: Batch) -> list[CallTensors] | None:
        """The calls of one example, for batches that are not checked; None for one example."""
        if len(batch) == 1:
            return None
        key = _key(batch)
        if key not in self._references:
            self._references[key] = self._record_single(batch, 0).calls
        return self._references[key]

    def _record(
        self,
        batch: Batch,
        reference: list[CallTensors] | None,
        kept_rows: Sequence[int] = (),
        loss: BatchLoss | None = None,
        calls_only: bool = False,
    ) -> tuple[ForwardRun, UseRecorder]:
        trim_memory()
        inputs = batch.copied()  # the model may overwrite what it gets
        use_recorder = UseRecorder(
            self.ownership.parameters,
            (inputs.args, dict(inputs.kwargs)),
            len(batch),
            reference,
            kept_rows,
            self._others,
            calls_only=calls_only,
            targets=(batch.args, dict(batch.kwargs), batch.targets, batch.mask, batch.positions),
        )
        use_recorder.rounding.counts.update(self._rounding_dtypes)
        with use_recorder:
            returned = self.model(*inputs.args, **inputs.kwargs)
            outputs = read_outputs(returned, batch, self.readout)
            values = self.choice.select(outputs, batch)
            use_recorder.in_outputs = False
            losses = None if loss is None else loss(values, batch)
        _require_gradient(values)
        if use_recorder.made_of_parameters(values):
            raise CannotSplitError(
                "no recorded path leads from the examples to the outputs: NumPy, nested tensors, "
                "compiled code or writes into parts of a tensor made the inputs of the layers"
            )
        run = ForwardRun(
            values,
            use_recorder.uses,
            use_recorder.result_bytes,
            use_recorder.rounding,
            frozenset(use_recorder.suspects),
            losses,
        )
        self.tolerance = max(self.tolerance, run.rounding.tolerance())
        self.unit = max(self.unit, run.rounding.unit())
        return run, use_recorder

    @cached_property
    def _rounding_dtypes(self) -> set[torch.dtype]:
        return rounding_dtypes(self.ownership.parameters.values())

    @cached_property
    def _others(self) -> list[Tensor]:
        """Parameters with gradients that are not recorded."""
        recorded = set(map(id, self.ownership.parameters.values()))
        return [p for p in self.ownership.trained if id(p) not in recorded]

    def detached_outputs(self, batch: Batch) -> Tensor:
        """The differentiated outputs, (n, c), without gradients."""
        return without_gradients(lambda: self.chosen_outputs(batch)).detach()

    def detached_model_outputs(self, batch: Batch) -> Tensor:
        """All outputs of the model, (n, c), without gradients."""
        return without_gradients(
            lambda: read_outputs(batch.run(self.model), batch, self.readout)
        ).detach()


def _require_gradient(outputs: Tensor) -> None:
    if outputs.grad_fn is None:
        raise CaptureError(
            "model: expected outputs that depend on its parameters, got a constant; a "
            "no_grad block or a detach inside the model is the usual cause"
        )


def _key(batch: Batch) -> tuple[tuple[int, ...], ...]:
    """Shapes of one example, which determine the axes of examples in later calls."""
    tensors = tensors_in((batch.args, dict(batch.kwargs)))
    return tuple(tuple(tensor.shape[1:]) if not tensor.is_nested else () for tensor in tensors)
