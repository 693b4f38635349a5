"""How far a long call is, told to the user's own function."""

from collections.abc import Callable

__all__ = ["Steps", "Watch"]

Watch = Callable[[float, str], None]


class Steps:
    """Counts pieces of work of about the same size.

    Args:
        watch: A function of (share that is done, what was done); None to tell nobody.
        total: Number of pieces.
    """

    def __init__(self, watch: Watch | None, total: int) -> None:
        self._watch, self._total, self._count = watch, max(1, total), 0

    def done(self, text: str) -> None:
        """One more piece is asked for; on a GPU it may still be running."""
        self._count += 1
        if self._watch is not None:
            self._watch(min(1.0, self._count / self._total), text)
