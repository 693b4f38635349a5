"""Linear kernels held as features: their inner products by whichever side is cheaper.

Blocks of features cost ``n d_a d_b`` for every pair, tiles of the Gram matrices ``n² d / 2`` for
every kernel, after which all pairs are nearly free. Neither forms an n x n matrix, and memory
beyond the input is bounded whatever n.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from theodolite.linalg import KernelProducts, row_chunks

__all__ = ["Factor", "Pairs", "factor_products", "inner_products", "safe_scale", "vanishing"]

_TILE_BYTES = 256 * 2**20  # all kernels' tiles of one position together
_STRIP_BYTES = 64 * 2**20  # float64 copy of the columns that one product of a tile reads
_BLOCK_BYTES = 512 * 2**20  # products F_a^T F_b that are summed up during one pass over the rows

_ALIGNMENT = 128  # GPU matrix kernels are built for multiples of it

Pairs = Sequence[tuple[int, int]]
Products = tuple[Float[Tensor, "m m"], Float[Tensor, "m n"]]


def safe_scale(values: Tensor) -> float:
    """The largest absolute entry where fourth powers of it would overflow or vanish, else 1."""
    low, high = torch.aminmax(values.detach())
    peak = max(abs(float(low)), abs(float(high)))
    return 1.0 if peak == 0 or 1e-30 < peak < 1e30 else peak


@dataclass(frozen=True)
class Factor:
    """Features that are centred and scaled on the fly: ``(rows - mean) / scale``, in float64."""

    rows: Float[Tensor, "n d"]  # as they came
    mean: Float[Tensor, " d"]  # zero where centring is not wanted
    scale: float

    @classmethod
    def of(cls, features: Float[Tensor, "n d"], *, center: bool = True) -> "Factor":
        """Features with their mean and scale; nothing is copied."""
        rows = features.cpu() if features.device.type == "mps" else features  # no float64 there
        mean = rows.mean(0, dtype=torch.float64)
        return cls(rows, mean if center else torch.zeros_like(mean), safe_scale(rows))

    def prepare(self, rows: Tensor, columns: slice = slice(None)) -> Tensor:
        """Some of the rows (of some columns), centred and scaled."""
        centered = rows - self.mean[columns]  # promotes to float64 in the same pass
        return centered if self.scale == 1 else centered / self.scale

    def tile(self, top: slice, left: slice) -> Float[Tensor, "b c"]:
        """A tile of the Gram matrix, summed over strips of columns."""
        width = max(1, _STRIP_BYTES // (8 * max(top.stop - top.start, 1)))
        total: Tensor | None = None
        for start in range(0, self.rows.shape[1], width):
            strip = slice(start, start + width)
            a = self.prepare(self.rows[top, strip], strip)
            b = a if top == left else self.prepare(self.rows[left, strip], strip)
            total = a @ b.mT if total is None else torch.addmm(total, a, b.mT)
        assert total is not None
        return total


def vanishing(
    factors: Sequence[Factor], traces: Float[Tensor, " m"], eps: float
) -> Bool[Tensor, " m"]:
    """Which features are constant up to rounding: ``|F_c| <= 8 eps |F|``.

    The traces of the kernels are ``|F_c|²``, and ``|F|² = |F_c|² + n |mean|²``.
    """
    mean = torch.stack([(f.mean.detach() / f.scale).square().sum() for f in factors])
    constant = len(factors[0].rows) * mean
    return traces.detach() <= (8 * eps) ** 2 * (traces.detach() + constant)


def factor_products(factors: Sequence[Factor], pairs: Pairs | None = None) -> KernelProducts:
    """Inner products of the kernels of all features, all on the same examples.

    Args:
        factors: the features, one set per kernel.
        pairs: which products are wanted besides the self products, each ``(a, b)`` with ``a < b``;
            others may be zero. All of them by default.
    """
    return KernelProducts.of(*inner_products(factors, pairs))


def inner_products(factors: Sequence[Factor], pairs: Pairs | None = None) -> Products:
    """Inner products and diagonals of the kernels; arguments as in :func:`factor_products`."""
    m, n = len(factors), len(factors[0].rows)
    widths = [factor.rows.shape[1] for factor in factors]
    wanted = [(a, b) for a in range(m) for b in range(a + 1, m)] if pairs is None else list(pairs)
    wanted += [(a, a) for a in range(m)]
    by_blocks = n * sum(widths[a] * widths[b] for a, b in wanted)
    by_tiles = n * n / 2 * sum(widths)
    return _by_blocks(factors, wanted) if by_blocks <= by_tiles else _by_tiles(factors)


def _by_blocks(factors: Sequence[Factor], wanted: Pairs) -> Products:
    m, zero = len(factors), factors[0].mean.new_zeros(())
    table = [[zero] * m for _ in range(m)]
    diagonals: dict[int, Tensor] = {}
    for group in _groups(factors, wanted):
        blocks, squares = _blocks(factors, group)
        for (a, b), block in zip(group, blocks, strict=True):
            table[a][b] = table[b][a] = block.square().sum()
        diagonals |= squares
    products = torch.stack([torch.stack(row) for row in table])
    return products, torch.stack([diagonals[index] for index in range(m)])


def _groups(factors: Sequence[Factor], wanted: Pairs) -> Iterator[Pairs]:
    """The pairs in groups whose products fit into memory together; one pass over the data each."""
    group: list[tuple[int, int]] = []
    size = 0
    for a, b in sorted(wanted):
        extra = 8 * factors[a].rows.shape[1] * factors[b].rows.shape[1]
        if group and size + extra > _BLOCK_BYTES:
            yield group
            group, size = [], 0
        group.append((a, b))
        size += extra
    yield group


def _blocks(factors: Sequence[Factor], group: Pairs) -> tuple[list[Tensor], dict[int, Tensor]]:
    """``F_a^T F_b`` of every pair, and the squared row norms of every side, in one pass."""
    used = sorted({index for pair in group for index in pair})
    widths = [factor.rows.shape[1] for factor in factors]
    sums = [factors[0].mean.new_zeros(widths[a], widths[b]) for a, b in group]
    squares: dict[int, list[Tensor]] = {index: [] for index in used}
    for chunks in row_chunks(*(factors[index].rows for index in used)):
        ready = {i: factors[i].prepare(rows) for i, rows in zip(used, chunks, strict=True)}
        for index, rows in ready.items():
            squares[index].append(torch.linalg.vecdot(rows, rows))
        sums = [
            torch.addmm(total, ready[a].mT, ready[b])
            for total, (a, b) in zip(sums, group, strict=True)
        ]
    return sums, {index: torch.cat(parts) for index, parts in squares.items()}


def _by_tiles(factors: Sequence[Factor]) -> Products:
    m = len(factors)
    products, diagonals = factors[0].mean.new_zeros(m, m), []
    for top, left in _tile_positions(len(factors[0].rows), m):
        tiles = torch.stack([factor.tile(top, left) for factor in factors], dim=1)  # rows, m, cols
        weight = 1 if top == left else 2  # the tile below the diagonal is its transpose
        products = products + weight * (tiles @ tiles.mT).sum(0)
        if top == left:
            diagonals.append(tiles.diagonal(dim1=0, dim2=2))
    return products, torch.cat(diagonals, 1)


def _tile_positions(n: int, kernels: int) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of the tiles on and above the diagonal."""
    most = max(1, int((_TILE_BYTES / (8 * kernels)) ** 0.5))
    side = -(-n // -(-n // most))  # as few tiles as memory allows, all of about one size
    if side > 4 * _ALIGNMENT:
        side = -(-side // _ALIGNMENT) * _ALIGNMENT
    edges = [slice(start, min(start + side, n)) for start in range(0, n, side)]
    for index, top in enumerate(edges):
        for left in edges[index:]:
            yield top, left
