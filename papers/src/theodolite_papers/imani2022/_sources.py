"""A similar and a dissimilar source on many targets: halves of ImageNet, or peaks functions."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from theodolite.data import Dataset, load_image_folder, symmetric_range
from theodolite.errors import DataError, UnknownNameError
from theodolite_papers.imani2022._networks import (
    Training,
    hidden_layers,
    layer_names,
    profile,
    recipe_for,
)
from theodolite_papers.imani2022._peaks import draw_tasks, sample, train_on_source
from theodolite_papers.lab.data import (
    class_subset,
    data_folder,
    load_image_set,
    one_vs_one_tasks,
    related_tasks,
)
from theodolite_papers.lab.models import replace_head_, resnet18
from theodolite_papers.lab.training import Augmentation, Recipe, accuracy, train, train_ensemble
from theodolite_papers.ledger import Trial

__all__ = [
    "GROUPS",
    "NETWORKS",
    "ImageNetSplit",
    "ImageNetwork",
    "PeaksSizes",
    "SourceComparison",
    "Target",
    "compare_sources",
    "image_sources",
    "peaks_sources",
]

GROUPS = ("natural", "artificial")  # of sources and of targets


@dataclass(frozen=True)
class Target:
    """Examples of one task, and the source that is similar to it."""

    group: str
    inputs: Tensor
    labels: Tensor


@dataclass(frozen=True)
class SourceComparison:
    """Results of a pair of sources for all targets.

    Args:
        curves: differences of alignment curves (tasks, layers, thresholds), similar minus
            dissimilar.
        areas: differences of areas (tasks, layers).
        results: "SOURCE_on_TARGET" -> accuracy, or test error, after fine-tuning.
    """

    curves: Tensor
    areas: Tensor
    results: Mapping[str, float]


def compare_sources(
    models: Mapping[str, nn.Module],
    layers: Sequence[str],
    targets: Sequence[Target],
    *,
    bias: bool,
    pool: str = "flatten",
) -> tuple[Tensor, Tensor]:
    """Curves and areas of :class:`SourceComparison`; both networks see the same examples.

    Args:
        models: one network for each group.
        layers: from the input on.
        targets: the tasks.
        bias: whether representations get a constant column.
        pool: how the output of a layer becomes a vector.
    """
    curves, areas = [], []
    for target in targets:
        (other,) = (group for group in GROUPS if group != target.group)
        found = []
        for group in (target.group, other):
            rows = hidden_layers(models[group], target.inputs, layers, pool)
            found.append([profile(rows[name], target.labels, bias=bias) for name in layers])
        pairs = list(zip(*found, strict=True))
        curves.append(torch.stack([first.curve - second.curve for first, second in pairs]))
        areas.append(torch.tensor([first.area - second.area for first, second in pairs]))
    return torch.stack(curves), torch.stack(areas)


_CIFAR = {
    "natural": ("bird", "cat", "deer", "dog", "frog", "horse"),
    "artificial": ("airplane", "automobile", "ship", "truck"),
}
_CHUNK = 250


@dataclass(frozen=True)
class ImageNetwork:
    """A network of Figure 14, and how the paper trains it.

    Args:
        build: from classes, side of the images and a generator.
        layers: the last four hidden ones, from the input on.
        pool: how their outputs become vectors.
        epochs: on a source.
        batch_size: on a source; a quarter of it on a target.
        rate: of learning on a source; 0.01 on a target.
    """

    build: Callable[[int, int, torch.Generator], nn.Module]
    layers: tuple[str, str, str, str]
    pool: str
    epochs: int
    batch_size: int
    rate: float


# The outputs of the last four blocks; the last one after the global pooling.
NETWORKS = {
    "resnet18": ImageNetwork(
        lambda classes, _size, g: resnet18(classes, stem="imagenet", generator=g),
        ("stages.2.0", "stages.2.1", "stages.3.0", "flatten"), "flatten", 40, 1024, 0.1,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class ImageNetSplit:
    """How the sources are read and how networks are trained on them.

    Args:
        folder: in the data folder: ``train/CLASS/*``, and ``natural.txt`` with one class per line
            (449 of the 1000; all others are artificial).
        per_class: images of each class, all in memory.
        size: of the images.
        epochs: on a source; the network's own if left out.
        fine_tuning_epochs: on a target.
        batch_size: on a source, and a quarter of it on a target; the network's own if left out.
        examples: of each pair of target classes.
    """

    folder: str = "imagenet"
    per_class: int = 300
    size: int = 224
    epochs: int | None = None
    fine_tuning_epochs: int = 10
    batch_size: int | None = None
    examples: int = 2000


def image_sources(
    split: ImageNetSplit,
    trial: Trial,
    network: str = "resnet18",
    *,
    bias: bool,
    targets: Dataset | None = None,
) -> SourceComparison:
    """Train a network on each half and compare both on pairs of classes.

    Args:
        split: of ImageNet.
        trial: seed and device.
        network: a key of ``NETWORKS``.
        bias: whether representations get a constant column.
        targets: images of the target classes, by name; CIFAR-10 if left out.

    Raises:
        DataError: If the images or the list of natural classes are not there.
        UnknownNameError: If there is no such network.
    """
    if network not in NETWORKS:
        raise UnknownNameError("network", network, NETWORKS)
    kind = NETWORKS[network]
    data = load_image_folder(
        data_folder() / split.folder, split.size, per_class=split.per_class,
        generator=trial.generator(),
    )  # fmt: skip
    halves = _halves(data, _natural(data_folder() / split.folder / "natural.txt"))
    epochs, batch = split.epochs or kind.epochs, split.batch_size or kind.batch_size
    models = {
        group: _train(_fresh(kind, half, split.size, trial), half, epochs, batch, kind.rate, trial)
        for group, half in halves.items()
    }
    pool = load_image_set("cifar10") if targets is None else targets
    tasks = _pairs(pool, split.examples, split.size, trial)
    curves, areas = compare_sources(models, kind.layers, tasks, bias=bias, pool=kind.pool)
    return SourceComparison(
        curves, areas, _fine_tune_images(split, models, pool, max(batch // 4, 1), trial)
    )


def _natural(path: Path) -> list[str]:
    if not path.is_file():
        raise DataError(
            f"{path}: expected the natural classes of ImageNet, one name of a folder per line"
        )
    return [line.strip() for line in path.read_text().splitlines() if line.strip()]


def _halves(data: Dataset, natural: Sequence[str]) -> dict[str, Dataset]:
    rest = [name for name in data.classes if name not in set(natural)]
    return {"natural": class_subset(data, natural), "artificial": class_subset(data, rest)}


def _fresh(kind: ImageNetwork, data: Dataset, size: int, trial: Trial) -> nn.Module:
    return kind.build(data.num_classes, size, trial.generator(1)).to(trial.device)


def _train(
    model: nn.Module, data: Dataset, epochs: int, batch_size: int, rate: float, trial: Trial
) -> nn.Module:
    """The paper's recipe: SGD with momentum, a tenth of the rate every 30 epochs, crops, flips."""
    recipe = Recipe(
        optimizer="momentum", learning_rate=rate, weight_decay=1e-4, batch_size=batch_size,
        epochs=epochs, schedule="step_decay", seed=trial.seed, log="ends",
        augmentation=Augmentation(padding=16, cutout=0),
    )  # fmt: skip
    train(model, (symmetric_range(data.x_train), data.y_train), recipe)
    return model


def _resized(images: Tensor, size: int) -> Tensor:
    return functional.interpolate(
        symmetric_range(images), size=(size, size), mode="bilinear", align_corners=False
    )


def _pairs(data: Dataset, examples: int, size: int, trial: Trial) -> list[Target]:
    """All pairs inside each group."""
    found = []
    for group in GROUPS:
        part = class_subset(data, [name for name in _CIFAR[group] if name in data.classes])
        for task in one_vs_one_tasks(part.y_train, size=examples, generator=trial.generator(2)):
            images = _resized(part.x_train[task.rows], size)
            found.append(Target(group, images, task.targets))
    return found


def _fine_tune_images(
    split: ImageNetSplit, models: dict[str, nn.Module], data: Dataset, batch_size: int, trial: Trial
) -> dict[str, float]:
    """Test accuracy on all classes of a group after fine-tuning from each source."""
    results = {}
    for group in GROUPS:
        part = class_subset(data, [name for name in _CIFAR[group] if name in data.classes])
        large = part.mapped(lambda x: _bytes(_resized(x, split.size)), "resized")
        for source in GROUPS:
            model = replace_head_(deepcopy(models[source]), part.num_classes)
            _train(model, large, split.fine_tuning_epochs, batch_size, 0.01, trial)
            results[f"{source}_on_{group}"] = _accuracy(model, large, trial.device)
    return results


def _bytes(images: Tensor) -> Tensor:
    return ((images + 1) * 127.5).round().to(torch.uint8)


def _accuracy(model: nn.Module, data: Dataset, device: torch.device) -> float:
    model.eval()
    with torch.no_grad():
        outputs = [
            model(symmetric_range(part).to(device)).cpu()
            for part in torch.split(data.x_test, _CHUNK)
        ]
    return accuracy(torch.cat(outputs), data.y_test)


_DEPTH = 4


@dataclass(frozen=True)
class PeaksSizes:
    """Sizes of the experiment on peaks functions.

    Args:
        train: examples of a source.
        target: fresh examples on which all targets are measured.
        few: how many of them fine-tuning sees; the others test it.
        training: on the sources.
        fine_tuning: on the targets.
    """

    train: int = 1500
    target: int = 1000
    few: int = 200
    training: Training = field(default_factory=lambda: Training(epochs=80))
    fine_tuning: Training = field(default_factory=lambda: Training(epochs=30))


def peaks_sources(config: PeaksSizes, trial: Trial, *, bias: bool) -> SourceComparison:
    """Train one network on each source and compare them on the ten related tasks."""
    drawn = draw_tasks(trial)
    sources = dict(zip(GROUPS, (drawn.source, drawn.unrelated), strict=True))
    examples = sample(config.train, trial.generator())
    models = {
        group: train_on_source(
            examples, source, _DEPTH, config.training, trial, stream=30 + index
        ).trained
        for index, (group, source) in enumerate(sources.items())
    }
    fresh = sample(config.target, trial.generator(32))
    names = [(group, task) for group, source in sources.items() for task in related_tasks(source)]
    targets = [
        Target(group, fresh.inputs.float(), fresh.labels(task).float()) for group, task in names
    ]
    curves, areas = compare_sources(models, layer_names(_DEPTH), targets, bias=bias)
    return SourceComparison(curves, areas, _fine_tune_peaks(config, models, targets, trial))


def _fine_tune_peaks(
    config: PeaksSizes, models: dict[str, nn.Module], targets: list[Target], trial: Trial
) -> dict[str, float]:
    """Relative test errors by source and kind of target; all networks are trained together."""
    cases = [(source, target) for source in GROUPS for target in targets]
    generator = trial.generator(33)
    networks = [
        replace_head_(deepcopy(models[source]), 1, initializer="default", generator=generator)
        for source, _ in cases
    ]
    few = config.few
    data = [(target.inputs[:few], target.labels[:few]) for _, target in cases]
    recipe = recipe_for(config.fine_tuning, trial.seed, regression=True)
    train_ensemble(networks, data, recipe)
    errors: dict[str, list[float]] = {}
    for (source, target), network in zip(cases, networks, strict=True):
        with torch.no_grad():
            outputs = network(target.inputs[few:].to(trial.device)).squeeze(1).cpu()
        labels = target.labels[few:]
        error = float((outputs - labels).square().mean() / labels.square().mean())
        errors.setdefault(f"{source}_on_{target.group}", []).append(error)
    return {key: sum(values) / len(values) for key, values in errors.items()}
