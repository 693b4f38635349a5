"""The natural and the artificial classes of ImageNet as sources, pairs of CIFAR-10 as targets."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from theodolite.errors import DataError
from theodolite.studies import Trial
from theodolite.studies.representation._sources import (
    GROUPS,
    Comparison,
    Target,
    compare_sources,
)
from theodolite.workbench.data import (
    Dataset,
    class_subset,
    data_folder,
    load_image_folder,
    load_image_set,
    one_vs_one_tasks,
    symmetric_range,
)
from theodolite.workbench.interventions import replace_head_
from theodolite.workbench.models import resnet18
from theodolite.workbench.training import Augmentation, Recipe, accuracy, train

__all__ = ["ImageNetSplit", "image_sources"]

_CIFAR = {
    "natural": ("bird", "cat", "deer", "dog", "frog", "horse"),
    "artificial": ("airplane", "automobile", "ship", "truck"),
}
_LAYERS = ("stages.2.1", "stages.3.0", "stages.3.1", "flatten")
_CHUNK = 250


@dataclass(frozen=True)
class ImageNetSplit:
    """How the sources are read and learned.

    Args:
        folder: in the data folder: ``train/CLASS/*``, and ``natural.txt`` with one class per line
            (449 of the 1000; all others are artificial).
        per_class: images of each class, all in memory.
        size: of the images.
        epochs: on a source.
        fine_tuning_epochs: on a target.
        batch_size: on a source; a quarter of it on a target.
        examples: of each pair of target classes.
    """

    folder: str = "imagenet"
    per_class: int = 300
    size: int = 224
    epochs: int = 40
    fine_tuning_epochs: int = 10
    batch_size: int = 1024
    examples: int = 2000


def image_sources(
    split: ImageNetSplit, trial: Trial, *, bias: bool, targets: Dataset | None = None
) -> Comparison:
    """Train a ResNet-18 on each half and compare both on pairs of classes.

    Args:
        split: of ImageNet.
        trial: seed and device.
        bias: whether representations get a constant column.
        targets: images of the target classes, by name; CIFAR-10 if left out.

    Raises:
        DataError: If the images or the list of natural classes are not there.
    """
    data = load_image_folder(
        data_folder() / split.folder, split.size, per_class=split.per_class,
        generator=trial.generator(),
    )  # fmt: skip
    halves = _halves(data, _natural(data_folder() / split.folder / "natural.txt"))
    models = {
        group: _train(_network(half, trial), half, split.epochs, split.batch_size, 0.1, trial)
        for group, half in halves.items()
    }
    pool = load_image_set("cifar10") if targets is None else targets
    tasks = _pairs(pool, split.examples, split.size, trial)
    curves, areas = compare_sources(models, _LAYERS, tasks, bias=bias)
    return Comparison(curves, areas, _fine_tune(split, models, pool, trial))


def _natural(path: Path) -> list[str]:
    if not path.is_file():
        raise DataError(
            f"{path}: expected the natural classes of ImageNet, one name of a folder per line"
        )
    return [line.strip() for line in path.read_text().splitlines() if line.strip()]


def _halves(data: Dataset, natural: Sequence[str]) -> dict[str, Dataset]:
    rest = [name for name in data.classes if name not in set(natural)]
    return {"natural": class_subset(data, natural), "artificial": class_subset(data, rest)}


def _network(data: Dataset, trial: Trial) -> nn.Module:
    model = resnet18(data.num_classes, stem="imagenet", generator=trial.generator(1))
    return model.to(trial.device)


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


def _fine_tune(
    split: ImageNetSplit, models: dict[str, nn.Module], data: Dataset, trial: Trial
) -> dict[str, float]:
    """Test accuracy on all classes of a group, from either source."""
    results = {}
    for group in GROUPS:
        part = class_subset(data, [name for name in _CIFAR[group] if name in data.classes])
        large = part.mapped(lambda x: _bytes(_resized(x, split.size)), "resized")
        for source in GROUPS:
            model = replace_head_(deepcopy(models[source]), part.num_classes)
            batch = max(split.batch_size // 4, 1)
            _train(model, large, split.fine_tuning_epochs, batch, 0.01, trial)
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
