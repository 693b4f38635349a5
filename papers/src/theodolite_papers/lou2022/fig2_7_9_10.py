"""Figures 2, 7, 9 and 10: the hierarchy appears within the first epochs, at any learning rate."""

from dataclasses import dataclass

import numpy as np

from theodolite_papers.ledger import (
    LARGE,
    RATIO,
    Claim,
    Line,
    Measured,
    Outcome,
    Panel,
    Results,
    Space,
    Study,
    Trial,
    above,
    between,
    decided,
    mean_and_error,
    merged,
)
from theodolite_papers.lou2022._hierarchy import (
    AlignmentWatch,
    as_array,
    by_setting,
    hierarchy_line,
    shape_of,
)
from theodolite_papers.lou2022._setting import (
    Setting,
    final_numbers,
    fully_connected,
    learned,
    prepare,
    recipe_of,
)

__all__ = ["STUDIES", "FollowedNetwork"]


@dataclass(frozen=True)
class FollowedNetwork(Setting):
    """A network whose alignments are measured during training.

    Args:
        early_epochs: within which most of the rise should lie. The paper says about 2 epochs, of
            some 400 steps each; the digits have 11 steps per epoch.
        moments: about how many times the hierarchy is measured.
    """

    early_epochs: int = 10
    moments: int = 24


def measure(config: FollowedNetwork, trial: Trial) -> Measured:
    """Alignment of every layer from the first step to the last."""
    ground = prepare(config, trial)
    model = fully_connected(config, ground, trial)
    per_epoch = recipe_of(config, trial.seed).steps_per_epoch(len(ground.train[0]))
    recipe = recipe_of(config, trial.seed, log=per_epoch)
    early, total = config.early_epochs * per_epoch, recipe.total_steps(len(ground.train[0]))
    watch = AlignmentWatch(ground, _moments(total, early, config.moments))
    log = learned(model, ground, recipe, watch)
    curves = np.stack(watch.curves)
    shape = shape_of(curves[-1])
    then = min(range(len(watch.steps)), key=lambda i: abs(watch.steps[i] - early))
    lowest = np.argsort(curves[-1])[:2].tolist()
    numbers = {
        **final_numbers(log),
        **shape,
        "early": float(curves[then, int(shape["peak"]) - 1]),
        "last_is_low": float(config.depth - 1 in lowest),
        "first_is_low": float(0 in lowest),
    }
    losses = [] if log is None else log.curve("train", "loss")[1]
    arrays: dict[str, np.ndarray] = {
        "steps": np.asarray(watch.steps, dtype=np.int32),
        "curves": curves.astype(np.float16),
        "losses": as_array(losses),
        "final": as_array(curves[-1]),
    }
    return Measured(numbers, arrays)


def _moments(total: int, early: int, count: int) -> set[int]:
    """Steps to measure, more densely at the start."""
    spaced = np.geomspace(1, total, count).round().astype(int)
    return {0, min(early, total), total, *spaced.tolist()}


