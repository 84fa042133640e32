// Pictures of a design: figures, where the time goes, the profile, memory, the chip, the timeline, comparisons.
import { coloursOf, cssColour, el, fitting, hinted, isHatched, painted, percent, replace, resourceColour, show, start, svg, tintsOf, widthOf } from "./kit.js";
import { pictureButton } from "./picture.js";
import { componentColours, inkOn, place, shown } from "./scenario-panel.js";
import { card, key, named, once, SIZED, write } from "./scenario-tiles.js";

/** A card of a plot, with a button that saves it as a picture of some kind. */
function plotCard(kind, title, ...others) {
  const view = card(title, ...others);
  view.element.firstChild.append(pictureButton(view.element, fileName(title), kind));
  return view;
}

/** Name of a file about a part of the page, without its ending. */
export function fileName(part) {
  return `${start.title}-${part.toLowerCase().replaceAll(" ", "-")}`;
}

// ---------------------------------------------------------------------------------------------- where the time goes

/** A stacked bar of named parts; `draw(values, total)` gives each its width, and a label where it has room. */
function stackedBar(names, colours) {
  const now = new Map();
  const cells = names.map((name, i) => hinted(el("div", { class: "cell", style: { ...painted(name, colours[i]), color: inkOn(colours[i]) } }), () => `${named(name)}: ${show(now.get(name), "s", SIZED)}`));
  const element = el("div", { class: "bar" }, ...cells);
  const label = (cell, name, time, total) => write(cell, isHatched(name) ? "" : fitting((time / total) * (element.wide || 0) - 8, `${named(name)} ${show(time, "s", SIZED)}`, named(name)));
  const draw = (values, total) => names.forEach((name, i) => {
    const time = values[name] || 0;
    if (now.get(name) === time && cells[i].total === total) return;
    now.set(name, time);
    cells[i].total = total;
    cells[i].style.width = `${(100 * time) / total}%`;
    cells[i].hidden = !time;
    label(cells[i], name, time, total);
  });
  measured(element, () => names.forEach((name, i) => now.has(name) && label(cells[i], name, now.get(name), cells[i].total)));
  return { element, draw };
}

const sizes = new ResizeObserver((entries) => entries.forEach(({ target, contentRect }) => {
  target.wide = contentRect.width;
  target.widened();
}));

/** Keep the width of an element in its `wide`, and call a function when it changes. */
function measured(element, widened) {
  element.widened = widened;
  sizes.observe(element);
}

/** A step as stacked bars, above that of another design where they differ, on one scale: what is done, and what binds. */
export function breakdown() {
  const body = el("div", {});
  const view = plotCard("SVG", "Where the step goes", "", body);
  let bars = [];
  view.draw = (now, reference, name, moved) => {
    const longest = Math.max(now.step_time || 0, (moved && reference.step_time) || 0);
    if (!longest) {
      body.shape = null;
      replace(body, el("div", { class: "soft" }, "The step never ends."));
      return;
    }
    const shown = moved ? [[name, reference], ["now", now]] : [["", now]];
    const namesOf = (part) => [...new Set(shown.flatMap(([, one]) => Object.keys(one[part])))];
    const groups = [[namesOf("breakdown"), "what is done"], [namesOf("bound"), "what binds"]];
    once(body, JSON.stringify([groups, shown.map(([label]) => label)]), () => {
      bars = groups.map(([names, what]) => {
        const colours = coloursOf(names);
        const rows = shown.map(([label]) => ({ label, bar: stackedBar(names, colours) }));
        const element = el("div", { class: moved ? "bars two" : "bars", role: "img", "aria-label": `time of a step by ${what}` }, ...rows.map((row) => el("div", { class: "bar-row" }, row.label ? el("span", { class: "soft" }, row.label) : null, row.bar.element)));
        const entries = names.map((one, i) => key(colours[i], "", one));
        return { names, rows, entries, elements: [el("div", { class: "soft of" }, what), element, el("div", { class: "legend" }, ...entries)] };
      });
      return bars.flatMap(({ elements }) => elements);
    });
    const times = (one) => Object.fromEntries(Object.entries(one.bound).map(([resource, share]) => [resource, one.step_time ? share * one.step_time : 0]));
    shown.forEach(([, one], i) => {
      bars[0].rows[i].bar.draw(one.step_time ? one.breakdown : {}, longest);
      bars[1].rows[i].bar.draw(times(one), longest);
    });
    bars[0].names.forEach((one, i) => write(bars[0].entries[i].lastChild, `${named(one)} ${show(now.step_time ? now.breakdown[one] || 0 : null, "s", SIZED)}`));
    bars[1].names.forEach((one, i) => write(bars[1].entries[i].lastChild, `${named(one)} ${percent(now.bound[one] || 0)}`));
  };
  return view;
}

