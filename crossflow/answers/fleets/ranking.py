"""The best fleets for the requests of a service, in order: what `plan` says of a scenario with requests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

from crossflow.answers.bands import Trust, order_of_pairs, spread_of, ties
from crossflow.answers.evaluation.likeness import ARRIVING, likeness, told_trust, trust
from crossflow.answers.evaluation.slips import slips
from crossflow.answers.fleets.kinds import FleetKind, FleetSpace, kinds_of, site_of
from crossflow.answers.fleets.searching import FleetQuestion, FleetRun, Told, searched
from crossflow.answers.fleets.sizing import SizedFleet
from crossflow.answers.scenario import Scenario, requests_of
from crossflow.answers.score import MARGIN
from crossflow.base.arrays import plain
from crossflow.base.drawing.picture import Picture
from crossflow.base.errors import CrossflowError
from crossflow.base.results import PlainData, Tabular, public

HOUR = 3600.0
SHARE = 0.99  # of requests that must be on target, unless a caller says otherwise
FIGURES = (
    "attained", "goodput_per_s", "ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s", "e2el_p99_s", "output_throughput_tokens_per_s",
    "request_throughput_per_s", "preemptions", "dropped", "cache_hit_rate", "replay_span_s",
)  # fmt: skip
UNTARGETED = "{name}: no class of its requests has targets, so one engine is as good as many; give requests.targets, such as {example}"
EXAMPLE = "{ttft: 2 s, tpot: 50 ms}"


@dataclass(frozen=True, kw_only=True)
class RankedFleet(PlainData):
    """The cheapest fleet of one kind.

    Attributes
    ----------
    kind : its engines.
    rank : place among those that meet the targets, from 1; None for one that does not.
    writers, readers : engines that write, and engines that only read prompts. [1]
    devices : of all of them. [1]
    rent : of all devices, NaN where they have no price. [USD/s]
    figures : what the replay of all requests says of it, by column.
    power : mean of all devices over the run. [W]
    trust : how far times of its steps can be trusted, one of `crossflow.answers.bands.LEVELS`.
    scenario : the fleet, which `crossflow.serve` replays to the same figures.
    tied_with : names of listed fleets from which measured runs cannot tell its cost; None where no measured runs tell.
    """

    kind: FleetKind
    rank: int | None
    writers: int
    readers: int
    devices: int
    rent: float
    figures: Mapping[str, float]
    power: float
    trust: str
    scenario: Scenario = field(repr=False, compare=False)
    tied_with: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """Its engines in words, with how many there are."""
        pools = f"{self.writers} x " if not self.readers else f"{self.readers} read, {self.writers} write, "
        beside = f", encoders {self.encoders}" if self.encoders and "encoders" not in self.kind.told else ""
        return pools + self.kind.name + beside

    @property
    def encoders(self) -> int:
        """Encoders of images of their own, 0 where engines encode them. [1]"""
        images = self.scenario.workload.serving.images  # type: ignore[union-attr] # of a service
        return 0 if images is None or images.encode is None else images.encode.workers

    @property
    def usd_per_hour(self) -> float:
        """Rent of an hour, NaN where devices have no price. [USD]"""
        return self.rent * HOUR

    @property
    def usd_per_million_tokens(self) -> float:
        """Rent of a million tokens that are written. [USD]"""
        return 1e6 * self.rent / self.figures["output_throughput_tokens_per_s"]

    @property
    def user_rate(self) -> float:
        """Tokens that a user gets in a second, in the median. [1/s]"""
        return 1.0 / self.figures["tpot_p50_s"]

    @property
    def device_rate(self) -> float:
        """Tokens that are written in a second, over the devices. [1/s]"""
        return self.figures["output_throughput_tokens_per_s"] / self.devices

    def export(self, kind: str) -> str:
        """Its launch file as text; see `RankedPlan.export`."""
        return public("export")(self.scenario, kind)  # type: ignore[no-any-return]

    def to_dict(self) -> dict[str, Any]:
        """Plain data; what is not known is None."""
        money = {"usd_per_hour": self.usd_per_hour, "usd_per_million_tokens": self.usd_per_million_tokens}
        return {
            "rank": self.rank, "strategy": self.scenario.strategy_text, "engine": self.kind.strategy, "settings": dict(self.kind.settings),
            "engines": self.writers, "prefill_engines": self.readers,
            **({"encoders": self.encoders} if self.encoders else {}), "devices": self.devices,
            "money": {name: plain(value) for name, value in money.items() if not math.isnan(value)},
            **{name: plain(self.figures[name]) for name in FIGURES if name in self.figures}, "power_w": plain(self.power),
            "tokens_per_s_per_device": plain(self.device_rate), "tokens_per_s_per_user": plain(self.user_rate), "trust": self.trust,
            "tied_with": None if self.tied_with is None else list(self.tied_with),
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Fleets(PlainData, Tabular):
    """The cheapest fleets for the requests of a scenario: a sequence, cheapest first.

    Attributes
    ----------
    scenario : the service that was planned.
    fleets : the cheapest of different kinds that meet the targets; where none does, the largest of those that come nearest.
    share : of requests that must be on target. [1]
    most : devices that a fleet may have. [1]
    priced : whether they are in order of their rents, else of their devices.
    refused : kinds that are not listed, with why.
    run : what the search did.
    notes : sentences on how to read this.
    """

    scenario: Scenario
    fleets: tuple[RankedFleet, ...]
    share: float
    most: int
    priced: bool
    refused: tuple[tuple[FleetKind, str], ...]
    run: FleetRun
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[RankedFleet]:
        return iter(self.fleets)

    def __len__(self) -> int:
        return len(self.fleets)

    @overload
    def __getitem__(self, place: int) -> RankedFleet: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[RankedFleet, ...]: ...
    def __getitem__(self, place: int | slice) -> RankedFleet | tuple[RankedFleet, ...]:
        return self.fleets[place]

    @property
    def best(self) -> RankedFleet | None:
        """The cheapest fleet that meets the targets; None where none does."""
        return next((one for one in self.fleets if one.rank is not None), None)

    @property
    def counts(self) -> str:
        """How many kinds were searched, in a sentence."""
        meet = sum(one.rank is not None for one in self.fleets)
        found = f"{len(self.run.done):,} of {self.run.kinds:,} kinds of engines searched on at most {self.most:,} devices"
        return f"{found}, {meet:,} listed meet the targets; {self.run.replayed:.1f} times the requests were replayed"

    @property
    def trust(self) -> Trust:
        """How far the times of steps of the best fleet can be trusted."""
        return trust(self.fleets[0].scenario if self.fleets else self.scenario)

    @property
    def tied(self) -> str:
        """How many fleets cannot be told from the best, in a sentence; empty where none can be, or nothing tells."""
        first = self.best
        if first is None or not first.tied_with:
            return ""
        near = [one for one in self.fleets if one is not first and one.name in first.tied_with]
        spreads = [
            spread_of(likeness(first.scenario), likeness(one.scenario), same=first.kind.hardware == one.kind.hardware) for one in near
        ]
        counts = Counter(found for found in spreads if found is not None)
        return "; ".join(
            f"{count} of the others cost{'s' * (count == 1)} less than {100 * found[0].order:.3g} % more than the best and cannot be told "
            f"from it: {order_of_pairs(*found)}"
            for found, count in counts.items()
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Plain data of the command-line contract."""
        judged = self.fleets[0].scenario if self.fleets else self.scenario
        told = told_trust(judged)
        told["trust_of"] = {**told["trust_of"], "tails": Trust(level="unknown", band=None, reason=ARRIVING).to_dict()}
        return {
            "name": self.scenario.name, "requests": len(requests_of(self.scenario)), "target_share": self.share, "devices": self.most,
            "ordered_by": "usd_per_hour" if self.priced else "devices", "kinds": self.run.kinds, "searched": len(self.run.done),
            "interrupted": self.run.interrupted, "replayed": self.run.replayed, "fleets": [one.to_dict() for one in self.fleets],
            "refused": [{"kind": kind.name, "reason": reason} for kind, reason in self.refused], "notes": list(self.notes), **told,
            "provenance": self.scenario.provenance(),
        }  # fmt: skip

    def table(self) -> dict[str, list[Any]]:
        """A row a fleet."""
        rows = [
            {
                "fleet": one.name,
                "usd_per_hour": one.usd_per_hour,
                **{k: v for k, v in one.to_dict().items() if not isinstance(v, dict | list)},
            }
            for one in self.fleets
        ]
        return {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}

    def plot(self, path: str | Path | None = None) -> Picture:
        """Tokens a second of a device against those of a user, of the first fleets with fewer and more engines; into a file too."""
        from crossflow.answers.fleets.front import front_picture

        return front_picture(self.scenario, self.fleets).saved(path)

    def __repr__(self) -> str:
        what = "USD/hour" if self.priced else "devices"
        rows = [f"  {one.name}: {one.usd_per_hour if self.priced else one.devices:.4g} {what}, "
                f"{100 * one.figures['attained']:.1f} % on target" for one in self.fleets]  # fmt: skip
        return "\n".join([f"Fleets({self.scenario.name!r}: {self.counts})", *rows])


