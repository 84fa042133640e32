# ruff: noqa: E501  (exact sentences and tables of cases)
"""Quantities: every unit of the contract, and each kind of wrong text with its sentence."""

import numpy as np
import pytest

from crossflow.base.units import _FACTORS, Quantity, converted, parse, show, show_all

GIB = 2**30
UNITS = [
    ("3.35 TB/s", "B/s", 3.35e12), ("900 GB/s", "B/s", 9e11), ("64 GiB/s", "B/s", 64 * GIB), ("100 Gb/s", "B/s", 1.25e10), ("25 Gbit/s", "B/s", 3.125e9),
    ("80 GiB", "B", 80 * GIB), ("80 GB", "B", 8e10), ("32 KiB", "B", 32768), ("6 MiB", "B", 6 * 2**20), ("1 TiB", "B", 2**40), ("8 bit", "B", 1), ("1 kB", "B", 1000),
    ("4.2 pJ/bit", "J/B", 33.6e-12), ("130 fJ/bit", "J/B", 1.04e-12), ("1 pJ/flop", "J/flop", 1e-12), ("600 mJ", "J", 0.6),
    ("9 us", "s", 9e-6), ("9 µs", "s", 9e-6), ("100 ns", "s", 1e-7), ("1.5 ms", "s", 1.5e-3), ("2 min", "s", 120), ("2.5 days", "s", 216000), ("2 kWh", "J", 7.2e6), ("1 h", "s", 3600), ("3 day", "s", 259200), ("0 s", "s", 0),
    ("300 W", "W", 300), ("50 mW", "W", 0.05), ("1.2 kW", "W", 1200), ("8.4 pW/bit", "W/B", 67.2e-12),
    ("1.33 GHz", "Hz", 1.33e9), ("1/s", "Hz", None), ("5 1/s", "Hz", 5), ("0.8 V", "V", 0.8), ("550 mV", "V", 0.55),
    ("815 mm2", "m2", 815e-6), ("8.15 cm2", "m2", 815e-6), ("0.38 mm**2", "m2", 0.38e-6), ("0.07 um2", "m2", 7e-14), ("0.064 um2/bit", "m2/B", 0.512e-12),
    ("40 um", "m", 4e-5), ("5 nm", "m", 5e-9), ("400 1/mm", "1/m", 4e5), ("125 Tflop/s", "flop/s", 1.25e14), ("22 Top/s", "flop/s", 2.2e13), ("1 Pflop/s", "flop/s", 1e15),
    ("128 flop/cycle", "flop/cycle", 128), ("0.12 USD/mm2", "USD/m2", 1.2e5), ("2 kUSD", "USD", 2000),
    ("0.85", "1", 0.85), ("85 %", "1", 0.85), (0.85, "1", 0.85), (8, "1", 8), ("1_000", "1", 1000), ("1e3", "1", 1000), (".5 V", "V", 0.5), ("+5 W", "W", 5), ("-5 W", "W", -5), ("2.5e-5 s", "s", 2.5e-5),
]  # fmt: skip


@pytest.mark.parametrize(("text", "unit", "value"), [row for row in UNITS if row[2] is not None])
def test_units_of_the_contract(text, unit, value):
    assert parse(text, unit) == pytest.approx(value, rel=1e-14)


@pytest.mark.parametrize(
    ("text", "unit", "sentence"),
    [
        ("3.35 TB", "B/s", "expected a quantity in B/s, got '3.35 TB': 'TB' is not a unit of B/s; did you mean 'TB/s'?"),
        ("3.35 TB/s", "B", "expected a quantity in B, got '3.35 TB/s': 'TB/s' is not a unit of B; did you mean 'TB'?"),
        ("5 W", "J", "expected a quantity in J, got '5 W': 'W' is not a unit of J"),
        ("5 flop", "B", "expected a quantity in B, got '5 flop': 'flop' is not a unit of B"),
        ("5 USD", "W", "expected a quantity in W, got '5 USD': 'USD' is not a unit of W"),
        ("3 bit", "1", "expected a number, got '3 bit'"),
        ("5 parsec", "s", "expected a quantity in s, got '5 parsec': 'parsec' is not a known unit"),
        ("5 GBpm", "B/s", "expected a quantity in B/s, got '5 GBpm': 'GBpm' is not a known unit"),
        ("5 3 W", "W", "expected a quantity in W, got '5 3 W': '3 W' is not a known unit"),
        ("5 W/", "W", "expected a quantity in W, got '5 W/': 'W/' is not a known unit"),
        ("300", "W", "expected a quantity in W, got the bare number 300; write the unit"),
        (300, "W", "expected a quantity in W, got the bare number 300; write the unit"),
        (1e9, "B/s", "expected a quantity in B/s, got the bare number 1000000000.0; write the unit"),
        (0, "s", "expected a quantity in s, got the bare number 0; write the unit"),
        ("fast", "B/s", "expected a quantity in B/s, got 'fast'"),
        ("", "W", "expected a quantity in W, got ''"),
        ("W", "W", "expected a quantity in W, got 'W'"),
        ("nan W", "W", "expected a quantity in W, got 'nan W'"),
        ("1,5 W", "W", "expected a quantity in W, got '1,5 W': ',5 W' is not a known unit"),
        (True, "1", "expected a number, got True"),
        ("512 KB", "B", "expected a quantity in B, got '512 KB': 'KB' is not a known unit; did you mean 'kB'?"),
        ("80 gb", "B", "expected a quantity in B, got '80 gb': 'gb' is not a known unit; did you mean 'GB'?"),
        (None, "W", "expected a quantity in W, got None"),
        ([5, "W"], "W", "expected a quantity in W, got [5, 'W']"),
    ],
)
def test_wrong_text_is_told_exactly(text, unit, sentence, exactly):
    with pytest.raises(ValueError, match=exactly(sentence)):
        parse(text, unit)


