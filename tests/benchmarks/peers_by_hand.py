"""Scores by which others rank pretrained models, step by step as their authors publish them."""

import warnings

import numpy as np
import scipy.linalg
import scipy.special
from sklearn.covariance import LedoitWolf
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture


def logme(features, targets):
    """Log-density of the targets under a Gaussian process, from its whole covariance."""
    n, d = features.shape
    columns = np.eye(targets.max() + 1)[targets] if targets.ndim == 1 else targets
    columns = columns[:, columns.any(0)] if targets.ndim == 1 else columns
    total = 0.0
    for y in columns.T:
        alpha, beta = 1.0, 1.0
        for _ in range(11):
            ratio = alpha / beta
            inverse = np.linalg.inv(features.T @ features + ratio * np.eye(d))
            m = inverse @ features.T @ y
            gamma = np.trace(features @ inverse @ features.T)
            missed = ((y - features @ m) ** 2).sum()
            alpha, beta = gamma / (m @ m + 1e-5), (n - gamma) / (missed + 1e-5)
            if abs(alpha / beta - ratio) / ratio <= 1e-3:
                break
        # With m from the step before, as in the published code, not the density itself.
        covariance = np.eye(n) / beta + features @ features.T / alpha
        whole = np.linalg.slogdet(2 * np.pi * covariance)[1]
        total -= (whole + beta * missed + alpha * m @ m) / 2 / n
    return total / columns.shape[1]


def h_score(features, labels, shrinkage=False, eps=2.2e-16):
    means = np.stack([features[labels == c].mean(0) for c in labels])
    between = np.atleast_2d(np.cov(means, rowvar=False))
    if shrinkage:
        wolf = LedoitWolf().fit(features)
        inverse = np.linalg.pinv(wolf.covariance_, rcond=1e-15)
        return np.trace(inverse @ between) * (1 - wolf.shrinkage_)
    cut = max(max(features.shape) * 2.2e-16, min(features.shape) ** 0.5 * eps)
    covariance = np.atleast_2d(np.cov(features, rowvar=False))
    return np.trace(np.linalg.pinv(covariance, rcond=cut**2 + 1e-15, hermitian=True) @ between)


def leep(probabilities, labels):
    total = 0.0
    for i, y in enumerate(labels):
        likelihood = 0.0
        for z in range(probabilities.shape[1]):
            given = sum(probabilities[j, z] for j in range(len(labels)) if labels[j] == y)
            likelihood += probabilities[i, z] * given / probabilities[:, z].sum()
        total += np.log(likelihood)
    return total / len(labels)


def n_leep(features, labels):
    scores = PCA(0.8, svd_solver="full").fit_transform(features)
    count = max(min(5 * len(set(labels.tolist())), len(labels) // 2), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture = GaussianMixture(count, random_state=0).fit(scores)
    return leep(mixture.predict_proba(scores), labels)


def transrate(features, labels, distortion=1e-4):
    def rate(rows):
        inner = rows.T @ rows / (len(rows) * distortion)
        return np.linalg.slogdet(np.eye(rows.shape[1]) + inner)[1] / 2

    centred = features - features.mean(0)
    return rate(centred) - np.mean([rate(centred[labels == c]) for c in np.unique(labels)])


def gbc(features, labels, shape="spherical"):
    names, total = np.unique(labels), 0.0
    for first in names:
        for second in names:
            if first == second:
                continue
            a, b = features[labels == first], features[labels == second]
            u, v = np.maximum(a.var(0), 1e-4), np.maximum(b.var(0), 1e-4)
            if shape == "spherical":
                u, v = u.mean(keepdims=True), v.mean(keepdims=True)
            w = (u + v) / 2
            distance = ((a.mean(0) - b.mean(0)) ** 2 / w).sum() / 8
            distance += np.log(w / np.sqrt(u * v)).sum() / 2
            total -= np.exp(-distance)
    return total


def sfda(features, labels):
    """The published algorithm: shrunk scatter matrices and their common eigenvectors."""
    names = np.unique(labels)
    n, d = features.shape

    def scatter(x):
        return sum(
            (labels == c).mean() * np.atleast_2d(np.cov(x[labels == c].T, bias=True)) for c in names
        )

    def shrink(matrix, s):
        return (1 - s) * matrix + s * np.trace(matrix) / d * np.eye(d)

    def probabilities(x, s):
        within, total = shrink(scatter(x), s), shrink(np.atleast_2d(np.cov(x.T, bias=True)), s)
        vectors = scipy.linalg.eigh(total - within, within)[1]
        means = np.stack([x[labels == c].mean(0) for c in names])
        slopes = means @ vectors @ vectors.T
        priors = np.array([(labels == c).mean() for c in names])
        scores = x @ slopes.T - 0.5 * (means * slopes).sum(1) + np.log(priors)
        return scipy.special.softmax(scores, axis=1)

    within = scatter(features)
    if not within.any():
        return np.nan
    x = y = within.sum(1)
    for _ in range(3):
        y = within @ x / np.linalg.norm(within @ x)
        x = within @ y / np.linalg.norm(within @ y)
    s = max(np.exp(-5 * (x @ within @ y)), 1e-10)
    sure = scipy.special.softmax(probabilities(features, s), axis=1)
    means = np.stack([features[labels == c].mean(0) for c in names])
    moved = features.copy()
    for i in range(n):
        own = int(np.flatnonzero(names == labels[i])[0])
        others = np.delete(means, own, 0).mean(0)
        moved[i] = sure[i, own] * features[i] + (1 - sure[i, own]) * others
    again = probabilities(moved, s)
    return np.mean([again[i, np.flatnonzero(names == labels[i])[0]] for i in range(n)])
