"""Forward and backward passes over examples, and what is kept of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from theodolite.engine._blocks import spans
from theodolite.engine._dense_factors import DenseFactors
from theodolite.engine._factors import Factors, Frame, LookupFactors, OuterFactors, compact
from theodolite.engine._mixed_factors import MixedFactors
from theodolite.engine._plan import AtomPlan, Plan
from theodolite.engine._runs import Run, Subject
from theodolite.engine.batches import Batch
from theodolite.errors import CaptureError

__all__ = ["Collected", "collect", "example_blocks", "weighted_gradients"]

_FEW_BYTES = {"cpu": 2**25, "cuda": 2**28}
# On a GPU larger signals go through joint passes too where a single one has few examples.
_FILLING_EXAMPLES = 112
_JOINT_EXAMPLES = 512
_JOINT_BYTES = 2**30


@dataclass(frozen=True)
class Collected:
    """Factors of one block of examples.

    Args:
        factors: One entry per atom; contractions take them out when they are done.
        outputs: Functions of the examples, (n, c), detached.
        gradients: Name of a parameter -> gradient of the weighted sum of all outputs.
    """

    factors: list[Factors]
    outputs: Tensor
    gradients: dict[str, Tensor]


def example_blocks(batches: Sequence[Batch], block: int, run: int) -> Iterator[list[Batch]]:
    """Cut data into blocks of examples, each a list of batches for single forward passes."""
    current: list[Batch] = []
    room = block
    for batch in batches:
        start = 0
        while start < len(batch):
            stop = min(len(batch), start + min(run, room))
            current.append(batch.take(slice(start, stop)))
            room -= stop - start
            start = stop
            if room == 0:
                yield current
                current, room = [], block
    if current:
        yield current


def collect(
    subject: Subject, batches: Sequence[Batch], plan: Plan, frame: Frame, weights: Tensor | None
) -> Collected:
    """Factors of all atoms, and the gradient of the weighted outputs where weights are given."""
    factors = [_factors(entry, frame, subject) for entry in plan.atoms]
    outputs: list[Tensor] = []
    total: dict[str, Tensor] = {}
    start = 0
    for batch in batches:
        rows = slice(start, start + len(batch))
        run = subject.run(batch)
        part = None if weights is None else weights[rows]
        _add_run(factors, plan, run, rows, keep_graph=part is not None)
        if part is not None:
            _add_gradients(total, subject, run.outputs, part)
        outputs.append(compact(run.outputs.detach()))
        del run  # before the next one is made: its graph holds as much as all that is kept of it
        start = rows.stop
    return Collected(factors, outputs[0] if len(outputs) == 1 else torch.cat(outputs), total)


def _factors(entry: AtomPlan, frame: Frame, subject: Subject) -> Factors:
    if entry.atom.kind == "lookup":
        return LookupFactors(entry.atom, frame)
    if entry.atom.kind == "mixed":
        assert entry.route is not None
        return MixedFactors(entry.atom, frame, entry.route)
    if entry.atom.kind == "outer":
        assert entry.route is not None
        return OuterFactors(entry.atom, frame, entry.route, entry.eager)
    return DenseFactors(entry.atom, frame, subject.ownership.parameters[entry.atom.parameter])


def _add_run(factors: list[Factors], plan: Plan, run: Run, rows: slice, keep_graph: bool) -> None:
    _require_same_calls(plan, run)
    for factor in factors:
        factor.begin(rows, [run.uses[index] for index in factor.atom.uses])
    if not _joint(factors, run, _group(plan, run)):
        for output, gradients in run.passes(keep_graph):
            for factor in factors:
                factor.add(output, [gradients[index] for index in factor.atom.uses])
            del gradients  # before those of the next output come
    for factor in factors:
        factor.end()


def _joint(factors: list[Factors], run: Run, size: int) -> bool:
    """Passes of several outputs at a time; False where the model does not allow it."""
    count = run.outputs.shape[1]
    for start in range(0, count if size > 1 else 0, size):
        outputs = range(start, min(start + size, count))
        together = run.joint_passes(outputs)
        if together is None:
            return False
        for factor in factors:
            factor.add_joint(outputs, [together[index] for index in factor.atom.uses])
        del together
    return size > 1


def _group(plan: Plan, run: Run) -> int:
    """Outputs that go through one pass: several where one alone would not fill the machine."""
    n, count = run.outputs.shape
    if plan.joint is not None:
        return min(count, plan.joint)
    limit = _FEW_BYTES.get(run.outputs.device.type, 0)
    if 0 < run.signal_bytes <= limit:
        return count
    if run.outputs.device.type != "cuda" or run.signal_bytes == 0 or n > _FILLING_EXAMPLES:
        return 1
    size = min(-(-_JOINT_EXAMPLES // n), _JOINT_BYTES * count // run.signal_bytes)
    groups = -(-count // max(1, min(count, size)))
    return -(-count // groups)  # groups of equal size


def _require_same_calls(plan: Plan, run: Run) -> None:
    if len(run.uses) != plan.uses:
        raise CaptureError(
            f"model: expected the same {plan.uses} uses of parameters for all examples, got "
            f"{len(run.uses)}; control flow that depends on the data is not supported, pass "
            "examples that take the same path"
        )


def _add_gradients(
    total: dict[str, Tensor], subject: Subject, outputs: Tensor, weights: Tensor
) -> None:
    parameters = subject.ownership.parameters
    gradients = torch.autograd.grad(
        outputs, list(parameters.values()), weights.to(outputs.dtype), allow_unused=True
    )
    for name, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            continue
        value = gradient.detach()
        total[name] = total[name] + value if name in total else value


def weighted_gradients(
    subject: Subject, batches: Sequence[Batch], weights: Tensor, run: int
) -> dict[str, Tensor]:
    """Gradient of ``sum weights * outputs`` over all examples, by plain autograd."""
    total: dict[str, Tensor] = {}
    start = 0
    for batch in batches:
        for rows in spans(len(batch), run):
            part = batch.take(rows)
            span = slice(start, start + len(part))
            _add_gradients(total, subject, subject.outputs(part), weights[span])
            start = span.stop
    return total
