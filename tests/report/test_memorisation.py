"""The section on learning and memorising follows the numbers and says how far to trust them."""

import pytest

from tests.report.made_records import row, survey_record
from theodolite.records import Record, Run
from theodolite.report._memorisation import THRESHOLD, memorization_sentence
from theodolite.report._page import page_html
from theodolite.report._reading import groups_of

LAYERS = ("l0", "l1", "l2")


def run_with(contrasts, loss=0.01, name="", split="train", gradient=0.2, **more):
    record = survey_record(list(LAYERS), name=name, curves=False)
    rows = [
        row(layer, "gradient", "feature_omega_contrast", value, **more)
        for layer, value in zip(LAYERS, contrasts, strict=True)
    ]
    rows += [row("l0", "gradient", "omega_contrast", gradient), row(None, "gradient", "loss", loss)]
    data = dict(record.contents["data"]) | {"num_classes": 10, "split": split}
    made = Record(dict(record.contents) | {"rows": rows, "data": data})
    return Run(name, made, (made,))


def sentence(*arguments, **more):
    return memorization_sentence(groups_of([run_with(*arguments, **more)], 60)[0])


@pytest.mark.parametrize(
    ("share", "verdict"),
    [(1.1 * THRESHOLD, "Looks like learning"), (0.9 * THRESHOLD, "Looks like memorising")],
)
def test_the_threshold_decides(share, verdict):
    text = sentence([share * 0.8, 0.5, 0.8])
    assert text.startswith(verdict)
    assert "wrong in 0 of 50 runs" in text
    assert "To try" in text


def test_the_null_is_taken_away_and_shown():
    text = sentence([0.31, 0.5, 0.81], null_mean=0.01, null_sd=0.02)
    assert "37.5%" in text  # 0.30 of 0.80
    assert "15.0 deviations of permuted labels" in text


@pytest.mark.parametrize(
    ("gradient", "verdict"), [(0.011, "Looks like learning"), (0.009, "Looks like memorising")]
)
def test_gradients_that_do_not_agree_are_memorising(gradient, verdict):
    assert sentence([0.3, 0.4, 0.8], gradient=gradient).startswith(verdict)


def test_without_gradients_the_features_decide():
    text = sentence([0.3, 0.4, 0.8], gradient=float("nan"))
    assert text.startswith("Looks like learning")
    assert "gradients of a class" not in text


def test_no_verdict_before_the_fit():
    assert sentence([0.3, 0.4, 0.8], loss=2.0).startswith("No verdict: the mean loss of 2.00")


def test_no_verdict_without_contrast_at_the_output():
    assert sentence([0.3, 0.4, -0.1]).startswith("No verdict")


def test_other_examples_than_the_training_set_are_named():
    assert "measured on test examples" in sentence([0.3, 0.4, 0.8], split="test")


def test_nothing_is_said_of_a_single_layer():
    record = survey_record(["l0"], curves=False)
    rows = [row("l0", "gradient", "feature_omega_contrast", 0.3)]
    made = Record(dict(record.contents) | {"rows": rows})
    assert memorization_sentence(groups_of([Run("", made, (made,))], 60)[0]) == ""


def test_runs_are_told_apart():
    runs = [run_with([0.3, 0.4, 0.8], name="clean"), run_with([0.0, 0.1, 0.8], name="noisy")]
    text = memorization_sentence(groups_of(runs, 60)[0])
    assert text.startswith("clean: looks like learning")  # names stay as they are
    assert " noisy: looks like memorising" in text


def test_the_page_has_the_section():
    page = page_html([run_with([0.3, 0.4, 0.8])])
    assert "Learning or memorising" in page
    assert "Looks like learning" in page
