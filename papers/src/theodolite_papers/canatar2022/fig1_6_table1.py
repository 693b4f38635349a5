"""Figures 1 to 6 and Table I: a grid of 48 residual networks, their layers' kernels and spectra."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from theodolite.data import Dataset, digits, scaled
from theodolite.engine import features
from theodolite.interventions import initialize_
from theodolite.measures.kernel import linear_spectrum
from theodolite_papers.canatar2022._grid_claims import (
    CLAIMS as FIGURE_CLAIMS,
)
from theodolite_papers.canatar2022._grid_claims import (
    chosen_models,
    profiles,
    shown,
)
from theodolite_papers.canatar2022._kernels import (
    DEBIASED,
    NULL,
    ModeCurves,
    mode_curves,
    profile_rows,
    rounded,
)
from theodolite_papers.canatar2022._table_claims import CLAIMS as TABLE_CLAIMS
from theodolite_papers.canatar2022._table_claims import COLUMNS, PUBLISHED, ROWS, coefficients
from theodolite_papers.canatar2022.formulas.layers import layer_profile
from theodolite_papers.lab.data import balanced_rows, load_image_set
from theodolite_papers.lab.models import kernel_resnet
from theodolite_papers.lab.training import (
    Augmentation,
    DivergenceError,
    Recipe,
    Squared,
    TrainingState,
    train,
)
from theodolite_papers.ledger import (
    Heat,
    Line,
    Measured,
    Panel,
    Points,
    Result,
    Results,
    Space,
    Study,
    Trial,
    mean_and_error,
)

__all__ = ["STUDY", "Cell", "ResidualMLP", "measure"]

_STAGES = ("start", "middle", "end")
_POINTS = 24  # modes of a spectrum that are kept
# As in the original network. With 1 the last layer on 256 max-pooled features has a
# curvature of about 50, and every rate above 0.04 diverges within a few steps.
_OUTPUT_SCALE = 0.2
# Channel statistics of the CIFAR-10 training set, from the ffcv example.
_MEAN, _STD = (125.307, 122.961, 113.8575), (51.5865, 50.847, 51.255)
_SHOWN = (1, 4, 7, 9, 10)  # layers of Figure 1; ten curves are too many
_WORDS = {"skip": "skip", "batch_size": "batch size", "learning_rate": "learning rate"}


@dataclass(frozen=True)
class Cell:
    """One network of the grid.

    Args:
        data: "digits" (residual MLP) or "cifar10" (the network of eleven convolutions).
        train: training examples, class-balanced.
        test: test examples, class-balanced.
        probe: examples of each set on which kernels are taken, class-balanced.
        epochs: passes over the training examples.
        middle: the epoch of the second spectrum; the first is 0, the third the last.
        permutations: of the labels or inputs, for the null of every CKA.
        width: of the residual MLP.
        skip: whether blocks add their input.
        augmentation: whether training images are changed at random.
        momentum: 0 is plain SGD.
        learning_rate: of the first step; it falls linearly to zero.
        batch_size: examples per step.
    """

    data: str = "digits"
    train: int = 300
    test: int = 900
    probe: int = 300
    epochs: int = 100
    middle: int = 8
    permutations: int = 10
    width: int = 64
    skip: bool = True
    augmentation: bool = False
    momentum: float = 0.9
    learning_rate: float = 0.1
    batch_size: int = 25


def grid(batch_sizes: tuple[int, int, int], rates: tuple[float, float]) -> Space:
    """All 48 combinations of the five factors; the least important one varies slowest."""
    return Space(
        {
            "skip": [True, False],
            "augmentation": [False, True],
            "momentum": [0.9, 0.0],
            "learning_rate": list(rates),
            "batch_size": list(batch_sizes),
        }
    )


def measure(config: Cell, trial: Trial) -> Measured:
    """Train one network; layer CKA at the end, spectra of the last two layers at three times."""
    probe = _CellKernels(config, trial)
    model = build_network(config, probe.data, trial)
    first = calibrated(model, probe.data.x_train)
    stages = [probe.last_layers(first)]
    arrays = {"initial_train": probe.target_profile(first, "train", "max")}
    recipe = recipe_of(config, trial.seed)
    middle = config.middle * recipe.steps_per_epoch(config.train)

    def watch(state: TrainingState) -> None:
        if state.step == middle:
            stages.append(probe.last_layers(calibrated(model, probe.data.x_train)))

    data = probe.data
    test = (data.x_test, data.y_test)
    try:
        log = train(model, (data.x_train, data.y_train), recipe, test=test, callbacks=[watch])
    except DivergenceError as error:  # a result too: the run does not fit its data, and is left out
        lost = dict.fromkeys(("train_accuracy", "test_accuracy", "train_loss"), float("nan"))
        return Measured(lost, arrays, {"data": data.name, "diverged": str(error)})
    model.eval()
    stages.append(probe.last_layers(model))
    final = log.final
    assert final.test is not None
    numbers = {
        "train_accuracy": final.train.accuracy,
        "test_accuracy": final.test.accuracy,
        "train_loss": final.train.loss,
    }
    numbers |= _stage_numbers(stages)
    arrays |= probe.profiles(model) | _stage_arrays(stages)
    notes = {"data": data.name, "probe": f"{config.probe} examples of each set"}
    return Measured(numbers, arrays, notes)


class _CellKernels:
    """The data of a cell, and the kernels of a network on them."""

    def __init__(self, config: Cell, trial: Trial) -> None:
        data, train_rows, test_rows = load_cell_data(config, trial)
        self.data: Dataset = data.to(trial.device)
        self._permutations = config.permutations
        self._generator = trial.generator(2)
        self._maps = config.data != "digits"  # layers with a spatial extent
        self._sets: Mapping[str, tuple[Tensor, Tensor]] = {
            "train": (self.data.x_train[train_rows], self.data.y_train[train_rows]),
            "test": (self.data.x_test[test_rows], self.data.y_test[test_rows]),
        }

    def target_profile(self, model: nn.Module, name: str, reducer: str) -> np.ndarray:
        """CKA of all layers with the labels of one set, and with permuted labels."""
        layers = self._layers(model, name, reducer)
        return profile_rows(layers, self._sets[name][1], self._permutations, self._generator)

    def profiles(self, model: nn.Module) -> dict[str, np.ndarray]:
        """CKA of every layer with labels and inputs; spatial layers in every reduced shape."""
        arrays = {f"target_{name}": self.target_profile(model, name, "max") for name in self._sets}
        inputs = self._sets["train"][0].flatten(1)
        layers = self._layers(model, "train", "flatten")
        arrays["input_train"] = profile_rows(layers, inputs, self._permutations, self._generator)
        for reducer in ("mean", "flatten") if self._maps else ():
            for name, (_, labels) in self._sets.items():
                layers = self._layers(model, name, reducer)
                values = layer_profile(layers, labels, debiased=False)
                arrays[f"target_{name}_{reducer}"] = rounded(values)
        return arrays

    def last_layers(self, model: nn.Module) -> tuple[ModeCurves, ModeCurves]:
        """Spectrum and cumulative power of layers 9 and 10 on the training probe."""
        labels, classes = self._sets["train"][1], self.data.num_classes
        ninth, tenth = self._layers(model, "train", "max", last=2)
        curves = [
            mode_curves(linear_spectrum(rows.double()), labels, classes, _POINTS)
            for rows in (ninth, tenth)
        ]
        return curves[0], curves[1]

    def _layers(self, model: nn.Module, name: str, reducer: str, last: int = 10) -> list[Tensor]:
        names = probed_layers(model)[-last:]
        found = features(model, self._sets[name][0], names, reducer, read="raw")
        return [found[layer] for layer in names]


def _stage_numbers(stages: list[tuple[ModeCurves, ModeCurves]]) -> dict[str, float]:
    return {
        f"{key}_{layer}_{stage}": value
        for stage, pair in zip(_STAGES, stages, strict=True)
        for layer, curves in zip((9, 10), pair, strict=True)
        for key, value in curves.numbers.items()
    }


def _stage_arrays(stages: list[tuple[ModeCurves, ModeCurves]]) -> dict[str, np.ndarray]:
    arrays = {}
    for index, layer in enumerate((9, 10)):
        curves = [pair[index] for pair in stages]
        arrays[f"modes_{layer}"] = curves[0].modes
        arrays[f"eigenvalues_{layer}"] = np.stack([curve.eigenvalues for curve in curves])
        arrays[f"power_{layer}"] = np.stack([curve.power for curve in curves])
    return arrays


@cache
def _images(name: str) -> Dataset:
    """Read once for all cells that a process trains."""
    return load_image_set(name)


def channel_standardized(images: Tensor) -> Tensor:
    """Pixels 0..255 with the mean and the standard deviation of each channel on CIFAR-10."""
    mean, std = (torch.tensor(numbers).view(3, 1, 1) for numbers in (_MEAN, _STD))
    return (images - mean) / std


def load_cell_data(config: Cell, trial: Trial) -> tuple[Dataset, Tensor, Tensor]:
    """Scaled data of a cell, and the training and test rows of its probes.

    All cells of a seed share them.
    """
    generator = trial.generator(0)
    if config.data == "digits":
        whole = scaled(digits(1200, generator), "unit_interval")
    else:
        whole = _images(config.data)
    train = balanced_rows(whole.y_train, config.train, generator=generator)
    test = balanced_rows(whole.y_test, config.test, generator=generator)
    data = whole.take(train, test)
    if not data.scaling:
        data = data.mapped(channel_standardized, "channels")
    probes = [
        balanced_rows(labels, config.probe, generator=generator)
        for labels in (data.y_train, data.y_test)
    ]
    return data, probes[0], probes[1]


def build_network(config: Cell, data: Dataset, trial: Trial) -> nn.Module:
    """The network of a cell; all cells of a seed start from the same weights."""
    generator = trial.generator(1)
    if config.data == "digits":
        inputs = data.x_train[0].numel()
        model: nn.Module = ResidualMLP(inputs, config.width, data.num_classes, config.skip)
        initialize_(model, "default", 1.0, generator)
    else:
        model = kernel_resnet(
            data.num_classes, skip=config.skip, output_scale=_OUTPUT_SCALE, generator=generator
        )
    return model.to(trial.device)


def probed_layers(model: nn.Module) -> list[str]:
    """The ten layers, in order of depth."""
    return list(model.studied_layers)  # type: ignore[arg-type]


def recipe_of(config: Cell, seed: int) -> Recipe:
    """The recipe: squared error, SGD with or without momentum, a rate that falls linearly."""
    small = Augmentation(flip=False, padding=1, cutout=0)  # digits are 8 pixels wide
    changes = small if config.data == "digits" else Augmentation()
    return Recipe(
        loss=Squared(reduction="mean"),
        optimizer="momentum" if config.momentum else "sgd",
        momentum=config.momentum,
        learning_rate=config.learning_rate,
        batch_size=config.batch_size,
        epochs=config.epochs,
        schedule="linear",
        augmentation=changes if config.augmentation else None,
        log="ends",
        seed=seed,
    )


def calibrated(model: nn.Module, inputs: Tensor, chunk: int = 500) -> nn.Module:
    """A copy in evaluation mode whose batch norms have the statistics of the data.

    Before the first step their statistics are (0, 1), and early in training they lag behind. The
    features of a deep network in evaluation mode then differ from those that it trains with.
    """
    twin = copy.deepcopy(model).train()
    for module in twin.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            module.reset_running_stats()
            module.momentum = None  # the plain average over all batches
    with torch.no_grad():
        for part in torch.split(inputs, chunk):
            twin(part)
    return twin.eval()


class _Unit(nn.Sequential):
    """Linear map without bias, batch norm, ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs), nn.ReLU())


