"""Figure 3 and Tables 1 to 3: where the alignment peaks in networks of 10 to 100 layers."""

from collections.abc import Callable
from functools import partial
from math import inf

import numpy as np
import torch

from theodolite_papers.ledger import (
    LARGE,
    Check,
    Claim,
    Condition,
    Heat,
    Line,
    Outcome,
    Panel,
    Points,
    Results,
    Space,
    Study,
    below,
    decided,
    inside,
    mean_condition,
    merged,
    outcome,
    rank_condition,
    spearman,
)
from theodolite_papers.lou2022._depths import (
    ROWS,
    Tabled,
    balance_line,
    by_depth,
    data_sets,
    depth_fit,
    fitted_loss,
    law_line,
    measure_depth,
    peaks_of,
)
from theodolite_papers.lou2022.formulas.hierarchy import relative_alignment

__all__ = ["STUDY"]

_DEPTHS = [100, 90, 80, 70, 60, 50, 40, 30, 20, 10]  # longest first
_POINTS = {"mnist": 2.0, "fashion_mnist": 2.0, "cifar10": 3.0}  # tolerance of accuracies
_TABLES = {"mnist": "Table 3", "fashion_mnist": "Table 2", "cifar10": "Table 1"}


def _fits(runs: Results) -> dict[str, dict[str, float]]:
    """The fit of each data set that has at least three depths."""
    found = {}
    for name, part in data_sets(runs).items():
        depths, peaks = peaks_of(part, fitted_loss(name))
        if len(np.unique(depths)) >= 3:
            fit = depth_fit(depths, peaks, part.mean("cosine"))
            found[name] = {**fit, "rank": spearman(depths, peaks), "networks": float(len(peaks))}
    return found


def _on_every_fit(condition: Callable[[dict[str, float]], Condition], *shown: str) -> Check:
    """The fit of every data set meets a condition; shows these of its numbers."""

    def check(runs: Results) -> Outcome:
        fits = _fits(runs)
        return merged(
            {
                name: decided(condition(fit), **{key: fit[key] for key in ("networks", *shown)})
                for name, fit in fits.items()
            }
        )

    return check


def _slope(fit: dict[str, float], low: float, high: float) -> Condition:
    """The slope between two bounds, with its interval over the networks that were fitted."""
    interval, unit = (fit["low"], fit["high"]), f"{fit['networks']:.0f} networks"
    return Condition("slope", fit["slope"], low, high, False, interval, unit)


def _agrees(fit: dict[str, float], expected: float) -> Condition:
    """The interval of the slope contains a number."""
    return _slope(fit, expected, expected)


def _nearer(runs: Results) -> Outcome:
    """Squared distance of each network from the 3/5 law minus that from the other law."""
    found = {}
    for name, part in data_sets(runs).items():
        depths, peaks = peaks_of(part, fitted_loss(name))
        if len(np.unique(depths)) < 3:
            continue
        law = np.log(peaks / law_line(depths))
        balance = np.log(peaks / balance_line(depths, part.mean("cosine")))
        lead = (law - law.mean()) ** 2 - (balance - balance.mean()) ** 2
        fit = _fits(runs)[name]
        shown = ("balance_scaled", "law_scaled", "balance", "law")
        found[name] = decided(
            mean_condition("squared distance: law minus balance", lead, "networks"),
            **{key: fit[key] for key in shown},
        )
    return merged(found)


def _near_balance(runs: Results) -> Outcome:
    worst = {}
    for name, part in data_sets(runs).items():
        depths, peaks = peaks_of(part, fitted_loss(name))
        if len(depths):
            exact = balance_line(np.unique(depths), part.mean("cosine"))
            medians = np.asarray([np.median(peaks[depths == d]) for d in np.unique(depths)])
            worst[f"{name} worst factor"] = float(np.exp(np.abs(np.log(medians / exact)).max()))
    if not worst:
        return outcome(None, data_sets=0)
    return decided(*(below(name, v, 1.6, strict=False) for name, v in worst.items()))


