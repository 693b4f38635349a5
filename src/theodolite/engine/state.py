"""Restores the model and the process after a measurement: flags, gradients, generators, backends.

It also provides the conditions of a run: a model in a fixed mode, full precision, and an allocator
that keeps the memory of the last call.
"""

import ctypes
import pickle
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import lru_cache
from itertools import chain
from math import inf, isfinite
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from theodolite.errors import DomainError

_T = TypeVar("_T")
HALF = (torch.float16, torch.bfloat16)  # dtypes of half precision

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_DROPOUTS = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip

_guarded: ContextVar[tuple[nn.Module, ...]] = ContextVar("guarded", default=())
# Flags of torch and of a model, and random states, belong to the whole process.
_turn = threading.RLock()


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Run a block with gradients enabled, and restore the model afterwards.

    Training flags, buffers, ``.grad`` fields and random states (of torch, Python and NumPy) are
    restored, also after an error. Compiled code runs eagerly, so that its calls can be recorded.
    Attention uses the same path with and without gradients, and recurrent layers do not use cuDNN.
    An inner block for the same model does not save the state again. Threads take turns: each waits
    until the block of another thread has ended.
    """
    outer = _guarded.get()
    if any(model is other for other in outer):
        with torch.inference_mode(False), torch.enable_grad():
            yield
        return
    with _turn:
        flags = {module: module.training for module in model.modules()}
        grads = {p: p.grad for p in model.parameters()}
        devices = {p.device for p in grads if p.is_cuda}
        has_recurrence = any(isinstance(module, nn.RNNBase) for module in flags)
        with (
            _preserved_tensors(flags),
            preserved_randomness(devices),
            torch.inference_mode(False),
            torch.enable_grad(),
            _every_call_visible(),
            _without_cudnn() if has_recurrence else nullcontext(),
        ):
            token = _guarded.set((*outer, model))
            try:
                yield
            finally:
                _guarded.reset(token)
                for module, training in flags.items():
                    if module.training != training:  # setting an attribute of a module takes long
                        module.training = training
                for parameter, grad in grads.items():
                    if parameter.grad is not grad:
                        parameter.grad = grad


@contextmanager
def _every_call_visible() -> Iterator[None]:
    """Run compiled code eagerly, switch off attention's fast path, and cast weights again.

    The fast path without gradients drops padding and positions. Weights that an autocast around the
    block has cast belong to earlier calls, for instance in training. With them no recorded call
    would receive the weights.
    """
    cached, fast = torch.is_autocast_cache_enabled(), torch.backends.mha.get_fastpath_enabled()
    compiled = "torch._dynamo" in sys.modules  # otherwise nothing has been compiled
    torch.set_autocast_cache_enabled(False)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            yield
    finally:
        torch.set_autocast_cache_enabled(cached)
        torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def _without_cudnn() -> Iterator[None]:
    """Switch off cuDNN, which has no backward pass of recurrent layers in evaluation mode."""
    enabled = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = enabled


@contextmanager
def _preserved_tensors(modules: Iterable[nn.Module], *, every: bool = False) -> Iterator[None]:
    """Restore buffers that a forward pass changes or replaces: counters, averages, caches.

    Buffers of batch normalisation are left out by default, because evaluation mode does not change
    them; ``every`` includes them. Tables whose rows a forward pass shortens (``max_norm``) are
    restored too.
    """
    modules = list(modules)
    owners = [m for m in modules if m._buffers and (every or not isinstance(m, _BATCH_NORMS))]
    held = [(m, dict(m._buffers)) for m in owners]
    tensors = {b for _, buffers in held for b in buffers.values() if b is not None}
    shortened = (nn.Embedding, nn.EmbeddingBag)
    tables = (m for m in modules if isinstance(m, shortened) and m.max_norm is not None)
    tensors |= {m.weight.detach() for m in tables}
    copies = [(b, b._version, b.clone()) for b in tensors if not b.is_inference()]
    try:
        yield
    finally:
        for module, buffers in held:
            module._buffers.clear()
            module._buffers.update(buffers)
        with torch.no_grad():
            for buffer, version, copy in copies:
                if buffer._version != version:
                    buffer.copy_(copy)


@contextmanager
def preserved_state(model: nn.Module) -> Iterator[None]:
    """Restore the buffers that forward passes in the block change."""
    with _preserved_tensors(model.modules(), every=True):
        yield


@contextmanager
def preserved_randomness(devices: Iterable[torch.device]) -> Iterator[None]:
    """Restore the random states of torch, and of Python and NumPy, which models may draw from."""
    with preserved_generators(devices):
        state, drawn = random.getstate(), np.random.get_state()  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(state)
            np.random.set_state(drawn)  # noqa: NPY002


def random_states() -> tuple[Any, ...]:
    """States of the generators of torch (on the CPU), Python and NumPy; equal if none has drawn."""
    of_numpy = pickle.dumps(np.random.get_state())  # noqa: NPY002
    return torch.get_rng_state().tolist(), random.getstate(), of_numpy


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards every module gets its own flag back."""
    flags = {module: module.training for module in model.modules()}
    with suppress(NotImplementedError):  # what torch.export made has one mode
        model.eval()
    try:
        yield
    finally:
        for module, training in flags.items():
            module.training = training


