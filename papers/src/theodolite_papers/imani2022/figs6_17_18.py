"""Figures 6, 17, 18: alignment over depth, width, activation, optimiser and batch size."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch

from theodolite.measures.representation import AlignmentCurve
from theodolite_papers.imani2022._networks import (
    RATES,
    Problem,
    Profile,
    Training,
    build,
    curve_array,
    curve_lines,
    hidden_layers,
    load_problem,
    profile,
    recipe_for,
    train_on,
)
from theodolite_papers.imani2022.formulas.curves import dominance_fraction
from theodolite_papers.ledger import (
    CORRELATION,
    LARGE,
    RATIO,
    Bars,
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
    exceeds,
    inside,
    mean_and_error,
    outcome,
    spearman,
)

__all__ = ["STUDY", "Variations"]


@dataclass(frozen=True)
class Architecture:
    """One configuration around the base: depth 4, width 128, ReLU, Adam, batches of 64."""

    depth: int = 4
    width: int = 128
    activation: str = "relu"
    optimizer: str = "adam"
    batch_size: int = 64


@dataclass(frozen=True)
class Variations:
    """Five sweeps around one base configuration, on one task.

    Args:
        task: what the networks learn.
        train: number of training examples.
        test: number of test examples.
        training: how long, and when it stops.
        depths: numbers of hidden layers.
        widths: of hidden layers.
        activations: beside ReLU.
        optimizers: beside Adam.
        batch_sizes: beside 64.
        bias: whether representations get a constant column.
    """

    task: str = "digits-parity"
    train: int = 640
    test: int = 797
    training: Training = field(default_factory=lambda: Training(epochs=50))
    depths: tuple[int, ...] = (1, 2, 4, 6)
    widths: tuple[int, ...] = (32, 128, 256)
    activations: tuple[str, ...] = ("tanh", "prelu", "leaky_relu", "linear")
    optimizers: tuple[str, ...] = ("sgd", "momentum", "rmsprop")
    batch_sizes: tuple[int, ...] = (32, 128, 256)
    bias: bool = True

    def architectures(self) -> dict[str, Architecture]:
        """Every configuration by name; the base is both a depth and a width."""
        base = Architecture()
        named = {f"depth {d}": replace(base, depth=d) for d in self.depths}
        named |= {f"width {w}": replace(base, width=w) for w in self.widths if w != base.width}
        named |= {a: replace(base, activation=a) for a in self.activations}
        named |= {o: replace(base, optimizer=o) for o in self.optimizers}
        return named | {f"batch {b}": replace(base, batch_size=b) for b in self.batch_sizes}


_SUBSETS = ("train", "test")
_GUESSING = 1.0  # logistic loss of guessing, in bits
_STATES = ("initial", "trained")
_CEILING = (
    "a non-negative layer cannot exceed an area of 0.71; easy tasks bring deep networks close to "
    "it and leave room for a rise with depth"
)


def measure(config: Variations, trial: Trial) -> Measured:
    """Areas and curves of the last hidden layer of every configuration, and of the input."""
    task = load_problem(config.task, config.train, config.test, trial.generator())
    inputs = {}
    for subset in _SUBSETS:
        x, y = _examples(task, subset)
        inputs[subset] = profile(x.to(trial.device), y, bias=config.bias)
    named = config.architectures()
    found, losses = {}, {}
    for index, (name, architecture) in enumerate(named.items()):
        trial.report(index / len(named), name)
        found[name], losses[name] = _one(architecture, config, task, trial)
    return Measured(
        _numbers(inputs, found, losses),
        _arrays(inputs, found),
        {"task": config.task, "configurations": ", ".join(named)},
    )


def _examples(task: Problem, subset: str) -> tuple[torch.Tensor, torch.Tensor]:
    train = subset == "train"
    return (task.x_train, task.y_train) if train else (task.x_test, task.y_test)


def _one(
    architecture: Architecture, config: Variations, task: Problem, trial: Trial
) -> tuple[dict[tuple[str, str], Profile], float]:
    """(state, subset) -> alignment of the last hidden layer, and the final training loss."""
    model = build(
        task.width,
        architecture.depth,
        architecture.width,
        trial,
        activation=architecture.activation,
    )
    last = f"act{architecture.depth}"

    def read(state: str) -> dict[tuple[str, str], Profile]:
        profiles = {}
        for subset in _SUBSETS:
            x, y = _examples(task, subset)
            rows = hidden_layers(model, x, [last])[last]
            profiles[state, subset] = profile(rows, y, bias=config.bias)
        return profiles

    found = read("initial")
    training = replace(
        config.training, optimizer=architecture.optimizer, batch_size=architecture.batch_size
    )
    recipe = recipe_for(training, trial.seed, regression=task.regression)
    loss = train_on(model, task.x_train, task.y_train, recipe)
    return found | read("trained"), loss


Found = dict[str, dict[tuple[str, str], Profile]]


def _numbers(
    inputs: dict[str, Profile], found: Found, losses: dict[str, float]
) -> dict[str, float]:
    numbers = {f"{s}: input": inputs[s].area for s in _SUBSETS}
    for name, profiles in found.items():
        numbers[f"loss: {name}"] = losses[name]
        for (state, subset), one in profiles.items():
            numbers[f"{subset}: {state}: {name}"] = one.area
        numbers[f"dominance: {name}"] = _dominance(profiles["trained", "train"], inputs["train"])
    return numbers


def _dominance(first: Profile, second: Profile) -> float:
    """Share of the thresholds at which the trained layer is not below the input."""
    grid = torch.linspace(0, 1, len(first.curve), dtype=torch.float64)
    one, other = (AlignmentCurve(grid, p.curve, "normalized", "svd") for p in (first, second))
    return float(dominance_fraction(one, other, slack=1e-6))


def _arrays(inputs: dict[str, Profile], found: Found) -> dict[str, np.ndarray]:
    """Per subset: curves (1 + 2 configurations, thresholds): the input, initial, trained."""
    return {
        subset: curve_array(
            {
                "input": inputs[subset],
                **{
                    f"{name} {state}": profiles[state, subset]
                    for name, profiles in found.items()
                    for state in _STATES
                },
            }
        )
        for subset in _SUBSETS
    }


def _names(runs: Results, figure: str) -> list[str]:
    """Configurations of a figure: 6 has depths, widths, activations; 17 the rest; 18 all."""
    names = runs.first.notes["configurations"].split(", ")
    rest = [n for n in names if n.startswith("batch") or n in RATES]
    return {"6": [n for n in names if n not in rest], "17": rest, "18": names}[figure]


def _learned(runs: Results, figure: str) -> list[str]:
    """Configurations of a figure whose network has learned (loss below that of guessing)."""
    return [name for name in _names(runs, figure) if runs.first[f"loss: {name}"] < _GUESSING]


def _risen(runs: Results, figure: str, subset: str) -> Outcome:
    """The smallest ratios of the trained area to that of the input and to the initial one."""
    (run,) = runs
    names = _learned(runs, figure)
    trained = [run[f"{subset}: trained: {name}"] for name in names]
    initial = [run[f"{subset}: initial: {name}"] for name in names]
    over_input = min(trained) / run[f"{subset}: input"]
    over_initial = min(t / i for t, i in zip(trained, initial, strict=True))
    return decided(
        above("trained_over_input", over_input, 1, possible=RATIO),
        above("trained_over_initial", over_initial, 1, possible=RATIO),
        left_out=len(_names(runs, figure)) - len(names),
    )


def _linear(runs: Results) -> Outcome:
    (run,) = runs
    trained, initial = run["train: trained: linear"], run["train: initial: linear"]
    first = run["train: input"]
    return exceeds("trained", {"trained": trained, "initial": initial, "input": first})


def _no_trend(runs: Results) -> Outcome:
    """No trend: the mean rank correlation of area and depth does not differ clearly from 0."""
    names = [n for n in _names(runs, "6") if n.startswith("depth")]
    areas = np.array([[run[f"train: trained: {name}"] for name in names] for run in runs])
    ranks = [spearman(np.arange(len(names)), row) for row in areas]
    means = {
        name.replace(" ", "_"): value for name, value in zip(names, areas.mean(0), strict=True)
    }
    return decided(
        inside("mean_rank", float(np.mean(ranks)), -0.5, 0.5, strict=False, possible=CORRELATION),
        lowest_rank=min(ranks),
        highest_rank=max(ranks),
        **means,
    )


def _nowhere_below(runs: Results, subset: str) -> Outcome:
    """The lowest point of trained curves over the input's and over the initial ones.

    Curves are kept in half precision: a thousandth of the label mass is no difference.
    """
    curves = runs.first.arrays[subset].astype(np.float64)
    names = _names(runs, "18")
    kept = [names.index(name) for name in _learned(runs, "18")]
    first, initial, trained = curves[:1], curves[1::2][kept], curves[2::2][kept]
    return decided(
        above("lowest_trained_minus_input", (trained - first).min(), -1e-3, strict=False),
        above("lowest_trained_minus_initial", (trained - initial).min(), -1e-3, strict=False),
        left_out=len(names) - len(kept),
    )


def _dominated(runs: Results) -> Outcome:
    lowest = min(runs.first[f"dominance: {name}"] for name in _names(runs, "18"))
    return outcome(None, smallest_share_of_thresholds=lowest)


def draw(runs: Results) -> list[Panel]:
    """Curves of the base network, and bars of all configurations, for each task and subset."""
    panels = []
    for task in dict.fromkeys(run.notes["task"] for run in runs):
        part = runs.chosen(lambda run, task=task: run.notes["task"] == task)  # type: ignore[misc]
        panels += [_curves(part, task), _bars(part, task, "train"), _bars(part, task, "test")]
    return panels


def _curves(runs: Results, task: str) -> Panel:
    names = [n for n in _names(runs, "6") if n.startswith("depth")]
    order = _names(runs, "18")
    labels = ["input", *(f"{name}, {state}" for name in order for state in _STATES)]
    dashed = [label for label in labels if "initial" in label]
    colors = {f"{name}, {state}": k for k, name in enumerate(names) for state in _STATES}
    lines = curve_lines(runs, "train", labels, dashed, colors | {"input": len(names)})
    kept = [line for line in lines if line.name == "input" or line.name.split(",")[0] in names]
    return Panel(f"Figure 6, {task}, depths", kept, "threshold / root n", "share of the label mass")


def _bars(runs: Results, task: str, subset: str) -> Panel:
    names = _names(runs, "18")
    marks = []
    for state in _STATES:
        stacked = np.array([[run[f"{subset}: {state}: {name}"] for name in names] for run in runs])
        marks.append(Bars(f"{state} last hidden layer", names, *mean_and_error(stacked)))
    level = runs[f"{subset}: input"].mean()
    marks.append(Bars("input", names, np.full(len(names), level)))
    figures = "Figures 6 and 17" if subset == "train" else "Figure 18"
    return Panel(f"{figures}, {task}, {subset} data", marks, "", "normalised area")


def _claims() -> tuple[Claim, ...]:
    text = "the trained last hidden layer has a larger area than the input and than before training"
    left = "networks whose training loss is not below that of guessing are left out"
    id_ = "imani2022.fig6-17-18"
    return (
        Claim(f"{id_}.architectures", f"{text}, for every depth, width and activation (training "
              f"data; {left})", lambda runs: _risen(runs, "6", "train")),
        Claim(f"{id_}.optimizers", f"{text}, for every optimiser and batch size (training data; "
              f"{left})", lambda runs: _risen(runs, "17", "train")),
        Claim(f"{id_}.test", f"{text}, in every configuration on test data ({left})",
              lambda runs: _risen(runs, "18", "test")),
        Claim(f"{id_}.linear", f"{text} with linear activation too", _linear),
        Claim(f"{id_}.no-trend", "there is no consistent trend of the trained layer's area with "
              "the depth of the network: the mean rank correlation is between -0.5 and 0.5",
              _no_trend, scope="all", fragile=_CEILING),
        Claim(f"{id_}.curves", "in every configuration the trained last hidden layer's curve is "
              "nowhere below the input's and nowhere below the initial one's, beyond 0.001 of the "
              f"label mass: curves are kept in half precision (training data; {left})",
              lambda runs: _nowhere_below(runs, "train")),
        Claim(f"{id_}.dominance", "share of thresholds at which the trained layer is not below the "
              "input beyond a millionth (training data), the lowest over configurations",
              _dominated, sizes=()),
        Claim(f"{id_}.curves-test", "the same on test data, beyond 0.001 of the label mass",
              lambda runs: _nowhere_below(runs, "test")),
    )  # fmt: skip


STUDY = Study(
    id="imani2022.fig6-17-18",
    title="Alignment over architectures, optimisers and batch sizes",
    shows=("Figure 6", "Figure 17", "Figure 18"),
    measure=measure,
    configs={
        "smoke": Variations(
            train=150,
            test=100,
            training=Training(epochs=3),
            depths=(1, 4),
            widths=(32,),
            activations=("linear",),
            optimizers=("sgd",),
            batch_sizes=(32,),
        ),
        "lite": Variations(),
    }
    | {
        size: Variations(
            "mnist-pair",
            10_000,
            2_000,
            Training(epochs=60, until_converged=True),
            depths=(1, 2, 4, 8),
            widths=(32, 128, 512),
        )
        for size in LARGE
    },
    spaces={
        "reduced": Space({"task": ["mnist-pair", "cifar10-pair"]}),
        "published": Space({"task": ["mnist-pair", "cifar10-pair", "ct_position"]}),
    },
    claims=_claims(),
    draw=draw,
    stand_in={
        "lite": "8x8 digits, even against odd, for CT position, CIFAR-10 and MNIST; 50 epochs",
    },
    remarks={"reduced": "at most 60 epochs, which the paper does not print"},
    not_run={"published": "it needs the CT position table of UCI, which we do not have"},
)
