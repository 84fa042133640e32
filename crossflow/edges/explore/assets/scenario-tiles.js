// What a page says first: the step time with how far it can be trusted, whether it fits, and what would change it most.
import { arrowed, digits, el, hinted, painted, percent, replace, resourceColour, show, start } from "./kit.js";

const NAMES = {
  compute: "compute", memory_bound_compute: "memory-bound compute", exposed_communication: "exposed communication", bubble: "bubble",
  other: "launches, other", l1: "L1", l2: "L2", l3: "L3", l4: "L4", memory: "main memory",
};
export const SIZED = 4; // digits of sizes and times, the same everywhere on the page
const FEW = 3; // resources that are named beside the step time
const FIRST = "Start here: apply a change from the list, or move a control. Every move is compared with this design.";
const UNFIT = "Start here: this design does not fit. A button below makes it fit, where there is one; or move a control.";

/** A resource, or a part of a step, as people call it. */
export function named(name) {
  return NAMES[name] || name.replaceAll("_", " ");
}

export function card(title, aside, ...children) {
  const small = el("small", {}, aside ? ` ${aside}` : "");
  return { element: el("section", { class: "card" }, el("h2", {}, title, small), ...children), small };
}

/** A colour of a legend with what it is of; `name` is that of a resource, which may be hatched. */
export function key(colour, text, name = "") {
  return el("span", { class: "entry" }, el("span", { class: "key", style: painted(name, colour) }), el("span", {}, text));
}

/** Fill an element anew only where what it shows has another shape. */
export function once(element, shape, build) {
  if (element.shape === shape) return false;
  element.shape = shape;
  replace(element, build());
  return true;
}

export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Whether a change is good, from the change and whether larger is better. */
function verdict(change, larger) {
  if (!Number.isFinite(change) || Math.abs(change) < 5e-6) return "soft";
  return change > 0 === larger ? "good" : "bad";
}

/** Remedies as buttons, those without settings as sentences. `apply(settings)` carries one out. */
export function remedies(list, apply) {
  return list.map(({ text, settings }) => (Object.keys(settings).length
    ? el("button", { type: "button", class: "cure", onclick: () => apply(settings) }, text)
    : el("div", { class: "soft" }, text)));
}

// ---------------------------------------------------------------------------------------------- the step

const LEVELS = { measured: "●", interpolated: "◕", extrapolated: "◔", unknown: "○" };

