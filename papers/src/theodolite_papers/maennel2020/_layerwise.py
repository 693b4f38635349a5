"""Tables 1 to 7: the rules by which the first layers are set, and the accuracies that follow."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from theodolite.errors import UnknownNameError
from theodolite.interventions import (
    covariance_init_,
    eigenvector_init_,
    layer_norms,
    rescale_to_,
    transfer_layers_,
)
from theodolite_papers.lab.data import random_labels
from theodolite_papers.lab.models import simple_cnn_pooled
from theodolite_papers.lab.training import Recipe, train
from theodolite_papers.ledger import Trial
from theodolite_papers.maennel2020._images import Images, draw_images

__all__ = ["RULES", "LayerByLayer", "Workshop"]

RULES = ("f1", "f2", "f3", "sampled", "smallest", "middle", "pretrained")  # tables 1 to 7
_LAYERS = ("conv1", "conv2", "conv3")
_CLASSES = 10


@dataclass(frozen=True)
class LayerByLayer:
    """Size of the experiment.

    Args:
        images: what is trained on.
        examples: for training.
        test_examples: of the test split.
        random_examples: for pre-training on random labels (table 7), disjoint from the others.
        random_steps: of that pre-training.
        random_rate: its first learning rate, divided by 3 after each third.
        filters: of each convolution.
        units: of the dense layer.
        learning_rate: of all runs that are compared.
        batch_size: of all runs.
        marks: steps after which accuracies are read.
        middle: first eigenvector of table 6 in each layer, counted from 1.
    """

    images: Images = field(default_factory=Images)
    examples: int = 20_000
    test_examples: int = 10_000
    random_examples: int = 30_000
    random_steps: int = 5_850
    random_rate: float = 0.01
    filters: int = 16
    units: int = 512
    learning_rate: float = 0.002
    batch_size: int = 256
    marks: tuple[int, int] = (100, 1000)
    middle: tuple[int, int, int] = (4, 10, 10)


class Workshop:
    """Data of one seed, and networks whose first layers are set by a rule."""

    def __init__(self, config: LayerByLayer, trial: Trial) -> None:
        self._config, self._trial = config, trial
        sizes = config.random_examples, config.examples
        drawn = draw_images(config.images, trial.generator(0), *sizes, test=config.test_examples)
        (images, _), self.data, self.test = drawn
        labels = random_labels(sizes[0], _CLASSES, trial.generator(1))
        self._source = self.fresh()
        self._norms = layer_norms(self._source)
        recipe = Recipe(
            optimizer="momentum",
            learning_rate=config.random_rate,
            batch_size=config.batch_size,
            steps=config.random_steps,
            schedule="thirds",
            drop_last=True,
            seed=trial.seed,
            log="ends",
        )
        log = train(self._source, (images, labels), recipe)
        self.random_accuracy = log.final.train.accuracy

    def fresh(self) -> nn.Module:
        """The standard start; the same for every rule."""
        config = self._config
        shape = tuple(self.data[0].shape[1:])
        network = simple_cnn_pooled(
            _CLASSES,
            filters=config.filters,
            units=config.units,
            input_shape=(shape[0], shape[1], shape[2]),
            generator=self._trial.generator(2),
        )
        return network.to(self._trial.device)

    def started(self, rule: str, depth: int) -> nn.Module:
        """The standard start with its first ``depth`` layers set by a rule."""
        model = self.fresh()
        layers = _LAYERS[:depth]
        if depth == 0:
            return model
        if rule == "pretrained":
            transfer_layers_(model, self._source, depth)
            return rescale_to_(model, self._norms, layers=list(layers))
        data = self.data[0][:5000].to(self._trial.device)
        generator = self._trial.generator(3)
        if rule == "sampled":
            return covariance_init_(model, data, layers, generator=generator)
        options = _options(rule, self._config.middle)
        return eigenvector_init_(model, data, layers, generator=generator, **options)

    def accuracies(self, model: nn.Module) -> list[list[float]]:
        """Training and test accuracy at the marks: (marks, sets)."""
        config = self._config
        first, last = config.marks
        recipe = Recipe(
            optimizer="momentum",
            learning_rate=config.learning_rate,
            batch_size=config.batch_size,
            steps=last,
            drop_last=True,
            seed=self._trial.seed + 1,
            log=first,
        )
        log = train(model, self.data, recipe, test=self.test)
        found = {entry.step: entry for entry in log.entries}
        return [
            [found[mark].train.accuracy, found[mark].test.accuracy]  # type: ignore[union-attr]
            for mark in (first, last)
        ]


def _options(rule: str, middle: Sequence[int]) -> dict[str, Any]:
    """Arguments of ``eigenvector_init_``."""
    if rule in ("f1", "f2", "f3"):
        return {"tau": rule}
    if rule == "smallest":
        return {"select": "smallest"}
    if rule == "middle":
        return {"first": dict(zip(_LAYERS, middle, strict=True))}
    raise UnknownNameError("rule", rule, RULES)
