// The plots beside the scatter: how searches converged, how values are distributed, intervals of groups, and what matters of what is not known.

import { cssColour, el, percent, replace, seriesColour, show } from "./kit.js";
import { column, convergence, data, groupsOf, quantile, weight } from "./study-data.js";
import { brushBetween, canLog, cut, drawAxes, fitted, onGround, scaleOfColumn, wantsLog } from "./study-axes.js";

const BINS = 48, MOST_GROUPS = 40;

/** Convergence of every search, the best so far over evaluations. */
export function makeConvergence(host, app) {
  const canvas = el("canvas", { class: "plot", role: "img" });
  const legend = el("div", { class: "legend" });
  replace(host, canvas, legend);
  const view = { lines: [], hover: -1 };

  function draw() {
    const objective = app.objective();
    const found = objective && column(objective.name);
    view.lines = convergence(objective).filter((line) => line.points.length);
    const { context, width, height } = fitted(canvas);
    context.clearRect(0, 0, width, height);
    if (!view.lines.length) {
      replace(legend, el("span", { class: "soft" }, "No search has found a design that fits yet."));
      return;
    }
    const box = { left: 74, right: width - 14, top: 10, bottom: height - 42 };
    const total = Math.max(...view.lines.map((line) => line.total)), first = Math.min(...view.lines.map((line) => line.points[0][0]));
    const values = view.lines.flatMap((line) => seen(line, total));
    const low = values.reduce((a, b) => Math.min(a, b), Infinity), high = values.reduce((a, b) => Math.max(a, b), -Infinity);
    const evaluations = { isText: false, stats: { low: first, high: total }, titled: () => ({ title: "evaluations", factor: 1 }) };
    const x = scaleOfColumn(evaluations, box.left, box.right, { log: total / first > 50, count: Math.round(width / 110) });
    const best = { isText: false, stats: { low, high }, titled: () => ({ ...found.titled(), title: `best ${found.titled().title} so far` }) };
    const y = scaleOfColumn(best, box.bottom, box.top, { log: canLog(found) && high / low > 5, count: 6 });
    context.save();
    context.beginPath();
    context.rect(box.left, box.top, box.right - box.left, box.bottom - box.top);
    context.clip();
    view.lines.forEach((line, k) => path(context, line, x, y, k));
    context.restore();
    drawAxes(context, box, x, y);
    chips(found);
  }

  /** The values that the axis has room for: those from a fiftieth of the evaluations on, so that bad beginnings hide no end. */
  function seen(line, total) {
    const late = line.points.findLastIndex(([evaluations]) => evaluations <= total / 50);
    return line.points.slice(Math.max(0, view.lines.length > 1 ? late : 0)).map((point) => point[1]);
  }

  function path(context, line, x, y, k) {
    context.strokeStyle = onGround(cssColour(seriesColour(k)));
    context.lineWidth = view.hover === k ? 3 : 1.6;
    context.globalAlpha = view.hover < 0 || view.hover === k ? 1 : 0.25;
    context.setLineDash([[], [6, 3], [2, 2], [8, 3, 2, 3]][Math.floor(k / 8) % 4]);
    context.beginPath();
    line.points.forEach(([evaluations, best], j) => {
      if (!j) context.moveTo(x.at(evaluations), y.at(best));
      else {
        context.lineTo(x.at(evaluations), y.at(line.points[j - 1][1]));
        context.lineTo(x.at(evaluations), y.at(best));
      }
    });
    context.lineTo(x.at(line.total), y.at(line.points.at(-1)[1]));
    context.stroke();
    context.setLineDash([]);
    context.globalAlpha = 1;
  }

  function chips(found) {
    if (view.hover >= 0) return;
    const shown = view.lines.slice(0, 12).map((line, k) => {
      const [, best, row] = line.points.at(-1);
      const look = (on) => { view.hover = on ? k : -1; draw(); };
      return el("button", { class: "chip", type: "button", title: "open the best design of this search", onclick: () => app.open(row), onpointerenter: () => look(true), onpointerleave: () => look(false) },
        el("span", { class: "key", style: { background: onGround(cssColour(seriesColour(k))) } }), `${line.words}: ${found.written(best)}`);
    });
    replace(legend, ...shown, view.lines.length > 12 ? el("span", { class: "faint" }, `and ${view.lines.length - 12} more`) : null);
  }

  return { draw };
}

