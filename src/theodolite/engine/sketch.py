"""Alignment of every layer's tangent kernel with the labels, without holding any kernel."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theodolite._distributed import ALONE, Processes
from theodolite.checks import (
    require_choice,
    require_count,
    require_labels,
    require_nonempty,
    size_in_bytes,
)
from theodolite.engine.batches import Batch
from theodolite.engine.centered_norms import (
    GradientMoments,
    KernelMoments,
    gradient_rows,
    shorter_sides,
)
from theodolite.engine.check import Asked, Checked, compare_forms, compare_in_batch
from theodolite.engine.contract import KernelBlock
from theodolite.engine.inputs import require_device, require_model
from theodolite.engine.kernel_engine import (
    BatchList,
    Collected,
    KernelEngine,
)
from theodolite.engine.kernels import followed
from theodolite.engine.layers import LayerMapping, Layers, Parameters, layers_text, unwrap
from theodolite.engine.plan import EngineOptions, Plan, pass_size
from theodolite.engine.readouts import Readout, kernel_shape
from theodolite.engine.sketches import (
    forward_products,
    jackknife_covariance,
    pair_norms,
    sketch_grams,
    sketch_plan,
)
from theodolite.engine.state import (
    available_bytes,
    coarse_precision,
    exact_arithmetic,
    model_device,
    untouched,
)
from theodolite.errors import DomainError, MemoryLimitError, ShapeError
from theodolite.linalg import alignment_from_norms, center_all, peak_index, target_columns

Method = Literal["exact", "sketch"]


@dataclass(frozen=True)
class TangentAlignment:
    r"""Alignment of one layer's tangent kernel with the labels, in float64 on the CPU.

    Args:
        alignment: :math:`A_l`, nan where the centred kernel or the labels are zero.
        energy: :math:`\|\Psi_l \tilde Y\|^2`, the numerator before normalisation.
        norm: :math:`\|C K_l C\|_F`, or its estimate.
        error: Standard error of the alignment; zero where it is exact.
    """

    alignment: Float[Tensor, ""]
    energy: Float[Tensor, ""]
    norm: Float[Tensor, ""]
    error: Float[Tensor, ""]


@dataclass(frozen=True)
class TangentAlignments(LayerMapping[TangentAlignment]):
    """Layer -> alignment, in order of execution.

    Args:
        layers: The alignments.
        method: ``"exact"`` or ``"sketch"``.
        covariance: Covariance of the errors of all layers. Probes are common to them, so that
            differences between layers are known better than the layers themselves.
        checked: How examples were measured, and what was asked about it.
        sketch: How a sketch was made: ``groups`` of examples, random ``vectors`` of each group, and
            the ``precision`` of their backward passes.
    """

    layers: dict[str, TangentAlignment]
    method: Method
    covariance: Float[Tensor, "layers layers"] = field(repr=False)
    checked: Checked = field(default_factory=Checked)
    sketch: Mapping[str, int | str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"TangentAlignments({self.method}, {layers_text(self)})"

    @property
    def curve(self) -> Float[Tensor, " layers"]:
        """Alignments of all layers, one after the other."""
        return torch.stack([entry.alignment for entry in self.layers.values()])

    def difference_error(self, first: str, second: str) -> Float[Tensor, ""]:
        """Standard error of the difference between two layers' alignments."""
        names = list(self.layers)
        i, j = names.index(first), names.index(second)
        S = self.covariance
        return (S[i, i] + S[j, j] - 2 * S[i, j]).clamp(min=0.0).sqrt()

    def peak(self, errors: float = 2.0) -> str | None:
        """The layer with the largest alignment, or None if it is not resolved.

        Args:
            errors: By how many standard errors of the difference it must exceed every other layer.
        """
        covariance = None if self.method == "exact" else self.covariance
        best = peak_index(self.curve, covariance, errors)
        return None if best is None else list(self.layers)[best]


_Moments = KernelMoments | GradientMoments

