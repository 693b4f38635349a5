"use strict";
(() => {
  const { palettes, figures } = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const drawn = new Set();

  const colorKeys = new Set(["color", "fillcolor", "gridcolor", "linecolor", "paper_bgcolor", "plot_bgcolor"]);
  const resolved = (value, palette, key) => {
    if (Array.isArray(value)) return value.map((item) => (typeof item === "object" && item ? resolved(item, palette, key) : item));
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, resolved(v, palette, k)]));
    return colorKeys.has(key) && palette[value] ? palette[value] : value;
  };

  const axis = (given) => ({ gridcolor: "grid", linecolor: "line", zeroline: false, automargin: true, nticks: 6, exponentformat: "power",
    ...given, title: { ...(given.title || {}), font: { size: 12 }, standoff: 6 } });

  const draw = (element) => {
    const panel = figures[element.dataset.study][Number(element.dataset.panel)];
    const palette = palettes[root.dataset.theme === "dark" ? "dark" : "light"];
    const layout = {
      margin: { l: 48, r: 8, t: 6, b: 40 }, paper_bgcolor: "surface", plot_bgcolor: "surface",
      font: { color: "ink", size: 11 }, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 10.5 } },
      ...panel.layout, xaxis: axis(panel.layout.xaxis), yaxis: axis(panel.layout.yaxis),
    };
    drawn.add(element);
    return Plotly.react(element, resolved(panel.data, palette, ""), resolved(layout, palette, ""), { displayModeBar: false, responsive: true });
  };

  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting && !drawn.has(entry.target)) draw(entry.target);
  }, { rootMargin: "400px" });
  const plots = [...document.querySelectorAll(".plot")];
  plots.forEach((element) => watcher.observe(element));
  window.addEventListener("beforeprint", () => plots.forEach((element) => drawn.has(element) || draw(element)));

  const setTheme = (dark) => {
    root.dataset.theme = dark ? "dark" : "light";
    theme.textContent = dark ? "light" : "dark";
    drawn.forEach(draw);
  };
  theme.addEventListener("click", () => setTheme(root.dataset.theme !== "dark"));
  setTheme(window.matchMedia("(prefers-color-scheme: dark)").matches);

  document.getElementById("filter").addEventListener("change", (event) => {
    const wanted = event.target.value;
    document.querySelectorAll("tr[data-status]").forEach((row) => { row.hidden = Boolean(wanted) && row.dataset.status !== wanted; });
    document.querySelectorAll("table[data-size]").forEach((table) => {
      table.hidden = Boolean(wanted) && table.dataset.status !== wanted && !table.querySelector("tr[data-status]:not([hidden])");
    });
    document.querySelectorAll("article").forEach((article) => {
      article.hidden = Boolean(wanted) && !article.querySelector("table[data-size]:not([hidden])");
    });
  });
  root.dataset.ready = "yes";
})();
