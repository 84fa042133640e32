// The page of a scenario: what is asked of crossflow when something is moved, and what is drawn of the answers.
import { call, copy, csvOf, el, later, newest, onState, onSystemTheme, readState, replace, save, say, searchKey, setTheme, start, themeButton, unhint, writeState } from "./kit.js";
import { Grid } from "./scenario-offline.js";
import { Panel, same, shown, StrategyControl } from "./scenario-panel.js";
import { levers, limits, remedies, tiles } from "./scenario-tiles.js";
import { breakdown, chip, drawLarge, fileName, memory, pinTable, profile, strip, waterfall } from "./scenario-views.js";

const FEW = 16, LEAST = 3; // curves of the profile before more are asked for, at most and at least
const MOST_PINS = 5; // beside the start
const REST = 200; // milliseconds without a move before all numbers are ranked anew
const PAUSE = 400; // before the timeline and the explanation are asked for
const NAMES = "ABCDEFGH";

// What the address holds: s settings, p pins, r reference, l locks, o objective, w whose numbers, b large curve, g groups, t theme, m more curves.
let state = { s: {}, p: [], ...readState() };
const base = start.first.now;
let now = start.first.now;
let key = start.first.key;
let chosen = now.strategy;
const initial = new Map(start.first.controls.map((control) => [control.path, control]));
let controls = new Map(start.first.controls.map((control) => [control.path, control]));
let curves = new Map();
let gains = new Map();
let order = [];
let pinned = []; // answers of the pins
let lastGood = {}; // settings of the last design that is one, with the strategy that was asked for
let stale = false; // whether what is shown belongs to that design, as the settings are none
let stamp = 0; // counts moves, so that late answers are known

// ---------------------------------------------------------------------------------------------- settings

const own = start.auto ? "auto" : undefined; // the strategy that the scenario itself asks for, where it is no plan
const automatic = () => (state.s.strategy ?? own) === "auto";

const grid = start.offline ? new Grid(start.answers, own) : null;

function value(control) {
  const found = state.s[control.path];
  return found === undefined ? control.value : found;
}

function set(changes) {
  const settings = { ...state.s };
  for (const [path, wanted] of Object.entries(changes)) {
    const control = controls.get(path);
    if (wanted === undefined || (control && same(wanted, control.value))) delete settings[path];
    else settings[path] = wanted;
  }
  apply(settings);
}

/** Take settings as they are. Another template or model keeps what it has no use for out. */
function apply(settings) {
  state.s = settings;
  moved();
}

/** Settings of a cure or a decision over those that are there. */
function also(settings) {
  const given = { ...settings };
  if ("system.devices" in given && start.count === "system.nodes") {
    const each = base.devices / (start.first.controls.find(({ path }) => path === "system.nodes")?.value || 1);
    given["system.nodes"] = Math.ceil(given["system.devices"] / each);
    delete given["system.devices"];
  }
  const whole = { ...state.s };
  for (const [path, wanted] of Object.entries(given)) {
    if (wanted === null) delete whole[path];
    else whole[path] = wanted;
  }
  apply(whole);
}

/** What evaluates the settings as they are. */
function question(more = {}) {
  return { settings: state.s, shown: drawn(), large: large(), known: key, chosen, objective: state.o, ...more };
}

function moved() {
  stamp += 1;
  unhint();
  writeState(state);
  panel.draw();
  strategy.draw();
  if (grid) {
    offline();
    return;
  }
  document.body.classList.add("behind");
  for (const overtaken of [repairs, best, neighbours, decides, timed, explains, compares]) overtaken.leave(); // so that no later answer waits for theirs
  ask(question({ shown: drawn().filter(view.profile.seen) }));
  rest();
  pause.cancel();
  pause();
}

/** Numbers whose curves are drawn: all, or the first ones, as long as 10 % of them brings something. */
function drawn() {
  return state.m ? order : order.slice(0, Math.min(FEW, Math.max(LEAST, order.filter((path) => ranked[path]?.gain > 5e-6).length)));
}

