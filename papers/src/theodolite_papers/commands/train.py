"""``theodolite train RECIPE``: train a network from a TOML file."""

import math
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["train"]


def train(
    recipe: Annotated[
        Path,
        typer.Argument(
            metavar="RECIPE",
            help="TOML file with the sections [model], [data] and [recipe].",
            show_default=False,
        ),
    ],
    device: Annotated[
        str, typer.Option(help="Device to train on: cpu, cuda, cuda:1 or mps.")
    ] = "cpu",
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="File for the training state; a run that finds it resumes from it."),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="File to write the trained weights to.")] = None,
    json_: Annotated[
        bool, typer.Option("--json", help="Print the whole log as JSON, and no progress bar.")
    ] = False,
) -> None:
    """Train a network and print how well it fits and generalises."""
    import torch

    from theodolite.cli.terminal import CommandError, print_json
    from theodolite_papers.lab.training.experiments import read_experiment, run_experiment

    for option, path in (("--save", save), ("--checkpoint", checkpoint)):
        if path is not None and path.is_dir():
            raise CommandError(
                f"{option}: expected a file, got the folder {path}; name one in it, e.g. "
                f"{path / 'weights.pt'}"
            )
    experiment = read_experiment(recipe)
    model, log = run_experiment(
        experiment, device=device, checkpoint=checkpoint, progress=not json_
    )
    if save is not None:
        save.parent.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), save)
    if json_:
        print_json({"recipe": str(recipe), **log.to_dict()})
        return
    end = "" if log.stopped == "length" else f", stopped by its rule on the {log.stopped}"
    typer.echo(f"{experiment.model} on {experiment.data}: {log.steps:,} steps{end}")
    for name, value in (("training", log.final.train), ("test", log.final.test)):
        if value is not None:
            right = "" if math.isnan(value.accuracy) else f"  accuracy {100 * value.accuracy:.1f} %"
            typer.echo(f"{name:8s}  loss {value.loss:.4f}{right}")
