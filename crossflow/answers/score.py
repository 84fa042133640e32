"""Scores: what an evaluation says of each design point, as arrays that can be joined, picked from and tabulated."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from crossflow.answers.bands import LEVELS
from crossflow.base import files
from crossflow.base.arrays import Array, Index, Mask, different, distinct, divide, plain
from crossflow.base.errors import SYNONYMS, CrossflowError, folded
from crossflow.base.packages import pandas
from crossflow.base.results import PlainData, Tabular, later
from crossflow.base.units import KINDS, SUFFIXES, show, show_beyond

if TYPE_CHECKING:
    from crossflow.base.drawing.picture import Picture
else:
    Picture = later("crossflow.base.drawing.picture", "Picture")

OwnFigure = Callable[[Mapping[str, Any]], Any]  # an own figure from columns by name, arrays of shape (n,)
UNIT_SUFFIX = {
    "step_time": "_s", "breakdown": "_s", "communication": "_s", "exposed_communication": "_s", "by_layer": "_s", "bound": "_share",
    "memory": "_bytes", "memory_capacity": "_bytes", "host_memory": "_bytes", "host_capacity": "_bytes",
    "energy": "_j", "power": "_w", "cost": "_usd", "memory_traffic": "_bytes",
    "samples_per_second": "", "tokens_per_second": "",
}  # fmt: skip
PARTS = ("breakdown", "communication", "exposed_communication", "by_layer", "bound", "memory")  # groups of which a point may have no part
OVERFULL_SECOND = "needs {far} of second memory per device, {far_lack} more than its {far_room}"
# Paths whose values have no order, so that no line between two of them means anything.
CHOSEN = ("strategy", "system", "system.template", "software", "workload", "workload.model", "model", "on")
# Fields of which other columns are made, and what is no figure.
UNTOLD = ("reason", "trust", "rent", "normalised_devices", "port_use", "points", "units")
OVERFULL = "needs {needed} of memory per device, {excess} more than its {capacity}"
OVERFULL_HOST = "needs {host} of the host's memory per device, {lack} more than its share of {room}"
UNPREFIXED = ("second", "serving", "operation", "node", "own")  # groups whose names are columns as they are
EXPERTS = ("experts_memory_bytes", "experts_memory_capacity_bytes")  # columns of experts on devices of their own
BUSY = ("attention_busy", "experts_busy")  # shares of a step in which either of two pools works
ITERATION = "job.iteration_time_s"  # column of the time of an iteration of a post-training job
RANKED = (ITERATION, "step_time_s")  # columns by which points are faster
WHOLE_RUN = "run.time_s"  # column by which those of a run are that is interrupted
WHOLE_REQUEST = "e2el_s"  # column by which those of a service in steady state are
INTERRUPTED = "run.goodput"  # column that such runs have
MILLION = "_per_million_"  # between a figure and what it is counted for, samples or tokens
OVERFULLS = (OVERFULL, OVERFULL_HOST, OVERFULL_SECOND)  # sentences of designs that lack nothing but memory
MARGIN = 0.1  # share of memory below which what is left is little: fragments and libraries take some (`bands.NEARLY_FULL`)
CRAMPED = 5.0  # times as long as predicted, at most, that measured runs took which left little memory (docs/validation.md, nanotron)
# Fields of a score that hold figures by name.
_GROUPS = (*PARTS, "architecture", "second", "serving", "operation", "node", "error_band", "run", "job", "points", "units", "own")
_NAMED = {
    "flops": "flop", "intensity_flop_per_byte": "flop/B", "samples_per_second": "1/s", "tokens_per_second": "1/s",
    "tokens_per_second_per_device": "1/s",
}  # fmt: skip
_OF_A_DEVICE = {
    "throughput": "flop/s", "frequency": "Hz", "sustained_frequency": "Hz", "voltage": "V", "temperature": "K", "area": "m2", "power": "W",
    "perimeter": "m", "length": "m", "capacity": "B", "bandwidth": "B/s", "write_bandwidth": "B/s", "cost": "USD", "carbon": "kg",
}  # fmt: skip
_SENTENCES = ("reasons", "notes")  # fields that hold some, not a value a point
TOLD = 4  # settings at most by which a line names a point
FAR = ("second_memory_bytes", "second_memory_capacity_bytes")
_LARGER = (
    "mfu", "hfu", "samples_per_second", "tokens_per_second", "intensity_flop_per_byte", "memory_capacity_bytes", "host_capacity_bytes",
    "second_memory_capacity_bytes", "second_memory_lifetime_s",
    "measured_share", "input_throughput_tokens_per_s", "output_throughput_tokens_per_s", "request_throughput_per_s",
    "attained", "goodput_per_s", "cache_hit_rate",
    "job.samples_per_second", "job.tokens_per_second", "job.tokens_per_second_per_device",
    "run.goodput", "run.goodput_low", "run.goodput_high", "run.mean_time_between_interruptions_s",
)  # fmt: skip
_SMALLER = (
    "architecture.used.",
    "architecture.cost.",
    "architecture.carbon.",
    "architecture.voltage",
    "architecture.temperature",
    "architecture.network.",
)  # figures of a device of which less is better


_FEWER = (".tiers", ".hops", ".switches", ".length")  # of a network level, likewise


@functools.cache
def unit_of(column: str) -> str:
    """SI unit of a column of a score, ``1`` where it has none.

    >>> [unit_of(column) for column in ("breakdown_s.compute", "mfu", "architecture.l2.bandwidth", "usd_per_million_tokens")]
    ['s', '1', 'B/s', 'USD']
    """
    head, *parts = column.removeprefix("run.").removeprefix("job.").removeprefix("phase.").split(".")
    if head == "architecture":
        return next((_OF_A_DEVICE[part] for part in parts if part in _OF_A_DEVICE), "1")
    measured = f"_{head.partition(MILLION)[0]}"
    return _NAMED.get(head) or next((unit for ending, unit in SUFFIXES.items() if measured.endswith(ending)), "1")


SAID = {"e2el_s": "whole request"}  # figures whose names are no words


def words(name: str) -> str:
    """The name of a figure in words, without the unit in it.

    >>> words("step_time_s"), words("device_hours_per_million_tokens"), words("exposed_share")
    ('step time', 'device hours per million tokens', 'exposed')
    """
    if name in SAID:
        return SAID[name]
    head, *amount = name.partition(MILLION)
    ending = next((ending for ending in (*SUFFIXES, "_share") if head.endswith(ending)), "")
    return "".join((head.removesuffix(ending), *amount)).replace("_", " ")


def larger_is_better(column: str) -> bool:
    """Whether an improvement of a column is a larger value: throughputs, use of the peak, and what a device has.

    >>> larger_is_better("mfu"), larger_is_better("step_time_s"), larger_is_better("architecture.l2.bandwidth")
    (True, False, True)
    """
    of_a_device = column.startswith("architecture.") and not column.startswith(_SMALLER) and not column.endswith(_FEWER)
    return column in _LARGER or of_a_device or column.startswith("attained.")


def _seal(values: Iterable[Any]) -> None:
    """Make arrays, and those in mappings, arrays that cannot be written to."""
    for value in values:
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
        elif isinstance(value, Mapping):
            for array in value.values():
                if isinstance(array, np.ndarray):
                    array.setflags(write=False)


@dataclass(frozen=True, kw_only=True)
class Score(PlainData, Tabular):
    """Evaluation of n design points; every array has shape (n,).

    Every column is an attribute and an item too, with its unit in the name: ``score.step_time_s``, ``score["breakdown_s.compute"]``.
    ``score[2]``, ``score[:10]`` and ``score[score.feasible]`` are scores of these points.

    Attributes
    ----------
    step_time : time of one step; also that of a design that does not fit, where it can be computed. [s]
    feasible : whether it can be built and fits in memory.
    reason : index into `reasons` of what makes it infeasible, -1 where nothing does.
    reasons : sentences.
    breakdown : time by kind; the parts add up to `step_time`. [s]
    communication, exposed_communication : time by collective, in all and as far as it lengthens the step. [s]
    by_layer : time of computing, of communication and of what is exposed of that, by layer type on a device of the busiest stage,
        of layered workloads. [s]
    bound : share of the step that each resource bounds; the shares add up to 1. [1]
    memory : bytes of the fullest device by kind. [B]
    memory_capacity : [B]
    host_memory, host_capacity : bytes that the fullest device keeps on its host, and its share of the host's memory, infinite where
        nothing is known of it. [B]
    energy : of one step, all devices. [J]
    power : mean over the step, all devices. [W]
    cost : price of all devices with their packages and network ports; NaN where it is not known. [USD]
    devices : devices in use. [1]
    rent : price of all devices for a time, NaN where it is not known. [USD/s]
    port_use : share of a step in which the bytes that a device sends keep its port between nodes busy. [1]
    normalised_devices : devices over those of the reference (A100) that have their peak rate together. [1]
    parameters : parameters of the model. [1]
    flops : operations of one step, all devices. [flop]
    memory_traffic : bytes that one step reads and writes in main memory, all devices. [B]
    mfu, hfu : operations that the model needs, and those that kernels execute, over what all devices could do at peak; both count
        the attention scores that mask and window leave. [1]
    samples_per_second, tokens_per_second : throughput; tokens are zero where the word has no meaning. [1/s]
    measured_share : share of the time of kernels and collectives that was measured: that a profile gives, or a program states; NaN
        without either. [1]
    architecture : derived figures of one device, in SI units.
    second : figures of the second memory by column: what the fullest device keeps there and its capacity, what all devices read and
        write there in a step, and how long its cells last at that rate; none where devices have none. [B], [s]
    serving : figures of a service by column, such as ``ttft_s``; none of other tasks. [s], [1/s]
    operation : figures of a step that the system's `operation` gives, by column; none where it does not give them.
    node : what a node draws while it runs, ``node_power_w``; none where the system does not say. [W]
    error_band : errors of the measured runs that are most like a point: median and 90th percentile of their size, mean with sign, and
        how many they are; none where nothing of the kind was measured. [1]
    trust : how far a point can be trusted, as a place in `crossflow.answers.bands.LEVELS`; a column of words.
    run : figures of the whole run by name, such as ``time_s``; none where a scenario does not say how long it is. [s], [J], [USD]
    job : figures of an iteration of a post-training job by name, such as ``iteration_time_s``; none where a scenario has no job.
    points : values of the points by path, quantities in SI units; a table has them before its figures, `columns` does not.
    units : SI unit of the quantities among these paths.
    own : figures that a caller computes from columns, by name.
    notes : what readers of all points must know, as sentences.
    """

    step_time: Array
    feasible: Mask
    reason: Index
    reasons: tuple[str, ...]
    breakdown: Mapping[str, Array]
    communication: Mapping[str, Array]
    exposed_communication: Mapping[str, Array]
    by_layer: Mapping[str, Array]
    bound: Mapping[str, Array]
    memory: Mapping[str, Array]
    memory_capacity: Array
    host_memory: Array
    host_capacity: Array
    energy: Array
    power: Array
    cost: Array
    devices: Array
    rent: Array
    normalised_devices: Array
    port_use: Array
    parameters: Array
    flops: Array
    memory_traffic: Array
    mfu: Array
    hfu: Array
    samples_per_second: Array
    tokens_per_second: Array
    measured_share: Array
    trust: Index
    architecture: Mapping[str, Array]
    second: Mapping[str, Array] = field(default_factory=dict)
    serving: Mapping[str, Array] = field(default_factory=dict)
    operation: Mapping[str, Array] = field(default_factory=dict)
    node: Mapping[str, Array] = field(default_factory=dict)
    error_band: Mapping[str, Array] = field(default_factory=dict)
    run: Mapping[str, Array] = field(default_factory=dict)
    job: Mapping[str, Array] = field(default_factory=dict)
    points: Mapping[str, Sequence[Any] | Array] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, Array] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """A score is published: its arrays, of which some are kept for later evaluations too, cannot be written to."""
        _seal(vars(self).values())

    def having(self, **figures: Any) -> Score:
        """The score with other values of some fields, which alone are sealed anew: what `dataclasses.replace` does in more time."""
        found = object.__new__(type(self))
        vars(found).update({**vars(self), **figures})
        _seal(figures.values())
        return found

    def __len__(self) -> int:
        return int(self.step_time.size)

    def __getitem__(self, key: str | int | slice | Sequence[int] | Index | Mask) -> Any:
        if isinstance(key, str):
            columns = self.table()
            if key not in columns:
                raise KeyError(no_column(key, list(columns)))
            return columns[key]
        if isinstance(key, slice):
            return self.take(np.arange(len(self))[key])
        if isinstance(key, int | np.integer):
            return self.take(np.arange(len(self))[[key]])
        return self.take(key)

    def __iter__(self) -> Iterator[Score]:
        return (self.take([i]) for i in range(len(self)))

    def _said(self, name: str, table: Mapping[str, Any]) -> str:
        """A column by its name, without its unit, or by the end of the path that is varied: ``step_time``, ``batch``."""
        if name in table:
            return name
        varied = [path for path in self.points if path.endswith((f".{name}", f"_{name}"))]
        meant = varied or [f"{name}{ending}" for ending in SUFFIXES if f"{name}{ending}" in table]
        if len(meant) != 1:
            raise CrossflowError(no_column(name, list(table)))
        return meant[0]

    def _column(self, name: str) -> Any:
        return self.columns()[name]

    @property
    def best(self) -> Score:
        """The score of the fastest point that fits, of the fastest of all where none does."""
        return self.take([self._fastest])

    @property
    def ranked_times(self) -> Array:
        """Times by which points are faster than others. [s]"""
        held = {ITERATION: self.job, WHOLE_RUN: self.run, WHOLE_REQUEST: self.serving}.get(self.ranked)
        return self.step_time if held is None else np.nan_to_num(held[self.ranked.rpartition(".")[2]], nan=np.inf)

    @property
    def ranked(self) -> str:
        """The column of these times: of a run with phases, an iteration of a job, a run that is interrupted or differs, or else of a step.

        Of a service in steady state that of the whole request: its mean step is shorter where fewer requests write at once.
        """
        if "time_s" in self.run and (any(map(of_run, self.points)) or any(name.startswith("phase.") for name in self.run)):
            return WHOLE_RUN
        if self.job or "goodput" in self.run:
            return ITERATION if self.job else WHOLE_RUN
        return WHOLE_REQUEST if {WHOLE_REQUEST, "prefill_share"} <= self.serving.keys() else "step_time_s"

    @property
    def _fastest(self) -> int:
        times = self.ranked_times
        return int(np.argmin(np.where(self.feasible, times, np.inf) if self.feasible.any() else times))

    @property
    def memory_needed(self) -> Array:
        """Bytes that the fullest device needs. [B]"""
        needed = np.asarray(sum(self.memory.values(), np.zeros(len(self))))
        return np.where(np.isnan(self.memory_capacity), np.nan, needed)

    @property
    def memory_left(self) -> Array:
        """Share of the fullest device's memory that is left, negative where it does not fit; of two pools that of the fuller one. [1]"""
        own = 1.0 - divide(self.memory_needed, self.memory_capacity)
        return np.asarray(np.minimum(own, self.experts_left))

    @property
    def experts_left(self) -> Array:
        """Share of their memory that is left on devices that hold experts alone, infinite where there are none. [1]"""
        if EXPERTS[0] not in self.serving:
            return np.full(len(self), np.inf)
        needed, capacity = (self.serving[name] for name in EXPERTS)
        return 1.0 - divide(needed, capacity)

    @property
    def fits(self) -> Mask:
        """Whether a design fits in the memory of its devices and of their host."""
        main = (self.memory_needed <= self.memory_capacity) & (self.experts_left >= 0)
        return np.asarray(main & (self.host_memory <= self.host_capacity) & (self.far_lacking <= 0))

    @property
    def far_lacking(self) -> Array:
        """What the fullest device lacks of its second memory, negative where it has more than it needs, 0 without one, shape (n,). [B]"""
        needed, capacity = (self.second.get(name, np.zeros(len(self))) for name in FAR)
        return np.asarray(np.nan_to_num(needed - capacity))

    def tight(self, margin: float = MARGIN) -> Mask:
        """Whether a design fits and leaves less than a margin of its memory."""
        return np.asarray(self.feasible & (self.memory_left < margin))

    @property
    def buildable(self) -> Mask:
        """Whether nothing but memory stands against a point."""
        codes = [code for code, sentence in enumerate(self.reasons) if sentence in OVERFULLS]
        return np.asarray(self.feasible | np.isin(self.reason, codes))

    @property
    def hidden_communication(self) -> Array:
        """Time of collectives that does not lengthen the step. [s]"""
        with np.errstate(invalid="ignore"):  # of a step without end
            parts = [np.maximum(sent - self.exposed_communication[name], 0.0) for name, sent in self.communication.items()]
        return np.asarray(sum((np.where(np.isfinite(part), part, 0.0) for part in parts), np.zeros(len(self))))

    @property
    def serialized(self) -> Array:
        """What the step would take with all its communication and computation one after the other, also those of two pools. [s]"""
        return np.asarray(self.step_time + self.hidden_communication + self.hidden_side)

    @property
    def hidden_side(self) -> Array:
        """Time of attention, or of experts on devices of their own, that hides behind the other: all but what this waits for. [s]

        Each pool has hosts of its own, whose time for a step is part of its work.
        """
        busy = [self.serving[name] for name in BUSY if name in self.serving]
        if not busy or "bubble" not in self.breakdown:
            return np.zeros(len(self))
        ends = np.isfinite(self.step_time)
        step, waits = (np.where(ends, each, 0.0) for each in (self.step_time, self.breakdown["bubble"]))
        return np.asarray(np.maximum(np.minimum(*busy) * step - waits, 0.0))

    @property
    def exposed_share(self) -> Array:
        """Share of the time of collectives that lengthens the step, zero where there are none. [1]"""
        hidden, exposed = self.hidden_communication, np.asarray(sum(self.exposed_communication.values(), np.zeros(len(self))))
        ends = np.isfinite(exposed)
        return np.where(ends, divide(np.where(ends, exposed, 0.0), hidden + np.where(ends, exposed, 0.0)), 1.0)

    @property
    def intensity(self) -> Array:
        """Operations per byte of main memory, the computation intensity of the paper's Sec. 2. [flop/B]"""
        return divide(self.flops, self.memory_traffic)

    def per_million(self) -> dict[str, Array]:
        """What a million samples, or tokens where the word has a meaning, cost, by column: device-hours, rent, energy, figures of
        `operation`.

        Energy is that of the devices, as `energy_j` of a step counts it: their power over the rate. [J]
        """
        table: dict[str, Array] = {}
        amounts = {"device_hours": self.devices / 3600.0, "normalised_device_hours": self.normalised_devices / 3600.0, "usd": self.rent}
        amounts["energy_j"] = self.power
        with np.errstate(invalid="ignore"):  # of a step without end
            amounts |= {name: np.where(np.isinf(each), each, each / self.step_time) for name, each in self.operation.items()}
        for what, rate in (("samples", self.samples_per_second), ("tokens", self.tokens_per_second)):
            if what == "tokens" and not rate.any():
                continue
            time = divide(np.full(len(self), 1e6), rate)
            for name, amount in amounts.items():
                if not np.isnan(amount).all():
                    with np.errstate(invalid="ignore"):  # a device that does nothing takes for ever
                        table[f"{name}{MILLION}{what}"] = np.where(np.isfinite(time), time * amount, np.inf)
        return table

    @property
    def bound_by(self) -> list[str]:
        """The resource that bounds the largest share of each point's step."""
        names, shares = ["-", *self.bound], np.stack([np.full(len(self), 1e-300), *self.bound.values()])  # nothing bounds no scenario
        return [names[i] for i in shares.argmax(axis=0)]

    def bound_at(self, point: int) -> str:
        """The same of one point, without a look at the others."""
        shares = {"-": 1e-300, **{name: float(values[point]) for name, values in self.bound.items()}}
        return max(shares, key=lambda name: shares[name])

    @property
    def trusted(self) -> list[str]:
        """How far each point can be trusted, in a word."""
        return [LEVELS[level] for level in self.trust.tolist()]

    def why(self, point: int = 0) -> str | None:
        """What makes a point infeasible, with its numbers; None where nothing does."""
        code = int(self.reason[point])
        return None if code < 0 else self._sentence(code, point, self.memory_needed)

    def _sentence(self, code: int, point: int, memory_needed: Array) -> str:
        """One of `reasons` with the numbers of a point."""
        needed, capacity = float(memory_needed[point]), float(self.memory_capacity[point])
        host, room = float(self.host_memory[point]), float(self.host_capacity[point])
        far, far_room = (float(self.second[name][point]) if name in self.second else 0.0 for name in FAR)
        return self.reasons[code].format(
            needed=show_beyond(needed, capacity, "B"),
            capacity=show(capacity, "B"),
            excess=show(needed - capacity, "B"),
            host=show_beyond(host, room, "B"),
            room=show(room, "B"),
            lack=show(host - room, "B"),
            far=show_beyond(far, far_room, "B"),
            far_room=show(far_room, "B"),
            far_lack=show(far - far_room, "B"),
        )

    def _reasons(self) -> list[str | None]:
        """Why each point is infeasible; points whose sentence names no figure share it, and so do those that share their figures."""
        found = np.full(len(self), None, dtype=object)
        needed = self.memory_needed
        figures = np.stack([needed, self.memory_capacity, self.host_memory, self.host_capacity, *self.second.values()])
        for code in different(self.reason[self.reason >= 0]):
            rows = np.flatnonzero(self.reason == code)
            if "{" in self.reasons[code]:
                first, which = distinct(figures[:, rows])
                sentences = [self._sentence(code, i, needed) for i in rows[first].tolist()]
                found[rows] = np.array(sentences, dtype=object)[which]
            else:
                found[rows] = self.reasons[code].format()
        return found.tolist()

    def columns(self) -> dict[str, Any]:
        """Flat table of all figures: name with unit -> values, groups joined by a dot."""
        table: dict[str, Any] = {}
        for entry in fields(self):
            value, name = getattr(self, entry.name), entry.name + UNIT_SUFFIX.get(entry.name, "")
            if entry.name in UNTOLD:
                continue
            if isinstance(value, Mapping):
                prefix = "" if entry.name in UNPREFIXED else f"{name}."
                table |= {f"{prefix}{key}": array for key, array in value.items()}
            elif isinstance(value, np.ndarray):
                table[name] = value
        if np.isnan(self.measured_share).all():
            del table["measured_share"]
        if self.communication or not self.feasible.any():  # of replays nothing is known of either
            table |= {
                "serialized_s": self.serialized,
                "hidden_communication_s": self.hidden_communication,
                "exposed_share": self.exposed_share,
            }
        table["intensity_flop_per_byte"] = self.intensity
        table |= self.per_million()
        table["memory_needed_bytes"] = self.memory_needed
        table["bound_by"] = self.bound_by
        table["trust"] = self.trusted
        table["reason"] = self._reasons()
        return table

    def with_figures(self, figures: Mapping[str, OwnFigure]) -> Score:
        """The score with own figures as further columns: each a function of its columns by name, as arrays of shape (n,).

        Raises
        ------
        CrossflowError
            For a name that is a column already, a column that a function misses, and a result of another shape.
        """
        columns, found = self.columns(), dict(self.own)
        for name, function in figures.items():
            if name in columns:
                raise CrossflowError(f"{name} is a column of every score; give the figure another name")
            found[name] = columns[name] = _own(name, function, columns, len(self))
        return replace(self, own=found)

    def table(self) -> dict[str, Any]:
        """Values of the points by path, then all columns."""
        points = {path: values if isinstance(values, np.ndarray) else list(map(told, values)) for path, values in self.points.items()}
        return {**points, **self.columns()}

    def to_dict(self) -> dict[str, Any]:
        """Plain data: every column as a list."""
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in self.columns().items()}

    def to_json(self, path: str | Path | None = None) -> str:
        """The data of `to_dict` as JSON, which has no infinity: null stands for a value that no design reaches."""
        text = files.json_text({name: [plain(value) for value in values] for name, values in self.to_dict().items()})
        if path is not None:
            files.write_text(Path(path), text)
        return text

    def to_frame(self) -> Any:
        """Table as a pandas DataFrame, which must be installed: the values of the points, then every column, in SI units.

        The units stand in ``frame.attrs["units"]``, by column.

        >>> import crossflow
        >>> scenario = crossflow.from_dict({"system": "dgx-h100", "workload": "llama3-8b", "strategy": "tp8"})
        >>> score = crossflow.evaluate(scenario, {"workload.global_batch": [8, 16]})
        >>> list(score.to_frame().columns[:2])  # doctest: +SKIP
        ['workload.global_batch', 'step_time_s']
        """
        frame = pandas().DataFrame(self.table())
        frame.attrs["units"] = {name: self.unit_of(name) for name in frame.columns}
        return frame

    def unit_of(self, name: str) -> str:
        """SI unit of a column of the table, ``1`` where it has none."""
        return self.units.get(name) or ("1" if name in self.points else unit_of(name))

    def take(self, points: Sequence[int] | Index | Mask) -> Score:
        """The score of some of the points, by their numbers or by a mask."""
        chosen = np.asarray(points)
        index = np.flatnonzero(chosen) if chosen.dtype == bool else chosen.astype(np.intp)
        kept: dict[str, Any] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, np.ndarray):
                kept[entry.name] = value[index]
            elif isinstance(value, Mapping):
                kept[entry.name] = value if entry.name == "units" else {name: _picked(values, index) for name, values in value.items()}
        return Score(**kept, reasons=self.reasons, notes=self.notes)

    def plot(self, x: str | None = None, y: str = "step_time_s", *, by: str | None = None) -> Picture:
        """Draw a column over another column, or over values of the points; marker shapes say what bounds a point.

        Parameters
        ----------
        x : path of the points, or column; the first path of which values differ where absent.
        y : column of numbers.
        by : path or column whose values are lines of their own, or colours over names without an order, such as strategies; the next
            path of which values differ where absent and `x` is a path.

        Raises
        ------
        CrossflowError
            For names that the table does not have.

        Examples
        --------
        >>> import crossflow
        >>> scenario = crossflow.from_dict({"system": "dgx-h100", "workload": "llama3-8b", "strategy": "tp8"})
        >>> crossflow.sweep(scenario, {"workload.global_batch": [8, 16, 32]}).plot(y="tokens_per_second")
        Picture(6.4 x 4.5 inches; save(path) writes it)
        """
        from crossflow.base.drawing.charts import Along, points_chart

        table = self.table()
        free = [path for path, values in self.points.items() if len(set(map(str, values))) > 1]
        across, y = (self._said(name, table) for name in (x or next(iter(free), "step_time_s"), y))
        swept = across in self.points or x is None  # a column over another one is of all points alike
        lines = by or (next((path for path in free if path not in (across, y)), None) if swept else None)
        lines = self._said(lines, table) if lines else None
        along, heights = (Along(self._titled(name), table[name], self.unit_of(name)) for name in (across, y))
        series = None if lines is None else Along(self._titled(lines), table[lines], self.unit_of(lines))
        title = f"{heights.name} over {along.name[:1].lower()}{along.name[1:]}"
        marks = {"bound": table["bound_by"], "feasible": self.feasible}
        return points_chart(title, along, heights, series=series, joined=across in self.points and across not in CHOSEN, **marks)

    def _titled(self, name: str) -> str:
        """What a column, or a path by its last part, is called at an axis; a column of the user's own as the user calls it."""
        said = name if name in self.own else words(name.rpartition(".")[2])
        return said[:1].upper() + said[1:]

    def _repr_html_(self) -> str:
        from crossflow.base.drawing import html
        from crossflow.base.drawing.charts import written

        table = self.table()
        names = [*self.points, "step_time_s", "feasible", "bound_by", "mfu", "memory_needed_bytes", *self.own]
        names += ["reason"] if not self.feasible.all() else []
        rows = ([written(table[name][i], self.unit_of(name)) for name in names] for i in range(min(len(self), html.MOST)))
        more = f"<div>{len(self) - html.MOST:,} more points; to_frame() has all of them</div>" if len(self) > html.MOST else ""
        return html.text(repr(self)) + html.table(names, rows) + more + "".join(html.text(note) for note in self.notes)

    def __repr__(self) -> str:
        if not len(self):
            return "Score(0 points)"
        best = self._fastest
        points = "1 point" if len(self) == 1 else f"{len(self):,} points"
        settings = [f"{name} = {values[best]}" for name, values in self.points.items()]
        which = ", ".join([*(settings if len(settings) <= TOLD else []), f"point {best} counted from 0"])
        of_many = f" ({which})" if len(self) > 1 else ""
        if not self.feasible[best]:
            return f"Score({points}, 0 feasible; the fastest{of_many}: {self.why(best)})"
        return f"Score({points}, {int(self.feasible.sum())} feasible, fastest {show(float(self.ranked_times[best]), 's')}{of_many})"


