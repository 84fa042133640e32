"""What an explanation says: effects of parameters, what-ifs, next bottlenecks, swings; `explanation.sensitivity` computes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from crossflow.answers.bands import Trust
from crossflow.answers.evaluation.likeness import told_trust
from crossflow.answers.explanation.parameters import Parameter, ParameterGroup
from crossflow.answers.scenario import Scenario
from crossflow.answers.score import Score, larger_is_better, unit_of
from crossflow.base.arrays import plain
from crossflow.base.drawing.picture import Picture
from crossflow.base.results import PlainData, Tabular, later
from crossflow.base.units import show

if TYPE_CHECKING:
    from crossflow.answers.uses import Use
else:
    Use = later("crossflow.answers.uses", "Use")

STEP, FINE_STEP = 0.01, 0.001  # relative steps of the differences: wide enough to see over whole numbers of units and banks
ROUNDING = 1e-9  # share of a time
OF_ENGINES = ("rollout", "transfer", "refit")  # phases of a job in which engines have a part
DIVIDED = "system.budgets"  # path of the decision that only divides budgets anew

Owner = Literal["architect", "technology"]
Sides = Literal["both", "below", "above", "none"]
# What is decided, in the order in which decisions are told: budgets before what a chip has else, which is counted over their new division.
DecisionKind = Literal["strategy", "nodes", "budgets", "network", "memory", "type", "batch", "engine", "job", "technology"]


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What one parameter does to the objective."""

    parameter: Parameter  # the parameter
    elasticity: float | None  # d ln(objective) / d ln(parameter); None where no neighbouring value can be computed. [1]
    # whether two widths of step, and both sides, agree within 1 %: where a whole number of units or a roofline kinks in between they do not
    smooth: bool
    sides: Sides  # sides of the value on which differences were taken
    resource: str | None  # the resource whose part of the step changes most; None where no part does
    # relative improvement of the objective when the parameter is improved by 10 %, negative where both directions lose; None where it
    # cannot move. [1]
    gain: float | None
    surprise: str | None = None  # why 10 % of what should help makes it worse; None where it does not
    group: ParameterGroup = "decision"  # who can change the parameter
    alike: tuple[str, ...] = ()  # paths of further parameters with the same gain and elasticity, of its group or of one after it

    @property
    def owner(self) -> Owner:
        """Who decides the number: the architect budgets, shares and network, technology and execution the rest."""
        return "architect" if self.parameter.kind in ("budget", "system") else "technology"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        number = self.parameter
        about = {"path": number.path, "kind": number.kind, "value": number.value, "unit": number.quantity.unit, "source": number.source}
        rest = {name: getattr(self, name) for name in ("elasticity", "smooth", "sides", "resource")}
        gain = None if self.gain is None else plain(self.gain)
        return {**about, **rest, "gain_10_percent": gain, "owner": self.owner, "own": number.own, "surprise": self.surprise,
                "group": self.group, "alike": list(self.alike)}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Change:
    """A parameter's move; `short` where a bound of its range, or a whole number, stops it before the factor. SI units."""

    path: str
    unit: str
    before: float
    after: float
    short: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the setting that ``crossflow predict --set`` takes."""
        return {**asdict(self), "set": f"{self.path}={show(self.after, self.unit, 15)}"}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What comes out of a changed scenario."""

    value: float  # new value of the objective; infinite where the step never ends
    gain: float  # relative improvement of the objective. [1]
    bound_by: str  # resource that bounds the largest part of the step then
    feasible: bool  # whether the design can be built and holds its model
    reason: str | None  # what stands against it
    step_time: float  # of a step then. [s]
    throughput: float  # of one device: tokens, or samples where the workload has none. [1/s]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        rest = {name: getattr(self, name) for name in ("bound_by", "feasible", "reason")}
        pace = {"step_time_s": plain(self.step_time), "throughput_per_device": plain(self.throughput)}
        return {"objective": plain(self.value), "gain": plain(self.gain), **rest, **pace}


