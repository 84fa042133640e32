// The order of points: what does not fit never comes before what does. Nothing here draws.

import { column, data, feasible, weight } from "./study-data.js";

const EQUAL = 1e-9; // relative difference of values that are the same

/** Rows in the order of a column, those that fit first and of these the ones without a value last; in the order of the file where there is none. */
export function ordered(name, descending) {
  const found = column(name);
  return split(found ? byNumber(numbers(found), descending) : Uint32Array.from({ length: data.rows }, (_, i) => i));
}

/** What a column is ordered by: its numbers, or the places of its names in the alphabet. */
function numbers(found) {
  if (!found.isText) return found.values;
  const rank = [...found.levels.keys()].sort((a, b) => String(found.levels[a]).localeCompare(String(found.levels[b]), "en", { numeric: true }));
  const place = new Float64Array(rank.length);
  rank.forEach((code, i) => { place[code] = i; });
  return found.values.map((code) => (code >= 0 ? place[code] : NaN));
}

/** The same order, with rows that do not fit after the others. */
function split(order) {
  const fits = feasible();
  const found = new Uint32Array(order.length);
  let k = 0;
  for (const i of order) if (fits(i)) found[k++] = i;
  if (k < order.length) for (const i of order) if (!fits(i)) found[k++] = i;
  return found;
}

/** Rows by their number, equal ones as they stand in the file, NaN last: a radix sort, which takes a tenth of the time of comparisons. */
function byNumber(values, descending) {
  const n = data.rows;
  const keys = keysOf(values, n, descending);
  let order = Uint32Array.from({ length: n }, (_, i) => i), next = new Uint32Array(n);
  const counts = new Uint32Array(65537);
  for (let part = 0; part < 4; part++) {
    counts.fill(0);
    for (let i = 0; i < n; i++) counts[keys[4 * i + part] + 1]++;
    for (let k = 0; k < 65536; k++) counts[k + 1] += counts[k];
    for (let j = 0; j < n; j++) {
      const i = order[j];
      next[counts[keys[4 * i + part]]++] = i;
    }
    [order, next] = [next, order];
  }
  return order;
}

/** Four times sixteen bits of each number, the lowest first, whose order is that of the numbers. */
function keysOf(values, n, descending) {
  const copy = new Float64Array(n);
  for (let i = 0; i < n; i++) copy[i] = (descending ? -values[i] : values[i]) + 0; // no negative zero
  const words = new Uint32Array(copy.buffer);
  for (let i = 0; i < n; i++) {
    if (copy[i] !== copy[i]) words[2 * i] = words[2 * i + 1] = 0xffffffff;
    else if (words[2 * i + 1] >>> 31) {
      words[2 * i] = ~words[2 * i];
      words[2 * i + 1] = ~words[2 * i + 1];
    } else words[2 * i + 1] = (words[2 * i + 1] | 0x80000000) >>> 0;
  }
  return new Uint16Array(copy.buffer);
}

/** The row that is best in an objective, of those that fit, and are selected where `selected` says so; -1 without one. */
export function bestRow(objective, selected = false) {
  const found = objective && column(objective.name);
  if (!found || found.isText) return -1;
  const fits = feasible(), { values } = found, { mask } = data;
  const sign = objective.larger ? -1 : 1;
  let best = -1, least = Infinity;
  for (let i = 0; i < data.rows; i++) {
    if (sign * values[i] < least && (!selected || mask[i]) && fits(i)) {
      best = i;
      least = sign * values[i];
    }
  }
  return best;
}

const ranked = { key: "", order: null };

/** All rows by an objective, the best first; kept until points come. */
export function ranking(objective) {
  const key = [objective.name, objective.larger, data.rows, data.columns.size].join("|");
  if (key !== ranked.key) Object.assign(ranked, { key, order: ordered(objective.name, objective.larger) });
  return ranked.order;
}

/**
 * The best selected rows, those that fit first, one of those that `key(row)` calls alike; how many selected rows fit; how many of these
 * have the best value; and how many others are within `reach` of it, as a share.
 */
export function bestRows(objective, key, count, reach = 0) {
  const { values } = column(objective.name), fits = feasible(), { mask } = data;
  const sign = objective.larger ? -1 : 1;
  const seen = new Set(), rows = [];
  for (const i of ranking(objective)) {
    if (!mask[i] || values[i] !== values[i]) continue;
    const name = key(i);
    if (seen.has(name)) continue;
    seen.add(name);
    if (rows.push(i) === count) break;
  }
  const best = rows.length && fits(rows[0]) ? sign * values[rows[0]] : NaN;
  const edge = best + Math.abs(best) * reach, same = best + Math.abs(best) * EQUAL;
  let fitting = 0, equal = 0, near = -1;
  for (let i = 0; i < data.rows; i++) {
    const value = sign * values[i];
    if (!mask[i] || value !== value || !fits(i)) continue;
    fitting += weight(i);
    if (value <= same) equal += weight(i);
    if (value <= edge) near += weight(i);
  }
  return { rows, fitting, equal, near: reach ? Math.max(0, near) : 0, edge };
}
