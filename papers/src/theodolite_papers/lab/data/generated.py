"""Generated data: Gaussian inputs with a given covariance, and the peaks functions."""

from itertools import permutations

import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_count,
    require_kind,
    require_nonnegative,
    require_symmetric,
)
from theodolite.data import Dataset, unit_rows
from theodolite.errors import DomainError, ShapeError
from theodolite.linalg import array_function, checks_classes, double, eps_of, symmetric_eigen
from theodolite_papers.lab.data.tasks import random_labels

__all__ = [
    "PEAKS_TASKS",
    "PEAKS_VARIABLES",
    "covariance_root",
    "gaussian",
    "gaussian_inputs",
    "peaks",
    "peaks_features",
    "peaks_inputs",
    "peaks_values",
    "related_tasks",
    "rotated_covariance",
    "unrelated_tasks",
]

PEAKS_VARIABLES = "ABCDEF"
PEAKS_TASKS: tuple[str, ...] = tuple("".join(triple) for triple in permutations("ABCDEF", 3))

_CENTERS = 10
_WIDTH = 0.1


@checks_classes
def covariance_root(covariance: Float[Tensor, "d d"]) -> Float[Tensor, "d d"]:
    """The symmetric square root of a covariance, singular or not, in float64.

    Raises:
        DomainError: If the matrix has a negative eigenvalue beyond rounding.

    Example:
        >>> covariance_root(torch.tensor([[4.0, 0.0], [0.0, 0.0]])).round(decimals=4)
        tensor([[2., 0.],
                [0., 0.]], dtype=torch.float64)
    """
    require_symmetric(covariance=covariance)
    values, vectors = symmetric_eigen(double(covariance))
    floor = len(covariance) * eps_of(covariance) * values.abs().max()
    if (values < -floor).any():
        raise DomainError(
            f"covariance: expected no negative eigenvalue, got {values.min().item():.3g}"
        )
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.mT


@checks_classes
def gaussian_inputs(
    count: int,
    covariance: Float[Tensor, "d d"],
    mean: Float[Tensor, " d"] | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "n d"]:
    r"""Independent rows from :math:`N(\mu, \Sigma)`, also for a singular covariance.

    Args:
        count: number of rows.
        covariance: :math:`\Sigma`, symmetric, positive semi-definite.
        mean: :math:`\mu`; 0 if left out.
        generator: source of randomness.

    Raises:
        DomainError: If the covariance is not symmetric or has a negative eigenvalue.

    Example:
        >>> gaussian_inputs(3, torch.diag(torch.tensor([1.0, 0.0])))[:, 1]
        tensor([0., 0., 0.])

    References:
        [maennel2020], Figure 20.
    """
    require_count(1, count=count)
    root = covariance_root(covariance).cpu()
    noise = torch.randn(count, len(root), generator=generator, dtype=torch.float64)
    rows = noise @ root
    return (rows if mean is None else rows + double(mean).cpu()).to(covariance)


@checks_classes
def rotated_covariance(
    eigenvalues: Float[Tensor, " d"], generator: torch.Generator | None = None
) -> Float[Tensor, "d d"]:
    """A covariance with given eigenvalues in a uniformly random orthonormal basis.

    Example:
        >>> covariance = rotated_covariance(torch.tensor([2.0, 1.0]))
        >>> torch.linalg.eigvalsh(covariance).round(decimals=4)
        tensor([1., 2.])
    """
    require_axes(1, eigenvalues=eigenvalues)
    require_nonnegative(eigenvalues=eigenvalues)
    size = len(eigenvalues)
    noise = torch.randn(size, size, generator=generator, dtype=torch.float64)
    basis, triangle = torch.linalg.qr(noise)
    basis = basis * triangle.diagonal().sign()  # makes the distribution uniform
    matrix = (basis * double(eigenvalues).cpu()) @ basis.mT
    return ((matrix + matrix.mT) / 2).to(eigenvalues)


@checks_classes
def gaussian(
    covariance: Float[Tensor, "d d"] | None = None,
    train: int = 2000,
    test: int = 500,
    num_classes: int = 2,
    generator: torch.Generator | None = None,
) -> Dataset:
    """Gaussian inputs with uniformly random labels: they can only be memorised.

    Args:
        covariance: of the inputs; by default 20 dimensions with variances 1, 1/2, ..., 1/20 in a
            random basis.
        train: number of training examples.
        test: number of test examples.
        num_classes: number of classes the labels are drawn from.
        generator: source of randomness.

    Example:
        >>> gaussian(torch.eye(3), train=5, test=2).x_train.shape
        torch.Size([5, 3])

    References:
        [maennel2020], Figure 20.
    """
    require_count(1, train=train, test=test, num_classes=num_classes)
    if covariance is None:
        covariance = rotated_covariance(1 / torch.arange(1.0, 21.0), generator)
    x = gaussian_inputs(train + test, covariance, generator=generator)
    y = random_labels(train + test, num_classes, generator)
    names = tuple(str(index) for index in range(num_classes))
    return Dataset("gaussian", x[:train], y[:train], x[train:], y[train:], classes=names)


