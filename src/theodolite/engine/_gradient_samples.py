"""A few examples of a batch once more, by plain autograd and beside other examples than before.

Their weighted losses have gradients that autograd alone has computed. Those that were found for
the same examples inside the batch must add up to them: an example that was taken for another, left
out or mixed with others shows, for every parameter.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.overrides import TorchFunctionMode

from theodolite.engine._example_gradients import Segment
from theodolite.engine._examples import BRANCHES, LARGE, output_differences, tolerance_of
from theodolite.engine._gradient_bundles import Bundle, part_norms
from theodolite.engine._runs import BatchLoss, ForwardRun, ModelRecorder, plain_gradients
from theodolite.engine.batches import Batch
from theodolite.engine.calls import DisagreementError, function_name

__all__ = [
    "LOGITS",
    "GradientCheck",
    "GradientSample",
    "in_background",
    "sampled",
    "squared_norms",
]

LOGITS = "all logits"  # beside the parameters; names of modules have no spaces

_ALL = 32  # so few examples all run again, in two parts
_ENDS = 8  # of many, these from each end of the batch
_LARGE_ENDS = 1  # of whole sequences and pictures

Result = TypeVar("Result")


def sampled(count: int, *, every: bool = False, large: bool = False) -> list[list[range]]:
    """Places in a batch of the examples that run again: parts, each of one or several ranges.

    Args:
        count: Examples in the batch.
        every: Whether all of them must run.
        large: Whether a single one is a whole sequence or picture, of which fewer must do.
    """
    ends = _LARGE_ENDS if large else _ENDS
    if every or count <= (2 * ends if large else _ALL):
        half = count // 2
        return [[part] for part in (range(half, count), range(half)) if len(part)]
    return [[range(ends), range(count - ends, count)]]


def in_background(device: torch.device, compute: Callable[[], Result]) -> Callable[[], Result]:
    """Begin a backward pass on a GPU while Python goes on; what is returned waits for its result.

    Launching a thousand small kernels takes longer than their work, and autograd launches them
    without Python. Elsewhere than on a GPU the pass is done at once.
    """
    if device.type != "cuda":
        result = compute()
        return lambda: result
    stream = torch.cuda.current_stream(device)

    def work() -> Result:
        with torch.cuda.device(device), torch.cuda.stream(stream):
            return compute()

    return _executor().submit(work).result


@lru_cache(maxsize=1)
def _executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="theodolite-backward")


class _Decisions(TorchFunctionMode):
    """Numbers that Python gets to decide by while the block runs."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call the function and keep such a number."""
        result = func(*args, **(kwargs or {}))
        if _is_branch(func):
            self.found.append(result)
        return result


@lru_cache(maxsize=4096)
def _is_branch(func: Callable[..., Any]) -> bool:
    return function_name(func) in BRANCHES


class _Part:
    """Examples that run together.

    Args:
        ranges: Their places in the batch, which run in the opposite order.
        device: Of the batch.
        large: Whether a single one is a whole sequence or picture.
    """

    losses: Tensor
    differences: Float[Tensor, "2"]
    weights: Float[Tensor, " n"]
    plain: Callable[[], dict[str, Tensor]]

    def __init__(self, ranges: Sequence[range], device: torch.device, large: bool) -> None:
        self.segments = [Segment(0, part.start, part.stop, closes=True) for part in ranges]
        backward = [torch.arange(p.stop - 1, p.start - 1, -1, device=device) for p in ranges]
        self.places = torch.cat(backward)
        first, last = self.segments[0].start, self.segments[-1].stop - 1
        # One example, or two that a slice picks.
        single = large and all(len(part) == 1 for part in ranges)
        self.few = slice(first, last + 1, max(1, last - first)) if single else None

    def weighted_sum(self, bundle: Bundle) -> tuple[Float[Tensor, " p"], Tensor | None]:
        """Sum of the gradients, and the norm of each where they are few."""
        if self.few is None:
            sums: list[Tensor] = []
            add = sums.append
            bundle.gradients.weighted_sums(self.segments, self.weights, lambda _, part: add(part))
            rows = sums[0] if len(sums) == 1 else torch.cat(sums)
            return rows.sum(0).flatten(), None
        rows = bundle.gradients.singles(self.few)
        norms = part_norms(rows, bundle.widths, exact=not bundle.gradients.coarse)
        return self.own.to(rows.dtype) @ rows.flatten(1), norms.mT

    @cached_property
    def expected(self) -> dict[str, Tensor]:
        """Autograd's own gradients, once they are there; those that were compared are let go."""
        found, self.plain = self.plain(), dict
        return found

    def weigh(self, weights: Float[Tensor, " n"]) -> None:
        """Weights of all examples of the batch, and of these."""
        self.weights, self.own = weights, weights[self.places]