def plan_fleets(
    scenario: Scenario,
    *,
    top: int = 10,
    share: float | None = None,
    space: FleetSpace | None = None,
    jobs: int | None = None,
    told: Told | None = None,
) -> Fleets:
    """The cheapest fleets that answer the requests of a scenario in time, of every kind of engine its cheapest.

    Parameters
    ----------
    scenario : a service with requests that have targets; its devices are the most that a fleet may have.
    top : how many fleets are listed.
    share : of requests that must meet all targets of their class, 0.99 where absent. [1]
    space : values of paths that fleets may have, as in a study: ``strategy`` for layouts of one engine, ``workload.serving.chunk``, or
        settings that change together by name, as ``{"chip": {"H100": {...}, "B200": {...}}}``.
    jobs : processes.
    told : is called with how much is done, of how much.

    Raises
    ------
    CrossflowError
        Where no class of the requests has a target, for a space that is none, and where no fleet can be built.
    """
    share = SHARE if share is None else share
    _check(top, share)
    trace = requests_of(scenario)
    if not any(one.targeted for one in trace.classes):
        raise CrossflowError(UNTARGETED.format(name=scenario.name, example=EXAMPLE))
    kinds = kinds_of(scenario, space or {}, trace, scenario.devices)
    run = searched(scenario, kinds, FleetQuestion(top=top, most=scenario.devices, share=share, jobs=jobs), told)
    priced = run.priced
    sizes = [run.done[i] for i in sorted(run.done)]
    meeting = sorted((one for one in sizes if one.found), key=lambda one: _order(one, priced))[:top]
    shown = meeting or sorted((one for one in sizes if one.writers), key=lambda one: -one.figures["attained"])[: min(top, 3)]
    if not shown and sizes and not run.interrupted:
        raise CrossflowError(f"{scenario.name}: no fleet can be built: {sizes[0].kind.name}: {sizes[0].reason}")
    listed = _with_ties([_ranked(scenario, one, i + 1 if meeting else None) for i, one in enumerate(shown)], priced)
    return Fleets(
        scenario=scenario, fleets=listed, share=share, most=scenario.devices, priced=priced, run=run,
        refused=tuple((one.kind, one.reason or _beaten(one, priced, meeting)) for one in sizes if one not in shown),
        notes=tuple(_notes(scenario, run, listed, bool(meeting), share)),
    )  # fmt: skip


