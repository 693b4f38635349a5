"""Results with given numbers, to judge claims on either side of their thresholds."""

from papers.tests.sides import side
from theodolite_papers.ledger import Result, Results


def made_runs(*numbers, notes=None, arrays=None):
    return Results(
        tuple(
            Result(one, arrays or {}, notes or {}, seed=101 + k, size="lite")
            for k, one in enumerate(numbers)
        )
    )


def status(study, name, runs, size="lite"):
    (claim,) = [claim for claim in study.claims if claim.id == f"{study.id}.{name}"]
    return side(claim, size, runs)
