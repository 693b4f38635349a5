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
call is always checked. One example of every batch runs by itself. ``check="every"`` checks all
batches and runs every example by itself, with its gradients. Names of suspect calls decide when to
check, never the outcome. Nothing is remembered between calls.

``check=True`` can miss three kinds of models. In the first, a few examples depend on the rest of
their batch and are not drawn: a model that trims its batch to the longest row, where all rows but a
few have that length. The second has a hidden state (a counter of calls, a cache) and starts to mix
examples exactly between the compared passes. If the state has changed the outputs of the first
batch, this is found after the last one: :func:`compare_kernels` and
``GradientAccumulation.accumulate`` run examples of it again. The third has a backward pass of its
own (a hook, a custom ``autograd.Function``) that mixes gradients, but not outputs, in some batches
only: in batches that are not checked, examples that run by themselves run forward only.

No check finds what rounding explains (:class:`Rounding`): 1e-4 to 1e-3 of the outputs in float32
and 3 to 15 % in bfloat16, growing with depth, and three times as much of gradients. Gradients below
one unit of rounding of all gradients are not checked.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from theodolite.engine.batches import Batch, spans
from theodolite.engine.calls import (
    CannotSplitError,
    WrongGradientError,
    function_name,
    split_examples,
    tensors_in,
)
from theodolite.engine.state import HALF
from theodolite.errors import (
    CaptureError,
    DomainError,
    DtypeError,
    NotFiniteError,
    RangeError,
    TheodoliteError,
)

if TYPE_CHECKING:
    from theodolite.engine.factors import Factors
    from theodolite.engine.inputs import BatchList
    from theodolite.engine.recorder import Use
    from theodolite.engine.runs import ForwardRun, ModelRecorder

# Check some batches (True), none (False), or all of them and every single example ("every").
Check = bool | Literal["every"]


def require_check(check: Check) -> None:
    """Refuse anything except True, False and ``"every"``."""
    if not isinstance(check, bool) and check != "every":
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
    """Whether a call may let one example decide about another.

    Args:
        name: Name of the torch function.
        given: Its arguments.
        result: What it returned.
        examples: Number of examples, more than one.
    """
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


