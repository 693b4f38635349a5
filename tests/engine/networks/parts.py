"""What all rows of the table of networks are made of: a model from parts and a forward pass."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.engine.networks.case import (
    BATCHED,
    CLASSES,
    WIDTH,
    Network,
    vectors,
)


class Wrapped(nn.Module):
    """A model made of parts and a forward pass."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self._forward = forward
        for name, part in parts.items():
            if isinstance(part, nn.Module | nn.Parameter):
                setattr(self, name, part)
            elif isinstance(part, Tensor):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(self, *args, **kwargs)


def head(width: int = WIDTH) -> nn.Linear:
    return nn.Linear(width, CLASSES)


def simple(function: Callable[[Any, Tensor], Tensor], **parts: Any) -> Callable[[], nn.Module]:
    """A model that is a function of its parts, which are made anew each time."""
    return lambda: Wrapped(function, **{name: make() for name, make in parts.items()})


def weight(*shape: int) -> Callable[[], nn.Parameter]:
    return lambda: nn.Parameter(torch.randn(*shape))


def linear(width: int = WIDTH, rows: int | None = None) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(width, width if rows is None else rows)


def net(name: str, build: Callable[[], nn.Module], data: Any = None, **more: Any) -> Network:
    return Network(name, build, data or vectors(), more.pop("expected", BATCHED), **more)
