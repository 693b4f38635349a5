"""Linear-probe problems of every shape, and spectra given directly."""

import torch

from theodolite.linalg import LabelProjections
from theodolite.measures.representation import label_projections

F64 = torch.float64
KINDS = ("full_rank", "rank_deficient", "wide", "square")


def problem(kind, generator, outputs=2):
    """Features and targets in float64."""

    def normal(*shape):
        return torch.randn(*shape, dtype=F64, generator=generator)

    features = {
        "full_rank": lambda: normal(9, 4),
        "rank_deficient": lambda: normal(8, 3) @ normal(3, 5),
        "wide": lambda: normal(4, 7),
        "square": lambda: normal(5, 5),
    }[kind]()
    return features, normal(len(features), outputs)


def projected(features, targets):
    return label_projections(features, targets, route="svd")


def spectrum(sigmas, coefficients, residual=0.0):
    """Projections of one target column, given directly."""
    sigma = torch.as_tensor(sigmas, dtype=F64)
    column = torch.as_tensor(coefficients, dtype=F64).reshape(-1, 1)
    return LabelProjections(sigma, column, torch.tensor([residual], dtype=F64), len(sigma) + 1)


def top(projections):
    return float(projections.singular_values[0])
