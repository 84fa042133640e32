// What all pages share: the data that a page begins with, calls, numbers, colours, state in the address, elements, hints, light and dark.

export const start = JSON.parse(document.getElementById("start").textContent);

// ---------------------------------------------------------------------------------------------- calls

const token = location.pathname.split("/")[1] || "";

/** Answer of a call; an Error with the server's sentence where it refuses. */
export async function call(name, body = {}, signal = undefined) {
  if (start.offline) throw new Error("this page is a file: nothing can be computed anew");
  let response;
  try {
    response = await fetch(`api/${name}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Crossflow-Token": token },
      body: JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Error("crossflow does not answer; is it still running?");
  }
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

/**
 * A function that asks one call at a time: while an answer is awaited only the last wanted body is kept, and asked next.
 * `done(answer, body)` and `failed(error, body)` are called for every answer that comes, `busy(true or false)` around them.
 * Its `leave()` is for answers that nobody has a use for any more: none comes, and crossflow leaves the call.
 */
export function newest(name, done, failed = () => {}, busy = () => {}) {
  let running = false;
  let wanted = null;
  let leaving = null;
  async function run() {
    running = true;
    busy(true);
    while (wanted !== null) {
      const body = wanted, { signal } = leaving = new AbortController();
      wanted = null;
      try {
        const answer = await call(name, body, signal);
        if (!signal.aborted) done(answer, body);
      } catch (error) {
        if (!signal.aborted) failed(error, body);
      }
    }
    running = false;
    busy(false);
  }
  const ask = (body) => {
    wanted = body;
    if (!running) run();
  };
  ask.leave = () => {
    wanted = null;
    leaving?.abort();
  };
  return ask;
}

/** A function that calls another one when it has not been called for some milliseconds; `cancel` forgets it. */
export function later(action, pause) {
  let timer = 0;
  const wait = (...words) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...words), pause);
  };
  wait.cancel = () => clearTimeout(timer);
  return wait;
}

/** A function that runs another one before the next frame, once however often it is called. */
export function framed(action) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      action();
    });
  };
}

// ---------------------------------------------------------------------------------------------- numbers

/** Significant digits, without zeros at the end, as Python's format does with "g". */
export function digits(value, count = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
  if (value === 0) return "0";
  const exponent = Math.floor(Math.log10(Math.abs(Number(value.toPrecision(count)))));
  if (exponent < -4 || exponent >= Math.max(count, 5)) {
    const [mantissa, power] = value.toExponential(count - 1).split("e");
    return `${String(Number(mantissa))}e${Number(power)}`;
  }
  return String(Number(value.toPrecision(count)));
}

/** The factor and the name in which a person writes a value of an SI unit, as crossflow.base.units.show has it. */
export function scaleOf(value, unit) {
  const scales = start.units[unit] || start.prefixes.map(([factor, prefix]) => [factor, prefix + unit]);
  const size = Math.abs(value);
  if (!size) return scales.find(([factor]) => factor === 1) || scales[0];
  return scales.find(([factor]) => size >= factor * (1 - 1e-9)) || scales[scales.length - 1];
}

/** A value of an SI unit with its unit, such as 3.35 TB/s. */
export function show(value, unit = "1", count = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  if (unit === "USD" && Math.abs(value) >= 10 ** count) return `${grouped(value)} USD`;
  const [factor, name] = scaleOf(value, unit);
  return `${digits(value / factor, count)} ${name}`.trim();
}

/** A whole number with its thousands set apart. */
export function grouped(value) {
  return Math.round(value).toLocaleString("en-US");
}

/** A share as a percentage. */
export function percent(share, count = 3) {
  return `${digits(100 * share, count)} %`;
}

/** A relative change with its sign. */
export function signed(change, count = 3) {
  if (!Number.isFinite(change)) return "-";
  const text = digits(Math.abs(100 * change), count);
  return Math.abs(change) < 5e-6 ? "±0 %" : `${change > 0 ? "+" : "−"}${text} %`;
}

/** A relative change with its sign and an arrow, so that no colour is needed to see which way it goes. */
export function arrowed(change, count = 3) {
  const text = signed(change, count);
  return Number.isFinite(change) && Math.abs(change) >= 5e-6 ? `${change > 0 ? "▲" : "▼"}\u00a0${text.replace(" ", "\u00a0")}` : text;
}

const ruler = document.createElement("canvas").getContext("2d");
const widths = new Map();

/** Width of a text of 11 px. [px] */
export function widthOf(text) {
  if (!widths.has(text)) {
    if (widths.size > 5000) widths.clear();
    ruler.font = "11px system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";
    widths.set(text, ruler.measureText(text).width);
  }
  return widths.get(text);
}

/** The first of some texts, longest first, that has room in so many pixels; an empty one where none has. */
export function fitting(room, ...texts) {
  return texts.find((text) => widthOf(text) <= room) ?? "";
}

// ---------------------------------------------------------------------------------------------- colours

/** Colour of a resource, or of a part of a step that it takes; undefined for a name that is no resource. */
export function resourceColour(name) {
  const words = name.replaceAll("_", " ").toLowerCase();
  return start.colours[start.same[words] || words];
}

const HATCH = "repeating-linear-gradient(135deg, transparent 0 2.5px, var(--card) 2.5px 4px)";

/** Whether a name is of a resource at which nothing is done, which is hatched: its grey alone looks like other colours to some people. */
export function isHatched(name) {
  const words = name.replaceAll("_", " ").toLowerCase();
  return Boolean(start.hatched?.includes(start.same[words] || words));
}

/** Styles that fill an element with the colour of a name. */
export function painted(name, colour) {
  return { backgroundColor: colour, backgroundImage: isHatched(name) ? HATCH : "none" };
}

/** Colour of a series by its number; black is the colour of text, which changes with light and dark. */
export function seriesColour(i) {
  const colour = start.series[i % start.series.length];
  return colour === "#000000" ? "var(--ink)" : colour;
}

/** A colour for each name: that of a resource, and for the others those that no resource among them has. */
export function coloursOf(names) {
  const taken = new Set(names.map(resourceColour).filter(Boolean));
  const free = start.series.map((colour, i) => [colour, seriesColour(i)]).filter(([colour]) => !taken.has(colour));
  const others = names.filter((name) => !resourceColour(name));
  return names.map((name) => resourceColour(name) || free[others.indexOf(name) % free.length][1]);
}

/** Tints from dark to light for so many things that lie in main memory, whose colour is in their middle. */
export function tintsOf(count) {
  const ends = start.tints.map((colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16)));
  return Array.from({ length: count }, (_, i) => {
    const at = count > 1 ? (2 * i) / (count - 1) : 1;
    const [one, two] = at < 1 ? [ends[0], ends[1]] : [ends[1], ends[2]];
    const mixed = one.map((part, k) => Math.round(part + (two[k] - part) * (at < 1 ? at : at - 1)));
    return `#${mixed.map((part) => part.toString(16).padStart(2, "0")).join("")}`;
  });
}

