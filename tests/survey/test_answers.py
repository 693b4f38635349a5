"""The sentences of a survey: what they say, how sure, and that they follow the rows."""

import pytest
import torch
from torch import nn

import theodolite as th
from theodolite.measures import kernel, representation
from theodolite.report import answers
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
    task, *others = answers_of(contents(split="test"))
    assert task["text"].startswith("Asked about examples that it was not trained on, it tells 100%")
    assert [answer["question"] for answer in others] == ["layer", "next"]
    assert not any("memoris" in answer["text"] for answer in (task, *others))


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


def test_sentences_of_numbers_follow_held_out_examples():
    task, layer, following = answers_of(columns(r2=0.9))
    assert task["text"].startswith("The network fits its targets: its outputs explain 90%")
    assert task["certainty"] == "open"
    assert "explains 40%" in task["why"]
    assert layer["text"].startswith("Layer fc1 carries it")
    assert "explains 85% of the variance of the targets" in layer["text"]
    assert following["text"].startswith("Pass held_out= examples")
    task, _, following = answers_of(columns(r2=0.9, held_out=0.85))
    assert task["text"].startswith("The network learns its task")
    assert (task["certainty"], "94% ± 2% of the fit" in task["why"]) == ("clear", True)
    assert following["text"].startswith("To change it")
    task, layer, following = answers_of(columns(r2=0.9, held_out=-0.2))
    assert task["text"].startswith("The network mostly memorises")
    assert "none on 500 held-out examples" in task["why"]
    assert "holds the targets best" in layer["text"]
    assert "weight decay" in following["text"]


@pytest.mark.parametrize("r2", [-0.3, 0.02])
def test_numbers_that_are_not_fitted_get_no_verdict(r2):
    task, _, following = answers_of(columns(r2=r2))
    assert task["text"].startswith("The network fits too little of its targets")
    assert ("less than their mean" in task["why"]) == (r2 < 0)
    assert following["text"].startswith("Train it longer")


def test_numbers_of_test_examples_are_told_without_a_verdict():
    task, *_ = answers_of(columns(r2=0.6, split="test"))
    assert task["text"].startswith("Asked about examples that it was not trained on, its outputs")
    assert task["certainty"] == "clear"


def columns(*, r2, split="train", **changes):
    rows = [
        row(None, "r2", r2, chance=0.0, sd=None),
        row(None, "input_readout_r2", 0.4, chance=0.0, sd=None),
        row("fc1", "readout_r2", 0.85, chance=0.0, sd=None),
        row("fc2", "readout_r2", 0.86, chance=0.0, sd=None),
        row("fc1", "tangent_alignment", 0.02, error=0.001, chance=0.001, sd=0.001),
    ]
    if "held_out" in changes:
        rows.append(row(None, "held_out_r2", changes["held_out"], chance=0.0, sd=None))
    layers = [{"name": name} for name in ("fc1", "fc2")]
    data = {"split": split, "task": "regression", "num_classes": None}
    return {"rows": rows, "layers": layers, "data": data}


@pytest.mark.parametrize("kind", ["numbers", "labels", "probabilities"])
def test_surveys_of_numbers_and_of_several_labels_say_three_things(kind, generator, tmp_path):
    x = torch.randn(300, 6, generator=generator)
    wanted = x @ torch.randn(6, 3, generator=generator) + 0.3
    first, last = nn.Linear(6, 6), nn.Linear(6, 3)
    model = nn.Sequential(first, last, *[nn.Sigmoid()] * (kind == "probabilities"))
    with torch.no_grad():
        first.weight.copy_(torch.eye(6)), first.bias.zero_()
        last.weight.copy_(torch.linalg.lstsq(x, wanted - 0.3).solution.mT)
        last.bias.fill_(0.3)
    y = wanted if kind == "numbers" else (wanted > 0).float()
    losses = {
        "numbers": nn.functional.mse_loss,
        "labels": nn.functional.binary_cross_entropy_with_logits,
        "probabilities": nn.functional.binary_cross_entropy,
    }
    found = th.survey(
        model,
        (x[:200], y[:200]),
        held_out=(x[200:], y[200:]),
        loss=losses[kind],
        families=["representation", "tangent"],
    )
    measure = "r2" if kind == "numbers" else "label_accuracy"
    for name in (measure, f"held_out_{measure}"):
        assert found.estimate(name).value == pytest.approx(1.0, abs=1e-5)
    told = found.record.contents["answers"]
    assert [answer["question"] for answer in told] == ["task", "layer", "next"]
    assert told[0]["text"].startswith("The network learns its task")
    carrier = 1 if kind == "probabilities" else 0
    assert told[1]["text"].startswith(f"Layer {carrier} carries it")
    assert found.summary().startswith(told[0]["text"])
    assert "read-out" in found.summary()
    page = found.to_html(tmp_path / "page.html").read_text()
    assert "Targets read off each layer" in page
    assert "representation-readout-r2" in page


