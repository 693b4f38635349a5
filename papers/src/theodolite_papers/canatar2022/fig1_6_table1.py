"""Figures 1 to 6 and Table I: a grid of 48 residual networks, their layers' kernels and spectra."""

from collections.abc import Mapping

import numpy as np
from torch import Tensor, nn

from theodolite.data import Dataset
from theodolite.engine import features
from theodolite.measures.kernel import layer_profile, linear_spectrum
from theodolite.sweeps import Space
from theodolite_papers.canatar2022._grid import (
    Cell,
    build_network,
    calibrated,
    grid,
    load_cell_data,
    probed_layers,
    recipe_of,
)
from theodolite_papers.canatar2022._grid_claims import CLAIMS as GRID_CLAIMS
from theodolite_papers.canatar2022._grid_pictures import draw
from theodolite_papers.canatar2022._profiles import profile_rows, rounded
from theodolite_papers.canatar2022._spectra import ModeCurves, mode_curves
from theodolite_papers.canatar2022._spectrum_claims import CLAIMS as SPECTRUM_CLAIMS
from theodolite_papers.canatar2022._table_claims import CLAIMS as TABLE_CLAIMS
from theodolite_papers.lab.training import DivergenceError, TrainingState, train
from theodolite_papers.ledger import Measured, Study, Trial

__all__ = ["STUDY", "measure"]

_STAGES = ("start", "middle", "end")
_POINTS = 24  # modes of a spectrum that are kept


def measure(config: Cell, trial: Trial) -> Measured:
    """Train one network; layer CKA at the end, spectra of the last two layers at three times."""
    probe = _Probe(config, trial)
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


class _Probe:
    """The data of a cell, and what is read off a network on it."""

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
        """CKA of all layers with the labels of one set, beside its null."""
        layers = self._layers(model, name, reducer)
        return profile_rows(layers, self._sets[name][1], self._permutations, self._generator)

    def profiles(self, model: nn.Module) -> dict[str, np.ndarray]:
        """Every layer with labels and inputs; spatial layers with every reducer."""
        arrays = {f"target_{name}": self.target_profile(model, name, "max") for name in self._sets}
        inputs = self._sets["train"][0].flatten(1)
        layers = self._layers(model, "train", "flatten")
        arrays["input_train"] = profile_rows(layers, inputs, self._permutations, self._generator)
        for reducer in ("mean", "flatten") if self._maps else ():
            for name, (_, labels) in self._sets.items():
                layers = self._layers(model, name, reducer)
                values = layer_profile(layers, labels, debiased=False).values
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


STUDY = Study(
    id="canatar2022.fig1-6-table1",
    title="Layer kernels of a grid of residual networks",
    shows=(*(f"Figure {k}" for k in range(1, 7)), "Table 1"),
    measure=measure,
    configs={
        "smoke": Cell(train=100, test=200, probe=100, epochs=12, middle=2, permutations=2),
        "lite": Cell(),
        "paper": Cell(
            data="cifar10",
            train=2000,
            test=10_000,
            probe=1000,
            epochs=60,
            middle=4,
            permutations=5,
            batch_size=20,
        ),
    },
    claims=(*GRID_CLAIMS, *SPECTRUM_CLAIMS, *TABLE_CLAIMS),
    draw=draw,
    seeds={"paper": (101,)},
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
        "paper": grid((20, 80, 160), (0.1, 0.5)),
    },
    stand_in={
        "lite": "8x8 digits, 300 for training, and ten fully connected layers of 64 units stand in "
        "for CIFAR-10 and the eleven convolutions; 100 epochs, batches of 25, 75 and 150",
        "paper": "2,000 images of CIFAR-10 and 60 epochs instead of 50,000 and 5,000; batches of "
        "20, 80 and 160 instead of 512, 2048 and 4096, the same shares; outputs times 0.2; the "
        "second spectrum after 4 epochs instead of 25; kernels on 1,000 images of each set; one "
        "seed",
    },
)
