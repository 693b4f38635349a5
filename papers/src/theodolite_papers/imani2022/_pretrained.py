"""Networks for images: with published ImageNet weights, at random, or trained on other classes."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from theodolite.errors import UnknownNameError
from theodolite.interventions import initialize_
from theodolite_papers.imani2022._networks import hidden_layers
from theodolite_papers.lab.models import resnet50
from theodolite_papers.lab.models.published import PUBLISHED
from theodolite_papers.lab.models.residual import Bottleneck, ResNet

__all__ = ["image_features", "random_network"]

_SIZE = 224
_BATCH = 125
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


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
    """Inputs of the head for images with pixels from 0 to 1, enlarged to 224 pixels.

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
