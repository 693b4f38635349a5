"""A survey from words: build the model, read the data, measure, save."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from theodolite.cli.failures import CommandError
from theodolite.cli.models import ModelSource, build_model
from theodolite.cli.probes import (
    DataSource,
    Examples,
    in_precision_of,
    load_examples,
    require_fit,
    resolve_device,
)
from theodolite.cli.processes import is_first, process_group
from theodolite.cli.progress import progress_bar
from theodolite.cli.truth import load_truth
from theodolite.records import Run
from theodolite.surveys import SIZES, survey

__all__ = ["Options", "image_sides", "memory_bytes", "require_writable", "survey_model"]

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


@dataclass(frozen=True)
class Options:
    """How to measure; empty tuples and None leave the library's defaults."""

    families: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    readout: str | None = None
    image_shape: str | None = None
    examples: int | None = None
    nulls: int = 20
    bootstrap: int = 0
    batch_size: int = 256
    memory_limit: str | None = None
    device: str | None = None
    name: str = ""
    truth: str | None = None


def survey_model(
    source: ModelSource, data: DataSource, options: Options, folder: Path, progress: bool
) -> tuple[Run, Path]:
    """Measure, then write the record and ``report.html`` into a folder.

    Under ``torchrun`` all processes share the work, and the first one writes.

    Returns:
        The run, and the path of the report.

    Raises:
        TheodoliteError: If the model, the data or an option cannot be used.
    """
    require_writable(folder)
    with process_group(resolve_device(options.device)) as device:
        model = build_model(source).to(device)
        examples = in_precision_of(model, load_examples(data, model))
        truth = _truth(options, data, examples)
        require_fit(model, examples, options.readout)
        keywords = _keywords(options, examples, source.seed) | {"truth": truth}
        with progress_bar(shown=progress and is_first()) as show:
            result = survey(model, examples.batch, device=device, progress=show, **keywords)
    result.save(folder)
    return result.run, result.to_html(folder / "report.html")


def require_writable(folder: Path) -> None:
    """A folder that exists or can be made, known before the work and not after it.

    Raises:
        CommandError: If it cannot be written to.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise CommandError(
            f"--output: {folder} cannot be written: {existing} is no folder, or it is protected"
        )


def _keywords(options: Options, examples: Examples, seed: int) -> dict[str, Any]:
    keywords: dict[str, Any] = {
        "readout": options.readout,
        "image_shape": image_sides(options.image_shape),
        "nulls": options.nulls,
        "bootstrap": options.bootstrap,
        "batch_size": options.batch_size,
        "memory_limit": memory_bytes(options.memory_limit),
        "seed": seed,
        "name": options.name or examples.name,
        "split": examples.split,
        "classes": examples.classes or None,
    }
    if options.families:
        keywords["families"] = options.families
    if options.layers:
        keywords["layers"] = list(options.layers)
    if options.examples is not None:
        keywords["sizes"] = _sizes(options.examples)
    return keywords


def _truth(options: Options, data: DataSource, examples: Examples) -> Tensor | None:
    if options.truth is None:
        return None
    if options.families and "kernel" not in options.families:
        raise CommandError("--truth: true labels are for the kernel family; add --family kernel")
    return load_truth(options.truth, data, examples)


def _sizes(limit: int) -> dict[str, int]:
    """No family takes more than the limit; those that take few by default still do."""
    return {
        family: limit
        if size is None or family in ("representation", "kernel")
        else min(size, limit)
        for family, size in SIZES.items()
    }


def image_sides(text: str | None) -> tuple[int, ...] | None:
    """``8x8`` or ``3x32x32`` as numbers.

    Raises:
        CommandError: If it is neither.

    Example:
        >>> image_sides("3x32x32")
        (3, 32, 32)
    """
    if text is None:
        return None
    if re.fullmatch(r"\d+(x\d+){1,2}", text.lower()) is None:
        raise CommandError(f"--image-shape: expected HxW or CxHxW, e.g. 8x8, got {text!r}")
    return tuple(int(side) for side in text.lower().split("x"))


def memory_bytes(text: str | None) -> int | None:
    """``4GB``, ``512MiB`` or a plain number as bytes.

    Raises:
        CommandError: If it is none of these.

    Example:
        >>> memory_bytes("4GB"), memory_bytes("1.5 MiB"), memory_bytes(None)
        (4000000000, 1572864, None)
    """
    if text is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?I?)B?\s*", text.upper())
    if found is None or found[2] not in _UNITS or float(found[1]) <= 0:
        raise CommandError(f"--memory-limit: expected a size such as 4GB or 512MiB, got {text!r}")
    return int(float(found[1]) * _UNITS[found[2]])
