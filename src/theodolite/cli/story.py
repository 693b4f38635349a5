"""What the demo does: watch one network learn true and shuffled labels, then a small CNN."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor, nn

from theodolite.data import Dataset, digits, scaled, shuffled_labels
from theodolite.interventions import initialize_
from theodolite.records import FAMILIES, Answer
from theodolite.report import answers
from theodolite.surveys import History, Monitor, compare

__all__ = ["Check", "Story", "StorySettings", "one_thread", "story_checks", "tell_story"]

# More than a monitor takes by default: here the networks are small and the pictures are the point.
_SIZES = {
    "representation": 500,
    "covariance": 500,
    "kernel": 500,
    "tangent": 100,
    "gradient": 500,
}
_CNN = "CNN"
_NULLS = 10
_BATCH = 128
Show = Callable[[float, str], None]


@dataclass(frozen=True)
class StorySettings:
    """How large the demo is.

    Args:
        steps: training steps of each network.
        width: of the hidden layers of the dense network.
        moments: how often the networks are measured between the first and the last step.
        seed: of split, labels, weights and batches.
    """

    steps: int = 600
    width: int = 256
    moments: int = 8
    seed: int = 0

    def measured_steps(self) -> list[int]:
        """Before the first step, after the last, and denser early on."""
        spaced = torch.logspace(0, 1, self.moments, base=float(self.steps)).round().long()
        return sorted({0, self.steps, *spaced.tolist()})


@dataclass(frozen=True)
class Check:
    """One sentence about the numbers, whether it holds, and the numbers."""

    text: str
    holds: bool
    numbers: str


@dataclass(frozen=True)
class Story:
    """What the demo leaves behind.

    Args:
        histories: by name; training examples with the labels that the network was trained on, and
            for the dense networks, with ", test" after the name, test examples and true labels.
        accuracies: of each network, on its training set (own labels) and on the test set.
        checks: what the numbers should say, and whether they do.
        answers: the three sentences of the first page.
        reports: the page of the dense networks, and that of the CNN; one page would be large.
    """

    histories: Mapping[str, History]
    accuracies: Mapping[str, tuple[float, float]]
    checks: tuple[Check, ...]
    answers: tuple[Answer, ...]
    reports: tuple[Path, Path]


def tell_story(settings: StorySettings, folder: Path, show: Show) -> Story:
    """Train three networks with monitors on, save their histories, check and draw them.

    Args:
        settings: how large.
        folder: for one record per history, and the reports.
        show: called with (fraction done, what is being done).
    """
    data = scaled(digits(generator=torch.Generator().manual_seed(settings.seed)), "unit_interval")
    shuffled = shuffled_labels(data.y_train, torch.Generator().manual_seed(settings.seed + 1))
    stage = _Stage(settings, folder, show)
    stage.perform("true labels", stage.dense(), data, labels="true")
    own = data.with_labels(shuffled)
    stage.perform("shuffled labels", stage.dense(), own, labels="shuffled", truth=data.y_train)
    stage.perform(_CNN, stage.convolutional(), data, labels="true")
    show(1.0, "writing the reports")
    dense = [history for name, history in stage.histories.items() if name != _CNN]
    title = "Digits: true and shuffled labels"
    report = compare(*dense).to_html(folder / "report.html", title=title)
    cnn = stage.histories[_CNN].to_html(folder / "cnn.html", title="Digits: a small CNN")
    return Story(
        stage.histories,
        stage.accuracies,
        story_checks(stage.histories),
        tuple(answers([history.run for history in dense])),
        (report, cnn),
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """The demo's matrices are small: a second thread per operation only waits for the first."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)


