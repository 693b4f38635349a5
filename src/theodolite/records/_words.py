"""Sentences about records: what one rests on, and names within one."""

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Answer", "listed"]


@dataclass(frozen=True)
class Answer:
    """A sentence about a network with what it rests on; docs/records.md has the layout.

    Args:
        question: "task", "layer", "groups" or "next".
        text: the answer.
        certainty: "clear", "likely" or "open".
        why: what that rests on: error rates, numbers.
        evidence: keys of the figures of a report that show it.
    """

    question: str
    text: str
    certainty: str
    why: str
    evidence: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.text} ({self.certainty}: {self.why})"


def listed(names: Iterable[str], most: int | None = None) -> str:
    """Names within a sentence.

    Args:
        names: none give an empty text.
        most: as many are told, and how many more there are; None for all.

    Example:
        >>> listed(["a"]), listed(["a", "b", "c"]), listed("abcde", most=3), listed([])
        ('a', 'a, b and c', 'a, b, c and 2 more', '')
    """
    told = list(names)
    if most is not None and len(told) > most:
        told = [*told[:most], f"{len(told) - most} more"]
    return " and ".join(filter(None, [", ".join(told[:-1]), *told[-1:]]))
