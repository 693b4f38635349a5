"""Runs that were not closed: of every family what was measured last, and when."""

import pytest

import theodolite as th
from tests.survey.subjects import blobs, mlp
from theodolite.records import FAMILIES, latest_numbers


@pytest.fixture(scope="module")
def unfinished():
    """Eleven measurements, the last complete one at step 80, as after a crash."""
    monitor = th.Monitor(mlp(), blobs(), every=10)
    for step in range(0, 101, 10):
        monitor.step(step)
    return monitor.history


def test_summary_shows_every_family_at_the_last_step_that_took_it(unfinished):
    _, table = unfinished.summary().split("\n\n", 1)
    title, _, heads, steps, *lines = table.splitlines()
    assert title == "step 100, the last of 11 measured steps"
    assert heads.startswith("layer")
    taken = dict(zip(FAMILIES, steps.split()[2:], strict=True))
    assert steps.startswith("at step")
    late = dict.fromkeys(("covariance", "kernel"), "100")
    assert taken == late | dict.fromkeys(("representation", "tangent", "gradient"), "80")
    name, area, misalignment, *cells = lines[0].split()
    full, last = unfinished.survey(80), unfinished.survey(100)
    assert misalignment == "undefined"  # the layer has too few filters
    assert area == f"{full.estimate('alignment_area', name).value:.3g}"
    expected = [
        last.estimate("cka_target", name),
        full.estimate("tangent_alignment", name),
        full.estimate("feature_omega_contrast", name),
    ]
    assert cells == [f"{estimate.value:.3g}" for estimate in expected]
    assert "not measured" not in unfinished.summary()


def test_summary_of_a_finished_run_names_one_step():
    with th.Monitor(mlp(), blobs(), every=1) as monitor:
        for step in range(3):
            monitor.step(step)
    history = monitor.history
    assert "at step" not in history.summary()
    assert latest_numbers(history.run).record.contents == history.run.steps[-1].contents


def test_newer_numbers_of_a_family_that_rests_win(unfinished):
    latest = latest_numbers(unfinished.run)
    rows = latest.record.contents["rows"]
    names = [(row["layer"], row["family"], row["measure"]) for row in rows]
    assert len(set(names)) == len(names)
    found = {(row["layer"], row["measure"]): row["value"] for row in rows}
    assert found[None, "loss"] == unfinished.survey(100).estimate("loss").value
    assert found[None, "omega"] == unfinished.survey(80).estimate("omega").value
    assert latest.earlier == {80: ["representation", "tangent", "gradient"]}


def test_a_family_that_never_applied_says_why():
    monitor = th.Monitor(mlp(), blobs()[0], every=1)
    for step in range(3):
        monitor.step(step)
    summary = monitor.history.summary()
    assert "tangent: not measured, the data have no targets" in summary
    assert "one measurement in" not in summary


def test_of_true_labels_too():
    x, y = blobs()
    monitor = th.Monitor(mlp(), (x, y.roll(1)), every=1, truth=y)
    for step in range(2):
        monitor.step(step)
    _, table = monitor.history.summary().split("\n\n", 1)
    _, _, heads, steps, *_ = table.splitlines()
    assert heads.endswith("to truth")
    taken = dict(zip(["linear probe", *FAMILIES, "truth"], steps.split()[2:], strict=True))
    assert taken["truth"] == taken["kernel"] == "1"
    assert taken["gradient"] == "0"