def taken(cost: Array, tight: Mask) -> int:
    """Place of the plan to take among those that fit, the best first: the first that leaves a margin of memory.

    A tight one where that is worse by more than `CRAMPED` times: measured runs that left little memory were slower by less.

    Parameters
    ----------
    cost : what plans are ordered by, the smallest first; negative where larger figures are better.
    tight : which of them leave little.

    >>> taken(np.array([1.0, 4.0]), np.array([True, False])), taken(np.array([1.0, 6.0]), np.array([True, False]))
    (1, 0)
    """
    room = np.flatnonzero(~tight)
    if not len(room):
        return 0
    best, other = float(cost[0]), float(cost[room[0]])
    worse = other > CRAMPED * best if best > 0 else best < CRAMPED * other
    return 0 if worse else int(room[0])


def of_run(path: str) -> bool:
    """Whether a setting is of a whole run: it leaves a step as it is.

    >>> of_run("run.spares"), of_run("workload.global_batch")
    (True, False)
    """
    return path.partition(".")[0] == "run"


def money(score: Score, point: int) -> dict[str, float]:
    """Prices of a point that are known, by column. [USD]"""
    columns = {"cost_usd": score.cost, **{name: value for name, value in score.per_million().items() if name.startswith("usd_")}}
    return {name: float(value[point]) for name, value in columns.items() if np.isfinite(value[point])}


