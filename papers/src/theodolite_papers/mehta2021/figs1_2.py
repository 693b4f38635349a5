"""Figures 1 and 2: the scale of a sin layer decides between learning and extreme memorisation."""

import numpy as np

from theodolite_papers.ledger import (
    CORRELATION,
    LARGE,
    RATIO,
    Claim,
    Outcome,
    Panel,
    Points,
    Results,
    Space,
    Study,
    above,
    below,
    decided,
    inside,
    outcome,
    pearson,
    spearman,
)
from theodolite_papers.mehta2021._families import (
    PUBLISHED,
    UNTIL_FIT,
    accuracy_claim,
    alignment_claim,
    fit_claim,
    memorization_claim,
    on_each,
    on_each_set,
    representation_claim,
    scale_panels,
    values,
)
from theodolite_papers.mehta2021._scales import Scales, measure_scales

__all__ = ["CONTRAST", "STUDY", "extreme_errors"]

_ID = "mehta2021.fig1-2"
CONTRAST = 0.01  # from one pair of networks on digits, seed 0; the reports quote it
_MAIN = ("digits", "cifar10")  # data sets of Figures 1(a) and 2
_LITE = Scales(steps=1200, points=14)


def _follows(runs: Results) -> Outcome:
    ranks = {
        str(run.point["data"]): spearman(values(run, "hidden"), values(run, "best_test"))
        for run in runs
    }
    pooled = pearson(
        np.concatenate([values(run, "hidden") for run in runs]),
        np.concatenate([values(run, "best_test") for run in runs]),
    )
    return decided(
        above("pooled", pooled, 0.5),
        *(
            above(f"rank_{data}", rank, 0.6, strict=False, possible=CORRELATION)
            for data, rank in ranks.items()
        ),
    )


def _sweet_spot(runs: Results) -> Outcome:
    run = runs.first
    rep, accuracy = values(run, "representation_end"), values(run, "best_test")
    return decided(
        above("alignment: smallest minus next", rep[0] - rep[1]),
        below("accuracy: smallest minus next", accuracy[0] - accuracy[1], 0.01, strict=False),
        alignment_smallest=rep[0],
        alignment_next=rep[1],
        accuracy_smallest=accuracy[0],
        accuracy_next=accuracy[1],
    )


def _lazier(runs: Results) -> Outcome:
    run = runs.first
    start, mean = values(run, "relative_norm_start"), values(run, "relative_norm")
    large = run.arrays["sigma"] >= 0.0999
    decades = np.diff(np.log10(start[large])) / np.diff(np.log10(run.arrays["sigma"][large]))
    return decided(
        below("largest_step_at_start", np.diff(start).max()),
        below("largest_step_on_average", np.diff(mean).max()),
        inside("smallest_decade", decades.min(), -1.3, -0.7),
        inside("largest_decade", decades.max(), -1.3, -0.7),
        largest_start=start[0],
        smallest_start=start[-1],
    )


def _vanishes(runs: Results) -> Outcome:
    run = runs.first
    hidden, rep = values(run, "hidden")[-1], values(run, "representation_end")[-1]
    return decided(
        inside("gradients", hidden, -0.05, 0.05), inside("representations", rep, -0.05, 0.05)
    )


def extreme_errors(runs: Results) -> tuple[int, int]:
    """Networks that the threshold on the contrast misclassifies, and the number of networks.

    The threshold was chosen on digits, so networks on digits are left out. Networks with a small
    sigma learn; those with a large one memorise.
    """
    wrong = total = 0
    for run in runs.chosen(lambda run: run.point["data"] != "digits"):
        sigma, contrast = run.arrays["sigma"], run.arrays["hidden_contrast"][:, -1]
        learns, memorizes_all = sigma < 0.05, sigma > 0.5
        total += int(learns.sum() + memorizes_all.sum())
        wrong += int((~(contrast[learns] >= CONTRAST)).sum())  # undefined counts as wrong
        wrong += int((~(contrast[memorizes_all] < CONTRAST)).sum())
    return wrong, total


def _contrast_decides(runs: Results) -> Outcome:
    wrong, total = extreme_errors(runs)
    if not total:
        return outcome(None, wrong=wrong, networks=total)
    share = below("wrong_share", wrong / total, 0.05, strict=False)
    return decided(share, wrong=wrong, networks=total)


