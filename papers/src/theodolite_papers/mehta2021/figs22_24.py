"""Figures 22 to 24: linear networks."""

from dataclasses import replace

from theodolite_papers.ledger import Claim
from theodolite_papers.mehta2021._families import (
    PUBLISHED,
    Family,
    family_study,
    never_fits,
    standard_claims,
)
from theodolite_papers.mehta2021._scales import Scales

__all__ = ["STUDY"]

_ID = "mehta2021.fig22-23-24"

STUDY = family_study(
    Family(
        id=_ID,
        title="Linear networks over scales of initialisation",
        shows=("Figure 22", "Figure 23", "Figure 24"),
        lite=Scales(activation="linear", sigmas=(0.001, 0.01, 0.1, 1.0), steps=1200, points=12),
        large=replace(PUBLISHED, activation="linear", steps=20_000, points=24),
        published=replace(PUBLISHED, activation="linear", steps=200_000),
        sets={
            "smoke": ["digits"],
            "lite": ["cifar8"],
            "reduced": ["cifar10"],
            "published": ["cifar10", "cifar100", "svhn"],
        },
        claims=(
            *standard_claims(_ID, 0.03, ("hidden", "top", "rep")),
            Claim(f"{_ID}.train", "no training accuracy reaches 1", never_fits),
        ),
        panels=(
            *("hidden", "hidden_contrast", "top", "test", "train"),
            *("representation", "representation_contrast"),
        ),
        lite_data="CIFAR-10 shrunk to 8x8, 200 + 200 images of each class; 256 hidden units, rate "
        "0.1; sigma up to 1",
        not_run="it needs CIFAR-100 and SVHN, which we do not have, as .npz files in the data "
        "folder",
    )
)
