"""``theodolite demo``: the main job on embedded data, in about a minute."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from theodolite.cli.digits_story import Story

__all__ = ["demo"]


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for records and reports.")
    ] = Path("runs/demo"),
    steps: Annotated[int, typer.Option(min=2, help="Training steps of each network.")] = 600,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, labels and batches.")] = 0,
    browse: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the report in a browser.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Watch the same network learn true and shuffled labels, then a small CNN.

    Uses scikit-learn's 8x8 digits: no download. Prints a table, checks the story that the numbers
    should tell, and writes reports that work offline.
    """
    from theodolite.cli.digits_story import StorySettings, tell_story
    from theodolite.cli.progress import progress_bar
    from theodolite.cli.tables import print_json

    with progress_bar(shown=not json_) as show:
        story = tell_story(StorySettings(steps=steps, seed=seed), output, show)
    if json_:
        print_json(_document(story, output))
    else:
        _print(story, output)
    if browse:
        typer.launch(story.reports[0].resolve().as_uri())


def _document(story: "Story", folder: Path) -> dict[str, Any]:
    from theodolite.cli.tables import run_document

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
    from rich.console import Console

    from theodolite.cli.tables import print_headlines

    console = Console(highlight=False)
    for name, (train, test) in story.accuracies.items():
        title = f"{name}: training accuracy {train:.3f} (own labels), test accuracy {test:.3f}"
        print_headlines(console, story.histories[name].run.steps[-1], title)
    for check in story.checks:
        verdict = "[green]holds[/]" if check.holds else "[red]does not hold[/]"
        console.print(f"{verdict}: {check.text} ({check.numbers}).")
    console.print(f"\nreport {story.reports[0]}", soft_wrap=True)
    console.print(f"report of the CNN {story.reports[1]}\nrecords {folder}", soft_wrap=True)
