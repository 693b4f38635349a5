"""Covariances of what the weights of a layer multiply: inputs of linear layers, patches of conv."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from theodolite.checks import require_choice, require_finite
from theodolite.engine._patches import PatchGrid, patch_moments
from theodolite.engine.batches import Batch, iterate_batches
from theodolite.engine.layers import Layers, select_layers, unwrap
from theodolite.engine.modes import require_fixed_mode
from theodolite.engine.outputs import capture_inputs
from theodolite.engine.state import exact_arithmetic, untouched
from theodolite.errors import DomainError
from theodolite.linalg import Moments, double

__all__ = ["input_moments"]

_BATCH_SIZE = 256
_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def input_moments(
    model: nn.Module,
    data: Any,
    layers: Layers = "*",
    *,
    padding: str = "none",
    batch_size: int | None = _BATCH_SIZE,
    batch_fn: Callable[[Any], Batch] | None = None,
) -> dict[str, Moments]:
    r"""Mean and covariance of the inputs to the neurons of linear and convolutional layers.

    For a linear layer the rows that its weights multiply, tokens one by one (padded tokens left
    out); for a convolution the patches, with the layer's kernel, stride and dilation, and groups
    of channels pooled. ``moments.covariance()`` goes with ``weight_covariance(layer)``. Streamed:
    nothing is kept of an example but its part in the sums.

    Args:
        model: any module, in evaluation mode; it is left as it was found.
        data: anything that :func:`theodolite.engine.batches.iterate_batches` accepts.
        layers: names, patterns or a predicate; ``"*"`` takes all linear and convolutional layers.
        padding: ``"none"`` counts full patches only, ``"layer"`` pads as the layer does.
        batch_size: split batches into parts of at most this many examples; None keeps them.
        batch_fn: turns an item of the data into a batch.

    Raises:
        DomainError: If a layer is neither linear nor convolutional, or does not run.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(1, 4, 2), nn.Flatten(), nn.Linear(16, 3))
        >>> moments = input_moments(model, torch.randn(5, 1, 3, 3))
        >>> {name: tuple(m.covariance().shape) for name, m in moments.items()}
        {'0': (4, 4), '2': (16, 16)}

    References:
        [maennel2020], section 2; deeper layers as in its appendix.
    """
    require_choice(("none", "layer"), padding=padding)
    plain = unwrap(model)
    require_fixed_mode(plain)
    names = _names(plain, layers)
    modules = dict(plain.named_modules())
    moments: dict[str, Moments] = {}
    mask: Tensor | None = None

    def reduce(name: str, value: Tensor) -> Tensor:
        known = moments.get(name)
        part = _moments(modules[name], value.detach(), mask, padding, known)
        moments[name] = part if known is None else known + part
        return value.new_empty(0)

    device = next(iter(modules[names[0]].parameters())).device
    with untouched(plain), exact_arithmetic(device), torch.no_grad():
        for batch in iterate_batches(data, batch_size=batch_size, batch_fn=batch_fn, device=device):
            mask = batch.mask
            with capture_inputs(plain, names, reduce):
                batch.run(plain)
    _require_run(names, moments)
    return moments


def _names(model: nn.Module, layers: Layers) -> list[str]:
    if layers == "*":
        layers = lambda _name, module: _is_matrix(module)  # noqa: E731
    names = select_layers(model, layers)
    modules = dict(model.named_modules())
    wrong = [name for name in names if not _is_matrix(modules[name])]
    if wrong:
        raise DomainError(
            f"layers: expected linear or convolutional layers, got {wrong[0]!r}, a "
            f"{type(modules[wrong[0]]).__name__}; choose the layers inside it"
        )
    return names


def _is_matrix(module: nn.Module) -> bool:
    """Linear, convolution, or the transposed linear layer of GPT-2."""
    if isinstance(module, (nn.Linear, *_CONV)):
        return True
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def _require_run(names: list[str], moments: dict[str, Moments]) -> None:
    silent = [name for name in names if name not in moments]
    if silent:
        raise DomainError(
            f"layers: expected layers that are called in the forward pass, {silent} are not "
            "(attention uses the weights of its projections directly); leave them out"
        )


def _moments(
    module: nn.Module, value: Tensor, mask: Tensor | None, padding: str, known: Moments | None
) -> Moments:
    require_finite(inputs=value)
    if not isinstance(module, _CONV):
        rows = value.reshape(-1, value.shape[-1])
        if mask is not None and value.shape[:-1] == mask.shape:
            rows = rows[mask.flatten().bool()]
        return Moments.of(rows, None if known is None else known.shift)
    images = _padded(module, value) if padding == "layer" else value
    groups = module.groups
    images = torch.unflatten(images, 1, (groups, -1)).flatten(0, 1)
    grid = PatchGrid.of(images.ndim - 2, module.kernel_size, module.stride, 0, module.dilation)
    taps = torch.Size(module.kernel_size).numel()
    if known is None:
        shift = double(images).mean((0, *range(2, images.ndim)))
    else:
        shift = known.shift[::taps]
    return patch_moments(images, grid, shift)


def _padded(module: nn.Conv1d | nn.Conv2d | nn.Conv3d, images: Tensor) -> Tensor:
    """The borders that the layer itself adds."""
    edges = module._reversed_padding_repeated_twice
    if module.padding_mode == "zeros":
        return functional.pad(images, edges)
    return functional.pad(images, edges, mode=module.padding_mode)
