"""Named switches and lengths of links: counts as published, laws, refusals, and what they make of time, energy and price."""

import csv
from pathlib import Path

import numpy as np
import pytest

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.answers.explanation import alternatives
from crossflow.base.errors import CrossflowError
from crossflow.base.units import points
from crossflow.cost.collectives import best, in_network_all_reduce
from crossflow.hardware.architecture.network import MOST_TIERS
from crossflow.hardware.architecture.room import Room
from crossflow.hardware.architecture.switching import of_their_number
from crossflow.hardware.architecture.wires import dragonfly, folded_clos, optical_torus

DATA = Path(__file__).parent / "data" / "fabrics_published.csv"
ROOM = Room()


def published():
    with DATA.open(encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def of(*values):
    return np.array(values, dtype=float)


def wired(row):
    devices, ports, radix, taper = (of(float(row[name])) for name in ("devices", "ports", "radix", "taper"))
    if row["kind"] == "clos":
        return folded_clos(devices, ports, radix, ROOM, taper=taper[0])
    if row["kind"] == "optical":
        return optical_torus(devices, (4, 4, 4), ports, radix, ROOM)
    return dragonfly(devices, of(float(row["group"])), ports, radix, ROOM, taper=taper[0])


def system(devices=72, *, link="NVLink6", switch="NVLink6-switch", uplink=None, network=None, **more):
    technology = {"logic": "N3", "memory": "HBM4", "intra_link": link, "intra_switch": switch, "intra_uplink": uplink}
    known = {role: name for role, name in technology.items() if name is not None}
    level = {"intra": network or {}}
    return {"template": "reference", "devices": devices, "devices_per_node": devices, "technology": known, "network": level, **more}


def scenario(devices=72, *, techlib=None, batch=None, **more):
    return crossflow.from_dict(
        {
            "system": system(devices, **more),
            "workload": {"model": "llama3-8b", "task": "decode", "global_batch": batch or devices},
            "strategy": f"tp8-dp{devices // 8}",
            "techlib": techlib or {},
        }
    )


def step(**more):
    return float(crossflow.predict(scenario(**more)).step_time)


# ------------------------------------------------------------------------------------------ as published


@pytest.mark.parametrize("row", published(), ids=lambda row: row["name"])
def test_counts_are_as_published(row):
    found = wired(row)
    assert not any(mask.any() for mask, _ in found.problems)
    assert found.tiers[0] == float(row["tiers"])
    if row["chips"]:
        assert found.chips[0] == float(row["chips"])


def test_the_second_level_of_dgx_gh200_has_36_switches_of_two_chips():
    """The first level differs: 144 chips are enough, and NVIDIA has 96 trays of two chips, which lead four links of a GPU to each."""
    devices, ports, radix = 256, 18, 64
    assert folded_clos(of(devices), of(ports), of(radix), ROOM).chips[0] == ports * devices / (radix / 2) + 36 * 2


def test_a_board_of_eight_takes_three_switches_where_dgx_h100_has_four():
    """144 ports fit three chips of 64; the board has four, whose other ports lead to the network between boards."""
    assert folded_clos(of(8), of(18), of(64), ROOM).chips[0] == 3


def test_a_tpu_pod_has_as_many_optical_links_as_published():
    """6,144 optical links of 4,096 chips with six links each, three electrical ones for each optical one (Jouppi et al. 2023)."""
    found = optical_torus(of(64), (4, 4, 4), of(1), of(136), ROOM)
    inside, outside = (float(span.share[0]) * 4096 * 6 for span in found.spans)
    assert (inside, outside) == (9216, 3072)  # a link joins two faces: 6,144 ends at the switches
    assert 2 * outside == 6144


def test_a_v5p_pod_does_not_fit_the_optical_switch_of_v4():
    """8,960 chips are 140 cubes, which take 280 ports of each switch. What those of v5p have is not published: a bound, no check."""
    found = optical_torus(of(140), (4, 4, 4), of(1), of(136), ROOM)
    assert [sentence for mask, sentence in found.problems if mask.any()] == [
        "an optical switch has fewer ports than two for each node: take one of more ports, or fewer nodes"
    ]


def test_frontiers_group_is_a_balanced_dragonfly_of_64_ports():
    found = dragonfly(of(37888), of(512), of(1), of(64), ROOM)
    assert (found.chips[0] / 74, found.hops[0]) == (32, 4)
    local = next(span for span in found.spans if span.name == "inside groups")
    assert local.share[0] * 512 == 32 * 31 / 2


def test_nvl72_is_one_tier_of_copper_and_its_switches_fit_the_power_of_the_rack():
    """120 kW a rack, of which 18 compute trays take 5.4 kW each (fibermall.com, 2024): the switches are within the rest."""
    made = scenario(72, link="NVLink5", switch="NVLink5-switch").architecture
    assert [float(made.networks[f"intra.{name}"][0]) for name in ("tiers", "hops", "switches", "length")] == [1, 1, 18, 2]
    assert 72 * float(made.network_power[0]) == pytest.approx(18 * 400)
    assert 72 * float(made.network_power[0]) < 120e3 - 18 * 5400


def test_nvl576_needs_two_tiers_and_optics_between_racks():
    copper, optics = scenario(576, switch="NVLink6-switch"), scenario(576, uplink="CPO-200G")
    assert optics.architecture.networks["intra.tiers"][0] == 2
    assert crossflow.predict(optics).feasible
    assert crossflow.predict(copper).reason == (
        "cannot be built: network.intra: the longest link between tiers of switches is 4.1 m, technology.intra_link reaches 2 m: take one"
        " of longer reach, fewer devices (system.devices_per_node), or more of them in a rack (system.room.devices_per_rack)"
    )


# ------------------------------------------------------------------------------------------ laws of the counts

SIZES = np.unique(np.geomspace(2, 200_000, 400).astype(int)).astype(float)


@pytest.mark.parametrize("taper", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("radix", [64.0, 72.0, 512.0])
def test_tiers_and_lengths_rise_with_the_devices_and_no_port_is_used_twice(radix, taper):
    found = folded_clos(SIZES, of(18), of(radix), ROOM, taper=taper)
    fits = ~found.problems[0][0]
    assert (np.diff(found.tiers) >= 0).all()
    assert all((np.diff(span.length) >= 0).all() for span in found.spans[1:])
    up = found.spans[1].share * SIZES
    used = 18 * (SIZES + 2 * up)  # a link between tiers takes a port at each end
    assert (used[fits] <= found.chips[fits] * radix).all()


@pytest.mark.parametrize("tiers", [2, 3, 4])
def test_a_full_clos_uses_every_port(tiers):
    radix = 8.0
    devices = of(2 * (radix / 2) ** tiers)
    found = folded_clos(devices, of(3), of(radix), ROOM)
    assert found.tiers[0] == tiers
    assert found.chips[0] == 3 * (2 * tiers - 1) * devices[0] / radix
    assert found.chips[0] * radix == 3 * (devices[0] + 2 * found.spans[1].share[0] * devices[0])


def test_a_larger_radix_takes_no_more_chips_tiers_or_links():
    radixes = np.arange(8.0, 600.0, 2.0)
    for devices in (16, 72, 576, 4096):
        found = folded_clos(of(devices), of(18), radixes, ROOM)
        fits = ~found.problems[0][0]
        for counted in (found.tiers, found.chips, found.spans[1].share):
            assert (np.diff(counted[fits]) <= 1e-9).all()


def test_more_devices_than_four_tiers_hold_are_refused():
    mask, sentence = folded_clos(of(100_000), of(1), of(8), ROOM).problems[0]
    assert mask.all()
    assert sentence == f"{MOST_TIERS} tiers of its switches do not hold the devices: take a switch of more ports"


def test_a_rack_bounds_the_length_and_racks_lengthen_it():
    devices = of(8, 72, 73, 144, 576, 72 * 16, 72 * 17)
    assert ROOM.to_switch(devices) == pytest.approx([2, 2, 2.3, 2.3, 4.1, 6.5, 8.0])
    assert (ROOM.across(devices) >= ROOM.to_switch(devices)).all()
    assert ROOM.to_neighbour(devices, wraps=True) == pytest.approx([2, 2, 2.6, 2.6, 3.2, 3.2, 8.0])


# ------------------------------------------------------------------------------------------ laws of the step


def test_one_switch_takes_as_long_as_today_where_latencies_are_equal():
    """A link whose latency holds one hop, as it does where `direct_latency` is left out, through a switch that only forwards."""
    given = {"components": {"intra_link": {"latency": "2 us"}}}
    alone = step(devices=64, link="CPO", switch=None, **given)
    forwards = {"switch": {"Quantum-3": {"reduction": 0, "latency": "0.5 us"}}}
    assert step(devices=64, link="CPO", switch="Quantum-3", techlib=forwards, **given) == pytest.approx(alone, rel=1e-12)


def test_a_message_takes_ends_hops_cables_and_modules():
    made = scenario(576, uplink="Pluggable-200G")
    link, up, switch = made.library.link["NVLink6"], made.library.link["Pluggable-200G"], made.library.switch["NVLink6-switch"]
    by_hand = link.direct_latency + 3 * switch.latency + 2 * 2.0 * link.delay + 2 * (up.medium_latency + 4.1 * up.delay)
    assert made.architecture.intra.latency == pytest.approx(by_hand)


BETTER = {
    "ports": ("switch", "NVLink6-switch", "ports", [72, 144, 288, 576]),
    "latency": ("switch", "NVLink6-switch", "latency", ["0.5 us", "0.3 us", "0.1 us"]),
    "power": ("switch", "NVLink6-switch", "power", ["600 W", "400 W", "100 W"]),
    "cost": ("switch", "NVLink6-switch", "cost", ["900 USD", "400 USD", "10 USD"]),
    "reduction": ("switch", "NVLink6-switch", "reduction", [0, 0.5, 1]),
    "reach": ("link", "CPO-200G", "reach", ["1 m", "4 m", "5 m", "500 m"]),
    "medium_energy": ("link", "CPO-200G", "medium_energy_per_bit", ["17 pJ/bit", "5 pJ/bit", "0 pJ/bit"]),
    "medium_cost": ("link", "CPO-200G", "medium_cost", ["200 USD", "50 USD", "0 USD"]),
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("what", BETTER)
def test_a_better_switch_or_medium_is_never_worse(what):
    section, name, field, values = BETTER[what]
    still = {"techlib.link.NVLink6.delay": ["0 s/m"] * len(values)}  # a leaf of more devices has longer cables, and needs them
    score = evaluate(scenario(576, uplink="CPO-200G"), {f"techlib.{section}.{name}.{field}": values, **still})
    for column in ("step_time_s", "energy_j", "cost_usd"):
        assert (np.diff(score.columns()[column]) <= 1e-9 * score.columns()[column][0]).all(), column
    assert (np.diff(score.feasible.astype(int)) >= 0).all()
    moved = [column for column in ("step_time_s", "energy_j", "cost_usd", "feasible") if len(set(score.columns()[column])) > 1]
    assert moved


@pytest.mark.parametrize(
    ("devices", "hops", "chips", "inside", "between", "passes"),
    [
        (4, 1, 1, 0.0, 0.0, (2, 0, 0)),  # one router
        (8, 2, 2, 1 / 8, 0.0, (2, 2, 0)),  # two, and one link between them
        (32, 2, 8, 8 * 7 / 2 / 32, 0.0, (2, 2, 0)),  # a whole group
        (33, 4, 16, 8 * 7 / 2 / 32, 0.5, (2, 2, 1)),  # and another with as many routers, and a link for each device, counted once
        (64, 4, 16, 8 * 7 / 2 / 32, 0.5, (2, 2, 1)),
        (96, 4, 24, 8 * 7 / 2 / 32, 0.5, (2, 2, 1)),
    ],
)
def test_a_dragonfly_by_hand(devices, hops, chips, inside, between, passes):
    """Routers of 16 ports have four devices; a group of 32 has eight, with 8 x (16 - 4 - 7) = 40 ports for others; two networks."""
    found = dragonfly(points(float(devices)), points(32.0), points(2.0), points(16.0), Room())
    assert (found.tiers.item(), found.hops.item(), found.chips.item()) == (1, hops, 2 * chips)
    assert [span.share.item() for span in found.spans] == [1.0, inside, between]
    assert tuple(span.passes.item() for span in found.spans) == passes
    assert not any(problem.any() for problem, _ in found.problems)


@pytest.mark.parametrize(
    ("group", "taper", "problems"),
    [
        (32, 1.0, [False, False]),  # twice as many routers as devices on each
        (33, 1.0, [True, False]),  # nine, of which each has 16 - 4 - 8 ports left: 36
        (36, 1.0, [True, False]),
        (40, 1.0, [True, True]),  # ten, of which each has three
        (40, 1.5, [True, False]),  # 27 links
        (4, 1.0, [False, True]),  # one with twelve, and 19 other groups
    ],
)
def test_groups_of_a_dragonfly_have_ports_for_all_links_or_are_refused(group, taper, problems):
    found = dragonfly(points(80.0), points(float(group)), points(1.0), points(16.0), Room(), taper=taper)
    assert [problem.item() for problem, _ in found.problems] == problems


WIRINGS = [
    lambda devices, radix: folded_clos(devices, points(4.0), radix, Room(), taper=2.0),
    lambda devices, radix: folded_clos(devices, points(4.0), radix, Room(), tiers=3, abreast=8, near=points(16.0)),
    lambda devices, radix: dragonfly(devices, points(64.0), points(4.0), radix, Room()),
    lambda devices, radix: dragonfly(devices, np.minimum(devices, 32.0), points(2.0), radix, Room(), taper=2.0),
    lambda devices, radix: optical_torus(devices, (4, 4, 4), points(1.0), radix, Room()),
]


@pytest.mark.parametrize("made", WIRINGS)
def test_every_number_of_a_wiring_is_that_of_its_point(made):
    def numbers(wiring):
        spans = [number for span in wiring.spans for number in (span.share, span.length, span.passes)]
        return [wiring.tiers, wiring.hops, wiring.chips, *spans, *(mask for mask, _ in wiring.problems)]

    devices, radix = np.array([1.0, 16.0, 64.0, 500.0, 4096.0]), np.array([16.0, 24.0, 64.0, 64.0, 128.0])
    each = [numbers(made(devices[[i]], radix[[i]])) for i in range(5)]
    for together, *alone in zip(numbers(made(devices, radix)), *each, strict=True):
        np.testing.assert_allclose(np.broadcast_to(together, 5), np.concatenate(alone), rtol=1e-12)


def test_points_of_a_batch_are_as_they_are_alone():
    base = scenario(576, uplink="CPO-200G")
    tried = {
        "system.technology.intra_switch": ["NVLink6-switch", "Tomahawk6", "Quantum-3", "Tomahawk6"],
        "system.technology.intra_link": ["NVLink6", "Pluggable-200G", "CPO-200G", "ActiveCopper-200G"],
        "system.room.devices_per_rack": [72, 36, 144, 18],
    }
    score = evaluate(base, tried)
    for i in range(4):
        alone = evaluate(base, {path: values[i : i + 1] for path, values in tried.items()})
        assert alone.columns()["step_time_s"][0] == pytest.approx(score.columns()["step_time_s"][i], rel=1e-12)
        assert alone.columns()["energy_j"][0] == pytest.approx(score.columns()["energy_j"][i], rel=1e-12)
        assert alone.columns()["cost_usd"][0] == pytest.approx(score.columns()["cost_usd"][i], rel=1e-12, nan_ok=True)
        assert (alone.feasible[0], alone.why(0)) == (score.feasible[i], score.why(i))


def test_the_number_of_devices_changes_the_switches_between_nodes_within_one_study():
    """Numbers of devices share a batch where the device does not depend on them; with switches that are counted it does."""
    data = {
        "system": {"template": "reference", "nodes": 8, "technology": {"inter_switch": "Quantum-3", "inter_link": "XDR"}},
        "workload": {"model": "llama3-8b", "global_batch": 4096, "sequence": 2048},
        "strategy": "dp64-z1",
    }
    base = crossflow.from_dict(data)
    counts = [8, 32, 512]
    score = evaluate(base, {"system.nodes": counts, "strategy": [f"dp{8 * count}-z1" for count in counts]})
    assert score.columns()["architecture.inter.tiers"].tolist() == [1, 2, 2]
    for i, count in enumerate(counts):
        alone = crossflow.predict(base, nodes=count, strategy=f"dp{8 * count}-z1")
        assert float(alone.step_time) == pytest.approx(score.step_time[i], rel=1e-12)


def test_energy_and_price_hold_the_switches():
    base = scenario(576, uplink="CPO-200G")
    found = crossflow.predict(base)
    score, made = found.score, base.architecture
    free = evaluate(base, {"techlib.switch.NVLink6-switch.power": ["0 W"], "techlib.switch.NVLink6-switch.cost": ["0 USD"]})
    chips = float(made.networks["intra.switches"][0])
    assert score.energy[0] - free.energy[0] == pytest.approx(chips * 400 * score.step_time[0])
    assert score.cost[0] - free.cost[0] == pytest.approx(chips * 400)
    assert found.to_dict()["architecture"]["network.power"] == pytest.approx(float(made.network_power[0]))


def test_a_link_without_a_price_of_its_medium_leaves_the_price_unknown():
    assert np.isnan(evaluate(scenario(64, link="NDR-x8", switch="Quantum-3")).cost[0])


def test_prices_of_a_batch_are_as_they_are_alone():
    """An entry without a price of its medium beside one that has it; and a switch without a price."""
    links = ["CPO-200G", "NDR-x8", "Copper-200G"]
    both = evaluate(scenario(64, switch="Quantum-3"), {"system.technology.intra_link": links})
    alone = [evaluate(scenario(64, switch="Quantum-3", link=link)).cost[0] for link in links]
    assert both.cost == pytest.approx(alone, nan_ok=True)
    assert np.isnan(alone).tolist() == [False, True, False]


def test_a_medium_that_a_design_does_not_use_needs_no_price():
    """Eight racks need uplinks, one has none of them: there an uplink without a price costs nothing, beside another as alone."""
    devices, uplinks = [576, 72], ["CPO-200G", "NDR-x8"]
    sweep = {"system.devices": devices, "system.devices_per_node": devices, "strategy": [f"tp8-dp{n // 8}" for n in devices]}
    both = evaluate(scenario(576, uplink="CPO-200G"), {**sweep, "system.technology.intra_uplink": uplinks})
    alone = [evaluate(scenario(n, uplink=uplink)).cost[0] for n, uplink in zip(devices, uplinks, strict=True)]
    assert both.cost == pytest.approx(alone, rel=1e-12)
    assert alone[1] == evaluate(scenario(72)).cost[0]
    assert np.isnan(evaluate(scenario(576, uplink="NDR-x8")).cost[0])


def test_spare_lanes_cost_and_carry_nothing():
    plain, spared = (scenario(72, network=network) for network in ({}, {"spare": 0.25}))
    one, two = plain.architecture, spared.architecture
    lanes = two.networks["intra.spare"][0]
    assert lanes == 8  # of 40 lanes 32 work
    assert two.intra.bandwidth[0] < one.intra.bandwidth[0]
    assert two.cost["intra_link"] == one.cost["intra_link"]
    assert two.networks["intra.switches"] == one.networks["intra.switches"]


def test_more_tiers_keep_copper_inside_racks():
    """512 ports would hold 288 devices in one tier, whose links leave the racks; two tiers leave only the uplinks for optics."""
    one = scenario(288, link="Copper-200G", switch="Tomahawk6")
    assert "technology.intra_link reaches 2 m" in crossflow.predict(one).reason
    two = scenario(288, link="Copper-200G", switch="Tomahawk6", uplink="CPO-200G")
    assert two.architecture.networks["intra.tiers"][0] == 2
    assert crossflow.predict(two).feasible


def test_tiers_may_be_more_than_it_takes():
    one, two = (scenario(72, network=network) for network in ({}, {"tiers": 2}))
    assert [float(made.architecture.networks["intra.tiers"][0]) for made in (one, two)] == [1, 2]
    assert step(devices=72, network={"tiers": 2}) > step(devices=72)


def test_a_longer_reach_under_optical_uplinks_is_never_worse():
    base = scenario(576, link="ActiveCopper-200G", switch="Tomahawk6", uplink="CPO-200G")
    free = {"techlib.link.ActiveCopper-200G.delay": ["0 s/m"] * 6}  # but for the way along longer cables
    score = evaluate(base, {"techlib.link.ActiveCopper-200G.reach": ["1 m", "2 m", "2.5 m", "3 m", "4 m", "9 m"], **free})
    assert score.feasible.tolist() == [False, True, True, True, True, True]
    assert score.columns()["architecture.intra.tiers"].tolist() == [2, 2, 2, 2, 2, 2]
    assert (np.diff(score.columns()["architecture.intra.switches"][1:]) <= 0).all()
    assert (np.diff(score.step_time[1:]) <= 1e-12).all()


# ------------------------------------------------------------------------------------------ reduction in the network


def test_reduction_halves_the_volume_of_a_ring():
    size, rate, none = of(1e9), of(1e12), of(0.0)
    ring = best("all_reduce", size, 64, rate, none, True, none)
    assert in_network_all_reduce(size, 64, rate, none) == pytest.approx((1 + 1 / 64) / (2 * 63 / 64) * ring)


def test_only_a_switch_that_reduces_shortens_an_all_reduce():
    forwards = {"switch": {"NVLink6-switch": {"reduction": 0}}}
    for batch in (72, 72 * 32):  # by its latency, by its volume
        assert step(batch=batch) < step(batch=batch, techlib=forwards)


def test_an_ideal_node_before_a_real_network_reduces_as_its_switch_says():
    """Such nodes reduce where no switch is named; one that is named and only forwards must not."""
    more = {"network": {"fabric": "ideal"}, "link": "NVLink6"}
    data = scenario(64, switch="NVLink6-switch", **more).to_dict()
    data["system"] = {**data["system"], "devices": 128, "network": {"intra": {"fabric": "ideal"}, "inter": {"fabric": "infiniband"}}}
    data["strategy"], data["workload"] = "tp8-dp16", {**data["workload"], "global_batch": 128 * 64}
    reduces, forwards, unnamed = (crossflow.from_dict(data) for _ in range(3))
    forwards = crossflow.from_dict({**data, "techlib": {"switch": {"NVLink6-switch": {"reduction": 0}}}})
    unnamed_system = {**data["system"], "technology": {**data["system"]["technology"]}}
    del unnamed_system["technology"]["intra_switch"]
    unnamed = crossflow.from_dict({**data, "system": unnamed_system})
    times = [float(crossflow.predict(one).step_time) for one in (reduces, forwards, unnamed)]
    assert times[0] < times[1]
    assert times[2] < times[1]


# ------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"network": {"topology": "mesh2d"}},
            "technology.intra_switch names a switch, but network.intra is wired as mesh2d: leave it out, or take topology switch",
        ),
        (
            {"switch": None, "network": {"spare": 0.1}},
            "network.intra.spare is of switches, and none is named: give technology.intra_switch, or leave it out",
        ),
        (
            {"switch": None, "network": {"tiers": 2}},
            "network.intra.tiers is of switches, and none is named: give technology.intra_switch, or leave it out",
        ),
        (
            {"switch": None, "uplink": "CPO-200G"},
            "technology.intra_uplink is a link between switches, and none is named: give technology.intra_switch, or leave it out",
        ),
        ({"network": {"tiers": 5}}, "system.network.intra.tiers: expected at most 4, got 5"),
        ({"switch": "NVLink7-switch"}, "technology library 'standard' has no switch 'NVLink7-switch'; did you mean 'NVLink6-switch'?"),
        ({"room": {"rack_cable": "2 us"}}, "system.room.rack_cable: expected a quantity in m, got '2 us'"),
    ],
)
def test_what_cannot_be_is_told(given, sentence):
    with pytest.raises(CrossflowError) as error:
        scenario(64, **given)
    assert sentence in str(error.value)


