"""Figures 15 to 17: ReLU networks and the hinge loss."""

from dataclasses import replace

from theodolite_papers.mehta2021._families import (
    PART,
    PUBLISHED,
    UNTIL_FIT,
    Family,
    family_study,
    standard_claims,
)
from theodolite_papers.mehta2021._scales import Scales

__all__ = ["STUDY"]

_ID = "mehta2021.fig15-16-17"

STUDY = family_study(
    Family(
        id=_ID,
        title="ReLU networks with hinge loss over scales of initialisation",
        shows=("Figure 15", "Figure 16", "Figure 17"),
        lite=Scales(
            activation="relu",
            loss="hinge",
            sigmas=(0.001, 0.01, 0.1, 1.0),
            rate=0.02,
            steps=2500,
            points=12,
        ),
        large=replace(PART, activation="relu", loss="hinge"),
        published=replace(PUBLISHED, activation="relu", loss="hinge"),
        sets={
            "smoke": ["digits"],
            "lite": ["cifar8"],
            "reduced": ["cifar10_20k"],
            "published": ["cifar10", "svhn", "cifar100"],
        },
        claims=standard_claims(_ID, 0.03),
        lite_data="CIFAR-10 shrunk to 8x8, 200 + 200 images of each class; 256 hidden units, rate "
        "0.02; sigma up to 1",
        large_remark=UNTIL_FIT,
        not_run="it needs CIFAR-100 and SVHN, which we do not have, as .npz files in the data "
        "folder",
    )
)
