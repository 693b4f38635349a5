"""Kernel alignment by the definitions: double sums, sums over quadruples, one mode at a time."""

from itertools import permutations

import numpy as np

EPS = np.finfo(np.float64).eps
# Test inputs have eigenvalues that are equal (or zero) up to float32 rounding, or far apart.
RESOLUTION = 1e-5


def gram(features, other=None):
    other = features if other is None else other
    table = np.zeros((len(features), len(other)))
    for i, x in enumerate(features):
        for j, y in enumerate(other):
            table[i, j] = sum(a * b for a, b in zip(x, y, strict=True))
    return table


def center_gram(matrix):
    n = len(matrix)
    h = np.eye(n) - np.ones((n, n)) / n
    return h @ matrix @ h


def one_hot(labels, num_classes=None):
    table = np.zeros((len(labels), max(labels) + 1 if num_classes is None else num_classes))
    for i, label in enumerate(labels):
        table[i, label] = 1.0
    return table


def target_gram(labels):
    table = np.zeros((len(labels), len(labels)))
    for i, first in enumerate(labels):
        for j, second in enumerate(labels):
            table[i, j] = float(first == second)
    return table


def double_sum(a, b):
    return sum(a[i, j] * b[i, j] for i in range(len(a)) for j in range(len(a)))


def kta(gram_a, gram_b):
    norms = double_sum(gram_a, gram_a) * double_sum(gram_b, gram_b)
    return np.nan if norms == 0 else double_sum(gram_a, gram_b) / np.sqrt(norms)


def linear_kta(features_a, features_b):
    return kta(gram(features_a), gram(features_b))


def hsic(gram_a, gram_b, debiased=True):
    n = len(gram_a)
    if not debiased:
        return double_sum(center_gram(gram_a), center_gram(gram_b)) / n**2
    if n < 4:
        return np.nan
    # Mean over ordered quadruples of distinct examples; K_tu L_vw and K_tu L_tv do not need all
    # four indices, but the definition does.
    a, b = gram_a.tolist(), gram_b.tolist()
    total, count = 0.0, 0
    for t, u, v, w in permutations(range(n), 4):
        total += a[t][u] * (b[t][u] + b[v][w] - 2 * b[t][v])
        count += 1
    return total / count


def _constant(matrix):
    return np.linalg.norm(center_gram(matrix)) <= 8 * EPS * np.linalg.norm(matrix)


def cka(gram_a, gram_b, debiased=True):
    n = len(gram_a)
    if _constant(gram_a) or _constant(gram_b) or (debiased and n < 4):
        return np.nan
    own = []
    for matrix in (gram_a, gram_b):
        value = hsic(matrix, matrix, debiased)
        plain = np.linalg.norm(center_gram(matrix)) ** 2 / (n * (n - 3)) if debiased else 0.0
        if value <= n * EPS * plain:
            return np.nan
        own.append(value)
    return hsic(gram_a, gram_b, debiased) / np.sqrt(own[0] * own[1])


def linear_cka(features_a, features_b, debiased=True):
    return cka(gram(features_a), gram(features_b), debiased)


def target_cka(features, labels, debiased=True):
    return cka(gram(features), target_gram(labels), debiased)


def linear_hsic(features_a, features_b, debiased=True):
    return hsic(gram(features_a), gram(features_b), debiased)


def modes(matrix):
    """Eigenvalues of the integral operator, largest first, and eigenvectors as rows."""
    values, vectors = np.linalg.eigh(matrix)
    pairs = sorted(zip(values, vectors.T, strict=True), key=lambda pair: -pair[0])
    peak = max(abs(values))
    eta = [value / len(matrix) if value > RESOLUTION * peak else 0.0 for value, _ in pairs]
    return np.array(eta), np.array([vector for _, vector in pairs])


def kernel_spectrum(gram):
    return modes(gram)[0]


def linear_spectrum(features):
    return modes(gram(features))[0][: min(features.shape)]


