"""The page "Which number to trust for what": tables and figures from the tables of the zoo.

.. code-block:: sh

    python -m theodolite_papers.alignment_zoo.pages docs

writes ``docs/which-number.md`` and the figures in ``docs/images/zoo``. The words around the tables
are those of ``templates/which-number.md.j2``; every number comes from the judged half.
"""

import argparse
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from theodolite.records import FAMILIES
from theodolite_papers.alignment_zoo import generalisation, memorising, trainability, transfer
from theodolite_papers.alignment_zoo.alarms import HARM, AlarmRule
from theodolite_papers.alignment_zoo.explorer import file_text
from theodolite_papers.alignment_zoo.figures import coverage_figure, figure
from theodolite_papers.alignment_zoo.judging import (
    ANSWERS,
    DATA,
    NOISE,
    STATISTICS,
    TRUTHS,
    Sample,
    area_table,
    rank_table,
)
from theodolite_papers.alignment_zoo.predictors import (
    ABOVE_CHANCE,
    Predictor,
    factor_codes,
    has_fitted,
)
from theodolite_papers.alignment_zoo.registration import registered
from theodolite_papers.alignment_zoo.statistics import interval, smallest_information
from theodolite_papers.alignment_zoo.tables import Zoo, load
from theodolite_papers.ledger import (
    Verdict,
    decider_text,
    find_study,
    judge_study,
    load_results,
    number_text,
)

__all__ = ["alarm_table", "page_values", "write_page"]

_QUESTIONS = ("generalisation", "labels", "verdict", "alarm", "transfer", "trainability")
_RECORDS = Path(__file__).parents[3] / "records"


def write_page(zoo: Zoo, docs: str | os.PathLike[str]) -> Path:
    """Write the page and its figures into the folder of the documentation.

    Returns:
        The path of the page.
    """
    from jinja2 import Environment, StrictUndefined

    values, figures = page_values(zoo)
    folder = Path(docs)
    images = folder / "images" / "zoo"
    images.mkdir(parents=True, exist_ok=True)
    for name, text in figures.items():
        (images / f"{name}.svg").write_text(text, encoding="utf-8")
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    text = environment.from_string(file_text("templates/which-number.md.j2")).render(**values)
    target = folder / "which-number.md"
    target.write_text(text.rstrip() + "\n", encoding="utf-8")
    return target


