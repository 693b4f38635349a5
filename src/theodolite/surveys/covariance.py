"""Covariance family: do the weights of a layer follow the principal directions of its inputs?

It reads weights and covariances of layers' inputs. Headline: ``relative_misalignment``, computed by
``measures.covariance.compare_misalignment_along``.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from theodolite.advice.reasons import Reason, failure, reason
from theodolite.checks import require_finite
from theodolite.engine.layers import CONVOLUTIONS, is_matrix, is_transposed_linear
from theodolite.errors import TheodoliteError
from theodolite.linalg import Eigen, Moments, RowSample
from theodolite.measures import covariance
from theodolite.records import Estimate, Note
from theodolite.surveys.context import SurveyContext, grouped
from theodolite.surveys.layers import Layer
from theodolite.surveys.progress import EIGEN, Cost
from theodolite.surveys.record import RecordBuilder

ImageShape = tuple[int, int, int]

_SHOWN, _FEWER = 200, 64  # largest number of directions of f(sigma); the same for large layers
_LARGE = 1024
_TOLERANCE = 1e-8  # relative residual of leading directions
_BASES = 10
_COPIES = 8  # copies beside the sum: part of a batch, products of patches, eigensolver
_PATCHES = 10 * 2**20  # bytes of the patches that are processed at one time
_IMAGES = 8
_COLORS = 3
_SMALLEST = 8  # smallest side of a flattened image, in pixels


def measure_covariance(context: SurveyContext, record: RecordBuilder) -> None:
    """Rows and curves of all linear and convolutional layers that are called as modules."""
    layers = _matrix_layers(context)
    reasons = {layer.name: _why_not(context, layer) for layer in layers}
    for layer in layers:
        if reasons[layer.name] is not None:
            nothing, why = Estimate(math.nan), reasons[layer.name]
            record.row(layer, "covariance", "relative_misalignment", nothing, n=0, reason=why)
    fitting = [layer for layer in layers if reasons[layer.name] is None]
    bases = _shared_bases(context.options.seed)
    free = context.plan.free_bytes
    # Covariances that fit into memory together take one pass.
    for group in grouped(fitting, lambda together: _bytes(context, *together) <= free):
        with context.step("covariance"):
            moments = _moments(context, group)
        for layer in group:
            with context.step("covariance", layer):
                found = _directions(context, layer, moments.pop(layer.name))
                _layer_rows(context, record, layer, found, bases, pictures=layer == layers[0])
    everything = context.plan.sizes["covariance"] is None
    record.routes["covariance"] = {
        "method": f"{_BASES} random bases",
        "n": context.probe.given if everything else context.count("covariance"),
        "centered": True,
        "layers": "all" if context.options.details else "first",
        "directions": f"leading ones, residuals below {_TOLERANCE:g} of the largest variance",
    }


def covariance_cost(context: SurveyContext, n: int) -> Cost:
    """Cost of a pass that adds up squares of inputs, of eigenvectors and of random bases."""
    moments = sum(n * t * d * d / 4 for t, _, d in context.matrices)  # symmetric, in float32
    bases = 0.0
    for t, filters, d in context.matrices:
        leading = min(d, max(filters // 4 + 1, _SHOWN if d <= _LARGE else _FEWER))
        bases += EIGEN * d * min(d, n * t) * leading + 2 * EIGEN * d * min(d, filters // 4) ** 2
    return Cost((float(n),), moments + bases)


def _directions(context: SurveyContext, layer: Layer, found: Moments | RowSample) -> Eigen:
    """The leading eigenpairs of the data that are shown, or that the filters are compared in."""
    needed = _needed(context, layer)
    if isinstance(found, RowSample) and needed == found.rows.shape[1]:
        found = found.moments()
    return found.leading(needed, tolerance=_TOLERANCE)


def _needed(context: SurveyContext, layer: Layer) -> int:
    """How many leading directions."""
    filters, width = _weight(context, layer).shape
    judged = covariance.subspace_size(filters, width)
    return min(width, max(judged + 1, _shown(context, width), _IMAGES))


def _shown(context: SurveyContext, width: int) -> int:
    """Number of directions of a curve; 0 if no curves are kept."""
    if not context.plan.curves:
        return 1
    return min(_SHOWN if width <= _LARGE else _FEWER, width)


def _shared_bases(seed: int) -> Callable[[int], Tensor]:
    """Random bases by size, equal for all layers."""
    known: dict[int, Tensor] = {}

    def bases(size: int) -> Tensor:
        if size not in known:
            generator = torch.Generator(device="cpu").manual_seed(seed)
            known[size] = covariance.random_bases(size, _BASES, generator)
        return known[size]

    return bases


def _matrix_layers(context: SurveyContext) -> list[Layer]:
    """Linear and convolutional layers; only the first if ``details`` is False."""
    found = [
        layer
        for layer in context.layout.layers
        if layer.input_shape is not None and is_matrix(context.model.get_submodule(layer.name))
    ]
    return found if context.options.details else found[:1]


def without_matrices(context: SurveyContext) -> Reason | None:
    """Why no layer has a covariance, in a sentence; None if a layer has one."""
    if _matrix_layers(context):
        return None
    inside = [
        f"{layer.name}.{name}"
        for layer in context.layout.layers
        for name, module in context.model.get_submodule(layer.name).named_modules()
        if name and is_matrix(module)
    ]
    if not inside:
        return reason(Note.NO_MATRICES)
    last = inside[-1].rpartition(".")[2]
    return reason(Note.BLOCKS, last=last)


def _weight(context: SurveyContext, layer: Layer) -> Tensor:
    """One row per filter."""
    module = context.model.get_submodule(layer.name)
    weight: Tensor = module.weight.detach()  # type: ignore[operator]
    return weight.mT if is_transposed_linear(module) else weight.flatten(1)


def _bytes(context: SurveyContext, *layers: Layer) -> int:
    """Bytes of the sums or the few inputs of the layers, and of the work on the largest layer."""
    sizes = [_kept_bytes(context, layer) for layer in layers]
    modules = (context.model.get_submodule(layer.name) for layer in layers)
    patches = _PATCHES if any(isinstance(module, CONVOLUTIONS) for module in modules) else 0
    return sum(sizes) + _COPIES * max(sizes) + patches


def _kept_bytes(context: SurveyContext, layer: Layer) -> int:
    """Bytes of a sum over all inputs, or of the inputs if one process has few of them."""
    width, shape = _weight(context, layer).shape[1], layer.input_shape or ()
    module = context.model.get_submodule(layer.name)
    everything = context.plan.sizes["covariance"] is None
    rows = context.probe.given if everything else context.count("covariance")
    # There are as many patches as positions. Rows of a matrix are along the last axis.
    axes = shape[1:] if isinstance(module, CONVOLUTIONS) else shape[:-1]
    rows *= math.prod(axes) * getattr(module, "groups", 1)
    needed = _needed(context, layer)
    few = context.keeps_inputs and rows < width and needed < width
    return 8 * width * (max(rows, needed) if few else width)


def _why_not(context: SurveyContext, layer: Layer) -> Reason | None:
    """Why a layer has no covariance, in a sentence; None if it has one."""
    needed, free = _bytes(context, layer), context.plan.free_bytes
    if needed > free:
        return reason(Note.COVARIANCE_BYTES, needed=needed, free=free)
    module = context.model.get_submodule(layer.name)
    if not isinstance(module, CONVOLUTIONS) or layer.input_shape is None:
        return None
    sizes = layer.input_shape[-len(module.kernel_size) :]
    spans = [(k - 1) * d + 1 for k, d in zip(module.kernel_size, module.dilation, strict=True)]
    if all(span <= size for span, size in zip(spans, sizes, strict=True)):
        return None
    return reason(Note.NO_PATCH, spans=tuple(spans), sizes=tuple(sizes))


def _moments(context: SurveyContext, group: Sequence[Layer]) -> dict[str, Moments | RowSample]:
    """Moments of inputs. Those of layers that receive the data unchanged are computed once."""
    layer, *others = group
    columns = _weight(context, layer).shape[1]
    fixed = layer.name in context.layout.fed and context.plan.sizes["covariance"] is not None
    if others or not fixed or columns > _LARGE:
        return context.input_moments(group)
    key = (context.probe.digest, layer.name, context.count("covariance"), columns)
    known = context.earlier.moments
    if known is None or known[0] != key:
        known = key, context.input_moments(group)[layer.name]
        context.earlier.moments = known
    return {layer.name: known[1]}


def _layer_rows(
    context: SurveyContext,
    record: RecordBuilder,
    layer: Layer,
    directions: Eigen,
    bases: Callable[[int], Tensor],
    *,
    pictures: bool,
) -> None:
    weight = _weight(context, layer).to(directions.vectors)
    require_finite(weights=weight)
    filters, width = weight.shape
    try:
        found = covariance.compare_misalignment_along(directions, weight, bases)
    except TheodoliteError as error:
        nothing, why = Estimate(math.nan), failure(error)
        record.row(layer, "covariance", "relative_misalignment", nothing, n=filters, reason=why)
    else:
        mean, deviation = float(found.baseline.mean()), float(found.baseline.std())
        relative = deviation / mean if mean else None
        rows = {
            "relative_misalignment": Estimate(float(found.relative), None, 1.0, relative),
            "misalignment": Estimate(float(found.value), None, mean, deviation),
            "random_basis_misalignment": Estimate(mean),
            "misalignment_floor": Estimate(float(found.floor)),
            "subspace": Estimate(float(found.subspace)),
        }
        why = _undefined(filters, width, found.subspace)
        for measure, estimate in rows.items():
            shown = estimate if found.subspace else Estimate(estimate.value)
            record.row(layer, "covariance", measure, shown, n=filters, reason=why)
    if not context.plan.curves:
        return
    curve = covariance.transfer_function(directions, weight, count=_shown(context, width))
    arrays = {"x": curve.sigma, "y": curve.tau}
    labels = {"x": "σ of the data", "y": "τ of the weights"}
    record.curve(layer, "covariance", "transfer", arrays, **labels)
    if pictures:
        _eigenvector_pictures(context, record, layer, directions, weight)


def _undefined(filters: int, dimensions: int, subspace: int) -> Reason:
    """Why there is no misalignment: fewer than two directions."""
    if subspace > 1:
        return reason(Note.ISOTROPIC)
    if dimensions == 1:
        return reason(Note.ONE_INPUT)
    if covariance.subspace_size(filters, dimensions) < 2:
        least = min(8, dimensions + 2)
        return reason(Note.FEW_FILTERS, filters=filters, least=least)
    return reason(Note.NO_DIRECTIONS)


def _eigenvector_pictures(
    context: SurveyContext, record: RecordBuilder, layer: Layer, directions: Eigen, weight: Tensor
) -> None:
    """Leading eigenvectors of patches and of filters, in the shape of the input."""
    width = weight.shape[1]
    shape, known = _picture_shape(context, layer, width)
    count = min(_IMAGES, width)
    pairs = {
        "patch_eigenvectors": directions,
        "filter_eigenvectors": RowSample(weight).leading(count),
    }
    for name, (values, vectors) in pairs.items():
        images = vectors[:, :count].mT.reshape(count, *shape)
        arrays = {"images": images, "values": values[:count]}
        record.curve(layer, "covariance", name, arrays, shape=known)


def _picture_shape(context: SurveyContext, layer: Layer, size: int) -> tuple[ImageShape, str]:
    """Channels, height and width of the input of the layer, and how they are known."""
    module = context.model.get_submodule(layer.name)
    if isinstance(module, CONVOLUTIONS):
        height, width = (1, 1, *module.kernel_size)[-2:]
        return (size // (height * width), height, width), "kernel"
    first = context.probe.batch.args[0] if context.probe.batch.args else None
    given = tuple(first.shape[1:]) if isinstance(first, Tensor) else ()
    if len(given) in (2, 3) and torch.Size(given).numel() == size:
        return (*(1,) * (3 - len(given)), *given), "input"  # type: ignore[return-value]
    guessed = _guessed(size) if given == (size,) else None
    return ((1, 1, size), "none") if guessed is None else (guessed, "guessed")


def _guessed(size: int) -> ImageShape | None:
    """A square image, grey or in colour, if the number of inputs allows it."""
    for channels in (1, _COLORS):
        side = math.isqrt(size // channels)
        if channels * side * side == size and side >= _SMALLEST:
            return channels, side, side
    return None
