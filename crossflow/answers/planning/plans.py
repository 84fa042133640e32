"""What planning a scenario gives: its best strategies in order, and why the others fail; `planning.planner` finds them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from crossflow.answers.bands import Trust, order_of_pairs, spread_of, ties
from crossflow.answers.evaluation.figures import usual_objective
from crossflow.answers.evaluation.likeness import likeness, told_trust
from crossflow.answers.points import variant
from crossflow.answers.scenario import Scenario
from crossflow.answers.score import MARGIN, MILLION, Score, larger_is_better, money, unit_of
from crossflow.base.arrays import plain
from crossflow.base.results import DeviceMemory, PlainData, Tabular, later, public
from crossflow.base.units import show

if TYPE_CHECKING:
    from crossflow.answers.prediction import Prediction
    from crossflow.base.drawing.picture import Picture
else:
    Prediction = later("crossflow.answers.prediction", "Prediction")
    Picture = later("crossflow.base.drawing.picture", "Picture")


@dataclass(frozen=True, kw_only=True)
class RefusedPlans:
    """Strategies that divide the workload and still fail, all for one reason."""

    reason: str  # a sentence
    count: int
    strategy: str  # the one that is nearest to working
    lacking: float | None = None  # bytes of memory that this one lacks per device; None where memory is not the reason. [B]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"reason": self.reason, "count": self.count, "nearest": self.strategy, "lacking_bytes": self.lacking}


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """How a job runs with a plan: its strategy is that of training.

    Attributes
    ----------
    iteration : [s]
    devices : of training, and of engines where they have their own. [1]
    engines : plan of one engine; None where no answers are written.
    settings : that make it, beside the strategy, as ``crossflow predict --set`` takes them.
    """

    iteration: float
    devices: tuple[int, int]
    engines: str | None
    settings: tuple[str, ...]

    @property
    def shares(self) -> str:
        """Devices of training and of engines, in words."""
        return " + ".join(f"{count:,}" for count in self.devices if count)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "iteration_time_s": plain(self.iteration), "training_devices": self.devices[0], "engine_devices": self.devices[1],
            "engines": self.engines, "set": list(self.settings),
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RankedPlan(PlainData):
    """One strategy of a list of plans.

    Attributes
    ----------
    strategy : as text that reads back as itself.
    rank : place among the strategies that fit, from 1; None for one that does not fit.
    value : of the objective.
    step_time : [s]
    feasible, reason : whether it can be built and fits, and a sentence on why not.
    fits : whether it fits in memory, the host's included.
    tight : whether it fits and leaves less memory than the margin.
    memory : bytes of the fullest device by kind, with `total`, `free`. [B]
    capacity, left : memory of a device [B], and the share of it that is left. [1]
    mfu, hfu : use of the peak rate. [1]
    throughput : samples, and where the word has a meaning tokens, per second. [1/s]
    energy, power : of one step [J], and the mean over it [W], all devices.
    money : figures in USD by column; those that are known.
    bound_by : the resource that bounds the largest part of the step.
    error_band : errors of the measured runs that are most like it; none where nothing of the kind was measured. [1]
    trust : how far it can be trusted, one of `crossflow.answers.bands.LEVELS`.
    tied_with : listed plans from which measured runs do not tell it; None where no measured runs tell, or the objective is no time.
    origin : the scenario that was planned, with another strategy or none.
    part : of a job, what an iteration takes, and how its engines are divided; None for a step alone.
    """

    strategy: str
    rank: int | None
    value: float
    step_time: float
    feasible: bool
    reason: str | None
    fits: bool
    tight: bool
    memory: DeviceMemory
    capacity: float
    left: float
    mfu: float
    hfu: float
    throughput: Mapping[str, float]
    energy: float
    power: float
    money: Mapping[str, float]
    bound_by: str
    error_band: Mapping[str, float]
    trust: str
    tied_with: tuple[str, ...] | None = None
    origin: Scenario | None = field(default=None, repr=False, compare=False)
    part: JobPlan | None = None

    @property
    def samples_per_second(self) -> float:
        """Samples per second over all devices. [1/s]"""
        return self.throughput["samples_per_s"]

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second over all devices; None where the word has no meaning. [1/s]"""
        return self.throughput.get("tokens_per_s")

    @property
    def cost(self) -> Mapping[str, float]:
        """Prices that are known, by column. [USD]"""
        return self.money

    @property
    def scenario(self) -> Scenario:
        """The scenario with this strategy."""
        assert self.origin is not None  # of all that a planner lists
        return variant(self.origin, {"strategy": self.strategy})

    def predict(self) -> Prediction:
        """Everything that is predicted of it."""
        return public("predict")(self.scenario)  # type: ignore[no-any-return]

    def export(self, kind: str) -> str:
        """Its launch file as text: ``megatron``, ``torchtitan``, ``deepspeed``, ``maxtext``, ``vllm``, ``sglang``, ``tensorrt-llm`` or
        ``dynamo``.

        Raises
        ------
        CrossflowError
            Where the framework cannot express the plan; with what it lacks.
        """
        return public("export")(self.scenario, kind)  # type: ignore[no-any-return]

    @property
    def needed(self) -> float:
        """Bytes that the fullest device needs. [B]"""
        return sum(self.memory.values())

    def __repr__(self) -> str:
        return f"RankedPlan({_line(self)})"

    def to_dict(self, objective: str = "step_time_s") -> dict[str, Any]:
        """Plain data; what has no end, or is not known, is None."""
        memory = {f"{kind}_bytes": plain(size) for kind, size in self.memory.items()}
        fits = {"fits": self.fits, "margin": plain(self.left), "tight": self.tight}
        return {
            "strategy": self.strategy,
            "rank": self.rank,
            **({} if objective == "step_time_s" else {objective: plain(self.value)}),
            "step_time_s": plain(self.step_time),
            "feasible": self.feasible,
            "reason": self.reason,
            "memory": {**memory, "total_bytes": plain(self.needed), "capacity_bytes": plain(self.capacity), **fits},
            "mfu": plain(self.mfu),
            "hfu": plain(self.hfu),
            "throughput": {name: plain(value) for name, value in self.throughput.items()},
            "energy_j": plain(self.energy),
            "power_w": plain(self.power),
            "money": {name: plain(value) for name, value in self.money.items()},
            "bound_by": self.bound_by,
            "error_band": {name: plain(value) for name, value in self.error_band.items()} or None,
            "trust": self.trust,
            "tied_with": None if self.tied_with is None else list(self.tied_with),
            **({} if self.part is None else {"job": self.part.to_dict()}),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Plans(PlainData, Tabular):
    """The best strategies of a scenario: a sequence of plans, best first.

    Attributes
    ----------
    scenario : what was planned.
    objective, margin : the column that orders the plans, and the share of memory that should be left.
    plans : the best ones in the order of the objective; where none fits, those that lack least memory.
    chosen : the one to take: the best that leaves the margin, the best that fits where none does; None where none fits.
    own : the scenario's own strategy where it has one.
    legal, tried, fitting, tight : numbers of strategies: that divide the workload, that were evaluated, that fit, and that fit
        without leaving the margin.
    refusals : why the others fail, the most frequent reason first.
    remedies : where nothing fits, what would make the nearest plan fit, as sentences.
    notes : sentences on how to read this.
    """

    scenario: Scenario
    objective: str
    margin: float
    plans: tuple[RankedPlan, ...]
    chosen: RankedPlan | None
    own: RankedPlan | None
    legal: int
    tried: int
    fitting: int
    tight: int
    refusals: tuple[RefusedPlans, ...]
    remedies: tuple[str, ...]
    notes: tuple[str, ...]

    def __iter__(self) -> Iterator[RankedPlan]:
        return iter(self.plans)

    def __len__(self) -> int:
        return len(self.plans)

    @overload
    def __getitem__(self, place: int) -> RankedPlan: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[RankedPlan, ...]: ...
    def __getitem__(self, place: int | slice) -> RankedPlan | tuple[RankedPlan, ...]:
        return self.plans[place]

    @property
    def tied(self) -> str:
        """How many plans cannot be told from the best, in a sentence; empty where none can be, or nothing tells."""
        first = next((plan for plan in self.plans if plan.feasible), None)
        found = spread_of(run := likeness(self.scenario), run, same=True)
        if first is None or not first.tied_with or found is None:
            return ""
        are = "is" if len(first.tied_with) == 1 else "are"
        return (
            f"{len(first.tied_with)} of the others below {are} within {100 * found[0].order:.3g} % of the best and cannot be told from it: "
            f"{order_of_pairs(*found)}"
        )

    @property
    def best(self) -> RankedPlan | None:
        """The one to take, `chosen`; None where none fits, and the first of the list is the one nearest to fitting."""
        return self.chosen

    @property
    def as_usual(self) -> bool:
        """Whether they are in the order in which `strategy: auto` takes them."""
        return self.objective == usual_objective(self.scenario) and self.margin == MARGIN

    @property
    def counts(self) -> str:
        """How many strategies were tried, and how many fit, in a sentence."""
        tried = (
            f"{self.tried:,} strategies tried" if self.tried == self.legal else f"{self.tried:,} of {self.legal:,} legal strategies tried"
        )
        return f"{tried}, {self.fitting:,} fit" + (f", {self.tight:,} of them tight" if self.tight else "")

    def to_dict(self) -> dict[str, Any]:
        """Plain data of the command-line contract; times in s, sizes in B, energy in J, power in W."""
        return {
            "name": self.scenario.name,
            "objective": self.objective,
            "unit": unit_of(self.objective),
            "larger_is_better": larger_is_better(self.objective),
            "margin": self.margin,
            "devices": self.scenario.devices,
            "system": self.scenario.system.name,
            "legal": self.legal,
            "tried": self.tried,
            "fitting": self.fitting,
            "tight": self.tight,
            "chosen": None if self.chosen is None else self.chosen.strategy,
            "plans": [plan.to_dict(self.objective) for plan in self.plans],
            "own": None if self.own is None else self.own.to_dict(self.objective),
            "refused": [refusal.to_dict() for refusal in self.refusals],
            "remedies": list(self.remedies),
            "notes": list(self.notes),
            **told_trust(self._judged, self.trust),
            "provenance": self.scenario.provenance(),
        }

    def plot(self, path: str | Path | None = None) -> Picture:
        """Draw the objective of every plan that is listed; into a file as well where a path is given."""
        from crossflow.base.drawing.charts import Along, points_chart

        values = np.array([plan.value for plan in self.plans], dtype=float)
        x, y = Along("strategy", [plan.strategy for plan in self.plans]), Along(self.objective, values, unit_of(self.objective))
        bound, fits = [plan.bound_by for plan in self.plans], np.array([plan.feasible for plan in self.plans], dtype=bool)
        return points_chart(f"{self.objective} of the best plans", x, y, bound=bound, feasible=fits, joined=False).saved(path)

    def table(self) -> dict[str, list[Any]]:
        """A row a plan; groups of figures are joined by a dot."""
        rows = [dict(_flat(plan.to_dict(self.objective))) for plan in self.plans]
        return {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}

    def __repr__(self) -> str:
        lines = [f"Plans({self.scenario.name!r}: {self.counts})"]
        lines += [f"  {'>' if plan is self.chosen else ' '} {_line(plan)}" for plan in self.plans]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from crossflow.base.drawing import html

        priced = next((name for one in self.plans for name in one.money), None)
        headers = ["", "strategy", "step time", "memory", "left", "MFU", *([] if priced is None else [priced])]
        rows = [
            [">" if one is self.chosen else "", one.strategy, show(one.step_time, "s") if np.isfinite(one.step_time) else "never ends"]
            + [show(one.needed, "B"), f"{100 * one.left:.0f} %{' tight' if one.tight else ''}", f"{100 * one.mfu:.1f} %"]
            + ([] if priced is None else [f"{one.money[priced]:.4g}" if priced in one.money else "-"])
            for one in self.plans
        ]
        notes = "".join(f"<div>{html.text(note)}</div>" for note in (self.trust.text, *self.notes, *self.remedies))
        return html.heading(self.scenario.name, self.counts) + html.table(headers, rows, html.MOST) + notes

    @property
    def trust(self) -> Trust:
        """How far the figures of the plan to take can be trusted; plans whose experts lie otherwise have a level of their own."""
        from crossflow.answers.evaluation.post_training import whole_trust  # with iterations, which few lists need

        return whole_trust(self._judged)

    @property
    def _judged(self) -> Scenario:
        """The scenario with the plan to take, with its own where none fits."""
        return self.scenario if self.chosen is None else self.chosen.scenario


def with_ties(scenario: Scenario, plans: Sequence[RankedPlan], objective: str) -> tuple[RankedPlan, ...]:
    """Plans of one scenario with those that cannot be told from each, where the objective is a time, or follows from one."""
    if not follows_from_time(objective):
        return tuple(plans)
    near = ties([plan.value if plan.feasible else math.inf for plan in plans], [likeness(scenario)] * len(plans), [""] * len(plans))
    names = [None if found is None else tuple(plans[j].strategy for j in found) for found in near]
    return tuple(replace(plan, tied_with=found) for plan, found in zip(plans, names, strict=True))


def follows_from_time(objective: str) -> bool:
    """Whether a column is the time of a step, or of a request of many steps, or in proportion to it or its inverse.

    >>> [follows_from_time(name) for name in ("step_time_s", "usd_per_million_tokens", "mfu", "carbon_kg_per_million_tokens")]
    [True, True, True, False]
    """
    head, counted, _ = objective.partition(MILLION)
    timely = ("step_time_s", "e2el_s", "samples_per_second", "tokens_per_second", "mfu", "hfu")
    return head in ("device_hours", "normalised_device_hours", "usd") if counted else objective in timely


def _flat(data: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Plain data with the names of groups before those of their figures."""
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _line(plan: RankedPlan) -> str:
    took = plan.step_time if plan.part is None else plan.part.iteration
    time = show(took, "s") if np.isfinite(took) else "never ends"
    state = "does not fit" if not plan.feasible else "tight" if plan.tight else "fits"
    named = plan.strategy if plan.part is None or plan.part.engines is None else f"{plan.strategy}, engines {plan.part.engines}"
    return f"{named}  {time}, {show(plan.needed, 'B')} of {show(plan.capacity, 'B')}, {state}"


def ranked(
    score: Score, point: int, strategy: str, rank: int | None, objective: str, margin: float, scenario: Scenario | None = None
) -> RankedPlan:
    """What a score says of one strategy."""
    columns = {"samples_per_s": score.samples_per_second, "tokens_per_s": score.tokens_per_second}
    return RankedPlan(
        strategy=strategy,
        rank=rank,
        value=float(figure(score, objective)[point]),
        step_time=float(score.step_time[point]),
        feasible=bool(score.feasible[point]),
        reason=score.why(point),
        fits=bool(score.fits[point]),
        tight=bool(score.tight(margin)[point]),
        memory=DeviceMemory(
            {kind: float(sizes[point]) for kind, sizes in score.memory.items()},
            capacity=float(score.memory_capacity[point]),
            fits=bool(score.fits[point]),
            tight=bool(score.tight(margin)[point]),
        ),
        capacity=float(score.memory_capacity[point]),
        left=float(score.memory_left[point]),
        mfu=float(score.mfu[point]),
        hfu=float(score.hfu[point]),
        throughput={name: float(value[point]) for name, value in columns.items() if name != "tokens_per_s" or value[point]},
        energy=float(score.energy[point]),
        power=float(score.power[point]),
        money=money(score, point),
        bound_by=score.bound_by[point],
        error_band={name: float(value[point]) for name, value in score.error_band.items() if np.isfinite(value[point])},
        trust=score.trusted[point],
        origin=scenario,
    )


def figure(score: Score, objective: str) -> Any:
    """A column of a score; that of the step time at once, without making all the others."""
    return score.step_time if objective == "step_time_s" else score.columns()[objective]