@contextmanager
def preserved_generators(devices: Iterable[torch.device]) -> Iterator[None]:
    """Restore the global random state; even iterating an unshuffled loader changes it.

    Args:
        devices: GPUs whose random states are restored too.
    """
    state = torch.get_rng_state()
    states = {device: torch.cuda.get_rng_state(device) for device in devices}
    try:
        yield
    finally:
        torch.set_rng_state(state)
        for device, saved in states.items():
            torch.cuda.set_rng_state(saved, device)


def model_device(model: nn.Module) -> torch.device:
    """Device of a model: that of its first parameter or buffer; the CPU without tensors."""
    first = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if first is None else first.device


@contextmanager
def exact_arithmetic(device: torch.device) -> Iterator[None]:
    """Full float32 products, on this device only."""
    with _fp32_precision("ieee", device):
        yield


@contextmanager
def coarse_arithmetic(device: torch.device) -> Iterator[None]:
    """Float32 products on tensor cores (TF32), for uses where their rounding, 5e-4, is enough."""
    with _fp32_precision("tf32", device):
        yield


def coarse_precision(device: torch.device) -> str:
    """The precision of float32 products inside :func:`coarse_arithmetic`."""
    has_cores = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return "tf32" if has_cores else "float32"


@contextmanager
def _fp32_precision(wanted: str, device: torch.device) -> Iterator[None]:
    """Keep the user's choice of convolution algorithms (``torch.backends.cudnn.benchmark``).

    A search takes as long as a hundred passes and makes a pass a tenth faster.
    """
    if device.type != "cuda":
        yield
        return
    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul
    settings: list[tuple[Any, str, Any]] = [
        (backend, "fp32_precision", wanted)
        for backend in (matmul, getattr(cudnn, "conv", None), getattr(cudnn, "rnn", None))
    ]
    if not hasattr(matmul, "fp32_precision"):  # torch before 2.9
        settings = [(backend, "allow_tf32", wanted == "tf32") for backend in (matmul, cudnn)]
    saved = [getattr(backend, name) for backend, name, _ in settings]
    try:
        for backend, name, value in settings:
            setattr(backend, name, value)
        yield
    finally:
        for (backend, name, _), value in zip(settings, saved, strict=True):
            setattr(backend, name, value)


