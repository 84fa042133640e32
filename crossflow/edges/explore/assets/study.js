// The page of a study: its state, and the views that share it. Every view brushes the same columns, so that a brush in one selects in all.

import { call, digits, el, framed, grouped, onState, onSystemTheme, percent, readState, replace, save, say, searchKey, show, start, themeButton, writeState } from "./kit.js";
import { allColumns, begin, brushOf, column, data, extend, feasible, frontOfAll, need, select, selectedPoints, weight } from "./study-data.js";
import { canLog, wantsLog } from "./study-axes.js";
import { bestRow } from "./study-rank.js";
import { quickly } from "./study-matter.js";
import { makeBest, makeMatters, ranked, varied } from "./study-answers.js";
import { coloursFor, frontOfAxes, line, makeScatter } from "./study-scatter.js";
import { pictureButton } from "./picture.js";
import { makeParallel } from "./study-parallel.js";
import { makeConvergence, makeDistribution, makeImportance, makeIntervals } from "./study-side.js";
import { constants, csv, makeTable } from "./study-table.js";
import { makeDesign } from "./study-design.js";

const POLL = 2000; // milliseconds between two looks for new points
const AT_ONCE = 6; // columns that are fetched together
const AXES = 8; // of the parallel coordinates at first
const QUICK = 4096; // points by which the first view is chosen

begin();

// ---------------------------------------------------------------------------------------------- state

const numeric = (found) => found && !found.isText && !found.isConstant;
const known = (name) => data.columns.has(name) || data.late.has(name);

function defaults() {
  const objectives = start.objectives.filter(({ name }) => column(name));
  const varying = [...data.columns.values()].filter((found) => !found.isConstant);
  const settings = varying.filter((found) => found.role === "setting");
  const swept = settings.filter((found) => start.swept.includes(found.name));
  const y = objectives[0]?.name ?? varying.find(numeric)?.name ?? "id";
  const figures = ["power_w", "cost_usd", "memory_needed_bytes", "mfu"].filter((name) => name !== y && numeric(column(name)));
  const figure = column(y);
  const axes_ = figure && !figure.isText && data.selected > 2 ? quickly(figure, varied(), QUICK).filter(({ share }) => share > 0) : [];
  const x = objectives.slice(1).map(({ name }) => name).find((name) => numeric(column(name)))
    ?? axes_[0]?.column.name ?? swept.at(-1)?.name ?? figures[0] ?? settings.find((found) => numeric(found) && !found.name.startsWith("techlib."))?.name ?? "id";
  const bound = column("bound_by");
  const search = column("search");
  const c = (bound && !bound.isConstant && "bound_by") || (search && !search.isConstant && "search") || (swept.length && swept[0].name) || objectives.at(-1)?.name || y;
  const chosen = settings.filter((found) => !found.name.startsWith("techlib.")); // numbers of a library are drawn, not chosen
  const axes = [...new Set([...swept, ...chosen.filter((found) => found.isText), ...chosen].map((found) => found.name).slice(0, AXES - Math.max(1, objectives.length)).concat(objectives.map(({ name }) => name)))];
  const tab = start.searches.length ? "convergence" : start.tables.intervals ? "intervals" : "distribution";
  return { by: figure && !figure.isText ? y : undefined, x, y, c, lx: undefined, ly: undefined, lc: undefined, dx: undefined, dy: undefined, inf: "hollow", front: objectives.length > 1, all: false, axes, sort: ["", false], q: "", tab, hist: y, open: undefined, theme: "auto" };
}

const first = defaults();
const state = { ...first };
const written = {}; // filters as they were written, by column
let brushes = {};