/** The figures on top. `page` gives `apply(settings)`, `set(changes)` and `priced()`, a price that was written here. */
export function tiles(page) {
  const time = el("div", { class: "big", id: "step-time" });
  const level = el("b", {}), told = el("span", {});
  const trust = hinted(el("div", { class: "trust" }, level, told), () => trust.basis && `compared with: ${trust.basis}`);
  const delta = el("div", { class: "delta", id: "delta" });
  const bound = el("div", { class: "bounds" });
  const fits = el("div", { class: "fits" });
  const cures = el("div", { class: "cures" });
  const figures = el("div", { class: "figures" });
  const price = el("input", { type: "text", class: "price", placeholder: "2.5 USD/hour", "aria-label": "price of a device", spellcheck: "false" });
  price.addEventListener("change", () => page.set({ "system.operation.price": price.value.trim() || undefined }));
  const money = hinted(el("label", { class: "figure", hidden: true }, el("span", { class: "soft" }, "price of a device"), start.offline ? el("b", {}, "not known") : price), () => "no price is known; with one the page tells what a step and a million tokens cost");
  const element = el("section", { class: "card headline", "aria-live": "off" }, el("h2", {}, "Step time"),
    el("div", { class: "first" }, time, trust), delta, fits, cures, bound, el("div", { class: "figures" }, figures, money));
  function draw(now, reference, name, moved) {
    write(time, now.step_time === null ? "never ends" : show(now.step_time, "s"));
    time.classList.toggle("bad", now.step_time === null);
    drawTrust(now);
    drawDelta(now, reference, name, moved);
    drawBound(now);
    drawFits(now);
    money.hidden = !now.money && page.priced() === undefined;
    if (document.activeElement !== price) price.value = page.priced() ?? "";
    drawFigures(now, reference);
  }
  function drawTrust({ trust: found }) {
    const [, rest] = found.text.split(/: (.*)/s);
    level.className = `level ${found.level}`;
    write(level, `${LEVELS[found.level]} ${found.level}`);
    write(told, `: ${rest}`);
    trust.basis = found.basis;
  }
  function drawDelta(now, reference, name, moved) {
    const both = now.step_time !== null && reference.step_time !== null, change = now.step_time / reference.step_time - 1;
    const none = `no comparison: ${now.step_time === null ? "this design" : name} never ends`;
    write(delta, !moved ? (start.offline ? "" : now.feasible ? FIRST : UNFIT) : both ? `${arrowed(change)} against ${name} (${show(reference.step_time, "s")})` : none);
    delta.className = moved && both ? `delta ${verdict(change, false)}` : "delta soft";
  }
  function drawBound(now) {
    const shares = Object.entries(now.bound).sort((a, b) => b[1] - a[1]).filter(([, share]) => share >= 5e-4);
    const first = shares.slice(0, FEW), others = shares.slice(FEW);
    once(bound, first.map(([resource]) => resource).join(), () => [el("span", { class: "soft" }, "bound by"),
      ...first.map(([resource]) => key(resourceColour(resource) || "var(--faint)", "", resource)), el("span", { class: "soft" })]);
    first.forEach(([resource, share], i) => write(bound.children[i + 1].lastChild, `${named(resource)} ${percent(share)}`));
    write(bound.lastChild, others.length ? `${others.map(([resource]) => named(resource)).join(", ")} ${percent(others.reduce((sum, [, share]) => sum + share, 0))}` : "");
  }
  function drawFits(now) {
    const needed = Object.values(now.memory).reduce((sum, size) => sum + size, 0);
    const room = now.capacity ? (now.capacity - needed) / now.capacity : 0;
    const tight = now.feasible && room < 0.05 ? "; runs near the end of memory are slower, or fail" : "";
    write(fits, now.feasible ? `✓ fits: ${show(now.capacity - needed, "B", SIZED)} of ${show(now.capacity, "B", SIZED)} to spare${tight}` : `✗ ${now.reason}`);
    fits.className = now.feasible ? "fits good" : "fits bad";
    if (now.feasible) replace(cures);
  }
  function drawFigures(now, reference) {
    once(figures, now.figures.map((figure) => figure.name).join(), () => now.figures.map((figure) => el("div", { class: "figure" }, el("span", { class: "soft" }, figure.label), el("b", {}), el("span", {}))));
    now.figures.forEach((figure, i) => {
      const before = reference.figures.find((other) => other.name === figure.name);
      const change = before && before.value && figure.value !== null ? figure.value / before.value - 1 : NaN;
      const [, number, moved] = figures.children[i].children;
      write(number, figure.value === null ? "-" : figure.unit === "1" ? percent(figure.value) : show(figure.value, figure.unit));
      write(moved, Number.isFinite(change) && Math.abs(change) >= 5e-6 ? arrowed(change) : "");
      moved.className = verdict(change, figure.larger);
    });
  }
  function drawCures(list, now) {
    replace(cures, now.feasible ? [] : remedies(list.slice(0, 8), page.apply));
  }
  /** What is known of figures that were compared with other measurements. */
  function drawTrusts(list) {
    trust.title = list.map(({ name, text }) => `${name}: ${text}`).join("\n");
  }
  return { element, draw, drawCures, drawTrusts };
}

// ---------------------------------------------------------------------------------------------- levers

