"""Regression with a kernel between all outputs: the definition, one example left out at a time."""

import numpy as np
import pytest
import torch

from benchmarks.transfer.tangent_regression import leave_one_out_tangent_regression


def left_out(kernel, targets, ridge):
    """Predictions with an intercept for each output, all outputs of an example left out."""
    n, c = targets.shape
    rows = []
    for x in range(n):
        keep = [y for y in range(n) if y != x]
        size = len(keep) * c
        ones = np.tile(np.eye(c), (len(keep), 1))
        K = kernel[np.ix_(keep, range(c), keep, range(c))].reshape(size, size)
        system = np.block([[K + ridge * np.eye(size), ones], [ones.T, np.zeros((c, c))]])
        right = np.concatenate([targets[keep].ravel(), np.zeros(c)])
        weights = np.linalg.solve(system, right)
        rows.append(kernel[x][:, keep].reshape(c, size) @ weights[:size] + weights[size:])
    return np.array(rows)


def best_left_out(kernel, targets):
    n, c = targets.shape
    centred = kernel - kernel.mean(0, keepdims=True)
    centred = centred - centred.mean(2, keepdims=True)
    unit = np.einsum("xixi->", centred) / (n * c)
    plain = sum(((targets[i] - np.delete(targets, i, 0).mean(0)) ** 2).sum() for i in range(n))
    tried = []
    for exponent in np.arange(-5, 2.01, 0.5):
        predicted = left_out(centred, targets, 10.0**exponent * unit)
        tried.append((((targets - predicted) ** 2).sum() / plain, exponent, predicted))
    return min(tried, key=lambda entry: entry[0])


@pytest.mark.parametrize("parameters", [4, 40], ids=["few", "many"])
def test_predictions_are_those_of_a_fit_to_all_others(parameters, generator):
    features = torch.randn(9, 3, parameters, generator=generator, dtype=torch.float64)
    kernel, labels = torch.einsum("xip,yjp->xiyj", features, features), torch.arange(9) % 3
    found = leave_one_out_tangent_regression(kernel, labels)
    error, _, predicted = best_left_out(kernel.numpy(), np.eye(3)[labels])
    np.testing.assert_allclose(found.predictions, predicted, rtol=1e-6, atol=1e-8)
    assert float(found.error) == pytest.approx(error)
