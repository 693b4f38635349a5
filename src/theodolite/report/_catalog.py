"""Which figures a page has: for each family, over steps, and between networks."""

from collections.abc import Callable, Iterable

from theodolite.report._between import balance_mark, loss_figure
from theodolite.report._curves import Curve, layer_panels, overlay
from theodolite.report._families import FAMILIES
from theodolite.report._figure import Figure
from theodolite.report._images import eigenvector_figure
from theodolite.report._maps import class_map, kernel_maps, step_maps
from theodolite.report._profiles import Line, profile_figure
from theodolite.report._reading import Group

__all__ = ["CURVES", "family_figures", "headline_figure", "history_figures"]

CURVES = {
    curve.name: curve
    for curve in (
        Curve("representation", "alignment_curve", "threshold / √n", "label mass kept", chance=True),
        Curve("representation", "label_power", "singular value / √n", "share of label mass",
              logarithmic="x", marks=True, top_only=True),
        Curve("representation", "predicted_loss", "gradient-descent steps of a linear read-out",
              "loss left", logarithmic="x"),
        Curve("covariance", "transfer", "σ of the data direction", "τ of the weights",
              logarithmic="x"),
        Curve("kernel", "spectrum", "mode", "share of the trace", logarithmic="xy"),
        Curve("kernel", "cumulative_power", "modes", "share of the target"),
    )
}  # fmt: skip


def family_figures(group: Group, family: str) -> list[Figure]:
    """The figures of one family, most telling first; those without numbers are left out."""
    return _present(_BUILDERS[family](group))


def history_figures(group: Group) -> list[Figure]:
    """Loss over steps and a layer-by-step map of each headline."""
    features = step_maps(group, "gradient", "feature_omega_contrast")
    return _present(
        [loss_figure(group), *(step_maps(group, family) for family in FAMILIES), features]
    )


def headline_figure(group: Group, family: str) -> Figure | None:
    """The headline of a family over layers."""
    words = FAMILIES[family]
    reading = (
        f"{words.meaning} Every point is a layer, from input to output; bars are standard errors."
        f" The grey bar is what {words.null} give in the same run (mean ± 2 standard deviations):"
        " inside it there is nothing to see."
    )
    title = words.short[0].upper() + words.short[1:]
    lines = [Line(words.headline)]
    if family == "kernel":
        title, reading = (
            "CKA to the target and to the input",
            reading
            + (" Thin grey: CKA to the input, how much of the raw data's geometry is left."),
        )
        lines = [Line(words.headline, "target"), Line("cka_input", "input", color="muted")]
    extra = balance_mark if family == "tangent" else None
    if any(run.last.index("tangent", "equilibrium_layer", None) is not None for run in group.runs):
        reading += " Triangle: where theory puts the exact balance." if family == "tangent" else ""
    return profile_figure(group, family, lines, title=title, reading=reading, extra=extra)


def _representation(group: Group) -> Iterable[Figure | None]:
    yield headline_figure(group, "representation")
    yield layer_panels(
        group, CURVES["alignment_curve"], title="Alignment curves",
        reading="A curve that stays high while the threshold grows means that the labels lie on the"
        " strong directions of the features: a linear read-out would learn them quickly. Grey: the"
        " same for shuffled labels.",
    )  # fmt: skip
    yield layer_panels(
        group, CURVES["label_power"], title="Label power over singular values",
        reading="Every mark is a direction of the features: how strong it is, and which share of the"
        " labels it carries. Marks high on the right: strong directions carry the labels.",
    )  # fmt: skip
    yield overlay(
        group, CURVES["predicted_loss"], title="Predicted loss of gradient descent",
        reading="What the alignment predicts: the loss of a linear read-out trained on each layer's"
        " features. Faint lines are near the input, strong ones near the output.",
    )  # fmt: skip
    yield profile_figure(
        group, "representation", [Line("predicted_steps")], title="Predicted steps to halve the loss",
        reading="Fewer steps: easier to read out. A gap means that the linear read-out never gets there.",
        log=True,
    )  # fmt: skip