class _Stage:
    """Trains one network after the other and keeps what was measured."""

    def __init__(self, settings: StorySettings, folder: Path, show: Show) -> None:
        self.settings, self.folder, self.show = settings, folder, show
        self.histories: dict[str, History] = {}
        self.accuracies: dict[str, tuple[float, float]] = {}

    def dense(self) -> nn.Module:
        sizes = [64, *[self.settings.width] * 3, 10]
        layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
        for index, (inputs, outputs) in enumerate(pairwise(sizes), start=1):
            layers[f"fc{index}"] = nn.Linear(inputs, outputs)
            layers[f"act{index}"] = nn.ReLU()
        del layers["act4"]
        return self._initialized(layers)

    def convolutional(self) -> nn.Module:
        layers = {
            "conv1": nn.Conv2d(1, 16, 3, padding=1),
            "relu1": nn.ReLU(),
            "conv2": nn.Conv2d(16, 16, 3, padding=1),
            "relu2": nn.ReLU(),
            "flatten": nn.Flatten(),
            "dense": nn.Linear(16 * 8 * 8, 64),
            "relu3": nn.ReLU(),
            "head": nn.Linear(64, 10),
        }
        return self._initialized(layers)

    def _initialized(self, layers: Mapping[str, nn.Module]) -> nn.Module:
        generator = torch.Generator().manual_seed(self.settings.seed)
        return initialize_(nn.Sequential(OrderedDict(layers)), generator=generator)

    def perform(
        self,
        name: str,
        model: nn.Module,
        data: Dataset,
        *,
        labels: str,
        truth: Tensor | None = None,
    ) -> None:
        """Train; measure all families on training examples, and kernels on held-out ones."""
        own, held_out = (data.x_train, data.y_train), (data.x_test, data.y_test)
        monitors = [self._monitor(model, own, name, split="train", labels=labels, truth=truth)]
        if name != _CNN:
            monitors += [self._monitor(model, held_out, f"{name}, test", split="test")]
        with ExitStack() as stack:
            for monitor in monitors:
                stack.enter_context(monitor)
            _train(model, own, self.settings, self._watcher(name, monitors))
        self.accuracies[name] = (_accuracy(model, own), _accuracy(model, held_out))
        self.histories |= {m.history.run.name: m.history for m in monitors}

    def _monitor(
        self,
        model: nn.Module,
        probe: tuple[Tensor, Tensor],
        name: str,
        *,
        split: str,
        labels: str = "true",
        truth: Tensor | None = None,
    ) -> Monitor:
        return Monitor(
            model,
            probe,
            truth=truth,
            every=self.settings.measured_steps(),
            families=tuple(FAMILIES) if split == "train" else ("kernel",),
            sizes=_SIZES,
            permutations=_NULLS,
            folder=self.folder / name.replace(", ", "-").replace(" ", "-").lower(),
            name=name,
            options={
                "tangent": "exact",
                "deep_covariance": name != _CNN,
                "split": split,
                "label_source": labels,
            },
        )

    def _watcher(self, name: str, monitors: list[Monitor]) -> Callable[[int], None]:
        done, steps = len(self.accuracies), self.settings.steps

        def watch(step: int) -> None:
            self.show((done + step / steps) / 3, f"training on {name}")
            for monitor in monitors:
                monitor.step(step)

        return watch


def _train(
    model: nn.Module,
    data: tuple[Tensor, Tensor],
    settings: StorySettings,
    watch: Callable[[int], None],
) -> None:
    """Adam on small batches: fits shuffled labels within the given steps."""
    inputs, labels = data
    generator = torch.Generator().manual_seed(settings.seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    order = torch.empty(0, dtype=torch.long)
    watch(0)
    for step in range(1, settings.steps + 1):
        if len(order) < _BATCH:
            order = torch.randperm(len(inputs), generator=generator)
        rows, order = order[:_BATCH], order[_BATCH:]
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(inputs[rows]), labels[rows]))
        optimizer.step()
        watch(step)


def _accuracy(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        return (model(data[0]).argmax(1) == data[1]).double().mean().item()


def story_checks(histories: Mapping[str, History]) -> tuple[Check, ...]:
    """Memorizing shows in the features, and learning moves alignment towards the output.

    Args:
        histories: "true labels" and "shuffled labels" on training examples with the labels that
            were trained on, and both with ", test" on test examples with true labels.
    """
    return (
        _contrast(histories["true labels"], histories["shuffled labels"]),
        _held_out(histories["true labels, test"], histories["shuffled labels, test"]),
        _area(histories["true labels"]),
    )


def _values(history: History, step: int, measure: str) -> list[float]:
    survey = history.survey(step)
    return [survey.estimate(measure, layer).value for layer in history.layers]


def _contrast(true: History, shuffled: History) -> Check:
    learned = _values(true, true.steps[-1], "feature_omega_contrast")
    memorized = _values(shuffled, shuffled.steps[-1], "feature_omega_contrast")
    holds = all(low < high for low, high in zip(memorized, learned, strict=True))
    return Check(
        "Trained on shuffled labels, features of one class point less together than on true ones, "
        "in every layer",
        holds,
        f"contrast {_decimals(memorized)} against {_decimals(learned)}",
    )


def _held_out(true: History, shuffled: History) -> Check:
    learned = _values(true, true.steps[-1], "cka_target")[-1]
    memorized = _values(shuffled, shuffled.steps[-1], "cka_target")[-1]
    return Check(
        "What was memorized does not carry over: on test examples with true labels, the last "
        "layer's CKA to the labels is lower",
        memorized < learned,
        f"{memorized:.3f} against {learned:.3f}",
    )


def _area(true: History) -> Check:
    before = _values(true, true.steps[0], "alignment_area")
    after = _values(true, true.steps[-1], "alignment_area")
    return Check(
        "Before training the last layer is less aligned with the labels than the first, after "
        "training more",
        before[-1] < before[0] and after[-1] > after[0],
        f"area first to last layer: {before[0]:.3f} to {before[-1]:.3f} before, "
        f"{after[0]:.3f} to {after[-1]:.3f} after",
    )


def _decimals(values: list[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)
