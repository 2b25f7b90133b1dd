"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colours = () => ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6"].map(css);
  const onTime = ["chart-time", "chart-load", "chart-heat"].filter((id) => document.getElementById(id));
  const config = { displaylogo: false, displayModeBar: window.innerWidth < 640 ? false : "hover", responsive: true, modeBarButtons: [["toImage"], ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]] };
  const narrow = () => window.innerWidth < 640;

  const layout = (x, y, more) => {
    const axis = { gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--soft"), automargin: true };
    const { xaxis = {}, yaxis = {}, ...rest } = more || {};
    return {
      paper_bgcolor: css("--bg"), plot_bgcolor: css("--bg"), font: { color: css("--fg"), size: 12 },
      colorway: colours(), margin: { l: 56, r: narrow() ? 8 : 56, t: 8, b: 44 }, hovermode: "closest",
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
        layout("s from the start of the schedule", "TTFT, ms", { yaxis: { rangemode: "tozero" }, shapes: warmup() })];
    },
    "chart-load": () => {
      const d = data.load;
      const right = { gridcolor: css("--line"), overlaying: "y", side: "right", rangemode: "tozero",
        title: { text: "in flight; output tokens/s ÷ 100" }, showgrid: false, automargin: true };
      return [[line(d.t, d.asked, "asked/s", { line: { dash: "dot" } }), line(d.t, d.completed, "completed/s"),
        line(d.t, d.failed, "failed/s", { line: { color: css("--c5") } }),
        line(d.t, d.in_flight, "in flight", { yaxis: "y2", line: { color: css("--c4") } }),
        line(d.t, d.output_tokens.map((v) => v / 100), "output tokens/s ÷ 100", { yaxis: "y2", line: { color: css("--c6") } })],
      layout("s from the start of the schedule", "requests/s", { yaxis: { rangemode: "tozero" }, yaxis2: right, shapes: warmup() })];
    },
    "chart-heat": () => {
      const d = data.itl_heat;
      const dark = matchMedia("(prefers-color-scheme: dark)").matches;
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
    "chart-slowest": () => {
      const names = ["held", "lag", "to sent", "to first", "streaming", "to the end"];
      const rows = data.slowest.slice().reverse();
      const y = rows.map((r) => `#${r.index}`);
      return [names.map((name) => ({ type: "bar", orientation: "h", name, y, x: rows.map((r) => r.parts_ms[name] || 0),
        hovertemplate: "%{y} " + name + " %{x} ms<extra></extra>" })),
      layout("ms since due", "request", { barmode: "stack", yaxis: { type: "category" } })];
    },
  };
  const warmup = () => (data.warmup_s ? [{ type: "rect", xref: "x", yref: "paper", x0: 0, x1: data.warmup_s, y0: 0, y1: 1,
    fillcolor: css("--soft"), opacity: 0.15, line: { width: 0 } }] : []);

  const draw = (id) => {
    const element = document.getElementById(id);
    if (!element) return;
    const [traces, plan] = charts[id]();
    Plotly.react(element, traces, plan, config);
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
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawAll(); if (range) show(range); });
  document.documentElement.dataset.drawn = "yes";
})();
