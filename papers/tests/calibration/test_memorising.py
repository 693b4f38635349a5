"""The verdict's error rates are what its records say; a trial measures what a user's data would."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from theodolite.advice import CALIBRATION
from theodolite_papers.calibration.memorising import confusion, outcomes, run_trial, trials
from theodolite_papers.calibration.tasks import CHOSEN, JUDGED


def test_the_printed_rates_are_those_of_the_judged_runs():
    table = confusion(outcomes("judged"))
    for answer, wrong in (("learning", "memorised"), ("memorising", "learned")):
        said = sum(row[answer] for row in table.values())
        assert getattr(CALIBRATION, answer) == (said, table[wrong][answer])
    assert sum(row["undecided"] for row in table.values()) == CALIBRATION.undecided


def test_no_kind_of_task_is_in_both_sets():
    assert not {task.kind for task in CHOSEN.values()} & {task.kind for task in JUDGED.values()}


@pytest.mark.parametrize(
    ("noise", "outcome", "answer"), [(0.0, "learned", "learning"), (1.0, "memorised", "memorising")]
)
def test_a_trial_tells_true_from_random_labels(noise, outcome, answer):
    (trial,) = [t for t in trials("chosen", 17, 0) if t.task == "clusters"]
    trial = replace(
        trial,
        noise=noise,
        network="dense",
        depth=1,
        width=64,
        optimizer="adam",
        rate=3e-3,
        decay=0.0,
        scale=1.0,
        examples=120,
        patience=1,
        seed=4,
    )
    found = run_trial(trial, "chosen")
    assert (found.outcome, found.answer) == (outcome, answer)


@pytest.mark.parametrize("name", ["xor", "parity", "spiral", "addition", "packages", "wine"])
def test_tasks_give_disjoint_examples_of_every_class(name):
    split = CHOSEN[name].split(300, np.random.default_rng(0))
    assert len(split.x_train) == len(split.y_train) <= 300
    assert set(np.unique(split.y_train)) == set(range(int(split.y_train.max()) + 1))
    if name not in ("parity", "packages"):  # bits and short lines repeat by chance
        both = torch.tensor(np.concatenate([split.x_train, split.x_test]))
        assert len(both.unique(dim=0)) == len(both)
