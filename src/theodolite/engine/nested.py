"""Values inside nested lists, tuples and dictionaries, as models take and return them."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["NestingError", "leaves", "map_leaves"]

_DICTIONARIES = (dict, OrderedDict)


class NestingError(Exception):
    """Values that should be nested alike are not."""


def _is_nested(value: Any) -> bool:
    return type(value) is list or _is_tuple(value) or type(value) in _DICTIONARIES


def _is_tuple(value: Any) -> bool:
    return type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_fields"))


def leaves(value: Any) -> Iterator[Any]:
    """Everything that is no list, tuple or dictionary, in order.

    Example:
        >>> list(leaves((1, [2, {"a": 3}])))
        [1, 2, 3]
    """
    if type(value) is list or _is_tuple(value):
        for item in value:
            yield from leaves(item)
    elif type(value) in _DICTIONARIES:
        for item in value.values():
            yield from leaves(item)
    else:
        yield value


def map_leaves(function: Callable[..., Any], value: Any, *others: Any) -> Any:
    """The same nesting with every value replaced.

    Args:
        function: Of a value, and of the values at its place in the others.
        value: Lists, tuples and dictionaries of values.
        *others: Nested alike.

    Raises:
        NestingError: If another is nested in another way.

    Example:
        >>> map_leaves(lambda a, b: a + b, (1, [2]), (10, [20]))
        (11, [22])
    """
    if type(value) is list or _is_tuple(value):
        if any(type(other) is not type(value) or len(other) != len(value) for other in others):
            raise NestingError
        items = [map_leaves(function, *parts) for parts in zip(value, *others, strict=True)]
        if type(value) is list:
            return items
        return tuple(items) if type(value) is tuple else type(value)(*items)
    if type(value) in _DICTIONARIES:
        if any(type(other) is not type(value) or other.keys() != value.keys() for other in others):
            raise NestingError
        return type(value)(
            (key, map_leaves(function, item, *(other[key] for other in others)))
            for key, item in value.items()
        )
    if any(
        type(other) is list or _is_tuple(other) or type(other) in _DICTIONARIES for other in others
    ):
        raise ValueError("nested in another way")
    return function(value, *others)
