"""Overhead of the monitor with its default settings: a probe set of 256 examples every 100 steps.

``python -m benchmarks.monitor [--device cuda] [--steps 1000]`` trains ResNet-18 with batches of 128
on a GPU, or a small CNN on 8x8 digits on the CPU. Training and measurements are timed in turns, so
that a change of clock speed affects both. The goal is at most 5 %. The first measurement checks the
engine, and the last one measures everything. Both happen once in a run and have rows of their own.

``--calls`` instead counts calls of torch's operations (without views) per part of a measurement.
The host of a GPU must launch each of them. The count is the same on every machine.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import theodolite as th
from benchmarks.resnet import ResNet18
from theodolite.surveys.record import RecordBuilder

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
    """By the clock on a GPU; on the CPU, where others may work beside us, processor time."""
    if not device.startswith("cuda"):
        started = time.process_time()
        call()
        return time.process_time() - started
    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - started


class CountedCalls(TorchDispatchMode):
    """Operations that make or change numbers, by part of a survey."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.calls = "other", Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and func is not torch.ops.aten.detach.default:
            self.calls[self.part] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def counted_calls() -> Iterator[CountedCalls]:
    """Counts calls by the part of the survey that is timed."""
    counted, timed = CountedCalls(), RecordBuilder.timed

    @contextmanager
    def noted(record: RecordBuilder, part: str) -> Iterator[None]:
        outer, counted.part = counted.part, part
        with timed(record, part):
            yield
        counted.part = outer

    RecordBuilder.timed = noted
    try:
        with counted:
            yield counted
    finally:
        RecordBuilder.timed = timed


def calls(model: nn.Module, shape: tuple[int, ...], device: str) -> None:
    """Calls of a measurement with all families, and of one without the costly ones."""
    images = torch.randn(PROBE, *shape, device=device)
    probe = images, torch.arange(PROBE, device=device) % 10
    monitor = th.Monitor(model.to(device), probe, loss=nn.CrossEntropyLoss(), every=1)
    for step in range(10):  # 8 is complete, 9 is not
        with counted_calls() as counted:
            monitor.step(step)
        if step in (8, 9):
            parts = dict(counted.calls.most_common())
            print(f"  measurement {step}: {counted.calls.total()} calls {parts}")


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
    for record in monitor.history.run.steps:
        parts = record.contents["seconds"]
        texts = (f"{name} {s * 1e3:.1f}" for name, s in parts.items())
        print(f"  step {record.contents['step']}: {', '.join(texts)} ms")
    last = seconds(monitor.close, device)
    print(f"  once a run: first {first * 1e3:.0f} ms, last in full {last * 1e3:.0f} ms")
    print(f"  {EVERY} steps {sum(plain) / len(plain) * 1e3:.0f} ms, ", end="")
    print(f"measurements {', '.join(f'{s * 1e3:.0f}' for s in watched)} ms")
    return sum(watched) / sum(plain)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--model", choices=("resnet18", "cnn"))
    arguments = parser.parse_args()
    default = "resnet18" if arguments.device.startswith("cuda") else "cnn"
    large = (arguments.model or default) == "resnet18"
    torch.manual_seed(0)
    model = ResNet18() if large else digits_cnn()
    shape = (3, 32, 32) if large else (1, 8, 8)
    name = "ResNet-18" if large else "CNN on digits"
    print(f"{name}, batch {BATCH}, a probe of {PROBE} every {EVERY} steps, on {arguments.device}")
    if arguments.calls:
        calls(model, shape, arguments.device)
        return 0
    share = overhead(model, shape, arguments.device, arguments.steps)
    verdict = "within" if share <= GOAL else "over"
    print(f"  overhead {100 * share:.1f} %, {verdict} the goal of {100 * GOAL:.0f} %")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
