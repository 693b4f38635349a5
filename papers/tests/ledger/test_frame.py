"""Studies, claims, records and runs."""

import json
import math
from dataclasses import replace

import pytest
from scipy import stats

from papers.tests.ledger.made_studies import SWEPT, Config, made_study
from theodolite.errors import DataError, DomainError, RecordError, StudyError, UnknownNameError
from theodolite_papers.ledger import (
    CORRELATION,
    RATIO,
    SHARE,
    Claim,
    Measured,
    Outcome,
    Result,
    Results,
    Trial,
    _runs,
    above,
    all_studies,
    below,
    between,
    claims_hash,
    decided,
    find_study,
    judge_claim,
    judge_study,
    load_results,
    outcome,
    pass_rate,
    run_study,
    share_condition,
    withdraw_study,
)
from theodolite_papers.ledger._runs import withdrawn_verdicts


@pytest.fixture(autouse=True)
def findable(monkeypatch):
    """Runs look a study up by its id, as worker processes must."""
    studies = {}
    monkeypatch.setattr(_runs, "find_study", lambda name: studies.get(name) or find_study(name))

    def register(study):
        studies[study.id] = study
        return study

    return register


def results_of(*values):
    return Results(tuple(Result({"value": v}, seed=k) for k, v in enumerate(values)))


