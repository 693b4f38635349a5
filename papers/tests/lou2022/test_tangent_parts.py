"""What the studies of tangent alignment share."""

import numpy as np
import pytest
import torch

from theodolite.errors import DomainError
from theodolite.theory.infinite_width import equilibrium_layer
from theodolite_papers.ledger import PAPERS, Result, Results, Trial, all_studies
from theodolite_papers.lou2022 import _depths
from theodolite_papers.lou2022._depths import (
    ROWS,
    Tabled,
    depth_fit,
    mean_cosine,
    measure_depth,
    peaks_of,
)
from theodolite_papers.lou2022._errata import ERRATA
from theodolite_papers.lou2022._hierarchy import (
    AlignmentWatch,
    alignments,
    log_slope,
    shape_of,
    weight_layers,
)
from theodolite_papers.lou2022._setting import (
    Architecture,
    Setting,
    build,
    final_numbers,
    fully_connected,
    learned,
    prepare,
    recipe_of,
)
from theodolite_papers.lou2022.formulas.infinite_width import infinite_alignment
from theodolite_papers.lou2022.theorems1_2_corollary1 import _crossing, sphere_pair

SMALL = Setting(depth=4, width=16, examples=200, probe=20, epochs=1)


@pytest.fixture(scope="module")
def ground():
    return prepare(SMALL, Trial(0))


def test_every_figure_and_table_once():
    shown = [item for s in all_studies().values() if s.paper == "lou2022" for item in s.shows]
    expected = [f"Figure {k}" for k in range(1, 24)] + [f"Table {k}" for k in range(1, 5)]
    expected = [item for item in expected if item not in ("Figure 8", "Figure 11")]  # drawings
    assert sorted(i for i in shown if i.startswith(("Figure", "Table"))) == sorted(expected)
    assert PAPERS["lou2022"].family == "tangent"


def test_probe_is_balanced_and_from_the_training_set(ground):
    x, y = ground.probe
    assert torch.bincount(y, minlength=10).tolist() == [2] * 10
    assert torch.equal(x, ground.train[0][ground.rows])
    assert len(ground.test[0]) == 397


def test_inputs_have_one_scale(ground):
    x = ground.train[0]
    assert x.mean(0).abs().max() < 1e-5
    assert x.square().mean().sqrt() == pytest.approx(1.0, abs=1e-5)


def test_equal_seeds_give_equal_data():
    first, second = (prepare(SMALL, Trial(3)) for _ in range(2))
    assert torch.equal(first.train[0], second.train[0])
    other = prepare(SMALL, Trial(4))
    assert not torch.equal(first.train[1], other.train[1])


def test_other_labels_reach_the_probe(ground):
    changed = ground.with_labels(torch.zeros_like(ground.train[1]))
    assert changed.probe[1].sum() == 0
    assert torch.equal(changed.test[1], ground.test[1])


def test_alignments_leave_the_network_alone_and_bounded(ground):
    net = fully_connected(SMALL, ground, Trial(0))
    weight = net[1].weight.detach().clone()
    curve = alignments(net, ground)
    assert curve.shape == (4,)
    assert ((curve > 0) & (curve < 1)).all()
    assert torch.equal(net[1].weight, weight)
    assert net[1].weight.dtype == torch.float32


def test_wide_networks_start_near_the_infinite_limit(ground):
    net = fully_connected(Setting(depth=3, width=2000), ground, Trial(0))
    theory = infinite_alignment(ground.probe[0].double(), ground.targets, 3).numpy()
    np.testing.assert_allclose(alignments(net, ground), theory, rtol=0.15)


def test_watch_measures_at_the_chosen_steps(ground):
    watch = AlignmentWatch(ground, [0, 2])
    net = fully_connected(SMALL, ground, Trial(0))
    log = learned(net, ground, recipe_of(SMALL, 0), watch)
    assert watch.steps == [0, 2]
    assert log is not None
    assert final_numbers(log)["steps"] == 2.0
    np.testing.assert_allclose(watch.curves[-1], alignments(net, ground))


def test_a_diverged_run_is_undefined_and_undone(ground):
    net = fully_connected(SMALL, ground, Trial(0))
    before = net[1].weight.detach().clone()
    log = learned(net, ground, recipe_of(SMALL, 0, learning_rate=1e8))
    assert log is None
    assert np.isnan(final_numbers(log)["test_loss"])
    assert torch.equal(net[1].weight, before)


