"""Grams, KTA and CKA: the properties of specification 3, sections 2 and 3."""

from functools import partial

import numpy as np
import pytest
import torch

from tests.reference import kernel as reference
from tests.tolerances import assert_close
from theodolite.linalg import double_center, symmetric_eigenvalues
from theodolite.measures import kernel
from theodolite.measures.kernel import _from_features, cka, kta, linear_cka, linear_kta, target_cka

biased = partial(cka, debiased=False)
linear_biased = partial(linear_cka, debiased=False)
BALANCED = torch.arange(12) % 3
UNBALANCED = torch.tensor([0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2])
Y = torch.nn.functional.one_hot(BALANCED).double()


@pytest.fixture
def normal(generator):
    return lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)


def rank(matrix):
    return int(torch.linalg.matrix_rank(matrix, hermitian=True))


@pytest.mark.spec("3.P1")
@pytest.mark.parametrize(("n", "d"), [(9, 4), (4, 9), (6, 6)], ids=["tall", "wide", "square"])
def test_gram_is_symmetric_positive_and_of_the_smaller_rank(normal, n, d):
    F = normal(n, d)
    K = kernel.gram(F)
    assert_close(K, reference.gram(F.numpy()), scale=10)
    assert_close(K, K.T)
    assert symmetric_eigenvalues(K).min() > -1e-12
    assert rank(K) == min(n, d)
    other = normal(3, d)
    assert_close(kernel.gram(F, other), reference.gram(F.numpy(), other.numpy()), scale=10)


@pytest.mark.spec("3.P3")
@pytest.mark.parametrize("labels", [BALANCED, UNBALANCED], ids=["balanced", "unbalanced"])
def test_target_gram_is_the_indicator_of_a_shared_class(labels):
    K = kernel.target_gram(labels)
    assert_close(K, reference.target_gram(labels.tolist()))
    counts = torch.bincount(labels).double().sort(descending=True).values
    assert_close(symmetric_eigenvalues(K)[:3], counts, scale=10)
    assert rank(K) == 3
    assert rank(double_center(K)) == 2
    assert_close(K, kernel.target_gram(reference.one_hot(labels.tolist())))


@pytest.mark.spec("3.P4")
def test_centering_of_a_gram_is_that_of_its_features(normal):
    F, n = normal(7, 3) + 5, 7
    H = double_center(torch.eye(n, dtype=torch.float64))
    K = kernel.gram(F)
    assert_close(H, H.T)
    assert_close(H @ H, H)
    assert_close(H.sum(1), torch.zeros(n))
    centered = double_center(K)
    assert_close(centered.sum(1), torch.zeros(n), scale=100)
    assert_close(centered, kernel.gram(F - F.mean(0)), scale=100)
    entrywise = K - K.mean(1, keepdim=True) - K.mean(0, keepdim=True) + K.mean()
    assert_close(centered, entrywise, scale=100)
    assert_close(centered, H @ K @ H, scale=100)


@pytest.mark.spec("3.P5")
def test_hand_cases():
    a = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    assert_close(kta(a, torch.diag(torch.tensor([1.0, 4.0], dtype=torch.float64))), 14 / 255**0.5)
    x = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64)
    y = torch.tensor([[1.0], [3.0], [2.0]], dtype=torch.float64)
    assert_close(linear_biased(x, y), 0.25)
    assert_close(linear_biased(Y, Y), 1.0)
    assert_close(target_cka(Y, BALANCED), 1.0)


@pytest.mark.spec("3.P5")
def test_cka_of_single_features_is_the_squared_correlation(normal):
    u, v = normal(9, 1), normal(9, 1)
    r = np.corrcoef(u.flatten(), v.flatten())[0, 1]
    assert_close(linear_biased(u, v), r**2)


@pytest.mark.spec("3.P6")
@pytest.mark.parametrize("measure", [kta, biased, cka], ids=["kta", "cka_biased", "cka"])
def test_range_of_definite_and_of_symmetric_matrices(normal, measure):
    low = -1.0 if measure is cka else 0.0
    for _ in range(20):
        assert low - 1e-12 <= measure(*(kernel.gram(normal(6, 4)) for _ in range(2))) <= 1 + 1e-12
        S, T = (m + m.T for m in (normal(6, 6), normal(6, 6)))
        assert -1 - 1e-12 <= measure(S, T) <= 1 + 1e-12
        assert_close(measure(S, -S), -1.0)


