"""Inner products of rows at a chosen precision.

PyTorch has no product of a matrix with its own transpose in half of the operations. That of
NumPy's BLAS is a third faster than panels of PyTorch's, and it comes out exactly symmetric. Its
threads and those of PyTorch would hinder each other on the same cores, so it is for one thread
only.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from threadpoolctl import LibController, ThreadpoolController  # type: ignore[import-untyped]
from torch import Tensor

from theodolite.engine import _tensor_cores as tensor_cores


def on_one_thread(device: torch.device) -> bool:
    """Whether PyTorch and NumPy's BLAS are both told to use a single thread of a CPU."""
    if device.type != "cpu" or torch.get_num_threads() > 1:
        return False
    pools = _pools()
    return bool(pools) and all(pool.num_threads == 1 for pool in pools)


def is_gram(left: Tensor, right: Tensor) -> bool:
    """Whether ``left @ right.T`` is the product of a matrix with itself, on one thread."""
    return (
        left.dim() == 2
        and left.dtype in (torch.float32, torch.float64)
        and on_one_thread(left.device)
        and left.data_ptr() == right.data_ptr()
        and (left.shape, left.stride()) == (right.shape, right.stride())
    )


def gram_into(target: Tensor, rows: Tensor) -> None:
    """``target = rows @ rows.T``; NumPy notices that both factors are the same."""
    factor = rows.numpy()
    with np.errstate(all="ignore"):  # infinity where numbers are too large, silently, as PyTorch
        np.matmul(factor, factor.T, out=target.numpy())


@lru_cache(maxsize=1)
def _pools() -> list[LibController]:
    return [pool for pool in ThreadpoolController().lib_controllers if pool.user_api == "blas"]


Precision = Literal["float32", "3xtf32"]

_FAST_DOUBLES = (9, 0)  # chips that multiply float64 a fifth faster than float32, by measurement
_LONG = 128  # terms of a sum from which on this is worth the conversion
_KEPT_BITS = -(1 << 13)  # sign, exponent and the 10 leading bits of the fraction: a TF32 number


class Products:
    """Products ``left @ right.T`` of matrices, or of stacks of matrices, given by their rows.

    Factors are prepared once and sliced as often as needed.

    Args:
        precision: ``"float32"`` for products in the dtype of the factors, or a wider one where the
            chip is faster with it (:meth:`wide`). On CUDA
            ``"3xtf32"`` writes float32 factors as sums of two TF32 numbers and multiplies them on
            the tensor cores, the product of the two small parts left out (relative error about
            1e-6, as float32): each prepared factor is three times as long, or there are three
            products (:meth:`terms`).
        cores: Whether large products of float32 on CUDA are taken on tensor cores, with its
            accuracy (:mod:`theodolite.engine._tensor_cores`), which are compiled for it.
    """

    def __init__(self, precision: Precision = "float32", *, cores: bool = False) -> None:
        self._precision = precision
        self.cores = cores and precision == "float32"

    def wide(self, rows: Tensor) -> Tensor:
        """Factors much smaller than their product, in float64 where the chip is faster so."""
        return rows.double() if self._widens(rows) and rows.shape[-1] >= _LONG else rows

    def left(self, rows: Tensor) -> Tensor:
        """Prepare the rows of a left factor, (..., m, k)."""
        if not self._splits(rows):
            return rows
        high = _leading(rows)
        return torch.cat([high, high, rows - high], -1)

    def right(self, rows: Tensor) -> Tensor:
        """Prepare the rows of a right factor, (..., n, k)."""
        if not self._splits(rows):
            return rows
        high = _leading(rows)
        return torch.cat([high, rows - high, high], -1)

    def terms(self, left: Tensor, right: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Pairs of factors whose products add up to that of two long ones, (..., k).

        Nothing is copied but the parts of split numbers; of a matrix with itself, once.
        """
        if not self._splits(left):
            return [(left, right)]
        a, b = _split(left), None if left is right else _split(right)
        (high, low), (other_high, other_low) = a, a if b is None else b
        return [(high, other_high), (high, other_low), (low, other_high)]

    def into(self, target: Tensor, left: Tensor, right: Tensor, overwrite: bool) -> None:
        """``target = left @ right.T`` of prepared factors, or added to it to what it holds."""
        if overwrite and is_gram(left, right):
            gram_into(target, left)
            return
        if self.cores and tensor_cores.gains(target, left, right):
            tensor_cores.multiply(target, left, right, overwrite=overwrite)
            return
        with self._allowed(left):
            if target.dim() == 3 and overwrite:
                torch.bmm(left, right.mT, out=target)
                return
            add = torch.addmm if target.dim() == 2 else torch.baddbmm
            add(target, left, right.mT, beta=0 if overwrite else 1, out=target)

    def of(self, left: Tensor, right: Tensor) -> Tensor:
        """``left @ right.T`` of prepared factors."""
        if is_gram(left, right):
            target = left.new_empty(len(left), len(left))
            gram_into(target, left)
            return target
        if self.cores:
            target = left.new_empty(*left.shape[:-1], right.shape[-2])
            self.into(target, left, right, True)
            return target
        multiply = torch.mm if left.dim() == 2 else torch.bmm
        with self._allowed(left):
            return multiply(left, right.mT)

    def fills_both_halves(
        self,
        target: Tensor,
        rows: Tensor,
        overwrite: bool,
        factor: Tensor | None = None,
        width: int = 1,
    ) -> bool:
        """``target = rows @ rows.T`` as a whole, times a factor for each pair of examples.

        False, and nothing is done, where tensor cores are not there or gain nothing.

        Args:
            target: (m, m).
            rows: (m, k), not prepared.
            overwrite: Whether nothing is added.
            factor: One number for each pair of examples, symmetric; None for ones.
            width: Rows of one example.
        """
        least = 1 if factor is not None else tensor_cores.SHORT
        if not self.cores or not tensor_cores.gains(target, rows, rows, least=least):
            return False
        tensor_cores.gram(target, rows, overwrite=overwrite, factor=factor, width=width)
        return True

    def stacks_into(self, target: Tensor, left: Tensor, right: Tensor) -> None:
        """``target = left @ right.T`` of stacks of matrices that were not prepared."""
        if self.cores and tensor_cores.gains(target, left, right):
            tensor_cores.multiply(target, left, right, overwrite=True)
        else:
            torch.bmm(left, right.mT, out=target)

    def usable_bytes(self, tensor: Tensor, size: int) -> int:
        """How much of a tile factors may take, so that prepared copies of both fit too."""
        return size // 7 if self._splits(tensor) else size

    def _widens(self, tensor: Tensor) -> bool:
        if self._precision != "float32" or tensor.dtype != torch.float32:
            return False
        return _doubles_are_fast(tensor.device)

    def _splits(self, tensor: Tensor) -> bool:
        return self._precision == "3xtf32" and tensor.is_cuda and tensor.dtype == torch.float32

    @contextmanager
    def _allowed(self, tensor: Tensor) -> Iterator[None]:
        if not self._splits(tensor):
            yield
            return
        backend = torch.backends.cuda.matmul
        saved = backend.fp32_precision
        backend.fp32_precision = "tf32"
        try:
            yield
        finally:
            backend.fp32_precision = saved


@lru_cache
def _doubles_are_fast(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == _FAST_DOUBLES


def _split(tensor: Tensor) -> tuple[Tensor, Tensor]:
    high = _leading(tensor)
    return high, tensor - high


def _leading(tensor: Tensor) -> Tensor:
    """The part of a float32 number that TF32 holds exactly."""
    return (tensor.view(torch.int32) & _KEPT_BITS).view(torch.float32)
