"""Matrix products at the precision asked for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Precision", "Products"]

Precision = Literal["float32", "3xtf32", "tf32"]

_KEPT_BITS = -(1 << 13)  # sign, exponent and the 10 leading bits of the fraction: a TF32 number


class Products:
    """Products that write into given tensors.

    Args:
        precision: ``"float32"`` for plain products in the dtype of the factors. On CUDA
            ``"3xtf32"`` splits float32 factors into two TF32 numbers each and adds three products
            on the tensor cores (relative error about 1e-6), ``"tf32"`` takes one (about 1e-3).
    """

    def __init__(self, precision: Precision = "float32") -> None:
        self._precision = precision

    def into(self, target: Tensor, left: Tensor, right: Tensor, fresh: bool) -> None:
        """``target = left @ right``, or added to it where it is not fresh; two or three axes."""
        add = torch.addmm if target.dim() == 2 else torch.baddbmm
        first = True
        for a, b in self._pairs(left, right):
            beta = 0 if fresh and first else 1
            with self._allowed(left):
                add(target, a, b, beta=beta, out=target)
            first = False

    def of(self, left: Tensor, right: Tensor) -> Tensor:
        """``left @ right`` for two or three axes."""
        multiply: Callable[[Tensor, Tensor], Tensor] = torch.mm if left.dim() == 2 else torch.bmm
        pairs = list(self._pairs(left, right))
        with self._allowed(left):
            result = multiply(*pairs[0])
        for a, b in pairs[1:]:
            self_add = torch.addmm if left.dim() == 2 else torch.baddbmm
            with self._allowed(left):
                self_add(result, a, b, out=result)
        return result

    def _splits(self, tensor: Tensor) -> bool:
        return self._precision == "3xtf32" and tensor.is_cuda and tensor.dtype == torch.float32

    def _pairs(self, left: Tensor, right: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        if not self._splits(left):
            yield left, right
            return
        high_left, high_right = _leading(left), _leading(right)
        yield high_left, high_right
        yield high_left, right - high_right
        yield left - high_left, high_right

    @contextmanager
    def _allowed(self, tensor: Tensor) -> Iterator[None]:
        if self._precision == "float32" or not tensor.is_cuda:
            yield
            return
        backend = torch.backends.cuda.matmul
        saved = backend.fp32_precision
        backend.fp32_precision = "tf32"
        try:
            yield
        finally:
            backend.fp32_precision = saved


def _leading(tensor: Tensor) -> Tensor:
    """The part of a float32 number that TF32 holds exactly."""
    return (tensor.view(torch.int32) & _KEPT_BITS).view(torch.float32)
