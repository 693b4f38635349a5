"""Convolutions in one, two and three dimensions: any stride, padding, dilation and groups."""

from typing import Any

import torch
from torch import Tensor

from theodolite.engine.forms import Dense, Form, Geometry, Outer, Signals, per_axis
from theodolite.engine.rules._registry import register_rule
from theodolite.engine.sites import Site

__all__ = ["convolution"]


@register_rule(torch.conv1d, torch.conv2d, torch.conv3d)
def convolution(site: Site) -> Form | None:
    """``conv(input, weight, bias, stride, padding, dilation, groups)``: patches times weights."""
    bound = site.bind(
        "input", "weight", "bias", "stride", "padding", "dilation", "groups",
        bias=None, stride=1, padding=0, dilation=1, groups=1,
    )  # fmt: skip
    images, weight = bound["input"], bound["weight"]
    if images.dim() != weight.dim() or not site.has_examples(images):
        return None
    signals = _signals(site)
    if bound["bias"] is site.source:
        return Dense(lambda gradient: signals(gradient).sum(2), signals=signals)
    geometry = _geometry(bound)
    if weight is not site.source or geometry is None:
        return None
    parts = site.split(images)  # (n, k, channels, ...) with k images per example
    if bound["groups"] > 1:
        return _grouped(parts, geometry, signals, bound["groups"])
    if parts.shape[1] == 1:
        return Outer(parts.squeeze(1), signals, len(weight), geometry=geometry)
    inputs = _rows(parts, geometry)
    return Outer(inputs, signals, len(weight))


def _signals(site: Site) -> Signals:
    """From (n k, C, ...) to (n, C, T), the positions of all k images of an example together."""

    def signals(gradient: Tensor) -> Tensor:
        parts = site.split_result(gradient).flatten(3)
        if parts.shape[1] == 1:
            return parts.squeeze(1)
        return parts.transpose(1, 2).flatten(2)

    return signals


def _geometry(bound: dict[str, Any]) -> Geometry | None:
    count = bound["weight"].dim() - 2
    kernel = tuple(bound["weight"].shape[2:])
    stride, dilation = per_axis(bound["stride"], count), per_axis(bound["dilation"], count)
    padding = bound["padding"]
    if padding == "valid":
        padding = 0
    elif padding == "same":
        total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        if any(size % 2 for size in total):
            return None  # one side is padded more: left to replay
        padding = tuple(size // 2 for size in total)
    return Geometry(kernel, stride, per_axis(padding, count), dilation)


def _rows(parts: Tensor, geometry: Geometry) -> Tensor:
    """Patches of all images of an example, (n, T, D), D in the order of the weight's entries."""
    patches = geometry.columns(parts.flatten(0, 1)).transpose(1, 2).flatten(1, 2)
    rows = patches.transpose(1, 2)  # (n k, T, D)
    return rows.reshape(len(parts), -1, rows.shape[-1])


def _grouped(parts: Tensor, geometry: Geometry, signals: Signals, groups: int) -> Form:
    """Groups are small matrices: their gradients are formed as they are."""

    def jacobian(gradient: Tensor) -> Tensor:
        signal = signals(gradient)
        rows = _rows(parts, geometry).to(signal.dtype)  # (n, T, channels taps)
        rows = torch.unflatten(rows, 2, (groups, -1)).transpose(1, 2)
        signal = torch.unflatten(signal, 1, (groups, -1))
        J = signal @ rows  # (n, groups, C / groups, D)
        return J.reshape(len(parts), -1, parts.shape[2] // groups, *geometry.kernel)

    return Dense(jacobian, needs=(parts,))
