"""What a browser has drawn, turned back into numbers and compared with the records.

Nothing here asks Plotly for data: positions come from the SVG, texts from its text elements, and
the way back from pixels to numbers from the ticks and their labels or the declared range.
"""

import math
import re

from tests.report.paths import layers_at, numbers_at

PAD = 6  # pixels above and below what a chart over depth draws

TOLERANCE = 0.02  # pixels; SVG paths are written to a hundredth

READ = r"""
const panels = [];
const paths = (group, selector) =>
  [...group.querySelectorAll(selector)].map((path) => path.getAttribute("d"));
for (const element of document.querySelectorAll(".plot")) {
  if (!element.querySelector(".main-svg") || element.offsetWidth === 0) continue;
  const clip = element.querySelector("clipPath[id$=xyplot] rect");
  const area = element.querySelector(".bglayer .bg, .nsewdrag").getBoundingClientRect();
  const place = (node) => {
    const [x, y] = node.getAttribute("transform").match(/-?\d[\d.]*(?:e-?\d+)?/g).map(Number);
    return [x, y];
  };
  const traces = element.data.map((trace) => {
    const group = element.querySelector(`.trace${trace.uid}`);
    if (!group || trace.type !== "scatter") return null;
    return {
      points: [...group.querySelectorAll(".points path")].map(place),
      lines: paths(group, ".lines path.js-line"),
      errors: paths(group, "path.yerror"),
    };
  });
  const middles = (selector) => [...element.querySelectorAll(selector)].map((text) => {
    const box = text.getBoundingClientRect();
    return [box.x + box.width / 2 - area.x, box.y + box.height / 2 - area.y, text.textContent];
  });
  panels.push({
    id: element.id, traces, area: [area.width, area.height],
    width: Number(clip.getAttribute("width")), height: Number(clip.getAttribute("height")),
    cells: middles(".heatmap-label text, text.heatmap-label"),
    xticks: middles(".xtick text"), yticks: middles(".ytick text"),
    meta: element.data.map(
      ({ meta, mode, type }) => ({ source: meta?.source ?? null, mode, type })),
    axes: ["xaxis", "yaxis"].map((name) => ({
      range: element.layout[name].range, type: element.layout[name].type,
      written: Boolean(element.layout[name].ticktext) })),
  });
}
return panels;
"""


CHARTS = """
const charts = JSON.parse(document.getElementById("data").textContent).charts;
return [...document.querySelectorAll(".canvas")].filter((e) => e.offsetWidth > 0).map((e) => {
  const svg = e.querySelector("svg.depth");
  const { log, height } = charts[e.dataset.chart];
  const traces = [...svg.querySelectorAll(".trace")].map((trace) => ({
    where: JSON.parse(trace.dataset.where),
    places: [...trace.querySelectorAll("circle")].map((c) => [
      parseFloat(c.getAttribute("cx")), Number(c.getAttribute("cy"))]),
    line: trace.querySelector(".line")?.getAttribute("d") ?? null,
  }));
  return { id: e.dataset.chart, log, height, limits: JSON.parse(svg.dataset.limits), traces };
});
"""


def chart_mismatches(browser, runs):
    """Points of charts over depth that stand elsewhere than their numbers say."""
    found = []
    charts = browser.script(CHARTS)
    assert charts, "no chart is drawn"
    for chart in charts:
        if "-difference-" in chart["id"]:
            continue
        low, high = (math.log(v) if chart["log"] else v for v in chart["limits"])
        for trace in chart["traces"]:
            run, step, rows = trace["where"]
            record = runs[run].steps[step].contents["rows"]
            names = [layer["name"] for layer in runs[run].head.contents["layers"]]
            wanted = []
            for place, index in enumerate(rows):
                value = math.nan if index is None else record[index]["value"]
                if math.isfinite(value) and (value > 0 or not chart["log"]):
                    if record[index]["layer"] != names[place]:
                        found.append(f"{chart['id']}: a marker of another layer at {names[place]}")
                    share = ((math.log(value) if chart["log"] else value) - low) / (high - low)
                    at = PAD + (1 - share) * (chart["height"] - 2 * PAD)
                    wanted.append((100 * (place + 0.5) / len(names), at))
            if len(wanted) != len(trace["places"]):
                found.append(f"{chart['id']}: {len(trace['places'])} points for {len(wanted)}")
                continue
            for (x, y), (a, b) in zip(trace["places"], wanted, strict=True):
                if abs(x - a) > 0.006 or abs(y - b) > 0.011:
                    found.append(f"{chart['id']}: marker at {x}, {y}, expected {a:.2f}, {b:.2f}")
    return found


def mismatches(browser, runs):
    """Every place where the page shows something else than the records say."""
    found = chart_mismatches(browser, runs)
    panels = browser.script(READ)
    assert panels, "nothing is drawn"
    checked = 0
    for panel in panels:
        found += [f"{panel['id']}: axis {text}" for text in _axes(panel)]
        for i, meta in enumerate(panel["meta"]):
            for text in _trace(panel, i, meta, runs):
                found.append(f"{panel['id']} trace {i}: {text}")
            checked += meta["source"] is not None
    assert checked >= len(panels) // 2, "most traces must name their numbers"
    return found


def _pixel(value, axis, length, flip):
    """Where an axis puts a number, from its range alone."""
    low, high = axis["range"]
    if axis["type"] == "log":
        value = math.log10(value)
    share = (value - low) / (high - low)
    return length * (1 - share if flip else share)


