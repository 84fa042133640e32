"""Chips predicted from what was public before they were announced: dated facts, one rule, and answers that only the comparison reads."""

from pathlib import Path

import numpy as np
import pytest
import yaml

import crossflow
from crossflow.answers import bands
from crossflow.answers.bands import GENERATED, Likeness
from crossflow.base import files
from crossflow.base.errors import SpecError
from crossflow.base.files import Document
from crossflow.evidence.validation import hindcasts as made
from crossflow.evidence.validation.bands import coverage, judged, lines
from crossflow.evidence.validation.hindcast_files import (
    ANNOUNCED,
    FIGURES,
    HindcastFile,
    balance,
    clock_limit,
    denser_cells,
    designed,
    designs,
    hindcasts,
    memory_rate,
    peaks,
    pin_rate,
    system_of,
    template_of,
)
from crossflow.evidence.validation.hindcast_search import DesignRule, _bounds, explained, search, space, under
from crossflow.evidence.validation.hindcasts import HindcastRow, figures, gates, hindcast_table
from crossflow.hardware.architecture.divisions import shares
from crossflow.hardware.architecture.system import architecture

SCRIPTS = Path(__file__).parents[1] / "docs" / "scripts"
NAMES = list(hindcasts())
BLIND = [name for name, file in hindcasts().items() if not file.forecast]


@pytest.fixture(scope="module")
def table():
    return hindcast_table()


def read(name, **changes):
    data = files.read_yaml(files.find("templates", name)).data
    return files.validate(HindcastFile, Document(file="own", data={**data, **changes}))


def test_known_chips_and_forecasts_are_there():
    assert set(BLIND) == {"t4", "a100", "h100", "mi300x", "tpu-v5p", "b200"}
    assert set(NAMES) - set(BLIND) == {"rubin", "mi455x", "ironwood"}


@pytest.mark.parametrize("name", NAMES)
def test_every_input_is_older_than_the_announcement(name):
    file = hindcasts()[name]
    dated = [fact for _, fact in file.facts if fact is not None] + [file.divided_for]
    assert len(dated) >= 9
    assert all(one.date < file.announced for one in dated)
    assert ANNOUNCED[file.predecessor] < file.announced.isoformat()


@pytest.mark.parametrize("name", [name for name in BLIND if hindcasts()[name].datasheet])
def test_devices_of_a_node_are_joined_as_a_dated_fact_says(name):
    """As the system is whose steps are compared, but for sums in the switch, which came with H100."""
    file, (workload, strategy) = hindcasts()[name], FIGURES["training, 7B"].run
    joined, known = (
        crossflow.from_dict({"system": system, "workload": workload, "strategy": strategy}) for system in (system_of(file), file.datasheet)
    )
    assert joined.system.network.intra.fabric == known.system.network.intra.fabric.removesuffix("-sharp") != "ideal"
    assert joined.system.network.intra.bandwidth is None  # that of the links follows from their technology


def test_an_unknown_fabric_is_refused():
    data = files.read_yaml(files.find("templates", "hindcast-h100")).data
    with pytest.raises(SpecError, match="facts: fabric: expected one of ideal, nvswitch"):
        read("hindcast-h100", facts={**data["facts"], "fabric": {**data["facts"]["fabric"], "value": "nvswich"}})


def test_a_fact_that_was_public_too_late_is_refused():
    late = files.read_yaml(files.find("templates", "hindcast-h100")).data["facts"]
    with pytest.raises(SpecError, match="power was public on 2022-03-22 only, and the chip was announced on 2022-03-22"):
        read("hindcast-h100", facts={**late, "power": {**late["power"], "date": "2022-03-22"}})


def test_a_fact_without_its_source_and_a_figure_that_is_not_compared_are_refused():
    facts = files.read_yaml(files.find("templates", "hindcast-h100")).data["facts"]
    with pytest.raises(SpecError, match="there is no source 'rumour'"):
        read("hindcast-h100", facts={**facts, "power": {**facts["power"], "source": "rumour"}})
    answer = {"value": 1, "source": "h100-wp", "status": "read", "kind": "published"}
    with pytest.raises(SpecError, match="'prestige' is not compared; known: product"):
        read("hindcast-h100", answers={"prestige": answer})


def test_answers_change_no_input():
    file = hindcasts()["h100"]
    blank = file.model_copy(update={"answers": {}, "datasheet": None})
    assert system_of(blank) == system_of(file)
    assert "answers" not in yaml.safe_dump(system_of(file))
    assert explained(blank) == explained(file)


