"""Tables of vectors picked by integers."""

from torch import Tensor
from torch.nn import functional

from theodolite.engine.forms import Form, Lookup
from theodolite.engine.rules._registry import register_rule
from theodolite.engine.sites import Site
from theodolite.errors import CaptureError

__all__ = ["embedding"]


@register_rule(functional.embedding)
def embedding(site: Site) -> Form | None:
    """``embedding(input, weight, padding_idx)``: rows of padding receive no gradient."""
    bound = site.bind(
        "input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq",
        padding_idx=None, max_norm=None, scale_grad_by_freq=False,
    )  # fmt: skip
    if bound["max_norm"] is not None or bound["scale_grad_by_freq"]:
        raise CaptureError(
            "embedding: expected plain lookups, got max_norm or scale_grad_by_freq, with which an "
            "example's gradient depends on the rest of the batch; build the embedding without them"
        )
    if bound["weight"] is not site.source or not site.has_examples(bound["input"]):
        return None
    tokens = site.split(bound["input"]).reshape(site.examples, -1)
    padding = bound["padding_idx"]
    rows = len(site.source)
    if padding is not None:
        padding = padding % rows

    def signals(gradient: Tensor) -> Tensor:
        parts = site.split_result(gradient)
        signal = parts.reshape(site.examples, -1, gradient.shape[-1]).transpose(1, 2)
        return signal if padding is None else signal * (tokens != padding)[:, None]

    return Lookup(tokens, signals, rows)
