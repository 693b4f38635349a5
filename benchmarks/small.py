"""Cost of one call on small networks, in processor time, beside peers.

The networks have 10 to 100 thousand parameters, and the examples are few. So there is little to
compute, and the fixed cost of a call dominates. Each number is the smallest of several calls after
a warm-up. Every call gets a new copy of the model, so that calls share nothing. The time of copying
does not count. TorchJD computes the total kernel of all outputs, Opacus the norms of gradients by
ghost clipping. The last two columns are the passes of checked kernels and gradients, without
anything else.

    PYTHONPATH=src OMP_NUM_THREADS=1 python -m benchmarks.small
"""

import argparse
import copy
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, jacrev, vmap
from torch.nn import functional

import theodolite as th

Case = tuple[nn.Module, Tensor, Tensor]


class SmallRecurrent(nn.Module):
    """An LSTM over 12 steps, read at its last one."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList([nn.LSTMCell(16, 64)])
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (n, 10) of sequences (n, 12, 16)."""
        state = x.new_zeros(len(x), 64), x.new_zeros(len(x), 64)
        for step in x.unbind(1):
            state = self.cells[0](step, state)
        return self.head(state[0])


class SmallTransformer(nn.Module):
    """Two layers of attention over 12 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """Outputs (n, 10) of tokens (n, 12)."""
        return self.head(self.body(self.embed(tokens)).mean(1))


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def cases(examples: Sequence[int]) -> Iterator[tuple[str, Case]]:
    """Name, model, inputs and labels."""
    torch.manual_seed(0)
    for n in examples:
        labels = torch.arange(n) % 10
        yield f"MLP, n={n}", (_mlp(), torch.randn(n, 64), labels)
        yield f"CNN, n={n}", (_cnn(), torch.randn(n, 3, 16, 16), labels)
        yield f"RNN, n={n}", (SmallRecurrent(), torch.randn(n, 12, 16), labels)
        tokens = torch.randint(50, (n, 12))
        yield f"transformer, n={n}", (SmallTransformer().eval(), tokens, labels)


def _least(call: Callable[[nn.Module], Any], model: nn.Module, seconds: float) -> float:
    call(copy.deepcopy(model))
    best, start = float("inf"), time.process_time()
    while time.process_time() - start < seconds:
        fresh = copy.deepcopy(model)
        before = time.process_time()
        call(fresh)
        best = min(best, time.process_time() - before)
    return 1e3 * best


def _loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none")


def kernels(case: Case, check: bool) -> Callable[[nn.Module], Any]:
    """Tangent kernels."""
    _, x, _ = case
    return lambda model: th.tangent_kernels(model, x, check=check)


def gradients(case: Case, check: bool) -> Callable[[nn.Module], Any]:
    """Norms and class sums of the gradients of single examples."""
    _, x, y = case
    return lambda model: th.gradient_alignment(model, x, y, _loss, check=check)


def plain(case: Case) -> Callable[[nn.Module], Any]:
    """One forward and backward pass."""
    _, x, y = case
    return lambda model: torch.autograd.grad(_loss(model(x), y).sum(), [*model.parameters()])


def passes(case: Case, joint: bool) -> Callable[[nn.Module], Any]:
    """The passes of a checked call and nothing else: no recording, contraction or comparison.

    One example alone, the batch, and a third of it again run forward. Kernels take one vectorised
    backward pass of all outputs and one start more; gradients take two. Both take gradients of the
    third and of the single example with respect to the parameters. Gradients evaluate the loss for
    the batch, for the third and for the single example.

    Args:
        case: The network and its data.
        joint: Whether these are the passes of kernels.
    """
    _, x, y = case
    n, third = len(x), -(-len(x) // 3)

    def call(model: nn.Module) -> None:
        edges: list[GradientEdge] = []
        owners = [m for m in model.modules() if [*m.parameters(recurse=False)]]
        hooks = [m.register_forward_hook(partial(_add_edges, edges)) for m in owners]
        outputs = model(x)
        for hook in hooks:
            hook.remove()
        parts = [model(x[:1]), model(x[:third])]
        found = [part.detach().requires_grad_() for part in (outputs, *parts)]

        def backward(start: Tensor) -> Any:
            return torch.autograd.grad(outputs, edges, start, retain_graph=True, allow_unused=True)

        weights = [*model.parameters()]
        if joint:
            starts = torch.eye(11, 10)[:, None].expand(-1, n, -1)
            vmap(lambda start: torch.autograd.grad(outputs, edges, start, retain_graph=True))(
                starts
            )
            both = torch.cat(parts)
            torch.autograd.grad(both, weights, torch.ones_like(both), allow_unused=True)
            return
        for values, labels in zip(found, (y, y[:1], y[:third]), strict=True):
            torch.autograd.grad(_loss(values, labels).sum(), values)
        backward(torch.ones_like(outputs))
        backward(torch.ones_like(outputs))
        for part in parts:
            torch.autograd.grad(part, weights, torch.ones_like(part), allow_unused=True)

    return call


def _add_edges(edges: list[GradientEdge], _module: nn.Module, _args: Any, output: Any) -> None:
    tensors = output if isinstance(output, tuple) else (output,)
    edges.extend(get_gradient_edge(t) for t in tensors if isinstance(t, Tensor) and t.requires_grad)


def func_kernels(case: Case) -> Callable[[nn.Module], Any]:
    """Kernels per tensor from all gradients, by torch.func."""
    _, x, _ = case

    def call(model: nn.Module) -> list[Tensor]:
        weights = {name: value.detach() for name, value in model.named_parameters()}

        def one(p: dict[str, Tensor], row: Tensor) -> Tensor:
            return functional_call(model, p, (row.unsqueeze(0),)).squeeze(0)

        jacobians = vmap(jacrev(one), (None, 0), randomness="different")(weights, x)
        rows = [value.flatten(2) for value in jacobians.values()]
        return [torch.einsum("ncp,mdp->ncmd", row, row) for row in rows]

    return call


def func_gradients(case: Case) -> Callable[[nn.Module], Any]:
    """Norms of all gradients, by torch.func."""
    _, x, y = case

    def call(model: nn.Module) -> list[Tensor]:
        weights = {name: value.detach() for name, value in model.named_parameters()}

        def one(p: dict[str, Tensor], row: Tensor, label: Tensor) -> Tensor:
            outputs = functional_call(model, p, (row.unsqueeze(0),))
            return _loss(outputs, label.unsqueeze(0)).squeeze(0)

        each = vmap(torch.func.grad(one), (None, 0, 0), randomness="different")(weights, x, y)
        return [value.flatten(1).norm(dim=1) for value in each.values()]

    return call


def torchjd_kernel(case: Case) -> Callable[[nn.Module], Any]:
    """The kernel of all parameters together, by TorchJD."""
    from torchjd.autogram import Engine

    def call(model: nn.Module) -> Tensor:
        engine = Engine(model, batch_dim=0)
        return engine.compute_gramian(model(case[1]))

    return call


def opacus_norms(case: Case) -> Callable[[nn.Module], Any]:
    """Norms of all gradients, by ghost clipping of Opacus."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    def call(model: nn.Module) -> Tensor:
        wrapped = GradSampleModuleFastGradientClipping(model.train(), loss_reduction="sum")
        _loss(wrapped(case[1]), case[2]).sum().backward()
        return wrapped.get_norm_sample()

    return call


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--examples", type=int, nargs="+", default=[32, 64])
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[str, Callable[[Case], Callable[[nn.Module], Any]]] = {
        "kernels": lambda case: kernels(case, True),
        "unchecked": lambda case: kernels(case, False),
        "torch.func": func_kernels,
        "TorchJD": torchjd_kernel,
        "gradients": lambda case: gradients(case, True),
        "unchecked ": lambda case: gradients(case, False),
        "torch.func ": func_gradients,
        "Opacus": opacus_norms,
        "plain pass": plain,
        "passes": lambda case: passes(case, True),
        "passes ": lambda case: passes(case, False),
    }
    print(f"{'ms of processor time':24s}" + "".join(f"{name:>12s}" for name in rows))
    for name, case in cases(options.examples):
        if options.only not in name:
            continue
        row = []
        for make in rows.values():
            try:
                row.append(f"{_least(make(case), case[0], options.seconds):12.2f}")
            except Exception as error:  # a peer that is not installed, or refuses the network
                row.append(f"{type(error).__name__:>12.11s}")
        print(f"{name:24s}" + "".join(row), flush=True)


if __name__ == "__main__":
    main()
