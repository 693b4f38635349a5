"""Surveys of arrays: the numbers of a survey of the model that they came from, and no model."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import theodolite as th
from tests.survey.subjects import blobs

NO_MODEL = "no model was given"


@pytest.fixture(scope="module")
def both():
    """A survey of a model, and one of its features, with the same seed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 30), nn.ReLU(), nn.Linear(30, 3)).double()
    x, y = blobs()
    x = x.double()
    options = {"seed": 3, "sizes": {"representation": 24, "kernel": 20, "gradient": 16}}
    by_model = th.survey(model, (x, y), **options)
    by_arrays = th.survey_features(th.features(model, x, ["0", "2"]), y, **options)
    return by_model, by_arrays


@pytest.mark.parametrize("layer", ["0", "2"])
@pytest.mark.parametrize(
    "measure",
    [
        *("alignment_area", "probe_accuracy", "cka_target", "participation_ratio"),
        "feature_omega_contrast",
    ],
)
def test_numbers_are_those_of_a_survey_of_the_model(both, measure, layer):
    expected, found = (survey.estimate(measure, layer) for survey in both)
    # In float64 the model's features agree to rounding, whatever the order of the examples.
    assert found.value == pytest.approx(expected.value, rel=1e-9)
    if expected.null_mean is not None:
        assert found.null_mean == pytest.approx(expected.null_mean, rel=1e-6)


def test_what_needs_a_model_says_that_there_was_none(both):
    found = both[1].record.contents
    assert found["skipped"] == {"covariance": NO_MODEL, "tangent": NO_MODEL}
    told = {entry["measure"]: entry["text"] for entry in found["warnings"]}
    assert told["omega_contrast"] == f"not measured: {NO_MODEL}"
    assert told["cka_input"] == f"not measured: {NO_MODEL}"
    lines = [line for line in both[1].summary().splitlines() if NO_MODEL in line]
    assert lines == [
        f"covariance, tangent, CKA to the input and gradient contrast: not measured, {NO_MODEL}"
    ]
    assert {row["measure"] for row in found["rows"]}.isdisjoint({"omega", "loss", "cka_input"})
    assert {row["read_at"] for row in found["rows"]} == {"as given"}
    assert found["data"]["input_shape"] is None


def test_the_survey_answers_shows_and_saves(both, tmp_path):
    survey = both[1]
    assert isinstance(survey, th.Survey)
    assert survey.layers == ["0", "2"]
    questions = [answer["question"] for answer in survey.record.contents["answers"]]
    assert questions == ["layer"]
    (why,) = [line for line in survey.summary().splitlines() if NO_MODEL in line]
    assert why.startswith("covariance, tangent, ")
    survey.save(tmp_path / "run")
    assert th.load(tmp_path / "run").to_frame().equals(survey.to_frame())
    assert "CKA" in survey.to_html(tmp_path / "page.html").read_text()


def numbers(found):
    rows = found.record.contents["rows"]
    return {
        (row["layer"], row["measure"], column): row[column]
        for row in rows
        for column in ("value", "null_mean")
    }


@pytest.fixture(scope="module")
def labelled():
    x, y = blobs()
    options = {"families": "kernel", "permutations": 3}
    return x.double(), y, options, th.survey_features({"a": x.double()}, y, **options)


@pytest.mark.parametrize(
    "given",
    [
        lambda x: x.numpy(),
        lambda x: pd.DataFrame(x.numpy()),
        lambda x: x.reshape(len(x), 2, -1),
        lambda x: x.numpy().tolist(),
    ],
    ids=["numpy", "frame", "maps", "lists"],
)
def test_features_of_any_kind(labelled, given):
    x, y, options, expected = labelled
    found = th.survey_features({"a": given(x)}, y, **options)
    assert numbers(found) == pytest.approx(numbers(expected), nan_ok=True)


@pytest.mark.parametrize(
    "given",
    [
        lambda y: y.numpy(),
        lambda y: pd.Series(y.numpy()),
        lambda y: [f"class {label}" for label in y.tolist()],
        lambda y: pd.Series([f"class {label}" for label in y.tolist()], dtype="category"),
        lambda y: np.array([f"class {label}" for label in y.tolist()]),
        lambda y: 10 * y - 5,  # codes of classes, negative ones too
        lambda y: nn.functional.one_hot(y),
    ],
    ids=["numpy", "series", "list of text", "categories", "array of text", "codes", "one-hot"],
)
def test_labels_of_any_kind(labelled, given):
    x, y, options, expected = labelled
    found = th.survey_features({"a": x}, given(y), **options)
    assert numbers(found) == pytest.approx(numbers(expected), nan_ok=True)


def test_text_labels_name_the_classes(labelled):
    x, y, options, _ = labelled
    words = np.array(["cat", "dog", "owl"])[y.numpy()]
    found = th.survey_features({"a": x}, words, **options)
    assert found.record.contents["data"]["classes"] == ["cat", "dog", "owl"]


def test_numbers_are_a_regression(labelled):
    x, _, options, _ = labelled
    found = th.survey_features({"a": x}, pd.Series(x[:, 0].numpy()), **options)
    assert found.record.contents["data"]["task"] == "regression"
    assert found.estimate("cka_target", "a").value > 0
