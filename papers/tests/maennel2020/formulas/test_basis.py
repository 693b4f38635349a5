"""Misalignment as a sum over the directions of a basis."""

import math

import numpy as np
import pytest
import torch

from tests.measures.covariances import orthogonal, random_spd, with_eigenvalues
from tests.reference import covariance as literal
from tests.tolerances import assert_close
from theodolite.measures.covariance import misalignment
from theodolite_papers.maennel2020.formulas.basis import (
    basis_misalignment,
    basis_misalignment_terms,
)

SIMPLE = with_eigenvalues([5.0, 3.0, 2.0, 1.0], seed=1)
B = random_spd(4, seed=5)
LOOSE = 100.0  # B's condition number is about 20


@pytest.mark.spec("2.P18")
def test_basis_form_equals_the_closed_form():
    _, vectors = torch.linalg.eigh(SIMPLE)
    assert_close(basis_misalignment(vectors, B), misalignment(SIMPLE, B), scale=LOOSE)


@pytest.mark.spec("2.P18")
def test_terms_are_those_of_regressions():
    _, vectors = literal.eigenpairs(SIMPLE.numpy())
    C = vectors.T @ B.numpy() @ vectors
    expected = []
    for i in range(4):
        others = [j for j in range(4) if j != i]
        explained = C[i, others] @ np.linalg.solve(C[np.ix_(others, others)], C[others, i])
        expected.append(1 / math.sqrt(1 - explained / C[i, i]) - 1)
    basis = torch.from_numpy(vectors.copy())
    assert_close(basis_misalignment_terms(basis, B), expected, scale=LOOSE)


def test_bases_broadcast_with_checkpoints():
    bases = torch.stack([orthogonal(4, seed) for seed in range(3)])
    stack = torch.stack([B, random_spd(4, seed=6)])
    values = basis_misalignment(bases[:, None], stack)
    assert values.shape == (3, 2)
    assert_close(values[2, 1], basis_misalignment(bases[2], stack[1]), scale=LOOSE)
