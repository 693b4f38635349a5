"""What the measures of gradient alignment say about bad input."""

import numpy as np
import pytest
import torch

from theodolite.errors import DomainError, DtypeError, ShapeError
from theodolite.measures import gradient

V = torch.tensor([[3.0, 0.0], [0.0, 4.0], [3.0, 4.0]])
Y = torch.tensor([0, 0, 1])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: gradient.vector_alignment(V[:1]), ShapeError, "at least 2 .* got 1"),
        (lambda: gradient.vector_alignment(V[0]), ShapeError, r"shape \(n, d\), got shape \(2,\)"),
        (lambda: gradient.vector_alignment(V[0, 0]), ShapeError, "at least 2 .* got 1"),
        (lambda: gradient.vector_alignment(V[:, :0]), ShapeError, "non-empty vector"),
        (
            lambda: gradient.vector_alignment([[1.0, 0.0], [0.0, 1.0]]),
            DtypeError,
            "vectors: expected a tensor or a NumPy array, got list; .* torch.as_tensor",
        ),
        (
            lambda: gradient.class_alignment(V, None),
            DtypeError,
            "labels: expected a tensor or a NumPy array, got NoneType",
        ),
        (
            lambda: gradient.class_alignment(V, Y[0]),
            ShapeError,
            "labels: expected one row per example, got a single number",
        ),
        (lambda: gradient.gradient_confusion(V[0]), ShapeError, r"\(n, d\), got shape \(2,\)"),
        (lambda: gradient.vector_alignment(V / 0), DomainError, r"vectors: expected finite.*index"),
        (lambda: gradient.vector_alignment(V + 0j), DtypeError, "real numbers, got torch.complex"),
        (
            lambda: gradient.class_alignment(V, np.array([0, 0, 1])),
            DtypeError,
            "all NumPy arrays or all tensors, got both",
        ),
        (lambda: gradient.class_alignment(V, Y[:2]), ShapeError, "vectors has 3, labels has 2"),
        (lambda: gradient.class_alignment(V, Y.float()), DomainError, r"integer.*\.long\(\)"),
        (lambda: gradient.class_alignment(V, Y - 1), DomainError, "at least 0, got -1"),
        (
            lambda: gradient.class_alignment(V, Y, num_classes=1),
            DomainError,
            "below num_classes = 1, got 1",
        ),
        (
            lambda: gradient.in_class_alignment(V, Y, zero="raise"),
            DomainError,
            "zero: expected one of 'nan', 'zero', got 'raise'",
        ),
        (lambda: gradient.confusion_of_gram(V), ShapeError, "gram: expected a square matrix"),
        (lambda: gradient.confusion_of_gram(torch.eye(2).cumsum(1)), DomainError, "symmetric"),
        (lambda: gradient.relative_norm(V, V.T), ShapeError, "expected equal shapes"),
        (
            lambda: gradient.VectorMoments.of(V) + gradient.VectorMoments.of(V, Y),
            ShapeError,
            "same classes and vector length",
        ),
    ],
)
def test_message(call, error, message):
    with pytest.raises(error, match=message):
        call()
