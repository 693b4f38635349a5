"""Figure 3 and Tables 1 to 3: where the alignment peaks in networks of 10 to 100 layers."""

import numpy as np

from theodolite.sweeps import Space
from theodolite_papers.ledger import Claim, Outcome, Results, Study, outcome, spearman
from theodolite_papers.lou2022._depth_pictures import TABLES, draw
from theodolite_papers.lou2022._depths import (
    balance_line,
    by_depth,
    data_sets,
    depth_fit,
    fitted_loss,
    measure_depth,
    peaks_of,
)
from theodolite_papers.lou2022._tables import Tabled

__all__ = ["STUDY"]

_DEPTHS = [100, 90, 80, 70, 60, 50, 40, 30, 20, 10]  # longest first
_POINTS = {"mnist": 2.0, "fashion_mnist": 2.0, "cifar10": 3.0}  # tolerance of accuracies


def _fits(runs: Results) -> dict[str, dict[str, float]]:
    """The fit of each data set that has at least three depths."""
    found = {}
    for name, part in data_sets(runs).items():
        depths, peaks = peaks_of(part, fitted_loss(name))
        if len(np.unique(depths)) >= 3:
            fit = depth_fit(depths, peaks, part.mean("cosine"))
            found[name] = {**fit, "rank": spearman(depths, peaks), "networks": float(len(peaks))}
    return found


def _named(fits: dict[str, dict[str, float]], *keys: str) -> dict[str, float]:
    return {f"{name} {key}": fit[key] for name, fit in fits.items() for key in keys}


def _all(fits: dict[str, dict[str, float]], holds: list[bool], *keys: str) -> Outcome:
    return outcome(all(holds) if fits else None, data_sets=len(fits), **_named(fits, *keys))


def _rising(runs: Results) -> Outcome:
    fits = _fits(runs)
    return _all(fits, [fit["rank"] >= 0.8 for fit in fits.values()], "rank", "networks")


def _wide_slope(runs: Results) -> Outcome:
    fits = _fits(runs)
    return _all(fits, [0.5 <= f["slope"] <= 1.3 for f in fits.values()], "slope", "low", "high")


def _slope(runs: Results) -> Outcome:
    fits = _fits(runs)
    holds = [0.4 <= f["slope"] <= 0.8 for f in fits.values()]
    return _all(fits, holds, "slope", "low", "high", "balance_slope", "constant")


def _law_in_interval(runs: Results) -> Outcome:
    fits = _fits(runs)
    holds = [f["low"] <= 0.6 <= f["high"] for f in fits.values()]
    return _all(fits, holds, "slope", "low", "high")


def _balance_in_interval(runs: Results) -> Outcome:
    fits = _fits(runs)
    holds = [f["low"] <= f["balance_slope"] <= f["high"] for f in fits.values()]
    return _all(fits, holds, "balance_slope", "low", "high")


def _balance_better(runs: Results) -> Outcome:
    fits = _fits(runs)
    holds = [f["balance_scaled"] < f["law_scaled"] for f in fits.values()]
    return _all(fits, holds, "balance_scaled", "law_scaled", "balance", "law")


def _near_balance(runs: Results) -> Outcome:
    worst = {}
    for name, part in data_sets(runs).items():
        depths, peaks = peaks_of(part, fitted_loss(name))
        if len(depths):
            exact = balance_line(np.unique(depths), part.mean("cosine"))
            medians = np.asarray([np.median(peaks[depths == d]) for d in np.unique(depths)])
            worst[f"{name} worst factor"] = float(np.exp(np.abs(np.log(medians / exact)).max()))
    return outcome(max(worst.values()) <= 1.6 if worst else None, data_sets=len(worst), **worst)


def _inside(runs: Results) -> Outcome:
    depth, peaks = runs.runs[0].arrays["curves"].shape[1], runs.runs[0].arrays["peaks"]
    finite = peaks[np.isfinite(peaks)]  # a network that diverged has no peak
    if not len(finite):
        return outcome(None, depth=depth)
    inside = bool(((finite > 1) & (finite < depth)).all())
    return outcome(inside, peak=float(finite.mean()), depth=depth)


