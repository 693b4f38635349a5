"""Two models and data in, a comparison out: surveys of both, and CKA of every pair of layers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from theodolite._distributed import Processes
from theodolite.engine import Features, features, model_device, untouched, unwrap
from theodolite.errors import DomainError
from theodolite.measures import kernel
from theodolite.surveys.options import SurveyOptions
from theodolite.surveys.probe import Probe, draw_probe, fit_inputs, reusable
from theodolite.surveys.results import Comparison, Survey, compare
from theodolite.surveys.run import survey

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["compare_models"]


def compare_models(
    first: nn.Module,
    second: nn.Module,
    data: Any,
    *,
    names: Sequence[str] | None = None,
    options: Any = None,
    **keywords: Any,
) -> Comparison:
    """Surveys of both models on the same examples, with CKA of every pair of their layers.

    Args:
        first: any module.
        second: any module that takes the same data.
        data: as :func:`theodolite.survey` takes it, in an order that does not change.
        names: what to call the models.
        options: of both surveys.
        **keywords: of both surveys.

    Raises:
        DomainError: If the data come in another order the second time.
    """
    unused = ("held_out", "targets", "truth", "progress")
    chosen = SurveyOptions.of(options, **{k: v for k, v in keywords.items() if k not in unused})
    processes = Processes.of(chosen.group)
    targets = keywords.get("targets")
    everything = reusable(data, chosen, targets, empty=not processes.alone)
    if chosen.examples is not None:  # the batches that were read hold them
        keywords = keywords | {"targets": None}
    found = [survey(model, everything, options=options, **keywords) for model in (first, second)]
    probe = draw_probe(everything, chosen, processes, targets=keywords.get("targets"))
    hashes = {entry.record.contents["data"]["probe_hash"] for entry in found}
    if hashes != {probe.digest}:
        raise DomainError(
            "data: expected the same examples for both models, got others the second time; pass a "
            "loader with shuffle=False, or (inputs, targets)"
        )
    size = chosen.sizes["kernel"]
    few = len(probe) if size is None else size
    read = [
        _features(m, probe, few, s, chosen) for m, s in zip((first, second), found, strict=True)
    ]
    together = compare(*found, names=names or ["first", "second"])
    return replace(together, cka=_cka(*read))


def _features(
    model: nn.Module, probe: Probe, count: int, found: Survey, options: SurveyOptions
) -> Features:
    """Features of the layers of a survey, read where it reads them, of the first examples."""
    layers = found.record.contents["layers"]
    names = [layer["name"] for layer in layers if layer["output_shape"] is not None]
    inner = unwrap(model)
    with untouched(inner):
        inner.eval()
        place = options.device or model_device(inner)
        here = replace(probe, batch=probe.batch.take(slice(0, count)).to(place))
        cast = fit_inputs(inner, here, options).cast
        batch = here.batch if cast is None else cast(here.batch)
        return features(inner, batch, names, options.pool or "flatten", read=options.read)


def _cka(first: Features, second: Features) -> "pd.DataFrame":
    """Layers of the first model in rows, of the second in columns."""
    import pandas as pd

    parts: list[Tensor] = [rows.cpu() for rows in (*first.values(), *second.values())]
    between = kernel.cka_matrix(parts).between[: len(first), len(first) :]
    return pd.DataFrame(between.numpy(), index=list(first), columns=list(second))
