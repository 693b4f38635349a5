"""Figures 7 and 8: the tangent kernel of a fully connected network through training."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from theodolite.data import Dataset, digits, scaled
from theodolite.engine import tangent_kernels
from theodolite.linalg import double_center
from theodolite.measures.kernel import (
    cka,
    gram,
    kernel_spectrum,
    kta,
    participation_ratio,
    target_gram,
)
from theodolite_papers.canatar2022._kernels import ModeCurves, mode_curves
from theodolite_papers.lab.data import load_image_set
from theodolite_papers.lab.models import mlp, ntk_mlp
from theodolite_papers.lab.training import Recipe, Squared, TrainingLog, TrainingState, train
from theodolite_papers.ledger import (
    LARGE,
    RATIO,
    Claim,
    Line,
    Measured,
    Outcome,
    Panel,
    Result,
    Results,
    Space,
    Study,
    Trial,
    above,
    below,
    decided,
    mean_and_error,
    ordered,
    outcome,
)

__all__ = ["STUDY", "TangentRun", "measure"]

_ID = "canatar2022.fig7-8"
_MEMORY = 24 * 2**30  # of a kernel between 10,000 examples and what it is made of
_SETS = {"train": "training set", "test": "test set"}
_PAIRS = {
    "ntk_target": "tangent kernel and target",
    "ntk_network": "tangent kernel and outputs",
    "network_target": "outputs and target",
}


@dataclass(frozen=True)
class TangentRun:
    """A network whose tangent kernel is measured during training.

    Args:
        data: "digits" or "mnist".
        train: training examples.
        test: test examples.
        width: units of each of the four hidden layers.
        setting: "ntk" (NTK parametrisation, the printed rate), "standard" (a smaller rate) or
            "literal" (standard parametrisation, the printed rate).
        standard_rate: learning rate of "standard".
        printed_rate: learning rate of the others.
        batch_size: examples per step.
        epochs: passes over the training examples.
        recorded: epochs at which the kernel is taken.
        probe: examples of each set that it is taken on.
        modes: leading modes of the spectrum.
        permutations: of the labels, for the null of the alignment.
        log_every: epochs between two accuracies.
    """

    data: str = "digits"
    train: int = 500
    test: int = 500
    width: int = 64
    setting: str = "standard"
    standard_rate: float = 0.01
    printed_rate: float = 0.1
    batch_size: int = 50
    epochs: int = 50
    recorded: tuple[int, ...] = (0, 1, 2, 5, 10, 20, 50)
    probe: int = 200
    modes: int = 40
    permutations: int = 10
    log_every: int = 2


def measure(config: TangentRun, trial: Trial) -> Measured:
    """Train; at the recorded epochs take the traced kernel on both sets."""
    data = _data(config, trial).to(trial.device)
    model = _network(config, data, trial).to(trial.device)
    recipe = _recipe(config, trial.seed)
    per_epoch = recipe.steps_per_epoch(len(data.x_train))
    steps = {epoch * per_epoch for epoch in config.recorded}
    looks: list[tuple[ModeCurves, ModeCurves]] = []

    def watch(state: TrainingState) -> None:
        if state.step in steps:
            looks.append(_both_sets(config, model, data, trial))
            trial.report(state.epoch / config.epochs, f"epoch {state.epoch}")

    test = (data.x_test, data.y_test)
    log = train(model, (data.x_train, data.y_train), recipe, test=test, callbacks=[watch])
    return Measured(*_summary(config, looks, log, per_epoch), {"data": data.name})


def _data(config: TangentRun, trial: Trial) -> Dataset:
    """Pixels in [0, 1]; training and test examples drawn anew for every seed."""
    generator = trial.generator(0)
    small = config.data == "digits"
    raw = digits(config.test, generator) if small else load_image_set(config.data)
    rows = torch.randperm(len(raw.x_train), generator=generator)[: config.train]
    held = torch.randperm(len(raw.x_test), generator=generator)[: config.test]
    return scaled(raw.take(rows, held), "unit_interval")


def _network(config: TangentRun, data: Dataset, trial: Trial) -> nn.Module:
    """Four hidden layers; every weight starts as N(0, 1 / width), every bias at zero."""
    sizes = [data.x_train[0].numel(), *[config.width] * 4, data.num_classes]
    generator = trial.generator(1)
    if config.setting == "ntk":
        return ntk_mlp(sizes, variance=1 / config.width, generator=generator)
    scale = 1 / math.sqrt(config.width)
    return mlp(sizes, initializer="normal", scale=scale, generator=generator)


def _recipe(config: TangentRun, seed: int) -> Recipe:
    rate = config.standard_rate if config.setting == "standard" else config.printed_rate
    steps = -(-config.train // config.batch_size)
    return Recipe(
        loss=Squared(reduction="mean"),
        optimizer="adam",
        learning_rate=rate,
        batch_size=config.batch_size,
        epochs=config.epochs,
        log=config.log_every * steps,
        seed=seed,
    )


def _both_sets(
    config: TangentRun, model: nn.Module, data: Dataset, trial: Trial
) -> tuple[ModeCurves, ModeCurves]:
    def one(inputs: Tensor, labels: Tensor) -> ModeCurves:
        return look_at(
            model,
            inputs[: config.probe],
            labels[: config.probe],
            modes=config.modes,
            permutations=config.permutations,
            generator=trial.generator(2),
        )

    return one(data.x_train, data.y_train), one(data.x_test, data.y_test)


def _summary(
    config: TangentRun, looks: list[tuple[ModeCurves, ModeCurves]], log: TrainingLog, per_epoch: int
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Numbers at both ends, curves over the epochs, spectra at the recorded ones."""
    assert log.final.test is not None
    numbers = {"train_accuracy": log.final.train.accuracy, "test_accuracy": log.final.test.accuracy}
    steps, train_curve = log.curve("train", "accuracy")
    arrays: dict[str, np.ndarray] = {
        "epochs": np.array(config.recorded, dtype=np.float32),
        "accuracy_epochs": np.array(steps, dtype=np.float32) / per_epoch,
        "accuracy_train": np.array(train_curve, dtype=np.float32),
        "accuracy_test": np.array(log.curve("test", "accuracy")[1], dtype=np.float32),
        "modes": looks[0][0].modes,
    }
    for index, name in enumerate(_SETS):
        seen = [pair[index] for pair in looks]
        for key in seen[0].numbers:
            curve = [look.numbers[key] for look in seen]
            numbers |= {f"{key}_{name}_start": curve[0], f"{key}_{name}_end": curve[-1]}
            arrays[f"{key}_{name}"] = np.array(curve, dtype=np.float32)
        arrays[f"eigenvalues_{name}"] = np.stack([look.eigenvalues for look in seen])
        arrays[f"power_{name}"] = np.stack([look.power for look in seen])
    return numbers, arrays