/** Take the state that an address holds; what it does not say is as at first. */
function restore(kept) {
  Object.assign(state, first);
  for (const name of ["x", "y", "c", "hist", "by"]) if (known(kept[name])) state[name] = kept[name];
  for (const name of ["lx", "ly", "lc", "dx", "dy", "front", "all"]) if (typeof kept[name] === "boolean") state[name] = kept[name];
  if (["hollow", "hidden"].includes(kept.inf)) state.inf = kept.inf;
  if (typeof kept.tab === "string" && tabs().some(([name]) => name === kept.tab)) state.tab = kept.tab;
  if (typeof kept.q === "string") state.q = kept.q;
  if (["auto", "light", "dark"].includes(kept.theme)) state.theme = kept.theme;
  if (Array.isArray(kept.axes) && kept.axes.every(known)) state.axes = kept.axes;
  if (Array.isArray(kept.sort) && known(kept.sort[0])) state.sort = [kept.sort[0], kept.sort[1] === true];
  state.open = Number.isInteger(kept.open) ? kept.open : undefined;
  brushes = {};
  for (const [name, brush] of Object.entries(kept.brush && typeof kept.brush === "object" ? kept.brush : {})) {
    if (known(name) && Array.isArray(brush)) brushes[name] = typeof brush[0] === "string" ? new Set(brush) : [brush[0] ?? -Infinity, brush[1] ?? Infinity];
  }
}

function keep() {
  const brush = Object.fromEntries(Object.entries(brushes).map(([name, kept]) => [name, kept instanceof Set ? [...kept] : kept.map((value) => (Number.isFinite(value) ? value : null))]));
  const changed = Object.fromEntries(Object.entries(state).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(first[name])));
  writeState({ ...changed, brush: Object.keys(brush).length ? brush : undefined });
}

/** Names of columns that the state needs. */
function needed() {
  return [...new Set([state.x, state.y, state.c, state.hist, state.by, state.sort[0], ...state.axes, ...Object.keys(brushes)].filter(known))];
}

// ---------------------------------------------------------------------------------------------- what views share

const cache = { front: null, frontKey: "", colours: null, coloursKey: "" };
const theme = () => `${state.theme}${matchMedia("(prefers-color-scheme: dark)").matches}`;

const app = {
  state,
  best: -1, // of the selected points
  overall: -1, // of all
  opened: -1,
  theme,
  fits: () => true,
  clear: () => clear.click(),
  objective: () => start.objectives.find(({ name }) => column(name)),
  objectives: () => start.objectives.filter(({ name }) => column(name)),
  swept: () => start.swept.map(column).filter((found) => found && !found.isConstant),
  isSwept: (name) => start.swept.includes(name),
  fitsAll: () => column("feasible")?.isConstant ?? true,
  logs(axis) {
    const found = column(state[axis]);
    return Boolean(found) && canLog(found) && (state[`l${axis}`] ?? wantsLog(found));
  },
  larger(axis) {
    const name = state[axis];
    return state[`d${axis}`] ?? start.objectives.find((objective) => objective.name === name)?.larger ?? column(name)?.larger ?? false;
  },
  colours() {
    const key = [state.c, data.rows, theme(), app.logs("c")].join("|");
    if (key !== cache.coloursKey) Object.assign(cache, { coloursKey: key, colours: coloursFor(state.c, app.logs("c")) });
    return cache.colours;
  },
  front() {
    const both = [app.larger("x"), app.larger("y")];
    const key = [state.x, state.y, both, data.rows, state.all].join("|");
    if (key !== cache.frontKey) Object.assign(cache, { frontKey: key, front: frontOfAxes(state, both) });
    return cache.front;
  },
  /** Pixels between which a column is brushed on a scale, smallest first. */
  span(found, scale) {
    const brush = brushes[found.name];
    if (!brush) return null;
    if (brush instanceof Set) {
      const places = [...brush].filter((level) => found.known.has(level)).map((level) => scale.at(found.known.get(level)));
      return places.length ? [Math.min(...places) - scale.step / 2, Math.max(...places) + scale.step / 2] : null;
    }
    const ends = brush.map((value, k) => (Number.isFinite(value) && !(scale.log && value <= 0) ? scale.at(value) : scale.at(k ? found.stats.high : found.stats.low)));
    return ends.sort((a, b) => a - b);
  },
  brush(changes) {
    for (const [name, brush] of Object.entries(changes)) {
      delete written[name];
      if (brush) brushes[name] = brush;
      else delete brushes[name];
    }
    reselect();
  },
  only(name, level) {
    const now = brushes[name];
    app.brush({ [name]: now instanceof Set && now.size === 1 && now.has(level) ? null : new Set([level]) });
  },
  filter(name, brush, text) {
    app.brush({ [name]: brush });
    if (brush) written[name] = text;
  },
  filterText(name) {
    const brush = brushes[name];
    if (!brush || written[name]) return brush ? written[name] : "";
    if (brush instanceof Set) return [...brush].join(" | ");
    const { factor } = column(name).titled();
    const [low, high] = brush.map((value) => digits(value / factor, 4));
    return brush[0] === -Infinity ? `< ${high}` : brush[1] === Infinity ? `> ${low}` : `${low} .. ${high}`;
  },
  sort(name) {
    const [now, descending] = state.sort;
    state.sort = now === name ? (descending ? ["", false] : [name, true]) : [name, false];
    changed();
  },
  axes(names) {
    state.axes = names;
    changed();
  },
  open(row) {
    app.opened = row;
    state.open = row < 0 ? undefined : column("id").values[row];
    document.body.classList.toggle("opened", row >= 0);
    design.open(row);
    keep();
    redraw();
  },
  cell(found, i, factor) {
    const value = found.values[i];
    if (value !== value) return "-";
    return found.isText ? String(found.levels[value]) : found.name === "id" || found.name === "run" ? String(value) : digits(value / factor, 5);
  },
  /** What a hint says of a row. */
  described(i) {
    const names = [...new Set(["id", "search", ...start.swept, ...start.objectives.map(({ name }) => name), state.x, state.y, state.c, "bound_by", "reason"])];
    const lines = names.map(column).filter((found) => found && found.name !== "feasible" && found.values[i] === found.values[i] && (!found.isConstant || found.name === "id")).map((found) => line(found, i));
    return [...lines, ...(app.fits(i) ? [] : ["does not fit"]), "click: open"].join("\n");
  },
  linesDrawn(count) {
    linesTold.textContent = count < data.selected ? `${grouped(count)} of ${grouped(data.selected)} selected lines are drawn` : "";
  },
};

