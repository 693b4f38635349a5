"""Initialisations of the papers: He, Glorot, orthogonal, normal; in place, seeded by a generator.

The scale multiplies the standard deviation. Biases start at zero by default.
"""

from math import sqrt
from typing import Literal

import torch
from torch import Tensor, nn

from theodolite.checks import require_choice, require_kind, require_positive
from theodolite.errors import DtypeError, ShapeError
from theodolite.linalg import checks_classes

Initializer = Literal["he", "glorot", "orthogonal", "normal", "default"]
INITIALIZERS: tuple[Initializer, ...] = ("he", "glorot", "orthogonal", "normal", "default")


@checks_classes
def fans(weight: Tensor) -> tuple[int, int]:
    """Fan-in and fan-out of a linear or convolutional weight; both include the kernel's area.

    Args:
        weight: outputs along the first axis, inputs along the second.

    Returns:
        The number of inputs and the number of outputs of one unit.

    Examples:
        >>> fans(torch.empty(16, 3, 5, 5))
        (75, 400)
    """
    if weight.ndim < 2 or weight.numel() == 0:
        raise ShapeError(
            f"weight: expected at least 2 axes and one entry, got shape {tuple(weight.shape)}"
        )
    area = weight[0, 0].numel()
    return weight.shape[1] * area, weight.shape[0] * area


@checks_classes
def init_weight_(
    weight: Tensor,
    initializer: Initializer,
    scale: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Fill one weight in place.

    ``he``: :math:`N(0, s^2\,2/\text{fan-in})`. ``glorot``: uniform on
    :math:`\pm s\sqrt{6/(\text{fan-in}+\text{fan-out})}`. ``orthogonal``: orthonormal rows (columns
    where there are more rows than columns) times :math:`s`. ``normal``: :math:`N(0, s^2)`.
    ``default``: uniform on :math:`\pm s/\sqrt{\text{fan-in}}`, as PyTorch does.

    Args:
        weight: weight of a linear or convolutional layer, output axis first.
        initializer: name of the distribution.
        scale: :math:`s`, a factor of the standard deviation.
        generator: source of randomness; one of the CPU gives the same weights on every device.

    Returns:
        The same tensor, with new values.

    Raises:
        DomainError: If the initializer is unknown or the scale is not positive.

    Examples:
        >>> w = init_weight_(torch.empty(200, 50), "he", generator=torch.Generator().manual_seed(0))
        >>> abs(w.std().item() / (2 / 50) ** 0.5 - 1) < 0.02
        True
    """
    require_choice(INITIALIZERS, initializer=initializer)
    require_positive(scale=scale)
    if not weight.is_floating_point():
        raise DtypeError(f"weight: expected floating-point numbers, got {weight.dtype}")
    fan_in, fan_out = fans(weight)
    with torch.no_grad():
        draw = _canvas(weight, generator)
        if initializer == "he":
            draw.normal_(0.0, scale * sqrt(2 / fan_in), generator=generator)
        elif initializer == "glorot":
            bound = scale * sqrt(6 / (fan_in + fan_out))
            draw.uniform_(-bound, bound, generator=generator)
        elif initializer == "normal":
            draw.normal_(0.0, scale, generator=generator)
        elif initializer == "default":
            bound = scale / sqrt(fan_in)
            draw.uniform_(-bound, bound, generator=generator)
        else:
            nn.init.orthogonal_(draw, gain=scale, generator=generator)
        return weight if draw is weight else weight.copy_(draw)


def _canvas(parameter: Tensor, generator: torch.Generator | None) -> Tensor:
    """A tensor on the device of the generator: one seed gives the same numbers on all devices."""
    if generator is None or generator.device.type == parameter.device.type:
        return parameter
    return torch.empty_like(parameter, device=generator.device)


def initialize_(
    model: nn.Module,
    initializer: Initializer = "he",
    scale: float | list[float] = 1.0,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Fill every linear and convolutional layer of a model in place; biases become zero.

    ``"default"`` draws biases as PyTorch does, uniform within the inverse root of the fan-in.

    Args:
        model: the network; its ``nn.Linear`` and convolutions are filled in order of registration.
        initializer: name of the distribution.
        scale: one factor for all layers, or one per layer.
        generator: source of randomness.

    Returns:
        The same model, with new weights.

    Raises:
        ShapeError: If a list of scales has not one entry per layer.

    Examples:
        >>> initialize_(nn.Linear(4, 2), generator=torch.Generator().manual_seed(0)).bias.tolist()
        [0.0, 0.0]
    """
    require_kind(nn.Module, model=model)
    layers = [
        module
        for module in model.modules()
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d))
    ]
    scales = scale if isinstance(scale, list) else [scale] * len(layers)
    if len(scales) != len(layers):
        raise ShapeError(f"scale: expected one entry per layer ({len(layers)}), got {len(scales)}")
    for layer, factor in zip(layers, scales, strict=True):
        init_weight_(layer.weight, initializer, factor, generator)
        if layer.bias is not None:
            with torch.no_grad():
                if initializer == "default":
                    bound = 1 / sqrt(fans(layer.weight)[0])
                    draw = _canvas(layer.bias, generator)
                    layer.bias.copy_(draw.uniform_(-bound, bound, generator=generator))
                else:
                    layer.bias.zero_()
    return model
