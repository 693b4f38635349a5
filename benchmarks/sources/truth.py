"""Fine-tune every start network on its target with every subset of its sources."""

import itertools
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas
import torch
from torch import Tensor

from benchmarks.sources.encoder import Encoders
from benchmarks.sources.problems import IMAGES, PROBLEMS, SEEDS, TEXTS, Problem
from benchmarks.transfer.data import Images, seeded
from benchmarks.transfer.stacked import Assignment, Stack, accuracies, train
from benchmarks.transfer.tuning import precision_on
from benchmarks.transfer.zoo import ARCHITECTURES, LONG, Network

ARCHITECTURE = "residual 16"
RATES = {"images": (0.01, 0.03, 0.1), "texts": (3e-5, 1e-4, 3e-4)}
BATCH = {"images": 64, "texts": 32}
AT_ONCE = {"images": 640, "texts": 96}  # networks that are trained together
STARTS = sorted({problem.start for problem in IMAGES})


def subsets(problem: Problem) -> list[tuple[int, ...]]:
    """All subsets of the sources, by their places; the empty one first."""
    places = range(len(problem.sources))
    sizes = range(len(problem.sources) + 1)
    return [chosen for size in sizes for chosen in itertools.combinations(places, size)]


def rows_of(problem: Problem, chosen: tuple[int, ...]) -> Tensor:
    """Rows of the target and the chosen sources among a draw's examples."""
    parts = [torch.arange(problem.labels)]
    parts += [problem.labels + k * problem.each + torch.arange(problem.each) for k in chosen]
    return torch.cat(parts)


def repeated(rows: Tensor, length: int, seed: int) -> Tensor:
    """Random orders of the rows one after the other, cut to a length."""
    orders = [
        rows[torch.randperm(len(rows), generator=seeded(seed + turn))]
        for turn in range(-(-length // len(rows)))
    ]
    return torch.cat(orders)[:length]


def pretrain(images: Images, device: str) -> dict[str, dict[str, Tensor]]:
    """The start networks of the image problems: task -> state."""
    states = {}
    for index, name in enumerate(STARTS):
        task = images.source(name)
        torch.manual_seed(index)
        network = Network(ARCHITECTURES[ARCHITECTURE])
        stack = Stack.of(
            ARCHITECTURES[ARCHITECTURE], [network.state_dict()], device, precision_on(device)
        )
        rows = torch.arange(len(task.labels), device=device)[None]
        classes = torch.tensor([task.classes], device=device)
        data = Assignment(task.images.to(device), task.labels.to(device), rows, classes)
        rates = torch.full((1,), 0.1, device=device)
        train(stack, data, steps=LONG, batch=128, rates=rates, seed=index, decay=5e-4)
        states[name] = stack.state(0)
    return states


def fine_tuned(
    problem: Problem,
    arrays: Mapping[str, np.ndarray],
    states: Mapping[str, Mapping[str, Tensor]],
    device: str,
) -> Iterator[pandas.DataFrame]:
    """Accuracy on both halves of the test for every subset, seed and rate."""
    kind = "texts" if problem in TEXTS else "images"
    runs = list(itertools.product(SEEDS, subsets(problem), RATES[kind]))
    length = problem.labels + len(problem.sources) * problem.each
    parts = [torch.from_numpy(arrays[f"{problem.name}.{part}.x"]) for part in (*SEEDS, "test")]
    x = torch.cat(parts).to(device)
    y = torch.cat(
        [torch.from_numpy(arrays[f"{problem.name}.{part}.y"]) for part in (*SEEDS, "test")]
    )
    y, test = y.long().to(device), torch.arange(len(SEEDS) * length, len(x), device=device)
    for begin in range(0, len(runs), AT_ONCE[kind]):
        group, clock = runs[begin : begin + AT_ONCE[kind]], time.perf_counter()
        rows = torch.stack(
            [
                SEEDS.index(seed) * length + repeated(rows_of(problem, chosen), length, begin + k)
                for k, (seed, chosen, _) in enumerate(group)
            ]
        ).to(device)
        rates = torch.tensor([rate for *_, rate in group], device=device)
        if kind == "texts":
            x = x.long()
            networks = Encoders(
                arrays, len(group), problem.classes, device, precision_on(device), begin
            )
            networks.train(x, y, rows, rates, steps=problem.steps, batch=BATCH[kind], seed=begin)
            found = networks.accuracies(x[test], y[test])
        else:
            origin = Stack.of(
                ARCHITECTURES[ARCHITECTURE],
                [dict(states[problem.start])],
                device,
                precision_on(device),
            )
            stack = origin.chosen([0] * len(group))
            stack.new_heads(seeded(begin))
            classes = torch.full((len(group),), problem.classes, device=device)
            train(
                stack,
                Assignment(x, y, rows, classes),
                steps=problem.steps,
                batch=BATCH[kind],
                rates=rates,
                seed=begin,
            )
            found = accuracies(stack, Assignment(x, y, test.expand(len(group), -1), classes))
        table = pandas.DataFrame(
            {
                "problem": problem.name,
                "seed": [seed for seed, *_ in group],
                "sources": [" ".join(map(str, chosen)) for _, chosen, _ in group],
                "rate": [rate for *_, rate in group],
            }
        )
        table[["validation", "test"]] = found.double().cpu().numpy()
        print(f"{problem.name}: {len(group)} in {time.perf_counter() - clock:.1f} s", flush=True)
        yield table


def tune(packed: Path, packed_images: Path, folder: Path, device: str, names: list[str]) -> None:
    """Write ``truth.csv`` and the start networks."""
    with np.load(packed) as file:
        arrays = {key: file[key] for key in file}
    starts = folder / "starts.pt"
    if not starts.exists():
        torch.save(pretrain(Images(packed_images), device), starts)
    states = torch.load(starts, weights_only=True)
    tables = []
    for name in names or PROBLEMS:
        tables += list(fine_tuned(PROBLEMS[name], arrays, states, device))
        pandas.concat(tables).to_csv(folder / "truth.csv", index=False, float_format="%.4f")
