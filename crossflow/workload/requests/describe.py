"""What a trace of requests holds: how they arrive, how long they are, what they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.base import provenance
from crossflow.base.arrays import Array, Index
from crossflow.base.drawing.picture import Picture
from crossflow.base.results import PlainData, Tabular
from crossflow.workload.requests.record import RequestTrace
from crossflow.workload.requests.shared import leading
from crossflow.workload.requests.words import lasting

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
MINUTE, SHORT = 60.0, 600.0  # windows in which arrivals are counted, and span of a trace below which they are seconds. [s]
MOST_WINDOWS = 1_000_000  # in which arrivals are counted
TARGETS = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, kw_only=True)
class LengthSpread:
    """Mean, quantiles and maximum of a quantity over all requests."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Array | Index) -> LengthSpread:
        """Those of values, at least one."""
        quantiles = {name: float(np.quantile(values, share)) for name, share in QUANTILES.items()}
        return cls(mean=float(np.mean(values)), max=float(np.max(values)), **quantiles)

    def to_dict(self) -> dict[str, float]:
        """By name."""
        return {name: getattr(self, name) for name in ("mean", *QUANTILES, "max")}


@dataclass(frozen=True, kw_only=True)
class ArrivalFigures:
    """How requests arrive; where they follow others, as if answers took no time."""

    span: float  # from the first to the last. [s]
    rate: float | None  # requests a second, None where all come at once. [1/s]
    peak: float | None  # the same in the window that has most. [1/s]
    window: float  # length of that. [s]
    cv: float | None  # standard deviation of gaps over their mean, 1 for Poisson arrivals. [1]
    dispersion: float | None  # variance of the counts of windows over their mean, 1 for Poisson arrivals. [1]

    @property
    def burstiness(self) -> float | None:
        """(cv - 1) / (cv + 1): -1 for equal gaps, 0 for Poisson arrivals, towards 1 for bursts (Goh and Barabasi, EPL 81, 2008, Eq. 1)."""
        return None if self.cv is None else (self.cv - 1.0) / (self.cv + 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class DescribedRequests(PlainData, Tabular):
    """Requests, and what they are like; `crossflow.requests` makes one.

    Attributes
    ----------
    name : of the file.
    trace : the requests as arrays.
    notes : what was done to the file that they come from.
    seed : of what was drawn; None where nothing was.
    """

    name: str
    trace: RequestTrace
    notes: tuple[str, ...] = ()
    seed: int | None = None

    def __len__(self) -> int:
        return len(self.trace)

    @property
    def arrivals(self) -> ArrivalFigures:
        """How they arrive."""
        return arrivals_of(self.trace)

    @property
    def prompt(self) -> LengthSpread:
        """Tokens of prompts."""
        return LengthSpread.of(self.trace.prompt)

    @property
    def output(self) -> LengthSpread:
        """Tokens that are written."""
        return LengthSpread.of(self.trace.output)

    @property
    def correlation(self) -> float | None:
        """Rank correlation (Spearman) of prompt and output; None where one of both is the same for all."""
        return rank_correlation(self.trace.prompt, self.trace.output)

    @property
    def sessions(self) -> int:
        """Requests that follow no other."""
        return int(self.trace.first.sum())

    @property
    def seen(self) -> float | None:
        """Share of prompts' tokens that begin an earlier prompt, or go on from its answer: what a prefix cache without end hits.

        None where it is not known.
        """
        trace = self.trace
        if trace.blocks is None:
            return None
        said = np.where(trace.continues, (trace.prompt + trace.output - 1)[trace.follows] // trace.block, 0)  # with the answer before
        return float((np.maximum(leading(trace.blocks), said) * trace.block).sum() / trace.prompt.sum())

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `crossflow requests --json` prints it."""
        found, trace = self.arrivals, self.trace
        follows = ~trace.first
        per_s = {key: None if found.rate is None else found.rate * getattr(self, key).mean for key in ("prompt", "output")}
        return {
            "name": self.name,
            "requests": len(trace),
            "sessions": self.sessions,
            "span_s": found.span,
            "requests_per_s": {"mean": found.rate, "peak": found.peak, "window_s": found.window},
            "gaps": {"cv": found.cv, "burstiness": found.burstiness, "dispersion": found.dispersion},
            "prompt_tokens": self.prompt.to_dict(),
            "output_tokens": self.output.to_dict(),
            "rank_correlation": self.correlation,
            "prompt_tokens_per_s": per_s["prompt"],
            "output_tokens_per_s": per_s["output"],
            "pause_s": LengthSpread.of(trace.pause[follows]).to_dict() if follows.any() else None,
            "prefix": None if self.seen is None else {"seen_before": self.seen, "block_tokens": trace.block},
            "classes": [self.of_class(i) for i in range(len(trace.classes))],
            "notes": list(self.notes),
            "provenance": provenance.record(self.seed, requests=trace.digest),
        }

    def of_class(self, i: int) -> dict[str, Any]:
        """What a class has."""
        one, mine = self.trace.classes[i], self.trace.kind == i
        means = {f"{key}_tokens": float(getattr(self.trace, key)[mine].mean()) if mine.any() else None for key in ("prompt", "output")}
        targets = {f"{key}_s": getattr(one, key) for key in TARGETS}
        return {"name": one.name, "requests": int(mine.sum()), **means, "priority": one.priority, "targets": targets}

    def table(self) -> Mapping[str, Any]:
        """One row a request."""
        trace = self.trace
        names = np.array([one.name for one in trace.classes], dtype=object)
        return {
            "arrival_s": trace.arrival, "prompt": trace.prompt, "output": trace.output, "class": names[trace.kind],
            "follows": trace.follows, "pause_s": trace.pause,
        }  # fmt: skip

    def plot(self, path: str | Path | None = None) -> Picture:
        """Arrivals over time, lengths, and both lengths of each request; into a file as well where a path is given."""
        from crossflow.workload.requests.picture import draw

        return draw(self).saved(path)

    def write(self, path: str | Path) -> Path:
        """Write the requests as CSV or JSONL, which is read again as the same requests; their targets are no part of it."""
        from crossflow.workload.requests.writing import write

        return write(self.trace, Path(path))

    def __repr__(self) -> str:
        found = self.arrivals
        when = (
            f"in {lasting(found.span)}, {found.rate:.3g} a second"
            if found.rate
            else "in a closed loop"
            if self.sessions < len(self)
            else "at once"
        )
        tokens = f"{self.prompt.mean:,.0f} tokens in and {self.output.mean:,.0f} out on average"
        return f"DescribedRequests({self.name!r}: {len(self):,} {when}, {tokens})"


def arrivals_of(trace: RequestTrace) -> ArrivalFigures:
    """How requests arrive."""
    times = trace.arrival
    span = float(times[-1] - times[0])
    window = max(MINUTE if span >= SHORT else 1.0, span / MOST_WINDOWS)
    if span <= 0.0:
        return ArrivalFigures(span=0.0, rate=None, peak=None, window=window, cv=None, dispersion=None)
    gaps, counts = np.diff(times), counts_of(times, window)
    whole = counts[:-1] if len(counts) > 2 else counts  # the last window is not over
    return ArrivalFigures(
        span=span, rate=len(gaps) / span, peak=float(counts.max()) / window, window=window,
        cv=float(gaps.std() / gaps.mean()) if len(gaps) > 1 else None,
        dispersion=float(whole.var() / whole.mean()) if whole.any() else None,
    )  # fmt: skip


def counts_of(times: Array, window: float) -> Index:
    """Arrivals in each window of a length, from the first arrival on. [1]"""
    return np.bincount(((times - times[0]) / window).astype(np.intp))


def rank_correlation(first: Index, second: Index) -> float | None:
    """Spearman's coefficient, ties at their mean rank; None where it is not defined.

    >>> rank_correlation(np.array([1, 2, 3]), np.array([10, 30, 20])), rank_correlation(np.array([1, 1]), np.array([1, 2]))
    (0.5, None)
    """
    ranks = [_ranks(values) for values in (first, second)]
    spreads = [float(rank.std()) for rank in ranks]
    if not all(spreads):
        return None
    return float(np.mean((ranks[0] - ranks[0].mean()) * (ranks[1] - ranks[1].mean())) / (spreads[0] * spreads[1]))


def _ranks(values: Index) -> Array:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    end = np.cumsum(counts)
    return np.asarray((end - (counts - 1) / 2.0)[inverse])
