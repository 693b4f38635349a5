"""Mistakes on the command line: exit code 2 and one sentence that helps, never a traceback."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from theodolite.cli import app

MLP = "tests.networks:mlp"
SIZES = ("--arg", "sizes=[6,4,3]")


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(*words):
    """What is said about a mistake, after checking how it is said."""
    result = call(*words)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    return result.stderr


@pytest.fixture
def data(tmp_path):
    """Thirty vectors of length 6 in three classes."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 6)).astype(np.float32), np.arange(30) % 3
    path = tmp_path / "data.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    return path


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out"


def written(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("word", "part"),
    [
        ("net", "expected FILE.py:CALLABLE"),
        ("net.py:", "expected FILE.py:CALLABLE"),
        ("missing.py:Net", "there is no such file"),
        ("no.such.module:net", "there is no module 'no.such.module'"),
        ("tests.networks:mpl", "did you mean 'mlp'"),
        (MLP, "pass its arguments as --arg"),
        ("tests.networks:ACTIVATIONS", "expected a callable, got dict"),
        ("hf:/no/such/folder", "transformers could not load it"),
    ],
    ids=["form", "empty", "file", "module", "name", "arguments", "list", "hf"],
)
def test_models_that_cannot_be_found(data, word, part):
    assert part in refused("survey", word, data)


def test_timm_that_is_not_installed(data, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    assert "pip install 'theodolite[vision]'" in refused("survey", "timm:resnet18", data)


def test_timm_beside_a_torchvision_of_another_torch(data, tmp_path, monkeypatch):
    written(tmp_path / "timm.py", "raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "timm", raising=False)
    said = refused("survey", "timm:resnet18", data)
    assert "timm is installed and cannot be imported: RuntimeError: operator" in said
    assert "torch and torchvision that belong together" in said


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("import no_such_package\n", "ModuleNotFoundError"),
        ("def Net(:\n", "SyntaxError"),
        (
            "x = 1\n\ndef Net():\n    return 1 / 0\n",
            "ZeroDivisionError: division by zero (net.py, line 4",
        ),
        ("def Net():\n    return 3\n", "got int"),
        ("import sys\nsys.exit(7)\n", "SystemExit"),
    ],
    ids=["import", "syntax", "raises", "number", "exits"],
)
def test_files_that_do_not_give_a_model(tmp_path, data, code, part):
    path = written(tmp_path / "net.py", code)
    assert part in refused("survey", f"{path}:Net", data)


@pytest.mark.parametrize(
    ("word", "part"),
    [
        ("no-such-file.npz", "found no such file"),
        ("digitz", "did you mean 'digits'"),
        (__file__, "expected an .npz file or a folder"),
    ],
    ids=["file", "name", "kind"],
)
def test_data_that_cannot_be_found(word, part):
    assert part in refused("survey", MLP, word, *SIZES)


def test_npz_with_other_keys(tmp_path):
    np.savez(tmp_path / "d.npz", X=np.zeros((3, 2)), y=np.zeros(3))
    said = refused("survey", MLP, tmp_path / "d.npz", *SIZES)
    assert "expected the arrays x_train, y_train, but they are missing; found X, y" in said
    assert "found X, y" in said


@pytest.mark.parametrize(
    ("x", "y", "part"),
    [
        ([1.0, np.nan], [0, 1], "leave such examples out, or fill in the missing numbers"),
        ([1.0, 2.0], ["cat", "dog"], "got text; number the classes from 0"),
        ([1.0, 2.0], [0.5 + 1j, 1.0], "got complex128"),
    ],
    ids=["nan", "text", "complex"],
)
def test_npz_with_arrays_that_need_a_repair(tmp_path, x, y, part):
    np.savez(tmp_path / "d.npz", x_train=np.array([x, x]), y_train=np.array(y))
    said = refused("survey", MLP, tmp_path / "d.npz", *SIZES)
    assert part in said
    assert "diverged" not in said


def with_array(folder, name, array):
    np.save(folder / name, array, allow_pickle=True)
    return folder / name


@pytest.mark.parametrize(
    ("word", "part"),
    [
        ("no-such-file.npy", "there is no such file; expected FILE.npy, FILE.npz, FILE.npz:KEY"),
        ("no-such-file.npz:y", "no-such-file.npz: there is no such file"),
        ("y_true", "has no array 'y_true'; found x_train, y_train, x_test, y_test"),
        ("data.npz:y_true", "has no array 'y_true'; found x_train"),
        ("damaged.npz", "cannot be read as plain numbers (BadZipFile)"),
        ("pickled.npy", "cannot be read as plain numbers (ValueError)"),
        ("few.npy", "expected 30 labels, as many as data has train examples, got 7"),
        ("words.npy", "got an array of <U1 and shape (30,)"),
        ("single.npy", "got an array of int64 and shape ()"),
        ("", "expected FILE.npy"),
        ("data.npz:", "expected FILE.npy"),
    ],
    ids=["file", "archive", "key", "file and key", "damaged", "pickled", "few", "words", "single",
         "empty", "no key"],
)  # fmt: skip
def test_true_labels_that_cannot_be_had(data, folder, monkeypatch, word, part):
    monkeypatch.chdir(data.parent)
    written(data.parent / "damaged.npz", "PK\x03\x04 no zip at all")
    with_array(data.parent, "pickled.npy", np.array([{}], dtype=object))
    with_array(data.parent, "few.npy", np.arange(7))
    with_array(data.parent, "words.npy", np.array(list("abc") * 10))
    with_array(data.parent, "single.npy", np.array(3))
    assert part in refused("survey", MLP, data, *SIZES, "--truth", word, "-o", folder)
    assert not folder.exists()