def look_at(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    modes: int,
    permutations: int,
    generator: torch.Generator,
) -> ModeCurves:
    """The traced tangent kernel in float64, exact, with its terms of Eq. (7)."""
    network = copy.deepcopy(model).double().eval()
    kernels = tangent_kernels(network, inputs.double(), outputs="trace", memory_limit=_MEMORY)
    outputs = kernels.outputs
    classes = outputs.shape[1]
    *below, last = kernels  # layers in order of execution
    readout, gradient = kernels[last] / classes, kernels[below[0]] / classes
    for layer in below[1:]:
        gradient += kernels[layer] / classes
    del kernels  # five matrices, 800 MB each at 10,000 examples
    whole = readout + gradient
    numbers = _alignments([whole, gram(outputs), readout, gradient], labels)
    rows = [torch.randperm(len(labels), generator=generator) for _ in range(permutations)]
    chance = [_target(whole, labels[row.to(labels.device)]) for row in rows]
    numbers |= {"ntk_target_null": float(np.mean(chance)), **_shares(whole, readout)}
    numbers["ntk_target_uncentered"] = float(kta(whole, target_gram(labels, classes).double()))
    numbers["participation"] = float(participation_ratio(whole, center=True))
    curves = mode_curves(kernel_spectrum(whole, modes), labels, classes, modes)
    numbers |= {key: curves.numbers[key] for key in ("gap", "power", "evenness")}
    return replace(curves, numbers=numbers)


