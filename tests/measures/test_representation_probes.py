"""Linear probes judged by leaving one out: features and inner products give the same answer."""

import pytest
import torch

from benchmarks.transfer.tangent_regression import leave_one_out_tangent_regression
from theodolite.measures.kernel import leave_one_out_regression
from theodolite.measures.representation import (
    leave_one_out_probe,
    neighbour_accuracy,
    neighbour_accuracy_of_gram,
    probe_accuracy,
)


def regression_accuracy(gram, labels):
    return leave_one_out_regression(gram, labels).accuracy


PAIRS = [(neighbour_accuracy, neighbour_accuracy_of_gram), (probe_accuracy, regression_accuracy)]


@pytest.mark.parametrize(("of_features", "of_gram"), PAIRS, ids=["neighbours", "linear probe"])
@pytest.mark.parametrize("shape", [(60, 5), (40, 90)], ids=["narrow", "wide"])
def test_gram_and_features_agree(of_features, of_gram, shape, generator):
    labels = torch.arange(shape[0]) % 3
    x = torch.randn(shape, generator=generator, dtype=torch.float64) + labels.unsqueeze(1) / 2
    assert of_features(x, labels) == of_gram(x @ x.T, labels)


@pytest.mark.parametrize("measure", [neighbour_accuracy, probe_accuracy])
def test_labels_without_meaning_are_at_chance(measure, generator):
    x = torch.randn(400, 10, generator=generator)
    labels = torch.randint(0, 4, (400,), generator=generator)
    # Four standard errors of guessing one class in four with 400 examples: 4 x 0.022.
    assert abs(measure(x, labels).item() - 0.25) < 0.09


@pytest.mark.parametrize("measure", [neighbour_accuracy, probe_accuracy])
def test_one_class_is_undefined(measure):
    assert measure(torch.randn(5, 2), torch.zeros(5, dtype=torch.long)).isnan()


def test_a_product_of_signs_is_seen_by_neighbours_alone(generator):
    x = torch.randn(2000, 2, generator=generator)
    labels = (x[:, 0] * x[:, 1] > 0).long()
    assert neighbour_accuracy(x, labels) > 0.95
    assert probe_accuracy(x, labels) < 0.65  # a line that cuts off one corner gets a little more


@pytest.mark.parametrize("width", [0, 20, 200], ids=["constant", "narrow", "wide"])
def test_random_labels_reach_chance_and_not_less(width, generator):
    """An example that is left out makes its class rarer, which must not count against it."""
    found = []
    for _ in range(30):
        labels = (torch.arange(100) % 10)[torch.randperm(100, generator=generator)]
        x = torch.randn(100, max(width, 1), generator=generator) * (width > 0)
        found.append(probe_accuracy(x, labels).item())
    # Five standard errors of the mean of 30 shares of 100 examples, correlated ones included.
    assert abs(sum(found) / 30 - 0.1) < 0.03


@pytest.mark.parametrize("shape", [(30, 4), (20, 50)], ids=["narrow", "wide"])
def test_features_their_kernel_and_one_kernel_for_each_output_predict_alike(shape, generator):
    labels = torch.arange(shape[0]) % 3
    x = torch.randn(shape, generator=generator, dtype=torch.float64) + labels.unsqueeze(1) / 2
    gram = x @ x.T
    stacked = torch.einsum("xy,ij->xiyj", gram, torch.eye(3, dtype=torch.float64))
    from_features = leave_one_out_probe(x, labels)
    for other in (
        leave_one_out_regression(gram, labels),
        leave_one_out_tangent_regression(stacked, labels),
    ):
        torch.testing.assert_close(other.predictions, from_features.predictions)
        torch.testing.assert_close(other.error_interval, from_features.error_interval)
        assert other.ridge == from_features.ridge
        assert other.accuracy == from_features.accuracy


def test_intervals_hold_the_truth_as_often_as_they_say(generator):
    covered, held_out = 0, 4000
    for _ in range(40):
        weights = torch.randn(5, 1, generator=generator)
        x = torch.randn(150 + held_out, 5, generator=generator)
        y = x @ weights + torch.randn(len(x), 1, generator=generator)
        found = leave_one_out_probe(x[:150], y[:150])
        slope = torch.linalg.lstsq(x[:150], y[:150]).solution
        truth = (y[150:] - x[150:] @ slope).square().mean() / y[150:].var()
        covered += int(found.error_interval[0] <= truth <= found.error_interval[1])
    # 38 are expected; three standard errors (1.4 each) below that, rounded down.
    assert covered >= 33


def test_accuracy_of_numbers_is_undefined(generator):
    found = leave_one_out_probe(torch.randn(9, 2, generator=generator), torch.arange(9.0))
    assert found.accuracy.isnan()
    assert found.accuracy_interval.isnan().all()
    assert found.classes is None
    assert found.predictions.shape == (9, 1)
