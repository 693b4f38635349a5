"""Exact tangent kernels of every layer in one sweep."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from theodolite.engine._aside import Aside
from theodolite.engine._blocks import KernelBlock, kernel_shape
from theodolite.engine._checked_weights import CheckWeights
from theodolite.engine._collection import Collected
from theodolite.engine._freed_memory import keep_freed_memory
from theodolite.engine._kernel_set import Coverage, TangentKernels
from theodolite.engine._outputs import Outputs
from theodolite.engine._plan import Plan, Settings
from theodolite.engine._products import Precision
from theodolite.engine._progress import Steps, Watch
from theodolite.engine._sweep import Data, Request, Sweep, model_device, prepare
from theodolite.engine.batches import Batch
from theodolite.engine.layers import Layers, Parameters, unwrap
from theodolite.engine.readouts import Readout
from theodolite.engine.state import exact_arithmetic, untouched

__all__ = ["tangent_kernels"]


def tangent_kernels(
    model: nn.Module,
    inputs: Any,
    layers: Layers = "*",
    outputs: Outputs = "full",
    memory_limit: int | None = None,
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
    check: bool = True,
    progress: Watch | None = None,
) -> TangentKernels:
    r"""Tangent kernel of every layer, exact, in one sweep.

    .. math:: K_l[(x, i), (x', j)] =
              \langle \nabla_{\theta_l} f^i(x), \nabla_{\theta_l} f^j(x') \rangle

    No gradient of the size n x c x parameters is formed: inputs and output gradients of every use
    of a parameter are contracted in the cheapest order. The model is left as it was found.

    Args:
        model: Any module, in evaluation mode; wrappers of compilation and data parallelism are
            seen through.
        inputs: Inputs, (inputs, targets), a mapping of keyword arguments, or batches of these.
        layers: Names, patterns or a predicate; ``"*"`` for every layer with parameters of its own.
        outputs: ``"full"`` for (n, c, n, c); ``"trace"`` for the sum over outputs, (n, n);
            ``"diagonal"`` for each output with itself, (c, n, n); an index for one output, (n, n);
            or a loss(outputs, targets) with one value per example, (n, n).
        memory_limit: Bytes; None for nine tenths of what is free.
        other: A second set of inputs, for the kernel between the two: (n, c, m, c) and so on.
        targets: Targets for the loss, where ``inputs`` holds none.
        readout: ``"last"``, ``"mean"``, ``"cls"`` for outputs (n, T, c), or a function of
            (model output, batch).
        params: Which trainable parameters count: a pattern, names, or a predicate.
        batch_fn: Turns an item of ``inputs`` into a :class:`~theodolite.engine.batches.Batch`.
        batch_size: Examples per forward pass; None to choose. The result does not depend on it.
        dtype: Dtype of products and result; None for that of the outputs.
        device: Where the inputs should lie; None for that of the parameters.
        precision: ``"3xtf32"`` for faster float32 products on CUDA.
        check: Compare with plain autograd (one backward pass more).
        progress: Called with the share that is done and what was done, after every block of
            examples and every layer of it.

    Raises:
        CaptureError: If the model mixes examples, hides uses of parameters, or a check fails.
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
        [lou2022], Eq. (1); [canatar2022], Eqs. (5)-(8), where the trace is divided by c.
    """
    keep_freed_memory()
    settings = Settings(memory_limit, batch_size, precision, check=check)
    request = Request(layers, outputs, readout, params, dtype, device, settings)
    inner = unwrap(model)
    place = torch.device(device) if device is not None else model_device(inner)
    with untouched(inner), exact_arithmetic(place):
        data = Data.of(inputs, targets, batch_fn, place)
        second = None if other is None else Data.of(other, None, batch_fn, place)
        sweep = prepare(inner, data, request)
        return kernels_of(sweep, data, second, progress)


def kernels_of(
    sweep: Sweep, data: Data, other: Data | None, progress: Watch | None = None
) -> TangentKernels:
    """Kernels of a prepared sweep."""
    right = len(data) if other is None else len(other)
    plan = sweep.plan(len(data), right, other is None, len(sweep.layers))
    shape = kernel_shape(sweep.subject.choice.mode, len(data), right, sweep.outputs)
    check = CheckWeights(sweep, data, other, Aside(sweep.device)) if sweep.settings.check else None
    kernels = _Kernels(shape, sweep, Steps(progress, _pieces(sweep, plan, data, other)))
    kernels.beside = None if check is None else check.begin
    values = _fill_all(sweep, plan, data, other, kernels)
    if check is not None:
        check.compare(kernels, values, kernels_of)
    return TangentKernels(dict(kernels), coverage_of(sweep, plan), values, plan.predicted_bytes)


class _Kernels(dict[str, Tensor]):
    """Kernels that are allocated when they are first filled, after the passes have let go.

    ``beside`` is called once, when half of them are: a GPU has work for a while by then.
    """

    beside: Callable[[], None] | None = None

    def __init__(self, shape: tuple[int, ...], sweep: Sweep, steps: Steps) -> None:
        super().__init__()
        self._shape, self._sweep, self.steps = shape, sweep, steps

    def __missing__(self, layer: str) -> Tensor:
        if self.beside is not None and 2 * len(self) >= len(self._sweep.layers) - 1:
            begin, self.beside = self.beside, None
            begin()
        self[layer] = torch.empty(self._shape, dtype=self._sweep.dtype, device=self._sweep.device)
        return self[layer]


def _pieces(sweep: Sweep, plan: Plan, data: Data, other: Data | None) -> int:
    """Blocks of examples that are gone through, and layers that are filled between them."""
    rows = -(-len(data) // plan.block)
    if other is not None:
        columns = -(-len(other) // plan.block)
        return rows + rows * columns * (1 + len(sweep.layers))
    above = rows * (rows - 1) // 2
    return rows * (1 + len(sweep.layers)) + above * (1 + len(sweep.layers))


def _fill_all(
    sweep: Sweep,
    plan: Plan,
    data: Data,
    other: Data | None,
    kernels: "_Kernels",
) -> Tensor:
    """Fill the kernels block by block; returns the outputs of the first set."""
    values: list[Tensor] = []
    for rows, batches in sweep.blocks(data, plan):
        left = sweep.collect(batches, plan)
        kernels.steps.done(f"examples {rows.start} to {rows.stop - 1}")
        values.append(left.outputs)
        if other is not None:
            _fill_row(sweep, plan, (left, rows), other, kernels)
        elif len(left.outputs) == len(data):
            _fill_and_release(sweep, plan, left, kernels)
        else:
            _fill_triangle(sweep, plan, (left, rows), data, kernels)
    return torch.cat(values)


def _fill_row(
    sweep: Sweep,
    plan: Plan,
    side: tuple[Collected, slice],
    other: Data,
    kernels: "_Kernels",
) -> None:
    """All blocks between some examples of the first set and the second set."""
    left, rows = side
    for columns, batches in sweep.blocks(other, plan):
        right = sweep.collect(batches, plan)
        kernels.steps.done(f"examples {columns.start} to {columns.stop - 1} of the other set")
        _fill(sweep, plan, (left, right), (rows, columns), kernels)


def _fill_triangle(
    sweep: Sweep,
    plan: Plan,
    side: tuple[Collected, slice],
    data: Data,
    kernels: "_Kernels",
) -> None:
    """Blocks from the diagonal on, and their mirror images."""
    left, rows = side
    _fill(sweep, plan, (left, left), (rows, rows), kernels)
    for columns, batches in sweep.blocks(data, plan):
        if columns.start > rows.start:
            right = sweep.collect(batches, plan)
            kernels.steps.done(f"examples {columns.start} to {columns.stop - 1}")
            _fill(sweep, plan, (left, right), (rows, columns), kernels)
            _mirror_blocks(sweep, (rows, columns), kernels)


def _fill(
    sweep: Sweep,
    plan: Plan,
    pair: tuple[Collected, Collected],
    place: tuple[slice, slice],
    kernels: "_Kernels",
) -> None:
    """Fill one block of every kernel."""
    mode = sweep.subject.choice.mode
    for layer in sweep.layers:
        kernel = kernels[layer]
        sweep.fill(layer, pair, KernelBlock(kernel, mode).part(*place), plan)
        kernels.steps.done(f"layer {layer}")


def _fill_and_release(sweep: Sweep, plan: Plan, collected: Collected, kernels: "_Kernels") -> None:
    """Fill whole kernels and let factors, the larger part of the memory, go on the way."""
    mode = sweep.subject.choice.mode
    waiting = Counter(index for layer in sweep.layers for index in sweep.atoms_of(layer))
    for layer in sweep.layers:
        kernel = kernels[layer]
        sweep.fill(layer, (collected, collected), KernelBlock(kernel, mode), plan)
        kernels.steps.done(f"layer {layer}")
        for index in sweep.atoms_of(layer):
            waiting[index] -= 1
            if waiting[index] == 0:
                collected.factors[index].release()


def _mirror_blocks(sweep: Sweep, place: tuple[slice, slice], kernels: "_Kernels") -> None:
    """Copy a block above the diagonal to its place below."""
    mode = sweep.subject.choice.mode
    rows, columns = place
    for kernel in kernels.values():
        block = KernelBlock(kernel, mode)
        pairs = zip(
            block.part(columns, rows).matrices(), block.part(rows, columns).matrices(), strict=True
        )
        for below, above in pairs:
            below.copy_(above.T)


def coverage_of(sweep: Sweep, plan: Plan) -> dict[str, tuple[Coverage, ...]]:
    """How every parameter of every layer was treated."""
    ownership = sweep.subject.ownership
    found: dict[str, Coverage] = {}
    for entry in plan.atoms:
        uses = [sweep.probe.uses[index] for index in entry.atom.uses]
        for name in entry.atom.parameters:
            found[name] = Coverage(
                name,
                tuple(use.function for use in uses),
                all(use.by_rule for use in uses),
                entry.route or "gradients",
                ownership.shared.get(name, ()),
            )
    return {
        layer: tuple(
            found.get(name, Coverage(name, (), True, "unused", ownership.shared.get(name, ())))
            for name in ownership.layers[layer]
        )
        for layer in sweep.layers
    }