class TestVerdicts:
    @pytest.mark.parametrize(
        ("values", "status"),
        [
            ((103, 104, 104, 103, 105), "holds"),
            ((1, 2), "fails"),  # 102 is far outside the interval of 1 and 2
            ((101.9, 60), "undecided"),  # below 102 on both seeds, inside the noise
            ((102.1, 160), "undecided"),
            ((102.1, 102.2, 110, 190, 260), "undecided"),  # above 102 on five, inside the noise
            ((60, 101, 101.9, 101, 30), "undecided"),  # five seeds agree, inside the noise
            ((1, 104), "undecided"),
            ((101.9, 110, 110.1, 109.9, 110), "mixed"),  # one seed fails, the mean is clear
            ((104,), "one seed"),
            ((), "not run"),
        ],
    )
    def test_over_seeds(self, values, status):
        claim = made_study().claims[0]
        assert judge_claim(claim, "lite", results_of(*values)).status == status

    @pytest.mark.parametrize(
        ("values", "text"),
        [
            ((103, 104, 104, 103, 105), "holds (5 of 5 seeds, pass rate at least 55 %)"),
            ((104, 104.1), "holds (2 of 2 seeds, pass rate at least 22 %)"),
            ((1, 2, 1, 2, 1), "fails (0 of 5 seeds, pass rate at most 45 %)"),
            ((1, 1, 104, 105, 104), "undecided (3 of 5 seeds, pass rate 15 to 95 %)"),
            (
                (102.1, 160),
                "undecided (2 of 2 seeds, but the interval reaches the other side of the bound)",
            ),
            ((104,), "one seed: holds"),
            ((1,), "one seed: does not hold"),
        ],
    )
    def test_the_bound_on_the_pass_rate_is_exact(self, values, text):
        assert str(judge_claim(made_study().claims[0], "lite", results_of(*values))) == text

    def test_the_deciding_number_has_students_interval(self):
        values = (103.0, 104.0, 105.0)
        decider = judge_claim(made_study().claims[0], "lite", results_of(*values)).decider
        low, high = stats.t.interval(0.95, 2, 104, 1 / 3**0.5)
        assert (decider.value, decider.low, decider.high) == pytest.approx((104, low, high))
        assert (decider.name, decider.bounds, decider.unit) == ("value", "above 102", "3 seeds")

    def test_a_mean_over_all_runs_has_the_same_interval(self):
        claim = Claim("x", "mean", between({"value": "value"}, low=102.0), scope="all")
        decider = judge_claim(claim, "lite", results_of(103, 104, 105)).decider
        low, high = stats.t.interval(0.95, 2, 104, 1 / 3**0.5)
        assert (decider.value, decider.low, decider.high) == pytest.approx((104, low, high))

    def test_the_condition_that_fails_decides(self):
        def check(runs):
            return decided(above("value", runs.mean("value"), 0), below("value2", 7.0, 1))

        verdict = judge_claim(Claim("x", "both", check), "lite", results_of(1, 2, 3))
        assert (verdict.status, verdict.decider.name) == ("fails", "value2")

    @pytest.mark.parametrize(
        ("values", "text"),
        [
            ((1, 2, 3), "mixed (over 3 seeds)"),
            ((1,), "one seed: holds in 1 of 2 comparisons"),
            ((8, 9, 10), "holds (over 3 seeds)"),
            ((1, 7, 13), "undecided (over 3 seeds)"),  # the second one is inside the noise
        ],
    )
    def test_comparisons_that_stand_apart_and_disagree_are_mixed(self, values, text):
        """Conditions that must be met together fail instead."""

        def check(runs):
            value = runs.mean("value")
            return decided(above("first", value, -100), above("second", value, 6))

        claim = Claim("x", "both", check, apart=True)
        assert str(judge_claim(claim, "lite", results_of(*values))) == text
        together = judge_claim(replace(claim, apart=False), "lite", results_of(1, 2, 3))
        assert together.status == "fails"

    def test_a_bound_of_ours_never_fails_the_paper(self):
        claim = made_study().claims[0]
        excuse = "misses a bound that we set"
        verdict = judge_claim(claim, "lite", results_of(1, 2), excuse=excuse)
        assert str(verdict) == "undecided (misses a bound that we set)"
        one = judge_claim(claim, "lite", results_of(1), excuse=excuse)
        assert str(one) == "one seed: misses a bound that we set"
        held = judge_claim(claim, "lite", results_of(103, 103.1), excuse=excuse)
        assert held.status == "holds"
        some = judge_claim(claim, "lite", results_of(90, 90, 90, 90, 102.1), excuse=excuse)
        assert str(some) == "undecided (misses a bound that we set on some runs)"

    def test_settings_that_disagree_are_mixed(self):
        """Each setting has its own interval over seeds; noise between seeds is not mixed."""
        runs = [
            Result({"value": v + k / 10}, point={"scale": s}, seed=k)
            for s, v in ((1, 90), (2, 110))
            for k in (0, 1)
        ]
        verdict = judge_claim(made_study().claims[0], "lite", Results(tuple(runs)))
        assert verdict.status == "mixed"

    @pytest.mark.parametrize(
        ("members", "status"),
        [
            ((True,) * 3, "holds"),
            ((False,) * 3, "fails"),
            ((True, True, False), "mixed"),
        ],
    )
    def test_networks_are_the_unit_of_claims_about_networks(self, members, status):
        claim = Claim("x", "inside", lambda _: Outcome(all(members), {}, members=members))
        verdict = judge_claim(claim, "lite", results_of(1, 2))
        agree = len(set(members)) == 1
        assert (verdict.status, verdict.seeds) == (status, 2 * len(members))
        rate = f"of {2 * len(members)} networks, pass rate {'at ' if agree else ''}"
        assert rate in str(verdict)

    def test_networks_of_one_seed_give_an_interval(self):
        runs = tuple(Result({"value": v}, point={"k": k}) for k, v in enumerate((103, 104, 105)))
        claim = Claim("x", "mean", between({"value": "value"}, low=102.0), "all", unit="network")
        verdict = judge_claim(claim, "lite", Results(runs))
        assert verdict.decider.unit == "3 networks"
        assert str(verdict) == "undecided (3 networks of one seed)"

    def test_a_calculation_needs_no_seeds(self):
        claim = replace(made_study().claims[0], unit="calculation")
        verdict = judge_claim(claim, "lite", results_of(1))
        assert str(verdict) == "fails (an identity or a calculation, seeds do not matter)"
        several = judge_claim(claim, "lite", results_of(1, 2)).decider
        assert (math.isnan(several.low), several.unit) == (True, "calculation")

    def test_a_seed_that_cannot_decide_is_no_miss(self):
        def check(runs):
            value = runs.first["value"]
            return decided(above("value", value), premise=value < 9)

        verdict = judge_claim(Claim("x", "positive", check), "lite", results_of(1, 1, 1, 1, 9))
        assert str(verdict) == "undecided (4 of 4 seeds that decide; 1 does not)"

    @pytest.mark.parametrize(
        ("possible", "values", "ends"),
        [
            (CORRELATION, (0.6, 1.0, 1.0), (0.29, 1)),
            (SHARE, (0.0, 0.5, 1.0), (0, 1)),
            (RATIO, (1.0, 10.0, 100.0), (10 / 304, 3040)),
        ],
    )
    def test_intervals_end_at_values_that_are_possible(self, possible, values, ends):
        def check(runs):
            return decided(above("value", runs.mean("value"), possible=possible))

        decider = judge_claim(Claim("x", "value", check), "lite", results_of(*values)).decider
        assert (decider.low, decider.high) == pytest.approx(ends, rel=0.01, abs=0.01)

    def test_a_share_of_all_networks_has_an_exact_interval(self):
        share = share_condition("share", [True] * 46, 0.9)
        assert share.interval == pytest.approx((0.05 ** (1 / 46), 1))
        assert share.holds

    def test_a_claim_over_all_runs_is_judged_once(self):
        claim = replace(made_study().claims[0], scope="all")
        verdict = judge_claim(claim, "lite", results_of(1, 1.1))
        assert verdict.status == "fails"
        assert list(verdict.outcomes) == ["all runs"]

    def test_a_claim_over_a_seed_sees_all_its_points(self):
        runs = tuple(
            Result({"value": 1.0}, point={"scale": s}, seed=k) for s in (1, 2) for k in (0, 1)
        )
        claim = Claim(
            "x", "points", lambda part: decided(above("points", len(part), 1)), scope="seed"
        )
        assert judge_claim(claim, "lite", Results(runs)).status == "holds"

    def test_numbers_without_a_verdict_where_a_size_does_not_judge(self):
        claim = replace(made_study().claims[0], sizes=("reduced",))
        assert judge_claim(claim, "lite", results_of(1)).status == "reported"

    def test_undecided_is_neither(self):
        claim = Claim("x", "cannot be told", lambda _: outcome(None), premise="it is fitted")
        verdict = judge_claim(claim, "lite", results_of(1))
        assert str(verdict) == "undecided (a condition was not met: it is fitted)"
        plain = judge_claim(replace(claim, premise=""), "lite", results_of(1))
        assert str(plain) == "undecided (these runs cannot decide it)"


