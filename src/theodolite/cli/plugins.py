"""Sub-commands that other packages add, and what to install where one is missing."""

from importlib.metadata import entry_points
from typing import Any

import typer

from theodolite.cli.failures import CommandError

__all__ = ["add_commands"]

_GROUP = "theodolite.commands"  # entry points: name -> function that adds it to an application
_PACKAGE = "theodolite-papers"
_LABORATORY = {
    "study": "The papers' experiments, run and judged.",
    "sweep": "A study at every point of its space, here or on Ray.",
    "train": "Train a network as a TOML file says.",
}


def add_commands(app: typer.Typer) -> None:
    """Add the commands of installed packages, and for each missing one its answer."""
    found = {entry.name: entry for entry in entry_points(group=_GROUP)}
    for name, help_text in _LABORATORY.items():
        if name not in found:
            _add_missing(app, name, help_text)
    for entry in sorted(found.values(), key=lambda entry: entry.name):
        entry.load()(app)


def _add_missing(app: typer.Typer, name: str, help_text: str) -> None:
    @app.command(
        name,
        short_help=f"{help_text} (needs {_PACKAGE})",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
        add_help_option=False,
    )
    def missing(_context: typer.Context) -> Any:
        raise CommandError(
            f"theodolite {name} is part of {_PACKAGE}: install it with pip install {_PACKAGE}"
        )
