"""Transformers in one call: gradients of sequences against autograd, one sequence at a time."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import theodolite as th
from tests.survey.subjects import value
from theodolite.measures import gradient
from theodolite.records import Note

transformers = pytest.importorskip("transformers")

V, N, T = 30, 8, 6
# Only what is compared here: no pairs of gradients, no unit vectors.
LIGHT = {"families": "gradient", "sizes": {"pairs": 0}, "options": {"details": False}}
# Models of float64 have parts in float32: norms, rotations, probabilities of routers.
ROUNDING = 1e-5
SIZES = {
    "vocab_size": V,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
}


def tokens() -> dict[str, Tensor]:
    ids = torch.randint(2, V, (N, T), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[::3, 4:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def tagged() -> dict[str, Tensor]:
    batch = tokens()
    return batch | {"labels": (batch["input_ids"] % 3).masked_fill(batch["labels"] < 0, -100)}


def masked() -> dict[str, Tensor]:
    batch = tokens()
    hidden = torch.arange(T).expand(N, T) % 3 == 1
    labels = batch["labels"].where(hidden, -100)
    return batch | {"labels": labels, "input_ids": batch["input_ids"].masked_fill(hidden, 1)}


def translated() -> dict[str, Tensor]:
    batch = tokens()
    return batch | {"labels": batch["input_ids"][:, :4]}


def classified() -> dict[str, Tensor]:
    return tokens() | {"labels": torch.arange(N) % 3}


def pictures() -> dict[str, Tensor]:
    images = torch.randn(N, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return {"pixel_values": images.double(), "labels": torch.arange(N) % 3}


def gpt2(**options: Any) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=V, n_positions=16, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0,
        **options,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def llama(**options: Any) -> nn.Module:
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, **options)
    return transformers.LlamaForCausalLM(config)


def mixtral() -> nn.Module:
    config = transformers.MixtralConfig(**SIZES, num_key_value_heads=2, num_local_experts=3)
    return transformers.MixtralForCausalLM(config)


def bert(kind: str, **options: Any) -> nn.Module:
    return getattr(transformers, kind)(transformers.BertConfig(**SIZES, **options))


def vit() -> nn.Module:
    sizes = {
        key: SIZES[key] for key in SIZES if key not in ("vocab_size", "max_position_embeddings")
    }
    config = transformers.ViTConfig(
        **sizes, image_size=8, patch_size=4, num_channels=1, num_labels=3
    )
    return transformers.ViTForImageClassification(config)


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=V,
        d_model=8,
        d_kv=2,
        d_ff=12,
        num_layers=1,
        num_heads=4,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


def checkpointed() -> nn.Module:
    model = llama()
    model.gradient_checkpointing_enable()
    return model.train()


MODELS = {
    "GPT-2, tied, eager": (lambda: gpt2(attn_implementation="eager"), tokens, "next-token"),
    "GPT-2, tied, SDPA": (lambda: gpt2(attn_implementation="sdpa"), tokens, "next-token"),
    "Llama, grouped queries": (llama, tokens, "next-token"),
    "Llama, eager": (lambda: llama(attn_implementation="eager"), tokens, "next-token"),
    "Llama, tied": (lambda: llama(tie_word_embeddings=True), tokens, "next-token"),
    "Llama, checkpointing": (checkpointed, tokens, "next-token"),
    "Mixtral": (mixtral, tokens, "next-token"),
    "BERT, classes": (
        lambda: bert("BertForSequenceClassification", num_labels=3), classified, "classification",
    ),
    "ViT": (vit, pictures, "classification"),
    "BERT, tags": (lambda: bert("BertForTokenClassification", num_labels=3), tagged, "token class"),
    "BERT, masked": (lambda: bert("BertForMaskedLM"), masked, "masked-token"),
    "T5": (t5, translated, "sequence to sequence"),
}  # fmt: skip


def own_losses(model: nn.Module, batch: dict[str, Tensor]) -> list[Tensor]:
    """What the model itself says of every sequence."""
    singles = [{k: v[i : i + 1] for k, v in batch.items()} for i in range(N)]
    return [model(**single).loss for single in singles]


def gradients_of(model: nn.Module, losses: list[Tensor], layer: str) -> Tensor:
    named = dict(model.named_parameters())
    owned = [p for name, p in named.items() if name.startswith(layer + ".") and p.requires_grad]
    rows = []
    for loss in losses:
        found = torch.autograd.grad(loss, owned, retain_graph=True, allow_unused=True)
        zeros = (torch.zeros_like(p) if g is None else g for g, p in zip(found, owned, strict=True))
        rows.append(torch.cat([part.flatten() for part in zeros]))
    return torch.stack(rows)


def own(model: nn.Module, layer: dict[str, Any]) -> int:
    """Trainable numbers below the name of a layer."""
    module = model.get_submodule(layer["name"])
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def require_same(model: nn.Module, batch: dict[str, Tensor], found: Any, rel: float) -> None:
    model.eval()
    losses = own_losses(model, batch)
    mean = torch.stack(losses).mean().detach()
    assert value(found, "loss") == pytest.approx(float(mean), rel=rel)
    names = [name.rpartition(".")[0] for name, _ in model.named_parameters()]
    layers = found.record.contents["layers"]
    # A layer that owns a normalisation too is one of tests/survey/test_layers.py.
    owners = [
        la["name"]
        for la in layers
        if la["role"] == "layer" and la["name"] in names and la["parameters"] == own(model, la)
    ]
    assert len(owners) > 2
    for layer in owners[:: max(1, len(owners) // 5)]:
        omega = gradient.vector_alignment(gradients_of(model, losses, layer).double())
        assert value(found, "omega", layer) == pytest.approx(float(omega), rel=rel, abs=rel)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_sequences_are_the_models_own(name):
    make, data, task = MODELS[name]
    torch.manual_seed(0)
    routed = name == "Mixtral"  # whose experts do not multiply float64
    model, batch = make() if routed else make().double(), data()
    training = model.training
    found = th.survey(model, batch, **LIGHT)
    contents = found.record.contents
    assert contents["skipped"] == {}
    assert contents["data"]["task"].startswith(task)
    assert model.training == training
    assert {"feature_omega_contrast", "omega"} <= set(found.to_frame().measure)
    require_same(model, batch, found, 1e-3 if routed else ROUNDING)


def test_all_families_in_one_call():
    torch.manual_seed(0)
    found = th.survey(llama(), tokens(), groups=["prose", "code"] * (N // 2))
    assert found.record.contents["skipped"] == {}
    assert set(found.to_frame().family) == {
        "representation", "covariance", "kernel", "tangent", "gradient"
    }  # fmt: skip


def test_encoders_have_other_positions_than_labels():
    torch.manual_seed(0)
    found = th.survey(t5(), translated(), families=["kernel"])
    shapes = {layer["name"]: layer["output_shape"] for layer in found.record.contents["layers"]}
    assert all(shape is None for name, shape in shapes.items() if name.startswith("encoder."))
    assert any(shape == [8] for name, shape in shapes.items() if name.startswith("decoder."))


@pytest.mark.parametrize("way", ["bfloat16", "autocast", "compiled"])
def test_other_ways_to_run_a_model(way):
    torch.manual_seed(0)
    model, batch = llama(), tokens()
    plain = th.survey(model, batch, **LIGHT)
    if way == "bfloat16":
        found = th.survey(model.bfloat16(), batch, **LIGHT)
    elif way == "compiled":
        wrapped = torch.compile(model, backend="eager")
        found = th.survey(wrapped, batch, **LIGHT)
    else:
        with torch.autocast("cpu", torch.bfloat16):
            found = th.survey(model, batch, **LIGHT)
    assert found.record.contents["skipped"] == {}
    rel = 1e-6 if way == "compiled" else 0.02  # bfloat16 keeps eight bits
    assert value(found, "loss") == pytest.approx(value(plain, "loss"), rel=rel)
    for layer in plain.layers:
        if "omega" in set(plain.to_frame().query("layer == @layer").measure):
            expected = value(plain, "omega", layer)
            assert value(found, "omega", layer) == pytest.approx(expected, rel=rel, abs=rel)


class LowRank(nn.Module):
    """A linear layer with the product of two thin matrices beside it."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner
        self.lora_down = nn.Linear(inner.in_features, 2, bias=False)
        self.lora_up = nn.Linear(2, inner.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.lora_up(self.lora_down(x))


def adapted() -> nn.Module:
    model = llama()
    attention = model.model.layers[0].self_attn
    attention.q_proj, attention.v_proj = LowRank(attention.q_proj), LowRank(attention.v_proj)
    return model


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen base", "params="])
def test_low_rank_adapters_alone(frozen):
    torch.manual_seed(0)
    model, batch = adapted().double(), tokens()
    if frozen:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("lora" in name)
    before = {name: p.requires_grad for name, p in model.named_parameters()}
    chosen = None if frozen else "*lora*"
    found = th.survey(model, batch, params=chosen, **LIGHT)
    frame = found.to_frame()
    measured = set(frame[frame.measure == "omega"].layer.dropna()) - {""}
    assert measured
    assert all("lora" in layer for layer in measured)
    assert {name: p.requires_grad for name, p in model.named_parameters()} == before
    losses = own_losses(model.eval(), batch)
    for layer in measured:
        omega = gradient.vector_alignment(gradients_of(model, losses, layer))
        assert value(found, "omega", layer) == pytest.approx(float(omega), rel=ROUNDING)


def test_adapters_of_peft():
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    model = peft.get_peft_model(llama(), config).double()
    found = th.survey(model, tokens(), params="*lora*", **LIGHT)
    assert found.record.contents["skipped"] == {}
    layer = next(la for la in found.layers if "lora_A" in la)
    losses = own_losses(model.eval(), tokens())
    omega = gradient.vector_alignment(gradients_of(model, losses, layer))
    assert value(found, "omega", layer) == pytest.approx(float(omega), rel=ROUNDING)


def test_batches_of_different_lengths_are_padded():
    torch.manual_seed(0)
    model, batch = llama().double(), tokens()
    short = {key: part[::3, :4] for key, part in batch.items()}  # those whose rest is padding
    rest = {key: part[[i for i in range(N) if i % 3]] for key, part in batch.items()}
    found = th.survey(model, [rest, short], **LIGHT)
    losses = torch.stack(own_losses(model.eval(), batch))
    assert value(found, "loss") == pytest.approx(float(losses.mean().detach()), rel=ROUNDING)


def test_blocks_have_no_covariance_and_say_which_layers_have():
    given = {"families": ["kernel", "covariance"], "layers": ["model.layers.0"]}
    found = th.survey(llama(), tokens(), **given)
    why = found.record.contents["skipped"]["covariance"]
    assert (
        why == 'the layers shown are blocks; layers="**.down_proj" shows linear layers inside them'
    )
    inside = th.survey(llama(), tokens(), families="covariance", layers="**.down_proj")
    assert inside.layers == ["model.layers.0.mlp.down_proj"]


def test_omega_is_measured_where_sums_do_not_fit(monkeypatch):
    """Sums are of the size of the parameters; a monitor of few sequences takes their pairs then."""
    torch.manual_seed(0)
    model, batch = llama(), tokens()
    lighter = {"families": "gradient", "sizes": {"pairs": 0}, "options": {"details": False}}
    full = th.survey(model, batch, **lighter)
    assert full.record.contents["routes"]["gradient"]["checked"]["checked_batches"] == 1
    for name in ("_SUMS", "_PLAIN_SUMS", "_CHECKED"):
        monkeypatch.setattr(f"theodolite.surveys.context.{name}", 10**12)
    found = th.survey(model, batch, **lighter)
    methods = [s.record.contents["routes"]["gradient"]["method"] for s in (full, found)]
    assert methods == ["sums over examples", "all pairs of examples"]
    assert found.record.contents["skipped"] == {}
    assert value(found, "omega") == pytest.approx(value(full, "omega"), rel=1e-5)
    assert set(found.to_frame().measure) == set(full.to_frame().measure)


def test_omega_is_measured_where_unit_vectors_do_not_fit(monkeypatch):
    """The last measurement of a monitor takes everything; it must not lose what the others had."""
    torch.manual_seed(0)
    model, batch = llama(), tokens()
    full = th.survey(model, batch, families="gradient", sizes={"pairs": 2})
    monkeypatch.setattr("theodolite.surveys.context._SUMS", 10**9)
    monkeypatch.setattr("theodolite.surveys.context._CHECKED", 10**9)
    tight = {"memory_limit": "1GB"}
    found = th.survey(model, batch, families="gradient", sizes={"pairs": 2}, options=tight)
    contents = found.record.contents
    assert contents["skipped"] == {}
    assert value(found, "omega") == pytest.approx(value(full, "omega"), rel=1e-5)
    assert "stiffness" in set(full.to_frame().measure) - set(found.to_frame().measure)
    assert any("unit length" in warning["text"] for warning in contents["warnings"])


def test_a_pretrained_language_model():
    weights = os.environ.get("THEODOLITE_WEIGHTS", "")
    folder = next(iter(Path(weights).rglob("SmolLM2-135M*.gguf")), None) if weights else None
    if folder is None:
        pytest.skip("THEODOLITE_WEIGHTS names no folder with the weights of SmolLM2-135M")
    pytest.importorskip("gguf", reason="gguf, which reads the weights, is not installed")
    named = {"gguf_file": folder.name, "dtype": torch.float32}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder.parent, **named)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder.parent, gguf_file=folder.name)
    text = ["def add(a, b):\n    return a + b\n", "The sun rose over the quiet sea and"] * 2
    ids = tokenizer(text, return_tensors="pt", padding=True)
    labels = ids["input_ids"].masked_fill(ids["attention_mask"] == 0, -100)
    batch = {**ids, "labels": labels}
    found = th.survey(model, batch, groups=["code", "prose"] * 2, families=["kernel", "gradient"])
    contents = found.record.contents
    assert contents["skipped"] == {}
    single = model.eval()(**{k: v[:1] for k, v in batch.items()}).loss
    assert float(single.detach()) < 4  # it can read
    assert value(found, "loss") < 4
    assert value(found, "in_class_omega") > value(found, "omega")  # code is like code


