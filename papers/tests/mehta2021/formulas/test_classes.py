"""Agreement of vectors between classes: spec 5."""

import pytest
import torch

from tests.tolerances import assert_close
from theodolite.measures import gradient
from theodolite_papers.mehta2021.formulas import classes

LABELS = torch.tensor([0, 0, 1, 1, 1, 2, 2])


@pytest.fixture
def vectors(generator):
    return torch.randn(7, 5, generator=generator, dtype=torch.float64)


@pytest.mark.spec("5.P25")
def test_stiffness_matrix_is_symmetric_with_within_class_values(vectors):
    matrix = classes.stiffness_matrix(vectors, LABELS)
    assert_close(matrix, matrix.T)
    for c in range(3):
        assert_close(matrix[c, c], gradient.cosine_stiffness(vectors[c == LABELS]))
    within = classes.within_class_stiffness(vectors, LABELS)
    assert_close(within, matrix.diagonal().mean())
    between = (matrix.sum() - matrix.trace()) / 6
    assert_close(classes.between_class_stiffness(vectors, LABELS), between)


@pytest.mark.spec("5.P65")
def test_class_matrix_has_class_values_on_its_diagonal(vectors):
    matrix = classes.class_alignment_matrix(vectors, LABELS)
    assert_close(matrix.diagonal(), gradient.class_alignment(vectors, LABELS))
    sums = torch.stack([vectors[c == LABELS].sum(0) for c in range(3)])
    norms = torch.stack([vectors[c == LABELS].norm(dim=1).sum() for c in range(3)])
    expected = (sums @ sums.T / torch.outer(norms, norms))[0, 2]
    assert_close(matrix[0, 2], expected)
    assert_close(matrix, matrix.T)
