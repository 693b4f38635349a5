"""Figures of the page as plain SVG, which a browser and a repository's page show alike."""

import math
from collections.abc import Sequence
from html import escape

import numpy as np

__all__ = ["coverage_figure", "figure"]

_OURS, _OTHER, _INK, _GRID = "#0b62ab", "#a85f00", "#1b1f24", "#d5d6d8"
_ROW, _LEFT, _WIDTH = 18, 350, 800


def figure(
    rows: Sequence[tuple[str, float, float, float, bool]],
    axis: str,
    zero: float,
    marks: tuple[str, str] = ("alignment", "baseline"),
) -> str:
    """A value with its interval for each row, as SVG.

    Args:
        rows: label, value, low, high (nan for none), and whether it is of the second kind.
        axis: what the values are.
        zero: where a line marks nothing.
        marks: names of the two kinds.
    """
    ends = [v for _, value, low, high, _ in rows for v in (value, low, high) if math.isfinite(v)]
    least, most = min([zero, *ends]), max([zero, *ends])
    step = _tick(most - least)
    first, last = math.floor(least / step), math.ceil(most / step)

    def at(value: float) -> float:
        share = (value - first * step) / ((last - first) * step)
        return _LEFT + share * (_WIDTH - _LEFT - 20)

    height = 44 + _ROW * len(rows) + 34
    bottom = 40 + _ROW * len(rows)
    parts = []
    for tick in range(first, last + 1):
        x = at(tick * step)
        strong = abs(tick * step - zero) < 1e-9
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="34" y2="{bottom}" '
            f'stroke="{_INK if strong else _GRID}"/>'
        )
        parts.append(_text(x, bottom + 14, f"{tick * step:g}", "middle"))
    for place, (label, value, low, high, second) in enumerate(rows):
        y, color = 46 + _ROW * place, _OTHER if second else _OURS
        parts.append(_text(_LEFT - 10, y + 4, label, "end"))
        if math.isfinite(low) and math.isfinite(high):
            parts.append(
                f'<line x1="{at(low):.1f}" x2="{at(high):.1f}" y1="{y}" y2="{y}" '
                f'stroke="{color}" stroke-width="2" opacity="0.55"/>'
            )
        if math.isfinite(value):
            parts.append(f'<circle cx="{at(value):.1f}" cy="{y}" r="4" fill="{color}"/>')
    for k, (name, color) in enumerate(zip(marks, (_OURS, _OTHER), strict=True)):
        parts.append(f'<circle cx="{_LEFT + 150 * k + 5}" cy="16" r="4" fill="{color}"/>')
        parts.append(_text(_LEFT + 150 * k + 14, 20, name, "start"))
    parts.append(_text((_LEFT + _WIDTH) / 2, bottom + 30, axis, "middle"))
    return _svg(_WIDTH, height, parts, axis)


def coverage_figure(x: np.ndarray, y: np.ndarray, point: tuple[float, float]) -> str:
    """Errors against coverage, with the point where the rule stands."""
    width, height, left, bottom = 520, 300, 60, 250
    top = max(0.1, math.ceil(10 * float(max([*y, point[1]]))) / 10)

    def at(a: float, b: float) -> str:
        return f"{left + a * (width - left - 20):.1f},{bottom - b / top * (bottom - 30):.1f}"

    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        px, py = at(share, share * top).split(",")
        parts.append(f'<line x1="{px}" x2="{px}" y1="30" y2="{bottom}" stroke="{_GRID}"/>')
        parts.append(f'<line x1="{left}" x2="{width - 20}" y1="{py}" y2="{py}" stroke="{_GRID}"/>')
        parts.append(_text(float(px), bottom + 16, f"{share:g}", "middle"))
        parts.append(_text(left - 8, float(py) + 4, f"{share * top:.3g}", "end"))
    line = " ".join(at(a, b) for a, b in zip(x, y, strict=True))
    parts.append(f'<polyline points="{line}" fill="none" stroke="{_OTHER}" stroke-width="2"/>')
    px, py = at(*point).split(",")
    parts.append(f'<circle cx="{px}" cy="{py}" r="6" fill="{_OURS}"/>')
    parts.append(f'<circle cx="{left + 5}" cy="14" r="5" fill="{_OURS}"/>')
    parts.append(_text(left + 14, 18, "the instrument's rule", "start"))
    parts.append(f'<line x1="{left + 170}" x2="{left + 190}" y1="14" y2="14" stroke="{_OTHER}"/>')
    parts.append(_text(left + 196, 18, "share of the fit in the inputs, alone", "start"))
    parts.append(_text(width / 2, bottom + 36, "share of fitted networks with an answer", "middle"))
    title = "share of wrong answers"
    parts.append(
        f'<text x="14" y="{(30 + bottom) / 2}" text-anchor="middle" '
        f'transform="rotate(-90 14 {(30 + bottom) / 2})">{title}</text>'
    )
    return _svg(width, height, parts, f"{title} against coverage")


def _tick(span: float) -> float:
    """A step of 1, 2 or 5 times a power of ten, four to nine of them in the span."""
    raw = max(span, 1e-9) / 6
    power = 10.0 ** math.floor(math.log10(raw))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= raw)


def _text(x: float | int, y: float | int, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(width: int, height: int, parts: Sequence[str], title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{_INK}" role="img">'
        f'<title>{escape(title)}</title><rect width="{width}" height="{height}" fill="#ffffff"/>'
        + "".join(parts)
        + "</svg>\n"
    )
