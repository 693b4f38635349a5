"""Figures 7 and 8, drawn from the runs of the judged setting."""

import numpy as np

from theodolite_papers.canatar2022._tangent_claims import main_setting
from theodolite_papers.ledger import Line, Panel, Results, mean_and_error

__all__ = ["draw"]

_SETS = {"train": "training set", "test": "test set"}
_PAIRS = {
    "ntk_target": "tangent kernel and target",
    "ntk_network": "tangent kernel and outputs",
    "network_target": "outputs and target",
}


def draw(runs: Results) -> list[Panel]:
    """Accuracy, alignments, spectra and cumulative power of the judged setting; both terms."""
    found = {run.point["setting"] for run in runs}
    preferred = (main_setting(runs.runs[0].size), "standard", "ntk", "literal")
    chosen = runs.where(setting=next(name for name in preferred if name in found))
    return [
        _accuracies(runs),
        *(_alignments(chosen, name) for name in _SETS),
        *(_terms(chosen, name) for name in _SETS),
        *(panel for name in _SETS for panel in _modes(chosen, name)),
    ]


def _accuracies(runs: Results) -> Panel:
    lines = []
    for color, setting in enumerate(dict.fromkeys(run.point["setting"] for run in runs)):
        part = runs.where(setting=setting)
        for name, words in _SETS.items():
            mean, error = mean_and_error(100 * part.array(f"accuracy_{name}"))
            x = part.runs[0].arrays["accuracy_epochs"]
            label = f"{setting}, {words}"
            lines.append(Line(label, x, mean, error, dashed=name == "test", color=color))
    return Panel("Figure 7, left", lines, "epoch", "accuracy in %")


def _alignments(runs: Results, name: str) -> Panel:
    lines = [_curve(runs, f"{key}_{name}", label) for key, label in _PAIRS.items()]
    lines.append(_curve(runs, f"ntk_target_debiased_{name}", "tangent, target, debiased", True))
    lines.append(_curve(runs, f"ntk_target_null_{name}", "tangent, permuted labels", True))
    return Panel(f"Figure 7, right, {_SETS[name]}", lines, "epoch + 1", "CKA", "x")


def _terms(runs: Results, name: str) -> Panel:
    lines = [
        _curve(runs, f"norm_share_{name}", "share of the last layer's kernel in the norm"),
        _curve(runs, f"trace_share_{name}", "its share in the trace"),
        _curve(runs, f"readout_target_{name}", "CKA of the last layer's kernel", True),
        _curve(runs, f"gradient_target_{name}", "CKA of the gradient term", True),
    ]
    return Panel(f"Figure 8, terms, {_SETS[name]}", lines, "epoch + 1", "share or CKA", "x")


def _curve(runs: Results, key: str, label: str, dashed: bool = False) -> Line:
    mean, error = mean_and_error(runs.array(key))
    return Line(label, runs.runs[0].arrays["epochs"] + 1, mean, error, dashed=dashed)


def _modes(runs: Results, name: str) -> list[Panel]:
    epochs, modes = runs.runs[0].arrays["epochs"], runs.runs[0].arrays["modes"]
    times = sorted({0, len(epochs) // 2, len(epochs) - 1})
    spectra, powers = [], []
    for time in times:
        label = f"epoch {epochs[time]:g}"
        eta = np.log(np.maximum(runs.array(f"eigenvalues_{name}")[:, time], 1e-30))
        spectra.append(Line(label, modes, np.exp(eta.mean(0))))
        mean, error = mean_and_error(runs.array(f"power_{name}")[:, time])
        powers.append(Line(label, modes, mean, error))
    words = _SETS[name]
    return [
        Panel(f"Figure 8, spectrum, {words}", spectra, "mode", "eigenvalue", "xy"),
        Panel(f"Figure 8, target, {words}", powers, "mode", "cumulative power", "x"),
    ]