def _layer_lines(runs: Results) -> list[Line]:
    """Five layers from the first to the last: mean alignment against steps."""
    x = runs.runs[0].arrays["steps"]
    same = [run.arrays["curves"] for run in runs if len(run.arrays["curves"]) == len(x)]
    curves = np.stack(same).astype(np.float32)
    depth = curves.shape[2]
    lines = []
    for layer in dict.fromkeys([0, depth // 4, depth // 2, 3 * depth // 4, depth - 1]):
        mean, error = mean_and_error(curves[:, :, layer])
        lines.append(Line(f"layer {layer + 1}", x[1:], mean[1:], error[1:]))
    return lines


def _inside(runs: Results) -> Outcome:
    peak, depth = runs["peak"][0], len(runs.array("final")[0])
    members = (bool(1 < peak < depth),)
    numbers = {"peak": float(peak), "prominence": float(runs["prominence"][0])}
    return Outcome(members[0], numbers, members=members)


def _early(runs: Results) -> Outcome:
    early, final = runs["early"][0], runs["height"][0]
    return decided(above("share", early / final, 0.5, strict=False), early=early, final=final)


def _draw_training(runs: Results) -> list[Panel]:
    """Per data set: some layers against steps, and the final hierarchy."""
    panels = []
    for name, part in by_setting(runs, "data", "digits").items():
        lines = _layer_lines(part)
        panels.append(Panel(f"Figures 2 and 7, {name}", lines, "step", "alignment", "x"))
        final = hierarchy_line("after training", part, "final")
        panels.append(Panel(f"{name}, final", [final], "layer", "alignment"))
    return panels


def _rises(runs: Results) -> Outcome:
    early, final = runs["early"][0], runs["height"][0]
    start = float(runs.array("curves")[0, 0].max())
    return decided(
        above("early_over_start", early / start, 1.5, possible=RATIO),
        above("early_over_final", early / final, 0.5, strict=False, possible=RATIO),
        start=start,
        early=early,
        final=final,
    )


def _costs(runs: Results) -> Outcome:
    """Per data set, the largest rate has a lower test accuracy than the best of the others."""
    found: dict[str, Outcome] = {}
    for name, part in by_setting(runs, "data", "digits").items():
        rates = by_setting(part, "learning_rate")
        accuracies = {rate: p.mean("test_accuracy") for rate, p in rates.items()}
        largest = max(accuracies)
        if len(accuracies) < 2 or not np.isfinite([*accuracies.values()]).all():
            continue
        others = max(value for rate, value in accuracies.items() if rate != largest)
        cost = above("cost", others - accuracies[largest])
        found[str(name)] = decided(cost, largest=accuracies[largest], others=others)
    return merged(found)


def _draw_rates(runs: Results) -> list[Panel]:
    """Per data set and rate: layers against steps; all final hierarchies together."""
    panels = []
    for name, part in by_setting(runs, "data", "digits").items():
        finals = []
        for rate, same in by_setting(part, "learning_rate", 0.03).items():
            title = f"Figures 9 and 10, {name}, rate {rate:g}"
            panels.append(Panel(title, _layer_lines(same), "step", "alignment", "x"))
            finals.append(hierarchy_line(f"rate {rate:g}", same, "final"))
        panels.append(Panel(f"{name}, final", finals, "layer", "alignment"))
    return panels


_SMOKE = FollowedNetwork(
    depth=4, width=16, epochs=2, examples=200, probe=20, early_epochs=1, moments=4
)
_TRAINING = Study(
    id="lou2022.fig2-7",
    title="The alignment hierarchy through training",
    shows=("Figure 2", "Figure 7"),
    measure=measure,
    configs={
        "smoke": _SMOKE,
        "lite": FollowedNetwork(),
        **dict.fromkeys(
            LARGE,
            FollowedNetwork(
                data="mnist", width=256, learning_rate=0.003, epochs=60, probe=200, early_epochs=2
            ),
        ),
    },
    spaces={
        "reduced": Space({"data": ["mnist", "cifar10", "fashion_mnist"]}),
        "published": Space({"data": ["mnist", "cifar10", "kmnist", "fashion_mnist"]}),
    },
    seeds=dict.fromkeys(LARGE, (101, 102, 103)),
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
            between({"last": "last_is_low"}, low=0.5),
        ),
        Claim(
            "lou2022.fig2-7.first",
            "the first layer tends to be among the two of lowest alignment",
            between({"first": "first_is_low"}, low=0.5),
            sizes=LARGE,
            fragile="a tendency in the paper's words; on small data the second half of the network "
            "is lower",
        ),
    ),
    draw=_draw_training,
    stand_in={
        "lite": "8x8 digits, width 64, learning rate 0.03 (with 0.003 little is learned in 40 "
        "epochs of 11 steps)",
    },
    remarks=dict.fromkeys(LARGE, "60 epochs, a number the paper does not give"),
    not_run={
        "published": "it needs KMNIST, which we do not have, as kmnist.npz in the data folder"
    },
)
_RATES = Study(
    id="lou2022.fig9-10",
    title="The alignment hierarchy through training at three learning rates",
    shows=("Figure 9", "Figure 10"),
    measure=measure,
    configs={
        "smoke": _SMOKE,
        "lite": FollowedNetwork(moments=12),
        "published": FollowedNetwork(
            data="fashion_mnist", width=256, epochs=40, probe=200, early_epochs=2, moments=16
        ),
    },
    spaces={
        "smoke": Space({"learning_rate": [0.003, 0.03]}),
        "lite": Space({"learning_rate": [0.003, 0.01, 0.03]}),
        "published": Space(
            {"data": ["fashion_mnist", "cifar10"], "learning_rate": [0.05, 0.005, 0.003]}
        ),
    },
    seeds={"published": (101,)},
    claims=(
        Claim(
            "lou2022.fig9-10.rises",
            "the largest alignment rises by half or more within the first epochs (10 of the "
            "digits), to at least half of its final value",
            _rises,
        ),
        Claim(
            "lou2022.fig9-10.costs",
            "too large a learning rate (0.05) costs test accuracy",
            _costs,
            scope="seed",
            sizes=LARGE,
            published={
                "fashion_mnist largest": 87.1,
                "fashion_mnist others": 88.3,
                "cifar10 largest": 51.4,
                "cifar10 others": 56.0,
            },
            fragile="the largest rate of the small network, 0.03, is not too large for it",
        ),
    ),
    draw=_draw_rates,
    stand_in={
        "lite": "8x8 digits, width 64, learning rates 0.003, 0.01, 0.03",
    },
    remarks={
        "published": "of the learning rates 0.05 alone is legible; 40 epochs; the accuracies "
        "beside it "
        "are those of depth 10 in Tables 2 (width 100) and 1",
    },
)
STUDIES = (_TRAINING, _RATES)