def test_datasheet_systems_have_no_switches_to_count():
    with pytest.raises(CrossflowError, match=r"network\.intra: tiers, onward and spare are of generated systems, whose switches are named"):
        crossflow.from_dict(
            {"system": {"template": "dgx-h100", "network": {"intra": {"spare": 0.1}}}, "workload": "llama3-8b", "strategy": "tp8"}
        )


def test_fast_lanes_through_a_slow_switch_cannot_be_built():
    assert crossflow.predict(scenario(64, switch="Tomahawk5")).reason == (
        "cannot be built: the lanes of technology.intra_link are faster than those of its switch: take a switch as fast"
    )


def test_mirrors_switch_no_messages_and_a_leaf_holds_its_group():
    assert crossflow.predict(scenario(64, switch="Palomar")).reason == (
        "cannot be built: technology.intra_switch has mirrors that turn light and cannot switch messages: it is for an optical-torus"
    )
    tree = {"topology": "fat-tree", "group": 72, "oversubscription": 2}
    assert crossflow.predict(scenario(576, uplink="CPO-200G", network=tree)).reason == (
        "cannot be built: network.intra: a leaf switch has fewer ports for devices than its group: take a smaller group, or more ports"
    )
    fits = scenario(576, uplink="CPO-200G", network={**tree, "group": 48})
    assert crossflow.predict(fits).feasible
    assert fits.architecture.networks["intra.switches"][0] < scenario(576, uplink="CPO-200G").architecture.networks["intra.switches"][0]