def test_the_predecessor_gives_the_share_of_the_rate_at_which_memory_runs():
    """A100's pins ran at 3.186 of 3.6 Gbit/s, so HBM3 of 6.4 at 5.664; that of MI300X is what H100 sold."""
    assert pin_rate(hindcasts()["h100"]) == pytest.approx(6.4e9 * 3.186 / 3.6)
    assert memory_rate(hindcasts()["h100"]) == pytest.approx(5 * 1024 * 6.4e9 * 3.186 / 3.6 / 8)
    assert pin_rate(hindcasts()["mi300x"]) == pytest.approx(5.234e9)
    assert clock_limit(hindcasts()["h100"]) == pytest.approx(1.15 * 1.41e9, rel=1e-3)


def test_no_more_of_the_die_is_used_than_of_the_best_chip_that_was_known():
    """V100 0.88, with its dark units; H200 0.91 counts for B200."""
    found = {name: explained(hindcasts()[name]) for name in ("a100", "h100", "b200")}
    assert found["a100"] == found["h100"] == pytest.approx(0.881, abs=0.005)
    assert found["b200"] == pytest.approx(0.908, abs=0.005)


def test_no_more_power_is_drawn_at_the_peaks_than_by_a_chip_that_was_known():
    """V100's 997 W of 300 count for A100 and H100, those of MI300X, 3,060 of 750, for B200; a rule may leave that open."""
    found = {name: peaks(hindcasts()[name]) for name in ("a100", "h100", "b200")}
    assert found["a100"] == found["h100"] == pytest.approx(997 / 300)
    assert found["b200"] == pytest.approx(4.08, abs=0.005)
    budgets = system_of(hindcasts()["a100"])["budgets"]
    assert (budgets["power"], budgets["peak_power"]) == ("450 W", f"{450 * 997 / 300:g} W")
    free = under(DesignRule(peaks=False), hindcasts()["a100"])
    assert free["budgets"] == {**budgets, "peak_power": "2700 W"}
    assert under(DesignRule(), hindcasts()["a100"]) == system_of(hindcasts()["a100"])


def test_the_die_of_an_inference_card_is_the_second_of_its_family():
    """P4's 314 mm2 times the growth of the largest die, 471 to 754; of that one two thirds, as of its cores."""
    area = hindcasts()["t4"].facts.area
    assert area.value == "503 mm2"
    assert pytest.approx([503, 503], abs=0.5) == [314 * 754 / 471, 754 * 3072 / 4608]
    assert area.date.isoformat() == "2018-08-13"


def test_a_card_has_the_memory_of_the_card_whose_place_it_takes():
    """P4 ran GDDR5X of 10 Gbit/s at 6, and its cache five times as fast as its memory; V100 runs HBM2 and 2.8."""
    file = hindcasts()["t4"]
    own = file.model_copy(update={"in_place_of": None})
    assert pin_rate(file) == pytest.approx(16e9 * 6.0 / 10.0)
    assert pin_rate(own) == pytest.approx(16e9 * 1.758 / 2.0)
    assert (balance(file), balance(own)) == (pytest.approx(5.0, abs=0.01), pytest.approx(2.8, abs=0.01))
    assert ANNOUNCED[file.predecessor] > "2016-09-13"  # P4's: older than V100, which is older than T4


def test_a_first_level_memory_that_grows_with_its_cells_is_a_rule_that_can_be_tried():
    """V100's 128 KiB of N12 take the area of 332 KiB of N7; a card of the same node gains nothing, and a TPU has no such level."""
    assert denser_cells(hindcasts()["a100"]) == pytest.approx(1.0 / 0.3857, rel=1e-3)
    assert denser_cells(hindcasts()["t4"]) == 1.0
    rules = {name: [bound for _, bound in _bounds(hindcasts()[name], DesignRule(first=True))] for name in ("a100", "tpu-v5p")}
    assert [bound.name for bound in rules["a100"]] == ["memory", "balance", "first"]
    assert rules["a100"][-1].bound == pytest.approx(128 * 1024 / 0.3857, rel=1e-3)
    assert [bound.name for bound in rules["tpu-v5p"]] == ["memory", "balance"]


ARRAYS = {"chip-v100": (4, 4), "chip-a100": (8, 8), "chip-h100": (8, 16), "chip-h200": (8, 16), "chip-b200": (16, 16)}


