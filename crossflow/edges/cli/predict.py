"""`crossflow predict`: one scenario, as JSON or as a page that a person reads from top to bottom."""

from __future__ import annotations

import argparse
import contextlib
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from crossflow.answers.prediction import Prediction, predict
from crossflow.answers.scenario import Scenario
from crossflow.answers.score import MARGIN, unit_of, words
from crossflow.base import files
from crossflow.base.drawing.palette import RESOURCES, resource
from crossflow.base.units import show, show_beyond
from crossflow.edges.cli import device, page
from crossflow.edges.cli.page import count, number, percent
from crossflow.edges.cli.source import scenario_of
from crossflow.engine.runs.transformer import FIGURES
from crossflow.hardware.architecture.run_cost import KILOWATT_HOUR

_LABEL = 21  # columns of the names beside bars
_STAGES = 16  # of a deeper pipeline the first and the last stages are shown, so many of them
_KINDS = {
    "compute": "compute",
    "memory_bound_compute": "memory-bound compute",
    "exposed_communication": "exposed communication",
    "bubble": "bubble",
    "other": "kernel launches, other",
}
# Names of figures of a service (as serving tools have them) and of a whole run.
_SERVING = {
    "ttft_s": "first token", "tpot_s": "per output token", "e2el_s": "whole request", "input_throughput_tokens_per_s": "input",
    "output_throughput_tokens_per_s": "output", "request_throughput_per_s": "requests a second",
}  # fmt: skip
_RUN = {
    "time_s": "time", "device_hours": "device-hours", "normalised_device_hours": "A100-hours", "cost_usd": "rent",
    "energy_j": "energy of devices", "facility_energy_j": "energy from the grid",
}  # fmt: skip


_SHARES = 5  # of lost time that are named


def run(arguments: argparse.Namespace) -> None:
    """Predict the scenario with its overrides."""
    scenario, assumed = scenario_of(arguments)
    output: Path | None = arguments.output
    if output is not None:
        files.check_writable(output, "-o")
    with contextlib.nullcontext() if output is None else contextlib.redirect_stdout(io.StringIO()) as written:
        if arguments.json or (output is not None and output.suffix == ".json"):
            page.emit_json({**predict(scenario).to_dict(), **({"assumptions": list(assumed)} if assumed else {})})
        elif scenario.requests is not None:
            page.emit(*_replayed(scenario, assumed))
        else:
            page.emit(*sections(predict(scenario), assumed))
    if output is not None and written is not None:
        files.write_text(output, written.getvalue())
        page.log(f"wrote {output}")


def _replayed(scenario: Scenario, assumed: Sequence[str]) -> list[RenderableType]:
    """The page of a scenario with requests: that of `crossflow serve`, and what it is."""
    from crossflow.answers.planning.asking import serve
    from crossflow.edges.cli.serve import sections as of_requests

    found = serve(scenario)
    told = f"a replay of {len(found.trace):,} requests, one by one; crossflow serve -o writes its picture, its table and its trace"
    first, *rest = of_requests(found, assumed)
    return [first, page.indented(Text(told, "dim")), *rest]


def sections(prediction: Prediction, assumed: Sequence[str] = ()) -> list[RenderableType]:
    """The page: what it takes, where the time goes, what it needs, what it runs on, where it comes from."""
    return [
        headline(prediction),
        page.assumptions(assumed),
        job(prediction),
        *_parts(prediction),
        memory(prediction),
        sharding(prediction),
        run_length(prediction),
        device.derived(prediction.device),
        device.budgets(prediction.device),
        provenance(prediction),
    ]


def _parts(prediction: Prediction) -> list[RenderableType]:
    """Where the step goes; nothing of one that never ends, in which no part has a share."""
    if not math.isfinite(prediction.step_time):
        return []
    return [breakdown(prediction), communication(prediction), layers(prediction)]


