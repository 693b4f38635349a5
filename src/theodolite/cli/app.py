"""The sub-commands of ``theodolite``, and what they have in common."""

from typing import Annotated

import typer

from theodolite._version import __version__
from theodolite.cli.demo import demo
from theodolite.cli.failures import PoliteGroup
from theodolite.cli.plugins import add_commands
from theodolite.cli.survey import EXAMPLES, survey
from theodolite.cli.view import view

__all__ = ["app", "main"]

_EPILOG = (
    "Exit codes: 0 done, 1 an error inside theodolite, 2 something to correct in the command, "
    "the model or the data."
)

app = typer.Typer(
    name="theodolite",
    cls=PoliteGroup,
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

    Five angles: between features and task, weights and data, kernels and targets, tangent kernels
    and labels, gradients and each other.
    """


app.command("demo", short_help="Train, watch and compare networks on embedded digits.")(demo)
app.command("survey", short_help="Measure a model on data; write a report.", epilog=EXAMPLES)(
    survey
)
app.command("view", short_help="Show the report of saved runs.")(view)

add_commands(app)


def main() -> None:
    """Run the command line."""
    app(prog_name="theodolite")
