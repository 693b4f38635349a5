"""Gradients of one-against-one curves."""

import torch

from theodolite_papers.imani2022.formulas.curves import one_vs_one_curve


def test_one_vs_one_curves_are_differentiable(generator):
    features = torch.randn(8, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    labels = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2])
    grid = torch.tensor([0.1, 0.5], dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda x: one_vs_one_curve(x, labels, grid).mean, features, fast_mode=True
    )
