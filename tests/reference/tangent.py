"""Definitions of spec 4, entry by entry."""

import math

import numpy as np


def _stack(kernel):
    n, c = kernel.shape[:2]
    matrix = np.zeros((n * c, n * c))
    for x in range(n):
        for i in range(c):
            for y in range(n):
                for j in range(c):
                    matrix[x * c + i, y * c + j] = kernel[x, i, y, j]
    return matrix


def _stack_targets(targets):
    return np.array([targets[x, i] for x in range(len(targets)) for i in range(targets.shape[1])])


def _centering_matrix(size):
    return np.eye(size) - np.ones((size, size)) / size


def _centered(kernel, targets, center=True):
    K, y = _stack(kernel), _stack_targets(targets)
    C = _centering_matrix(len(y)) if center else np.eye(len(y))
    return C @ K @ C, C @ y


def _alignment(K, y):
    energy = sum(y[a] * K[a, b] * y[b] for a in range(len(y)) for b in range(len(y)))
    return energy / (math.sqrt((K**2).sum()) * (y**2).sum())


def tangent_alignment(kernel, targets, center=True):
    return _alignment(*_centered(kernel, targets, center))


def operator_alignment(kernel, targets, center=True):
    n, c = targets.shape
    HI = np.kron(_centering_matrix(n), np.eye(c)) if center else np.eye(n * c)
    return _alignment(HI @ _stack(kernel) @ HI, HI @ _stack_targets(targets))


def correlation_term(kernel, targets, center=True):
    K, y = _centered(kernel, targets, center)
    values, vectors = np.linalg.eigh(K)
    unit = y / np.linalg.norm(y)
    return sum(
        value / values[-1] * (vector @ unit) ** 2
        for value, vector in zip(values, vectors.T, strict=True)
    )


def stable_rank(matrix):
    sigma = np.linalg.svd(matrix, compute_uv=False)
    return sum(value**2 for value in sigma) / sigma[0] ** 2


def centered_stable_rank(kernel, targets, center=True):
    return stable_rank(_centered(kernel, targets, center)[0])


def normalized_spectrum(matrix, count=200):
    values = sorted(np.linalg.eigvalsh(matrix), reverse=True)
    return np.array([max(value, 0.0) / values[0] for value in values[:count]])


def uncoupled_bound(targets):
    """The maximiser, a symmetric F, put into the definition of alignment."""
    n, c = targets.shape
    Yt = targets - targets.mean()
    G = Yt @ Yt.T
    H, one = _centering_matrix(n), np.ones((n, n)) / n
    F = H @ G @ H / c
    if c > 1:
        F = F + (H @ G @ one + one @ G @ H + one @ G @ one) / (c - 1)
    kernel = np.zeros((n, c, n, c))
    for i in range(c):
        kernel[:, i, :, i] = F
    return tangent_alignment(kernel, targets)


def label_contribution(kernel, targets):
    K, y = _stack(kernel), _stack_targets(targets)
    y = y - y.mean()
    return sum(y[a] * K[a, b] * y[b] for a in range(len(y)) for b in range(len(y)))


def frozen_update(kernel, loss_gradient, learning_rate):
    n, c = loss_gradient.shape
    update = np.zeros((n, c))
    for x in range(n):
        for i in range(c):
            for y in range(n):
                for j in range(c):
                    update[x, i] -= learning_rate * kernel[x, i, y, j] * loss_gradient[y, j]
    return update


def rank_one_error(tangent_features, targets):
    n, c = targets.shape
    Psi = np.array([tangent_features[x, i] for x in range(n) for i in range(c)]).T
    C, y = _centering_matrix(n * c), _stack_targets(targets)
    unit = C @ y / np.linalg.norm(C @ y)
    image = Psi @ unit
    direction = image / np.linalg.norm(image)
    sigma = np.linalg.svd(Psi @ C, compute_uv=False)[0]
    model = sigma * np.outer(direction, unit)
    return np.linalg.norm(Psi @ C - model) / np.linalg.norm(Psi @ C)


def label_gradient_correlation(targets, loss_gradient):
    y, w = _stack_targets(targets), _stack_targets(loss_gradient)
    y, w = y - sum(y) / len(y), w - sum(w) / len(w)
    return sum(y * w) / math.sqrt(sum(y**2) * sum(w**2))


def fisher_gram(kernel, hessian):
    n, c = kernel.shape[:2]
    root = np.zeros((n * c, n * c))
    for x in range(n):
        values, vectors = np.linalg.eigh(hessian[x])
        values = np.where(values > 1e-14 * values.max(), values, 0)
        block = slice(x * c, (x + 1) * c)
        root[block, block] = vectors @ np.diag(np.sqrt(values)) @ vectors.T
    return root @ _stack(kernel) @ root


def fisher_information(tangent_features, hessian):
    n, c, p = tangent_features.shape
    total = np.zeros((p, p))
    for x in range(n):
        for i in range(c):
            for j in range(c):
                pair = np.outer(tangent_features[x, i], tangent_features[x, j])
                total += hessian[x, i, j] * pair
    return total


def fisher_stable_rank(kernel, hessian):
    return stable_rank(fisher_gram(kernel, hessian))


def fisher_correlation(kernel, hessian, targets):
    y = _stack_targets(targets)
    unit = (y - y.mean()) / np.linalg.norm(y - y.mean())
    values, vectors = np.linalg.eigh(fisher_gram(kernel, hessian))
    return sum(
        value / values[-1] * (vector @ unit) ** 2
        for value, vector in zip(values, vectors.T, strict=True)
    )


def layer_energy(vectors, sizes):
    energy = np.zeros((vectors.shape[1], len(sizes)))
    for k in range(vectors.shape[1]):
        start = 0
        for layer, size in enumerate(sizes):
            for row in range(start, start + size):
                energy[k, layer] += vectors[row, k] ** 2
            start += size
        energy[k] /= sum(energy[k])
    return energy


def equilibrium_slope(depths, peaks):
    x = [math.log(depth) for depth in depths]
    y = [math.log(peak) for peak in peaks]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    products = [(a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)]
    return sum(products) / sum((a - mean_x) ** 2 for a in x)


def softmax(logits):
    p = np.zeros_like(logits)
    for x in range(len(logits)):
        weights = [math.exp(value - max(logits[x])) for value in logits[x]]
        p[x] = np.array(weights) / sum(weights)
    return p


def cross_entropy_gradient(logits, targets):
    return (softmax(logits) - targets) / len(logits)


def cross_entropy_hessian(logits):
    return np.array([np.diag(p) - np.outer(p, p) for p in softmax(logits)]) / len(logits)


REFERENCES = {
    "tangent_alignment": tangent_alignment,
    "tangent_alignment.uncentered": tangent_alignment,
    "operator_alignment": operator_alignment,
    "operator_alignment.uncentered": operator_alignment,
    "alignment_decomposition.correlation": correlation_term,
    "alignment_decomposition.stable_rank": centered_stable_rank,
    "stable_rank": stable_rank,
    "normalized_spectrum": normalized_spectrum,
    "uncoupled_bound": uncoupled_bound,
    "label_contribution": label_contribution,
    "rank_one_model": rank_one_error,
    "label_gradient_correlation": label_gradient_correlation,
    "fisher_stable_rank": fisher_stable_rank,
    "fisher_correlation": fisher_correlation,
    "layer_energy": layer_energy,
    "fit_equilibrium": equilibrium_slope,
}
