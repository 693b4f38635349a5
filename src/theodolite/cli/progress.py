"""A progress bar on standard error, so that standard output holds results alone."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(*, shown: bool) -> Iterator[Callable[[float, str], None]]:
    """A function of (fraction done, what is being done); it does nothing unless ``shown``.

    Where standard error is no terminal there is nothing to redraw, and nothing is written.
    """
    if not shown or not sys.stderr.isatty():
        yield lambda _fraction, _text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.description}", markup=False)
    columns = (BarColumn(), TimeElapsedColumn(), text)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda done, what: bar.update(task, completed=done, description=what)
