"""Literal loops for the infinite-width recursions, and finite networks to compare them with."""

import math
from itertools import pairwise

import mpmath
import numpy as np
import torch


def g(c):
    return (c * math.asin(c) + math.sqrt(1 - c * c)) / math.pi + c / 2


def g_prime(c):
    return math.asin(c) / math.pi + 0.5


def correlations(c1, depth):
    values = [c1]
    for _ in range(depth - 1):
        values.append(min(1.0, g(values[-1])))
    return values


def exact_deficit(c1, layer, digits=60):
    """1 - c_l with the naive recursion in enough digits to survive it."""
    with mpmath.workdps(digits):
        c = mpmath.mpf(c1)
        for _ in range(layer - 1):
            c = (c * mpmath.asin(c) + mpmath.sqrt(1 - c * c)) / mpmath.pi + c / 2
        return float(1 - c)


def gaussian_product(c, points=2001):
    """2 E[relu(u) relu(v)] by the trapezium rule on [-8, 8]^2."""
    grid = np.linspace(-8, 8, points)
    step = grid[1] - grid[0]
    u, w = np.meshgrid(grid, grid, indexing="ij")
    v = c * u + math.sqrt(1 - c * c) * w
    density = np.exp(-(u**2 + w**2) / 2) / (2 * math.pi)
    return 2 * float((np.maximum(u, 0) * np.maximum(v, 0) * density).sum()) * step**2


def pair_loops(inputs, layer, depth):
    """Forward and backward information of every pair, one at a time."""
    n, d = inputs.shape
    forward, backward = np.empty((n, n)), np.empty((n, n))
    for i in range(n):
        for j in range(n):
            q_i, q_j = 2 * inputs[i] @ inputs[i] / d, 2 * inputs[j] @ inputs[j] / d
            c1 = 1.0 if i == j else float(2 * inputs[i] @ inputs[j] / d / math.sqrt(q_i * q_j))
            c = correlations(max(-1.0, min(1.0, c1)), depth)
            forward[i, j] = math.sqrt(q_i * q_j) * c[layer - 1] / 2
            backward[i, j] = math.prod(g_prime(c[k - 1]) for k in range(layer, depth))
    return forward, backward


def stacked_alignment(kernel, targets):
    """A_l from the m x m kernel with an explicit centring matrix."""
    n, c = targets.shape
    m = n * c
    C = np.eye(m) - np.ones((m, m)) / m
    K = C @ np.kron(kernel, np.eye(c)) @ C
    y = C @ targets.reshape(m)
    return float(y @ K @ y / (np.linalg.norm(K) * (y @ y)))


def finite_information(inputs, depth, width, generator):
    """Fwd_l and un-normalised Bwd_l of one random bias-free ReLU network with one output."""
    x = torch.as_tensor(inputs, dtype=torch.float64)
    weights = []
    fan_in = x.shape[1]
    for layer in range(1, depth + 1):
        rows = 1 if layer == depth else width
        draw = torch.randn(rows, fan_in, dtype=torch.float64, generator=generator)
        weights.append(draw * (2 / fan_in) ** 0.5)
        fan_in = width
    signals, gates, a = [], [], x
    for W in weights:
        signals.append(a)
        z = a @ W.T
        gates.append(z > 0)
        a = z.relu()
    forward = [s @ s.T / s.shape[1] for s in signals]
    delta = torch.ones(len(x), 1, dtype=torch.float64)
    backward = [delta @ delta.T]
    for layer in range(depth - 1, 0, -1):
        delta = (delta @ weights[layer]) * gates[layer - 1]
        backward.append(delta @ delta.T)
    return torch.stack(forward), torch.stack(backward[::-1])


def finite_alignments(inputs, targets, depth, width, generator):
    """A_l of every layer of one random network, from the Hadamard form of its tangent kernels."""
    x, y = torch.as_tensor(inputs), torch.as_tensor(targets)
    n, c = y.shape
    sizes = [x.shape[1], *[width] * (depth - 1), c]
    weights = [
        torch.randn(rows, fan_in, dtype=torch.float64, generator=generator) * (2 / fan_in) ** 0.5
        for fan_in, rows in pairwise(sizes)
    ]
    signals, gates, a = [], [], x
    for W in weights:
        signals.append(a)
        gates.append(a @ W.T > 0)
        a = (a @ W.T).relu()
    delta = torch.eye(c, dtype=torch.float64).expand(n, c, c)  # example, output, unit
    values = []
    for layer in range(depth, 0, -1):
        if layer < depth:
            delta = (delta @ weights[layer]) * gates[layer - 1].unsqueeze(1)
        forward = torch.kron(signals[layer - 1] @ signals[layer - 1].T, torch.ones(c, c))
        rows = delta.reshape(n * c, -1)
        kernel = (forward * (rows @ rows.T)).numpy()
        values.append(stacked_alignment(kernel, y.reshape(-1, 1).numpy()))
    return values[::-1]
