"""Sentences follow the numbers."""

import math
from dataclasses import replace

import pytest

from tests.report.made_records import history_run, row, sparse_run, survey_record, survey_run
from theodolite.advice.captions import (
    family_sentence,
    opening_sentence,
    profile_sentence,
)
from theodolite.records import Record, Run, groups_of, shown, spaced
from theodolite.report._overview import whole_numbers


def run_with(family, measure, values, name="", **more):
    record = survey_record([f"l{i}" for i in range(len(values))], name=name, curves=False)
    rows = [row(f"l{i}", family, measure, value, **more) for i, value in enumerate(values)]
    made = Record(dict(record.contents) | {"rows": rows})
    return Run(name, made, (made,))


def group_with(*arguments, **more):
    return groups_of([run_with(*arguments, **more)], 60)[0]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.1, 0.2, 0.4], "rises from l0 (0.100) to l2 (0.400)."),
        ([0.4, 0.5, 0.1], "falls from l0 (0.400) to l2 (0.100). It is highest in l1"),
        ([0.4, 0.3, 0.41], "differs little between layers"),
        ([0.4, math.nan, 0.1], "falls from l0 (0.400) to l2 (0.100)"),
    ],
    ids=["rises", "falls", "level", "gap"],
)
def test_direction(values, words):
    text = family_sentence(group_with("representation", "alignment_area", values), "representation")
    assert words in text


@pytest.mark.parametrize(
    ("value", "words"), [(0.88, "12 % less misaligned"), (1.3, "30 % more misaligned")]
)
def test_misalignment_is_told_against_random_bases(value, words):
    group = group_with("covariance", "relative_misalignment", [value])
    assert words in family_sentence(group, "covariance")


def test_a_number_of_the_kernel_family_names_its_layer():
    group = group_with("kernel", "cka_target", [0.1, 0.3, math.nan])
    assert "0.300 in l1" in family_sentence(group, "kernel")


def test_chance_is_counted_in_its_own_standard_deviations():
    more = {"null_mean": 0.1, "null_sd": 0.05}
    group = group_with("kernel", "cka_target", [0.15, 0.19, 0.21, 0.5], **more)
    assert "2 of 4 layers are more aligned than chance." in family_sentence(group, "kernel")
    more = {"null_mean": 1.0, "null_sd": 0.1}
    group = group_with("covariance", "relative_misalignment", [0.7, 0.9, 1.5], **more)
    assert "1 of 3 layers is more aligned than chance." in family_sentence(group, "covariance")


def test_a_layer_within_chance_is_not_singled_out():
    run = run_with("covariance", "relative_misalignment", [0.7, 0.01], null_mean=1.0, null_sd=0.1)
    run.head.contents["rows"][1]["null_sd"] = 0.6  # few filters
    for runs in ([run], [run, replace(run, name="other")]):
        text = family_sentence(groups_of(runs, 60)[0], "covariance")
        assert "eights of l0 are 30 % less misaligned" in text
        assert "1 of 2 layers is more aligned than chance." in text


def test_a_second_run_is_compared_layer_by_layer():
    first = run_with("kernel", "cka_target", [0.5, 0.5, 0.5], name="true")
    second = run_with("kernel", "cka_target", [0.4, 0.6, 0.1], name="shuffled")
    text = family_sentence(groups_of([first, second], 60)[0], "kernel")
    assert "shuffled: lower in 2 of 3 layers" in text
    assert text.startswith("true: CKA")  # names stay as they are


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ([0.6, 0.7, 0.8], "higher in every layer"),
        ([0.4, 0.3, 0.2], "lower in every layer"),
        ([0.6, 0.7, 0.2], "higher in 2 of 3 layers"),
        ([0.5, 0.5, 0.5], "equal in every layer"),
    ],
    ids=["higher", "lower", "mixed", "equal"],
)
def test_a_comparison_says_what_holds_not_what_does_not(other, words):
    runs = [
        run_with("kernel", "cka_target", values, name=name)
        for name, values in (("a", [0.5, 0.5, 0.5]), ("b", other))
    ]
    text = family_sentence(groups_of(runs, 60)[0], "kernel")
    assert f"b: {words}" in text
    assert "no layer" not in text


def test_a_history_tells_what_changed_most():
    group = groups_of([history_run()], 60)[0]
    moments = group.runs[0].moments
    changes = {
        layer: moments[-1].value("kernel", "cka_target", layer)
        - moments[0].value("kernel", "cka_target", layer)
        for layer in group.layers
    }
    layer = max(changes, key=lambda name: abs(changes[name]))
    assert f"largest change since step 0 is in {layer}: " in family_sentence(group, "kernel")
    assert "at 4 steps from 0 to 1000" in opening_sentence(group)


def test_a_layer_as_high_as_the_highest_within_the_error_is_named():
    group = group_with("tangent", "tangent_alignment", [0.010, 0.011, 0.002])
    for entry in group.runs[0].run.steps[0].contents["rows"]:
        entry["error"] = 0.001
    said = family_sentence(group, "tangent")
    assert "highest in l1 (0.011). That is not significantly higher than in l0." in said


def test_nothing_is_said_without_numbers():
    group = group_with("kernel", "cka_target", [math.nan, math.nan])
    assert family_sentence(group, "kernel") == "Not shown: undefined in every layer."
    assert profile_sentence(group, "kernel", "cka_target") == ""
    assert family_sentence(group, "tangent") == "Not shown: not measured."


def test_a_measure_of_some_steps_says_where_it_is_missing():
    run = history_run()
    rows = run.steps[0].contents["rows"]
    rows[:] = [item for item in rows if item["measure"] != "stiffness"]
    group = groups_of([run], 60)[0]
    assert profile_sentence(group, "gradient", "stiffness", 0) == "Not measured at step 0."
    assert "ighest in" in profile_sentence(group, "gradient", "stiffness", 10)


