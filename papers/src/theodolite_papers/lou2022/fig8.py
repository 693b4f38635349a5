"""Figure 8: smaller learning rates and larger batches move the peak, and cost accuracy."""

from dataclasses import dataclass, replace

import numpy as np

from theodolite.sweeps import Space
from theodolite_papers.ledger import (
    LARGE,
    Claim,
    Line,
    Measured,
    Outcome,
    Panel,
    Points,
    Results,
    Study,
    Trial,
    outcome,
)
from theodolite_papers.lou2022._depths import Tabled, depth_fit, measure_depth, peaks_of
from theodolite_papers.lou2022._hierarchy import by_setting

__all__ = ["STUDY", "Varied"]

_NAMES = {"a": "as tabled", "b": "rate / 4", "c": "batch 512"}


@dataclass(frozen=True)
class Varied(Tabled):
    """A network of the tables, trained in one of the three ways of Figure 8.

    Args:
        panel: "a" as tabled with batches of 128, "b" with a quarter of the learning rate, "c" with
            batches of 512.
    """

    panel: str = "a"


def measure(config: Varied, trial: Trial) -> Measured:
    """Peaks of networks of one depth, trained one way."""
    factor = 0.25 if config.panel == "b" else 1.0
    batch = 512 if config.panel == "c" else 128
    return measure_depth(replace(config, rate_factor=factor, batch_size=batch), trial)


def _constants(runs: Results) -> dict[str, float]:
    """C of the line with slope 3/5, for each way."""
    found = {}
    for panel, part in by_setting(runs, "panel").items():
        depths, peaks = peaks_of(part)
        if len(np.unique(depths)) > 1:
            found[str(panel)] = depth_fit(depths, peaks, 0.0)["constant"]
    return found


def _moved(runs: Results) -> Outcome:
    c = _constants(runs)
    if set(c) != {"a", "b", "c"}:
        return outcome(None, panels=len(c), **c)
    return outcome(c["b"] > c["a"] and c["c"] > c["a"], **c)


def _worse(runs: Results) -> Outcome:
    accuracies = {
        str(panel): float(np.nanmean(part["test_accuracy"]))
        for panel, part in by_setting(runs, "panel").items()
    }
    if set(accuracies) != {"a", "b", "c"}:
        return outcome(None, **accuracies)
    a, b, c = (accuracies[key] for key in "abc")
    return outcome(b < a and c < a, **accuracies)


def draw(runs: Results) -> list[Panel]:
    """Peaks against depth, one panel per way."""
    panels = []
    for panel, part in by_setting(runs, "panel", "a").items():
        depths, peaks = peaks_of(part)
        marks: list[Points | Line] = [Points("peaks", depths, peaks)]
        if len(np.unique(depths)) > 1:
            constant = depth_fit(depths, peaks, 0.0)["constant"]
            x = np.unique(depths)
            marks.append(Line("slope 3/5", x, np.exp(constant) * x**0.6, dashed=True))
        title = f"Figure 8{panel}, {_NAMES[str(panel)]}"
        panels.append(Panel(title, marks, "depth", "layer of the peak", "xy"))
    return panels


STUDY = Study(
    id="lou2022.fig8",
    title="The peak with smaller learning rates and larger batches",
    shows=("Figure 8",),
    measure=measure,
    configs={
        "smoke": Varied(depth=4, most_epochs=1, examples=128, probe=20),
        "lite": Varied(most_epochs=30),
        "published": Varied(data="fashion_mnist", stop_loss=None, probe=200, networks=3),
    },
    spaces={
        "smoke": Space({"panel": ["a", "b"]}),
        "lite": Space({"panel": ["a", "b", "c"], "depth": [6, 10, 15]}),
        "published": Space({"panel": ["a", "b", "c"], "depth": list(range(10, 101, 10))}),
    },
    seeds={"published": (101,)},
    claims=(
        Claim(
            "lou2022.fig8.moved",
            "with a quarter of the learning rate, and with batches of 512, the constant C of the "
            "line with slope 3/5 is larger",
            _moved,
            scope="seed",
            sizes=LARGE,
            fragile="on small data the peak stays near the input where little is learned",
        ),
        Claim(
            "lou2022.fig8.worse",
            "and test accuracy is worse",
            _worse,
            scope="seed",
            sizes=LARGE,
            fragile="on small data none of the three is far from its best accuracy",
        ),
    ),
    draw=draw,
    stand_in={"lite": "8x8 digits, width 128, depths 6 to 15, at most 30 epochs"},
    not_run={
        "published": "thirty networks of up to 100 layers for up to 300 epochs; the study of "
        "Figure 3 "
        "trains the tabled ones"
    },
)
