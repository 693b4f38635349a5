"""Spec 1, section 2: the full singular value decomposition and one loop over its n directions."""

from itertools import combinations

import numpy as np


def _precision(values):
    """Rounding of the dtype in which the numbers came: float32 if they all fit there."""
    fits = np.array_equal(values, values.astype(np.float32))
    return np.finfo(np.float32 if fits and values.size > 2 else np.float64).eps


def _rows(features, rows):
    """The features with rows of unit length or as they are, and the rounding they came with."""
    eps = _precision(features)
    if rows == "none":
        return features, eps
    peaks = np.abs(features).max(1, keepdims=True)
    scaled = features / np.where(peaks > 0, peaks, 1.0)
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
    return scaled / np.where(lengths > 0, lengths, 1.0), eps


def _directions(features, eps=None):
    """All n left singular vectors with their singular values, zeros included."""
    eps = _precision(features) if eps is None else eps
    n, d = features.shape
    u, s, _ = np.linalg.svd(features, full_matrices=True)
    sigma = np.zeros(n)
    sigma[: len(s)] = s
    noise = max(max(n, d) * np.finfo(float).eps, min(n, d) ** 0.5 * eps)
    sigma[sigma <= noise * s.max()] = 0.0
    return [(sigma[i], u[:, i]) for i in range(n)]


def _columns(targets):
    if targets.ndim == 1 and targets.dtype.kind in "iu":
        return np.array([[float(t == c) for c in range(targets.max() + 1)] for t in targets])
    return targets.reshape(len(targets), -1).astype(np.float64)


def _alignment(features, y, threshold, eps=None):
    total = 0.0
    for sigma, u in _directions(features, eps):
        if sigma >= threshold:
            for column in y.T:
                total += (u @ column) ** 2
    return total


def representation_alignment(features, targets, threshold):
    return _alignment(features, _columns(targets), threshold)


def _unit(features, scale, eps):
    largest = _directions(features, eps)[0][0]
    return {"absolute": 1.0, "normalized": np.sqrt(len(features)), "relative": largest}[scale]


def alignment_curve(features, targets, thresholds, scale="normalized", rows="unit"):
    y = _columns(targets)
    F, eps = _rows(features, rows)
    values = [_alignment(F, y, t * _unit(F, scale, eps), eps=eps) for t in thresholds]
    return np.array(values) / (1.0 if scale == "absolute" else np.sum(y**2))


def alignment_area(features, targets, normalized=True, rows="unit"):
    y = _columns(targets)
    directions = _directions(*_rows(features, rows))
    area = sum(s * (u @ column) ** 2 for s, u in directions for column in y.T)
    return area / (np.sqrt(len(features)) * np.sum(y**2)) if normalized else area


def alignment_second_moment(features, targets):
    y = _columns(targets)
    return sum(s**2 * (u @ column) ** 2 for s, u in _directions(features) for column in y.T)


def top_share(features, targets, count, rows="unit"):
    """Mean over all ways to choose which of the tied directions at the cut come first."""
    y = _columns(targets)
    F, eps = _rows(features, rows)
    directions = _directions(F, eps)
    k = min(count, len(directions))
    cut = directions[k - 1][0]
    gap = max(1e-10, 8 * eps) * directions[0][0]
    before = [u for s, u in directions if s > cut + gap]
    tied = [u for s, u in directions if abs(s - cut) <= gap]
    choices = list(combinations(tied, k - len(before)))
    shares = [sum((u @ c) ** 2 for u in [*before, *choice] for c in y.T) for choice in choices]
    return np.mean(shares) / np.sum(y**2)


def chance_curve(features, targets, thresholds, scale="normalized", rows="unit"):
    y = _columns(targets)
    n = len(y)
    F, eps = _rows(features, rows)
    values = []
    for threshold in thresholds * _unit(F, scale, eps):
        total = 0.0
        for sigma, u in _directions(F, eps):
            for column in y.T:
                mean = sum(column) / n
                variance = sum((value - mean) ** 2 for value in column) / max(n - 1, 1)
                overlap = sum(u) ** 2
                if sigma >= threshold:
                    total += mean**2 * overlap + variance * (1 - overlap / n)
        values.append(total)
    return np.array(values) / (1.0 if scale == "absolute" else np.sum(y**2))


def _tasks(labels):
    for a, b in combinations(sorted(set(labels.tolist())), 2):
        rows = [i for i in range(len(labels)) if labels[i] in (a, b)]
        yield rows, np.array([1.0 if labels[i] == a else -1.0 for i in rows])


