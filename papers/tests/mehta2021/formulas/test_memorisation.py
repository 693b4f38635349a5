"""Extreme memorisation, and the measures of two vectors."""

from math import inf, isnan, sqrt

import numpy as np
import pytest
import torch

from tests.tolerances import assert_close
from theodolite.measures import gradient
from theodolite_papers.mehta2021.formulas import memorisation


@pytest.mark.spec("5.P18")
@pytest.mark.parametrize("cosine", [-0.7, 0.0, 0.4])
@pytest.mark.parametrize("ratio", [0.2, 1.0, 3.0])
def test_closed_forms_for_two_vectors(ratio, cosine):
    v = torch.tensor([[1.0, 0.0], [ratio * cosine, ratio * sqrt(1 - cosine**2)]]).double()
    closed = memorisation.two_vector_measures(1.0, ratio, cosine)
    assert_close(closed.diversity, gradient.gradient_diversity(v), dtype=torch.float32)
    assert_close(closed.stiffness, gradient.cosine_stiffness(v), dtype=torch.float32)
    assert_close(closed.confusion, gradient.gradient_confusion(v), dtype=torch.float32)
    assert_close(closed.alignment, gradient.vector_alignment(v), dtype=torch.float32)


@pytest.mark.spec("5.P18")
def test_closed_forms_at_their_edges():
    assert memorisation.two_vector_measures(2.0, 2.0, -1.0).diversity == inf
    one_zero = memorisation.two_vector_measures(2.0, 0.0, 0.3)
    assert isnan(one_zero.stiffness)
    assert (one_zero.alignment, one_zero.confusion, one_zero.diversity) == (0, 0, 1)


@pytest.mark.spec("5.P19")
def test_shape_of_the_two_vector_forms():
    cosines = np.linspace(-0.999, 0.999, 401)
    for ratio in (0.3, 1.0, 4.0):
        diversity = [memorisation.two_vector_measures(1.0, ratio, c).diversity for c in cosines]
        slopes = np.abs(np.diff(diversity))
        assert slopes.argmax() == 0
        forms = memorisation.two_vector_measures(1.0, ratio, 0.6)
        mirrored = memorisation.two_vector_measures(1.0, 1 / ratio, 0.6)
        assert forms.alignment == pytest.approx(mirrored.alignment)
        assert forms.stiffness == mirrored.stiffness
        assert forms.confusion == pytest.approx(ratio * 0.6)
        assert abs(forms.alignment) <= 0.6 + 1e-12
    assert memorisation.two_vector_measures(1.0, 1.0, 0.6).alignment == pytest.approx(0.6)
    assert memorisation.two_vector_measures(1.0, 1e9, 0.6).alignment < 1e-8


@pytest.mark.spec("5.P60")
@pytest.mark.parametrize(
    ("train", "test", "expected"),
    [(1.0, 0.1, True), (1.0, 0.109, True), (1.0, 0.1091, False), (0.999, 0.1, False)],
)
def test_extreme_memorization_is_perfect_training_at_chance(train, test, expected):
    # 0.1 + 3 sqrt(0.1 * 0.9 / 10000) = 0.109
    outcome = memorisation.is_extreme_memorization(train, test, chance=0.1, test_size=10_000)
    assert outcome is expected
    if train < 1:
        assert memorisation.is_extreme_memorization(train, test, 0.1, 10_000, tolerance=0.01)
