"""Generated data: digits, Gaussian inputs, peaks tasks."""

from fractions import Fraction
from itertools import product
from math import exp, sqrt

import pytest
import torch

from tests.tolerances import assert_close
from theodolite import data as datasets
from theodolite.errors import DomainError, ShapeError
from theodolite_papers.lab import data


def test_digits_are_raw_pixels_split_in_order():
    sets = datasets.digits()
    assert sets.x_train.shape == (1500, 1, 8, 8)
    assert sets.x_train.dtype == torch.uint8
    assert int(sets.x_train.max()) == sets.peak == 16
    assert sets.num_classes == 10
    assert sets.y_train[:10].tolist() == list(range(10))


def test_digits_split_by_a_generator_is_a_partition(generator):
    sets = datasets.digits(test_size=400, generator=generator)
    whole = datasets.digits()
    both = torch.cat([sets.x_train, sets.x_test]).flatten(1)
    original = torch.cat([whole.x_train, whole.x_test]).flatten(1)
    assert len(sets.x_test) == 400
    assert sorted(both.tolist()) == sorted(original.tolist())
    again = datasets.digits(test_size=400, generator=torch.Generator().manual_seed(0))
    assert again.x_test.equal(sets.x_test)
    assert not sets.y_test.equal(whole.y_test[:297])


@pytest.mark.parametrize("rank", [3, 2], ids=["regular", "singular"])
def test_gaussian_inputs_have_the_covariance(generator, rank):
    factor = torch.randn(3, rank, generator=generator, dtype=torch.float64)
    covariance, mean = factor @ factor.T, torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    rows = data.gaussian_inputs(200_000, covariance, mean, generator)
    # Standard errors are below covariance.max() sqrt(2 / 200000).
    scale = covariance.diagonal().max().item()
    assert (torch.cov(rows.T) - covariance).abs().max() < 5 * sqrt(2 / 2e5) * scale
    assert (rows.mean(0) - mean).abs().max() < 5 * sqrt(scale / 2e5)
    assert torch.linalg.matrix_rank(rows - mean, rtol=1e-6) == rank


def test_covariance_root_squares_to_the_covariance(generator):
    covariance = data.rotated_covariance(torch.arange(6, dtype=torch.float64), generator)
    root = data.covariance_root(covariance)
    assert_close(root @ root, covariance)
    assert_close(torch.linalg.eigvalsh(covariance), torch.arange(6.0), scale=10)


def test_gaussian_data_has_random_labels_of_all_classes(generator):
    sets = data.gaussian(num_classes=3, generator=generator)
    assert sets.x_train.shape == (2000, 20)
    assert sets.num_classes == 3
    shares = torch.bincount(sets.y_train).float() / 2000
    assert (shares - 1 / 3).abs().max() < 5 * sqrt(2 / 9 / 2000)


@pytest.mark.spec("1.R46")
def test_peaks_tasks():
    assert len(data.PEAKS_TASKS) == len(set(data.PEAKS_TASKS)) == 120
    for task in data.PEAKS_TASKS:
        related, unrelated = data.related_tasks(task), data.unrelated_tasks(task)
        assert len(set(related)) == 5
        assert len(set(unrelated)) == 6
        assert all(set(other) == set(task) and other != task for other in related)
        assert all(not set(other) & set(task) for other in unrelated)


@pytest.mark.spec("1.R46")
@pytest.mark.parametrize(
    ("gate", "value"), [(0.5, 0.7), (0.5 + 1e-12, 0.2), (0.0, 0.7), (0.99, 0.2)]
)
def test_peaks_gate_is_strict(gate, value):
    row = torch.tensor([[0.1, gate, 0.9, 0.2, 0.9, 0.7]], dtype=torch.float64)
    assert data.peaks_values(row, "BDF").item() == value


