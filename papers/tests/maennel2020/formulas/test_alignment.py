"""Aligned matrices, their corresponding eigenvalues, and the symmetries behind Proposition 1."""

import numpy as np
import pytest
import torch

from tests.measures.covariances import function_of, orthogonal, random_spd, with_eigenvalues
from tests.reference.covariance import eigenpairs, spaces_of
from tests.tolerances import assert_close
from theodolite_papers.maennel2020.formulas.alignment import (
    alignment_defect,
    corresponding_eigenvalues,
    is_aligned,
)
from theodolite_papers.maennel2020.formulas.symmetry import (
    random_symmetry,
    rotation_equivariance_check,
    symmetrize,
)

EYE = torch.eye(4, dtype=torch.float64)
DEGENERATE = with_eigenvalues([3.0, 2.0, 2.0, 1.0], seed=1)


def contains_every_eigenspace(matrix, reference):
    """Definition 1, literally: each eigenspace of the reference lies in one of the matrix."""
    values, vectors = eigenpairs(matrix.numpy())
    reference_values, reference_vectors = eigenpairs(reference.numpy())
    for space in spaces_of(reference_values, 1e-12):
        inside = [
            np.linalg.norm(vectors[:, group].T @ reference_vectors[:, space]) ** 2
            for group in spaces_of(values, 1e-12)
        ]
        if max(inside) < len(space) - 1e-10:
            return False
    return True


def split_space(matrix):
    """A function of the matrix that also tells two directions of an eigenspace apart."""
    _, vectors = eigenpairs(matrix.numpy())
    direction = torch.from_numpy(vectors[:, 1].copy())
    return matrix + torch.outer(direction, direction)


PAIRS = {
    "identity with anything": (EYE, random_spd(4), True),
    "multiple with identity": (3 * EYE, EYE, True),
    "anything with identity": (random_spd(4), EYE, False),
    "same eigenvectors": (function_of(random_spd(4), torch.exp), random_spd(4), True),
    "other eigenvectors": (random_spd(4, seed=1), random_spd(4, seed=2), False),
    "function": (function_of(DEGENERATE, lambda v: (v - 2) ** 2), DEGENERATE, True),
    "splits an eigenspace": (split_space(DEGENERATE), DEGENERATE, False),
    "indefinite function": (function_of(DEGENERATE, lambda v: 2 - v), DEGENERATE, True),
}


@pytest.mark.spec("2.P1")
@pytest.mark.parametrize(("matrix", "reference", "expected"), PAIRS.values(), ids=PAIRS)
def test_aligned_means_constant_on_eigenspaces(matrix, reference, expected):
    assert bool(is_aligned(matrix, reference)) is expected
    assert contains_every_eigenspace(matrix, reference) is expected


@pytest.mark.spec("2.P2")
def test_commuting_matrices_need_not_be_aligned():
    matrix, eye = torch.diag(torch.tensor([1.0, 2.0])), torch.eye(2)
    assert torch.equal(matrix @ eye, eye @ matrix)
    assert not is_aligned(matrix, eye)
    assert is_aligned(eye, matrix)


@pytest.mark.spec("2.P3")
def test_corresponding_eigenvalues_of_a_function():
    pairs = corresponding_eigenvalues(function_of(DEGENERATE, lambda v: v**2 - 5), DEGENERATE)
    assert_close(pairs.reference, [3, 2, 1])
    assert_close(pairs.matrix, [4, -1, -4])
    assert pairs.dimensions.tolist() == [1, 2, 1]


def test_no_corresponding_eigenvalue_where_the_matrix_is_not_constant():
    pairs = corresponding_eigenvalues(split_space(DEGENERATE), DEGENERATE)
    assert pairs.matrix.isnan().tolist() == [False, True, False]


def test_zero_is_aligned_with_everything():
    zero = torch.zeros(4, 4, dtype=torch.float64)
    assert alignment_defect(zero, DEGENERATE) == 0
    assert is_aligned(zero, DEGENERATE)


def test_rounding_of_the_dtype_does_not_break_alignment():
    reference = DEGENERATE.float()
    assert is_aligned(function_of(DEGENERATE, torch.exp).float(), reference)
    assert not is_aligned(split_space(DEGENERATE).float(), reference)


def test_a_tolerance_can_be_given():
    nearly = DEGENERATE + 1e-4 * random_spd(4)
    assert not is_aligned(nearly, DEGENERATE)
    assert is_aligned(nearly, DEGENERATE, tolerance=1e-3)


def test_a_stack_is_judged_matrix_by_matrix():
    stack = torch.stack([EYE, DEGENERATE, random_spd(4)])
    assert is_aligned(stack, DEGENERATE).tolist() == [True, True, False]
    singles = [alignment_defect(matrix, DEGENERATE).item() for matrix in stack]
    assert_close(alignment_defect(stack, DEGENERATE), singles)


