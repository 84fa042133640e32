// Parallel coordinates: a line for each point through the axes of some columns. A drag along an axis brushes it, its name is dragged aside.

import { cssColour, el, replace } from "./kit.js";
import { column, data } from "./study-data.js";
import { breakable, brushBetween, cut, fitted, scaleOfColumn, wantsLog } from "./study-axes.js";

const AT_ONCE = 800, IN_ALL = 6000, PALE = 700; // lines drawn at once, after a pause, and of points that are not selected
const SLICE = 400; // lines drawn between two looks at the clock

/** Put the plot into an element; `draw()` draws it anew. */
export function makeParallel(host, app) {
  const back = el("canvas", { class: "plot under" }), canvas = el("canvas", { class: "plot over", role: "img" });
  const names = el("div", { class: "axes" });
  const told = el("span", { class: "soft" });
  replace(host, names, el("div", { class: "layers" }, back, canvas));
  const view = { axes: [], key: "", drag: null, timer: 0, top: 8, bottom: 0 };

  function layout(width, height) {
    const wanted = app.state.axes.map(column).filter(Boolean);
    const gap = (width - 130) / Math.max(1, wanted.length - 1);
    view.gap = gap;
    view.bottom = height - 10;
    view.axes = wanted.map((found, k) => ({
      found,
      x: wanted.length === 1 ? width / 2 : 65 + k * gap,
      scale: scaleOfColumn(found, view.bottom, view.top, { log: wantsLog(found), count: 5 }),
    }));
    replace(names, ...view.axes.map(label));
  }

  function label({ found, x }, k) {
    const title = found.titled().title.replace(found.words, found.short);
    const move = (step) => {
      const axes = [...app.state.axes];
      const to = Math.max(0, Math.min(axes.length - 1, k + step));
      axes.splice(to, 0, ...axes.splice(k, 1));
      app.axes(axes);
      names.children[to]?.querySelector(".grip")?.focus();
    };
    const grip = el("button", { class: "grip quiet", type: "button", title: `${found.name}: drag, or arrow keys, to move; Delete to remove` }, breakable(`${title}${wantsLog(found) ? ", log" : ""}`));
    grip.addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft") move(-1);
      else if (event.key === "ArrowRight") move(1);
      else if (event.key === "Delete" || event.key === "Backspace") app.axes(app.state.axes.filter((name) => name !== found.name));
      else return;
      event.preventDefault();
    });
    grip.addEventListener("pointerdown", (event) => {
      const begin = event.clientX;
      grip.setPointerCapture(event.pointerId);
      const end = (after) => move(Math.round((after.clientX - begin) / view.gap));
      grip.addEventListener("pointerup", end, { once: true });
    });
    const width = Math.max(56, Math.min(view.gap - 6, 170));
    const remove = el("button", { class: "quiet close", type: "button", "aria-label": `remove ${title}`, onclick: () => app.axes(app.state.axes.filter((name) => name !== found.name)) }, "×");
    return el("div", { class: "axis", style: { left: `${x - width / 2}px`, width: `${width}px` } }, grip, remove);
  }

  /** Lines of some rows, those of one colour in one path. */
  function lines(context, rows, of) {
    const paths = new Map();
    const axes = view.axes;
    for (const i of rows) {
      const shade = of(i);
      if (!paths.has(shade)) paths.set(shade, new Path2D());
      const path = paths.get(shade);
      let drawn = false;
      for (const { found, scale, x } of axes) {
        const y = scale.at(found.values[i]);
        if (y !== y) drawn = false;
        else if (drawn) path.lineTo(x, y);
        else {
          path.moveTo(x, y);
          drawn = true;
        }
      }
    }
    for (const [shade, path] of paths) {
      context.strokeStyle = shade;
      context.stroke(path);
    }
  }

  /** Every so many-th of the selected rows, no more than asked for. */
  function some(most, all = false) {
    const rows = [];
    const count = all ? data.rows : data.selected;
    const every = Math.max(1, count / most);
    let seen = 0, next = 0;
    for (let i = 0; i < data.rows; i++) {
      if (!all && !data.mask[i]) continue;
      if (seen >= next) {
        rows.push(i);
        next += every;
      }
      seen++;
    }
    return rows;
  }

  function drawBack() {
    const { context, width, height } = fitted(back);
    const key = [width, height, app.state.axes.join(), data.rows, app.theme(), data.columns.size].join("|");
    if (key === view.key) return;
    view.key = key;
    layout(width, height);
    context.clearRect(0, 0, width, height);
    context.lineWidth = 1;
    context.globalAlpha = 0.7;
    const pale = cssColour("var(--line)");
    lines(context, some(PALE, true), () => pale);
  }

  function overlay(context) {
    context.globalAlpha = 1;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    const ink = cssColour("var(--ink)"), card = cssColour("var(--card)"), accent = cssColour("var(--accent)");
    view.axes.forEach(({ found, scale, x }, k) => {
      context.strokeStyle = cssColour("var(--faint)");
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(Math.round(x) + 0.5, view.top);
      context.lineTo(Math.round(x) + 0.5, view.bottom);
      context.stroke();
      const last = k === view.axes.length - 1 && k > 0;
      context.textAlign = last ? "right" : "left";
      for (const tick of scale.ticks) {
        const text = cut(context, tick.text, Math.max(30, Math.min(view.gap - 14, Math.max(110, 0.6 * view.gap)))), at = x + (last ? -6 : 6);
        const wide = context.measureText(text).width;
        context.globalAlpha = 0.75;
        context.fillStyle = card;
        context.fillRect(last ? at - wide - 2 : at - 2, tick.at - 6, wide + 4, 12);
        context.globalAlpha = 1;
        context.fillStyle = ink;
        context.fillText(text, at, tick.at);
      }
      const span = app.span(found, scale);
      if (span) {
        context.globalAlpha = 0.25;
        context.fillStyle = accent;
        const top = Math.max(view.top, span[0]), bottom = Math.min(view.bottom, span[1]);
        context.fillRect(x - 8, top, 16, bottom - top);
        context.globalAlpha = 1;
        context.strokeStyle = accent;
        context.strokeRect(x - 8, top, 16, bottom - top);
      }
    });
  }

  function drawLines(most, sliced) {
    const { context, width, height } = fitted(canvas);
    const { of, colours } = app.colours();
    context.clearRect(0, 0, width, height);
    context.lineWidth = 1;
    context.globalAlpha = Math.max(0.18, Math.min(0.9, 60 / Math.sqrt(Math.min(most, data.selected) + 1) / 2));
    const rows = some(most);
    const alpha = context.globalAlpha;
    const shade = (i) => colours[of(i)];
    const finish = () => {
      highlight(context, app.best, cssColour("var(--ink)"));
      if (app.opened >= 0) highlight(context, app.opened, cssColour("var(--accent)"));
      overlay(context);
      app.linesDrawn(Math.min(rows.length, data.selected));
    };
    if (!sliced) {
      lines(context, rows, shade);
      finish();
      return;
    }
    const version = data.version;
    let done = 0;
    const slice = () => {
      if (version !== data.version) return;
      context.globalAlpha = alpha;
      context.lineWidth = 1;
      const begin = performance.now();
      while (done < rows.length && performance.now() - begin < 12) {
        lines(context, rows.slice(done, done + SLICE), shade);
        done += SLICE;
      }
      finish();
      if (done < rows.length) view.timer = requestAnimationFrame(slice);
    };
    slice();
  }

  function highlight(context, i, ink) {
    if (i < 0 || !data.mask[i]) return;
    context.globalAlpha = 1;
    context.lineWidth = 5;
    const card = cssColour("var(--card)");
    lines(context, [i], () => card);
    context.lineWidth = 2.4;
    lines(context, [i], () => ink);
  }

  function draw() {
    if (!canvas.clientWidth) return;
    drawBack();
    clearTimeout(view.timer);
    cancelAnimationFrame(view.timer);
    drawLines(AT_ONCE, false);
    if (data.selected > AT_ONCE) view.timer = setTimeout(() => drawLines(IN_ALL, true), 220);
    canvas.setAttribute("aria-label", `parallel coordinates of ${view.axes.map(({ found }) => found.words).join(", ")}`);
  }

  const place = (event) => {
    const bounds = canvas.getBoundingClientRect();
    return [event.clientX - bounds.left, event.clientY - bounds.top];
  };
  const axisAt = (x) => view.axes.find((axis) => Math.abs(axis.x - x) < 22);
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (!view.drag) {
      canvas.style.cursor = axisAt(x) ? "ns-resize" : "default";
      return;
    }
    if (Math.abs(y - view.drag.y) < 4 && !view.drag.moved) return;
    view.drag.moved = true;
    const { found, scale } = view.drag.axis;
    app.brush({ [found.name]: brushBetween(found, scale, view.drag.y, y) });
  });
  canvas.addEventListener("pointerdown", (event) => {
    const [x, y] = place(event);
    const axis = axisAt(x);
    if (!axis || event.button) return;
    canvas.setPointerCapture(event.pointerId);
    view.drag = { axis, y, moved: false };
  });
  canvas.addEventListener("pointerup", () => {
    const drag = view.drag;
    view.drag = null;
    if (drag && !drag.moved) app.brush({ [drag.axis.found.name]: null });
  });
  return { draw, told, anew: () => { view.key = ""; } };
}
