"""Figure 15: ResNet18 trained to the same loss with four learning rates."""

from theodolite.sweeps import Space
from theodolite_papers.ledger import Claim, Study
from theodolite_papers.lou2022._conv import Architecture, run_once
from theodolite_papers.lou2022._gaps import (
    NOTE,
    draw_gaps,
    monotone,
    peak_between,
    split_rates,
)

__all__ = ["STUDY"]

_AXIS = "learning_rate"
_LOSS_GAPS = {"0.001": 0.395, "0.003": 0.397, "0.01": 0.152, "0.02": 0.182}
STUDY = Study(
    id="lou2022.fig15",
    title="Gaps and alignment of ResNet18 against the learning rate",
    shows=("Figure 15",),
    measure=run_once,
    configs={
        "smoke": Architecture(
            architecture="small_residual", examples=64, batch_size=64, epochs=1, probe=10
        ),
        "lite": Architecture(architecture="small_residual", examples=400),
        "paper": Architecture(architecture="resnet18", data="cifar10", epochs=60, probe=200),
    },
    spaces={
        "smoke": Space({_AXIS: [0.01, 0.1]}),
        "lite": Space({_AXIS: [0.01, 0.03, 0.1]}),
        "paper": Space({_AXIS: [0.02, 0.001, 0.01, 0.003]}),
    },
    seeds={"paper": (101,)},
    claims=(
        Claim(
            "lou2022.fig15.loss-gap",
            "the loss gap falls with the learning rate (sign of the rank correlation)",
            monotone(_AXIS, "loss_gap", -1),
            scope="seed",
            published=_LOSS_GAPS,
        ),
        Claim(
            "lou2022.fig15.large",
            "large learning rates (0.01 and 0.02) have smaller gaps of loss and of accuracy than "
            "small ones",
            split_rates,
            scope="seed",
            sizes=("paper",),
            published={
                "large accuracy_gap": 4.95,
                "small accuracy_gap": 10.04,
                "large loss_gap": 0.167,
                "small loss_gap": 0.396,
            },
        ),
        Claim(
            "lou2022.fig15.height",
            "the peak of the alignment rises with the learning rate",
            monotone(_AXIS, "height", 1),
            scope="seed",
            sizes=("paper",),
        ),
        Claim(
            "lou2022.fig15.moves",
            "with larger learning rates the peak moves away from the end of the network",
            monotone(_AXIS, "peak", -1),
            scope="seed",
            sizes=("paper",),
            fragile="supposes a peak close to the end",
        ),
        Claim(
            "lou2022.fig15.place",
            "the alignment of ResNet18 peaks in the last third of the network",
            peak_between(2 / 3, 1.0),
            scope="all",
            sizes=("paper",),
        ),
    ),
    draw=draw_gaps("Figure 15", _AXIS, _LOSS_GAPS),
    stand_in={
        "lite": "400 of the 8x8 digits, a residual network of 10 layers, rates 0.01, 0.03, 0.1",
        "paper": NOTE,
    },
)
