"""Numbers as a reader sees them, and as a page carries them."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

__all__ = ["carried", "finite", "shown", "shown_chance", "shown_error", "spaced"]

_DIGITS = 6
# From which size on a number has how many decimals; half a unit below a power of ten rounds up.
_DECIMALS = ((99.95, 0), (9.995, 1), (0.9995, 2), (0.00995, 3), (0.0001, 4))
_LARGE = 1e7


def finite(value: Any) -> bool:
    """Whether this is a number that can be drawn."""
    return isinstance(value, (int, float, np.number)) and math.isfinite(value)


def shown(value: int | float | None) -> str:
    """Three digits that matter, at most three decimals above 0.01; a dash for no number.

    Example:
        >>> shown(0.12345), shown(0.03), shown(1234.5), shown(0.9996), shown(0.0012345)
        ('0.123', '0.030', '1234', '1.00', '0.0012')
        >>> shown(0.0), shown(-2e-6), shown(float("inf")), shown(float("nan"))
        ('0', '−2.0e−06', '∞', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    decimals = next((d for limit, d in _DECIMALS if size >= limit), None)
    if value == 0:
        text = "0"
    elif decimals is None or size >= _LARGE:
        text = f"{value:.1e}"
    else:
        text = f"{value:.{decimals}f}"
    return text.replace("-", "−")


def shown_chance(mean: float, sd: float) -> str:
    """A chance level; 0 where it is within one standard deviation of it.

    Example:
        >>> shown_chance(-0.0007, 0.0027), shown_chance(0.0875, 0.0005)
        ('0', '0.087')
    """
    return shown(mean) if abs(mean) > sd else "0"


def shown_error(row: Mapping[str, Any]) -> str:
    """The standard error of a row to the decimals of its value; "" where it has none."""
    value, error = row.get("value"), row.get("error")
    if not (finite(value) and finite(error)):
        return ""
    text = shown(value)
    return shown(error) if "e" in text else f"{error:.{len(text.partition('.')[2])}f}"


def carried(values: Iterable[Any], digits: int = _DIGITS) -> list[float | None]:
    """Numbers for the page's JSON, rounded far below a pixel; null where none can be drawn."""
    return [float(f"{value:.{digits}g}") if finite(value) else None for value in values]


def spaced(count: int, most: int, *, logarithmic: bool = False) -> list[int]:
    """At most so many of ``range(count)``, evenly spread, the first and the last among them.

    Example:
        >>> spaced(9, 3), spaced(3, 9), spaced(1000, 4, logarithmic=True)
        ([0, 4, 8], [0, 1, 2], [0, 9, 99, 999])
    """
    if count <= most:
        return list(range(count))
    positions = np.linspace(0, count - 1, most)
    if logarithmic:
        positions = np.geomspace(1, count, most) - 1
    return sorted({round(float(position)) for position in positions})