@pytest.mark.spec("3.P7")
@pytest.mark.parametrize("measure", [kta, biased, cka], ids=["kta", "cka_biased", "cka"])
def test_one_with_itself_and_symmetric(normal, measure):
    K, L = kernel.gram(normal(8, 3)), kernel.gram(normal(8, 5))
    assert_close(measure(K, K), 1.0)
    assert_close(measure(K, L), measure(L, K))


@pytest.mark.spec("3.P8")
@pytest.mark.parametrize("decade", [-80, -60, -30, 30, 60, 80])
def test_scale_does_not_matter_over_many_decades(normal, decade):
    F, G, factor = normal(8, 3), normal(8, 5), 10.0**decade
    K, L = kernel.gram(F), kernel.gram(G)
    for measure in (kta, biased, cka):
        assert_close(measure(factor * K, L), measure(K, L))
        assert_close(measure(factor * K, L / factor), measure(K, L))
    for measure in (linear_kta, linear_biased, linear_cka):
        assert_close(measure(factor * F, G / factor), measure(F, G))
    labels = BALANCED[:8]
    assert_close(target_cka(factor * F, labels), target_cka(F, labels))


@pytest.mark.spec("3.P9")
@pytest.mark.parametrize(
    "measure", [linear_kta, linear_biased, linear_cka], ids=["kta", "cka_biased", "cka"]
)
def test_rotations_and_joint_permutations_only(normal, measure):
    F, G = normal(9, 4), normal(9, 3)
    Q = torch.linalg.qr(normal(4, 4)).Q
    order = torch.tensor([3, 1, 4, 0, 5, 8, 2, 6, 7])
    value = measure(F, G)
    assert_close(measure(F @ Q, G), value)
    assert_close(measure(F[order], G[order]), value)
    stretch = torch.diag(torch.tensor([1.0, 5.0, 0.2, 3.0], dtype=torch.float64))
    assert abs(measure(F @ stretch, G) - value) > 1e-3
    assert abs(measure(F[order], G) - value) > 1e-3


@pytest.mark.spec("3.P10")
def test_constants_are_invisible_to_cka_but_not_to_kta(normal):
    F, G, v = normal(9, 4), normal(9, 3), normal(9)
    K, L = kernel.gram(F), kernel.gram(G)
    moved = K + v.unsqueeze(0) + v.unsqueeze(1) + 2.5
    for measure in (biased, cka):
        assert_close(measure(moved, L), measure(K, L))
    for measure in (linear_biased, linear_cka):
        assert_close(measure(F + normal(4), G), measure(F, G))
    assert abs(kta(moved, L) - kta(K, L)) > 1e-3
    assert abs(linear_kta(F + normal(4), G) - linear_kta(F, G)) > 1e-3


@pytest.mark.spec("3.P11")
@pytest.mark.parametrize(("d", "e"), [(3, 4), (30, 40), (3, 40)], ids=["tall", "wide", "mixed"])
def test_features_and_gram_give_the_same(normal, d, e):
    F, G = normal(10, d) + 1, normal(10, e) - 2
    K, L = kernel.gram(F), kernel.gram(G)
    assert_close(linear_kta(F, G), kta(K, L))
    assert_close(linear_biased(F, G), biased(K, L))
    assert_close(linear_cka(F, G), cka(K, L), scale=10)


@pytest.mark.spec("3.P12")
def test_trace_form_is_the_double_sum(normal):
    K, L = kernel.gram(normal(6, 4)), kernel.gram(normal(6, 2))
    trace = (K @ L).trace() / ((K @ K).trace() * (L @ L).trace()).sqrt()
    assert_close(kta(K, L), trace)
    assert_close(kta(K, L), reference.kta(K.numpy(), L.numpy()))


@pytest.mark.spec("3.P13")
def test_one_only_for_proportional_kernels(normal):
    K, v = kernel.gram(normal(8, 3)), normal(8)
    assert_close(kta(K, 3 * K), 1.0)
    assert kta(K, K + 0.1 * kernel.gram(normal(8, 3))) < 1 - 1e-6
    shifted = 2 * K + v.unsqueeze(0) + v.unsqueeze(1)
    assert_close(biased(K, shifted), 1.0)
    assert kta(K, shifted) < 1 - 1e-6