/** Select what lies in all brushes, and find the best of it. */
function choosePoints() {
  select(brushes, state.inf === "hidden");
  app.best = bestRow(ranked(app), true);
}

function reselect() {
  choosePoints();
  keep();
  redraw();
}

// ---------------------------------------------------------------------------------------------- the page

const tabs = () => [
  ...(start.searches.length ? [["convergence", "Convergence"]] : []),
  ["distribution", "Distribution"],
  ...(start.tables.intervals || start.swept.length ? [["intervals", "Intervals"]] : []),
  ...(start.tables.importance || start.tables.comparisons ? [["importance", "What matters"]] : []),
];

const status = el("span", { class: "status", role: "status" });
const clear = el("button", { type: "button", onclick: () => { brushes = {}; for (const name of Object.keys(written)) delete written[name]; reselect(); } }, "Clear selection");
const linesTold = el("span", { class: "soft" });
const fold = (host) => host.appendChild(el("div", { class: "view" }));
const bestCard = el("section", { class: "card bestcard", "aria-label": "best designs" });
const mattersCard = el("section", { class: "card matters", "aria-label": "what matters most" });
const scatterCard = el("section", { class: "card scatter", "aria-label": "scatter plot" });
const sideCard = el("section", { class: "card side", "aria-label": "further plots" });
const parallelCard = el("section", { class: "card parallel", "aria-label": "parallel coordinates" });
const tableCard = el("section", { class: "card tablecard", "aria-label": "table" });
const panel = el("aside", { class: "card design", hidden: true, "aria-label": "design" });
const search = el("input", { type: "search", placeholder: "/ search columns", "aria-label": "search columns", class: "searchbox" });

/** A choice among columns; those that are not here yet are fetched when they are chosen. */
function chooser(label, get, set, allowed = () => true) {
  const chosen = el("select", { "aria-label": label, onchange: () => choose(chosen.value, set) });
  const fill = () => {
    const groups = [["settings", "setting"], ["figures", "figure"], ["about the point", "about"]].map(([words, role]) => {
      const names = allColumns().filter((found) => found.role === role && !(found.isConstant ?? false) && allowed(found));
      return names.length ? el("optgroup", { label: words }, names.map((found) => el("option", { value: found.name }, found.words))) : null;
    });
    replace(chosen, el("optgroup", { label: "" }), ...groups);
    chosen.firstChild.remove();
    if (column(get()) && ![...chosen.options].some((option) => option.value === get())) chosen.append(el("option", { value: get() }, column(get()).words));
    chosen.value = get();
  };
  choosers.push(fill);
  return el("label", {}, `${label} `, chosen);
}

