"""Learning or memorising: networks with true and corrupted labels, and what the rule says of them.

.. code-block:: sh

    python -m theodolite_papers.calibration.memorising run chosen --runs 425 --seed 20 --workers 16
    python -m theodolite_papers.calibration.memorising run judged --runs 455 --seed 20 --workers 16
    python -m theodolite_papers.calibration.memorising table

A run trains one network on one task, with a share of the labels redrawn at random, until it fits:
at most 6,000 steps and 14 seconds, so that a slower machine may end some runs earlier. Runs that
diverged (2 and 3) have no row.

What it learns is the accuracy on test examples whose labels are corrupted in the same way: of the
fit (training accuracy beyond guessing) the share that carries over. Below a fifth the network has
memorised, above a half it has learned; a network that goes less than 70 % of the way from guessing
to all right has not fitted, and nothing is asked of it.
"""

import argparse
import csv
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from time import monotonic

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from theodolite.advice import FitEvidence, InputFinding, judge_inputs
from theodolite.measures.representation import neighbour_accuracy, probe_accuracy
from theodolite.sweeps import run_in_processes
from theodolite_papers.calibration.tasks import CHOSEN, JUDGED

__all__ = [
    "OUTCOMES",
    "RECORDS",
    "Outcome",
    "Trial",
    "confusion",
    "outcomes",
    "rule_answer",
    "run_trial",
    "trials",
]

RECORDS = Path(__file__).parents[3] / "records" / "calibration"
SETS = {"chosen": CHOSEN, "judged": JUDGED}
OUTCOMES = ("learned", "between", "memorised", "not fitted")
_ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "silu": nn.SiLU}
_PROBE = 2000  # examples at most, as in a survey


@dataclass(frozen=True)
class Trial:
    """One network on one task.

    Args:
        task: name in the set.
        noise: share of the labels that are redrawn.
        network: "dense", "conv", and where the rule is judged "residual" and "normalised" too.
        examples: in training.
        depth: hidden layers of a dense network.
        width: of the hidden layers.
        activation: after them.
        optimizer: "adam" or "sgd".
        rate: learning rate.
        decay: weight decay.
        scale: factor of the first layer's initial weights.
        batch: examples per step.
        patience: checks of the training accuracy that must be at least 0.995, every 50 steps.
        seed: of data, labels, weights and batches.
    """

    task: str
    noise: float
    network: str
    examples: int
    depth: int
    width: int
    activation: str
    optimizer: str
    rate: float
    decay: float
    scale: float
    batch: int
    patience: int
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What became of a trial: evidence, the rule's answer, and the truth."""

    kind: str
    accuracy: float
    test_accuracy: float
    chance: float
    examples: int
    input_size: int
    input_neighbours: float
    input_probe: float
    first_layer_neighbours: float
    carried_over: float
    outcome: str
    answer: str


def trials(name: str, runs: int, seed: int) -> list[Trial]:
    """Trials of a set, its tasks in turn, all else drawn."""
    rng, tasks = np.random.default_rng(seed), SETS[name]
    networks = ["dense"] if name == "chosen" else ["dense", "residual", "normalised"]
    drawn = []
    for index in range(runs):
        task = list(tasks)[index % len(tasks)]
        images = task.endswith(("mnist", "cifar10"))
        arithmetic = task in ("addition", "subtraction", "comparison")
        sgd = rng.random() < 0.33 and not arithmetic
        rates = (0.02, 0.1) if sgd else ((3e-3,) if arithmetic else (1e-3, 3e-3))
        drawn.append(
            Trial(
                task=task,
                noise=float(rng.choice([0, 0, 0.2, 0.5, 0.8, 1, 1])),
                network=str(rng.choice([*networks, *(["conv"] * images)])),
                examples=int(rng.choice(tasks[task].sizes)),
                depth=int(rng.choice([1, 2] if arithmetic else [1, 2, 3, 4])),
                width=int(rng.choice([64, 128, 256, 512])),
                activation=str(rng.choice(["relu", "relu", "tanh", "gelu"]))
                if name == "chosen"
                else str(rng.choice(["relu", "silu"])),
                optimizer="sgd" if sgd else "adam",
                rate=float(rng.choice(rates)),
                decay=float(rng.choice([0.3, 1.0] if arithmetic else [0, 0, 0.01, 0.3])),
                scale=float(rng.choice([1, 1, 1, 0.3, 3])),
                batch=10_000 if arithmetic else int(rng.choice([32, 128])),
                patience=200 if arithmetic else int(rng.choice([1, 4, 20])),
                seed=int(rng.integers(2**30)),
            )
        )
    return drawn


