"""Rules that choose sources without fine-tuning, and the choices that they are compared with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.sources.problems import Problem
from benchmarks.sources.truth import rows_of, subsets
from theodolite.linalg import RIDGES

COPY = 0.25  # of the median squared distance of a target example to its nearest neighbour


@dataclass(frozen=True)
class Draw:
    """One draw of a problem, as the start network sees it.

    Args:
        problem: the problem.
        layers: features of every layer, (n, d) each; the target's rows come first.
        labels: of all rows.
        gradients: mean gradient of the target's loss and of each source's, one row each.
    """

    problem: Problem
    layers: Sequence[Tensor]
    labels: Tensor
    gradients: Tensor

    def part(self, source: int | None) -> Tensor:
        """Rows of one source, or of the target."""
        problem = self.problem
        if source is None:
            return torch.arange(problem.labels)
        return problem.labels + source * problem.each + torch.arange(problem.each)


def stacked(layers: Sequence[Tensor]) -> Tensor:
    """Features of several layers side by side, each layer in equal share.

    Their Gram matrix is the mean of those of the layers, each with a mean eigenvalue of one.
    """
    parts = []
    for layer in layers:
        centred = layer.double() - layer.double().mean(0)
        parts.append(centred / centred.square().sum(1).mean().sqrt())
    return torch.cat(parts, 1) / len(layers) ** 0.5


def near_duplicates(features: Tensor, target: int) -> Tensor:
    """Which examples are near-duplicates of which target example, (target, n).

    Two examples are if their squared distance is below ``COPY`` times the median, over the target's
    examples, of the squared distance to the nearest other one.
    """
    distance = torch.cdist(features[:target], features).square()
    own = distance[:, :target].clone().fill_diagonal_(torch.inf)
    return (distance < COPY * own.min(1).values.median()) | torch.eye(target, len(features)).bool()


def target_errors(features: Tensor, labels: Tensor, target: int, classes: int) -> Tensor:
    """Squared error of every target example, left out with its near-duplicates.

    The ridge is that of least error over the target's examples.
    """
    n = len(features)
    columns = functional.one_hot(labels, classes).double()
    vectors, lengths, _ = torch.linalg.svd(features - features.mean(0), full_matrices=False)
    values, missing = lengths.square(), columns - columns.mean(0)
    parts, copies, best = vectors.mT @ missing, near_duplicates(features, target), None
    for ridge in RIDGES:
        kept = values / (values + ridge * values.sum() / n)
        residuals = missing - vectors @ (kept[:, None] * parts)
        own = 1 - vectors[:target].square() @ kept - 1 / n
        missed = residuals[:target] / own.clamp_min(1e-9)[:, None]
        for row in (copies.sum(1) > 1).nonzero().flatten().tolist():
            group = copies[row].nonzero().flatten()
            block = (1 + 1e-9) * torch.eye(len(group)) - 1 / n
            block = block - (vectors[group] * kept) @ vectors[group].mT
            whole = torch.linalg.solve(block, residuals[group])
            missed[row] = whole[(group == row).nonzero().item()]
        errors = missed.square().sum(1)
        if best is None or errors.mean() < best.mean():
            best = errors
    assert best is not None
    return best


def error_function(draw: Draw, layers: Sequence[Tensor]) -> Callable[[tuple[int, ...]], float]:
    """From sources to the target's mean leave-one-out error with them."""
    problem, features = draw.problem, stacked(layers)

    @cache
    def error(sources: tuple[int, ...]) -> float:
        rows = rows_of(problem, sources)
        found = target_errors(features[rows], draw.labels[rows], problem.labels, problem.classes)
        return float(found.mean())

    return error


def errors_of_subsets(draw: Draw) -> dict[tuple[int, ...], float]:
    """Leave-one-out error with every subset of at most two sources, and with all."""
    error = error_function(draw, draw.layers)
    whole = tuple(range(len(draw.problem.sources)))
    return {
        chosen: error(chosen)
        for chosen in subsets(draw.problem)
        if len(chosen) < 3 or chosen == whole
    }


def regression(draw: Draw, layers: Sequence[Tensor]) -> tuple[int, ...]:
    """Add the source that lowers the target's leave-one-out error most, while one does."""
    problem, chosen, error = draw.problem, (), error_function(draw, layers)
    least = error(chosen)
    while len(chosen) < len(problem.sources):
        left = [k for k in range(len(problem.sources)) if k not in chosen]
        tried = {k: error(tuple(sorted((*chosen, k)))) for k in left}
        best = min(tried, key=tried.__getitem__)
        if tried[best] >= least:
            break
        chosen, least = tuple(sorted((*chosen, best))), tried[best]
    return chosen


def centroids(draw: Draw, source: int | None) -> Tensor:
    """Mean of every class in the last layer, less the mean of all, in one vector."""
    rows = draw.part(source)
    features, labels = draw.layers[-1][rows].cpu(), draw.labels[rows]
    means = [
        features[labels == k].mean(0) if (labels == k).any() else features.mean(0)
        for k in range(draw.problem.classes)
    ]
    return (torch.stack(means) - features.mean(0)).flatten()


def by_centroids(draw: Draw, least: float) -> tuple[int, ...]:
    """Sources whose class means point where the target's do."""
    own = centroids(draw, None)
    places = range(len(draw.problem.sources))
    close = [functional.cosine_similarity(own, centroids(draw, k), dim=0) for k in places]
    return tuple(k for k in places if close[k] > least)


def by_embedding(draw: Draw) -> tuple[int, ...]:
    """The source whose mean feature in the last layer is nearest to the target's."""
    own = draw.layers[-1][draw.part(None)].mean(0)
    places = range(len(draw.problem.sources))
    means = [draw.layers[-1][draw.part(k)].mean(0) for k in places]
    close = [float(functional.cosine_similarity(own, mean, dim=0)) for mean in means]
    return (max(places, key=close.__getitem__),)


def by_gradients(draw: Draw) -> tuple[int, ...]:
    """Sources whose mean gradient has a positive cosine with the target's."""
    own, *others = draw.gradients
    return tuple(
        k for k, other in enumerate(others) if functional.cosine_similarity(own, other, dim=0) > 0
    )


RULES: Mapping[str, Callable[[Draw], tuple[int, ...]]] = {
    "regression, all layers": lambda draw: regression(draw, draw.layers),
    "regression, last layer": lambda draw: regression(draw, draw.layers[-1:]),
    "class centroids, cosine > 0": lambda draw: by_centroids(draw, 0.0),
    "class centroids, cosine > 0.5": lambda draw: by_centroids(draw, 0.5),
    "nearest by embedding": by_embedding,
    "cosine of mean gradients > 0": by_gradients,
    "all sources": lambda draw: tuple(range(len(draw.problem.sources))),
    "target only": lambda _draw: (),
}
