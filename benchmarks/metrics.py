"""A million rows of 512 features streamed through every metric, beside one pass over the same data.

Run: ``python -m benchmarks.metrics``, with ``--device cuda`` on a GPU, ``--rows 100000`` for less.
The lower bound reads every batch once, converts it to float64 and multiplies it with itself. All
methods with exact second moments need this. Batches are drawn when they are needed, and this time
does not count. Only the state of each metric stays in memory.
"""

import argparse
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torchmetrics import Metric

from theodolite import metrics
from theodolite.measures import gradient, kernel, representation

CLASSES = 10
Batch = tuple[Tensor, Tensor]


def batches(rows: int, width: int, size: int, device: str) -> Iterator[Batch]:
    """Float32 features with a mean of 10 and class structure, drawn as they are needed."""
    generator = torch.Generator(device).manual_seed(0)
    means = torch.randn(CLASSES, width, device=device, generator=generator)
    for start in range(0, rows, size):
        count = min(size, rows - start)
        labels = torch.randint(CLASSES, (count,), device=device, generator=generator)
        noise = torch.randn(count, width, device=device, generator=generator)
        yield 10 + means[labels] + noise, labels


def stream(step: Callable[[Tensor, Tensor], object], source: Iterator[Batch], device: str) -> float:
    """Seconds spent in ``step``, generation left out."""
    total = 0.0
    for features, labels in source:
        synchronize(device)
        start = time.perf_counter()
        step(features, labels)
        synchronize(device)
        total += time.perf_counter() - start
    return total


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def floor(width: int, device: str) -> Callable[[Tensor, Tensor], object]:
    gram = torch.zeros(width, width, dtype=torch.float64, device=device)

    def step(features: Tensor, labels: Tensor) -> None:
        wide = features.double()
        gram.addmm_(wide.mT, wide)

    return step


def cases(device: str) -> dict[str, tuple[Metric, Callable]]:
    """Each metric, with the call for one batch."""
    levels = torch.linspace(0.01, 1, 50, device=device, dtype=torch.float64)
    fine = torch.tensor([1e-6], device=device, dtype=torch.float64)
    made = {
        "CovarianceState": metrics.CovarianceState(),
        "RepresentationAlignment, Gram": metrics.RepresentationAlignment(
            CLASSES, levels, rows="none"
        ),
        "RepresentationAlignment, QR": metrics.RepresentationAlignment(CLASSES, fine, rows="none"),
        "TargetCKA": metrics.TargetCKA(CLASSES),
        "PairCKA (halves of the columns)": metrics.PairCKA(),
        "VectorAlignment": metrics.VectorAlignment(CLASSES),
    }
    calls: dict[str, tuple[Metric, Callable]] = {}
    for name, metric in made.items():
        calls[name] = (metric.to(device), caller(metric))
    return calls


def caller(metric: Metric) -> Callable[[Tensor, Tensor], object]:
    if isinstance(metric, metrics.CovarianceState):
        return lambda features, labels: metric.update(features)
    if isinstance(metric, metrics.PairCKA):
        return lambda features, labels: metric.update(*features.chunk(2, dim=1))
    return metric.update


def check(device: str) -> None:
    """Values of a short stream against the measures on all of it, before anything is timed."""
    parts = list(batches(600, 16, 70, device))
    x = torch.cat([features for features, _ in parts]).double()
    y = torch.cat([labels for _, labels in parts])
    found = {}
    for name, (metric, step) in cases(device).items():
        for features, labels in parts:
            step(features, labels)
        found[name] = metric.compute()
    levels = torch.linspace(0.01, 1, 50, device=device, dtype=torch.float64)
    curve = representation.alignment_curve(x, y, levels, rows="none")
    expected = {
        "CovarianceState": torch.cov(x.mT, correction=0),
        "RepresentationAlignment, Gram": curve.values,
        "TargetCKA": kernel.target_cka(x, y),
        "PairCKA (halves of the columns)": kernel.linear_cka(*x.chunk(2, dim=1)),
        "VectorAlignment": gradient.class_alignment(x, y),
    }
    for name, value in expected.items():
        error = (found[name] - value).abs().max().item()
        print(f"{name:34s} differs from one shot by {error:.1e}")
        if not error < 1e-9:
            raise SystemExit("outputs differ: not timed")


def compare(rows: int, width: int, size: int, device: str) -> None:
    """One line per metric: rows per second, and the time in units of the floor."""
    print(f"\n{rows} rows of {width} in batches of {size}, {CLASSES} classes, {device}")
    stream(floor(width, device), batches(4 * size, width, size, device), device)  # warm up
    base = stream(floor(width, device), batches(rows, width, size, device), device)
    print(f"{'floor: read, convert, multiply once':40s} {rows / base:12.0f} rows/s")
    for name, (metric, step) in cases(device).items():
        stream(step, batches(2 * size, width, size, device), device)  # warm up
        metric.reset()
        taken = stream(step, batches(rows, width, size, device), device)
        start = time.perf_counter()
        metric.compute()
        synchronize(device)
        final = time.perf_counter() - start
        route = f", route {metric.route}" if hasattr(metric, "route") else ""
        print(
            f"{name:40s} {rows / taken:12.0f} rows/s  {taken / base:6.2f} x floor"
            f"   compute {final:.2f} s{route}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=4096, help="rows per batch; 65536 for a GPU")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    check(options.device)
    compare(options.rows, options.width, options.batch, options.device)


if __name__ == "__main__":
    main()
