"""Measuring leaves no trace: flags, gradients, generators and backends are put back."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "exact_arithmetic",
    "rounding_dtypes",
    "untouched",
    "without_autocast",
    "without_cudnn",
]

_guarded: ContextVar[tuple[nn.Module, ...]] = ContextVar("guarded", default=())


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Run a block with gradients enabled and leave the model as it was found.

    Training flags, ``.grad`` fields and the random state of all devices are restored, also after
    an error. Compiled submodules run eagerly, where calls can be seen. Inside another such block
    for the same model, what that one will put back is not noted again.
    """
    outer = _guarded.get()
    if any(model is other for other in outer):
        with torch.inference_mode(False), torch.enable_grad():
            yield
        return
    flags = {module: module.training for module in model.modules()}
    grads = {parameter: parameter.grad for parameter in model.parameters()}
    with ExitStack() as stack:
        stack.enter_context(preserved_generators(model))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(_without_cast_weights())
        if any(hasattr(module, "_orig_mod") for module in flags):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        token = _guarded.set((*outer, model))
        try:
            yield
        finally:
            _guarded.reset(token)
            for module, training in flags.items():
                module.training = training
            for parameter, grad in grads.items():
                parameter.grad = grad


@contextmanager
def _without_cast_weights() -> Iterator[None]:
    """Let an autocast around the block cast weights anew instead of taking earlier casts.

    Those belong to calls that were made before, in training, say: nobody would see the weights.
    """
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(cached)


@contextmanager
def preserved_generators(model: nn.Module) -> Iterator[None]:
    """Restore the global random state; iterating even an unshuffled loader advances it."""
    devices = {tensor.device for tensor in model.parameters() if tensor.device.type == "cuda"}
    state = torch.get_rng_state()
    states = {device: torch.cuda.get_rng_state(device) for device in devices}
    try:
        yield
    finally:
        torch.set_rng_state(state)
        for device, saved in states.items():
            torch.cuda.set_rng_state(saved, device)


@contextmanager
def exact_arithmetic(device: torch.device) -> Iterator[None]:
    """Full float32 products and convolution algorithms chosen by timing, on this device only."""
    if device.type != "cuda":
        yield
        return
    cudnn: Any = torch.backends.cudnn
    backends = torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn
    saved = [backend.fp32_precision for backend in backends], cudnn.benchmark
    try:
        for backend in backends:
            backend.fp32_precision = "ieee"
        cudnn.benchmark = True
        yield
    finally:
        for backend, precision in zip(backends, saved[0], strict=True):
            backend.fp32_precision = precision
        cudnn.benchmark = saved[1]


def rounding_dtypes(parameters: Iterable[Tensor]) -> set[torch.dtype]:
    """In which numbers that come from parameters are rounded: theirs, and that of an autocast."""
    kinds = {(parameter.dtype, parameter.device.type) for parameter in parameters}
    casts = (device for _, device in kinds if torch.is_autocast_enabled(device))
    return {dtype for dtype, _ in kinds} | {torch.get_autocast_dtype(device) for device in casts}


@contextmanager
def without_autocast(device: torch.device) -> Iterator[None]:
    """Run a block in the dtypes of its tensors, inside an autocast that the model follows."""
    if not torch.is_autocast_enabled(device.type):
        yield
        return
    with torch.autocast(device.type, enabled=False):
        yield


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Run a block without cuDNN.

    PyTorch's own guard reads all flags, and refuses where those of its old and its new interface
    for TF32 are mixed.
    """
    cudnn: Any = torch.backends.cudnn
    enabled = cudnn.enabled
    cudnn.enabled = False
    try:
        yield
    finally:
        cudnn.enabled = enabled
