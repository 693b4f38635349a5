"""Hundreds of networks of one architecture, trained at once.

Parameters are stacked along a first axis. A convolution is one copy of the patches and one batched
product, in bfloat16 on a GPU. ``torch.func.vmap`` would use grouped convolutions instead, which
take a fifth longer on a CPU. ``python -m benchmarks.transfer pilot --device cuda`` times both.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.transfer.data import network_input
from benchmarks.transfer.zoo import CLASSES, Architecture

MOMENTUM = 0.9  # of the steps
RENEWAL = 0.1  # of the running statistics of normalisation
EPS = 1e-5


def patches(x: Tensor, stride: int) -> Tensor:
    """(N, H, W, C) -> (N, H / stride, W / stride, 9 C), zeros around the border.

    In memory the three neighbours of a row follow each other, so that this is one strided copy.
    """
    padded = functional.pad(x, [0, 0, 1, 1, 1, 1])
    n, height, width, channels = padded.shape
    shape = (n, (height - 2) // stride, (width - 2) // stride, 3, 3 * channels)
    row = width * channels
    strides = (height * row, stride * row, stride * channels, row, 1)
    return padded.as_strided(shape, strides).flatten(3)


class Convolution(torch.autograd.Function):
    """3x3 convolution of (E, B, H, W, C) with weights (E, 9 C, D)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, precision: torch.dtype) -> Tensor:
        """One copy of the patches, one product."""
        e, b = x.shape[:2]
        columns = patches(x.flatten(0, 1).to(precision), stride)
        positions = columns.shape[1:3]
        columns = columns.view(e, -1, columns.shape[-1])
        weight = weight.to(precision)
        ctx.save_for_backward(columns, weight)
        ctx.shape, ctx.stride = x.shape, stride
        return torch.bmm(columns, weight).view(e, b, *positions, -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        """To inputs and weights."""
        columns, weight = ctx.saved_tensors
        e, b, height, width, channels = ctx.shape
        flat = gradient.reshape(e, -1, gradient.shape[-1])
        to_weight = torch.bmm(columns.transpose(1, 2), flat)
        if not ctx.needs_input_grad[0]:
            return None, to_weight.float(), None, None
        if ctx.stride == 1:  # the convolution with flipped weights
            flipped = weight.view(e, 9, channels, -1).flip(1).transpose(2, 3).flatten(1, 2)
            around = patches(gradient.flatten(0, 1), 1).view(e, flat.shape[1], -1)
            return torch.bmm(around, flipped).view(ctx.shape), to_weight.float(), None, None
        spread = torch.bmm(flat, weight.transpose(1, 2))
        spread = spread.view(e * b, *gradient.shape[2:4], 3, 3, channels)
        to_input = spread.new_zeros(e * b, height + 2, width + 2, channels)
        for row in range(3):
            for column in range(3):
                to_input[:, row : row + height : 2, column : column + width : 2] += spread[
                    :, :, :, row, column
                ]
        return to_input[:, 1:-1, 1:-1].reshape(ctx.shape), to_weight.float(), None, None


class Normalisation(torch.autograd.Function):
    """Batch normalisation of (E, B, H, W, C), each network with weights and moments of its own.

    Five passes over the values forward and backward, in the precision that they have; sums in
    float32. ``batch`` says that the moments are those of the values, so that gradients flow there.
    """

    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        variance: Tensor,
        batch: bool,
    ) -> Tensor:
        """Values times a factor plus an offset for each channel."""
        inverse = (variance + EPS).rsqrt()
        scale = weight * inverse
        ctx.save_for_backward(y, scale, mean, inverse)
        ctx.batch = batch
        return torch.addcmul(spread(bias - mean * scale, y), y, spread(scale, y))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """To values, weight and bias."""
        y, scale, mean, inverse = ctx.saved_tensors
        to_bias = gradient.sum((1, 2, 3), dtype=torch.float32)
        products = (gradient * y).sum((1, 2, 3), dtype=torch.float32)
        to_weight = inverse * (products - mean * to_bias)
        if not ctx.batch:
            return gradient * spread(scale, y), to_weight, to_bias, None, None, None
        count = y[0, ..., 0].numel()
        slope = -scale * inverse * to_weight / count
        offset = -scale * to_bias / count - mean * slope
        to_input = torch.addcmul(spread(offset, y), gradient, spread(scale, y))
        return to_input.addcmul_(y, spread(slope, y)), to_weight, to_bias, None, None, None


