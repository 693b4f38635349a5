"""The networks of Figure 5: fully connected, convolutional and deep."""

from collections import OrderedDict

import numpy as np
import torch
from torch import nn

from theodolite.data import Dataset
from theodolite.interventions import initialize_
from theodolite_papers.lab.models import conv_net, densenet121, mlp, resnet50

__all__ = ["DEEP", "build"]

DEEP = ("resnet50", "densenet121")


def small_conv_net(num_classes: int, generator: torch.Generator) -> nn.Sequential:
    """The paper's ConvNet for 16x16 images: half the channels, a smaller second filter."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(3, 16, 5, padding=2),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(3, stride=2),
        conv2=nn.Conv2d(16, 32, 3),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(3, stride=2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(128, 256),
        relu_fc=nn.ReLU(),
        fc2=nn.Linear(256, num_classes),
    )
    net = nn.Sequential(layers)
    initialize_(net, "glorot", 1.0, generator)
    return net


def build(
    case: str, width: int, data: Dataset, generator: torch.Generator
) -> tuple[nn.Module, str]:
    """The network of a case, Glorot uniform with zero biases, and its last hidden activation.

    Args:
        case: "convnet", "small_convnet", "resnet50", "densenet121"; a fully connected net else.
        width: of the fully connected net.
        data: decides the sizes of input and output.
        generator: of the weights.
    """
    if case == "small_convnet":
        return small_conv_net(data.num_classes, generator), "relu_fc"
    if case == "convnet":
        net = conv_net(data.num_classes, generator=generator)
        return net, [name for name, part in net.named_children() if isinstance(part, nn.ReLU)][-1]
    if case in DEEP:
        deep = (resnet50 if case == "resnet50" else densenet121)(data.num_classes)
        return initialize_(deep, "glorot", 1.0, generator), "flatten"
    inputs = int(np.prod(data.shape))
    sizes = [inputs, width, data.num_classes]
    return mlp(sizes, initializer="glorot", generator=generator), "act1"
