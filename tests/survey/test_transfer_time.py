"""A ranking keeps its time limit: fewer examples for all models, and smaller tangent kernels."""

import time
from dataclasses import replace

import pytest
import torch
from torch import nn

import theodolite as th
from theodolite.records import Note
from theodolite.surveys import SurveyOptions, transfers
from theodolite.surveys.progress import Speed, TimeBudget
from theodolite.surveys.transfer_regressions import regressions_cost
from theodolite.surveys.transfer_time import Pace, Trial, chosen_examples, fewest_examples


def task(n=120, seed=0):
    """Two classes that the sign of a hidden direction tells apart, among eight inputs."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=generator)
    return x, (x[:, 0] + 0.5 * x[:, 1] > 0).long()


def good(width=6):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 2))


class Clock:
    """Seconds that pass when told."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("theodolite.surveys.progress.perf_counter", lambda: self.now)


def trial(example=0.0, cube=0.0, preparing=0.0, layers=(4000,), width=4000):
    return Trial(Speed(example, 0.0, cube), preparing, layers, width, 2)


def chosen(budget, *trials, rounds=1, most=2000, fewest=250, tangent=0):
    return chosen_examples(budget, trials, rounds, most, fewest, tangent)


@pytest.mark.parametrize(
    ("seconds", "count"), [(3.0, 2000), (2.0, 1000), (1.0, 500), (0.4, 250), (0.01, 250)]
)
def test_examples_are_halved_until_they_fit(monkeypatch, seconds, count):
    """A millisecond for each example fits into nine tenths of the time; 250 are the least."""
    Clock(monkeypatch)
    budget = TimeBudget(seconds, Speed(1.0, 0.0), begun=0.0)
    assert chosen(budget, trial(example=1e-3)) == count


def test_models_share_the_time_that_is_left(monkeypatch):
    clock = Clock(monkeypatch)
    budget = TimeBudget(10.0, Speed(1.0, 0.0), begun=0.0)
    assert chosen(budget, trial(example=1e-3), rounds=4) == 2000
    assert chosen(budget, trial(example=1e-3), rounds=6) == 1000
    assert chosen(budget, trial(example=1e-3), trial(example=3e-3), rounds=4) == 1000
    clock.now = 5.0
    assert chosen(budget, trial(example=1e-3), rounds=4) == 1000


def test_tangent_kernels_get_half_of_the_time(monkeypatch):
    Clock(monkeypatch)
    budget = TimeBudget(3.0, Speed(1.0, 0.0), begun=0.0)
    assert chosen(budget, trial(example=1e-3), tangent=400) == 1000


def test_decompositions_and_converting_examples_take_time(monkeypatch):
    Clock(monkeypatch)
    budget = TimeBudget(1.0, Speed(1.0, 0.0), begun=0.0)
    slow = trial(cube=1e-10, layers=())
    assert slow.seconds(2000, 0) == pytest.approx(0.8)
    assert slow.seconds(2000, 400) == pytest.approx(0.8 + 0.8 + 4 * 0.0064)
    assert chosen(budget, slow) == 2000
    assert chosen(budget, trial(cube=2e-10, layers=())) == 1000
    assert chosen(budget, trial(preparing=1e-3)) == 500


def test_an_odd_number_is_never_halved_below_the_fewest(monkeypatch):
    Clock(monkeypatch)
    budget = TimeBudget(0.01, Speed(1.0, 0.0), begun=0.0)
    assert chosen(budget, trial(example=1.0), most=700) == 350
    assert chosen(budget, trial(example=1.0), most=260) == 260


def test_narrow_features_cost_no_cube_of_the_examples():
    wide, narrow = (regressions_cost(2000, 0, [width], width, 2).cubes for width in (2000, 100))
    assert wide == 2000**3
    assert narrow == 2 * 2000 * 100**2


def test_the_fewest_examples_hold_two_of_each_class():
    labels = torch.zeros(1000, dtype=torch.long)
    labels[[300, 600]] = 1
    labels[999] = 2  # alone in any case
    assert fewest_examples(labels, 1000) == 601
    assert fewest_examples(labels[:500], 500) == 250
    assert fewest_examples(None, 1000) == 250
    assert fewest_examples(None, 100) == 100


def test_each_model_gets_its_part_of_the_time_that_is_left(monkeypatch):
    clock = Clock(monkeypatch)
    budget = TimeBudget(12.0, Speed(1.0, 0.0), begun=0.0)
    pace = Pace(budget, ("a", "b", "c"), 4.0, Speed(0.0, 0.0))
    assert pace.seconds("a") == 4.0
    clock.now = 2.0
    assert pace.seconds("b") == 5.0
    clock.now = 13.0
    assert pace.seconds("c") == 0.0
    assert replace(pace, names=None).seconds("c") == 4.0


