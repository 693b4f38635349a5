r"""Inner products of centred kernels: what HSIC and CKA read, and their mergeable sums.

All estimators read the same few numbers. For centred kernels :math:`K_c = HKH` and :math:`L_c`
with diagonals :math:`d_K, d_L`, the row sums of the kernel without its diagonal are
:math:`-d_K`, so that the estimator of [song2012], Eq. (5) becomes

.. math:: n(n-3)\,\mathrm{HSIC}_1 = \langle K_c, L_c\rangle - \frac{n}{n-2}\, d_K\cdot d_L
          + \frac{\mathrm{tr} K_c\,\mathrm{tr} L_c}{(n-1)(n-2)}
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import require_axes, require_nonempty, require_same_length
from theodolite.linalg.arrays import double, nan_unless, prints_shapes
from theodolite.linalg.moments import row_chunks

__all__ = ["HsicSums", "KernelProducts", "centered_products", "debiased_product"]


def debiased_product(product: Tensor, diagonals: Tensor, traces: Tensor, count: Tensor) -> Tensor:
    r""":math:`n(n-3)\,\mathrm{HSIC}_1` from the products of centred kernels; nan below 4 examples.

    Args:
        product: :math:`\langle K_c, L_c\rangle`.
        diagonals: :math:`d_K \cdot d_L`.
        traces: :math:`\mathrm{tr} K_c\,\mathrm{tr} L_c`.
        count: number of examples, 0-d.
    """
    n = count.clamp(min=4)
    value = product - n / (n - 2) * diagonals + traces / ((n - 1) * (n - 2))
    return nan_unless((count >= 4).expand(value.shape), value)


@prints_shapes
@dataclass(frozen=True)
class KernelProducts:
    """All inner products of ``m`` centred kernels on the same examples: what HSIC and CKA read."""

    products: Float[Tensor, "m m"]  # <K_a, K_b>
    diagonals: Float[Tensor, "m m"]  # d_a . d_b
    traces: Float[Tensor, " m"]
    count: Float[Tensor, ""]

    @classmethod
    def of(
        cls, products: Float[Tensor, "m m"], diagonals: Float[Tensor, "m n"]
    ) -> "KernelProducts":
        """From the inner products and every kernel's diagonal."""
        count = products.new_tensor(float(diagonals.shape[1]))
        return cls(products, diagonals @ diagonals.mT, diagonals.sum(1), count)

    def totals(self, *, debiased: bool) -> Float[Tensor, "m m"]:
        """HSIC of every pair times ``n²``, or times ``n (n - 3)`` for the debiased estimator."""
        if not debiased:
            return self.products
        traces = torch.outer(self.traces, self.traces)
        return debiased_product(self.products, self.diagonals, traces, self.count)

    def hsic(self, *, debiased: bool) -> Float[Tensor, "m m"]:
        """HSIC of every pair of kernels."""
        n = self.count
        return self.totals(debiased=debiased) / (n * (n - 3).clamp(min=1) if debiased else n * n)


def centered_products(gram_a: Float[Tensor, "n n"], gram_b: Float[Tensor, "n n"]) -> KernelProducts:
    """Products of two Gram matrices that are centred already."""
    cross = (gram_a * gram_b).sum()
    own_a, own_b = gram_a.square().sum(), gram_b.square().sum()
    products = torch.stack([own_a, cross, cross, own_b]).reshape(2, 2)
    return KernelProducts.of(products, torch.stack([gram_a.diagonal(), gram_b.diagonal()]))


