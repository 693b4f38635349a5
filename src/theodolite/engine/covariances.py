"""Covariances of weights and of the inputs that they multiply: filters, inputs, patches.

There are two ways to the sums over patches. Unfolding writes every patch and multiplies the matrix
of patches with itself. For stride 1 the product of two entries of a patch depends only on their
displacement, except at the borders. Products of the images with shifted copies then give all
entries. They take ``(2k-1)^2 / 2`` instead of ``k^4`` multiply-adds per position and pair of
channels.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from theodolite._distributed import Processes
from theodolite.checks import (
    dtype_text,
    require_choice,
    require_count,
    require_finite,
    require_kind,
)
from theodolite.engine.batches import BATCH_SIZE, Batch, iterate_batches
from theodolite.engine.hooks import capture_inputs, first_tensor
from theodolite.engine.inputs import fitted_batches, require_model
from theodolite.engine.layers import (
    CONVOLUTIONS,
    Layers,
    is_matrix,
    is_transposed_linear,
    select_layers,
    unwrap,
)
from theodolite.engine.patches import PatchGeometry
from theodolite.engine.state import exact_arithmetic, model_device, require_fixed_mode, untouched
from theodolite.errors import DomainError, DtypeError, ShapeError
from theodolite.linalg import Moments, RowSample, array_function, double

_CHUNK_BYTES = 8 * 2**20  # of images or patches that are processed together
# Below this many channels the shifted products are too narrow for the matrix units.
_FEWEST_CHANNELS = 16

_NO_BATCH = "images: expected at least one batch, got none; is the loader exhausted?"

GeometryOf = Callable[[Tensor], PatchGeometry]  # batch of images -> geometry


def _channel_means(images: Tensor, geometry: PatchGeometry) -> Float[Tensor, " d"]:
    """The mean of every channel, for each entry of a patch."""
    means = double(images).mean((0, *range(2, images.ndim)))
    return means.repeat_interleave(geometry.offset_count)


def _patch_moments(
    images: Float[Tensor, "n channels *sizes"],
    geometry: PatchGeometry,
    shift: Float[Tensor, " d"],
) -> Moments:
    """Moments of all patches of one batch, pooled over positions, about one number per channel."""
    scatter = shift.new_zeros(len(shift), len(shift))
    total = torch.zeros_like(shift)
    shifted_products = _prefers_shifts(images, geometry)
    for chunk in _image_chunks(images, geometry, unfolds=not shifted_products):
        offset = _about(chunk, shift, geometry)
        summed = offset.sum(0, keepdim=True, dtype=torch.float64)
        total += geometry.patch_rows(summed).sum((0, 1))
        if shifted_products:
            scatter += _shifted_scatter(offset, geometry)
        else:
            rows = geometry.patch_rows(offset).flatten(0, 1)
            scatter += rows.mT @ rows
    count = float(len(images) * geometry.positions(images.shape[2:]))
    # Float32 products are symmetric to float32 only; eigensolvers and checks expect more.
    scatter = (scatter + scatter.mT) / 2
    return Moments(shift.new_tensor(count), shift, total, scatter)


def _about(images: Tensor, shift: Tensor, geometry: PatchGeometry) -> Tensor:
    """Padded images minus the shift of their channel. The border becomes minus the shift."""
    center = shift[:: geometry.offset_count].to(images)
    offset = images - center.view(1, -1, *[1] * len(geometry.window))
    return geometry.pad(offset, -center)


def _image_chunks(images: Tensor, geometry: PatchGeometry, *, unfolds: bool) -> Iterator[Tensor]:
    per_image = images[0].numel() * images.element_size()
    if unfolds:
        positions = geometry.positions(images.shape[2:])
        per_image = positions * images.shape[1] * geometry.offset_count * images.element_size()
    yield from torch.split(images, max(1, _CHUNK_BYTES // max(per_image, 1)))


def _prefers_shifts(images: Tensor, geometry: PatchGeometry) -> bool:
    """Whether shifted products apply (two axes, stride 1, maps wider than the border) and pay."""
    if (
        len(geometry.window) != 2
        or set(geometry.stride) != {1}
        or images.shape[1] < _FEWEST_CHANNELS
    ):
        return False
    positions = geometry.output_size(images.shape[2:])
    borders = [reach - 1 for reach in geometry.reach]
    if any(size <= border for size, border in zip(positions, borders, strict=True)):
        return False
    pixels = prod(size + border for size, border in zip(positions, borders, strict=True))
    lags = (prod(2 * size - 1 for size in geometry.window) + 1) // 2
    return 2 * pixels * lags < prod(positions) * geometry.offset_count**2


def _shifted_scatter(offset: Tensor, geometry: PatchGeometry) -> Tensor:
    """The scatter of all patches from products of the images with shifted copies."""
    channels = offset.shape[1]
    height, width = geometry.window
    pixels = offset.permute(2, 3, 0, 1).contiguous()  # (rows, columns, n, channels)
    blocks = pixels.new_zeros(
        (channels, height, width, channels, height, width), dtype=torch.float64
    )
    for down, right in product(range(height), range(1 - width, width)):
        if (down, right) < (0, 0):
            continue
        for row, column, block in _lag_blocks(pixels, geometry, down, right):
            blocks[:, row, column, :, row + down, column + right] = block
            blocks[:, row + down, column + right, :, row, column] = block.mT
    size = channels * height * width
    return blocks.view(size, size)


def _lag_blocks(
    pixels: Tensor, geometry: PatchGeometry, down: int, right: int
) -> Iterator[tuple[int, int, Tensor]]:
    """For one displacement, the block of channels of every kernel offset.

    A block is the sum of ``x[t] x[t + displacement]^T`` over the rectangle of pixels t that its
    offset meets at all positions. Rectangles differ at the borders only: products of single columns
    there, and of all columns between them, are formed once. Cumulative sums give every rectangle.
    """
    step_row, step_column = geometry.dilation
    rows, columns = (
        size - reach + 1 for size, reach in zip(pixels.shape[:2], geometry.reach, strict=True)
    )
    rows_down, columns_right = geometry.window[0] - down, geometry.window[1] - abs(right)
    first = max(0, -right)
    edge = (columns_right - 1) * step_column
    lines = slice(0, rows + (rows_down - 1) * step_row)
    moved = slice(down * step_row, down * step_row + lines.stop)
    start = first * step_column
    lag = right * step_column

    def products(begin: int, end: int, *, merge: bool) -> Tensor:
        left = pixels[lines, begin:end]
        other = pixels[moved, begin + lag : end + lag]
        if merge:
            return (left.flatten(1, 2).mT @ other.flatten(1, 2)).unsqueeze(1)
        return left.mT @ other

    segments = torch.cat(
        [
            products(start, start + edge, merge=False),
            products(start + edge, start + columns, merge=True),
            products(start + columns, start + columns + edge, merge=False),
        ],
        dim=1,
    )
    sums = functional.pad(segments.double().cumsum(0).cumsum(1), (0, 0, 0, 0, 1, 0, 1, 0))
    for row, column in product(range(rows_down), range(columns_right)):
        top, left = row * step_row, column * step_column
        bottom, end = top + rows, left + edge + 1
        block = sums[bottom, end] - sums[top, end] - sums[bottom, left] + sums[top, left]
        yield row, first + column, block


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
        module_or_weight: A linear or convolutional layer (not transposed), its weight ``(F, d)`` or
            ``(F, channels, *kernel)``, or several weights, for instance of independent runs, whose
            rows are pooled.
        centered: Remove the mean row; otherwise the second moment about zero.
        ddof: The sum is divided by ``F - ddof``.

    Returns:
        A matrix over the inputs of one filter.

    Raises:
        ShapeError: If there is no weight with one row per neuron, or rows of several lengths.
        DomainError: If the weight holds NaN or infinity.

    Examples:
        >>> weight_covariance(torch.tensor([[1.0, 0.0], [-1.0, 2.0]]))
        tensor([[ 1., -1.],
                [-1.,  1.]])

    References:
        [maennel2020], section 2 and Eq. (2).
    """
    single = isinstance(module_or_weight, (nn.Module, Tensor))
    require_kind((nn.Module, Tensor, Iterable), module_or_weight=module_or_weight)
    several: list[Any] = [module_or_weight] if single else list(module_or_weight)  # type: ignore[arg-type]
    require_kind((nn.Module, Tensor), **{f"weights[{i}]": item for i, item in enumerate(several)})
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
    for weight in weights:
        if weight.is_complex():
            raise DtypeError(
                f"weights: expected real numbers, got {dtype_text(weight.dtype)}; pass "
                "torch.view_as_real(weight), with two numbers for each"
            )
    rows = torch.cat([double(weight.detach().flatten(1)) for weight in weights])
    require_finite(weights=rows)
    _require_ddof(ddof, len(rows))
    return Moments.of(rows).covariance(centered=centered, ddof=ddof)


