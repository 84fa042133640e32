// The controls of a scenario: sliders, names, stacks of shares, the strategy.
import { coloursOf, cssColour, el, fitting, grouped, hinted, percent, replace, resourceColour, say, scaleOf, show, start, svg, unhint } from "./kit.js";

const STEPS = 400; // positions of a slider
const LEAST_SHARE = 0.001;
const STACK = 240; // width of a stack of shares, at least [px]

/** Whether two values of a setting are the same. */
export function same(one, other) {
  if (typeof one === "number" && typeof other === "number") return Math.abs(one - other) <= 1e-9 * Math.max(Math.abs(one), Math.abs(other));
  return one === other;
}

/** Where a value stands between the ends of a control's slider, from 0 to 1. */
export function place(control, value) {
  const { least, most } = control;
  const at = control.log ? Math.log(value / least) / Math.log(most / least) : (value - least) / (most - least);
  return Math.min(1, Math.max(0, at));
}

function valueAt(control, at) {
  const { least, most } = control;
  const value = control.log ? least * (most / least) ** at : least + at * (most - least);
  return control.whole ? Math.round(value) : Number(value.toPrecision(6));
}

/** Value of a control as a person reads it. */
export function shown(control, value) {
  if (typeof value !== "number") return String(value);
  if (control.kind === "whole") return grouped(value);
  return show(value, control.unit);
}

/** A number that somebody wrote, with or without unit; text for what the server must read. */
function read(control, text, now) {
  const found = /^\s*([-+]?[\d.,_]+(?:e[-+]?\d+)?)\s*(.*?)\s*$/i.exec(text);
  if (!found) return null;
  const number = Number(found[1].replace(/[,_]/g, ""));
  if (Number.isNaN(number)) return null;
  if (control.kind === "whole") return found[2] || !Number.isInteger(number) ? null : number;
  if (found[2] === "%" && control.unit === "1") return number / 100;
  if (!found[2]) return number * scaleOf(now, control.unit)[0];
  const scales = start.units[control.unit] || start.prefixes.map(([factor, prefix]) => [factor, prefix + control.unit]);
  const scale = scales.find(([, name]) => name === found[2]);
  return scale ? number * scale[0] : text.trim();
}

/** What is told of a control: its value in the files, its range, where it comes from. */
function told(control, value) {
  const lines = [el("b", {}, control.path)];
  if (control.about) lines.push(control.about);
  const range = control.low !== undefined || control.high !== undefined
    ? ` (${shown(control, control.low ?? control.value)} to ${shown(control, control.high ?? control.value)})` : "";
  lines.push(`${same(value, control.value) ? "value" : "before"}: ${shown(control, control.value)}${range}`);
  if (control.source) lines.push(`source: ${control.source}${control.cited ? ` - ${control.cited}` : ""}`);
  if (control.note) lines.push(control.note);
  return el("div", {}, ...lines.map((line) => el("div", {}, line)));
}

/**
 * The panel. `page` gives `value(control)`, `set({path: value or undefined})`, `locked(path)`, `lock(path, on)`, `opened(group)`,
 * `open(group, on)`, `fixed(path)`, `values(path)` (those that a slider has, if not all), `strategy` (what the strategy's control needs).
 */
export class Panel {
  constructor(page) {
    this.page = page;
    this.rows = new Map();
    this.search = el("input", { type: "search", placeholder: "Search controls  ( / )", "aria-label": "search controls" });
    this.list = el("div", { class: "groups" });
    this.none = el("div", { class: "none", role: "status", hidden: true });
    this.element = el("aside", { class: "panel", "aria-label": "controls" }, el("div", { class: "find" }, this.search), this.none, this.list);
    this.search.addEventListener("input", () => this.filter());
  }

  /** Show other controls. */
  build(controls) {
    unhint();
    const focused = document.activeElement?.dataset?.path;
    this.rows.clear();
    this.stacks = new Map();
    const constants = controls.filter(({ lever }) => lever === "constant");
    const groups = grouping(controls.filter(({ lever }) => lever !== "constant")).map(([name, own], i) => this.group(name, own, i));
    const folded = grouping(constants).map(([name, own]) => this.group(name, own, -1));
    this.groups = [...groups, ...folded];
    const name = "constants";
    this.fold = el("details", { class: "group fold", hidden: !folded.length }, el("summary", {}, "Constants of the model", el("small", {}, ` ${constants.length}, found by the search`)), ...folded.map(({ element }) => element));
    this.fold.firstChild.addEventListener("click", () => this.page.open(name, !this.fold.open));
    this.fold.unfolded = () => this.page.opened(name) ?? false;
    replace(this.list, ...groups.map((group) => group.element), this.fold);
    this.filter();
    if (focused) this.rows.get(focused)?.focus?.();
  }

