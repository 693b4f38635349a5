"""Which number, at the start of training, predicts how many steps a network needs?

The outcome is the number of steps until the training loss is half of that of guessing. A network
that never reaches it counts as slower than all others.
"""

import numpy as np

from theodolite_papers.alignment_zoo._questions import question_study
from theodolite_papers.alignment_zoo.generalisation import panels
from theodolite_papers.alignment_zoo.judging import CONTEXT, Sample, context
from theodolite_papers.alignment_zoo.predictors import Predictors
from theodolite_papers.alignment_zoo.registration import registered
from theodolite_papers.alignment_zoo.tables import Zoo

__all__ = ["COLUMNS", "STUDY", "sample"]

_QUESTION = registered("trainability")
COLUMNS = (*CONTEXT, "outcome", *_QUESTION.keys)
_NEVER = 1e6  # steps: more than any limit


def sample(zoo: Zoo) -> Sample:
    """Steps and predictors of every network."""
    steps = zoo.networks[_QUESTION.outcome].to_numpy(np.float64)
    columns = [
        context(zoo.networks),
        np.where(np.isfinite(steps), steps, _NEVER)[:, None],
        Predictors(zoo).values(_QUESTION.predictors),
    ]
    return Sample(COLUMNS, np.concatenate(columns, axis=1))


STUDY = question_study(
    "trainability",
    "Question 4",
    "Which number, at the start of training, predicts the steps that a network needs?",
    sample,
    COLUMNS,
    lambda found: panels(
        found.where(found["outcome"] < _NEVER), _QUESTION.predictors, "steps to half the loss"
    ),
)
