"""Results with given numbers, to judge claims on either side of their thresholds."""

from theodolite_papers.ledger import Result, Results, judge_claim


def made_runs(*numbers, notes=None, arrays=None):
    return Results(
        tuple(
            Result(one, arrays or {}, notes or {}, seed=101 + k, size="lite")
            for k, one in enumerate(numbers)
        )
    )


def status(study, name, runs, size="lite"):
    (claim,) = [claim for claim in study.claims if claim.id == f"{study.id}.{name}"]
    return judge_claim(claim, size, runs).status
