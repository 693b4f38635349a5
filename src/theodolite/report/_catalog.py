"""Which figures a page has for each family and over steps."""

from collections.abc import Callable, Iterable

from theodolite.records import FAMILIES
from theodolite.report._between import TRUTH, balance_mark, loss_figure, step_figure
from theodolite.report._curves import Curve, layer_panels, overlay
from theodolite.report._figure import Figure, Words
from theodolite.report._images import eigenvector_figure
from theodolite.report._maps import class_map, kernel_maps, step_maps
from theodolite.report._profiles import profile_figure
from theodolite.report._reading import Group
from theodolite.report._traces import Line

__all__ = ["CURVES", "family_figures", "headline_figure", "history_figures"]

CURVES = {
    curve.name: curve
    for curve in (
        Curve("representation", "alignment_curve", "threshold / √n", "label mass", chance=True),
        Curve("representation", "label_power", "singular value / √n", "share of label mass",
              logarithmic="x", marks=True, top_only=True),
        Curve("representation", "predicted_loss", "gradient-descent steps", "loss left",
              logarithmic="x"),
        Curve("covariance", "transfer", "σ of the data", "τ of the weights", logarithmic="x",
              smallest=1e-5),
        Curve("kernel", "spectrum", "mode", "share of the trace", logarithmic="xy", smallest=1e-8),
        Curve("kernel", "cumulative_power", "modes", "share of the target"),
    )
}  # fmt: skip

_DEPTH = " Faint lines are near the input, strong ones near the output."
_OMEGA = (
    "Ω is 1 when all vectors are equal and 0 when they have nothing in common. Circles: examples of"
    " one class. Dashes: all examples. The distance is what the class, not the layer, explains."
)


def family_figures(group: Group, family: str) -> list[Figure]:
    """The figures of one family, most telling first; those without numbers are left out."""
    return _present(_BUILDERS[family](group))


def history_figures(group: Group) -> list[Figure]:
    """Loss over steps and a layer-by-step map of each headline."""
    gradients = step_maps(group, "gradient", "omega_contrast")
    maps = [step_maps(group, family) for family in FAMILIES]
    return _present([loss_figure(group), step_figure(group, "kernel"), *maps, gradients])


def headline_figure(group: Group, family: str) -> Figure | None:
    """The headline of a family over layers."""
    words = FAMILIES[family]
    title = words.heading[0].upper() + words.heading[1:]
    reading = f"{words.question} Every point is a layer, from input to output."
    rows = [row for run in group.runs for row in run.last.record.contents.get("rows", [])]
    mine = [row for row in rows if row["measure"] == words.headline]
    if any(row.get("error") is not None for row in mine):
        reading += " Bars are standard errors."
    if any(row.get("null_mean") is not None for row in mine):
        reading += f" Grey: what {words.chance} give in the same run, mean ± 2 standard deviations."
    lines = [Line(words.headline)]
    if family == "kernel":
        title = "CKA to the target and to the input"
        reading += " Grey line: CKA to the input, how much of the raw data's geometry is left."
        lines = [Line(words.headline, "target"), Line("cka_input", "input", color="muted")]
        if group.measured(family, TRUTH):
            reading += " Dark line: CKA to the true labels, where the target has others."
            lines.insert(1, Line(TRUTH, "true labels", color="ink", with_null=False))
    extra = balance_mark if family == "tangent" else None
    if extra and "equilibrium_layer" in group.whole(family):
        reading += " Triangle: where theory puts the exact balance."
    return profile_figure(group, family, lines, Words(title, reading), extra=extra)


def _representation(group: Group) -> Iterable[Figure | None]:
    yield headline_figure(group, "representation")
    words = Words(
        "Predicted steps to halve the loss",
        "Fewer steps: easier to read out. A gap means that a linear read-out never gets there.",
    )
    yield profile_figure(group, "representation", [Line("predicted_steps")], words, log=True)
    words = Words(
        "Alignment curves",
        "A curve that stays high while the threshold grows means that the labels lie on the strong"
        " directions of the features: a linear read-out would learn them quickly. Grey, where it"
        " is drawn: the same for shuffled labels.",
    )
    yield layer_panels(group, CURVES["alignment_curve"], words)
    words = Words(
        "Label power over singular values",
        "Every mark is a direction of the features: how strong it is, and which share of the"
        " labels it carries. Marks high on the right: strong directions carry the labels.",
    )
    yield layer_panels(group, CURVES["label_power"], words)
    words = Words(
        "Predicted loss of gradient descent",
        "What the alignment predicts: the loss of a linear read-out trained on the features of each"
        f" layer.{_DEPTH}",
    )
    yield overlay(group, CURVES["predicted_loss"], words)


