"""Errors on the command line: one sentence and an exit code, no traceback unless asked for."""

from typing import Any, NoReturn

import typer
import typer.core

from theodolite.errors import TheodoliteError

__all__ = ["CommandError", "PoliteGroup"]

INTERNAL, USER = 1, 2


class CommandError(TheodoliteError, ValueError):
    """An argument of the command line that cannot be used; the message says what to do."""


class PoliteGroup(typer.core.TyperGroup):
    """A group of commands that answers errors with a sentence.

    What this library raises on purpose, and files that cannot be read or written, are the user's
    to correct: exit code 2. Anything else is a defect: exit code 1.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the sub-command."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            if ctx.params.get("_traceback") or _known_to_typer(error):
                raise
            _fail(error)


def _known_to_typer(error: Exception) -> bool:
    """Exit, abort and usage errors; the module differs between versions of typer."""
    return type(error).__module__.split(".")[0] in ("typer", "click")


def _fail(error: Exception) -> NoReturn:
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, (TheodoliteError, OSError)):
        typer.secho(f"error: {text}", fg=typer.colors.RED, err=True)
        raise typer.Exit(USER) from error
    typer.secho(
        f"internal error: {type(error).__name__}: {text}; run 'theodolite --traceback ...' to see "
        "where, and report it",
        fg=typer.colors.RED,
        err=True,
    )
    raise typer.Exit(INTERNAL) from error
