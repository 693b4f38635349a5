"""Execute the tutorials, and write each as a page of the site and as a notebook to download.

    python docs/tutorials/build.py [NAME ...] [--store]

A tutorial is a script in the percent format: ``docs/tutorials/NAME.py``. Its first line names the
files that it needs: ``FILE`` in the data folder (``$THEODOLITE_DATA``), or ``PACKAGE:FILE`` of a
package on the Python Package Index. If one of them is missing, the page shows the outputs of
``stored/NAME.ipynb`` and says so. If these are missing too, the page shows the code alone.
``--store`` keeps the outputs of this run.
"""

import argparse
import os
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import jupytext
import nbformat
from nbclient import NotebookClient
from nbconvert import MarkdownExporter
from nbconvert.preprocessors import CoalesceStreamsPreprocessor
from nbformat import NotebookNode

from theodolite import __version__
from theodolite.errors import DataError
from theodolite_papers.lab.data import data_folder
from theodolite_papers.lab.models.published import find_published

FOLDER = Path(__file__).parent
LIMIT = 1800  # seconds for one cell


def missing_files(script: Path) -> list[str]:
    """Files that the first line of a tutorial names and this machine does not have."""
    first = script.read_text().splitlines()[0]
    needs = first.removeprefix("# needs:").split() if first.startswith("# needs:") else []
    return [name for name in needs if not _is_here(name)]


def _is_here(name: str) -> bool:
    package, _, file = name.rpartition(":")
    if not package:
        return (data_folder() / file).is_file()
    try:
        find_published(package, file)
    except DataError:
        return False
    return True


def notebook_of(script: Path) -> NotebookNode:
    """The script as a notebook, from its heading on."""
    notebook = jupytext.read(script)
    first = next(i for i, cell in enumerate(notebook.cells) if cell.cell_type == "markdown")
    del notebook.cells[:first]  # the line that names the files it needs
    return notebook


def executed(script: Path) -> NotebookNode:
    """The script as a notebook, run from top to bottom in a fresh kernel."""
    notebook = notebook_of(script)
    os.environ["PLOTLY_RENDERER"] = "svg"  # figures are pictures on the page
    with TemporaryDirectory() as folder:  # for the runs that a tutorial saves
        here = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=LIMIT, kernel_name="python3", resources=here).execute()
    for cell in _code(notebook):  # progress and warnings of this machine are no result
        cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
    notebook.metadata["theodolite"] = {
        "version": __version__,
        "commit": _commit(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    return notebook


def _commit() -> str:
    """The commit of the checkout; empty where it cannot be read."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def with_stored_outputs(script: Path, stored: Path) -> NotebookNode:
    """The script as a notebook, with the outputs of an earlier run of the same code."""
    notebook, earlier = notebook_of(script), nbformat.read(stored, 4)
    pairs = zip(_code(notebook), _code(earlier), strict=True)
    for cell, kept in pairs:
        cell.outputs = kept.outputs
    notebook.metadata |= earlier.metadata
    return notebook


def _code(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def write_page(name: str, notebook: NotebookNode, missing: list[str]) -> None:
    """``NAME.md`` with its figures in ``NAME_files``, and ``NAME.ipynb``."""
    nbformat.write(notebook, FOLDER / f"{name}.ipynb")
    exporter = MarkdownExporter()
    exporter.register_preprocessor(CoalesceStreamsPreprocessor, enabled=True)
    text, resources = exporter.from_notebook_node(
        notebook, resources={"output_files_dir": f"{name}_files", "unique_key": name}
    )
    for file, content in resources["outputs"].items():
        (FOLDER / file).parent.mkdir(exist_ok=True)
        (FOLDER / file).write_bytes(content)
    for cell in notebook.cells:
        if "alt" in cell.metadata:
            text = re.sub(r"!\[(svg|png)\]", f"![{cell.metadata['alt']}]", text, count=1)
    heading, _, rest = text.strip().partition("\n")
    made = notebook.metadata.get("theodolite")
    commit = made and made.get("commit")
    version = made and made["version"] + (f", commit {commit}" if commit else "")
    note = f"[Download this page as a notebook]({name}.ipynb). "
    if made is None:
        note += f"It has not been executed: this machine does not have {_named(missing)}."
    elif missing:
        note += (
            f"The outputs below are stored: they were made on {made['date']} with Theodolite "
            f"{version}. The machine that built this site did not have {_named(missing)}."
        )
    else:
        note += f"It ran when this site was built, with Theodolite {version}."
    (FOLDER / f"{name}.md").write_text(f"{heading}\n\n{note}\n{rest}\n")


def _named(missing: list[str]) -> str:
    """Files in a sentence: ``cifar10.npz``, ``model.zip`` of the package ``name``."""
    pairs = [name.rpartition(":") for name in missing]
    words = [
        f"`{file}`" + f" of the package `{package}`" * bool(package) for package, _, file in pairs
    ]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def main() -> None:
    """Build the named tutorials, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--store", action="store_true", help="keep the outputs of this run")
    given = parser.parse_args()
    scripts = sorted(file for file in FOLDER.glob("*.py") if file != Path(__file__))
    for script in scripts:
        if given.names and script.stem not in given.names:
            continue
        stored, missing = FOLDER / "stored" / f"{script.stem}.ipynb", missing_files(script)
        print(f"{script.stem}: {'stored outputs' if missing else 'executing'}", flush=True)
        if not missing:
            notebook = executed(script)
        else:
            notebook = (
                with_stored_outputs(script, stored) if stored.exists() else notebook_of(script)
            )
        if given.store and not missing:
            nbformat.write(notebook, stored)
        write_page(script.stem, notebook, missing)


if __name__ == "__main__":
    main()
