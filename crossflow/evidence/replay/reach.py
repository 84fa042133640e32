"""Kernels of a trace against the model of a device: what they lose, and what a step takes with the model's times or on another device."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from crossflow.base.arrays import Array, Index
from crossflow.base.errors import CrossflowError, did_you_mean
from crossflow.cost.ranks import SystemDelays
from crossflow.evidence.replay.collectives import process_group, traced_collectives
from crossflow.evidence.replay.graph import StepGraph
from crossflow.evidence.replay.modelled import (
    BETWEEN,
    WorkUnits,
    device_architecture,
    device_of,
    modelled_times,
    reused,
    units_of,
    work_times,
)
from crossflow.program.collectives import COLLECTIVES, PRICED
from crossflow.program.embedding.reuse import Reuse
from crossflow.program.kernels import Lookup

KernelSource = Literal["trace", "model", "both"]  # where the times of kernels in a replay come from
SOURCES: tuple[KernelSource, ...] = get_args(KernelSource)


@dataclass(frozen=True, kw_only=True)
class KernelLoss:
    """Kernels of one sort against the model.

    Attributes
    ----------
    kind : what they do.
    operation, kernel : that ran them, and their short name; both "" of all kernels of a kind.
    count : how many. [1]
    measured, modelled : their time in the trace and by the model. [s]
    """

    kind: str
    operation: str = ""
    kernel: str = ""
    count: int
    measured: float
    modelled: float

    @property
    def lost(self) -> float:
        """What they take beyond the model. [s]"""
        return self.measured - self.modelled

    @property
    def error(self) -> float:
        """Of the model, over what was measured. [1]"""
        return self.modelled / self.measured - 1.0 if self.measured else 0.0


@dataclass(frozen=True, kw_only=True)
class UnmodelledKernels:
    """Kernels and copies that the model says nothing of: of which operation, why, how many and their time. [1], [s]"""

    operation: str
    reason: str
    count: int
    measured: float


@dataclass(frozen=True, kw_only=True, eq=False)
class KernelModel:
    """The kernels of all ranks of a trace and the model of a device.

    Attributes
    ----------
    graph : of the trace.
    device : template of its device.
    reuse : how often rows of tables are hit, None where indices are drawn evenly.
    """

    graph: StepGraph
    device: str
    reuse: Reuse | None = None

    @functools.cached_property
    def units(self) -> WorkUnits:
        """What the works do."""
        return units_of(self.graph)

    @functools.cached_property
    def measured(self) -> Array:
        """Time of every work in the trace, shape (works,). [s]"""
        return np.concatenate([trace.works.end - trace.works.start for trace in self.graph.traces])

    @functools.cached_property
    def units_measured(self) -> Array:
        """Time of every unit in the trace, shape (units,). [s]"""
        return np.array([self.measured[list(unit.works)].sum() for unit in self.units.units])

    def modelled(self, device: str) -> Array:
        """Time of every unit on a device, nan where it is not modelled, shape (units,). [s]"""
        return self.priced(self.units, device)

    def priced(self, units: WorkUnits, device: str) -> Array:
        """Time of some units on a device, nan where they are not modelled, shape (units,). [s]"""
        return modelled_times(units, device_architecture(device), self.reuse)

    @property
    def lookups(self) -> str:
        """What look-ups rest on, as a sentence; "" where there are none."""
        parts = [unit.part for unit in self.units.units if any(isinstance(one, Lookup) for one in unit.part.kernels)]
        if not parts:
            return ""
        if self.reuse is None:
            return "a trace has no indices: look-ups draw evenly from the rows of a table; --reuse says how often rows are hit"
        hit = sum(reused(part, self.reuse) != part for part in parts)
        rest = "" if hit == len(parts) else "; the tables of the others have fewer rows than they hit, and are drawn from evenly"
        return f"the reuse factors that were given hold for {hit} of {len(parts)} kernels of look-ups{rest}"

    @functools.cached_property
    def here(self) -> Array:
        """The same on the device of the trace."""
        return self.modelled(self.device)

    @functools.cached_property
    def share(self) -> float:
        """Share of the time of kernels and copies, collectives aside, that is modelled. [1]"""
        whole = self.measured[~self.graph.collective].sum()
        return float(self.units_measured[np.isfinite(self.here)].sum() / whole) if whole > 0 else 0.0

    @functools.cached_property
    def losses(self) -> tuple[KernelLoss, ...]:
        """Kernels by operation and name, those that lose most first."""
        found = self._sums([(unit.part.kind, unit.name, unit.kernels) for unit in self.units.units])
        return tuple(sorted(found, key=lambda one: -one.lost))

    @functools.cached_property
    def kinds(self) -> tuple[KernelLoss, ...]:
        """Kernels by what they do, those that take most first."""
        return tuple(sorted(self._sums([(unit.part.kind, "", "") for unit in self.units.units]), key=lambda one: -one.measured))

    def _sums(self, keys: Sequence[tuple[str, str, str]]) -> Iterator[KernelLoss]:
        """Sums over the modelled units of every kind, operation and kernel."""
        members: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        for place, key in enumerate(keys):
            if np.isfinite(self.here[place]):
                members[key].append(place)
        for (kind, operation, kernel), mine in members.items():
            yield KernelLoss(
                kind=kind, operation=operation, kernel=kernel, count=sum(len(self.units.units[place].works) for place in mine),
                measured=float(self.units_measured[mine].sum()), modelled=float(self.here[mine].sum()),
            )  # fmt: skip

    @functools.cached_property
    def unmodelled(self) -> tuple[UnmodelledKernels, ...]:
        """What is not modelled, by operation and reason, that which takes most first."""
        members: dict[tuple[str, str], list[int]] = defaultdict(list)
        for work, why in self.units.reasons.items():
            members[why].append(work)
        for place in np.flatnonzero(~np.isfinite(self.here)).tolist():
            unit = self.units.units[place]
            members[unit.name, f"{self.device} has no products in {unit.part.dtype}"] += unit.works
        found = (
            UnmodelledKernels(operation=operation, reason=reason, count=len(works), measured=float(self.measured[works].sum()))
            for (operation, reason), works in members.items()
        )
        return tuple(sorted(found, key=lambda one: -one.measured))


def kernel_model(graph: StepGraph, device: str = "", needed: str = "", reuse: Reuse | None = None) -> KernelModel | None:
    """The model of the kernels of a trace, None where no template of its device is shipped.

    Parameters
    ----------
    device : template of the device, that of the name in the trace where empty.
    needed : what asks for the model, for the message where there is none.
    reuse : how often rows of embedding tables are hit.

    Raises
    ------
    CrossflowError
        Where a device that is named does not exist, or the model is needed and there is none.
    """
    found = device or device_of(graph.traces)
    if found is not None:
        device_architecture(found, "--device")
        return KernelModel(graph=graph, device=found, reuse=reuse)
    if needed:
        named = graph.traces[0].device
        said = f"no template is shipped of the device '{named}'" if named else "the trace does not name its device"
        raise CrossflowError(f"{needed} needs a model of the device of the trace, but {said}; name one that `list` gives with --device")
    return None


# -------------------------------------------------------------------------------------------- times of a replay


def replaced(model: KernelModel, source: str, on: str = "") -> tuple[Array, tuple[str, ...]]:
    """Time of every work in a replay, shape (works,), and what it is made of, as sentences. [s]

    Kernels take the time of the trace, or the model's, or both: the model's, times what the trace measured over what the model says of
    all kernels of that kind. On another device, those of the trace take their measured time times the model's on that device over the
    model's here; what is not modelled goes with the bandwidth of main memory, but for copies between host and device. There, collectives
    take the time of its network where the trace says their bytes and ranks.

    Parameters
    ----------
    source : one of `SOURCES`.
    on : another device or system, the device of the trace where empty.
    """
    if source not in SOURCES:
        raise CrossflowError(f"expected one of {', '.join(SOURCES)} as kernel times, got '{source}'{did_you_mean(source, SOURCES)}")
    units, here = model.units_measured, model.here
    there = model.modelled(on) if on else here
    scale = _by_kind(model) if source == "both" else np.ones(len(here))
    ratio = np.divide(there, here, out=np.ones(len(here)), where=here != 0)
    wanted = units * ratio if source == "trace" else there * scale
    known = np.isfinite(wanted) & np.isfinite(here)
    found = work_times(model.units, np.where(known, wanted, np.nan), model.measured)
    rest = np.flatnonzero(~np.isfinite(found) & ~model.graph.collective)
    found[rest] = model.measured[rest] * _slower(model, rest, on)
    found[model.graph.collective] = model.graph.time[model.graph.collective]
    notes = [_told(model, source, on, float(units[known].sum()))]
    if on:
        notes += _networked(model.graph, on, found)
    return found, tuple(notes)


def _by_kind(model: KernelModel) -> Array:
    """Measured over modelled time of all kernels of the kind of every unit, shape (units,). [1]"""
    scale = {one.kind: one.measured / one.modelled if one.modelled else 1.0 for one in model.kinds}
    return np.array([scale.get(unit.part.kind, 1.0) for unit in model.units.units])


def _slower(model: KernelModel, works: Index, on: str) -> Array:
    """How many times longer works take on another device that are not modelled: as its memory is slower, copies to it as long."""
    if not on:
        return np.ones(len(works))
    here, there = (float(device_architecture(name).memory.bandwidth[0]) for name in (model.device, on))
    stays = [model.units.reasons.get(work, ("", ""))[1] == BETWEEN for work in works.tolist()]
    return np.where(stays, 1.0, here / there)


def _told(model: KernelModel, source: str, on: str, known: float) -> str:
    whole = float(model.measured[~model.graph.collective].sum())
    share, place = f"{known / whole if whole else 0.0:.0%} of the time of kernels and copies", on or model.device
    times = {
        "trace": f"is measured and scaled by the model of {on} over that of {model.device}",
        "model": f"is the model's of {place}",
        "both": f"is the model's of {place}, scaled for each kind of kernel to what the trace measured",
    }[source]
    rest = "goes with the bandwidth of memory; copies between host and device, and the host, are as measured" if on else "is measured"
    return f"{share} {times}; the rest {rest}"


def _networked(graph: StepGraph, on: str, times: Array) -> Iterable[str]:
    """Give collectives the time of a system's network, as far as it and the trace say what they take."""
    if not graph.collective.any():
        return
    world = max(len(graph.traces), *(trace.world for trace in graph.traces))
    network, priced = SystemDelays.of(on, world), 0
    partners = {work: list(meeting.works) for meeting in graph.meetings for work in meeting.works}
    for rank, edges in enumerate(graph.edges):
        for work, one in traced_collectives(edges).items():
            _, group = process_group(edges.trace.works.args[work])
            ranks = group or tuple(range(one.ranks))
            if not math.isfinite(one.size) or len(ranks) < 2 or (one.op not in COLLECTIVES and one.op not in PRICED):
                continue
            time = network.time(one.op, one.size, ranks)[0]
            if math.isfinite(time):
                place = int(graph.first[rank]) + work
                times[partners.get(place, [place])] = time
                priced += 1
    left = int(graph.collective.sum()) - priced
    if priced:
        yield f"{priced} collectives take the time of the network of {on}, and wait for the ranks that were read"
    if left:
        yield f"{left} collectives keep their times: the trace does not say their bytes and ranks, or {on} has no network"


def summary(model: KernelModel | None, largest: int) -> Mapping[str, object]:
    """Plain data of what kernels lose, times in s."""
    if model is None:
        return {"device_template": None, "modelled_share": 0.0, "losses": [], "kernel_kinds": [], "not_modelled": []}
    return {
        "device_template": model.device,
        "modelled_share": model.share,
        "losses": [_plain(one) for one in model.losses[:largest] if one.lost > 0],
        "kernel_kinds": [_plain(one) for one in model.kinds],
        "not_modelled": [
            {"operation": one.operation, "reason": one.reason, "count": one.count, "measured_s": one.measured}
            for one in model.unmodelled[:largest]
        ],
    }


def _plain(one: KernelLoss) -> Mapping[str, object]:
    named = {"operation": one.operation, "kernel": one.kernel} if one.operation else {}
    times = {"measured_s": one.measured, "modelled_s": one.modelled, "lost_s": one.lost, "error": one.error}
    return {"kind": one.kind, **named, "count": one.count, **times}
