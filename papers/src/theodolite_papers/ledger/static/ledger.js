"use strict";
(() => {
  const { palettes, figures } = JSON.parse(document.getElementById("ledger-data").textContent);
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
    const palette = palettes[document.body.dataset.mdColorScheme === "slate" ? "dark" : "light"];
    const layout = {
      margin: { l: 48, r: 8, t: 6, b: 40 }, paper_bgcolor: "surface", plot_bgcolor: "surface",
      font: { color: "ink", size: 11 }, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 10.5 } },
      ...panel.layout, xaxis: axis(panel.layout.xaxis), yaxis: axis(panel.layout.yaxis),
    };
    if (!drawn.has(element)) sized.observe(element);
    drawn.add(element);
    return Plotly.react(element, resolved(panel.data, palette, ""), resolved(layout, palette, ""), { displayModeBar: false });
  };

  const sized = new ResizeObserver((entries) => entries.forEach((entry) => Plotly.Plots.resize(entry.target)));
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting && !drawn.has(entry.target)) draw(entry.target);
  }, { rootMargin: "400px" });
  const plots = [...document.querySelectorAll(".ledger .plot")];
  plots.forEach((element) => watcher.observe(element));
  window.addEventListener("beforeprint", () => plots.forEach((element) => drawn.has(element) || draw(element)));
  new MutationObserver(() => drawn.forEach(draw)).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });

  document.getElementById("filter").addEventListener("change", (event) => {
    const wanted = event.target.value;
    const shown = (element) => !wanted || Boolean(element.querySelector(`tr[data-status="${wanted}"]`));
    document.querySelectorAll(".claims > tbody").forEach((claim) => { claim.hidden = !shown(claim); });
    document.querySelectorAll(".study").forEach((study) => {
      study.hidden = !shown(study);
      if (study.previousElementSibling?.tagName === "H2") study.previousElementSibling.hidden = study.hidden;
    });
  });
  document.documentElement.dataset.ready = "yes";
})();
