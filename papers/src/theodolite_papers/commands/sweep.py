"""``theodolite sweep STUDY``: run a study for every combination of its settings."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from theodolite_papers.commands.study import (
    Json,
    Results,
    Size,
    StudyName,
    resumable,
    seeds_from,
    show_verdicts,
    study_at,
)

if TYPE_CHECKING:
    from theodolite_papers.ledger import Space
    from theodolite_papers.ledger.tracking import MLflowSweep

__all__ = ["sweep"]


def sweep(
    study: StudyName,
    size: Size = None,
    results: Results = Path("study-results"),
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=V1,V2",
            help="Values of one setting, instead of the study's own; may be repeated.",
        ),
    ] = None,
    seeds: Annotated[
        str, typer.Option(help="Seeds, such as 1,2,7 or 1-5. [default: those of the study]")
    ] = "",
    engine: Annotated[
        str, typer.Option(help="ray, processes, or auto (Ray if it is installed).")
    ] = "auto",
    address: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster, such as auto or ray://HOST:10001.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Number of runs at the same time on this machine.")
    ] = 2,
    cpus: Annotated[float, typer.Option(min=0.0, help="Cores per run (Ray).")] = 1.0,
    gpus: Annotated[float, typer.Option(min=0.0, help="GPUs per run (Ray).")] = 0.0,
    device: Annotated[str, typer.Option(help="Device to train on: cpu or cuda.")] = "cpu",
    track: Annotated[
        bool,
        typer.Option(
            "--track",
            help="Log to MLflow: one run for the sweep with a gallery of its records, and one "
            "nested run per combination with its settings and numbers.",
        ),
    ] = False,
    tracking_uri: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="MLflow server or database to log to; implies --track. [default: "
            "MLFLOW_TRACKING_URI, or sqlite:///RESULTS/mlflow.db]",
            show_default=False,
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Run a study (an experiment of a paper) for every combination of its settings.

    The sweep runs on this machine, or on a Ray cluster if you pass its address. Runs with a record
    are skipped, so the same command resumes an interrupted sweep.
    """
    from theodolite.cli.data import resolve_device
    from theodolite.cli.terminal import progress_bar
    from theodolite.sweeps import RayResources
    from theodolite_papers.ledger import SweepSettings, sweep_study

    chosen = SweepSettings(
        engine=engine,
        resources=RayResources(address, workers, cpus, gpus),
        device=device,
        seeds=seeds_from(seeds),
        space=_space(settings or []),
    )
    found, size = study_at(study, size)
    found.config_at(size)  # before an empty run is made
    if address is None:  # machines of a cluster may have a GPU although this one has none
        resolve_device(device)
    with resumable(), ExitStack() as stack:
        tracker = None
        if track or tracking_uri:
            about = {"study": study, "size": size, "device": device}
            tracker = stack.enter_context(_tracker(tracking_uri, results, about))
        report = stack.enter_context(progress_bar(shown=not json_))
        runs = sweep_study(
            found, size, results=results, settings=chosen, tracker=tracker, report=report
        )
    show_verdicts(found, size, runs, json_, made=results)
    if chosen.space is not None:
        typer.echo(
            "claims are judged on the study's own settings alone; to see the other runs: "
            f"theodolite study gallery {results}",
            err=True,
        )
    if tracker is not None:
        from theodolite.integrations.mlflow import without_password

        place = without_password(tracker.tracking_uri)
        typer.echo(f"tracked in {place}, run {tracker.run_id}", err=True)


def _tracker(uri: str | None, results: Path, about: dict[str, str]) -> "MLflowSweep":
    from theodolite.cli.terminal import CommandError

    try:
        from theodolite.integrations.mlflow import default_tracking_uri
        from theodolite_papers.ledger.tracking import MLflowSweep

        place = uri or default_tracking_uri(results)
        key = f"{about['study']} {about['size']} {results.resolve()}"
        return MLflowSweep(about["study"], place, key=key, parameters=about)
    except ImportError as error:
        raise CommandError(f"--track: {error}") from error


def _space(settings: list[str]) -> "Space | None":
    """``["depth=2,4", "width=8"]`` as a grid; values are read as JSON if possible."""
    from theodolite.cli.terminal import CommandError
    from theodolite_papers.ledger import Space

    grid: dict[str, list[Any]] = {}
    for text in settings:
        name, equals, values = text.partition("=")
        if not name or not equals or not values:
            raise CommandError(f"--set: expected NAME=VALUE or NAME=V1,V2, got {text!r}")
        grid[name] = [_value(value) for value in values.split(",")]
    return Space(grid) if grid else None


def _value(text: str) -> Any:
    import json

    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
