"""Figures 4 and 12: ReLU networks and softmax on CIFAR-10; generalisation falls, not to chance."""

from dataclasses import replace

import numpy as np

from theodolite.measures.gradient import is_extreme_memorization
from theodolite.studies import Claim, Judgment, Results, judge
from theodolite.studies.gradient._families import PAPER, Family, family_study
from theodolite.studies.gradient._scales import Scales
from theodolite.studies.gradient._trends import standard_claims, values

__all__ = ["STUDY"]

_ID = "mehta2021.fig4-12"


def _not_extreme(runs: Results) -> Judgment:
    run = next(iter(runs))
    train, test = values(run, "train")[-1], values(run, "best_test")
    size, chance = int(run["test_size"]), run["chance"]
    extreme = is_extreme_memorization(float(train), float(test[-1]), chance, size, 0.01)
    change = abs(test[-1] - test[-2])
    return judge(
        not extreme and change <= 0.03,
        largest_sigma=test[-1],
        next_sigma=test[-2],
        chance=run["chance"],
    )


def _created_by_training(runs: Results) -> Judgment:
    start = values(next(iter(runs)), "representation_start")
    return judge(bool(np.ptp(start) < 1e-4), largest=start.max(), smallest=start.min())


_CLAIMS = (
    *standard_claims(_ID, 0.04),
    Claim(
        f"{_ID}.limited",
        "the fall is limited and saturates: no extreme memorisation at the largest sigma, and the "
        "two largest differ by at most 0.03",
        _not_extreme,
    ),
    Claim(
        f"{_ID}.start",
        "before training the alignment of representations is the same for all sigmas (ReLU is "
        "homogeneous), so that its dependence on sigma is created by training",
        _created_by_training,
    ),
)

STUDY = family_study(
    Family(
        id=_ID,
        title="ReLU networks with softmax over scales of initialisation",
        shows=("Figure 4", "Figure 12"),
        lite=Scales(activation="relu", sigmas=(0.001, 0.01, 0.1, 1.0), steps=1500, points=12),
        paper=replace(PAPER, activation="relu"),
        sets={"smoke": ["digits"], "lite": ["cifar8"], "paper": ["cifar10"]},
        claims=_CLAIMS,
        lite_data="CIFAR-10 shrunk to 8x8, 200 + 200 images of each class; 256 hidden units, rate "
        "0.1; sigma up to 1",
        paper_data="a run ends when every network has learnt its training set or after 300 seconds",
    )
)
