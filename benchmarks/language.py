"""Language models: cost of gradient alignment, tangent kernels and a survey, beside training.

    PYTHONPATH=src python -m benchmarks.language --device cuda

A plain pass is a forward and a backward pass over the same sequences with the gradients of all
trainable parameters. Times are ratios to the plain pass of the same run and include the check
against autograd. Memory is the peak of the process, with the weights. Weights are random.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from theodolite import survey
from theodolite.engine import gradient_alignment, tangent_kernels

GIB = 2**30
LENGTHS = {False: 256, True: 16}  # of sequences, of tiny models


class LowRank(nn.Module):
    """A frozen linear layer with a trainable product of two thin matrices beside it."""

    def __init__(self, inner: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.inner = inner
        like = inner.weight
        self.lora_down = nn.Linear(inner.in_features, rank, bias=False)
        self.lora_up = nn.Linear(rank, inner.out_features, bias=False)
        self.to(device=like.device, dtype=like.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Both of them added."""
        return self.inner(x) + self.lora_up(self.lora_down(x))


def with_low_rank(model: nn.Module, names: tuple[str, ...] = ("q_proj", "v_proj")) -> nn.Module:
    """The model with frozen weights, and thin matrices beside some layers."""
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in names and isinstance(child, nn.Linear):
                setattr(module, name, LowRank(child))
    return model


def gpt2(tiny: bool) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 200} if tiny else {}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def llama(tiny: bool) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, int] = {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
    }
    if tiny:
        sizes = {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 200,
        }
    return LlamaForCausalLM(LlamaConfig(**sizes))


def made(build: Callable[[bool], nn.Module], chosen: argparse.Namespace) -> nn.Module:
    """A model with random weights, drawn where they stay."""
    with torch.device(chosen.device):
        return build(chosen.tiny)


def sequences(model: nn.Module, count: int, length: int, device: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    vocabulary = model.config.vocab_size
    ids = torch.randint(0, vocabulary, (count, length), generator=generator).to(device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def plain_pass(model: nn.Module, batch: dict[str, Tensor]) -> Callable[[], None]:
    """Forward and backward, as a training step does."""

    def call() -> None:
        model.zero_grad(set_to_none=True)
        model(**batch).loss.backward()
        model.zero_grad(set_to_none=True)

    return call


def vmapped(model: nn.Module, batch: dict[str, Tensor]) -> Callable[[], Any]:
    """Gradients of single sequences by torch.func; all of them exist at once."""
    trainable = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    others = {n: p.detach() for n, p in model.named_parameters() if not p.requires_grad}
    others |= dict(model.named_buffers())

    def loss(parameters: dict[str, Tensor], ids: Tensor) -> Tensor:
        given = {"input_ids": ids[None], "labels": ids[None]}
        values = torch.func.functional_call(model, {**parameters, **others}, (), given)
        return values.loss

    single = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0), chunk_size=4)
    return lambda: single(trainable, batch["input_ids"])


def ghost_norms(model: nn.Module, batch: dict[str, Tensor]) -> Callable[[], Tensor]:
    """Norms of the gradients of single sequences by ghost clipping; the first call wraps a copy."""
    wrapped: list[Any] = []

    def call() -> Tensor:
        if not wrapped:
            from opacus.grad_sample import GradSampleModuleFastGradientClipping

            options = {"loss_reduction": "sum", "use_ghost_clipping": True, "strict": False}
            copied = deepcopy(model).train()  # its hooks see nothing in evaluation mode
            wrapped.append(
                GradSampleModuleFastGradientClipping(copied, max_grad_norm=1.0, **options)
            )
        (single,) = wrapped
        single.zero_grad(set_to_none=True)
        given = {name: batch[name] for name in ("input_ids", "attention_mask")}
        logits = single(**given).logits[:, :-1]
        loss = nn.functional.cross_entropy(
            logits.transpose(1, 2), batch["labels"][:, 1:], reduction="none"
        )
        loss.mean(1).sum().backward()
        return single.get_norm_sample()

    return call


class Table:
    """Rows of a table that is printed and kept while it grows."""

    def __init__(self, device: str, path: Path | None, repeats: int) -> None:
        self.device, self.path, self.repeats = device, path, repeats
        self.rows: list[dict[str, Any]] = []
        self.plain: tuple[float, float] | None = None

    def add(self, case: str, name: str, call: Callable[[], Any], repeats: int | None = None) -> Any:
        """Time a call after a warm-up; the row of a call that fails has its error."""
        cuda, result = self.device.startswith("cuda"), None
        try:
            if repeats != 1:
                call()
            gc.collect()
            if cuda:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            best = float("inf")
            for _ in range(repeats or self.repeats):
                result = None
                if cuda:
                    torch.cuda.synchronize()
                begun = time.perf_counter()
                result = call()
                if cuda:
                    torch.cuda.synchronize()
                best = min(best, time.perf_counter() - begun)
        except (RuntimeError, ValueError, TypeError, ImportError) as error:
            print(f"{case:24s} {name:44s} failed: {str(error).splitlines()[0][:150]}", flush=True)
            self.rows.append({"case": case, "name": name, "failed": str(error)[:300]})
            return None
        peak = torch.cuda.max_memory_allocated() / GIB if cuda else 0.0
        if name == "plain pass":
            self.plain = best, peak
        row = {"case": case, "name": name, "seconds": best, "gibibytes": peak}
        text = f"{case:24s} {name:44s} {best * 1e3:9.1f} ms {peak:7.2f} GiB"
        if self.plain is not None and name != "plain pass":
            row["times"] = best / self.plain[0]
            row["memory"] = peak / self.plain[1] if self.plain[1] else None
            text += f"   {row['times']:5.2f}x time"
            text += "" if row["memory"] is None else f" {row['memory']:5.2f}x memory"
        print(text, flush=True)
        self.rows.append(row)
        if self.path is not None:
            self.path.write_text(json.dumps(self.rows, indent=1))
        return result