def told(value: Any) -> Any:
    """A value of a point in a table: names and numbers as they are, what has parts as text."""
    return value if value is None or isinstance(value, str | bool | int | float | np.generic) else str(value)


def _picked(values: Any, index: Index) -> Any:
    return values[index] if isinstance(values, np.ndarray) else tuple(values[i] for i in index)


def _own(name: str, function: OwnFigure, columns: Mapping[str, Any], n: int) -> Array:
    """Values of an own figure."""
    try:
        with np.errstate(all="ignore"):  # infeasible points hold inf and NaN
            values = np.asarray(function(columns), dtype=float)
    except KeyError as error:
        raise CrossflowError(f"{name}: {no_column(str(error.args[0]), list(columns))}") from None
    except (TypeError, ValueError) as error:
        raise CrossflowError(f"{name}: the function of this figure fails: {error}") from None
    if values.shape not in ((n,), (1,), ()):
        raise CrossflowError(f"{name}: its function gives an array of shape {values.shape}; expected ({n},), a value a point")
    return np.array(np.broadcast_to(values, (n,)))


def refused(reasons: Sequence[str]) -> Score:
    """Score of points that make no scenario, for a reason each: a step without end, and no other figure."""
    n, sentences = len(reasons), [reason.replace("{", "{{").replace("}", "}}") for reason in reasons]
    known = tuple(dict.fromkeys(sentences))
    nothing: dict[str, Any] = {
        entry.name: {} if entry.name in _GROUPS else np.full(n, np.nan) for entry in fields(Score) if entry.name not in _SENTENCES
    }
    nothing |= {"step_time": np.full(n, np.inf), "feasible": np.zeros(n, dtype=bool)}
    nothing |= {"trust": np.zeros(n, dtype=int), "samples_per_second": np.zeros(n), "tokens_per_second": np.zeros(n)}
    return Score(**{**nothing, "reason": np.array([known.index(sentence) for sentence in sentences]), "reasons": known})


