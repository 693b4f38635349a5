"""An estimate of the norms of centred kernels from a few backward passes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from theodolite._distributed import ALONE, Processes
from theodolite.engine._blocks import spans
from theodolite.engine._runs import Subject
from theodolite.engine.batches import Batch
from theodolite.errors import MemoryLimitError

__all__ = ["jackknife_covariance", "pair_norms", "probe_grams", "require_probe_memory"]


def require_probe_memory(subject: Subject, probes: int, limit: int) -> None:
    """The gradients of all probes fit."""
    size = sum(p.numel() * p.element_size() for p in subject.ownership.parameters.values())
    if (probes + 1) * size > limit:
        raise MemoryLimitError(
            f"memory: expected to stay below {limit / 2**30:.2f} GiB, but {probes} probes of all "
            f"parameters take {(probes + 1) * size / 2**30:.2f} GiB; pass fewer probes or layers"
        )


def probe_grams(
    subject: Subject,
    batches: Sequence[Batch],
    weights: Tensor,
    run: int,
    processes: Processes = ALONE,
) -> dict[str, Tensor]:
    r"""Layer -> inner products of :math:`\Psi_l z_a`, (s, s), for weights z of shape (s, n, c).

    One forward pass over the data, and one backward pass per probe. Batches and weights are those
    of this process; gradients along a probe add up over processes.
    """
    names = list(subject.ownership.parameters)
    parameters = list(subject.ownership.parameters.values())
    totals = [
        torch.zeros(len(weights), *p.shape, dtype=p.dtype, device=p.device) for p in parameters
    ]
    start = 0
    for batch in batches:
        for rows in spans(len(batch), run):
            part = batch.take(rows)
            place = slice(start, start + len(part))
            _add_probes(totals, parameters, subject.outputs(part), weights[:, place])
            start = place.stop
    totals = [processes.sum(total) for total in totals]
    flat = {name: total.flatten(1).double() for name, total in zip(names, totals, strict=True)}
    zero = torch.zeros(len(weights), len(weights), dtype=torch.float64, device=weights.device)
    return {
        layer: sum((flat[name] @ flat[name].T for name in owned), zero)
        for layer, owned in subject.ownership.layers.items()
    }


def _add_probes(
    totals: list[Tensor], parameters: Sequence[Tensor], outputs: Tensor, weights: Tensor
) -> None:
    for index, seed in enumerate(weights):
        gradients = torch.autograd.grad(
            outputs,
            parameters,
            seed.to(outputs.dtype),
            retain_graph=index + 1 < len(weights),
            allow_unused=True,
        )
        pairs = zip(totals, gradients, strict=True)
        given = [(total[index], gradient) for total, gradient in pairs if gradient is not None]
        if given:
            torch._foreach_add_(*zip(*given, strict=True))  # one launch for all parameters


def pair_norms(grams: Tensor) -> tuple[Tensor, Tensor]:
    r"""Norms of kernels from inner products of probes, and the same without each probe in turn.

    .. math:: \|K_c\|_F^2 = E\,(z_a^\top K_c z_b)^2, \qquad a \ne b

    Args:
        grams: (layers, s, s).

    Returns:
        Estimates (layers,) and leave-one-out estimates (layers, s).
    """
    s = grams.shape[1]
    squares = grams.square()
    squares = squares - torch.diag_embed(squares.diagonal(dim1=1, dim2=2))
    total, rows = squares.sum((1, 2)), squares.sum(2)
    every = total / (s * (s - 1))
    without = (total[:, None] - 2 * rows) / ((s - 1) * (s - 2))
    return every.sqrt(), without.clamp(min=0.0).sqrt()


def jackknife_covariance(replicates: Tensor) -> Tensor:
    """Covariance of estimates from their leave-one-out values, (layers, s) -> (layers, layers)."""
    s = replicates.shape[1]
    centered = replicates - replicates.mean(1, keepdim=True)
    return (s - 1) / s * (centered @ centered.T)
