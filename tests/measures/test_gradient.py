"""Numbered properties of spec 5 that concern functions of arrays."""

from itertools import combinations, permutations
from math import comb, inf, sqrt

import pytest
import torch

from tests.reference import gradient as reference
from tests.tolerances import assert_close
from theodolite.errors import TheodoliteError
from theodolite.measures import gradient
from theodolite.measures.gradient import SetSums, VectorMoments

HAND = torch.tensor([[3.0, 0.0], [0.0, 4.0], [3.0, 4.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 0, 1, 1, 1, 2, 2])


@pytest.fixture
def vectors(generator):
    return torch.randn(7, 5, generator=generator, dtype=torch.float64) + 0.3


def omega_from_sums(v):
    n, q = len(v), v.sum(0).square().sum()
    s1, s2 = v.norm(dim=1).sum(), v.square().sum()
    return n * (q - s2) / ((n - 1) * s1**2)


@pytest.mark.spec("5.P1")
def test_three_forms_of_omega_agree(vectors):
    assert_close(gradient.vector_alignment(vectors), reference.vector_alignment(vectors.numpy()))
    assert_close(gradient.vector_alignment(vectors), omega_from_sums(vectors))
    assert_close(gradient.vector_alignment(HAND), 25 / 48)


@pytest.mark.spec("5.P2")
def test_sum_over_pairs_from_two_sums(vectors):
    sums = VectorMoments.of(vectors).set_sums()
    pairs = sum(vectors[i] @ vectors[j] for i, j in permutations(range(7), 2))
    assert_close(sums.sum_square - sums.square_sum, [pairs], scale=100)


@pytest.mark.spec("5.P3")
def test_one_for_equal_vectors_only(vectors):
    equal = vectors[:1].expand(6, -1)
    assert_close(gradient.vector_alignment(equal), 1.0)
    longer = equal.clone()
    longer[0] *= 1.01
    assert gradient.vector_alignment(longer) < 1 - 1e-6
    assert gradient.vector_alignment(vectors) < 1


@pytest.mark.spec("5.P4")
@pytest.mark.parametrize("n", [2, 3, 10])
def test_lowest_value_for_two_opposite_vectors(n):
    v = torch.zeros(n, 4, dtype=torch.float64)
    v[0, 1], v[1, 1] = 2.0, -2.0
    lowest = -n / (2 * (n - 1))
    assert_close(gradient.vector_alignment(v), lowest)
    v[1, 1] = -1.9
    assert gradient.vector_alignment(v) > lowest + 1e-6


@pytest.mark.spec("5.P5")
def test_equal_norms_make_omega_the_stiffness(vectors):
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    assert_close(gradient.vector_alignment(unit), gradient.cosine_stiffness(unit))
    simplex = torch.eye(5, dtype=torch.float64) - 0.2
    assert_close(gradient.vector_alignment(simplex), -1 / 4)


@pytest.mark.spec("5.P6")
def test_orthogonal_vectors_of_any_norm_have_none():
    v = torch.diag(torch.tensor([1.0, 20.0, 0.3, 7.0], dtype=torch.float64))
    assert_close(gradient.vector_alignment(v), 0.0)


@pytest.mark.spec("5.P7")
@pytest.mark.parametrize(
    ("dtype", "factor"),
    [
        (torch.float32, 1e18),
        (torch.float32, 1e-18),
        (torch.float32, -3e37),
        (torch.float32, 1e-36),
        (torch.float64, 1e120),
        (torch.float64, 1e-120),
        (torch.float64, -1e300),
        (torch.float64, 1e-300),
    ],
)
@pytest.mark.parametrize("measure", ["vector_alignment", "cosine_stiffness", "gradient_diversity"])
def test_scale_does_not_matter(vectors, dtype, factor, measure):
    function = getattr(gradient, measure)
    v = vectors.to(dtype)
    assert_close(function(v * factor), function(v), scale=10, dtype=dtype)


@pytest.mark.spec("5.P8")
def test_invariant_to_rotation_order_and_zero_columns(vectors, generator):
    q = torch.linalg.qr(torch.randn(5, 5, generator=generator, dtype=torch.float64)).Q
    before = gradient.vector_alignment(vectors)
    assert_close(gradient.vector_alignment(vectors @ q), before)
    assert_close(gradient.vector_alignment(vectors.flip(0)), before)
    assert_close(gradient.vector_alignment(torch.cat([vectors, 0 * vectors], 1)), before)


@pytest.mark.spec("5.P9")
def test_scaling_single_vectors_matters_to_omega_not_to_stiffness(vectors):
    moved = vectors.clone()
    moved[0] *= 5
    assert (gradient.vector_alignment(moved) - gradient.vector_alignment(vectors)).abs() > 1e-3
    assert_close(gradient.cosine_stiffness(moved), gradient.cosine_stiffness(vectors))


@pytest.mark.spec("5.P10")
def test_parallel_vectors_of_unequal_length(vectors):
    t = torch.tensor([0.0, 1.0, 2.5, 4.0], dtype=torch.float64)
    expected = 4 / 3 * (1 - t.square().sum() / t.sum() ** 2)
    assert_close(gradient.vector_alignment(torch.outer(t, vectors[0])), expected)


@pytest.mark.spec("5.P11")
@pytest.mark.parametrize("zeros", [1, 5])
def test_added_zero_vectors(vectors, zeros):
    n, total = len(vectors), len(vectors) + zeros
    padded = torch.cat([vectors, vectors.new_zeros(zeros, 5)])
    factor = total * (n - 1) / ((total - 1) * n)
    assert_close(gradient.vector_alignment(padded), factor * gradient.vector_alignment(vectors))


@pytest.mark.spec("5.P12")
@pytest.mark.parametrize("m", [2, 5])
def test_replication(vectors, m):
    n, q = len(vectors), vectors.sum(0).square().sum()
    s1, s2 = vectors.norm(dim=1).sum(), vectors.square().sum()
    expected = m * n * (m**2 * q - m * s2) / ((m * n - 1) * m**2 * s1**2)
    assert_close(gradient.vector_alignment(vectors.repeat(m, 1)), expected)
    limit = vectors.mean(0).square().sum() / vectors.norm(dim=1).mean() ** 2
    assert_close(gradient.vector_alignment(vectors.repeat(20_000, 1)), limit, scale=1e5)


@pytest.mark.spec("5.P13")
def test_numerator_is_a_u_statistic_and_denominator_is_biased(vectors):
    def parts(v):
        n = len(v)
        numerator = (v.sum(0).square().sum() - v.square().sum()) / (n * (n - 1))
        return torch.stack([numerator, v.norm(dim=1).mean() ** 2])

    subsets = torch.stack([parts(vectors[list(s)]) for s in combinations(range(7), 3)])
    full = parts(vectors)
    assert_close(subsets[:, 0].mean(), full[0])
    assert subsets[:, 1].mean() > full[1] + 1e-6


@pytest.mark.spec("5.P14")
def test_omega_from_diversity(vectors):
    n, s1, s2 = len(vectors), vectors.norm(dim=1).sum(), vectors.square().sum()
    diversity = gradient.gradient_diversity(vectors)
    omega = gradient.vector_alignment(vectors)
    assert_close(omega, n * s2 * (1 / diversity - 1) / ((n - 1) * s1**2))
    assert omega.sign() == (1 - diversity).sign()
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    expected = (1 / gradient.gradient_diversity(unit) - 1) / (n - 1)
    assert_close(gradient.vector_alignment(unit), expected)


@pytest.mark.spec("5.P15")
def test_diversity_of_equal_orthogonal_and_cancelling_vectors(vectors):
    assert_close(gradient.gradient_diversity(vectors[:1].expand(6, -1)), 1 / 6)
    assert gradient.gradient_diversity(vectors) > 1 / 7
    assert_close(gradient.gradient_diversity(torch.eye(4, dtype=torch.float64)), 1.0)
    cancelling = torch.tensor([[1.0, 2.0], [-1.0, -2.0]])
    assert gradient.gradient_diversity(cancelling) == inf
    assert gradient.gradient_diversity(torch.zeros(3, 2)).isnan()


@pytest.mark.spec("5.P16")
def test_stiffness_ignores_zero_rows_and_keeps_its_bounds(vectors):
    padded = torch.cat([vectors, vectors.new_zeros(4, 5)])
    assert_close(gradient.cosine_stiffness(padded), gradient.cosine_stiffness(vectors))
    assert_close(gradient.cosine_stiffness(padded), reference.cosine_stiffness(padded.numpy()))
    simplex = torch.eye(5, dtype=torch.float64) - 0.2
    lengths = torch.arange(1.0, 6.0, dtype=torch.float64).unsqueeze(1)
    assert_close(gradient.cosine_stiffness(simplex * lengths), -1 / 4)
    assert gradient.cosine_stiffness(padded[6:8]).isnan()


@pytest.mark.spec("5.P17")
def test_confusion_scales_with_the_square_and_bounds_omega(vectors):
    lowest = gradient.gradient_confusion(vectors)
    assert_close(gradient.gradient_confusion(-3 * vectors), 9 * lowest)
    assert gradient.vector_alignment(vectors) >= lowest / vectors.norm(dim=1).mean() ** 2
    assert gradient.gradient_confusion(vectors.abs()) >= 0


def test_confusion_in_blocks_equals_the_whole_gram(generator):
    v = torch.randn(1500, 3, generator=generator, dtype=torch.float64)
    gram = v @ v.T
    assert_close(gradient.gradient_confusion(v), gradient.confusion_of_gram((gram + gram.T) / 2))


@pytest.mark.spec("5.P20")
def test_class_value_is_that_of_the_subset(vectors):
    labels = torch.tensor([0, 0, 3, 3, 3, 1, 0])
    values = gradient.class_alignment(vectors, labels, num_classes=5)
    assert_close(values[0], gradient.vector_alignment(vectors[labels == 0]))
    assert_close(values[3], gradient.vector_alignment(vectors[labels == 3]))
    assert values[[1, 2, 4]].isnan().all()
    expected = (values[0] + values[3]) / 2
    assert_close(gradient.in_class_alignment(vectors, labels), expected)
    assert gradient.in_class_alignment(vectors, torch.arange(7)).isnan()


@pytest.mark.spec("5.P20")
@pytest.mark.parametrize(("zero", "expected"), [("nan", 1.0), ("zero", 0.5)])
def test_policy_for_a_class_of_zero_vectors(zero, expected):
    v = torch.tensor([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    labels = torch.tensor([0, 0, 1, 1])
    value = gradient.in_class_alignment(v, labels, zero=zero)
    assert_close(value, expected, dtype=torch.float32)


@pytest.mark.spec("5.P21")
def test_order_and_names_of_classes_do_not_matter(vectors, generator):
    order = torch.randperm(7, generator=generator)
    names = torch.tensor([2, 0, 1])
    value = gradient.in_class_alignment(vectors, LABELS)
    assert_close(gradient.in_class_alignment(vectors[order], names[LABELS[order]]), value)


@pytest.mark.spec("5.P22")
def test_one_class_is_all_pairs(vectors):
    labels = torch.zeros(7, dtype=torch.long)
    value = gradient.in_class_alignment(vectors, labels)
    assert_close(value, gradient.vector_alignment(vectors))
    assert_close(gradient.alignment_contrast(vectors, labels), 0.0)


@pytest.mark.spec("5.P23")
def test_numerator_averaged_over_all_groupings_is_that_of_all_pairs(vectors):
    v = vectors[:6]

    def numerator(rows):
        return (rows.sum(0).square().sum() - rows.square().sum()) / (len(rows) * (len(rows) - 1))

    groupings = [numerator(v[list(members)]) for members in combinations(range(6), 3)]
    assert len(groupings) == comb(6, 3)
    assert_close(torch.stack(groupings).mean(), numerator(v))


BAD = {
    "one vector": (HAND[:1], None),
    "no columns": (HAND[:, :0], None),
    "nan": (HAND * torch.nan, None),
    "labels too short": (HAND, torch.tensor([0, 1])),
    "negative label": (HAND, torch.tensor([0, -1, 0])),
    "label out of range": (HAND, torch.tensor([0, 1, 2])),
}


@pytest.mark.spec("5.P24")
@pytest.mark.parametrize(("vectors", "labels"), BAD.values(), ids=BAD.keys())
def test_bad_input_raises(vectors, labels):
    if labels is None:
        with pytest.raises(TheodoliteError):
            gradient.vector_alignment(vectors)
    else:
        # Lengths that differ are refused by the shape checker of the tests before ours.
        with pytest.raises((TheodoliteError, TypeError)):
            gradient.class_alignment(vectors, labels, num_classes=2)


@pytest.mark.spec("5.P40")
def test_relative_norm_of_a_zero_weight_is_undefined(vectors):
    expected = vectors.square().sum().sqrt() / (2 * sqrt(35))
    assert_close(gradient.relative_norm(vectors, torch.full_like(vectors, 2.0)), expected)
    assert gradient.relative_norm(vectors, 0 * vectors).isnan()
    assert gradient.relative_norm(0 * vectors, vectors) == 0


@pytest.mark.spec("5.P62")
def test_constant_logit_gradient_makes_top_gradients_align_as_features(vectors, generator):
    delta = torch.randn(4, generator=generator, dtype=torch.float64)
    top = torch.einsum("k,nh->nkh", delta, vectors)
    assert_close(gradient.vector_alignment(top), gradient.vector_alignment(vectors))
    # Linear network at scale 0: the back-propagated vector is the same for the whole class.
    back = torch.randn(3, generator=generator, dtype=torch.float64)
    hidden = torch.einsum("h,np->nhp", back, vectors)
    labels = torch.zeros(7, dtype=torch.long)
    assert_close(
        gradient.class_alignment(hidden, labels), gradient.class_alignment(vectors, labels)
    )


@pytest.mark.spec("5.P63")
@pytest.mark.parametrize("cut", [1, 3, 6])
@pytest.mark.parametrize("unit_length", [False, True])
def test_moments_of_shards_merge(vectors, cut, unit_length):
    def moments(rows):
        return VectorMoments.of(vectors[rows], LABELS[rows], 3, unit_length=unit_length)

    whole, merged = moments(slice(None)), moments(slice(cut)) + moments(slice(cut, None))
    for name in ("counts", "sums", "norm_sums", "square_sums"):
        assert_close(getattr(merged, name), getattr(whole, name))
    assert_close(merged.pooled().set_sums().alignment(), whole.pooled().set_sums().alignment())


@pytest.mark.spec("5.P64")
def test_weighted_alignment_is_the_weighted_cosine(vectors):
    value = gradient.weighted_alignment(vectors)
    assert_close(value, reference.weighted_alignment(vectors.numpy()))
    t = torch.tensor([0.5, 1.0, 7.0], dtype=torch.float64)
    assert_close(gradient.weighted_alignment(torch.outer(t, vectors[0])), 1.0)
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    assert_close(gradient.weighted_alignment(unit), gradient.vector_alignment(unit))
    alone = torch.zeros(3, 5, dtype=torch.float64)
    alone[1] = vectors[0]
    assert gradient.weighted_alignment(alone).isnan()


@pytest.mark.parametrize("shape", [(1000, 400), (200, 20_000), (20, 1_000_000)])
def test_float32_stays_close_to_float64(shape, generator):
    v = torch.randn(*shape, generator=generator) + 0.1
    labels = torch.arange(shape[0]) % 10
    for measure in (gradient.in_class_alignment, gradient.alignment_contrast):
        assert (measure(v, labels) - measure(v.double(), labels)).abs() < 1e-5


def test_tensors_of_any_shape_are_flattened(vectors):
    cube = vectors.reshape(7, 1, 5).expand(7, 2, 5)
    assert_close(gradient.vector_alignment(cube), gradient.vector_alignment(vectors))


def test_permutation_null_by_vmap(vectors, generator):
    # Only the grouping is permuted: norms and vectors stay, class sums are one product each.
    members = torch.nn.functional.one_hot(LABELS).double()
    norms = vectors.norm(dim=1)

    def in_class(order):
        member = members[order]
        sums = SetSums(
            member.sum(0),
            (member.T @ vectors).square().sum(1),
            member.T @ norms,
            member.T @ norms.square(),
        )
        return sums.alignment().mean()

    orders = torch.stack([torch.randperm(7, generator=generator) for _ in range(8)])
    null = torch.vmap(in_class)(orders)
    one_by_one = [gradient.in_class_alignment(vectors, LABELS[order]) for order in orders]
    assert_close(null, torch.stack(one_by_one))


@pytest.mark.spec("5.P16")
def test_stiffness_sees_the_direction_of_very_short_vectors(vectors):
    lengths = torch.tensor([1.0, 1e-30, 1e-12, 1e15, 1e-25, 3.0, 1e-8]).unsqueeze(1)
    mixed = vectors.float() * lengths
    assert_close(
        gradient.cosine_stiffness(mixed), gradient.cosine_stiffness(vectors), dtype=torch.float32
    )
