"""The page of formulas: what each paper states, and which function computes it.

``python -m tests.formula_page`` writes it anew; a test compares it with the code.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "formulas.md"
INSTRUMENT = ("linalg", "measures", "theory", "interventions")
PAPERS = {
    "imani2022": "representation",
    "maennel2020": "covariance",
    "canatar2022": "kernel",
    "lou2022": "tangent",
    "mehta2021": "gradient",
}
HEAD = """# Formulas of the papers

This page lists the functions that compute the formulas of the five papers. The library
(`theodolite`) has the functions that users call and that a survey needs. Functions that only
the figures of a paper need are in `theodolite_papers` (folder `papers/`). Properties that the
tests check are on [their own page](properties.md). Keys in brackets are entries of
[references.bib](references.bib). If the last cell is empty, the paper has no such formula, and the
docstring says what it has.
`python -m tests.formula_page` writes this page from the docstrings.

"""


def functions():
    """Public functions and classes with a reference: (module, name, first line, references)."""
    source = ROOT / "src" / "theodolite"
    laboratory = ROOT / "papers" / "src" / "theodolite_papers"
    files = [path for part in INSTRUMENT for path in sorted((source / part).rglob("*.py"))]
    for paper in PAPERS:
        files += sorted((laboratory / paper / "formulas").glob("*.py"))
    files.append(laboratory / "lab" / "models" / "transfer.py")
    for path in files:
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name[0] == "_":
                continue
            text = ast.get_docstring(node) or ""
            _, found, references = text.partition("References:")
            if found:
                yield public_module(path), node.name, text.splitlines()[0], references


def public_module(path: Path) -> str:
    """Where a function is imported from: the package of a private file."""
    base = ROOT / "src" if ROOT / "src" in path.parents else ROOT / "papers" / "src"
    parts = path.relative_to(base).with_suffix("").parts
    if parts[0] == "theodolite" and parts[1] == "measures":
        parts = parts[:3]
    elif parts[0] == "theodolite" and parts[1] in ("linalg", "interventions"):
        parts = parts[:2]
    return ".".join(parts)


def markdown(text: str) -> str:
    """A line of a docstring for a cell: formulas in dollars, names in backquotes."""
    text = re.sub(r":math:`([^`]*)`", lambda found: f"${bars(found[1])}$", text)
    return re.sub(r":\w+:`([^`]*)`", r"`\1`", text).replace("``", "`").replace("|", r"\|")


def bars(formula: str) -> str:
    """A formula without the character that ends a cell."""
    return formula.replace(r"\|", r"\Vert ").replace("|", r"\vert ")


def page() -> str:
    """The whole page."""
    known = list(functions())
    sections = []
    for paper, family in PAPERS.items():
        lines = [f"## {paper} ({family})", ""]
        lines += ["| function | what it computes | in the paper |", "|---|---|---|"]
        for module, name, what, references in known:
            cited = re.search(rf"\[{paper}\],?\s*([^;\[]*)", references)
            own = module.startswith(f"theodolite_papers.{paper}.")
            if cited is None and not own:
                continue
            words = " ".join((references if cited is None else cited[1]).split())
            place = re.split(r"(?<!\bSec)\.\s+(?=[A-Z])", words)[0].strip(" .,:")
            cells = (f"`{module}.{name}`", *map(markdown, (what, place)))
            lines.append("| " + " | ".join(cells) + " |")
        sections.append("\n".join(lines) + "\n")
    return HEAD + "\n".join(sections)


if __name__ == "__main__":
    PAGE.write_text(page())
