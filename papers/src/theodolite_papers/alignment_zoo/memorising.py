"""Three questions about memorising: final numbers, the verdict of the library, and alarms.

``labels``: which number separates networks with corrupted labels from those with true ones, among
those that fitted their training set. ``verdict``: the verdict of the library's rule on every
network, and how often it is wrong or missing. ``alarm``: when to stop, without a validation set.
"""

import numpy as np
import pandas as pd

from theodolite.advice import FitEvidence, InputFinding, judge_inputs
from theodolite_papers.alignment_zoo._questions import question_study
from theodolite_papers.alignment_zoo.alarms import stopped
from theodolite_papers.alignment_zoo.generalisation import bars
from theodolite_papers.alignment_zoo.judging import (
    ANSWERS,
    CONTEXT,
    STATISTICS,
    TRUTHS,
    Sample,
    area_table,
    context,
)
from theodolite_papers.alignment_zoo.predictors import Predictors
from theodolite_papers.alignment_zoo.registration import registered
from theodolite_papers.alignment_zoo.statistics import coverage_curve
from theodolite_papers.alignment_zoo.tables import Zoo
from theodolite_papers.ledger import Bars, Heat, Line, Panel, Points

__all__ = [
    "ALARM_COLUMNS",
    "LABEL_COLUMNS",
    "STUDIES",
    "VERDICT_COLUMNS",
    "abstention",
    "alarm_sample",
    "confusion",
    "fitted",
    "label_sample",
    "rule_answer",
    "verdict_sample",
]

_LABELS, _ALARM = registered("labels"), registered("alarm")
LABEL_COLUMNS = (*CONTEXT, "outcome", "truth", *_LABELS.keys)
VERDICT_COLUMNS = (*CONTEXT, "answer", "truth", "in_inputs", "carried_over")
ALARM_COLUMNS = (
    *CONTEXT,
    "best",
    "end",
    *(f"{what}:{rule}" for rule in _ALARM.rules for what in ("kept", "alarm")),
)


def _truth(networks: pd.DataFrame) -> np.ndarray:
    return np.array([TRUTHS.index(str(word)) for word in networks["outcome"]], np.float64)


# Labels.


def label_sample(zoo: Zoo) -> Sample:
    """Whether training labels were redrawn at random (1 or 0), and predictors."""
    networks = zoo.networks
    columns = [
        context(networks),
        (networks["noise"].to_numpy(np.float64) > 0).astype(np.float64)[:, None],
        _truth(networks)[:, None],
        Predictors(zoo).values(_LABELS.predictors),
    ]
    return Sample(LABEL_COLUMNS, np.concatenate(columns, axis=1))


def fitted(sample: Sample) -> Sample:
    """The networks that fitted most of their training labels."""
    did = [TRUTHS.index(word) for word in ("learned", "between", "memorised")]
    return sample.where(np.isin(sample["truth"], did))


def _draw_labels(found: Sample) -> list[Panel]:
    table = area_table(found, _LABELS.keys).sort_values("area", ascending=False)
    best = next(one for one in _LABELS.predictors if one.key == table.index[0])
    points = Points("networks", found["noise"], best.sign * found[best.key])
    return [
        Panel(
            "corrupted or true labels",
            bars(table, _LABELS.predictors, "area"),
            "",
            "area under the curve",
        ),
        Panel("every network", [points], "share of labels redrawn", best.name),
    ]


# The verdict of the library.


_CALLED = {
    InputFinding.PREDICT: "learning",
    InputFinding.FIRST_LAYER_PREDICTS: "learning",
    InputFinding.AT_CHANCE: "memorising",
}


def rule_answer(evidence: FitEvidence) -> str:
    """The answer of the rule: inputs predict the fit, inputs are at chance, or neither.

    The library says "undecided" for inputs at chance, because a task may need the architecture.
    """
    return _CALLED.get(judge_inputs(evidence), "undecided")


def evidence_of(row: "pd.Series[float]") -> FitEvidence:
    """The arguments of the rule, from a row of the table of networks."""
    return FitEvidence(
        accuracy=float(row["fit_accuracy"]),
        chance=float(row["chance"]),
        examples=int(row["fit_examples"]),
        input_size=int(row["input_size"]),
        input_neighbours=float(row["input_neighbours"]),
        input_probe=float(row["input_probe"]),
        first_layer_neighbours=float(row["first_layer_neighbours"]),
    )


