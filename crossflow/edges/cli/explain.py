"""`crossflow explain`: what limits a scenario, as JSON, as a page, or as a tornado plot."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from crossflow.answers.explanation.answers import Change, Decision, Effect, Explanation, NextBottleneck, WhatIf
from crossflow.answers.explanation.parameters import ParameterGroup
from crossflow.answers.explanation.sensitivity import explain
from crossflow.answers.explanation.tornado import draw, in_words, tornado
from crossflow.answers.score import unit_of
from crossflow.base.errors import with_article
from crossflow.base.files import check_writable, named_by
from crossflow.base.units import show
from crossflow.edges.cli import page
from crossflow.edges.cli.page import percent
from crossflow.edges.cli.source import scenario_of
from crossflow.hardware.architecture.template import GeneratedSystem

_PACES = ("step_time_s", "job.iteration_time_s")  # objectives that decisions tell anyway
_INFLUENCE = 1e-6  # elasticity below which a parameter is not worth a row
_LOSING = 5e-4  # loss, relative, from which on a parameter is told to lose
ENDS = {"falling elasticity": "more of it brings half as much", "another resource": "another resource binds"}
_FACTORS = 3  # what-ifs of one parameter


def run(arguments: argparse.Namespace) -> None:
    """Explain the scenario with its overrides."""
    if arguments.plot is not None:
        check_writable(arguments.plot.with_name(f"{arguments.plot.name.removesuffix('.svg').removesuffix('.png')}.png"), "--plot")
    scenario, assumed = scenario_of(arguments)
    if scenario.phased:
        from crossflow.edges.cli import phased  # which few runs need

        phased.explain(arguments, scenario, assumed)
        return
    explanation = explain(scenario, arguments.objective)
    if arguments.json:
        page.emit_json({**explanation.to_dict(), **({"assumptions": list(assumed)} if assumed else {})})
    else:
        page.emit(*sections(explanation, arguments.top, whole=arguments.all), page.assumptions(assumed))
    with named_by("--plot"):
        for path in draw(tornado(explanation, arguments.top, whole=arguments.all), arguments.plot) if arguments.plot else ():
            page.log(f"wrote {path}")


def sections(explanation: Explanation, top: int, *, whole: bool = False) -> list[RenderableType]:
    """The page: the verdict, what each parameter does, what improving it would bring, and how far that leads."""
    return [
        headline(explanation),
        other_strategies(explanation, max(top // 3, 1)),
        decisions(explanation),
        reliability(explanation, top),
        *elasticities(explanation, top, whole=whole),
        slight(explanation),
        surprises(explanation),
        what_ifs("What if", explanation, _of_first(_shown(explanation, explanation.what_ifs, whole), max(top // _FACTORS, 1))),
        what_ifs("Best pairs", explanation, _best_of_each(_shown(explanation, explanation.pairs, whole), max(top // 5, 1))),
        next_bottlenecks([end for end in explanation.next_bottlenecks if whole or not explanation.constant(end.path)]),
        Group(Text(), *(Text(note, "dim") for note in explanation.notes)),
    ]


def headline(explanation: Explanation) -> Group:
    """Scenario, objective, what bounds it now and what limits it most."""
    scenario = explanation.scenario
    chosen = f", {scenario.auto}" if scenario.auto is not None else ""
    fleet = f"{scenario.fleet}, strategy {scenario.strategy_text}{chosen}"
    title = page.first_line(scenario.name, f"  {scenario.workload.model} on {fleet}")
    rows: dict[str, RenderableType] = {in_words(explanation.objective): Text(_figure(explanation.value, explanation), "bold")}
    if explanation.reason is not None:
        rows["verdict"] = Text.assemble(("infeasible: ", "bold red"), (explanation.reason, "red"))
    rows["trust"] = page.trusted(explanation.trust)
    rows["bound by"] = ", ".join(f"{name} {percent(share)}" for name, share in explanation.bound.items())
    rows["biggest lever"] = _limit(explanation)
    return Group(title, Text(), page.indented(page.pairs(rows)))


def _limit(explanation: Explanation) -> str:
    limiting = explanation.lever
    if limiting is None:
        return "none: no 10 % of anything improves it"
    (change,) = limiting.changes
    same = next(iter(explanation.bound), "") == limiting.bound_by
    bound = f"still bound by {limiting.bound_by}" if same else f"then bound by {limiting.bound_by}"
    move = f"{_written(change.before, change)} to {_written(change.after, change)}"
    return f"{change.path}: {move} gives {_figure(limiting.value, explanation)} ({_signed(limiting.gain)}), {bound}"


def decisions(explanation: Explanation) -> Group:
    """What the reader can decide otherwise beside the strategy, kind by kind, and what it does to the step and to each device."""
    found = [one for one in explanation.decisions if one.kind != "strategy"]
    searched = any(one.spread is not None for one in found)
    rows = [_decided(one, explanation, searched=searched) for one in found]
    rate = f"{explanation.counts}/s/device"
    objective = () if explanation.objective in _PACES else (in_words(explanation.objective), "gain")
    chip = ("+-", "kept") if searched else ()
    header = ("decision", "change", *objective, explanation.of, "gain", "per device", "gain", *chip, "bound by")
    now = f"now {show(explanation.step_time, 's')} {with_article(explanation.of)}, {page.count(explanation.throughput)} {rate}"
    aside = f"{now}; +-: over the re-optimised chip" if searched else now
    return page.section("What you decide", rows, right=range(2, len(header) - 1), aside=aside, header=header, wraps=1)


def reliability(explanation: Explanation, top: int) -> Group:
    """Which reliability the next tenth would buy: what each part of an interrupted run gains of its time."""
    found = [(name, gain) for name, gain in explanation.reliability.items() if gain > _INFLUENCE][:top]
    rows: list[list[RenderableType]] = [[name, _signed(gain)] for name, gain in found]
    aside = "all.: those of all causes together; the interval between checkpoints stays"
    return page.section("A tenth less of what interrupts the run", rows, (1,), aside=aside, header=("cause and part", "gain"))


def _decided(one: Decision, explanation: Explanation, *, searched: bool) -> list[RenderableType]:
    text = f"{one.text}, {one.settings['strategy']}" if one.kind == "nodes" and "strategy" in one.settings else one.text
    objective = [] if explanation.objective in _PACES else [_figure(one.value, explanation), _signed(one.gain)]
    kept = "-" if one.kept is None or not math.isfinite(one.kept) else _signed(one.kept)
    chip = ["-" if one.spread is None else f"{100 * one.spread:.1f} %", kept] if searched else []
    pace = [show(one.step_time, "s"), _signed(-one.time), page.count(one.throughput), _signed(one.rate)]
    return [one.kind, text, *objective, *pace, *chip, one.bound_by]


def slight(explanation: Explanation) -> Group:
    """Links and memories that matter little: what waits for them, and what hides it."""
    rows: list[list[RenderableType]] = [[path, use.text] for path, use in explanation.uses.items()]
    return page.section(
        "Why these bring little", rows, aside="if they were half as good", header=("resource", "what waits for it"), wraps=1
    )


def surprises(explanation: Explanation) -> Group:
    """Why what should help does not."""
    rows: list[list[RenderableType]] = [[e.parameter.path, e.surprise] for e in explanation.effects if e.surprise is not None]
    return page.section("Worse where it should be better", rows, wraps=1)


def elasticities(explanation: Explanation, top: int, *, whole: bool) -> list[Group]:
    """The parameters that gain most: what the reader decides, what another device or technology has; constants where all are asked for."""
    generated = isinstance(explanation.scenario.system, GeneratedSystem)
    titles: dict[ParameterGroup, str] = {
        "decision": "Budgets, shares and network" if generated else "Network, price and power",
        "device": "The device: rates, memory, power", "technology": "Technology", "constant": "Constants",
    }  # fmt: skip
    found = {group: [e for e in explanation.effects if e.group == group] for group in titles}
    shown = [group for group in titles if found[group] and (whole or group != "constant")]
    constants = len(found["constant"])
    folded = [] if whole or not constants else [
        Group(Text(), Text(f"{constants} constants that were fitted or restate the device are left out; --all shows them", "dim"))
    ]  # fmt: skip
    return [*(_elasticities(titles[group], found[group], max(top // len(shown), 1)) for group in shown), *folded]


def _elasticities(title: str, effects: Sequence[Effect], top: int) -> Group:
    again = {path for e in effects for path in e.alike}
    moving = [e for e in effects if abs(e.elasticity or 0.0) > _INFLUENCE and e.parameter.path not in again]
    rows: list[list[RenderableType]] = []
    for effect in moving[:top]:
        number = effect.parameter
        mark = "" if effect.smooth else "~"
        gain = "-" if effect.gain is None else "loses" if effect.gain < -_LOSING else _signed(effect.gain)
        figures = [show(number.value, number.quantity.unit), gain, f"{mark}{effect.elasticity:+.3f}"]
        alike = f" (+ {len(effect.alike)} alike)" if effect.alike else ""
        rows.append([number.path, *figures, effect.resource or "-", f"{number.source or '-'}{alike}"])
    rest = [f"{len(moving) - len(rows)} more in --json"] if len(moving) > len(rows) else []
    rest.append(f"{sum(abs(e.elasticity or 0.0) <= _INFLUENCE for e in effects)} without effect")
    header = ("parameter", "value", "10 % gain", "elasticity", "acts on", "source")
    rough, losing = any(not effect.smooth for effect in moving[:top]), any(row[2] == "loses" for row in rows)
    asides = ["~ not smooth here: do not extrapolate"] * rough + ["loses: 10 % either way makes it worse"] * losing
    aside = "; ".join(asides)
    table = [page.indented(page.grid(rows, right=(1, 2, 3), header=header, wraps=0))] if rows else []
    return Group(page.heading(title, aside=aside if rows else ""), *table, page.indented(Text(", ".join(rest), "dim")))


def what_ifs(title: str, explanation: Explanation, chosen: Sequence[WhatIf]) -> Group:
    """What improvements bring, alone or in pairs; those that cannot be are marked, with the reason below."""
    if not chosen:
        return Group()
    rows: list[list[RenderableType]] = []
    for answer in chosen:
        path = Text("\n").join(Text(change.path) for change in answer.changes)
        moves = Text("\n").join(Text(_move(answer.factor, change)) for change in answer.changes)
        mark = "" if answer.feasible else " *"
        rows.append([path, moves, f"{_signed(answer.gain)}{mark:2}", _figure(answer.value, explanation), answer.bound_by])
    header = ("parameter", "change", "gain  ", in_words(explanation.objective), "bound by")
    table = page.indented(page.grid(rows, right=(2, 3), header=header, wraps=0))
    reasons = dict.fromkeys(answer.reason for answer in chosen if answer.reason is not None)
    aside = "each as far as the range of its quantity goes" if any(c.short for a in chosen for c in a.changes) else ""
    return Group(page.heading(title, aside=aside), table, *(page.indented(Text(f"* {reason}", "dim")) for reason in reasons))


def next_bottlenecks(found: Sequence[NextBottleneck]) -> Group:
    """How far the first parameters lead before something else binds."""
    rows: list[list[RenderableType]] = []
    for end in found:
        sign = "x" if end.multiplied else "/"
        at = f"none to {sign}{end.reach:.3g}" if end.factor is None else f"{sign}{end.factor:.3g}"
        rows.append([end.path, at, ENDS.get(end.because or "", "-"), end.bound_by])
    return page.section("Next bottleneck", rows, header=("improve", "until", "then", "bound by"), wraps=0)


def other_strategies(explanation: Explanation, count: int) -> Group:
    """The strategies near this one that fit and gain most; where this one does not fit, all that do."""
    if not explanation.strategies:
        return Group()
    stuck = not explanation.feasible  # then whatever fits is better
    better = [other for other in explanation.strategies if other.feasible and (stuck or other.gain > _INFLUENCE)]
    rows: list[list[RenderableType]] = []
    for other in better[:count]:
        changes = "" if other.changes == other.strategy else other.changes
        rows.append([other.strategy, changes, _signed(other.gain), _figure(other.value, explanation), other.bound_by])
    what = "feasible" if stuck else "better and feasible"
    tried = f"{page.count(len(explanation.strategies))} tried on the same devices, {page.count(len(better))} of them {what}"
    header = ("strategy", "change", "gain", in_words(explanation.objective), "bound by")
    table = [page.indented(page.grid(rows, right=(2, 3), header=header, wraps=0))] if rows else []
    return Group(page.heading("Other strategies", aside=tried), *table)


def _shown(explanation: Explanation, answers: Sequence[WhatIf], whole: bool) -> list[WhatIf]:
    """What-ifs of parameters that can be changed, or all of them."""
    return [answer for answer in answers if whole or not any(explanation.constant(change.path) for change in answer.changes)]


def _of_first(answers: Sequence[WhatIf], parameters: int) -> list[WhatIf]:
    """What-ifs of the parameters that gain most, where they gain."""
    paths = list(dict.fromkeys(answer.changes[0].path for answer in answers))[:parameters]
    return [answer for answer in answers if answer.changes[0].path in paths and answer.gain > 0]


def _best_of_each(pairs: Sequence[WhatIf], count: int) -> list[WhatIf]:
    """The first pairs of every factor, which stand in the order of their gains."""
    factors = dict.fromkeys(pair.factor for pair in pairs)
    return [pair for factor in factors for pair in [p for p in pairs if p.factor == factor][:count]]


def _figure(value: float, explanation: Explanation) -> str:
    return show(value, unit_of(explanation.objective))


def _written(value: float, change: Change) -> str:
    return show(value, change.unit)


def _move(factor: float, change: Change) -> str:
    sign = "x" if change.after > change.before else "/"
    limit = "up to " if change.short else ""
    return f"{sign}{factor:g}: {limit}{_written(change.after, change)}"


def _signed(gain: float) -> str:
    if not math.isfinite(gain):
        return "never ends"
    return "0 %" if gain == 0 else f"{100 * gain:+.1f} %"
