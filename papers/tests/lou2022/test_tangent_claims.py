"""Claims can fail: each is put on both sides of its threshold."""

import numpy as np
import pytest

from papers.tests.lou2022.made_results import claim_of, depth_run, holds, made_run, made_runs
from theodolite.theory.infinite_width import equilibrium_layer
from theodolite_papers.ledger import find_study

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
        "digits_networks"
    ] == len(DEPTHS)


def test_networks_that_fitted_are_counted():
    runs = [depth_run(10, 5), depth_run(10, 5, loss=0.04), depth_run(20, 5, loss=0.06)]
    judged = claim_of("lou2022.fig3.trained").check(made_runs(*runs))
    assert judged.numbers == {"digits 10": 2.0, "digits 20": 0.0}


def test_too_few_depths_decide_nothing():
    assert holds("lou2022.fig3.better", *balanced()[:2]) is None


@pytest.mark.parametrize(("peak", "inside"), [(1, False), (2, True), (9, True), (10, False)])
def test_peaks_inside(peak, inside):
    assert holds("lou2022.fig3.inside", depth_run(10, peak)) is inside


def test_networks_that_diverged_have_no_peak():
    assert holds("lou2022.fig3.inside", depth_run(10, np.nan)) is None


@pytest.mark.parametrize(("accuracy", "costs"), [(80.0, True), (90.0, False), (np.nan, None)])
def test_cost_of_a_large_rate(accuracy, costs):
    runs = [
        made_run({"test_accuracy": value}, learning_rate=rate)
        for rate, value in ((0.05, accuracy), (0.005, 85.0))
    ]
    assert holds("lou2022.fig9-10.costs", *runs) is costs


@pytest.mark.parametrize(("data", "close"), [("mnist", True), ("cifar10", True)])
def test_accuracy_beside_the_table(data, close):
    assert holds("lou2022.fig3.accuracy", depth_run(10, 5, data=data)) is close
    far = made_run({"test_accuracy": 85.0, "tabled_accuracy": 91.0}, data=data)
    assert holds("lou2022.fig3.accuracy", far) is False


def test_accuracies_are_drawn_beside_the_table():
    runs = made_runs(*[depth_run(depth, 5, data="mnist") for depth in (10, 20, 30)])
    table = find_study("lou2022.fig3").draw(runs)[-1]
    measured, published = table.marks
    assert table.title == "Table 3, mnist"
    assert list(measured.x) == [10, 20, 30]
    assert dict(zip(published.x, published.y, strict=True))[70] == 94.8


def test_networks_that_did_not_fit_are_not_drawn():
    runs = made_runs(depth_run(10, 3), depth_run(20, 5), depth_run(30, 29, loss=2.0))
    figure, heat = find_study("lou2022.fig3").draw(runs)
    assert list(figure.marks[0].x) == [10.0, 20.0]
    assert np.isnan(heat.marks[0].values[:, 2]).all()
    assert not np.isnan(heat.marks[0].values[:20, 1]).any()


def cell(batch, rate, height, loss, converged=1.0):
    numbers = {"height": height, "test_loss": loss, "converged": converged, "peak": 3.0}
    arrays = {"after": np.linspace(0, height, 4)}
    return made_run(numbers, arrays, batch_size=batch, learning_rate=rate)


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


def test_cells_that_were_not_run_are_blank():
    cells = [cell(512, 0.01, 0.1, 0.5), cell(128, 0.03, 0.2, 0.4), cell(128, 0.01, 0.3, 0.3)]
    panels = find_study("lou2022.fig4").draw(made_runs(*cells))
    heat = panels[0].marks[0]
    assert heat.rows == ["128", "512"]
    assert heat.columns == ["0.01", "0.03"]
    np.testing.assert_array_equal(heat.values, [[0.3, 0.2], [0.1, np.nan]])


def test_a_peak_that_stays_has_not_moved():
    cells = [cell(128, rate, 0.1, 0.5) for rate in (0.01, 0.02, 0.03)]
    assert holds("lou2022.fig4.moves", *cells) is False


def conv(converged=1.0, point=None, **numbers):
    return made_run({"converged": converged, "train_loss": 0.1, **numbers}, **(point or {}))