def headline(prediction: Prediction) -> Group:
    """Scenario, verdict and the figures asked for first."""
    scenario = prediction.scenario
    chosen = f", {scenario.auto}" if scenario.auto is not None else ""
    what = f"{scenario.workload.model} on {scenario.fleet}, strategy {scenario.strategy_text}{chosen}"
    title = page.first_line(scenario.name, "  ", what)
    notes = [page.indented(Text(f"note: {note}", "yellow")) for note in prediction.notes]
    return Group(title, Text(), page.indented(page.pairs(_answers(prediction))), *notes)


def _answers(prediction: Prediction) -> dict[str, RenderableType]:
    time, mfu = prediction.step_time, number(prediction.score.mfu)
    written = show(time, "s") if math.isfinite(time) else "never ends"
    rows: dict[str, RenderableType] = {"verdict": _verdict(prediction), "step time": Text(written, "bold")}
    if math.isfinite(time):
        rows["trust"] = page.trusted(prediction.trust)
        rows["throughput"] = _throughput(prediction)
        again = number(prediction.score.hfu)
        done = f", HFU {percent(again)}" if again > mfu * 1.01 else ""
        rows["peak use"] = f"MFU {percent(mfu)}{done} ({prediction.scenario.workload.dtype})"
        rows |= _served(prediction.serving)
        if "tails" in prediction.trusts:
            rows["tails"] = page.trusted(prediction.trusts["tails"])
        if prediction.reading_problem:
            cure = "; a service reads them in pieces: workload.task=serving"
            rows["prompts"] = Text.assemble(("cannot be read at once: ", "bold red"), (prediction.reading_problem, "red"), cure)
        rows["bound by"] = ", ".join(f"{name} {percent(share)}" for name, share in prediction.bound_by())
        rows["energy"] = _energy(prediction)
        rows["money"] = page.money(prediction.score, _unpriced(prediction))
        rows |= {words(name): f"{_figure(name, value)} a step" for name, value in prediction.operation.items() if value is not None}
        if prediction.scenario.profile is not None:
            share = percent(number(prediction.score.measured_share))
            rows["measured"] = f"{share} of the time of kernels and collectives, by {Path(prediction.scenario.profile.source).name}"
    return rows


def _served(figures: Mapping[str, float | None]) -> dict[str, RenderableType]:
    """Figures of a service, with their tails where there is a queue."""
    known = {name: value for name, value in figures.items() if value is not None}
    rows: dict[str, RenderableType] = {}
    for name, label in _SERVING.items():
        if name in known:
            tails = [(tail, known.get(f"{name.removesuffix('_s')}_{tail}_s")) for tail in ("p50", "p90", "p99")]
            told = ", ".join(f"{tail} {show(value, 's')}" for tail, value in tails if value is not None)
            rows[label] = _figure(name, known[name]) + (f" ({told})" if told else "")
    if "requests_decoding" in known:
        queue = known.get("requests_waiting")
        waiting = "the queue grows without end" if queue is None else f"{_about(queue)} {'is' if _about(queue) == '1' else 'are'} queued"
        writing, reading = _about(known["requests_decoding"]), percent(known["prefill_share"])
        verb = "request is" if writing == "1" else "requests are"
        rows["on average"] = f"{writing} {verb} writing, {waiting}; prefill runs {reading} of the time"
    if (held := known.get("experts_memory_bytes")) is not None:
        of = f"{show(held, 'B')} of {show(known['experts_memory_capacity_bytes'], 'B')} per device"
        attending, feeding = percent(known["attention_busy"]), percent(known["experts_busy"])
        rows["two pools"] = f"attention is busy {attending} of a step, experts {feeding}, which fill {of}"
        size, taken = show(known["exchange_bytes"], "B"), show(known["exchange_time_s"], "s")
        rows["exchange"] = f"{size} a step between them in {known['micro_batches']:g} micro-batches, which take {taken} on their way"
    return rows


