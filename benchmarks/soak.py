"""Thousands of measurements in one process: do memory, file handles or times grow?

Run: ``python -m benchmarks.soak [--measurements 20000] [--surveys 2000] [--json FILE]``.

A monitor measures a small network at every step of its training and writes every step to disk. Then
as many surveys of new networks follow. Memory is the resident size after the allocator has returned
freed memory. A monitor keeps the records of its history on purpose. So the run is cut into monitors
of a thousand steps, and growth is measured between their ends. Times are processor seconds, which
other programs on the machine hardly change.
"""

import argparse
import ctypes
import gc
import json
import os
import tempfile
import time
from contextlib import suppress
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


def noted(done: int, begun: float, count: int) -> dict[str, float]:
    spent = time.process_time() - begun
    line = {"done": done, "MiB": round(resident(), 1), "handles": handles()}
    line["ms"] = round(1e3 * spent / max(1, count), 2)
    print(f"  {done:6d} done, {line['MiB']:8.1f} MiB, {line['handles']:3d} handles, "
          f"{line['ms']:7.2f} ms each", flush=True)  # fmt: skip
    return line


def monitors(measurements: int) -> list[dict[str, float]]:
    """Monitor steps, one monitor after the other; the training goes on between them."""
    torch.manual_seed(0)
    model, (x, y) = network(), examples()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = min(_STEPS, max(1, measurements // _PARTS))
    lines, done = [], 0
    every = max(1, measurements // steps // _PARTS)
    begun, since = time.process_time(), 0
    for index in range(measurements // steps):
        with tempfile.TemporaryDirectory() as folder:
            monitor = th.Monitor(model, (x, y), every=1, families="kernel", folder=f"{folder}/run")
            for step in range(steps):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                monitor.step(step)
            del monitor
        done, since = done + steps, since + steps
        if (index + 1) % every == 0:
            lines.append(noted(done, begun, since))
            begun, since = time.process_time(), 0
    return lines


def surveys(count: int) -> list[dict[str, float]]:
    """Surveys of fresh networks, all families."""
    lines = []
    begun, since = time.process_time(), 0
    for index in range(count):
        torch.manual_seed(index)
        th.survey(network(), examples(), permutations=2, progress=False).summary()
        since += 1
        if (index + 1) % max(1, count // _PARTS) == 0:
            lines.append(noted(index + 1, begun, since))
            begun, since = time.process_time(), 0
    return lines


def growth(lines: list[dict[str, float]], what: str) -> float:
    """Change from the second point, when all is loaded, to the last, as a share."""
    first, last = lines[min(1, len(lines) - 1)][what], lines[-1][what]
    return (last - first) / first


def print_growth(name: str, lines: list[dict[str, float]]) -> dict[str, Any]:
    shares = {what: growth(lines, what) for what in ("MiB", "handles", "ms")}
    print(f"{name}: memory {shares['MiB']:+.1%}, handles {shares['handles']:+.1%}, "
          f"time {shares['ms']:+.1%} from the second to the last tenth")  # fmt: skip
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
