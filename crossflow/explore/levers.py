"""What the reader of a page can decide at once, and what it brings: strategies, types, batches, devices, what a step of an engine takes.

What more of a number brings is of `explanation`: here are decisions, each a setting that a button makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from crossflow.arrays import plain
from crossflow.errors import CrossflowError
from crossflow.explanation.sensitivity import other_strategies
from crossflow.explore.controls import Control, controls, count_path, names_of
from crossflow.explore.designs import Design, nearest, read_design
from crossflow.formats import FORMATS
from crossflow.points import variant
from crossflow.scenario import Scenario
from crossflow.score import Score
from crossflow.workload.spec import ProgramSpec, TransformerSpec

STRATEGIES = 4  # that are told
LEAST = 5e-4  # relative change that is worth a row
BATCH, CHUNK = "workload.global_batch", "workload.serving.chunk"


@dataclass(frozen=True, kw_only=True)
class Lever:
    """A decision, and what it changes.

    Attributes
    ----------
    kind : strategy, type, batch, devices or engine.
    text : what is otherwise, such as ``nodes 16 to 32``.
    settings : that make it.
    time : relative change of the step time. [1]
    rate : relative change of samples a second and device; of requests that arrive by themselves it only follows the devices. [1]
    """

    kind: str
    text: str
    settings: Mapping[str, Any]
    time: float
    rate: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"time": plain(self.time), "rate": plain(self.rate)}


@dataclass(frozen=True, kw_only=True)
class _Move:
    """Settings that are tried, and what they are called."""

    kind: str
    text: str
    settings: Mapping[str, Any]


def better_strategies(design: Design) -> tuple[Lever, ...]:
    """Other strategies on the same devices, as an explanation has them, the fastest first; where the design does not fit, those that do."""
    fits = bool(design.score().feasible[0])
    try:
        others = other_strategies(design.whole())
    except CrossflowError:  # of a step that never ends
        return ()
    better = [other for other in others if other.feasible and (other.gain > LEAST or not fits)][:STRATEGIES]
    return tuple(
        Lever(kind="strategy", text=other.changes or other.strategy, settings={"strategy": other.strategy}, time=-other.gain,
              rate=1.0 / (1.0 - other.gain) - 1.0)
        for other in better
    )  # fmt: skip


def better_moves(scenario: Scenario, design: Design) -> tuple[Lever, ...]:
    """Other decisions that improve a design of a scenario: types, those that shorten the step most first, then the others.

    A decision is told where it fits, and shortens the step or brings more a second and device. Of the types of one thing the best is told.
    """
    base = design.score()
    tried = [lever for move in _moves(design) if (lever := _tried(scenario, design, base, move)) is not None]
    types = [one for one in tried if one.kind == "type"]
    best = {tuple(one.settings): one for one in sorted(types, key=lambda one: (round(one.time, 1), one.text), reverse=True)}
    return (*reversed(best.values()), *(one for one in tried if one.kind != "type"))


def _tried(scenario: Scenario, design: Design, base: Score, move: _Move) -> Lever | None:
    """What a move brings; None where it is no design, or is not worth a row."""
    try:
        other = read_design(scenario, {**design.settings, **move.settings})
    except CrossflowError:
        return None
    score = other.score()
    if other.note or not score.feasible[0]:
        return None
    time = float(score.step_time[0] / base.step_time[0]) - 1.0
    each = [float(one.samples_per_second[0]) / of.scenario.devices for one, of in ((score, other), (base, design))]
    rate = each[0] / each[1] - 1.0
    if rate <= LEAST and (time >= -LEAST or move.kind == "batch"):  # a smaller batch takes less time, and brings less
        return None
    return Lever(kind=move.kind, text=move.text, settings=move.settings, time=time, rate=rate)


# ------------------------------------------------------------------------------------------ moves


def _moves(design: Design) -> Iterator[_Move]:
    """Everything that is tried beside strategies."""
    known = {control.path: control for control in controls(design.scenario)}
    yield from _types(design.scenario)
    for path, kind in ((CHUNK, "engine"), (BATCH, "batch")):
        if path in known:
            yield from (_Move(kind=kind, text=text, settings=settings) for text, settings in _counts(known[path]))
    if (path := count_path(design.scenario)) in known:
        for text, settings in _counts(known[path]):
            yield _Move(kind="devices", text=text, settings=_with_strategy(design, settings))


def _types(scenario: Scenario) -> Iterator[_Move]:
    """Narrower types of products and, of a service, of its weights and its cache."""
    spec = scenario.workload
    if isinstance(spec, ProgramSpec):
        return
    serves = isinstance(spec, TransformerSpec) and spec.serves
    for name in ("dtype", "weight_dtype", "kv_dtype") if serves else ("dtype",):
        own = getattr(spec, name) or spec.dtype
        narrower = (other for other in names_of(type(spec).model_fields[name].annotation) if FORMATS[other].bits < FORMATS[own].bits)
        for other in narrower:
            yield _Move(kind="type", text=f"{name.replace('_', ' ')} {own} to {other}", settings={f"workload.{name}": other})


def _counts(control: Control) -> Iterator[tuple[str, dict[str, Any]]]:
    """Twice and half of a whole number, in words, with the setting."""
    for value in (2 * control.value, control.value // 2):
        if value and value != control.value:
            yield f"{control.label} {control.value:,} to {value:,}", {control.path: value}


def _with_strategy(design: Design, settings: dict[str, Any]) -> dict[str, Any]:
    """A number of devices with the strategy nearest to that of the design."""
    try:
        here = variant(design.scenario, {**settings, "strategy": "any"})
    except CrossflowError:
        return settings
    near = nearest(here, design.scenario.strategy)
    return settings if near is None else {**settings, "strategy": near}
