"""Divergence and information of zero-mean Gaussians, and the angle between eigenvectors."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from scipy.stats import wishart

from tests.measures.covariances import orthogonal, random_spd, with_eigenvalues
from tests.tolerances import assert_close
from theodolite.measures.covariance import misalignment
from theodolite_papers.maennel2020.formulas.divergence import (
    fisher_rao_length,
    gaussian_information,
    gaussian_kl,
    rotation_angle_deviation,
    rotation_chain,
    rotation_information,
    rotation_length,
    symmetric_kl,
)
from theodolite_papers.maennel2020.formulas.overlap import predicted_overlap_loss

A, B = random_spd(5, seed=1), random_spd(5, seed=2)


def integral(path, velocity):
    """Of the Fisher information along a path, by Gauss-Legendre quadrature."""
    nodes, weights = np.polynomial.legendre.leggauss(80)
    times = torch.from_numpy((nodes + 1) / 2)
    matrices = torch.stack([path(t) for t in times])
    values = gaussian_information(matrices, torch.stack([velocity(t) for t in times]))
    return float((values * torch.from_numpy(weights / 2)).sum())


def rotated(first, second, angle):
    turn = torch.tensor(
        [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]],
        dtype=torch.float64,
    )
    return turn @ torch.diag(torch.tensor([first, second], dtype=torch.float64)) @ turn.T


@pytest.mark.spec("2.P8")
def test_distance_is_the_sum_of_both_divergences():
    assert_close(symmetric_kl(A, B), gaussian_kl(A, B) + gaussian_kl(B, A), scale=100)


@pytest.mark.spec("2.P8")
def test_distance_is_the_integral_along_the_line_of_covariances():
    line = integral(lambda t: (1 - t) * A + t * B, lambda t: B - A)
    assert line == pytest.approx(float(symmetric_kl(A, B)), rel=1e-6)


@pytest.mark.spec("2.P8")
def test_distance_is_the_integral_along_the_line_of_inverses():
    slope = B.inverse() - A.inverse()

    def path(t):
        matrix = ((1 - t) * A.inverse() + t * B.inverse()).inverse()
        return (matrix + matrix.T) / 2

    def velocity(t):
        matrix = -path(t) @ slope @ path(t)
        return (matrix + matrix.T) / 2

    assert integral(path, velocity) == pytest.approx(float(symmetric_kl(A, B)), rel=1e-6)


@pytest.mark.spec("2.P9")
@pytest.mark.parametrize("seed", range(5))
def test_distance_is_positive_symmetric_and_zero_at_equality(seed):
    first, second = random_spd(4, seed), random_spd(4, seed + 10)
    assert symmetric_kl(first, second) > 0.01
    assert_close(symmetric_kl(first, second), symmetric_kl(second, first), scale=100)
    assert symmetric_kl(first, first) == 0


@pytest.mark.spec("2.P9")
@pytest.mark.parametrize(
    "transform",
    [
        lambda s: (
            (T := torch.randn(5, 5, generator=torch.Generator().manual_seed(3)).double()) @ s @ T.T
        ),
        torch.linalg.inv,
        lambda s: 7 * s,
    ],
    ids=["congruence", "inversion", "scaling"],
)
def test_distance_is_invariant(transform):
    first, second = ((m + m.T) / 2 for m in (transform(A), transform(B)))
    assert_close(symmetric_kl(first, second), symmetric_kl(A, B), scale=1e4)


@pytest.mark.spec("2.P10")
@pytest.mark.parametrize("seed", range(5))
def test_squared_geodesic_length_is_at_most_the_distance(seed):
    first, second = random_spd(4, seed), random_spd(4, seed + 10)
    assert fisher_rao_length(first, second) ** 2 <= symmetric_kl(first, second)


@pytest.mark.spec("2.P10")
def test_squared_geodesic_length_is_the_distance_of_close_matrices():
    close = A + 1e-3 * B
    ratio = fisher_rao_length(A, close) ** 2 / symmetric_kl(A, close)
    far = fisher_rao_length(A, A + B) ** 2 / symmetric_kl(A, A + B)
    assert far < 0.99 < 0.999 < ratio <= 1


@pytest.mark.parametrize("step", [1e-3, 1e-6, 1e-9])
def test_divergences_keep_their_digits_near_equality(step):
    eye = torch.eye(4, dtype=torch.float64)
    scaled = eye * (1 + step)
    exact = scaled[0, 0].item() - 1
    assert float(symmetric_kl(eye, scaled)) == pytest.approx(
        4 * exact**2 / (2 * (1 + exact)), rel=1e-12, abs=0
    )
    series = exact**2 / 2 - exact**3 / 3 + exact**4 / 4 - exact**5 / 5
    assert float(gaussian_kl(scaled, eye)) == pytest.approx(2 * series, rel=1e-9, abs=0)


@pytest.mark.spec("2.P11")
@pytest.mark.parametrize("eigenvalues", [(3.0, 1.0), (11.0, 1.0), (1.1, 1.0)])
def test_information_of_a_rotation(eigenvalues):
    S = torch.diag(torch.tensor(eigenvalues, dtype=torch.float64))
    J = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    expected = rotation_information(*eigenvalues)
    assert_close(gaussian_information(S, J @ S - S @ J), expected, scale=10)
    first, second = eigenvalues
    assert_close(expected, (first - second) ** 2 / (first * second))


@pytest.mark.spec("2.P11")
def test_information_is_the_mean_squared_score():
    S = torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64))
    J = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    U = J @ S - S @ J
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200_000, 2)) * np.sqrt([3.0, 1.0])
    form = (S.inverse() @ U @ S.inverse()).numpy()
    score = (np.einsum("ni,ij,nj->n", x, form, x) - np.trace(S.inverse().numpy() @ U.numpy())) / 2
    assert np.mean(score**2) == pytest.approx(float(gaussian_information(S, U)), rel=0.03)


@pytest.mark.spec("2.P12")
@pytest.mark.parametrize("angle", [0.0, 0.3, 1.0, math.pi / 2])
@pytest.mark.parametrize("eigenvalues", [(3.0, 1.0), (11.0, 1.0), (1.0, 2.5)])
def test_exact_forms_in_two_dimensions(angle, eigenvalues):
    straight, turned = rotated(*eigenvalues, 0.0), rotated(*eigenvalues, angle)
    information = float(rotation_information(*eigenvalues))
    assert_close(symmetric_kl(straight, turned), information * math.sin(angle) ** 2, scale=100)
    expected = 2 * (math.sqrt(1 + information * math.sin(2 * angle) ** 2 / 4) - 1)
    assert_close(misalignment(straight, turned), expected, scale=100)


@pytest.mark.spec("2.P12")
@pytest.mark.parametrize("measure", [symmetric_kl, misalignment])
def test_both_grow_with_the_squared_angle(measure):
    information = float(rotation_information(3.0, 1.0))
    excess = [
        float(measure(rotated(3.0, 1.0, 0.0), rotated(3.0, 1.0, angle))) / (information * angle**2)
        - 1
        for angle in (0.02, 0.01)
    ]
    assert abs(excess[1]) < 1e-3
    assert excess[0] / excess[1] == pytest.approx(4, rel=0.01)


@pytest.mark.spec("2.P13")
@pytest.mark.parametrize(("count", "eigenvalue"), [(100, 11.0), (100_000, 1.1)])
def test_spread_of_estimated_angles(count, eigenvalue):
    assert count * float(rotation_information(eigenvalue, 1.0)) == pytest.approx(909.09, abs=0.01)
    samples = wishart(df=count, scale=np.diag([eigenvalue, 1.0])).rvs(2000, random_state=0)
    _, vectors = np.linalg.eigh(samples)
    leading = vectors[:, :, 1]
    angles = np.arctan(leading[:, 1] / leading[:, 0])
    expected = float(rotation_angle_deviation(eigenvalue, 1.0, count))
    assert angles.std() == pytest.approx(expected, rel=0.12)


def test_equal_eigenvalues_leave_the_angle_open():
    assert rotation_information(2.0, 2.0) == 0
    assert rotation_angle_deviation(2.0, 2.0, count=50) == math.inf


def test_length_and_chain_of_a_rotation():
    length = rotation_length(-0.4, 11.0, 1.0)
    assert_close(length, 0.4 * math.sqrt(100 / 11))
    assert rotation_chain(-0.4, 11.0, 1.0, count=10_000) == math.floor(float(length) * 100)


def test_two_dimensional_overlap_loss_is_the_variance_of_the_angle():
    loss = predicted_overlap_loss(torch.tensor([11.0, 1.0]), 100, 10**9)[0]
    assert loss.item() == pytest.approx(float(rotation_angle_deviation(11.0, 1.0, 100)) ** 2, 1e-4)


DIVERGENCES = pytest.mark.parametrize("measure", [symmetric_kl, gaussian_kl, fisher_rao_length])


@DIVERGENCES
def test_a_stack_of_pairs_gives_one_number_each(measure):
    first = torch.stack([A, B, A]).reshape(3, 1, 5, 5)
    second = torch.stack([B, B, A]).reshape(3, 1, 5, 5)
    values = measure(first, second)
    assert values.shape == (3, 1)
    assert_close(values[0, 0], measure(A, B), scale=100)
    assert_close(values[1:, 0], [0, 0])


@DIVERGENCES
def test_gradients_vanish_at_equality(measure):
    leaf = A.clone().requires_grad_()
    measure(leaf, A).backward()
    assert leaf.grad.abs().max() < 1e-12


def test_rotations_of_arrays_broadcast_over_their_entries():
    first = torch.tensor([3.0, 11.0])
    assert_close(
        rotation_information(first, torch.ones(2)), [4 / 3, 100 / 11], scale=1, dtype=first.dtype
    )
    assert rotation_information(orthogonal(3)[0].abs() + 1, torch.ones(3).double()).shape == (3,)


@pytest.mark.parametrize("ratio", [1e-4, 1e-10, 1e-16, 1e-30], ids=str)
def test_small_ratios_of_eigenvalues_keep_their_digits(ratio):
    """Covariances of very different size: the logarithm of the ratio is what is left."""
    scales = torch.tensor([1.0, 3.0], dtype=torch.float64)
    first, second = torch.diag(ratio * scales), torch.diag(torch.ones(2, dtype=torch.float64))
    logs = [math.log(ratio), math.log(3 * ratio)]
    length = math.sqrt(sum(log**2 for log in logs) / 2)
    assert fisher_rao_length(first, second).item() == pytest.approx(length, rel=1e-13)
    assert fisher_rao_length(second, first).item() == pytest.approx(length, rel=1e-13)
    small = sum(scale * ratio - 1 - log for scale, log in zip((1, 3), logs, strict=True)) / 2
    assert gaussian_kl(first, second).item() == pytest.approx(small, rel=1e-13)
    large = sum(1 / (s * ratio) - 1 + log for s, log in zip((1, 3), logs, strict=True)) / 2
    assert gaussian_kl(second, first).item() == pytest.approx(large, rel=1e-13)


def test_length_between_covariances_does_not_depend_on_their_order():
    A, B = with_eigenvalues([1e-5, 1e-3, 1, 4], 3), with_eigenvalues([1e5, 1e3, 3, 1e-3], 5)
    forth, back = fisher_rao_length(A, B).item(), fisher_rao_length(B, A).item()
    assert forth == pytest.approx(back, rel=1e-9)
    exact = math.sqrt(sum(math.log(r) ** 2 for r in scipy.linalg.eigh(A, B)[0]) / 2)
    assert forth == pytest.approx(exact, rel=1e-7)  # SciPy loses the small ratios
