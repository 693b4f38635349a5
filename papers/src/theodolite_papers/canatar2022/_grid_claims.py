"""Claims of Figures 1 to 6 about the grid, and the runs that the paper keeps for them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from theodolite_papers.canatar2022._kernels import BIASED, DEBIASED, NULL, NULL_TOP
from theodolite_papers.ledger import (
    CORRELATION,
    LARGE,
    SHARE,
    Claim,
    Condition,
    Outcome,
    Result,
    Results,
    above,
    below,
    decided,
    mean_condition,
    outcome,
    pearson,
    share_condition,
    spearman,
)

__all__ = [
    "CLAIMS",
    "FACTORS",
    "chosen_models",
    "grid_claim",
    "kept",
    "profiles",
    "shown",
]

_STUDY_ID = "canatar2022.fig1-6-table1"
FACTORS = ("skip", "augmentation", "batch_size", "learning_rate", "momentum")
_FITTED = 0.95  # training accuracy above which the paper keeps a run
_FEWEST = 4  # runs, below which correlations over runs say nothing
_MOST = 0.9  # share of runs
_MISRANKED = 0.1  # share of pairs
_SPEARMAN = {"reduced": 0.8, "published": 0.8, "lite": 0.5, "smoke": 0.5}
Numbers = dict[str, float]
Check = Callable[[Results], Outcome]


def kept(runs: Results) -> Results:
    """The runs that fit their training data: accuracy strictly above 95 %."""
    return runs.chosen(lambda run: run["train_accuracy"] > _FITTED and _defined(run))


def shown(runs: Results) -> Results:
    """The kept runs; if fewer than two are kept, all runs that did not diverge."""
    chosen = kept(runs)
    return chosen if len(chosen) > 1 else runs.chosen(lambda run: "target_train" in run.arrays)


def _defined(run: Result) -> bool:
    return all(np.isfinite(run.arrays[name][:2]).all() for name in ("target_train", "target_test"))


def of_kept(check: Check) -> Check:
    """A check of the kept runs only.

    With fewer than four it decides nothing. It also decides nothing if a number is undefined, such
    as a correlation with a factor that is equal in all kept runs. A comparison with nan is false
    and would count as a failure.
    """

    def checked(runs: Results) -> Outcome:
        chosen = kept(runs)
        if len(chosen) < _FEWEST:
            return outcome(None, kept=len(chosen))
        found = check(chosen)
        if found.holds is False and np.isnan(list(found.numbers.values())).any():
            return outcome(None, **found.numbers)
        return found

    return checked


def grid_claim(name: str, text: str, check: Check, **options: Any) -> Claim:
    """A claim about the kept runs of each seed, unless it says otherwise."""
    settings = {"scope": "seed", "unit": "network", "kept": kept, **options}
    return Claim(f"{_STUDY_ID}.{name}", text, of_kept(check), **settings)


def profiles(runs: Results, name: str, row: int = BIASED) -> np.ndarray:
    """One row of a recorded profile, of every run: (runs, layers)."""
    return runs.array(name)[:, row].astype(np.float64)


def _target_grows(runs: Results) -> Outcome:
    return _ends(runs, "target_train", first=0, kept=len(runs))


def _input_fades(runs: Results) -> Outcome:
    return _ends(runs, "input_train", first=-1)


def _ends(runs: Results, name: str, first: int, **beside: int) -> Outcome:
    """In most runs CKA rises from the first layer to the last, or (``first=-1``) falls."""
    held = {}
    for key, row in (("share", BIASED), ("share_debiased", DEBIASED)):
        values = profiles(runs, name, row)
        held[key] = values[:, -1 - first] > values[:, first]
    debiased = float(held["share_debiased"].mean())
    share = share_condition("share", held["share"], _MOST)
    return decided(share, share_debiased=debiased, **beside)


def _extremes(runs: Results) -> Outcome:
    target = profiles(runs, "target_train").mean(0)
    inputs = profiles(runs, "input_train").mean(0)
    lead = {
        "target: last minus next": target[-1] - target[:-1].max(),
        "target: next minus first": target[1:].min() - target[0],
        "input: first minus next": inputs[0] - inputs[1:].max(),
        "input: next minus last": inputs[:-1].min() - inputs[-1],
    }
    return decided(
        *map(above, lead, lead.values()),
        target_largest=target.argmax() + 1,
        target_smallest=target.argmin() + 1,
        input_largest=inputs.argmax() + 1,
        input_smallest=inputs.argmin() + 1,
    )


def _turned_by_training(runs: Results) -> Outcome:
    before = profiles(runs, "initial_train").mean(0)
    after = profiles(runs, "target_train").mean(0)
    return decided(
        below("last minus first, before", before[-1] - before[0]),
        above("last minus first, after", after[-1] - after[0]),
        first_before=before[0],
        last_before=before[-1],
        first_after=after[0],
        last_after=after[-1],
    )


def _by_momentum(name: str, layer: int, sign: int) -> Check:
    """CKA of a layer is larger with momentum than without, or smaller (sign -1).

    Runs are compared in pairs that differ in momentum alone.
    """

    def check(runs: Results) -> Outcome:
        pairs: dict[str, dict[bool, float]] = {}
        for run, value in zip(runs, profiles(runs, name)[:, layer], strict=True):
            others = {key: one for key, one in run.point.items() if key != "momentum"}
            pairs.setdefault(f"{run.seed} {others}", {})[run.point["momentum"] > 0] = value
        whole = [pair for pair in pairs.values() if len(pair) == 2]
        differences = [pair[True] - pair[False] for pair in whole]
        means = {
            "momentum": float(np.mean([pair[True] for pair in whole])) if whole else np.nan,
            "plain": float(np.mean([pair[False] for pair in whole])) if whole else np.nan,
        }
        if len(whole) < 2:
            return outcome(None, **means, pairs=len(whole))
        lead = mean_condition("lead", [sign * one for one in differences], "pairs of networks")
        return decided(lead, **means, pairs=len(whole))

    return check


def _input_hurts(runs: Results) -> Outcome:
    r = pearson(runs["test_accuracy"], profiles(runs, "input_train").mean(1))
    return decided(below("correlation", r, possible=CORRELATION))


def _misranked(runs: Results) -> Outcome:
    """Share of pairs of runs (at least ten points apart) that CKA orders wrongly."""
    accuracy = runs["test_accuracy"]
    worse = accuracy[:, None] + 0.1 <= accuracy[None, :]
    if not worse.any():
        return outcome(None, pairs=0)
    last = {name: profiles(runs, f"target_{name}")[:, -1] for name in ("train", "test")}
    share = {
        name: (values[:, None] > values[None, :])[worse].mean() for name, values in last.items()
    }
    return decided(
        above("share of pairs misranked", share["train"], _MISRANKED, strict=False, possible=SHARE),
        share_on_test_images=share["test"],
        pairs=worse.sum(),
    )


def _train_tells_test(runs: Results) -> Outcome:
    train, test = (profiles(runs, f"target_{name}").ravel() for name in ("train", "test"))
    r = pearson(train, test)
    return decided(above("correlation", r, 0.9, possible=CORRELATION))


def _above_chance(runs: Results) -> Outcome:
    """The last layer compared with permuted labels, and the bias of the estimator."""
    rows = runs.array("target_train")[:, :, -1].astype(np.float64)
    first = runs.array("target_train")[:, :, 0].astype(np.float64).mean(0)
    mean = rows.mean(0)
    return decided(
        share_condition("share", rows[:, 0] > rows[:, NULL_TOP], _MOST),
        last_biased=mean[0],
        last_debiased=mean[DEBIASED],
        last_null=mean[NULL],
        first_biased=first[0],
        first_debiased=first[DEBIASED],
        first_null=first[NULL],
    )


def _order_on_both_sets(runs: Results) -> Outcome:
    train, test = (profiles(runs, f"target_{name}").mean(0) for name in ("train", "test"))
    rank = spearman(train, test)
    return decided(above("spearman", rank, 0.9, strict=False, possible=CORRELATION))


def _deeper_is_closer(runs: Results) -> Outcome:
    target = profiles(runs, "target_train").mean(0)
    rank = spearman(np.arange(len(target)), target)
    steps = int((np.diff(target) < 0).sum())
    if runs.first.size in LARGE:
        condition = above("smallest_step", np.diff(target).min(), strict=False)
    else:
        condition = above("spearman", rank, 0.8, strict=False, possible=CORRELATION)
    return decided(condition, spearman=rank, falls=steps, first=target[0], last=target[-1])


def _input_gives_way(runs: Results) -> Outcome:
    inputs, target = (profiles(runs, f"{name}_train").mean(0) for name in ("input", "target"))
    rank = spearman(np.arange(len(inputs)), inputs - target)
    return decided(
        below("spearman", rank, -0.8, strict=False, possible=CORRELATION),
        above("first_excess", inputs[0] - target[0]),
        below("last_excess", inputs[-1] - target[-1]),
    )


def _average_tells_accuracy(runs: Results) -> Outcome:
    accuracy = runs["test_accuracy"]
    test = profiles(runs, "target_test").mean(1)
    train = profiles(runs, "target_train").mean(1)
    rank = spearman(test, accuracy)
    return decided(
        above(
            "spearman",
            rank,
            _SPEARMAN[runs.runs[0].size or "lite"],
            strict=False,
            possible=CORRELATION,
        ),
        pearson_test=pearson(test, accuracy),
        pearson_train=pearson(train, accuracy),
    )


def chosen_models(runs: Results) -> dict[str, Result]:
    """The worst and the best kept model, and the model of the worse half with the highest CKA.

    The last is the paper's third model: its last two layers look like those of a good one.
    """
    order = sorted(shown(runs), key=lambda run: run["test_accuracy"])
    half = order[: max(1, len(order) // 2)]
    liked = [min(run.arrays["target_train"][0, -2:]) for run in half]
    return {"worst": order[0], "best": order[-1], "misleading": half[int(np.argmax(liked))]}


def _power_gathers(runs: Results) -> Outcome:
    end, start = runs["power_10_end"], runs["power_10_start"]
    return decided(
        above("smallest_end", end.min(), 0.85, strict=False),
        above("smallest_rise", (end - start).min(), 0.3, strict=False),
        share=((end >= 0.85) & (end - start >= 0.3)).mean(),
    )


def _median_over_seeds(
    read: Callable[[Results], Numbers], conditions: Callable[[Numbers], list[Condition]]
) -> Check:
    """A check of medians over seeds, because single models vary by chance.

    Seeds with too few kept runs are left out.
    """

    def check(runs: Results) -> Outcome:
        seeds = [read(part) for part in runs.by_seed().values() if len(part) >= _FEWEST]
        if not seeds:
            return outcome(None, seeds=0)
        medians = {name: float(np.median([seed[name] for seed in seeds])) for name in seeds[0]}
        return decided(*conditions(medians), **medians, seeds=len(seeds))

    return check


def _best_model(runs: Results) -> Numbers:
    best = chosen_models(runs)["best"]
    power = {f"power_{layer}": best[f"power_{layer}_end"] for layer in (9, 10)}
    growth = {
        f"gap_growth_{layer}": best[f"gap_{layer}_end"] / best[f"gap_{layer}_start"]
        for layer in (9, 10)
    }
    return power | growth


def _is_low_rank(model: Numbers) -> list[Condition]:
    bounds = {"power": 0.9, "gap_growth": 2.0}
    return [
        above(f"{key}_{k}", model[f"{key}_{k}"], bound, strict=False)
        for key, bound in bounds.items()
        for k in (9, 10)
    ]


def _worst_model(runs: Results) -> Numbers:
    models = chosen_models(runs)
    worst = {f"worst_{layer}": models["worst"][f"power_{layer}_end"] for layer in (9, 10)}
    return {**worst, "best_9": models["best"]["power_9_end"]}


def _lags_behind(models: Numbers) -> list[Condition]:
    return [
        above(f"{other} minus worst_9", models[other] - models["worst_9"])
        for other in ("worst_10", "best_9")
    ]


def _misleading_model(runs: Results) -> Outcome:
    """A model with high CKA whose spectrum in layer 9 is not low-rank."""
    cka = profiles(runs, "target_train")[:, -2:].min(1)
    behind = runs["test_accuracy"].max() - runs["test_accuracy"]
    shallow = runs["gap_9_end"] < runs["gap_10_end"] / 2
    found = (cka > 0.9) & (behind >= 0.1) & shallow
    return decided(
        above("models", found.sum(), 1, strict=False),
        aligned=(cka > 0.9).sum(),
        largest_cka=cka.max(),
        farthest_behind=behind.max(),
    )


def _full_rank(runs: Results) -> Outcome:
    width = {layer: runs.runs[0].arrays[f"modes_{layer}"][-1] for layer in (9, 10)}
    share = {f"layer_{k}": runs[f"rank_{k}_start"].min() / width[k] for k in width}
    return decided(*(above(name, v, 0.85, strict=False) for name, v in share.items()))


CLAIMS = (
    grid_claim(
        "fig1-target",
        "in at least 90 % of the kept runs CKA with the target is larger in the last layer than in "
        "the first",
        _target_grows,
    ),
    grid_claim(
        "fig1-input",
        "in at least 90 % of the kept runs CKA with the input is larger in the first layer than in "
        "the last",
        _input_fades,
    ),
    grid_claim(
        "fig1-extremes",
        "on average layer 10 is closest to the target and layer 1 farthest; the reverse for the "
        "input",
        _extremes,
        sizes=LARGE,
    ),
    grid_claim(
        "fig1-learned",
        "CKA with the target falls from the first to the last layer before training, and rises "
        "after it",
        _turned_by_training,
    ),
    grid_claim(
        "fig1-momentum",
        "last-layer CKA with the target is larger with momentum than without: over pairs of runs "
        "that differ in nothing else, by two standard errors",
        _by_momentum("target_train", -1, 1),
    ),
    grid_claim(
        "fig1-plain",
        "first-layer CKA with the input is larger without momentum than with: over pairs of runs "
        "that differ in nothing else, by two standard errors",
        _by_momentum("input_train", 0, -1),
    ),
    grid_claim(
        "fig1-accuracy",
        "test accuracy correlates negatively with layer-averaged CKA with the input",
        _input_hurts,
        fragile="depends on how maps are reduced to vectors, which the paper does not say; no sign "
        "of it was seen in pilots on small convolutional networks",
    ),
    grid_claim(
        "fig1-misranked",
        "of the pairs of runs at least ten points of test accuracy apart, one in ten or more have "
        "last-layer CKA in the opposite order",
        _misranked,
    ),
    grid_claim(
        "fig1-sets",
        "over all runs and layers, CKA on training and test examples correlate above 0.9",
        _train_tells_test,
    ),
    grid_claim(
        "fig1-chance",
        "in at least 90 % of the kept runs the last layer's CKA exceeds that of every permutation "
        "of the labels (ours)",
        _above_chance,
    ),
    grid_claim(
        "fig2-sets",
        "mean CKA of the layers has the same order on both sets: Spearman at least 0.9",
        _order_on_both_sets,
    ),
    grid_claim(
        "fig2-depth",
        "mean CKA with the target never falls with depth (lite: Spearman with depth at least 0.8)",
        _deeper_is_closer,
    ),
    grid_claim(
        "fig2-input",
        "the input is closer than the target at layer 1, the target at the last, and the "
        "difference shrinks with depth: Spearman at most -0.8",
        _input_gives_way,
    ),
    grid_claim(
        "fig6-average",
        "layer-averaged CKA on the test set ranks test accuracy: Spearman at least 0.8 (lite: 0.5)",
        _average_tells_accuracy,
        published={"pearson_test": 0.920, "pearson_train": 0.828},
    ),
    grid_claim(
        "fig3-5-power",
        "in every kept run the first 10 modes of layer 10 end with at least 0.85 of the target's "
        "power, at least 0.3 more than before training",
        _power_gathers,
        unit="",  # a minimum over networks
    ),
    grid_claim(
        "fig4-best",
        "the best model ends with at least 0.9 of the power in 10 modes and at least twice the "
        "initial gap after mode 10, in both of the last two layers (medians over seeds)",
        _median_over_seeds(_best_model, _is_low_rank),
        scope="all",
        unit="",  # one chosen network
    ),
    grid_claim(
        "fig3-worst",
        "in the worst kept model layer 9 ends with less power in 10 modes than layer 10, and than "
        "layer 9 of the best model (medians over seeds)",
        _median_over_seeds(_worst_model, _lags_behind),
        scope="all",
        unit="",  # one chosen network
    ),
    grid_claim(
        "fig5-misleading",
        "some kept model at least 10 points behind the best has CKA above 0.9 in both of the last "
        "two layers, while its gap after mode 10 is less than half as large in layer 9 as in 10",
        _misleading_model,
        sizes=LARGE,
    ),
    grid_claim(
        "fig3-5-rank",
        "before training both layers have full rank, up to 15 % of dead units (tolerance 1e-6)",
        _full_rank,
    ),
)
