"""Before anything large is allocated: routes, tiles and the memory that they need."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from theodolite.engine._atoms import Atom
from theodolite.engine._blocks import kernel_shape
from theodolite.engine._outputs import Mode
from theodolite.engine._products import Precision
from theodolite.engine._routes import Problem, Route, choose_route, costs
from theodolite.engine._runs import Run
from theodolite.engine.forms import Form, Lookup, Outer
from theodolite.engine.layers import Ownership
from theodolite.errors import MemoryLimitError

__all__ = ["AtomPlan", "Plan", "Settings", "Task", "available_bytes", "make_plan"]

_GIB = 2**30
_TILE_BYTES = {"cpu": 2**25, "cuda": 2**31}
_RUN_BYTES = {"cpu": 2**28, "cuda": 9 * 2**29}


@dataclass(frozen=True)
class Settings:
    """How to compute, as far as the user decides it.

    Args:
        memory_limit: Bytes that may be used; None for nine tenths of what is free.
        batch_size: Examples per forward pass; None to choose.
        precision: Precision of products on CUDA.
        tile_bytes: Size of intermediate results; None to choose.
        route: Force one route, for tests and benchmarks.
        parts: Force the number of parts of a symmetric kernel, likewise.
        joint: Force the number of outputs that go through one pass, likewise.
        check: Whether to compare with plain autograd.
    """

    memory_limit: int | None = None
    batch_size: int | None = None
    precision: Precision = "float32"
    tile_bytes: int | None = None
    route: Route | None = None
    parts: int | None = None
    joint: int | None = None
    check: bool = True


@dataclass(frozen=True)
class AtomPlan:
    """How one atom is treated.

    Args:
        atom: The atom.
        route: Order of contraction; None where gradients are kept as they are.
        eager: Whether gradients are formed after every backward pass.
        numbers: Numbers that are kept per example.
        cost: Predicted time of the contraction, in multiply-adds.
    """

    atom: Atom
    route: Route | None
    eager: bool
    numbers: int
    cost: float


@dataclass(frozen=True)
class Plan:
    """Sizes of a run.

    Args:
        atoms: What is kept of every atom.
        uses: Number of uses of parameters in one forward pass.
        run: Examples per forward pass.
        block: Examples whose factors are kept at a time.
        tile_bytes: Size of intermediate results.
        predicted_bytes: Predicted peak, beside the model itself.
        joint: Outputs that go through one pass; None to choose.
    """

    atoms: list[AtomPlan]
    uses: int
    run: int
    block: int
    tile_bytes: int
    predicted_bytes: int
    joint: int | None = None


@dataclass(frozen=True)
class Task:
    """What is to be computed."""

    left: int
    right: int
    outputs: int
    mode: Mode
    symmetric: bool
    dtype: torch.dtype
    device: torch.device
    kernels: int  # kernels that exist at a time

    @property
    def kernel_bytes(self) -> int:
        """Bytes of one kernel."""
        shape = kernel_shape(self.mode, self.left, self.right, self.outputs)
        return int(torch.Size(shape).numel()) * self.dtype.itemsize


def make_plan(
    atoms: list[Atom], probe: Run, ownership: Ownership, task: Task, settings: Settings
) -> Plan:
    """Choose routes and sizes.

    Raises:
        MemoryLimitError: If even single examples do not fit.
    """
    plans = [_atom_plan(atom, probe, ownership, task, settings) for atom in atoms]
    kept = sum(plan.numbers for plan in plans) * task.dtype.itemsize
    limit = settings.memory_limit or available_bytes(task.device)
    largest = _TILE_BYTES.get(task.device.type, _TILE_BYTES["cpu"])
    tile = settings.tile_bytes or min(largest, limit // 8)
    graph = 2 * probe.result_bytes  # activations, and gradients of about the same size
    fixed = task.kernels * task.kernel_bytes + 2 * tile
    examples = task.left if task.symmetric else task.left + task.right
    run = _run_size(settings, task, graph, max(0, limit - fixed))
    block = max(task.left, task.right)
    needed = fixed + run * graph + examples * kept
    if needed > limit:
        free = limit - fixed - run * graph
        block = min(block, int(free // (2 * kept))) if kept else block
        needed = fixed + run * graph + 2 * block * kept
    if block < 1 or needed > limit:
        raise MemoryLimitError(_refusal(task, limit, fixed, graph + 2 * kept))
    return Plan(plans, len(probe.uses), min(run, block), block, tile, needed, settings.joint)


def _run_size(settings: Settings, task: Task, graph: int, free: int) -> int:
    examples = max(task.left, task.right)
    if settings.batch_size is not None:
        return min(settings.batch_size, examples)
    wanted = _RUN_BYTES.get(task.device.type, _RUN_BYTES["cpu"])
    size = max(1, min(wanted, free // 2) // max(1, graph))
    runs = -(-examples // min(size, examples))
    return -(-examples // runs)  # runs of equal size


def _refusal(task: Task, limit: int, fixed: int, per_example: int) -> str:
    kernels = task.kernels * task.kernel_bytes
    return (
        f"memory: expected to stay below {limit / _GIB:.2f} GiB, but {task.kernels} kernels of "
        f"{kernel_shape(task.mode, task.left, task.right, task.outputs)} take "
        f"{kernels / _GIB:.2f} GiB, intermediate results {(fixed - kernels) / _GIB:.2f} GiB and a "
        f"single example {per_example / _GIB:.3f} GiB; pass fewer examples or layers, "
        "outputs='trace', or a larger memory_limit; tangent_alignments needs no kernel at all"
    )


def _current(known: dict[str, Any], name: str) -> int:
    return int(known.get(name, {}).get("all", {}).get("current", 0))


def available_bytes(device: torch.device) -> int:
    """Memory that may be used where the user sets no limit."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        known = torch.cuda.memory_stats_as_nested_dict(device)  # the flat one takes long to make
        cached = _current(known, "reserved_bytes") - _current(known, "allocated_bytes")
        return int(0.9 * (free + cached))
    try:
        return int(0.9 * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):  # not on this system
        return 8 * _GIB


