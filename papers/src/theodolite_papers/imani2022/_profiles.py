"""Alignment of representations as the figures show it: an area, and a curve over thresholds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from theodolite.engine import features
from theodolite.linalg import LabelProjections
from theodolite.measures.representation import (
    area_from_projections,
    curve_from_projections,
    label_projections,
    prepare_features,
)
from theodolite_papers.ledger import Line, Results, mean_and_error

__all__ = ["Profile", "area_numbers", "curve_array", "curve_lines", "hidden_layers", "profile"]

# Thresholds below this share of the root of n are never asked for, but for 0 itself.
_SMALLEST = 1e-4


@dataclass(frozen=True)
class Profile:
    """Normalised area, and shares of the label mass over thresholds in units of the root of n."""

    area: float
    curve: Tensor


def profile(
    representation: Tensor, targets: Tensor, *, bias: bool = True, points: int = 51
) -> Profile:
    """Alignment of one representation with unit rows, a constant column appended before.

    Args:
        representation: one row per example, as the network gives it.
        targets: one number per example.
        bias: whether to append the constant column.
        points: thresholds of the curve, from 0 to the root of n.
    """
    prepared = prepare_features(representation, bias=bias).features
    found = label_projections(prepared, targets.to(prepared.device), threshold=_SMALLEST)
    return Profile(float(area_from_projections(found, normalized=True)), _curve(found, points))


def _curve(found: LabelProjections, points: int) -> Tensor:
    grid = torch.linspace(0, 1, points, dtype=torch.float64, device=found.singular_values.device)
    return curve_from_projections(found, grid, scale="normalized").values.cpu()


def hidden_layers(
    model: nn.Module, inputs: Tensor, layers: Sequence[str], pool: str = "flatten"
) -> dict[str, Tensor]:
    """Outputs of named layers in evaluation mode, where the model is; one vector per example."""
    device = next(model.parameters()).device
    was_training = model.training
    found = features(model.eval(), inputs.to(device), list(layers), pool, read="raw")
    model.train(was_training)
    return {name: found[name] for name in layers}


def area_numbers(profiles: Mapping[str, Profile], prefix: str = "area") -> dict[str, float]:
    """The areas, by name."""
    return {f"{prefix}_{name}": found.area for name, found in profiles.items()}


def curve_array(profiles: Mapping[str, Profile]) -> np.ndarray:
    """The curves in the order of their names, small enough for a record."""
    return torch.stack([found.curve for found in profiles.values()]).to(torch.float16).numpy()


def curve_lines(
    runs: Results,
    array: str,
    names: Sequence[str],
    dashed: Sequence[str] = (),
    colors: Mapping[str, int] | None = None,
) -> list[Line]:
    """Mean curves over runs with their standard errors, one line per name.

    Args:
        runs: whose curves are drawn.
        array: the array of the records that has them.
        names: of its rows.
        dashed: those that are.
        colors: numbers of colors, of names that do not take the next one.
    """
    stacked = runs.array(array).astype(np.float64)
    x = np.linspace(0, 1, stacked.shape[-1])
    lines = []
    for index, name in enumerate(names):
        mean, error = mean_and_error(stacked[:, index])
        color = (colors or {}).get(name)
        lines.append(Line(name, x, mean, error, dashed=name in dashed, color=color))
    return lines
