"""Common parts of all commands: errors in one sentence, progress, results, pages.

This module imports nothing large at the top, so that ``--help`` answers at once.
"""

import io
import json
import math
import os
import sys
import webbrowser
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import typer
import typer.core

from theodolite.errors import TheodoliteError
from theodolite.records import MEMORISED, Answer, Run, is_there

INTERNAL, USER, CONDITION, INTERRUPTED = 1, 2, 3, 130
CONDITIONS = ("memorising", "undecided")
Show = Callable[[float, str], None]
SCALES = (
    "Scaling of the inputs: auto (unit_interval for pixels), none, unit_interval (pixels to "
    "[0, 1]), symmetric (to [-1, 1]), pixels or images (unit variance, and zero mean at every "
    "pixel or in every image) or unit_rows (examples of length 1)."
)


class CommandError(TheodoliteError, ValueError):
    """An argument of the command line that cannot be used; the message says what to do."""


class OneSentenceErrors(typer.core.TyperGroup):
    """A group of commands that prints an error as one sentence.

    Exit code 2: errors that this library raises on purpose, and files that cannot be read or
    written; the user can correct them. Exit code 1: any other error, a defect. Ctrl-C: 130.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options of all commands; ``--help`` prints here."""
        try:
            return super().parse_args(ctx, args)
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            _fail(error)

    def invoke(self, ctx: Any) -> Any:
        """Run the sub-command."""
        for stream in (sys.stdout, sys.stderr):  # a log may not have every letter, such as a minus
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            _write_error("stopped; finished files are kept")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            if ctx.params.get("_traceback") or _known_to_typer(error):
                raise
            if isinstance(error, BrokenPipeError):  # a reader like head has stopped: typer ends
                raise
            _fail(error)


def _known_to_typer(error: Exception) -> bool:
    """Exit, abort and usage errors; the module differs between versions of typer."""
    return type(error).__module__.split(".")[0] in ("typer", "click")


def _fail(error: Exception) -> NoReturn:
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, (TheodoliteError, OSError)):
        _write_error(f"error: {text}", fg=typer.colors.RED)
        raise typer.Exit(USER) from error
    _write_error(
        f"internal error: {type(error).__name__}: {text}; run 'theodolite --traceback ...' to see "
        "where, and report it",
        fg=typer.colors.RED,
    )
    raise typer.Exit(INTERNAL) from error


def _write_error(text: str, fg: str | None = None) -> None:
    """Write to standard error; a closed log or a full disk does not end the command."""
    with suppress(OSError, ValueError):
        typer.secho(text, fg=fg, err=True)


def require_writable(folder: Path) -> None:
    """Check before any work that the folder exists or can be created.

    Raises:
        CommandError: If it cannot be written to.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if is_there(path))
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise CommandError(
            f"--output: {folder} cannot be written: {existing} is not a folder, or is protected; "
            "name another folder"
        )


class Files:
    """The record and the report of a result; a full disk does not lose its numbers.

    Attributes:
        folder: folder of the record, or None if it could not be written.
        report: the page, or None if it could not be written.
        problem: the first reason, or "".
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.report: Path | None = None
        self.problem = ""

    def write(self, call: Callable[[], Path]) -> Path | None:
        """The path that the call has written, or None."""
        try:
            return call()
        except (TheodoliteError, OSError) as error:
            self.problem = self.problem or str(error)
            return None

    def document(self) -> dict[str, str | None]:
        """The entries of ``--json`` about them."""
        named = {"folder": self.folder, "report": self.report}
        paths = {name: None if path is None else str(path) for name, path in named.items()}
        return paths | ({"problem": self.problem} if self.problem else {})

    def lines(self) -> str:
        """The lines of the terminal about them."""
        return f"Report   {self.report or 'not written'}\nRecord   {self.folder or 'not written'}"

    def print_problem(self) -> None:
        """Print the problem on standard error, after the numbers."""
        if self.problem:
            _write_error(f"error: {self.problem}", fg=typer.colors.RED)

    def require_written(self) -> None:
        """End with exit code 2 if something could not be written."""
        if self.problem:
            raise typer.Exit(USER)


