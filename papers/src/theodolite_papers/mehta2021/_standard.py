"""The claims that most figures share, by the names that the figures' texts refer to."""

from collections.abc import Sequence
from dataclasses import replace

from theodolite_papers.ledger import Claim
from theodolite_papers.mehta2021._trends import (
    accuracy_falls,
    alignment_falls,
    fits,
    memorizes,
    on_each,
)

__all__ = [
    "accuracy_claim",
    "alignment_claim",
    "fit_claim",
    "memorization_claim",
    "on_each_set",
    "representation_claim",
    "standard_claims",
]

_GRADIENTS = {
    "hidden": "hidden-layer gradients",
    "top": "top-layer gradients",
    "logit": "logit gradients",
}


def accuracy_claim(study: str, least: float) -> Claim:
    """TEST: generalisation falls with the scale."""
    return Claim(
        f"{study}.test",
        f"best test accuracy falls by at least {least:g} from the better of the two smallest "
        "sigmas to the largest, without a rise above 0.02 on the way",
        accuracy_falls(least),
    )


def fit_claim(study: str) -> Claim:
    """FIT: every training set is learnt."""
    text = "training accuracy reaches 1 (lite: 0.99) for every sigma"
    return Claim(f"{study}.fit", text, fits)


def memorization_claim(study: str, since: float | None = None) -> Claim:
    """MEMO: extreme memorisation, at the largest sigma or from one on."""
    where = "the largest sigma" if since is None else f"sigma {since:g} and above"
    return Claim(
        f"{study}.memo",
        f"at {where} training accuracy is perfect (lite: 0.99) and test accuracy at chance, "
        "within three standard errors",
        memorizes(since),
    )


def alignment_claim(study: str, name: str) -> Claim:
    """HID, TOP or LOGIT: gradients of one class agree less at a large scale."""
    return Claim(
        f"{study}.{name}",
        f"in-class alignment of {_GRADIENTS[name]}, mean until the fit, is lower at the largest "
        "sigma by 15 % and falls with sigma (rank correlation at most -0.7)",
        alignment_falls(name),
    )


def representation_claim(study: str, share: float = 0.05) -> Claim:
    """REP: so do the representations of one class."""
    return Claim(
        f"{study}.rep",
        "in-class alignment of the trained representations is lower at the largest sigma by "
        f"{100 * share:g} % and falls with sigma (rank correlation at most -0.7)",
        alignment_falls("representation_end", share),
    )


def standard_claims(
    study: str, least: float, kinds: Sequence[str] = ("fit", "hidden", "top", "logit", "rep")
) -> tuple[Claim, ...]:
    """TEST(least), and those of FIT, HID, TOP, LOGIT and REP that are named."""
    found = [accuracy_claim(study, least)]
    found += [fit_claim(study)] if "fit" in kinds else []
    found += [alignment_claim(study, name) for name in _GRADIENTS if name in kinds]
    found += [representation_claim(study)] if "rep" in kinds else []
    return tuple(found)


def on_each_set(claim: Claim, *names: str) -> Claim:
    """The claim about every data set of a seed, or about those that are named."""
    return replace(claim, check=on_each(claim.check, *names), scope="seed")
