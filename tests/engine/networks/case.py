"""A network with its data, and what every function must do with it."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

FUNCTIONS = ("kernels", "trace", "tangent features", "gradients", "features")
COUNT = 12
WIDTH = 4
CLASSES = 3


@dataclass(frozen=True)
class Expected:
    """What one function must do.

    Args:
        outcome: ``"batched"`` or ``"one by one"``, both exact, ``"exact"`` for either of them, or
            ``"refused"``.
        reason: Regular expression that the message of a refusal must match.
    """

    outcome: str
    reason: str = ""

    def __str__(self) -> str:
        return self.outcome


BATCHED = Expected("batched")
ONE_BY_ONE = Expected("one by one")
EXACT = Expected("exact")


def refused(reason: str) -> Expected:
    """A refusal whose message matches."""
    return Expected("refused", reason)


@dataclass(frozen=True)
class Case:
    """A model in the mode in which it is measured, inputs as a user passes them, and labels."""

    model: nn.Module
    inputs: Any
    labels: Tensor
    readout: Any = None
    batch_size: int | None = None
    pool: str = "flatten"
    loss: Any = None


@dataclass(frozen=True)
class Network:
    """A row of the table.

    Args:
        name: Name of the row.
        build: Makes the model; called with a fixed seed.
        data: Makes the inputs; called after the model.
        expected: For all functions.
        others: Function -> what it must do instead.
        options: Fields of :class:`Case`.
        dtype: In which the model is measured; the truth is always float64.
        tolerance: Relative to the largest number.
    """

    name: str
    build: Callable[[], nn.Module]
    data: Callable[[], Any]
    expected: Expected
    others: Mapping[str, Expected] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float64
    tolerance: float = 1e-8

    def of(self, function: str) -> Expected:
        """What a function must do."""
        return self.others.get(function, self.expected)

    def case(self, dtype: torch.dtype | None = None) -> Case:
        """A fresh model with its data; equal for equal dtypes."""
        dtype = dtype or self.dtype
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model, inputs = self.build(), self.data()
        options = dict(self.options)
        if not options.pop("training", False):
            model.eval()
        # Both are rounded to the dtype of the measurement first: the truth sees the same numbers.
        converted(model, self.dtype)
        converted(model, dtype)
        inputs = real_as(real_as(inputs, self.dtype), dtype)
        labels = options.pop("labels", None)
        if labels is None:
            first = inputs
            while not isinstance(first, Tensor):
                first = next(iter(first.values() if isinstance(first, Mapping) else first))
            labels = torch.arange(len(first)) % options.pop("classes", CLASSES)
        return Case(model, inputs, real_as(labels, dtype), **options)


def converted(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast real parameters and buffers; complex ones keep their kind."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)


def real_as(value: Any, dtype: torch.dtype) -> Any:
    """Nested inputs with real tensors of this dtype."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {key: real_as(item, dtype) for key, item in value.items()}
    return tuple(real_as(item, dtype) for item in value)


def vectors(count: int = COUNT, width: int = WIDTH) -> Callable[[], Tensor]:
    return lambda: torch.randn(count, width)


def tokens(count: int = COUNT, steps: int = 3, width: int = WIDTH) -> Callable[[], Tensor]:
    return lambda: torch.randn(count, steps, width)


def words(count: int = COUNT, steps: int = 3, size: int = 7) -> Callable[[], Tensor]:
    return lambda: torch.randint(0, size, (count, steps))


def images(count: int = COUNT, channels: int = 2, size: int = 6) -> Callable[[], Tensor]:
    return lambda: torch.randn(count, channels, size, size)


def ragged() -> Tensor:
    """Sequences of different lengths; zeros are padding."""
    x = torch.randn(COUNT, 5, WIDTH)
    for row, length in zip(x, (3, 1, 5, 2, 4, 3, 2, 2, 1, 5, 3, 4), strict=True):
        row[length:] = 0.0
    return x


def one_large(place: int = 9) -> Callable[[], Tensor]:
    """One example, of a later batch, has a number above 10."""

    def make() -> Tensor:
        x = torch.randn(COUNT, WIDTH)
        x[place, 0] = 12.0
        return x

    return make


def scripted(thing: Any) -> Any:
    """A scripted function or module; that scripting is on its way out is not our subject."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(thing)
