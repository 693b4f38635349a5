"""The registry as a page: ``python -m theodolite.measures.registry.table > docs/measures.md``."""

from math import isinf

from theodolite.measures.registry import MEASURES
from theodolite.measures.registry.measure import Measure

__all__ = ["markdown_page"]

_HEAD = """# Measures

Every measure of arrays, from the registry (`theodolite.measures.registry.MEASURES`). Direction:
does a larger value mean more aligned? Gradients flow to the arguments named under "gradients".

"""
_DIRECTIONS = {True: "larger", False: "smaller", None: "neither"}


def markdown_page() -> str:
    """One table per family, one row per measure or estimator.

    Example:
        >>> "| `vector_alignment` | [-1, 1] | larger |" in markdown_page()
        True
    """
    families: dict[str, list[Measure]] = {}
    for row in MEASURES.values():
        families.setdefault(row.family, []).append(row)
    return _HEAD + "\n".join(_section(family, rows) for family, rows in families.items())


def _section(family: str, rows: list[Measure]) -> str:
    lines = [
        f"## {family}",
        "",
        "| measure | range | direction | what it tells | gradients | reference |",
        "|---|---|---|---|---|---|",
        *(_line(row) for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _line(row: Measure) -> str:
    low, high = row.range
    left = "(-inf" if isinf(low) else f"[{low:g}"
    right = "inf)" if isinf(high) else f"{high:g}]"
    smooth = ", ".join(f"`{name}`" for name, flows in row.differentiable.items() if flows) or "none"
    direction = _DIRECTIONS[row.larger_is_more_aligned]
    cells = (f"`{row.name}`", f"{left}, {right}", direction, row.meaning, smooth, row.reference)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    print(markdown_page(), end="")  # noqa: T201
