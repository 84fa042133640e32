"""Data types of generated devices: laws of what they cost, published designs and chips beside it, and what a user meets."""

import csv
import dataclasses
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.answers.explanation.parameters import parameters
from crossflow.base.formats import FORMATS
from crossflow.hardware.architecture import datatypes
from crossflow.hardware.architecture.datatypes import cells, datapath_cells, draws, with_types
from crossflow.hardware.architecture.system import architecture, resolve
from crossflow.hardware.technology.library import Choice, load_library

DATA = Path(__file__).parent / "data"
TEMPLATES = Path(__file__).parents[1] / "templates" / "generated"
NARROW = [name for name, form in FORMATS.items() if form.bits < 16]
LADDER = {"fp8": 2.0, "mxfp8": 2.0, "nvfp4": 4.0}  # rates by which operands take as many bits a cycle as those of 16 bits
PRODUCT = {"model": "gemm", "m": 8192, "n": 8192, "k": 8192, "dtype": "bf16"}


def rates(**values):
    return {name: np.atleast_1d(np.asarray(value, dtype=float)) for name, value in values.items()}


def rows(name):
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


@pytest.fixture(scope="module")
def library():
    return load_library("standard")


@pytest.fixture(scope="module")
def path(library):
    return library.datapath["dot-product"]


@pytest.fixture(scope="module")
def unit(library):
    return library.compute["gpu-matrix-unit"]


def product(system, points=None, **work):
    return evaluate(crossflow.from_dict({"system": system, "workload": {**PRODUCT, **work}, "strategy": "d1"}), points)


def reading(system, dtype, points=None):
    """Llama 2 7B that reads a prompt in a type."""
    work = {"model": "llama2-7b", "task": "prefill", "global_batch": 1, "sequence": 4096, "dtype": dtype}
    return evaluate(crossflow.from_dict({"system": system, "workload": work, "strategy": "d1"}), points)


# ------------------------------------------------------------------------------------------ laws


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", FORMATS)
def test_more_bits_of_significand_or_exponent_take_more(path, name):
    form = FORMATS[name]
    wider = [dataclasses.replace(form, significand=bits) for bits in range(1, 60)]
    longer = [dataclasses.replace(form, exponent=bits) for bits in range(12)]
    for series in (wider, longer):
        assert (np.diff([cells(one, path).sum() for one in series]) > -1e-9).all()
    assert (np.diff([cells(one, path)[0, 0] for one in wider]) > 0).all()


def test_parts_by_hand(path):
    """fp16: 11 x 11 products; 26 bits, aligned in log2(26) stages; eight products a sum; 32 bits of accumulator that normalise."""
    fp16 = dict(zip(datatypes.PARTS, cells(FORMATS["fp16"], path)[:, 0], strict=True))
    assert fp16["multiplier"] == 121
    assert fp16["exponent"] == 12
    assert fp16["aligner"] == pytest.approx(0.5 * 26 * np.log2(26))
    assert fp16["adder"] == 26 + 3
    assert fp16["operands"] == 16
    assert fp16["accumulator"] == pytest.approx((64 + 0.5 * 32 * 5) / 8)
    assert fp16["scale"] == 0
    nvfp4 = dict(zip(datatypes.PARTS, cells(FORMATS["nvfp4"], path)[:, 0], strict=True))
    assert nvfp4["multiplier"] == pytest.approx(4 * 1.15)
    assert nvfp4["aligner"] == pytest.approx(0.5 * 8 * 3)  # exact: 4 bits and twice two exponents
    assert nvfp4["scale"] == pytest.approx((2 * 5 + 16 + 2 * 4 * (8 + 5)) / 16)
    assert cells(FORMATS["int8"], path)[[1, 2, 6]].sum() == 0


@pytest.mark.thorough
@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(list(FORMATS)), st.floats(0.01, 32.0)), st.sampled_from(list(FORMATS)), st.floats(0.0, 32.0))
def test_a_type_more_or_a_rate_doubled_never_makes_a_datapath_smaller(held, further, rate):
    path = load_library("standard").datapath["dot-product"]
    base = datapath_cells(rates(**held), path)[0]
    more = {**held, further: max(rate, held.get(further, 0.0))}
    assert datapath_cells(rates(**more), path)[0] >= base * (1 - 1e-12)
    for name in held:
        assert datapath_cells(rates(**{**held, name: 2 * held[name]}), path)[0] >= base * (1 - 1e-12)
    assert datapath_cells(rates(**{name: 2 * value for name, value in held.items()}), path)[0] == pytest.approx(2 * base)


def test_no_types_take_nothing(library, path, unit):
    assert datapath_cells({}, path)[0] == 0
    for asked in ({}, rates(fp16=1), rates(int8=2, int4=4), rates(nvfp4=0, fp8=0)):
        found = with_types(unit, asked, library)
        assert (found.unit.nominal_area, found.unit.nominal_power, found.unit.leakage) == (
            unit.nominal_area,
            unit.nominal_power,
            unit.leakage,
        )


