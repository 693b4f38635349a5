"""One look at a network's tangent kernel: alignments, spectrum, and its two terms."""

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from theodolite.engine import tangent_kernels
from theodolite.measures.kernel import (
    center_gram,
    gram,
    gram_cka_matrix,
    kernel_spectrum,
    kta,
    participation_ratio,
    target_gram,
)
from theodolite_papers.canatar2022._spectra import mode_curves

__all__ = ["Look", "look_at"]

_MEMORY = 24 * 2**30  # of a kernel between 10,000 examples and what it is made of


@dataclass(frozen=True)
class Look:
    """What the tangent kernel of a set of examples shows at one moment.

    Args:
        numbers: alignments, shares of the terms, and what is read off the spectrum.
        modes: numbers of the modes that are kept.
        eigenvalues: of those modes.
        power: cumulative power of the labels up to those modes.
    """

    numbers: dict[str, float]
    modes: np.ndarray
    eigenvalues: np.ndarray
    power: np.ndarray


def look_at(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    modes: int,
    permutations: int,
    generator: torch.Generator,
) -> Look:
    """The traced tangent kernel in float64, exact, with its terms of Eq. (7)."""
    network = copy.deepcopy(model).double().eval()
    kernels = tangent_kernels(network, inputs.double(), outputs="trace", memory_limit=_MEMORY)
    outputs = kernels.outputs
    classes = outputs.shape[1]
    readout, gradient = (term / classes for term in kernels.split())
    del kernels  # five matrices, 800 MB each at 10,000 examples
    whole = readout + gradient
    numbers = _alignments([whole, gram(outputs), readout, gradient], labels)
    rows = [torch.randperm(len(labels), generator=generator) for _ in range(permutations)]
    chance = [_target(whole, labels[row.to(labels.device)]) for row in rows]
    numbers |= {"ntk_target_null": float(np.mean(chance)), **_shares(whole, readout)}
    numbers["ntk_target_uncentered"] = float(kta(whole, target_gram(labels, classes).double()))
    numbers["participation"] = float(participation_ratio(whole, center=True))
    curves = mode_curves(kernel_spectrum(whole, modes), labels, classes, modes)
    numbers |= {key: curves.numbers[key] for key in ("gap", "power", "evenness")}
    return Look(numbers, curves.modes, curves.eigenvalues, curves.power)


def _alignments(grams: list[Tensor], labels: Tensor) -> dict[str, float]:
    """CKA of every pair that a figure shows, biased as in the paper and debiased."""
    found: dict[str, float] = {}
    for ending, debiased in (("", False), ("_debiased", True)):
        table = gram_cka_matrix(grams, labels, debiased=debiased)
        assert table.target is not None
        names = ("ntk", "network", "readout", "gradient")
        targets = zip(names, table.target.tolist(), strict=True)
        found |= {f"{name}_target{ending}": value for name, value in targets}
        found[f"ntk_network{ending}"] = float(table.between[0, 1])
    return found


def _target(kernel: Tensor, labels: Tensor) -> float:
    table = gram_cka_matrix([kernel], labels, debiased=False)
    assert table.target is not None
    return float(table.target[0])


def _shares(whole: Tensor, readout: Tensor) -> dict[str, float]:
    """How much of the kernel its first term, the last layer's kernel, is."""
    norms = [torch.linalg.matrix_norm(center_gram(kernel)) for kernel in (readout, whole)]
    traces = [kernel.diagonal().sum() for kernel in (readout, whole)]
    return {
        "trace_share": float(traces[0] / traces[1]),
        "norm_share": float(norms[0] / norms[1]),
    }
