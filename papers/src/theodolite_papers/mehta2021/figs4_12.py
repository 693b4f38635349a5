"""Figures 4 and 12: ReLU networks and softmax on CIFAR-10: accuracy falls, but not to chance."""

from dataclasses import replace

import numpy as np

from theodolite_papers.ledger import (
    Claim,
    Outcome,
    Panel,
    Results,
    Space,
    above,
    below,
    decided,
    outcome,
)
from theodolite_papers.mehta2021._families import (
    PART,
    PUBLISHED,
    SIX_PANELS,
    UNTIL_FIT,
    Family,
    chance_level,
    drop,
    family_study,
    scale_panels,
    standard_claims,
    values,
)
from theodolite_papers.mehta2021._scales import Scales

__all__ = ["STUDY"]

_ID = "mehta2021.fig4-12"
_CONTROL = "sin"  # of the same data, scales and recipe


def _not_extreme(runs: Results) -> Outcome:
    run = runs.first
    train, test = values(run, "train")[-1], values(run, "best_test")
    size, chance = int(run["test_size"]), run["chance"]
    change = abs(test[-1] - test[-2])
    extreme = above("largest_sigma", test[-1], chance_level(chance, size))
    return decided(
        *([extreme] if train >= 0.99 else []),
        below("change between the two largest sigmas", change, 0.03, strict=False),
        largest_sigma=test[-1],
        next_sigma=test[-2],
        chance=chance,
    )


def _created_by_training(runs: Results) -> Outcome:
    start = values(runs.first, "representation_start")
    return decided(below("range", np.ptp(start), 1e-4), largest=start.max(), smallest=start.min())


def _smaller_than_sin(runs: Results) -> Outcome:
    relu, sin = ([*runs.where(activation=name)] for name in ("relu", _CONTROL))
    if not relu or not sin:
        return outcome(None)
    accuracy = [drop(run, "best_test") for run in (relu[0], sin[0])]
    alignment = [drop(run, "representation_end", relative=True) for run in (relu[0], sin[0])]
    return decided(
        above("accuracy: sin minus relu", accuracy[1] - accuracy[0]),
        above("alignment: sin minus relu", alignment[1] - alignment[0]),
        accuracy_relu=accuracy[0],
        accuracy_sin=accuracy[1],
        alignment_relu=alignment[0],
        alignment_sin=alignment[1],
    )


def _of_relu(claim: Claim) -> Claim:
    """The claim about the ReLU run of each seed; undecided without one."""

    def check(runs: Results) -> Outcome:
        chosen = runs.where(activation="relu")
        return claim.check(chosen) if len(chosen) else outcome(None)

    return replace(claim, check=check, scope="seed")


_ABOUT_RELU = (
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
        sizes=(),  # ReLU is homogeneous: it could not fail
    ),
)
_CLAIMS = (
    *(_of_relu(claim) for claim in _ABOUT_RELU),
    Claim(
        f"{_ID}.smaller",
        "from the better of the two smallest sigmas to the largest, best test accuracy falls by "
        "less than for sin, and the alignment of the trained representations by a smaller share",
        _smaller_than_sin,
        scope="seed",
    ),
)


def draw(runs: Results) -> list[Panel]:
    """The panels of both figures, and the sin control of the first two."""
    relu, sin = runs.where(activation="relu"), runs.where(activation=_CONTROL)
    return [
        *scale_panels("Figure 4, Figure 12", relu, SIX_PANELS),
        *scale_panels("Control, sin", sin, ["test", "representation"]),
    ]


_BASE = family_study(
    Family(
        id=_ID,
        title="ReLU networks with softmax over scales of initialisation",
        shows=("Figure 4", "Figure 12"),
        lite=Scales(activation="relu", sigmas=(0.001, 0.01, 0.1, 1.0), steps=1500, points=12),
        large=replace(PART, activation="relu"),
        published=replace(PUBLISHED, activation="relu"),
        sets={
            "smoke": ["digits"],
            "lite": ["cifar8"],
            "reduced": ["cifar10_20k"],
            "published": ["cifar10"],
        },
        claims=_CLAIMS,
        lite_data="CIFAR-10 shrunk to 8x8, 200 + 200 images of each class; 256 hidden units, rate "
        "0.1; sigma up to 1",
        large_remark=UNTIL_FIT,
    )
)
STUDY = replace(
    _BASE,
    spaces={
        size: Space({**space.grid, "activation": ["relu", _CONTROL]})
        for size, space in _BASE.spaces.items()
    },
    draw=draw,
)