  group(name, controls, i) {
    const body = el("div", { class: "rows" });
    const opened = this.page.opened(name) ?? (i >= 0 && controls[0].owner === "architect" && i < 9 && name !== "Model");
    const count = el("small", {}, ` ${controls.length}`);
    const element = el("details", { class: "group", open: opened }, el("summary", {}, name, count), body);
    element.firstChild.addEventListener("click", () => this.page.open(name, !element.open));
    const stack = controls[0].stack;
    if (stack) body.append(this.stack(stack, controls));
    if (name === "Design" && start.divisible) body.append(this.page.strategy.element);
    for (const control of controls) body.append(this.row(control));
    return { element, controls, body, opened };
  }

  row(control) {
    const kinds = { name: () => this.names(control), number: () => this.number(control), whole: () => this.number(control) };
    const row = kinds[control.kind]();
    row.control = control;
    const { draw } = row;
    let last;
    row.draw = () => {
      const value = this.page.value(control);
      if (value === last) return;
      last = value;
      draw();
    };
    row.anew = draw;
    if (control.half) this.halved(row, control);
    this.rows.set(control.path, row);
    hinted(row.name, () => told(control, this.page.value(control)));
    row.draw();
    return row.element;
  }

  /** Tell beside a control that was moved what such a move leaves as it is. */
  halved(row, control) {
    const line = el("div", { class: "half", hidden: true }, control.half);
    const { draw, element } = row;
    element.append(line);
    row.draw = () => {
      draw();
      line.hidden = same(this.page.value(control), control.value);
    };
  }

  names(control) {
    const select = el("select", { "aria-label": control.label, "data-path": control.path, disabled: this.page.fixed(control.path) });
    const options = this.page.values(control.path) || control.options;
    const wide = options.includes(control.value) ? options : [control.value, ...options];
    select.append(...wide.map((name) => el("option", { value: name }, name)));
    select.addEventListener("change", () => this.page.set({ [control.path]: select.value }));
    const name = el("span", { class: "name" }, control.label);
    const reset = this.reset(control);
    const element = el("div", { class: "control name-control" }, name, select, reset);
    const draw = () => {
      const value = this.page.value(control);
      select.value = value;
      this.mark(element, reset, control, value);
    };
    return { element, name, draw, focus: () => select.focus() };
  }

  number(control) {
    const fixed = this.page.fixed(control.path);
    const slides = control.least !== undefined;
    const values = this.page.values(control.path) || (control.kind === "whole" && slides ? doublings(control) : null);
    const most = values ? values.length - 1 : STEPS;
    const slider = !slides ? null : el("input", { type: "range", min: "0", max: String(most), step: "1", "aria-label": control.path, "data-path": control.path, disabled: fixed });
    const field = el("input", { type: "text", class: "value", "aria-label": `${control.label}, value`, disabled: fixed, spellcheck: "false" });
    const name = el("span", { class: "name" }, control.label);
    const reset = this.reset(control);
    const lock = control.stack ? this.lock(control.path) : null;
    const element = el("div", { class: "control" }, name, field, reset, slider, lock);
    slider?.addEventListener("input", () => {
      const now = this.page.value(control);
      let value = values ? values[Number(slider.value)] : valueAt(control, Number(slider.value) / most);
      if (control.whole && !values && value === now) value += Number(slider.value) / most > place(control, now) ? 1 : -1;
      if (control.stack) this.share(control, value);
      else this.page.set({ [control.path]: value });
    });
    const written = () => {
      const now = this.page.value(control);
      if (field.value === shown(control, now)) return;
      const value = read(control, field.value, now);
      if (value === null) say(`${control.label}: ${field.value} is no ${control.kind === "whole" ? "whole number" : "number with a unit such as " + shown(control, now)}`);
      else if (control.stack && typeof value === "number") this.share(control, value);
      else this.page.set({ [control.path]: value });
      field.value = shown(control, this.page.value(control));
    };
    field.addEventListener("change", written);
    field.addEventListener("keydown", (event) => event.key === "Enter" && field.blur());
    const draw = () => {
      const value = this.page.value(control);
      if (document.activeElement !== field) field.value = shown(control, value);
      if (slider && typeof value === "number") {
        const at = values ? nearest(values, value) : Math.round(place(control, value) * most);
        if (Number(slider.value) !== at && document.activeElement !== slider) slider.value = at;
        else if (document.activeElement !== slider || !slider.matches(":active")) slider.value = at;
        slider.setAttribute("aria-valuetext", shown(control, value));
      }
      this.mark(element, reset, control, value);
    };
    return { element, name, draw, focus: () => (slider || field).focus() };
  }

