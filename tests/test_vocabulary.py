"""Retired words do not come back: in docs, messages, docstrings and everything that is printed."""

import ast
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What the first editions said -> what the field says.
RETIRED = {
    r"\bread-?outs? (accuracy|error|R²)": "probe accuracy",
    r"\blinear read-?outs?\b": "linear probe",
    r"\bread-outs?\b": "linear probe",
    r"\breadout_(accuracy|r2|error)\b": "probe_accuracy, probe_r2, leave_one_out_probe",
    r"\b(fore)?told\b": "predicted, or say who says what",
    r"\bshuffled labels?\b": "random labels",
    r"\bpulls? apart\b": "disagree",
    r"\bread off\b": "predicted",
    r"\bcarr(y|ies) (it|the task)\b": "linear probes reach",
    r"\blooks like (learning|memorising)\b": "learned, memorised, undecided",
    r"\btrain (any of )?layers? ": "nothing: an angle is not the size of a step",
    r"\b(whoever|nobody)\b": "the subject that acts",
    r"\bway back\b": "backward pass",
    r"\b(resting|awake)\b": "skipped, due",
    r"\bin company\b": "same batch, other batch",
    r"\bleading modes [^.|]*\bcarr(y|ies)\b": "explain",
    r"± 0 points": "a Wilson interval",
}
# Old names that a reader of older records must know.
_ALLOWED = {"src/theodolite/records/_runs.py"}
# Folders that the site builder writes; registered claims keep their words.
_MADE = {"ledger", "tutorials"}
_TOP = (
    "README.md",
    "AGENTS.md",
    "SKILL.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/llms.txt",
    "papers/README.md",
)
# Scripts whose words are printed or read: tutorials, examples, benchmarks, commands of the papers.
_SCRIPTS = ("docs", "benchmarks", "papers/src/theodolite_papers/commands")


def _python(path):
    """Docstrings, messages and comments of a module, with their lines."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for offset, line in enumerate(node.value.splitlines()):
                yield node.lineno + offset, line


def _prose(path):
    yield from enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)


def _texts():
    instrument = ROOT / "src" / "theodolite"
    for path in sorted(instrument.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name not in _ALLOWED:
            yield path, _python
    for path in [*sorted(instrument.rglob("*.j2")), instrument / "measures" / "registry.csv"]:
        yield path, _prose
    for folder in _SCRIPTS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, _python
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name not in _MADE]
    pages += (ROOT / "benchmarks").rglob("*.md")
    for path in [*map(ROOT.joinpath, _TOP), instrument / "engine" / "README.md", *sorted(pages)]:
        yield path, _prose


@pytest.fixture(scope="module")
def texts():
    return [
        (f"{path.relative_to(ROOT)}:{number}", line)
        for path, lines in _texts()
        for number, line in lines(path)
    ]


@pytest.mark.parametrize("pattern", RETIRED)
def test_retired_words_are_gone(pattern, texts):
    retired = re.compile(pattern, re.IGNORECASE)
    found = [f"{place}: {line.strip()[:100]}" for place, line in texts if retired.search(line)]
    assert not found, f"say: {RETIRED[pattern]}\n" + "\n".join(found)


def test_the_test_finds_them(tmp_path):
    module = tmp_path / "module.py"
    module.write_text('told = 1  # as told\n"""Asked, it told."""\n')
    assert [number for number, line in _python(module) if "told" in line] == [1, 2]
