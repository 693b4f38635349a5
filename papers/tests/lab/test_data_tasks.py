"""Rows and labels: pairs, balanced samples, disjoint splits, random and corrupted labels."""

from math import sqrt

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from theodolite import data as datasets
from theodolite.errors import DomainError, ShapeError, UnknownNameError
from theodolite_papers.lab import data

LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 0, 5])


@pytest.mark.spec("1.R49")
@pytest.mark.parametrize(("classes", "pairs"), [(4, 6), (6, 15), (31, 465)])
def test_pair_counts(classes, pairs):
    found = data.class_pairs(classes)
    assert len(found) == len({frozenset(pair) for pair in found}) == pairs


@pytest.mark.spec("1.R49")
@pytest.mark.parametrize("size", [2, 4, 6])
def test_balanced_rows_hold_half_of_each_class(generator, size):
    rows = data.balanced_rows(LABELS, size, [0, 1], generator)
    assert len(set(rows.tolist())) == size
    assert (LABELS[rows] == 0).sum() == (LABELS[rows] == 1).sum() == size // 2


@pytest.mark.spec("1.R49")
@pytest.mark.parametrize("size", [3, 8, 100], ids=["odd", "too-small-class", "far-too-many"])
def test_balanced_rows_refuse(size):
    with pytest.raises(DomainError):
        data.balanced_rows(LABELS, size, [0, 1])


@pytest.mark.spec("1.R49")
def test_both_representations_see_the_same_rows(generator):
    labels = torch.arange(3).repeat(50)
    first, second = torch.arange(150.0), torch.arange(150.0) * 7
    tasks = data.one_vs_one_tasks(labels, size=40, generator=generator)
    assert [task.classes for task in tasks] == [(0, 1), (0, 2), (1, 2)]
    for task in tasks:
        assert (first[task.rows] * 7).equal(second[task.rows])
        assert task.targets.equal(torch.where(labels[task.rows] == task.classes[0], 1.0, -1.0))
        assert task.targets.sum() == 0
        assert len(task.rows) == 40


def test_pair_tasks_take_every_row_by_default():
    task = data.pair_task(torch.arange(3).repeat(20), (2, 0))
    assert len(task.rows) == 40
    assert task.targets[task.rows % 3 == 2].unique().tolist() == [1.0]


def test_tiny_classes_are_legal_but_warned_about():
    with pytest.warns(UserWarning, match="below 10"):
        task = data.pair_task(LABELS, (2, 5))
    assert task.rows.tolist() == [2, 5, 9]


@pytest.mark.parametrize("pair", [(1, 1), (1, 3)], ids=["equal", "absent"])
def test_pair_tasks_refuse(pair):
    with pytest.raises(DomainError):
        data.pair_task(LABELS, pair)


def test_balanced_rows_are_a_function_of_the_seed():
    labels = torch.arange(2).repeat(500)
    first, again, other = (
        data.balanced_rows(labels, 100, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    )
    assert first.equal(again)
    assert not first.equal(other)


@pytest.mark.spec("2.P39")
@given(sizes=st.lists(st.integers(0, 20), max_size=4), spare=st.integers(1, 10))
def test_disjoint_rows(sizes, spare):
    samples = datasets.disjoint_rows(sum(sizes) + spare, *sizes)
    together = torch.cat([*samples, torch.zeros(0, dtype=torch.long)]).tolist()
    assert [len(sample) for sample in samples] == sizes
    assert len(set(together)) == len(together) == sum(sizes)
    assert all(0 <= row < sum(sizes) + spare for row in together)


@pytest.mark.spec("2.P39")
def test_disjoint_rows_refuse_too_large_a_request():
    assert len(datasets.disjoint_rows(10, 4, 6)) == 2
    with pytest.raises(DomainError):
        datasets.disjoint_rows(10, 4, 7)


@pytest.mark.spec("2.P39")
def test_disjoint_rows_are_uniform(generator):
    counts = torch.zeros(10)
    for _ in range(2000):
        counts[datasets.disjoint_rows(10, 3, 4, generator=generator)[1]] += 1
    assert (counts / 2000 - 0.4).abs().max() < 5 * sqrt(0.24 / 2000)


def test_random_labels_are_uniform(generator):
    labels = data.random_labels(20_000, 5, generator)
    shares = torch.bincount(labels, minlength=5) / 20_000
    assert (shares - 0.2).abs().max() < 5 * sqrt(0.16 / 20_000)


@pytest.mark.spec("5.P57")
@given(labels=st.lists(st.integers(0, 6), min_size=1, max_size=60), seed=st.integers(0, 99))
def test_shuffling_keeps_counts(labels, seed):
    before = torch.tensor(labels)
    after = datasets.random_labels(before, torch.Generator().manual_seed(seed))
    assert torch.bincount(after, minlength=7).equal(torch.bincount(before, minlength=7))


@pytest.mark.spec("5.P57")
def test_shuffling_is_uniform(generator):
    labels = torch.arange(4)
    counts = torch.zeros(4, 4)
    for _ in range(4000):
        counts[labels, datasets.random_labels(labels, generator)] += 1
    assert (counts / 4000 - 0.25).abs().max() < 5 * sqrt(0.1875 / 4000)


@pytest.mark.spec("4.P109")
@pytest.mark.parametrize("fraction", [0.0, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("count", [10, 997])
def test_corruption_replaces_an_exact_count(generator, fraction, count):
    labels = torch.arange(count) % 4
    noisy = data.corrupted_labels(labels, fraction, generator=generator)
    kept = torch.ones(count, dtype=torch.bool)
    kept[noisy.rows] = False
    assert len(noisy.rows) == len(set(noisy.rows.tolist())) == round(fraction * count)
    assert noisy.labels[kept].equal(labels[kept])


@pytest.mark.spec("4.P109")
def test_corruption_draws_uniformly_and_may_repeat_the_old_label(generator):
    labels = torch.full((40_000,), 3)
    noisy = data.corrupted_labels(labels, 0.5, num_classes=4, generator=generator)
    drawn = torch.bincount(noisy.labels[noisy.rows], minlength=4) / 20_000
    assert (drawn - 0.25).abs().max() < 5 * sqrt(0.1875 / 20_000)
    assert (labels == 3).all()  # the argument is left alone
    rows = noisy.rows.double().mean().item() / 40_000
    assert abs(rows - 0.5) < 0.02  # and rows come from everywhere


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: data.corrupted_labels(LABELS, 1.1), DomainError),
        (lambda: data.corrupted_labels(LABELS, float("nan")), DomainError),
        (lambda: data.corrupted_labels(LABELS, 0.5, num_classes=3), DomainError),
        (lambda: data.corrupted_labels(LABELS - 1, 0.5), DomainError),
        (lambda: data.random_labels(5, 0), DomainError),
        (lambda: data.class_pairs([1, 1]), DomainError),
        (lambda: data.class_pairs(1), DomainError),
        (lambda: datasets.disjoint_rows(10, -1), DomainError),
        (lambda: data.balanced_rows(LABELS[:0], 2), ShapeError),
    ],
)
def test_bad_requests_raise(call, error):
    with pytest.raises(error):
        call()


