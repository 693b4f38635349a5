"""Plans a computation before it allocates memory: parameter groups, routes, tiles, bytes.

Uses of parameters are grouped so that the kernel of each group is one contraction. There are n
examples, c outputs, T positions, C rows and D columns, inputs a (T x D) and output gradients b^i
(T x C). Every route computes ``K[xi, yj] = sum_ts (a_t . a'_s) (b^i_t . b'^j_s)``:

==========  ============================  =========================================================
route       formula                       method of ``contract.Contraction``
==========  ============================  =========================================================
hadamard    ``(A A'^T) * (B B'^T)``       ``_hadamard``: the case T = 1
positions   ``G = A A'^T``,               ``_positions``: ``_through_gram`` or, for one output or a
            ``<B^i G, B'^j>``             trace, ``_weighted_by_gram``
gradients   ``J = B^T A``, ``J J'^T``     ``_formed_gradients``: some entries of J at a time, at the
                                          contraction; ``_stored_gradients`` where J is smaller than
                                          its factors and kept instead of them
==========  ============================  =========================================================

The route of a group is chosen here, for one example of the first batch; for longer sequences
``hadamard`` may become ``positions`` later. The cost model counts multiply-adds and moved bytes,
because on every machine some routes are limited by one and some by the other.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from warnings import warn

import torch
from torch import Tensor

from theodolite.checks import require_count, require_kind, size_text
from theodolite.engine.batches import spans
from theodolite.engine.calls import Dense, Lookup, Outer, Structure
from theodolite.engine.check import Check
from theodolite.engine.factors import Route
from theodolite.engine.layers import Layers, Ownership, Parameters
from theodolite.engine.readouts import Mode, Outputs, Readout
from theodolite.engine.recorder import Use
from theodolite.engine.runs import ForwardRun
from theodolite.engine.state import available_bytes
from theodolite.errors import MemoryLimitError

Kind = Literal["outer", "lookup", "mixed", "dense"]


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters whose gradients are contracted together.

    A parameter that is used as several tensors, such as its transpose or its chunks, is dense.
    """

    parameter: str  # name of the matrix, table or other tensor
    kind: Kind  # how its gradient is kept
    uses: tuple[int, ...]  # indices of its uses in the list of all uses
    bias: str | None = None  # name of the bias that is contracted with it, or None
    # Whether autograd must convert gradients of the used tensors into those of the parameter. False
    # if all uses have one tensor that is the parameter, or some of its entries times a number.
    needs_pull_back: bool = False

    @property
    def parameters(self) -> tuple[str, ...]:
        """All parameters of the group."""
        return (self.parameter,) if self.bias is None else (self.parameter, self.bias)


def group_parameters(uses: list[Use], ownership: Ownership) -> list[ParameterGroup]:
    """Groups in order of first use."""
    found = _uses_by_parameter(uses)
    groups = {name: _group(name, tuple(indices), uses) for name, indices in found.items()}
    return _merge_biases(groups, uses, ownership)


def dense_groups(uses: list[Use], parameters: Mapping[str, Tensor]) -> list[ParameterGroup]:
    """Every parameter as a separate group with stored gradients; in order of first use."""
    found = _uses_by_parameter(uses)
    names = dict.fromkeys([*found, *parameters])
    return [
        ParameterGroup(name, "dense", tuple(found.get(name, ())), needs_pull_back=True)
        for name in names
    ]


