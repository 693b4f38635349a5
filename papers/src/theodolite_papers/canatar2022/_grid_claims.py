"""Claims of Figures 1, 2 and 6: how layer CKA depends on depth, optimiser and accuracy."""

import numpy as np

from theodolite_papers.canatar2022._grid_runs import STUDY_ID, mean_where, of_kept, profiles
from theodolite_papers.canatar2022._profiles import DEBIASED, NULL, NULL_TOP
from theodolite_papers.ledger import Claim, Judgment, Results, judge, pearson, spearman

__all__ = ["CLAIMS"]

_MOST = 0.9  # share of runs
_SPEARMAN = {"paper": 0.8, "lite": 0.5, "smoke": 0.5}


def _target_grows(runs: Results) -> Judgment:
    target, debiased = profiles(runs, "target_train"), profiles(runs, "target_train", DEBIASED)
    share = float((target[:, -1] > target[:, 0]).mean())
    without_bias = float((debiased[:, -1] > debiased[:, 0]).mean())
    return judge(share >= _MOST, share=share, share_debiased=without_bias, kept=len(runs))


def _input_fades(runs: Results) -> Judgment:
    values, debiased = profiles(runs, "input_train"), profiles(runs, "input_train", DEBIASED)
    share = float((values[:, 0] > values[:, -1]).mean())
    without_bias = float((debiased[:, 0] > debiased[:, -1]).mean())
    return judge(share >= _MOST, share=share, share_debiased=without_bias)


def _extremes(runs: Results) -> Judgment:
    target = profiles(runs, "target_train").mean(0)
    inputs = profiles(runs, "input_train").mean(0)
    last = len(target) - 1
    holds = target.argmax() == last and target.argmin() == 0
    holds = holds and inputs.argmax() == 0 and inputs.argmin() == last
    return judge(
        bool(holds),
        target_largest=target.argmax() + 1,
        target_smallest=target.argmin() + 1,
        input_largest=inputs.argmax() + 1,
        input_smallest=inputs.argmin() + 1,
    )


def _turned_by_training(runs: Results) -> Judgment:
    before = profiles(runs, "initial_train").mean(0)
    after = profiles(runs, "target_train").mean(0)
    holds = before[-1] < before[0] and after[-1] > after[0]
    numbers = {"first_before": before[0], "last_before": before[-1]}
    return judge(holds, **numbers, first_after=after[0], last_after=after[-1])


def _momentum_aligns(runs: Results) -> Judgment:
    last, momentum = profiles(runs, "target_train")[:, -1], _momentum(runs)
    with_it, without = mean_where(last, momentum), mean_where(last, ~momentum)
    return judge(with_it > without, momentum=with_it, plain=without)


def _plain_keeps_input(runs: Results) -> Judgment:
    first, momentum = profiles(runs, "input_train")[:, 0], _momentum(runs)
    with_it, without = mean_where(first, momentum), mean_where(first, ~momentum)
    return judge(without > with_it, momentum=with_it, plain=without)


def _input_hurts(runs: Results) -> Judgment:
    r = pearson(runs["test_accuracy"], profiles(runs, "input_train").mean(1))
    return judge(r < 0, correlation=r)


def _misranked(runs: Results) -> Judgment:
    """The pair of runs, ten points apart, that CKA gets wrong by most."""
    accuracy, last = runs["test_accuracy"], profiles(runs, "target_train")[:, -1]
    worse = accuracy[:, None] + 0.1 <= accuracy[None, :]
    excess = np.where(worse, last[:, None] - last[None, :], -np.inf).max()
    return judge(excess > 0 if worse.any() else None, excess=excess, pairs=worse.sum())


def _train_tells_test(runs: Results) -> Judgment:
    train, test = (profiles(runs, f"target_{name}").ravel() for name in ("train", "test"))
    r = pearson(train, test)
    return judge(r > 0.9, correlation=r)


def _above_chance(runs: Results) -> Judgment:
    """The last layer against every permutation of the labels, and what bias adds."""
    rows = runs.array("target_train")[:, :, -1].astype(np.float64)
    share = float((rows[:, 0] > rows[:, NULL_TOP]).mean())
    first = runs.array("target_train")[:, :, 0].astype(np.float64).mean(0)
    mean = rows.mean(0)
    return judge(
        share >= _MOST,
        share=share,
        last_biased=mean[0],
        last_debiased=mean[DEBIASED],
        last_null=mean[NULL],
        first_biased=first[0],
        first_debiased=first[DEBIASED],
        first_null=first[NULL],
    )


def _order_on_both_sets(runs: Results) -> Judgment:
    train, test = (profiles(runs, f"target_{name}").mean(0) for name in ("train", "test"))
    rank = spearman(train, test)
    return judge(rank >= 0.9, spearman=rank)


