"""Figure 4: higher peaks of alignment go with better generalisation, over batch sizes and rates."""

import numpy as np

from theodolite_papers.ledger import (
    CORRELATION,
    LARGE,
    Claim,
    Heat,
    Outcome,
    Panel,
    Points,
    Results,
    Space,
    Study,
    above,
    below,
    decided,
    outcome,
    spearman,
)
from theodolite_papers.lou2022._hierarchy import (
    by_setting,
    converged,
    hierarchy_line,
    peak_between,
    run_once,
    settings_of,
)
from theodolite_papers.lou2022._setting import Architecture

__all__ = ["STUDY"]


def _correlated(runs: Results) -> Outcome:
    cells = converged(runs)
    rank, of_all = (
        spearman(part["height"], -part["test_loss"]) if len(part) > 2 else np.nan
        for part in (cells, runs)
    )
    return decided(
        above("rank correlation", rank, possible=CORRELATION),
        premise=bool(np.isfinite(rank)),
        of_all_cells=of_all,
        cells=len(cells),
    )


def _with_rate(runs: Results) -> Outcome:
    """At each batch size the height rises with the learning rate."""
    ranks = {
        f"batch {size}": spearman(settings_of(part, "learning_rate"), part["height"])
        for size, part in by_setting(converged(runs), "batch_size").items()
        if len(part) > 1
    }
    if not ranks:
        return outcome(None, rows=0)
    return decided(
        *(above(name, rank, possible=CORRELATION) for name, rank in ranks.items()), rows=len(ranks)
    )


def _with_batch(runs: Results) -> Outcome:
    ranks = {}
    for rate, part in by_setting(converged(runs), "learning_rate").items():
        if len(part) > 1:
            ranks[f"rate {rate:g}"] = spearman(settings_of(part, "batch_size"), part["height"])
    mean = float(np.mean([*ranks.values()])) if ranks else np.nan
    return decided(below("mean", mean, possible=CORRELATION), premise=bool(ranks), **ranks)


def _moves(runs: Results) -> Outcome:
    cells = converged(runs)
    if len(cells) < 3:
        return outcome(None, cells=len(cells))
    noise = settings_of(cells, "learning_rate") / settings_of(cells, "batch_size")
    rank = spearman(noise, cells["peak"])
    return decided(
        above("rank correlation", rank, possible=CORRELATION), cells=len(cells)
    )  # nan: it does not move


def draw(runs: Results) -> list[Panel]:
    """Heights and test losses of the grid, their scatter, and curves along one row."""
    sizes = sorted(by_setting(runs, "batch_size", 128))
    rates = sorted(by_setting(runs, "learning_rate", 0.03))
    panels = []
    for key, title in (("height", "height of the peak"), ("test_loss", "test loss")):
        cells = [
            [_cell(runs.where(batch_size=size, learning_rate=rate), key) for rate in rates]
            for size in sizes
        ]
        heat = Heat(np.asarray(cells), [str(s) for s in sizes], [f"{r:g}" for r in rates])
        panels.append(Panel(f"Figure 4, {title}", [heat], "learning rate", "batch size"))
    points = Points("runs", runs["height"], runs["test_loss"])
    panels.append(Panel("Figure 4, all runs", [points], "height of the peak", "test loss"))
    middle = runs.where(batch_size=sizes[len(sizes) // 2])
    curves = [
        hierarchy_line(f"rate {rate:g}", part, "after")
        for rate, part in sorted(by_setting(middle, "learning_rate").items())
    ]
    panels.append(Panel(f"batch size {sizes[len(sizes) // 2]}", curves, "layer", "alignment"))
    return panels


def _cell(runs: Results, key: str) -> float:
    """Mean of a number; nan where the cell was not run."""
    return runs.mean(key) if len(runs) else float("nan")


_GRID: dict[str, list[float]] = {"batch_size": [32, 128, 512], "learning_rate": [0.003, 0.01, 0.03]}
STUDY = Study(
    id="lou2022.fig4",
    title="Alignment over a grid of batch sizes and learning rates",
    shows=("Figure 4",),
    measure=run_once,
    configs={
        "smoke": Architecture(depth=4, width=16, epochs=1, examples=200, probe=20),
        "lite": Architecture(epochs=150),
        "reduced": Architecture(data="fashion_mnist", width=256, epochs=120, probe=200),
    },
    spaces={
        "smoke": Space({"batch_size": [128], "learning_rate": [0.01, 0.03]}),
        "lite": Space(_GRID),
        "reduced": Space(
            {"batch_size": [128, 512, 32, 2048], "learning_rate": [0.01, 0.0032, 0.001, 0.0005]}
        ),
    },
    seeds={"reduced": (101,)},
    claims=(
        Claim(
            "lou2022.fig4.correlated",
            "over the cells that reach training loss 0.1, the height of the peak rises as the "
            "test loss falls (sign of their rank correlation)",
            _correlated,
            scope="seed",
        ),
        Claim(
            "lou2022.fig4.rate",
            "at each batch size the height rises with the learning rate",
            _with_rate,
            scope="seed",
        ),
        Claim(
            "lou2022.fig4.batch",
            "at a given learning rate the height falls with the batch size (mean rank correlation)",
            _with_batch,
            scope="seed",
            fragile="at batch size 32 the largest rate of the small network is too large",
        ),
        Claim(
            "lou2022.fig4.moves",
            "the peak moves away from the input with larger rates and smaller batches",
            _moves,
            scope="seed",
            sizes=LARGE,
            fragile="the paper describes convolutional networks, whose peak starts at the end",
        ),
        Claim(
            "lou2022.fig4.place",
            "in fully connected networks the peak lies in the first half (in VGG19 in the middle, "
            "in ResNet18 close to the end: see Figures 12 and 15)",
            peak_between(0.0, 0.5),
            scope="all",
            sizes=LARGE,
        ),
    ),
    draw=draw,
    stand_in={
        "lite": "8x8 digits, fully connected, width 64; small convolutional networks are in the "
        "studies of Figures 12 to 15",
    },
    not_run={
        "published": "Figures 4b and 4c and up to 500 epochs need a cluster. Figures 12 to 15 "
        "have single rows; 'theodolite sweep lou2022.fig4 --size reduced --set data=cifar10 "
        "--set architecture=resnet18,vgg19' trains them all",
    },
    remarks={
        "reduced": "the values of the grid are not given: those of Figures 12 and 14; at most 120 "
        "epochs instead of 500; ResNet18 and VGG19 are in the studies of Figures 12 to 15",
    },
)
