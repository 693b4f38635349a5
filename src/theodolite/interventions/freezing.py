"""Training of some layers; the others keep their initialisation."""

import torch
from torch import nn

from theodolite.checks import require_positive
from theodolite.engine.layers import Layers, select_layers, unwrap
from theodolite.errors import DomainError
from theodolite.interventions.initializers import init_weight_
from theodolite.interventions.matrix_layers import (
    head_name,
    is_matrix_layer,
    standard_parameters,
)

__all__ = ["freeze_except_"]


def freeze_except_(
    model: nn.Module,
    layers: Layers | None = None,
    *,
    noise_scale: float | None = None,
    generator: torch.Generator | None = None,
) -> nn.Module:
    r"""Leave some layers trainable and freeze all other parameters.

    With a noise scale s the trainable linear and convolutional layers are drawn again from
    :math:`N(0, s^2\,2/\text{fan-in})`, with zero biases. Frozen layers are not changed. If only the
    head is trainable, the features of all layers and the tangent kernel of the head stay constant.
    Tangent kernels of hidden layers change through the weights of the head; to measure them, pass a
    copy with ``requires_grad_(True)``. Batch norm updates its
    running statistics in training mode, so put frozen norm layers into evaluation mode.

    Args:
        model: any network; changed in place.
        layers: names, patterns or a predicate; by default the head, the last linear or
            convolutional layer in order of registration.
        noise_scale: :math:`s`; None keeps the weights.
        generator: source of randomness.

    Returns:
        The model.

    Raises:
        DomainError: If the chosen layers own no parameter, or the scale is not positive.
        UnknownNameError: If a name does not exist.

    Examples:
        >>> net = freeze_except_(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
        >>> [name for name, p in net.named_parameters() if p.requires_grad]
        ['2.weight', '2.bias']

    References:
        [lou2022], appendix on frozen networks (figure 18, table 4).
    """
    plain = unwrap(model)
    chosen = [head_name(plain)] if layers is None else select_layers(plain, layers)
    trainable = {id(p) for name in chosen for p in plain.get_submodule(name).parameters()}
    if not trainable:
        raise DomainError(f"layers: expected at least one with parameters, got {chosen}")
    if noise_scale is not None:
        require_positive(noise_scale=noise_scale)
        _draw(plain, chosen, noise_scale, generator)
    for parameter in plain.parameters():
        parameter.requires_grad_(id(parameter) in trainable)
    return model


def _draw(
    model: nn.Module, chosen: list[str], scale: float, generator: torch.Generator | None
) -> None:
    drawn = {
        module: name
        for name in chosen
        for module in model.get_submodule(name).modules()
        if is_matrix_layer(module)
    }
    for module, name in drawn.items():
        weight, bias = standard_parameters(name, module)
        init_weight_(weight, "he", scale, generator)
        if bias is not None:
            nn.init.zeros_(bias)
