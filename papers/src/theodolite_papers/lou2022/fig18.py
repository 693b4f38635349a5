"""Figure 18 and Table 4: only the last layer is trained, and alignments of hidden layers change."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from theodolite.interventions import freeze_except_, init_weight_
from theodolite_papers.lab.training import train
from theodolite_papers.ledger import (
    LARGE,
    Claim,
    Line,
    Measured,
    Outcome,
    Panel,
    Points,
    Results,
    Space,
    Study,
    Trial,
    above,
    decided,
    merged,
    ordered,
    outcome,
    within,
)
from theodolite_papers.lou2022._hierarchy import (
    alignments,
    as_array,
    by_setting,
    hierarchy_line,
    shape_of,
)
from theodolite_papers.lou2022._setting import (
    Setting,
    final_numbers,
    fully_connected,
    prepare,
    recipe_of,
)

__all__ = ["STUDY", "Frozen"]

_CHUNK = 4096
_TABLE = {  # Table 4, by width
    "train": {2048: 92.6, 10_000: 96.4, 75_000: 97.6},
    "test": {2048: 91.9, 10_000: 95.6, 75_000: 96.4},
}


@dataclass(frozen=True)
class Frozen(Setting):
    """A network of which only the last layer is trained.

    Args:
        noise_scale: of the initial weights of the last layer.
    """

    learning_rate: float = 0.05
    epochs: int = 100
    noise_scale: float = 1.0


def measure(config: Frozen, trial: Trial) -> Measured:
    """Alignments before and after; the features of frozen layers are computed once."""
    ground = prepare(config, trial)
    model = fully_connected(config, ground, trial)
    freeze_except_(model)
    init_weight_(model[-1].weight, "he", config.noise_scale, trial.generator(4))
    before = alignments(model, ground)
    body, head = model[:-1], model[-1]
    data = (_features(body, ground.train[0]), ground.train[1])
    test = (_features(body, ground.test[0]), ground.test[1])
    log = train(head, data, recipe_of(config, trial.seed), test=test)
    after = alignments(model, ground)
    numbers = {
        **final_numbers(log),
        **shape_of(after),
        "initial_peak": shape_of(before)["peak"],
        "hidden_change": float(np.abs(after[:-1] / before[:-1] - 1).max()),
        "last_change": float(abs(after[-1] / before[-1] - 1)),
    }
    return Measured(numbers, {"before": as_array(before), "after": as_array(after)})


def _features(body: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([body(part) for part in torch.split(x, _CHUNK)])


def _by_width(runs: Results, key: str) -> dict[int, float]:
    return {int(w): part.mean(key) for w, part in by_setting(runs, "width").items()}


def _wider(runs: Results) -> Outcome:
    usual = runs.chosen(lambda run: run.point.get("noise_scale", 1.0) == 1)  # as in Table 4
    train_set, test_set = _by_width(usual, "train_accuracy"), _by_width(usual, "test_accuracy")
    if len(train_set) < 2:
        return outcome(None, runs=len(runs))
    return merged(
        {
            examples: ordered({str(width): found[width] for width in sorted(found)})
            for examples, found in (("train", train_set), ("test", test_set))
        }
    )


def _centre(runs: Results) -> Outcome:
    peaks = {
        f"scale {scale:g}": part.mean("peak")
        for scale, part in by_setting(runs, "noise_scale").items()
    }
    scales = sorted(by_setting(runs, "noise_scale"), reverse=True)
    if len(scales) < 2:
        return outcome(None, runs=len(runs), **peaks)
    first, last = (peaks[f"scale {scale:g}"] for scale in (scales[0], scales[-1]))
    return decided(above("peak: smallest minus largest scale", last - first), **peaks)


def draw(runs: Results) -> list[Panel]:
    """Hierarchies of the widths, and accuracies."""
    panels = []
    for width, part in by_setting(runs, "width").items():
        lines = [
            hierarchy_line(f"after, scale {scale:g}", same, "after")
            for scale, same in by_setting(part, "noise_scale", 1.0).items()
        ]
        lines.append(hierarchy_line("before", part, "before", dashed=True))
        panels.append(Panel(f"Figure 18, width {width}", lines, "layer", "alignment"))
    widths = [run.point["width"] for run in runs]
    marks: list[Points | Line] = []
    for color, (name, row) in enumerate(_TABLE.items()):
        marks.append(Points(name, widths, runs[f"{name}_accuracy"], color=color))
        if runs.first.size in LARGE:
            published = Line(
                f"{name}, published", [*row], [*row.values()], dashed=True, color=color
            )
            marks.append(published)
    panels.append(Panel("Table 4", marks, "width", "accuracy (percent)", "x"))
    return panels


STUDY = Study(
    id="lou2022.fig18",
    title="Frozen hidden layers: accuracy against width, and alignments that change all the same",
    shows=("Figure 18", "Table 4"),
    measure=measure,
    configs={
        "smoke": Frozen(depth=4, examples=200, probe=20, epochs=2),
        "lite": Frozen(),
        **{
            size: Frozen(data="mnist", examples=50_000, learning_rate=0.01, epochs=30, probe=200)
            for size in LARGE
        },
    },
    spaces={
        "smoke": Space({"width": [16, 32], "noise_scale": [1.0]}),
        "lite": Space({"width": [32, 128, 512], "noise_scale": [1.0, 0.3]}),
        "reduced": Space({"width": [2048, 10_000], "noise_scale": [1.0, 0.3]}),
        "published": Space({"width": [2048, 10_000, 75_000], "noise_scale": [1.0, 0.3]}),
    },
    seeds=dict.fromkeys(LARGE, (101,)),
    claims=(
        Claim(
            "lou2022.fig18.wider",
            "training and test accuracy grow with the width (noise scale 1)",
            _wider,
            scope="seed",
            published={f"{w} {key}": v for key, row in _TABLE.items() for w, v in row.items()},
        ),
        Claim(
            "lou2022.fig18.hidden",
            "the alignment of a hidden layer changes by 5 % or more although no feature changes",
            within({"largest_relative_change": "hidden_change"}, low=0.05),
        ),
        Claim(
            "lou2022.fig18.constant",
            "the alignment of the last layer, a matter of forward features alone, stays as it is",
            within({"relative_change": "last_change"}, high=1e-6),
        ),
        Claim(
            "lou2022.fig18.centre",
            "a smaller noise scale of the last layer moves the peak towards the centre",
            _centre,
            scope="seed",
            sizes=LARGE,
            fragile="the paper calls it tentative; no effect was seen on small data",
        ),
    ),
    draw=draw,
    stand_in={
        "lite": "8x8 digits, widths 32, 128 and 512",
    },
    not_run={"published": "the weights of width 75,000 take 200 GB"},
    remarks={
        "reduced": "without width 75000, whose weights (200 GB) do not fit; learning rate 0.01 for "
        "30 epochs and noise scales 1 and 0.3, none of which is given",
    },
)