def test_texts_without_labels_are_held_against_their_next_tokens():
    torch.manual_seed(0)
    model, batch = llama().double(), tokens()
    texts = {key: batch[key] for key in ("input_ids", "attention_mask")}
    plain, found = (th.survey(model, given, **LIGHT) for given in (batch, texts))
    for measure in ("loss", "omega"):
        assert value(found, measure) == value(plain, measure)
    notes = [note["text"] for note in found.record.contents["warnings"]]
    assert "the data have no labels: the next tokens are used as labels" in notes


def test_masked_language_models_need_labels():
    """They see all tokens: there is nothing to predict in a text as it is."""
    texts = {key: tokens()[key] for key in ("input_ids", "attention_mask")}
    found = th.survey(bert("BertForMaskedLM"), texts, families=["kernel", "gradient"])
    assert found.record.contents["data"]["task"] == "unlabeled"
    assert "a loss needs targets" in found.record.contents["skipped"]["gradient"]


@pytest.mark.parametrize("labels", ["per text", "per token"])
def test_models_without_a_head(labels):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2)
    batch = tokens() | ({} if labels == "per token" else {"labels": torch.arange(N) % 2})
    found = th.survey(transformers.LlamaModel(config), batch, permutations=0)
    assert set(found.to_frame().family) >= {"covariance", "kernel"}
    for family in ("tangent", "gradient"):
        why = found.record.contents["skipped"][family]
        assert "load the model with a head for its task, such as AutoModelForCausalLM" in why
    assert ("cka_target" in set(found.to_frame().measure)) == (labels == "per text")