def test_class_subsets_relabel_in_the_order_given():
    raw = datasets.digits()
    part = data.class_subset(raw, ["7", 2])
    assert part.classes == ("7", "2")
    kept = (raw.y_train == 7) | (raw.y_train == 2)
    assert part.x_train.equal(raw.x_train[kept])
    assert part.y_train.equal((raw.y_train[kept] == 2).long())
    assert set(part.y_test.tolist()) == {0, 1}


@pytest.mark.parametrize("classes", [[0, 0], [], ["0", 0]], ids=str)
def test_class_subsets_refuse_repetition(classes):
    with pytest.raises(DomainError):
        data.class_subset(datasets.digits(), classes)


@pytest.mark.parametrize("item", ["cat", 10, -1])
def test_class_subsets_refuse_unknown_classes(item):
    with pytest.raises(UnknownNameError):
        data.class_subset(datasets.digits(), [0, item])


def test_class_subsets_refuse_regression(generator):
    with pytest.raises(DomainError):
        data.class_subset(data.peaks(train=50, test=5, generator=generator), [0, 1])


class TestDataset:
    x = torch.arange(24.0).reshape(6, 2, 2)
    y = torch.tensor([0, 1, 2, 0, 1, 2])

    def test_it_names_classes_and_shapes(self):
        sets = datasets.Dataset("toy", self.x, self.y, self.x[:2], self.y[:2])
        assert sets.classes == ("0", "1", "2")
        assert sets.shape == (2, 2)
        assert sets.flat().shape == (4,)

    def test_taking_rows_and_relabelling_leaves_the_original(self):
        sets = datasets.Dataset("toy", self.x, self.y, self.x, self.y, classes=("a", "b", "c"))
        part = sets.take(torch.tensor([5, 0])).with_labels(torch.tensor([1, 1]))
        assert part.x_train.equal(self.x[[5, 0]])
        assert part.y_train.tolist() == [1, 1]
        assert part.y_test.equal(self.y)
        assert part.classes == ("a", "b", "c")
        assert sets.y_train.equal(self.y)

    def test_regression_has_no_classes(self):
        sets = datasets.Dataset("toy", self.x, self.y.double(), self.x, self.y.double())
        assert sets.num_classes == 0

    def test_it_moves_as_a_whole(self):
        sets = datasets.Dataset("toy", self.x, self.y / 2, self.x, self.y / 2).to("meta")
        assert {t.device.type for t in (sets.x_train, sets.y_train, sets.x_test, sets.y_test)} == {
            "meta"
        }

    @pytest.mark.parametrize("y", [[0, 1], [-1, 0, 0, 0, 0, 0], [0, 10**12, 0, 0, 0, 0]])
    def test_bad_labels_raise(self, y):
        with pytest.raises((ShapeError, DomainError)):
            datasets.Dataset("toy", self.x, torch.tensor(y), self.x, self.y)
