"""Figures 25 to 27: sigmoid networks; a large scale saturates the first layer."""

from dataclasses import replace

from theodolite_papers.ledger import (
    CORRELATION,
    RATIO,
    Claim,
    Outcome,
    Results,
    above,
    below,
    decided,
    spearman,
)
from theodolite_papers.mehta2021._families import (
    PART,
    PUBLISHED,
    Family,
    family_study,
    standard_claims,
    values,
)
from theodolite_papers.mehta2021._scales import Scales

__all__ = ["STUDY"]

_ID = "mehta2021.fig25-26-27"


def _start(runs: Results) -> Outcome:
    run = runs.first
    sigma = run.arrays["sigma"]
    top, rep = values(run, "top_start"), values(run, "representation_start")
    ranks = spearman(sigma, top), spearman(sigma, rep)
    return decided(
        below("top_rank", ranks[0], possible=CORRELATION),
        below("representation_rank", ranks[1], possible=CORRELATION),
        above("top_drop", top[0] - top[-1]),
        above("representation_drop", rep[0] - rep[-1]),
        top_smallest=top[0],
        top_largest=top[-1],
        representation_smallest=rep[0],
        representation_largest=rep[-1],
    )


def _saturates(runs: Results) -> Outcome:
    run = runs.first
    train, norm = values(run, "train"), values(run, "relative_norm_start")
    return decided(
        above("train: best minus largest sigma", train.max() - train[-1]),
        above("norm_ratio", norm[0] / norm[-1], 100, strict=False, possible=RATIO),
        train_largest_sigma=train[-1],
        train_best=train.max(),
        norm_smallest_sigma=norm[0],
        norm_largest_sigma=norm[-1],
    )


STUDY = family_study(
    Family(
        id=_ID,
        title="Sigmoid networks over scales of initialisation",
        shows=("Figure 25", "Figure 26", "Figure 27"),
        lite=Scales(
            activation="sigmoid",
            hidden=(64,),
            sigmas=(0.01, 0.1, 1.0, 10.0),
            rate=1.0,
            steps=5000,
            points=12,
        ),
        large=replace(PART, activation="sigmoid", hidden=(2048,), steps=30_000, until_fit="one"),
        published=replace(PUBLISHED, activation="sigmoid", hidden=(2048,), until_fit="one"),
        sets={
            "smoke": ["digits"],
            "lite": ["cifar8"],
            "reduced": ["cifar10_20k"],
            "published": ["cifar10", "cifar100", "svhn"],
        },
        claims=(
            *standard_claims(_ID, 0.03, ("hidden",)),
            Claim(
                f"{_ID}.start",
                "before training the alignments of top-layer gradients and of representations "
                "fall with sigma",
                _start,
            ),
            Claim(
                f"{_ID}.saturates",
                "the largest sigma saturates the units: training accuracy below the best one, and "
                "a relative gradient norm a hundred times smaller than at the smallest",
                _saturates,
                fragile="a wide top layer fits the training set by itself at large sigma",
            ),
        ),
        panels=(
            *("hidden", "hidden_contrast", "top", "test", "train"),
            *("representation", "representation_contrast"),
        ),
        lite_data="CIFAR-10 shrunk to 8x8, 200 + 200 images of each class; 64 hidden units, rate "
        "1; sigma from 0.01 to 10",
        large_remark="a run ends when one network has learnt its training set",
        not_run="it needs CIFAR-100 and SVHN, which we do not have, as .npz files in the data "
        "folder",
    )
)
