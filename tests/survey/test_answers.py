"""What a survey says: right or silent, and the same sentences everywhere."""

import numpy as np
import pytest
import torch
from torch import nn

import theodolite as th
from tests.survey.subjects import blobs, mlp
from theodolite.advice import answers_of
from theodolite.advice.comparing import latest_answers


def row(layer, measure, value, *, n=500, error=0.01, chance=0.1, sd=0.013):
    keys = {"layer": layer, "measure": measure, "value": value, "n": n, "error": error}
    return keys | {"null_mean": chance, "null_sd": sd}


def contents(**changes):
    inputs = changes.get("inputs", 0.9)
    rows = [
        row(None, "accuracy", 1.0),
        row(None, "input_neighbour_accuracy", inputs),
        row(None, "input_probe_accuracy", inputs),
        row("fc1", "neighbour_accuracy", inputs),
        row("fc1", "probe_accuracy", 0.80),
        row("fc2", "probe_accuracy", 0.95),
        row("fc3", "probe_accuracy", 0.96),
        row("fc1", "tangent_alignment", 0.02, error=0.001, chance=0.001, sd=0.001),
    ]
    if "held_out" in changes:
        rows.append(row(None, "held_out_accuracy", changes["held_out"]))
    layers = [{"name": name} for name in ("fc1", "fc2", "fc3")]
    data = {"split": changes.get("split", "train"), "input_shape": [64]}
    return {"rows": rows, "layers": layers, "data": data}


def every_text(found):
    return " ".join(f"{a['text']} {a['evidence']} {a['advice']}" for a in found)


@pytest.mark.parametrize("inputs", [0.1, 0.3, 0.9])
def test_without_held_out_examples_nothing_is_clear_and_nobody_memorises(inputs):
    found = answers_of(contents(inputs=inputs))
    assert "memoris" not in every_text(found)
    assert all(answer["certainty"] != "clear" for answer in found)
    assert "`held_out=`" in found[0]["advice"]


def test_inputs_at_chance_are_undecided():
    task, _ = answers_of(contents(inputs=0.1))
    assert task["text"] == (
        "Undecided without held-out data: nearest neighbours and a linear model on the raw inputs "
        "are at chance (10 %). The labels may be random, or the task may need this architecture."
    )
    assert (task["certainty"], task["finding"]) == ("undecided", "undecided")


def test_inputs_that_predict_the_fit_are_likely_learning():
    task, layer = answers_of(contents())
    assert task["text"] == (
        "Learning: 89 % of this fit is predictable from other examples' inputs. Held-out data were "
        "not given."
    )
    assert task["certainty"] == "likely"
    assert task["evidence"].startswith(
        "leave-one-out accuracy of nearest neighbours on raw inputs: 90 %"
    )
    # fc3 is higher than fc2 by less than the error: the earlier of the two is named.
    assert layer["text"] == (
        "On these examples, linear probes reach 95 % from fc2 on (chance 10 %). fc3 is not "
        "significantly better. The raw input: 90 %."
    )
    assert layer["evidence"].startswith("the features may have been trained on these labels")


@pytest.mark.parametrize(
    ("held_out", "text", "finding"),
    [
        (0.97, "Learned: 97 % of its fit carries over to held-out examples", "learned"),
        (0.75, "Mostly learned: 72 % of its fit carries over", "mostly-learned"),
        (0.11, "Memorised: 1.1 % of its fit carries over", "memorised"),
        (0.02, "Memorised: 0 % of its fit carries over", "memorised"),
    ],
)
def test_held_out_examples_measure_what_carries_over(held_out, text, finding):
    task, *_ = answers_of(contents(held_out=held_out))
    assert task["text"].startswith(text)
    assert "95 % interval" in task["text"]
    assert (task["certainty"], task["finding"]) == ("clear", finding)


def test_a_gap_names_the_ceiling_of_noisy_labels():
    task, *_ = answers_of(contents(held_out=0.75))
    assert "if 28 % of the held-out labels are random, 75 % is the highest" in task["advice"]
    assert answers_of(contents(held_out=0.98))[0]["advice"] == ""


def test_no_layer_is_recommended_for_training():
    for held_out in (0.97, 0.11):
        text = every_text(answers_of(contents(held_out=held_out)))
        assert "train layer" not in text
        assert "least effort" not in text


