"""The words of results: the five families, sentences to act on, names within a sentence."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["FAMILIES", "READOUTS", "Answer", "Family", "listed"]


@dataclass(frozen=True)
class Family:
    """What is known of a family before anything is measured.

    Args:
        key: its name in records, in ``families=`` and in data frames.
        headline: the measure that stands for it, as rows of a record name it.
        heading: that measure in the words of tables, axes and pages.
        question: what the family asks about a layer.
        reading: how to read the headline number.
        chance: what the chance level of the headline is drawn from.
        lower_is_aligned: whether a small headline means aligned.
    """

    key: str
    headline: str
    heading: str
    question: str
    reading: str
    chance: str = "shuffled labels"
    lower_is_aligned: bool = False

    @property
    def title(self) -> str:
        """The name of the family at the head of a section."""
        return self.key.capitalize()

    @property
    def figure(self) -> str:
        """The key of the headline's figure on a page, as the evidence of sentences names it."""
        return f"{self.key}-{self.headline}".replace("_", "-")


FAMILIES: Mapping[str, Family] = {
    family.key: family
    for family in (
        Family(
            "representation",
            headline="alignment_area",
            heading="label alignment",
            question="Do the labels lie on the strong directions of a layer's features?",
            reading="From 0 to 1. High: a linear read-out of this layer learns the labels in few"
            " steps.",
        ),
        Family(
            "covariance",
            headline="relative_misalignment",
            heading="misalignment / random",
            question="Do the weights of a layer follow the directions of the data that it sees?",
            reading="1 is what random directions give. Below 1: the weights follow the data.",
            chance="random bases",
            lower_is_aligned=True,
        ),
        Family(
            "kernel",
            headline="cka_target",
            heading="CKA to labels",
            question="Are examples with the same label similar in a layer?",
            reading="1: two examples are similar exactly where their labels agree. 0: similarity"
            " has nothing to do with labels.",
        ),
        Family(
            "tangent",
            headline="tangent_alignment",
            heading="tangent alignment",
            question="Would training this layer alone move the outputs towards the labels?",
            reading="From 0 to 1. High: a gradient step in this layer moves the outputs along the"
            " labels. Low: it moves them elsewhere.",
        ),
        Family(
            "gradient",
            headline="feature_omega_contrast",
            heading="feature contrast",
            question="Do features point the same way within a class, more than between classes?",
            reading="How much better the features of one class agree in direction than those of"
            " all examples. 0: classes cannot be told apart by direction.",
        ),
    )
}

# What the sentences about layers rest on: a column of its own in tables, beside the headlines.
READOUTS: Mapping[str, Family] = {
    family.headline: family
    for family in (
        Family(
            "representation",
            headline="readout_accuracy",
            heading="read-out accuracy",
            question="How many labels can be read off a layer?",
            reading="Share of examples that a linear read-out, fitted to all the others, tells"
            " right.",
            chance="the largest class every time",
        ),
        Family(
            "representation",
            headline="readout_r2",
            heading="read-out R²",
            question="How much of the targets can be read off a layer?",
            reading="Share of the variance of the targets that a linear read-out, fitted to all"
            " the other examples, explains.",
            chance="the mean of the others every time",
        ),
    )
}


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
