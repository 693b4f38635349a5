"""Curvature of ResNet-18: products with Gauss-Newton and Hessian, and Fisher traces per layer.

Run: ``python -m benchmarks.curvature --device cuda``. The floor is one plain forward and backward
pass over the same data. curvlinops, where it is installed, must give the same products; its traces
are estimates from random vectors, ours are exact and per layer.
"""

import argparse
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.resnet import ResNet18, images
from benchmarks.stopwatch import attempt, measure
from theodolite.engine import gauss_newton, output_hessian
from theodolite.engine.state import exact_arithmetic

Data = tuple[Tensor, Tensor]


def plain_pass(model: nn.Module, data: Data) -> None:
    with exact_arithmetic(data[0].device):  # TF32 off, as in our products
        loss = functional.cross_entropy(model(data[0]), data[1])
        torch.autograd.grad(loss, list(model.parameters()))


def peers(model: nn.Module, data: Data) -> tuple[object, object]:
    from curvlinops import GGNLinearOperator, HessianLinearOperator

    parameters = [value for value in model.parameters() if value.requires_grad]
    arguments = (model, nn.CrossEntropyLoss(), parameters, [data])
    return (
        GGNLinearOperator(*arguments, check_deterministic=False),
        HessianLinearOperator(*arguments, check_deterministic=False),
    )


def peer_product(model: nn.Module, data: Data, which: int, vector: Tensor) -> Tensor:
    with exact_arithmetic(data[0].device):
        return peers(model, data)[which] @ vector


def check(device: str) -> None:
    """Products against curvlinops, or against autograd's own Hessian product, in float64."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 4, 3, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(900, 10))
    model = nn.Sequential(*layers).double().to(device)
    inputs, labels = images(6, device)
    data = (inputs.double(), labels)
    newton, rest = gauss_newton(model, data[0]), output_hessian(model, *data)
    vector = torch.randn(newton.shape[0], dtype=torch.float64, device=device)
    ours = newton @ vector + rest @ vector
    parameters = list(model.parameters())
    loss = functional.cross_entropy(model(data[0]), data[1])
    grads = torch.autograd.grad(loss, parameters, create_graph=True)
    inner = torch.cat([grad.flatten() for grad in grads]) @ vector
    whole = torch.cat([part.flatten() for part in torch.autograd.grad(inner, parameters)])
    errors = {"autograd's Hessian": (ours - whole).abs().max().item()}
    try:
        other_newton, other_hessian = peers(model, data)
        errors["curvlinops, Hessian"] = (ours - other_hessian @ vector).abs().max().item()
        errors["curvlinops, GGN"] = (newton @ vector - other_newton @ vector).abs().max().item()
    except ImportError:
        pass
    for name, error in errors.items():
        print(f"largest difference from {name}: {error:.1e}")
    if max(errors.values()) > 1e-10:
        raise SystemExit("outputs differ: not timed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--count", type=int, default=1000)
    options = parser.parse_args()
    device = options.device
    check(device)
    torch.manual_seed(0)
    model = ResNet18().to(device).eval()
    data = images(options.count, device)
    print(f"ResNet-18 in evaluation mode, n={options.count}, float32, TF32 off")
    base = measure(lambda: plain_pass(model, data), device, repeats=3)
    print(base.line("floor: one plain pass"))
    newton = gauss_newton(model, data[0], batch_size=250)
    hessian = output_hessian(model, *data, batch_size=250)
    vector = torch.randn(newton.shape[0], device=device)
    attempt("Gauss-Newton product", lambda: newton @ vector, device, base)
    attempt("output Hessian product", lambda: hessian @ vector, device, base)
    attempt("Fisher trace of every layer, exact", newton.layer_traces, device, base)
    for which, name in enumerate(("GGN", "Hessian")):
        call = partial(peer_product, model, data, which, vector)
        attempt(f"curvlinops {name} product", call, device, base)


if __name__ == "__main__":
    main()
