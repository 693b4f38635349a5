"""Freed memory that the next call finds again."""

from functools import lru_cache

import torch

__all__ = ["keep_freed_memory"]

_LARGEST = 2**25 - 2**16  # bytes; of larger blocks glibc takes no notice


@lru_cache(maxsize=1)
def keep_freed_memory() -> None:
    """Let glibc keep up to 64 MiB of what a process frees instead of handing it back.

    It keeps twice the size of the largest block that it has seen freed. Otherwise kernels of some
    megabytes are handed back, and every page of the next ones is asked for and cleared anew, which
    can take as long as half of the products. Other allocators have limits of their own.
    """
    torch.empty(_LARGEST, dtype=torch.uint8, device="cpu")