function large() {
  return state.b ? [state.b] : [];
}

// ---------------------------------------------------------------------------------------------- answers

const ask = newest("evaluate", answered, failed, (busy) => document.body.classList.toggle("busy", busy));
const rest = later(() => ask(question({ every: true, lever: state.w })), REST);

function answered(answer, body) {
  now = answer.now;
  if (body.settings === state.s) {
    document.body.classList.remove("behind");
    outdate(false);
    if (!now.note) lastGood = state.s;
    tell(now.note, "plain");
  }
  chosen = now.strategy;
  if (answer.controls) {
    key = answer.key;
    controls = new Map(answer.controls.map((control) => [control.path, control]));
    panel.build(answer.controls);
    curves = new Map();
  }
  for (const [path, curve] of Object.entries(answer.curves)) {
    if (curve.x && (!body.large?.includes(path) || !curves.has(path) || body.shown?.includes(path))) curves.set(path, curve);
    if (answer.every) gains.set(path, { gain: curve.gain, way: curve.way });
    if (curve.x && body.large?.includes(path)) largeCurve = curve;
  }
  if (answer.every) rank(answer.curves);
  draw();
  if (answer.every && drawn().some((path) => !curves.has(path))) ask({ ...body, every: false, known: key, shown: drawn(), settings: state.s });
}

/** Order numbers by what 10 % brings, those with the same effect once; those without a curve are asked for next. */
function rank(told) {
  const wanted = (path) => (state.w ? controls.get(path).lever === state.w : controls.get(path).lever !== "constant");
  const again = new Set(state.w === "constant" ? [] : [...[...alike.values()].flat(), ...aside]);
  const paths = Object.keys(told).filter((path) => controls.has(path) && wanted(path) && !again.has(path));
  order = paths.sort((a, b) => told[b].gain - told[a].gain);
  ranked = told;
}
let ranked = {};
let alike = new Map(); // paths with the same effect, by the first of them
let aside = []; // paths that say little by themselves
let largeCurve = null;

function failed(error, body) {
  if (body.settings !== state.s) return;
  document.body.classList.remove("behind");
  rest.cancel();
  pause.cancel();
  outdate(true);
  tell(error.message, "");
  if (!grid) repairs({ settings: state.s });
}

// What is wrong with the settings, or was done otherwise than asked, with what repairs it.
let sentence = "";
const repairs = newest("repairs", (found, body) => body.settings === state.s && !notice.hidden && replace(mended, remedies(found, also)), () => {});

/** Show a sentence above the page until another one takes its place; an empty one hides it. */
function tell(text, kind) {
  notice.hidden = !text;
  notice.className = `notice ${kind}`;
  if (text === sentence) return;
  sentence = text;
  replace(mended);
  replace(notice, el("div", {}, text), el("div", { class: "repairs" }, mended, el("button", { type: "button", class: "undo", onclick: () => apply(lastGood) }, "undo")));
}

/** Grey what belongs to the last design that is one, and say so; it can be pressed again when the settings are a design. */
function outdate(on) {
  if (stale === on) return;
  stale = on;
  document.body.classList.toggle("stale", on);
  for (const part of [view.tiles, view.levers, view.breakdown, view.memory, view.profile, view.strip, view.chip, view.limits, view.waterfall]) part.element.inert = on;
  old.hidden = !on;
  if (on) draw();
}