_BLOCK_ROWS = 8192  # rows (example, output) of a block: large products, small blocks
_FIRST = 64  # examples in which a sketch looks for dependence on each other
_ZERO = 1e-12  # of the norm before centring: a kernel that is constant up to rounding


def tangent_alignments(
    model: nn.Module,
    inputs: Any,
    targets: Any = None,
    layers: Layers = "*",
    *,
    method: Method = "exact",
    sketch_vectors: int = 32,
    readout: str | Readout | None = None,
    params: Parameters = None,
    memory_limit: int | str | None = None,
    batch_fn: Callable[[Any], Batch] | None = None,
    batch_size: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
    processes: Processes = ALONE,
) -> TangentAlignments:
    r"""Alignment of every layer's tangent kernel with the labels, for any number of examples.

    .. math:: A_l = \frac{\|\Psi_l \tilde Y\|^2}{\|C K_l C\|_F\, \|\tilde Y\|^2},
              \qquad \tilde Y = C Y

    The numerator takes one backward pass for all layers. The norm is added up over blocks of the
    kernel, in float64, so that memory does not grow with the square of the number of examples. For
    a layer with fewer parameters than the kernel has rows it is that of the parameters' side of the
    same product, where that is cheaper. Or it is estimated from pairs of random vectors, common to
    all layers. Where memory allows, groups of examples have vectors of their own, and each example
    takes part in fewer backward passes than there are ``sketch_vectors``, at an error that is no
    larger. These passes, whose error is far above rounding, use tensor cores (TF32) on a GPU.

    Range: [0, 1].
    Undefined (``nan``): the kernel is constant up to rounding, or the targets are.

    Args:
        model: Any module, in evaluation mode.
        inputs: Inputs, (inputs, targets), a mapping, or batches of these.
        targets: :math:`Y`: class labels (n,) or values (n, c), where ``inputs`` holds none.
        layers: Names, patterns or a predicate; ``"*"`` for every layer with parameters of its own.
        method: ``"exact"``, or ``"sketch"`` where that takes too long.
        sketch_vectors: The sketch has at most the error of so many random vectors along all
            outputs of all examples, at least 3; errors fall as its inverse.
        readout: See :func:`tangent_kernels`.
        params: Which trainable parameters count.
        memory_limit: Bytes, or a size such as "4GB"; None for nine tenths of what is free.
        batch_fn: Turns an item of ``inputs`` into a batch.
        batch_size: Examples per forward pass; None to choose.
        dtype: Dtype of products; None for that of the outputs.
        device: Where the inputs should lie; None for that of the parameters.
        generator: Source of the random vectors; None for a fixed seed.
        processes: That have the same model, inputs and random vectors, and share the work of the
            sketch.

    Raises:
        CaptureError: If examples depend on each other or on chance, or a rule is wrong.
        DomainError: If there are no targets, or the model trains or drops out.
        MemoryLimitError: If the plan exceeds the memory limit.
        ShapeError: If outputs and targets do not match.

    Example:
        >>> model = torch.nn.Linear(2, 2, bias=False).double()
        >>> x = torch.eye(2, dtype=torch.float64)
        >>> found = tangent_alignments(model, x, torch.tensor([0, 1]))
        >>> round(found[""].alignment.item(), 4)
        0.5774

    References:
        [lou2022], Eq. (7).
    """
    require_choice(("exact", "sketch"), method=method)
    require_count(3, sketch_vectors=sketch_vectors)
    options = EngineOptions(
        layers=layers,
        readout=readout,
        params=params,
        dtype=dtype,
        memory_limit=size_in_bytes(memory_limit),
        batch_size=batch_size,
    )
    require_model(model)
    inner = unwrap(model)
    require_device(device, inner)
    place = torch.device(device) if device is not None else model_device(inner)
    with untouched(inner), exact_arithmetic(place):
        data = BatchList.of(inputs, targets, batch_fn, place, model=inner)

        def compute(engine: KernelEngine) -> TangentAlignments:
            labels = centered_labels(data, engine.outputs)
            if method == "exact":
                return _exact(engine, data, labels)
            return _sketched(engine, data, labels, sketch_vectors, generator, processes)

        return followed(inner, data, options, compute)


