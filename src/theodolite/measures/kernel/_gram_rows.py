"""Inner products of many centred Gram matrices, a block of rows at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from theodolite.linalg import KernelProducts, double
from theodolite.measures.kernel._factors import safe_scale

__all__ = ["gram_products"]

_BLOCK_BYTES = 256 * 2**20  # centred rows of all the kernels together


@dataclass(frozen=True)
class _Kernel:
    """How to read centred rows of a kernel, and the squared norm of what centring takes away."""

    rows: Callable[[slice], Tensor]
    constant: Float[Tensor, ""]


def gram_products(
    grams: Sequence[Float[Tensor, "n n"]], labels: Integer[Tensor, " n"] | None = None
) -> tuple[KernelProducts, Float[Tensor, " m"]]:
    """Products of the centred kernels, that of the labels last, and the share of each that is left.

    No second n x n matrix is formed: rows are centred by means that are known beforehand.
    """
    kernels = [_of_gram(gram) for gram in grams]
    if labels is not None:
        kernels.append(_of_labels(labels.to(grams[0].device)))
    n = len(grams[0])
    step = max(1, _BLOCK_BYTES // (8 * n * len(kernels)))
    products, diagonals = kernels[0].constant.new_zeros(len(kernels), len(kernels)), []
    for start in range(0, n, step):
        block = slice(start, min(start + step, n))
        rows = torch.stack([kernel.rows(block) for kernel in kernels], dim=1)  # rows, m, columns
        products = products + (rows @ rows.mT).sum(0)
        diagonals.append(rows[:, :, block].diagonal(dim1=0, dim2=2))
    norms = products.diagonal().detach()
    whole = norms + torch.stack([kernel.constant for kernel in kernels])
    left = (norms / torch.where(whole > 0, whole, torch.ones_like(whole))).sqrt()
    return KernelProducts.of(products, torch.cat(diagonals, 1)), left


def _of_gram(gram: Tensor) -> _Kernel:
    """A matrix in a safe range: row means first, column means of the result then."""
    scale = safe_scale(gram)
    means = gram.mean(1, dtype=torch.float64) / scale
    offset = means - means.mean()

    def rows(block: slice) -> Tensor:
        scaled = gram[block] if scale == 1 else double(gram[block]) / scale
        return scaled - means[block].unsqueeze(1) - offset

    return _Kernel(rows, _constant_part(means.detach()))


def _of_labels(labels: Tensor) -> _Kernel:
    """The indicator of a shared class."""
    share = torch.bincount(labels).double() / len(labels)
    own, mean = share[labels], share.square().sum()

    def rows(block: slice) -> Tensor:
        same = labels[block].unsqueeze(1) == labels
        return same.double() - own[block].unsqueeze(1) - own + mean

    return _Kernel(rows, _constant_part(own))


def _constant_part(means: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    r"""Squared norm of :math:`v1^\top + 1v^\top + m11^\top`, from the means of the rows."""
    n, mean = len(means), means.mean()
    return 2 * n * (means - mean).square().sum() + (n * mean).square()
