"""Linear kernels held as features: their inner products by whichever side is cheaper.

Blocks of features cost ``n d_a d_b`` for every pair, tiles of the Gram matrices ``n² d / 2`` for
every kernel, after which all pairs are nearly free. Neither forms an n x n matrix, and memory
beyond the input is bounded whatever n.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.linalg import KernelProducts, double, row_chunks

__all__ = ["Factor", "Pairs", "factor_products", "inner_products"]

_TILE_BYTES = 256 * 2**20  # all kernels' tiles of one position together
_STRIP_BYTES = 32 * 2**20  # float64 copy of the columns that one product of a tile reads

Pairs = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Factor:
    """Features that are centred and scaled on the fly: ``rows / peak - mean``, in float64."""

    rows: Float[Tensor, "n d"]  # as they came
    mean: Float[Tensor, " d"]  # of the scaled rows; zero where centring is not wanted
    peak: Float[Tensor, ""]  # largest absolute entry: products are quartic in the features

    @classmethod
    def of(cls, features: Float[Tensor, "n d"], *, center: bool = True) -> "Factor":
        """Features with their mean and scale; nothing is copied."""
        rows = features.cpu() if features.device.type == "mps" else features  # no float64 there
        low, high = torch.aminmax(rows.detach())
        peak = torch.maximum(low.abs(), high.abs()).double()
        peak = torch.where(peak > 0, peak, torch.ones_like(peak))
        mean = rows.mean(0, dtype=torch.float64) / peak
        return cls(rows, mean if center else torch.zeros_like(mean), peak)

    def prepare(self, rows: Float[Tensor, "b d"]) -> Float[Tensor, "b d"]:
        """Some of the rows, scaled and centred."""
        return double(rows) / self.peak - self.mean

    def squares(self) -> Float[Tensor, " n"]:
        """Squared norms of the centred rows: the diagonal of the kernel."""
        return torch.cat([self.prepare(r).square().sum(1) for (r,) in row_chunks(self.rows)])

    def vanishes(self, eps: float) -> Tensor:
        """Whether the features are constant up to rounding: ``|F_c| <= 8 eps |F|``."""
        raw = centered = self.mean.new_zeros(())
        for (rows,) in row_chunks(self.rows.detach()):
            scaled = double(rows) / self.peak
            raw = raw + scaled.square().sum()
            centered = centered + (scaled - self.mean.detach()).square().sum()
        return centered <= (8 * eps) ** 2 * raw

    def tile(self, top: slice, left: slice) -> Float[Tensor, "b c"]:
        """A tile of the Gram matrix, summed over strips of columns."""
        width = max(1, _STRIP_BYTES // (8 * max(top.stop - top.start, 1)))
        total: Tensor | None = None
        for start in range(0, self.rows.shape[1], width):
            strip = slice(start, start + width)
            a = double(self.rows[top, strip]) / self.peak - self.mean[strip]
            same = top == left
            b = a if same else double(self.rows[left, strip]) / self.peak - self.mean[strip]
            total = a @ b.mT if total is None else total + a @ b.mT
        assert total is not None
        return total


def factor_products(factors: Sequence[Factor], pairs: Pairs | None = None) -> KernelProducts:
    """Inner products of the kernels of all features, all on the same examples.

    Args:
        factors: the features, one set per kernel.
        pairs: which products are wanted besides the self products, each ``(a, b)`` with ``a < b``;
            others may be zero. All of them by default.
    """
    diagonals = torch.stack([factor.squares() for factor in factors])
    return KernelProducts.of(inner_products(factors, pairs), diagonals)


def inner_products(factors: Sequence[Factor], pairs: Pairs | None = None) -> Float[Tensor, "m m"]:
    """The matrix of inner products alone; arguments as in :func:`factor_products`."""
    m, n = len(factors), len(factors[0].rows)
    widths = [factor.rows.shape[1] for factor in factors]
    wanted = [(a, b) for a in range(m) for b in range(a + 1, m)] if pairs is None else list(pairs)
    wanted += [(a, a) for a in range(m)]
    by_blocks = n * sum(widths[a] * widths[b] for a, b in wanted)
    by_tiles = n * n / 2 * sum(widths)
    return _by_blocks(factors, wanted) if by_blocks <= by_tiles else _by_tiles(factors)


def _by_blocks(factors: Sequence[Factor], wanted: Pairs) -> Float[Tensor, "m m"]:
    m = len(factors)
    zero = factors[0].mean.new_zeros(())
    table = [[zero] * m for _ in range(m)]
    for a in range(m):
        partners = [b for first, b in wanted if first == a]
        for b, block in zip(partners, _blocks(factors, a, partners), strict=True):
            table[a][b] = table[b][a] = block.square().sum()
    return torch.stack([torch.stack(row) for row in table])


def _blocks(factors: Sequence[Factor], a: int, partners: Sequence[int]) -> list[Tensor]:
    """``F_a^T F_b`` for every partner b, in one pass over chunks of rows."""
    width = factors[a].rows.shape[1]
    sums = [factors[b].mean.new_zeros(width, factors[b].rows.shape[1]) for b in partners]
    for chunks in row_chunks(factors[a].rows, *(factors[b].rows for b in partners)):
        left = factors[a].prepare(chunks[0])
        for index, (b, rows) in enumerate(zip(partners, chunks[1:], strict=True)):
            right = left if a == b else factors[b].prepare(rows)
            sums[index] = sums[index] + left.mT @ right
    return sums


def _by_tiles(factors: Sequence[Factor]) -> Float[Tensor, "m m"]:
    products = factors[0].mean.new_zeros(len(factors), len(factors))
    for top, left in _tile_positions(len(factors[0].rows), len(factors)):
        tiles = torch.stack([factor.tile(top, left) for factor in factors]).flatten(1)
        weight = 1 if top == left else 2  # the tile below the diagonal is its transpose
        products = products + weight * (tiles @ tiles.mT)
    return products


def _tile_positions(n: int, kernels: int) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of the tiles on and above the diagonal."""
    most = max(1, int((_TILE_BYTES / (8 * kernels)) ** 0.5))
    side = -(-n // -(-n // most))  # as few tiles as memory allows, all of about one size
    edges = [slice(start, min(start + side, n)) for start in range(0, n, side)]
    for index, top in enumerate(edges):
        for left in edges[index:]:
            yield top, left