  reset(control) {
    return el("button", {
      class: "quiet reset", type: "button", "aria-label": `reset ${control.label}`, text: "↺",
      onclick: () => this.page.set(control.stack ? Object.fromEntries(this.stacks.get(control.stack).map(({ path }) => [path, undefined])) : { [control.path]: undefined }),
    });
  }

  mark(element, reset, control, value) {
    const changed = !same(value, control.value);
    element.classList.toggle("changed", changed);
    reset.hidden = !changed;
  }

  // ------------------------------------------------------------------------------------------ shares

  lock(path) {
    const button = el("button", { class: "quiet lock", type: "button" });
    const draw = () => {
      const on = this.page.locked(path);
      replace(button, svg("svg", { viewBox: "0 0 16 16", width: 13, height: 13, "aria-hidden": "true" },
        svg("rect", { x: 2.5, y: 7, width: 11, height: 7.5, rx: 1.5, fill: on ? "currentColor" : "none", stroke: "currentColor", "stroke-width": 1.4 }),
        svg("path", { d: on ? "M5 7V4.5a3 3 0 0 1 6 0V7" : "M5 7V4.5a3 3 0 0 1 5.8-1", fill: "none", stroke: "currentColor", "stroke-width": 1.4 })));
      button.setAttribute("aria-pressed", String(on));
      button.setAttribute("aria-label", on ? "locked" : "not locked");
    };
    button.addEventListener("click", () => {
      this.page.lock(path, !this.page.locked(path));
      draw();
    });
    draw();
    return button;
  }

  /** Give a share a value; the others that are not locked give or take in proportion. */
  share(control, wanted) {
    const own = this.stacks.get(control.stack);
    const free = own.filter(({ path }) => path !== control.path && !this.page.locked(path));
    const rest = this.left(control.stack);
    const restFree = !this.page.locked(`${control.stack}.`);
    const held = free.reduce((sum, other) => sum + this.page.value(other) - LEAST_SHARE, 0) + (restFree ? rest : 0);
    const now = this.page.value(control);
    if (held <= 1e-9) {
      say("all other shares are locked");
      this.rows.get(control.path).anew();
      return;
    }
    const value = Math.min(Math.max(wanted, LEAST_SHARE), now + held);
    const factor = (held - (value - now)) / held;
    const changes = { [control.path]: round(value) };
    for (const other of free) changes[other.path] = round(LEAST_SHARE + (this.page.value(other) - LEAST_SHARE) * factor);
    this.page.set(changes);
  }

  /** What of a budget is given to nothing. */
  left(stack) {
    return Math.max(0, 1 - this.stacks.get(stack).reduce((sum, control) => sum + this.page.value(control), 0));
  }

  stack(path, controls) {
    this.stacks.set(path, controls);
    const colours = componentColours(controls.map(({ label }) => label));
    const bar = el("div", { class: "stack", role: "img" });
    const free = el("div", { class: "control rest" }, el("span", { class: "name" }, "not given"), el("span", { class: "value" }), this.lock(`${path}.`));
    const cells = controls.map((control, i) => {
      const cell = el("div", { class: "cell", style: { background: colours[i] } });
      hinted(cell, () => `${control.label}: ${percent(this.page.value(control))}; drag the edge to trade with the next`);
      return cell;
    });
    const edges = controls.slice(0, -1).map((control, i) => this.edge(bar, controls, i));
    const open = el("div", { class: "cell open" });
    bar.append(...cells.flatMap((cell, i) => [cell, edges[i] || null]).filter(Boolean), open);
    let last = "";
    const draw = () => {
      const text = controls.map((control) => this.page.value(control)).join();
      if (text === last) return;
      last = text;
      controls.forEach((control, i) => {
        const share = this.page.value(control);
        cells[i].style.flexGrow = String(share);
        cells[i].textContent = fitting(share * STACK - 6, control.label);
        cells[i].style.color = inkOn(colours[i]);
      });
      const left = this.left(path);
      open.style.flexGrow = String(left);
      free.querySelector(".value").textContent = percent(left);
      bar.setAttribute("aria-label", controls.map((control) => `${control.label} ${percent(this.page.value(control))}`).join(", "));
    };
    this.rows.set(`${path}.`, { element: bar, name: bar, draw, control: { ...controls[0], path, label: path } });
    return el("div", { class: "stacked" }, bar, free);
  }

