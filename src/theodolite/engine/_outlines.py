"""What a model does with one example, without its numbers: remembered from call to call.

Kernels are planned by the uses of parameters that one example alone has shown. A second call for
the same model need not wait for that: it plans by the outline, compares what its own passes do with
it, and runs the example alone for the check, while the device has other work.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from theodolite.engine._plan import ParameterGroup
from theodolite.engine._runs import ForwardRun
from theodolite.engine.calls import Dense, Lookup, Outer, Structure
from theodolite.engine.uses import Use

__all__ = ["Outline", "forget", "recall", "remember"]

_MOST = 8  # outlines of one model


@dataclass
class Outline:
    """One example's pass without numbers.

    Args:
        alone: The pass; all of its tensors are empty.
        groups: Parts whose kernels add up.
        device: Where the tensors lay.
        sizes: What :func:`_sizes` has found in the pass.
        calls: How often it was recalled.
    """

    alone: ForwardRun
    groups: list[ParameterGroup]
    device: torch.device
    sizes: tuple[Any, ...]
    calls: int = 0

    def fits(self, run: ForwardRun) -> bool:
        """Whether a pass uses parameters in the same way, and decides nothing by numbers."""
        return not run.decisions and _sizes(run) == self.sizes


_KNOWN: WeakKeyDictionary[nn.Module, dict[Hashable, Outline]] = WeakKeyDictionary()


def recall(model: nn.Module, key: Hashable) -> Outline | None:
    """The outline of an earlier call, if there is one."""
    found = _KNOWN.get(model, {}).get(key)
    if found is not None:
        found.calls += 1
    return found


def remember(
    model: nn.Module, key: Hashable, alone: ForwardRun, groups: list[ParameterGroup]
) -> None:
    """Keep the outline of a pass; a model that decides by numbers has none."""
    if alone.decisions:
        return
    known = _KNOWN.setdefault(model, {})
    known[key] = Outline(_outlined(alone), groups, alone.outputs.device, _sizes(alone))
    while len(known) > _MOST:
        del known[next(iter(known))]


def forget(model: nn.Module) -> bool:
    """Let go of all outlines of a model; whether there were any."""
    return _KNOWN.pop(model, None) is not None


def _outlined(run: ForwardRun) -> ForwardRun:
    uses = [_outlined_use(use) for use in run.uses]
    return ForwardRun(_empty(run.outputs), uses, run.result_bytes, run.dtypes)


def _outlined_use(use: Use) -> Use:
    origin = replace(use.origin, tensor=_empty(use.origin.tensor))
    structure: Structure = Dense(_nothing)
    if isinstance(use.structure, Outer):
        structure = replace(
            use.structure, inputs=_empty(use.structure.inputs), output_grads=_nothing
        )
    elif isinstance(use.structure, Lookup):
        structure = replace(
            use.structure, tokens=_empty(use.structure.tokens), output_grads=_nothing
        )
    return replace(use, origin=origin, structure=structure, edges=(), watched=())


def _empty(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _nothing(gradient: Tensor) -> Tensor:
    raise AssertionError("an outline has no gradients")


def _sizes(run: ForwardRun) -> tuple[Any, ...]:
    """What a plan rests on and all examples have in common; not the number of positions."""
    tensors: dict[int, int] = {}  # identity -> in which place it was used first
    uses = tuple(
        (
            use.function,
            use.by_rule,
            use.call,
            use.origin.roots,
            use.origin.scale,
            tensors.setdefault(id(use.origin.tensor), place),
            *_matrix(use.structure),
        )
        for place, use in enumerate(run.uses)
    )
    return run.outputs.dtype, run.outputs.shape[1], uses


def _matrix(structure: Structure) -> tuple[Any, ...]:
    if isinstance(structure, Outer):
        return Outer, structure.rows, structure.columns, structure.transposed, structure.geometry
    if isinstance(structure, Lookup):
        return Lookup, structure.rows
    return Dense, structure.output_grads is None
