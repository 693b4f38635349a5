"""Claims of spec 1's studies hold on one side of their thresholds and fail on the other."""

import numpy as np
import pytest

from theodolite_papers.imani2022 import (
    fig2,
    fig4,
    fig7,
    fig9,
    fig10,
    fig11,
    fig12,
    fig16_table1,
    figs1_5,
    figs6_17_18,
    figs13_19_20,
    figs14_15_21,
)
from theodolite_papers.ledger import judge_claim

from .made_runs import made_runs, status


@pytest.mark.parametrize(("margin", "verdict"), [(1e-4, "holds"), (-1e-4, "fails")])
def test_fig4_needs_a_margin_for_every_example(margin, verdict):
    runs = made_runs({"smallest_margin_1": 0.3, "smallest_margin_2": margin})
    assert status(fig4.STUDY, "separable", runs) == verdict


@pytest.mark.parametrize(("crossings", "verdict"), [(1, "holds"), (3, "fails")])
def test_fig9_counts_crossings(crossings, verdict):
    runs = made_runs({"mix_ahead_first": 1, "crossings": crossings, "one_ahead_last": 1})
    assert status(fig9.STUDY, "crossing", runs) == verdict


@pytest.mark.parametrize(("share", "a", "b"), [(0.4, "fails", "fails"), (0.6, "holds", "fails"),
                                               (0.01, "fails", "holds")])  # fmt: skip
def test_fig2_concentrated_or_uniform(share, a, b):
    runs = made_runs({f"share_{case}": share for case in "abcd"} | {"chance": 0.005})
    assert [status(fig2.STUDY, name, runs) for name in "abcd"] == [a, b, b, a]


def test_fig7_orders_all_layers():
    names = ("input", "act1", "act2", "act3")
    rising = dict(zip(names, (0.1, 0.2, 0.3, 0.4), strict=True))
    bent = rising | {"act2": 0.15}
    for areas, verdict in ((rising, "holds"), (bent, "fails")):
        runs = made_runs({f"trained_{k}": v for k, v in areas.items()})
        assert status(fig7.STUDY, "trained", runs) == verdict
        runs = made_runs({f"initial_{k}": 1 - v for k, v in areas.items()})
        assert status(fig7.STUDY, "initial", runs) == verdict


def _variations(trained):
    """Depths 1, 2 and 4 with these areas; batch and linear stay above the input."""
    numbers = {"train: input": 0.1, "test: input": 0.1}
    areas = {**trained, "linear": 0.5, "sgd": 0.5, "batch 32": 0.5}
    for name, area in areas.items():
        numbers[f"dominance: {name}"] = 0.9
        numbers[f"loss: {name}"] = 0.2
        for subset in ("train", "test"):
            numbers[f"{subset}: trained: {name}"] = area
            numbers[f"{subset}: initial: {name}"] = 0.05
    return numbers, {"task": "made", "configurations": ", ".join(areas)}


def test_fig6_every_configuration_must_rise():
    numbers, notes = _variations({"depth 1": 0.3, "depth 2": 0.4})
    study = figs6_17_18.STUDY
    names = ("architectures", "optimizers", "test", "linear")
    runs = made_runs(numbers, notes=notes)
    assert [status(study, name, runs) for name in names] == ["holds"] * 4
    lower = made_runs(numbers | {"train: trained: batch 32": 0.09}, notes=notes)
    assert [status(study, name, lower) for name in names] == ["holds", "fails", "holds", "holds"]
    guessing = {"train: trained: batch 32": 0.09, "loss: batch 32": 1.001}
    left_out = made_runs(numbers | guessing, notes=notes)
    assert [status(study, name, left_out) for name in names] == ["holds"] * 4
    lower = made_runs(numbers | {"test: initial: depth 2": 0.6}, notes=notes)
    assert [status(study, name, lower) for name in names] == ["holds", "holds", "fails", "holds"]


