"""What processes measure together: shared by the workers and by the test that measures alone."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.survey.subjects import Reader, blobs, cnn, images, mlp

FEW = {"representation": 40, "kernel": 40, "gradient": 30, "tangent": 14, "pairs": 20}
# Processes -> examples of each: unequal, and none at all for some.
SHARES = {2: [(37, 23), (60, 0)], 3: [(11, 1, 48), (0, 40, 20)]}


def double_blobs() -> tuple[Tensor, Tensor]:
    x, y = blobs(60)
    return x.double(), y


def curve() -> tuple[Tensor, Tensor]:
    x, _ = blobs(60)
    # Some parts hold nothing but 0 and 1, which alone would look like two classes.
    y = x[:, :1].double().sin()
    y[:12] = (torch.arange(12) % 2).double().unsqueeze(1)
    return x.double(), y


def double_images() -> tuple[Tensor, Tensor]:
    x, y = images(60)
    return x.double(), y


def sentences() -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, 12, (60, 5), generator=torch.Generator().manual_seed(0))
    return ids, ids.where(torch.arange(5) > 0, -100)


def other_blobs() -> tuple[Tensor, Tensor]:
    x, y = blobs(25, seed=1)
    return x.double(), y


def other_sentences() -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, 12, (25, 5), generator=torch.Generator().manual_seed(1))
    return ids, ids.where(torch.arange(5) > 0, -100)


def tagged() -> tuple[Tensor, Tensor]:
    ids, _ = sentences()
    return ids, (ids % 3).where(ids != 7, -100)


def normalised() -> nn.Module:
    """Batch norm whose running statistics say something."""
    model = cnn().double()
    torch.manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    return model


def loader(x: Tensor, y: Tensor) -> Any:
    return DataLoader(TensorDataset(x, y), batch_size=7) if len(x) else []


@dataclass(frozen=True)
class Case:
    model: Callable[[], nn.Module] = lambda: mlp().double()
    data: Callable[[], tuple[Tensor, Tensor]] = double_blobs
    feed: Callable[[Tensor, Tensor], Any] = lambda x, y: (x, y)
    options: dict[str, Any] = field(default_factory=dict)
    truth: Callable[[Tensor], Tensor | None] = lambda x: None

    def with_options(self, **changes: Any) -> dict[str, Any]:
        """The keywords of a survey with more of its options."""
        return self.options | {"options": self.options.get("options", {}) | changes}


CASES: dict[str, Case] = {
    "all families": Case(
        options={"sizes": FEW, "options": {"half_samples": 3}, "permutations": 5},
        truth=lambda x: (x[:, 0] > 0).long(),
    ),
    "convolutions": Case(normalised, double_images, loader, {"permutations": 2, "sizes": FEW}),
    "sketch": Case(options={"families": "tangent", "options": {"tangent": "sketch"}, "sizes": FEW}),
    "regression": Case(lambda: mlp((6, 8, 1)).double(), curve, options={"sizes": FEW}),
    "positions": Case(
        lambda: Reader(outputs=3, causal=False).double(),
        tagged,
        options={"sizes": FEW, "permutations": 2},
    ),
    "next tokens": Case(lambda: Reader().double(), sentences, options={"sizes": FEW}),
    "wide layers": Case(
        lambda: mlp((6, 70, 90, 3)).double(),
        options={"options": {"memory_limit": 2**14}, "families": "kernel"},
    ),
    # Products of features leave no outputs, so these need passes of their own.
    "all layers wide": Case(
        lambda: mlp((6, 90, 100, 110)).double(),
        options={
            "options": {"memory_limit": 2**16, "permutations": 2},
            "families": "representation",
            "held_out": other_blobs(),
        },
    ),
    "held-out tokens": Case(
        lambda: Reader().double(),
        sentences,
        options={"families": "gradient", "sizes": FEW, "held_out": other_sentences()},
    ),
    "unlabeled": Case(feed=lambda x, y: x, options={"sizes": FEW}),
    "all examples": Case(options={"sizes": dict.fromkeys(FEW, None)}),
    "fewer than processes": Case(
        options={"sizes": dict.fromkeys(FEW, 2), "families": ["tangent", "kernel", "gradient"]}
    ),
}
MEASURED_TWICE = ("all families", "convolutions", "sketch")  # with both sets of shares
MONITOR = {
    "every": 2,
    "permutations": 3,
    "sizes": {"covariance": None},
    "options": {"details": True},
}


def shares_of(name: str, size: int) -> list[tuple[int, ...]]:
    """How the examples of a case are dealt out."""
    return SHARES[size] if name in MEASURED_TWICE else SHARES[size][-1:]


def split(data: tuple[Tensor, Tensor], shares: tuple[int, ...], rank: int) -> tuple[Tensor, Tensor]:
    """The examples of one process."""
    x, y = data
    return torch.split(x, list(shares))[rank], torch.split(y, list(shares))[rank]
