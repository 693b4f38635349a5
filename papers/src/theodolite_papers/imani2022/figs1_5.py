"""Figures 1 and 5: three representations with a linear model on top, and their alignment."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from theodolite.data import Dataset, scaled
from theodolite.measures.representation import scaled_targets
from theodolite_papers.imani2022._fitted_features import (
    fit_rbf_network,
    learn_dictionary,
    sparse_codes,
)
from theodolite_papers.imani2022._linear_models import Split, best_probe
from theodolite_papers.imani2022._networks import (
    Profile,
    Training,
    build,
    curve_array,
    curve_lines,
    hidden_layers,
    profile,
    recipe_for,
    train_on,
)
from theodolite_papers.lab.data import load_ct_position, peaks
from theodolite_papers.ledger import (
    LARGE,
    Claim,
    Line,
    Measured,
    Outcome,
    Panel,
    Results,
    Study,
    Trial,
    above,
    below,
    between,
    decided,
    mean_and_error,
    named,
    ordered,
    smallest,
)

__all__ = ["STUDY", "ThreeFeatures"]

_NAMES = ("network", "dictionary", "rbf")
_POINTS = 101  # thresholds of a curve: every hundredth of the root of n


@dataclass(frozen=True)
class ThreeFeatures:
    """Three ways to make features of the same inputs.

    Args:
        data: "peaks" or "ct_position".
        train: number of training examples.
        test: number of test examples.
        features: number of each representation.
        network_epochs: of the ReLU network.
        rbf_epochs: of the RBF network.
        relative_bandwidth: of its units, in median distances.
        penalty: of the sparse codes.
        rates: learning rates of the linear model on the mean squared error.
        steps: of gradient descent.
        bias: whether representations get a constant column.
    """

    data: str = "peaks"
    train: int = 300
    test: int = 300
    features: int = 320
    network_epochs: int = 200
    rbf_epochs: int = 60
    relative_bandwidth: float = 0.5
    penalty: float = 0.05
    rates: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0)
    steps: int = 3000
    bias: bool = True


def measure(config: ThreeFeatures, trial: Trial) -> Measured:
    """Learning curves of the linear models, and alignment of the features."""
    data = _load(config, trial.generator())
    labels = scaled_targets(data.y_train.double())
    test_labels = labels.apply(data.y_test.double())
    rows = _representations(config, trial, data, labels.values)
    steps = torch.from_numpy(np.unique(np.geomspace(1, config.steps, 40).astype(np.int64)))
    numbers: dict[str, float] = {"label_mass": float(labels.values.square().sum())}
    curves, profiles = [], {}
    for name, (train, test) in rows.items():
        split = Split(train, labels.values, test, test_labels)
        found, errors, profiles[name] = _one(config, split, steps)
        numbers |= {f"{quantity}_{name}": value for quantity, value in found.items()}
        curves.append(errors)
    arrays = {
        "steps": steps.numpy().astype(np.int32),
        "errors": torch.stack(curves).to(torch.float16).numpy(),
        "curves": curve_array(profiles),
    }
    return Measured(numbers, arrays, {"data": data.name})


def _one(
    config: ThreeFeatures, split: Split, steps: Tensor
) -> tuple[dict[str, float], Tensor, Profile]:
    """Numbers, learning curves (train, test) and alignment of one representation."""
    run = best_probe(split.prepared(bias=config.bias), config.rates, config.steps)
    errors = torch.stack([run.train_errors(steps), run.test_errors(steps)])
    aligned = profile(split.train, split.targets, bias=config.bias, points=_POINTS)
    plain = profile(split.train, split.targets, bias=False, points=_POINTS)
    numbers = {
        "least_squares": run.floor * float(split.targets.square().mean()),
        "steps": run.steps_to(0.02),
        "early_steps": run.steps_to(0.2),
        "test": float(errors[1].min()),
        "rate": run.rate,
        "area": aligned.area,
        "plain_area": plain.area,
        "kept": float(aligned.curve[_index(0.1)]),
        "plain_kept": float(plain.curve[_index(0.1)]),
        "kept_at_8": float(aligned.curve[_index(8 / config.train**0.5)]),
    }
    return numbers, errors, aligned


def _index(threshold: float) -> int:
    """The first threshold of the curve that is at least so large."""
    return min(int(np.ceil(threshold * (_POINTS - 1) - 1e-9)), _POINTS - 1)


def _load(config: ThreeFeatures, generator: torch.Generator) -> Dataset:
    if config.data == "ct_position":
        return scaled(load_ct_position(config.train, config.test, generator=generator), "unit_rows")
    return peaks("ABC", config.train, config.test, generator=generator)


def _representations(
    config: ThreeFeatures, trial: Trial, data: Dataset, labels: Tensor
) -> dict[str, tuple[Tensor, Tensor]]:
    """Name -> features of the training and of the test examples."""
    x_train, x_test = data.x_train.double(), data.x_test.double()
    model = build(x_train.shape[1], 1, config.features, trial)
    recipe = recipe_for(Training(config.network_epochs), trial.seed, regression=True)
    train_on(model, x_train.float(), labels.float(), recipe)
    hidden = [hidden_layers(model, x.float(), ["act1"])["act1"].cpu() for x in (x_train, x_test)]
    dictionary = learn_dictionary(
        x_train, config.features, config.penalty, generator=trial.generator(2)
    )
    codes = [sparse_codes(x, dictionary, config.penalty) for x in (x_train, x_test)]
    rbf = fit_rbf_network(
        x_train,
        labels,
        config.features,
        config.rbf_epochs,
        config.relative_bandwidth,
        generator=trial.generator(3),
    )
    with torch.no_grad():
        units = [rbf.features(x) for x in (x_train, x_test)]
    return {
        "network": (hidden[0], hidden[1]),
        "dictionary": (codes[0], codes[1]),
        "rbf": (units[0], units[1]),
    }


def _of(quantity: str) -> dict[str, str]:
    return named(*_NAMES, prefix=f"{quantity}_")


def _generalizes(runs: Results) -> Outcome:
    errors = runs.means(_of("test"))
    best = min(errors.values())
    return decided(
        below("network_over_best", errors["network"] / best, 1.1, strict=False),
        above("dictionary_over_network", errors["dictionary"] / errors["network"], 2, strict=False),
        **errors,
    )


def _ordered(runs: Results, prefix: str = "") -> Outcome:
    areas = runs.means(_of(f"{prefix}area"))
    return ordered({name: areas[name] for name in ("dictionary", "rbf", "network")})


def _above_dictionary(runs: Results) -> Outcome:
    areas = runs.means(_of("area"))
    gap = areas["network"] - areas["dictionary"]
    return decided(above("network minus dictionary", gap), **areas)


def _kept(runs: Results) -> Outcome:
    """The numbers with the constant column, and without it for comparison."""
    shares = runs.means({"network": "kept_network", "network_without_bias": "plain_kept_network"})
    return decided(above("network", shares["network"], 0.9), **shares)


def draw(runs: Results) -> list[Panel]:
    """Learning curves (dashed on training data), and alignment curves."""
    steps = runs.first.arrays["steps"]
    stacked = runs.array("errors").astype(np.float64)
    lines = []
    for index, name in enumerate(_NAMES):
        for part, subset in enumerate(("train", "test")):
            mean, error = mean_and_error(stacked[:, index, part])
            lines.append(
                Line(f"{name}, {subset}", steps, mean, error, dashed=part == 0, color=index)
            )
    curves = curve_lines(runs, "curves", _NAMES)
    return [
        Panel("Figure 1", lines, "step", "relative mean squared error", log="xy"),
        Panel("Figure 5", curves, "threshold / root n", "share of the label mass"),
    ]


def _claims() -> tuple[Claim, ...]:
    id_ = "imani2022.fig1-5"
    chosen = "the RBF network's bandwidth was chosen because it shows this order"
    return (
        Claim(f"{id_}.fits", "least squares fits all three representations: training error below "
              "1e-3", between(_of("least_squares"), high=1e-3)),
        Claim(f"{id_}.fastest", "gradient descent reaches 2 % of the initial error in the fewest "
              "steps on the network's features", smallest("network", _of("steps"))),
        Claim(f"{id_}.early", "steps to 20 % of the initial error, where the flat spectrum of "
              "sparse codes tolerates the largest step size",
              smallest("network", _of("early_steps")), sizes=()),
        Claim(f"{id_}.test", "the network's features give the lowest best test error up to 10 %, "
              "the dictionary's at least twice theirs", _generalizes),
        Claim(f"{id_}.above-dictionary", "the network's features have a larger area than the "
              "dictionary's", _above_dictionary),
        Claim(f"{id_}.order", "area of the network > RBF network > dictionary", _ordered,
              fragile=chosen, sizes=()),
        Claim(f"{id_}.order-without-bias", "the same order without the constant column",
              lambda runs: _ordered(runs, "plain_"), fragile=chosen, sizes=()),
        Claim(f"{id_}.kept", "the network's features keep more than 90 % of the label mass at a "
              "tenth of the root of n", _kept, sizes=("lite",)),
        Claim(f"{id_}.kept-at-8", "the network's features keep more than half of the label mass "
              "at threshold 8 (1000 examples)", between({"network": "kept_at_8_network"}, low=0.5),
              sizes=LARGE),
    )  # fmt: skip


STUDY = Study(
    id="imani2022.fig1-5",
    title="Three representations: learning curves and alignment",
    shows=("Figure 1", "Figure 5"),
    measure=measure,
    configs={
        "smoke": ThreeFeatures(
            train=40, test=40, features=48, network_epochs=20, rbf_epochs=3, steps=500
        ),
        "lite": ThreeFeatures(),
        "published": ThreeFeatures(
            "ct_position", 1000, 1000, 1024, network_epochs=1000, rbf_epochs=200, steps=10_000
        ),
    },
    claims=_claims(),
    draw=draw,
    stand_in={"lite": "peaks P(A,B,C) with labels on [-1, 1], 300 examples and 320 features, for "
              "the CT position table"},
    not_run={"published": "it needs the CT position table of UCI, which we do not have"},
)  # fmt: skip
