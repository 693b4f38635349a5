"""What the measures of tangent alignment say about bad input."""

import pytest
import torch

from theodolite.errors import DomainError, DtypeError, ShapeError
from theodolite.measures import tangent

KERNEL = torch.eye(6).reshape(3, 2, 3, 2)
TARGETS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
CURVE = torch.tensor([0.1, 0.3, 0.2])
NAN = float("nan")


def with_entry(tensor, index, value):
    """A copy with one entry changed."""
    copy = tensor.clone()
    copy[index] = value
    return copy


LOPSIDED = with_entry(KERNEL, (0, 0, 1, 0), 1.0)


@pytest.mark.spec("4.P105")
@pytest.mark.parametrize(
    ("labels", "classes", "error", "message"),
    [
        (torch.tensor([0, 3]), 3, DomainError, "below num_classes = 3, got 3.*larger num_classes"),
        (torch.tensor([0, -1]), None, DomainError, "labels: expected labels of at least 0, got -1"),
        (torch.tensor([True, False]), None, DomainError, "expected integer class labels, got"),
        (torch.tensor([[0], [1]]), None, ShapeError, "labels: expected 1 axes, got shape"),
        (torch.tensor([0.0, 1.0]), None, ShapeError, "labels: expected 2 axes, got shape"),
        (torch.tensor([], dtype=torch.int64), 2, ShapeError, "at least one entry, got shape"),
        (TARGETS * NAN, None, DomainError, "labels: expected finite numbers, got nan"),
        (TARGETS, 5, DomainError, "num_classes: expected 2, the columns of the targets"),
    ],
    ids=["large", "negative", "bool", "column", "float", "empty", "nan", "columns"],
)
def test_bad_labels_are_rejected(labels, classes, error, message):
    with pytest.raises(error, match=message):
        tangent.centered_labels(labels, classes)


@pytest.mark.parametrize(
    "measure",
    [
        tangent.tangent_alignment,
        tangent.alignment_decomposition,
    ],
)
@pytest.mark.parametrize(
    ("kernel", "targets", "error", "message"),
    [
        (torch.eye(6), TARGETS, ShapeError, r"kernel: expected 4 axes, got shape \(6, 6\)"),
        (KERNEL[:2], TARGETS, ShapeError, r"expected shape \(n, c, n, c\), got \(2, 2, 3, 2\)"),
        (KERNEL[:0, :, :0], TARGETS[:0], ShapeError, "kernel: expected at least one entry"),
        (LOPSIDED, TARGETS, DomainError, "kernel: expected a symmetric matrix"),
        (KERNEL * NAN, TARGETS, DomainError, "kernel: expected finite numbers, got nan at index"),
        (KERNEL, TARGETS[:2], ShapeError, r"expected shape \(3, 2\).*got \(2, 2\); one-hot"),
        (KERNEL, TARGETS[:, 0], ShapeError, "targets: expected 2 axes"),
        (KERNEL, TARGETS / 0, DomainError, "targets: expected finite numbers"),
        (KERNEL + 0j, TARGETS, DtypeError, "kernel: expected real numbers"),
        (KERNEL.numpy(), TARGETS, DtypeError, "all NumPy arrays or all tensors, got both"),
    ],
    ids=[
        "matrix",
        "not-square",
        "empty",
        "asymmetric",
        "nan",
        "length",
        "vector",
        "inf",
        "complex",
        "mixed",
    ],
)
def test_bad_kernels_and_targets_are_rejected(measure, kernel, targets, error, message):
    with pytest.raises(error, match=message):
        measure(kernel, targets)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: tangent.stacked_kernel(torch.eye(4)), ShapeError, "kernel: expected 4 axes"),
        (lambda: tangent.stable_rank(torch.ones(3)), ShapeError, "matrix: expected 2 axes"),
        (lambda: tangent.stable_rank(torch.ones(0, 3)), ShapeError, "matrix: expected at least"),
        (lambda: tangent.peak_layer(CURVE.unsqueeze(0)), ShapeError, "alignments: expected 1 axes"),
        (lambda: tangent.peak_layer(CURVE[:0]), ShapeError, "alignments: expected at least one"),
        (
            lambda: tangent.peak_layer(CURVE / 0),
            DomainError,
            "alignments: expected finite numbers, or nan if undefined, got inf",
        ),
    ],
)
def test_other_bad_input_is_rejected(call, error, message):
    with pytest.raises(error, match=message):
        call()
