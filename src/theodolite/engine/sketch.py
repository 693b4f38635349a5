r"""Alignment of every layer's tangent kernel with the labels, without holding any kernel.

:func:`tangent_alignments` needs the norm of every layer's centred kernel. There are two ways:

* :class:`KernelMoments` adds up blocks of the kernel,
* :func:`sketch_grams` estimates the norm from gradients along random vectors, with an error.

The sketch uses random vectors :math:`z` of signs along the outputs of a group of examples. Each
costs one backward pass of that group and gives :math:`\Psi z`. For two vectors of groups g and h
(or of one group), :math:`E (z^\top K_c z')^2` is the squared norm of the block (g, h) of the
centred kernel. With all examples in one group, s vectors cost s passes of all examples. With m
groups each group has only :math:`s / \sqrt m` vectors. The m diagonal blocks then have as many
pairs as with one group. So the error is that of s vectors if the kernel is block diagonal, and
smaller otherwise.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theodolite._distributed import ALONE, Processes
from theodolite.checks import (
    require_choice,
    require_count,
    require_kind,
    require_labels,
    require_nonempty,
    require_same_length,
    size_in_bytes,
    size_text,
)
from theodolite.engine.batches import Batch, even_spans, spans
from theodolite.engine.calls import Outer
from theodolite.engine.check import Check, Checked, Measured, Rerun, check_rows
from theodolite.engine.compare import (
    add_gradients,
    compare_forms,
    compare_in_batch,
    out_of_range,
    plain_gradients,
)
from theodolite.engine.contract import KernelBlock
from theodolite.engine.inputs import BatchList
from theodolite.engine.kernel_engine import Collected, KernelEngine
from theodolite.engine.kernels import batched_or_one_by_one
from theodolite.engine.layers import LayerMapping, Layers, Parameters, layers_text
from theodolite.engine.plan import (
    EngineOptions,
    Plan,
    kernel_shape,
    pass_size,
    warn_of_repeats,
)
from theodolite.engine.readouts import Readout
from theodolite.engine.recorder import Use
from theodolite.engine.runs import ModelRecorder
from theodolite.engine.state import available_bytes, coarse_arithmetic, coarse_precision
from theodolite.errors import DomainError, MemoryLimitError, ShapeError
from theodolite.linalg import (
    alignment_from_norms,
    center_all,
    centered_square_sum,
    peak_index,
    target_columns,
)
from theodolite.records import CHANCE

Method = Literal["exact", "sketch"]


@dataclass(frozen=True)
class TangentAlignment:
    r"""Alignment of one layer's tangent kernel with the labels, in float64 on the CPU.

    Args:
        alignment: :math:`A_l`; nan if the centred kernel or the labels are zero.
        energy: :math:`\|\Psi_l \tilde Y\|^2`, the numerator before normalisation.
        norm: :math:`\|C K_l C\|_F`, or its estimate.
        error: Standard error of the alignment; zero if it is exact.
    """

    alignment: Float[Tensor, ""]
    energy: Float[Tensor, ""]
    norm: Float[Tensor, ""]
    error: Float[Tensor, ""]


@dataclass(frozen=True)
class TangentAlignments(LayerMapping[TangentAlignment], Measured):
    """Layer -> alignment, in order of execution.

    Args:
        layers: The alignments.
        method: ``"exact"`` or ``"sketch"``.
        covariance: Covariance of the errors of all layers. All layers share the random vectors, so
            differences between layers have smaller errors than the layers themselves.
        checked: How examples were measured, and what was checked.
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
        """Alignments of all layers, in order."""
        return torch.stack([entry.alignment for entry in self.layers.values()])

    def peak(self, errors: float = CHANCE) -> str | None:
        """The layer with the largest alignment, or None if the errors are too large to decide.

        Args:
            errors: The largest must exceed every other layer by this many standard errors of the
                difference.
        """
        covariance = None if self.method == "exact" else self.covariance
        best = peak_index(self.curve, covariance, errors)
        return None if best is None else list(self.layers)[best]