def test_the_read_out_of_a_survey_is_the_measure(generator):
    x, y = torch.randn(40, 5, generator=generator), torch.randn(40, 60, generator=generator)
    y[:, :5] += 3 * x  # more columns than examples: they are turned into fewer
    found = th.survey_features({"x": x}, y).estimate("readout_r2", "x")
    expected = 1 - th.measures.representation.readout_error(x.double(), y.double())
    assert found.value == pytest.approx(expected.item(), abs=1e-6)
    assert found.error > 0


def test_token_tasks_say_what_is_told_without_held_out_examples():
    made = contents()
    made["rows"] = [r for r in made["rows"] if not r["measure"].startswith("input_")]
    made["data"] |= {"unit": "token", "task": "token classification", "num_classes": 4}
    task, _, following = answers_of(made)
    assert task["text"].endswith("it tells 100% of the labels right (chance 10%).")
    assert task["certainty"] == "open"
    assert "500 positions, drawn evenly over 4 labels" in task["why"]
    assert "towards the labels" in following["text"]


def test_few_examples_at_chance_are_told_as_chance():
    made = contents()
    made["rows"] = [row(None, "accuracy", 0.12, n=40, error=0.05)]
    (task,) = answers_of(made)
    assert task["text"].startswith("The network does no better than chance: it tells 12%")


def test_features_without_a_model_lead_to_a_linear_model(generator):
    x = torch.randn(200, 4, generator=generator)
    found = th.survey_features({"x": x}, (x[:, 0] > 0).long())
    layer, following = found.record.contents["answers"]
    assert layer["text"].startswith("Layer x carries it")
    assert following["text"].startswith("To use it, fit a linear model")


def watched(carried, error=0.05, split="train"):
    rows = [
        row(None, "loss", 2.1, n=16),
        row(None, "held_out_loss", 2.9, n=12),
        row(None, "carried_over", carried, n=12, error=error),
    ]
    return {"rows": rows, "layers": [], "data": {"split": split}}


@pytest.mark.parametrize(
    ("carried", "says"),
    [(0.9, "Training learns"), (0.1, "mostly memorises its sequences"), (-0.4, "mostly memorises")],
)
def test_gains_that_carry_over_tell_learning_from_memorising(carried, says):
    task = answers_of(watched(carried))[0]
    assert says in task["text"]
    assert task["certainty"] == "clear"
    assert f"{carried:.0%} ± 10%" in task["why"]
    assert "2.1 on 16 sequences" in task["why"]
    assert "2.9 on 12 held-out" in task["why"]


def test_gains_within_their_error_are_not_judged():
    task, following = answers_of(watched(0.45))
    assert "cannot be told yet" in task["text"]
    assert "more held_out= sequences" in following["text"]
    assert "Stop earlier" in answers_of(watched(0.1))[1]["text"]
    assert answers_of(watched(0.9, split="test")) == []


def test_losses_that_have_not_fallen_are_said():
    task, following = answers_of(watched(float("nan"), error=float("nan")))
    assert "has not clearly lowered" in task["text"]
    assert task["certainty"] == "open"
    assert "Train on" in following["text"]


def grouped(contrasts, chance=0.0, sd=0.01):
    layers = [{"name": name} for name in contrasts]
    rows = [row(n, "omega_contrast", v, chance=chance, sd=sd) for n, v in contrasts.items()]
    whole = {"omega": 0.2, "in_class_omega": 0.3, "omega_contrast": 0.1}
    rows += [row(None, name, value, chance=None, sd=None) for name, value in whole.items()]
    data = {"split": "train", "groups": ["code", "prose"]}
    return {"rows": rows, "layers": layers, "data": data}


def test_groups_pull_apart_in_a_layer():
    (answer,) = answers_of(grouped({"a": 0.02, "b": 0.2}))
    assert answer["question"] == "groups"
    assert answer["text"].startswith("The groups (code and prose) pull apart most in layer b")
    assert answer["certainty"] == "clear"
    assert "1 of 2 layers beyond chance" in answer["why"]
    assert "0.3 within groups and 0.2 over all" in answer["why"]


def test_groups_within_chance_do_not_pull_apart():
    assert "do not pull apart" in answers_of(grouped({"a": 0.02, "b": 0.01}))[0]["text"]
    (open_,) = answers_of(grouped({"a": 0.02}, chance=None, sd=None))
    assert open_["certainty"] == "open"
    assert open_["text"].startswith("Whether the groups (code and prose) pull apart is open")
    assert open_["text"].endswith("in layer a, and chance was not measured.")
    ungrouped = grouped({"a": 0.2})
    del ungrouped["data"]["groups"]
    assert answers_of(ungrouped) == []


HEADLINES = ("cka_target", "alignment_area", "feature_omega_contrast")


