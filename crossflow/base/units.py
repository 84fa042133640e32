"""Quantities at the file edge: text with a unit outside, SI floats inside.

A quantity in a file is text such as ``3.35 TB/s``, ``80 GiB``, ``4.2 pJ/bit`` or ``9 us``; GB = 1e9 B, GiB = 2^30 B.
Inside everything is SI base with the byte as unit of information: s, B, flop, W, J, Hz, m, V. A unit written in a
model's annotation (`Quantity("B/s")`) is the unit of the float that the model holds.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from crossflow.base.arrays import Array, points
from crossflow.base.limits import in_range, shown

if TYPE_CHECKING:
    import pint
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema

# A registry of our own, not pint's default one: there the bit is dimensionless, so "3" would pass for "3 B",
# and "GB" next to "GiB", flop and USD are missing. It also loads ten times faster.
_DEFINITIONS = """
yotta- = 1e24 = Y-
zetta- = 1e21 = Z-
exa- = 1e18 = E-
peta- = 1e15 = P-
tera- = 1e12 = T-
giga- = 1e9 = G-
mega- = 1e6 = M-
kilo- = 1e3 = k-
centi- = 1e-2 = c-
milli- = 1e-3 = m-
micro- = 1e-6 = u- = µ-
nano- = 1e-9 = n-
pico- = 1e-12 = p-
femto- = 1e-15 = f-
atto- = 1e-18 = a-
kibi- = 2**10 = Ki-
mebi- = 2**20 = Mi-
gibi- = 2**30 = Gi-
tebi- = 2**40 = Ti-
meter = [length] = m
second = [time] = s
minute = 60 * second = min
hour = 3600 * second = h
day = 86400 * second
year = 365 * day
kilogram = [mass] = kg
gram = kilogram / 1000 = g
tonne = 1000 * kilogram = t
ampere = [current] = A
kelvin = [temperature] = K
byte = [information] = B
bit = byte / 8 = b
flop = [computation]
op = flop
usd = [currency] = USD
hertz = 1 / second = Hz
newton = kilogram * meter / second ** 2 = N
joule = newton * meter = J
watt = joule / second = W
volt = watt / ampere = V
watt_hour = 3600 * joule = Wh
cycle = [cycles]
"""
_TEXT = re.compile(r"^\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*$")
# A unit: names, each perhaps squared, with * or / between them; or one over such. It is matched before pint, which would compute, reads it.
_NAME = r"(?:[kM]?[gt] ?CO2eq?|(?:watt_hour|[A-Za-zµ]{1,16})(?:(?:\*\*|\^)?2|\*\*-[12])?|%)"
# Units as vendors write them, after a prefix, and what they are in the grammar.
_VENDORS = {"Bps": "B/s", "bps": "b/s", "FLOPS": "flop/s", "FLOP/s": "flop/s", "FLOPs": "flop", "FLOP": "flop", "OPS": "op/s"}
_VENDOR = re.compile(rf"(?<![A-Za-z])([kMGTPE]i?)?({'|'.join(_VENDORS)})(?![A-Za-z/])")
_UNIT = re.compile(rf"(?:1(?= ?/)|{_NAME})(?: ?[*/] ?{_NAME}){{0,7}}")
_TWICE = re.compile(r"(?:yotta|zetta|exa|peta|tera|giga|mega|kilo|centi|milli|micro|nano|pico|femto|atto|kibi|mebi|gibi|tebi){2}")
TEXT = 200  # characters of a quantity, the longest that is read
FLOAT = float("inf")
ZERO_CELSIUS = 273.15  # [K]
KEPT = 2**13  # quantities whose reading is kept: templates and libraries are read again and again
STATUSES = ("read", "second-hand", "recalled", "derived", "assumed")  # how a number of a library is known
# Money as people write it: a sign or a word for dollars, a number, and what it is paid for; and signs of other currencies.
_DOLLARS = re.compile(r"us\$|\$|\busd\b|(?<=\d)usd\b|\bdollars?\b|\bbucks?\b", re.IGNORECASE)
_FOREIGN = re.compile(r"[€£¥₹]|(?<![a-z])(?:eur|euros?|gbp|pounds?|cny|rmb|yuan|jpy|yen|chf|inr)(?![a-z])", re.IGNORECASE)
_DEVICE = r"(?:(?:gpu|device|accelerator|chip)s?[-\s]*(?:per\s|/|an?\s)?\s*)?"  # for which it is paid
_HOURS = re.compile(rf"(?:/|\bper\b|\ban?\b)\s*{_DEVICE}(?:h|hrs?|hours?)\s*$", re.IGNORECASE)
_CARBON = re.compile(r"\b([kM]?[gt]) ?CO2eq?\b")  # a mass of CO2-equivalent, the only mass that files and pages know
_PLAIN_UNITS = {"m2": "m**2", "mm2": "mm**2", "um2": "um**2", "nm2": "nm**2", "cm2": "cm**2", "%": "percent"}

# Factors to units of the code from those that files are mostly written in: pint, which knows all others, need not be imported for
# these, and its import takes a seventh of a short command. Tests hold each to the last digit of what pint says.
_FACTORS: Mapping[str, Mapping[str, float]] = {
    "1/m": {"1/mm": 1e3},
    "1/m2": {"1/mm2": 1e6},
    "B": {
        "kB": 1e3,
        "KiB": 1024.0,
        "MB": 1e6,
        "MiB": 1048576.0,
        "GB": 1e9,
        "GiB": 1073741824.0,
        "TB": 1e12,
        "TiB": 1099511627776.0,
        "PB": 1e15,
    },
    "B/s": {
        "MB/s": 1e6,
        "Gb/s": 125000000.0,
        "Gbit/s": 125000000.0,
        "GB/s": 1e9,
        "GiB/s": 1073741824.0,
        "Tbit/s": 125000000000.0,
        "TB/s": 1e12,
        "PB/s": 1e15,
    },
    "flop/s": {"Gflop/s": 1e9, "Tflop/s": 1e12, "Top/s": 1e12, "Pflop/s": 1e15, "Pop/s": 1e15},
    "Hz": {"MHz": 1e6, "GHz": 1e9},
    "J": {"kWh": 3600000.0},
    "J/B": {"fJ/bit": 8e-15, "pJ/bit": 8e-12},
    "J/B/m": {"pJ/bit/mm": 8e-09},
    "J/flop": {"pJ/flop": 1e-12},
    "K*m2/W": {"K*mm2/W": 1e-06},
    "kg": {"g CO2e": 0.001, "kg CO2e": 1.0, "t CO2e": 1e3},
    "kg/B": {"g CO2e/GB": 1.0000000000000002e-12},
    "kg/J": {"g CO2e/kWh": 2.7777777777777777e-10, "kg CO2e/kWh": 2.7777777777777776e-07},
    "kg/m2": {"kg CO2e/cm2": 1e4},
    "m": {"nm": 1e-09, "um": 1e-06, "mm": 0.001, "km": 1e3},
    "m2": {"um2": 1e-12, "mm2": 1e-06, "cm2": 0.0001},
    "m2/B": {"um2/bit": 8e-12},
    "s": {"ns": 1e-09, "us": 1e-06, "ms": 0.001, "min": 60.0, "hour": 3600.0, "h": 3600.0, "day": 86400.0, "days": 86400.0},
    "s/m": {"ps/mm": 1e-09, "ns/mm": 1.0000000000000002e-06},
    "USD": {"kUSD": 1e3},
    "USD/J": {"USD/kWh": 2.7777777777777776e-07},
    "USD/m2": {"USD/mm2": 1e6},
    "USD/s": {"USD/hour": 0.0002777777777777778},
    "V": {"mV": 0.001},
    "W": {"mW": 0.001, "kW": 1e3, "MW": 1e6},
    "W/B": {"pW/bit": 8e-12},
    "W/m2": {"W/mm2": 1e6},
}


@functools.cache
def _registry() -> pint.UnitRegistry[float]:
    import pint

    registry: pint.UnitRegistry[float] = pint.UnitRegistry(None)
    registry.load_definitions(_DEFINITIONS.strip().splitlines())
    return registry


@functools.cache
def _factor(unit: str, target: str) -> float:
    """How many `target` one `unit` is; ValueError when they measure different things or `unit` is unknown."""
    # Without pint, whose import takes longer than most commands that read no file; files are held to units that the code names.
    known = 1.0 if unit == target else _FACTORS.get(target, {}).get(unit)
    return converted(unit, target) if known is None else known


def _with_its_time(unit: str, target: str) -> str:
    """What to say of a unit that lacks its time, as 3 TB for a bandwidth, or has one too much, as 80 GB/s for a capacity.

    >>> _with_its_time("TB", "B/s"), _with_its_time("GB/s", "B"), _with_its_time("W", "B/s")
    ("; did you mean 'TB/s'?", "; did you mean 'GB'?", '')
    """
    other = unit.removesuffix("/s") if unit.endswith("/s") else f"{unit}/s"
    if unit.endswith("/s") == target.endswith("/s"):
        return ""
    try:
        _factor(other, target)
    except ValueError:
        return ""
    return f"; did you mean '{other}'?"


def converted(unit: str, target: str) -> float:
    """The same for units of which neither is known to be one."""
    import tokenize

    import pint

    registry = _registry()
    spelled = _spelled(unit)
    # Pint takes `kilokilogram` for a unit of itself, and recurses with every mass from then on.
    if not (_UNIT.fullmatch(spelled) and _UNIT.fullmatch(target)) or _TWICE.search(spelled):
        raise ValueError(f"{shown(unit)} is not a known unit{_in_other_letters(unit, target)}")
    try:
        return float(registry.Quantity(1.0, registry.Unit(_expand(spelled))).to(registry.Unit(_expand(target))).magnitude)
    except pint.DimensionalityError:
        raise ValueError(f"{shown(unit)} is not a unit of {target}{_with_its_time(unit, target)}") from None
    except (
        pint.UndefinedUnitError,
        pint.errors.DefinitionSyntaxError,
        AttributeError,
        ValueError,
        TypeError,
        AssertionError,
        tokenize.TokenError,
    ):
        raise ValueError(f"{shown(unit)} is not a known unit{_in_other_letters(unit, target)}") from None


def _in_other_letters(unit: str, target: str) -> str:
    """The units of a quantity from which one differs in the case of letters alone, as a question; empty where there is none.

    >>> _in_other_letters("KB", "B"), _in_other_letters("gb/s", "B/s"), _in_other_letters("parsec", "s")
    ("; did you mean 'kB'?", "; did you mean 'Gb/s' or 'GB/s'?", '')
    """
    found = [f"'{known}'" for known in (target, *_FACTORS.get(target, {})) if known.lower() == unit.lower()]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _spelled(unit: str) -> str:
    """Other spellings of products, quotients and powers in those of the grammar.

    >>> _spelled("W/mm²"), _spelled("fJ/(bit*mm)"), _spelled("TB per second"), _spelled("s ^ -1"), _spelled("kW·h")
    ('W/mm2', 'fJ/bit/mm', 'TB/second', 's**-1', 'kW*h')
    >>> _spelled("Gbps"), _spelled("TFLOPS"), _spelled("pJ/FLOP")
    ('Gb/s', 'Tflop/s', 'pJ/flop')
    """
    unit = _VENDOR.sub(lambda found: f"{found[1] or ''}{_VENDORS[found[2]]}", unit)
    powers = re.sub(r" ?(?:\*\*|\^) ?", "**", unit.replace("²", "2").replace("·", "*").replace(" per ", "/"))
    plain = re.sub(r"\*\*1(?!\d)", "", powers)
    return re.sub(r"/ ?\(([^()/]*)\)", lambda found: "/" + re.sub(r" ?\* ?", "/", found[1]), plain)


def _expand(unit: str) -> str:
    """Spell ``mm2`` as ``mm**2`` in each factor of a unit, and ``g CO2e`` as ``g``, as pint reads them."""
    return re.sub(r"[A-Za-zµ%]+2?", lambda found: _PLAIN_UNITS.get(found.group(), found.group()), _CARBON.sub(r"\1", unit))


def parse(text: str | float, unit: str) -> float:
    """Read a quantity as a float in `unit`; a bare number is read only where `unit` is ``1``.

    >>> parse("3.35 TB/s", "B/s"), parse("80 GiB", "B") == 80 * 2**30, parse("85 %", "1")
    (3350000000000.0, True, 0.85)
    >>> parse("5/s", "1/s")
    5.0
    """
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise ValueError(f"expected {_wanted(unit)}, got {shown(text)}")  # noqa: TRY004
    if isinstance(text, int | float):
        if unit != "1":
            raise ValueError(f"expected {_wanted(unit)}, got the bare number {text}{_as_money(str(text), unit) or '; write the unit'}")
        return _finite(float(text) if abs(text) < FLOAT else np.inf, text)
    found = _TEXT.match(text) if len(text) <= TEXT else None
    if found is None:
        raise ValueError(f"expected {_wanted(unit)}, got {shown(text)}{_as_money(text, unit)}")
    number, written = _finite(float(found[1].replace("_", "")), text), found[2]
    written = f"1{written}" if written.startswith("/") else written  # as in 5/s
    if unit == "1":
        if written not in ("", "%"):
            raise ValueError(f"expected {_wanted(unit)}, got {shown(text)}")
        return number / 100.0 if written == "%" else number
    if not written:
        raise ValueError(f"expected {_wanted(unit)}, got the bare number {text}{_as_money(text, unit) or '; write the unit'}")
    try:
        return _finite(number * _factor(written, unit), text)
    except ValueError as error:
        cure = _as_money(text, unit) or f": {error}"
        raise ValueError(f"expected {_wanted(unit)}, got {shown(text)}{cure}") from None


def in_dollars(text: str, unit: str) -> str | None:
    """Money in other words as a quantity in `unit` that is read; None for what is no money.

    >>> in_dollars("$2.5/hour", "USD/s"), in_dollars("2 $ per GPU-hour", "USD/s"), in_dollars("$0.08/kWh", "USD/J")
    ('2.5 USD/hour', '2 USD/hour', '0.08 USD/kWh')
    >>> in_dollars("3", "USD/s"), in_dollars("2 EUR/hour", "USD/s"), in_dollars("cheap", "USD/s"), in_dollars("$2", "B/s")
    ('3 USD/hour', None, None, None)
    """
    if not unit.startswith("USD") or len(text) > TEXT or _FOREIGN.search(text):
        return None
    found = _TEXT.match(_HOURS.sub("/hour", _DOLLARS.sub(" ", text)).replace(",", ""))
    if found is None:
        return None
    per = found[2] or ("/hour" if unit == "USD/s" else "")
    written = f"USD{'' if per.startswith('/') or not per else ' '}{per}"
    try:
        _factor(written, unit)
    except ValueError:
        return None
    return f"{found[1]} {written}"


def _as_money(text: str, unit: str) -> str:
    """What to write in the place of money in other words, as the end of a sentence; empty for what is none.

    >>> _as_money("$2/hour", "USD/s"), _as_money("2 EUR/hour", "USD/s"), _as_money("/hour", "USD/s")
    ("; write '2 USD/hour'", '; prices are in USD: convert it', "; a shell takes $ and the digit after it away: write '2 USD/hour'")
    """
    if not unit.startswith("USD"):
        return ""
    if _FOREIGN.search(text):
        return "; prices are in USD: convert it"
    if text.startswith("/"):
        return f"; a shell takes $ and the digit after it away: write '2 USD{text}'"
    cured = in_dollars(text, unit)
    return f"; write '{cured}'" if cured else ""


def _finite(number: float, text: str | float) -> float:
    """A number that a float holds; ValueError for others."""
    if not abs(number) < FLOAT:
        raise ValueError(f"expected a finite number, got {shown(text)}")
    return in_range(number)


def _wanted(unit: str) -> str:
    spelled = {"USD/s": "USD/hour", "K": "K (40 C are 313 K)"}  # as people write it
    return "a number" if unit == "1" else f"a quantity in {spelled.get(unit, unit)}"


# Keys of a quantity in a file that says where it is from, and what some of them hold.
_ENTRIES = ("value", "source", "status", "projected", "low", "high", "note")
_KINDS_OF_ENTRIES = (("source", str, "text"), ("note", str, "text"), ("projected", bool, "true or false"))


@dataclass(frozen=True)
class Quantity:
    """Annotation of a model field: the SI unit it holds and the range it may take.

    In a file the field is text with a unit, or a mapping ``{value, source, status, projected, low, high, note}``; in the model it
    is a read-only array of shape (1,), so that one design point and many share every formula.
    """

    unit: str
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    whole: bool = False

    def read(self, raw: Any, sourced: bool = False) -> Array:
        """Read one field from its file form; ValueError says what was expected."""
        kind = type(raw)  # asked first, for most are text or plain mappings, and thousands are read for a scenario
        if kind is str and not sourced:
            return _read_text(self, raw)
        if isinstance(raw, np.ndarray):
            return points(raw)
        if kind is dict or isinstance(raw, Mapping):
            try:
                return _read_entries(self, tuple(raw.items()), tuple(map(type, raw.values())))
            except TypeError:  # something in it is a list or a mapping
                return self._read_mapping(raw)
        if sourced:
            raise ValueError("expected a mapping {value: ..., source: ...}: every number of a library names its source")
        return points(self.checked(parse(raw, self.unit), raw))

    def _read_mapping(self, raw: Mapping[str, Any]) -> Array:
        for key in raw:
            if key not in _ENTRIES:
                from crossflow.base.errors import did_you_mean

                cure = did_you_mean(key, _ENTRIES) or f"; known keys: {', '.join(_ENTRIES)}"
                raise ValueError(f"unknown key {shown(key)} beside value{cure}")
        for key in ("value", "source"):
            if key not in raw:
                raise ValueError(f"expected the key '{key}' in {{value: ..., source: ...}}")
        if raw.get("status", "read") not in STATUSES:
            raise ValueError(f"status: expected one of {', '.join(STATUSES)}, got {shown(raw['status'])}")
        for key, kind, expected in _KINDS_OF_ENTRIES:
            if key in raw and not isinstance(raw[key], kind):
                raise ValueError(f"{key}: expected {expected}, got {shown(raw[key])}")
        return points(self._bounded(raw))

    def _bounded(self, raw: Mapping[str, Any]) -> float:
        """The value, if it lies between its bounds and all are in the range; ValueError begins with the key that is wrong."""
        numbers: dict[str, float] = {}
        for key in ("low", "value", "high"):
            try:
                if key in raw:
                    numbers[key] = self.checked(parse(raw[key], self.unit), raw[key])
            except ValueError as error:
                raise ValueError(f"{key}: {error}" if key != "value" else str(error)) from None
        value = numbers["value"]
        for key, wrong in (("low", numbers.get("low", value) > value), ("high", numbers.get("high", value) < value)):
            if wrong:
                given = f"{key} {shown(raw[key])} and value {shown(raw['value'])}"
                raise ValueError(f"{key}: low, value and high must not decrease, got {given}")
        return value

    def checked(self, value: float, written: Any = None) -> float:
        """The value, if it is finite and in the range; ValueError says what was expected, and what was written where that is known."""
        if not math.isfinite(value):
            raise ValueError(f"expected a finite number, got {value}")
        limit: float | None = None
        if self.whole and value != round(value):
            words = "a whole number"
        elif self.gt is not None and value <= self.gt:
            words, limit = "greater than", self.gt
        elif self.ge is not None and value < self.ge:
            words, limit = "at least", self.ge
        elif self.le is not None and value > self.le:
            words, limit = "at most", self.le
        else:
            return value
        bound = "" if limit is None else f" {limit:g} {'' if self.unit == '1' else self.unit}".rstrip()
        raise ValueError(f"expected {words}{bound}, got {shown(written) if isinstance(written, str) else f'{value:g}'}")

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """What a file may hold: text with a unit, a number where there is none, or a mapping with its source."""
        plain = ["string", "number"] if self.unit == "1" else ["string"]
        mapping = {"type": "object", "required": ["value", "source"], "properties": {"value": {"type": ["string", "number"]}}}
        return {"anyOf": [{"type": plain}, mapping], "description": f"quantity in {self.unit}" if self.unit != "1" else "number"}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        def validate(raw: Any, info: core_schema.ValidationInfo) -> Array:
            return self.read(raw, sourced=bool(info.context and info.context.get("sourced")))

        def plain(value: Array) -> float | list[float]:
            return float(value[0]) if value.size == 1 else [float(item) for item in value]

        return core_schema.with_info_plain_validator_function(
            validate, serialization=core_schema.plain_serializer_function_ser_schema(plain)
        )


@functools.lru_cache(maxsize=KEPT)
def _read_entries(quantity: Quantity, entries: tuple[tuple[str, Any], ...], kinds: tuple[type, ...]) -> Array:  # noqa: ARG001
    """A quantity from the entries of a mapping; `kinds` tell 1 from true."""
    return quantity._read_mapping(dict(entries))


@functools.lru_cache(maxsize=KEPT)
def _read_text(quantity: Quantity, text: str) -> Array:
    return points(quantity.checked(parse(text, quantity.unit), text))


def _positive(unit: str) -> Quantity:
    return Quantity(unit, gt=0)


def _amount(unit: str) -> Quantity:
    return Quantity(unit, ge=0)


# The quantities that models are made of; each says its SI unit once.
PositiveShare = Annotated[Array, Quantity("1", gt=0, le=1)]
Ratio = Annotated[Array, Quantity("1", ge=0)]
PositiveRatio = Annotated[Array, Quantity("1", gt=0)]
Share = Annotated[Array, Quantity("1", ge=0, le=1)]
Count = Annotated[Array, Quantity("1", ge=0)]
PositiveCount = Annotated[Array, Quantity("1", gt=0, whole=True)]
Time = Annotated[Array, _amount("s")]
Frequency = Annotated[Array, _positive("Hz")]
Voltage = Annotated[Array, _positive("V")]
Power = Annotated[Array, _amount("W")]
EnergyPerBit = Annotated[Array, _amount("J/B")]
EnergyPerBitLength = Annotated[Array, _amount("J/B/m")]
TimePerLength = Annotated[Array, _amount("s/m")]
EnergyPerFlop = Annotated[Array, _amount("J/flop")]
PowerPerBit = Annotated[Array, _amount("W/B")]
Area = Annotated[Array, _positive("m2")]
AreaOrZero = Annotated[Array, _amount("m2")]
AreaPerBit = Annotated[Array, _positive("m2/B")]
Length = Annotated[Array, _positive("m")]
LengthOrZero = Annotated[Array, _amount("m")]
PerArea = Annotated[Array, _amount("1/m2")]
PerLength = Annotated[Array, _positive("1/m")]
Information = Annotated[Array, _positive("B")]
Bandwidth = Annotated[Array, _positive("B/s")]
Throughput = Annotated[Array, _positive("flop/s")]
FlopPerCycle = Annotated[Array, _positive("flop/cycle")]
CostPerArea = Annotated[Array, _amount("USD/m2")]
Cost = Annotated[Array, _amount("USD")]
Rent = Annotated[Array, _positive("USD/s")]
Duration = Annotated[Array, _positive("s")]
Overhead = Annotated[Array, Quantity("1", ge=1)]
CarbonIntensity = Annotated[Array, _amount("kg/J")]
CarbonPerArea = Annotated[Array, _amount("kg/m2")]
CarbonPerCapacity = Annotated[Array, _amount("kg/B")]
PowerDensity = Annotated[Array, _positive("W/m2")]
Temperature = Annotated[Array, _positive("K")]
ThermalResistance = Annotated[Array, _amount("K*m2/W")]

SCALES = {
    "s": ((86400, "days"), (1, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")),
    "B": ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")),
    "m2": ((1e-6, "mm2"), (1e-12, "um2")),
    "m2/B": ((8e-12, "um2/bit"), (8e-18, "nm2/bit")),
    "J/B": ((8e-12, "pJ/bit"), (8e-15, "fJ/bit")),
    "J/B/m": ((8e-9, "pJ/bit/mm"), (8e-12, "fJ/bit/mm")),
    "s/m": ((1e-6, "ns/mm"), (1e-9, "ps/mm")),
    "W/B": ((8e-12, "pW/bit"), (8e-15, "fW/bit")),
    "J/flop": ((1e-12, "pJ/flop"), (1e-15, "fJ/flop")),
    "1/m2": ((1e6, "1/mm2"), (1e4, "1/cm2")),
    "1/m": ((1e3, "1/mm"),),
    "m": ((1, "m"), (1e-3, "mm"), (1e-6, "um")),
    "V": ((1, "V"),),
    "USD/m2": ((1e6, "USD/mm2"),),
    "flop/cycle": ((1, "flop/cycle"),),
    "USD": ((1, "USD"),),
    "USD/s": ((1 / 3600, "USD/hour"),),
    "kg": ((1e3, "t CO2e"), (1, "kg CO2e"), (1e-3, "g CO2e"), (1e-6, "mg CO2e")),
    "kg/m2": ((1e4, "kg CO2e/cm2"),),
    "kg/B": ((1e-12, "g CO2e/GB"),),
    "W/m2": ((1e6, "W/mm2"),),
    "K": ((1, "K"),),
    "K*m2/W": ((1e-6, "K*mm2/W"),),
    "kg/J": ((1e-3 / 3.6e6, "g/kWh"),),
    "1/s": ((1e9, "G/s"), (1e6, "M/s"), (1e3, "k/s"), (1, "1/s")),
    "1": ((1, ""),),
}
# What the name of a figure ends in, and the unit that this says; what figures in a unit are called together.
SUFFIXES = {"_per_s": "1/s", "_usd": "USD", "_bytes": "B", "_s": "s", "_j": "J", "_w": "W", "_kg": "kg"}
KINDS = {
    "s": "times", "1/s": "throughput", "B": "sizes", "J": "energy and power", "W": "energy and power", "USD": "cost", "kg": "carbon",
}  # fmt: skip
PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n"), (1e-12, "p"))


def show(value: float, unit: str, digits: int = 4) -> str:
    """Write an SI float with the prefix that a person would choose.

    >>> show(3.35e12, "B/s"), show(2.5e-5, "s"), show(80 * 2**30, "B"), show(0.85, "1"), show(3.2e6, "USD")
    ('3.35 TB/s', '25 us', '80 GiB', '0.85', '3,200,000 USD')
    """
    value = float(value)
    if not np.isfinite(value):
        return f"{value} {unit}"
    if unit == "USD" and abs(value) >= 10**digits:
        return f"{value:,.0f} USD"
    scales = _scales(unit)
    factor, name = next((pair for pair in scales if abs(value) >= pair[0] * _NEARLY), scales[-1]) if value else _of_zero(scales)
    return f"{value / factor:.{digits}g} {name}".strip()


def show_beyond(value: float, limit: float, unit: str) -> str:
    """Write an SI float as `show` does, with as many digits as tell it from a limit that it exceeds.

    >>> show_beyond(115 * 2.0**30, 80 * 2.0**30, "B"), show_beyond(180 * 2.0**30 + 638_669, 180 * 2.0**30, "B")
    ('115 GiB', '180.0006 GiB')
    """
    excess = (value - limit) / value if value > 0 and np.isfinite(value) else 0.0
    return show(value, unit, min(max(math.ceil(1.0 - math.log10(excess)), 4), 15) if excess > 0 else 4)


def show_all(values: Array, unit: str) -> list[str]:
    """Write SI floats, shape (n,), as `show` does.

    >>> show_all(np.array([3.35e12, 2e9, 0.0, np.nan]), "B/s")
    ['3.35 TB/s', '2 GB/s', '0 B/s', 'nan B/s']
    """
    scales = _scales(unit)
    limits = [factor * _NEARLY for factor, _ in scales]  # they fall
    which = np.minimum(np.searchsorted(-np.array(limits), -np.abs(values)), len(scales) - 1)
    which[values == 0] = scales.index(_of_zero(scales))
    which[~np.isfinite(values) | (unit == "USD")] = -1
    texts = np.empty(len(values), dtype=object)
    for i in np.unique(which):
        factor, name = scales[i]
        texts[which == i] = (
            [show(value, unit) for value in values[which == i]]
            if i == -1
            else [f"{value:.4g} {name}".strip() for value in (values[which == i] / factor).tolist()]
        )
    return texts.tolist()


_NEARLY = 1 - 1e-9  # of a scale is written in it


def _scales(unit: str) -> tuple[tuple[float, str], ...]:
    """Factors of the units that a person would choose from, the largest first."""
    return SCALES.get(unit) or tuple((factor, prefix + unit) for factor, prefix in PREFIXES)


def _of_zero(scales: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    return next((pair for pair in scales if pair[0] == 1), scales[0])