class _Block(nn.Module):
    """Two units, with or without the input added to their output."""

    def __init__(self, width: int, skip: bool) -> None:
        super().__init__()
        self.first = _Unit(width, width)
        self.second = _Unit(width, width)
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        """``x + u2(u1(x))``, or ``u2(u1(x))`` without the skip."""
        branch: Tensor = self.second(self.first(x))
        return x + branch if self.skip else branch


class ResidualMLP(nn.Module):
    """A unit, four residual blocks of two units, a unit, a linear output layer without bias.

    ``studied_layers`` names the ten hidden layers in order; the second layer of a block is taken
    after the addition.
    """

    studied_layers = (
        "unit1",
        *(f"block{k}{part}" for k in range(1, 5) for part in (".first", "")),
        "unit10",
    )

    def __init__(self, inputs: int, width: int, num_classes: int, skip: bool) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.unit1 = _Unit(inputs, width)
        self.block1 = _Block(width, skip)
        self.block2 = _Block(width, skip)
        self.block3 = _Block(width, skip)
        self.block4 = _Block(width, skip)
        self.unit10 = _Unit(width, width)
        self.head = nn.Linear(width, num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs: the last layer on the penultimate features."""
        x = self.block2(self.block1(self.unit1(self.flatten(x))))
        outputs: Tensor = self.head(self.unit10(self.block4(self.block3(x))))
        return outputs


def draw(runs: Results) -> list[Panel]:
    """The figures over the runs that the paper would keep (over all runs if it would keep none)."""
    order = sorted(shown(runs), key=lambda run: run["test_accuracy"])
    ordered = Results(tuple(order))
    return [
        *_figure_1(ordered),
        *_figure_2(ordered),
        *_figures_3_to_5(runs),
        *_figure_6(ordered),
        *_table_1(ordered),
    ]


def _setting_text(run: Result) -> str:
    """The settings of a run, as the paper labels it."""
    point = run.point
    return ", ".join(
        (
            "skip" if point["skip"] else "no skip",
            "augmented" if point["augmentation"] else "plain",
            f"batch {point['batch_size']}",
            f"{'momentum' if point['momentum'] else 'SGD'} {point['learning_rate']:g}",
        )
    )


def _figure_1(runs: Results) -> list[Panel]:
    text = [_setting_text(run) for run in runs]
    x = 100 * runs["test_accuracy"]
    panels = []
    sets = {"a": "target_train", "b": "target_test", "c": "input_train"}
    titles = {"a": "target, training set", "b": "target, test set", "c": "input, training set"}
    for part, name in sets.items():
        values = profiles(runs, name)
        marks = [Points(f"layer {k}", x, values[:, k - 1], text) for k in _SHOWN]
        title = f"Figure 1{part}, CKA with {titles[part]}"
        panels.append(Panel(title, marks, "test accuracy of the run in %", "CKA"))
    return panels


def _figure_2(runs: Results) -> list[Panel]:
    train, test = profiles(runs, "target_train"), profiles(runs, "target_test")
    layers = np.arange(1, train.shape[1] + 1)
    names = [f"layer {k}" for k in layers]
    points = Points("layers, mean over runs", train.mean(0), test.mean(0), names)
    lines: list[Line] = []
    rows = {"": 0, ", debiased": DEBIASED, ", permuted labels": NULL}
    for kind, row in rows.items():
        mean, error = mean_and_error(profiles(runs, "target_train", row))
        lines.append(Line(f"target{kind}", layers, mean, error, dashed=bool(kind)))
    for kind, row in {"": 0, ", debiased": DEBIASED}.items():
        mean, error = mean_and_error(profiles(runs, "input_train", row))
        lines.append(Line(f"input{kind}", layers, mean, error, dashed=bool(kind)))
    before, error = mean_and_error(profiles(runs, "initial_train"))
    lines.append(Line("target, before training", layers, before, error, dashed=True))
    return [
        Panel("Figure 2a", [points], "CKA with target, training set", "CKA with target, test set"),
        Panel("Figure 2b, training set", lines, "layer", "CKA"),
    ]


def _figures_3_to_5(runs: Results) -> list[Panel]:
    first = runs.by_seed()[runs.runs[0].seed]
    models = chosen_models(first)
    panels = []
    for number, name in ((3, "worst"), (4, "best"), (5, "misleading")):
        run = models[name]
        spectra: list[Line] = []
        power: list[Line] = []
        for color, layer in enumerate((9, 10)):
            modes = run.arrays[f"modes_{layer}"]
            for stage, label in enumerate(_STAGES):
                if stage == 1 and layer == 9:
                    continue  # four and five curves are legible, six are not
                dashed, hue = stage < 2, color if stage != 1 else 2
                title = f"layer {layer}, {label}"
                eta = run.arrays[f"eigenvalues_{layer}"][stage]
                shown = eta > 0
                spectra.append(Line(title, modes[shown], eta[shown], dashed=dashed, color=hue))
                curve = run.arrays[f"power_{layer}"][stage]
                power.append(Line(title, modes, curve, dashed=dashed, color=hue))
        title = f"Figure {number}, {name} model ({100 * run['test_accuracy']:.1f} %)"
        panels.append(Panel(f"{title}: spectrum", spectra, "mode", "eigenvalue", "xy"))
        panels.append(Panel(f"{title}: target", power, "mode", "cumulative power", "x"))
    return panels


def _figure_6(runs: Results) -> list[Panel]:
    place, text = np.arange(1, len(runs) + 1), [_setting_text(run) for run in runs]
    accuracies = [
        Points(name, place, 100 * runs[f"{key}_accuracy"], text)
        for key, name in (("train", "training set"), ("test", "test set"))
    ]
    averages = [
        Points(name, place, profiles(runs, f"target_{key}").mean(1), text)
        for key, name in (("train", "training set"), ("test", "test set"))
    ]
    x = "run, by test accuracy"
    return [
        Panel("Figure 6a", accuracies, x, "accuracy in %"),
        Panel("Figure 6b", averages, x, "layer-averaged CKA with target"),
    ]


def _table_1(runs: Results) -> list[Panel]:
    if len(runs) < 3:
        return []
    rows = [_WORDS.get(row, row.replace("_", " ")) for row in ROWS]
    columns = [column.replace("_", " ") for column in COLUMNS]
    tables = {f"over {len(runs)} runs": coefficients(runs), "published": PUBLISHED}
    return [
        Panel(
            f"Table I, {name}",
            [Heat(table, rows, columns, diverging=True)],
            printed=table is PUBLISHED,
        )
        for name, table in tables.items()
    ]


STUDY = Study(
    id="canatar2022.fig1-6-table1",
    title="Layer kernels of a grid of residual networks",
    shows=(*(f"Figure {k}" for k in range(1, 7)), "Table 1"),
    measure=measure,
    configs={
        "smoke": Cell(train=100, test=200, probe=100, epochs=12, middle=2, permutations=2),
        "lite": Cell(),
        "reduced": Cell(
            data="cifar10",
            train=2000,
            test=10_000,
            probe=1000,
            epochs=60,
            middle=4,
            permutations=5,
            batch_size=20,
        ),
        "published": Cell(
            data="cifar10",
            train=50_000,
            test=10_000,
            probe=5000,
            epochs=5000,
            middle=25,
            permutations=5,
            batch_size=512,
        ),
    },
    claims=(*FIGURE_CLAIMS, *TABLE_CLAIMS),
    draw=draw,
    seeds={"reduced": (101,), "published": (101,)},
    spaces={
        "smoke": Space(
            {
                "skip": [True],
                "augmentation": [False],
                "momentum": [0.9, 0.0],
                "learning_rate": [0.4],
                "batch_size": [10, 20],
            }
        ),
        "lite": grid((25, 75, 150), (0.1, 0.4)),
        "reduced": grid((20, 80, 160), (0.1, 0.5)),
        "published": grid((512, 2048, 4096), (0.05, 0.5)),
    },
    stand_in={
        "lite": "8x8 digits, 300 for training, and ten fully connected layers of 64 units stand in "
        "for CIFAR-10 and the eleven convolutions; 100 epochs, batches of 25, 75 and 150",
    },
    remarks={
        "reduced": "batches are the same shares of the images as the paper's; outputs times 0.2; "
        "the second spectrum after 4 epochs instead of 25; kernels on 1,000 images of each set",
    },
    not_run={"published": "48 networks for 5,000 epochs of 50,000 images need a cluster"},
)
