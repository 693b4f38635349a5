"""The Frobenius norm of a centred kernel from gradients, where they are shorter than its rows."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from theodolite.engine._blocks import spans
from theodolite.engine._dense_factors import DenseFactors
from theodolite.engine._factors import Factors, OuterFactors
from theodolite.engine._plan import Plan, available_bytes
from theodolite.engine._routes import scatter_cost
from theodolite.engine._sweep import Sweep
from theodolite.linalg import Moments

__all__ = ["GradientMoments", "gradient_rows", "shorter_sides"]

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


def shorter_sides(sweep: Sweep, plan: Plan, examples: int) -> list[str]:
    """Layers for which the matrix of parameters takes less time than the kernel of all examples.

    One such matrix stays per layer: the smallest first, as long as they fit beside what is planned.

    Args:
        sweep: The sweep.
        plan: Of one pair of blocks of examples.
        examples: All of them.
    """
    columns = {layer: _columns(sweep, plan, layer) for layer in sweep.layers}
    limit = sweep.settings.memory_limit or available_bytes(sweep.device)
    room, chosen = limit - plan.predicted_bytes, set()
    for layer in sorted(columns, key=lambda name: columns[name]):
        size = 8 * columns[layer] ** 2
        fits = 0 < size <= room and _MATRICES * size <= plan.tile_bytes
        if fits and _is_shorter(sweep, plan, examples, layer, columns[layer]):
            chosen.add(layer)
            room -= size
    return [layer for layer in sweep.layers if layer in chosen]


def _columns(sweep: Sweep, plan: Plan, layer: str) -> int:
    """Parameters of a layer; none where its gradients are never formed."""
    atoms = [plan.atoms[index].atom for index in sweep.atoms_of(layer)]
    if any(atom.kind not in ("outer", "dense") for atom in atoms):
        return 0
    parameters = sweep.subject.ownership.parameters
    return sum(parameters[name].numel() for atom in atoms for name in atom.parameters)


def _is_shorter(sweep: Sweep, plan: Plan, examples: int, layer: str, columns: int) -> bool:
    blocks = examples / plan.block
    pairs = 1.0 if blocks <= 1 else blocks * (blocks + 1) / 2
    kernel = pairs * sum(plan.atoms[index].cost for index in sweep.atoms_of(layer))
    return scatter_cost(examples * sweep.outputs, columns) < kernel


def gradient_rows(factors: Sequence[Factors], plan: Plan) -> Iterator[tuple[slice, Tensor]]:
    """Rows of J, (examples * outputs, P), a tile of examples at a time."""
    frame = factors[0].frame
    width = sum(part.shape[2] for entry in factors for part in _parts(entry, slice(0, 1)))
    # Rows in float64 too; patches of images, from which they are made, one layer at a time.
    numbers = 3 * frame.outputs * width + max(_patch_numbers(entry) for entry in factors)
    size = max(1, plan.tile_bytes // max(1, 4 * numbers))
    for rows in spans(frame.examples, size):
        parts = [part for entry in factors for part in _parts(entry, rows)]
        count = rows.stop - rows.start
        empty = torch.zeros(count, frame.outputs, 1, dtype=frame.dtype, device=frame.device)
        J = torch.cat(parts, 2) if parts else empty
        yield slice(rows.start * frame.outputs, rows.stop * frame.outputs), J.flatten(0, 1)


def _patch_numbers(factors: Factors) -> int:
    """Numbers of the patches of one example, where they are cut out of images."""
    if not isinstance(factors, OuterFactors) or factors.eager or factors.inputs is None:
        return 0
    geometry, images = factors.geometry, factors.inputs
    if geometry is None:
        return 0
    positions = torch.Size(geometry.output_size(tuple(images.shape[2:]))).numel()
    return int(geometry.taps * images.shape[1] * positions)


def _parts(factors: Factors, rows: slice) -> list[Tensor]:
    """Gradients of some examples, (n, c, ...), in parts side by side."""
    assert isinstance(factors, DenseFactors | OuterFactors)
    if isinstance(factors, DenseFactors) or factors.eager:
        return [part[rows].flatten(2) for part in factors.gradients]
    if factors.signals is None or factors.inputs is None:
        return []
    signals, inputs = factors.signals[rows], factors.inputs[rows]
    if factors.geometry is not None:
        inputs = factors.geometry.columns(inputs).flatten(1, 2).transpose(1, 2)
    formed = torch.bmm(signals.flatten(1, 2), inputs).view(*signals.shape[:2], -1)
    return [formed, signals.sum(3)] if factors.atom.shift is not None else [formed]
