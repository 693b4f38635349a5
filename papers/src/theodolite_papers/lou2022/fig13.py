"""Figure 13: VGG19 trained with Adam to the same loss, beside SGD."""

from theodolite.sweeps import Space
from theodolite_papers.ledger import Claim, Study
from theodolite_papers.lou2022._gaps import (
    NOTE,
    Optimized,
    adam_against_sgd,
    draw_gaps,
    monotone,
    run_optimized,
)

__all__ = ["STUDY"]

_AXIS = "training"
_LOSS_GAPS = {"adam 3.2e-05": 0.769, "adam 0.0001": 0.557, "adam 0.00032": 0.507}
_SGD_GAP = 0.357  # of Figure 12, at rate 0.0032
STUDY = Study(
    id="lou2022.fig13",
    title="Gaps and alignment of VGG19 trained with Adam",
    shows=("Figure 13",),
    measure=run_optimized,
    configs={
        "smoke": Optimized(
            architecture="small_conv", examples=64, batch_size=64, epochs=1, probe=10
        ),
        "lite": Optimized(architecture="small_conv", examples=400, epochs=100),
        "paper": Optimized(architecture="vgg19", data="cifar10", epochs=60, probe=200),
    },
    spaces={
        "smoke": Space({_AXIS: ["adam 0.003", "sgd 0.01"]}),
        "lite": Space({_AXIS: ["adam 0.0003", "adam 0.001", "adam 0.003", "sgd 0.01"]}),
        "paper": Space({_AXIS: ["adam 0.00032", "adam 3.2e-05", "adam 0.0001", "sgd 0.0032"]}),
    },
    seeds={"paper": (101,)},
    claims=(
        Claim(
            "lou2022.fig13.loss-gap",
            "with Adam too the loss gap falls with the learning rate (sign of the rank "
            "correlation)",
            monotone(_AXIS, "loss_gap", -1),
            scope="seed",
            published=_LOSS_GAPS,
        ),
        Claim(
            "lou2022.fig13.accuracy-gap",
            "with Adam too the accuracy gap falls with the learning rate",
            monotone(_AXIS, "accuracy_gap", -1),
            scope="seed",
            sizes=("paper",),
            published={"adam 3.2e-05": 17.4, "adam 0.0001": 12.4, "adam 0.00032": 11.9},
        ),
        Claim(
            "lou2022.fig13.adam",
            "Adam has larger loss gaps and a flatter alignment curve (smaller prominence) than SGD "
            "at the same training loss",
            adam_against_sgd,
            scope="seed",
            sizes=("paper",),
            published={"sgd_gap": _SGD_GAP},
        ),
    ),
    draw=draw_gaps("Figure 13", _AXIS, {**_LOSS_GAPS, "sgd 0.0032": _SGD_GAP}),
    stand_in={
        "lite": "400 of the 8x8 digits, 9 convolutions of 16 channels; Adam at 0.0003, 0.001, "
        "0.003",
        "paper": NOTE,
    },
)