def test_a_cycle_is_no_flop(exactly):
    """128 flop a cycle is a rate; 128 flop is an amount."""
    with pytest.raises(
        ValueError,
        match=exactly("expected a quantity in flop/cycle, got '128 flop': 'flop' is not a unit of flop/cycle"),
    ):
        parse("128 flop", "flop/cycle")


@pytest.mark.parametrize(
    ("quantity", "raw", "sentence"),
    [
        (Quantity("W", gt=0), "0 W", "expected greater than 0 W, got '0 W'"),
        (Quantity("B/s", gt=0), "-25 GB/s", "expected greater than 0 B/s, got '-25 GB/s'"),
        (Quantity("W", ge=0), "-1 W", "expected at least 0 W, got '-1 W'"),
        (Quantity("1", ge=0, le=1), 1.5, "expected at most 1, got 1.5"),
        (Quantity("1", ge=0, le=1), "150 %", "expected at most 1, got '150 %'"),
        (Quantity("W", ge=0), "1e999 W", "expected a finite number, got '1e999 W'"),
        (Quantity("1"), float("nan"), "expected a finite number, got nan"),
    ],
)
def test_ranges_are_told_exactly(quantity, raw, sentence, exactly):
    with pytest.raises(ValueError, match=exactly(sentence)):
        quantity.read(raw)


def test_a_sourced_number_is_read_with_its_interval():
    value = Quantity("W").read(
        {"value": "5 W", "source": "book", "low": "4 W", "high": "6 W", "projected": True, "note": "p. 3"}, sourced=True
    )
    assert value.tolist() == [5.0]
    with pytest.raises(ValueError, match=r"^low: low, value and high must not decrease, got low '6 W' and value '5 W'$"):
        Quantity("W").read({"value": "5 W", "source": "book", "low": "6 W"})


def test_quantities_are_read_only_arrays_of_one_point():
    value = Quantity("W").read("5 W")
    assert value.shape == (1,)
    with pytest.raises(ValueError, match="read-only"):
        value[0] = 6
    given = np.array([1.0, 2.0])
    Quantity("W").read(given)
    assert given.flags.writeable


@pytest.mark.parametrize(("text", "unit", "_"), [row for row in UNITS if row[2]])
def test_what_is_shown_reads_back(text, unit, _):
    value = parse(text, unit)
    assert parse(show(value, unit, digits=12), unit) == pytest.approx(value, rel=1e-11)


def test_shown_numbers_have_the_prefix_a_person_would_choose():
    shown = [
        show(3.35e12, "B/s"),
        show(80 * GIB, "B"),
        show(2.5e-5, "s"),
        show(0, "s"),
        show(-2e-3, "s"),
        show(999.9999e9, "B/s", 3),
        show(np.inf, "s"),
        show(1.728e6, "s"),
        show(3.2e6, "USD"),
    ]
    assert shown == ["3.35 TB/s", "80 GiB", "25 us", "0 s", "-2 ms", "1e+03 GB/s", "inf s", "20 days", "3,200,000 USD"]


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("0.9 W/mm²", "W/m2", 0.9e6), ("3 TB per second", "B/s", 3e12), ("80 fJ/(bit*mm)", "J/B/m", 80e-15 * 8 / 1e-3),
        ("3 kW·h", "J", 10.8e6), ("1.4e9 s^-1", "Hz", 1.4e9), ("2 m ** 2", "m2", 2.0), ("1 s^1", "s", 1.0),
    ],
)  # fmt: skip
def test_other_spellings_of_units(text, unit, value):
    assert parse(text, unit) == pytest.approx(value)


def test_factors_that_are_written_down_are_those_of_pint_to_the_last_digit():
    wrong = {
        (unit, target): known for target, units in _FACTORS.items() for unit, known in units.items() if converted(unit, target) != known
    }
    assert wrong == {}


def test_powers_beyond_the_second_are_none():
    with pytest.raises(ValueError, match="is not a known unit"):
        parse("3 m**12", "m2")


@pytest.mark.parametrize("unit", ["s", "B/s", "B", "1", "1/s", "USD", "USD/s", "W/m2", "J"])
def test_many_numbers_are_written_as_one_is(unit):
    draw = np.random.default_rng(3)
    values = np.concatenate([10 ** draw.uniform(-14, 17, 300) * draw.choice([-1, 1], 300), [0.0, -0.0, 1.0, 1e3, 999.99, np.inf, np.nan]])
    assert show_all(values, unit) == [show(value, unit) for value in values]


def test_two_prefixes_are_refused_and_leave_other_units_as_they_are():
    with pytest.raises(ValueError, match="'kilokilogram' is not a known unit"):
        parse("5 kilokilogram", "kg")
    assert parse("5 kg", "kg") == 5.0
