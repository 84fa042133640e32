// The page of a traced step: where the time goes on every rank, what it waits for, and what changes would bring.
import { call, coloursOf, copy, el, grouped, hinted, newest, onState, onSystemTheme, percent, readState, replace, show, signed, start, themeButton, writeState } from "./kit.js";
import { strip } from "./scenario-views.js";

const PART_NAMES = { busy: "kernels", copies: "copies", exposed_communication: "communication", waiting: "waiting for other ranks", host: "waiting for the host", idle: "idle" };
const ABOUT = {
  busy: "kernels compute", copies: "copies beside which no kernel runs", exposed_communication: "collectives beside which no kernel runs",
  waiting: "in collectives, before their last rank comes", host: "the device has nothing to do, for the next kernel was not launched yet", idle: "the rest",
};
const DRAWN = { busy: "compute", copies: "memory", exposed_communication: "network", waiting: "bubble", host: "host", idle: "other" }; // resources of these colours
const LONG = 60; // characters of a name

let state = { w: "", ...readState() };
let now = start.first;

const view = {
  time: el("div", { class: "big", id: "step-time" }), told: el("div", {}), decided: el("div", { class: "soft" }),
  ranks: el("div", {}), usual: el("div", {}), advice: el("div", {}), communication: el("div", {}), kernels: el("div", {}), kinds: el("div", {}), losses: el("div", {}),
  waits: el("div", {}), path: el("div", {}), unmodelled: el("div", {}), notes: el("div", { class: "soft" }), error: el("div", { class: "whatif-told bad", role: "alert" }),
  commands: el("div", {}), strip: strip(),
};
const field = el("input", { type: "text", spellcheck: "false", placeholder: "compute*0.5, all_reduce+2ms, kernel[*gemm*]*0.8", "aria-label": "what if", disabled: start.offline });

// ---------------------------------------------------------------------------------------------- tables

function table(head, rows, right = []) {
  const side = (k) => (right.includes(k) ? "right" : "");
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, head.map((text, k) => el("th", { class: side(k) }, text)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((text, k) => el("td", { class: side(k) }, text)))))));
}

function short(name) {
  return name.length > LONG ? el("span", { title: name }, `${name.slice(0, LONG - 1)}…`) : name;
}

function card(title, aside, element) {
  return el("section", { class: "card" }, el("h2", {}, title, aside ? el("small", {}, ` ${aside}`) : ""), element);
}

// ---------------------------------------------------------------------------------------------- drawing

function drawHead() {
  view.time.textContent = show(now.step_time_s, "s");
  const change = now.step_time_s / now.replayed_step_time_s - 1;
  replace(view.told, now.changes
    ? el("span", {}, `replayed with ${now.changes}: `, el("b", { class: change < -5e-6 ? "good" : change > 5e-6 ? "bad" : "soft" }, signed(change)), ` against ${show(now.replayed_step_time_s, "s")} without; ${show(now.measured_step_time_s, "s")} were measured`)
    : start.modelled ? el("span", { class: "soft" }, `a prediction that crossflow wrote; rank ${now.stands_for} stands for it, which idles least`)
    : el("span", { class: "soft" }, `measured, of the slowest rank (${now.ranks[0].rank}); mean of ${start.steps} step${start.steps === 1 ? "" : "s"}`));
  view.decided.textContent = `${start.modelled ? "made of" : "decided by"} ${now.bound_by.slice(0, 3).map(({ resource, share }) => `${resource.replaceAll("_", " ")} ${percent(share, 2)}`).join(", ")}${start.modelled ? "" : " (critical path)"}`;
}

function drawRanks() {
  const colours = coloursOf(start.parts.map((part) => DRAWN[part]));
  const longest = Math.max(...now.ranks.map((rank) => rank.step_time_s));
  const rows = now.ranks.map((rank) => el("div", { class: "rank" }, el("span", { title: rank.name ?? "" }, rank.name ? rank.name.split(",")[0] : `rank ${rank.rank}`),
    el("div", { class: "bar", role: "img", "aria-label": start.parts.map((part) => `${PART_NAMES[part]} ${percent(rank[`${part}_s`] / (rank.step_time_s || 1))}`).join(", ") },
      start.parts.map((part, i) => hinted(el("div", { class: "cell", style: { width: `${(100 * rank[`${part}_s`]) / longest}%`, background: colours[i] } }), () => `${PART_NAMES[part]}: ${show(rank[`${part}_s`], "s")}, ${percent(rank[`${part}_s`] / (rank.step_time_s || 1))}\n${ABOUT[part]}`))),
    el("span", { class: "right" }, show(rank.step_time_s, "s"))));
  const slowest = now.ranks.find((rank) => rank.rank === now.stands_for) ?? now.ranks[0];
  const legend = el("div", { class: "legend" }, start.parts.map((part, i) => el("span", { class: "entry", title: ABOUT[part] }, el("span", { class: "key", style: { background: colours[i] } }), `${PART_NAMES[part]} ${percent(slowest[`${part}_s`] / (slowest.step_time_s || 1))}`)));
  const left = now.left ? el("p", { class: "soft" }, `the slowest ${now.ranks.length} of ${grouped(now.ranks.length + now.left)} ranks`) : null;
  replace(view.ranks, rows, legend, el("p", { class: "soft" }, `shares of rank ${slowest.rank}`), left);
}

