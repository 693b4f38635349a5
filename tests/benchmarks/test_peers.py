"""A peer that cannot run is a line in the table."""

import pytest
import torch
from torch import nn

from benchmarks.stopwatch import attempt
from benchmarks.tangent import agrees

PROBLEMS = {
    "missing": (ModuleNotFoundError("no peer", name="peer"), "not installed (peer)"),
    "broken": (ImportError("libpeer.so: no such file"), "failed: libpeer.so: no such file"),
    "operator": (RuntimeError("no such operator\nat line 3"), "failed: no such operator"),
    "silent": (AssertionError(), "failed: AssertionError"),
}


@pytest.mark.parametrize(("error", "told"), PROBLEMS.values(), ids=PROBLEMS)
def test_a_peer_that_cannot_run_is_a_line(error, told, capsys):
    def peer(*_):
        raise error

    attempt("peer", peer, "cpu", None)
    assert not agrees("peer", peer, nn.Linear(3, 2), torch.randn(5, 3))
    assert [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()] == [
        ["peer", told]
    ] * 2
