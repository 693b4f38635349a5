"""``theodolite demo``: the main job on embedded data, in about twenty seconds."""

import time
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
from theodolite.records import free_folder, made_folder

if TYPE_CHECKING:
    from theodolite.cli.story import Story


def demo(
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Folder to write; a number is added if it holds a run."
        ),
    ] = Path("runs/demo"),
    steps: Annotated[int, typer.Option(min=2, help="Training steps of each network.")] = 250,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Seed of weights, labels and batches.")
    ] = 0,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Networks trained at the same time. [default: one per core]"),
    ] = None,
    browse: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the report in a browser.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Train three small networks and measure them layer by layer: two learn, one memorises.

    The networks are an MLP with true labels, an MLP with random labels, and a CNN with true labels.
    The data are scikit-learn's 8x8 digits: no download. Prints how much of the fit (accuracy above
    chance) carries over to held-out examples, the numbers of every layer, what to notice, and the
    command to try next.
    """
    from theodolite.cli.story import StorySettings, tell_story

    require_writable(output)
    folder = free_folder(output, below=True)
    began = time.perf_counter()
    with made_folder(folder), progress_bar(shown=not json_) as show:
        settings = StorySettings(steps=steps, seed=seed)
        story = tell_story(settings, folder, show, workers=workers)
    if json_:
        print_json(_document(story, folder))
    else:
        _print(story, folder, time.perf_counter() - began)
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


_NAMES = {"true labels": "MLP, true labels", "random labels": "MLP, random labels"}
_SHOWN = ("true labels", "random labels")  # networks whose tables are printed
_RANDOM_NOTE = """\
Probes are fitted to random labels and judged on held-out examples with true labels. All layers
share one draw of random labels, so all probes may be some points above or below chance. CKA to
truth is CKA to the true labels. Misalignment is undefined in fc4, which has too few filters."""


def _print(story: "Story", folder: Path, seconds: float) -> None:
    from theodolite.advice import Measured, carry_over
    from theodolite.advice.sentences import percent, verdict_words
    from theodolite.records import layer_table

    train, test = story.sizes
    counts = story.histories["true labels"].run.head.contents["data"]["class_counts"]
    chance = max(counts) / sum(counts)
    typer.secho(
        f"Theodolite demo: 8x8 digits, {train} training examples, three small networks, "
        f"{seconds:.0f} s\n",
        bold=True,
    )
    verdict = f"verdict ({test} held-out examples; fit: accuracy above chance)"
    typer.echo(f"{'network':<20}{'train':>8}{'test':>8}   {verdict}")
    for name, shares in story.accuracies.items():
        found = carry_over(
            *(
                Measured("accuracy", share, chance, n)
                for share, n in zip(shares, story.sizes, strict=True)
            )
        )
        numbers = "".join(f"{percent(share):>8}" for share in shares)
        typer.echo(
            f"{_NAMES.get(name, f'{name}, true labels'):<20}{numbers}   {verdict_words(found)}"
        )
    for name in _SHOWN:
        note = (
            " (chance level in brackets; report.html explains each column)"
            if name == _SHOWN[0]
            else ""
        )
        typer.secho(f"\n{_NAMES[name]}, after training{note}", bold=True)
        history = story.histories[name]
        typer.echo("\n".join(layer_table(history.run.steps[-1])[0]))
    typer.echo(_RANDOM_NOTE)
    typer.secho("\nWhat to notice", bold=True)
    for number, check in enumerate(story.checks, start=1):
        typer.echo(f"  {number}. {check}")
    typer.echo(f"""
Report   {story.reports[0]} and {story.reports[1].name}   (open in a browser)
Records  {folder}   (th.load("{folder / "true-labels"}"))
Next     theodolite survey your_model.py:build your_data.npz --held-out""")
