"""Claims of spec 2's studies hold on one side of their thresholds and fail on the other."""

import numpy as np
import pytest

from papers.tests.sides import side
from theodolite_papers.ledger import Result, Results, find_study


def made(*numbers, arrays=None, points=None, size="lite"):
    runs = [
        Result(one, arrays or {}, {}, (points or [{}] * len(numbers))[k], 101, size)
        for k, one in enumerate(numbers)
    ]
    return Results(tuple(runs))


def status(study, name, runs, size="lite"):
    found = find_study(f"maennel2020.{study}")
    (claim,) = [claim for claim in found.claims if claim.id == f"{found.id}.{name}"]
    return side(claim, size, runs)


def tables(random_accuracy=1.0, **changes):
    values = np.full((7, 4, 4), 0.3)
    values[:4, 1:, 0] = (0.31, 0.35, 0.40)
    values[:4, 1:, 2] = 0.5
    values[:4, 3, 3] = 0.35
    values[4, 1:] = 0.2
    values[5, 1:, 0] = 0.25
    values[6, 3] = (0.41, 0.4, 0.6, 0.5)
    for place, value in changes.items():
        values[tuple(int(k) for k in place[1:].split("_"))] = value
    return made({"random_accuracy": random_accuracy}, arrays={"accuracies": values})


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("order2", {"p1_2_0": 0.45}),
        ("better", {"p3_3_0": 0.29}),
        ("test", {"p3_3_3": 0.29}),
        ("agree", {"p2_3_0": 0.51}),
        ("smallest", {"p4_2_3": 0.31}),
        ("middle", {"p5_3_0": 0.31}),
        ("like-pretrained", {"p6_3_0": 0.46}),
        ("pretrained-later", {"p6_3_2": 0.49}),
    ],
)
def test_tables(name, change):
    assert status("table1-7", name, tables()) == "holds"
    assert status("table1-7", name, tables(**change)) == "fails"


@pytest.mark.parametrize("name", ["like-pretrained", "pretrained-later"])
def test_layers_that_have_not_fitted_random_labels_decide_nothing(name):
    assert status("table1-7", name, tables(random_accuracy=0.4)) == "undecided"


@pytest.mark.parametrize(("above", "verdict"), [(75, "holds"), (74, "fails")])
def test_every_eigenvector_must_be_measured_twice(above, verdict):
    runs = made({"above_0.975": above, "lowest_plane": 0.98}, arrays={"ranked": np.ones(75)})
    assert status("table-d1", "all", runs) == verdict
    assert status("table-d1", "planes", runs) == "holds"


@pytest.mark.parametrize(("slope", "verdict"), [(-1.1, "holds"), (-0.5, "fails")])
def test_proposition_rate(slope, verdict):
    assert status("proposition1", "rate", made({"slope": slope})) == verdict


@pytest.mark.parametrize(("last", "verdict"), [(1.0, "holds"), (0.3, "fails")])
def test_proposition_random_bases_stay_put(last, verdict):
    runs = made({"baseline_first": 1.0, "baseline_last": last, "last": 0.01})
    assert status("proposition1", "baseline", runs) == verdict


@pytest.mark.parametrize(
    ("end", "half", "floor"), [(1.4, "holds", "holds"), (4.5, "fails", "fails")]
)
def test_misalignment_after_training(end, half, floor):
    one = {f"{labels}_end": end for labels in ("real", "random")}
    one |= {f"{labels}_lowest_base": 8.0 for labels in ("real", "random")}
    trained = {f"{labels}_accuracy": 0.9 for labels in ("real", "random")}
    trained |= {f"{labels}_mean_base": 8.0 for labels in ("real", "random")}
    trained |= {f"{labels}_mean_base_start": 1.5 for labels in ("real", "random")}
    runs = made(one | trained | {"floor": 1.5})
    assert status("fig2-4", "half-random", runs) == half
    assert status("fig2-4", "floor-real", runs) == floor
    untrained = made(one | trained | {"floor": 1.5, "random_accuracy": 0.1})
    assert status("fig2-4", "half-random", untrained) == "undecided"
    unmoved = made(one | trained | {"floor": 1.5, "random_mean_base": 1.6})
    assert status("fig2-4", "half-random", unmoved) == "undecided"
    assert status("fig2-4", "floor-real", unmoved) == floor


