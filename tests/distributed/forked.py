"""Several processes with a group of their own; all of them import what they need together."""

import multiprocessing
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed


def in_processes(size: int, folder: Path, work: Callable[[int], Any]) -> list[Any]:
    """What ``work``, a function of its module, returns in each of so many processes for its rank.

    They are forks of a process that has imported that module and done nothing else: forks of one
    that has had a group hang.

    Raises:
        AssertionError: With the traceback of the first process that failed.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([work.__module__])
    running = []
    for rank in range(size):
        ours, theirs = context.Pipe(duplex=False)
        arguments = rank, size, str(folder / f"meeting-{size}"), work, theirs
        process = context.Process(target=_run, args=arguments, daemon=True)
        process.start()
        theirs.close()
        running.append((process, ours))
    found = []
    for process, pipe in running:
        assert pipe.poll(60), "a process has not answered"
        failed, result = pipe.recv()
        assert not failed, result
        found.append(result)
        process.join()
    return found


def _run(rank: int, size: int, meeting: str, work: Callable[[int], Any], pipe: Any) -> None:
    torch.set_num_threads(1)
    store = distributed.FileStore(meeting, size)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    try:
        pipe.send((False, work(rank)))
    except BaseException:
        pipe.send((True, traceback.format_exc()))
    distributed.destroy_process_group()