def _about(requests: float) -> str:
    """A mean number of requests, to a tenth where it is small.

    >>> _about(26.51), _about(0.135), _about(0.001), _about(7.0)
    ('26.5', '0.1', 'fewer than 0.1', '7')
    """
    if 0 < requests < 0.05:
        return "fewer than 0.1"
    return count(round(requests)) if requests >= 1000 else f"{requests:.1f}".removesuffix(".0")


def _unpriced(prediction: Prediction) -> str:
    """Where devices stand whose price is not known, the system's own first."""
    places = prediction.scenario.system.places.items()
    return next((place for place, one in places if one.operation is None or one.operation.price is None), "system")


def _verdict(prediction: Prediction) -> Text:
    if prediction.feasible:
        return Text("feasible", "bold green")
    cures = "".join(f"\n  {sentence}" for sentence in prediction.remedies)
    return Text.assemble(("infeasible: ", "bold red"), (str(prediction.reason), "red"), (cures, ""))


def _throughput(prediction: Prediction) -> str:
    score = prediction.score
    tokens = number(score.tokens_per_second)
    output = prediction.serving.get("output_throughput_tokens_per_s")
    if output is not None and "requests_decoding" not in prediction.serving:  # a step that writes, beside the service that it is part of
        return f"{count(tokens)} tokens/s while all requests write, {count(output)} with their prompts read in between"
    if prediction.reading_problem:  # a sample of such a step is a token
        return f"{count(tokens)} tokens/s while all requests write"
    return f"{count(number(score.samples_per_second))} samples/s" + (f", {count(tokens)} tokens/s" if tokens else "")


def _energy(prediction: Prediction) -> str:
    score, power = prediction.score, number(prediction.score.power)
    millions = score.per_million()
    counted = [what for what in ("tokens", "samples") if f"energy_j_per_million_{what}" in millions][:1]
    each = "".join(f", {show(number(millions[f'energy_j_per_million_{what}']), 'J')} per million {what}" for what in counted)
    energy = f"{show(number(score.energy), 'J')} per step{each}, {show(power, 'W')} in total"
    if prediction.scenario.system.pools:
        return energy
    return f"{energy}; {device.watts_per_device(power, round(number(score.devices)), prediction.device)}"


def _bar_width() -> int:
    return max(page.columns() - _LABEL - 33, 10)


def breakdown(prediction: Prediction) -> Group:
    """Where the step goes: its parts, which add up to it, as bars."""
    total = prediction.step_time
    if not 0 < total < math.inf:
        return Group()
    rows: list[list[RenderableType]] = []
    for kind, time in prediction.score.breakdown.items():
        look, share = resource(kind), number(time) / total
        bar = page.bar(share, _bar_width(), look.terminal if look is not None else "white")
        rows.append([_KINDS[kind], bar, show(number(time), "s"), percent(share)])
    return page.section("Where the step goes", rows, (2, 3))


def communication(prediction: Prediction) -> Group:
    """Time of each collective: what lengthens the step, and what hides behind computation."""
    score = prediction.score
    totals = {name: number(time) for name, time in score.communication.items() if number(time) > 0}
    longest = max(totals.values(), default=0.0)
    if not 0 < longest < math.inf:
        return Group()
    shown, hidden = (page.shade_of(0)[0], RESOURCES["network"].terminal), (page.shade_of(3)[0], "bright_black")
    rows: list[list[RenderableType]] = []
    for name, total in totals.items():
        exposed = min(number(score.exposed_communication[name]), total)
        shaded = page.stacked([(exposed / longest, shown), ((total - exposed) / longest, hidden)], _bar_width())
        label = name.replace("_", " ").ljust(_LABEL)
        rows.append([label, shaded, show(exposed, "s"), Text(f"of {show(total, 's')}", "dim")])
    aside = f"{shown[0]} exposed   {hidden[0]} hidden behind computation"
    grid = page.indented(page.grid(rows, right=(2, 3)))
    return Group(page.heading("Communication", aside=aside), grid, page.indented(Text(_overlap(prediction), "dim")))