def _inside(runs: Results) -> Outcome:
    """Whether the peak of every fitted network is inside; a diverged network has no peak."""
    run = runs.runs[0]
    depth, peaks = run.arrays["curves"].shape[1], run.arrays["peaks"]
    fitted = run.arrays["final_losses"] <= fitted_loss(str(run.point.get("data", "digits")))
    finite = peaks[np.isfinite(peaks) & fitted]
    if not len(finite):
        return outcome(None, depth=depth)
    members = tuple(bool(1 < peak < depth) for peak in finite)
    numbers = {"peak": float(finite.mean()), "depth": float(depth)}
    return Outcome(all(members), numbers, members=members)


def _accuracy(runs: Results) -> Outcome:
    run = runs.runs[0]
    measured, tabled = run["test_accuracy"], run["tabled_accuracy"]
    name = str(run.point.get("data", "digits"))
    if not np.isfinite(tabled):
        return outcome(None, accuracy=measured)
    points = _POINTS.get(name, np.nan)
    off = inside("points_off", measured - tabled, -points, points, strict=False)
    return decided(off, accuracy=measured, tabled=tabled)


def _trained(runs: Results) -> Outcome:
    """Networks of each depth that fitted their data; the fits use no others."""
    found: dict[str, float] = {}
    for name, part in data_sets(runs).items():
        for depth, same in sorted(by_depth(part).items()):
            losses = np.concatenate([run.arrays["final_losses"] for run in same])
            found[f"{name} {depth}"] = float((losses <= fitted_loss(name)).sum())
    return outcome(None, **found)


def draw(runs: Results) -> list[Panel]:
    """Per data set: peaks with the three lines, the map of alignments, the table's accuracies."""
    return [
        panel
        for name, part in data_sets(runs).items()
        for panel in (*_peak_panel(name, part), _map_panel(name, part), *_table_panel(name, part))
    ]


def _shown(name: str, part: Results) -> float:
    """Largest training loss of networks to draw; if none fitted its data, all are drawn."""
    most_loss = fitted_loss(name)
    return most_loss if len(peaks_of(part, most_loss)[0]) else inf


def _peak_panel(name: str, part: Results) -> list[Panel]:
    depths, peaks = peaks_of(part, _shown(name, part))
    if not len(depths):
        return []
    x = np.unique(depths)
    cosine = part.mean("cosine")
    marks: list[Line | Points] = [Points("peaks", depths, peaks)]
    marks.append(Line("exact balance", x, balance_line(x, cosine)))
    if len(x) > 1:
        fit = depth_fit(depths, peaks, cosine)
        marks.append(Line("slope 3/5", x, np.exp(fit["constant"]) * x**0.6, dashed=True))
        offset = float(np.mean(np.log(peaks) - fit["slope"] * np.log(depths)))
        marks.append(Line(f"slope {fit['slope']:.2f}", x, np.exp(offset) * x ** fit["slope"]))
    return [Panel(f"Figure 3, {name}", marks, "depth", "layer of the peak", "xy")]


def _map_panel(name: str, part: Results) -> Panel:
    """Mean alignment of the networks of each depth; blank where none is drawn."""
    most_loss = _shown(name, part)
    columns = sorted(by_depth(part).items())
    deepest = columns[-1][0]
    values = np.full((deepest, len(columns)), np.nan)
    for index, (depth, same) in enumerate(columns):
        losses = np.concatenate([run.arrays["final_losses"] for run in same])
        curves = np.concatenate([run.arrays["curves"] for run in same]).astype(np.float64)
        curves = curves[(losses <= most_loss) & np.isfinite(curves).all(1)]
        if len(curves):
            mean = torch.as_tensor(curves.mean(0))
            values[:depth, index] = relative_alignment(mean).numpy()
    rows = [str(layer) for layer in range(1, deepest + 1)]
    heat = Heat(values, rows, [str(depth) for depth, _ in columns])
    return Panel(f"{name}, alignment over its maximum", [heat], "depth", "layer")