@pytest.mark.parametrize("size", [1e-180, 1e150], ids=["tiny", "huge"])
def test_the_defect_does_not_depend_on_units(size):
    assert_close(alignment_defect(size * DEGENERATE, EYE), alignment_defect(DEGENERATE, EYE))


@pytest.mark.spec("2.P4")
def test_symmetries_keep_the_covariance(generator):
    draws = random_symmetry(DEGENERATE, draws=20, generator=generator)
    assert_close(draws.mT @ DEGENERATE @ draws, DEGENERATE.expand(20, 4, 4))
    assert_close(draws.mT @ draws, EYE.expand(20, 4, 4))


@pytest.mark.spec("2.P4")
def test_the_average_over_symmetries_is_the_symmetrized_matrix(generator):
    matrix = random_spd(4, seed=3)
    draws = random_symmetry(DEGENERATE, draws=800, generator=generator)
    turned = draws @ matrix @ draws.mT
    average = symmetrize(matrix, DEGENERATE)
    errors = turned.std(0) / 800**0.5
    assert ((turned.mean(0) - average).abs() <= 5 * errors + 1e-12).all()
    assert is_aligned(average, DEGENERATE)


@pytest.mark.spec("2.P4")
@pytest.mark.parametrize("group", [[0], [1, 2], [3]], ids=str)
def test_symmetrizing_keeps_traces_on_eigenspaces(group):
    matrix = random_spd(4, seed=3)
    _, vectors = eigenpairs(DEGENERATE.numpy())
    columns = torch.from_numpy(vectors[:, group].copy())
    mean = (columns.T @ matrix @ columns).trace() / len(group)
    assert_close(symmetrize(matrix, DEGENERATE) @ columns, mean * columns)


def test_symmetries_are_drawn_from_all_of_the_group(generator):
    draws = random_symmetry(EYE, draws=400, generator=generator)
    assert (torch.linalg.det(draws) < 0).double().mean().item() == pytest.approx(0.5, abs=0.1)
    assert draws.mean(0).abs().max() < 0.15  # entries have standard deviation 1/2


def test_draws_follow_the_generator():
    first, second = (
        random_symmetry(EYE, generator=torch.Generator().manual_seed(seed)) for seed in (5, 5)
    )
    assert torch.equal(first, second)


def descend(rate, steps=10, adaptive=False):
    """Train a linear layer on a fixed nonlinear loss; sign steps are not equivariant."""

    def train(weights, inputs):
        losses = []
        for _ in range(steps):
            weights = weights.detach().requires_grad_()
            loss = ((inputs @ weights.T).relu().sum(1) - 1).square().mean()
            (gradient,) = torch.autograd.grad(loss, weights)
            weights = weights - rate * (gradient.sign() if adaptive else gradient)
            losses.append(loss.detach())
        return weights.detach(), torch.stack(losses)

    return train


@pytest.mark.parametrize(("adaptive", "commutes"), [(False, True), (True, False)])
def test_equivariance_tells_gradient_descent_from_sign_descent(adaptive, commutes, generator):
    weights, inputs = (
        torch.randn(size, 4, generator=generator, dtype=torch.float64) for size in (6, 20)
    )
    train = descend(0.05, adaptive=adaptive)
    deviation = rotation_equivariance_check(train, weights, inputs, generator=generator)
    assert (deviation.weights.item() < 1e-9) is commutes
    assert (deviation.others.item() < 1e-9) is commutes


def test_sign_descent_commutes_with_signed_permutations(generator):
    weights, inputs = (
        torch.randn(size, 4, generator=generator, dtype=torch.float64) for size in (6, 20)
    )
    turn = EYE[[2, 0, 3, 1]] * torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64)
    deviation = rotation_equivariance_check(descend(0.05, adaptive=True), weights, inputs, turn)
    assert deviation.weights < 1e-9


def test_equivariance_without_other_results_deviates_by_zero():
    turn = orthogonal(4)
    deviation = rotation_equivariance_check(lambda w, x: (w,), random_spd(4), EYE, turn)
    assert deviation.others == 0


def test_the_second_run_sees_rows_turned_by_the_rotation():
    seen = []

    def train(weights, inputs):
        seen.append((weights, inputs))
        return (weights,)

    weights, turn = random_spd(4)[:2], orthogonal(4)
    rotation_equivariance_check(train, weights, EYE, turn)
    (_, _), (turned_weights, turned_inputs) = seen
    assert_close(turned_weights[0], turn @ weights[0])  # rows: w -> G w
    assert_close(turned_inputs, turn.T)