def _require_ddof(ddof: int, count: int) -> None:
    require_count(0, ddof=ddof)
    if ddof >= count:
        raise DomainError(f"ddof: expected at least 0 and below the {count} samples, got {ddof}")


def _weight_of(module: nn.Module) -> Tensor:
    """The weight with one row per neuron; GPT-2's ``Conv1D`` keeps one column per neuron."""
    weight = getattr(module, "weight", None)
    transposed = getattr(module, "transposed", False)  # of convolutions
    if not isinstance(weight, Tensor) or weight.ndim < 2 or transposed:
        raise ShapeError(
            "module_or_weight: expected a linear or convolutional layer with one row of weights "
            f"per neuron, got {type(module).__name__}; pass the weight itself, (F, d)"
        )
    return weight.mT if is_transposed_linear(module) else weight


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

    Here :math:`p_{it}` is patch t of image i, one of :math:`n`. One mean vector is removed, not one
    number per channel. Without padding only full patches count.
    With padding the patches are those that a padded layer receives. Batches are streamed: memory
    does not grow with the number of images.

    Args:
        images: ``(N, C, *sizes)`` with one, two or three spatial axes, or an iterable of such
            batches. A data loader may yield pairs, whose first entry is used.
        kernel_size: As in ``nn.Conv2d``; the same holds for stride, padding and dilation.
        stride: Step between patches.
        padding: Number of zeros on both sides.
        dilation: Step between the pixels of a patch.
        centered: Remove the mean patch; otherwise the second moment about zero.
        ddof: The sum is divided by ``n - ddof``.
        per_position: Return a mean and a covariance for each position instead of the pooled ones.

    Returns:
        The covariance of all patches, or sums for every position.

    Raises:
        ShapeError: If images have no spatial axis, batches differ in shape, or the kernel
            does not fit.
        DomainError: If a stride is below 1, a padding below 0, or there is no image.

    Examples:
        >>> image = torch.arange(9.0).reshape(1, 1, 3, 3)
        >>> patch_covariance(image, 1)
        tensor([[6.6667]])
        >>> patch_covariance(image, (1, 2)).diagonal()
        tensor([6.2500, 6.2500])

    References:
        [maennel2020], section 2, with patches as samples of a convolutional layer.
    """
    require_kind((Tensor, Iterable), images=images)
    tensors = _checked_images([images] if isinstance(images, Tensor) else images)

    def geometry_of(images: Tensor) -> PatchGeometry:
        return PatchGeometry.of(images.ndim - 2, kernel_size, stride, padding, dilation)

    if per_position:
        return _per_position(tensors, geometry_of, centered, ddof)
    moments: Moments | None = None
    for batch in tensors:
        part = _Inputs(batch, geometry_of(batch)).moments(moments)
        moments = part if moments is None else moments + part
    if moments is None:
        raise DomainError(_NO_BATCH)
    _require_ddof(ddof, int(moments.count))
    return moments.covariance(centered=centered, ddof=ddof)


def _checked_images(batches: Iterable[Any]) -> Iterator[Tensor]:
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


def _per_position(
    batches: Iterable[Tensor], geometry_of: GeometryOf, centered: bool, ddof: int
) -> PositionCovariance:
    """Sums and scatters about the channel means of the first batch, for each position."""
    count, first = 0, torch.Size()
    positions: tuple[int, ...] = ()
    origin = totals = scatters = torch.empty(0)
    for images in batches:
        geometry = geometry_of(images)
        if not count:
            first, positions = images.shape[2:], geometry.output_size(images.shape[2:])
            origin = _channel_means(images, geometry)
            totals = origin.new_zeros(prod(positions), len(origin))
            scatters = origin.new_zeros(prod(positions), len(origin), len(origin))
        if images.shape[2:] != first:
            raise ShapeError(
                f"images: expected size {tuple(first)} as in the first batch, got "
                f"{tuple(images.shape[2:])}; positions can only be compared in equal images"
            )
        for chunk in _image_chunks(images, geometry, unfolds=True):
            rows = geometry.patch_rows(_about(chunk, origin, geometry))
            rows = rows.transpose(0, 1)  # (positions, n, d)
            totals += rows.sum(1, dtype=torch.float64)
            scatters += rows.mT @ rows
        count += len(images)
    if not count:
        raise DomainError(_NO_BATCH)
    _require_ddof(ddof, count)
    center = totals / count if centered else -origin.expand_as(totals)
    cross = totals.unsqueeze(-1) * center.unsqueeze(-2)
    outer = center.unsqueeze(-1) * center.unsqueeze(-2)
    covariance = (scatters - cross - cross.mT + count * outer) / (count - ddof)
    mean = origin + totals / count
    return PositionCovariance(
        count, mean.reshape(*positions, -1), covariance.reshape(*positions, *outer.shape[1:])
    )


def input_moments(
    model: nn.Module,
    data: Any,
    layers: Layers = "*",
    *,
    padding: str = "none",
    batch_size: int | None = BATCH_SIZE,
    batch_fn: Callable[[Any], Batch] | None = None,
) -> dict[str, Moments]:
    r"""Mean and covariance of the inputs to the neurons of linear and convolutional layers.

    For a linear layer these are the rows that its weights multiply: single tokens, without padding.
    For a convolution they are the patches, with the layer's kernel, stride and dilation; groups of
    channels are pooled. ``weight_covariance(layer)`` is the covariance to compare with
    ``moments.covariance()``. The data are streamed: only the sums are kept.

    Args:
        model: Any module, in evaluation mode; it is left as it was found.
        data: Anything that :func:`theodolite.engine.batches.iterate_batches` accepts.
        layers: Names, patterns or a predicate; ``"*"`` takes all linear and convolutional layers.
        padding: ``"none"`` counts full patches only, ``"layer"`` pads as the layer does.
        batch_size: Split batches into parts of at most this many examples; None keeps them.
        batch_fn: Turns an item of the data into a batch.

    Returns:
        Mean and covariance sums of the inputs that the weights of every layer multiply.

    Raises:
        DomainError: If a layer is neither linear nor convolutional, or does not run.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(1, 4, 2), nn.Flatten(), nn.Linear(16, 3))
        >>> moments = input_moments(model, torch.randn(5, 1, 3, 3))
        >>> {name: tuple(m.covariance().shape) for name, m in moments.items()}
        {'0': (4, 4), '2': (16, 16)}

    References:
        [maennel2020], section 2; deeper layers as in its appendix.
    """
    found = input_samples(
        model, data, layers, padding=padding, batch_size=batch_size, batch_fn=batch_fn, few=False
    )
    return cast("dict[str, Moments]", found)


def input_samples(
    model: nn.Module,
    data: Any,
    layers: Layers = "*",
    *,
    padding: str = "none",
    batch_size: int | None = BATCH_SIZE,
    batch_fn: Callable[[Any], Batch] | None = None,
    few: bool = True,
) -> dict[str, Moments | RowSample]:
    """Like :func:`input_moments`, but keep the inputs themselves if they have fewer entries.

    Args:
        model: Any module, in evaluation mode; it is left as it was found.
        data: Anything that :func:`theodolite.engine.batches.iterate_batches` accepts.
        layers: Names, patterns or a predicate.
        padding: As in :func:`input_moments`.
        batch_size: As in :func:`input_moments`.
        batch_fn: As in :func:`input_moments`.
        few: Whether to keep the inputs as long as they are few.
    """
    require_choice(("none", "layer"), padding=padding)
    require_model(model)
    plain = unwrap(model)
    require_fixed_mode(plain)
    names = _names(plain, layers)
    modules = dict(plain.named_modules())
    moments: dict[str, Moments | RowSample] = {}
    mask: Tensor | None = None

    def reduce(name: str, value: Tensor) -> Tensor:
        known = moments.get(name)
        inputs = _Inputs.of(modules[name], value.detach(), mask, padding)
        if few and not isinstance(known, Moments):
            kept = 0 if known is None else len(known.rows)
            if kept + inputs.count < inputs.width:
                rows = RowSample(inputs.rows())
                moments[name] = rows if known is None else known + rows
                return value.new_empty(0)
        sums = inputs.folded(known.rows) if isinstance(known, RowSample) else known
        part = inputs.moments(sums)
        moments[name] = part if sums is None else sums + part
        return value.new_empty(0)

    device = model_device(plain)
    batches = iterate_batches(data, batch_size=batch_size, batch_fn=batch_fn, device=device)
    with untouched(plain), exact_arithmetic(device), torch.no_grad():
        for batch in fitted_batches(model, data, batches):
            mask = batch.mask
            with capture_inputs(plain, names, reduce):
                batch.run(plain)
    silent = [name for name in names if name not in moments]
    if silent:
        raise DomainError(
            f"layers: expected layers that are called in the forward pass, {silent} are not "
            "(attention uses the weights of its projections directly); leave them out"
        )
    for part in moments.values():
        require_finite(inputs=part.rows if isinstance(part, RowSample) else part.total)
    return moments


def _names(model: nn.Module, layers: Layers) -> list[str]:
    modules = dict(model.named_modules())
    if isinstance(layers, str) and layers == "*":
        names = [name for name, module in modules.items() if is_matrix(module)]
        if not names:
            raise DomainError("layers: expected a linear or convolutional layer, got none")
        return names
    names = select_layers(model, layers)
    wrong = next((name for name in names if not is_matrix(modules[name])), None)
    if wrong is not None:
        weight, got = getattr(modules[wrong], "weight", None), type(modules[wrong]).__name__
        if isinstance(weight, Tensor):
            got += f" with weights of shape {tuple(weight.shape)} in {dtype_text(weight.dtype)}"
        raise DomainError(
            f"layers: expected linear or convolutional layers with real weights, got {wrong!r}, a "
            f"{got}; choose the layers inside it, or leave it out"
        )
    return names


@dataclass(frozen=True)
class _Inputs:
    """The inputs that the weights of one layer multiply, for one batch: rows, or patches."""

    values: Tensor
    geometry: PatchGeometry | None

    @classmethod
    def of(cls, module: nn.Module, value: Tensor, mask: Tensor | None, padding: str) -> "_Inputs":
        if not isinstance(module, CONVOLUTIONS):
            rows = value.reshape(-1, value.shape[-1])
            if mask is not None and value.shape[:-1] == mask.shape:
                rows = rows[mask.flatten().bool()]
            return cls(rows, None)
        images = _with_borders(module, value) if padding == "layer" else value
        images = torch.unflatten(images, 1, (module.groups, -1)).flatten(0, 1)
        sizes = module.kernel_size, module.stride, 0, module.dilation
        return cls(images, PatchGeometry.of(images.ndim - 2, *sizes))

    @property
    def count(self) -> int:
        if self.geometry is None:
            return len(self.values)
        return len(self.values) * self.geometry.positions(self.values.shape[2:])

    @property
    def width(self) -> int:
        return self.values.shape[1] * (1 if self.geometry is None else self.geometry.offset_count)

    def rows(self) -> Float[Tensor, "n d"]:
        """A copy of every patch."""
        if self.geometry is None:
            return self.values.clone()
        return self.geometry.patch_rows(self.values).flatten(0, 1).clone()

    def moments(self, known: Moments | None) -> Moments:
        """Sums about the shift of earlier batches, so that adding them costs one addition."""
        shift = None if known is None else known.shift
        if self.geometry is None:
            return Moments.of(self.values, shift)
        if shift is None:
            shift = _channel_means(self.values, self.geometry)
        return _patch_moments(self.values, self.geometry, shift)

    def folded(self, rows: Float[Tensor, "n d"]) -> Moments:
        """Moments of earlier rows, about a shift as in streams: one number per channel."""
        offsets = 1 if self.geometry is None else self.geometry.offset_count
        means = rows.double().mean(0).view(-1, offsets).mean(1)
        return Moments.of(rows, means.repeat_interleave(offsets))


def _with_borders(module: nn.Conv1d | nn.Conv2d | nn.Conv3d, images: Tensor) -> Tensor:
    """Images with the borders that the layer itself adds."""
    edges: list[int] = []  # before and after the last axis, then those of the axis before it
    for axis in reversed(range(images.ndim - 2)):
        if isinstance(module.padding, str):  # "same" adds the odd one at the end
            window = module.dilation[axis] * (module.kernel_size[axis] - 1)
            both = window if module.padding == "same" else 0
            edges += [both // 2, both - both // 2]
        else:
            edges += [module.padding[axis]] * 2
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return functional.pad(images, edges, mode=mode)


def shared_moments(
    processes: Processes,
    moments: Mapping[str, Moments],
    layers: Sequence[str],
    device: torch.device,
) -> dict[str, Moments]:
    """Moments of the examples of all processes, in the first process; the others get none.

    All processes move their sums to the shift of the first process with examples. Then they add up.
    Each layer and process sends O(d²) numbers, for any number of examples.

    Args:
        processes: The processes that take part.
        moments: Moments of this process's examples; empty if it has none.
        layers: Names of the layers, equal in all processes.
        device: Device for the moments.
    """
    if processes.alone:
        return dict(moments)
    seen: Sequence[list[str]] = processes.gather(list(moments))
    first = next(rank for rank, names in enumerate(seen) if names)
    shifts = {name: found.shift.cpu() for name, found in moments.items()}
    common = processes.spread(shifts, first)
    added = {name: _added(processes, moments.get(name), common[name].to(device)) for name in layers}
    return {name: total for name, total in added.items() if total is not None}


def _added(processes: Processes, part: Moments | None, shift: Tensor) -> Moments | None:
    """The sums of all processes about one shift, in the first process."""
    width = len(shift)
    if part is None:
        packed = shift.new_zeros(1 + width + width * width)
    else:
        moved = part.rebase(shift)
        packed = torch.cat([moved.count.reshape(1), moved.total, moved.scatter.flatten()])
    total = processes.sum(packed, 0)
    if processes.rank != 0:
        return None
    count, sums, scatter = torch.split(total, [1, width, width * width])
    return Moments(count.squeeze(0), shift, sums, scatter.reshape(width, width))