def test_narrow_types_take_less_energy_but_not_for_nothing(library, unit):
    """More than a quarter of an operation in fp16 for fp8, and more than a sixteenth for nvfp4; each more than its rate alone says."""
    asked = rates(fp16=1, int8=2, **LADDER)
    found = with_types(unit, asked, library)
    energy = {name: 1.0 / done[0] for name, done in found.operations.items()}
    relative = {name: energy[name] / energy["fp16"] for name in energy}
    assert 0.25 < relative["fp8"] < 1
    assert 1 / 16 < relative["nvfp4"] < relative["fp8"]
    assert relative["int8"] < relative["fp8"] < relative["mxfp8"]
    assert relative["nvfp4"] < 1 / 4 < 1 / 2 < relative["fp8"]  # cells of fp8 fill the same datapath, those of nvfp4 do not
    fast = with_types(unit, rates(fp16=1, nvfp4=32), library)
    assert fast.operations["fp16"][0] / fast.operations["nvfp4"][0] > 4 / 32


def test_a_unit_is_as_large_and_hot_as_its_types_make_it(library, unit):
    """By hand: cells of the union over those of the published types, in the datapath's share of area and power."""
    path = library.datapath["dot-product"]
    asked = rates(fp16=1, nvfp4=32)
    found = with_types(unit, asked, library)
    growth = 1 + 0.16 * (datapath_cells({**unit.types, **asked}, path)[0] / datapath_cells(unit.types, path)[0] - 1)
    drawn = 1 + 0.68 * (32 * cells(FORMATS["nvfp4"], path).sum() / cells(FORMATS["fp16"], path).sum() - 1)
    assert found.unit.nominal_area[0] == pytest.approx(unit.nominal_area[0] * growth)
    leaking = 0.05 * unit.nominal_power[0] * growth
    assert found.unit.nominal_power[0] == pytest.approx(0.95 * unit.nominal_power[0] * drawn + leaking)
    assert (found.unit.leakage * found.unit.nominal_power)[0] == pytest.approx(leaking)
    assert found.operations["nvfp4"][0] == pytest.approx(32)  # the hottest type draws all of the power


@pytest.mark.parametrize("template", sorted(file.stem for file in TEMPLATES.glob("*.yaml") if not file.stem.startswith("reference")))
def test_templates_whose_units_have_their_types_are_the_chips_that_they_were(template):
    system, _ = resolve(crossflow.base.files.Document(file="case", data=template))
    techlib = load_library(system.techlib)
    one = techlib.component("compute", system.technology.compute)
    found = with_types(one, system.product_rates, techlib)
    assert found.unit is one
    assert found.refused == ()
    device = architecture(system)
    assert device.types_area is None
    power = {name: device.energy_per_flop[name][0] * device.throughput[name][0] for name in device.throughput if FORMATS[name].bits >= 16}
    assert np.ptp(list(power.values())) < 1e-9 * max(power.values())


@pytest.mark.cases(1)
@pytest.mark.parametrize("other", ["cdna-matrix-unit", "systolic-128"])
def test_a_batch_is_its_designs_one_by_one(other):
    asked = [0.0, 0.5, 2.0, 4.0, 16.0, 0.0]
    units = ["gpu-matrix-unit", other, "gpu-matrix-unit", other, "gpu-matrix-unit", other]
    points = {"system.rates.nvfp4": asked, "system.rates.fp8": [2.0, 0.0, 4.0, 2.0, 1.0, 0.0], "system.technology.compute": units}
    system = {"template": "reference", "rates": {"mxfp4": 0}}
    batch = product(system, points)
    for i in range(len(asked)):
        alone = product(system, {name: [values[i]] for name, values in points.items()})
        assert batch.step_time[i] == alone.step_time[0]
        assert batch.energy[i] == alone.energy[0]
        for name, values in alone.architecture.items():
            np.testing.assert_array_equal(batch.architecture[name][i], values[0], err_msg=name)


# ------------------------------------------------------------------------------------------ published designs and chips


def published(path):
    """What the model says of the quantities of type_costs.csv, in their order."""
    sums = {name: cells(FORMATS[name], path).sum() for name in FORMATS}
    tensor = rates(fp16=1, bf16=1, tf32=0.5, int8=2, fp8=2, mxfp8=2, mxfp6=2, mxfp4=4, nvfp4=4)
    e2m2 = {name: dataclasses.replace(FORMATS[name], significand=3) for name in ("mxfp4", "nvfp4")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datatypes, "FORMATS", {**FORMATS, **e2m2})
        wider = datapath_cells(tensor, path)[0]
    return {
        "energy of mxfp4 over mxfp8": sums["mxfp4"] / sums["mxfp8"],
        "area that mxfp4 saves of nvfp4": 1 - sums["mxfp4"] / sums["nvfp4"],
        "area of E2M2 over E2M1 in a tensor core": wider / datapath_cells(tensor, path)[0] - 1,
        "area of fp8 over int8": sums["fp8"] / sums["int8"],
        "energy of fp8 over int4": sums["fp8"] / sums["int4"],
    }