def _alignments(grams: list[Tensor], labels: Tensor) -> dict[str, float]:
    """CKA of every pair that a figure shows, biased as in the paper and debiased."""
    found: dict[str, float] = {}
    for ending, debiased in (("", False), ("_debiased", True)):
        for name, matrix in zip(("ntk", "network", "readout", "gradient"), grams, strict=True):
            found[f"{name}_target{ending}"] = _target(matrix, labels, debiased=debiased)
        found[f"ntk_network{ending}"] = float(cka(grams[0], grams[1], debiased=debiased))
    return found


def _target(kernel: Tensor, labels: Tensor, *, debiased: bool = False) -> float:
    return float(cka(kernel, target_gram(labels).to(kernel), debiased=debiased))


def _shares(whole: Tensor, readout: Tensor) -> dict[str, float]:
    """The share of the first term (the last layer's kernel) in the kernel."""
    norms = [torch.linalg.matrix_norm(double_center(kernel)) for kernel in (readout, whole)]
    traces = [kernel.diagonal().sum() for kernel in (readout, whole)]
    return {
        "trace_share": float(traces[0] / traces[1]),
        "norm_share": float(norms[0] / norms[1]),
    }


def _main_setting(size: str) -> str:
    """The setting that is judged: the paper's, or at smaller sizes that of our pilot runs."""
    return "ntk" if size in LARGE else "standard"


def _main(check: Callable[[Result], Outcome]) -> Callable[[Results], Outcome]:
    """A check of the judged setting; None until it was run."""

    def checked(runs: Results) -> Outcome:
        chosen = runs.where(setting=_main_setting(runs.runs[0].size))
        return check(chosen.runs[0]) if len(chosen) else outcome(None, runs=0)

    return checked


def _accuracy(run: Result) -> Outcome:
    least = 0.9 if run.size == "lite" else 0.93
    value = run["test_accuracy"]
    return decided(
        above("test_accuracy", value, least, strict=False), train_accuracy=run["train_accuracy"]
    )


def _rises(run: Result) -> Outcome:
    numbers = {}
    for name in ("train", "test"):
        for kind in ("", "_debiased"):
            key = f"ntk_target{kind}_{name}"
            numbers[f"rise{kind}_{name}"] = run[f"{key}_end"] - run[f"{key}_start"]
        numbers[f"end_{name}"] = run[f"ntk_target_{name}_end"]
        numbers[f"null_{name}"] = run[f"ntk_target_null_{name}_end"]
    rises = (f"rise_{name}" for name in ("train", "test"))
    return decided(*(above(name, numbers[name], 0.2, strict=False) for name in rises), **numbers)


def _fits(run: Result) -> Outcome:
    value = run["network_target_train_end"]
    test = run["network_target_test_end"]
    return decided(above("train", value, 0.95, strict=False), test=test)


def _curves_meet(run: Result) -> Outcome:
    target, network = run["ntk_target_train_end"], run["ntk_network_train_end"]
    apart = below("apart", abs(target - network), 0.05)
    return decided(apart, ntk_target=target, ntk_network=network)


def _network_leads(run: Result) -> Outcome:
    target, network = run["ntk_target_train_start"], run["ntk_network_train_start"]
    return ordered({"ntk_target": target, "ntk_network": network})


def _power_gathers(run: Result) -> Outcome:
    start, end = run["power_train_start"], run["power_train_end"]
    test = {"test_start": run["power_test_start"], "test_end": run["power_test_end"]}
    return decided(
        above("end", end, 0.95, strict=False),
        above("rise", end - start, 0.3, strict=False),
        start=start,
        **test,
    )


def _gap_opens(run: Result) -> Outcome:
    start, end = run["gap_train_start"], run["gap_train_end"]
    test = {"test_start": run["gap_test_start"], "test_end": run["gap_test_end"]}
    return decided(
        above("growth", end / start, 2, strict=False, possible=RATIO), start=start, end=end, **test
    )


def _rank_falls(run: Result) -> Outcome:
    start, end = run["participation_train_start"], run["participation_train_end"]
    return ordered({"end": end, "start": start})


