"""Activity of neurons: fractions, histograms and how they merge."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tolerances import assert_close
from theodolite_papers.maennel2020.formulas.activation import (
    activation_fractions,
    activation_histogram,
    merge_activation_fractions,
)

NEURONS = pytest.mark.parametrize("neuron", ["element", "channel", "channel_mean"])


def relu_maps(seed=0):
    """Three channels of 4 x 5 maps, the last one dead."""
    generator = torch.Generator().manual_seed(seed)
    maps = (torch.randn(10, 3, 4, 5, generator=generator, dtype=torch.float64) - 1).relu()
    maps[:, 2] = 0
    return maps


@pytest.mark.spec("2.P44")
@NEURONS
def test_means_over_neurons_and_examples_agree(neuron):
    fractions = activation_fractions(relu_maps(), neuron)
    assert_close(fractions.neurons.mean(), fractions.examples.mean())
    assert_close(fractions.mean, fractions.neurons.mean())


@pytest.mark.spec("2.P44")
@NEURONS
def test_positive_scaling_changes_nothing(neuron):
    plain, scaled = (
        activation_fractions(maps, neuron) for maps in (relu_maps(), 1e-9 * relu_maps())
    )
    assert torch.equal(plain.neurons, scaled.neurons)
    assert torch.equal(plain.examples, scaled.examples)


@pytest.mark.spec("2.P44")
@NEURONS
def test_a_zero_channel_is_dead(neuron):
    assert float(activation_fractions(relu_maps(), neuron).dead) >= 1 / 3
    assert float(activation_fractions(relu_maps()[:, 2:], neuron).dead) == 1


@pytest.mark.spec("2.P44")
@pytest.mark.parametrize("bins", [1, 7, 20])
def test_histograms_sum_to_one(bins):
    fractions = activation_fractions(relu_maps())
    assert_close(activation_histogram(fractions.neurons, bins).sum(), 1)
    assert_close(activation_histogram(fractions.examples, bins).sum(), 1)


def test_elements_channels_and_means_are_counted_literally():
    maps = relu_maps().numpy()
    active = maps > 0
    elements, channels, means = (
        activation_fractions(relu_maps(), neuron)
        for neuron in ("element", "channel", "channel_mean")
    )
    assert_close(elements.neurons, active.reshape(10, -1).mean(0))
    assert_close(channels.neurons, active.any((2, 3)).mean(0))
    assert_close(channels.examples, active.any((2, 3)).mean(1))
    assert_close(means.neurons, active.mean((0, 2, 3)))


def test_units_of_a_dense_layer_are_their_own_channels():
    units = relu_maps()[:, :, 0, 0]
    assert torch.equal(
        activation_fractions(units, "channel").neurons, activation_fractions(units).neurons
    )


def test_active_means_strictly_positive():
    fractions = activation_fractions(torch.tensor([[0.0, -1.0, 1.0], [0.0, 2.0, 1e-30]]))
    assert fractions.neurons.tolist() == [0, 0.5, 1]
    assert fractions.dead.item() == pytest.approx(1 / 3)
    assert fractions.always.item() == pytest.approx(1 / 3)


@pytest.mark.spec("2.P44")
@settings(max_examples=15)
@given(st.lists(st.integers(1, 9), max_size=4))
def test_any_split_merges_to_the_same_fractions(cuts):
    edges = [0, *sorted(set(cuts)), 10]
    parts = [activation_fractions(relu_maps()[low:high]) for low, high in pairwise(edges)]
    whole, merged = activation_fractions(relu_maps()), merge_activation_fractions(parts)
    assert_close(merged.neurons, whole.neurons)
    assert_close(merged.examples, whole.examples)
    assert_close(merged.dead, whole.dead)
    assert_close(merged.always, whole.always)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("bins", [10, 20, 100])
def test_fractions_on_an_edge_belong_to_the_bin_above(bins, dtype):
    """29/100 times 100 is below 29 in floating point."""
    fractions = (torch.arange(bins + 1, dtype=torch.float64) / bins).to(dtype)
    expected = np.ones(bins)
    expected[-1] = 2  # 1 belongs to the last bin, which is closed
    histogram = activation_histogram(fractions, bins)
    assert_close(histogram * (bins + 1), expected, dtype=dtype)


def test_histogram_has_twenty_bins_by_default():
    assert activation_histogram(torch.tensor([0.0])).tolist() == [1.0] + [0.0] * 19
