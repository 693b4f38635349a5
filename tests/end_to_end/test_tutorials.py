"""Tutorials have stored outputs, of the code that they show; pictures have a description."""

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
SCRIPTS = sorted(path for path in FOLDER.glob("*.py") if path.name != "build.py")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_stored_outputs_are_those_of_the_script(script):
    notebook = json.loads((FOLDER / "stored" / f"{script.stem}.ipynb").read_text())
    text = script.read_text()
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert text.count("\n# %%") - text.count("\n# %% [markdown]") == len(cells)
    for cell in cells:
        assert "".join(cell["source"]) in text, "run docs/tutorials/build.py NAME --store"
        pictures = [out for out in cell["outputs"] if "image/svg+xml" in out.get("data", {})]
        assert not pictures or cell["metadata"]["alt"]
        assert all(out["output_type"] != "error" for out in cell["outputs"])
    assert {"date", "version"} <= set(notebook["metadata"]["theodolite"])


def test_there_are_five():
    assert len(SCRIPTS) == 5