def one_vs_one_curve(features, labels, thresholds):
    curves = [
        alignment_curve(features[rows], y, thresholds, rows="none") for rows, y in _tasks(labels)
    ]
    return np.mean(curves, axis=0)


def one_vs_one_difference(features, other_features, labels, thresholds):
    first = one_vs_one_curve(features, labels, thresholds)
    return first - one_vs_one_curve(other_features, labels, thresholds)


def picard_ratios(features, targets):
    directions = _directions(features)[: min(features.shape)]
    tolerance = max(1e-10, 8 * _precision(features)) * directions[0][0]
    groups = []
    for i, (s, _) in enumerate(directions):
        if i == 0 or directions[i - 1][0] - s > tolerance:
            groups.append([])
        groups[-1].append(i)
    ratios = np.full(len(directions), np.nan)
    for group in groups:
        mean_square = np.mean([(directions[i][1] @ targets) ** 2 for i in group])
        for i in group:
            if directions[i][0] > 0:
                ratios[i] = np.sqrt(mean_square) / directions[i][0]
    return ratios


def neighbour_accuracy(features, labels, neighbours=5):
    n, right = len(labels), 0
    for i in range(n):
        others = [j for j in range(n) if j != i]
        others.sort(key=lambda j: np.linalg.norm(features[i] - features[j]))
        near = [labels[j] for j in others[:neighbours]]
        votes = {c: near.count(c) + 0.5 * (near[0] == c) for c in set(near)}
        right += labels[i] == min(c for c in votes if votes[c] == max(votes.values()))
    return right / n


def probe_accuracy(features, labels):
    """Each example left out in turn, the regression solved anew; the ridge of the least error."""
    n = len(labels)
    y = np.eye(labels.max() + 1)[labels]
    centred = features - features.mean(0)
    unit = (centred**2).sum() / n
    best = None
    for exponent in np.arange(-5, 2.01, 0.5):
        ridge, error, right = 10.0**exponent * unit, 0.0, 0
        for i in range(n):
            keep = np.arange(n) != i
            x = np.hstack([centred, np.ones((n, 1))])
            penalty = np.diag([ridge] * centred.shape[1] + [0.0])
            weights = np.linalg.lstsq(x[keep].T @ x[keep] + penalty, x[keep].T @ y[keep], None)[0]
            predicted = x[i] @ weights
            error += ((y[i] - predicted) ** 2).sum()
            fair = predicted - y[keep].mean(0) + y.mean(0)  # its class is no rarer than before
            right += int(np.argmax(fair.round(9)) == labels[i])
        if best is None or error < best[0]:
            best = (error, right / n)
    return best[1]


def probe_error(features, targets):
    """As :func:`probe_accuracy`, for numbers, beside the mean of the others."""
    n = len(targets)
    centred = features - features.mean(0)
    unit = (centred**2).sum() / n
    plain = sum(((targets[i] - np.delete(targets, i, 0).mean(0)) ** 2).sum() for i in range(n))
    errors = []
    for exponent in np.arange(-5, 2.01, 0.5):
        error = 0.0
        for i in range(n):
            x, y = np.delete(centred, i, 0), np.delete(targets, i, 0)
            a, b = x - x.mean(0), y - y.mean(0)
            ridge = 10.0**exponent * unit * np.eye(x.shape[1])
            weights = np.linalg.solve(a.T @ a + ridge, a.T @ b)
            error += ((targets[i] - y.mean(0) - (centred[i] - x.mean(0)) @ weights) ** 2).sum()
        errors.append(error / plain)
    return min(errors)


REFERENCES = {
    "representation_alignment": representation_alignment,
    "alignment_curve": alignment_curve,
    "alignment_curve.absolute": alignment_curve,
    "alignment_curve.relative": alignment_curve,
    "alignment_area": alignment_area,
    "alignment_area.absolute": alignment_area,
    "alignment_second_moment": alignment_second_moment,
    "top_share": top_share,
    "chance_curve": chance_curve,
    "one_vs_one_curve": one_vs_one_curve,
    "one_vs_one_difference": one_vs_one_difference,
    "picard_ratios": picard_ratios,
    "neighbour_accuracy": neighbour_accuracy,
    "probe_accuracy": probe_accuracy,
    "leave_one_out_probe.error": probe_error,
}
