// Scales, ticks and colours of canvases. A scale maps values of a column to pixels and back.

import { coloursOf, cssColour, digits, el, start } from "./kit.js";

/** Round numbers between two others. */
export function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const raw = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999) || power;
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
  return found;
}

function logTicks(low, high, count) {
  const decades = Math.log10(high / low);
  if (decades < 1.2) return ticks(low, high, count).filter((tick) => tick > 0);
  const multiples = decades <= 2.5 && count > 4 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(decades / Math.max(count, 2)));
  const found = [];
  for (let k = Math.floor(Math.log10(low)); k <= Math.ceil(Math.log10(high)); k += every) {
    for (const m of multiples) if (m * 10 ** k >= low * 0.999 && m * 10 ** k <= high * 1.001) found.push(m * 10 ** k);
  }
  return found;
}

/** Whether a column can be, and by itself would be, on a logarithmic axis. */
export function canLog(column) {
  return !column.isText && column.stats.low > 0 && column.stats.high > column.stats.low;
}

export function wantsLog(column) {
  return canLog(column) && column.stats.high / column.stats.low > 50;
}

/**
 * Scale of a column between two pixels: `at(value)`, `value(pixel)`, `ticks` with their places and texts, `title`.
 * `range` takes the place of the column's own least and largest value.
 */
export function scaleOfColumn(column, from, to, { log = false, count = 6, range = null } = {}) {
  const { title, factor } = column.titled();
  if (column.isText) {
    const n = Math.max(1, column.levels.length);
    const at = (code) => from + ((code + 0.5) / n) * (to - from);
    const value = (pixel) => ((pixel - from) / (to - from)) * n - 0.5;
    const every = Math.ceil(n / Math.max(count * 2, 3));
    const marks = column.levels.map((level, code) => ({ at: at(code), text: String(level) })).filter((_, code) => code % every === 0);
    return { at, value, ticks: marks, title, log: false, step: Math.abs(to - from) / n };
  }
  let [low, high] = range || [column.stats.low, column.stats.high];
  if (!(high >= low)) [low, high] = [0, 1];
  const logs = log && low > 0;
  if (high === low) [low, high] = logs ? [low / 1.1, high * 1.1] : [low - (Math.abs(low) || 1) * 0.05, high + (Math.abs(high) || 1) * 0.05];
  const f = logs ? Math.log : (v) => v, inverse = logs ? Math.exp : (v) => v;
  const pad = (f(high) - f(low)) * 0.03;
  const a = f(low) - pad, b = f(high) + pad, k = (to - from) / (b - a);
  const at = (v) => from + (f(v) - a) * k;
  const value = (pixel) => inverse(a + (pixel - from) / k);
  const found = (logs ? logTicks : ticks)(inverse(a) / factor, inverse(b) / factor, count);
  return { at, value, ticks: found.map((tick) => ({ at: at(tick * factor), text: digits(tick, 6) })), title, log: logs, step: 0 };
}

/** Level of a text column at a place of its scale. */
export function levelAt(column, value) {
  return column.levels[Math.min(column.levels.length - 1, Math.max(0, Math.round(value)))];
}

/** What lies between two pixels of a scale, as a brush of the column; nothing where that is nothing. */
export function brushBetween(column, scale, one, other) {
  const [a, b] = [scale.value(one), scale.value(other)].sort((x, y) => x - y);
  if (!column.isText) return [a, b];
  const held = column.levels.filter((_, code) => code > a - 0.35 && code < b + 0.35);
  return held.length ? new Set(held) : null;
}

// ---------------------------------------------------------------------------------------------- colours

// Cividis (Nunez, Anderton, Renslow 2018), made for readers who see fewer colours; its ends are cut, so that both stand out on the page.
const RAMP = { light: ["#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#d9c84a"], dark: ["#3f64a8", "#5f7096", "#7c7b78", "#95907a", "#b0a475", "#cbba69", "#e6cf59", "#fee838"] };

function rgb(hex) {
  const full = /^#(.)(.)(.)$/.test(hex) ? hex.replace(/^#(.)(.)(.)$/, "#$1$1$2$2$3$3") : hex;
  const n = parseInt(full.slice(1), 16);
  return [(n >> 16) & 255, (n >> 8) & 255, n & 255];
}