def test_a_family_without_numbers_has_the_reason_of_a_complete_step():
    run = sparse_run(4, last=False, steps=(0, 10, 20))
    for reason, record in zip(("no targets", "at rest", "at rest"), run.steps, strict=True):
        rows = [item for item in record.contents["rows"] if item["family"] != "tangent"]
        record.contents.update(rows=rows, skipped={"tangent": reason})
    assert family_sentence(groups_of([run], 60)[0], "tangent") == "Not shown: no targets."


def test_the_opening_tells_which_families_were_taken_at_some_steps():
    run = sparse_run(4, steps=(0, 10, 20, 30, 40, 50))
    opening = opening_sentence(groups_of([run], 60)[0])
    assert "at 6 steps from 0 to 50 (tangent at 3 of 6)." in opening
    assert " of " not in opening_sentence(groups_of([history_run()], 60)[0]).partition("steps")[2]


def test_the_opening_says_of_which_step_the_loss_is():
    short = sparse_run(4, last=False, name="short", steps=tuple(range(6)))
    long = sparse_run(4, name="long", steps=tuple(range(11)))
    losses = [
        shown(next(r["value"] for r in run.steps[step].contents["rows"] if r["measure"] == "loss"))
        for run, step in ((short, 4), (long, 10))
    ]
    assert f"Loss on them: {losses[0]} at step 4." in opening_sentence(groups_of([short], 60)[0])
    both = opening_sentence(groups_of([short, long], 60)[0])
    assert "at 11 steps from 0 to 10 (tangent at 4 of 11)" in both
    assert f"Loss: {losses[0]} at step 4 (short), {losses[1]} (long)." in both


def test_infinite_numbers_are_told():
    group = group_with("representation", "predicted_steps", [10.0, math.inf, 30.0])
    text = profile_sentence(group, "representation", "predicted_steps")
    assert text == "Highest in l2 (30), lowest in l0 (10). It is infinite in l1."


def test_a_chart_of_two_measures_names_the_one_that_its_sentence_is_about():
    group = group_with("kernel", "participation_ratio", [10.0, 20.0, 30.0])
    text = profile_sentence(group, "kernel", "participation_ratio", words="participation ratio")
    assert text == "Participation ratio: highest in l2 (30.0), lowest in l0 (10.0)."


def test_the_raw_input_is_no_layer_of_a_comparison():
    runs = [
        run_with("representation", "probe_accuracy", values, name)
        for name, values in (("a", [0.9, 0.5, 0.6]), ("b", [0.7, 0.6, 0.7]))
    ]
    for run in runs:
        run.head.contents["layers"][0]["role"] = "input"
    text = profile_sentence(groups_of(runs, 60)[0], "representation", "probe_accuracy")
    assert text.endswith("b: higher in every layer than with a.")


def test_the_accuracy_of_a_page_without_held_out_data_defines_the_fit():
    rows = [row(None, "representation", "accuracy", 0.9)]
    record = survey_record(["l0"], curves=False)
    run = Run("", record, (Record(dict(record.contents) | {"rows": rows}),))
    ((_, numbers),) = whole_numbers(groups_of([run], 60)[0], "representation")
    assert "the fit is (accuracy − chance) / (1 − chance)" in numbers[0][3]


def test_numbers_of_the_whole_model_come_with_their_meaning():
    group = groups_of([survey_run()], 60)[0]
    value = group.runs[0].last.value("tangent", "equilibrium_layer", None)
    ((_, numbers),) = whole_numbers(group, "tangent")
    told = {name: (number, meaning) for name, number, _, meaning in numbers}
    assert told["predicted peak"][0] == shown(value)
    assert "counted from 1" in told["predicted peak"][1]
    for family in ("tangent", "gradient"):
        assert all(meaning for _, _, _, meaning in whole_numbers(group, family)[0][1])


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.99951, "1.00"), (9.996, "10.0"), (99.96, "100"), (-0.5, "−0.500"), (5, "5.00"),
     (12345678.0, "1.2e+07"), (3e-7, "3.0e−07"), (None, "–"), (-math.inf, "−∞")],
)  # fmt: skip
def test_numbers_as_a_reader_sees_them(value, text):
    assert shown(value) == text


@pytest.mark.parametrize("count", [1, 2, 7, 100, 1234])
@pytest.mark.parametrize("logarithmic", [False, True])
def test_spaced_keeps_both_ends(count, logarithmic):
    kept = spaced(count, 7, logarithmic=logarithmic)
    assert kept == sorted(set(kept))
    assert (kept[0], kept[-1]) == (0, count - 1)
    assert len(kept) <= 7


@pytest.mark.parametrize(
    ("family", "measure", "told"),
    [
        ("kernel", "cka_input", "Not shown: CKA to labels needs targets"),
        ("gradient", "feature_omega", "Not shown: feature contrast needs classes"),
    ],
    ids=["targets", "classes"],
)
def test_a_family_without_its_headline_says_what_it_needs(family, measure, told):
    group = group_with(family, measure, [0.5, 0.4])
    assert family_sentence(group, family) == f"{told}; other measures are below."


def test_a_headline_that_is_undefined_everywhere_says_why():
    group = group_with("kernel", "cka_target", [math.nan, math.nan])
    for entry in group.runs[0].last.record.contents["rows"]:
        entry["reason"] = "all examples have the same label"
    said = family_sentence(group, "kernel")
    assert said == "Not shown: undefined in every layer, all examples have the same label."