// What is asked for when nothing moves: cures and chip, levers, the best strategy, the timeline, the explanation.
const settled = newest("further", ({ cures, device, notes, trusts }) => {
  view.tiles.drawCures(cures, now);
  view.tiles.drawTrusts(trusts);
  view.chip.draw(device);
  const told = notes.filter((note) => ![...controls.values()].some(({ path, half }) => half && note.startsWith(`${path} `))); // which stand beside their controls
  replace(remarks, ...told.map((note) => el("div", { class: "soft" }, `note: ${note}`)));
}, () => {});
const best = newest("fastest", ({ strategy: text }, body) => {
  if (body.stamp !== stamp || !automatic() || text === chosen) return;
  chosen = text;
  ask(question({ every: true, lever: state.w }));
  pause();
}, () => {});
// One after another, what people look for first at first; what a later move has overtaken asks for nothing more.
const neighbours = followed("neighbours", (found) => view.levers.decide("strategies", found, "", now.feasible), (error) => view.levers.decide("strategies", [], error.message), (body) => {
  decides(body);
  timed(body);
});
const decides = followed("decisions", (found) => view.levers.decide("others", found), (error) => view.levers.decide("others", [], error.message), (body) => explains(body));
const timed = newest("timeline", (found) => view.strip.draw(found), (error) => view.strip.fail(error.message));
const explains = newest("explain", (found, body) => {
  if (body.stamp !== stamp) return;
  view.levers.explain(found);
  view.limits.draw(found);
  alike = new Map(Object.entries(found.alike));
  aside = found.aside;
  rank(ranked);
  needCurves();
}, (error) => {
  view.levers.explain({ decisions: [], numbers: [] });
  view.limits.fail(error.message);
});

/** A call about the design as it is now, and what is asked after it. */
function followed(name, done, failed_, then) {
  const current = (action) => (found, body) => {
    if (body.stamp !== stamp) return;
    action(found);
    then(body);
  };
  return newest(name, current(done), current(failed_));
}
const pause = later(() => {
  if (document.body.classList.contains("busy")) {
    pause();
    return;
  }
  if (stale) return;
  const body = { settings: state.s, chosen, stamp };
  settled(body);
  if (now.note) repairs({ settings: state.s });
  if (automatic() && Object.keys(state.s).length) best(body);
  view.levers.wait();
  view.limits.wait();
  neighbours(body);
  if (columns().length > 1) refreshPins();
}, PAUSE);

// ---------------------------------------------------------------------------------------------- drawing

const notice = el("div", { class: "notice", hidden: true, role: "alert" });
const mended = el("span", { class: "mended" });
const old = el("div", { class: "old", hidden: true, role: "status" });
const remarks = el("div", { class: "remarks" });
const panelPage = {
  value, set,
  locked: (path) => (state.l ? state.l.includes(path) : path.endsWith(".")),
  lock: (path, on) => {
    const held = new Set(state.l || [...controls.values()].filter(({ stack }) => stack).map(({ stack }) => `${stack}.`));
    if (on) held.add(path);
    else held.delete(path);
    state.l = [...held];
    writeState(state);
  },
  opened: (group) => state.g?.[group],
  open: (group, on) => {
    state.g = { ...state.g, [group]: on ? 1 : 0 };
    writeState(state);
  },
  values: (path) => grid?.values(path),
  fixed: (path) => Boolean(grid) && grid.fixed(path),
};
const strategy = new StrategyControl({
  own,
  get: () => state.s.strategy ?? own,
  set: (text) => {
    if (text === "auto") chosen = now.strategy;
    set({ strategy: text === own ? undefined : text });
  },
  now: () => now.strategy,
  list: () => (grid ? grid.rows(state.s) : call("strategies", { settings: state.s, chosen })),
  fixed: Boolean(grid) && grid.fixed("strategy"),
});
panelPage.strategy = strategy;
const panel = new Panel(panelPage);

const view = {
  tiles: tiles({ apply: also, set, priced: () => state.s["system.operation.price"] }),
  levers: levers({ apply: also, control: (path) => controls.get(path) }),
  breakdown: breakdown(),
  memory: memory(),
  profile: profile({ control: (path) => controls.get(path), pick, picked: () => state.b, alike: (path) => alike.get(path) || [] }, start.objectives || []),
  chip: chip(),
  strip: strip(),
  limits: limits((path) => controls.get(path)),
  pins: pinTable({ refer, remove, open: (column) => apply({ ...column.settings }), own: (path) => {
    const control = initial.get(path) || controls.get(path);
    return control ? shown(control, control.value) : "as given";
  } }),
  waterfall: waterfall(),
};

