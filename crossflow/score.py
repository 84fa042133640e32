"""Scores: what an evaluation says of each design point, as arrays that can be joined, picked from and tabulated."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from crossflow.arrays import Array, Index, Mask, divide
from crossflow.units import KINDS, SUFFIXES, show

UNIT_SUFFIX = {
    "step_time": "_s", "breakdown": "_s", "communication": "_s", "exposed_communication": "_s", "by_layer": "_s", "bound": "_share",
    "memory": "_bytes", "memory_capacity": "_bytes", "host_memory": "_bytes", "host_capacity": "_bytes",
    "energy": "_j", "power": "_w", "cost": "_usd", "memory_traffic": "_bytes",
    "samples_per_second": "", "tokens_per_second": "",
}  # fmt: skip
PARTS = ("breakdown", "communication", "exposed_communication", "by_layer", "bound", "memory")  # groups of which a point may have no part
UNTOLD = ("reason", "rent", "normalised_devices")  # of which other columns are made
OVERFULL = "needs {needed} of memory per device but has {capacity}: {excess} too much ({over} times the capacity)"
OVERFULL_HOST = "needs {host} of the host's memory per device but has {room}: {lack} too much"
UNPREFIXED = ("serving", "operation", "node")  # groups whose names are columns as they are
MILLION = "_per_million_"  # between a figure and what it is counted for, samples or tokens
_NAMED = {
    "flops": "flop", "intensity_flop_per_byte": "flop/B", "samples_per_second": "1/s", "tokens_per_second": "1/s",
}  # fmt: skip
_OF_A_DEVICE = {
    "throughput": "flop/s", "frequency": "Hz", "sustained_frequency": "Hz", "voltage": "V", "area": "m2", "power": "W",
    "perimeter": "m", "capacity": "B", "bandwidth": "B/s", "cost": "USD", "carbon": "kg",
}  # fmt: skip
_LARGER = (
    "mfu", "hfu", "samples_per_second", "tokens_per_second", "intensity_flop_per_byte", "memory_capacity_bytes", "host_capacity_bytes",
    "measured_share", "input_throughput_tokens_per_s", "output_throughput_tokens_per_s", "request_throughput_per_s",
)  # fmt: skip
_SMALLER = (
    "architecture.used.",
    "architecture.cost.",
    "architecture.carbon.",
    "architecture.voltage",
)  # figures of a device of which less is better


@functools.cache
def unit_of(column: str) -> str:
    """SI unit of a column of a score, ``1`` where it has none.

    >>> [unit_of(column) for column in ("breakdown_s.compute", "mfu", "architecture.l2.bandwidth", "usd_per_million_tokens")]
    ['s', '1', 'B/s', 'USD']
    """
    head, *parts = column.removeprefix("run.").split(".")
    if head == "architecture":
        return next((_OF_A_DEVICE[part] for part in parts if part in _OF_A_DEVICE), "1")
    measured = f"_{head.partition(MILLION)[0]}"
    return _NAMED.get(head) or next((unit for ending, unit in SUFFIXES.items() if measured.endswith(ending)), "1")


def words(name: str) -> str:
    """The name of a figure in words, without the unit in it.

    >>> words("step_time_s"), words("device_hours_per_million_tokens"), words("exposed_share")
    ('step time', 'device hours per million tokens', 'exposed')
    """
    head, *amount = name.partition(MILLION)
    ending = next((ending for ending in (*SUFFIXES, "_share") if head.endswith(ending)), "")
    return "".join((head.removesuffix(ending), *amount)).replace("_", " ")


def larger_is_better(column: str) -> bool:
    """Whether an improvement of a column is a larger value: throughputs, use of the peak, and what a device has.

    >>> larger_is_better("mfu"), larger_is_better("step_time_s"), larger_is_better("architecture.l2.bandwidth")
    (True, False, True)
    """
    return column in _LARGER or (column.startswith("architecture.") and not column.startswith(_SMALLER))


@dataclass(frozen=True, kw_only=True)
class Score:
    """Evaluation of n design points; every array has shape (n,).

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
    serving : figures of a service by column, such as ``ttft_s``; none of other tasks. [s], [1/s]
    operation : figures of a step that the system's `operation` gives, by column; none where it does not give them.
    node : what a node draws while it runs, ``node_power_w``; none where the system does not say. [W]
    error_band : errors of the measured runs that are most like a point: median and 90th percentile of their size, mean with sign, and
        how many they are; none where nothing of the kind was measured. [1]
    run : figures of the whole run by name, such as ``time_s``; none where a scenario does not say how long it is. [s], [J], [USD]
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
    parameters: Array
    flops: Array
    memory_traffic: Array
    mfu: Array
    hfu: Array
    samples_per_second: Array
    tokens_per_second: Array
    measured_share: Array
    architecture: Mapping[str, Array]
    serving: Mapping[str, Array] = field(default_factory=dict)
    operation: Mapping[str, Array] = field(default_factory=dict)
    node: Mapping[str, Array] = field(default_factory=dict)
    error_band: Mapping[str, Array] = field(default_factory=dict)
    run: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """A score is published: its arrays, of which some are kept for later evaluations too, cannot be written to."""
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
            elif isinstance(value, Mapping):
                for array in value.values():
                    array.setflags(write=False)

    def __len__(self) -> int:
        return int(self.step_time.size)

    @property
    def memory_needed(self) -> Array:
        """Bytes that the fullest device needs. [B]"""
        return np.asarray(sum(self.memory.values(), np.zeros(len(self))))

    @property
    def buildable(self) -> Mask:
        """Whether nothing but memory stands against a point."""
        codes = [code for code, sentence in enumerate(self.reasons) if sentence in (OVERFULL, OVERFULL_HOST)]
        return np.asarray(self.feasible | np.isin(self.reason, codes))

    @property
    def hidden_communication(self) -> Array:
        """Time of collectives that does not lengthen the step. [s]"""
        with np.errstate(invalid="ignore"):  # of a step without end
            parts = [np.maximum(sent - self.exposed_communication[name], 0.0) for name, sent in self.communication.items()]
        return np.asarray(sum((np.where(np.isfinite(part), part, 0.0) for part in parts), np.zeros(len(self))))

    @property
    def serialized(self) -> Array:
        """What the step would take with all its communication and computation one after the other. [s]"""
        return np.asarray(self.step_time + self.hidden_communication)

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
        """What a million samples, or tokens where the word has a meaning, cost, by column: device-hours, rent, figures of `operation`."""
        table: dict[str, Array] = {}
        amounts = {"device_hours": self.devices / 3600.0, "normalised_device_hours": self.normalised_devices / 3600.0, "usd": self.rent}
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
        names = list(self.bound)
        return [names[i] for i in np.stack(list(self.bound.values())).argmax(axis=0)]

    def why(self, point: int = 0) -> str | None:
        """What makes a point infeasible, with its numbers; None where nothing does."""
        code = int(self.reason[point])
        if code < 0:
            return None
        needed, capacity = float(self.memory_needed[point]), float(self.memory_capacity[point])
        host, room = float(self.host_memory[point]), float(self.host_capacity[point])
        over = needed / capacity if capacity > 0 else np.inf
        return self.reasons[code].format(
            needed=show(needed, "B"),
            capacity=show(capacity, "B"),
            excess=show(needed - capacity, "B"),
            over=f"{over:.3g}",
            host=show(host, "B"),
            room=show(room, "B"),
            lack=show(host - room, "B"),
        )

    def _reasons(self) -> list[str | None]:
        """Why each point is infeasible; points that share their figures share the sentence."""
        figures = (self.reason, self.memory_needed, self.memory_capacity, self.host_memory, self.host_capacity)
        keys = list(zip(*(values.tolist() for values in figures), strict=True))
        first = {key: i for i, key in reversed(list(enumerate(keys)))}
        sentences = {key: self.why(i) for key, i in first.items()}
        return [sentences[key] for key in keys]

    def columns(self) -> dict[str, Any]:
        """Flat table of all figures: name with unit -> values, groups joined by a dot."""
        table: dict[str, Any] = {}
        for entry in fields(self):
            value, name = getattr(self, entry.name), entry.name + UNIT_SUFFIX.get(entry.name, "")
            if isinstance(value, Mapping):
                prefix = "" if entry.name in UNPREFIXED else f"{name}."
                table |= {f"{prefix}{key}": array for key, array in value.items()}
            elif isinstance(value, np.ndarray) and entry.name not in UNTOLD:
                table[name] = value
        if np.isnan(self.measured_share).all():
            del table["measured_share"]
        table |= {"serialized_s": self.serialized, "hidden_communication_s": self.hidden_communication, "exposed_share": self.exposed_share}
        table["intensity_flop_per_byte"] = self.intensity
        table |= self.per_million()
        table["memory_needed_bytes"] = self.memory_needed
        table["bound_by"] = self.bound_by
        table["reason"] = self._reasons()
        return table

    def to_dict(self) -> dict[str, Any]:
        """Plain data: every column as a list."""
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in self.columns().items()}

    def to_frame(self) -> Any:
        """Table as a pandas DataFrame, which must be installed."""
        import pandas

        return pandas.DataFrame(self.columns())

    def __repr__(self) -> str:
        if not len(self):
            return "Score(0 points)"
        best = int(np.argmin(self.step_time))
        return f"Score({len(self)} points, {int(self.feasible.sum())} feasible, fastest {show(float(self.step_time[best]), 's')} at {best})"


def scatter(parts: Sequence[tuple[Index, Score]], n: int) -> Score:
    """One score of n points from scores of subsets, each with the indices of its points."""
    reasons = tuple(dict.fromkeys(sentence for _, part in parts for sentence in part.reasons))
    merged: dict[str, Any] = {}
    for entry in fields(Score):
        if entry.name == "reasons":
            merged["reasons"] = reasons
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
    whole = np.zeros(n, dtype=np.asarray(parts[0][1]).dtype)
    for index, values in parts:
        whole[index] = values
    return whole


def _nothing(group: str) -> float:
    """What a point has of a figure that its score lacks: no share of a whole, else no value."""
    return 0.0 if group in PARTS else np.nan


def absent(column: str) -> float:
    """What a point has in a column that its score lacks.

    >>> absent("communication_s.all_reduce"), absent("ttft_s")
    (0.0, nan)
    """
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
    """Known columns that a name may stand for, the likeliest first: by the whole name, or by its part after the last dot."""
    whole, last = (difflib.get_close_matches(word, known, n=3) for word in (name, name.rpartition(".")[2]))
    grouped = any(other.startswith(f"{name.partition('.')[0]}.") for other in known)
    return list(dict.fromkeys(whole + last if grouped else last + whole))


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