@pytest.mark.parametrize(("role", "name"), [("inter_switch", "Quantum-3"), ("intra_uplink", "CPO-200G")])
def test_what_no_link_goes_through_is_told(role, name):
    data = scenario(72).to_dict()
    data["system"] = {**data["system"], "technology": {**data["system"]["technology"], role: name}}
    notes = crossflow.predict(crossflow.from_dict(data)).notes
    assert any(note.startswith(f"system.technology.{role} changes nothing here: ") for note in notes)


def pod(cubes=8, **technology):
    """TPU v4 chips in cubes of 4 x 4 x 4, joined by optical switches."""
    return crossflow.from_dict(
        {
            "system": {
                "template": "reference",
                "nodes": cubes,
                "devices_per_node": 64,
                "room": {"devices_per_rack": 64},
                "technology": {"intra_link": "ICI", "inter_switch": "Palomar", "inter_uplink": "ICI-optical", **technology},
                "network": {"intra": {"topology": "torus3d", "ports": 6}, "inter": {"topology": "optical-torus"}},
            },
            "workload": {"model": "llama3-8b", "global_batch": 64 * cubes, "sequence": 2048},
            "strategy": f"dp{64 * cubes}-z1",
        }
    )


def test_cubes_that_optical_switches_join_count_and_reach():
    made = pod(64).architecture
    assert made.networks["inter.switches"][0] == 48
    assert made.networks["inter.length"][0] > 2  # cubes are racks; the links between them leave these
    # USD a lane of 48: a quarter of the ends of links lead to switches by optics, the others lie in a cube
    assert made.cost["intra_link"][0] == pytest.approx(48 * (0.125 * 125 + 0.375 * 12.5))
    assert made.cost["inter_switch"][0] == pytest.approx(48 * 30000 / 4096)
    of_the_library = 28 * 48  # what the library reckons a lane of ICI with its optics and switches, another way
    assert made.networks["network.cost"][0] == pytest.approx(of_the_library, rel=0.02)
    assert crossflow.predict(pod(8)).feasible
    assert "more ports, or fewer nodes" in crossflow.predict(pod(80)).reason
    assert "switches messages" in crossflow.predict(pod(8, inter_switch="Quantum-3")).reason


