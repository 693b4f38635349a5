"""Omega of 10,000 vectors of length 20,000 (float32), beside one pass of ``norm`` over the data.

Run: ``python -m benchmarks.omega [--device cuda]``. The lower bound reads the data once. Omega
needs the norms and the sums of all vectors, and checks that they are finite. The next rows are for
classes, and show how the cost grows with n and d.
"""

import argparse
from math import log

import torch

from benchmarks.stopwatch import Measured, measure
from theodolite.measures import gradient


def vectors(n: int, d: int, device: str) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(0)
    return torch.randn(n, d, generator=generator, device=device) + 0.1


def compare(n: int, d: int, device: str) -> tuple[Measured, Measured]:
    """One norm pass and Omega, in one run."""
    v = vectors(n, d, device)
    labels = torch.arange(n, device=device) % 10
    floor = measure(lambda: torch.linalg.vector_norm(v), device)
    print(f"n = {n:,}, d = {d:,}, float32, {v.numel() * 4 / 2**30:.2f} GiB of data")
    print(floor.line("one norm pass (floor)"))
    omega = measure(lambda: gradient.vector_alignment(v), device)
    print(omega.line("vector_alignment", floor))
    contrast = measure(lambda: gradient.alignment_contrast(v, labels), device)
    print(contrast.line("alignment_contrast, 10 classes", floor))
    stiffness = measure(lambda: gradient.cosine_stiffness(v), device)
    print(stiffness.line("cosine_stiffness", floor))
    return floor, omega


def growth(device: str) -> None:
    """Measured exponents of time in n and d; both are predicted to be 1."""
    small = vectors(2_000, 5_000, device)
    base = measure(lambda: gradient.vector_alignment(small), device)
    for name, shape in (("n", (8_000, 5_000)), ("d", (2_000, 20_000))):
        large = vectors(*shape, device)
        grown = measure(lambda: gradient.vector_alignment(large), device)  # noqa: B023
        print(
            f"time grows as {name}^{log(grown.seconds / base.seconds) / log(4):.2f} (predicted 1)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--count", type=int, default=10_000)
    arguments = parser.parse_args()
    compare(arguments.count, 20_000, arguments.device)
    growth(arguments.device)


if __name__ == "__main__":
    main()
