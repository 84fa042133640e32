// The table: sorted by a click on a header, filtered by what is written below it; only the rows in view are elements.

import { csvOf, el, hinted, replace } from "./kit.js";
import { brushOf, column, data } from "./study-data.js";
import { ordered, ranking } from "./study-rank.js";
import { nothing, ranked } from "./study-answers.js";
import { breakable } from "./study-axes.js";

const HEIGHT = 24, SPARE = 8; // of a row in pixels; rows drawn beyond those in view
const MOST = 24; // columns that are shown

/** Put the table into an element; `draw()` draws it anew. */
export function makeTable(host, app) {
  const head = el("div", { class: "trow head", role: "row" });
  const filters = el("div", { class: "trow filters", role: "row" });
  const body = el("div", { class: "tbody", role: "rowgroup" });
  const space = el("div", { class: "space" });
  const frame = el("div", { class: "tframe", tabIndex: 0, role: "grid", "aria-label": "points" }, el("div", { class: "thead" }, head, filters), el("div", { class: "tspace" }, space, body));
  const empty = el("div", { hidden: true });
  replace(host, empty, frame);
  const view = { columns: [], rows: new Uint32Array(0), order: null, key: "", heads: "", focus: 0 };

  function chosen() {
    const words = app.state.q.trim().toLowerCase();
    const all = [...data.columns.values()].filter((found) => !found.isConstant);
    if (words) {
      const parts = words.split(/\s+/);
      const met = (found) => parts.every((part) => `${found.name} ${found.words}`.toLowerCase().includes(part));
      return all.filter((found) => found.name === "id" || met(found)).slice(0, MOST);
    }
    const always = (found) => found.name === "id" || (found.role === "about" && found.name !== "run") || found.shown || app.isSwept(found.name);
    const used = new Set([app.state.x, app.state.y, app.state.c]);
    const first = all.filter((found) => always(found) || used.has(found.name));
    const more = all.filter((found) => !first.includes(found) && found.role === "setting").sort((a, b) => place(a) - place(b));
    const picked = new Set([...first, ...more].slice(0, MOST));
    return all.filter((found) => picked.has(found)).sort((a, b) => place(a) - place(b));
  }

  function place(found) {
    if (found.name === "id") return 0;
    if (found.name === "search") return 1;
    if (app.isSwept(found.name)) return 2;
    if (found.role === "setting") return found.name.startsWith("techlib.") ? 6 : 5;
    return found.role === "about" ? 4 : 3;
  }

  function headers() {
    const columns = chosen();
    const key = [columns.map((found) => found.name).join(), app.state.sort.join(), data.rows].join("|");
    if (key === view.heads) return;
    view.heads = key;
    view.columns = columns.map((found) => ({ found, ...found.titled(), width: width(found) }));
    const [by, descending] = app.state.sort;
    replace(head, ...view.columns.map(({ found, title, width: wide }) => {
      const sorted = by === found.name ? (descending ? "descending" : "ascending") : "none";
      const button = el("button", { class: "quiet", type: "button", onclick: () => app.sort(found.name) }, el("span", { class: "name" }, breakable(title)), sorted === "none" ? "" : descending ? " ▾" : " ▴");
      return hinted(el("div", { class: `cell ${found.isText ? "" : "right"}`, role: "columnheader", "aria-sort": sorted, style: { width: `${wide}px` } }, button), () => found.name);
    }));
    const focused = document.activeElement?.dataset?.column;
    replace(filters, ...view.columns.map(({ found, width: wide }) => el("div", { class: "cell", style: { width: `${wide}px` } }, field(found))));
    if (focused) filters.querySelector(`[data-column="${CSS.escape(focused)}"]`)?.focus();
    const total = view.columns.reduce((sum, each) => sum + each.width, 0);
    for (const part of [head, filters, space, body]) part.style.width = `${total}px`;
  }

  /** Show what is brushed elsewhere; what a person is writing is left alone. */
  function syncFilters() {
    for (const input of filters.querySelectorAll("input")) if (input !== document.activeElement) input.value = app.filterText(input.dataset.column);
  }

  function width(found) {
    const { title } = found.titled();
    const texts = found.isText ? found.levels.reduce((most, level) => Math.max(most, Math.min(40, String(level).length)), 0) : 9;
    return Math.min(300, Math.max(70, 7 * Math.max(texts + 2, Math.min(title.length, 18) + 3)));
  }

  function field(found) {
    const input = el("input", { class: "filter", type: "text", spellcheck: "false", placeholder: found.isText ? "name" : "< 5", "aria-label": `filter ${found.words}` });
    input.dataset.column = found.name;
    input.value = app.filterText(found.name);
    input.addEventListener("input", () => {
      try {
        const brush = brushOf(found, input.value);
        input.removeAttribute("aria-invalid");
        input.title = "";
        app.filter(found.name, brush, input.value);
      } catch (error) {
        input.setAttribute("aria-invalid", "true");
        input.title = error.message;
      }
    });
    input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        input.value = "";
        app.filter(found.name, null, "");
        event.stopPropagation();
      }
    });
    return input;
  }

  function chooseRows() {
    const orderKey = [app.state.sort.join(), app.state.by, data.rows, data.columns.size].join("|");
    if (orderKey !== view.key) {
      view.key = orderKey;
      const by = ranked(app);
      view.order = app.state.sort[0] || !by ? ordered(...app.state.sort) : ranking(by);
    }
    const rows = new Uint32Array(data.selected);
    let k = 0;
    for (const i of view.order) if (data.mask[i]) rows[k++] = i;
    view.rows = rows;
    space.style.height = `${rows.length * HEIGHT}px`;
  }

  function drawRows() {
    const from = Math.max(0, Math.floor(frame.scrollTop / HEIGHT) - SPARE);
    const to = Math.min(view.rows.length, from + Math.ceil(frame.clientHeight / HEIGHT) + 2 * SPARE);
    const rows = [];
    for (let k = from; k < to; k++) {
      const i = view.rows[k];
      const cells = view.columns.map(({ found, factor, width: wide }) => el("div", { class: found.isText ? "cell" : "cell right", role: "gridcell", style: { width: `${wide}px` } }, app.cell(found, i, factor)));
      const name = `trow${i === app.opened ? " open" : ""}${i === app.best ? " best" : ""}${app.fits(i) ? "" : " misfit"}`;
      rows.push(el("div", { class: name, role: "row", "aria-selected": String(i === app.opened), style: { top: `${k * HEIGHT}px` }, onclick: () => app.open(i) }, cells));
    }
    replace(body, ...rows);
    empty.hidden = view.rows.length > 0;
    if (!view.rows.length) replace(empty, nothing(app));
  }

  function draw() {
    headers();
    syncFilters();
    chooseRows();
    drawRows();
  }

  /** Bring the row that is open into view. */
  function reveal() {
    const k = view.rows.indexOf(app.opened);
    if (k < 0) return;
    const top = k * HEIGHT, room = frame.clientHeight - 64;
    if (top < frame.scrollTop) frame.scrollTop = top;
    else if (top > frame.scrollTop + room - HEIGHT) frame.scrollTop = top - room + HEIGHT;
  }

  frame.addEventListener("scroll", () => requestAnimationFrame(drawRows), { passive: true });
  frame.addEventListener("keydown", (event) => {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9 };
    if (event.target.tagName === "INPUT" || !(event.key in steps) || !view.rows.length) return;
    event.preventDefault();
    const now = view.rows.indexOf(app.opened);
    const next = now < 0 ? 0 : Math.max(0, Math.min(view.rows.length - 1, now + steps[event.key]));
    app.open(view.rows[next]);
    reveal();
  });
  return { draw, drawRows, reveal, rows: () => view.rows, columns: () => view.columns, anew: () => { view.heads = ""; } };
}

/** Rows as CSV in SI units. A setting has its unit behind its name, as in `points.csv`; names of figures say theirs. */
export function csv(columns, rows) {
  const header = (found) => (found.role === "setting" && !found.isText && found.unit !== "1" ? `${found.name} [${found.unit}]` : found.name);
  const kept = new Map(columns.map((found) => [header(found), found])); // a column that has the numbers of another one is that one
  const cell = ({ isText, levels, values }, i) => (isText ? levels[values[i]] : values[i]);
  return csvOf([[...kept.keys()], ...Array.from(rows, (i) => Array.from(kept.values(), (found) => cell(found, i)))]);
}

/** Columns that are the same for all points, in one line. */
export function constants() {
  return [...data.columns.values()].filter((found) => found.isConstant && found.name !== "id").map((found) => `${found.words} ${column(found.name).text(0)}`);
}
