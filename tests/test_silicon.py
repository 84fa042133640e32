"""What a node does to clock and voltage, what supply and heat lose, and bundles that are switched off: limits, laws, published pairs."""

import math

import numpy as np
import pytest

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.answers.explanation.parameters import parameters
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.base.files import Document
from crossflow.hardware.architecture.price import CLUSTERING, Spares, die_cost, die_yield
from crossflow.hardware.architecture.supply import DENSITY, heated, junction, losses
from crossflow.hardware.architecture.system import architecture, resolve
from crossflow.hardware.architecture.voltage import voltage_for
from crossflow.hardware.technology.alpha_power import relative_frequency, relative_power, voltage_at
from crossflow.hardware.technology.library import Choice, load_library

ONE = np.ones(1)
# Speed at equal power, and power at equal speed, as TSMC claims them of a step (techlibs/standard.yaml has the sources).
CLAIMED = {("N7", "N5"): (1.15, 0.70), ("N5", "N3"): (1.18, 0.66), ("N3", "N2"): (1.13, 0.72), ("N2", "A14"): (1.13, 0.72)}


def product(template="reference", size=8192, **system):
    work = {"model": "gemm", "m": size, "n": size, "k": size, "dtype": "bf16"}
    return crossflow.from_dict({"system": {"template": template, "devices": 1, **system}, "workload": work, "strategy": "d1"})


def device(template, **system):
    spec, _ = resolve(Document(file="x", data={"template": template, **system}))
    return architecture(spec)


def unit(standard, node):
    return standard.scale(standard.component("compute", "gpu-matrix-unit"), Choice.of([node]))


# ------------------------------------------------------------------------------------------ nodes


def test_a_unit_at_its_own_node_is_the_library_s(standard):
    own, scaled = standard.component("compute", "gpu-matrix-unit"), unit(standard, "N7")
    assert all(np.array_equal(getattr(own, name), getattr(scaled, name)) for name in type(own).model_fields if name != "node")


@pytest.mark.parametrize(("before", "after"), CLAIMED)
def test_a_step_has_the_power_at_equal_speed_that_is_claimed_and_nearly_the_speed_at_equal_power(standard, before, after):
    speed, power = CLAIMED[before, after]
    one, two = unit(standard, before), unit(standard, after)
    law = two.nominal_voltage, two.threshold_voltage
    base = one.nominal_frequency * relative_frequency(one.nominal_voltage, one.nominal_voltage, one.threshold_voltage)
    equal = voltage_at(base / two.nominal_frequency, *law)
    spent = two.nominal_power * relative_power(equal, *law, two.leakage) / one.nominal_power
    assert spent[0] == pytest.approx(power, rel=0.03)
    at = voltage_for(one.nominal_power / two.nominal_power, *law, two.leakage)
    assert (two.nominal_frequency * relative_frequency(at, *law) / base)[0] == pytest.approx(speed, rel=0.05)


def test_power_at_equal_speed_is_met_exactly_from_any_node(standard):
    for name, node in standard.logic.items():
        two, own = unit(standard, name), standard.component("compute", "gpu-matrix-unit")
        law = two.nominal_voltage, two.threshold_voltage
        equal = voltage_at(own.nominal_frequency / two.nominal_frequency, *law)
        spent = two.nominal_power * relative_power(equal, *law, two.leakage)
        assert spent[0] == pytest.approx((own.nominal_power * node.power / standard.logic["N7"].power)[0], rel=1e-9)


def test_clocks_of_later_nodes_rise_and_shipped_ones_can_be_had(standard):
    """Boost clocks of V100, A100, H100, B200 and MI355X, which nothing was fitted to."""
    fastest = {}
    for name in standard.logic:
        two = unit(standard, name)
        fastest[name] = (two.nominal_frequency * relative_frequency(two.maximum_voltage, two.nominal_voltage, two.threshold_voltage))[0]
    assert list(fastest.values()) == sorted(fastest.values())
    for name, shipped in (("N12", 1.53e9), ("N7", 1.41e9), ("N5", 1.98e9), ("N4", 1.965e9), ("N3", 2.4e9)):
        assert shipped <= fastest[name] < 1.6 * shipped


