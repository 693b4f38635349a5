r"""Norms of centred tangent kernels from gradients along random vectors, with their errors.

A random vector :math:`z` of signs along the outputs of a group of examples costs one backward pass
of that group and gives :math:`\Psi z`. For two of them, of groups g and h or both of one group,
:math:`E (z^\top K_c z')^2` is the squared norm of the block (g, h) of the centred kernel. With all
examples in one group, s vectors cost s passes of all examples. With m groups, each example is met
by :math:`s / \sqrt m` vectors only: that many pairs in each of the m diagonal blocks leave the
error of s vectors where the kernel is block diagonal, and a smaller one elsewhere.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from theodolite._distributed import ALONE, Processes
from theodolite.engine.batches import even_spans, spans
from theodolite.engine.calls import Outer
from theodolite.engine.kernel_engine import BatchList
from theodolite.engine.recorder import Use
from theodolite.engine.runs import ModelRecorder, plain_gradients
from theodolite.engine.state import coarse_arithmetic
from theodolite.errors import MemoryLimitError
from theodolite.linalg import center_all

__all__ = [
    "MOST_GROUPS",
    "SketchPlan",
    "forward_products",
    "jackknife_covariance",
    "pair_norms",
    "sketch_grams",
    "sketch_plan",
]

MOST_GROUPS = 16
_TOGETHER = 12  # examples of a group at least: a pass of fewer is launched as slowly
_FEWEST = 3  # vectors of a group: without one of them a pair is left
_DOUBLE = 2.0  # products of float32 that run in the time of one of float64
_COLUMNS = 2**14  # entries of gradients in one of the products that are made side by side
_COPIED = 2**27  # numbers in float64 at a time


@dataclass(frozen=True)
class SketchPlan:
    """Which examples share random vectors, and how many.

    Args:
        groups: Consecutive examples, all of them.
        vectors: Random vectors of each group.
    """

    groups: tuple[slice, ...]
    vectors: int

    @property
    def gradients(self) -> int:
        """Gradients that are kept: along the labels, along ones, and along all random vectors."""
        return 1 + (len(self.groups) > 1) + len(self.groups) * self.vectors

    @property
    def passes(self) -> int:
        """Backward passes that each example takes part in."""
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
    """The groups that take least time: few passes of the examples, few products of gradients.

    Args:
        wanted: Random vectors of a single group; errors are at most those of so many.
        examples: Number of examples.
        parameters: Numbers of a gradient.
        products: Multiply-adds of one example's way through the model.
        groups: At most so many; None for :data:`MOST_GROUPS`.
        item: Bytes of a number.
        limit: Bytes that gradients along all vectors may take, half of it where there are several
            groups; None for no limit.

    Raises:
        MemoryLimitError: If not even those of a single group fit.
    """
    most = max(1, min(MOST_GROUPS if groups is None else groups, examples // _TOGETHER))
    plans = []
    for count in range(1, most + 1):
        vectors = max(_FEWEST, math.ceil(wanted / math.sqrt(count)))
        plan = SketchPlan(tuple(even_spans(examples, -(-examples // count))), vectors)
        size = plan.gradients * parameters * item
        if limit is None or size <= (limit if count == 1 else limit // 2):
            plans.append(plan)
        elif count == 1:
            raise MemoryLimitError(
                f"memory: expected to stay below {limit / 2**30:.2f} GiB, but gradients along "
                f"{wanted} sketch_vectors take {size / 2**30:.2f} GiB; pass fewer sketch_vectors "
                "or layers"
            )

    def cost(plan: SketchPlan) -> float:
        backwards = 2.0 * plan.passes * examples * products
        return backwards + _DOUBLE * plan.gradients**2 * parameters

    return min(plans, key=cost)


def forward_products(uses: Sequence[Use], parameters: int) -> int:
    """Multiply-adds of one example with all parameters, from a recorded pass of one."""
    outer = [use.structure for use in uses if isinstance(use.structure, Outer)]
    return parameters + sum(one.positions * one.rows * one.columns for one in outer)


def random_signs(plan: SketchPlan, labels: Tensor, generator: torch.Generator | None) -> Tensor:
    """Signs along all outputs, (s, n, c), centred where all examples are one group."""
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
    r"""Layer -> inner products of :math:`\Psi_l C z`, (1 + m s, 1 + m s), the labels before signs.

    The centring of a vector along some of the examples would reach all others. It is done with
    the gradients: :math:`\Psi C z = \Psi z - \tfrac{1^\top z}{n c} \Psi 1`.

    Args:
        recorder: The model.
        data: All examples.
        labels: Centred, (n, c).
        plan: Which examples share random vectors.
        batch_size: Examples in one pass.
        generator: Of the signs; None for a fixed seed.
        processes: Each goes through its part of the examples; gradients add up over them.
    """
    signs, m = random_signs(plan, labels, generator), len(plan.groups)
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
        places = [*range(len(shared)), *range(first, first + plan.vectors)]
        for batch in data.rows(slice(start, stop)):
            for span in even_spans(len(batch), batch_size):
                part = batch.take(span)
                here = slice(start, start + len(part))
                weights = torch.cat([shared[:, here], signs[:, here]])
                _add_gradients(totals, parameters, recorder.outputs(part), weights, places)
                start = here.stop
    ones = torch.stack([signs[:, rows].sum((1, 2)) for rows in plan.groups]).flatten()
    found: dict[str, Tensor] = {}
    for name in list(totals):  # one parameter at a time: in float64 all would take twice the memory
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
    places: Sequence[int],
) -> None:
    """One backward pass for each weight, added in its place."""
    for index, (seed, place) in enumerate(zip(weights, places, strict=True)):
        keep = index + 1 < len(weights)
        # The labels come first, in full precision; random vectors have an error of their own, far
        # above the rounding of tensor cores.
        with coarse_arithmetic(outputs.device) if index else nullcontext():
            gradients = plain_gradients(outputs, parameters, seed.to(outputs.dtype), keep=keep)
        for name, gradient in gradients.items():
            totals[name][place].add_(gradient)


def _gram(rows: Tensor) -> Tensor:
    """Inner products of a few long rows in float64, many parts of them at a time."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for span in spans(rows.shape[1], max(1, _COPIED // (len(rows) * _COLUMNS)) * _COLUMNS):
        wide = rows[:, span].double()
        whole = wide.shape[1] // _COLUMNS * _COLUMNS
        parts = wide[:, :whole].reshape(len(rows), -1, _COLUMNS).transpose(0, 1)
        total += (parts @ parts.mT).sum(0)
        rest = wide[:, whole:]
        total.addmm_(rest, rest.T)
    return total


