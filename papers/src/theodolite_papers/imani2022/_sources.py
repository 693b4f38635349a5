"""Comparing a similar with a dissimilar source on many targets, layer by layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from theodolite_papers.imani2022._profiles import hidden_layers, profile

__all__ = ["GROUPS", "Comparison", "Target", "compare_sources"]

GROUPS = ("natural", "artificial")  # of sources and of targets


@dataclass(frozen=True)
class Target:
    """Examples of one task, and the group of sources that it is similar to."""

    group: str
    inputs: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Comparison:
    """What a pair of sources does for all targets.

    Args:
        curves: differences of alignment curves (tasks, layers, thresholds), similar minus
            dissimilar.
        areas: differences of areas (tasks, layers).
        results: "SOURCE_on_TARGET" -> accuracy, or test error, after fine-tuning.
    """

    curves: Tensor
    areas: Tensor
    results: Mapping[str, float]


def compare_sources(
    models: Mapping[str, nn.Module],
    layers: Sequence[str],
    targets: Sequence[Target],
    *,
    bias: bool,
    pool: str = "flatten",
) -> tuple[Tensor, Tensor]:
    """Curves and areas of :class:`Comparison`; both networks see the same examples.

    Args:
        models: one network for each group.
        layers: from the input on.
        targets: the tasks.
        bias: whether representations get a constant column.
        pool: how the output of a layer becomes a vector.
    """
    curves, areas = [], []
    for target in targets:
        (other,) = (group for group in GROUPS if group != target.group)
        found = []
        for group in (target.group, other):
            rows = hidden_layers(models[group], target.inputs, layers, pool)
            found.append([profile(rows[name], target.labels, bias=bias) for name in layers])
        pairs = list(zip(*found, strict=True))
        curves.append(torch.stack([first.curve - second.curve for first, second in pairs]))
        areas.append(torch.tensor([first.area - second.area for first, second in pairs]))
    return torch.stack(curves), torch.stack(areas)
