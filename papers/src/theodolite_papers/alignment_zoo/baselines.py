"""Baselines that need no Theodolite: margins, norms, sharpness, noise of gradients."""

from dataclasses import replace
from math import nan

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from theodolite_papers.alignment_zoo.data import Task
from theodolite_papers.alignment_zoo.design import Network
from theodolite_papers.alignment_zoo.models import build

__all__ = ["baselines", "gradient_noise"]

_PROBE = 128
_BATCHES = 8  # of gradients that are compared
_BATCH = 16
_POWER = 8  # iterations for the largest eigenvalue
_JOLT = 0.1  # relative size of a perturbation
_DRAWS = 4


def baselines(
    network: Network, model: nn.Module, task: Task, first: dict[str, Tensor]
) -> dict[str, float]:
    """All baselines of a model in evaluation mode, on its training examples.

    Args:
        network: its factors.
        model: at some step.
        task: its data.
        first: its weights at initialisation.
    """
    x, y = task.x[:_PROBE], task.y[:_PROBE]
    generator = torch.Generator().manual_seed(network.seed)
    outputs = model(x).detach()
    right = outputs.gather(1, y[:, None])[:, 0]
    wrong = outputs.scatter(1, y[:, None], -torch.inf).amax(1)
    chances = outputs.log_softmax(1)
    weights = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    moved = [parameter - first[name] for name, parameter in model.named_parameters()]
    spectral = [torch.linalg.matrix_norm(w.detach().flatten(1), 2).log() for w in weights]
    return {
        "train_loss": cross_entropy(outputs, y).item(),
        "train_accuracy": (outputs.argmax(1) == y).double().mean().item(),
        "margin": (right - wrong).quantile(0.1).item(),
        "output_entropy": -(chances.exp() * chances).sum(1).mean().item(),
        "weight_norm": torch.stack([w.detach().square().sum() for w in weights])
        .sum()
        .sqrt()
        .item(),
        "distance_from_init": _norm(moved),
        "spectral_norm": torch.stack(spectral).sum().item(),
        "path_norm": _path_norm(network, model, task),
        "sharpness_hessian": _top_eigenvalue(model, x, y, generator),
        "sharpness_perturbation": _perturbed(model, x, y, generator),
        **gradient_noise(model, task, generator),
    }


def gradient_noise(model: nn.Module, task: Task, generator: torch.Generator) -> dict[str, float]:
    r"""Disagreement of the gradients of mini-batches.

    Gradient disparity is the mean distance between the gradients of two batches [forouzesh2021].
    The simple noise scale is :math:`\operatorname{tr} \Sigma / \|g\|^2`, from the unbiased
    estimates that the mean and the spread of the batches give [mccandlish2018].
    """
    rows = torch.randint(len(task.x), (_BATCHES, _BATCH), generator=generator)
    parameters = list(model.parameters())
    found = []
    for batch in rows:
        loss = cross_entropy(model(task.x[batch]), task.y[batch])
        grads = torch.autograd.grad(loss, parameters)
        found.append(torch.cat([grad.flatten() for grad in grads]))
    table = torch.stack(found).double()
    mean = table.mean(0)
    spread = (table - mean).square().sum() / (_BATCHES - 1)  # trace of the covariance / batch
    squared = mean.square().sum() - spread / _BATCHES
    distances = torch.pdist(table)
    scale = (_BATCH * spread / squared).item() if squared > 0 else float("inf")
    return {
        "gradient_norm": mean.norm().item(),
        "gradient_disparity": distances.mean().item(),
        "gradient_noise_scale": scale,
    }


def _norm(tensors: list[Tensor]) -> float:
    return torch.stack([t.detach().double().square().sum() for t in tensors]).sum().sqrt().item()


def _path_norm(network: Network, model: nn.Module, task: Task) -> float:
    """Log of the root of the sum over all paths of the product of squared weights.

    Batch normalisation is part of the weights; with layer normalisation or attention there is no
    such sum.
    """
    if network.normalisation == "layer" or network.family == "transformer":
        return nan
    linear = replace(network, activation="none")
    shape = task.x.shape[1:]
    state = torch.get_rng_state()
    squared = build(linear, shape, task.classes, task.tokens).double()
    torch.set_rng_state(state)
    squared.load_state_dict(model.state_dict())
    with torch.no_grad():
        for module in squared.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.zero_()
                module.running_var.add_(module.eps).square_()
                module.eps = 1e-300
        for parameter in squared.parameters():
            parameter.square_()
        total = squared.eval()(torch.ones(1, *shape, dtype=torch.float64)).sum()
    return 0.5 * total.log().item()


def _top_eigenvalue(model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator) -> float:
    """The eigenvalue of the loss Hessian with the largest absolute value, by power iteration."""
    parameters = list(model.parameters())
    loss = cross_entropy(model(x), y)
    grads = torch.autograd.grad(loss, parameters, create_graph=True)
    vector = [torch.randn(p.shape, generator=generator) for p in parameters]
    value = 0.0
    for _ in range(_POWER):
        length = _norm(vector)
        if not 0 < length < float("inf"):
            return nan
        vector = [v / length for v in vector]
        product = sum((g * v).sum() for g, v in zip(grads, vector, strict=True))
        image = torch.autograd.grad(product, parameters, retain_graph=True, materialize_grads=True)  # type: ignore[arg-type]
        value = sum((i * v).sum().item() for i, v in zip(image, vector, strict=True))
        vector = list(image)
    return value


def _perturbed(model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator) -> float:
    """Mean increase of the loss if every weight changes by a random tenth of its absolute value."""
    state = {name: p.detach() for name, p in model.named_parameters()}
    with torch.no_grad():
        plain = cross_entropy(model(x), y)
        rises = []
        for _ in range(_DRAWS):
            jolted = {
                name: p + _JOLT * p.abs() * torch.randn(p.shape, generator=generator)
                for name, p in state.items()
            }
            rises.append(cross_entropy(functional_call(model, jolted, (x,)), y) - plain)
    return torch.stack(rises).mean().item()
