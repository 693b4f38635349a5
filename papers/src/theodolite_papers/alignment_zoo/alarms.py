"""Rules that stop training when memorising begins, with and without a validation set.

A rule watches one quantity at the checkpoints of a run. It keeps the weights of the checkpoint
where the smoothed quantity was best. It sounds an alarm if the quantity has not improved for some
checkpoints. Another kind of rule counts all checkpoints at which the quantity got worse. It keeps
the checkpoint of the alarm, as [forouzesh2021] do with gradient disparity. The first minimum of the
changes of training predictions is the rule of [yuan2024]. The cost of a rule is the test accuracy
lost in comparison with the best checkpoint of the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

__all__ = ["HARM", "AlarmRule", "chosen_rules", "quantities", "stopped"]

_LARGE = 1e9  # replaces infinity, so that sums stay finite
# Memorising harmed if training to the end loses at least this test accuracy. The best of twenty
# checkpoints is some 0.03 above the others by chance, with 500 test examples.
HARM = 0.05


@dataclass(frozen=True)
class AlarmRule:
    """A stopping rule: the quantity that it watches, its direction and its patience.

    Args:
        quantity: a column of the curves, or ``"a - b"`` of two.
        rises: whether a larger quantity is better.
        patience: checkpoints without a better one, after which the alarm sounds.
        smoothing: checkpoints that are averaged.
        counts: whether the rule counts all checkpoints that are worse than the one before.
        needs: "training" or "validation" examples.
    """

    quantity: str
    rises: bool
    patience: int = 2
    smoothing: int = 1
    counts: bool = False
    needs: str = "training"

    def stop(self, values: np.ndarray) -> tuple[int, bool]:
        """Position of the checkpoint to keep, and whether the alarm sounded before the end.

        Example:
            >>> AlarmRule("loss", rises=False, patience=2).stop(np.array([3.0, 1.0, 2.0, 2.5, 0.0]))
            (1, True)
        """
        smooth = _averaged(values, self.smoothing) * (1.0 if self.rises else -1.0)
        if self.counts:
            worse = np.flatnonzero(np.diff(smooth) < 0) + 1
            alarm = len(worse) >= self.patience
            return int(worse[self.patience - 1]) if alarm else len(smooth) - 1, alarm
        best, highest = 0, -np.inf
        for checkpoint, value in enumerate(smooth.tolist()):
            if value > highest:
                best, highest = checkpoint, value
            elif checkpoint - best >= self.patience:
                return best, True
        return best, False


def _averaged(values: np.ndarray, count: int) -> np.ndarray:
    """Mean of the last ``count`` checkpoints, fewer at the start."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - count, 0)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts))


def quantities(curves: pd.DataFrame, name: str) -> np.ndarray:
    """A column of the curves, or the difference of two; undefined values repeat the last one."""
    first, _, second = name.partition(" - ")
    values = curves[first].clip(-_LARGE, _LARGE).ffill().fillna(0.0).to_numpy(np.float64)
    return values - quantities(curves, second) if second else values


def stopped(curves: pd.DataFrame, rules: Mapping[str, AlarmRule]) -> pd.DataFrame:
    """The checkpoint that every rule keeps.

    Args:
        curves: checkpoints of all networks.
        rules: name -> rule.

    Returns:
        By network: ``best`` and ``end`` test accuracy, and of every rule ``kept:NAME`` and
        ``alarm:NAME`` (1 where it sounded).
    """
    rows = {}
    for network, run in curves.sort_values("step").groupby("network", observed=True, sort=False):
        test = run["test_accuracy"].to_numpy(np.float64)
        row = {"best": float(np.nanmax(test)), "end": float(test[-1])}
        watched = {name: quantities(run, name) for name in {r.quantity for r in rules.values()}}
        for name, rule in rules.items():
            checkpoint, alarm = rule.stop(watched[rule.quantity])
            row |= {f"kept:{name}": float(test[checkpoint]), f"alarm:{name}": float(alarm)}
        rows[str(network)] = row
    return pd.DataFrame.from_dict(rows, orient="index")


def chosen_rules(
    curves: pd.DataFrame,
    rules: Mapping[str, Sequence[AlarmRule]],
    patiences: Sequence[int] = (1, 2, 3, 4, 6, 8),
    smoothings: Sequence[int] = (1, 3),
) -> dict[str, AlarmRule]:
    """The form of each rule with the smallest mean loss of test accuracy on these runs."""
    chosen = {}
    for name, forms in rules.items():
        tried = {
            f"{k}": replace(form, patience=patience, smoothing=smoothing)
            for k, (form, patience, smoothing) in enumerate(
                (f, p, s) for f in forms for p in patiences for s in smoothings
            )
        }
        found = stopped(curves, tried)
        lost = {k: float((found["best"] - found[f"kept:{k}"]).mean()) for k in tried}
        chosen[name] = tried[min(lost, key=lambda k: lost[k])]
    return chosen