@pytest.mark.parametrize(("name", "layers"), [("small_conv", 10), ("small_residual", 10)])
def test_small_networks(name, layers):
    image_ground = prepare(SMALL, Trial(0), flat=False)
    net = build(Architecture(architecture=name, examples=200, probe=20), image_ground, Trial(0))
    assert len(weight_layers(net)) == layers
    assert net.eval()(image_ground.test[0][:2]).shape == (2, 10)


def test_shape_of_a_curve():
    shape = shape_of(np.asarray([0.1, 0.4, 0.2]))
    assert shape["peak"] == 2.0
    assert shape["height"] == pytest.approx(0.4)
    assert shape["prominence"] == pytest.approx(0.2)


def test_fit_of_the_exact_balance():
    depths = np.asarray([10.0, 30.0, 100.0])
    peaks = np.asarray([equilibrium_layer(int(d), 0.3) for d in depths])
    fit = depth_fit(depths, peaks, 0.3)
    assert fit["balance"] == pytest.approx(0.0, abs=1e-12)
    assert fit["slope"] == pytest.approx(fit["balance_slope"])
    assert fit["low"] < fit["slope"] < fit["high"]
    assert fit["law_scaled"] > 0


def test_a_network_that_diverges_does_not_cost_the_others(monkeypatch):
    def build(setting, ground, trial, stream):
        model = fully_connected(setting, ground, trial, stream)
        with torch.no_grad():
            model[1].weight.mul_(1e38 if stream == 11 else 1.0)
        return model

    monkeypatch.setattr(_depths, "fully_connected", build)
    config = Tabled(depth=4, most_epochs=1, examples=128, probe=20, networks=3)
    found = measure_depth(config, Trial(0)).arrays
    assert np.isfinite(found["test_accuracies"]).tolist() == [True, False, True]
    assert np.isfinite(found["curves"]).all(1).tolist() == [True, False, True]


def test_peaks_of_networks_that_fitted_their_data():
    arrays = {
        "curves": np.zeros((4, 10)),
        "peaks": np.asarray([3.0, 4.0, np.nan, 5.0]),
        "final_losses": np.asarray([0.02, 0.06, 0.01, 2.3]),
    }
    runs = Results((Result({}, arrays),))
    assert [peaks.tolist() for peaks in peaks_of(runs)] == [[10.0] * 3, [3.0, 4.0, 5.0]]
    assert peaks_of(runs, 1.0)[1].tolist() == [3.0, 4.0]
    assert peaks_of(runs, 0.05)[1].tolist() == [3.0]


def test_tabled_settings():
    setting = Tabled(data="cifar10", depth=100, most_epochs=50, rate_factor=0.25).setting
    assert (setting.width, setting.epochs) == (256, 50)
    assert setting.learning_rate == pytest.approx(2.5e-5)
    assert all(len(ROWS[name]) == 10 for name in ("cifar10", "mnist", "fashion_mnist"))


@pytest.mark.parametrize("cosine", [-1.0, 0.0, 0.5])
def test_pairs_on_the_sphere(cosine):
    x = sphere_pair(cosine, 10)
    gram = (x @ x.mT / 10).tolist()
    np.testing.assert_allclose(gram, [[1, cosine], [cosine, 1]], atol=1e-12)


def test_crossing_and_slope():
    layers = np.arange(1.0, 6.0)
    assert _crossing(2.0 ** (4 - layers), 2.0**-layers * 4**layers / 8) == pytest.approx(3.5)
    assert np.isnan(_crossing(np.full(3, 2.0), np.ones(3)))
    assert _crossing(np.ones(3), np.full(3, 2.0)) == 1.0
    assert log_slope(layers, layers**-3.0) == pytest.approx(-3.0)


def test_mean_cosine_is_that_of_pairs(ground):
    x = ground.probe[0].double()
    cosines = torch.nn.functional.cosine_similarity(x[:, None], x[None], dim=2)
    pairs = [cosines[i, j].item() for i in range(20) for j in range(20) if i != j]
    assert mean_cosine(ground) == pytest.approx(np.mean(pairs))


def test_errata_are_distinct():
    assert len({e.id for e in ERRATA}) == len(ERRATA) > 15
    assert all(e.printed != e.true for e in ERRATA)


def test_unknown_sizes_are_refused():
    with pytest.raises(DomainError, match="multiple"):
        prepare(Setting(examples=200, probe=15), Trial(0))