function draw() {
  const { answer, name } = reference();
  const moved = JSON.stringify(state.r ? state.p[state.r - 1].s : {}) !== JSON.stringify(stale ? lastGood : state.s);
  view.tiles.draw(now, answer, name, moved);
  view.breakdown.draw(now, answer, name, moved);
  view.memory.draw(now);
  view.profile.draw(drawn(), curves, gains);
  view.profile.more.textContent = state.m ? "show fewer" : `show all ${order.length}`;
  view.profile.more.hidden = !state.m && order.length <= drawn().length;
  what.textContent = `${stale ? "last valid design: " : ""}${now.what}, ${now.strategy}`;
  what.classList.toggle("bad", stale);
  old.textContent = `These settings are no design. All figures below are those of the last one that is: ${now.what}, ${now.strategy}.`;
  panel.draw();
  strategy.draw();
  if (state.b && largeCurve && controls.has(state.b)) enlarge();
  else view.profile.large.hidden = true;
  if (state.p.length) view.pins.draw(columns());
  else view.pins.element.hidden = true;
}

let chart = null;
function enlarge() {
  chart?.destroy();
  chart = drawLarge(view.profile.large, controls.get(state.b), largeCurve, state.o || "step_time_s", () => pick(state.b));
}

function pick(path) {
  state.b = state.b === path ? undefined : path;
  largeCurve = null;
  writeState(state);
  if (grid) {
    largeCurve = state.b ? curves.get(state.b) : null;
    draw();
    return;
  }
  if (state.b) ask(question());
  else draw();
}

// ---------------------------------------------------------------------------------------------- pins

/** Settings of a design as people read them. */
function readable(settings) {
  return Object.fromEntries(Object.entries(settings).map(([path, found]) => [path, controls.has(path) ? shown(controls.get(path), found) : initial.has(path) ? shown(initial.get(path), found) : String(found)]));
}

/** Start, pins and the design as it is, unless that is one of them. */
function columns() {
  const last = stale ? lastGood : state.s, same_ = (settings) => JSON.stringify(settings) === JSON.stringify(last);
  const own = [{ name: "start", settings: {}, answer: { ...base, written: {} }, reference: !state.r }];
  state.p.forEach((pin, i) => {
    if (!pinned[i]) return;
    const answer = { ...pinned[i], written: { ...readable(pin.s), strategy: pinned[i].strategy } };
    own.push({ name: pin.n, settings: pin.s, answer, reference: state.r === i + 1, removable: true, i, same: same_(pin.s) });
  });
  if (!own.some(({ settings }) => same_(settings))) own.push({ name: stale ? "last valid" : "now", now: true, settings: last, answer: { ...now, written: { ...readable(last), strategy: now.strategy } } });
  for (const column of own) column.answer = { ...column.answer, written: { strategy: column.answer.strategy, ...column.answer.written } };
  return own;
}

function reference() {
  const found = state.r ? pinned[state.r - 1] : null;
  return found && !found.error ? { answer: found, name: state.p[state.r - 1].n } : { answer: base, name: "start" };
}

function pin() {
  if (stale) {
    say("these settings are no design: repair or undo them first");
    return;
  }
  if (state.p.length >= MOST_PINS) {
    say("six designs are kept at most: remove one");
    return;
  }
  const name = [...NAMES].find((letter) => !state.p.some(({ n }) => n === letter));
  const settings = { ...state.s };
  if (automatic() || now.note) settings.strategy = now.strategy;
  const moved = Object.keys(state.s).length;
  const there = moved ? state.p.find(({ s }) => JSON.stringify(s) === JSON.stringify(settings))?.n : "start";
  if (there) {
    say(there === "start" ? "nothing has moved: the start is always kept" : `this is design ${there}`);
    return;
  }
  state.p = [...state.p, { n: name, s: settings }];
  pinned[state.p.length - 1] = { ...now, written: {} };
  state.r = state.p.length;
  writeState(state);
  say(`design ${name} is pinned; changes are told against it`);
  refreshPins();
  draw();
}