const choosers = [];

async function choose(name, set) {
  try {
    await need([name]);
    set(name);
    changed();
  } catch (error) {
    say(error.message);
  }
}

const toggles = [];
function toggle(words, get, set, title = "", shown = () => true) {
  const button = el("button", { type: "button", title, onclick: () => { set(!get()); changed(); } }, words);
  toggles.push(() => {
    button.setAttribute("aria-pressed", String(get()));
    button.hidden = !shown();
  });
  return button;
}

function direction(axis) {
  const button = el("button", { type: "button", onclick: () => { state[`d${axis}`] = !app.larger(axis); changed(); } });
  toggles.push(() => {
    const more = app.larger(axis);
    button.textContent = `${axis} ${more ? "↑" : "↓"}`;
    button.title = `${column(state[axis])?.words}: ${more ? "more" : "less"} is better; click to turn round`;
    button.hidden = !state.front || !numeric(column(state.x)) || !numeric(column(state.y));
  });
  return button;
}

function controls() {
  const set = (axis) => (name) => {
    state[axis] = name;
    state[`l${axis}`] = undefined;
    state[`d${axis}`] = undefined;
  };
  const logs = (axis) => toggle("log", () => app.logs(axis), (on) => { state[`l${axis}`] = on; }, `logarithmic ${axis === "c" ? "colours" : `${axis} axis`}`, () => canLog(column(state[axis])));
  const more = toggle("front", () => state.front, (on) => { state.front = on; }, "designs that no other beats in both axes", () => numeric(column(state.x)) && numeric(column(state.y)));
  const goals = app.objectives();
  const whole = goals.length > 1 ? el("button", { type: "button", title: `select designs that no other beats in ${goals.map(({ name }) => column(name).words).join(", ")}`, onclick: selectFront }, `front of ${goals.length} objectives`) : null;
  return el("div", { class: "controls" },
    chooser("x", () => state.x, set("x")), logs("x"), chooser("y", () => state.y, set("y")), logs("y"),
    chooser("colour", () => state.c, set("c")), logs("c"),
    toggle("hide what does not fit", () => state.inf === "hidden", (on) => { state.inf = on ? "hidden" : "hollow"; }, "points that cannot be built, have no room, or break a constraint", () => !app.fitsAll()),
    more, direction("x"), direction("y"), whole);
}

/** Add a column that says who is on the front of all objectives, and select these. */
function selectFront() {
  const rows = frontOfAll(app.objectives());
  const name = "on_front";
  if (!data.columns.has(name)) {
    start.columns.push({ name, words: "on the front", unit: "1", role: "about", shown: true, larger: true, constant: false });
    const Column = column("id").constructor;
    const made = new Column(start.columns.at(-1));
    made.append({ constant: false }, data.rows);
    data.columns.set(name, made);
  }
  const made = column(name);
  made.values.fill(made.code("no"), 0, data.rows);
  const yes = made.code("yes");
  for (const i of rows) made.values[i] = yes;
  made.summary = null;
  app.brush({ [name]: new Set(["yes"]) });
  say(`${grouped(rows.length)} designs are on the front of all objectives`);
}

async function saveEvery() {
  try {
    await need([...data.late.keys()]);
    save(`${start.study}-selected.csv`, csv([...data.columns.values()], table.rows()), "text/csv");
  } catch (error) {
    say(error.message);
  }
}