def scatter(parts: Sequence[tuple[Index, Score]], n: int) -> Score:
    """One score of n points from scores of subsets, each with the indices of its points."""
    if len(parts) == 1 and np.array_equal(parts[0][0], np.arange(n)):
        return parts[0][1]
    reasons = tuple(dict.fromkeys(sentence for _, part in parts for sentence in part.reasons))
    merged: dict[str, Any] = {}
    for entry in fields(Score):
        if entry.name in _SENTENCES:
            merged[entry.name] = tuple(dict.fromkeys(sentence for _, part in parts for sentence in getattr(part, entry.name)))
        elif entry.name == "reason":
            codes = np.full(n, -1)
            for index, part in parts:
                renumber = np.array([*(reasons.index(sentence) for sentence in part.reasons), -1])
                codes[index] = renumber[part.reason]
            merged["reason"] = codes
        elif isinstance(getattr(parts[0][1], entry.name), Mapping):
            names, nothing = dict.fromkeys(name for _, part in parts for name in getattr(part, entry.name)), _nothing(entry.name)
            merged[entry.name] = {
                name: _placed([(index, getattr(part, entry.name).get(name, nothing)) for index, part in parts], n) for name in names
            }
        else:
            merged[entry.name] = _placed([(index, getattr(part, entry.name)) for index, part in parts], n)
    return Score(**merged)