function drawTables() {
  const times = Object.entries(now.communication_s).sort((a, b) => b[1].total - a[1].total);
  replace(view.communication, times.length ? table(["", "a step", "exposed"], times.map(([name, { total, exposed }]) => [name, show(total, "s"), show(exposed, "s")]), [1, 2]) : el("p", { class: "soft" }, "No collectives."));
  const whole = now.kernels.reduce((sum, { time }) => sum + time, 0) || 1;
  replace(view.kernels, now.kernels.length ? table(["", "calls", "time", "of these"], now.kernels.map(({ name, count, time }) => [short(name), grouped(count), show(time, "s"), percent(time / whole, 2)]), [1, 2, 3]) : el("p", { class: "soft" }, "The trace has no kernels."));
  const model = now.device_template;
  replace(view.kinds, now.kernel_kinds.length ? el("div", {}, table(["", "calls", "measured", "modelled", "error"], now.kernel_kinds.map((one) => [one.kind, grouped(one.count), show(one.measured_s, "s"), show(one.modelled_s, "s"), signed(one.error, 2)]), [1, 2, 3, 4]),
    el("p", { class: "soft" }, `${percent(now.modelled_share, 2)} of the time of kernels and copies is modelled, on ${model}`)) : el("p", { class: "soft" }, model ? "No kernel is modelled." : "No template of this device is shipped, so that nothing is modelled: crossflow trace --device NAME says which to use."));
  replace(view.losses, now.losses.length ? table(["", "of", "calls", "measured", "modelled", "lost"], now.losses.map((one) => [short(one.kernel), short(one.operation), grouped(one.count), show(one.measured_s, "s"), show(one.modelled_s, "s"), show(one.lost_s, "s")]), [2, 3, 4, 5]) : el("p", { class: "soft" }, "None."));
  replace(view.waits, now.waited_for.length ? table(["", "last to come to", "the others waited"], now.waited_for.slice(0, 10).map((one) => [`rank ${one.rank}`, `${grouped(one.collectives)} collectives`, show(one.waited_s, "s")]), [2]) : el("p", { class: "soft" }, start.read > 1 ? "No rank keeps others waiting." : "One rank alone: what it waits for the others is not known."));
  const path = Object.values(now.critical_path.time_s).reduce((sum, time) => sum + time, 0) || 1;
  replace(view.path, table(["", "time", "share"], now.critical_path.longest.slice(0, 10).map(({ name, time_s: time }) => [short(name), show(time, "s"), percent(time / path, 2)]), [1, 2]));
  replace(view.unmodelled, now.not_modelled.length ? table(["", "calls", "measured", "why"], now.not_modelled.map((one) => [short(one.operation), grouped(one.count), show(one.measured_s, "s"), one.reason]), [1, 2]) : el("p", { class: "soft" }, "All kernels are modelled."));
  replace(view.notes, now.notes.map((note) => el("div", {}, `note: ${note}`)));
}

function drawCommands() {
  const changes = state.w ? ` --what-if ${JSON.stringify(state.w)}` : "";
  const lines = [["The same in a terminal", `${start.command}${changes}`], ["As a timeline for Perfetto", `${start.command}${changes} -o replayed.json.gz`]];
  const address = el("a", { href: start.perfetto, target: "_blank", rel: "noreferrer" }, start.perfetto.replace("https://", ""));
  replace(view.commands, el("p", { class: "soft" }, "Perfetto shows each kernel: open ", address, " and give it ", start.files.length === 1 ? start.files[0].split(/[\\/]/).at(-1) : "a trace of these", ", or what the second line writes."),
    lines.map(([title, line]) => el("div", {}, el("span", { class: "soft" }, `${title} `), el("button", { type: "button", class: "quiet", onclick: () => copy(line, "command") }, "copy"), el("pre", { class: "code" }, line))));
}

function draw() {
  drawHead();
  drawRanks();
  drawTables();
  drawCommands();
}

// ---------------------------------------------------------------------------------------------- advice

function shownProof(one) {
  const place = one.longest_at_s ? `, ${one.count > 1 ? "the longest " : ""}on rank ${one.longest_on_rank}, ${show(one.longest_at_s, "s")} after its begin` : "";
  return `${one.name}: ${show(one.time_s, "s")}${one.count > 1 ? ` in ${grouped(one.count)}` : ""}${place}${one.note ? `; ${one.note}` : ""}`;
}

function column(width) {
  return { display: "inline-block", minWidth: width };
}

