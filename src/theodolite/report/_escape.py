"""Names from models and files, made harmless where they are shown."""

import html
import json
import unicodedata
from typing import Any

__all__ = ["json_for_html", "plain", "plotly_text", "short"]

_LONGEST = 24


def plain(text: str) -> str:
    """The text without control characters; a nameless layer is the model itself."""
    visible = "".join("�" if unicodedata.category(c) in {"Cc", "Cf", "Cs"} else c for c in text)
    return visible or "(model)"


def short(text: str, longest: int = _LONGEST) -> str:
    """The text with its middle left out where it is too long for an axis."""
    text = plain(text)
    head = longest // 2 - 1
    return text if len(text) <= longest else f"{text[:head]}…{text[-(longest - head - 1) :]}"


def plotly_text(text: str) -> str:
    """The text as Plotly shows it letter by letter: it reads tags and entities even in names."""
    return html.escape(plain(text), quote=False)


def json_for_html(value: Any) -> str:
    """Strict JSON that may stand inside a script element."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
