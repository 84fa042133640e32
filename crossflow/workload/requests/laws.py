"""Laws that lengths, times and counts of requests are drawn from, as files give them.

Each is a file model with a law by name and the numbers that the law needs; what it draws is in `draws`. A number, a quantity or a list
alone is short for the law that it says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, Strict, WithJsonSchema, model_validator

from crossflow.base.files import FileModel
from crossflow.base.limits import Dimension, DimensionOrZero, PositiveFloat, shown
from crossflow.base.units import parse

MOST_DRAWN = 20_000_000  # requests that are drawn; fewer than are read, for more of each is held at once
TOKENS = 10**7  # of a prompt or an output, the most that are read
P95 = 1.6448536269514722  # quantile of the standard normal distribution
Keys = tuple[str, ...]


def _in(unit: str, example: str, *, zero: bool = True) -> Callable[[Any], float]:
    """A reader of quantities in files, which have their unit as everywhere."""

    def read(value: Any) -> float:
        if not isinstance(value, str):
            raise ValueError(f"expected a quantity in {unit}, such as '{example}', got {shown(value)}")  # noqa: TRY004
        number = parse(value, unit)
        if number < 0 or (number == 0 and not zero):
            raise ValueError(f"expected {'0' if zero else 'more than 0'} {unit}{' or more' if zero else ''}, got {shown(value)}")
        return number

    return read


# As editors know them.
TIME, RATE, SPEED = (WithJsonSchema({"type": "string", "examples": [example]}) for example in ("10 s", "2.5 1/s", "25 GB/s"))
WaitTime = Annotated[float, Strict(), BeforeValidator(_in("s", "10 s")), TIME]
PositiveWaitTime = Annotated[float, Strict(), BeforeValidator(_in("s", "10 s", zero=False)), TIME]
TransferRate = Annotated[float, Strict(), BeforeValidator(_in("B/s", "25 GB/s", zero=False)), SPEED]
ArrivalRate = Annotated[float, Strict(), BeforeValidator(_in("1/s", "2.5 1/s", zero=False)), RATE]
ArrivalRateOrZero = Annotated[float, Strict(), BeforeValidator(_in("1/s", "2.5 1/s")), RATE]
TokenCount = Annotated[Dimension, Field(le=TOKENS)]
TokenCountOrZero = Annotated[DimensionOrZero, Field(le=TOKENS)]


class Law(FileModel):
    """A law by name: the sets of keys that each takes, of which one must be there whole, and keys that may stand beside them."""

    sets: ClassVar[Mapping[str, tuple[Keys, ...]]] = {}
    beside: ClassVar[Mapping[str, Keys]] = {}

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        """Tell a key that no law has with those that the law takes."""
        law = given.get("law") if isinstance(given, Mapping) else None
        strange = [key for key in given if key not in cls.model_fields] if isinstance(law, str) and law in cls.sets else []
        if strange:
            wanted = " or ".join(" and ".join(keys) for keys in cls.sets[str(law)])
            beside = ", ".join(cls.beside.get(str(law), ()))
            raise ValueError(
                f"{strange[0]}: unknown key '{strange[0]}'; law {law} takes {wanted}{f', and may have {beside}' * bool(beside)}"
            )
        return given

    @model_validator(mode="after")
    def _whole(self) -> Self:
        law = str(getattr(self, "law"))  # noqa: B009  (each kind of law names its own)
        given = sorted(key for key in self.model_fields_set - {"law"} if getattr(self, key) is not None)
        sets, beside = self.sets[law], self.beside.get(law, ())
        for key in given:
            if key not in (*beside, *(key for keys in sets for key in keys)):
                takers = [name for name, known in self.sets.items() if key in (*self.beside.get(name, ()), *sum(known, ()))]
                raise ValueError(f"{key}: law {law} has none, only {' and '.join(takers)}; leave it out")
        main = {key for key in given if key not in beside}
        if main not in [set(keys) for keys in sets]:
            wanted = " or ".join(" and ".join(keys) for keys in sets)
            raise ValueError(f"law {law} takes {wanted}; got {', '.join(sorted(main)) or 'none of them'}")
        return self


def _apart(low: float | None, high: float | None) -> None:
    if low is not None and high is not None and high < low:
        raise ValueError(f"high: expected no less than low, got low {low:g} and high {high:g}")


def _steep(median: float | None, p95: float | None) -> None:
    if median is not None and p95 is not None and p95 < median:
        raise ValueError(f"expected a p95 of no less than the median, got median {median:g} and p95 {p95:g}")


def normal_of(median: float | None, p95: float | None, mean: float | None, cv: float | None) -> tuple[float, float]:
    """Mean and standard deviation of the logarithm of a lognormal, from its median and p95, or from its mean and cv.

    >>> [round(x, 3) for x in normal_of(100.0, 400.0, None, None)], [round(x, 3) for x in normal_of(None, None, 100.0, 0.0)]
    ([4.605, 0.843], [4.605, 0.0])
    """
    if median is not None and p95 is not None:
        return math.log(median), math.log(p95 / median) / P95
    assert mean is not None  # the law's keys are checked
    assert cv is not None
    variance = math.log1p(cv**2)
    return math.log(mean) - variance / 2, math.sqrt(variance)


class LengthLaw(Law):
    """Numbers of tokens: a whole number alone is the same for all, a list the values to draw from, a text the file that has them."""

    sets: ClassVar[Mapping[str, tuple[Keys, ...]]] = {
        "fixed": (("tokens",),),
        "lognormal": (("median", "p95"), ("mean", "cv")),
        "uniform": (("low", "high"),),
        "empirical": (("values",), ("file",)),
    }
    beside: ClassVar[Mapping[str, Keys]] = {"lognormal": ("most",), "empirical": ("column", "most")}

    law: Literal["fixed", "lognormal", "uniform", "empirical"] = Field(description="how lengths are distributed")
    tokens: TokenCountOrZero | None = Field(None, description="of `fixed`: the length of all")
    median: Annotated[PositiveFloat, Field(le=TOKENS)] | None = Field(
        None, description="of `lognormal`: length that half exceed; with `p95`"
    )
    p95: Annotated[PositiveFloat, Field(le=TOKENS)] | None = Field(None, description="of `lognormal`: length that one of 20 exceeds")
    mean: Annotated[PositiveFloat, Field(le=TOKENS)] | None = Field(None, description="of `lognormal`: mean; with `cv`")
    cv: Annotated[PositiveFloat, Field(le=100.0)] | None = Field(None, description="of `lognormal`: standard deviation over the mean")
    low: TokenCountOrZero | None = Field(None, description="of `uniform`: the shortest")
    high: TokenCountOrZero | None = Field(None, description="of `uniform`: the longest")
    values: Annotated[tuple[TokenCountOrZero, ...], Field(min_length=1)] | None = Field(
        None, description="of `empirical`: lengths to draw from, each as likely as often as it stands there"
    )
    file: str | None = Field(None, description="of `empirical`: table (CSV, JSONL, Parquet) with a column of lengths")
    column: str | None = Field(None, description="of `empirical`: that column, where the table has several")
    most: TokenCount | None = Field(None, description="of `lognormal` and `empirical`: longer ones are cut to this length")

    @model_validator(mode="before")
    @classmethod
    def _short(cls, given: Any) -> Any:
        if isinstance(given, Sequence) and not isinstance(given, str):
            return {"law": "empirical", "values": given}
        if isinstance(given, str):
            return {"law": "empirical", "file": given}
        return {"law": "fixed", "tokens": given} if isinstance(given, int | float) and not isinstance(given, bool) else given

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _apart(self.low, self.high)
        _steep(self.median, self.p95)
        return self

    @property
    def least(self) -> int:
        """The shortest length that it says; what it draws from a file or by a curve is at least 1 or told as it is read. [1]"""
        said = {"fixed": self.tokens, "uniform": self.low, "empirical": min(self.values or (1,)), "lognormal": 1}
        return int(said[self.law] or 0)


class TimeLaw(Law):
    """Times: a quantity alone, such as 10 s, is the same for all."""

    sets: ClassVar[Mapping[str, tuple[Keys, ...]]] = {
        "fixed": (("time",),),
        "exponential": (("mean",),),
        "lognormal": (("median", "p95"), ("mean", "cv")),
        "uniform": (("low", "high"),),
    }

    law: Literal["fixed", "exponential", "lognormal", "uniform"] = Field(description="how times are distributed")
    time: WaitTime | None = Field(None, description="of `fixed`: the time of all, such as 10 s")
    mean: PositiveWaitTime | None = Field(None, description="of `exponential` and `lognormal`: mean, such as 10 s")
    cv: Annotated[PositiveFloat, Field(le=100.0)] | None = Field(None, description="of `lognormal`: standard deviation over the mean")
    median: PositiveWaitTime | None = Field(None, description="of `lognormal`: time that half exceed; with `p95`")
    p95: PositiveWaitTime | None = Field(None, description="of `lognormal`: time that one of 20 exceeds")
    low: WaitTime | None = Field(None, description="of `uniform`: the shortest")
    high: WaitTime | None = Field(None, description="of `uniform`: the longest")

    @model_validator(mode="before")
    @classmethod
    def _short(cls, given: Any) -> Any:
        return {"law": "fixed", "time": given} if isinstance(given, str | int | float) and not isinstance(given, bool) else given

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _apart(self.low, self.high)
        _steep(self.median, self.p95)
        return self


class CountLaw(Law):
    """Whole numbers of turns or of calls: a number alone is the same for all, a list the values to draw from."""

    sets: ClassVar[Mapping[str, tuple[Keys, ...]]] = {
        "fixed": (("number",),), "geometric": (("mean",),), "uniform": (("low", "high"),), "empirical": (("values",),),
    }  # fmt: skip
    beside: ClassVar[Mapping[str, Keys]] = {"empirical": ("weights",)}

    law: Literal["fixed", "geometric", "uniform", "empirical"] = Field(description="how numbers are distributed")
    number: Annotated[DimensionOrZero, Field(le=10_000)] | None = Field(None, description="of `fixed`: the number of all")
    mean: Annotated[PositiveFloat, Field(le=10_000)] | None = Field(None, description="of `geometric`: mean")
    low: Annotated[DimensionOrZero, Field(le=10_000)] | None = Field(None, description="of `uniform`: the smallest")
    high: Annotated[DimensionOrZero, Field(le=10_000)] | None = Field(None, description="of `uniform`: the largest")
    values: Annotated[tuple[Annotated[DimensionOrZero, Field(le=10_000)], ...], Field(min_length=1)] | None = Field(
        None, description="of `empirical`: numbers to draw from"
    )
    weights: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)] | None = Field(
        None, description="of `empirical`: how often each of the values comes, relative to the others; equally often where absent"
    )

    @model_validator(mode="before")
    @classmethod
    def _short(cls, given: Any) -> Any:
        if isinstance(given, Sequence) and not isinstance(given, str):
            return {"law": "empirical", "values": given}
        return {"law": "fixed", "number": given} if isinstance(given, int | float) and not isinstance(given, bool) else given

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _apart(self.low, self.high)
        if self.weights is not None and len(self.weights) != len(self.values or ()):
            raise ValueError(f"weights: expected one for each of the {len(self.values or ())} values, got {len(self.weights)}")
        return self

    @property
    def least(self) -> float:
        """The smallest number that it may give, where files say it. [1]"""
        known = {"fixed": self.number, "uniform": self.low, "empirical": min(self.values or (0,)), "geometric": None}
        return float(known[self.law] or 0) if known[self.law] is not None else math.inf


class ArrivalLaw(Law):
    """When requests (or sessions) arrive: gaps from one to the next, at a rate that may change."""

    sets: ClassVar[Mapping[str, tuple[Keys, ...]]] = {
        "poisson": (("rate",),),
        "gamma": (("rate", "cv"),),
        "deterministic": (("rate",),),
        "uniform": (("rate",),),
        "bursts": (("rate", "on", "off"),),
        "diurnal": (("rates",),),
    }
    beside: ClassVar[Mapping[str, Keys]] = {"bursts": ("idle_rate",), "diurnal": ("cv", "period")}

    law: Literal["poisson", "gamma", "deterministic", "uniform", "bursts", "diurnal"] = Field(
        description="exponential gaps; gamma gaps with `cv`; equal gaps; gaps from 0 to twice their mean; Poisson arrivals that are on"
        " and off; Poisson arrivals whose rate follows a curve"
    )
    rate: ArrivalRate | None = Field(None, description="mean arrivals a second, such as 2.5 1/s; of `bursts` while they are on")
    cv: Annotated[PositiveFloat, Field(le=20.0)] | None = Field(
        None, description="of `gamma` and `diurnal`: standard deviation of gaps over their mean, 1 for Poisson arrivals"
    )
    on: PositiveWaitTime | None = Field(None, description="of `bursts`: mean length of a burst; lengths are exponential")
    off: PositiveWaitTime | None = Field(None, description="of `bursts`: mean time between bursts")
    idle_rate: ArrivalRateOrZero | None = Field(None, description="of `bursts`: arrivals a second between them, none where absent")
    rates: Annotated[tuple[ArrivalRateOrZero, ...], Field(min_length=1, max_length=10_000)] | None = Field(
        None, description="of `diurnal`: arrivals a second of each hour in turn, and again from the first after the last"
    )
    period: PositiveWaitTime | None = Field(None, description="of `diurnal`: time that the list of rates takes, an hour each where absent")

    @model_validator(mode="after")
    def _arrive(self) -> Self:
        if self.rates is not None and not any(self.rates):
            raise ValueError("rates: expected one above 0 1/s, all are 0; nothing arrives")
        return self

    @property
    def mean_rate(self) -> float:
        """Arrivals a second over a long time. [1/s]"""
        if self.rates is not None:
            return sum(self.rates) / len(self.rates)
        assert self.rate is not None  # the law's keys are checked
        if self.on is None or self.off is None:
            return self.rate
        return (self.rate * self.on + (self.idle_rate or 0.0) * self.off) / (self.on + self.off)