@pytest.mark.parametrize("name", ARRAYS)
def test_a_chip_has_the_array_of_its_matrix_unit_where_its_published_figures_fit_its_die(name):
    """A100's unit of 256 multiply-accumulates is the library's 8 x 8. With one of 64, V100's published rate takes 1.16 of its die."""

    def device(**own):
        return architecture(crossflow.from_dict({"system": {"template": name, **own}, "workload": product, "strategy": "d1"}).system)

    product, (height, width), spec = {"model": "gemm", "m": 8, "n": 8, "k": 8}, ARRAYS[name], template_of(name)
    shipped, given = device(), device(matrix_unit={"height": height, "width": width})
    areas = {path: share[0] for path, share in shares(spec.budgets).items() if path.startswith("area.")}
    rate = [one.mcus[0] * one.array_height[0] * one.array_width[0] for one in (shipped, given)]  # in the same area
    fits = sum(areas.values()) + areas["area.compute"] * (rate[0] / rate[1] - 1.0) <= 1.0
    assert fits == (name != "chip-v100")
    array = (shipped.array_height[0], shipped.array_width[0])
    assert array == ((height, width) if fits else (8, 8))


@pytest.mark.parametrize("name", NAMES)
def test_the_matrix_unit_of_the_predecessor_is_a_dated_fact(name):
    """Multiply-accumulates in a cycle; four for each of the array that stands for them on NVIDIA's chips."""
    file = hindcasts()[name]
    if file.predecessor in ARRAYS:
        assert file.facts.matrix_unit.value == 4 * np.prod(ARRAYS[file.predecessor])
    else:
        assert file.facts.matrix_unit.value == {"chip-mi210": 128, "chip-mi300x": 256, "chip-tpu-v4": 128 * 128}[file.predecessor]


def test_what_products_lose_in_a_step_is_the_predecessor_s_where_it_was_measured():
    given = {name: system_of(file).get("execution") for name, file in hindcasts().items()}
    assert {name: lost for name, lost in given.items() if lost is not None} == {
        "b200": {"training_sensitivity": 4}, "rubin": {"training_sensitivity": 4},
    }  # fmt: skip
    system = designed(hindcasts()["b200"])
    found, free = made.steps(system), made.steps({**system, "execution": {"training_sensitivity": 1}})
    assert found["training, 7B"] < 0.9 * free["training, 7B"]
    assert found["decoding, 7B"] == pytest.approx(free["decoding, 7B"])


def test_a_product_that_was_measured_before_power_slowed_it_is_predicted_so():
    system = designed(hindcasts()["t4"])
    held, cold = figures(system), figures(system, cold=True)
    assert held["product"] < 0.97 * cold["product"] < cold["peak"]
    assert {name: value for name, value in held.items() if name != "product"} == {
        name: value for name, value in cold.items() if name != "product"
    }
    assert [name for name, file in hindcasts().items() if made.unthrottled(file)] == ["t4"]
    answers = files.read_yaml(files.find("templates", "hindcast-h100")).data["answers"]
    with pytest.raises(SpecError, match="only a product is predicted without the limit of power; leave out unthrottled"):
        read("hindcast-h100", answers={**answers, "l2 bandwidth": {**answers["l2 bandwidth"], "unthrottled": True}})


@pytest.mark.parametrize("name", NAMES)
def test_designs_keep_the_rule(name):
    file, system = hindcasts()[name], designed(hindcasts()[name])
    spec = crossflow.from_dict({"system": system, "workload": {"model": "gemm", "m": 8, "n": 8, "k": 8}, "strategy": "d8"}).system
    device = architecture(spec)
    areas = [value for path, value in designs()[name].items() if path.startswith("system.budgets.area.")]
    assert sum(areas) <= explained(file) + 1e-9
    assert device.memory.bandwidth[0] / spec.memory_utilisation[0] >= 0.979 * memory_rate(file)
    assert spec.budgets.peak_power[0] <= peaks(file) * spec.budgets.power[0] * (1 + 1e-4)
    assert device.levels[-2].bandwidth[0] / device.memory.bandwidth[0] >= balance(file) * (1 - 1e-4)
    for path, ends in space(template_of(file.predecessor)).items():
        if isinstance(ends, dict) and "from" in ends:
            assert ends["from"] <= designs()[name][path] <= ends["to"]


@pytest.mark.thorough
@pytest.mark.slow
def test_a_search_finds_the_design_again():
    """A shorter search ends beside it, and libraries of linear algebra promise no last digits: what comes out of it is compared."""
    row = search(hindcasts()["h100"], evaluations=8000)
    assert row["feasible"]
    again = {path: value for path, value in row.items() if path.startswith("system.")}
    assert set(again) == set(designs()["h100"])
    system = system_of(hindcasts()["h100"])
    for path, value in again.items():
        system = files.replace({"system": system}, tuple(path.split(".")), float(value), path)["system"]
    found, shipped = figures(system), figures(designed(hindcasts()["h100"]))
    for name in ("product", "memory bandwidth", "l2 bandwidth", "training, 70B", "decoding, 70B"):
        assert found[name] == pytest.approx(shipped[name], rel=0.03)