def test_published_designs_say_what_the_model_says(path):
    """None was fitted to. The worst is int4 of a chip with separate pipelines, 21 % below."""
    found = published(path)
    for row in rows("type_costs.csv"):
        low, high, tolerance = (float(row[name]) for name in ("low", "high", "tolerance"))
        assert low * (1 - tolerance) <= found[row["quantity"]] <= high * (1 + tolerance), row["quantity"]


def chips():
    found = {}
    for row in rows("chip_types.csv"):
        held = {name: float(row[name]) / float(row["fp16"]) for name in FORMATS if name in row and float(row[name])}
        like = {"bf16": "fp16", "mxfp8": "fp8"} if "mxfp4" in held else {"bf16": "fp16"}
        found[row["chip"]] = (row, rates(**held, **{name: held[other] for name, other in like.items()}))
    return found


def test_b300_has_half_as_much_fp4_again_in_the_area_that_int8_and_fp64_leave(path):
    """Blind: dies, bf16 and fp8 of B300 are those of B200; nvfp4 13.5 for 9 Pflop/s, int8 and fp64 all but gone."""
    before, after = (datapath_cells(chips()[name][1], path)[0] for name in ("B200", "B300"))
    assert after == pytest.approx(before, rel=0.05)
    kept = {**chips()["B200"][1], "nvfp4": chips()["B300"][1]["nvfp4"]}
    assert datapath_cells(kept, path)[0] > 1.03 * before  # which does not fit beside them


def test_b300_draws_as_much_more_as_its_fp4_does(library, unit):
    """Blind: 1,100 for 1,000 W at equal rates of all other types."""
    before, after = (with_types(unit, chips()[name][1], library).unit.nominal_power[0] for name in ("B200", "B300"))
    assert after / before == pytest.approx(1100 / 1000, rel=0.03)


@pytest.mark.parametrize(("old", "new", "low", "high"), [
    ("A100", "H100", 0.6, 1.0), ("H100", "B200", 0.9, 1.05), ("B200", "B300", 0.97, 1.03), ("MI300X", "MI355X", 0.7, 1.0),
])  # fmt: skip
def test_rates_over_area_follow_node_clock_and_types_but_for_the_division_of_the_die(library, path, old, new, low, high):
    """At an equal share of the die for units. What is left of A100 to H100 and of MI300X to MI355X is that makers gave units more of it."""
    (before, earlier), (after, later) = chips()[old], chips()[new]
    gain = {name: float(after[name]) / float(before[name]) for name in ("fp16", "area", "clock")}
    node = library.logic[before["logic"]].area[0] / library.logic[after["logic"]].area[0]
    unit = library.compute[before["unit"]]
    base = datapath_cells(unit.types, path)[0]
    sizes = [1 + unit.datapath_area[0] * (datapath_cells(held, path)[0] / base - 1) for held in (earlier, later)]
    said = node * gain["clock"] * sizes[0] / sizes[1]
    assert low < said / (gain["fp16"] / gain["area"]) < high


def test_all_types_of_h100_draw_about_as_much(library, unit, path):
    """A service on H200 drew 662.8 W in bf16 and 661.7 W in fp8 (Serial Alice, 2026)."""
    assert draws(rates(fp16=1, fp8=2), unit, path)["fp8"][0] == pytest.approx(1, abs=0.1)


# ------------------------------------------------------------------------------------------ devices


def test_rates_take_area_and_power_of_a_device():
    system = {"template": "reference", "rates": {"mxfp4": 0}}
    score = product(system, {"system.rates.nvfp4": [0.0, 1.0, 4.0, 8.0, 32.0]})
    area, peak, wide = (score.architecture[name] for name in ("types.area", "throughput.nvfp4", "throughput.bf16"))
    assert (np.diff(area) > 0).all()
    assert (np.diff(peak) > 0).all()
    assert (np.diff(wide) < 0).all()
    assert (np.diff(score.step_time) > 0).all()
    assert peak[-1] < 0.7 * 32 * wide[0]  # 29.8 Pflop/s for nothing, before
    assert (score.architecture["used.area"] == score.architecture["used.area"][0]).all()


