"""One-shot values of what the metrics stream, in float64: loops and explicit matrices."""

import numpy as np


def one_hot(labels, classes):
    return np.eye(classes)[labels]


def alignment_curve(features, targets, thresholds):
    """Share of the label mass at singular values / sqrt(n) of at least each threshold, by SVD."""
    U, s, _ = np.linalg.svd(features, full_matrices=False)
    energy = (targets**2).sum()
    values = []
    for tau in thresholds:
        kept = s / np.sqrt(len(features)) >= tau
        mass = energy if tau == 0 else ((U[:, kept].T @ targets) ** 2).sum()
        values.append(mass / energy)
    return np.array(values)


def gaps(features):
    """Thresholds halfway (geometrically) between consecutive singular values."""
    spectrum = np.linalg.svd(features, compute_uv=False) / np.sqrt(len(features))
    return np.unique(np.concatenate([[0.0], np.sqrt(spectrum[:-1] * spectrum[1:])]))


def hsic(K, L, debiased):
    """HSIC of two Gram matrices: plug-in with H, or the U-statistic formula of Song et al."""
    n = len(K)
    if not debiased:
        H = np.eye(n) - 1 / n
        return np.trace(H @ K @ H @ L) / n**2
    K, L = K - np.diag(np.diag(K)), L - np.diag(np.diag(L))
    one = np.ones(n)
    total = np.trace(K @ L) + one @ K @ one * (one @ L @ one) / ((n - 1) * (n - 2))
    return (total - 2 / (n - 2) * one @ K @ L @ one) / (n * (n - 3))


def cka(a, b, debiased):
    """Ratio of HSIC; features are centred first, which changes no estimator and saves digits."""
    a, b = a - a.mean(0), b - b.mean(0)
    K, L = a @ a.T, b @ b.T
    cross, own_a, own_b = hsic(K, L, debiased), hsic(K, K, debiased), hsic(L, L, debiased)
    return cross / np.sqrt(own_a * own_b)


def omega(vectors):
    """Mean inner product over ordered pairs of different vectors, over the squared mean norm."""
    n = len(vectors)
    if n < 2:
        return np.nan
    products = vectors @ vectors.T
    total = sum(products[i, j] for i in range(n) for j in range(n) if i != j)
    norms = np.linalg.norm(vectors, axis=1)
    return total / (n * (n - 1)) / norms.mean() ** 2


def class_omega(vectors, labels, classes):
    return np.array([omega(vectors[labels == c]) for c in range(classes)])


def covariance(rows):
    mean = sum(row for row in rows) / len(rows)
    return sum(np.outer(row - mean, row - mean) for row in rows) / len(rows)
