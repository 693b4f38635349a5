"""Per-example losses of the papers: frozen settings that are called with outputs and targets.

Each returns one number per example, shape (n,), so that per-example gradients exist. Training takes
their mean. Temperature, margin and length of the targets are parameters that undo a scale.
"""

from dataclasses import dataclass
from math import log
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from theodolite.checks import require_between, require_choice, require_positive
from theodolite.errors import ShapeError

__all__ = ["Hinge", "Logistic", "Loss", "Softmax", "Squared"]


@dataclass(frozen=True)
class Softmax:
    r"""Softmax cross-entropy with temperature: :math:`-\log\mathrm{softmax}(z/T)_y`.

    Example:
        >>> Softmax()(torch.zeros(1, 4), torch.tensor([2])).exp().item()
        4.0

    References:
        [mehta2021], Eq. (7).
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        require_positive(temperature=self.temperature)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of each example."""
        return functional.cross_entropy(outputs / self.temperature, targets, reduction="none")


@dataclass(frozen=True)
class Hinge:
    r"""Multi-class hinge: :math:`\sum_{i\ne y}\max(0, \Delta + z_i - z_y)`, inactive at equality.

    Example:
        >>> Hinge()(torch.tensor([[2.0, 1.5, -3.0]]), torch.tensor([0])).item()
        0.5

    References:
        [mehta2021], Eq. (8)-(9).
    """

    margin: float = 1.0

    def __post_init__(self) -> None:
        require_between(0.0, float("inf"), open_high=True, margin=self.margin)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of each example."""
        own = outputs.gather(1, targets.unsqueeze(1))
        others = functional.one_hot(targets, outputs.shape[1]) == 0
        # relu has slope 0 at 0, as in the definition; clamp has 1, maximum 1/2.
        return (functional.relu(self.margin + outputs - own) * others).sum(1)


@dataclass(frozen=True)
class Squared:
    r"""Squared error to :math:`\beta e_y` (labels) or :math:`\beta y` (real targets).

    ``"half_sum"``: :math:`\frac12\|z - \beta y\|^2`; ``"sum"``: without the half; ``"mean"``: the
    mean over the outputs.

    Example:
        >>> Squared()(torch.tensor([[1.0, 2.0]]), torch.tensor([0])).item()
        2.0

    References:
        [mehta2021], section 4.3.
    """

    target_scale: float = 1.0
    reduction: Literal["half_sum", "sum", "mean"] = "half_sum"

    def __post_init__(self) -> None:
        require_positive(target_scale=self.target_scale)
        require_choice(("half_sum", "sum", "mean"), reduction=self.reduction)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of each example."""
        if not targets.is_floating_point():
            targets = functional.one_hot(targets, outputs.shape[1]).to(outputs.dtype)
        if targets.ndim == 1 and outputs.ndim == 2 and outputs.shape[1] == 1:
            targets = targets.unsqueeze(1)
        if targets.shape != outputs.shape:
            raise ShapeError(
                f"targets: expected the outputs' shape {tuple(outputs.shape)}, "
                f"got {tuple(targets.shape)}"
            )
        squares = (outputs - self.target_scale * targets).square().flatten(1)
        if self.reduction == "mean":
            return squares.mean(1)
        return squares.sum(1) * (0.5 if self.reduction == "half_sum" else 1.0)


@dataclass(frozen=True)
class Logistic:
    r"""Logistic loss in bits: :math:`\log(1 + e^{-yz})/\log 2`; labels are -1, 1 or 0, 1.

    Example:
        >>> Logistic()(torch.tensor([[0.0]]), torch.tensor([1.0])).item()
        1.0

    References:
        [imani2022], section 2.
    """

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of each example."""
        margins = outputs.squeeze(1) if outputs.ndim == 2 and outputs.shape[1] == 1 else outputs
        if margins.shape != targets.shape:
            raise ShapeError(
                f"outputs: expected one number per example, got {tuple(outputs.shape)} for targets "
                f"of shape {tuple(targets.shape)}"
            )
        signs = torch.where(targets > 0, 1.0, -1.0).to(margins.dtype)
        return functional.softplus(-signs * margins) / log(2)


Loss = Softmax | Hinge | Squared | Logistic
