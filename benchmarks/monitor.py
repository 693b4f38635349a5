"""Overhead of the monitor with its default settings: a probe of 256 examples every 100 steps.

``python -m benchmarks.monitor [--device cuda] [--steps 1000]``: batch-128 training of ResNet-18 on
a GPU, of a small CNN on 8x8 digits on the CPU. Training and measurements are timed in turns, so
that a change of clock speed meets both. The goal is at most 5 %.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

import theodolite as th
from benchmarks.resnet import ResNet18

BATCH, PROBE, EVERY = 128, 256, 100
GOAL = 0.05


def digits_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def training(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        chosen = torch.randint(len(images), (BATCH,), device=images.device)
        optimizer.zero_grad()
        functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()

    return step


def seconds(call: Callable[[], object], device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - started


def overhead(model: nn.Module, shape: tuple[int, ...], device: str, steps: int) -> float:
    images = torch.randn(2048, *shape, device=device)
    labels = torch.arange(2048, device=device) % 10
    model.to(device)
    step = training(model, images, labels)
    probe = images[:PROBE], labels[:PROBE]
    monitor = th.Monitor(model, probe, loss=nn.CrossEntropyLoss(), every=EVERY)

    def train() -> None:
        for _ in range(EVERY):
            step()

    seconds(train, device)
    first = seconds(lambda: monitor.step(0), device)
    plain, watched = [], []
    for index in range(1, steps // EVERY + 1):
        plain.append(seconds(train, device))
        watched.append(seconds(lambda index=index: monitor.step(index * EVERY), device))
    parts = monitor.history.run.steps[-1].contents["seconds"]
    print("  last measurement:", {name: f"{s * 1e3:.1f} ms" for name, s in parts.items()})
    print(f"  first measurement, with checks: {first * 1e3:.1f} ms")
    print(f"  {EVERY} steps {sum(plain) / len(plain) * 1e3:.0f} ms, ", end="")
    print(f"measurements {', '.join(f'{s * 1e3:.0f}' for s in watched)} ms")
    return sum(watched) / sum(plain)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    cuda = arguments.device.startswith("cuda")
    torch.manual_seed(0)
    model = ResNet18() if cuda else digits_cnn()
    shape = (3, 32, 32) if cuda else (1, 8, 8)
    name = "ResNet-18" if cuda else "CNN on digits"
    print(f"{name}, batch {BATCH}, a probe of {PROBE} every {EVERY} steps, on {arguments.device}")
    share = overhead(model, shape, arguments.device, arguments.steps)
    verdict = "within" if share <= GOAL else "over"
    print(f"  overhead {100 * share:.1f} %, {verdict} the goal of {100 * GOAL:.0f} %")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
