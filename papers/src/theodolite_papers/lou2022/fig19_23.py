"""Figures 19 to 23: spectra, ranks and correlations of three networks, one with noisy labels."""

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor, nn

from theodolite.measures.tangent import alignment_decomposition, stacked_kernel
from theodolite_papers.lab.data import corrupted_labels
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
    below,
    decided,
    exceeds,
    mean_and_error,
    ordered,
    outcome,
    pearson,
    shown_as,
)
from theodolite_papers.lou2022._curvature import Fisher, fisher
from theodolite_papers.lou2022._hierarchy import (
    as_array,
    by_setting,
    hierarchy_line,
    measurable,
    weight_layers,
)
from theodolite_papers.lou2022._setting import (
    Architecture,
    build,
    final_numbers,
    learned,
    prepare,
    recipe_of,
)
from theodolite_papers.lou2022.formulas.energy import normalized_spectrum
from theodolite_papers.lou2022.formulas.fisher import fisher_correlation, fisher_stable_rank

__all__ = ["STUDY", "Noisy"]

_NETS = ["blue", "orange", "green"]
_NAMES = {"blue": "clean and fast", "orange": "clean and slow", "green": "noisy"}
_KEYS = ("alignment", "rank", "correlation", "fisher_rank", "fisher_correlation")


@dataclass(frozen=True)
class Noisy(Architecture):
    """One of three networks.

    Args:
        net: "blue" (clean labels, fast), "orange" (clean, slow) or "green" (noisy, slow).
        fast: learning rate of blue.
        slow: learning rate of the others.
        noise: share of training labels that are drawn anew in green.
        eigenvalues: of each layer, at most.
    """

    net: str = "blue"
    fast: float = 0.03
    slow: float = 0.005
    noise: float = 0.2
    eigenvalues: int = 200
    stop_loss: float | None = 0.05


def measure(config: Noisy, trial: Trial) -> Measured:
    """Alignment, stable rank and correlation of every layer, of its kernel and of its Fisher."""
    ground = prepare(config, trial, flat=config.architecture == "ffnn")
    if config.net == "green":
        clean = ground.train[1].cpu()
        noisy = corrupted_labels(clean, config.noise, ground.classes, trial.generator(6))
        ground = ground.with_labels(noisy.labels)
    rate = config.fast if config.net == "blue" else config.slow
    model = build(config, ground, trial)
    log = learned(model, ground, recipe_of(replace(config, learning_rate=rate), trial.seed))
    found = _fisher(model, ground.probe[0])
    rows, spectra = [], []
    for layer in found.values():
        parts = alignment_decomposition(layer.kernel.double(), ground.targets)
        rank = fisher_stable_rank(layer.kernel, layer.hessian)
        correlation = fisher_correlation(layer.kernel, layer.hessian, ground.targets)
        values = (parts.alignment, parts.stable_rank, parts.correlation, rank, correlation)
        rows.append([float(value) for value in values])
        spectra.append(_spectrum(layer.kernel, config.eigenvalues))
    table = dict(zip(_KEYS, np.asarray(rows).T, strict=True))
    means = {f"mean_{key}": float(np.nanmean(values)) for key, values in table.items()}
    decay = np.stack(spectra).astype(np.float64)
    at = min(49, decay.shape[1] - 1)
    means["decay"] = float(np.mean(np.log10(np.clip(decay[:, at], 1e-16, None))))
    arrays = {key: as_array(values) for key, values in table.items()}
    return Measured(
        {**final_numbers(log), **means}, {**arrays, "spectra": decay.astype(np.float16)}
    )


def _fisher(model: nn.Module, x: Tensor) -> Fisher:
    copy, inputs = measurable(model, x)
    return fisher(copy, inputs, weight_layers(copy))


def _spectrum(kernel: Tensor, count: int) -> np.ndarray:
    """Leading eigenvalues of the centred kernel, over the first."""
    return normalized_spectrum(stacked_kernel(kernel.double()), count).cpu().numpy()