def _share_of_readout(runs: Results) -> Outcome:
    chosen = runs.where(setting="standard")
    if not len(chosen):
        return outcome(None, runs=0)
    run = chosen.runs[0]
    start, end = run["norm_share_train_start"], run["norm_share_train_end"]
    return decided(
        above("growth", end / start, 2, strict=False, possible=RATIO), start=start, end=end
    )


def _dominates(run: Result) -> Outcome:
    """More than half of the trace and of the centred norm.

    The paper does not say which it means.
    """
    numbers = _terms(run)
    shares = ("trace_share_end", "norm_share_end")
    return decided(*(above(share, numbers[share], 0.5) for share in shares), **numbers)


def _terms(run: Result) -> dict[str, float]:
    """Shares of the last layer's kernel, and how well each term alone fits the target."""
    names = ("trace_share", "norm_share", "readout_target", "gradient_target")
    return {f"{name}_{end}": run[f"{name}_train_{end}"] for name in names for end in _ENDS}


def _printed_rate(runs: Results) -> Outcome:
    found = {run.point["setting"]: run["test_accuracy"] for run in runs}
    if len(found) < 3:
        return outcome(None, runs=len(found))
    loss = above("ntk minus literal", found["ntk"] - found["literal"], 0.1, strict=False)
    return decided(loss, **found)


_ENDS = ("start", "end")


def _claim(name: str, text: str, check: Callable[[Results], Outcome], **options: object) -> Claim:
    return Claim(f"{_ID}.{name}", text, check, "seed", **options)  # type: ignore[arg-type]


def draw(runs: Results) -> list[Panel]:
    """Accuracy, alignments, spectra and cumulative power of the judged setting; both terms."""
    found = {run.point["setting"] for run in runs}
    preferred = (_main_setting(runs.runs[0].size), "standard", "ntk", "literal")
    chosen = runs.where(setting=next(name for name in preferred if name in found))
    return [
        _accuracy_panel(runs),
        *(_alignment_panel(chosen, name) for name in _SETS),
        *(_term_panel(chosen, name) for name in _SETS),
        *(panel for name in _SETS for panel in _mode_panels(chosen, name)),
    ]


def _accuracy_panel(runs: Results) -> Panel:
    lines = []
    for color, setting in enumerate(dict.fromkeys(run.point["setting"] for run in runs)):
        part = runs.where(setting=setting)
        for name, words in _SETS.items():
            mean, error = mean_and_error(100 * part.array(f"accuracy_{name}"))
            x = part.runs[0].arrays["accuracy_epochs"]
            label = f"{setting}, {words}"
            lines.append(Line(label, x, mean, error, dashed=name == "test", color=color))
    return Panel("Figure 7, left", lines, "epoch", "accuracy in %")


def _alignment_panel(runs: Results, name: str) -> Panel:
    lines = [_curve(runs, f"{key}_{name}", label) for key, label in _PAIRS.items()]
    lines.append(_curve(runs, f"ntk_target_debiased_{name}", "tangent, target, debiased", True))
    lines.append(_curve(runs, f"ntk_target_null_{name}", "tangent, permuted labels", True))
    return Panel(f"Figure 7, right, {_SETS[name]}", lines, "epoch + 1", "CKA", "x")


def _term_panel(runs: Results, name: str) -> Panel:
    lines = [
        _curve(runs, f"norm_share_{name}", "share of the last layer's kernel in the norm"),
        _curve(runs, f"trace_share_{name}", "its share in the trace"),
        _curve(runs, f"readout_target_{name}", "CKA of the last layer's kernel", True),
        _curve(runs, f"gradient_target_{name}", "CKA of the gradient term", True),
    ]
    return Panel(f"Figure 8, terms, {_SETS[name]}", lines, "epoch + 1", "share or CKA", "x")


def _curve(runs: Results, key: str, label: str, dashed: bool = False) -> Line:
    mean, error = mean_and_error(runs.array(key))
    return Line(label, runs.runs[0].arrays["epochs"] + 1, mean, error, dashed=dashed)