def test_true_labels_without_a_file_of_data_or_a_family_for_them(data, tmp_path):
    words = ("--arg", "sizes=[64,4,10]", "--truth", "y_true")
    assert "got 'y_true'" in refused("survey", MLP, "digits", *words)
    words = (*SIZES, "--truth", data, "--family", "tangent")
    assert "add --family kernel" in refused("survey", MLP, data, *words)


def test_unknown_layer(data, folder):
    said = refused("survey", MLP, data, *SIZES, "--layer", "fc9", "-o", folder)
    assert "'fc9'" in said
    assert "'fc1'" in said
    assert not folder.exists()


def test_unknown_family(data, folder):
    said = refused("survey", MLP, data, *SIZES, "--family", "tangents", "-o", folder)
    assert "did you mean 'tangent'" in said


def test_labels_out_of_range(data):
    said = refused("survey", MLP, data, "--arg", "sizes=[6,4,2]")
    assert "the model has 2 outputs" in said
    assert "label 2" in said


def test_negative_labels(tmp_path):
    x, y = np.zeros((4, 6), np.float32), np.array([0, -1, 1, 0])
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    assert "-1" in refused("survey", MLP, tmp_path / "d.npz", *SIZES)


def test_model_that_wants_another_shape(data):
    said = refused("survey", MLP, data, "--arg", "sizes=[7,4,3]")
    assert "examples have shape (6,)" in said
    assert "check MODEL's input size" in said


PAIR = """
from torch import nn


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(2, 3)

    def forward(self, left, right, scale=1.0):
        return self.first(left) + self.second(right)


class Supervised(Pair):
    def forward(self, x, y):
        return super().forward(x, y)


class One(nn.Linear):
    def forward(self, values):
        return super().forward(values)
"""
PAIRS = {"left_train": np.ones((6, 4)), "right_train": np.ones((6, 2)), "y_train": np.arange(6) % 3}
WANTED = "an .npz file with left_train, right_train and y_train"


@pytest.mark.parametrize(
    ("changes", "options", "part"),
    [
        ({"left_train": None, "right_train": None, "x_train": np.ones((6, 4))}, (), WANTED),
        ({"left_train": None, "right_train": None}, (), "takes several inputs, left, right"),
        ({"right_train": None}, (), "right_train is missing; "),
        ({"y_train": None}, (), "y_train is missing; "),
        ({}, ("--split", "test"), "left_test, right_test and y_test"),
        ({"right_train": np.ones((5, 2))}, (), "right_train has 5"),
        ({"right_train": np.array(["a"] * 6)}, (), "right_train: expected numbers"),
        ({"right_train": np.full((6, 2), np.nan)}, (), "right_train: expected finite numbers"),
        ({"y_train": np.arange(6) - 1}, (), "y_train: expected labels of at least 0, got -1"),
        ({key: value[:0] for key, value in PAIRS.items()}, (), "expected at least one"),
        ({"right_train": np.ones((6, 3))}, (), "right (3,) of torch.float32"),
        ({"y_train": np.arange(6)}, (), "the model has 3 outputs"),
        ({}, ("--flatten",), "--flatten: expected data with a single input"),
        ({}, ("--scale", "pixels"), "--scale pixels: expected data with a single input"),
    ],
    ids=[
        "x alone", "no input", "one input", "no targets", "other split", "lengths", "words", "nan",
        "negative", "empty", "shape", "labels", "flatten", "scale",
    ],
)  # fmt: skip
def test_models_with_several_inputs(tmp_path, folder, changes, options, part):
    net = written(tmp_path / "net.py", PAIR)
    arrays = {key: value for key, value in (PAIRS | changes).items() if value is not None}
    np.savez(tmp_path / "d.npz", **arrays)
    said = refused("survey", f"{net}:Pair", tmp_path / "d.npz", *options, "-o", folder)
    assert part in said
    assert not folder.exists()


def test_several_inputs_from_data_that_have_one(tmp_path):
    net = written(tmp_path / "net.py", PAIR)
    said = refused("survey", f"{net}:Pair", "digits")
    assert f"expected DATA as {WANTED}; got digits" in said
    assert "y_train is reserved for targets" in refused("survey", f"{net}:Supervised", "digits")


