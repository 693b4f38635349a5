"""Jobs as trials of Ray Tune: on this machine, or on a cluster."""

import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from theodolite.errors import StudyError
from theodolite.sweeps.processes import Failure, Keep, Report, Tally, Work

_RETRIES = 1  # retries of a trial whose worker died; a trial that raised is not tried again
_PAUSE = 2.0  # seconds between two reports of a trial
_PATIENCE = 5.0  # seconds to wait for a cluster
_POLL = 0.2  # seconds between two reads of the inbox
_TOKEN_NAMES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")  # settings of Ray


@dataclass(frozen=True)
class RayResources:
    """Where the trials run, and their resources.

    Args:
        address: address of a cluster (``"auto"``, ``"ray://host:10001"``); None starts Ray here.
        workers: number of parallel trials on this machine; a cluster runs as many as fit.
        cpus: number of cores of each trial.
        gpus: share of a GPU of each trial.
    """

    address: str | None = None
    workers: int = 2
    cpus: float = 1.0
    gpus: float = 0.0


def run_on_ray(
    work: Work, jobs: Sequence[Any], keep: Keep, *, resources: RayResources, report: Report
) -> list[Failure]:
    """Run ``work(job, report)`` for every job as a trial, and pass each outcome to ``keep`` here.

    Trials send their outcomes through Ray's object store, so the workers need no common disk. Tune
    runs a trial once more if its worker dies, and then reports it. A trial that raises ends with
    its error.

    Returns:
        The jobs that failed, with their reasons, in the order of ``jobs``.

    Raises:
        StudyError: If there is no cluster at the address.
        ImportError: If Ray is not installed.
    """
    for name in ("RAY_AIR_NEW_OUTPUT", "RAY_USAGE_STATS_ENABLED"):
        os.environ.setdefault(
            name, "0"
        )  # read at import: they control tables of trials and usage reports
    # On Ctrl-C Tune would end as if finished, and trials that did not run would count as failed
    os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")
    from ray import tune

    with _connected(resources), tempfile.TemporaryDirectory() as storage:
        inbox = _inbox()
        trainable = tune.with_parameters(_trial, work=work, jobs=list(jobs), inbox=inbox)
        needed = {"cpu": resources.cpus, "gpu": resources.gpus}
        tuner = tune.Tuner(
            tune.with_resources(trainable, needed),
            param_space={"job": tune.grid_search(list(range(len(jobs))))},
            tune_config=tune.TuneConfig(reuse_actors=True),
            run_config=tune.RunConfig(
                storage_path=storage,
                failure_config=tune.FailureConfig(max_failures=_RETRIES),
                verbose=0,
            ),
        )
        collector = _Collector(inbox, jobs, keep, report)
        with collector, redirect_stdout(StringIO()):  # Tune prints every trial there
            tuner.fit()
    return collector.failures()


def _trial(config: Mapping[str, Any], work: Work, jobs: Sequence[Any], inbox: Any) -> None:
    """One trial; its outcome is in the inbox before Tune learns that it ended."""
    import ray

    index, last = config["job"], time.monotonic()

    def report(share: float, text: str) -> None:
        nonlocal last
        if time.monotonic() - last > _PAUSE:
            last = time.monotonic()
            inbox.put.remote(("share", index, (share, text)))

    try:
        message = ("done", index, work(jobs[index], report))
    except Exception as error:
        failed = Failure.of(None, error)
        message = ("failed", index, (failed.reason, failed.kind))
    ray.get(inbox.put.remote(message))


def _inbox() -> Any:
    """An actor on the driver's machine that holds outcomes until they are collected."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    return ray.remote(_Inbox).options(num_cpus=0, scheduling_strategy=here).remote()


class _Inbox:
    def __init__(self) -> None:
        self._messages: list[Any] = []

    def put(self, message: Any) -> None:
        self._messages.append(message)

    def take(self) -> list[Any]:
        taken, self._messages = self._messages, []
        return taken


class _Collector:
    """A thread that empties the inbox: it keeps outcomes and reports progress."""

    def __init__(self, inbox: Any, jobs: Sequence[Any], keep: Keep, report: Report) -> None:
        self._inbox, self._jobs, self._keep = inbox, jobs, keep
        self._tally = Tally(len(jobs), report)
        # Reason and kind of a failure, or None.
        self._outcomes: dict[int, tuple[str, type[BaseException] | None] | None] = {}
        self._error: Exception | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> "_Collector":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._error is not None and kind is None:
            raise self._error

    def failures(self) -> list[Failure]:
        """Jobs that failed or never returned."""
        lost = f"its worker process died {_RETRIES + 1} times (killed, or out of memory)"
        found = {index: self._outcomes.get(index, (lost, None)) for index in range(len(self._jobs))}
        return [Failure(self._jobs[k], *why) for k, why in found.items() if why is not None]

    def _listen(self) -> None:
        try:
            while not self._ended.wait(_POLL):
                self._collect()
            self._collect()
        except Exception as error:  # raised when the trials end
            self._error = error

    def _collect(self) -> None:
        import ray

        for kind, index, content in ray.get(self._inbox.take.remote()):
            share, text = content if kind == "share" else (1.0, "")
            if kind == "done" and index not in self._outcomes:
                self._keep(self._jobs[index], content)
            if kind != "share":
                self._outcomes[index] = None if kind == "done" else content
            self._tally(index, share, text)


@contextmanager
def _connected(resources: RayResources) -> Iterator[None]:
    """Start or join Ray, unless the caller has done so; restore the previous state afterwards."""
    import logging

    import ray

    if ray.is_initialized():
        yield
        return
    if resources.address is not None:
        _require_answer(resources.address)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if resources.address is None:
            _keep_token_in_memory()
            cores = max(1, round(resources.workers * resources.cpus))
            ray.init(num_cpus=cores, include_dashboard=False, **quiet)
        else:
            ray.init(address=resources.address, **quiet)
    except Exception as error:  # Ray raises plain exceptions, for instance for a timeout
        raise _no_cluster(resources.address, error) from error
    try:
        yield
    finally:
        ray.shutdown()


def _keep_token_in_memory() -> None:
    """A token for the cluster of this process; Ray would write one to the home folder."""
    named = any(name in os.environ for name in _TOKEN_NAMES)
    if not named and not (Path.home() / ".ray" / "auth_token").exists():
        os.environ[_TOKEN_NAMES[0]] = secrets.token_hex(32)


def _require_answer(address: str) -> None:
    """Check that the address answers; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # for "auto" and similar addresses Ray answers at once
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
    except OSError as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str | None, error: Exception) -> StudyError:
    if address is None:
        return StudyError(
            f"Ray does not start on this machine ({error}); run it again, or use processes "
            "(--engine processes, or workers= in place of ray=)"
        )
    return StudyError(
        f"no Ray cluster at {address!r} ({error}); start one with 'ray start --head' and give its "
        "address, or leave --address out to run on this machine"
    )
