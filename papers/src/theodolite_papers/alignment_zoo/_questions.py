"""Studies of the zoo: every group of networks is a run, a hypothesis is a claim about all of them.

The networks of a group share their data, labels and seed. The ledger therefore computes its
intervals by leaving out one group at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from theodolite.errors import RecordError
from theodolite_papers.alignment_zoo.judging import Sample
from theodolite_papers.alignment_zoo.registration import Hypothesis, registered
from theodolite_papers.alignment_zoo.tables import Zoo, load
from theodolite_papers.ledger import (
    LARGE,
    Claim,
    Measured,
    Outcome,
    Panel,
    Results,
    Study,
    Trial,
)

__all__ = ["GROUPS", "Half", "question_study", "sample_from"]

GROUPS = tuple(range(28))  # of the judged half, as designed
_SMOKE = "the pilot half: hypotheses were chosen on it, so nothing is judged there"
_JUDGED = (
    "The judged half: other architectures than in the pilot half, and two data sets that it does "
    "not have. A group is thirteen networks that differ from a base in one factor each. The last "
    "15 of the 330 networks were trained after a first look at the others. The "
    "number of one hypothesis, labels.contrast, reaches its threshold only with them"
)


@dataclass(frozen=True)
class Half:
    """Which networks.

    Args:
        half: "judged" or "pilot".
    """

    half: str = "judged"


Sampler = Callable[[Zoo], Sample]


@cache
def _half(half: str) -> Zoo:
    return load().of_half(half)


def sample_from(names: Sequence[str], runs: Results) -> Sample:
    """The sample of all groups with a record; a group that is drawn twice counts twice."""
    parts = []
    for run in runs:
        table = np.array(run.arrays["table"], np.float64)
        table[:, 0] = run.seed
        parts.append(table)
    return Sample(tuple(names), np.concatenate(parts))


def question_study(
    question: str,
    shows: str,
    title: str,
    sampler: Sampler,
    columns: Sequence[str],
    draw: Callable[[Sample], list[Panel]],
    premise: Callable[[Sample], Sample] = lambda sample: sample,
) -> Study:
    """The study of a question.

    Args:
        question: name in ``registered.toml``.
        shows: the question's number.
        title: what it asks.
        sampler: zoo -> sample.
        columns: of that sample.
        draw: sample -> panels of its picture.
        premise: which networks the hypotheses are about.
    """
    id_ = f"alignment_zoo.{question}"

    def measure(config: Half, trial: Trial) -> Measured:
        zoo = _half(config.half)
        networks = zoo.networks[zoo.networks["group"] == trial.seed]
        if networks.empty:
            raise RecordError(
                f"{id_}: expected networks of group {trial.seed} of the {config.half} half in the "
                "tables, there are none; 'theodolite study zoo run' trains them"
            )
        part = sampler(zoo.of_networks(networks["network"]))
        return Measured({"networks": len(part)}, {"table": part.table.astype(np.float32)})

    def checked(hypothesis: Hypothesis) -> Callable[[Results], Outcome]:
        return lambda runs: hypothesis.check(premise(sample_from(columns, runs)))

    claims = tuple(
        Claim(f"{id_}.{one.name}", one.text, checked(one), scope="all", sizes=LARGE)
        for one in registered(question).hypotheses
    )
    return Study(
        id=id_,
        title=title,
        shows=(shows,),
        measure=measure,
        configs={"smoke": Half("pilot"), "reduced": Half("judged")},
        claims=claims,
        draw=lambda runs: draw(premise(sample_from(columns, runs))),
        seeds={"smoke": (0, 1, 2), "reduced": GROUPS},
        repeat="group",
        not_run={"lite": _SMOKE, "published": "not an experiment of a paper"},
        remarks={"reduced": _JUDGED},
    )
