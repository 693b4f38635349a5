"""Made-up runs of studies, to put a claim on both sides of its threshold."""

import numpy as np

from theodolite_papers.ledger import Result, Results, find_study


def made_run(numbers=None, arrays=None, seed=101, **point):
    return Result(numbers or {}, arrays or {}, {}, point, seed, "lite")


def made_runs(*runs):
    return Results(tuple(runs))


def claim_of(name):
    study = find_study(name.rpartition(".")[0])
    return next(claim for claim in study.claims if claim.id == name)


def holds(name, *runs):
    return claim_of(name).check(made_runs(*runs)).holds


def depth_run(depth, peak, *, loss=0.01, seed=101, **point):
    arrays = {
        "curves": np.ones((1, depth), dtype=np.float16),
        "peaks": np.asarray([peak], dtype=np.float32),
        "final_losses": np.asarray([loss], dtype=np.float32),
        "test_accuracies": np.asarray([90.0], dtype=np.float32),
    }
    numbers = {"cosine": 0.0, "test_accuracy": 90.0, "tabled_accuracy": 91.0}
    return made_run(numbers, arrays, seed, depth=depth, **point)
