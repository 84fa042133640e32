# ruff: noqa: E501  (exact sentences and tables of cases)
"""The technology library: every number has a unit and a source, nodes scale as the paper says, generations improve."""

import csv
from pathlib import Path

import numpy as np
import pytest

from crossflow.base import files
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.base.files import Document
from crossflow.base.units import parse
from crossflow.hardware.architecture.system import architecture, resolve
from crossflow.hardware.technology.library import KINDS, Choice, TechLibrary, library_document, load_library

NODES = {"N16": -1, "N12": 0, "N10": 1, "N7": 2, "N5": 3, "N3": 4, "N2": 5, "N1": 6}  # steps of the paper
TODAY = ("N16", "N12", "N10", "N7", "N5", "N4", "N3", "N2", "A16", "A14", "N1")
FACTS = Path(__file__).parent / "data" / "technology-facts.csv"
LIBRARIES = sorted(files.catalogue("techlibs"))


def broken(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nextends: standard\nsources: {}\n" + text)
    return path


def figures(component):
    return {name: value for name, value in component if isinstance(value, np.ndarray)}


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_number_has_a_unit_and_a_source(name):
    document = library_document(name)
    library = files.validate(TechLibrary, document, sourced=True)
    numbers = [value for _, value in files.walk(document.data) if isinstance(value, dict) and "value" in value]
    assert len(numbers) > 500
    assert {number["source"] for number in numbers} <= set(library.sources)
    assert all(len(text) > 20 for text in library.sources.values())


@pytest.mark.parametrize("name", LIBRARIES)
def test_no_bare_number(name):
    bare = [
        path for path, value in files.walk(library_document(name).data) if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    bare = [path for path in bare if path[-1] not in ("value", "low", "high")]
    assert not bare


def test_every_number_of_the_standard_library_says_how_it_is_known_and_between_which_bounds(standard):
    """What chips are made of beside units and caches; the loader refuses a number of these sections that does not."""
    assert {*KINDS} <= set(standard.stated)


@pytest.mark.parametrize("name", LIBRARIES)
def test_intervals_enclose_their_values_and_projections_have_one(name):
    for path, value in files.walk(library_document(name).data):
        if isinstance(value, dict) and "value" in value:
            assert not value.get("projected") or {"low", "high"} <= set(value), path


@pytest.mark.parametrize("name", LIBRARIES)
def test_logic_nodes_are_those_of_the_paper_and_never_grow(name):
    """Neither do the bounds, so that a world in which all nodes stand at one quantile has later nodes at least as good."""
    document = library_document(name).data["logic"]
    for field in ("area", "power", "sram_area", "sram_energy", "sram_leakage"):
        for bound in ("low", "value", "high"):
            factors = [float(document[node][field][bound]) for node in (TODAY if name == "standard" else NODES)]
            assert factors == sorted(factors, reverse=True)
            assert factors[1] == 1


@pytest.mark.parametrize("node", NODES)
def test_logic_scales_by_the_rule_of_the_paper(node):
    """Sec. 9: area / 1.8 and power / 1.3 a step at equal performance."""
    paper = load_library("deepflow-2024")
    unit = paper.component("compute", "volta-tensor-core")
    scaled = paper.scale(unit, Choice.of([node]))
    assert scaled.nominal_area[0] == pytest.approx(unit.nominal_area[0] / 1.8 ** NODES[node], rel=1e-14)
    assert scaled.nominal_power[0] == pytest.approx(unit.nominal_power[0] / 1.3 ** NODES[node], rel=1e-14)
    assert scaled.nominal_frequency[0] == unit.nominal_frequency[0]
    assert scaled.nominal_flop_rate[0] == unit.nominal_flop_rate[0]


def test_a_component_given_at_another_node_scales_from_there(standard):
    unit = standard.component("compute", "pascal-core")
    assert unit.node == "N16"
    assert standard.scale(unit, Choice.of(["N12"])).nominal_area[0] == pytest.approx(unit.nominal_area[0] / 1.03, rel=1e-14)
    assert standard.scale(unit, Choice.of(["N16"])).nominal_power[0] == unit.nominal_power[0]


@pytest.mark.parametrize("name", ["l2", "l1", "registers"])
def test_memory_cells_scale_by_the_factors_of_the_nodes_and_crossbars_as_logic(standard, name):
    bank = standard.component("on_chip", name)
    own, target = standard.logic[bank.node], standard.logic["N5"]
    scaled = standard.scale(bank, Choice.of(["N5"]))
    assert scaled.area_per_bit[0] == pytest.approx((bank.area_per_bit * target.sram_area / own.sram_area)[0], rel=1e-14)
    assert scaled.dynamic_energy_per_bit[0] == pytest.approx(
        (bank.dynamic_energy_per_bit * target.sram_energy / own.sram_energy)[0], rel=1e-14
    )
    assert scaled.static_power_per_bit[0] == pytest.approx(
        (bank.static_power_per_bit * target.sram_leakage / own.sram_leakage)[0], rel=1e-14
    )
    assert scaled.port_area[0] == pytest.approx((bank.port_area * target.area / own.area)[0], rel=1e-14)
    assert scaled.control_energy_per_bit[0] == pytest.approx((bank.control_energy_per_bit * target.power / own.power)[0], rel=1e-14)
    assert scaled.wire_energy[0] == bank.wire_energy[0]


def test_scaling_a_batch_is_scaling_each(standard):
    unit = standard.component("compute", "matrix-unit-8x8")
    batch = standard.scale(unit, Choice.of(list(NODES)))
    for i, node in enumerate(NODES):
        one = standard.scale(unit, Choice.of([node]))
        assert (one.nominal_area[0], one.nominal_power[0]) == (batch.nominal_area[i], batch.nominal_power[i])


def fact_rows():
    lines = [line for line in FACTS.read_text().splitlines() if not line.startswith("#")]
    return [pytest.param(row, id=f"{row['path']} {row['fact']}") for row in csv.DictReader(lines)]


@pytest.mark.parametrize("fact", fact_rows())
def test_published_facts_lie_between_the_bounds_of_the_library(standard, fact):
    """Node steps are ratios at equal quantiles; 1 % for rounding."""
    library, bounds = library_document("standard").data, []
    unit = standard.quantity(fact["path"].split(".")).unit
    for bound in ("low", "value", "high"):
        held = [files.held(library, tuple(path.split("."))) for path in (fact["path"], fact["over"]) if path]
        values = [parse(quantity[bound], unit) for quantity in held]
        bounds.append(values[0] / values[1] if fact["over"] else values[0])
    value = parse(float(fact["value"]) if unit == "1" else fact["value"], unit)
    assert min(bounds) * 0.99 <= value <= max(bounds) * 1.01


@pytest.mark.parametrize("kind", ["compute", "memory", "link", "bond", "substrate", "on_chip"])
def test_gathering_takes_each_points_component(standard, kind):
    names = standard.names(kind)
    chosen = [names[i] for i in np.random.default_rng(0).integers(len(names), size=12)]
    gathered = figures(standard.gather(kind, Choice.of(chosen)))
    for i, name in enumerate(chosen):
        for field, value in figures(standard.component(kind, name)).items():
            assert gathered[field][i] == value[0]


def test_a_limit_that_only_some_have_is_none_for_the_others(standard):
    gathered = standard.gather("link", Choice.of(["NDR", "interposer"]))
    assert gathered.maximum_links.tolist() == [standard.link["NDR"].maximum_links[0], np.inf]


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("generations", [("HBM2", "HBM2e", "HBM3", "HBM4"), ("NDR-x8", "XDR-x8", "GDR-x8"), ("NDR", "XDR", "GDR")])
def test_generations_improve(name, generations):
    library = load_library(name)
    kind = "memory" if generations[0] == "HBM2" else "link"
    parts = [library.component(kind, generation) for generation in generations]
    energy = "dynamic_energy_per_bit" if kind == "memory" else "nominal_energy_per_bit"
    lanes = [float((part.links_per_device if kind == "memory" else part.maximum_links)[0]) for part in parts]
    rates = [count * float(part.nominal_frequency[0]) for count, part in zip(lanes, parts, strict=True)]
    assert rates == sorted(set(rates))
    assert [float(getattr(part, energy)[0]) for part in parts] == sorted((float(getattr(part, energy)[0]) for part in parts), reverse=True)
    assert kind == "link" or [float(part.device_capacity[0]) for part in parts] == sorted(float(part.device_capacity[0]) for part in parts)


@pytest.mark.parametrize(("name", "terabytes"), [("HBM2", 1.024), ("HBM2e", 2.048), ("HBM3", 2.6), ("HBM4", 3.3)])
def test_four_stacks_reach_the_bandwidth_of_the_paper(name, terabytes):
    """deepflow-2024 Sec. 9: 1, 2, 2.6 and 3.3 TB/s from four stacks."""
    stack = load_library("deepflow-2024").component("memory", name)
    assert 4 * stack.links_per_device[0] * stack.nominal_frequency[0] / 8 == pytest.approx(terabytes * 1e12, rel=1e-12)


@pytest.mark.parametrize(("name", "gigabytes"), [("NDR-x8", 100), ("XDR-x8", 200), ("GDR-x8", 400)])
def test_network_ports_reach_the_bandwidth_of_the_paper(standard, name, gigabytes):
    port = standard.component("link", name)
    assert port.maximum_links[0] * port.nominal_frequency[0] / 8 == pytest.approx(gigabytes * 1e9, rel=1e-12)


def test_extension_replaces_whole_entries_and_keeps_the_rest(standard):
    own = load_library("deepflow-2024")
    assert own.memory["HBM3"].nominal_frequency[0] == 5.078125e9 != standard.memory["HBM3"].nominal_frequency[0]
    assert own.compute["volta-tensor-core"].nominal_power[0] == standard.compute["volta-tensor-core"].nominal_power[0]
    assert set(standard.link) < set(own.link)


def test_a_path_has_the_name_of_its_component_as_the_library_has_it(standard):
    """In a path of a component alone; a number of the library itself, or of a node, stays."""
    assert standard.path_of(["memory", "hbm3", "device_capacity"]) == ("memory", "HBM3", "device_capacity")
    assert standard.path_of(["memory", "hbm3"]) == ("memory", "hbm3")
    assert standard.path_of(["name"]) == ("name",)
    assert standard.path_of(["nothing", "hbm3", "device_capacity"]) == ("nothing", "hbm3", "device_capacity")


def test_unknown_component_is_told_with_what_was_meant(standard):
    with pytest.raises(
        CrossflowError,
        match=r"^technology library 'standard' has no on-chip 'register'; did you mean 'registers'\?; known: registers, ",
    ):
        standard.component("on_chip", "register")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "line", "path", "message"),
    [
        ("logic: {N7: {area: 0.3}}", 4, "logic.N7.area", "expected a mapping {value: ..., source: ...}: every number of a library names its source"),
        ("logic: {N7: {area: {value: 0.3}}}", 4, "logic.N7.area", "expected the key 'source' in {value: ..., source: ...}"),
        ("logic:\n  N7: {area: {value: 0.3, source: chen-2051}}", 5, "logic.N7.area.source", "source 'chen-2051' is not among the file's sources; did you mean 'chen-2015'?"),
        ("logic: {N7: {area: {value: 0.3, source: derived, low: 0.4}}}", 4, "logic.N7.area.low", "low, value and high must not decrease, got low 0.4 and value 0.3"),
        ("logic: {N7: {area: {value: 0.3, source: derived, lo: 1}}}", 4, "logic.N7.area", "unknown key 'lo' beside value; did you mean 'low'?"),
        ("logic: {N7: {area: {value: 0.3, source: derived, status: heard}}}", 4, "logic.N7.area.status", "expected one of read, second-hand, recalled, derived, assumed, got 'heard'"),
        ("stated: [logic]\nlogic: {N7: {area: {value: 0.3, source: derived}}}", 5, "logic.N7.area", "expected the key 'status': the file says under `stated` that every number of 'logic' has it"),
        ("compute: {volta-tensor-core: {node: N11}}", 4, "compute.volta-tensor-core.node", "no logic node 'N11'; did you mean 'N1'?"),
        ("compute:\n  volta-tensor-core:\n    minimum_voltage: {value: 0.1 V, source: derived}", 5, "compute.volta-tensor-core", "voltages must satisfy threshold < minimum <= nominal <= maximum"),
        ("memory: {HBM2: {device_capacity: {value: 8 GB/s, source: derived}}}", 4, "memory.HBM2.device_capacity", "expected a quantity in B, got '8 GB/s': 'GB/s' is not a unit of B; did you mean 'GB'?"),
        ("extend: x", 4, "extend", "unknown key 'extend'; did you mean 'extends'?"),
    ],
)  # fmt: skip
def test_wrong_libraries_are_told_with_their_line(tmp_path, text, line, path, message):
    file = broken(tmp_path, text)
    with pytest.raises(SpecError) as caught:
        load_library(str(file))
    assert message in [problem.message for problem in caught.value.problems]
    problem = next(problem for problem in caught.value.problems if problem.message == message)
    assert problem.path == path
    assert str(problem).startswith(f"{file}:{line}: ") or path == "compute.volta-tensor-core"


