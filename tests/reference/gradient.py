"""Spec 5, section 2: every pair by its own loop."""

import numpy as np


def _pairs(n):
    return [(i, j) for i in range(n) for j in range(n) if i != j]


def vector_alignment(vectors):
    v = vectors.reshape(len(vectors), -1)
    mean_product = np.mean([v[i] @ v[j] for i, j in _pairs(len(v))])
    mean_norm = np.mean([np.sqrt(x @ x) for x in v])
    return mean_product / mean_norm**2 if mean_norm > 0 else np.nan


def weighted_alignment(vectors):
    v = vectors.reshape(len(vectors), -1)
    norm = [np.sqrt(x @ x) for x in v]
    weight = sum(norm[i] * norm[j] for i, j in _pairs(len(v)))
    return sum(v[i] @ v[j] for i, j in _pairs(len(v))) / weight if weight > 0 else np.nan


def _members(vectors, labels, c):
    return vectors[[i for i in range(len(labels)) if labels[i] == c]]


def class_alignment(vectors, labels):
    values = []
    for c in range(labels.max() + 1):
        members = _members(vectors, labels, c)
        values.append(vector_alignment(members) if len(members) >= 2 else np.nan)
    return np.array(values)


def _mean_defined(values):
    defined = [x for x in np.ravel(values) if not np.isnan(x)]
    return sum(defined) / len(defined) if defined else np.nan


def in_class_alignment(vectors, labels):
    return _mean_defined(class_alignment(vectors, labels))


def alignment_contrast(vectors, labels):
    return in_class_alignment(vectors, labels) - vector_alignment(vectors)


def class_alignment_matrix(vectors, labels):
    k = labels.max() + 1
    matrix = np.diag(class_alignment(vectors, labels))
    for a, b in _pairs(k):
        left, right = _members(vectors, labels, a), _members(vectors, labels, b)
        products = sum(x @ y for x in left for y in right)
        norms = sum(np.linalg.norm(x) * np.linalg.norm(y) for x in left for y in right)
        matrix[a, b] = products / norms if norms > 0 else np.nan
    return matrix


def gradient_diversity(vectors):
    total = sum(vectors)
    return sum(x @ x for x in vectors) / (total @ total)


def _cosine(x, y):
    return x @ y / np.sqrt((x @ x) * (y @ y))


def cosine_stiffness(vectors):
    v = [x for x in vectors if np.any(x != 0)]
    return np.mean([_cosine(v[i], v[j]) for i, j in _pairs(len(v))]) if len(v) > 1 else np.nan


def stiffness_matrix(vectors, labels):
    k = labels.max() + 1
    matrix = np.full((k, k), np.nan)
    for a in range(k):
        for b in range(k):
            cosines = [
                _cosine(vectors[i], vectors[j])
                for i, j in _pairs(len(vectors))
                if labels[i] == a and labels[j] == b and vectors[i].any() and vectors[j].any()
            ]
            if cosines:
                matrix[a, b] = np.mean(cosines)
    return matrix


def within_class_stiffness(vectors, labels):
    return _mean_defined(np.diag(stiffness_matrix(vectors, labels)))


def between_class_stiffness(vectors, labels):
    matrix = stiffness_matrix(vectors, labels)
    return _mean_defined(matrix[~np.eye(len(matrix), dtype=bool)])


def gradient_confusion(vectors):
    return min(vectors[i] @ vectors[j] for i, j in _pairs(len(vectors)))


def confusion_of_gram(gram):
    return min(gram[i, j] for i, j in _pairs(len(gram)))


def relative_norm(gradient, weight):
    return np.sqrt((gradient**2).sum()) / np.sqrt((weight**2).sum())


REFERENCES = {
    function.__name__: function
    for function in (
        vector_alignment,
        weighted_alignment,
        class_alignment,
        in_class_alignment,
        alignment_contrast,
        class_alignment_matrix,
        gradient_diversity,
        cosine_stiffness,
        stiffness_matrix,
        within_class_stiffness,
        between_class_stiffness,
        gradient_confusion,
        confusion_of_gram,
        relative_norm,
    )
}
