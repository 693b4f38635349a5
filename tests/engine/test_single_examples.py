"""A model that refuses a single example is refused with that reason, by every function."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import theodolite as th
from theodolite import engine
from theodolite.errors import CaptureError


class Pairs(nn.Module):
    """Takes two examples or more."""

    def __init__(self, error: type[Exception]) -> None:
        super().__init__()
        self.layer, self.error = nn.Linear(4, 3), error

    def forward(self, x: Tensor) -> Tensor:
        if len(x) < 2:
            raise self.error("more than one, please")
        return self.layer(x)


class BatchStatistics(nn.Module):
    """Normalises over its batch by a function, out of sight of a list of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.batch_norm(self.layer(x), None, None, training=True)


class RandomDepth(nn.Module):
    """Skips layers by random numbers of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(4)])
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)) if random.random() < 0.5 else x
        return self.head(x)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "assert": lambda: Pairs(AssertionError),
    "runtime error": lambda: Pairs(RuntimeError),
    "value error": lambda: Pairs(ValueError),
    "batch statistics": BatchStatistics,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "tangent_kernels": lambda model, x, y: th.tangent_kernels(model, x),
    "tangent_features": lambda model, x, y: engine.tangent_features(model, x),
    "tangent_alignments": lambda model, x, y: engine.tangent_alignments(model, x, y),
    "gradient_alignment": lambda model, x, y: th.gradient_alignment(model, x, y),
    "gradient_sums": lambda model, x, y: engine.gradient_sums(model, x, y),
    "features": lambda model, x, y: th.features(model, x),
    "feature_moments": lambda model, x, y: engine.feature_moments(model, x),
    "feature_grams": lambda model, x, y: engine.feature_grams(model, x),
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("model", MODELS)
def test_the_reason_is_the_single_example(model: str, function: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    with pytest.raises(CaptureError, match=r"expected to take one example, got \w+ where it takes"):
        FUNCTIONS[function](MODELS[model](), x, y)


@pytest.mark.parametrize("seed", range(12))  # in some, the first pass skips a layer
def test_a_random_depth_is_no_underflow(seed: int) -> None:
    torch.manual_seed(0)
    random.seed(seed)
    with pytest.raises(CaptureError, match="expected the same outputs whenever an example is run"):
        th.tangent_kernels(RandomDepth(), torch.randn(1, 6))
