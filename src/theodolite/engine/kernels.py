"""Exact tangent kernels of every layer in one pass over the data, by one process or several.

:func:`tangent_kernels` reads its arguments, :func:`followed` prepares the engine and has
:func:`kernels_of` fill the kernels block by block and check them; where examples cannot be followed
together, the same with one example at a time.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from theodolite._distributed import Processes
from theodolite.checks import size_in_bytes
from theodolite.engine.batches import Batch
from theodolite.engine.calls import DisagreementError, NotFollowedError
from theodolite.engine.check import (
    Asked,
    Check,
    Checked,
    ExampleCheck,
    can_run_alone,
    compare_kernels,
    require_alone,
    require_unchanged,
    require_check,
)
from theodolite.engine.contract import KernelBlock
from theodolite.engine.inputs import BatchList, require_device, require_model
from theodolite.engine.kernel_engine import Collected, KernelEngine, prepare
from theodolite.engine.layers import Layers, Parameters, layers_text, unwrap
from theodolite.engine.plan import EngineOptions, Plan
from theodolite.engine.readouts import Outputs, Readout, kernel_shape
from theodolite.engine.runs import Progress, ProgressCounter
from theodolite.engine.state import (
    exact_arithmetic,
    model_device,
    raise_trim_threshold,
    untouched,
)
from theodolite.errors import CaptureError, TheodoliteError, UnknownNameError

Answer = TypeVar("Answer")


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
        checked: How examples were measured, and what was asked about it.
    """

    kernels: dict[str, Tensor]
    coverage: dict[str, tuple[Coverage, ...]]
    outputs: Tensor = field(repr=False)
    predicted_bytes: int = 0
    checked: Checked = field(default_factory=Checked, repr=False)

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
    def measured(self) -> str:
        """How examples were measured, in words."""
        return self.checked.measured

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
        check: Ask whether each example's kernel is its own (:mod:`theodolite.engine.check`), for
            one to one and a half plain passes in each batch that is asked. True asks the first
            batch, some at random and those with suspect calls, and runs one example of every batch
            alone; it can miss a few examples that their company changes and that are not drawn.
            ``"every"`` asks all batches and runs every example alone. False asks nothing.
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

        def compute(engine: KernelEngine) -> TangentKernels:
            return kernels_of(engine, data, second, progress)

        return followed(inner, data, options, compute, second)


def followed(
    model: nn.Module,
    data: BatchList,
    options: EngineOptions,
    compute: Callable[[KernelEngine], Answer],
    other: BatchList | None = None,
) -> Answer:
    """What is computed with all examples together, or one by one where that cannot be followed.

    Inputs that the model refuses are cast to what it takes, or explained: only then, since trying
    them before would cost a pass in every call.

    Args:
        model: The model.
        data: The examples.
        options: The user's choices.
        compute: From the prepared engine to its result.
        other: Examples of the second side, if there is one.

    Raises:
        CaptureError: If an example's outputs depend on the others, or on chance, or a rule is wrong
            for a single example.
    """
    sides = [data] if other is None else [data, other]
    check, failed, tolerance = ExampleCheck(options.check), [], 0.0
    try:
        engine = prepare(model, data, options)
        check = engine.recorder.check
        try:
            return compute(engine)
        finally:
            failed = [] if engine.recorder.batch is None else [engine.recorder.batch]
            tolerance = engine.recorder.tolerance
    except Exception as error:
        refused = not isinstance(error, TheodoliteError)
        if refused and any(side.fit(model) for side in sides):
            return followed(model, data, options, compute, other)
        if not can_run_alone(error):
            raise
        reason = error
    engine = prepare(model, data, options, check.summary(reason))
    batches = [*failed, *(batch for side in sides for batch in side.batches)]
    require_alone(engine.recorder.model, engine.recorder.model_outputs, batches)
    require_unchanged(engine.recorder.values, reason, tolerance)
    if isinstance(reason, DisagreementError):
        for place in (0, len(data) - 1):
            _require_sound_rules(model, BatchList(data.rows(slice(place, place + 1))), options)
    try:
        return compute(engine)
    except RuntimeError as error:
        if isinstance(error, TheodoliteError) or not isinstance(reason, NotFollowedError):
            raise
        raise reason from error  # plain autograd refuses too


