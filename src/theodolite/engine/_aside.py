"""Small work that a GPU does beside large work that it was asked for before."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch

__all__ = ["Aside"]


class Aside:
    """From here on, work may go beside what is asked for later, instead of after it.

    Many short kernels leave a GPU empty between them. In a stream of their own they slip in between
    the blocks of longer ones, and copies to the GPU do not wait for these. Elsewhere than on CUDA,
    work is done when it is asked for.

    Args:
        device: Where the work happens. What it needs must have been asked for by now.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = None
        if device.type == "cuda":
            self._stream = _side_stream(device, threading.get_ident())
            self._stream.wait_stream(torch.cuda.current_stream(device))

    @contextmanager
    def work(self) -> Iterator[None]:
        """Ask for work in the block; whatever is asked for after the block waits for it."""
        if self._stream is None:
            yield
            return
        try:
            with torch.cuda.stream(self._stream), warnings.catch_warnings():
                # Parameters were first used in the main stream; autograd waits for both: a warning.
                warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream")
                yield
        finally:  # after an error too: the model is put back in the main stream
            torch.cuda.current_stream(self._device).wait_stream(self._stream)


@lru_cache(maxsize=32)
def _side_stream(device: torch.device, _thread: int) -> Any:
    """The same one every time: each has cached memory, and workspaces of products, of its own.

    What a thread leaves in it may be used again once its next ``Aside`` has waited for the main
    stream, where that was read.
    """
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
