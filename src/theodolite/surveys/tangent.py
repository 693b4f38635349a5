"""Tangent family: alignment of each layer's tangent kernel with the labels.

It reads tangent kernels, or a sketch of them. Headline: ``tangent_alignment``. For a kernel
``measures.tangent.alignment_decomposition`` computes it. Both a kernel and a sketch end in
``alignment_from_norms``.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from theodolite.advice.reasons import Reason, reason
from theodolite.engine import sketch_plan
from theodolite.errors import MemoryLimitError
from theodolite.measures import gradient, tangent
from theodolite.records import Estimate, Note
from theodolite.surveys.context import SurveyContext
from theodolite.surveys.layers import Layer
from theodolite.surveys.progress import EIGEN, Cost
from theodolite.surveys.record import RecordBuilder, chance
from theodolite.theory.infinite_width import equilibrium_layer

_WORK = 16  # memory for measuring one kernel in float64, in kernels
_FEWEST = 16  # with fewer examples a sketch is more accurate
_DECOMPOSED = 512  # the norm of a kernel with more rows is computed without a decomposition
_SMALL = 512  # kernels with fewer rows are faster on the CPU
# Multiply-adds of exact kernels of long examples: one or two minutes on two cores or a large GPU.
_MOST_WORK = {"cpu": 5e12, "cuda": 2e15}
_PICTURED = 40  # examples in the heat maps of forward and backward kernels
_GRADIENTS = 4  # copies of the output gradients for heat maps
_PICTURES = 8  # largest number of layers with heat maps
_DIRECTIONS = ("forward_kernel", "backward_kernel")
_PASSIVE = (nn.Flatten, nn.Identity, nn.Dropout)


def measure_tangent(context: SurveyContext, record: RecordBuilder) -> None:
    """Rows and curves of all layers that own trainable parameters."""
    layers = context.layout.with_parameters()
    count, why = _exact_count(context, len(layers)), _why_sketched(context)
    exact = count is not None and why is None
    if exact and count is not None:
        try:
            _exact(context, record, layers, count)
        except MemoryLimitError:
            if context.options.tangent == "exact":
                raise
            exact = False
    if not exact:
        _sketch(context, record, layers)
        record.routes["tangent"] |= {} if why is None else {"reason": why.to_entry()}
    _equilibrium(context, record)
    if context.plan.curves and context.options.details and context.task is None:
        _heat_maps(context, record, layers)


def tangent_cost(context: SurveyContext, n: int) -> Cost:
    """Cost of a forward pass, a backward pass for each output or vector, and kernel products."""
    outputs = context.layout.outputs or 1
    if context.options.sketches(outputs):
        return Cost((_sketch_passes(context, n),), 0.0)
    halves = 1 + (context.options.permutations + context.options.half_samples / 4) / 4
    layers = len(context.layout.with_parameters())
    products = context.kernels_cost(n, outputs) + layers * halves * (n * outputs) ** 2
    products += layers * EIGEN * min(n * outputs, _DECOMPOSED) ** 3
    return Cost((n * (2.0 + 2 * outputs),), products)


def _sketch_passes(context: SurveyContext, n: int) -> float:
    numbers = sum(p.numel() for p in context.model.parameters())
    plan = sketch_plan(context.options.sketch_vectors, n, numbers, int(context.pass_cost))
    return 2.0 * n * (1 + plan.passes)


def _exact_count(context: SurveyContext, layers: int) -> int | None:
    """Number of examples whose kernels fit into memory; None if a sketch is due."""
    outputs = context.layout.outputs or 1
    if context.task is not None and context.task.unit == "sequence":
        outputs = context.probe.targets.num_classes or 1
    elif context.options.sketches(outputs):
        return None
    count = context.count("tangent")
    fitting = math.isqrt(context.plan.free_bytes // (4 * (layers + _WORK))) // outputs
    return None if fitting < min(count, _FEWEST) else min(count, fitting)


def _why_sketched(context: SurveyContext) -> Reason | None:
    """Why long examples get a sketch although their kernels fit into memory: too much work."""
    task, outputs = context.task, context.layout.outputs or 1
    if context.options.tangent != "auto" or task is None or task.unit == "sequence":
        return None
    n = context.count("tangent")
    exact = n * context.pass_cost * (2 + outputs) + context.kernels_cost(n, outputs)
    sketched = _sketch_passes(context, n) * context.pass_cost / 2
    place = next(context.model.parameters()).device.type
    most = _MOST_WORK.get(place, _MOST_WORK["cpu"])
    if exact <= most or 2 * sketched > exact:
        return None
    return reason(Note.SKETCHED, n=n, outputs=outputs, exact=exact, most=most, sketched=sketched)


def _exact(
    context: SurveyContext, record: RecordBuilder, layers: Sequence[Layer], count: int
) -> None:
    batch, known = context.examples("tangent", count)
    count, outputs = len(batch), context.layout.outputs or 1
    of_losses = context.task is not None and context.task.unit == "sequence"
    targets = known.columns if of_losses else known.outputs(outputs)
    assert targets is not None  # the family would not apply
    with context.step("tangent"):
        kernels = context.tangent_kernels(layers, "tangent", count)
    values: dict[str, float] = {}
    for layer in layers:
        if layer.name in kernels:
            with context.step("tangent", layer):
                kernel = kernels[layer.name]
                if kernel.shape[0] * kernel.shape[1] <= _SMALL:  # many small steps are faster there
                    kernel = kernel.cpu()
                if of_losses:  # one function per example, compared with several groupings
                    own = torch.eye(targets.shape[1]).to(kernel)
                    kernel = torch.einsum("iajb,cd->icjd", kernel, own)
                values[layer.name] = _kernel_rows(
                    context, record, layer, kernel, targets.to(kernel)
                )
    with_matrix = _with_matrix(context, [layer for layer in layers if layer.name in values])
    curve = torch.tensor([values[layer.name] for layer in with_matrix], dtype=torch.float64)
    if len(curve):
        peak = math.nan if bool(curve.isnan().any()) else float(tangent.peak_layer(curve))
        why = reason(Note.PEAK_UNDEFINED)
        record.row(None, "tangent", "peak_layer", Estimate(peak), n=count, reason=why)
    contractions = {name: parts[0].contraction for name, parts in kernels.coverage.items() if parts}
    record.routes["tangent"] = {"method": "exact", "n": count, "contractions": contractions}


def _with_matrix(context: SurveyContext, layers: Sequence[Layer]) -> list[Layer]:
    """Layers with a matrix; the curve over layers leaves out normalisations."""
    named = dict(context.model.named_parameters())
    found = [la for la in layers if any(named[name].ndim > 1 for name in la.owned)]
    return found or list(layers)


def _kernel_rows(
    context: SurveyContext, record: RecordBuilder, layer: Layer, kernel: Tensor, targets: Tensor
) -> float:
    n = len(targets)
    found = tangent.alignment_decomposition(kernel, targets)
    permuted = context.draws.permutations_of(targets)
    null = tangent.permuted_alignments(kernel, permuted) if len(permuted) else None
    halves = context.draws.halves(n).to(kernel.device)
    error, method = None, "exact"
    if len(halves) > 1:
        draws = [tangent.tangent_alignment(kernel[h][:, :, h], targets[h]) for h in halves]
        error, method = float(torch.stack(draws).double().std()), "half-sampling"
    why = reason(Note.CONSTANT_KERNEL)
    estimate = Estimate(float(found.alignment), error, *chance(null), method)
    record.row(layer, "tangent", "tangent_alignment", estimate, n=n, reason=why)
    rank, correlation = Estimate(float(found.stable_rank)), Estimate(float(found.correlation))
    record.row(layer, "tangent", "stable_rank", rank, n=n, reason=why)
    record.row(layer, "tangent", "correlation", correlation, n=n, reason=why)
    return float(found.alignment)


def _sketch(context: SurveyContext, record: RecordBuilder, layers: Sequence[Layer]) -> None:
    n = context.count("tangent")
    with context.step("tangent"):
        found = context.tangent_sketch(layers)
    why = reason(Note.UNRESOLVED)
    for layer in layers:
        if layer.name in found:
            entry = found[layer.name]
            estimate = Estimate(float(entry.alignment), float(entry.error), method="sketch")
            record.row(layer, "tangent", "tangent_alignment", estimate, n=n, reason=why)
    shown = _with_matrix(context, [layer for layer in layers if layer.name in found])
    places = torch.tensor([list(found).index(layer.name) for layer in shown])
    peak = math.nan
    if len(places):
        covariance = found.covariance[places][:, places]
        peak = float(tangent.peak_layer(found.curve[places], covariance))
    why = reason(Note.PEAK_UNRESOLVED)
    record.row(None, "tangent", "peak_layer", Estimate(peak), n=n, reason=why)
    record.routes["tangent"] = {
        "method": "sketch",
        "n": n,
        "sketch_vectors": context.options.sketch_vectors,
        **found.sketch,
        "missing": reason(Note.NOT_IN_SKETCHES).to_entry(),
    }


def _equilibrium(context: SurveyContext, record: RecordBuilder) -> None:
    """The layer where forward and backward information balance, for plain ReLU stacks."""
    depth = relu_depth(context.model)
    batch, _ = context.examples("tangent")
    inputs = batch.args[0] if batch.args else None
    if depth < 2 or not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        return
    n, finite = len(inputs), bool(inputs.isfinite().all())
    cosine = float(gradient.cosine_stiffness(inputs)) if finite else math.nan
    if math.isnan(cosine):  # fewer than two inputs are nonzero
        return
    value = equilibrium_layer(depth, min(max(cosine, -1.0), 1.0))
    why = reason(Note.NO_BALANCE)
    estimate = Estimate(value, method="theory")
    record.row(None, "tangent", "equilibrium_layer", estimate, n=n, reason=why, read_at="inputs")


def relu_depth(model: nn.Module) -> int:
    """Number of linear layers of a plain stack with a ReLU after each but the last; else 0."""
    leaves = [module for module in model.modules() if not list(module.children())]
    kinds = [type(module) for module in leaves if not isinstance(module, _PASSIVE)]
    linear, rest = kinds[::2], kinds[1::2]
    plain = all(kind is nn.Linear for kind in linear) and all(kind is nn.ReLU for kind in rest)
    return len(linear) if plain and len(linear) == len(rest) + 1 else 0


def _heat_maps(context: SurveyContext, record: RecordBuilder, layers: Sequence[Layer]) -> None:
    """Forward and backward kernels of linear layers on vectors, examples in class order."""
    linear = [
        layer
        for layer in layers
        if isinstance(context.model.get_submodule(layer.name), nn.Linear)
        and len(layer.input_shape or ()) == 1
    ]
    drawn = linear[:: max(1, -(-len(linear) // _PICTURES))]
    if not drawn:
        return
    outputs, free = context.layout.outputs or 1, context.plan.free_bytes
    graph = 2 * context.layout.footprint.per_example(context.layout.footprint.total)
    sizes = {layer.name: graph + 4 * _GRADIENTS * outputs * layer.width for layer in drawn}
    widest = max(sizes.values())
    count = min(_PICTURED, context.count("tangent"), free // widest)
    if count < 2:
        record.warn(None, "tangent", "backward_kernel", reason(Note.PICTURE_BYTES))
        return
    batch, known = context.examples("tangent", count)
    labels = torch.zeros(len(batch), dtype=torch.long) if known.labels is None else known.labels
    order = labels.argsort(stable=True)
    together = max(1, free // (count * widest))
    with context.step("tangent", drawn[0]):
        kernels = context.heat_maps([layer.name for layer in drawn], order.tolist(), together)
    for layer in drawn:
        for direction, matrix in zip(_DIRECTIONS, kernels.get(layer.name, ()), strict=False):
            maps = {"matrix": matrix, "classes": labels[order]}
            record.curve(layer, "tangent", direction, maps)