/** Distribution of one column: all points as an outline, the selected ones filled. A drag brushes. */
export function makeDistribution(host, app) {
  const canvas = el("canvas", { class: "plot", role: "img" });
  const told = el("div", { class: "legend soft" });
  replace(host, canvas, told);
  const view = { scale: null, drag: null, box: null };

  function draw() {
    const found = column(app.state.hist);
    const { context, width, height } = fitted(canvas);
    context.clearRect(0, 0, width, height);
    if (!found) return;
    const box = { left: 74, right: width - 14, top: 10, bottom: height - 42 };
    const log = wantsLog(found);
    const x = scaleOfColumn(found, box.left, box.right, { log, count: Math.round(width / 110) });
    Object.assign(view, { scale: x, box });
    const bins = found.isText ? Math.max(1, found.levels.length) : BINS;
    const all = new Uint32Array(bins), chosen = new Uint32Array(bins);
    const wide = (box.right - box.left) / bins;
    for (let i = 0; i < data.rows; i++) {
      const at = x.at(found.values[i]);
      if (at !== at) continue;
      const bin = Math.max(0, Math.min(bins - 1, Math.floor((at - box.left) / wide)));
      all[bin] += weight(i);
      chosen[bin] += data.mask[i] * weight(i);
    }
    const most = Math.max(1, ...all);
    const count = { isText: false, stats: { low: 0, high: most }, titled: () => ({ title: "points", factor: 1 }) };
    const y = scaleOfColumn(count, box.bottom, box.top, { count: 5 });
    y.ticks = y.ticks.filter((tick) => y.value(tick.at) >= -1e-9 && Number.isInteger(Number(tick.text)));
    const floor = y.at(0);
    context.fillStyle = cssColour("var(--line)");
    for (let k = 0; k < bins; k++) context.fillRect(box.left + k * wide + 0.5, y.at(all[k]), Math.max(1, wide - 1), floor - y.at(all[k]));
    context.fillStyle = onGround(cssColour(seriesColour(0)));
    for (let k = 0; k < bins; k++) context.fillRect(box.left + k * wide + 0.5, y.at(chosen[k]), Math.max(1, wide - 1), floor - y.at(chosen[k]));
    const span = app.span(found, x);
    if (span) {
      context.globalAlpha = 0.15;
      context.fillStyle = cssColour("var(--accent)");
      context.fillRect(span[0], box.top, span[1] - span[0], box.bottom - box.top);
      context.globalAlpha = 1;
    }
    drawAxes(context, box, x, y);
    say(found);
  }

  function say(found) {
    if (found.isText) return replace(told, "grey: all points; blue: selected ones");
    const [group] = groupsOf(found, [], 1);
    if (!group || !group.values.length) return replace(told, "no selected point has a value and fits");
    const [low, middle, high] = [0.05, 0.5, 0.95].map((share) => found.written(quantile(group.values, share)));
    return replace(told, `selected points that fit: median ${middle}, 5 % below ${low}, 5 % above ${high}`);
  }

  const at = (event) => event.clientX - canvas.getBoundingClientRect().left;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button || !view.scale) return;
    canvas.setPointerCapture(event.pointerId);
    view.drag = { x: at(event), moved: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!view.drag || (!view.drag.moved && Math.abs(at(event) - view.drag.x) < 4)) return;
    view.drag.moved = true;
    app.brush({ [app.state.hist]: brushBetween(column(app.state.hist), view.scale, view.drag.x, at(event)) });
  });
  canvas.addEventListener("pointerup", () => {
    if (view.drag && !view.drag.moved) app.brush({ [app.state.hist]: null });
    view.drag = null;
  });
  return { draw };
}

