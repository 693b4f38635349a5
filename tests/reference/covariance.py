"""Covariance alignment by the book: eigenvectors one by one, sums written out.

``eps`` is the rounding unit of the dtype in which the input came: it decides which eigenvalues
count as equal and which matrices as definite.
"""

import math

import numpy as np

from theodolite.errors import DomainError

EPS = float(np.finfo(np.float64).eps)


def eigenpairs(matrix):
    """Sorted by decreasing eigenvalue."""
    values, vectors = np.linalg.eigh(matrix)
    return values[::-1], vectors[:, ::-1]


def spaces_of(values, eps):
    """Lists of indices with chained gaps within the tolerance."""
    tolerance = max(1e-10, 8 * len(values) * eps) * np.abs(values).max()
    groups = [[0]]
    for index in range(1, len(values)):
        if abs(values[index - 1] - values[index]) <= tolerance:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def require_definite(matrix, eps):
    values = np.linalg.eigvalsh(matrix)
    if values[0] <= len(matrix) * eps * values[-1]:
        raise DomainError("not positive definite")


def trace_on(matrix, vectors, group):
    """Trace of the compression of a matrix to some columns."""
    return sum(vectors[:, i] @ matrix @ vectors[:, i] for i in group)


def misalignment_terms(data_covariance, weight_covariance, eps=EPS):
    require_definite(weight_covariance, eps)
    values, vectors = eigenpairs(data_covariance)
    inverse = np.linalg.inv(weight_covariance)
    return np.array(
        [
            math.sqrt(
                trace_on(weight_covariance, vectors, group) * trace_on(inverse, vectors, group)
            )
            - len(group)
            for group in spaces_of(values, eps)
        ]
    )


def misalignment(data_covariance, weight_covariance, subspace=None, eps=EPS):
    if subspace is not None:
        values, vectors = eigenpairs(data_covariance)
        if subspace > len(values):
            raise DomainError("more directions than there are")
        if any(group[0] < subspace <= group[-1] for group in spaces_of(values, eps)):
            raise DomainError("cuts an eigenspace")
        kept = vectors[:, :subspace]
        data_covariance = np.diag(values[:subspace])
        weight_covariance = kept.T @ weight_covariance @ kept
    return misalignment_terms(data_covariance, weight_covariance, eps).sum()


def basis_misalignment_terms(basis, weight_covariance, eps=EPS):
    require_definite(weight_covariance, eps)
    inverse = np.linalg.inv(weight_covariance)
    return np.array(
        [
            math.sqrt((column @ weight_covariance @ column) * (column @ inverse @ column)) - 1
            for column in basis.T
        ]
    )


def basis_misalignment(basis, weight_covariance, eps=EPS):
    return basis_misalignment_terms(basis, weight_covariance, eps).sum()


def relative_misalignment(data_covariance, weight_covariance, bases, eps=EPS):
    scores = [basis_misalignment(basis, weight_covariance, eps) for basis in bases]
    size = len(weight_covariance)
    if np.mean(scores) <= 8 * size**2 * eps:
        return math.nan
    return misalignment(data_covariance, weight_covariance, eps=eps) / np.mean(scores)


def one_sided_misalignment(data_covariance, weight_covariance, first, eps=EPS):
    require_definite(weight_covariance, eps)
    matrix = weight_covariance if first == "weights" else np.linalg.inv(weight_covariance)
    values, vectors = eigenpairs(data_covariance)
    total = -math.log(np.linalg.det(matrix))
    for group in spaces_of(values, eps):
        total += len(group) * math.log(trace_on(matrix, vectors, group) / len(group))
    return total / 2


def kantorovich_bound(weight_covariance, eps=EPS):
    require_definite(weight_covariance, eps)
    values = np.linalg.eigvalsh(weight_covariance)
    kappa = values[-1] / values[0]
    return len(values) * ((kappa + 1) / (2 * math.sqrt(kappa)) - 1)


def haar_bound(weight_covariance, eps=EPS):
    require_definite(weight_covariance, eps)
    d = len(weight_covariance)
    product = np.trace(weight_covariance) * np.trace(np.linalg.inv(weight_covariance))
    return d * (math.sqrt((product + 2 * d) / (d * (d + 2))) - 1)