/** Only sets of columns that this page holds can be drawn. */
function layout() {
  const button = themeButton(state.theme, (name) => { state.theme = name; changed(); });
  const shown = el("button", { type: "button", title: "the table as it is: its columns, and the selected points in its order", onclick: () => save(`${start.study}-table.csv`, csv(table.columns().map(({ found }) => found), table.rows()), "text/csv") }, "Save table as CSV");
  const every = el("button", { type: "button", title: "the selected points with all columns of the study", onclick: saveEvery }, "Save all columns as CSV");
  const heads = el("header", { class: "top" }, el("h1", {}, start.study), status, clear, button);
  const notice = start.offline ? el("p", { class: "notice plain" }, `This page is a file: ${grouped(data.rows)} points as they were when it was written. Selecting and sorting work; YAML, sliders and fresh breakdowns need crossflow explore ${start.folder}.`) : null;
  const notes = el("details", { class: "constants soft" });
  const unsourced = !start.offline && !start.source ? el("p", { class: "notice plain" }, `The study's file was not found, so designs have no YAML and no sliders here: put it into ${start.folder}, and load the page again.`) : null;
  const pages = el("div", { class: "controls" }, ...tabs().map(([name, words]) => {
    const tab = el("button", { type: "button", onclick: () => { state.tab = name; changed(); } }, words);
    toggles.push(() => tab.setAttribute("aria-pressed", String(state.tab === name)));
    return tab;
  }), chooser("of", () => state.hist, (name) => { state.hist = name; }));
  sideCard.append(pages);
  const adder = chooser("add an axis", () => "", (name) => { if (!state.axes.includes(name)) state.axes = [...state.axes, name]; });
  parallelCard.append(el("div", { class: "controls" }, el("h2", {}, "Parallel coordinates"), adder, linesTold));
  tableCard.append(el("div", { class: "controls" }, el("h2", {}, "Points"), search, shown, every), notes);
  scatterCard.append(controls());
  const ranker = chooser("by", () => state.by, (name) => { state.by = name; state.sort = ["", false]; }, (found) => found.role === "figure" && numeric(found));
  bestCard.append(el("div", { class: "controls" }, el("h2", {}, "Best designs"), ranker));
  mattersCard.append(el("div", { class: "controls" }, el("h2", {}, "What matters most")));
  replace(document.getElementById("app"), heads, notice, unsourced, start.caption ? el("p", { class: "caption soft" }, start.caption) : null,
    el("main", { class: "grid" }, bestCard, mattersCard, scatterCard, sideCard, parallelCard, tableCard), panel);
  return notes;
}

const notes = layout();
const best = makeBest(fold(bestCard), app), mattering = makeMatters(fold(mattersCard), app);
const scatterView = fold(scatterCard), parallelView = fold(parallelCard);
const scatter = makeScatter(scatterView, app);
const sides = {};
for (const [name] of tabs()) {
  const element = fold(sideCard);
  if (name === "importance") makeImportance({ element, tables: start.tables });
  const make = { convergence: makeConvergence, distribution: makeDistribution, intervals: makeIntervals }[name];
  sides[name] = { element, draw: make ? make(element, app).draw : () => {} };
}
const parallel = makeParallel(parallelView, app);
scatterCard.querySelector(".controls").append(pictureButton(scatterView, `${start.study}-scatter`, "PNG"));
parallelCard.querySelector(".controls").append(pictureButton(parallelView, `${start.study}-parallel`, "PNG"));
for (const [name, { element }] of Object.entries(sides)) {
  const button = sideCard.querySelector(".controls").appendChild(pictureButton(element, `${start.study}-${name}`, element.querySelector("canvas") ? "PNG" : "SVG"));
  toggles.push(() => { button.hidden = state.tab !== name; });
}
const table = makeTable(fold(tableCard), app);
const design = makeDesign(panel, app);

function drawStatus() {
  const fits = feasible();
  let fitting = 0;
  for (let i = 0; i < data.rows; i++) fitting += fits(i) ? weight(i) : 0;
  const part = data.weights ? `, ${grouped(data.rows)} shown: the front, the best of each objective, the extremes of numbers, and a sample that stands for the rest` : "";
  const parts = [`${grouped(data.all)} points${part}`, fitting === data.all ? "all fit" : `${grouped(fitting)} fit`];
  if (data.selected < data.rows) parts.push(`${data.weights ? "about " : ""}${grouped(selectedPoints())} selected (${percent(selectedPoints() / data.all, 2)})`);
  const by = ranked(app);
  if (app.best >= 0 && by) parts.push(`best ${column(by.name).words} ${column(by.name).text(app.best)}`);
  else if (!data.selected) parts.push("nothing matches");
  if (live.on) parts.push(start.expected ? `unfinished: ${percent(data.rows / start.expected, 2)} of ${grouped(start.expected)}` : "unfinished: new points appear here");
  if (start.age) parts.push(start.age);
  status.textContent = parts.join(" · ");
  clear.hidden = !Object.keys(brushes).length;
}

