"""Figures 9 and 10: the hierarchy through training at three learning rates."""

import numpy as np

from theodolite.sweeps import Space
from theodolite_papers.ledger import Claim, Outcome, Panel, Results, Study, outcome
from theodolite_papers.lou2022._course import Course, follow, layer_lines
from theodolite_papers.lou2022._hierarchy import by_setting, hierarchy_line

__all__ = ["STUDY"]


def _rises(runs: Results) -> Outcome:
    early, final = runs["early"][0], runs["height"][0]
    start = float(runs.array("curves")[0, 0].max())
    return outcome(
        early > 1.5 * start and early >= final / 2, start=start, early=early, final=final
    )


def _costs(runs: Results) -> Outcome:
    """Per data set, the largest rate has a lower test accuracy than the best of the others."""
    numbers: dict[str, float] = {}
    holds: list[bool] = []
    for name, part in by_setting(runs, "data", "digits").items():
        rates = by_setting(part, "learning_rate")
        accuracies = {rate: p.mean("test_accuracy") for rate, p in rates.items()}
        largest = max(accuracies)
        if len(accuracies) < 2 or not np.isfinite([*accuracies.values()]).all():
            continue
        others = max(value for rate, value in accuracies.items() if rate != largest)
        numbers |= {f"{name} largest": accuracies[largest], f"{name} others": others}
        holds.append(accuracies[largest] < others)
    return outcome(all(holds) if holds else None, data_sets=len(holds), **numbers)


def draw(runs: Results) -> list[Panel]:
    """Per data set and rate: layers against steps; all final hierarchies together."""
    panels = []
    for name, part in by_setting(runs, "data", "digits").items():
        finals = []
        for rate, same in by_setting(part, "learning_rate", 0.03).items():
            title = f"Figures 9 and 10, {name}, rate {rate:g}"
            panels.append(Panel(title, layer_lines(same), "step", "alignment", "x"))
            finals.append(hierarchy_line(f"rate {rate:g}", same, "final"))
        panels.append(Panel(f"{name}, final", finals, "layer", "alignment"))
    return panels


STUDY = Study(
    id="lou2022.fig9-10",
    title="The alignment hierarchy through training at three learning rates",
    shows=("Figure 9", "Figure 10"),
    measure=follow,
    configs={
        "smoke": Course(
            depth=4, width=16, epochs=2, examples=200, probe=20, early_epochs=1, moments=4
        ),
        "lite": Course(moments=12),
        "paper": Course(
            data="fashion_mnist", width=256, epochs=40, probe=200, early_epochs=2, moments=16
        ),
    },
    spaces={
        "smoke": Space({"learning_rate": [0.003, 0.03]}),
        "lite": Space({"learning_rate": [0.003, 0.01, 0.03]}),
        "paper": Space(
            {"data": ["fashion_mnist", "cifar10"], "learning_rate": [0.05, 0.005, 0.003]}
        ),
    },
    seeds={"paper": (101,)},
    claims=(
        Claim(
            "lou2022.fig9-10.rises",
            "the largest alignment rises by half or more within the first epochs (10 of the "
            "digits), to at least half of its final value",
            _rises,
        ),
        Claim(
            "lou2022.fig9-10.costs",
            "too large a learning rate (0.05) costs test accuracy",
            _costs,
            scope="seed",
            sizes=("paper",),
            published={
                "fashion_mnist largest": 87.1,
                "fashion_mnist others": 88.3,
                "cifar10 largest": 51.4,
                "cifar10 others": 56.0,
            },
            fragile="the largest rate of the small network, 0.03, is not too large for it",
        ),
    ),
    draw=draw,
    stand_in={
        "lite": "8x8 digits, width 64, learning rates 0.003, 0.01, 0.03",
        "paper": "of the learning rates 0.05 alone is legible; 40 epochs; the accuracies beside it "
        "are those of depth 10 in Tables 2 (width 100) and 1",
    },
)
