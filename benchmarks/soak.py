"""Thousands of measurements in one process: do memory, file handles or times grow?

Run: ``python -m benchmarks.soak [--measurements 20000] [--surveys 2000] [--json FILE]``.

First come surveys of new small networks. Then a monitor measures a small network at every step of
its training and writes every step to disk. Memory is the resident size after the allocator has
returned freed memory. A monitor keeps the records of its history on purpose. So the run is cut into
monitors of a thousand steps, and growth is measured between their ends. Times are processor
seconds. Other programs on the machine still change them, by a half on two shared cores. So training
steps without any measurement are timed in turns with the measurements, and the ratio of both is
noted too.
"""

import argparse
import ctypes
import gc
import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import theodolite as th

_PARTS = 10  # points at which memory, handles and times are noted
_STEPS = 1000  # of a monitor


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def examples() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(64, 16)
    return x, x[:, :4].argmax(1)


def resident() -> float:
    """Mebibytes of this process, after everything unused was handed back."""
    gc.collect()
    with suppress(OSError):  # another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def handles() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


class Clock:
    """Processor time of measurements and of training steps, since the last note."""

    def __init__(self) -> None:
        self.spent = {"measure": 0.0, "train": 0.0}
        self.count = {"measure": 0, "train": 0}

    def run(self, kind: str, call: Callable[[], Any]) -> None:
        """Make a call, and add its time."""
        begun = time.process_time()
        call()
        self.spent[kind] += time.process_time() - begun
        self.count[kind] += 1

    def note(self, done: int) -> dict[str, float]:
        """A line of the table; the clock begins anew."""
        each, step = (1e3 * self.spent[kind] / self.count[kind] for kind in self.spent)
        line = {"done": done, "MiB": round(resident(), 1), "handles": handles()}
        line |= {"ms": round(each, 2), "training steps": round(each / step, 1)}
        print(f"  {done:6d} done, {line['MiB']:8.1f} MiB, {line['handles']:3d} handles, "
              f"{each:7.2f} ms each, {each / step:6.1f} training steps", flush=True)  # fmt: skip
        self.spent = dict.fromkeys(self.spent, 0.0)
        self.count = dict.fromkeys(self.count, 0)
        return line


def trained(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """A function that makes one training step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def monitors(measurements: int) -> list[dict[str, float]]:
    """Monitor steps, one monitor after the other; the training goes on between them."""
    torch.manual_seed(0)
    model, (x, y) = network(), examples()
    train, clock = trained(model, x, y), Clock()
    steps = min(_STEPS, max(1, measurements // _PARTS))
    lines: list[dict[str, float]] = []
    every = max(1, measurements // steps // _PARTS)
    for index in range(measurements // steps):
        with tempfile.TemporaryDirectory() as folder:
            monitor = th.Monitor(model, (x, y), every=1, families="kernel", folder=f"{folder}/run")
            for step in range(steps):
                clock.run("train", train)
                clock.run("measure", partial(monitor.step, step))
            del monitor
        if (index + 1) % every == 0:
            lines.append(clock.note((index + 1) * steps))
    return lines


def surveys(count: int) -> list[dict[str, float]]:
    """Surveys of fresh networks, all families."""
    lines: list[dict[str, float]] = []
    train, clock = trained(network(), *examples()), Clock()

    def measure() -> None:
        th.survey(network(), examples(), permutations=2, progress=False).summary()

    for index in range(count):
        torch.manual_seed(index)
        clock.run("measure", measure)
        for _ in range(10):
            clock.run("train", train)
        if (index + 1) % max(1, count // _PARTS) == 0:
            lines.append(clock.note(index + 1))
    return lines


def growth(lines: list[dict[str, float]], what: str) -> float:
    """Change from the second point, when all is loaded, to the last, as a share."""
    first, last = lines[min(1, len(lines) - 1)][what], lines[-1][what]
    return (last - first) / first


def print_growth(name: str, lines: list[dict[str, float]]) -> dict[str, Any]:
    shares = {what: growth(lines, what) for what in ("MiB", "handles", "ms", "training steps")}
    print(f"{name}: memory {shares['MiB']:+.1%}, handles {shares['handles']:+.1%}, "
          f"time {shares['ms']:+.1%}, in training steps {shares['training steps']:+.1%} "
          "from the second to the last tenth")  # fmt: skip
    return {"lines": lines, "growth": shares}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measurements", type=int, default=20_000)
    parser.add_argument("--surveys", type=int, default=2_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = {}
    for name, run, count in (
        ("surveys", surveys, options.surveys),
        ("monitor", monitors, options.measurements),
    ):
        if count:
            print(f"{name}: {count} measurements of a network of {16 * 16 + 16 + 68} parameters")
            found[name] = print_growth(name, run(count))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