def slow_models(monkeypatch, example):
    """Trials that find this many seconds for one example of a model."""
    found = trial(example=example, layers=(6,), width=6)
    monkeypatch.setattr(transfers, "_trial", lambda *_: found)
    return found


def test_all_models_use_the_same_fewer_examples_and_a_note_says_so(monkeypatch):
    slow_models(monkeypatch, 0.1)
    found = th.transfer({"a": good(), "b": good(12)}, task(1100), seconds=300.0)
    contents = found.record.contents
    assert contents["data"]["n"] == 1100
    assert contents["data"]["probe"] == 550
    assert [model["examples"] for model in contents["models"]] == [550, 550]
    (note,) = (note for note in contents["notes"] if note["note"] == Note.FEWER_EXAMPLES)
    assert note["facts"] == {"count": 550, "wanted": 1100, "seconds": 300.0}
    assert "All models use 550 of 1,100 examples, because of the limit of 300 s." in found.summary()
    few = th.transfer({"a": good()}, task(1100), tangent=False)
    kinds = {note["note"] for note in few.record.contents["notes"]}
    assert few.record.contents["data"]["probe"] == 1100
    assert Note.FEWER_EXAMPLES not in kinds


def test_trials_begin_with_the_largest_model(monkeypatch):
    """Small models first would leave no time to try the large one: all 1,100 would be used."""
    clock, tried = Clock(monkeypatch), []

    def slow(name, *_):
        tried.append(name)
        clock.now += 6.0
        return trial(example={"large": 0.4}.get(name, 1e-6), layers=(6,), width=6)

    monkeypatch.setattr(transfers, "_trial", slow)
    monkeypatch.setattr(transfers.time, "perf_counter", lambda: clock.now)
    models = {"small": good(), "middle": good(8), "large": good(20)}
    found = th.transfer(models, task(1100), tangent=False, seconds=100.0)
    assert tried == ["large", "middle"]
    assert found.record.contents["data"]["probe"] == 275


def test_models_that_were_not_tried_count_as_the_smallest_that_was(monkeypatch):
    clock = Clock(monkeypatch)
    pace = {name: trial(example=example) for name, example in (("a", 3.0), ("b", 1.0))}

    def slow(name, *_):
        clock.now += 6.0
        return pace[name]

    monkeypatch.setattr(transfers, "_trial", slow)
    work = transfers._Work(None, transfers.TransferOptions(), None, None)
    waiting = [("c", good(2)), ("d", good(1)), ("a", good(9)), ("b", good(8))]
    budget = TimeBudget(100.0, Speed(1.0, 0.0), begun=0.0)
    assert work._trials(budget, waiting, {}) == [pace["a"], pace["b"], pace["b"], pace["b"]]


def test_numbers_of_a_cut_regression_are_those_of_the_same_fewer_examples(monkeypatch):
    """The targets are scaled by the examples that are used, not by all that were given."""
    x, _ = task(1100)
    y = x[:, 0] + x[:, 1] ** 3
    slow_models(monkeypatch, 0.1)
    cut = th.transfer(good(), (x, y), seconds=150.0).record.contents
    assert cut["data"]["probe"] == 550
    whole = th.transfer(good(), (x, y), examples=550).record.contents
    areas = [
        [layer["alignment_area"] for layer in run["models"][0]["layers"]] for run in (cut, whole)
    ]
    assert areas[0] == areas[1]
    assert cut["models"][0]["error"] == whole["models"][0]["error"]


def test_models_of_an_earlier_run_decide_the_number_of_examples(monkeypatch, tmp_path):
    """A faster machine does not measure the other models on more examples."""
    options = {"seconds": 300.0, "folder": tmp_path / "run"}
    slow_models(monkeypatch, 0.2)
    th.transfer({"a": good()}, task(1100), **options)
    slow_models(monkeypatch, 1e-6)
    found = th.transfer({"a": good(), "b": good(12)}, task(1100), **options)
    assert {model["examples"] for model in found.record.contents["models"]} == {550}


def test_models_of_two_earlier_runs_are_compared_on_the_same_examples(monkeypatch, tmp_path):
    options = {"seconds": 300.0, "folder": tmp_path / "run"}
    slow_models(monkeypatch, 0.1)
    th.transfer({"a": good()}, task(1100), **options)
    slow_models(monkeypatch, 0.4)
    th.transfer({"b": good(12)}, task(1100), **options)
    found = th.transfer({"a": good(), "b": good(12)}, task(1100), **options)
    assert [model["examples"] for model in found.record.contents["models"]] == [275, 275]


def test_a_model_is_built_once(monkeypatch):
    built = []

    def make():
        built.append(1)
        return good()

    found = th.transfer([make, make], task(60), seconds=100.0)
    assert len(built) == 2
    assert len(found.names) == 2


