"""Surveys end in time, say what they cut, and return what is there when they are interrupted."""

from dataclasses import replace

import pytest
import torch

import theodolite as th
from tests.survey.subjects import blobs, cnn, images, mlp
from theodolite.errors import DomainError
from theodolite.records import Note
from theodolite.surveys import SurveyOptions, draw_probe
from theodolite.surveys.context import SurveyContext
from theodolite.surveys.families import PARTS
from theodolite.surveys.kernel import measure_kernel
from theodolite.surveys.progress import Cost, Speed, TimeBudget


class Clock:
    """Seconds that pass when told."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("theodolite.surveys.progress.perf_counter", lambda: self.now)


def linear(n):
    return Cost((float(n),))


def test_as_many_examples_as_fit_into_the_share(monkeypatch):
    clock = Clock(monkeypatch)
    budget = TimeBudget(30.0, Speed(example=0.1, product=0.0), begun=0.0)
    assert budget.examples(linear, most=1000, fewest=16, share=0.5) == 150
    assert budget.examples(linear, most=100, fewest=16, share=0.5) == 100
    clock.now = 20.0
    assert budget.examples(linear, most=1000, fewest=16, share=0.5) == 50


def test_never_fewer_than_give_an_error_bar(monkeypatch):
    clock = Clock(monkeypatch)
    budget = TimeBudget(30.0, Speed(example=0.5, product=0.0), begun=0.0)
    clock.now = 29.0
    assert budget.examples(linear, most=1000, fewest=16, share=0.5) == 16
    clock.now = 44.0  # beyond half as much again
    assert budget.examples(linear, most=1000, fewest=16, share=0.5) is None


def test_what_stages_took_corrects_what_is_expected(monkeypatch):
    Clock(monkeypatch)
    budget = TimeBudget(30.0, Speed(example=0.1, product=0.0), begun=0.0)
    budget.learn(linear(10), seconds=3.0)  # three times as long as expected
    assert budget.examples(linear, most=1000, fewest=16, share=0.5) == 50


def test_parts_that_read_features_take_fewer_rows_after_a_slow_pass(monkeypatch):
    """What the pass took beyond its time is not taken from gradients and tangent kernels."""
    speed = Speed(2e-3, 4e-10)
    monkeypatch.setattr(Speed, "measured", classmethod(lambda cls, *_: speed))
    now, collect = [0.0], SurveyContext.collect_features
    for module in ("progress", "run"):
        monkeypatch.setattr(f"theodolite.surveys.{module}.perf_counter", lambda: now[0])

    def slowly(context):
        collect(context)
        now[0] += 9.9

    families = ["representation", "kernel"]
    quick = th.survey(mlp(), blobs(600), families=families, permutations=2, seconds=30)
    monkeypatch.setattr(SurveyContext, "collect_features", slowly)
    found = th.survey(mlp(), blobs(600), families=families, permutations=2, seconds=30)
    sizes = [r.record.contents["config"]["sizes"]["representation"] for r in (quick, found)]
    assert sizes[0] == 2000
    assert 32 <= sizes[1] < 600
    assert "of 600 examples for representation" in found.record.contents["cut"]["text"]


def test_slow_small_steps_say_nothing_of_passes(monkeypatch):
    """A family that reads features and is slow does not take others' examples."""
    speed, measure = Speed(1e-3, 1e-10), measure_kernel
    monkeypatch.setattr(Speed, "measured", classmethod(lambda cls, *_: speed))
    now = [0.0]
    for module in ("progress", "run"):
        monkeypatch.setattr(f"theodolite.surveys.{module}.perf_counter", lambda: now[0])

    def slowly(context, record):
        measure(context, record)
        now[0] += 8.0

    parts = tuple(
        replace(part, measure=slowly) if part.measure is measure else part for part in PARTS
    )
    monkeypatch.setattr("theodolite.surveys.run.PARTS", parts)
    families = ["kernel", "gradient"]
    found = th.survey(mlp(), blobs(300), families=families, permutations=2, seconds=30)
    assert found.record.contents["config"]["sizes"]["gradient"] == 1000


def slow(monkeypatch, example):
    speed = Speed(example, 1e-12)
    monkeypatch.setattr(Speed, "measured", classmethod(lambda cls, *_: speed))


def test_the_cut_is_one_line_with_the_argument_that_lifts_it(monkeypatch):
    slow(monkeypatch, 0.05)
    found = th.survey(mlp(), blobs(600), families=["kernel", "gradient"], permutations=2)
    contents = found.record.contents
    cut, few = contents["cut"], contents["config"]["sizes"]["gradient"]
    assert cut["text"].startswith("To end within 30 s, the survey used ")
    assert (cut["note"], cut["facts"]["limit"]) == (Note.CUT, 30.0)
    assert cut["facts"]["parts"]["gradient"] == [few, 600]
    assert cut["text"] in found.summary()
    assert contents["config"]["sizes"]["gradient"] < 600
    assert "up to 600 examples, classification" in found.summary()
    free = th.survey(mlp(), blobs(600), families="gradient", permutations=2, seconds=None)
    assert free.record.contents["cut"] is None
    assert free.estimate("omega", "0").value != found.estimate("omega", "0").value