def _table_panel(name: str, part: Results) -> list[Panel]:
    """Test accuracy of every network and the published one, where there is one."""
    if name not in _TABLES:
        return []
    rows = dict(sorted(ROWS[name].items()))
    published = [row.accuracy for row in rows.values()]
    accuracies = [run.arrays["test_accuracies"] for run in part]
    depths = [run.arrays["curves"].shape[1] for run in part for _ in run.arrays["peaks"]]
    marks: list[Line | Points] = [
        Points("measured", depths, np.concatenate(accuracies)),
        Line("published", [*rows], published, dashed=True),
    ]
    return [Panel(f"{_TABLES[name]}, {name}", marks, "depth", "test accuracy (percent)")]


STUDY = Study(
    id="lou2022.fig3",
    title="Layer of the peak against depth: the 3/5 law and the exact balance",
    shows=("Figure 3", "Table 1", "Table 2", "Table 3"),
    measure=measure_depth,
    configs={
        "smoke": Tabled(most_epochs=1, examples=128, probe=20),
        "lite": Tabled(),
        "published": Tabled(data="mnist", stop_loss=None, probe=200, networks=3),
    },
    spaces={
        "smoke": Space({"depth": [4, 6]}),
        "lite": Space({"depth": [6, 10, 15, 20, 30, 40]}),
        "published": Space({"data": list(_TABLES), "depth": _DEPTHS}),
    },
    seeds={"published": (101,)},
    claims=(
        Claim(
            "lou2022.fig3.inside",
            "the alignment of a network that fitted its data peaks inside it",
            _inside,
        ),
        Claim(
            "lou2022.fig3.rising",
            "deeper networks peak in later layers: rank correlation of depth and peak above 0",
            _on_every_fit(
                lambda fit: rank_condition("rank", fit["rank"], int(fit["networks"]), 0.0)
            ),
            scope="all",
        ),
        Claim(
            "lou2022.fig3.slope",
            "slope of log peak against log depth is within 0.6 +- 0.2",
            _on_every_fit(
                partial(_slope, low=0.4, high=0.8), "low", "high", "balance_slope", "constant"
            ),
            scope="all",
            sizes=LARGE,
            fragile="the exact balance itself has slopes of 0.7 to 1.0 over depths 10 to 100",
        ),
        Claim(
            "lou2022.fig3.slope-small",
            "slope of log peak against log depth is within [0.5, 1.3] over depths 6 to 40",
            _on_every_fit(partial(_slope, low=0.5, high=1.3), "low", "high"),
            scope="all",
            sizes=("lite",),
        ),
        Claim(
            "lou2022.fig3.law",
            "the 95 % interval of the slope contains 3/5",
            _on_every_fit(partial(_agrees, expected=0.6), "low", "high"),
            scope="all",
            fragile="3/5 is the slope at depths beyond 10,000",
        ),
        Claim(
            "lou2022.fig3.balance",
            "the 95 % interval of the slope contains that of the exact balance",
            _on_every_fit(
                lambda fit: _agrees(fit, fit["balance_slope"]), "balance_slope", "low", "high"
            ),
            scope="all",
            fragile="the balance is a conjecture about where alignment peaks",
        ),
        Claim(
            "lou2022.fig3.better",
            "with one free factor each, the exact balance is nearer to the peaks than the 3/5 law",
            _nearer,
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
            sizes=LARGE,
        ),
    ),
    draw=draw,
    stand_in={
        "lite": "8x8 digits, width 128, depths 6 to 40, stopped at training loss 0.02; runs above "
        "0.05 are left out of the fits",
    },
    remarks={
        "published": "learning rates, epochs and widths of the tables; batch 128, momentum 0.9 and "
        "weight decay 5e-4 are usual values. MNIST first; the other data sets as far as they were "
        "run. Networks that end above training loss 1 are left out of the fits",
    },
)
