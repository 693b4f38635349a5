"""Colors by name, for a light and a dark page; Plotly knows no CSS variables."""

from collections.abc import Mapping
from typing import Any

__all__ = ["DARK", "LIGHT", "css_variables", "resolved"]

LIGHT: Mapping[str, str] = {
    "page": "#f6f5f1", "surface": "#ffffff", "ink": "#1b1f24", "muted": "#5d6670",
    "grid": "#e9e8e4", "line": "#b9bcc0", "null": "#d5d6d8", "middle": "#e3e3e3",
    "representation": "#0b62ab", "representation-pale": "#8fc1ea",
    "covariance": "#a85f00", "covariance-pale": "#ecbc7d",
    "kernel": "#0b7a60", "kernel-pale": "#84ceb9",
    "tangent": "#6b3fc0", "tangent-pale": "#bfa5ec",
    "gradient": "#bd2c45", "gradient-pale": "#f0a0ad",
}  # fmt: skip

DARK: Mapping[str, str] = {
    "page": "#14171b", "surface": "#1d2126", "ink": "#eceef0", "muted": "#a3abb4",
    "grid": "#2c3138", "line": "#4a515a", "null": "#4b525b", "middle": "#3a3f46",
    "representation": "#63b0f2", "representation-pale": "#1f5a8d",
    "covariance": "#eba64a", "covariance-pale": "#82561a",
    "kernel": "#46c9a6", "kernel-pale": "#1c6a57",
    "tangent": "#b18cf5", "tangent-pale": "#5a3f91",
    "gradient": "#f57d8f", "gradient-pale": "#8b3544",
}  # fmt: skip

# A name of the palette means a color at these keys only: layers may be called "ink".
_COLOR_KEYS = {
    "color", "bgcolor", "fillcolor", "gridcolor", "linecolor", "bordercolor", "tickcolor",
    "paper_bgcolor", "plot_bgcolor", "colorscale",
}  # fmt: skip


def css_variables(palette: Mapping[str, str]) -> str:
    """The palette as declarations of CSS variables."""
    return "".join(f"--{name}:{color};" for name, color in palette.items())


def resolved(value: Any, palette: Mapping[str, str], key: str = "") -> Any:
    """A figure's dictionaries with names of colors replaced by colors."""
    if isinstance(value, Mapping):
        return {k: resolved(v, palette, k) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return (
            [resolved(item, palette, key) for item in value]
            if key in _COLOR_KEYS or (value and isinstance(value[0], Mapping))
            else value
        )
    return palette.get(value, value) if key in _COLOR_KEYS and isinstance(value, str) else value
