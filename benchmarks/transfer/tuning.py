"""Train the source networks, then fine-tune each on each target: the truth of the tables."""

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas
import torch
from torch import Tensor

from benchmarks.transfer.data import Images, Task, balanced_order, draws, seeded
from benchmarks.transfer.stacked import Assignment, Stack, accuracies, train
from benchmarks.transfer.zoo import ARCHITECTURES, SOURCES, Source, untrained

SOURCE_ROWS = 20_000
BUDGETS = {100: (60, 50), 400: (100, 64), 1_600: (160, 64)}  # labels: (steps, batch)
SEEDS = (0, 1, 2)
RATES = (0.03, 0.1, 0.3)
AT_ONCE = 40_000  # examples of one step of all networks together


def precision_on(device: str) -> torch.dtype:
    return torch.bfloat16 if device.startswith("cuda") else torch.float32


def stored(tasks: Sequence[Task], device: str) -> tuple[Tensor, Tensor, list[int]]:
    """Images and labels of all tasks one after the other, and where each begins."""
    images = torch.cat([task.images for task in tasks]).to(device)
    labels = torch.cat([task.labels for task in tasks]).to(device)
    begins = [0, *itertools.accumulate(len(task.labels) for task in tasks)]
    return images, labels, begins[:-1]


def train_sources(images: Images, folder: Path, device: str, steps_factor: float = 1.0) -> None:
    """Pretrain every source; one file of half-precision states per architecture."""
    names = sorted({source.task for source in SOURCES} - {"untrained"})
    tasks = {name: images.source(name) for name in names}
    pixels, labels, begins = stored(list(tasks.values()), device)
    begin = dict(zip(names, begins, strict=True))
    for architecture in ARCHITECTURES.values():
        start, states = time.perf_counter(), {}
        members = [source for source in SOURCES if source.architecture == architecture.name]
        for steps in sorted({source.steps for source in members}):
            group = [source for source in members if source.steps == steps]
            stack = Stack.of(
                architecture,
                [untrained(source).state_dict() for source in group],
                device,
                precision_on(device),
            )
            if steps > 0:
                rows = [
                    begin[source.task] + torch.arange(SOURCE_ROWS) % len(tasks[source.task].labels)
                    for source in group
                ]
                classes = torch.tensor([tasks[source.task].classes for source in group])
                data = Assignment(pixels, labels, torch.stack(rows).to(device), classes.to(device))
                rates = torch.full((len(group),), 0.1, device=device)
                count = max(1, int(steps * steps_factor))
                train(stack, data, steps=count, batch=128, rates=rates, seed=steps, decay=5e-4)
                reached = accuracies(stack, trimmed(data, 2_000)).mean(1).tolist()
                for source, value in zip(group, reached, strict=True):
                    print(f"{source}: {value:.3f} of its training examples", flush=True)
            for index, source in enumerate(group):
                states[str(source)] = stack.state(index, torch.float16)
        torch.save(states, folder / f"{architecture.name.replace(' ', '_')}.pt")
        print(f"{architecture.name}: {time.perf_counter() - start:.1f} s", flush=True)


def trimmed(data: Assignment, count: int) -> Assignment:
    """The same with the first ``count`` examples of each network."""
    return Assignment(data.images, data.labels, data.rows[:, :count], data.classes)


def load_states(folder: Path, architecture: str) -> dict[str, dict[str, Tensor]]:
    """Source -> state dictionary."""
    file = folder / f"{architecture.replace(' ', '_')}.pt"
    return torch.load(file, weights_only=True)


def labelled_rows(task: Task, seed: int) -> Tensor:
    """Examples of a target's pool in the order in which a draw takes them."""
    return balanced_order(task.labels, draws(10 + seed, "pool"))


@dataclass(frozen=True)
class Run:
    """One fine-tuning."""

    source: int  # of the architecture's sources
    target: str
    seed: int
    rate: float


def fine_tune(
    images: Images,
    folder: Path,
    device: str,
    *,
    architecture: str,
    targets: Sequence[str],
    budget: int,
    rates: Sequence[float] = RATES,
    seeds: Sequence[int] = SEEDS,
    precision: torch.dtype | None = None,
    sources: Sequence[Source] | None = None,
    steps_factor: float = 1.0,
) -> Iterator[pandas.DataFrame]:
    """Test accuracies of all fine-tunings of one architecture with so many labels.

    Networks start from the source with a fresh head; all parameters are trained. Yields one table
    per group of networks that were trained together, with the accuracy on both halves of the test.
    """
    known = load_states(folder, architecture)
    chosen = [
        source
        for source in (SOURCES if sources is None else sources)
        if source.architecture == architecture
    ]
    precision = precision_on(device) if precision is None else precision
    states = [known[str(source)] for source in chosen]
    originals = Stack.of(ARCHITECTURES[architecture], states, device, precision)
    pools = {target: images.target(target, "pool") for target in targets}
    tests = {target: images.target(target, "test") for target in targets}
    pool_images, pool_labels, pool_begins = stored(list(pools.values()), device)
    test_images, test_labels, test_begins = stored(list(tests.values()), device)
    rows = {
        (target, seed): begin + labelled_rows(pools[target], seed)[:budget]
        for target, begin in zip(targets, pool_begins, strict=True)
        for seed in seeds
    }
    test_rows = dict(zip(targets, test_begins, strict=True))
    steps, batch = BUDGETS[budget]
    runs = [
        Run(source, target, seed, rate)
        for target in targets
        for source in range(len(chosen))
        for seed in seeds
        for rate in rates
    ]
    together = max(1, int(AT_ONCE * 16 / ARCHITECTURES[architecture].width) // batch)
    for first in range(0, len(runs), together):
        group = runs[first : first + together]
        start = time.perf_counter()
        stack = originals.chosen([run.source for run in group])
        stack.new_heads(seeded(first))
        classes = torch.tensor([pools[run.target].classes for run in group], device=device)
        data = Assignment(
            pool_images,
            pool_labels,
            torch.stack([rows[run.target, run.seed] for run in group]).to(device),
            classes,
        )
        train(
            stack,
            data,
            steps=max(1, int(steps * steps_factor)),
            batch=batch,
            rates=torch.tensor([run.rate for run in group], device=device),
            seed=first,
        )
        size = min(len(task.labels) for task in tests.values())
        columns = [test_rows[run.target] + torch.arange(size) for run in group]
        test = Assignment(test_images, test_labels, torch.stack(columns).to(device), classes)
        table = pandas.DataFrame([vars(run) for run in group])
        table["source"] = [str(chosen[run.source]) for run in group]
        table.insert(2, "labels", budget)
        table[["validation", "test"]] = accuracies(stack, test).double().cpu().numpy()
        seconds = time.perf_counter() - start
        print(f"{architecture}, {budget} labels: {len(group)} runs in {seconds:.2f} s", flush=True)
        yield table