def test_workers_get_their_parts_of_the_time():
    models = {"a": good(), "b": good(12)}
    found = th.transfer(models, task(60), seconds=200.0, workers=2)
    kinds = {note["note"] for m in found.record.contents["models"] for note in m["notes"]}
    assert len(found.names) == 2
    assert Note.BEYOND_SECONDS not in kinds


def test_a_model_that_fails_its_trial_is_named_among_the_problems():
    class Broken(nn.Module):
        def forward(self, x):
            raise ValueError("broken")

    found = th.transfer({"bad": Broken(), "good": good()}, task(60), seconds=100.0)
    assert list(found.record.contents["problems"]) == ["bad"]
    assert found.names == ["good"]


def test_a_trial_reads_speed_and_sizes_and_restores_the_model():
    model = good().train()
    options = transfers.TransferOptions()
    survey_options = SurveyOptions(families="representation", seconds=None)
    probe = transfers.draw_probe(task(60), survey_options)
    found = transfers._trial("a", model, probe, options, None)
    assert (found.layers, found.width, found.columns) == ((6,), 6, 2)
    assert min(found.speed.example, found.speed.product, found.speed.cube) > 0
    assert model.training


def test_seconds_shorten_the_tangent_kernel_and_say_so(monkeypatch):
    sizes = []
    whole = transfers.body_kernel

    def slow(body, rows, examples, *rest, **options):
        sizes.append(len(examples.batch))
        time.sleep(2e-4 * len(examples.batch) ** 2)
        return whole(body, rows, examples, *rest, **options)

    monkeypatch.setattr(transfers, "body_kernel", slow)
    found = th.transfer(good(), task(200), seconds=1.0)
    model = found.record.contents["models"][0]
    assert sizes[0] == 20
    assert model["tangent"]["n"] == sizes[-1] < 200
    (note,) = (note for note in model["notes"] if note["note"] == Note.FEWER_FOR_SECONDS)
    assert note["facts"] == {"count": sizes[-1], "wanted": 200, "seconds": 1.0}
    sizes.clear()
    th.transfer(good(), task(60))
    assert sizes == [60]


@pytest.mark.parametrize(("seconds", "late"), [(1e-3, True), (1000.0, False), (None, False)])
def test_a_limit_of_time_that_was_not_kept_is_said_once(seconds, late):
    x, y = task(60)
    found = th.transfer([good(), good()], (x, y), seconds=seconds)
    kinds = [[note["note"] for note in model["notes"]] for model in found.record.contents["models"]]
    assert [Note.BEYOND_SECONDS in kind for kind in kinds] == [late, late]
    assert found.summary().count("Took longer than the limit of 0.001 s") == int(late)


def test_a_limit_that_only_the_whole_ranking_passed_is_said_once(monkeypatch):
    """Starting processes belongs to no model."""
    start = transfers.run_in_processes

    def slow(*args, **options):
        time.sleep(1.5)
        return start(*args, **options)

    monkeypatch.setattr(transfers, "run_in_processes", slow)
    monkeypatch.setattr(transfers.Pace, "seconds", lambda *_: 1000.0)  # no model is late
    found = th.transfer([good(), good()], task(60), seconds=1.0)
    kinds = [note["note"] for note in found.record.contents["notes"]]
    assert kinds.count(Note.BEYOND_SECONDS) == 1
    assert found.summary().count("Took longer than the limit of 1 s") == 1


def test_a_slow_start_does_not_shorten_the_tangent_kernel(monkeypatch):
    """Twenty examples take as long as more of them, so the kernel grows step by step."""
    sizes = []
    whole = transfers.body_kernel

    def overhead(body, rows, examples, *rest, **options):
        sizes.append(len(examples.batch))
        time.sleep(0.3)
        return whole(body, rows, examples, *rest, **options)

    monkeypatch.setattr(transfers, "body_kernel", overhead)
    found = th.transfer(good(), task(200), seconds=10.0)
    model = found.record.contents["models"][0]
    assert sizes[0] == 20 < sizes[1] < sizes[-1] == model["tangent"]["n"] == 200
    assert Note.FEWER_FOR_SECONDS not in {note["note"] for note in model["notes"]}


def test_the_last_regressions_leave_less_time_for_tangent_kernels(monkeypatch):
    x, y = task(60)
    counts = []
    for cube in (0.0, 1e6):
        monkeypatch.setattr(transfers, "_trial", lambda *_, cube=cube: trial(cube=cube))
        found = th.transfer(good(), (x, y), seconds=1000)
        counts.append(found.record.contents["models"][0]["tangent"]["n"])
    assert counts == [60, 20]