def test_no_later_node_takes_more_energy_at_any_voltage(standard):
    """C V^2 at the least voltage: what bounds work where a part of the units stays dark."""
    units = [unit(standard, name) for name in standard.logic]
    switched = [(one.nominal_power / one.nominal_frequency / one.nominal_voltage**2)[0] for one in units[1:]]
    assert switched == sorted(switched, reverse=True)
    floors = [(one.minimum_voltage**2 * c) for one, c in zip(units[1:], switched, strict=True)]
    assert [floor[0] for floor in floors] == sorted((floor[0] for floor in floors), reverse=True)


def test_scaling_to_mixed_nodes_is_scaling_to_each(standard):
    names = list(standard.logic)
    batch = standard.scale(standard.component("compute", "gpu-matrix-unit"), Choice.of(names))
    for i, name in enumerate(names):
        one = unit(standard, name)
        for field in ("nominal_power", "nominal_frequency", "nominal_voltage", "minimum_voltage", "maximum_voltage"):
            assert np.broadcast_to(getattr(batch, field), len(names))[i] == getattr(one, field)[0]


@pytest.mark.parametrize("name", ["deepflow-2024", "devices"])
def test_a_library_that_says_nothing_of_speeds_has_one_clock_at_every_node(name):
    library = load_library(name)
    own = library.component("compute", "volta-tensor-core")
    for node in library.logic:
        scaled = library.scale(own, Choice.of([node]))
        assert scaled.nominal_frequency[0] == own.nominal_frequency[0]
        assert scaled.nominal_voltage[0] == own.nominal_voltage[0]
        assert scaled.nominal_power[0] == (own.nominal_power * library.logic[node].power / library.logic[own.node].power)[0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("minimum_voltage: {value: 0.9 V, source: mine}", "logic.N5: voltages must satisfy threshold < minimum <= nominal <= maximum"),
        ("delivery: behind", "logic.N5.delivery: no delivery 'behind'"),
        ("leakage_doubling: {value: 25 C, source: mine}", "expected a quantity in K (40 C are 313 K), got '25 C'"),
    ],
)
def test_wrong_nodes_are_told_at_their_place(tmp_path, text, told):
    path = tmp_path / "mine.yaml"
    path.write_text(f"name: mine\nextends: standard\nsources: {{mine: 'a wrong library, for a test'}}\nlogic:\n  N5:\n    {text}\n")
    with pytest.raises(SpecError) as caught:
        load_library(str(path))
    assert told in str(caught.value)


# ------------------------------------------------------------------------------------------ supply and heat


def test_nothing_is_lost_where_the_library_says_nothing():
    assert device("v100").throttle is None  # of the paper's library


def test_the_drop_at_the_density_of_the_figures_takes_nothing(standard):
    front, node = standard.delivery["frontside"], standard.logic["N7"]
    bare = standard.substrate["organic"].model_copy(update={"coolant": None})
    found = losses(np.array([DENSITY, 2 * DENSITY]), front, front, node, bare)
    assert found.switched == pytest.approx([1.0, (0.95 / 0.9) ** 2])
    assert found.temperature is None
    np.testing.assert_allclose(found.leaked, found.switched**0.5)


def test_back_side_power_saves_what_intel_and_imec_measured(standard):
    """2 to 6 % more frequency at equal power, at 1 W/mm2; TSMC claims 8 to 10 % for A16, which is not all explained."""
    front, back, node, bare = (
        standard.delivery["frontside"],
        standard.delivery["backside"],
        standard.logic["N2"],
        standard.substrate["organic"],
    )
    one, two = (
        losses(np.array([2 * DENSITY]), front, way, node, bare.model_copy(update={"coolant": None})).switched for way in (front, back)
    )
    law = unit(standard, "N2")
    at = voltage_for(one / two, law.nominal_voltage, law.threshold_voltage, law.leakage)
    assert 1.02 < relative_frequency(at, law.nominal_voltage, law.threshold_voltage)[0] < 1.06


def test_a16_is_the_transistors_of_n2p_with_another_delivery(standard):
    """With rails in front it is as large as N2, and its area is the only gain that its own row holds."""
    front = device("reference", technology={"logic": "A16", "delivery": "frontside"})
    own, n2 = device("reference", technology={"logic": "A16"}), device("reference", technology={"logic": "N2"})
    assert front.mcus[0] == pytest.approx(n2.mcus[0], rel=0.01)
    assert own.mcus[0] / front.mcus[0] == pytest.approx(0.98 / 0.90, rel=1e-9)
    assert standard.logic["A16"].power[0] / standard.logic["N2"].power[0] == pytest.approx(0.93, abs=0.002)


