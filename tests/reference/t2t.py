"""A tokens-to-token transformer, token by token in float64."""

import math

import numpy as np


def layer_norm(rows, norm):
    out = np.empty_like(rows)
    for t, row in enumerate(rows):
        centered = row - row.mean()
        out[t] = centered / math.sqrt((centered**2).mean() + norm.eps)
    return out * norm.weight.detach().numpy() + norm.bias.detach().numpy()


def linear(rows, layer):
    out = rows @ layer.weight.detach().numpy().T
    return out if layer.bias is None else out + layer.bias.detach().numpy()


def gelu(rows):
    return np.vectorize(lambda v: v * (1 + math.erf(v / math.sqrt(2))) / 2)(rows)


def soft_split(picture, kernel, stride, padding):
    """(channels, side, side) to rows of patches: channels first, then down, then across."""
    padded = np.pad(picture, ((0, 0), (padding, padding), (padding, padding)))
    side = (padded.shape[1] - kernel) // stride + 1
    rows = []
    for i in range(side):
        for j in range(side):
            top, left = i * stride, j * stride
            rows.append(padded[:, top : top + kernel, left : left + kernel].ravel())
    return np.array(rows)


def linear_attention(rows, layer):
    keys, queries, values = np.split(linear(layer_norm(rows, layer.norm1), layer.projections), 3, 1)
    directions = layer.directions.numpy()

    def features(vector):
        exponents = [w @ vector - vector @ vector / 2 for w in directions]
        return np.exp(exponents) / math.sqrt(len(directions))

    mixed = np.zeros_like(values)
    for t in range(len(rows)):
        weights = [features(queries[t]) @ features(key) for key in keys]
        mixed[t] = sum(w * v for w, v in zip(weights, values, strict=True)) / (sum(weights) + 1e-8)
    y = values + linear(mixed, layer.mix)
    first, _, second, _ = layer.mlp
    return y + linear(gelu(linear(layer_norm(y, layer.norm2), first)), second)


def block(rows, layer):
    queries, keys, values = np.split(linear(layer_norm(rows, layer.norm1), layer.qkv), 3, 1)
    width = rows.shape[1] // layer.heads
    mixed = np.zeros_like(rows)
    for head in range(layer.heads):
        part = slice(head * width, (head + 1) * width)
        for t in range(len(rows)):
            scores = [queries[t, part] @ key[part] / math.sqrt(width) for key in keys]
            weights = np.exp(np.array(scores) - max(scores))
            mixed[t, part] = weights @ values[:, part] / weights.sum()
    rows = rows + linear(mixed, layer.mix)
    first, _, second = layer.mlp
    return rows + linear(gelu(linear(layer_norm(rows, layer.norm2), first)), second)


def position(t, width):
    angles = [t / 10_000 ** (2 * (k // 2) / width) for k in range(width)]
    return np.array([math.cos(a) if k % 2 else math.sin(a) for k, a in enumerate(angles)])


def logits(model, image):
    """Of one image (channels, side, side)."""
    rows = soft_split(image, 7, 4, 2)
    for attention in model.tokens.attentions:
        rows = linear_attention(rows, attention)
        side = math.isqrt(len(rows))
        rows = soft_split(rows.T.reshape(-1, side, side), 3, 2, 1)
    rows = linear(rows, model.tokens.project)
    rows = np.vstack([model.class_token[0].detach().numpy(), rows])
    rows = rows + np.array([position(t, rows.shape[1]) for t in range(len(rows))])
    for layer in model.blocks:
        rows = block(rows, layer)
    return linear(layer_norm(rows, model.norm), model.head)[0]