def test_a_reach_holds_without_a_switch_too():
    far = crossflow.predict(scenario(512, switch=None))
    assert far.reason == (
        "cannot be built: network.intra: the longest link is 4.1 m, technology.intra_link reaches 2 m: take one of longer reach, fewer"
        " devices (system.devices_per_node), or more of them in a rack (system.room.devices_per_rack)"
    )
    assert crossflow.predict(scenario(72, switch=None)).feasible


def test_a_room_that_no_link_asks_for_is_told():
    made = scenario(64, link="CPO", switch=None, room={"devices_per_rack": 8})
    assert any("system.room.devices_per_rack changes nothing here" in note for note in crossflow.predict(made).notes)


def test_figures_are_columns_that_know_what_is_better():
    columns = evaluate(scenario(72)).columns()
    from crossflow.answers.score import larger_is_better, unit_of

    for name, unit in {"intra.length": "m", "network.power": "W", "network.cost": "USD", "intra.tiers": "1"}.items():
        assert f"architecture.{name}" in columns
        assert unit_of(f"architecture.{name}") == unit
        assert not larger_is_better(f"architecture.{name}")


def test_a_network_is_offered_no_link_of_a_domain():
    """A link from a package to the switches of its own node has a price of another scope than one with adapter and network."""
    links = scenario(72).library.link
    assert not alternatives._reaches(links["XDR"], links["CPO-200G"])
    assert alternatives._reaches(links["XDR"], links["CPO"])
    assert alternatives._reaches(links["NVLink6"], links["CPO-200G"])


