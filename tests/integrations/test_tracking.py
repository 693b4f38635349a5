"""What every tracker gets."""

import math

import pytest
import torch
from torch import nn

from theodolite import integrations
from theodolite.integrations.tracking import parameters, require_package, scalars, track
from theodolite.integrations.watching import Watch
from theodolite.records import Record
from theodolite.surveys import Budget, History


def row(value, layer="fc1", measure="cka_target"):
    return {"layer": layer, "family": "kernel", "measure": measure, "value": value}


def test_numbers_by_family_measure_and_layer():
    rows = [row(0.5), row(0.25, "blocks.0"), row(2.0, None, "loss"), row(1.0, "")]
    assert scalars(Record({"rows": rows})) == {
        "kernel/cka_target/fc1": 0.5,
        "kernel/cka_target/blocks.0": 0.25,
        "kernel/loss/model": 2.0,
        "kernel/cka_target/_model_": 1.0,
    }


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_undefined_numbers_are_left_out(value):
    assert scalars(Record({"rows": [row(value)]})) == {}


def test_names_hold_only_what_all_trackers_accept():
    assert list(scalars(Record({"rows": [row(1.0, "a<b>:c[0]")]}))) == [
        "kernel/cka_target/a_b__c_0_"
    ]


class Notebook:
    """A tracker that remembers what it was told."""

    def __init__(self):
        self.told = []

    def log_parameters(self, values):
        self.told.append(values)

    def log(self, values, step):
        self.told.append((step, values))

    def log_report(self, path):
        self.told.append(path)

    def close(self):
        self.told.append("closed")


def test_a_finished_run_is_sent_step_by_step(small_history, report_file):
    notebook = Notebook()
    track(small_history.run, notebook, report=report_file)
    steps = [(step, scalars(small_history.survey(step).record)) for step in (0, 1, 2)]
    settings = parameters(small_history.run.head)
    assert notebook.told == [settings, *steps, report_file]
    assert settings["config.families"] == "kernel, gradient"
    assert settings["data.n"] == "48"
    assert steps[0][1] != steps[2][1]


def test_what_the_last_step_adds_is_sent_once(small_data, small_net):
    notebook = Notebook()
    watch = Watch(small_data, trackers=[notebook], every=1, cadence={"gradient": 2})
    watch.start(small_net())
    watch.step(0)
    sent = watch.step(1)
    added = watch.finish()
    assert notebook.told[-2:] == [(1, added), "closed"]
    assert not sent.keys() & added.keys()
    assert sent.keys() | added.keys() == scalars(watch.history.run.steps[-1]).keys()
    assert "gradient/omega/model" in added


class Unreachable(Notebook):
    """A tracker whose server is away at some steps, and when reports are sent."""

    def __init__(self, *steps):
        super().__init__()
        self.steps = steps

    def log(self, values, step):
        if step in self.steps:
            raise ConnectionError("server is away")
        super().log(values, step)

    def log_report(self, path):
        raise TimeoutError(f"{path.name} is large")


def test_a_tracker_that_raises_does_not_end_the_training(small_data, small_net, tmp_path):
    whole, broken = Notebook(), Unreachable(0, 2)
    options = {"every": 1, "families": "kernel", "folder": tmp_path / "run"}
    watch = Watch(small_data, trackers=[broken, whole], **options)
    watch.start(small_net())
    with pytest.warns(UserWarning, match="did not get") as said:
        measured = [*map(watch.step, range(4)), watch.finish(4)]
    assert all(measured)
    first, last = (str(warning.message) for warning in said)
    away = "ConnectionError: server is away"
    assert first == f"Unreachable did not get step 0 ({away}). The training goes on."
    assert last.startswith(
        "Unreachable did not get step 0, step 2 and the report (last error: TimeoutError: "
    )
    assert last.endswith("again: theodolite.integrations.track(history, tracker).")
    kept = [step for step, _ in (told for told in broken.told if isinstance(told, tuple))]
    assert kept == [1, 3, 4]
    assert broken.told[-1] == "closed"
    assert whole.told[-2:] == [tmp_path / "run" / "report.html", "closed"]


def test_a_tracker_whose_errors_take_long_is_left_alone_for_a_while(
    small_data, small_net, monkeypatch
):
    now, asked = [0.0], []
    monkeypatch.setattr("theodolite.integrations.watching.monotonic", lambda: now[0])

    class Slow(Notebook):
        def log(self, values, step):
            asked.append(step)
            now[0] += 60.0
            raise ConnectionError

    watch = Watch(small_data, trackers=[Slow()], every=1, families="kernel")
    watch.start(small_net())

    def train():
        for step in range(4):
            now[0] += 250.0
            watch.step(step)
        watch.finish(4)

    with pytest.warns(UserWarning, match="Slow did not get step 0") as said:
        train()
    assert asked == [0, 3]
    assert "step 3, step 4 and what was waiting" in str(said[-1].message)


def test_missing_packages_name_the_extra():
    with pytest.raises(ImportError, match=r"pip install 'theodolite\[track\]'"):
        require_package("no_such_tracker.core", "track")


def test_a_run_may_be_a_history_or_its_folder(small_history, tmp_path, report_file):
    expected, *others = Notebook(), Notebook(), Notebook(), Notebook()
    track(small_history.run, expected, report=report_file)
    small_history.save(tmp_path / "run")
    track(small_history, others[0], report=str(report_file))
    track(tmp_path / "run", others[1], report=report_file)
    track(str(tmp_path / "run"), others[2], report=report_file)
    assert all(other.told == expected.told for other in others)
    assert expected.told[-1] == report_file


@pytest.mark.parametrize("name", integrations.__all__)
def test_names_are_visible_and_there(name):
    assert name in dir(integrations)
    assert getattr(integrations, name) is not None


@pytest.mark.parametrize("name", ["lightning", "transformers"])
def test_callbacks_are_visible(name):
    assert dir(getattr(integrations, name)) == ["AlignmentCallback"]


def test_unknown_names():
    with pytest.raises(AttributeError, match=r"'theodolite\.integrations' has no .* 'comet'"):
        integrations.comet  # noqa: B018


def test_the_overhead_counts_the_page(tmp_path, monkeypatch):
    now = [0.0]
    budget = Budget(1.0, clock=lambda: now[0])
    written = History.to_html

    def slow(self, path):
        now[0] += 3.0
        return written(self, path)

    monkeypatch.setattr(History, "to_html", slow)
    torch.manual_seed(0)
    probe = torch.randn(8, 2), torch.arange(8) % 2
    watch = Watch(probe, folder=tmp_path / "run", families="kernel", budget=budget)
    watch.start(nn.Linear(2, 2))
    watch.step(0)
    now[0] += 10.0
    watch.finish()
    assert watch.overhead == 0.3


def test_a_report_that_cannot_be_written_does_not_end_the_training(tmp_path, full_disk):
    torch.manual_seed(0)
    watch = Watch((torch.randn(8, 2), torch.arange(8) % 2), folder=tmp_path, families="kernel")
    watch.start(nn.Linear(2, 2))
    watch.step(0)
    told = r"the report is not on disk: .*report\.html"
    with pytest.warns(UserWarning, match=told), full_disk(30_000):  # room for records, not a page
        assert watch.finish(1)
    assert not list(tmp_path.glob("*report.html*"))
