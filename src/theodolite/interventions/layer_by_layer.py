"""Fill layers in the order in which they run, each from what it sees through those before it."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from theodolite.engine import input_moments
from theodolite.engine.batches import iterate_batches
from theodolite.engine.layers import Layers, unwrap
from theodolite.errors import DomainError, ShapeError, UnknownNameError
from theodolite.interventions.matrix_layers import (
    CONVOLUTIONS,
    evaluating,
    filter_rows,
    matrix_layers,
    running_order,
    set_filters_,
)

__all__ = ["MakeFilters", "initialize_layers_"]

# (name of the layer, covariance, number of filters) -> filters, one per row
MakeFilters = Callable[[str, Tensor, int], Tensor]


def initialize_layers_(
    model: nn.Module,
    images: Any,
    layers: Layers | None,
    given: dict[str, Tensor],
    make: MakeFilters,
    match_norms: bool,
) -> nn.Module:
    """Replace the filters of the chosen layers, one after the other, and zero their biases.

    Args:
        model: changed in place.
        images: examples; None where all covariances are given.
        layers: which; None for the convolutions, or all linear layers but the last to run.
        given: covariances that are not measured.
        make: makes the filters of a layer.
        match_norms: give new weights the Frobenius norm of those that they replace.
    """
    plain = unwrap(model)
    # Several passes are needed; an iterator allows one.
    data = list(iterate_batches(images)) if isinstance(images, Iterator) else images
    for name, padding in _plan(plain, data, layers, given):
        module = plain.get_submodule(name)
        old = filter_rows(module)
        if name in given:
            covariance = given[name].to(old.device, torch.float64)
        else:
            with evaluating(plain):
                moments = input_moments(plain, data, [name], padding=padding)
            measured = moments[name].covariance()
            covariance = (measured + measured.mT) / 2  # float32 products are symmetric to rounding
        _require_fit(name, covariance, old)
        new = make(name, covariance, len(old))
        set_filters_(module, _matched(name, new, old) if match_norms else new)
    return model


def _plan(
    model: nn.Module, data: Any, layers: Layers | None, given: dict[str, Tensor]
) -> list[tuple[str, str]]:
    """Layers in the order in which they run, and how their patches are padded."""
    known = matrix_layers(model)
    for name in given:
        if name not in known:
            raise UnknownNameError("layer", name, known)
    wanted = list(matrix_layers(model, layers))
    if set(wanted) <= set(given):
        return [(name, "none") for name in wanted]
    if data is None:
        raise DomainError(
            "images: expected examples, got None; only layers with given covariances need none"
        )
    shapes = running_order(model, data, list(known))
    if layers is None:
        wanted = _default_layers({name: known[name] for name in shapes})
    silent = [name for name in wanted if name not in shapes]
    if silent:
        raise DomainError(
            f"layers: expected layers that are called in the forward pass, {silent} are not "
            "(attention uses the weights of its projections directly); leave them out"
        )
    return [(name, _padding(known[name], shapes[name])) for name in shapes if name in wanted]


def _default_layers(run: dict[str, nn.Module]) -> list[str]:
    """Convolutions, as in the paper; without any, all that run but the last, which is the head."""
    convolutions = [name for name, module in run.items() if isinstance(module, CONVOLUTIONS)]
    hidden = convolutions or list(run)[:-1]
    if not hidden:
        raise DomainError(
            "model: expected a hidden layer or a convolution, got a head alone; name it in layers="
        )
    return hidden


def _padding(module: nn.Module, shapes: list[tuple[int, ...]]) -> str:
    """Full patches only, unless the maps are smaller than the kernel."""
    if not isinstance(module, CONVOLUTIONS):
        return "none"
    reach = [(k - 1) * d + 1 for k, d in zip(module.kernel_size, module.dilation, strict=True)]
    sizes = [size for shape in shapes for size in zip(shape[-len(reach) :], reach, strict=True)]
    return "layer" if any(have < need for have, need in sizes) else "none"


def _require_fit(name: str, covariance: Tensor, rows: Tensor) -> None:
    d = rows.shape[1]
    if covariance.shape != (d, d):
        raise ShapeError(
            f"covariances: expected a {d} x {d} matrix for layer {name!r}, got shape "
            f"{tuple(covariance.shape)}; use weight_covariance of layers of the same shape"
        )


def _matched(name: str, new: Tensor, old: Tensor) -> Tensor:
    """The new rows with the Frobenius norm of the old ones."""
    norm, target = torch.linalg.matrix_norm(new), torch.linalg.matrix_norm(old.double())
    if norm == 0 or target == 0:
        which = "new" if norm == 0 else "replaced"
        raise DomainError(
            f"layer {name!r}: expected weights of positive norm, the {which} ones are all zero; "
            + ("are the data constant?" if norm == 0 else "initialise first or match_norms=False")
        )
    return new * (target / norm)
