"""Small models of every kind that the engine must follow, in float64, with a batch for each."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

EXAMPLES = 4


@dataclass(frozen=True)
class Specimen:
    """A model in evaluation mode, inputs as a user passes them, and the readout that they need."""

    model: nn.Module
    inputs: Any
    readout: Any = None


def _images(channels: int, size: int) -> Tensor:
    return torch.randn(EXAMPLES, channels, size, size)


def mlp() -> Specimen:
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 6, bias=False), nn.ReLU())
    return Specimen(nn.Sequential(model, nn.Linear(6, 3)), torch.randn(EXAMPLES, 5))


def lenet() -> Specimen:
    model = nn.Sequential(
        nn.Conv2d(1, 3, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3),
    )  # fmt: skip
    return Specimen(model, _images(1, 8))


def vgg() -> Specimen:
    layers: list[nn.Module] = []
    for inputs, outputs in ((2, 3), (3, 4)):
        conv = nn.Conv2d(inputs, outputs, 3, padding=1, padding_mode="circular")
        layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    return Specimen(nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 3)), _images(2, 8))


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.short = nn.Sequential()
        if stride != 1:
            short = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.short = nn.Sequential(short, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.short(x)
        return self.relu(out)


def resnet() -> Specimen:
    stem = nn.Sequential(nn.Conv2d(2, 3, 3, 1, 1), nn.ReLU(inplace=True))
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = nn.Sequential(stem, _Block(3, 3, 1), _Block(3, 4, 2), pool, nn.Linear(4, 3))
    return Specimen(model, _images(2, 6))


class _Dense(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, 2, 3, padding="same", dilation=2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(functional.relu(self.norm(x)))], 1)


def densenet() -> Specimen:
    model = nn.Sequential(_Dense(2), _Dense(4), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(54, 3))
    return Specimen(model, _images(2, 6))


def depthwise() -> Specimen:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, groups=2), nn.SiLU(inplace=True),
        nn.Conv2d(4, 4, 3, stride=2, groups=4), nn.GroupNorm(2, 4), nn.Hardswish(),
        nn.Conv2d(4, 5, 1), nn.Flatten(), nn.Linear(20, 2),
    )  # fmt: skip
    return Specimen(model, _images(2, 6))


class _ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, 8, 3, 3)
        self.cls = nn.Parameter(torch.randn(1, 1, 8))
        self.position = nn.Parameter(torch.randn(1, 6, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls.expand(len(x), -1, -1), tokens], 1)
        tokens = self.encoder(tokens + self.position[:, : tokens.shape[1]])
        return self.head(tokens[:, 0])


def vit() -> Specimen:
    # As many tokens as examples plus one: axes must not be told apart by their lengths.
    return Specimen(_ViT(), torch.randn(EXAMPLES, 1, 6, 6))


def _token_batch() -> dict[str, Tensor]:
    mask = torch.ones(EXAMPLES, 5, dtype=torch.long)
    mask[1, 3:] = 0
    return {"input_ids": torch.randint(0, 11, (EXAMPLES, 5)), "attention_mask": mask}


def gpt2() -> Specimen:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager", bos_token_id=0, eos_token_id=0,
    )  # fmt: skip

    def readout(output: Any, batch: Any) -> Tensor:
        return output.logits[:, -1, :2]  # two tokens' logits, not the vocabulary

    return Specimen(GPT2LMHeadModel(config), _token_batch(), readout)


def bert() -> Specimen:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=12, max_position_embeddings=8, type_vocab_size=2, num_labels=2,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return Specimen(BertForSequenceClassification(config), _token_batch())


class _Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(5, 3)
        self.shift = nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.encode(x))
        return functional.linear(hidden, self.encode.weight.t(), self.shift)


def tied_autoencoder() -> Specimen:
    return Specimen(_Autoencoder(), torch.randn(EXAMPLES, 5))


class _Reused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 3, 3, padding=1)
        self.head = nn.Linear(3, 2)
        self.scale = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.conv(torch.tanh(self.conv(x))))
        return self.head(hidden.mean(2) * self.scale - self.scale)


def reused() -> Specimen:
    return Specimen(_Reused(), torch.randn(EXAMPLES, 3, 5))


class _LoRA(nn.Module):
    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features))
        self.up = nn.Parameter(torch.randn(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T


def lora() -> Specimen:
    frozen = nn.Linear(6, 2).requires_grad_(False)
    model = nn.Sequential(_LoRA(nn.Linear(5, 6), 2), nn.GELU(), frozen)
    return Specimen(model, torch.randn(EXAMPLES, 5))


class _NTKLinear(nn.Linear):
    """A subclass whose weight is scaled before use: a rule for the class would go wrong."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight / math.sqrt(self.in_features), self.bias)


