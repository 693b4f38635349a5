"""Runs of the grid made by hand: a world in which every claim of the paper holds."""

import numpy as np

from theodolite_papers.ledger import Result, Results, find_study

STUDY = find_study("canatar2022.fig1-6-table1")
_LAYERS = np.arange(10) / 9


def made_run(point, noise, size="reduced", **changes):
    """One run; ``changes`` replaces numbers and arrays."""
    momentum, augmented = point["momentum"] > 0, point["augmentation"]
    last = 0.72 + 0.23 * momentum + 0.02 * augmented + 0.01 * noise
    target = 0.2 + 0.3 * augmented * _LAYERS * (1 - _LAYERS) + (last - 0.2) * _LAYERS
    inputs = 0.9 - 0.05 * momentum - 0.1 * augmented - 0.7 * _LAYERS
    chance = np.full(10, 0.03)
    numbers = {
        "train_accuracy": 0.99,
        "train_loss": 0.01 + 0.002 * augmented + 0.001 * noise,
        "test_accuracy": 0.7 + 0.2 * augmented + 0.05 * momentum + 0.01 * noise,
    }
    for layer in (9, 10):
        numbers |= {f"power_{layer}_start": 0.3, f"power_{layer}_end": 0.9 + 0.01 * (layer == 10)}
        numbers |= {f"gap_{layer}_start": 1.0, f"gap_{layer}_end": 3.0, f"rank_{layer}_start": 60.0}
    if not augmented:
        numbers |= {"power_9_end": 0.7, "gap_9_end": 1.2}
    rows = {"target_train": target, "target_test": 0.9 * target, "input_train": inputs}
    rows["initial_train"] = 0.4 - 0.2 * _LAYERS
    arrays = {
        name: np.stack([row, row - 0.01, chance, chance + 0.01]).astype(np.float32)
        for name, row in rows.items()
    }
    for layer in (9, 10):
        arrays[f"modes_{layer}"] = np.array([1, 10, 64])
        arrays[f"eigenvalues_{layer}"] = np.ones((3, 3))
        arrays[f"power_{layer}"] = np.ones((3, 3))
    numbers |= {key: value for key, value in changes.items() if key in numbers}
    arrays |= {key: value for key, value in changes.items() if key in arrays}
    return Result(numbers, arrays, {}, point, 101, size)


def made_grid(size="reduced", change=lambda point: {}):
    """All 48 runs; ``change(point)`` gives what is replaced in the run of a point."""
    generator = np.random.default_rng(0)
    points = STUDY.points_at(size)
    noise = generator.uniform(-1, 1, len(points))
    return Results(
        tuple(made_run(p, e, size, **change(p)) for p, e in zip(points, noise, strict=True))
    )


def judged(name, runs):
    """The judgment of one claim."""
    claim = next(claim for claim in STUDY.claims if claim.id.endswith(f".{name}"))
    return claim.check(runs)
