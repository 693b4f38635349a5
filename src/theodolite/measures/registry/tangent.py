"""Rows of the family tangent."""

from functools import partial
from math import inf, sqrt
from typing import Any

import torch
from torch import Tensor

from theodolite.linalg import double_center
from theodolite.measures import tangent
from theodolite.measures.registry.measure import Invariance, Measure

_row = partial(Measure, family="tangent")
_PERMUTATION = Invariance("permute_rows_and_columns", ("kernel", "targets"))
_SCALE = Invariance("scale", ("kernel", "targets"))
_SHIFTS = (
    Invariance("shift_entries", ("kernel",)),
    Invariance("shift_entries", ("targets",)),
)
_KERNEL_AND_TARGETS = {"kernel": "tangent_kernel", "targets": "targets"}
_FISHER = {"kernel": "tangent_kernel", "hessian": "output_hessian"}


def _lost_by_centering(kernel: Tensor, targets: Tensor, **_options: Any) -> float:
    """How many times larger kernel and targets are than what centring leaves of them."""
    matrix = kernel.reshape(targets.numel(), targets.numel())
    kept = torch.linalg.vector_norm(double_center(matrix)) / torch.linalg.vector_norm(matrix)
    left = torch.linalg.vector_norm(targets - targets.mean()) / torch.linalg.vector_norm(targets)
    return float(1 / (kept * left))


def _lost_by_centering_examples(kernel: Tensor, targets: Tensor, **_options: Any) -> float:
    """The same for means over the examples, output by output."""
    rows = kernel - kernel.mean(0, keepdim=True)
    centered = rows - rows.mean(2, keepdim=True)
    kept = torch.linalg.vector_norm(centered) / torch.linalg.vector_norm(kernel)
    left = torch.linalg.vector_norm(targets - targets.mean(0)) / torch.linalg.vector_norm(targets)
    return float(1 / (kept * left))


def _smaller_side(matrix: Tensor) -> float:
    """The largest value that a rank can have."""
    return float(min(matrix.shape))


def _number_of_pairs(kernel: Tensor, **_others: Tensor) -> float:
    """The largest rank that a kernel over pairs of example and output can have."""
    return float(kernel.shape[0] * kernel.shape[1])


def _energy_scale(kernel: Tensor, targets: Tensor) -> float:
    return float(torch.linalg.vector_norm(kernel) * targets.square().sum())


