"""What claims and pictures of the grid read off its runs."""

from collections.abc import Callable

import numpy as np

from theodolite_papers.canatar2022._profiles import BIASED
from theodolite_papers.ledger import Judgment, Result, Results, judge

__all__ = [
    "FACTORS",
    "FEWEST",
    "STUDY_ID",
    "kept",
    "mean_where",
    "of_kept",
    "profiles",
    "setting_text",
    "shown",
]

STUDY_ID = "canatar2022.fig1-6-table1"
FACTORS = ("skip", "augmentation", "batch_size", "learning_rate", "momentum")
FITTED = 0.95  # training accuracy above which the paper keeps a run
FEWEST = 4  # runs, below which correlations over runs say nothing


def kept(runs: Results) -> Results:
    """The runs that fit their training data: accuracy strictly above 95 %."""
    return runs.chosen(lambda run: run["train_accuracy"] > FITTED and _defined(run))


def shown(runs: Results) -> Results:
    """The kept runs; all that did not diverge where fewer than two were kept."""
    chosen = kept(runs)
    return chosen if len(chosen) > 1 else runs.chosen(lambda run: "target_train" in run.arrays)


def _defined(run: Result) -> bool:
    return all(np.isfinite(run.arrays[name][:2]).all() for name in ("target_train", "target_test"))


def of_kept(check: Callable[[Results], Judgment]) -> Callable[[Results], Judgment]:
    """A check that sees the kept runs alone, and decides nothing on fewer than four.

    Nor does it where a number is undefined, such as a correlation with a factor that all kept runs
    share: a comparison with nan is false, and would pass for a failure.
    """

    def checked(runs: Results) -> Judgment:
        chosen = kept(runs)
        if len(chosen) < FEWEST:
            return judge(None, kept=len(chosen))
        found = check(chosen)
        if found.holds is False and np.isnan(list(found.numbers.values())).any():
            return judge(None, **found.numbers)
        return found

    return checked


def profiles(runs: Results, name: str, row: int = BIASED) -> np.ndarray:
    """One row of a recorded profile, of every run: (runs, layers)."""
    return runs.array(name)[:, row].astype(np.float64)


def mean_where(values: np.ndarray, chosen: np.ndarray) -> float:
    """Mean over the chosen runs; nan if there are none."""
    return float(values[chosen].mean()) if chosen.any() else float("nan")


def setting_text(run: Result) -> str:
    """The settings of a run, as the paper labels it."""
    point = run.point
    return ", ".join(
        (
            "skip" if point["skip"] else "no skip",
            "augmented" if point["augmentation"] else "plain",
            f"batch {point['batch_size']}",
            f"{'momentum' if point['momentum'] else 'SGD'} {point['learning_rate']:g}",
        )
    )
