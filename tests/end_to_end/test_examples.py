"""The scripts in docs/examples run, small, and show what they say."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def example(name):
    specification = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def values(survey, measure):
    return [survey.estimate(measure, layer).value for layer in survey.layers]


def test_survey_resnet(tmp_path, capsys):
    survey = example("survey_resnet").main(tmp_path, examples=20, tangent=4)
    assert survey.layers[0] == "stem"
    assert survey.layers[-1] == "head"
    assert len(survey.layers) == 10
    families = {row["family"] for row in survey.record.contents["rows"]}
    assert families == {"representation", "covariance", "kernel", "tangent", "gradient"}
    assert str(tmp_path / "report.html") in capsys.readouterr().out
    assert (tmp_path / "report.html").exists()


def test_watch_memorization(tmp_path):
    comparison = example("watch_memorization").main(tmp_path, steps=120, every=60)
    frame = comparison.to_frame()
    last = frame[(frame.step == 120) & (frame.measure == "feature_omega_contrast")]
    contrast = last.pivot_table(index="layer", columns="run", values="value")
    assert (contrast["random labels"] < contrast["true labels"]).all()
    assert (tmp_path / "report.html").exists()


def test_compare_initializations(tmp_path):
    comparison = example("compare_initializations").main(tmp_path, epochs=1)
    frame = comparison.to_frame()
    chosen = frame[(frame.measure == "relative_misalignment") & (frame.layer == "conv1")]
    misalignment = dict(zip(chosen.run, chosen.value, strict=True))
    assert misalignment["from the data, before"] < 0.5 < misalignment["random, before"]
    assert (tmp_path / "report.html").exists()


def test_survey_transformer(tmp_path):
    survey = example("survey_transformer").main(tmp_path, count=60, steps=10)
    assert {"words", "blocks.0.self_attn", "blocks.1.linear2", "head"} <= set(survey.layers)
    assert survey.record.contents["skipped"] == {}
    assert survey.record.contents["data"]["outputs"] == 3
    assert (tmp_path / "report.html").exists()


@pytest.mark.filterwarnings("ignore")  # the Trainer's own
def test_watch_fine_tuning(tmp_path, capsys):
    pytest.importorskip("transformers")
    watched = example("watch_fine_tuning").main
    small = {"every": 2, "count": 6, "length": 16, "probe": 6, "budget": 1e9}
    history = watched(tmp_path, steps=4, **small)
    assert history.steps == [0, 2, 4]
    last = history.run.steps[-1].contents
    assert last["data"]["groups"] == ["code", "licences", "prose"]
    assert {a["question"] for a in last["answers"]} >= {"task", "layer", "groups"}
    measured = {row["measure"] for row in last["rows"]}
    assert {"loss", "held_out_loss", "in_class_omega", "cka_target", "probe_accuracy"} <= measured
    history = watched(tmp_path / "other", task="classifier", steps=2, **small)
    last = history.run.steps[-1].contents
    assert {"held_out_accuracy", "omega_contrast"} <= {row["measure"] for row in last["rows"]}
    assert "of the training, the first and the last measurement included" in capsys.readouterr().out
    assert (tmp_path / "history" / "report.html").exists()


def test_five_measures(capsys):
    example("five_measures").main()
    assert capsys.readouterr().out.count("representation") == 1


def test_every_example_is_run_here():
    names = {f"test_{path.stem}" for path in EXAMPLES.glob("*.py")}
    assert names <= set(globals())


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_examples_say_how_to_run_them(path):
    assert f"python docs/examples/{path.name}" in path.read_text()
