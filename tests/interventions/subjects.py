"""Data and networks for initialisation from data."""

import torch
from torch import nn

from tests.reference import interventions as reference
from theodolite import interventions
from theodolite.engine import input_moments


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def low_rank(d=6, rank=3, seed=1):
    factor = torch.randn(d, rank, generator=seeded(seed), dtype=torch.float64)
    return factor @ factor.T


def correlated_images(n=40, channels=2, size=7):
    """Neighbouring pixels alike, with means that differ by channel."""
    noise = torch.randn(n, channels, size, size, generator=seeded(3), dtype=torch.float64)
    smooth = nn.functional.avg_pool2d(noise, 3, stride=1, padding=1)
    return smooth + torch.arange(channels).view(1, -1, 1, 1)


def small_cnn(**options):
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(45, 3)
    )
    return interventions.initialize_(net.double(), "he", generator=seeded(), **options)


class Named(nn.Module):
    """Registered in another order than run, with a batch norm and a bias that is not zero."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.second = nn.Conv2d(3, 4, 3, padding=1, stride=2)
        self.norm = nn.BatchNorm2d(3)
        self.first = nn.Conv2d(2, 3, 3, padding=1)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        return self.head(torch.relu(self.second(x)).mean((2, 3)))


def require_running_order(init):
    """Fill a network registered in reverse; the second layer must see the new first one."""
    torch.manual_seed(0)
    images, net = correlated_images().float(), Named()
    net.first.bias.data.fill_(1.0)
    head, norms = net.head.weight.clone(), net.second.weight.norm()
    init(net, images, tau="f1", generator=seeded())
    assert net.training
    assert net.norm.num_batches_tracked == 0
    assert not net.first.bias.any()
    assert torch.equal(net.head.weight, head)
    assert torch.allclose(net.second.weight.norm(), norms)
    data = input_moments(net.eval(), images, ["second"])["second"].covariance()
    _, vectors = reference.eigenvectors(data.numpy())
    leading = torch.from_numpy(vectors[:, :4].copy()).float()
    rows = net.second.weight.detach().flatten(1)
    # Filters lie in the span of the four leading directions of what this layer sees now.
    assert torch.allclose(rows @ leading @ leading.T, rows, atol=1e-4 * norms.item())
