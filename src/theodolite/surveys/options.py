"""The options of surveys and monitors, in one place."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any

import torch

from theodolite._distributed import Group, Processes
from theodolite.checks import (
    require_choice,
    require_count,
    require_flag,
    require_function,
    require_kind,
    size_in_bytes,
)
from theodolite.engine import Batch, Layers, Loss, Parameters, Pool, Read, Readout, require_pool
from theodolite.errors import DomainError, UnknownNameError
from theodolite.records import FAMILIES

FEATURE_READERS = ("representation", "kernel", "gradient")  # families that read features
SECONDS = 30.0
_LARGEST_SEED = 2**52  # generators take 64 bits, and each purpose its own part of a thousand
_MANY_OUTPUTS = 32  # with more, tangent kernels are sketched

# Largest number of examples of each family; None uses all the given data.
SIZES: Mapping[str, int | None] = {
    "representation": 2000,
    "covariance": None,
    "kernel": 2000,
    "tangent": 200,
    "gradient": 1000,
    # For measures that compare all pairs of gradients (confusion, chance levels and errors of
    # Omega). None: as many as the family where pairs are cheap, otherwise 100. 0: no pairs.
    "pairs": None,
    # For linear probes of every layer, and for the held-out examples that judge them.
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
    """All options of a survey or a monitor.

    :func:`theodolite.survey` and :class:`theodolite.Monitor` take the most common options as
    keywords. Pass the others as ``options=``: an object of this class, or a mapping of the options
    that differ from the defaults.

    Args:
        families: which families to measure, one or several of ``representation``, ``covariance``,
            ``kernel``, ``tangent`` and ``gradient``.
        layers: names, patterns or a predicate. By default the layers with parameters or, if there
            are many, the blocks that contain them. Every parameter belongs to one shown layer.
        read: where features are taken. ``"next"``: what the next layer receives, after the
            normalisation and activation that follow a layer. ``"raw"``: the layer's own output.
        loss: (outputs, targets) -> one number per example, or a loss of torch. By default the
            cross-entropy for classes and the squared error for numbers. The loss gets the model's
            output and the targets as given: labels of next tokens are not shifted.
        readout: (model output, batch) -> (n, c), or ``"last"``, ``"mean"``, ``"cls"``.
        pool: how features become one vector per example, equally in all layers. ``"grid"`` (the
            default) averages maps over a 4 x 4 grid, and tokens without padding. Others are
            ``"flatten"``, ``"mean"``, ``"max"``, ``"cls"``, ``"last"`` and functions of the output.
        seconds: the time limit. Families use as many examples as fit, and the result lists the
            families that were cut. None uses the examples of ``sizes``. Sizes that you name are
            always used.
        examples: read only this many examples from the start of the data, in one pass. With several
            processes the number holds for each process. None reads all the data.
        sizes: family -> largest number of examples; None for all the data. Defaults:
            representation and kernel 2,000; gradient 1,000; tangent 200; covariance all the data.
            ``"probes"`` (linear probes) and ``"held_out"``: 1,000. ``"pairs"`` of gradients: as
            many as the gradient family, but 100 in large models where pairs take longer than sums.
        permutations: number of label permutations for every chance level; 0 for none.
        half_samples: number of half-samples for every standard error; 0 for none.
        tangent: ``"exact"``, ``"sketch"`` or ``"auto"``. ``"auto"`` is exact up to 32 outputs (and
            up to ``sketch_vectors`` outputs), because a kernel takes one pass for each output.
        sketch_vectors: number of random vectors of a sketch. With few vectors its numbers are noisy
            and often too high.
        details: True adds covariances of all layers (not only the first), stiffness (the mean
            cosine of gradients), and heat maps of forward and backward kernels.
        memory_limit: bytes that buffers may take, or a size such as "4GB". None: half of the free
            memory, and at most 4 GiB on a CPU.
        device: device for the inputs; None uses the device of the model.
        batch_size: largest number of examples in one pass; None for 256, or 1,000 on a GPU.
        batch_fn: turns an item of the data into a batch.
        seed: seed of the probe set, the permutations and the random bases.
        name: name of the result in comparisons.
        split: what the data are, such as "train" or "test".
        label_source: where the labels come from, such as "true", "trained-on" or "random".
        classes: names of the classes. For labels per position: the whole numbers of the labels to
            measure. By default all labels are measured, or the most frequent ones of a vocabulary.
        unit: for labels per position. ``"token"`` (the default): features of single positions.
            ``"sequence"``: means over an example, with its group as the label. Gradients are
            always those of whole examples.
        params: the trainable parameters whose gradients are measured: a pattern such as
            ``"*lora*"``, names, or a predicate of (name, parameter). None measures all.
        group: the processes that measure together. ``"auto"``: all processes, if a process group of
            ``torch.distributed`` is initialised. None: only this process. Or pass a group.

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
        self._require_classes()
        object.__setattr__(self, "seed", int(self.seed))
        named = (self.families,) if isinstance(self.families, str) else tuple(self.families)
        for family in named:
            if family not in FAMILIES:
                raise UnknownNameError("family", family, FAMILIES)
        if not named:
            raise DomainError("families: expected at least one family, got none")
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
        if self.seconds is not None and not (isinstance(self.seconds, Real) and self.seconds > 0):
            raise DomainError(
                f"seconds: expected a positive number, or None for no limit, got {self.seconds!r}"
            )
        object.__setattr__(self, "memory_limit", size_in_bytes(self.memory_limit))

    def _require_classes(self) -> None:
        """Check the classes of the options that have no other check."""
        require_kind((str, Iterable), families=self.families)
        require_kind(Mapping, sizes=self.sizes)
        require_kind(Integral, seed=self.seed)
        if abs(self.seed) > _LARGEST_SEED:
            raise DomainError(
                f"seed: expected at most {_LARGEST_SEED:,}, got {self.seed}; use a smaller number"
            )
        require_kind(str, name=self.name, split=self.split, label_source=self.label_source)
        require_flag(details=self.details)
        if self.classes is not None:
            require_kind(Sequence, classes=self.classes)
        functions = {"loss": self.loss, "batch_fn": self.batch_fn}
        require_function(**{name: value for name, value in functions.items() if value is not None})

    @property
    def reduction(self) -> Pool:
        """How features become one vector per example."""
        return self.pool or "grid"

    @property
    def named_sizes(self) -> frozenset[str]:
        """Families whose number of examples the user chose. No time limit changes them."""
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

        It measures 100 examples for representation, covariance and kernel, 50 for gradient and 16
        for tangent. Pairs of gradients are not compared. Only the covariance of the first layer is
        measured. Beyond 16 outputs tangent alignment is a sketch with 16 vectors. With 4 vectors
        the alignments of a trained CNN were a third too high.
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
        """Combine options with the keywords of a call, which take precedence.

        Args:
            options: as the user gave them.
            make: makes options from a mapping; by default this class.
            **keywords: keywords of the call; None leaves an option unchanged.

        Raises:
            UnknownNameError: If an option does not exist.
        """
        require_kind((SurveyOptions, Mapping, type(None)), options=options)
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
        """A random generator for one purpose (``stream``), made from the seed."""
        return torch.Generator().manual_seed(1000 * self.seed + stream)

    def largest(self) -> int | None:
        """Number of examples that all families together need; None for all."""
        named = [f for f in self.families if f != "covariance" or self.sizes[f] is not None]
        wanted = [self.sizes[family] for family in named]
        if self.seconds is not None and not wanted:  # covariances alone use all data in the time
            wanted.append(SIZES["representation"])
        if "gradient" in self.families:
            wanted += [self.sizes["pairs"] or 0]
        numbers = [size for size in wanted if size is not None]
        return max(numbers, default=2) if len(numbers) == len(wanted) else None

    def require_common(self, processes: Processes, **others: Any) -> None:
        """Check that the options, and other plain values, are equal in all processes.

        Raises:
            DomainError: If they differ; the message names the first difference.
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
    """The process group in the options. It is needed before options can be compared."""
    if isinstance(options, SurveyOptions):
        return options.group
    require_kind((SurveyOptions, Mapping, type(None)), options=options)
    return (options or {}).get("group", "auto")


def _differing(
    sizes: Mapping[str, int | None], defaults: Mapping[str, int | None]
) -> frozenset[str]:
    return frozenset(name for name, size in sizes.items() if size != defaults[name])
