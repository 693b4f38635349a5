"""``theodolite view DIR...``: the report of a saved run, or of several beside each other."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["view"]


def view(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...",
            help="Folders of saved surveys or histories; several are compared.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="HTML file to write. [default: report.html in DIR]"),
    ] = None,
    browse: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the report in a browser.")
    ] = True,
    json_: Annotated[
        bool, typer.Option("--json", help="Print the numbers as JSON and write no report.")
    ] = False,
) -> None:
    """Show what was measured: print the headline numbers, write the report and open it."""
    from rich.console import Console

    from theodolite._load import compare, load
    from theodolite.cli.tables import headline_table, print_json, print_notes, run_document
    from theodolite.errors import RecordError

    results = [load(folder) for folder in folders]
    runs = [result.run for result in results]
    for folder, run in zip(folders, runs, strict=True):
        if not run.steps:
            raise RecordError(f"{folder}: the history has no step yet; nothing to show")
    if json_:
        documents = [
            run_document(run, {"folder": str(folder)})
            for folder, run in zip(folders, runs, strict=True)
        ]
        print_json(documents[0] if len(documents) == 1 else documents)
        return
    shown = results[0] if len(results) == 1 else compare(*results)
    console = Console()
    for folder, run in zip(folders, runs, strict=True):
        step = run.steps[-1].contents.get("step")
        when = "" if step is None else f", step {step}"
        console.print(headline_table(run.steps[-1], f"{run.name or folder}{when}"))
        print_notes(console, run.steps[-1])
    file_name = "report.html" if len(runs) == 1 else "comparison.html"
    report = shown.to_html(output or folders[0] / file_name)
    console.print(f"report {report}", soft_wrap=True, highlight=False)
    if browse:
        typer.launch(report.resolve().as_uri())
