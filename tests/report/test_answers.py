"""Sentences of one run are those of its records; those of several say what differs."""

from tests.report.made_records import history_run, row, survey_record, survey_run
from theodolite.advice.captions import trend_sentence
from theodolite.advice.comparing import group_answers
from theodolite.records import Answer, Record, Run, groups_of
from theodolite.report import notebook_html
from theodolite.report._page import page_html

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


def answers(runs, step=None):
    """The answers about each network of the runs."""
    return [answer for group in groups_of(runs, 200) for answer in group_answers(group, step)]


def told(*runs, step=None):
    return {answer.question: answer for answer in answers(runs, step)}


def test_two_runs_are_told_by_what_differs():
    found = told(run_with([0.5, 0.6], name="a"), run_with([0.1, 0.2], name="b"))
    assert found["task"].text == (
        "“a” represents its labels more than “b”: CKA to labels 0.600 against 0.200 in l1,"
        " higher in every layer."
    )
    assert "28 standard deviations of the chance level" in found["task"].evidence
    assert found["next"].text.startswith("Look at l0 first")


def test_there_are_three_in_order_for_each_network():
    questions = [a.question for a in answers([survey_run(), survey_run(("a", "b"))])]
    assert questions == ["task", "layer", "next"] * 2


def entry(text, question="layer", sure="clear", **more):
    keys = {"question": question, "text": text, "certainty": sure, "evidence": "a trial"}
    return keys | {"figures": []} | more


def test_a_run_is_told_by_its_record_alone():
    run = run_with([0.1, 0.5])
    told_here = entry("Label <b>ten</b> more.", "next", "likely", figures=["kernel-cka-target"])
    run.steps[0].contents["answers"] = [told_here]
    assert answers([run]) == [
        Answer(
            "next", "Label <b>ten</b> more.", "likely", "a trial", figures=("kernel-cka-target",)
        )
    ]
    assert "Label &lt;b&gt;ten&lt;/b&gt; more." in notebook_html([run])
    del run.steps[0].contents["answers"]  # records of earlier versions may have none
    assert answers([run]) == []
    assert "more." not in notebook_html([run])


def test_a_sentence_that_a_step_does_not_have_is_that_of_an_earlier_one():
    run = history_run(steps=(0, 10, 20))
    for record, words in zip(run.steps, ("at first", None, "at last"), strict=True):
        record.contents["answers"] = [entry("now", "task")] + [entry(words)] * (words is not None)
    found = told(run, step=10)
    assert (found["layer"].text, found["layer"].evidence) == (
        "at first",
        "measured at step 0; a trial",
    )
    assert found["task"].evidence == "a trial"
    assert told(run)["layer"].text == "at last"
    run.steps[0].contents["answers"] = []
    assert "layer" not in told(run, step=0)
    assert "Not measured up to this step." in page_html([run])


def test_several_runs_keep_what_their_records_say_of_layers():
    runs = [run_with([0.1, 0.5]), run_with([0.1, 0.3])]
    for run, sure in zip(runs, ("clear", "likely"), strict=True):
        run.steps[0].contents["answers"] = [entry(f"It is {sure}.", sure=sure)]
    layer = told(*runs)["layer"]
    assert layer.text.index("It is clear.") < layer.text.index("It is likely.")
    assert layer.certainty == "likely"


def test_a_history_says_whether_it_still_moves():
    (group,) = groups_of([history_run(steps=(0, 10, 20, 30))], 200)
    assert "CKA to labels of fc3 still rises" in trend_sentence(group)
    (short,) = groups_of([history_run(steps=(0, 10))], 200)
    assert trend_sentence(short) == "The loss, and each headline number by layer and step."
