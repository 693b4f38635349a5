"""Steps per second of the training loop, beside a plain hand-written one, and of ensembles.

Runs of both are interleaved, and the fastest ones count. The time of a step is the difference of a
long and a short run. So the preparation (recording a CUDA graph, evaluations for the log) does not
count.
"""

import argparse
import contextlib
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from theodolite_papers.lab.models import mlp, vgg16
from theodolite_papers.lab.training import Checkpoint, Recipe, TrainingState, train, train_ensemble

BATCH = 256


@dataclass(frozen=True)
class Case:
    """A network, its inputs' shape, and how long the short run is."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    steps: dict[str, int]


CASES = (
    Case(
        "10 layers of 256",
        lambda: mlp([784, *[256] * 9, 10], bias=False, generator=seeded()),
        (784,),
        {"cuda": 400, "cpu": 10},
    ),
    Case(
        "2 layers, 1024 units",
        lambda: mlp([3072, 1024, 10], bias=False, generator=seeded()),
        (3072,),
        {"cuda": 400, "cpu": 10},
    ),
    Case("VGG16", lambda: vgg16(generator=seeded()), (3, 32, 32), {"cuda": 80, "cpu": 1}),
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def data(shape: tuple[int, ...], device: str, count: int = 48 * BATCH) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, *shape, generator=seeded())
    return x.to(device), (torch.arange(count) % 10).to(device)


def bare_loop(model: nn.Module, x: Tensor, y: Tensor, steps: int, batch: int = BATCH) -> None:
    """A training loop as users write it by hand."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    model.train()
    step = 0
    while step < steps:
        order = torch.randperm(len(x), device=x.device)
        for chosen in order.split(batch):
            loss = functional.cross_entropy(model(x[chosen]), y[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == steps:
                break


def recipe(steps: int, batch: int = BATCH, **options) -> Recipe:
    return Recipe(
        optimizer="momentum",
        learning_rate=1e-3,
        batch_size=batch,
        steps=steps,
        log="ends",
        **options,
    )


def seconds(call: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def per_step(
    runs: dict[str, tuple[Callable[[int], object], int]], device: str, repeats: int
) -> dict[str, float]:
    """Seconds per step of each way: minima of short and long runs, taken in turn."""
    best: dict[tuple[str, int], float] = {}
    for run, steps in runs.values():
        run(min(5, steps))
    for _ in range(repeats):
        for factor in (1, 3):
            for name, (run, steps) in runs.items():
                taken = seconds(partial(run, factor * steps), device)
                best[name, factor] = min(taken, best.get((name, factor), float("inf")))
    return {
        name: (best[name, 3] - best[name, 1]) / (2 * steps) for name, (_, steps) in runs.items()
    }


def single(case: Case, device: str, repeats: int) -> None:
    x, y = data(case.shape, device)
    steps = case.steps[device]

    def ours(steps: int, graphs: bool = True) -> None:
        train(case.build().to(device), (x, y), recipe(steps, graphs=graphs))

    runs = {
        "bare": (lambda steps: bare_loop(case.build().to(device), x, y, steps), steps),
        "train": (ours, steps),
    }
    if device == "cuda":
        runs["train, no graphs"] = (partial(ours, graphs=False), steps)
    times = per_step(runs, device, repeats)
    for name, taken in times.items():
        ratio = times["bare"] / taken
        print(f"{case.name:22s} {name:18s} {1 / taken:10.1f} steps/s  {ratio:6.2f}x the bare loop")


def ensemble(device: str, repeats: int, count: int = 100, batch: int = 128) -> None:
    x, y = data((64,), device, 8 * batch)

    def networks() -> list[nn.Module]:
        return [mlp([64, 64, 10], generator=seeded(i)).to(device) for i in range(count)]

    def bare(steps: int) -> None:
        for model in networks():
            bare_loop(model, x, y, steps, batch)

    def replayed(steps: int) -> None:
        for model in networks()[: count // 10]:
            train(model, (x, y), recipe(steps, batch))

    def together(steps: int) -> None:
        train_ensemble(networks(), (x, y), recipe(steps, batch))

    # The faster a way, the more steps it needs to be seen beside the building of the networks.
    few, more, most = (20, 200, 1000) if device == "cuda" else (5, 5, 20)
    runs = {"bare, one by one": (bare, few), "together": (together, most)}
    if device == "cuda":
        runs["train, one by one"] = (replayed, more)
    times = per_step(runs, device, repeats)
    if "train, one by one" in times:
        times["train, one by one"] *= 10  # a tenth of the networks was run
    for name, taken in times.items():
        ratio = times["bare, one by one"] / taken
        print(f"{count} networks 64-64-10    {name:18s} {taken * 1e3:8.3f} ms/step  {ratio:6.1f}x")


def agreement(device: str) -> None:
    """Recorded, plain and stacked steps give the same numbers (float64)."""
    x, y = data((20,), device, 300)

    def network(seed: int = 0) -> nn.Module:
        return mlp([20, 16, 10], generator=seeded(seed)).double().to(device)

    for name in ("sgd", "momentum", "nesterov", "adam", "rmsprop"):
        how = replace(
            recipe(60, 64, weight_decay=1e-2, schedule="linear", layer_rates={"fc1": 2e-2}),
            optimizer=name,
            learning_rate=1e-2,
        )
        models = [network(i) for i in range(4)]
        train_ensemble(models, (x, y), how)
        alone, plain, host = network(2), network(2), network(2).cpu()
        train(alone, (x, y), replace(how, seed=2))
        train(plain, (x, y), replace(how, seed=2, graphs=False))
        train(host, (x, y), replace(how, seed=2))
        differences = [difference(alone, other) for other in (plain, models[2], host)]
        listed = ", ".join(f"{value:.1e}" for value in differences)
        print(f"agreement {name:9s} plain, ensemble, CPU: {listed}")
        assert max(differences[:2]) < 1e-10
        assert differences[2] < 1e-6  # learning rates on a GPU are float32


def resuming(device: str) -> None:
    """A run that was stopped and resumed ends where the uninterrupted one ends, dropout and all."""
    x, y = data((20,), device, 300)

    def network() -> nn.Module:
        parts = [mlp([20, 16], generator=seeded(1)), nn.Dropout(0.3), mlp([16, 10])]
        torch.nn.init.normal_(parts[2].fc1.weight, generator=seeded(2))
        return nn.Sequential(*parts).to(device)

    def interrupt(state: TrainingState) -> None:
        if state.step == 37:
            raise KeyboardInterrupt

    whole, resumed = network(), network()
    train(whole, (x, y), recipe(60, 64))
    with tempfile.TemporaryDirectory() as folder:
        kept = Checkpoint(f"{folder}/run.pt", every=10)
        with contextlib.suppress(KeyboardInterrupt):
            train(network(), (x, y), recipe(60, 64), callbacks=[interrupt], checkpoint=kept)
        train(resumed, (x, y), recipe(60, 64), checkpoint=kept)
    print(f"resumed against uninterrupted: {difference(whole, resumed):.1e}")
    assert difference(whole, resumed) < 1e-5


def difference(one: nn.Module, two: nn.Module) -> float:
    pairs = zip(one.parameters(), two.parameters(), strict=True)
    return max((a - b.to(a)).abs().max().item() for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="part of a section's name")
    arguments = parser.parse_args()
    device, repeats = arguments.device, arguments.repeats
    sections: dict[str, Callable[[], None]] = {
        "agreement": lambda: agreement(device),
        "resuming": lambda: resuming(device),
        **{case.name: partial(single, case, device, repeats) for case in CASES},
        "ensemble": lambda: ensemble(device, repeats),
    }
    for name, section in sections.items():
        if arguments.only in name:
            section()


if __name__ == "__main__":
    main()
