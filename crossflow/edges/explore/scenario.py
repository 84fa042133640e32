"""The page of a scenario: what can be moved, and what every move does."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from crossflow.answers.evaluation.timelines import simulate
from crossflow.answers.explanation.answers import DIVIDED, Explanation, NextBottleneck, WhatIf
from crossflow.answers.explanation.decisions import better_moves, better_strategies
from crossflow.answers.explanation.designs import Design, best_first, fastest, ranked, read_design, thinned, written
from crossflow.answers.explanation.dividing import count_path, legal
from crossflow.answers.explanation.sensitivity import explain, other_strategies
from crossflow.answers.scenario import Scenario, check_one_phase, check_steady
from crossflow.answers.score import words
from crossflow.base import files
from crossflow.base.arrays import plain
from crossflow.base.drawing import palette
from crossflow.base.errors import CrossflowError
from crossflow.base.units import show
from crossflow.edges.explore.answers import CURVE, FINE, NEAR, OBJECTIVES, answer, curves, further, told_remedies
from crossflow.edges.explore.compare import exchanges
from crossflow.edges.explore.controls import controls_against
from crossflow.edges.explore.helper import Helper
from crossflow.edges.explore.origin import Origin
from crossflow.edges.explore.repairs import repairs
from crossflow.edges.explore.server import App
from crossflow.edges.trace.gantt import COMPUTES, FILLS, gantt_of
from crossflow.edges.trace.gantt import thinned as some_of
from crossflow.engine.timeline.record import Timeline

Body = Mapping[str, Any]
LEVERS = ("decision", "device", "technology")  # groups of numbers that are ranked where a page does not ask for others
DRAWN = 16  # curves that are drawn before a page says which
LISTED = 2000  # strategies of a list
ROWS = 8  # classes of devices of a timeline
NUMBERS = 6  # of which 10 % more is told
LEAST = 1e-6  # gain that is worth a row


def scenario_app(scenario: Scenario, origin: Origin | None = None, wanted: Sequence[str] = ()) -> App:
    """The page of a scenario.

    Parameters
    ----------
    origin : how the scenario was given; where it is None, as the file that it was read from.
    wanted : paths that can be moved on the page as a file, as `crossflow.edges.explore.offline.offline` takes them.
    """
    from crossflow.edges.explore.offline import offline

    check_steady(scenario)
    check_one_phase(scenario, "a page")
    given = origin or Origin(words=(scenario.document.file,), file=scenario.document.file)
    helper, begin = Helper(), _start(scenario)

    def moved(scenario: Scenario, body: Body) -> dict[str, Any]:
        helper.hold()
        return evaluated(scenario, body)

    def told(scenario: Scenario, body: Body) -> dict[str, Any]:
        return told_further(scenario, body, given)

    def written_out(scenario: Scenario, body: Body) -> dict[str, str]:
        return texts(scenario, body, given)

    quick = {"evaluate": moved, "further": told, "texts": written_out, "designs": designs}
    slow = {
        "repairs": repaired, "neighbours": neighbours, "decisions": decisions, "strategies": strategies, "fastest": best_strategy,
        "timeline": timeline, "explain": explained, "compare": compared,
    }  # fmt: skip
    return App(
        title=scenario.name,
        page="scenario.html",
        start=lambda: begin,
        calls={
            **{name: functools.partial(call, scenario) for name, call in quick.items()},
            **{name: functools.partial(helper.call, call, scenario) for name, call in slow.items()},
        },
        offline=functools.partial(offline, scenario, wanted, given),
        opened=lambda: threading.Thread(target=_warmed, args=(helper,), daemon=True).start(),
        close=helper.close,
    )


def _warmed(helper: Helper) -> None:
    """Let the helper begin before it is asked: it takes a second to read what it needs."""
    with contextlib.suppress(CrossflowError):  # of a server that has ended meanwhile
        helper.call(ready)


def _start(scenario: Scenario) -> dict[str, Any]:
    return {
        "file": scenario.document.file,
        "count": count_path(scenario),
        "divisible": scenario.workload.divisible,
        "auto": scenario.auto is not None,
        "objectives": [{"name": name, "label": words(name)} for name in OBJECTIVES],
        "tints": list(palette.TINTS),
        "hatched": list(palette.WAITING),
        "first": evaluated(scenario, {"settings": {}, "every": True}),
    }


def evaluated(scenario: Scenario, body: Body) -> dict[str, Any]:
    """Figures of a design with curves through it; what can be moved, unless the page knows it.

    Body: ``settings``; ``shown``, paths whose curves are drawn; ``every``, whether to tell the gain of all numbers, which are those of
    one ``lever`` where it is given, and else all but constants; ``large``, paths with a fine curve; ``objective``; ``known``,
    the key of the controls that the page has; ``chosen``, the strategy that auto stands for, searched where the page has none.
    """
    every = bool(body.get("every"))
    design = _design(scenario, body)
    objective = _text(body, "objective") or OBJECTIVES[0]
    if objective not in OBJECTIVES:
        raise CrossflowError(f"no curves of '{objective}'; known: {', '.join(OBJECTIVES)}")
    shown = dict.fromkeys(_paths(body, "shown"), CURVE) | dict.fromkeys(_paths(body, "large"), FINE)
    lever = _text(body, "lever")
    score, told = curves(design, shown, objective, levers=((lever,) if lever else LEVERS) if every else ())
    if every and not shown:  # the first time: draw those that gain most
        best = sorted(told, key=lambda path: -told[path]["gain"])[:DRAWN]
        score, drawn = curves(design, dict.fromkeys(best, CURVE), objective)
        told |= {path: {**curve, "gain": told[path]["gain"], "way": told[path]["way"]} for path, curve in drawn.items()}
    found = {"now": answer(design, score), "curves": told, "objective": objective, "key": design.key, "every": every}
    if body.get("known") != design.key:
        found["controls"] = [control.to_dict() for control in controls_against(design.scenario, scenario)]
    return found


def told_further(scenario: Scenario, body: Body, origin: Origin | None = None) -> dict[str, Any]:
    """Cures, notes, the error in words and the device of a design; how its strategy was chosen and what was assumed are notes too."""
    design = _design(scenario, body)
    found = further(design)
    return {**found, "notes": [*_assumed(scenario, design, origin), *found["notes"]]}


def _assumed(scenario: Scenario, design: Design, origin: Origin | None) -> Iterator[str]:
    if scenario.auto is not None and design.scenario.strategy_text == scenario.strategy_text:
        yield f"strategy {scenario.strategy_text}: {scenario.auto}"
    yield from (f"assumed: {sentence}" for sentence in (origin.assumed if origin is not None else ()))


def repaired(scenario: Scenario, body: Body) -> list[dict[str, Any]]:
    """What makes a design of settings that are none, or keeps a strategy that gave way; a setting of None is put back."""
    settings = body.get("settings")
    if not isinstance(settings, Mapping):
        raise CrossflowError("settings: expected values by path")
    return told_remedies(repairs(scenario, settings))


def decisions(scenario: Scenario, body: Body) -> list[dict[str, Any]]:
    """What the reader can decide at once beside the strategy, and what it brings."""
    design = _design(scenario, body)
    return [decision.to_dict() for decision in better_moves(scenario, design, design.score())]


def neighbours(scenario: Scenario, body: Body) -> list[dict[str, Any]]:
    """Other strategies on the same devices, and what they bring; none of a step that never ends."""
    design = _design(scenario, body)
    try:
        others = other_strategies(design.whole())
    except CrossflowError:
        return []
    return [decision.to_dict() for decision in better_strategies(design.score(), others)]


def ready() -> None:
    """Nothing: a process that has answered it has read this module."""


def designs(scenario: Scenario, body: Body) -> list[dict[str, Any]]:
    """Figures of several designs, as those that are pinned; one that cannot be read has an error in place of them."""
    found: list[dict[str, Any]] = []
    for settings in list(body.get("designs", []))[:12]:
        try:
            design = read_design(scenario, settings)
            found.append({**answer(design, design.score()), "written": {path: str(value) for path, value in written(design).items()}})
        except CrossflowError as error:
            found.append({"error": error.said})
    return found


def strategies(scenario: Scenario, body: Body) -> dict[str, Any]:
    """Strategies that divide the workload of a design, the fastest that fit first."""
    design = _design(scenario, body)
    every = legal(design.scenario)
    if not design.scenario.workload.layered:
        return {"count": len(every), "rows": [{"strategy": text} for text in thinned(every, LISTED)]}
    names, score = ranked(design)
    order = best_first(design.scenario, score)[:LISTED]
    rows = [
        {"strategy": names[i], "time": plain(float(score.step_time[i])), "fits": bool(score.feasible[i]),
         "memory": float(score.memory_needed[i])}
        for i in order.tolist()
    ]  # fmt: skip
    return {"count": len(every), "rows": rows}


def best_strategy(scenario: Scenario, body: Body) -> dict[str, str]:
    """The fastest strategy of a design that fits."""
    return {"strategy": fastest(_design(scenario, body))}


def timeline(scenario: Scenario, body: Body) -> dict[str, Any]:
    """What devices of a design do when, as rectangles."""
    return strip(simulate(_design(scenario, body).whole()))


def strip(found: Timeline) -> dict[str, Any]:
    """A timeline as rectangles in rows, starts and widths over the step."""
    gantt = gantt_of(found, some_of(range(len(found.devices)), ROWS))
    pieces, total = gantt.pieces, found.total
    columns = (pieces.row, pieces.family, pieces.fill, pieces.start / total, pieces.width / total, pieces.base, pieces.height)
    rows = [np.round(column, 5).tolist() for column in columns]
    drawn = set(pieces.family[pieces.fill == COMPUTES].tolist())  # what is no computation is hatched, whatever it is of
    others = itertools.cycle(palette.OTHER_PASSES)
    families = [(name, (palette.PASSES.get(name) or next(others)) if i in drawn else None) for i, name in enumerate(gantt.families)]
    return {
        "total": total, "rows": list(gantt.rows), "use": gantt.utilisation.tolist(), "families": families,
        "fills": list(FILLS), "pieces": rows, "classes": len(found.devices), "note": gantt.note,
    }  # fmt: skip


def explained(scenario: Scenario, body: Body) -> dict[str, Any]:
    """What improves a design, each with the settings that make it: decisions about a generated chip, and 10 % more of a number.

    Constants, and numbers that act as one that is told, are left out; `alike` says of which number others are alike, and `aside` which
    say little by themselves. Other decisions are those of `decisions` and `neighbours`.
    """
    design = _design(scenario, body)
    found = explain(design.whole(), tried=False)
    return {
        "decisions": [{**one.to_dict(), "anew": one.path == DIVIDED} for one in found.decisions],
        "numbers": [_number(found, what_if) for what_if in _singles(found)][:NUMBERS],
        "bottlenecks": [_reach(found, end) for end in found.next_bottlenecks if not found.constant(end.path)],
        "surprises": [{"path": effect.parameter.path, "text": effect.surprise} for effect in found.effects if effect.surprise],
        "alike": {effect.parameter.path: list(effect.alike) for effect in found.effects if effect.alike},
        "aside": [effect.parameter.path for effect in found.effects if effect.gain is None],
        "notes": list(found.notes),
    }  # fmt: skip


def _singles(found: Explanation) -> list[WhatIf]:
    """What 10 % of each number brings that somebody can change, where it gains and stands against nothing; technology last."""
    single = [what_if for what_if in found.what_ifs if what_if.factor == NEAR and not what_if.obstructed and what_if.gain > LEAST]
    groups = {what_if: found.effect(what_if.changes[0].path).group for what_if in single}
    decided = {one.path for one in found.decisions}
    changeable = [what_if for what_if in single if groups[what_if] in LEVERS and what_if.changes[0].path not in decided]
    return sorted(changeable, key=lambda one: (groups[one] == "technology", -one.gain))


def _number(found: Explanation, what_if: WhatIf) -> dict[str, Any]:
    (change,) = what_if.changes
    before, after = show(change.before, change.unit), show(change.after, change.unit)
    alike = [path for path in found.effect(change.path).alike if not found.constant(path)]
    settings = {change.path: float(f"{change.after:.6g}")}  # as sliders have it
    return {"path": change.path, "before": before, "after": after, "gain": plain(what_if.gain), "alike": alike, "settings": settings}


def _reach(found: Explanation, end: NextBottleneck) -> dict[str, Any]:
    """How far a number carries: to a factor, and what binds then, where that is another resource; no factor where no end is in reach."""
    other = end.bound_by if end.factor is not None and end.bound_by != next(iter(found.bound), "") else None
    return {"path": end.path, "factor": plain(end.factor or math.inf), "multiplied": end.multiplied, "then": other}


def compared(scenario: Scenario, body: Body) -> dict[str, Any]:
    """Steps from one design to another, and the time of a step after each."""
    one, two, steps = exchanges(scenario, body.get("first", {}), body.get("second", {}))
    return {
        "first": plain(float(one.score().step_time[0])),
        "second": plain(float(two.score().step_time[0])),
        "steps": [{"text": step.text, "time": plain(step.time)} for step in steps],
    }


def texts(scenario: Scenario, body: Body, origin: Origin | None = None) -> dict[str, str]:
    """A design as ``--set`` line, as YAML and as Python; the settings alone, for what the page was opened with."""
    import yaml

    origin = origin or Origin(words=(scenario.document.file,), file=scenario.document.file)
    settings = written(_design(scenario, body))
    changes = {path: _word(value) for path, value in settings.items()}
    data = scenario.document.data
    for path, value in settings.items():
        data = files.replace(data, files.parts_of(path), value, path)
    text = yaml.safe_dump(json.loads(json.dumps(data)), sort_keys=False, allow_unicode=True)
    return {"set": origin.line(changes), "yaml": text, "python": origin.python(scenario.document.data, changes)}


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# ------------------------------------------------------------------------------------------ bodies


def _design(scenario: Scenario, body: Body) -> Design:
    return read_design(scenario, body.get("settings", {}), chosen=_text(body, "chosen"))


def _text(body: Body, name: str) -> str | None:
    found = body.get(name)
    if found is not None and not isinstance(found, str):
        raise CrossflowError(f"{name}: expected text")
    return found


def _paths(body: Body, name: str) -> list[str]:
    found = body.get(name) or []
    if not isinstance(found, list) or not all(isinstance(path, str) for path in found):
        raise CrossflowError(f"{name}: expected a list of paths")
    return found[:600]
