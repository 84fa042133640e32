"""Chips without main memory: the farthest on-chip level holds everything, and nothing of the budgets goes to memory."""

import numpy as np
import pytest

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.base.errors import SpecError

NONE = {"logic": "N5", "memory": "none"}
ALL_THREE = ["registers", "l1", "l2"]


def scenario(strategy="tp8", template="reference", software=None, workload=None, **system):
    return crossflow.from_dict(
        {
            "system": {"template": template, "devices": 8, "technology": NONE, **system},
            "workload": {"model": "llama3-8b", "task": "decode", "global_batch": 1, "prompt": 512, "output": 64, **(workload or {})},
            "strategy": strategy,
            "software": software or "ideal",
        }
    )


def test_the_farthest_level_on_the_chip_is_main_memory():
    device = scenario().architecture
    assert [level.name for level in device.levels] == ALL_THREE
    assert device.memory.name == "l2"
    assert {use.component for use in device.usage} == {"compute", *ALL_THREE, "intra_link", "inter_link"}
    assert "memory" not in {*device.cost, *device.carbon}


def test_nothing_is_drawn_or_bought_for_memory():
    """The same die with stacks draws more at rest and costs more; its caches and links are the same."""
    without, beside = scenario().architecture, scenario(technology={"logic": "N5", "memory": "HBM3"}).architecture
    assert (without.static_power < beside.static_power).all()
    assert sum(without.cost.values()) < sum(beside.cost.values())
    for name in ALL_THREE:
        assert without.level(name).capacity == pytest.approx(beside.level(name).capacity)
        assert without.level(name).bandwidth == pytest.approx(beside.level(name).bandwidth)


def test_a_device_holds_what_its_on_chip_memory_holds():
    score = evaluate(scenario())
    device = scenario().architecture
    assert score.memory_capacity[0] == pytest.approx(float(device.level("l2").capacity[0]))
    assert not score.feasible[0]
    assert "memory per device" in crossflow.predict(scenario()).reason


def test_many_chips_hold_what_one_does_not():
    """16 GB of weights over 8 chips of some 65 MB do not fit; dies of stacked cells on them hold enough."""
    stacked = {"levels": {"l2": {"stacked_area": "700 mm2"}}}
    chips = {"devices": 256, "strategy": "tp8-pp32", "workload": {"global_batch": 32}}
    small, large = scenario(**chips), scenario(**chips, **stacked)
    assert large.architecture.memory_capacity > 3 * small.architecture.memory_capacity
    assert not evaluate(small).feasible[0]
    assert evaluate(large).feasible[0]


def test_decoding_takes_the_time_of_the_on_chip_memory():
    """Of one request each chip reads its eighth of the weights once."""
    found = evaluate(scenario())
    device = scenario().architecture
    least = found.memory["weights"][0] * (1 - 128256 * 4096 / 8.03e9) / device.memory.bandwidth[0]  # rows of the table are looked up
    assert least <= found.step_time[0]
    faster = scenario(levels={"l2": {"utilisation": 0.999}})
    assert evaluate(faster).step_time[0] < found.step_time[0]
    assert found.bound["l2"][0] > max(0.1, found.bound["l1"][0], found.bound["registers"][0])


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"budgets": {"area": {"memory": 0.1}}}, "budgets.area.memory"),
        ({"budgets": {"perimeter": {"memory": 0.1}}}, "budgets.perimeter.memory"),
        ({"memory_utilisation": 0.9}, "memory_utilisation"),
        ({"memory_static_share": 0.1}, "memory_static_share"),
        ({"components": {"memory": {"device_capacity": "24 GiB"}}}, "components.memory"),
    ],
)
def test_what_a_section_gives_to_memory_that_is_not_there_is_refused(given, where):
    with pytest.raises(SpecError) as caught:
        scenario(**given)
    message = f"{where}: technology.memory is none, and nothing goes to memory that is not there; leave it out"
    assert message in str(caught.value)


def test_a_sweep_over_memories_and_none_is_each_by_itself():
    base, memories = scenario(technology={"logic": "N5", "memory": "HBM3"}), ["HBM3", "none", "HBM4", "None"]
    nodes = ["N5", "N3", "N3", "N5"]
    together = evaluate(base, {"system.technology.memory": memories, "system.technology.logic": nodes})
    alone = [evaluate(scenario(technology={"logic": node, "memory": name})) for name, node in zip(memories, nodes, strict=True)]
    assert together.step_time == pytest.approx([one.step_time[0] for one in alone])
    assert together.memory_capacity == pytest.approx([one.memory_capacity[0] for one in alone])


