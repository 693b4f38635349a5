"""How a survey keeps within its memory limit: sizes chosen from counts, before anything large.

The limit is on what the survey adds to the process: probe, features, kernels, sums and whatever the
passes of the model need. The model and the data that were given do not count. Three parts: what
stays (the probe, features of all layers), one pass of the model, and the room that is left for the
work of one family at a time.
"""

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from theodolite.engine import available_bytes
from theodolite.errors import MemoryLimitError
from theodolite.surveys._layers import Layout
from theodolite.surveys._probe import Probe
from theodolite.surveys._settings import FEATURE_READERS, Settings

__all__ = ["Fitted", "engine_options", "fit_settings", "freed"]

_MIB = 2**20
_MOST = 4 * 2**30  # on the CPU, where the user sets no limit
_USED = 0.85  # of the limit: the allocator keeps some of what was freed
_LIVE = 6  # results of operations that exist at a time, conversions of layout among them
_STAYING = 4  # one part of so many is for features that stay
_NULL_COPIES = 6 * 8  # bytes of a number of permuted targets, intermediate results included
_PLANNED = 0.5  # of the room: libraries below torch keep copies in layouts of their own
_SHARE = 8  # one part of so many is for the gradients of one pass
_GRAPHS = 4  # one part of so many is for what a backward pass goes back through
_BACKWARD = 5  # results of a backward pass that exist at a time
_FEWEST = 4


@dataclass(frozen=True)
class Fitted:
    """Settings that keep within the limit, and what that cost.

    Args:
        settings: with fewer examples, smaller batches and the room for a family where need be.
        notes: family -> sentence, where it has fewer examples than it would take.
    """

    settings: Settings
    notes: dict[str, str]


def fit_settings(settings: Settings, model: nn.Module, layout: Layout, probe: Probe) -> Fitted:
    """Choose batch size, examples and room from counts.

    Raises:
        MemoryLimitError: If one example, or the probe, does not fit.
    """
    place = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    # The same in every process: they must choose the same sizes.
    limit = settings.memory_limit or min(settings.processes.gather(_default(place)))
    usable = int(_USED * limit)
    probe_bytes = sum(v.nbytes for v in tree_leaves(probe.batch.args) if isinstance(v, Tensor))
    single = _pass_bytes(layout)
    free = usable - probe_bytes
    if free < 2 * single:
        raise MemoryLimitError(
            f"memory_limit: expected at least {math.ceil((probe_bytes + 2 * single) / _USED):,} "
            f"bytes ({probe_bytes:,} for the probe, {2 * single:,} for passes of one example), got "
            f"{limit:,}; choose fewer examples (sizes=) or layers"
        )
    batch = max(1, min(settings.batch_size, free // (_STAYING * single)))
    most = _most_examples(settings, layout, probe, free // _STAYING)
    sizes, notes = dict(settings.sizes), {}
    for family in FEATURE_READERS:
        wanted = settings.size(family, len(probe))
        if family in settings.families and wanted > most:
            sizes[family] = most
            notes[family] = f"{most} of {wanted} examples, to stay within memory_limit"
    held = _held_bytes(settings, layout, min(most, len(probe)))
    room = free - held
    return Fitted(replace(settings, batch_size=batch, sizes=sizes, room=room), notes)


def engine_options(settings: Settings, layout: Layout, outputs: int) -> dict[str, Any]:
    """Memory and batch of kernels of gradients; one pass may hold gradients of all outputs.

    And what its backward passes go back through: the engine refuses a batch that leaves no room.
    """
    if settings.memory_limit is None or settings.room is None:
        return {"memory_limit": None}
    passing = layout.footprint
    each = _BACKWARD * outputs * passing.per_example(passing.largest)
    graph = 2 * passing.per_example(passing.total)  # activations, and gradients of about the size
    limit = int(_PLANNED * settings.room)
    fitting = settings.room // (_SHARE * max(1, each)), limit // (_GRAPHS * max(1, graph))
    return {"memory_limit": limit, "batch_size": max(1, min(fitting))}


def _default(place: torch.device) -> int:
    half = available_bytes(place) // 2
    return half if place.type == "cuda" else min(_MOST, half)


def _pass_bytes(layout: Layout) -> int:
    """One example in a forward pass: results of operations, and the features that are read."""
    passing = layout.footprint
    features = 4 * sum(layer.width for layer in layout.layers)
    return _LIVE * passing.per_example(passing.largest) + features


def _held_bytes(settings: Settings, layout: Layout, examples: int) -> int:
    """Features of all layers in float32, or their products in float64, whichever is kept."""
    if not set(FEATURE_READERS) & set(settings.families):
        return 0
    return sum(8 * examples * min(layer.width, examples) for layer in layout.layers)


def _most_examples(settings: Settings, layout: Layout, probe: Probe, share: int) -> int:
    """Examples whose features, products and permuted targets take no more than a share."""
    by_products = math.isqrt(share // (8 * max(1, len(layout.layers))))
    tasks = [task for task in (probe.task, probe.truth) if task is not None]
    columns = max(1 if task.columns is None else task.columns.shape[1] for task in tasks)
    by_nulls = share // (_NULL_COPIES * max(1, settings.nulls) * columns)
    return max(_FEWEST, min(by_products, by_nulls))


def freed(settings: Settings) -> None:
    """Give memory that was freed back to the system, where a limit is to be kept.

    Blocks of a few MiB stay with the C library otherwise, and the peaks of families add up.
    """
    if settings.memory_limit is None:
        return
    trim = _trimmer()
    if trim is not None:
        trim(0)


def _trimmer() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # not the GNU C library
        return None
    return found
