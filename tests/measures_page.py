"""The page of measures: the registry as tables.

``python -m tests.measures_page`` writes it anew; a test compares it with the registry.
"""

from collections.abc import Iterable
from itertools import groupby
from math import isinf
from pathlib import Path

from theodolite.measures.registry import MEASURES, Measure

PAGE = Path(__file__).parent.parent / "docs" / "measures.md"
_HEAD = """# Measures

This page lists every measure of arrays (`theodolite.measures.registry.MEASURES`). *Direction* says
whether a larger or a smaller value means more aligned. *Gradients* names the arguments that
autograd can differentiate by. The ranges assume positive semi-definite kernels. The *label mass* of
a direction is the squared length of the labels along it. A *mode* is an eigenvector of a kernel.
A name after a dot is an option of the function or a field of its result. Keys in brackets are
entries of [references.bib](references.bib).

"""
_DIRECTIONS = {True: "larger", False: "smaller", None: "neither"}


def page() -> str:
    """One table per family, one row per measure or estimator."""
    families = groupby(MEASURES.values(), key=lambda row: row.family)
    return _HEAD + "\n".join(_section(family, rows) for family, rows in families)


def _section(family: str, rows: Iterable[Measure]) -> str:
    lines = [
        f"## {family}",
        "",
        "| measure | range | direction | what it measures | gradients | reference |",
        "|---|---|---|---|---|---|",
        *(_line(row) for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _line(row: Measure) -> str:
    low, high = row.range
    left = "(-inf" if isinf(low) else f"[{low:g}"
    right = "inf)" if isinf(high) else f"{high:g}]"
    smooth = ", ".join(f"`{name}`" for name in row.gradients) or "none"
    direction = _DIRECTIONS[row.larger_is_more_aligned]
    cells = (f"`{row.name}`", f"{left}, {right}", direction, row.meaning, smooth, row.reference)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(page())
