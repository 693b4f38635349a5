"""Figures 16 and 17: layers trained one by one show no hierarchy; layers trained together do."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from theodolite_papers.lab.models import mlp
from theodolite_papers.lab.training import Softmax, evaluate
from theodolite_papers.ledger import (
    LARGE,
    Claim,
    Measured,
    Outcome,
    Panel,
    Results,
    Space,
    Study,
    Trial,
    above,
    below,
    decided,
    inside,
    merged,
)
from theodolite_papers.lou2022._hierarchy import (
    alignments,
    as_array,
    by_setting,
    hierarchy_line,
    shape_of,
)
from theodolite_papers.lou2022._setting import (
    Ground,
    Setting,
    final_numbers,
    fully_connected,
    learned,
    prepare,
    recipe_of,
)
from theodolite_papers.lou2022.formulas.feature_maximization import (
    FeatureMaximizationRecipe,
    layerwise_feature_maximization,
)

__all__ = ["STUDY", "LayerWise"]

_END_TO_END = "end to end"


@dataclass(frozen=True)
class LayerWise(Setting):
    """A network trained layer by layer, or as a whole.

    Args:
        network: "layer-wise WIDTH" or "end to end".
        layer_rate: learning rate of Adam for one layer.
        layer_epochs: of one layer at most; it stops when its validation loss has not fallen for 3.
        held_out: training images kept for that validation.
    """

    network: str = _END_TO_END
    width: int = 128
    learning_rate: float = 0.02
    epochs: int = 20
    layer_rate: float = 0.01
    layer_epochs: int = 30
    held_out: int = 200


def measure(config: LayerWise, trial: Trial) -> Measured:
    """Alignment of every layer, and test accuracy."""
    ground = prepare(config, trial)
    if config.network == _END_TO_END:
        model = fully_connected(config, ground, trial)
        accuracy = final_numbers(learned(model, ground, recipe_of(config, trial.seed)))[
            "test_accuracy"
        ]
    else:
        width = int(config.network.split()[-1])
        model = _layer_wise(replace(config, width=width), ground, trial)
        accuracy = 100 * evaluate(model, *ground.test, Softmax()).accuracy
    curve = alignments(model, ground, "*.weight")  # networks trained as a whole have no biases
    shape = shape_of(curve)
    near = float((curve >= 0.8 * curve.max()).sum())
    numbers = {**shape, "test_accuracy": accuracy, "layers": float(len(curve)), "near_peak": near}
    return Measured({**numbers, "last": float(curve[-1])}, {"curve": as_array(curve)})


def _layer_wise(config: LayerWise, ground: Ground, trial: Trial) -> Any:
    sizes = [ground.inputs, *[config.width] * (config.depth - 1), ground.classes]
    start = mlp(sizes, "leaky_relu", generator=trial.generator()).to(trial.device)
    x, y = ground.train
    recipe = FeatureMaximizationRecipe(
        learning_rate=config.layer_rate,
        batch_size=config.batch_size,
        max_epochs=config.layer_epochs,
    )
    kept = len(x) - config.held_out
    trained = layerwise_feature_maximization(
        start, (x[:kept], y[:kept]), (x[kept:], y[kept:]), recipe, generator=trial.generator(5)
    )
    return trained.network


def _on_each(check: Callable[[Results, Results], Outcome]) -> Callable[[Results], Outcome]:
    """A check of layer-wise against whole networks, on every data set that has both."""

    def checked(runs: Results) -> Outcome:
        pairs = {data: _pair(part) for data, part in by_setting(runs, "data").items()}
        return merged(
            {
                str(data or ""): check(layered, whole)
                for data, (layered, whole) in pairs.items()
                if len(layered) and len(whole)
            }
        )

    return checked


def _pair(runs: Results) -> tuple[Results, Results]:
    whole = runs.chosen(lambda run: run.point.get("network") == _END_TO_END)
    return runs.chosen(lambda run: run.point.get("network") != _END_TO_END), whole


def _peaks(layered: Results, whole: Results) -> Outcome:
    ours, theirs = layered["peak"] / layered["layers"], whole["peak"] / whole["layers"]
    return decided(
        above("layer_wise", ours.min(), 2 / 3), below("end_to_end", theirs.max(), 0.5, strict=False)
    )


def _accuracy(layered: Results, whole: Results) -> Outcome:
    best, full = float(layered["test_accuracy"].max()), whole.mean("test_accuracy")
    gain = below("layer-wise minus end-to-end", best - full, 0.5, strict=False)
    return decided(gain, layer_wise=best, end_to_end=full)


def _lower(layered: Results, whole: Results) -> Outcome:
    ours, theirs = layered.mean("height"), whole.mean("height")
    return decided(
        below("layer-wise minus end-to-end", ours - theirs, strict=False),
        layer_wise=ours,
        end_to_end=theirs,
    )


def _plateau(layered: Results, whole: Results) -> Outcome:
    near = {str(k): p.mean("near_peak") for k, p in by_setting(layered, "network").items()}
    conditions = (above(name, value, 3, strict=False) for name, value in near.items())
    return decided(*conditions, end_to_end=whole.mean("near_peak"))


def _last(layered: Results, _: Results) -> Outcome:
    last, ideal = layered.mean("last"), 99**-0.5
    return decided(inside("last", last, 0.75 * ideal, 1.25 * ideal, strict=False), ideal=ideal)


def draw(runs: Results) -> list[Panel]:
    """The hierarchies, by data set."""
    panels = []
    for data, part in by_setting(runs, "data", "digits").items():
        groups = by_setting(part, "network", _END_TO_END)
        lines = [hierarchy_line(str(name), same, "curve") for name, same in groups.items()]
        panels.append(Panel(f"Figures 16 and 17, {data}", lines, "layer", "alignment"))
    return panels


STUDY = Study(
    id="lou2022.fig16-17",
    title="Layer-wise feature maximisation against training as a whole",
    shows=("Figure 16", "Figure 17"),
    measure=measure,
    configs={
        "smoke": LayerWise(
            depth=4, width=16, examples=200, probe=20, epochs=1, layer_epochs=1, held_out=40
        ),
        "lite": LayerWise(),
        "published": LayerWise(
            data="mnist",
            examples=50_000,
            width=256,
            learning_rate=0.003,
            epochs=40,
            layer_epochs=15,
            held_out=5_000,
            probe=200,
        ),
    },
    spaces={
        "smoke": Space({"network": ["layer-wise 16", _END_TO_END]}),
        "lite": Space({"network": ["layer-wise 32", "layer-wise 128", _END_TO_END]}),
        "published": Space(
            {
                "data": ["mnist", "cifar10"],
                "network": [_END_TO_END, "layer-wise 256", "layer-wise 32", "layer-wise 1024"],
            }
        ),
    },
    seeds={"published": (101,)},
    claims=(
        Claim(
            "lou2022.fig16-17.peaks",
            "alignment of layer-wise trained networks peaks in the last third, of end-to-end "
            "trained ones in the first half",
            _on_each(_peaks),
            scope="seed",
            fragile="the paper says only that layer-wise training has no single peak inside",
        ),
        Claim(
            "lou2022.fig16-17.plateau",
            "layer-wise trained networks have several layers (3 or more) within 20 % of the "
            "largest alignment",
            _on_each(_plateau),
            scope="seed",
            sizes=LARGE,
        ),
        Claim(
            "lou2022.fig16-17.lower",
            "the largest alignment is lower than after training as a whole (mean over the runs of "
            "a data set)",
            _on_each(_lower),
            scope="all",
            apart=True,
        ),
        Claim(
            "lou2022.fig16-17.accuracy",
            "and test accuracy is not better by more than 0.5 points",
            _on_each(_accuracy),
            scope="seed",
        ),
        Claim(
            "lou2022.fig16-17.last",
            "the last layer of layer-wise trained networks has the alignment of a forward kernel "
            "of perfect class blocks, 1 / sqrt(k^2 - 1), within a quarter",
            _on_each(_last),
            scope="all",
        ),
    ),
    draw=draw,
    stand_in={
        "lite": "8x8 digits, widths 32 and 128, at most 30 epochs per layer",
    },
    remarks={
        "published": "depth, batch size and stopping rule are not given: 10 layers, 128, at most "
        "15 "
        "epochs per layer; both data sets have all three widths",
    },
)
