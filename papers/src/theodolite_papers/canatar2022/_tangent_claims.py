"""Claims of Figures 7 and 8: the tangent kernel turns to the target and becomes low-rank."""

from collections.abc import Callable

from theodolite_papers.ledger import Claim, Judgment, Result, Results, judge

__all__ = ["CLAIMS", "main_setting"]

_ID = "canatar2022.fig7-8"


def main_setting(size: str) -> str:
    """The setting that is judged: that of the paper at its size, the small pilots' elsewhere."""
    return "ntk" if size == "paper" else "standard"


def _main(check: Callable[[Result], Judgment]) -> Callable[[Results], Judgment]:
    """A check of the judged setting; None until it was run."""

    def checked(runs: Results) -> Judgment:
        chosen = runs.where(setting=main_setting(runs.runs[0].size))
        return check(chosen.runs[0]) if len(chosen) else judge(None, runs=0)

    return checked


def _accuracy(run: Result) -> Judgment:
    least = 0.9 if run.size == "lite" else 0.93
    value = run["test_accuracy"]
    return judge(value >= least, test_accuracy=value, train_accuracy=run["train_accuracy"])


def _rises(run: Result) -> Judgment:
    numbers = {}
    for name in ("train", "test"):
        for kind in ("", "_debiased"):
            key = f"ntk_target{kind}_{name}"
            numbers[f"rise{kind}_{name}"] = run[f"{key}_end"] - run[f"{key}_start"]
        numbers[f"end_{name}"] = run[f"ntk_target_{name}_end"]
        numbers[f"null_{name}"] = run[f"ntk_target_null_{name}_end"]
    return judge(min(numbers["rise_train"], numbers["rise_test"]) >= 0.2, **numbers)


def _fits(run: Result) -> Judgment:
    value = run["network_target_train_end"]
    test = run["network_target_test_end"]
    return judge(value >= 0.95, train=value, test=test)


def _curves_meet(run: Result) -> Judgment:
    target, network = run["ntk_target_train_end"], run["ntk_network_train_end"]
    return judge(abs(target - network) < 0.05, ntk_target=target, ntk_network=network)


def _network_leads(run: Result) -> Judgment:
    target, network = run["ntk_target_train_start"], run["ntk_network_train_start"]
    return judge(network > target, ntk_target=target, ntk_network=network)


def _power_gathers(run: Result) -> Judgment:
    start, end = run["power_train_start"], run["power_train_end"]
    test = {"test_start": run["power_test_start"], "test_end": run["power_test_end"]}
    return judge(end >= 0.95 and end - start >= 0.3, start=start, end=end, **test)


def _gap_opens(run: Result) -> Judgment:
    start, end = run["gap_train_start"], run["gap_train_end"]
    test = {"test_start": run["gap_test_start"], "test_end": run["gap_test_end"]}
    return judge(end >= 2 * start, start=start, end=end, **test)


def _rank_falls(run: Result) -> Judgment:
    start, end = run["participation_train_start"], run["participation_train_end"]
    return judge(end < start, start=start, end=end)


def _share_of_readout(runs: Results) -> Judgment:
    chosen = runs.where(setting="standard")
    if not len(chosen):
        return judge(None, runs=0)
    run = chosen.runs[0]
    start, end = run["norm_share_train_start"], run["norm_share_train_end"]
    return judge(end >= 2 * start, start=start, end=end)


def _dominates(run: Result) -> Judgment:
    """Shares of the first term, and how well each term alone fits the target."""
    names = ("trace_share", "norm_share", "readout_target", "gradient_target")
    numbers = {f"{name}_{end}": run[f"{name}_train_{end}"] for name in names for end in _ENDS}
    return judge(run["norm_share_train_end"] > 0.5, **numbers)


def _printed_rate(runs: Results) -> Judgment:
    found = {run.point["setting"]: run["test_accuracy"] for run in runs}
    if len(found) < 3:
        return judge(None, runs=len(found))
    return judge(found["literal"] <= found["ntk"] - 0.1, **found)


_ENDS = ("start", "end")


def _claim(name: str, text: str, check: Callable[[Results], Judgment], **options: object) -> Claim:
    return Claim(f"{_ID}.{name}", text, check, "seed", **options)  # type: ignore[arg-type]


CLAIMS = (
    _claim(
        "fig7-accuracy",
        "test accuracy ends at 0.93 or more (lite, on 8x8 digits: 0.9)",
        _main(_accuracy),
        published={"test_accuracy": 0.95},
    ),
    _claim(
        "fig7-rise",
        "CKA of the tangent kernel with the target rises by at least 0.2 on both sets",
        _main(_rises),
    ),
    _claim(
        "fig7-fit",
        "CKA of the network's outputs with the target ends at 0.95 or more on the training set",
        _main(_fits),
    ),
    _claim(
        "fig7-meet",
        "CKA of the tangent kernel with target and with outputs end less than 0.05 apart on the "
        "training set",
        _main(_curves_meet),
    ),
    _claim(
        "fig7-start",
        "before training the tangent kernel is closer to the outputs than to the target",
        _main(_network_leads),
    ),
    _claim(
        "fig8-power",
        "the first 10 modes end with at least 0.95 of the target's power on the training set, at "
        "least 0.3 more than before",
        _main(_power_gathers),
    ),
    _claim(
        "fig8-gap",
        "the gap after mode 10 at least doubles on the training set",
        _main(_gap_opens),
    ),
    _claim(
        "fig8-rank",
        "the participation ratio of the centred kernel falls on the training set",
        _main(_rank_falls),
    ),
    _claim(
        "fig8-share",
        "the share of the last layer's kernel, in centred norm, at least doubles (standard "
        "parametrisation; ours)",
        _share_of_readout,
    ),
    _claim(
        "fig8-dominates",
        "the last layer's kernel dominates the tangent kernel: more than half of its centred norm",
        _main(_dominates),
        sizes=(),
        fragile="the paper gives no number; in pilots the share grew and stayed about one half",
    ),
    _claim(
        "fig7-literal",
        "the printed rate in the standard parametrisation ends at least 10 points of test accuracy "
        "below the NTK parametrisation (ours)",
        _printed_rate,
    ),
)
