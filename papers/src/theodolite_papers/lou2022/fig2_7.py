"""Figures 2 and 7: the hierarchy appears within the first epochs, and then stays."""

from theodolite.sweeps import Space
from theodolite_papers.ledger import Claim, Outcome, Panel, Results, Study, outcome
from theodolite_papers.lou2022._course import Course, follow, layer_lines
from theodolite_papers.lou2022._hierarchy import by_setting, hierarchy_line

__all__ = ["STUDY"]


def _inside(runs: Results) -> Outcome:
    peak, depth = runs["peak"][0], len(runs.array("final")[0])
    return outcome(1 < peak < depth, peak=peak, prominence=runs["prominence"][0])


def _early(runs: Results) -> Outcome:
    early, final = runs["early"][0], runs["height"][0]
    return outcome(early >= final / 2, early=early, final=final)


def _last_low(runs: Results) -> Outcome:
    return outcome(runs["last_is_low"][0] == 1, last=runs["last_is_low"][0])


def _first_low(runs: Results) -> Outcome:
    return outcome(runs["first_is_low"][0] == 1, first=runs["first_is_low"][0])


def draw(runs: Results) -> list[Panel]:
    """Per data set: some layers against steps, and the final hierarchy."""
    panels = []
    for name, part in by_setting(runs, "data", "digits").items():
        lines = layer_lines(part)
        panels.append(Panel(f"Figures 2 and 7, {name}", lines, "step", "alignment", "x"))
        final = hierarchy_line("after training", part, "final")
        panels.append(Panel(f"{name}, final", [final], "layer", "alignment"))
    return panels


_PAPER = Course(
    data="mnist", width=256, learning_rate=0.003, epochs=60, probe=200, early_epochs=2, moments=24
)
STUDY = Study(
    id="lou2022.fig2-7",
    title="The alignment hierarchy through training",
    shows=("Figure 2", "Figure 7"),
    measure=follow,
    configs={
        "smoke": Course(
            depth=4, width=16, epochs=2, examples=200, probe=20, early_epochs=1, moments=4
        ),
        "lite": Course(),
        "paper": _PAPER,
    },
    spaces={"paper": Space({"data": ["mnist", "cifar10", "fashion_mnist"]})},
    seeds={"paper": (101, 102, 103)},
    claims=(
        Claim("lou2022.fig2-7.inside", "the final alignment peaks inside the network", _inside),
        Claim(
            "lou2022.fig2-7.early",
            "the layer of the peak has at least half of its final alignment after two epochs of "
            "the paper (10 of the digits, which are 110 steps)",
            _early,
        ),
        Claim(
            "lou2022.fig2-7.last",
            "the last layer is among the two of lowest alignment",
            _last_low,
        ),
        Claim(
            "lou2022.fig2-7.first",
            "the first layer tends to be among the two of lowest alignment",
            _first_low,
            sizes=("paper",),
            fragile="a tendency in the paper's words; on small data the second half of the network "
            "is lower",
        ),
    ),
    draw=draw,
    stand_in={
        "lite": "8x8 digits, width 64, learning rate 0.03 (with 0.003 little is learned in 40 "
        "epochs of 11 steps)",
        "paper": "60 epochs, a number the paper does not give; without KMNIST",
    },
)
