// What matters most: how much each setting of a study moves a figure, computed over its rows. Nothing here draws.

import { column, data, feasible } from "./study-data.js";

const SAMPLE = 20_000; // rows of which shares are computed
const BINS = 10; // of a number with more values
const ENOUGH = 0.5; // share of the rows that must stand beside others which differ in one setting alone
const LARGEST = 2 ** 53; // combinations of values that have numbers of their own
const DENSE = 2 ** 22; // groups up to which their number is their place

/** Selected rows that fit and have a figure; of many points every so many, so that about `most` are looked at. */
export function usable(figure, most = Infinity) {
  const fits = feasible(), { values } = figure, { mask } = data;
  const every = Math.max(1, Math.floor(data.rows / most));
  const rows = new Uint32Array(Math.ceil(data.rows / every));
  let count = 0;
  for (let i = 0; i < data.rows; i += every) if (mask[i] && Number.isFinite(values[i]) && fits(i)) rows[count++] = i;
  return rows.subarray(0, count);
}

/**
 * How much each of some columns moves a figure: `{ way, rows, axes: [{ column, ... }] }`, the largest effect first.
 *
 * Where rows stand beside others that differ in one setting alone (`way` is "pairs"), as in a sweep, an axis has the `factor` by which its
 * worst value is worse than its best, all else as it is: the median over all such groups of rows, with the `least` and the `most`; and which
 * of its values is `best` and `worst` in the mean; `only` where all rows that fit have one value. Otherwise (`way` is "share") it has the `share` of the spread of the figure that it
 * explains by itself, less what chance would give. With `draws` of uncertain numbers, the same for all points, rows are compared in the same
 * draw.
 */
export function matters(figure, columns, larger, draws = 0) {
  const all = usable(figure);
  const found = columns.length && all.length > 1 ? inPairs(figure, columns, all, larger, draws) : null;
  if (found) return { way: "pairs", rows: all.length, axes: found.sort((a, b) => b.size - a.size) };
  const rows = usable(figure, SAMPLE);
  return { way: "share", rows: rows.length, of: all.length, axes: shares(figure, columns, rows, larger) };
}

/** Axes by their share of the spread alone, over a few rows: what the page begins with. */
export function quickly(figure, columns, most) {
  return shares(figure, columns, usable(figure, most), false);
}

// ---------------------------------------------------------------------------------------------- rows that differ in one setting

/** Codes of the values of a column in some rows, from 0 on, and these values. */
function coded({ values, isText, levels }, rows) {
  const known = isText ? new Int32Array(levels.length + 1).fill(-1) : new Map(), found = [];
  const codes = new Uint32Array(rows.length);
  for (let k = 0; k < rows.length; k++) {
    const value = values[rows[k]], missing = value !== value;
    const name = isText && missing ? levels.length : value; // a Map has one NaN
    let code = isText ? known[name] : known.get(name) ?? -1;
    if (code < 0) {
      code = found.push(value) - 1;
      if (isText) known[name] = code;
      else known.set(name, code);
    }
    codes[k] = code;
  }
  return { codes, count: found.length, values: found };
}

function inPairs(figure, columns, rows, larger, draws) {
  const sides = columns.map((found) => coded(found, rows));
  const designs = sides.reduce((product, { count }) => product * count, Math.max(1, draws));
  if (designs >= LARGEST) return null;
  const id = column("id").values;
  const whole = Float64Array.from(rows, (i) => (draws ? id[i] % draws : 0)); // a number for each combination of values
  let stride = Math.max(1, draws);
  for (const side of sides) {
    side.stride = stride;
    for (let k = 0; k < rows.length; k++) whole[k] += side.codes[k] * stride;
    stride *= side.count;
  }
  const positive = rows.every((i) => figure.values[i] > 0);
  const amounts = Float64Array.from(rows, (i) => (positive ? Math.log(figure.values[i]) : figure.values[i]));
  const found = [];
  for (const [place, side] of sides.entries()) {
    if (side.count < 2) {
      found.push({ column: columns[place], only: side.values[0], size: 0, groups: 0 });
      continue;
    }
    const effect = ofGroups(amounts, alike(whole, side, designs / side.count), side, larger);
    if (effect.covered < ENOUGH * rows.length) return null;
    const factor = positive ? Math.exp : (value) => value;
    found.push({ column: columns[place], ...effect, positive, factor: factor(effect.size), least: factor(effect.least), most: factor(effect.most) });
  }
  return found;
}