function remove({ i }) {
  state.p = state.p.filter((_, other) => other !== i);
  pinned = pinned.filter((_, other) => other !== i);
  if (state.r === i + 1) state.r = 0;
  else if (state.r > i + 1) state.r -= 1;
  writeState(state);
  draw();
}

function refer(column) {
  state.r = column.i === undefined ? 0 : column.i + 1;
  writeState(state);
  draw();
}

const compares = newest("compare", (found, body) => view.waterfall.draw(found, body.names[0], body.names[1]), (error) => view.waterfall.fail(error.message));
const pinsAsk = newest("designs", (answers) => {
  pinned = answers;
  draw();
});

function refreshPins() {
  if (grid) return;
  if (state.p.length) pinsAsk({ designs: state.p.map(({ s }) => s) });
  if (stale) return;
  const { answer, name } = reference();
  const settings = state.r ? state.p[state.r - 1].s : {};
  if (answer.step_time && now.step_time && JSON.stringify(settings) !== JSON.stringify(state.s)) {
    const second = automatic() ? { ...state.s, strategy: now.strategy } : state.s;
    compares({ first: settings, second, names: [name, "now"] });
  } else view.waterfall.element.hidden = true;
}

// ---------------------------------------------------------------------------------------------- a page without crossflow

function offline() {
  const found = grid.find(state.s, base.strategy);
  if (found.error) {
    failed(new Error(found.error), { settings: state.s });
    return;
  }
  outdate(false);
  tell("", "");
  state.s = found.settings;
  lastGood = state.s;
  now = found.point;
  if (found.note) say(found.note);
  for (const axis of grid.numbers()) curves.set(axis.path, grid.curve(axis, state.s, now.strategy));
  view.strip.tell(Object.keys(state.s).length ? "of the scenario as exported, not of the settings now" : "");
  panel.draw();
  draw();
}

// ---------------------------------------------------------------------------------------------- the page

const what = el("span", { class: "soft what" });

async function textOf(kind, title) {
  try {
    const texts = await call("texts", { settings: state.s, chosen });
    await copy(texts[kind], title);
    return texts;
  } catch (error) {
    return say(error.message);
  }
}

/** The designs of the page as rows, in the columns of `points.csv`. */
function figuresCsv() {
  const designs = columns();
  const own = (path) => { const control = initial.get(path) || controls.get(path); return control ? shown(control, control.value) : ""; };
  const paths = [...new Set(designs.flatMap(({ answer }) => Object.keys(answer.written)))].filter((path) => path !== "strategy");
  const rows = designs.map(({ name, answer }) => new Map([
    ["design", name], ["strategy", answer.strategy], ...paths.map((path) => [path, answer.written[path] ?? own(path)]),
    ["step_time_s", answer.step_time], ["feasible", answer.feasible], ["reason", answer.error || answer.reason], ["devices", answer.devices],
    ...["breakdown_s", "bound_share", "memory_bytes"].flatMap((part, i) => Object.entries([answer.breakdown, answer.bound, answer.memory][i] || {}).map(([kind, found]) => [`${part}.${kind}`, found])),
    ["memory_capacity_bytes", answer.capacity], ...(answer.figures || []).map((figure) => [figure.name, figure.value]),
  ]));
  const names = [...new Set(rows.flatMap((row) => [...row.keys()]))];
  return csvOf([names, ...rows.map((row) => names.map((name) => row.get(name)))]);
}

/** The curves that are drawn, a row for each of their points. */
function curvesCsv() {
  const figure = state.o || "step_time_s";
  const paths = drawn().filter((path) => controls.has(path) && curves.get(path)?.x);
  const rows = paths.flatMap((path) => {
    const curve = curves.get(path);
    return curve.x.map((x, i) => [path, x, controls.get(path).unit, curve.y[i], curve.fits[i], curve.bound[i]]);
  });
  return csvOf([["path", "value", "unit", figure, "feasible", "bound_by"], ...rows]);
}

