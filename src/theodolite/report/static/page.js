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

  function draw(panel) {
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
    if (Array.isArray(value)) value = reading(...value);
    element.className = value.class;
    for (const [name, text] of Object.entries(value.parts)) {
      const part = element.querySelector(`[data-part="${name}"]`);
      part.textContent = text;
      if (name === "number" && value.source) part.dataset.source = value.source;
    }
    const links = element.querySelector("[data-links]");
    if (links) links.replaceChildren(...value.links.map(([title, id]) => linkTo(title, id)));
  }

  function reading(number, error, chance, name, source) {
    const path = source && { run: source[0], step: source[1], path: ["rows", source[2], "value"] };
    return { class: `reading ${name}`, parts: { number, error, chance }, source: JSON.stringify(path) };
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
    const last = data.steps[group].length - 1;
    for (const cursor of article.querySelectorAll(".spark .cursor")) {
      cursor.setAttribute("transform", `translate(${(114 * index) / last},0)`);
    }
    for (const [id, figure] of Object.entries(data.figures)) {
      if (figure.group !== String(group)) continue;
      const text = figure.findings[Math.min(index, figure.findings.length - 1)];
      document.getElementById(id).querySelector(".finding").textContent = text;
      fillText(id);
    }
    markStale((panel) => panel.group === group && (panel.spec.states.length > 1 || panel.spec.cursor));
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

  function csvOf(id) {
    const head = ["panel", "series", "row", "x", "value", "error", "kind"];
    const lines = [head];
    for (const panel of panels.filter((other) => other.id === id)) {
      for (const trace of tracesOf(panel)) lines.push(...rowsOf(trace, panel.title));
    }
    return lines.map((line) => line.map(field).join(",")).join("\r\n") + "\r\n";
  }

  function fillText(id) {
    const details = document.getElementById(id).querySelector(".as-text");
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
    const block = document.getElementById(id);
    figure.panels.forEach((spec, i) => {
      const element = document.getElementById(`${id}-${i}`);
      panels.push({ id, title: figure.titles[i], element, spec, group: Number(figure.group), stale: true, drawn: false });
    });
    block.querySelector(".download")?.addEventListener("click", () => download(id));
    block.querySelector(".as-text")?.addEventListener("toggle", () => fillText(id));
  }
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
    figure.closest("details").open = true;
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