_BLOCK_ROWS = 8192  # rows (example, output) of a block: large products, small blocks
_CHECKED_EXAMPLES = 64  # examples of a sketch that the check looks at
_ZERO = 1e-12  # share of the norm before centring: below it a kernel is constant up to rounding


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
    check: Check = True,
    generator: torch.Generator | None = None,
    processes: Processes = ALONE,
) -> TangentAlignments:
    r"""Alignment of every layer's tangent kernel with the labels, for any number of examples.

    .. math:: A_l = \frac{\|\Psi_l \tilde Y\|^2}{\|C K_l C\|_F\, \|\tilde Y\|^2},
              \qquad \tilde Y = C Y

    The columns of :math:`\Psi_l` are the gradients of all outputs of all examples,
    :math:`K_l = \Psi_l^\top \Psi_l`, and C subtracts the mean over all outputs of all examples. The
    numerator takes one backward pass for all layers. The norm is added up over blocks of the
    kernel, in float64, so that memory does not grow with the square of the number of examples. Or
    it is estimated from random vectors, which all layers share. If memory allows, groups of
    examples get their own vectors. Each example then takes part in fewer than ``sketch_vectors``
    backward passes, with no larger error. On a GPU these passes use tensor cores (TF32),
    whose rounding is far below the error of the estimate.

    Range: [0, 1].
    Undefined (``nan``): the kernel is constant up to rounding, or the targets are.

    Args:
        model: Any module, in evaluation mode.
        inputs: Inputs, (inputs, targets), a mapping, or batches of these.
        targets: :math:`Y`: class labels (n,) or values (n, c), if ``inputs`` does not contain them.
        layers: Names, patterns or a predicate; ``"*"`` for every layer with parameters of its own.
        method: ``"exact"``, or ``"sketch"`` if the exact norm takes too long.
        sketch_vectors: Number of random vectors along all outputs of all examples, at least 3. The
            error of the sketch is at most that of so many vectors, and falls as their inverse.
        readout: See :func:`tangent_kernels`.
        params: The trainable parameters to include.
        memory_limit: Limit in bytes, or a size such as "4GB"; None: nine tenths of the free memory.
        batch_fn: Turns an item of ``inputs`` into a batch.
        batch_size: Examples per forward pass; None to choose.
        dtype: Dtype of products; None uses that of the outputs.
        device: Device for the inputs; None uses that of the parameters.
        check: See :func:`tangent_kernels`; a sketch checks its first examples.
        generator: Source of the random vectors; None for a fixed seed.
        processes: Processes with the same model, inputs and random vectors that share the work of
            the sketch.

    Returns:
        The alignment of every layer with its standard error.

    Raises:
        CaptureError: If examples depend on each other or on random numbers, or a rule is wrong.
        DomainError: If there are no targets, or the model is in training mode where that changes
            results (batch statistics, dropout).
        MemoryLimitError: If the plan exceeds the memory limit.
        ShapeError: If outputs and targets do not match.

    Examples:
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
    require_kind((torch.Generator, type(None)), generator=generator)
    require_kind(Processes, processes=processes)
    options = EngineOptions(
        layers=layers,
        readout=readout,
        params=params,
        dtype=dtype,
        memory_limit=size_in_bytes(memory_limit),
        batch_size=batch_size,
        check=check,
    )

    def compute(
        engine: KernelEngine, data: BatchList, _other: BatchList | None
    ) -> TangentAlignments:
        labels = centered_labels(data, engine.output_count)
        if method == "exact":
            return _exact(engine, data, labels)
        return _sketched(engine, data, labels, sketch_vectors, generator, processes)

    return batched_or_one_by_one(
        model, inputs, options, compute, targets=targets, batch_fn=batch_fn, device=device
    )


def centered_labels(data: BatchList, outputs: int) -> Tensor:
    """Targets minus their mean over examples and outputs, (n, c), in float64."""
    parts = [batch.targets for batch in data.batches]
    if any(not isinstance(part, Tensor) for part in parts):
        raise DomainError("targets: expected one target per example, got none; pass targets=")
    require_same_length(targets=parts[0])
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


def _assemble(
    engine: KernelEngine,
    method: Method,
    energies: Tensor,
    norms: Tensor,
    scales: Tensor,
    labels: Tensor,
    covariance: Tensor,
) -> TangentAlignments:
    """The result from numbers of all layers; a norm far below its scale is rounding."""
    parts = (energies, norms, scales, labels.square().sum(), covariance)
    energies, norms, scales, size, covariance = (part.cpu() for part in parts)
    defined = (norms > _ZERO * scales) & (size > 0)
    alignments = alignment_from_norms(energies, norms, size, defined)
    errors = covariance.diagonal().sqrt()
    rows = zip(engine.layers, alignments, energies, norms, errors, strict=True)
    found = {layer: TangentAlignment(*values) for layer, *values in rows}
    return TangentAlignments(found, method, covariance, engine.checked)


_DOUBLE_ROWS = 1024  # rows of a block that are converted to float64 at a time


class KernelMoments:
    r"""Sums over the blocks of one symmetric kernel, in float64.

    .. math:: \|CKC\|_F^2 = \sum K^2 - \tfrac{2}{m} |K1|^2 + \tfrac{1}{m^2} (1^\top K 1)^2

    A constant is subtracted from all entries first. Centring removes it again. The subtraction
    keeps digits if a kernel is nearly constant, as in deep networks at initialisation.

    Args:
        size: Number m of rows of the kernel.
        device: Device for the sums.
        labels: Vector y.

    Attributes:
        form: Quadratic form of the labels.
    """

    def __init__(self, size: int, device: torch.device, labels: Tensor) -> None:
        self._size, self._labels = size, labels.double()
        self._offset: Tensor | None = None
        self._squares = torch.zeros((), dtype=torch.float64, device=device)
        self.form = torch.zeros((), dtype=torch.float64, device=device)
        self._rows = torch.zeros(size, dtype=torch.float64, device=device)

    def add(self, block: Tensor, rows: slice, columns: slice) -> None:
        """Add a block, and its mirror image unless it lies on the diagonal."""
        if self._offset is None:
            self._offset = block.double().mean()
        weight = 1.0 if rows == columns else 2.0
        for part in spans(len(block), _DOUBLE_ROWS):
            values = block[part].double()
            span = slice(rows.start + part.start, rows.start + part.stop)
            self.form += weight * self._labels[span] @ (values @ self._labels[columns])
            values -= self._offset
            self._squares += weight * values.square().sum()
            self._rows[span] += values.sum(1)
            if weight == 2.0:
                self._rows[columns] += values.sum(0)

    @property
    def uncentered(self) -> Tensor:
        """Norm before centring, with the subtracted constant added back."""
        offset = torch.zeros_like(self.form) if self._offset is None else self._offset
        m = self._size
        shifted = self._squares + 2 * offset * self._rows.sum() + m * m * offset.square()
        return shifted.clamp(min=0.0).sqrt()

    @property
    def centered(self) -> Tensor:
        """Norm of the centred kernel."""
        return centered_square_sum(self._squares, self._rows).clamp(min=0.0).sqrt()


def _exact(engine: KernelEngine, data: BatchList, labels: Tensor) -> TangentAlignments:
    plan, flat = _block_plan(engine, len(data)), labels.flatten()
    warn_of_repeats([plan], len(data))
    moments = {layer: KernelMoments(len(flat), engine.device, flat) for layer in engine.layers}
    gradients: dict[str, Tensor] = {}
    reruns: list[Rerun] = []

    def fill(left: Collected, right: Collected | None) -> None:
        # The passes of a right side repeat earlier ones. Their blocks are compared with autograd
        # all together: the form of the labels in the whole kernel is the norm of `gradients`.
        if right is None:
            reruns.extend(left.reruns)
            add_gradients(gradients, left.weighted_gradient)
        _add_blocks(engine, plan, left, right, moments)

    engine.fill_blocks(plan, data, None, fill, labels)
    for rerun in reruns:
        compare_in_batch(engine.recorder, rerun)
    zero = torch.zeros((), dtype=torch.float64, device=engine.device)
    squares = {name: part.double().square().sum() for name, part in gradients.items()}
    energies = torch.stack(
        [
            sum((squares[name] for name in engine.layer_parameters[layer] if name in squares), zero)
            for layer in engine.layers
        ]
    )
    forms, norms, uncentered = (
        torch.stack([getattr(moments[layer], what) for layer in engine.layers])
        for what in ("form", "centered", "uncentered")
    )
    for layer, norm in zip(engine.layers, uncentered.tolist(), strict=True):
        if not math.isfinite(norm) and energies.isfinite().all():
            limit = torch.finfo(engine.dtype).max
            raise out_of_range(layer, engine.dtype, f"above {limit:.1e}")
    if engine.fallback is None:  # otherwise all gradients are autograd's own
        found, wanted, sizes = (
            dict(zip(engine.layers, part.tolist(), strict=True))
            for part in (forms, energies, uncentered)
        )
        compare_forms(engine.recorder, found, wanted, sizes)
    covariance = zero.expand(len(norms), len(norms))
    return _assemble(engine, "exact", energies, norms, uncentered, labels, covariance)


def _block_plan(engine: KernelEngine, examples: int) -> Plan:
    """The largest blocks that fit. A smaller buffer for kernels may leave room for larger ones."""
    block = min(examples, max(1, _BLOCK_ROWS // engine.output_count))
    # Two gradients along the labels exist: that of all batches so far and that of the current one.
    parameters = engine.recorder.ownership.parameters.values()
    held = 2 * sum(p.numel() * p.element_size() for p in parameters)
    best: Plan | None = None
    while best is None or block > best.block_size:
        try:
            plan = engine.plan(block, None if block >= examples else block, 2, held)
        except MemoryLimitError:
            if block == 1:
                raise
        else:
            best = plan if best is None or plan.block_size > best.block_size else best
        block = -(-block // 2)
    return best


def _add_blocks(
    engine: KernelEngine,
    plan: Plan,
    left: Collected,
    right: Collected | None,
    moments: dict[str, KernelMoments],
) -> None:
    """Add one block of every layer's kernel to its sums; the blocks share one buffer."""
    c, sides = engine.output_count, (left, right or left)
    shape = kernel_shape("full", len(left.outputs), len(sides[1].outputs), c)
    block = KernelBlock(torch.empty(shape, dtype=engine.dtype, device=engine.device))
    rows, columns = (slice(side.span.start * c, side.span.stop * c) for side in sides)
    for layer, entry in moments.items():
        engine.fill(layer, left, right, block, plan)
        entry.add(block.matrix, rows, columns)


