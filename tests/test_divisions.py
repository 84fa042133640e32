"""Budgets divided by logic node and memory: the row of a design's own technology holds, and what a user gives holds over it."""

from pathlib import Path

import numpy as np
import pytest

from crossflow import evaluate, from_dict, load, predict
from crossflow.base.errors import SpecError
from crossflow.base.files import Document
from crossflow.base.units import parse
from crossflow.hardware.architecture.system import resolve

ROOT = Path(__file__).parents[1]
MEMORIES = ("HBM2", "HBM2e", "HBM3", "HBM3e", "HBM4", "HBM4E")
TABLE = """# found by a search
logic,memory,area.compute,area.on_chip.l2,power_shares.compute
N7,HBM3,0.30,0.12,0.27
N5,HBM4,0.25,0.16,0.20
"""
SCENARIO = """
system:
  template: chip.yaml
  devices: 1
  technology: {logic: LOGIC, memory: HBM3}
workload: {model: gemm, m: 4096, n: 4096, k: 4096, dtype: fp16}
"""
TEMPLATE = """
kind: system
name: chip
device: pathfinder
sources: {table: "tests"}
budgets: {divisions: {file: table.csv, source: table}}
"""


@pytest.fixture
def scenario(tmp_path):
    (tmp_path / "table.csv").write_text(TABLE)
    (tmp_path / "chip.yaml").write_text(TEMPLATE)

    def make(logic="N7", more="", memory="HBM3"):
        path = tmp_path / "scenario.yaml"
        text = SCENARIO.replace("LOGIC", logic).replace("HBM3", memory)
        path.write_text(text.replace("  devices: 1", f"  devices: 1\n{more}"))
        return load(path)

    return make


def shares(case):
    area = case.system.budgets.area
    return float(area.compute[0]), float(area.on_chip["l2"][0])


def test_a_system_takes_the_row_of_its_node_and_memory(scenario):
    assert shares(scenario("N7")) == (0.30, 0.12)


def test_without_a_row_for_its_memory_the_shares_of_the_template_hold_and_a_note_says_so(scenario):
    plain, _ = resolve(Document(file="here", data={"template": "pathfinder"}))
    case = scenario("N3", memory="HBM2")
    assert case.system.budgets.area == plain.budgets.area
    assert "for N3 with HBM2, nor for that memory; it keeps the shares of its template, and may rank below" in " ".join(predict(case).notes)


def test_a_node_beyond_all_rows_takes_the_nearest_and_a_note_says_so(scenario):
    case = scenario("N3")
    assert shares(case) == (0.30, 0.12)
    assert "no division of its budgets for N3 with HBM3; it takes that of N7, the nearest node" in " ".join(predict(case).notes)
    assert not any("division" in note for note in predict(scenario("N7")).notes)


def test_a_node_between_two_rows_takes_what_lies_between_them(scenario, tmp_path):
    """By the logarithm of the area of logic: alone, in a batch and for whole numbers; 0.30 and 0.20 at N7 and N3."""
    (tmp_path / "table.csv").write_text(
        "logic,memory,area.compute,power_shares.compute,bundles\nN7,HBM3,0.30,0.27,60\nN3,HBM3,0.20,0.20,240\n"
    )
    (tmp_path / "chip.yaml").write_text(f"{TEMPLATE}microarchitecture: {{bundles: {{from: 1, to: 1000}}}}\n")
    case = scenario("N5")
    areas = {name: float(case.library.logic[name].area[0]) for name in ("N7", "N5", "N3")}
    part = np.log(areas["N5"] / areas["N3"]) / np.log(areas["N7"] / areas["N3"])
    assert float(case.system.budgets.area.compute[0]) == pytest.approx(0.20 + 0.10 * part, rel=1e-12)
    assert float(case.system.bundles[0]) == round(240.0 * (60.0 / 240.0) ** part)
    together = evaluate(scenario("N7"), {"system.technology.logic": ["N7", "N5", "N3"]}).step_time
    assert together == pytest.approx([predict(scenario(node)).step_time for node in ("N7", "N5", "N3")], rel=1e-12)
    assert "it takes what lies between those of N7 and N3" in " ".join(predict(case).notes)
    given = scenario("N5", "  bundles: 77")
    assert float(given.system.bundles[0]) == 77.0


