"""Results of measurements: one moment, a training run, or several side by side."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import warn

import numpy as np

from theodolite.advice.captions import digest_words
from theodolite.advice.comparing import latest_answers
from theodolite.advice.reasons import count_of, words_of
from theodolite.advice.summary import (
    differences_text,
    history_title,
    summary_text,
    survey_title,
)
from theodolite.errors import DomainError, DtypeError, RecordError, UnknownNameError
from theodolite.records import (
    LARGEST_RECORD,
    Answer,
    Estimate,
    Record,
    Run,
    frame_of,
    free_folder,
    is_there,
    latest_numbers,
    load_result,
    require_class,
    require_path,
    require_transfer,
    save_run,
    unique_names,
)

if TYPE_CHECKING:
    import pandas as pd

    from theodolite.report import LayerPairs
    from theodolite.surveys.transfer_results import Transfer


def _require_text(**values: Any) -> None:
    for name, value in values.items():
        if not isinstance(value, str):
            raise DtypeError(f"{name}: expected text, got {value!r}")


class Shown(ABC):
    """A result with runs to show; it loads the report code only on request.

    Attributes:
        writes: whether this process writes files. Of several processes only the first does.
    """

    writes: bool = True

    @abstractmethod
    def _shown(self) -> Sequence[Run]:
        """The runs, as reports read them."""

    def to_frame(self) -> "pd.DataFrame":
        """One row per layer, family and measure; several runs or steps have columns of their own.

        Returns:
            A pandas data frame: ``layer``, ``family``, ``measure``, ``value``, its ``error``, its
            chance level (``null_mean``, ``null_sd``), and how and where it was measured.
        """
        return frame_of(self._shown(), names=len(self._shown()) > 1)

    def plot(self, name: str, *, step: int | None = None, theme: str = "light") -> Any:
        """A Plotly figure of a family, a measure or a curve.

        Args:
            name: such as ``"kernel"``, ``"cka_target"`` or ``"alignment_curve"``.
            step: the training step, for a history.
            theme: ``"light"`` or ``"dark"``.

        Returns:
            A Plotly figure.

        Raises:
            UnknownNameError: If nothing has this name, or there is no such theme.
        """
        _require_text(name=name)
        from theodolite.report import plot

        return plot(self._shown(), name, step=step, theme=theme)

    def to_html(self, path: str | os.PathLike[str], title: str = "") -> Path:
        """Write one page that works offline; return its path.

        Args:
            path: the file; a page that is there is replaced.
            title: heading of the page; by default the name of the run.

        Returns:
            The path of the page.
        """
        require_path(path=path)
        _require_text(title=title)
        if not self.writes:
            return Path(path)
        from theodolite.report import write_html

        return Path(write_html(self._shown(), path, title=title, pairs=self._pairs()))

    def _pairs(self) -> "LayerPairs | None":
        """Similarity of every pair of layers, if two models were compared."""
        return None

    def _repr_html_(self) -> str:
        from theodolite.report import notebook_html

        return str(notebook_html(self._shown()))


class OneRun(Shown):
    """A result that is a single run, which can be saved.

    Attributes:
        run: its records, the form that reports and trackers read.
    """

    run: Any

    @property
    def layers(self) -> list[str]:
        """Names of the layers, in order of execution, without the row of the raw inputs."""
        layers = self.run.head.contents["layers"]
        return [layer["name"] for layer in layers if layer.get("role") != "input"]

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the records; :func:`theodolite.load` reads them back.

        Args:
            folder: where to write. If it already holds a run, ``folder-2`` is written instead.
            overwrite: replace the run in the folder.

        Returns:
            The folder that was written.

        Raises:
            RecordError: If the path is a file.
            WriteError: If the disk is full, or the folder cannot be written.
        """
        return saved(self.run, folder, overwrite=overwrite) if self.writes else Path(folder)

    def _shown(self) -> Sequence[Run]:
        return [self.run]