class _Residual(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.block(x)
        return out


def build(trial: Trial, shape: Sequence[int], classes: int) -> nn.Sequential:
    """The network as a chain of blocks; features are read after each."""
    activation, width = _ACTIVATIONS[trial.activation], trial.width
    blocks: list[nn.Module] = []
    inputs, depth = int(np.prod(shape)), trial.depth
    if trial.network == "conv":
        channels, size = max(8, width // 8), shape[1]
        for before, after in ((shape[0], channels), (channels, 2 * channels)):
            conv = nn.Conv2d(before, after, 3, padding=1)
            blocks.append(nn.Sequential(conv, activation(), nn.MaxPool2d(2)))
        inputs, depth = 2 * channels * (size // 4) ** 2, 1
    for index in range(depth):
        layers: list[nn.Module] = [nn.Flatten(), nn.Linear(inputs, width)]
        if trial.network == "normalised":
            layers.append(nn.LayerNorm(width))
        block = nn.Sequential(*layers, activation())
        residual = trial.network == "residual" and index > 0
        blocks.append(_Residual(block) if residual else block)
        inputs = width
    return nn.Sequential(*blocks, nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes)))


def _train(net: nn.Sequential, x: Tensor, y: Tensor, trial: Trial) -> None:
    generator = torch.Generator().manual_seed(trial.seed)
    with torch.no_grad():
        for parameter in net[0].parameters():
            parameter.mul_(trial.scale)
    if trial.optimizer == "adam":
        chosen: torch.optim.Optimizer = torch.optim.AdamW(
            net.parameters(), trial.rate, weight_decay=trial.decay
        )
    else:
        chosen = torch.optim.SGD(
            net.parameters(), trial.rate, momentum=0.9, weight_decay=0.01 * trial.decay
        )
    fitted, began = 0, monotonic()
    for step in range(1, 6001):
        rows = torch.arange(len(x))
        if trial.batch < len(x):
            rows = torch.randint(len(x), (trial.batch,), generator=generator)
        chosen.zero_grad()
        loss: Tensor = cross_entropy(net(x[rows]), y[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        chosen.step()
        if step % 50 == 0:
            fitted = fitted + 1 if _accuracy(net, x, y) >= 0.995 else 0
            if fitted >= trial.patience or monotonic() - began > 14:
                return


def _accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return (net(x).argmax(1) == y).double().mean().item()


def _corrupted(
    labels: np.ndarray, noise: float, classes: int, rng: np.random.Generator
) -> np.ndarray:
    redrawn = rng.random(len(labels)) < noise
    return np.where(redrawn, rng.integers(0, classes, len(labels)), labels)


def run_trial(trial: Trial, name: str) -> Outcome:
    """Train one network and collect what the rule asks for."""
    rng, task = np.random.default_rng(trial.seed), SETS[name][trial.task]
    split = task.split(trial.examples, rng)
    classes = int(max(split.y_train.max(), split.y_test.max())) + 1
    own = torch.tensor(_corrupted(split.y_train, trial.noise, classes, rng))
    others = torch.tensor(_corrupted(split.y_test, trial.noise, classes, rng))
    x, x_test = torch.tensor(split.x_train), torch.tensor(split.x_test)
    torch.manual_seed(trial.seed)
    net = build(trial, x.shape[1:], classes)
    _train(net, x, own, trial)
    net.eval()
    probe, labels = x[:_PROBE], own[:_PROBE]
    with torch.no_grad():
        first = net[0](probe).flatten(1)
    inputs = probe.flatten(1)
    evidence = FitEvidence(
        accuracy=_accuracy(net, probe, labels),
        chance=(own.bincount().max() / len(own)).item(),
        examples=len(probe),
        input_size=inputs.shape[1],
        input_neighbours=neighbour_accuracy(inputs, labels).item(),
        input_probe=probe_accuracy(inputs, labels).item(),
        first_layer_neighbours=neighbour_accuracy(first, labels).item(),
    )
    test = _accuracy(net, x_test, others)
    carried = evidence.share(test) if evidence.fit > 0 else float("nan")
    return Outcome(
        kind=task.kind,
        **asdict(evidence),
        test_accuracy=test,
        carried_over=carried,
        outcome=_outcome(evidence, carried),
        answer=rule_answer(evidence),
    )


def rule_answer(evidence: FitEvidence) -> str:
    """The answer that was calibrated: inputs that predict the fit, inputs at chance, or neither.

    The instrument says "undecided" for inputs at chance: a task may need the architecture.
    """
    return _ANSWERS.get(judge_inputs(evidence), "undecided")


_ANSWERS = {
    InputFinding.PREDICT: "learning",
    InputFinding.FIRST_LAYER_PREDICTS: "learning",
    InputFinding.AT_CHANCE: "memorising",
}
_RENAMED = {"input_readout": "input_probe"}  # column when the file was written -> now


def _outcome(evidence: FitEvidence, carried: float) -> str:
    if evidence.fit < 0.7 * (1 - evidence.chance):
        return "not fitted"
    return "learned" if carried > 0.5 else ("memorised" if carried < 0.2 else "between")


@dataclass(frozen=True)
class _Work:
    name: str

    def __call__(self, trial: Trial, _report: object) -> Outcome:
        return run_trial(trial, self.name)


def outcomes(name: str, folder: Path = RECORDS) -> list[Outcome]:
    """What was recorded of a set, with today's rule applied to the recorded evidence."""
    types = {field.name: field.type for field in fields(Outcome)}
    evidence_names = [field.name for field in fields(FitEvidence)]
    found = []
    with gzip.open(folder / f"{name}.csv.gz", "rt", newline="") as file:
        for row in csv.DictReader(file):
            cells = {_RENAMED.get(key, key): text for key, text in row.items()}
            values = {key: types[key](cells[key]) for key in types}  # type: ignore[operator]
            evidence = FitEvidence(**{key: values[key] for key in evidence_names})
            values["answer"] = rule_answer(evidence)
            values["outcome"] = _outcome(evidence, values["carried_over"])
            found.append(Outcome(**values))
    return found


def confusion(found: Sequence[Outcome]) -> dict[str, dict[str, int]]:
    """Outcome -> answer -> number of runs."""
    answers = ("learning", "memorising", "undecided")
    return {
        outcome: {
            answer: sum(o.outcome == outcome and o.answer == answer for o in found)
            for answer in answers
        }
        for outcome in OUTCOMES
    }


def _table() -> Iterator[str]:
    for name in SETS:
        found = outcomes(name)
        yield f"\n{name}: {len(found)} runs\n"
        yield "| what the network did | called learning | called memorising | no verdict |"
        yield "|---|---|---|---|"
        for outcome, row in confusion(found).items():
            yield f"| {outcome} | " + " | ".join(map(str, row.values())) + " |"
        for kind in sorted({o.kind for o in found}):
            counts = confusion([o for o in found if o.kind == kind])
            yield f"{kind}: {counts}"


def main() -> None:
    """Run trials of a set, or print what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("action", choices=["run", "table"])
    parser.add_argument("name", nargs="?", choices=list(SETS), default="judged")
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=RECORDS)
    asked = parser.parse_args()
    if asked.action == "table":
        print("\n".join(_table()))  # noqa: T201
        return
    asked.folder.mkdir(parents=True, exist_ok=True)
    names = [field.name for field in (*fields(Trial), *fields(Outcome))]
    with gzip.open(asked.folder / f"{asked.name}.csv.gz", "wt", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(names)))
        writer.writeheader()

        def keep(trial: Trial, outcome: Outcome) -> None:
            row = {**asdict(trial), **asdict(outcome)}
            rounded = {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()}
            writer.writerow(rounded)
            file.flush()

        failures = run_in_processes(
            _Work(asked.name),
            trials(asked.name, asked.runs, asked.seed),
            keep,
            workers=asked.workers,
            report=lambda _share, _text: None,
        )
    for failure in failures:
        print(failure.job, failure.reason)  # noqa: T201


if __name__ == "__main__":
    main()
