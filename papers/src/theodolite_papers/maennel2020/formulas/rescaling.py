"""Give the layers of a trained network the norms of another, e.g. those of its initialisation."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from theodolite.checks import require_choice
from theodolite.engine.hooks import first_tensor
from theodolite.engine.layers import Layers, unwrap
from theodolite.engine.state import evaluating
from theodolite.errors import DomainError, UnknownNameError
from theodolite.interventions.matrix_layers import (
    filter_rows,
    is_matrix_layer,
    matrix_layers,
    running_order,
)

__all__ = ["layer_norms", "rescale_to_"]

Keep = Literal["norms", "predictions"]
_TOLERANCE = {torch.float64: 1e-9}


def layer_norms(model: nn.Module, *, order: int = 2, bias: bool = True) -> dict[str, float]:
    """The norm of the parameters of each linear and convolutional layer.

    Keep the norms of the initialisation, and pass them to :func:`rescale_to_` after training.

    Args:
        model: any network.
        order: 2, or 1 for the sum of absolute values.
        bias: take weight and bias together; otherwise the weight alone.

    Returns:
        The norm of each layer, by name.

    Raises:
        DomainError: If the order is neither 1 nor 2.

    Examples:
        >>> net = nn.Sequential(nn.Linear(2, 1, bias=False))
        >>> _ = nn.init.constant_(net[0].weight, 3.0)
        >>> layer_norms(net, order=1)
        {'0': 6.0}

    References:
        [maennel2020], section 1.1 and appendix A.4.
    """
    if order not in (1, 2):
        raise DomainError(f"order: expected 1 or 2, got {order!r}")
    return {
        name: float(torch.linalg.vector_norm(_values(module, bias), order))
        for name, module in matrix_layers(unwrap(model)).items()
    }


def rescale_to_(
    model: nn.Module,
    reference: nn.Module | Mapping[str, float],
    keep: Keep = "norms",
    *,
    layers: Layers | None = None,
    order: int = 2,
    inputs: Any = None,
) -> nn.Module:
    r"""Multiply each layer by a constant, so that it has the norm of the reference's layer.

    ``keep="norms"`` is the rule of the paper. It multiplies weight and bias of layer l by
    :math:`c_l`, the ratio of the norms of both together. Predictions stay the same only if biases
    are zero and activations are positively homogeneous. ``keep="predictions"`` takes :math:`c_l`
    from the weights alone and sets :math:`b_l \leftarrow (c_1\cdots c_l)\,b_l`. All logits of a
    ReLU network are then multiplied by one positive number. Normalisation layers do not change.

    Args:
        model: a chain of layers; changed in place.
        reference: a network with layers of the same names, or norms from :func:`layer_norms`
            (for ``keep="predictions"`` with ``bias=False``, unless the biases were zero).
        keep: ``"norms"`` or ``"predictions"``.
        layers: which layers get new norms; by default those of the reference.
        order: 2, or 1 for sums of absolute values.
        inputs: a few examples, to follow paths and to compare predictions. They are needed unless
            the model is an ``nn.Sequential``.

    Returns:
        The model.

    Raises:
        DomainError: If paths branch (residual networks), a norm is zero, or predictions would not
            be kept; the model is then as it was.
        UnknownNameError: If the reference lacks a layer, or has one that the model lacks.

    Examples:
        >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> stored = layer_norms(net)
        >>> with torch.no_grad():
        ...     _ = net[0].weight.mul_(7)
        >>> _ = rescale_to_(net, stored)
        >>> abs(layer_norms(net)["0"] - stored["0"]) < 1e-6
        True

    References:
        [maennel2020], section 1.1, appendix A.4 and A.9. Differs from paper: the paper says that
        the first rule keeps predictions. This holds only for zero biases.
    """
    require_choice(("norms", "predictions"), keep=keep)
    plain = unwrap(model)
    path = _chain_order(plain, inputs)
    both = keep == "norms"
    factors = _factors(plain, reference, layers, order, both)
    if both:
        for name, factor in factors.items():
            _scale_(plain.get_submodule(name), factor, factor)
        return model
    if inputs is None and not _is_homogeneous_chain(plain):
        raise DomainError(_NOT_KEPT.format("of a module that does not scale with its input"))
    _rescale_cumulatively_(plain, path, factors, inputs)
    return model


_NOT_KEPT = (
    "model: expected layers between which scale passes through (linear, convolution, ReLU, "
    "LeakyReLU, pooling), but predictions would not be kept because {}; use keep='norms'"
)


def _factors(
    model: nn.Module,
    reference: nn.Module | Mapping[str, float],
    layers: Layers | None,
    order: int,
    bias: bool,
) -> dict[str, float]:
    current = layer_norms(model, order=order, bias=bias)
    if isinstance(reference, nn.Module):
        stored: Mapping[str, float] = layer_norms(reference, order=order, bias=bias)
    else:
        stored = reference
    chosen = list(stored) if layers is None else list(matrix_layers(model, layers))
    factors = {}
    for name in chosen:
        if name not in current:
            raise UnknownNameError("layer", name, current)
        if name not in stored:
            raise UnknownNameError("layer of the reference", name, stored)
        filter_rows(model.get_submodule(name))  # refuses weights that are computed from others
        factors[name] = _ratio(name, stored[name], current[name])
    return factors


def _ratio(name: str, stored: float, current: float) -> float:
    for which, norm in (("the reference", stored), ("the model", current)):
        if not 0 < norm < float("inf"):
            raise DomainError(
                f"layer {name!r}: expected a positive norm in {which}, got {norm}; leave the layer "
                "out with layers="
            )
    return stored / current


def _rescale_cumulatively_(
    model: nn.Module, path: list[str], factors: dict[str, float], inputs: Any
) -> None:
    saved = {key: value.clone() for key, value in model.state_dict().items()}
    before = None if inputs is None else _outputs(model, inputs)
    product = 1.0
    for name in path:
        product *= factors.get(name, 1.0)
        _scale_(model.get_submodule(name), factors.get(name, 1.0), product)
    if before is None:
        return
    after = _outputs(model, inputs)
    tolerance = _TOLERANCE.get(after.dtype, 1e-3) * (product * before).abs().max()
    if not (after - product * before).abs().max() <= tolerance:
        model.load_state_dict(saved)
        raise DomainError(_NOT_KEPT.format("its outputs did not scale by one number"))


def _outputs(model: nn.Module, inputs: Any) -> Tensor:
    parameter = next(model.parameters())
    values = first_tensor(inputs, "inputs").to(parameter.device, parameter.dtype)
    with evaluating(model), torch.no_grad():
        return first_tensor(model(values), "output of the model")


def _scale_(module: nn.Module, weight_factor: float, bias_factor: float) -> None:
    with torch.no_grad():
        for name, factor in (("weight", weight_factor), ("bias", bias_factor)):
            parameter = module._parameters.get(name)
            if parameter is not None:
                parameter.mul_(factor)


def _values(module: nn.Module, bias: bool) -> Tensor:
    rows = filter_rows(module).flatten().double()
    offset = module._parameters.get("bias")
    return torch.cat([rows, offset.detach().double()]) if bias and offset is not None else rows


# Modules with f(c x) = c f(x) for c > 0, besides the layers with weights.
_HOMOGENEOUS: tuple[type[nn.Module], ...] = (
    *(nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.Identity, nn.Flatten, nn.Unflatten),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.ZeroPad1d, nn.ZeroPad2d),
)


def _chain_order(model: nn.Module, inputs: Any = None) -> list[str]:
    """Names of the layers with weights in a network with one path, in order of execution.

    Nested ``nn.Sequential`` modules need no run. For other networks the path is followed backwards
    through one forward pass.

    Args:
        model: the network.
        inputs: a few examples; needed unless the network is an ``nn.Sequential``.

    Raises:
        DomainError: If paths branch and meet again, as in residual networks, a layer is used twice,
            or the order cannot be known without a run.
    """
    names = [name for name, module in model.named_modules() if is_matrix_layer(module)]
    if inputs is None:
        _require_sequential(model)
        uses = [m for _, m in model.named_modules(remove_duplicate=False) if is_matrix_layer(m)]
        repeated = len(uses) > len(names)
        order = names
    else:
        _require_one_path(model, inputs)
        called = running_order(model, inputs, names)
        repeated = any(len(shapes) > 1 for shapes in called.values())
        order = list(called)
    weights = [model.get_submodule(name)._parameters.get("weight") for name in order]
    if repeated or len({id(weight) for weight in weights}) < len(weights):
        raise DomainError(
            "model: expected every weight to be used once, got one that is shared by two layers, "
            "which cannot have two norms; such a model cannot be rescaled"
        )
    return order


def _is_homogeneous_chain(model: nn.Module) -> bool:
    """Whether every module of a sequential network is linear or scales with its input."""
    leaves = [module for module in model.modules() if not isinstance(module, nn.Sequential)]
    return all(is_matrix_layer(leaf) or isinstance(leaf, _HOMOGENEOUS) for leaf in leaves)


def _require_sequential(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if type(module) is nn.Sequential or is_matrix_layer(module):
            continue
        foreign = not type(module).__module__.startswith("torch.nn")
        if next(module.children(), None) is not None or (foreign and module._parameters):
            where = f"{name!r}, a " if name else "a "
            raise DomainError(
                f"model: expected nested nn.Sequential, got {where}{type(module).__name__}, whose "
                "forward pass may branch; residual networks cannot be rescaled layer by layer. If "
                "this is a plain chain, pass a few examples as inputs="
            )


def _require_one_path(model: nn.Module, inputs: Any) -> None:
    probe = first_tensor(inputs, "inputs")[:2].detach()
    if not probe.is_floating_point():
        raise DomainError(
            f"inputs: expected real numbers, got {probe.dtype}; networks on tokens have residual "
            "paths, and these cannot be rescaled layer by layer"
        )
    parameter = next(model.parameters())
    probe = probe.to(parameter.device, parameter.dtype).requires_grad_()
    with evaluating(model), torch.enable_grad():
        output = first_tensor(model(probe), "output of the model")
    if _meets_itself(output, probe):
        raise DomainError(
            "model: expected a plain chain of layers, got paths that branch and meet again "
            "(a residual or dense connection); rescaling its layers would change the balance of "
            "the paths: residual networks are left as they are"
        )


def _meets_itself(output: Tensor, source: Tensor) -> bool:
    """Whether two edges into one node of the graph both come from the input."""
    reaches: dict[Any, bool] = {None: False}
    order: list[Any] = []
    stack: list[tuple[Any, bool]] = [(output.grad_fn, False)]
    while stack:
        node, done = stack.pop()
        if node in reaches and not done:
            continue
        parents = [parent for parent, _ in node.next_functions]
        if done:
            own = getattr(node, "variable", None) is source
            reaches[node] = own or any(reaches.get(parent, False) for parent in parents)
            order.append(node)
        else:
            reaches[node] = False
            stack.append((node, True))
            stack.extend((parent, False) for parent in parents if parent not in reaches)
    return any(sum(reaches[parent] for parent, _ in node.next_functions) > 1 for node in order)
