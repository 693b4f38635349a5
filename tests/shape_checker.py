"""The checker of declared types and shapes that ``conftest.py`` puts on functions of arrays."""

from collections.abc import Callable
from typing import Any

from beartype import beartype


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check functions and methods. One that is defined in a call would be compiled in each call."""
    return function if "<locals>" in function.__qualname__ else beartype(function)