/** The memory of the fullest device by kind against its capacity. */
export function memory() {
  const body = el("div", {});
  const view = plotCard("SVG", "Memory", "of the fullest device", body);
  let last = "";
  view.draw = (now) => {
    const kinds = Object.entries(now.memory);
    const text = JSON.stringify([kinds, now.capacity]);
    if (text === last) return;
    last = text;
    const needed = kinds.reduce((sum, [, size]) => sum + size, 0);
    const whole = Math.max(needed, now.capacity || 0) || 1;
    const colours = tintsOf(kinds.length);
    const cells = kinds.map(([kind, size], i) => hinted(el("div", { class: "cell", style: { width: `${(100 * size) / whole}%`, background: colours[i], color: inkOn(colours[i]) } }), () => `${named(kind)}: ${show(size, "B", SIZED)}`));
    const limit = el("div", { class: "limit", style: { left: `${(100 * (now.capacity || 0)) / whole}%` } });
    const bar = el("div", { class: "bar tall", role: "img", "aria-label": `${show(needed, "B")} of ${show(now.capacity, "B")}` }, ...cells, limit);
    measured(bar, () => kinds.forEach(([kind, size], i) => write(cells[i], fitting((size / whole) * bar.wide - 8, named(kind)))));
    replace(body, bar,
      el("div", { class: "legend" }, ...kinds.map(([kind, size], i) => key(colours[i], `${named(kind)} ${show(size, "B", SIZED)}`)),
        el("span", { class: needed > now.capacity ? "bad" : "soft" }, `${show(needed, "B", SIZED)} of ${show(now.capacity, "B", SIZED)}${needed > now.capacity ? ": too much" : ""}`)));
  };
  return view;
}

// ---------------------------------------------------------------------------------------------- the profile

const WIDE = 150;
const HIGH = 46;
const SPAN = Math.log(2.5); // a curve is cut where the value is so many times larger or smaller

/** Small curves, one a number. `page` gives `control(path)`, `pick(path)`, `picked()`, `more()`. */
export function profile(page, objectives) {
  const grid = el("div", { class: "curves" });
  const select = el("select", { "aria-label": "objective of the curves" }, ...objectives.map(({ name, label }) => el("option", { value: name }, label)));
  const owners = el("select", { "aria-label": "which numbers" }, el("option", { value: "" }, "what can be changed"), el("option", { value: "decision" }, "your decisions"), el("option", { value: "device" }, "the device"), el("option", { value: "technology" }, "technology"), el("option", { value: "constant" }, "constants of the model"));
  const more = el("button", { type: "button", class: "quiet" });
  const legend = el("div", { class: "legend" });
  const large = el("div", { class: "large", hidden: true, "data-apart": "" });
  const table = el("button", { type: "button", class: "quiet", title: "save the curves that are drawn as CSV" }, "CSV");
  const head = el("div", { class: "profile-head", "data-apart": "" }, el("span", { class: "soft" }, "of"), select, owners, more, table);
  const view = plotCard("SVG", "Profile", "each curve: a figure against one parameter; %: gain from a 10 % improvement; hollow: infeasible", head, legend, grid, large);
  const boxes = new Map();
  const seen = new Set(); // curves that are on the screen
  const watch = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) seen.add(target.dataset.curve);
      else seen.delete(target.dataset.curve);
    }
  });
  view.seen = (path) => seen.has(path);
  Object.assign(view, { select, owners, more, table, large });
  function box(path) {
    const control = page.control(path);
    const line = svg("g");
    const segments = svg("g");
    const marks = svg("g");
    line.append(segments, marks);
    const ring = svg("circle", { r: 4, class: "ring" });
    const picture = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, "aria-hidden": "true", preserveAspectRatio: "none" },
      svg("line", { x1: 0, x2: WIDE, y1: HIGH / 2, y2: HIGH / 2, class: "level" }), line, ring);
    const value = el("span", {});
    const gain = el("span", { class: "right" });
    const button = el("button", { type: "button", class: "curve", "data-curve": path, onclick: () => page.pick(path) },
      el("span", { class: "title" }, control.label), el("span", { class: "soft group-name" }), picture, el("span", { class: "foot" }, value, gain));
    hinted(button, () => [path, control.about, ...(page.alike(path).length ? [`the same effect: ${page.alike(path).join(", ")}`] : [])].filter(Boolean).join("\n"));
    watch.observe(button);
    return { button, line, ring, value, gain, control, segments, marks, lines: [], dots: [] };
  }
  view.draw = (paths, curves, gains) => {
    const wanted = paths.filter((path) => page.control(path) && curves.get(path));
    for (const path of [...boxes.keys()]) if (!wanted.includes(path) || boxes.get(path).control !== page.control(path)) {
      watch.unobserve(boxes.get(path).button);
      boxes.delete(path);
    }
    const elements = wanted.map((path) => {
      if (!boxes.has(path)) boxes.set(path, box(path));
      const box_ = boxes.get(path);
      if (box_.curve !== curves.get(path) || box_.told !== gains.get(path)) drawCurve(box_, curves.get(path), gains.get(path));
      const alike = page.alike(path).length;
      write(box_.button.children[1], `${box_.control.group}${alike ? `, + ${alike} alike` : ""}`);
      boxes.get(path).button.setAttribute("aria-pressed", String(page.picked() === path));
      return boxes.get(path).button;
    });
    if (elements.length !== grid.children.length || elements.some((element, i) => grid.children[i] !== element)) replace(grid, ...elements);
    const bounds = [...new Set(wanted.flatMap((path) => curves.get(path).bound))];
    once(legend, bounds.join(), () => bounds.map((resource) => key(resourceColour(resource), `${named(resource)} binds`, resource)));
  };
  return view;
}

