"""Comparison of two models on the same data: surveys of both, and all pairs of their layers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from theodolite._distributed import Processes
from theodolite.engine import Features, features, model_device, untouched, unwrap
from theodolite.errors import DomainError
from theodolite.linalg import double, u_center
from theodolite.measures import kernel
from theodolite.report import LayerPairs, LayerSimilarity
from theodolite.surveys.options import SurveyOptions
from theodolite.surveys.probe import Probe, draw_probe, fit_inputs, reusable
from theodolite.surveys.results import Comparison, Survey, compare
from theodolite.surveys.run import survey

_NEAREST = 10  # number of neighbours of each example that are compared
_LEAST_PERMUTATIONS = 20  # with fewer a difference cannot be significant at 5 %


def compare_models(
    first: nn.Module,
    second: nn.Module,
    data: Any,
    *,
    names: Sequence[str] | None = None,
    options: Any = None,
    **keywords: Any,
) -> Comparison:
    """Surveys of both models on the same examples, and similarities of all pairs of their layers.

    Raises:
        DomainError: If the data come in another order the second time.
    """
    unused = ("held_out", "targets", "truth", "progress")
    chosen = SurveyOptions.of(options, **{k: v for k, v in keywords.items() if k not in unused})
    processes = Processes.of(chosen.group)
    targets = keywords.get("targets")
    everything = reusable(data, chosen, targets, empty=not processes.alone)
    if chosen.examples is not None:  # keep the batches that were read, for the second survey
        keywords = keywords | {"targets": None}
    found = [survey(model, everything, options=options, **keywords) for model in (first, second)]
    probe = draw_probe(everything, chosen, processes, targets=keywords.get("targets"))
    hashes = {entry.record.contents["data"]["probe_hash"] for entry in found}
    if hashes != {probe.digest}:
        raise DomainError(
            "data: expected the same examples for both models, got others the second time; pass a "
            "loader with shuffle=False, or (inputs, targets)"
        )
    few = min(_examples(entry, len(probe)) for entry in found)
    one, two = (
        _features(m, probe, few, s, chosen) for m, s in zip((first, second), found, strict=True)
    )
    together = compare(*found, names=names or ["first", "second"])
    return replace(together, pairs=_pairs(one, two, chosen))


def _examples(found: Survey, most: int) -> int:
    """The number of examples of the survey's Gram matrices, after cuts for time and memory."""
    config, skipped = found.record.contents["config"], found.record.contents["skipped"]
    for family in ("kernel", "representation"):
        if family in config["families"] and family not in skipped:
            return min(most, config["sizes"][family] or most)
    return min(most, config["sizes"]["kernel"] or most)


def _features(
    model: nn.Module, probe: Probe, count: int, found: Survey, options: SurveyOptions
) -> Features:
    """Features of the layers of a survey at their `read_at` places, for the first examples."""
    layers = found.record.contents["layers"]
    names = [layer["name"] for layer in layers if layer["output_shape"] is not None]
    inner = unwrap(model)
    with untouched(inner):
        inner.eval()
        place = options.device or model_device(inner)
        here = replace(probe, batch=probe.batch.take(slice(0, count)).to(place))
        cast = fit_inputs(inner, here, options).cast
        batch = here.batch if cast is None else cast(here.batch)
        return features(inner, batch, names, options.reduction, read=options.read)


def _pairs(
    first: Mapping[str, Tensor], second: Mapping[str, Tensor], options: SurveyOptions
) -> LayerPairs:
    """Similarities of every pair of layers, and those of permuted examples."""
    import pandas as pd

    sides = [[double(rows.cpu()) for rows in side.values()] for side in (first, second)]
    count = len(sides[0][0])
    nearest = min(_NEAREST, max(1, count // 4))
    permutations = options.permutations and max(options.permutations, _LEAST_PERMUTATIONS)
    generator = torch.Generator().manual_seed(options.seed)
    orders = [torch.randperm(count, generator=generator) for _ in range(permutations)]

    def similarity(values: Tensor, rows: Tensor, columns: Tensor) -> LayerSimilarity:
        """Both similarities are inner products of matrices between examples."""
        drawn = [rows @ columns[:, p][:, :, p].flatten(1).mT for p in orders]
        stacked = torch.stack(drawn) if drawn else torch.zeros(0, *values.shape)
        table = pd.DataFrame(values.numpy(), index=list(first), columns=list(second))
        null = stacked.double().numpy()
        empty = np.full(values.shape, np.nan)
        mean, sd = (null.mean(0), null.std(0, ddof=1)) if len(null) else (empty, empty)
        largest = null.reshape(len(null), -1).max(1) if len(null) else np.zeros(0)
        return LayerSimilarity(table, mean, sd, largest)

    between = kernel.cka_matrix([*sides[0], *sides[1]]).between[: len(first), len(first) :]
    centred = [torch.stack([_similarities(rows) for rows in side]) for side in sides]
    near = [torch.stack([_neighbours(rows, nearest) for rows in side]) for side in sides]
    shared = near[0].flatten(1) @ near[1].flatten(1).mT
    return LayerPairs(
        similarity(between, centred[0].flatten(1), centred[1]),
        similarity(shared, near[0].flatten(1), near[1]),
        nearest,
    )


def _similarities(rows: Tensor) -> Tensor:
    """The Gram matrix centred and of length one; products of two are debiased CKA."""
    gram = u_center(rows @ rows.mT)
    return (gram / gram.norm().clamp_min(1e-300)).float()


def _neighbours(rows: Tensor, nearest: int) -> Tensor:
    """1 for the nearest neighbours of every example, scaled so that products are shares."""
    distances = torch.cdist(rows, rows).fill_diagonal_(torch.inf)
    chosen = torch.zeros_like(distances, dtype=torch.float32)
    chosen.scatter_(1, distances.topk(nearest, largest=False).indices, 1.0)
    return chosen / (len(rows) * nearest) ** 0.5
