"""Surveys of these tests take all their examples, however slow the machine is."""

import pytest

from theodolite.surveys.progress import TimeBudget


@pytest.fixture(autouse=True)
def _enough_time(request, monkeypatch):
    """A time limit cuts examples only in the tests of time limits."""
    if request.path.name not in ("test_time.py", "test_transfer_time.py"):
        monkeypatch.setattr(TimeBudget, "left", property(lambda self: 100 * self.seconds))