@pytest.mark.parametrize(("factor", "kept"), [(0.5, False), (100.0, True)])
def test_few_examples_are_tried_before_a_long_family(monkeypatch, factor, kept):
    """A family that turns out slower than expected keeps the few examples of its trial."""
    slow(monkeypatch, 0.01)
    # The pass that collects features goes as expected.
    monkeypatch.setattr(
        TimeBudget,
        "learn",
        lambda self, cost, seconds: setattr(self, "_slower", factor if cost.products else 1.0),
    )
    found = th.survey(mlp(), blobs(600), families="gradient", permutations=0)
    counts = {row["n"] for row in found.record.contents["rows"] if row["measure"] == "omega"}
    assert (counts == {32}) == kept
    assert len(counts) == 1


def test_sizes_that_are_named_are_kept(monkeypatch):
    slow(monkeypatch, 0.01)
    found = th.survey(
        mlp(), blobs(600), families=["kernel", "gradient"], sizes={"gradient": 300}, permutations=2
    )
    rows = found.record.contents["rows"]
    assert {row["n"] for row in rows if row["measure"] == "omega"} == {300}


def test_a_family_that_takes_too_long_says_what_to_pass(monkeypatch):
    slow(monkeypatch, 10.0)
    found = th.survey(mlp(), blobs(), families=["representation", "tangent"], permutations=0)
    assert "tangent" not in set(found.to_frame().family)
    assert "16 examples would take about" in found.record.contents["skipped"]["tangent"]
    assert "seconds=" in found.record.contents["skipped"]["tangent"]


def test_an_interrupt_returns_what_is_there(tmp_path):
    def stop(_done, what):
        if what.startswith("tangent"):
            raise KeyboardInterrupt

    found = th.survey(mlp(), blobs(), progress=stop, permutations=2)
    contents = found.record.contents
    assert contents["skipped"] == {"tangent": "interrupted before it was measured"}
    assert {"representation", "covariance", "kernel", "gradient"} <= set(found.to_frame().family)
    found.save(tmp_path / "run")
    assert th.load(tmp_path / "run").layers == ["0", "2", "4"]


def test_an_interrupt_before_the_first_number_is_an_interrupt():
    def stop(_done, what):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        th.survey(mlp(), blobs(), progress=stop)


def test_a_log_gets_lines_with_results_as_they_come(capfd):
    th.survey(mlp(), blobs(), families="kernel", permutations=0, progress=True)
    lines = capfd.readouterr().err.splitlines()
    assert any("kernel: CKA to labels" in line and "in 3 layers" in line for line in lines)
    assert all(line.startswith("theodolite ") for line in lines)
    th.survey(mlp(), blobs(), families="kernel", permutations=0)  # quick: nothing to say
    assert capfd.readouterr().err == ""


def test_headlines_have_an_error_by_default():
    found = th.survey(cnn(), images())
    for measure in ("alignment_area", "cka_target", "tangent_alignment", "omega_contrast"):
        assert found.estimate(measure, "0").error > 0, measure


@pytest.mark.parametrize("seconds", [0, -1.0])
def test_time_is_positive(seconds):
    with pytest.raises(DomainError, match="seconds"):
        th.survey(mlp(), blobs(), seconds=seconds)


def test_a_speed_is_measured():
    speed = Speed.measured(mlp(), th.engine.Batch((torch.randn(20, 6),)))
    assert 0 < speed.example < 10
    assert 0 < speed.product < 1e-3


def test_a_slow_stream_is_read_for_a_quarter_of_the_time(monkeypatch):
    clock = Clock(monkeypatch)
    monkeypatch.setattr("theodolite.surveys.probe.perf_counter", lambda: clock.now)
    x, y = blobs(600)
    read = []

    def stream():
        for start in range(0, 600, 20):
            clock.now += 1.0
            read.append(start)
            yield x[start : start + 20], y[start : start + 20]

    options = SurveyOptions(families="covariance", seconds=30.0)
    probe = draw_probe(stream(), options)
    assert (len(probe), probe.complete, len(read)) == (160, False, 9)
    assert draw_probe(stream(), SurveyOptions(seconds=None)).given == 600


def test_covariances_of_data_that_take_long_to_read_are_of_the_probe_set(monkeypatch):
    class Slow(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from zip(*blobs(600), strict=True)

    loader = torch.utils.data.DataLoader(Slow(), batch_size=20)
    monkeypatch.setattr("theodolite.surveys.probe._READING", 1e-9)
    found = th.survey(mlp((6, 16, 3)), loader, families="covariance")
    contents = found.record.contents
    assert contents["data"]["n"] == contents["config"]["sizes"]["covariance"] == 20
    assert any("the others were not read" in warning["text"] for warning in contents["warnings"])


def test_a_monitor_keeps_the_time_and_the_memory_of_its_options(monkeypatch):
    def measured(**limits):
        monitor = th.Monitor(mlp(), blobs(600), families="kernel", options=limits)
        return monitor.measure(0).record.contents

    slow(monkeypatch, 0.3)
    assert measured(seconds=30.0)["cut"]["text"].startswith(
        "To end within 30 s, the survey used 32 of 100 examples for kernel"
    )
    assert {row["n"] for row in measured(memory_limit=10**5)["rows"]} < set(range(100))


def test_sizes_that_differ_from_the_defaults_are_named():
    assert SurveyOptions().named_sizes == SurveyOptions.monitor().named_sizes == set()
    assert SurveyOptions(sizes={"gradient": 50}).named_sizes == {"gradient"}
    assert SurveyOptions.monitor(sizes={"gradient": 60}).named_sizes == {"gradient"}