ROWS: tuple[Measure, ...] = (
    _row(
        name="tangent_alignment",
        function=tangent.tangent_alignment,
        inputs=_KERNEL_AND_TARGETS,
        meaning="How well a gradient step on this layer moves the outputs along the labels.",
        reference="[lou2022], Eq. (7)",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        invariances=(_PERMUTATION, _SCALE, Invariance("negate", ("targets",)), *_SHIFTS),
        differentiable={"kernel": True, "targets": True},
        condition=_lost_by_centering,
    ),
    _row(
        name="tangent_alignment.uncentered",
        function=tangent.tangent_alignment,
        inputs=_KERNEL_AND_TARGETS,
        options={"center": False},
        meaning="Alignment of the tangent kernel with the raw labels, offsets included.",
        reference="[lou2022], Section 2",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        invariances=(_PERMUTATION, _SCALE, Invariance("negate", ("targets",))),
        differentiable={"kernel": True, "targets": True},
    ),
    _row(
        name="operator_alignment",
        function=tangent.operator_alignment,
        inputs=_KERNEL_AND_TARGETS,
        meaning="How close the operator-valued kernel is to the best one for these targets.",
        reference="[canatar2022], Section VI",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        invariances=(
            _PERMUTATION,
            _SCALE,
            *_SHIFTS,
            Invariance("shift_rows", ("targets",)),
            Invariance("negate", ("targets",)),
        ),
        differentiable={"kernel": True, "targets": True},
        condition=_lost_by_centering_examples,
    ),
    _row(
        name="operator_alignment.uncentered",
        function=tangent.operator_alignment,
        inputs=_KERNEL_AND_TARGETS,
        options={"center": False},
        meaning="Alignment of the operator-valued kernel with the targets, their means included.",
        reference="[canatar2022], Section VI",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        invariances=(_PERMUTATION, _SCALE, Invariance("negate", ("targets",))),
        differentiable={"kernel": True, "targets": True},
    ),
    _row(
        name="correlation_term",
        function=tangent.correlation_term,
        inputs=_KERNEL_AND_TARGETS,
        meaning="How much of the labels lies in the leading directions of the tangent kernel.",
        reference="[lou2022], Appendix G",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        invariances=(_PERMUTATION, _SCALE, *_SHIFTS),
        differentiable={"kernel": True, "targets": True},
        condition=_lost_by_centering,
    ),
    _row(
        name="alignment_decomposition.stable_rank",
        function=tangent.alignment_decomposition,
        inputs=_KERNEL_AND_TARGETS,
        values=lambda parts: parts.stable_rank,
        meaning="How many directions share the centred tangent kernel: few help alignment.",
        reference="[lou2022], Appendix G",
        range=(1.0, inf),
        larger_is_more_aligned=False,
        invariances=(_PERMUTATION, _SCALE, *_SHIFTS),
        differentiable={"kernel": True, "targets": False},
        scale=_number_of_pairs,
        condition=_lost_by_centering,
    ),
    _row(
        name="stable_rank",
        function=tangent.stable_rank,
        inputs={"matrix": "features"},
        meaning="How many directions carry the squared norm of a matrix, noise aside.",
        reference="[lou2022], Appendix G",
        range=(1.0, inf),
        invariances=(
            Invariance("scale", ("matrix",)),
            Invariance("negate", ("matrix",)),
            Invariance("rotate_rows", ("matrix",)),
            Invariance("rotate_columns", ("matrix",)),
            Invariance("append_zero_columns", ("matrix",)),
        ),
        differentiable={"matrix": True},
        scale=_smaller_side,
    ),
    _row(
        name="effective_rank",
        function=tangent.effective_rank,
        inputs={"matrix": "features"},
        meaning="How many equal directions would have the same entropy as this spectrum.",
        reference="[roy2007], Definition 1",
        range=(1.0, inf),
        invariances=(
            Invariance("scale", ("matrix",)),
            Invariance("rotate_rows", ("matrix",)),
            Invariance("rotate_columns", ("matrix",)),
            Invariance("append_zero_columns", ("matrix",)),
        ),
        differentiable={"matrix": False},  # the entropy has infinite slope at rank deficiency
        scale=_smaller_side,
    ),
    _row(
        name="normalized_spectrum",
        function=tangent.normalized_spectrum,
        inputs={"matrix": "covariance"},
        meaning="How fast the eigenvalues of a kernel fall off from the largest.",
        reference="[lou2022], Figure 19",
        range=(0.0, 1.0),
        invariances=(Invariance("scale", ("matrix",)), Invariance("rotate_both", ("matrix",))),
        differentiable={"matrix": True},
    ),
    _row(
        name="uncoupled_bound",
        function=tangent.uncoupled_bound,
        inputs={"targets": "targets"},
        meaning="Largest alignment without feature learning: a layer above it has coupled outputs.",
        reference="[lou2022], Eq. (7); the bound is ours",
        range=(0.0, 1.0),
        invariances=(
            Invariance("scale", ("targets",)),
            Invariance("negate", ("targets",)),
            Invariance("shift_entries", ("targets",)),
            Invariance("permute_rows", ("targets",)),
        ),
        differentiable={"targets": True},
    ),
    _row(
        name="label_contribution",
        function=tangent.label_contribution,
        inputs=_KERNEL_AND_TARGETS,
        meaning="How far a step on this layer moves the outputs along the labels; layers add up.",
        reference="[lou2022], Section 2.1",
        range=(0.0, inf),
        larger_is_more_aligned=True,
        invariances=(_PERMUTATION, Invariance("negate", ("targets",)), *_SHIFTS),
        differentiable={"kernel": True, "targets": True},
        scale=_energy_scale,
    ),
    _row(
        name="rank_one_model",
        function=tangent.rank_one_model,
        inputs={"tangent_features": "tangent_features", "targets": "targets"},
        values=lambda model: model.error,
        meaning="What is left of the tangent features beyond one direction along the labels.",
        reference="[lou2022], Appendix G, Eq. (26)-(27)",
        range=(0.0, sqrt(2)),
        larger_is_more_aligned=False,
        invariances=(
            Invariance("permute_rows", ("tangent_features", "targets")),
            Invariance("scale", ("tangent_features", "targets")),
            Invariance("negate", ("tangent_features",)),
            Invariance("negate", ("targets",)),
            Invariance("shift_entries", ("targets",)),
        ),
        differentiable={"tangent_features": True, "targets": True},
    ),
    _row(
        name="label_gradient_correlation",
        function=tangent.label_gradient_correlation,
        inputs={"targets": "targets", "loss_gradient": "loss_gradient"},
        meaning="Whether the loss pushes the outputs along the labels (-1) or elsewhere.",
        reference="[lou2022], Figure 6",
        range=(-1.0, 1.0),
        larger_is_more_aligned=False,
        invariances=(
            Invariance("permute_rows", ("targets", "loss_gradient")),
            Invariance("scale", ("targets", "loss_gradient")),
            Invariance("shift_entries", ("targets",)),
            Invariance("shift_entries", ("loss_gradient",)),
            Invariance("swap", ("targets", "loss_gradient")),
        ),
        differentiable={"targets": True, "loss_gradient": True},
    ),
    _row(
        name="fisher_stable_rank",
        function=tangent.fisher_stable_rank,
        inputs=_FISHER,
        meaning="How many parameter directions of this layer the predictions depend on.",
        reference="[lou2022], Appendix G",
        range=(1.0, inf),
        invariances=(
            Invariance("permute_rows_and_columns", ("kernel", "hessian")),
            Invariance("scale", ("kernel", "hessian")),
        ),
        differentiable={"kernel": True, "hessian": True},
        scale=_number_of_pairs,
    ),
    _row(
        name="fisher_correlation",
        function=tangent.fisher_correlation,
        inputs={**_FISHER, "targets": "targets"},
        meaning="How much of the labels lies in the leading directions of the Fisher information.",
        reference="[lou2022], Appendix G",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        invariances=(
            Invariance("permute_rows_and_columns", ("kernel", "hessian", "targets")),
            Invariance("scale", ("kernel", "hessian", "targets")),
            Invariance("shift_entries", ("targets",)),
        ),
        # The root of the Hessian has no derivative where a block is singular.
        differentiable={"kernel": True, "hessian": False, "targets": True},
    ),
    _row(
        name="tangent_regression_error",
        function=tangent.tangent_regression_error,
        inputs=_KERNEL_AND_TARGETS,
        meaning="Error of tangent-kernel regression on all other examples: fine-tuning, forecast.",
        reference="[allen1974prediction]",
        range=(0.0, inf),
        larger_is_more_aligned=False,
        invariances=(
            _PERMUTATION,
            _SCALE,
            Invariance("shift_entries", ("kernel",)),
            Invariance("shift_rows", ("targets",)),
        ),
        differentiable={"kernel": False, "targets": False},
    ),
    _row(
        name="tangent_regression_accuracy",
        function=tangent.tangent_regression_accuracy,
        inputs={"kernel": "tangent_kernel", "labels": "labels"},
        meaning="Share of examples that tangent-kernel regression on all the others gets right.",
        reference="[allen1974prediction]",
        range=(0.0, 1.0),
        larger_is_more_aligned=True,
        invariances=(
            Invariance("permute_rows_and_columns", ("kernel", "labels")),
            Invariance("scale", ("kernel",)),
            Invariance("shift_entries", ("kernel",)),
        ),
        differentiable={"kernel": False},
    ),
    _row(
        name="layer_energy",
        function=tangent.layer_energy,
        inputs={"vectors": "parameter_vectors", "sizes": "layer_sizes"},
        values=lambda energy: energy.squared,
        meaning="Which layers an eigenvector of the curvature lives in.",
        reference="[lou2022], Figure 5",
        range=(0.0, 1.0),
        invariances=(Invariance("scale", ("vectors",)), Invariance("negate", ("vectors",))),
        differentiable={"vectors": True},
    ),
    _row(
        name="fit_equilibrium",
        function=tangent.fit_equilibrium,
        inputs={"depths": "depths", "peaks": "peaks"},
        values=lambda fit: fit.slope,
        meaning="Power of the depth with which the peak of alignment moves; the theory says 3/5.",
        reference="[lou2022], Corollary 1",
        invariances=(Invariance("permute_rows", ("depths", "peaks")),),
        differentiable={"depths": True, "peaks": True},
    ),
)