def _order(key: str, *nets: str) -> Check:
    """The numbers of these networks decrease in this order."""

    def check(runs: Results) -> Outcome:
        values = {str(net): part.mean(key) for net, part in by_setting(runs, "net").items()}
        if not set(nets) <= set(values):
            return outcome(None, runs=len(runs), **values)
        named = {name: values[net] for net, name in _NAMES.items() if net in values}
        return shown_as(ordered({_NAMES[net]: values[net] for net in nets}, falling=True), **named)

    return check


def _largest(key: str, net: str) -> Check:
    """The number of one network is larger than that of every other."""

    def check(runs: Results) -> Outcome:
        values = {str(name): part.mean(key) for name, part in by_setting(runs, "net").items()}
        if set(values) != set(_NETS):
            return outcome(None, runs=len(runs), **values)
        return exceeds(_NAMES[net], {_NAMES[name]: value for name, value in values.items()})

    return check


def _noisy_rank(runs: Results) -> Outcome:
    groups = {str(net): part for net, part in by_setting(runs, "net").items()}
    if not {"green", "orange"} <= set(groups):
        return outcome(None, runs=len(runs))
    noisy, clean = (groups[net]["mean_rank"] for net in ("green", "orange"))
    gain = above("noisy minus clean", noisy.mean() - clean.mean())
    return decided(gain, premise=len(noisy) == len(clean), noisy=noisy.mean(), clean=clean.mean())


def _straight(runs: Results) -> Outcome:
    """Share of the variance of the 50 leading log eigenvalues that a straight line explains."""
    spectra = runs.array("spectra")[0].astype(np.float64)[:, :50]
    logs = np.log10(np.clip(spectra, 1e-8, None)).mean(0)
    r = pearson(np.arange(len(logs)), logs)
    return decided(above("r_squared", r**2, 0.8, strict=False))


def _fisher_below(runs: Results) -> Outcome:
    run = runs.runs[0]
    share = float((run.arrays["fisher_rank"] < run.arrays["rank"]).mean())
    fisher_mean, kernel_mean = run["mean_fisher_rank"], run["mean_rank"]
    conditions = [below("fisher minus kernel", fisher_mean - kernel_mean)]
    if str(run.point.get("net")) == "blue":
        conditions.append(above("share_of_layers", share, 1, strict=False))
    return decided(*conditions, fisher=fisher_mean, kernel=kernel_mean, share_of_layers=share)


def _flatter(runs: Results) -> Outcome:
    run = runs.runs[0]
    names = {"fisher": "fisher_rank", "kernel": "rank"}
    spread = {name: float(np.std(run.arrays[key])) for name, key in names.items()}
    return ordered(spread)


def _fisher_small(runs: Results) -> Outcome:
    largest = float(np.nanmax(runs.array("fisher_correlation")))
    return decided(below("largest", largest, 0.15), mean=runs["mean_fisher_correlation"][0])