def test_lengths_are_quantities_of_a_room():
    assert Room(devices_per_rack=points(36)).to_switch(of(72)) == pytest.approx(2.3)


def test_on_package_links_leave_no_package():
    """Between dies of one substrate no room says how long links are; through a switch, or between packages, they do not reach."""
    data = {
        "system": {"template": "reference", "devices": 8, "technology": {"intra_link": "UCIe-3-advanced"}},
        "workload": {"model": "llama3-8b", "global_batch": 8}, "strategy": "tp8",
    }  # fmt: skip
    apart = crossflow.evaluate(crossflow.from_dict(data))
    assert "technology.intra_link reaches 0.002 m" in apart.why(0)
    switched = {**data, "system": {**data["system"], "technology": {"intra_link": "UCIe-3-advanced", "intra_switch": "Tomahawk6"}}}
    assert not crossflow.evaluate(crossflow.from_dict(switched)).feasible[0]
    together = {**data["system"], "template": "mcm", "devices": 4}
    joined = crossflow.evaluate(crossflow.from_dict({**data, "system": together, "strategy": "tp4"}))
    assert "reaches" not in str(joined.why(0))


def test_fewer_tiers_than_it_takes_are_refused_in_words():
    """144 devices, and a switch of 144 ports with 18 planes each: copper reaches 72 of them."""
    given = {"devices": 144, "link": "Copper-200G", "uplink": "CPO-200G"}
    one = crossflow.predict(scenario(**given, network={"tiers": 1}))
    assert "network.intra: 1 tier of its switches does not hold the devices: give it more tiers, or leave tiers out" in one.reason
    assert not any("network.intra.tiers" in note for note in one.notes)
    assert crossflow.predict(scenario(**given, network={"tiers": 2})).feasible


