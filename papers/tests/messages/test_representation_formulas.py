"""What formulas of representation alignment say about bad input."""

import pytest
import torch

from theodolite.errors import DomainError, ShapeError
from theodolite.measures import representation as rep
from theodolite_papers.imani2022.formulas import curves

F = torch.tensor([[3.0, 0.0], [0.0, 4.0], [3.0, 4.0]])
Y = torch.tensor([1.0, -1.0, 1.0])
LABELS = torch.tensor([0, 1, 0])
NAN = torch.tensor([1.0, float("nan"), 1.0])
CURVE = rep.alignment_curve(F, Y, torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: curves.alignment_second_moment(F / 0, Y),
            DomainError,
            "features: expected finite",
        ),
        (lambda: curves.chance_curve(F / 0, Y), DomainError, "features: expected finite"),
        (lambda: curves.picard_ratios(F, NAN), DomainError, "targets: expected finite"),
        (
            lambda: curves.one_vs_one_curve(F, LABELS - 1),
            DomainError,
            "labels: .* at least 0, got -1",
        ),
        (
            lambda: curves.one_vs_one_curve(F, LABELS[:2]),
            ShapeError,
            "features has 3, labels has 2",
        ),
        (
            lambda: curves.one_vs_one_difference(F, F[:2], LABELS),
            ShapeError,
            "features has 3, other_features has 2",
        ),
        (
            lambda: curves.curve_difference(
                CURVE, rep.alignment_curve(F, Y, torch.tensor([0.0, 2.0]))
            ),
            DomainError,
            "same thresholds .* pass one thresholds=",
        ),
        (
            lambda: curves.curve_average(
                [CURVE, rep.alignment_curve(F, Y, CURVE.thresholds, scale="absolute")]
            ),
            DomainError,
            r"one scale, got \['absolute', 'normalized'\]",
        ),
        (lambda: curves.curve_average([]), DomainError, "number_of_curves: .* got 0"),
        (
            lambda: curves.dominance_fraction(CURVE, CURVE, slack=-1.0),
            DomainError,
            "slack: .* got -1.0",
        ),
    ],
)
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_one_example_per_class_is_legal():
    assert curves.one_vs_one_curve(F, torch.arange(3)).curves.shape == (3, 200)
