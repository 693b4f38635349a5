"""``theodolite view DIR...``: the report of a saved run, or of several side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from theodolite.cli.terminal import (
    CommandError,
    for_command,
    open_page,
    print_json,
    run_document,
)
from theodolite.errors import RecordError
from theodolite.records import is_there, runs_in

if TYPE_CHECKING:
    from theodolite.surveys import History, Survey, Transfer


_MOST_COMPARED = 12


def view(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR",
            help="Folders of saved surveys or monitored runs, or a folder of such folders; several "
            "are compared. Or the folder of one ranking of models.",
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
    """Print the headline numbers of saved runs, write their report and open it."""
    if json_:
        found = _saved_results(folders).items()
        documents = [_document(path, result) for path, result in found]
        print_json(documents[0] if len(documents) == 1 else documents)
        return
    page = _write_report(folders, output)
    if browse:
        open_page(page)


def _write_report(folders: Sequence[Path], output: Path | None) -> Path:
    from theodolite.surveys import compare

    found = {path: for_command(result) for path, result in _saved_results(folders).items()}
    results = list(found.values())
    if len({type(result) for result in results}) > 1:
        kinds = ", ".join(f"{path} ({type(result).__name__})" for path, result in found.items())
        raise CommandError(
            f"DIR: expected results of one kind to compare, got {kinds}; name surveys only or "
            "histories only"
        )
    if len(results) > _MOST_COMPARED:
        raise CommandError(
            f"DIR: expected at most {_MOST_COMPARED} results to compare, got {len(results)}; name "
            "some of them, or run theodolite study gallery (of theodolite-papers)"
        )
    for path, result in found.items():
        typer.echo(f"{path}\n{result.summary()}\n")
    shown = results[0] if len(results) == 1 else compare(*results)
    file_name = "report.html" if len(results) == 1 else "comparison.html"
    page = shown.to_html(output or folders[0] / file_name)
    typer.echo(f"Report   {page}")
    return page


def _document(path: Path, result: "Survey | History | Transfer") -> Any:
    where: dict[str, Any] = {"folder": str(path)}
    if not hasattr(result, "run"):
        where["no_digest"] = result.record.unverified
        return where | {"contents": dict(result.record.contents)}
    records = (result.run.head, *result.run.steps)
    where["no_digest"] = any(record.unverified for record in records)
    return run_document(result.run, where)


def _saved_results(folders: Sequence[Path]) -> "dict[Path, Survey | History | Transfer]":
    """Load every run; a folder without a record means the runs directly below it.

    Raises:
        RecordError: If a record is missing or damaged, or a history has no step yet.
    """
    from theodolite.surveys import load

    results = {path: load(path) for folder in folders for path in _runs(folder)}
    for path, result in results.items():
        if hasattr(result, "run") and not result.run.steps:
            raise RecordError(
                f"{path}: expected a history with at least one step, got none; wait until the "
                "monitor has measured"
            )
    return results


def _runs(folder: Path) -> list[Path]:
    if is_there(folder / "record.json"):
        return [folder]
    return runs_in(folder) or [folder]  # loading it raises the right error
