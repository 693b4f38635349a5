"""In-class Omega of every layer of ResNet-18 with GroupNorm: does it cost more than one plain pass?

Run: ``python -m benchmarks.gradients --device cuda``. The lower bound is one forward and backward
pass over the same data, which gives only the summed gradient. Peers form the gradient of every
example: torch.func, and Opacus and BackPACK if they are installed.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.resnet import ResNet18, group_norm, images
from benchmarks.stopwatch import attempt, measure
from theodolite.engine import gradient_alignment, gradient_sums
from theodolite.engine.state import exact_arithmetic
from theodolite.measures.gradient import in_class_alignment

Data = tuple[Tensor, Tensor]


def losses(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none")


def plain_pass(model: nn.Module, data: Data) -> list[Tensor]:
    total = losses(model(data[0]), data[1]).sum()
    return list(torch.autograd.grad(total, list(model.parameters())))


def timed_plain_pass(model: nn.Module, data: Data) -> None:
    with exact_arithmetic(data[0].device):  # the same algorithms as ours
        plain_pass(model, data)


def ours(
    model: nn.Module, data: Data, batch_size: int | None, *, check: bool = True
) -> dict[str, Tensor]:
    found = gradient_alignment(model, *data, losses, batch_size=batch_size, check=check)
    return {name: layer.in_class for name, layer in found.items()}


def by_layer(model: nn.Module, gradients: dict[str, Tensor], labels: Tensor) -> dict[str, Tensor]:
    """In-class Omega from gradients of single examples, each (n, ...)."""
    layers: dict[str, list[Tensor]] = {}
    for name, rows in gradients.items():
        layers.setdefault(name.rpartition(".")[0], []).append(rows.flatten(1))
    return {name: in_class_alignment(torch.cat(parts, 1), labels) for name, parts in layers.items()}


def with_torch_func(model: nn.Module, data: Data, chunk: int | None) -> dict[str, Tensor]:
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(values: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        outputs = torch.func.functional_call(model, values, (image[None],))
        return losses(outputs, label[None]).sum()

    single = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), chunk_size=chunk)
    return by_layer(model, single(parameters, *data), data[1])


def with_opacus(model: nn.Module, data: Data) -> dict[str, Tensor]:
    from opacus import GradSampleModule  # refuses operations in place: the same net without them

    plain = ResNet18(group_norm, inplace=False).to(data[0].device).train()
    plain.load_state_dict(model.state_dict())
    model = plain
    wrapped = GradSampleModule(model, loss_reduction="sum")
    losses(wrapped(data[0]), data[1]).sum().backward()
    rows = {name: value.grad_sample for name, value in model.named_parameters()}
    return by_layer(model, rows, data[1])


def with_backpack(model: nn.Module, data: Data) -> dict[str, Tensor]:
    """Convolutions and the classifier only: BackPACK has no gradients of examples for GroupNorm."""
    from backpack import backpack, extend
    from backpack.extensions import BatchGrad

    plain = ResNet18(group_norm, inplace=False).to(data[0].device).eval()
    plain.load_state_dict(model.state_dict())
    for module in plain.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            extend(module)
        elif isinstance(module, nn.GroupNorm):
            module.requires_grad_(False)
    with backpack(BatchGrad()):
        losses(plain(data[0]), data[1]).sum().backward()
    rows = {name: p.grad_batch for name, p in plain.named_parameters() if p.requires_grad}
    return by_layer(plain, rows, data[1])


def one_at_a_time(model: nn.Module, data: Data) -> dict[str, Tensor]:
    """The definition: one backward pass per example, in float64."""
    rows: dict[str, list[Tensor]] = {name: [] for name, _ in model.named_parameters()}
    for index in range(len(data[0])):
        grads = plain_pass(model, (data[0][index, None], data[1][index, None]))
        for name, grad in zip(rows, grads, strict=True):
            rows[name].append(grad)
    return by_layer(model, {name: torch.stack(parts) for name, parts in rows.items()}, data[1])


def worst(found: dict[str, Tensor], expected: dict[str, Tensor]) -> tuple[float, str]:
    """The largest difference, and where."""
    return max((abs(float(found[name]) - float(value)), name) for name, value in expected.items())


def check(model: nn.Module, device: str) -> None:
    """Against the definition, in float64 and in float32, before anything is timed."""
    data = images(24, device, classes=3)
    exact = one_at_a_time(model.double(), (data[0].double(), data[1]))
    wide, where = worst(ours(model, (data[0].double(), data[1]), batch_size=10), exact)
    model.float()
    narrow, layer = worst(ours(model, data, batch_size=10), exact)
    plain, other = worst(one_at_a_time(model, data), exact)
    print("largest difference from one pass per example in float64, 24 examples:")
    print(f"  float64 {wide:.1e} ({where}), float32 {narrow:.1e} ({layer})")
    print(f"  one pass per example in float32 {plain:.1e} ({other})")
    if wide > 1e-9 or narrow > 1e-3:
        raise SystemExit("outputs differ: not timed")


def no_tf32(device: str) -> None:
    """Plain float32 everywhere, and algorithms of cuDNN by timing, for peers as for us."""
    if device.startswith("cuda"):
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        torch.backends.cudnn.conv.fp32_precision = "ieee"


def parts(model: nn.Module, data: Data, batch_size: int, device: str) -> None:
    """Where the time goes: the passes alone, without and with the gradients of weights."""

    def passes() -> None:
        with exact_arithmetic(data[0].device):
            for low in range(0, len(data[0]), batch_size):
                span = slice(low, low + batch_size)
                inputs = data[0][span].requires_grad_()
                torch.autograd.grad(losses(model(inputs), data[1][span]).sum(), inputs)

    print(measure(passes, device).line(f"  passes to the inputs only, batches of {batch_size}"))


def profile(model: nn.Module, data: Data, device: str) -> None:
    """Where the device's time goes, by kernel."""
    if not device.startswith("cuda"):
        return
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with record(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as recorded:
        ours(model, data, 250)
        torch.cuda.synchronize()
    table = recorded.key_averages().table(
        sort_by="self_cuda_time_total", row_limit=22, max_name_column_width=60
    )
    print("\n".join(line[:62] + line[-110:] for line in table.splitlines()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--profile", action="store_true", help="print time by kernel")
    options = parser.parse_args()
    device = options.device
    no_tf32(device)
    torch.manual_seed(0)
    model = ResNet18(group_norm).to(device).eval()
    check(model, device)
    data = images(options.count, device)
    print(f"in-class Omega of ResNet-18 with GroupNorm, n={options.count}, float32, TF32 off")
    base = measure(lambda: plain_pass(model, data), device)
    print(base.line("floor: one plain pass, cuDNN heuristics"))
    print(measure(lambda: timed_plain_pass(model, data), device).line("  the same, cuDNN timed"))
    attempt("theodolite", lambda: ours(model, data, None), device, base)
    for batch_size in (128, 250, 500):
        attempt(
            f"theodolite, batches of {batch_size}",
            lambda size=batch_size: ours(model, data, size),
            device,
            base,
        )
        parts(model, data, batch_size, device)
    attempt("theodolite, 250, no check", lambda: ours(model, data, 250, check=False), device, base)
    attempt(
        "theodolite, 250, with stiffness",
        lambda: gradient_sums(model, *data, losses, stiffness=True, batch_size=250),
        device,
        base,
    )
    if options.profile:
        profile(model, data, device)
    attempt("Opacus", lambda: with_opacus(model, data), device, base)
    attempt("BackPACK, without GroupNorm", lambda: with_backpack(model, data), device, base)
    attempt("torch.func, chunks of 64", lambda: with_torch_func(model, data, 64), device, base)
    if device.startswith("cuda"):
        attempt("torch.func", lambda: with_torch_func(model, data, None), device, base)


if __name__ == "__main__":
    main()
