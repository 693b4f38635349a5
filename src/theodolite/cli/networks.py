"""The demo's networks: trained on digits, and measured while they learn."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.optim.adam import adam

from theodolite.cli.story import CNN, StorySettings
from theodolite.data import digits, random_labels, scaled
from theodolite.interventions import initialize_
from theodolite.records import FAMILIES
from theodolite.surveys import History, Monitor
from theodolite.sweeps import Report

# More examples than a monitor uses by default: the networks are small, and pictures need them.
_SIZES = {
    "representation": 500,
    "covariance": 500,
    "kernel": 500,
    "tangent": 100,
    "gradient": 500,
}
_NULLS = 10
_BATCH = 128
Examples = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Watched:
    """A trained network.

    Args:
        histories: histories by name, on training examples with their training labels.
        accuracies: accuracies on its training set (training labels) and on the test set.
        sizes: sizes of the training set and of the test set.
    """

    histories: Mapping[str, History]
    accuracies: tuple[float, float]
    sizes: tuple[int, int]


def watch_network(name: str, settings: StorySettings, report: Report) -> Watched:
    """Train a network; measure all families on training examples, and the held-out accuracy."""
    seed = settings.seed
    data = scaled(digits(generator=torch.Generator().manual_seed(seed)), "unit_interval")
    own = data.x_train[: settings.examples], data.y_train[: settings.examples]
    held_out = data.x_test, data.y_test
    labels, truth = "true", None
    if name == "random labels":
        labels, truth = "random", own[1]
        own = own[0], random_labels(truth, torch.Generator().manual_seed(seed + 1))
    layers = _convolutional() if name == CNN else _dense(settings.width)
    generator = torch.Generator().manual_seed(seed)
    model = initialize_(nn.Sequential(OrderedDict(layers)), generator=generator)
    with _one_thread():
        monitor = Monitor(
            model,
            own,
            held_out=held_out,
            truth=truth,
            every=settings.measured_steps()[:-1],  # closing the monitor measures the last step
            cadence={"curves": 2},
            families=tuple(FAMILIES),
            sizes=_SIZES,
            permutations=_NULLS,
            name=name,
            tangent="exact",
            details=name != CNN,
            split="train",
            label_source=labels,
        )
        called = "the CNN (true labels)" if name == CNN else f"the MLP ({name})"

        def watch(step: int) -> None:
            if step % max(1, settings.steps // 50) == 0:
                report(step / settings.steps, f"training {called}")
            monitor.step(step)

        with monitor:
            _train(model, own, settings, watch)
        accuracies = (_accuracy(model, own), _accuracy(model, held_out))
        return Watched({name: monitor.history}, accuracies, (len(own[1]), len(held_out[1])))


def _dense(width: int) -> dict[str, nn.Module]:
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    for index, (inputs, outputs) in enumerate(pairwise([64, *[width] * 3, 10]), start=1):
        layers[f"fc{index}"] = nn.Linear(inputs, outputs)
        layers[f"act{index}"] = nn.ReLU()
    del layers["act4"]
    return layers


def _convolutional() -> dict[str, nn.Module]:
    return {
        "conv1": nn.Conv2d(1, 16, 3, padding=1),
        "relu1": nn.ReLU(),
        "conv2": nn.Conv2d(16, 16, 3, padding=1),
        "relu2": nn.ReLU(),
        "flatten": nn.Flatten(),
        "dense": nn.Linear(16 * 8 * 8, 64),
        "relu3": nn.ReLU(),
        "head": nn.Linear(64, 10),
    }


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread per operation, because a second thread does not help with small matrices."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)


def _train(
    model: nn.Module, data: Examples, settings: StorySettings, watch: Callable[[int], None]
) -> None:
    """Adam on small batches: fits random labels within the given steps.

    It is written out, because the first optimizer of a process imports ``torch._dynamo``, which
    takes a second.
    """
    inputs, labels = data
    generator = torch.Generator().manual_seed(settings.seed)
    weights: list[Tensor] = [*model.parameters()]
    means, squares = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
    steps = [torch.tensor(0.0) for _ in weights]
    update = partial(
        adam,
        lr=1e-3,
        beta1=0.9,
        beta2=0.999,
        eps=1e-8,
        weight_decay=0.0,
        amsgrad=False,
        maximize=False,
    )
    order = torch.empty(0, dtype=torch.long)
    watch(0)
    for step in range(1, settings.steps + 1):
        if len(order) < _BATCH:
            order = torch.randperm(len(inputs), generator=generator)
        rows, order = order[:_BATCH], order[_BATCH:]
        loss = nn.functional.cross_entropy(model(inputs[rows]), labels[rows])
        gradients = list(torch.autograd.grad(loss, weights))
        with torch.no_grad():
            update(weights, gradients, means, squares, [], steps)
        watch(step)


def _accuracy(model: nn.Module, data: Examples) -> float:
    with torch.no_grad():
        return (model(data[0]).argmax(1) == data[1]).double().mean().item()