@pytest.mark.parametrize(
    ("second", "verdict"),
    [((0.3, 0.35, 0.4), "fails"), ((0.3, 0.25, 0.2), "holds"), ((0.3, 0.4, 0.35), "fails")],
    ids=["both rise", "one falls", "one bends"],
)
def test_fig6_a_trend_is_the_mean_rank_correlation(second, verdict):
    depths = ("depth 1", "depth 2", "depth 4")
    first, notes = _variations(dict(zip(depths, (0.3, 0.4, 0.5), strict=True)))
    other, _ = _variations(dict(zip(depths, second, strict=True)))
    assert status(figs6_17_18.STUDY, "no-trend", made_runs(first, other, notes=notes)) == verdict


def test_fig6_a_fall_in_every_run_is_a_trend_too():
    first, notes = _variations({"depth 1": 0.4, "depth 2": 0.3})
    other, _ = _variations({"depth 1": 0.5, "depth 2": 0.4})
    assert status(figs6_17_18.STUDY, "no-trend", made_runs(first, other, notes=notes)) == "fails"


@pytest.mark.parametrize(("dip", "verdict"), [(5e-4, "holds"), (2e-3, "fails")])
def test_fig6_curves_may_not_dip_below_the_input(dip, verdict):
    """The input, then a network before and after training; one threshold of the last dips."""
    curves = np.array([[1.0, 0.5, 0.1], [1.0, 0.2, 0.0], [1.0, 0.8, 0.1 - dip]])
    notes = {"configurations": "depth 1"}
    runs = made_runs({"loss: depth 1": 0.2}, arrays={"train": curves}, notes=notes)
    assert status(figs6_17_18.STUDY, "curves", runs) == verdict


@pytest.mark.parametrize(("transfer", "verdict"), [(0.4, "holds"), (0.6, "fails")])
def test_fig13_trains_fastest_with_the_logistic_loss_too(transfer, verdict):
    numbers = {f"logistic_train_{name}": 0.5 for name in ("original", "init", "rbf")}
    numbers |= {"logistic_train_transfer": transfer, "logistic_train_hog": 0.1}
    runs = made_runs(numbers)
    assert status(figs13_19_20.STUDY, "train-speed-logistic", runs) == verdict


def test_fig10_judges_runs_and_their_mean():
    def numbers(related):
        return {"related_original": 0.1, "related_init": 0.05, "related_transfer": related}

    runs = made_runs(numbers(0.2), numbers(0.09))
    assert status(fig10.STUDY, "related", runs) == "mixed"
    assert status(fig10.STUDY, "mean-related", runs) == "holds"


@pytest.mark.parametrize(
    ("transfer", "verdict"), [(0.2, "holds"), (0.35, "fails"), (0.299, "undecided")]
)
def test_fig11_compares_all_three_beyond_the_noise(transfer, verdict):
    runs = [
        {
            f"related_{name}_train_{step}": value
            for name, value in (("original", 0.4), ("init", 0.3), ("transfer", transfer + noise))
            for step in (100, 1000)
        }
        for noise in (-0.01, 0.0, 0.01)
    ]
    claim = next(one for one in fig11.STUDY.claims if one.id.endswith(".related-train"))
    assert judge_claim(claim, "lite", made_runs(*runs)).status == verdict


def test_fig12_counts_runs_without_a_rise():
    rising = {f"related_{k}": v for k, v in zip(("input", "act1", "act2", "act3"), (1, 2, 3, 4),
                                                strict=True)}  # fmt: skip
    bent = rising | {"related_act3": 0.5}
    assert status(fig12.STUDY, "related", made_runs(rising, bent, bent)) == "holds"
    assert status(fig12.STUDY, "related", made_runs(rising, rising, bent)) == "fails"


@pytest.mark.parametrize(("dictionary", "verdict"), [(0.21, "holds"), (0.19, "fails")])
def test_fig1_dictionary_must_test_twice_as_badly(dictionary, verdict):
    runs = made_runs({"test_network": 0.1, "test_rbf": 0.095, "test_dictionary": dictionary})
    assert status(figs1_5.STUDY, "test", runs) == verdict