def test_layers_of_a_network_that_memorised_are_undecided():
    layer = answers_of(contents(held_out=0.1))[1]
    assert layer["certainty"] == "undecided"
    assert "memorised these labels" in layer["evidence"]


def scored(shares, *, judged_on="held-out", raw=None, n=400, seed=0, outputs=3, **changes):
    """Contents and arrays of probes whose scores rise together over examples."""
    levels = np.random.default_rng(seed).random(n)
    names = list(shares)
    given = dict(shares) | ({"input": raw} if raw is not None else {})
    table = np.stack([(levels < share).astype(np.float32) for share in given.values()])
    made = contents(**changes)
    made["data"]["outputs"] = outputs
    made["rows"] = [r for r in made["rows"] if "probe" not in r["measure"]]
    made["rows"] += [
        row(name, "probe_accuracy", float(values.mean()), n=n)
        for name, values in zip(given, table, strict=True)
    ]
    made["layers"] = [{"name": "input", "role": "input"}] * (raw is not None)
    made["layers"] += [{"name": name} for name in names]
    made["probes"] = {"judged_on": judged_on, "fitted_on": 500, "layers": [*given], "scores": "s"}
    return next(a for a in answers_of(made, {"s": table}) if a["question"] == "layer")


def test_a_single_layer_is_not_the_best_of_several():
    layer = scored({"fc": 0.8}, raw=0.5)
    assert layer["text"].startswith("The linear probe of fc reaches 7")
    assert "best" not in layer["text"]


def test_layers_on_held_out_examples_are_clear():
    layer = scored({"a": 0.6, "b": 0.8, "c": 0.81}, raw=0.5, held_out=0.8)
    assert layer["certainty"] == "clear"
    assert layer["finding"] == "from-layer"
    assert layer["text"].startswith("Linear probes reach 75 %")
    assert "from b on (chance 10 %). c is not significantly better." in layer["text"]
    assert "judged on 400 held-out examples" in layer["evidence"]
    assert scored({"a": 0.6, "b": 0.8}, judged_on="left-out")["certainty"] == "likely"
    encoder = {"a": 0.6, "b": 0.8}  # an encoder has features and no outputs per class
    assert scored(encoder, outputs=None)["certainty"] == "clear"
    assert scored(encoder, outputs=None, judged_on="left-out")["certainty"] == "likely"


def test_layers_that_do_not_differ_are_called_alike():
    layer = scored({"a": 0.80, "b": 0.805, "c": 0.80}, held_out=0.8)
    assert layer["finding"] == "all-alike"
    assert layer["text"].startswith("Layers do not differ significantly: linear probes reach ")
    assert layer["certainty"] == "likely"  # more examples might show a difference
    same = scored({"a": 1.0, "b": 1.0}, held_out=0.8)
    assert "linear probes reach 100 % in both layers" in same["text"]
    best = scored({"a": 0.6, "b": 0.9, "c": 0.7}, held_out=0.8)
    assert best["finding"] == "one-layer"
    assert best["text"].startswith("Linear probes are best in b: ")


def test_layers_no_better_than_the_raw_input_say_so():
    layer = scored({"a": 0.8, "b": 0.81}, raw=0.805, held_out=0.8)
    assert layer["finding"] == "input-alike"
    assert "significantly better than that of the raw input" in layer["text"]
    assert layer["certainty"] == "likely"
    above = scored({"a": 0.8, "b": 0.81}, raw=0.9, held_out=0.8)  # the raw input is best
    assert above["finding"] == "input-alike"


def test_few_examples_do_not_show_that_layers_are_equal():
    few, many = (scored({"a": 0.94, "b": 0.93}, raw=0.9, n=n, held_out=0.9) for n in (16, 400))
    assert few["certainty"] == "undecided"
    assert many["certainty"] == "likely"
    assert few["advice"] == "Measure more examples."


def test_a_large_gap_that_is_not_significant_is_no_equality():
    numbers = {"a": 0.54, "b": 0.37}
    made = contents(held_out=0.6)
    made["rows"] = [r for r in made["rows"] if "probe" not in r["measure"]]
    made["rows"] += [row(name, "probe_r2", value, error=0.1) for name, value in numbers.items()]
    made["layers"] = [{"name": name} for name in numbers]
    layer = answers_of(made)[1]
    assert layer["finding"] == "all-alike"
    assert layer["certainty"] == "undecided"