def _diversity_does_not(runs: Results) -> Outcome:
    run = runs.first
    diversity, hidden = values(run, "diversity_end"), values(run, "hidden")
    span = diversity.max() / diversity.min()
    turns = np.sign(np.diff(diversity))
    ratio = hidden[:2].max() / np.abs(hidden[-1])
    return decided(
        below("diversity_span", span, 3, possible=RATIO),
        above("alignment_ratio", ratio, 10, possible=RATIO),
        above("directions", len(set(turns.tolist())), 1),
    )


def draw(runs: Results) -> list[Panel]:
    """Figure 1(a), (b) and Figure 2, with the contrast beside the alignments."""
    main = runs.chosen(lambda run: run.point["data"] in _MAIN)
    sets = list(dict.fromkeys(str(run.point["data"]) for run in runs))
    scatter = [
        Points(
            data,
            np.concatenate([values(run, "hidden") for run in runs.where(data=data)]),
            np.concatenate([values(run, "best_test") for run in runs.where(data=data)]),
        )
        for data in sets
    ]
    axis = "in-class alignment of hidden-layer gradients"
    names = ("train", "relative_norm", "hidden", "hidden_contrast")
    return [
        *scale_panels("Figure 1(a)", main, ["test"]),
        Panel("Figure 1(b)", scatter, axis, "best test accuracy"),
        *scale_panels("Figure 2", main, [*names, "representation", "representation_contrast"]),
    ]


_CLAIMS = (
    on_each_set(accuracy_claim(_ID, 0.2)),
    on_each_set(memorization_claim(_ID, 1.0)),
    Claim(
        f"{_ID}.follows",
        "best test accuracy follows the alignment of hidden-layer gradients: rank correlation at "
        "least 0.6 on every data set, linear correlation above 0.5 over all of them",
        _follows,
        scope="seed",
        fragile="two scales at chance level tie at random",
    ),
    Claim(
        f"{_ID}.sweet-spot",
        "the smallest sigma has more aligned representations than the next, but no better accuracy",
        on_each(_sweet_spot, *_MAIN),
        scope="seed",
    ),
    on_each_set(fit_claim(_ID), *_MAIN),
    Claim(
        f"{_ID}.lazy",
        "gradient norm over weight norm of the first layer falls with sigma, at the start and on "
        "average; at the start by a factor of 10 per decade for sigma of 0.1 and more",
        on_each(_lazier, *_MAIN),
        scope="seed",
    ),
    on_each_set(alignment_claim(_ID, "hidden"), *_MAIN),
    on_each_set(representation_claim(_ID), *_MAIN),
    Claim(
        f"{_ID}.vanishes",
        "at the largest sigma gradients and representations have alignments below 0.05",
        on_each(_vanishes, *_MAIN),
        scope="seed",
    ),
    Claim(
        f"{_ID}.contrast",
        "after training the contrast of hidden-layer gradients tells learning (sigma up to 0.01) "
        "from extreme memorisation (sigma of 1 and more): the threshold 0.01 from digits is wrong "
        "on at most 5 % of the networks on other data",
        _contrast_decides,
        scope="all",
    ),
    Claim(
        f"{_ID}.diversity",
        "gradient diversity at the end of training does not follow: less than a factor of 3 over "
        "all sigmas and not monotone, while alignment changes more than tenfold",
        on_each(_diversity_does_not, *_MAIN),
        scope="seed",
        fragile="said in passing; at the start diversity does order the scales",
    ),
)

STUDY = Study(
    id=_ID,
    title="Scale of a sin layer: learning or extreme memorisation",
    shows=("Figure 1", "Figure 2"),
    measure=measure_scales,
    configs={
        "smoke": Scales(hidden=(64,), steps=30, points=4, probe=50),
        "lite": _LITE,
        "reduced": PUBLISHED,
        "published": PUBLISHED,
    },
    spaces={
        "smoke": Space({"data": ["digits"]}),
        "lite": Space({"data": ["digits", "cifar8", "fashion14"]}),
        "reduced": Space({"data": ["cifar10"]}),
        "published": Space({"data": ["cifar10", "cifar100", "svhn"]}),
    },
    claims=_CLAIMS,
    draw=draw,
    seeds=dict.fromkeys(LARGE, (101, 102, 103)),
    stand_in={
        "lite": "8x8 digits, CIFAR-10 shrunk to 8x8 and Fashion-MNIST shrunk to 14x14 (200 + 200 "
        "images of each class) for CIFAR-10, CIFAR-100 and SVHN; 256 hidden units, rate 0.1",
    },
    remarks={"reduced": f"{UNTIL_FIT}, at most after 100,000 steps; Figure 1(c) is Figure 5(b)"},
    not_run={
        "published": "it needs CIFAR-100 and SVHN, which we do not have, as .npz files in the data "
        "folder"
    },
)
