"""The reference documents every public function in full, and a browser shows it as it should."""

import importlib
import inspect
import re
from doctest import DocTestParser
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

import theodolite
from tests.report import browser as driver
from theodolite import surveys
from theodolite.measures.registry import MEASURES

ROOT = Path(__file__).parents[2]
API = ROOT / "docs" / "api"
PAGES = ("surveys.md", "measures.md", "theory.md")
FORMULAS = {inspect.unwrap(measure.function) for measure in MEASURES.values()}


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


def offered(module=theodolite):
    """Functions that users import: those of the package and of the modules that it names.

    The engine's other names are shared with other packages; its page lists them without details.
    """
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.ismodule(value) and value is not theodolite.engine:
            yield from offered(value)
        elif inspect.isfunction(inspect.unwrap(value)) if callable(value) else False:
            yield f"{module.__name__}.{name}", value


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
    if not any(example.want for example in DocTestParser().get_examples(text)):
        yield "an example with output"
    summary = text.split("\n\n")[0].replace("e.g. ", "")
    if len(summary.split()) > 25 or summary.count(". ") or not summary.endswith("."):
        yield "a summary of one sentence"
    cited = plain.__module__.startswith(("theodolite.measures", "theodolite.theory"))
    if cited and "References:" not in text:
        yield "references"
    if plain in FORMULAS and "math::" not in text:
        yield "a formula"


@pytest.fixture(scope="module")
def documented():
    """The functions among the names that the reference shows."""
    return {
        name: function
        for name, function in public_functions()
        if callable(function) and inspect.isfunction(inspect.unwrap(function))
    }


def test_functions_of_the_reference_are_documented_in_full(documented):
    missing = {name: bad for name, f in documented.items() if (bad := list(lacking(f)))}
    assert missing == {}


@pytest.mark.parametrize("name", ["Survey", "History", "Comparison", "Transfer", "Monitor"])
def test_methods_of_results_are_documented(name):
    holder = getattr(surveys, name)
    methods = inspect.getmembers(holder, inspect.isfunction)
    public = {key: method for key, method in methods if not key.startswith("_")}
    assert len(public) >= 3
    for key, method in public.items():
        text = inspect.signature(method).return_annotation is str  # "as text", says the summary
        needless = {"an example with output", *(["returns"] if text else [])}
        assert set(lacking(method)) <= needless, key


def test_every_public_function_is_in_the_reference(documented):
    shown = {inspect.unwrap(function) for function in documented.values()}
    public = dict(offered())
    places = {name.split(".")[1] for name in public}
    assert {"measures", "theory", "interventions", "advice", "integrations"} <= places
    assert {name for name, f in public.items() if inspect.unwrap(f) not in shown} == set()
    assert shown >= FORMULAS


def test_the_check_finds_what_is_missing():
    def bare(x: int) -> int:
        """A summary."""
        return x

    assert list(lacking(bare)) == ["argument x", "returns", "an example with output"]
    bare.__doc__ = "A summary.\n\nExamples:\n    >>> bare(1)"
    assert "an example with output" in lacking(bare)


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
