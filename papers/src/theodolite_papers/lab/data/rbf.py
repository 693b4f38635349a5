"""Gaussian bumps as features: fixed on the training points, or trained as a small network."""

from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theodolite.checks import (
    require_axes,
    require_count,
    require_finite,
    require_nonempty,
    require_positive,
    require_same_length,
)
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import array_function, double

__all__ = ["RBFNetwork", "fit_rbf_network", "median_distance", "rbf_features"]

_MOST_ROWS = 2000  # rows whose pairwise distances are looked at
_CENTER_NOISE = 0.01  # of the bandwidth, where there are more units than rows
_OUTPUT_SCALE = 0.01
_LEARNING_RATE = 1e-2
_BATCH = 64


@array_function
def rbf_features(
    inputs: Float[Tensor, "n m"], centers: Float[Tensor, "d m"], bandwidth: float = 1.0
) -> Float[Tensor, "n d"]:
    r"""Gaussian features around given centres.

    .. math:: \phi_j(x) = \exp\!\left(-\frac{\|x - c_j\|^2}{2h^2}\right)

    On its own centres the matrix is symmetric with unit diagonal and, for distinct points, positive
    definite: it can fit any labels, and is extremely ill-conditioned.

    Args:
        inputs: flattened images, usually of unit length.
        centers: :math:`c_j`; all training points in the paper, also for test inputs.
        bandwidth: :math:`h`.

    Raises:
        ShapeError: If inputs and centres differ in width.

    Example:
        >>> rbf_features(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0]]))
        tensor([[1.0000],
                [0.6065]])

    References:
        [imani2022], section 6; the 2 in the exponent is our reading.
    """
    require_axes(2, inputs=inputs, centers=centers)
    require_nonempty(inputs=inputs, centers=centers)
    require_finite(inputs=inputs, centers=centers)
    require_positive(bandwidth=bandwidth)
    if inputs.shape[1] != centers.shape[1]:
        raise ShapeError(
            f"expected inputs and centers of one width, got {inputs.shape[1]} and "
            f"{centers.shape[1]}"
        )
    return torch.exp(-_squared_distances(double(inputs), double(centers)) / (2 * bandwidth**2))


def _squared_distances(x: Tensor, c: Tensor) -> Tensor:
    shift = c.mean(0)  # a common offset would cost digits
    x, c = x - shift, c - shift
    squares = x.square().sum(1, keepdim=True) + c.square().sum(1) - 2 * x @ c.mT
    return squares.clamp(min=0)


def median_distance(
    inputs: Float[Tensor, "n m"], generator: torch.Generator | None = None
) -> float:
    """Median distance between two rows; beyond 2000 rows, of 2000 random ones.

    Raises:
        DomainError: If the median is 0: most rows are equal.

    Example:
        >>> median_distance(torch.tensor([[0.0], [3.0], [4.0]]))
        3.0
    """
    require_axes(2, inputs=inputs)
    require_finite(inputs=inputs)
    rows = double(inputs)
    if len(rows) > _MOST_ROWS:
        rows = rows[torch.randperm(len(rows), generator=generator)[:_MOST_ROWS].to(rows.device)]
    median = torch.nn.functional.pdist(rows).median().item() if len(rows) > 1 else 0.0
    if not median > 0:
        raise DomainError("inputs: expected rows that differ, got a median distance of 0")
    return median


class RBFNetwork(nn.Module):
    r"""Trainable Gaussian units and a linear output with bias.

    .. math:: f(x) = b + \sum_j w_j \exp\!\left(-\frac{\|x - c_j\|^2}{2h^2}\right)

    Args:
        centers: where the units start.
        bandwidth: :math:`h`, fixed.
        outputs: number of outputs.
        generator: source of randomness of the small output weights.

    References:
        [imani2022], Figure 1.
    """

    def __init__(
        self,
        centers: Float[Tensor, "d m"],
        bandwidth: float,
        outputs: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        require_axes(2, centers=centers)
        require_positive(bandwidth=bandwidth)
        require_count(1, outputs=outputs)
        self.bandwidth = bandwidth
        self.centers = nn.Parameter(centers.clone())
        self.output = nn.Linear(len(centers), outputs, dtype=centers.dtype)
        with torch.no_grad():
            self.output.weight.normal_(0.0, _OUTPUT_SCALE, generator=generator)
            self.output.bias.zero_()

    def features(self, inputs: Float[Tensor, "n m"]) -> Float[Tensor, "n d"]:
        """Outputs of the Gaussian units."""
        return torch.exp(-_squared_distances(inputs, self.centers) / (2 * self.bandwidth**2))

    def forward(self, inputs: Float[Tensor, "n m"]) -> Float[Tensor, "n outputs"]:
        """Prediction."""
        return self.output(self.features(inputs))


def fit_rbf_network(
    inputs: Float[Tensor, "n m"],
    targets: Float[Tensor, "n *c"],
    units: int,
    epochs: int = 60,
    relative_bandwidth: float = 0.5,
    generator: torch.Generator | None = None,
) -> RBFNetwork:
    """Train centres and output of an RBF network on the squared loss with Adam.

    Centres start on random training rows (with a little noise where there are more units than
    rows); the bandwidth is a multiple of the median distance between rows.

    Args:
        inputs: training inputs.
        targets: one or several regression targets.
        units: number of Gaussian units.
        epochs: passes over the data.
        relative_bandwidth: bandwidth in units of the median distance.
        generator: source of randomness.

    Example:
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
        >>> network = fit_rbf_network(x, x[:, 0], 8, generator=torch.Generator().manual_seed(0))
        >>> network.features(x).shape
        torch.Size([20, 8])

    References:
        [imani2022], Figure 1; bandwidth, optimiser and starting centres are ours.
    """
    require_same_length(inputs=inputs, targets=targets)
    require_finite(inputs=inputs, targets=targets)
    require_count(1, units=units, epochs=epochs)
    bandwidth = relative_bandwidth * median_distance(inputs, generator)
    y = targets.reshape(len(inputs), -1)
    centers = _starting_centers(inputs, units, bandwidth, generator)
    network = RBFNetwork(centers, bandwidth, y.shape[1], generator).to(inputs.device)
    optimizer = torch.optim.Adam(network.parameters(), lr=_LEARNING_RATE)
    for _ in range(epochs):
        order = torch.randperm(len(inputs), generator=generator).to(inputs.device)
        for rows in torch.split(order, _BATCH):
            optimizer.zero_grad()
            (network(inputs[rows]) - y[rows]).square().sum(1).mean().backward()
            optimizer.step()
    return network


def _starting_centers(
    inputs: Tensor, units: int, bandwidth: float, generator: torch.Generator | None
) -> Tensor:
    rows = torch.cat(
        [torch.randperm(len(inputs), generator=generator) for _ in range(-(-units // len(inputs)))]
    )[:units]
    centers = inputs[rows.to(inputs.device)]
    if units <= len(inputs):
        return centers
    noise = torch.randn(centers.shape, generator=generator, dtype=centers.dtype)
    scale = _CENTER_NOISE * bandwidth / sqrt(inputs.shape[1])
    return centers + scale * noise.to(centers.device)
