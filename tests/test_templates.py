# ruff: noqa: E501  (exact sentences and tables of cases)
"""Templates: all that ship resolve, every number has a source, and wrong ones are told with their lines."""

import numpy as np
import pytest

import crossflow
from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.base.files import Document
from crossflow.base.units import parse
from crossflow.hardware.architecture.system import architecture, resolve
from crossflow.hardware.architecture.template import GeneratedSystem

TEMPLATES = {name: path for name, path in files.catalogue("templates").items() if path.parent.name in ("generated", "devices", "systems")}
GENERATED = [name for name, path in TEMPLATES.items() if path.parent.name == "generated"]

WORDS = {
    "rows",
    "columns",
    "groups",
    "widths",
    "splits_up_to",
    "kernels",
    "latent_heads",
    "tile",
    "devices",
    "bridged",
    "sockets",
    "ports",
    "group",
    "nodes",
    "devices_per_node",
    "devices_per_host",
    "devices_per_package",
    "blocks",
    "year",
    "note",
    "title",
    "notes",
    "shape",
    "shapes",
    "splits",
    "rows_up_to",
    "depth",
    "padded",
    "ring_from",
    "sources",
}


def section(**data):
    return resolve(Document(file="scenario", data=data))


def quantities(data):
    """Every text that reads as a quantity with a unit, or number, with its path; counts, shapes and words left out."""
    for path, value in files.walk(data):
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            continue
        numeric = not isinstance(value, str) or (value[:1].isdigit() and " " in value)
        if numeric and not WORDS & set(path):
            yield path, value


@pytest.mark.slow
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_shipped_template_resolves(name):
    spec, _ = section(template=name)
    device = architecture(spec)
    assert device.memory.bandwidth[0] > 0
    assert all(rate[0] > 0 for rate in device.throughput.values())
    assert not device.problems


@pytest.mark.slow
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_number_of_a_template_has_a_known_source(name):
    data = section(template=name)[1].data
    holders = {path: value for path, value in files.walk(data) if isinstance(value, dict) and {"value", "from"} & set(value)}
    for path, value in quantities(data):
        assert path[:-1] in holders, f"{name}: {files.dotted(path)} = {value} has no source"
    assert all("source" in value for value in holders.values())
    assert {value["source"] for value in holders.values()} <= set(data["sources"])


@pytest.mark.slow
@pytest.mark.parametrize("name", GENERATED)
def test_every_number_of_a_generated_template_is_sourced_under_validation(name):
    _, document = section(template=name)
    spec = files.validate(GeneratedSystem, document, sourced=True)
    assert {value["source"] for _, value in files.walk(document.data) if isinstance(value, dict) and "value" in value} <= set(spec.sources)


@pytest.mark.slow
@pytest.mark.parametrize("name", GENERATED)
def test_levels_slow_with_distance_on_the_chip(name):
    levels = architecture(section(template=name)[0]).levels
    assert [level.name for level in levels][-1] == "memory"
    bandwidths = np.array([level.bandwidth[0] for level in levels[:-1]])
    assert (bandwidths[1:] <= 1.01 * bandwidths[:-1]).all()  # a search makes the L2 as fast as the first level, to its own precision
    assert all(level.capacity[0] < levels[-1].capacity[0] for level in levels[:-1])


def test_a_scenarios_changes_are_laid_over_the_template():
    spec, document = section(template="v100", technology={"memory": "HBM3"}, budgets={"power": "400 W"}, devices=8)
    assert (spec.technology.memory, spec.technology.logic) == ("HBM3", "N12")
    assert (spec.budgets.power[0], spec.budgets.chip_area[0]) == (400.0, parse("815 mm2", "m2"))
    assert spec.device_count == 8
    assert document.lines["budgets", "node_area"][0].endswith("v100.yaml")


def test_a_template_may_stand_in_the_scenario():
    inline = files.read_yaml(TEMPLATES["v100"]).data
    spec, _ = section(template=inline, budgets={"power": "400 W"})
    assert spec.name == "v100"
    assert spec.budgets.power[0] == 400