def test_a_value_beside_the_shares_has_a_path_of_the_microarchitecture(scenario, tmp_path):
    (tmp_path / "table.csv").write_text("logic,memory,bundles\nN7,HBM3,1.5\n")
    (tmp_path / "chip.yaml").write_text(f"{TEMPLATE}microarchitecture: {{bundles: {{from: 1, to: 1000}}}}\n")
    with pytest.raises(SpecError, match=r"table\.csv:2: system\.bundles: expected a whole number, got 1\.5"):
        scenario("N7")
    (tmp_path / "table.csv").write_text(TABLE)
    (tmp_path / "chip.yaml").write_text(f"{TEMPLATE}microarchitecture: {{technology.logic: {{from: 1, to: 2}}}}\n")
    with pytest.raises(SpecError, match=r"microarchitecture: technology\.logic is no quantity of the device"):
        scenario("N7")


GENERATED = sorted(file.stem for file in (ROOT / "templates" / "generated").glob("*.yaml"))
REFERENCES = ("reference-recommendation", "reference-serving", "reference-training")
TASKS = {
    "training": ({"model": "llama3-8b", "global_batch": 60}, "tp4-dp5-z1-sp", 20),
    "prefill": ({"model": "llama3-8b", "task": "prefill", "global_batch": 20, "sequence": 4096}, "tp4-dp5", 20),
    "decode": ({"model": "llama3-8b", "task": "decode", "global_batch": 40, "sequence": 4096}, "tp4-dp5", 20),
}


def over_nodes(template, workload, strategy, devices, memories=()):
    """Step times at all nodes from the coarsest to the densest, shape (nodes, memories), and the names of the nodes."""
    dtype = {"dtype": "fp16"} if template in ("p4", "chip-p4", "v100", "chip-v100") else {}
    devices, strategy = (1, "d1") if template in ("p4", "pathfinder", "v100") else (devices, strategy)  # which have no network
    system = {"template": template, "devices": devices} | ({} if template == "waferscale" or devices % 20 else {"devices_per_node": 20})
    case = from_dict({"system": system, "workload": {**workload, **dtype}, "strategy": strategy})
    nodes = sorted(case.library.logic, key=lambda name: -float(case.library.logic[name].area[0]))
    points = {"system.technology.logic": [node for node in nodes for _ in memories or (None,)]}
    points |= {"system.technology.memory": list(memories) * len(nodes)} if memories else {}
    return nodes, evaluate(case, points).step_time.reshape(len(nodes), -1)


def slower(nodes, times, most=1.001):
    """Pairs of neighbouring nodes of which the denser one is slower; what cannot run at the coarser one may not be compared."""
    with np.errstate(invalid="ignore"):
        ratio = np.where(np.isfinite(times[:-1]), times[1:] / times[:-1], 0.0)
    return [(nodes[i], nodes[i + 1], int(j), float(ratio[i, j])) for i, j in np.argwhere(ratio > most)]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("template", GENERATED)
def test_a_denser_node_never_makes_a_shipped_template_slower(template, task):
    """As a user types it: with whatever division the template has for each node, nodes without a row among them."""
    nodes, times = over_nodes(template, *TASKS[task], memories=MEMORIES if template in REFERENCES else ())
    assert len(nodes) >= 8
    assert np.isfinite(times).any()
    assert slower(nodes, times) == []


@pytest.mark.parametrize("template", REFERENCES)
def test_the_clock_of_the_last_cache_is_not_where_its_range_ends(template):
    """27 of 60 rows had its least one, at which accesses under a limit of power saved by two falls of voltage."""
    spec, _ = resolve(Document(file="one", data={"template": template}))
    path = "levels.l2.frequency"
    rows = spec.budgets.divisions[:-1]  # the last is the template's
    found = np.array([parse(row.microarchitecture[path]["value"], "Hz") for row in rows])
    least, most = spec.microarchitecture[path].read(spec.free(path))
    assert len(found) == 60
    assert ((found > 1.05 * least) & (found < most / 1.01)).all()


@pytest.mark.parametrize("template", REFERENCES)
def test_a_denser_node_slows_no_random_work_of_a_shipped_reference(template):
    """Of works that no division was chosen for: products, and requests of other models; each with every memory."""
    rng = np.random.default_rng(3)
    works = [({"model": "gemm", **{side: int(2 ** rng.uniform(6, 14)) for side in "mnk"}}, "d1", 1) for _ in range(6)]
    works += [
        (
            {"model": "qwen3-8b", "task": task, "global_batch": int(2 ** rng.integers(0, 7)), "sequence": int(2 ** rng.integers(8, 14))},
            "tp8",
            8,
        )
        for task in ("prefill", "decode")
    ]
    found = [(work, *pair) for work, *rest in works for pair in slower(*over_nodes(template, work, *rest, memories=MEMORIES), most=1.006)]
    assert found == []


