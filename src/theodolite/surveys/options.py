"""What a user may choose about a measurement: one list for surveys, monitors and the command."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from theodolite._distributed import Group, Processes
from theodolite.checks import require_choice, require_count, size_in_bytes
from theodolite.engine import Batch, Layers, Loss, Parameters, Pool, Read, Readout, require_pool
from theodolite.errors import DomainError, UnknownNameError
from theodolite.records import FAMILIES

__all__ = [
    "FEATURE_READERS",
    "MONITOR_SIZES",
    "SECONDS",
    "SIZES",
    "SurveyOptions",
    "group_of",
]

FEATURE_READERS = ("representation", "kernel", "gradient")  # families that read features
SECONDS = 30.0
_MANY_OUTPUTS = 32  # with more, tangent kernels are sketched

# Largest number of examples of each family; None takes all the data that was given.
SIZES: Mapping[str, int | None] = {
    "representation": 2000,
    "covariance": None,
    "kernel": 2000,
    "tangent": 200,
    "gradient": 1000,
    # For what needs all pairs of gradients (confusion, nulls and errors of Omega); None takes as
    # many as the family where that is cheap, also beside its sums, else 100. 0 leaves it out.
    "pairs": None,
    # For linear probes of every layer, and held-out examples that judge them.
    "probes": 1000,
    "held_out": 1000,
}

# Lighter than a survey: a measurement should cost no more than a few training steps.
MONITOR_SIZES: Mapping[str, int | None] = {
    "representation": 100,
    "covariance": 100,
    "kernel": 100,
    "tangent": 16,
    "gradient": 50,
    "pairs": 0,
    "probes": 100,
    "held_out": 200,
}


@dataclass(frozen=True)
class SurveyOptions:
    """All that can be chosen about a survey or a monitor.

    :func:`theodolite.survey` and :class:`theodolite.Monitor` take the usual ones as keywords, and
    all of them as ``options=``, either as this object or as a mapping of those that differ from
    the defaults.

    Args:
        families: which of ``representation``, ``covariance``, ``kernel``, ``tangent``,
            ``gradient`` to measure; one or several.
        layers: names, patterns or a predicate. By default the layers with parameters, or the
            blocks around them where there are many; they do not overlap, and every parameter
            belongs to one of them.
        read: ``"next"`` reads what the next layer receives, after the normalisation and activation
            that follow a layer; ``"raw"`` the layer's own output.
        loss: (outputs, targets) -> one number per example, or a loss of torch; by default the
            cross-entropy for classes, the squared error for numbers. It gets what the model
            returns and the targets as they came: labels of next tokens are not shifted for it.
        readout: (model output, batch) -> (n, c), or ``"last"``, ``"mean"``, ``"cls"``.
        pool: how features become one vector per example, in every layer alike; by default
            ``"grid"``, averages of maps over a 4 x 4 grid and of tokens over all that are not
            padding; ``"flatten"``, ``"mean"``, ``"max"``, ``"cls"``, ``"last"``, or a function of a
            layer's output.
        seconds: time that the survey may take: families take as many examples as fit, and say so.
            None takes the examples of ``sizes``. Sizes that you name are taken in any case.
        image_shape: (height, width) or (channels, height, width) of inputs that come flattened,
            for pictures of eigenvectors; by default a square where the size is one.
        examples: read so many from the start of the data, in one pass, and nothing beyond; with
            several processes, of each one's part. None reads all the data.
        sizes: family -> largest number of examples; None for all the data. By default 2,000 for
            representation and kernel, 1,000 for gradient (and for ``"pairs"`` of gradients, 100 in
            large models where all pairs take longer than sums), 200 for tangent, all the data for
            covariances; 1,000 for linear ``"probes"`` and for ``"held_out"`` examples beside them.
        permutations: of the labels, behind every chance level; 0 for none.
        half_samples: behind every standard error; 0 for none.
        tangent: ``"exact"``, ``"sketch"``, or ``"auto"``: exact up to 32 outputs, and up to
            ``sketch_vectors``: a kernel takes a pass for each output.
        sketch_vectors: the sketch has at most the error of so many random vectors of all examples;
            few make its numbers noisy, often too high.
        details: covariances of all layers and not of the first alone, gradients of unit length,
            and heat maps of forward and backward kernels.
        memory_limit: bytes that buffers may take, or a size such as "4GB".
        device: where the inputs should lie; None for that of the model.
        batch_size: examples in one pass at most; None for 256, on a GPU for 1,000.
        batch_fn: turns an item of the data into a batch.
        seed: of the probe, permutations and random bases.
        name: what to call the result in comparisons.
        split: what the data is, such as "train" or "test".
        label_source: where the labels come from, such as "true", "trained-on" or "random".
        classes: names of the classes; where labels come per position, whole numbers choose the
            labels that are looked at (by default all, of a vocabulary the most frequent).
        unit: where labels come per position, whether features are those of single positions,
            ``"token"``, or means over an example, ``"sequence"``, whose labels are its group; by
            default the former. Gradients are always those of whole examples.
        params: which trainable parameters gradients are taken of: a pattern such as ``"*lora*"``,
            names, or a predicate of (name, parameter); None takes all.
        group: processes that measure together: ``"auto"`` for all where a process group of
            ``torch.distributed`` is initialised, None for this one alone, or a group.

    Raises:
        DomainError: If an option is out of range.
        UnknownNameError: If a family does not exist.
    """

    families: str | Sequence[str] = tuple(FAMILIES)
    layers: Layers | None = None
    read: Read = "next"
    loss: Loss | None = None
    readout: str | Readout | None = None
    pool: Pool | None = None
    seconds: float | int | None = SECONDS
    image_shape: tuple[int, ...] | None = None
    examples: int | None = None
    sizes: Mapping[str, int | None] = field(default_factory=dict)
    permutations: int = 20
    half_samples: int = 10
    tangent: str = "auto"
    sketch_vectors: int = 32
    details: bool = True
    memory_limit: int | str | None = None
    device: torch.device | str | None = None
    batch_size: int | None = None
    batch_fn: Callable[[Any], Batch] | None = None
    seed: int = 0
    name: str = ""
    split: str = "unknown"
    label_source: str = "given"
    classes: Sequence[str] | Sequence[int] | None = None
    unit: str | None = None
    params: Parameters = None
    group: Group = "auto"

    def __post_init__(self) -> None:
        named = (self.families,) if isinstance(self.families, str) else tuple(self.families)
        for family in named:
            if family not in FAMILIES:
                raise UnknownNameError("family", family, FAMILIES)
        if not named:
            raise DomainError("families: expected at least one of them, got none")
        object.__setattr__(self, "families", tuple(f for f in FAMILIES if f in named))
        object.__setattr__(self, "sizes", {**SIZES, **dict(self.sizes)})
        for name, size in self.sizes.items():
            if name not in SIZES:
                raise UnknownNameError("family in sizes", name, SIZES)
            if size is not None:
                require_count(0 if name == "pairs" else 2, **{f"sizes[{name!r}]": size})
        require_choice(("next", "raw"), read=self.read)
        require_choice(("auto", "exact", "sketch"), tangent=self.tangent)
        require_choice((None, "token", "sequence"), unit=self.unit)
        require_count(3, sketch_vectors=self.sketch_vectors)
        require_count(1, batch_size=1 if self.batch_size is None else self.batch_size)
        if self.examples is not None:
            require_count(2, examples=self.examples)
        require_count(0, permutations=self.permutations, half_samples=self.half_samples)
        if self.pool is not None:
            require_pool(self.pool)
        if self.seconds is not None and not self.seconds > 0:
            raise DomainError(
                f"seconds: expected a positive number, or None for no limit, got {self.seconds}"
            )
        object.__setattr__(self, "memory_limit", size_in_bytes(self.memory_limit))

    @property
    def reduction(self) -> Pool:
        """How features become one vector per example."""
        return self.pool or "grid"

    @property
    def named_sizes(self) -> frozenset[str]:
        """Families whose number of examples was chosen: no time limit changes it."""
        tables = (SIZES, {**SIZES, **MONITOR_SIZES})  # most sizes are left as they are
        defaults = min(tables, key=lambda table: len(_differing(self.sizes, table)))
        return _differing(self.sizes, defaults)

    def sketches(self, outputs: int) -> bool:
        """Whether tangent kernels of so many outputs are sketched."""
        many = outputs > min(_MANY_OUTPUTS, self.sketch_vectors)
        return self.tangent == "sketch" or (self.tangent == "auto" and many)

    @classmethod
    def monitor(cls, **changes: Any) -> "SurveyOptions":
        """The lighter defaults of a monitor: fewer examples and layers, no chance levels.

        100 examples for representation, covariance and kernel, 50 for gradient, 16 for tangent, no
        pairs of gradients; where there are more than 16 outputs a sketch with 16 vectors (with 4,
        alignments of a trained CNN were a third too high); the first layer's covariance.
        """
        sizes = {**MONITOR_SIZES, **dict(changes.pop("sizes", {}))}
        light: dict[str, Any] = {
            "seconds": None,
            "permutations": 0,
            "half_samples": 0,
            "sketch_vectors": 16,
            "details": False,
        }
        return cls(sizes=sizes, **{**light, **changes})

    @classmethod
    def of(
        cls,
        options: "SurveyOptions | Mapping[str, Any] | None",
        make: "Callable[..., SurveyOptions] | None" = None,
        **keywords: Any,
    ) -> "SurveyOptions":
        """Options, with the keywords of a call in their place.

        Args:
            options: as the user gave them.
            make: what makes options of those that differ; by default this class.
            **keywords: of the call; None leaves the option as it is.

        Raises:
            UnknownNameError: If an option does not exist.
        """
        known = [entry.name for entry in fields(cls)]
        for name in (*(options if isinstance(options, Mapping) else ()), *keywords):
            if name not in known:
                raise UnknownNameError("option", name, known)
        given = {name: value for name, value in keywords.items() if value is not None}
        if isinstance(options, SurveyOptions):
            if "sizes" in given:
                given["sizes"] = {**options.sizes, **given["sizes"]}
            return replace(options, **given)
        return (make or cls)(**{**dict(options or {}), **given})

    def seeded(self, stream: int = 0) -> torch.Generator:
        """A generator with the seed, and numbers of its own for every stream."""
        return torch.Generator().manual_seed(1000 * self.seed + stream)

    def largest(self) -> int | None:
        """Examples that the probe needs for all families together; None for all."""
        named = [f for f in self.families if f != "covariance" or self.sizes[f] is not None]
        wanted = [self.sizes[family] for family in named]
        if self.seconds is not None and not wanted:  # covariances alone
            wanted.append(SIZES["representation"])  # where the time ends before the data do
        if "gradient" in self.families:
            wanted += [self.sizes["pairs"] or 0]
        numbers = [size for size in wanted if size is not None]
        return max(numbers, default=2) if len(numbers) == len(wanted) else None

    def require_common(self, processes: Processes, **others: Any) -> None:
        """The same options, and other plain values, in every process.

        Raises:
            DomainError: If they differ, naming the first that does.
        """
        if processes.alone:
            return
        own = {key: repr(value) for key, value in (self.describe() | others).items()}
        first = processes.spread(own)
        with processes.together():
            for key in own | first:
                mine, theirs = own.get(key), first.get(key)
                if mine != theirs and key != "device":
                    raise DomainError(
                        f"{key}: expected the same in every process, got {mine} here and {theirs} "
                        "in process 0; pass the same settings everywhere"
                    )

    def describe(self) -> dict[str, Any]:
        """Plain data for the record."""
        return {
            "families": list(self.families),
            "layers": "default" if self.layers is None else _text(self.layers),
            "read": self.read,
            "loss": "default" if self.loss is None else _text(self.loss),
            "readout": "default" if self.readout is None else _text(self.readout),
            "pool": _text(self.reduction),
            "seconds": self.seconds,
            "image_shape": None if self.image_shape is None else list(self.image_shape),
            "examples": self.examples,
            "sizes": dict(self.sizes),
            "permutations": self.permutations,
            "half_samples": self.half_samples,
            "seed": self.seed,
            "device": None if self.device is None else str(self.device),
            "batch_size": self.batch_size,
            "memory_limit": self.memory_limit,
            "tangent": self.tangent,
            "sketch_vectors": self.sketch_vectors,
            "details": self.details,
            "unit": self.unit,
            "params": None if self.params is None else _text(self.params),
            "mode": "evaluation",
        }


def _text(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if callable(value):
        return str(getattr(value, "__name__", type(value).__name__))
    return [str(item) for item in value]


def group_of(options: "SurveyOptions | Mapping[str, Any] | None") -> Group:
    """The processes that options name; they are needed before options can be compared."""
    if isinstance(options, SurveyOptions):
        return options.group
    return (options or {}).get("group", "auto")


def _differing(
    sizes: Mapping[str, int | None], defaults: Mapping[str, int | None]
) -> frozenset[str]:
    return frozenset(name for name, size in sizes.items() if size != defaults[name])