def test_leakage_doubles_as_often_as_it_says_and_a_cool_die_leaks_less(standard):
    node = standard.logic["N5"]
    assert heated(np.array([350.0, 375.0, 325.0]), node) == pytest.approx([1.0, 2.0, 0.5])
    assert heated(np.array([5000.0]), node)[0] == 2.0**8
    still = node.model_copy(update={"leakage_doubling": None})
    assert heated(np.array([400.0]), still)[0] == 1.0


def test_a_die_is_as_warm_as_its_coolant_and_its_power(standard):
    """An H100 behind a cold plate with water of 40 C: 79 C."""
    assert junction(np.array([700 / 814e-6]), standard.substrate["silicon-interposer"])[0] == pytest.approx(351.7, abs=0.1)


BETTER = {
    "cooler water": {"techlib.substrate.silicon-interposer.coolant": [318.0, 313.0, 293.0]},
    "better cold plates": {"techlib.substrate.silicon-interposer.thermal_resistance": [60e-6, 45e-6, 25e-6]},
    "less drop": {"techlib.delivery.frontside.supply_drop": [0.07, 0.05, 0.0]},
    "rails that leave room": {
        "techlib.delivery.frontside.rail_area": [0.1, 0.1, 0.1],
        "system.technology.delivery": ["frontside"] * 2 + ["backside"],
    },
    "leakage that grows less": {"techlib.logic.N3.leakage_doubling": [15.0, 25.0, 1e6]},
    "more power": {"system.budgets.power": [600.0, 700.0, 900.0]},
    "a higher speed": {"techlib.logic.N3.speed": [1.45, 1.676, 2.0]},
    "later nodes": {"system.technology.logic": ["N2", "A16", "N1"]},
}


@pytest.mark.cases(4)
@pytest.mark.parametrize("what", BETTER)
@pytest.mark.parametrize("template", ["reference", "chip-h100", "pathfinder"])
def test_less_of_a_loss_is_never_slower(what, template):
    technology = {"logic": "N3", "memory": "HBM4", "substrate": "silicon-interposer"}
    case = product(template=template, techlib="standard", technology=technology)
    points = {path: np.array(values) if isinstance(values[0], float) else values for path, values in BETTER[what].items()}
    time = evaluate(case, points).step_time
    assert np.isfinite(time).all()
    assert (time[1:] <= time[:-1] * 1.001).all(), time


def test_hot_dies_take_more_energy_and_no_more_power_than_they_may():
    case = product(template="chip-h100")
    score = evaluate(case, {"techlib.substrate.silicon-interposer.coolant": np.array([293.0, 318.0])})
    assert score.step_time[1] > score.step_time[0]
    assert (score.power <= 700 * 1.001).all()


def test_delivery_is_swept_like_any_technology_and_a_strange_one_is_refused():
    case = product(template="chip-h100", technology={"logic": "N2"})
    both = evaluate(case, {"system.technology.delivery": ["frontside", "backside"]}).step_time
    alone = [
        evaluate(product(template="chip-h100", technology={"logic": "N2", "delivery": way})).step_time[0]
        for way in ("frontside", "backside")
    ]
    assert both == pytest.approx(alone, rel=1e-12)
    assert alone[1] < alone[0]
    with pytest.raises(CrossflowError, match="has no delivery 'behind'"):
        product(technology={"delivery": "behind"})
    with pytest.raises(CrossflowError, match=r"technology\.delivery: the logic node 'N5' of the library 'deepflow-2024' does not say"):
        evaluate(product(techlib="deepflow-2024", technology={"delivery": "backside", "compute": "matrix-unit-8x8"}))


def test_nodes_with_different_deliveries_are_their_designs_one_by_one():
    names = ["N2", "A16", "A14"]
    together = evaluate(product(), {"system.technology.logic": names}).step_time
    assert together == pytest.approx([evaluate(product(technology={"logic": name})).step_time[0] for name in names], rel=1e-12)


def test_the_temperature_of_the_leakage_counts_only_where_it_grows():
    work = {"model": "gemm", "m": 4096, "n": 4096, "k": 4096}
    paper = crossflow.from_dict({"system": "v100", "workload": work, "strategy": "d1"})
    assert not any(number.path.endswith("leakage_temperature") for number in parameters(paper))
    assert "techlib.logic.N5.leakage_temperature" in [number.path for number in parameters(product())]


