"use strict";
(() => {
  const { palettes, families, runs } = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);
  const colors = ["representation", "gradient", "kernel", "covariance", "tangent", "muted"];
  const palette = () => palettes[root.dataset.theme === "dark" ? "dark" : "light"];
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const rowHeight = 27, beyond = 12, mostColumns = 40, fullest = 0.2;
  const fixed = { name: (run) => run.name, kind: (run) => run.kind, folder: (run) => run.folder };
  const picked = new Set();     // positions in runs
  let shown = runs.map((_, k) => k); // those that the filter lets through, in order
  let columns = [];
  let sorting = null;           // {name, down}
  let drawn = "";

  const valueOf = (run, name) => (name in fixed ? fixed[name](run) : run.settings[name] ?? run.numbers[name]);
  const textOf = (run, name) => {
    const value = valueOf(run, name);
    if (value === undefined) return "";
    return value === null ? "undefined" : typeof value === "number" ? String(Number(value.toPrecision(4))) : value;
  };
  const numberOf = (k, name) => {
    const value = runs[k].numbers[name] ?? runs[k].settings[name];
    return value === undefined || value === null || value === "" ? NaN : Number(value);
  };
  const words = runs.map((run) => [run.name, run.kind, run.folder, run.damage, ...Object.values(run.settings)].join(" ").toLowerCase());
  const names = [...new Set(runs.flatMap((run) => [...Object.keys(run.settings), ...Object.keys(run.numbers)]))];
  const measured = new Set(runs.flatMap((run) => Object.keys(run.numbers)));
  const numeric = [...names].sort((a, b) => measured.has(b) - measured.has(a)).filter((name) => runs.some((_, k) => Number.isFinite(numberOf(k, name))));

  const make = (tag, text) => { const element = document.createElement(tag); element.textContent = text; return element; };

  const layout = (x, y) => {
    const p = palette();
    const axis = (title) => ({ title: { text: escaped(title), font: { size: 12 } }, gridcolor: p.grid, linecolor: p.line, zeroline: false, automargin: true });
    return { margin: { l: 50, r: 8, t: 8, b: 40 }, height: 260, paper_bgcolor: p.surface, plot_bgcolor: p.surface,
      font: { color: p.ink, size: 11 }, xaxis: axis(x), yaxis: axis(y), showlegend: true, legend: { orientation: "h", y: -0.25 } };
  };
  const plot = (element, traces, x, y) => Plotly.react(element, traces, layout(x, y), { displayModeBar: false, responsive: true });

  // Only rows in view, and some beyond, are elements: a gallery may hold thousands of records.
  const draw = () => {
    const place = byId("window");
    const tall = Math.max(place.clientHeight, 0.7 * innerHeight); // it grows with its rows
    const first = Math.max(0, Math.floor(place.scrollTop / rowHeight) - beyond);
    const last = Math.min(shown.length, Math.ceil((place.scrollTop + tall) / rowHeight) + beyond);
    const state = JSON.stringify([first, last, columns, shown.slice(first, last)]);
    if (state === drawn) return;
    drawn = state;
    const spacer = (count) => { const row = document.createElement("tr"); row.className = "spacer"; row.style.height = `${count * rowHeight}px`; return row; };
    const rows = shown.slice(first, last).map((k) => {
      const run = runs[k];
      const row = document.createElement("tr");
      row.dataset.row = k;
      const cell = row.insertCell();
      if (!run.damage) {
        const box = Object.assign(document.createElement("input"), { type: "checkbox", checked: picked.has(k) });
        box.setAttribute("aria-label", `compare ${run.name}`);
        cell.append(box);
      }
      for (const name of columns) {
        if (run.damage && !(name in fixed)) continue;
        row.append(make("td", textOf(run, name)));
      }
      if (run.damage) row.append(Object.assign(make("td", run.damage), { className: "damage", colSpan: Math.max(1, columns.length - 3) }));
      return row;
    });
    document.querySelector("#records tbody").replaceChildren(spacer(first), ...rows, spacer(shown.length - last));
  };

  // Columns that hardly any of the shown records fill are left out: narrowing the filter shows them.
  const fitColumns = () => {
    const whole = shown.filter((k) => !runs[k].damage);
    const filled = new Map(names.map((name) => [name, whole.filter((k) => valueOf(runs[k], name) !== undefined).length]));
    const wanted = names.filter((name) => filled.get(name) > 0 && filled.get(name) >= fullest * whole.length);
    columns = [...Object.keys(fixed), ...wanted.slice(0, mostColumns)];
    const hidden = names.filter((name) => filled.get(name) > 0).length - (columns.length - 3);
    byId("left-out").textContent = hidden > 0 ? `${hidden} more columns: narrow the filter to see them.` : "";
    const heads = columns.map((name) => {
      const head = document.createElement("th");
      head.append(Object.assign(make("button", name), { type: "button" }));
      if (sorting?.name === name) head.setAttribute("aria-sort", sorting.down ? "descending" : "ascending");
      return head;
    });
    document.querySelector("#records thead tr").replaceChildren(make("th", ""), ...heads);
  };

  // Axes that no shown record has are not offered; one that was chosen gives way to the first that is there.
  const fitAxes = () => {
    const offered = numeric.map((name) => shown.some((k) => Number.isFinite(numberOf(k, name))));
    const there = numeric.map((_, j) => j).filter((j) => offered[j]);
    for (const [axis, other] of [[byId("across"), byId("up")], [byId("up"), byId("across")]]) {
      [...axis.options].forEach((option, j) => { option.hidden = !offered[j]; });
      if (there.length && !offered[axis.selectedIndex]) axis.selectedIndex = there.find((j) => j !== other.selectedIndex) ?? there[0];
    }
  };

  const condition = (word) => {
    const match = /^(.+?)(<=|>=|=|<|>)(.+)$/.exec(word);
    if (!match) return (k) => words[k].includes(word.toLowerCase());
    const [, name, sign, wanted] = match;
    return (k) => {
      const all = { ...runs[k].numbers, ...runs[k].settings };
      return Object.keys(all).filter((key) => key.toLowerCase().includes(name.toLowerCase())).some((key) => {
        const [a, b] = [Number(all[key]), Number(wanted)];
        if (sign === "=") return Number.isFinite(b) && all[key] !== null ? a === b : String(all[key]) === wanted;
        if (all[key] === null) return false;
        return { "<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b }[sign];
      });
    };
  };

  const order = (a, b) => {
    const [x, y] = [textOf(runs[a], sorting.name), textOf(runs[b], sorting.name)];
    if ((x === "") !== (y === "")) return x === "" ? 1 : -1;
    const [p, q] = [Number(x), Number(y)];
    const difference = Number.isFinite(p) && Number.isFinite(q) ? p - q : x.localeCompare(y);
    return sorting.down ? -difference : difference;
  };

  const filter = () => {
    const conditions = byId("filter").value.split(/\s+/).filter(Boolean).map(condition);
    shown = runs.map((_, k) => k).filter((k) => conditions.every((holds) => holds(k)));
    if (sorting) shown.sort(order);
    byId("count").textContent = shown.length;
    fitColumns();
    fitAxes();
    draw();
    scatter();
  };

  const profile = (family, chosen) => chosen.filter((k) => runs[k].profiles[family.key]).map((k, i) => {
    const values = runs[k].profiles[family.key];
    const color = palette()[colors[i % colors.length]];
    return { type: "scatter", mode: "lines+markers", name: escaped(runs[k].name), x: values.map((_, j) => j + 1), y: values, line: { color }, marker: { color, size: 5 } };
  });

  const compare = () => {
    const chosen = [...picked];
    byId("comparison").hidden = chosen.length === 0;
    const box = byId("profiles");
    box.replaceChildren();
    for (const family of families) {
      const traces = profile(family, chosen).filter((trace) => trace.x.length > 1);
      if (!traces.length) continue;
      const panel = document.createElement("div");
      const drawing = document.createElement("div");
      drawing.className = "plot";
      panel.append(make("h3", family.title), drawing);
      box.append(panel);
      plot(drawing, traces, "layer", "");
    }
    const known = [...new Set(chosen.flatMap((k) => [...Object.keys(runs[k].settings), ...Object.keys(runs[k].numbers)]))];
    const line = (cells, tag) => { const row = document.createElement("tr"); row.append(...cells.map((text) => make(tag, text))); return row; };
    byId("compared").replaceChildren(line(["", ...chosen.map((k) => runs[k].name)], "th"),
      ...known.map((name) => line([name, ...chosen.map((k) => textOf(runs[k], name))], "td")));
  };

  const scatter = () => {
    const [x, y] = [byId("across").value, byId("up").value];
    const points = shown.filter((k) => Number.isFinite(numberOf(k, x)) && Number.isFinite(numberOf(k, y)));
    const p = palette();
    plot(byId("cloud"), [{ type: "scatter", mode: "markers", showlegend: false, x: points.map((k) => numberOf(k, x)), y: points.map((k) => numberOf(k, y)),
      text: points.map((k) => escaped(runs[k].name + " " + Object.entries(runs[k].settings).map(([a, b]) => a + "=" + b).join(" "))), hoverinfo: "text+x+y",
      marker: { size: 8, opacity: 0.8, color: points.map((k) => (picked.has(k) ? p.gradient : p.representation)) } }], x, y);
  };

  for (const [id, position] of [["across", 0], ["up", 1]]) {
    byId(id).append(...numeric.map((name) => new Option(name)));
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
  const repick = () => { drawn = ""; draw(); compare(); scatter(); };
  byId("theme").addEventListener("click", () => setTheme(root.dataset.theme !== "dark"));
  byId("filter").addEventListener("input", () => { byId("window").scrollTop = 0; filter(); });
  byId("clear").addEventListener("click", () => { picked.clear(); repick(); });
  byId("window").addEventListener("scroll", draw, { passive: true });
  document.querySelector("#records tbody").addEventListener("change", ({ target }) => {
    const k = Number(target.closest("tr").dataset.row);
    if (target.checked) picked.add(k); else picked.delete(k);
    compare();
    scatter();
  });
  document.querySelector("#records thead").addEventListener("click", ({ target }) => {
    if (target.tagName !== "BUTTON") return;
    const name = target.textContent;
    sorting = { name, down: sorting?.name === name && !sorting.down };
    filter();
  });
  root.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  filter();
  setTheme(root.dataset.theme === "dark");
  root.dataset.ready = "yes";
})();
