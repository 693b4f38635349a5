"use strict";
(() => {
  const { palettes, families, runs } = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);
  const body = document.querySelector("#records tbody");
  const rows = [...body.rows];
  const colors = ["representation", "gradient", "kernel", "covariance", "tangent", "muted"];
  const palette = () => palettes[root.dataset.theme === "dark" ? "dark" : "light"];
  const chosen = () => rows.filter((row) => row.querySelector("input:checked")).map((row) => Number(row.dataset.row));
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  const layout = (x, y) => {
    const p = palette();
    const axis = (title) => ({ title: { text: escaped(title), font: { size: 12 } }, gridcolor: p.grid, linecolor: p.line, zeroline: false, automargin: true });
    return { margin: { l: 50, r: 8, t: 8, b: 40 }, height: 260, paper_bgcolor: p.surface, plot_bgcolor: p.surface,
      font: { color: p.ink, size: 11 }, xaxis: axis(x), yaxis: axis(y), showlegend: true, legend: { orientation: "h", y: -0.25 } };
  };
  const plot = (element, traces, x, y) => Plotly.react(element, traces, layout(x, y), { displayModeBar: false, responsive: true });

  const profile = (family, picked) => picked.filter((k) => runs[k].profiles[family.key]).map((k, i) => {
    const values = runs[k].profiles[family.key];
    const color = palette()[colors[i % colors.length]];
    return { type: "scatter", mode: "lines+markers", name: escaped(runs[k].name), x: values.map((_, j) => j + 1), y: values, line: { color }, marker: { color, size: 5 } };
  });

  const compare = () => {
    const picked = chosen();
    byId("comparison").hidden = picked.length === 0;
    const box = byId("profiles");
    box.replaceChildren();
    for (const family of families) {
      const traces = profile(family, picked);
      if (!traces.length) continue;
      const panel = document.createElement("div");
      const title = document.createElement("h3");
      title.textContent = family.title;
      const drawing = document.createElement("div");
      drawing.className = "plot";
      panel.append(title, drawing);
      box.append(panel);
      plot(drawing, traces, "layer", "");
    }
    const names = [...new Set(picked.flatMap((k) => [...Object.keys(runs[k].settings), ...Object.keys(runs[k].numbers)]))];
    const table = byId("compared");
    table.replaceChildren();
    const line = (cells, tag) => {
      const row = table.insertRow();
      cells.forEach((text) => { const cell = document.createElement(tag); cell.textContent = text; row.append(cell); });
    };
    line(["", ...picked.map((k) => runs[k].name)], "th");
    for (const name of names) line([name, ...picked.map((k) => runs[k].settings[name] ?? runs[k].numbers[name] ?? "")], "td");
  };

  const number = (k, name) => { const value = runs[k].numbers[name] ?? runs[k].settings[name]; return value === undefined || value === null || value === "" ? NaN : Number(value); };
  const scatter = () => {
    const [x, y] = [byId("across").value, byId("up").value];
    const shown = rows.filter((row) => !row.hidden).map((row) => Number(row.dataset.row)).filter((k) => Number.isFinite(number(k, x)) && Number.isFinite(number(k, y)));
    const marked = new Set(chosen());
    const p = palette();
    plot(byId("cloud"), [{ type: "scatter", mode: "markers", showlegend: false, x: shown.map((k) => number(k, x)), y: shown.map((k) => number(k, y)),
      text: shown.map((k) => escaped(runs[k].name + " " + Object.entries(runs[k].settings).map(([a, b]) => a + "=" + b).join(" "))), hoverinfo: "text+x+y",
      marker: { size: 8, opacity: 0.8, color: shown.map((k) => (marked.has(k) ? p.gradient : p.representation)) } }], x, y);
  };

  const condition = (word) => {
    const match = /^(.+?)(<=|>=|=|<|>)(.+)$/.exec(word);
    if (!match) return (row) => row.textContent.toLowerCase().includes(word.toLowerCase());
    const [, name, sign, wanted] = match;
    return (row) => {
      const run = runs[Number(row.dataset.row)];
      const all = { ...run.numbers, ...run.settings };
      return Object.keys(all).filter((key) => key.toLowerCase().includes(name.toLowerCase())).some((key) => {
        const [a, b] = [Number(all[key]), Number(wanted)];
        if (sign === "=") return Number.isFinite(b) && all[key] !== null ? a === b : String(all[key]) === wanted;
        if (all[key] === null) return false;
        return { "<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b }[sign];
      });
    };
  };
  // Columns that hardly any of the shown records fill are left out: narrowing the filter shows them.
  const heads = [...document.querySelectorAll("#records thead th")];
  const fixed = 4, fullest = 0.2;
  const fitColumns = () => {
    const shown = rows.filter((row) => !row.hidden && row.cells.length === heads.length);
    const filled = heads.map((_, j) => shown.filter((row) => row.cells[j].textContent !== "").length);
    const wanted = heads.map((_, j) => j < fixed || (filled[j] > 0 && filled[j] >= fullest * shown.length));
    heads.forEach((head, j) => { head.hidden = !wanted[j]; });
    rows.filter((row) => row.cells.length === heads.length).forEach((row) => [...row.cells].forEach((cell, j) => { cell.hidden = !wanted[j]; }));
  };
  // Axes that no shown record has are not offered; one that was chosen gives way to the first that is there.
  const fitAxes = () => {
    const shown = rows.filter((row) => !row.hidden).map((row) => Number(row.dataset.row));
    const offered = numeric.map((name) => shown.some((k) => Number.isFinite(number(k, name))));
    const there = numeric.map((_, j) => j).filter((j) => offered[j]);
    for (const [axis, other] of [[byId("across"), byId("up")], [byId("up"), byId("across")]]) {
      [...axis.options].forEach((option, j) => { option.hidden = !offered[j]; });
      if (there.length && !offered[axis.selectedIndex]) axis.selectedIndex = there.find((j) => j !== other.selectedIndex) ?? there[0];
    }
  };
  const filter = () => {
    const conditions = byId("filter").value.split(/\s+/).filter(Boolean).map(condition);
    rows.forEach((row) => { row.hidden = !conditions.every((holds) => holds(row)); });
    byId("count").textContent = rows.filter((row) => !row.hidden).length;
    fitColumns();
    fitAxes();
    scatter();
  };

  const sort = (header) => {
    const index = header.cellIndex;
    const down = header.getAttribute("aria-sort") === "ascending";
    document.querySelectorAll("#records th").forEach((th) => th.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => (row.cells[index] ? row.cells[index].textContent : "");
    const order = (a, b) => {
      const [x, y] = [key(a), key(b)];
      if ((x === "") !== (y === "")) return x === "" ? 1 : -1;
      const [p, q] = [Number(x), Number(y)];
      const difference = Number.isFinite(p) && Number.isFinite(q) ? p - q : x.localeCompare(y);
      return down ? -difference : difference;
    };
    body.append(...[...rows].sort(order));
  };

  const numeric = [...new Set(runs.flatMap((run, k) => [...Object.keys(run.numbers), ...Object.keys(run.settings)].filter((name) => Number.isFinite(number(k, name)))))];
  for (const [id, position] of [["across", 0], ["up", 1]]) {
    numeric.forEach((name) => byId(id).append(new Option(name)));
    byId(id).selectedIndex = Math.min(position, numeric.length - 1);
    byId(id).addEventListener("change", scatter);
  }
  byId("scatter").hidden = numeric.length < 2;
  const setTheme = (dark) => {
    root.dataset.theme = dark ? "dark" : "light";
    byId("theme").textContent = dark ? "light" : "dark";
    compare();
    scatter();
  };
  byId("theme").addEventListener("click", () => setTheme(root.dataset.theme !== "dark"));
  byId("filter").addEventListener("input", filter);
  byId("clear").addEventListener("click", () => { document.querySelectorAll("#records input:checked").forEach((box) => { box.checked = false; }); compare(); scatter(); });
  body.addEventListener("change", () => { compare(); scatter(); });
  document.querySelectorAll("#records th button").forEach((button) => button.addEventListener("click", () => sort(button.parentElement)));
  setTheme(window.matchMedia("(prefers-color-scheme: dark)").matches);
  fitColumns();
  root.dataset.ready = "yes";
})();
