"""Many small networks of one architecture at once: their parameters stacked, one vmapped step."""

import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from theodolite.engine.state import preserved_generators
from theodolite.errors import ShapeError
from theodolite_papers.lab.training.batches import Batches, place_data
from theodolite_papers.lab.training.course import Course, Sets
from theodolite_papers.lab.training.evaluation import CHUNK, Evaluation, evaluate_function, hits
from theodolite_papers.lab.training.log import TrainingLog, logged_steps
from theodolite_papers.lab.training.modes import in_mode
from theodolite_papers.lab.training.optimizers import build_optimizer, parameter_rates, set_rates
from theodolite_papers.lab.training.recipe import Recipe
from theodolite_papers.lab.training.schedules import schedule_factor
from theodolite_papers.lab.training.seeds import derived_seed
from theodolite_papers.lab.training.stepper import Stepper, own_stream

__all__ = ["Watch", "train_ensemble"]

Data = tuple[Any, Any]


@dataclass(frozen=True)
class Watch:
    """A function that sees all networks of an ensemble at chosen steps.

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

    Network i is trained by ``replace(recipe, seed=seeds[i])``, up to rounding. One that a rule
    stops keeps the parameters that it had then. Networks with dropout see other masks than alone.

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
    tested = None if test is None else _Data(*place_data(models[0], test, recipe.loss, "test"))
    with ExitStack() as stack:
        stack.enter_context(preserved_generators(models[0]))
        stack.enter_context(own_stream(placed.inputs.device))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="There is a performance drop")
        torch.manual_seed(derived_seed(recipe.seed, "noise"))
        return _Run(_Stacked(models, recipe), seeds, recipe, placed, tested).logs(watch)


@dataclass(frozen=True)
class _Data:
    """Inputs and targets, shared by the networks or with one row for each."""

    inputs: Tensor
    targets: Tensor
    stacked: bool = False

    @property
    def examples(self) -> int:
        return self.inputs.shape[int(self.stacked)]


class _Stacked:
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
        self.dtype = next(iter(self.parameters.values())).dtype
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
        """Losses (networks, examples): a loss of one example does not ask whose example it is."""
        return self.loss(outputs.flatten(0, 1), targets.flatten(0, 1)).view(outputs.shape[:2])

    def evaluations(self, data: _Data) -> list[Evaluation]:
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


class _Run:
    """The loop of :func:`train` for all networks in step; each has its own course and end."""

    def __init__(
        self,
        networks: _Stacked,
        seeds: Sequence[int],
        recipe: Recipe,
        data: _Data,
        test: _Data | None,
    ) -> None:
        self._networks, self._recipe, self._data, self._test = networks, recipe, data, test
        examples = data.examples
        self._total, self._per_epoch = (
            recipe.total_steps(examples),
            recipe.steps_per_epoch(examples),
        )
        self._logged = logged_steps(recipe, examples)
        self._batches = Batches(data.inputs, data.targets, recipe, seeds, data.stacked)
        self._stepper = Stepper(self._losses, networks.optimizer, recipe.graphs)
        self._factor, self._evaluated, self._sets = 1.0, -1, list[Sets]()
        self._step = 0
        self._courses = [
            Course(recipe, examples, partial(self._evaluate, i)) for i in range(networks.count)
        ]
        self._logs: dict[int, TrainingLog] = {}

    def _losses(self, *arguments: Tensor) -> Tensor:
        return self._networks.losses(*self._batches.assemble(*arguments))

    def logs(self, watch: Watch | None = None) -> list[TrainingLog]:
        """Run to the end."""
        count, data = self._networks.count, self._data
        dtype = torch.promote_types(self._networks.dtype, torch.float32)
        losses = torch.zeros(self._per_epoch, count, device=data.inputs.device, dtype=dtype)
        for course in self._courses:
            course.record(0)
        if self._watched(watch):
            for index in range(count):
                self._finish(index, "callback")
        while len(self._logs) < count:
            position = self._step % self._per_epoch
            losses[position] = self._advance()
            last = self._step == self._total
            ended = last or self._step % self._per_epoch == 0
            running = [index for index in range(count) if index not in self._logs]
            reasons = self._close_epoch(losses, running) if ended else {}
            stopped = "callback" if self._watched(watch) else "length" if last else None
            for index in running:
                if self._step in self._logged:
                    self._courses[index].record(self._step)
                reason = reasons.get(index) or stopped
                if reason is not None:
                    self._finish(index, reason)
        return [self._logs[index] for index in range(count)]

    def _watched(self, watch: Watch | None) -> bool:
        """Whether the watching function, if it is its turn, ends the run."""
        if watch is None or self._step not in watch.steps:
            return False
        for index in range(self._networks.count):
            if index not in self._logs:
                self._networks.write_back(index)
        return watch.call(self._step, self._networks.models) is True

    def _advance(self) -> Tensor:
        recipe, step = self._recipe, self._step
        factor = schedule_factor(recipe.schedule, step, self._total, step // self._per_epoch)
        if factor != self._factor:
            set_rates(self._networks.optimizer, factor)
            self._factor = factor
        self._step += 1
        return self._stepper(*self._batches.arguments(step))

    def _close_epoch(self, losses: Tensor, running: list[int]) -> dict[int, str | None]:
        done = (self._step - 1) % self._per_epoch + 1
        columns = losses[:done].T.tolist()
        reasons: dict[int, str | None] = {}
        for index in running:
            self._courses[index].check(columns[index], self._step, index)
            reasons[index] = self._courses[index].close_epoch(columns[index], self._step)
        return reasons

    def _evaluate(self, index: int) -> Sets:
        """All networks are evaluated together, at the first that asks after a step."""
        if self._evaluated != self._step:
            train = self._networks.evaluations(self._data)
            none: list[Evaluation | None] = [None] * self._networks.count
            test = none if self._test is None else self._networks.evaluations(self._test)
            self._sets = list(zip(train, test, strict=True))
            self._evaluated = self._step
        return self._sets[index]

    def _finish(self, index: int, stopped: str) -> None:
        """The network keeps what it has now; the others go on."""
        self._courses[index].record(self._step)
        self._networks.write_back(index)
        self._logs[index] = self._courses[index].log(self._step, stopped)


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


def _place_all(models: Sequence[nn.Module], data: Data | Sequence[Data], recipe: Recipe) -> _Data:
    if isinstance(data, tuple) and len(data) == 2 and not isinstance(data[0], tuple):
        return _Data(*place_data(models[0], data, recipe.loss))
    pairs = [place_data(models[0], pair, recipe.loss) for pair in data]
    if len(pairs) != len(models):
        raise ShapeError(f"data: expected one pair per network ({len(models)}), got {len(pairs)}")
    if len({(x.shape, y.shape) for x, y in pairs}) > 1:
        raise ShapeError("data: expected pairs of equal shapes, one per network")
    inputs, targets = zip(*pairs, strict=True)
    return _Data(torch.stack(inputs), torch.stack(targets), stacked=True)
