// The curves of several jobs in one chart, drawn by uPlot from /compare/curves.
"use strict";

(() => {
  const chart = document.getElementById("curve-chart");
  const metric = document.getElementById("curves-metric");
  const by = document.getElementById("curves-by");
  const log = document.getElementById("curves-log");
  const none = document.getElementById("no-curves");
  const notes = document.getElementById("curve-notes");
  const HEIGHT = 320;
  const { axis, line, words } = plots;
  const drawn = () => document.getElementById("drawn").dataset.jobs.split(" ").filter(Boolean);

  let data = null; // the last answer of the service
  let plot = null;
  let shown = ""; // what the plot shows beside its numbers
  let busy = false;

  // One table for all curves. Their positions differ, so values are missing where another curve has a point.
  const table = () => {
    const positive = (value) => (value !== null && value > 0 ? value : null); // others have no logarithm
    const isLog = log.getAttribute("aria-pressed") === "true";
    const tables = data.curves.map((curve) => {
      const points = curve[by.value].map((x, place) => [x, curve.values[place]]).filter(([x, y]) => x !== null && y !== null);
      points.sort(([one], [other]) => one - other);
      return [points.map(([x]) => x), points.map(([, y]) => (isLog ? positive(y) : y))];
    });
    return uPlot.join(tables);
  };

  const isWhole = () => plot.scales.x.min <= plot.data[0][0] && plot.scales.x.max >= plot.data[0].at(-1);

  const draw = () => {
    const kind = [by.value, log.getAttribute("aria-pressed"), ...data.curves.map((curve) => curve.label)].join("|");
    if (plot && kind === shown) {
      plot.setData(table(), isWhole()); // keeps a zoom
      return;
    }
    shown = kind;
    plot?.destroy();
    plot = null;
    chart.replaceChildren();
    const isKnown = data.curves.some((curve) => curve[by.value].some((x, place) => x !== null && curve.values[place] !== null));
    none.hidden = isKnown;
    if (!isKnown) {
      none.textContent = data.curves.length ? "No job has reported this yet." : "No job has reported a step yet.";
      return;
    }
    const figure = document.createElement("figure");
    chart.append(figure);
    const unit = by.value === "time" ? "seconds" : by.value;
    const lines = data.curves.map((curve, index) => ({
      label: curve.label,
      ...line(index, Math.floor(index / 4)), // four colors
      spanGaps: true,
      value: (_, value) => words(value),
    }));
    const options = {
      width: figure.clientWidth,
      height: HEIGHT,
      scales: { x: { time: false }, y: { distr: log.getAttribute("aria-pressed") === "true" ? 3 : 1 } },
      axes: [
        { ...axis(), size: 44, label: unit, labelSize: 16, labelFont: axis().font, values: (_, ticks) => ticks.map(words) },
        { ...axis(), size: 62, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : words(tick))) },
      ],
      series: [{ label: unit, value: (_, value) => words(value) }, ...lines],
    };
    plot = new uPlot(options, table(), figure);
  };

  const offer = (names) => {
    const chosen = metric.value;
    const wanted = names.includes(chosen) ? names : [chosen, ...names];
    if (wanted.join() === [...metric.options].map((option) => option.value).join()) return;
    metric.replaceChildren(...wanted.map((name) => new Option(name, name, false, name === chosen)));
  };

  const note = (text) => Object.assign(document.createElement("p"), { className: "note", textContent: text });

  const refresh = async () => {
    if (busy || !drawn().length) return;
    busy = true;
    try {
      const query = new URLSearchParams([...drawn().map((job) => ["job", job]), ["metric", metric.value]]);
      const answer = await fetch(`/compare/curves?${query}`);
      if (!answer.ok) throw new Error(String(answer.status));
      data = await answer.json();
      offer(data.names);
      notes.replaceChildren(...data.notes.map(note));
      draw();
    } catch {
      // app.js shows that the service is not reachable. The next change tries again.
    } finally {
      busy = false;
    }
  };

  const redraw = () => {
    shown = "";
    if (data) draw();
  };
  metric.addEventListener("change", refresh);
  by.addEventListener("change", redraw);
  log.addEventListener("click", () => {
    log.setAttribute("aria-pressed", String(log.getAttribute("aria-pressed") !== "true"));
    redraw();
  });
  document.addEventListener("page:fresh", refresh);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let width = chart.clientWidth;
  new ResizeObserver(() => {
    if (chart.clientWidth === width) return;
    width = chart.clientWidth;
    plot?.setSize({ width: chart.clientWidth, height: HEIGHT });
  }).observe(chart);
  refresh();
})();
