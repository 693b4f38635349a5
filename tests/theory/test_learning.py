"""Learning curves: what a few examples say of many, beside what many give."""

import dataclasses

import numpy as np
import pytest
import torch

import theodolite as th
from theodolite.errors import DomainError, ShapeError
from theodolite.measures import representation


def regression(n, generator, noise=0.5):
    """Targets on directions of decaying variance, with noise."""
    scales = torch.arange(1, 101, dtype=torch.float64) ** -0.6
    x = torch.randn(n, 100, generator=generator, dtype=torch.float64) * scales
    weights = torch.linspace(-1, 1, 100, dtype=torch.float64)
    return x, x @ weights + noise * torch.randn(n, generator=generator, dtype=torch.float64)


def test_two_hundred_examples_predict_the_error_of_two_thousand(generator):
    """Mean over draws: one draw has the chance of its 200 residuals, about 10 %."""
    predicted = [
        th.learning_curve(*regression(200, generator), [100, 200, 2000]).error for _ in range(8)
    ]
    measured = {}
    for n in (100, 200, 2000):
        found = []
        for _ in range(8 if n < 2000 else 2):
            x, y = regression(n + 4000, generator)
            ridge = representation.leave_one_out_probe(x[:n], y[:n]).ridge
            a, b = x[:n] - x[:n].mean(0), y[:n] - y[:n].mean()
            penalty = ridge * a.square().sum() / n * torch.eye(100, dtype=torch.float64)
            weights = torch.linalg.solve(a.T @ a + penalty, a.T @ b)
            gaps = y[n:] - y[:n].mean() - (x[n:] - x[:n].mean(0)) @ weights
            found.append((gaps.square().mean() / y[n:].var()).item())
        measured[n] = np.mean(found)
    mean = torch.stack(predicted).mean(0)
    # Without the theory 2000 labels would be told 45 % worse than they are; the limit on degrees of
    # freedom, which real features need, leaves 13 % of it here.
    for value, n in zip(mean.tolist(), (100, 200, 2000), strict=True):
        assert value == pytest.approx(measured[n], rel=0.15)


def classes(n, generator):
    labels = torch.arange(n) % 3
    x = torch.randn(n, 20, generator=generator) + 0.8 * torch.eye(20)[labels]
    return x, labels


def test_features_and_their_kernel_give_the_same_curve(generator):
    x, y = classes(90, generator)
    one = th.learning_curve(x.double(), y)
    gram = (x @ x.T).double()
    operator = torch.einsum("xy,ij->xiyj", gram, torch.eye(3, dtype=torch.float64))
    for other in (th.learning_curve(gram, y), th.learning_curve(operator, y)):
        torch.testing.assert_close(other.accuracy, one.accuracy, rtol=1e-6, atol=1e-6)


def test_a_curve_rises_and_its_interval_holds_it(generator):
    curve = th.learning_curve(*classes(200, generator))
    assert (curve.accuracy.diff() >= 0).all()
    assert (curve.error.diff() <= 0).all()
    low, high = curve.accuracy_interval
    assert (low <= curve.accuracy).all()
    assert (curve.accuracy <= high).all()
    assert curve.labels[-1] == 2000
    assert curve.examples == 200


def test_at_hand_the_curve_is_the_leave_one_out_accuracy(generator):
    x, y = classes(200, generator)
    curve = th.learning_curve(x, y, [200])
    # One half of an example is added, so that no error at all is not taken for certainty.
    own = representation.probe_accuracy(x, y).item()
    assert curve.accuracy.item() == pytest.approx(own, abs=0.02)


def test_labels_for_an_accuracy(generator):
    curve = th.learning_curve(*classes(200, generator))
    middle = float(curve.accuracy[6])
    assert curve.labels_for(middle) == pytest.approx(float(curve.labels[6]), rel=1e-6)
    assert curve.labels_for(0.0) == float(curve.labels[0])
    assert curve.labels_for(1.0) == float("inf")


def test_labels_without_meaning_stay_at_chance(generator):
    x = torch.randn(300, 10, generator=generator)
    y = torch.randint(0, 4, (300,), generator=generator)
    assert th.learning_curve(x, y).accuracy.max() < 0.4


def test_numpy_in_numpy_out(generator):
    x, y = classes(60, generator)
    assert isinstance(th.learning_curve(x.numpy(), y.numpy()).accuracy, np.ndarray)


def test_one_class_is_refused():
    with pytest.raises(DomainError, match="at least two classes"):
        th.learning_curve(torch.randn(30, 3), torch.zeros(30, dtype=torch.long))


def test_no_number_of_labels_is_refused(generator):
    with pytest.raises(ShapeError, match="at least one number of labels"):
        th.learning_curve(*classes(60, generator), [])


class Elsewhere(torch.Tensor):
    """As on a GPU: NumPy does not see the numbers."""

    def __array__(self, *_args, **_kwargs):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


def test_a_curve_on_a_device_is_shown_and_asked(generator):
    here = th.learning_curve(*classes(90, generator))
    moved = {
        entry.name: getattr(here, entry.name).as_subclass(Elsewhere)
        for entry in dataclasses.fields(here)
        if entry.name != "examples"
    }
    there = dataclasses.replace(here, **moved)
    assert repr(there) == repr(here)
    wanted = float(here.accuracy[3])
    assert there.labels_for(wanted) == here.labels_for(wanted) == here.labels[3]