def test_a_template_may_be_a_path(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(TEMPLATES["v100"].read_text().replace("name: v100", "name: mine"))
    spec, _ = resolve(Document(file="scenario", data={"template": "mine.yaml"}), tmp_path)
    assert spec.name == "mine"


def test_devices_of_a_scenario_take_the_place_of_a_templates_nodes(tmp_path):
    (tmp_path / "mine.yaml").write_text(TEMPLATES["v100"].read_text() + "nodes: 4\ndevices_per_node: 2\n")
    spec, _ = resolve(Document(file="scenario", data={"template": "mine.yaml"}), tmp_path)
    assert spec.device_count == 8
    spec, _ = resolve(Document(file="scenario", data={"template": "mine.yaml", "devices": 16}), tmp_path)
    assert spec.device_count == 16


WRONG = [
    ({"template": "v100", "budgets": {"powr": "1 W"}}, "budgets.powr", "unknown key 'powr'; did you mean 'power'?"),
    ({"template": "v100", "technolgy": {}}, "technolgy", "unknown key 'technolgy'; did you mean 'technology'?"),
    ({"template": "v100", "budgets": {"power": "300"}}, "budgets.power", "expected a quantity in W, got the bare number 300; write the unit"),
    ({"template": "v100", "budgets": {"area": {"compute": 1.2}}}, "budgets.area.compute", "expected at most 1, got 1.2"),
    ({"template": "v100", "budgets": {"area": {"compute": 0.9}}}, "budgets.area", "the shares of the chip area add up to 1.138, more than 1"),
    ({"template": "v100", "budgets": {"area": {"on_chip": {"l3": 0.01}}}}, "budgets.area.on_chip", "no level 'l3'; levels: registers, l1, l2"),
    ({"template": "v100", "devices": 0}, "devices", "expected more than 0, got 0"),
    ({"template": "v100", "devices": 8, "nodes": 4}, "devices", "devices = 8 but nodes x devices_per_node = 4 x 1 = 4; give one of the two"),
    (
        {"template": "v100", "devices": 12, "devices_per_node": 8},
        "devices",
        "12 devices do not fill nodes of 8; give a multiple of 8, or fewer than that, or devices_per_node: 6 to use 6 of each",
    ),
    (
        {"template": "gb200-nvl72", "devices": 512},
        "devices",
        "512 devices do not fill nodes of 72; give a multiple of 72, or fewer than that, or devices_per_node: 64 to use 64 of each",
    ),
    ({"template": "v100", "devices": 13, "devices_per_node": 8}, "devices", "13 devices do not fill nodes of 8; give a multiple of 8, or fewer than that"),
    ({"template": "v100", "dataflow": "weights"}, "dataflow", "expected one of weight, activation, output, best, got 'weights'; did you mean 'weight'?"),
    ({"template": "v100", "kind": "generatd"}, "kind", "expected one of generated, datasheet, system, got 'generatd'; did you mean 'generated'?"),
    ({"devices": 8}, "", "the key 'template' is missing: a template name, a path, or an inline template"),
    ({"template": 3}, "template", "expected a template name, a path or a mapping, got 3"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "path", "message"), WRONG)
def test_wrong_sections_are_told_exactly(problems, data, path, message):
    assert problems(section, **data) == [(path, message)]


def test_an_unknown_template_is_told_with_what_was_meant():
    with pytest.raises(CrossflowError, match="unknown template 'v10'; did you mean 'v100'\\?; known: "):
        section(template="v10")


def test_datasheet_and_generated_devices_are_one_kind_of_architecture():
    published = architecture(section(template="v100-sxm2-16gb")[0])
    generated = architecture(section(template="v100")[0])
    assert published.throughput["fp16"][0] == pytest.approx(generated.throughput["fp16"][0], rel=0.05)
    assert published.memory.capacity[0] == pytest.approx(generated.memory.capacity[0], rel=0.05)
    assert published.units[0] == generated.units[0]


@pytest.mark.parametrize("name", GENERATED)
def test_a_template_alone_makes_a_scenario(name):
    scenario = crossflow.from_dict({"system": name, "workload": {"model": "gemm", "m": 64, "n": 64, "k": 64}})
    assert scenario.devices == 1


def test_a_file_inherits_a_system_by_its_template(tmp_path):
    """Over a name that ships and over another file, whose values stay where the file says nothing."""
    (tmp_path / "first.yaml").write_text("kind: system\ntemplate: dgx-a100\nname: first\nnetwork: {parameters: {launch: 9 us}}\n")
    (tmp_path / "second.yaml").write_text("kind: system\ntemplate: first.yaml\nname: second\nnodes: 4\n")
    spec, _ = resolve(Document(file="test", data={"template": str(tmp_path / "second.yaml")}))
    plain, _ = resolve(Document(file="test", data={"template": "dgx-a100"}))
    assert (spec.name, spec.device_count) == ("second", 32)
    assert float(spec.network.parameters.launch[0]) == pytest.approx(9e-6)
    assert spec.units == plain.units
    assert spec.network.intra.fabric == plain.network.intra.fabric


@pytest.mark.parametrize("name", ["dgx-h100", "reference-training"])
def test_equal_sections_share_a_system_and_all_others_are_read(name):
    """Also those that Python calls equal: true is no number of devices; each is told at its own place."""

    def section(file, **given):
        return Document(file=file, data={"template": name, **given}, lines={("devices",): (file, 7)})

    one, same, other = (resolve(section("s.yaml", devices=devices))[0] for devices in (8, 8, 16))
    assert one is same
    assert (one.device_count, other.device_count) == (8, 16)
    assert resolve(section("s.yaml", devices=1))[0].device_count == 1
    for file in ("a.yaml", "b.yaml"):
        with pytest.raises(CrossflowError, match=f"{file}:7: devices"):
            resolve(section(file, devices=True))
