"""A small run that adapters are tried with."""

import pytest
import torch
from torch import nn

from theodolite.surveys import Monitor


@pytest.fixture(scope="session")
def small_data():
    generator = torch.Generator().manual_seed(0)
    centers = 3 * torch.randn(3, 5, generator=generator)
    labels = torch.arange(48) % 3
    return centers[labels] + torch.randn(48, 5, generator=generator), labels


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture
def small_net():
    """Makes the same network every time it is called."""
    return build


@pytest.fixture(scope="session")
def small_history(small_data):
    """Three measured steps of a network that moves a little in between."""
    model = build()
    with Monitor(model, small_data, every=1, families=("kernel", "gradient")) as monitor:
        for step in range(3):
            monitor.step(step)
            with torch.no_grad():
                model[0].weight.mul_(1.5).add_(0.1 * step)
    return monitor.history


@pytest.fixture
def report_file(tmp_path):
    path = tmp_path / "drawn" / "report.html"
    path.parent.mkdir()
    path.write_text("<p>five angles</p>")
    return path
