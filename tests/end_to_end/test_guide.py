"""The guide's code runs, and every measure that it names exists."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import theodolite as th
from theodolite.surveys import SurveyOptions

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guide.md").read_text()
README = (ROOT / "README.md").read_text()


pytestmark = pytest.mark.filterwarnings("ignore")  # of trainers and trackers


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder to work in, and what readers of the snippets bring: a module, loaders, a model."""
    import lightning.pytorch as pl
    from transformers import BertConfig, BertForSequenceClassification

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    torch.manual_seed(0)

    class Classifier(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(64, 10)

        def training_step(self, batch, _index):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    x, y = torch.randn(40, 64), torch.arange(40) % 10
    ids, labels = torch.randint(3, 20, (24, 6)), torch.arange(24) % 2
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = BertConfig(**sizes, vocab_size=20, intermediate_size=16, max_position_embeddings=8)
    return {
        "lightning_module": Classifier(),
        "train_loader": DataLoader(TensorDataset(x, y), batch_size=8),
        "hf_model": BertForSequenceClassification(bert),
        "batch": {"input_ids": ids, "labels": labels},
        "dataset": [
            {"input_ids": row, "labels": label} for row, label in zip(ids, labels, strict=True)
        ],
    }


def run_blocks(page, name, names):
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, name, "exec"), names)
    return names


def test_code_runs(own, tmp_path):
    names = run_blocks(GUIDE, "guide.md", own)
    assert names["monitor"].history.steps == [0, 5, 9]
    assert names["watch"].history.steps == [0, 9]
    assert (tmp_path / "runs" / "trainer" / "report.html").exists()
    assert Path(names["run"].dir).is_dir()
    for folder in ("tensorboard", "again"):
        assert list((tmp_path / "runs" / folder).glob("events.out.*"))
    assert (tmp_path / "mlflow.db").exists()


def test_code_of_the_readme_runs(own, tmp_path):
    names = run_blocks(README, "README.md", own)
    assert names["monitor"].history.steps == [0, 10, 20, 29]
    assert (tmp_path / "a.html").stat().st_size < 3_000_000
    assert set(names["kernels"]) == {"0", "2"}
    assert th.load(tmp_path / "runs" / "lightning").steps == [0, 5]
    assert th.load(tmp_path / "runs" / "trainer").steps == [0, 9]
    assert list((tmp_path / "runs" / "tensorboard").glob("events.out.*"))
    assert Path(names["run"].dir).is_dir()
    assert (tmp_path / "mlflow.db").exists()


def test_measures_and_curves_that_it_names_exist():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    x, y = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3
    contents = th.survey(model, (x, y), permutations=0, truth=y).record.contents
    known = {row["measure"] for row in contents["rows"]}
    known |= {curve["name"] for curve in contents["curves"]}
    known |= {key for row in contents["rows"] for key in row}
    known |= {option.name for option in fields(SurveyOptions)}
    words = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", GUIDE))
    assert words <= known
    assert {"alignment_area", "relative_misalignment", "cka_target", "omega_contrast"} <= words