def test_kernels_that_take_too_long_are_sketched_and_the_record_says_why(monkeypatch):
    torch.manual_seed(0)
    model, batch = llama(), tokens()
    given = {"families": "tangent", "permutations": 0}
    exact = th.survey(model, batch, **given).record.contents["routes"]["tangent"]
    assert exact["method"] == "exact"
    assert "reason" not in exact
    monkeypatch.setattr("theodolite.surveys.tangent._MOST_WORK", {"cpu": 0.0})
    monkeypatch.setattr(
        "theodolite.surveys.tangent._sketch_passes", lambda context, n: 2 / context.pass_cost
    )
    sketched = th.survey(model, batch, **given).record.contents["routes"]["tangent"]
    assert sketched["method"] == "sketch"
    why, missing = sketched["reason"], sketched["missing"]
    assert "multiply-adds, more than 0e+00; a sketch takes 1.0e+00" in why["text"]
    assert (why["note"], why["facts"]["sketched"]) == (Note.SKETCHED, 1.0)
    assert missing["note"] == Note.NOT_IN_SKETCHES
    forced = th.survey(model, batch, **given, options={"tangent": "exact"})
    assert forced.record.contents["routes"]["tangent"]["method"] == "exact"
    monkeypatch.setattr("theodolite.surveys.tangent._sketch_passes", lambda context, n: 1e30)
    same = th.survey(model, batch, **given).record.contents["routes"]["tangent"]
    assert same["method"] == "exact"  # a sketch would take as long
