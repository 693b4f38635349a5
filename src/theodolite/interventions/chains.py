"""Is a network a plain chain of layers? Branches that meet again do not rescale together."""

from typing import Any

import torch
from torch import Tensor, nn

from theodolite.engine.outputs import first_tensor
from theodolite.errors import DomainError
from theodolite.interventions.matrix_layers import (
    evaluating,
    is_matrix_layer,
    running_order,
)

__all__ = ["HOMOGENEOUS", "chain_order", "is_homogeneous_chain"]

# Modules with f(c x) = c f(x) for c > 0, besides the layers with weights.
HOMOGENEOUS: tuple[type[nn.Module], ...] = (
    *(nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.Identity, nn.Flatten, nn.Unflatten),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.ZeroPad1d, nn.ZeroPad2d),
)


def chain_order(model: nn.Module, inputs: Any = None) -> list[str]:
    """Names of the layers with weights, in the order in which they run, in a network of one path.

    Nested ``nn.Sequential`` of modules that call no others need no run; of any other network the
    path is followed backward through one forward pass.

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
            "model: expected every weight to be used once, got one that is shared by two layers; "
            "it cannot have two norms"
        )
    return order


def is_homogeneous_chain(model: nn.Module) -> bool:
    """Whether every module of a sequential network is linear or scales with its input."""
    leaves = [module for module in model.modules() if not isinstance(module, nn.Sequential)]
    return all(is_matrix_layer(leaf) or isinstance(leaf, HOMOGENEOUS) for leaf in leaves)


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