def _require_sound_rules(model: nn.Module, one: BatchList, options: EngineOptions) -> None:
    """A single example agrees with autograd: otherwise the rules are to blame, not the places."""
    engine = prepare(model, one, replace(options, outputs="full", check="every"))
    try:
        kernels_of(engine, one, None)
    except DisagreementError as error:
        functions = sorted({use.function for use in engine.alone.uses})
        raise CaptureError(f"{error}; {engine.recorder.wrong_rule(functions)}") from error


def kernels_of(
    engine: KernelEngine,
    data: BatchList,
    other: BatchList | None,
    progress: Progress | None = None,
) -> TangentKernels:
    """Kernels of all layers: of some at a time where memory is short, or block by block."""
    right_size = len(data) if other is None else len(other)
    parts = engine.parts(len(data), right_size, other is None)
    pieces = sum(_pieces(part, plan, data, other) for part, plan in parts)
    counter = ProgressCounter(progress, pieces)
    shape = kernel_shape(engine.mode, len(data), right_size, engine.outputs)
    kernels: dict[str, Tensor] = {}
    for part, plan in parts:
        store = _KernelStore(part, plan, shape, counter)
        values, asked = _fill(store, part, plan, counter, data, other)
        kernels |= store.kernels
    compare_kernels(engine.recorder, kernels, asked)
    coverage = {name: own for part, plan in parts for name, own in coverage_of(part, plan).items()}
    predicted = max(plan.predicted_bytes for _, plan in parts)
    return TangentKernels(kernels, coverage, values, predicted, engine.checked)


