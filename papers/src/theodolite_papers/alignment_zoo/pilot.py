"""Choices on the pilot half: the layer and sign of each measure, the patience of each rule.

.. code-block:: sh

    python -m theodolite_papers.alignment_zoo.pilot > chosen.toml

The pilot half decides, for every measure and baseline, the layer at which it predicts the outcome
best, and its direction there. For every rule that stops training it decides the form that loses
least. The judged half is not used. The pilot half has no networks with batch normalisation: they
had failed when the choices were made.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from theodolite_papers.alignment_zoo.alarms import AlarmRule, chosen_rules
from theodolite_papers.alignment_zoo.judging import CONTEXT, DATA, STATISTICS, Sample, context
from theodolite_papers.alignment_zoo.predictors import (
    ABOVE_CHANCE,
    Predictor,
    Predictors,
    has_fitted,
    with_sources,
)
from theodolite_papers.alignment_zoo.tables import Zoo, load

__all__ = ["chosen_predictors", "chosen_table", "chosen_text", "pilot_half"]

# Columns of the transfers that are no scores: keys, truths, ends of the forecast's interval.
_NO_SCORES = (
    "network",
    "target",
    "fine_tuned_accuracy",
    "frozen_accuracy",
    "scratch_accuracy",
    "low",
    "high",
)


def pilot_half(zoo: Zoo) -> Zoo:
    """The pilot half as it was when choices were made."""
    networks = zoo.of_half("pilot").networks
    return zoo.of_networks(networks[networks["normalisation"] != "batch"]["network"])


def chosen_predictors(
    zoo: Zoo, outcome: np.ndarray, moments: Sequence[str], statistics: Sequence[str], half: float
) -> list[Predictor]:
    """One predictor for each measure and moment, at the layer where it is strongest.

    Args:
        zoo: the networks to choose on.
        outcome: of each; nan where a network does not count.
        moments: when measures may be read.
        statistics: whose mean decides.
        half: their value for a number that knows nothing.
    """
    found = Predictors(zoo)
    candidates = found.candidates(moments)
    keys = [one.key for one in candidates]
    names = (*CONTEXT, "outcome", *keys)
    table = np.concatenate(
        [context(zoo.networks), outcome[:, None], found.values(candidates)], axis=1
    )
    sample = Sample(names, table).where(np.isfinite(outcome))
    best: dict[tuple[str, str], tuple[float, Predictor]] = {}
    for one in candidates:
        if not np.isfinite(sample[one.key]).any():
            continue
        strengths = [STATISTICS[name](sample, one.key) - half for name in statistics]
        signed = float(np.mean([value for value in strengths if np.isfinite(value)] or [np.nan]))
        key = (one.measure.removesuffix(ABOVE_CHANCE), one.moment)
        if np.isfinite(signed) and (key not in best or abs(signed) > best[key][0]):
            chosen = Predictor(one.measure, one.place, one.moment, bool(signed > 0), one.baseline)
            best[key] = (float(abs(signed)), chosen)
    ranked = sorted(best.values(), key=lambda pair: (moments.index(pair[1].moment), -pair[0]))
    return [chosen for _, chosen in ranked]


def _generalisation(zoo: Zoo) -> list[Predictor]:
    networks = zoo.networks
    gap = np.where(has_fitted(networks), networks["gap"].to_numpy(np.float64), np.nan)
    return chosen_predictors(zoo, gap, ["final"], ["tau", "granulated"], 0.0)


def _labels(zoo: Zoo) -> list[Predictor]:
    networks = zoo.networks
    noisy = (networks["noise"].to_numpy(np.float64) > 0).astype(np.float64)
    noisy[~has_fitted(networks)] = np.nan
    return chosen_predictors(zoo, noisy, ["final"], ["area", "area_within_data"], 0.5)


def _trainability(zoo: Zoo) -> list[Predictor]:
    steps = zoo.networks["steps_to_50"].to_numpy(np.float64)
    steps = np.where(np.isfinite(steps), steps, 1e6)
    return chosen_predictors(zoo, steps, ["init", "early"], ["tau", "granulated"], 0.0)


def _rules(curves: pd.DataFrame) -> dict[str, AlarmRule]:
    """A rule for each quantity of the curves, ours in both directions and at both ends."""

    def both(*names: str) -> list[AlarmRule]:
        return [AlarmRule(name, rises) for name in names for rises in (True, False)]

    columns = [str(name) for name in curves]
    ours = sorted({c.removesuffix("_first") for c in columns if c.endswith("_first")})
    forms = {
        "validation loss": [AlarmRule("validation_loss", False, needs="validation")],
        "validation accuracy": [AlarmRule("validation_accuracy", True, needs="validation")],
        "gradient disparity": [
            AlarmRule("gradient_disparity", False, counts=counts) for counts in (False, True)
        ],
        "prediction changes": [AlarmRule("prediction_changes", False)],
        "gradient noise scale": both("gradient_noise_scale"),
        "training loss": [AlarmRule("train_loss", False)],
        "train to the end": [AlarmRule("step", True)],
    }
    forms |= {
        name: both(f"{name}_first", f"{name}_last", f"{name}_last - {name}_first") for name in ours
    }
    return chosen_rules(curves, forms)


def _scores(zoo: Zoo) -> dict[str, bool]:
    table = with_sources(zoo)
    outcome = table["fine_tuned_accuracy"].to_numpy(np.float64)
    targets = np.array([DATA.index(str(name)) for name in table["target"]], np.float64)
    blank = np.zeros((len(table), len(CONTEXT)))
    blank[:, CONTEXT.index("data")] = targets
    scores_of = [*zoo.transfers, "source_test_accuracy", "source_train_accuracy"]
    numeric = [c for c in scores_of if c not in _NO_SCORES and table[c].dtype.kind in "fi"]
    scores: dict[str, bool] = {}
    for name in numeric:
        values = table[name].to_numpy(np.float64)
        columns = np.column_stack([blank, outcome, values])
        tau = STATISTICS["tau_within_data"](Sample((*CONTEXT, "outcome", name), columns), name)
        if np.isfinite(tau):
            scores[name] = bool(tau > 0)
    return scores


def chosen_table(zoo: Zoo, question: str) -> dict[str, Any]:
    """The choices for one question, as in ``chosen.toml``."""
    if question == "transfer":
        return {"outcome": "fine_tuned_accuracy", "scores": _scores(zoo)}
    if question == "alarm":
        return {"rules": {name: vars(rule) for name, rule in _rules(zoo.curves).items()}}
    outcome, choose = {
        "generalisation": ("gap", _generalisation),
        "labels": ("noise", _labels),
        "trainability": ("steps_to_50", _trainability),
    }[question]
    return {"outcome": outcome, "predictors": [vars(one) for one in choose(zoo)]}


def chosen_text(zoo: Zoo) -> str:
    """All choices as the text of ``chosen.toml``."""
    lines = ["# Chosen on the pilot half by theodolite_papers.alignment_zoo.pilot; not edited."]
    for question in ("generalisation", "labels", "trainability", "transfer", "alarm"):
        table = chosen_table(zoo, question)
        lines += ["", f"[{question}]"]
        if "outcome" in table:
            lines += [f'outcome = "{table["outcome"]}"']
        if "predictors" in table:
            lines += ["predictors = [", *(f"    {_inline(p)}," for p in table["predictors"]), "]"]
        for name in ("scores", "rules"):
            if name in table:
                lines += [f"[{question}.{name}]"]
                lines += [f'"{key}" = {_toml(value)}' for key, value in table[name].items()]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return _inline(value)
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _inline(values: Mapping[str, object]) -> str:
    return "{ " + ", ".join(f"{name} = {_toml(value)}" for name, value in values.items()) + " }"


if __name__ == "__main__":
    print(chosen_text(pilot_half(load())), end="")  # noqa: T201
