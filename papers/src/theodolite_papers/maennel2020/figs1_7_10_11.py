"""Figures 1, 7, 10, 11: positive and negative transfer, and the activations behind them."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from theodolite_papers.ledger import (
    LARGE,
    Bars,
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
    outcome,
)
from theodolite_papers.maennel2020._transfer import (
    LABELS,
    Images,
    Network,
    Protocol,
    Stage,
    Transfer,
    fractions_of,
    histograms_of,
    left_chance,
)

__all__ = ["STUDY", "Cases"]

_MOMENTS = ("initial", "pretrained", "real", "random")
_FIGURES = {"positive": "Figure 11", "negative": "Figure 10", "wide": "Figure 11"}


def runs_of(runs: Results, case: str) -> Results:
    """The runs of one case."""
    return runs.chosen(lambda run: run.point.get("case", "positive") == case)


def draw(runs: Results) -> list[Panel]:
    """Figure 1 by case and labels, layer means, and histograms of the last two layers."""
    panels = []
    for case in ("positive", "negative", "wide"):
        part = runs_of(runs, case)
        if len(part):
            panels += [_course_panel(part, case, labels) for labels in LABELS]
            panels += [_means_panel(part, case), _histogram_panel(part, case)]
    return panels


def _course_panel(runs: Results, case: str, labels: str) -> Panel:
    mean, error = mean_and_error(runs.array(labels).astype(np.float64))
    steps = runs.first.arrays["steps"]
    names = ("scratch, train", "pre-trained, train", "scratch, test", "pre-trained, test")
    rows = range(4) if labels == "real" else range(2)
    lines = [Line(names[k], steps, mean[k], error[k], dashed=k > 1, color=k % 2) for k in rows]
    return Panel(f"Figure 1, {case} case, {labels} labels", lines, "step", "accuracy")


def _means_panel(runs: Results, case: str) -> Panel:
    lines = []
    for moment in _MOMENTS:
        mean, error = mean_and_error(runs.array(f"mean_{moment}"))
        lines.append(Line(_title(moment), np.arange(1, len(mean) + 1), mean, error))
    title = f"{_FIGURES[case]}, {case} case, mean activation"
    return Panel(title, lines, "layer", "fraction active")


def _histogram_panel(runs: Results, case: str) -> Panel:
    """Histograms over neurons of the last two layers: at the start, before and after."""
    marks = []
    for moment in ("initial", "pretrained", "random"):
        stacked = runs.array(f"histogram_{moment}").astype(np.float64)[:, -2:, 0].mean(1)
        mean, error = mean_and_error(stacked)
        labels = [f"{k / len(mean):.2f}" for k in range(len(mean))]
        marks.append(Bars(_title(moment), labels, mean, error))
    title = f"Figure 7, {case} case, neurons of the last two layers"
    return Panel(title, marks, "fraction of examples", "share of neurons")


def _title(moment: str) -> str:
    tuned = {"real": "fine-tuned, real labels", "random": "fine-tuned, random labels"}
    return {"initial": "initialisation", "pretrained": "pre-trained", **tuned}[moment]


_ID = "maennel2020.fig1-7-10-11"
_FITTED = 0.5  # share of the upstream labels


@dataclass(frozen=True)
class Cases:
    """Size of the experiment.

    Args:
        positive: transfer that speeds up downstream training (experiments 1 and 2).
        negative: transfer that slows it down (experiments 3 and 4).
        wide: counterpart of the negative case for comparing activations, where the positive case
            is another network.
        case: which of these.
        activation_images: test images on which activations are counted.
    """

    positive: Transfer
    negative: Transfer
    wide: Transfer | None = None
    case: str = "positive"
    activation_images: int = 5_000


def measure(config: Cases, trial: Trial) -> Measured:
    """Accuracy curves from both starts; activations of the transferred network at four moments."""
    setting: Transfer = getattr(config, config.case)
    protocol = Protocol(setting, trial)
    images = protocol.test[0][: config.activation_images]
    found = {"initial": fractions_of(protocol.initial, images)}
    found["pretrained"] = fractions_of(protocol.pretrained, images)
    trial.report(0.3, "pre-trained")
    numbers: dict[str, float] = {"upstream": protocol.upstream_log.final.train.accuracy}
    arrays: dict[str, np.ndarray] = {}
    for labels in LABELS:
        compared = protocol.compare(labels)
        found[labels] = fractions_of(compared.model, images)
        numbers[f"{labels}_gain"] = compared.gain
        numbers[f"{labels}_test_gain"] = compared.test_gain
        scratch, moved = compared.scratch, compared.transferred
        arrays["steps"] = scratch.steps.astype(np.float32)
        curves = [scratch.train, moved.train, scratch.test, moved.test]
        arrays[labels] = np.stack(curves).astype(np.float16)
    for moment, fractions in found.items():
        arrays[f"histogram_{moment}"] = histograms_of(fractions)
        means = [float(part.mean) for part in fractions.values()]
        arrays[f"mean_{moment}"] = np.array(means, dtype=np.float32)
    return Measured(numbers, arrays, {"case": config.case})


def _of(runs: Results, case: str) -> Result | None:
    return next(iter(runs_of(runs, case)), None)


def _untrained(*found: Result | None) -> bool:
    """Missing runs, and runs that have not learned their labels, decide nothing."""
    return any(run is None or not _has_learned(run) for run in found)


def _has_learned(run: Result) -> bool:
    """Whether half of the random labels were learned, and the downstream task from one start."""
    learned = all(left_chance(*run.arrays[labels][:2]) for labels in LABELS)
    return run["upstream"] > _FITTED and learned


def _changed(runs: Results, case: str, sign: int) -> Outcome:
    """Whether pre-training changes both areas in one direction."""
    run = _of(runs, case)
    if run is None:
        return outcome(None, cases=len(runs))
    gains = {labels: run[f"{labels}_gain"] for labels in LABELS}
    bound = above if sign > 0 else below
    return decided(
        *(bound(f"gain in area, {labels} labels", gain) for labels, gain in gains.items()),
        premise=not _untrained(run),
        upstream_accuracy=run["upstream"],
        **_reached(run),
    )


def _reached(run: Result) -> dict[str, float]:
    """Final training accuracies, to show how well the runs fitted."""
    starts = ("scratch", "pretrained")
    return {
        f"{labels}_{start}": float(run.arrays[labels][row, -1])
        for labels in LABELS
        for row, start in enumerate(starts)
    }


def _test_accuracy(runs: Results) -> Outcome:
    found = {case: _of(runs, case) for case in ("positive", "negative")}
    gains = {case: run["real_test_gain"] for case, run in found.items() if run is not None}
    return decided(
        *(below(case, gain) for case, gain in gains.items()),
        premise=not _untrained(*found.values()),
    )


def _pair(runs: Results) -> tuple[Result, Result] | None:
    """The negative case, and the case with which its activations are compared."""
    low, high = _of(runs, "negative"), _of(runs, "wide") or _of(runs, "positive")
    return None if low is None or high is None else (low, high)


def _same_start(runs: Results) -> Outcome:
    """Whether convolutions start equal; the dense layers of the small networks differ in width."""
    pair = _pair(runs)
    if pair is None:
        return outcome(None, cases=len(runs))
    means = [run.arrays["mean_initial"] for run in pair]
    layers = min(len(values) for values in means) - (_of(runs, "wide") is not None)
    distance = float(np.abs(means[0][:layers] - means[1][:layers]).max())
    return decided(below("largest_difference", distance, 0.05))


def _specialized(runs: Results) -> Outcome:
    run = _of(runs, "negative")
    if run is None:
        return outcome(None, cases=len(runs))
    first, after = run.arrays["mean_initial"], run.arrays["mean_pretrained"]
    upper = slice(-4, -1) if len(first) < 5 else slice(-3, None)
    drop = float((first[upper] - after[upper]).min())
    depth = np.arange(len(after))
    slope = float(np.polyfit(depth, after, 1)[0])
    return decided(
        above("smallest_drop", drop), below("slope_over_depth", slope), premise=not _untrained(run)
    )


def _lower_after_tuning(runs: Results) -> Outcome:
    pair = _pair(runs)
    if pair is None:
        return outcome(None, cases=len(runs))
    low, high = (float(run.arrays["mean_random"][-2:].mean()) for run in pair)
    return decided(
        below("negative minus other", low - high),
        premise=not _untrained(*pair),
        negative=low,
        other=high,
    )


_SUBSET = Stage(5_000, steps=3_000)
_PUBLISHED = Cases(
    positive=Transfer(Network("vgg16", init_scale=0.526), Stage(20_000, 5, epochs=120)),
    negative=Transfer(
        Network("vgg16", init_scale=0.612), Stage(20_000, 50, epochs=80), learning_rate=0.009
    ),
)
_REDUCED = Cases(
    positive=Transfer(
        Network("vgg16", init_scale=0.526**0.5),
        Stage(5_000, 5, steps=5_000),
        _SUBSET,
        test_examples=5_000,
    ),
    negative=Transfer(
        Network("vgg16", init_scale=0.612**0.5),
        Stage(5_000, 50, steps=4_000),
        _SUBSET,
        learning_rate=0.009,
        test_examples=5_000,
    ),
)
_TINY = Images(pool=4)
_NEGATIVE = Transfer(
    Network(conv_layers=2, units=16, init_scale=1.218),
    Stage(500, 2, steps=400),
    Stage(500, steps=200),
    0.012,
    100,
    _TINY,
    200,
)
_LITE = Cases(
    positive=Transfer(
        Network(units=256, init_scale=0.518),
        Stage(500, 25, steps=500),
        Stage(500, steps=120),
        0.02,
        50,
        _TINY,
        200,
    ),
    negative=_NEGATIVE,
    wide=replace(_NEGATIVE, network=Network(conv_layers=2, units=512, init_scale=1.218)),
    activation_images=200,
)
_SMOKE = Transfer(
    Network(units=8, filters=4),
    Stage(32, 2, steps=2),
    Stage(32, steps=2),
    0.01,
    16,
    Images("digits"),
    16,
)

STUDY = Study(
    id=_ID,
    title="Positive and negative transfer, and neurons that stop firing",
    shows=("Figure 1", "Figure 7", "Figure 10", "Figure 11"),
    measure=measure,
    configs={
        "smoke": Cases(positive=_SMOKE, negative=_SMOKE, activation_images=16),
        "lite": _LITE,
        "reduced": _REDUCED,
        "published": _PUBLISHED,
    },
    claims=(
        Claim(
            f"{_ID}.positive",
            "positive case: pre-training on random labels enlarges the area under the training "
            "curve, for real and random labels",
            partial(_changed, case="positive", sign=1),
            scope="seed",
        ),
        Claim(
            f"{_ID}.negative",
            "negative case: it makes that area smaller, for real and random labels",
            partial(_changed, case="negative", sign=-1),
            scope="seed",
        ),
        Claim(
            f"{_ID}.test",
            "final test accuracy with real labels is lower after pre-training, in both cases",
            _test_accuracy,
            scope="seed",
            sizes=LARGE,
        ),
        Claim(
            f"{_ID}.same-start",
            "at initialisation the layers of both cases are equally active (means of convolutions "
            "within 0.05)",
            _same_start,
            scope="seed",
            sizes=(),  # both cases are drawn alike: it could not fail
        ),
        Claim(
            f"{_ID}.specialized",
            "negative case: after pre-training the last convolutions are less active than at "
            "initialisation, and activity falls with depth",
            _specialized,
            scope="seed",
            sizes=LARGE,
        ),
        Claim(
            f"{_ID}.lower",
            "after fine-tuning on random labels the last two layers are less active in the "
            "negative case than in the other (in the small networks: the same with 512 units)",
            _lower_after_tuning,
            scope="seed",
        ),
    ),
    draw=draw,
    spaces={
        "smoke": Space({"case": ["positive", "negative"]}),
        "lite": Space({"case": ["positive", "negative", "wide"]}),
        "reduced": Space({"case": ["positive", "negative"]}),
        "published": Space({"case": ["positive", "negative"]}),
    },
    stand_in={
        "smoke": "8x8 digits in the place of CIFAR-10",
        "lite": "Simple CNNs on 500 + 500 images averaged to 8x8: the positive case is that of "
        "Figure 6, the negative one the narrow network of Figure 8",
    },
    remarks={
        "reduced": "init scales 0.526 and 0.612 are taken as factors of the variance: as factors "
        "of "
        "the standard deviation the networks stayed at chance for 60 upstream and 12 downstream "
        "epochs of 20,000 and 25,000 images",
    },
    not_run={"published": "48 trainings of VGG16 for up to 200 epochs need a cluster"},
    seeds={"published": tuple(range(101, 113))},
)