def page_values(zoo: Zoo) -> tuple[dict[str, Any], dict[str, str]]:
    """Values for the template, and the figures by name."""
    judged = zoo.of_half("judged")
    networks = judged.networks
    rank = {
        "generalisation": _ranked(
            generalisation.fitted(generalisation.sample(judged)),
            registered("generalisation").predictors,
            networks[has_fitted(networks)],
        ),
        "trainability": _ranked(
            trainability.sample(judged), registered("trainability").predictors, networks
        ).dropna(subset=["tau"]),  # the distance from the start is zero at step 0
    }
    labels = memorising.fitted(memorising.label_sample(judged))
    areas = area_table(labels, registered("labels").keys).sort_values("area", ascending=False)
    verdict = memorising.verdict_sample(judged)
    alarm, transfers = alarm_table(judged), _transfer_table(judged)
    rules, scores, sources = (
        _sorted_numbers(judged),
        _transfer_rows(judged),
        transfer.sample(judged),
    )
    found = {**rank, "labels": areas}
    values = {
        "tau": lambda question, key: _number(found[question].at[key, "tau"]),
        "clean": lambda question, key: _number(found[question].at[key, "tau_clean"]),
        "one_factor": lambda question, key: _number(found[question].at[key, "granulated"]),
        "area": lambda key: _number(areas.at[key, "area"]),
        "within": lambda key: _number(areas.at[key, "within_data"]),
        "lost": lambda rule, column="lost": _number(rules[rule][column], 3),
        "score": lambda name: _number(scores[name][0]),
        "clean_score": lambda name: _number(_clean_score(sources, name)),
        "clean_pairs": int((sources["noise"] == 0).sum()),
        "held": _held(),
        "counts": _counts(zoo),
        "true_labels": _with_true_labels(labels),
        "hypotheses": {name: _hypotheses(name) for name in _QUESTIONS},
        "generalisation": _folded(rank["generalisation"], "generalisation", _rank_markdown),
        "trainability": _folded(rank["trainability"], "trainability", _rank_markdown),
        "chance": _chance(judged),
        "labels": _folded(areas, "labels", _area_markdown),
        "verdict": _confusion_markdown(verdict),
        "verdict_counts": _verdict_counts(verdict),
        "inputs_alone": _inputs_alone(verdict),
        "alarm": _markdown(alarm),
        "harmed": _harmed(judged),
        "transfer": _markdown(transfers),
        "scratch": _scratch(judged),
    }
    coverage, error = memorising.abstention(verdict)
    figures = {
        "generalisation": _forest(rank["generalisation"], "generalisation", "Kendall's tau"),
        "trainability": _forest(rank["trainability"], "trainability", "Kendall's tau"),
        "labels": _forest(areas, "labels", "area under the curve", "area", 0.5),
        "abstention": coverage_figure(coverage, error, _rule_point(verdict)),
        "alarm": figure(
            [(name, row["lost"], row["low"], row["high"], bool(row["needs"] != "training"))
             for name, row in _sorted_numbers(judged).items()],
            "test accuracy lost against the best stop", 0.0,
            marks=("training data alone", "validation data"),
        ),
        "transfer": figure(
            [(name, *row, name in _OTHERS) for name, row in _transfer_rows(judged).items()],
            "Kendall's tau within a target", 0.0, marks=("of th.transfer", "baseline"),
        ),
    }  # fmt: skip
    return values, figures


def _forest(
    table: pd.DataFrame, question: str, axis: str, column: str = "tau", zero: float = 0.0
) -> str:
    names = _named(question)
    rows = []
    for key, row in _short(table, question).iterrows():
        one = names[str(key)]
        rows.append(
            (
                _plain_label(one),
                float(row[column]),
                float(row["low"]),
                float(row["high"]),
                one.baseline,
            )
        )
    return figure(rows, axis, zero)


# Tables.


def _number(value: Any, digits: int = 2) -> str:
    if not math.isfinite(value):
        return "–"
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


def _markdown(table: pd.DataFrame) -> str:
    lines = ["| " + " | ".join(map(str, table.columns)) + " |"]
    lines += ["|---" * len(table.columns) + "|"]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in table.itertuples(index=False)]
    return "\n".join(lines)


def _ranked(
    sample: Sample, predictors: Sequence[Predictor], networks: pd.DataFrame
) -> pd.DataFrame:
    table = rank_table(sample, [one.key for one in predictors], networks)
    return table.sort_values("tau", ascending=False)


def _named(question: str) -> Mapping[str, Predictor]:
    return {one.key: one for one in registered(question).predictors}


def _label(one: Predictor) -> str:
    name = f"*{one.name}*" if one.baseline else f"**{one.name}**"
    return name if one.moment == "final" else f"{name}, {_MOMENTS[one.moment]}"


def _plain_label(one: Predictor) -> str:
    moment = _MOMENTS[one.moment]
    return f"{one.name}, {moment}" if moment else one.name


_MOMENTS = {"init": "step 0", "early": "1 %", "final": ""}


def _rank_markdown(table: pd.DataFrame, question: str) -> str:
    names = _named(question)
    rows = [
        {
            "number": _label(names[str(key)]),
            "tau": f"{_number(row['tau'])} ({_number(row['low'])} to {_number(row['high'])})",
            "true labels": _number(row["tau_clean"]),
            "one data set": _number(row["within_data"]),
            "one factor": _number(row["granulated"]),
            "information": f"{_number(row['information'], 3)} ({row['given'] or 'none'})",
            "worst error": f"{_number(row['worst'])} ({row['worst_in']})",
        }
        for key, row in table.iterrows()
    ]
    return _markdown(pd.DataFrame(rows))