def _accuracy(runs: Results) -> Outcome:
    run = runs.runs[0]
    measured, tabled = run["test_accuracy"], run["tabled_accuracy"]
    name = str(run.point.get("data", "digits"))
    close = abs(measured - tabled) <= _POINTS.get(name, np.nan)
    if not np.isfinite(tabled):
        return outcome(None, accuracy=measured)
    return outcome(bool(close), accuracy=measured, tabled=tabled)


def _trained(runs: Results) -> Outcome:
    """Networks of each depth that fitted their data; the others have no part in the fits."""
    found: dict[str, float] = {}
    for name, part in data_sets(runs).items():
        for depth, same in sorted(by_depth(part).items()):
            losses = np.concatenate([run.arrays["final_losses"] for run in same])
            found[f"{name} {depth}"] = float((losses <= fitted_loss(name)).sum())
    return outcome(None, **found)


STUDY = Study(
    id="lou2022.fig3",
    title="Layer of the peak against depth: the 3/5 law and the exact balance",
    shows=("Figure 3", "Table 1", "Table 2", "Table 3"),
    measure=measure_depth,
    configs={
        "smoke": Tabled(most_epochs=1, examples=128, probe=20),
        "lite": Tabled(),
        "paper": Tabled(data="mnist", stop_loss=None, probe=200, networks=3),
    },
    spaces={
        "smoke": Space({"depth": [4, 6]}),
        "lite": Space({"depth": [6, 10, 15, 20, 30, 40]}),
        "paper": Space({"data": list(TABLES), "depth": _DEPTHS}),
    },
    seeds={"paper": (101,)},
    claims=(
        Claim("lou2022.fig3.inside", "the alignment peaks inside the network", _inside),
        Claim(
            "lou2022.fig3.rising",
            "rank correlation of depth and layer of the peak is at least 0.8",
            _rising,
            scope="all",
        ),
        Claim(
            "lou2022.fig3.slope",
            "slope of log peak against log depth is within 0.6 +- 0.2",
            _slope,
            scope="all",
            sizes=("paper",),
            fragile="the exact balance itself has slopes of 0.7 to 1.0 over depths 10 to 100",
        ),
        Claim(
            "lou2022.fig3.slope-small",
            "slope of log peak against log depth is within [0.5, 1.3] over depths 6 to 40",
            _wide_slope,
            scope="all",
            sizes=("lite",),
        ),
        Claim(
            "lou2022.fig3.law",
            "the 95 % interval of the slope contains 3/5",
            _law_in_interval,
            scope="all",
            fragile="3/5 is the slope at depths beyond 10,000",
        ),
        Claim(
            "lou2022.fig3.balance",
            "the 95 % interval of the slope contains that of the exact balance",
            _balance_in_interval,
            scope="all",
            fragile="the balance is a conjecture about where alignment peaks",
        ),
        Claim(
            "lou2022.fig3.better",
            "with one free factor each, the exact balance is nearer to the peaks than the 3/5 law",
            _balance_better,
            scope="all",
            fragile="not a claim of the paper, which has the 3/5 law alone",
        ),
        Claim(
            "lou2022.fig3.near",
            "the median peak is within a factor 1.6 of the exact balance at every depth",
            _near_balance,
            scope="all",
        ),
        Claim(
            "lou2022.fig3.trained",
            "how many networks of each depth fitted their data (training loss below 1, of the "
            "digits 0.05): only these are in the fits",
            _trained,
            scope="all",
            sizes=(),
        ),
        Claim(
            "lou2022.fig3.accuracy",
            "test accuracy within 2 points of the table (3 for CIFAR-10)",
            _accuracy,
            sizes=("paper",),
        ),
    ),
    draw=draw,
    stand_in={
        "lite": "8x8 digits, width 128, depths 6 to 40, stopped at training loss 0.02; runs above "
        "0.05 are left out of the fits",
        "paper": "learning rates, epochs and widths of the tables; batch 128, momentum 0.9 and "
        "weight decay 5e-4 are usual values. MNIST first; the other data sets as far as they were "
        "run. Networks that end above training loss 1 are left out of the fits",
    },
)
