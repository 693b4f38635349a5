"""Nulls and errors: what they are compared with, one at a time; and warnings, once each."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import theodolite as th
from tests.survey.subjects import blobs, mlp, rows
from theodolite.measures import gradient, tangent
from theodolite.surveys.context import Draws
from theodolite.surveys.gradient import grouped_alignment
from theodolite.surveys.options import SurveyOptions

NULLED = ["alignment_area", "top_share", "cka_target", "tangent_alignment"]
GROUPED = ["omega_contrast", "in_class_omega", "feature_omega_contrast", "feature_omega_in_class"]


@pytest.fixture
def draws():
    return Draws.of(24, SurveyOptions(permutations=5, half_samples=6))


def test_grouped_alignment_is_that_of_the_vectors(draws, generator):
    vectors = torch.randn(24, 5, generator=generator, dtype=torch.float64)
    labels = torch.arange(24) % 3
    found = grouped_alignment(
        vectors @ vectors.T, draws.permutations_of(functional.one_hot(labels).double())
    )
    for index, order in enumerate(draws.orders(24)):
        expected = gradient.alignment_contrast(vectors, labels[order]).item()
        assert found.contrast[index].item() == pytest.approx(expected, abs=1e-10)


def test_tangent_null_is_that_of_permuted_labels():
    x, y = blobs(24)
    model = mlp()
    found = th.survey(model, (x, y), families="tangent", permutations=6)
    probe_order = th.survey(model, (x, y), families="tangent", permutations=6)
    assert rows(found, "tangent_alignment", "2") == rows(probe_order, "tangent_alignment", "2")
    generator = torch.Generator().manual_seed(1)
    kernels = th.tangent_kernels(model, x, ["2"])["2"].double()
    targets = functional.one_hot(y).double()
    values = torch.stack(
        [
            tangent.tangent_alignment(kernels, targets[torch.randperm(24, generator=generator)])
            for _ in range(200)
        ]
    )
    row = rows(found, "tangent_alignment", "2")
    assert abs(row["null_mean"] - values.mean().item()) < 4 * values.std().item() / math.sqrt(6)
    assert row["null_sd"] < 3 * values.std().item()


@pytest.fixture(scope="module")
def surveys():
    """The same features with their own classes, and with labels that mean nothing."""
    x, y = blobs(60)
    noise = torch.randint(0, 3, (60,), generator=torch.Generator().manual_seed(3))
    model = nn.Sequential(nn.Linear(6, 3))
    model[0].load_state_dict({"weight": torch.eye(6)[:3], "bias": torch.zeros(3)})
    return th.survey(model, (x, y)), th.survey(model, (x, noise))


@pytest.mark.parametrize(
    "measure", [m for m in [*NULLED, *GROUPED] if m not in ("in_class_omega", "omega_contrast")]
)  # gradients of the loss see the labels: no chance level for classes
def test_separated_classes_stand_out_and_random_labels_do_not(surveys, measure):
    separated, random = (found.estimate(measure, "0").z_score for found in surveys)
    assert separated > 4
    # Gradients know the labels that they were made with, features and kernels do not.
    assert abs(random) < 4 or "omega" in measure


@pytest.mark.parametrize(
    ("family", "measure"),
    [
        ("representation", "alignment_area"),
        ("kernel", "cka_target"),
        ("tangent", "tangent_alignment"),
        ("gradient", "omega"),
    ],
)
def test_errors_come_from_half_samples(family, measure):
    x, y = blobs(120)
    model = nn.Linear(6, 3)
    options = {"families": family, "permutations": 0}
    row = rows(th.survey(model, (x, y), options={"half_samples": 20}, **options), measure, "")
    assert row["method"] == "half-sampling"
    fresh = [th.survey(model, blobs_like(x, y, seed), **options) for seed in range(6)]
    deviation = torch.tensor([other.estimate(measure, "").value for other in fresh]).std().item()
    assert deviation / 4 < row["error"] < 4 * deviation


def blobs_like(x, y, seed):
    """New examples around the same centres."""
    generator = torch.Generator().manual_seed(100 + seed)
    centers = torch.stack([x[y == label].mean(0) for label in range(3)])
    return centers[y] + 0.7 * torch.randn(x.shape, generator=generator), y


def test_neither_nulls_nor_errors_where_none_are_asked_for():
    found = th.survey(
        mlp(),
        blobs(),
        permutations=0,
        half_samples=0,
        families=["representation", "kernel", "tangent"],
    )
    frame = found.to_frame()
    drawn = frame[frame.method != "binomial"]  # guessing and its error need no draws
    assert drawn[["error", "null_mean", "null_sd"]].isna().all().all()


def test_same_seed_same_numbers():
    first, second = (th.survey(mlp(), blobs(), seed=4) for _ in range(2))
    assert first.to_frame().equals(second.to_frame())


def warnings(found, layer):
    return [w for w in found.record.contents["warnings"] if w["layer"] == layer]


def test_few_examples_for_many_features():
    found = th.survey(mlp((6, 50, 3)), blobs(24), families=["representation", "kernel"])
    texts = [entry["text"] for entry in warnings(found, "0")]
    assert any("24 examples for 50 features" in text for text in texts)
    assert any("are few for this number" in text for text in texts)
    assert not any("features" in entry["text"] for entry in warnings(found, "2"))


def test_dead_layers_are_undefined_and_counted_once():
    model = mlp()
    with torch.no_grad():
        model[2].weight.zero_()
        model[2].bias.zero_()
    found = th.survey(model, blobs())
    row = rows(found, "alignment_area", "2")
    assert math.isnan(row["value"])
    assert row["reason"] == "all features are zero"
    named = [(w["family"], w["measure"]) for w in warnings(found, "2")]
    assert len(named) == len(set(named))
    assert ("kernel", "cka_target") in named
    index = found.record.contents["rows"].index(row)
    assert found.record.reasons[f"rows/{index}/value"] == "all features are zero"


def test_every_undefined_number_has_a_reason():
    model = mlp((6, 8, 8))
    nn.init.zeros_(model[2].weight)
    found = th.survey(model, blobs(8, classes=8))
    undefined = [row for row in found.record.contents["rows"] if math.isnan(row["value"])]
    assert undefined
    assert all(row["reason"] for row in undefined)
    assert not any(row["reason"] for row in found.record.contents["rows"] if row not in undefined)
