"""The model as it was found, in a mode that treats examples one by one; memory."""

import platform
import random
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn

import theodolite as th
from theodolite.engine.state import require_fixed_mode, untouched
from theodolite.errors import DomainError


def test_a_nested_guard_leaves_the_rest_to_the_outer_one():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    state = torch.get_rng_state()
    with untouched(model):
        with torch.no_grad(), untouched(model):
            assert torch.is_grad_enabled()
            model.eval()
            model[0].weight.grad = torch.ones(2, 2)
            torch.randn(3)
        assert not model[1].training
    assert model[1].training
    assert model[0].weight.grad is None
    assert torch.equal(torch.get_rng_state(), state)


def test_a_guard_of_another_model_notes_everything():
    outer, inner = nn.Sequential(nn.Dropout(0.5)), nn.Dropout(0.5)
    with untouched(outer):
        with untouched(inner):
            inner.eval()
        assert inner.training


FREE = {
    "batch norm in evaluation mode": nn.BatchNorm1d(2).eval(),
    "instance norm": nn.InstanceNorm1d(2).train(),
    "dropout in evaluation mode": nn.Dropout(0.5).eval(),
    "dropout of rate zero": nn.Dropout(0.0).train(),
    "group norm": nn.GroupNorm(1, 2).train(),
    "attention without dropout": nn.MultiheadAttention(2, 1).train(),
}
REFUSED = {
    "batch norm in training mode": (nn.BatchNorm1d(2), "training mode"),
    "batch norm without statistics": (
        nn.BatchNorm1d(2, track_running_stats=False).eval(),
        "no running statistics",
    ),
    "instance norm that tracks": (nn.InstanceNorm1d(2, track_running_stats=True), "update"),
    "dropout": (nn.Dropout(0.5), "at random"),
    "attention": (nn.MultiheadAttention(2, 1, dropout=0.1), "at random"),
    "recurrent": (nn.LSTM(2, 2, 2, dropout=0.1), "at random"),
}


@pytest.mark.parametrize("module", FREE.values(), ids=FREE)
def test_what_treats_examples_one_by_one_passes(module):
    require_fixed_mode(nn.Sequential(module))


@pytest.mark.parametrize(("module", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_is_refused(module, reason):
    with pytest.raises(DomainError, match=f"'0'.*{reason}"):
        require_fixed_mode(nn.Sequential(module))


def test_all_culprits_are_named_at_once():
    norms = [nn.BatchNorm1d(2) for _ in range(5)]
    model = nn.Sequential(*norms, nn.Dropout(0.5)).train()
    with pytest.raises(DomainError, match=r"'0', '1', '2' and 2 more.*; '5' drop out"):
        require_fixed_mode(model)
    assert torch.equal(norms[0].running_mean, torch.zeros(2))


PROCESS = """
import resource
import torch
from theodolite.engine.state import raise_trim_threshold

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept = [torch.zeros(2**20) for _ in range(5)]
    del kept
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

raise_trim_threshold()
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_freed_memory_is_found_again():
    # In a process of its own: here other tests have freed larger blocks already.
    ran = subprocess.run(
        [sys.executable, "-c", PROCESS], capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) < 2000  # of 5120 pages


class Writes(nn.Module):
    """Counts its passes, replaces an average, and draws a random number."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("average", torch.zeros(2))

    def forward(self, x):
        outputs = self.inner(x)
        self.count += 1
        self.average = 0.9 * self.average + 0.1 * outputs.detach().mean(0)
        self.register_buffer("cache", x.detach(), persistent=False)
        torch.rand(1)
        return outputs


@pytest.mark.parametrize("fails", [False, True])
def test_buffers_and_the_random_state_are_put_back(fails):
    model, x = Writes(), torch.randn(4, 3)
    before = {name: (tensor, tensor.clone()) for name, tensor in model.named_buffers()}
    state = torch.get_rng_state()

    def interrupt(outputs, batch):
        raise KeyError(outputs.shape)

    if fails:
        with pytest.raises(KeyError):
            th.tangent_kernels(model, x, readout=interrupt)
    else:
        th.tangent_kernels(model, x)
        th.gradient_alignment(model, x, torch.arange(4) % 2)
        th.features(model, x)
    assert dict(model.named_buffers()).keys() == before.keys()
    for name, tensor in model.named_buffers():
        assert tensor is before[name][0]
        assert torch.equal(tensor, before[name][1])
    assert torch.equal(torch.get_rng_state(), state)


def test_tables_whose_rows_are_shortened_are_put_back():
    table = nn.Embedding(5, 3, max_norm=0.1)
    model, before = nn.Sequential(table, nn.Flatten(), nn.Linear(6, 2)), table.weight.clone()
    th.features(model, torch.tensor([[0, 1], [2, 3]]))
    assert torch.equal(table.weight, before)


def test_random_states_of_python_and_numpy_are_put_back():
    with untouched(nn.Linear(2, 2)):
        drawn = random.random(), np.random.rand()  # noqa: NPY002
    assert (random.random(), np.random.rand()) == drawn  # noqa: NPY002


def test_attention_is_the_same_with_gradients_and_without():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)

    class Padded(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = nn.TransformerEncoder(layer, 1), nn.Linear(4, 2)

        def forward(self, x):
            padding = x[..., 0] < -0.5
            padding[:, 0] = False
            return self.head(self.inner(x, src_key_padding_mask=padding).mean(1))

    model, x = Padded().eval(), torch.randn(5, 3, 4)
    found = th.features(model, x, ["head"], read="raw")["head"]
    torch.testing.assert_close(found, torch.cat([model(row[None]) for row in x]).detach())


@pytest.mark.parametrize("fails", [False, True])
def test_recurrent_layers_run_without_cudnn_which_has_no_backward_pass_in_evaluation_mode(fails):
    model = nn.Sequential(nn.LSTM(2, 3)).eval()
    with suppress(ZeroDivisionError), untouched(model):
        assert not torch.backends.cudnn.enabled
        _ = 1 / (0 if fails else 1)
    assert torch.backends.cudnn.enabled
    with untouched(nn.Linear(2, 2)):
        assert torch.backends.cudnn.enabled


def test_an_exported_model_is_measured_and_its_layers_are_not_read():
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).eval(), torch.randn(6, 4)
    size = ({0: torch.export.Dim.DYNAMIC},)
    exported = torch.export.export(model, (x,), dynamic_shapes=size).module()
    torch.testing.assert_close(
        th.tangent_kernels(exported, x, outputs="trace").total,
        th.tangent_kernels(model, x, outputs="trace").total,
    )
    torch.testing.assert_close(th.features(exported, x, "")[""], model(x).detach())
    with pytest.raises(DomainError, match="expected layers that run"):
        th.features(exported, x)