def _placed(parts: Sequence[tuple[Index, Any]], n: int) -> Any:
    whole = np.zeros(n, dtype=np.result_type(*(np.asarray(values).dtype for _, values in parts)))
    for index, values in parts:
        whole[index] = values
    return whole


def _nothing(group: str) -> float:
    """What a point has of a figure that its score lacks: no share of a whole, else no value."""
    return 0.0 if group in PARTS else np.nan


def absent(column: str) -> float:
    """What a point has in a column that its score lacks.

    >>> absent("communication_s.all_reduce"), absent("ttft_s"), absent("device_hours_per_million_samples")
    (0.0, nan, inf)
    """
    if MILLION in column:  # only a point that no scenario can be made of counts nothing; it never ends
        return np.inf
    head = column.split(".")[0]
    return next((_nothing(group) for group in PARTS if group + UNIT_SUFFIX[group] == head), np.nan)


# ------------------------------------------------------------------------------------------ names that are no column


def no_column(name: str, known: Sequence[str]) -> str:
    """Sentence about a name that is no column, with the closest one that is.

    >>> no_column("serving.ttft_s", ["step_time_s", "ttft_s"])
    "no column 'serving.ttft_s'; did you mean 'ttft_s'?"
    """
    return f"no column '{name}'" + "".join(f"; did you mean '{found}'?" for found in close(name, known)[:1])


