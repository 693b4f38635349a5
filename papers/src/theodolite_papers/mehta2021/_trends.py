"""Checks of how accuracy and alignment change with the scale of initialisation."""

from collections.abc import Callable

import numpy as np

from theodolite.measures.gradient import is_extreme_memorization
from theodolite_papers.ledger import Judgment, Result, Results, judge, spearman

__all__ = [
    "Check",
    "accuracy_falls",
    "alignment_falls",
    "drop",
    "falls",
    "fits",
    "memorizes",
    "never_fits",
    "on_each",
    "values",
]

Check = Callable[[Results], Judgment]
_NOISE = 0.02  # of an accuracy, by which a sequence may rise and still count as falling
_FIT = {"paper": 1.0}  # elsewhere 0.99: small runs are short


def values(run: Result, name: str) -> np.ndarray:
    """One number of every sigma, smallest sigma first."""
    return np.array([run[f"{name}@{float(sigma):g}"] for sigma in run.arrays["sigma"]])


def low(run: Result) -> int:
    """Position of the better of the two smallest sigmas by test accuracy."""
    return int(np.argmax(values(run, "best_test")[:2]))


def _one(runs: Results) -> Result:
    return next(iter(runs))


def accuracy_falls(least: float) -> Check:
    """TEST: best test accuracy is lower at the largest sigma by ``least``, and never rises."""

    def check(runs: Results) -> Judgment:
        run = _one(runs)
        start, accuracy = low(run), values(run, "best_test")
        rise = float(np.diff(accuracy[start:]).max())
        return judge(
            drop(run, "best_test") >= least and rise <= _NOISE,
            small_sigma=accuracy[start],
            largest_sigma=accuracy[-1],
            largest_rise=rise,
        )

    return check


def fits(runs: Results) -> Judgment:
    """FIT: every network learns its training set."""
    run = _one(runs)
    share = values(run, "train").min()
    return judge(share >= _FIT.get(run.size, 0.99), lowest_train_accuracy=share)


def never_fits(runs: Results) -> Judgment:
    """No network learns its whole training set."""
    run = _one(runs)
    share = values(run, "train").max()
    return judge(share < 1, highest_train_accuracy=share)


def memorizes(since: float | None = None) -> Check:
    """MEMO: perfect on training data, at chance on test data; for all sigmas from ``since`` on."""

    def check(runs: Results) -> Judgment:
        run = _one(runs)
        sigma = run.arrays["sigma"]
        chosen = sigma >= (sigma.max() if since is None else since) * 0.999
        train, test = values(run, "train")[chosen], values(run, "best_test")[chosen]
        tolerance = 1 - _FIT.get(run.size, 0.99)
        holds = [
            is_extreme_memorization(a, b, run["chance"], int(run["test_size"]), tolerance)
            for a, b in zip(train.tolist(), test.tolist(), strict=True)
        ]
        return judge(
            all(holds), lowest_train=train.min(), highest_test=test.max(), chance=run["chance"]
        )

    return check


def drop(run: Result, name: str, *, relative: bool = False) -> float:
    """What a value loses from the small sigma to the largest, or the share of it (of 0: nan)."""
    found = values(run, name)
    start, fall = found[low(run)], found[low(run)] - found[-1]
    if not relative:
        return float(fall)
    return float(fall / abs(start)) if start else float("nan")


def falls(name: str, share: float, runs: Results) -> Judgment:
    """The value at the small sigma exceeds that at the largest by a share, with falling ranks."""
    run = _one(runs)
    found = values(run, name)
    rank = spearman(run.arrays["sigma"], found)
    return judge(
        drop(run, name, relative=True) >= share and rank <= -0.7,
        small_sigma=found[low(run)],
        largest_sigma=found[-1],
        rank_correlation=rank,
    )


def alignment_falls(name: str, share: float = 0.15) -> Check:
    """HID, TOP, LOGIT (mean until the fit) or REP (``representation_end``, other share)."""
    return lambda runs: falls(name, share, runs)


def on_each(check: Check, *names: str) -> Check:
    """The check on every data set of a seed (of those named, if any was run): all must hold.

    Undecided if none fails and one is undecided.
    """

    def checked(runs: Results) -> Judgment:
        named = runs.chosen(lambda run: run.point.get("data") in names)
        parts = named if names and len(named) else runs
        answers = {str(run.point.get("data", "")): check(Results((run,))) for run in parts}
        numbers = {
            f"{data}_{key}" if data else key: value
            for data, answer in answers.items()
            for key, value in answer.numbers.items()
        }
        outcomes = {answer.holds for answer in answers.values()}
        if False in outcomes:
            return judge(False, **numbers)
        return judge(None if None in outcomes else True, **numbers)

    return checked
