"""Which number of a source network predicts its accuracy on another task?

Sources are trained networks, also on noisy labels. The outcome is the test accuracy on the target
after fine-tuning all weights. Scores are those of :func:`theodolite.transfer` and the source's
own accuracies. Every comparison is within one target.
"""

import numpy as np

from theodolite_papers.alignment_zoo._questions import question_study
from theodolite_papers.alignment_zoo.judging import CONTEXT, DATA, STATISTICS, Sample, context
from theodolite_papers.alignment_zoo.predictors import with_sources
from theodolite_papers.alignment_zoo.registration import registered
from theodolite_papers.alignment_zoo.tables import Zoo
from theodolite_papers.ledger import Bars, Panel, Points

__all__ = ["COLUMNS", "STUDY", "sample"]

_QUESTION = registered("transfer")
COLUMNS = (*CONTEXT, "outcome", *_QUESTION.scores)


def sample(zoo: Zoo) -> Sample:
    """Accuracy and scores of every source and target; "data" is the target."""
    table = with_sources(zoo).assign(data=zoo.transfers["target"].to_numpy())
    missing = {name: np.nan for name in _QUESTION.scores if name not in table}
    table = table.assign(**missing)  # the pilot half has no neighbours of frozen features
    scores = [
        (1.0 if rises else -1.0) * table[name].to_numpy(np.float64)
        for name, rises in _QUESTION.scores.items()
    ]
    outcome = table[_QUESTION.outcome].to_numpy(np.float64)
    columns = [context(table), np.stack([outcome, *scores], axis=1)]
    return Sample(COLUMNS, np.concatenate(columns, axis=1))


def draw(found: Sample) -> list[Panel]:
    """Rank correlation within targets, and the registered score against the truth."""
    names = list(_QUESTION.scores)
    taus = [STATISTICS["tau_within_data"](found, name) for name in names]
    regrets = [STATISTICS["regret"](found, name) for name in names]
    best = _QUESTION.hypotheses[0].of
    points = [
        Points(f"to {word}", found[best][rows], found["outcome"][rows])
        for code, word in enumerate(DATA)
        for rows in (found["data"] == code,)
        if rows.any()
    ]
    return [
        Panel(
            "rank correlation within a target",
            [Bars("scores", names, taus)],
            "",
            "Kendall's tau",
        ),
        Panel(
            "accuracy lost by the score's choice within a group",
            [Bars("scores", names, regrets)],
            "",
            "test accuracy",
        ),
        Panel("every source and target", points, best, "fine-tuned test accuracy"),
    ]


STUDY = question_study(
    "transfer",
    "Question 3",
    "Which number of a source network predicts its accuracy on another task?",
    sample,
    COLUMNS,
    draw,
)
