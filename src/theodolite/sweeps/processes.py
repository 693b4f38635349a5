"""Jobs in worker processes of this machine, one thread each, and the common parts with Ray."""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.managers import SyncManager
from typing import Any

from theodolite import errors

Report = Callable[[float, str], None]  # (finished share, text)
Work = Callable[[Any, Report], Any]  # (job, report) -> outcome; picklable
Keep = Callable[[Any, Any], None]  # (job, outcome); called in the main process

_ATTEMPTS = 3  # attempts for a job whose worker died; a job that raised is not tried again
# Ends a worker, but never while it sends a result: the main process would wait for the rest of the
# result forever. Windows has no such signal; there running jobs are finished first.
_STOP = getattr(signal, "SIGUSR1", None)
_channel: Any = None
_working = _stopped = False


@dataclass(frozen=True)
class Failure:
    """A job that raised, or whose worker died every time.

    Args:
        job: the job.
        reason: why it failed, in one line; the class too, unless the error is of this library.
        kind: class of the error, of this library or of Python, so that every process knows it;
            None if the worker died.
    """

    job: Any
    reason: str
    kind: type[BaseException] | None = None

    @classmethod
    def of(cls, job: Any, error: BaseException) -> "Failure":
        """A job that raised an error."""
        known = (k for k in type(error).__mro__ if k.__module__ in ("builtins", errors.__name__))
        kind = next(known)
        own = issubclass(kind, errors.TheodoliteError)  # its message says all
        return cls(job, str(error) if own else f"{type(error).__name__}: {error}", kind)


def run_in_processes(
    work: Work, jobs: Sequence[Any], keep: Keep, *, workers: int, report: Report
) -> list[Failure]:
    """Run ``work(job, report)`` for every job, and pass each outcome to ``keep`` here.

    With one worker the jobs run here, one after another. Otherwise they run in new processes
    (``spawn``), so the work and its jobs must be picklable. A job that raises does not stop the
    others. If a worker dies (killed, out of memory), the unfinished jobs of all workers run again,
    at most three times. Ctrl-C, and the end of this process for any reason, end the workers;
    outcomes that ``keep`` has received stay.

    Args:
        work: called with a job and a function of (finished share, text).
        jobs: one argument for each call.
        keep: called with a job and its outcome when the job is done.
        workers: number of processes.
        report: called with the finished share of all jobs, and a text.

    Returns:
        The jobs that failed, with their reasons, in the order of ``jobs``.
    """
    if workers == 1 or len(jobs) == 1:
        return _run_here(work, jobs, keep, report)
    tally = Tally(len(jobs), report)
    failures: dict[int, Failure] = {}
    waiting = list(range(len(jobs)))
    for _ in range(_ATTEMPTS):
        with _listener(tally) as channel:
            waiting = _run_once(work, jobs, keep, waiting, workers, channel, failures)
        if not waiting:
            break
    for index in waiting:
        failures[index] = Failure(
            jobs[index], f"its worker process died {_ATTEMPTS} times (killed, or out of memory)"
        )
    return [failures[index] for index in sorted(failures)]


def _run_here(work: Work, jobs: Sequence[Any], keep: Keep, report: Report) -> list[Failure]:
    failures = []
    for index, job in enumerate(jobs):

        def within(share: float, text: str, before: int = index) -> None:
            report((before + share) / len(jobs), text)

        try:
            outcome = work(job, within)
        except Exception as error:
            failures.append(Failure.of(job, error))
        else:
            keep(job, outcome)
        report((index + 1) / len(jobs), "")
    return failures


def _run_once(
    work: Work,
    jobs: Sequence[Any],
    keep: Keep,
    waiting: Sequence[int],
    workers: int,
    channel: Any,
    failures: dict[int, Failure],
) -> list[int]:
    """Return the jobs whose worker died; add failures to ``failures``."""
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, context, _start_worker, (channel,)) as pool:
        try:
            with _ignoring_interrupts():
                sent: Any = _ByValue(work)
                futures = {pool.submit(_work, sent, _ByValue(jobs[i]), i): i for i in waiting}
            lost, pending = [], set(futures)
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    index, error = futures[future], future.exception()
                    if isinstance(error, BrokenProcessPool):
                        lost.append(index)
                    elif error is not None:
                        failures[index] = Failure.of(jobs[index], error)
                    else:
                        keep(jobs[index], future.result())
        except BaseException:  # Ctrl-C, or ``keep`` failed: stop the other runs
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(multiprocessing.active_children()) - others:
                if _STOP is not None and process.pid is not None:
                    os.kill(process.pid, _STOP)
            raise
    return sorted(lost)


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Start processes that ignore Ctrl-C; the main process gets it and ends them."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    resource_tracker.ensure_running()  # a later start would enable interrupts again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """End this process when the one that started it has ended, also if that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait_for_end() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait_for_end, daemon=True).start()


def _start_worker(channel: Any) -> None:
    global _channel
    _channel = channel
    _end_with_parent()
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is first imported
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    if _STOP is not None:
        signal.signal(_STOP, _stop)


def _stop(*_: object) -> None:
    global _stopped
    _stopped = True
    if _working:
        raise KeyboardInterrupt


def _work(work: Work, job: Any, index: int) -> Any:
    global _working
    _working = True
    try:
        if _stopped:  # while the previous outcome was sent
            raise KeyboardInterrupt
        outcome = work(job, lambda share, text: _channel.put((index, share, text)))
        _channel.put((index, 1.0, ""))
        return _ByValue(outcome)
    finally:
        _working = False


@dataclass(frozen=True)
class _ByValue:
    """Arrives in the other process as its value, copied by plain pickle.

    torch would send tensors through a socket in the folder of temporary files. The path of a socket
    may have at most 107 characters, and the path of that folder can be longer.
    """

    value: Any

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return pickle.loads, (pickle.dumps(self.value),)


class Tally:
    """Adds up the finished shares of all jobs."""

    def __init__(self, jobs: int, report: Report) -> None:
        self._shares = [0.0] * jobs
        self._report = report

    def __call__(self, index: int, share: float, text: str) -> None:
        """Report the share of all jobs."""
        self._shares[index] = max(self._shares[index], share)
        self._report(sum(self._shares) / len(self._shares), text)


@contextmanager
def _listener(tally: Tally) -> Iterator[Any]:
    """A queue for the workers' reports, emptied by a thread until the block ends.

    The queue has its own process. A queue that workers share directly has a lock. A worker that is
    killed while it holds this lock would stop all others.
    """
    # A port of this machine, not a socket in the folder of temporary files: see ``_ByValue``.
    manager = SyncManager(("127.0.0.1", 0), ctx=multiprocessing.get_context("spawn"))
    with _ignoring_interrupts():
        manager.start(_end_with_parent)
    with manager:
        channel = manager.Queue()

        def listen() -> None:
            while (message := channel.get()) is not None:
                tally(*message)

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        try:
            yield channel
        finally:
            channel.put(None)
            thread.join()
