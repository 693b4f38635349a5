"""The design: the networks, and the factors in which they differ.

Networks come in groups. A group is a base setting, drawn at random, and twelve others that differ
from the base in one factor each (label noise twice). All share their data and their seed. Labels
that are wrong at a low noise level are wrong at a higher one too. So pairs of networks that differ
in nothing else judge every factor.

The architectures of one kind (MLP, CNN, ResNet, transformer) form a grid of depths and widths. Its
cells alternate like the squares of a chessboard. Half of them are the pilot half, on which
hypotheses are chosen. The others are the judged half. Two data sets, Fashion-MNIST and text, are in
the judged half alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

__all__ = [
    "DATA",
    "DEPTHS",
    "FACTORS",
    "HALVES",
    "HELD_OUT_DATA",
    "LEVELS",
    "MOMENTS",
    "WIDTHS",
    "Network",
    "networks",
]

HALVES = ("pilot", "judged")
HELD_OUT_DATA = ("fashion_mnist", "text")
MOMENTS = ("init", "early", "tenth", "third", "level", "final")  # at which a network is measured
_IMAGES = ("digits", "mnist", "cifar10", "fashion_mnist")
# Data set -> numbers of training examples.
DATA: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(_IMAGES, (160, 320, 640, 1200)),
    "digits": (160, 320, 640, 1000),
    "cancer": (120, 180, 260, 320),
    "parity": (320, 640, 1200, 2000),
    "addition": (200, 260, 320, 380),
    "text": (160, 320, 640, 1200),
}
# Family -> depths, widths: hidden layers and units of MLPs, convolutions and channels of CNNs,
# blocks and channels of ResNets, blocks and width of transformers.
DEPTHS: Mapping[str, Sequence[int]] = {
    "mlp": (1, 2, 3, 5),
    "cnn": (2, 3, 4, 5),
    "resnet": (1, 2, 3, 4),
    "transformer": (1, 2, 3, 4),
}
WIDTHS: Mapping[str, Sequence[int]] = {
    "mlp": (24, 48, 96, 192),
    "cnn": (6, 10, 16, 24),
    "resnet": (6, 8, 12, 16),
    "transformer": (16, 24, 32, 48),
}
LEVELS: Mapping[str, Sequence[Any]] = {
    "activation": ("relu", "tanh", "gelu"),
    "normalisation": ("none", "batch", "layer"),
    "optimiser": ("adam", "sgd"),
    "rate": (0, 1, 2),
    "batch": (16, 48, 128),
    "decay": (0, 1, 2),
    "noise": (0.0, 0.2, 0.5, 0.8, 1.0),
    "scale": (0.5, 1.0, 2.0),
}
# Level of rate and decay -> value: decay is decoupled for Adam, part of the gradient for SGD.
_RATES = {"adam": (5e-4, 2e-3, 6e-3), "sgd": (0.01, 0.04, 0.12)}
_DECAYS = {"adam": (0.0, 0.05, 0.5), "sgd": (0.0, 5e-4, 5e-3)}
FACTORS = ("depth", "width", *LEVELS, "examples")
_SEEDS = {"pilot": 24, "judged": 25}


@dataclass(frozen=True)
class Network:
    """One network: its position in the design and its factors.

    Args:
        half: "pilot" or "judged".
        group: number of the group.
        member: place in the group; 0 is the base.
        changed: the factor that differs from the base, or "base".
        data: name of the data set.
        family: "mlp", "cnn", "resnet" or "transformer".
        depth: see :data:`DEPTHS`.
        width: see :data:`WIDTHS`.
        activation: "relu", "tanh" or "gelu".
        normalisation: "none", "batch" or "layer".
        optimiser: "adam" (decoupled decay) or "sgd" (momentum 0.9).
        rate_level: 0 to 2.
        batch: examples per step.
        decay_level: 0 to 2.
        noise: share of the training labels that are redrawn at random.
        examples: in training.
        scale: factor of all initial weights but those of normalisations.
        seed: of data, labels, weights and batches.
    """

    half: str
    group: int
    member: int
    changed: str
    data: str
    family: str
    depth: int
    width: int
    activation: str
    normalisation: str
    optimiser: str
    rate_level: int
    batch: int
    decay_level: int
    noise: float
    examples: int
    scale: float
    seed: int

    @property
    def name(self) -> str:
        """Such as "pilot-03-07": half, group, member."""
        return f"{self.half}-{self.group:02d}-{self.member:02d}"

    @property
    def rate(self) -> float:
        """Learning rate."""
        return _RATES[self.optimiser][self.rate_level]

    @property
    def decay(self) -> float:
        """Weight decay."""
        return _DECAYS[self.optimiser][self.decay_level]


def networks(half: str) -> list[Network]:
    """All networks of a half, group after group; any first part of the groups is balanced.

    Example:
        >>> found = networks("pilot")
        >>> len(found), found[3].name, found[3].changed
        (390, 'pilot-00-03', 'activation')
    """
    generator = np.random.default_rng(_SEEDS[half])
    found = []
    for group, (data, family) in enumerate(_cells(half)):
        found += _group(half, group, data, family, generator)
    return found


def _cells(half: str) -> list[tuple[str, str]]:
    """Data set and family of every group: all pairs, then pairs of images again."""
    names = [name for name in DATA if half == "judged" or name not in HELD_OUT_DATA]
    images = [(name, family) for family in DEPTHS for name in names if name in _IMAGES]
    others = [(name, f) for f in ("mlp", "transformer") for name in names if name not in _IMAGES]
    again = images if half == "pilot" else [cell for cell in images if cell[0] == "fashion_mnist"]
    step = len(images) // len(others)
    mixed = []
    for index, cell in enumerate(others):
        mixed += [*images[index * step : (index + 1) * step], cell]
    return [*mixed, *images[len(others) * step :], *again]


def _group(
    half: str, group: int, data: str, family: str, generator: np.random.Generator
) -> list[Network]:
    colour = HALVES.index(half)
    places = [(d, w) for d in range(4) for w in range(4) if (d + w) % 2 == colour]
    depth, width = places[generator.integers(len(places))]
    drawn = {name: _draw(generator, levels) for name, levels in _levels(family).items()}
    base = Network(
        half=half,
        group=group,
        member=0,
        changed="base",
        data=data,
        family=family,
        depth=DEPTHS[family][depth],
        width=WIDTHS[family][width],
        activation=drawn["activation"],
        normalisation=drawn["normalisation"],
        optimiser=drawn["optimiser"],
        rate_level=drawn["rate"],
        batch=drawn["batch"],
        decay_level=drawn["decay"],
        noise=drawn["noise"],
        examples=int(_draw(generator, DATA[data])),
        scale=drawn["scale"],
        seed=int(generator.integers(2**30)),
    )
    # Two steps along a row or column of the board keep its colour.
    others: dict[str, list[Any]] = {
        "depth": [DEPTHS[family][(depth + 2) % 4]],
        "width": [WIDTHS[family][(width + 2) % 4]],
    }
    for name, levels in {**_levels(family), "examples": DATA[data]}.items():
        left = [level for level in levels if level != getattr(base, _field(name))]
        count = 2 if name == "noise" else 1
        others[name] = [left[i] for i in sorted(generator.permutation(len(left))[:count])]
    changes = [(name, value) for name in FACTORS for value in others[name]]
    return [base] + [
        replace(base, member=member, changed=name, **{_field(name): value})
        for member, (name, value) in enumerate(changes, start=1)
    ]


def _levels(family: str) -> dict[str, Sequence[Any]]:
    """Levels of every factor; a transformer has no batch normalisation over positions."""
    levels = dict(LEVELS)
    if family == "transformer":
        levels["normalisation"] = ("none", "layer")
    return levels


def _draw(generator: np.random.Generator, levels: Sequence[Any]) -> Any:
    return levels[int(generator.integers(len(levels)))]


def _field(factor: str) -> str:
    return f"{factor}_level" if factor in ("rate", "decay") else factor