class SuspectCalls(TorchFunctionMode):
    """Records suspect calls and the rounding of a forward pass inside the block."""

    def __init__(self, examples: int) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.rounding = Rounding()
        self._examples = examples

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call the function and record its name and shapes."""
        result = func(*args, **(kwargs or {}))
        if func is not Tensor.clone:  # a copy is not rounded
            self.rounding.add(result)
        if self._examples > 1:
            name = function_name(func)
            if is_suspect(name, (args, kwargs), result, self._examples):
                self.names.add(name)
        return result


_WIDE = (torch.float64, torch.complex128, torch.float32, torch.complex64)
_KNOWN = (*_WIDE, *HALF)
_COUNTS = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
})  # fmt: skip
_TERMS = 4e4  # assumed terms of a sum in float32 or float64; half precision rounds once per sum
_LEAST = 8  # assumed number of calls at least: scripted code and custom functions hide some
_MARGIN = 4.0  # no ordinary network of tests/engine/networks exceeds it; it was not fitted to one


def _terms(dtype: torch.dtype) -> float:
    return 1.0 if dtype in HALF else _TERMS


class Rounding:
    """The rounding that results of calls can have, by dtype.

    A result that is rounded to nearest has a relative error of about ``eps / sqrt(12)``. k
    independent roundings add up to ``sqrt(k)`` times as much. In half precision a call rounds once.
    In float32 and float64 it rounds once for every term of its sums.
    """

    def __init__(self, counts: Iterable[torch.dtype] | None = None) -> None:
        self.counts: Counter[torch.dtype] = Counter(counts or ())

    def add(self, result: Any) -> None:
        """Record the result of a call."""
        for tensor in (result,) if isinstance(result, Tensor) else tensors_in(result):
            if tensor.dtype not in _COUNTS:
                self.counts[tensor.dtype] += 1

    def tolerance(self) -> float:
        """Relative difference between two passes that rounding can explain.

        Raises:
            DtypeError: If the rounding of a dtype is not known.
        """
        unknown = sorted(str(dtype) for dtype in self.counts if dtype not in _KNOWN)
        if unknown:
            raise DtypeError(
                f"model: expected numbers of float64, float32, float16 or bfloat16, got "
                f"{unknown[0]}, whose rounding is not known here; convert the model to one of these"
            )
        variance = sum(
            torch.finfo(dtype).eps ** 2 / 12 * max(count, _LEAST) * _terms(dtype)
            for dtype, count in self.counts.items()
        )
        return float(_MARGIN * variance**0.5)

    def unit(self) -> float:
        """The unit of rounding of the coarsest result."""
        return max((torch.finfo(dtype).eps for dtype in self.counts), default=0.0)


class Comparison:
    """Pairs of tensors that must be equal, compared together to wait for a device only once.

    The difference of a row is divided by its norm or, if larger, by the root mean square of all
    norms. A small number beside large ones may be rounding.
    """

    def __init__(self) -> None:
        self._pairs: list[_Pair] = []

    def add_rows(
        self,
        name: str,
        found: Tensor,
        wanted: Tensor,
        whole: Tensor | None = None,
        weights: Float[Tensor, " n"] | None = None,
    ) -> None:
        """Every row of a tensor must equal that of another.

        Args:
            name: Name of the comparison.
            found: The rows.
            wanted: The correct rows.
            whole: All rows, for the scale of the comparison; None takes the wanted rows.
            weights: Factors of the wanted rows; None for ones.
        """
        if weights is not None:
            weights = weights.view(-1, *(1,) * (wanted.dim() - 1))
        self._pairs.append(_Pair(name, found, wanted, whole, weights))

    def first_above(self, tolerance: float, unit: float = 0.0) -> tuple[str, float] | None:
        """The first pair with a larger difference, and the difference; waits for the device.

        Args:
            tolerance: Relative difference that rounding explains.
            unit: Difference that rounding explains in any pair, relative to the largest pair.
        """
        with torch.no_grad():
            for pair, agrees in zip(self._pairs, self._agree(tolerance), strict=True):
                gap = 0.0 if agrees else float(pair.gap())
                if not gap <= tolerance and not self._vanishes(pair, unit):
                    return pair.name, gap
        return None

    def _agree(self, tolerance: float) -> list[bool]:
        """Whether all differences of a pair together are as small as that of a row must be.

        Other pairs, and those whose squares over- or underflow, need the exact comparison, which
        takes three times as long.
        """
        quick = [pair for pair in self._pairs if pair.found.shape == pair.wanted.shape]
        quick = [pair for pair in quick if pair.found.numel()]
        if not quick:
            return [False] * len(self._pairs)
        device = quick[0].found.device
        norms = torch.stack([norm.to(device) for pair in quick for norm in pair.norms()]).tolist()
        agreeing: set[int] = set()
        for pair, gap, norm in zip(quick, norms[::2], norms[1::2], strict=True):
            size = norm / pair.scale_count**0.5
            if gap <= tolerance * size and _smallest(pair.found) < size < math.inf:
                agreeing.add(id(pair))
        return [id(pair) in agreeing for pair in self._pairs]

    def _vanishes(self, pair: "_Pair", share: float) -> bool:
        if share == 0 or pair.found.shape != pair.wanted.shape:
            return False
        found, wanted = pair.rows()
        largest = max(float(_norm(other.rows()[1])) for other in self._pairs)
        return float(_norm(found - wanted)) <= share * largest


@dataclass(slots=True)
class _Pair:
    """Rows and the correct rows, see :meth:`Comparison.add_rows`."""

    name: str
    found: Tensor
    wanted: Tensor
    whole: Tensor | None
    weights: Tensor | None

    @property
    def scale_count(self) -> int:
        """Number of all rows, of which these are some."""
        return len(self.found if self.whole is None else self.whole)

    def norms(self) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """The norm of all differences, and that of all rows.

        Some rows at a time: new memory for all differences would take ten times as long as the
        comparison.
        """
        count, norm = len(self.found), torch.linalg.vector_norm
        step = count if self.found.is_cuda else max(1, _CHUNK * count // self.found.numel())
        if step >= count:
            found, wanted = self.rows()
            return norm(found - wanted), norm(wanted if self.whole is None else _wide(self.whole))
        gaps, sizes = [], []
        for rows in spans(count, step):
            found, wanted = self.rows(rows)
            gaps.append(norm(found - wanted))
            sizes.append(norm(wanted))
        sizes = sizes if self.whole is None else [norm(_wide(self.whole))]
        return norm(torch.stack(gaps)), norm(torch.stack(sizes))

    def rows(self, rows: slice | None = None) -> tuple[Float[Tensor, "n ..."], Tensor]:
        """Some of the rows or all, and what they should be."""
        found, wanted, weights = self.found, self.wanted, self.weights
        if rows is not None:
            found, wanted = found[rows], wanted[rows]
            weights = None if weights is None else weights[rows]
        found, wanted = _wide(found), _wide(wanted)
        return found, wanted if weights is None else wanted * weights.to(wanted)

    def gap(self) -> Float[Tensor, ""]:
        """The largest relative difference, for numbers of any size; infinities are equal."""
        if self.found.shape != self.wanted.shape:
            return torch.full((), torch.inf)
        if self.found.numel() == 0:
            return torch.zeros(())
        found, wanted = (_without_infinities(part.reshape(len(part), -1)) for part in self.rows())
        norms = _norms(wanted)
        every = norms
        if self.whole is not None:
            whole = _wide(self.whole)
            every = _norms(_without_infinities(whole.reshape(len(whole), -1)))
        scale = torch.maximum(norms, every.square().mean().sqrt())
        return _relative(_norms(found - wanted), scale).amax()


_CHUNK = 2**18  # differences that are formed at a time


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype in _WIDE else tensor.float()


_SMALLEST, _SMALLEST_DOUBLE = (
    1e6 * torch.finfo(dtype).tiny ** 0.5 for dtype in (torch.float32, torch.float64)
)


def _smallest(tensor: Tensor) -> float:
    """The norm above which squares of the dtype do not underflow."""
    double = tensor.dtype in (torch.float64, torch.complex128)
    return _SMALLEST_DOUBLE if double else _SMALLEST


def _without_infinities(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Replace equal infinities, as in masks of attention, by zeros."""
    real = torch.view_as_real(rows).flatten(1) if rows.is_complex() else rows
    return real.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _norms(rows: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """Norms of rows without overflow. Adding up in float64 would take ten times as long."""
    largest = rows.abs().amax().clamp(min=torch.finfo(rows.dtype).tiny)
    return torch.linalg.vector_norm(rows / largest, dim=1).double() * largest.double()


def _norm(tensor: Tensor) -> Float[Tensor, ""]:
    if tensor.numel() == 0:
        return torch.zeros((), dtype=torch.float64, device=tensor.device)
    parts = torch.split(_wide(tensor).reshape(1, -1), _CHUNK, 1)
    return torch.linalg.vector_norm(torch.cat([_norms(part) for part in parts]))


def norms_of(tensors: Sequence[Tensor]) -> list[float]:
    """Norms of several real tensors; waits for the device once."""
    if not tensors:
        return []
    device = tensors[0].device
    quick = [torch.linalg.vector_norm(_wide(tensor)).to(device) for tensor in tensors]
    return [
        norm if _smallest(tensor) < norm < math.inf else float(_norm(tensor))
        for tensor, norm in zip(tensors, torch.stack(quick).tolist(), strict=True)
    ]


def _inner(first: Tensor, second: Tensor) -> Float[Tensor, ""]:
    """Inner product in float64, without float64 copies of large tensors."""
    parts = (torch.split(gradient.flatten(), _CHUNK) for gradient in (first, second))
    pairs = zip(*parts, strict=True)
    return torch.stack([a.double() @ b.double() for a, b in pairs]).sum()


def _relative(gaps: Tensor, scale: Tensor) -> Tensor:
    """Relative differences; zero if everything is zero."""
    return gaps / scale.double().clamp(min=torch.finfo(torch.float64).tiny)


_BACKWARD = 3.0  # one forward and two backward passes: three times the tolerance
# A vanishing gradient (of a shift before a normalisation) consists of rounding of the others: about
# one unit of rounding of all gradients, rarely more than this share of their tolerance. Between the
# two, rounding and an error look alike.
_VANISHING = 0.05
_FEW = 8  # examples of a batch with a suspect call that run alone
_FAR = 1e6  # kernels above this multiple of the smallest number of a dtype have all digits
_PART = 32  # largest number of examples that run again in another batch


@dataclass
class ExampleCheck:
    """The checks of one measurement and their results so far.

    Args:
        mode: The caller's argument.
    """

    mode: Check = True
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
        """Whether all batches are checked, and all examples run one by one."""
        return self.mode == "every"

    def draw_row_weights(self, run: "ForwardRun", start: int) -> "RowWeights | None":
        """Random weights for a check of the rows of a batch; None if it is not due.

        Args:
            run: The batch.
            start: Index of its first example in the data.
        """
        if not self.draw_whether_due(run.suspects, is_first=start == 0):
            return None
        n, c = run.outputs.shape
        outputs, examples = torch.split(self.draw_weights(c + n).to(run.outputs.detach()), [c, n])
        return RowWeights(outputs.expand(n, c), examples)

    def checked_batch(
        self, recorder: "ModelRecorder", run: "ForwardRun", batch: Batch, start: int
    ) -> "CheckedBatch":
        """A batch with checked rows, and what is drawn to compare it with a rerun."""
        n, c = run.outputs.shape
        # Only the first single run keeps its graph. With one of every checked batch they add up.
        single = run.single if self.checked_batches == 1 else None
        passes = 1 if recorder.choice.mode == "full" else c
        most = max(2, _PART // passes)
        reruns = self.draw_reruns(n, None if single is None else single.row, most)
        output_weights = self.draw_weights(sum(map(len, reruns)), c).to(run.outputs.device)
        outputs = run.outputs.detach()
        return CheckedBatch(batch, start, outputs, reruns, output_weights, single=single)

    def draw_whether_due(self, suspects: Iterable[str], *, is_first: bool = False) -> bool:
        """Count the next batch; return whether it is checked.

        Args:
            suspects: Names of its suspect calls.
            is_first: Whether it begins the data, which may be read several times.
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
        return torch.randperm(examples, generator=self.draws)[:_FEW].tolist()

    def draw_reruns(
        self, examples: int, single: int | None = None, most: int = _PART
    ) -> list[list[int]]:
        """Rows that run again: a random half together and one more alone, or all one by one.

        Args:
            examples: Number of examples of the batch.
            single: Row of an example that runs alone anyway; it is the one more.
            most: Largest number of examples that run again together.
        """
        order = torch.randperm(examples, generator=self.draws).tolist()
        if self.every:
            self.single_examples += examples
            return [[row] for row in order]
        if single is not None:
            order.remove(single)
            order.append(single)
        else:
            self.single_examples += examples > 1
        part = order[: min(most, -(-examples // 2))]
        self.in_other_batches += len(part)
        return [part, order[-1:]] if examples > 1 else [part]

    def draw_weights(self, *shape: int) -> Tensor:
        """Random float64 numbers with absolute values from 0.5 to 1.5, of both signs."""
        numbers = torch.empty(shape, dtype=torch.float64).uniform_(-1, 1, generator=self.draws)
        return numbers.add_(numbers.sign(), alpha=0.5)

    def draw_example_weights(self, seed: Float[Tensor, "n c"]) -> Float[Tensor, " n"]:
        """A random weight for every example, divided by the norm of its output gradient.

        So an example with a small loss counts as much as the others.
        """
        norms = torch.linalg.vector_norm(seed, dim=1, dtype=torch.float64)
        smallest = 1e-6 * norms.max().clamp(min=torch.finfo(torch.float32).tiny)
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
    outputs: Float[Tensor, "1 c"]


@dataclass(frozen=True)
class CheckedBatch:
    """A batch with checked rows, and the part of it that runs again.

    Args:
        batch: The examples.
        start: Index of the first example in the data.
        outputs: The differentiated outputs, (n, c).
        reruns: Rows of the batch that run again, each group as a separate batch.
        output_weights: A random weight for every output of these rows, in their order.
        group_norms: Parameters of a group -> norm of its weighted sum of gradients, and the root of
            the sum of the squared norms of the terms, from the factors.
        single: One of the examples of ``reruns``, if it already ran alone and was compared.
    """

    batch: Batch
    start: int
    outputs: Float[Tensor, "n c"]
    reruns: list[list[int]]
    output_weights: Float[Tensor, "m c"]
    group_norms: Mapping[tuple[str, ...], tuple[float, float]] = field(default_factory=dict)
    single: SingleRun | None = None

    @cached_property
    def rerun_rows(self) -> list[int]:
        """All rows of the batch that run again."""
        return [row for part in self.reruns for row in part]

    @cached_property
    def rerun_index(self) -> Int[Tensor, " m"]:
        """The same as a tensor, on the device of the outputs."""
        return torch.tensor(self.rerun_rows, device=self.outputs.device)

    @cached_property
    def rerun_batches(self) -> list[Batch]:
        """The examples that run again, part by part."""
        return [self.batch.take(part) for part in self.reruns]

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
    """What the check of rows compares: two backward passes from these gradients at the outputs.

    Args:
        seed: The first.
        examples: A random weight for every example; the second is the first times these.
    """

    seed: Float[Tensor, "n c"]
    examples: Float[Tensor, " n"]

    @property
    def second(self) -> Float[Tensor, "n c"]:
        """The gradient of the second pass."""
        gradient = self.seed
        return (gradient * self.examples[:, None]).to(gradient.dtype)


def check_rows(
    recorder: "ModelRecorder",
    run: "ForwardRun",
    weights: RowWeights,
    first: Sequence[Tensor | None] | None = None,
) -> None:
    """Make a second backward pass in which every example has a random weight, and compare.

    Args:
        recorder: The model.
        run: The batch, with its graph, which is kept.
        weights: Gradients at the outputs.
        first: Gradients at the uses in the first pass; None if it is still to be made.

    Raises:
        CannotSplitError: If the gradient of one example reaches the row of another.
    """
    edges = run.edges()
    if len(run.outputs) == 1 or not edges:
        return

    def arrive(start: Tensor) -> Sequence[Tensor | None]:
        return torch.autograd.grad(run.outputs, edges, start, retain_graph=True, allow_unused=True)

    first = arrive(weights.seed) if first is None else first
    compare_rows(recorder, run.calls(), first, arrive(weights.second), weights)


def compare_rows(
    recorder: "ModelRecorder",
    calls: Mapping[int, "Use"],
    first: Sequence[Tensor | None],
    second: Sequence[Tensor | None],
    weights: RowWeights,
) -> None:
    """Compare two backward passes: in the second every example has a random weight.

    Args:
        recorder: The model.
        calls: The calls at whose results the gradients arrive.
        first: Gradients in the first pass.
        second: Gradients in the second pass.
        weights: What the passes started from.

    Raises:
        CannotSplitError: If the gradient of one example reaches the row of another.
    """
    compared, n = Comparison(), len(weights.examples)
    axes = [(use.function, axis) for use in calls.values() for axis in use.result_axes]
    for (name, axis), before, after in zip(axes, first, second, strict=True):
        if before is None or after is None or axis is None or before.is_nested:
            continue
        rows, again = (split_examples(part, n, axis) for part in (before, after))
        compared.add_rows(name, again, rows, weights=weights.examples)
    found = compared.first_above(_BACKWARD * recorder.tolerance, recorder.unit)
    if found is not None:
        raise cannot_split(
            Cause.ROWS,
            f"{found[0]} has other examples in its rows than the outputs: the model sorts, packs, "
            "routes or mixes examples",
        )


def rerun_parts(
    recorder: "ModelRecorder", checked_batch: CheckedBatch
) -> Iterator[tuple[list[int], Float[Tensor, "m c"]]]:
    """Outputs of every part that runs again as a separate batch, with their graph.

    Raises:
        CannotSplitError: If outputs differ from those in the batch.
    """
    single = checked_batch.single
    for part, batch in zip(checked_batch.reruns, checked_batch.rerun_batches, strict=True):
        if single is not None and part == [single.row]:
            yield part, single.outputs
            continue
        outputs = recorder.chosen_outputs(batch)
        compared = Comparison()
        compared.add_rows(
            "outputs", outputs, checked_batch.outputs[part], whole=checked_batch.outputs
        )
        if compared.first_above(recorder.tolerance) is not None:
            text = "examples have other outputs in another batch"
            seen = [(checked_batch.batch, checked_batch.outputs), (batch, outputs.detach())]
            raise cannot_split(Cause.OTHER_BATCH, text, seen)
        yield part, outputs


def rerun_gradients(
    recorder: "ModelRecorder",
    checked_batch: CheckedBatch,
    output_weights: Sequence[Float[Tensor, "m c"]],
) -> Iterator[dict[str, Tensor]]:
    """Gradients of weighted outputs of the examples that run again, by plain autograd, in turn.

    Args:
        recorder: The model.
        checked_batch: The batch.
        output_weights: For every gradient, the weights of their outputs.
    """
    outputs = torch.cat([outputs for _, outputs in rerun_parts(recorder, checked_batch)])
    for weights in output_weights:
        yield plain_gradients(outputs, recorder.ownership.parameters, weights, keep=True)


def part_gradients(
    recorder: "ModelRecorder", checked_batch: CheckedBatch
) -> Iterator[dict[str, Tensor]]:
    """Gradient of the weighted outputs of each part that runs again; the last is one example."""
    sizes = [len(part) for part in checked_batch.reruns]
    parts = rerun_parts(recorder, checked_batch)
    sets = torch.split(checked_batch.output_weights, sizes)
    for (_, outputs), weights in zip(parts, sets, strict=True):
        yield plain_gradients(outputs, recorder.ownership.parameters, weights)


def compare_gradients(
    recorder: "ModelRecorder",
    found: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    sizes: Mapping[str, float],
) -> None:
    """Compare weighted sums of gradients with those of plain autograd, for every parameter.

    Args:
        recorder: The model.
        found: Parameter -> sum.
        wanted: Parameter -> sum by autograd; a missing one is zero.
        sizes: Parameter -> root of the sum of the squared norms of the terms.

    Raises:
        WrongGradientError: If a parameter differs.
    """
    names = list(dict.fromkeys([*found, *wanted]))
    known = dict(zip(wanted, norms_of(list(wanted.values())), strict=True))

    def difference(name: str) -> Tensor:
        if name not in wanted:
            return found[name]
        if name not in found:
            return wanted[name]
        return found[name].flatten() - wanted[name].flatten().to(found[name])

    with torch.no_grad():
        norms = [torch.linalg.vector_norm(_wide(difference(name))) for name in names]
        gaps = torch.stack(norms).tolist() if norms else []
    for index, (name, gap) in enumerate(zip(names, gaps, strict=True)):
        total, within = found.get(name), math.isfinite(sizes.get(name, 0.0))
        if total is None or (within and math.isfinite(gap)):
            continue
        within = within and bool(total.isfinite().all())
        if not within and name in wanted and wanted[name].isfinite().all():
            dtype = str(total.dtype).removeprefix("torch.")
            raise NotFiniteError(
                f"gradients with respect to {name!r}: expected sums within the range of {dtype}, "
                "got infinity; measure model.double(), with inputs in float64"
            )
        gaps[index] = float(_norm(difference(name)))
    scales = [max(known.get(name, 0.0), sizes.get(name, 0.0)) for name in names]
    require_small(recorder, names, gaps, scales)


def require_small(
    recorder: "ModelRecorder", names: Sequence[str], gaps: Sequence[float], scales: Sequence[float]
) -> None:
    """Check that differences from gradients of plain autograd are rounding.

    Args:
        recorder: The model.
        names: Parameters.
        gaps: Norms of the differences.
        scales: Norms to compare them with.

    Raises:
        WrongGradientError: If a parameter differs.
    """
    limit, whole = _BACKWARD * recorder.tolerance, math.hypot(*scales)
    unit = min(recorder.unit, limit * _VANISHING)
    for name, gap, scale in zip(names, gaps, scales, strict=True):
        if not gap <= limit * scale + unit * whole:
            raise _disagrees(
                f"gradients with respect to {name!r}: expected weighted sums that agree with "
                f"autograd, got a relative difference of {_ratio(gap, scale):.1e}",
                vanishing=gap <= limit * (scale + _VANISHING * whole),
            )


def _disagrees(text: str, *, vanishing: bool) -> CannotSplitError:
    """Plain autograd gives another gradient; for a vanishing one, rounding may be the reason."""
    return CannotSplitError(text) if vanishing else WrongGradientError(text)


def _ratio(gap: float, scale: float) -> float:
    return gap / scale if scale > 0 else math.inf


def check_loss(
    recorder: "ModelRecorder",
    loss: Callable[[Tensor, Batch], Tensor],
    checked_batch: CheckedBatch,
    losses: Float[Tensor, " n"],
    seed: Float[Tensor, "n c"],
) -> None:
    """Check that the loss of an example and its gradient do not depend on other examples.

    The same outputs are used again. If a model fits its targets to the last digits, the loss of new
    outputs would be rounding only.
    """
    rows = checked_batch.rerun_rows
    outputs = [checked_batch.outputs[part].requires_grad_() for part in checked_batch.reruns]
    again = [*map(loss, outputs, checked_batch.rerun_batches)]
    gradients = torch.autograd.grad([part.sum() for part in again], outputs, materialize_grads=True)
    compared = Comparison()
    compared.add_rows("loss", torch.cat(again)[:, None], losses[rows, None], whole=losses[:, None])
    wanted = seed[rows]
    name = "gradient of the loss"
    compared.add_rows(name, torch.cat(gradients), wanted, whole=seed)
    if compared.first_above(recorder.tolerance) is not None:
        raise cannot_split(
            Cause.OTHER_BATCH, "the loss of an example changes with the other examples of its batch"
        )


def compare_kernels(
    recorder: "ModelRecorder",
    kernels: Mapping[str, Tensor],
    sides: tuple[Sequence[CheckedBatch], Sequence[CheckedBatch]],
) -> None:
    r"""Compare kernels of the examples that run again with plain autograd.

    :math:`u^T K_l v` of every layer must be the inner product of the gradients of ``sum u f`` and
    ``sum v f``. A kernel that is summed over outputs, or has one entry per output, takes one such
    gradient for every output.

    Args:
        recorder: The model.
        kernels: Layer -> kernel.
        sides: Checked batches of the rows and of the columns. They are paired in order; the
            shorter list is repeated.

    Raises:
        WrongGradientError: If a layer disagrees.
    """
    left, right = sides
    for index in range(max(len(left), len(right)) if left and right else 0):
        first, second = left[index % len(left)], right[index % len(right)]
        _compare_block(recorder, kernels, first, second)


def _compare_block(
    recorder: "ModelRecorder",
    kernels: Mapping[str, Tensor],
    left: CheckedBatch,
    right: CheckedBatch,
) -> None:
    mode = recorder.choice.mode
    of_columns: Iterator[dict[str, Tensor]] = iter(())
    if left is not right:
        of_columns = rerun_gradients(recorder, right, right.weights_by_output(mode))
    squares: list[dict[str, float]] = []
    products = squares if left is right else []
    for first in rerun_gradients(recorder, left, left.weights_by_output(mode)):
        norms = zip(first, norms_of([*first.values()]), strict=True)
        squares.append({name: norm * norm for name, norm in norms})
        if left is not right:
            second = next(of_columns)
            names = [name for name in first if name in second]
            products.append({name: float(_inner(first[name], second[name])) for name in names})
            del second  # before the next gradient of the other side
    wanted = {
        layer: sum((found[name] for found in products for name in names if name in found), 0.0)
        for layer, names in recorder.ownership.layers.items()
    }
    _compare_groups(recorder, left, squares)
    u, v = left.output_weights, right.output_weights
    u, v = (u.flatten(), v.flatten()) if mode == "full" else (u[:, 0], v[:, 0])
    rows, columns = (side.rerun_index + side.start for side in (left, right))
    parts = [_entries(kernel, rows, columns, mode) for kernel in kernels.values()]
    v = v.to(parts[0])
    forms = (torch.stack([part @ v for part in parts]).to(u) @ u).tolist()
    by_layer, sizes = (dict(zip(kernels, found, strict=True)) for found in (forms, norms_of(parts)))
    compare_forms(recorder, by_layer, wanted, sizes)


def compare_forms(
    recorder: "ModelRecorder",
    forms: Mapping[str, float],
    wanted: Mapping[str, float],
    scales: Mapping[str, float],
) -> None:
    """Compare quadratic forms of kernels with inner products of two gradients.

    Args:
        recorder: The model.
        forms: Layer -> quadratic form of its kernel.
        wanted: Layer -> the same from plain gradients.
        scales: Layer -> norm of the terms of the form.

    Raises:
        WrongGradientError: If a layer differs.
    """
    bases = {layer: max(scales[layer], abs(wanted[layer])) for layer in forms}
    limit, whole = _BACKWARD * recorder.tolerance, math.hypot(*bases.values()) ** 0.5

    def explained(gap: float, base: float, rounding: float) -> bool:
        """A form is a product of two gradients, each of which contains rounding."""
        left = rounding * whole
        return gap <= limit * base + left * (2 * base**0.5 + left)

    unit = min(recorder.unit, limit * _VANISHING)
    for layer, base in bases.items():
        gap = abs(forms[layer] - wanted[layer])
        if not explained(gap, base, unit):
            raise _disagrees(
                f"layer {layer!r}: expected its kernel to agree with autograd, got a relative "
                f"difference of {_ratio(gap, base):.1e}",
                vanishing=explained(gap, base, limit * _VANISHING),
            )


def compare_in_batch(recorder: "ModelRecorder", checked_batch: CheckedBatch) -> None:
    """Compare weighted gradients of plain autograd in the batch and in another batch."""
    outputs = recorder.chosen_outputs(checked_batch.batch)[checked_batch.rerun_index]
    weights = checked_batch.output_weights
    found = plain_gradients(outputs, recorder.ownership.parameters, weights)
    (wanted,) = rerun_gradients(recorder, checked_batch, [weights])
    compare_gradients(recorder, found, wanted, {})


def with_group_norms(
    checked_batch: CheckedBatch, factors: Sequence["Factors"], mode: str, limit: int
) -> CheckedBatch:
    """The same batch, with the weighted sums of gradients from the factors of some groups.

    Args:
        checked_batch: The batch.
        factors: Factors of its examples, for each group.
        mode: Which pairs of outputs are kept.
        limit: Limit of intermediate results in bytes.
    """
    if not factors:
        return checked_batch
    sets = checked_batch.weights_by_output(mode)
    sums: list[Tensor] = []
    squares: list[Tensor] = []
    for own in factors:
        chosen = own[checked_batch.rerun_index]
        spans = [*chosen.spans(limit)]
        parts = [chosen[span] for span in spans]
        for weights in sets:
            found = [
                part.weighted_sums([slice(0, len(part))], weights[span])[0]
                for part, span in zip(parts, spans, strict=True)
            ]
            sums.append(sum(found[1:], found[0]))
        squares.append(torch.cat([part.squared_norms() for part in parts]))
    terms = torch.stack(squares).clamp(min=0.0) * sum(weights.square() for weights in sets)
    sizes, norms = terms.sum((1, 2)).sqrt().tolist(), iter(norms_of(sums))
    groups = {
        own.names: (math.hypot(*islice(norms, len(sets))), size)
        for own, size in zip(factors, sizes, strict=True)
    }
    return replace(checked_batch, group_norms=groups)


def _compare_groups(
    recorder: "ModelRecorder", checked_batch: CheckedBatch, squares: Sequence[Mapping[str, float]]
) -> None:
    """Compare norms of weighted sums for each group; a large group of a layer hides a small one.

    Args:
        recorder: The model.
        checked_batch: The batch.
        squares: For every set of weights, parameter -> squared norm of autograd's sum.
    """
    names, gaps, scales = [], [], []
    for group, (found, size) in checked_batch.group_norms.items():
        wanted = sum(of[name] for of in squares for name in group if name in of) ** 0.5
        names.append(group[0])
        gaps.append(abs(found - wanted))
        scales.append(max(wanted, size))
    require_small(recorder, names, gaps, scales)


def _entries(kernel: Tensor, rows: Tensor, columns: Tensor, mode: str) -> Tensor:
    """The entries of a kernel that are compared, as a matrix."""
    if mode == "full":
        part = kernel.index_select(0, rows).index_select(2, columns)  # (rows, c, columns, c)
        return part.flatten(2).flatten(0, 1)
    matrix = kernel.sum(0) if mode == "diagonal" else kernel
    return matrix[rows[:, None], columns]


def require_range(
    recorder: "ModelRecorder",
    kernels: Mapping[str, Tensor],
    sides: "tuple[BatchList, BatchList]",
) -> None:
    """Check that kernels are finite, and not zero unless gradients are zero.

    Args:
        recorder: The model.
        kernels: Layer -> kernel.
        sides: Examples of the rows and of the columns.

    Raises:
        NotFiniteError: If the gradients of an example are not finite.
        RangeError: If a kernel exceeds the range of its dtype.
    """
    limits = [end for kernel in kernels.values() if kernel.numel() for end in kernel.aminmax()]
    ends = torch.stack(limits).tolist() if limits else []
    largest = [max(-low, high) for low, high in zip(ends[::2], ends[1::2], strict=True)]
    named = [layer for layer, kernel in kernels.items() if kernel.numel()]
    mode = recorder.choice.mode
    for layer, size in zip(named, largest, strict=True):
        kernel, limit = kernels[layer], torch.finfo(kernels[layer].dtype)
        if not math.isfinite(size):
            *_, left, right = (
                _equal_output_entries(kernel, mode).isfinite().logical_not().nonzero()[0].tolist()
            )
            for side, example in zip(sides, (left, right), strict=True):
                _require_finite_gradients(recorder, side, example)
            raise _out_of_range(layer, kernel.dtype, f"above {limit.max:.1e}")
        if size > _FAR * limit.tiny or sides[0] is not sides[1]:
            continue
        own = _squared_gradient(recorder, sides[0], 0, recorder.ownership.layers[layer])
        found = _equal_output_entries(kernel, mode)[..., 0, 0].double().sum()
        if (own - found).abs() > recorder.tolerance * own:
            raise _out_of_range(layer, kernel.dtype, f"below {limit.tiny:.1e}")


def _equal_output_entries(kernel: Tensor, mode: str) -> Float[Tensor, "*outputs n m"]:
    """Entries between equal outputs of two examples; for a full kernel a view of its diagonal."""
    return kernel.diagonal(dim1=1, dim2=3).movedim(2, 0) if mode == "full" else kernel


def _out_of_range(layer: str, dtype: torch.dtype, got: str) -> RangeError:
    name = str(dtype).removeprefix("torch.")
    double = dtype == torch.float64
    advice = "pass dtype=torch.float64, or a model and data in float64"
    advice = "divide the outputs by a constant" if double else advice
    return RangeError(
        f"layer {layer!r}: expected a kernel within the range of {name}, got numbers {got}; "
        f"{advice}"
    )


def _single_gradients(
    recorder: "ModelRecorder", side: "BatchList", example: int
) -> Iterator[dict[str, Tensor]]:
    """Gradients of every output of one example, by plain autograd."""
    (one,) = side.take(slice(example, example + 1))
    outputs = recorder.chosen_outputs(one)
    for value in outputs[0]:
        yield plain_gradients(value, recorder.ownership.parameters, keep=True)


def _squared_gradient(
    recorder: "ModelRecorder", side: "BatchList", example: int, names: Iterable[str]
) -> Float[Tensor, ""]:
    """Sum of the squared norms of an example's gradients with respect to some parameters."""
    total = torch.zeros((), dtype=torch.float64)
    for found in _single_gradients(recorder, side, example):
        squares = [found[name].double().square().sum() for name in names if name in found]
        total = sum(squares, total.to(squares[0]) if squares else total)
    return total


def _require_finite_gradients(recorder: "ModelRecorder", side: "BatchList", example: int) -> None:
    for found in _single_gradients(recorder, side, example):
        require_finite_gradients(all_finite(found.values()), [example])


def all_finite(tensors: Iterable[Tensor]) -> Bool[Tensor, " 1"]:
    """Whether all numbers of several tensors are finite."""
    return torch.stack([tensor.isfinite().all() for tensor in tensors]).all()[None]


def require_finite_gradients(finite: Bool[Tensor, " n"], examples: Sequence[int]) -> None:
    """Check that the gradients of every example are finite; the error names the others.

    Args:
        finite: Whether the gradients of each example are finite.
        examples: Indices of the examples in the data.
    """
    wrong = finite.logical_not().nonzero().flatten().tolist()
    if wrong:
        raise NotFiniteError(
            f"model: expected finite gradients, got NaN or infinity for example "
            f"{examples[wrong[0]]}, whose "
            "outputs are finite; a slope without bound, as that of a root or a norm at zero, is "
            "the usual cause: leave the example out, or add a small constant inside the root"
        )


def cannot_split(
    cause: Cause, text: str, seen: Sequence[tuple[Batch, Tensor]] = ()
) -> CannotSplitError:
    """The error that makes the engine measure one example at a time."""
    error = CannotSplitError(text)
    error.cause, error.seen = cause, seen
    return error


def require_finite(model: nn.Module, values: Tensor, batch: Batch, examples: Sequence[int]) -> None:
    """Check that all numbers are finite; the error names the weight or the example.

    Args:
        model: The model.
        values: One row per example of the batch.
        batch: The examples.
        examples: Indices of the examples in the data.
    """
    if math.isfinite(values.detach().sum()):  # not so if any number is not finite
        return
    finite = values.detach().isfinite().reshape(len(values), -1).all(1)
    if finite.all():
        return
    for name, parameter in model.named_parameters():
        if not parameter.detach().isfinite().all():
            raise NotFiniteError(
                f"model: expected finite weights, got NaN or infinity in {name!r}; a diverged "
                "run is the usual cause, load an earlier checkpoint"
            )
    wrong = (~finite).nonzero().flatten().tolist()
    one = batch.take(slice(wrong[0], wrong[0] + 1))
    given = [t for t in tensors_in((one.args, dict(one.kwargs))) if t.is_floating_point()]
    inputs = any(not t.isfinite().all() for t in given if not t.is_nested)
    where = "its inputs hold NaN or infinity" if inputs else "its inputs are finite"
    more = f" ({len(wrong)} examples of this batch)" if len(wrong) > 1 else ""
    advice = "leave it out or repair it" if inputs else "check the scale of weights and activations"
    raise NotFiniteError(
        f"model: expected finite outputs, got NaN or infinity for example {examples[wrong[0]]}"
        f"{more}; {where}: {advice}"
    )


def plain_gradients(
    outputs: Tensor,
    parameters: Mapping[str, Tensor],
    weights: Tensor | None = None,
    *,
    keep: bool = False,
) -> dict[str, Tensor]:
    """Gradients of plain autograd, as real dense tensors; a complex entry becomes two numbers.

    Args:
        outputs: The differentiated outputs.
        parameters: Name -> tensor; tensors that the outputs do not depend on are left out.
        weights: Weights of the outputs; None for a single number.
        keep: Whether the graph is needed again.
    """
    wanted, start = list(parameters.values()), None if weights is None else weights.to(outputs)
    try:
        found = torch.autograd.grad(outputs, wanted, start, retain_graph=keep, allow_unused=True)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise CaptureError(
            f"model: expected a backward pass, but autograd refuses: {first}"
        ) from error
    present = {name: g for name, g in zip(parameters, found, strict=True) if g is not None}
    return {name: as_real(gradient) for name, gradient in present.items()}


def add_gradients(total: dict[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Add gradients of parameters to a dictionary of sums."""
    for name, gradient in found.items():
        total[name] = total[name] + gradient if name in total else gradient


def as_real(gradient: Tensor) -> Tensor:
    """A gradient as a real dense tensor; a complex entry becomes two numbers."""
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    return torch.view_as_real(dense) if dense.is_complex() else dense
