"""Collectives under torch's fake process group: the code of NCCL runs without other processes.

Every exchange of the fake group gives back what this process sent, at once. Where there is a GPU
the tensors travel on it, as NCCL needs them.
"""

import pytest
import torch
from torch import distributed

import theodolite
from tests.survey.subjects import blobs, mlp
from theodolite._distributed import Processes, alike
from theodolite.errors import CaptureError, DomainError

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU"))]  # fmt: skip


@pytest.fixture(params=DEVICES)
def device(request, monkeypatch):
    """A group of two, of which this process is the first; on a GPU it is taken for NCCL."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    spread, sent = Processes.spread, []

    def spread_back(self, value, source=0):
        """A broadcast from the other process brings what this one sent last."""
        if source == self.rank:
            sent[:] = [value]
        return spread(self, *sent, self.rank)

    monkeypatch.setattr(Processes, "spread", spread_back)
    if request.param == "cuda":
        monkeypatch.setattr(distributed, "get_backend", lambda group=None: "nccl")
    yield torch.device(request.param)
    distributed.destroy_process_group()


def test_every_exchange_runs_on_the_device_of_the_backend(device):
    processes = Processes.of("auto")
    assert (processes.rank, processes.size) == (0, 2)
    assert processes._device.type == device.type
    sent = torch.arange(6.0, device=device).reshape(2, 3)
    for total in (processes.sum(sent), processes.sum(sent, to=0)):
        assert total.device.type == device.type
        assert torch.equal(total, sent)
    halves = processes.collect(sent.half(), 0)
    assert [part.dtype for part in halves] == [torch.float16] * 2
    assert torch.equal(halves[0], sent.half())
    assert processes.gather({"rank": 0}) == [{"rank": 0}] * 2
    assert processes.spread("word") == "word"
    with alike(mlp().to(device), processes):
        pass


def test_a_failure_is_agreed_on_and_raised_as_it_is(device):
    processes = Processes.of("auto")
    with pytest.raises(CaptureError, match="lost"), processes.together():
        raise CaptureError("lost")
    with pytest.raises(DomainError, match="wrong"), processes.together():
        raise DomainError("wrong")


def test_a_survey_and_a_monitor_run_to_their_end(device, tmp_path):
    model = mlp().to(device)
    found = theodolite.survey(model, blobs(), permutations=2)
    assert {row["family"] for row in found.record.contents["rows"]} >= {"kernel", "gradient"}
    assert found.record.contents["config"]["processes"] == 2
    with theodolite.Monitor(
        model, blobs(), every=1, families="kernel", folder=tmp_path / "run"
    ) as monitor:
        for step in range(2):
            monitor.step(step)
    assert theodolite.load(tmp_path / "run").steps == [0, 1]


def test_metrics_are_summed(device):
    metric = theodolite.metrics.TargetCKA(num_classes=3).to(device)
    metric.update(torch.randn(20, 3, device=device), torch.arange(20, device=device) % 3)
    assert torch.isfinite(metric.compute())