def _deeper_is_closer(runs: Results) -> Judgment:
    target = profiles(runs, "target_train").mean(0)
    rank = spearman(np.arange(len(target)), target)
    steps = int((np.diff(target) < 0).sum())
    holds = steps == 0 if runs.runs[0].size == "paper" else rank >= 0.8
    return judge(holds, spearman=rank, falls=steps, first=target[0], last=target[-1])


def _input_gives_way(runs: Results) -> Judgment:
    inputs, target = (profiles(runs, f"{name}_train").mean(0) for name in ("input", "target"))
    rank = spearman(np.arange(len(inputs)), inputs - target)
    holds = inputs[0] > target[0] and target[-1] > inputs[-1] and rank <= -0.8
    excess = {"first_excess": inputs[0] - target[0], "last_excess": inputs[-1] - target[-1]}
    return judge(holds, spearman=rank, **excess)


def _average_tells_accuracy(runs: Results) -> Judgment:
    accuracy = runs["test_accuracy"]
    test = profiles(runs, "target_test").mean(1)
    train = profiles(runs, "target_train").mean(1)
    rank = spearman(test, accuracy)
    return judge(
        rank >= _SPEARMAN[runs.runs[0].size or "lite"],
        spearman=rank,
        pearson_test=pearson(test, accuracy),
        pearson_train=pearson(train, accuracy),
    )


def _momentum(runs: Results) -> np.ndarray:
    return np.array([run.point["momentum"] > 0 for run in runs])


CLAIMS = (
    Claim(
        f"{STUDY_ID}.fig1-target",
        "in at least 90 % of the kept runs CKA with the target is larger in the last layer than in "
        "the first",
        of_kept(_target_grows),
        "seed",
    ),
    Claim(
        f"{STUDY_ID}.fig1-input",
        "in at least 90 % of the kept runs CKA with the input is larger in the first layer than in "
        "the last",
        of_kept(_input_fades),
        "seed",
    ),
    Claim(
        f"{STUDY_ID}.fig1-extremes",
        "on average layer 10 is closest to the target and layer 1 farthest; the reverse for the "
        "input",
        of_kept(_extremes),
        "seed",
        sizes=("paper",),
    ),
    Claim(
        f"{STUDY_ID}.fig1-learned",
        "CKA with the target falls from the first to the last layer before training, and rises "
        "after it",
        of_kept(_turned_by_training),
        "seed",
    ),
    Claim(
        f"{STUDY_ID}.fig1-momentum",
        "last-layer CKA with the target is larger with momentum than without, on average",
        of_kept(_momentum_aligns),
        "seed",
    ),
    Claim(
        f"{STUDY_ID}.fig1-plain",
        "first-layer CKA with the input is larger without momentum than with, on average",
        of_kept(_plain_keeps_input),
        "seed",
    ),
    Claim(
        f"{STUDY_ID}.fig1-accuracy",
        "test accuracy correlates negatively with layer-averaged CKA with the input",
        of_kept(_input_hurts),
        "seed",
        fragile="depends on how maps are reduced to vectors, which the paper does not say; no sign "
        "of it was seen in pilots on small convolutional networks",
    ),
    Claim(
        f"{STUDY_ID}.fig1-misranked",
        "two runs at least ten points of test accuracy apart have last-layer CKA in the opposite "
        "order",
        of_kept(_misranked),
        "seed",
    ),
    Claim(
        f"{STUDY_ID}.fig1-sets",
        "over all runs and layers, CKA on training and test examples correlate above 0.9",
        of_kept(_train_tells_test),
        "seed",
    ),
    Claim(
        f"{STUDY_ID}.fig1-chance",
        "in at least 90 % of the kept runs the last layer's CKA exceeds that of every permutation "
        "of the labels (ours)",
        of_kept(_above_chance),
        "seed",
    ),
    Claim(
        f"{STUDY_ID}.fig2-sets",
        "mean CKA of the layers has the same order on both sets: Spearman at least 0.9",
        of_kept(_order_on_both_sets),
        "seed",
    ),
    Claim(
        f"{STUDY_ID}.fig2-depth",
        "mean CKA with the target never falls with depth (lite: Spearman with depth at least 0.8)",
        of_kept(_deeper_is_closer),
        "seed",
    ),
    Claim(
        f"{STUDY_ID}.fig2-input",
        "the input is closer than the target at layer 1, the target at the last, and the "
        "difference shrinks with depth: Spearman at most -0.8",
        of_kept(_input_gives_way),
        "seed",
    ),
    Claim(
        f"{STUDY_ID}.fig6-average",
        "layer-averaged CKA on the test set ranks test accuracy: Spearman at least 0.8 (lite: 0.5)",
        of_kept(_average_tells_accuracy),
        "seed",
        published={"pearson_test": 0.920, "pearson_train": 0.828},
    ),
)