  edge(bar, controls, i) {
    const edge = el("div", { class: "edge" });
    edge.addEventListener("pointerdown", (event) => {
      edge.setPointerCapture(event.pointerId);
      const from = event.clientX;
      const [a, b] = [controls[i], controls[i + 1]];
      if (this.page.fixed(a.path) || this.page.locked(a.path) || this.page.locked(b.path)) return;
      const [one, two] = [this.page.value(a), this.page.value(b)];
      const move = (moved) => {
        const by = Math.min(Math.max((moved.clientX - from) / bar.clientWidth, LEAST_SHARE - one), two - LEAST_SHARE);
        this.page.set({ [a.path]: round(one + by), [b.path]: round(two - by) });
      };
      edge.addEventListener("pointermove", move);
      edge.addEventListener("pointerup", () => edge.removeEventListener("pointermove", move), { once: true });
    });
    return edge;
  }

  // ------------------------------------------------------------------------------------------ all

  /** Draw all values anew. */
  draw() {
    for (const row of this.rows.values()) row.draw();
  }

  filter() {
    const wanted = this.search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    let all = 0;
    for (const group of this.groups || []) {
      let some = 0;
      for (const control of group.controls) {
        const fits = wanted.every((word) => sought(control).includes(word));
        this.rows.get(control.path).element.hidden = !fits;
        some += fits;
      }
      all += some;
      group.element.hidden = !some;
      group.element.open = wanted.length ? some > 0 : this.page.opened(group.controls[0].group) ?? group.opened;
    }
    if (!this.fold) return;
    const folded = [...this.fold.querySelectorAll(".group")].some((group) => !group.hidden);
    this.fold.hidden = !folded;
    this.fold.open = wanted.length ? folded : this.fold.unfolded();
    this.none.hidden = all > 0 || !wanted.length;
    if (!this.none.hidden) this.suggest(wanted);
  }

  /** Say that nothing was found, and offer the controls whose names are nearest. */
  suggest(wanted) {
    const controls = this.groups.flatMap((group) => group.controls);
    const likeness = (control) => wanted.reduce((sum, word) => sum + alike(word, sought(control), control.label), 0) + (control.lever === "constant" ? 0 : 0.05);
    const near = controls.map((control) => [likeness(control), control]).filter(([like]) => like >= 0.5).sort((a, b) => b[0] - a[0]).slice(0, 5);
    const show_ = (control) => {
      this.search.value = control.path;
      this.filter();
      this.rows.get(control.path).focus();
    };
    replace(this.none, el("div", {}, `No control is called “${this.search.value.trim()}”.`), near.length ? el("div", { class: "soft" }, "Nearest:") : null,
      ...near.map(([, control]) => el("button", { type: "button", onclick: () => show_(control) }, control.label, el("span", { class: "soft" }, ` ${control.group}`))));
  }
}

/** Controls by group, in their order. */
function grouping(controls) {
  const groups = new Map();
  for (const control of controls) groups.set(control.group, [...(groups.get(control.group) || []), control]);
  return [...groups];
}

/** What a control is searched by: its names, what it means, and the names that it can have. */
function sought(control) {
  control.sought ??= [control.path, control.path.replaceAll(/[._]/g, " "), control.label, control.group, control.about || "", ...(control.kind === "name" ? [control.value] : [])].join(" ").toLowerCase();
  return control.sought;
}

/** How alike a word is to a text, from 0 to 1, and more where its label has it: 1 where the text holds it, else by pairs of letters. */
function alike(word, text, label) {
  const own = pairs(word);
  const best = (words) => Math.max(0, ...words.filter((other) => Math.abs(other.length - word.length) < 4).map((other) => {
    const theirs = pairs(other), both = [...own].filter((pair) => theirs.has(pair)).length;
    const like = (2 * both) / (own.size + theirs.size || 1);
    return like > 0.5 ? like : 0;
  }));
  const called = label.toLowerCase();
  if (called.includes(word)) return 1.3;
  return Math.max(1.3 * best(called.split(/[^a-z0-9]+/)), text.includes(word) ? 1 : best(text.split(/[^a-z0-9]+/)));
}

/** Pairs of letters that follow one another in a word. */
function pairs(word) {
  return new Set([...word].slice(1).map((letter, i) => word[i] + letter));
}

function round(value) {
  return Math.round(value * 1e7) / 1e7;
}

function doublings(control) {
  const found = new Set([control.value]);
  for (let k = 1; k <= 4; k++) {
    found.add(control.value * 2 ** k);
    if (Number.isInteger(control.value / 2 ** k)) found.add(control.value / 2 ** k);
  }
  return [...found].sort((a, b) => a - b);
}