def _mode_panels(runs: Results, name: str) -> list[Panel]:
    epochs, modes = runs.runs[0].arrays["epochs"], runs.runs[0].arrays["modes"]
    times = sorted({0, len(epochs) // 2, len(epochs) - 1})
    spectra, powers = [], []
    for time in times:
        label = f"epoch {epochs[time]:g}"
        eta = np.log(np.maximum(runs.array(f"eigenvalues_{name}")[:, time], 1e-30))
        spectra.append(Line(label, modes, np.exp(eta.mean(0))))
        mean, error = mean_and_error(runs.array(f"power_{name}")[:, time])
        powers.append(Line(label, modes, mean, error))
    words = _SETS[name]
    return [
        Panel(f"Figure 8, spectrum, {words}", spectra, "mode", "eigenvalue", "xy"),
        Panel(f"Figure 8, target, {words}", powers, "mode", "cumulative power", "x"),
    ]


_CLAIMS = (
    _claim(
        "fig7-accuracy",
        "test accuracy ends at 0.93 or more (lite, on 8x8 digits: 0.9)",
        _main(_accuracy),
        published={"test_accuracy": 0.95},
    ),
    _claim(
        "fig7-rise",
        "CKA of the tangent kernel with the target rises by at least 0.2 on both sets",
        _main(_rises),
    ),
    _claim(
        "fig7-fit",
        "CKA of the network's outputs with the target ends at 0.95 or more on the training set",
        _main(_fits),
    ),
    _claim(
        "fig7-meet",
        "CKA of the tangent kernel with target and with outputs end less than 0.05 apart on the "
        "training set",
        _main(_curves_meet),
    ),
    _claim(
        "fig7-start",
        "before training the tangent kernel is closer to the outputs than to the target",
        _main(_network_leads),
    ),
    _claim(
        "fig8-power",
        "the first 10 modes end with at least 0.95 of the target's power on the training set, at "
        "least 0.3 more than before",
        _main(_power_gathers),
    ),
    _claim(
        "fig8-gap",
        "the gap after mode 10 at least doubles on the training set",
        _main(_gap_opens),
    ),
    _claim(
        "fig8-rank",
        "the participation ratio of the centred kernel falls on the training set",
        _main(_rank_falls),
    ),
    _claim(
        "fig8-share",
        "the share of the last layer's kernel, in centred norm, at least doubles (standard "
        "parametrisation; ours)",
        _share_of_readout,
    ),
    _claim(
        "fig8-dominates",
        "the last layer's kernel is more than half of the tangent kernel after training: of its "
        "trace, and of its centred norm",
        _main(_dominates),
        fragile="the paper says neither how much dominates nor in which norm",
        apart=True,
    ),
    _claim(
        "fig7-literal",
        "the printed rate in the standard parametrisation ends at least 10 points of test accuracy "
        "below the NTK parametrisation (ours)",
        _printed_rate,
    ),
)
_SETTINGS = ["ntk", "standard", "literal"]
STUDY = Study(
    id="canatar2022.fig7-8",
    title="The tangent kernel through training",
    shows=("Figure 7", "Figure 8"),
    measure=measure,
    configs={
        "smoke": TangentRun(
            train=100,
            test=100,
            width=16,
            epochs=4,
            recorded=(0, 4),
            probe=60,
            modes=20,
            permutations=2,
        ),
        "lite": TangentRun(),
        "published": TangentRun(
            data="mnist",
            train=10_000,
            test=10_000,
            width=200,
            setting="ntk",
            standard_rate=1e-3,
            batch_size=500,
            epochs=3000,
            recorded=(0, 1, 10, 100, 1000, 3000),
            probe=10_000,
            modes=60,
            permutations=3,
            log_every=30,
        ),
    },
    claims=_CLAIMS,
    draw=draw,
    seeds={"published": (101, 102, 103)},
    spaces={size: Space({"setting": _SETTINGS}) for size in ("smoke", "lite", "published")},
    stand_in={
        "lite": "500 + 500 digits of 8x8 pixels and 64 units for MNIST and 200 units; 50 epochs; "
        "the kernel on 200 examples of each set",
    },
    remarks={
        "published": "the kernel at six epochs. NTK parametrisation: our inference; the printed "
        "rate does not train otherwise"
    },
)
