"""Does an initialisation from data help? A small CNN against He initialisation, five seeds.

    PYTHONPATH=src python -m benchmarks.covariance_initialization --device cuda --data DIR

DIR holds ``fashion_mnist.npz`` and ``cifar10.npz`` (x_train, y_train, x_test, y_test, uint8).
Network and rule are those of [maennel2020], appendix E.3. The network has three 3x3 convolutions of
16 filters, a pool and 512 units. The rule is SGD with momentum 0.9, batches of 256 and learning
rate 0.002. The table has training and test accuracy after 100 and 1000 steps. All initialisations
share seeds, batches, dense layer and head.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from theodolite.interventions import covariance_init_
from theodolite_papers.lab.models import simple_cnn_pooled

SETS = ("fashion_mnist", "cifar10")
CHECKPOINTS = (100, 1000)
EXAMPLES, TEST_EXAMPLES, BATCH = 10_000, 2_000, 256
RATE, MOMENTUM = 0.002, 0.9
INIT_EXAMPLES = 2_000  # images whose statistics the initialiser sees

Split = tuple[Tensor, Tensor]


def start_he(net, images, generator):
    return net


def start_covariance(net, images, generator):
    return covariance_init_(net, images, filters="sampled", generator=generator)


def start_covariance_f1(net, images, generator):
    return covariance_init_(net, images, filters="sampled", tau="f1", generator=generator)


def start_eigenvector(net, images, generator):
    """The default: layers with more filters than dimensions (9 for grey images) are sampled."""
    return covariance_init_(net, images, generator=generator)


STARTS = {
    "he": start_he,
    "covariance": start_covariance,
    "covariance, f1": start_covariance_f1,
    "eigenvectors": start_eigenvector,
}


def load(path: Path, device: str) -> tuple[Split, Split]:
    """Images in [-1, 1], channels first, and labels."""
    with np.load(path, allow_pickle=False) as arrays:
        parts = [
            (arrays[f"x_{part}"][:count], arrays[f"y_{part}"][:count])
            for part, count in (("train", EXAMPLES), ("test", TEST_EXAMPLES))
        ]

    def tensors(x: np.ndarray, y: np.ndarray) -> Split:
        images = torch.from_numpy(x).to(device).float() / 127.5 - 1
        images = images.unsqueeze(1) if images.ndim == 3 else images.movedim(-1, 1)
        return images.contiguous(), torch.from_numpy(y.astype(np.int64)).to(device)

    return tensors(*parts[0]), tensors(*parts[1])


def accuracy(net: nn.Module, split: Split) -> float:
    with torch.no_grad():
        parts = zip(*(part.split(2000) for part in split), strict=True)
        right = [(net(x).argmax(1) == y).sum() for x, y in parts]
    return float(torch.stack(right).sum() / len(split[1]))


def batches(seed: int, steps: int) -> Tensor:
    """Indices of the examples of every step; incomplete batches of an epoch are dropped."""
    generator = torch.Generator().manual_seed(1000 + seed)
    per_epoch = EXAMPLES // BATCH
    epochs = [
        torch.randperm(EXAMPLES, generator=generator)[: per_epoch * BATCH]
        for _ in range(-(-steps // per_epoch))
    ]
    return torch.cat(epochs).view(-1, BATCH)[:steps]


def run(start: str, seed: int, train: Split, test: Split, steps: int) -> dict[str, float]:
    """One network from its start to the last checkpoint."""
    device = train[0].device
    shape = tuple(train[0].shape[1:])
    generator = torch.Generator().manual_seed(seed)
    net = simple_cnn_pooled(10, input_shape=shape, generator=generator).to(device)
    begun = time.perf_counter()
    STARTS[start](net, train[0][:INIT_EXAMPLES], generator)
    result = {"init_seconds": time.perf_counter() - begun}
    optimizer = torch.optim.SGD(
        net.parameters(), lr=RATE, momentum=MOMENTUM, fused=device.type == "cuda"
    )
    for step, index in enumerate(batches(seed, steps).to(device), start=1):
        optimizer.zero_grad()
        functional.cross_entropy(net(train[0][index]), train[1][index]).backward()
        optimizer.step()
        if step in CHECKPOINTS:
            result[f"train_{step}"] = accuracy(net, train)
            result[f"test_{step}"] = accuracy(net, test)
    return result


def summarize(runs: list[dict[str, float]], base: list[dict[str, float]]) -> dict[str, list[float]]:
    """Per number: mean and deviation over seeds, mean difference to He and its standard error."""
    table = {}
    for key in runs[0]:
        values, others = (np.array([run[key] for run in group]) for group in (runs, base))
        gap = values - others
        error = gap.std(ddof=1) / np.sqrt(len(gap)) if len(gap) > 1 else float("nan")
        spread = values.std(ddof=1) if len(values) > 1 else float("nan")
        table[key] = [float(values.mean()), float(spread), float(gap.mean()), float(error)]
    return table


def show(name: str, table: dict[str, dict[str, list[float]]]) -> None:
    keys = [key for key in next(iter(table.values())) if key != "init_seconds"]
    print(f"\n{name}: accuracy, mean (deviation over seeds); paired difference to He +- error")
    print(f"{'start':16s}" + "".join(f"{key:>28s}" for key in keys))
    for start, row in table.items():
        cells = [
            f"{row[k][0]:.3f} ({row[k][1]:.3f}) {row[k][2]:+.3f}+-{row[k][3]:.3f}" for k in keys
        ]
        print(f"{start:16s}" + "".join(f"{cell:>28s}" for cell in cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=max(CHECKPOINTS))
    parser.add_argument("--sets", nargs="*", default=SETS)
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    options = parser.parse_args()
    begun, record = time.perf_counter(), {}
    for name in options.sets:
        train, test = load(options.data / f"{name}.npz", options.device)
        runs = {
            start: [run(start, seed, train, test, options.steps) for seed in range(options.seeds)]
            for start in STARTS
        }
        table = {start: summarize(rows, runs["he"]) for start, rows in runs.items()}
        show(name, table)
        record[name] = {"runs": runs, "summary": table}
    record["seconds"] = time.perf_counter() - begun
    record["torch"], record["device"] = torch.__version__, options.device
    text = json.dumps(record, indent=1)
    print(f"\nJSON\n{text}")
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
