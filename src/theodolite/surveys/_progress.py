"""How far a survey is and how long it will take: a bar on the terminal, or the user's function."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

from theodolite.surveys._costs import Costs

__all__ = ["Progress", "Steps", "Watch", "time_left", "watched"]

Watch = Callable[[float, str], None]
Progress = bool | Watch

_TELLING = 0.01
_MINUTE = 60.0
_HOUR = 3600.0


@contextmanager
def watched(progress: Progress, costs: Costs) -> Iterator["Steps"]:
    """What to tell before each piece of work, and within long ones."""
    with _display(progress) as show:
        yield Steps(show, costs)


class Steps:
    """Adds up the predicted costs of steps as they begin."""

    def __init__(self, show: Watch, costs: Costs) -> None:
        self._show = show
        self._waiting = {key: list(steps) for key, steps in costs.items()}
        self._total = sum(map(sum, costs.values()))
        self._left = self._total
        self._running = 0.0
        self._family = self._layer = ""
        self._start = perf_counter()

    def begin(self, family: str, layer: str) -> None:
        """A step begins, so the one before is done."""
        if self._family not in ("", family):  # steps that a family left out will not come
            missing = [key for key in self._waiting if key[0] == self._family]
            skipped = sum(sum(self._waiting.pop(key)) for key in missing)
            self._total, self._left = self._total - skipped, self._left - skipped
        self._left -= self._running
        steps = self._waiting.get((family, layer), [])
        self._running = steps.pop(0) if steps else 0.0
        self._family, self._layer = family, layer
        self.within(0.0)

    def within(self, share: float, _what: str = "") -> None:
        """A share of the step that runs is done."""
        left = max(0.0, self._left - share * self._running)
        done = 1.0 - left / self._total if self._total else 1.0
        told = time_left(done, perf_counter() - self._start)
        words = (self._family, self._layer, told)
        self._show(min(done, 1.0), " ".join(word for word in words if word))


def time_left(done: float, elapsed: float) -> str:
    """What to say about the rest of the work, from the time of the part that is done.

    Nothing at the start: from a thousandth of the work one cannot tell.

    Example:
        >>> time_left(0.25, 40.0), time_left(0.5, 600.0), time_left(0.001, 1.0)
        ('(2 min left)', '(10 min left)', '')
    """
    if done < _TELLING or done >= 1.0:
        return ""
    seconds = elapsed * (1.0 - done) / done
    if seconds < 1.5 * _MINUTE:
        return f"({seconds:.0f} s left)"
    if seconds < 1.5 * _HOUR:
        return f"({seconds / _MINUTE:.0f} min left)"
    return f"({seconds / _HOUR:.1f} h left)"


@contextmanager
def _display(progress: Progress) -> Iterator[Watch]:
    if callable(progress):
        yield progress
    elif not progress:
        yield lambda _fraction, _text: None
    else:
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        text = TextColumn("{task.description}", markup=False)
        with Bar(BarColumn(), TimeElapsedColumn(), text) as bar:
            task = bar.add_task("features", total=1.0)
            yield lambda done, what: bar.update(task, completed=done, description=what)
            bar.update(task, completed=1.0, description="done")
