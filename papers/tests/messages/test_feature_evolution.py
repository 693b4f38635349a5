import pytest
import torch
from torch import nn

from theodolite.errors import DomainError, ShapeError
from theodolite_papers.lou2022.formulas import feature_evolution, homogeneity


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: feature_evolution.ofe_step(torch.ones(2, 1, 2, 1), torch.ones(3, 1), 0.1),
            r"kernel: expected shape \(n, c, n, c\) for a loss gradient of shape \(3, 1\)",
        ),
        (
            lambda: feature_evolution.ofe_features(torch.ones(2, 1, 4), torch.ones(3, 1), 0.1),
            r"features: expected shape \(n, c, p\).*got \(2, 1, 4\)",
        ),
        (
            lambda: feature_evolution.gofe_step(
                torch.ones(3, 1, 4), torch.ones(3, 1), torch.eye(3), 0.1
            ),
            "expected a matrix over the 4 parameters",
        ),
        (
            lambda: feature_evolution.parameter_step(
                torch.ones(3, 1, 4), torch.ones(3, 1), 0.1, batch=torch.ones(2, dtype=torch.bool)
            ),
            r"batch: expected one boolean per example \(n = 3\)",
        ),
        (
            lambda: feature_evolution.predict_alignments(
                nn.Linear(2, 2), torch.eye(2), torch.ones(2, 3), step_size=0.1
            ),
            "expected equal shapes, but targets is",
        ),
    ],
    ids=["kernel", "features", "hessian", "batch", "targets"],
)
def test_shapes_that_do_not_match(call, message):
    with pytest.raises(ShapeError, match=message):
        call()


def test_convergence_is_named():
    with pytest.raises(DomainError, match="training has converged"):
        feature_evolution.gofe_step(torch.ones(3, 1, 2), torch.zeros(3, 1), torch.eye(2), 0.1)


def test_foreign_parameters_are_named():
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 2))
    with pytest.raises(DomainError, match=r"got also 1\.weight, 1\.bias"):
        homogeneity.check_homogeneity(model, torch.eye(2))
