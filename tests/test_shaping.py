"""The microarchitecture of generated devices as a variable: arrays, slices, levels; area, power and rates follow."""

import numpy as np
import pytest

from crossflow import evaluate, from_dict, optimise, predict
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.cost.waves import padded
from crossflow.hardware.technology.library import load_library

SIDES = np.array([2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0])
HEIGHT, WIDTH = "system.matrix_unit.height", "system.matrix_unit.width"


def case(size=8192, template="reference", **system):
    product = {"model": "gemm", "m": size, "n": size, "k": size, "dtype": "bf16"}
    return from_dict({"system": {"template": template, "devices": 1, **system}, "workload": product, "strategy": "d1"})


# ------------------------------------------------------------------------------------------ arrays of multipliers


def test_a_unit_of_its_own_shape_is_the_library_s():
    own = {"height": 8, "width": 8}
    assert predict(case(matrix_unit=own)).step_time == predict(case()).step_time


def test_a_gpu_s_unit_made_as_large_as_a_systolic_array_is_as_dense_and_frugal():
    """The shares along the edges were derived so, between these two entries of the library."""
    library = load_library("standard")
    unit, array = (library.component("compute", name) for name in ("gpu-matrix-unit", "systolic-128"))
    side = 128.0
    inside, along = side * side / 64.0, 2.0 * side / 16.0
    for share, figure in (("edge_area", "nominal_area"), ("edge_power", "nominal_power")):
        edge, small, large = getattr(unit, share)[0], getattr(unit, figure)[0], getattr(array, figure)[0]
        assert small * ((1.0 - edge) * inside + edge * along) == pytest.approx(large, rel=0.02)


def test_larger_arrays_are_denser_until_products_do_not_fill_them():
    rate = [predict(case(matrix_unit={"height": side, "width": side})).device.mcus[0] * side**2 for side in SIDES]
    assert (np.diff(rate) > 0).all()
    long = evaluate(case(), {HEIGHT: SIDES, WIDTH: SIDES}).step_time
    assert long[SIDES == 32] < long[SIDES == 8] < long[SIDES == 2]
    device, few = predict(case(matrix_unit={"height": 128, "width": 128})).device, np.full((1, 1), 20.0)
    assert padded(few, few, few, device)[0, 0] == pytest.approx(128**3 / 20**3)


def test_vector_units_lie_along_the_edges_of_arrays():
    """Twice the sides: four times the multipliers, twice the vector units."""
    one, two = (predict(case(matrix_unit={"height": side, "width": side})).device for side in (8, 16))
    share = [device.vector_throughput["bf16"][0] / device.throughput["bf16"][0] for device in (one, two)]
    assert share[1] == pytest.approx(0.5 * share[0], rel=1e-12)


def test_points_and_single_designs_of_arrays_agree():
    together = evaluate(case(), {HEIGHT: SIDES, WIDTH: SIDES[::-1]}).step_time
    alone = [predict(case(matrix_unit={"height": h, "width": w})).step_time for h, w in zip(SIDES, SIDES[::-1], strict=True)]
    assert together == pytest.approx(alone, rel=1e-12)


def test_one_side_alone_leaves_the_other_as_the_library_has_it():
    one, both = ({"height": 16}, {"height": 16, "width": 8})
    assert predict(case(matrix_unit=one)).step_time == predict(case(matrix_unit=both)).step_time


def test_a_shape_needs_to_know_the_edges_of_the_unit():
    with pytest.raises(
        CrossflowError, match=r"matrix_unit: the library does not say which part of the unit.*or the shape of this one, 8 x 8$"
    ):
        predict(case(template="chip-mi210", matrix_unit={"height": 16, "width": 16}))


