"""Data of any shape and type for small models: a survey, or an error that says what to do."""

from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

import theodolite as th
from theodolite.errors import TheodoliteError
from theodolite.records import FAMILIES

DTYPES = (
    torch.float32, torch.float32, torch.float32, torch.float64, torch.float16, torch.int64,
    torch.uint8, torch.bool, torch.complex64,
)  # fmt: skip


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x).mean(1))


def models() -> list[nn.Module]:
    torch.manual_seed(0)
    return [
        nn.Linear(4, 3),
        nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)),
        nn.Sequential(nn.Flatten(), nn.Linear(4, 1)),
        nn.Sequential(nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()),
        nn.Sequential(nn.Conv2d(1, 4, 2), nn.Flatten(), nn.Linear(16, 3)),
        nn.Sequential(nn.Flatten(), nn.LazyLinear(3)),
        Tokens(),
        nn.Sequential(),
        nn.Identity(),
    ]


def try_one(rng: Random, folder: Path) -> str:
    """Survey one of the models on data that may not fit it."""
    torch.manual_seed(rng.randrange(2**31))
    model = rng.choice(models())
    count = rng.choice([0, 1, 2, 3, 8, 20])
    x = _inputs(rng, count)
    y = _targets(rng, count if rng.random() < 0.9 else count + 1)
    if rng.random() < 0.3:  # something that fits
        model = rng.choice([model for model in models() if "0" in dict(model.named_modules())])
        wide = isinstance(model[0], nn.Conv2d)
        x = torch.randn(count, *((1, 3, 3) if wide else (4,)))
    data = rng.choice(
        [(x, y), [x, y], (x,), x, {"x": x, "y": y}, [(x, y)], [(x, y), (x[:1], y)], None, (y, x)]
    )
    if rng.random() < 0.5:
        data = (x, y)
    options: dict[str, Any] = {"permutations": rng.choice([0, 2])}
    if rng.random() < 0.7:
        options["families"] = rng.sample(sorted(FAMILIES), rng.randint(1, 2))
    if rng.random() < 0.2:
        options["layers"] = rng.choice([["0"], ["nowhere"], [], "", ["*"]])
    if rng.random() < 0.2:
        options["held_out"] = rng.choice([(x, y), x, None, (x[:2], y[:2])])
    try:
        found = th.survey(model, data, **options)
        found.summary()
    except TheodoliteError as error:
        if not str(error):
            raise AssertionError("an error without a word") from error
        return "refused"
    return "measured"


def _inputs(rng: Random, count: int) -> Tensor:
    shape = rng.choice([(4,), (4,), (4,), (1, 3, 3), (), (0,), (5,), (2, 2), (3, 4), (1, 1, 1)])
    values = torch.randn(count, *shape) * rng.choice([0.0, 1.0, 1.0, 1e-30, 1e30])
    if values.numel() and rng.random() < 0.15:
        values.view(-1)[0] = rng.choice([float("nan"), float("inf")])
    dtype = rng.choice(DTYPES)
    return values.abs().clamp(0, 10).to(dtype) if not dtype.is_floating_point else values.to(dtype)


def _targets(rng: Random, count: int) -> Tensor:
    kind = rng.randrange(8)
    if kind < 3:
        return torch.arange(count) % 3
    if kind == 3:
        return torch.randn(count)
    if kind == 4:
        return torch.randn(count, rng.choice([0, 1, 3]))
    if kind == 5:
        return torch.full((count,), rng.choice([-100, -1, 0, 7, 10**12]))
    if kind == 6:
        return torch.randint(0, 2, (count, 3)).to(rng.choice(DTYPES))
    return torch.randn(count, 3, 2, 2)