@contextmanager
def progress_bar(*, shown: bool) -> Iterator[Show]:
    """A function of (finished share, text); it does nothing unless ``shown``.

    It writes to standard error, so that standard output holds only results. A terminal gets a bar
    with the time left. A file or a pipe gets one line for each text.
    """
    if not shown:
        yield lambda _fraction, _text: None
    elif hasattr(sys.stderr, "isatty") and sys.stderr.isatty():
        with _drawn_bar() as show:
            yield show
    else:
        yield _line_per_text()


def _line_per_text() -> Show:
    printed = {""}

    def show(_fraction: float, text: str) -> None:
        if text not in printed:
            printed.add(text)
            _write_error(text)

    return show


@contextmanager
def _drawn_bar() -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    text = TextColumn("{task.description}", markup=False)
    columns = (BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(), text)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda done, what: bar.update(task, completed=done, description=what)


def open_page(page: Path) -> None:
    """Show a page in a browser, if there is one."""
    screens = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    if sys.platform.startswith("linux") and not any(os.environ.get(name) for name in screens):
        return
    webbrowser.open(page.resolve().as_uri())  # returns False without a browser


def require_conditions(names: Sequence[str]) -> None:
    """Refuse unknown conditions of ``--fail-on`` before anything is measured."""
    unknown = [name for name in names if name not in CONDITIONS]
    if unknown:
        raise CommandError(f"--fail-on: expected memorising or undecided, got {unknown[0]!r}")


def fail_on(conditions: Sequence[str], answers: Sequence[Answer]) -> None:
    """End with exit code 3 if the answer about the task meets a condition.

    Args:
        conditions: "memorising": most of the fit does not carry over to held-out examples;
            "undecided": the survey cannot decide, or has no answer about the task.
        answers: answers of the survey.
    """
    task = next((answer for answer in answers if answer.question == "task"), None)
    undecided = task is None or task.certainty == "undecided"
    met = {"undecided": undecided, "memorising": task is not None and task.finding in MEMORISED}
    for name in conditions:
        if met[name]:
            found = "the survey has no answer about the task"
            if task is not None:
                word = task.finding if name == "memorising" else "undecided"
                found = f'the first answer is "{word}"'
            _write_error(f"--fail-on {name}: {found}", fg=typer.colors.RED)
            raise typer.Exit(CONDITION)


def run_document(run: Run, more: Mapping[str, Any]) -> dict[str, Any]:
    """The document of ``--json`` about a run: everything in its records except curves."""
    head = run.head.contents
    return {
        "name": run.name,
        "kind": head["kind"],
        **more,
        "data": head.get("data"),
        "config": head.get("config"),
        "layers": head.get("layers"),
        "steps": [
            {
                key: step.contents.get(key)
                for key in ("step", "answers", "rows", "skipped", "warnings")
            }
            for step in run.steps
        ],
    }


def for_command(result: Any) -> Any:
    """A result to show: the advice of a survey names options of the command."""
    from theodolite.advice import Interface, worded_for
    from theodolite.surveys import Survey

    if not isinstance(result, Survey):
        return result
    return replace(result, record=worded_for(result.record, Interface.COMMAND))


def print_json(document: Any) -> None:
    """Strict JSON on standard output: nan is null, infinity is text.

    Other letters than those of English are escaped, since a log may not have them.
    """
    typer.echo(json.dumps(_strict(document), indent=1, allow_nan=False))


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_strict(item) for item in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def keyword_arguments(flag: str, pairs: Sequence[str]) -> dict[str, Any]:
    """``NAME=VALUE`` pairs as keyword arguments; values are JSON, other text is kept.

    Args:
        flag: the option, for the message.
        pairs: the pairs on the command line.

    Raises:
        CommandError: If there is no name.

    Examples:
        >>> keyword_arguments("--arg", ["sizes=[64, 10]", "activation=tanh"])
        {'sizes': [64, 10], 'activation': 'tanh'}
    """
    arguments: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name.isidentifier():
            raise CommandError(f"{flag}: expected NAME=VALUE, e.g. num_classes=10, got {pair!r}")
        try:
            arguments[name] = json.loads(text)
        except ValueError:
            arguments[name] = text
    return arguments