@pytest.mark.parametrize(
    ("m", "n", "k", "dataflow", "expected"),
    [
        (256, 256, 256, "best", 1.0),
        (200, 256, 256, "output", 256 / 200),  # rows at the edge
        (200, 160, 256, "output", 256 * 256 / (200 * 160)),
        (200, 256, 256, "best", 1.0),  # A or B stays, and 200 rows stream
        (64, 256, 256, "weight", 2.0),  # the next piece of B takes longer to load than 64 rows to stream
        (1, 1, 1, "output", 128 * 128 * 128),
    ],
)
def test_products_that_do_not_fill_an_array_take_longer(m, n, k, dataflow, expected):
    device = predict(case(template="chip-tpu-v4", dataflow=dataflow)).device
    sizes = (np.array([[float(size)]]) for size in (m, n, k))
    assert padded(*sizes, device)[0, 0] == pytest.approx(expected, rel=1e-12)


# ------------------------------------------------------------------------------------------ slices of caches


def cache(**level):
    device = predict(case(levels={"l2": level}, budgets={"power_shares": {"on_chip": {"l2": 0.35}, "compute": 0.1}})).device
    return next(one for one in device.levels if one.name == "l2")


def test_wider_slices_deliver_more_and_their_ports_take_room_from_bits():
    one, two = cache(slice_width="32 B"), cache()
    assert two.bandwidth[0] == pytest.approx(2.0 * one.bandwidth[0])
    library = load_library("standard")
    part, at = library.component("on_chip", "l2"), library.component("logic", "N5").area[0] / library.component("logic", "N7").area[0]
    sram = library.component("logic", "N5").sram_area[0] / library.component("logic", "N7").sram_area[0]
    bit = part.area_per_bit[0] * sram / (1.0 - part.area_overhead[0])  # per byte
    assert one.capacity[0] - two.capacity[0] == pytest.approx(96 * 0.5 * part.port_area[0] * at / bit, rel=1e-9)


def test_a_faster_clock_of_slices_takes_voltage_and_stops_at_the_largest():
    slow, own, fast, most, beyond = (cache(frequency=f"{clock} GHz") for clock in (0.5, 1.5, 2.0, 9.0, 99.0))
    assert own.energy[0] == pytest.approx(cache().energy[0], rel=1e-12)
    assert fast.bandwidth[0] == pytest.approx(own.bandwidth[0] * 2.0 / 1.5)
    assert slow.energy[0] < own.energy[0] < fast.energy[0] < most.energy[0] == beyond.energy[0]
    assert slow.energy[0] / own.energy[0] == pytest.approx((0.55 / 0.8) ** 2)  # the least voltage of the logic
    assert most.energy[0] / own.energy[0] == pytest.approx((1.1 / 0.8) ** 2)


def test_slices_without_a_width_in_the_library_have_that_of_the_level_as_a_limit():
    given = {"levels": {"registers": {"slice_width": "64 B", "frequency": "1 GHz"}}}
    level = predict(case(**given)).device.levels[0]
    assert level.bandwidth[0] == pytest.approx(132 * 64 * 1e9, rel=1e-12)
    assert level.energy[0] == predict(case()).device.levels[0].energy[0]


# ------------------------------------------------------------------------------------------ which levels there are


def test_a_level_that_is_null_is_not_there_nor_its_shares():
    two = predict(case(levels={"l1": None}))
    assert [level.name for level in two.device.levels] == ["registers", "l2", "memory"]
    assert "l1" not in two.scenario.system.budgets.area.on_chip
    one = predict(case(levels={"l1": None, "l2": None}))
    assert [level.name for level in one.device.levels] == ["registers", "memory"]
    assert one.step_time > two.step_time


def test_a_level_that_is_null_goes_from_the_rows_of_a_template_too():
    found = predict(case(template="reference-training", levels={"l2": None})).scenario.system
    assert all("l2" not in row.area.on_chip for row in found.budgets.divisions)
    assert not any("l2" in path for path in found.microarchitecture)


def test_levels_are_options_of_a_search():
    best = optimise(case(), {"system.levels.l1": [{}, None], "system.levels.l2": [{}, None]})
    assert best.evaluations == 4
    assert best.row["system.levels.l2"] == {}


def test_null_for_a_level_that_is_not_there_is_an_error():
    with pytest.raises(SpecError, match=r"levels\.l4: null leaves out nothing: there is no level 'l4'.*levels: registers, l1, l2"):
        case(levels={"l4": None})
