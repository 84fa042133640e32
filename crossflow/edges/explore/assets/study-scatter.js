// The scatter plot: any two columns, coloured by a third, with the front of the two; a drag brushes, a click opens a design.

import { cssColour, digits, el, hinted, replace, show, unhint } from "./kit.js";
import { column, data, feasible, front } from "./study-data.js";
import { brushBetween, canLog, colouring, drawAxes, fitted, packed, scaleOfColumn } from "./study-axes.js";

const NEAR = 14; // pixels from a point at which it is meant

/** Pixels of a disc, or of a ring, around a point, as offsets of columns and rows. */
function stamp(radius, hollow) {
  const found = [];
  const reach = Math.ceil(radius);
  for (let y = -reach; y <= reach; y++) {
    for (let x = -reach; x <= reach; x++) {
      const far = Math.hypot(x, y);
      if (far <= radius + 0.3 && (!hollow || far > radius - 0.8)) found.push([x, y]);
    }
  }
  return found;
}

/** Something between -0.5 and 0.5 that is always the same for a row, so that points of one name lie side by side. */
function jitter(i) {
  return ((Math.imul(i + 1, 2654435761) >>> 0) / 2 ** 32 - 0.5);
}

/** Put the plot into an element; `draw()` draws it anew. */
export function makeScatter(host, app) {
  const canvas = el("canvas", { class: "plot", role: "img", tabIndex: -1 });
  const legend = el("div", { class: "legend" });
  replace(host, canvas, legend);
  const layer = document.createElement("canvas");
  const view = { px: new Float32Array(0), py: new Float32Array(0), x: null, y: null, box: null, key: "", drag: null, drawn: null };

  function places(width, height) {
    const { state } = app;
    const cx = column(state.x), cy = column(state.y);
    const box = { left: 74, right: width - 14, top: 10, bottom: height - 42 };
    const key = [state.x, state.y, app.logs("x"), app.logs("y"), width, height, data.rows].join("|");
    if (key === view.key) return;
    view.key = key;
    view.box = box;
    view.x = scaleOfColumn(cx, box.left, box.right, { log: app.logs("x"), count: Math.max(3, Math.round(width / 110)) });
    view.y = scaleOfColumn(cy, box.bottom, box.top, { log: app.logs("y"), count: Math.max(3, Math.round(height / 60)) });
    const n = data.rows, px = new Float32Array(n), py = new Float32Array(n);
    const jx = Math.min(view.x.step * 0.7, 60), jy = Math.min(view.y.step * 0.7, 40);
    const { at: atX } = view.x, { at: atY } = view.y, vx = cx.values, vy = cy.values;
    for (let i = 0; i < n; i++) {
      px[i] = atX(vx[i]) + (jx ? jx * jitter(i) : 0);
      py[i] = atY(vy[i]) + (jy ? jy * jitter(i + 7) : 0);
    }
    view.px = px;
    view.py = py;
  }

  function points(context, ratio) {
    const { box, px, py } = view;
    const wide = Math.round((box.right - box.left) * ratio), high = Math.round((box.bottom - box.top) * ratio);
    if (wide < 2 || high < 2) return;
    layer.width = wide;
    layer.height = high;
    const image = new ImageData(wide, high);
    const pixels = new Uint32Array(image.data.buffer);
    const { of, colours } = app.colours();
    const inks = Uint32Array.from(colours, (colour) => packed(colour));
    const pale = packed(cssColour("var(--line)"));
    const size = (data.rows <= 400 ? 4 : data.rows <= 4000 ? 3 : data.rows <= 30000 ? 2 : 1.5) * ratio;
    const disc = stamp(size, false), ring = stamp(size + 0.4, true), small = stamp(Math.max(1, size - ratio), false);
    const fits = feasible(), mask = data.mask, n = data.rows;
    const paint = (i, shape, ink) => {
      const x = Math.round((px[i] - box.left) * ratio), y = Math.round((py[i] - box.top) * ratio);
      for (let k = 0; k < shape.length; k++) {
        const a = x + shape[k][0], b = y + shape[k][1];
        if (a >= 0 && b >= 0 && a < wide && b < high) pixels[b * wide + a] = ink;
      }
    };
    if (data.selected < n) for (let i = 0; i < n; i++) if (!mask[i] && px[i] === px[i] && py[i] === py[i]) paint(i, small, pale);
    if (app.state.inf !== "hidden") for (let i = 0; i < n; i++) if (mask[i] && px[i] === px[i] && py[i] === py[i] && !fits(i)) paint(i, ring, inks[of(i)]);
    for (let i = 0; i < n; i++) if (mask[i] && px[i] === px[i] && py[i] === py[i] && fits(i)) paint(i, disc, inks[of(i)]);
    layer.getContext("2d").putImageData(image, 0, 0);
    context.drawImage(layer, box.left, box.top, box.right - box.left, box.bottom - box.top);
  }

  function line(context) {
    const rows = app.front();
    if (!rows.length) return;
    const { px, py } = view;
    context.strokeStyle = cssColour("var(--ink)");
    context.lineWidth = 1.3;
    context.beginPath();
    const names = column(app.state.x).isText || column(app.state.y).isText;
    rows.forEach((i, k) => {
      if (k && !names) {
        const before = rows[k - 1];
        const corner = app.larger("x") === app.larger("y") ? (app.larger("x") ? [px[before], py[i]] : [px[i], py[before]]) : (app.larger("x") ? [px[before], py[i]] : [px[i], py[before]]);
        context.lineTo(...corner);
        context.lineTo(px[i], py[i]);
      } else context.moveTo(px[i], py[i]);
    });
    context.stroke();
    for (const i of rows.length > 150 ? [] : rows) {
      context.beginPath();
      context.arc(px[i], py[i], 5, 0, 7);
      context.stroke();
    }
  }

  function mark(context, i, words) {
    const { px, py, box } = view;
    if (i < 0 || !(px[i] >= box.left - 5 && px[i] <= box.right + 5)) return;
    context.strokeStyle = cssColour("var(--ink)");
    context.fillStyle = cssColour("var(--ink)");
    context.lineWidth = 2;
    context.beginPath();
    context.arc(px[i], py[i], 8, 0, 7);
    context.stroke();
    context.font = "600 11px system-ui, sans-serif";
    const right = px[i] + 70 < box.right;
    context.textAlign = right ? "left" : "right";
    context.textBaseline = "middle";
    context.fillText(words, px[i] + (right ? 12 : -12), Math.max(box.top + 8, py[i] - 8));
  }

  function brushes(context) {
    const { box } = view;
    const [left, right] = app.span(column(app.state.x), view.x) || [box.left, box.right];
    const [top, bottom] = app.span(column(app.state.y), view.y) || [box.top, box.bottom];
    if (left === box.left && right === box.right && top === box.top && bottom === box.bottom) return;
    const clip = (v, a, b) => Math.max(a, Math.min(b, v));
    const a = clip(left, box.left, box.right), b = clip(right, box.left, box.right), c = clip(top, box.top, box.bottom), d = clip(bottom, box.top, box.bottom);
    context.strokeStyle = cssColour("var(--accent)");
    context.setLineDash([4, 3]);
    context.lineWidth = 1.2;
    context.strokeRect(a, c, b - a, d - c);
    context.setLineDash([]);
  }

  function grid(context) {
    const { box, x, y } = view;
    context.strokeStyle = cssColour("var(--well)");
    context.lineWidth = 1;
    context.beginPath();
    for (const tick of x.ticks) {
      context.moveTo(Math.round(tick.at) + 0.5, box.top);
      context.lineTo(Math.round(tick.at) + 0.5, box.bottom);
    }
    for (const tick of y.ticks) {
      context.moveTo(box.left, Math.round(tick.at) + 0.5);
      context.lineTo(box.right, Math.round(tick.at) + 0.5);
    }
    context.stroke();
  }

  function draw() {
    const { context, width, height, ratio } = fitted(canvas);
    places(width, height);
    context.clearRect(0, 0, width, height);
    grid(context);
    points(context, ratio);
    context.save();
    context.beginPath();
    context.rect(view.box.left, view.box.top, view.box.right - view.box.left, view.box.bottom - view.box.top);
    context.clip();
    if (app.state.front) line(context);
    mark(context, app.best, "best");
    if (app.opened !== app.best) mark(context, app.opened, `${data.rows ? column("id")?.text(app.opened) ?? "" : ""}`);
    context.restore();
    brushes(context);
    drawAxes(context, view.box, view.x, view.y);
    canvas.setAttribute("aria-label", `${view.y.title} over ${view.x.title}, ${data.selected} of ${data.rows} points selected`);
    drawLegend();
  }

  function drawLegend() {
    const found = column(app.state.c);
    const key = [app.state.c, data.rows, app.theme(), app.logs("c")].join("|");
    if (key === view.drawn) return;
    view.drawn = key;
    const { legend: entries, left, ramp, colours } = app.colours();
    if (!found || found.isConstant) return replace(legend);
    const title = el("span", { class: "soft" }, `${found.words}: `);
    if (ramp) {
      const bar = el("span", { class: "ramp", style: { background: `linear-gradient(90deg, ${colours.filter((_, i) => i % 9 === 0).join(",")})` } });
      return replace(legend, title, found.written(ramp[0]), bar, found.written(ramp[1]), app.logs("c") ? el("span", { class: "faint" }, " log") : null);
    }
    const chips = entries.map(({ text, level, colour }) =>
      el("button", { class: "chip", type: "button", title: `only ${text}`, onclick: () => app.only(found.name, level) }, el("span", { class: "key", style: { background: colour } }), text));
    return replace(legend, title, ...chips, left ? el("span", { class: "faint" }, `and ${left} more`) : null, el("span", { class: "faint" }, app.fitsAll() ? "" : "○ does not fit"));
  }

  /** The selected point nearest to a place, -1 where none is near. */
  function nearest(x, y) {
    const { px, py } = view;
    let best = -1, least = NEAR * NEAR;
    for (let i = 0; i < data.rows; i++) {
      if (!data.mask[i]) continue;
      const a = px[i] - x, b = py[i] - y, far = a * a + b * b;
      if (far < least) [best, least] = [i, far];
    }
    return best;
  }

  const place = (event) => {
    const bounds = canvas.getBoundingClientRect();
    return [event.clientX - bounds.left, event.clientY - bounds.top];
  };
  hinted(canvas, (event) => {
    if (view.drag?.moved || !event.clientX) return null;
    const i = nearest(...place(event));
    canvas.style.cursor = i >= 0 ? "pointer" : "crosshair";
    return i < 0 ? null : app.described(i);
  });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    const [x, y] = place(event);
    const { box } = view;
    if (x < box.left - 4 || x > box.right + 4 || y < box.top - 4 || y > box.bottom + 4) return;
    canvas.setPointerCapture(event.pointerId);
    view.drag = { x, y, moved: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!view.drag) return;
    const [x, y] = place(event);
    if (!view.drag.moved && Math.hypot(x - view.drag.x, y - view.drag.y) < 5) return;
    view.drag.moved = true;
    unhint();
    app.brush({ [app.state.x]: brushBetween(column(app.state.x), view.x, view.drag.x, x), ...(app.state.x === app.state.y ? {} : { [app.state.y]: brushBetween(column(app.state.y), view.y, view.drag.y, y) }) });
  });
  canvas.addEventListener("pointerup", (event) => {
    const drag = view.drag;
    view.drag = null;
    if (!drag || drag.moved) return;
    const i = nearest(...place(event));
    if (i >= 0) app.open(i);
    else app.brush({ [app.state.x]: null, [app.state.y]: null });
  });
  return { draw };
}

/** Front of the two axes; none where one of them is of names. */
export function frontOfAxes(state, larger) {
  const x = column(state.x), y = column(state.y);
  return x === y || x.isText || y.isText ? [] : front(x, y, larger);
}

/** Colours of a column, as the plots share them. */
export function coloursFor(name, log) {
  const found = column(name);
  return colouring(found, log && found && canLog(found));
}

/** A value of a column as a hint has it. */
export function line(found, i) {
  return `${found.words}: ${found.isText || found.unit !== "1" ? found.text(i) : digits(found.values[i], 5)}`;
}

/** How many of how many, as a share. */
export function share(part, whole) {
  return whole ? show((100 * part) / whole, "1", 3) : "0";
}
