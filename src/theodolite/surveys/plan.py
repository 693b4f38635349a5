"""Sizes and memory of a measurement, computed before it starts.

The memory limit is for everything that the survey adds to the process: probe set, features,
kernels, sums and the passes of the model. The model and the given data do not count. The memory has
three parts. The first, the probe set and the features of all layers, stays. The second is for one
pass of the model. The third is for the work of one family at a time.
"""

import math
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

__all__ = ["SurveyPlan", "warn_of_memory"]

_MOST = 4 * 2**30  # default limit on the CPU
_USED = 0.85  # usable share of the limit: the allocator keeps some freed memory
_LIVE = 6  # results of operations that exist at one time, with conversions of layout
_STAYING = 4  # features that stay may take 1 / _STAYING of the memory
_NULL_COPIES = 6 * 8  # bytes for each number of permuted targets, with intermediate results
_PLANNED = 0.5  # usable share of the free bytes: libraries below torch make their own copies
_SHARE = 8  # gradients of one pass may take 1 / _SHARE
_GRAPHS = 4  # results that a backward pass needs may take 1 / _GRAPHS
_BACKWARD = 5  # results of a backward pass that exist at one time
_FEWEST = 4
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
        details: whether covariances of all layers, unit gradients and heat maps are measured.
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
    details: bool = True
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
        self, options: SurveyOptions, layout: Layout, probe: Probe, processes: Processes
    ) -> "SurveyPlan":
        """The plan with a batch size, numbers of examples and free bytes within the memory limit.

        Raises:
            MemoryLimitError: If one example, or the probe, does not fit.
        """
        # Equal in all processes, because they must choose the same sizes.
        limit = size_in_bytes(options.memory_limit) or min(processes.gather(_default_limit(probe)))
        warn_of_memory(limit, available_bytes(_place(probe)), stacklevel=4)
        probe_bytes = sum(tensor.nbytes for tensor in _inputs(probe))
        single = _LIVE * layout.footprint.per_example(layout.footprint.largest)
        single += 4 * sum(layer.features for layer in layout.layers)
        free = int(_USED * limit) - probe_bytes
        if free < 2 * single:
            raise MemoryLimitError(
                f"memory_limit: expected at least {math.ceil((probe_bytes + 2 * single) / _USED):,}"
                f" bytes ({probe_bytes:,} for the probe, {2 * single:,} for passes of one example),"
                f" got {limit:,}; choose fewer examples (sizes=) or layers"
            )
        wanted = options.batch_size or _BATCHES.get(_place(probe).type, 256)
        batch = max(1, min(wanted, free // max(1, _STAYING * single)))
        most = _most_examples(options, layout, probe, free // _STAYING)
        sizes, notes = dict(options.sizes), {}
        plan = replace(self, sizes=sizes, details=self.details and options.details)
        readers = [family for family in FEATURE_READERS if family in options.families]
        for family in readers:
            wanted = plan.size(family, probe.row_count)
            if wanted > most:
                sizes[family] = most
                notes[family] = reason(Note.FEWER_FOR_MEMORY, most=most, wanted=wanted)
        wanted, few = plan.size("tangent", len(probe)), _most_sequences(options, layout, probe)
        if "tangent" in options.families and wanted > few:
            sizes["tangent"] = few
            notes["tangent"] = reason(Note.FEWER_FOR_TIME, few=few, wanted=wanted)
        if readers:  # features in float32 or products in float64, depending on the width
            count = min(most, probe.row_count)
            free -= sum(8 * count * min(layer.features, count) for layer in layout.layers)
        return replace(plan, batch_size=batch, free_bytes=free, notes=notes)

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

        One pass may hold gradients of all outputs and the results for its backward passes. The
        engine refuses a batch that leaves no memory for kernels.
        """
        passing = layout.footprint
        graph = 2 * passing.per_example(passing.total)  # activations, and as many gradients
        if options.memory_limit is None and capped:
            return {"memory_limit": min(self.free_bytes, _KERNELS)}
        if options.memory_limit is None:
            roomy = min(self.batch_size, self.free_bytes // (_GRAPHS * max(1, graph)))
            return {"batch_size": max(1, roomy)} if launched and outputs == 1 else {}
        each = _BACKWARD * outputs * passing.per_example(passing.largest)
        limit = int(_PLANNED * self.free_bytes)
        fitting = self.free_bytes // (_SHARE * max(1, each)), limit // (_GRAPHS * max(1, graph))
        return {"memory_limit": limit, "batch_size": max(1, min(fitting))}


def warn_of_memory(planned: int, available: int, *, stacklevel: int) -> None:
    """Warn before the measurement if the planned peak of memory is more than the free memory."""
    if planned > available:
        warn(
            f"up to {planned / 1e9:.1f} GB may be used, {available / 1e9:.1f} GB are free: the "
            f"system may end this process; pass memory_limit='{max(1, int(available / 2e6))}MB'",
            stacklevel=stacklevel,
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


def _most_examples(options: SurveyOptions, layout: Layout, probe: Probe, share: int) -> int:
    """Number of examples whose features, products and permuted targets fit into a share."""
    by_products = math.isqrt(share // (8 * max(1, len(layout.layers))))
    known = [targets for targets in (probe.rows, probe.truth) if targets is not None]
    columns = max(1 if t.columns is None else t.columns.shape[1] for t in known)
    by_nulls = share // (_NULL_COPIES * max(1, options.permutations) * columns)
    return max(_FEWEST, min(by_products, by_nulls))


def _most_sequences(options: SurveyOptions, layout: Layout, probe: Probe) -> int:
    """Number of examples with tangent kernels, for examples with many positions on a CPU.

    The time grows with the square of their number, positions and outputs.
    """
    asked = options.sizes["tangent"] != SIZES["tangent"]
    if probe.positions is None or not probe.by_position or asked or _place(probe).type != "cpu":
        return len(probe)
    outputs = probe.positions.task.labels.count * (layout.outputs or 1)
    return max(_SEQUENCES, _OUTPUTS // outputs)
