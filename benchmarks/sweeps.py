"""Overhead of a sweep: many tiny trials on worker processes and on Ray Tune, by number of workers.

``python -m benchmarks.sweeps [--trials 200] [--seconds 0.05] [--engines processes,ray]``

A trial computes for ``--seconds``. Its overhead is the rest of its time, without the start of the
engine (measured by a sweep of as many trials as workers). Run it on an idle machine.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from theodolite.sweeps import RayResources, Report, run_in_processes, run_on_ray


@dataclass(frozen=True)
class Compute:
    """A trial that computes for a while."""

    seconds: float

    def __call__(self, job: int, report: Report) -> float:
        """One trial."""
        end, total = time.perf_counter() + self.seconds, 0.0
        matrix = torch.ones(64, 64)
        while time.perf_counter() < end:
            total += float((matrix @ matrix)[0, 0])
        report(1.0, "")
        return total


def timed(engine: str, workers: int, trials: int, work: Compute) -> float:
    kept: list[int] = []
    start = time.perf_counter()
    keep: Callable[[int, float], None] = lambda job, _: kept.append(job)  # noqa: E731
    quiet: Report = lambda _share, _text: None  # noqa: E731
    jobs = range(trials)
    if engine == "ray":
        failures = run_on_ray(
            work, jobs, keep, resources=RayResources(workers=workers), report=quiet
        )
    else:
        failures = run_in_processes(work, jobs, keep, workers=workers, report=quiet)
    assert not failures
    assert sorted(kept) == list(jobs)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--engines", default="processes,ray")
    parser.add_argument("--device", default="cpu", help="for symmetry; trials run on the CPU")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    work = Compute(arguments.seconds)
    print(f"{arguments.trials} trials of {arguments.seconds} s; torch {torch.__version__}")
    for engine in arguments.engines.split(","):
        totals = {}
        for workers in (1, 2):
            start = timed(engine, workers, 2 * workers, work)
            totals[workers] = timed(engine, workers, arguments.trials, work)
            trials = arguments.trials - 2 * workers
            per_trial = (totals[workers] - start) * workers / trials - arguments.seconds
            print(
                f"{engine:10s} {workers} worker(s): {totals[workers]:6.1f} s in all, start "
                f"{start:5.1f} s, overhead {1e3 * per_trial:6.1f} ms per trial",
                flush=True,
            )
        print(f"{engine:10s} speed-up from 1 to 2 workers: {totals[1] / totals[2]:.2f}x")


if __name__ == "__main__":
    main()