@pytest.mark.spec("1.R47")
def test_peaks_features():
    row = torch.tensor([[0.0, 0.1, 0.2, 0.3, 0.4, 0.5]], dtype=torch.float64)
    features = data.peaks_features(row).reshape(6, 10)
    for variable in range(6):
        assert_close(features[variable, variable], 0.5)
        assert_close(features[variable, variable + 1], 0.5 * exp(-0.5))
    expected = [[0.5 * exp(-((v - c / 10) ** 2) / 0.02) for c in range(10)] for v in row[0]]
    assert_close(features, expected)


@pytest.mark.spec("1.R47")
def test_peaks_inputs_have_unit_rows(generator):
    variables, features = data.peaks_inputs(50, generator)
    assert features.shape == (50, 60)
    assert_close(features.norm(dim=1), torch.ones(50))
    raw = data.peaks_features(variables)
    assert_close(features * raw.norm(dim=1, keepdim=True), raw)


def peaks_covariance(first, second):
    """Exact covariance of two peaks functions, over the halves in which their gates lie."""
    means = {"low": Fraction(1, 4), "high": Fraction(3, 4), "any": Fraction(1, 2)}
    gates = sorted({first[0], second[0]})
    total = Fraction(0)
    for half in product(("low", "high"), repeat=len(gates)):
        halves = dict(zip(gates, half, strict=True))
        one, two = (task[1] if halves[task[0]] == "high" else task[2] for task in (first, second))
        # A variable that both give out gates neither; its second moment is 1/3.
        same, other = Fraction(1, 3), means[halves.get(one, "any")] * means[halves.get(two, "any")]
        total += same if one == two else other
    return total / 2 ** len(gates) - Fraction(1, 4)


@pytest.mark.spec("1.R48")
def test_peaks_covariances(generator):
    variables, _ = data.peaks_inputs(200_000, generator)
    source = data.peaks_values(variables, "ABC")
    printed = {
        "ABC": Fraction(1, 12),
        "ACB": Fraction(0),
        "BAC": Fraction(7, 192),
        "BCA": Fraction(1, 192),
        "CAB": Fraction(1, 192),
        "CBA": Fraction(7, 192),
        **dict.fromkeys(data.unrelated_tasks("ABC"), Fraction(0)),
    }
    # Also tasks that share one or two variables, where the specification gives no number.
    others = {task: peaks_covariance("ABC", task) for task in ("ABD", "DAB", "BDA", "ADE", "DBA")}
    assert {task: peaks_covariance("ABC", task) for task in printed} == printed
    for task, expected in (printed | others).items():
        other = data.peaks_values(variables, task)
        sampled = ((source - source.mean()) * (other - other.mean())).mean().item()
        assert abs(sampled - float(expected)) < 2e-3
    assert abs((source - 0.5).square().mean().item() - 1 / 12) < 2e-3


def test_peaks_data_centers_labels_on_the_training_mean(generator):
    sets = data.peaks("EDF", train=500, test=200, generator=generator)
    assert abs(sets.y_train.mean().item()) < 1e-6
    assert 1e-4 < abs(sets.y_test.mean().item()) < 0.1  # the same constant, not its own
    assert sets.scaling == ("unit_rows",)
    assert sets.num_classes == 0


@pytest.mark.parametrize("task", ["AAB", "AB", "ABG", "abc", ""])
def test_peaks_refuses_bad_triples(task):
    for call in (data.related_tasks, data.unrelated_tasks, data.peaks):
        with pytest.raises(DomainError):
            call(task)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: datasets.digits(test_size=1797), DomainError),
        (lambda: data.gaussian_inputs(3, -torch.eye(2)), DomainError),
        (lambda: data.gaussian_inputs(0, torch.eye(2)), DomainError),
        (lambda: data.rotated_covariance(torch.tensor([1.0, -1.0])), DomainError),
        (lambda: data.gaussian_inputs(3, torch.zeros(0, 0)), ShapeError),
    ],
)
def test_bad_requests_raise(call, error):
    with pytest.raises(error):
        call()
