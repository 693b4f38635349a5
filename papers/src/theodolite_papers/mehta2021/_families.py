"""Studies over scales of initialisation: the claims that figures share, pictures, configs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from theodolite_papers.ledger import (
    CORRELATION,
    LARGE,
    SHARE,
    Check,
    Claim,
    Line,
    Outcome,
    Panel,
    Result,
    Results,
    Space,
    Study,
    above,
    below,
    decided,
    mean_and_error,
    merged,
    spearman,
)
from theodolite_papers.mehta2021._scales import Scales, measure_scales

__all__ = [
    "PART",
    "PUBLISHED",
    "SIX_PANELS",
    "SMOKE",
    "UNTIL_FIT",
    "Family",
    "accuracy_claim",
    "accuracy_falls",
    "alignment_claim",
    "alignment_falls",
    "chance_level",
    "curve_panel",
    "drop",
    "family_study",
    "fit_claim",
    "fits",
    "memorization_claim",
    "memorizes",
    "never_fits",
    "on_each",
    "on_each_set",
    "representation_claim",
    "scale_panels",
    "standard_claims",
    "values",
]

_RISE = 0.02  # of an accuracy, by which a sequence may rise and still count as falling
_FIT = dict.fromkeys(LARGE, 1.0)  # elsewhere 0.99: small runs are short


def values(run: Result, name: str) -> np.ndarray:
    """One number of every sigma, smallest sigma first."""
    return np.array([run[f"{name}@{float(sigma):g}"] for sigma in run.arrays["sigma"]])


def low(run: Result) -> int:
    """Position of the better of the two smallest sigmas by test accuracy."""
    return int(np.argmax(values(run, "best_test")[:2]))


def accuracy_falls(least: float) -> Check:
    """Best test accuracy is lower at the largest sigma by ``least``, and never rises."""

    def check(runs: Results) -> Outcome:
        run = runs.first
        start, accuracy = low(run), values(run, "best_test")
        rise = float(np.diff(accuracy[start:]).max())
        return decided(
            above("drop", drop(run, "best_test"), least, strict=False),
            below("largest_rise", rise, _RISE, strict=False),
            small_sigma=accuracy[start],
            largest_sigma=accuracy[-1],
        )

    return check


def fits(runs: Results) -> Outcome:
    """Every network learns its training set."""
    run = runs.first
    share = values(run, "train").min()
    return decided(
        above(
            "lowest_train_accuracy", share, _FIT.get(run.size, 0.99), strict=False, possible=SHARE
        )
    )


def never_fits(runs: Results) -> Outcome:
    """No network learns its whole training set."""
    run = runs.first
    share = values(run, "train").max()
    return decided(below("highest_train_accuracy", share, 1, possible=SHARE))


def chance_level(chance: float, test_size: int) -> float:
    """The largest test accuracy that counts as chance: three standard errors above it."""
    return chance + 3 * float(np.sqrt(chance * (1 - chance) / test_size))


def memorizes(since: float | None = None) -> Check:
    """Perfect on training data, at chance on test data; for all sigmas from ``since`` on."""

    def check(runs: Results) -> Outcome:
        run = runs.first
        sigma = run.arrays["sigma"]
        chosen = sigma >= (sigma.max() if since is None else since) * 0.999
        train, test = values(run, "train")[chosen], values(run, "best_test")[chosen]
        chance, size = run["chance"], int(run["test_size"])
        return decided(
            above(
                "lowest_train", train.min(), _FIT.get(run.size, 0.99), strict=False, possible=SHARE
            ),
            below("highest_test", test.max(), chance_level(chance, size), strict=False),
            chance=chance,
        )

    return check


def drop(run: Result, name: str, *, relative: bool = False) -> float:
    """Decrease of a value from the small sigma to the largest, or as a share (of 0: nan)."""
    found = values(run, name)
    start, fall = found[low(run)], found[low(run)] - found[-1]
    if not relative:
        return float(fall)
    return float(fall / abs(start)) if start else float("nan")


def alignment_falls(name: str) -> Check:
    """The named in-class alignment falls with sigma.

    The paper names no margin: the signs of the drop and of the rank correlation decide.
    """

    def check(runs: Results) -> Outcome:
        run = runs.first
        found = values(run, name)
        rank = spearman(run.arrays["sigma"], found)
        return decided(
            above("relative_drop", drop(run, name, relative=True)),
            below("rank_correlation", rank, possible=CORRELATION),
            small_sigma=found[low(run)],
            largest_sigma=found[-1],
        )

    return check


def on_each(check: Check, *names: str) -> Check:
    """The check on every data set of a seed (of those named, if any was run): all must hold.

    Undecided if none fails and one is undecided.
    """

    def checked(runs: Results) -> Outcome:
        named = runs.chosen(lambda run: run.point.get("data") in names)
        parts = named if names and len(named) else runs
        answers = {str(run.point.get("data", "")): check(Results((run,))) for run in parts}
        return merged(answers)

    return checked


_FALLS = "than at the smaller one and falls with sigma (rank correlation below 0)"
_GRADIENTS = {
    "hidden": "hidden-layer gradients",
    "top": "top-layer gradients",
    "logit": "logit gradients",
}


def accuracy_claim(study: str, least: float) -> Claim:
    """Generalisation falls with the scale."""
    return Claim(
        f"{study}.test",
        f"best test accuracy falls by at least {least:g} from the better of the two smallest "
        "sigmas to the largest, without a rise above 0.02 on the way",
        accuracy_falls(least),
    )


def fit_claim(study: str) -> Claim:
    """Every training set is learnt."""
    text = "training accuracy reaches 1 (lite: 0.99) for every sigma"
    return Claim(f"{study}.fit", text, fits)


def memorization_claim(study: str, since: float | None = None) -> Claim:
    """Extreme memorisation, at the largest sigma or from one on."""
    where = "the largest sigma" if since is None else f"sigma {since:g} and above"
    return Claim(
        f"{study}.memo",
        f"at {where} training accuracy is perfect (lite: 0.99) and test accuracy at chance, "
        "within three standard errors",
        memorizes(since),
    )


def alignment_claim(study: str, name: str) -> Claim:
    """Gradients of one class agree less at a large scale."""
    return Claim(
        f"{study}.{name}",
        f"in-class alignment of {_GRADIENTS[name]}, mean until the fit, is lower at the largest "
        f"sigma {_FALLS}",
        alignment_falls(name),
    )


def representation_claim(study: str) -> Claim:
    """Representations of one class agree less at a large scale."""
    return Claim(
        f"{study}.rep",
        f"in-class alignment of the trained representations is lower at the largest sigma {_FALLS}",
        alignment_falls("representation_end"),
    )


def standard_claims(
    study: str, least: float, kinds: Sequence[str] = ("fit", "hidden", "top", "logit", "rep")
) -> tuple[Claim, ...]:
    """The claim about test accuracy, and those of the named kinds."""
    found = [accuracy_claim(study, least)]
    found += [fit_claim(study)] if "fit" in kinds else []
    found += [alignment_claim(study, name) for name in _GRADIENTS if name in kinds]
    found += [representation_claim(study)] if "rep" in kinds else []
    return tuple(found)


def on_each_set(claim: Claim, *names: str) -> Claim:
    """The claim about every data set of a seed, or about those that are named."""
    return replace(claim, check=on_each(claim.check, *names), scope="seed")


_ALIGNMENT, _CONTRAST = "in-class alignment", "in-class minus overall alignment"
# Quantity -> title of its axis, and the layer it belongs to.
_AXES = {
    "train": ("training accuracy", ""),
    "test": ("test accuracy", ""),
    "hidden": (_ALIGNMENT, "hidden-layer gradients"),
    "top": (_ALIGNMENT, "top-layer gradients"),
    "logit": (_ALIGNMENT, "logit gradients"),
    "representation": (_ALIGNMENT, "representations"),
    "hidden_contrast": (_CONTRAST, "hidden-layer gradients"),
    "representation_contrast": (_CONTRAST, "representations"),
    "relative_norm": ("gradient norm / weight norm", "first layer"),
}


def curve_panel(title: str, runs: Results, name: str) -> Panel:
    """A quantity against steps, one line per sigma, with the standard error over runs."""
    shortest = min(runs, key=lambda run: len(run.arrays["step"]))
    steps = shortest.arrays["step"]
    stacked = np.stack([run.arrays[name][:, : len(steps)] for run in runs])
    mean, error = mean_and_error(stacked)
    lines = [
        Line(f"σ = {sigma:g}", steps[1:], mean[k, 1:], error[k, 1:])
        for k, sigma in enumerate(shortest.arrays["sigma"].tolist())
    ]
    axis, subject = _AXES[name]
    scale = "xy" if name == "relative_norm" else "x"
    return Panel(f"{title}: {subject}" if subject else title, lines, "steps", axis, scale)


def scale_panels(figure: str, runs: Results, names: Sequence[str]) -> list[Panel]:
    """One panel per quantity and data set."""
    parts: dict[str, list[Result]] = {}
    for run in runs:
        parts.setdefault(str(run.point.get("data", "")), []).append(run)
    return [
        curve_panel(f"{figure}, {data}" if data else figure, Results(tuple(part)), name)
        for data, part in parts.items()
        for name in names
    ]


SMOKE = Scales(hidden=(32,), sigmas=(0.01, 0.1, 1.0), steps=20, points=3, probe=50)
PUBLISHED = Scales(
    data="cifar10",
    hidden=(1024,),
    rate=0.01,
    batch_size=256,
    steps=100_000,
    points=32,
    probe=500,
    until_fit=True,
)
# A part of the data that every network fits completely long before the last step.
PART = replace(PUBLISHED, data="cifar10_20k", steps=60_000, points=24)
UNTIL_FIT = "a run ends when every network has learnt its training set"
SIX_PANELS = (
    *("hidden", "hidden_contrast", "top", "test", "train"),
    *("representation", "representation_contrast", "logit"),
)


@dataclass(frozen=True)
class Family:
    """The settings of one of these studies.

    Args:
        id: of the study.
        title: of the study.
        shows: its figures.
        lite: settings of the small version; smoke takes its activation and loss.
        large: settings of the reduced size, and of the published one unless that has its own.
        sets: size -> data sets.
        published: settings of the published size, where they differ.
        claims: about it.
        panels: quantities that are drawn.
        lite_data: what stands in for the paper's data in the small version.
        large_remark: what the paper leaves open.
        not_run: why there are no records of the published size.
    """

    id: str
    title: str
    shows: tuple[str, ...]
    lite: Scales
    large: Scales
    sets: dict[str, list[str]]
    claims: tuple[Claim, ...]
    published: Scales | None = None
    panels: tuple[str, ...] = SIX_PANELS
    lite_data: str = ""
    large_remark: str = ""
    not_run: str = ""


def family_study(family: Family) -> Study:
    """The study; each data set is a point."""
    figures = ", ".join(family.shows)

    def draw(runs: Results) -> list[Panel]:
        return scale_panels(figures, runs, family.panels)

    smoke = replace(
        SMOKE,
        activation=family.lite.activation,
        loss=family.lite.loss,
        hidden=SMOKE.hidden * len(family.lite.hidden),
        first_rate=family.lite.first_rate,
    )
    large = {size: family.large for size in LARGE if size in family.sets}
    if family.published is not None:
        large["published"] = family.published
    return Study(
        id=family.id,
        title=family.title,
        shows=family.shows,
        measure=measure_scales,
        configs={"smoke": smoke, "lite": family.lite, **large},
        spaces={size: Space({"data": sets}) for size, sets in family.sets.items()},
        claims=family.claims,
        draw=draw,
        seeds=dict.fromkeys(LARGE, (101, 102, 103)),
        stand_in={"lite": family.lite_data} if family.lite_data else {},
        remarks=dict.fromkeys(large, family.large_remark),
        not_run={"published": family.not_run} if family.not_run else {},
    )