def _overlap(prediction: Prediction) -> str:
    score = prediction.score
    told = f"{percent(number(score.exposed_share))} of it exposed"
    hidden = number(score.hidden_communication) + number(score.hidden_side)
    return f"{told}; with nothing hidden the step would take {show(number(score.serialized), 's')}" if hidden else told


def layers(prediction: Prediction) -> Group:
    """Time of computing, of communication and of what is exposed of that, by layer type, on a device of the busiest stage."""
    score = prediction.score
    types = dict.fromkeys(name.split(".")[0] for name in score.by_layer)
    rows: list[list[RenderableType]] = []
    for kind in types:
        times = [number(score.by_layer[name]) if (name := f"{kind}.{what}") in score.by_layer else 0.0 for what in FIGURES]
        if any(times):
            rows.append([kind, *(show(time, "s") for time in times)])
    aside = "both pools, beside each other" if "experts_busy" in score.serving else ""
    return page.section("By layer type", rows, (1, 2, 3), aside=aside, header=("", "computing", "communication", "exposed"))


def job(prediction: Prediction) -> Group:
    """An iteration of the job that the step is part of, phase by phase."""
    found = prediction.job
    if not found:
        return Group()
    phases: Mapping[str, float] = found["phases_s"]
    idle = {name: found[f"{name}_idle_share"] for name in ("training", "rollout", "engine") if f"{name}_idle_share" in found}
    rows = {
        "iteration": f"{show(found['iteration_time_s'], 's')} on {count(found['devices'])} devices, most of it {_phase(found['bound_by'])}",
        "trust": found["trust_text"],
        "throughput": f"{found['samples_per_second']:,.4g} samples/s, {found['tokens_per_second']:,.0f} tokens/s",
        "memory": f"{show(found['memory_bytes'], 'B')} per training device at most",
    }
    rent = f", {show(found['cost_usd'], 'USD')} of rent" if "cost_usd" in found else ""
    rows["energy"] = f"{show(found['energy_j'], 'J')}{rent}"
    if "mean_answer" in found:
        rows["answers"] = f"{found['mean_answer']:,.0f} tokens on average, {found['longest_answer']:,.0f} at most"
        rows["idle"] = ", ".join(f"{name} {percent(share)}" for name, share in idle.items())
    told = {_phase(name): f"{show(time, 's')}  {percent(time / found['iteration_time_s'])}" for name, time in phases.items()}
    head = page.heading(f"An iteration of the job ({found['kind']})")
    return Group(head, page.indented(page.pairs(rows)), Text(), page.indented(page.pairs(told)))


def _phase(name: str) -> str:
    return name.replace("_", " ")


def run_length(prediction: Prediction) -> Group:
    """What the whole run takes, where the scenario says how long it is."""
    found = prediction.run
    if not found:
        return Group()
    labels = {**_RUN, **{name: words(name) for name in prediction.operation}}
    rows = {label: _figure(name, value) for name, label in labels.items() if (value := found[name]) is not None}
    if prediction.phases:
        goodput = {} if "goodput" not in found else {"goodput": f"{percent(found['goodput'] or 0.0)} of the time"}
        return Group(page.heading("The whole run"), page.indented(page.pairs(rows | goodput)), _phases(prediction))
    if "goodput" in found:
        rows |= interruptions(found)
    return Group(page.heading("The whole run"), page.indented(page.pairs(rows)))


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _seconds(value: float) -> str:
    return show(value, "s")


def _phases(prediction: Prediction) -> Group:
    """The phases of a run, one after another."""
    whole = prediction.run["time_s"]
    rows = []
    for one in prediction.phases:
        time, step = one["time_s"], one["step_time_s"]
        told = ("-", "-") if time is None else (_lasting(time), percent(time / whole) if whole else "-")
        steps, each = ("-" if value is None else text(value) for value, text in ((one["steps"], _whole), (step, _seconds)))
        rows.append((str(one["name"]), *told, steps, each, str(one["strategy"]), str(one["trust"])))
    header = ("phase", "time", "share", "steps", "step", "strategy", "trust")
    return page.section("Phases", rows, (1, 2, 3, 4), header=header)


