"""A real offline run of Weights & Biases, read back from its log."""

import json
import struct
import time

import pytest

from theodolite.integrations.tracking import WandbTracker, scalars, track


@pytest.fixture
def run(tmp_path, monkeypatch):
    import wandb

    for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    settings = wandb.Settings(
        console="off", silent=True, x_disable_stats=True, x_disable_meta=True, disable_git=True
    )
    started = wandb.init(mode="offline", dir=str(tmp_path), project="test", settings=settings)
    yield started
    started.finish()


def chunks_of(log):
    """Payloads of a log in LevelDB's format: blocks of 32 KiB, records in one or more pieces."""
    position, parts = 7, []  # after the file's header
    while position + 7 <= len(log):
        if (room := 32768 - position % 32768) < 7:
            position += room
            continue
        _, length, kind = struct.unpack("<IHB", log[position : position + 7])
        if kind == 0:
            return
        parts.append(log[position + 7 : position + 7 + length])
        position += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield b"".join(parts)
            parts = []


def records_of(folder):
    """Everything in the log of the one run below a folder, as soon as it is complete."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.rglob("run-*.wandb")
    hopeless = time.monotonic() + 600
    while time.monotonic() < hopeless:  # a process of its own writes; finish does not wait for it
        records = []
        for chunk in chunks_of(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(chunk)
            records.append(record)
        if any(record.HasField("exit") for record in records):
            return records
        time.sleep(0.1)
    pytest.fail(f"the log has no end: {[r.WhichOneof('record_type') for r in records]}")


def logged(record):
    pairs = (
        (item.key or "/".join(item.nested_key), item.value_json) for item in record.history.item
    )
    return {key: json.loads(value) for key, value in pairs}


def test_scalars_and_report_come_back(tmp_path, run, small_history, report_file):
    run.log({"training/loss": 1.0}, step=7)  # the loop is ahead of the numbers that follow
    track(small_history.run, WandbTracker(run), report=report_file)
    run.finish()
    records = records_of(tmp_path)
    rows = [logged(r) for r in records if r.HasField("history")]
    by_step = {r["alignment/step"]: r for r in rows if "alignment/step" in r}
    for step in (0, 1, 2):
        expected = scalars(small_history.survey(step).record)
        assert {tag: by_step[step][tag] for tag in expected} == pytest.approx(expected)
    names = {r.request.log_artifact.artifact.name for r in records} | {
        r.artifact.name for r in records
    }
    assert "theodolite-report" in names
    axes = {r.metric.glob_name or r.metric.name: r.metric.step_metric for r in records}
    assert axes["kernel/*"] == "alignment/step"
    written = {item.key: item.value_json for r in records for item in r.config.update}
    assert json.loads(written["alignment"])["config.families"] == "kernel, gradient"