@pytest.mark.parametrize(
    ("links", "ports", "devices", "onward", "switches"),
    [
        # HGX A100: six switches of 36 ports, two links of each device to each, as many ports for a second board of eight (NVIDIA A100
        # white paper, 2020; HGX-2 likewise with 18 ports of the V100's switch)
        (12, 36, 8, 1.0, 6),
        (6, 18, 8, 1.0, 6),
        # DGX H100: four switches of 64 ports, 5 + 4 + 4 + 5 links of each device, 72 links of 144 leave (NVIDIA H100 white paper, 2022)
        (18, 64, 8, 2.0, 4),
        (18, 72, 72, None, 18),  # NVL72 keeps none
    ],
)
def test_ports_that_are_kept_for_a_further_network_decide_how_many_switches_there_are(links, ports, devices, onward, switches):
    made = folded_clos(of(devices), of(links), of(ports), ROOM, onward=onward)
    assert (made.tiers[0], made.chips[0]) == (1, switches)


def test_ports_are_kept_by_named_switches_of_one_tier():
    kept = scenario(8, link="NVLink5", switch="NVLink5-switch", network={"onward": 2})
    plain = scenario(8, link="NVLink5", switch="NVLink5-switch")
    assert kept.architecture.networks["intra.switches"][0] > plain.architecture.networks["intra.switches"][0]
    assert (
        "only switches of a single tier keep ports for a further network (onward)"
        in crossflow.predict(scenario(576, link="CPO-200G", switch="NVLink5-switch", network={"onward": 1})).reason
    )
    with pytest.raises(CrossflowError, match=r"network.intra.onward: a torus2d has no tiers; leave it out"):
        scenario(8, switch=None, network={"onward": 2, "topology": "torus2d"})
    with pytest.raises(CrossflowError, match=r"network.intra.onward is of switches, and none is named"):
        scenario(8, switch=None, network={"onward": 2})


@pytest.mark.parametrize(
    ("node", "links", "counts"),
    [
        (72, {"inter_link": "NVLink6"}, True),  # one link that has a reach is enough, whatever the others have
        (72, {"intra_link": "NVLink6"}, False),  # inside a rack it is as long with fewer devices
        (144, {"intra_link": "NVLink6"}, True),
        (72, {}, False),
        (72, {"intra_link": "NVLink6", "intra_switch": "NVLink6-switch"}, True),
    ],
)
def test_a_device_depends_on_how_many_there_are_by_any_link_between_racks_or_switch(node, links, counts):
    technology = {"logic": "N3", "memory": "HBM4", **links}
    read = crossflow.from_dict(
        {
            "system": {"template": "reference", "devices": 144, "devices_per_node": node, "technology": technology},
            "workload": {"model": "llama3-8b", "task": "decode", "global_batch": 144},
            "strategy": "tp8-dp18",
        }
    )
    assert of_their_number(read.system, read.library, {}) is counts