def interruptions(found: Mapping[str, float | None]) -> dict[str, str]:
    """What interrupts a run, and what that takes of its time."""
    told = {name: 0.0 if value is None else value for name, value in found.items()}
    kinds = {name.removesuffix("_share"): value for name, value in told.items() if name.endswith("_share")}
    causes = {name.removeprefix("cause."): kinds.pop(name) for name in list(kinds) if name.startswith("cause.")}

    def largest(parts: Mapping[str, float]) -> str:
        first = sorted(((share, name) for name, share in parts.items() if share > 0), reverse=True)
        return ", ".join(f"{name.replace('_', ' ')} {percent(share)}" for share, name in first[:_SHARES]) or "nothing"

    low, high = percent(told["goodput_low"]), percent(told["goodput_high"])
    slowing = told["checkpoint_slowing_s"]
    beside = f" and lose {show(slowing, 's')} beside it" if slowing else ""
    stops = {
        "interruptions": f"{told['interruptions']:,.4g}, one every {_lasting(told['mean_time_between_interruptions_s'])}",
        "checkpoint": f"{show(told['checkpoint_bytes'], 'B')} every {_lasting(told['checkpoint_interval_s'])}; steps wait "
        f"{show(told['checkpoint_stall_s'], 's')}{beside}, it can be read after {show(told['checkpoint_commit_s'], 's')}",
        "restart": show(told["restart_s"], "s"),
        "spares": f"{count(told['spares'])} node{'' if told['spares'] == 1 else 's'}; {told['nodes_in_repair']:,.3g} in repair",
    }
    longest = told.get("p99_step_s", 0.0)
    varies = {"step": f"{show(told.get('mean_step_s', 0.0), 's')} on average, 1 of 100 longer than {show(longest, 's')}"}
    return {
        "goodput": f"{percent(told['goodput'])} of the time"
        + (f" ({low} to {high} by the uncertain rates)" if told["interruptions"] else ""),
        **(stops if told["interruptions"] else {}),
        **(varies if "mean_step_s" in found else {}),
        "lost time": largest(kinds),
        "by cause": largest(causes),
    }


def _lasting(time: float) -> str:
    """A time of some hours in hours.

    >>> _lasting(11590.0), _lasting(12.78)
    ('3.219 h', '12.78 s')
    """
    return f"{time / 3600:.4g} h" if 3600 <= time < 86400 else show(time, "s")


def _figure(name: str, value: float) -> str:
    """A figure with the unit that its name ends in."""
    unit = unit_of(name)
    if unit == "USD":
        return f"{value:,.0f} USD"
    if unit == "J":
        return f"{value / KILOWATT_HOUR:,.0f} kWh"
    if unit not in ("1", "1/s"):
        return show(value, unit)
    return f"{count(value)} tokens/s" if name.endswith("tokens_per_s") else f"{value:,.4g}"


def memory(prediction: Prediction) -> Group:
    """What the fullest device holds, against its capacity."""
    score = prediction.score
    needed, capacity = number(score.memory_needed), number(score.memory_capacity)
    kinds = {kind: number(size) for kind, size in score.memory.items() if number(size) > 0}
    whole = max(needed, capacity)
    if not whole:
        return Group()
    parts = [(size / whole, page.shade_of(i)) for i, size in enumerate(kinds.values())]
    bar = page.stacked(parts, page.columns() - 6, track=True)
    host, room = number(score.host_memory), number(score.host_capacity)
    beside = [page.indented(Text(f"on the host {show(host, 'B')} of {show(room, 'B')} per device"))] if host else []
    if far := score.second:
        kept, room, lasts = (number(far[f"second_memory_{name}"]) for name in ("bytes", "capacity_bytes", "lifetime_s"))
        worn = f", worn out after {show(lasts, 's')}" if math.isfinite(lasts) else ""
        beside.append(page.indented(Text(f"on the second memory {show(kept, 'B')} of {show(room, 'B')} per device{worn}")))
    whose = " of the experts' devices" if score.experts_left[0] <= score.memory_left[0] else ""
    title = _memory_title(needed, capacity, tight=bool(score.tight()[0]), whose=whose)
    return Group(title, page.indented(bar), page.indented(_legend(kinds, needed, capacity)), *beside, stages(prediction))


