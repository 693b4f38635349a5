"""Every word on the pages is British English, or stands in the list of the field's words."""

import re
from pathlib import Path

from spellchecker import SpellChecker

ROOT = Path(__file__).parents[2]
CHECKER = SpellChecker()
WORDS = Path(__file__).with_name("words.txt")
# Words of the page, and those that begin a sentence, a cell or a point of a list.
WORD = r"\b[a-z][a-z]+(?:'[a-z]+)?\b|(?:^[-*#>|\d. ]*|[.:!?|]\s+)[A-Z][a-z]{2,}\b"
# In small letters: titles of papers keep their spelling.
AMERICAN = r"\b(?!(?:[a-z]*(?:size|prize|seize))[ds]?\b)[a-z]+iz(?:e[ds]?|ing|ations?)\b"
AMERICAN += r"|\b(?:color|behavior|center|labeled|modeling)\w*"


def prose(text):
    """The text without code, formulas, links and tags."""
    for pattern in (r"```.*?```", r"`[^`]*`", r"\$\$.*?\$\$", r"\$[^$\n]*\$"):
        text = re.sub(pattern, " ", text, flags=re.DOTALL)
    return re.sub(r"\]\([^)]*\)|<[^>]+>|https?://\S+|^::: .*$", " ", text, flags=re.MULTILINE)


def text_of(path):
    """A page, or the text cells of a tutorial."""
    text = path.read_text()
    if path.suffix != ".py":
        return text
    cells = re.split(r"^# %%", text, flags=re.MULTILINE)
    lines = [line for cell in cells if cell.startswith(" [markdown]") for line in cell.splitlines()]
    return "\n".join(line.removeprefix("# ") for line in lines if line.startswith("# "))


def pages():
    """Pages that people write, and tutorials; the site builder writes two folders of docs."""
    found = [*ROOT.glob("*.md"), ROOT / "docs" / "llms.txt", *ROOT.glob("docs/tutorials/*-*.py")]
    for folder in ("docs", "papers", "benchmarks", "src"):
        found += (ROOT / folder).rglob("*.md")
    made = {ROOT / "docs" / "ledger", ROOT / "docs" / "tutorials"}
    return sorted(page for page in found if page.suffix != ".md" or page.parent not in made)


def unknown(text, known):
    words = re.findall(WORD, prose(text), re.MULTILINE)
    words = {re.sub(r"^.*[^a-zA-Z']", "", word.strip(), flags=re.DOTALL) for word in words}
    return sorted(CHECKER.unknown(word.lower() for word in words) - known)


def american(text):
    return sorted(set(re.findall(AMERICAN, prose(text))))


def test_a_misspelt_word_is_found():
    text = "The kernal of `xqz` is [aligmnent](zqx.md). Wrogn!\n- Twoo\n| Kernal | cell |"
    assert unknown(text, set()) == ["aligmnent", "kernal", "twoo", "wrogn"]
    assert american("Colors of `color` of initialized sizes") == ["initialized"]


def test_texts_of_tutorials_are_read():
    assert sum(page.suffix == ".py" for page in pages()) == 5
    assert all(len(text_of(page)) > 500 for page in pages() if page.suffix == ".py")


def test_pages_are_spelt_right():
    known = set(WORDS.read_text().split())
    texts = {str(page.relative_to(ROOT)): text_of(page) for page in pages()}
    assert {name: bad for name, text in texts.items() if (bad := unknown(text, known))} == {}
    assert {name: bad for name, text in texts.items() if (bad := american(text))} == {}
