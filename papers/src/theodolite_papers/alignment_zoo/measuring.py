"""One network: training, checkpoints, a survey of every family, and fine-tuning on other tasks."""

import re
from collections.abc import Iterator
from dataclasses import asdict
from math import nan
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import theodolite as th
from theodolite.measures.representation import neighbour_accuracy, probe_accuracy
from theodolite_papers.alignment_zoo.baselines import baselines, gradient_noise
from theodolite_papers.alignment_zoo.data import KINDS, Task, images, task_of
from theodolite_papers.alignment_zoo.design import HELD_OUT_DATA, Network
from theodolite_papers.alignment_zoo.models import blocks_of, build, fresh_head
from theodolite_papers.alignment_zoo.training import (
    LEVELS_OF_LOSS,
    LIMIT,
    TrainedNetwork,
    evaluate,
    moments,
    train,
)

__all__ = ["Measured", "measure_network", "measured_layers"]

PROBE = 128
_TANGENT_PAIRS = 900  # examples times outputs of a tangent kernel
_DENSE = 96  # examples of a checkpoint
_TARGET = 200  # examples for fine-tuning on another task
_FINE_TUNING = 120  # steps
_FAMILIES = ("representation", "kernel", "tangent", "gradient")

Row = dict[str, Any]
Measured = dict[str, list[Row]]  # table -> rows


def measure_network(network: Network, limit: int = LIMIT) -> Measured:
    """Rows of all four tables: networks, measurements, curves, transfers.

    Args:
        network: its factors.
        limit: training steps at most.
    """
    began = process_time()
    task = task_of(network)
    model = build(network, task.x.shape[1:], task.classes, task.tokens)
    run = train(network, model, task, limit)
    trained = process_time()
    first = run.checkpoints[0].weights
    measurements, known = [], dict[int, list[Row]]()
    for moment, checkpoint in moments(run, task.classes, limit).items():
        if checkpoint.step not in known:  # two moments may be the same checkpoint
            model.load_state_dict(checkpoint.weights)
            known[checkpoint.step] = list(_moment(network, model, task, first))
        place = {"network": network.name, "moment": moment, "step": checkpoint.step}
        measurements += [{**place, **row} for row in known[checkpoint.step]]
    curves = [
        {"network": network.name, "step": checkpoint.step, **checkpoint.values, **extra}
        for checkpoint, extra in zip(run.checkpoints, _curves(network, run, task), strict=True)
    ]
    model.load_state_dict(run.checkpoints[-1].weights)
    measured = process_time()
    transfers = list(_transfers(network, run, task)) if _carried(network) else []
    seconds = {
        "seconds_training": trained - began,
        "seconds_measuring": measured - trained,
        "seconds_transfer": process_time() - measured,
    }
    row = {
        **_described(network, model, task),
        **_outcome(run, task),
        **_evidence(run, task),
        **seconds,
    }
    return {
        "networks": [row],
        "measurements": measurements,
        "curves": curves,
        "transfers": transfers,
    }


def _moment(
    network: Network, model: nn.Module, task: Task, first: dict[str, Tensor]
) -> Iterator[Row]:
    """Rows of all families on both probes, and of the baselines."""
    for probe, data in _probes(task).items():
        for row in measured_layers(model, data, task.classes):
            yield {"probe": probe, **row}
    for measure, value in baselines(network, model, task, first).items():
        row = {"layer": -1, "depth": nan, "family": "baseline", "measure": measure}
        yield {"probe": "train", **row, "value": value}


def _probes(task: Task) -> dict[str, tuple[Tensor, Tensor]]:
    """Training examples with labels as given; test examples with true labels."""
    count = 2 * PROBE
    return {
        "train": (task.x[:count], task.y[:count]),
        "held_out": (task.x_test[:count], task.y_test[:count]),
    }


