"""Small static pictures: readable without scripts, in notebooks and on paper."""

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from theodolite.report._numbers import finite

__all__ = ["Stroke", "limits_of", "spark"]

_WIDTH, _HEIGHT, _EDGE = 120.0, 34.0, 3.0


@dataclass(frozen=True)
class Stroke:
    """One line, row of bars or dot of a small picture.

    Args:
        x: positions along the picture.
        y: the numbers; those that cannot be drawn leave a gap.
        order: which run it belongs to.
        kind: "line", "bars" or "dots".
        source: path of the numbers in the record.
    """

    x: Sequence[int | float]
    y: Sequence[int | float]
    order: int = 0
    kind: str = "line"
    source: dict[str, Any] = field(default_factory=dict)

    def points(self) -> list[tuple[float, float]]:
        """What can be drawn."""
        pairs = zip(self.x, self.y, strict=True)
        return [(float(x), float(y)) for x, y in pairs if finite(x) and finite(y)]


def limits_of(strokes: Sequence[Stroke], also: Sequence[float] = ()) -> tuple[float, ...]:
    """Left, right, bottom and top that hold every stroke, zero included."""
    points = [point for stroke in strokes for point in stroke.points()]
    half = 0.5 if any(stroke.kind == "bars" for stroke in strokes) else 0.0
    xs = [x + side for x, _ in points for side in (-half, half)] or [0.0, 1.0]
    ys = [0.0, *(y for _, y in points), *(float(v) for v in also if finite(v))]
    left, right, bottom, top = min(xs), max(xs), min(ys), max(ys)
    return (
        left,
        right if right > left else left + 1.0,
        bottom,
        top if top > bottom else bottom + 1.0,
    )


def spark(
    strokes: Sequence[Stroke], limits: Sequence[float], *, label: str,
    band: tuple[float, float] | None = None,
) -> str:  # fmt: skip
    """An SVG element; every stroke carries its source and the element its limits."""
    left, right, bottom, top = limits
    across = (_WIDTH - 2 * _EDGE) / (right - left)
    down = (_HEIGHT - 2 * _EDGE) / (top - bottom)

    def at(x: float, y: float) -> tuple[float, float]:
        return (_EDGE + (x - left) * across, _HEIGHT - _EDGE - (y - bottom) * down)

    parts = [_band(band, bottom, top, at)] if band and all(map(finite, band)) else []
    parts.append(_baseline(at(left, max(bottom, 0.0))[1]))
    parts += [_drawn(stroke, at, across) for stroke in reversed(strokes)]
    frame = html.escape(json.dumps([float(f"{v:.6g}") for v in limits]))
    return (
        f'<svg class="spark" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" '
        f'aria-label="{html.escape(label)}" data-limits="{frame}">{"".join(parts)}</svg>'
    )


def _drawn(stroke: Stroke, at: Any, across: float) -> str:
    points = stroke.points()
    if not points:
        return ""
    source = html.escape(json.dumps(stroke.source, separators=(",", ":")))
    name = f'class="run{stroke.order % 6} {stroke.kind}" data-source="{source}"'
    placed = [at(x, y) for x, y in points]
    if stroke.kind == "line" and len(placed) > 1:
        path = " ".join(f"{x:.2f},{y:.2f}" for x, y in placed)
        return f'<polyline {name} points="{path}"/>'
    if stroke.kind == "bars":
        floor = at(0.0, 0.0)[1]
        half = 0.38 * across
        bars = "".join(
            f"M{x - half:.2f},{floor:.2f}V{y:.2f}H{x + half:.2f}V{floor:.2f}Z" for x, y in placed
        )
        return f'<path {name} d="{bars}"/>'
    return "".join(f'<circle {name} cx="{x:.2f}" cy="{y:.2f}" r="2.4"/>' for x, y in placed)


def _band(band: tuple[float, float], bottom: float, top: float, at: Any) -> str:
    low, high = max(bottom, band[0]), min(top, band[1])
    if high <= low:
        return ""
    upper, lower = at(0.0, high)[1], at(0.0, low)[1]
    width = _WIDTH - 2 * _EDGE
    place = f'x="{_EDGE:g}" y="{upper:.2f}" width="{width:g}"'
    return f'<rect class="band" {place} height="{max(1.0, lower - upper):.2f}"/>'


def _baseline(y: float) -> str:
    return f'<path class="baseline" d="M{_EDGE:g},{y:.2f}H{_WIDTH - _EDGE:g}"/>'
