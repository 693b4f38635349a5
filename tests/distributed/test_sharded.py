"""Shards of a model and its data: refused before anything runs, or the numbers of one process."""

import itertools

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import theodolite as th
from tests.distributed.forked import in_processes
from tests.survey.subjects import Reader
from theodolite.errors import DomainError
from theodolite.surveys import Budget

X, Y = torch.randn(8, 4), torch.arange(8) % 2
REFUSAL = r"expected whole weights in every process, got a part of '0.weight'.*state dict"


@pytest.fixture
def mesh():
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def fully_sharded(mesh):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    fully_shard(model, mesh=mesh)
    return model


def parallel(mesh):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    return parallelize_module(model, mesh, {"0": ColwiseParallel()})


@pytest.mark.parametrize("make", [fully_sharded, parallel])
@pytest.mark.parametrize("call", [th.survey, th.tangent_kernels, th.gradient_alignment, th.Monitor])
def test_parts_of_weights_are_refused_in_one_sentence(mesh, make, call):
    with pytest.raises(DomainError, match=REFUSAL):
        call(make(mesh), (X, Y))


def refusals(_rank):
    """Messages of every call for every way to shard."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    messages = []
    for make in (fully_sharded, parallel):
        for call in (th.survey, th.gradient_alignment):
            with pytest.raises(DomainError, match=REFUSAL) as error:
                call(make(mesh), (X, Y))
            messages.append(str(error.value))
    return messages


# Processes -> sequences of each: unequal, and none at all in one.
SHARES = {2: (7, 13), 4: (5, 0, 12, 3)}
FAMILIES = {
    "families": ["representation", "kernel", "gradient"],
    "sizes": {"representation": 30, "kernel": 20, "gradient": 20},
    "permutations": 0,
}


def sentences():
    """Twenty sequences of six tokens; the first label and those of token 7 do not count."""
    ids = torch.randint(0, 12, (20, 6), generator=torch.Generator().manual_seed(0))
    return ids, ids.where((torch.arange(6) > 0) & (ids != 7), -100)


def rows_of(model, data):
    contents = th.survey(model, data, **FAMILIES).record.contents
    assert contents["skipped"] == {}
    assert {row["family"] for row in contents["rows"]} >= set(FAMILIES["families"])
    return {(row["layer"], row["measure"]): row["value"] for row in contents["rows"]}


def wrapped(rank):
    """Rows of a survey of next-token prediction, with DDP around the model."""
    shares = SHARES[distributed.get_world_size()]
    ids, labels = (torch.split(part, shares)[rank] for part in sentences())
    model = nn.parallel.DistributedDataParallel(Reader().double())
    return rows_of(model, (ids, labels))


def watched(rank):
    """Steps that are measured where the first process alone has time to."""
    clock = (lambda: 0.0) if rank == 0 else itertools.count().__next__
    budget = Budget(0.01, clock=clock)
    with th.Monitor(Reader(), sentences(), every=1, families="kernel", budget=budget) as monitor:
        for step in range(3):
            monitor.step(step)
    return monitor.history.steps


def all_three(rank):
    return refusals(rank), wrapped(rank), watched(rank)


@pytest.mark.parametrize("size", SHARES)
def test_processes_refuse_parts_and_agree_on_whole_weights(size, tmp_path):
    found = in_processes(size, tmp_path, all_three)
    expected = rows_of(Reader().double(), sentences())
    for messages, rows, steps in found:
        assert messages == found[0][0]
        assert steps == [0, 1, 2]
        assert rows == pytest.approx(expected, rel=1e-6, abs=1e-9, nan_ok=True)