function nearest(values, value) {
  return values.reduce((best, one, i) => (Math.abs(Math.log(one / value)) < Math.abs(Math.log(values[best] / value)) ? i : best), 0);
}

/** A colour for each component of a chip: that of the resource that it serves, where there is one. */
export function componentColours(names) {
  const own = names.map((name) => resourceColour(name.replace(/^on[_ ]chip[._ ]/, "")) || (/link/.test(name) ? null : undefined));
  const links = [start.colours.network, "#0a7c8c", "#7fd1e8"];
  let used = 0;
  const others = coloursOf(names.filter((_, i) => own[i] === undefined));
  let next = 0;
  return own.map((colour) => colour || (colour === null ? links[used++ % links.length] : others[next++]));
}

/** Black or white, whichever is read better on a colour. */
export function inkOn(colour) {
  const text = cssColour(colour);
  const found = /^#(..)(..)(..)$/.exec(text);
  if (!found) return "var(--ink)";
  const [red, green, blue] = found.slice(1).map((pair) => (parseInt(pair, 16) / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.3 ? "#101418" : "#ffffff";
}

/** The control of the strategy: auto, or one of a list that can be searched. `page` gives `get()`, `set(text)`, `list()`, `now()`, `fixed`, and `own`, what the scenario asks for where it is no plan. */
export class StrategyControl {
  constructor(page) {
    this.page = page;
    this.auto = el("button", { class: "auto", type: "button", text: "auto", disabled: page.fixed });
    this.auto.addEventListener("click", () => this.page.set(this.page.get() === "auto" ? this.page.now() : "auto"));
    hinted(this.auto, () => "auto: the fastest strategy that fits, searched again after every change");
    this.text = el("button", { class: "strategy", type: "button", "aria-haspopup": "listbox", disabled: page.fixed });
    this.text.addEventListener("click", () => this.toggle());
    this.reset = el("button", { class: "quiet reset", type: "button", "aria-label": "reset strategy", text: "↺", onclick: () => this.page.set(undefined) });
    this.field = el("input", { type: "search", placeholder: "Search, or write a strategy and press Enter", "aria-label": "search strategies" });
    this.field.addEventListener("input", () => this.draw());
    this.field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && this.field.value.trim()) this.choose(this.field.value.trim());
      if (event.key === "Escape") this.toggle(false);
    });
    this.list = el("div", { class: "strategies", role: "listbox" });
    this.count = el("small", { class: "soft" });
    this.box = el("div", { class: "choose", hidden: true }, this.field, this.count, this.list);
    const name = el("span", { class: "name" }, "strategy");
    this.element = el("div", { class: "control strategy-control" }, name, this.auto, this.text, this.reset, this.box);
    this.rows = null;
  }

  async toggle(open = this.box.hidden) {
    this.box.hidden = !open;
    this.text.setAttribute("aria-expanded", String(open));
    if (!open) return;
    this.rows = null;
    this.draw();
    this.field.focus();
    try {
      this.found = await this.page.list();
      this.rows = this.found.rows;
    } catch (error) {
      replace(this.list, el("div", { class: "bad" }, error.message));
      return;
    }
    this.draw();
  }

  choose(text) {
    this.toggle(false);
    this.page.set(text);
  }

  /** Draw what is chosen, and the list where it is open. */
  draw() {
    const set = this.page.get();
    this.auto.setAttribute("aria-pressed", String(set === "auto"));
    this.text.textContent = this.page.now() || "-";
    this.reset.hidden = set === this.page.own;
    this.element.classList.toggle("changed", set !== this.page.own);
    if (this.box.hidden) return;
    if (!this.rows) {
      replace(this.list, el("div", { class: "soft" }, "Strategies are timed ..."));
      return;
    }
    const words = this.field.value.trim().toLowerCase().split(/[\s-]+/).filter(Boolean);
    const fitting = this.rows.filter(({ strategy }) => words.every((word) => strategy.toLowerCase().split("-").some((part) => part.startsWith(word))));
    this.count.textContent = `${grouped(fitting.length)} of ${grouped(this.found.count)} that ${this.found.held ? "this page holds" : "divide the workload"}, the fastest that fit first`;
    replace(this.list, ...fitting.slice(0, 60).map((row) => {
      const told = row.time === undefined ? "" : `${show(row.time, "s")}${row.fits ? "" : ", does not fit"}`;
      const option = el("button", { type: "button", role: "option", class: row.fits === false ? "unfit" : "", onclick: () => this.choose(row.strategy) });
      option.append(el("span", {}, row.strategy), el("span", { class: "soft" }, told));
      return option;
    }));
  }
}

