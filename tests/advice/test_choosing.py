"""What is said of a ranking: how sure, what disagrees, and whether size says the same."""

import numpy as np
import pytest

from theodolite.advice.choosing import Candidate, choosing_notes, ranked, tied, transfer_answers
from theodolite.records import Note


def entry(name, error, parameters, features=None, misses=()):
    own = error if features is None else features
    return Candidate(name, error, own, 1 - error, parameters, np.asarray(misses, float))


def test_models_without_a_number_come_last():
    names = [e.name for e in ranked([entry("a", float("nan"), 1), entry("b", 0.2, 1)])]
    assert names == ["b", "a"]


def test_one_model_needs_no_note():
    assert choosing_notes([entry("a", 0.2, 1)]) == []


def test_forecasts_that_are_lower_bounds_are_named():
    notes = choosing_notes([entry("a", 0.6, 1), entry("b", 0.8, 1), entry("c", 0.9, 1)])
    assert notes[0] == (
        "Forecasts and learning curves of b and c may be far too low: more than 70 % of the "
        "variance of the labels stays unexplained, and fine-tuning may learn new features."
    )
    assert (notes[0].note, notes[0].facts["models"]) == (Note.LOW_FORECASTS, ["b", "c"])
    assert choosing_notes([entry("b", 0.8, 1)], points=False) == []


def test_a_ranking_by_size_is_told_so():
    notes = choosing_notes([entry("a", 0.1, 30), entry("b", 0.2, 20), entry("c", 0.3, 10)])
    assert notes == [
        "The ranking equals the ranking by number of parameters, largest first. For these "
        "models you would get the same order without measuring."
    ]


def test_what_the_list_by_size_would_lose_is_told():
    notes = choosing_notes([entry("a", 0.1, 10), entry("b", 0.3, 20)])
    assert notes[-1] == "The ranking by size starts with b, whose forecast is 20.0 points lower."


def test_equal_sizes_say_nothing():
    assert "same size" in choosing_notes([entry("a", 0.1, 10), entry("b", 0.3, 10)])[-1]


def test_models_that_are_not_distinguished_are_a_tie():
    rng = np.random.default_rng(0)
    first = rng.random(100)
    near, far = first + 0.3 * rng.standard_normal(100), first + 0.5
    models = [
        entry("c", 0.5, 5, misses=far),
        entry("b", 0.11, 20, misses=near),
        entry("a", 0.1, 10, misses=first),
    ]
    assert tied(models) == ["a", "b"]
    assert tied(models[::2]) == []
    assert not any("b is not" in note for note in choosing_notes(models))  # said in the headline


def test_features_that_disagree_are_told():
    notes = choosing_notes([entry("a", 0.1, 10, features=0.5), entry("b", 0.2, 10, features=0.2)])
    assert notes[0].startswith("Linear probes rank b first")
    notes = choosing_notes([entry("a", 0.1, 1, features=0.5), entry("my net", 0.2, 1, 0.2)])
    assert notes[0].startswith("Linear probes rank “my net” first")
    assert notes[0].facts["probes"] == "my net"


def test_features_alone_beside_tangent_kernels_are_told():
    pair = [entry("a", 0.2, 1), Candidate("b", 0.3, 0.3, 0.7, 1, incomplete=True)]
    assert choosing_notes(pair)[0] == (
        "Judged only by features: b. The others are judged with the tangent kernel, whose errors "
        "are lower. So their places in the ranking may be too low."
    )
    assert not any("only by features" in note for note in choosing_notes(pair[1:] * 2))


def answer_of_a_tie(*parameters):
    forecast = {"measure": "accuracy", "value": 0.94, "low": 0.85, "high": 0.997}
    models = [
        {"name": name, "error": 0.3, "parameters": count, "forecast": forecast, "tangent": 0.3,
         "layers": [], "best_layer": None}
        for name, count in zip("ab", parameters, strict=True)
    ]  # fmt: skip
    contents = {"models": models, "ties": ["a", "b"], "data": {"probe": 50}}
    curve = {
        "labels": [50, 500],
        "accuracy": [0.9, 0.95],
        "accuracy_interval": [[0.8] * 2, [1] * 2],
    }
    return transfer_answers(contents, {f"0/curve/{k}": np.array(v) for k, v in curve.items()})[0]


def test_a_tie_recommends_the_smallest_only_where_sizes_differ():
    unequal, equal = answer_of_a_tie(20, 10).advice, answer_of_a_tie(10, 10).advice
    assert unequal == "Start from the smallest of them, b, or label more examples."
    assert equal == "Start from any of them, or label more examples."


def test_an_interval_does_not_round_to_all():
    assert "94 % (85 to 99.7 %)" in answer_of_a_tie(10, 10).text


@pytest.mark.parametrize(
    ("kind", "head", "expected"),
    [
        ("Linear", "fc", "cut net after outputs"),
        ("", "fc", "remove only the head of net"),
        ("", None, "use the outputs of net"),
    ],
)
def test_the_place_to_cut_depends_on_no_name(kind, head, expected):
    layers = [layer("conv", 0.4), layer("outputs", 0.8) | {"type": kind}]
    text = answer_about_layers(layers, "outputs", head)
    assert text == f"Without fine-tuning, {expected}: a linear probe reaches 80 %."


def test_a_layer_with_the_lowest_error_may_be_less_accurate_than_the_last():
    text = answer_about_layers([layer("conv", 0.76), layer("fc", 0.8)], "conv", "fc")
    assert text == (
        "Without fine-tuning, cut net after conv: its linear probe has the lowest squared error"
        " (accuracy 76 %, after the last layer 80 %). This difference may be chance."
    )
    text = answer_about_layers([layer("conv", 0.8), layer("fc", 0.8)], "conv", "fc")
    assert "a linear probe reaches 80 %, after the last layer 80 %." in text


def layer(name, accuracy):
    ends = {"accuracy_low": accuracy - 0.1, "accuracy_high": accuracy + 0.1}
    return {"name": name, "type": "Linear", "n": 90, "accuracy": accuracy, **ends}


def answer_about_layers(layers, best, head):
    forecast = {"measure": "accuracy", "value": 0.8, "low": 0.7, "high": 0.9}
    model = {"name": "net", "head": head, "layers": layers, "best_layer": best}
    model |= {"forecast": forecast, "error": 0.3, "tangent": None, "parameters": 9}
    curve = {"labels": np.array([90.0, 900.0]), "accuracy": np.array([0.8, 0.9])}
    curve["accuracy_interval"] = np.array([[0.7, 0.8], [0.9, 1.0]])
    arrays = {f"0/curve/{key}": value for key, value in curve.items()}
    return transfer_answers({"models": [model], "data": {"probe": 90}}, arrays)[1].text
