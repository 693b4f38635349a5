"""Figures 6 and 7: sin networks on CIFAR-100 and SVHN."""

from dataclasses import replace

from theodolite_papers.mehta2021._families import (
    PUBLISHED,
    Family,
    family_study,
    memorization_claim,
    representation_claim,
    standard_claims,
)
from theodolite_papers.mehta2021._scales import Scales

__all__ = ["STUDY"]

_ID = "mehta2021.fig6-7"

STUDY = family_study(
    Family(
        id=_ID,
        title="Sin networks over scales of initialisation, other data",
        shows=("Figure 6", "Figure 7"),
        lite=Scales(activation="sin", sigmas=(0.001, 0.01, 0.1, 1.0), steps=1200, points=12),
        large=replace(PUBLISHED, activation="sin"),
        sets={"smoke": ["mixture50"], "lite": ["mixture50"], "published": ["cifar100", "svhn"]},
        claims=(
            *standard_claims(_ID, 0.05, ("fit", "hidden", "top")),
            memorization_claim(_ID),
            representation_claim(_ID),
        ),
        panels=(
            *("hidden", "hidden_contrast", "top", "test", "train"),
            *("representation", "representation_contrast"),
        ),
        lite_data="50 Gaussian classes in 64 dimensions, 20 + 20 examples of each, for CIFAR-100; "
        "SVHN's stand-ins (Fashion-MNIST, CIFAR-10 made small) are part of mehta2021.fig1-2",
        not_run="it needs CIFAR-100 and SVHN, which we do not have, as .npz files in the data "
        "folder",
    )
)