/** Intervals of one column for each combination of the swept settings: 5 to 95 % of the draws as a bar, the median as a mark. */
export function makeIntervals(host, app) {
  const canvas = el("canvas", { class: "plot tall", role: "img" });
  const told = el("div", { class: "legend soft" });
  replace(host, el("div", { class: "scrolled" }, canvas), told);

  function draw() {
    const found = column(app.state.hist);
    if (!found || found.isText) {
      canvas.style.height = "60px";
      replace(told, "Intervals are of numbers; choose another column.");
      return;
    }
    const groups = groupsOf(found, app.swept(), MOST_GROUPS).filter((group) => group.values.length);
    const high = 34 + groups.length * 24;
    canvas.style.height = `${Math.max(120, high + 22)}px`;
    const { context, width } = fitted(canvas);
    context.clearRect(0, 0, width, high + 30);
    if (!groups.length) return replace(told, "no selected point fits");
    context.font = "12px system-ui, sans-serif";
    const left = Math.min(width * 0.42, 14 + Math.max(...groups.map((group) => context.measureText(group.name).width)));
    const ends = groups.map((group) => [quantile(group.values, 0.05), quantile(group.values, 0.5), quantile(group.values, 0.95)]);
    const stats = { low: Math.min(...ends.map((end) => end[0])), high: Math.max(...ends.map((end) => end[2])) };
    const scale = scaleOfColumn({ isText: false, stats, titled: () => found.titled() }, left + 8, width - 20, { log: wantsLog(found), count: Math.round(width / 120) });
    groups.forEach((group, k) => bar(context, group, ends[k], scale, 20 + k * 24, left));
    drawAxes(context, { left: left + 4, right: width - 14, top: 4, bottom: high - 22 }, scale, { ticks: [], title: "" });
    const misfits = groups.reduce((sum, group) => sum + group.misfits, 0);
    return replace(told, `bar: 5 to 95 % of the selected points, mark: their median${misfits ? `; ${misfits.toLocaleString("en-US")} that do not fit are left out` : ""}`);
  }

  function bar(context, group, [low, middle, high], scale, y, left) {
    context.fillStyle = cssColour("var(--ink)");
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.font = "12px system-ui, sans-serif";
    context.fillText(cut(context, group.name, left - 6), left - 2, y);
    const blue = onGround(cssColour(seriesColour(0)));
    context.strokeStyle = blue;
    context.lineWidth = 7;
    context.globalAlpha = 0.4;
    context.beginPath();
    context.moveTo(scale.at(low), y);
    context.lineTo(scale.at(high), y);
    context.stroke();
    context.globalAlpha = 1;
    context.fillStyle = onGround(cssColour(seriesColour(1)));
    context.fillRect(scale.at(middle) - 1.5, y - 7, 3, 14);
  }

  return { draw };
}

/** What of what is not known matters most: rank correlations, and the chances that one design is better than another. */
export function makeImportance(host) {
  const { importance = [], comparisons = [] } = host.tables;
  const columns = [...new Set(importance.map((row) => row.column))];
  const sums = new Map();
  for (const row of importance.filter((row) => row.column === columns[0])) {
    const entry = sums.get(row.parameter) || { name: row.parameter, sum: 0, size: 0, count: 0 };
    entry.sum += row.rank_correlation || 0;
    entry.size += Math.abs(row.rank_correlation || 0);
    entry.count++;
    sums.set(row.parameter, entry);
  }
  const groups = Math.max(1, ...[...sums.values()].map((entry) => entry.count));
  const bars = [...sums.values()].map(({ name, sum, size }) => ({ name, mean: sum / groups, size: size / groups })).sort((a, b) => b.size - a.size).slice(0, 12);
  const rows = bars.map(({ name, mean, size }) => el("tr", {}, el("td", {}, name.replace(/^techlib\./, "")),
    el("td", { class: "right" }, `${mean < 0 ? "−" : "+"}${show(size, "1", 2)}`),
    el("td", { class: "wide" }, el("span", { class: `bar ${mean < 0 ? "down" : "up"}`, style: { width: `${100 * size}%` } }))));
  replace(host.element,
    el("p", { class: "soft" }, `Rank correlation of what is drawn with ${columns[0] || "the figure"}, mean over the swept designs: + raises it, − lowers it.`),
    el("table", {}, el("tbody", {}, rows)), matrix(comparisons));
}

/** Chances that the design of a row is better than that of a column. */
function matrix(comparisons) {
  const sides = (row, side) => Object.entries(row).filter(([name]) => name.startsWith(`${side}.`)).map(([, value]) => value).join(", ");
  const first = comparisons.filter((row) => row.column === comparisons[0].column);
  const names = [...new Set(first.map((row) => sides(row, "a")))];
  if (names.length < 2 || names.length > 14) return null;
  const chance = new Map(first.map((row) => [`${sides(row, "a")}|${sides(row, "b")}`, row.probability_a_better]));
  const head = el("tr", {}, el("th", {}, "better than"), names.map((name) => el("th", { class: "right" }, name)));
  const rows = names.map((a) => el("tr", {}, el("th", {}, a), names.map((b) => el("td", { class: "right" }, a === b ? "" : percent(chance.get(`${a}|${b}`) ?? NaN, 2)))));
  return el("div", {}, el("p", { class: "soft" }, `Chance that the design of a row has the better ${comparisons[0].column}, in the same draws:`), el("div", { class: "scrolled" }, el("table", {}, el("thead", {}, head), el("tbody", {}, rows))));
}
