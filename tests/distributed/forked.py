"""Several processes as a launcher starts them; all of them import what they need together."""

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
from torch import distributed

ANSWERS_WITHIN = 900  # seconds, on a machine that does much else
# Also what the package, and DDP, import late: once for all processes.
IMPORTED = ["tests.distributed.worker", "theodolite.surveys", "theodolite.report", "torch._dynamo"]

Work = Callable[[int], Any]


def start(size: int, folder: Path, work: Work, *, group: bool = True) -> Sequence[tuple[Any, Any]]:
    """So many processes that begin ``work``, with a group of their own or left to make one.

    They are forks of a process that has imported what workers need and done nothing else: forks of
    one that has had a group hang. Each finds the variables that ``torchrun`` sets.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = []
    for rank in range(size):
        ours, theirs = context.Pipe(duplex=False)
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
        meeting = str(folder / f"meeting-{size}") if group else None
        process = context.Process(target=_run, args=(variables, meeting, work, theirs), daemon=True)
        process.start()
        theirs.close()
        running.append((process, ours))
    return running


def results(running: Sequence[tuple[Any, Any]]) -> list[Any]:
    """What ``work`` returned in each process.

    Raises:
        AssertionError: With the traceback of the first process that failed.
    """
    found, waiting = {}, {pipe for _, pipe in running}
    while waiting:
        answered = wait(waiting, ANSWERS_WITHIN)
        assert answered, "a process has not answered"
        for pipe in answered:
            failed, found[pipe] = pipe.recv()
            assert not failed, found[pipe]
            waiting.remove(pipe)
    for process, _ in running:
        process.join()
    return [found[pipe] for _, pipe in running]


def in_processes(size: int, folder: Path, work: Work, *, group: bool = True) -> list[Any]:
    """What ``work`` returns in each of so many processes for its rank."""
    return results(start(size, folder, work, group=group))


def _run(variables: dict[str, int], meeting: str | None, work: Work, pipe: Any) -> None:
    os.environ |= {name: str(value) for name, value in variables.items()}
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    rank, size = variables["RANK"], variables["WORLD_SIZE"]
    torch.set_num_threads(1)
    try:
        if meeting is not None:
            store = distributed.FileStore(meeting, size)
            distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
        pipe.send((False, work(rank)))
    except BaseException:
        pipe.send((True, traceback.format_exc()))
    if distributed.is_initialized():
        distributed.destroy_process_group()
