"""Figure 2: label mass by singular direction, with true and with permuted labels."""

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from theodolite.measures.representation import label_projections, prepare_features, top_share
from theodolite_papers.imani2022._networks import (
    Training,
    build,
    hidden_layers,
    load_problem,
    recipe_for,
    train_on,
)
from theodolite_papers.ledger import (
    SHARE,
    Claim,
    Measured,
    Outcome,
    Panel,
    Points,
    Result,
    Results,
    Study,
    Trial,
    below,
    between,
    decided,
)

__all__ = ["STUDY", "ShuffledLabels"]

_DEPTH = 3
_SHOWN = 50
_TITLES = {
    "a": "inputs, true labels",
    "b": "inputs, shuffled labels",
    "c": "initial layer, shuffled labels",
    "d": "trained layer, shuffled labels",
}


@dataclass(frozen=True)
class ShuffledLabels:
    """A network of three hidden layers, as wide as the input, that memorises permuted labels.

    Args:
        task: two classes.
        train: number of examples.
        training: how the network is trained.
        leading: number of directions whose share of the label mass is judged.
        bias: whether representations get a constant column.
    """

    task: str = "digits-pair"
    train: int = 360
    training: Training = field(default_factory=lambda: Training(epochs=400))
    leading: int = 5
    bias: bool = True


def measure(config: ShuffledLabels, trial: Trial) -> Measured:
    """Singular values and label mass of the four cases."""
    task = load_problem(config.task, config.train, 2, trial.generator())
    order = torch.randperm(len(task.y_train), generator=trial.generator(2))
    shuffled = task.y_train[order]
    model = build(task.width, _DEPTH, task.width, trial)
    last = f"act{_DEPTH}"
    initial = hidden_layers(model, task.x_train, [last])[last]
    recipe = recipe_for(config.training, trial.seed, regression=False)
    loss = train_on(model, task.x_train, shuffled, recipe)
    trained = hidden_layers(model, task.x_train, [last])[last]
    inputs = task.x_train.to(trial.device)
    cases = {
        "a": (inputs, task.y_train),
        "b": (inputs, shuffled),
        "c": (initial, shuffled),
        "d": (trained, shuffled),
    }
    numbers = {"examples": float(len(shuffled)), "final_loss": loss}
    arrays: dict[str, np.ndarray] = {}
    for case, (rows, labels) in cases.items():
        share, spectrum = _spectrum(rows, labels, config)
        numbers[f"share_{case}"], arrays[f"spectrum_{case}"] = share, spectrum
    numbers["chance"] = config.leading / len(shuffled)
    return Measured(numbers, arrays, {"task": config.task})


def _spectrum(rows: Tensor, labels: Tensor, config: ShuffledLabels) -> tuple[float, np.ndarray]:
    """Share of the leading directions, and leading singular values and masses."""
    prepared = prepare_features(rows, bias=config.bias).features
    labels = labels.to(prepared.device)
    found = label_projections(prepared, labels, threshold=1e-3)
    sigma, mass = found.singular_values[:_SHOWN], found.mass[:_SHOWN, 0]
    padded = torch.full((2, _SHOWN), torch.nan)
    padded[:, : len(sigma)] = torch.stack([sigma, mass]).cpu()
    return float(top_share(prepared, labels, config.leading, rows="none")), padded.numpy()


def _uniform(case: str, runs: Results) -> Outcome:
    share, chance = runs[f"share_{case}"][0], runs["chance"][0]
    return decided(
        below("share on the top 5", share, 5 * chance, strict=False, possible=SHARE),
        five_times_chance=5 * chance,
    )


def draw(runs: Results) -> list[Panel]:
    """Singular values and label mass over the index, of the first run."""
    run = runs.first
    return [_panel(run, case, title) for case, title in _TITLES.items()]


def _panel(run: Result, case: str, title: str) -> Panel:
    sigma, mass = run.arrays[f"spectrum_{case}"]
    index = np.arange(1, len(sigma) + 1)
    kept = np.isfinite(sigma)
    marks = [
        Points("singular value", index[kept], sigma[kept]),
        Points("label mass", index[kept], np.maximum(mass[kept], 1e-6)),
    ]
    return Panel(f"Figure 2 ({case}), {title}", marks, "index", "value", log="y")


def _claims() -> tuple[Claim, ...]:
    texts = {
        "a": "more than half of the true labels' mass lies on the inputs' top 5 directions",
        "b": "shuffled labels put at most 5 times the chance share on the inputs' top 5 directions",
        "c": "the same for the last hidden layer before training",
        "d": "after training on the shuffled labels more than half of their mass lies on the last "
        "hidden layer's top 5 directions",
    }
    checks = {
        case: between({"share on the top 5": f"share_{case}"}, low=0.5, beside=["chance"])
        for case in "ad"
    }
    checks |= {case: partial(_uniform, case) for case in "bc"}
    return tuple(Claim(f"imani2022.fig2.{c}", text, checks[c]) for c, text in texts.items())


STUDY = Study(
    id="imani2022.fig2",
    title="Label mass by singular direction",
    shows=("Figure 2",),
    measure=measure,
    configs={
        "smoke": ShuffledLabels(train=60, training=Training(epochs=40)),
        "lite": ShuffledLabels(),
        "reduced": ShuffledLabels("mnist-pair", 10_000, Training(epochs=300)),
        "published": ShuffledLabels("mnist-pair", 10_000, Training(epochs=1000)),
    },
    claims=_claims(),
    draw=draw,
    stand_in={
        "lite": "8x8 digits 0 and 1 for MNIST's, 400 epochs",
    },
)
