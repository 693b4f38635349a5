"""Exact tangent kernels of every layer, in one pass over the data if its factors fit into memory.

:func:`tangent_kernels` reads its arguments. :func:`batched_or_one_by_one` prepares the engine, lets
:func:`kernels_of` fill the kernels block by block, and checks them. If the check fails, it repeats
this with one example at a time. :func:`shared_tangent_kernels` does the same for several processes.
:func:`tangent_features` returns the gradients themselves. :func:`forward_kernel` and
:func:`backward_kernel` return the two factors of the kernel of a linear layer.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theodolite._distributed import Processes
from theodolite.checks import require_flag, require_function, require_kind, size_in_bytes
from theodolite.engine.batches import Batch, iterate_batches
from theodolite.engine.check import (
    Check,
    Checked,
    Checker,
    Measured,
    Rerun,
    require_check,
)
from theodolite.engine.compare import (
    compare_gradients,
    compare_kernels,
    require_finite_gradients,
    require_range,
    rerun_gradients,
)
from theodolite.engine.contract import KernelBlock
from theodolite.engine.factors import DenseFactors, Factors, OuterFactors
from theodolite.engine.inputs import BatchList, require_device, require_model
from theodolite.engine.kernel_engine import Collected, KernelEngine, prepare
from theodolite.engine.layers import LayerMapping, Layers, Parameters, layers_text, unwrap
from theodolite.engine.one_by_one import (
    Answer,
    require_same_outputs_again,
    require_sound_fallback,
    tried_in_batches,
)
from theodolite.engine.plan import EngineOptions, Plan, dense_groups, kernel_shape, warn_of_repeats
from theodolite.engine.readouts import Outputs, Readout
from theodolite.engine.runs import ModelRecorder, Progress
from theodolite.engine.state import exact_arithmetic, limited_memory, model_device, untouched
from theodolite.errors import MemoryLimitError, RangeError, ShapeError


@dataclass(frozen=True)
class Coverage:
    """How the gradients of one parameter were obtained.

    Args:
        parameter: Name of the parameter.
        functions: Torch functions that used it, in order of use; empty if none did.
        by_rule: Whether rules covered all of them; otherwise single calls were replayed.
        contraction: The order of the products: ``"hadamard"`` (one position), ``"positions"`` (Gram
            matrix of positions), ``"gradients"`` (gradients of examples), ``"one example at a
            time"`` (plain autograd, if batches fail), ``"unused"``.
        shared_with: Other names of the same tensor.
    """

    parameter: str
    functions: tuple[str, ...]
    by_rule: bool
    contraction: str
    shared_with: tuple[str, ...] = ()


@dataclass(frozen=True)
class TangentKernels(LayerMapping[Tensor], Measured):
    """Layer -> tangent kernel, in order of execution.

    Args:
        layers: The kernels; a layer that contains another contains its kernel too.
        coverage: Layer -> how each of its parameters was treated.
        outputs: Values of the differentiated functions, (n, c).
        predicted_bytes: Planned peak of memory, without the model.
        checked: How examples were measured, and what was checked.
    """

    layers: dict[str, Tensor]
    coverage: dict[str, tuple[Coverage, ...]]
    outputs: Tensor = field(repr=False)
    predicted_bytes: int = 0
    checked: Checked = field(default_factory=Checked, repr=False)

    def __repr__(self) -> str:
        shape = tuple(next(iter(self.values())).shape)
        return f"TangentKernels(shape {shape}, {layers_text(self)})"

    @property
    def total(self) -> Tensor:
        """The kernel of all selected parameters, each counted once."""

        def inside(layer: str, other: str) -> bool:
            return layer != other and (other == "" or layer.startswith(other + "."))

        outermost = [layer for layer in self if not any(inside(layer, other) for other in self)]
        total = self[outermost[0]].clone()
        for layer in outermost[1:]:
            total += self[layer]
        return total


def tangent_kernels(
    model: nn.Module,
    inputs: Any,
    layers: Layers = "*",
    outputs: Outputs = "full",
    memory_limit: int | str | None = None,
    *,
    other: Any = None,
    targets: Any = None,
    readout: str | Readout | None = None,
    params: Parameters = None,
    batch_fn: Callable[[Any], Batch] | None = None,
    batch_size: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    check: Check = True,
    progress: Progress | None = None,
) -> TangentKernels:
    r"""Tangent kernel of every layer, exact.

    .. math:: K_l[(x, i), (x', j)] =
              \langle \nabla_{\theta_l} f^i(x), \nabla_{\theta_l} f^j(x') \rangle

    For every use of a parameter its inputs and output gradients are multiplied in the cheapest
    order. Gradients (n x c x parameters) are stored for matrices only if they are smaller than
    these factors; for vectors, such as scales of a normalisation, they always are. One pass over
    the data is enough if the factors of all examples fit into memory. Otherwise layers are
    processed in parts, or blocks of examples in pairs, with passes for each. The model is not
    changed. With some models (sorting, packing, routing, hidden uses of parameters) the gradients
    of a batch cannot be divided among its examples. Plain autograd then measures one example at
    a time, and ``measured`` says so.

    Args:
        model: Any module, in evaluation mode. Wrappers of compilation and data parallelism are
            removed.
        inputs: Inputs, (inputs, targets), a mapping of keyword arguments, or batches of these.
        layers: Names, patterns or a predicate; ``"*"`` for every layer with parameters of its own.
        outputs: ``"full"`` for (n, c, n, c); ``"trace"`` for the sum over outputs, (n, n);
            an index for one output, (n, n); or a loss(outputs, targets) with one value per
            example, (n, n).
        memory_limit: Limit in bytes, or a size such as "4GB"; None: nine tenths of the free memory.
        other: A second set of inputs, for the kernel between both sets: (n, c, m, c) and so on.
        targets: Targets for the loss, if ``inputs`` does not contain them.
        readout: ``"last"``, ``"mean"`` or ``"cls"`` for outputs (n, T, c). ``"loss"`` for the loss
            of a whole sequence with labels per position. Or a function of (model output, batch).
        params: The trainable parameters to include: a pattern, names, or a predicate.
        batch_fn: Turns an item of ``inputs`` into a :class:`~theodolite.engine.batches.Batch`.
        batch_size: Examples per forward pass; None to choose. The result does not depend on it.
        dtype: Dtype of products and result; None uses that of the outputs.
        device: Device for the inputs; None uses that of the parameters.
        check: Check that each entry depends on its own examples only: in some batches (True), in
            all of them with every example by itself (``"every"``), or not at all (False).
            :mod:`theodolite.engine.check` says how, and what True can miss.
        progress: Function that is called after every block of examples and after every layer, with
            the finished share and a text.

    Returns:
        The kernel of every layer by name, with the total and how each was computed.

    Raises:
        CaptureError: If examples depend on each other or on random numbers, or a rule is wrong.
        DomainError: If the model is in training mode where that changes results (batch statistics,
            dropout), or no selected parameter is trainable.
        MemoryLimitError: If the plan exceeds the memory limit; the message has the numbers.
        ShapeError: If outputs are not (n, c).
        UnknownNameError: If a layer does not exist.

    Examples:
        >>> model = torch.nn.Linear(2, 1, bias=False).double()
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        >>> kernels = tangent_kernels(model, x, outputs="trace")
        >>> kernels[""].tolist()
        [[1.0, 1.0], [1.0, 2.0]]

    References:
        [lou2022], Eq. (2); [canatar2022], Eqs. (5)-(8), where the trace is divided by c.
    """
    if progress is not None:
        require_function(progress=progress)
    options = EngineOptions(
        layers=layers,
        outputs=outputs,
        readout=readout,
        params=params,
        dtype=dtype,
        memory_limit=size_in_bytes(memory_limit),
        batch_size=batch_size,
        check=check,
    )
    return batched_or_one_by_one(
        model,
        inputs,
        options,
        partial(kernels_of, progress=progress),
        targets=targets,
        other=other,
        batch_fn=batch_fn,
        device=device,
    )


Compute = Callable[[KernelEngine, BatchList, BatchList | None], Answer]


def batched_or_one_by_one(
    model: nn.Module,
    inputs: Any,
    options: EngineOptions,
    compute: Compute[Answer],
    *,
    targets: Any = None,
    other: Any = None,
    batch_fn: Callable[[Any], Batch] | None = None,
    device: torch.device | str | None = None,
) -> Answer:
    """Compute something with a prepared engine, in batches or with one example at a time.

    Examples are measured one at a time in two cases: the gradients of a batch cannot be divided
    among its examples, or the check finds a difference from single examples. The model is not
    changed. The arguments are those of :func:`tangent_kernels`; ``compute`` is a function of the
    engine and the batches of both sides.
    """
    require_check(options.check)
    require_model(model)
    inner = unwrap(model)
    require_device(device, inner)
    chosen = torch.device(device) if device is not None else model_device(inner)
    with untouched(inner), exact_arithmetic(chosen), limited_memory(options.memory_limit):
        read = partial(iterate_batches, batch_fn=batch_fn, device=chosen)
        data = BatchList.of(inner, inputs, read(inputs, targets=targets))
        second = None if other is None else BatchList.of(inner, other, read(other))
        return _with_fallback(inner, data, second, options, compute)


def _with_fallback(
    model: nn.Module,
    data: BatchList,
    other: BatchList | None,
    options: EngineOptions,
    compute: Compute[Answer],
) -> Answer:
    """The same with data as batches, inside the conditions of a measurement."""
    sides = [data] if other is None else [data, other]
    recorder: ModelRecorder | None = None

    def in_batches() -> Answer:
        nonlocal recorder
        recorder = None
        engine = prepare(model, data, options)
        recorder = engine.recorder
        return compute(engine, data, other)

    answer, reason = tried_in_batches(model, sides, in_batches)
    if reason is None:
        assert answer is not None
        return answer
    checker = Checker(options.check) if recorder is None else recorder.checker
    engine = prepare(model, data, options, checker.summary(reason))

    def measure(one: Batch) -> None:
        alone, checked = BatchList([one]), replace(options, outputs="full", check="every")
        kernels_of(prepare(model, alone, checked), alone, None)

    require_sound_fallback(
        recorder or engine.recorder,
        [batch for side in sides for batch in side.batches],
        reason,
        [data.take(slice(k, k + 1))[0] for k in (0, len(data) - 1)],
        measure,
    )
    return compute(engine, data, other)


def kernels_of(
    engine: KernelEngine,
    data: BatchList,
    other: BatchList | None,
    progress: Progress | None = None,
) -> TangentKernels:
    """Kernels of all layers together, or of some layers at a time if memory is short."""
    sizes = len(data), None if other is None else len(other)
    engines = engine.split_by_layers(*sizes)
    warn_of_repeats([plan for _, plan in engines], *sizes)
    parts = [_KernelFilling(part, plan, data, other) for part, plan in engines]
    done, pieces = count(1), sum(part.pieces for part in parts)

    def say(text: str) -> None:
        """Report one more piece of work; on a GPU it may still be running."""
        if progress is not None:
            progress(next(done) / pieces, text)

    kernels: dict[str, Tensor] = {}
    coverage: dict[str, tuple[Coverage, ...]] = {}
    for part in parts:
        part.fill_all(say)
        kernels |= part.kernels
        coverage |= coverage_of(part.engine, part.plan)
    try:
        require_range(engine.recorder, kernels, (data, data if other is None else other))
    except RangeError:  # not so if the model has changed since its passes
        first, recorder = data.take(slice(0, 1))[0], engine.recorder
        pairs = [(recorder.detached_outputs(first), parts[0].outputs()[:1])]
        require_same_outputs_again(pairs, recorder.tolerance)
        raise
    for part in parts:  # after all passes: the model must not have changed
        compare_kernels(engine.recorder, part.kernels, part.rerun_sides())
    predicted = max(plan.predicted_bytes for _, plan in engines)
    return TangentKernels(kernels, coverage, parts[-1].outputs(), predicted, engine.checked)


class _KernelFilling:
    """The kernels of an engine's layers, filled block of examples by block.

    A kernel is allocated when its first block is filled, after the passes have released their
    memory.
    """

    def __init__(
        self, engine: KernelEngine, plan: Plan, data: BatchList, other: BatchList | None
    ) -> None:
        self.engine, self.plan = engine, plan
        self.kernels: dict[str, Tensor] = {}
        self._symmetric = other is None
        self._rows, self._columns = data, data if other is None else other
        self._outputs: list[Tensor] = []
        self._row_reruns: list[Rerun] = []
        self._column_reruns: list[Rerun] = []

    @property
    def pieces(self) -> int:
        """Number of pairs of blocks of examples, and of layers that are filled between them."""
        size = self.plan.block_size
        rows, columns = -(-len(self._rows) // size), -(-len(self._columns) // size)
        pairs = rows * (rows + 1) // 2 if self._symmetric else rows * columns
        return pairs * (1 + len(self.engine.layers))

    def fill_all(self, say: Callable[[str], None]) -> None:
        """Collect the factors of every block, and fill the kernels between pairs of blocks."""
        other = None if self._symmetric else self._columns
        self.engine.fill_blocks(self.plan, self._rows, other, partial(self._fill, say))

    def _fill(self, say: Callable[[str], None], left: Collected, right: Collected | None) -> None:
        """Fill one block of every kernel; without a second side one on the diagonal.

        Factors take most memory. If the block is the whole kernel, each is released after its use.
        """
        engine, columns = self.engine, (right or left).span
        say(f"examples {columns.start} to {columns.stop - 1}")
        if right is None or (not self._symmetric and columns.start == 0):  # a new left side
            self._outputs.append(left.outputs)
            self._row_reruns += left.reruns
        if right is not None:
            self._column_reruns += right.reruns
        uses = Counter(index for layer in engine.layers for index in engine.group_indices[layer])
        whole = right is None and len(left.outputs) == len(self._rows)
        for layer in engine.layers:
            kernel = self._kernel(layer)
            engine.fill(layer, left, right, kernel.part(left.span, columns), self.plan)
            if self._symmetric and right is not None:
                kernel.mirror_block(left.span, columns)
            say(f"layer {layer}")
            for index in engine.group_indices[layer] if whole else ():
                uses[index] -= 1
                if uses[index] == 0:
                    left.factors[index] = None

    def _kernel(self, layer: str) -> KernelBlock:
        """The kernel of a layer, allocated if it is not there yet."""
        engine = self.engine
        if layer not in self.kernels:
            sizes = len(self._rows), len(self._columns), engine.output_count
            shape = kernel_shape(engine.mode, *sizes)
            self.kernels[layer] = torch.empty(shape, dtype=engine.dtype, device=engine.device)
        kernel = self.kernels[layer]
        return KernelBlock(kernel if engine.mode == "full" else kernel[:, None, :, None])

    def outputs(self) -> Float[Tensor, "n c"]:
        """The differentiated outputs of the rows."""
        return torch.cat(self._outputs)

    def rerun_sides(self) -> tuple[list[Rerun], list[Rerun]]:
        """Pairs of reruns, between which the kernels are compared with autograd.

        In a symmetric kernel these are each rerun with itself, and the first one with those of
        later columns.
        """
        rows, columns = self._row_reruns, self._column_reruns
        if self._symmetric:
            return rows + rows[:1] * len(columns), rows + columns
        return rows, columns


def coverage_of(engine: KernelEngine, plan: Plan) -> dict[str, tuple[Coverage, ...]]:
    """How the gradients of every parameter of every layer were obtained."""
    ownership = engine.recorder.ownership
    found: dict[str, Coverage] = {}
    for group_plan in plan.group_plans:
        uses = [engine.single_run.uses[index] for index in group_plan.group.uses]
        for name in group_plan.group.parameters:
            found[name] = Coverage(
                name,
                tuple(use.function for use in uses),
                all(use.by_rule for use in uses),
                "one example at a time" if engine.fallback is not None else group_plan.route,
                ownership.shared.get(name, ()),
            )
    return {
        layer: tuple(
            found.get(name, Coverage(name, (), True, "unused", ownership.shared.get(name, ())))
            for name in ownership.layers[layer]
        )
        for layer in engine.layers
    }


@dataclass(frozen=True)
class TangentFeatures(LayerMapping[Tensor], Measured):
    """Layer -> gradients of all outputs of all examples, in order of execution.

    Args:
        layers: The gradients, (n, c, p).
        checked: How examples were measured, and what was checked.
    """

    layers: dict[str, Tensor]
    checked: Checked = field(default_factory=Checked)

    def __repr__(self) -> str:
        n, c = next(iter(self.values())).shape[:2]
        return f"TangentFeatures({n} examples, {c} outputs, {layers_text(self)})"


def tangent_features(
    model: nn.Module,
    inputs: Any,
    layers: Layers = "*",
    *,
    readout: str | Readout | None = None,
    params: Parameters = None,
    batch_fn: Callable[[Any], Batch] | None = None,
    batch_size: int | None = None,
    memory_limit: int | str | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    check: Check = True,
) -> TangentFeatures:
    r"""Gradients of all outputs of all examples, per layer, exact.

    .. math:: \Psi_l[x, i] = \nabla_{\theta_l} f^i(x)

    Tangent kernels are products of these gradients. Use this function for measures that need the
    gradients themselves, such as the rank-one model and the Fisher information of lou2022. The
    result has n x c x p numbers; :func:`tangent_kernels` avoids most of them.

    Args:
        model: Any module, in evaluation mode; it is left as it was found.
        inputs: Inputs, as for :func:`tangent_kernels`.
        layers: Names, patterns or a predicate; ``"*"`` for every layer with parameters of its own.
        readout: See :func:`tangent_kernels`.
        params: The trainable parameters to include; None includes all.
        batch_fn: Turns an item of ``inputs`` into a batch.
        batch_size: Examples per forward pass; None to choose. The result does not depend on it.
        memory_limit: Limit in bytes, or a size such as "4GB"; None: nine tenths of the free memory.
        dtype: Dtype of the features; None uses that of the outputs.
        device: Device for the inputs; None uses that of the parameters.
        check: See :func:`tangent_kernels`.

    Returns:
        Layer -> (n, c, p). The p entries are those of its parameters in the order of
        ``named_parameters``. A complex entry is two numbers.

    Raises:
        CaptureError: If examples depend on each other or on random numbers.
        MemoryLimitError: If the features do not fit; the message has the numbers.

    Examples:
        >>> model = torch.nn.Linear(2, 1).double()
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
        >>> tangent_features(model, x)[""].tolist()
        [[[1.0, 0.0, 1.0]], [[1.0, 2.0, 1.0]]]

    References:
        [lou2022], Eq. (1).
    """
    options = EngineOptions(
        layers=layers,
        readout=readout,
        params=params,
        dtype=dtype,
        memory_limit=size_in_bytes(memory_limit),
        batch_size=batch_size,
        check=check,
    )
    return batched_or_one_by_one(
        model, inputs, options, _tangent_features_of, batch_fn=batch_fn, device=device
    )


def _tangent_features_of(
    engine: KernelEngine, data: BatchList, _other: BatchList | None = None
) -> TangentFeatures:
    """Features of a prepared computation, checked on some examples."""
    parameters = engine.recorder.ownership.parameters
    dense = replace(engine, groups=dense_groups(engine.single_run.uses, parameters))
    plan = dense.plan(len(data), None, 0)
    if plan.block_size < len(data):
        count = len(data) * engine.output_count * sum(p.numel() for p in parameters.values())
        raise MemoryLimitError(
            f"memory: expected features of all examples to fit, but {count:,} numbers do not; pass "
            "fewer examples or layers, or a larger memory_limit; tangent_kernels does not store "
            "them"
        )
    (block,) = data.blocks(plan.block_size, plan.batch_size)
    collected = dense.collect(block, plan)
    factors: list[Factors] = []
    for group, own in zip(dense.groups, collected.factors, strict=True):
        if own is None:
            parameter = parameters[group.parameter]
            entries = parameter.numel() * (2 if parameter.is_complex() else 1)
            shape = len(data), engine.output_count, entries
            zeros = torch.zeros(shape, dtype=engine.dtype, device=engine.device)
            own = DenseFactors(group.parameters, [zeros])
        factors.append(own)
    found = {own.names[0]: own.gradients() for own in factors}
    for values in found.values():
        require_finite_gradients(values.isfinite().flatten(1).all(1), range(len(data)))
    for rerun in collected.reruns:
        _compare_features(engine, factors, rerun)
    owned = engine.layer_parameters
    layers = {layer: torch.cat([found[n] for n in owned[layer]], 2) for layer in engine.layers}
    return TangentFeatures(layers, engine.checked)


def _compare_features(engine: KernelEngine, factors: Sequence[Factors], rerun: Rerun) -> None:
    """Compare weighted sums of the gradients with plain autograd."""
    rows, weights = rerun.index + rerun.start, rerun.output_weights
    found, terms = {}, []
    for own in factors:
        part = own[rows]
        found[own.names[0]] = part.weighted_sums([slice(0, len(part))], weights)[0]
        terms.append((part.squared_norms() * weights.square()).sum().sqrt())
    sizes = dict(zip(found, torch.stack(terms).tolist(), strict=True))
    (wanted,) = rerun_gradients(engine.recorder, rerun, [weights])
    compare_gradients(engine.recorder, found, wanted, sizes)


def forward_kernel(
    model: nn.Module,
    inputs: Any,
    layer: str,
    *,
    normalize: bool = True,
    readout: str | Readout | None = None,
) -> Float[Tensor, "n n"]:
    r"""Inner products of the inputs of a linear layer, for all pairs of examples.

    .. math:: \mathrm{Fwd}_l(x, x') = \frac{a_{l-1}(x) \cdot a_{l-1}(x')}{N_{l-1}}

    Here :math:`a_{l-1}(x)` are the :math:`N_{l-1}` inputs of the layer.

    Args:
        model: Any module, in evaluation mode.
        inputs: Inputs, as for :func:`tangent_kernels`.
        layer: A layer with one matrix, applied once to one vector per example.
        normalize: Whether to divide by the number of inputs of the layer.
        readout: See :func:`tangent_kernels`.

    Returns:
        A matrix with one row and one column per example.

    Raises:
        ShapeError: If the layer has no such matrix.

    Examples:
        >>> model = torch.nn.Linear(2, 1, bias=False).double()
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        >>> forward_kernel(model, x, "").tolist()
        [[0.5, 0.5], [0.5, 1.0]]

    References:
        [lou2022], Eq. (9). Differs from paper: each kernel is divided by the width of its own side;
        the paper divides both by the common width.
    """
    require_flag(normalize=normalize)
    factors = _factors(model, inputs, layer, readout)
    a = factors.inputs.flatten(1)
    return a @ a.T / (a.shape[1] if normalize else 1)


def backward_kernel(
    model: nn.Module,
    inputs: Any,
    layer: str,
    *,
    normalize: bool = True,
    readout: str | Readout | None = None,
) -> Float[Tensor, "n c n c"]:
    r"""Inner products of gradients of the model's outputs by the outputs of a linear layer.

    .. math:: \mathrm{Bwd}_l[(x, i), (x', j)] =
              \frac{\delta_l^i(x) \cdot \delta_l^j(x')}{N_l}

    Here :math:`\delta_l^i(x)` is the gradient of output i by the :math:`N_l` outputs of the layer.

    Args:
        model: Any module, in evaluation mode.
        inputs: Inputs, as for :func:`tangent_kernels`.
        layer: A layer with one matrix, applied once to one vector per example.
        normalize: Whether to divide by the number of outputs of the layer.
        readout: See :func:`tangent_kernels`.

    Returns:
        The kernel, indexed by example and output on both sides.

    Raises:
        ShapeError: If the layer has no such matrix.

    Examples:
        >>> model = torch.nn.Linear(2, 2, bias=False).double()
        >>> x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        >>> backward_kernel(model, x, "", normalize=False).tolist()
        [[[[1.0, 0.0]], [[0.0, 1.0]]]]

    References:
        [lou2022], Eq. (9). Differs from paper: each kernel is divided by the width of its own side;
        the paper divides both by the common width.
    """
    require_flag(normalize=normalize)
    factors = _factors(model, inputs, layer, readout)
    n, c, width, _ = factors.output_grads.shape
    flat = factors.output_grads.reshape(n * c, width)
    return (flat @ flat.T / (width if normalize else 1)).view(n, c, n, c)


def forward_backward_kernels(
    model: nn.Module,
    inputs: Any,
    layers: Sequence[str],
    *,
    readout: str | Readout | None = None,
) -> dict[str, tuple[Float[Tensor, "n n"], Float[Tensor, "n n"]]]:
    """Forward kernels of several layers, and backward kernels averaged over equal outputs.

    The same passes serve all layers. Pairs of different outputs are not formed: with a thousand
    outputs this saves 99.9 % of time and memory.

    Args:
        model: Any module, in evaluation mode.
        inputs: Inputs, as for :func:`tangent_kernels`.
        layers: Names of layers. The result leaves out layers without one matrix that is applied
            once to one vector per example.
        readout: See :func:`tangent_kernels`.

    Returns:
        Both kernels of every layer by name.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False)).double()
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        >>> [kernel.tolist() for kernel in forward_backward_kernels(model, x, ["0"])["0"]]
        [[[0.5, 0.5], [0.5, 1.0]], [[0.5, 0.5], [0.5, 0.5]]]
    """
    kernels = {}
    for layer, factors in _vector_factors(model, inputs, layers, readout).items():
        a, b = factors.inputs.flatten(1), factors.output_grads.flatten(1)
        kernels[layer] = a @ a.T / a.shape[1], b @ b.T / b.shape[1]
    return kernels


def _factors(
    model: nn.Module, inputs: Any, layer: str, readout: str | Readout | None
) -> OuterFactors:
    found = _vector_factors(model, inputs, [layer], readout)
    if layer not in found:
        raise ShapeError(
            f"layer {layer!r}: expected one matrix applied once to one vector per example, got "
            "none, several, or several positions; use tangent_kernels for other layers"
        )
    return found[layer]


def _vector_factors(
    model: nn.Module, inputs: Any, layers: Sequence[str], readout: str | Readout | None
) -> dict[str, OuterFactors]:
    """Inputs and output gradients of layers with one matrix, applied once to one vector."""
    require_model(model)
    require_kind(Sequence, layers=layers)
    inner = unwrap(model)
    device = model_device(inner)
    with untouched(inner), exact_arithmetic(device):
        data = BatchList.of(inner, inputs, iterate_batches(inputs, device=device))

        def prepared(names: Sequence[str]) -> tuple[KernelEngine, Plan]:
            options = EngineOptions(layers=list(names), readout=readout)
            engine = prepare(inner, data, options)
            return engine, engine.plan(len(data), None, 0)

        engine, plan = prepared(layers)
        fitting = [layer for layer in engine.layers if _has_vectors(engine, plan, layer)]
        if len(fitting) < len(engine.layers):  # decide before the passes for all outputs
            if not fitting:
                return {}
            engine, plan = prepared(fitting)
        (block,) = data.blocks(len(data), plan.batch_size)
        factors = engine.collect(block, plan).factors
    own = {layer: factors[engine.group_indices[layer][0]] for layer in fitting}
    return {
        layer: part
        for layer, part in own.items()
        if isinstance(part, OuterFactors) and part.positions == 1
    }


def _has_vectors(engine: KernelEngine, plan: Plan, layer: str) -> bool:
    groups = [plan.group_plans[index] for index in engine.group_indices[layer]]
    return [(entry.group.kind, entry.route) for entry in groups] == [("outer", "hadamard")]


def shared_tangent_kernels(
    model: nn.Module,
    batch: Batch,
    layers: Mapping[str, Sequence[str]],
    processes: Processes,
    **options: Any,
) -> TangentKernels:
    """Tangent kernels from several processes, each of which computes those of some layers.

    Every process passes all examples. Its backward passes end at its first layer.

    Args:
        model: The model, equal in all processes.
        batch: All examples, equal in all processes.
        layers: Layer -> its parameters.
        processes: The processes that take part.
        options: Options of :func:`tangent_kernels`.

    Returns:
        The kernels of all layers in the first process, of none in the others.
    """
    if processes.alone:
        return tangent_kernels(model, batch, layers, **options)
    names, part = list(layers), None
    own = {name: layers[name] for name in names[processes.rank :: processes.size]}
    with processes.together():
        if own:
            part = tangent_kernels(model, batch, own, **options)
    known = [entry for entry in processes.gather(part and (part.coverage, part.checked)) if entry]
    coverage = {layer: entry for found, _ in known for layer, entry in found.items()}
    checked = next((found for _, found in known if not found.batched), known[0][1])
    empty = next(model.parameters()).new_empty(0)
    kernels: dict[str, Tensor] = {}
    for start in range(0, len(names), processes.size):
        turn = names[start : start + processes.size]  # one layer of every process
        sent = part[turn[processes.rank]] if part and processes.rank < len(turn) else empty
        kernels |= zip(turn, processes.collect(sent, 0), strict=False)
    outputs = empty if part is None else part.outputs
    return TangentKernels(kernels, coverage, outputs, part.predicted_bytes if part else 0, checked)
