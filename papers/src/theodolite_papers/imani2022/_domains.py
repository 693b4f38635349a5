"""Three domains with the same classes: digits seen in three ways, or the folders of Office-31."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from theodolite.data import digits, disjoint_rows, load_image_folder
from theodolite_papers.imani2022._pretrained import published_network
from theodolite_papers.lab.data import data_folder
from theodolite_papers.lab.models import mlp
from theodolite_papers.lab.training import Recipe, train
from theodolite_papers.ledger import Trial

__all__ = ["DigitDomains", "Domain", "OfficeDomains", "Start", "digit_domains", "office_domains"]


@dataclass(frozen=True)
class Domain:
    """Images of one domain in two roles: as a source, and as a target with a test set."""

    source: Tensor
    train: Tensor
    y_train: Tensor
    test: Tensor
    y_test: Tensor


@dataclass(frozen=True)
class Start:
    """The network that everything starts from, and the domains.

    Args:
        model: trained without any of the images here.
        layer: its last hidden layer.
        num_classes: of the targets.
        domains: by name.
    """

    model: nn.Module
    layer: str
    num_classes: int
    domains: Mapping[str, Domain]

    def others(self, name: str) -> list[str]:
        """All domains but one."""
        return [other for other in self.domains if other != name]


@dataclass(frozen=True)
class DigitDomains:
    """How many digits play which role; none plays two.

    Args:
        base: that the network learns, seen in all three ways.
        source: with random labels.
        target: of which ``few`` are for fine-tuning and the others for testing.
        few: see there.
        width: of the two hidden layers.
        epochs: of the first training.
    """

    base: int = 500
    source: int = 200
    target: int = 800
    few: int = 300
    width: int = 128
    epochs: int = 15


@dataclass(frozen=True)
class OfficeDomains:
    """How Office-31 is read.

    Args:
        folder: in the data folder, with ``amazon``, ``dslr`` and ``webcam`` of 31 classes each.
        size: of the images.
        network: with published weights.
    """

    folder: str = "office31"
    size: int = 224
    network: str = "mobilenet_v2"


def _views(images: Tensor) -> dict[str, Tensor]:
    """The same images as they are, inverted, and transposed with less contrast."""
    seen = {"clean": images, "inverted": 1 - images, "transposed": 0.7 * images.mT + 0.3}
    return {name: view.flatten(1) for name, view in seen.items()}


def digit_domains(config: DigitDomains, trial: Trial) -> Start:
    """Train the first network on digits of all three domains."""
    data = digits()
    images = torch.cat([data.x_train, data.x_test])[:, 0].float() / 16
    labels = torch.cat([data.y_train, data.y_test])
    base, source, target = disjoint_rows(
        len(images), config.base, config.source, config.target, generator=trial.generator()
    )
    model = mlp(
        [64, config.width, config.width, 10], initializer="default", generator=trial.generator(1)
    ).to(trial.device)
    views = _views(images)
    seen = torch.cat([rows[base] for rows in views.values()])
    recipe = Recipe(
        optimizer="adam", learning_rate=1e-3, batch_size=64, epochs=config.epochs,
        seed=trial.seed, log="ends",
    )  # fmt: skip
    train(model, (seen, labels[base].repeat(len(views))), recipe)
    few, rest = target[: config.few], target[config.few :]
    domains = {
        name: Domain(rows[source], rows[few], labels[few], rows[rest], labels[rest])
        for name, rows in views.items()
    }
    return Start(model, "act2", 10, domains)


def office_domains(config: OfficeDomains, trial: Trial) -> Start:
    """Read the three folders; the first network has its published ImageNet weights.

    Raises:
        DataError: If a folder, or the file of the weights, is not there.
    """
    domains, counts = {}, set()
    for index, name in enumerate(("dslr", "webcam", "amazon")):
        data = load_image_folder(
            data_folder() / config.folder / name, config.size, generator=trial.generator(index)
        )
        train_images, test_images = (_scaled(x) for x in (data.x_train, data.x_test))
        domains[name] = Domain(train_images, train_images, data.y_train, test_images, data.y_test)
        counts.add(data.num_classes)
    model = published_network(config.network).to(trial.device)
    return Start(model, "flatten", max(counts), domains)


def _scaled(images: Tensor) -> Tensor:
    mean = torch.tensor([0.485, 0.456, 0.406]).reshape(1, 3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).reshape(1, 3, 1, 1)
    return (images.float() / 255 - mean) / std
