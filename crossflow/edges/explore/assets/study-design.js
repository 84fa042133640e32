// One design: its figures beside the best, where its step goes, its files and commands, and the way to its sliders.

import { call, copy, digits, el, percent, replace, resourceColour, save, seriesColour, show, signed, start } from "./kit.js";
import { column, data } from "./study-data.js";
import { breakable, onGround } from "./study-axes.js";

const FEW = 14; // figures shown at first

/** Put the panel of a design into an element; `open(row)` fills it. */
export function makeDesign(host, app) {
  const asked = { row: -1 };

  function open(row) {
    asked.row = row;
    host.hidden = row < 0;
    if (row < 0) return replace(host);
    const more = el("div", { class: "more" }, start.offline ? offline() : el("p", { class: "soft" }, "evaluating ..."));
    replace(host, header(row), reason(row), el("h2", {}, "Differences from the best"), differences(row), el("h2", {}, "Figures"), figures(row), more);
    if (!start.offline) fetchSoon(row, more);
    else bars(more, recordedParts(row));
    return undefined;
  }

  let timer = 0;
  function fetchSoon(row, more) {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      try {
        const answer = await call("design", { id: column("id").values[row] });
        if (asked.row === row) replace(more, ...told(answer, row));
      } catch (error) {
        if (asked.row === row) replace(more, el("p", { class: "bad" }, error.message));
      }
    }, 120);
  }

  function header(row) {
    const name = `Design ${column("id").text(row)}${row === app.overall ? ", the best" : ""}`;
    return el("header", { class: "dhead" }, el("h1", {}, name), el("button", { class: "quiet", type: "button", "aria-label": "close the design", onclick: () => app.open(-1) }, "×"));
  }

  function reason(row) {
    if (app.fits(row)) return null;
    const why = column("reason"), violation = column("violation");
    const text = why && why.values[row] === why.values[row] && why.isText ? why.text(row) : violation && violation.values[row] > 0 ? "it breaks a constraint of the study" : "it cannot be built or has no room for its model";
    return el("p", { class: "bad" }, `Does not fit: ${text}`);
  }

  function differences(row) {
    const best = app.overall;
    if (best < 0 || best === row) return el("p", { class: "soft" }, best === row ? "This is the best design." : "No design fits yet.");
    const rows = [...data.columns.values()].filter((found) => found.role === "setting" && !same(found.values[row], found.values[best]))
      .sort((a, b) => a.name.startsWith("techlib.") - b.name.startsWith("techlib."))
      .map((found) => el("tr", {}, el("td", { title: found.name }, breakable(found.words)), el("td", { class: "right" }, found.text(row)), el("td", { class: "right soft" }, found.text(best))));
    if (!rows.length) return el("p", { class: "soft" }, "Its settings are those of the best.");
    return folded(rows, ["setting", "this", "best"]);
  }

  function figures(row) {
    const best = app.overall;
    const objectives = new Set(app.objectives().map(({ name }) => name));
    const rows = [...data.columns.values()].filter((found) => found.role === "figure" && !found.isText && found.values[row] === found.values[row])
      .sort((a, b) => objectives.has(b.name) - objectives.has(a.name) || b.shown - a.shown)
      .filter((found) => !found.isConstant || objectives.has(found.name))
      .map((found) => {
        const change = best >= 0 && best !== row ? found.values[row] / found.values[best] - 1 : NaN;
        const good = change === 0 || !Number.isFinite(change) ? "" : change > 0 === found.larger ? "good" : "bad";
        return el("tr", {}, el("td", { title: found.name }, breakable(found.words)), el("td", { class: "right" }, found.text(row)), el("td", { class: `right ${good}` }, Number.isFinite(change) ? signed(change) : ""));
      });
    return folded(rows, ["figure", "this", best === row ? "" : "to the best"]);
  }

  function folded(rows, head) {
    const body = el("tbody", {}, rows.slice(0, FEW));
    const table = el("table", {}, el("thead", {}, el("tr", {}, head.map((text, k) => el("th", { class: k ? "right" : "" }, text)))), body);
    if (rows.length <= FEW) return table;
    const button = el("button", { class: "quiet", type: "button", onclick: () => { body.append(...rows.slice(FEW)); button.remove(); } }, `${rows.length - FEW} more`);
    return el("div", {}, table, button);
  }

  function told(answer, row) {
    if (!answer.prediction) {
      return [...barsOf(recordedParts(row)), el("p", { class: "soft" }, "Its YAML, commands and breakdown need the study's file, which was not found. Put it into the folder of the results, and load the page again.")];
    }
    const found = answer.prediction;
    const whole = answer.row.reason && answer.row.reason !== column("reason")?.text(row) ? el("p", { class: "bad" }, answer.row.reason) : null; // with its numbers
    const buttons = el("div", { class: "buttons" },
      el("button", { class: "main", type: "button", onclick: () => sliders(row) }, "Open as sliders"),
      el("button", { type: "button", onclick: () => save(`${answer.name}.yaml`, answer.yaml, "text/yaml") }, "Save YAML"),
      el("button", { type: "button", onclick: () => save("scenario.yaml", answer.base, "text/yaml") }, "Save the study's scenario"));
    return [
      whole, el("h2", {}, "Where its step goes"), ...barsOf(Object.entries(found.breakdown_s), "s"),
      found.bound_by.length ? el("p", { class: "soft" }, `bound by ${found.bound_by.slice(0, 4).map(({ resource, share }) => `${resource} ${percent(share)}`).join(", ")}`) : null,
      memory(found.memory),
      ...(found.remedies || []).map((text) => el("p", {}, text)),
      ...(found.notes || []).map((text) => el("p", { class: "soft" }, text)),
      answer.doubt ? el("p", { class: "bad" }, answer.doubt) : null,
      buttons,
      block("YAML: crossflow predict design.yaml", answer.yaml, "YAML"),
      block("Command, with the study's scenario as scenario.yaml", `crossflow predict scenario.yaml ${answer.settings}`, "Command"),
      block("Python, with the study's scenario as scenario.yaml", answer.python, "Python"),
    ];
  }

  function memory(found) {
    if (!found?.total_bytes || !found.capacity_bytes) return null;
    const share = found.total_bytes / found.capacity_bytes;
    return el("p", { class: share > 1 ? "bad" : "soft" }, `memory ${show(found.total_bytes, "B")} of ${show(found.capacity_bytes, "B")} (${percent(share)})`);
  }

  function block(title, text, what) {
    const open = el("details", {}, el("summary", {}, title), el("button", { class: "copy", type: "button", onclick: () => copy(text, what) }, "Copy"), el("pre", { class: "code" }, text));
    return open;
  }

  async function sliders(row) {
    const tab = window.open("", "_blank");
    try {
      const { url } = await call("sliders", { id: column("id").values[row] });
      if (tab) tab.location.href = url;
      else location.href = url;
    } catch (error) {
      tab?.close();
      replace(host.querySelector(".buttons"), el("p", { class: "bad" }, error.message));
    }
  }

  return { open };
}

function same(one, other) {
  return one === other || (one !== one && other !== other);
}

function offline() {
  return el("p", { class: "soft" }, "This page is a file: YAML, commands, a fresh breakdown and sliders need crossflow explore.");
}

/** Parts of the step that are columns of the study. */
function recordedParts(row) {
  return [...data.columns.values()].filter((found) => found.name.startsWith("breakdown_s.")).map((found) => [found.name.slice(12), found.values[row]]);
}

function bars(host, parts) {
  host.prepend(...barsOf(parts));
}

/** A bar for each part of a step, with its time and its share. */
function barsOf(parts) {
  const kept = parts.filter(([, value]) => value > 0);
  const total = kept.reduce((sum, [, value]) => sum + value, 0);
  return kept.map(([name, value], k) => {
    const colour = onGround(resourceColour(name) || seriesColour(k));
    return el("div", { class: "part" }, el("span", {}, name.replaceAll("_", " ")), el("span", { class: "track" }, el("span", { class: "fill", style: { width: `${(100 * value) / total}%`, background: colour } })), el("span", { class: "right" }, `${show(value, "s", 3)} · ${digits((100 * value) / total, 2)} %`));
  });
}
