"""The initial scale of the first layer, which separates learning from memorising."""

import torch
from torch import nn

from theodolite.checks import require_positive
from theodolite.engine.layers import CONVOLUTIONS, Layers, unwrap
from theodolite.errors import DomainError
from theodolite.interventions.initializers import init_weight_
from theodolite.interventions.matrix_layers import filter_rows, matrix_layers


def scale_init_(
    model: nn.Module,
    sigma: float,
    layers: Layers | None = None,
    *,
    generator: torch.Generator | None = None,
) -> nn.Module:
    r"""Draw the first layer from :math:`N(0, \sigma^2)`, all others Glorot uniform; biases zero.

    With the same seed, networks with two values of sigma differ only by a factor of the first
    layer.

    Args:
        model: any network; its linear and convolutional layers are changed in place.
        sigma: standard deviation of the scaled weights.
        layers: layers that are drawn with sigma; by default the first in order of registration.
        generator: source of randomness.

    Raises:
        DomainError: If sigma is not positive, or the model has no linear or convolutional layer.

    Examples:
        >>> net = nn.Sequential(nn.Linear(500, 200), nn.ReLU(), nn.Linear(200, 10))
        >>> net = scale_init_(net, 0.1, generator=torch.Generator().manual_seed(0))
        >>> round(net[0].weight.std().item(), 2)
        0.1
        >>> bool(net[2].weight.abs().max() < (6 / 210) ** 0.5)
        True

    References:
        [mehta2021], section 3; sigma on the first layer only is our reading.
    """
    require_positive(sigma=sigma)
    plain = unwrap(model)
    known = matrix_layers(plain)
    scaled = list(known)[:1] if layers is None else list(matrix_layers(plain, layers))
    for name, module in known.items():
        weight, bias = _standard_parameters(name, module)
        if name in scaled:
            init_weight_(weight, "normal", sigma, generator)
        else:
            init_weight_(weight, "glorot", 1.0, generator)
        if bias is not None:
            nn.init.zeros_(bias)
    return model


def _standard_parameters(name: str, module: nn.Module) -> tuple[nn.Parameter, nn.Parameter | None]:
    """Weight and bias of a layer whose fan-in and fan-out the initialisers know.

    Raises:
        DomainError: If it is another kind of layer, or its weight is computed from others.
    """
    if not isinstance(module, (nn.Linear, *CONVOLUTIONS)):
        raise DomainError(
            f"layers: expected nn.Linear and convolutions, got {name!r}, a "
            f"{type(module).__name__}, which this function does not initialise; set its weights "
            "yourself"
        )
    filter_rows(module)
    weight = module._parameters["weight"]
    assert weight is not None
    return weight, module._parameters.get("bias")
