"""A matrix times its own transpose, in half of the products; PyTorch has no such product.

That of NumPy's BLAS is a third faster than panels of PyTorch's, and it comes out exactly
symmetric. Its threads and those of PyTorch would hinder each other on the same cores, so it is for
one thread only.
"""

from functools import lru_cache

import numpy as np
import torch
from threadpoolctl import LibController, ThreadpoolController  # type: ignore[import-untyped]
from torch import Tensor

__all__ = ["gram_into", "is_gram", "on_one_thread"]


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