def centered_labels(data: BatchList, outputs: int) -> Tensor:
    """Targets minus their mean over examples and outputs, (n, c), in float64."""
    parts = [batch.targets for batch in data.batches]
    if any(not isinstance(part, Tensor) for part in parts):
        raise DomainError("targets: expected one target per example, got none; pass targets=")
    targets = torch.cat(parts)
    require_nonempty(targets=targets)
    if targets.dim() == 1 and not targets.is_floating_point() and outputs > 1:
        values = target_columns(targets, require_labels(targets, outputs, "targets"))
    else:
        values = target_columns(targets.reshape(len(targets), -1), None)
    if values.shape[1] != outputs:
        raise ShapeError(
            f"targets: expected class labels or shape (n, {outputs}) as the outputs, got "
            f"{tuple(targets.shape)}"
        )
    return center_all(values)


def _exact(engine: KernelEngine, data: BatchList, labels: Tensor) -> TangentAlignments:
    plan = _block_plan(engine, len(data))
    moments = _moments(engine, plan, labels)
    gradients, asked = _stream(engine, data, plan, labels, moments)
    for one in asked:
        compare_in_batch(engine.recorder, one)
    owned = engine.recorder.ownership.layers
    energy = {
        layer: sum(
            (gradients[name].double().square().sum() for name in owned[layer] if name in gradients),
            torch.zeros((), dtype=torch.float64, device=engine.device),
        )
        for layer in engine.layers
    }
    scales = {layer: entry.uncentered for layer, entry in moments.items()}
    forms = {layer: entry.form for layer, entry in moments.items()}
    if engine.one_by_one is None:  # otherwise all gradients are autograd's own
        compare_forms(engine.recorder, forms, energy, scales)
    norms = torch.stack([moments[layer].centered for layer in engine.layers])
    noise = torch.stack([scales[layer] for layer in engine.layers])
    zero = torch.zeros(len(norms), len(norms), dtype=torch.float64, device=norms.device)
    energies = torch.stack([energy[layer] for layer in engine.layers])
    return _assemble(engine, "exact", (energies, norms, noise), labels, zero)


