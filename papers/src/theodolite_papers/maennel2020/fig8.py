"""Figure 8: wide dense layers mitigate negative transfer."""

from dataclasses import dataclass, field, replace

import numpy as np

from theodolite_papers.ledger import (
    Claim,
    Line,
    Measured,
    Outcome,
    Panel,
    Results,
    Study,
    Trial,
    above,
    below,
    decided,
    mean_and_error,
)
from theodolite_papers.maennel2020._transfer import (
    LABELS,
    Images,
    Network,
    Protocol,
    Stage,
    Transfer,
    left_chance,
)

__all__ = ["STUDY", "Widths"]

_ID = "maennel2020.fig8"


@dataclass(frozen=True)
class Widths:
    """Size of the experiment.

    Args:
        transfer: of the Simple CNN with two convolutions.
        units: widths of its dense layer, increasing.
    """

    transfer: Transfer = field(
        default_factory=lambda: Transfer(
            Network(conv_layers=2, filters=16, init_scale=1.218),
            Stage(10_000, 2, epochs=100),
            learning_rate=0.012,
        )
    )
    units: tuple[int, ...] = (64, 128, 1024)


def measure(config: Widths, trial: Trial) -> Measured:
    """Areas under the training curves, pre-trained and from scratch, by width and labels."""
    numbers: dict[str, float] = {}
    arrays: dict[str, np.ndarray] = {"units": np.array(config.units, dtype=np.float32)}
    for place, units in enumerate(config.units):
        network = replace(config.transfer.network, units=units)
        protocol = Protocol(replace(config.transfer, network=network), trial)
        for labels in LABELS:
            compared = protocol.compare(labels)
            numbers[f"{labels}_{place}"] = compared.gain
            curves = np.stack([compared.scratch.train, compared.transferred.train])
            arrays[f"{labels}_{place}"] = curves.astype(np.float16)
            arrays["steps"] = compared.scratch.steps.astype(np.float32)
        trial.report((place + 1) / len(config.units), f"{units} units")
    return Measured(numbers, arrays)


def _last(runs: Results) -> int:
    return len(runs.first.arrays["units"]) - 1


def _learned(runs: Results, *names: str) -> bool:
    return all(left_chance(*run.arrays[name]) for run in runs for name in names)


def _narrow_hurts(runs: Results) -> Outcome:
    gains = {labels: runs.mean(f"{labels}_0") for labels in LABELS}
    learned = _learned(runs, *(f"{labels}_0" for labels in LABELS))
    below_zero = (below(f"gain in area, {labels} labels", gain) for labels, gain in gains.items())
    return decided(*below_zero, premise=learned)


def _wide_does_not(runs: Results) -> Outcome:
    real, random = (f"{labels}_{_last(runs)}" for labels in LABELS)
    gain = runs.mean(real)
    return decided(
        above("gain in area, real labels", gain, strict=False),
        premise=_learned(runs, real),
        random=runs.mean(random),
    )


def _mitigated(runs: Results) -> Outcome:
    last = _last(runs)
    gains = {f"{labels}_{k}": runs.mean(f"{labels}_{k}") for labels in LABELS for k in (0, last)}
    rises = {labels: gains[f"{labels}_{last}"] - gains[f"{labels}_0"] for labels in LABELS}
    return decided(
        *(
            above(f"gain in area, {labels} labels: widest minus narrowest", rise)
            for labels, rise in rises.items()
        ),
        premise=_learned(runs, *gains),
        **gains,
    )


def draw(runs: Results) -> list[Panel]:
    """Training accuracy from both starts, by width and labels."""
    run = runs.first
    panels = []
    for labels in LABELS:
        for place, units in enumerate(run.arrays["units"].astype(int)):
            stacked = runs.array(f"{labels}_{place}").astype(np.float64)
            mean, error = mean_and_error(stacked)
            lines = [
                Line(name, run.arrays["steps"], mean[row], error[row])
                for row, name in enumerate(("scratch", "pre-trained"))
            ]
            title = f"Figure 8, {units} units, {labels} labels"
            panels.append(Panel(title, lines, "step", "training accuracy"))
    return panels


def _small(up: int, down: int, steps: tuple[int, int], batch: int, images: Images) -> Transfer:
    return Transfer(
        Network(conv_layers=2, filters=16, init_scale=1.218),
        Stage(up, 2, steps=steps[0]),
        Stage(down, steps=steps[1]),
        learning_rate=0.012,
        batch_size=batch,
        images=images,
        test_examples=100,
    )


STUDY = Study(
    id=_ID,
    title="Width mitigates negative transfer",
    shows=("Figure 8",),
    measure=measure,
    configs={
        "smoke": Widths(_small(32, 32, (2, 2), 16, Images("digits")), (4, 8)),
        "lite": Widths(_small(500, 500, (400, 200), 100, Images(pool=4)), (16, 64, 512)),
        "reduced": replace(
            Widths(),
            transfer=replace(
                Widths().transfer, downstream=Stage(10_000, epochs=50), test_examples=2_000
            ),
        ),
        "published": Widths(),
    },
    claims=(
        Claim(
            f"{_ID}.narrow",
            "pre-training slows down the narrowest network: the area under the training curve is "
            "smaller than from scratch, for real and random labels",
            _narrow_hurts,
        ),
        Claim(
            f"{_ID}.wide",
            "it does not slow down the widest one (real labels)",
            _wide_does_not,
        ),
        Claim(
            f"{_ID}.mitigated",
            "a wider network mitigates it: the gain of the widest network is above that of the "
            "narrowest, for real and random labels (means over seeds)",
            _mitigated,
            scope="all",
        ),
    ),
    draw=draw,
    stand_in={
        "smoke": "8x8 digits in the place of CIFAR-10",
        "lite": "500 + 500 images averaged to 8x8, widths 16, 64 and 512",
    },
    remarks={
        "reduced": "downstream examples and epochs are not printed for this figure; 25,000 and 200 "
        "are those of the others",
    },
    seeds={"published": (101, 102, 103)},
    not_run={"published": "no GPU time so far for 36 trainings of up to 200 epochs"},
)