/** For each row the number of its group, the rows that are alike but for one setting; and how many numbers there are. */
function alike(whole, { stride, count }, groups) {
  const of = new Uint32Array(whole.length), known = groups > DENSE ? new Map() : null;
  for (let k = 0; k < whole.length; k++) {
    const group = Math.floor(whole[k] / (stride * count)) * stride + (whole[k] % stride);
    if (!known) of[k] = group;
    else {
      if (!known.has(group)) known.set(group, known.size);
      of[k] = known.get(group);
    }
  }
  return { of, groups: known ? known.size : groups };
}

/** What one setting does in groups of rows that are alike but for it: the spread of each group, and which values are best and worst. */
function ofGroups(amounts, { of, groups }, { codes, count, values }, larger) {
  const low = new Float64Array(groups).fill(Infinity), high = new Float64Array(groups).fill(-Infinity);
  const sums = new Float64Array(groups), sizes = new Uint32Array(groups);
  for (let k = 0; k < amounts.length; k++) {
    const group = of[k], amount = amounts[k];
    if (amount < low[group]) low[group] = amount;
    if (amount > high[group]) high[group] = amount;
    sums[group] += amount;
    sizes[group]++;
  }
  let covered = 0, met = 0;
  const spreads = new Float64Array(groups);
  for (let group = 0; group < groups; group++) {
    if (sizes[group] < 2) continue;
    covered += sizes[group];
    spreads[met++] = high[group] - low[group];
  }
  const sorted = spreads.subarray(0, met).sort();
  const middle = met ? (sorted[(met - 1) >> 1] + sorted[met >> 1]) / 2 : 0;
  const apart = new Float64Array(count), counts = new Uint32Array(count);
  for (let k = 0; k < amounts.length; k++) {
    const group = of[k];
    if (sizes[group] < 2) continue;
    apart[codes[k]] += amounts[k] - sums[group] / sizes[group];
    counts[codes[k]]++;
  }
  const order = [...apart.keys()].filter((code) => counts[code]).sort((a, b) => apart[a] / counts[a] - apart[b] / counts[b]);
  const [best, worst] = (larger ? [order.at(-1), order[0]] : [order[0], order.at(-1)]).map((code) => values[code]);
  return { covered, groups: met, size: middle, least: sorted[0], most: sorted[met - 1], best, worst };
}

// ---------------------------------------------------------------------------------------------- shares of the spread

function shares(figure, columns, rows, larger) {
  const positive = rows.every((i) => figure.values[i] > 0);
  const values = Float64Array.from(rows, (i) => (positive ? Math.log(figure.values[i]) : figure.values[i]));
  const mean = values.reduce((sum, value) => sum + value, 0) / (values.length || 1);
  const spread = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  const found = columns.map((each) => ({ column: each, ...explained(each, rows, values, mean, spread, larger) }));
  return found.sort((a, b) => b.size - a.size);
}

/** The share of a spread that lies between the groups of a column, less what chance would give (adjusted as R squared is). */
function explained(found, rows, values, mean, spread, larger) {
  const groups = grouped(found, rows);
  const sums = new Map(), counts = new Map();
  for (let k = 0; k < rows.length; k++) {
    sums.set(groups.of[k], (sums.get(groups.of[k]) || 0) + values[k]);
    counts.set(groups.of[k], (counts.get(groups.of[k]) || 0) + 1);
  }
  let between = 0;
  for (const [group, sum] of sums) between += counts.get(group) * (sum / counts.get(group) - mean) ** 2;
  const n = rows.length, k = sums.size;
  if (k < 2) return { share: 0, size: 0, only: n ? found.values[rows[0]] : NaN };
  const share = spread > 0 && n > k ? Math.max(0, 1 - ((1 - between / spread) * (n - 1)) / (n - k)) : 0;
  const order = [...sums.keys()].sort((a, b) => sums.get(a) / counts.get(a) - sums.get(b) / counts.get(b));
  const [best, worst] = larger ? [order.at(-1), order[0]] : [order[0], order.at(-1)];
  return { share, size: share, best: groups.middle(best), worst: groups.middle(worst), binned: groups.binned };
}

/** Groups of rows by a column: its values, or where a number has many of them tenths of the rows. */
function grouped(found, rows) {
  const known = new Set();
  for (const i of rows) if (known.size <= BINS || found.isText) known.add(found.values[i]);
  if (found.isText || known.size <= BINS) return { of: Array.from(rows, (i) => found.values[i]), middle: (group) => group, binned: false };
  const sorted = Float64Array.from(rows, (i) => found.values[i]).sort();
  const at = (share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
  const edges = Array.from({ length: BINS - 1 }, (_, k) => at((k + 1) / BINS));
  const of = Array.from(rows, (i) => edges.filter((edge) => found.values[i] >= edge).length);
  return { of, middle: (group) => at((group + 0.5) / BINS), binned: true };
}
