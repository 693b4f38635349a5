"""Numbers as a reader sees them, and as a page carries them."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

__all__ = ["carried", "finite", "shown", "shown_with_error", "spaced"]

_DIGITS = 6


def finite(value: Any) -> bool:
    """Whether this is a number that can be drawn."""
    return isinstance(value, (int, float, np.number)) and math.isfinite(value)


def shown(value: float | None) -> str:
    """Three digits that matter; a dash where there is no number.

    Example:
        >>> shown(0.12345), shown(1234.5), shown(0.0), shown(float("inf")), shown(float("nan"))
        ('0.123', '1230', '0', '∞', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size < -4 or size > 6:
        return f"{value:.1e}".replace("-", "−")
    # Rounding first: 0.9996 has one digit more before the point than it seems.
    rounded = round(value, 2 - size)
    size = math.floor(math.log10(abs(rounded)))
    return (
        f"{rounded:.{min(3, max(0, 2 - size))}f}".replace("-", "−")
        if size >= -1
        else f"{rounded:.{2 - size}f}".replace("-", "−")
    )


def shown_with_error(row: Mapping[str, Any]) -> str:
    """The value of a row, with its standard error where it has one."""
    error = row.get("error")
    return shown(row["value"]) + (f" ± {shown(error)}" if finite(error) else "")


def carried(values: Iterable[Any], digits: int = _DIGITS) -> list[float | None]:
    """Numbers for the page's JSON: rounded far below a pixel; null where there is nothing to draw."""
    return [float(f"{value:.{digits}g}") if finite(value) else None for value in values]


def spaced(count: int, most: int, *, logarithmic: bool = False) -> list[int]:
    """At most so many of ``range(count)``, evenly spread, the first and the last among them.

    Example:
        >>> spaced(9, 3), spaced(3, 9), spaced(1000, 4, logarithmic=True)
        ([0, 4, 8], [0, 1, 2], [0, 9, 99, 999])
    """
    if count <= most:
        return list(range(count))
    if logarithmic:
        positions = np.geomspace(1, count, most) - 1
    else:
        positions = np.linspace(0, count - 1, most)
    return sorted({round(float(position)) for position in positions})
