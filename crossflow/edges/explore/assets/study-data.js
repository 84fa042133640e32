// The points of a study as typed arrays: columns, what is selected of them, fronts, convergence. Nothing here draws.

import { bytesOf, call, scaleOf, show, start } from "./kit.js";

/** All points, or a part of them where `weights` say how many of `all` each row stands for: columns by name, how many rows there are, what is selected (1) or not (0), and a number that grows with every change. */
export const data = { columns: new Map(), late: new Map(), rows: 0, mask: new Uint8Array(0), selected: 0, version: 0, weights: null, all: 0 };

// ---------------------------------------------------------------------------------------------- columns

const ARRAYS = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array };

/** Values that the server sent, one for each row, as numbers or as codes of levels. */
function decoded(sent, rows) {
  if ("numbers" in sent) return { numbers: new Float64Array(bytesOf(sent.numbers).buffer) };
  if ("constant" in sent) return { levels: [sent.constant], codes: new Uint8Array(rows) };
  return { levels: sent.levels, codes: new ARRAYS[sent.width](bytesOf(sent.codes).buffer) };
}

/** One column: numbers (NaN where there is none), or codes of `levels` where its values are names or yes and no. */
export class Column {
  constructor(told) {
    Object.assign(this, { name: told.name, words: told.words, unit: told.unit, role: told.role, shown: told.shown, larger: told.larger });
    this.amounts = told.amounts || null;
    this.levels = null;
    this.known = new Map();
    this.values = new Float64Array(0);
    this.size = 0;
    for (const level of told.order || []) this.code(level);
  }

  code(level) {
    this.levels = this.levels || [];
    if (!this.known.has(level)) {
      this.known.set(level, this.levels.length);
      this.levels.push(level);
    }
    return this.known.get(level);
  }

  /** Add rows; `sent` is what the server says of them, nothing for rows that lack this column. */
  append(sent, rows) {
    if (this.size + rows > this.values.length) {
      const wider = new Float64Array(this.size ? 2 * (this.size + rows) : rows);
      wider.set(this.values.subarray(0, this.size));
      this.values = wider;
    }
    const place = this.values.subarray(this.size, this.size + rows);
    if (!sent) place.fill(NaN);
    else {
      const { numbers, levels, codes } = decoded(sent, rows);
      if (numbers) place.set(numbers);
      else {
        const coded = levels.map((level) => this.number(level));
        for (let i = 0; i < rows; i++) place[i] = coded[codes[i]];
      }
    }
    this.size += rows;
    this.summary = null;
  }

  /** The number that stands for a level: itself, what a text with a unit amounts to, or a code. */
  number(level) {
    if (level === null) return NaN;
    if (typeof level === "number") return level;
    if (this.amounts) return this.amounts[level] ?? NaN;
    return this.code(level === true ? "yes" : level === false ? "no" : level);
  }

  /** Least and largest value, least positive one, whether all are the same, and the level or number that all share. */
  get stats() {
    if (this.summary) return this.summary;
    let low = Infinity, high = -Infinity, positive = Infinity, missing = 0;
    const values = this.values;
    for (let i = 0; i < this.size; i++) {
      const value = values[i];
      if (value !== value) missing++;
      else {
        if (value < low) low = value;
        if (value > high) high = value;
        if (value > 0 && value < positive) positive = value;
      }
    }
    const constant = this.size > 1 && (missing === this.size || (missing === 0 && low === high));
    this.summary = { low, high, positive, missing, constant };
    return this.summary;
  }

  get isText() {
    return this.levels !== null;
  }

  get isConstant() {
    return this.stats.constant;
  }

  /** The value of a row as a person reads it. */
  text(i) {
    return this.written(this.values[i]);
  }

  written(value) {
    if (value !== value || value === undefined) return "-";
    return this.levels ? String(this.levels[value]) : show(value, this.unit);
  }

  /** Name for narrow places: of a path its last two parts, of a technology its role. */
  get short() {
    const parts = this.words.split(".");
    if (this.role !== "setting" || parts.length < 2) return this.words;
    return parts.slice(parts.length > 2 ? -2 : parts[0] === "technology" ? -1 : 0).join(".");
  }

  /** Name with the unit in which an axis or a header has its numbers; `factor` is that unit. */
  titled() {
    if (this.isText) return { title: this.words, factor: 1 };
    const { low, high, positive } = this.stats;
    const middle = low > 0 && high / low > 30 ? Math.sqrt(low * high) : Math.max(Math.abs(low), Math.abs(high));
    if (this.unit === "1") return { title: this.words, factor: 1 };
    if (this.unit === "USD" && middle >= 1e5) return { title: `${this.words} [million USD]`, factor: 1e6 };
    const [factor, name] = scaleOf([middle, positive].find((size) => size && Number.isFinite(size)) ?? 0, this.unit);
    return { title: `${this.words} [${name}]`, factor };
  }
}