function drawAdvice(found) {
  if (!found) {
    replace(view.advice, el("p", { class: "soft" }, "Advice is of a measured step on its own device."));
    return;
  }
  const rows = found.findings.map((one) => [
    el("span", { title: one.evidence.map(shownProof).join("\n"), style: column("10em") }, one.title), show(one.gain_s, "s"), percent(one.gain_share, 2), show(one.time_s, "s"),
    el("span", { style: { whiteSpace: "nowrap" } }, one.trust), el("span", { style: column("14em") }, `${one.cure}: `, el("code", { class: "soft" }, one.switches.join(", "))),
  ]);
  replace(view.advice, rows.length ? table(["", "gain", "of the step", "takes", "trust", "what mends it"], rows, [1, 2, 3]) : "", el("p", { class: "soft" }, found.sentence));
}

// ---------------------------------------------------------------------------------------------- what if

const ask = newest("replay", (answer) => {
  view.error.textContent = "";
  now = answer;
  draw();
}, (error) => { view.error.textContent = error.message; }, (busy) => document.body.classList.toggle("busy", busy));
const timed = newest("timeline", (found) => view.strip.draw(found), (error) => view.strip.fail(error.message));

function change(text) {
  state = { ...state, w: text.trim() };
  field.value = state.w;
  writeState({ ...state, w: state.w || undefined });
  if (start.offline) return;
  ask({ what_if: state.w });
  timed({ what_if: state.w });
}

function drawUsual(rows) {
  const before = start.first.replayed_step_time_s;
  replace(view.usual, table(["what if", "step", "", ""], rows.map(({ what_if: text, words, time }) => [
    el("span", {}, `${words} `, el("code", { class: "soft" }, text)), show(time, "s"), el("span", { class: time < before * (1 - 5e-6) ? "good" : "soft" }, signed(time / before - 1)),
    start.offline ? "" : el("button", { type: "button", onclick: () => change(text) }, "show"),
  ]), [1, 2, 3]), el("p", { class: "soft" }, `against ${show(before, "s")}, the replay without changes`));
}

// ---------------------------------------------------------------------------------------------- the page

function build() {
  const theme = themeButton(state.t, (name) => {
    state.t = name === "auto" ? undefined : name;
    writeState({ ...state, w: state.w || undefined });
    view.strip.redraw();
  });
  const of = `${start.device || "an unnamed device"}, ${start.read} of ${start.world} ranks`;
  const header = el("header", { class: "top" }, el("h1", {}, start.title, " ", el("span", { class: "soft what" }, of)), theme);
  const plain = start.offline && !start.modelled ? el("p", { class: "notice plain" }, `This page is a file made by crossflow ${start.version}: other changes need ${start.command} --what-if CHANGES, or crossflow explore.`) : null;
  const asked = el("form", { class: "whatif", onsubmit: (event) => { event.preventDefault(); change(field.value); } }, field,
    el("button", { type: "submit", class: "main", disabled: start.offline }, "Replay"), el("button", { type: "button", disabled: start.offline, onclick: () => change("") }, "As measured"));
  const first = el("section", { class: "card" }, el("h2", {}, "Step"), view.time, view.told, view.decided, el("h2", { class: "next" }, "Where the time goes", el("small", {}, " mean step of each rank")), view.ranks);
  const what = el("section", { class: "card" }, el("h2", {}, "What if"), asked, view.error, view.usual);
  const communication = card("Communication", start.modelled ? `of rank ${now.stands_for}` : "of the slowest rank, waiting included", view.communication);
  const why = Object.assign(card("Why the step is slow", "what mending it brings, by replays", view.advice), { className: "card wide" });
  const kernels = card("Largest kernels", start.modelled ? `of rank ${now.stands_for}` : "all steps of the slowest rank", view.kernels);
  const timeline = Object.assign(view.strip.element, { className: "card wide" }), commands = card("Commands", "", view.commands);
  const cards = start.modelled ? [first, commands, timeline, communication, kernels] : [
    first, what, why, timeline, card("Kinds of kernels", "all ranks and steps, against the model", view.kinds), communication,
    kernels, card("Who the others wait for", "all ranks together", view.waits),
    card("Kernels that lose most against the model", "", Object.assign(view.losses, { className: "broad" })), card("Longest on the critical path", "", view.path),
    card("Not modelled", "", view.unmodelled), commands];
  replace(document.getElementById("app"), header, plain, el("div", { class: "trace" }, cards), view.notes);
  view.notes.className = "trace-notes soft";
}

function begin() {
  build();
  draw();
  if (start.offline) {
    drawUsual(start.answers.usual);
    drawAdvice(start.answers.advice);
    view.strip.draw(start.answers.timeline);
    return;
  }
  if (state.w) change(state.w);
  else timed({ what_if: "" });
  if (!start.modelled) call("advice").then(drawAdvice).catch((error) => replace(view.advice, el("p", { class: "bad" }, error.message)));
  if (!start.modelled) call("usual").then(drawUsual).catch((error) => replace(view.usual, el("p", { class: "bad" }, error.message)));
}

onState((found) => {
  state = { w: "", ...found };
  change(state.w || "");
});
onSystemTheme(() => view.strip.redraw());
addEventListener("resize", () => view.strip.redraw());
begin();
