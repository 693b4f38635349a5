"""Figures 13 and 14: ReLU networks and softmax on CIFAR-100 and SVHN."""

from dataclasses import replace

from theodolite_papers.mehta2021._families import PUBLISHED, Family, family_study, standard_claims
from theodolite_papers.mehta2021._scales import Scales

__all__ = ["STUDY"]

_ID = "mehta2021.fig13-14"

STUDY = family_study(
    Family(
        id=_ID,
        title="ReLU networks with softmax over scales of initialisation, other data",
        shows=("Figure 13", "Figure 14"),
        lite=Scales(activation="relu", sigmas=(0.001, 0.01, 0.1), steps=1200, points=12),
        large=replace(PUBLISHED, activation="relu"),
        sets={"smoke": ["mixture50"], "lite": ["mixture50"], "published": ["cifar100", "svhn"]},
        claims=standard_claims(_ID, 0.04),
        lite_data="50 Gaussian classes in 64 dimensions, 20 + 20 examples of each, for CIFAR-100; "
        "sigma up to 0.1, where the fall saturates on these data",
        not_run="it needs CIFAR-100 and SVHN, which we do not have, as .npz files in the data "
        "folder",
    )
)