def alignment_defect(matrix, reference, eps=EPS):
    values, vectors = eigenpairs(reference)
    residuals = []
    for group in spaces_of(values, eps):
        columns = vectors[:, group]
        mean = trace_on(matrix, vectors, group) / len(group)
        residuals.append(np.linalg.norm(matrix @ columns - mean * columns))
    norm = np.linalg.norm(matrix)
    return max(residuals) / norm if norm > 0 else 0.0


def _tau(variances, values, eps):
    tau = np.zeros(len(values))
    for group in spaces_of(values, eps):
        for index in group:
            tau[index] = math.sqrt(sum(variances[i] for i in group) / len(group))
    return tau


def transfer_function(data_covariance, weights, eps=EPS):
    values, vectors = eigenpairs(data_covariance)
    mean = weights.mean(axis=0)
    variances = [
        sum(((row - mean) @ vectors[:, i]) ** 2 for row in weights) / len(weights)
        for i in range(len(values))
    ]
    return _tau(variances, values, eps)


def curve_deviation(curve_1, curve_2):
    norms = np.linalg.norm(curve_1), np.linalg.norm(curve_2)
    if 0 in norms:
        return math.nan
    return np.linalg.norm(curve_1 / norms[0] - curve_2 / norms[1])


def monotone_error(values):
    """Squared error of the best rising fit, whose values are max over a of min over b of means."""
    size = len(values)
    error = 0.0
    for i in range(size):
        fit = max(min(values[a : b + 1].mean() for b in range(i, size)) for a in range(i + 1))
        error += (values[i] - fit) ** 2
    return error


def unimodality_defect(curve):
    total = ((curve - curve.mean()) ** 2).sum()
    if math.sqrt(total) <= 8 * EPS * np.linalg.norm(curve):
        return 0.0
    return (
        min(
            monotone_error(curve[:k]) + monotone_error(curve[k:][::-1])
            for k in range(len(curve) + 1)
        )
        / total
    )


def gaussian_kl(covariance_1, covariance_2, eps=EPS):
    require_definite(covariance_1, eps)
    require_definite(covariance_2, eps)
    trace = np.trace(np.linalg.inv(covariance_2) @ covariance_1)
    log_ratio = math.log(np.linalg.det(covariance_2)) - math.log(np.linalg.det(covariance_1))
    return (trace - len(covariance_1) + log_ratio) / 2


def symmetric_kl(covariance_1, covariance_2, eps=EPS):
    require_definite(covariance_1, eps)
    require_definite(covariance_2, eps)
    forward = np.linalg.inv(covariance_1) @ covariance_2
    backward = np.linalg.inv(covariance_2) @ covariance_1
    return np.trace(forward + backward) / 2 - len(covariance_1)


def fisher_rao_length(covariance_1, covariance_2, eps=EPS):
    require_definite(covariance_1, eps)
    require_definite(covariance_2, eps)
    values = np.linalg.eigvals(np.linalg.inv(covariance_1) @ covariance_2).real
    return math.sqrt(sum(math.log(value) ** 2 for value in values) / 2)


def gaussian_information(covariance, direction, eps=EPS):
    require_definite(covariance, eps)
    inverse = np.linalg.inv(covariance)
    return np.trace(inverse @ direction @ inverse @ direction) / 2


def rotation_information(eigenvalue_1, eigenvalue_2):
    return np.array(
        [(a - b) ** 2 / (a * b) for a, b in zip(eigenvalue_1, eigenvalue_2, strict=True)]
    )


def rotation_angle_deviation(eigenvalue_1, eigenvalue_2, count):
    information = rotation_information(eigenvalue_1, eigenvalue_2)
    return np.array([1 / math.sqrt(count * value) if value else math.inf for value in information])


def rotation_length(angle, eigenvalue_1, eigenvalue_2):
    information = rotation_information(eigenvalue_1, eigenvalue_2)
    return np.array([abs(a) * math.sqrt(i) for a, i in zip(angle, information, strict=True)])


def _simple(values, eps):
    return {group[0] for group in spaces_of(values, eps) if len(group) == 1}


def eigenvector_overlap(covariance_1, covariance_2, eps=EPS):
    (values_1, vectors_1), (values_2, vectors_2) = (
        eigenpairs(covariance_1),
        eigenpairs(covariance_2),
    )
    simple = _simple(values_1, eps) & _simple(values_2, eps)
    return np.array(
        [
            abs(vectors_1[:, i] @ vectors_2[:, i]) if i in simple else math.nan
            for i in range(len(values_1))
        ]
    )


