"use strict";
(() => {
  const { palettes, networks, factors, outcomes, measures, places, moments, start } = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);
  const colors = ["representation", "gradient", "kernel", "covariance", "tangent", "muted", "representation-pale", "gradient-pale", "kernel-pale"];
  const palette = () => palettes[root.dataset.theme === "dark" ? "dark" : "light"];
  const count = networks.length;
  const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const wordOf = (factor, k) => factors[factor].words[factors[factor].codes[k]];

  const fill = (select, groups, chosen) => {
    const options = (list) => list.map(([value, text]) => new Option(text, value, false, value === chosen));
    select.replaceChildren(...groups.flatMap(([title, list]) => {
      if (!title) return options(list);
      const group = document.createElement("optgroup");
      group.label = title;
      group.append(...options(list));
      return [group];
    }));
  };

  // A number is an outcome, or a measure at a place and a moment; only those that exist are offered.
  const numbers = [["outcomes", Object.keys(outcomes).map((name) => [`outcome ${name}`, name])],
    ...[...new Set(Object.values(measures).map((one) => one.family))].map((family) => [family,
      Object.keys(measures).filter((name) => measures[name].family === family).map((name) => [`measure ${name}`, name])])];
  const keyOf = (axis) => `${byId(`${axis}-place`).value} ${byId(`${axis}-moment`).value}`;
  const valuesOf = (axis) => {
    const [kind, name] = byId(axis).value.split(" ");
    return kind === "outcome" ? outcomes[name] : measures[name].values[keyOf(axis)] ?? Array(count).fill(null);
  };
  const titleOf = (axis) => {
    const [kind, name] = byId(axis).value.split(" ");
    if (kind === "outcome") return name;
    const place = byId(`${axis}-place`).value;
    return `${name}${place === "whole" ? "" : `, ${places[place]}`}, ${moments[byId(`${axis}-moment`).value]}`;
  };
  const fitAxis = (axis, wanted) => {
    const [kind, name] = byId(axis).value.split(" ");
    const [place, moment] = [byId(`${axis}-place`), byId(`${axis}-moment`)];
    for (const select of [place, moment]) select.closest("label").hidden = kind === "outcome";
    if (kind === "outcome") return;
    const keys = Object.keys(measures[name].values).map((key) => key.split(" "));
    const old = wanted ?? [place.value, moment.value];
    const theirs = (index, all) => Object.keys(all).filter((one) => keys.some((key) => key[index] === one)).map((one) => [one, all[one]]);
    fill(place, [["", theirs(0, places)]], old[0]);
    fill(moment, [["", theirs(1, moments)]], old[1]);
    place.closest("label").hidden = place.value === "whole";
  };

  const tauOf = (x, y, rows) => {
    let agree = 0, xs = 0, ys = 0;
    for (let a = 0; a < rows.length; a++) for (let b = 0; b < a; b++) {
      const s = Math.sign(x[rows[a]] - x[rows[b]]), t = Math.sign(y[rows[a]] - y[rows[b]]);
      agree += s * t; xs += s * s; ys += t * t;
    }
    return xs && ys ? agree / Math.sqrt(xs * ys) : NaN;
  };
  const shownTau = (tau) => (Number.isFinite(tau) ? tau.toFixed(2).replace("-", "−") : "–");

  const draw = () => {
    const [x, y] = [valuesOf("across"), valuesOf("up")];
    const [factor, level, half, color] = ["factor", "level", "half", "color"].map((id) => byId(id).value);
    const drawn = (k) => Number.isFinite(x[k]) && Number.isFinite(y[k]) && x[k] !== null && y[k] !== null
      && (!factor || wordOf(factor, k) === level) && (!half || wordOf("half", k) === half)
      && (!byId("across-log").checked || x[k] > 0) && (!byId("up-log").checked || y[k] > 0);
    const rows = networks.map((_, k) => k).filter(drawn);
    const p = palette();
    const levels = factors[color].words;
    const traces = levels.map((word, j) => {
      const mine = rows.filter((k) => wordOf(color, k) === word);
      return { type: "scatter", mode: "markers", name: escaped(word), x: mine.map((k) => x[k]), y: mine.map((k) => y[k]), customdata: mine,
        text: mine.map((k) => `${networks[k]}<br>${escaped(wordOf("data", k))}, ${escaped(wordOf("family", k))}, noise ${escaped(wordOf("noise", k))}`),
        hovertemplate: "%{text}<br>%{x:.4g}, %{y:.4g}<extra></extra>", marker: { size: 8, opacity: 0.75, color: p[colors[j % colors.length]] } };
    }).filter((trace) => trace.x.length);
    const axis = (title, log) => ({ title: { text: escaped(title), font: { size: 13 } }, gridcolor: p.grid, linecolor: p.line, zeroline: false, automargin: true, nticks: 7, type: log ? "log" : "linear" });
    Plotly.react(byId("plot"), traces, { margin: { l: 54, r: 12, t: 10, b: 56 }, paper_bgcolor: p.surface, plot_bgcolor: p.surface, font: { color: p.ink, size: 12 },
      xaxis: axis(titleOf("across"), byId("across-log").checked), yaxis: axis(titleOf("up"), byId("up-log").checked),
      showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { size: 11 } }, hovermode: "closest", dragmode: false }, { displayModeBar: false, responsive: true });
    byId("count").textContent = rows.length;
    byId("told").textContent = `Kendall's tau ${shownTau(tauOf(x, y, rows))} over ${rows.length} networks.`;
    tell(x, y, rows);
    byId("plot").removeAllListeners?.("plotly_click");
    byId("plot").on("plotly_click", ({ points }) => show(points[0].customdata));
    byId("plot").removeAllListeners?.("plotly_hover");
    byId("plot").on("plotly_hover", ({ points }) => show(points[0].customdata));
  };
  const show = (k) => {
    byId("network").textContent = `${networks[k]}: ${Object.keys(factors).map((name) => `${name} ${wordOf(name, k)}`).join(", ")}`;
  };
  const tell = (x, y, rows) => {
    const body = document.querySelector("#levels tbody");
    body.replaceChildren(...["data", "family", "noise", byId("color").value].filter((name, j, all) => all.indexOf(name) === j).flatMap((factor) =>
      factors[factor].words.map((word) => {
        const mine = rows.filter((k) => wordOf(factor, k) === word);
        if (mine.length < 5) return null;
        const tau = tauOf(x, y, mine);
        const row = document.createElement("tr");
        for (const text of [factor, word, mine.length, shownTau(tau)]) row.insertCell().textContent = text;
        const bar = document.createElement("span");
        bar.className = tau < 0 ? "bar negative" : "bar";
        bar.style.width = `${Math.round(60 * Math.abs(tau || 0))}px`;
        row.cells[3].append(bar);
        return row;
      }).filter(Boolean)));
  };

  for (const axis of ["across", "up"]) {
    fill(byId(axis), numbers, start[axis].number);
    fitAxis(axis, [start[axis].place, start[axis].moment]);
    byId(axis).addEventListener("change", () => { fitAxis(axis); draw(); });
    for (const part of ["place", "moment", "log"]) byId(`${axis}-${part}`).addEventListener("change", draw);
  }
  const words = (name) => factors[name].words.map((word) => [word, word]);
  fill(byId("color"), [["", Object.keys(factors).map((name) => [name, name])]], "noise");
  fill(byId("factor"), [["", [["", "all networks"], ...Object.keys(factors).map((name) => [name, name])]]], "");
  fill(byId("half"), [["", [["", "both halves"], ...words("half")]]], "");
  const fitLevel = () => {
    const factor = byId("factor").value;
    byId("level").closest("label").hidden = !factor;
    fill(byId("level"), [["", factor ? words(factor) : [["", ""]]]], "");
  };
  byId("factor").addEventListener("change", () => { fitLevel(); draw(); });
  for (const id of ["color", "level", "half"]) byId(id).addEventListener("change", draw);
  const setTheme = (dark) => { root.dataset.theme = dark ? "dark" : "light"; byId("theme").textContent = dark ? "light" : "dark"; draw(); };
  byId("theme").addEventListener("click", () => setTheme(root.dataset.theme !== "dark"));
  byId("choice").addEventListener("submit", (event) => event.preventDefault());
  new ResizeObserver(() => byId("plot").data && Plotly.Plots.resize(byId("plot"))).observe(byId("plot"));
  fitLevel();
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.ready = "yes";
})();
