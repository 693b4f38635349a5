"""Covariance: do the weights of a layer vary along the directions in which its inputs do?"""

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from theodolite.engine import input_moments, shared_moments, weight_covariance
from theodolite.engine.batches import iterate_batches
from theodolite.errors import DomainError, TheodoliteError
from theodolite.linalg import Moments
from theodolite.measures.covariance import (
    compare_misalignment,
    subspace_size,
    transfer_from_covariance,
)
from theodolite.records import Estimate
from theodolite.surveys._bench import Bench, own_layers, owners
from theodolite.surveys._layers import Layer
from theodolite.surveys._pictures import eigenvector_pictures
from theodolite.surveys._sheet import Sheet

__all__ = ["measure_covariance"]

Result = TypeVar("Result")

# For later steps of a monitor: model -> moments of the inputs of its first layer.
_FIXED: WeakKeyDictionary[nn.Module, tuple[object, Moments]] = WeakKeyDictionary()

_FAMILY = "covariance"
_SHOWN, _FEWER = 200, 64  # directions of f(sigma) that are kept, and of how many in large layers
_LARGE = 1024
_BASES = 10
_DEFAULT_LIMIT = 4 * 2**30
_COPIES = 8  # beside the sum: the part of a batch, products of patches, the eigensolver's
_PATCHES = 70 * 2**20  # patches of a batch go in chunks
_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def measure_covariance(bench: Bench, sheet: Sheet) -> None:
    """Rows and curves of all linear and convolutional layers that are called as modules."""
    layers = matrix_layers(bench)
    limit = bench.settings.room or _DEFAULT_LIMIT
    reasons = {layer.name: _why_not(bench, layer, limit) for layer in layers}
    fitting = [layer for layer in layers if reasons[layer.name] is None]
    for layer in layers:
        if layer not in fitting:
            nothing, why = Estimate(math.nan), reasons[layer.name]
            sheet.row(layer, (_FAMILY, "relative_misalignment"), nothing, 0, why)
    data = _examples(bench)
    for group in _groups(bench, fitting, limit):
        _measure_group(bench, sheet, group, data)
    sheet.routes[_FAMILY] = {
        "method": f"{_BASES} random bases",
        "n": _used(bench),
        "centered": True,
        "layers": "all" if bench.settings.deep_covariance else "first",
    }


def _used(bench: Bench) -> int:
    everything = bench.settings.sizes[_FAMILY] is None
    return bench.probe.given if everything else bench.count(_FAMILY)


def matrix_layers(bench: Bench) -> list[Layer]:
    """Linear and convolutional layers; the first alone where deep ones are switched off."""
    found = [
        layer
        for layer in bench.layout.layers
        if layer.shape is not None and _is_matrix(bench.model.get_submodule(layer.name))
    ]
    return found if bench.settings.deep_covariance else found[:1]


def _is_matrix(module: nn.Module) -> bool:
    return isinstance(module, (nn.Linear, *_CONV)) or _is_transposed(module)


def _is_transposed(module: nn.Module) -> bool:
    """The linear layer of GPT-2, whose weight is (inputs, outputs)."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def _examples(bench: Bench) -> object:
    """All the data, or as much of the probe as was asked for; of it this process's part, if any."""
    processes, shard = bench.settings.processes, bench.probe.shard
    everything = bench.settings.sizes[_FAMILY] is None
    if processes.alone:
        return bench.data if everything else bench.examples(_FAMILY)[0]
    if not everything:
        batch, _ = bench.examples(_FAMILY)
        part = processes.part(len(batch))
        return batch.take(part) if part.stop > part.start else None
    if not shard.copies:
        return bench.data if shard.own else None
    size, convert = bench.settings.batch_size, bench.settings.batch_fn
    batches = iterate_batches(bench.data, batch_size=size, batch_fn=convert)
    return list(islice(batches, processes.rank, None, processes.size)) or None


def _weight(bench: Bench, layer: Layer) -> Tensor:
    """One row per filter."""
    module = bench.model.get_submodule(layer.name)
    weight: Tensor = module.weight.detach()  # type: ignore[operator]
    return weight.mT if _is_transposed(module) else weight.flatten(1)


def _bytes(bench: Bench, *layers: Layer) -> int:
    """Sums of the layers, and the work on the largest of them."""
    sizes = [8 * _weight(bench, layer).shape[1] ** 2 for layer in layers]
    modules = (bench.model.get_submodule(layer.name) for layer in layers)
    patches = _PATCHES if any(isinstance(module, _CONV) for module in modules) else 0
    return sum(sizes) + _COPIES * max(sizes) + patches


def _why_not(bench: Bench, layer: Layer, limit: int) -> str | None:
    """Why a layer has no covariance, in a sentence; None if it has."""
    needed = _bytes(bench, layer)
    if needed > limit:
        return f"its covariance needs {needed:,} bytes, {limit:,} are left of memory_limit"
    module = bench.model.get_submodule(layer.name)
    if not isinstance(module, _CONV) or layer.input_shape is None:
        return None
    sizes = layer.input_shape[-len(module.kernel_size) :]
    spans = [(k - 1) * d + 1 for k, d in zip(module.kernel_size, module.dilation, strict=True)]
    if all(span <= size for span, size in zip(spans, sizes, strict=True)):
        return None
    return f"no whole patch fits: kernels span {tuple(spans)}, their input is {tuple(sizes)}"