def groups_of(count: int) -> Tensor:
    return torch.arange(count) % 4


def gradients(table: Table, case: str, model: nn.Module, batch: dict[str, Tensor]) -> None:
    """Omega of every layer, overall and within four groups, unchecked and checked."""
    table.add(case, "plain pass", plain_pass(model, batch))
    omega = "in-group Omega of all layers"
    table.add(case, f"{omega}, unchecked", grouped(model, batch, False))
    found = table.add(case, f"{omega}, checked", grouped(model, batch))
    if found is not None:
        sums = found.sums
        how = f"measured {sums.measured}, check {sums.checked}, {len(found)} layers"
        print(f"{'':24s} {how}", flush=True)


def of_gpt2(table: Table, chosen: argparse.Namespace, due: Callable[[str], bool]) -> None:
    """Gradients of 16 sequences, tangent kernels of 64."""
    device, length = chosen.device, LENGTHS[chosen.tiny]
    model = made(gpt2, chosen).eval()
    if due("gpt2"):
        batch, case = sequences(model, 16, length, device), f"GPT-2 16 x {length}"
        gradients(table, case, model, batch)
        profile(chosen.profile, "gpt2", grouped(model, batch), device)
        if chosen.peers:
            table.add(case, "torch.func per-sample gradients", vmapped(model, batch))
    if due("kernel"):
        batch, case = sequences(model, 64, length, device), f"GPT-2 64 x {length}"
        table.add(case, "plain pass", plain_pass(model, batch))
        call = partial(tangent_kernels, model, batch, readout="loss", outputs="trace")
        table.add(case, "tangent kernels of the sequence loss", call)
        profile(chosen.profile, "kernel", call, device)


def of_llama(table: Table, chosen: argparse.Namespace, due: Callable[[str], bool]) -> None:
    """Gradients of all weights and of thin matrices alone, and a survey of all families."""
    device, length = chosen.device, LENGTHS[chosen.tiny]

    def half() -> nn.Module:
        return made(llama, chosen).to(torch.bfloat16).eval()

    if due("llama"):
        model = half()
        few = sequences(model, 16, length, device)
        case = f"Llama 1.1B bf16 16 x {length}"
        gradients(table, case, model, few)
        if chosen.peers:
            table.add(case, "Opacus ghost norms", ghost_norms(model, few))
        profile(chosen.profile, "llama", grouped(model, few), device)
        del model
    if due("lora"):
        model = with_low_rank(half())
        few = sequences(model, 16, length, device)
        gradients(table, f"Llama LoRA 16 x {length}", model, few)
        profile(chosen.profile, "lora", grouped(model, few), device)
        del model
    if due("survey"):
        model = half()
        batch = sequences(model, 32, length, device)
        table.plain, call = None, partial(survey, model, batch, groups=groups_of(32).tolist())
        found = table.add(f"Llama 1.1B bf16 32 x {length}", "survey, all families", call, 1)
        if found is not None:
            contents = found.record.contents
            print({k: round(v, 2) for k, v in contents["seconds"].items()}, contents["skipped"])
            print(len(contents["rows"]), "rows", flush=True)


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tiny", action="store_true", help="small models, to try the script")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=170.0, help="begin nothing later")
    parser.add_argument("--profile", type=Path, help="write profiles of the gradient passes")
    parser.add_argument(
        "--peers", action="store_true", help="torch.func and Opacus too, where they run"
    )
    parser.add_argument("cases", nargs="*", default=[])
    chosen = parser.parse_args()
    begun = time.perf_counter()

    def due(name: str) -> bool:
        late = time.perf_counter() - begun > chosen.seconds
        if late:
            print(f"{name}: left out, no time", flush=True)
        return not late and (not chosen.cases or name in chosen.cases)

    torch.manual_seed(0)
    table = Table(chosen.device, chosen.json, chosen.repeats)
    for part in (of_gpt2, of_llama):
        part(table, chosen, due)
        clear(chosen.device)


def clear(device: str) -> None:
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


def grouped(model: nn.Module, batch: dict[str, Tensor], check: bool = True) -> Callable[[], Any]:
    """Omega of every layer, overall and within four groups."""
    labels = groups_of(len(batch["input_ids"]))
    return partial(gradient_alignment, model, batch, readout="loss", labels=labels, check=check)


def profile(folder: Path | None, name: str, call: Callable[[], Any], device: str) -> None:
    """The operations that take longest, as a table on disk."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with record(activities=activities, record_shapes=True) as found:
        call()
    key = "self_cuda_time_total" if device.startswith("cuda") else "self_cpu_time_total"
    averages = found.key_averages(group_by_input_shape=True)
    text = averages.table(sort_by=key, row_limit=40, max_shapes_column_width=90)
    text += found.key_averages().table(sort_by="self_cpu_time_total", row_limit=40)
    (folder / f"{name}.txt").write_text(text)


if __name__ == "__main__":
    main()