@pytest.mark.spec("3.P14")
def test_closed_forms_for_balanced_classes(normal):
    n, c = len(BALANCED), 3
    I = torch.eye(n, dtype=torch.float64)  # noqa: E741
    K = kernel.target_gram(BALANCED)
    assert_close(kta(I, K), (c / n) ** 0.5)
    assert_close(biased(I, K), ((c - 1) / (n - 1)) ** 0.5)
    assert_close(kta(torch.ones_like(I), K), 1 / c**0.5)
    # A projector of rank r that contains the centred targets.
    r = 5
    inside = Y - Y.mean(0)
    extra = normal(n, r - (c - 1))
    basis = torch.linalg.qr(torch.cat([inside[:, :2], extra - extra.mean(0)], 1)).Q
    assert_close(linear_biased(basis, Y), ((c - 1) / r) ** 0.5)
    simplex = torch.eye(c, dtype=torch.float64) - 1 / c
    collapsed = (simplex @ normal(c, c).double())[BALANCED]
    rotated = simplex[BALANCED] @ torch.linalg.qr(normal(c, c)).Q + normal(c)
    assert_close(target_cka(rotated, BALANCED, debiased=False), 1.0)
    assert_close(target_cka(rotated, BALANCED), 1.0)
    assert target_cka(collapsed, BALANCED) < 1  # class means, but not at the corners of a simplex


@pytest.mark.spec("3.P15")
def test_recoding_of_targets(normal):
    F, K = normal(12, 4), kernel.target_gram(BALANCED)
    signs = 2 * Y - 1
    assert_close(kernel.target_gram(signs), 4 * K + (3 - 4))
    for measure in (linear_biased, linear_cka):
        assert_close(measure(F, signs), measure(F, Y))
        assert_close(measure(F, -0.3 * Y + normal(3)), measure(F, Y))
    assert abs(linear_kta(F, signs) - linear_kta(F, Y)) > 1e-3
    four = torch.nn.functional.one_hot(torch.arange(12) % 4).double()
    assert_close(linear_kta(F, 2 * four - 1), linear_kta(F, four))  # the trap at four classes


@pytest.mark.spec("3.P16")
@pytest.mark.parametrize("measure", [kta, biased, cka], ids=["kta", "cka_biased", "cka"])
def test_adding_the_target_kernel_never_hurts(normal, measure):
    K, L = kernel.gram(normal(12, 6)), kernel.target_gram(BALANCED)
    values = torch.stack([measure(K + e * L, L) for e in np.linspace(0, 20, 40)])
    assert (values.diff() >= -1e-12).all()
    assert_close(measure(K + 1e12 * L, L), 1.0)


@pytest.mark.spec("3.P17")
def test_the_misreading_of_equation_four(normal):
    K, L = kernel.gram(normal(6, 4)), kernel.gram(normal(6, 4))
    misread = (K @ L).square().sum() / ((K @ K).norm() * (L @ L).norm())
    assert_close(misread, kta(K @ K, L @ L))
    assert abs(misread - kta(K, L)) > 1e-3


@pytest.mark.spec("3.P18")
def test_a_large_mean_swamps_kta_and_not_cka(normal):
    F = normal(12, 4)
    moved = F.clone()
    moved[:, 0] += 1e6
    assert_close(linear_kta(moved, Y), 1 / 3**0.5, scale=1e4)
    assert_close(linear_biased(moved, Y), linear_biased(F, Y), scale=10)
    assert_close(linear_cka(moved, Y), linear_cka(F, Y), scale=100)


@pytest.mark.spec("3.P19")
@pytest.mark.parametrize("labels", [BALANCED, UNBALANCED], ids=["balanced", "unbalanced"])
@pytest.mark.parametrize("d", [4, 40], ids=["tall", "wide"])
@pytest.mark.parametrize("debiased", [True, False], ids=["debiased", "biased"])
def test_class_means_form(normal, labels, d, debiased):
    F = normal(12, d) + 3
    one_hot = torch.nn.functional.one_hot(labels).double()
    expected = cka(kernel.gram(F), kernel.target_gram(labels), debiased=debiased)
    assert_close(target_cka(F, labels, debiased=debiased), expected, scale=100)
    assert_close(linear_cka(F, one_hot, debiased=debiased), expected, scale=100)
    counts = torch.bincount(labels).double()
    means = torch.stack([F[labels == c].mean(0) for c in range(3)])
    numerator = (counts.square() * (means - F.mean(0)).square().sum(1)).sum()
    centered = double_center(kernel.gram(F))
    assert_close(
        (centered * kernel.target_gram(labels)).sum(), numerator, scale=float(centered.norm())
    )


def test_a_dominant_class_costs_no_digits():
    labels = torch.zeros(1_000_000, dtype=torch.int64)
    labels[0] = 1
    norm = _from_features.LabelKernel.of(labels, 3).norm_squared
    assert norm.item() == pytest.approx(4 * (1 - 1e-6) ** 2, rel=1e-14)