const tools = [
  el("button", { type: "button", class: "main", onclick: pin, text: "Pin" }),
  el("button", { type: "button", onclick: () => textOf("set", "command line"), text: "Copy --set" }),
  el("button", { type: "button", onclick: () => textOf("yaml", "YAML"), text: "YAML" }),
  el("button", { type: "button", onclick: () => textOf("python", "Python"), text: "Python" }),
  el("button", { type: "button", onclick: () => apply({}), text: "Reset all" }),
];

function build() {
  const sheet = el("button", { type: "button", title: "save the figures of all designs on the page as CSV, in SI units", onclick: () => save(`${fileName("figures")}.csv`, figuresCsv(), "text/csv") }, "CSV");
  const theme = themeButton(state.t, (name) => {
    state.t = name === "auto" ? undefined : name;
    writeState(state);
    redraw();
  });
  const header = el("header", { class: "top" }, el("h1", {}, start.title, " ", what), ...(grid ? [] : tools), sheet, theme);
  view.profile.table.addEventListener("click", () => save(`${fileName("profile")}.csv`, curvesCsv(), "text/csv"));
  const plain = grid ? el("div", { class: "notice plain" }, `This page is a file made by crossflow ${start.version}. ${grid.axes.length ? `${grid.told()} can be moved among values that were computed beforehand; all other controls are fixed.` : "Its controls are fixed."}`) : null;
  const main = el("div", { class: "main" }, old, el("div", { class: "tiles" }, view.tiles.element, grid ? null : view.levers.element, view.breakdown.element),
    view.pins.element, view.waterfall.element, el("div", { class: "columns even" }, view.memory.element, view.strip.element), view.profile.element,
    el("div", { class: "columns even" }, view.chip.element, view.limits.element), remarks);
  replace(document.getElementById("app"), header, notice, plain, el("div", { class: "page" }, panel.element, main));
  view.profile.select.value = state.o || "step_time_s";
  view.profile.owners.value = state.w || "";
  view.profile.select.addEventListener("change", () => {
    state.o = view.profile.select.value === "step_time_s" ? undefined : view.profile.select.value;
    writeState(state);
    ask(question({ every: true, lever: state.w }));
  });
  view.profile.owners.addEventListener("change", () => {
    state.w = view.profile.owners.value || undefined;
    writeState(state);
    if (grid) needCurves(rank(ranked));
    else ask(question({ shown: [], every: true, lever: state.w }));
  });
  view.profile.more.addEventListener("click", () => {
    state.m = state.m ? undefined : 1;
    writeState(state);
    needCurves();
  });
  searchKey(panel.search);
}

function needCurves() {
  if (!grid && drawn().some((path) => !curves.has(path))) ask(question());
  draw();
}

function redraw() {
  draw();
  view.strip.redraw();
  view.chip.redraw();
}

/** Begin with what the page holds, then with what the address says. */
function begin() {
  build();
  const told = grid ? start.answers.curves : start.first.curves;
  for (const [path, curve] of Object.entries(told)) {
    if (curve.x) curves.set(path, curve);
    gains.set(path, { gain: curve.gain, way: curve.way });
  }
  rank(told);
  panel.build(start.first.controls);
  draw();
  if (grid) {
    view.profile.select.hidden = true;
    view.limits.element.hidden = true;
    const { timeline, further } = start.answers;
    if (timeline.total === undefined) view.strip.fail(timeline.error);
    else view.strip.draw(timeline);
    view.tiles.drawCures(further.cures.map(({ text }) => ({ text, settings: {} })), now);
    view.tiles.drawTrusts(further.trusts);
    view.chip.draw(further.device);
    replace(remarks, ...further.notes.map((note) => el("div", { class: "soft" }, `note: ${note}`)));
    offline();
  } else if (Object.keys(state.s).length || state.b || state.o || state.m) {
    if (automatic()) chosen = undefined;
    moved();
  } else pause();
  if (state.p.length) refreshPins();
}

onState((found) => {
  state = { s: {}, p: [], ...found };
  setTheme(state.t);
  moved();
  refreshPins();
});
onSystemTheme(redraw);
addEventListener("resize", later(redraw, 150));
begin();