def _block_plan(engine: KernelEngine, examples: int) -> Plan:
    """The largest blocks that fit."""
    block = min(examples, max(1, _BLOCK_ROWS // engine.outputs))
    while True:
        try:
            return engine.plan(block, block, block >= examples, 2)
        except MemoryLimitError:
            if block == 1:
                raise
            block = -(-block // 2)


def _moments(engine: KernelEngine, plan: Plan, labels: Tensor) -> dict[str, _Moments]:
    """Sums of every layer, on the side that takes less time."""
    short, flat = shorter_sides(engine, plan, len(labels)), labels.flatten()
    return {
        layer: GradientMoments(flat)
        if layer in short
        else KernelMoments(len(flat), engine.device, flat)
        for layer in engine.layers
    }


def _stream(
    engine: KernelEngine, data: BatchList, plan: Plan, labels: Tensor, moments: dict[str, _Moments]
) -> tuple[dict[str, Tensor], list[Asked]]:
    """Go through all blocks; the gradient of the outputs along the labels, and asked batches."""
    asked: list[Asked] = []
    total: dict[str, Tensor] = {}
    kernels = {name: entry for name, entry in moments.items() if isinstance(entry, KernelMoments)}
    for block in data.blocks(plan.block, plan.batch_size):
        left = engine.collect(block, plan, labels[block.rows])
        asked += left.asked
        for name, gradient in left.gradients.items():
            total[name] = total[name] + gradient if name in total else gradient
        for layer, entry in moments.items():
            if isinstance(entry, GradientMoments):
                factors = [left.factors[index] for index in engine.groups_of(layer)]
                start = left.rows.start * engine.outputs
                for rows, J in gradient_rows(factors, plan):
                    entry.add(J, slice(start + rows.start, start + rows.stop))
        if not kernels:
            continue
        _add_blocks(engine, plan, left, left, kernels)
        for columns in data.blocks(plan.block, plan.batch_size):
            if columns.rows.start > block.rows.start:
                _add_blocks(engine, plan, left, engine.collect(columns, plan), kernels)
    return total, asked


def _add_blocks(
    engine: KernelEngine,
    plan: Plan,
    left: Collected,
    right: Collected,
    moments: dict[str, KernelMoments],
) -> None:
    """Add one block of every layer's kernel to its sums; the blocks share one buffer."""
    c = engine.outputs
    shape = kernel_shape("full", len(left.outputs), len(right.outputs), c)
    block = KernelBlock(torch.empty(shape, dtype=engine.dtype, device=engine.device), "full")
    rows, columns = (slice(side.rows.start * c, side.rows.stop * c) for side in (left, right))
    for layer, entry in moments.items():
        engine.fill(layer, left, right, block, plan)
        entry.add(block.matrices()[0], rows, columns)


def _sketched(
    engine: KernelEngine,
    data: BatchList,
    labels: Tensor,
    wanted: int,
    generator: torch.Generator | None,
    processes: Processes,
) -> TangentAlignments:
    if engine.one_by_one is None:
        first = data.batches[0].take(slice(0, _FIRST))
        run = engine.recorder.run(first)
        one = engine.recorder.check.ask(engine.recorder, run, first, 0)
        if one is not None:
            compare_in_batch(engine.recorder, one)
    tensors = engine.recorder.ownership.parameters.values()
    numbers, item = sum(p.numel() for p in tensors), max(p.element_size() for p in tensors)
    with processes.together():
        limit = engine.options.memory_limit or available_bytes(engine.device)
        plan = sketch_plan(
            wanted,
            len(data),
            numbers,
            forward_products(engine.alone.uses, numbers),
            groups=None if processes.alone else 1,  # all that is kept is sent
            item=item,
            limit=limit,
        )
        graph, free = 2 * engine.alone.result_bytes, limit - plan.gradients * numbers * item
        batch_size = pass_size(engine.options, len(data), engine.device, graph, free)
    grams = sketch_grams(
        engine.recorder,
        data,
        labels,
        plan,
        batch_size=batch_size,
        generator=generator,
        processes=processes,
    )
    stacked = torch.stack([grams[layer] for layer in engine.layers])
    energies = stacked[:, 0, 0]
    norms, without = pair_norms(stacked[:, 1:, 1:], len(plan.groups))
    noise = stacked[:, 1:, 1:].diagonal(dim1=1, dim2=2).mean(1) * len(plan.groups)
    replicates = alignment_from_norms(energies[:, None, None], without, labels.square().sum())
    covariance = jackknife_covariance(replicates.nan_to_num())
    found = _assemble(engine, "sketch", (energies, norms, noise), labels, covariance)
    used = {"groups": len(plan.groups), "vectors": plan.vectors}
    return replace(found, sketch=used | {"precision": coarse_precision(engine.device)})


def _assemble(
    engine: KernelEngine,
    method: Method,
    parts: tuple[Tensor, Tensor, Tensor],
    labels: Tensor,
    covariance: Tensor,
) -> TangentAlignments:
    # One copy from the device: what follows, and what callers read, are single numbers.
    energies, norms, noise, size = (part.cpu() for part in (*parts, labels.square().sum()))
    covariance = covariance.cpu()
    defined = (norms > _ZERO * noise) & (size > 0)
    alignments = alignment_from_norms(energies, norms, size, defined)
    errors = covariance.diagonal().sqrt()
    rows = zip(engine.layers, alignments, energies, norms, errors, strict=True)
    found = {layer: TangentAlignment(*values) for layer, *values in rows}
    return TangentAlignments(found, method, covariance, engine.checked)