def cumulative_power(kernel, targets):
    eta, vectors = modes(kernel)
    n = len(kernel)
    total = (targets**2).sum()
    power = np.array([sum((vector @ column) ** 2 for column in targets.T) for vector in vectors])
    start = 0
    while start < n:
        end = start + 1
        while end < n and eta[end - 1] - eta[end] <= RESOLUTION * eta[0]:
            end += 1
        power[start:end] = power[start:end].mean()
        start = end
    curve = np.zeros(n + 1)
    for rho in range(1, n + 1):
        curve[rho] = curve[rho - 1] + power[rho - 1] / total
    return curve


def modes_to_reach(curve, share=0.95):
    for rho, value in enumerate(curve):
        if value >= share - 1e-12:
            return float(rho)
    return np.nan


def power_area(curve):
    return sum(curve[1:]) / (len(curve) - 1)


def power_evenness(curve, num_classes):
    if len(curve) <= num_classes:
        return np.nan
    return max(abs(curve[rho] - rho / num_classes) for rho in range(num_classes + 1))


def spectral_gap(eigenvalues, num_classes):
    if len(eigenvalues) <= num_classes:
        return np.nan
    return eigenvalues[num_classes - 1] / eigenvalues[num_classes]


def participation_ratio(gram):
    values = np.linalg.eigvalsh(gram)
    return sum(values) ** 2 / sum(value**2 for value in values)


def ranks(values):
    answer = []
    for value in values:
        below = sum(other < value for other in values)
        equal = sum(other == value for other in values)
        answer.append(np.mean([below + k for k in range(1, equal + 1)]))
    return np.array(answer)


def pearson(u, v):
    du, dv = u - np.mean(u), v - np.mean(v)
    norms = sum(du**2) * sum(dv**2)
    return np.nan if norms == 0 else sum(du * dv) / np.sqrt(norms)


def _left_out(gram, targets, ridge):
    """Predictions of kernel regression with intercept, each example's from all the others."""
    rows = []
    for i in range(len(gram)):
        keep = np.arange(len(gram)) != i
        size = keep.sum()
        system = np.ones((size + 1, size + 1))
        system[:size, :size] = gram[np.ix_(keep, keep)] + ridge * np.eye(size)
        system[size, size] = 0
        right = np.vstack([targets[keep], np.zeros((1, targets.shape[1]))])
        weights = np.linalg.solve(system, right)
        rows.append(np.append(gram[i, keep], 1) @ weights)
    return np.array(rows)


def _best_left_out(gram, targets):
    n = len(gram)
    H = np.eye(n) - 1 / n
    K = H @ gram @ H
    plain = sum(((targets[i] - np.delete(targets, i, 0).mean(0)) ** 2).sum() for i in range(n))
    tried = []
    for exponent in np.arange(-5, 2.01, 0.5):
        predicted = _left_out(K, targets, 10.0**exponent * np.trace(K) / n)
        tried.append((((targets - predicted) ** 2).sum() / plain, exponent, predicted))
    return min(tried, key=lambda entry: entry[0])


def regression_error(gram, targets):
    return _best_left_out(gram, targets)[0]


def regression_accuracy(gram, targets):
    y = np.eye(targets.max() + 1)[targets]
    predicted = _best_left_out(gram, y)[2]
    others = np.array([np.delete(y, i, 0).mean(0) for i in range(len(y))])
    fair = predicted - others + y.mean(0)  # the class of an example is no rarer than before
    return np.mean(fair.round(9).argmax(1) == targets)


REFERENCES = {
    "leave_one_out_regression.error": regression_error,
    "leave_one_out_regression.accuracy": regression_accuracy,
    "kta": kta,
    "linear_kta": linear_kta,
    "cka": cka,
    "cka.biased": cka,
    "linear_cka": linear_cka,
    "linear_cka.biased": linear_cka,
    "target_cka": target_cka,
    "target_cka.biased": target_cka,
    "hsic": hsic,
    "hsic.biased": hsic,
    "linear_hsic": linear_hsic,
    "linear_hsic.biased": linear_hsic,
    "kernel_spectrum": kernel_spectrum,
    "linear_spectrum": linear_spectrum,
    "cumulative_power": cumulative_power,
    "modes_to_reach": modes_to_reach,
    "power_area": power_area,
    "power_evenness": power_evenness,
    "spectral_gap": spectral_gap,
    "participation_ratio": participation_ratio,
}
