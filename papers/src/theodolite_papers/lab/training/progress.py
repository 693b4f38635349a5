"""A progress bar on the terminal that never waits for the device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress_bar"]

_UPDATES = 200


@contextmanager
def progress_bar(total: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """A function that takes the number of finished steps; it does nothing unless ``shown``."""
    if not shown:
        yield lambda step: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = ("training", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    interval = max(1, total // _UPDATES)
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("training", total=total)

        def update(step: int) -> None:
            if step % interval == 0 or step == total:
                bar.update(task, completed=step)

        yield update
