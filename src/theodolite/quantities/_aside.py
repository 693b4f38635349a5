"""Small work that a GPU does beside large work that it was asked for before."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["Aside"]


class Aside:
    """From here on, work may go beside what is asked for later, instead of after it.

    Many short kernels leave a GPU empty between them. In a stream of their own they slip in between
    the blocks of longer ones. Elsewhere than on CUDA, work is done when it is asked for.

    Args:
        device: Where the work happens. What it needs must have been asked for by now.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        cuda = device.type == "cuda"
        self._ready = torch.cuda.current_stream(device).record_event() if cuda else None

    @contextmanager
    def work(self) -> Iterator[None]:
        """Ask for work in the block; whatever is asked for after the block waits for it."""
        if self._ready is None:
            yield
            return
        stream = torch.cuda.Stream(self._device, priority=-1)  # type: ignore[no-untyped-call]
        stream.wait_event(self._ready)
        with torch.cuda.stream(stream):
            yield
        torch.cuda.current_stream(self._device).wait_stream(stream)
