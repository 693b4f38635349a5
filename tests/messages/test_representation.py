"""What the measures of representation alignment say about bad input."""

import numpy as np
import pytest
import torch

from theodolite.errors import DomainError, DtypeError, ShapeError
from theodolite.measures import representation as rep

F = torch.tensor([[3.0, 0.0], [0.0, 4.0], [3.0, 4.0]])
Y = torch.tensor([1.0, -1.0, 1.0])
LABELS = torch.tensor([0, 1, 0])
NAN = torch.tensor([1.0, float("nan"), 1.0])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: rep.alignment_area(F[0], Y),
            ShapeError,
            r"features: expected 2 axes, got .*\(2,\)",
        ),
        (lambda: rep.alignment_area(F[:0], Y[:0]), ShapeError, "features: expected at least one"),
        (lambda: rep.alignment_area(F, Y[:2]), ShapeError, "features has 3, targets has 2"),
        (
            lambda: rep.alignment_area(F, Y.reshape(3, 1, 1)),
            ShapeError,
            r"expected \(n,\) or \(n, c\)",
        ),
        (lambda: rep.alignment_area(F / 0, Y), DomainError, r"features: expected finite.*index"),
        (lambda: rep.alignment_area(F, NAN), DomainError, r"targets: expected finite.*\(1,\)"),
        (lambda: rep.alignment_area(F + 0j, Y), DtypeError, "real numbers, got torch.complex"),
        (lambda: rep.alignment_area(F, Y.numpy()), DtypeError, "all NumPy arrays or all tensors"),
        (lambda: rep.alignment_area(F, LABELS - 2), DomainError, "targets: .* at least 0, got -2"),
        (lambda: rep.alignment_area(F, LABELS > 0), DomainError, r"targets: .*\.long\(\)"),
        (
            lambda: rep.label_projections(F, Y, route="lu"),
            DomainError,
            "route: expected one of 'auto'",
        ),
        (
            lambda: rep.representation_alignment(F, Y, -1.0),
            DomainError,
            r"threshold: expected a number in \[0.0, inf\), got -1.0",
        ),
        (
            lambda: rep.representation_alignment(F, Y, float("nan")),
            DomainError,
            "threshold: .* got nan",
        ),
        (
            lambda: rep.representation_alignment(F, Y, float("inf")),
            DomainError,
            "threshold: .* got inf",
        ),
        (
            lambda: rep.alignment_curve(F, Y, torch.tensor([0.0, -2.0])),
            DomainError,
            "thresholds: expected numbers of at least 0, got -2.0",
        ),
        (lambda: rep.alignment_curve(F, Y, Y[:0]), ShapeError, "thresholds: .* at least one"),
        (lambda: rep.alignment_curve(F, Y, scale="log"), DomainError, "scale: .*'normalized'"),
        (lambda: rep.label_projections(F, Y, threshold=-1.0), DomainError, "threshold: .* -1.0"),
        (lambda: rep.top_share(F, Y, 0), DomainError, "count: .* at least 1, got 0"),
        (lambda: rep.prepare_features(F[0]), ShapeError, "features: expected 2 axes"),
        (lambda: rep.prepare_features(F / 0), DomainError, "features: expected finite"),
        (lambda: rep.prepare_features(F, normalize="l1"), DomainError, "'unit', 'max', 'none'"),
        (lambda: rep.scaled_targets(0 * Y + 5), DomainError, "two different values, got only 5.0"),
    ],
)
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_one_example_and_one_feature_are_legal():
    assert rep.representation_alignment(np.array([[2.0]]), np.array([3.0]), 2.0) == 9


def test_projections_of_numpy_arrays_know_their_mass():
    """Static types promise tensors, so this runs where they are not enforced."""
    projections = rep.label_projections(np.eye(2), np.array([1.0, 2.0]))
    assert projections.mass.ravel().tolist() == [1, 4]
    assert projections.energy.tolist() == [5]
    curve = rep.curve_from_projections(projections, np.array([0.0, 2.0]), scale="absolute")
    assert curve.values.tolist() == [5, 0]
