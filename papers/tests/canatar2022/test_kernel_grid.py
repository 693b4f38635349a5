"""Networks, probes and profiles of the grid."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from theodolite.linalg import double_center
from theodolite.measures.kernel import gram, linear_spectrum, target_gram
from theodolite_papers.canatar2022._grid_claims import kept, shown
from theodolite_papers.canatar2022._kernels import (
    BIASED,
    DEBIASED,
    NULL,
    NULL_TOP,
    mode_curves,
    profile_rows,
    thinned,
)
from theodolite_papers.canatar2022.fig1_6_table1 import (
    Cell,
    ResidualMLP,
    build_network,
    calibrated,
    channel_standardized,
    load_cell_data,
    measure,
    probed_layers,
    recipe_of,
)
from theodolite_papers.ledger import Result, Results, Trial

TINY = Cell(train=50, test=60, probe=40, epochs=2, middle=1, permutations=2, width=8)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def test_channels_have_the_printed_statistics(generator):
    images = torch.randint(256, (10, 3, 8, 8), generator=generator, dtype=torch.uint8)
    scaled = channel_standardized(images)
    assert scaled.dtype == torch.float32
    for channel, (mean, std) in enumerate(
        [(125.307, 51.5865), (122.961, 50.847), (113.8575, 51.255)]
    ):
        expected = (images[:, channel].double() - mean) / std
        torch.testing.assert_close(scaled[:, channel], expected.float(), rtol=1e-5, atol=1e-6)


def test_a_silent_branch_is_the_identity_with_skips_and_nothing_without(generator):
    x = torch.rand(5, 6, generator=generator)
    for skip in (True, False):
        network = ResidualMLP(6, 4, 3, skip).eval()
        with torch.no_grad():
            network.block2.second[0].weight.zero_()
            inner = network.block1(network.unit1(x))
            expected = inner if skip else torch.zeros_like(inner)
            torch.testing.assert_close(network.block2(inner), expected)
            features = network.unit10(network.block4(network.block3(network.block2(inner))))
            torch.testing.assert_close(network(x), features @ network.head.weight.T)


def test_ten_layers_are_probed_and_skips_add_no_parameters(generator):
    networks = [ResidualMLP(6, 4, 3, skip) for skip in (True, False)]
    counts = {sum(p.numel() for p in network.parameters()) for network in networks}
    assert counts == {6 * 4 + 9 * 16 + 10 * 8 + 12}
    names = probed_layers(networks[0])
    assert len(names) == 10
    assert set(names) <= dict(networks[0].named_modules()).keys()


def test_calibrated_statistics_are_those_of_the_data_and_the_original_is_left(generator):
    network = ResidualMLP(6, 4, 3, skip=True)
    x = 5 + torch.rand(60, 6, generator=generator)
    twin = calibrated(network, x, chunk=20)
    norm = twin.unit1[1]
    inner = network.unit1[0](x).detach()
    torch.testing.assert_close(norm.running_mean, inner.mean(0))
    spread = torch.stack([part.var(0) for part in torch.split(inner, 20)]).mean(0)
    torch.testing.assert_close(norm.running_var, spread)
    assert not twin.training
    assert network.training
    assert network.unit1[1].running_mean.abs().max() == 0


def test_cells_of_a_seed_share_data_and_weights_and_differ_in_their_settings():
    trial = Trial(3)
    first = load_cell_data(TINY, trial)[0]
    data, train, test = load_cell_data(replace(TINY, skip=False, batch_size=7), trial)
    torch.testing.assert_close(first.x_train, data.x_train)
    assert data.y_train[train].bincount().tolist() == [4] * 10
    assert data.y_test[test].bincount().tolist() == [4] * 10
    weights = [
        build_network(replace(TINY, skip=s), data, trial).state_dict() for s in (True, False)
    ]
    torch.testing.assert_close(weights[0], weights[1])
    plain = recipe_of(replace(TINY, momentum=0.0, augmentation=True), 3)
    assert plain.optimizer == "sgd"
    assert plain.augmentation is not None
    assert recipe_of(TINY, 3).optimizer == "momentum"


def test_null_of_a_profile_is_the_mean_over_permutations(generator):
    """Its exact mean is tr(HKH) tr(HLH) / ((n - 1) |HKH| |HLH|)."""
    features = torch.randn(40, 30, generator=generator, dtype=torch.float64)
    labels = torch.arange(40) % 4
    rows = profile_rows([features], labels, 300, generator)[:, 0]
    centered = [double_center(gram(features)), double_center(target_gram(labels, 4).double())]
    traces, norms = [k.trace() for k in centered], [torch.linalg.matrix_norm(k) for k in centered]
    exact = float(traces[0] * traces[1] / (39 * norms[0] * norms[1]))
    assert rows[NULL] == pytest.approx(exact, rel=0.02)
    assert rows[NULL_TOP] > rows[NULL]
    assert rows[BIASED] > 0.2 > abs(rows[DEBIASED])  # labels have nothing to do with the features


def test_curves_of_collapsed_features_end_at_the_classes(generator):
    labels = torch.arange(30) % 3
    noise = 1e-4 * torch.randn(30, 6, generator=generator, dtype=torch.float64)
    features = torch.eye(6, dtype=torch.float64)[labels] + noise
    curves = mode_curves(linear_spectrum(features), labels, 3, points=20)
    assert curves.modes.tolist() == [1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose(curves.power[:3], [1 / 3, 2 / 3, 1], atol=0.05)
    assert curves.numbers["gap"] > 1e4
    assert curves.numbers["power"] == pytest.approx(1, abs=1e-4)
    assert curves.numbers["rank"] == 3


@pytest.mark.parametrize(("count", "points"), [(1, 5), (6, 20), (512, 24)])
def test_thinned_modes_have_both_ends_and_no_repeats(count, points):
    modes = thinned(count, points)
    assert modes[0] == 1
    assert modes[-1] == count
    assert len(set(modes.tolist())) == len(modes) <= points


def test_a_run_that_diverges_is_recorded_and_left_out():
    measured = measure(replace(TINY, learning_rate=1e30), Trial(5))
    assert np.isnan(measured.numbers["train_accuracy"])
    assert "diverged" in measured.notes
    result = Result(measured.numbers, measured.arrays, measured.notes)
    assert len(kept(Results((result,)))) == len(shown(Results((result,)))) == 0


def test_equal_seeds_measure_equal_numbers():
    first, second = (measure(TINY, Trial(5)) for _ in range(2))
    np.testing.assert_equal(dict(first.numbers), dict(second.numbers))  # nan equals nan here
    np.testing.assert_array_equal(first.arrays["target_test"], second.arrays["target_test"])
    assert first.arrays["power_9"].shape[0] == 3
