"""Theorem A: in homogeneous networks the output Hessian turns parameters into gradients."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from theodolite.errors import DomainError
from theodolite_papers.lab.models import mlp
from theodolite_papers.ledger import (
    Bars,
    Check,
    Claim,
    Measured,
    Panel,
    Results,
    Study,
    Trial,
    mean_and_error,
    named,
    within,
)
from theodolite_papers.lou2022._curvature import OutputHessian, output_hessian
from theodolite_papers.lou2022.formulas.homogeneity import check_homogeneity, homogeneous_step
from theodolite_papers.lou2022.formulas.losses import cross_entropy_gradient

__all__ = ["STUDY", "Homogeneous"]

_ROUNDING = 1e-9
_STEP = 0.1


@dataclass(frozen=True)
class Homogeneous:
    """Small networks, since every output of every example has its own Hessian.

    Args:
        examples: inputs on which the identities are checked.
        depth: of the fully connected networks.
        width: of their layers.
    """

    examples: int = 6
    depth: int = 5
    width: int = 12


def measure(config: Homogeneous, trial: Trial) -> Measured:
    """Largest relative error of the identities on each network."""
    inputs = torch.randn(config.examples, 8, generator=trial.generator(1), dtype=torch.float64)
    images = torch.randn(
        config.examples, 1, 6, 6, generator=trial.generator(2), dtype=torch.float64
    )
    numbers = {}
    for name, build in _networks(config).items():
        net = build(trial.generator(3)).double()
        x = images if name == "convolutions" else inputs
        numbers[f"error {name}"] = check_homogeneity(net, x).largest_error
    numbers |= _training(_networks(config)["relu"](trial.generator(3)).double(), inputs)
    numbers["refused"] = float(all(_refuses(net, inputs) for net in _outside(trial.generator(4))))
    return Measured(numbers)


def _networks(config: Homogeneous) -> dict[str, Callable[[torch.Generator], nn.Sequential]]:
    sizes = [8, *[config.width] * (config.depth - 1), 3]
    return {
        "relu": lambda g: mlp(sizes, bias=False, generator=g),
        "leaky relu": lambda g: mlp(sizes, "leaky_relu", bias=False, generator=g),
        "biases": lambda g: _biased_net(sizes, g),
        "two layers": lambda g: mlp([8, config.width, 3], bias=False, generator=g),
        "convolutions": _convolutional,
    }


def _biased_net(sizes: list[int], generator: torch.Generator) -> nn.Sequential:
    """A network with biases that are not zero."""
    net = mlp(sizes, bias=True, generator=generator)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith("bias"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return net


def _convolutional(generator: torch.Generator) -> nn.Sequential:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 1, bias=False),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4, 3, bias=False),
    )
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return net


def _training(net: nn.Module, x: Tensor) -> dict[str, float]:
    """The gradient as H_w theta / (L - 1), and a step of gradient descent from H_w alone."""
    labels = torch.arange(len(x)) % 3
    hessian = output_hessian(net, x, labels)
    theta = torch.cat([p.detach().flatten() for p in net.parameters()])
    depth = sum(isinstance(part, nn.Linear) for part in net.modules())
    gradient = hessian.gradient()
    bent = (hessian @ theta) / (depth - 1)
    targets = nn.functional.one_hot(labels, 3).double()
    w = cross_entropy_gradient(net(x).detach(), targets)
    step = homogeneous_step(net, x, w, _STEP)
    return {
        "error gradient": float((bent - gradient).norm() / gradient.norm()),
        "error step": float((step - (theta - _STEP * gradient)).norm() / gradient.norm() / _STEP),
        "error blocks": _same_layer(hessian, net),
    }


def _same_layer(hessian: OutputHessian, net: nn.Module) -> float:
    """Largest entry of H_w between two parameters of one layer, over the largest of all."""
    dense = hessian.to_dense()
    sizes = [p.numel() for p in net.parameters()]
    starts = np.cumsum([0, *sizes])
    blocks = [dense[a:b, a:b].abs().max() for a, b in pairwise(starts)]
    return float(torch.stack(blocks).max() / dense.abs().max())


def _outside(generator: torch.Generator) -> list[nn.Module]:
    """Networks that the theorem does not cover: smooth, normalised, a single layer."""
    tanh = mlp([8, 6, 3], "tanh", bias=False, generator=generator)
    normalized = nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.Linear(6, 3))
    single = mlp([8, 3], bias=False, generator=generator)
    return [tanh.double(), normalized.double(), single.double()]


def _refuses(net: nn.Module, x: Tensor) -> bool:
    try:
        check_homogeneity(net, x)
    except DomainError:
        return True
    return False


def _exact(*names: str) -> Check:
    """These identities hold up to rounding."""
    return within(named(*names, prefix="error "), high=_ROUNDING)


def draw(runs: Results) -> list[Panel]:
    """Decimal logarithms of all errors."""
    names = [name for name in runs.runs[0].numbers if name.startswith("error")]
    logs = np.stack([np.log10(np.clip(runs[name], 1e-18, None)) for name in names], axis=1)
    mean, error = mean_and_error(logs)
    labels = [name.removeprefix("error ") for name in names]
    return [Panel("Theorem A", [Bars("log10 of error", labels, mean, error)], "", "log10")]


STUDY = Study(
    id="lou2022.theorem-a",
    title="Gradients from Hessians in homogeneous networks",
    shows=("Theorem A",),
    measure=measure,
    configs={
        "smoke": Homogeneous(examples=2, depth=3, width=4),
        "lite": Homogeneous(),
        "reduced": Homogeneous(examples=10, depth=10, width=24),
    },
    claims=(
        Claim(
            "lou2022.theorem-a.identity",
            "H theta = (L - 1) grad f without biases: ReLU, leaky ReLU, two layers, convolutions "
            "with pooling (relative error at most 1e-9)",
            _exact("relu", "leaky relu", "two layers", "convolutions"),
            unit="calculation",
        ),
        Claim(
            "lou2022.theorem-a.biases",
            "with biases it holds with degree l for the bias of layer l",
            _exact("biases"),
            unit="calculation",
            fragile="not in the paper, which has no biases",
        ),
        Claim(
            "lou2022.theorem-a.descent",
            "the gradient of the loss is H_w theta / (L - 1), and a step of gradient descent "
            "follows from H_w alone",
            _exact("gradient", "step"),
            unit="calculation",
        ),
        Claim(
            "lou2022.theorem-a.blocks",
            "blocks of H_w between parameters of one layer vanish",
            _exact("blocks"),
            unit="calculation",
        ),
        Claim(
            "lou2022.theorem-a.domain",
            "smooth activations, normalisation layers and single layers are outside, and refused",
            within(named("refused"), low=1.0),
        ),
    ),
    draw=draw,
    not_run={"published": "the statement has no experiment in the paper"},
)