@pytest.mark.cases(1)
@pytest.mark.parametrize("template", ["reference-serving", "chip-h100", "chip-v100", "mcm", "waferscale"])
def test_any_generated_template_can_do_without(template):
    devices = {"mcm": 4, "waferscale": 20}.get(template, 8)
    system = {"technology": {"memory": "none"}, "devices": devices}
    found = scenario(template=template, strategy=f"tp4-dp{devices // 4}", workload={"global_batch": 40}, **system)
    assert found.architecture.memory.name == "l2"
    assert np.isfinite(evaluate(found).step_time[0])


def test_a_chip_may_have_a_single_level():
    one = scenario(levels={"registers": None, "l1": None})
    assert [level.name for level in one.architecture.levels] == ["l2"]
    assert np.isfinite(evaluate(one).step_time[0])


# ------------------------------------------------------------------------------------------ published figures

SRAM = {"scope": "device", "capacity": "230 MB", "bandwidth": "80 TB/s", "latency": "0 ns"}


def datasheet(levels, memory):
    system = {
        "kind": "datasheet", "name": "chip", "family": "cpu", "technology": {"logic": "N12", "memory": memory, "link": "NVLink2"},
        "units": 20, "clock": "0.9 GHz", "throughput": {"fp16": "188 Tflop/s"}, "vector_throughput": {"fp32": "10 Tflop/s"},
        "levels": levels, "power": {"tdp": "300 W"}, "energy": {"memory": "0.1 pJ/bit"},
        "network": {"intra": {"topology": "switch", "bandwidth": "240 GB/s", "latency": "500 ns"}}, "devices_per_node": 8,
    }  # fmt: skip
    given = {
        "system": {"template": system, "devices": 8}, "strategy": "tp8", "software": "ideal",
        "workload": {"model": "llama3-8b", "dtype": "fp16", "task": "decode", "global_batch": 1, "prompt": 512, "output": 64},
    }  # fmt: skip
    return crossflow.from_dict(given)


def test_a_published_chip_of_sram_is_one_whose_memory_has_its_figures():
    l1 = {"scope": "unit", "capacity": "1 MB", "bandwidth": "160 TB/s"}
    on_chip, beside = datasheet({"l1": l1, "l2": SRAM}, "none"), datasheet({"l1": l1, "memory": SRAM}, "HBM2")
    one, other = evaluate(on_chip), evaluate(beside)
    assert on_chip.architecture.memory.name == "l2"
    assert one.step_time == pytest.approx(other.step_time)
    assert one.energy == pytest.approx(other.energy)
    assert one.memory_capacity == other.memory_capacity


def test_cores_with_memories_of_their_own_add_up():
    cores = {"l1": {"scope": "unit", "capacity": "11.5 MB", "bandwidth": "80 TB/s"}}
    assert evaluate(datasheet(cores, "none")).memory_capacity[0] == pytest.approx(230e6)


@pytest.mark.parametrize(
    ("levels", "sentence"),
    [
        ({"l2": SRAM, "memory": SRAM}, "memory: technology.memory is none, so the farthest on-chip level is main memory; leave it out"),
        ({"l2": {"scope": "device", "capacity": "1 MB"}}, "l2: it is main memory here (technology.memory: none) and needs a bandwidth"),
        ({}, "at least one on-chip level is needed"),
    ],
)  # fmt: skip
def test_what_a_published_chip_of_sram_lacks_is_told(levels, sentence):
    with pytest.raises(SpecError, match=r".*") as caught:
        datasheet(levels, "none")
    assert sentence in str(caught.value)


def test_a_system_with_memory_must_say_how_well_it_is_used(gemm):
    whole = {**gemm("pathfinder").system_document.data}
    del whole["memory_utilisation"]
    with pytest.raises(SpecError, match="memory_utilisation: the key is missing"):
        crossflow.from_dict({"system": {"template": whole}, "workload": {"model": "lstm-16k"}, "strategy": "d8"})


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.parametrize("base", ["HBM3", "none"])
def test_memories_and_nodes_of_a_template_with_divisions_vary_together(base):
    """Each pair has the division of its own row, whatever the scenario's memory is."""
    data = {
        "system": {"template": "reference-serving", "devices": 8, "technology": {"logic": "N3", "memory": base}},
        "workload": {"model": "llama3-8b", "task": "decode", "global_batch": 16, "prompt": 1000, "output": 200},
        "strategy": "tp8",
    }
    scenario = crossflow.from_dict(data)
    pairs = [(memory, node) for memory in ("HBM3", "none") for node in ("N5", "N2")]
    swept = crossflow.evaluate(
        scenario, {"system.technology.memory": [m for m, _ in pairs], "system.technology.logic": [n for _, n in pairs]}
    )
    for i, (memory, node) in enumerate(pairs):
        alone = crossflow.predict(scenario, {"system.technology.memory": memory, "system.technology.logic": node})
        assert (swept.step_time[i], bool(swept.feasible[i])) == (pytest.approx(alone.step_time, rel=1e-12), alone.feasible)
    assert crossflow.predict(scenario, {"system.technology.memory": "none"}).trust.level == "unknown"