/** Take in what the page begins with. */
export function begin() {
  data.rows = start.rows;
  data.all = start.all;
  for (const told of start.columns) addColumn(told, told);
  if (start.weights) {
    const weights = new Column({ name: "", words: "", unit: "1" });
    weights.append(start.weights, data.rows);
    data.weights = weights.values;
  }
  for (const told of start.late) data.late.set(told.name, told);
  data.mask = new Uint8Array(data.rows).fill(1);
  data.selected = data.rows;
}

function addColumn(told, sent) {
  const column = new Column(told);
  column.append(sent, data.rows);
  data.columns.set(told.name, column);
  data.late.delete(told.name);
}

/** Fetch columns that the page did not begin with; those that it has are left as they are. */
export async function need(names) {
  const wanted = names.filter((name) => data.late.has(name));
  if (!wanted.length) return;
  const rows = data.rows;
  const { columns } = start.offline ? start.answers : await call("columns", { names: wanted, rows });
  if (rows !== data.rows) return need(names); // points have come meanwhile
  for (const name of wanted) if (data.late.has(name)) addColumn(data.late.get(name), columns[name]);
  return undefined;
}

/** How many points a row stands for. */
export function weight(i) {
  return data.weights ? data.weights[i] : 1;
}

/** How many points the selected rows stand for. */
export function selectedPoints() {
  if (!data.weights) return data.selected;
  let sum = 0;
  for (let i = 0; i < data.rows; i++) if (data.mask[i]) sum += data.weights[i];
  return sum;
}

/** Add rows that were written since; the number of them. */
export function extend(answer) {
  for (const column of data.columns.values()) column.append(answer.columns[column.name], answer.rows);
  data.rows += answer.rows;
  data.all += answer.rows;
  data.mask = new Uint8Array(data.rows).fill(1);
  data.version++;
  return answer.rows;
}

/** Every column, those too that are not here yet. */
export function allColumns() {
  return [...data.columns.values(), ...data.late.values()];
}

export function column(name) {
  return data.columns.get(name);
}

// ---------------------------------------------------------------------------------------------- selection

/** Whether each row fits: the study's word for designs that can be built and keep their constraints. */
export function feasible() {
  const found = column("feasible");
  if (!found) return () => true;
  const yes = found.known.get("yes");
  const values = found.values;
  return yes === undefined ? () => false : (i) => values[i] === yes;
}

/** Select the rows that lie in all brushes: by column `[low, high]`, or a Set of levels. */
export function select(brushes, onlyFeasible) {
  const mask = data.mask.fill(1);
  const n = data.rows;
  if (onlyFeasible) {
    const fits = feasible();
    for (let i = 0; i < n; i++) if (!fits(i)) mask[i] = 0;
  }
  for (const [name, brush] of Object.entries(brushes)) {
    const found = column(name);
    if (!found) continue;
    const values = found.values;
    if (brush instanceof Set) {
      const allowed = new Uint8Array(found.levels.length);
      for (const level of brush) if (found.known.has(level)) allowed[found.known.get(level)] = 1;
      for (let i = 0; i < n; i++) if (!(values[i] >= 0) || !allowed[values[i]]) mask[i] = 0;
    } else {
      const [low, high] = brush;
      for (let i = 0; i < n; i++) if (!(values[i] >= low && values[i] <= high)) mask[i] = 0;
    }
  }
  let count = 0;
  for (let i = 0; i < n; i++) count += mask[i];
  data.selected = count;
  data.version++;
}

// ---------------------------------------------------------------------------------------------- fronts and convergence

/** Rows that fit and that no other one beats in both columns, from left to right. `larger` says for each whether more is better. */
export function front(x, y, larger) {
  const fits = feasible();
  const [sx, sy] = larger.map((more) => (more ? -1 : 1));
  const rows = [];
  for (let i = 0; i < data.rows; i++) if (fits(i) && Number.isFinite(x.values[i]) && Number.isFinite(y.values[i])) rows.push(i);
  rows.sort((a, b) => sx * (x.values[a] - x.values[b]) || sy * (y.values[a] - y.values[b]) || a - b);
  const found = [];
  let least = Infinity;
  for (const i of rows) {
    const value = sy * y.values[i];
    if (value < least) {
      found.push(i);
      least = value;
    }
  }
  return sx > 0 ? found : found.reverse();
}