@prints_shapes
@dataclass(frozen=True)
class HsicSums:
    r"""Sum-reducible statistics of HSIC, biased or debiased, between two sets of features.

    With rows :math:`f_i, g_i` about fixed shifts and :math:`d` their squared norms. Sums about the
    same shifts add by plain summation, field by field; about different ones they are rebased first,
    exactly. HSIC of features with themselves, and of features with labels, have the same form.
    """

    count: Float[Tensor, ""]
    shift_a: Float[Tensor, " d"]
    shift_b: Float[Tensor, " e"]
    total_a: Float[Tensor, " d"]  # sum of f
    total_b: Float[Tensor, " e"]  # sum of g
    cross: Float[Tensor, "d e"]  # sum of f g^T
    weighted_a: Float[Tensor, " d"]  # sum of d_g f
    weighted_b: Float[Tensor, " e"]  # sum of d_f g
    squares: Float[Tensor, ""]  # sum of d_f d_g
    square_a: Float[Tensor, ""]  # sum of d_f
    square_b: Float[Tensor, ""]  # sum of d_g

    @classmethod
    def of(
        cls,
        a: Float[Tensor, "n d"],
        b: Float[Tensor, "n e"],
        shift_a: Float[Tensor, " d"] | None = None,
        shift_b: Float[Tensor, " e"] | None = None,
    ) -> "HsicSums":
        """Sums of one batch; without shifts, about its own means."""
        require_axes(2, a=a, b=b)
        require_nonempty(a=a, b=b)
        require_same_length(a=a, b=b)
        shifts = [
            double(x.double().mean(0) if s is None else s) for x, s in ((a, shift_a), (b, shift_b))
        ]
        parts = [_sums(double(f) - shifts[0], double(g) - shifts[1]) for f, g in row_chunks(a, b)]
        sums = (torch.stack(part).sum(0) for part in zip(*parts, strict=True))
        return cls(shifts[0].new_tensor(float(len(a))), *shifts, *sums)

    def rebase(self, shift_a: Float[Tensor, " d"], shift_b: Float[Tensor, " e"]) -> "HsicSums":
        """The same rows, about other shifts."""
        if shift_a is self.shift_a and shift_b is self.shift_b:
            return self  # a stream keeps its shifts: adding a batch costs one addition
        p, q = self.shift_a - double(shift_a), self.shift_b - double(shift_b)
        n, pp, qq = self.count, p @ p, q @ q
        total_a, total_b = self.total_a + n * p, self.total_b + n * q
        square_a = self.square_a + 2 * self.total_a @ p + n * pp
        square_b = self.square_b + 2 * self.total_b @ q + n * qq
        weighted_a = self.weighted_a + 2 * self.cross @ q + qq * self.total_a + square_b * p
        weighted_b = self.weighted_b + 2 * self.cross.mT @ p + pp * self.total_b + square_a * q
        squares = (
            self.squares
            + 2 * (self.weighted_b @ q + self.weighted_a @ p)
            + qq * self.square_a
            + pp * self.square_b
            + 4 * p @ self.cross @ q
            + 2 * qq * (self.total_a @ p)
            + 2 * pp * (self.total_b @ q)
            + n * pp * qq
        )
        cross = self.cross + torch.outer(self.total_a, q) + torch.outer(p, total_b)
        return HsicSums(
            n, double(shift_a), double(shift_b), total_a, total_b, cross, weighted_a, weighted_b,
            squares, square_a, square_b,
        )  # fmt: skip

    def __add__(self, other: "HsicSums") -> "HsicSums":
        """Sums of both groups of examples together, about this one's shifts."""
        moved = other.rebase(self.shift_a, self.shift_b)
        sums = (
            getattr(self, name) + getattr(moved, name)
            for name in (
                "total_a", "total_b", "cross", "weighted_a", "weighted_b",
                "squares", "square_a", "square_b",
            )
        )  # fmt: skip
        return HsicSums(self.count + moved.count, self.shift_a, self.shift_b, *sums)

    def centered(self) -> "HsicSums":
        """The same rows, about their means."""
        means = (
            self.shift_a + self.total_a / self.count,
            self.shift_b + self.total_b / self.count,
        )
        return self.rebase(*means)

    @staticmethod
    def products(cross: "HsicSums", own_a: "HsicSums", own_b: "HsicSums") -> KernelProducts:
        """What CKA reads, from the sums of (a, b), (a, a) and (b, b) over the same examples."""
        ab, aa, bb = cross.centered(), own_a.centered(), own_b.centered()

        def symmetric(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
            return torch.stack([x, y, y, z]).reshape(2, 2)

        return KernelProducts(
            symmetric(*(part.cross.square().sum() for part in (aa, ab, bb))),
            symmetric(aa.squares, ab.squares, bb.squares),
            torch.stack([ab.square_a, ab.square_b]),
            ab.count,
        )

    def vanishes(self, eps: float) -> Tensor:
        """Per side, whether the features are constant up to rounding: ``|F_c| <= 8 eps |F|``."""
        centered = self.centered()
        raw = self.rebase(torch.zeros_like(self.shift_a), torch.zeros_like(self.shift_b))
        left = torch.stack([centered.square_a, centered.square_b])
        return left <= (8 * eps) ** 2 * torch.stack([raw.square_a, raw.square_b])


def _sums(f: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    d, e = f.square().sum(1), g.square().sum(1)
    return f.sum(0), g.sum(0), f.mT @ g, f.mT @ e, g.mT @ d, d @ e, d.sum(), e.sum()
