"""Rules per torch function: how one call turns its result's gradient into gradients of examples."""

from theodolite.engine.rules import conv, elementwise, embedding, linear, norms
from theodolite.engine.rules._registry import RULES, Rule, register_rule
from theodolite.engine.rules.replay import replay

__all__ = [
    "RULES",
    "Rule",
    "conv",
    "elementwise",
    "embedding",
    "linear",
    "norms",
    "register_rule",
    "replay",
]
