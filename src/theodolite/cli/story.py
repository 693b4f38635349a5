"""The demo: one network on true labels, the same on random labels, and a small CNN.

Each network trains in its own process if there are enough cores. This module does not import
torch, so that processes start at once.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from theodolite.advice.noticing import (
    Check,
    contrast_is_higher,
    last_area_rises,
    random_labels_are_late,
)
from theodolite.errors import StudyError
from theodolite.surveys import History, compare
from theodolite.sweeps import Report, run_in_processes

if TYPE_CHECKING:
    from theodolite.cli.networks import Watched


CNN = "CNN"
NETWORKS = ("true labels", "random labels", CNN)


@dataclass(frozen=True)
class StorySettings:
    """Sizes of the demo.

    Args:
        steps: training steps of each network.
        examples: number of training examples.
        width: width of the hidden layers of the MLP.
        moments: number of measurements between the first and the last step.
        seed: seed of split, labels, weights and batches.
    """

    steps: int = 250
    examples: int = 500
    width: int = 256
    moments: int = 4
    seed: int = 0

    def measured_steps(self) -> list[int]:
        """Measured steps: the first, the last, and between them more at the start."""
        spaced = np.geomspace(1, self.steps, self.moments).round().astype(int)
        return sorted({0, self.steps, *spaced.tolist()})


@dataclass(frozen=True)
class Story:
    """Results of the demo.

    Args:
        histories: histories by name, on training examples with their training labels.
        accuracies: accuracies of each network on its training set (training labels) and test set.
        sizes: numbers of training examples and test examples.
        checks: what to notice in the numbers, and whether it is true in this run.
        reports: the page of the MLPs, and the page of the CNN; one page would be large.
    """

    histories: Mapping[str, History]
    accuracies: Mapping[str, tuple[float, float]]
    sizes: tuple[int, int]
    checks: tuple[Check, ...]
    reports: tuple[Path, Path]


def tell_story(
    settings: StorySettings, folder: Path, show: Report, *, workers: int | None = None
) -> Story:
    """Train and watch three networks; save, check and draw their histories.

    Args:
        settings: sizes of the demo.
        folder: folder for one record per history, and for the reports.
        show: called with (finished share, text).
        workers: number of processes; 1 trains in this process, None uses one per core. The numbers
            are the same.

    Raises:
        StudyError: If a network could not be trained or measured.
    """
    watched: dict[str, Watched] = {}

    def keep(name: str, outcome: "Watched") -> None:
        watched[name] = outcome
        for called, history in outcome.histories.items():
            history.save(folder / called.replace(", ", "-").replace(" ", "-").lower())
        if name == CNN:  # write its page while others are still in training
            history.to_html(folder / "cnn.html", title="Digits: a small CNN")

    show(0.0, "starting")
    if workers is None:
        workers = min(len(NETWORKS), _cores())
    jobs = [CNN, *NETWORKS[:-1]]  # the CNN first: its page is written while others train

    def tell(share: float, text: str) -> None:
        show(share, text or "writing records")  # an empty text: a network is done

    train = partial(_train, settings)
    failures = run_in_processes(train, jobs, keep, workers=workers, report=tell)
    if failures:
        reasons = "; ".join(f"{failure.job}: {failure.reason}" for failure in failures)
        raise StudyError(
            f"expected three trained networks, but these could not be trained: {reasons}"
        )
    show(1.0, "writing the reports")
    histories = {
        called: history for name in NETWORKS for called, history in watched[name].histories.items()
    }
    dense = [history for name, history in histories.items() if name != CNN]
    title = "Digits: true and random labels"
    report = compare(*dense).to_html(folder / "report.html", title=title)
    return Story(
        histories,
        {name: watched[name].accuracies for name in NETWORKS},
        watched[CNN].sizes,
        story_checks(histories),
        (report, folder / "cnn.html"),
    )


def _cores() -> int:
    """Number of cores that this process may use, if the system reports it."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _train(settings: StorySettings, name: str, report: Report) -> "Watched":
    """Train in a worker, which imports torch; this process does not."""
    from theodolite.cli.networks import watch_network

    return watch_network(name, settings, report)


def story_checks(histories: Mapping[str, History]) -> tuple[Check, ...]:
    """What to notice: the layers with random labels, and the effect of true labels on features.

    Args:
        histories: "true labels" and "random labels", on training examples with training labels.
    """
    true, random = histories["true labels"], histories["random labels"]
    survey, layers = random.survey(random.steps[-1]), true.layers
    first, last = (survey.estimate("cka_target", layer) for layer in (layers[0], layers[-1]))
    contrasts = [_values(h, h.steps[-1], "feature_omega_contrast") for h in (true, random)]
    areas = [_values(true, step, "alignment_area") for step in (true.steps[0], true.steps[-1])]
    return (
        random_labels_are_late(layers, first, last),
        contrast_is_higher(layers, *contrasts),
        last_area_rises(layers, *areas),
    )


def _values(history: History, step: int, measure: str) -> list[float]:
    survey = history.survey(step)
    return [survey.estimate(measure, layer).value for layer in history.layers]
