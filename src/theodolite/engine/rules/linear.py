"""Products with a matrix of parameters: plain, over tokens, and with the matrix on either side."""

import torch
from torch import Tensor
from torch.nn import functional

from theodolite.engine.forms import Dense, Form, Outer, Signals
from theodolite.engine.rules._registry import register_rule
from theodolite.engine.sites import Site

__all__ = ["addmm", "linear", "matmul", "reflected_matmul"]


def _signals(site: Site) -> Signals:
    """From a gradient of shape (..., C) to (n, C, T)."""

    def signals(gradient: Tensor) -> Tensor:
        parts = site.split_result(gradient)
        return parts.reshape(site.examples, -1, gradient.shape[-1]).transpose(1, 2)

    return signals


def _shift(site: Site) -> Form:
    signals = _signals(site)
    return Dense(lambda gradient: signals(gradient).sum(2), signals=signals)


def _matrix(site: Site, inputs: Tensor, rows: int, transposed: bool) -> Form | None:
    if not site.has_examples(inputs) or inputs.dim() < 1:
        return None
    flat = site.split(inputs).reshape(site.examples, -1, inputs.shape[-1])
    return Outer(flat, _signals(site), rows, transposed)


@register_rule(functional.linear)
def linear(site: Site) -> Form | None:
    """``linear(input, weight, bias)``: weight (C, D), any number of axes before D."""
    bound = site.bind("input", "weight", "bias", bias=None)
    if bound["bias"] is site.source:
        return _shift(site)
    if bound["weight"] is not site.source or site.source.dim() != 2:
        return None
    return _matrix(site, bound["input"], site.source.shape[0], transposed=False)


@register_rule(torch.addmm, Tensor.addmm)
def addmm(site: Site) -> Form | None:
    """``addmm(shift, input, weight)``, as in the Conv1D of GPT-2: weight (D, C)."""
    bound = site.bind("input", "mat1", "mat2", beta=1, alpha=1)
    if bound["beta"] != 1 or bound["alpha"] != 1:
        return None
    if bound["input"] is site.source and site.source.dim() == 1:
        return _shift(site)
    if bound["mat2"] is not site.source:
        return None
    return _matrix(site, bound["mat1"], site.source.shape[1], transposed=True)


@register_rule(torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__)
def matmul(site: Site) -> Form | None:
    """``input @ weight`` with weight (D, C), and ``weight @ input`` with weight (C, D)."""
    left, right = site.args if len(site.args) == 2 else (None, None)
    if left is None or right is None or site.source.dim() != 2:
        return None
    return _product(site, left, right)


@register_rule(Tensor.__rmatmul__)
def reflected_matmul(site: Site) -> Form | None:
    """``other @ self`` written the other way round."""
    right, left = site.args
    return _product(site, left, right) if site.source.dim() == 2 else None


def _product(site: Site, left: Tensor, right: Tensor) -> Form | None:
    if right is site.source:
        return _matrix(site, left, right.shape[1], transposed=True)
    if left is site.source and right.dim() == 3 and site.has_examples(right):
        return _from_left(site, right, left.shape[0])
    return None


def _from_left(site: Site, right: Tensor, rows: int) -> Form:
    """``weight @ input`` with input (n, D, T): columns are the positions."""

    def columns_last(tensor: Tensor, parts: Tensor) -> Tensor:
        flat = parts.movedim(-2, 1)  # (n, D, ..., T)
        return flat.reshape(site.examples, tensor.shape[-2], -1)

    inputs = columns_last(right, site.split(right)).transpose(1, 2)
    return Outer(inputs, lambda g: columns_last(g, site.split_result(g)), rows)
