"""Importing loads little and changes nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import theodolite

ROOT = Path(__file__).parent.parent
# All that users are meant to find by completion.
PUBLIC = [
    *("Monitor", "compare", "features", "gradient_alignment", "load", "survey"),
    "tangent_features",
    *("survey_features", "tangent_kernels", "transfer"),
    *("advice", "engine", "integrations", "interventions", "measures", "metrics", "theory"),
]
HEAVY = ("torchmetrics", "pandas", "plotly", "jinja2", "sklearn", "typer", "rich", "lightning")
EXTRAS = ("transformers", "datasets", "torchvision", "timm", "skimage", "mlflow", "ray", "wandb")


def run(code: str) -> str:
    """What a fresh interpreter prints; warnings are errors there too."""
    command = [sys.executable, "-W", "error", "-c", code]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


@pytest.mark.parametrize("module", ["records", "report", "surveys.results", "cli.story"])
def test_saved_results_and_the_demo_load_no_torch(module):
    assert run(f"import sys, theodolite.{module}; print('torch' in sys.modules)") == "False"


def test_touching_every_public_name_loads_no_heavy_dependency():
    code = f"""
import sys, theodolite, importlib
for name in theodolite.__all__:
    if name != "metrics":
        value = getattr(theodolite, name)
        for inner in getattr(value, "__all__", ()):
            getattr(value, inner)
print(sorted(set({HEAVY + EXTRAS!r}) & set(sys.modules)))
"""
    assert run(code) == "[]"


def test_import_changes_nothing_outside():
    code = """
import sys, warnings, random, logging
import numpy, torch
def state():
    return (
        torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_float32_matmul_precision(),
        torch.initial_seed(), random.getstate(), numpy.random.get_state()[1].tolist(),
        logging.root.level, len(logging.root.handlers), sys.excepthook, sys.path[:],
        torch.nn.Module.__call__, torch.Tensor.__add__, numpy.geterr(),
        torch.backends.cudnn.benchmark,
    )
before = state()
import theodolite
for name in theodolite.__all__:
    if name != "metrics":
        getattr(theodolite, name)
print(state() == before)
"""
    assert run(code) == "True"


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="has no attribute 'mesure'"):
        _ = theodolite.mesure


def test_dir_shows_the_public_names_and_nothing_else():
    assert dir(theodolite) == sorted(PUBLIC)
    assert theodolite.__all__ == sorted(PUBLIC)
    assert all(getattr(theodolite, name) is not None for name in PUBLIC)


@pytest.mark.parametrize("name", ["Comparison", "History", "Survey", "__version__"])
def test_types_of_results_are_there_for_annotations(name):
    assert getattr(theodolite, name) is not None


def private_imports(path, package):
    """Modules that a file imports although their name, or that of a folder, is private elsewhere.

    A private module may be imported by what lies in its own folder, or below.
    """
    own = path.relative_to(package.parent).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            private = [i for i, part in enumerate(parts) if part[:1] == "_" and part[:2] != "__"]
            if parts[0].startswith("theodolite") and any(
                own[:i] != tuple(parts[:i]) for i in private
            ):
                yield f"{'.'.join(own)} imports {name}"


def packages():
    below = [path for path in (ROOT / "papers" / "src").glob("*") if path.is_dir()]
    return [ROOT / "src" / "theodolite", *below]


def test_no_package_imports_private_modules_of_another():
    found = [
        offence
        for package in packages()
        for path in sorted(package.rglob("*.py"))
        for offence in private_imports(path, package)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("from theodolite.report._page import page", True),
        ("from theodolite._version import __version__", True),
        ("import theodolite.report._page", True),
        ("from theodolite.report import pages, _page", True),
        ("from theodolite.engine._plan import plan", False),
        ("from theodolite.engine import _plan", False),
        ("import theodolite.measures.kernel._from_features", False),
        ("from torch.utils._pytree import tree_map", True),
    ],
)
def test_private_imports_are_found(tmp_path, line, allowed):
    path = tmp_path / "theodolite" / "report" / "_figures.py"
    path.parent.mkdir(parents=True)
    path.write_text(line)
    assert (list(private_imports(path, tmp_path / "theodolite")) == []) == allowed


LABORATORY = "theodolite_papers"
# File that needs the laboratory -> why. Tests of papers' formulas are in papers/tests.
NEEDS_LABORATORY = {
    "end_to_end/test_guide.py": "runs the pages of the guide, and two load the laboratory's tables"
}


def imported(path: Path) -> set[str]:
    """Modules that a file imports, also by a call with their name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "importorskip", "__import__"):
                found.add(ast.unparse(node.args[0]).removeprefix("f").strip("'\""))
    return {name.split(".")[0] for name in found}


def test_tests_of_the_instrument_do_without_the_laboratory():
    folder = ROOT / "tests"
    users = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if LABORATORY in imported(path)
    }
    assert users == set(NEEDS_LABORATORY)
