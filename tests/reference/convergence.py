"""Gradient descent step by step, closed forms in arbitrary precision: literal and slow."""

import math

import mpmath
import numpy as np


def descend(features, targets, step_size, steps, start=None):
    """All weights ``w_0 .. w_steps`` of the literal update."""
    d, c = features.shape[1], targets.shape[1]
    weights = np.zeros((d, c)) if start is None else start.copy()
    path = [weights]
    for _ in range(steps):
        weights = weights - step_size * features.T @ (features @ weights - targets)
        path.append(weights)
    return path


def squared_loss(features, targets, weights):
    total = 0.0
    for i in range(len(features)):
        for j in range(targets.shape[1]):
            total += (float(features[i] @ weights[:, j]) - targets[i, j]) ** 2
    return total


def precise_trajectory(sigmas, coefficients, step_size, steps):
    """Gap, reduction, weight norm and distance of the closed forms, with 60 digits."""
    with mpmath.workdps(60):
        eta, t = mpmath.mpf(step_size), int(steps)
        gap = reduction = norm = distance = mpmath.mpf(0)
        for s, c in zip(sigmas, coefficients, strict=True):
            sigma, coefficient = mpmath.mpf(s), mpmath.mpf(c)
            q = 1 - eta * sigma**2
            gap += q ** (2 * t) * coefficient**2
            reduction += (1 - q ** (2 * t)) * coefficient**2
            norm += ((1 - q**t) / sigma) ** 2 * coefficient**2
            distance += (q**t * coefficient / sigma) ** 2
        return float(gap), float(reduction), float(mpmath.sqrt(norm)), float(mpmath.sqrt(distance))


def steps_needed(features, targets, step_size, reduction, limit):
    """First simulated step that has lowered the loss by ``reduction``."""
    weights = np.zeros((features.shape[1], targets.shape[1]))
    first = squared_loss(features, targets, weights)
    for t in range(limit):
        if first - squared_loss(features, targets, weights) >= reduction:
            return t
        weights = weights - step_size * features.T @ (features @ weights - targets)
    return math.inf


def alignment(sigmas, masses, threshold):
    return sum(m for s, m in zip(sigmas, masses, strict=True) if s >= threshold)


def logistic_loss(features, labels, weights):
    total = mpmath.mpf(0)
    for row, label in zip(features, labels, strict=True):
        margin = mpmath.mpf(float(label * (row @ weights)))
        total += mpmath.log(1 + mpmath.exp(-margin)) / mpmath.log(2)
    return float(total)


def ridge_solution(features, targets, ridge):
    d = features.shape[1]
    return np.linalg.solve(features.T @ features + ridge * np.eye(d), features.T @ targets)