def test_a_share_that_the_scenario_gives_holds_over_every_row(scenario):
    case = scenario("N7", "  budgets: {area: {compute: 0.33}}")
    assert shares(case) == (0.33, 0.12)
    assert {float(row.area.compute[0]) for row in case.system.budgets.divisions} == {0.33}


def test_points_that_choose_technology_take_their_rows(scenario):
    points = {"system.technology.logic": ["N7", "N5", "N5"], "system.technology.memory": ["HBM3", "HBM3", "HBM4"]}
    together = evaluate(scenario("N7"), points).step_time
    alone = [predict(scenario("N7")).step_time, predict(scenario("N5")).step_time]
    assert together[:2] == pytest.approx(np.ravel(alone), rel=1e-12)
    fixed = evaluate(
        scenario("N7"),
        {
            **points,
            "system.budgets.area.compute": [0.25] * 3,
            "system.budgets.area.on_chip.l2": [0.16] * 3,
            "system.budgets.power_shares.compute": [0.20] * 3,
        },
    ).step_time
    assert together[2] == pytest.approx(fixed[2], rel=1e-12)
    assert together[2] != pytest.approx(fixed[0], rel=1e-3)


def test_a_share_that_points_vary_holds_over_the_rows(scenario):
    points = {"system.technology.logic": ["N7", "N7"], "system.budgets.area.compute": [0.30, 0.15]}
    fast, slow = evaluate(scenario("N7"), points).step_time
    assert fast < slow


def test_a_table_that_is_not_there_is_an_error_at_its_line(scenario, tmp_path):
    (tmp_path / "chip.yaml").write_text(TEMPLATE.replace("table.csv", "other.csv"))
    with pytest.raises(SpecError, match=r"chip\.yaml:6: system.budgets.divisions.file: no such table: .*other.csv"):
        scenario("N7")


def test_a_row_without_its_memory_is_an_error(scenario, tmp_path):
    (tmp_path / "table.csv").write_text("logic,area.compute\nN7,0.3\n")
    with pytest.raises(SpecError, match=r"divisions\[0\].*memory"):
        scenario("N7")


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("logic", ["N12", "N5", "N1"])
def test_the_reference_for_training_beats_the_start_of_its_search(logic, tmp_path):
    times = []
    for template in ("reference", "reference-training"):
        path = tmp_path / f"{template}.yaml"
        path.write_text(
            f"system: {{template: {template}, devices: 64, technology: {{logic: {logic}, memory: HBM4}}}}\n"
            "workload: {model: llama3-8b, global_batch: 128}\nstrategy: {tp: 2, dp: 32}\n"
        )
        times.append(predict(load(path)).step_time)
    assert times[1] < times[0]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("logic,memory,area.compute\nN7,HBM3,0.3,0.4\n", r"table\.csv:2: .*expected 3 cells as its header, got 4"),
        ("logic,memory,area.compute\n\n# a note\nN99,HBM3,0.3\n", r"table\.csv:4: .*divisions\[0\]\.logic: .*has no logic 'N99'"),
        ("logic,memory,area.compute\nN7,HBM3,1.3\n", r"table\.csv:2: .*area\.compute: expected at most 1, got 1\.3"),
        ("logic,memory,area.compute\nN7,HBM3,0.95\n", r"table\.csv:2: .*the shares of the chip area add up to"),
        ("logic,memory,aera.compute\nN7,HBM3,0.3\nN5,HBM3,0.3\n", r"table\.csv:2: .*unknown column 'aera\.compute'; expected logic, .*"),
        ("logic,memory,area.compute\nN7,HBM3,0.3\nN7,HBM3,0.2\n", "divisions: two rows for N7 with HBM3"),
        ("logic,memory,area.compute\n", r"chip\.yaml:6: .*divisions\.file: .*table\.csv holds no row"),
    ],
)
def test_a_table_that_means_nothing_is_an_error_at_its_place(scenario, tmp_path, table, message):
    (tmp_path / "table.csv").write_text(table)
    with pytest.raises(SpecError, match=message):
        scenario("N7")


def test_a_memory_without_a_row_has_in_sweeps_what_it_has_by_itself():
    """The rest of a table are the template's own values, not those of the row of the scenario's memory."""
    data = {"system": {"template": "reference-training"}, "workload": {"model": "gemm", "m": 8192, "n": 8192, "k": 8192}, "strategy": "d1"}
    scenario, memories = from_dict(data), ["CXL-DDR5", "GDDR6", "HBM3"]
    swept = evaluate(scenario, {"system.technology.memory": memories}).step_time
    alone = [predict(scenario, {"system.technology.memory": memory}).step_time for memory in memories]
    assert swept.tolist() == pytest.approx(alone, rel=1e-12)
