"""Learning or memorising: which evidence tells true from shuffled labels, and how often."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from theodolite.data import shuffled_labels
from theodolite.interventions import initialize_
from theodolite.sweeps import Space
from theodolite_papers.lab.data import balanced_rows, corrupted_labels
from theodolite_papers.lab.models import mlp
from theodolite_papers.lab.training import Recipe, Stop, evaluate, train
from theodolite_papers.ledger import Claim, Judgment, Measured, Results, Study, Trial, judge
from theodolite_papers.mehta2021._evidence import evidence
from theodolite_papers.mehta2021._sets import standardized_set
from theodolite_papers.mehta2021._verdicts import RULES, confusion, draw, table_numbers

__all__ = ["STUDY", "Labelings"]


@dataclass(frozen=True)
class Labelings:
    """Networks trained on the same images with true, half corrupted and shuffled labels.

    Args:
        data: see ``standardized_set``.
        network: "mlp" (two hidden layers) or "cnn" (two convolutions and a dense layer).
        examples: in training, equally many of each true class.
        width: of the hidden layers.
        rate: learning rate, with momentum 0.9.
        batch_size: examples per step.
        epochs: at most so many; a run ends when its training set is learnt.
    """

    data: str = "digits"
    network: str = "mlp"
    examples: int = 500
    width: int = 128
    rate: float = 0.02
    batch_size: int = 50
    epochs: int = 150


def build(
    config: Labelings, shape: tuple[int, ...], num_classes: int, generator: torch.Generator
) -> tuple[nn.Module, list[str]]:
    """A network, and its layers with weights in order."""
    if config.network == "mlp":
        inputs = int(torch.Size(shape).numel())
        sizes = [inputs, config.width, config.width, num_classes]
        return mlp(sizes, generator=generator), ["fc1", "fc2", "fc3"]
    channels, height, width = shape
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(channels, 16, 3, padding=1),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(16, 32, 3, padding=1),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(32 * (height // 4) * (width // 4), config.width),
        relu3=nn.ReLU(),
        fc2=nn.Linear(config.width, num_classes),
    )
    net = nn.Sequential(layers)
    initialize_(net, "he", 1.0, generator)
    return net, ["conv1", "conv2", "fc1", "fc2"]


def labelings(labels: Tensor, generator: torch.Generator) -> Mapping[str, Tensor]:
    """The labels as they are, with half of them redrawn, and shuffled."""
    half = corrupted_labels(labels, 0.5, generator=generator).labels
    return {"true": labels, "half": half, "shuffled": shuffled_labels(labels, generator)}


def measure(config: Labelings, trial: Trial) -> Measured:
    """Evidence and accuracies of the three networks."""
    data = standardized_set(config.data, trial.generator())
    rows = balanced_rows(data.y_train, config.examples, generator=trial.generator(1))
    data = data.take(rows)
    inputs, truth = data.x_train.to(trial.device), data.y_train
    numbers: dict[str, float] = {}
    for kind, labels in labelings(truth, trial.generator(3)).items():
        net, layers = build(config, data.shape, data.num_classes, trial.generator(2))
        net = net.to(trial.device)
        recipe = Recipe(
            optimizer="momentum",
            learning_rate=config.rate,
            batch_size=config.batch_size,
            epochs=config.epochs,
            stop=Stop(accuracy=1.0),
            seed=trial.seed,
            log="ends",
        )
        log = train(net, (inputs, labels), recipe)
        net.eval()
        found = evidence(net, (inputs, labels), truth, layers, trial.generator(4))
        test = evaluate(
            net, data.x_test.to(trial.device), data.y_test.to(trial.device), recipe.loss
        )
        found |= {"train": log.final.train.accuracy, "test": test.accuracy}
        numbers |= {f"{kind}_{name}": float(f"{value:.5g}") for name, value in found.items()}
        trial.report(len(numbers) / 78, kind)
    return Measured(numbers)


def _errors(rule: str, most: float = 0.05) -> Callable[[Results], Judgment]:
    def check(runs: Results) -> Judgment:
        table = confusion(runs, rule)
        return judge(None if not table.runs else table.error <= most, **table_numbers(table))

    return check


_ID = "mehta2021.memorisation"
_SETTINGS = Space({"data": ["digits", "fashion14", "cifar16"], "network": ["mlp", "cnn"]})
_HELD_OUT = "of the held-out runs (digits with a CNN, Fashion-MNIST and CIFAR-10 with both)"

_CLAIMS = tuple(
    Claim(
        f"{_ID}.{name}",
        f"{rule.text} tells true from shuffled labels: wrong on at most 5 % {_HELD_OUT}, with the "
        f"threshold {rule.threshold:g} from fully connected nets on digits",
        _errors(name),
        scope="all",
        fragile=rule.fragile,
    )
    for name, rule in RULES.items()
)

STUDY = Study(
    id=_ID,
    title="Learning or memorising: evidence validated on runs with true and shuffled labels",
    shows=("Learning or memorising",),
    measure=measure,
    configs={
        "smoke": Labelings(examples=100, width=16, epochs=2),
        "lite": Labelings(),
        "paper": Labelings(examples=1000, width=512, epochs=300),
    },
    spaces={
        "smoke": Space({"data": ["digits"], "network": ["mlp", "cnn"]}),
        "lite": _SETTINGS,
        "paper": _SETTINGS,
    },
    claims=_CLAIMS,
    draw=draw,
    stand_in={
        "lite": "500 training examples of 8x8 digits, Fashion-MNIST shrunk to 14x14 and CIFAR-10 "
        "shrunk to 16x16; thresholds lie halfway (geometric mean; arithmetic where values may be "
        "negative) between the nearest true and shuffled runs of fully connected nets on digits, "
        "seeds 0 to 9; which evidence to judge was settled after a look at seeds 0 and 1 of the "
        "other settings, none of which is judged"
    },
    not_run={"paper": "not an experiment of the paper; the small size validates it"},
)