def stages(prediction: Prediction) -> RenderableType:
    """What devices of every pipeline stage hold: activations, which differ most, all else, and both."""
    found = prediction.memory_by_stage
    if not found:
        return Group()
    rows: list[list[RenderableType]] = []
    for stage, kinds in enumerate(found):
        total, activations = sum(kinds.values()), kinds.get("activations", 0.0)  # kinds of a program are its own
        rows.append([str(stage), *(show(size, "B") for size in (activations, total - activations, total))])
    header = ["stage", "activations", "all else", "in all"]
    if placed := prediction.placed_stages:
        header += ["layers", "of", "devices"]
        for row, one in zip(rows, placed, strict=True):
            row += ["+".join(map(str, one.layers)), show(one.capacity, "B"), one.devices]
    if len(rows) > _STAGES:
        rows[_STAGES // 2 : -_STAGES // 2] = [["...", *[""] * (len(header) - 1)]]
    return page.indented(page.grid(rows, right=(1, 2, 3, 4, 5), header=header))


def sharding(prediction: Prediction) -> Group:
    """What every rank holds of the tables, and what its look-ups take; of many ranks the first and the last."""
    found = prediction.sharding
    if found is None:
        return Group()
    rows: list[list[RenderableType]] = []
    for rank, own in enumerate(found[1]):
        parts = f" + {own['parts']:.0f} parts" if own["parts"] else ""
        times = (show(own[f"lookup_{way}_s"], "s") for way in ("forward", "backward"))
        rows.append([str(rank), f"{own['tables']:.0f}{parts}", show(own["table_bytes"], "B"), f"{count(own['lookups'])}", *times])
    if len(rows) > _STAGES:
        rows[_STAGES // 2 : -_STAGES // 2] = [["...", *[""] * 5]]
    header = ("rank", "tables", "memory", "look-ups", "forward", "backward")
    return Group(page.heading("Tables by rank", aside=found[0]), page.indented(page.grid(rows, right=(1, 2, 3, 4, 5), header=header)))


def _memory_title(needed: float, capacity: float, *, tight: bool, whose: str = "") -> Text:
    over = f", {show(needed - capacity, 'B')} too much" if needed > capacity else ""
    little = f", tight: less than {percent(MARGIN)}{whose} left" if tight else ""
    words = f"  {show_beyond(needed, capacity, 'B') if over else show(needed, 'B')} of {show(capacity, 'B')} per device{over}{little}"
    return Text.assemble("\n", ("Memory", "bold"), (words, "red" if over else "yellow" if tight else "dim"))


def _legend(kinds: dict[str, float], needed: float, capacity: float) -> page.Flow:
    entries = []
    for i, (kind, size) in enumerate(kinds.items()):
        entries.append(Text.assemble(page.shade_of(i), f" {kind.replace('_', ' ')} {show(size, 'B')}"))
    if capacity > needed:
        entries.append(Text(f"free {show(capacity - needed, 'B')}", "dim"))
    return page.Flow(entries)


def provenance(prediction: Prediction) -> Group:
    """Version and inputs of a prediction."""
    return provenance_of(prediction.scenario)


def provenance_of(scenario: Scenario) -> Group:
    """Version and inputs of what a scenario answers."""
    record = scenario.provenance()
    inputs = ", ".join(f"{name} {digest}" for name, digest in record["inputs"].items())
    seed = "" if record["seed"] is None else f"; seed {record['seed']}"
    lines = [Text(), Text(f"crossflow {record['version']}; inputs {inputs}{seed}", "dim")]
    return Group(*lines)
