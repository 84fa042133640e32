// What the page begins with: the best designs as a table, and which setting matters most.

import { digits, el, grouped, later, percent, replace, show, signed, start } from "./kit.js";
import { column, data, groupsOf, quantile } from "./study-data.js";
import { bestRows } from "./study-rank.js";
import { matters } from "./study-matter.js";
import { breakable } from "./study-axes.js";

const BEST = 10, SETTINGS = 6, AXES = 8; // designs, settings of each, and bars
const GROUPS = 5000; // designs with draws that are put in order
const PAUSE = 60; // milliseconds until what matters is worked out anew

const kept = (found) => found && !found.isConstant;
const drawn = () => Boolean(start.tables.intervals);

/** Settings that differ between points, those that the study sweeps first. */
export function varied() {
  const all = [...data.columns.values()].filter((found) => found.role === "setting" && kept(found));
  const own = all.filter((found) => start.swept.includes(found.name));
  const searched = all.filter((found) => !own.includes(found) && !found.name.startsWith("techlib."));
  return own.length && (drawn() || !start.searches.length) ? own : [...own, ...searched.filter((found) => found.isText), ...searched.filter((found) => !found.isText)];
}

/** The figure that designs are ranked by, and whether more of it is better. */
export function ranked(app) {
  const found = column(app.state.by);
  const objective = start.objectives.find(({ name }) => name === app.state.by);
  return found && !found.isText ? { name: found.name, larger: objective?.larger ?? found.larger } : null;
}

// ---------------------------------------------------------------------------------------------- the best designs

/** Put the best designs into an element. */
export function makeBest(host, app) {
  function draw() {
    const by = ranked(app);
    if (!by) return replace(host, el("p", { class: "soft" }, "No figure ranks the points."));
    if (!data.selected) return replace(host, nothing(app));
    return drawn() && varied().length ? replace(host, ...ofDraws(by)) : replace(host, ...ofRows(by));
  }

  function ofRows(by) {
    const own = varied();
    const reach = by.name === "step_time_s" && start.tie ? start.tie : 0;
    const found = bestRows(by, (i) => likeness(own, i), BEST, reach);
    const { rows, fitting, edge } = found;
    if (!rows.length) return [el("p", { class: "soft" }, "No selected point has this figure.")];
    const goals = [column(by.name), ...app.objectives().map(({ name }) => column(name)).filter(({ name }) => name !== by.name)].slice(0, 3);
    const differs = (setting) => start.swept.includes(setting.name) || new Set(rows.map((i) => short(setting, i))).size > 1;
    const shown = own.filter(differs).slice(0, SETTINGS + 1 - goals.length);
    const about = ["bound_by", "trust"].map(column).filter(kept);
    const head = ["", ...shown.map((found) => found.short), ...goals.map((found, k) => (k ? found.words : `${found.words} ${by.larger ? "↑" : "↓"}`)), "against best", ...about.map((found) => found.words), ...(fitting < rows.length ? ["fits"] : [])];
    const right = (k) => (k > shown.length && k <= shown.length + goals.length + 1 ? "right" : "");
    const first = column(by.name).values[rows[0]];
    const body = rows.map((i, place) => {
      const fits = app.fits(i), value = column(by.name).values[i];
      const tied = place > 0 && fits && reach > 0 && value <= edge;
      const cells = [mark(place, fits, tied), ...shown.map((found) => found.text(i)), ...goals.map((found) => cell(found, i)), place ? against(value, first) : "",
        ...about.map((found) => trusted(found, i)), ...(fitting < rows.length ? [fits ? "yes" : "no"] : [])];
      return el("tr", { class: fits ? "" : "misfit", tabIndex: 0, "aria-label": `open design ${column("id")?.text(i) ?? place + 1}`, onclick: () => app.open(i), onkeydown: (event) => event.key === "Enter" && app.open(i) },
        cells.map((text, k) => el("td", { class: right(k) }, text)));
    });
    return [table(head, body, right), notes(found, reach, column(by.name))];
  }

  /** Designs of which numbers were drawn: by the median of the draws that fit. */
  function ofDraws(by) {
    const found = column(by.name), own = varied();
    const groups = groupsOf(found, own, GROUPS).filter(({ values }) => values.length);
    const sign = by.larger ? -1 : 1;
    const ranked = groups.map((group) => ({ ...group, middle: quantile(group.values, 0.5), fits: group.values.length / (group.values.length + group.misfits) }));
    ranked.sort((a, b) => (b.fits >= 0.5) - (a.fits >= 0.5) || sign * (a.middle - b.middle));
    const head = ["", own.map((one) => one.short).join(", "), `${found.words}, median ${by.larger ? "↑" : "↓"}`, "5 to 95 %", "against best", "draws that fit"];
    const right = (k) => (k > 1 ? "right" : "");
    const body = ranked.slice(0, BEST).map((group, place) => {
      const ends = [0.05, 0.95].map((share) => found.written(quantile(group.values, share)));
      const cells = [mark(place, group.fits >= 0.5, false), group.name, found.written(group.middle), ends.join(" to "), place ? against(group.middle, ranked[0].middle) : "", percent(group.fits)];
      return el("tr", {}, cells.map((text, k) => el("td", { class: right(k) }, text)));
    });
    return [table(head, body, right), el("p", { class: "soft" }, `Numbers were drawn for each of ${grouped(groups.length)} designs: ranked by the median of the draws that fit.`)];
  }

  return { draw };
}

function mark(place, fits, tied) {
  if (!fits) return "";
  return place ? (tied ? `= ${place + 1}` : `${place + 1}`) : "★ 1";
}