def test_nodes_of_components_are_named_as_the_library_does(tmp_path):
    """However its user writes them, as all names."""
    written, named = (load_library(str(broken(tmp_path, f"compute: {{volta-tensor-core: {{node: {node}}}}}"))) for node in ("n7", "N7"))
    assert written.compute["volta-tensor-core"].node == named.compute["volta-tensor-core"].node == "N7"


@pytest.mark.parametrize("text", ["name: mine\nextends: mine\n", "name: other\nextends: {file}\n"])
def test_a_library_cannot_extend_itself(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text.format(file=path) + "sources: {}\n")
    with pytest.raises(SpecError, match="extends: a library cannot extend itself"):
        load_library(str(path))


def test_a_circle_of_libraries_is_told(tmp_path):
    for own, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{own}.yaml").write_text(f"name: {own}\nextends: {other}.yaml\nsources: {{}}\n")
    with pytest.raises(SpecError, match="extend"):
        load_library(str(tmp_path / "a.yaml"))


def test_units_of_the_library_are_those_of_its_figures():
    """The library's files against the models: 4.2 pJ/bit is 33.6 pJ/B."""
    assert load_library("standard").memory["HBM2"].dynamic_energy_per_bit[0] == parse("4.2 pJ/bit", "J/B") == pytest.approx(33.6e-12)


