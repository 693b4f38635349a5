"""Under ``torchrun`` the processes of one command measure together, and the first one speaks."""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["is_first", "process_group"]


def is_first() -> bool:
    """Whether this process prints and writes: always, unless a launcher started others before."""
    return int(os.environ.get("RANK", "0")) == 0


@contextmanager
def process_group(device: torch.device) -> Iterator[torch.device]:
    """All processes that a launcher started as one group; gives the device of this one."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield device
        return
    own = device
    if device.type == "cuda" and device.index is None:
        own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(own)
    # Imported later, its default arguments would hold the group, and the process abort at its end.
    importlib.import_module("torch.distributed.nn.functional")
    torch.distributed.init_process_group("nccl" if own.type == "cuda" else "gloo")
    try:
        yield own
    finally:
        torch.distributed.destroy_process_group()
