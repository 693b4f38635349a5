"""``theodolite view DIR...``: the report of a saved run, or of several beside each other."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["view"]

_MOST_COMPARED = 12


def view(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...",
            help="Folders of saved surveys or histories, or a folder of such folders; several "
            "are compared.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="HTML file to write. [default: report.html in DIR]"),
    ] = None,
    gallery: Annotated[
        bool,
        typer.Option(
            help="A table of all records below DIR, studies and sweeps included, to filter, sort "
            "and compare; the default for more than twelve."
        ),
    ] = False,
    browse: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the report in a browser.")
    ] = True,
    json_: Annotated[
        bool, typer.Option("--json", help="Print the numbers as JSON and write no report.")
    ] = False,
) -> None:
    """Show what was measured: print the headline numbers, write the report and open it."""
    from rich.console import Console

    from theodolite.cli.saved import saved_results
    from theodolite.cli.tables import print_json, print_latest, run_document
    from theodolite.surveys._compare import compare

    if not json_ and (gallery or _are_many(folders)):
        _show_gallery(folders, output, browse)
        return
    found = saved_results(folders)
    if json_:
        documents = [run_document(r.run, {"folder": str(path)}) for path, r in found.items()]
        print_json(documents[0] if len(documents) == 1 else documents)
        return
    results = list(found.values())
    shown = results[0] if len(results) == 1 else compare(*results)
    console = Console()
    for path, result in found.items():
        print_latest(console, result.run, result.run.name or str(path))
    file_name = "report.html" if len(results) == 1 else "comparison.html"
    report = shown.to_html(output or folders[0] / file_name)
    console.print(f"report {report}", soft_wrap=True, highlight=False)
    if browse:
        typer.launch(report.resolve().as_uri())


def _are_many(folders: list[Path]) -> bool:
    """Whether a comparison would be crowded, or the records are those of studies."""
    if len(folders) != 1 or (folders[0] / "record.json").exists():
        return False
    below = list(folders[0].glob("*/record.json"))
    deeper = not below and any(folders[0].rglob("record.json"))
    return deeper or len(below) > _MOST_COMPARED


def _show_gallery(folders: list[Path], output: Path | None, browse: bool) -> None:
    from theodolite.cli.failures import CommandError
    from theodolite.report import find_exhibits, write_gallery

    if len(folders) != 1:
        raise CommandError(f"--gallery: expected one folder, got {len(folders)}")
    exhibits = find_exhibits(folders[0])
    page = write_gallery(exhibits, output or folders[0] / "gallery.html")
    damaged = sum(bool(exhibit.damage) for exhibit in exhibits)
    note = f", {damaged} of them damaged" if damaged else ""
    typer.echo(f"gallery of {len(exhibits)} records{note}: {page}")
    if browse:
        typer.launch(page.resolve().as_uri())
