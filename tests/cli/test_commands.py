"""survey and view: what they print, write and answer."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import theodolite as th
from tests.networks import mlp
from theodolite.cli import app

MLP = ("tests.networks:mlp", "--arg", "sizes=[6,5,3]")
QUICK = ("--family", "kernel", "--family", "gradient", "--permutations", "2")


def call(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = (rng.normal(size=(60, 6)) + 2 * np.eye(6)[y]).astype(np.float32)
    path = tmp_path_factory.mktemp("data") / "toy.npz"
    np.savez(path, x_train=x[:45], y_train=y[:45], x_test=x[45:], y_test=y[45:])
    return path


def training_pair(path):
    with np.load(path) as arrays:
        return torch.from_numpy(arrays["x_train"]), torch.from_numpy(arrays["y_train"])


@pytest.fixture(scope="module")
def surveyed(data, tmp_path_factory):
    """A folder that ``survey`` wrote, and what it printed."""
    folder = tmp_path_factory.mktemp("out") / "deep" / "run"
    return folder, call("survey", MLP[0], data, *MLP[1:], *QUICK, "-o", folder)


def test_survey_prints_a_row_per_layer_and_where_things_are(surveyed):
    folder, printed = surveyed
    assert [line.split()[0] for line in printed.splitlines() if line.startswith("fc")] == [
        "fc1",
        "fc2",
    ]
    assert str(folder / "report.html") in printed
    assert " training examples, classification" in printed


def test_survey_is_that_of_the_library(surveyed, data):
    folder, _ = surveyed
    torch.manual_seed(0)
    model = mlp([6, 5, 3])
    pair = training_pair(data)
    ours = th.survey(model, pair, families=("kernel", "gradient"), permutations=2)
    saved = th.load(folder)
    for layer in ("fc1", "fc2"):
        expected = ours.estimate("cka_target", layer)
        assert saved.estimate("cka_target", layer) == expected
    described = saved.record.contents["data"]
    assert (described["split"], described["classes"]) == ("train", ["0", "1", "2"])
    assert (folder / "report.html").stat().st_size > 100_000


def test_the_test_split_can_be_held_out(data, tmp_path):
    family = ("--family", "representation", "--permutations", 0)
    call("survey", MLP[0], data, *MLP[1:], *family, "--held-out", "-o", tmp_path / "run")
    torch.manual_seed(0)
    model = mlp([6, 5, 3])
    with np.load(data) as arrays:
        other = torch.from_numpy(arrays["x_test"]), torch.from_numpy(arrays["y_test"])
    right = (model(other[0]).argmax(1) == other[1]).double().mean().item()
    saved = th.load(tmp_path / "run").estimate("held_out_accuracy")
    assert saved.value == pytest.approx(right)
    refused = CliRunner().invoke(
        app, ["survey", MLP[0], str(data), *MLP[1:], "--held-out", "--split", "test"]
    )
    assert refused.exit_code == 2
    assert "do not pass --split" in refused.output + refused.stderr


def test_options_reach_the_survey(data, tmp_path):
    words = ("--split", "test", "--layer", "fc2", "--examples", 9, "--name", "mine", "--seed", 3)
    call("survey", MLP[0], data, *MLP[1:], "--family", "tangent", *words, "-o", tmp_path)
    contents = th.load(tmp_path).record.contents
    assert contents["name"] == "mine"
    assert contents["config"]["seed"] == 3
    assert contents["data"]["split"] == "test"
    assert [layer["name"] for layer in contents["layers"]] == ["fc2"]
    assert {row["n"] for row in contents["rows"] if row["layer"] == "fc2"} == {9}


@pytest.mark.parametrize("form", ["file.npy", "file.npz", "file.npz:labels", "labels"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_true_labels_beside_those_of_the_data(tmp_path, split, form):
    rng = np.random.default_rng(0)
    truth = {name: rng.integers(0, 3, count) for name, count in (("train", 20), ("test", 12))}
    x = {name: rng.normal(size=(len(y), 6)).astype(np.float32) for name, y in truth.items()}
    given = {name: np.roll(y, 5) for name, y in truth.items()}
    arrays = {f"x_{name}": x[name] for name in x} | {f"y_{name}": given[name] for name in x}
    np.savez(tmp_path / "data.npz", **arrays, labels=truth[split])
    np.save(tmp_path / "file.npy", truth[split])
    own = {f"y_{name}": y for name, y in truth.items()}
    np.savez(tmp_path / "file.npz", **own, labels=truth[split])
    word = form if form == "labels" else tmp_path / form
    words = ("--split", split, "--family", "kernel", "--truth", word, "-o", tmp_path / "run")
    printed = call("survey", MLP[0], tmp_path / "data.npz", *MLP[1:], *words)
    torch.manual_seed(0)
    pair = torch.from_numpy(x[split]), torch.from_numpy(given[split])
    ours = th.survey(mlp([6, 5, 3]), pair, truth=truth[split], families="kernel")
    saved = th.load(tmp_path / "run")
    for measure in ("cka_target", "cka_truth"):
        assert saved.estimate(measure, "fc1") == ours.estimate(measure, "fc1")
        assert f"{ours.estimate(measure, 'fc1').value:.3g}".replace("-", "−") in printed


def test_the_same_note_about_several_measures_is_one_line(data, tmp_path):
    words = ("--family", "covariance", "-o", tmp_path)
    printed = " ".join(call("survey", MLP[0], data, *MLP[1:], *words).split())
    reason = "filters too few or too isotropic to distinguish alignment from chance"
    assert printed.count(reason) == 1
    assert "misalignment / random undefined in 2 of 2 layers (fc1 and fc2): " + reason in printed
    assert th.load(tmp_path).summary().count(reason) == 1


def test_advice_names_the_option_of_the_command(tmp_path):
    y = np.arange(150) % 3
    np.savez(tmp_path / "easy.npz", x_train=np.eye(6, dtype=np.float32)[y], y_train=y)
    words = ("--family", "representation", "-o", tmp_path / "run")
    printed = call("survey", MLP[0], tmp_path / "easy.npz", *MLP[1:], *words)
    seen = call("view", tmp_path / "run", "--no-open")
    for text in (printed, seen):
        assert "held_out=" not in text
        assert "Pass --held-out " in text
    page = (tmp_path / "run" / "report.html").read_text()
    assert "held_out=" not in page
    assert "<code>--held-out</code>" in page
    saved = th.load(tmp_path / "run").answers
    assert any("Pass `held_out=` " in answer.advice for answer in saved)


def test_answers_in_other_words_stay(tmp_path):
    """A record of another version is shown as it was said."""
    survey = th.survey_features({"a": np.eye(12)}, np.arange(12) % 2)
    said = [{**survey.record.contents["answers"][0], "text": "Said before: yes."}]
    record = replace(survey.record, contents={**survey.record.contents, "answers": said})
    replace(survey, record=record).save(tmp_path / "run")
    assert "Said before: yes." in call("view", tmp_path / "run", "--no-open")


def test_nothing_is_written_over(data, tmp_path):
    words = ("survey", MLP[0], data, *MLP[1:], "--family", "kernel", "-o", tmp_path / "run")
    assert f"Record   {tmp_path / 'run'}\n" in call(*words)
    first = th.load(tmp_path / "run").to_frame()
    assert f"Record   {tmp_path / 'run-2'}\n" in call(*words, "--seed", 1)
    assert f"Report   {tmp_path / 'run-3' / 'report.html'}\n" in call(*words, "--seed", 2)
    assert th.load(tmp_path / "run").to_frame().equals(first)
    assert f"Record   {tmp_path / 'run'}\n" in call(*words, "--seed", 1, "--overwrite")
    again = th.load(tmp_path / "run").to_frame()
    assert again.equals(th.load(tmp_path / "run-2").to_frame())
    assert not again.equals(first)


def test_a_full_disk_does_not_lose_the_survey(data, tmp_path, full_disk):
    words = ["survey", MLP[0], data, *MLP[1:], *QUICK, "-o", tmp_path / "run"]
    with full_disk(100):
        shown, document = (
            CliRunner().invoke(app, [str(word) for word in (*words, *more)])
            for more in ([], ["--json"])
        )
    assert (shown.exit_code, document.exit_code) == (2, 2)
    assert "CKA to labels" in shown.stdout
    assert shown.stdout.endswith("Report   not written\nRecord   not written\n")
    assert shown.stderr.splitlines()[-1].startswith(f"error: {tmp_path / 'run'}")
    assert json.loads(document.stdout)["steps"][0]["rows"]
    assert not (tmp_path / "run").exists()


def test_a_short_survey_says_nothing_where_there_is_no_terminal(data, tmp_path):
    for more in ([], ["--json"]):
        words = [*MLP[1:], *QUICK, "-o", str(tmp_path / "run"), *more]
        result = CliRunner().invoke(app, ["survey", MLP[0], str(data), *words])
        assert (result.exit_code, result.stderr) == (0, "")


def test_weights_come_from_the_checkpoint(data, tmp_path):
    model = mlp([6, 5, 3], generator=torch.Generator().manual_seed(9))
    torch.save(model.state_dict(), tmp_path / "net.pt")
    words = ("--checkpoint", tmp_path / "net.pt", "--json", "-o", tmp_path / "run")
    document = json.loads(call("survey", MLP[0], data, *MLP[1:], *QUICK, *words))
    pair = training_pair(data)
    expected = th.survey(model, pair, families="kernel").estimate("cka_target", "fc1").value
    (value,) = [
        row["value"]
        for row in document["steps"][0]["rows"]
        if (row["layer"], row["measure"]) == ("fc1", "cka_target")
    ]
    assert value == pytest.approx(expected)


def test_view_writes_the_report_again(surveyed, tmp_path):
    folder, _ = surveyed
    printed = call("view", folder, "--no-open", "-o", tmp_path / "page.html")
    assert "fc2" in printed
    assert str(tmp_path / "page.html") in printed
    assert (tmp_path / "page.html").exists()


def test_view_opens_a_browser(surveyed, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setenv("DISPLAY", ":0")
    call("view", surveyed[0])
    assert opened == [(surveyed[0] / "report.html").resolve().as_uri()]


def test_view_is_quiet_where_there_is_no_browser(surveyed):
    screens = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    bare = {name: value for name, value in os.environ.items() if name not in screens}
    finished = run("-m", "theodolite.cli", "view", str(surveyed[0]), env=bare)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout.splitlines()[-1] == f"Report   {surveyed[0] / 'report.html'}"


@pytest.mark.parametrize("words", [(), ("--json",)], ids=["page", "json"])
def test_view_loads_no_torch(surveyed, tmp_path, words):
    code = "import sys; sys.modules['torch'] = None; from theodolite.cli import main; main()"
    page = () if words == ("--json",) else ("-o", str(tmp_path / "page.html"))
    finished = run("-c", code, "view", str(surveyed[0]), "--no-open", *words, *page)
    assert (finished.returncode, finished.stderr) == (0, "")


def test_view_compares_several(surveyed, data, tmp_path):
    call("survey", MLP[0], data, *MLP[1:], *QUICK, "--seed", 1, "-o", tmp_path / "b")
    call("view", surveyed[0], tmp_path / "b", "--no-open", "-o", tmp_path / "both.html")
    assert (tmp_path / "both.html").exists()


def test_view_takes_a_folder_of_runs(surveyed, tmp_path):
    for name in ("a", "b"):
        th.load(surveyed[0]).save(tmp_path / name)
    documents = json.loads(call("view", tmp_path, "--json"))
    assert [document["folder"] for document in documents] == [
        str(tmp_path / "a"),
        str(tmp_path / "b"),
    ]


def test_view_compares_at_most_twelve(surveyed, tmp_path):
    saved = th.load(surveyed[0])
    for number in range(13):
        saved.save(tmp_path / str(number))
    refused = CliRunner().invoke(app, ["view", str(tmp_path), "--no-open"])
    assert refused.exit_code == 2
    assert "at most 12 results" in refused.stderr
    assert "theodolite study gallery" in refused.stderr


def test_view_of_a_run_that_broke_off_shows_every_family_and_since_when(data, tmp_path):
    monitor = th.Monitor(mlp([6, 5, 3]), training_pair(data), every=5, folder=tmp_path / "run")
    for step in range(0, 11, 5):
        monitor.step(step)
    printed = call("view", tmp_path / "run", "--no-open")
    (steps,) = (line for line in printed.splitlines() if line.startswith("at step"))
    # Probe accuracy has a column of its own beside label alignment.
    assert steps.split()[2:] == ["0", "0", "10", "10", "0", "0"]
    assert "not measured" not in printed


def test_view_prints_strict_json(surveyed):
    document = json.loads(
        call("view", surveyed[0], "--json"), parse_constant=lambda name: pytest.fail(name)
    )
    assert document["kind"] == "survey"
    assert {row["family"] for row in document["steps"][0]["rows"]} == {"kernel", "gradient"}


def run(*words, **options):
    command = [sys.executable, "-W", "error", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_help_loads_no_torch():
    code = "import sys, theodolite.cli; print('torch' in sys.modules)"
    assert run("-c", code).stdout.strip() == "False"


@pytest.mark.parametrize("module", ["theodolite", "theodolite.cli"])
def test_a_real_process_answers_mistakes_with_one_line(module):
    finished = run("-m", module, "survey", "missing.py:net", "digits")
    assert finished.returncode == 2
    assert finished.stderr == "error: MODEL: missing.py: there is no such file\n"
    assert finished.stdout == ""


@pytest.mark.parametrize("command", ["demo", "survey", "view"])
def test_every_command_has_help(command):
    assert f"theodolite {command}" in run("-m", "theodolite.cli", command, "--help").stdout


def test_version():
    assert call("--version").strip() == f"theodolite {th.__version__}"


def test_inputs_of_numpy_take_the_precision_of_the_model(data, tmp_path):
    with np.load(data) as arrays:
        wide = {name: array.astype(np.float64) if name[0] == "x" else array
                for name, array in arrays.items()}  # fmt: skip
    np.savez(tmp_path / "wide.npz", **wide)
    for path, folder in ((data, "narrow"), (tmp_path / "wide.npz", "wide")):
        call("survey", MLP[0], path, *MLP[1:], *QUICK, "--name", "x", "-o", tmp_path / folder)
    narrow, wide = (th.load(tmp_path / folder).to_frame() for folder in ("narrow", "wide"))
    assert narrow.equals(wide)


def test_a_saved_model_of_hugging_face_in_all_families(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.ViTConfig(
        **sizes, intermediate_size=16, image_size=8, patch_size=4, num_channels=1, num_labels=10
    )
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    words = ("digits", "--examples", "60", "--permutations", "2", "-o", tmp_path / "run")
    call("survey", f"hf:{tmp_path / 'vit'}", *words)
    found = th.load(tmp_path / "run")
    assert found.record.contents["skipped"] == {}
    assert len(set(found.to_frame().family)) == 5
    assert "classifier" in found.layers
