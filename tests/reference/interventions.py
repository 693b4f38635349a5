"""Literal interventions: filters one by one, layers one by one, pairs one by one, Adam by hand."""

import numpy as np


def patches(images, kernel):
    """All full patches of images (n, c, h, w), stride 1, channel-major, by loops."""
    n, _, h, w = images.shape
    rows = []
    for i in range(n):
        for top in range(h - kernel + 1):
            for left in range(w - kernel + 1):
                rows.append(images[i, :, top : top + kernel, left : left + kernel].reshape(-1))
    return np.array(rows)


def covariance(rows):
    mean = rows.mean(0)
    total = np.zeros((rows.shape[1], rows.shape[1]))
    for row in rows:
        total += np.outer(row - mean, row - mean)
    return total / len(rows)


def eigenvectors(matrix):
    """Columns of decreasing eigenvalue."""
    values, vectors = np.linalg.eigh(matrix)
    return values[::-1], vectors[:, ::-1]


def convolve(images, weight):
    """Convolution without padding, by loops over filters and positions."""
    n, _, h, w = images.shape
    count, _, kernel, _ = weight.shape
    out = np.zeros((n, count, h - kernel + 1, w - kernel + 1))
    for top in range(out.shape[2]):
        for left in range(out.shape[3]):
            patch = images[:, :, top : top + kernel, left : left + kernel].reshape(n, -1)
            out[:, :, top, left] = patch @ weight.reshape(count, -1).T
    return out


def pair_loss(features, labels):
    total = 0.0
    for i in range(len(features)):
        for j in range(len(features)):
            target = 0.5 if labels[i] == labels[j] else 0.0
            total += (features[i] @ features[j] - target) ** 2
    return total


def pair_gradient(features, labels):
    """Derivative of the pair loss with respect to each feature vector."""
    gradient = np.zeros_like(features)
    for i in range(len(features)):
        for j in range(len(features)):
            target = 0.5 if labels[i] == labels[j] else 0.0
            error = features[i] @ features[j] - target
            gradient[i] += 2 * error * features[j]
            gradient[j] += 2 * error * features[i]
    return gradient


def cross_entropy(logits, labels):
    total = 0.0
    for row, label in zip(logits, labels, strict=True):
        total += np.log(np.exp(row - row.max()).sum()) + row.max() - row[label]
    return total / len(labels)


def cross_entropy_gradient(logits, labels):
    gradient = np.exp(logits - logits.max(1, keepdims=True))
    gradient /= gradient.sum(1, keepdims=True)
    for i, label in enumerate(labels):
        gradient[i, label] -= 1
    return gradient / len(labels)


class Adam:
    def __init__(self, rate):
        self.rate, self.step_count, self.first, self.second = rate, 0, {}, {}

    def step(self, parameters, gradients):
        self.step_count += 1
        for name, gradient in gradients.items():
            first = 0.9 * self.first.get(name, 0) + 0.1 * gradient
            second = 0.999 * self.second.get(name, 0) + 0.001 * gradient**2
            self.first[name], self.second[name] = first, second
            mean = first / (1 - 0.9**self.step_count)
            scale = np.sqrt(second / (1 - 0.999**self.step_count)) + 1e-8
            parameters[name] = parameters[name] - self.rate * mean / scale


def unit_rows(rows):
    return np.array([row / np.linalg.norm(row) for row in rows])


def leaky(z):
    return np.where(z > 0, z, 0.01 * z)


def train_layer(layer, train, held_out, orders, *, rate, batch, patience, hidden):
    """One layer of layer-wise feature maximisation; ``layer`` has W and b, changed in place.

    ``orders`` yields the permutation of the training examples of each epoch.
    """
    activate = leaky if hidden else (lambda z: z)
    loss = pair_loss if hidden else cross_entropy
    loss_gradient = pair_gradient if hidden else cross_entropy_gradient

    def value(data):
        x, y = data
        parts = [
            loss(activate(x[s : s + batch] @ layer["W"].T + layer["b"]), y[s : s + batch])
            for s in range(0, len(x), batch)
        ]
        return sum(parts) / len(parts)

    adam = Adam(rate)
    curve, best, since = [value(held_out)], dict(layer), 0
    for order in orders:
        for start in range(0, len(order), batch):
            index = order[start : start + batch]
            x, y = train[0][index], train[1][index]
            z = x @ layer["W"].T + layer["b"]
            slope = np.where(z > 0, 1.0, 0.01) if hidden else np.ones_like(z)
            delta = loss_gradient(activate(z), y) * slope
            adam.step(layer, {"W": delta.T @ x, "b": delta.sum(0)})
        curve.append(value(held_out))
        if curve[-1] < min(curve[:-1]):
            best, since = dict(layer), 0
        else:
            since += 1
        if since == patience:
            break
    layer.update(best)
    return curve
