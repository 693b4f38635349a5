"""``theodolite study zoo run | gather``: the networks of the alignment zoo."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["zoo_app"]

zoo_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Shards = Annotated[Path, typer.Option(help="Folder of the measurements, one file per network.")]
_SHARDS = Path("zoo-shards")


@zoo_app.command("run")
def run(
    half: Annotated[
        str,
        typer.Argument(
            metavar="HALF", help="pilot (to choose hypotheses) or judged (to test them)."
        ),
    ],
    shards: Shards = _SHARDS,
    workers: Annotated[int, typer.Option(min=1, help="Number of processes, one thread each.")] = 1,
    ray: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster, such as auto or ray://HOST:10001.")
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            help="Start no network after this many seconds. [default: no limit]",
            show_default=False,
        ),
    ] = float("inf"),
    groups: Annotated[
        int | None, typer.Option(min=1, help="Largest number of groups of networks. [default: all]")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Largest number of training steps. [default: that of the study]"),
    ] = None,
) -> None:
    """Train and measure the networks of the pilot or the judged half. Finished ones are skipped."""
    import time

    from theodolite.checks import require_choice
    from theodolite.sweeps import RayResources
    from theodolite_papers.alignment_zoo.design import HALVES, networks
    from theodolite_papers.alignment_zoo.running import run_networks
    from theodolite_papers.alignment_zoo.training import LIMIT

    require_choice(HALVES, half=half)
    chosen = [one for one in networks(half) if groups is None or one.group < groups]
    began = time.monotonic()

    def report(share: float, text: str) -> None:
        typer.echo(f"{time.monotonic() - began:7.1f} s {share:6.1%} {text}")

    failures = run_networks(
        chosen, shards, workers=workers, ray=None if ray is None else RayResources(address=ray),
        limit=limit or LIMIT, seconds=seconds, report=report,
    )  # fmt: skip
    for failure in failures:
        typer.echo(f"{failure.job.name}: {failure.reason}", err=True)
    typer.echo(f"{len(chosen) - len(failures)} of {len(chosen)} networks in {shards}")


@zoo_app.command("gather")
def gather_shards(
    shards: Shards = _SHARDS,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder to write the tables to.")
    ] = Path("zoo"),
) -> None:
    """Join the measurements of all networks into one file."""
    from theodolite_papers.alignment_zoo.running import gather
    from theodolite_papers.alignment_zoo.schema import write_schema
    from theodolite_papers.alignment_zoo.tables import save

    found = gather(shards)
    typer.echo(f"{len(found.networks)} networks in {save(found, output)}")
    typer.echo(f"what the columns hold in {write_schema(output)}")
