"""A study small enough to reason about."""

from dataclasses import dataclass

import numpy as np

from theodolite_papers import ledger
from theodolite_papers.ledger import Claim, Line, Measured, Panel, Space, Study, decided


@dataclass(frozen=True)
class Config:
    scale: float = 1.0
    repeats: int = 1


def measure(config, trial):
    trial.report(0.5, "half")
    value = config.scale * trial.seed
    return Measured({"value": value}, {"curve": np.array([0.0, value], dtype=np.float32)})


def above(runs):
    return decided(ledger.above("value", runs["value"].min(), 102))


def draw(runs):
    return [Panel("Figure 0", [Line(f"seed {run.seed}", [0, 1], run.arrays["curve"])
                               for run in runs])]  # fmt: skip


def made_study(**changes):
    settings = {
        "id": "imani2022.made",
        "title": "A made-up study",
        "shows": ("Figure 0",),
        "measure": measure,
        "configs": {"smoke": Config(), "lite": Config()},
        "claims": (Claim("imani2022.made.above", "the value is above 102", above),),
        "draw": draw,
        "stand_in": {"lite": "made up"},
        "not_run": {"published": "there is no such experiment"},
    }
    return Study(**(settings | changes))


SWEPT = {"lite": Space({"scale": [1.0, 2.0]})}