def at_rate(rate, converged=1.0, **numbers):
    return conv(converged, {"learning_rate": rate}, **numbers)


@pytest.mark.parametrize("study", ["fig12", "fig15"])
@pytest.mark.parametrize(
    ("claim", "key", "sign"),
    [("loss-gap", "loss_gap", -1), ("height", "height", 1), ("moves", "peak", -1)],
)
def test_trends_over_the_learning_rate(study, claim, key, sign):
    runs = [at_rate(rate, **{key: sign * rate}) for rate in (0.1, 0.2, 0.3)]
    against = [at_rate(rate, **{key: -sign * rate}) for rate in (0.1, 0.2)]
    assert holds(f"lou2022.{study}.{claim}", *runs)
    assert holds(f"lou2022.{study}.{claim}", *against) is False


@pytest.mark.parametrize(("loss", "expected"), [(0.29, True), (0.31, None)])
def test_networks_are_compared_at_the_same_loss(loss, expected):
    """The paper stops all of them at one training loss: a factor of 3 is too much."""
    runs = [at_rate(0.1, loss_gap=0.3), at_rate(0.2, loss_gap=0.2, train_loss=loss)]
    assert holds("lou2022.fig12.loss-gap", *runs) is expected
    gaps = {"loss_gap": 0.2, "accuracy_gap": 2.0}
    large = [at_rate(0.02, train_loss=loss, **{k: v / 2 for k, v in gaps.items()})]
    assert holds("lou2022.fig15.large", at_rate(0.001, **gaps), *large) is expected


def test_networks_that_miss_their_loss_have_no_part_in_trends():
    stray = at_rate(0.3, converged=0.0, loss_gap=9.0, peak=17.0, layers=17.0)
    runs = [at_rate(rate, loss_gap=-rate, peak=8.0, layers=16.0) for rate in (0.1, 0.2)]
    assert holds("lou2022.fig12.loss-gap", *runs, stray)
    assert holds("lou2022.fig12.place", runs[0], stray)
    assert holds("lou2022.fig12.place", stray) is None


def test_peaks_and_batches():
    def at_batch(size, peak):
        return conv(1.0, {"batch_size": size}, peak=peak)

    assert holds("lou2022.fig14.moves", at_batch(32, 8.0), at_batch(512, 15.0))
    assert holds("lou2022.fig14.moves", at_batch(32, 15.0), at_batch(512, 8.0)) is False


def test_gaps_are_drawn_in_order_of_the_setting():
    arrays = {"after": np.arange(3.0)}
    runs = [
        made_run({"loss_gap": 10 * rate}, arrays, learning_rate=rate) for rate in (0.3, 0.1, 0.2)
    ]
    hierarchies, gaps = find_study("lou2022.fig12").draw(made_runs(*runs))
    assert [line.name for line in hierarchies.marks] == ["0.1", "0.2", "0.3"]
    (measured,) = gaps.marks
    assert (measured.labels, measured.y) == (["0.1", "0.2", "0.3"], [1.0, 2.0, 3.0])


def test_published_gaps_are_drawn_where_there_are_any():
    arrays = {"after": np.arange(3.0)}
    runs = [made_run({"loss_gap": 0.1}, arrays, learning_rate=rate) for rate in (0.01, 0.1)]
    _, published = find_study("lou2022.fig12").draw(made_runs(*runs))[1].marks
    np.testing.assert_array_equal(published.y, [0.224, np.nan])


def trained_by(training, **numbers):
    return conv(point={"training": training}, **numbers)


def test_sgd_does_not_count_among_adams_rates():
    runs = [
        trained_by("adam 0.001", loss_gap=0.5),
        trained_by("adam 0.01", loss_gap=0.4),
        trained_by("sgd 0.1", loss_gap=9.0),
    ]
    assert holds("lou2022.fig13.loss-gap", *runs)


