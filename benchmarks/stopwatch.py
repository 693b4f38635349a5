"""Time and peak memory of a call, on the CPU or a GPU."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

GIB = 2**30
_LEAST, _MOST = 0.5, 50  # seconds and runs
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
_clock = CLOCKS["wall"]


def choose_clock(name: str) -> None:
    """Choose the clock. With one thread on a busy machine, processor time varies less."""
    global _clock
    _clock = CLOCKS[name]


@dataclass(frozen=True)
class Measured:
    """The best of several runs after a warm-up, the peak of one run, and what the call returned."""

    seconds: float
    gibibytes: float
    result: Any

    def line(self, name: str, floor: "Measured | None" = None) -> str:
        """One row of the printed table, with ratios to a floor."""
        ratio = "" if floor is None else f"  {self.seconds / floor.seconds:6.2f}x time"
        if floor is not None and floor.gibibytes:
            ratio += f"  {self.gibibytes / floor.gibibytes:6.2f}x memory"
        return f"{name:44s} {self.seconds * 1e3:10.2f} ms  {self.gibibytes:7.2f} GiB{ratio}"


def measure(call: Callable[[], Any], device: str, repeats: int = 5) -> Measured:
    """Warm up once, then take the best of several runs; memory above what was allocated before.

    Short calls are repeated for half a second: what waits for the host varies from run to run.
    """
    cuda = device.startswith("cuda")
    call()
    gc.collect()
    peak, best, result = 0, float("inf"), None
    before = torch.cuda.memory_allocated() if cuda else 0
    begun, runs = _clock(), 0
    while runs < repeats or (_clock() - begun < _LEAST and runs < _MOST):
        runs += 1
        result = None
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        started = _clock()
        result = call()
        if cuda:
            torch.cuda.synchronize()
            peak = max(peak, torch.cuda.max_memory_allocated())
        best = min(best, _clock() - started)
    return Measured(best, max(0, peak - before) / GIB, result)


def attempt(name: str, call: Callable[[], Any], device: str, floor: Measured | None) -> Any:
    """Measure and print; a peer that is absent or fails says so instead of ending the run."""
    try:
        measured = measure(call, device)
    except Exception as error:  # whatever a foreign tool raises
        print(f"{name:44s} {problem_of(error)}")
        return None
    print(measured.line(name, floor))
    return measured


def problem_of(error: Exception) -> str:
    """Why a peer cannot be measured, in one line."""
    if isinstance(error, ModuleNotFoundError):
        return f"not installed ({error.name})"
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return f"failed: {first[:80]}"
