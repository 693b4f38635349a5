"""The reference documents every public function in full, and a browser shows it as it should."""

import importlib
import inspect
import re
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from tests.report import browser as driver

ROOT = Path(__file__).parents[2]
API = ROOT / "docs" / "api"
FAMILIES = ("representation", "covariance", "kernel", "tangent", "gradient")
PAGES = ("surveys.md", "measures.md", "theory.md")


def public_functions():
    """Functions that the reference shows in full: all of a module, or those that a page names."""
    for page in sorted(API.glob("*.md")):
        for name in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.MULTILINE):
            place, _, last = name.rpartition(".")
            holder = importlib.import_module(place)
            if callable(found := getattr(holder, last, None)) and not inspect.ismodule(found):
                yield name, found
            elif name != "theodolite.engine":  # its other names are shared with other packages
                module = importlib.import_module(name)
                for public in module.__all__:
                    yield f"{name}.{public}", getattr(module, public)


def lacking(function):
    """What the docstring of a function does not have."""
    text, plain = inspect.getdoc(function) or "", inspect.unwrap(function)
    arguments = text[text.find("\nArgs:") :] if "\nArgs:" in text else ""
    signature = inspect.signature(plain)
    for name in signature.parameters:
        if name != "self" and not re.search(
            rf"^    (.*, )?\**{name}\b[^\n]*:", arguments, re.MULTILINE
        ):
            yield f"argument {name}"
    if not re.search(r"^(Returns|Yields):", text, re.MULTILINE) and (
        signature.return_annotation not in (None, "None")
    ):
        yield "returns"
    if not re.search(r"^Examples:\n(    .*\n|\n)*    >>>", text, re.MULTILINE):
        yield "examples"
    if len(text.split("\n\n")[0].split()) > 25:
        yield "a short summary"
    cited = plain.__module__.startswith(("theodolite.measures", "theodolite.theory"))
    if cited and "References:" not in text:
        yield "references"


def test_functions_of_the_reference_are_documented_in_full():
    functions = {
        name: function
        for name, function in public_functions()
        if inspect.isfunction(inspect.unwrap(function))
    }
    assert len(functions) > 100
    missing = {name: bad for name, f in functions.items() if (bad := list(lacking(f)))}
    assert missing == {}


def test_the_check_finds_what_is_missing():
    def bare(x: int) -> int:
        """A summary."""
        return x

    assert list(lacking(bare)) == ["argument x", "returns", "examples"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages of three parts of the reference, built as the whole site is."""
    folder = tmp_path_factory.mktemp("site")
    docs = folder / "docs"
    docs.mkdir()
    for name in PAGES:
        (docs / name).write_text((API / name).read_text())
    built = str(folder / "site")
    nav = [{name: name} for name in PAGES]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        config = load_config(
            str(ROOT / "mkdocs.yml"), docs_dir=str(docs), site_dir=built, nav=nav, exclude_docs=None
        )
        build(config)
    return folder / "site"


@pytest.mark.skipif(driver.missing(), reason=f"a browser is missing: {driver.INSTALL}")
@pytest.mark.filterwarnings("ignore")  # of the site builder
def test_reference_pages_show_code_and_formulas(site, tmp_path):
    with driver.running_browser(tmp_path / "profile") as browser:
        for name in PAGES:
            browser.navigate((site / name).with_suffix(".html"))
            text = browser.script("return document.querySelector('article').innerText")
            blocks = browser.texts("article .highlight code")
            assert any(block.startswith(">>> ") for block in blocks), name
            assert browser.script("return document.querySelectorAll('blockquote').length") == 0
            assert not re.search(r":math:|:func:|\.\. math|\\frac", text), name
        browser.navigate(site / "measures.html")
        assert browser.script("return document.querySelectorAll('math').length") > 50
        browser.navigate(site / "surveys.html")
        assert browser.texts("article h2")[0].strip().startswith("theodolite.surveys.survey")