/** What makes designs one in the list: equal settings, of searches to two digits, for a search ends among many that hardly differ. */
function likeness(own, i) {
  return own.map((found) => (start.searches.length ? short(found, i) : found.values[i])).join();
}

function short(found, i) {
  return found.isText ? found.values[i] : digits(found.values[i], 2);
}

function against(value, best) {
  const change = value / best - 1, size = Math.abs(change);
  return size < 5e-6 ? "same" : size < 5e-4 ? "< 0.05 %" : signed(change);
}

function table(head, body, right) {
  return el("div", { class: "scroll" }, el("table", { class: "best" }, el("thead", {}, el("tr", {}, head.map((text, k) => el("th", { class: right(k) }, breakable(text))))), el("tbody", {}, body)));
}

function cell(found, i) {
  return found.isText || found.unit !== "1" ? found.text(i) : digits(found.values[i], 4);
}

/** How far the figures of a row can be trusted, with its band where the study recorded one. */
function trusted(found, i) {
  const band = found.name === "trust" ? column("error_band.p90")?.values[i] : NaN;
  return Number.isFinite(band) ? `${found.text(i)} ±${digits(100 * band, 2)} %` : found.text(i);
}

function notes({ fitting, rows, near, equal }, reach, figure) {
  const told = [];
  if (equal > rows.length) told.push(`${grouped(equal)} points have the best ${figure.words}.`);
  if (!fitting) told.push("No selected design fits: these are listed by the figure alone.");
  if (near > 0) told.push(`= less than ${digits(100 * reach, 2)} % slower than the first, and not to be told from it by measured runs: ${grouped(near)} ${near === 1 ? "design" : "designs"}.`);
  const trust = column("trust"), band = column("error_band.p90");
  if (trust?.isConstant && trust.values[0] === trust.values[0]) {
    const near9 = band && Number.isFinite(band.stats.low) ? `; ${trust.text(0) === "extrapolated" ? "the nearest figures that were ever compared" : "9 of 10 similar measured runs"} were within ${digits(100 * band.stats.low, 2)}${band.stats.high > band.stats.low ? ` to ${digits(100 * band.stats.high, 2)}` : ""} %` : "";
    told.push(start.trust && !near9 ? `Trust: ${start.trust}.` : `Trust of all points: ${trust.text(0)}${near9}.`);
  }
  if (start.searches.length) told.push("Designs whose settings agree to two digits are listed once.");
  return el("p", { class: "soft" }, told.join(" "));
}

/** What stands in the place of points where no point is selected. */
export function nothing(app) {
  return el("p", { class: "nothing", role: "status" }, "No point matches the selection. ", el("button", { type: "button", onclick: app.clear }, "Clear selection"));
}

// ---------------------------------------------------------------------------------------------- what matters most

/** Put into an element how much each setting moves the figure; it is worked out when nothing has changed for a moment. */
export function makeMatters(host, app) {
  const view = { key: "" };
  const soon = later(work, PAUSE);

  function draw() {
    const key = [app.state.by, data.version, data.rows].join("|");
    if (key === view.key) return;
    view.key = key;
    soon();
  }

  function work() {
    const by = ranked(app), own = varied();
    if (!by || !data.selected) return replace(host, el("p", { class: "soft" }, by ? "No point is selected." : ""));
    if (!own.length) return replace(host, el("p", { class: "soft" }, "No setting differs between the points."));
    const found = matters(column(by.name), own.slice(0, 24), by.larger, start.draws);
    const largest = found.axes[0]?.size || 1;
    const rows = found.axes.slice(0, AXES).map((axis) => el("div", { class: "matter", title: axis.column.name },
      el("span", { class: "name" }, breakable(axis.column.short)), el("span", { class: "track" }, el("span", { class: "fill", style: { width: `${(100 * Math.max(0, axis.size)) / largest}%` } })),
      el("b", { class: "right" }, amount(axis, column(by.name), found.way)), el("span", { class: "soft told" }, ways(axis))));
    return replace(host, ...rows, el("p", { class: "soft" }, how(found, column(by.name))));
  }

  return { draw };
}

function amount(axis, figure, way) {
  if (axis.only !== undefined) return "-";
  if (way === "share") return percent(axis.share, 2);
  if (!axis.positive) return figure.written(axis.factor);
  return axis.factor < 1.00005 ? "no effect" : axis.factor < 1.1 ? signed(axis.factor - 1, 3) : `× ${digits(axis.factor, 3)}`;
}

/** Which values are best and worst, and how far the effect differs from case to case. */
function ways(axis) {
  const { column: found, best, worst } = axis;
  if (axis.only !== undefined) return `only ${found.written(axis.only)} fits`;
  if (axis.size <= 1e-6 || best === worst) return "";
  const range = axis.groups > 1 && axis.positive && axis.most / axis.least > 1.05 ? `; × ${digits(axis.least, 3)} to × ${digits(axis.most, 3)}` : "";
  return `best ${axis.binned ? "near " : ""}${found.written(best)}, worst ${axis.binned ? "near " : ""}${found.written(worst)}${range}`;
}

function how(found, figure) {
  const points = `${grouped(found.rows)} selected points that fit`;
  if (found.way === "pairs") {
    return `Between the worst and the best value of each setting, the others alike${start.draws ? " and in the same draws" : ""}: the median change of ${figure.words} over ${points}, and its range.`;
  }
  const sample = found.of > found.rows ? `, a sample of ${grouped(found.of)}` : "";
  const searched = start.searches.length ? " A search changes settings together and looks longest where it is good, so that shares overlap, and say little of what it soon left." : " What settings do only together is in none of them.";
  return `Share of the spread of ${figure.words} that each setting explains by itself, over ${points}${sample}.${searched}`;
}
