"""Claims of Figures 3 to 5: spectra and cumulative power of the last two layers."""

from collections.abc import Callable

import numpy as np

from theodolite_papers.canatar2022._grid_runs import FEWEST, STUDY_ID, of_kept, profiles, shown
from theodolite_papers.ledger import Claim, Judgment, Result, Results, judge

__all__ = ["CLAIMS", "chosen_models"]

Numbers = dict[str, float]


def chosen_models(runs: Results) -> dict[str, Result]:
    """Worst and best kept model, and the one of the worse half that CKA likes best.

    The last is the paper's third model: its last two layers look like those of a good one.
    """
    order = sorted(shown(runs), key=lambda run: run["test_accuracy"])
    half = order[: max(1, len(order) // 2)]
    liked = [min(run.arrays["target_train"][0, -2:]) for run in half]
    return {"worst": order[0], "best": order[-1], "misleading": half[int(np.argmax(liked))]}


def _power_gathers(runs: Results) -> Judgment:
    end, start = runs["power_10_end"], runs["power_10_start"]
    holds = end.min() >= 0.85 and (end - start).min() >= 0.3
    return judge(
        bool(holds),
        smallest_end=end.min(),
        smallest_rise=(end - start).min(),
        share=((end >= 0.85) & (end - start >= 0.3)).mean(),
    )


def _median_over_seeds(
    read: Callable[[Results], Numbers], holds: Callable[[Numbers], bool]
) -> Callable[[Results], Judgment]:
    """A check of medians over seeds, since what one model of each shows may be an accident.

    Seeds that kept too few runs to speak of a best or worst one are left out.
    """

    def check(runs: Results) -> Judgment:
        seeds = [read(part) for part in runs.by_seed().values() if len(part) >= FEWEST]
        if not seeds:
            return judge(None, seeds=0)
        medians = {name: float(np.median([seed[name] for seed in seeds])) for name in seeds[0]}
        passed = sum(holds(seed) for seed in seeds)
        return judge(holds(medians), **medians, seeds=len(seeds), passed=passed)

    return check


def _best_model(runs: Results) -> Numbers:
    best = chosen_models(runs)["best"]
    power = {f"power_{layer}": best[f"power_{layer}_end"] for layer in (9, 10)}
    growth = {
        f"gap_growth_{layer}": best[f"gap_{layer}_end"] / best[f"gap_{layer}_start"]
        for layer in (9, 10)
    }
    return power | growth


def _is_low_rank(model: Numbers) -> bool:
    power, growth = ([model[f"{key}_{k}"] for k in (9, 10)] for key in ("power", "gap_growth"))
    return min(power) >= 0.9 and min(growth) >= 2


def _worst_model(runs: Results) -> Numbers:
    models = chosen_models(runs)
    worst = {f"worst_{layer}": models["worst"][f"power_{layer}_end"] for layer in (9, 10)}
    return {**worst, "best_9": models["best"]["power_9_end"]}


def _lags_behind(models: Numbers) -> bool:
    return models["worst_9"] < min(models["worst_10"], models["best_9"])


def _misleading_model(runs: Results) -> Judgment:
    """A model that CKA likes, with a spectrum of layer 9 that is not low-rank."""
    cka = profiles(runs, "target_train")[:, -2:].min(1)
    behind = runs["test_accuracy"].max() - runs["test_accuracy"]
    shallow = runs["gap_9_end"] < runs["gap_10_end"] / 2
    found = (cka > 0.9) & (behind >= 0.1) & shallow
    return judge(
        bool(found.any()),
        models=found.sum(),
        aligned=(cka > 0.9).sum(),
        largest_cka=cka.max(),
        farthest_behind=behind.max(),
    )


def _full_rank(runs: Results) -> Judgment:
    width = {layer: runs.runs[0].arrays[f"modes_{layer}"][-1] for layer in (9, 10)}
    share = {f"layer_{k}": runs[f"rank_{k}_start"].min() / width[k] for k in width}
    return judge(min(share.values()) >= 0.85, **share)


CLAIMS = (
    Claim(
        f"{STUDY_ID}.fig3-5-power",
        "in every kept run the first 10 modes of layer 10 end with at least 0.85 of the target's "
        "power, at least 0.3 more than before training",
        of_kept(_power_gathers),
        "seed",
    ),
    Claim(
        f"{STUDY_ID}.fig4-best",
        "the best model ends with at least 0.9 of the power in 10 modes and at least twice the "
        "initial gap after mode 10, in both of the last two layers (medians over seeds)",
        of_kept(_median_over_seeds(_best_model, _is_low_rank)),
        "all",
    ),
    Claim(
        f"{STUDY_ID}.fig3-worst",
        "in the worst kept model layer 9 ends with less power in 10 modes than layer 10, and than "
        "layer 9 of the best model (medians over seeds)",
        of_kept(_median_over_seeds(_worst_model, _lags_behind)),
        "all",
    ),
    Claim(
        f"{STUDY_ID}.fig5-misleading",
        "some kept model at least 10 points behind the best has CKA above 0.9 in both of the last "
        "two layers, while its gap after mode 10 is less than half as large in layer 9 as in 10",
        of_kept(_misleading_model),
        "seed",
        sizes=("paper",),
    ),
    Claim(
        f"{STUDY_ID}.fig3-5-rank",
        "before training both layers have full rank, up to 15 % of dead units (tolerance 1e-6)",
        of_kept(_full_rank),
        "seed",
    ),
)
