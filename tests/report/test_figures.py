"""Every figure without a browser: valid for Plotly, every trace names where its numbers are."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import theodolite as th
from tests.report.made_records import history_run, sparse_run, survey_run, with_truth
from tests.report.paths import numbers_at
from theodolite.errors import UnknownNameError
from theodolite.records import FAMILIES, Record, Run, groups_of
from theodolite.report import plot
from theodolite.report._catalog import family_figures, headline_charts, history_figures
from theodolite.report._depth import Chart, blocks_of, depth_chart, difference_charts, headlines
from theodolite.report._maps import step_maps

RUNS = [
    history_run(name="true"),
    with_truth(history_run(name="shuffled", growth=0.3, seed=5)),
    survey_run(("conv1", "head"), name="CNN", shape=(3, 4, 4)),
]


def all_figures(runs):
    groups = groups_of(runs, 60)
    for group in groups:
        charts = headline_charts(group)
        parts = [f for family in FAMILIES for f in family_figures(group, family)]
        for figure in (*charts, *parts, *history_figures(group)):
            yield group, figure.figure() if isinstance(figure, Chart) else figure


FIGURES = list(all_figures(RUNS))


def same(found, wanted):
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    if wanted is None or not math.isfinite(wanted):
        return found is None
    return math.isclose(found, wanted, rel_tol=1e-4, abs_tol=1e-6) or (
        # Maps of kernels carry three digits.
        math.isclose(found, wanted, rel_tol=6e-3)
    )


@pytest.mark.parametrize(
    ("group", "figure"), FIGURES, ids=[f"{g.index}-{f.key}" for g, f in FIGURES]
)
def test_numbers_are_those_of_the_record_at_every_step(group, figure):
    for panel in figure.all_panels:
        for state in panel.states(group.steps)[0]:
            for numbers in state:
                for axis, source in numbers["meta"].get("source", {}).items():
                    found = numbers["error" if axis == "error_y" else axis]
                    assert same(list(found), numbers_at(RUNS, source)), (panel.title, axis)


def test_every_figure_says_how_to_read_it_and_keys_are_unique():
    seen = set()
    for group, figure in FIGURES:
        assert len(figure.words.reading) > 20
        assert (group.index, figure.key) not in seen
        seen.add((group.index, figure.key))


def chart_of(group, key):
    charts = [*headline_charts(group), *(f for fam in FAMILIES for f in family_figures(group, fam))]
    return next(f for f in charts if f.key == key)


def test_true_labels_are_drawn_for_the_run_that_has_others_and_for_no_other():
    group = groups_of(RUNS, 60)[0]
    chart = chart_of(group, "kernel-cka-target")
    runs = [run.name for run in group.runs]
    own, true = "CKA to labels", "CKA to the true labels"
    names = [trace.name for trace in chart.traces]
    assert names == [f"{own}, {runs[0]}", f"{own}, {runs[1]}", f"{true}, {runs[1]}"]
    drawn = chart.at(0)["traces"][2]
    assert drawn["y"] == pytest.approx([1 / 20, 1 / 21, 1 / 22], rel=1e-4)
    # A color for each run, a dash for each measure, and both are in the legend.
    assert chart.traces[1].color == chart.traces[2].color != chart.traces[0].color
    assert [trace.dash for trace in chart.traces] == ["solid", "solid", "dot"]
    assert [key.name for key in chart.legend][:4] == [*runs, own, true]
    (steps,) = (f for f in history_figures(group) if f.key == "lines-kernel")
    for layer, panel in enumerate(steps.panels):
        lines = {trace["name"]: trace for trace in panel.draw(None)}
        assert list(lines) == [f"{own}, {runs[0]}", f"{own}, {runs[1]}", f"{true}, {runs[1]}"]
        wanted = [step / (20 + layer) for step in (1, 2, 3, 4)]
        assert lines[f"{true}, {runs[1]}"]["y"] == pytest.approx(wanted, rel=1e-4)
    assert all("true " in figure.words.reading for figure in (chart, steps))
    untold = groups_of([history_run(name="a"), history_run(name="b", seed=3)], 60)[0]
    assert "true labels" not in chart_of(untold, "kernel-cka-target").words.reading
    assert len(chart_of(untold, "kernel-cka-target").traces) == 2


def test_a_headline_stands_above_and_not_again_in_its_section():
    group = groups_of(RUNS, 60)[0]
    above = {chart.key for chart in headline_charts(group)}
    below = {f.key for family in FAMILIES for f in family_figures(group, family)}
    assert len(above) == 4  # misalignment of one layer makes no chart
    assert not above & below


def test_blocks_are_the_parts_that_names_tell():
    def blocks(names):
        return [(b.name, b.stop - b.start) for b in blocks_of(names)]

    residual = ["conv1", *(f"layer{s}.{b}.conv{c}" for s in (1, 2, 3) for b in "01" for c in "12")]
    assert blocks([*residual, "fc"]) == [("conv1", 1)] + [(f"layer{s}", 4) for s in (1, 2, 3)] + [
        ("fc", 1)
    ]
    encoder = [f"encoder.layer.{i}.{part}" for i in range(6) for part in ("q", "k", "v", "out")]
    found = blocks(["embed", *encoder, "head"])
    assert found[1:3] == [("encoder.layer.0", 4), ("encoder.layer.1", 4)]
    assert blocks(["fc1", "fc2", "fc3"]) == [("fc1", 1), ("fc2", 1), ("fc3", 1)]
    assert blocks([str(i) for i in range(60)]) == []  # sixty names fit nowhere
    assert blocks([""]) == [("", 1)]


def test_shortcut_layers_are_open_circles_off_the_line():
    names = ["conv1", "layer1.0.conv1", "layer1.0.downsample.0", "layer1.1.conv1", "fc"]
    (chart, *_) = headline_charts(groups_of([survey_run(names)], 60)[0])
    drawing = chart.svg([0])
    assert drawing.count('class="open"') == 1
    assert drawing.count("<circle") == len(names)
    line = drawing.partition('class="line solid" d="M')[2].partition('"')[0]
    assert len(line.split()) == len(names) - 1
    assert "layer1.0.downsample.0: " in drawing


def test_chance_is_a_band_and_leaves_a_gap_where_it_is_not_known():
    run = survey_run([f"l{i}" for i in range(6)])
    for row in run.steps[0].contents["rows"]:
        if row["layer"] in ("l2", "l3") and row["measure"] == "cka_target":
            row["null_mean"] = row["null_sd"] = None
    chart = chart_of(groups_of([run], 60)[0], "kernel-cka-target")
    assert [x for x, _, _ in chart.at(None)["band"]] == pytest.approx(
        [(i + 0.5) / 6 for i in (0, 1, 4, 5)], abs=1e-5
    )
    assert [high - low for _, low, high in chart.at(None)["band"]] == pytest.approx([0.08] * 4)
    path = chart.svg([0]).partition('class="band" d="')[2].partition('"')[0]
    assert path.count("M") == path.count("Z") == 2
    assert chart.at(None)["traces"][0]["chance"] == ["0.030", "0.030", "", "", "0.030", "0.030"]


def test_differences_are_those_of_the_records_and_chance_adds_up():
    runs = [survey_run(name="a"), survey_run(name="b", seed=3)]
    (group,) = groups_of(runs, 60)
    charts = {chart.key: chart for chart in difference_charts(group, 60.0)}
    state = charts["difference-cka-target"].at(None)
    values = [
        [r["value"] for r in run.steps[0].contents["rows"] if r["measure"] == "cka_target"]
        for run in runs
    ]
    assert state["traces"][0]["y"] == pytest.approx(np.subtract(*values[::-1]), rel=1e-4)
    wide = 2 * 2**0.5 * 0.02
    for _, low, high in state["band"]:
        assert (low, high) == pytest.approx((-wide, wide), rel=1e-4)
    assert all(text[0] in "+−" for text in state["traces"][0]["text"])


def test_networks_of_different_depth_share_a_chart():
    groups = groups_of(RUNS, 60)
    chart = depth_chart(groups, *headlines(groups[0])[0], 60.0)
    assert [trace.name for trace in chart.traces] == [run.name for run in RUNS]
    assert [list(trace.places.values()) for trace in chart.traces][::2] == [
        pytest.approx([1 / 6, 3 / 6, 5 / 6]), pytest.approx([1 / 4, 3 / 4])
    ]  # fmt: skip


def test_runs_without_a_family_have_no_empty_panels():
    plain = history_run(name="trained")
    steps = []
    for record in history_run(name="held out", seed=3).steps:
        kept = {
            key: [entry for entry in record.contents[key] if entry["family"] == "kernel"]
            for key in ("rows", "curves")
        }
        steps.append(Record(record.contents | kept, record.arrays))
    runs = [plain, Run("held out", Record(plain.head.contents | {"name": "held out"}), (*steps,))]
    found = {figure.key: (group, figure) for group, figure in all_figures(runs)}
    several = {"kernel-spectrum": 2, "steps-kernel-cka-target": 2, "gradient-class-contrast": 1}
    several |= {"steps-tangent-tangent-alignment": 1, "representation-predicted-loss": 1}
    for key, count in several.items():
        assert len(found[key][1].panels) == count, key
    for group, figure in found.values():
        for panel in figure.all_panels:
            assert any(trace["meta"] for trace in panel.draw(group.steps[-1])), figure.key


def test_no_family_lacks_a_figure():
    keys = {figure.key for _, figure in FIGURES}
    expected = {
        "representation-alignment-curve", "representation-label-power",
        "representation-predicted-loss", "covariance-transfer", "covariance-eigenvectors",
        "covariance-misalignment", "kernel-cka-target", "kernel-cka-input",
        "kernel-spectrum", "kernel-cumulative-power", "tangent-tangent-alignment",
        "tangent-stable-rank", "tangent-correlation", "tangent-forward-kernel",
        "tangent-backward-kernel", "gradient-omega-contrast", "gradient-class-contrast",
        "gradient-gradient-diversity", "gradient-stiffness", "gradient-gradient-confusion",
    }  # fmt: skip
    maps = {f"steps-{family.key}-{family.headline}" for family in FAMILIES.values()}
    assert expected | {key.replace("_", "-") for key in maps} <= keys


def test_the_slider_sees_every_step_and_curves_where_they_were_kept():
    group = groups_of([history_run()], 60)[0]
    figures = {figure.key: figure for figure in family_figures(group, "kernel")}
    chart = chart_of(group, "kernel-cka-target").payload("0", group.steps)
    assert (len(chart["states"]), chart["frames"]) == (4, [0, 1, 2, 3])
    states, frames = figures["kernel-spectrum"].panels[0].states(group.steps)
    assert (len(states), frames) == (2, [0, 0, 0, 1])
    assert figures["kernel-spectrum"].finding(100) == "Curves of step 0."


def test_a_family_of_some_steps_is_drawn_at_its_own():
    group = groups_of([sparse_run(steps=tuple(range(0, 1000, 100)))], 60)[0]
    maps = {family: step_maps(group, family).panels[0] for family in ("kernel", "tangent")}
    columns = {family: panel.layout["xaxis"]["ticktext"] for family, panel in maps.items()}
    assert columns["kernel"] == [str(step) for step in range(0, 1000, 100)]
    assert columns["tangent"] == ["0", "400", "800", "900"]
    (trace,) = maps["tangent"].draw(None)
    assert all(value is not None for row in trace["z"] for value in row)
    profile = chart_of(group, "tangent-tangent-alignment")
    chart = profile.payload("0", group.steps)
    assert (len(chart["states"]), chart["frames"]) == (4, [0, 0, 0, 0, 1, 1, 1, 1, 2, 3])
    assert profile.finding(700).endswith(" Numbers are those of step 400.")
    assert "numbers of" not in profile.finding(800)
    features = step_maps(group, "gradient", "feature_omega_contrast").panels[0]
    assert features.layout["xaxis"]["ticktext"] == columns["kernel"]


def test_a_map_of_estimates_tells_their_errors_and_that_the_last_is_another():
    run = history_run(steps=(0, 10, 20))
    assert "random vectors" not in step_maps(groups_of([run], 60)[0], "tangent").words.reading
    for record, vectors, error in zip(run.steps, (4, 4, 32), (0.1, 0.5, 0.02), strict=True):
        record.contents["config"] = record.contents["config"] | {"sketch_vectors": vectors}
        for row in record.contents["rows"]:
            row.update({"method": "sketch", "error": error} if row["family"] == "tangent" else {})
    group = groups_of([run], 60)[0]
    told = "random vectors, 4 (errors up to 0.500) and 32 (errors up to 0.020). The last step"
    assert told in step_maps(group, "tangent").words.reading
    assert "random vectors" not in step_maps(group, "kernel").words.reading


def test_maps_of_many_classes_name_a_few_of_them():
    run = survey_run()
    contents, arrays = run.steps[0].contents, run.steps[0].arrays
    contents["data"]["classes"] = [f"kind {k}" for k in range(24)]
    arrays |= {key: np.arange(24) for key in arrays if key.endswith("forward_kernel/classes")}
    figures = {f.key: f for f in family_figures(groups_of([run], 60)[0], "tangent")}
    across = figures["tangent-forward-kernel"].panels[0].layout["xaxis"]
    assert len(across["ticktext"]) == 12
    assert across["ticktext"] == [f"kind {k:g}" for k in across["tickvals"]]
    assert across["tickvals"][0] == 0
    assert across["tickvals"][-1] == 23


@pytest.mark.parametrize("shape", [(1, 5, 5), (3, 4, 6), (2, 3, 3)], ids=["grey", "color", "two"])
def test_pictures_stand_four_to_a_row_in_pairs(shape):
    run = survey_run(shape=shape)
    arrays = run.steps[0].arrays
    figures = {f.key: f for f in family_figures(groups_of([run], 60)[0], "covariance")}
    (panel,) = figures["covariance-eigenvectors"].panels
    (trace,) = panel.draw(None)
    z, channels, height, width = np.array(trace["z"], dtype=float), *shape
    expected = np.full((len(z), 4 * (width + 1) - 1, 4 if channels == 3 else 1), np.nan)
    starts = {0: 0, 1: 2 * height + 2 + height // 3}  # the first four pairs, the other two
    for kind, name in enumerate(("patch_eigenvectors", "filter_eigenvectors")):
        for k, image in enumerate(arrays[f"covariance/0/{name}/images"]):
            top, left = starts[k // 4] + kind * (height + 1), k % 4 * (width + 1)
            shown = image if channels == 3 else image[:1]
            shown = (shown / np.abs(shown).max()).transpose(1, 2, 0)
            if channels == 3:
                opaque = np.full((height, width, 1), 255)
                shown = np.concatenate([np.rint(127.5 + 127.5 * shown), opaque], 2)
            expected[top : top + height, left : left + width] = shown
    if channels == 3:
        expected = np.nan_to_num(expected)
        z[z[..., 3] == 0] = 0  # transparent
    assert len(z) == starts[1] + 2 * height + 1
    np.testing.assert_allclose(z.reshape(expected.shape), expected, rtol=6e-3)
    texts = panel.layout["yaxis"]["ticktext"]
    assert texts == ["patches<br>1–4", "filters<br>1–4", "patches<br>5–6", "filters<br>5–6"]
    middles = [
        s + kind * (height + 1) + (height - 1) / 2 for s in starts.values() for kind in (0, 1)
    ]
    assert panel.layout["yaxis"]["tickvals"] == middles


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    "name",
    [*FAMILIES, "stable_rank", "alignment_curve", "spectrum", "forward_kernel", "class_contrast",
     "patch_eigenvectors"],
)  # fmt: skip
def test_plots_are_valid_and_their_colors_are_colors(name, theme):
    figure = plot(RUNS[:1], name, theme=theme)
    text = figure.to_json()
    assert figure.data
    assert figure.data[0].meta
    for token in (*FAMILIES, "surface", "ink", "muted", "null"):
        assert f'"color":"{token}"' not in text


def test_plot_of_a_number_of_the_whole_model_is_a_line_for_each_run():
    figure = plot(RUNS[:2], "loss")
    assert [trace.name for trace in figure.data] == ["loss, true", "loss, shuffled"]
    for run, trace in zip(RUNS, figure.data, strict=False):
        rows = [
            {r["measure"]: r for r in s.contents["rows"] if r["layer"] is None} for s in run.steps
        ]
        assert list(trace.y) == pytest.approx([row["loss"]["value"] for row in rows], rel=1e-4)
        assert list(trace.customdata) == [step.contents["step"] for step in run.steps]
        assert list(trace.x) == list(range(len(run.steps)))  # steps are spread evenly
    with pytest.raises(UnknownNameError, match="'loss'"):
        plot(RUNS[2:], "loss")  # one moment has no line


def test_plot_says_why_a_family_was_not_measured(generator):
    x = torch.randn(40, 4, generator=generator)
    found = th.survey(nn.Linear(4, 3), x, families=["representation", "covariance"])
    with pytest.raises(UnknownNameError, match=r"representation was not measured: .*no targets"):
        found.plot("alignment_area")


def test_plot_of_a_history_is_a_map_and_at_a_step_a_profile():
    assert plot(RUNS[:1], "stable_rank").data[0].type == "heatmap"
    profile = plot(RUNS[:1], "stable_rank", step=50)
    assert profile.data[0].type == "scatter"
    rows = RUNS[0].steps[1].contents["rows"]
    wanted = [row["value"] for row in rows if row["measure"] == "stable_rank"]
    assert list(profile.data[0].y) == pytest.approx(wanted, rel=1e-5)


def test_many_layers_fold_and_keep_their_first_and_last():
    group = groups_of([survey_run([f"block.{i}" for i in range(20)])], 60)[0]
    figure = next(
        f for f in family_figures(group, "representation") if f.key.endswith("alignment-curve")
    )
    assert [len(figure.panels), len(figure.more)] == [8, 12]
    assert [figure.panels[0].title, figure.panels[-1].title] == ["block.0", "block.19"]


def test_one_layer_is_drawn_over_steps_or_written_out_and_never_as_one_point():
    over_time = {f.key: f for f in family_figures(groups_of([history_run()], 60)[0], "covariance")}
    (panel,) = over_time["covariance-misalignment"].panels
    assert panel.layout["xaxis"]["title"]["text"] == "training step"
    single = {f.key: f for f in family_figures(groups_of([survey_run()], 60)[0], "covariance")}
    assert single["covariance-misalignment"].panels == ()
    assert single["covariance-misalignment"].finding(None).endswith("in fc1.")
    for group, figure in all_figures(RUNS):
        for panel in figure.all_panels:
            for trace in panel.draw(group.steps[-1]):
                lines = trace["type"] == "scatter" and "lines" in (trace["mode"] or "")
                assert not lines or len(trace["x"]) > 1, figure.key


def test_kernels_without_differences_are_left_out():
    run = survey_run()
    run.steps[0].arrays["tangent/2/backward_kernel/matrix"] = np.ones((24, 24))
    figures = {f.key: f for f in family_figures(groups_of([run], 60)[0], "tangent")}
    titles = [panel.title for panel in figures["tangent-backward-kernel"].panels]
    assert titles == ["fc1", "fc2"]
    assert len(figures["tangent-forward-kernel"].panels) == 3


def test_lines_of_several_runs_or_measures_have_a_legend():
    for group, figure in FIGURES:
        traces = [t for p in figure.panels for t in p.draw(group.steps[-1])]
        names = {t["name"] for t in traces if t["type"] == "scatter"}
        assert len(names) < 2 or figure.legend, figure.key


def test_a_slider_has_its_place_on_axes_of_steps():
    group = groups_of([history_run()], 60)[0]
    figures = {figure.key: figure for figure in history_figures(group)}
    assert figures["steps-loss"].panels[0].cursor == [0, 1, 2, 3]
    sparse = groups_of([sparse_run(steps=tuple(range(0, 1000, 100)))], 60)[0]
    (panel,) = step_maps(sparse, "tangent").panels
    assert panel.cursor == [0, 0, 0, 0, 1, 1, 1, 1, 2, 3]
