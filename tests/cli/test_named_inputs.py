"""Models with several inputs on the command line: an array for each argument of forward."""

import inspect
import json

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import theodolite as th
from theodolite.cli import app
from theodolite.cli.data import DataSource, load_examples, load_named_inputs
from theodolite.data import load_npz


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 8)
        self.second = nn.Embedding(5, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, left, right, scale=1.0, *, mask=None):
        joined = scale * self.first(left) + self.second(right)
        return self.head(joined.relu() if mask is None else joined.relu() * mask.unsqueeze(1))


class Plain(nn.Module):
    def forward(self, x):
        return x


class Masked(nn.Module):
    def forward(self, x, mask):
        return x * mask


class Anything(nn.Module):
    def forward(self, **inputs):
        return sum(inputs.values())


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return {
        "left_train": rng.normal(size=(30, 4)),
        "right_train": np.arange(30) % 5,
        "y_train": np.arange(30) % 3,
    }


def saved(folder, arrays, name="pairs.npz"):
    np.savez(folder / name, **arrays)
    return folder / name


def test_survey_is_that_of_the_library(tmp_path, arrays):
    imports = "import torch\nfrom torch import nn\n\n\n"
    (tmp_path / "net.py").write_text(imports + inspect.getsource(Pair))
    data = saved(tmp_path, arrays | {"mask_train": np.arange(30) % 7 > 0, "left_test": np.ones(3)})
    words = [
        "survey",
        f"{tmp_path}/net.py:Pair",
        data,
        "--permutations",
        "0",
        "--json",
        "-o",
        tmp_path,
    ]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["steps"][0]["rows"]
    inputs = {
        "left": torch.from_numpy(arrays["left_train"]).float(),
        "right": torch.from_numpy(arrays["right_train"]),
        "mask": torch.arange(30) % 7 > 0,
    }
    targets = torch.from_numpy(arrays["y_train"])
    wanted = th.survey(Pair().eval(), (inputs, targets), permutations=0).record.contents["rows"]
    assert [row["measure"] for row in rows] == [row["measure"] for row in wanted]
    found = [float(row["value"]) for row in rows if row["value"] is not None]
    assert found == pytest.approx([row["value"] for row in wanted if row["reason"] is None])
    assert {row["layer"] for row in rows} == {"input", "first", "second", "head", None}


def test_arrays_of_the_other_split(tmp_path, arrays):
    test = {key.replace("train", "test"): values[:9] for key, values in arrays.items()}
    source = DataSource(str(saved(tmp_path, arrays | test)), "test")
    batch = load_examples(source, Pair()).batch
    assert set(batch.kwargs) == {"left", "right"}
    assert batch.kwargs["left"].dtype == torch.float64
    assert len(batch) == len(batch.targets) == 9


def test_one_input_stays_what_it_was(tmp_path):
    x, y = np.zeros((4, 5, 5, 3), np.uint8), np.arange(4)
    arrays = {"x_train": x, "y_train": y, "x_test": x, "y_test": y, "clean_train": y}
    path = saved(tmp_path, arrays)
    assert load_named_inputs(Plain(), str(path), "train") is None
    examples = load_examples(DataSource(str(path)), Plain())
    (inputs,) = examples.batch.args
    assert inputs.shape == load_npz(path).x_train.shape == (4, 3, 5, 5)


def test_x_beside_another_input(tmp_path):
    arrays = {"x_train": np.ones((4, 2, 3)), "mask_train": np.ones((4, 2, 3)), "y_train": [0] * 4}
    found = load_named_inputs(Masked(), str(saved(tmp_path, arrays)), "train")
    assert {name: tuple(value.shape) for name, value in found.kwargs.items()} == {
        "x": (4, 2, 3),
        "mask": (4, 2, 3),
    }


def test_a_model_that_takes_any_name(tmp_path, arrays):
    path = saved(tmp_path, arrays)
    assert set(load_named_inputs(Anything(), str(path), "train").kwargs) == {"left", "right"}


def test_an_attention_mask_is_that_of_the_batch(tmp_path, arrays):
    named = {"input_ids_train": arrays["right_train"].reshape(15, 2)}
    named["attention_mask_train"] = np.ones((15, 2), int)
    path = saved(tmp_path, named | {"y_train": np.zeros(15)})
    batch = load_examples(DataSource(str(path)), Anything()).batch
    assert torch.equal(batch.mask, batch.kwargs["attention_mask"])