/** Rows that fit and that no other one beats in all objectives together. */
export function frontOfAll(objectives) {
  const fits = feasible();
  const columns = objectives.map(({ name }) => column(name).values);
  const signs = objectives.map(({ larger }) => (larger ? -1 : 1));
  const rows = [];
  for (let i = 0; i < data.rows; i++) if (fits(i) && columns.every((values) => Number.isFinite(values[i]))) rows.push(i);
  const goals = columns.length;
  rows.sort((a, b) => {
    for (let k = 0; k < goals; k++) {
      const difference = signs[k] * (columns[k][a] - columns[k][b]);
      if (difference) return difference;
    }
    return a - b;
  });
  const found = [];
  for (const i of rows) {
    let beaten = false;
    for (let j = 0; j < found.length && !beaten; j++) {
      beaten = true;
      for (let k = 1; k < goals && beaten; k++) beaten = signs[k] * (columns[k][found[j]] - columns[k][i]) <= 0;
      if (beaten && j > 8) { // what beats one beats its neighbours: look at it early next time
        const strong = found[j];
        found[j] = found[j >> 1];
        found[j >> 1] = strong;
      }
    }
    if (!beaten) found.push(i);
  }
  return found;
}

/** For each search the best of an objective by evaluations: `{ run, words, points: [[evaluations, best, row]], total }`. */
export function convergence(objective) {
  const runs = column("run"), counts = column("evaluations"), found = objective && column(objective.name);
  if (!runs || !found) return [];
  const fits = feasible();
  const sign = objective.larger ? -1 : 1;
  const words = new Map(start.searches.map((search) => [search.run, search.words]));
  const lines = new Map();
  for (let i = 0; i < data.rows; i++) {
    const run = runs.values[i];
    if (!lines.has(run)) lines.set(run, { run, words: words.get(run) || `search ${run}`, points: [], total: 0, least: Infinity });
    const line = lines.get(run);
    line.total += counts ? counts.values[i] : 1;
    const value = sign * found.values[i];
    if (value < line.least && fits(i)) {
      line.least = value;
      line.points.push([line.total, found.values[i], i]);
    }
  }
  return [...lines.values()];
}

/** Value below which a share of sorted numbers lies, between neighbours on a line. */
export function quantile(sorted, share) {
  const place = share * (sorted.length - 1), below = Math.floor(place), above = Math.ceil(place);
  return sorted[below] + (sorted[above] - sorted[below]) * (place - below);
}

/** Values of a column by the levels of others, of the selected rows that fit, sorted; and how many do not fit. */
export function groupsOf(found, by, most) {
  const fits = feasible();
  const groups = new Map();
  for (let i = 0; i < data.rows; i++) {
    if (!data.mask[i]) continue;
    const name = by.map((other) => other.text(i)).join(", ") || "all selected points";
    if (!groups.has(name)) {
      if (groups.size >= most) continue;
      groups.set(name, { name, values: [], misfits: 0 });
    }
    const group = groups.get(name);
    if (fits(i) && Number.isFinite(found.values[i])) for (let k = weight(i); k > 0; k--) group.values.push(found.values[i]);
    else group.misfits += weight(i);
  }
  return [...groups.values()].map((group) => ({ ...group, values: Float64Array.from(group.values).sort() }));
}

// ---------------------------------------------------------------------------------------------- what people write as a filter

/** What a person wrote beside a column as a brush: `< 20 ms`, `3 .. 5 GiB`, or part of a name. Nothing where it is empty; an Error otherwise. */
export function brushOf(found, text) {
  const written = text.trim();
  if (!written) return null;
  if (found.isText) {
    const parts = written.toLowerCase().split("|").map((part) => part.trim()).filter(Boolean);
    return new Set(found.levels.filter((level) => parts.some((part) => String(level).toLowerCase().includes(part))));
  }
  const between = /^(.*?)\s*\.\.\s*(.*)$/.exec(written);
  if (between) {
    const high = amount(found, between[2]);
    return [amount(found, between[1], between[2]), high];
  }
  const bound = /^(<=|>=|<|>|=)?\s*(.+)$/.exec(written);
  const value = amount(found, bound[2]);
  if (bound[1] === "<" || bound[1] === "<=") return [-Infinity, value];
  if (bound[1] === ">" || bound[1] === ">=") return [value, Infinity];
  return [value * (1 - Math.sign(value) * 5e-4), value * (1 + Math.sign(value) * 5e-4)];
}

/** A number with its unit, in SI; without a unit in that of `like`, else in that of the column's header. */
function amount(found, text, like = "") {
  const read = /^([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*(.*)$/i.exec(text.trim());
  if (!read) throw new Error(`expected a number, such as < 20 or 3 .. 5, got ${text}`);
  const unit = read[2] || (/[a-zµ%].*$/i.exec(like.replace(/e[+-]?\d+/i, "")) || [""])[0];
  if (unit === "%" && found.unit === "1") return Number(read[1]) / 100;
  if (!unit) return Number(read[1]) * found.titled().factor;
  const scales = [...(start.units[found.unit] || []), ...start.prefixes.map(([factor, prefix]) => [factor, prefix + found.unit])];
  const scale = scales.find(([, name]) => name === unit) || scales.find(([, name]) => name.toLowerCase() === unit.toLowerCase());
  if (!scale) throw new Error(`expected a unit of ${found.unit}, got ${unit}`);
  return Number(read[1]) * scale[0];
}
