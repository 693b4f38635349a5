"""Plain convolutional networks: Simple CNN, strided CNN, the ConvNet of mehta2021, VGG16, VGG19."""

from collections import OrderedDict
from typing import Literal

import torch
from torch import nn

from theodolite.checks import require_choice, require_count
from theodolite.interventions.initializers import Initializer, initialize_

__all__ = ["conv_net", "simple_cnn", "simple_cnn_pooled", "strided_cnn", "vgg16", "vgg19"]

_VGG16 = (64, 64, "P", 128, 128, "P", 256, 256, 256, "P", 512, 512, 512, "P", 512, 512, 512, "P")
_VGG19 = (
    *(64, 64, "P", 128, 128, "P", 256, 256, 256, 256, "P"),
    *(512, 512, 512, 512, "P", 512, 512, 512, 512, "P"),
)


def simple_cnn(
    num_classes: int = 10,
    *,
    conv_layers: int = 3,
    filters: int = 16,
    units: int = 512,
    padding: Literal["same", "valid"] = "same",
    input_shape: tuple[int, int, int] = (3, 32, 32),
    initializer: Initializer = "he",
    scale: float = 1.0,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """The Simple CNN: 3x3 convolutions of stride 1, one dense layer, a head. No pooling.

    Args:
        num_classes: outputs of the head.
        conv_layers: number of convolutions.
        filters: channels of each.
        units: width of the dense layer.
        padding: ``"same"`` or ``"valid"``; the paper does not say.
        input_shape: channels, height, width.
        initializer: distribution of the weights; biases are zero.
        scale: factor of their standard deviation.
        generator: source of randomness.

    Example:
        >>> net = simple_cnn(10, conv_layers=1, filters=16, units=64)
        >>> sum(p.numel() for p in net.parameters()) == 16 * 28 + (16 * 32 * 32 + 1) * 64 + 65 * 10
        True

    References:
        [maennel2020], appendix A.2.
    """
    require_choice(("same", "valid"), padding=padding)
    require_count(1, conv_layers=conv_layers, filters=filters, units=units)
    channels, height, width = input_shape
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for index in range(1, conv_layers + 1):
        layers[f"conv{index}"] = nn.Conv2d(channels, filters, 3, padding=int(padding == "same"))
        layers[f"relu{index}"] = nn.ReLU()
        channels = filters
    shrink = 0 if padding == "same" else 2 * conv_layers
    _dense_head(layers, filters * (height - shrink) * (width - shrink), units, num_classes)
    return _initialized(layers, initializer, scale, generator)


def simple_cnn_pooled(
    num_classes: int = 10,
    *,
    filters: int = 16,
    units: int = 512,
    input_shape: tuple[int, int, int] = (3, 32, 32),
    initializer: Initializer = "he",
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """Three 3x3 convolutions, one 3x3 max-pool of stride 2, a dense layer, a head.

    The network of the layer-by-layer initialisation.

    References:
        [maennel2020], appendix E.3.
    """
    channels, height, width = input_shape
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for index in (1, 2, 3):
        layers[f"conv{index}"] = nn.Conv2d(channels, filters, 3, padding=1)
        layers[f"relu{index}"] = nn.ReLU()
        channels = filters
    layers["pool"] = nn.MaxPool2d(3, stride=2)
    _dense_head(layers, filters * ((height - 1) // 2) * ((width - 1) // 2), units, num_classes)
    return _initialized(layers, initializer, 1.0, generator)


def strided_cnn(
    num_classes: int = 10,
    *,
    stride: int = 3,
    filters: int = 64,
    input_shape: tuple[int, int, int] = (3, 27, 27),
    initializer: Initializer = "he",
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """Two 3x3 convolutions of a given stride without padding, and one dense layer.

    References:
        [maennel2020], appendix E.2. Differs from paper: it gives neither filters nor units.
    """
    require_count(1, stride=stride, filters=filters)
    channels, height, width = input_shape
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for index in (1, 2):
        layers[f"conv{index}"] = nn.Conv2d(channels, filters, 3, stride=stride)
        layers[f"relu{index}"] = nn.ReLU()
        channels = filters
        height, width = (height - 3) // stride + 1, (width - 3) // stride + 1
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(filters * height * width, num_classes)
    return _initialized(layers, initializer, 1.0, generator)


def conv_net(num_classes: int = 10, *, generator: torch.Generator | None = None) -> nn.Sequential:
    """The ConvNet for 3x32x32 images: two 5x5 convolutions with pools, dense 1024, a head.

    Glorot uniform weights, zero biases. 1,703,370 parameters for 10 classes.

    References:
        [mehta2021], appendix H.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(3, 32, 5, padding=2),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(3, stride=2),
        conv2=nn.Conv2d(32, 64, 5),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(3, stride=2),
    )
    _dense_head(layers, 1600, 1024, num_classes)
    return _initialized(layers, "glorot", 1.0, generator)


def vgg16(
    num_classes: int = 10,
    *,
    in_channels: int = 3,
    width: float = 1.0,
    initializer: Initializer = "he",
    scale: float = 1.0,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """Configuration D for 32x32 images without the two dense layers of 4096, no batch norm.

    14,719,818 parameters for 10 classes.

    Args:
        num_classes: outputs of the head.
        in_channels: channels of the images.
        width: factor of all channel counts.
        initializer: distribution of the weights; biases are zero.
        scale: factor of their standard deviation.
        generator: source of randomness.

    References:
        [maennel2020], appendix A.2.
    """
    layers = _vgg_layers(_VGG16, in_channels, width, batch_norm=False)
    layers["head"] = nn.Linear(int(512 * width), num_classes)
    return _initialized(layers, initializer, scale, generator)


def vgg19(
    num_classes: int = 10,
    *,
    in_channels: int = 3,
    width: float = 1.0,
    batch_norm: bool = True,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """16 convolutions with batch norm and one linear head, for 32x32 images.

    References:
        [lou2022]. Differs from paper: it names VGG19 and gives no details.
    """
    layers = _vgg_layers(_VGG19, in_channels, width, batch_norm=batch_norm)
    layers["head"] = nn.Linear(int(512 * width), num_classes)
    return _initialized(layers, "he", 1.0, generator)


def _vgg_layers(
    plan: tuple[int | str, ...], channels: int, width: float, *, batch_norm: bool
) -> "OrderedDict[str, nn.Module]":
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    conv = pool = 0
    for entry in plan:
        if isinstance(entry, str):
            pool += 1
            layers[f"pool{pool}"] = nn.MaxPool2d(2, stride=2, ceil_mode=True)
            continue
        conv, filters = conv + 1, int(entry * width)
        layers[f"conv{conv}"] = nn.Conv2d(channels, filters, 3, padding=1)
        if batch_norm:
            layers[f"bn{conv}"] = nn.BatchNorm2d(filters)
        layers[f"relu{conv}"] = nn.ReLU()
        channels = filters
    layers["flatten"] = nn.Flatten()
    return layers


def _dense_head(
    layers: "OrderedDict[str, nn.Module]", inputs: int, units: int, num_classes: int
) -> None:
    layers["flatten"] = nn.Flatten()
    layers["dense"] = nn.Linear(inputs, units)
    layers["relu_dense"] = nn.ReLU()
    layers["head"] = nn.Linear(units, num_classes)


def _initialized(
    layers: "OrderedDict[str, nn.Module]",
    initializer: Initializer,
    scale: float,
    generator: torch.Generator | None,
) -> nn.Sequential:
    network = nn.Sequential(layers)
    initialize_(network, initializer, scale, generator)
    return network
