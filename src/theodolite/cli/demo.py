"""``theodolite demo``: the main job on embedded data, in about twenty seconds."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from theodolite.cli.terminal import (
    open_page,
    print_json,
    progress_bar,
    require_writable,
    run_document,
)
from theodolite.records import free_folder

if TYPE_CHECKING:
    from theodolite.cli.story import Story

__all__ = ["demo"]


def demo(
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Folder for records and reports; a new one if it holds some."
        ),
    ] = Path("runs/demo"),
    steps: Annotated[int, typer.Option(min=2, help="Training steps of each network.")] = 600,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, labels and batches.")] = 0,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that train beside each other; as many as cores."),
    ] = None,
    browse: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the report in a browser.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Watch the same network learn true and shuffled labels, then a small CNN.

    Uses scikit-learn's 8x8 digits: no download. Prints tables, checks the story that the numbers
    should tell, and ends with three sentences and the page that shows their evidence, offline.
    """
    from theodolite.cli.story import StorySettings, tell_story

    require_writable(output)
    folder = free_folder(output, below=True)
    with progress_bar(shown=not json_) as show:
        settings = StorySettings(steps=steps, seed=seed)
        story = tell_story(settings, folder, show, workers=workers)
    if json_:
        print_json(_document(story, folder))
    else:
        _print(story, folder)
    if browse:
        open_page(story.reports[0])


def _document(story: "Story", folder: Path) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "reports": [str(report) for report in story.reports],
        "accuracies": {
            name: {"train": train, "test": test} for name, (train, test) in story.accuracies.items()
        },
        "checks": [vars(check) for check in story.checks],
        "histories": [run_document(history.run, {}) for history in story.histories.values()],
    }


def _print(story: "Story", folder: Path) -> None:
    for name, (train, test) in story.accuracies.items():
        typer.secho(
            f"{name}: training accuracy {train:.3f} (own labels), test accuracy {test:.3f}",
            bold=True,
        )
        typer.echo(f"{story.histories[name].summary()}\n")
    for check in story.checks:
        verdict = "holds" if check.holds else "does not hold"
        color = typer.colors.GREEN if check.holds else typer.colors.RED
        typer.echo(f"{typer.style(verdict, fg=color)}: {check.text} ({check.numbers}).")
    typer.echo(f"\nrecords {folder}\npage of the CNN {story.reports[1]}\n")
    for answer in story.answers:
        typer.secho(answer.text, bold=True)
        typer.echo(f"    {answer.certainty}: {answer.why}")
    typer.echo(f"page {story.reports[0]}")
