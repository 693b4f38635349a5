"""Scales and shifts that broadcast against the examples."""

import torch
from torch import Tensor

from theodolite.engine.forms import Dense, Form
from theodolite.engine.rules._registry import register_rule
from theodolite.engine.sites import Site

__all__ = ["add", "multiply", "reflected_subtract", "subtract"]


@register_rule(
    torch.mul, torch.multiply, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__rmul__,
    Tensor.__imul__,
)  # fmt: skip
def multiply(site: Site) -> Form | None:
    """``a * b`` with one of them made of parameters."""
    other = _other(site)
    return None if other is None else _reduced(site, other)


@register_rule(torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__)
def add(site: Site) -> Form | None:
    """``a + b`` with one of them made of parameters."""
    if site.kwargs or _other(site) is None:
        return None
    return _reduced(site, None)


@register_rule(torch.sub, Tensor.sub, Tensor.sub_, Tensor.__sub__, Tensor.__isub__)
def subtract(site: Site) -> Form | None:
    """``a - b`` with one of them made of parameters."""
    if site.kwargs or _other(site) is None:
        return None
    return _reduced(site, None, -1.0 if site.args[1] is site.source else 1.0)


@register_rule(Tensor.__rsub__)
def reflected_subtract(site: Site) -> Form | None:
    """``b - a`` written the other way round."""
    if site.kwargs or _other(site) is None:
        return None
    return _reduced(site, None, -1.0 if site.args[0] is site.source else 1.0)


def _other(site: Site) -> Tensor | None:
    """The argument that depends on the examples, if the call is a plain product or sum."""
    if len(site.args) != 2 or not all(isinstance(value, Tensor) for value in site.args):
        return None
    left, right = site.args
    if left is right or site.axes.get(id(site.source)) is not None:
        return None  # a tensor with one part per example is left to replay
    return right if left is site.source else left


def _reduced(site: Site, factor: Tensor | None, sign: float = 1.0) -> Form:
    """Sum the axes along which the parameter was repeated, example by example."""
    shape = tuple(site.source.shape)

    def jacobian(gradient: Tensor) -> Tensor:
        product = gradient * sign if factor is None else gradient * factor
        parts = site.split_result(product)  # (n, as for a single example)
        lead = parts.dim() - 1 - len(shape)
        parts = parts.sum(tuple(range(1, 1 + lead))) if lead else parts
        repeated = [k + 1 for k, size in enumerate(shape) if size == 1 and parts.shape[k + 1] != 1]
        return parts.sum(repeated, keepdim=True) if repeated else parts

    return Dense(jacobian, needs=() if factor is None else (factor,))