def test_layers_at_chance():
    layer = scored({"a": 0.1, "b": 0.11}, held_out=0.1)
    assert layer["finding"] == "chance"
    assert layer["text"].startswith("No layer's linear probe is significantly above chance")


def test_many_layers_do_not_fill_the_screen():
    layer = scored({f"block{i}": 0.5 + i / 1000 for i in range(40)}, held_out=0.9)
    assert len(layer["text"] + layer["evidence"]) < 300


def test_no_interval_has_no_width():
    layer = scored({"a": 0.6, "b": 1.0}, held_out=1.0)
    assert "b: 95 % interval 99 to 100 %" in layer["evidence"]
    task, *_ = answers_of(contents(held_out=1.0))
    assert "(95 % interval 99.2 to 100 %)" in task["text"]
    assert "± 0" not in every_text([layer, task])


def test_test_examples_are_not_asked_about_memorising():
    task, layer = answers_of(contents(split="test"))
    assert task["text"].startswith("Accuracy on examples that it was not trained on: 100 % (95 %")
    assert layer["certainty"] == "likely"  # scores of single examples were not kept
    assert "memoris" not in every_text([task, layer])


def columns(*, r2, split="train", **changes):
    rows = [
        row(None, "r2", r2, chance=0.0, sd=None),
        row(None, "input_probe_r2", 0.4, chance=0.0, sd=None),
        row("fc1", "probe_r2", 0.85, chance=0.0, sd=None),
        row("fc2", "probe_r2", 0.86, chance=0.0, sd=None),
    ]
    if "held_out" in changes:
        rows.append(row(None, "held_out_r2", changes["held_out"], chance=0.0, sd=None))
    layers = [{"name": name} for name in ("fc1", "fc2")]
    data = {"split": split, "task": "regression", "num_classes": None}
    return {"rows": rows, "layers": layers, "data": data}


def test_numbers_follow_held_out_examples():
    task, layer = answers_of(columns(r2=1.0))
    assert task["text"].startswith("Undecided without held-out data")
    assert (task["certainty"], layer["certainty"]) == ("undecided", "likely")
    assert "trained on these targets" in layer["evidence"]
    task, _ = answers_of(columns(r2=0.9, held_out=0.85))
    assert task["text"].startswith("Learned: 94 % of its fit carries over")
    task, layer = answers_of(columns(r2=1.0, held_out=-0.03))
    assert task["text"].startswith("Memorised: 0 % of its fit carries over")
    assert "R² 1.00 on 500 training and −0.03 on 500 held-out examples" in task["evidence"]
    assert layer["certainty"] == "undecided"
    assert (
        "if 30 % of the variance of the targets is noise, an R² of 0.70 is the highest"
        in (answers_of(columns(r2=1.0, held_out=0.7))[0]["advice"])
    )


@pytest.mark.parametrize("r2", [-0.3, 0.05])
def test_numbers_that_are_not_fitted_get_no_verdict(r2):
    task, _ = answers_of(columns(r2=r2))
    assert task["text"].startswith("Undecided: the network explains too little of its targets")
    assert task["advice"].startswith("Train longer")


def test_numbers_of_test_examples():
    task, *_ = answers_of(columns(r2=0.6, split="test"))
    assert task["text"].startswith("R² on examples that it was not trained on: 0.60 (95 % interval")
    assert task["certainty"] == "clear"


def trained(model, x, y, *, loss=nn.functional.cross_entropy, steps=600, rate=3e-3):
    optimizer = torch.optim.Adam(model.parameters(), rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return model.eval()


def dense(inputs, outputs, width=128):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs))


@pytest.mark.parametrize("random", [False, True], ids=["true", "random"])
def test_a_survey_says_what_held_out_data_show(random, generator):
    x = torch.randn(600, 10, generator=generator)
    y = (x[:, 0] > 0).long()
    own = y[torch.randperm(600, generator=generator)] if random else y
    model = trained(dense(10, 2, 256), x[:300], own[:300])
    found = th.survey(
        model, (x[:300], own[:300]), held_out=(x[300:], own[300:]), families="representation"
    )
    assert found.estimate("accuracy").value > 0.97
    first = found.answers[0]
    assert first.finding in (
        ("memorised", "mostly-memorised") if random else ("learned", "mostly-learned")
    )
    assert first.certainty == "clear"
    assert found.summary().startswith(first.text)