def test_adam_against_sgd():
    adam = trained_by("adam 0.001", loss_gap=0.5, prominence=0.1)
    sgd = trained_by("sgd 0.01", loss_gap=0.4, prominence=0.2)
    worse = trained_by("sgd 0.01", loss_gap=0.6, prominence=0.2)
    short = conv(0.0, {"training": "adam 0.0001"}, loss_gap=0.0, prominence=9.0)
    assert holds("lou2022.fig13.adam", adam, short, sgd)
    assert not holds("lou2022.fig13.adam", adam, worse)
    assert holds("lou2022.fig13.adam", short, sgd) is None


def networks(**values):
    return [
        made_run({"mean_alignment": value, "decay": -value, "test_accuracy": value}, net=net)
        for net, value in values.items()
    ]


def test_order_of_three_networks():
    for claim in ("alignment", "accuracy"):
        name = f"lou2022.fig19-23.{claim}"
        assert holds(name, *networks(blue=3.0, orange=2.0, green=1.0))
        assert not holds(name, *networks(blue=2.0, orange=3.0, green=1.0))
    assert holds("lou2022.fig19-23.decay", *networks(blue=3.0, orange=2.0, green=1.0))
    assert holds("lou2022.fig19-23.decay", *networks(blue=3.0)) is None


def test_every_layer_of_the_clean_network_is_below():
    arrays = {"fisher_rank": np.asarray([1.0, 5.0]), "rank": np.asarray([4.0, 4.5])}
    numbers = {"mean_fisher_rank": 3.0, "mean_rank": 4.25}
    assert not holds("lou2022.fig19-23.fisher-below", made_run(numbers, arrays, net="blue"))
    assert holds("lou2022.fig19-23.fisher-below", made_run(numbers, arrays, net="green"))


def layered(network, peak, accuracy=95.0, height=0.1, **point):
    numbers = {
        "peak": peak,
        "layers": 10.0,
        "test_accuracy": accuracy,
        "height": height,
        "near_peak": 3.0,
        "last": 0.1,
    }
    return made_run(numbers, network=network, **point)


def test_layer_wise_against_end_to_end():
    whole = layered("end to end", 3.0, accuracy=96.0, height=0.2)
    assert holds("lou2022.fig16-17.peaks", layered("layer-wise 32", 9.0), whole)
    assert not holds("lou2022.fig16-17.peaks", layered("layer-wise 32", 5.0), whole)
    assert holds("lou2022.fig16-17.accuracy", layered("layer-wise 32", 9.0, 96.4), whole)
    assert not holds("lou2022.fig16-17.accuracy", layered("layer-wise 32", 9.0, 96.6), whole)
    assert holds("lou2022.fig16-17.lower", layered("layer-wise 32", 9.0), whole)
    assert holds("lou2022.fig16-17.last", layered("layer-wise 32", 9.0), whole)


def test_layer_wise_networks_are_compared_on_their_own_data():
    runs = [
        layered("end to end", 3.0, 97.0, 0.1, data="mnist"),
        layered("layer-wise 32", 9.0, 95.0, 0.09, data="mnist"),
        layered("end to end", 3.0, 50.0, 0.02, data="cifar10"),
        layered("layer-wise 32", 9.0, 40.0, 0.01, data="cifar10"),
    ]
    assert holds("lou2022.fig16-17.accuracy", *runs)
    assert holds("lou2022.fig16-17.lower", *runs)
    better = layered("layer-wise 256", 9.0, 51.0, 0.09, data="cifar10")
    assert holds("lou2022.fig16-17.accuracy", *runs, better) is False
    assert holds("lou2022.fig16-17.lower", *runs, better) is False
    assert holds("lou2022.fig16-17.accuracy", *runs[::3]) is None  # a pair of different data


def test_accuracy_with_width():
    def frozen(width, accuracy, scale=1.0):
        numbers = {"train_accuracy": accuracy, "test_accuracy": accuracy}
        return made_run(numbers, width=width, noise_scale=scale)

    other = frozen(128, 1.0, scale=0.3)  # Table 4 is of scale 1
    assert holds("lou2022.fig18.wider", frozen(32, 40.0), frozen(128, 80.0), other)

    assert holds("lou2022.fig18.wider", frozen(32, 40.0), frozen(128, 80.0))
    assert not holds("lou2022.fig18.wider", frozen(32, 80.0), frozen(128, 40.0))
