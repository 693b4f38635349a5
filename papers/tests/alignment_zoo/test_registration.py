"""What was registered can be checked, and the committed records say what the table says."""

import tomllib
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import theodolite_papers.alignment_zoo as package
from theodolite.advice import FitEvidence
from theodolite_papers.alignment_zoo import load
from theodolite_papers.alignment_zoo.judging import CONTEXT, STATISTICS, Sample
from theodolite_papers.alignment_zoo.memorising import confusion, rule_answer, verdict_sample
from theodolite_papers.alignment_zoo.pages import alarm_table
from theodolite_papers.alignment_zoo.pilot import chosen_table, pilot_half
from theodolite_papers.alignment_zoo.registration import Hypothesis, registered
from theodolite_papers.ledger import Trial, find_study, load_results

ROOT = Path(package.__file__).parents[4]
RECORDS = ROOT / "papers" / "records"
ANSWERS = " ".join((ROOT / "docs" / "answers.md").read_text().split())
QUESTIONS = ("generalisation", "labels", "verdict", "alarm", "transfer", "trainability")
HYPOTHESES = [(q, one) for q in QUESTIONS for one in registered(q).hypotheses]


@pytest.fixture(scope="module")
def zoo():
    return load()


def sample_of(values, outcome):
    names = (*CONTEXT, "outcome", "ours", "other")
    table = np.zeros((len(outcome), len(names)))
    table[:, -3], table[:, -2], table[:, -1] = outcome, values, -np.asarray(values)
    return Sample(names, table)


class TestHypothesis:
    rising = sample_of([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 5.0])

    @pytest.mark.parametrize(
        ("limits", "holds"),
        [
            ({"at_least": 0.9}, True),
            ({"at_least": 1.1}, False),
            ({"at_most": 1.0}, True),
            ({"at_most": 0.5}, False),
            ({"at_least": 0.5, "than": ("other",)}, True),
            ({"at_most": 1.5, "than": ("other",)}, False),
        ],
        ids=str,
    )
    def test_thresholds_and_rivals_decide(self, limits, holds):
        found = Hypothesis("h", "text", "tau", "ours", **limits).check(self.rising)
        assert found.holds is holds
        assert found.numbers["ours"] == 1.0

    def test_the_worst_of_many_environments_has_no_interval(self):
        """The jackknife of a maximum has no width: it would look certain."""
        table = self.rising.table.copy()
        table[1:, CONTEXT.index("changed")] = 1  # three networks beside the base of their group
        found = Hypothesis("h", "text", "worst", "other", at_least=0.5).check(
            Sample(self.rising.names, table)
        )
        assert found.holds
        assert np.isnan(found.conditions[0].interval).all()

    def test_an_undefined_statistic_decides_nothing(self):
        flat = sample_of([1.0, 1.0], [1.0, 2.0])
        assert Hypothesis("h", "text", "tau", "ours", at_least=0.1).check(flat).holds is None


@pytest.mark.parametrize(("question", "one"), HYPOTHESES, ids=lambda v: getattr(v, "name", v))
def test_a_hypothesis_is_about_registered_numbers_and_states_its_threshold(question, one):
    known = {*registered(question).keys, *registered(question).rules, *registered(question).scores}
    assert one.statistic in STATISTICS
    assert {one.of, *one.than, *one.beside} - {""} <= known
    (limit,) = [x for x in (one.at_least, one.at_most) if x is not None]
    assert any(text in one.text for text in (f"{limit:g}", f"{100 * limit:g} %"))


@pytest.mark.parametrize("question", ["labels", "transfer"])
def test_what_was_chosen_is_what_the_pilot_half_gives(zoo, question):
    text = (Path(package.__file__).parent / "chosen.toml").read_text()
    assert tomllib.loads(text)[question] == chosen_table(pilot_half(zoo), question)


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_records_hold_what_the_table_says(zoo, question):
    study = find_study(f"alignment_zoo.{question}")
    runs = load_results(RECORDS, study, "reduced")
    assert {run.seed for run in runs} == set(zoo.of_half("judged").networks["group"])
    again = study.measure(study.config_at("reduced"), Trial(runs.first.seed))
    np.testing.assert_allclose(runs.first.arrays["table"], again.arrays["table"], rtol=1e-6)


def test_the_printed_rates_of_the_verdict_are_those_of_the_judged_half(zoo):
    table = confusion(verdict_sample(zoo.of_half("judged")))
    said, wrong = int(table["learning"].sum()), int(table.loc["memorised", "learning"])
    assert (said, wrong) == (57, 0)
    assert f"({int(table.sum().sum())} networks) none of {said} verdicts" in ANSWERS


def test_the_printed_rates_of_the_rule_are_those_of_its_judged_runs():
    runs = pd.read_csv(RECORDS / "calibration" / "judged.csv.gz")
    runs = runs.rename(columns={"input_readout": "input_probe"})
    evidence = runs[[field.name for field in fields(FitEvidence)]]
    answers = np.array([rule_answer(FitEvidence(**row)) for row in evidence.to_dict("records")])
    learning, memorising = answers == "learning", answers == "memorising"
    assert (runs["outcome"][learning] == "memorised").sum() == 2
    assert f"Two of {learning.sum()} verdicts" in ANSWERS
    assert (runs["outcome"][memorising] == "learned").sum() == 0
    assert f"In {memorising.sum()} runs the inputs were at chance, and none" in ANSWERS
    assert f"In {(answers == 'undecided').sum()} of {len(runs)} runs neither" in ANSWERS


def test_the_page_says_what_the_verdict_did(zoo):
    table = confusion(verdict_sample(zoo.of_half("judged")))
    text = (ROOT / "docs" / "which-number.md").read_text()
    for name, row in table.iterrows():
        assert f"| {name} | " + " | ".join(map(str, row)) + " |" in text


def test_the_alarms_of_the_page_are_those_of_the_table(zoo):
    text = (ROOT / "docs" / "which-number.md").read_text()
    table = alarm_table(zoo.of_half("judged"))
    assert len(table) == len(registered("alarm").rules)
    for row in table.itertuples(index=False):
        assert "| " + " | ".join(map(str, row)) + " |" in text