MOST_GROUPS = 16
_LEAST_EXAMPLES = 12  # smallest number of examples of a group: a pass of fewer is not faster
_LEAST_VECTORS = 3  # smallest number of vectors of a group, so that the jackknife leaves a pair
_DOUBLE_COST = 2.0  # float32 products that take the time of one float64 product
_COLUMNS = 2**14  # entries of the gradients in one of several products made side by side
_COPIED = {"cpu": 2**19, "cuda": 2**27}  # float64 numbers that are copied at a time
_SIGN_BYTES = 20  # bytes of a random sign, with those of its conversions


@dataclass(frozen=True)
class SketchPlan:
    """Which examples share random vectors, and how many."""

    groups: tuple[slice, ...]  # consecutive examples, all of them
    vectors: int  # random vectors of each group

    @property
    def gradients(self) -> int:
        """Number of kept gradients: along the labels, along ones, and along all random vectors."""
        return 1 + (len(self.groups) > 1) + len(self.groups) * self.vectors

    @property
    def passes(self) -> int:
        """Number of backward passes in which each example takes part."""
        return 1 + (len(self.groups) > 1) + self.vectors


def sketch_plan(
    wanted: int,
    examples: int,
    parameters: int,
    products: int,
    *,
    groups: int | None = None,
    item: int = 4,
    limit: int | None = None,
) -> SketchPlan:
    """The groups that take the least time: few passes of examples, few products of gradients.

    Args:
        wanted: Number of random vectors of a single group; the error is at most that of so many.
        examples: Number of examples.
        parameters: Number of entries of a gradient.
        products: Multiply-adds of one example in the model.
        groups: Largest number of groups; None for :data:`MOST_GROUPS`.
        item: Bytes of a number.
        limit: Limit in bytes for gradients along all vectors; with several groups they may take
            half of it. None for no limit.

    Raises:
        MemoryLimitError: If the gradients of a single group do not fit.
    """
    most = max(1, min(MOST_GROUPS if groups is None else groups, examples // _LEAST_EXAMPLES))
    plans = []
    for count in range(1, most + 1):
        vectors = max(_LEAST_VECTORS, math.ceil(wanted / math.sqrt(count)))
        plan = SketchPlan(tuple(even_spans(examples, -(-examples // count))), vectors)
        size = plan.gradients * parameters * item
        if limit is None or size <= (limit if count == 1 else limit // 2):
            plans.append(plan)
        elif count == 1:
            raise MemoryLimitError(
                f"memory: gradients along {wanted} sketch_vectors take {size_text(size)}, but "
                f"{size_text(max(0, limit))} of memory_limit are left for them; pass fewer "
                "sketch_vectors, examples or layers, or a larger memory_limit"
            )

    def cost(plan: SketchPlan) -> float:
        backwards = 2.0 * plan.passes * examples * products
        return backwards + _DOUBLE_COST * plan.gradients**2 * parameters

    return min(plans, key=cost)


def forward_products(uses: Sequence[Use], parameters: int) -> int:
    """Multiply-adds of one example with all parameters, counted in a recorded pass."""
    outer = [use.structure for use in uses if isinstance(use.structure, Outer)]
    return parameters + sum(one.positions * one.rows * one.columns for one in outer)


def random_signs(plan: SketchPlan, labels: Tensor, generator: torch.Generator | None) -> Tensor:
    """Random signs along all outputs, (s, n, c), centred if all examples are one group."""
    draws = torch.Generator().manual_seed(0) if generator is None else generator
    shape = (plan.vectors, *labels.shape)
    signs = (2.0 * torch.randint(0, 2, shape, generator=draws, device=draws.device) - 1.0).to(
        labels
    )
    return center_all(signs) if len(plan.groups) == 1 else signs


def sketch_grams(
    recorder: ModelRecorder,
    data: BatchList,
    labels: Tensor,
    plan: SketchPlan,
    *,
    batch_size: int,
    generator: torch.Generator | None = None,
    processes: Processes = ALONE,
) -> dict[str, Tensor]:
    r"""Layer -> inner products of :math:`\Psi_l C z`, (1 + m s, 1 + m s), labels first, then signs.

    Centring a vector along some examples would change its entries at all others. So the gradients
    are centred: :math:`\Psi C z = \Psi z - \tfrac{1^\top z}{n c} \Psi 1`.

    Args:
        recorder: The model.
        data: All examples.
        labels: Centred labels, (n, c).
        plan: Which examples share random vectors.
        batch_size: Examples in one pass.
        generator: Source of the signs; None for a fixed seed.
        processes: Each process takes its part of the examples; gradients are added up over them.
    """
    signs, m = random_signs(plan, labels, generator), len(plan.groups)
    # Along labels, and along ones for centring, all groups have one gradient together.
    shared = labels[None] if m == 1 else torch.stack([labels, torch.ones_like(labels)])
    parameters = recorder.ownership.parameters
    real = {n: torch.view_as_real(p) if p.is_complex() else p for n, p in parameters.items()}
    totals = {
        name: torch.zeros(plan.gradients, *p.shape, dtype=p.dtype, device=p.device)
        for name, p in real.items()
    }
    own = processes.part(len(data))
    for group, rows in enumerate(plan.groups):
        start, stop = max(rows.start, own.start), min(rows.stop, own.stop)
        first = len(shared) + group * plan.vectors
        targets = [*range(len(shared)), *range(first, first + plan.vectors)]
        for batch in data.take(slice(start, stop)):
            for span in even_spans(len(batch), batch_size):
                part = batch.take(span)
                here = slice(start, start + len(part))
                weights = torch.cat([shared[:, here], signs[:, here]])
                _add_gradients(totals, parameters, recorder.chosen_outputs(part), weights, targets)
                start = here.stop
    ones = torch.stack([signs[:, rows].sum((1, 2)) for rows in plan.groups]).flatten()
    found: dict[str, Tensor] = {}
    for name in list(totals):  # one parameter at a time: all in float64 would double the memory
        found[name] = _gram(processes.sum(totals.pop(name)).flatten(1))
    zero = torch.zeros(plan.gradients, plan.gradients, dtype=torch.float64, device=labels.device)
    layers = recorder.ownership.layers.items()
    grams = {layer: sum((found[name] for name in owned), zero) for layer, owned in layers}
    if m == 1:
        return grams
    shares = torch.cat([ones.new_zeros(1), ones]) / labels.numel()  # labels are centred
    return {layer: _centered(gram, shares) for layer, gram in grams.items()}


def _add_gradients(
    totals: dict[str, Tensor],
    parameters: Mapping[str, Tensor],
    outputs: Tensor,
    weights: Tensor,
    targets: Sequence[int],
) -> None:
    """Add one backward pass for each set of weights to its row of the totals."""
    for index, (seed, target) in enumerate(zip(weights, targets, strict=True)):
        keep = index + 1 < len(weights)
        # The labels come first, in full precision. Random vectors may use tensor cores: their own
        # error is far above the rounding.
        with coarse_arithmetic(outputs.device) if index else nullcontext():
            gradients = plain_gradients(outputs, parameters, seed.to(outputs.dtype), keep=keep)
        for name, gradient in gradients.items():
            totals[name][target].add_(gradient)


def _gram(rows: Tensor) -> Tensor:
    """Inner products of a few long rows in float64, computed in many parts side by side."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    copied = _COPIED.get(rows.device.type, _COPIED["cpu"])
    for span in spans(rows.shape[1], max(1, copied // (len(rows) * _COLUMNS)) * _COLUMNS):
        wide = rows[:, span].double()
        whole = wide.shape[1] // _COLUMNS * _COLUMNS
        parts = wide[:, :whole].reshape(len(rows), -1, _COLUMNS).transpose(0, 1)
        total += (parts @ parts.mT).sum(0)
        rest = wide[:, whole:]
        total.addmm_(rest, rest.T)
    return total


def _centered(gram: Tensor, shares: Tensor) -> Tensor:
    """Inner products after each vector has lost its share of the second one, which is left out."""
    ones, others = gram[1], [0, *range(2, len(gram))]
    along = ones[others]
    cross = torch.outer(shares, along)
    whole = gram[others][:, others] - cross - cross.T
    return whole + ones[1] * torch.outer(shares, shares)


def pair_norms(grams: Tensor, groups: int = 1) -> tuple[Tensor, Tensor]:
    r"""Norms of kernels from a sketch's inner products, also without each vector in turn.

    .. math:: \|K_c\|_F^2 = \sum_{g, h} E\,(z_g^\top K_c z'_h)^2

    Args:
        grams: Inner products of gradients along random vectors, group after group, with shape
            (layers, m s, m s).
        groups: The number m of groups.

    Returns:
        Estimates (layers,) and leave-one-out estimates (layers, m, s).
    """
    s = grams.shape[1] // groups
    squares = grams.square()
    squares = squares - torch.diag_embed(squares.diagonal(dim1=1, dim2=2))
    blocks = squares.reshape(-1, groups, s, groups, s).sum(4)  # one vector with those of a group
    within = torch.stack([blocks[:, g, :, g] for g in range(groups)], 1)  # pairs inside a group
    across = blocks.sum(3) - within
    inside, outside = within.sum(2, keepdim=True), across.sum(2, keepdim=True)
    every = (inside / (s * (s - 1)) + outside / s**2).sum(1)
    # Leave one vector of a group out. Pairs of two groups are in the sum twice.
    fewer = (inside - 2 * within) / ((s - 1) * (s - 2)) - inside / (s * (s - 1))
    fewer = fewer + 2 * ((outside - across) / (s * (s - 1)) - outside / s**2)
    return every.squeeze(1).sqrt(), (every.unsqueeze(2) + fewer).clamp(min=0.0).sqrt()


def jackknife_covariance(replicates: Tensor) -> Tensor:
    """Covariance of estimates from values without one vector of a group, (layers, m, s)."""
    s = replicates.shape[2]
    centered = (replicates - replicates.mean(2, keepdim=True)).flatten(1)
    return (s - 1) / s * (centered @ centered.T)


def _sketched(
    engine: KernelEngine,
    data: BatchList,
    labels: Tensor,
    wanted: int,
    generator: torch.Generator | None,
    processes: Processes,
) -> TangentAlignments:
    tensors = engine.recorder.ownership.parameters.values()
    numbers, item = sum(p.numel() for p in tensors), max(p.element_size() for p in tensors)
    graph = 2 * engine.single_run.result_bytes
    with processes.together():
        limit = engine.options.memory_limit or available_bytes(engine.device)
        # Signs, gradients of one pass and of the check, and the graphs of at least one example.
        signs = _SIGN_BYTES * wanted * labels.numel()
        limit -= limit // 10 + signs + 3 * numbers * item + 2 * graph
        plan = sketch_plan(
            wanted,
            len(data),
            numbers,
            forward_products(engine.single_run.uses, numbers),
            groups=None if processes.alone else 1,  # all kept gradients are sent
            item=item,
            limit=limit,
        )
        free = limit + 2 * graph - plan.gradients * numbers * item
        batch_size = pass_size(engine.options, len(data), engine.device, graph, free)
    if engine.fallback is None:
        first = data.batches[0].take(slice(0, min(_CHECKED_EXAMPLES, batch_size)))
        run = engine.recorder.run(first)
        recorder, weights = engine.recorder, engine.recorder.checker.draw_row_weights(run, 0)
        if weights is not None:
            check_rows(recorder, run, weights)
            rerun = recorder.checker.draw_rerun(recorder, run, first, 0)
            del run  # before the pass that is compared with it
            compare_in_batch(recorder, rerun)
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
    scales = stacked[:, 1:, 1:].diagonal(dim1=1, dim2=2).mean(1) * len(plan.groups)
    replicates = alignment_from_norms(energies[:, None, None], without, labels.square().sum())
    covariance = jackknife_covariance(replicates.nan_to_num())
    found = _assemble(engine, "sketch", energies, norms, scales, labels, covariance)
    used = {"groups": len(plan.groups), "vectors": plan.vectors}
    return replace(found, sketch=used | {"precision": coarse_precision(engine.device)})
