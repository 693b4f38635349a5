"""Theorem 2: what gradients have lost of the input's geometry on their way back to a layer."""

from math import log

import numpy as np

from theodolite.theory.infinite_width import (
    asymptotic_backward_information,
    backward_fraction_loss,
    backward_losses,
)
from theodolite_papers.ledger import Claim, Measured, Outcome, Panel, Results, Study, Trial, outcome
from theodolite_papers.lou2022._random_nets import (
    CONFIGS,
    LITE,
    RandomNets,
    finite_cosines,
    largest_error,
    log_slope,
    pair_arrays,
    pair_lines,
    within_limits,
)

__all__ = ["STUDY"]

_MARGIN = 0.5  # epsilon of the domain
_FRACTION = 0.5  # alpha = l / L of case (i)


def measure(config: RandomNets, trial: Trial) -> Measured:
    """Rates of both cases on the recursion; gradients of finite networks beside it."""
    depths = np.unique(np.geomspace(config.recursion / 100, config.recursion, 7).astype(int))
    excess = [backward_fraction_loss(_FRACTION, int(d), _MARGIN) for d in depths]
    scale = np.asarray([log(d) / d for d in depths])
    deepest = int(depths[-1])
    expected = asymptotic_backward_information(_FRACTION, deepest) - _FRACTION**3
    information = backward_losses(deepest, 1 - _MARGIN).numpy()
    early = np.unique(np.geomspace(deepest**0.4, deepest**0.7, 9).astype(int))
    values = information[early - 1]
    measured = finite_cosines(config, trial, "backward")
    theory = {cosine: backward_losses(config.depth, cosine).numpy() for cosine in measured}
    numbers = {
        "fraction_exponent": log_slope(scale, np.asarray(excess)),
        "fraction_ratio": float(excess[-1] / expected),
        "early_exponent": log_slope(deepest / early, values),
        "early_constant": float(np.median((deepest / early) ** 3 * values)),
        "finite_error": largest_error(measured, theory),
        "finite_step": min(float(np.diff(found).min()) for found in measured.values()),
    }
    return Measured(numbers, pair_arrays(measured, theory))


def _fraction(runs: Results) -> Outcome:
    exponent, ratio = runs["fraction_exponent"][0], runs["fraction_ratio"][0]
    return outcome(abs(exponent - 1) <= 0.15, exponent=exponent, over_expansion=ratio)


def _early(runs: Results) -> Outcome:
    exponent, constant = runs["early_exponent"][0], runs["early_constant"][0]
    return outcome(abs(exponent + 3) <= 0.1, exponent=exponent, constant=constant)


def _rising(runs: Results) -> Outcome:
    return outcome(runs["finite_step"][0] >= -0.05, smallest_step=runs["finite_step"][0])


def draw(runs: Results) -> list[Panel]:
    """Backward information of finite networks and of the recursion."""
    lines = pair_lines(runs, lambda cosines: cosines)
    return [Panel("Theorem 2", lines, "layer", "cosine of gradients")]


STUDY = Study(
    id="lou2022.theorem2",
    title="Loss of backward information",
    shows=("Theorem 2",),
    measure=measure,
    configs=CONFIGS,
    seeds={"paper": (101, 102, 103)},
    claims=(
        Claim(
            "lou2022.theorem2.fraction",
            "(i) at half the depth the distance from 1/8 falls as log L / L: exponent within 0.15 "
            "of 1",
            _fraction,
        ),
        Claim(
            "lou2022.theorem2.early",
            "(ii) in early layers the information is of order (L / l)^-3: exponent within 0.1",
            _early,
        ),
        Claim(
            "lou2022.theorem2.finite",
            "cosines of gradients in finite networks are within 0.15 of the recursion",
            within_limits,
        ),
        Claim(
            "lou2022.theorem2.rising",
            "backward information rises with the layer (no step below -0.05)",
            _rising,
        ),
    ),
    draw=draw,
    stand_in={"lite": LITE},
)
