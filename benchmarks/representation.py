"""The alignment curve beside the one Gram matrix that it needs, and beside a thin SVD.

Run: ``python -m benchmarks.representation [--device cuda]``. The defaults on a CPU are n = 50,000
examples, d = 512 features and 10 classes. On a GPU they are 2,048 features and 100 classes. The
lower bound is one float64 ``features.T @ features``. The last rows show how the cost grows with n
and d.
"""

import argparse
import resource
from functools import partial
from math import log

import torch
from torch import Tensor

from benchmarks.stopwatch import Measured, measure
from theodolite.measures.representation import (
    alignment_area,
    alignment_curve,
    curve_from_projections,
    label_projections,
    prepare_features,
)

absolute_curve = partial(alignment_curve, rows="none", scale="absolute")


def problem(n: int, d: int, classes: int, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Features with a decaying spectrum and class means, rows of unit length, and labels."""
    generator = torch.Generator(device).manual_seed(0)
    labels = torch.arange(n, device=device) % classes
    decay = torch.linspace(0, -2, d, device=device, dtype=dtype).exp2()
    means = torch.randn(classes, d, generator=generator, device=device, dtype=dtype)
    noise = torch.randn(n, d, generator=generator, device=device, dtype=dtype)
    return prepare_features((0.3 * means[labels] + noise) * decay).features, labels


def check(device: str) -> None:
    """Every route against the literal sum over the singular vectors, before anything is timed."""
    features, labels = problem(3000, 64, 10, device, torch.float64)
    u, sigma, _ = torch.linalg.svd(features, full_matrices=False)
    mass = (u.mT @ torch.nn.functional.one_hot(labels).double()).square().sum(1)
    grid = torch.cat([(sigma[1:] + sigma[:-1]) / 2, sigma[:1] / 1e3])
    expected = torch.stack([mass[sigma >= level].sum() for level in grid])
    for route in ("auto", "gram", "qr", "svd"):
        projections = label_projections(features, labels, route=route)
        curve = curve_from_projections(projections, grid, scale="absolute")
        error = (curve.values - expected).abs().max()
        print(f"largest difference from the definition, route {route}: {error / len(labels):.1e} n")
        if error > 1e-9 * len(labels):
            raise SystemExit("outputs differ: not timed")


def target(n: int, d: int, classes: int, device: str) -> None:
    """Ratios at one size, for features in float64 and in float32."""
    for dtype in (torch.float64, torch.float32):
        features, labels = problem(n, d, classes, device, dtype)
        wide = features.double()
        print(f"\nn={n} d={d} classes={classes} {dtype}")
        floor = measure(lambda wide=wide: wide.mT @ wide, device)
        print(floor.line("floor: float64 features.T @ features"))
        del wide
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        curve = measure(lambda x=features, y=labels: absolute_curve(x, y), device)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
        print(curve.line(f"alignment curve, route {curve.result.route}", floor))
        print(f"{'':44s} process memory grew by {grown:.2f} GiB; input {size(features):.2f} GiB")
        area = measure(lambda x=features, y=labels: alignment_area(x, y, rows="none"), device)
        print(area.line("alignment area", floor))
        accurate = measure(lambda x=features, y=labels: label_projections(x, y), device, 1)
        print(accurate.line(f"projections to rounding, route {accurate.result.route}", floor))
        svd = measure(lambda x=features: torch.linalg.svd(x, full_matrices=False), device, 1)
        print(svd.line(f"thin torch.linalg.svd, {dtype}", floor))
        print(f"{'':44s} curve {svd.seconds / curve.seconds:.1f} times faster than that SVD")


def size(tensor: Tensor) -> float:
    return tensor.numel() * tensor.element_size() / 2**30


def growth(n: int, d: int, classes: int, device: str) -> None:
    """Time at halved sizes, and the exponents they imply."""
    print("\ngrowth of the alignment curve (float32 features)")
    timed = {}
    for rows, columns in ((n, d), (n // 2, d), (n // 4, d), (n, d // 2), (n, d // 4)):
        features, labels = problem(rows, columns, classes, device, torch.float32)
        timed[rows, columns] = measure(lambda x=features, y=labels: absolute_curve(x, y), device)
        print(timed[rows, columns].line(f"n={rows} d={columns}"))
    print(f"exponent in n: {exponent(timed[n, d], timed[n // 4, d]):.2f}")
    print(f"exponent in d: {exponent(timed[n, d], timed[n, d // 4]):.2f}")


def exponent(large: Measured, small: Measured) -> float:
    return log(large.seconds / small.seconds) / log(4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--n", type=int, default=50_000)
    parser.add_argument("--d", type=int)
    parser.add_argument("--classes", type=int)
    options = parser.parse_args()
    cuda = options.device.startswith("cuda")
    d, classes = options.d or (2048 if cuda else 512), options.classes or (100 if cuda else 10)
    check(options.device)
    target(options.n, d, classes, options.device)
    growth(options.n, d, classes, options.device)


if __name__ == "__main__":
    main()
