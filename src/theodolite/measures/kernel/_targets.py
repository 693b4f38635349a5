"""Class labels or a matrix of targets: one way to read both."""

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_axes, require_finite, require_labels, require_nonempty
from theodolite.errors import ShapeError
from theodolite.linalg import double

__all__ = ["target_matrix"]


def target_matrix(
    targets: Tensor, num_classes: int | None = None, name: str = "targets"
) -> Float[Tensor, "n c"]:
    """One-hot rows for integer labels, the matrix itself otherwise, in float64."""
    if targets.ndim == 1:
        if targets.is_floating_point():
            raise ShapeError(
                f"{name}: expected integer labels (n,) or a matrix (n, c), got a float vector; "
                "pass unsqueeze(-1) for one scalar target, .long() for labels"
            )
        classes = require_labels(targets, num_classes, name)
        one_hot = torch.nn.functional.one_hot(targets.long(), classes)
        return double(one_hot)
    require_axes(2, **{name: targets})
    require_nonempty(**{name: targets})
    require_finite(**{name: targets})
    return double(targets)
