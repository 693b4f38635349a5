import copy
import pickle
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics import MetricCollection

from tests.metrics.streams import CASES, make_data
from tests.reference import streams as reference
from theodolite import metrics
from theodolite.errors import DomainError, ShapeError
from theodolite.measures import gradient, representation

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
every_case = pytest.mark.parametrize("name", CASES)


def streamed(case, data, sizes, order=None, **kwargs):
    """The metric after batches of the given sizes, in the given order of rows."""
    rows = torch.arange(len(data)) if order is None else order
    metric = case.build(data, **kwargs)
    for chunk in torch.split(rows, sizes):
        case.feed(metric, data.part(chunk))
    return metric


def assert_value(found, expected, scale=1.0):
    expected = np.squeeze(expected)  # torchmetrics makes values of one entry 0-d
    assert found.shape == expected.shape
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-9 * scale)


@pytest.mark.spec("1.R55", "3.P41", "5.P63")
@every_case
@pytest.mark.parametrize("dtype", DTYPES)
def test_stream_equals_the_one_shot_value(name, dtype):
    case, data = CASES[name], make_data(DTYPES[dtype])
    expected = case.expected(data)
    assert_value(streamed(case, data, [37, 1, 0, 50, 32]).compute(), expected)


@pytest.mark.spec("1.R55", "5.P63")
@every_case
@settings(max_examples=5)
@given(cuts=st.lists(st.integers(0, 60), max_size=5), seed=st.integers(0, 99))
def test_any_split_and_order(name, cuts, seed):
    case, data = CASES[name], make_data(n=60, seed=1)
    edges = [0, *sorted(cuts), 60]
    sizes = [high - low for low, high in pairwise(edges)]
    order = torch.randperm(60, generator=torch.Generator().manual_seed(seed))
    found = streamed(case, data, sizes, order).compute()
    np.testing.assert_allclose(found.numpy(), case.expected(data), rtol=1e-9, atol=1e-9)


@every_case
def test_shards_merge(name):
    case, data = CASES[name], make_data()
    rows = torch.arange(len(data))
    shards = [
        streamed(case, data, 10, rows[data.labels != 1]),  # other means, other shifts
        case.build(data),  # saw nothing
        streamed(case, data, 30, rows[data.labels == 1]),
    ]
    before = [copy.deepcopy(shard.metric_state) for shard in shards[1:]]
    for shard in shards[1:]:
        shards[0].merge_state(shard)
    assert_value(shards[0].compute(), case.expected(data))
    fresh = case.build(data)
    fresh.merge_state(shards[0].metric_state)
    assert_value(fresh.compute(), case.expected(data))
    case.feed(fresh, data.part(slice(0, 5)))  # must not reach into the shard it was merged from
    for shard, state in zip(shards[1:], before, strict=True):
        for now, then in zip(shard.metric_state["blocks"], state["blocks"], strict=True):
            assert torch.equal(now, then)


@every_case
def test_value_follows_a_merge_after_compute(name):
    case, data = CASES[name], make_data()
    metric = case.build(data)
    case.feed(metric, data.part(slice(0, 60)))
    metric.compute()
    more = case.build(data)
    case.feed(more, data.part(slice(60, None)))
    metric.merge_state(more)
    assert_value(metric.compute(), case.expected(data))


@every_case
def test_forward_gives_the_batch_and_keeps_the_stream(name):
    case, data = CASES[name], make_data()
    metric = case.build(data)
    for rows in torch.split(torch.arange(len(data)), 40):
        part = data.part(rows)
        alone = case.build(data)
        case.feed(alone, part)
        torch.testing.assert_close(
            case.call(metric, part), alone.compute(), equal_nan=True, rtol=1e-9, atol=1e-9
        )
        assert len(metric.blocks) == 1
    assert_value(metric.compute(), case.expected(data))


@every_case
def test_reset_pickle_and_clone(name):
    case, data = CASES[name], make_data()
    metric = streamed(case, data, 50)
    for twin in (pickle.loads(pickle.dumps(metric)), metric.clone()):  # noqa: S301
        assert_value(twin.compute(), case.expected(data))
    metric.reset()
    case.feed(metric, data)
    assert_value(metric.compute(), case.expected(data))