/** Draw every view in the next frame. `performance` marks tell tests how long that takes. */
const redraw = framed(() => {
  const begin = performance.now();
  for (const update of toggles) update();
  drawStatus();
  best.draw();
  mattering.draw();
  scatter.draw();
  for (const [name, side] of Object.entries(sides)) side.element.hidden = name !== state.tab;
  sides[state.tab].draw();
  sideCard.querySelector("label").hidden = !["distribution", "intervals"].includes(state.tab);
  parallel.draw();
  table.draw();
  performance.measure("redraw", { start: begin });
});

/** The state has changed in what is shown, not only in what is selected. */
function changed() {
  for (const fill of choosers) fill();
  app.overall = bestRow(ranked(app));
  choosePoints();
  keep();
  redraw();
}

/** What follows from the points themselves. */
function counted() {
  app.overall = bestRow(ranked(app));
  app.best = bestRow(ranked(app), true);
  app.fits = feasible();
  cache.frontKey = cache.coloursKey = "";
  const listed = constants();
  replace(notes, el("summary", {}, listed.length === 1 ? "1 column is the same for all points" : `${listed.length} columns are the same for all points`), listed.join("; "));
  notes.hidden = !listed.length;
  if (state.open !== undefined && app.opened < 0) {
    const row = column("id").values.subarray(0, data.rows).indexOf(state.open);
    if (row >= 0) app.open(row);
  }
}

// ---------------------------------------------------------------------------------------------- points that come later

const live = { on: !start.finished && !start.offline, offset: start.offset };

async function poll() {
  if (document.hidden) return;
  const answer = await call("tail", { offset: live.offset, file: start.file, names: [...data.columns.keys()] });
  if (answer.again) {
    location.reload();
    return;
  }
  live.offset = answer.offset;
  if (answer.rows) {
    extend(answer);
    counted();
  }
  if (answer.finished) {
    live.on = false;
    clearInterval(live.timer);
    say("the study is finished");
  }
  if (answer.rows || answer.finished) changed();
}

if (live.on) live.timer = setInterval(() => poll().catch((error) => say(error.message)), POLL);

// ---------------------------------------------------------------------------------------------- begin

search.addEventListener("input", async () => {
  state.q = search.value;
  const words = state.q.trim().toLowerCase();
  const late = words ? [...data.late.values()].filter((found) => `${found.name} ${found.words}`.toLowerCase().includes(words)).slice(0, 8) : [];
  if (late.length) await need(late.map((found) => found.name)).catch((error) => say(error.message));
  keep();
  redraw();
});
searchKey(search);
addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.target.tagName === "INPUT") return;
  if (app.opened >= 0) app.open(-1);
  else if (Object.keys(brushes).length) clear.click();
});
new ResizeObserver(() => redraw()).observe(document.body);
new ResizeObserver(() => redraw()).observe(scatterCard);
onSystemTheme(() => changed());

async function apply(kept) {
  restore(kept);
  search.value = state.q;
  await need(needed()).catch((error) => say(error.message));
  app.opened = -1;
  if (state.open === undefined) app.open(-1);
  counted();
  changed();
}

/** Fetch the columns that the page did not begin with, some at a time, so that it answers meanwhile. */
async function complete() {
  while (data.late.size) {
    await need([...data.late.keys()].slice(0, AT_ONCE));
    await new Promise((resolve) => { setTimeout(resolve, 20); });
  }
  counted();
  changed();
  if (app.opened >= 0) design.open(app.opened);
}

onState(apply);
apply(readState()).then(() => (data.late.size ? complete() : null)).catch((error) => say(error.message));
