"""Read-outs judged by leaving one out: features and their inner products give the same answer."""

import pytest
import torch

from theodolite.measures.representation import (
    neighbour_accuracy,
    neighbour_accuracy_of_gram,
    readout_accuracy,
    readout_accuracy_of_gram,
)

PAIRS = [
    (neighbour_accuracy, neighbour_accuracy_of_gram),
    (readout_accuracy, readout_accuracy_of_gram),
]


@pytest.mark.parametrize(("of_features", "of_gram"), PAIRS, ids=["neighbours", "read-out"])
@pytest.mark.parametrize("shape", [(60, 5), (40, 90)], ids=["narrow", "wide"])
def test_gram_and_features_agree(of_features, of_gram, shape, generator):
    labels = torch.arange(shape[0]) % 3
    x = torch.randn(shape, generator=generator, dtype=torch.float64) + labels.unsqueeze(1) / 2
    assert of_features(x, labels) == of_gram(x @ x.T, labels)


@pytest.mark.parametrize("measure", [neighbour_accuracy, readout_accuracy])
def test_labels_without_meaning_are_at_chance(measure, generator):
    x = torch.randn(400, 10, generator=generator)
    labels = torch.randint(0, 4, (400,), generator=generator)
    # Four standard errors of guessing one class in four with 400 examples: 4 x 0.022.
    assert abs(measure(x, labels).item() - 0.25) < 0.09


@pytest.mark.parametrize("measure", [neighbour_accuracy, readout_accuracy])
def test_one_class_is_undefined(measure):
    assert measure(torch.randn(5, 2), torch.zeros(5, dtype=torch.long)).isnan()


def test_a_product_of_signs_is_seen_by_neighbours_alone(generator):
    x = torch.randn(2000, 2, generator=generator)
    labels = (x[:, 0] * x[:, 1] > 0).long()
    assert neighbour_accuracy(x, labels) > 0.95
    assert readout_accuracy(x, labels) < 0.65  # a line that cuts off one corner gets a little more