# Rows that a table shows; the others are folded away. Headlines of the families, what a user has
# anyway, and the best of all.
_HEADLINES = {family.headline for family in FAMILIES.values()}
_BASELINES = {
    "train_loss", "margin", "weight_norm", "path_norm", "sharpness_hessian",
    "gradient_noise_scale", "probe_accuracy", "neighbour_accuracy", "input_probe_accuracy",
    "input_neighbour_accuracy",
}  # fmt: skip
_BEST = 5


def _short(table: pd.DataFrame, question: str) -> pd.DataFrame:
    names = _named(question)
    shown = [
        place < _BEST
        or names[str(key)].measure.removesuffix(ABOVE_CHANCE) in _HEADLINES | _BASELINES
        for place, key in enumerate(table.index)
    ]
    return table[shown]


def _folded(
    table: pd.DataFrame, question: str, markdown: Callable[[pd.DataFrame, str], str]
) -> str:
    short = _short(table, question)
    others = table.drop(short.index)
    return (
        f"{markdown(short, question)}\n\n<details markdown>\n"
        f"<summary>The other {len(others)} numbers</summary>\n\n{markdown(others, question)}\n\n"
        "</details>"
    )


def _area_markdown(table: pd.DataFrame, question: str) -> str:
    names = _named(question)
    rows = [
        {
            "number": _label(names[str(key)]),
            "AUC": f"{_number(row['area'])} ({_number(row['low'])} to {_number(row['high'])})",
            "one data set": _number(row["within_data"]),
            "worst": f"{_number(row['worst'])} ({row['worst_in']})",
        }
        for key, row in table.iterrows()
    ]
    return _markdown(pd.DataFrame(rows))


def _confusion_markdown(found: Sample) -> str:
    table = memorising.confusion(found)
    rows = [
        {"what the network did": name, "called learning": row.learning,
         "called memorising": row.memorising, "no verdict": row.undecided}
        for name, row in zip(table.index, table.itertuples(), strict=True)
    ]  # fmt: skip
    return _markdown(pd.DataFrame(rows))


def _verdict_counts(found: Sample) -> dict[str, int]:
    answers = {name: int((found["answer"] == k).sum()) for k, name in enumerate(ANSWERS)}
    said = {name: found.where(found["answer"] == k) for k, name in enumerate(ANSWERS)}
    return answers | {
        "wrong_learning": int((said["learning"]["truth"] == TRUTHS.index("memorised")).sum()),
        "wrong_memorising": int((said["memorising"]["truth"] == TRUTHS.index("learned")).sum()),
        "groups": len(np.unique(found.where(found["answer"] > 0)["group"])),
        "all": len(found),
    }


def _inputs_alone(found: Sample) -> dict[str, int]:
    """How often a rule is wrong that answers for every network from the inputs only."""
    _, error = memorising.abstention(found)
    return {"wrong": round(float(error[-1]) * len(error)), "all": len(error)}


def _with_true_labels(found: Sample) -> dict[str, int]:
    """Networks with true labels, of each data set and all together."""
    codes = found["data"][found["noise"] == 0]
    return {"all": len(codes)} | {
        name: int((codes == code).sum()) for code, name in enumerate(DATA)
    }


def _rule_point(found: Sample) -> tuple[float, float]:
    kept = memorising.fitted(found)
    said = kept.where(kept["answer"] != ANSWERS.index("undecided"))
    counts = _verdict_counts(kept)
    wrong = counts["wrong_learning"] + counts["wrong_memorising"]
    return len(said) / max(len(kept), 1), wrong / max(len(said), 1)


