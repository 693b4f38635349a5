"""Any kind of targets: the families that apply run, the others say why not."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import theodolite as th
from tests.survey.subjects import blobs, mlp, rows, value

ALL = {"representation", "covariance", "kernel", "tangent", "gradient"}


def measured(found):
    return set(found.to_frame().family) - set(found.record.contents["skipped"])


def test_classes():
    found = th.survey(mlp(), blobs())
    assert measured(found) == ALL
    assert found.record.contents["data"]["class_counts"] == [20, 20, 20]
    assert found.record.contents["skipped"] == {}


def test_regression():
    x, _ = blobs()
    found = th.survey(mlp((6, 16, 2)), (x, x[:, :2] ** 2))
    assert measured(found) == ALL
    assert found.record.contents["data"]["task"] == "regression"
    measures = set(found.to_frame().measure)
    assert {"cka_target", "tangent_alignment", "omega", "stiffness"} <= measures
    assert not {"omega_contrast", "in_class_omega", "feature_omega_contrast"} & measures
    outputs = mlp((6, 16, 2))(x)
    expected = functional.mse_loss(outputs, x[:, :2] ** 2).item() * 2
    assert value(found, "loss") == pytest.approx(expected, rel=1e-4)


def test_a_single_number():
    x, _ = blobs()
    found = th.survey(mlp((6, 16, 1)), (x, x[:, 0]))
    assert found.record.contents["data"]["task"] == "regression"
    assert measured(found) == ALL


def test_labels_in_a_list():
    x, y = blobs()
    found = th.survey(mlp(), (x, y.tolist()), families="kernel", permutations=0)
    wanted = th.survey(mlp(), (x, y), families="kernel", permutations=0)
    assert found.record.contents["data"] == wanted.record.contents["data"]
    assert found.to_frame().equals(wanted.to_frame())


def test_a_single_class_is_named_as_the_reason():
    x, y = blobs()
    found = th.survey(mlp(), (x, 0 * y), families="kernel", permutations=0)
    for layer in found.layers:
        assert rows(found, "cka_target", layer)["reason"] == "all examples have the same label"
        assert math.isfinite(value(found, "cka_input", layer))


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ((6, 3), "too few filters to judge directions: 3, at least 8 are needed"),
        ((6, 7), "too few filters to judge directions: 7, at least 8 are needed"),
        ((3, 4), "too few filters to judge directions: 4, at least 5 are needed"),
        ((1, 9), "the layer has a single input, and so no directions to compare"),
        ((6, 8), None),
        ((3, 5), None),
    ],
    ids=["three", "seven", "narrow", "one input", "eight", "enough for a narrow one"],
)
def test_why_there_is_no_misalignment(sizes, reason):
    x = torch.randn(60, sizes[0], generator=torch.Generator().manual_seed(0))
    found = th.survey(mlp(sizes), x, families="covariance")
    assert rows(found, "relative_misalignment", "0")["reason"] == reason


def test_a_model_that_is_one_layer_has_a_name_in_the_summary():
    summary = th.survey(nn.Linear(6, 3), blobs(), families="covariance").summary()
    assert "\n(model) " in summary
    assert "1 of 1 layer (the whole model)" in summary


def test_no_targets():
    found = th.survey(mlp(), blobs()[0])
    assert set(found.record.contents["skipped"]) == {"representation", "tangent", "gradient"}
    assert "no targets" in found.record.contents["skipped"]["representation"]
    measures = set(found.to_frame().measure)
    assert {
        "cka_input",
        "participation_ratio",
        "feature_omega",
        "relative_misalignment",
    } <= measures
    assert "cka_target" not in measures


def test_several_labels_at_once():
    x, _ = blobs()
    found = th.survey(mlp(), (x, (x[:, :3] > 0).float()))
    assert found.record.contents["data"]["task"] == "multi-label"
    assert measured(found) == ALL
    assert found.record.contents["data"]["num_classes"] is None


def test_two_classes_and_one_output():
    x, y = blobs(classes=2)
    found = th.survey(mlp((6, 8, 1)), (x, y.float()))
    assert found.record.contents["data"]["task"] == "classification"
    assert measured(found) == ALL


def test_one_hot_rows_are_classes():
    x, y = blobs()
    found = th.survey(mlp(), (x, functional.one_hot(y).float()))
    plain = th.survey(mlp(), (x, y))
    assert found.record.contents["data"]["class_counts"] == [20, 20, 20]
    assert value(found, "cka_target", "2") == pytest.approx(value(plain, "cka_target", "2"))


def test_many_classes_are_sketched_and_single_examples_counted():
    x, y = blobs(60, classes=40)
    found = th.survey(mlp((6, 16, 40)), (x, y))
    route = found.record.contents["routes"]["tangent"]
    assert (route["method"], route["n"]) == ("sketch", 60)
    row = rows(found, "tangent_alignment", "0")
    assert row["method"] == "sketch"
    assert row["error"] > 0
    texts = [w["text"] for w in found.record.contents["warnings"] if w["layer"] is None]
    assert any("20 of 40 classes have a single example" in text for text in texts)


def test_sequences_of_targets_need_a_loss():
    tokens = torch.randint(0, 9, (20, 5), generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9))
    found = th.survey(model, (tokens, tokens), readout="last")
    assert found.record.contents["data"]["task"] == "sequence"
    assert "pass loss=" in found.record.contents["skipped"]["gradient"]

    def loss(outputs, targets):
        return functional.cross_entropy(outputs, targets[:, -1], reduction="none")

    found = th.survey(model, (tokens, tokens), readout="last", loss=loss, families="gradient")
    assert "omega" in set(found.to_frame().measure)


def test_without_rows_of_outputs_the_reason_names_the_readout():
    tokens = torch.arange(20).reshape(10, 2) % 5
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3))
    found = th.survey(model, (tokens, torch.arange(10) % 3))
    assert "pass readout=" in found.record.contents["skipped"]["tangent"]
    assert measured(found) == {"representation", "covariance", "kernel"}


def test_frozen_models_have_no_gradients():
    found = th.survey(mlp().requires_grad_(False), blobs())
    skipped = found.record.contents["skipped"]
    assert set(skipped) == {"tangent", "gradient"}
    assert skipped["tangent"] == "no layer has trainable parameters"


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(),
        functional.cross_entropy,
        nn.CrossEntropyLoss(reduction="none"),
        lambda outputs, targets: functional.cross_entropy(outputs, targets, reduction="none"),
    ],
    ids=["module", "function", "plain module", "own"],
)
def test_losses_of_torch_are_asked_not_to_average(loss):
    found = th.survey(mlp(), blobs(), loss=loss, families="gradient")
    plain = th.survey(mlp(), blobs(), families="gradient")
    assert value(found, "omega", "2") == pytest.approx(value(plain, "omega", "2"), rel=1e-5)


def test_a_transformer_with_padded_batches():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12}
    config = transformers.BertConfig(
        vocab_size=20, num_hidden_layers=1, max_position_embeddings=8, num_labels=3, **sizes
    )
    model = transformers.BertForSequenceClassification(config)
    mask = torch.ones(12, 5, dtype=torch.long)
    mask[:6, 3:] = 0
    tokens = torch.randint(0, 20, (12, 5))
    batch = {"input_ids": tokens, "attention_mask": mask, "labels": torch.arange(12) % 3}
    found = th.survey(model, batch)
    assert found.record.contents["skipped"] == {}
    assert "bert.encoder.layer.0.attention.self.query" in found.layers
    frame = found.to_frame()
    assert "cka_input" not in set(frame.measure)  # tokens are names, not numbers
    assert set(frame.family) == ALL
    changed = {**batch, "input_ids": torch.where(mask.bool(), tokens, 7)}
    same = th.survey(model, changed, families="kernel").to_frame()
    inside = frame[(frame.measure == "cka_target") & (frame.layer == "classifier")]
    outside = same[(same.measure == "cka_target") & (same.layer == "classifier")]
    assert outside.value.item() == pytest.approx(inside.value.item(), rel=1e-3)
