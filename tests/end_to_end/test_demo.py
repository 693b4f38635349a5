"""The demo's story on a smaller network: what the numbers should say, and that checks can fail."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from theodolite.cli import app
from theodolite.cli.networks import watch_network
from theodolite.cli.story import CNN, StorySettings, story_checks, tell_story
from theodolite.errors import StudyError
from theodolite.records import MEMORISED, load_run

SMALL = StorySettings(moments=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def told():
    return []


@pytest.fixture(scope="module")
def story(folder, told):
    return tell_story(SMALL, folder, lambda *heard: told.append(heard), workers=2)


def test_a_process_of_its_own_measures_the_same(story):
    alone = watch_network(CNN, replace(SMALL, steps=1), lambda _done, _text: None)
    first, beside = alone.histories[CNN].survey(0), story.histories[CNN].survey(0)
    rows, others = first.record.contents["rows"], beside.record.contents["rows"]
    assert str(rows) == str(others)  # nan is nan


def test_progress_names_every_network(story, told):
    assert [share for share, _ in told] == sorted(share for share, _ in told)
    called = {"the MLP (true labels)", "the MLP (random labels)", "the CNN (true labels)"}
    assert {f"training {name}" for name in called} < {text for _, text in told}


def test_a_network_that_fails_is_a_sentence(tmp_path, monkeypatch):
    def fails(*_):
        raise MemoryError("no room")

    monkeypatch.setattr("theodolite.cli.networks.watch_network", fails)
    with pytest.raises(
        StudyError, match="could not be trained: CNN: MemoryError: no room; true labels: "
    ):
        tell_story(SMALL, tmp_path, lambda *_: None, workers=1)


@pytest.mark.parametrize("index", range(3), ids=["late", "contrast", "area"])
def test_the_story_holds(story, index):
    check = story.checks[index]
    assert check.holds, check.numbers


def test_swapped_runs_fail_every_check_that_compares_them(story):
    histories = dict(story.histories)
    swapped = {
        "true labels": histories["random labels"],
        "random labels": histories["true labels"],
    }
    late, contrast, _ = story_checks(swapped)
    assert not late.holds
    assert not contrast.holds


def test_records_hold_what_carries_over(story):
    task = {name: history.answers[0] for name, history in story.histories.items()}
    assert task["true labels"].finding == task[CNN].finding == "learned"
    assert task["random labels"].finding in MEMORISED
    assert {answer.certainty for answer in task.values()} == {"clear"}


def test_networks_fit_and_only_true_labels_generalize(story):
    assert story.accuracies["true labels"] > (0.99, 0.9)
    assert story.accuracies["random labels"][1] < 0.3
    assert story.accuracies["CNN"][1] > 0.9


def test_records_name_split_and_labels(story, folder):
    data = {name: h.run.head.contents["data"] for name, h in story.histories.items()}
    assert {name: (entry["split"], entry["label_source"]) for name, entry in data.items()} == {
        "true labels": ("train", "true"),
        "random labels": ("train", "random"),
        "CNN": ("train", "true"),
    }
    saved = load_run(folder / "random-labels")
    assert [step.contents["step"] for step in saved.steps] == [0, 250]


def test_the_random_run_shows_its_own_labels_beside_the_true_ones(story):
    random = story.histories["random labels"]
    last, final = random.layers[-1], random.survey(250)
    start = random.survey(0)
    assert (
        final.estimate("cka_target", last).z_score > 5 > start.estimate("cka_target", last).z_score
    )
    assert start.estimate("cka_truth", last).z_score > 5
    others = [name for name in story.histories if name != "random labels"]
    for name in others:
        rows = story.histories[name].run.steps[-1].contents["rows"]
        assert "cka_truth" not in {row["measure"] for row in rows}
    assert "true labels, random labels" in story.reports[0].read_text()


def test_all_families_are_watched(story):
    rows = story.histories["true labels"].run.steps[-1].contents["rows"]
    assert len({row["family"] for row in rows}) == 5
    assert any(row["measure"] == "omega_contrast" for row in rows)


def test_the_reports_are_small_enough(story):
    for report in story.reports:
        assert 1_000_000 < report.stat().st_size < 3_000_000


def test_the_command_prints_one_screen(story, monkeypatch, folder):
    monkeypatch.setattr("theodolite.cli.story.tell_story", lambda *_, **__: story)
    result = CliRunner().invoke(app, ["demo", "-o", str(folder)])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert len(lines) < 45
    said = [line for line in lines if len(line) > 30 and line[:1] not in " -"]
    assert len(set(said)) == len(said)  # nothing twice
    assert "MLP, true labels" in lines[3]
    assert "learned: " in lines[3]
    assert "memorised: " in lines[4]
    assert "Not in this run" not in result.stdout
    assert [line.split()[0] for line in lines[-3:]] == ["Report", "Records", "Next"]


def test_the_command_in_json(story, monkeypatch, folder):
    monkeypatch.setattr("theodolite.cli.story.tell_story", lambda *_, **__: story)
    result = CliRunner().invoke(app, ["demo", "--json", "-o", str(folder)])
    document = json.loads(result.stdout)
    assert [check["holds"] for check in document["checks"]] == [True] * 3
    assert len(document["histories"]) == 3
