"""Survey, load and compare: what a user does with the numbers."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import theodolite as th
from tests.survey.subjects import blobs, cnn, images, mlp
from theodolite import records
from theodolite.errors import RecordError
from theodolite.measures.registry import MEASURES
from theodolite.records import layers_with_few_filters

FAMILIES = ("representation", "covariance", "kernel", "tangent", "gradient")


@pytest.fixture(scope="module")
def found():
    told = {"split": "test", "label_source": "true"}
    return th.survey(cnn(), images(), name="cnn", seconds=3600, options=told)  # on any machine


def test_the_record_states_what_was_measured(found):
    contents = found.record.contents
    assert contents["kind"] == "survey"
    assert contents["config"]["families"] == list(FAMILIES)
    assert contents["config"]["sizes"]["tangent"] == 200
    assert contents["data"]["task"] == "classification"
    assert (contents["data"]["split"], contents["data"]["label_source"]) == ("test", "true")
    assert contents["data"]["input_shape"] == [1, 6, 6]
    assert contents["layers"][0]["role"] == "input"
    assert contents["layers"][1]["output_shape"] == [12, 6, 6]
    parts = {"trial", "features", "probes", "loss", "total"}
    assert set(contents["seconds"]) == {*FAMILIES, *parts}
    assert contents["versions"]["torch"] == torch.__version__
    assert {row["family"] for row in contents["rows"]} == set(FAMILIES)


def test_curves_name_their_arrays(found):
    named = {name for curve in found.record.contents["curves"] for name in curve["arrays"].values()}
    assert named | {"probe/scores"} == set(found.record.arrays)


def test_frame_has_a_row_per_number(found):
    frame = found.to_frame()
    assert len(frame) == len(found.record.contents["rows"])
    assert not frame.duplicated(["layer", "family", "measure"]).any()
    assert set(frame.family) == set(FAMILIES)
    assert list(frame.columns[:4]) == ["layer", "family", "measure", "value"]


def test_a_survey_comes_back_as_it_was(found, tmp_path):
    found.save(tmp_path)
    loaded = th.load(tmp_path)
    assert isinstance(loaded, th.Survey)
    assert loaded.to_frame().equals(found.to_frame())
    for name, array in found.record.arrays.items():
        np.testing.assert_array_equal(loaded.record.arrays[name], array)
    assert loaded.summary() == found.summary()


def test_a_survey_that_a_ranking_replaces_while_it_is_read(found, tmp_path, monkeypatch):
    found.save(tmp_path)
    read, replaced = records._files.read_file, []

    def read_then_replace(path, max_bytes):
        data = read(path, max_bytes)
        if path.suffix == ".npz" and not replaced:
            replaced.append(records.save_record(records.Record({"kind": "transfer"}), tmp_path))
        return data

    monkeypatch.setattr(records._files, "read_file", read_then_replace)
    assert isinstance(th.load(tmp_path), th.Survey)
    with pytest.raises(RecordError, match="damaged"):
        th.load(tmp_path)


def test_a_record_of_another_kind_is_no_result(tmp_path):
    records.save_record(records.Record({"kind": "study"}), tmp_path)
    with pytest.raises(RecordError, match="got kind 'study'"):
        th.load(tmp_path)


def test_summary_has_a_line_per_layer(found):
    told, table = found.summary().split("\n\n", 1)
    assert told.startswith("Accuracy on examples that it was not trained on")
    assert "inear probe" in told
    lines = table.splitlines()
    title = "cnn: 40 test examples, classification, true labels, chance in brackets"
    assert lines[0] == title
    assert lines[2].split()[:2] == ["layer", "accuracy"]  # of linear probes, before the headlines
    probe = found.estimate("probe_accuracy", "0")
    assert f"{100 * probe.value:.0f} % ({100 * probe.null_mean:.0f} %)" in lines[4]
    assert [line.split()[0] for line in lines[3:7]] == ["input", "0", "3", "7"]
    assert repr(found).startswith("Survey(3 layers, 40 examples: representation")


def test_summary_has_the_true_labels_where_they_were_given():
    x, y = blobs()
    found = th.survey(mlp(), (x, y.roll(1)), truth=y, families="kernel")
    _, table = found.summary().split("\n\n", 1)
    first, second, line = table.splitlines()[1:4]
    assert (first.split(), second.split()) == (
        ["CKA", "CKA"],
        ["layer", "to", "labels", "to", "truth"],
    )
    numbers = [found.estimate(name, found.layers[0]).value for name in ("cka_target", "cka_truth")]
    assert line.split()[1::2] == [f"{number:.3g}" for number in numbers]
    assert line.split()[2] == "(0)"  # debiased: chance is 0 within its spread
    assert "truth" not in th.survey(mlp(), (x, y), families="kernel").summary()


def test_estimates_by_name(found):
    estimate = found.estimate("cka_target", "7")
    assert estimate.null_sd > 0
    assert not math.isnan(estimate.z_score)
    assert found.estimate("loss").value > 0


def test_families_can_be_left_out():
    found = th.survey(mlp(), blobs(), families=["gradient", "representation"])
    assert set(found.to_frame().family) == {"representation", "gradient"}
    assert found.record.contents["config"]["families"] == ["representation", "gradient"]


def test_the_model_is_left_as_it_was():
    model, data = cnn(), images()
    model[1].eval()
    flags = [module.training for module in model.modules()]
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(5)
    before = torch.get_rng_state()
    th.survey(model, data)
    assert torch.equal(torch.get_rng_state(), before)
    assert [module.training for module in model.modules()] == flags
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name])
    assert not any(module._forward_hooks for module in model.modules())


def test_progress_goes_from_nothing_to_done():
    seen = []
    th.survey(mlp(), blobs(), progress=lambda done, text: seen.append((done, text)))
    shares = [done for done, _ in seen]
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert 0.5 < shares[-1] <= 1
    assert {text.replace(",", "").split()[0] for _, text in seen} == {
        "features",
        "probes",
        *FAMILIES,
    }


def test_progress_bar(monkeypatch, capfd):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    th.survey(nn.Linear(6, 3), blobs(), families="kernel", permutations=0, progress=True)
    assert "kernel: CKA to labels" in capfd.readouterr().err


def test_numbers_do_not_depend_on_batches_or_memory():
    data = images()
    small = {"batch_size": 7, "memory_limit": 10**8}
    plain = th.survey(cnn(), data, seconds=None).to_frame()
    tight = th.survey(cnn(), data, seconds=None, options=small).to_frame()
    assert set(tight.family) == set(FAMILIES)
    left = plain.set_index(["layer", "family", "measure"]).value
    right = tight.set_index(["layer", "family", "measure"]).value
    exact = [key for key in right.index if key[1] in ("representation", "kernel")]
    np.testing.assert_allclose(left.loc[exact], right.loc[exact], rtol=1e-3, atol=1e-4)


def test_too_little_memory_is_a_reason_not_a_crash():
    found = th.survey(
        mlp((6, 200, 3)),
        blobs(),
        families=["covariance", "kernel"],
        options={"memory_limit": 10**5},
    )
    frame = found.to_frame().set_index(["layer", "measure"])
    assert "are left of memory_limit" in frame.loc[("2", "relative_misalignment"), "reason"]


def test_compare_puts_runs_side_by_side(found):
    other = th.survey(cnn(seed=1), images(), families="kernel", name="cnn")
    both = th.compare(found, other)
    assert both.names == ["cnn", "cnn (2)"]
    frame = both.to_frame()
    assert set(frame.run) == {"cnn", "cnn (2)"}
    assert len(frame) == len(found.to_frame()) + len(other.to_frame())
    assert th.compare(found, other, names=["a", "b"]).names == ["a", "b"]


def test_rows_with_a_public_measure_are_in_the_registry():
    for name in ("alignment_area", "top_share", "misalignment", "tangent_alignment", "stable_rank"):
        assert name in MEASURES


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_numbers_do_not_depend_on_the_device():
    data = images()
    left = th.survey(cnn(), data).to_frame().set_index(["layer", "family", "measure"]).value
    right = th.survey(cnn().cuda(), data).to_frame().set_index(["layer", "family", "measure"]).value
    np.testing.assert_allclose(left, right, rtol=1e-2, atol=1e-3)


def test_summary_leaves_out_what_the_page_calls_unreadable():
    x, y = blobs()
    found = th.survey(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)), (x, y))
    few = layers_with_few_filters(found.record.contents["rows"])
    assert few  # there are as many filters as inputs
    said = [line for line in found.summary().splitlines() if line.startswith("misalignment / ran")]
    (line,) = said  # one for all layers
    assert "undefined in 2 of 2 layers (" in line  # the other one has fewer filters still
    for layer in few:
        (line,) = [li for li in found.summary().splitlines() if li.split()[:1] == [layer]]
        value = found.estimate("relative_misalignment", layer).value
        assert f"{value:.3g} (1)" not in line
        assert "undefined" in line.split()
