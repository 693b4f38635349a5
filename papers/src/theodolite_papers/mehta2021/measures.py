"""Which measure follows generalisation: alignment, diversity, stiffness or confusion."""

from dataclasses import dataclass, replace

import numpy as np

from theodolite_papers.ledger import (
    CORRELATION,
    Claim,
    Measured,
    Outcome,
    Panel,
    Points,
    Results,
    Space,
    Study,
    Trial,
    above,
    correlation_interval,
    decided,
    spearman,
)
from theodolite_papers.mehta2021._families import PUBLISHED, values
from theodolite_papers.mehta2021._scales import PAPER_SIGMAS, Scales, measure_scales

__all__ = ["STUDY", "FamilyOverScales"]

_MEASURES = ("hidden", "hidden_contrast", "diversity", "stiffness", "confusion")
# family -> activation, loss, learning rate over that of the others, where it differs
_FAMILIES = {
    "sin": ("sin", "softmax", 1.0),
    "relu": ("relu", "softmax", 1.0),
    "hinge": ("relu", "hinge", 0.2),
    "linear": ("linear", "softmax", 1.0),
}


@dataclass(frozen=True)
class FamilyOverScales:
    """One activation and loss over scales of initialisation.

    Args:
        family: "sin", "relu", "hinge" or "linear".
        scales: all other settings.
    """

    family: str
    scales: Scales


def measure(config: FamilyOverScales, trial: Trial) -> Measured:
    """The numbers of a run over scales; no curves, the studies of the figures have them."""
    activation, loss, factor = _FAMILIES[config.family]
    own = replace(config.scales, activation=activation, loss=loss, rate=config.scales.rate * factor)
    found = measure_scales(own, trial)
    wanted = ("best_test@", "train@", *(f"{name}@" for name in _MEASURES))
    numbers = {k: v for k, v in found.numbers.items() if k.startswith(wanted) or "@" not in k}
    return Measured(numbers, {"sigma": found.arrays["sigma"]})


def _pooled(runs: Results) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Measures, best test accuracy and seed of every network."""
    found = {name: np.concatenate([values(run, name) for run in runs]) for name in _MEASURES}
    accuracy = np.concatenate([values(run, "best_test") for run in runs])
    seeds = np.concatenate([np.full(len(run.arrays["sigma"]), run.seed) for run in runs])
    return found, accuracy, seeds


def _alignment(runs: Results) -> Outcome:
    found, accuracy, seeds = _pooled(runs)
    r, low, high = correlation_interval(found["hidden"], accuracy, seeds)
    rank = spearman(found["hidden"], accuracy)
    # One seed has no interval.
    return decided(
        above("linear correlation", r, possible=CORRELATION),
        above("rank correlation", rank, possible=CORRELATION),
        premise=not np.isnan(low),
        low=low,
        high=high,
    )


def _best(runs: Results) -> Outcome:
    found, accuracy, seeds = _pooled(runs)
    numbers: dict[str, float] = {}
    for name in _MEASURES:
        r, low, high = correlation_interval(found[name], accuracy, seeds)
        numbers |= {name: r, f"{name}_low": low, f"{name}_high": high}
        numbers[f"{name}_rank"] = spearman(found[name], accuracy)
    others = ("diversity", "stiffness", "confusion")
    return decided(
        *(
            above(
                f"{kind}: hidden minus {name}",
                numbers[f"hidden{end}"] - abs(numbers[f"{name}{end}"]),
            )
            for name in others
            for kind, end in (("linear", ""), ("rank", "_rank"))
        ),
        **numbers,
    )


def draw(runs: Results) -> list[Panel]:
    """Best test accuracy against each measure, one colour per activation and loss."""
    families = list(dict.fromkeys(str(run.point["family"]) for run in runs))
    titles = {
        "hidden": "in-class alignment",
        "hidden_contrast": "contrast",
        "diversity": "diversity",
        "stiffness": "stiffness",
        "confusion": "confusion",
    }
    return [
        Panel(
            f"{title} of hidden-layer gradients",
            [
                Points(
                    family,
                    np.concatenate([values(run, name) for run in runs.where(family=family)]),
                    np.concatenate([values(run, "best_test") for run in runs.where(family=family)]),
                )
                for family in families
            ],
            f"{title}, mean until the fit",
            "best test accuracy",
        )
        for name, title in titles.items()
    ]


_ID = "mehta2021.measures"
_EVERY = Space({"family": list(_FAMILIES)})

STUDY = Study(
    id=_ID,
    title="Alignment, diversity, stiffness and confusion against test accuracy",
    shows=("Section 3, measures compared",),
    measure=measure,
    configs={
        "smoke": FamilyOverScales(
            "sin", Scales(hidden=(32,), sigmas=(0.01, 1.0), steps=5, points=2, probe=50)
        ),
        "lite": FamilyOverScales(
            "sin", Scales(hidden=(128,), sigmas=PAPER_SIGMAS[:4], steps=600, points=8, probe=100)
        ),
        "reduced": FamilyOverScales(
            "sin", replace(PUBLISHED, data="cifar10_10k", steps=12_000, points=16)
        ),
    },
    spaces={"smoke": Space({"family": ["sin", "hinge"]}), "lite": _EVERY, "reduced": _EVERY},
    claims=(
        Claim(
            f"{_ID}.alignment",
            "over all networks, best test accuracy correlates with the in-class alignment of "
            "hidden-layer gradients: linear and rank correlation above 0",
            _alignment,
            scope="all",
        ),
        Claim(
            f"{_ID}.best",
            "its correlation is larger than that of gradient diversity, stiffness and confusion, "
            "taken without regard to sign: the linear and the rank correlation",
            _best,
            scope="all",
        ),
    ),
    draw=draw,
    seeds={"reduced": (101, 102, 103)},
    stand_in={
        "lite": "8x8 digits, 128 hidden units, four activations and losses, sigma up to 1",
    },
    remarks={"reduced": "10,000 training images of CIFAR-10, at most 12,000 steps of each family"},
    not_run={"published": "the paper compares the measures in its text, without an experiment"},
)