def _fill(
    store: "_KernelStore",
    engine: KernelEngine,
    plan: Plan,
    counter: ProgressCounter,
    data: BatchList,
    other: BatchList | None,
) -> tuple[Tensor, tuple[list[Asked], list[Asked]]]:
    """Fill the kernels of an engine's layers, block of examples by block.

    Returns:
        The outputs, (n, c), and the batches of rows and columns that were asked.
    """
    outputs: list[Tensor] = []
    rows: list[Asked] = []
    columns_asked: list[Asked] = []
    for block in data.blocks(plan.block, plan.batch_size):
        left = engine.collect(block, plan)
        counter.done(f"examples {block.rows.start} to {block.rows.stop - 1}")
        outputs.append(left.outputs)
        rows += left.asked
        if other is None and len(left.outputs) == len(data):
            store.fill_and_release(left)
            break
        if other is None:
            store.fill(left, left)
        for columns in (data if other is None else other).blocks(plan.block, plan.batch_size):
            if other is None and columns.rows.start <= block.rows.start:
                continue
            right = engine.collect(columns, plan)
            columns_asked += right.asked
            suffix = "" if other is None else " of the other set"
            counter.done(f"examples {columns.rows.start} to {columns.rows.stop - 1}{suffix}")
            store.fill(left, right)
            if other is None:
                store.mirror(left.rows, right.rows)
    return torch.cat(outputs), (rows, rows if other is None else columns_asked)


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
    memory.
    """

    def __init__(
        self,
        engine: KernelEngine,
        plan: Plan,
        shape: tuple[int, ...],
        counter: ProgressCounter,
    ) -> None:
        self._engine, self._plan, self._shape = engine, plan, shape
        self._counter = counter
        self.kernels: dict[str, Tensor] = {}

    def _block(self, layer: str) -> KernelBlock:
        """The kernel of a layer, allocated if it is not there yet."""
        engine = self._engine
        if layer not in self.kernels:
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
                    collected.factors[index] = None

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
                "one by one" if engine.one_by_one is not None else entry.route,
                ownership.shared.get(name, ()),
            )
    return {
        layer: tuple(
            found.get(name, Coverage(name, (), True, "unused", ownership.shared.get(name, ())))
            for name in ownership.layers[layer]
        )
        for layer in engine.layers
    }


def shared_tangent_kernels(
    model: nn.Module,
    batch: Batch,
    layers: Layers,
    owners: Mapping[str, int],
    processes: Processes,
    **options: Any,
) -> TangentKernels:
    """Tangent kernels of all examples, each layer's at the process that owns it.

    Examples are dealt out in consecutive parts. A process computes the kernel of its part with
    itself and with the parts of the processes that follow, half of the way around: every pair of
    parts once. Tiles go to the owners of the layers, which put them together and mirror them.

    Args:
        model: the same everywhere.
        batch: all examples, the same everywhere.
        layers: as for :func:`tangent_kernels`.
        owners: layer -> process that gets its kernel; the same everywhere.
        processes: those that take part.
        options: of :func:`tangent_kernels`.

    Returns:
        The kernels of this process's layers; coverage is that of all layers, outputs are those of
        its part of the examples.
    """
    if processes.alone:
        return tangent_kernels(model, batch, layers, **options)
    ring = _Ring(processes, len(batch))
    own = other = None
    with processes.together():
        if ring.own:
            own = tangent_kernels(model, batch.take(ring.own), layers, **options)
        if ring.own and ring.following:
            second = batch.take(ring.following)
            options |= {"check": False}  # the same passes were compared with autograd before
            other = tangent_kernels(model, batch.take(ring.own), layers, other=second, **options)
    known = processes.gather(None if own is None else (list(own), own.coverage))
    names, coverage = next(entry for entry in known if entry is not None)
    empty = next(model.parameters()).new_empty(0)
    found: dict[str, Tensor] = {}
    for name in names:
        diagonal = processes.collect(empty if own is None else own[name], owners[name])
        following = processes.collect(empty if other is None else other[name], owners[name])
        if owners[name] == processes.rank:
            found[name] = ring.assemble(diagonal, following)
    outputs = empty if own is None else own.outputs
    return TangentKernels(found, coverage, outputs, 0 if own is None else own.predicted_bytes)


@dataclass(frozen=True)
class _Ring:
    """Which pairs of examples each process sees."""

    processes: Processes
    count: int

    @property
    def own(self) -> list[int]:
        return self._part(self.processes.rank)

    @property
    def following(self) -> list[int]:
        return self._following(self.processes.rank)

    def _part(self, rank: int) -> list[int]:
        part = self.processes.part(self.count, rank)
        return list(range(part.start, part.stop))

    def _following(self, rank: int) -> list[int]:
        """Examples of the next half of the ring; of two opposite parts one looks at the other."""
        size = self.processes.size
        last = size // 2 if size % 2 or rank < size // 2 else size // 2 - 1
        return [index for step in range(1, last + 1) for index in self._part((rank + step) % size)]

    def assemble(self, diagonal: list[Tensor], following: list[Tensor]) -> Tensor:
        """One kernel from everybody's tiles."""
        tiles = [*self._placed(diagonal, following)]
        shape = list(tiles[0][2].shape)
        axis = len(shape) // 2  # (n, n) or (n, c, n, c)
        shape[0] = shape[axis] = self.count
        kernel = tiles[0][2].new_empty(shape)
        for rows, columns, tile in tiles:
            span, where = (rows[0], len(rows)), torch.tensor(columns, device=tile.device)
            kernel.narrow(0, *span).index_copy_(axis, where, tile)
            mirrored = tile.movedim(tuple(range(axis)), tuple(range(axis, 2 * axis)))
            kernel.narrow(axis, *span).index_copy_(0, where, mirrored)
        return kernel

    def _placed(
        self, diagonal: list[Tensor], following: list[Tensor]
    ) -> Iterator[tuple[list[int], list[int], Tensor]]:
        for rank in range(self.processes.size):
            rows, columns = self._part(rank), self._following(rank)
            if rows:
                yield rows, rows, diagonal[rank]
            if rows and columns:
                yield rows, columns, following[rank]