@dataclass(frozen=True, kw_only=True)
class WhatIf(Answer):
    """Parameters improved by a factor, each in the direction that helps."""

    factor: float  # by which each is multiplied or divided. [1]
    changes: tuple[Change, ...]  # the parameters
    obstructed: bool  # whether something stands against the design other than what stands against the scenario itself

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"factor": self.factor, "changes": [change.to_dict() for change in self.changes], **super().to_dict()}


@dataclass(frozen=True, kw_only=True)
class Alternative(Answer):
    """Another decision of the architect of a generated device, budgets divided anew for it."""

    path: str  # what is decided: budgets, their division, or a choice of technology
    before: str  # how it is, as text
    after: str  # how it would be
    kept: float  # relative improvement where the division stays; minus infinity where it cannot be built then. [1]
    # relative improvement over the scenario whose budgets are divided anew too, which is what the decision itself brings. [1]
    marginal: float
    spread: float  # by how much two searches of its division that did not see each other differ. [1]
    settings: Mapping[str, Any]  # that make it, those of the division among them; numbers in SI units

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "path": self.path,
            "before": self.before,
            "after": self.after,
            "gain_kept": plain(self.kept),
            "gain_marginal": plain(self.marginal),
            "search_spread": plain(self.spread),
            **super().to_dict(),
        }


@dataclass(frozen=True, kw_only=True)
class OtherStrategy(Answer):
    """Another strategy on the same devices, as text, and what it has otherwise."""

    strategy: str
    changes: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"strategy": self.strategy, "changes": self.changes, **super().to_dict()}


@dataclass(frozen=True, kw_only=True)
class Decision(Answer):
    """Something that the reader can decide at once, and what it changes; gains are what the decision itself brings.

    Attributes
    ----------
    kind : what is decided.
    path : the setting that is decided, such as ``system.nodes``.
    text : what is otherwise, such as ``nodes 16 to 32``.
    settings : that make it, numbers in SI units.
    overrides : the same as ``crossflow predict --set`` takes them.
    time : relative change of the step time. [1]
    rate : relative change of the throughput of one device; of requests that arrive by themselves it only follows the devices. [1]
    spread, kept : of a chip whose budgets are divided anew: by how much two searches differ, and the gain where the division stays;
        `gain`, `time` and `rate` are then over the scenario with its budgets divided anew too. None elsewhere. [1]
    """

    kind: DecisionKind
    path: str
    text: str
    settings: Mapping[str, Any]
    overrides: tuple[str, ...]
    time: float
    rate: float
    spread: float | None = None
    kept: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        about = {"kind": self.kind, "path": self.path, "text": self.text, "settings": dict(self.settings), "set": list(self.overrides)}
        searched = {"search_spread": self.spread, "gain_kept": None if self.kept is None else plain(self.kept)}
        return {**about, "time": plain(self.time), "rate": plain(self.rate), **super().to_dict(), **searched}


def paces(score: Score) -> list[tuple[float, float]]:
    """Time of a step [s], of a job of its iteration, and throughput of one device [1/s], of every point of a score."""
    n = len(score)
    if score.job:
        times, each = (score.job[name] for name in ("iteration_time_s", "tokens_per_second_per_device"))
        return list(zip(np.nan_to_num(times, nan=np.inf).tolist(), np.nan_to_num(each).tolist(), strict=True))
    rate = score.tokens_per_second if score.tokens_per_second.any() else score.samples_per_second
    each = np.broadcast_to(rate / score.devices, (n,))
    return list(zip(np.broadcast_to(score.step_time, (n,)).tolist(), each.tolist(), strict=True))


def phases_of(score: Score, point: int) -> dict[str, float]:
    """Phases that the iteration of a job waits for, by name: they add up to it. [s]

    Where engines write while the policy trains, those of the pool that takes longer, and the transfer of weights between both.
    """
    named = {name[6:-2]: float(times[point]) for name, times in score.job.items() if name.startswith("phase.")}
    return waited_for(named, float(score.job["iteration_time_s"][point]))


