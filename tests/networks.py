"""Small networks for tests of the instrument, which run without the laboratory's model zoo."""

from collections import OrderedDict
from itertools import pairwise

import torch
from torch import nn

from theodolite.interventions import initialize_


class Sin(nn.Module):
    def forward(self, x):
        return torch.sin(x)


ACTIVATIONS = {
    "leaky_relu": nn.LeakyReLU,
    "linear": nn.Identity,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "sin": Sin,
    "tanh": nn.Tanh,
}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def mlp(sizes, activation="relu", *, bias=True, generator=None):
    """``flatten, fc1, act1, fc2, ..., fcL``, weights as He draws them, biases zero."""
    layers = [nn.Linear(inputs, outputs, bias=bias) for inputs, outputs in pairwise(sizes)]
    return initialize_(_stacked(layers, activation), generator=generator)


def mlp_of_seed(seed, classes=4):
    """Four layers; the weights and the constant biases differ between seeds."""
    net = mlp([6, 5, 5, 5, classes], generator=seeded(seed))
    for index, parameter in enumerate(net.parameters()):
        if parameter.ndim == 1:
            nn.init.constant_(parameter, seed + index)
    return net


class NTKLinear(nn.Module):
    """A linear layer whose weight is multiplied by a factor in the forward pass."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.factor = (2 / inputs) ** 0.5
        self.weight = nn.Parameter(torch.randn(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return nn.functional.linear(x, self.factor * self.weight, self.bias)


def ntk_mlp(sizes):
    """The same in NTK parametrisation."""
    return _stacked([NTKLinear(inputs, outputs) for inputs, outputs in pairwise(sizes)], "relu")


def _stacked(layers, activation):
    stack = OrderedDict(flatten=nn.Flatten())
    for index, layer in enumerate(layers, start=1):
        stack[f"fc{index}"] = layer
        stack[f"act{index}"] = ACTIVATIONS[activation]()
    stack.popitem()
    return nn.Sequential(stack)


def cnn(generator=None):
    """Two convolutions and two dense layers for images of 1 x 6 x 6 in four classes."""
    layers = OrderedDict(
        conv1=nn.Conv2d(1, 5, 3, padding=1),
        act1=nn.ReLU(),
        conv2=nn.Conv2d(5, 5, 3, padding=1),
        act2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(5 * 6 * 6, 8),
        act3=nn.ReLU(),
        fc2=nn.Linear(8, 4),
    )
    return initialize_(nn.Sequential(layers), generator=generator)


class _Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x):
        return x + self.conv(torch.relu(self.norm(x)))


class ResidualNet(nn.Module):
    """A stem, two stages of one residual block each and a head, for images of 3 channels."""

    def __init__(self, generator=None):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.stages = nn.Sequential(_Block(8), _Block(8))
        self.head = nn.Linear(8, 10)
        initialize_(self, generator=generator)

    def forward(self, x):
        return self.head(self.stages(self.stem(x)).mean((2, 3)))