def _groups(bench: Bench, layers: list[Layer], limit: int) -> Iterator[list[Layer]]:
    """Layers whose covariances fit into memory together: one pass over the data for each group."""
    group: list[Layer] = []
    for layer in layers:
        if group and _bytes(bench, *group, layer) > limit:
            yield group
            group = []
        group = [*group, layer]
    if group:
        yield group


def _moments(bench: Bench, group: list[Layer], data: object) -> dict[str, Moments]:
    """Moments of this process's layers over everybody's examples; None is no example here."""
    processes = bench.settings.processes
    own: dict[str, Moments] = {}
    with processes.together():
        if data is not None:
            own = input_moments(
                bench.model,
                data,
                [layer.name for layer in group],
                batch_size=bench.settings.batch_size,
                batch_fn=bench.settings.batch_fn,
            )
    device = _weight(bench, group[0]).device
    return shared_moments(processes, own, owners(bench, group), device)


def _remembered(bench: Bench, group: list[Layer], data: object) -> dict[str, Moments]:
    """Moments; those of a layer that takes the data as they are do not change while it trains."""
    (layer, *others), settings = group, bench.settings
    columns = _weight(bench, layer).shape[1]
    fixed = layer.name in bench.layout.fed and settings.sizes[_FAMILY] is not None
    if others or not fixed or columns > _LARGE or not settings.processes.alone:
        return _moments(bench, group, data)
    key = (bench.probe.digest, layer.name, bench.count(_FAMILY), columns)
    known = _FIXED.get(bench.model)
    if known is None or settings.check or known[0] != key:
        known = key, _moments(bench, group, data)[layer.name]
        _FIXED[bench.model] = known
    return {layer.name: known[1]}


def _measure_group(bench: Bench, sheet: Sheet, group: list[Layer], data: object) -> None:
    with bench.step(sheet, _FAMILY):
        moments = _remembered(bench, group, data)
    first = next(iter(matrix_layers(bench)), None)
    for layer in own_layers(bench, group):
        with bench.step(sheet, _FAMILY, layer):
            rounded = moments.pop(layer.name).covariance()
            covariance = (rounded + rounded.mT) / 2  # products of patches are not quite symmetric
            if len(covariance) <= _LARGE:  # small matrices are decomposed faster there
                covariance = covariance.cpu()
            _compare(bench, sheet, layer, covariance)
            if layer == first and bench.settings.curves:
                weights = weight_covariance(_weight(bench, layer).to(covariance))
                eigenvector_pictures(bench, sheet, layer, covariance, weights)


def _rounded(measure: Callable[[Tensor, Tensor], Result], pair: tuple[Tensor, Tensor]) -> Result:
    """A measure of two covariances; as float32 where float64 finds variances below zero.

    Sums are float64, products of patches are not: inputs that lie in a plane, as after a layer
    norm, have variances of zero up to the rounding of float32.
    """
    try:
        return measure(*pair)
    except DomainError:
        return measure(pair[0].float(), pair[1].float())


def _undefined(filters: int, dimensions: int, subspace: int) -> str:
    """Why there is no misalignment: it takes two directions."""
    if subspace > 1:
        return "the weights are isotropic"
    if dimensions == 1:
        return "the layer has a single input, and so no directions to compare"
    if subspace_size(filters, dimensions) < 2:
        least = min(8, dimensions + 2)
        have = "1 filter is" if filters == 1 else f"{filters} filters are"
        return f"{have} too few to judge directions: at least {least} are needed"
    return "the strongest directions of the data have equal variances and cannot be told apart"


def _compare(bench: Bench, sheet: Sheet, layer: Layer, data: Tensor) -> None:
    weight = _weight(bench, layer).to(data)
    filters = len(weight)
    covariance = weight_covariance(weight)
    generator = torch.Generator(device="cpu").manual_seed(bench.settings.seed)
    try:
        found = _rounded(
            lambda a, b: compare_misalignment(a, b, filters, draws=_BASES, generator=generator),
            (data, covariance),
        )
    except TheodoliteError as error:
        nothing = Estimate(math.nan)
        sheet.row(layer, (_FAMILY, "relative_misalignment"), nothing, filters, str(error))
    else:
        mean, deviation = float(found.baseline.mean()), float(found.baseline.std())
        rows = {
            "relative_misalignment": Estimate(
                float(found.relative), None, 1.0, deviation / mean if mean else None
            ),
            "misalignment": Estimate(float(found.value), None, mean, deviation),
            "random_basis_misalignment": Estimate(mean),
            "misalignment_floor": Estimate(float(found.floor)),
            "subspace": Estimate(float(found.subspace)),
        }
        for measure, estimate in rows.items():
            finite = estimate if found.subspace else Estimate(estimate.value)
            why = _undefined(filters, len(data), found.subspace)
            sheet.row(layer, (_FAMILY, measure), finite, filters, why)
    if not bench.settings.curves:
        return
    count = min(_SHOWN if len(data) <= _LARGE else _FEWER, len(data))
    curve = _rounded(lambda a, b: transfer_from_covariance(a, b, count=count), (data, covariance))
    arrays = {"x": curve.sigma, "y": curve.tau}
    labels = {"x": "σ of the data", "y": "τ of the weights"}
    sheet.curve(layer, (_FAMILY, "transfer"), arrays, **labels)