@every_case
def test_a_checkpoint_of_the_model_holds_the_stream(name):
    case, data = CASES[name], make_data()
    model, again = (torch.nn.ModuleDict({"metric": case.build(data)}) for _ in range(2))
    for network in (model, again):
        network["metric"].persistent(True)
    case.feed(model["metric"], data.part(slice(0, 70)))
    again.load_state_dict(model.state_dict())
    case.feed(again["metric"], data.part(slice(70, None)))
    assert_value(again["metric"].compute(), case.expected(data))
    assert case.build(data).state_dict() == {}  # as every torchmetrics metric unless persistent


@every_case
def test_a_refused_merge_changes_nothing(name):
    case, data = CASES[name], make_data()
    metric, narrow = case.build(data), case.build(data)
    case.feed(metric, data)
    arguments = case.arguments(data)
    narrow.update(arguments[0][:, :3], *arguments[1:])
    with pytest.raises(ShapeError, match="use one metric per layer, built alike everywhere"):
        metric.merge_state(narrow)
    assert_value(metric.compute(), case.expected(data))


@pytest.mark.parametrize(
    ("mine", "yours"),
    [
        (lambda: metrics.TargetCKA(2), lambda: metrics.TargetCKA(3)),
        (lambda: metrics.VectorAlignment(2), lambda: metrics.VectorAlignment(3)),
        (lambda: metrics.RepresentationAlignment(2), lambda: metrics.RepresentationAlignment(3)),
    ],
    ids=["cka", "vectors", "classes"],
)
def test_metrics_of_other_options_do_not_merge(mine, yours):
    first, second = mine(), yours()
    for metric in (first, second):
        metric.update(torch.eye(4), torch.tensor([0, 1, 1, 0]))
    for one, other in ((first, second), (second, first)):
        with pytest.raises(ShapeError, match="same options"):
            one.merge_state(other)


def test_private_names_of_torchmetrics_still_exist():
    metric = metrics.CovarianceState()
    for name in ("_computed", "_update_count"):
        assert name in vars(metric), (
            f"this torchmetrics has no Metric.{name}, which StreamingMetric.merge_state sets: "
            "find what now holds the cached value and the number of updates, and set that"
        )


@every_case
def test_nothing_seen_is_undefined(name):
    case, data = CASES[name], make_data()
    metric = case.build(data)
    case.feed(metric, data.part(slice(0, 0)))
    assert metric.compute().isnan().all()


@every_case
def test_conversion_of_the_metric_keeps_float64_sums(name):
    case, data = CASES[name], make_data()
    metric = case.build(data).half().float()
    case.feed(metric, data)
    assert_value(metric.compute(), case.expected(data))


@pytest.mark.parametrize("name", CASES)
def test_direction_is_stated(name):
    metric = CASES[name].build(make_data(n=10))
    assert metric.higher_is_better is (None if name == "covariance" else True)
    assert metric.is_differentiable is False
    assert metric.full_state_update is False


def test_collections_share_updates_where_states_are_equal(generator):
    features, labels = graded(generator), torch.randint(0, 2, (200,), generator=generator)
    features[100:] *= 1e4
    spectrum = torch.linalg.svdvals(features)
    levels = {"coarse": spectrum[:1] / 2, "fine": (spectrum[4:5] * spectrum[5:6]).sqrt()}
    together = MetricCollection(
        {
            **{
                name: metrics.RepresentationAlignment(2, level, rows="none", scale="absolute")
                for name, level in levels.items()
            },
            "class": metrics.VectorAlignment(2),
            "contrast": metrics.VectorAlignment(2, "contrast"),
        }
    )
    for part in torch.split(torch.arange(200), 50):
        together.update(features[part], labels[part])
    found = together.compute()
    assert len(together.compute_groups) == 3  # only the two of vectors are one
    targets = reference.one_hot(labels.numpy(), 2)
    for name, level in levels.items():
        share = reference.alignment_curve(features.numpy(), targets, level.numpy() / 200**0.5)
        assert_value(found[name], share * 200, scale=200)
    torch.testing.assert_close(found["contrast"], gradient.alignment_contrast(features, labels))


# --- Representation -------------------------------------------------------------------------------


def graded(generator, n=200, d=10, low=-8):
    x = torch.randn(n, d, dtype=torch.float64, generator=generator)
    return x * torch.logspace(0, low, d, dtype=torch.float64)


