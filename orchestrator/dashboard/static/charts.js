// The charts of a job, drawn by uPlot from /jobs/<id>/charts. Each chart has one group of series.
"use strict";

(() => {
  const box = document.getElementById("charts");
  const list = document.getElementById("chart-list");
  const more = document.getElementById("more-list");
  const pulse = () => document.getElementById("pulse").dataset;
  const address = `/jobs/${encodeURIComponent(box.dataset.job)}/charts`;
  const POINTS = 1000;
  const HEIGHT = 190;
  const WORDS = {
    compute_s: "computing", communication_s: "communication", data_s: "data", snapshot_s: "snapshot",
    memory_allocated_bytes: "allocated", memory_peak_bytes: "peak", memory_reserved_bytes: "reserved",
    tokens_per_s: "tokens", samples_per_s: "samples", grad_norm: "norm",
  };
  const KNOWN = [
    { title: "Loss", names: ["loss"], log: true },
    { title: "Throughput per second", names: ["tokens_per_s", "samples_per_s"] },
    { title: "Model FLOPs utilization (MFU)", names: ["mfu"], percent: true },
    { title: "Gradient norm", names: ["grad_norm"] },
    { title: "Step time, seconds", names: ["compute_s", "communication_s", "data_s", "snapshot_s"] },
    { title: "Device memory of rank 0, bytes", names: ["memory_allocated_bytes", "memory_peak_bytes", "memory_reserved_bytes"] },
  ];
  const HIDDEN = new Set(["step_s"]); // its parts are drawn
  const { axis, color, line, shade, words } = plots;

  let data = null; // the last answer of the service
  let charts = []; // {group, plot, figure}
  let range = null; // [first, last] step that is shown; null: all
  let logScale = false;
  let seen = { term: "", step: "" };
  let busy = false;
  let wanted = null; // a refresh that was requested meanwhile; true: of all steps, false: of new ones

  const groupsOf = (series) => {
    const left = new Set(Object.keys(series).filter((name) => !HIDDEN.has(name)));
    const groups = [];
    for (const known of KNOWN) {
      const names = known.names.filter((name) => left.has(name));
      for (const name of names) left.delete(name);
      if (names.length) groups.push({ ...known, names, key: known.title });
    }
    return [...groups, ...[...left].sort().map((name) => ({ title: name, names: [name], key: `+${name}`, extra: true }))];
  };

  // --- marks: takeovers as lines, snapshots as diamonds on the axis
  const marks = () => ({
    hooks: {
      draw: [
        (plot) => {
          const { ctx, bbox } = plot;
          const [low, high] = [plot.scales.x.min, plot.scales.x.max];
          ctx.save();
          for (const [step, text, , isNew] of data.takeovers) {
            if (step < low || step > high) continue;
            plots.mark(plot, step, data.takeovers.length <= 12 ? text : "", isNew);
          }
          ctx.fillStyle = color("--green");
          ctx.textAlign = "center";
          for (const step of data.snapshots) {
            if (step < low || step > high) continue;
            ctx.fillText("◆", plot.valToPos(step, "x", true), bbox.top + bbox.height - 2);
          }
          ctx.restore();
        },
      ],
    },
  });

  const build = (group, figure) => {
    const lines = group.names.map((name, index) => ({
      label: WORDS[name] ?? name,
      ...line(index, index),
      fill: group.names.length === 1 ? (plot) => shade(plot) : undefined,
      spanGaps: false,
      points: { show: data.steps.length < 40, size: 4 },
      value: (_, value) => (group.percent && value !== null ? `${(100 * value).toFixed(1)}%` : words(value)),
    }));
    const options = {
      width: figure.clientWidth,
      height: HEIGHT,
      cursor: { sync: { key: "steps" }, drag: { x: true, y: false, setScale: false } },
      legend: { live: true },
      scales: { x: { time: false }, y: { distr: group.log && logScale ? 3 : 1 } },
      axes: [
        { ...axis(), size: 30, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? tick.toLocaleString("en") : "")) },
        { ...axis(), size: 62, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : group.percent ? `${Math.round(100 * tick)}%` : words(tick))) },
      ],
      series: [{ label: "step", value: (_, value) => (value === null ? "–" : value.toLocaleString("en")) }, ...lines],
      plugins: [marks()],
      hooks: {
        setSelect: [
          (plot) => {
            if (plot.select.width < 4) return;
            const ends = [plot.select.left, plot.select.left + plot.select.width].map((x) => Math.round(plot.posToVal(x, "x")));
            plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
            look(ends);
          },
        ],
      },
    };
    return new uPlot(options, table(group), figure);
  };

  const table = (group) => {
    const positive = (value) => (value !== null && value > 0 ? value : null); // others have no logarithm
    return [data.steps, ...group.names.map((name) => (group.log && logScale ? data.series[name].map(positive) : data.series[name]))];
  };

  const summary = (group) => {
    const parts = group.names.map((name) => {
      const values = data.series[name].filter((value) => value !== null);
      const word = WORDS[name] ?? name;
      if (!values.length) return `${word}: none`;
      let [low, high] = [Infinity, -Infinity];
      for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
      const show = (value) => (group.percent ? `${(100 * value).toFixed(1)}%` : words(value));
      return group.names.length > 1 ? `${word} ${show(values.at(-1))}` : `${word} ${show(values.at(-1))} · ${show(low)} to ${show(high)}`;
    });
    return parts.join(" · ");
  };

  const draw = () => {
    const groups = groupsOf(data.series);
    const none = document.getElementById("no-charts");
    none.hidden = groups.length > 0;
    if (data.steps.length) none.textContent = "No metrics were reported.";
    const same = groups.map((group) => `${group.key}:${group.names}`).join("|") === charts.map(({ group }) => `${group.key}:${group.names}`).join("|");
    if (!same) {
      for (const { plot } of charts) plot.destroy();
      list.replaceChildren();
      more.replaceChildren();
      charts = groups.map((group) => {
        const figure = document.createElement("figure");
        const title = document.createElement("h3");
        title.textContent = group.title;
        const caption = document.createElement("figcaption");
        caption.className = "note";
        const head = document.createElement("div");
        head.className = "chart-head";
        head.append(title, caption);
        figure.append(head);
        (group.extra ? more : list).append(figure);
        const plot = build(group, figure);
        return { group, plot, figure, caption };
      });
      document.getElementById("more-charts").hidden = !groups.some((group) => group.extra);
    }
    for (const { group, plot, caption } of charts) {
      if (same) plot.setData(table(group), true);
      caption.textContent = summary(group);
    }
  };

  const redraw = () => {
    if (!data) return;
    for (const { plot } of charts) plot.destroy();
    list.replaceChildren();
    more.replaceChildren();
    charts = [];
    draw();
  };

  const ask = async (query) => {
    const answer = await fetch(`${address}?${new URLSearchParams(query)}`);
    if (!answer.ok) throw new Error(String(answer.status));
    return answer.json();
  };

  // Adds new steps. Fetches all steps again if a new generation began or steps are repeated.
  const refresh = async (whole) => {
    if (busy) {
      wanted = wanted || whole;
      return;
    }
    busy = true;
    const now = { term: pulse().term, step: pulse().step };
    try {
      const last = data?.steps.at(-1) ?? -1;
      if (!whole && data && !range && now.term === seen.term && Number(now.step) > last && data.steps.length < 2 * POINTS) {
        const fresh = await ask({ since_step: last, marks_since: -1, points: POINTS });
        const known = data.steps.length;
        data.steps.push(...fresh.steps);
        for (const name of new Set([...Object.keys(data.series), ...Object.keys(fresh.series)])) {
          data.series[name] ??= Array(known).fill(null);
          data.series[name].push(...(fresh.series[name] ?? fresh.steps.map(() => null)));
        }
        data.takeovers.push(...fresh.takeovers);
        data.snapshots = fresh.snapshots;
      } else {
        const [first, end] = range ?? [0, null];
        data = await ask({ since_step: first - 1, points: POINTS, ...(end === null ? {} : { until_step: end }) });
      }
      seen = now;
      draw();
    } catch {
      // app.js shows that the service is not reachable. The next change tries again.
    } finally {
      busy = false;
      if (wanted !== null) {
        const next = wanted;
        wanted = null;
        refresh(next);
      }
    }
  };

  const look = (ends) => {
    range = ends && ends[1] > ends[0] ? [Math.max(0, ends[0]), ends[1]] : null;
    refresh(true);
  };

  box.addEventListener("click", (event) => {
    const last = event.target.dataset?.last;
    if (last === undefined) return;
    const end = Number(pulse().step);
    look(last && end ? [Math.max(0, end - Number(last) + 1), end] : null);
  });
  box.addEventListener("dblclick", (event) => {
    if (event.target.closest(".u-over")) look(null);
  });
  document.getElementById("log-scale").addEventListener("click", (event) => {
    logScale = !logScale;
    event.target.setAttribute("aria-pressed", String(logScale));
    redraw();
  });
  document.addEventListener("page:fresh", () => {
    if (pulse().step !== seen.step || pulse().term !== seen.term) refresh(false);
  });
  document.getElementById("more-charts").addEventListener("toggle", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let width = list.clientWidth;
  new ResizeObserver(() => {
    if (list.clientWidth === width) return;
    width = list.clientWidth;
    for (const { plot, figure } of charts) plot.setSize({ width: figure.clientWidth, height: HEIGHT });
  }).observe(list);
  refresh(true);
})();
