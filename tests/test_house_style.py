"""What no linter knows: references that exist, doctests where they belong."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    [
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "src").rglob("*.csv"),
        *(ROOT / "papers" / "src").rglob("*.py"),
    ]
)


FORMULAS = [
    ROOT / "src" / "theodolite" / "measures",
    ROOT / "src" / "theodolite" / "theory",
    *sorted((ROOT / "papers" / "src" / "theodolite_papers").glob("*/formulas")),
]


def test_no_grab_bags():
    grab_bags = {"utils.py", "common.py", "helpers.py", "misc.py"}
    assert [path for path in SOURCES if path.name in grab_bags] == []


def test_every_cited_key_is_in_the_bibliography():
    known = set(re.findall(r"@\w+\{(\w+),", (ROOT / "docs" / "references.bib").read_text()))
    cited = {
        (key, path.name)
        for path in SOURCES
        for key in re.findall(r"\[([a-z]+(?:19|20)\d\d[a-z]*)\]", path.read_text())
    }
    assert {item for item in cited if item[0] not in known} == set()


def public_functions() -> list[tuple[Path, ast.FunctionDef]]:
    return [
        (path, node)
        for folder in FORMULAS
        for path in sorted(folder.rglob("*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(decorator) == "array_function" for decorator in node.decorator_list)
    ]


@pytest.mark.parametrize(
    ("path", "function"), public_functions(), ids=lambda value: getattr(value, "name", None)
)
def test_array_functions_have_an_example_and_a_reference(path, function):
    docstring = ast.get_docstring(function) or ""
    if function.name.startswith("_"):
        return
    for section in ("Args:", "Examples:", "References:"):
        assert section in docstring, f"{path.name}: {function.name} lacks {section}"


def test_the_page_of_measures_is_the_registry():
    from tests.measures_page import PAGE, page

    assert PAGE.read_text() == page(), "run python -m tests.measures_page"


def test_the_page_of_formulas_is_what_the_docstrings_say():
    from tests.formula_page import PAGE, page

    assert PAGE.read_text() == page(), "run python -m tests.formula_page"


def test_every_formula_can_be_called_where_the_page_says():
    from importlib import import_module

    from tests.formula_page import functions

    for module, name, _, _ in functions():
        assert callable(getattr(import_module(module), name)), f"{module}.{name}"


def test_version_and_changelog_agree():
    from theodolite import __version__

    versions = {
        "CITATION.cff": re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M),
        "CHANGELOG.md": re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)[:1],
    }
    assert versions == {name: [__version__] for name in versions}
