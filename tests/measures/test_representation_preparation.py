"""Preparation of features and labels: spec 1, section 2.1."""

import numpy as np
import pytest
import torch

from tests.tolerances import assert_close
from theodolite.measures.representation import prepare_features, scaled_targets


def test_unit_rows_and_dead_rows():
    features = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, -2.0]])
    prepared = prepare_features(features)
    assert_close(prepared.features, [[0.6, 0.8], [0, 0], [0, -1]], dtype=torch.float32)
    assert prepared.features.dtype == torch.float32
    assert prepared.zero_rows == 1


def test_bias_is_appended_before_rows_are_scaled():
    prepared = prepare_features(torch.tensor([[2.0, 2.0], [0.0, 0.0]]), bias=True)
    assert_close(prepared.features, [[2 / 3, 2 / 3, 1 / 3], [0, 0, 1]], dtype=torch.float32)
    assert prepared.zero_rows == 0


def test_the_longest_row_sets_the_scale():
    prepared = prepare_features(torch.tensor([[3.0, 4.0], [0.0, 1.0]]), normalize="max")
    assert_close(prepared.features, [[0.6, 0.8], [0, 0.2]], dtype=torch.float32)


def test_rows_may_stay_as_they_are():
    rows = torch.tensor([[1.0, 5.0], [3.0, 5.0]], dtype=torch.float64)
    assert_close(prepare_features(rows, normalize="none").features, rows)


@pytest.mark.parametrize("size", [1e-300, 1e-170, 1e170, 1e300], ids=str)
@pytest.mark.parametrize("normalize", ["unit", "max"])
def test_extreme_rows_are_scaled_without_overflow(size, normalize):
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]], dtype=torch.float64)
    expected = prepare_features(rows, normalize=normalize).features
    assert_close(prepare_features(size * rows, normalize=normalize).features, expected)


def test_gradient_of_a_dead_row_is_finite():
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    prepare_features(rows).features.sum().backward()
    assert rows.grad.isfinite().all()


def test_gradient_of_row_scaling_is_the_derivative(generator):
    rows = torch.randn(4, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    scaled = [
        lambda x, mode=mode: prepare_features(x, normalize=mode).features
        for mode in ("unit", "max")
    ]
    assert all(torch.autograd.gradcheck(function, rows) for function in scaled)


def test_targets_are_moved_to_the_unit_interval_by_the_training_map():
    scaled = scaled_targets(torch.tensor([2.0, 4.0, 3.0]))
    assert scaled.values.tolist() == [-1, 1, 0]
    assert scaled.apply(torch.tensor([5.0])).tolist() == [2]
    assert (scaled.slope.item(), scaled.offset.item()) == (1, -3)


def test_numpy_targets_stay_numpy():
    scaled = scaled_targets(np.array([0.0, 10.0]))
    assert isinstance(scaled.values, np.ndarray)
    np.testing.assert_allclose(scaled.apply(np.array([5.0])), [0])
