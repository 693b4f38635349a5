"""Figure 10: sin networks whose first layer is frozen."""

from dataclasses import replace

import numpy as np

from theodolite_papers.ledger import (
    LARGE,
    Claim,
    Outcome,
    Results,
    above,
    below,
    decided,
)
from theodolite_papers.mehta2021._families import (
    PUBLISHED,
    Family,
    family_study,
    never_fits,
    values,
)
from theodolite_papers.mehta2021._scales import Scales

__all__ = ["STUDY"]

_ID = "mehta2021.fig10"


def _test(runs: Results) -> Outcome:
    run = runs.first
    accuracy = values(run, "best_test")
    noise = 3 * np.sqrt(run["chance"] * (1 - run["chance"]) / run["test_size"])
    level = run["chance"] + noise
    return decided(
        below("largest_sigma", accuracy[-1], level, strict=False),
        above("smallest_sigma", accuracy[0], level + 0.05),
        chance_level=level,
    )


STUDY = family_study(
    Family(
        id=_ID,
        title="Sin networks with a frozen first layer",
        shows=("Figure 10",),
        lite=Scales(
            activation="sin",
            first_rate=0.0,
            sigmas=(0.001, 0.01, 0.1, 1.0),
            steps=1000,
            points=8,
        ),
        large=replace(PUBLISHED, activation="sin", first_rate=0.0, steps=200_000, until_fit=False),
        sets={"smoke": ["digits"], "lite": ["cifar8"], "published": ["cifar10"]},
        claims=(
            Claim(
                f"{_ID}.train",
                "training accuracy stays below 1: more examples than units",
                never_fits,
                sizes=LARGE,  # the lite size ends long before a network could have fitted
            ),
            Claim(
                f"{_ID}.test",
                "test accuracy is at chance for the largest sigma (three standard errors) and at "
                "least 0.05 above that for the smallest",
                _test,
            ),
        ),
        panels=("test", "train", "top", "representation", "representation_contrast"),
        lite_data="CIFAR-10 shrunk to 8x8, 200 + 200 images of each class; 256 hidden units",
        not_run="not run yet; other experiments on CIFAR-10 were run first",
    )
)
