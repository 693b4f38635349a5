"""Many small networks of one architecture at once: their parameters stacked, one vmapped step."""

import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from theodolite.engine.state import preserved_generators
from theodolite.errors import ShapeError
from theodolite_papers.lab.training.batches import Data, PlacedData, place_data
from theodolite_papers.lab.training.evaluation import (
    CHUNK,
    Evaluation,
    TrainingLog,
    evaluate_function,
    hits,
    in_mode,
)
from theodolite_papers.lab.training.loop import Networks, TrainingLoop
from theodolite_papers.lab.training.optimizers import build_optimizer, own_stream, parameter_rates
from theodolite_papers.lab.training.recipe import Recipe

__all__ = ["Watch", "train_ensemble"]


@dataclass(frozen=True)
class Watch:
    """A function that is called with all networks of an ensemble at chosen steps.

    Args:
        steps: numbers of finished steps; 0 is before the first.
        call: (step, networks) -> True ends the run, anything else goes on. A network that a rule
            has stopped is shown as it was then.
    """

    steps: Collection[int]
    call: Callable[[int, Sequence[nn.Module]], object]


def train_ensemble(
    models: Sequence[nn.Module],
    data: Data | Sequence[Data],
    recipe: Recipe,
    *,
    seeds: Sequence[int] | None = None,
    test: Data | None = None,
    watch: Watch | None = None,
) -> list[TrainingLog]:
    """Train networks of one architecture together, in place; each ends as if trained alone.

    Network i is trained by ``replace(recipe, seed=seeds[i])``, up to rounding. A network that a
    rule stops keeps its parameters of that step. Networks with dropout get other masks than
    alone.

    Args:
        models: the networks, on one device; equal but for the values of their parameters.
        data: inputs and targets for all of them, or one pair per network, of equal shapes.
        recipe: how to train.
        seeds: one per network; ``recipe.seed``, ``recipe.seed + 1``, ... if not given.
        test: a second set for all of them.
        watch: a function to call at some steps, with the networks as they are then.

    Returns:
        One log per network.

    Raises:
        ShapeError: If the networks differ, or the data or seeds are not one per network.
        DivergenceError: If the loss of a network is not finite; names network and step.

    Example:
        >>> x = torch.randn(32, 2, generator=torch.Generator().manual_seed(0))
        >>> nets = [nn.Linear(2, 2) for _ in range(3)]
        >>> logs = train_ensemble(nets, (x, (x[:, 0] > 0).long()), Recipe(epochs=5))
        >>> [log.steps for log in logs]
        [5, 5, 5]
    """
    _require_alike(models)
    seeds = [recipe.seed + i for i in range(len(models))] if seeds is None else list(seeds)
    if len(seeds) != len(models):
        raise ShapeError(f"seeds: expected one per network ({len(models)}), got {len(seeds)}")
    placed = _place_all(models, data, recipe)
    tested = None if test is None else place_data(models[0], test, recipe.loss, "test")
    with ExitStack() as stack:
        stack.enter_context(
            preserved_generators({p.device for p in models[0].parameters() if p.is_cuda})
        )
        stack.enter_context(own_stream(placed.inputs.device))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="There is a performance drop")
        networks = _StackedNetworks(models, recipe)
        loop = TrainingLoop(networks, placed, recipe, seeds=seeds, test=tested)

        def ends_the_run() -> bool:
            if watch is None or loop.step not in watch.steps:
                return False
            for index in loop.running:
                networks.write_back(index)
            return watch.call(loop.step, models) is True

        return loop.run(None if watch is None else ends_the_run)


class _StackedNetworks(Networks):
    """Parameters and buffers of all networks, one row each, and the losses they give."""

    def __init__(self, models: Sequence[nn.Module], recipe: Recipe) -> None:
        self.models, self.loss = models, recipe.loss
        self.count = len(models)
        rates = parameter_rates(models[0], recipe)
        parameters, self.buffers = torch.func.stack_module_state(list(models))
        self.parameters: dict[str, Tensor] = {
            name: value.detach().requires_grad_(rates.get(name, 0.0) > 0)
            for name, value in parameters.items()
        }
        self.optimizer = build_optimizer(self.parameters.items(), rates, recipe)
        self._skeleton = deepcopy(models[0]).to("meta")

    def outputs(self, inputs: Tensor, *, shared: bool, training: bool) -> Tensor:
        """Outputs of every network: (networks, examples, ...)."""

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
            return torch.func.functional_call(self._skeleton, (parameters, buffers), (x,))

        mapped = torch.func.vmap(one, in_dims=(0, 0, None if shared else 0), randomness="different")
        with in_mode(self._skeleton, training=training):
            return mapped(self.parameters, self.buffers, inputs)

    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of every network on its own batch."""
        outputs = self.outputs(inputs, shared=False, training=True)
        return self.per_example(outputs, targets).mean(1)

    def per_example(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Losses (networks, examples); the loss function treats examples of all networks alike."""
        return self.loss(outputs.flatten(0, 1), targets.flatten(0, 1)).view(outputs.shape[:2])

    def evaluations(self, data: PlacedData) -> list[Evaluation]:
        """Mean loss and accuracy of every network."""

        def losses_and_hits(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            outputs = self.outputs(x, shared=not data.stacked, training=False)
            y = y if data.stacked else y.expand(self.count, *y.shape)
            right = hits(outputs.flatten(0, 1), y.flatten(0, 1)).view(outputs.shape[:2])
            return self.per_example(outputs, y), right

        chunk = max(1, 8 * CHUNK // self.count)
        return evaluate_function(
            losses_and_hits, data.inputs, data.targets, int(data.stacked), chunk
        )

    def write_back(self, index: int) -> None:
        """Give one network the parameters and buffers that it has now."""
        state = {**self.parameters, **self.buffers}
        with torch.no_grad():
            for name, value in (
                *self.models[index].named_parameters(),
                *self.models[index].named_buffers(),
            ):
                value.copy_(state[name][index])


def _require_alike(models: Sequence[nn.Module]) -> None:
    if not models:
        raise ShapeError("models: expected at least one network, got none")
    first = {name: value.shape for name, value in models[0].state_dict().items()}
    for index, model in enumerate(models):
        shapes = {name: value.shape for name, value in model.state_dict().items()}
        if shapes != first or type(model) is not type(models[0]):
            raise ShapeError(
                "models: expected networks that differ only in the values of their parameters, "
                f"but network {index} is unlike network 0; train unlike networks one by one"
            )


def _place_all(
    models: Sequence[nn.Module], data: Data | Sequence[Data], recipe: Recipe
) -> PlacedData:
    if isinstance(data, tuple) and len(data) == 2 and not isinstance(data[0], tuple):
        return place_data(models[0], data, recipe.loss)
    pairs = [place_data(models[0], pair, recipe.loss) for pair in data]
    if len(pairs) != len(models):
        raise ShapeError(f"data: expected one pair per network ({len(models)}), got {len(pairs)}")
    if len({(pair.inputs.shape, pair.targets.shape) for pair in pairs}) > 1:
        raise ShapeError("data: expected pairs of equal shapes, one per network")
    inputs, targets = ([getattr(pair, part) for pair in pairs] for part in ("inputs", "targets"))
    return PlacedData(torch.stack(inputs), torch.stack(targets), stacked=True)
