"""Two peaks functions without a common variable as sources, the related ones as targets."""

from copy import deepcopy
from dataclasses import dataclass, field

import torch
from torch import nn

from theodolite.interventions import replace_head_
from theodolite_papers.imani2022._networks import (
    Training,
    layer_names,
    recipe_for,
)
from theodolite_papers.imani2022._peaks import draw_tasks, sample, train_on_source
from theodolite_papers.imani2022._sources import (
    GROUPS,
    Comparison,
    Target,
    compare_sources,
)
from theodolite_papers.lab.data import related_tasks
from theodolite_papers.lab.training import train_ensemble
from theodolite_papers.ledger import Trial

__all__ = ["PeaksSizes", "peaks_sources"]

_DEPTH = 4


@dataclass(frozen=True)
class PeaksSizes:
    """Sizes of the experiment on peaks functions.

    Args:
        train: examples of a source.
        target: fresh examples on which all targets are measured.
        few: how many of them fine-tuning sees; the others test it.
        training: on the sources.
        fine_tuning: on the targets.
    """

    train: int = 1500
    target: int = 1000
    few: int = 200
    training: Training = field(default_factory=lambda: Training(epochs=80))
    fine_tuning: Training = field(default_factory=lambda: Training(epochs=30))


def peaks_sources(config: PeaksSizes, trial: Trial, *, bias: bool) -> Comparison:
    """Train one network on each source and compare them on the ten related tasks."""
    drawn = draw_tasks(trial)
    sources = dict(zip(GROUPS, (drawn.source, drawn.unrelated), strict=True))
    examples = sample(config.train, trial.generator())
    models = {
        group: train_on_source(
            examples, source, _DEPTH, config.training, trial, stream=30 + index
        ).trained
        for index, (group, source) in enumerate(sources.items())
    }
    fresh = sample(config.target, trial.generator(32))
    names = [(group, task) for group, source in sources.items() for task in related_tasks(source)]
    targets = [
        Target(group, fresh.inputs.float(), fresh.labels(task).float()) for group, task in names
    ]
    curves, areas = compare_sources(models, layer_names(_DEPTH), targets, bias=bias)
    return Comparison(curves, areas, _fine_tune(config, models, targets, trial))


def _fine_tune(
    config: PeaksSizes, models: dict[str, nn.Module], targets: list[Target], trial: Trial
) -> dict[str, float]:
    """Relative test errors by source and kind of target; all networks are trained together."""
    cases = [(source, target) for source in GROUPS for target in targets]
    generator = trial.generator(33)
    networks = [
        replace_head_(deepcopy(models[source]), 1, initializer="default", generator=generator)
        for source, _ in cases
    ]
    few = config.few
    data = [(target.inputs[:few], target.labels[:few]) for _, target in cases]
    recipe = recipe_for(config.fine_tuning, trial.seed, regression=True)
    train_ensemble(networks, data, recipe)
    errors: dict[str, list[float]] = {}
    for (source, target), network in zip(cases, networks, strict=True):
        with torch.no_grad():
            outputs = network(target.inputs[few:].to(trial.device)).squeeze(1).cpu()
        labels = target.labels[few:]
        error = float((outputs - labels).square().mean() / labels.square().mean())
        errors.setdefault(f"{source}_on_{target.group}", []).append(error)
    return {key: sum(values) / len(values) for key, values in errors.items()}