@dataclass(frozen=True)
class Survey(OneRun):
    """All measurements of one model on one set of examples.

    Args:
        record: plain data and arrays; docs/records.md has the layout.
        writes: whether this process writes files. All processes have the same numbers, and only
            the first writes files.
    """

    record: Record
    writes: bool = field(default=True, repr=False, compare=False)

    @cached_property
    def run(self) -> Run:
        """This survey as a run of one step, the form that reports and trackers read."""
        return Run(self.record.contents["name"], self.record, (self.record,))

    @property
    def answers(self) -> list[Answer]:
        """The answers about the task, the layers and the groups, each with its certainty."""
        return [Answer.from_entry(entry) for entry in self.record.contents.get("answers") or ()]

    def estimate(self, measure: str, layer: str | None = None) -> Estimate:
        """One number with its uncertainty.

        Args:
            measure: name of the measure, such as "cka_target"; ``to_frame()`` lists all of them.
            layer: name of the layer; None for numbers of the whole model.

        Returns:
            The value with its error, its chance level and its method.

        Raises:
            UnknownNameError: If there is no such number.
            DomainError: If the number is one of a layer, and no layer is named.
        """
        every = self.record.contents["rows"]
        rows = [row for row in every if row["layer"] == layer]
        if not rows and layer is not None:
            raise UnknownNameError("layer", layer, self.layers)
        for row in rows:
            if row["measure"] == measure:
                keys = ("value", "error", "null_mean", "null_sd", "method")
                return Estimate(*(row[key] for key in keys))
        if layer is None:
            _require_no_layer(
                "measure", measure, [r["layer"] for r in every if r["measure"] == measure]
            )
        raise UnknownNameError("measure", measure, [row["measure"] for row in rows])

    def curve(self, name: str, layer: str | None = None) -> dict[str, np.ndarray]:
        """Arrays of a curve by their role, such as x and y.

        Args:
            name: name of the curve, such as "alignment_curve".
            layer: name of the layer; None for curves of the whole model.

        Returns:
            Role -> array.

        Raises:
            UnknownNameError: If there is no such curve.
            DomainError: If the curve is one of a layer, and no layer is named.
        """
        every = self.record.contents["curves"]
        curves = [curve for curve in every if curve["layer"] == layer]
        if not curves and layer is not None:
            raise UnknownNameError("layer", layer, self.layers)
        for curve in curves:
            if curve["name"] == name:
                return {role: self.record.arrays[key] for role, key in curve["arrays"].items()}
        if layer is None:
            layers = [curve["layer"] for curve in every if curve["name"] == name]
            _require_no_layer("curve", name, layers)
            curves = every  # few curves belong to the whole model, so name all
        raise UnknownNameError("curve", name, dict.fromkeys(curve["name"] for curve in curves))

    def summary(self) -> str:
        """The answers, the headline number of every family and layer, and warnings, as text."""
        return self._text(self.record.contents["name"])

    def _text(self, name: str) -> str:
        text = summary_text(self.record, title=survey_title(self.record.contents, name))
        cut = self.record.contents.get("cut")
        return (text if cut is None else f"{text}\n{words_of(cut)}") + digest_line(self.record)

    def __repr__(self) -> str:
        contents: Mapping[str, Any] = self.record.contents
        families = ", ".join(
            f for f in contents["config"]["families"] if f not in contents["skipped"]
        )
        probe = contents["data"]["probe"]
        mark = digest_mark(self.record)
        layers = count_of(len(self.layers), "layer")
        return f"Survey({layers}, {probe} examples: {families}{mark})"


@dataclass(frozen=True)
class History(OneRun):
    """All measurements of a model during its training.

    Args:
        run: settings and one survey record per step; docs/records.md has the layout.
        writes: whether this process writes files. Of several processes only the first does.
    """

    run: Run
    writes: bool = field(default=True, repr=False, compare=False)

    @property
    def steps(self) -> list[int]:
        """Measured steps, in increasing order."""
        return [record.contents["step"] for record in self.run.steps]

    @property
    def example_losses(self) -> np.ndarray | None:
        """Mean loss of each example of the probe set over all measurements; None without a loss.

        Detectors of memorised examples use it as a baseline: a high mean loss marks examples that
        the model learned late.
        """
        for record in reversed(self.run.steps):
            kept = record.contents.get("example_losses")
            if kept is not None:
                return record.arrays[kept["mean"]]
        return None

    @property
    def answers(self) -> list[Answer]:
        """The latest answer to each question. Evidence from an earlier step names that step."""
        return latest_answers(self.run.steps)

    def survey(self, step: int) -> Survey:
        """The survey of one step.

        Args:
            step: one of ``steps``.

        Returns:
            A survey with the families that were measured at this step.

        Raises:
            UnknownNameError: If nothing was measured at this step.
        """
        require_class(Integral, step=step)
        for record in self.run.steps:
            if record.contents["step"] == step:
                return Survey(record, writes=self.writes)
        raise UnknownNameError("step", str(step), map(str, self.steps))

    def summary(self) -> str:
        """The headline numbers of every family at the last step that measured it, as text.

        After the monitor is closed this is the last step for all families. Before, and after a
        crash, one line names the steps.
        """
        if not self.run.steps:
            return "no step was measured"
        latest = latest_numbers(self.run)
        steps = latest.steps if latest.earlier else None
        text = summary_text(latest.record, title=history_title(self.steps), steps=steps)
        return text + digest_line(self.run.head, *self.run.steps)

    def __repr__(self) -> str:
        mark = digest_mark(self.run.head, *self.run.steps)
        steps, layers = count_of(len(self.steps), "step"), count_of(len(self.layers), "layer")
        return f"History({steps}, {layers}{mark})"