@pytest.mark.parametrize(("passed", "of"), [(5, 5), (2, 2), (0, 5), (3, 5), (7, 26)])
def test_pass_rates_are_those_of_clopper_and_pearson(passed, of):
    low, high = pass_rate(passed, of)
    tail = 0.05 if passed in (0, of) else 0.025
    if passed:
        assert stats.binom.sf(passed - 1, of, low) == pytest.approx(tail)
    if passed < of:
        assert stats.binom.cdf(passed, of, high) == pytest.approx(tail)


class TestRuns:
    def test_each_seed_leaves_a_record_that_reads_back(self, tmp_path, findable):
        study = findable(made_study())
        results = run_study(study, results=tmp_path)
        assert [run.seed for run in results] == [101, 102, 103, 104, 105]
        assert results["value"].tolist() == [101, 102, 103, 104, 105]
        assert results.array("curve").shape == (5, 2)
        record = json.loads((tmp_path / study.id / "lite/seed-101/record.json").read_text())
        contents = record["contents"]
        assert contents["config"] == {"scale": 1.0, "repeats": 1}
        assert contents["device"].startswith("cpu")
        assert contents["threads"] >= 1
        assert contents["claims"] == claims_hash(study)
        assert isinstance(contents["commit"], str)

    def test_another_sentence_is_another_hash(self):
        study = made_study()
        other = made_study(claims=(replace(study.claims[0], text="the value is above 103"),))
        assert claims_hash(study) != claims_hash(other) != ""

    def test_withdrawn_records_and_verdicts_stay_visible(self, tmp_path, findable):
        study = findable(made_study())
        run_study(study, results=tmp_path)
        folder = withdraw_study(study, "lite", "another threshold", tmp_path)
        assert len(list(folder.glob("seed-*/record.json"))) == 5
        assert len(load_results(tmp_path, study, "lite")) == 0
        (kept,) = withdrawn_verdicts(tmp_path)
        assert kept["text"] == "the value is above 102"
        assert kept["reason"] == "another threshold"
        assert kept["verdict"] == "undecided (3 of 5 seeds, pass rate 15 to 95 %)"
        with pytest.raises(StudyError, match="no records"):
            withdraw_study(study, "lite", "again", tmp_path)

    def test_a_second_run_makes_only_what_is_missing(self, tmp_path, findable):
        seeds = []

        def counted(config, trial):
            seeds.append(trial.seed)
            return Measured({"value": 1.0})

        study = findable(made_study(measure=counted))
        run_study(study, results=tmp_path, seeds=[101, 102])
        run_study(study, results=tmp_path)
        assert seeds == [101, 102, 103, 104, 105]

    def test_a_failed_seed_keeps_the_others_and_says_why(self, tmp_path, findable):
        def failing(config, trial):
            if trial.seed == 102:
                raise RuntimeError("out of luck")
            return Measured({"value": 1.0})

        study = findable(made_study(measure=failing))
        with pytest.raises(StudyError, match=r"1 of 5 runs failed.*102.*out of luck"):
            run_study(study, results=tmp_path)
        assert len(load_results(tmp_path, study, "lite")) == 4
        kept = tmp_path / study.id / "lite" / "seed-102" / "error.txt"
        assert kept.read_text() == "RuntimeError: out of luck\n"
        findable(made_study())
        run_study(made_study(), results=tmp_path)
        assert not kept.exists()
        assert len(load_results(tmp_path, study, "lite")) == 5

    def test_what_ends_every_run_is_said_once(self, tmp_path, findable):
        def without_data(config, trial):
            raise DataError("mnist: expected mnist.npz, which does not exist")

        study = findable(made_study(measure=without_data))
        with pytest.raises(StudyError) as raised:
            run_study(study, results=tmp_path)
        reason = "mnist: expected mnist.npz, which does not exist"
        assert str(raised.value) == f"{study.id}: no run could be made: {reason}"

    def test_an_interrupted_run_keeps_what_was_done(self, tmp_path, findable):
        def interrupted(config, trial):
            if trial.seed == 103:
                raise KeyboardInterrupt
            return Measured({"value": 1.0})

        study = findable(made_study(measure=interrupted))
        with pytest.raises(KeyboardInterrupt):
            run_study(study, results=tmp_path)
        assert [run.seed for run in load_results(tmp_path, study, "lite")] == [101, 102]

    def test_points_are_runs_of_their_own(self, tmp_path, findable):
        study = findable(made_study(spaces=SWEPT))
        results = run_study(study, results=tmp_path, seeds=[1])
        assert [run.point["scale"] for run in results] == [1.0, 2.0]
        assert results.where(scale=2.0)["value"].tolist() == [2]

    def test_worker_processes_give_the_same_numbers(self, tmp_path):
        here = run_study("imani2022.fig4", "smoke", results=tmp_path / "a", seeds=[1, 2])
        there = run_study(
            "imani2022.fig4", "smoke", results=tmp_path / "b", seeds=[1, 2], workers=2
        )
        assert [run.numbers for run in here] == [run.numbers for run in there]

    def test_randomness_outside_is_left_alone(self, tmp_path, findable):
        import torch

        def drawing(config, trial):
            return Measured({"value": float(torch.rand(()))})

        torch.manual_seed(5)
        expected = torch.rand(3)[1:]
        torch.manual_seed(5)
        torch.rand(1)
        run_study(findable(made_study(measure=drawing)), results=tmp_path)
        assert torch.equal(torch.rand(2), expected)

    def test_progress_reaches_the_end(self, tmp_path, findable):
        shares = []
        study = findable(made_study())
        run_study(study, results=tmp_path, report=lambda share, text: shares.append(share))
        assert shares == sorted(shares)
        assert shares[-1] == 1


