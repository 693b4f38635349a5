"""Studies, claims, records and runs."""

import json
from dataclasses import replace

import pytest

from papers.tests.ledger.made_studies import SWEPT, Config, made_study
from theodolite.errors import DomainError, RecordError, StudyError, UnknownNameError
from theodolite_papers.ledger import (
    Claim,
    Measured,
    Result,
    Results,
    Trial,
    _runs,
    all_studies,
    claims_hash,
    find_study,
    judge_claim,
    judge_study,
    load_results,
    outcome,
    run_study,
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
        [((103, 104), "holds"), ((1, 2), "fails"), ((1, 104), "mixed"), ((), "not run")],
    )
    def test_over_seeds(self, values, status):
        claim = made_study().claims[0]
        assert judge_claim(claim, "lite", results_of(*values)).status == status

    def test_a_claim_over_all_runs_is_judged_once(self):
        claim = replace(made_study().claims[0], scope="all")
        verdict = judge_claim(claim, "lite", results_of(1, 104))
        assert verdict.status == "fails"
        assert list(verdict.outcomes) == ["all runs"]

    def test_a_claim_over_a_seed_sees_all_its_points(self):
        runs = tuple(
            Result({"value": 1.0}, point={"scale": s}, seed=k) for s in (1, 2) for k in (0, 1)
        )
        claim = Claim("x", "two points", lambda part: outcome(len(part) == 2), scope="seed")
        assert judge_claim(claim, "lite", Results(runs)).status == "holds"

    def test_numbers_without_a_verdict_where_a_size_does_not_judge(self):
        claim = replace(made_study().claims[0], sizes=("reduced",))
        assert judge_claim(claim, "lite", results_of(1)).status == "reported"

    @pytest.mark.parametrize(
        ("values", "scope", "share"),
        [
            ((103, 104), "run", 1.0),
            ((1, 104), "run", 0.25),  # both draws must be the seed that holds
            ((1, 104), "all", 0.25),  # the smallest of both decides
            ((1, 2, 104), "all", 1 / 27),
            ((104,), "all", None),
            ((104,) * 7, "all", 1.0),  # beyond five seeds draws are random
        ],
    )
    def test_seeds_drawn_again(self, values, scope, share):
        claim = replace(made_study().claims[0], scope=scope)
        verdict = judge_claim(claim, "lite", results_of(*values))
        assert verdict.seeds == len(values)
        assert verdict.resampled == (None if share is None else pytest.approx(share))

    def test_a_seed_drawn_twice_counts_as_two(self):
        seen = []
        claim = Claim("x", "seeds", lambda runs: outcome(bool(seen.append(len(runs.by_seed())))),
                      scope="all")  # fmt: skip
        judge_claim(claim, "lite", results_of(1, 2, 3))
        assert set(seen) == {3}

    def test_undecided_is_neither(self):
        claim = Claim("x", "cannot be told", lambda _: outcome(None, value=float("nan")))
        assert judge_claim(claim, "lite", results_of(1)).status == "undecided"


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
        assert kept["verdict"].startswith("mixed (5 seeds")
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
        assert verdict.status == "mixed"
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
