"""Sparse codes in a learned dictionary: unsupervised features to compare with."""

import warnings

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_count,
    require_finite,
    require_nonempty,
    require_positive,
)
from theodolite.errors import ShapeError
from theodolite.linalg import array_function, double

__all__ = ["learn_dictionary", "sparse_codes", "sparse_objective"]

_KKT_TOLERANCE = 1e-8  # of the penalty, beyond which a code is polished
_POLISH_SWEEPS = 100_000
_ATOM_NOISE = 0.01


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
    _require_match(inputs, dictionary, penalty)
    x = double(inputs).detach().cpu().numpy()
    atoms = double(dictionary).detach().cpu().numpy()
    return torch.from_numpy(_lasso(x, atoms, penalty)).to(inputs.device)


@array_function
def sparse_objective(
    inputs: Float[Tensor, "n m"], dictionary: Float[Tensor, "d m"], penalty: float = 0.05
) -> Float[Tensor, ""]:
    r"""What dictionary learning minimises, with the best codes.

    .. math:: \frac1n \sum_i \tfrac12 \|x_i - a_i D\|^2 + \alpha \|a_i\|_1

    Example:
        >>> sparse_objective(torch.tensor([[1.0, 0.0]]), torch.eye(2), penalty=0.5)
        tensor(0.3750)

    References:
        [mairal2009], Eq. 2.
    """
    codes = sparse_codes(double(inputs), double(dictionary), penalty)
    residual = double(inputs) - codes @ double(dictionary)
    return (residual.square().sum(1) / 2 + penalty * codes.abs().sum(1)).mean()


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
    rounds = -(-atoms // len(x))
    rows = torch.cat([torch.randperm(len(x), generator=generator) for _ in range(rounds)])[:atoms]
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


def _require_match(inputs: Tensor, dictionary: Tensor, penalty: float) -> None:
    require_axes(2, inputs=inputs, dictionary=dictionary)
    require_nonempty(inputs=inputs, dictionary=dictionary)
    require_finite(inputs=inputs, dictionary=dictionary)
    require_positive(penalty=penalty)
    if inputs.shape[1] != dictionary.shape[1]:
        raise ShapeError(
            f"dictionary: expected atoms of the inputs' width {inputs.shape[1]}, "
            f"got {dictionary.shape[1]}"
        )