class TestChecks:
    def test_claims_are_judged_from_records_alone(self, tmp_path, findable):
        run_study(findable(made_study()), results=tmp_path)

        def never(config, trial):
            raise AssertionError("a check must not run anything")

        study = made_study(measure=never)
        (verdict,) = judge_study(study, "lite", load_results(tmp_path, study, "lite"))
        assert verdict.status == "undecided"
        assert verdict.outcomes["seed 101"].numbers == {"value": 101}

    def test_another_config_is_refused_and_kept(self, tmp_path, findable):
        run_study(findable(made_study()), results=tmp_path, seeds=[101])
        changed = findable(made_study(configs={"lite": Config(scale=3.0)}))
        with pytest.raises(RecordError, match=r"another config.*study withdraw"):
            run_study(changed, results=tmp_path)
        assert load_results(tmp_path, changed, "lite")["value"].tolist() == [101]

    @pytest.mark.parametrize("damage", ["text", "kind", "arrays"])
    def test_damaged_records_are_named(self, tmp_path, findable, damage):
        study = findable(made_study())
        run_study(study, results=tmp_path, seeds=[101])
        folder = tmp_path / study.id / "lite" / "seed-101"
        if damage == "arrays":
            next(folder.glob("arrays-*.npz")).write_bytes(b"nonsense")
        else:
            text = (folder / "record.json").read_text()
            broken = text[: len(text) // 2] if damage == "text" else text.replace("study", "x", 1)
            (folder / "record.json").write_text(broken)
        with pytest.raises(RecordError, match="seed-101"):
            load_results(tmp_path, study, "lite")
        with pytest.raises(RecordError, match="delete"):
            run_study(study, results=tmp_path)


class TestNames:
    def test_unknown_study_size_and_setting(self, tmp_path):
        with pytest.raises(UnknownNameError, match=r"imani2022\.fig4"):
            find_study("imani2022.figure4")
        with pytest.raises(UnknownNameError, match=r"size of imani2022\.fig4 'huge'.*smoke"):
            run_study("imani2022.fig4", "huge", results=tmp_path)
        with pytest.raises(UnknownNameError, match=r"setting.*'depth'"):
            made_study().config_at("lite", {"depth": 3})

    def test_claims_carry_their_studys_name(self):
        with pytest.raises(DomainError, match=r"claims named imani2022\.made\.NAME"):
            made_study(claims=(Claim("other.above", "x", lambda _: outcome(True)),))

    def test_streams_of_a_seed_differ_and_repeat(self):
        first, second = (Trial(3).generator(k).initial_seed() for k in (0, 1))
        assert first != second
        assert Trial(3).generator(0).initial_seed() == first != Trial(4).generator(0).initial_seed()


def test_ids_and_claims_are_unique():
    claims = [claim.id for study in all_studies().values() for claim in study.claims]
    assert len(claims) == len(set(claims))
