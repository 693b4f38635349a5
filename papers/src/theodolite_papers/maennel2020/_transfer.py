"""Transfer from random labels: images, networks, pre-training, fine-tuning, activations."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from theodolite.data import (
    Dataset,
    digits,
    disjoint_rows,
    load_image_folder,
    symmetric_range,
)
from theodolite.engine import feature_chunks
from theodolite.errors import UnknownNameError
from theodolite.interventions import Initializer
from theodolite_papers.lab.data import (
    IMAGE_SETS,
    average_pooled,
    central_crop,
    data_folder,
    load_image_set,
    random_labels,
)
from theodolite_papers.lab.models import resnet18_v2, simple_cnn, transfer_layers_, vgg16
from theodolite_papers.lab.training import (
    Callback,
    Recipe,
    TrainingLog,
    TrainingState,
    area_under_curve,
    steps_per_epoch,
    train,
)
from theodolite_papers.ledger import Trial
from theodolite_papers.maennel2020.formulas.activation import (
    ActivationFractions,
    activation_fractions,
    activation_histogram,
    merge_activation_fractions,
)
from theodolite_papers.maennel2020.formulas.rescaling import layer_norms, rescale_to_

__all__ = [
    "CHANCE",
    "LABELS",
    "AccuracyCurves",
    "ActivationWatch",
    "Images",
    "Labeled",
    "Network",
    "Protocol",
    "Stage",
    "StartComparison",
    "Transfer",
    "draw_images",
    "first_images",
    "fractions_of",
    "halves",
    "histograms_of",
    "left_chance",
    "relu_layers",
]

Labeled = tuple[Tensor, Tensor]  # images in [-1, 1], labels


@dataclass(frozen=True)
class Images:
    """The images, and how they are prepared.

    Args:
        name: ``"cifar10"``, another named set, ``"digits"``, or a folder of images beside them
            (``"imagenet"``), from which the central square is cut.
        crop: side of the central square that is kept; 0 keeps all.
        pool: images are averaged over squares of so many pixels.
        side: to which images of a folder are resized.
    """

    name: str = "cifar10"
    crop: int = 0
    pool: int = 1
    side: int = 224

    def prepared(self, pixels: Tensor, peak: int) -> Tensor:
        """Raw pixels as inputs of the networks."""
        images = symmetric_range(pixels, peak)
        images = central_crop(images, self.crop) if self.crop else images
        return average_pooled(images, self.pool) if self.pool > 1 else images


def draw_images(
    images: Images, generator: torch.Generator, *sizes: int, test: int = 0
) -> list[Labeled]:
    """Disjoint random samples of the training split, then the first ``test`` test images."""
    raw = _raw(images.name, images.side)
    peak = raw.peak or 255
    rows = disjoint_rows(len(raw.x_train), *sizes, generator=generator)
    samples = [(images.prepared(raw.x_train[r], peak), raw.y_train[r]) for r in rows]
    if test:
        samples.append((images.prepared(raw.x_test[:test], peak), raw.y_test[:test]))
    return samples


def first_images(images: Images, count: int) -> Labeled:
    """The first images of the training split; the order of a named set is that of its files."""
    raw = _raw(images.name, images.side)
    return images.prepared(raw.x_train[:count], raw.peak or 255), raw.y_train[:count]


@lru_cache(maxsize=1)
def _raw(name: str, side: int) -> Dataset:
    """Pixels as bytes, read once per process."""
    if name == "digits":
        return digits()
    if name in IMAGE_SETS:
        return load_image_set(name)
    return load_image_folder(data_folder() / name, size=side)


def halves(images: Images, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """First and second half of all images in their order; ``count`` random ones of each, or all."""
    raw = _raw(images.name, images.side)
    pixels = torch.cat([raw.x_train, raw.x_test])
    middle = len(pixels) // 2
    parts = []
    for half in (pixels[:middle], pixels[middle : 2 * middle]):
        chosen = half[torch.randperm(middle, generator=generator)[:count]] if count else half
        parts.append(images.prepared(chosen, raw.peak or 255))
    return parts[0], parts[1]


CHANCE = 0.15  # of ten classes, with room


@dataclass(frozen=True)
class AccuracyCurves:
    """Accuracies over the steps of a fine-tuning."""

    steps: np.ndarray
    train: np.ndarray
    test: np.ndarray

    @property
    def auc(self) -> float:
        """Area under the curve of training accuracy, divided by its length."""
        return _area(self.steps, self.train)

    @property
    def test_auc(self) -> float:
        """The same for test accuracy."""
        return _area(self.steps, self.test)


def _area(steps: np.ndarray, values: np.ndarray) -> float:
    return float(area_under_curve(torch.tensor(steps), torch.tensor(values)))


@dataclass(frozen=True)
class StartComparison:
    """Training from scratch, and fine-tuning of all transferred layers.

    Args:
        scratch: course from fresh weights.
        transferred: course from the pre-trained ones.
        model: the network at the end of the latter.
    """

    scratch: AccuracyCurves
    transferred: AccuracyCurves
    model: nn.Module

    @property
    def gain(self) -> float:
        """Increase of the area under the training curve by pre-training."""
        return self.transferred.auc - self.scratch.auc

    @property
    def test_gain(self) -> float:
        """Increase of the final test accuracy by pre-training."""
        return float(self.transferred.test[-1] - self.scratch.test[-1])


def left_chance(*curves: np.ndarray) -> bool:
    """Whether training accuracy ends above chance in at least one of the curves.

    Areas under curves that stay at chance differ only by noise.
    """
    return max(float(curve[-1]) for curve in curves) > CHANCE


Labels = Literal["real", "random"]
LABELS: tuple[Labels, ...] = ("real", "random")
_CLASSES = 10  # of downstream labels
_POINTS, _FEW_POINTS = 25, 12  # of a curve; fewer where evaluating takes long
_LONG = 5_000


@dataclass(frozen=True)
class Network:
    """An architecture of the paper and how its weights are drawn.

    Args:
        architecture: ``"simple_cnn"``, ``"vgg16"`` or ``"resnet18_v2"``.
        conv_layers: of the Simple CNN.
        filters: of the Simple CNN.
        units: of the Simple CNN's dense layer.
        padding: of the Simple CNN.
        width: factor of VGG16's channels.
        initializer: distribution of the weights.
        init_scale: factor of their standard deviation.
        first_scale: factor of the first layer alone, on top; 1 in the paper.
    """

    architecture: str = "simple_cnn"
    conv_layers: int = 3
    filters: int = 16
    units: int = 512
    padding: Literal["same", "valid"] = "same"
    width: float = 1.0
    initializer: Initializer = "he"
    init_scale: float = 1.0
    first_scale: float = 1.0

    def build(self, classes: int, shape: tuple[int, ...], generator: torch.Generator) -> nn.Module:
        """A fresh network for images of this shape."""
        model = self._drawn(classes, shape, generator)
        if self.first_scale != 1.0:
            with torch.no_grad():
                model.get_parameter("conv1.weight").mul_(self.first_scale)
        return model

    def _drawn(self, classes: int, shape: tuple[int, ...], generator: torch.Generator) -> nn.Module:
        channels, height, width = shape
        drawn: dict[str, Any] = {
            "initializer": self.initializer,
            "scale": self.init_scale,
            "generator": generator,
        }
        if self.architecture == "simple_cnn":
            return simple_cnn(
                classes,
                conv_layers=self.conv_layers,
                filters=self.filters,
                units=self.units,
                padding=self.padding,
                input_shape=(channels, height, width),
                **drawn,
            )
        if self.architecture == "vgg16":
            return vgg16(classes, in_channels=channels, width=self.width, **drawn)
        if self.architecture == "resnet18_v2":
            return resnet18_v2(classes, in_channels=channels, **drawn)
        known = ("simple_cnn", "vgg16", "resnet18_v2")
        raise UnknownNameError("architecture", self.architecture, known)


@dataclass(frozen=True)
class Stage:
    """One of the two trainings: number of examples, of classes and of steps."""

    examples: int
    classes: int = _CLASSES
    epochs: int | None = None
    steps: int | None = None


@dataclass(frozen=True)
class Transfer:
    """A transfer experiment.

    Args:
        network: what is trained.
        upstream: pre-training on random labels.
        downstream: fine-tuning on other examples.
        learning_rate: first rate of both.
        batch_size: of both.
        images: what they are trained on.
        test_examples: how many test images are evaluated.
        rescale: whether copied layers get the norms of the initialisation; not in residual
            networks.
    """

    network: Network = field(default_factory=Network)
    upstream: Stage = field(default_factory=lambda: Stage(20_000, epochs=80))
    downstream: Stage = field(default_factory=lambda: Stage(25_000, epochs=200))
    learning_rate: float = 0.01
    batch_size: int = 256
    images: Images = field(default_factory=Images)
    test_examples: int = 10_000
    rescale: bool = True

    def recipe(self, stage: Stage, seed: int, points: int | None = None) -> Recipe:
        """The paper's recipe: momentum, rate divided by 3 after each third, whole batches."""
        per_epoch = steps_per_epoch(stage.examples, self.batch_size, drop_last=True)
        total = stage.steps or (stage.epochs or 1) * per_epoch
        few = _FEW_POINTS if stage.examples > _LONG else _POINTS
        return Recipe(
            optimizer="momentum",
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            steps=total,
            schedule="thirds",
            drop_last=True,
            seed=seed,
            log=max(1, total // (points or few)),
        )


class Protocol:
    """Data and networks of one transfer experiment, with the same random draws for all networks."""

    def __init__(self, setting: Transfer, trial: Trial) -> None:
        self.setting, self._trial = setting, trial
        sizes = setting.upstream.examples, setting.downstream.examples
        drawn = draw_images(setting.images, trial.generator(0), *sizes, test=setting.test_examples)
        (upstream, _), self.downstream, self.test = drawn
        labels = random_labels(sizes[0], setting.upstream.classes, trial.generator(1))
        self.upstream: Labeled = (upstream, labels)
        self._random = random_labels(sizes[1], setting.downstream.classes, trial.generator(2))
        self.initial: nn.Module = self._fresh(setting.upstream.classes, 3)
        self.norms = layer_norms(self.initial)

    @property
    def _shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return tuple(self.upstream[0].shape[1:])

    def _fresh(self, classes: int, stream: int) -> nn.Module:
        generator, network = self._trial.generator(stream), self.setting.network
        model = network.build(classes, self._shape, generator).to(self._trial.device)
        if network.architecture == "vgg16" and self._trial.device.type == "cuda":
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model

    @cached_property
    def pretrained(self) -> nn.Module:
        """The network after pre-training on random labels."""
        model = self._fresh(self.setting.upstream.classes, 3)
        self.upstream_log = self.pretrain(model)
        return model

    def another(self, number: int) -> nn.Module:
        """A fresh network with other initial weights, to be pre-trained as well."""
        return self._fresh(self.setting.upstream.classes, 100 + number)

    def pretrain(self, model: nn.Module, callbacks: Sequence[Callback] = ()) -> TrainingLog:
        """Fit random labels, in place."""
        recipe = self.setting.recipe(self.setting.upstream, self._trial.seed, points=4)
        return train(model, self.upstream, recipe, callbacks=callbacks)

    def scratch(self, stream: int = 4) -> nn.Module:
        """A fresh network for the downstream task."""
        return self._fresh(self.setting.downstream.classes, stream)

    def start(
        self,
        layers: int | Literal["all"] | Sequence[str],
        *,
        rescale: bool | None = None,
        reset_biases: bool = False,
    ) -> nn.Module:
        """The fresh network with the first layers of the pre-trained one."""
        return self.moved(self.pretrained, layers, rescale=rescale, reset_biases=reset_biases)

    def moved(
        self,
        source: nn.Module,
        layers: int | Literal["all"] | Sequence[str] = "all",
        *,
        rescale: bool | None = None,
        reset_biases: bool = False,
    ) -> nn.Module:
        """A fresh network with the first layers of a given source."""
        model = self.scratch()
        transfer_layers_(model, source, layers, reset_biases=reset_biases)
        if self.setting.rescale if rescale is None else rescale:
            rescale_to_(model, self.norms, layers=self._layer_names(layers))
        return model

    def _layer_names(self, layers: int | Literal["all"] | Sequence[str]) -> list[str]:
        """Names of the first layers, or of all but the head."""
        names = list(self.norms)
        if isinstance(layers, int):
            return names[:layers]
        return names[:-1] if layers == "all" else list(layers)

    def _targets(self, labels: Labels) -> Tensor:
        """Real or random labels of the downstream examples."""
        return self.downstream[1] if labels == "real" else self._random

    def finetune(
        self, model: nn.Module, labels: Labels, callbacks: Sequence[Callback] = ()
    ) -> AccuracyCurves:
        """Train everything on the downstream task, in place."""
        recipe = self.setting.recipe(self.setting.downstream, self._trial.seed + 1)
        data = (self.downstream[0], self._targets(labels))
        log = train(model, data, recipe, test=self.test, callbacks=callbacks)
        steps, accuracy = log.curve("train", "accuracy")
        _, test = log.curve("test", "accuracy")
        return AccuracyCurves(np.array(steps, dtype=np.float64), np.array(accuracy), np.array(test))

    def compare(self, labels: Labels) -> StartComparison:
        """Training on the downstream task, from scratch and from the transferred layers."""
        scratch, model = self.finetune(self.scratch(), labels), self.start("all")
        return StartComparison(scratch, self.finetune(model, labels), model)


def relu_layers(model: nn.Module) -> list[str]:
    """Names of the activation layers, in order."""
    return [name for name, module in model.named_modules() if isinstance(module, nn.ReLU)]


def fractions_of(model: nn.Module, images: Tensor) -> dict[str, ActivationFractions]:
    """Activation layer -> fractions over neurons and over images."""
    was_training = model.training
    model.eval()
    layers = relu_layers(model)
    parts: dict[str, list[ActivationFractions]] = {name: [] for name in layers}
    for chunk in feature_chunks(model, images, layers, read="raw"):
        for name, outputs in chunk.layers.items():
            parts[name].append(activation_fractions(outputs))
    model.train(was_training)
    return {name: merge_activation_fractions(found) for name, found in parts.items()}


def histograms_of(fractions: dict[str, ActivationFractions]) -> np.ndarray:
    """Share of neurons, then of examples, per bin: (layers, 2, bins)."""
    return np.stack(
        [
            np.stack([activation_histogram(part).cpu().numpy() for part in (f.neurons, f.examples)])
            for f in fractions.values()
        ]
    ).astype(np.float16)


class ActivationWatch:
    """Mean activation of every layer at chosen steps of a training."""

    def __init__(self, images: Tensor, steps: set[int]) -> None:
        self._images, self._steps = images, steps
        self.steps: list[int] = []
        self.means: list[list[float]] = []

    def __call__(self, state: TrainingState) -> None:
        """Measure if it is time."""
        if state.step in self._steps:
            found = fractions_of(state.model, self._images)
            self.steps.append(state.step)
            self.means.append([float(part.mean) for part in found.values()])