@pytest.mark.parametrize(("drawn", "verdict"), [(0.69, "holds"), (0.66, "fails")])
def test_sampled_filters_explain_the_gain(drawn, verdict):
    one = {}
    for labels in ("real", "random"):
        one |= {
            f"{labels}_scratch": 0.6,
            f"{labels}_conv_no_bias": 0.7,
            f"{labels}_covariance": drawn,
        }
    learned, chance = ({name: np.array([0.1, end]) for name in one} for end in (0.9, 0.1))
    assert status("fig5", "covariance-explains", made(one, arrays=learned)) == verdict
    assert status("fig5", "covariance-explains", made(one, arrays=chance)) == "undecided"
    control = {f"control_{name}": value for name, value in one.items()}
    assert status("fig5", "control-explains", made(control, arrays=chance)) == verdict
    low = dict.fromkeys(control, 0.1)
    assert status("fig5", "control-explains", made(low, arrays=learned)) == "undecided"


@pytest.mark.parametrize(("unscaled", "verdict"), [(0.7, "holds"), (0.6, "fails")])
def test_rescaling_does_not_help(unscaled, verdict):
    one = {"real_unscaled": unscaled, "real_pretrained": 0.65}
    one |= {"random_unscaled": 0.7, "random_pretrained": 0.65}
    learned, chance = ({name: np.array([0.1, end]) for name in one} for end in (0.9, 0.1))
    assert status("fig5", "rescaling", made(one, arrays=learned)) == verdict
    assert status("fig5", "rescaling", made(one, arrays=chance)) == "undecided"


@pytest.mark.parametrize(
    ("areas", "monotone", "above"),
    [((0.2, 0.3, 0.4), "holds", "holds"), ((0.3, 0.2, 0.4), "fails", "fails")],
)
def test_more_layers(areas, monotone, above):
    one = {f"{labels}_{depth}": area for labels in ("real", "random")
           for depth, area in zip((0, 1, -1), areas, strict=True)}  # fmt: skip
    runs = made(one, arrays={"depths": np.array([0.0, 1.0, -1.0])})
    assert status("fig6-9", "monotone", runs) == monotone
    assert status("fig6-9", "above-scratch", runs) == above
    assert status("fig6-9", "most", runs) == "holds"


@pytest.mark.parametrize(("narrow", "verdict"), [(-0.05, "holds"), (0.01, "fails")])
def test_narrow_networks_are_slowed_down(narrow, verdict):
    one = {"real_0": narrow, "random_0": -0.1, "real_1": 0.02, "random_1": 0.0}
    units, curves = {"units": np.array([16.0, 512.0])}, np.array([[0.1, 0.1], [0.1, 0.9]])
    learned, chance = (dict.fromkeys(one, curves[:rows]) for rows in (2, 1))
    runs = made(one, arrays=units | learned)
    assert status("fig8", "narrow", runs) == verdict
    assert status("fig8", "wide", runs) == "holds"
    assert status("fig8", "narrow", made(one, arrays=units | chance)) == "undecided"


@pytest.mark.parametrize(("gain", "verdict"), [(0.1, "holds"), (-0.1, "fails")])
def test_sweeps_count_groups_over_their_seeds(gain, verdict):
    def group(value):
        names = ("scratch", "one", "all")
        areas = {"scratch": 0.5, "one": 0.5 + value / 2, "all": 0.5 + value}
        return {f"{plot}_{n}": areas[n] for plot in ("real", "test_real", "random") for n in names}

    # Two seeds of a group count once, and disagree; their mean decides.
    points = [{"init_scale": 1.0}, {"init_scale": 1.0}, {"init_scale": 2.0}]
    runs = made(group(3 * gain), group(-gain), group(gain), points=points)
    assert status("fig12", "often", runs) == verdict
    assert status("fig12", "six-of-eight", runs) == verdict
    assert status("fig12", "all-layers", runs) == verdict
    assert status("fig12", "resnet", runs, "reduced") == "undecided"


@pytest.mark.parametrize(
    ("gains", "most"), [((0.1, -0.1), "fails"), ((0.1, 0.1, -0.1), "holds"), ((0.1, 0.1), "holds")]
)
def test_half_of_the_residual_networks_are_not_most(gains, most):
    points = [{"architecture": "resnet18_v2", "init_scale": k} for k in range(len(gains))]
    starts = [(f"{labels}_{start}", start != "scratch")
              for labels in ("real", "random") for start in ("scratch", "one", "all")]  # fmt: skip
    groups = [{name: 0.5 + gain * moved for name, moved in starts} for gain in gains]
    runs = made(*groups, points=points, size="reduced")
    assert status("fig12", "resnet", runs, "reduced") == most


