"""Work in a stream of its own: what waits for what, told by streams that only write it down."""

from contextlib import contextmanager
from functools import lru_cache

import pytest
import torch

from theodolite.engine import state
from theodolite.engine.state import SideStream

BEFORE, AFTER = "side waits for main", "main waits for side"


@pytest.fixture
def done(monkeypatch):
    """What streams were told, in order."""
    told = []

    class Stream:
        def __init__(self, device, priority=0):
            self.name = "side" if priority else "main"
            told.append(f"new {self.name}")

        def wait_stream(self, other):
            told.append(f"{self.name} waits for {other.name}")

    @contextmanager
    def inside(stream):
        told.append(f"in {stream.name}")
        yield

    main = Stream(None)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", inside)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(state, "_side_stream", lru_cache(state._side_stream.__wrapped__))
    told.clear()
    return told


def test_work_aside_waits_for_what_was_asked_before_and_is_waited_for(done):
    aside = SideStream(torch.device("cuda"))
    done.append("products")
    with aside.work():
        done.append("check")
    assert done == ["new side", BEFORE, "products", "in side", "check", AFTER]


def test_work_that_fails_is_waited_for_too(done):
    aside = SideStream(torch.device("cuda"))
    with pytest.raises(ValueError, match="in the check"), aside.work():
        raise ValueError("in the check")
    assert done[-1] == AFTER


def test_there_is_one_stream_for_all_work_aside(done):
    for _ in range(3):
        with SideStream(torch.device("cuda")).work():
            pass
    assert done == ["new side", *[BEFORE, "in side", AFTER] * 3]


def test_elsewhere_work_is_done_when_it_is_asked_for(done):
    with SideStream(torch.device("cpu")).work():
        done.append("check")
    assert done == ["check"]