# ------------------------------------------------------------------------------------------ bundles that are switched off


def binomial(area, density, share, bundles, broken):
    """Yield by the definition: the mean over a gamma distribution of the density, summed at many quantiles."""
    rng = np.random.default_rng(0)
    x = rng.gamma(CLUSTERING, 1.0 / CLUSTERING, 400_000)
    q = np.exp(-x * density * area * share / bundles)
    sold = sum(math.comb(bundles, i) * (1 - q) ** i * q ** (bundles - i) for i in range(broken + 1))
    return float(np.mean(np.exp(-x * density * area * (1 - share)) * sold))


@pytest.mark.parametrize(("share", "bundles", "broken"), [(0.6, 144, 12), (0.4, 84, 4), (0.7, 10, 1), (1.0, 8, 3)])
def test_yield_with_spares_is_its_definition(share, bundles, broken):
    spares = Spares(area=np.array([share]), bundles=np.array([float(bundles)]), broken=np.array([float(broken)]))
    found = die_yield(np.array([814e-6]), np.array([1000.0]), spares)[0]
    assert found == pytest.approx(binomial(814e-6, 1000.0, share, bundles, broken), rel=3e-3)


def test_limits_of_the_yield_with_spares():
    area, density = np.array([814e-6]), np.array([1000.0])
    whole = die_yield(area, density)
    none, some, all_of_it = (
        die_yield(area, density, Spares(area=np.array([0.6]), bundles=np.array([100.0]), broken=np.array([n]))) for n in (0.0, 5.0, 99.9999)
    )
    assert none == whole  # the same float
    assert whole < some < all_of_it
    assert all_of_it == pytest.approx(die_yield(0.4 * area, density), rel=1e-3)  # only the rest has to work
    assert die_yield(area, np.zeros(1), Spares(area=ONE, bundles=np.array([9.0]), broken=ONE)) == pytest.approx(1.0)


def test_more_spares_yield_more():
    spares = Spares(area=np.array([0.6]), bundles=np.array([120.0]), broken=np.arange(0.0, 40.0, 0.5))
    found = die_yield(np.array([814e-6]), np.array([1000.0]), spares)
    assert (np.diff(found) > -1e-12).all()


def test_dark_bundles_take_area_and_bring_yield():
    lit, dark = device("chip-h100", harvest=0), device("chip-h100")
    assert dark.mcus[0] == pytest.approx(lit.mcus[0] * 132 / 144, rel=1e-6)
    assert dark.units[0] == lit.units[0] == 132
    assert dark.cost["chip"] < 0.75 * lit.cost["chip"]
    used = {use.component: use.used[0] for use in dark.usage if use.resource == "area"}
    before = {use.component: use.used[0] for use in lit.usage if use.resource == "area"}
    assert used["compute"] == pytest.approx(before["compute"], rel=1e-9)  # what is dark is used area all the same
    assert dark.carbon["yield_loss"] < lit.carbon["yield_loss"]


def test_no_harvest_is_the_price_without_it(standard):
    plain = device("reference")
    assert plain.cost["chip"][0] == pytest.approx(die_cost(np.array([814e-6]), standard.logic["N5"])[0], rel=1e-12)


@pytest.mark.parametrize(
    ("chip", "on", "built"),
    [("v100", 80, 84), ("a100", 108, 128), ("h100", 132, 144), ("b200", 148, 160), ("mi210", 104, 112), ("mi300x", 304, 320)],
)
def test_chips_have_their_published_units(chip, on, built):
    spec, _ = resolve(Document(file="x", data={"template": f"chip-{chip}"}))
    assert spec.bundles[0] == on
    assert (spec.bundles * (1 + spec.harvest))[0] == pytest.approx(built, rel=1e-4)


def test_harvest_is_searched_like_any_quantity():
    case = product(harvest=0.05, microarchitecture={"harvest": {"from": 0, "to": 0.2}})
    found = evaluate(case, {"system.harvest": np.array([0.0, 0.05, 0.1])})
    assert (np.diff(found.cost) < 0).any()
    assert (np.diff(found.architecture["mcus"]) < 0).all() if "mcus" in found.architecture else (np.diff(found.step_time) > 0).all()
