"""Training of some layers; the others keep their initialisation."""

from torch import nn

from theodolite.engine.layers import Layers, select_layers, unwrap
from theodolite.errors import DomainError
from theodolite.interventions.matrix_layers import head_name


def freeze_except_(model: nn.Module, layers: Layers | None = None) -> nn.Module:
    """Leave some layers trainable and freeze all other parameters.

    If only the head is trainable, the features of all layers and the tangent kernel of the head
    stay constant. Tangent kernels of hidden layers change through the weights of the head; to
    measure them, pass a copy with ``requires_grad_(True)``. Batch norm updates its running
    statistics in training mode, so put frozen norm layers into evaluation mode.

    Args:
        model: any network; changed in place.
        layers: names, patterns or a predicate; by default the head, the last linear or
            convolutional layer in order of registration.

    Returns:
        The model.

    Raises:
        DomainError: If the chosen layers own no parameter.
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
    for parameter in plain.parameters():
        parameter.requires_grad_(id(parameter) in trainable)
    return model
