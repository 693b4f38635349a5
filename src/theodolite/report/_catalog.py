"""The figures of a page, by family and over steps, and single figures by name."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from theodolite.advice.captions import numbers_sentence
from theodolite.errors import UnknownNameError
from theodolite.records import FAMILIES, PROBES, Group
from theodolite.report._curves import Curve, layer_panels, overlay
from theodolite.report._depth import Chart, Line, headlines, layer_chart, legend_of
from theodolite.report._figures import HOUSE_STYLE, Figure, Words, with_ranges
from theodolite.report._maps import class_map, eigenvector_figure, kernel_maps, step_maps
from theodolite.report._steps import (
    TRUTH,
    kernel_steps,
    loss_figure,
    over_steps,
    whole_figure,
)
from theodolite.report.pages import LIGHT, plotly_text

STRIP = 66.0  # pixels: seven of them fit on a screen

_CURVES = {
    curve.name: curve
    for curve in (
        Curve("representation", "alignment_curve", "threshold / √n", "share of the labels",
              chance=True),
        Curve("representation", "label_power", "singular value / √n", "share of the labels",
              logarithmic="x", marks=True, top_only=True),
        Curve("representation", "predicted_loss", "gradient-descent steps", "loss left",
              logarithmic="x"),
        Curve("covariance", "transfer", "σ of a data direction",
              "τ of the weights on it", logarithmic="x", smallest=1e-5),
        Curve("kernel", "spectrum", "principal component", "share of the trace",
              logarithmic="xy", smallest=1e-8),
        Curve("kernel", "cumulative_power", "principal components", "share of the labels"),
    )
}  # fmt: skip
_KERNELS = ("forward_kernel", "backward_kernel")
_CLASS_MAPS = ("class_contrast", "feature_class_contrast", "class_omega")  # the last: old records
_IMAGES = ("patch_eigenvectors", "filter_eigenvectors")

_DEPTH = " Faint lines are near the input, strong ones near the output."
_OMEGA = (
    "Ω is 1 if all vectors are equal and 0 if they are unrelated. The gap between the line and the"
    " circles is due to the classes."
)


def headline_charts(group: Group) -> list[Chart]:
    """The first charts of a page: one for each headline with at least two layers."""
    return [
        chart
        for family, measure, _ in headlines(group)
        if len(group.measured(family, measure)) > 1
        and (chart := _headline(group, family, measure)) is not None
    ]


def family_figures(group: Group, family: str) -> list[Figure | Chart]:
    """The figures of one family below its headline, without empty ones."""
    return _with_content(group, _BUILDERS[family](group))


def history_figures(group: Group) -> list[Figure | Chart]:
    """Loss over steps, CKA layer by layer, and a layer-by-step map of each headline."""
    maps = [step_maps(group, family) for family in FAMILIES]
    gradients = step_maps(group, "gradient", "omega_contrast", "gradient contrast")
    return _with_content(group, [loss_figure(group), kernel_steps(group), *maps, gradients])


def _with_content(group: Group, figures: Iterable[Figure | Chart | None]) -> list[Figure | Chart]:
    kept = (f.with_content(group.steps) if isinstance(f, Figure) else f for f in figures)
    return [figure for figure in kept if figure is not None]


def _profile(
    group: Group, family: str, lines: Sequence[Line], words: Words, *, log: bool = False
) -> Figure | Chart | None:
    """A chart over layers; the numbers of a single layer are drawn over steps, or written out."""
    lines = [line for line in lines if group.measured(family, line.measure)]
    layers = {layer for line in lines for layer in group.measured(family, line.measure)}
    if len(layers) != 1:
        return layer_chart(group, family, lines, words, log=log)
    (layer,) = layers
    panel = over_steps(group, family, lines, layer, log=log)
    names = {line.measure: line.words for line in lines}
    return Figure(
        f"{family}-{lines[0].measure}".replace("_", "-"),
        words,
        () if panel is None else (panel,),
        finding=lambda step: numbers_sentence(group, family, names, layer, step),
        legend=legend_of(group, family, lines),
    )


def _headline(group: Group, family: str, measure: str) -> Chart | None:
    """The headline of a family over layers."""
    known = next(f for f in (*PROBES.values(), *FAMILIES.values()) if f.headline == measure)
    lines = [Line(measure, known.heading, chance=known.chance)]
    reading = known.reading
    if measure == FAMILIES["kernel"].headline and group.measured(family, TRUTH):
        reading += " CKA to the true labels is drawn if the run was trained on other labels."
        lines.append(Line(TRUTH, "CKA to the true labels", with_chance=False))
    title = known.heading[0].upper() + known.heading[1:]
    return layer_chart(group, family, lines, Words(title, reading), height=STRIP)


def _representation(group: Group) -> Iterable[Figure | Chart | None]:
    lines = [Line("neighbour_accuracy", "nearest neighbours", chance="the largest class")]
    words = Words(
        "Nearest-neighbour accuracy",
        "Share of examples whose class is that of their nearest neighbours in the layer.",
    )
    yield _profile(group, "representation", lines, words)
    words = Words(
        "Predicted steps to halve the loss",
        "Number of gradient-descent steps of a linear probe. Fewer steps: the probe learns faster."
        " A gap: it never halves its loss.",
    )
    steps = Line("predicted_steps", "steps to halve the loss")
    yield _profile(group, "representation", [steps], words, log=True)
    words = Words(
        "Alignment curves",
        "Share of the labels on directions that are at least as strong as the threshold. If the"
        " curve stays high, strong directions explain the labels, and a linear probe learns fast.",
    )
    yield layer_panels(group, _CURVES["alignment_curve"], words)
    words = Words(
        "Share of the labels on each direction",
        "Every mark is a direction of the features: its strength, and its share of the labels."
        " Marks high on the right: strong directions explain the labels.",
    )
    yield layer_panels(group, _CURVES["label_power"], words)
    words = Words(
        "Predicted loss of gradient descent",
        f"Predicted loss of a linear probe of each layer over training, in closed form.{_DEPTH}",
    )
    yield overlay(group, _CURVES["predicted_loss"], words)


def _covariance(group: Group) -> Iterable[Figure | Chart | None]:
    lines = [
        Line("misalignment", "misalignment", with_chance=False),
        Line("random_basis_misalignment", "random bases"),
        Line("misalignment_floor", "floor", marks_only=True),
    ]
    words = Words(
        "Misalignment, random bases and floor",
        "Random bases: the same weights in randomly rotated directions. Floor: the value of a"
        " perfectly aligned layer with the same number of filters. If the floor is as high as the"
        " value for random bases, the number means nothing, and the headline leaves the layer out.",
    )
    yield _profile(group, "covariance", lines, words)
    words = Words(
        "f(σ): weight put on each direction of the data",
        "Each point is a direction of the data. To the right: its standard deviation σ. Upwards:"
        " the standard deviation τ of the weights along it. A random layer is flat. Directions"
        " below 10⁻⁵ of the strongest are left out.",
    )
    yield layer_panels(group, _CURVES["transfer"], words)
    yield eigenvector_figure(group)


def _kernel(group: Group) -> Iterable[Figure | Chart | None]:
    words = Words("CKA to the input", "Similarity of the layer's kernel to that of the raw inputs.")
    yield _profile(group, "kernel", [Line("cka_input", "CKA to the input")], words)
    words = Words(
        "Number of directions of the features, and number that the labels need",
        "Participation ratio: the effective number of directions of the features. Components for"
        " 95 %: the number of principal components that explain 95 % of the labels. A gap: all"
        " components together explain less.",
    )
    ratio = Line("participation_ratio", "participation ratio")
    modes = Line("modes_to_reach", "components for 95 %")
    yield _profile(group, "kernel", [ratio, modes], words, log=True)
    words = Words(
        "Cumulative power",
        "Share of the labels that the first principal components of a layer explain. A steep start"
        f" means that few directions are enough.{_DEPTH}",
    )
    yield overlay(group, _CURVES["cumulative_power"], words)
    words = Words(
        "Spectra",
        f"Eigenvalues of each layer's kernel, as shares. Steep: few directions dominate.{_DEPTH}",
    )
    yield overlay(group, _CURVES["spectrum"], words)


def _tangent(group: Group) -> Iterable[Figure | Chart | None]:
    words = Words(
        "Stable rank of the layer's tangent kernel",
        "Effective number of directions in which training this layer moves the outputs. A low rank"
        " means few directions, whether they help or not.",
    )
    yield _profile(group, "tangent", [Line("stable_rank", "stable rank")], words, log=True)
    words = Words(
        "Correlation with the labels",
        "Alignment is this correlation divided by the square root of the stable rank. So a layer is"
        " aligned if its directions match the labels, or if it has few directions.",
    )
    yield _profile(group, "tangent", [Line("correlation")], words)
    for name, title, what in (
        ("forward_kernel", "Forward kernels", "inputs"),
        ("backward_kernel", "Backward kernels", "output gradients"),
    ):
        reading = (
            f"Similarity of the layer's {what} between examples, sorted by class."
            " Blocks on the diagonal: examples of one class are similar. Layers"
            " in which all examples are equal are left out."
        )
        yield kernel_maps(group, name, Words(title, reading))


def _gradient(group: Group) -> Iterable[Figure | Chart | None]:
    for title, inside, overall in (
        ("Agreement (Ω) of features", "feature_omega_in_class", "feature_omega"),
        ("Agreement (Ω) of loss gradients", "in_class_omega", "omega"),
    ):
        lines = [Line(inside, "within classes"), Line(overall, "all examples", marks_only=True)]
        yield _profile(group, "gradient", lines, Words(title, _OMEGA))
    for measure, (title, reading) in _OTHER_MEASURES.items():
        line = Line(measure, title.lower())
        yield _profile(group, "gradient", [line], Words(title, reading))
    reading = "Ω within a class minus Ω of all pairs. No colour: no difference. Grey: below 0."
    yield class_map(group, "feature_class_contrast", Words("Feature contrast by class", reading))
    words = Words("Gradient contrast by class", "The same for loss gradients.")
    yield class_map(group, "class_contrast", words)


_OTHER_MEASURES = {
    "omega_contrast": (
        "Gradient contrast",
        "Agreement of loss gradients within a class, minus that of all examples.",
    ),
    "gradient_diversity": (
        "Gradient diversity",
        "A related measure: 1/n if all n gradients are equal, 1 if they are orthogonal, more if"
        " they cancel.",
    ),
    "stiffness": (
        "Stiffness",
        "A related measure: the mean cosine of two gradients. Does a step for one help another?",
    ),
    "gradient_confusion": (
        "Gradient confusion",
        "A related measure: the smallest inner product of two gradients. Below 0, a step for one"
        " example hurts another.",
    ),
}

_BUILDERS: dict[str, Callable[[Group], Iterable[Figure | Chart | None]]] = {
    "representation": _representation,
    "covariance": _covariance,
    "kernel": _kernel,
    "tangent": _tangent,
    "gradient": _gradient,
}


def named_figure(group: Group, name: str, step: int | None) -> Figure:
    """The figure of a family, a measure or a curve.

    Raises:
        UnknownNameError: If the records hold nothing of that name.
    """
    found = _named(group, name, step)
    kept = found and found.with_content(group.steps)
    if kept is None or not kept.panels:
        skipped = {
            family: why
            for run in group.runs
            for family, why in run.last.record.contents.get("skipped", {}).items()
        }
        hint = "".join(f" {family} was not measured: {why}" for family, why in skipped.items())
        raise UnknownNameError("family, measure or curve", name, _known(group), hint)
    return kept


def _named(group: Group, name: str, step: int | None) -> Figure | None:
    headings = {
        family.headline: family.heading for family in (*PROBES.values(), *FAMILIES.values())
    }
    headings |= {measure: title.lower() for measure, (title, _) in _OTHER_MEASURES.items()}
    headings |= {
        "transfer": "strength of the weights along each direction of the data",
        "label_power": "share of the labels on each direction",
    }
    heading = headings.get(name, name.replace("_", " "))
    words = Words(f"{heading[:1].upper()}{heading[1:]}")
    if name in FAMILIES:
        chart = _headline(group, name, FAMILIES[name].headline)
        return None if chart is None else chart.figure()
    if name in _CURVES:
        return overlay(group, _CURVES[name], words)
    if name in _KERNELS:
        return kernel_maps(group, name, words)
    if name in _CLASS_MAPS:
        return class_map(group, name, words)
    if name in _IMAGES:
        return eigenvector_figure(group)
    for family in FAMILIES:
        if group.measured(family, name):
            if group.is_history and len(group.runs) == 1 and step is None:
                return step_maps(group, family, name)
            chart = layer_chart(group, family, [Line(name, heading)], words)
            return None if chart is None else chart.figure()
        if group.is_history and name in group.whole_model_measures(family):
            return whole_figure(group, family, name, words)
    return None


def _known(group: Group) -> list[str]:
    moments = [moment for run in group.runs for moment in run.moments]
    rows = {
        m
        for moment in moments
        for _, m, layer in moment.measures()
        if layer is not None or group.is_history
    }
    curves = {name for moment in moments for _, name, _ in moment.curve_names()}
    return [*FAMILIES, *sorted(rows), *sorted(curves)]


def plotly_figure(figure: Figure, step: int | None, palette: Mapping[str, str]) -> Any:
    """All panels of a figure as one Plotly figure, one above the other."""
    from plotly import graph_objects as go
    from plotly.subplots import make_subplots

    panels = figure.panels
    numbers = [[[series.at(step) for series in panel.series]] for panel in panels]
    layouts = with_ranges(panels, numbers, shared=figure.shared)
    titles = [plotly_text(panel.title) if panel.title else "" for panel in panels]
    drawn = make_subplots(rows=len(panels), cols=1, subplot_titles=titles)
    named: set[str] = set()  # panels repeat the names of runs: one entry of the legend is enough
    for row, (panel, layout) in enumerate(zip(panels, layouts, strict=True), start=1):
        for trace in panel.draw(step):
            trace.update(legendgroup=trace.name, showlegend=trace.name not in named)
            named.add(trace.name)
            drawn.add_trace(trace, row=row, col=1)
        drawn.update_xaxes(layout["xaxis"], row=row, col=1)
        drawn.update_yaxes(layout["yaxis"], row=row, col=1)
    named_lines = len(drawn.data) > 1 and drawn.data[0].type == "scatter"
    above = named_lines and len(panels) == 1  # beside one panel a legend takes half of a phone
    drawn.update_layout(
        template=HOUSE_STYLE,
        height=sum(panel.height for panel in panels) + (90 if titles[0] or above else 60),
        title={"text": figure.words.title, "font": {"size": 15}},
        margin={"l": 60, "r": 20, "t": 80 if titles[0] or above else 50, "b": 50},
        showlegend=named_lines,
    )
    if above:
        drawn.update_layout(legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"})
    colors = {LIGHT[name]: color for name, color in palette.items()}
    return go.Figure(_recolored(drawn.to_plotly_json(), colors))


def _recolored(value: Any, colors: Mapping[str, str]) -> Any:
    """A figure's dictionaries with the colours of one palette exchanged for those of another."""
    if isinstance(value, Mapping):
        return {key: _recolored(item, colors) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_recolored(item, colors) for item in value]
    return colors.get(value, value) if isinstance(value, str) else value
