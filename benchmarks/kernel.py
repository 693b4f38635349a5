"""CKA of 12 layers with each other and with labels at n = 10,000, exact and debiased.

Run: ``python -m benchmarks.kernel``, with ``--device cuda`` on a GPU, ``--count 2000`` for less.
The lower bound is one float64 product per layer, which every exact method needs. It is the cheaper
of two: the Gram matrices of the layers, or the joint covariance of all their features. Its data are
in float64 already. The alternative forms all n x n matrices and compares them pair by pair.
"""

import argparse

import torch
from torch import Tensor

from benchmarks.stopwatch import attempt, measure
from theodolite.measures.kernel import cka, cka_matrix, target_cka, target_gram

LAYERS = 12
CLASSES = 10


def layers(count: int, width: int, device: str) -> tuple[list[Tensor], Tensor]:
    """Float32 features of a random deep network, so that neighbours are alike."""
    generator = torch.Generator(device).manual_seed(0)
    labels = torch.arange(count, device=device) % CLASSES
    means = torch.randn(CLASSES, width, device=device, generator=generator)
    rows = means[labels] + torch.randn(count, width, device=device, generator=generator)
    found = []
    for _ in range(LAYERS):
        weights = torch.randn(width, width, device=device, generator=generator)
        rows = torch.relu(rows @ weights * (2 / width) ** 0.5)
        found.append(rows)
    return found, labels


def floor(wide: list[Tensor]) -> None:
    """The products alone, by the cheaper side, half of each by symmetry."""
    count, total = len(wide[0]), sum(rows.shape[1] for rows in wide)
    if total <= count:
        for index, rows in enumerate(wide):
            for other in wide[index:]:
                rows.mT @ other
        return
    step = max(1, count // 8)
    for rows in wide:
        for low in range(0, count, step):
            rows[low : low + step] @ rows[low:].mT


def pairwise(data: list[Tensor], labels: Tensor) -> Tensor:
    """All Gram matrices, then every pair by itself."""
    grams = [rows.double() @ rows.double().mT for rows in data]
    grams = [*grams, target_gram(labels)]
    values = [cka(a, b) for i, a in enumerate(grams) for b in grams[i + 1 :]]
    return torch.stack(values)


def compare(count: int, width: int, device: str, *, slow: bool) -> None:
    """One line per way to the same table."""
    data, labels = layers(count, width, device)
    print(f"\nn={count}, {LAYERS} layers of width {width}, {CLASSES} classes, {device}")
    wide = [rows.double() for rows in data]
    base = measure(lambda: floor(wide), device, repeats=3)
    del wide
    print(base.line("floor: the products alone"))
    attempt("cka_matrix, layers and labels", lambda: cka_matrix(data, labels), device, base)
    attempt("target_cka, one by one", lambda: [target_cka(r, labels) for r in data], device, base)
    if slow:
        attempt("all Gram matrices, pair by pair", lambda: pairwise(data, labels), device, base)


def check(device: str) -> None:
    """The table against the pairs, before anything is timed."""
    data, labels = layers(200, 64, device)
    expected = pairwise(data, labels)
    rows, columns = torch.triu_indices(LAYERS + 1, LAYERS + 1, 1)
    table = cka_matrix(data, labels)
    both = torch.cat([table.between, table.target.unsqueeze(1)], 1).double()
    last = torch.cat([table.target, table.target.new_ones(1)]).double()
    found = torch.cat([both, last.unsqueeze(0)])[rows, columns]
    error = (found - expected).abs().max().item()
    print(f"largest difference from the Gram matrices, n=200: {error:.1e}")
    if error > 1e-5:
        raise SystemExit("outputs differ: not timed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--count", type=int, default=10_000)
    options = parser.parse_args()
    check(options.device)
    with torch.no_grad():
        for width in (512, 2048):
            compare(options.count, width, options.device, slow=options.device != "cpu")
        print("\nhow the cost grows")
        for count in (options.count // 4, options.count // 2, options.count):
            data, labels = layers(count, 512, options.device)
            attempt(
                f"n={count}, width 512", lambda d=data, y=labels: cka_matrix(d, y),
                options.device, None,
            )  # fmt: skip
        for width in (128, 256, 512, 1024):
            data, labels = layers(options.count // 4, width, options.device)
            attempt(
                f"n={options.count // 4}, width {width}",
                lambda d=data, y=labels: cka_matrix(d, y), options.device, None,
            )  # fmt: skip


if __name__ == "__main__":
    main()
