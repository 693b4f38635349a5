"""Many networks on many processes: a shard per network, gathered into the tables.

.. code-block:: sh

    theodolite study zoo run pilot --workers 16 --shards zoo-shards
    theodolite study zoo gather --shards zoo-shards

An interrupted run keeps its finished shards, and the same command resumes it. Networks come group
after group, so that an interrupted run leaves whole groups, except for the last ones.
"""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

from theodolite.errors import RecordError
from theodolite.sweeps import Failure, RayResources, Report, run_in_processes, run_on_ray
from theodolite_papers.alignment_zoo.design import Network
from theodolite_papers.alignment_zoo.measuring import Measured, measure_network
from theodolite_papers.alignment_zoo.tables import Zoo, load, merge, save
from theodolite_papers.alignment_zoo.training import LIMIT

__all__ = ["gather", "run_networks"]


@dataclass(frozen=True)
class _Work:
    limit: int
    deadline: float

    def __call__(self, network: Network, _report: Report) -> Measured:
        if time.time() > self.deadline:
            raise TimeoutError("not begun: no time was left")
        torch.set_num_threads(1)
        return measure_network(network, self.limit)


def run_networks(
    networks: Iterable[Network],
    shards: str | os.PathLike[str],
    *,
    workers: int = 1,
    ray: RayResources | None = None,
    limit: int = LIMIT,
    seconds: float = float("inf"),
    report: Callable[[float, str], None] = lambda _share, _text: None,
) -> list[Failure]:
    """Train and measure networks; networks with a shard are skipped.

    Args:
        networks: in the order in which they are begun.
        shards: folder of one folder per network.
        workers: processes of one thread each.
        ray: run the networks as trials of Ray instead.
        limit: training steps at most.
        seconds: after so many no network is begun.
        report: called with the share that is done, and a text.

    Returns:
        The networks that failed or were not begun, with their reasons.
    """
    folder = Path(shards)
    waiting = [one for one in networks if not (folder / one.name / "zoo.npz").exists()]

    def keep(network: Network, measured: Measured) -> None:
        tables = {name: pd.DataFrame(rows) for name, rows in measured.items()}
        save(Zoo(**tables), folder / network.name)

    work = _Work(limit, time.time() + seconds)
    if ray is not None:
        return run_on_ray(work, waiting, keep, resources=ray, report=report) if waiting else []
    return run_in_processes(work, waiting, keep, workers=workers, report=report)


def gather(shards: str | os.PathLike[str]) -> Zoo:
    """The tables of all networks that have a shard, in the order of their names.

    Raises:
        RecordError: If there is none.
    """
    folders = sorted(path.parent for path in Path(shards).glob("*/zoo.npz"))
    if not folders:
        raise RecordError(f"{shards}: expected folders of networks with a zoo.npz, found none")
    return merge(map(load, folders))