def rounding_dtypes(parameters: Iterable[Tensor]) -> set[torch.dtype]:
    """Dtypes in which numbers from parameters are rounded: theirs, and that of an autocast."""
    kinds = {(parameter.dtype, parameter.device.type) for parameter in parameters}
    casts = (device for _, device in kinds if torch.is_autocast_enabled(device))
    return {dtype for dtype, _ in kinds} | {torch.get_autocast_dtype(device) for device in casts}


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Run a block in the dtypes of its tensors, even inside an autocast."""
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def without_gradients(run: Callable[[], _T]) -> _T:
    """The result of a pass without gradients, or with them if the pass itself takes gradients."""
    try:
        with torch.no_grad():
            return run()
    except RuntimeError:
        with torch.enable_grad():
            return run()


def require_fixed_mode(model: nn.Module) -> None:
    """Check for batch statistics and dropout, which make outputs depend on more than the example.

    Raises:
        DomainError: If a module mixes examples or draws random numbers; the message names all.
    """
    problems = [
        (reason, name or type(module).__name__)
        for name, module in model.named_modules()
        if (reason := _reason(module))
    ]
    if not problems:
        return
    reasons = dict.fromkeys(reason for reason, _ in problems)
    sentences = []
    for reason in reasons:
        names = [name for other, name in problems if other == reason]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        sentences.append(f"{', '.join(map(repr, names[:3]))}{more} {reason}")
    raise DomainError("model: expected one answer per example, but " + "; ".join(sentences))


def _reason(module: nn.Module) -> str | None:
    if isinstance(module, (*_BATCH_NORMS, *_INSTANCE_NORMS)):
        return _norm_reason(module)
    if not module.training:
        return None
    rate = module.p if isinstance(module, _DROPOUTS) else getattr(module, "dropout", 0.0)
    if isinstance(rate, float) and rate > 0:
        return "drop out units at random: call model.eval() first"
    if isinstance(module, nn.RReLU):
        return "draw random slopes: call model.eval() first"
    return None


def _norm_reason(module: nn.Module) -> str | None:
    tracks = module.running_mean is not None
    if isinstance(module, _INSTANCE_NORMS):
        if module.training and tracks:
            return "update their statistics in training mode: call model.eval() first"
        return None
    if module.training:
        return (
            "normalise over the batch in training mode: call model.eval() first, "
            "or .eval() on these layers alone"
        )
    if not tracks:
        return (
            "have no running statistics and normalise over the batch in every mode: "
            "build them with track_running_stats=True, or use GroupNorm"
        )
    return None


def quiet_vmap(function: Callable[..., Any], in_dims: Any = 0) -> Callable[..., Any]:
    """Vectorise over the first axis; operations without a batching rule are only slower."""
    mapped = torch.func.vmap(function, in_dims=in_dims)

    def call(*args: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            return mapped(*args)

    return call


_LARGEST = 2**25 - 2**16  # bytes; glibc ignores larger blocks


@lru_cache(maxsize=1)
def raise_trim_threshold() -> None:
    """Let glibc keep up to 64 MiB of freed memory instead of returning it to the system.

    glibc keeps twice the size of the largest freed block. Otherwise it returns kernels of some
    megabytes, and every page of the next ones is requested and cleared again. That can take half as
    long as the products. Other allocators have their own limits.
    """
    torch.empty(_LARGEST, dtype=torch.uint8, device="cpu")


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_USUAL = 2**26, 2**25  # both thresholds after raise_trim_threshold
_PIECES = 2**8  # blocks above this fraction of the limit return to the system at once
_LEAST_BLOCK = 2**16  # bytes

_limited: ContextVar[bool] = ContextVar("limited", default=False)


@contextmanager
def limited_memory(limit: int | None) -> Iterator[None]:
    """Let glibc return freed tensors to the system at once, inside the block, if there is a limit.

    Memory that glibc keeps is split and adds up: the peak can be twice the bytes of the tensors
    that exist at one time. Without a limit kept memory saves time.

    Args:
        limit: Bytes; None for no limit.
    """
    raise_trim_threshold()
    if limit is None or _limited.get():
        yield
        return
    option, trim = _glibc("mallopt"), _glibc("malloc_trim")
    if option is None or trim is None:
        yield
        return
    least = min(_USUAL[1], max(_LEAST_BLOCK, limit // _PIECES))
    token = _limited.set(True)
    try:
        option(_TRIM_THRESHOLD, 2 * least)
        option(_MMAP_THRESHOLD, least)
        trim(0)
        yield
    finally:
        _limited.reset(token)
        option(_TRIM_THRESHOLD, _USUAL[0])
        option(_MMAP_THRESHOLD, _USUAL[1])


def trim_memory() -> None:
    """Return freed blocks of any size to the system, inside :func:`limited_memory`.

    Small ones between blocks that are in use would add up from pass to pass.
    """
    trim = _glibc("malloc_trim") if _limited.get() else None
    if trim is not None:
        trim(0)


def _glibc(name: str) -> Callable[..., int] | None:
    """A function of GNU's C library; None in another one."""
    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):
        return None
    return found


_UNLIMITED = 2**60  # bytes; a group without a limit says "max" or has a larger number
_UNKNOWN_BYTES = 8 * 2**30  # free memory of a system that does not report it
DEFAULT_MEMORY_LIMIT = 2 * 2**30  # bytes, if neither the user nor a GPU gives a limit


def _current(known: dict[str, Any], name: str) -> int:
    return int(known.get(name, {}).get("all", {}).get("current", 0))


def available_bytes(device: torch.device) -> int:
    """Memory that may be used if the user sets no limit."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        known = torch.cuda.memory_stats_as_nested_dict(device)  # faster than the flat dictionary
        cached = _current(known, "reserved_bytes") - _current(known, "allocated_bytes")
        return int(0.9 * (free + cached))
    return int(0.9 * free_host_bytes())


def free_host_bytes(root: Path = Path("/")) -> int:
    """Memory that the system, or the container of this process, can still provide.

    Args:
        root: Root of the file system in which Linux describes itself.
    """
    least = _number_in(root / "proc/meminfo", "MemAvailable:") * 1024
    for folder in dict.fromkeys(_memory_groups(root)):
        for limit, used, cached in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            most = _number_in(folder / limit)
            if most > _UNLIMITED:  # reading the other files in every call would take long
                continue
            # Pages of the file cache count as used, and are released when others need them.
            taken = _number_in(folder / used, missing=0.0)
            taken -= _number_in(folder / "memory.stat", cached, missing=0.0)
            least = min(least, max(0.0, most - taken))
    return int(least) if isfinite(least) else _UNKNOWN_BYTES


def _memory_groups(root: Path) -> Iterator[Path]:
    """Control groups whose limits hold for this process: its own, and all above it."""
    cgroups = root / "sys/fs/cgroup"
    yield from (cgroups, cgroups / "memory")
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, own = line.split(":", 2)
            if not controllers or "memory" in controllers.split(","):
                base = cgroups / "memory" if controllers else cgroups
                place = Path(own.lstrip("/"))
                yield from (base / part for part in (place, *place.parents))


def _number_in(path: Path, name: str = "", missing: float = inf) -> float:
    """The number in a file, or the number after a name in it."""
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            if line.startswith(name):
                return float(line.removeprefix(name).split()[0])
    return missing