def spread(channels: Tensor, values: Tensor) -> Tensor:
    """(E, C) beside (E, B, H, W, C)."""
    return channels.to(values.dtype)[:, None, None, None]


@dataclass
class Stack:
    """Parameters and running statistics of E networks of one architecture.

    Args:
        architecture: theirs.
        parameters: name -> (E, ...); weights of convolutions as (E, 9 C, D).
        statistics: name of a normalisation -> (mean, variance), each (E, C).
        precision: of the products.
    """

    architecture: Architecture
    parameters: dict[str, Tensor]
    statistics: dict[str, tuple[Tensor, Tensor]]
    precision: torch.dtype = torch.float32

    @classmethod
    def of(
        cls,
        architecture: Architecture,
        states: Sequence[dict[str, Tensor]],
        device: torch.device | str = "cpu",
        precision: torch.dtype = torch.float32,
    ) -> "Stack":
        """From state dictionaries of ``Network``."""
        parameters, statistics = {}, {}
        for name in states[0]:
            whole = torch.stack([state[name].float() for state in states]).to(device)
            if name.endswith("running_mean"):
                rest = name.removesuffix("running_mean")
                variance = torch.stack([state[rest + "running_var"].float() for state in states])
                statistics[rest] = (whole, variance.to(device))
            elif whole.ndim == 5:
                parameters[name] = whole.permute(0, 3, 4, 2, 1).flatten(1, 3).contiguous()
            elif whole.ndim > 1 and "running" not in name:
                parameters[name] = whole
        return cls(architecture, parameters, statistics, precision)

    def __len__(self) -> int:
        return len(self.parameters["head.bias"])

    def state(self, index: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """The state dictionary of one network."""
        answer = {}
        for name, value in self.parameters.items():
            one = value[index].detach().cpu()
            if value.ndim == 3 and name != "head.weight":
                one = one.view(3, 3, -1, one.shape[-1]).permute(3, 2, 0, 1).contiguous()
            answer[name] = one.to(dtype)
        for name, (mean, variance) in self.statistics.items():
            answer[name + "running_mean"] = mean[index].cpu().to(dtype)
            answer[name + "running_var"] = variance[index].cpu().to(dtype)
            answer[name + "num_batches_tracked"] = torch.tensor(0)
        return answer

    def chosen(self, indices: Sequence[int]) -> "Stack":
        """Copies of some networks, in that order."""
        rows = torch.as_tensor(indices, device=self.parameters["head.bias"].device)
        return Stack(
            self.architecture,
            {name: value.detach()[rows].clone() for name, value in self.parameters.items()},
            {name: (m[rows].clone(), v[rows].clone()) for name, (m, v) in self.statistics.items()},
            self.precision,
        )

    def new_heads(self, generator: torch.Generator) -> None:
        """Fresh heads, as ``nn.Linear`` draws them."""
        bound = 1 / math.sqrt(self.architecture.features)
        for name in ("head.weight", "head.bias"):
            values = torch.rand(self.parameters[name].shape, generator=generator)
            self.parameters[name].copy_((2 * values - 1) * bound)

    def normalised(self, x: Tensor, name: str, *, training: bool) -> Tensor:
        """Batch normalisation, each network with statistics of its own."""
        mean, variance = self.statistics[name]
        if training:
            with torch.no_grad():
                count = x[0, ..., 0].numel()
                own = x.sum((1, 2, 3), dtype=torch.float32) / count
                norm = torch.linalg.vector_norm(x, dim=(1, 2, 3), dtype=torch.float32)
                square = (norm.square() / count - own.square()).clamp_min(0.0)
                mean.lerp_(own, RENEWAL)
                variance.lerp_(square * (count / (count - 1)), RENEWAL)
                mean, variance = own, square
        weight, bias = self.parameters[name + "weight"], self.parameters[name + "bias"]
        return Normalisation.apply(x, weight, bias, mean, variance, training)

    def convolved(self, x: Tensor, name: str, stride: int = 1) -> Tensor:
        """The convolution of that name."""
        weight = self.parameters[name + ".weight"]
        return Convolution.apply(x, weight, stride, self.precision)

    def outputs(self, images: Tensor, *, training: bool) -> Tensor:
        """Outputs (E, B, classes) for images (E, B, 16, 16, 3)."""
        x = self.normalised(self.convolved(images, "stem"), "norm.", training=training).relu_()
        for block, inputs, outputs, stride in self.architecture.layers():
            name = f"blocks.{block}."
            branch = self.convolved(x, name + "conv1", stride)
            branch = self.normalised(branch, name + "norm1.", training=training).relu_()
            branch = self.convolved(branch, name + "conv2")
            branch = self.normalised(branch, name + "norm2.", training=training)
            if self.architecture.residual:
                shortcut = x[:, :, ::stride, ::stride]
                branch = branch + functional.pad(shortcut, [0, outputs - inputs])
            x = branch.relu_()
        features = x.mean((2, 3), dtype=torch.float32)
        weight, bias = self.parameters["head.weight"], self.parameters["head.bias"]
        return torch.baddbmm(bias[:, None], features, weight.transpose(1, 2))


@dataclass(frozen=True)
class Assignment:
    """Which examples of a common store each network of a stack sees.

    Args:
        images: all examples, (n, 16, 16, 3) of bytes.
        labels: theirs, (n,).
        rows: indices of each network's examples, (E, m).
        classes: how many classes each network's task has, (E,).
    """

    images: Tensor
    labels: Tensor
    rows: Tensor
    classes: Tensor

    def batch(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels of chosen columns of ``rows``."""
        rows = self.rows.gather(1, columns)
        return network_input(self.images[rows]), self.labels[rows]

    def masked(self, outputs: Tensor) -> Tensor:
        """Outputs without the classes that a network's task does not have."""
        missing = torch.arange(CLASSES, device=outputs.device) >= self.classes[:, None]
        return outputs.masked_fill(missing[:, None], -torch.inf)


def train(
    stack: Stack,
    data: Assignment,
    *,
    steps: int,
    batch: int,
    rates: Tensor,
    seed: int,
    decay: float = 0.0,
    tuned: Mapping[str, Tensor] | None = None,
) -> None:
    """Momentum steps with rates that fall to zero along a cosine, in place.

    Every network passes through its examples in an order of its own.

    Args:
        stack: the networks.
        data: their examples.
        steps: how many.
        batch: examples per step and network.
        rates: first learning rate of each network, (E,).
        seed: of the orders.
        decay: of all weights, per unit of the learning rate.
        tuned: parameter -> 1 for each network that tunes it, else 0, (E,). Batch normalisation
            then keeps its statistics. None tunes all parameters of all networks.
    """
    device = data.rows.device
    generator = torch.Generator(device).manual_seed(seed)
    count = data.rows.shape[1]
    batch = min(batch, count)
    velocity = {name: torch.zeros_like(value) for name, value in stack.parameters.items()}
    names = list(stack.parameters)
    order, used = torch.empty(0), count
    for step in range(steps):
        if used + batch > count:
            order = torch.rand(data.rows.shape, generator=generator, device=device).argsort(1)
            used = 0
        x, y = data.batch(order[:, used : used + batch])
        used += batch
        leaves = [stack.parameters[name].detach().requires_grad_() for name in names]
        stack.parameters = dict(zip(names, leaves, strict=True))
        outputs = data.masked(stack.outputs(x, training=tuned is None))
        losses = functional.cross_entropy(outputs.flatten(0, 1), y.flatten(), reduction="sum")
        gradients = torch.autograd.grad(losses / batch, leaves)
        rate = rates * (0.5 + 0.5 * math.cos(math.pi * step / steps))
        with torch.no_grad():
            for name, leaf, gradient in zip(names, leaves, gradients, strict=True):
                velocity[name].mul_(MOMENTUM).add_(gradient).add_(leaf, alpha=decay)
                own = rate if tuned is None else rate * tuned[name]
                leaf.sub_(own.view(-1, *[1] * (leaf.ndim - 1)) * velocity[name])
    stack.parameters = {name: value.detach() for name, value in stack.parameters.items()}


@torch.no_grad()
def accuracies(stack: Stack, data: Assignment, chunk: int = 256) -> Tensor:
    """Share of right answers of each network, by halves of its examples: (E, 2)."""
    hits = []
    for columns in torch.arange(data.rows.shape[1], device=data.rows.device).split(chunk):
        x, y = data.batch(columns.expand(len(data.rows), -1))
        outputs = data.masked(stack.outputs(x, training=False))
        hits.append(outputs.argmax(-1) == y)
    first, second = torch.cat(hits, 1).float().chunk(2, 1)
    return torch.stack([first.mean(1), second.mean(1)], 1)
