"""Common parts of all pages: safe text, formatted numbers, colours, scripts, security policy."""

import base64
import hashlib
import html
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from theodolite.records import finite, made_folder, plain, replace_file

__all__ = [
    "DARK",
    "LIGHT",
    "content_policy",
    "css_variables",
    "distinct",
    "json_for_html",
    "page_numbers",
    "plotly_text",
    "render",
    "short",
    "static_text",
    "style",
    "write_page",
]

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

T = TypeVar("T")

_DIGITS = 6


def css_variables(palette: Mapping[str, str]) -> str:
    """The palette as declarations of CSS variables."""
    return "".join(f"--{name}:{color};" for name, color in palette.items())


def short(text: str, longest: int = 24) -> str:
    """The text without its middle if it is too long for an axis."""
    text = plain(text)
    head = longest // 2 - 1
    return text if len(text) <= longest else f"{text[:head]}…{text[-(longest - head - 1) :]}"


def plotly_text(text: str) -> str:
    """The text escaped for Plotly, which interprets tags and entities even in names."""
    return html.escape(plain(text), quote=False)


def json_for_html(value: Any) -> str:
    """Strict JSON for a script element; numbers that are not finite become null."""
    form: dict[str, Any] = {"allow_nan": False, "ensure_ascii": False, "separators": (",", ":")}
    try:
        text = json.dumps(value, **form)
    except ValueError:  # numbers near the largest overflow on their way to a figure
        text = json.dumps(_finite(value), **form)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def page_numbers(values: Iterable[Any], digits: int = _DIGITS) -> list[float | None]:
    """Numbers for the page's JSON, rounded far below a pixel; null where none can be drawn."""
    return [float(f"{value:.{digits}g}") if finite(value) else None for value in values]


def distinct(values: Iterable[T]) -> tuple[list[T], list[int]]:
    """The different values in order, and the place of each value among them.

    Examples:
        >>> distinct("abac")
        (['a', 'b', 'c'], [0, 1, 0, 2])
    """
    states: list[T] = []
    frames = []
    for value in values:
        if value not in states:
            states.append(value)
        frames.append(states.index(value))
    return states, frames


def static_text(name: str) -> str:
    """A file of the report's ``static`` folder."""
    return resources.files("theodolite.report").joinpath("static", name).read_text(encoding="utf-8")


def style(*sheets: str) -> str:
    """The colours of both themes, then the rules of these sheets."""
    light = f"{css_variables(LIGHT)}color-scheme:light"
    dark = f"{css_variables(DARK)}color-scheme:dark"
    system = "screen and (prefers-color-scheme:dark)"
    return (
        f".theodolite{{{light}}}"
        f"@media {system}{{.theodolite:not(.light){{{dark}}}}}"
        f"@media screen{{.theodolite.dark{{{dark}}}}}"
    ) + "".join(map(static_text, sheets))


def content_policy(scripts: Sequence[str]) -> str:
    """A content security policy: only these scripts run, and nothing is fetched."""
    digests = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    ]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def write_page(path: str | os.PathLike[str], text: str) -> Path:
    """Write a page to a temporary name and move it into place, so that no reader sees half of it.

    Returns:
        The path of the file; its folder is created.

    Raises:
        RecordError: If its folder is a file.
        WriteError: If the disk is full, or the folder cannot be written.
    """
    target = Path(path)
    with made_folder(target.parent):
        return replace_file(target, text.encode(errors="replace"))  # half of a pair has no encoding


def render(template: str, **values: Any) -> str:
    """A template of the report's ``templates`` folder, filled in; text is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def coded(text: str) -> Markup:
        """The text with what stands between backticks as code, as advice names arguments."""
        parts = re.split(r"`([^`]+)`", text)
        code = Markup("<code>{}</code>")
        return Markup("").join(code.format(p) if i % 2 else p for i, p in enumerate(parts))

    environment = Environment(
        loader=PackageLoader("theodolite.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["coded"] = coded
    return environment.get_template(template).render(**values)
