import pytest
import torch
from torch import nn

from theodolite.engine.state import require_fixed_mode
from theodolite.errors import DomainError

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
