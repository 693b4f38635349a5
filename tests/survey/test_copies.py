"""Held-out examples that are copies, of other classes or of another kind are no evidence."""

import pytest
import torch
from torch import nn

import theodolite as th
from theodolite.engine import Batch
from theodolite.surveys.copies import first_copies, input_keys, usable_examples

SOME = {"families": "representation", "progress": False, "seconds": None}


def mixture(n, seed, labels="true"):
    """Four classes in twelve columns."""
    made = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 4
    x = torch.randn(n, 12, generator=made)
    x[:, :4] += 4 * nn.functional.one_hot(y)
    return x, y[torch.randperm(n, generator=made)] if labels == "random" else y


@pytest.fixture(scope="module", params=["true", "random"])
def fitted(request):
    """A network that fits its training examples, and whether they can be learned."""
    x, y = mixture(160, 0, request.param)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 96), nn.ReLU(), nn.Linear(96, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert (model(x).argmax(1) == y).float().mean() > 0.95
    return model, (x, y), request.param == "true"


def task(model, data, held_out=None):
    return th.survey(model, data, held_out=held_out, **SOME).answers[0]


def test_training_examples_among_held_out_ones_do_not_count(fitted):
    model, (x, y), learns = fitted
    other, labels = mixture(100, 1, "true" if learns else "random")
    mixed = torch.cat([other, x]), torch.cat([labels, y])
    leaked, plain = task(model, (x, y), mixed), task(model, (x, y), (other, labels))
    assert leaked.text == plain.text
    assert leaked.finding == ("learned" if learns else "memorised")
    assert "160 others left out" in leaked.evidence


def test_training_examples_alone_decide_nothing(fitted):
    model, data, _ = fitted
    report = th.survey(model, data, held_out=data, **SOME)
    answer = report.answers[0]
    assert answer.certainty == "undecided"
    assert answer.text.startswith("Undecided: none of the 160 held-out examples can be used")
    assert "not among the training examples" in answer.advice
    assert "copies of training examples" in report.summary()
    assert all(a.certainty != "clear" for a in report.answers)


def test_held_out_examples_count_once(fitted):
    model, data, _ = fitted
    few = mixture(24, 1)
    answer = task(model, data, tuple(part.repeat(*([10] + [1] * (part.ndim - 1))) for part in few))
    assert "on 24 held-out examples" in answer.evidence


def test_copies_of_a_left_out_example_predict_nothing(fitted):
    model, (x, y), learns = fitted
    once, twice = task(model, (x, y)), task(model, (x.repeat(2, 1), y.repeat(2)))
    assert once.finding == ("learning" if learns else "undecided")
    assert twice.finding == "undecided"
    assert "100 % of the examples are copies of each other" in twice.evidence
    layer = th.survey(model, (x.repeat(2, 1), y.repeat(2)), **SOME).answers[1]
    assert layer.certainty == "undecided"


def test_classes_without_training_do_not_count(fitted):
    model, (x, y), _ = fitted
    known = y < 3
    other, labels = mixture(100, 1)
    answer = task(model, (x[known], y[known]), (other, labels))
    assert "on 75 held-out examples" in answer.evidence
    assert "25 others left out" in answer.evidence
    assert "balanced" not in answer.evidence


def test_held_out_examples_of_another_kind_do_not_show_memorising(fitted):
    model, data, _ = fitted
    other, labels = mixture(160, 1)
    answer = task(model, data, (-4 * other, labels))
    assert answer.certainty == "undecided"
    assert answer.text.endswith("but held-out inputs differ from training inputs.")
    assert "drawn like the training examples" in answer.advice


def test_held_out_examples_with_other_class_shares_are_of_the_same_kind(fitted):
    model, data, learns = fitted
    other, labels = mixture(600, 1, "true" if learns else "random")
    kept = (labels == 0) | (torch.arange(600) % 10 == 0)
    answer = task(model, data, (other[kept], labels[kept]))
    assert "differ" not in answer.text
    assert "separates" not in answer.evidence


def test_examples_drawn_alike_are_rarely_called_different():
    shifts = []
    model = nn.Linear(12, 4)
    for seed in range(40):
        report = th.survey(model, mixture(80, seed), held_out=mixture(80, seed + 1000), **SOME)
        rows = {row["measure"]: row for row in report.record.contents["rows"]}
        row = rows["shift_accuracy"]
        shifts.append(row["value"] > row["null_mean"] + 5 * row["null_sd"])
    assert sum(shifts) == 0


def test_a_rare_class_counts_as_much_as_the_others():
    made = torch.Generator().manual_seed(0)
    y = (torch.arange(1000) % 33 == 0).long()
    x = torch.randn(1000, 4, generator=made)
    x[:, 0] += 2.5 * y
    model = nn.Linear(4, 2)
    with torch.no_grad():  # half of the rare examples are found, and 1 % of the others
        model.weight.zero_()
        model.weight[1, 0] = 1.0
        model.bias.copy_(torch.tensor([0.0, -2.3]))
    report = th.survey(model, (x[:500], y[:500]), held_out=(x[500:], y[500:]), **SOME)
    answer = report.answers[0]
    assert answer.finding not in ("memorised", "mostly-memorised")
    assert answer.evidence.startswith("balanced accuracy")
    assert "(chance 50 %)" in answer.evidence


def test_examples_drawn_evenly_over_classes_do_not_give_an_accuracy():
    made = torch.Generator().manual_seed(0)
    y = (torch.rand(6000, generator=made) < 0.1).long()
    x = torch.randn(6000, 4, generator=made)
    x[:, 0] += 1.5 * y
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.zero_()
        model.weight[1, 0] = 1.0
        model.bias.copy_(torch.tensor([0.0, -2.0]))
    plain = float((model(x).argmax(1) == y).float().mean())
    assert plain > 0.9
    report = th.survey(model, (x, y), split="test", **SOME)
    assert report.record.contents["data"]["class_counts"][1] > 0.25 * 2000
    assert report.answers[0].text.startswith("Balanced accuracy on examples")


def test_keys_of_inputs():
    made = torch.Generator().manual_seed(0)
    x = torch.randn(50, 3, 4, generator=made)
    keys = input_keys(Batch((x,)))
    assert len(keys.unique()) == 50
    assert torch.equal(input_keys(Batch((x[7:9],))), keys[7:9])
    tokens = torch.randint(1, 9, (20, 6), generator=made)
    padded = torch.cat([tokens, torch.zeros(20, 3, dtype=torch.long)], 1)
    assert torch.equal(input_keys(Batch((tokens,))), input_keys(Batch((padded,))))
    other = tokens.flip(1)
    assert not torch.equal(input_keys(Batch((tokens,))), input_keys(Batch((other,))))
    assert input_keys(Batch(())) is None
    assert first_copies(torch.tensor([3, 1, 3, 2, 1])).tolist() == [0, 1, 3]


def test_examples_that_can_judge():
    keys, known = torch.tensor([5, 6, 6, 7]), torch.tensor([5])
    labels, classes = torch.tensor([0, 0, 0, 4]), torch.tensor([0, 1])
    places, left_out = usable_examples(keys, known, labels, classes)
    assert places.tolist() == [1]
    assert left_out == {"copies": 2, "new_classes": 1}
