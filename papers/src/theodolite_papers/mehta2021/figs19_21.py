"""Figures 19 to 21: ReLU networks and the squared loss; larger scales diverge."""

from collections.abc import Callable
from dataclasses import replace

from theodolite.data import Dataset
from theodolite_papers.lab.training import DivergenceError
from theodolite_papers.ledger import (
    CORRELATION,
    Claim,
    Measured,
    Outcome,
    Results,
    Trial,
    above,
    below,
    decided,
    spearman,
)
from theodolite_papers.mehta2021._families import (
    PART,
    PUBLISHED,
    Family,
    accuracy_claim,
    family_study,
    values,
)
from theodolite_papers.mehta2021._scales import Scales, courses, measure_scales, standardized_set

__all__ = ["STUDY"]

_ID = "mehta2021.fig19-20-21"
_SIGMAS = (0.001, 0.002, 0.004, 0.008, 0.016)
_BEYOND = (0.032, 0.064, 0.128)
_SHORT = 400  # steps within which a rate that is too large shows


def measure(config: Scales, trial: Trial) -> Measured:
    """The usual curves, and whether larger scales diverge."""
    found = measure_scales(config, trial)
    data = standardized_set(config.data, trial.generator())
    numbers = dict(found.numbers)
    for sigma in _BEYOND:
        one = replace(config, sigmas=(sigma,), steps=min(_SHORT, config.steps), until_fit=False)
        numbers[f"diverges@{sigma:g}"] = float(_diverges(one, trial, data))
    return Measured(numbers, found.arrays)


def _diverges(config: Scales, trial: Trial, data: Dataset) -> bool:
    try:
        courses(config, trial, data, lambda probe, model, step: {})
    except DivergenceError:
        return True
    return False


def _rank(name: str) -> Callable[[Results], Outcome]:
    def check(runs: Results) -> Outcome:
        run = runs.first
        found = values(run, name)
        rank = spearman(run.arrays["sigma"], found)
        return decided(
            below("rank_correlation", rank, possible=CORRELATION),
            smallest_sigma=found[0],
            largest_sigma=found[-1],
        )

    return check


def _diverged(runs: Results) -> Outcome:
    run = runs.first
    outcomes = {f"sigma_{sigma:g}": run[f"diverges@{sigma:g}"] for sigma in _BEYOND}
    return decided(above("diverged", sum(outcomes.values()), 1, strict=False), **outcomes)


_NAMES = {
    "hidden": "of hidden-layer gradients, mean until the fit,",
    "top": "of top-layer gradients, mean until the fit,",
    "logit": "of logit gradients, mean until the fit,",
    "representation_end": "of the trained representations",
}

STUDY = replace(
    family_study(
        Family(
            id=_ID,
            title="ReLU networks with squared loss over scales of initialisation",
            shows=("Figure 19", "Figure 20", "Figure 21"),
            lite=Scales(activation="relu", loss="squared", sigmas=_SIGMAS, steps=1500, points=10),
            large=replace(
                PART,
                activation="relu",
                loss="squared",
                hidden=(2048,),
                sigmas=_SIGMAS,
                steps=30_000,
            ),
            published=replace(
                PUBLISHED,
                activation="relu",
                loss="squared",
                hidden=(2048,),
                sigmas=_SIGMAS,
                steps=200_000,
            ),
            sets={
                "smoke": ["digits"],
                "lite": ["cifar8"],
                "reduced": ["cifar10_20k"],
                "published": ["cifar10", "cifar100", "svhn"],
            },
            claims=(
                accuracy_claim(_ID, 0.02),
                *(
                    Claim(
                        f"{_ID}.{name.split('_')[0]}",
                        f"in-class alignment {text} falls with sigma (rank correlation below 0)",
                        _rank(name),
                    )
                    for name, text in _NAMES.items()
                ),
                Claim(
                    f"{_ID}.diverges",
                    "one of the next larger sigmas (0.032, 0.064, 0.128) diverges",
                    _diverged,
                ),
            ),
            lite_data="CIFAR-10 shrunk to 8x8, 200 + 200 images of each class; 256 hidden units, "
            "rate 0.1",
            not_run="it needs CIFAR-100 and SVHN, which we do not have, as .npz files in the data "
            "folder",
        )
    ),
    measure=measure,
)
