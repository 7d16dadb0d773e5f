// What the ranks of a job use, drawn by uPlot from /api/v1/jobs/<id>/resources. Each chart has one line for each rank.
"use strict";

(() => {
  const { axis, line, shade, words } = plots;
  const box = document.getElementById("resources");
  const list = document.getElementById("resource-list");
  const note = document.getElementById("resource-note");
  const address = `/api/v1/jobs/${encodeURIComponent(box.dataset.job)}/resources?points=300`;
  const HEIGHT = 170;
  const EVERY_MS = 10000;
  const LEAST_SPAN_S = 30;
  const MOST_LABELS = 12;
  const MINUTE = 60, HOUR = 3600, DAY = 86400;
  const DISTANCES = [1, 5, 10, 30, MINUTE, 5 * MINUTE, 10 * MINUTE, 30 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 30 * DAY];
  const GROUPS = [
    { title: "Memory, bytes", name: "memory_bytes" },
    { title: "CPU, busy cores", name: "cpu_cores" },
    { title: "GPU memory, bytes", name: "gpu_memory_bytes" },
    { title: "GPU utilization", name: "gpu_utilization", percent: true },
  ];

  let data = null; // the last answer of the service
  let charts = []; // {group, plot, figure, caption}
  let askedMs = -Infinity;
  let isOver = false; // the answer was requested after the job had ended

  const seconds = (time) => Date.parse(time) / 1000;
  const clock = (at, span) => {
    const text = new Date(at * 1000).toISOString();
    return span > DAY ? `${text.slice(5, 10)} ${text.slice(11, 16)}` : text.slice(11, span > 1800 ? 16 : 19);
  };
  const show = (group, value) => (group.percent && value !== null && value !== undefined ? `${Math.round(100 * value)}%` : words(value));

  const marks = () => ({
    hooks: {
      draw: [
        (plot) => {
          const { min, max } = plot.scales.x;
          plot.ctx.save();
          for (const [index, start] of data.starts.entries()) {
            const isNew = index > 0 && start.attempt !== data.starts[index - 1].attempt;
            const at = seconds(start.at);
            if (index === 0 || at < min || at > max) continue;
            const text = isNew ? `a${start.attempt}` : `g${start.generation}`;
            plots.mark(plot, at, data.starts.length <= MOST_LABELS ? text : "", isNew);
          }
          plot.ctx.restore();
        },
      ],
    },
  });

  const table = (group) => [data.at.map(seconds), ...data.ranks.map((rank) => rank[group.name])];

  const build = (group, figure) => {
    const span = (plot) => plot.scales.x.max - plot.scales.x.min;
    const options = {
      width: figure.clientWidth,
      height: HEIGHT,
      cursor: { sync: { key: "resources" }, drag: { x: false, y: false } },
      legend: { live: true },
      scales: {
        x: { time: false, range: (_, low, high) => [low, Math.max(high, low + LEAST_SPAN_S)] },
        y: { range: (_, low, high) => [0, high > 0 ? 1.05 * high : 1] },
      },
      axes: [
        { ...axis(), size: 30, space: 90, incrs: DISTANCES, values: (plot, ticks) => ticks.map((tick) => clock(tick, span(plot))) },
        { ...axis(), size: 62, values: (_, ticks) => ticks.map((tick) => show(group, tick)) },
      ],
      series: [
        { label: "UTC", value: (_, value) => (value === null ? "–" : clock(value, 0)) },
        ...data.ranks.map((rank, index) => ({
          label: `rank ${rank.rank}`,
          ...line(index, Math.floor(index / 4)),
          fill: data.ranks.length === 1 ? shade : undefined,
          spanGaps: true,
          points: { show: data.at.length < 40, size: 4 },
          value: (_, value) => show(group, value),
        })),
      ],
      plugins: [marks()],
    };
    return new uPlot(options, table(group), figure);
  };

  const summary = (group) => {
    let best = null;
    for (const rank of data.ranks) {
      for (const value of rank[group.name]) {
        if (value !== null && (best === null || value > best.value)) best = { value, rank: rank.rank };
      }
    }
    return `highest ${show(group, best.value)}${data.ranks.length > 1 ? `, rank ${best.rank}` : ""}`;
  };

  const tell = () => {
    const parts = [];
    if (data.sampled_ranks > data.ranks.length) parts.push(`The ${data.ranks.length} ranks with the most memory, of ${data.sampled_ranks}.`);
    if (data.partial) parts.push("Some nodes or older attempts are left out.");
    note.textContent = parts.join(" ");
    note.hidden = parts.length === 0;
  };

  const add = (group) => {
    const [figure, head, title, caption] = ["figure", "div", "h3", "figcaption"].map((name) => document.createElement(name));
    title.textContent = group.title;
    caption.className = "note";
    head.className = "chart-head";
    head.append(title, caption);
    figure.append(head);
    list.append(figure);
    return { group, figure, caption, plot: build(group, figure) };
  };

  const draw = () => {
    const groups = GROUPS.filter((group) => data.ranks.some((rank) => rank[group.name].some((value) => value !== null)));
    box.hidden = groups.length === 0;
    const key = JSON.stringify([groups.map((group) => group.name), data.ranks.map((rank) => rank.rank), data.at.length < 40]);
    if (list.dataset.drawn !== key) {
      for (const { plot } of charts) plot.destroy();
      list.replaceChildren();
      charts = groups.map(add);
      list.dataset.drawn = key;
    }
    for (const { group, plot, caption } of charts) {
      plot.setData(table(group), true);
      caption.textContent = summary(group);
    }
    tell();
  };

  const redraw = () => {
    if (!data) return;
    list.dataset.drawn = "";
    draw();
  };

  const refresh = async () => {
    const live = document.getElementById("pulse").dataset.live === "yes";
    if (live ? performance.now() < askedMs + EVERY_MS : isOver) return;
    askedMs = performance.now();
    isOver = !live;
    try {
      const answer = await fetch(address);
      if (!answer.ok) throw new Error(String(answer.status));
      data = await answer.json();
      draw();
    } catch {
      isOver = false; // app.js shows that the service is not reachable; the next change tries again
    }
  };

  document.addEventListener("page:fresh", refresh);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let width = 0;
  new ResizeObserver(() => {
    if (list.clientWidth === width) return;
    width = list.clientWidth;
    for (const { plot, figure } of charts) plot.setSize({ width: figure.clientWidth, height: HEIGHT });
  }).observe(list);
  refresh();
})();