def patterns(count, seed):
    """A cross or an X of 3 x 3 pixels anywhere in an image of 24 x 24."""
    rng = np.random.default_rng(seed)
    shapes = np.array([[[1, 0, 1], [0, 1, 0], [1, 0, 1]], [[0, 1, 0], [1, 1, 1], [0, 1, 0]]])
    images, labels = np.zeros((count, 1, 24, 24), np.float32), rng.integers(0, 2, count)
    for image, label in zip(images, labels, strict=True):
        row, column = rng.integers(0, 22, 2)
        image[0, row : row + 3, column : column + 3] = shapes[label]
    return torch.from_numpy(images), torch.from_numpy(labels)


def test_a_network_that_finds_a_pattern_anywhere_is_not_called_a_memoriser():
    x, y = patterns(500, 0)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    )
    trained(model, x, y, steps=150, rate=3e-2)
    others = patterns(300, 1)
    assert (model(others[0]).argmax(1) == others[1]).float().mean() == 1
    silent = th.survey(model, (x, y), families="representation").answers[0]
    assert (silent.certainty, silent.finding) == ("undecided", "undecided")
    assert "at chance" in silent.text
    measured = th.survey(model, (x, y), held_out=others, families="representation").answers[0]
    assert (measured.certainty, measured.finding) == ("clear", "learned")


def test_a_share_of_random_labels_is_not_silently_learned():
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(labels))
    x, y = torch.tensor(pixels[order] / 16).float(), torch.tensor(labels[order])
    noisy = torch.where(torch.from_numpy(rng.random(len(y)) < 0.3),
                        torch.from_numpy(rng.integers(0, 10, len(y))), y)  # fmt: skip
    model = trained(dense(64, 10, 256), x[:1000], noisy[:1000], steps=350)
    assert (model(x[:1000]).argmax(1) == noisy[:1000]).float().mean() > 0.97
    data, others = (x[:1000], noisy[:1000]), (x[1000:], y[1000:])
    task = th.survey(model, data, held_out=others, families="representation").answers[0]
    assert task.finding in ("mostly-learned", "half")
    assert "label noise" in task.advice
    assert "is the highest possible" in task.advice


def test_a_regression_that_overfits_is_never_clear_about_its_layers():
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    x = torch.tensor(x / x.std(0)).float()
    y = torch.tensor((y - y.mean()) / y.std()).float()[:, None]
    model = trained(dense(10, 1, 256), x[:250], y[:250], loss=nn.functional.mse_loss, rate=1e-2)
    data, others = (x[:250], y[:250]), (x[250:], y[250:])
    task, layer = th.survey(model, data, families="representation").answers
    assert (task.certainty, layer.certainty) == ("undecided", "likely")
    assert "trained on these targets" in layer.evidence
    assert "± 0" not in layer.evidence
    task = th.survey(model, data, held_out=others, families="representation").answers[0]
    assert task.certainty != "clear" or task.finding != "learned"


def test_an_untrained_transformer_gets_no_layer_to_train():
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, dropout=0.0)
    model = nn.Sequential(nn.Embedding(50, 32), block, nn.Flatten(), nn.Linear(8 * 32, 2)).eval()
    x = torch.randint(0, 50, (60, 8))
    found = th.survey(model, (x, torch.arange(60) % 2))
    assert found.answers
    for answer in found.answers:
        assert "train layer" not in f"{answer.text} {answer.evidence} {answer.advice}"


def test_a_monitor_says_it_at_its_last_step(generator):
    x = torch.randn(300, 10, generator=generator)
    y = (x[:, 0] > 0).long()
    model = nn.Linear(10, 2)
    with torch.no_grad():
        model.weight.copy_(torch.eye(2, 10) * 0 + torch.tensor([[-1.0], [1.0]]) * torch.eye(1, 10))
    with th.Monitor(model, (x[:150], y[:150]), held_out=(x[150:], y[150:]), every=1) as monitor:
        monitor.step(0)
    task = monitor.history.answers[0]
    assert (task.certainty, task.finding) == ("clear", "learned")