def test_route_is_chosen_by_the_smallest_threshold(generator):
    features, labels = graded(generator), torch.randint(0, 2, (200,), generator=generator)
    spectrum = torch.linalg.svdvals(features) / 200**0.5
    for position, route in ((2, "gram"), (8, "qr")):
        level = (spectrum[position - 1] * spectrum[position]).sqrt().reshape(1)
        metric = metrics.RepresentationAlignment(2, level, rows="none")
        for part in torch.split(torch.arange(200), 25):
            metric.update(features[part], labels[part])
        expected = reference.alignment_curve(
            features.numpy(), reference.one_hot(labels.numpy(), 2), level.numpy()
        )
        assert metric.route == route
        assert_value(metric.compute(), expected)


def test_route_changes_in_the_middle_of_a_stream(generator):
    # An absolute threshold that the first batches resolve and the later, larger ones do not.
    features, labels = graded(generator), torch.randint(0, 2, (200,), generator=generator)
    features[100:] *= 1e4
    spectrum = torch.linalg.svdvals(features)
    level = (spectrum[4] * spectrum[5]).sqrt().reshape(1)
    metric = metrics.RepresentationAlignment(2, level, rows="none", scale="absolute")
    routes = []
    for part in torch.split(torch.arange(200), 50):
        metric.update(features[part], labels[part])
        routes.append(metric.route)
    assert (routes[0], routes[-1]) == ("gram", "qr")
    targets = reference.one_hot(labels.numpy(), 2)
    expected = reference.alignment_curve(features.numpy(), targets, level.numpy() / 200**0.5)
    assert_value(metric.compute(), expected * 200, scale=200)


def test_gram_and_triangle_shards_merge(generator):
    features, labels = graded(generator, low=-3), torch.randint(0, 3, (200,), generator=generator)
    fine = torch.tensor([1e-2, 1e-7], dtype=torch.float64)
    coarse, other = (
        metrics.RepresentationAlignment(3, levels, rows="none") for levels in (fine[:1], fine)
    )
    coarse.update(features[:70], labels[:70])
    other.update(features[70:], labels[70:])
    assert (coarse.route, other.route) == ("gram", "qr")
    targets = reference.one_hot(labels.numpy(), 3)
    for first, second in ((coarse, other), (other, coarse)):
        merged = first.clone()
        merged.merge_state(second)
        assert merged.route == "qr"
        levels = first.thresholds.numpy()
        assert_value(merged.compute(), reference.alignment_curve(features.numpy(), targets, levels))


@pytest.mark.parametrize("scale", ["absolute", "normalized", "relative"])
def test_scales_and_default_thresholds(scale, generator):
    features = torch.randn(50, 4, dtype=torch.float64, generator=generator)
    labels = torch.randint(0, 2, (50,), generator=generator)
    metric = metrics.RepresentationAlignment(2, scale=scale)
    metric.update(features[:30], labels[:30])
    metric.update(features[30:], labels[30:])
    curve = representation.alignment_curve(features, labels, scale=scale)
    torch.testing.assert_close(metric.compute(), curve.values)
    assert metric.route == "gram"


# --- CKA ------------------------------------------------------------------------------------------


@pytest.mark.spec("3.P41")
def test_independent_features_biased_and_debiased(generator):
    values = {True: [], False: []}
    for _ in range(20):
        a, b = (torch.randn(30, 30, generator=generator) for _ in range(2))
        for debiased, found in values.items():
            metric = metrics.PairCKA(debiased)
            for part in torch.split(torch.arange(30), 7):
                metric.update(a[part], b[part])
            found.append(metric.compute().item())
    assert np.mean(values[False]) == pytest.approx(0.505, abs=0.02)
    assert abs(np.mean(values[True])) < 0.05


@pytest.mark.parametrize("first", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("debiased", [True, False])
def test_features_constant_up_to_rounding_are_undefined(debiased, first, generator):
    # One unit in the last place of float32, about 1e4; batches of two dtypes count as the coarser.
    x = 1e4 + 2**-10 * torch.randint(0, 2, (24, 3), generator=generator)
    other, labels = torch.randn(24, 3, generator=generator), torch.arange(24) % 2
    target, pair = metrics.TargetCKA(2, debiased), metrics.PairCKA(debiased)
    for rows, dtype in ((slice(0, 12), first), (slice(12, 24), torch.float32)):
        target.update(x[rows].to(dtype), labels[rows])
        pair.update(other[rows].to(dtype), x[rows].to(dtype))
    assert target.compute().isnan()
    assert pair.compute().isnan()
    precise = metrics.TargetCKA(2, debiased)
    precise.update(x.double(), labels)
    assert precise.compute().isfinite()


def test_one_class_is_undefined():
    single = metrics.TargetCKA(2)
    single.update(torch.eye(8), torch.zeros(8, dtype=torch.long))
    assert single.compute().isnan()


def test_fewer_than_four_examples_are_undefined_when_debiased():
    for debiased in (True, False):
        metric = metrics.TargetCKA(2, debiased)
        metric.update(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0, 1, 1]))
        assert metric.compute().isnan() == debiased


