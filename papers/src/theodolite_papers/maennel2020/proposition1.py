"""Proposition 1: the pooled weights of many independent networks are aligned with the data."""

from dataclasses import dataclass

import numpy as np
import torch

from theodolite.engine import weight_covariance
from theodolite.measures.covariance import misalignment, misalignment_floor, random_bases
from theodolite_papers.ledger import (
    Claim,
    Line,
    Measured,
    Outcome,
    Panel,
    Results,
    Study,
    Trial,
    above,
    below,
    between,
    decided,
    inside,
    mean_and_error,
)
from theodolite_papers.maennel2020._filters import GaussianRuns, train_on_gaussians
from theodolite_papers.maennel2020.formulas.basis import basis_misalignment

__all__ = ["STUDY", "ManyNetworks"]

_ID = "maennel2020.proposition1"
_VARIANCES = (4.0, 2.0, 1.0, 0.5, 0.25, 0.125)


@dataclass(frozen=True)
class ManyNetworks:
    """Size of the experiment.

    Args:
        networks: how they are trained; ``runs`` of them are pooled in the end.
        pools: sizes of the pools that are compared, all dividing the number of networks.
        bases: random bases for comparison.
    """

    networks: GaussianRuns
    pools: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    bases: int = 10


def measure(config: ManyNetworks, trial: Trial) -> Measured:
    """Mean misalignment over disjoint pools of each size, for the data and for random bases."""
    weights, accuracy = train_on_gaussians(config.networks, trial)
    arrays = _scores(config, weights, trial)
    score, baseline = arrays["misalignment"], arrays["baseline"]
    slope = np.polyfit(np.log(config.pools), np.log(score.astype(np.float64)), 1)[0]
    numbers = {
        "accuracy": accuracy,
        "slope": float(slope),
        "first": float(score[0]),
        "last": float(score[-1]),
        "baseline_first": float(baseline[0]),
        "baseline_last": float(baseline[-1]),
        "floor_last": float(arrays["floor"][-1]),
        "off_diagonal_z": _largest_off_diagonal(weights),
    }
    return Measured(numbers, arrays)


def _scores(config: ManyNetworks, weights: torch.Tensor, trial: Trial) -> dict[str, np.ndarray]:
    """Misalignment, its value for random bases, and its floor, by size of the pools."""
    setting = config.networks
    neurons, size = setting.widths[0], len(setting.variances)
    bases = random_bases(size, config.bases, trial.generator(10))
    rows = []
    for pool in config.pools:
        filters = weights.reshape(setting.runs // pool, pool * neurons, -1)
        covariances = torch.stack([weight_covariance(part) for part in filters])
        scored = torch.stack([basis_misalignment(basis, covariances) for basis in bases])
        own = misalignment(setting.covariance, covariances).mean()
        rows.append((float(own), float(scored.mean())))
    score, baseline = np.array(rows, dtype=np.float32).T
    floor = [float(misalignment_floor(pool * neurons, size)) for pool in config.pools]
    return {
        "pools": np.array(config.pools, dtype=np.float32),
        "misalignment": score,
        "baseline": baseline,
        "floor": np.array(floor, dtype=np.float32),
    }


def _largest_off_diagonal(weights: torch.Tensor) -> float:
    """Largest mean and off-diagonal second moment over runs, in standard errors."""
    moments = torch.einsum("rnd,rne->rde", weights, weights) / weights.shape[1]
    upper = torch.triu_indices(moments.shape[1], moments.shape[2], offset=1)
    per_run = torch.cat([moments[:, upper[0], upper[1]], weights.mean(1)], dim=1)
    errors = per_run.std(0) / len(per_run) ** 0.5
    return float((per_run.mean(0) / errors).abs().max())


def _pooled_rate(runs: Results) -> Outcome:
    """The rate of the mean over seeds, because one seed has a single pool of the largest size."""
    means = runs.array("misalignment").astype(np.float64).mean(0)
    slope = float(np.polyfit(np.log(runs.array("pools")[0]), np.log(means), 1)[0])
    return decided(inside("slope", slope, -1.1, -0.9))


def _falls(runs: Results) -> Outcome:
    run = runs.first
    ratio = run["last"] / run["first"]
    pools = run.arrays["pools"]
    bound = 3 * float(pools[0] / pools[-1])
    return decided(below("last_to_first", ratio, bound), bound=bound)


def _stays(runs: Results) -> Outcome:
    run = runs.first
    ratio = run["baseline_last"] / run["baseline_first"]
    share = run["last"] / run["baseline_last"]
    return decided(above("baseline_ratio", ratio, 0.5), below("share_of_baseline", share, 0.1))


def draw(runs: Results) -> list[Panel]:
    """Misalignment against the number of networks, with the floor of independent filters."""
    pools = runs.array("pools")[0]
    lines = []
    for key, name in (("misalignment", "data"), ("baseline", "random bases")):
        mean, error = mean_and_error(runs.array(key))
        lines.append(Line(name, pools, mean, error))
    lines.append(Line("floor of independent filters", pools, runs.array("floor")[0], dashed=True))
    return [Panel("Proposition 1", lines, "networks pooled", "misalignment", log="xy")]


STUDY = Study(
    id=_ID,
    title="Random labels align the weights of many networks with Gaussian data",
    shows=("Proposition 1",),
    measure=measure,
    configs={
        "smoke": ManyNetworks(
            GaussianRuns(_VARIANCES, (16, 8), 16, 4, 3, batch_size=16), pools=(1, 2, 4), bases=2
        ),
        "lite": ManyNetworks(
            GaussianRuns(
                _VARIANCES,
                (32, 16),
                64,
                512,
                150,
                learning_rate=0.1,
                batch_size=32,
                first_scale=0.3,
            )
        ),
        "reduced": ManyNetworks(
            GaussianRuns(
                _VARIANCES,
                (32, 16),
                64,
                4096,
                400,
                learning_rate=0.1,
                batch_size=32,
                first_scale=0.3,
            ),
            pools=(16, 64, 256, 1024, 4096),
        ),
    },
    claims=(
        Claim(
            f"{_ID}.rate",
            "the misalignment of the pooled weights falls as one over the number of networks "
            "(slope of logarithms within 0.2 of -1)",
            between({"slope": "slope"}, -1.2, -0.8),
        ),
        Claim(
            f"{_ID}.pooled-rate",
            "averaged over seeds it does so with a slope within 0.1 of -1",
            _pooled_rate,
            scope="all",
        ),
        Claim(
            f"{_ID}.falls",
            "over the largest pool it is at most 3 times what that rate predicts from the smallest",
            _falls,
        ),
        Claim(
            f"{_ID}.baseline",
            "random bases stay put (more than half of their first value), and end more than ten "
            "times higher",
            _stays,
        ),
        Claim(
            f"{_ID}.moments",
            "mean and off-diagonal second moments of the weights are 0 within 4.5 standard errors "
            "over networks",
            between({"largest_z": "off_diagonal_z"}, high=4.5),
        ),
    ),
    draw=draw,
    not_run={"published": "the statement has no experiment in the paper"},
)
