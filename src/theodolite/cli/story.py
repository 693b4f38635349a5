"""What the demo tells: one network learns true and shuffled labels, a small CNN beside it.

The networks are trained in processes of their own where there are cores for them; nothing here
imports torch, so that these start at once.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from theodolite.errors import StudyError
from theodolite.records import Answer
from theodolite.report import answers
from theodolite.surveys import History, compare
from theodolite.sweeps import Report, run_in_processes

if TYPE_CHECKING:
    from theodolite.cli.networks import Watched

__all__ = ["CNN", "NETWORKS", "Check", "Story", "StorySettings", "story_checks", "tell_story"]

CNN = "CNN"
NETWORKS = ("true labels", "shuffled labels", CNN)


@dataclass(frozen=True)
class StorySettings:
    """How large the demo is.

    Args:
        steps: training steps of each network.
        width: of the hidden layers of the dense network.
        moments: how often the networks are measured between the first and the last step.
        seed: of split, labels, weights and batches.
    """

    steps: int = 600
    width: int = 256
    moments: int = 6
    seed: int = 0

    def measured_steps(self) -> list[int]:
        """Before the first step, after the last, and denser early on."""
        spaced = np.geomspace(1, self.steps, self.moments).round().astype(int)
        return sorted({0, self.steps, *spaced.tolist()})


@dataclass(frozen=True)
class Check:
    """One sentence about the numbers, whether it holds, and the numbers."""

    text: str
    holds: bool
    numbers: str


@dataclass(frozen=True)
class Story:
    """What the demo leaves behind.

    Args:
        histories: by name; training examples with the labels that the network was trained on, and
            for the dense networks, with ", test" after the name, test examples and true labels.
        accuracies: of each network, on its training set (own labels) and on the test set.
        checks: what the numbers should say, and whether they do.
        answers: the three sentences of the first page.
        reports: the page of the dense networks, and that of the CNN; one page would be large.
    """

    histories: Mapping[str, History]
    accuracies: Mapping[str, tuple[float, float]]
    checks: tuple[Check, ...]
    answers: tuple[Answer, ...]
    reports: tuple[Path, Path]


def tell_story(
    settings: StorySettings, folder: Path, show: Report, *, workers: int | None = None
) -> Story:
    """Train three networks with monitors on, save their histories, check and draw them.

    Args:
        settings: how large.
        folder: for one record per history, and the reports.
        show: called with (fraction done, what is being done).
        workers: processes that train; 1 for none beside this one, None for as many as there are
            cores. The numbers are the same.

    Raises:
        StudyError: If a network could not be trained or measured.
    """
    watched: dict[str, Watched] = {}

    def keep(name: str, outcome: "Watched") -> None:
        watched[name] = outcome
        for called, history in outcome.histories.items():
            history.save(folder / called.replace(", ", "-").replace(" ", "-").lower())
        if name == CNN:  # now, since others may still be in training
            history.to_html(folder / "cnn.html", title="Digits: a small CNN")

    folder.mkdir(parents=True, exist_ok=True)  # or fail before the work
    show(0.0, "starting")
    if workers is None:
        workers = min(len(NETWORKS), _cores())
    jobs = [CNN, *NETWORKS[:-1]]  # the page of the CNN is written beside the last of the others

    def tell(share: float, text: str) -> None:
        show(share, text or "writing records")  # a network is done

    train = partial(_train, settings)
    failures = run_in_processes(train, jobs, keep, workers=workers, report=tell)
    if failures:
        reasons = "; ".join(f"{failure.job}: {failure.reason}" for failure in failures)
        raise StudyError(f"expected three trained networks, got no result of {reasons}")
    show(1.0, "writing the reports")
    histories = {
        called: history for name in NETWORKS for called, history in watched[name].histories.items()
    }
    dense = [history for name, history in histories.items() if name != CNN]
    title = "Digits: true and shuffled labels"
    report = compare(*dense).to_html(folder / "report.html", title=title)
    return Story(
        histories,
        {name: watched[name].accuracies for name in NETWORKS},
        story_checks(histories),
        tuple(answers([history.run for history in dense])),
        (report, folder / "cnn.html"),
    )


def _cores() -> int:
    """Those that this process may use, where the system says so."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _train(settings: StorySettings, name: str, report: Report) -> "Watched":
    """In a worker: torch is imported there, and not where the story is told."""
    from theodolite.cli.networks import watch_network

    return watch_network(name, settings, report)


def story_checks(histories: Mapping[str, History]) -> tuple[Check, ...]:
    """Memorizing shows in the features, and learning moves alignment towards the output.

    Args:
        histories: "true labels" and "shuffled labels" on training examples with the labels that
            were trained on, and both with ", test" on test examples with true labels.
    """
    return (
        _contrast(histories["true labels"], histories["shuffled labels"]),
        _held_out(histories["true labels, test"], histories["shuffled labels, test"]),
        _area(histories["true labels"]),
    )


def _values(history: History, step: int, measure: str) -> list[float]:
    survey = history.survey(step)
    return [survey.estimate(measure, layer).value for layer in history.layers]


def _contrast(true: History, shuffled: History) -> Check:
    learned = _values(true, true.steps[-1], "feature_omega_contrast")
    memorized = _values(shuffled, shuffled.steps[-1], "feature_omega_contrast")
    holds = all(low < high for low, high in zip(memorized, learned, strict=True))
    return Check(
        "Trained on shuffled labels, features of one class point less together than on true ones, "
        "in every layer",
        holds,
        f"contrast {_decimals(memorized)} against {_decimals(learned)}",
    )


def _held_out(true: History, shuffled: History) -> Check:
    learned = _values(true, true.steps[-1], "cka_target")[-1]
    memorized = _values(shuffled, shuffled.steps[-1], "cka_target")[-1]
    return Check(
        "What was memorized does not carry over: on test examples with true labels, the last "
        "layer's CKA to the labels is lower",
        memorized < learned,
        f"{memorized:.3f} against {learned:.3f}",
    )


def _area(true: History) -> Check:
    before = _values(true, true.steps[0], "alignment_area")
    after = _values(true, true.steps[-1], "alignment_area")
    return Check(
        "Before training the last layer is less aligned with the labels than the first, after "
        "training more",
        before[-1] < before[0] and after[-1] > after[0],
        f"area first to last layer: {before[0]:.3f} to {before[-1]:.3f} before, "
        f"{after[0]:.3f} to {after[-1]:.3f} after",
    )


def _decimals(values: list[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)
