"""What the streaming metrics say about bad input."""

import pytest
import torch

from theodolite import metrics
from theodolite.errors import DomainError, DtypeError, ShapeError

X, Y = torch.eye(3), torch.tensor([0, 1, 1])


def fed(metric, *arguments):
    metric.update(*arguments)
    return metric


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: metrics.TargetCKA(2).update(X[0], Y), ShapeError, "expected 2 axes"),
        (lambda: metrics.TargetCKA(2).update(X, Y[:2]), ShapeError, "features has 3, labels has 2"),
        (lambda: metrics.TargetCKA(1).update(X, Y), DomainError, "below num_classes = 1, got 1"),
        (lambda: metrics.TargetCKA(2).update(X / 0, Y), DomainError, "features: expected finite"),
        (lambda: metrics.TargetCKA(2).update(X, Y.float()), DomainError, r"integer.*\.long\(\)"),
        (lambda: metrics.CovarianceState().update(X + 0j), DtypeError, "expected real numbers"),
        (
            lambda: fed(metrics.CovarianceState(), X).update(X[:, :1]),
            ShapeError,
            "rows: expected 3 columns, as in the batches before, got 1",
        ),
        (
            lambda: fed(metrics.PairCKA(), X, X).update(X, X[:, :2]),
            ShapeError,
            "features_b: expected 3 columns, as in the batches before, got 2",
        ),
        (
            lambda: fed(metrics.VectorAlignment(2), X, Y).update(X[:, :1], Y),
            ShapeError,
            "vectors: expected 3 columns, as in the batches before, got 1",
        ),
        (
            lambda: metrics.VectorAlignment(2).update(X.numpy(), Y),
            DtypeError,
            "vectors: expected a tensor, got ndarray; wrap it in torch.as_tensor",
        ),
        (
            lambda: metrics.TargetCKA(2).update(X, Y.tolist()),
            DtypeError,
            "labels: expected a tensor, got list",
        ),
        (
            lambda: metrics.CovarianceState().update(X.numpy()),
            DtypeError,
            "rows: expected a tensor",
        ),
        (lambda: metrics.PairCKA().update(X, None), DtypeError, "features_b: .* got NoneType"),
        (
            lambda: metrics.RepresentationAlignment(2).update(X[:, :0], Y),
            ShapeError,
            r"features: expected at least one column, got shape \(3, 0\)",
        ),
        (
            lambda: metrics.PairCKA().update(X, X[:, :0]),
            ShapeError,
            "features_b: expected at least one column",
        ),
        (
            lambda: metrics.VectorAlignment(2).update(Y, Y),
            ShapeError,
            r"shape \(n, d\), got \(3,\)",
        ),
        (lambda: metrics.VectorAlignment(2, "mean"), DomainError, "part: expected one of 'class'"),
        (
            lambda: metrics.RepresentationAlignment(2, scale="log"),
            DomainError,
            "scale: expected one of 'absolute', 'normalized', 'relative'",
        ),
        (
            lambda: metrics.RepresentationAlignment(2).projections(),
            DomainError,
            "at least one example; call update first",
        ),
    ],
)
def test_message(call, error, message):
    with pytest.raises(error, match=message):
        call()
