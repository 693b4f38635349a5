"""What a page says about each family whatever the numbers are: titles, headlines, how to read."""

from dataclasses import dataclass

__all__ = ["FAMILIES", "Family"]


@dataclass(frozen=True)
class Family:
    """The fixed words of one family.

    Args:
        key: its name in records.
        title: its name on a page.
        headline: the measure that stands for it in the overview.
        short: that measure in a few words.
        meaning: what the family asks, in one sentence.
        null: what the null of the headline is drawn from.
        thumbnail: the curve that a single survey shows in the overview, if there is one.
        own_scale: whether that curve has a scale of its own for every layer: the singular values
            of the inputs of layers differ by decades.
    """

    key: str
    title: str
    headline: str
    short: str
    meaning: str
    null: str = "shuffled labels"
    thumbnail: str | None = None
    own_scale: bool = False


FAMILIES = {
    family.key: family
    for family in (
        Family(
            "representation",
            "Representation",
            "alignment_area",
            "alignment area",
            "Do the labels lie on the strong directions of a layer's features?",
            thumbnail="alignment_curve",
        ),
        Family(
            "covariance",
            "Covariance",
            "relative_misalignment",
            "misalignment / random basis",
            "Do the weights of a layer follow the directions of the data that it sees?",
            null="random bases",
            thumbnail="transfer",
            own_scale=True,
        ),
        Family(
            "kernel",
            "Kernel",
            "cka_target",
            "CKA to the target",
            "Are examples with the same label similar in a layer?",
            thumbnail="cumulative_power",
        ),
        Family(
            "tangent",
            "Tangent",
            "tangent_alignment",
            "tangent alignment",
            "Would training this layer alone, from here, move the outputs towards the labels?",
        ),
        Family(
            "gradient",
            "Gradient",
            "omega_contrast",
            "in-class − overall Ω",
            "Do examples of one class pull the weights the same way, more than strangers do?",
            thumbnail="class_contrast",
        ),
    )
}