def _require_no_layer(kind: str, name: str, layers: Sequence[str]) -> None:
    """Refuse a name of which each layer has its own numbers."""
    if layers:
        listed = ", ".join(repr(layer) for layer in layers[:3])
        more = ", ..." if len(layers) > 3 else ""
        raise DomainError(
            f"layer: expected a name, since every layer has its own {kind} {name!r}, got none; "
            f"pass one of {listed}{more}"
        )


def digest_mark(*records: Record) -> str:
    """The text that marks records without a digest in the repr of a result."""
    return ", no digest" if any(record.unverified for record in records) else ""


def digest_line(*records: Record) -> str:
    """The line that marks records without a digest in a summary."""
    words = digest_words(*records)
    return f"\n{words}" if words else ""


def saved(run: Run, folder: str | os.PathLike[str], *, overwrite: bool) -> Path:
    """Write a run. If the folder holds a run already, write beside it and warn."""
    require_path(folder=folder)
    require_class(bool, overwrite=overwrite)
    place = save_run(run, folder, overwrite=overwrite).parent
    _warn_of_other_folder(place, folder)
    return place


def unused_folder(folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Return the folder or, if it holds a run already, a free one beside it, with a warning.

    Raises:
        RecordError: If the path is a file.
    """
    require_path(folder=folder)
    require_class(bool, overwrite=overwrite)
    if is_there(Path(folder)) and Path(folder).is_file():
        raise RecordError(f"{folder}: expected a folder, got a file; name another place")
    place = free_folder(folder, overwrite=overwrite)
    _warn_of_other_folder(place, folder)
    return place


def _warn_of_other_folder(place: Path, wanted: str | os.PathLike[str]) -> None:
    if place != Path(wanted):
        warn(f"{wanted} holds a run already: this one is written to {place}", stacklevel=4)


def load(
    folder: str | os.PathLike[str], *, max_bytes: int | None = LARGEST_RECORD
) -> "Survey | History | Transfer":
    """Read a saved survey, history or ranking of models.

    Args:
        folder: the folder that was given to ``save`` or to a monitor.
        max_bytes: size limit of the record, with its arrays unpacked; None for no limit.

    Returns:
        The survey, history or ranking in the folder.

    Raises:
        RecordError: If there is no record, or it is damaged, too large, of another program or of
            a newer version. The message names the file and says what to do.

    Examples:
        >>> import tempfile, torch, theodolite as th
        >>> folder = tempfile.mkdtemp() + "/run"
        >>> features = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
        >>> _ = th.survey_features({"layer": features}, torch.arange(40) % 2).save(folder)
        >>> load(folder).layers
        ['layer']
    """
    require_path(folder=folder)
    if max_bytes is not None and (not isinstance(max_bytes, int) or max_bytes < 1):
        raise DomainError(f"max_bytes: expected an integer of at least 1, got {max_bytes!r}")
    found = load_result(folder, max_bytes=max_bytes)
    if isinstance(found, Run):
        return History(found) if found.is_history else Survey(found.head)
    if found.contents.get("kind") != "transfer":
        raise RecordError(
            f"{folder}: expected a record of a survey, a history or a ranking, got kind "
            f"{found.contents.get('kind')!r}; read it with load_record"
        )
    from theodolite.surveys.transfer_results import Transfer

    return Transfer(require_transfer(found, folder))


@dataclass(frozen=True)
class Comparison(Shown):
    """Several surveys, or several histories, side by side.

    Args:
        runs: the runs, each with its own name.
        pairs: for two models: debiased CKA and mutual nearest neighbours of every pair of layers,
            with their values for permuted examples.
    """

    runs: tuple[Run, ...]
    pairs: "LayerPairs | None" = field(default=None, repr=False, compare=False)

    @property
    def cka(self) -> "pd.DataFrame | None":
        """Debiased CKA: layers of the first model in rows, of the second in columns."""
        return None if self.pairs is None else self.pairs.cka.values

    @property
    def names(self) -> list[str]:
        """Names of the runs."""
        return [run.name for run in self.runs]

    def _pairs(self) -> "LayerPairs | None":
        return self.pairs

    def summary(self) -> str:
        """The table of every run, then the differences of headline numbers from the first run."""
        parts = [
            f"{run.name}\n"
            + (History(run).summary() if run.is_history else Survey(run.head)._text(""))
            for run in self.runs
        ]
        if all(run.steps for run in self.runs):
            first, *others = [
                latest_numbers(run).record if run.is_history else run.head for run in self.runs
            ]
            for name, other in zip(self.names[1:], others, strict=True):
                parts.append(differences_text(first, other, (self.names[0], name)))
        if self.pairs is not None:
            names = (self.names[0], self.names[1])
            found = {"CKA": self.pairs.cka, "Mutual neighbours": self.pairs.neighbours}
            parts.append("\n".join(f"{k}. {v.sentence(names)}" for k, v in found.items()))
        return "\n\n".join(parts)

    def plot(self, name: str, *, step: int | None = None, theme: str = "light") -> Any:
        """A Plotly figure; ``"cka"`` and ``"neighbours"`` show all pairs of layers.

        Args:
            name: such as ``"cka_target"``, ``"cka"`` or ``"neighbours"``.
            step: the training step, for histories.
            theme: ``"light"`` or ``"dark"``.

        Returns:
            A Plotly figure.

        Raises:
            DomainError: If a figure of pairs needs models, and results were compared.
            UnknownNameError: If nothing has this name, or there is no such theme.
        """
        require_class(str, name=name)
        if name not in ("cka", "neighbours"):
            return super().plot(name, step=step, theme=theme)
        if self.pairs is None:
            raise DomainError(
                f"{name}: expected a comparison of two models, got one of results, which keep no "
                "features; call compare(model_a, model_b, data)"
            )
        from theodolite.report import plot_pairs

        return plot_pairs(self.pairs, name, (self.names[0], self.names[1]), theme=theme)

    def _shown(self) -> Sequence[Run]:
        return self.runs

    def __repr__(self) -> str:
        shown = [*self.names[:6], *["..."] * (len(self.names) > 6)]
        return f"Comparison({len(self.names)} runs: {', '.join(shown)})"


def _names_of(names: Sequence[str]) -> list[str]:
    """The names of results as a list; a single text is no list."""
    known = isinstance(names, Iterable) and not isinstance(names, str)
    if not known or not all(isinstance(name, str) for name in names):
        raise DtypeError(f"names: expected a list of texts, one per result, got {names!r}")
    return list(names)


def compare(*results: Any, names: Sequence[str] | None = None, **options: Any) -> Comparison:
    """Compare surveys, histories, or two models on the same data.

    Args:
        *results: at least two surveys, at least two histories, or two models and data. Two models
            are both surveyed on the data.
        names: names of the results; by default their own names, made unique.
        **options: for two models, the keywords of :func:`theodolite.survey`.

    Returns:
        All results side by side, with their differences and, for two models, CKA of all pairs of
        layers.

    Raises:
        DomainError: If there are fewer than two results, if surveys are mixed with histories, or if
            two models would get different examples.

    Examples:
        >>> from torch import nn
        >>> from theodolite import survey
        >>> x, y = torch.randn(12, 3), torch.arange(12) % 2
        >>> surveys = [survey(nn.Linear(3, 2), (x, y), families="kernel") for _ in range(2)]
        >>> compare(*surveys, names=["first", "second"]).to_frame()["run"].unique().tolist()
        ['first', 'second']
    """
    if len(results) == 3 and not any(isinstance(result, Shown) for result in results[:2]):
        from theodolite.surveys.model_comparison import compare_models

        return compare_models(*results, names=names, **options)
    known = all(isinstance(result, (Survey, History)) for result in results)
    runs = [result.run for result in results] if known else []
    if len(runs) < 2 or len({run.is_history for run in runs}) > 1 or options:
        kinds = ", ".join(type(result).__name__ for result in results) or "nothing"
        raise DomainError(
            "compare: expected at least two surveys, or at least two histories, or two models and "
            f"their data, got {kinds}{''.join(f', {name}=' for name in options)}"
        )
    chosen = [run.name for run in runs] if names is None else _names_of(names)
    if len(chosen) != len(runs):
        raise DomainError(f"names: expected {len(runs)}, one per result, got {len(chosen)}")
    named = zip(runs, unique_names(chosen), strict=True)
    return Comparison(tuple(replace(run, name=name) for run, name in named))
