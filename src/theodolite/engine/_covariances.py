"""Covariances of weights and of what they multiply: filters, inputs, patches."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theodolite.checks import require_finite
from theodolite.engine._patches import PatchGrid, PositionSums, patch_moments
from theodolite.engine.outputs import first_tensor
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import Moments, array_function, double

__all__ = ["PositionCovariance", "patch_covariance", "stream_patches", "weight_covariance"]

Geometry = tuple[int | Sequence[int], int | Sequence[int], int | Sequence[int], int | Sequence[int]]


@array_function
def weight_covariance(
    module_or_weight: nn.Module | Float[Tensor, "_ ..."] | Sequence[Any],
    *,
    centered: bool = True,
    ddof: int = 0,
) -> Float[Tensor, "d d"]:
    r"""Covariance of the weight vectors of a layer, one row per neuron or filter.

    .. math:: \Sigma_w = \tfrac1F \sum_k (w_k - \bar w)(w_k - \bar w)^\top

    Filters are flattened channel-major, like patches. With F <= d the matrix is singular.

    Args:
        module_or_weight: a linear or convolutional layer (not transposed), its weight
            ``(F, d)`` or ``(F, channels, *kernel)``, or several weights (of independent runs, say)
            whose rows are pooled.
        centered: remove the mean row; otherwise the second moment about zero.
        ddof: the sum is divided by ``F - ddof``.

    Raises:
        ShapeError: If there is no weight with one row per neuron, or rows of several lengths.
        DomainError: If the weight holds NaN or infinity.

    Example:
        >>> weight_covariance(torch.tensor([[1.0, 0.0], [-1.0, 2.0]]))
        tensor([[ 1., -1.],
                [-1.,  1.]])

    References:
        [maennel2020], section 2 and Eq. (2).
    """
    single = isinstance(module_or_weight, (nn.Module, Tensor))
    several: list[Any] = [module_or_weight] if single else list(module_or_weight)  # type: ignore[arg-type]
    rows = [_weight_of(item) if isinstance(item, nn.Module) else item for item in several]
    return _row_covariance(rows, centered, ddof)


def _row_covariance(weights: list[Tensor], centered: bool, ddof: int) -> Float[Tensor, "d d"]:
    lengths = {prod(weight.shape[1:]) for weight in weights if weight.ndim >= 2}
    if len(lengths) != 1 or any(weight.ndim < 2 or len(weight) == 0 for weight in weights):
        shapes = ", ".join(str(tuple(weight.shape)) for weight in weights)
        raise ShapeError(
            "weights: expected one row per neuron and rows of one length, (F, d) or "
            f"(F, channels, *kernel), got shapes {shapes or 'of nothing'}"
        )
    rows = torch.cat([double(weight.detach().flatten(1)) for weight in weights])
    require_finite(weights=rows)
    _require_ddof(ddof, len(rows))
    return Moments.of(rows).covariance(centered=centered, ddof=ddof)


def _require_ddof(ddof: int, count: int) -> None:
    if not 0 <= ddof < count:
        raise DomainError(f"ddof: expected at least 0 and below the {count} samples, got {ddof}")


def _weight_of(module: nn.Module) -> Tensor:
    """The weight with one row per neuron; GPT-2's ``Conv1D`` keeps one column per neuron."""
    weight = getattr(module, "weight", None)
    transposed = getattr(module, "transposed", False)
    if not isinstance(weight, Tensor) or weight.ndim < 2 or transposed:
        raise ShapeError(
            "module_or_weight: expected a linear or convolutional layer with one row of weights "
            f"per neuron, got {type(module).__name__}; pass the weight itself, (F, d)"
        )
    return weight.mT if type(module).__name__ == "Conv1D" and hasattr(module, "nf") else weight


@dataclass(frozen=True)
class PositionCovariance:
    """Mean and covariance of the patch at each position of the output map."""

    count: int
    mean: Float[Tensor, "*positions d"]
    covariance: Float[Tensor, "*positions d d"]


