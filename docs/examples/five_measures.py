"""One measure of each family on scikit-learn's digits, before and after training a small network.

Run: ``python docs/examples/five_measures.py`` (or ``make demo``).
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

import theodolite as th
from theodolite.measures import covariance, kernel, representation, tangent

PROBE = 200  # examples of the tangent and gradient families


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """All 1,797 images as rows of 64 pixels in [0, 1], shuffled once."""
    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return torch.from_numpy(pixels).float()[order] / 16, torch.from_numpy(labels)[order]


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int = 300) -> float:
    """Full-batch Adam; returns the training accuracy."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        return (model(x).argmax(1) == y).double().mean().item()


def five_numbers(model: nn.Sequential, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    """The headline number of each family at the hidden layer."""
    hidden = th.features(model, x, layers=["1"])["1"]
    area = representation.alignment_area(hidden, y)
    inputs = torch.cov(x.T.double(), correction=0)
    weights = th.engine.weight_covariance(model[0]).double()
    misalignment = covariance.compare_misalignment(
        inputs, weights, filters=256, generator=torch.Generator().manual_seed(0)
    )
    kernels = th.tangent_kernels(model, x[:PROBE], layers=["0"])
    targets = one_hot(y[:PROBE], 10).double()
    sums = th.gradient_alignment(
        model,
        x[:PROBE],
        y[:PROBE],
        lambda z, t: cross_entropy(z, t, reduction="none"),
        layers=["0"],
    )
    return {
        "representation: area under the alignment curve": float(area),
        "covariance: misalignment over random bases": float(misalignment.relative),
        "kernel: CKA of features and labels": float(kernel.target_cka(hidden, y)),
        "tangent: alignment of layer 1 with the labels": float(
            tangent.tangent_alignment(kernels["0"].double(), targets)
        ),
        "gradient: in-class alignment of layer 1": float(sums["0"].in_class),
    }


def main() -> None:
    """Print the five numbers before and after training."""
    x, y = digits()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    before = five_numbers(model, x, y)
    accuracy = train(model, x, y)
    after = five_numbers(model, x, y)
    print(f"digits: {len(x)} examples, 64-256-10 network, training accuracy {accuracy:.3f}\n")
    print(f"{'family and measure':50s} {'before':>8s} {'after':>8s}")
    for name in before:
        print(f"{name:50s} {before[name]:8.4f} {after[name]:8.4f}")


if __name__ == "__main__":
    main()
