"""Transfer: a fresh head, and the first layers of one network copied into another."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from theodolite.checks import require_count
from theodolite.engine.layers import select_layers, unwrap
from theodolite.errors import DomainError, ShapeError, UnknownNameError
from theodolite.interventions.initializers import Initializer, init_weight_
from theodolite.interventions.matrix_layers import head_name, matrix_layers

__all__ = ["replace_head_", "transfer_layers_"]


def replace_head_(
    model: nn.Module,
    num_classes: int | None = None,
    *,
    head: str | None = None,
    initializer: Initializer = "he",
    scale: float = 1.0,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Put a freshly drawn linear layer in the place of a network's last one.

    Args:
        model: any network; changed in place.
        num_classes: outputs of the new head; by default as many as before.
        head: name of the head; by default the last linear or convolutional layer in order of
            registration.
        initializer: distribution of its weights; the bias, where there was one, is zero.
        scale: factor of their standard deviation.
        generator: source of randomness.

    Returns:
        The model.

    Raises:
        DomainError: If the head is not an ``nn.Linear``, or is the whole model.
        UnknownNameError: If there is no layer of this name.

    Examples:
        >>> replace_head_(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 10)), 3)[2]
        Linear(in_features=8, out_features=3, bias=True)

    References:
        [maennel2020], appendix A.4: the head is always fresh.
    """
    plain = unwrap(model)
    name = head_name(plain, head)
    old = plain.get_submodule(name)
    if not isinstance(old, nn.Linear) or not name:
        raise DomainError(
            f"head: expected an nn.Linear inside the model, got {name!r}, a "
            f"{type(old).__name__}; name the head with head="
        )
    outputs = old.out_features if num_classes is None else num_classes
    require_count(1, num_classes=outputs)
    fresh = nn.Linear(old.in_features, outputs, bias=old.bias is not None).to(old.weight)
    init_weight_(fresh.weight, initializer, scale, generator)
    if fresh.bias is not None:
        nn.init.zeros_(fresh.bias)
    fresh.train(old.training)
    parent, _, child = name.rpartition(".")
    setattr(plain.get_submodule(parent), child, fresh)
    return model


def transfer_layers_(
    model: nn.Module,
    source: nn.Module,
    layers: int | Literal["all"] | Sequence[str],
    *,
    head: str | None = None,
    reset_biases: bool = False,
) -> nn.Module:
    """Copy the first layers of a trained network into a fresh one; the others stay fresh.

    A layer is a linear or convolutional one, with the norm layers that follow it (those before the
    first belong to the first). Copied norms can be set back with :func:`rescale_to_` and
    ``layers=``. Residual networks are better cut between blocks: pass names.

    Args:
        model: freshly initialised; changed in place.
        source: trained, of the same architecture up to the copied layers.
        layers: how many from the input on; ``"all"`` but the head; or names (patterns) of modules.
        head: name of the head, which is never copied; by default the last linear or
            convolutional layer in order of registration.
        reset_biases: set the biases of copied linear and convolutional layers to zero.

    Returns:
        The model.

    Raises:
        DomainError: If the head would be copied.
        ShapeError: If a copied parameter has another shape in the model.
        UnknownNameError: If the networks have layers of different names.

    Examples:
        >>> def net(classes):
        ...     return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, classes))
        >>> trained, fresh = net(2), net(5)
        >>> _ = transfer_layers_(fresh, trained, 1)
        >>> [torch.equal(fresh[i].weight, trained[i].weight) for i in (0, 1)]
        [True, False]

    References:
        [maennel2020], appendix A.1 and A.4.
    """
    target, origin = unwrap(model), unwrap(source)
    names = _copied(origin, layers, head)
    pairs = [_pair(target, origin, name) for name in names]
    with torch.no_grad():
        for name, theirs, ours in (pair for group in pairs for pair in group):
            owner, _, key = name.rpartition(".")
            ours.copy_(theirs)
            if reset_biases and key == "bias" and owner in matrix_layers(origin):
                ours.zero_()
    return model


def _copied(source: nn.Module, layers: int | str | Sequence[str], head: str | None) -> list[str]:
    """Modules to copy, by name; each stands for its own parameters and buffers."""
    last = head_name(source, head)
    if isinstance(layers, int):
        names = _first_layers(source, layers)
    elif layers == "all":
        names = [name for name, module in source.named_modules() if _own(module) and name != last]
    else:
        chosen = select_layers(source, layers)
        names = [
            name
            for name, module in source.named_modules()
            if _own(module)
            and any(name == top or name.startswith(top + ".") or not top for top in chosen)
        ]
    if last in names:
        raise DomainError(
            f"layers: expected to leave at least the head {last!r} fresh, got {layers!r}; "
            "pass 'all' to copy everything but the head"
        )
    return names


def _first_layers(source: nn.Module, count: int) -> list[str]:
    require_count(0, layers=count)
    known = matrix_layers(source)
    if count > len(known):
        raise DomainError(f"layers: expected at most {len(known) - 1} of them, got {count}")
    names, seen = [], 0
    for name, module in source.named_modules():
        seen += name in known
        if _own(module) and 0 < count >= seen:
            names.append(name)
    return names


def _own(module: nn.Module) -> bool:
    return bool(module._parameters or module._buffers)


def _pair(
    target: nn.Module, source: nn.Module, name: str
) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    modules = dict(target.named_modules())
    if name not in modules:
        raise UnknownNameError("layer", name, modules)
    mine, theirs = modules[name].state_dict(), source.get_submodule(name)
    own = {**theirs._parameters, **theirs._buffers}
    tensors = {key: value for key, value in own.items() if value is not None and key in mine}
    for key, value in tensors.items():
        if mine[key].shape != value.shape:
            raise ShapeError(
                f"layer {name!r}: expected a {key} of shape {tuple(mine[key].shape)} as in the "
                f"model, got {tuple(value.shape)}; only equal layers can be copied"
            )
    return [(f"{name}.{key}", value, mine[key]) for key, value in tensors.items()]
