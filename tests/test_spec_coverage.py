"""Every numbered property of the specifications has an owner, and every owner tests it."""

import ast
import re
from pathlib import Path

import pytest

from tests.spec_owners import FOLDERS, OWNERS, expand, owned_by

ROOT = Path(__file__).parent.parent
HIGHEST = {"1.R": 58, "2.P": 46, "3.P": 61, "4.P": 116, "5.P": 66}
EXISTING = [part for part, folders in FOLDERS.items() if (ROOT / folders[0]).is_dir()]


def marked_numbers(folder: Path) -> set[str]:
    """Arguments of every ``pytest.mark.spec(...)`` below a folder, read from the syntax tree."""
    calls = (
        node
        for path in folder.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    )
    marks = (
        call
        for call in calls
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func) == "pytest.mark.spec"
    )
    return {argument.value for mark in marks for argument in mark.args}


@pytest.mark.parametrize("part", EXISTING)
def test_a_part_tests_every_number_it_owns(part):
    marked = set().union(*(marked_numbers(ROOT / folder) for folder in FOLDERS[part]))
    assert sorted(owned_by(part) - marked) == []


@pytest.mark.parametrize("prefix", HIGHEST)
def test_every_number_has_an_owner(prefix):
    owned = {number for ranges in OWNERS[prefix].values() for number in expand(ranges)}
    assert sorted(set(range(1, HIGHEST[prefix] + 1)) - owned) == []


@pytest.mark.parametrize("part", EXISTING)
def test_marks_name_numbers_that_exist(part):
    marked = set().union(*(marked_numbers(ROOT / folder) for folder in FOLDERS[part]))
    known = {f"{prefix}{number}" for prefix, top in HIGHEST.items() for number in range(1, top + 1)}
    assert sorted(marked - known) == []


def test_the_page_of_properties_states_every_number_once():
    page = (ROOT / "docs" / "properties.md").read_text()
    stated = re.findall(r"^- \*\*(\S+)\*\* .+\.$", page, re.MULTILINE)
    known = [f"{prefix}{number}" for prefix, top in HIGHEST.items() for number in range(1, top + 1)]
    assert sorted(stated) == sorted(known)
