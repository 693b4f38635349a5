"""Sin kernels in arbitrary precision, losses as written, alignment by the double loop."""

import math

import mpmath
import numpy as np


def sin_kernel(x, y, sigma):
    """Half the difference of two exponentials, with 60 digits."""
    with mpmath.workdps(60):
        s = mpmath.mpf(sigma) ** 2 / 2
        minus = sum((mpmath.mpf(a) - mpmath.mpf(b)) ** 2 for a, b in zip(x, y, strict=True))
        plus = sum((mpmath.mpf(a) + mpmath.mpf(b)) ** 2 for a, b in zip(x, y, strict=True))
        return float((mpmath.exp(-s * minus) - mpmath.exp(-s * plus)) / 2)


def sin_cosine(x, y, sigma):
    """The sinh form, with 60 digits."""
    with mpmath.workdps(60):
        s = mpmath.mpf(sigma) ** 2

        def inner(a, b):
            return s * sum(mpmath.mpf(p) * mpmath.mpf(q) for p, q in zip(a, b, strict=True))

        bottom = mpmath.sqrt(mpmath.sinh(inner(x, x)) * mpmath.sinh(inner(y, y)))
        return float(mpmath.sinh(inner(x, y)) / bottom)


def omega(vectors):
    """Mean inner product over ordered pairs divided by the squared mean norm."""
    n = len(vectors)
    total = sum(float(np.dot(vectors[i], vectors[j])) for i in range(n) for j in range(n) if i != j)
    mean_norm = sum(float(np.sqrt(np.dot(v, v))) for v in vectors) / n
    return total / (n * (n - 1)) / mean_norm**2


def softmax_loss(z, y, temperature):
    shifted = z / temperature - np.max(z / temperature)
    return float(np.log(np.sum(np.exp(shifted))) - shifted[y])


def hinge_loss(z, y, margin):
    return float(sum(max(0.0, margin + z[i] - z[y]) for i in range(len(z)) if i != y))


def squared_loss(z, y, target_scale, reduction):
    error = z - target_scale * np.eye(len(z))[y]
    return float(np.sum(error**2) / (2 if reduction == "half_sum" else len(z)))


def sigmoid_loss(z, t):
    return float(np.log1p(np.exp(z)) - t * z)


def finite_difference(function, z, step=1e-6):
    """Central differences in every coordinate."""
    gradient = np.zeros_like(z)
    for i in range(len(z)):
        up, down = z.copy(), z.copy()
        up[i] += step
        down[i] -= step
        gradient[i] = (function(up) - function(down)) / (2 * step)
    return gradient


def layer_omega(hidden):
    """Alignment of the rows of a wide layer, and its standard error from twenty parts of it."""
    parts = [omega(part) for part in np.array_split(hidden, 20, axis=1)]
    return omega(hidden), np.std(parts, ddof=1) / math.sqrt(20)