/** What changes the step most. `page` gives `apply(settings)` and `control(path)`. */
export function levers(page) {
  const body = el("div", { class: "levers" });
  const view = card("What to change", "change of the step time", body);
  const blocks = { strategies: el("div", {}), others: el("div", {}), design: el("div", {}), numbers: el("div", {}) };
  body.append(...Object.values(blocks));
  const listed = (block, title, rows) => replace(block, ...(rows.length ? [title ? el("h3", {}, title) : null, ...rows] : []));
  const row = (gain, what, more, settings, better = true) => el("div", { class: "lever" },
    el("b", { class: better ? "good" : "soft" }, gain), el("span", {}, what, more ? el("span", { class: "soft" }, ` (${more})`) : null),
    settings ? el("button", { type: "button", onclick: () => page.apply(settings) }, "apply") : el("span", {}));
  const called = (path) => {
    const control = page.control(path);
    return control ? `${control.label}${control.group === "Technology" ? "" : ` (${control.group})`}` : path.replace(/^system\./, "");
  };
  const tried = el("div", { class: "soft" }, "Other strategies, types, batches and devices are tried …");
  view.wait = () => {
    body.classList.add("waiting");
    if (!Object.values(blocks).some((block) => block.children.length)) listed(blocks.strategies, "Your decisions", [tried]);
  };
  view.decide = (part, found, problem, fits = true) => {
    const rows = found.map(({ kind, text, settings, time, rate }) => {
      const slower = time > 0, per = Math.abs(rate) >= 5e-4 && Math.abs((1 + time) * (1 + rate) - 1) >= 5e-4;
      const word = kind === "strategy" ? `strategy: ${text}` : text;
      if (slower) return row(arrowed(rate), word, `throughput per device; step ${arrowed(time)}`, settings);
      return row(arrowed(time), word, per ? `throughput per device ${arrowed(rate)}` : "", settings);
    });
    if (problem) rows.push(el("div", { class: "soft" }, problem));
    else if (part === "strategies" && !rows.length) rows.push(el("div", { class: "soft" }, fits ? "No strategy near this one is faster on these devices." : "No strategy near this one fits these devices."));
    listed(blocks[part], part === "strategies" ? "Your decisions" : "", rows);
  };
  view.explain = (found) => {
    body.classList.remove("waiting");
    listed(blocks.design, "The chip, its budgets divided anew for each; in brackets with the division kept", found.decisions.map((one) => {
      const kept = one.gain_kept === null ? "" : arrowed(-one.gain_kept);
      return row(arrowed(-one.gain), one.anew ? "divide the budgets anew" : one.text, kept, one.settings);
    }));
    listed(blocks.numbers, "10 % more or less of a number", found.numbers.map((one) => row(arrowed(-one.gain),
      `${called(one.path)}: ${one.before} to ${one.after}`, one.alike.length ? `+ ${one.alike.length} with the same effect` : "", one.settings)));
  };
  return view;
}

/** How far levers carry, and what is worse where it should be better. `control(path)` gives what a path is called. */
export function limits(control) {
  const body = el("div", { class: "explained" });
  const view = card("How far they carry", "each number alone", body);
  const called = (path) => (control(path) ? `${control(path).label} (${control(path).group})` : path);
  const listed = (title, rows) => (rows.length ? el("div", {}, el("h3", {}, title), el("ul", {}, ...rows)) : null);
  view.wait = () => (view.small.textContent = " is worked out ...");
  view.fail = (sentence) => {
    view.small.textContent = "";
    replace(body, el("p", { class: "soft" }, sentence));
  };
  view.draw = (found) => {
    view.small.textContent = " each number alone";
    const end = (one) => (one.factor === null ? "no end within reach" : `up to ${one.multiplied ? "×" : "÷"} ${digits(one.factor, 3)}; ${one.then ? `then ${named(one.then)} binds` : "beyond it half as much or less"}`);
    view.element.hidden = !found.bottlenecks.length && !found.surprises.length;
    replace(body, listed("Until something else binds", found.bottlenecks.map((one) => el("li", {}, el("b", {}, called(one.path)), ` ${end(one)}`))),
      listed("Worse where it should be better", found.surprises.map((one) => el("li", {}, el("b", {}, called(one.path)), ` ${one.text}`))));
  };
  return view;
}
