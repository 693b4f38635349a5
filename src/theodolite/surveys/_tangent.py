"""Tangent: alignment of each layer's tangent kernel with the labels."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from theodolite.engine import (
    forward_kernel,
    shared_tangent_kernels,
    tangent_alignments,
    traced_backward_kernel,
)
from theodolite.errors import MemoryLimitError, TheodoliteError
from theodolite.measures.tangent import alignment_decomposition, peak_layer, tangent_alignment
from theodolite.records import Estimate
from theodolite.surveys._bench import Bench, own_layers, owners, within_step
from theodolite.surveys._layers import Layer
from theodolite.surveys._memory import engine_options
from theodolite.surveys._settings import MANY_OUTPUTS
from theodolite.surveys._sheet import Sheet, spread
from theodolite.theory.infinite_width import equilibrium_layer

__all__ = ["measure_tangent"]

_FAMILY = "tangent"
_DEFAULT_LIMIT = 2 * 2**30
_BESIDE = 16  # kernels' worth of memory for measuring one of them in float64
_FEWEST = 16  # examples: below, a sketch says more
_PICTURED = 40  # examples of the heat maps of forward and backward kernels
_SIGNALS = 4  # copies of the signals behind them
_PICTURES = 8  # layers with heat maps
_PASSIVE = (nn.Flatten, nn.Identity, nn.Dropout)


def measure_tangent(bench: Bench, sheet: Sheet) -> None:
    """Rows and curves of all layers that own trainable parameters."""
    layers = [layer for layer in bench.layout.layers if layer.parameters]
    outputs = bench.layout.outputs
    assert outputs is not None
    exact = _exact_count(bench, len(layers), outputs)
    if exact is None or not _fitted(bench, sheet, layers, exact):
        _sketch(bench, sheet, layers, outputs)
    _equilibrium(bench, sheet)
    if bench.settings.curves and bench.settings.heat_maps:
        _pictures(bench, sheet, layers)


def _exact_count(bench: Bench, layers: int, outputs: int) -> int | None:
    """How many examples' kernels fit into memory; None where a sketch is due."""
    count = bench.count(_FAMILY)
    if bench.settings.tangent == "sketch":
        return None
    if bench.settings.tangent == "auto" and outputs > MANY_OUTPUTS:
        return None
    room = bench.settings.room or _DEFAULT_LIMIT
    fitting = math.isqrt(room // (4 * (layers + _BESIDE))) // outputs
    if fitting < min(count, _FEWEST):
        return None
    return min(count, fitting)


def _fitted(bench: Bench, sheet: Sheet, layers: list[Layer], count: int) -> bool:
    """Measure exactly; False where the engine needs more memory than there is."""
    try:
        with bench.settings.processes.together():
            _exact(bench, sheet, layers, count)
    except MemoryLimitError:
        if bench.settings.tangent == "exact":
            raise
        return False
    return True


def _exact(bench: Bench, sheet: Sheet, layers: list[Layer], count: int) -> None:
    batch, task = bench.probe.take(count)
    assert bench.layout.outputs is not None
    targets = task.outputs(bench.layout.outputs)
    with bench.step(sheet, _FAMILY):
        kernels = shared_tangent_kernels(
            bench.model,
            batch,
            owners(bench, layers),
            bench.settings.processes,
            readout=bench.settings.readout,
            **engine_options(bench.settings, bench.layout, targets.shape[1]),
            check=bench.settings.check,
            progress=within_step(bench),
        )
    curve: dict[int, float] = {}
    for layer in layers:
        if layer.name in kernels:
            with bench.step(sheet, _FAMILY, layer):
                pair = kernels[layer.name], targets
                curve[layer.index] = _layer_rows(bench, sheet, layer, pair)
    everywhere = {k: v for part in bench.settings.processes.gather(curve) for k, v in part.items()}
    values = [everywhere[index] for index in sorted(everywhere)]
    _peak(sheet, torch.tensor(values, dtype=torch.float64), count)
    routes = {name: parts[0].route for name, parts in kernels.coverage.items() if parts}
    sheet.routes[_FAMILY] = {"method": "exact", "n": count, "contractions": routes}


def _layer_rows(bench: Bench, sheet: Sheet, layer: Layer, pair: tuple[Tensor, Tensor]) -> float:
    kernel, targets = pair[0], pair[1].to(pair[0])
    n = len(targets)
    found = alignment_decomposition(kernel, targets)
    null = _null(kernel, targets, bench.draws.shuffled(targets), found.alignment)
    error = _error(bench, kernel, targets)
    method = "exact" if error is None else "half-sampling"
    value = float(found.alignment)
    why = "the tangent kernel or the labels are constant"
    estimate = Estimate(value, error, *spread(null), method)
    sheet.row(layer, (_FAMILY, "tangent_alignment"), estimate, n, why)
    sheet.row(layer, (_FAMILY, "stable_rank"), Estimate(float(found.stable_rank)), n, why)
    sheet.row(layer, (_FAMILY, "correlation"), Estimate(float(found.correlation)), n, why)
    return value


def _null(kernel: Tensor, targets: Tensor, shuffled: Tensor, alignment: Tensor) -> Tensor | None:
    """Alignment for permuted labels: the norms stay, the energy of the labels changes."""
    if len(shuffled) == 0:
        return None
    K = kernel.flatten(2).flatten(0, 1)
    Y = torch.cat([targets.unsqueeze(0), shuffled])
    Y = (Y - Y.mean((1, 2), keepdim=True)).flatten(1)
    energies = (Y * (Y @ K)).sum(1).double()
    return alignment * energies[1:] / energies[0]


def _error(bench: Bench, kernel: Tensor, targets: Tensor) -> float | None:
    halves = bench.draws.halves(len(targets)).to(kernel.device)
    if len(halves) < 2:
        return None
    draws = [tangent_alignment(kernel[h][:, :, h], targets[h]) for h in halves]
    return float(torch.stack(draws).double().std())


def _peak(sheet: Sheet, curve: Tensor, n: int) -> None:
    if len(curve) == 0:
        return
    peak = float(peak_layer(curve)) if not bool(curve.isnan().any()) else math.nan
    why = "the alignment of a layer is undefined"
    sheet.row(None, (_FAMILY, "peak_layer"), Estimate(peak), n, why)


def _sketch(bench: Bench, sheet: Sheet, layers: list[Layer], outputs: int) -> None:
    batch, task = bench.examples(_FAMILY)
    targets = task.outputs(outputs)
    with bench.step(sheet, _FAMILY):
        found = tangent_alignments(
            bench.model,
            replace(batch, targets=targets),
            layers=[layer.name for layer in layers],
            method="sketch",
            probes=bench.settings.probes,
            readout=bench.settings.readout,
            **engine_options(bench.settings, bench.layout, outputs),
            generator=torch.Generator().manual_seed(bench.settings.seed),
            processes=bench.settings.processes,
        )
    why = "the sketch does not resolve it: the norm of the kernel is below its noise"
    for layer in layers:
        if layer.name in found:
            entry = found[layer.name]
            value, error = float(entry.alignment), float(entry.error)
            estimate = Estimate(value, error, method="sketch")
            sheet.row(layer, (_FAMILY, "tangent_alignment"), estimate, len(batch), why)
    best = found.peak()
    number = math.nan if best is None else 1.0 + list(found).index(best)
    unresolved = "the sketch does not resolve which layer is the peak"
    sheet.row(None, (_FAMILY, "peak_layer"), Estimate(number), len(batch), unresolved)
    sheet.routes[_FAMILY] = {
        "method": "sketch",
        "n": len(batch),
        "probes": bench.settings.probes,
        "missing": "stable_rank and correlation need the kernels themselves",
    }


def _equilibrium(bench: Bench, sheet: Sheet) -> None:
    """The layer at which forward and backward information balance, for plain ReLU stacks."""
    depth = relu_depth(bench.model)
    inputs = bench.probe.batch.args[0] if bench.probe.batch.args else None
    if depth < 2 or not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        return
    batch, _ = bench.examples(_FAMILY)
    rows = normalize(batch.args[0].flatten(1).double(), dim=1)
    n = len(rows)
    cosine = float((rows.sum(0).square().sum() - n) / (n * (n - 1)))
    value = equilibrium_layer(depth, min(max(cosine, -1.0), 1.0))
    why = "the backward loss of information never exceeds the forward one"
    sheet.row(None, (_FAMILY, "equilibrium_layer"), Estimate(value, method="theory"), n, why)


def relu_depth(model: nn.Module) -> int:
    """Number of linear layers of a plain stack in which each but the last has a ReLU; else 0."""
    leaves = [module for module in model.modules() if not list(module.children())]
    kinds = [type(module) for module in leaves if not isinstance(module, _PASSIVE)]
    linear, rest = kinds[::2], kinds[1::2]
    plain = all(kind is nn.Linear for kind in linear) and all(kind is nn.ReLU for kind in rest)
    return len(linear) if plain and len(linear) == len(rest) + 1 else 0


def _fitting(bench: Bench, layers: list[Layer]) -> int:
    """Examples whose signals, one for each output and unit of a layer, fit into memory."""
    outputs, widest = bench.layout.outputs or 1, max((la.width for la in layers), default=1)
    room = bench.settings.room or _DEFAULT_LIMIT
    return room // (4 * _SIGNALS * outputs * max(1, widest))


def _pictures(bench: Bench, sheet: Sheet, layers: list[Layer]) -> None:
    """Forward and backward kernels of linear layers, examples in class order."""
    linear = [la for la in layers if isinstance(bench.model.get_submodule(la.name), nn.Linear)]
    count = min(_PICTURED, bench.count(_FAMILY), _fitting(bench, linear))
    if linear and count < 2:
        text = "not drawn: signals of two examples do not fit into memory_limit"
        sheet.warn(None, (_FAMILY, "backward_kernel"), text)
        return
    batch, task = bench.probe.take(count)
    labels = task.labels if task.labels is not None else torch.zeros(len(batch), dtype=torch.long)
    order = labels.argsort(stable=True)
    sorted_batch, classes = batch.take(order), labels[order]
    drawn = linear[:: max(1, -(-len(linear) // _PICTURES))]
    for layer in own_layers(bench, drawn):
        with bench.step(sheet, _FAMILY, layer):
            options: dict[str, Any] = {"readout": bench.settings.readout}
            try:
                forward = forward_kernel(bench.model, sorted_batch, layer.name, **options)
                backward = traced_backward_kernel(bench.model, sorted_batch, layer.name, **options)
            except TheodoliteError:  # a layer applied to several positions has no such kernels
                continue
            for title, matrix in (("forward_kernel", forward), ("backward_kernel", backward)):
                arrays = {"matrix": matrix, "classes": classes}
                sheet.curve(layer, (_FAMILY, title), arrays)
