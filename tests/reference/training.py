"""Training written out literally: update rules of textbooks, one parameter at a time, float64."""

import math

import torch


def update(name, theta, gradient, state, rate, momentum=0.9, weight_decay=0.0):
    """One step of one parameter; the state is a dictionary of its own."""
    g = gradient + weight_decay * theta
    t = state["t"] = state.get("t", 0) + 1
    if name == "sgd":
        return theta - rate * g
    if name in ("momentum", "nesterov"):
        v = state["v"] = momentum * state["v"] + g if t > 1 else g
        return theta - rate * (v if name == "momentum" else g + momentum * v)
    if name == "adam":
        m = state["m"] = 0.9 * state.get("m", 0 * g) + 0.1 * g
        s = state["s"] = 0.999 * state.get("s", 0 * g) + 0.001 * g * g
        unbiased = (s / (1 - 0.999**t)) ** 0.5
        return theta - rate * (m / (1 - 0.9**t)) / (unbiased + 1e-8)
    s = state["s"] = 0.99 * state.get("s", 0 * g) + 0.01 * g * g
    return theta - rate * g / (s**0.5 + 1e-8)


def train(model, x, y, loss, orders, batch_size, drop_last, optimizer, rate_of, momentum, decay):
    """Train in place; ``rate_of(name, step)`` is the learning rate. Returns the steps' losses."""
    states = {name: {} for name, _ in model.named_parameters()}
    losses, step = [], 0
    for order in orders:
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            if drop_last and len(chosen) < batch_size:
                continue
            value = sum(loss(model(x[i : i + 1]), y[i : i + 1])[0] for i in chosen) / len(chosen)
            gradients = torch.autograd.grad(value, list(model.parameters()))
            with torch.no_grad():
                for (name, theta), gradient in zip(
                    model.named_parameters(), gradients, strict=True
                ):
                    new = update(
                        optimizer,
                        theta,
                        gradient,
                        states[name],
                        rate_of(name, step),
                        momentum,
                        decay,
                    )
                    theta.copy_(new)
            losses.append(value.item())
            step += 1
    return losses


def schedule(name, t, total, per_epoch):
    """Factor of the learning rate at step t."""
    if name == "thirds":
        return 1 / 3 ** (int(3 * t >= total) + int(3 * t >= 2 * total))
    if name == "linear":
        return 1 - t / total
    if name == "step_decay":
        return 0.1 ** math.floor(t / per_epoch / 30)
    return 1.0


def augment(image, mirrored, down, right, top, left, padding, cutout, fill):
    """One image (c, h, w), pixel by pixel; shifts are counted from -padding."""
    channels, height, width = image.shape
    result = torch.full_like(image, fill)
    for c in range(channels):
        for i in range(height):
            for j in range(width):
                if top <= i < top + cutout and left <= j < left + cutout:
                    continue
                row, column = i + down - padding, j + right - padding
                if 0 <= row < height and 0 <= column < width:
                    result[c, i, j] = image[c, row, width - 1 - column if mirrored else column]
    return result