def waited_for(named: Mapping[str, float], whole: float) -> dict[str, float]:
    """Of the phases of an iteration, those that add up to it. [s]"""
    phases = {name: time for name, time in named.items() if time > 0}
    if sum(phases.values()) <= whole * (1 + ROUNDING) or math.isnan(whole):
        return phases
    training = {name: time for name, time in phases.items() if name not in OF_ENGINES}
    longer = ["rollout"] if sum(training.values()) < phases["rollout"] else list(training)
    return {name: phases[name] for name in phases if name in longer or name in OF_ENGINES[1:]}


def bound_of(score: Score, point: int) -> str:
    """What bounds the largest part of a step, or the longest phase of the iteration of a job."""
    phases = phases_of(score, point) if score.job else {}
    return max(phases, key=lambda name: phases[name]) if phases else score.bound_at(point)


@dataclass(frozen=True, kw_only=True)
class NextBottleneck:
    """How far a parameter can be improved before something else binds."""

    path: str  # the parameter
    multiplied: bool  # whether more of it is better; else it is divided
    # first factor at which the next percent brings less than half of what the first one did, or at which another resource bounds the
    # largest part of the step; None where neither happens up to `reach`. [1]
    factor: float | None
    because: Literal["falling elasticity", "another resource"] | None  # which of the two
    bound_by: str  # resource that bounds the largest part of the step at that factor, or at `reach`
    reach: float  # largest factor tried: 100, or less where the range of the quantity ends or the design can no longer be built. [1]