def ntk_parametrized() -> Specimen:
    model = nn.Sequential(_NTKLinear(5, 8), nn.ReLU(), _NTKLinear(8, 6), nn.ReLU())
    return Specimen(nn.Sequential(model, _NTKLinear(6, 3)), torch.randn(EXAMPLES, 5))


def weight_normed() -> Specimen:
    first = nn.utils.parametrizations.weight_norm(nn.Linear(5, 4))
    second = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 3, 1))
    model = nn.Sequential(first, nn.Tanh(), nn.Unflatten(1, (4, 1)), second, nn.Flatten())
    return Specimen(model, torch.randn(EXAMPLES, 5))


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 3, 3, 2, 1)
        self.up = nn.ConvTranspose2d(3, 2, 2, 2)
        self.out = nn.Conv2d(3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.leaky_relu(self.down(x))
        return self.out(torch.cat([self.up(hidden), x], 1)).flatten(1)[:, :3]


def unet() -> Specimen:
    return Specimen(_UNet(), _images(1, 4))


class _LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 3, padding_idx=0)
        self.lstm = nn.LSTM(3, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        _, (hidden, _) = self.lstm(self.embedding(tokens))
        return self.head(hidden[-1])


def lstm() -> Specimen:
    # As many steps as examples: axes must not be told apart by their lengths.
    return Specimen(_LSTM(), torch.randint(0, 7, (EXAMPLES, EXAMPLES)))


class _Volume(nn.Module):
    """Convolution in three dimensions, root-mean-square norm, matrices on either side."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(1, 2, (1, 3, 3), (1, 1, 2), (0, 1, 1))
        self.norm = nn.RMSNorm(8)
        self.mix = nn.Parameter(torch.randn(3, 4))
        self.out = nn.Parameter(torch.randn(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(self.conv(x).flatten(1).unflatten(1, (4, 8)))
        return torch.matmul(torch.matmul(self.mix, tokens), self.out).squeeze(2)


def volume() -> Specimen:
    return Specimen(_Volume(), torch.randn(EXAMPLES, 1, 2, 2, 8))


def cross_attention() -> Specimen:
    class _Cross(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
            self.query = nn.Parameter(torch.randn(1, 2, 4))

        def forward(self, x: Tensor) -> Tensor:
            query = self.query.expand(len(x), -1, -1)
            return self.attention(query, x, x, need_weights=False)[0].flatten(1)[:, :2]

    return Specimen(_Cross(), torch.randn(EXAMPLES, 3, 4))


ZOO: dict[str, Callable[[], Specimen]] = {
    "mlp": mlp, "lenet": lenet, "vgg": vgg, "resnet": resnet, "densenet": densenet,
    "depthwise": depthwise, "vit": vit, "gpt2": gpt2, "bert": bert,
    "tied autoencoder": tied_autoencoder, "reused module": reused, "lora": lora,
    "ntk parametrized": ntk_parametrized, "weight norm": weight_normed, "unet": unet,
    "lstm": lstm, "volume": volume, "cross attention": cross_attention,
}  # fmt: skip


def specimen(name: str) -> Specimen:
    """A model of the zoo with random, non-trivial parameters and statistics, in float64."""
    torch.manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        made = ZOO[name]()
        for module in made.model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
        for parameter in made.model.parameters():
            if parameter.dim() == 1:
                parameter.data.add_(torch.randn_like(parameter), alpha=0.3)
    inputs = made.inputs
    if isinstance(inputs, Tensor) and inputs.is_floating_point():
        inputs = inputs.double()
    return Specimen(made.model.double().eval(), inputs, made.readout)