def test_named_inputs_of_the_other_split_only(tmp_path):
    net = written(tmp_path / "net.py", PAIR)
    np.savez(tmp_path / "d.npz", values_train=np.ones((3, 2)), y_train=np.zeros(3))
    words = ("--arg", "in_features=2", "--arg", "out_features=2", "--split", "test")
    said = refused("survey", f"{net}:One", tmp_path / "d.npz", *words)
    assert "--split test: expected values_test; " in said
    assert "found values_train, y_train" in said


def test_damaged_file_for_a_model_with_several_inputs(tmp_path):
    net = written(tmp_path / "net.py", PAIR)
    path = written(tmp_path / "d.npz", "PK\x03\x04 no zip at all")
    assert "it cannot be read (BadZipFile" in refused("survey", f"{net}:Pair", path)


def test_model_that_wants_vectors(tmp_path):
    path = written(tmp_path / "net.py", "from torch import nn\nNet = lambda: nn.Linear(64, 10)\n")
    assert "pass --flatten for vectors" in refused("survey", f"{path}:Net", "digits")


def test_sequences_that_were_taken_for_images(tmp_path, folder):
    x, y = np.ones((6, 4, 3), np.float32), np.arange(6) % 2
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    words = ("--arg", "sizes=[3,2]", "--readout", "mean", "-o", folder)
    said = refused("survey", MLP, tmp_path / "d.npz", *words)
    assert "or --as-is for sequences in an .npz file" in said
    assert "expected DATA as an .npz file, got 'digits'" in refused(
        "survey", MLP, "digits", "--as-is", *words
    )


def test_checkpoints_that_do_not_fit(tmp_path, data):
    path = tmp_path / "weights.pt"
    torch.save({"fc1.weight": torch.zeros(5, 6), "fc9.bias": torch.zeros(3)}, path)
    said = refused("survey", MLP, data, *SIZES, "--checkpoint", path)
    assert "it lacks fc1.bias, fc2.weight and fc2.bias" in said
    assert "the model has no fc9.bias" in said
    assert "fc1.weight is (5, 6) instead of (4, 6)" in said


class Payload:
    """What must never run."""

    def __reduce__(self):
        return (print, ("executed",))


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (Payload(), "cannot be read safely"),
        (nn.Linear(2, 2), "cannot be read safely"),
        ([1, 2], "expected a mapping of names to tensors"),
        ({"fc1.weight": 3}, "expected tensors only"),
    ],
    ids=["code", "module", "list", "numbers"],
)
def test_checkpoints_with_anything_but_tensors(tmp_path, data, capsys, content, part):
    path = tmp_path / "weights.pt"
    torch.save(content, path)
    assert part in refused("survey", MLP, data, *SIZES, "--checkpoint", path)
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
def test_damaged_checkpoints(tmp_path, data, name):
    (tmp_path / name).write_bytes(b"not a checkpoint")
    said = refused("survey", MLP, data, *SIZES, "--checkpoint", tmp_path / name)
    assert "cannot be read" in said


def test_missing_checkpoint(tmp_path, data):
    said = refused("survey", MLP, data, *SIZES, "--checkpoint", tmp_path / "none.pt")
    assert "there is no such file" in said


@pytest.mark.parametrize(
    ("option", "part"),
    [
        (("--split", "validation"), "expected train or test"),
        (("--scale", "huge"), "expected one of auto, none"),
        (("--device", "abacus"), "expected cpu"),
        (("--arg", "sizes"), "expected NAME=VALUE"),
        (
            ("--memory-limit", "much"),
            "expected a size such as '4GB' or '512MiB', got 'much'",
        ),
        (("--readout", "first"), "readout"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_options_out_of_range(data, option, part):
    assert part in refused("survey", MLP, data, *SIZES, *option)


def test_folders_that_cannot_be_written(tmp_path, data):
    blocked = written(tmp_path / "file", "")
    said = refused("survey", MLP, data, *SIZES, "--family", "kernel", "-o", blocked / "x")
    assert "cannot be written" in said


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (None, "found none"),
        ("{", "not valid JSON"),
        ("{}", "another JSON file"),
        (json.dumps({"format": "theodolite-record", "schema": 99}), "upgrade theodolite"),
    ],
    ids=["missing", "damaged", "foreign", "newer"],
)
def test_records_that_cannot_be_shown(tmp_path, content, part):
    if content is not None:
        written(tmp_path / "record.json", content)
    assert part in refused("view", tmp_path)


def test_unknown_options_and_commands_are_usage_errors():
    assert call("survey", "--bogus").exit_code == 2
    assert call("surveyy").exit_code == 2


def test_defects_of_the_library_are_named_as_such(monkeypatch, data):
    def broken(*_arguments):
        raise KeyError("lost")

    monkeypatch.setattr("theodolite.surveys.named_models.build_model", broken)
    result = call("survey", MLP, data)
    assert result.exit_code == 1
    assert "internal error: KeyError: 'lost'" in result.stderr
    assert isinstance(call("--traceback", "survey", MLP, data).exception, KeyError)


def test_an_interrupt_ends_with_a_sentence(monkeypatch, data):
    def interrupted(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("theodolite.surveys.named_models.build_model", interrupted)
    result = call("survey", MLP, data)
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        130,
        "stopped; finished files are kept",
    )
