"""Figure 1: after training, the alignment of 20 layers peaks inside the network."""

from theodolite_papers.ledger import (
    RATIO,
    Claim,
    Measured,
    Outcome,
    Panel,
    Results,
    Space,
    Study,
    Trial,
    above,
    decided,
    inside,
)
from theodolite_papers.lou2022._depths import Tabled
from theodolite_papers.lou2022._hierarchy import (
    alignments,
    as_array,
    by_setting,
    hierarchy_line,
    shape_of,
)
from theodolite_papers.lou2022._setting import (
    final_numbers,
    fully_connected,
    learned,
    prepare,
    recipe_of,
)

__all__ = ["STUDY"]


def measure(config: Tabled, trial: Trial) -> Measured:
    """Alignment of every layer before and after training."""
    setting = config.setting
    ground = prepare(setting, trial)
    model = fully_connected(setting, ground, trial)
    before = alignments(model, ground)
    log = learned(model, ground, recipe_of(setting, trial.seed))
    after = alignments(model, ground)
    numbers = {**final_numbers(log), **shape_of(after), "initial": float(before.max())}
    return Measured(numbers, {"before": as_array(before), "after": as_array(after)})


def _inside(runs: Results) -> Outcome:
    peak, prominence = runs["peak"][0], runs["prominence"][0]
    depth = len(runs.array("after")[0])
    return decided(inside("peak", peak, 1, depth), above("prominence", prominence))


def _grown(runs: Results) -> Outcome:
    height, initial = runs["height"][0], runs["initial"][0]
    return decided(
        above("ratio", height / initial, 3, strict=False, possible=RATIO),
        trained=height,
        initial=initial,
    )


def draw(runs: Results) -> list[Panel]:
    """One panel per data set, trained and initial curve."""
    return [
        Panel(
            f"Figure 1, {name}",
            [
                hierarchy_line("trained", part, "after"),
                hierarchy_line("at initialisation", part, "before", dashed=True),
            ],
            "layer",
            "alignment",
        )
        for name, part in by_setting(runs, "data", "digits").items()
    ]


STUDY = Study(
    id="lou2022.fig1",
    title="Alignment of 20 layers before and after training",
    shows=("Figure 1",),
    measure=measure,
    configs={
        "smoke": Tabled(depth=4, most_epochs=1, examples=200, probe=20),
        "lite": Tabled(depth=20, most_epochs=30),
        "published": Tabled(data="fashion_mnist", depth=20, stop_loss=None, probe=200),
    },
    spaces={"published": Space({"data": ["fashion_mnist", "cifar10"]})},
    seeds={"published": (101, 102, 103)},
    claims=(
        Claim(
            "lou2022.fig1.inside",
            "the alignment peaks strictly inside the network, above both its ends",
            _inside,
        ),
        Claim(
            "lou2022.fig1.grown",
            "training raises the largest alignment to at least 3 times its initial value",
            _grown,
        ),
    ),
    draw=draw,
    stand_in={
        "lite": "8x8 digits and width 128 instead of Fashion-MNIST (width 100) and CIFAR-10 (256); "
        "stops at training loss 0.02",
    },
    remarks={
        "published": "The caption gives no settings; ours are those of Tables 1 and 2 at depth 20",
    },
)