def _centered(gram: Tensor, shares: Tensor) -> Tensor:
    """Inner products of vectors less their shares of the second one, which is left out."""
    ones, others = gram[1], [0, *range(2, len(gram))]
    along = ones[others]
    cross = torch.outer(shares, along)
    whole = gram[others][:, others] - cross - cross.T
    return whole + ones[1] * torch.outer(shares, shares)


def pair_norms(grams: Tensor, groups: int = 1) -> tuple[Tensor, Tensor]:
    r"""Norms of kernels from a sketch's inner products, and the same without each vector in turn.

    .. math:: \|K_c\|_F^2 = \sum_{g, h} E\,(z_g^\top K_c z'_h)^2

    Args:
        grams: Inner products of gradients along random vectors, group after group, (layers, m s,
            m s).
        groups: The number m of groups.

    Returns:
        Estimates (layers,) and leave-one-out estimates (layers, m, s).
    """
    s = grams.shape[1] // groups
    squares = grams.square()
    squares = squares - torch.diag_embed(squares.diagonal(dim1=1, dim2=2))
    blocks = squares.reshape(-1, groups, s, groups, s).sum(4)  # a vector with those of a group
    within = torch.stack([blocks[:, g, :, g] for g in range(groups)], 1)  # pairs of one group
    across = blocks.sum(3) - within
    inside, outside = within.sum(2, keepdim=True), across.sum(2, keepdim=True)
    every = (inside / (s * (s - 1)) + outside / s**2).sum(1)
    # A group without one of its vectors; pairs of two groups are in the sum twice.
    fewer = (inside - 2 * within) / ((s - 1) * (s - 2)) - inside / (s * (s - 1))
    fewer = fewer + 2 * ((outside - across) / (s * (s - 1)) - outside / s**2)
    return every.squeeze(1).sqrt(), (every.unsqueeze(2) + fewer).clamp(min=0.0).sqrt()


def jackknife_covariance(replicates: Tensor) -> Tensor:
    """Covariance of estimates from values without one vector of a group, (layers, m, s)."""
    s = replicates.shape[2]
    centered = (replicates - replicates.mean(2, keepdim=True)).flatten(1)
    return (s - 1) / s * (centered @ centered.T)
