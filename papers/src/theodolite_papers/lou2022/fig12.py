"""Figure 12: VGG19 trained to the same loss with four learning rates."""

from theodolite.sweeps import Space
from theodolite_papers.ledger import Claim, Study
from theodolite_papers.lou2022._conv import Architecture, run_once
from theodolite_papers.lou2022._gaps import NOTE, draw_gaps, monotone, peak_between

__all__ = ["STUDY"]

_AXIS = "learning_rate"
_LOSS_GAPS = {"0.0005": 0.56, "0.001": 0.484, "0.0032": 0.357, "0.01": 0.224}
STUDY = Study(
    id="lou2022.fig12",
    title="Gaps and alignment of VGG19 against the learning rate",
    shows=("Figure 12",),
    measure=run_once,
    configs={
        "smoke": Architecture(
            architecture="small_conv", examples=64, batch_size=64, epochs=1, probe=10
        ),
        "lite": Architecture(architecture="small_conv", examples=400),
        "paper": Architecture(architecture="vgg19", data="cifar10", epochs=60, probe=200),
    },
    spaces={
        "smoke": Space({_AXIS: [0.01, 0.03]}),
        "lite": Space({_AXIS: [0.003, 0.01, 0.03]}),
        "paper": Space({_AXIS: [0.01, 0.001, 0.0032, 0.0005]}),
    },
    seeds={"paper": (101,)},
    claims=(
        Claim(
            "lou2022.fig12.loss-gap",
            "the loss gap falls with the learning rate (sign of the rank correlation)",
            monotone(_AXIS, "loss_gap", -1),
            scope="seed",
            published=_LOSS_GAPS,
        ),
        Claim(
            "lou2022.fig12.accuracy-gap",
            "the accuracy gap falls with the learning rate",
            monotone(_AXIS, "accuracy_gap", -1),
            scope="seed",
            sizes=("paper",),
            published={"0.0005": 13.1, "0.001": 12.3, "0.0032": 8.89, "0.01": 5.9},
        ),
        Claim(
            "lou2022.fig12.height",
            "the peak of the alignment rises with the learning rate",
            monotone(_AXIS, "height", 1),
            scope="seed",
            sizes=("paper",),
        ),
        Claim(
            "lou2022.fig12.moves",
            "with larger learning rates the peak moves away from the end of the network",
            monotone(_AXIS, "peak", -1),
            scope="seed",
            sizes=("paper",),
        ),
        Claim(
            "lou2022.fig12.place",
            "the alignment of VGG19 peaks in the middle half of the network",
            peak_between(0.25, 0.75),
            scope="all",
            sizes=("paper",),
        ),
    ),
    draw=draw_gaps("Figure 12", _AXIS, _LOSS_GAPS),
    stand_in={"lite": "400 of the 8x8 digits, 9 convolutions of 16 channels", "paper": NOTE},
)