def best_overlap(covariance_1, covariance_2, eps=EPS):
    (values_1, vectors_1), (values_2, vectors_2) = (
        eigenpairs(covariance_1),
        eigenpairs(covariance_2),
    )
    simple = _simple(values_1, eps)
    return np.array(
        [
            max(
                math.sqrt(sum((vectors_1[:, i] @ vectors_2[:, j]) ** 2 for j in group))
                for group in spaces_of(values_2, eps)
            )
            if i in simple
            else math.nan
            for i in range(len(values_1))
        ]
    )


def subspace_overlap(covariance_1, covariance_2, indices, eps=EPS):
    if max(indices) >= len(covariance_1):
        raise DomainError("rank out of range")
    (values_1, vectors_1), (values_2, vectors_2) = (
        eigenpairs(covariance_1),
        eigenpairs(covariance_2),
    )
    for group in [*spaces_of(values_1, eps), *spaces_of(values_2, eps)]:
        if 0 < len(set(group) & set(indices)) < len(group):
            return math.nan
    products = [(vectors_1[:, i] @ vectors_2[:, j]) ** 2 for i in indices for j in indices]
    return sum(products) / len(indices)


def predicted_overlap_loss(eigenvalues, count_1, count_2, eps=EPS):
    tolerance = max(1e-10, 8 * len(eigenvalues) * eps) * eigenvalues.max()
    losses = []
    for i, value in enumerate(eigenvalues):
        loss = 0.0
        for j, other in enumerate(eigenvalues):
            if i != j:
                tied = abs(value - other) <= tolerance
                loss += math.inf if tied else value * other / (value - other) ** 2
        losses.append((1 / count_1 + 1 / count_2) * loss)
    return np.array(losses)


def match_quality(data_covariance, weight_covariance, count=10, threshold=0.4, eps=EPS):
    data_values, data_vectors = eigenpairs(data_covariance)
    values, vectors = eigenpairs(weight_covariance)
    simple = _simple(values, eps)
    qualities = []
    for k in range(min(count, len(values))):
        total = 0.0
        for group in spaces_of(data_values, eps):
            share = sum((data_vectors[:, j] @ vectors[:, k]) ** 2 for j in group)
            total += share if math.sqrt(share) > threshold else 0.0
        qualities.append(math.sqrt(total) if k in simple else math.nan)
    return np.array(qualities)


def active_neurons(activations):
    return np.array([sum(1 for a in column if a > 0) / len(column) for column in activations.T])


def active_examples(activations):
    return active_neurons(activations.T)


def active_mean(activations):
    return active_neurons(activations).mean()


def dead_share(activations):
    fractions = active_neurons(activations)
    return sum(1 for fraction in fractions if fraction == 0) / len(fractions)


REFERENCES = {
    "misalignment": misalignment,
    "misalignment.subspace": misalignment,
    "relative_misalignment": relative_misalignment,
    "one_sided_misalignment.weights": one_sided_misalignment,
    "one_sided_misalignment.aligned": one_sided_misalignment,
    "basis_misalignment": basis_misalignment,
    "basis_misalignment_terms": basis_misalignment_terms,
    "kantorovich_bound": kantorovich_bound,
    "haar_bound": haar_bound,
    "alignment_defect": alignment_defect,
    "transfer_function": transfer_function,
    "curve_deviation": curve_deviation,
    "unimodality_defect": unimodality_defect,
    "symmetric_kl": symmetric_kl,
    "gaussian_kl": gaussian_kl,
    "fisher_rao_length": fisher_rao_length,
    "gaussian_information": gaussian_information,
    "rotation_information": rotation_information,
    "rotation_angle_deviation": rotation_angle_deviation,
    "rotation_length": rotation_length,
    "eigenvector_overlap": eigenvector_overlap,
    "eigenvector_overlap.best": best_overlap,
    "subspace_overlap": subspace_overlap,
    "predicted_overlap_loss": predicted_overlap_loss,
    "match_eigenvectors": match_quality,
    "activation_fractions": active_mean,
    "activation_fractions.neurons": active_neurons,
    "activation_fractions.examples": active_examples,
    "activation_fractions.dead": dead_share,
}
