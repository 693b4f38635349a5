"""The check that every result depends on its own example only, for all functions of the engine.

A batch is measured together. The reference is a batch that holds one example only. In a batch that
is checked, three things must hold:

1. *Rows.* A second backward pass gives every example a random weight. At every use of a parameter
   the output gradient of an example must be its first one times its weight.
2. *Other batch.* A random part of the batch runs again as a batch of its own. Outputs must agree
   with the first run, and weighted sums of gradients with those of plain autograd.
3. *Single example.* Some examples run by themselves. They must make the same calls with the same
   numbers, and have the same outputs.

The k-th batch of a measurement is checked with probability 1/k, so the first always is. Where data
are read several times, the first batch of each reading is checked. A batch that makes a suspect
call is always checked, with gradients of four single examples instead of one. One example of every
batch runs by itself. ``check="every"`` checks all batches and runs every example by itself, with
its gradients. Names of suspect calls decide when to check, never the outcome. Nothing is remembered
between calls.

``check=True`` can miss three kinds of models. In the first, a few examples depend on the rest of
their batch and are not drawn: a model that trims its batch to the longest row, where all rows but a
few have that length. In the second, the batch changes gradients, but not outputs (by a hook, a
custom ``autograd.Function``, a part that is detached in some batches), and no drawn example shows
it: in batches that are not checked, examples that run by themselves run forward only.
``check="every"`` finds both. The third has a hidden state (a counter of calls, a cache) and starts
to mix examples exactly between the compared passes. If the state has changed the outputs of the
first batch, this is found after the last one:
:func:`theodolite.engine.compare.compare_kernels` and ``GradientAccumulation.accumulate`` run
examples of it again. Otherwise no check finds it. Nor is a model found that draws random numbers
and by chance has the same outputs and gradients in all compared passes.

No check finds what rounding explains (:mod:`theodolite.engine.rounding`): 1e-4 to 1e-3 of the
outputs in float32 and 3 to 15 % in bfloat16, growing with depth, and three times as much of
gradients. Gradients below one unit of rounding of all gradients are not checked. The outputs and
features of a single example are compared with their own size or, if larger, the median of the
batch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from theodolite.engine.batches import Batch
from theodolite.engine.calls import CannotSplitError, split_examples, tensors_in
from theodolite.engine.rounding import BACKWARD_FACTOR, Comparison
from theodolite.errors import CaptureError, DomainError, TheodoliteError

if TYPE_CHECKING:
    from theodolite.engine.recorder import Use
    from theodolite.engine.runs import ForwardRun, ModelRecorder

# Check some batches (True), none (False), or all of them and every single example ("every").
Check = bool | Literal["every"]


def require_check(check: Check) -> None:
    """Refuse anything except True, False and ``"every"``."""
    if not isinstance(check, (bool, str)) or check not in (True, False, "every"):
        raise DomainError(f"check: expected True, False or 'every', got {check!r}; choose one")


class Cause(Enum):
    """Why examples were measured one at a time."""

    ROWS = "rows"  # a weight of one example reached the row of another
    OTHER_BATCH = "other batch"  # outputs, gradients or features differ in another batch
    SINGLE_EXAMPLE = "single example"  # alone it makes other calls, or gives other numbers
    UNSEEN = "unseen"  # a use of a parameter was not recorded, or the batch cannot be divided


@dataclass(frozen=True)
class Checked:
    """What was checked, and the outcome.

    Args:
        check: The caller's argument.
        batched: Whether examples were measured together; otherwise one at a time.
        cause: Why they were measured one at a time, or None.
        reason: The cause in words.
        batches: Number of batches.
        checked_batches: Number of checked batches.
        in_other_batches: Number of examples that ran again in another batch.
        single_examples: Number of examples that ran alone.
        suspect_calls: Names of the suspect calls in the model.
    """

    check: Check = True
    batched: bool = True
    cause: Cause | None = None
    reason: str = ""
    batches: int = 0
    checked_batches: int = 0
    in_other_batches: int = 0
    single_examples: int = 0
    suspect_calls: tuple[str, ...] = ()

    @property
    def measured(self) -> str:
        """How examples were measured, in words."""
        return "in batches" if self.batched else f"one example at a time: {self.reason}"


class Measured:
    """A result that says how its examples were measured."""

    checked: Checked

    @property
    def measured(self) -> str:
        """How examples were measured, in words."""
        return self.checked.measured


# Calls through which one example may affect another: they sort, pick, count or reduce by the
# numbers in tensors, or return a number to Python. They only decide when to check.
_SUSPECTS = frozenset({
    "__array__", "__bool__", "__contains__", "__float__", "__index__", "__int__", "all", "allclose",
    "any", "argsort", "argwhere", "bincount", "cummax", "cummin", "cumprod", "cumsum", "equal",
    "flip", "is_nonzero", "isin", "item", "kthvalue", "masked_scatter", "masked_scatter_",
    "masked_select", "median", "mode", "msort", "nonzero", "numpy", "pack_padded_sequence",
    "_pack_padded_sequence", "quantile", "roll", "searchsorted", "sort", "tolist", "topk",
    "unique", "unique_consecutive", "_unique2", "unique_dim",
})  # fmt: skip


def is_suspect(name: str, given: Any, result: Any, examples: int) -> bool:
    """Whether a call may let one of several examples decide about another."""
    if name in _SUSPECTS or (name == "where" and not isinstance(result, Tensor)):
        return True
    if not isinstance(result, Tensor) or result.is_nested or _may_have_examples(result, examples):
        return False
    # A reduction over examples: an axis of their number is gone.
    return any(
        _may_have_examples(tensor, examples) for tensor in tensors_in(given) if not tensor.is_nested
    )


def _may_have_examples(tensor: Tensor, examples: int) -> bool:
    return any(size and size % examples == 0 for size in tensor.shape)


SUSPECT_SINGLES = 4  # examples of a batch with a suspect call that run alone
_PART = 32  # largest number of examples that run again in another batch


@dataclass
class Checker:
    """Decides which batches and examples of a measurement are checked, and counts them.

    For every batch ``ModelRecorder.run`` draws the rows that run alone. Then kernels draw weights
    for the rows if the batch is due, and the rerun (:meth:`draw_rerun`). Gradients draw whether the
    batch is due, a weight for every example, and the parts of the rerun.
    """

    mode: Check = True  # the caller's argument
    batches: int = 0
    checked_batches: int = 0
    in_other_batches: int = 0
    single_examples: int = 0
    suspects: set[str] = field(default_factory=set)
    draws: torch.Generator = field(
        default_factory=lambda: torch.Generator().manual_seed(0), repr=False
    )

    @property
    def every(self) -> bool:
        """Whether all batches are checked, and each example runs by itself."""
        return self.mode == "every"

    def draw_row_weights(self, run: "ForwardRun", start: int) -> "RowWeights | None":
        """Count the next batch; draw weights to check its rows, or return None if it is not due."""
        if not self.draw_whether_due(run.suspects, is_first=start == 0):
            return None
        n, c = run.outputs.shape
        outputs, examples = torch.split(self.draw_weights(c + n).to(run.outputs.detach()), [c, n])
        return RowWeights(outputs.expand(n, c), examples)

    def draw_rerun(
        self, recorder: "ModelRecorder", run: "ForwardRun", batch: Batch, start: int
    ) -> "Rerun":
        """Draw which rows of a batch run again, and weights of their outputs."""
        n, c = run.outputs.shape
        # Only the first single run keeps its graph. With one of every checked batch they add up.
        single = run.single if self.checked_batches == 1 else None
        passes = 1 if recorder.choice.mode == "full" else c
        most = max(2, _PART // passes)
        row = None if single is None else single.row
        parts = self.draw_parts(n, row, most, singles=SUSPECT_SINGLES if run.suspects else 1)
        output_weights = self.draw_weights(sum(map(len, parts)), c).to(run.outputs.device)
        outputs = run.outputs.detach()
        return Rerun(batch, start, outputs, parts, output_weights, single=single)

    def draw_whether_due(self, suspects: Iterable[str], *, is_first: bool = False) -> bool:
        """Count the next batch; return whether it is checked.

        ``is_first`` marks the beginning of the data, which may be read several times.
        """
        if not self.mode:
            return False
        self.batches += 1
        self.suspects.update(suspects)
        drawn = float(torch.rand((), generator=self.draws)) * self.batches < 1
        is_due = self.every or is_first or drawn or bool(suspects)
        self.checked_batches += is_due
        return is_due

    def draw_single_rows(self, examples: int) -> list[int]:
        """Rows of the next batch that may run alone; the first of them always does."""
        return torch.randperm(examples, generator=self.draws)[:SUSPECT_SINGLES].tolist()

    def draw_parts(
        self, examples: int, single: int | None = None, most: int = _PART, *, singles: int = 1
    ) -> list[list[int]]:
        """Rows that run again, in parts: a random third, of at most ``most`` rows, and single rows.

        The last of these is ``single``, if a row has run alone already. With ``"every"`` each row
        is a part.
        """
        order = torch.randperm(examples, generator=self.draws).tolist()
        if self.every:
            self.single_examples += examples
            return [[row] for row in order]
        if single is not None:
            order.remove(single)
            order.append(single)
        part = order[: min(most, -(-examples // 3))]
        alone = order[max(len(part), examples - singles) :]
        self.in_other_batches += len(part)
        self.single_examples += len(alone) - (single is not None)
        return [part, *([row] for row in alone)]

    def draw_weights(self, *shape: int) -> Tensor:
        """Random float64 numbers with absolute values from 0.5 to 1.5, of both signs."""
        numbers = torch.empty(shape, dtype=torch.float64).uniform_(-1, 1, generator=self.draws)
        return numbers.add_(numbers.sign(), alpha=0.5)

    def draw_example_weights(self, seed: Float[Tensor, "n c"]) -> Float[Tensor, " n"]:
        """A random weight for every example, divided by the norm of its output gradient.

        So an example with a small loss counts as much as the others.
        """
        norms = torch.linalg.vector_norm(seed, dim=1, dtype=torch.float64)
        smallest = (1e-6 * norms.max()).clamp(min=torch.finfo(torch.float32).tiny)
        return self.draw_weights(len(norms)).to(norms.device) / norms.clamp(min=smallest)

    def summary(self, error: Exception | None = None) -> Checked:
        """The checks and their results; with an error, why examples were measured one at a time."""
        return Checked(
            check=self.mode,
            batched=error is None,
            cause=None if error is None else getattr(error, "cause", None) or Cause.UNSEEN,
            reason="" if error is None else _in_words(error),
            batches=self.batches,
            checked_batches=self.checked_batches,
            in_other_batches=self.in_other_batches,
            single_examples=self.single_examples,
            suspect_calls=tuple(sorted(self.suspects)),
        )


def _in_words(error: Exception) -> str:
    """Why a batch could not be divided among its examples."""
    if isinstance(error, TheodoliteError):
        return str(error)
    first = (str(error).splitlines() or [""])[0]
    return f"a call cannot be divided among its examples ({type(error).__name__}: {first})"


@dataclass(frozen=True)
class SingleRun:
    """An example that ran alone: its row in the batch, and its outputs with their graph."""

    row: int
    batch: Batch
    outputs: Float[Tensor, "1 c"]


@dataclass(frozen=True)
class Rerun:
    """A batch with checked rows, and the parts of it that run again, each as another batch."""

    batch: Batch
    start: int  # index of the first example in the data
    outputs: Float[Tensor, "n c"]  # the differentiated outputs, (n, c)
    parts: list[list[int]]  # rows of the batch, part by part
    # A random weight for every output of these rows, in their order.
    output_weights: Float[Tensor, "m c"]
    # Parameters of a group -> norm of its weighted sum of gradients, and the root of the sum of the
    # squared norms of the terms, from the factors.
    group_norms: Mapping[tuple[str, ...], tuple[float, float]] = field(default_factory=dict)
    # A part of one example that has run alone already, and was compared.
    single: SingleRun | None = None

    @cached_property
    def rows(self) -> list[int]:
        """All rows of the batch that run again."""
        return [row for part in self.parts for row in part]

    @cached_property
    def index(self) -> Int[Tensor, " m"]:
        """The same as a tensor, on the device of the outputs."""
        return torch.tensor(self.rows, device=self.outputs.device)

    @cached_property
    def batches(self) -> list[Batch]:
        """The examples that run again, part by part."""
        single = self.single
        return [
            self.batch.take(part) if single is None or part != [single.row] else single.batch
            for part in self.parts
        ]

    def weights_by_output(self, mode: str) -> list[Float[Tensor, "m c"]]:
        """Weights of all outputs together, or of one output after the other.

        A kernel without pairs of different outputs (``mode`` is not ``"full"``) needs one gradient
        for every output, with one weight per example: the weight of its first output.
        """
        weights = self.output_weights
        outputs = weights.shape[1]
        if mode == "full" or outputs == 1:
            return [weights]
        only = torch.eye(outputs, dtype=weights.dtype, device=weights.device)
        return [weights[:, :1] * row for row in only]


class RowWeights(NamedTuple):
    """What the check of rows compares: backward passes from two seeds."""

    seed: Float[Tensor, "n c"]  # the first seed: gradients at the outputs
    # A random weight for every example; the second seed is the first times these.
    examples: Float[Tensor, " n"]

    @property
    def second_seed(self) -> Float[Tensor, "n c"]:
        """The seed of the second pass."""
        return (self.seed * self.examples[:, None]).to(self.seed.dtype)


def check_rows(
    recorder: "ModelRecorder",
    run: "ForwardRun",
    weights: RowWeights,
    first: Sequence[Tensor | None] | None = None,
) -> None:
    """Make a second backward pass in which every example has a random weight, and compare.

    ``first`` are the gradients at the uses in the first pass, if it has been made. The graph of the
    batch is kept.
    """
    edges = run.edges()
    if len(run.outputs) == 1 or not edges:
        return

    def backward(seed: Tensor) -> Sequence[Tensor | None]:
        return torch.autograd.grad(run.outputs, edges, seed, retain_graph=True, allow_unused=True)

    first = backward(weights.seed) if first is None else first
    second = backward(weights.second_seed)
    compare_rows(recorder, run.first_uses(), first, second, weights)


def compare_rows(
    recorder: "ModelRecorder",
    first_uses: Mapping[int, "Use"],
    first: Sequence[Tensor | None],
    second: Sequence[Tensor | None],
    weights: RowWeights,
) -> None:
    """Compare the gradients that arrive at the results of calls in two backward passes.

    In the second pass every example has a random weight. Its rows must have the same weight.
    ``first_uses`` has one use of every call: all uses in a call share its results.
    """
    compared, n = Comparison(), len(weights.examples)
    axes = [(use.function, axis) for use in first_uses.values() for axis in use.result_axes]
    for (name, axis), before, after in zip(axes, first, second, strict=True):
        if before is None or after is None or axis is None or before.is_nested:
            continue
        rows, again = (split_examples(part, n, axis) for part in (before, after))
        compared.add_rows(name, again, rows, weights=weights.examples)
    found = compared.first_above(BACKWARD_FACTOR * recorder.tolerance, recorder.unit)
    if found is not None:
        raise CannotSplitError(
            f"{found[0]} has other gradients in its rows than those of the examples: the model "
            "sorts, packs, routes or mixes examples, or a hook or an autograd.Function changes "
            "gradients",
            Cause.ROWS,
        )


def run_again(recorder: "ModelRecorder", rerun: Rerun) -> Iterator[Tensor]:
    """Outputs of every part that runs again as a separate batch, (m, c), with their graph.

    They must be those of the batch.
    """
    single = rerun.single
    for part, batch in zip(rerun.parts, rerun.batches, strict=True):
        if single is not None and part == [single.row]:
            yield single.outputs
            continue
        outputs = recorder.chosen_outputs(batch)
        compared = Comparison()
        compared.add_rows("outputs", outputs, rerun.outputs[part], whole=rerun.outputs)
        if compared.first_above(recorder.tolerance) is not None:
            text = "examples have other outputs in another batch"
            seen = [(rerun.batch, rerun.outputs), (batch, outputs.detach())]
            raise CannotSplitError(text, Cause.OTHER_BATCH, seen)
        yield outputs


def check_loss(
    recorder: "ModelRecorder",
    loss: Callable[[Tensor, Batch], Tensor],
    rerun: Rerun,
    losses: Float[Tensor, " n"],
    seed: Float[Tensor, "n c"],
) -> None:
    """Check that the loss of an example and its gradient do not depend on other examples.

    The same outputs are used again. If a model fits its targets to the last digits, the loss of new
    outputs would be rounding only.
    """
    rows = rerun.index
    parts = torch.split(rerun.outputs[rows], [*map(len, rerun.parts)])
    outputs = [part.requires_grad_() for part in parts]
    again = torch.cat([*map(loss, outputs, rerun.batches)])
    gradients = torch.autograd.grad(again.sum(), outputs, materialize_grads=True)
    compared = Comparison()
    compared.add_rows("loss", again[:, None], losses[rows, None], whole=losses[:, None])
    compared.add_rows("gradient of the loss", torch.cat(gradients), seed[rows], whole=seed)
    if compared.first_above(recorder.tolerance) is None:
        return
    repeated = Comparison()
    repeated.add_rows("loss", loss(rerun.outputs, rerun.batch)[:, None], losses[:, None])
    if repeated.first_above(recorder.tolerance) is not None:
        raise CaptureError(
            "loss: expected equal numbers for equal outputs, got others in a second call; remove "
            "random numbers and state from the loss"
        )
    raise CannotSplitError(
        "the loss of an example changes with the other examples of its batch", Cause.OTHER_BATCH
    )