/** As many elements as are wanted in a group, those that are there first. */
function enough(group, held, tag, count, className) {
  while (held.length < count) held.push(group.appendChild(svg(tag, className ? { class: className } : {})));
  held.forEach((element, i) => {
    if (element.hasAttribute("display") !== i >= count) i >= count ? element.setAttribute("display", "none") : element.removeAttribute("display");
  });
}

function put(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

function drawCurve(box, curve, gain) {
  box.curve = curve;
  box.told = gain;
  const { control } = box;
  const now = curve.y[curve.x.findIndex((x) => Math.abs(x - curve.at) <= 1e-9 * Math.abs(curve.at))];
  const height = (y) => (y === null || !now ? null : HIGH / 2 - (Math.max(-SPAN, Math.min(SPAN, Math.log(y / now))) / SPAN) * (HIGH / 2 - 5));
  const points = curve.x.map((x, i) => [place(control, x) * (WIDE - 10) + 5, height(curve.y[i]), curve.bound[i], curve.fits[i]]).filter(([, y]) => y !== null && !Number.isNaN(y));
  enough(box.segments, box.lines, "line", Math.max(points.length - 1, 0), "segment");
  enough(box.marks, box.dots, "circle", points.length);
  points.forEach(([x, y, bound, fits], i) => {
    const colour = resourceColour(bound);
    if (i) put(box.lines[i - 1], { x1: round(points[i - 1][0]), y1: round(points[i - 1][1]), x2: round(x), y2: round(y), stroke: colour, "stroke-dasharray": isHatched(bound) ? "3 2" : "none" });
    put(box.dots[i], { cx: round(x), cy: round(y), r: 2.2, fill: fits ? colour : "var(--card)", stroke: colour });
  });
  box.ring.setAttribute("cx", place(control, curve.at) * (WIDE - 10) + 5);
  box.ring.setAttribute("cy", HIGH / 2);
  box.value.textContent = shown(control, curve.at);
  if (gain) {
    const better = gain.gain > 5e-6;
    box.gain.textContent = better ? `${gain.way > 0 ? "↑" : "↓"} ${percent(gain.gain, 2)}` : "-";
    box.gain.className = `right ${better ? "good" : "soft"}`;
  }
}

function round(value) {
  return Math.round(value * 100) / 100;
}

/** Values of an axis as texts, with as many digits as tell them apart. */
function apart(values, unit) {
  const texts = (digits) => values.map((value) => (value === null ? "" : show(value, unit, digits)));
  const known = values.filter((value) => value !== null).length;
  return texts([3, 4, 5].find((digits) => new Set(texts(digits)).size >= known) ?? 6);
}

/** Round values between two, some to a decade. */
function ticks(least, most) {
  const found = [];
  const few = most / least > 30 ? [1, 3] : [1, 1.5, 2, 3, 5, 7];
  for (let power = Math.floor(Math.log10(least)); power <= Math.log10(most); power++) found.push(...few.map((digit) => digit * 10 ** power));
  return found.filter((value) => value >= least && value <= most);
}

/** One curve, large, drawn by uPlot; returns nothing. */
export function drawLarge(box, control, curve, objective, close) {
  const fits = curve.fits;
  const resources = [...new Set(curve.bound)];
  const unit = objective.endsWith("_s") ? "s" : objective.endsWith("_j") ? "J" : objective.endsWith("_w") ? "W" : objective.endsWith("_bytes") ? "B" : objective.endsWith("_usd") ? "USD" : "1";
  const ink = cssColour("var(--soft)");
  const grid = { stroke: cssColour("var(--line)"), width: 1 };
  const series = [{ label: control.label, value: (_, value) => (value === null ? "-" : show(value, control.unit)) }];
  const data = [curve.x];
  const add = (label, keep, stroke, fill, line) => {
    data.push(curve.y.map((y, i) => (keep(i) ? y : null)));
    series.push({ label, stroke, width: line ? 1.5 : 0, spanGaps: line, paths: line ? undefined : () => null, points: { show: !line, size: 7, fill, stroke }, value: (_, value) => (value === null ? "-" : show(value, unit)) });
  };
  add(start.objectives?.find(({ name }) => name === objective)?.label || objective, () => true, ink, ink, true);
  for (const resource of resources) {
    const colour = resourceColour(resource);
    add(`${named(resource)} binds`, (i) => curve.bound[i] === resource && fits[i], colour, colour, false);
    if (curve.bound.some((name, i) => name === resource && !fits[i])) add(`${named(resource)}, infeasible`, (i) => curve.bound[i] === resource && !fits[i], colour, cssColour("var(--card)"), false);
  }
  const at = curve.at;
  const axis = (text, size) => ({ stroke: ink, grid, ticks: grid, size, values: (_, values) => apart(values, text) });
  const head = el("div", { class: "large-head" }, el("b", {}, `${control.group}: ${control.label}`), el("span", { class: "soft" }, control.path), pictureButton(box, fileName(control.path), "PNG"), el("button", { type: "button", class: "quiet", "aria-label": "close", onclick: close, text: "✕", "data-apart": "" }));
  const canvas = el("div", {});
  replace(box, head, canvas);
  box.hidden = false;
  const chart = new window.uPlot({
    width: box.clientWidth - 2, height: 260,
    scales: { x: { time: false, distr: control.log ? 3 : 1, range: () => [curve.x[0], curve.x[curve.x.length - 1]] }, y: { auto: true } },
    axes: [{ ...axis(control.unit, 34), splits: control.log ? () => ticks(curve.x[0], curve.x[curve.x.length - 1]) : undefined }, axis(unit, 74)],
    series, legend: { live: true }, cursor: { points: { show: false } },
    hooks: { draw: [(plot) => {
      const x = plot.valToPos(at, "x", true);
      plot.ctx.save();
      plot.ctx.strokeStyle = ink;
      plot.ctx.setLineDash([4, 4]);
      plot.ctx.beginPath();
      plot.ctx.moveTo(x, plot.bbox.top);
      plot.ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
      plot.ctx.stroke();
      plot.ctx.restore();
    }] },
  }, data, canvas);
  return chart;
}

// ---------------------------------------------------------------------------------------------- the chip

/** Rectangles of areas in a frame, each as square as can be; values fall. */
export function treemap(values, x, y, width, height) {
  const total = values.reduce((sum, value) => sum + value, 0);
  const found = [];
  let rest = values.map((value, i) => [i, (value / total) * width * height]).filter(([, area]) => area > 0);
  while (rest.length) {
    const short = Math.min(width, height);
    let count = 1;
    const worst = (n) => {
      const sum = rest.slice(0, n).reduce((s, [, area]) => s + area, 0);
      return Math.max(...rest.slice(0, n).map(([, area]) => Math.max((short * short * area) / (sum * sum), (sum * sum) / (short * short * area))));
    };
    while (count < rest.length && worst(count + 1) <= worst(count)) count++;
    const sum = rest.slice(0, count).reduce((s, [, area]) => s + area, 0);
    const deep = sum / short;
    let along = 0;
    for (const [i, area] of rest.slice(0, count)) {
      const size = area / deep;
      found.push(width >= height ? { i, x, y: y + along, width: deep, height: size } : { i, x: x + along, y, width: size, height: deep });
      along += size;
    }
    if (width >= height) [x, width] = [x + deep, width - deep];
    else [y, height] = [y + deep, height - deep];
    rest = rest.slice(count);
  }
  return found;
}

const UNITS = { area: "m2", power: "W", perimeter: "m" };

/** What a generated device makes of its budgets: area and power as treemaps, solid what is used; its memory levels. */
export function chip() {
  const body = el("div", { class: "maps" });
  const view = plotCard("SVG", "Chip", "solid: used, pale: given and not used", body);
  const legend = el("div", { class: "legend" });
  const levels = el("table", { class: "levels" });
  view.element.append(legend, levels);
  let last = null;
  view.redraw = () => last && view.draw(last);
  view.draw = (device) => {
    last = device;
    view.element.hidden = !device.budgets.length && !device.levels.length;
    view.small.textContent = device.budgets.length ? " solid: used, pale: given and not used" : " from its datasheet";
    const resources = [...new Set(device.budgets.map(({ resource }) => resource))].filter((name) => name !== "perimeter");
    body.hidden = !resources.length;
    const components = [...new Set(device.budgets.filter(({ resource, budget }) => resource !== "perimeter" && budget > 0).map((row) => row.component))];
    const found = componentColours(components), colours = new Map(components.map((name, i) => [name, found[i]]));
    replace(body, ...resources.map((resource) => map(resource, device, colours)));
    replace(legend, ...components.map((name) => key(colours.get(name), component(name))));
    const rows = device.levels.map((level) => el("tr", {}, el("td", {}, key(resourceColour(level.name) || "var(--faint)", named(level.name))), el("td", { class: "right" }, show(level.capacity, "B", SIZED)), el("td", { class: "right" }, level.bandwidth === null ? "-" : show(level.bandwidth, "B/s", SIZED))));
    replace(levels, el("thead", {}, el("tr", {}, el("th", {}, "level"), el("th", { class: "right" }, "capacity"), el("th", { class: "right" }, "bandwidth"))), el("tbody", {}, ...rows));
  };
  function map(resource, device, colours) {
    const rows = device.budgets.filter((row) => row.resource === resource && row.budget > 0).sort((a, b) => b.budget - a.budget);
    const width = Math.max(140, Math.floor((view.element.clientWidth - 40) / (view.element.clientWidth > 420 ? 2 : 1))), height = 150;
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${resource} by component` });
    for (const cell of treemap(rows.map(({ budget }) => budget), 0, 0, width, height)) {
      const row = rows[cell.i];
      const share = Math.min(1, row.used / row.budget);
      const colour = colours.get(row.component);
      const frame = { x: cell.x + 0.5, y: cell.y + 0.5, width: Math.max(cell.width - 1, 0), height: Math.max(cell.height - 1, 0) };
      const used = share * frame.height;
      const group = svg("g", {}, svg("rect", { ...frame, fill: colour, opacity: 0.28 }), svg("rect", { ...frame, y: frame.y + frame.height - used, height: used, fill: colour }));
      const label = frame.height > 16 ? fitting(frame.width - 8, `${component(row.component)} ${show(row.used, UNITS[resource], SIZED)}`, component(row.component)) : "";
      if (label) {
        const text = svg("text", { x: frame.x + 4, y: frame.y + 13, class: "map-text", fill: share > 0.6 || frame.height - used < 14 ? inkOn(colour) : "var(--ink)" });
        text.textContent = label;
        group.append(text);
      }
      hinted(group, () => `${component(row.component)}: ${show(row.used, UNITS[resource])} of ${show(row.budget, UNITS[resource])} used${row.limit ? `\nlimited by ${row.limit}` : ""}`);
      picture.append(group);
    }
    const used = rows.reduce((sum, row) => sum + row.used, 0);
    const given = rows.reduce((sum, row) => sum + row.budget, 0);
    return el("figure", {}, el("figcaption", { class: "soft" }, `${resource}: ${show(used, UNITS[resource], SIZED)} of ${show(given, UNITS[resource], SIZED)} used`), picture);
  }
  return view;
}

function component(name) {
  return named(name.replace(/^on_chip\./, ""));
}

// ---------------------------------------------------------------------------------------------- the timeline

// What is no computation is hatched, as in other charts of timelines: lines up, lines down, level lines.
const HATCHED = { "exposed communication": [0, 7, 7, 0], "waits in a collective": [0, 0, 7, 7], "waits for the host": [0, 3.5, 7, 3.5] };

function hatch(context, fill) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 7;
  const inner = tile.getContext("2d");
  inner.fillStyle = cssColour("var(--card)");
  inner.fillRect(0, 0, 7, 7);
  inner.strokeStyle = fill === "exposed communication" ? start.colours.network : cssColour("var(--soft)");
  inner.lineWidth = 1.6;
  const [a, b, c, d] = HATCHED[fill];
  for (const shift of [-7, 0, 7]) {
    inner.beginPath();
    inner.moveTo(a + shift, b);
    inner.lineTo(c + shift, d);
    inner.stroke();
  }
  return [context.createPattern(tile, "repeat"), tile.toDataURL()];
}

function hatchKey(image, text) {
  return el("span", { class: "entry" }, el("span", { class: "key", style: { background: `url(${image})` } }), text);
}

/** What classes of devices do when. */
export function strip() {
  const canvas = el("canvas", { class: "strip", role: "img", "aria-label": "timeline of a step" });
  const legend = el("div", { class: "legend" });
  const view = plotCard("PNG", "Timeline", "", canvas, legend);
  let last = null;
  let told = ""; // what people must know of the timeline
  view.draw = (found) => {
    last = found;
    const line = 18, left = Math.ceil(Math.max(40, ...found.rows.map(widthOf))) + 8;
    const width = view.element.clientWidth - 30;
    const height = found.rows.length * line + 16;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.clearRect(0, 0, width, height);
    context.font = "11px system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";
    context.textBaseline = "middle";
    const [ink, ground] = [cssColour("var(--soft)"), cssColour("var(--well)")];
    found.rows.forEach((name, row) => {
      context.fillStyle = ink;
      context.fillText(name, 0, row * line + line / 2);
      context.fillStyle = ground;
      context.fillRect(left, row * line + 1, width - left, line - 3);
    });
    const [rows, families, fills, starts, widths, bases, heights] = found.pieces;
    const inner = line - 3;
    const hatches = Object.fromEntries(Object.keys(HATCHED).map((fill) => [fill, hatch(context, fill)]));
    for (let i = 0; i < rows.length; i++) {
      const fill = found.fills[fills[i]];
      context.fillStyle = hatches[fill] ? hatches[fill][0] : found.families[families[i]]?.[1] || start.colours.compute;
      const top = rows[i] * line + 1 + inner * (1 - bases[i] - heights[i]);
      context.fillRect(left + starts[i] * (width - left), top, Math.max(widths[i] * (width - left), 0.4), inner * heights[i]);
    }
    context.fillStyle = ink;
    context.fillText("0", left, height - 7);
    const end = show(found.total, "s");
    context.fillText(end, width - context.measureText(end).width, height - 7);
    const there = [...new Set(fills)].filter((i) => i > 0).map((i) => found.fills[i]);
    replace(legend, ...found.families.filter(([, colour]) => colour).map(([name, colour]) => key(colour, name)), ...there.map((fill) => hatchKey(hatches[fill][1], fill)), el("span", { class: "soft" }, "pale: idle"), found.note ? el("span", { class: "soft" }, found.note) : null);
    const more = found.classes > found.rows.length ? `${found.rows.length} of ${found.classes} classes of devices` : "";
    view.small.textContent = [more, told].filter(Boolean).map((text) => ` ${text}`).join(",");
  };
  view.tell = (sentence) => {
    if (told === sentence) return;
    told = sentence;
    view.redraw();
  };
  view.redraw = () => last && view.draw(last);
  view.fail = (sentence) => {
    last = null;
    canvas.style.height = "0px";
    replace(legend, el("span", { class: "soft" }, sentence));
  };
  return view;
}

// ---------------------------------------------------------------------------------------------- comparisons

/** Designs side by side: figures, and what of their settings differs. */
export function pinTable(page) {
  const body = el("div", { class: "scroll" });
  const view = card("Designs side by side", "only what differs", body);
  view.draw = (columns) => {
    view.element.hidden = columns.length < 2;
    const cell = (text, className) => el("td", { class: className || "" }, text);
    const head = columns.map((column) => el("th", {},
      column.now ? el("b", {}, column.name) : el("button", { type: "button", class: "quiet", "aria-pressed": String(column.reference), onclick: () => page.refer(column), text: column.name }),
      column.removable ? el("button", { type: "button", class: "quiet", "aria-label": `remove ${column.name}`, onclick: () => page.remove(column), text: "✕" }) : null,
      column.now ? null : el("button", { type: "button", class: "quiet", onclick: () => page.open(column), text: "open" }),
      column.reference ? el("div", { class: "soft" }, "reference") : null, column.same ? el("div", { class: "soft" }, "as it is now") : null));
    const paths = [...new Set(columns.flatMap((column) => Object.keys(column.answer.written || {})))];
    const texts = (path) => columns.map((column) => column.answer.written?.[path] ?? page.own(path));
    const differing = paths.filter((path) => new Set(texts(path)).size > 1);
    const rows = [
      ["step time", columns.map(({ answer }) => answer.error || (answer.step_time === null ? "never ends" : show(answer.step_time, "s")))],
      ["trust", columns.map(({ answer }) => answer.trust?.level || "-")],
      ["bound by", columns.map(({ answer }) => (answer.bound ? named(Object.entries(answer.bound).sort((a, b) => b[1] - a[1])[0]?.[0] || "-") : "-"))],
      ["fits", columns.map(({ answer }) => (answer.error ? "-" : answer.feasible ? "yes" : "no"))],
      ["memory", columns.map(({ answer }) => (answer.memory ? show(Object.values(answer.memory).reduce((a, b) => a + b, 0), "B", SIZED) : "-"))],
      ...(columns[0].answer.figures || []).map((figure) => [figure.label, columns.map(({ answer }) => {
        const found = answer.figures?.find(({ name }) => name === figure.name);
        return !found || found.value === null ? "-" : found.unit === "1" ? percent(found.value) : show(found.value, found.unit);
      })]),
      ["strategy", columns.map(({ answer }) => answer.strategy || "-")],
      ...differing.filter((path) => path !== "strategy").map((path) => [path, texts(path)]),
    ].filter(([name, cells]) => name === "step time" || new Set(cells).size > 1);
    replace(body, el("table", {}, el("thead", {}, el("tr", {}, el("th", {}), ...head)), el("tbody", {}, ...rows.map(([name, cells]) => el("tr", {}, el("th", {}, name), ...cells.map((text) => cell(text)))))));
  };
  return view;
}

/** Why one design is faster than another: a bar for each difference, which add up. */
export function waterfall() {
  const body = el("div", {});
  const view = plotCard("SVG", "Why faster", "one difference after another, the largest gain first", body);
  view.element.hidden = true;
  view.draw = (found, one, two) => {
    view.element.hidden = false;
    if (found.first === null || found.second === null) {
      replace(body, el("p", { class: "soft" }, "One of the steps never ends, so that its time has no parts."));
      return;
    }
    const longest = Math.max(found.first, found.second, ...found.steps.map(({ time }) => time || 0));
    const row = (label, from, to, className, text) => el("div", { class: "fall" }, el("span", { class: "fall-name" }, label),
      el("div", { class: "fall-bar" }, el("span", { class: className, style: { left: `${(100 * Math.min(from, to)) / longest}%`, width: `${Math.max((100 * Math.abs(to - from)) / longest, 0.3)}%` } })), el("span", { class: "right" }, text));
    const rows = [row(one, 0, found.first, "whole", show(found.first, "s"))];
    let before = found.first;
    for (const step of found.steps) {
      const change = step.time - before;
      rows.push(row(step.text, before, step.time, change <= 0 ? "less" : "more", `${change <= 0 ? "▼ −" : "▲ +"}${show(Math.abs(change), "s", SIZED)}`));
      before = step.time;
    }
    rows.push(row(two, 0, found.second, "whole", show(found.second, "s")));
    replace(body, ...rows);
    if (!found.steps.length) body.append(el("p", { class: "soft" }, "The designs do not differ."));
  };
  view.fail = (sentence) => {
    view.element.hidden = false;
    replace(body, el("p", { class: "bad" }, sentence));
  };
  return view;
}

