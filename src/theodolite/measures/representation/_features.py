"""Features and labels made ready for measuring: bias column, row lengths, label ranges."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_choice,
    require_finite,
    require_labels,
    require_nonempty,
    require_same_length,
)
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import (
    array_function,
    center_columns,
    double,
    prints_shapes,
    target_columns,
    unit_peak,
)

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
    """Features with rows of the given length; finiteness is seen where they are summed."""
    require_axes(2, features=features)
    require_nonempty(features=features, targets=targets)
    require_same_length(features=features, targets=targets)
    require_choice(ROWS, rows=rows)
    if rows != "none":
        require_finite(features=features)  # an infinite entry would make a row of nan
    return scaled_rows(features, rows)


def require_rows(**arrays: Tensor) -> None:
    """The first is a finite matrix, the others have as many rows."""
    name, features = next(iter(arrays.items()))
    require_axes(2, **{name: features})
    require_nonempty(**{name: features})
    require_same_length(**arrays)
    require_finite(**{name: features})


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


@prints_shapes
@dataclass(frozen=True)
class PreparedFeatures:
    """Features ready for measuring, and how many of their rows are zero (dead units)."""

    features: Float[Tensor, "n k"]
    zero_rows: Integer[Tensor, ""]


@prints_shapes
@dataclass(frozen=True)
class ScaledTargets:
    """Targets moved to [-1, 1], and the map ``slope * y + offset`` that did it."""

    values: Float[Tensor, "n *c"]
    slope: Float[Tensor, ""]
    offset: Float[Tensor, ""]

    @array_function
    def apply(self, targets: Float[Tensor, "m *c"]) -> Float[Tensor, "m *c"]:
        """The same map on other targets, e.g. a test set's; they may leave [-1, 1]."""
        return self.slope * targets + self.offset


@array_function
def prepare_features(
    features: Float[Tensor, "n d"],
    *,
    bias: bool = False,
    normalize: Rows = "unit",
    center: bool = False,
) -> PreparedFeatures:
    r"""Representation matrix with :math:`\|\phi_i\| \le 1`, as the definition of alignment assumes.

    Optionally centred first; then a constant column stands for the bias of the linear read-out;
    then rows are scaled. Compare only representations that were prepared in the same way: after
    row normalisation the bias column is no longer constant, and it changes the curve.

    Args:
        features: :math:`\Phi`, one example per row.
        bias: append a column of ones before rows are scaled.
        normalize: ``"unit"`` divides each row by its own length, ``"max"`` all rows by the largest
            (keeps the geometry), ``"none"`` leaves them. A row of zeros stays zero.
        center: subtract the mean row. Not part of the paper's definition.

    Raises:
        ShapeError: If features are not a non-empty matrix.
        DomainError: If an entry is not finite, or ``normalize`` is unknown.

    Example:
        >>> prepared = prepare_features(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        >>> prepared.features.tolist(), prepared.zero_rows.item()
        ([[0.6000000238418579, 0.800000011920929], [0.0, 0.0]], 1)

    References:
        [imani2022], Eq. (2), which assumes rows of length at most 1.

    Differs from paper:
        The bias column is off by default; ``"max"`` and ``center`` are additions.
    """
    require_axes(2, features=features)
    require_nonempty(features=features)
    require_finite(features=features)
    require_choice(ROWS, normalize=normalize)
    rows = center_columns(double(features)) if center else double(features)
    if bias:
        rows = torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)
    dead = (rows == 0).all(1)
    return PreparedFeatures(scaled_rows(rows, normalize), dead.sum())


@array_function
def scaled_targets(targets: Float[Tensor, "n *c"]) -> ScaledTargets:
    r"""Regression targets moved to [-1, 1] by :math:`2(y - \min)/(\max - \min) - 1`.

    Args:
        targets: training targets; the map is taken from all of their entries.

    Raises:
        DomainError: If the targets are constant or not finite.

    Example:
        >>> scaled = scaled_targets(torch.tensor([10.0, 15.0, 20.0]))
        >>> scaled.values.tolist(), scaled.apply(torch.tensor([25.0])).tolist()
        ([-1.0, 0.0, 1.0], [2.0])

    References:
        [imani2022], Figure 5.
    """
    require_nonempty(targets=targets)
    require_finite(targets=targets)
    wide = double(targets)
    low, high = wide.min(), wide.max()
    if bool(low == high):
        raise DomainError(
            f"targets: expected at least two different values, got only {low.item()}; "
            "constant targets cannot be moved to [-1, 1]"
        )
    slope = 2 / (high - low)
    return ScaledTargets(slope * (wide - low) - 1, slope, -1 - slope * low)