# --- Vectors, covariance, input -------------------------------------------------------------------


@pytest.mark.spec("5.P63")
def test_vectors_follow_the_measures(generator):
    vectors = torch.randn(40, 3, 2, dtype=torch.float64, generator=generator)
    labels = torch.randint(0, 3, (40,), generator=generator)
    functions = {
        "class": gradient.class_alignment,
        "in_class": gradient.in_class_alignment,
        "contrast": gradient.alignment_contrast,
    }
    for part, function in functions.items():
        metric = metrics.VectorAlignment(3, part)
        metric.update(vectors[:11], labels[:11])
        metric.update(vectors[11:], labels[11:])
        torch.testing.assert_close(metric.compute(), function(vectors, labels))


def test_vectors_of_zeros():
    vectors, labels = torch.zeros(4, 2), torch.tensor([0, 0, 1, 1])
    vectors[2:] = 1
    for zero, first in (("nan", torch.nan), ("zero", 0.0)):
        metric = metrics.VectorAlignment(2, zero=zero)
        metric.update(vectors, labels)
        expected = torch.tensor([first, 1.0], dtype=torch.float64)
        torch.testing.assert_close(metric.compute(), expected, equal_nan=True)


@pytest.mark.parametrize("part", ["overall", "in_class", "contrast"])
@pytest.mark.parametrize(("zero", "expected"), [("nan", torch.nan), ("zero", 0.0)])
def test_a_stream_of_zeros_has_the_value_asked_for(part, zero, expected):
    metric = metrics.VectorAlignment(2, part, zero=zero)
    metric.update(torch.zeros(4, 2), torch.tensor([0, 0, 1, 1]))
    value = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(metric.compute(), value, equal_nan=True)


def test_second_moment_and_degrees_of_freedom(generator):
    rows = torch.randn(9, 3, dtype=torch.float64, generator=generator) + 5
    raw, sample, single = (
        metrics.CovarianceState(centered=False),
        metrics.CovarianceState(ddof=1),
        metrics.CovarianceState(ddof=1),
    )
    raw.update(rows)
    sample.update(rows)
    single.update(rows[:1])
    torch.testing.assert_close(raw.compute(), rows.T @ rows / 9)
    torch.testing.assert_close(sample.compute(), torch.from_numpy(np.cov(rows.numpy().T)))
    assert single.compute().isnan().all()


def test_integers_are_numbers():
    metric = metrics.CovarianceState()
    metric.update(torch.tensor([[1, 0], [3, 0]]))
    assert metric.compute().tolist() == [[1, 0], [0, 0]]


@pytest.mark.parametrize(
    "call",
    [
        lambda: metrics.TargetCKA(2).update(torch.eye(2) / 0, torch.tensor([0, 1])),
        lambda: metrics.TargetCKA(2).update(torch.eye(2), torch.tensor([0, 2])),
        lambda: metrics.RepresentationAlignment(2, torch.tensor([-1.0])),
        lambda: metrics.RepresentationAlignment(2).projections(),
        lambda: metrics.VectorAlignment(0),
    ],
    ids=["inf", "label", "threshold", "nothing", "no class"],
)
def test_values_outside_the_domain_raise(call):
    with pytest.raises(DomainError):
        call()


@pytest.mark.parametrize(
    "name", ["representation", "representation-fine", "target-cka", "covariance"]
)
def test_another_width_is_refused(name):
    case, data = CASES[name], make_data(n=20)
    metric = case.build(data)
    case.feed(metric, data)
    narrow = type(data)(data.features[:, :1], data.other, data.labels)
    with pytest.raises(ShapeError, match="expected 12 columns, as in the batches before, got 1"):
        case.feed(metric, narrow)
