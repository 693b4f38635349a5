"""Surveys of arrays: features and labels instead of a model and data."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from theodolite._distributed import ALONE
from theodolite.advice.reasons import reason
from theodolite.checks import require_finite, require_same_length
from theodolite.engine import Batch
from theodolite.errors import DomainError, DtypeError, ShapeError
from theodolite.records import Note
from theodolite.surveys.context import Draws, SurveyContext
from theodolite.surveys.layers import Layer, Layout
from theodolite.surveys.options import SurveyOptions
from theodolite.surveys.plan import SurveyPlan
from theodolite.surveys.probe import draw_probe
from theodolite.surveys.record import RecordBuilder
from theodolite.surveys.results import Survey
from theodolite.surveys.run import finished_record, measure_families
from theodolite.surveys.schedule import Schedule
from theodolite.surveys.shards import probe_digest


def survey_features(
    features: Mapping[str, Any],
    labels: Any = None,
    *,
    families: str | Sequence[str] | None = None,
    sizes: Mapping[str, int | None] | None = None,
    permutations: int | None = None,
    seed: int | None = None,
    name: str | None = None,
    options: SurveyOptions | Mapping[str, Any] | None = None,
) -> Survey:
    """Measure the alignment of features with labels, layer by layer, without a model.

    It gives the same numbers, table and page as :func:`theodolite.survey`, as far as features are
    enough: representation, kernel, and the feature contrast of the gradient family. The other
    families say that they need a model.

    Args:
        features: layer -> its features, one row per example: NumPy arrays, tensors, data frames, or
            the result of :func:`theodolite.features`. Rows with more than one axis are flattened.
        labels: one label for each example: classes as whole numbers or text, real numbers for a
            regression, or a row of numbers. None: features without labels.
        families: which families to measure, as in :class:`SurveyOptions`; all by default.
        sizes: family -> largest number of examples.
        permutations: number of label permutations for every chance level; 0 for none.
        seed: seed of the drawn examples and the permutations.
        name: name of the survey in comparisons.
        options: a :class:`SurveyOptions` or a mapping; options that concern a model have no effect.
            The keywords above take precedence.

    Returns:
        The same result as :func:`survey`, without the families that need a model.

    Raises:
        DomainError: If the features are not a mapping or not finite, a label is missing, or no
            family applies.
        DtypeError: If features are not numbers, or labels are neither numbers nor text.
        ShapeError: If there is no layer, or features and labels differ in number.

    Examples:
        >>> x = torch.tensor([[0.0, 1.0], [0.1, 0.9], [1.0, 0.1], [0.9, 0.0]])
        >>> found = survey_features({"embedding": x}, ["cat", "cat", "dog", "dog"])
        >>> round(found.estimate("cka_target", "embedding").value, 2)
        1.0
    """
    chosen = SurveyOptions.of(
        options, families=families, sizes=sizes, permutations=permutations, seed=seed, name=name
    )
    given = _features_of(features)
    values, classes = (None, None) if labels is None else _labels_of(labels)
    _require_same_examples(features, given, labels, values)
    if chosen.classes is None:
        chosen = replace(chosen, classes=classes)
    if chosen.device is not None:
        given = {layer: rows.to(chosen.device) for layer, rows in given.items()}
    record = RecordBuilder()
    with record.timed("total"):
        count = len(next(iter(given.values())))
        probe = draw_probe((torch.arange(count), values), chosen)  # of places, not of inputs
        places = probe.batch.args[0]
        drawn = {layer: rows[places.to(rows.device)] for layer, rows in given.items()}
        batch = Batch(tuple(drawn.values()), targets=probe.batch.targets)
        probe = replace(probe, digest=probe_digest(batch))
        layout = _layout(drawn)
        plan = SurveyPlan().fitted(chosen, layout, probe, ALONE)
        context = SurveyContext(
            model=nn.Identity(),
            probe=probe,
            layout=layout,
            options=chosen,
            plan=plan,
            draws=Draws.of(len(probe), chosen),
            record=record,
            given=drawn,
        )
        measure_families(context, Schedule(context))
    return Survey(finished_record(context, step=None))


def _layout(given: Mapping[str, Tensor]) -> Layout:
    layers = []
    for index, (name, rows) in enumerate(given.items()):
        width, at = rows.shape[1], "as given"
        layer = Layer(
            index, name, "array", "layer", None, 0, (), (width,), features=width, read_at=at
        )
        layers.append(layer)
    return Layout(tuple(layers), None, reason(Note.NO_MODEL))


def _features_of(features: Any) -> dict[str, Tensor]:
    """Layer -> one row of numbers per example."""
    if not isinstance(features, Mapping):
        raise DomainError(
            "features: expected a mapping {layer: array}, got "
            f'{type(features).__name__}; pass {{"features": array}}'
        )
    if not features:
        raise ShapeError("features: expected at least one layer, got none")
    found: dict[str, Tensor] = {}
    for name, values in features.items():
        place = f"features[{name!r}]"
        rows = values.detach() if isinstance(values, Tensor) else _numbers(values, place)
        if rows.is_complex():
            raise DtypeError(
                f"{place}: expected real numbers, got complex numbers; pass real and imaginary "
                "parts as separate columns"
            )
        if rows.ndim < 2 or rows.numel() == 0:
            raise ShapeError(
                f"{place}: expected one row of features per example, got shape "
                f"{tuple(rows.shape)}; for a single feature pass reshape(-1, 1)"
            )
        exact = rows.dtype in (torch.float32, torch.float64)
        half = rows.is_floating_point() and not exact
        dtype = rows.dtype if exact else torch.float32 if half else torch.float64
        rows = rows.flatten(1).to(dtype)
        require_finite(**{place: rows})
        found[str(name)] = rows
    return found


def _numbers(values: Any, place: str) -> Tensor:
    array = np.asarray(values)
    if array.dtype.kind == "O":  # data frames with columns of several kinds
        with suppress(TypeError, ValueError):
            array = array.astype(np.float64)
    if array.dtype.kind not in "biuf":
        raise DtypeError(f"{place}: expected numbers, got {array.dtype}; encode text as numbers")
    if array.dtype.itemsize > 8 or (array.dtype.kind == "u" and array.dtype.itemsize > 1):
        array = array.astype(np.float64)
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))


def _labels_of(labels: Any) -> tuple[Tensor, list[str] | None]:
    """Labels as numbers, and the names of the classes where there are classes."""
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.dtype.kind in "OUS":
        return _classes_of_text(array)
    if array.dtype.kind not in "biuf":
        raise DtypeError(f"labels: expected numbers or text, got {array.dtype}")
    if array.ndim == 1 and array.dtype.kind != "f":
        codes, numbers = np.unique(array, return_inverse=True)
        return torch.from_numpy(numbers), [str(code) for code in codes.tolist()]
    return _numbers(array, "labels"), None


def _classes_of_text(array: np.ndarray) -> tuple[Tensor, list[str]]:
    plain = array.reshape(len(array), -1)[:, 0].tolist() if array.ndim else []
    missing = [place for place, label in enumerate(plain) if label is None or label != label]
    if missing:
        raise DomainError(
            f"labels: expected one for each example, got none for {len(missing)} of them, missing "
            f"at {missing[0]}; leave out examples without a label"
        )
    if array.size != len(plain) or not all(isinstance(item, (str, bytes, int)) for item in plain):
        raise DtypeError(
            "labels: expected one number or text for each example, got an array of "
            f"{array.dtype} of shape {array.shape}; convert with astype(str) or astype(float)"
        )
    if all(isinstance(item, int) for item in plain):
        codes, numbers = np.unique(np.array(plain, dtype=np.int64), return_inverse=True)
    else:
        codes, numbers = np.unique(np.array([str(item) for item in plain]), return_inverse=True)
    return torch.from_numpy(numbers), [str(code) for code in codes.tolist()]


def _require_same_examples(
    features: Mapping[str, Any], given: Mapping[str, Tensor], labels: Any, values: Tensor | None
) -> None:
    """Check for equal numbers of rows and, for pandas objects, for the same order."""
    parts = {f"features[{name!r}]": rows for name, rows in given.items()}
    require_same_length(**parts, **({} if values is None else {"labels": values}))
    named = {f"features[{name!r}]": rows for name, rows in features.items()} | {"labels": labels}
    indexed = {name: part.index for name, part in named.items() if hasattr(part, "to_numpy")}
    for place, index in indexed.items():
        first = next(iter(indexed))
        if not index.equals(indexed[first]):
            raise DomainError(
                f"{place}: expected the index of {first}, in the same order, got another; pass "
                f"{place}.loc[...] with the index of {first}, or .to_numpy() if rows correspond"
            )
