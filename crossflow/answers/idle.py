"""Settings that a scenario writes and that change nothing in its prediction, as sentences that say why.

What has no meaning for a workload or a strategy is refused where it is read (`crossflow.workload.idle`,
`crossflow.parallel.strategy.legality`). Here are the settings that belong to another task, and those whose effect depends on everything
else: how many ranks a group has, what hides behind what. The latter are found by leaving them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from crossflow.answers.evaluation import evaluate
from crossflow.answers.meaning import unhelped
from crossflow.answers.scenario import Scenario, from_document
from crossflow.answers.score import Score, absent
from crossflow.answers.steps.services import between_nodes, unlike_images
from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.base.files import Document, Path_
from crossflow.base.paths import alike
from crossflow.hardware.architecture.datasheet import of_a_datasheet
from crossflow.hardware.architecture.template import DatasheetSystem
from crossflow.parallel.strategy.plan import OWN_TENSOR, Plan
from crossflow.parallel.strategy.reading import strategy_problem
from crossflow.workload.idle import ONLY_REPLAYED, of_other_tasks
from crossflow.workload.kinds import MODELS
from crossflow.workload.spec import TransformerSpec

# Settings that a scenario writes over what a file or a model has, by where they stand, and why they may change nothing.
SETTINGS: Mapping[str, str] = {
    "techlib": "the devices are not made of it, or have a published figure in its place",
    "system.technology.die_link": "the chip is one die (system.budgets.chiplets)",
    **dict.fromkeys(("system.technology.stacked_logic", "system.technology.bond"), "nothing stands on the compute die (stacked_area)"),
    "system.technology.intra_switch": "a node has one device only, or no links",
    "system.technology.inter_switch": "there is one node only, or it has no links to others",
    **dict.fromkeys(("system.technology.intra_uplink", "system.technology.inter_uplink"), "no link of the level is one between switches"),
    "system.network": "no message takes this way, or it hides behind longer work",
    "system.room": "no link that it lengthens has a reach or goes through a named switch",
    "system.levels": "kernels were measured with the device's own, or none of them waits for it",
    "system.operation": "powers enter the energy of a whole run only; give a run: section",
    "system.host": "no strategy.offload keeps anything on the host",
    "system.second_memory": "no strategy.far keeps anything there that it would slow or wear out",
    "software": "what it describes does not take place, or hides behind longer work",
    "workload.uneven": "no whole tables are shared out over ranks",
    **dict.fromkeys(tuple(f"workload.experts.{key}" for key in ("uneven", "skew", "variation")), "no experts are shared out over ranks"),
    "workload.exchange": "nothing of the kind travels between ranks",
    **dict.fromkeys(("placement", "strategy.placement"), "another order of the axes takes as long"),
    "kernels_per_device": "every kernel of a device waits for the one before it",
}
# Options of a plan in the same way; degrees and counts are left out, which always matter.
OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(OWN_TENSOR.values(), "it is the tensor degree of these layers without it"),
    "zero": "no two ranks hold the same weights",
    **dict.fromkeys(
        ("shard_group", "attention_shard_group", "mlp_shard_group", "experts_shard_group", "embedding_shard_group"),
        "weights are sharded over as many ranks without it",
    ),
    "apart": "the ranks of a shard group are as far apart without it",
    "unsharded": "these layers have nothing to shard",
    "distant": "the ranks that share these layers are as far apart without it",
    "sequence_parallel": "tp = 1 leaves no tensor ranks to divide norms and residuals over",
    "recompute": "fused attention keeps no scores that could be computed again",
    "recompute_modules": "what it writes is not kept without it either",
    "schedule": "the default schedule takes as long and holds as much",
    "first_stage": "the stages have as many layers without it",
    "last_stage": "the stages have as many layers without it",
    "stage_layers": "the stages have as many layers without it",
    "offload": "there is nothing of the kind to keep on the host",
    "far": "there is nothing of the kind to keep on the second memory",
    "placement": "the ranks that communicate are as far apart in the default order",
}
# Why some of them change nothing without a backward pass.
UNTRAINED: Mapping[str, str] = {
    "zero": "without training there are only weights to share out, which zero: 3 does among ranks that hold the same",
    "recompute": "it repeats work for the backward pass, which only training has",
    "recompute_modules": "it repeats work for the backward pass, which only training has",
    "schedule": "it orders forward and backward passes, and only training has both",
}
RESOURCES = ("system.network", "system.levels")  # places of settings that may change little, of which it is told what hides it
RATES = ("bandwidth", "latency")  # settings of a link whose messages all take another time with another value
AS_LONG = "messages take as long without it"
# Settings of a stack that only replays take.
REPLAYED = frozenset(f"software.engine.{key}" for key in ("scheduler", "queue", "block", "chunked", "prefixes"))
KNOWN = ("error_band", "trust")  # columns of how well the figures are known
_LABELS = ("like", "kind", "name", "title", "notes", "sources", "known_as")  # of a software stack


def idle(scenario: Scenario, score: Score) -> Iterator[str]:
    """Sentences on the settings that a scenario writes and that change no column of its score, which has one point."""
    untimely = dict(_of_task(scenario))
    yield from (f"{path} changes nothing here: {why}" for path, why in untimely.items())
    yield from _of_model(scenario)
    yield from between_nodes(scenario)
    yield from unlike_images(scenario.workload)
    yield from _loads(scenario)
    yield from unhelped(scenario)
    planned = {"strategy.placement"} if isinstance(scenario.strategy, Plan) else set()  # one of its options
    for place, why in SETTINGS.items():
        if place in planned or (place == "system.operation" and scenario.system.pools):  # a price is one of several there
            continue
        found = [path for path in _idle_below(scenario, score, tuple(place.split("."))) if path not in untimely]
        yield from (f"{path} changes nothing here: {ONLY_REPLAYED}" for path in found if path in REPLAYED)
        found = [path for path in found if path not in REPLAYED]
        if found:
            because = _why_idle(scenario, score, found) or why
            yield f"{' and '.join(found)} {'change' if len(found) > 1 else 'changes'} nothing here: {because}"
        if place in RESOURCES:
            yield from _slight(scenario, score, tuple(place.split(".")), found)
    yield from _timeless(scenario, score)
    reasons = {**OPTIONS, **({} if getattr(scenario.workload, "task", "") == "training" else UNTRAINED)}
    for name in _idle_options(scenario, score):
        yield f"strategy.{name} changes nothing here: {reasons[name.split(':')[0]]}"


def _why_idle(scenario: Scenario, score: Score, paths: Sequence[str]) -> str:
    """What passes the resource of settings that change nothing, from the numbers; "" where they are of no rate, or of several resources."""
    rates = {rate for path in paths if (rate := _rate_of(path))}
    from crossflow.answers.uses import uses

    found = uses(scenario, score, rates) if len(rates) == 1 else {}
    return "".join(use.without for use in found.values())


def _rate_of(path: str) -> str:
    """The bandwidth that a setting of a link or a level is about; "" for all others."""
    parts = path.split(".")
    return ".".join((*parts[:3], "bandwidth")) if len(parts) > 3 and ".".join(parts[:2]) in RESOURCES else ""


def _slight(scenario: Scenario, score: Score, place: Path_, idle_: Sequence[str]) -> Iterator[str]:
    """Settings of a resource without which the step is nearly as long, with what passes there and what hides it."""
    data = scenario.document.data
    for path, value in files.leaves(files.held(data, place), place):
        other = None if value is None or files.dotted(path) in idle_ else _without(scenario, [path])
        if other is None or _same_inputs(other, scenario):
            continue
        from crossflow.answers.uses import LITTLE, lost

        found = evaluate(other)
        use = lost(found, score, files.dotted(path))
        if abs(use.share) < LITTLE and found.feasible[0] == score.feasible[0]:
            how = f"changes the step by {100 * use.share:+.2g} %" if use.lost else "changes no time"
            silent = AS_LONG if path[:2] == ("system", "network") and path[-1] not in RATES else use.text
            why = use.text if use.messages or use.only else _why_idle(scenario, score, [files.dotted(path)]) or silent
            yield f"{files.dotted(path)} {how}: {why}"


def _timeless(scenario: Scenario, score: Score) -> Iterator[str]:
    """Technologies of a datasheet's device that a scenario chooses, which change its energy and not its rates."""
    chosen = files.held(scenario.document.data, ("system", "technology"))
    if not isinstance(scenario.system, DatasheetSystem) or not isinstance(chosen, Mapping):
        return
    for role in chosen:
        other = _without(scenario, [("system", "technology", role)])
        if other is None or _same_inputs(other, scenario):
            continue
        found = evaluate(other)
        timed, powered = (not _equal(a[0], b[0]) for a, b in ((found.step_time, score.step_time), (found.energy, score.energy)))
        what = (
            "energy, and the clock that the power limit allows" if timed else "nothing but energy" if powered else "neither time nor energy"
        )
        yield of_a_datasheet(f"system.technology.{role}", what)