def _columns(task: str) -> tuple[int, int, int]:
    """Columns of gate, upper and lower variable."""
    require_kind(str, task=task)
    if len(task) != 3 or len(set(task)) != 3 or not set(task) <= set(PEAKS_VARIABLES):
        raise DomainError(
            f"task: expected three distinct letters of {PEAKS_VARIABLES}, e.g. 'ABC', got {task!r}"
        )
    gate, upper, lower = (PEAKS_VARIABLES.index(letter) for letter in task)
    return gate, upper, lower


@array_function
def peaks_values(variables: Float[Tensor, "n 6"], task: str) -> Float[Tensor, " n"]:
    r"""The peaks function of a task.

    .. math:: P_{X,Y,Z} = Y \text{ if } X > \tfrac12 \text{ else } Z

    Args:
        variables: A to F, one column each.
        task: three letters, e.g. ``"ABC"`` for :math:`P_{A,B,C}`.

    Raises:
        DomainError: If letters repeat or are unknown.

    Example:
        >>> rows = torch.tensor([[0.5, 0.2, 0.3, 0, 0, 0], [0.6, 0.2, 0.3, 0, 0, 0]])
        >>> peaks_values(rows, "ABC")
        tensor([0.3000, 0.2000])

    References:
        [caruana1997]; [imani2022], section 7.1.
    """
    gate, upper, lower = _columns(task)
    _require_six(variables)
    return torch.where(variables[:, gate] > 0.5, variables[:, upper], variables[:, lower])


@array_function
def peaks_features(variables: Float[Tensor, "n 6"]) -> Float[Tensor, "n 60"]:
    r"""Ten Gaussian bumps per variable, before rows are scaled to unit length.

    .. math:: \tfrac12 \exp\!\left(-\frac{(v - c)^2}{2 \cdot 0.1^2}\right),
              \qquad c = 0, 0.1, \dots, 0.9

    in the order A (10), B (10), ..., F (10).

    Example:
        >>> peaks_features(torch.zeros(1, 6))[0, :3]
        tensor([0.5000, 0.3033, 0.0677])

    References:
        [caruana1997]; [imani2022], section 7.1.
    """
    _require_six(variables)
    centers = torch.arange(_CENTERS, dtype=torch.float64, device=variables.device) / _CENTERS
    offsets = double(variables).unsqueeze(-1) - centers
    return (0.5 * torch.exp(-offsets.square() / (2 * _WIDTH**2))).flatten(1)


def _require_six(variables: Tensor) -> None:
    require_axes(2, variables=variables)
    if variables.shape[1] != len(PEAKS_VARIABLES):
        raise ShapeError(
            f"variables: expected {len(PEAKS_VARIABLES)} columns, A to F, "
            f"got shape {tuple(variables.shape)}"
        )


@checks_classes
def peaks_inputs(
    count: int, generator: torch.Generator | None = None
) -> tuple[Float[Tensor, "n 6"], Float[Tensor, "n 60"]]:
    """Variables, uniform on [0, 1), and their features with unit rows, in float64.

    Example:
        >>> variables, features = peaks_inputs(3)
        >>> variables.shape, features.norm(dim=1).round(decimals=4)
        (torch.Size([3, 6]), tensor([1., 1., 1.], dtype=torch.float64))
    """
    require_count(1, count=count)
    variables = torch.rand(count, 6, generator=generator, dtype=torch.float64)
    return variables, unit_rows(peaks_features(variables))


def related_tasks(task: str) -> tuple[str, ...]:
    """The five other orders of a task's three variables.

    Example:
        >>> related_tasks("ABC")
        ('ACB', 'BAC', 'BCA', 'CAB', 'CBA')
    """
    _columns(task)
    return tuple(other for other in PEAKS_TASKS if set(other) == set(task) and other != task)


def unrelated_tasks(task: str) -> tuple[str, ...]:
    """The six tasks on the other three variables.

    Example:
        >>> unrelated_tasks("ABC")
        ('DEF', 'DFE', 'EDF', 'EFD', 'FDE', 'FED')
    """
    _columns(task)
    return tuple(other for other in PEAKS_TASKS if not set(other) & set(task))


@checks_classes
def peaks(
    task: str = "ABC",
    train: int = 2000,
    test: int = 1000,
    generator: torch.Generator | None = None,
) -> Dataset:
    """A peaks task as a regression data set: 60 unit-length features, centred labels.

    Args:
        task: three letters of A to F.
        train: number of training examples; their mean label is subtracted everywhere.
        test: number of test examples.
        generator: source of randomness.

    Example:
        >>> data = peaks("ABC", train=10, test=5)
        >>> data.name, data.x_train.shape, data.num_classes
        ('peaks-ABC', torch.Size([10, 60]), 0)

    References:
        [caruana1997]; [imani2022], section 7.1.
    """
    require_count(1, train=train, test=test)
    variables, features = peaks_inputs(train + test, generator)
    values = peaks_values(variables, task)
    values = (values - values[:train].mean()).float()
    x = features.float()
    return Dataset(
        f"peaks-{task}",
        x[:train],
        values[:train],
        x[train:],
        values[train:],
        scaling=("unit_rows",),
    )
