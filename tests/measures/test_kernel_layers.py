"""CKA of many layers at once."""

import numpy as np
import pytest
import torch

import theodolite
from tests.tolerances import assert_close
from theodolite.measures import kernel
from theodolite.measures.kernel import cka_matrix

LABELS = torch.arange(12) % 3


@pytest.fixture
def normal(generator):
    return lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("debiased", [True, False], ids=["debiased", "biased"])
@pytest.mark.parametrize("widths", [(2, 3, 1), (20, 30, 25), (2, 30, 5)], ids=str)
def test_cka_of_all_pairs_and_labels(normal, widths, debiased):
    layers = [normal(12, d) + 1 for d in widths]
    table = cka_matrix(layers, LABELS, debiased=debiased)
    assert table.estimator == ("debiased" if debiased else "biased")
    for i, a in enumerate(layers):
        expected = kernel.target_cka(a, LABELS, debiased=debiased)
        assert_close(table.target[i], expected, scale=100)
        for j, b in enumerate(layers):
            one = kernel.linear_cka(a, b, debiased=debiased)
            assert_close(table.between[i, j], one, scale=100)
    assert cka_matrix(layers, debiased=debiased).target is None
    assert_close(cka_matrix(layers, debiased=debiased).between, table.between)


def test_cka_matrix_takes_what_features_returns(normal):
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    found = theodolite.features(model, normal(12, 5).float())
    listed = cka_matrix(list(found.values()), LABELS)
    assert_close(cka_matrix(found, LABELS).between, listed.between)
    arrays = {name: part.numpy() for name, part in found.items()}
    assert isinstance(cka_matrix(arrays).between, np.ndarray)


def test_square_features_that_are_no_gram_matrix_pass(normal):
    points = normal(12, 1)
    distances = (points - points.T).abs()  # symmetric, with a diagonal of zeros
    square = [normal(12, 12), torch.eye(12).double(), torch.ones(12, 12).double(), distances]
    assert cka_matrix(square).between[0, 0] == pytest.approx(1.0)
    gram = kernel.gram(normal(12, 3))
    widened = torch.cat([gram, torch.zeros(12, 1).double()], dim=1)  # as the message says
    assert cka_matrix([widened]).between.isfinite().all()


def test_a_dead_layer_leaves_the_others_alone(normal):
    layers = [normal(12, 3), torch.ones(12, 2).double(), normal(12, 4)]
    table = cka_matrix(layers, LABELS)
    assert table.between[1].isnan().all()
    assert table.target[1].isnan()
    assert table.between[[0, 2]][:, [0, 2]].isfinite().all()


def test_arrays_and_lower_precision_come_back_in_kind(normal):
    layers = [normal(12, 3), normal(12, 4)]
    exact = cka_matrix(layers, LABELS)
    arrays = cka_matrix([layer.numpy() for layer in layers], LABELS.numpy())
    assert isinstance(arrays.between, np.ndarray)
    assert_close(arrays.between, exact.between)
    rough = cka_matrix([layer.float() for layer in layers], LABELS)
    assert rough.between.dtype == torch.float32
    assert_close(rough.between, exact.between, dtype=torch.float32)


def test_gradients_flow_through_every_layer(normal):
    layers = [normal(12, 3).requires_grad_(), normal(12, 20).requires_grad_()]
    table = cka_matrix(layers, LABELS)
    (table.between.sum() + table.target.sum()).backward()
    for layer in layers:
        assert layer.grad.isfinite().all()
        assert layer.grad.abs().max() > 0
