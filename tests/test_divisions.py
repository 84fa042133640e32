"""Budgets divided by logic node and memory: the row of a design's own technology holds, and what a user gives holds over it."""

import numpy as np
import pytest

from crossflow import evaluate, load, predict
from crossflow.base.errors import SpecError
from crossflow.base.files import Document
from crossflow.hardware.architecture.system import resolve

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

    def make(logic="N7", more=""):
        path = tmp_path / "scenario.yaml"
        path.write_text(SCENARIO.replace("LOGIC", logic).replace("  devices: 1", f"  devices: 1\n{more}"))
        return load(path)

    return make


def shares(case):
    area = case.system.budgets.area
    return float(area.compute[0]), float(area.on_chip["l2"][0])


def test_a_system_takes_the_row_of_its_node_and_memory(scenario):
    assert shares(scenario("N7")) == (0.30, 0.12)


def test_without_a_row_the_shares_of_the_template_hold(scenario):
    plain, _ = resolve(Document(file="here", data={"template": "pathfinder"}))
    assert scenario("N3").system.budgets.area == plain.budgets.area


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
        ("logic,memory,aera.compute\nN7,HBM3,0.3\nN5,HBM3,0.3\n", r"table\.csv: .*unknown column 'aera\.compute'; expected logic, .*"),
        ("logic,memory,area.compute\nN7,HBM3,0.3\nN7,HBM3,0.2\n", "divisions: two rows for N7 with HBM3"),
        ("logic,memory,area.compute\n", r"chip\.yaml:6: .*divisions\.file: .*table\.csv holds no row"),
    ],
)
def test_a_table_that_means_nothing_is_an_error_at_its_place(scenario, tmp_path, table, message):
    (tmp_path / "table.csv").write_text(table)
    with pytest.raises(SpecError, match=message):
        scenario("N7")