def _atom_plan(
    atom: Atom, probe: Run, ownership: Ownership, task: Task, settings: Settings
) -> AtomPlan:
    forms = [probe.uses[index].form for index in atom.uses]
    c = task.outputs
    if atom.kind in ("lookup", "mixed"):
        return _table_plan(atom, forms, ownership, task)
    if atom.kind == "dense":
        tensor = probe.uses[atom.uses[0]].origin.tensor
        root = ownership.parameters[atom.parameter]
        size = (tensor if atom.direct else root).numel()
        return AtomPlan(atom, None, False, c * size, 0.5 * task.left * task.right * c * c * size)
    outer = [form for form in forms if isinstance(form, Outer)]
    problem = _problem(outer, task)
    route = settings.route or choose_route(problem)
    T, C, D = problem.positions, outer[0].rows, problem.columns
    if route == "hadamard" and T > 1:
        route = "positions"
    eager = route == "gradients" and D + (atom.shift is not None) <= T
    inputs = sum(form.inputs.numel() for form in outer)
    numbers = c * C * (D + 1) if eager else c * C * T + inputs
    return AtomPlan(atom, route, eager, numbers, costs(problem).get(route, 0.0))


def _table_plan(atom: Atom, forms: Sequence[Form], ownership: Ownership, task: Task) -> AtomPlan:
    """Lookups, with or without products of the same table: signals are kept, never gradients."""
    c = task.outputs
    rows, width = ownership.parameters[atom.parameter].shape
    tokens = sum(form.tokens.shape[1] for form in forms if isinstance(form, Lookup))
    problem = Problem(task.left, task.right, c, width, 1, tokens, symmetric=task.symmetric)
    numbers, cost = tokens * (c * width + 2), max(costs(problem).values())
    outer = [form for form in forms if isinstance(form, Outer)]
    route: Route = "positions"
    if outer:
        products = _problem(outer, task)
        route = choose_route(products)
        numbers += c * rows * products.positions + sum(form.inputs.numel() for form in outer)
        cost += costs(products)[route]
    return AtomPlan(atom, route, False, numbers, cost)


def _problem(forms: list[Outer], task: Task) -> Problem:
    first = forms[0]
    pixels = 0
    if len(forms) == 1 and first.geometry is not None and first.geometry.keeps_size:
        pixels = first.inputs.shape[1]
    merged = 1 if task.mode == "full" else task.outputs
    return Problem(
        left=task.left,
        right=task.right,
        outputs=task.outputs if task.mode == "full" else 1,
        rows=first.rows * merged,
        columns=first.columns,
        positions=sum(form.positions for form in forms),
        pixels=pixels,
        symmetric=task.symmetric,
        itemsize=task.dtype.itemsize,
    )
