"""Scale and shift of layer, group, root-mean-square and batch norms."""

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.nn import functional

from theodolite.engine.forms import Dense, Form
from theodolite.engine.rules._registry import register_rule
from theodolite.engine.sites import Site
from theodolite.errors import CaptureError

__all__ = ["batch_norm", "group_norm", "layer_norm", "rms_norm"]


@register_rule(functional.layer_norm)
def layer_norm(site: Site) -> Form | None:
    """``layer_norm(input, normalized_shape, weight, bias, eps)``."""
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    bound = site.bind(*names, weight=None, bias=None, eps=1e-5)
    shape = tuple(bound["normalized_shape"])
    normalized = partial(functional.layer_norm, bound["input"], shape, eps=bound["eps"])
    return _trailing(site, bound["input"], shape, bound["bias"] is site.source, normalized)


@register_rule(functional.rms_norm)
def rms_norm(site: Site) -> Form | None:
    """``rms_norm(input, normalized_shape, weight, eps)``."""
    bound = site.bind("input", "normalized_shape", "weight", "eps", weight=None, eps=None)
    shape = tuple(bound["normalized_shape"])
    normalized = partial(functional.rms_norm, bound["input"], shape, eps=bound["eps"])
    return _trailing(site, bound["input"], shape, False, normalized)


@register_rule(functional.group_norm)
def group_norm(site: Site) -> Form | None:
    """``group_norm(input, num_groups, weight, bias, eps)``."""
    names = ("input", "num_groups", "weight", "bias", "eps")
    bound = site.bind(*names, weight=None, bias=None, eps=1e-5)
    normalized = partial(
        functional.group_norm, bound["input"], bound["num_groups"], eps=bound["eps"]
    )
    return _channels(site, bound["input"], bound["bias"] is site.source, normalized)


@register_rule(functional.batch_norm)
def batch_norm(site: Site) -> Form | None:
    """``batch_norm`` with running statistics; those of the batch would mix examples."""
    bound = site.bind(
        "input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps",
        weight=None, bias=None, training=False, eps=1e-5,
    )  # fmt: skip
    if bound["training"]:
        raise CaptureError(
            "batch_norm: expected running statistics, got statistics of the batch, with which an "
            "example's gradient depends on the others; call model.eval() first, and build "
            "BatchNorm with track_running_stats=True"
        )
    mean, variance = bound["running_mean"], bound["running_var"]
    images = bound["input"]
    normalized = partial(functional.batch_norm, images, mean, variance, eps=bound["eps"])
    return _channels(site, images, bound["bias"] is site.source, normalized)


def _trailing(
    site: Site,
    inputs: Tensor,
    shape: tuple[int, ...],
    is_shift: bool,
    normalized: Callable[[], Tensor],
) -> Form | None:
    """Parameters of the shape of the last axes: sum over all axes before them."""
    if not site.has_examples(inputs):
        return None

    def jacobian(gradient: Tensor) -> Tensor:
        product = gradient if is_shift else gradient * normalized()
        return site.split_result(product).reshape(site.examples, -1, *shape).sum(1)

    return Dense(jacobian, needs=() if is_shift else (inputs,))


def _channels(
    site: Site, inputs: Tensor, is_shift: bool, normalized: Callable[[], Tensor]
) -> Form | None:
    """One parameter per channel: sum over all axes after them."""
    if not site.has_examples(inputs):
        return None

    def jacobian(gradient: Tensor) -> Tensor:
        product = gradient if is_shift else gradient * normalized()
        parts = site.split_result(product)  # (n, k, channels, ...)
        return parts.flatten(3).sum((1, 3)) if parts.dim() > 3 else parts.sum(1)

    return Dense(jacobian, needs=() if is_shift else (inputs,))