# Gradients that vanish (a shift before a normalisation) leave rounding of the others.
_VANISHING = 1e3


def squared_norms(tensors: Sequence[Tensor]) -> Float[Tensor, " m"]:
    """Squared norm of each tensor in float64, in one call."""
    real = [torch.view_as_real(t) if t.is_complex() else t for t in tensors]
    return torch.stack(torch._foreach_norm(real, 2, torch.float64)).square()


@dataclass(frozen=True)
class _Comparison:
    """Distances from plain autograd and the size of what was compared, on the device."""

    names: tuple[str, ...]
    distances: Tensor
    scales: Tensor

    @classmethod
    def together(cls, parts: Sequence["_Comparison"]) -> "_Comparison":
        """Several as one, on the CPU."""
        numbers = torch.cat([torch.stack([part.distances, part.scales]) for part in parts], 1)
        return cls(tuple(name for part in parts for name in part.names), *numbers.cpu())


class GradientCheck:
    """Gradients of weighted losses against plain autograd; waits on the device for the verdict.

    Every example has a random weight. Its gradient must grow by that weight, and all of them add
    up to autograd's own gradient of the weighted losses: an example that was taken for another,
    left out, or mixed with others shows, for every parameter.
    """

    def __init__(self, recorder: ModelRecorder) -> None:
        self._recorder = recorder
        self._waiting: dict[Hashable, list[_Comparison]] = defaultdict(list)

    def draw(self, slopes: Float[Tensor, "n c"]) -> Float[Tensor, " n"]:
        """Random weights that bring all examples to one size, given their losses' slopes."""
        draws = torch.Generator().manual_seed(len(slopes))
        sizes = 0.5 + torch.rand(len(slopes), generator=draws, dtype=torch.float64)
        norms = torch.linalg.vector_norm(slopes, dim=1, dtype=torch.float64)
        largest = norms.max().clamp(min=torch.finfo(torch.float32).tiny)
        return sizes.to(norms.device) / norms.clamp(min=1e-6 * largest)

    def compare(
        self,
        found: Mapping[str, Tensor],
        expected: Mapping[str, Tensor],
        spreads: Float[Tensor, " m"],
        pass_: Hashable = None,
    ) -> None:
        """Note how far vectors are from what they should be.

        Args:
            found: Parameter -> vector, which is overwritten; a number is compared with the norm
                of the vector expected.
            expected: Parameter -> vector; not there means zero.
            spreads: Norm of the norms of the examples' weighted gradients, which gives the scale,
                for every parameter that was found.
            pass_: Equal for parameters of one pass, whose rounding is that of the largest.
        """
        names = tuple(dict.fromkeys([*found, *expected]))
        nothing = spreads.new_zeros(1)
        wanted = [expected.get(name, nothing) for name in names]
        sizes = squared_norms(wanted).sqrt()
        vectors = [(found[n], expected[n]) for n in found if n in expected and found[n].dim()]
        if vectors:
            torch._foreach_sub_(*zip(*vectors, strict=True))
        gaps = []
        for name, vector, size in zip(names, wanted, sizes, strict=True):
            value = found.get(name, vector)
            gaps.append(value if value.dim() else (value - size).unsqueeze(0))
        missing = spreads.new_zeros(len(names) - len(spreads))
        scales = torch.maximum(torch.cat([spreads, missing]), sizes)
        self._waiting[pass_].append(_Comparison(names, squared_norms(gaps).sqrt(), scales))

    def compare_rows(
        self,
        names: tuple[str, ...],
        found: Float[Tensor, "m n"],
        expected: Float[Tensor, "m n"],
        pass_: Hashable = None,
    ) -> None:
        """Note how far one row per parameter is from what it should be."""
        distances, scales = (
            torch.linalg.vector_norm(rows, dim=1) for rows in (found - expected, expected)
        )
        self._waiting["rows", pass_].append(_Comparison(names, distances, scales))

    def require_agreement(self, dtype: torch.dtype) -> None:
        """Judge what is waiting.

        Args:
            dtype: That of the losses; what took part in the passes may be coarser.

        Raises:
            DisagreementError: If sums differ by more than rounding explains.
        """
        kinds = {dtype} | self._recorder.rounding
        allowed = tolerance_of(kinds)
        eps = max(torch.finfo(kind).eps for kind in kinds)
        for parts in self._waiting.values():
            one = _Comparison.together(parts)
            distances, scales = one.distances, one.scales
            vanishing = _VANISHING * eps * scales.square().sum().sqrt()
            wrong = (~(distances <= allowed * scales + vanishing)).nonzero().flatten().tolist()
            if wrong:
                share = float(distances[wrong[0]] / scales[wrong[0]])
                raise DisagreementError(
                    f"gradients with respect to {one.names[wrong[0]]!r}: expected those of "
                    f"weighted examples as autograd gives them, got a relative difference of "
                    f"{share:.1e}"
                )
        self._waiting.clear()


