"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const colorKeys = new Set(["color", "bgcolor", "fillcolor", "gridcolor", "linecolor", "bordercolor",
    "tickcolor", "paper_bgcolor", "plot_bgcolor", "colorscale"]);
  const config = { displayModeBar: false, responsive: true };
  const panels = [];            // {element, spec, group, stale, drawn}
  const position = data.steps.map((steps) => steps.length - 1);
  let theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  let current = 0;
  let pending = 0;

  // Figures carry the colors of the light theme: Plotly knows no CSS variables.
  function colored(value, key) {
    if (theme === "light") return value;
    if (Array.isArray(value)) {
      const deeper = colorKeys.has(key) || (value.length > 0 && value[0] !== null
        && typeof value[0] === "object" && !Array.isArray(value[0]));
      return deeper ? value.map((item) => colored(item, key)) : value;
    }
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, colored(v, k)]));
    }
    return colorKeys.has(key) && Object.hasOwn(data.colors, value) ? data.colors[value] : value;
  }

  function tracesOf(panel) {
    const { spec } = panel;
    const frame = spec.frames[Math.min(position[panel.group] ?? 0, spec.frames.length - 1)];
    return spec.looks.map((look, i) => {
      const { error, ...numbers } = spec.states[frame][i];
      const bars = error ? { error_y: { ...look.error_y, array: error } } : { error_y: undefined };
      return { ...look, ...numbers, ...bars };
    });
  }

  // Where the slider stands, on an axis of steps.
  function cursorOf(panel) {
    const { cursor } = panel.spec;
    if (!cursor || cursor.length < 2) return [];
    const x = cursor[Math.min(position[panel.group] ?? 0, cursor.length - 1)];
    // Around the column of a map, so that its numbers stay readable.
    const half = panel.spec.looks[0].type === "heatmap" ? 0.5 : 0;
    return [{ type: "rect", xref: "x", yref: "paper", x0: x - half, x1: x + half, y0: 0, y1: 1, layer: "above",
      line: { color: "#5d6670", width: half ? 1.5 : 0.5, dash: half ? "solid" : "dot" } }];
  }

  // Numbers in the cells of a map must not run into each other on a phone.
  function fitting(trace, width) {
    if (!trace.texttemplate || !trace.z || width / trace.z[0].length >= 40) return trace;
    return { ...trace, textfont: { ...trace.textfont, size: 8 } };
  }

  // Nothing above the folds needs Plotly: it runs when the first figure is drawn. The policy of the
  // page allows this very text and no other.
  function needPlotly() {
    if (window.Plotly) return;
    const script = document.createElement("script");
    script.textContent = document.getElementById("plotly").textContent;
    document.head.append(script);
  }

  function draw(panel) {
    needPlotly();
    panel.stale = false;
    panel.drawn = true;
    const layout = colored({ ...panel.spec.layout, template: data.template, shapes: cursorOf(panel) }, "");
    const traces = tracesOf(panel).map((trace) => fitting(trace, panel.element.clientWidth));
    return Plotly.react(panel.element, colored(traces, ""), structuredClone(layout), config);
  }

  function visible(panel) {
    const box = panel.element.getBoundingClientRect();
    return box.width > 0 && box.bottom > -200 && box.top < innerHeight + 200;
  }

  // What is in view is drawn in the next frame, the rest when there is time.
  function schedule() {
    root.dataset.state = "busy";
    if (!pending) pending = requestAnimationFrame(() => { pending = 0; flush(); });
  }

  function flush() {
    panels.filter((panel) => panel.stale && visible(panel)).forEach(draw);
    idle();
  }

  function idle() {
    const next = panels.find((panel) => panel.stale && panel.element.offsetWidth > 0);
    if (!next) { root.dataset.state = "idle"; return; }
    setTimeout(() => {
      if (pending) return;
      const until = performance.now() + 24;
      let panel = next;
      while (panel && performance.now() < until) {
        if (panel.stale) draw(panel);
        panel = panels.find((other) => other.stale && other.element.offsetWidth > 0);
      }
      idle();
    }, 0);
  }

  function markStale(test) {
    panels.filter(test).forEach((panel) => { panel.stale = true; });
    schedule();
  }

  // Text, or an element whose parts, class and links a step changes.
  function fill(element, value) {
    if (typeof value === "string") { element.textContent = value; return; }
    element.className = value.class;
    for (const [name, text] of Object.entries(value.parts)) {
      const part = element.querySelector(`[data-part="${name}"]`);
      part.replaceChildren(...(name === "advice" ? coded(text) : [text]));
      if (name === "number" && value.source) part.dataset.source = value.source;
    }
    const links = element.querySelector("[data-links]");
    if (links) links.replaceChildren(...value.links.map(([title, id]) => linkTo(title, id)));
  }

  // What stands between backticks, such as an argument to pass, is code.
  function coded(text) {
    return text.split(/`([^`]+)`/).map((piece, i) => {
      if (i % 2 === 0) return piece;
      const code = document.createElement("code");
      code.textContent = piece;
      return code;
    });
  }

  function linkTo(title, id) {
    const link = document.createElement("a");
    link.href = `#${id}`;
    link.textContent = title;
    return link;
  }

  function showStep(group, index) {
    position[group] = index;
    const slider = document.querySelector(`.slider[data-group="${group}"]`);
    slider.querySelector("output").textContent = data.steps[group][index];
    const article = document.querySelector(`.group[data-group="${group}"]`);
    for (const element of article.querySelectorAll("[data-text]")) {
      const texts = data.texts[group][element.dataset.text];
      if (texts) fill(element, texts.states[texts.frames[index]]);
    }
    for (const [id, chart] of Object.entries(data.charts)) {
      if (chart.group !== String(group)) continue;
      drawChart(id, chart);
      fillCells(article, id, chart);
      fillText(id);
    }
    for (const [id, figure] of Object.entries(data.figures)) {
      if (figure.group !== String(group)) continue;
      const text = figure.findings[Math.min(index, figure.findings.length - 1)];
      document.getElementById(id).querySelector(".finding").textContent = text;
      fillText(id);
    }
    markStale((panel) => panel.group === group && (panel.spec.states.length > 1 || panel.spec.cursor));
  }

  // Charts over depth are drawn by the page itself; only another step draws them anew.
  const stateOf = (chart) => chart.states[chart.frames[Math.min(position[chart.group] ?? 0, chart.frames.length - 1)]];
  for (const chart of Object.values(data.charts)) {
    for (const trace of chart.traces) {
      const layers = data.layers[trace.group];
      trace.layers = layers.map(([name]) => name);
      trace.aside = layers.map(([, aside]) => aside);
      trace.x = layers.map((_, j) => (j + 0.5) / layers.length);
    }
  }
  const scale = (chart, value) => (chart.log ? Math.log(Math.max(value, 1e-300)) : value);

  function heightOf(chart, value) {
    const [low, high] = chart.limits.map((limit) => scale(chart, limit));
    const share = Math.min(Math.max((scale(chart, value) - low) / (high - low), -1), 2);
    return 6 + (1 - share) * (chart.height - 12);
  }

  const svg = (name, attributes, children = []) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const stretched = (chart, path) => svg("svg", { viewBox: `0 0 1000 ${chart.height}`, preserveAspectRatio: "none",
    width: "100%", height: "100%" }, [path]);
  const pathOf = (points) => `M${points.map(([x, y]) => `${(1000 * x).toFixed(1)},${y.toFixed(2)}`).join(" ")}`;

  function drawChart(id, chart) {
    const canvas = document.querySelector(`[data-chart="${id}"]`);
    const state = stateOf(chart);
    const drawn = chart.traces.map((trace, i) => {
      const { y, error, where } = state.traces[i];
      const known = y.flatMap((v, j) => (v === null || (chart.log && v <= 0) ? [] : [j]));
      const line = known.filter((j) => !trace.aside[j]).map((j) => [trace.x[j], heightOf(chart, y[j])]);
      const parts = [];
      if (!trace.marks && line.length > 1) {
        parts.push(stretched(chart, svg("path", { class: `line ${trace.dash}`, d: pathOf(line) })));
      }
      for (const j of known) {
        const x = `${(100 * trace.x[j]).toFixed(2)}%`;
        if (error?.[j] && known.length <= 120) {
          parts.push(svg("line", { class: "error", x1: x, x2: x,
            y1: heightOf(chart, y[j] + error[j]).toFixed(2), y2: heightOf(chart, y[j] - error[j]).toFixed(2) }));
        }
        const open = trace.aside[j] || trace.marks;
        parts.push(svg("circle", { class: open ? "open" : "", cx: x, cy: heightOf(chart, y[j]).toFixed(2),
          r: open ? Math.max(chart.radius, 2.6) : chart.radius }));
      }
      return svg("g", { class: "trace", style: `--tone:var(--${trace.color})`, "data-where": JSON.stringify(where) }, parts);
    });
    canvas.querySelector(".traces").replaceChildren(...drawn);
    canvas.parentElement.querySelectorAll(".last b").forEach((element) => {
      const trace = chart.traces[element.dataset.trace];
      const { y, text } = state.traces[element.dataset.trace];
      const j = y.findLastIndex((v, k) => v !== null && !trace.aside[k]);
      element.textContent = j < 0 ? "–" : text[j];
    });
  }

  function fillCells(article, id, chart) {
    const column = [...article.querySelectorAll(".card.strips:first-of-type .canvas")].findIndex((c) => c.dataset.chart === id);
    if (column < 0) return;
    const state = stateOf(chart);
    for (const row of article.querySelectorAll(".numbers tbody tr")) {
      for (const cell of row.cells[column + 2].querySelectorAll("[data-cell]")) {
        const [i, j] = cell.dataset.cell.split("-").map(Number);
        const { y, text, chance, within, where } = state.traces[i];
        const [run, step, rows] = where;
        const number = cell.querySelector("b");
        number.textContent = text[j];
        number.dataset.value = y[j] ?? "";
        number.dataset.where = rows[j] === null ? "" : `${run},${step},${rows[j]}`;
        const small = cell.querySelector("small");
        if (small) small.textContent = chance?.[j] ?? "";
        cell.classList.toggle("within", Boolean(within?.[j]));
      }
    }
  }

  // Pointing at a chart names the nearest layer, in all charts of its card.
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  tip.hidden = true;
  document.body.append(tip);

  function nearest(trace, x) {
    let best = 0;
    trace.x.forEach((at, j) => { if (Math.abs(at - x) < Math.abs(trace.x[best] - x)) best = j; });
    return best;
  }

  function point(canvas, x, left, top) {
    const chart = data.charts[canvas.dataset.chart];
    const state = stateOf(chart);
    const j = nearest(chart.traces[0], x);
    const lines = chart.traces.map((trace, i) => {
      const k = nearest(trace, x);
      const { text, error, chance } = state.traces[i];
      const more = [error?.[k] ? `± ${Number(error[k].toPrecision(2))}` : "", chance?.[k] ? `chance ${chance[k]}` : ""];
      const layer = trace.layers[k] === chart.traces[0].layers[j] ? "" : ` (${trace.layers[k]})`;
      return `${chart.traces.length > 1 ? `${trace.name}${layer}: ` : ""}${text[k]} ${more.filter(Boolean).join(", ")}`;
    });
    const name = document.createElement("b");
    name.textContent = chart.traces[0].layers[j];
    tip.replaceChildren(name, ...lines.flatMap((line) => [line, document.createElement("br")]).slice(0, -1));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(left + 14, innerWidth - box.width - 6))}px`;
    tip.style.top = `${top + 16 + box.height > innerHeight ? top - box.height - 10 : top + 16}px`;
    canvas.dataset.at = j;
    unpoint(false);
    for (const other of (canvas.closest(".strips") ?? canvas.parentElement).querySelectorAll("svg.depth")) {
      const across = `${(100 * chart.traces[0].x[j]).toFixed(3)}%`;
      other.append(svg("line", { class: "cursor", x1: across, x2: across, y1: 0, y2: "100%" }));
    }
  }

  function unpoint(all = true) {
    document.querySelectorAll(".depth .cursor").forEach((line) => line.remove());
    if (all) tip.hidden = true;
  }

  function watch(canvas) {
    const chart = data.charts[canvas.dataset.chart];
    canvas.tabIndex = 0;
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      point(canvas, (event.clientX - box.left) / box.width, event.clientX, event.clientY);
    });
    canvas.addEventListener("pointerleave", () => unpoint());
    canvas.addEventListener("blur", () => unpoint());
    canvas.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      event.preventDefault();
      const { x } = chart.traces[0];
      const j = Math.min(Math.max(Number(canvas.dataset.at ?? -1) + move, 0), x.length - 1);
      const box = canvas.getBoundingClientRect();
      point(canvas, x[j], box.left + x[j] * box.width, box.top);
    });
    // A click shows the layer in the table.
    canvas.addEventListener("click", () => {
      const fold = canvas.closest(".group")?.querySelector(".all");
      const row = fold?.querySelector(`tr[data-place="${canvas.dataset.at}"]`);
      if (!row) return;
      fold.open = true;
      row.scrollIntoView({ block: "center" });
      row.classList.remove("found");
      requestAnimationFrame(() => row.classList.add("found"));
    });
  }

  // The table: sorted by a column, searched by names, copied as text.
  function tableTools(fold) {
    const body = fold.querySelector("tbody");
    const keyOf = (row, key) => {
      if (key === "place") return Number(row.dataset.place);
      if (key === "type") return row.cells[1].textContent;
      const value = row.cells[Number(key) + 2].querySelector("b")?.dataset.value;
      return value === "" || value === undefined ? -Infinity : Number(value);
    };
    for (const button of fold.querySelectorAll("[data-sort]")) {
      button.addEventListener("click", () => {
        const head = button.closest("th");
        const up = head.getAttribute("aria-sort") === "descending" || (button.dataset.sort === "place" && !head.hasAttribute("aria-sort"));
        fold.querySelectorAll("th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...body.rows].map((row) => [keyOf(row, button.dataset.sort), row]);
        rows.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (up ? 1 : -1));
        body.append(...rows.map(([, row]) => row));
      });
    }
    const search = fold.querySelector("input");
    search.addEventListener("input", () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of body.rows) {
        const text = `${row.cells[0].textContent} ${row.cells[1].textContent}`.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
    });
    fold.querySelector(".copy").addEventListener("click", async () => {
      const heads = [...fold.querySelectorAll("thead button")].map((b) => b.textContent);
      const rows = [...body.rows].filter((row) => !row.hidden).map((row) => [...row.cells].map((cell) => {
        const numbers = [...cell.querySelectorAll("b")].map((b) => b.dataset.value);
        return numbers.length ? numbers.join(" ") : cell.textContent;
      }));
      const text = [heads, ...rows].map((line) => line.map(field).join(",")).join("\n");
      const told = fold.querySelector(".tools output");
      try { await navigator.clipboard.writeText(text); told.value = `${rows.length} rows copied`; }
      catch { told.value = "the browser refused to copy"; }
      fold.dataset.copied = text;
    });
  }

  function showGroup(index) {
    current = index;
    for (const element of document.querySelectorAll(".group, .slider")) {
      element.classList.toggle("current", Number(element.dataset.group) === index);
    }
    for (const button of document.querySelectorAll(".tabs button")) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.group) === index));
    }
    schedule();
  }

  function showTheme(name) {
    theme = name;
    root.classList.remove("light", "dark");
    root.classList.add(name);
    markStale((panel) => panel.drawn);
  }

  // Numbers as text. Names were escaped for Plotly; here they are themselves again.
  const unescape = (text) => String(text).replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&");

  function field(value) {
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return String(value);
    const text = unescape(value);
    // A spreadsheet would run a name that starts like a formula.
    const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
  }

  function rowsOf(trace, title) {
    const { rows, columns } = trace.meta ?? {};
    if (trace.type === "heatmap" || trace.type === "image") {
      return trace.z.flatMap((line, i) => line.map((value, j) => [title, trace.name ?? "",
        rows?.[i] ?? i, columns?.[j] ?? j, Array.isArray(value) ? value.join(" ") : value, "", ""]));
    }
    return (trace.x ?? []).map((x, i) => [title, trace.name ?? "", trace.customdata?.[i] ?? "", x, trace.y[i],
      trace.error_y?.array?.[i] ?? "", trace.meta?.chance ? "chance" : ""]);
  }

  function chartRows(chart) {
    const { traces, band } = stateOf(chart);
    const rows = chart.traces.flatMap((trace, i) => trace.layers.flatMap((layer, j) => (traces[i].y[j] === null ? []
      : [["", trace.name, layer, trace.x[j], traces[i].y[j], traces[i].error?.[j] ?? "", ""]])));
    return [...rows, ...band.map(([x, low, high]) => ["", "chance", "", x, (low + high) / 2, (high - low) / 2, "chance"])];
  }

  function csvOf(id) {
    const head = ["panel", "series", "row", "x", "value", "error", "kind"];
    const lines = [head, ...(data.charts[id] ? chartRows(data.charts[id]) : [])];
    for (const panel of panels.filter((other) => other.id === id)) {
      for (const trace of tracesOf(panel)) lines.push(...rowsOf(trace, panel.title));
    }
    return lines.map((line) => line.map(field).join(",")).join("\r\n") + "\r\n";
  }

  function fillText(id) {
    const details = document.getElementById(id)?.querySelector(".as-text");
    if (details?.open) details.querySelector("textarea").value = csvOf(id);
  }

  function download(id) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csvOf(id)], { type: "text/csv" }));
    link.download = `${id}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // Paper has every section and figure, in light colors.
  let before = null;
  function beforePrint() {
    if (before) return;
    const folds = [...document.querySelectorAll("details:not(.as-text)")];
    unpoint();
    before = { theme, open: folds.map((fold) => fold.open), folds };
    folds.forEach((fold) => { fold.open = true; });
    root.classList.add("printing");
    theme = "light";
    panels.forEach(draw);
  }

  function afterPrint() {
    if (!before) return;
    before.folds.forEach((fold, i) => { fold.open = before.open[i]; });
    const { theme: name } = before;
    before = null;
    theme = name;
    root.classList.remove("printing");
    showGroup(current);
    markStale((panel) => panel.drawn);
  }

  for (const [id, figure] of Object.entries(data.figures)) {
    figure.panels.forEach((spec, i) => {
      const element = document.getElementById(`${id}-${i}`);
      panels.push({ id, title: figure.titles[i], element, spec, group: Number(figure.group), stale: true, drawn: false });
    });
  }
  for (const id of [...Object.keys(data.figures), ...Object.keys(data.charts)]) {
    const block = document.getElementById(id);
    block.querySelector(".download")?.addEventListener("click", () => download(id));
    block.querySelector(".as-text")?.addEventListener("toggle", () => fillText(id));
  }
  document.querySelectorAll("[data-chart]").forEach(watch);
  document.querySelectorAll(".family.all").forEach(tableTools);
  for (const fold of document.querySelectorAll("details:not(.as-text)")) fold.addEventListener("toggle", schedule);
  for (const button of document.querySelectorAll(".tabs button")) {
    button.addEventListener("click", () => showGroup(Number(button.dataset.group)));
  }
  // A link to a figure opens the fold that holds it.
  document.addEventListener("click", (event) => {
    const target = event.target.closest?.("a[href^='#']")?.getAttribute("href").slice(1);
    const figure = target && document.getElementById(target);
    if (!figure) return;
    event.preventDefault();
    const fold = figure.closest("details");
    if (fold) fold.open = true;
    figure.scrollIntoView();
    figure.classList.remove("found");
    requestAnimationFrame(() => figure.classList.add("found"));
    schedule();
  });
  for (const slider of document.querySelectorAll(".slider")) {
    const input = slider.querySelector("input");
    input.addEventListener("input", () => showStep(Number(slider.dataset.group), Number(input.value)));
  }
  document.getElementById("theme").addEventListener("click", () => showTheme(theme === "dark" ? "light" : "dark"));
  addEventListener("scroll", () => { if (panels.some((panel) => panel.stale)) schedule(); }, { passive: true });
  addEventListener("beforeprint", beforePrint);
  addEventListener("afterprint", afterPrint);

  root.classList.add("scripted");
  showGroup(0);
})();