def _covariance(group: Group) -> Iterable[Figure | None]:
    yield headline_figure(group, "covariance")
    lines = [
        Line("misalignment"),
        Line("random_basis_misalignment", "random bases", color="muted"),
        Line("misalignment_floor", "floor", color="muted", marks_only=True),
    ]
    yield profile_figure(
        group, "covariance", lines, title="Misalignment, random bases and floor",
        reading="Strong color: the layer. Grey: random bases for the same weights. Dash: the floor, what so"
        " many filters of a perfectly aligned layer would show by sampling alone.",
    )  # fmt: skip
    yield layer_panels(
        group, CURVES["transfer"], title="f(σ): weight put on each direction of the data",
        reading="Every point is a direction of the data: how much it varies (right: more) and how much"
        " weight the layer puts on it. A random layer is flat.", columns=2,
    )  # fmt: skip
    yield eigenvector_figure(group)


def _kernel(group: Group) -> Iterable[Figure | None]:
    yield headline_figure(group, "kernel")
    yield overlay(
        group, CURVES["cumulative_power"], title="Cumulative power",
        reading="Share of the target within the first modes of a layer's kernel. A steep start means few"
        " directions suffice. Faint lines are near the input, strong ones near the output.",
    )  # fmt: skip
    yield overlay(
        group, CURVES["spectrum"], title="Spectra",
        reading="Eigenvalues of each layer's kernel over their sum. Steep: few directions matter."
        " Faint lines are near the input, strong ones near the output.",
    )  # fmt: skip
    yield profile_figure(
        group, "kernel", [Line("participation_ratio", "participation ratio"),
                          Line("modes_to_reach", "modes for 95 %", color="muted")],
        title="Participation ratio and modes for 95 % of the target", log=True,
        reading="Strong color: effective number of directions of the features. Grey: how many it takes to"
        " hold 95 % of the target.",
    )  # fmt: skip


def _tangent(group: Group) -> Iterable[Figure | None]:
    yield headline_figure(group, "tangent")
    yield profile_figure(
        group, "tangent", [Line("stable_rank")], title="Stable rank of the layer's tangent kernel",
        reading="How many directions training this layer can move at once. A low rank says that the kernel"
        " has few directions to offer, good or bad.", log=True,
    )  # fmt: skip
    yield profile_figure(
        group, "tangent", [Line("correlation")], title="Correlation with the target",
        reading="Alignment is this correlation over the square root of the stable rank: a layer can be"
        " aligned because its directions point at the target, or because it has few of them.",
    )  # fmt: skip
    for name, title in (
        ("forward_kernel", "Forward kernels"),
        ("backward_kernel", "Backward kernels"),
    ):
        word = "inputs" if name == "forward_kernel" else "output gradients"
        yield kernel_maps(
            group, name, title=title,
            reading=f"Similarity of the layer's {word} between examples, sorted by class, at the latest step"
            " with curves. Blocks on the diagonal: examples of one class look alike.",
        )  # fmt: skip


def _gradient(group: Group) -> Iterable[Figure | None]:
    yield headline_figure(group, "gradient")
    for title, inside, overall in (
        ("Ω of loss gradients", "in_class_omega", "omega"),
        ("Ω of features", "feature_omega_in_class", "feature_omega"),
    ):
        yield profile_figure(
            group, "gradient", [Line(inside, "within classes"), Line(overall, "all", marks_only=True)],
            title=title,
            reading="Ω is 1 when all vectors are equal and 0 when they have nothing in common. Circles: examples"
            " of one class. Dashes: all examples. The distance is what the class, not the layer, explains.",
        )  # fmt: skip
    yield class_map(
        group, "class_contrast", title="Contrast by class, loss gradients",
        reading="Ω within a class minus Ω of all pairs. Blank: the class says nothing; grey: below 0.",
    )  # fmt: skip
    yield class_map(
        group, "feature_class_contrast", title="Contrast by class, features",
        reading="The same for the features of each layer.",
    )  # fmt: skip
    for measure, title, reading in (
        ("gradient_diversity", "Gradient diversity",
         "1/n when all n gradients are equal, 1 when they are orthogonal, more when they cancel."),
        ("stiffness", "Stiffness", "Mean cosine between gradients of two examples: does a step for one help another?"),
        ("gradient_confusion", "Gradient confusion",
         "Smallest inner product of two gradients: below 0, a step for one example hurts another."),
    ):  # fmt: skip
        yield profile_figure(group, "gradient", [Line(measure)], title=title, reading=reading)


_BUILDERS: dict[str, Callable[[Group], Iterable[Figure | None]]] = {
    "representation": _representation,
    "covariance": _covariance,
    "kernel": _kernel,
    "tangent": _tangent,
    "gradient": _gradient,
}


def _present(figures: Iterable[Figure | None]) -> list[Figure]:
    return [figure for figure in figures if figure is not None and figure.panels]
