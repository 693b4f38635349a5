"""Rules that call a run learning or memorising, and how often they are right."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from theodolite_papers.ledger import Bars, Heat, Panel, Points, Result, Results

__all__ = ["KINDS", "RULES", "Confusion", "Rule", "confusion", "draw", "table_numbers"]

KINDS = ("true", "half", "shuffled")
_CHOSEN_ON = {"data": "digits", "network": "mlp"}  # where thresholds come from; not judged


@dataclass(frozen=True)
class Rule:
    """A number of a run, and the value from which on the run counts as learning.

    Args:
        text: the evidence in words.
        value: (run, kind of labels) -> number.
        threshold: halfway between true and shuffled labels on seeds 0 to 9 of the chosen setting.
        fragile: why it may not be expected to work elsewhere.
    """

    text: str
    value: Callable[[Result, str], float]
    threshold: float
    fragile: str = ""


def _one(name: str) -> Callable[[Result, str], float]:
    return lambda run, kind: run[f"{kind}_{name}"]


def _share(run: Result, kind: str) -> float:
    whole = run[f"{kind}_feature_contrast_output"]
    return run[f"{kind}_feature_contrast_first"] / whole if whole > 0 else float("nan")


def _gap(run: Result, kind: str) -> float:
    return run[f"{kind}_cka_true_output"] - run[f"{kind}_cka_trained_output"]


RULES = {
    "share": Rule("the first layer's share of the output's feature contrast", _share, 0.038),
    "z-score": Rule(
        "the first layer's feature contrast in deviations of its permutation null",
        _one("feature_contrast_first_z"),
        11.3,
    ),
    "cka": Rule(
        "the first layer's CKA with the labels trained on", _one("cka_trained_first"), 0.0425
    ),
    "hidden": Rule(
        "the last hidden layer's feature contrast",
        _one("feature_contrast_hidden"),
        0.052,
        "upper layers separate the classes they were trained on, true or not",
    ),
    "cka-gap": Rule(
        "CKA of the output with true labels minus that with the labels trained on",
        _gap,
        -0.146,
        "needs the true labels",
    ),
    "gradient": Rule(
        "the last hidden layer's gradient contrast",
        _one("gradient_contrast_hidden"),
        0.29,
        "contrasts of gradients depend more on the data than on the labels",
    ),
    "gradient-first": Rule(
        "the first layer's gradient contrast",
        _one("gradient_contrast_first"),
        0.215,
        "contrasts of gradients depend more on the data than on the labels",
    ),
    "train": Rule(
        "training accuracy", _one("train"), 0.99, "memorised and learnt sets are both fitted"
    ),
}


@dataclass(frozen=True)
class Confusion:
    """Held-out runs by their labels and by what a rule calls them."""

    true_learning: int
    true_memorizing: int
    shuffled_learning: int
    shuffled_memorizing: int
    half_learning: int
    half_memorizing: int

    @property
    def runs(self) -> int:
        """Runs with true or shuffled labels."""
        learnt = self.true_learning + self.true_memorizing
        return learnt + self.shuffled_learning + self.shuffled_memorizing

    @property
    def wrong(self) -> int:
        """True labels called memorising, and shuffled ones called learning."""
        return self.true_memorizing + self.shuffled_learning

    @property
    def error(self) -> float:
        """Share of the runs that is called wrong."""
        return self.wrong / self.runs if self.runs else float("nan")

    @property
    def most(self) -> float:
        """Upper end of the error's exact one-sided 95 % interval."""
        if not self.runs or self.wrong == self.runs:
            return 1.0
        return float(stats.beta.ppf(0.95, self.wrong + 1, self.runs - self.wrong))


def confusion(runs: Results, name: str) -> Confusion:
    """What a rule says of the held-out runs."""
    rule = RULES[name]
    counts = dict.fromkeys((f"{k}_{v}" for k in KINDS for v in ("learning", "memorizing")), 0)
    for run in runs:
        if all(run.point.get(key) == value for key, value in _CHOSEN_ON.items()):
            continue
        for kind in KINDS:
            learns = rule.value(run, kind) >= rule.threshold
            counts[f"{kind}_{'learning' if learns else 'memorizing'}"] += 1
    return Confusion(**counts)


def table_numbers(table: Confusion) -> dict[str, float]:
    """The table's cells, and the share of errors with its upper bound."""
    cells = {name: float(getattr(table, name)) for name in table.__dataclass_fields__}
    return cells | {"error": table.error, "error_at_most": table.most}


def draw(runs: Results) -> list[Panel]:
    """The evidence by kind of labels, and the confusion table of every rule."""
    settings = list(dict.fromkeys((r.point["data"], r.point["network"]) for r in runs))
    panels = []
    for name in ("share", "z-score", "gradient"):
        points = [
            Points(
                kind,
                np.array([settings.index((r.point["data"], r.point["network"])) for r in runs])
                + 0.2 * (k - 1),
                np.array([RULES[name].value(run, kind) for run in runs]),
                [f"{r.point['data']} {r.point['network']}, seed {r.seed}" for r in runs],
            )
            for k, kind in enumerate(KINDS)
        ]
        axis = ", ".join(f"{i}: {d} {n}" for i, (d, n) in enumerate(settings))
        panels.append(Panel(RULES[name].text, points, axis, f"threshold {RULES[name].threshold:g}"))
    tables = {name: confusion(runs, name) for name in RULES}
    errors = Bars("share of errors, held-out runs", list(RULES), [t.error for t in tables.values()])
    cells = np.array([list(table_numbers(t).values())[:6] for t in tables.values()])
    columns = [name.replace("_", ", ") for name in Confusion.__dataclass_fields__]
    return [
        *panels,
        Panel("errors of each rule", [errors], "", "share of runs called wrong"),
        Panel("labels, and what each rule calls the run", [Heat(cells, list(RULES), columns)]),
    ]
