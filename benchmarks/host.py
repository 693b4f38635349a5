"""What the host does for a call beside a plain pass: operations dispatched and processor time.

    PYTHONPATH=src python -m benchmarks.host

The architectures are those of the GPU rows, with all their layers and narrow widths, on one thread
of a CPU: nearly all of the time is Python and dispatch, and the number of operations is about that
of a GPU's launches (its own paths for half precision and long vectors aside). These are
measurements of the host. They predict rows of a GPU that waits for its host; they replace none.

Views and empty tensors launch nothing and are counted apart. Processor time is the least of several
calls, after one that warms up.
"""

import argparse
import gc
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.language import grouped, plain_pass, sequences, with_low_rank
from benchmarks.resnet import ResNet18
from theodolite import Monitor
from theodolite.engine import gradient_alignment, tangent_kernels

Call = Callable[[], Any]
SEQUENCES, LENGTH = 16, 16
# Operations that are dispatched and reach no device, beside views.
UNLAUNCHED = ("empty", "new_empty", "detach", "_local_scalar", "_unsafe_view", "promote_types")


class Launches(TorchDispatchMode):
    """Counts the operations that reach a device while the block runs."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.views = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count, and go on."""
        name = func._schema.name.removeprefix("aten::")
        if func.is_view or name.startswith(UNLAUNCHED):
            self.views += 1
        else:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def launched(call: Call) -> Launches:
    """Operations of one call."""
    with Launches() as seen:
        call()
    return seen


def processor_time(call: Call, repeats: int) -> float:
    """Seconds of the processor that one call takes at least."""
    call()
    gc.collect()
    best = float("inf")
    for _ in range(repeats):
        begun = time.process_time()
        call()
        best = min(best, time.process_time() - begun)
    return best


def gpt2() -> nn.Module:
    """Twelve layers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 32, "n_layer": 12, "n_head": 4, "vocab_size": 200}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()


def llama() -> nn.Module:
    """Twenty-two layers, with fewer keys and values than queries."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, int] = {
        "hidden_size": 32,
        "intermediate_size": 88,
        "num_hidden_layers": 22,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 200,
    }
    return LlamaForCausalLM(LlamaConfig(**sizes)).eval()


def of_language(model: nn.Module) -> tuple[Call, dict[str, Call]]:
    """A plain pass, and in-group Omega of every layer."""
    batch = sequences(model, SEQUENCES, LENGTH, "cpu")
    calls = {
        "Omega, unchecked": grouped(model, batch, False),
        "Omega, checked": grouped(model, batch),
    }
    return plain_pass(model, batch), calls


def trained(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    """Forward and backward, as a training step does."""

    def call() -> None:
        model.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(x), y).backward()
        model.zero_grad(set_to_none=True)

    return call


def of_mlp() -> tuple[Call, dict[str, Call]]:
    """A plain pass over 20 examples, and their tangent kernels of ten outputs."""
    sizes = [nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(4)]
    model = nn.Sequential(*sizes, nn.Linear(32, 10))
    x, y = torch.randn(20, 32), torch.arange(20) % 10
    calls: dict[str, Call] = {
        f"tangent kernels{'' if check else ', unchecked'}": partial(
            tangent_kernels, model, x, check=check
        )
        for check in (False, True)
    }
    return trained(model, x, y), calls


def of_resnet() -> tuple[Call, dict[str, Call]]:
    """A plain pass over 20 images, Omega, and a measurement of a monitor."""
    model = ResNet18().eval()
    x, y = torch.randn(20, 3, 8, 8), torch.arange(20) % 10
    monitor = Monitor(model, probe=(x, y), loss=nn.CrossEntropyLoss(), every=1)
    steps = iter(range(10**6))
    calls: dict[str, Call] = {
        "Omega": partial(gradient_alignment, model, x, y),
        "one measurement of a Monitor": lambda: monitor.step(next(steps)),
    }
    return trained(model, x, y), calls


CASES: dict[str, Callable[[], tuple[Call, dict[str, Call]]]] = {
    "GPT-2, 12 layers": lambda: of_language(gpt2()),
    "Llama, 22 layers": lambda: of_language(llama()),
    "Llama LoRA, 22 layers": lambda: of_language(with_low_rank(llama())),
    "MLP, 5 layers": of_mlp,
    "ResNet-18": of_resnet,
}


def row(case: str, name: str, found: Launches, seconds: float, plain: tuple[int, float]) -> str:
    """One line of the table, with ratios to the plain pass."""
    count = found.counts.total()
    ratios = f"{count / plain[0]:6.2f}x {seconds / plain[1]:6.2f}x"
    milliseconds = seconds * 1e3
    return f"{case:24s} {name:30s} {count:7d} {found.views:7d} {milliseconds:9.1f} ms {ratios}"


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--operations", type=int, default=0, help="list the most frequent ones")
    parser.add_argument("cases", nargs="*", help="beginnings of names")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'':55s} {'launch':>7s} {'view':>7s} {'processor':>12s} launches time")
    for case, build in CASES.items():
        if chosen.cases and not case.lower().startswith(tuple(chosen.cases)):
            continue
        torch.manual_seed(0)
        plain, calls = build()
        basis = 1, 1.0
        for name, call in {"plain pass": plain, **calls}.items():
            seconds = processor_time(call, chosen.repeats)
            found = launched(call)
            if name == "plain pass":
                basis = found.counts.total(), seconds
            print(row(case, name, found, seconds, basis), flush=True)
            if chosen.operations:
                print(f"{'':24s} {found.counts.most_common(chosen.operations)}", flush=True)


if __name__ == "__main__":
    main()