def _of_task(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Keys of the workload that the scenario writes and its task does not use, with the reason."""
    own = scenario.document.data["workload"]
    yield from ((f"workload.{key}", why) for key, why in of_other_tasks(scenario.workload) if files.held(own, key.split(".")) is not None)


def _of_model(scenario: Scenario) -> Iterator[str]:
    """What is not modelled of a transformer, and the length of samples where prompts have their own."""
    workload, own = scenario.workload, scenario.document.data["workload"]
    if not isinstance(workload, TransformerSpec):
        return
    if workload.parallel:
        yield "workload.parallel: attention and MLP side by side are priced one after the other, each with its own collectives"
    if workload.ssm is not None and "both" in workload.ssm.pattern:
        yield "workload.ssm.pattern: attention and state space side by side are priced one after the other, each with its own collectives"
    if own["model"] not in MODELS and "sequence" in own and workload.tokens != workload.sequence and workload.positions != "learned":
        yield f"workload.sequence changes nothing here: prompts have {workload.tokens} tokens"


# ---------------------------------------------------------------------------------------------- settings


def _idle_below(scenario: Scenario, score: Score, place: Path_) -> list[str]:
    """Paths of the settings at or below a place that change nothing: all of them together, or each by itself."""
    data = scenario.document.data
    there = files.leaves(files.held(data, place), place)
    written = [path for path, value in there if value is not None and (path[:1] != ("software",) or path[1] not in _LABELS)]
    if not written or (place == ("software",) and "like" not in data["software"]):  # a whole stack describes more than one scenario
        return []
    if _changes_nothing(scenario, score, written):
        return [files.dotted(path) for path in written]
    return [files.dotted(path) for path in written if len(written) > 1 and _changes_nothing(scenario, score, [path])]


def _changes_nothing(scenario: Scenario, score: Score, paths: list[Path_]) -> bool:
    """Whether a scenario has the same score without some settings; not where it needs them, nor where they repeat a default."""
    other = _without(scenario, paths)
    try:
        return other is not None and not _same_inputs(other, scenario) and _same(evaluate(other), score)
    except CrossflowError:
        return False


def _without(scenario: Scenario, paths: list[Path_]) -> Scenario | None:
    """A scenario without some settings; None where it needs them."""
    data = scenario.document.data
    for path in paths:
        data = _removed(data, path)
    try:
        return from_document(Document(file=scenario.document.file, data=data), scenario.base, scenario.name, like=scenario)
    except CrossflowError:
        return None


def _removed(data: Mapping[Any, Any], path: Path_) -> Mapping[Any, Any]:
    """A mapping without one path, and without what is empty then."""
    head, rest = path[0], path[1:]
    below = _removed(data[head], rest) if rest else {}
    return {key: below if key == head else value for key, value in data.items() if key != head or below}


def _same_inputs(one: Scenario, other: Scenario) -> bool:
    """Whether two scenarios resolve to the same: a setting that repeats a default."""
    inputs = ("system", "workload", "stack", "library", "order", "kernels_per_device")
    return all(alike(getattr(one, name), getattr(other, name)) for name in inputs)


# ---------------------------------------------------------------------------------------------- options of a plan


def _idle_options(scenario: Scenario, score: Score) -> list[str]:
    """Options of a scenario's plan without which the score is the same; those without which there is no plan matter."""
    plan, written = scenario.strategy, scenario.document.data.get("strategy")
    if not isinstance(plan, Plan):
        return []
    defaults: dict[str, Any] = {field.name: field.default for field in fields(Plan)}
    told = written if isinstance(written, Mapping) else defaults
    plain = {name: replace(plan, **{name: defaults[name]}) for name in OPTIONS if name in told and getattr(plan, name) != defaults[name]}
    plain |= _less_repeated(plan)
    limits = scenario.strategy_limits
    legal = {name: other for name, other in plain.items() if strategy_problem(other, scenario.workload, limits) is None}
    if not legal:
        return []
    found = evaluate(scenario, {"strategy": list(legal.values())})
    idle = [name for i, name in enumerate(legal) if _same(found, score, i)]
    return [name for name in idle if name in OPTIONS or "recompute_modules" not in idle]


def _less_repeated(plan: Plan) -> dict[str, Plan]:
    """Plans that compute nothing again where one says modules, and less by each of several modules."""
    modules = plan.recompute_modules
    if not modules:
        return {}
    fewer = {f"recompute_modules: {one}": replace(plan, recompute_modules=tuple(m for m in modules if m != one)) for one in modules}
    return {"recompute_modules": replace(plan, recompute="none", recompute_modules=()), **(fewer if len(modules) > 1 else {})}


def _same(found: Score, score: Score, point: int = 0) -> bool:
    """Whether a point of one score is the only one of another, in every column; a batch has the columns of all its points.

    How well a figure is known is no figure: a stack with a setting of its own has the errors of other measured runs.
    """
    theirs, ours = found.columns(), score.columns()
    return all(
        _equal(theirs[name][point] if name in theirs else absent(name), ours[name][0] if name in ours else absent(name))
        for name in theirs.keys() | ours.keys()
        if name.split(".")[0] not in KNOWN
    )


def _equal(one: Any, other: Any) -> bool:
    """Whether two values are the same; sums of the same numbers may differ in their last digits."""
    if isinstance(one, (float, np.floating)):
        return bool(np.isclose(one, other, rtol=1e-12, atol=0.0, equal_nan=True))
    return bool(one == other)


def _loads(scenario: Scenario) -> Iterator[str]:
    """What to say where adapters come and go, which takes no time in closed form."""
    workload = scenario.workload
    served = workload.service.adapters if scenario.requests is None else None
    if served is not None and served.slots is not None and served.slots < served.count:
        yield "workload.serving.adapters.slots: loads of adapters from the host are counted in replays only (crossflow serve)"
