"""The three sentences follow the numbers, say how sure they are, and give way to the record's."""

import math

import pytest

from tests.report.made_records import history_run, row, survey_record, survey_run
from theodolite.records import Answer, Record, Run
from theodolite.report import answers, notebook_html

LABELED = {
    "kernel": "cka_target",
    "representation": "alignment_area",
    "gradient": "feature_omega_contrast",
}


def run_with(values, *, name="", null_sd=0.01, loss=None, **data):
    """A survey with the same numbers in three families, or with numbers by family."""
    by_family = values if isinstance(values, dict) else dict.fromkeys(LABELED, values)
    count = len(next(iter(by_family.values())))
    record = survey_record([f"l{i}" for i in range(count)], name=name, curves=False)
    more = {} if null_sd is None else {"null_mean": 0.0, "null_sd": null_sd}
    rows = [
        row(f"l{i}", family, LABELED[family], value, **more)
        for family, numbers in by_family.items()
        for i, value in enumerate(numbers)
    ]
    rows += [] if loss is None else [row(None, "gradient", "loss", loss)]
    contents = dict(record.contents) | {"rows": rows, "data": record.contents["data"] | data}
    made = Record(contents)
    return Run(name, made, (made,))


def told(*runs, step=None):
    return {answer.question: answer for answer in answers(runs, step)}


def test_there_are_three_in_order_for_each_network():
    questions = [a.question for a in answers([survey_run(), survey_run(("a", "b"))])]
    assert questions == ["task", "layer", "next"] * 2


def test_classes_that_are_told_apart():
    found = told(run_with([0.1, 0.2, 0.5], loss=0.01))
    text = found["task"].text
    assert "apart: CKA to labels in its last layer, l2, is 0.500 (chance 0)" in text
    assert "it fits these examples (loss 0.010, chance 1.10)" in text
    assert found["task"].certainty == "clear"
    assert "50 standard deviations" in found["task"].why
    assert found["layer"].text.startswith("l2, the last layer, carries the task: CKA to labels")
    assert (found["layer"].certainty, found["layer"].why) == ("clear", "3 of 3 measures agree")


def test_chance_is_not_called_knowledge():
    found = told(run_with([0.01, 0.0, 0.005]))
    assert found["task"].text.startswith("The network does not tell the classes apart")
    assert found["layer"].text.startswith("No layer carries the task")


def test_a_number_slightly_beyond_chance_is_likely_and_one_without_chance_open():
    assert told(run_with([0.0, 0.03]))["task"].certainty == "likely"
    assert told(run_with([0.0, 0.3], null_sd=None))["task"].certainty == "open"


def test_measures_that_disagree_leave_the_layer_open():
    values = {"kernel": [0.6, 0.2], "representation": [0.1, 0.5], "gradient": [0.1, 0.4]}
    layer = told(run_with(values))["layer"]
    assert layer.certainty == "open"
    assert layer.text.startswith(
        "No single layer carries the task: highest are CKA to labels (0.600) in l0 and label"
        " alignment (0.500) and feature contrast (0.400) in l1"
    )


def test_an_earlier_layer_with_nearly_as_much_is_named():
    text = told(run_with([0.1, 0.57, 0.6]))["layer"].text
    assert "l1 already has 95 % of its CKA to labels" in text
    assert "already" not in told(run_with([0.1, 0.3, 0.6]))["layer"].text


def test_guessing_is_said_and_what_to_do_about_it():
    found = told(run_with([0.1, 0.4], loss=1.2))
    assert found["task"].text.startswith("The network does not do the task: its loss")
    assert found["next"].text.startswith("Train it, or check labels")


@pytest.mark.parametrize("split", ["train", "unknown"])
def test_training_examples_ask_for_others(split):
    found = told(run_with([0.1, 0.4], loss=0.01, split=split))["next"]
    assert found.text.startswith("Measure held-out examples next")


def test_held_out_examples_name_the_layer_to_read_out():
    run = run_with([0.1, 0.4, 0.3], split="test")
    assert told(run)["next"].text == "To reuse this network, take the features of l1."
    steps = [row(f"l{i}", "representation", "predicted_steps", v) for i, v in enumerate((9, 30, 4))]
    run.steps[0].contents["rows"].extend(steps)
    assert "read it out at l2" in told(run)["next"].text


def test_unlabeled_data_say_what_is_missing():
    found = told(run_with({"kernel": [math.nan, math.nan]}, task="unlabeled"))
    assert found["task"].text.endswith("no number here reads labels.")
    assert found["layer"].certainty == found["task"].certainty == "open"
    assert found["next"].text.startswith("Give the survey labels")


def test_regression_follows_targets():
    assert "follows the targets" in told(run_with([0.1, 0.4], task="regression"))["task"].text


def test_two_runs_are_told_by_what_differs():
    found = told(run_with([0.5, 0.6], name="a"), run_with([0.1, 0.2], name="b"))
    assert found["task"].text == (
        "“a” tells its classes apart more than “b”: CKA to labels 0.600 against 0.200 in l1,"
        " higher in every layer."
    )
    assert "28 standard deviations" in found["task"].why
    assert found["next"].text.startswith("Look at l0 first")


def test_training_and_held_out_examples_of_one_network_are_compared():
    runs = [
        run_with([0.5, 0.6], name="good", split="train"),
        run_with([0.5, 0.57], name="good, test", split="test"),
        run_with([0.0, 0.4], name="bad", split="train"),
        run_with([0.1, 0.04], name="bad, test", split="test"),
    ]
    found = told(*runs)
    assert "“good” carries over to held-out examples: l1 keeps 95 %" in found["task"].text
    assert "“bad” does not carry over to held-out examples: l1 keeps 10 %" in found["task"].text
    assert "l1 of “bad” first" in found["next"].text


def test_a_history_says_whether_it_still_moves():
    rising = history_run(steps=(0, 10, 20, 30))
    for record in rising.steps:
        for entry in record.contents["rows"]:
            entry["value"] = 0.5 if entry["measure"] == "loss" else entry["value"]
    assert told(rising)["next"].text.startswith("Train longer: CKA to labels of fc3 still rises")
    assert "up from" in told(rising)["task"].text
    assert "up from" not in told(rising, step=0)["task"].text


def test_sentences_of_the_record_come_first():
    run = run_with([0.1, 0.5])
    entry = {"question": "next", "text": "Label <b>ten</b> more.", "certainty": "likely"}
    evidence = {"why": "a trial", "evidence": ["kernel-cka-target"]}
    run.steps[0].contents["answers"] = [entry | evidence]
    found = told(run)
    assert found["next"] == Answer(
        "next", "Label <b>ten</b> more.", "likely", "a trial", ("kernel-cka-target",)
    )
    assert found["task"].text.startswith("The network tells")
    assert "Label &lt;b&gt;ten&lt;/b&gt; more." in notebook_html([run])


def test_two_runs_keep_what_their_records_say_of_layers():
    runs = [run_with([0.1, 0.5]), run_with([0.1, 0.3])]
    for run, sure in zip(runs, ("clear", "likely"), strict=True):
        entry = {"question": "layer", "text": f"It is {sure}.", "certainty": sure}
        run.steps[0].contents["answers"] = [entry | {"why": "a trial", "evidence": []}]
    layer = told(*runs)["layer"]
    assert layer.text.index("It is clear.") < layer.text.index("It is likely.")
    assert layer.certainty == "likely"


def test_as_text_a_sentence_says_how_sure_it_is():
    assert str(told(run_with([0.1, 0.5]))["layer"]).endswith("(clear: 3 of 3 measures agree)")
