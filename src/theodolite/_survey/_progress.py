"""How far a survey is: a bar on the terminal, or the user's own function."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Progress", "Watch", "watched"]

Watch = Callable[[float, str], None]
Progress = bool | Watch

# Rough cost of a family in units of one layer's eigendecomposition, before its first layer.
_START = {"covariance": 4.0, "gradient": 6.0, "tangent": 12.0}


@contextmanager
def watched(
    progress: Progress, families: tuple[str, ...], layers: int
) -> Iterator[Callable[[str, str], None]]:
    """A function of (family, text) to call before each piece of work."""
    total = sum(layers * (1.0 + _START.get(family, 1.0)) for family in families)
    with _display(progress) as show:
        yield _counter(show, total, layers)


def _counter(show: Watch, total: float, layers: int) -> Callable[[str, str], None]:
    done = 0.0
    seen: set[str] = set()

    def report(family: str, text: str) -> None:
        nonlocal done
        show(min(done / total, 1.0), f"{family} {text}".strip())
        if text:
            done += 1.0
        elif family not in seen:
            done += layers * _START.get(family, 1.0)
        seen.add(family)

    return report


@contextmanager
def _display(progress: Progress) -> Iterator[Watch]:
    if callable(progress):
        yield progress
    elif not progress:
        yield lambda _fraction, _text: None
    else:
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        text = TextColumn("{task.description}")
        with Bar(text, BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()) as bar:
            task = bar.add_task("features", total=1.0)
            yield lambda done, what: bar.update(task, completed=done, description=what)
            bar.update(task, completed=1.0, description="done")
