"""The Frobenius norm of a centred kernel that is never held as a whole.

From blocks of the kernel, or from gradients where they are shorter than its rows.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from theodolite.engine.batches import spans
from theodolite.engine.factors import Factors
from theodolite.engine.kernel_engine import KernelEngine
from theodolite.engine.plan import Plan, scatter_cost
from theodolite.engine.state import available_bytes
from theodolite.linalg import Moments, centered_square_sum

_ROWS = 1024  # rows of a block that are converted to float64 at a time


class KernelMoments:
    r"""Sums over the blocks of one symmetric kernel, in float64.

    .. math:: \|CKC\|_F^2 = \sum K^2 - \tfrac{2}{m} |K1|^2 + \tfrac{1}{m^2} (1^\top K 1)^2

    A constant is subtracted from all entries first. It changes nothing after centring, and keeps
    digits where kernels are nearly constant, as those of deep networks at initialisation are.

    Args:
        size: m, rows of the kernel.
        device: Where the sums are kept.
        labels: Vector whose quadratic form is added up too.
    """

    def __init__(self, size: int, device: torch.device, labels: Tensor) -> None:
        self._size, self._labels = size, labels.double()
        self._offset: Tensor | None = None
        self._squares = torch.zeros((), dtype=torch.float64, device=device)
        self._form = torch.zeros((), dtype=torch.float64, device=device)
        self._rows = torch.zeros(size, dtype=torch.float64, device=device)

    def add(self, block: Tensor, rows: slice, columns: slice) -> None:
        """Add a block, and its mirror image unless it lies on the diagonal."""
        if self._offset is None:
            self._offset = block.double().mean()
        weight = 1.0 if rows == columns else 2.0
        for part in spans(len(block), _ROWS):
            values = block[part].double()
            place = slice(rows.start + part.start, rows.start + part.stop)
            form = self._labels[place] @ (values @ self._labels[columns])
            self._form += weight * form
            values -= self._offset
            self._squares += weight * values.square().sum()
            self._rows[place] += values.sum(1)
            if weight == 2.0:
                self._rows[columns] += values.sum(0)

    @property
    def form(self) -> Tensor:
        """Quadratic form of the labels."""
        return self._form

    @property
    def uncentered(self) -> Tensor:
        """Norm before centring, up to the constant that was subtracted."""
        offset = torch.zeros_like(self._form) if self._offset is None else self._offset
        m = self._size
        shifted = self._squares + 2 * offset * self._rows.sum() + m * m * offset.square()
        return shifted.clamp(min=0.0).sqrt()

    @property
    def centered(self) -> Tensor:
        """Norm of the centred kernel."""
        return centered_square_sum(self._squares, self._rows).clamp(min=0.0).sqrt()


_MATRICES = 4  # of P x P numbers that exist at a time, while one layer is worked on


class GradientMoments:
    r"""Sums over the gradients of one layer, in float64.

    .. math:: \|C K C\|_F = \|C J J^\top C\|_F = \|J^\top C J\|_F

    J has one row per example and output and one column per parameter. The matrix on the right is
    the scatter of its rows about their mean: time grows with their number, not with its square.

    Args:
        labels: Vector whose quadratic form is added up too, one entry per row.
    """

    def __init__(self, labels: Tensor) -> None:
        self._labels = labels.double()
        self._moments: Moments | None = None
        self._along: Tensor | None = None

    def add(self, gradients: Tensor, rows: slice) -> None:
        """Add some rows of J."""
        values = gradients.double()
        shift = None if self._moments is None else self._moments.shift
        part, along = Moments.of(values, shift), self._labels[rows] @ values
        self._moments = part if self._moments is None else self._moments + part
        self._along = along if self._along is None else self._along + along

    @property
    def form(self) -> Tensor:
        """Quadratic form of the labels."""
        assert self._along is not None
        return self._along @ self._along

    @property
    def uncentered(self) -> Tensor:
        """Norm before centring."""
        assert self._moments is not None
        return self._moments.rebase(torch.zeros_like(self._moments.shift)).scatter.norm()

    @property
    def centered(self) -> Tensor:
        """Norm of the centred kernel."""
        assert self._moments is not None
        return self._moments.rebase(self._moments.mean).scatter.norm()


def shorter_sides(engine: KernelEngine, plan: Plan, examples: int) -> list[str]:
    """Layers for which the matrix of parameters takes less time than the kernel of all examples.

    One such matrix stays per layer: the smallest first, as long as memory is left by the plan.

    Args:
        engine: The engine.
        plan: Of one pair of blocks of examples.
        examples: All of them.
    """
    columns = {layer: _columns(engine, plan, layer) for layer in engine.layers}
    limit = engine.options.memory_limit or available_bytes(engine.device)
    free_bytes, chosen = limit - plan.predicted_bytes, set()
    for layer in sorted(columns, key=lambda name: columns[name]):
        size = 8 * columns[layer] ** 2
        fits = 0 < size <= free_bytes and _MATRICES * size <= plan.tile_bytes
        if fits and _is_shorter(engine, plan, examples, layer, columns[layer]):
            chosen.add(layer)
            free_bytes -= size
    return [layer for layer in engine.layers if layer in chosen]


def _columns(engine: KernelEngine, plan: Plan, layer: str) -> int:
    """Parameters of a layer; none where its gradients are never formed."""
    groups = [plan.groups[index].group for index in engine.groups_of(layer)]
    if any(group.kind not in ("outer", "dense") for group in groups):
        return 0
    parameters = engine.recorder.ownership.parameters
    return sum(parameters[name].numel() for group in groups for name in group.parameters)


def _is_shorter(engine: KernelEngine, plan: Plan, examples: int, layer: str, columns: int) -> bool:
    blocks = examples / plan.block
    pairs = 1.0 if blocks <= 1 else blocks * (blocks + 1) / 2
    kernel = pairs * sum(plan.groups[index].cost for index in engine.groups_of(layer))
    return scatter_cost(examples * engine.outputs, columns) < kernel


def gradient_rows(factors: Sequence[Factors | None], plan: Plan) -> Iterator[tuple[slice, Tensor]]:
    """Rows of J, (examples * outputs, P), a tile of examples at a time."""
    present = [own for own in factors if own is not None]
    if not present:
        return
    examples, c = len(present[0]), present[0].outputs
    # Rows in float64 too; what they are made of, one group at a time.
    numbers = 3 * c * sum(own.entries for own in present)
    size = 4 * numbers + max(own.working_bytes for own in present)
    for rows in spans(examples, max(1, plan.tile_bytes // max(1, size))):
        J = torch.cat([own[rows].gradients() for own in present], 2)
        yield slice(rows.start * c, rows.stop * c), J.flatten(0, 1)