class GradientSample:
    """Examples of one batch, from their forward pass to the comparison.

    Args:
        recorder: The model and its parameters.
        loss: One number per example.
        run: The pass of the whole batch.
        batch: The batch, on its device.
        every: Whether every example runs again.
    """

    def __init__(
        self,
        recorder: ModelRecorder,
        loss: BatchLoss,
        run: ForwardRun,
        batch: Batch,
        *,
        every: bool = False,
    ) -> None:
        self._recorder, self._loss, self._run, self._batch = recorder, loss, run, batch
        self._device = run.outputs.device
        self._every = every
        self._large = run.result_bytes > LARGE * len(batch)
        self._parts: list[_Part] = []
        self._derived = {
            root
            for use in run.uses
            if use.origin.tensor.grad_fn is not None
            for root in use.origin.roots
        }

    def run_again(self) -> None:
        """Forward passes in other company; all examples if Python decides otherwise there."""
        decided, large = self._run.decisions, self._large
        every = sampled(len(self._batch), every=True)
        all_of_them = self._every or (bool(decided) and not large)
        chosen = sampled(len(self._batch), every=all_of_them, large=large)
        alike = self._run_parts(chosen, decided)
        if not alike and chosen != every:
            self._run_parts(every, decided)

    def _run_parts(self, parts: list[list[range]], decided: tuple[Any, ...]) -> bool:
        """Whether Python has decided as it did for the whole batch."""
        self._parts, alike = [], True
        for ranges in parts:
            part = _Part(ranges, self._device, self._large)
            batch = self._batch.take(part.places)
            watch = _Decisions()
            outputs = self._recorder.outputs(batch, watch if decided else None)
            part.losses = self._loss(outputs, batch)
            part.differences = output_differences(self._run.outputs[part.places], outputs)
            self._parts.append(part)
            alike &= tuple(watch.found) == decided
        return alike

    def weigh(self, weights: Float[Tensor, " n"]) -> None:
        """Give every example of the batch its weight; autograd begins."""
        parameters = self._recorder.ownership.parameters
        for part in self._parts:
            part.weigh(weights)
            own = part.own.to(part.losses.dtype)
            compute = partial(plain_gradients, part.losses, parameters, own)
            part.plain = in_background(self._device, compute)
            del part.losses

    def compare(self, check: GradientCheck, bundle: Bundle, norms: Float[Tensor, "m n"]) -> None:
        """Note how far gradients found in the batch are from autograd's, which are let go.

        No more than those of one bundle, and autograd's that wait, exist at a time.

        Args:
            check: Where it is noted.
            bundle: The gradients of all examples of the batch.
            norms: Of each of them.
        """
        names = bundle.names
        for part in self._parts:
            own = norms[:, part.places]
            spreads = torch.linalg.vector_norm(own * part.own, dim=1)
            total, lengths = part.weighted_sum(bundle)
            if lengths is not None:
                check.compare_rows(names, lengths, own, pass_=part)
            pieces = torch.split(total, list(bundle.widths)) if bundle.widths else [total]
            found, expected = {}, {}
            for name, piece in zip(names, pieces, strict=True):
                derived = name in self._derived  # parts of a parameter, in an order of their own
                arranged = torch.flatten if derived else bundle.gradients.arrangement()
                found[name] = torch.linalg.vector_norm(piece) if derived else piece
                if name in part.expected:
                    expected[name] = arranged(part.expected.pop(name))
            if LOGITS in found:
                place = names.index(LOGITS)
                spreads = torch.cat([spreads[:place], spreads[place + 1 :]])
                del found[LOGITS]
            if found:
                check.compare(found, expected, spreads, pass_=part)

    def finish(self, check: GradientCheck) -> Iterator[tuple[Float[Tensor, "2"], Batch]]:
        """What nobody has found is compared with nothing; how far outputs are from before."""
        for part in self._parts:
            if part.expected:
                unseen = {name: value.flatten() for name, value in part.expected.items()}
                nothing = part.own.new_zeros(0)
                check.compare({}, unseen, nothing, pass_=part)
            yield part.differences, self._batch
