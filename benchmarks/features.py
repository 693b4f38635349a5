"""CKA of the 18 convolutions of ResNet-18 with each other and with the labels, over all the data.

Run: ``python -m benchmarks.features --device cuda``. Our value is exact for all n examples at once.
The minibatch estimate of pytorch-cka, if it is installed, averages over batches. The lower bound is
the forward pass and the products of the flattened features with themselves.
"""

import argparse

import torch
from torch import Tensor, nn

from benchmarks.resnet import ResNet18, images
from benchmarks.stopwatch import attempt, measure
from theodolite.engine import feature_grams, features
from theodolite.engine.state import exact_arithmetic


def convolutions(model: nn.Module) -> list[str]:
    """The stem and the two convolutions of each block, and the classifier as the eighteenth."""
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    return [*(name for name in names if "shortcut" not in name), "fc"]


def cka_table(grams: list[Tensor]) -> Tensor:
    """Debiased CKA of all pairs: U-centred Grams side by side, one product."""
    rows = torch.stack([u_centered(gram).flatten() for gram in grams])
    inner = rows @ rows.mT
    norms = inner.diagonal().sqrt()
    return inner / norms.outer(norms)


def u_centered(gram: Tensor) -> Tensor:
    """Song et al. (2012): zero diagonal, then rows and columns with mean zero off it."""
    n = len(gram)
    k = gram.double().fill_diagonal_(0.0)
    rows = k.sum(1) / (n - 2)
    k = k - rows - rows.unsqueeze(1) + k.sum() / ((n - 1) * (n - 2))
    return k.fill_diagonal_(0.0)


def ours(model: nn.Module, data: tuple[Tensor, Tensor], names: list[str]) -> Tensor:
    grams = feature_grams(model, data, names, read="raw", center=True, batch_size=500)
    onehot = nn.functional.one_hot(data[1]).double()
    return cka_table([*grams.values(), onehot @ onehot.mT])


def floor(model: nn.Module, data: tuple[Tensor, Tensor], names: list[str]) -> None:
    """The forward pass, and one product per layer on features that lie ready."""
    with torch.no_grad(), exact_arithmetic(data[0].device):
        for part in data[0].split(500):
            model(part)
        for width in [65536] * 5 + [32768] * 4 + [16384] * 4 + [8192] * 4 + [10]:
            rows = torch.empty(len(data[0]), width, device=data[0].device)
            for low in range(0, len(rows), 512):
                rows[low : low + 512] @ rows[: low + 512].mT


def peer(model: nn.Module, data: tuple[Tensor, Tensor], names: list[str], device: str) -> object:
    from cka import compute_cka
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(*data), batch_size=128)
    return compute_cka(model, model, loader, layers=names, device=device, progress=False)[0]


def check(model: nn.Module, names: list[str], device: str) -> None:
    """Against float64 features of a few examples, before anything is timed."""
    data = images(60, device)
    exact = features(model.double(), (data[0].double(), data[1]), names, read="raw")
    onehot = nn.functional.one_hot(data[1]).double()
    expected = cka_table([rows @ rows.mT for rows in [*exact.values(), onehot]])
    model.float()
    error = (ours(model, data, names) - expected).abs().max().item()
    print(f"largest difference from float64 on 60 examples: {error:.1e}")
    if error > 1e-4:
        raise SystemExit("outputs differ: not timed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--count", type=int, default=2000)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = ResNet18().to(options.device).eval()
    names = convolutions(model)
    check(model, names, options.device)
    data = images(options.count, options.device)
    print(f"CKA of {len(names)} layers and the labels, flattened, n={options.count}, exact")
    base = measure(lambda: floor(model, data, names), options.device)
    print(base.line("floor: forward pass and products"))
    attempt("theodolite", lambda: ours(model, data, names), options.device, base)
    attempt("pytorch-cka, minibatch estimate", lambda: peer(model, data, names, options.device),
            options.device, base)  # fmt: skip


if __name__ == "__main__":
    main()
