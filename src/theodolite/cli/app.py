"""The sub-commands of ``theodolite``: its own, and those that other packages add."""

from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

from theodolite._version import __version__
from theodolite.cli.demo import demo
from theodolite.cli.survey import EXAMPLES, survey
from theodolite.cli.terminal import CommandError, OneSentenceErrors
from theodolite.cli.transfer import EXAMPLES as TRANSFERS
from theodolite.cli.transfer import transfer
from theodolite.cli.view import view

_EPILOG = (
    "Exit codes: 0 done, 1 an error inside theodolite, 2 something to correct in the command, "
    "the model or the data, 3 a condition of --fail-on holds, 130 stopped by Ctrl-C."
)
_GROUP = "theodolite.commands"  # entry points: name -> function that adds it to an application
_PACKAGE = "theodolite-papers"
_LABORATORY = {
    "study": "Run and judge studies: experiments of five papers.",
    "sweep": "Run a paper's experiment for all combinations of settings, here or on Ray.",
    "train": "Train a network from a TOML file.",
}

app = typer.Typer(
    name="theodolite",
    cls=OneSentenceErrors,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_EPILOG,
)


def _print_version(asked: bool) -> bool:
    if asked:
        typer.echo(f"theodolite {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def _common(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
    _traceback: Annotated[
        bool,
        typer.Option("--traceback", help="Show where in the code an error arose."),
    ] = False,
) -> None:
    """Measure alignment inside neural networks, layer by layer.

    Begin with "theodolite demo": it trains and measures three small networks on embedded data.
    "theodolite survey" measures your model.
    """


app.command("demo", short_help="Train, watch and compare networks on embedded digits.")(demo)
app.command("survey", short_help="Measure a model on data; write a report.", epilog=EXAMPLES)(
    survey
)
app.command(
    "transfer", short_help="Rank models for a new task; forecast fine-tuning.", epilog=TRANSFERS
)(transfer)
app.command("view", short_help="Show the report of saved runs.")(view)


def _add_commands() -> None:
    """Add the commands of installed packages, and a message for each missing one."""
    found = {entry.name: entry for entry in entry_points(group=_GROUP)}
    for name, help_text in _LABORATORY.items():
        if name not in found:
            _add_missing(name, help_text)
    for entry in sorted(found.values(), key=lambda entry: entry.name):
        entry.load()(app)


def _add_missing(name: str, help_text: str) -> None:
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


_add_commands()


def main() -> None:
    """Run the command line."""
    app(prog_name="theodolite")
