"""From fine-tunings and scores to the tables of README.md.

The default score was chosen on the targets of ``SELECTION``. The tables report it on those of
``REPORTED``, which had been seen when the score last changed. They judge it on those of ``FRESH``,
which had not been seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pandas
import torch
from scipy.stats import kendalltau, weightedtau

from benchmarks.transfer.data import FRESH, REPORTED, SELECTION, TARGETS
from theodolite.advice.choosing import SMALL_ERROR
from theodolite.surveys.transfer_regressions import fine_tuned

RESULTS = Path(__file__).with_name("results.npz")
UNSEEN = Path(__file__).with_name("fresh.npz")
SHOWN = Path(__file__).with_name("shown.csv.gz")
LOGME = Path(__file__).with_name("logme.csv.gz")
DEFAULT = "th.transfer: error"
KERNEL_EXAMPLES = 400
KEYS = ["source", "target", "labels"]
CLASSES = dict(zip(TARGETS, (5, 10, 10, 4, 10, 5, 10, 10, 5, 8, 10, 4, 10, 5), strict=True))
PEERS = (
    "LogME",
    "LogME, terms left out",  # of features that were not kept
    "H-score",
    "regularised H-score",
    "N-LEEP",
    "TransRate",
    "GBC",
    "SFDA",
    "kNN",
)


def truth_of(runs: pandas.DataFrame) -> pandas.DataFrame:
    """Mean test accuracy at the learning rate that validates best, and that of every seed."""
    mean = runs.groupby([*KEYS, "rate"], as_index=False)["validation"].mean()
    best = mean.loc[mean.groupby(KEYS)["validation"].idxmax(), [*KEYS, "rate"]]
    kept = runs.merge(best, on=[*KEYS, "rate"])
    table = kept.pivot_table(index=KEYS, columns="seed", values="test")
    return pandas.DataFrame({"truth": table.mean(1), **{f"seed {s}": table[s] for s in table}})


def collect(runs: Sequence[Path], scores: Sequence[Path], path: Path = RESULTS) -> None:
    """Bring the tables of single runs and scores into one small file."""
    truth = truth_of(pandas.concat([pandas.read_csv(file) for file in runs]))
    long = pandas.concat([pandas.read_csv(file) for file in scores])
    long["method"] = long["method"] + np.where(long["statistics"] == "target", " (target's)", "")
    truth = truth[truth.index.isin(pandas.MultiIndex.from_frame(long[KEYS]))]  # what has scores
    arrays = {"index": np.array(["\t".join(map(str, key)) for key in truth.index])}
    arrays |= {f"truth/{name}": truth[name].to_numpy("float32") for name in truth}
    for value in ("score", "forecast"):
        wide = long.pivot_table(index=KEYS, columns="method", values=value).reindex(truth.index)
        for name in wide.columns:
            if value == "forecast" and name.split(" (")[0].endswith(": error"):
                continue  # that of its accuracy
            digits = wide[name].map(lambda number: float(f"{number:.4g}"))
            arrays[f"{value}/{name}"] = digits.to_numpy("float32")
    cost = long.groupby(["method", "labels"])["milliseconds"].median().unstack()
    arrays["cost/methods"] = cost.index.to_numpy(str)
    arrays["cost/milliseconds"] = cost.to_numpy("float32")
    np.savez_compressed(path, **arrays)


@dataclass(frozen=True)
class Results:
    """Truth, scores and forecasts by (source, target, labels); milliseconds by method."""

    truth: pandas.DataFrame
    scores: pandas.DataFrame
    forecasts: pandas.DataFrame
    milliseconds: pandas.DataFrame

    @classmethod
    def load(cls, path: Path = RESULTS) -> "Results":
        """From the file that :func:`collect` wrote."""
        with np.load(path) as arrays:
            rows = [text.split("\t") for text in arrays["index"]]
            index = pandas.MultiIndex.from_tuples([(s, t, int(n)) for s, t, n in rows], names=KEYS)
            parts = {
                part: pandas.DataFrame(
                    {
                        key.split("/", 1)[1]: arrays[key].astype(float)
                        for key in arrays
                        if key.startswith(part + "/")
                    },
                    index=index,
                )
                for part in ("truth", "score", "forecast")
            }
            cost = pandas.DataFrame(arrays["cost/milliseconds"], arrays["cost/methods"])
            cost.columns = sorted(index.unique("labels"))
        beyond_the_kernel(parts["score"], parts["forecast"])
        return cls(parts["truth"], parts["score"], parts["forecast"], cost)


def beyond_the_kernel(scores: pandas.DataFrame, forecasts: pandas.DataFrame) -> None:
    """Add the numbers of ``th.transfer``: from the kernel, and beyond its examples from all blocks.

    With more labels than the kernel was measured on, error and wrong answers are those of the
    features of all blocks, multiplied by a ratio on the kernel's examples: the number of the kernel
    over theirs.
    """
    for table, kind, gained in ((scores, "error", np.inf), (forecasts, "accuracy", 1.0)):
        kernel, blocks = (
            (-table[f"{name}: error"] if kind == "error" else 1 - table[f"{name}: accuracy"])
            for name in ("tangent, best share", "linear probe, all blocks")
        )
        kernel, blocks = kernel.unstack("labels"), blocks.unstack("labels")
        most = max(count for count in kernel if count <= KERNEL_EXAMPLES)
        for count in (count for count in kernel if count > most):
            kernel[count] = blocks[count] * (kernel[most] / blocks[most]).clip(upper=gained)
        shown = kernel.stack().reindex(table.index)
        table[f"th.transfer: {kind}"] = -shown if kind == "error" else 1 - shown


def regret(score: np.ndarray, truth: np.ndarray) -> float:
    """Points of accuracy lost by the first choice; the mean over choices that tie."""
    return 100 * float(truth.max() - truth[score == np.nanmax(score)].mean())


def judged(results: Results, method: str) -> pandas.DataFrame:
    """Tau, weighted tau, regret and forecast error of a method by target and number of labels."""
    rows = {}
    base = method.replace(": error", ": accuracy")
    for (target, labels), truth in results.truth.groupby(level=["target", "labels"]):
        score = results.scores.loc[truth.index, method].to_numpy()
        if not np.isfinite(score).any():
            continue
        filled = np.where(np.isfinite(score), score, np.nanmin(score) - 1)
        own = truth["truth"].to_numpy()
        error = np.nan
        if base in results.forecasts:
            gap = results.forecasts.loc[truth.index, base].to_numpy() - own
            error = 100 * np.nanmedian(np.abs(gap))
        rows[target, labels] = {
            "tau": kendalltau(filled, own).statistic,
            "weighted tau": weightedtau(filled, own).statistic,
            "regret": regret(filled, own),
            "forecast": error,
        }
    return pandas.DataFrame.from_dict(rows, orient="index").rename_axis(["target", "labels"])


def repeated(results: Results) -> pandas.DataFrame:
    """The ceiling: one fine-tuning of every source, against the mean of the other two."""
    rows = {}
    for key, truth in results.truth.groupby(level=["target", "labels"]):
        others = [name for name in truth if name.startswith("seed") and name != "seed 0"]
        once, rest = truth["seed 0"].to_numpy(), truth[others].mean(axis=1).to_numpy()
        if not np.isfinite(rest).all():
            continue
        rows[key] = {
            "tau": kendalltau(once, rest).statistic,
            "weighted tau": weightedtau(once, rest).statistic,
            "regret": regret(once, rest),
            "forecast": 100 * np.median(np.abs(once - rest)),
        }
    return pandas.DataFrame.from_dict(rows, orient="index").rename_axis(["target", "labels"])


def summary(results: Results, methods: Sequence[str], targets: Sequence[str]) -> pandas.DataFrame:
    """Means over targets and budgets; the standard error of tau is that over targets."""
    rows = {}
    for method in methods:
        table = repeated(results) if method == "one fine-tuning" else judged(results, method)
        table = table[table.index.get_level_values("target").isin(targets)]
        by_target = table["tau"].groupby(level="target").mean()
        means = table.mean()
        cost = np.nan
        if method in results.milliseconds.index:
            cost = results.milliseconds.loc[method, 400]
        budgets = table["tau"].groupby(level="labels").mean()
        rows[method] = {
            "tau": means["tau"],
            "s.e.": by_target.std() / len(by_target) ** 0.5,
            **{f"tau, {labels}": value for labels, value in budgets.items()},
            "weighted tau": means["weighted tau"],
            "regret": means["regret"],
            "forecast": means["forecast"],
            "ms": cost,
        }
    return pandas.DataFrame.from_dict(rows, orient="index")


def chosen(results: Results) -> str:
    """Our score of the highest mean tau on the targets of the selection."""
    ours = [
        name
        for name in results.scores
        if name.split(" (")[0] not in (*PEERS, "list by size", "held-out probe")
        and results.scores[name].groupby(level="labels").count().min() > 0
    ]
    return str(summary(results, ours, SELECTION)["tau"].idxmax())


def markdown(table: pandas.DataFrame) -> str:
    """A table as the README has it."""
    digits = {"regret": 1, "forecast": 1, "ms": 1, "lost": 1, "median distance": 1, "2.5%": 1}
    digits |= {"50%": 1, "97.5%": 1, "count": 0, "better on": 0}
    lines = ["| score | " + " | ".join(table.columns) + " |", "|---" * (table.shape[1] + 1) + "|"]
    for name, row in table.iterrows():
        cells = [
            "-" if pandas.isna(value) else f"{value:.{digits.get(column.split(', ')[0], 2)}f}"
            for column, value in row.items()
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def beside(results: Results, method: str, others: Sequence[str]) -> pandas.DataFrame:
    """How much more tau a method has than others, and how much less regret, target by target."""
    own, rows = judged(results, method), {}
    for other in others:
        gap = own - judged(results, other)
        for half, targets in (("chosen on", SELECTION), ("reported", REPORTED)):
            part = gap[gap.index.get_level_values("target").isin(targets)]
            by_target = part.groupby(level="target").mean()
            error = by_target.sem()
            rows.setdefault(other, {}).update(
                {
                    f"tau, {half}": by_target["tau"].mean(),
                    f"s.e. tau, {half}": error["tau"],
                    f"better on, {half}": (by_target["tau"] > 0).sum(),
                    f"regret, {half}": by_target["regret"].mean(),
                }
            )
    return pandas.DataFrame.from_dict(rows, orient="index")


def forecast_gaps(results: Results, method: str, most: int = 400) -> pandas.DataFrame:
    """Fine-tuned accuracy less forecast, in points, by leave-one-out error, with few labels."""
    forecast = results.forecasts[method.replace(": error", ": accuracy")]
    table = pandas.DataFrame(
        {
            "gap": 100 * (results.truth["truth"] - forecast),
            "error": pandas.cut(-results.scores[method], [0, 0.5, 0.7, 0.8, 0.9, np.inf]),
        }
    ).reset_index()
    table = table[table["labels"] <= most]
    table["half"] = np.where(table["target"].isin(SELECTION), "chosen on", "reported")
    groups = table.groupby(["half", "error"], observed=True)["gap"]
    answer = groups.describe(percentiles=[0.025, 0.5, 0.975])[["count", "2.5%", "50%", "97.5%"]]
    answer["median distance"] = groups.apply(lambda gap: gap.abs().median())
    answer.index = [f"{half}, error {bin}" for half, bin in answer.index]
    return answer


def coverage(results: Results, method: str, most: int = 400) -> pandas.DataFrame:
    """Share of fine-tuned accuracies in the interval of ``th.transfer``, and in a symmetric one."""
    value = results.forecasts[method.replace(": error", ": accuracy")]
    table = pandas.DataFrame({"value": value, "error": -results.scores[method]})
    table["truth"] = results.truth["truth"]
    table = table.reset_index()
    table = table[table["labels"] <= most]
    square = 1.96**2 / table["labels"]
    share = table["value"]
    half = 1.96 * np.sqrt(share * (1 - share) / table["labels"] + square / (4 * table["labels"]))
    wide = np.hypot(half / (1 + square), 0.04)
    above = np.where(table["error"] > 0.7, np.maximum(wide, 0.47), wide)
    gap = table["truth"] - share
    table["symmetric"] = gap.abs() <= wide
    table["as given"] = (gap >= -wide) & (gap <= above)
    table["below"] = gap < -wide
    table["half"] = np.where(table["target"].isin(SELECTION), "chosen on", "reported")
    answer = table.groupby(["half", "labels"])[["symmetric", "as given", "below"]].mean()
    answer.index = [f"{half}, {labels} labels" for half, labels in answer.index]
    return answer


def as_shown(results: Results) -> pandas.Series:
    """Forecasts of ``th.transfer``: of the wrong answers of regression networks get some right."""
    shown = results.forecasts["th.transfer: accuracy"]
    worst = 1 - 1 / shown.index.get_level_values("target").map(CLASSES).to_numpy()
    wrong, error, worst = (
        torch.from_numpy(np.array(part, float))
        for part in (1 - shown, -results.scores[DEFAULT], worst)
    )
    return pandas.Series(1 - fine_tuned(wrong, error, worst).numpy(), shown.index)


def shown_gaps(results: Results) -> pandas.DataFrame:
    """Points between forecast and fine-tuned accuracy (median), before and after the correction."""
    truth, plain = results.truth["truth"], results.forecasts["th.transfer: accuracy"]
    gaps = pandas.DataFrame({"before": plain, "after": as_shown(results)})
    gaps = (100 * gaps.rsub(truth, axis=0)).abs().dropna()
    targets = gaps.index.get_level_values("target")
    small = -results.scores[DEFAULT][gaps.index] <= SMALL_ERROR
    labels = gaps.index.get_level_values("labels")
    rows = {}
    halves = {"chosen on": SELECTION, "reported": REPORTED, "fresh": FRESH}
    for half, own in halves.items():
        inside = targets.isin(own)
        parts = {"all": True, "error up to 0.7": small, "error above 0.7": ~small}
        parts |= {f"{count} labels": labels == count for count in sorted(set(labels))}
        parts |= {target: targets == target for target in own}
        for part, chosen in parts.items():
            if (inside & chosen).any():
                found = gaps[inside & chosen]
                rows[f"{half}, {part}"] = {"count": len(found), **found.median()}
    return pandas.DataFrame.from_dict(rows, orient="index")


def print_shown(results: Results) -> None:
    """What ``th.transfer`` itself forecasts with few labels, for sources that were done again."""
    shown = pandas.read_csv(SHOWN).query("labels == 100").set_index(KEYS)
    shown = shown[shown.index.isin(results.truth.index)]
    shown["truth"] = results.truth["truth"].loc[shown.index]
    plain = results.forecasts["th.transfer: accuracy"].loc[shown.index]
    for half, targets in (("chosen on", SELECTION), ("reported", REPORTED)):
        own = shown[shown.index.get_level_values("target").isin(targets)]
        gaps = [100 * (own["truth"] - guess).abs() for guess in (plain[own.index], own["value"])]
        held = own["truth"].between(own["low"], own["high"]).mean()
        print(
            f"{half}, {len(own.index.unique('source'))} sources: plain {gaps[0].median():.1f}, as "
            f"shown {gaps[1].median():.1f} points off, {held:.0%} of the intervals hold"
        )


def logme_again() -> pandas.DataFrame:
    """LogME of both forms against fine-tunings of the same sources, trained a second time."""
    table = pandas.read_csv(LOGME).set_index(KEYS)
    rows = {}
    for half, targets in (("reported", REPORTED), ("chosen on", SELECTION)):
        part = table.loc[table.index.isin(targets, level="target")]
        none = pandas.DataFrame(index=part.index)
        results = Results(part[["truth"]], part[["LogME", "LogME, terms left out"]], none, none)
        for method in results.scores:
            found = judged(results, method).drop(columns="forecast")
            tau = found["tau"].groupby("labels").mean()
            error = found["tau"].groupby("target").mean().sem()
            rows[f"{method}, {half}"] = {
                "tau": found["tau"].mean(),
                "s.e.": error,
                **{f"tau, {labels}": value for labels, value in tau.items()},
                "weighted tau": found["weighted tau"].mean(),
                "regret": found["regret"].mean(),
            }
    return pandas.DataFrame.from_dict(rows, orient="index")


def print_tables(path: Path = RESULTS) -> None:
    """The reported half, the half on which the default was chosen, and forecasts."""
    results = Results.load(path)
    default = chosen(results)
    first = ["list by size", *PEERS, "held-out probe"]
    first = [name for name in first if name in results.scores]
    own = [name for name in results.scores if name not in first]
    rest = [name for name in own if "(target's)" not in name and name != default]
    methods = [*first, *rest, default, "one fine-tuning"]
    print(f"chosen on {', '.join(SELECTION)}: {default}\n")
    print(f"Reported: {', '.join(REPORTED)}\n")
    print(markdown(summary(results, methods, REPORTED)))
    print("\nLogME of sources trained anew: the complete evidence, and with terms left out\n")
    print(markdown(logme_again()))
    print(f"\n{default}, less the others\n")
    others = ["linear probe, last block: error", "linear probe, all blocks: error"]
    print(markdown(beside(results, default, [*first, *others])))
    print("\nFine-tuned accuracy less its forecast, points, 100 and 400 labels\n")
    print(markdown(forecast_gaps(results, default)))
    print("\nShare of fine-tuned accuracies in the interval\n")
    print(markdown(coverage(results, default)))
    print("\nForecasts, points off (median)\n")
    print(markdown(shown_gaps(results)))
    print("\nThe same with 100 labels and the shares of classes taken out\n")
    print_shown(results)
    print("\nThe half on which the default was chosen\n")
    print(markdown(summary(results, methods, SELECTION)))
    moved = [name for name in results.scores if "(target's)" in name and "size" not in name]
    print("\nBatch normalisation with the target's statistics, reported half\n")
    print(markdown(summary(results, moved, REPORTED)))
    unseen = Results.load(UNSEEN)
    print_unseen(unseen, default)
    print("\nAccuracy with more labels, predicted from fewer, beside fine-tuning\n")
    print(markdown(curve_misses(pandas.concat([results.truth["truth"], unseen.truth["truth"]]))))


def print_unseen(results: Results, default: str) -> None:
    """Targets that were added after the default was chosen."""
    methods = [name for name in results.scores if name not in (default, "list by size")]
    print(f"\nFresh: {', '.join(results.truth.index.unique('target'))}\n")
    columns = ["list by size", *methods, default, "one fine-tuning"]
    print(markdown(summary(results, columns, FRESH).drop(columns="ms")))
    print("\nForecasts, points off (median)\n")
    print(markdown(shown_gaps(results)))


def curve_misses(truth: pandas.Series) -> pandas.DataFrame:
    """Points between predicted and fine-tuned accuracy with more labels (medians), and intervals.

    Beside it power laws through linear probes of sub-samples, at least at chance; the power law
    through fine-tunings with 100 and 400 labels, which a user would have to run; and no growth.
    """
    shown = pandas.read_csv(SHOWN)
    reached = truth.unstack("labels")
    halves = {"chosen on": SELECTION, "reported": REPORTED, "fresh": FRESH}
    rows = {}
    for (count, wanted), (half, targets), (part, most) in product(
        ((100, 400), (100, 1_600), (400, 1_600)),
        halves.items(),
        (("", np.inf), (f", error up to {SMALL_ERROR}", SMALL_ERROR)),
    ):
        inside = (
            shown["target"].isin(targets) & (shown["error"] <= most) & (shown["labels"] == count)
        )
        own = shown[inside].set_index(["source", "target"])
        own = own.dropna(subset=[f"with {wanted}"])
        got = reached[wanted].reindex(own.index).dropna()
        own = own.loc[got.index]
        chance = 1 / own.index.get_level_values("target").map(CLASSES).to_numpy()
        wrong = 1 - reached.loc[own.index]
        ways = {
            "curve": own[f"with {wanted}"],
            "power law": own[f"power law {wanted}"].clip(lower=chance),
            "with a floor": own[f"power law and floor {wanted}"].clip(lower=chance),
            "no growth": own["value"],
            "two fine-tunings": 1 - wrong[400] ** 2 / wrong[100] if count == 400 else np.nan,
        }
        low, high = (own[f"with {wanted}, {end}"] for end in ("low", "high"))
        rows[f"{count} to {wanted}, {half}{part}"] = {
            "count": len(own),
            **{way: (100 * (guess - got)).abs().median() for way, guess in ways.items()},
            "held": got.between(low, high).mean(),
        }
    return pandas.DataFrame.from_dict(rows, orient="index")
