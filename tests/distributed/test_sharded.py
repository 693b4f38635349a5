"""Weights that are in parts in several processes are refused before anything runs."""

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import theodolite as th
from theodolite.errors import DomainError

X, Y = torch.randn(8, 4), torch.arange(8) % 2


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
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    return parallelize_module(model, mesh, {"0": ColwiseParallel()})


@pytest.mark.parametrize("make", [fully_sharded, parallel])
@pytest.mark.parametrize("call", [th.survey, th.tangent_kernels, th.gradient_alignment, th.Monitor])
def test_parts_of_weights_are_refused_in_one_sentence(mesh, make, call):
    words = r"expected whole weights in every process, got a part of '0.weight'.*state dict"
    with pytest.raises(DomainError, match=words):
        call(make(mesh), (X, Y))