def verdict_sample(zoo: Zoo) -> Sample:
    """The answer of the rule for every network, and the truth."""
    answers, shares = [], []
    for _, row in zoo.networks.iterrows():
        evidence = evidence_of(row)
        answers.append(float(ANSWERS.index(rule_answer(evidence))))
        best = max(evidence.input_neighbours, evidence.input_probe)
        shares.append(evidence.share(best) if evidence.fit > 0 else np.nan)
    carried = zoo.networks["carried_over"].to_numpy(np.float64)
    columns = np.column_stack([answers, _truth(zoo.networks), shares, carried])
    table = np.concatenate([context(zoo.networks), columns], axis=1)
    return Sample(VERDICT_COLUMNS, table)


def confusion(found: Sample) -> pd.DataFrame:
    """Number of networks for each truth and answer."""
    return pd.DataFrame(
        {
            answer: [
                int(((found["truth"] == t) & (found["answer"] == a)).sum())
                for t in range(len(TRUTHS))
            ]
            for a, answer in enumerate(ANSWERS)
        },
        index=list(TRUTHS),
    )[["learning", "memorising", "undecided"]]


def abstention(found: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Coverage and errors of a rule that uses only the share of the fit that inputs predict.

    A network is called learning above a half and memorising below; the further from a half, the
    more confident. An error is a memorised network called learning, or a learned one memorising.
    """
    known = fitted(found).where(np.isfinite(fitted(found)["in_inputs"]))
    share, truth = known["in_inputs"], known["truth"]
    wrong = np.where(
        share > 0.5, truth == TRUTHS.index("memorised"), truth == TRUTHS.index("learned")
    )
    return coverage_curve(np.abs(share - 0.5), wrong)


def _draw_verdict(found: Sample) -> list[Panel]:
    table = confusion(found)
    coverage, error = abstention(found)
    kept = fitted(found)
    said = kept.where(kept["answer"] != ANSWERS.index("undecided"))
    wrong = ((said["answer"] == 1) & (said["truth"] == 3)) | (
        (said["answer"] == 2) & (said["truth"] == 1)
    )
    rule = Points("the rule", [len(said) / max(len(kept), 1)], [float(np.mean(wrong))])
    return [
        Panel(
            "networks",
            [Heat(table.to_numpy(float), list(TRUTHS), [str(name) for name in table])],
            "called",
        ),
        Panel(
            "errors against coverage, fitted networks",
            [Line("answer from the inputs alone", coverage, error), rule],
            "share of networks with an answer",
            "share of wrong answers",
        ),
    ]


# The alarm.


def alarm_sample(zoo: Zoo) -> Sample:
    """Best and last test accuracy, and what every rule keeps."""
    found = stopped(zoo.curves, _ALARM.rules).reindex(zoo.networks["network"].astype(str))
    names = list(ALARM_COLUMNS[len(CONTEXT) :])
    table = np.concatenate([context(zoo.networks), found[names].to_numpy(np.float64)], axis=1)
    return Sample(ALARM_COLUMNS, table[np.isfinite(table[:, len(CONTEXT)])])


def _draw_alarm(found: Sample) -> list[Panel]:
    rules = list(_ALARM.rules)
    lost, harmed, false = (
        [STATISTICS[name](found, rule) for rule in rules]
        for name in ("lost", "lost_harmed", "false_alarms")
    )
    return [
        Panel(
            "test accuracy lost against the best checkpoint",
            [
                Bars("all networks", rules, lost),
                Bars("networks that memorising harmed", rules, harmed),
            ],
            "",
            "test accuracy",
        ),
        Panel("false alarms", [Bars("unharmed networks", rules, false)], "", "share"),
    ]


STUDIES = (
    question_study(
        "labels",
        "Question 2",
        "Which number separates corrupted labels from true ones?",
        label_sample,
        LABEL_COLUMNS,
        _draw_labels,
        fitted,
    ),
    question_study(
        "verdict",
        "Question 2",
        "How often is the instrument's verdict on memorising right?",
        verdict_sample,
        VERDICT_COLUMNS,
        _draw_verdict,
    ),
    question_study(
        "alarm",
        "Question 2",
        "When to stop, without a validation set?",
        alarm_sample,
        ALARM_COLUMNS,
        _draw_alarm,
    ),
)
