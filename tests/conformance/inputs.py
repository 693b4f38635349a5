"""One generator per kind of input, and the cases that every measure must survive.

``draw(inputs, case, seed)`` gives NumPy arrays for all arguments of a measure together, so that
their lengths agree. A new kind of argument is one function in ``KINDS``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

# n examples, d features, rank of the features, and whether singular values come in ties
SIZES = {
    "random": (12, 5, 5, False),
    "rank_deficient": (12, 6, 3, False),
    "tied": (12, 5, 5, True),
    "wide": (6, 14, 6, False),
    "square": (8, 8, 8, False),
    "tiny": (2, 1, 1, False),
}
CASES = tuple(SIZES)
CLASSES = 3


@dataclass(frozen=True)
class Case:
    """Sizes of one draw and its generator."""

    name: str
    n: int
    d: int
    rank: int
    tied: bool
    rng: np.random.Generator

    def orthonormal(self, rows: int, columns: int) -> np.ndarray:
        """Orthonormal columns, uniformly distributed."""
        q, r = np.linalg.qr(self.rng.standard_normal((rows, columns)))
        return q * np.sign(np.diag(r))

    def spectrum(self, size: int) -> np.ndarray:
        """Positive numbers in decreasing order: in pairs of equals where ties are asked for."""
        values = np.sort(np.exp(self.rng.standard_normal(size)))[::-1]
        return np.repeat(values[::2], 2)[:size] if self.tied else values

    def matrix(self, rows: int, columns: int) -> np.ndarray:
        """Of the case's rank, with the case's ties."""
        rank = min(self.rank, rows, columns)
        left, right = self.orthonormal(rows, rank), self.orthonormal(columns, rank)
        return left * self.spectrum(rank) @ right.T

    def psd(self, size: int) -> np.ndarray:
        """Positive semi-definite of the case's rank."""
        factor = self.matrix(size, max(self.d, 1))
        return _symmetric(factor @ factor.T)

    def spd(self, size: int) -> np.ndarray:
        """Positive definite, condition number of order 100, ties where asked for."""
        basis = self.orthonormal(size, size)
        return _symmetric(basis * self.spectrum(size) @ basis.T)


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    return (matrix + matrix.T) / 2


def _labels(case: Case) -> np.ndarray:
    return case.rng.permutation(np.arange(case.n) % min(CLASSES, case.n))


def _one_hot(case: Case) -> np.ndarray:
    return np.eye(CLASSES)[_labels(case)]


def _tangent_kernel(case: Case) -> np.ndarray:
    size = case.n * CLASSES
    return case.psd(size).reshape(case.n, CLASSES, case.n, CLASSES)


def _output_hessian(case: Case) -> np.ndarray:
    return np.stack([case.spd(CLASSES) for _ in range(case.n)]) / case.n


def _tangent_features(case: Case) -> np.ndarray:
    return case.matrix(case.n * CLASSES, case.d).reshape(case.n, CLASSES, case.d)


def _layer_sizes(case: Case) -> tuple[int, ...]:
    return (1, 2 * case.d, case.d + 1)


def _depths(case: Case) -> np.ndarray:
    return 10.0 * (1 + np.arange(case.n))


def _peaks(case: Case) -> np.ndarray:
    return _depths(case) * case.rng.uniform(0.2, 0.8, case.n)


def _unit_features(case: Case) -> np.ndarray:
    rows = case.matrix(case.n, case.d)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _power_curve(case: Case) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(case.rng.dirichlet(np.ones(case.n)))])


KINDS: dict[str, Callable[[Case], Any]] = {
    "features": lambda case: case.matrix(case.n, case.d),
    "vectors": lambda case: case.matrix(case.n, case.d),
    "other_features": lambda case: case.rng.standard_normal((case.n, 4)),
    "labels": _labels,
    "one_hot": _one_hot,
    "targets": lambda case: case.rng.standard_normal((case.n, CLASSES)),
    "target_vector": lambda case: case.rng.standard_normal(case.n),
    "unit_features": _unit_features,
    "probabilities": lambda case: case.rng.dirichlet(np.ones(4), case.n),
    "threshold": lambda case: 0.7,  # of the order of the singular values
    "thresholds": lambda case: np.array([0.0, 0.3, 0.7, 1.5, 40.0]),
    "shares": lambda case: np.array([0.0, 0.15, 0.4, 0.8, 1.2]),
    "gram": lambda case: case.psd(case.n),
    "power_curve": _power_curve,
    "data_covariance": lambda case: case.psd(case.d),
    "covariance": lambda case: case.spd(case.d),
    "weights": lambda case: case.rng.standard_normal((3 * case.d + 2, case.d)),
    "basis": lambda case: case.orthonormal(case.d, case.d),
    "bases": lambda case: np.stack([case.orthonormal(case.d, case.d) for _ in range(3)]),
    "symmetric": lambda case: _symmetric(case.rng.standard_normal((case.d, case.d))),
    "eigenvalues": lambda case: case.spectrum(case.d).copy(),
    "curve": lambda case: case.rng.standard_normal(case.d),
    "fractions": lambda case: case.rng.uniform(0.1, 0.9, case.d),
    "tangent_kernel": _tangent_kernel,
    "tangent_features": _tangent_features,
    "loss_gradient": lambda case: case.rng.standard_normal((case.n, CLASSES)),
    "output_hessian": _output_hessian,
    "parameter_vectors": lambda case: case.orthonormal(sum(_layer_sizes(case)), 2),
    "layer_sizes": _layer_sizes,
    "depths": _depths,
    "peaks": _peaks,
}


def draw(inputs: Mapping[str, str], case: str, seed: int = 0) -> dict[str, Any]:
    """One set of arguments of the given kinds, in float64 (labels: int64)."""
    n, d, rank, tied = SIZES[case]
    context = Case(case, n, d, rank, tied, np.random.default_rng(seed))
    return {argument: KINDS[kind](context) for argument, kind in inputs.items()}
