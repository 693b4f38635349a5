"""Figure 14: VGG19 trained to the same loss with four batch sizes."""

from theodolite.sweeps import Space
from theodolite_papers.ledger import Claim, Study
from theodolite_papers.lou2022._conv import Architecture, run_once
from theodolite_papers.lou2022._gaps import NOTE, draw_gaps, monotone

__all__ = ["STUDY"]

_AXIS = "batch_size"
_LOSS_GAPS = {"32": 0.236, "128": 0.357, "512": 0.562, "2048": 0.652}
STUDY = Study(
    id="lou2022.fig14",
    title="Gaps and alignment of VGG19 against the batch size",
    shows=("Figure 14",),
    measure=run_once,
    configs={
        "smoke": Architecture(architecture="small_conv", examples=64, epochs=1, probe=10),
        "lite": Architecture(
            architecture="small_conv", examples=400, learning_rate=0.01, epochs=60
        ),
        "paper": Architecture(
            architecture="vgg19", data="cifar10", learning_rate=0.0032, epochs=60, probe=200
        ),
    },
    spaces={
        "smoke": Space({_AXIS: [32, 64]}),
        "lite": Space({_AXIS: [16, 64, 256]}),
        "paper": Space({_AXIS: [32, 128, 512, 2048]}),
    },
    seeds={"paper": (101,)},
    claims=(
        Claim(
            "lou2022.fig14.loss-gap",
            "the loss gap grows with the batch size (sign of the rank correlation)",
            monotone(_AXIS, "loss_gap", 1),
            scope="seed",
            published=_LOSS_GAPS,
        ),
        Claim(
            "lou2022.fig14.accuracy-gap",
            "the accuracy gap grows with the batch size",
            monotone(_AXIS, "accuracy_gap", 1),
            scope="seed",
            sizes=("paper",),
            published={"32": 4.7, "128": 8.89, "512": 11.3, "2048": 12.2},
        ),
        Claim(
            "lou2022.fig14.height",
            "the peak of the alignment falls with the batch size",
            monotone(_AXIS, "height", -1),
            scope="seed",
            sizes=("paper",),
        ),
        Claim(
            "lou2022.fig14.moves",
            "with smaller batches the peak moves away from the end of the network",
            monotone(_AXIS, "peak", 1),
            scope="seed",
            sizes=("paper",),
        ),
    ),
    draw=draw_gaps("Figure 14", _AXIS, _LOSS_GAPS),
    stand_in={
        "lite": "400 of the 8x8 digits, 9 convolutions of 16 channels; batches of 16, 64 and 256",
        "paper": NOTE,
    },
    not_run={"paper": "accelerator time went to the learning rates of Figures 12 and 15"},
)
