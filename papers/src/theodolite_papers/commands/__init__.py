"""Sub-commands that this package adds to ``theodolite``: study, sweep, train."""

import typer

from theodolite_papers.commands.study import study_app
from theodolite_papers.commands.sweep import sweep
from theodolite_papers.commands.train import train
from theodolite_papers.commands.zoo import zoo_app

__all__ = ["add_study", "add_sweep", "add_train"]


def add_study(app: typer.Typer) -> None:
    """``theodolite study list | run | check | ledger | zoo``."""
    zoo_help = "Train and measure the alignment zoo, 602 small networks."
    study_app.add_typer(zoo_app, name="zoo", help=zoo_help)
    app.add_typer(
        study_app, name="study", help="Run and judge studies: experiments of five papers."
    )


def add_sweep(app: typer.Typer) -> None:
    """``theodolite sweep STUDY``."""
    short_help = "Run a paper's experiment for all combinations of settings, here or on Ray."
    app.command("sweep", short_help=short_help)(sweep)


def add_train(app: typer.Typer) -> None:
    """``theodolite train RECIPE``."""
    app.command("train", short_help="Train a network from a TOML file.")(train)
