"""Training on random labels of one domain, then measuring and fine-tuning on another."""

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from theodolite.interventions import replace_head_
from theodolite.measures.representation import one_vs_one_difference, prepare_features
from theodolite_papers.imani2022._domains import Start
from theodolite_papers.imani2022._profiles import hidden_layers
from theodolite_papers.lab.data import random_labels
from theodolite_papers.lab.training import Recipe, evaluate, train, train_ensemble
from theodolite_papers.ledger import Trial

__all__ = ["POINTS", "Length", "accuracies", "difference", "memorize"]

POINTS = 51


@dataclass(frozen=True)
class Length:
    """An optimiser, its rate, and how long it runs."""

    optimizer: str
    learning_rate: float
    epochs: int
    batch_size: int


def _recipe(length: Length, seed: int) -> Recipe:
    return Recipe(
        optimizer=length.optimizer,  # type: ignore[arg-type]
        learning_rate=length.learning_rate,
        epochs=length.epochs,
        batch_size=length.batch_size,
        seed=seed,
        log="ends",
    )


def _copy(
    model: nn.Module, start: Start, generator: torch.Generator, *, new_head: bool
) -> nn.Module:
    copy = deepcopy(model)
    if not new_head:
        return copy
    return replace_head_(copy, start.num_classes, initializer="default", generator=generator)


def _trained(
    networks: list[nn.Module], data: list[tuple[Tensor, Tensor]], recipe: Recipe
) -> list[float]:
    """Final training losses; networks are trained together where their data have one shape."""
    if len({(x.shape, y.shape) for x, y in data}) == 1:
        return [log.final.train.loss for log in train_ensemble(networks, data, recipe)]
    return [
        train(network, pair, recipe).final.train.loss
        for network, pair in zip(networks, data, strict=True)
    ]


def memorize(
    length: Length, start: Start, trial: Trial, new_heads: bool
) -> tuple[dict[str, nn.Module], dict[str, float]]:
    """One network per domain, trained on uniformly random labels of its images."""
    generator = trial.generator(40)
    networks = [_copy(start.model, start, generator, new_head=new_heads) for _ in start.domains]
    data = [
        (domain.source, random_labels(len(domain.source), start.num_classes, generator))
        for domain in start.domains.values()
    ]
    losses = _trained(networks, data, _recipe(length, trial.seed))
    return dict(zip(start.domains, networks, strict=True)), dict(
        zip(start.domains, losses, strict=True)
    )


def difference(
    start: Start, models: dict[str, nn.Module], pair: tuple[str, str], bias: bool
) -> Tensor:
    """Mean over the target's tasks of the curve without the source less that with it."""
    source, target = pair
    domain = start.domains[target]
    images, labels = (
        torch.cat([domain.train, domain.test]),
        torch.cat([domain.y_train, domain.y_test]),
    )
    rows = []
    for model in (start.model, models[source]):
        found = hidden_layers(model, images, [start.layer])[start.layer]
        rows.append(prepare_features(found, bias=bias).features)
    labels = labels.to(rows[0].device)
    grid = torch.linspace(0, 1, POINTS, dtype=torch.float64, device=rows[0].device)
    return one_vs_one_difference(rows[0], rows[1], labels, grid).mean.cpu()


def accuracies(
    length: Length, start: Start, models: dict[str, nn.Module], trial: Trial, new_heads: bool
) -> dict[str, float]:
    """Test accuracy after fine-tuning, from every start to every other domain."""
    generator = trial.generator(41)
    cases = [("none", target) for target in start.domains]
    cases += [(source, target) for source in start.domains for target in start.others(source)]
    networks = [
        _copy(
            start.model if source == "none" else models[source],
            start,
            generator,
            new_head=new_heads,
        )
        for source, _ in cases
    ]
    data = [(start.domains[t].train, start.domains[t].y_train) for _, t in cases]
    recipe = _recipe(length, trial.seed)
    _trained(networks, data, recipe)
    results = {}
    for (source, target), network in zip(cases, networks, strict=True):
        domain = start.domains[target]
        device = next(network.parameters()).device
        test = evaluate(network, domain.test.to(device), domain.y_test.to(device), recipe.loss)
        results[f"accuracy_{source}_on_{target}"] = test.accuracy
    return results
