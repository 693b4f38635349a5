"""Training or evaluation mode for the length of a block."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["in_mode"]


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put the model into one mode; every module has its own mode back afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.train(training)
    try:
        yield
    finally:
        for module, before in modes.items():
            module.training = before
