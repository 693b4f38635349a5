"""A real event file, read back."""

import pytest

from theodolite.integrations.tracking import TensorBoardTracker, scalars, track


def test_scalars_and_report_come_back(tmp_path, small_history, report_file):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = TensorBoardTracker(tmp_path / "logs")
    track(small_history.run, tracker, report=report_file)
    tracker.close()
    events = EventAccumulator(str(tmp_path / "logs"), size_guidance={"scalars": 0})
    events.Reload()
    sent = {step: scalars(small_history.survey(step).record) for step in (0, 1, 2)}
    tags = set().union(*sent.values())
    assert set(events.Tags()["scalars"]) == tags
    for tag in tags:
        read = {event.step: event.value for event in events.Scalars(tag)}
        written = {step: values[tag] for step, values in sent.items() if tag in values}
        assert read == pytest.approx(written, rel=1e-6)
    assert (tmp_path / "logs" / "report.html").read_text() == report_file.read_text()
    assert "theodolite/report/text_summary" in events.Tags()["tensors"]
    (settings,) = events.Tensors("theodolite/parameters/text_summary")
    assert b"    config.families = kernel, gradient" in settings.tensor_proto.string_val[0]