def _sorted_numbers(zoo: Zoo) -> dict[str, dict[str, Any]]:
    """Rule -> its numbers, smallest loss first."""
    sample = memorising.alarm_sample(zoo)
    rules = registered("alarm").rules
    rows: dict[str, dict[str, Any]] = {}
    for name, rule in rules.items():
        low, high = interval(
            lambda w, n=name: w @ (sample["best"] - sample[f"kept:{n}"]) / w.sum(-1),  # type: ignore[misc]
            sample.weights,
        )
        rows[name] = {
            "lost": STATISTICS["lost"](sample, name), "low": low, "high": high,
            "harmed": STATISTICS["lost_harmed"](sample, name),
            "false": STATISTICS["false_alarms"](sample, name), "needs": rule.needs,
            "watches": _watched(rule),
        }  # fmt: skip
    return dict(sorted(rows.items(), key=lambda item: item[1]["lost"]))


def _watched(rule: AlarmRule) -> str:
    if rule.quantity == "step":
        return "never"
    worse = "falls" if rule.rises else "rises"
    times = {1: "once", 2: "twice"}.get(rule.patience, f"{rule.patience} times")
    checkpoints = "checkpoint" if rule.patience == 1 else "checkpoints"
    how = f"{worse} {times}" if rule.counts else f"{worse} for {rule.patience} {checkpoints}"
    smoothed = f", mean of {rule.smoothing} checkpoints" if rule.smoothing > 1 else ""
    return f"{rule.quantity} {how}{smoothed}"


def alarm_table(zoo: Zoo) -> pd.DataFrame:
    """The table of losses of every rule, as on the page."""
    rows = [
        {
            "rule": name,
            "alarm when": row["watches"],
            "lost": f"{_number(row['lost'], 3)} ({_number(row['low'], 3)} to "
            f"{_number(row['high'], 3)})",
            "lost where memorising harms": _number(row["harmed"], 3),
            "false alarms": f"{100 * row['false']:.0f} %",
        }
        for name, row in _sorted_numbers(zoo).items()
    ]
    return pd.DataFrame(rows)


def _harmed(zoo: Zoo) -> dict[str, int]:
    sample = memorising.alarm_sample(zoo)
    harmed = sample["best"] - sample["end"] > HARM
    return {"harmed": int(harmed.sum()), "all": len(sample)}


_OTHERS = ("source_test_accuracy", "source_train_accuracy", "neighbour_accuracy")


def _transfer_rows(zoo: Zoo) -> dict[str, tuple[float, float, float]]:
    sample = transfer.sample(zoo)
    rows = {}
    for name in registered("transfer").scores:
        draws = [
            STATISTICS["tau_within_data"](_drawn(sample, w), name) for w in sample.weights[:100]
        ]
        known = np.array(draws)[np.isfinite(draws)]
        low, high = np.quantile(known, [0.025, 0.975]) if len(known) else (math.nan, math.nan)
        rows[name] = (STATISTICS["tau_within_data"](sample, name), float(low), float(high))
    return dict(sorted(rows.items(), key=lambda item: -item[1][0]))


def _drawn(sample: Sample, weights: np.ndarray) -> Sample:
    return sample.where(np.repeat(np.arange(len(sample)), weights.astype(int)))


def _clean_score(sample: Sample, name: str) -> float:
    """Rank correlation within a target among sources with true labels."""
    return STATISTICS["tau_within_data"](sample.where(sample["noise"] == 0), name)


def _transfer_table(zoo: Zoo) -> pd.DataFrame:
    sample = transfer.sample(zoo)
    rows = [
        {
            "score": f"*{name}*" if name in _OTHERS else f"**{name}**",
            "tau within a target": f"{_number(tau)} ({_number(low)} to {_number(high)})",
            "true labels": _number(_clean_score(sample, name)),
            "accuracy lost by its choice": _number(STATISTICS["regret"](sample, name), 3),
        }
        for name, (tau, low, high) in _transfer_rows(zoo).items()
    ]
    return pd.DataFrame(rows)


