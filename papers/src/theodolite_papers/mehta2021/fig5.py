"""Figure 5: architectures, with true and with permuted labels."""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from theodolite.data import Dataset, random_labels
from theodolite.interventions import initialize_
from theodolite_papers.lab.models import conv_net, densenet121, mlp, resnet50
from theodolite_papers.lab.training import Recipe, Softmax, TrainingState, train
from theodolite_papers.ledger import (
    LARGE,
    Check,
    Claim,
    Line,
    Measured,
    Outcome,
    Panel,
    Results,
    Space,
    Study,
    Trial,
    above,
    decided,
    inside,
    mean_and_error,
    ordered,
    outcome,
    shown_as,
)
from theodolite_papers.mehta2021._scales import (
    ProbeSet,
    chance_of,
    measured_steps,
    standardized_set,
)

__all__ = ["STUDY", "Architectures", "total_steps"]

DEEP = ("resnet50", "densenet121")


def small_conv_net(num_classes: int, generator: torch.Generator) -> nn.Sequential:
    """The paper's ConvNet for 16x16 images: half the channels, a smaller second filter."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(3, 16, 5, padding=2),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(3, stride=2),
        conv2=nn.Conv2d(16, 32, 3),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(3, stride=2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(128, 256),
        relu_fc=nn.ReLU(),
        fc2=nn.Linear(256, num_classes),
    )
    net = nn.Sequential(layers)
    initialize_(net, "glorot", 1.0, generator)
    return net


def build(
    case: str, width: int, data: Dataset, generator: torch.Generator
) -> tuple[nn.Module, str]:
    """The network of a case, Glorot uniform with zero biases, and its last hidden activation.

    Args:
        case: "convnet", "small_convnet", "resnet50", "densenet121"; a fully connected net else.
        width: of the fully connected net.
        data: decides the sizes of input and output.
        generator: of the weights.
    """
    if case == "small_convnet":
        return small_conv_net(data.num_classes, generator), "relu_fc"
    if case == "convnet":
        net = conv_net(data.num_classes, generator=generator)
        return net, [name for name, part in net.named_children() if isinstance(part, nn.ReLU)][-1]
    if case in DEEP:
        deep = (resnet50 if case == "resnet50" else densenet121)(data.num_classes)
        return initialize_(deep, "glorot", 1.0, generator), "flatten"
    inputs = int(np.prod(data.shape))
    sizes = [inputs, width, data.num_classes]
    return mlp(sizes, initializer="glorot", generator=generator), "act1"


_LABELS = ("true", "shuffled")  # cases of panels (c) and (d); the others are architectures


@dataclass(frozen=True)
class Architectures:
    """One network, trained with the same rate and batch size as the others.

    Args:
        case: "mlp", "convnet", "small_convnet", "resnet50", "densenet121"; "true" and "shuffled"
            are fully connected networks for the comparison of labels.
        data: of the architectures.
        label_data: of the comparison of labels.
        hidden: width of the fully connected networks.
        rate: learning rate.
        batch_size: examples per step.
        steps: of the architectures; the deep ones have a tenth of them.
        label_steps: of the comparison of labels.
        points: steps that are measured.
        probe: examples of the fixed, class-balanced probe set.
    """

    case: str = "mlp"
    data: str = "cifar16"
    label_data: str = "digits"
    hidden: int = 256
    rate: float = 0.05
    batch_size: int = 64
    steps: int = 1200
    label_steps: int = 5000
    points: int = 10
    probe: int = 250


def measure(config: Architectures, trial: Trial) -> Measured:
    """Accuracies, alignment and contrast of the last hidden layer along training."""
    labels = config.case in _LABELS
    data = standardized_set(config.label_data if labels else config.data, trial.generator())
    chance = chance_of(data)
    if config.case == "shuffled":
        data = data.with_labels(random_labels(data.y_train, trial.generator(3)))
    data = data.to(trial.device)
    net, hidden = build(config.case, config.hidden, data, trial.generator(2))
    net = net.to(trial.device)
    if trial.device.type == "cuda":  # where convolutions are faster so
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    probe = ProbeSet.of(data, config.probe, Softmax(), ("", "", hidden), trial.generator(1))
    steps, values = _train(config, trial, net, probe)
    numbers = chance | {
        "best_test": max(values["test"]),
        "train": max(values["train"]),
        "steps": float(steps[-1]),
        "final_test": values["test"][-1],
        "alignment": values["representation"][-1],
        "contrast": values["representation_contrast"][-1],
        "alignment_start": values["representation"][0],
    }
    arrays = {name: np.array(found, dtype=np.float32) for name, found in values.items()}
    arrays["step"] = np.array(steps, dtype=np.int32)
    return Measured({name: float(f"{v:.6g}") for name, v in numbers.items()}, arrays)


def total_steps(config: Architectures) -> int:
    """Steps of the case at most; the deep nets learn in fewer, and each costs far more."""
    if config.case in _LABELS:
        return config.label_steps
    return config.steps // 10 if config.case in DEEP else config.steps


def _train(
    config: Architectures, trial: Trial, net: nn.Module, probe: ProbeSet
) -> tuple[list[int], dict[str, list[float]]]:
    total = total_steps(config)
    watched = frozenset(measured_steps(total, config.points))
    steps: list[int] = []
    values: dict[str, list[float]] = {}

    def look(state: TrainingState) -> bool:
        if state.step not in watched:
            return False
        state.model.eval()
        found = probe.accuracies(state.model) | probe.representation(state.model)
        state.model.train()
        for name, value in found.items():
            values.setdefault(name, []).append(value)
        steps.append(state.step)
        trial.report(state.step / total, f"{config.case} step {state.step}")
        return found["train"] >= 1

    recipe = Recipe(
        learning_rate=config.rate,
        batch_size=config.batch_size,
        steps=total,
        seed=trial.seed,
        log="ends",
    )
    train(net, (probe.data.x_train, probe.data.y_train), recipe, callbacks=[look])
    return steps, values


def _by_case(runs: Results) -> dict[str, dict[str, float]]:
    found = {
        str(run.point["case"]): {name: float(value) for name, value in run.numbers.items()}
        for run in runs
    }
    if "true" not in found and "mlp" in found:  # at paper size the same run
        found["true"] = found["mlp"]
    return found


_ORDER = ("mlp", "small_convnet", "convnet", "resnet50", "densenet121")


_FITTED = 0.99  # training accuracy; networks below it are not compared
_PREMISE = f"two networks reach {_FITTED} training accuracy"


def _fitted(runs: Results) -> dict[str, dict[str, float]]:
    """The architectures that learned their training data, in the order of the claim."""
    cases = _by_case(runs)
    return {c: cases[c] for c in _ORDER if c in cases and cases[c]["train"] >= _FITTED}


def _ordered(name: str) -> Check:
    """From the fully connected net to the ConvNet to both deep nets; of those that were run."""

    def check(runs: Results) -> Outcome:
        shown = {case: numbers[name] for case, numbers in _fitted(runs).items()}
        if "mlp" not in shown or len(shown) < 2:
            return outcome(None, **shown, fitted=len(shown))
        middle = [c for c in ("small_convnet", "convnet") if c in shown]
        deep = [c for c in DEEP if c in shown]
        steps = [("mlp", c) for c in (*middle, *deep)] + [(m, d) for m in middle for d in deep]
        found = decided(*(above(f"{b} minus {a}", shown[b] - shown[a]) for a, b in steps))
        return shown_as(found, **shown, fitted=len(shown))

    return check


def _contrast_follows(runs: Results) -> Outcome:
    cases = _fitted(runs)
    if len(cases) < 2:
        return outcome(None, fitted=len(cases))
    by_accuracy = sorted(cases, key=lambda case: cases[case]["best_test"])
    return ordered({f"{case}_contrast": cases[case]["contrast"] for case in by_accuracy})


def _labels_accuracy(runs: Results) -> Outcome:
    cases = _by_case(runs)
    if not {"true", "shuffled"} <= set(cases):
        return outcome(None, cases=len(cases))
    true, shuffled = cases["true"], cases["shuffled"]
    chance, size = shuffled["chance"], shuffled["test_size"]
    noise = 3 * float(np.sqrt(chance * (1 - chance) / size))
    return decided(
        inside("shuffled", shuffled["final_test"], chance - noise, chance + noise, strict=False),
        above("true", true["best_test"], 3 * chance, strict=False),
        chance=chance,
        shuffled_train=shuffled["train"],
    )


def _labels_alignment(runs: Results) -> Outcome:
    cases = _by_case(runs)
    if not {"true", "shuffled"} <= set(cases):
        return outcome(None, cases=len(cases))
    true, shuffled = cases["true"]["alignment"], cases["shuffled"]["alignment"]
    return ordered({"shuffled": shuffled, "true": true})


def draw(runs: Results) -> list[Panel]:
    """Accuracy, alignment and contrast against steps, by architecture and by labels."""
    cases = dict.fromkeys(str(run.point["case"]) for run in runs)
    true = "true" if "true" in cases else "mlp"  # the same net on the same data
    labels = {true: "true labels", "shuffled": "shuffled labels"}
    groups = {
        "Figure 5(a), (b), architectures": {
            case: case.replace("_", " ") for case in cases if case not in _LABELS
        },
        "Figure 5(c), (d), labels": {case: labels[case] for case in labels if case in cases},
    }
    axes = {
        "test": "test accuracy",
        "representation": "in-class alignment, representations",
        "representation_contrast": "in-class minus overall alignment, representations",
    }
    return [
        Panel(title, [_line(runs, *line, name) for line in chosen.items()], "steps", axis, "x")
        for title, chosen in groups.items()
        if chosen
        for name, axis in axes.items()
    ]


def _line(runs: Results, case: str, title: str, name: str) -> Line:
    part = runs.where(case=case)
    shortest = min((run.arrays["step"] for run in part), key=len)
    stacked = np.stack([run.arrays[name][: len(shortest)] for run in part])
    mean, error = mean_and_error(stacked)
    return Line(title, shortest[1:], mean[1:], error[1:])


_ID = "mehta2021.fig5"

STUDY = Study(
    id=_ID,
    title="Alignment of representations: architectures, shuffled labels",
    shows=("Figure 5",),
    measure=measure,
    configs={
        "smoke": Architectures(
            data="digits", hidden=16, steps=10, label_steps=10, points=3, probe=50
        ),
        "lite": Architectures(),
        "reduced": Architectures(
            data="cifar10_10k",
            label_data="cifar10_10k",
            hidden=1024,
            rate=0.01,
            batch_size=256,
            steps=20_000,
            label_steps=20_000,
            points=30,
            probe=500,
        ),
        "published": Architectures(
            data="cifar10",
            label_data="cifar10",
            hidden=1024,
            rate=0.01,
            batch_size=256,
            steps=100_000,
            label_steps=100_000,
            points=30,
            probe=500,
        ),
    },
    spaces={
        "smoke": Space({"case": ["mlp", "true", "shuffled"]}),
        "lite": Space({"case": ["mlp", "small_convnet", "true", "shuffled"]}),
        **{
            size: Space({"case": ["mlp", "convnet", "resnet50", "densenet121", "shuffled"]})
            for size in LARGE
        },
    },
    claims=(
        Claim(
            f"{_ID}.accuracy",
            "test accuracy rises from the fully connected net to the ConvNet to the deep nets "
            "(networks that reach 0.99 training accuracy)",
            _ordered("best_test"),
            scope="seed",
            premise=_PREMISE,
            fragile="plain SGD with an ImageNet stem may leave the deep nets below the ConvNet",
        ),
        Claim(
            f"{_ID}.alignment",
            "in-class alignment of the trained representations rises in the same order (networks "
            "that reach 0.99 training accuracy)",
            _ordered("alignment"),
            scope="seed",
            premise=_PREMISE,
            fragile="alignment is not centred: architectures differ before training",
        ),
        Claim(
            f"{_ID}.contrast",
            "in-class minus overall alignment orders the architectures as their test accuracy does "
            "here (networks that reach 0.99 training accuracy; not in the paper)",
            _contrast_follows,
            scope="seed",
            premise=_PREMISE,
            fragile="not a claim of the paper",
        ),
        Claim(
            f"{_ID}.labels",
            "shuffled labels leave test accuracy at chance (three standard errors) at the end; "
            "true ones reach three times chance or more",
            _labels_accuracy,
            scope="seed",
        ),
        Claim(
            f"{_ID}.labels-alignment",
            "representations are more aligned with true than with shuffled labels at the end",
            _labels_alignment,
            scope="seed",
        ),
    ),
    draw=draw,
    seeds={"reduced": (101,)},
    stand_in={
        "lite": "architectures on CIFAR-10 shrunk to 16x16, 200 + 200 images of each class, a "
        "small ConvNet and no deep nets; labels on 8x8 digits; rate 0.05, batches of 64",
    },
    remarks={
        "reduced": "each run ends at 100 % training accuracy, at most after 20,000 steps (deep "
        "nets: "
        "2,000); the deep nets have ImageNet stems. ResNet-50 got to a training accuracy of 0.989 "
        "at "
        "best and is not compared: its alignment is that of the last measurement, right after an "
        "epoch's incomplete batch of 16 images, with 0.73",
    },
    not_run={"published": "no GPU time so far; the reduced size has 10,000 images"},
)
