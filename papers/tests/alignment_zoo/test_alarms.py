"""Rules that stop training: what they keep, and what that costs."""

import numpy as np
import pandas as pd
import pytest

from theodolite_papers.alignment_zoo.alarms import AlarmRule, chosen_rules, quantities, stopped
from theodolite_papers.alignment_zoo.judging import CONTEXT, STATISTICS, Sample

RISING = AlarmRule("a", rises=True, patience=2)


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ([1, 2, 3, 4], (3, False)),
        ([1, 3, 2, 4], (3, False)),
        ([1, 3, 2, 2, 9], (1, True)),
        ([3, 2, 1], (0, True)),
        ([1, 1, 1], (0, True)),
    ],
    ids=["no end", "one worse checkpoint", "two worse checkpoints", "falling", "constant"],
)
def test_the_best_look_is_kept_once_patience_ends(values, kept):
    assert RISING.stop(np.array(values, float)) == kept


def test_smoothing_averages_the_last_looks():
    rule = AlarmRule("a", rises=False, patience=1, smoothing=2)
    assert rule.stop(np.array([4.0, 2.0, 3.0, 1.0, 9.0])) == (3, True)  # means 4, 3, 2.5, 2, 5


@pytest.mark.parametrize(("patience", "kept"), [(2, (3, True)), (3, (4, False))])
def test_a_rule_may_count_every_look_that_is_worse(patience, kept):
    rule = AlarmRule("a", rises=False, patience=patience, counts=True)
    assert rule.stop(np.array([1.0, 2.0, 1.0, 3.0, 2.0])) == kept


def run(name, test, **columns):
    return pd.DataFrame(
        {"network": name, "step": range(len(test)), "test_accuracy": test} | columns
    )


def test_a_difference_of_two_quantities_is_watched():
    curves = run("x", [0, 1, 2], a=[1.0, np.nan, 3.0], b=[0.0, 1.0, 1.0])
    assert quantities(curves, "a - b").tolist() == [1.0, 0.0, 2.0]


def test_losses_and_false_alarms_are_those_of_the_networks_meant():
    """One network is harmed by training on, one is not; the rule alarms in both."""
    harmed = run("harmed", [0.5, 0.9, 0.8, 0.7], a=[0, 1, 0, 0])
    unharmed = run("unharmed", [0.5, 0.6, 0.8, 0.9], a=[1, 0, 0, 0])
    found = stopped(pd.concat([harmed, unharmed]), {"rule": RISING})
    assert found.loc["harmed"].tolist() == [0.9, 0.7, 0.9, 1.0]
    assert found.loc["unharmed"].tolist() == [0.9, 0.9, 0.5, 1.0]
    table = np.concatenate([np.zeros((2, len(CONTEXT))), found.to_numpy()], axis=1)
    sample = Sample((*CONTEXT, *found.columns), table)
    assert STATISTICS["lost"](sample, "rule") == pytest.approx(0.2)
    assert STATISTICS["lost_harmed"](sample, "rule") == pytest.approx(0.0)
    assert STATISTICS["false_alarms"](sample, "rule") == 1.0


def test_the_form_that_loses_least_is_chosen():
    curves = run("x", [0.1, 0.5, 0.9, 0.2], good=[1.0, 2.0, 3.0, 2.0], bad=[3.0, 2.0, 1.0, 2.0])
    forms = {"r": [AlarmRule("bad", True), AlarmRule("bad", False), AlarmRule("good", False)]}
    rule = chosen_rules(curves, forms)["r"]
    assert (rule.quantity, rule.rises) == ("bad", False)
