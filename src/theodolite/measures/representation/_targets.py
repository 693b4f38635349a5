"""What the measures read: features with rows of some length, and what may stand for targets."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_choice,
    require_finite,
    require_labels,
    require_nonempty,
    require_same_length,
)
from theodolite.errors import ShapeError
from theodolite.linalg import double, target_columns, unit_peak

__all__ = ["ROWS", "Rows", "Targets", "read_features", "read_targets", "scaled_rows"]

Rows = Literal["unit", "max", "none"]
ROWS = ("unit", "max", "none")


class Targets(NamedTuple):
    """Checked targets: columns, or class labels that become one-hot chunk by chunk."""

    values: Tensor
    num_classes: int | None

    @property
    def columns(self) -> Tensor:
        """All columns in float64."""
        return target_columns(self.values, self.num_classes)

    @property
    def energy(self) -> Tensor:
        """Squared norm over all columns; every one-hot row adds 1."""
        if self.num_classes is not None:
            return torch.tensor(
                float(len(self.values)), dtype=torch.float64, device=self.values.device
            )
        return double(self.values).square().sum()


def read_features(features: Tensor, targets: Tensor, rows: Rows = "none") -> Tensor:
    """Features with rows of the length asked for; finiteness is seen where they are summed."""
    require_axes(2, features=features)
    require_nonempty(features=features, targets=targets)
    require_same_length(features=features, targets=targets)
    require_choice(ROWS, rows=rows)
    if rows != "none":
        require_finite(features=features)  # an infinite entry would make a row of nan
    return scaled_rows(features, rows)


def scaled_rows(features: Tensor, rows: Rows) -> Tensor:
    """Rows over their own length, over that of the longest, or as they are; zeros stay zero."""
    if rows == "none":
        return features
    peaks = features.detach().abs().amax(1, keepdim=True)  # before squaring, which may overflow
    peaks = peaks.amax(0, keepdim=True) if rows == "max" else peaks
    scaled = features / torch.where(peaks > 0, peaks, torch.ones_like(peaks))
    squares = scaled.square().sum(1, keepdim=True)
    squares = squares.amax(0, keepdim=True) if rows == "max" else squares
    return scaled / torch.where(squares > 0, squares, torch.ones_like(squares)).sqrt()


def read_targets(targets: Tensor, *, shares: bool = False) -> Targets:
    """Targets as the measures read them.

    One axis of integers is class labels, except -1 and +1, which are the two-class label vector;
    every other array of numbers is columns of targets. Where only shares of their mass are asked
    for, columns are divided by their largest entry: squares then neither overflow nor vanish.
    """
    if targets.ndim not in (1, 2):
        raise ShapeError(
            f"targets: expected (n,) or (n, c), got shape {tuple(targets.shape)}; "
            "flatten the outputs of one example into columns"
        )
    if targets.ndim == 2 or targets.is_floating_point():
        require_finite(targets=targets)
        return Targets(_scaled(targets) if shares else targets, None)
    if targets.dtype != torch.bool and bool((targets.abs() == 1).all() & (targets < 0).any()):
        return Targets(targets, None)
    return Targets(targets, require_labels(targets, name="targets"))


def _scaled(targets: Tensor) -> Tensor:
    return unit_peak(double(targets).reshape(1, -1)).reshape(targets.shape)