def check_of_fleets(objective: str | None, margin: float) -> None:
    """CrossflowError for what orders strategies of a steady state, and fleets do not know."""
    if objective is not None:
        raise CrossflowError(f"objective {objective}: fleets are in order of what they cost; a study with requests searches by any column")
    if margin != MARGIN:
        raise CrossflowError(f"margin {margin:g}: fleets use the memory that the engine takes (software.engine.memory); leave margin out")


def _check(top: int, share: float) -> None:
    if top < 1:
        raise ValueError(f"top: expected at least one fleet, got {top}")
    if not 0.0 < share <= 1.0:
        raise ValueError(f"share: expected a share of requests above 0 and up to 1, got {share:g}")


def _order(one: SizedFleet, priced: bool) -> tuple[float, int, float, float, str]:
    """Cheapest first; of equal ones that with fewer devices, then that with more requests on target, then the faster one."""
    return round(one.cost(priced=priced), 12), one.devices, -one.figures["attained"], one.figures["e2el_s"], one.kind.name


def _beaten(one: SizedFleet, priced: bool, meeting: Sequence[SizedFleet]) -> str:
    if not one.found:
        return f"too few requests are on target even with {one.devices:,} devices: {100 * one.figures['attained']:.1f} %"
    cost = f"{one.rent * HOUR:.4g} USD/hour" if priced else f"{one.devices:,} devices"
    return f"it takes {cost}, more than those listed" if meeting else cost


def _ranked(scenario: Scenario, one: SizedFleet, rank: int | None) -> RankedFleet:
    site = site_of(scenario, one.kind, requests_of(scenario), scenario.devices)
    made = site.scenario_of(one.writers, one.readers)
    return RankedFleet(
        kind=one.kind, rank=rank, writers=one.writers, readers=one.readers, devices=one.devices, rent=one.rent, figures=one.figures,
        power=one.power, trust=trust(made).level, scenario=made,
    )  # fmt: skip


def _with_ties(listed: Sequence[RankedFleet], priced: bool) -> tuple[RankedFleet, ...]:
    """Fleets with those whose cost measured runs cannot tell from theirs: it is in proportion to the times of their steps."""
    costs = [(one.rent if priced else float(one.devices)) if one.rank is not None else math.inf for one in listed]
    near = ties(costs, [likeness(one.scenario) for one in listed], [one.kind.hardware for one in listed])
    names = [None if found is None else tuple(listed[j].name for j in found) for found in near]
    return tuple(replace(one, tied_with=found) for one, found in zip(listed, names, strict=True))


def _notes(scenario: Scenario, run: FleetRun, listed: Sequence[RankedFleet], met: bool, share: float) -> Iterator[str]:
    """Sentences on how far the list can be trusted."""
    yield from slips(scenario)
    if run.interrupted:
        yield f"interrupted: {run.kinds - len(run.done):,} of {run.kinds:,} kinds of engines were not searched"
    if listed and not met:
        yield f"no fleet has {100 * share:g} % of its requests on target; these are the largest, and more devices may help (system.devices)"
    for level in dict.fromkeys(one.trust for one in listed[1:]):
        if level != listed[0].trust:
            names = [one.name for one in listed if one.trust == level]
            yield f"{level}, unlike the first: {'; '.join(names[:3])}{'; and others' if len(names) > 3 else ''}"
