// What all charts of a job share: colors, axes, numbers, and the marks of new generations.
"use strict";

const plots = (() => {
  const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
  const LINES = ["--line-1", "--line-2", "--line-3", "--line-4"];
  const FONT = "Inter, system-ui, sans-serif";

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const words = (value) => {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size >= 1e9) return `${(value / 1e9).toPrecision(3)} G`;
    if (size >= 1e6) return `${(value / 1e6).toPrecision(3)} M`;
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    return String(Number(value.toPrecision(4)));
  };

  const axis = () => ({ stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: `11px ${FONT}` });

  const line = (tone, dash) => ({ stroke: color(LINES[tone % LINES.length]), dash: DASHES[dash % DASHES.length], width: 1.5 });

  // The fill below a single line.
  const shade = (plot) => {
    const { top, height } = plot.bbox;
    if (!height) return "transparent";
    const tone = color(LINES[0]);
    const fade = plot.ctx.createLinearGradient(0, top, 0, top + height);
    fade.addColorStop(0, `${tone}26`);
    fade.addColorStop(1, `${tone}00`);
    return fade;
  };

  // Draws a vertical line where a generation began, solid for a new attempt. The caller restores the context.
  const mark = (plot, at, text, isNew) => {
    const { ctx, bbox } = plot;
    const x = Math.round(plot.valToPos(at, "x", true));
    ctx.font = `${10.5 * devicePixelRatio}px ${FONT}`;
    ctx.strokeStyle = ctx.fillStyle = color(isNew ? "--amber" : "--quiet");
    ctx.setLineDash(isNew ? [] : [4, 4]);
    ctx.beginPath();
    ctx.textAlign = "left";
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.fillText(text, x + 3, bbox.top + 11 * devicePixelRatio);
  };

  return { axis, color, line, mark, shade, words };
})();