def _scratch(zoo: Zoo) -> dict[str, Any]:
    """The gain of sources over training from scratch, and its part in the ranking."""
    found, table = transfer.sample(zoo), zoo.transfers
    scratch = table["scratch_accuracy"].to_numpy(np.float64)
    gain = found["outcome"] - scratch
    columns = np.column_stack([found["data"], found["outcome"], scratch])
    architecture = Sample(("data", "outcome", "scratch"), columns)
    columns = np.column_stack([found["data"], gain, found["tangent_error"]])
    added = Sample(("data", "outcome", "tangent_error"), columns)
    within = STATISTICS["tau_within_data"]
    return {
        "worse": int((gain < 0).sum()),
        "much_worse": int((gain < -NOISE).sum()),
        "much_better": int((gain > NOISE).sum()),
        "all": len(gain),
        "tau": _number(within(architecture, "scratch")),
        "gain": _number(within(added, "tangent_error")),
    }


def _counts(zoo: Zoo) -> dict[str, Any]:
    networks = zoo.networks
    halves = networks["half"].astype(str).value_counts()
    return {
        "networks": len(networks),
        "pilot": int(halves.get("pilot", 0)),
        "judged": int(halves.get("judged", 0)),
        "rows": f"{len(zoo.measurements):,}",
        "fitted": int(has_fitted(networks[networks["half"] == "judged"]).sum()),
        "transfers": len(zoo.transfers),
        "never": int(networks[networks["half"] == "judged"]["steps_to_50"].isna().sum()),
        "noise": NOISE,
        "truths": TRUTHS,
    }


def _chance(zoo: Zoo) -> str:
    """Conditional information of random numbers about the gap: the chance level."""
    networks = zoo.networks[has_fitted(zoo.networks)]
    codes, generator = factor_codes(networks), np.random.default_rng(0)
    outcome = networks["gap"].to_numpy(np.float64)
    found = [
        smallest_information(generator.normal(size=len(networks)), outcome, codes)[0]
        for _ in range(10)
    ]
    return _number(float(np.mean(found)), 3)


@cache
def _verdicts(question: str) -> list[Verdict]:
    study = find_study(f"alignment_zoo.{question}")
    return judge_study(study, "reduced", load_results(_RECORDS, study, "reduced"))


def _held() -> dict[str, int]:
    """Number of all hypotheses, of those that hold, and of those that fail."""
    statuses = [verdict.status for question in _QUESTIONS for verdict in _verdicts(question)]
    counts = {status: statuses.count(status) for status in ("holds", "fails", "undecided")}
    return {"all": len(statuses), **counts}


def _hypotheses(question: str) -> str:
    rows = []
    for verdict in _verdicts(question):
        decider, name = verdict.decider, _reader_names(question)
        first = "" if decider is None else decider.name
        decided = [] if decider is None else [decider_text(replace(decider, name=name(first)))]
        numbers = [
            f"{name(key)} {number_text(value)}".replace("_", " ")
            for one in verdict.outcomes.values()
            for key, value in one.numbers.items()
            if key != first
        ]
        rows.append(
            {
                "hypothesis": f"{verdict.claim.text} `{verdict.claim.id}`",
                "measured": "; ".join([*decided, *numbers]),
                "verdict": f"**{verdict.status}**",
            }
        )
    return _markdown(pd.DataFrame(rows))


def _reader_names(question: str) -> Callable[[str], str]:
    """The names of numbers in a verdict, for a reader."""
    plan = registered(question)
    known = {one.key: _plain_label(one) for one in plan.predictors}
    leads = {f"{a} minus {b}": f"{known[a]} minus {known[b]}" for a in known for b in known}
    return lambda key: known.get(key) or leads.get(key, key)


def main(load_zoo: Callable[[], Zoo] = load) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description="Write the page on which number to trust.")
    parser.add_argument("docs", nargs="?", default="docs", type=Path)
    print(write_page(load_zoo(), parser.parse_args().docs))  # noqa: T201


if __name__ == "__main__":
    main()
