"""Which number, from training data alone, predicts the generalisation gap?

The gap is training accuracy minus accuracy on test examples whose labels have the same noise.
Networks that reach less than 70 % of the possible gain over guessing are left out. Their gap is
small because they have not fitted the data.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from theodolite_papers.alignment_zoo._questions import question_study
from theodolite_papers.alignment_zoo.judging import (
    CONTEXT,
    DATA,
    Sample,
    context,
    rank_table,
)
from theodolite_papers.alignment_zoo.predictors import Predictor, Predictors, has_fitted
from theodolite_papers.alignment_zoo.registration import registered
from theodolite_papers.alignment_zoo.tables import Zoo
from theodolite_papers.ledger import Bars, Panel, Points

__all__ = ["COLUMNS", "STUDY", "bars", "fitted", "panels", "sample"]

_QUESTION = registered("generalisation")
_SHOWN = 6  # bars of each kind
COLUMNS = (*CONTEXT, "outcome", "fitted", *_QUESTION.keys)


def sample(zoo: Zoo) -> Sample:
    """Gap and predictors of every network."""
    networks = zoo.networks
    columns = [
        context(networks),
        networks[_QUESTION.outcome].to_numpy(np.float64)[:, None],
        has_fitted(networks).astype(np.float64)[:, None],
        Predictors(zoo).values(_QUESTION.predictors),
    ]
    return Sample(COLUMNS, np.concatenate(columns, axis=1))


def fitted(sample: Sample) -> Sample:
    """The networks that fitted their training set."""
    return sample.where(sample["fitted"] > 0)


def panels(sample: Sample, predictors: Sequence[Predictor], outcome: str) -> list[Panel]:
    """Rank correlations with their intervals, and our best number against the outcome."""
    table = rank_table(sample, [one.key for one in predictors]).sort_values("tau", ascending=False)
    best = next(one for one in _in_order(table, predictors) if not one.baseline)
    points = [
        Points(word, best.sign * sample[best.key][rows], sample["outcome"][rows])
        for code, word in enumerate(DATA)
        for rows in (sample["data"] == code,)
        if rows.any()
    ]
    return [
        Panel(
            f"rank correlation of the best {_SHOWN} of each kind, with its interval",
            bars(table, predictors, "tau"),
            "",
            "Kendall's tau",
        ),
        Panel("every network", points, f"{best.name} ({best.moment})", outcome),
    ]


def bars(table: pd.DataFrame, predictors: Sequence[Predictor], column: str) -> list[Bars]:
    """A column of a sorted table with half the width of its interval, the best of each kind."""
    kinds = []
    for name, baseline in (("alignment", False), ("baseline", True)):
        ours = [one for one in _in_order(table, predictors) if one.baseline == baseline][:_SHOWN]
        part = table.loc[[one.key for one in ours]]
        labels = [f"{one.name} ({one.moment})" for one in ours]
        half = 0.5 * (part["high"] - part["low"])
        if ours:
            kinds.append(Bars(name, labels, part[column].to_numpy(), half.to_numpy()))
    return kinds


def _in_order(table: pd.DataFrame, predictors: Sequence[Predictor]) -> list[Predictor]:
    named = {one.key: one for one in predictors}
    return [named[str(key)] for key in table.index]


STUDY = question_study(
    "generalisation",
    "Question 1",
    "Which number, from training data alone, predicts the generalisation gap?",
    sample,
    COLUMNS,
    lambda found: panels(found, _QUESTION.predictors, "generalisation gap"),
    fitted,
)
