"""The loss on the probe: from the pass that reads the features, at every measurement."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import theodolite as th
from tests.survey.subjects import blobs, mlp
from theodolite.errors import DomainError
from theodolite.records import FAMILIES
from theodolite.surveys import context


class Answer(nn.Module):
    """Outputs as some models give them: among other things."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return {"features": x, "scores": self.model(x)}


def binary(outputs, targets):
    return functional.binary_cross_entropy_with_logits(outputs[:, 0], targets.float())


def squared(outputs, targets):
    return (outputs - targets).square().sum(1).mean()


@pytest.mark.parametrize(
    ("loss", "outputs", "targets", "wanted"),
    [
        (None, 3, lambda x, y: y, functional.cross_entropy),
        (functional.cross_entropy, 3, lambda x, y: y, functional.cross_entropy),
        (nn.MSELoss(), 2, lambda x, y: x[:, :2] * 1.5, squared),
        (None, 1, lambda x, y: (y == 0).long(), binary),
    ],
    ids=["default", "function", "module", "single output"],
)
def test_every_measurement_has_the_loss(loss, outputs, targets, wanted):
    x, y = blobs()
    goal, model = targets(x, y), Answer(mlp((6, 16, outputs)))
    monitor = th.Monitor(
        model,
        (x, goal),
        loss,
        every=1,
        readout=lambda answer, batch: answer["scores"],
        sizes={"gradient": len(x)},
    )
    for step in range(3):
        with torch.no_grad():
            model.model[0].weight.mul_(1.5)
        expected = wanted(model(x)["scores"], goal).item()
        assert monitor.step(step).estimate("loss").value == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("families", [*((family,) for family in FAMILIES), ("kernel", "tangent")])
def test_the_loss_is_recorded_whatever_is_measured(families):
    x, y = blobs()
    model = mlp((6, 16, 3))
    sizes = dict.fromkeys(FAMILIES, len(x))
    if len(families) > 1:
        sizes["kernel"] = 20  # fewer features are read than the loss takes examples
    monitor = th.Monitor(
        model, (x, y), functional.cross_entropy, every=1, families=families, sizes=sizes
    )
    rows = monitor.step(0).record.contents["rows"]
    expected = functional.cross_entropy(model(x), y).item()
    losses = [row for row in rows if row["measure"] == "loss"]
    assert [row["value"] for row in losses] == [pytest.approx(expected, rel=1e-5)]
    assert {row["family"] for row in rows if row["measure"] != "loss"} == set(families)


def test_a_default_loss_that_does_not_fit_is_not_missed_by_other_families():
    x, y = blobs()
    found = th.survey(mlp((6, 16, 2)), (x, y), families="kernel")  # three classes, two outputs
    assert set(found.to_frame().family) == {"kernel"}
    assert not [entry for entry in found.record.contents["warnings"] if entry["measure"] == "loss"]


def test_a_loss_alone_is_no_measurement():
    with pytest.raises(DomainError, match="families: expected at least one that applies"):
        th.survey(nn.Sequential(nn.Flatten(), nn.LayerNorm(6)), blobs(), families="covariance")


def test_it_is_that_of_the_examples_of_the_gradients():
    x, y = blobs()
    model = mlp()
    found = th.survey(model, (x, y), families=["kernel", "gradient"], sizes={"gradient": 20})
    row = next(row for row in found.record.contents["rows"] if row["measure"] == "loss")
    again = th.survey(model, (x, y), families="gradient", sizes={"gradient": 20, "pairs": 60})
    assert row["n"] == 20
    assert row["value"] == pytest.approx(again.estimate("loss").value, rel=1e-6)
    whole = functional.cross_entropy(model(x), y).item()
    assert row["value"] != pytest.approx(whole, rel=1e-3)


def test_layers_that_are_too_wide_to_keep(monkeypatch):
    x, y = blobs(20)
    options = {"every": 1, "families": "gradient"}
    wide = mlp((6, 40, 40))
    kept = th.Monitor(wide, (x, y), **options).step(0)
    monkeypatch.setattr(context, "_KEPT", 0)
    again = th.Monitor(wide, (x, y), options={"batch_size": 7}, **options).step(0)
    expected = functional.cross_entropy(wide(x), y).item()
    assert kept.estimate("loss").value == pytest.approx(expected, rel=1e-5)
    assert again.estimate("loss").value == pytest.approx(expected, rel=1e-5)


def test_a_loss_that_is_no_number_is_undefined_and_says_why():
    model = mlp()
    monitor = th.Monitor(model, blobs(), every=1, families="gradient", cadence=4)
    monitor.step(0)
    with torch.no_grad():
        model[-1].bias.fill_(torch.nan)
    found = monitor.step(1)
    row = next(row for row in found.record.contents["rows"] if row["measure"] == "loss")
    assert math.isnan(row["value"])
    assert row["reason"] == "the loss of an example is nan (not a number)"