def _axes(panel):
    """Numbers on ticks stand where the range says."""
    for name, axis, length in zip(
        "xy", panel["axes"], (panel["width"], panel["height"]), strict=True
    ):
        for x, y, text in panel[f"{name}ticks"]:
            number = re.fullmatch(r"[−-]?[\d.]+", text)
            if axis["type"] != "linear" or axis["written"] or not number:
                continue
            at = _pixel(float(text.replace("−", "-")), axis, length, name == "y")
            # Middles of texts: good to a pixel or two, not more.
            if abs((x, y)["xy".index(name)] - at) > 3:
                yield f"{name}: {text} is drawn at {(x, y)}, expected {at:.1f}"


def _trace(panel, i, meta, runs):
    source = meta["source"]
    if source is None:
        return
    if meta["type"] == "heatmap":
        yield from _cells(panel, numbers_at(runs, source["z"]))
        yield from _row_names(panel, source["z"], runs)
        return
    drawn = panel["traces"][i]
    wanted = {axis: numbers_at(runs, where) for axis, where in source.items() if axis in "xy"}
    if drawn is None:
        if any(_drawable(value, panel["axes"][1]) for value in wanted.get("y", [])):
            yield "is not drawn"
        return
    if "markers" in meta["mode"]:
        yield from _names(panel, source, drawn["points"], runs)
        yield from _positions(panel, wanted, drawn["points"], "marker")
    if "lines" in meta["mode"]:
        vertices = [pair for path in drawn["lines"] for pair in _vertices(path)]
        count = max(map(len, wanted.values()))
        if vertices or count > 1:
            yield from _positions(panel, wanted, vertices, "vertex")
    if "error_y" in source and "y" in wanted:
        yield from _error_bars(
            panel, wanted["y"], numbers_at(runs, source["error_y"]), drawn["errors"]
        )


def _names(panel, source, points, runs):
    """A marker above the name of a layer shows a number of that layer."""
    # Over relative depth and over steps the axis does not name layers.
    by_layer = panel["axes"][0]["written"] and not re.search("-depth-|-lines-", panel["id"])
    if by_layer and source.get("y", {}).get("path", [""])[0] == "rows":
        layers = layers_at(runs, source["y"])
        for (x, _), layer in zip(points, layers, strict=False):
            below = [text for at, _, text in panel["xticks"] if abs(at - x) < 1]
            if len(layers) == len(points) and below and "…" not in below[0] and below[0] != layer:
                yield f"a marker of {layer!r} stands above {below[0]!r}"


def _row_names(panel, sources, runs):
    """A row of a map beside the name of a layer shows numbers of that layer."""
    height = panel["area"][1] / len(sources)
    for i, source in enumerate(sources):
        (layer,) = layers_at(runs, source)
        beside = [text for _, y, text in panel["yticks"] if abs(y - (i + 0.5) * height) < 3]
        if panel["cells"] and beside and "…" not in beside[0] and beside[0] != layer:
            yield f"a row of {layer!r} stands beside {beside[0]!r}"


def _vertices(path):
    assert re.fullmatch(r"[ML\d.,e-]*", path), path
    return [tuple(map(float, pair.split(","))) for pair in re.split("[ML]", path) if pair]


def _drawable(value, axis):
    known = value is not None and math.isfinite(value)
    return known and (axis["type"] != "log" or value > 0)


def _positions(panel, wanted, found, what):
    """Markers or vertices, in order, against numbers; along axes that name their numbers."""
    axes = dict(zip("xy", panel["axes"], strict=True))
    rows = list(zip(*wanted.values(), strict=True))
    rows = [row for row in rows if all(map(_drawable, row, (axes[a] for a in wanted)))]
    if len(rows) != len(found):
        yield f"{len(found)} {what} positions for {len(rows)} numbers"
        return
    for row, place in zip(rows, found, strict=True):
        for name, value in zip(wanted, row, strict=True):
            length = panel["width"] if name == "x" else panel["height"]
            expected = _pixel(value, axes[name], length, name == "y")
            at = place["xy".index(name)]
            if abs(at - expected) > TOLERANCE:
                yield f"{what} at {name}={at:.2f}, expected {expected:.2f} for {value:.6g}"


def _error_bars(panel, values, errors, paths):
    axis = panel["axes"][1]
    pairs = [
        (v, e) for v, e in zip(values, errors, strict=True) if _drawable(v, axis) and e is not None
    ]
    if len(pairs) != len(paths):
        yield f"{len(paths)} error bars for {len(pairs)} numbers"
        return
    for (value, error), path in zip(pairs, paths, strict=True):
        top = float(re.match(r"M[^,]+,([\d.-]+)", path)[1])
        bottom = float(re.search(r"V([\d.-]+)", path)[1])
        for at, end in ((top, value + error), (bottom, value - error)):
            if (
                axis["type"] != "log"
                and abs(at - _pixel(end, axis, panel["height"], True)) > TOLERANCE
            ):
                yield f"error bar ends at {at}, expected {end:.6g}"


def _cells(panel, values):
    """Texts of a map by the cell that they stand in."""
    if not panel["cells"]:
        return
    down, across = len(values), len(values[0])
    width, height = panel["area"]
    seen = {}
    for x, y, text in panel["cells"]:
        seen[int(y / height * down), int(x / width * across)] = text
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            text = seen.get((i, j), "")
            if value is None or not math.isfinite(value):
                if text:
                    yield f"cell {i}, {j} shows {text!r} for an undefined number"
                continue
            decimals = len(text.partition(".")[2])
            shown = re.fullmatch(r"[−-]?[\d.]+", text)
            if not shown or abs(float(text.replace("−", "-")) - value) > 0.5001 * 10**-decimals:
                yield f"cell {i}, {j} shows {text!r} for {value:.6g}"
