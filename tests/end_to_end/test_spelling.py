"""Every word on the pages is English, or stands in the list of the field's words."""

import re
from pathlib import Path

from spellchecker import SpellChecker

ROOT = Path(__file__).parents[2]
CHECKER = SpellChecker()
WORDS = Path(__file__).with_name("words.txt")
MADE = {"measures.md", "properties.md", "formulas.md"}  # tables of names and formulas
TOP = ("README.md", "AGENTS.md", "SKILL.md", "CONTRIBUTING.md", "SECURITY.md", "papers/README.md")


def prose(text):
    """The text without code, formulas, links and tags."""
    for pattern in (r"```.*?```", r"`[^`]*`", r"\$\$.*?\$\$", r"\$[^$\n]*\$"):
        text = re.sub(pattern, " ", text, flags=re.DOTALL)
    return re.sub(r"\]\([^)]*\)|<[^>]+>|https?://\S+", " ", text)


def pages():
    docs = ROOT / "docs"
    found = [ROOT / name for name in TOP]
    found += [*docs.glob("*.md"), *docs.glob("questions/*.md"), *docs.glob("families/*.md")]
    return [page for page in sorted(found) if page.name not in MADE]


def unknown(text, known):
    words = set(re.findall(r"\b[a-z][a-z]+(?:'[a-z]+)?\b", prose(text)))
    return sorted(CHECKER.unknown(words) - known)


def test_a_misspelt_word_is_found():
    assert unknown("The kernal of `xqz` is [aligmnent](zqx.md).", set()) == ["aligmnent", "kernal"]


def test_pages_are_spelt_right():
    known = set(WORDS.read_text().split())
    assert {page.name: bad for page in pages() if (bad := unknown(page.read_text(), known))} == {}