def without_readouts(values, *, sd=0.01, loss=None, **data):
    """A survey of families that have no read-outs: numbers of all of them, or by measure."""
    by_measure = values if isinstance(values, dict) else dict.fromkeys(HEADLINES, values)
    chance = None if sd is None else 0.0
    rows = [
        row(f"l{i}", measure, value, chance=chance, sd=sd)
        for measure, numbers in by_measure.items()
        for i, value in enumerate(numbers)
    ]
    rows += [] if loss is None else [row(None, "loss", loss)]
    layers = [{"name": f"l{i}"} for i in range(len(next(iter(by_measure.values()))))]
    known = {"task": "classification", "num_classes": 3, "split": "train", "outputs": 3}
    made = {"rows": rows, "layers": layers, "data": known | data, "config": {"loss": "default"}}
    return {answer["question"]: answer for answer in answers_of(made)}


def test_headlines_tell_classes_apart():
    found = without_readouts([0.1, 0.2, 0.5], loss=0.01)
    text = found["task"]["text"]
    assert "apart: CKA to labels in its last layer (l2) is 0.5 (chance 0)" in text
    assert "it fits these examples (loss 0.01, chance 1.1)" in text
    assert found["task"]["certainty"] == "clear"
    assert "50 standard deviations" in found["task"]["why"]
    assert found["layer"]["text"].startswith("Layer l2 carries the task: CKA to labels")
    assert (found["layer"]["certainty"], found["layer"]["why"]) == (
        "clear",
        "3 of 3 measures agree",
    )


def test_chance_is_not_called_knowledge():
    found = without_readouts([0.01, 0.0, 0.005])
    assert found["task"]["text"].startswith("The network does not tell the classes apart")
    assert found["layer"]["text"].startswith("No layer carries the task")
    below = without_readouts([-0.2, -0.1], sd=None)  # where chance was not drawn
    assert below["layer"]["text"].startswith("No layer carries the task")


def test_a_number_slightly_beyond_chance_is_likely_and_one_without_chance_open():
    assert without_readouts([0.0, 0.03])["task"]["certainty"] == "likely"
    assert without_readouts([0.0, 0.3], sd=None)["task"]["certainty"] == "open"


def test_measures_that_disagree_leave_the_layer_open():
    values = dict(zip(HEADLINES, ([0.6, 0.2], [0.1, 0.5], [0.1, 0.4]), strict=True))
    layer = without_readouts(values)["layer"]
    assert layer["certainty"] == "open"
    assert layer["text"].startswith(
        "No single layer carries the task: highest are CKA to labels (0.6) in layer l0 and label "
        "alignment (0.5) and feature contrast (0.4) in layer l1"
    )


def test_an_earlier_layer_with_nearly_as_much_is_named():
    text = without_readouts([0.1, 0.57, 0.6])["layer"]["text"]
    assert "layer l1 already has 95% of its CKA to labels" in text
    assert "already" not in without_readouts([0.1, 0.3, 0.6])["layer"]["text"]


def test_guessing_is_said_and_what_to_do_about_it():
    found = without_readouts([0.1, 0.4], loss=1.2)
    assert found["task"]["text"].startswith("The network does not do the task: its loss")
    assert found["layer"]["text"].startswith("Layer l1 shows most of it")
    assert found["next"]["text"].startswith("Train it, or check labels")


@pytest.mark.parametrize("split", ["train", "unknown"])
def test_training_examples_ask_for_others(split):
    found = without_readouts([0.1, 0.4], loss=0.01, split=split)["next"]
    assert found["text"].startswith("Pass held_out= examples and measure")


def test_held_out_examples_name_the_layer_to_take():
    found = without_readouts([0.1, 0.4, 0.3], split="test")["next"]
    assert found["text"] == "To reuse this network, take the features of layer l1."


def test_unlabeled_data_say_what_is_missing():
    found = without_readouts({"cka_target": []}, task="unlabeled")
    assert list(found) == ["next"]
    assert found["next"]["text"].startswith("Give the survey labels")


@pytest.mark.parametrize("task", ["regression", "multi-label"])
def test_numbers_and_several_labels_are_followed(task):
    goal = "labels" if task == "multi-label" else "targets"
    text = without_readouts([0.1, 0.4], task=task, num_classes=None)["task"]["text"]
    assert f"follows the {goal}" in text


def test_a_survey_of_one_family_shows_the_same_sentences_everywhere(generator):
    x = torch.randn(60, 8, generator=generator)
    found = th.survey(nn.Linear(8, 2), (x, (x[:, 0] > 0).long()), families="kernel")
    told = found.record.contents["answers"]
    assert [answer["question"] for answer in told] == ["task", "layer", "next"]
    assert found.summary().startswith(told[0]["text"])
    assert [answer.text for answer in answers([found.run])] == [answer["text"] for answer in told]


@pytest.mark.parametrize("width", [3, 60], ids=["by-features", "by-kernel"])
def test_narrow_and_wide_features_are_read_off_alike(generator, width):
    x, y = torch.randn(40, width, generator=generator), torch.arange(40) % 4
    x[:, 0] += y
    found = th.survey_features({"x": x}, y).estimate("readout_accuracy", "x")
    assert found.value == float(kernel.regression_accuracy(x.double() @ x.double().T, y))
    assert found.value == float(representation.readout_accuracy(x.double(), y))
