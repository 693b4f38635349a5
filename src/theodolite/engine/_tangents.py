"""Exact tangent kernels of every layer in one pass over the data."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theodolite.checks import size_in_bytes
from theodolite.engine._checks import KernelCheck, check_features
from theodolite.engine._contractions import KernelBlock
from theodolite.engine._examples import Check, require_check
from theodolite.engine._factors import DenseFactors, OuterFactors
from theodolite.engine._kernel_engine import (
    BatchList,
    Collected,
    KernelEngine,
    followed,
    prepare,
)
from theodolite.engine._plan import EngineOptions, Plan, dense_groups
from theodolite.engine._products import Precision
from theodolite.engine._runs import Progress, ProgressCounter
from theodolite.engine.batches import Batch
from theodolite.engine.inputs import require_device, require_model
from theodolite.engine.layers import Layers, Parameters, layers_text, unwrap
from theodolite.engine.readouts import Outputs, Readout, kernel_shape
from theodolite.engine.state import (
    SideStream,
    exact_arithmetic,
    model_device,
    raise_trim_threshold,
    untouched,
)
from theodolite.errors import MemoryLimitError, ShapeError, UnknownNameError


@dataclass(frozen=True)
class Coverage:
    """How the gradients of one parameter were obtained.

    Args:
        parameter: Name of the parameter.
        functions: Torch functions that used it, in order of use; empty if none did.
        by_rule: Whether rules covered all of them; otherwise single calls were replayed.
        contraction: In which order: ``"hadamard"`` (one position), ``"positions"`` (Gram matrix of
            positions), ``"gradients"`` (gradients of examples), ``"one by one"`` (plain autograd
            for each example, where they cannot be followed together), ``"unused"``.
        shared_with: Further names of the same tensor.
    """

    parameter: str
    functions: tuple[str, ...]
    by_rule: bool
    contraction: str
    shared_with: tuple[str, ...] = ()


@dataclass(frozen=True)
class TangentKernels(Mapping[str, Tensor]):
    """Layer -> tangent kernel, in order of execution.

    Args:
        kernels: The kernels; a layer that contains another contains its kernel too.
        coverage: Layer -> how each of its parameters was treated.
        outputs: Values of the functions that were differentiated, (n, c).
        predicted_bytes: Peak memory that was planned, beside the model.
        measured: ``"in batches"``, or ``"one by one: "`` and why examples could not be followed
            together.
    """

    kernels: dict[str, Tensor]
    coverage: dict[str, tuple[Coverage, ...]]
    outputs: Tensor = field(repr=False)
    predicted_bytes: int = 0
    measured: str = "in batches"

    def __getitem__(self, layer: str) -> Tensor:
        if layer not in self.kernels:
            raise UnknownNameError("layer", layer, self.kernels)
        return self.kernels[layer]

    def __contains__(self, layer: object) -> bool:
        return layer in self.kernels

    def __iter__(self) -> Iterator[str]:
        return iter(self.kernels)

    def __len__(self) -> int:
        return len(self.kernels)

    def __repr__(self) -> str:
        shape = tuple(next(iter(self.kernels.values())).shape)
        return f"TangentKernels(shape {shape}, {layers_text(self)})"

    @property
    def total(self) -> Tensor:
        """The kernel of all selected parameters, each counted once."""
        return self._sum(self._outermost())

    def split(self, readout: str | None = None) -> tuple[Tensor, Tensor]:
        r"""The total in two terms: that of the readout and that of everything below it.

        .. math:: K_{ij} = K^{(L)} \delta_{ij} + K^{grad}_{ij}

        Args:
            readout: The readout layer; None takes the last one that was executed.

        References:
            [canatar2022], Eq. (7). A trainable shift of the readout adds
            :math:`\delta_{ij}` to the first term.
        """
        outermost = self._outermost()
        name = outermost[-1] if readout is None else readout
        if name not in outermost:
            raise UnknownNameError("layer", name, outermost)
        below = [layer for layer in outermost if layer != name]
        first = self[name]
        return first, self._sum(below) if below else first.new_zeros(first.shape)

    def _outermost(self) -> list[str]:
        def inside(layer: str, other: str) -> bool:
            return layer != other and (other == "" or layer.startswith(other + "."))

        return [layer for layer in self if not any(inside(layer, other) for other in self)]

    def _sum(self, layers: list[str]) -> Tensor:
        total = self[layers[0]].clone()
        for layer in layers[1:]:
            total += self[layer]
        return total


class TangentFeatures(dict[str, Float[Tensor, "n c p"]]):
    """Layer -> gradients of all outputs of all examples; shown by their shapes."""

    def __repr__(self) -> str:
        n, c = next(iter(self.values())).shape[:2]
        return f"TangentFeatures({n} examples, {c} outputs, {layers_text(self)})"


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
    precision: Precision = "float32",
    check: Check = True,
    progress: Progress | None = None,
) -> TangentKernels:
    r"""Tangent kernel of every layer, exact, in one pass over the data.

    .. math:: K_l[(x, i), (x', j)] =
              \langle \nabla_{\theta_l} f^i(x), \nabla_{\theta_l} f^j(x') \rangle

    No gradient of the size n x c x parameters is formed: inputs and output gradients of every use
    of a parameter are contracted in the cheapest order. The model is left as it was found. Where
    examples cannot be followed through it together (sorting, packing, routing, hidden uses of
    parameters), they are measured one by one by plain autograd; ``measured`` says so.

    Args:
        model: Any module, in evaluation mode; wrappers of compilation and data parallelism are
            seen through.
        inputs: Inputs, (inputs, targets), a mapping of keyword arguments, or batches of these.
        layers: Names, patterns or a predicate; ``"*"`` for every layer with parameters of its own.
        outputs: ``"full"`` for (n, c, n, c); ``"trace"`` for the sum over outputs, (n, n);
            ``"diagonal"`` for each output with itself, (c, n, n); an index for one output, (n, n);
            or a loss(outputs, targets) with one value per example, (n, n).
        memory_limit: Bytes, or a size such as "4GB"; None for nine tenths of what is free.
        other: A second set of inputs, for the kernel between the two: (n, c, m, c) and so on.
        targets: Targets for the loss, where ``inputs`` holds none.
        readout: ``"last"``, ``"mean"``, ``"cls"`` for outputs (n, T, c), ``"loss"`` for the loss of
            a whole sequence where labels come per position, or a function of (model output, batch).
        params: Which trainable parameters count: a pattern, names, or a predicate.
        batch_fn: Turns an item of ``inputs`` into a :class:`~theodolite.engine.batches.Batch`.
        batch_size: Examples per forward pass; None to choose. The result does not depend on it.
        dtype: Dtype of products and result; None for that of the outputs.
        device: Where the inputs should lie; None for that of the parameters.
        precision: ``"3xtf32"`` for faster float32 products on CUDA.
        check: Compare with plain autograd (one backward pass more for 16 examples or fewer);
            ``"every"`` compares every example.
        progress: Called with the share that is done and what was done, after every block of
            examples and every layer of it.

    Raises:
        CaptureError: If examples depend on each other or on chance, or a rule is wrong.
        DomainError: If the model trains or drops out, or nothing is trainable or selected.
        MemoryLimitError: If the plan exceeds the memory limit; the message has the numbers.
        ShapeError: If outputs are not (n, c).
        UnknownNameError: If a layer does not exist.

    Example:
        >>> model = torch.nn.Linear(2, 1, bias=False).double()
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        >>> kernels = tangent_kernels(model, x, outputs="trace")
        >>> kernels[""].tolist()
        [[1.0, 1.0], [1.0, 2.0]]

    References:
        [lou2022], Eq. (2); [canatar2022], Eqs. (5)-(8), where the trace is divided by c.
    """
    raise_trim_threshold()
    require_check(check)
    options = EngineOptions(
        layers=layers,
        outputs=outputs,
        readout=readout,
        params=params,
        dtype=dtype,
        memory_limit=size_in_bytes(memory_limit),
        batch_size=batch_size,
        precision=precision,
        check=check,
    )
    require_model(model)
    inner = unwrap(model)
    require_device(device, inner)
    place = torch.device(device) if device is not None else model_device(inner)
    with untouched(inner), exact_arithmetic(place):
        data = BatchList.of(inputs, targets, batch_fn, place, model=inner)
        second = None
        if other is not None:
            second = BatchList.of(other, None, batch_fn, place, model=inner)
        return followed(
            inner,
            data,
            second,
            options,
            lambda engine: kernels_of(engine, data, second, progress),
            lambda engine, few: kernels_of(engine, few, None),
        )


def kernels_of(
    engine: KernelEngine,
    data: BatchList,
    other: BatchList | None,
    progress: Progress | None = None,
) -> TangentKernels:
    """Kernels of all layers, block of examples by block of examples."""
    right_size = len(data) if other is None else len(other)
    plan = engine.plan(len(data), right_size, other is None, len(engine.layers))
    check = None
    if engine.options.check and engine.one_by_one is None:
        check = KernelCheck(engine, data, other, SideStream(engine.device))
    counter = ProgressCounter(progress, _pieces(engine, plan, data, other))
    shape = kernel_shape(engine.mode, len(data), right_size, engine.outputs)
    store = _KernelStore(engine, plan, shape, counter, check)
    outputs: list[Tensor] = []
    for block in data.blocks(plan.block, plan.batch_size):
        left = engine.collect(block, plan)
        counter.done(f"examples {block.rows.start} to {block.rows.stop - 1}")
        outputs.append(left.outputs)
        if other is None and len(left.outputs) == len(data):
            store.fill_and_release(left)
            break
        if other is None:
            store.fill(left, left)
        for columns in (data if other is None else other).blocks(plan.block, plan.batch_size):
            if other is None and columns.rows.start <= block.rows.start:
                continue
            right = engine.collect(columns, plan)
            suffix = "" if other is None else " of the other set"
            counter.done(f"examples {columns.rows.start} to {columns.rows.stop - 1}{suffix}")
            store.fill(left, right)
            if other is None:
                store.mirror(left.rows, right.rows)
    values = torch.cat(outputs)
    if check is not None:
        check.compare(store.kernels, values, kernels_of)
    coverage = coverage_of(engine, plan)
    return TangentKernels(store.kernels, coverage, values, plan.predicted_bytes, engine.measured)


def _pieces(engine: KernelEngine, plan: Plan, data: BatchList, other: BatchList | None) -> int:
    """Blocks of examples that are gone through, and layers that are filled between them."""
    rows = -(-len(data) // plan.block)
    if other is not None:
        columns = -(-len(other) // plan.block)
        return rows + rows * columns * (1 + len(engine.layers))
    return rows * (rows + 1) // 2 * (1 + len(engine.layers))


class _KernelStore:
    """Kernels of all layers, filled block by block.

    A kernel is allocated when its first block is filled, after the passes have released their
    memory. The check is launched once, when half of the kernels are allocated: a GPU has work for a
    while by then.
    """

    def __init__(
        self,
        engine: KernelEngine,
        plan: Plan,
        shape: tuple[int, ...],
        counter: ProgressCounter,
        check: KernelCheck | None,
    ) -> None:
        self._engine, self._plan, self._shape = engine, plan, shape
        self._counter, self._unlaunched = counter, check
        self.kernels: dict[str, Tensor] = {}

    def _block(self, layer: str) -> KernelBlock:
        """The kernel of a layer, allocated if it is not there yet."""
        engine = self._engine
        if layer not in self.kernels:
            if self._unlaunched is not None and 2 * len(self.kernels) >= len(engine.layers) - 1:
                self._unlaunched.launch()
                self._unlaunched = None
            empty = torch.empty(self._shape, dtype=engine.dtype, device=engine.device)
            self.kernels[layer] = empty
        return KernelBlock(self.kernels[layer], engine.mode)

    def fill(self, left: Collected, right: Collected) -> None:
        """Fill one block of every kernel."""
        for layer in self._engine.layers:
            block = self._block(layer).part(left.rows, right.rows)
            self._engine.fill(layer, left, right, block, self._plan)
            self._counter.done(f"layer {layer}")

    def fill_and_release(self, collected: Collected) -> None:
        """Fill whole kernels, and release factors, the larger part of the memory, on the way."""
        engine = self._engine
        waiting = Counter(index for layer in engine.layers for index in engine.groups_of(layer))
        for layer in engine.layers:
            engine.fill(layer, collected, collected, self._block(layer), self._plan)
            self._counter.done(f"layer {layer}")
            for index in engine.groups_of(layer):
                waiting[index] -= 1
                if waiting[index] == 0:
                    collected.factors[index].release()

    def mirror(self, rows: slice, columns: slice) -> None:
        """Copy a block above the diagonal to its place below."""
        for layer in self.kernels:
            block = self._block(layer)
            below, above = block.part(columns, rows), block.part(rows, columns)
            for target, source in zip(below.matrices(), above.matrices(), strict=True):
                target.copy_(source.T)


def coverage_of(engine: KernelEngine, plan: Plan) -> dict[str, tuple[Coverage, ...]]:
    """How every parameter of every layer was treated."""
    ownership = engine.recorder.ownership
    found: dict[str, Coverage] = {}
    for entry in plan.groups:
        uses = [engine.alone.uses[index] for index in entry.group.uses]
        for name in entry.group.parameters:
            found[name] = Coverage(
                name,
                tuple(use.function for use in uses),
                all(use.by_rule for use in uses),
                "one by one" if engine.one_by_one is not None else entry.order,
                ownership.shared.get(name, ()),
            )
    return {
        layer: tuple(
            found.get(name, Coverage(name, (), True, "unused", ownership.shared.get(name, ())))
            for name in ownership.layers[layer]
        )
        for layer in engine.layers
    }


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
) -> "TangentFeatures":
    r"""Gradients of all outputs of all examples, per layer, exact.

    .. math:: \Psi_l[x, i] = \nabla_{\theta_l} f^i(x)

    What tangent kernels are products of, for measures that need the features themselves, such as
    ``measures.tangent.rank_one_model`` and the Fisher information. They take n x c x p numbers;
    :func:`tangent_kernels` forms none of them.

    Args:
        model: Any module, in evaluation mode; it is left as it was found.
        inputs: Inputs, as for :func:`tangent_kernels`.
        layers: Names, patterns or a predicate; ``"*"`` for every layer with parameters of its own.
        readout: See :func:`tangent_kernels`.
        params: Which trainable parameters count.
        batch_fn: Turns an item of ``inputs`` into a batch.
        batch_size: Examples per forward pass; None to choose. The result does not depend on it.
        memory_limit: Bytes, or a size such as "4GB"; None for nine tenths of what is free.
        dtype: Dtype of the features; None for that of the outputs.
        device: Where the inputs should lie; None for that of the parameters.

    Returns:
        Layer -> (n, c, p), the entries of its parameters one after the other as
        ``named_parameters`` lists them; a complex entry is two numbers.

    Raises:
        CaptureError: If examples depend on each other or on chance.
        MemoryLimitError: If the features do not fit; the message has the numbers.

    Example:
        >>> model = torch.nn.Linear(2, 1).double()
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
        >>> tangent_features(model, x)[""].tolist()
        [[[1.0, 0.0, 1.0]], [[1.0, 2.0, 1.0]]]

    References:
        [lou2022], Eq. (1).
    """
    options = EngineOptions(
        layers,
        "full",
        readout,
        params,
        dtype,
        memory_limit=size_in_bytes(memory_limit),
        batch_size=batch_size,
    )
    require_model(model)
    inner = unwrap(model)
    require_device(device, inner)
    place = torch.device(device) if device is not None else model_device(inner)
    with untouched(inner), exact_arithmetic(place):
        data = BatchList.of(inputs, None, batch_fn, place, model=inner)
        return followed(
            inner,
            data,
            None,
            options,
            lambda engine: _features_of(engine, data),
            lambda engine, few: kernels_of(engine, few, None),
        )


def _features_of(engine: KernelEngine, data: BatchList) -> "TangentFeatures":
    """Features of a prepared computation, checked on some examples."""
    parameters = engine.recorder.ownership.parameters
    dense = replace(engine, groups=dense_groups(engine.alone.uses, parameters))
    plan = dense.plan(len(data), len(data), True, 0)
    if plan.block < len(data):
        count = len(data) * engine.outputs * sum(p.numel() for p in parameters.values())
        raise MemoryLimitError(
            f"memory: expected features of all examples to fit, but {count:,} numbers do not; pass "
            "fewer examples or layers, or a larger memory_limit; tangent_kernels needs none of them"
        )
    (block,) = data.blocks(plan.block, plan.batch_size)
    collected = dense.collect(block, plan)
    found: dict[str, Tensor] = {}
    for group, factors in zip(dense.groups, collected.factors, strict=True):
        assert isinstance(factors, DenseFactors)
        found[group.parameter] = factors.features()
    if engine.one_by_one is None:
        check_features(engine, data, found, collected.outputs)
    owned = engine.recorder.ownership.layers
    return TangentFeatures(
        {layer: torch.cat([found[n] for n in owned[layer]], 2) for layer in engine.layers}
    )


def forward_kernel(
    model: nn.Module,
    inputs: Any,
    layer: str,
    *,
    normalize: bool = True,
    readout: str | Readout | None = None,
) -> Float[Tensor, "n n"]:
    r"""Inner products of what a linear layer receives.

    .. math:: \mathrm{Fwd}_l(x, x') = \frac{a_{l-1}(x) \cdot a_{l-1}(x')}{N_{l-1}}

    Args:
        model: Any module, in evaluation mode.
        inputs: Inputs, as for :func:`tangent_kernels`.
        layer: A layer with one matrix, applied once to one vector per example.
        normalize: Whether to divide by the number of inputs of the layer.
        readout: See :func:`tangent_kernels`.

    Raises:
        ShapeError: If the layer has no such matrix.

    Example:
        >>> model = torch.nn.Linear(2, 1, bias=False).double()
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        >>> forward_kernel(model, x, "").tolist()
        [[0.5, 0.5], [0.5, 1.0]]

    References:
        [lou2022], Eq. (9). Differs from paper: each kernel is divided by the width of its own side,
        not both by the common one.
    """
    factors = _factors(model, inputs, layer, readout)
    assert factors.inputs is not None
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
    r"""Inner products of the gradients of the outputs with respect to what a linear layer gives.

    .. math:: \mathrm{Bwd}_l[(x, i), (x', j)] =
              \frac{\delta_l^i(x) \cdot \delta_l^j(x')}{N_l}

    Args:
        model: Any module, in evaluation mode.
        inputs: Inputs, as for :func:`tangent_kernels`.
        layer: A layer with one matrix, applied once to one vector per example.
        normalize: Whether to divide by the number of outputs of the layer.
        readout: See :func:`tangent_kernels`.

    Raises:
        ShapeError: If the layer has no such matrix.

    Example:
        >>> model = torch.nn.Linear(2, 2, bias=False).double()
        >>> x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        >>> backward_kernel(model, x, "", normalize=False).tolist()
        [[[[1.0, 0.0]], [[0.0, 1.0]]]]

    References:
        [lou2022], Eq. (9). Differs from paper: each kernel is divided by the width of its own side,
        not both by the common one.
    """
    factors = _factors(model, inputs, layer, readout)
    assert factors.output_grads is not None
    n, c, width, _ = factors.output_grads.shape
    flat = factors.output_grads.reshape(n * c, width)
    return (flat @ flat.T / (width if normalize else 1)).view(n, c, n, c)


def traced_backward_kernel(
    model: nn.Module, inputs: Any, layer: str, *, readout: str | Readout | None = None
) -> Float[Tensor, "n n"]:
    """The mean of a backward kernel over pairs of equal outputs, without the other pairs.

    Of a thousand outputs these are a thousandth, in time and in memory.
    """
    factors = _factors(model, inputs, layer, readout)
    assert factors.output_grads is not None
    flat = factors.output_grads.flatten(1)
    return flat @ flat.T / flat.shape[1]


def _factors(
    model: nn.Module, inputs: Any, layer: str, readout: str | Readout | None
) -> OuterFactors:
    inner = unwrap(model)
    place = model_device(inner)
    with untouched(inner), exact_arithmetic(place):
        data = BatchList.of(inputs, None, None, place)
        options = EngineOptions(layers=layer, readout=readout, check=False)
        engine = prepare(inner, data, options)
        plan = engine.plan(len(data), len(data), True, 1)
        (block,) = data.blocks(len(data), plan.batch_size)
        collected = engine.collect(block, plan)
    found = [part for part in collected.factors if isinstance(part, OuterFactors)]
    if len(found) != 1 or found[0].output_grads is None or found[0].output_grads.shape[3] != 1:
        raise ShapeError(
            f"layer {layer!r}: expected one matrix applied once to one vector per example, got "
            f"{len(found)} matrices or several positions; use tangent_kernels for other layers"
        )
    return found[0]
