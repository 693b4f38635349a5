"""The one visible dictionary of rules, and the decorator that adds to it."""

from collections.abc import Callable
from typing import Any

from theodolite.engine.forms import Form
from theodolite.engine.sites import Site

__all__ = ["RULES", "Rule", "register_rule"]

Rule = Callable[[Site], Form | None]

# Torch function -> rule. A rule that does not know a special case returns None and leaves the call
# to the vector-Jacobian product of replay.py.
RULES: dict[Callable[..., Any], Rule] = {}


def register_rule(*functions: Callable[..., Any]) -> Callable[[Rule], Rule]:
    """Declare how calls of these torch functions act on the gradients of their parameters.

    The rule receives a :class:`~theodolite.engine.sites.Site` and returns a form, or None where it
    does not apply. Functions of your own can be seen once they dispatch through
    ``torch.overrides.handle_torch_function`` or are built from torch functions that have rules.
    The self-check of every run compares what rules give with plain autograd.

    Example:
        >>> from theodolite.engine.forms import Dense
        >>> @register_rule(torch.hypot)
        ... def hypot(site):
        ...     return None
        >>> RULES.pop(torch.hypot) is hypot
        True
    """

    def decorate(rule: Rule) -> Rule:
        for function in functions:
            RULES[function] = rule
        return rule

    return decorate