def measured_layers(model: nn.Module, data: tuple[Tensor, Tensor], classes: int) -> Iterator[Row]:
    """Every row of a survey, with the number of its block; covariances from its first matrix.

    Args:
        model: one of :func:`~theodolite_papers.alignment_zoo.models.build`.
        data: inputs and labels.
        classes: outputs.
    """
    blocks = blocks_of(model)
    tangent = min(PROBE, _TANGENT_PAIRS // classes)
    sizes = {**dict.fromkeys((*_FAMILIES, "pairs"), PROBE), "tangent": tangent}
    as_ever: dict[str, Any] = {"seconds": None, "pool": "flatten"}
    main = th.survey(model, data, families=_FAMILIES, layers=blocks, sizes=sizes, **as_ever)
    weights = th.survey(model, data, families="covariance", **as_ever)
    seen = set()
    for found in (main, weights):
        for row in found.to_frame().to_dict("records"):
            if row["layer"] == "input":
                continue
            layer = _block(row["layer"], blocks)
            if (layer, row["family"], row["measure"]) in seen:
                continue
            seen.add((layer, row["family"], row["measure"]))
            yield {
                "layer": layer,
                "depth": nan if layer < 0 else layer / (len(blocks) - 1),
                **{key: row[key] for key in ("family", "measure", "value", "null_mean", "null_sd")},
            }


def _block(layer: Any, blocks: list[str]) -> int:
    """Number of the block that is or contains a layer; -1 for rows of the whole model."""
    if not isinstance(layer, str) or not layer:
        return -1
    return blocks.index(re.match(r"head|blocks\.\d+", layer).group())  # type: ignore[union-attr]


_CHEAP = {
    "kernel": ("cka_target",),
    "gradient": ("feature_omega_contrast", "omega_contrast"),
    "representation": ("neighbour_accuracy", "probe_accuracy", "alignment_area"),
}


def _curves(network: Network, run: TrainedNetwork, task: Task) -> Iterator[dict[str, float]]:
    """Gradients of mini-batches and alignment of the outer hidden blocks, at every checkpoint."""
    model = run.model
    blocks = blocks_of(model)
    ends = {"first": blocks[0], "last": blocks[-2]}
    probe = task.x[:_DENSE], task.y[:_DENSE]
    sizes = {**dict.fromkeys(_CHEAP, _DENSE), "pairs": 0}
    options = {"details": False, "pool": "flatten"}
    for checkpoint in run.checkpoints:
        model.load_state_dict(checkpoint.weights)
        generator = torch.Generator().manual_seed(network.seed)
        noise = gradient_noise(model, task, generator)
        found = th.survey(
            model, probe, families=tuple(_CHEAP), layers=[*{*ends.values()}], sizes=sizes,
            permutations=0, seconds=None, options=options,
        ).to_frame()  # fmt: skip
        values = found.set_index(["layer", "measure"])["value"]
        yield {
            "gradient_disparity": noise["gradient_disparity"],
            "gradient_noise_scale": noise["gradient_noise_scale"],
            **{
                f"{measure}_{end}": float(values.get((layer, measure), nan))
                for measures in _CHEAP.values()
                for measure in measures
                for end, layer in ends.items()
            },
        }


def _described(network: Network, model: nn.Module, task: Task) -> Row:
    factors = asdict(network)
    for name in ("member", "rate_level", "decay_level"):
        factors.pop(name)
    return {
        "network": network.name,
        **factors,
        "rate": network.rate,
        "rate_level": network.rate_level,
        "decay": network.decay,
        "decay_level": network.decay_level,
        "kind": KINDS[network.data],
        "classes": task.classes,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def _outcome(run: TrainedNetwork, task: Task) -> Row:
    """The outcomes of a network, by which measures are judged."""
    last = run.checkpoints[-1].values
    best = max(run.checkpoints, key=lambda checkpoint: checkpoint.values["test_accuracy"])
    loss_as_given, as_given, _ = evaluate(run.model, task.x_test, task.y_test_noisy)
    chance = (task.y.bincount().max() / len(task.y)).item()
    fit = last["train_accuracy"] - chance
    carried = (as_given - chance) / fit if fit > 0 else nan
    if not run.finite:
        outcome = "diverged"
    elif fit < 0.7 * (1 - chance):
        outcome = "not fitted"
    else:
        outcome = "learned" if carried > 0.5 else ("memorised" if carried < 0.2 else "between")
    kept = {name: value for name, value in last.items() if name != "prediction_changes"}
    return {
        "steps": run.steps,
        "reached": run.reached,
        "finite": run.finite,
        **kept,
        "test_loss_as_given": loss_as_given,
        "gap": last["train_accuracy"] - as_given,
        "gap_loss": loss_as_given - last["train_loss"],
        "chance": chance,
        "carried_over": carried,
        "outcome": outcome,
        "best_test_accuracy": best.values["test_accuracy"],
        "best_step": best.step,
        **{
            f"steps_to_{level}": run.steps_to(level / 100, task.classes) for level in LEVELS_OF_LOSS
        },
    }


def _evidence(run: TrainedNetwork, task: Task) -> Row:
    """The arguments of ``theodolite.advice.judge_inputs``, from training examples only."""
    x, labels = task.x, task.y
    with torch.no_grad():
        first = run.model.blocks[0](x).flatten(1)  # type: ignore[index, operator]
    inputs = x.flatten(1)
    return {
        "fit_accuracy": run.checkpoints[-1].values["train_accuracy"],
        "fit_examples": len(x),
        "input_size": inputs.shape[1],
        "input_neighbours": neighbour_accuracy(inputs, labels).item(),
        "input_probe": probe_accuracy(inputs, labels).item(),
        "first_layer_neighbours": neighbour_accuracy(first, labels).item(),
    }


def _carried(network: Network) -> bool:
    """Whether the network is fine-tuned on other sets: a third of those trained on images."""
    return KINDS[network.data] == "image" and network.member % 3 == 0


def _transfers(network: Network, run: TrainedNetwork, task: Task) -> Iterator[Row]:
    """Forecasts of fine-tuning on two other sets, and the accuracies that fine-tuning reaches.

    The pilot half uses only sets of the pilot half.
    """
    known = [name for name in KINDS if KINDS[name] == "image" and name != network.data]
    if network.half == "pilot":
        known = [name for name in known if name not in HELD_OUT_DATA]
    else:
        known.sort(key=lambda name: name not in HELD_OUT_DATA)
    for target in known[:2]:
        inputs, labels = images(target)
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(network.seed))
        rows, others = order[:_TARGET], order[_TARGET : _TARGET + 500]
        x, y = torch.tensor(inputs).float(), torch.tensor(labels).long()
        data, test = (x[rows], y[rows]), (x[others], y[others])
        found = th.transfer({"source": run.model}, data, tangent_examples=100)
        (row,) = found.to_frame().to_dict("records")
        truth = _frozen(run.model, data, test)
        for name, weights in (
            ("fine_tuned", run.checkpoints[-1].weights),
            ("scratch", run.checkpoints[0].weights),
        ):
            model = build(network, task.x.shape[1:], task.classes, task.tokens)
            model.load_state_dict(weights)
            fresh_head(model, 10)
            truth[f"{name}_accuracy"] = _tuned(model, data, test, network.seed)
        yield {
            "network": network.name,
            "target": target,
            **{key: row[key] for key in _SCORES},
            **truth,
        }


_SCORES = (
    "forecast", "low", "high", "features_error", "features_accuracy", "tangent_error",
    "tangent_accuracy", "tangent_share", "best_layer", "best_layer_accuracy",
)  # fmt: skip


def _frozen(
    model: nn.Module, data: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]
) -> dict[str, float]:
    """Test accuracy of a linear probe of frozen features; leave-one-out accuracy of neighbours."""
    from sklearn.linear_model import RidgeClassifierCV

    with torch.no_grad():
        features, others = (
            model.end(model.blocks(x)).flatten(1)  # type: ignore[operator]
            for x in (data[0], test[0])
        )
    spread = features.std() + 1e-12
    probe = RidgeClassifierCV([10.0**power for power in range(-3, 4)])
    probe.fit((features / spread).numpy(), data[1].numpy())
    return {
        "neighbour_accuracy": neighbour_accuracy(features, data[1]).item(),
        "frozen_accuracy": float(probe.score((others / spread).numpy(), test[1].numpy())),
    }


def _tuned(
    model: nn.Module, data: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], seed: int
) -> float:
    """Test accuracy after fine-tuning all weights."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.optim.AdamW(model.parameters(), 2e-3, fused=True)
    model.train()
    for _ in range(_FINE_TUNING):
        rows = torch.randint(len(data[0]), (64,), generator=generator)
        chosen.zero_grad()
        loss = cross_entropy(model(data[0][rows]), data[1][rows])
        loss.backward()  # type: ignore[no-untyped-call]
        chosen.step()
    return evaluate(model, *test)[1]
