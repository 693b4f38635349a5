"""Sizes and memory of a measurement, computed before it starts.

The memory limit is for everything that the survey adds to the process: probe set, features,
kernels, sums and the passes of the model. The model and the given data do not count. Two things
stay: the probe set with the held-out examples, and the features of all layers until the last family
that reads them is done. Beside them there is one thing at a time: a pass of the model, or the work
of one family on one layer.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from warnings import warn

import torch
from torch import Tensor

from theodolite._distributed import Processes
from theodolite.advice.reasons import Reason, reason
from theodolite.checks import size_in_bytes
from theodolite.engine import available_bytes, tensors_in
from theodolite.errors import MemoryLimitError
from theodolite.records import Note
from theodolite.surveys.layers import Layout
from theodolite.surveys.options import FEATURE_READERS, SIZES, SurveyOptions
from theodolite.surveys.probe import Probe

KEPT_PRODUCTS = 512  # largest number of examples whose inner products are kept
USED = 0.8  # usable share of the limit: libraries below torch make their own copies
LIVE = 6  # results of operations that exist at one time, with conversions of layout

_MOST = 4 * 2**30  # default limit on the CPU
_MATRICES = 16 * 8  # bytes for each pair of examples: references, a kernel, its decomposition
_NULL_COPIES = 6 * 8  # bytes for each number of permuted targets, with intermediate results
_STACKED = 2**23  # largest number of bytes of kernels that are processed together
_STACKS = 2**5  # kernels that are processed together may take 1 / _STACKS
_GRAPHS = 4  # results that a backward pass needs may take 1 / _GRAPHS
_FEWEST, _MANY = 4, 2**40  # examples: the bounds of a search for their number
_BATCHES = {"cuda": 1000}  # examples in one pass; elsewhere 256
_KERNELS = 18 * 2**30  # default limit for kernels of long sequences, in bytes
_UNLIMITED = 2 * 2**30  # free bytes before planning
_SEQUENCES = 16  # default number of sequences with tangent kernels on a CPU
_OUTPUTS = 2**13  # more sequences are used while all their outputs are fewer than this


@dataclass(frozen=True)
class SurveyPlan:
    """How one measurement is carried out. The user chooses none of these.

    Args:
        curves: whether curves are kept.
        check: whether the engine is compared with plain autograd.
        diverging: whether numbers that are not finite become a reason instead of an error.
        partial: whether an interrupt ends the measurement and keeps the finished families.
        most_layers: with more layers, blocks stand for the layers inside them.
        not_due: family -> why it is not measured this time.
        batch_size: number of examples in one pass.
        sizes: family -> largest number of examples.
        free_bytes: bytes for the work of one family.
        notes: family -> note, if it has fewer examples than requested.
    """

    curves: bool = True
    check: bool = True
    diverging: bool = False
    partial: bool = False
    most_layers: int = 40
    not_due: Mapping[str, Reason] = field(default_factory=dict)
    batch_size: int = 256
    sizes: Mapping[str, int | None] = field(default_factory=lambda: dict(SIZES))
    free_bytes: int = _UNLIMITED
    notes: Mapping[str, Reason] = field(default_factory=dict)

    def size(self, family: str, available: int) -> int:
        """Number of examples that a family uses."""
        size = self.sizes[family]
        return available if size is None else min(size, available)

    def fitted(
        self,
        options: SurveyOptions,
        layout: Layout,
        probe: Probe,
        processes: Processes,
        held_out: Probe | None = None,
    ) -> "SurveyPlan":
        """The plan with a batch size, numbers of examples and free bytes within the memory limit.

        Raises:
            MemoryLimitError: If one example, or the probe set, does not fit.
        """
        # Equal in all processes, because they must choose the same sizes.
        limit = size_in_bytes(options.memory_limit) or min(processes.gather(_default_limit(probe)))
        warn_of_memory(limit, available_bytes(_place(probe)))
        others = [] if held_out is None else [held_out]
        probe_bytes = sum(tensor.nbytes for part in (probe, *others) for tensor in _inputs(part))
        single = LIVE * layout.footprint.per_example(layout.footprint.largest)
        single += 4 * sum(layer.features for layer in layout.layers)
        free = int(USED * limit) - probe_bytes
        if free < 2 * single:
            raise MemoryLimitError(
                f"memory_limit: expected at least {math.ceil((probe_bytes + 2 * single) / USED):,}"
                f" bytes ({probe_bytes:,} for the probe set, {2 * single:,} for passes of one"
                f" example, the rest in reserve), got {limit:,}; choose fewer examples or layers"
            )
        sizes, notes = dict(options.sizes), {}
        plan = replace(self, sizes=sizes)
        readers = [family for family in FEATURE_READERS if family in options.families]
        judging = plan.size("held_out", 0 if held_out is None else len(held_out))
        most = _most_examples(options, layout, probe, free, judging)
        if judging > most:
            sizes["held_out"] = judging = most
        for family in readers:
            wanted = plan.size(family, probe.row_count)
            if wanted > most:
                sizes[family] = most
                notes[family] = reason(Note.FEWER_FOR_MEMORY, most=most, wanted=wanted)
        wanted, few = plan.size("tangent", len(probe)), _most_sequences(options, layout, probe)
        if "tangent" in options.families and wanted > few:
            sizes["tangent"] = few
            notes["tangent"] = reason(Note.FEWER_FOR_TIME, few=few, wanted=wanted)
        read = max((plan.size(family, probe.row_count) for family in readers), default=0) + judging
        wanted = options.batch_size or _BATCHES.get(_place(probe).type, 256)
        batch = max(1, min(wanted, (free - _kept_bytes(layout, read)) // max(1, single)))
        return replace(plan, batch_size=batch, free_bytes=free, notes=notes)

    @property
    def stacked_bytes(self) -> int:
        """Bytes of inner products that are processed together."""
        return min(_STACKED, self.free_bytes // _STACKS)

    def with_sizes(self, **sizes: int | None) -> "SurveyPlan":
        """The plan with other numbers of examples."""
        return replace(self, sizes={**self.sizes, **sizes})

    def kernel_options(
        self,
        options: SurveyOptions,
        layout: Layout,
        outputs: int,
        *,
        capped: bool = False,
        launched: bool = False,
    ) -> dict[str, Any]:
        """Memory and batch size for tangent kernels, if the user set a limit.

        For long sequences the memory is not filled (``capped``), because more blocks cost little.
        On a GPU passes of a single output (``launched``) are as large as memory allows, because
        each pass is recorded and checked.

        With a limit the engine chooses the batches, from its own plan.
        """
        passing = layout.footprint
        graph = 2 * passing.per_example(passing.total)  # activations, and as many gradients
        if options.memory_limit is None and capped:
            return {"memory_limit": min(self.free_bytes, _KERNELS)}
        if options.memory_limit is None:
            roomy = min(self.batch_size, self.free_bytes // (_GRAPHS * max(1, graph)))
            return {"batch_size": max(1, roomy)} if launched and outputs == 1 else {}
        return {"memory_limit": self.free_bytes}


def warn_of_memory(planned: int, available: int) -> None:
    """Warn before the measurement if the planned peak of memory is more than the free memory."""
    if planned > available:
        warn(
            f"up to {planned / 1e9:.1f} GB may be used, {available / 1e9:.1f} GB are free: the "
            f"system may end this process; pass memory_limit='{max(1, int(available / 2e6))}MB'",
            stacklevel=4,
        )


def _inputs(probe: Probe) -> list[Tensor]:
    return tensors_in((probe.batch.args, dict(probe.batch.kwargs)))


def _place(probe: Probe) -> torch.device:
    tensors = _inputs(probe)
    return tensors[0].device if tensors else torch.device("cpu")


def _default_limit(probe: Probe) -> int:
    place = _place(probe)
    half = available_bytes(place) // 2
    return half if place.type == "cuda" else min(_MOST, half)


def _most_examples(
    options: SurveyOptions, layout: Layout, probe: Probe, free: int, judging: int
) -> int:
    """Number of examples that fit: their features stay beside the work on one layer.

    Held-out examples are in the kernel of a linear probe.
    """
    known = [targets for targets in (probe.rows, probe.truth) if targets is not None]
    columns = max(1 if t.columns is None else t.columns.shape[1] for t in known)
    nulls = _NULL_COPIES * max(1, options.permutations) * columns

    def needed(count: int) -> int:
        rows = count + min(judging, count)
        return _kept_bytes(layout, rows) + _MATRICES * count**2 + 3 * 8 * rows**2 + nulls * count

    return max(_FEWEST, bisect_right(range(1, _MANY), free, key=needed))


def _kept_bytes(layout: Layout, rows: int) -> int:
    """Bytes of the features of all layers, or of the products of wide ones."""
    features = [layer.features for layer in layout.layers]
    products = 8 * rows if rows <= KEPT_PRODUCTS else 0  # kept beside narrow features
    return sum(rows * (4 * min(width, rows) + products) for width in features)


def _most_sequences(options: SurveyOptions, layout: Layout, probe: Probe) -> int:
    """Number of examples with tangent kernels, for examples with many positions on a CPU.

    The time grows with the square of their number, positions and outputs.
    """
    asked = options.sizes["tangent"] != SIZES["tangent"]
    if probe.positions is None or not probe.by_position or asked or _place(probe).type != "cpu":
        return len(probe)
    outputs = probe.positions.task.labels.count * (layout.outputs or 1)
    return max(_SEQUENCES, _OUTPUTS // outputs)
