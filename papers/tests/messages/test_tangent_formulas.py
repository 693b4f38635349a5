"""What the formulas of lou2022, and of a tangent kernel as an operator, say about bad input."""

import numpy as np
import pytest
import torch

from theodolite.errors import DomainError, ShapeError
from theodolite_papers.canatar2022.formulas import operator
from theodolite_papers.lou2022.formulas import (
    energy,
    feature_evolution,
    fisher,
    hierarchy,
    labels,
    losses,
    updates,
)

KERNEL = torch.eye(6).reshape(3, 2, 3, 2)
TARGETS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
HESSIAN = torch.eye(2).repeat(3, 1, 1)
SKEWED = HESSIAN + torch.tensor([[0.0, 1.0], [0.0, 0.0]])
FEATURES = torch.ones(3, 2, 4)
CURVE = torch.tensor([0.1, 0.3, 0.2])
NAN = float("nan")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: feature_evolution.feature_kernel(torch.eye(4)),
            ShapeError,
            "features: expected 3 axes",
        ),
        (
            lambda: operator.operator_alignment(torch.eye(6), TARGETS),
            ShapeError,
            r"kernel: expected 4 axes, got shape \(6, 6\)",
        ),
        (lambda: updates.label_contribution(KERNEL * NAN, TARGETS), DomainError, "kernel: .*nan"),
        (
            lambda: updates.label_contribution(KERNEL, TARGETS[:2]),
            ShapeError,
            r"expected shape \(3, 2\).*got \(2, 2\); one-hot",
        ),
        (
            lambda: operator.operator_alignment(KERNEL, TARGETS / 0),
            DomainError,
            "targets: .*finite",
        ),
        (lambda: energy.normalized_spectrum(torch.ones(2, 3)), ShapeError, "a square matrix"),
        (
            lambda: energy.normalized_spectrum(torch.eye(2).cumsum(1)),
            DomainError,
            r"matrix: expected a symmetric matrix.*\(m \+ m.T\) / 2",
        ),
        (lambda: energy.normalized_spectrum(torch.eye(2), 0), DomainError, "count: .* got 0"),
        (lambda: labels.uncoupled_bound(TARGETS[:, 0]), ShapeError, "targets: expected 2 axes"),
        (
            lambda: updates.frozen_update(KERNEL, TARGETS, 0.0),
            DomainError,
            r"learning_rate: expected a number in \(0.0, inf\), got 0.0",
        ),
        (
            lambda: updates.frozen_update_bounds(KERNEL, TARGETS[:1], 0.1),
            ShapeError,
            r"loss_gradient: expected shape \(3, 2\)",
        ),
        (
            lambda: updates.rank_one_model(FEATURES, TARGETS[:2]),
            ShapeError,
            r"targets: expected shape \(3, 2\).*got \(2, 2\)",
        ),
        (lambda: updates.rank_one_model(FEATURES[0], TARGETS), ShapeError, "expected 3 axes"),
        (
            lambda: labels.label_gradient_correlation(TARGETS, TARGETS[:2]),
            ShapeError,
            r"equal shapes, but targets is \(3, 2\), loss_gradient is \(2, 2\)",
        ),
        (
            lambda: losses.cross_entropy_gradient(TARGETS, 2 * TARGETS),
            DomainError,
            "one probability distribution per row.*row sums up to 1 away.*one-hot",
        ),
        (
            lambda: losses.cross_entropy_gradient(TARGETS, 1.5 * TARGETS - 0.25),
            DomainError,
            "got entries from -0.25",
        ),
        (lambda: losses.cross_entropy_gradient(TARGETS, TARGETS.T), ShapeError, "equal shapes"),
        (lambda: losses.cross_entropy_hessian(TARGETS / 0), DomainError, "logits: .*finite"),
        (lambda: losses.squared_error_hessian(TARGETS[0]), ShapeError, "outputs: .* 2 axes"),
    ],
)
def test_other_bad_input_is_rejected(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("hessian", "error", "message"),
    [
        (HESSIAN[:2], ShapeError, r"hessian: expected shape \(3, 2, 2\).*got \(2, 2, 2\)"),
        (HESSIAN[0], ShapeError, "hessian: expected 3 axes"),
        (HESSIAN * NAN, DomainError, "hessian: expected finite numbers"),
        (SKEWED, DomainError, "symmetric blocks.*1.0e[+]00"),
        (-HESSIAN, DomainError, "positive semi-definite blocks, got an eigenvalue of -1"),
    ],
    ids=["length", "block", "nan", "asymmetric", "negative"],
)
@pytest.mark.parametrize(
    "measure",
    [
        fisher.fisher_gram,
        fisher.fisher_stable_rank,
        lambda kernel, hessian: fisher.fisher_correlation(kernel, hessian, TARGETS),
        lambda kernel, hessian: fisher.fisher_information(FEATURES, hessian),
    ],
    ids=["gram", "stable_rank", "correlation", "information"],
)
def test_bad_hessians_are_rejected(measure, hessian, error, message):
    with pytest.raises(error, match=message):
        measure(KERNEL, hessian)


@pytest.mark.parametrize(
    ("vectors", "sizes", "values", "error", "message"),
    [
        (torch.ones(3), (3,), None, ShapeError, "vectors: expected 2 axes"),
        (torch.ones(3, 2), (1, 1), None, ShapeError, r"add up to 3.*got \[1, 1\] with sum 2"),
        (torch.ones(3, 2), (3, 0), None, DomainError, "sizes: expected an integer of at least 1"),
        (torch.ones(3, 2), (3,), torch.ones(3), ShapeError, "values: expected 2.* got 3"),
    ],
    ids=["vector", "sum", "zero", "values"],
)
def test_bad_layers_are_rejected(vectors, sizes, values, error, message):
    with pytest.raises(error, match=message):
        energy.layer_energy(vectors, sizes, values)


@pytest.mark.parametrize(
    "summary",
    [
        hierarchy.prominence,
        hierarchy.relative_alignment,
        hierarchy.is_ascent_descent,
    ],
)
@pytest.mark.parametrize(
    ("curve", "error", "message"),
    [
        (CURVE.unsqueeze(0), ShapeError, "alignments: expected 1 axes"),
        (CURVE[:0], ShapeError, "alignments: expected at least one entry"),
        (
            CURVE / 0,
            DomainError,
            "alignments: expected finite numbers, or nan if undefined, got inf",
        ),
    ],
    ids=["matrix", "empty", "inf"],
)
def test_bad_curves_are_rejected(summary, curve, error, message):
    with pytest.raises(error, match=message):
        summary(curve)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hierarchy.is_ascent_descent(CURVE, -0.1), r"tolerance: .* in \[0.0, 1.0\]"),
    ],
    ids=["tolerance"],
)
def test_shares_outside_their_domain_are_rejected(call, message):
    with pytest.raises(DomainError, match=message):
        call()


@pytest.mark.parametrize(
    ("depths", "peaks", "error", "message"),
    [
        ([10, 20], [0, 3], DomainError, "counted from 1.*got 0 at depth 10"),
        ([10, 20], [3, 21], DomainError, r"got 21 at depth 20 \(entry 1\)"),
        ([10, 20], [3], ShapeError, "expected equal shapes"),
        ([], [], ShapeError, "depths: expected at least one entry"),
        ([10, NAN], [3, 4], DomainError, "depths: expected finite numbers"),
    ],
    ids=["below-1", "beyond", "length", "empty", "nan"],
)
def test_bad_peaks_are_rejected(depths, peaks, error, message):
    with pytest.raises(error, match=message):
        hierarchy.fit_equilibrium(np.array(depths), np.array(peaks))