@pytest.mark.parametrize(("early", "verdict"), [(0.2, "holds"), (0.45, "fails")])
def test_activation_drop_needs_the_control(early, verdict):
    one = {"last_conv_before": 0.5, "last_conv_scratch_start": 0.5}
    assert status("fig24", "drop", made(one, arrays=_switch(early, 0.4))) == verdict
    assert status("fig24", "drop", made(one, arrays=_switch(early, 0.1))) == "fails"


def test_drop_is_sought_in_the_whole_tenth_and_not_after_it():
    one = {"last_conv_before": 0.5, "last_conv_scratch_start": 0.5}
    late = _switch(0.5, 0.5) | {"downstream_2": _means(0.5, later=0.1)}
    assert status("fig24", "drop", made(one, arrays=late)) == "fails"


def _switch(early, scratch):
    """Networks of one and of two convolutions; the latter is lowest at the end of the tenth."""
    steps = np.array([0, 4, 8, 11, 12, 16, 20, 21, 200])
    arrays = {f"{part}_2_steps": steps for part in ("upstream", "downstream", "scratch")}
    arrays |= {"upstream_1": np.ones((1, 2)), "upstream_2": _means(0.5)}
    return arrays | {"downstream_2": _means(early), "scratch_2": _means(scratch)}


def _means(at_20, later=0.5):
    means = np.full((9, 3), 0.5)
    means[6, 1], means[7, 1] = at_20, later
    return means


@pytest.mark.parametrize(("gains", "verdict"), [((0.1, 0.2), "holds"), ((0.1, -0.2), "fails")])
def test_cases_of_transfer(gains, verdict):
    one = {"real_gain": gains[0], "random_gain": gains[1], "upstream": 0.9}
    other = {"real_gain": -gains[0], "random_gain": -gains[1], "upstream": 0.9}
    points = [{"case": "positive"}, {"case": "negative"}]
    learned, chance = np.array([[0.1, 0.1], [0.1, 0.9]]), np.full((2, 2), 0.1)
    arrays = {"real": learned, "random": learned}
    runs = made(one, other, points=points, arrays=arrays)
    assert status("fig1-7-10-11", "positive", runs) == verdict
    assert status("fig1-7-10-11", "negative", runs) == verdict
    untrained = made(one, other, points=points, arrays=arrays | {"random": chance})
    unfitted = made(one | {"upstream": 0.2}, other, points=points, arrays=arrays)
    for runs in (untrained, unfitted):
        assert status("fig1-7-10-11", "positive", runs) == "undecided"


@pytest.mark.parametrize(("partners", "quality", "verdict"), [(1, 0.9, "holds"), (0, 0.9, "fails"),
                                                              (1, 0.6, "fails")])  # fmt: skip
def test_matched_eigenvectors(partners, quality, verdict):
    runs = made({"fewest_partners": partners, "median_quality": quality})
    assert status("fig3", "matched", runs) == verdict


def scaled(**changes):
    """Two rates at the usual scale: the first learns and moves, the second does not."""
    config = {"scales": [1.0], "rates": [0.001, 0.01]}
    numbers = {"floor": 1.5}
    arrays = {}
    for rate, accuracy, base in ((0.001, 1.0, 6.0), (0.01, 0.1, 1.5)):
        cell = f"random_scale_1_rate_{rate:g}"
        found = {"accuracy": accuracy, "end": 1.6, "mean_base": base, "mean_base_start": 1.5,
                 "defect": 0.1, "peak": 0.5, "top_to_peak": 0.4}  # fmt: skip
        numbers |= {f"{cell}_{name}": value for name, value in found.items()}
        arrays |= {f"{cell}_value": np.array([1.5, 1.6]), f"{cell}_base": np.array([1.5, base])}
    numbers |= {f"random_scale_1_rate_{name}": value for name, value in changes.items()}
    return Results((Result(numbers, arrays, config=config, seed=101, size="reduced"),))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("below-random-random-1", {"0.001_end": 6.1}),
        ("floor-random", {"0.001_end": 3.1}),
        ("unimodal-random", {"0.001_defect": 0.16}),
        ("damped-top-random", {"0.001_top_to_peak": 1.0}),
    ],
)
def test_networks_that_learn_and_move_decide(name, change):
    study = "fig2-4-scales"
    assert status(study, name, scaled(), "reduced") == "holds"
    assert status(study, name, scaled(**change), "reduced") == "fails"
    still = {"0.001_mean_base": 1.6} | change
    assert status(study, name, scaled(**still), "reduced") == "undecided"
    assert (
        status(study, name, scaled(**change, **{"0.001_accuracy": 0.4}), "reduced") == "undecided"
    )
