"""One step of gradient descent, and networks whose last layer is small."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from theodolite.measures.tangent import cross_entropy_gradient

__all__ = ["stepped", "with_head"]


def stepped(net: nn.Module, x: Tensor, targets: Tensor, rate: float) -> nn.Module:
    """A copy of the network after one step down the mean cross-entropy of all examples.

    Args:
        net: the network, which is left as it is.
        x: inputs.
        targets: one-hot labels in float64.
        rate: of the step.
    """
    after = deepcopy(net)
    parameters = [*after.parameters()]
    outputs = after(x)
    gradients = torch.autograd.grad(
        outputs, parameters, cross_entropy_gradient(outputs.detach(), targets)
    )
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.sub_(rate * gradient)
    return after


def with_head(net: nn.Module, scale: float) -> nn.Module:
    """A copy whose last layer is multiplied by a factor."""
    copy = deepcopy(net)
    with torch.no_grad():
        [*copy.parameters()][-1].mul_(scale)
    return copy