def _uses_by_parameter(uses: list[Use]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for index, use in enumerate(uses):
        for root in use.origin.roots:
            found[root].append(index)
    return found


def _group(name: str, indices: tuple[int, ...], uses: list[Use]) -> ParameterGroup:
    chosen = [uses[index] for index in indices]
    same = len({id(use.origin.tensor) for use in chosen}) == 1
    if not same or chosen[0].origin.scale is None:
        return ParameterGroup(name, "dense", indices, needs_pull_back=True)
    return ParameterGroup(name, _group_kind(chosen), indices)


def _group_kind(uses: list[Use]) -> Kind:
    structures = [use.structure for use in uses]
    outer = [structure for structure in structures if isinstance(structure, Outer)]
    if (
        len(outer) == len(structures)
        and len({(structure.rows, structure.transposed) for structure in outer}) == 1
    ):
        return "outer"
    if all(isinstance(structure, Lookup) for structure in structures):
        return "lookup"
    plain = all(not structure.transposed and structure.geometry is None for structure in outer)
    tables = [structure for structure in structures if isinstance(structure, Lookup)]
    return "mixed" if outer and plain and len(outer) + len(tables) == len(structures) else "dense"


def _merge_biases(
    groups: dict[str, ParameterGroup], uses: list[Use], ownership: Ownership
) -> list[ParameterGroup]:
    """Join biases with the matrices of the same calls, if every layer owns both or neither."""
    by_calls = {
        _calls(group, uses): name for name, group in groups.items() if group.kind == "outer"
    }
    owners: dict[str, list[str]] = defaultdict(list)
    for layer, names in ownership.layers.items():
        for name in dict.fromkeys(names):
            owners[name].append(layer)
    merged = dict(groups)
    for name, group in groups.items():
        if not _is_bias(group, uses):
            continue
        matrix = by_calls.get(_calls(group, uses))
        if matrix is None or merged[matrix].bias or owners[matrix] != owners[name]:
            continue
        base = merged[matrix]
        merged[matrix] = ParameterGroup(matrix, "outer", base.uses, name)
        del merged[name]
    return list(merged.values())


def _calls(group: ParameterGroup, uses: list[Use]) -> tuple[int, ...]:
    return tuple(uses[index].call_number for index in group.uses)


def _is_bias(group: ParameterGroup, uses: list[Use]) -> bool:
    if group.kind != "dense" or group.needs_pull_back:
        return False
    chosen = [uses[index] for index in group.uses]
    return all(
        isinstance(use.structure, Dense) and use.structure.is_bias and use.origin.scale == 1.0
        for use in chosen
    )


# Multiply-adds in the time of moving one byte, in float32: 51 TFLOP/s and 4 TB/s on a large GPU,
# 100 GFLOP/s and 15 GB/s on two CPU cores.
_PRODUCTS_PER_BYTE = 6.0
_GRAM_MOVES = 2  # how often the numbers of a Gram matrix are read or written
# A product with fewer columns takes as long as one with this many.
_NARROW = 32


@dataclass(frozen=True)
class ContractionSizes:
    """Sizes of one contraction.

    Args:
        left: Examples on the first side.
        right: Examples on the second side.
        separate_outputs: Outputs that stay separate on each side: c for the full kernel, else 1.
        rows: Rows C of the matrix, times the merged outputs.
        columns: Columns D.
        positions: Positions T.
        symmetric: Whether both sides are the same, so that half of the products suffice.
        itemsize: Bytes per number.
    """

    left: int
    right: int
    separate_outputs: int
    rows: int
    columns: int
    positions: int
    symmetric: bool = True
    itemsize: int = 4

    @property
    def pair_count(self) -> float:
        """Number of contracted pairs of examples."""
        return self.left * self.right * (0.5 if self.symmetric else 1.0)


def _time(products: float, numbers: float | int, itemsize: int) -> float:
    """Predicted time in multiply-adds."""
    return products + _PRODUCTS_PER_BYTE * numbers * itemsize


def contraction_costs(sizes: ContractionSizes) -> dict[Route, float]:
    """Predicted time of every possible route, in multiply-adds."""
    p = sizes
    c, T, C, D = p.separate_outputs, p.positions, p.rows, p.columns
    examples = p.left if p.symmetric else p.left + p.right
    if T == 1:
        # n^2 D + (n c)^2 C, then a Hadamard product: two factors are read, one result is written
        return {
            "hadamard": _time(p.pair_count * (D + c * c * C), 3 * p.pair_count * c * c, p.itemsize)
        }
    # G = A A'^T, then B^i G and <B^i G, B'^j>, or <B, B'> at all positions and its sum with G
    if c == 1:
        products, numbers = T * T * C, 3 * T * T
    else:
        products, numbers = c * T * C * (T + max(c, _NARROW)), 2 * c * C * T
    position_products = p.pair_count * (T * T * D + products)
    position_numbers = p.pair_count * (numbers + _GRAM_MOVES * T * T)
    # Gradients of all examples are written and read once; then their Gram matrix.
    gradient_products = examples * c * T * C * D + p.pair_count * c * c * C * D
    gradient_numbers = examples * (2 * c * C * D + 3 * T * D)
    return {
        "positions": _time(position_products, position_numbers, p.itemsize),
        "gradients": _time(gradient_products, gradient_numbers, p.itemsize),
    }


def choose_route(sizes: ContractionSizes) -> Route:
    """The route with the lowest predicted time."""
    predicted = contraction_costs(sizes)
    return min(predicted, key=lambda route: predicted[route])


_TILE_BYTES = {"cpu": 2**25, "cuda": 2**31}
_BUSY_EXAMPLES = 16  # examples of a pass that keep a GPU busy
_PASS_BYTES = {"cpu": 2**28, "cuda": 9 * 2**29}
# A plan of at most _SMALL_PLAN bytes is the same for every limit from _ASSUMED_FREE bytes on. So it
# does not ask for the free memory, which takes long to find out.
_SMALL_PLAN, _ASSUMED_FREE = 2**27, 2**30
_PASSES = 2  # smallest number of passes of a block of examples, if memory is short
_MANY_TIMES = 10  # passes of each example from which a computation warns of its time


@dataclass(frozen=True)
class EngineOptions:
    """The user's options; see :func:`theodolite.engine.kernels.tangent_kernels`."""

    layers: Layers = "*"
    outputs: Outputs = "full"  # which outputs, see resolve_outputs
    readout: str | Readout | None = None  # function of the model's output that returns (n, c)
    params: Parameters = None  # the trainable parameters to include
    dtype: torch.dtype | None = None  # dtype of factors and kernels; None uses that of the outputs
    memory_limit: int | None = None  # limit in bytes; None for nine tenths of the free memory
    batch_size: int | None = None  # examples per forward pass; None to choose
    check: Check = True  # whether to compare with plain autograd: some examples, none, or every one

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            require_count(1, batch_size=self.batch_size)
        require_kind((torch.dtype, type(None)), dtype=self.dtype)


@dataclass(frozen=True)
class GroupPlan:
    """The plan of one group."""

    group: ParameterGroup
    route: Route  # how its kernel is contracted, see the table above
    numbers: int  # numbers that are kept per example
    cost: float  # predicted time of the contraction, in multiply-adds
    # Whether output gradients become gradients after every backward pass.
    stores_gradients: bool = False


@dataclass(frozen=True)
class Plan:
    """Sizes of one computation."""

    group_plans: list[GroupPlan]
    use_count: int  # uses of parameters in one forward pass
    batch_size: int  # examples per forward pass
    block_size: int  # examples whose factors are kept at a time
    tile_bytes: int  # size of intermediate results
    predicted_bytes: int  # predicted peak of memory, without the model
    spare_bytes: int  # bytes between this peak and the limit


@dataclass(frozen=True)
class KernelSizes:
    """Sizes of the requested kernels."""

    left: int
    right: int
    output_count: int
    mode: Mode
    symmetric: bool
    dtype: torch.dtype
    device: torch.device
    kernel_count: int  # kernels that exist at a time
    held_bytes: int = 0  # of other tensors that stay allocated

    @property
    def kernel_bytes(self) -> int:
        """Bytes of one kernel."""
        shape = kernel_shape(self.mode, self.left, self.right, self.output_count)
        return int(torch.Size(shape).numel()) * self.dtype.itemsize


def kernel_shape(mode: Mode, left: int, right: int, output_count: int) -> tuple[int, ...]:
    """Shape of a kernel between two sets of examples."""
    return (left, output_count, right, output_count) if mode == "full" else (left, right)


def make_plan(
    groups: list[ParameterGroup],
    single_run: ForwardRun,
    ownership: Ownership,
    sizes: KernelSizes,
    options: EngineOptions,
) -> Plan:
    """Choose routes and sizes.

    Raises:
        MemoryLimitError: If single examples do not fit.
    """
    group_plans = [_group_plan(group, single_run, ownership, sizes) for group in groups]
    # Of one example: its factors, and its graph with gradients of about the same size.
    factor_bytes = sum(plan.numbers for plan in group_plans) * sizes.dtype.itemsize
    graph_bytes = 2 * single_run.result_bytes
    # Of the call: kernels, parameters, and the largest intermediate results.
    kernel_bytes = sizes.kernel_count * sizes.kernel_bytes
    parameter_bytes = sum(p.numel() * p.element_size() for p in ownership.parameters.values())
    largest_tile = _TILE_BYTES.get(sizes.device.type, _TILE_BYTES["cpu"])
    kept_examples = sizes.left if sizes.symmetric else sizes.left + sizes.right
    at_most = kernel_bytes + sizes.held_bytes + 2 * (largest_tile + parameter_bytes)
    at_most += kept_examples * (graph_bytes + factor_bytes)
    limit = options.memory_limit
    if limit is None:
        limit = _ASSUMED_FREE if at_most <= _SMALL_PLAN else available_bytes(sizes.device)
    tile_bytes = min(largest_tile, limit // 8)
    fixed_bytes = kernel_bytes + sizes.held_bytes + 2 * tile_bytes
    if options.memory_limit:  # what libraries take
        fixed_bytes += limit // 10
    block_size = max(sizes.left, sizes.right)
    batch_size = pass_size(
        options, block_size, sizes.device, graph_bytes, max(0, limit - fixed_bytes)
    )
    room = limit - fixed_bytes - kept_examples * factor_bytes
    if options.batch_size is None and batch_size * graph_bytes > room:
        # Smaller passes take less time than passes of the same examples again.
        few = (limit - fixed_bytes) // max(1, graph_bytes + 2 * _PASSES * factor_bytes)
        batch_size = min(batch_size, max(1, few, room // max(1, graph_bytes)))
    pass_bytes = batch_size * graph_bytes
    predicted_bytes = fixed_bytes + pass_bytes + kept_examples * factor_bytes
    if predicted_bytes > limit:  # two blocks at a time
        free_bytes = limit - fixed_bytes - pass_bytes
        if factor_bytes:
            block_size = min(block_size, int(free_bytes // (2 * factor_bytes)))
        predicted_bytes = fixed_bytes + pass_bytes + 2 * block_size * factor_bytes
    # At the end the check holds gradients of two parts of a batch, and a graph of the larger one.
    check_bytes = kernel_bytes + 3 * parameter_bytes if options.check else 0
    predicted_bytes = max(predicted_bytes, check_bytes)
    if block_size < 1 or predicted_bytes > limit:
        example_bytes = graph_bytes + 2 * factor_bytes
        raise MemoryLimitError(
            _limit_message(sizes, limit, fixed_bytes, example_bytes, options.batch_size)
        )
    return Plan(
        group_plans,
        len(single_run.uses),
        min(batch_size, block_size),
        block_size,
        tile_bytes,
        predicted_bytes,
        limit - predicted_bytes,
    )


def warn_of_repeats(plans: Sequence[Plan], rows: int, columns: int | None = None) -> None:
    """Warn before a computation that passes every example many times, since memory is short.

    Args:
        plans: plans of all engines, each of which passes all examples.
        rows: number of examples.
        columns: number of examples of the second side; None for a symmetric kernel.
    """
    passed = 0
    for plan in plans:
        blocks = list(spans(rows, plan.block_size))
        if columns is None:  # a block is passed by itself, and again beside every earlier one
            passed += sum((b.stop - b.start) * (k + 1) for k, b in enumerate(blocks))
        else:
            passed += rows + len(blocks) * columns
    times = round(passed / (rows + (columns or 0)))
    if times >= _MANY_TIMES:
        size = min(plan.block_size for plan in plans)
        fits = (
            f"the gradients of {size} of {rows} examples fit into memory at a time"
            if size < rows
            else f"the gradients of all layers fit into memory in {len(plans)} parts only"
        )
        warn(
            f"{fits}, so each example is passed about {times} times; to save time, pass fewer "
            "examples or layers, or a larger memory_limit",
            stacklevel=2,
        )


def pass_size(
    options: EngineOptions, examples: int, device: torch.device, graph_bytes: int, free_bytes: int
) -> int:
    """Number of examples in one pass, from the bytes of the graph of one example."""
    if options.batch_size is not None:
        return min(options.batch_size, examples)
    wanted = _PASS_BYTES.get(device.type, _PASS_BYTES["cpu"])
    if device.type == "cuda":  # launches take as long for few long sequences as for many
        wanted = max(wanted, min(_BUSY_EXAMPLES * graph_bytes, free_bytes // 8))
    size = max(1, min(wanted, free_bytes // 2) // max(1, graph_bytes))
    passes = -(-examples // min(size, examples))
    return -(-examples // passes)  # passes of equal size


def _limit_message(
    sizes: KernelSizes, limit: int, fixed_bytes: int, example_bytes: int, batch_size: int | None
) -> str:
    kernel_bytes = sizes.kernel_count * sizes.kernel_bytes
    results = fixed_bytes - kernel_bytes
    passes = "" if batch_size in (None, 1) else f"a batch_size below {batch_size}, "
    return (
        f"memory: expected to stay below {size_text(limit)}, but {sizes.kernel_count} kernels of "
        f"{kernel_shape(sizes.mode, sizes.left, sizes.right, sizes.output_count)} take "
        f"{size_text(kernel_bytes)}, intermediate results {size_text(results)} and a single "
        f"example {size_text(example_bytes)}; pass fewer examples or layers, "
        f"{passes}outputs='trace', or a larger memory_limit; tangent_alignments needs no kernel at "
        "all"
    )


def _group_plan(
    group: ParameterGroup,
    single_run: ForwardRun,
    ownership: Ownership,
    sizes: KernelSizes,
) -> GroupPlan:
    structures = [single_run.uses[index].structure for index in group.uses]
    c = sizes.output_count
    if group.kind in ("lookup", "mixed"):
        return _table_plan(group, structures, ownership, sizes)
    if group.kind == "dense":
        tensor: Tensor = ownership.parameters[group.parameter]
        if not group.needs_pull_back:
            tensor = single_run.uses[group.uses[0]].origin.tensor
        size = tensor.numel() * (2 if tensor.is_complex() else 1)
        cost = (0.5 if sizes.symmetric else 1.0) * sizes.left * sizes.right * c * c * size
        return GroupPlan(group, "gradients", c * size, cost, stores_gradients=True)
    outer = [structure for structure in structures if isinstance(structure, Outer)]
    contraction = _contraction_sizes(outer, sizes)
    route = choose_route(contraction)
    T, C, D = contraction.positions, outer[0].rows, contraction.columns
    cost = contraction_costs(contraction)[route]
    # Gradients, C D or with a bias C (D + 1) numbers, are kept if they are no larger than output
    # gradients, C T.
    if route == "gradients" and D + (group.bias is not None) <= T:
        return GroupPlan(group, route, c * C * (D + 1), cost, stores_gradients=True)
    numbers = c * C * T + sum(structure.inputs.numel() for structure in outer)
    return GroupPlan(group, route, numbers, cost)


def _table_plan(
    group: ParameterGroup, structures: Sequence[Structure], ownership: Ownership, sizes: KernelSizes
) -> GroupPlan:
    """Lookups, perhaps with products of the same table: factors are kept, not gradients."""
    c = sizes.output_count
    rows, width = ownership.parameters[group.parameter].shape
    # A lookup is a product with one-hot columns: C is the width of a row. Comparing two tokens
    # costs about one multiply-add, so D is one.
    tokens = sum(
        structure.tokens.shape[1] for structure in structures if isinstance(structure, Lookup)
    )
    contraction = ContractionSizes(
        sizes.left, sizes.right, c, width, 1, tokens, symmetric=sizes.symmetric
    )
    numbers, cost = tokens * (c * width + 2), max(contraction_costs(contraction).values())
    outer = [structure for structure in structures if isinstance(structure, Outer)]
    if not outer:
        return GroupPlan(group, "positions", numbers, cost)
    products = _contraction_sizes(outer, sizes)
    route = choose_route(products)
    numbers += c * rows * products.positions + sum(part.inputs.numel() for part in outer)
    cost += contraction_costs(products)[route]
    return GroupPlan(group, route, numbers, cost)


def _contraction_sizes(structures: list[Outer], sizes: KernelSizes) -> ContractionSizes:
    first = structures[0]
    merged = 1 if sizes.mode == "full" else sizes.output_count
    return ContractionSizes(
        left=sizes.left,
        right=sizes.right,
        separate_outputs=sizes.output_count if sizes.mode == "full" else 1,
        rows=first.rows * merged,
        columns=first.columns,
        positions=sum(structure.positions for structure in structures),
        symmetric=sizes.symmetric,
        itemsize=sizes.dtype.itemsize,
    )