/** What a CSS colour is where canvases need it, such as that of var(--ink). */
export function cssColour(name) {
  const inner = /^var\((--[\w-]+)\)$/.exec(name);
  return inner ? getComputedStyle(document.documentElement).getPropertyValue(inner[1]).trim() : name;
}

// ---------------------------------------------------------------------------------------------- state in the address

/** The state that the address holds after #, an object; empty where there is none or it cannot be read. */
export function readState() {
  try {
    const text = decodeURIComponent(location.hash.slice(1));
    const state = text ? JSON.parse(text) : {};
    return state && typeof state === "object" && !Array.isArray(state) ? state : {};
  } catch {
    return {};
  }
}

// Browsers refuse more than some hundred changes of the address in half a minute: those of a drag are written when it rests.
const writeSoon = later((state) => {
  const kept = Object.fromEntries(Object.entries(state).filter(([, value]) => value !== undefined));
  const text = Object.keys(kept).length ? `#${encodeURIComponent(JSON.stringify(kept)).replace(/%2C/g, ",").replace(/%3A/g, ":")}` : "";
  if (text !== location.hash) history.replaceState(null, "", text || location.pathname + location.search);
}, 150);

/** Keep a state in the address; a field that is undefined is left out. */
export function writeState(state) {
  writeSoon(state);
}

/** Call a function with the state when somebody changes the address by hand, or goes back. */
export function onState(action) {
  addEventListener("hashchange", () => action(readState()));
}

// ---------------------------------------------------------------------------------------------- elements

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (name === "text") element.textContent = value;
    else if (name in element && typeof value !== "string" && !(element instanceof SVGElement)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An HTML element: `el("button", { class: "quiet", onclick }, "Reset")`. Styles are objects: the page's policy allows no other. */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function svg(tag, attributes = {}, ...children) {
  const { style, ...others } = attributes;
  const element = filled(document.createElementNS("http://www.w3.org/2000/svg", tag), others, children);
  if (style) Object.assign(element.style, style);
  return element;
}

