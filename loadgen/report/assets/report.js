"use strict";
(() => {
  const PAPER_PX = 680;
  const data = JSON.parse(document.getElementById("data").textContent);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colours = () => ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6"].map(css);
  const onTime = ["chart-time", "chart-load", "chart-heat"].filter((id) => document.getElementById(id));
  const small = matchMedia("(max-width: 639px)");
  const narrow = () => small.matches;
  const onPaper = () => document.documentElement.classList.contains("paper");
  const config = () => ({ displaylogo: false, displayModeBar: narrow() || onPaper() ? false : "hover", responsive: !onPaper(),
    modeBarButtons: [["toImage"], ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]] });

  const layout = (x, y, more) => {
    const axis = { gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--soft"), automargin: true };
    const { xaxis = {}, yaxis = {}, ...rest } = more || {};
    return {
      paper_bgcolor: css("--bg"), plot_bgcolor: css("--bg"), font: { color: css("--fg"), size: 12 },
      colorway: colours(), margin: { l: 56, r: narrow() ? 8 : 56, t: 28, b: 44 }, ...(onPaper() ? { width: PAPER_PX } : {}), hovermode: "closest",
      legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
      xaxis: { ...axis, title: { text: x }, ...xaxis }, yaxis: { ...axis, title: { text: y }, ...yaxis }, ...rest,
    };
  };
  // Plotly reads tags in labels: foreign names must not be any
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;");
  const line = (x, y, name, more) => ({ type: "scatter", mode: "lines", x, y, name, ...more });

  const charts = {
    "chart-ecdf": () => {
      const metric = document.getElementById("ecdf-metric").value;
      return [data.ecdf[metric].map((s) => line(s.x, s.y, plain(s.name))),
        layout("ms", "share answered within", { xaxis: { type: "log" }, yaxis: { range: [0, 1.02] } })];
    },
    "chart-time": () => {
      const d = data.over_time;
      return [["p50", "p95", "p99"].map((p) => line(d.t, d[p], `TTFT ${p}`, { connectgaps: false })),
        layout("s from the start of the schedule", "TTFT, ms", { yaxis: { rangemode: "tozero" }, shapes: marks() })];
    },
    "chart-load": () => {
      const panels = loadPanels();
      const element = document.getElementById("chart-load");
      // in px from above: each panel has its legend over it
      const perRow = narrow() ? 3 : 8, rows = (panel) => Math.ceil(panel.lines.length / perRow);
      const heights = panels.map((panel) => 22 * rows(panel) + 14 + (narrow() ? 95 : 115));
      const total = heights.reduce((sum, h) => sum + h, 0);
      element.style.height = `${72 + total}px`;
      const colour = ["--c1", "--c2", "--c5", "--c4", "--c3"];
      const axes = {}, traces = [];
      let from = 0;
      panels.forEach((panel, place) => {
        const n = place ? place + 1 : "", top = 1 - (from + 22 * rows(panel) + 4) / total, bottom = 1 - (from + heights[place] - 10) / total;
        from += heights[place];
        axes[`yaxis${n}`] = { gridcolor: css("--line"), zerolinecolor: css("--line"), automargin: true, rangemode: "tozero", fixedrange: true,
          domain: [Math.max(bottom, 0), top], title: { text: panel.unit, font: { size: 11 } }, ...panel.axis };
        axes[`legend${n}`] = { orientation: "h", x: 0, y: top, yanchor: "bottom", font: { size: 11 }, bgcolor: "rgba(0,0,0,0)",
          ...(narrow() && panel.lines.length > 3 ? { entrywidth: 44, itemwidth: 30 } : {}) };
        panel.lines.forEach((one, i) => traces.push(line(one.t, one.y, plain(one.name), { yaxis: `y${n}`, legend: `legend${n}`,
          line: { color: css(colour[i % colour.length]), dash: one.dash, width: 1.5, shape: one.shape }, showlegend: true })));
      });
      const bottom = panels.length > 1 ? `y${panels.length}` : "y";
      return [traces, layout("s from the start of the schedule", "", { ...axes, xaxis: { anchor: bottom }, legend: { ...axes.legend },
        hovermode: "x", shapes: marks() })];
    },
    "chart-heat": () => {
      const d = data.itl_heat;
      const dark = !onPaper() && matchMedia("(prefers-color-scheme: dark)").matches;
      return [[{ type: "heatmap", x: d.t, y: d.ms, z: d.z.map((row) => row.map((v) => (v ? Math.log10(v + 1) : null))),
        customdata: d.z, hovertemplate: "%{x} s, %{y} ms: %{customdata} tokens<extra></extra>",
        colorscale: dark ? "Viridis" : "YlGnBu", reversescale: !dark, showscale: false }],
      layout("s from the start of the schedule", "ITL, ms", { yaxis: { type: "log" } })];
    },
    "chart-prompt": () => {
      const d = data.by_prompt;
      return [[{ type: "scatter", mode: "markers", x: d.x, y: d.y, name: "request", marker: { size: 4, opacity: 0.45 } },
        line(d.median_x, d.median_y, "median", { mode: "lines+markers", line: { color: css("--c2"), width: 3 } })],
      layout("prompt tokens", "TTFT, ms", { yaxis: { rangemode: "tozero" } })];
    },
    "chart-knee": () => {
      const d = data.knee, names = Object.keys(d.curves);
      const traces = names.map((name, i) => line(d.x, d.curves[name], name, { mode: "lines+markers", yaxis: i ? "y2" : "y", text: d.names.map(plain),
        hovertemplate: "%{text}: %{x} requests/s, %{y} ms<extra></extra>", marker: { symbol: i ? "square" : "circle" } }));
      const right = { overlaying: "y", side: "right", rangemode: "tozero", showgrid: false, automargin: true, title: { text: names[1] || "" }, nticks: 6, tickmode: "auto" };
      return [traces, layout("requests/s offered", names[0] || "", { yaxis: { rangemode: "tozero" }, yaxis2: right,
        shapes: d.bracket ? [band(d.bracket[0], d.bracket[1], css("--warn"))] : [] })];
    },
    "chart-matrix": () => {
      const d = data.matrix;
      document.getElementById("chart-matrix").style.height = `${120 + 30 * d.servers.length}px`;
      const words = d.z.map((row, r) => row.map((v, c) => (v === null ? "" : d.sure[r][c] ? v.toFixed(2) : `(${v.toFixed(2)})`)));
      return [[{ type: "heatmap", x: d.users, y: d.servers, z: d.z, zmin: -1, zmax: 1, xgap: 2, ygap: 2,
        colorscale: [[0, css("--cold")], [0.5, css("--card")], [1, css("--warm")]], text: words, texttemplate: "%{text}",
        hovertemplate: "%{x} and %{y}: %{text}<extra></extra>", showscale: !narrow(), colorbar: { thickness: 12, outlinewidth: 0 } }],
      layout("", "", { xaxis: { side: "top" }, yaxis: { autorange: "reversed" }, margin: { l: narrow() ? 8 : 56, r: 8, t: 48, b: 8 } })];
    },
    "chart-slowest": () => {
      const names = ["held", "lag", "to sent", "to first", "streaming", "to the end"];
      const rows = data.slowest.slice().reverse();
      const y = rows.map((r) => `#${r.index}`);
      return [names.map((name) => ({ type: "bar", orientation: "h", name, y, x: rows.map((r) => r.parts_ms[name] || 0),
        hovertemplate: "%{y} " + name + " %{x} ms<extra></extra>" })),
      layout("ms since due", "", { barmode: "stack", yaxis: { type: "category" }, legend: { orientation: "h", y: 1.02, yanchor: "bottom", traceorder: "normal" } })];
    },
  };
  // Everything on the one time axis: requests, in flight, tokens, and what the server's machine did.
  const loadPanels = () => {
    const d = data.load, m = data.machine;
    const own = (name, y, more) => ({ t: d.t, name, y, ...more });
    const panels = [
      { unit: "requests/s", lines: [own("asked", d.asked, { dash: "dot" }), own("completed", d.completed), own("failed", d.failed)] },
      { unit: "requests", lines: [own("in flight", d.in_flight)] },
      { unit: "tokens/s", lines: [own("output tokens", d.output_tokens)] },
    ];
    const theirs = (series) => series.map((s) => ({ t: m.t, name: s.name, y: s.y }));
    if (m && m.shares.length) panels.push({ unit: "share", lines: theirs(m.shares), axis: { range: [0, 1.02], tickformat: ".0%" } });
    if (m && m.engine.length) panels.push({ unit: "in engine", lines: theirs(m.engine) });
    if (m && m.power.length) panels.push({ unit: "W", lines: theirs(m.power) });
    return panels;
  };
  const band = (from, to, fill) => ({ type: "rect", xref: "x", yref: "paper", x0: from, x1: to, y0: 0, y1: 1,
    fillcolor: fill, opacity: 0.15, line: { width: 0 } });
  const edge = (at) => ({ type: "line", xref: "x", yref: "paper", x0: at, x1: at, y0: 0, y1: 1, line: { color: css("--warn"), width: 1.5, dash: "dash" } });
  const marks = () => {
    const end = data.over_time.t.length ? data.over_time.t[data.over_time.t.length - 1] : 0;
    const found = data.warmup_s ? [band(0, data.warmup_s, css("--soft"))] : [];
    for (const [from, to] of data.unsteady) found.push(band(from, to === null ? Math.max(end, from) : to, css("--warn")), edge(to === null ? from : to));
    return found;
  };

  const draw = (id) => {
    const element = document.getElementById(id);
    if (!element) return; // a chart without data has no place on the page
    const [traces, plan] = charts[id]();
    Plotly.react(element, traces, plan, config());
  };

  let range = null; // the shared time axis; null: everything
  let moving = false;
  const show = (next) => {
    range = next;
    moving = true;
    const update = next ? { "xaxis.range": next, "xaxis.autorange": false } : { "xaxis.autorange": true };
    Promise.all(onTime.map((id) => Plotly.relayout(id, update))).finally(() => { moving = false; });
    document.getElementById("from-s").value = next ? next[0].toFixed(1) : "";
    document.getElementById("to-s").value = next ? next[1].toFixed(1) : "";
  };
  const follow = (id) => document.getElementById(id).on("plotly_relayout", (event) => {
    if (moving) return;
    if (event["xaxis.autorange"]) show(null);
    else if (event["xaxis.range[0]"] !== undefined) show([Number(event["xaxis.range[0]"]), Number(event["xaxis.range[1]"])]);
  });

  const drawAll = () => Object.keys(charts).forEach(draw);
  drawAll();
  onTime.forEach(follow);
  document.getElementById("ecdf-metric").addEventListener("change", () => draw("chart-ecdf"));
  document.getElementById("zoom").addEventListener("submit", (event) => {
    event.preventDefault();
    const from = Number(document.getElementById("from-s").value || 0);
    const to = Number(document.getElementById("to-s").value || data.over_time.t[data.over_time.t.length - 1]);
    if (to > from) show([from, to]);
  });
  document.getElementById("zoom-out").addEventListener("click", () => show(null));
  const again = () => { drawAll(); if (range) show(range); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  small.addEventListener("change", again);
  // paper is white and narrower than most screens, whatever the reader's scheme
  addEventListener("beforeprint", () => { document.documentElement.classList.add("paper"); again(); });
  addEventListener("afterprint", () => { document.documentElement.classList.remove("paper"); again(); });
  document.documentElement.dataset.drawn = "yes";
})();
