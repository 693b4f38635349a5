"""The result of :func:`theodolite.transfer`; it is read and shown without torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from theodolite.advice.reasons import named, noted
from theodolite.advice.sentences import percent
from theodolite.advice.summary import ranking_text
from theodolite.errors import UnknownNameError
from theodolite.records import Answer, Record, Run, listed, table_of
from theodolite.surveys.results import digest_line, digest_mark, saved

if TYPE_CHECKING:
    import pandas as pd

    from theodolite.theory.learning import LearningCurve


@dataclass(frozen=True)
class Transfer:
    """Models ranked for a new task, with forecasts, linear probes of layers and learning curves.

    Args:
        record: plain data and arrays; docs/records.md has the layout.
        unwritten: why the result could not be written to the named folder, or None.
    """

    record: Record
    unwritten: str | None = field(default=None, repr=False, compare=False)

    @property
    def names(self) -> list[str]:
        """Names of the measured models, best first."""
        return [model["name"] for model in self.record.contents["models"]]

    @property
    def best(self) -> str:
        """The model to start from."""
        return self.names[0]

    @property
    def ties(self) -> list[str]:
        """The best model and those that are not distinguished from it; empty if there are none."""
        return list(self.record.contents.get("ties") or [])

    @property
    def answers(self) -> list[Answer]:
        """The answers: which model, which layer, how many labels; each with its evidence."""
        stored = self.record.contents.get("answers")
        if stored is not None:
            return [Answer.from_entry(entry) for entry in stored]
        from theodolite.advice.choosing import transfer_answers  # a record of an earlier version

        return transfer_answers(self.record.contents, self.record.arrays)

    @property
    def notes(self) -> list[str]:
        """Warnings about the ranking and single models, as sentences."""
        return noted(self.record.contents)

    @property
    def problems(self) -> dict[str, str]:
        """Models that could not be measured, each with the reason."""
        return dict(self.record.contents["problems"])

    def _model(self, name: str | None) -> tuple[int, Mapping[str, Any]]:
        wanted = self.best if name is None else name
        if wanted not in self.names:
            raise UnknownNameError("model", wanted, self.names)
        index = self.names.index(wanted)
        return index, self.record.contents["models"][index]

    def forecast(self, name: str | None = None) -> tuple[float, float, float]:
        """Forecast of fine-tuning: accuracy (error for a regression) with its 95 % interval.

        Args:
            name: name of the model; by default the best.

        Returns:
            The forecast, and the lower and upper end of its interval.

        Raises:
            UnknownNameError: If there is no such model.
        """
        forecast = self._model(name)[1]["forecast"]
        return forecast["value"], forecast["low"], forecast["high"]

    def curve(self, name: str | None = None) -> "LearningCurve":
        """Predicted accuracy and error against the number of labels.

        Args:
            name: name of the model; by default the best.

        Returns:
            Errors and accuracies with their intervals, for growing numbers of labels.

        Raises:
            UnknownNameError: If there is no such model.
        """
        import torch

        from theodolite.theory.learning import LearningCurve

        index, model = self._model(name)
        keys = ("labels", "error", "error_interval", "accuracy", "accuracy_interval")
        parts = {key: torch.from_numpy(self.record.arrays[f"{index}/curve/{key}"]) for key in keys}
        return LearningCurve(**parts, examples=model["examples"])

    def layers(self, name: str | None = None) -> "pd.DataFrame":
        """Linear probes of the layers of a model, in order of execution.

        Label alignment (``alignment_area``) compares layers of one model. It does not rank models.

        Args:
            name: name of the model; by default the best.

        Returns:
            A pandas data frame with one row per layer.

        Raises:
            UnknownNameError: If there is no such model.
        """
        return table_of(self._model(name)[1]["layers"])

    def to_frame(self) -> "pd.DataFrame":
        """One row per model, best first; models that could not be measured come last.

        Returns:
            A pandas data frame with the columns of the table in ``summary()``.
        """
        models = self.record.contents["models"]
        rows = [_row(i, m, tie=m["name"] in self.ties) for i, m in enumerate(models, 1)]
        rows += [{"model": name, "problem": why} for name, why in self.problems.items()]
        return table_of(rows, [*_row(1, models[0]), "problem"])

    def summary(self) -> str:
        """The answers, the ranking and the warnings, as text."""
        contents = self.record.contents
        return ranking_text(contents, self.answers) + digest_line(self.record)

    def to_html(self, path: str | os.PathLike[str], title: str = "") -> Path:
        """Write one page that works offline; return its path.

        Args:
            path: the file; a page that is there is replaced.
            title: heading of the page; by default the name of the result.

        Returns:
            The path of the page.
        """
        from theodolite.report import write_transfer

        return Path(write_transfer(self._answered(), path, title=title))

    def _repr_html_(self) -> str:
        from theodolite.report import transfer_fragment

        return transfer_fragment(self._answered())

    def _answered(self) -> Record:
        """The record with its answers; records of earlier versions lack them."""
        answers = [answer.to_entry() for answer in self.answers]
        return replace(self.record, contents={**self.record.contents, "answers": answers})

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the record; :func:`theodolite.load` reads it back.

        Args:
            folder: where to write. If it already holds a run, ``folder-2`` is written instead.
            overwrite: replace the run in the folder.

        Returns:
            The folder that was written.

        Raises:
            RecordError: If the path is a file.
            WriteError: If the disk is full, or the folder cannot be written.
        """
        return saved(Run("", self.record, ()), folder, overwrite=overwrite)

    def __repr__(self) -> str:
        forecast = self.record.contents["models"][0]["forecast"]
        more = f", {len(self.problems)} not measured" if self.problems else ""
        models = "1 model" if len(self.names) == 1 else f"{len(self.names)} models"
        ties = listed(map(named, self.ties), most=4)
        lead = f"{ties} tie" if ties else f"best {named(self.best)}"
        value, low, high = (forecast[key] for key in ("value", "low", "high"))
        number = f"{value:.3f} ({low:.3f} to {high:.3f})"
        if forecast["measure"] == "accuracy":
            number = f"{percent(value)} ({percent(low).removesuffix(' %')} to {percent(high)})"
        return (
            f"Transfer({models}{more}; {lead}; forecast {forecast['measure']} {number}"
            f"{digest_mark(self.record)})"
        )


def _row(place: int, model: Mapping[str, Any], *, tie: bool = False) -> dict[str, Any]:
    forecast, tangent = model["forecast"], model["tangent"] or {}
    chosen: Mapping[str, Any] = next(
        (x for x in model["layers"] if x["name"] == model["best_layer"]), {}
    )
    nan = float("nan")
    return {
        "rank": place,
        "model": model["name"],
        "error": model["error"],
        "tie": tie,
        "forecast": forecast["value"],
        "low": forecast["low"],
        "high": forecast["high"],
        "measure": forecast["measure"],
        "features_error": model["features_beside"]["error"],
        "features_accuracy": model["features_beside"]["accuracy"],
        "tangent_error": tangent.get("error", nan),
        "tangent_accuracy": tangent.get("accuracy", nan),
        "tangent_share": tangent.get("share", 0.5 if tangent else nan),
        "best_layer": model["best_layer"],
        "best_layer_accuracy": chosen.get("accuracy", nan),
        "best_layer_error": chosen.get("error", nan),
        "parameters": model["parameters"],
        "seconds": sum(model["seconds"].values()),
    }
