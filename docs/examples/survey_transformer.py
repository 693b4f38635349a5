"""Survey a transformer on padded sequences: batches as mappings, masks, pooling, a readout.

Run: ``python docs/examples/survey_transformer.py``. Batches are mappings, like those of a Hugging
Face collator. Keys are the arguments of ``forward``; ``labels`` are the targets. Pooling and
readouts use the attention mask.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import theodolite as th

WORDS, LENGTH, WIDTH = 24, 10, 32


class Transformer(nn.Module):
    """Two encoder blocks; logits at every position."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(n, T) to (n, T, 3)."""
        states = self.words(input_ids) + self.places
        for block in self.blocks:
            states = block(states, src_key_padding_mask=attention_mask == 0)
        logits: Tensor = self.head(states)
        return logits


def sentences(count: int) -> dict[str, Tensor]:
    """The label is which of the words 1, 2, 3 occurs; half of the sentences are padded."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4, WORDS, (count, LENGTH), generator=generator)
    labels = torch.arange(count) % 3
    places = torch.randint(0, LENGTH // 2, (count,), generator=generator)
    ids[torch.arange(count), places] = labels + 1
    mask = torch.ones_like(ids)
    mask[::2, LENGTH // 2 :] = 0
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": labels}


def train(model: Transformer, batch: dict[str, Tensor], steps: int) -> float:
    """Full-batch Adam on the output at the first position; returns the accuracy."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    logits = model(batch["input_ids"], batch["attention_mask"])[:, 0]
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(logits, batch["labels"]).backward()
        optimizer.step()
        logits = model(batch["input_ids"], batch["attention_mask"])[:, 0]
    return (logits.argmax(1) == batch["labels"]).double().mean().item()


def main(folder: Path = Path("runs/transformer"), count: int = 240, steps: int = 60) -> th.Survey:
    """Train a little, then measure."""
    torch.manual_seed(0)
    model, batch = Transformer(), sentences(count)
    print(f"accuracy {train(model, batch, steps):.3f}")
    report = th.survey(
        model,
        batch,
        readout="cls",
        sizes={"tangent": 60},
        name="transformer",
        options={"pool": "mean"},
    )
    print(report.summary())
    print(report.to_html(folder / "report.html"))
    return report


if __name__ == "__main__":
    main()