def _covariance(group: Group) -> Iterable[Figure | None]:
    yield headline_figure(group, "covariance")
    lines = [
        Line("misalignment", "layer", with_null=False),
        Line("random_basis_misalignment", "random bases", color="muted"),
        Line("misalignment_floor", "floor", color="muted", marks_only=True),
    ]
    words = Words(
        "Misalignment, random bases and floor",
        "Strong color: the layer. Grey: random bases for the same weights. Dash: the floor, what so"
        " many filters of a perfectly aligned layer would show by sampling alone.",
    )
    yield profile_figure(group, "covariance", lines, words)
    words = Words(
        "f(σ): weight put on each direction of the data",
        "From left to right, directions of the data that vary more; how much weight the layer puts"
        " on each. A random layer is flat. Directions below 10⁻⁵ of the strongest are left out.",
    )
    yield layer_panels(group, CURVES["transfer"], words)
    yield eigenvector_figure(group)


def _kernel(group: Group) -> Iterable[Figure | None]:
    yield headline_figure(group, "kernel")
    words = Words(
        "Participation ratio and modes for 95 % of the target",
        "Strong color: effective number of directions of the features. Grey: how many it takes to"
        " hold 95 % of the target.",
    )
    ratio = Line("participation_ratio", "participation ratio")
    modes = Line("modes_to_reach", "modes for 95 %", color="muted")
    yield profile_figure(group, "kernel", [ratio, modes], words, log=True)
    words = Words(
        "Cumulative power",
        "Share of the target within the first modes of a layer's kernel. A steep start means that"
        f" few directions suffice.{_DEPTH}",
    )
    yield overlay(group, CURVES["cumulative_power"], words)
    words = Words(
        "Spectra",
        f"Eigenvalues of each layer's kernel over their sum. Steep: few directions matter.{_DEPTH}",
    )
    yield overlay(group, CURVES["spectrum"], words)


def _tangent(group: Group) -> Iterable[Figure | None]:
    yield headline_figure(group, "tangent")
    words = Words(
        "Stable rank of the layer's tangent kernel",
        "How many directions training this layer can move at once. A low rank says that the kernel"
        " has few directions to offer, good or bad.",
    )
    yield profile_figure(group, "tangent", [Line("stable_rank")], words, log=True)
    words = Words(
        "Correlation with the target",
        "Alignment is this correlation over the square root of the stable rank: a layer can be"
        " aligned because its directions point at the target, or because it has few of them.",
    )
    yield profile_figure(group, "tangent", [Line("correlation")], words)
    for name, title, what in (
        ("forward_kernel", "Forward kernels", "inputs"),
        ("backward_kernel", "Backward kernels", "output gradients"),
    ):
        reading = (
            f"Similarity of the layer's {what} between examples, sorted by class, at the latest"
            " step with curves. Blocks on the diagonal: examples of one class look alike."
        )
        yield kernel_maps(group, name, Words(title, reading))


def _gradient(group: Group) -> Iterable[Figure | None]:
    yield headline_figure(group, "gradient")
    for title, inside, overall in (
        ("Ω of loss gradients", "in_class_omega", "omega"),
        ("Ω of features", "feature_omega_in_class", "feature_omega"),
    ):
        lines = [Line(inside, "within classes"), Line(overall, "all", marks_only=True)]
        yield profile_figure(group, "gradient", lines, Words(title, _OMEGA))
    for measure, reading in _OTHER_MEASURES.items():
        words = Words(measure.replace("_", " ").capitalize(), reading)
        yield profile_figure(group, "gradient", [Line(measure)], words)
    reading = "Ω within a class minus Ω of all pairs. Blank: the class says nothing; grey: below 0."
    words = Words("Contrast by class, loss gradients", reading)
    yield class_map(group, "class_contrast", words)
    words = Words("Contrast by class, features", "The same for the features of each layer.")
    yield class_map(group, "feature_class_contrast", words)


_OTHER_MEASURES = {
    "omega_contrast": "The same contrast for the loss gradients of this layer's weights.",
    "gradient_diversity": (
        "For comparison: 1/n when all n gradients are equal, 1 when they are orthogonal, more when"
        " they cancel."
    ),
    "stiffness": "For comparison: mean cosine of two gradients. Does a step for one help another?",
    "gradient_confusion": (
        "For comparison: smallest inner product of two gradients. Below 0, a step for one example"
        " hurts another."
    ),
}

_BUILDERS: dict[str, Callable[[Group], Iterable[Figure | None]]] = {
    "representation": _representation,
    "covariance": _covariance,
    "kernel": _kernel,
    "tangent": _tangent,
    "gradient": _gradient,
}


def _present(figures: Iterable[Figure | None]) -> list[Figure]:
    return [figure for figure in figures if figure is not None and figure.panels]