def test_the_papers_library_leaves_out_nodes_that_it_does_not_know():
    paper = load_library("deepflow-2024")
    assert list(paper.logic) == [name for name in TODAY if name not in ("N4", "A16", "A14")]
    areas = [float(paper.logic[name].area[0]) for name in paper.logic]
    assert areas == sorted(areas, reverse=True)


def test_a_node_that_a_library_leaves_out_is_told_with_the_one_that_has_it(tmp_path):
    """A16 was taken for a slip of N16. Its pitch is that of N2, so no row of the paper's could be worked out from it either."""
    with pytest.raises(CrossflowError) as told:
        load_library("deepflow-2024").component("logic", "a16")
    assert str(told.value) == (
        "technology library 'deepflow-2024' has no logic 'a16'; 'standard', which it extends, has it: `techlib: standard` takes all"
        " figures of that library, where the other parts of the template are in it too; known: N16, N12, N10, N7, N5, N3, N2, N1"
    )
    own = tmp_path / "mine.yaml"
    own.write_text("name: mine\nextends: deepflow-2024\nsources: {}\nmemory: {HBM4: null}\n")
    mine = load_library(str(own))
    with pytest.raises(CrossflowError, match="has no memory 'HBM4'; 'deepflow-2024', which it extends, has it"):
        mine.component("memory", "HBM4")
    with pytest.raises(CrossflowError, match=r"has no logic 'A14'; known"):
        mine.component("logic", "A14")  # the library that it extends has none either


@pytest.mark.parametrize("template", ["mcm", "pathfinder", "waferscale"])
def test_templates_of_the_paper_take_nodes_of_today_from_the_standard_library(template):
    """The cure that the sentence names: denser nodes have units of no lower rate."""
    with pytest.raises(SpecError, match="`techlib: standard` takes all figures"):
        resolve(Document(file="one", data={"template": template, "technology": {"logic": "N4"}}))
    rates = []
    for node in ("N5", "N4", "N2", "A16", "A14"):
        spec, _ = resolve(Document(file="one", data={"template": template, "techlib": "standard", "technology": {"logic": node}}))
        rates.append(architecture(spec).throughput["fp16"][0])
    assert rates == sorted(rates)
    assert rates[0] > 0.0


def test_null_that_leaves_out_nothing_is_an_error_at_its_line(tmp_path):
    (tmp_path / "mine.yaml").write_text("name: mine\nextends: standard\nsources: {}\nlogic:\n  N6: null\n")
    with pytest.raises(SpecError, match=r"mine\.yaml:5: logic\.N6: null leaves out nothing: there is no 'N6' below"):
        load_library(str(tmp_path / "mine.yaml"))
