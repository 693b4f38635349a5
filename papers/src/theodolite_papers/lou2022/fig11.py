"""Figure 11: VGG19 on CIFAR-100 for a fixed number of epochs at three learning rates."""

from theodolite.sweeps import Space
from theodolite_papers.ledger import Claim, Outcome, Panel, Results, Study, outcome, spearman
from theodolite_papers.lou2022._conv import Architecture, run_once
from theodolite_papers.lou2022._hierarchy import by_setting, hierarchy_line, settings_of

__all__ = ["STUDY"]


def _higher(runs: Results) -> Outcome:
    heights = {
        f"rate {rate:g}": part.mean("height")
        for rate, part in by_setting(runs, "learning_rate").items()
    }
    rank = spearman(settings_of(runs, "learning_rate"), runs["height"])
    return outcome(rank > 0, rank=rank, **heights)


def draw(runs: Results) -> list[Panel]:
    """The final hierarchy at each rate."""
    lines = [
        hierarchy_line(f"rate {rate:g}", part, "after")
        for rate, part in by_setting(runs, "learning_rate").items()
    ]
    return [Panel("Figure 11", lines, "layer", "alignment")]


_SMALL = Architecture(architecture="small_conv", examples=400, epochs=12, stop_loss=None)
STUDY = Study(
    id="lou2022.fig11",
    title="VGG19 after a fixed number of epochs at three learning rates",
    shows=("Figure 11",),
    measure=run_once,
    configs={
        "smoke": Architecture(
            architecture="small_conv", examples=64, batch_size=64, epochs=1, probe=10
        ),
        "lite": _SMALL,
        "paper": Architecture(
            data="cifar100",
            architecture="vgg19",
            epochs=100,
            stop_loss=None,
            probe=200,
        ),
    },
    spaces={
        "smoke": Space({"learning_rate": [0.01, 0.03]}),
        "lite": Space({"learning_rate": [0.003, 0.01, 0.03]}),
        "paper": Space({"learning_rate": [0.001, 0.0032, 0.01]}),
    },
    claims=(
        Claim(
            "lou2022.fig11.higher",
            "larger learning rates give higher alignment",
            _higher,
            scope="seed",
            sizes=(),
            fragile="the trend of Figure 4; this caption claims nothing, and warns that smaller "
            "rates may not have converged",
        ),
    ),
    draw=draw,
    stand_in={"lite": "400 of the 8x8 digits and 9 convolutions of 16 channels for 12 epochs"},
    not_run={"paper": "CIFAR-100 was not at hand; its learning rates are illegible in the paper"},
)
