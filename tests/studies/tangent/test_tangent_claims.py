"""Claims can fail: each is put on both sides of its threshold."""

import numpy as np
import pytest

from tests.studies.tangent.made_results import claim_of, depth_run, holds, made_run, made_runs
from theodolite.theory.infinite_width import equilibrium_layer

DEPTHS = (10, 20, 40, 80)


def balanced(factor=1.0):
    return [depth_run(depth, factor * equilibrium_layer(depth)) for depth in DEPTHS]


def law(exponent):
    return [depth_run(depth, depth**exponent) for depth in DEPTHS]


def test_exact_balance_is_recognized():
    assert holds("lou2022.fig3.better", *balanced())
    assert holds("lou2022.fig3.near", *balanced(1.5))
    assert not holds("lou2022.fig3.near", *balanced(1.7))
    assert holds("lou2022.fig3.balance", *balanced())
    assert not holds("lou2022.fig3.law", *balanced())


def test_the_law_is_recognized():
    assert not holds("lou2022.fig3.better", *law(0.6))
    assert holds("lou2022.fig3.law", *law(0.6))


@pytest.mark.parametrize(("exponent", "inside"), [(0.6, True), (0.79, True), (0.85, False)])
def test_slope_of_the_paper(exponent, inside):
    assert holds("lou2022.fig3.slope", *law(exponent)) is inside


def test_falling_peaks_are_not_rising():
    runs = [depth_run(depth, peak) for depth, peak in zip(DEPTHS, (9, 7, 5, 3), strict=True)]
    assert not holds("lou2022.fig3.rising", *runs)
    assert holds("lou2022.fig3.rising", *balanced())


def test_networks_that_did_not_fit_are_left_out():
    stray = depth_run(40, 40, loss=1.0)
    assert holds("lou2022.fig3.better", *balanced(), stray)
    assert claim_of("lou2022.fig3.rising").check(made_runs(*balanced(), stray)).numbers[
        "digits networks"
    ] == len(DEPTHS)


def test_too_few_depths_decide_nothing():
    assert holds("lou2022.fig3.better", *balanced()[:2]) is None


@pytest.mark.parametrize(("peak", "inside"), [(1, False), (2, True), (9, True), (10, False)])
def test_peaks_inside(peak, inside):
    assert holds("lou2022.fig3.inside", depth_run(10, peak)) is inside


@pytest.mark.parametrize(("data", "close"), [("mnist", True), ("cifar10", True)])
def test_accuracy_beside_the_table(data, close):
    assert holds("lou2022.fig3.accuracy", depth_run(10, 5, data=data)) is close
    far = made_run({"test_accuracy": 85.0, "tabled_accuracy": 91.0}, data=data)
    assert holds("lou2022.fig3.accuracy", far) is False


def cell(batch, rate, height, loss, converged=1.0):
    numbers = {"height": height, "test_loss": loss, "converged": converged, "peak": 3.0}
    return made_run(numbers, batch_size=batch, learning_rate=rate)


def test_higher_peaks_with_lower_losses():
    good = [cell(128, 0.01 * i, 0.1 * i, 1 - 0.1 * i) for i in range(1, 5)]
    bad = [cell(128, 0.01 * i, 0.1 * i, 0.1 * i) for i in range(1, 5)]
    assert holds("lou2022.fig4.correlated", *good)
    assert not holds("lou2022.fig4.correlated", *bad)
    assert holds("lou2022.fig4.rate", *good)
    assert not holds("lou2022.fig4.rate", *[cell(128, 0.01 * i, -i, 1.0) for i in range(1, 4)])


def test_cells_that_did_not_converge_are_left_out():
    cells = [cell(128, 0.01 * i, 0.1 * i, 0.1 * i, converged=0.0) for i in range(1, 5)]
    assert holds("lou2022.fig4.correlated", *cells) is None


def test_height_falls_with_the_batch():
    falling = [cell(batch, 0.01, 1 / batch, 0.1) for batch in (32, 128, 512)]
    rising = [cell(batch, 0.01, batch, 0.1) for batch in (32, 128, 512)]
    assert holds("lou2022.fig4.batch", *falling)
    assert not holds("lou2022.fig4.batch", *rising)