@pytest.mark.parametrize("kind", ["numbers", "labels", "probabilities"])
def test_surveys_of_numbers_and_of_several_labels(kind, generator, tmp_path):
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
    assert [answer.question for answer in found.answers] == ["task", "layer"]
    assert found.answers[0].finding == "learned"
    assert "probe" in found.summary()
    assert "representation-probe-r2" in found.to_html(tmp_path / "page.html").read_text()


def test_the_probe_of_a_survey_is_the_measure(generator):
    x, y = torch.randn(40, 5, generator=generator), torch.randn(40, 60, generator=generator)
    y[:, :5] += 3 * x  # more columns than examples: they are turned into fewer
    found = th.survey_features({"x": x}, y).estimate("probe_r2", "x")
    expected = 1 - th.measures.representation.leave_one_out_probe(x.double(), y.double()).error
    assert found.value == pytest.approx(expected.item(), abs=1e-6)
    assert found.error > 0


def test_token_tasks_without_held_out_examples_are_undecided():
    made = contents()
    made["rows"] = [r for r in made["rows"] if not r["measure"].startswith("input_")]
    made["data"] |= {"unit": "token", "task": "token classification", "num_classes": 4}
    task, _ = answers_of(made)
    assert task["certainty"] == "undecided"
    made["data"]["split"] = "test"
    task, _ = answers_of(made)
    assert task["certainty"] == "likely"
    assert "500 positions, drawn evenly over 4 labels" in task["evidence"]


def test_few_examples_at_chance():
    made = contents()
    made["rows"] = [row(None, "accuracy", 0.12, n=40, error=0.05)]
    (task,) = answers_of(made)
    assert task["text"] == "Undecided: the network fits too few examples: 12 % (chance 10 %)."


def test_features_without_a_model_lead_to_a_linear_model(generator):
    x = torch.randn(200, 4, generator=generator)
    found = th.survey_features({"x": x}, (x[:, 0] > 0).long())
    (layer,) = found.answers
    assert "linear probe of x" in layer.text.lower()
    assert layer.certainty == "likely"
    assert layer.advice == "Fit a linear model to the features of x."


def watched(carried, error=0.05, split="train"):
    rows = [
        row(None, "loss", 2.1, n=16),
        row(None, "held_out_loss", 2.9, n=12),
        row(None, "carried_over", carried, n=12, error=error),
    ]
    return {"rows": rows, "layers": [], "data": {"split": split}}


@pytest.mark.parametrize(
    ("carried", "finding"), [(0.95, "learned"), (0.1, "memorised"), (-0.4, "memorised")]
)
def test_gains_that_carry_over(carried, finding):
    task = answers_of(watched(carried))[0]
    assert (task["certainty"], task["finding"]) == ("clear", finding)
    assert "of the fall in loss carries over to held-out sequences" in task["text"]
    assert task["evidence"] == "loss 2.1 on 16 training and 2.9 on 12 held-out sequences"


def test_gains_within_their_error_are_not_judged():
    (task,) = answers_of(watched(0.45, error=0.3))
    assert (task["certainty"], task["advice"]) == ("undecided", "Pass more `held_out=` sequences.")
    assert answers_of(watched(0.9, split="test")) == []
    (task,) = answers_of(watched(float("nan"), error=float("nan")))
    assert "has not clearly lowered" in task["text"]


def grouped(contrasts, chance=0.0, sd=0.01):
    layers = [{"name": name} for name in contrasts]
    rows = [row(n, "omega_contrast", v, chance=chance, sd=sd) for n, v in contrasts.items()]
    whole = {"omega": 0.2, "in_class_omega": 0.3, "omega_contrast": 0.1}
    rows += [row(None, name, value, chance=None, sd=None) for name, value in whole.items()]
    data = {"split": "train", "groups": ["code", "prose"]}
    return {"rows": rows, "layers": layers, "data": data}


def test_groups_disagree_in_a_layer():
    (answer,) = answers_of(grouped({"a": 0.02, "b": 0.2}))
    assert answer["question"] == "groups"
    assert answer["text"].startswith("The groups (code and prose) disagree most in b")
    assert answer["certainty"] == "clear"
    assert "1 of 2 layers beyond chance" in answer["evidence"]


def test_groups_within_chance_do_not_disagree():
    assert "do not disagree" in answers_of(grouped({"a": 0.02, "b": 0.01}))[0]["text"]
    (unsure,) = answers_of(grouped({"a": 0.02}, chance=None, sd=None))
    assert unsure["certainty"] == "undecided"
    ungrouped = grouped({"a": 0.2})
    del ungrouped["data"]["groups"]
    assert answers_of(ungrouped) == []


