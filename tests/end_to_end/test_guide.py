"""Every snippet of the documentation runs, and pages print the numbers that come out."""

import re
import shutil
import sqlite3
from contextlib import closing
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
ZOO = "papers/records/alignment_zoo/README.md"


pytestmark = pytest.mark.filterwarnings("ignore")  # of trainers and trackers


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """An empty data base of MLflow: making its tables takes longer than all that is written."""
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


def runs_in(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("select count(*) from runs").fetchone()[0]


@pytest.fixture
def own(tmp_path, monkeypatch, database):
    """A folder to work in, and what readers of the snippets bring: a module, loaders, a model."""
    import lightning.pytorch as pl
    from transformers import BertConfig, BertForSequenceClassification

    monkeypatch.chdir(tmp_path)
    shutil.copy(database, tmp_path)
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


def test_the_guide_runs(own):
    names = run_blocks(GUIDE, "guide.md", own)
    assert set(names["report"].layers) == {"0", "2"}


def test_watching_a_training_run(own, tmp_path):
    names = run_blocks(page("questions/watch-training.md"), "watch-training.md", own)
    assert names["monitor"].history.steps == [0, 5, 9]
    assert names["watch"].history.steps == [0, 9]
    assert (tmp_path / "runs" / "trainer" / "report.html").exists()
    assert Path(names["run"].dir).is_dir()
    for folder in ("tensorboard", "again"):
        assert list((tmp_path / "runs" / folder).glob("events.out.*"))
    assert runs_in(tmp_path / "mlflow.db") == 1


def test_the_readme_runs_and_prints_what_it_says(own, tmp_path, capsys):
    names = run_blocks(README, "README.md", own)
    shown = re.search(r"It prints\n\n```text\n(.*?)```", README, re.DOTALL).group(1)
    assert without_numbers(capsys.readouterr().out) == without_numbers(shown)
    assert names["monitor"].history.steps == [0, 10, 20, 29]
    assert (tmp_path / "report.html").stat().st_size < 3_000_000
    assert set(names["kernels"]) == {"0", "2", "4"}


def test_measures_and_curves_that_it_names_exist():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    x, y = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3
    contents = th.survey(model, (x, y), permutations=0, truth=y).record.contents
    known = {row["measure"] for row in contents["rows"]}
    known |= {curve["name"] for curve in contents["curves"]}
    known |= {key for row in contents["rows"] for key in row}
    known |= {option.name for option in fields(SurveyOptions)}
    words = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", GUIDE))
    words -= {"left_train", "right_train", "y_train"}  # arrays of a file
    assert words <= known
    assert {"alignment_area", "relative_misalignment", "cka_target", "tangent_alignment"} <= words


def without_numbers(text):
    """The words alone: training, and so its numbers, differs between machines."""
    return re.sub(r"\d+(?:\.\d+)?", "#", " ".join(text.split()))


def page(name):
    return (ROOT / "docs" / name).read_text()


def run_page(name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    torch.manual_seed(0)
    return run_blocks(page(name), name, {})


def printed(text, start):
    """Numbers in the first row of a table that begins like this."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {start}"))
    return [float(word) for word in re.findall(r"-?\d+\.?\d*", line.split("|", 2)[2])]


def values(survey, measure):
    return [survey.estimate(measure, layer).value for layer in survey.layers]


def test_quick_start(tmp_path, monkeypatch):
    names = run_page("index.md", tmp_path, monkeypatch)
    shown = re.search(r"```text\n(.*?)```", page("index.md"), re.DOTALL).group(1)
    assert without_numbers(names["report"].summary()).startswith(without_numbers(shown))
    assert names["monitor"].history.answers[0].finding == "learned"
    assert th.load(tmp_path / "runs" / "first").layers == ["0", "2", "4"]
    assert names["monitor"].history.steps == [0, 25, 50, 75, 100]
    assert (tmp_path / "training.html").exists()


def test_which_layer_transfers(tmp_path, monkeypatch):
    name = "questions/which-layer-transfers.md"
    names, text = run_page(name, tmp_path, monkeypatch), page(name)
    found = names["found"]
    assert found.names[-1] == "digits 0 to 4"
    assert found.ties == found.names[:2]  # in either order
    assert found.answers[0].text.startswith("Tie: ")
    for model in found.names:
        row = printed(text, model)
        tuned = [names["fine_tuned"](names["models"][model], labels) for labels in (150, 540)]
        later = names["with_labels"](found.curve(model), 540)
        # Training differs between machines, on random labels by several points.
        assert row[::2] == pytest.approx([found.forecast(model)[0], later], abs=0.05)
        assert row[1::2] == pytest.approx(tuned, abs=0.05)
    layers = found.layers("digits 0 to 4")
    for layer, own, area in zip(
        layers["name"], layers["accuracy"], layers["alignment_area"], strict=True
    ):
        reached = names["share_right"](names["features"][layer])
        assert printed(text, f"{layer} |") == pytest.approx([own, reached, area], abs=0.02)
    assert (tmp_path / "ranking.html").exists() or list(tmp_path.rglob("ranking.html"))


def test_is_it_memorising(tmp_path, monkeypatch):
    name = "questions/is-it-memorising.md"
    names, text = run_page(name, tmp_path, monkeypatch), page(name)
    for key in ("sure", "found"):
        for labels, survey in names[key].items():
            row = f"| {labels} | {survey.answers[0].text} |"
            assert without_numbers(row) in without_numbers(text)
    assert not any("memoris" in survey.answers[0].text for survey in names["found"].values())


def test_which_layers_learn(tmp_path, monkeypatch):
    name = "questions/which-layers-learn.md"
    names, text = run_page(name, tmp_path, monkeypatch), page(name)
    history = names["monitor"].history
    for layer in history.layers:
        found = [
            history.survey(s).estimate("tangent_alignment", layer).value for s in history.steps
        ]
        assert printed(text, f"{layer} |") == pytest.approx(found, abs=0.003)
    losses = list(names["alone"].values())
    assert printed(text, "loss after 100 steps") == pytest.approx(losses, abs=0.05)
    assert losses == sorted(losses)


def test_how_fast_will_it_train(tmp_path, monkeypatch):
    name = "questions/how-fast-will-it-train.md"
    names, text = run_page(name, tmp_path, monkeypatch), page(name)
    features, after = th.features(names["model"], names["x"]), names["after"]
    for layer in after.layers:
        predicted = after.estimate("predicted_steps", layer).value
        assert predicted == names["steps_to_halve"](features[layer])
    shown = printed(text, "after training: predicted, counted")[::2]
    assert shown == pytest.approx(values(after, "predicted_steps"), abs=1)
    assert values(names["before"], "predicted_steps")[-1] == float("inf")


def test_does_my_initialisation_help(tmp_path, monkeypatch):
    name = "questions/does-my-initialisation-help.md"
    names, text = run_page(name, tmp_path, monkeypatch), page(name)
    found = [values(survey, "relative_misalignment") for survey in names["surveys"]]
    for index, which in enumerate(("first", "second")):
        row = printed(text, f"misalignment / random, {which}")
        assert row == pytest.approx([run[index] for run in found], abs=0.05)
        row = printed(text, f"label alignment, {which}")
        areas = [values(survey, "alignment_area")[index] for survey in names["surveys"]]
        assert row == pytest.approx(areas, abs=0.01)  # signs of eigenvectors depend on the CPU
    train = {key: reached["train"] for key, reached in names["reached"].items()}
    slow, fast = (
        [v for (k, _), v in train.items() if k == kind] for kind in ("random", "from the data")
    )
    assert max(slow) < min(fast)


def test_language_models(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    names = run_page("questions/language-models.md", tmp_path, monkeypatch)
    found = (names[key].record.contents["rows"] for key in ("before", "after"))
    before, after = ({r["measure"]: r["value"] for r in rows if not r["layer"]} for rows in found)
    assert after["loss"] < before["loss"] - 1
    assert after["omega"] < before["omega"] / 2  # sequences stop wanting the same
    assert after["in_class_omega"] > 1.1 * after["omega"]  # what is left is within a domain
    best = names["table"].max()
    assert best > 0.8
    embedding = names["table"]["transformer.wte"]
    assert embedding > best - 0.1
    assert list(names["moved"].columns) == ["before", "after"]
    assert (tmp_path / "checkpoints.html").exists()
    assert "Which layers do data sources disagree on?" in (tmp_path / "fine-tune.html").read_text()
    steps = names["watch"].history.run.steps
    shares = [
        r["value"] for s in steps for r in s.contents["rows"] if r["measure"] == "carried_over"
    ]
    assert len(shares) == 2
    frame = names["mood"].to_frame().query("measure == 'probe_accuracy'")
    mood = frame.set_index("layer").value
    assert mood["bert.embeddings"] < 0.65  # words alone do not tell it
    assert mood["bert.encoder.layer.0"] > 0.95


def small_survey():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    x, y = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3
    return model, x, y


@pytest.mark.parametrize("name", ["SKILL.md", "docs/llms.txt"])
def test_pages_for_coding_assistants_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, x, y = small_survey()
    given = {"th": th, "model": model, "x": x, "y": y, "x_test": x[:10] + 0.1, "y_test": y[:10]}
    text = (ROOT / name).read_text()
    names = run_blocks(text, name, {**given, "x_train": x, "y_train": y})
    assert {answer.question for answer in names["report"].answers} <= {"task", "layer"}
    assert list(names["probes"]["layer"]) == ["input", "0", "2"]
    assert (tmp_path / "report.html").exists()
    assert set(re.findall(r"\bth\.(\w+)", text)) <= set(th.__all__)


def test_records(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, x, y = small_survey()
    run_blocks(page("records.md"), "records.md", {"runs": [th.survey(model, (x, y)).run]})
    assert (tmp_path / "page.html").exists()


def test_scale(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, x, y = small_survey()
    address = {"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    for key, value in address.items():
        monkeypatch.setenv(key, value)
    try:
        run_blocks(page("scale.md"), "scale.md", {"model": model, "x": x, "y": y})
    finally:
        torch.distributed.destroy_process_group()
    assert th.load(tmp_path / "runs" / "net").layers == ["0", "2"]


def test_tables_of_the_zoo_load_as_the_page_says(tmp_path, monkeypatch):
    pytest.importorskip("theodolite_papers")
    run_page(f"../{ZOO}", tmp_path, monkeypatch)
    names = run_page("which-number.md", tmp_path, monkeypatch)
    assert f"{len(names['zoo'].measurements):,} measurements" in page("which-number.md")


def test_every_page_with_code_is_run_here():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.txt")]
    for folder in ("docs", "papers", "benchmarks", "src"):
        pages += (ROOT / folder).rglob("*.md")
    made = {ROOT / "docs" / "ledger", ROOT / "docs" / "tutorials"}
    with_code = {
        path.relative_to(ROOT).as_posix()
        for path in pages
        if path.parent not in made and re.search("```(python|py)", path.read_text())
    }
    with_code.remove("CHANGELOG.md")  # calls of versions before this one
    source = Path(__file__).read_text().split("def test_every_page_with_code_is_run_here")[0]
    short = {name: name.removeprefix("docs/") for name in with_code}
    unrun = [n for n in short if f'"{n}"' not in source and f'"{short[n]}"' not in source]
    assert unrun == []


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 120


def test_pictures_are_small():
    for path in (ROOT / "docs" / "images").glob("*.png"):
        assert path.stat().st_size < 100_000, path.name
