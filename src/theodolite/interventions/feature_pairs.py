"""What each hidden layer is asked for: inner products that say which examples share a class."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from theodolite.checks import require_choice, require_labels, require_same_length

__all__ = ["Reduction", "UnitNorm", "feature_pair_loss", "pair_loss"]

Reduction = Literal["sum", "mean"]


class UnitNorm(nn.Module):
    """Each example divided by its norm; an example of zeros stays as it is."""

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Rows of unit length."""
        norms = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        return x / torch.where(norms > 0, norms, torch.ones_like(norms))


def feature_pair_loss(
    features: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    reduction: Reduction = "sum",
) -> Float[Tensor, ""]:
    r"""How far the inner products of features are from 1/2 within classes and 0 between them.

    .. math:: \sum_{i,j} \big(\phi_i\cdot\phi_j - \tfrac12\,1[y_i = y_j]\big)^2

    over ordered pairs, :math:`i = j` included. Zero for :math:`\phi_i = e_{y_i}/\sqrt2`.

    Args:
        features: :math:`\phi`, one row per example, not normalised.
        labels: classes.
        reduction: the sum of the definition, or the mean over pairs.

    Raises:
        ShapeError: If features and labels differ in number.
        DomainError: If labels are no classes.

    Example:
        >>> feature_pair_loss(torch.eye(2) / 2**0.5, torch.tensor([0, 1])).item() < 1e-12
        True

    References:
        [lou2022], appendix on layer-wise feature maximisation. Differs from paper: it prints
        the features of the layer below, which the trained weights do not enter.
    """
    require_choice(("sum", "mean"), reduction=reduction)
    require_same_length(features=features, labels=labels)
    require_labels(labels)
    return pair_loss(features, labels, reduction)


def pair_loss(features: Tensor, labels: Tensor, reduction: Reduction) -> Tensor:
    """The same without checks."""
    same = (labels.unsqueeze(0) == labels.unsqueeze(1)).to(features)
    squares = (features @ features.mT - 0.5 * same).square()
    return squares.sum() if reduction == "sum" else squares.mean()