@array_function
def patch_covariance(
    images: Float[Tensor, "n channels *sizes"] | Iterable[Any],
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    *,
    dilation: int | Sequence[int] = 1,
    centered: bool = True,
    ddof: int = 0,
    per_position: bool = False,
) -> Float[Tensor, "d d"] | PositionCovariance:
    r"""Covariance of all patches of all images, pooled over positions.

    .. math:: \Sigma_x = \tfrac{1}{n} \sum_{i,t} (p_{it} - \mu)(p_{it} - \mu)^\top,
              \qquad \mu \in \mathbb R^d,\; d = C k_h k_w

    One mean vector is removed, not one number per channel. Without padding only full patches
    count; with it, what a padded layer sees. Batches are streamed: memory does not grow with the
    number of images.

    Args:
        images: ``(N, C, *sizes)`` with one, two or three spatial axes, or an iterable of such
            batches (a data loader; of a pair the first is taken).
        kernel_size: as in ``nn.Conv2d``, and so are stride, padding and dilation.
        stride: step between patches.
        padding: zeros on both sides.
        dilation: step between the taps of a kernel.
        centered: remove the mean patch; otherwise the second moment about zero.
        ddof: the sum is divided by ``n - ddof``.
        per_position: a mean and a covariance for each position instead of the pooled ones.

    Raises:
        ShapeError: If images have no spatial axis, batches differ in shape, or the kernel
            does not fit.
        DomainError: If a stride is below 1, a padding below 0, or there is no image.

    Example:
        >>> image = torch.arange(9.0).reshape(1, 1, 3, 3)
        >>> patch_covariance(image, 1)
        tensor([[6.6667]])
        >>> patch_covariance(image, (1, 2)).diagonal()
        tensor([6.2500, 6.2500])

    References:
        [maennel2020], section 2, with patches as samples of a convolutional layer.
    """
    tensors = _checked([images] if isinstance(images, Tensor) else images)
    geometry = (kernel_size, stride, padding, dilation)
    if per_position:
        return _per_position(tensors, geometry, centered, ddof)
    moments = stream_patches(tensors, geometry)
    _require_ddof(ddof, int(moments.count))
    return moments.covariance(centered=centered, ddof=ddof)


def _checked(batches: Iterable[Any]) -> Iterator[Tensor]:
    channels = None
    for batch in batches:
        images = first_tensor(batch, "images").detach()
        images = images if images.is_floating_point() else images.double()
        if images.ndim < 3 or images.numel() == 0:
            raise ShapeError(
                "images: expected (N, channels, *sizes) with at least one spatial axis, got "
                f"shape {tuple(images.shape)}; for plain vectors use (N, d, 1) and kernel_size=1"
            )
        if images.shape[1] != (channels or images.shape[1]):
            raise ShapeError(
                f"images: expected {channels} channels as in the first batch, got {images.shape[1]}"
            )
        channels = images.shape[1]
        require_finite(images=images)
        yield images


def stream_patches(batches: Iterable[Tensor], geometry: Geometry) -> Moments:
    """Moments of the patches of all batches, about the channel means of the first."""
    parts = (
        patch_moments(images, PatchGrid.of(images.ndim - 2, *geometry), shift)
        for images, shift in _with_shift(batches)
    )
    total = _some(next(parts, None))
    for part in parts:
        total = total + part
    return total


Sums = TypeVar("Sums", Moments, PositionSums)


def _some(total: Sums | None) -> Sums:
    if total is None:
        raise DomainError("images: expected at least one batch, got none; is the loader exhausted?")
    return total


def _with_shift(batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    shift = None
    for images in batches:
        if shift is None:
            shift = double(images).mean((0, *range(2, images.ndim)))
        yield images, shift


def _per_position(
    batches: Iterable[Tensor], geometry: Geometry, centered: bool, ddof: int
) -> PositionCovariance:
    total: PositionSums | None = None
    sizes = torch.Size()
    positions: tuple[int, ...] = ()
    for images, shift in _with_shift(batches):
        grid = PatchGrid.of(images.ndim - 2, *geometry)
        sizes = sizes or images.shape[2:]
        if images.shape[2:] != sizes:
            raise ShapeError(
                f"images: expected size {tuple(sizes)} as in the first batch, got "
                f"{tuple(images.shape[2:])}; positions can only be compared in equal images"
            )
        positions = grid.positions(sizes)
        part = PositionSums.of(images, grid, shift)
        total = part if total is None else total + part
    sums = _some(total)
    _require_ddof(ddof, sums.count)
    covariance = sums.covariance(centered=centered, ddof=ddof)
    return PositionCovariance(
        sums.count,
        sums.mean.reshape(*positions, -1),
        covariance.reshape(*positions, *covariance.shape[1:]),
    )