/** Put children in the place of those that an element has. */
export function replace(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// ---------------------------------------------------------------------------------------------- hints

let hint = null;

/**
 * Show a hint beside an element while the pointer or the focus is on it. `content()` gives text or a node, or nothing for no hint.
 */
export function hinted(element, content) {
  const open = (event) => {
    const inner = content(event);
    if (!inner) return;
    hint = hint || document.body.appendChild(el("div", { class: "hint", role: "tooltip", id: "hint" }));
    replace(hint, inner);
    hint.hidden = false;
    element.setAttribute("aria-describedby", "hint");
    const box = element.getBoundingClientRect();
    const x = event && event.clientX ? event.clientX + 14 : box.left;
    const y = event && event.clientY ? event.clientY + 16 : box.bottom + 6;
    hint.style.left = `${Math.max(4, Math.min(x, innerWidth - hint.offsetWidth - 8))}px`;
    hint.style.top = `${y + hint.offsetHeight > innerHeight - 8 ? Math.max(4, y - hint.offsetHeight - 28) : y}px`;
  };
  const close = () => {
    if (hint) hint.hidden = true;
    element.removeAttribute("aria-describedby");
  };
  element.addEventListener("pointerenter", open);
  element.addEventListener("pointermove", open);
  element.addEventListener("pointerleave", close);
  element.addEventListener("focusin", open);
  element.addEventListener("focusout", close);
  return element;
}

/** Hide the hint, as after what it belongs to has been drawn anew. */
export function unhint() {
  if (hint) hint.hidden = true;
}

addEventListener("keydown", (event) => event.key === "Escape" && unhint());

let said = null;

/** Say a sentence for some seconds, also to screen readers. */
export function say(sentence) {
  said = said || document.body.appendChild(el("div", { class: "said", role: "status" }));
  said.textContent = sentence;
  said.classList.add("shown");
  clearTimeout(said.timer);
  said.timer = setTimeout(() => said.classList.remove("shown"), 2500);
}

/** Copy a text, and say so. */
export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = document.body.appendChild(el("textarea", { class: "unseen" }));
    field.value = text;
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  say(`${what} copied`);
}

/** Rows of texts and numbers as CSV; what is not known is empty. */
export function csvOf(rows) {
  const cell = (value) => {
    const text = value === null || value === undefined || Number.isNaN(value) ? "" : String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => `${row.map(cell).join(",")}\n`).join("");
}

/** Bytes of a text in base64. */
export function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

/** Save a text, or bytes, as a file of the person who looks at the page. */
export function save(name, text, kind = "text/plain") {
  const address = URL.createObjectURL(new Blob([text], { type: kind }));
  const link = document.body.appendChild(el("a", { href: address, download: name }));
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

// ---------------------------------------------------------------------------------------------- light and dark

const THEMES = ["auto", "light", "dark"];

/** Set the theme: auto follows the system. */
export function setTheme(name) {
  if (name === "light" || name === "dark") document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
}

/** A button that goes through auto, light and dark; `changed(name)` is told, to keep it in the state and draw canvases anew. */
export function themeButton(name, changed) {
  let now = THEMES.includes(name) ? name : "auto";
  setTheme(now);
  const button = el("button", { class: "quiet", type: "button" });
  const label = () => {
    button.textContent = { auto: "◐ auto", light: "○ light", dark: "● dark" }[now];
    button.setAttribute("aria-label", `theme: ${now}`);
  };
  button.addEventListener("click", () => {
    now = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
    setTheme(now);
    label();
    changed(now);
  });
  label();
  return button;
}

/** Call a function when the system changes between light and dark. */
export function onSystemTheme(action) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", action);
}

/** Whether people asked for less motion. */
export const still = matchMedia("(prefers-reduced-motion: reduce)").matches;

/** Make "/" go to a search field, as long as nobody writes elsewhere; Escape empties it. */
export function searchKey(field) {
  addEventListener("keydown", (event) => {
    const writes = event.target.closest?.("input:not([type=range]):not([type=checkbox]), textarea, select");
    if (event.key === "/" && !writes && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      field.focus();
      field.select();
    } else if (event.key === "Escape" && event.target === field) {
      field.value = "";
      field.dispatchEvent(new Event("input"));
      field.blur();
    }
  });
}