@dataclass(frozen=True, kw_only=True)
class Swing:
    """Objective at both ends of a parameter's range: the file's low and high (`given`), else the value over and times 1.1."""

    path: str
    unit: str
    low: float
    high: float
    at_low: float
    at_high: float
    resource: str | None
    given: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Explanation(PlainData, Tabular):
    """What limits a scenario.

    Attributes
    ----------
    scenario, objective : what was explained, and the column of a score that it is about.
    value : objective of the scenario itself, in the SI unit that its name ends in.
    feasible, reason : verdict on the scenario itself.
    bound : share of the step that each resource bounds, largest first. [1]
    effects : every parameter that can move: what the reader decides first, then what another device or technology has, constants last;
        in each group the largest gain first.
    fixed : paths of those that cannot, because their value is zero.
    limiting : the parameter that gains most when improved by 10 %, among those that stay as feasible as the scenario
        itself; None where none gains.
    lever : the same among those that the reader can change: budgets, shares and the network of a generated device, else all but
        constants, which another device has otherwise.
    what_ifs : the parameters that gain most, alone, by each of the factors; of those that act alike only the first.
    pairs : the best pairs of them, by each of the factors.
    next_bottlenecks : how far the first of them lead.
    swings : the objective over the range of every parameter.
    alternatives : other decisions of the architect of a generated device, with budgets divided anew: the division alone first, then
        those that are feasible, the largest gain first; those whose gains the search cannot tell apart in the order of their gains
        with the division kept.
    strategies : other strategies of a layered model, those that fit first, the largest gain first.
    decisions : what the reader can decide at once and what gains, with the settings that make it: strategies, nodes, network, memory,
        types, the batch, settings of an engine, and technology; what does not fit or changes nothing is left out.
    step_time, throughput : pace of the scenario itself [s], and of one of its devices [1/s].
    counts : what a throughput counts: tokens, or samples where the workload has none.
    uses : by path what waits for links and memories that gain little, and what hides it, if they were half as good.
    notes : sentences on how to read this.
    trust : how far its times can be trusted: those of a step, or of the iteration of a job.
    reliability : what a tenth less of each part of an interrupted run gains of its time, largest first: rates, times of detection and of
        repair by cause, restart, saving; none where nothing interrupts it. [1]
    """

    scenario: Scenario
    objective: str
    value: float
    feasible: bool
    reason: str | None
    bound: Mapping[str, float]
    effects: tuple[Effect, ...]
    fixed: tuple[str, ...]
    limiting: WhatIf | None
    lever: WhatIf | None
    what_ifs: tuple[WhatIf, ...]
    pairs: tuple[WhatIf, ...]
    next_bottlenecks: tuple[NextBottleneck, ...]
    swings: tuple[Swing, ...]
    alternatives: tuple[Alternative, ...]
    strategies: tuple[OtherStrategy, ...]
    decisions: tuple[Decision, ...]
    step_time: float
    throughput: float
    counts: Literal["tokens", "samples"]
    uses: Mapping[str, Use]
    notes: tuple[str, ...]
    trust: Trust
    reliability: Mapping[str, float] = field(default_factory=dict)

    @property
    def of(self) -> str:
        """What its times are of, in a word: a step, or the iteration of a job."""
        return "step" if self.scenario.post_training is None else "iteration"

    def effect(self, path: str) -> Effect:
        """Effect of the parameter at a path."""
        return next(effect for effect in self.effects if effect.parameter.path == path)

    def constant(self, path: str) -> bool:
        """Whether the parameter at a path was fitted, or only restates the device."""
        return self.effect(path).group == "constant"

    def to_dict(self) -> dict[str, Any]:
        """Plain data; all values in SI units, a value that no design reaches is None."""
        return {
            "name": self.scenario.name,
            "objective": self.objective,
            "unit": unit_of(self.objective),
            "larger_is_better": larger_is_better(self.objective),
            "value": self.value,
            "feasible": self.feasible,
            "reason": self.reason,
            **told_trust(self.scenario, self.trust),
            "bound_by": [{"resource": name, "share": share} for name, share in self.bound.items()],
            "step": STEP,
            "fine_step": FINE_STEP,
            "limiting": None if self.limiting is None else {"path": self.limiting.changes[0].path, **self.limiting.to_dict()},
            "lever": None if self.lever is None else {"path": self.lever.changes[0].path, **self.lever.to_dict()},
            "elasticities": [effect.to_dict() for effect in self.effects],
            "not_movable": list(self.fixed),
            "what_if": [what_if.to_dict() for what_if in self.what_ifs],
            "pairs": [pair.to_dict() for pair in self.pairs],
            "next_bottleneck": [asdict(found) for found in self.next_bottlenecks],
            "swings": [{**asdict(s), "at_low": plain(s.at_low), "at_high": plain(s.at_high)} for s in self.swings],
            "alternatives": [other.to_dict() for other in self.alternatives],
            "strategies": [other.to_dict() for other in self.strategies],
            "decisions": [decision.to_dict() for decision in self.decisions],
            "step_time_s": self.step_time,
            "throughput_per_device": self.throughput,
            "throughput_counts": self.counts,
            "uses": {path: use.to_dict() for path, use in self.uses.items()},
            **({"reliability": dict(self.reliability)} if self.reliability else {}),
            "notes": list(self.notes),
        }

    def table(self) -> dict[str, list[Any]]:
        """A row a parameter, in the order of `effects`, with the keys of its plain data."""
        rows = [effect.to_dict() for effect in self.effects]
        return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}

    def plot(self, top: int = 15, *, whole: bool = False) -> Picture:
        """Draw what the parameters with the largest spans do to the objective over their ranges: a tornado plot.

        whole : constants too, which were fitted or restate the device.
        """
        from crossflow.answers.explanation.tornado import figure_of, tornado

        return Picture(figure=figure_of(tornado(self, top, whole=whole)))

    def _repr_html_(self) -> str:
        from crossflow.base.drawing import html

        rows = [
            (
                effect.parameter.path,
                show(effect.parameter.value, effect.parameter.quantity.unit),
                "" if effect.elasticity is None else f"{effect.elasticity:+.3f}",
                "" if effect.gain is None else f"{100 * effect.gain:.2f} %",
                effect.resource or "",
            )
            for effect in self.effects
        ]
        bound = ", ".join(f"{name} {100 * share:.0f} %" for name, share in self.bound.items() if share > 0)
        head = html.heading(self.scenario.name, f"{repr(self).partition(': ')[2].removesuffix(')')}; bound by {bound}")
        return head + html.table(["parameter", "value", "elasticity", "gain of 10 %", "acts on"], rows, html.MOST)

    def __repr__(self) -> str:
        start = f"Explanation({self.scenario.name!r}: {self.objective} {show(self.value, unit_of(self.objective))}"
        if self.limiting is None:
            return f"{start}, nothing gains)"
        return f"{start}, limited by {self.limiting.changes[0].path}: {100 * self.limiting.gain:.3g} % for 10 %)"
