"""The source networks: five architectures, ten tasks, three lengths of training, or none."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 10  # of every head; a task with fewer leaves the last ones out
SHORT, MIDDLE, LONG = 80, 400, 2_000
STEPS = {
    "cifar A": (SHORT, MIDDLE, LONG),
    "cifar B": (SHORT, LONG),
    "cifar": (MIDDLE, LONG),
    "rotations": (MIDDLE, LONG),
    "random labels": (LONG,),
    "mnist": (SHORT, LONG),
    "fashion": (LONG,),
    "gray cifar": (MIDDLE,),
    "coarse cifar": (LONG,),
    "permuted cifar": (MIDDLE,),
    "untrained": (0,),
}


@dataclass(frozen=True)
class Architecture:
    """Three stages of ``blocks`` pairs of convolutions, of width w, 2w and 4w."""

    name: str
    width: int
    blocks: int
    residual: bool

    def layers(self) -> list[tuple[str, int, int, int]]:
        """Name, channels in, channels out and stride of every block."""
        answer, channels = [], self.width
        for stage in range(3):
            width = self.width * 2**stage
            for index in range(self.blocks):
                stride = 2 if stage > 0 and index == 0 else 1
                answer.append((f"stage{stage}_{index}", channels, width, stride))
                channels = width
        return answer

    @property
    def features(self) -> int:
        """Dimension of what the head receives."""
        return 4 * self.width


ARCHITECTURES = {
    architecture.name: architecture
    for architecture in (
        Architecture("residual 8", 8, 1, residual=True),
        Architecture("residual 16", 16, 1, residual=True),
        Architecture("residual 24", 24, 1, residual=True),
        Architecture("deep residual 16", 16, 2, residual=True),
        Architecture("plain 16", 16, 1, residual=False),
    )
}


@dataclass(frozen=True)
class Source:
    """A pretrained network of the zoo."""

    architecture: str
    task: str
    steps: int

    def __str__(self) -> str:
        return f"{self.architecture} / {self.task} / {self.steps}"


SOURCES = tuple(
    Source(architecture, task, steps)
    for architecture in ARCHITECTURES
    for task, lengths in STEPS.items()
    for steps in lengths
)


class Block(nn.Module):
    """Two 3x3 convolutions with batch normalisation; the shortcut has no parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, residual: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.stride, self.missing, self.residual = stride, outputs - inputs, residual

    def forward(self, x: Tensor) -> Tensor:
        """Branch plus shortcut, then ReLU."""
        branch = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        if self.residual:
            shortcut = x[:, :, :: self.stride, :: self.stride]
            branch = branch + functional.pad(shortcut, [0, 0, 0, 0, 0, self.missing])
        return branch.relu()


class Network(nn.Module):
    """Stem, blocks, the mean over positions, a linear head."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, architecture.width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(architecture.width)
        self.blocks = nn.ModuleDict(
            {
                name: Block(inputs, outputs, stride, residual=architecture.residual)
                for name, inputs, outputs, stride in architecture.layers()
            }
        )
        self.head = nn.Linear(architecture.features, CLASSES)

    def features(self, x: Tensor) -> dict[str, Tensor]:
        """The mean over positions of what every block passes on."""
        x = self.norm(self.stem(x)).relu()
        answer = {"stem": x.mean((2, 3))}
        for name, block in self.blocks.items():
            x = block(x)
            answer[name] = x.mean((2, 3))
        return answer

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of the head."""
        return self.head(list(self.features(x).values())[-1])


def untrained(source: Source) -> Network:
    """The network before training; each has a seed of its own."""
    state = torch.get_rng_state()
    torch.manual_seed(SOURCES.index(source))
    network = Network(ARCHITECTURES[source.architecture])
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    torch.set_rng_state(state)
    return network