def test_ratios_and_gates_by_hand():
    def row(chip, figure, ratio, kind="measured"):
        return HindcastRow(chip=chip, figure=figure, predicted=ratio * 4.0, answer=4.0, kind=kind, source="s")

    rows = [row("a", "product", 1.15), row("b", "product", 0.84), row("c", "product", 2.0, "announced"), row("a", "peak", 3.0)]
    assert [one.holds for one in rows] == [True, False, None, None]
    found = gates(rows)
    assert list(found) == ["product"]
    assert (found["product"]["chips"], found["product"]["held"], found["product"]["kept"]) == (2, 1, False)
    assert found["product"]["mean_log"] == pytest.approx((np.log(1.15) - np.log(0.84)) / 2)
    assert not gates([row("a", "product", 1.14), row("b", "product", 1.14)])["product"]["kept"]  # each holds, their mean does not
    assert gates([row("a", "product", 1.05)])["product"]["kept"]


@pytest.mark.thorough
def test_the_table_has_every_chip_and_no_figure_of_forecasts(table):
    told = table.to_dict()
    assert set(told["chips"]) == set(NAMES)
    assert set(told["forecasts"]) == set(NAMES) - set(BLIND)
    assert set(table.groups["chip"]) == set(BLIND)
    assert all(set(FIGURES) == set(made) for made in told["forecasts"].values())
    assert {name: round(told["chips"][name]["product"]["ratio"], 1) for name in ("a100", "h100", "b200", "mi300x")} == {
        "a100": 1.3, "h100": 0.8, "b200": 0.9, "mi300x": 0.9,
    }  # fmt: skip


def test_bands_of_generated_devices_are_the_errors_of_this_table(table):
    """As the shipped file has them, each as wide as the worst of its chips."""
    found = lines(list(judged([table])))
    assert {like.kind for like in found} == {"matrix products", "training of dense language models", "serving, writing tokens"}
    assert all(like.seen == GENERATED for like in found)
    for like, band in found.items():
        mine = np.array([kind == like.kind for kind in table.alike["kind"]])
        sizes = np.abs(table.predicted[mine] / table.measured[mine] - 1.0)
        assert (band.n, band.p90) == (mine.sum(), pytest.approx(sizes.max()))
        shipped, _ = bands.band_of(Likeness(kind=like.kind, seen=GENERATED))
        assert (shipped.n, shipped.tables) == (band.n, "hindcasts")
        assert shipped.p90 == pytest.approx(band.p90, rel=0.03)
    assert coverage(list(judged([table]))) == []


def test_steps_are_compared_with_the_chip_s_own_datasheet(table):
    rows = {(row.chip, row.figure): row for row in table.rows}
    assert rows["h100", "training, 7B"].kind == "datasheet"
    assert rows["h100", "training, 7B"].answer == pytest.approx(made.steps("dgx-h100")["training, 7B"])
    assert ("t4", "training, 7B") not in rows


def test_validate_prints_the_table_and_the_forecasts(capsys, monkeypatch):
    from crossflow.edges.cli import page, validate

    monkeypatch.setenv("COLUMNS", "110")
    page.emit(*validate.sections({"hindcasts": hindcast_table().to_dict()}))
    text = capsys.readouterr().out
    assert "1 of 7 gates are kept" in text
    assert "forecast rubin: product " in text
    assert "!1.30" in text
    assert "mean |log|" in text


def test_a_file_of_facts_can_be_shown_and_listed():
    sheet = crossflow.show("hindcast-a100")
    assert sheet.kind == "facts of a chip before its announcement"
    assert "hindcast-a100" in crossflow.templates()


def test_errors_are_divided_among_what_is_exchanged_in_every_order(monkeypatch):
    """Of two groups that gain 1 and 2 alone and 5 together each gets half of the 2 that they gain by each other; a third gets nothing."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from hindcast_factors import divided

    gains = {frozenset(): 7.0, frozenset("a"): 8.0, frozenset("b"): 9.0, frozenset("ab"): 12.0}
    assert divided("abc", lambda groups: gains[groups - {"c"}]) == pytest.approx({"a": 2.0, "b": 3.0, "c": 0.0})


def test_the_parts_of_each_error_add_up_to_it(monkeypatch, table):
    """And the file is that of the designs that are shipped."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from hindcast_factors import GROUPS, LEFT, WHOLE, kept

    ratios = {(row.chip, row.figure): row.ratio for row in table.rows}
    found = kept()
    assert {row["chip"] for row in found} == {"a100", "h100", "mi300x", "b200"}
    for row in found:
        assert sum(float(row[part]) for part in (*GROUPS, LEFT)) == pytest.approx(float(row[WHOLE]), abs=1e-3)
        assert float(row[WHOLE]) == pytest.approx(np.log(ratios[row["chip"], row["figure"]]), abs=2e-3)
