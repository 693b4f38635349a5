"""Features fitted to data, to compare with a network's: Gaussian units, and sparse codes.

Dictionary learning is written here because scikit-learn's starts, and replaces unused atoms, in
another way; its solvers of the lasso are used.
"""

import warnings
from math import sqrt

import numpy as np
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

__all__ = [
    "RBFNetwork",
    "fit_rbf_network",
    "learn_dictionary",
    "median_distance",
    "rbf_features",
    "sparse_codes",
]

_MOST_ROWS = 2000  # rows whose pairwise distances are looked at
_CENTER_NOISE = 0.01  # of the bandwidth, where there are more units than rows
_OUTPUT_SCALE = 0.01
_LEARNING_RATE = 1e-2
_BATCH = 64
_KKT_TOLERANCE = 1e-8  # of the penalty, beyond which a code is polished
_POLISH_SWEEPS = 100_000
_ATOM_NOISE = 0.01


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
        [imani2022], sections 7.2 and 7.3; the 2 in the exponent is our reading.
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
    centers = inputs[_starting_rows(len(inputs), units, generator).to(inputs.device)]
    if units <= len(inputs):
        return centers
    noise = torch.randn(centers.shape, generator=generator, dtype=centers.dtype)
    scale = _CENTER_NOISE * bandwidth / sqrt(inputs.shape[1])
    return centers + scale * noise.to(centers.device)


@array_function
def sparse_codes(
    inputs: Float[Tensor, "n m"], dictionary: Float[Tensor, "d m"], penalty: float = 0.05
) -> Float[Tensor, "n d"]:
    r"""Lasso codes of the rows.

    .. math:: a_i = \arg\min_a \tfrac12 \|x_i - aD\|^2 + \alpha \|a\|_1

    For orthonormal atoms this is a soft threshold. A row whose code is all zero stays zero.

    Args:
        inputs: :math:`x_i`, usually of unit length.
        dictionary: :math:`D`, one atom per row.
        penalty: :math:`\alpha`.

    Raises:
        ShapeError: If inputs and atoms differ in width.

    Example:
        >>> sparse_codes(torch.tensor([[1.0, -0.3]]), torch.eye(2), penalty=0.5)
        tensor([[0.5000, 0.0000]])

    References:
        [mairal2009], Eq. 1; [imani2022], Figure 1.
    """
    require_axes(2, inputs=inputs, dictionary=dictionary)
    require_nonempty(inputs=inputs, dictionary=dictionary)
    require_finite(inputs=inputs, dictionary=dictionary)
    require_positive(penalty=penalty)
    if inputs.shape[1] != dictionary.shape[1]:
        raise ShapeError(
            f"dictionary: expected atoms of the inputs' width {inputs.shape[1]}, "
            f"got {dictionary.shape[1]}"
        )
    x = double(inputs).detach().cpu().numpy()
    atoms = double(dictionary).detach().cpu().numpy()
    return torch.from_numpy(_lasso(x, atoms, penalty)).to(inputs.device)


def learn_dictionary(
    inputs: Float[Tensor, "n m"],
    atoms: int,
    penalty: float = 0.05,
    passes: int = 2,
    batch_size: int = 50,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "d m"]:
    r"""Online dictionary learning: code a batch, then move each atom by block descent.

    .. math:: A \mathrel{+}= a^\top a,\quad B \mathrel{+}= a^\top x,\quad
              d_j \leftarrow \Pi\!\left(d_j + \frac{B_j - A_j D}{A_{jj}}\right)

    with :math:`\Pi` the projection on the unit ball. Atoms that no code has used stay.

    Args:
        inputs: training rows, usually of unit length.
        atoms: size of the dictionary; atoms start on random rows, with a little noise.
        penalty: :math:`\alpha`.
        passes: over the data.
        batch_size: rows coded at once.
        generator: source of randomness.

    Returns:
        The dictionary, one atom per row, each of length at most 1.

    Example:
        >>> x = torch.nn.functional.normalize(torch.randn(40, 5))
        >>> bool((learn_dictionary(x, 8).norm(dim=1) <= 1 + 1e-6).all())
        True

    References:
        [mairal2009], Algorithms 1 and 2.
    """
    require_axes(2, inputs=inputs)
    require_nonempty(inputs=inputs)
    require_finite(inputs=inputs)
    require_positive(penalty=penalty)
    require_count(1, atoms=atoms, passes=passes, batch_size=batch_size)
    x = double(inputs).detach().cpu()
    D = _starting_atoms(x, atoms, generator)
    A, B = x.new_zeros(atoms, atoms), torch.zeros_like(D)
    for _ in range(passes):
        order = torch.randperm(len(x), generator=generator)
        for rows in torch.split(order, batch_size):
            codes = torch.from_numpy(_lasso(x[rows].numpy(), D.numpy(), penalty))
            A += codes.mT @ codes
            B += codes.mT @ x[rows]
            _descend_(D, A, B)
    return D.to(inputs)


def _starting_atoms(x: Tensor, atoms: int, generator: torch.Generator | None) -> Tensor:
    rows = _starting_rows(len(x), atoms, generator)
    # Without noise a dictionary with an atom for every row starts, and stays, on the trivial code.
    D = x[rows] + _ATOM_NOISE * torch.randn(len(rows), x.shape[1], generator=generator).double()
    return D / D.norm(dim=1, keepdim=True).clamp(min=1)


def _descend_(D: Tensor, A: Tensor, B: Tensor) -> None:
    for j in A.diagonal().nonzero().flatten().tolist():
        atom = D[j] + (B[j] - A[j] @ D) / A[j, j]
        D[j] = atom / atom.norm().clamp(min=1)


def _lasso(x: np.ndarray, atoms: np.ndarray, penalty: float) -> np.ndarray:
    """Codes by least-angle regression; rows it leaves inexact are polished by coordinate descent.

    Least-angle regression is exact but drops atoms that nearly repeat others, with a warning.
    """
    from sklearn.decomposition import sparse_encode

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        codes = sparse_encode(x, atoms, algorithm="lasso_lars", alpha=penalty)
    codes = np.nan_to_num(np.asarray(codes, dtype=np.float64), posinf=0.0, neginf=0.0)
    inexact = _violation(x, atoms, codes, penalty) > _KKT_TOLERANCE * penalty
    if inexact.any():
        codes[inexact] = _polished(x[inexact], atoms, penalty)
    return codes


def _violation(x: np.ndarray, atoms: np.ndarray, codes: np.ndarray, penalty: float) -> np.ndarray:
    """Largest violation of the optimality conditions, per row."""
    slope = (x - codes @ atoms) @ atoms.T
    used = np.abs(slope - penalty * np.sign(codes))
    unused = np.maximum(np.abs(slope) - penalty, 0)
    return np.where(codes != 0, used, unused).max(1)


def _polished(x: np.ndarray, atoms: np.ndarray, penalty: float) -> np.ndarray:
    from sklearn.linear_model import Lasso

    width = atoms.shape[1]  # scikit-learn divides the square by it
    solver = Lasso(penalty / width, fit_intercept=False, tol=1e-14, max_iter=_POLISH_SWEEPS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solver.fit(np.asfortranarray(atoms.T), np.ascontiguousarray(x.T))
    return np.asarray(solver.coef_).reshape(len(x), len(atoms))


def _starting_rows(available: int, count: int, generator: torch.Generator | None) -> Tensor:
    """Random rows, each again only after all have been drawn."""
    rounds = -(-count // available)
    orders = [torch.randperm(available, generator=generator) for _ in range(rounds)]
    return torch.cat(orders)[:count]