def test_fig13_the_closest_network_decides_and_sift_may_be_missing():
    notes = {"networks": "one, two"}
    numbers = {
        "area_original": 0.05, "area_hog": 0.08, "area_rbf": 0.01, "area_transfer": 0.2,
        "area_transfer: one": 0.2, "area_transfer: two": 0.06,
        "area_init: one": 0.01, "area_init: two": 0.02,
    }  # fmt: skip
    study = figs13_19_20.STUDY
    assert status(study, "order", made_runs(numbers, notes=notes)) == "holds"
    worse = made_runs(numbers | {"area_transfer: two": 0.04}, notes=notes)
    assert status(study, "order", worse) == "fails"
    assert status(study, "above-handmade", made_runs(numbers, notes=notes)) == "holds"
    better = made_runs(numbers | {"area_sift": 0.3}, notes=notes)
    assert status(study, "above-handmade", better) == "fails"


@pytest.mark.parametrize(("lowest", "verdict"), [(-0.0005, "holds"), (-0.01, "fails")])
def test_fig14_means_may_not_dip(lowest, verdict):
    mean = np.full((4, 51), 0.1)
    mean[2, 7] = lowest
    runs = made_runs({}, arrays={"mean": mean}, notes={"data": "peaks"})
    assert status(figs14_15_21.STUDY, "curves", runs) == verdict


def _on_imagenet(*accuracies):
    """Accuracies in the order of the table, and areas that rise with the layer."""
    keys = [f"result_{a}_on_{b}" for a in ("natural", "artificial")
            for b in ("natural", "artificial")]  # fmt: skip
    areas = {f"area_{k}": 0.1 * k for k in (1, 2, 3, 4)}
    return made_runs(
        dict(zip(keys, accuracies, strict=True)) | areas,
        arrays={"mean": np.full((4, 50), 0.1)},
        notes={"data": "imagenet", "network": "resnet18"},
    )


@pytest.mark.parametrize(("natural", "accuracy"), [(0.9455, "holds"), (0.90, "fails")])
def test_fig14_on_imagenet(natural, accuracy):
    runs, study = _on_imagenet(natural, 0.957, 0.9049, 0.9714), figs14_15_21.STUDY
    assert status(study, "curves", runs, "reduced") == "holds"
    assert status(study, "depth", runs, "reduced") == "holds"
    assert status(study, "accuracy", runs, "reduced") == accuracy


def test_fig14_prints_all_four_accuracies():
    (claim,) = (c for c in figs14_15_21.STUDY.claims if c.id.endswith(".accuracy"))
    assert claim.published["artificial_on_natural"] == 90.49
    assert set(claim.published) == set(claim.check(_on_imagenet(0.8, 0.9, 0.7, 0.95)).numbers)


def test_fig16_orders_of_area_and_accuracy_must_agree():
    domains = ("a", "b", "c")
    numbers = {f"accuracy_none_on_{t}": 0.9 for t in domains}
    for rank, source in enumerate(domains):
        for target in domains:
            if source != target:
                numbers[f"accuracy_{source}_on_{target}"] = 0.8 - 0.1 * rank
                numbers[f"area_{source}_on_{target}"] = 0.1 + 0.1 * rank
    notes = {"domains": ", ".join(domains), "data": "digits"}
    study = fig16_table1.STUDY
    for name in ("accuracy", "area", "order"):
        assert status(study, name, made_runs(numbers, notes=notes)) == "holds"
    swapped = numbers | {"area_a_on_b": 0.9, "area_a_on_c": 0.9}
    assert status(study, "order", made_runs(swapped, notes=notes)) == "fails"
    risen = numbers | {"accuracy_a_on_b": 0.95}
    assert status(study, "accuracy", made_runs(risen, notes=notes)) == "fails"
