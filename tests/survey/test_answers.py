"""The three sentences of a survey: what they say, how sure, and that they follow the rows."""

import pytest
import torch
from torch import nn

import theodolite as th
from theodolite.surveys.answers import answers_of


def row(layer, measure, value, *, n=500, error=0.01, chance=0.1, sd=0.013):
    keys = {"layer": layer, "measure": measure, "value": value, "n": n, "error": error}
    return keys | {"null_mean": chance, "null_sd": sd}


def contents(**changes):
    rows = [
        row(None, "accuracy", 1.0),
        row(None, "input_neighbour_accuracy", changes.get("inputs", 0.9)),
        row(None, "input_readout_accuracy", changes.get("inputs", 0.9)),
        row("fc1", "neighbour_accuracy", changes.get("inputs", 0.9)),
        row("fc1", "readout_accuracy", 0.80),
        row("fc2", "readout_accuracy", 0.95),
        row("fc3", "readout_accuracy", 0.96),
        row("fc1", "tangent_alignment", 0.02, error=0.001, chance=0.001, sd=0.001),
        row("fc2", "tangent_alignment", 0.01, error=0.001, chance=0.001, sd=0.001),
    ]
    if "held_out" in changes:
        rows.append(row(None, "held_out_accuracy", changes["held_out"]))
    layers = [{"name": name} for name in ("fc1", "fc2", "fc3")]
    data = {"split": changes.get("split", "train"), "input_shape": [64]}
    return {"rows": rows, "layers": layers, "data": data}


def test_learning():
    task, layer, following = answers_of(contents())
    assert task["text"].startswith("The network looks like learning")
    assert task["certainty"] == "likely"
    assert "wrong in 2 of 84 runs" in task["why"]
    # fc3 is higher than fc2 by less than the error: the earlier of the two is named.
    assert layer["text"].startswith("Layer fc2 carries it")
    assert "fc3 is no better within the error" in layer["text"]
    assert "train layer fc1" in following["text"]


def test_memorising_leads_to_advice():
    task, layer, following = answers_of(contents(inputs=0.1))
    assert "holds the labels best" in layer["text"]
    assert layer["certainty"] == "open"
    assert task["text"].startswith("The network looks like memorising")
    assert "held_out=" in following["text"]


def test_learning_that_was_not_measured_is_to_be_confirmed():
    assert answers_of(contents())[2]["text"].startswith("Confirm it on held-out examples")
    assert answers_of(contents(held_out=0.95))[2]["text"].startswith("To change it")


def test_layers_that_are_about_equal_are_named_together():
    made = contents(held_out=0.95)
    made["rows"].append(row("fc3", "tangent_alignment", 0.019, error=0.001, chance=0.001, sd=0.001))
    assert "train any of layers fc1 and fc3:" in answers_of(made)[2]["text"]


def test_many_layers_do_not_fill_the_screen():
    made = contents()
    names = [f"block{i}" for i in range(40)]
    made["layers"] = [{"name": name} for name in names]
    made["rows"] += [row(name, "readout_accuracy", 0.5 + i / 100) for i, name in enumerate(names)]
    layer = next(a for a in answers_of(made) if a["question"] == "layer")
    assert "50% in block0, 51% in block1, …, 88% in block38, 89% in block39" in layer["why"]
    assert len(layer["text"] + layer["why"]) < 400


def test_held_out_data_makes_it_clear():
    task, *_ = answers_of(contents(held_out=0.15))
    assert task["certainty"] == "clear"
    assert "mostly memorises" in task["text"]


def test_test_examples_are_not_asked_about_memorising():
    questions = [answer["question"] for answer in answers_of(contents(split="test"))]
    assert questions == ["layer", "next"]


def test_layers_at_chance_carry_nothing():
    made = contents()
    for entry in made["rows"]:
        if entry["measure"] == "readout_accuracy":
            entry["value"] = 0.11
    assert "No layer carries the task" in answers_of(made)[1]["text"]


@pytest.mark.parametrize("shuffled", [False, True], ids=["true", "shuffled"])
def test_a_survey_says_what_held_out_data_show(shuffled, generator):
    x = torch.randn(600, 10, generator=generator)
    y = (x[:, 0] > 0).long()
    own = y[torch.randperm(600, generator=generator)] if shuffled else y
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 256), nn.ReLU(), nn.Linear(256, 2))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(600):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[:300]), own[:300]).backward()
        optimizer.step()
    found = th.survey(
        model, (x[:300], own[:300]), held_out=(x[300:], own[300:]), families="representation"
    )
    assert found.estimate("accuracy").value > 0.97
    told = found.record.contents["answers"][0]["text"]
    assert told.startswith("The network mostly mem" if shuffled else "The network learns its task")
    assert found.summary().startswith(told)


def test_a_monitor_says_it_at_its_last_step(generator):
    x = torch.randn(300, 10, generator=generator)
    y = (x[:, 0] > 0).long()
    model = nn.Linear(10, 2)
    with torch.no_grad():
        model.weight.copy_(torch.eye(2, 10) * 0 + torch.tensor([[-1.0], [1.0]]) * torch.eye(1, 10))
    with th.Monitor(model, (x[:150], y[:150]), held_out=(x[150:], y[150:]), every=1) as monitor:
        monitor.step(0)
    last = monitor.history.run.steps[-1].contents["answers"][0]
    assert last["certainty"] == "clear"
