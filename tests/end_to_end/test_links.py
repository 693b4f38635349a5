"""Links lead to files and headings that exist. The strict build of the site checks its own."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "papers", "benchmarks", "src")
MADE = (ROOT / "docs" / "ledger", ROOT / "docs" / "tutorials")  # the site builder writes these
LINK = r"\]\(([^)\s]+)[^)]*\)|(?:src|href)=\"([^\"]+)\""


def pages():
    found = [*ROOT.glob("*.md"), ROOT / "docs" / "llms.txt"]
    for folder in FOLDERS:
        found += (ROOT / folder).rglob("*.md")
    return sorted(page for page in found if page.parent not in MADE)


def anchors(page):
    """Ids of headings, as the site builder and code hosts make them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        plain = re.sub(r"\]\([^)]*\)", "", heading)
        plain = re.sub(r"[^\w\s-]", "", plain).strip().lower()
        yield from (re.sub(r"\s", "-", plain), re.sub(r"[-\s]+", "-", plain))
    yield from re.findall(r"\bid=\"([^\"]+)\"|{ *#(\S+) *}", text)


def dead(page):
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
    for link in ("".join(groups) for groups in re.findall(LINK, text)):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if "://" in link or link.startswith("mailto:") or target.parent == MADE[0]:
            continue
        if target.parent == MADE[1]:
            target = target.with_suffix(".py")
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert list(dead(page)) == []


def test_a_dead_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    good = "[a](page.md) [b](#a-heading-of-code) [c](https://nowhere.example) `[d](x.md)`"
    page.write_text(f"# A heading: of `code`\n{good}\n")
    assert list(dead(page)) == []
    page.write_text('# A heading\n[a](no.md) [b](#no) [c](page.md#no) ![d](no.png) <img src="e">')
    assert list(dead(page)) == ["no.md", "#no", "page.md#no", "no.png", "e"]
    assert len(pages()) > 40
