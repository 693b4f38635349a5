"""Rules for learning and memorising, and the evidence that they rest on."""

import pytest
import torch
from torch import nn

from theodolite_papers.ledger import Result, Results, correlation_interval
from theodolite_papers.mehta2021.memorisation import (
    RULES,
    confusion,
    draw,
    evidence,
    places,
    table_numbers,
)

_NAMES = ("feature_contrast", "gradient_contrast", "cka_trained", "cka_true")
_FIRST = {"true": 0.3, "half": 0.1, "shuffled": 0.001}


def run(data, network, first):
    numbers = {}
    for kind, value in first.items():
        for name in _NAMES:
            for place in ("first", "hidden", "output"):
                numbers[f"{kind}_{name}_{place}"] = value if place == "first" else 0.6
                numbers[f"{kind}_{name}_{place}_z"] = 100 * value
        numbers[f"{kind}_train"] = 1.0
    return Result(numbers, point={"data": data, "network": network}, seed=1, size="lite")


def test_the_setting_of_the_thresholds_is_not_judged():
    assert confusion(Results((run("digits", "mlp", _FIRST),)), "share").runs == 0


def test_confusion_counts_both_kinds_of_errors():
    swapped = {"true": 0.001, "half": 0.1, "shuffled": 0.3}
    runs = Results((run("digits", "cnn", _FIRST), run("cifar16", "mlp", swapped)))
    table = confusion(runs, "share")
    assert (table.true_learning, table.true_memorizing) == (1, 1)
    assert (table.shuffled_learning, table.shuffled_memorizing) == (1, 1)
    assert table.half_learning == 2
    assert table.error == 0.5
    assert table_numbers(table)["error_at_most"] > 0.5


def test_no_error_in_fifty_runs_bounds_the_rate():
    table = confusion(Results((run("cifar16", "cnn", _FIRST),) * 25), "share")
    assert table.error == 0
    assert table.most == pytest.approx(1 - 0.05 ** (1 / 50))


def test_training_accuracy_does_not_separate():
    assert confusion(Results((run("cifar16", "cnn", _FIRST),)), "train").error == 0.5


def test_every_rule_can_be_drawn():
    panels = draw(Results((run("cifar16", "cnn", _FIRST), run("digits", "cnn", _FIRST))))
    assert len(panels) == 5
    assert set(RULES) >= {"share", "z-score", "cka", "gradient"}


def test_evidence_sees_labels_that_the_inputs_know(generator):
    labels = torch.arange(60) % 3
    inputs = torch.eye(3)[labels] + 0.1 * torch.randn(60, 3, generator=generator)
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 3))
    layers = ["0", "2"]
    told = evidence(model, (inputs, labels), labels, layers, generator)
    random = labels[torch.randperm(60, generator=generator)]
    blind = evidence(model, (inputs, random), labels, layers, generator)
    assert told["feature_contrast_first_z"] > 10 > blind["feature_contrast_first_z"]
    assert told["cka_true_first"] == told["cka_trained_first"]
    assert blind["cka_true_first"] > blind["cka_trained_first"]


def test_places():
    assert places(["a", "b", "c", "d"]) == {"first": "a", "hidden": "c", "output": "d"}


def test_the_interval_of_a_correlation_draws_whole_groups(generator):
    groups = torch.arange(40) // 10
    x = torch.randn(40, generator=generator)
    y = x + 0.5 * torch.randn(40, generator=generator)
    r, low, high = correlation_interval(x.numpy(), y.numpy(), groups.numpy())
    assert low < r < high
    one_group = correlation_interval(x.numpy(), y.numpy(), torch.zeros(40).numpy())
    assert one_group[0] == r
    assert str(one_group[1]) == "nan"