@pytest.mark.parametrize(("study", "sign"), [("fig12", -1), ("fig15", -1)])
def test_gaps_against_the_learning_rate(study, sign):
    runs = [made_run({"loss_gap": sign * rate}, learning_rate=rate) for rate in (0.1, 0.2, 0.3)]
    against = [made_run({"loss_gap": -sign * rate}, learning_rate=rate) for rate in (0.1, 0.2)]
    assert holds(f"lou2022.{study}.loss-gap", *runs)
    assert not holds(f"lou2022.{study}.loss-gap", *against)


def test_sgd_does_not_count_among_adams_rates():
    runs = [
        made_run({"loss_gap": 0.5}, training="adam 0.001"),
        made_run({"loss_gap": 0.4}, training="adam 0.01"),
        made_run({"loss_gap": 9.0}, training="sgd 0.1"),
    ]
    assert holds("lou2022.fig13.loss-gap", *runs)


def test_adam_against_sgd():
    adam = made_run({"loss_gap": 0.5, "prominence": 0.1}, training="adam 0.001")
    sgd = made_run({"loss_gap": 0.4, "prominence": 0.2}, training="sgd 0.01")
    worse = made_run({"loss_gap": 0.6, "prominence": 0.2}, training="sgd 0.01")
    assert holds("lou2022.fig13.adam", adam, sgd)
    assert not holds("lou2022.fig13.adam", adam, worse)


def networks(**values):
    return [
        made_run({"mean_alignment": value, "decay": -value}, net=net)
        for net, value in values.items()
    ]


def test_order_of_three_networks():
    assert holds("lou2022.fig19-23.alignment", *networks(blue=3.0, orange=2.0, green=1.0))
    assert not holds("lou2022.fig19-23.alignment", *networks(blue=2.0, orange=3.0, green=1.0))
    assert holds("lou2022.fig19-23.decay", *networks(blue=3.0, orange=2.0, green=1.0))
    assert holds("lou2022.fig19-23.decay", *networks(blue=3.0)) is None


def test_every_layer_of_the_clean_network_is_below():
    arrays = {"fisher_rank": np.asarray([1.0, 5.0]), "rank": np.asarray([4.0, 4.5])}
    numbers = {"mean_fisher_rank": 3.0, "mean_rank": 4.25}
    assert not holds("lou2022.fig19-23.fisher-below", made_run(numbers, arrays, net="blue"))
    assert holds("lou2022.fig19-23.fisher-below", made_run(numbers, arrays, net="green"))


def layered(network, peak, accuracy=95.0, height=0.1):
    numbers = {
        "peak": peak,
        "layers": 10.0,
        "test_accuracy": accuracy,
        "height": height,
        "near_peak": 3.0,
        "last": 0.1,
    }
    return made_run(numbers, network=network)


def test_layer_wise_against_end_to_end():
    whole = layered("end to end", 3.0, accuracy=96.0, height=0.2)
    assert holds("lou2022.fig16-17.peaks", layered("layer-wise 32", 9.0), whole)
    assert not holds("lou2022.fig16-17.peaks", layered("layer-wise 32", 5.0), whole)
    assert holds("lou2022.fig16-17.accuracy", layered("layer-wise 32", 9.0, 96.4), whole)
    assert not holds("lou2022.fig16-17.accuracy", layered("layer-wise 32", 9.0, 96.6), whole)
    assert holds("lou2022.fig16-17.lower", layered("layer-wise 32", 9.0), whole)
    assert holds("lou2022.fig16-17.last", layered("layer-wise 32", 9.0), whole)


def test_accuracy_with_width():
    def frozen(width, accuracy):
        numbers = {"train_accuracy": accuracy, "test_accuracy": accuracy}
        return made_run(numbers, width=width, noise_scale=1.0)

    assert holds("lou2022.fig18.wider", frozen(32, 40.0), frozen(128, 80.0))
    assert not holds("lou2022.fig18.wider", frozen(32, 80.0), frozen(128, 40.0))
