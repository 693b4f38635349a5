"""Kernel regression by normal equations and the average-error theory in arbitrary precision."""

import mpmath
import numpy as np


def ridge_weights(features, targets, ridge):
    if ridge == 0:
        return np.linalg.pinv(features, rcond=1e-12) @ targets
    d = features.shape[1]
    return np.linalg.solve(features.T @ features + ridge * np.eye(d), features.T @ targets)


def precise_error(eigenvalues, power, samples, ridge, noise):
    """Effective ridge, gamma and average error with 50 digits, by plain bisection."""
    with mpmath.workdps(50):
        etas = [mpmath.mpf(e) for e in eigenvalues]
        powers = [mpmath.mpf(a) for a in power]
        P, penalty = mpmath.mpf(samples), mpmath.mpf(ridge)
        low, high = penalty, penalty + sum(etas)
        for _ in range(400):
            kappa = (low + high) / 2
            if kappa < penalty + sum(kappa * e / (kappa + P * e) for e in etas if e > 0):
                low = kappa
            else:
                high = kappa
        gamma = sum(P * e**2 / (high + P * e) ** 2 for e in etas if e > 0)
        total = mpmath.mpf(0)
        for e, a in zip(etas, powers, strict=True):
            total += (high**2 * a + noise * P * e**2) / (high + P * e) ** 2
        return float(high), float(gamma), float(total / (1 - gamma))


def sampled_error(eigenvalues, coefficients, samples, ridge, noise, draws, rng):
    """Mean and standard error of the test error over fresh Gaussian modes and labels.

    With orthonormal modes the test error of ``f = sum w_rho psi_rho`` is ``|w - a|^2``.
    """
    errors = []
    for _ in range(draws):
        modes = rng.standard_normal((samples, len(eigenvalues)))
        labels = modes @ coefficients + np.sqrt(noise) * rng.standard_normal(samples)
        scaled = modes * np.sqrt(eigenvalues)
        gram = scaled @ scaled.T + ridge * np.eye(samples)
        learned = np.sqrt(eigenvalues) * (scaled.T @ np.linalg.solve(gram, labels))
        errors.append(np.sum((learned - coefficients) ** 2))
    return np.mean(errors), np.std(errors, ddof=1) / np.sqrt(draws)


def alignment(gram_a, gram_b):
    return np.sum(gram_a * gram_b) / np.sqrt(np.sum(gram_a**2) * np.sum(gram_b**2))
