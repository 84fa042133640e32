// A page without crossflow: designs of a grid that was computed beforehand, found by their settings.
import { same } from "./scenario-panel.js";

const SPARE = 0.05; // share of memory that the strategy leaves which auto takes, where any leaves it

/** The designs of a grid. `answers` are what the page holds, `own` the strategy that the scenario asks for where it is no plan. */
export class Grid {
  constructor(answers, own) {
    this.own = own;
    this.points = answers.points || [];
    this.missing = answers.missing || {};
    this.axes = answers.axes || [];
    this.sizes = this.axes.map(({ values }) => values.length);
    this.strategy = this.axes.findIndex(({ kind }) => kind === "strategy");
  }

  axis(path) {
    return this.axes.find((axis) => axis.path === path);
  }

  /** Values among which a control moves; nothing for the strategy, which has a list of its own, and for controls that are fixed. */
  values(path) {
    const axis = this.axis(path);
    return axis && axis.kind !== "strategy" ? axis.values : undefined;
  }

  fixed(path) {
    return !this.axis(path);
  }

  /** Places of settings along all axes, that of the strategy left at 0. */
  places(settings) {
    return this.axes.map((axis) => {
      const wanted = settings[axis.path];
      if (axis.kind === "strategy") return 0;
      if (wanted === undefined) return axis.own;
      if (axis.kind === "name") return Math.max(0, axis.values.indexOf(wanted));
      return axis.values.reduce((found, one, j) => (Math.abs(one - wanted) < Math.abs(axis.values[found] - wanted) ? j : found), 0);
    });
  }

  at(places) {
    return this.points[places.reduce((index, place, i) => index * this.sizes[i] + place, 0)] || null;
  }

  /** Designs with these settings, one for each strategy that is held. */
  candidates(settings) {
    const places = this.places(settings);
    if (this.strategy < 0) return [this.at(places)].filter(Boolean);
    return this.axes[this.strategy].values.map((rank) => this.at(places.with ? places.with(this.strategy, rank) : Object.assign([...places], { [this.strategy]: rank }))).filter(Boolean);
  }

  /** The design of settings: `point`, these `settings` with the nearest values that are held, and a `note` on another strategy; or an `error`. */
  find(settings, kept) {
    const places = this.places(settings);
    const snapped = { ...settings };
    this.axes.forEach((axis, i) => {
      if (axis.kind === "strategy" || settings[axis.path] === undefined) return;
      if (places[i] === axis.own) delete snapped[axis.path];
      else snapped[axis.path] = axis.values[places[i]];
    });
    const held = this.candidates(settings);
    if (!held.length) return { error: this.why(places) };
    const asked = settings.strategy ?? this.own;
    if (this.strategy < 0) return { point: held[0], settings: snapped };
    if (asked === "auto") return { point: chosen(held), settings: snapped };
    const point = held.find(({ strategy }) => strategy === (asked ?? kept));
    if (point) return { point, settings: snapped };
    const other = chosen(held);
    return { point: other, settings: snapped, note: `${asked ?? kept} is none of the strategies that this page holds here: ${other.strategy} is taken` };
  }

  /** Why there is no design at some places. */
  why(places) {
    const discrete = this.axes.map((axis, i) => [axis, i]).filter(([{ kind }]) => kind === "name" || kind === "whole");
    const number = discrete.reduce((sum, [axis, i]) => sum * axis.values.length + places[i], 0);
    return this.missing[number] || "this page holds no such design";
  }

  /** Strategies that are held for some settings, as rows of the list of strategies. */
  rows(settings) {
    const rows = this.candidates(settings).map(({ strategy, step_time: time, feasible: fits }) => ({ strategy, time, fits }));
    return { count: rows.length, rows: rows.sort((a, b) => b.fits - a.fits || a.time - b.time), held: true };
  }

  /** Curve of a number through a design, from the grid. */
  curve(axis, settings, kept) {
    const found = axis.values.map((value) => this.find({ ...settings, [axis.path]: value }, kept).point || null);
    const binds = (point) => Object.entries(point?.bound || {}).sort((a, b) => b[1] - a[1])[0]?.[0] || "compute";
    const now = settings[axis.path];
    const at = now === undefined ? axis.own : axis.values.findIndex((one) => same(one, now));
    return { x: axis.values, y: found.map((point) => point?.step_time ?? null), fits: found.map((point) => Boolean(point?.feasible)), bound: found.map(binds), at: axis.values[at] };
  }

  /** Numbers that are axes: their curves follow the design. */
  numbers() {
    return this.axes.filter(({ kind }) => kind === "number");
  }

  /** What can be moved, in words. */
  told() {
    return this.axes.map(({ path, kind, values }) => (kind === "strategy" ? `strategy (the best ${values.length})` : path)).join(", ");
  }
}

/** The design that auto takes: the fastest that fits, one with memory to spare where any has. */
function chosen(held) {
  const room = ({ memory, capacity }) => (capacity ? 1 - Object.values(memory).reduce((sum, size) => sum + size, 0) / capacity : 1);
  const rank = (point) => (!point.feasible ? 2 : room(point) < SPARE ? 1 : 0);
  return held.reduce((best, point) => (rank(point) - rank(best) || (point.step_time ?? Infinity) - (best.step_time ?? Infinity)) < 0 ? point : best);
}