/** A colour as canvases' pixels hold it. */
export function packed(hex, alpha = 255) {
  const [r, g, b] = rgb(cssColour(hex));
  return ((alpha << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

export function isDark() {
  return getComputedStyle(document.documentElement).colorScheme.includes("dark");
}

function ramp() {
  const stops = RAMP[isDark() ? "dark" : "light"].map(rgb);
  return Array.from({ length: 64 }, (_, i) => {
    const place = (i / 63) * (stops.length - 1), k = Math.min(stops.length - 2, Math.floor(place)), part = place - k;
    const mixed = stops[k].map((v, c) => Math.round(v + (stops[k + 1][c] - v) * part));
    return `#${mixed.map((v) => v.toString(16).padStart(2, "0")).join("")}`;
  });
}

const DARK_RESOURCES = { "#000000": "#e7eaee", "#0072B2": "#3b9ad9", "#7F3C00": "#c07a3c", "#666666": "#9a9a9a" };

/** A colour as it is legible on the page: dark ones are lighter on a dark ground. */
export function onGround(hex) {
  return isDark() ? DARK_RESOURCES[hex] || hex : hex;
}

/**
 * Colours of rows by a column: `of` gives each row's class, `colours` those of the classes, `legend` their names.
 * Names have a colour each; numbers one of a ramp.
 */
export function colouring(column, log) {
  if (!column || column.isConstant) return { of: () => 0, colours: [onGround(start.series[0])], legend: [], ramp: null };
  const values = column.values;
  if (column.isText) {
    const colours = coloursOf(column.levels.map(String)).map((colour) => onGround(cssColour(colour)));
    const more = column.levels.length > 12;
    const legend = column.levels.map((level, i) => ({ text: String(level), level, colour: colours[i] }));
    return { of: (i) => (values[i] >= 0 ? values[i] : 0), colours, legend: more ? legend.slice(0, 12) : legend, left: Math.max(0, legend.length - 12), ramp: null };
  }
  const colours = ramp();
  const { low, high } = column.stats;
  const f = log ? Math.log : (v) => v;
  const a = f(low), k = 63.999 / (f(high) - a);
  return { of: (i) => { const v = values[i]; return v === v ? Math.max(0, Math.min(63, ((f(v) - a) * k) | 0)) : 0; }, colours, legend: [], ramp: [low, high] };
}

/** A canvas as wide and high as its element, in the screen's own pixels; its context, its size and how many pixels a unit has. */
export function fitted(canvas) {
  const ratio = Math.min(3, devicePixelRatio || 1);
  const width = Math.max(10, canvas.clientWidth), height = Math.max(10, canvas.clientHeight);
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { context, width, height, ratio };
}

/** A text cut in its middle so that it is no wider than some pixels. */
export function cut(context, text, most) {
  if (context.measureText(text).width <= most) return text;
  let kept = text.length;
  while (kept > 3 && context.measureText(`${text.slice(0, Math.ceil(kept / 2))}…${text.slice(-Math.floor(kept / 2))}`).width > most) kept--;
  return `${text.slice(0, Math.ceil(kept / 2))}…${text.slice(-Math.floor(kept / 2))}`;
}

/** Both axes of a plot with their grid, around a box. */
export function drawAxes(context, box, x, y) {
  const ink = cssColour("var(--soft)"), line = cssColour("var(--line)");
  context.font = "11px system-ui, sans-serif";
  context.lineWidth = 1;
  context.strokeStyle = line;
  context.fillStyle = ink;
  context.textAlign = "center";
  context.textBaseline = "top";
  let end = -Infinity;
  for (const tick of x.ticks) {
    if (tick.at < box.left - 1 || tick.at > box.right + 1) continue;
    context.beginPath();
    context.moveTo(Math.round(tick.at) + 0.5, box.bottom);
    context.lineTo(Math.round(tick.at) + 0.5, box.bottom + 4);
    context.stroke();
    const text = cut(context, tick.text, Math.max(x.step - 8, 44)), half = context.measureText(text).width / 2;
    if (tick.at - half < end + 6) continue;
    end = tick.at + half;
    context.fillText(text, tick.at, box.bottom + 6);
  }
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const tick of y.ticks) {
    if (tick.at < box.top - 1 || tick.at > box.bottom + 1) continue;
    context.beginPath();
    context.moveTo(box.left - 4, Math.round(tick.at) + 0.5);
    context.lineTo(box.left, Math.round(tick.at) + 0.5);
    context.stroke();
    context.fillText(cut(context, tick.text, box.left - 24), box.left - 7, tick.at);
  }
  context.strokeRect(Math.round(box.left) + 0.5, Math.round(box.top) + 0.5, Math.round(box.right - box.left) - 1, Math.round(box.bottom - box.top) - 1);
  context.fillStyle = cssColour("var(--ink)");
  context.textAlign = "center";
  context.textBaseline = "bottom";
  context.fillText(cut(context, `${x.title}${x.log ? ", log" : ""}`, box.right - box.left), (box.left + box.right) / 2, box.bottom + 36);
  context.save();
  context.translate(11, (box.top + box.bottom) / 2);
  context.rotate(-Math.PI / 2);
  context.textBaseline = "middle";
  context.fillText(cut(context, `${y.title}${y.log ? ", log" : ""}`, box.bottom - box.top), 0, 0);
  context.restore();
}

/** A name that may break after its dots and underscores. */
export function breakable(text) {
  return text.split(/(?<=[._])/).flatMap((part, i) => (i ? [el("wbr"), part] : [part]));
}
