"""What-ifs of collectives, as the command line and delay files write them: ``all_reduce+2ms, bandwidth*0.5, rank[7]*1.2``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from crossflow.base.errors import CrossflowError, did_you_mean
from crossflow.base.rules import COMMAS, RULE, ranks_of, value_of

OPS = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "send", "recv", "barrier",
)  # fmt: skip
ALL, BANDWIDTH, LATENCY, RANK = "all", "bandwidth", "latency", "rank"
WORDS = (*OPS, ALL, BANDWIDTH, LATENCY, RANK)


@dataclass(frozen=True, kw_only=True)
class Delay:
    """Time of one collective.

    Attributes
    ----------
    time : from its start to its end. [s]
    latency : the part of it that a message of one byte takes, too. [s]
    host : processor time that the host spends inside it. [s]
    """

    time: float
    latency: float
    host: float = 0.0


@dataclass(frozen=True, kw_only=True)
class DelayRule:
    """One change: a factor, or an amount that is added. [1], [s]"""

    word: str
    sign: Literal["*", "+"]
    value: float

    def applied(self, delay: Delay) -> Delay:
        """The delay with this change."""
        rest = delay.time - delay.latency
        if self.word == BANDWIDTH:
            return Delay(time=delay.latency + rest / self.value, latency=delay.latency, host=delay.host)
        if self.word == LATENCY:
            latency = self.of(delay.latency)
            return Delay(time=latency + rest, latency=latency, host=delay.host)
        # What is added comes with every message, long or short.
        return Delay(time=self.of(delay.time), latency=self.of(delay.latency), host=delay.host)

    def of(self, value: float) -> float:
        """A time with this change. [s]"""
        return value * self.value if self.sign == "*" else value + self.value


@dataclass(frozen=True, kw_only=True)
class Slow:
    """Emulated ranks that compute `factor` times as long as the real one, and come `extra` later to every collective. [1], [s]"""

    ranks: frozenset[int]
    factor: float = 1.0
    extra: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Changes to delays, in the order in which they are written, and ranks that are slower than the real one."""

    rules: tuple[DelayRule, ...] = ()
    slow: tuple[Slow, ...] = ()
    text: str = ""

    def __call__(self, op: str, delay: Delay) -> Delay:
        """Delay of a collective with all changes that apply to it."""
        for rule in self.rules:
            if rule.word in (op, ALL, BANDWIDTH, LATENCY):
                delay = rule.applied(delay)
        return delay

    def __add__(self, other: Changes) -> Changes:
        """Both, one after the other."""
        text = ",".join(part for part in (self.text, other.text) if part)
        return Changes(rules=self.rules + other.rules, slow=self.slow + other.slow, text=text)

    def check_ranks(self, world_size: int, real: Collection[int]) -> None:
        """CrossflowError where a slow rank is not in the world, or runs for real."""
        for rank in sorted(rank for one in self.slow for rank in one.ranks):
            if rank >= world_size:
                raise CrossflowError(f"what-if {self.text}: there is no rank {rank} in a world of {world_size}")
            if rank in real:
                raise CrossflowError(f"what-if {self.text}: rank {rank} runs for real; only an emulated rank can be made slower")


def read_what_if(text: str) -> Changes:
    """Read a list of changes; CrossflowError for the first that has no meaning.

    >>> read_what_if("all_reduce+2ms, bandwidth*0.5")("all_reduce", Delay(time=5e-3, latency=1e-3))
    Delay(time=0.011, latency=0.003, host=0.0)
    """
    rules: list[DelayRule] = []
    slow: list[Slow] = []
    for written in COMMAS.split(text) if text.strip() else ():
        found = _read(written.strip())
        if isinstance(found, Slow):
            slow.append(found)
        else:
            rules.append(found)
    return Changes(rules=tuple(rules), slow=tuple(slow), text=",".join(text.replace(" ", "").split(",")))


def _read(written: str) -> DelayRule | Slow:
    found = RULE.match(written)
    if found is None:
        raise CrossflowError(f"what-if '{written}': expected a word, + or *, and a value, such as all_reduce+2ms or bandwidth*0.5")
    word, sign = found["word"], found["sign"]
    if word not in WORDS:
        raise CrossflowError(f"what-if '{written}': unknown word '{word}'{did_you_mean(word, WORDS)}; known words: {', '.join(WORDS)}")
    if (found["inside"] is not None) != (word == RANK):
        raise CrossflowError(f"what-if '{written}': ranks are given as rank[7]*1.2 or rank[0-3,8]+1ms, and to no other word")
    if word == BANDWIDTH and sign == "+":
        raise CrossflowError(f"what-if '{written}': bandwidth takes a factor, such as bandwidth*0.5")
    value = value_of(written, sign, found["value"])
    if word == RANK:
        ranks = frozenset(ranks_of(found["inside"] or "", f"what-if '{written}'"))
        return Slow(ranks=ranks, factor=value) if sign == "*" else Slow(ranks=ranks, extra=value)
    return DelayRule(word=word, sign="*" if sign == "*" else "+", value=value)
