"""Many copies of MiniLM, fine-tuned at once: parameters are stacked along a first axis.

The word embeddings are shared and stay fixed. Matrix products are in bfloat16 on a GPU.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

LAYERS, HEADS, EPS = 6, 12, 1e-12
BETAS, DECAY = (0.9, 0.999), 0.01


class Encoders:
    """E copies of MiniLM with a linear head each.

    Args:
        arrays: ``MiniLM.NAME`` -> weights.
        copies: how many.
        classes: outputs of each head.
        device: where.
        precision: of the products.
        seed: of the heads.
    """

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray],
        copies: int,
        classes: int,
        device: str,
        precision: torch.dtype,
        seed: int,
    ) -> None:
        state = {
            key.removeprefix("MiniLM."): torch.from_numpy(arrays[key]).float().to(device)
            for key in arrays
            if key.startswith("MiniLM.")
        }
        self.precision = precision
        self.words = state["embeddings.word_embeddings.weight"]
        self.places = (
            state["embeddings.position_embeddings.weight"]
            + state["embeddings.token_type_embeddings.weight"][0]
        )
        kept = {
            key: value
            for key, value in state.items()
            if key.startswith(("encoder.", "embeddings.LayerNorm"))
        }
        width = self.words.shape[1]
        self.parameters = {
            key: value.expand(copies, *value.shape).clone() for key, value in kept.items()
        }
        draws = torch.randn(
            copies, classes, width, generator=torch.Generator().manual_seed(seed)
        ).to(device)
        self.parameters["head.weight"] = 0.02 * draws
        self.parameters["head.bias"] = torch.zeros(copies, classes, device=device)

    def linear(self, x: Tensor, name: str) -> Tensor:
        """(E, B, T, D) -> (E, B, T, C)."""
        weight = self.parameters[f"{name}.weight"].to(self.precision)
        bias = self.parameters[f"{name}.bias"].to(self.precision)
        flat = x.to(self.precision).flatten(1, -2)
        found = torch.baddbmm(bias[:, None], flat, weight.transpose(1, 2))
        return found.unflatten(1, x.shape[1:-1])

    def norm(self, x: Tensor, name: str) -> Tensor:
        """Layer normalisation, each copy with its own weights."""
        weight, bias = (self.parameters[f"{name}.{part}"] for part in ("weight", "bias"))
        plain = functional.layer_norm(x.float(), x.shape[-1:], eps=EPS)
        return plain * weight[:, None, None] + bias[:, None, None]

    def states(self, ids: Tensor) -> list[Tensor]:
        """Mean over tokens after the embedding and after every block, for ids (E, B, T)."""
        mask = ids != 0
        weights = mask.float() / mask.sum(-1, keepdim=True)
        bias = torch.zeros(mask.shape, device=ids.device).masked_fill(~mask, -torch.inf)
        x = self.norm(self.words[ids] + self.places[: ids.shape[-1]], "embeddings.LayerNorm")
        pooled = [torch.einsum("ebt,ebtd->ebd", weights, x)]
        for layer in range(LAYERS):
            name = f"encoder.layer.{layer}."
            parts = [
                self.linear(x, f"{name}attention.self.{part}").unflatten(-1, (HEADS, -1))
                for part in ("query", "key", "value")
            ]
            q, k, v = (part.flatten(0, 1).transpose(1, 2) for part in parts)  # (E B, H, T, d)
            allowed = bias.flatten(0, 1)[:, None, None].to(q.dtype)
            found = functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
            found = found.transpose(1, 2).flatten(2).unflatten(0, ids.shape[:2])
            x = self.norm(
                x + self.linear(found, f"{name}attention.output.dense"),
                f"{name}attention.output.LayerNorm",
            )
            inner = functional.gelu(self.linear(x, f"{name}intermediate.dense"))
            x = self.norm(x + self.linear(inner, f"{name}output.dense"), f"{name}output.LayerNorm")
            pooled.append(torch.einsum("ebt,ebtd->ebd", weights, x))
        return pooled

    def outputs(self, ids: Tensor) -> Tensor:
        """(E, B, classes)."""
        return self.linear(self.states(ids)[-1][:, :, None], "head")[:, :, 0].float()

    def train(
        self,
        x: Tensor,
        y: Tensor,
        rows: Tensor,
        rates: Tensor,
        *,
        steps: int,
        batch: int,
        seed: int,
    ) -> None:
        """AdamW with rates that rise for a tenth of the steps and fall to zero, in place.

        Args:
            x: ids of all examples.
            y: their labels.
            rows: examples of each copy, (E, m).
            rates: of each copy, (E,).
            steps: how many.
            batch: examples per step and copy.
            seed: of the orders.
        """
        generator = torch.Generator(x.device).manual_seed(seed)
        names = list(self.parameters)
        first = {name: torch.zeros_like(value) for name, value in self.parameters.items()}
        second = {name: torch.zeros_like(value) for name, value in self.parameters.items()}
        order, used = rows[:, :0], 0
        for step in range(1, steps + 1):
            if used + batch > order.shape[1]:
                shuffled = torch.rand(rows.shape, generator=generator, device=x.device).argsort(1)
                order, used = rows.gather(1, shuffled), 0
            chosen = order[:, used : used + batch]
            used += batch
            leaves = [self.parameters[name].detach().requires_grad_() for name in names]
            self.parameters = dict(zip(names, leaves, strict=True))
            found = self.outputs(x[chosen])
            loss = functional.cross_entropy(
                found.flatten(0, 1), y[chosen].flatten(), reduction="sum"
            )
            gradients = torch.autograd.grad(loss / batch, leaves)
            shape = min(1.0, 10 * step / steps) * (1 - (step - 1) / steps)
            with torch.no_grad():
                for name, leaf, gradient in zip(names, leaves, gradients, strict=True):
                    first[name].lerp_(gradient, 1 - BETAS[0])
                    second[name].lerp_(gradient.square(), 1 - BETAS[1])
                    size = (second[name] / (1 - BETAS[1] ** step)).sqrt_().add_(1e-8)
                    move = first[name] / (1 - BETAS[0] ** step) / size + DECAY * leaf
                    factor = 10.0 if name.startswith("head.") else 1.0
                    leaf.sub_((factor * shape * rates).view(-1, *[1] * (leaf.ndim - 1)) * move)
        self.parameters = {name: value.detach() for name, value in self.parameters.items()}

    @torch.no_grad()
    def accuracies(self, x: Tensor, y: Tensor, chunk: int = 125) -> Tensor:
        """Share of right answers on each half of the test examples, (E, 2)."""
        copies = len(self.parameters["head.bias"])
        hits = [
            self.outputs(ids.expand(copies, *ids.shape)).argmax(-1) == labels
            for ids, labels in zip(x.split(chunk), y.split(chunk), strict=True)
        ]
        first, second = torch.cat(hits, 1).float().chunk(2, 1)
        return torch.stack([first.mean(1), second.mean(1)], 1)