def test_class_sums_by_product_and_by_index_agree(normal, monkeypatch):
    F = normal(12, 4)
    expected = target_cka(F, UNBALANCED)
    monkeypatch.setattr(_from_features, "_FEW_CLASSES", 2)
    assert_close(target_cka(F, UNBALANCED), expected)


@pytest.mark.spec("3.P20")
def test_kta_with_signs(normal):
    K, y = kernel.gram(normal(8, 3)), torch.tensor([1.0, -1, 1, 1, -1, 1, -1, -1]).double()
    assert_close(kta(K, torch.outer(y, y)), y @ K @ y / (8 * K.norm()))


@pytest.mark.spec("3.P21")
def test_repeated_examples_change_nothing(normal):
    F, G = normal(7, 3), normal(7, 2)
    F3, G3 = F.repeat(3, 1), G.repeat(3, 1)
    assert_close(linear_kta(F3, G3), linear_kta(F, G))
    assert_close(linear_biased(F3, G3), linear_biased(F, G))
    one, three = kernel.linear_spectrum(F), kernel.linear_spectrum(F3)
    assert_close(three.eigenvalues, one.eigenvalues)
    before = kernel.cumulative_power(one, G).curve
    assert_close(kernel.cumulative_power(three, G3).curve[:4], before[:4])


@pytest.mark.parametrize("mean", [1e3, 1e6], ids=str)
def test_a_large_mean_in_float32_costs_no_more_than_the_features_rounding(normal, mean):
    F = (normal(60, 5) + mean).float()
    labels = torch.arange(60) % 3
    exact = reference.cka(
        (F.double() - F.double().mean(0)).numpy() @ (F.double() - F.double().mean(0)).numpy().T,
        reference.target_gram(labels.tolist()),
        debiased=False,
    )
    assert_close(target_cka(F, labels, debiased=False), exact, dtype=torch.float32)


def test_permuted_cka_is_the_cka_of_permuted_labels(normal, generator):
    gram = kernel.gram(normal(12, 5))
    orders = torch.stack([torch.randperm(12, generator=generator) for _ in range(6)])
    centered = kernel.CenteredGrams.of(gram.unsqueeze(0))
    expected = [cka(gram, kernel.target_gram(BALANCED[order]).double()) for order in orders]
    found = kernel.permuted_cka(centered.grams[0], Y[orders])
    assert_close(found, torch.stack(expected))


def test_permuted_cka_of_several_kernels_is_that_of_each(normal, generator):
    x, Y = normal(3, 8, 4), normal(8, 2)
    grams = x @ x.mT
    grams[1] = 1.0  # nothing is left of it
    centered = kernel.CenteredGrams.of(grams, (1e-16, 1e-16, 1e-7))
    orders = torch.stack([torch.randperm(8, generator=generator) for _ in range(4)])
    found = kernel.permuted_cka(centered.grams, Y[orders], eps=centered.eps)
    for K, eps, row in zip(centered.grams, centered.eps, found, strict=True):
        single = kernel.permuted_cka(K, Y[orders], eps=eps)
        torch.testing.assert_close(row, single, equal_nan=True)
    assert found[1].isnan().all()
    assert not found[[0, 2]].isnan().any()


def test_permuted_cka_is_undefined_where_all_pairs_are_equally_similar():
    """Two orthogonal examples of every class: nothing is left of the kernel but its diagonal."""
    centered = kernel.CenteredGrams.of(torch.eye(12, dtype=torch.float64).unsqueeze(0))
    assert kernel.permuted_cka(centered.grams[0], Y.unsqueeze(0)).isnan().all()
    assert cka(torch.eye(12, dtype=torch.float64), Y @ Y.T).isnan()


def test_centred_kernels_side_by_side(normal):
    first, second = (torch.stack([kernel.gram(normal(9, d)) for d in (2, 4)]) for _ in range(2))
    found = kernel.centered_cka(*(kernel.CenteredGrams.of(side) for side in (first, second)))
    assert_close(found, torch.stack([torch.stack([cka(a, b) for b in second]) for a in first]))
    some = torch.tensor([0, 2, 3, 5, 8])
    part = kernel.CenteredGrams.of(first).take(some)
    expected = cka(first[0][some][:, some], second[1][some][:, some])
    assert_close(
        kernel.centered_cka(part, kernel.CenteredGrams.of(second).take(some))[0, 1], expected
    )