def close(name: str, known: Sequence[str]) -> list[str]:
    """Known columns that a name may stand for, the likeliest first: by what it means, by the whole name, or by its part after the last dot.

    >>> close("latency", ["step_time_s", "ttft_s"]), close("speed", ["mfu", "tokens_per_second"])
    (['step_time_s'], ['tokens_per_second'])
    """
    called = [one for one in SYNONYMS.get(folded(name), ()) if one in known]
    whole, last = (difflib.get_close_matches(word, known, n=3) for word in (name, name.rpartition(".")[2]))
    grouped = any(other.startswith(f"{name.partition('.')[0]}.") for other in known)
    return list(dict.fromkeys(called + (whole + last if grouped else last + whole)))


def listed(names: Sequence[str], known: Sequence[str]) -> str:
    """Known columns on lines of their own, the close ones to some names first, the others by kind.

    >>> print(listed(["run.cost"], ["step_time_s", "ttft_s", "mfu", "run.time_s", "run.cost_usd"]))
      close: run.cost_usd
      times: step_time_s, ttft_s
      others: mfu
      run.*: time_s
    """
    near = list(dict.fromkeys(other for name in names for other in close(name, known)))
    kinds: dict[str, list[str]] = {}
    for name in (other for other in known if other not in near):
        head, dot, part = name.partition(".")
        kind = "cost" if MILLION in name else KINDS.get(unit_of(name), "others")
        kinds.setdefault(f"{head}.*" if dot else kind, []).append(part or name)
    ordered = {**({"close": near} if near else {}), **dict(sorted(kinds.items(), key=lambda pair: pair[0].endswith(".*")))}
    return "\n".join(f"  {kind}: {', '.join(held)}" for kind, held in ordered.items())