HEADLINES = ("cka_target", "alignment_area", "feature_omega_contrast")


def without_probes(values, *, sd=0.01, loss=None, **data):
    """A survey of families that have no linear probes: numbers of all of them, or by measure."""
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
    (answer,) = answers_of(made)
    return answer


def test_headlines_say_what_the_last_layer_represents():
    found = without_probes([0.1, 0.2, 0.5], loss=0.01)
    assert found["text"] == (
        "The network represents the labels: CKA to labels of the last layer (l2) is 0.5 (chance 0)."
    )
    assert found["certainty"] == "likely"
    assert "`held_out=`" in found["advice"]
    below = without_probes([0.01, 0.0, 0.005])
    assert below["text"].startswith("The network does not represent the labels beyond chance")
    assert without_probes([0.0, 0.3], sd=None)["certainty"] == "undecided"
    assert without_probes([0.1, 0.4], split="test")["advice"] == ""


def test_guessing_is_said_and_what_to_do_about_it():
    found = without_probes([0.1, 0.4], loss=1.2)
    assert found["text"] == "The network does not do the task: its loss is 1.20 (chance 1.10)."
    assert found["advice"].startswith("Train longer")


def test_unlabelled_data_say_what_is_missing():
    found = without_probes({"cka_target": []}, task="unlabeled")
    assert (
        found["text"] == "Undecided: the data have no labels, so nothing is compared with labels."
    )
    assert found["advice"] == "Pass labels or targets to measure all families."


def test_one_class_cannot_be_compared():
    x, _ = blobs()
    found = th.survey(mlp(), (x, torch.ones(len(x)).long()), families=["representation", "kernel"])
    (answer,) = found.answers
    assert answer.text.endswith("all examples have the same label, so classes cannot be compared.")
    assert " in 4 of 3 " not in found.summary()


def test_reasons_and_columns_of_a_summary_are_not_repeated():
    """Without labels there is no column for them; one reason is one line."""
    x, y = blobs()
    summary = th.survey(mlp(), x).summary()
    assert "no labels" in summary.splitlines()[4]
    heads = [line.split() for line in summary.splitlines()[5:7]]
    assert heads == [["misalignment", "CKA"], ["layer", "/", "random", "to", "the", "input"]]
    arrays = th.survey_features({"a": x, "b": x[:, :2]}, y).summary()
    assert arrays.count("no model was given") == 1
    assert "misalignment" not in arrays


def test_numbers_are_targets():
    text = without_probes([0.1, 0.4], task="regression", num_classes=None)["text"]
    assert "represents the targets" in text


def test_a_survey_of_one_family_shows_the_same_sentences_everywhere(generator):
    x = torch.randn(60, 8, generator=generator)
    found = th.survey(nn.Linear(8, 2), (x, (x[:, 0] > 0).long()), families="kernel")
    said = [answer.text for answer in found.answers]
    assert found.summary().startswith(said[0])
    assert [answer.text for answer in latest_answers(found.run.steps)] == said


def test_gradient_contrast_of_classes_has_no_chance_level(generator):
    # Labels independent of inputs: gradients of one class agree all the same, through the loss.
    x, y = torch.randn(80, 6, generator=generator), torch.randint(0, 2, (80,), generator=generator)
    found = th.survey(dense(6, 2, 16), (x, y), families="gradient")
    contrast = found.estimate("omega_contrast", "0")
    assert contrast.null_mean is None
    assert contrast.null_sd is None
    assert found.record.contents["routes"]["gradient"]["null"] == (
        "none: the loss contains the labels"
    )
    assert found.estimate("feature_omega_contrast", "0").null_mean is not None


def test_notes_of_many_layers_are_one_line_with_a_count(generator):
    x, y = torch.randn(20, 8, generator=generator), torch.arange(20) % 2
    wide = [part for _ in range(3) for part in (nn.LazyLinear(64), nn.ReLU())]
    model = nn.Sequential(*wide, nn.LazyLinear(2))
    model(x)
    found = th.survey(model, (x, y), families="representation")
    (line,) = [line for line in found.summary().splitlines() if "fewer examples" in line]
    assert line.startswith("note: label alignment in 3 of ")