def test_a_rate_of_zero_is_a_type_left_out():
    without = product({"template": "reference", "rates": dict.fromkeys(NARROW_OF_REFERENCE, 0)})
    unit = {"types": {"fp16": 1, "bf16": 1, "fp32": 0.125, **dict.fromkeys(NARROW_OF_REFERENCE, 4)}}
    published = product({"template": "reference", "components": {"compute": unit}})
    assert "types.area" not in without.architecture
    assert "types.area" not in published.architecture
    assert without.step_time[0] == published.step_time[0]


NARROW_OF_REFERENCE = ("int8", "fp8", "mxfp8", "mxfp6", "mxfp4", "nvfp4")


def test_a_workload_in_a_type_without_a_rate_is_refused_or_cannot_run():
    with pytest.raises(crossflow.CrossflowError, match="reference has no rates for nvfp4; it has fp16, bf16"):
        reading({"template": "reference", "rates": {"nvfp4": 0}}, "nvfp4")
    score = reading("reference", "nvfp4", {"system.rates.nvfp4": [0.0, 4.0]})
    assert score.feasible.tolist() == [False, True]
    assert score.why(0) == "the device's rate in the data type of the workload is 0"


@pytest.mark.parametrize(("template", "asked", "sentence"), [
    ("pathfinder", {"fp64": 0.5}, "significands of 53 bits are wider than the unit's multipliers"),
    ("chip-tpu-v4", {"fp64": 0.5}, "in parts at a rate of at most 0.043"),
    ("p4", {"int8": 8}, "rates.int8: what more of it takes is not known of this unit, which has fp32 at 1, fp16 at 1, int8 at 4"),
    ("p4", {"fp8": 1}, "rates.fp8: what more of it takes is not known of this unit"),
])  # fmt: skip
def test_rates_that_cannot_be_had_are_refused(template, asked, sentence):
    score = product({"template": template, "rates": asked}, dtype="fp16")
    assert not score.feasible[0]
    assert sentence in score.why(0)


def test_wide_types_run_in_parts_at_no_cost_and_fast_ones_at_a_price(library):
    unit = library.compute["matrix-unit-8x8"].model_copy(update={"types": rates(fp16=1)})
    assert with_types(unit, rates(fp16=1, fp32=(11 / 24) ** 2), library).unit is unit
    assert with_types(unit, rates(fp16=2), library).unit.nominal_area[0] > 1.15 * unit.nominal_area[0]


def test_a_unit_of_a_users_library_without_types_has_those_of_16_bits_and_more(library):
    silent = library.compute["gpu-matrix-unit"].model_copy(update={"types": {}, "datapath": None})
    free = with_types(silent, rates(fp16=1, fp32=1, fp64=1), library)
    assert free.unit is silent
    assert free.refused == ()
    assert with_types(silent, rates(fp16=1, fp8=1), library).refused[0][0].all()


def test_a_library_names_the_datapath_of_a_unit(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nextends: standard\nsources: {}\ncompute: {gpu-matrix-unit: {datapath: dot-produkt}}\n", encoding="utf-8")
    with pytest.raises(crossflow.CrossflowError, match="no datapath 'dot-produkt'; did you mean 'dot-product'"):
        load_library(str(file))
    file.write_text("name: mine\nextends: standard\nsources: {}\ncompute: {gpu-matrix-unit: {types: {fp9: 1}}}\n", encoding="utf-8")
    with pytest.raises(crossflow.CrossflowError, match="expected a data type, one of fp64"):
        load_library(str(file))


def test_blocks_of_fp8_multiply_at_the_rate_of_fp8():
    score = reading("reference", "fp8_block")
    assert score.architecture["throughput.fp8_block"][0] == score.architecture["throughput.fp8"][0]


def test_what_types_cost_is_among_the_numbers_behind_a_prediction():
    case = crossflow.from_dict({"system": "reference", "workload": PRODUCT, "strategy": "d1"})
    known = {number.path: number for number in parameters(case)}
    assert known["techlib.datapath.dot-product.apart"].high == 1
    assert {"techlib.compute.gpu-matrix-unit.datapath_area", "system.rates.nvfp4", "system.rates.bf16"} <= {*known}
    assert "system.rates.fp16" not in known
    before = evaluate(case)
    for name in ("techlib.datapath.dot-product.apart", "techlib.compute.gpu-matrix-unit.datapath_power", "system.rates.mxfp6"):
        assert evaluate(case, {name: [1.3 * known[name].value]}).step_time[0] != before.step_time[0]


def test_types_scale_with_the_node_as_the_unit_does(library, unit):
    found = [with_types(library.scale(unit, Choice.of([name])), rates(fp16=1, **LADDER), library) for name in ("N7", "N3")]
    ratio = library.logic["N3"].area[0] / library.logic["N7"].area[0]
    assert found[1].unit.nominal_area[0] / found[0].unit.nominal_area[0] == pytest.approx(ratio)
    assert found[0].larger[0] == found[1].larger[0]