def draw(runs: Results) -> list[Panel]:
    """Spectra of the middle layer, and the five curves over layers."""
    groups = {str(net): part for net, part in by_setting(runs, "net", "blue").items()}
    spectra = []
    for net, part in groups.items():
        middle = part.array("spectra").astype(np.float32)
        mean, error = mean_and_error(middle[:, middle.shape[1] // 2])
        spectra.append(Line(_NAMES[net], np.arange(1, len(mean) + 1), mean, error))
    titles = {
        "alignment": "Figure 20, alignment",
        "rank": "Figures 20 and 21, stable rank of kernels",
        "correlation": "Figure 20, correlation",
        "fisher_rank": "Figures 21 and 22, stable rank of Fisher",
        "fisher_correlation": "Figure 23, Fisher correlation",
    }
    panels = [Panel("Figure 19, middle layer", spectra, "index", "eigenvalue", "y")]
    for key, title in titles.items():
        lines = [hierarchy_line(_NAMES[net], part, key) for net, part in groups.items()]
        panels.append(Panel(title, lines, "layer", key.replace("_", " ")))
    return panels


STUDY = Study(
    id="lou2022.fig19-23",
    title="Spectra, stable ranks and correlations of kernels and Fisher matrices",
    shows=("Figure 19", "Figure 20", "Figure 21", "Figure 22", "Figure 23"),
    measure=measure,
    configs={
        "smoke": Noisy(depth=4, width=16, examples=200, probe=10, epochs=1, eigenvalues=40),
        "lite": Noisy(depth=8, width=96, epochs=80),
        "published": Noisy(
            data="cifar10",
            architecture="vgg19",
            fast=0.02,
            slow=0.001,
            stop_loss=0.1,
            epochs=30,
            probe=100,
        ),
    },
    spaces={size: Space({"net": _NETS}) for size in ("smoke", "lite", "published")},
    seeds={"published": (101,)},
    claims=(
        Claim(
            "lou2022.fig19-23.decay",
            "eigenvalues decay faster with clean labels: the mean over layers of "
            "log10(lambda_50 / lambda_1) is lower in the clean and fast than in the noisy network",
            _order("decay", "green", "blue"),
            scope="seed",
        ),
        Claim(
            "lou2022.fig19-23.decay-at-rate",
            "and lower in the clean and slow network than in the noisy one of the same rate",
            _order("decay", "green", "orange"),
            scope="seed",
        ),
        Claim(
            "lou2022.fig19-23.exponential",
            "the decay is roughly exponential: a line through the mean logarithms of the first 50 "
            "eigenvalues takes 80 % of their variance",
            _straight,
        ),
        Claim(
            "lou2022.fig19-23.accuracy",
            "test accuracy: clean and fast > clean and slow > noisy",
            _order("test_accuracy", *_NETS),
            scope="seed",
            sizes=LARGE,
            published={"clean and fast": 90.59, "clean and slow": 83.07, "noisy": 70.41},
        ),
        Claim(
            "lou2022.fig19-23.alignment",
            "mean alignment: clean and fast > clean and slow > noisy",
            _order("mean_alignment", *_NETS),
            scope="seed",
        ),
        Claim(
            "lou2022.fig19-23.correlation",
            "mean correlation term: clean and fast > clean and slow > noisy",
            _order("mean_correlation", *_NETS),
            scope="seed",
        ),
        Claim(
            "lou2022.fig19-23.rank",
            "the mean stable rank is larger with noisy labels than in both clean networks",
            _largest("mean_rank", "green"),
            scope="seed",
        ),
        Claim(
            "lou2022.fig19-23.rank-at-rate",
            "it is larger with noisy labels than with clean ones at the same rate (means over "
            "runs, by two standard errors)",
            _noisy_rank,
            scope="all",
        ),
        Claim(
            "lou2022.fig19-23.fisher-below",
            "the stable rank of the Fisher matrix is below that of the kernel: on the mean over "
            "layers, and in every layer of the clean and fast network",
            _fisher_below,
        ),
        Claim(
            "lou2022.fig19-23.fisher-flatter",
            "and it varies less over the layers",
            _flatter,
            sizes=LARGE,
        ),
        Claim(
            "lou2022.fig19-23.fisher-order",
            "mean Fisher stable ranks: noisy > clean and slow > clean and fast",
            _order("mean_fisher_rank", "green", "orange", "blue"),
            scope="seed",
        ),
        Claim(
            "lou2022.fig19-23.fisher-correlation",
            "the Fisher correlation is below 0.15 in every layer",
            _fisher_small,
        ),
    ),
    draw=draw,
    stand_in={
        "lite": "8x8 digits, fully connected, 8 layers of width 96, to training loss 0.05; rates "
        "0.03 and 0.005 for 0.02 and 0.001",
    },
    remarks={
        "published": "to training loss 0.1, at most 30 epochs, without augmentation; 100 images "
        "for "
        "the kernels",
    },
)
