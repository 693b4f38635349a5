"""Figures 11 and 18: networks of four layers, with sin and with ReLU activations."""

from dataclasses import replace

from theodolite_papers.mehta2021._families import (
    PUBLISHED,
    UNTIL_FIT,
    Family,
    accuracy_claim,
    family_study,
    memorization_claim,
    representation_claim,
)
from theodolite_papers.mehta2021._scales import Scales

__all__ = ["STUDIES"]

_PANELS = ("test", "train", "representation", "representation_contrast")
_WEAK = "expected, but weak in the last hidden layer: the upper layers learn"

_SIN = Family(
    id="mehta2021.fig11",
    title="Sin networks of four layers",
    shows=("Figure 11",),
    lite=Scales(
        activation="sin",
        hidden=(256, 256, 256),
        sigmas=(0.01, 0.1, 1.0),
        rate=0.05,
        steps=1000,
        points=8,
    ),
    large=replace(PUBLISHED, activation="sin", hidden=(1024, 1024, 1024)),
    sets={"smoke": ["digits"], "lite": ["digits"], "published": ["cifar10"]},
    claims=(
        accuracy_claim("mehta2021.fig11", 0.2),
        memorization_claim("mehta2021.fig11"),
        replace(representation_claim("mehta2021.fig11"), fragile=_WEAK),
    ),
    panels=_PANELS,
    lite_data="8x8 digits, 256 units in each hidden layer, sigma from 0.01 to 1",
    large_remark=UNTIL_FIT,
    not_run="not run yet; other experiments on CIFAR-10 were run first",
)

_RELU = Family(
    id="mehta2021.fig18",
    title="ReLU networks of four layers",
    shows=("Figure 18",),
    lite=Scales(
        activation="relu",
        hidden=(192, 192, 192),
        sigmas=(0.01, 0.036, 0.1, 0.36),
        rate=0.01,
        steps=2000,
        points=8,
    ),
    large=replace(PUBLISHED, activation="relu", hidden=(1024, 1024, 1024)),
    sets={"smoke": ["digits"], "lite": ["cifar8"], "published": ["cifar10"]},
    claims=(
        accuracy_claim("mehta2021.fig18", 0.03),
        replace(representation_claim("mehta2021.fig18"), fragile=_WEAK),
    ),
    panels=_PANELS,
    lite_data="CIFAR-10 shrunk to 8x8, 200 + 200 images of each class; 192 units in each hidden "
    "layer; sigmas of 0.01, 0.036, 0.1 and 0.36",
    large_remark=UNTIL_FIT,
    not_run="not run yet; other experiments on CIFAR-10 were run first",
)

STUDIES = (family_study(_SIN), family_study(_RELU))
