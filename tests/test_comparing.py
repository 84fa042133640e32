"""Comparing systems: the best plan on each, prices, budgets, whole nodes, what cannot be told apart, and wrong words."""

import json
import math
import re

import numpy as np
import pytest

import crossflow
from crossflow.answers import bands
from crossflow.answers.evaluation.likeness import likeness
from crossflow.answers.planning.comparing import prices_of
from crossflow.answers.planning.planner import plan
from crossflow.base.errors import CrossflowError
from crossflow.edges.explore.comparison import written

QUICK = {"workload__sequence": 1024}


@pytest.fixture(scope="module")
def compared():
    return crossflow.compare(
        "llama3-8b", ["dgx-a100", "dgx-h100"], devices=8, prices={"a100": 1.5, "h100": "2.5 USD/hour"}, batch=16, **QUICK
    )


@pytest.mark.thorough  # what it runs quicker tests run too
def test_each_row_is_the_best_plan_of_its_system(compared):
    scenario = crossflow.load(
        {
            "system": {"template": "dgx-h100", "devices": 8},
            "workload": {"model": "llama3-8b", "global_batch": 16, "sequence": 1024},
            "strategy": "any",
        }
    )
    best = plan(scenario, top=1).chosen
    row = next(row for row in compared if row.system == "dgx-h100")
    assert (row.strategy, row.figure("step_time_s")) == (best.strategy, pytest.approx(best.step_time, rel=1e-12))


def test_money_and_energy_follow_from_the_step(compared):
    for row in compared:
        told, tokens = row.to_dict(), 16 * 1024
        step, million = told["step_time_s"], 1e6 / tokens
        assert told["usd_per_million_tokens"] == pytest.approx(8 * row.price / 3600 * step * million, rel=1e-9)
        assert told["energy_j_per_million_tokens"] == pytest.approx(told["power_w"] * step * million, rel=1e-9)
        assert told["energy_j_per_million_tokens"] == row.prediction.score.per_million()["energy_j_per_million_tokens"][0]
        assert told["usd_per_hour"] == pytest.approx(8 * row.price)


@pytest.mark.thorough  # what it runs quicker tests run too
def test_the_order_is_by_price_where_all_are_known_and_by_throughput_elsewhere(compared):
    assert compared.ordered_by == "usd_per_million_tokens"
    values = [row.figure(compared.ordered_by) for row in compared.rows]
    assert values == sorted(values)
    free = crossflow.compare("llama3-8b", "dgx-a100,dgx-h100", devices=8, prices="a100=1.5", batch=16, **QUICK)
    assert (free.ordered_by, free.best.system) == ("tokens_per_s", "dgx-h100")
    assert free.notes[0] == "ordered by tokens a second: no price of dgx-h100 is known (--price)"


def test_plain_data_keep_the_contract(compared):
    data = json.loads(json.dumps(compared.to_dict(), allow_nan=False))
    keys = {"system", "strategy", "step_time_s", "usd_per_million_tokens", "error_band", "trust", "tied_with"}
    assert all(keys <= set(row) for row in data["rows"])
    assert {row["trust"] for row in data["rows"]} <= set(bands.LEVELS)
    assert [row["rank"] for row in data["rows"]] == [1, 2]


@pytest.mark.thorough  # what it runs quicker tests run too
def test_two_systems_whose_prices_differ_less_than_pairs_of_measured_runs_are_tied(compared):
    one, two = compared
    spread, _ = bands.spread_of(*(bands.Likeness(kind="training of dense language models", device=name, seen="device") for name in "ab"))
    apart = two.figure(compared.ordered_by) / one.figure(compared.ordered_by) - 1.0
    assert one.tied == ((two.system,) if apart <= spread.order else ())
    far = crossflow.compare("llama3-8b", "dgx-a100,dgx-h100", devices=8, prices="a100=15,h100=2.5", batch=16, **QUICK)
    assert (far.best.tied, far.verdict) == ((), "dgx-h100 is best")


def test_a_budget_pays_for_whole_nodes_and_a_system_that_is_too_dear_says_so():
    found = crossflow.compare("llama3-8b", "dgx-a100,dgx-h100", budget="30 USD/hour", prices="a100=1.5,h100=40", batch=16, **QUICK)
    assert [(row.system, row.devices) for row in found] == [("dgx-a100", 16), ("dgx-h100", None)]
    assert found[1].reason == "a device costs 40 USD an hour, more than the budget"
    assert 8 * 1.5 < found[0].to_dict()["usd_per_hour"] <= 30


def test_no_more_devices_than_asked_for_and_only_whole_nodes():
    found = crossflow.compare("llama3-8b", "dgx-a100,dgx-h100", devices=12, batch=16, **QUICK)
    assert [row.devices for row in found] == [8, 8]
    assert found.notes[-1].startswith("tied") or "dgx-a100 uses 8 of 12 devices, whole nodes" in found.notes


def test_racks_of_72_are_used_by_64_where_that_many_are_asked_for():
    """Seven racks of 72 hold fewer than 512 devices, and divide no batch that is a power of two; jobs leave eight of each rack aside."""
    (row, _) = found = crossflow.compare("llama3-8b", "gb200-nvl72,dgx-h100", devices=128, batch=128, workload__sequence=1024)
    assert (row.system, row.devices) == ("gb200-nvl72", 128)
    assert row.prediction.scenario.system.devices_per_node == 64
    assert "gb200-nvl72: 64 of the 72 devices of each node are used; fewer whole nodes were slower" in found.assumptions
    whole = crossflow.compare("llama3-8b", "gb200-nvl72,dgx-h100", devices=72, batch=128, workload__sequence=1024)
    assert row.figure("tokens_per_s") > whole[0].figure("tokens_per_s")
    assert whole[0].prediction.scenario.system.devices_per_node == 72


def test_a_budget_rents_64_of_each_rack_of_72_where_that_is_faster():
    """For 130 USD an hour one whole rack or 128 devices of two are rented; the power of two holds a power-of-two batch."""
    asked = {"prices": "gb200-nvl72=1,dgx-h100=1", "batch": 128, "workload__sequence": 1024}
    found = crossflow.compare("llama3-8b", "gb200-nvl72,dgx-h100", budget="130 USD/hour", **asked)
    (row,) = (row for row in found if row.system == "gb200-nvl72")
    assert (row.devices, row.prediction.scenario.system.devices_per_node) == (128, 64)
    (one,) = (row for row in crossflow.compare("llama3-8b", "gb200-nvl72,dgx-h100", budget=75, **asked) if row.system == "gb200-nvl72")
    assert (one.devices, one.prediction.scenario.system.devices_per_node) == (64, 72)  # of one rack, 72 divide no batch of 128


def test_what_cannot_run_stands_last_with_its_reason():
    found = crossflow.compare("llama3-8b", "v100-ib-cluster,dgx-h100", devices=8, batch=16, **QUICK)
    assert [row.feasible for row in found] == [True, False]
    told = "workload.dtype: v100-ib-cluster has no throughput for bf16; it has fp16, fp64, fp32"
    assert found[1].reason == f"{told}; write workload.dtype: fp16, which is as wide"
    assert math.isnan(found[1].figure("step_time_s"))


def test_where_no_system_takes_the_model_each_says_why(refused):
    words = ("compare", "--model", "llama3-8b", "--on", "dgx-a100,v100-ib-cluster", "--devices", "8", "--set", "workload.dtype=fp8")
    told = refused(*words)
    assert "none of these systems can run this" in told
    for system in ("dgx-a100", "v100-ib-cluster"):
        assert f"\n  {system}: workload.dtype: {system} has no throughput for fp8; it has" in told
    assert "which is as wide" not in told  # int8 is, but is no type of numbers with a point
    with pytest.raises(CrossflowError, match="dgx-a100: a device costs 3 USD an hour, more than the budget"):
        crossflow.compare("llama3-8b", "dgx-a100,dgx-h100", budget=1, prices="a100=3,h100=4")


def test_plans_that_do_not_fit_are_an_answer_that_says_where_to_look():
    found = crossflow.compare("llama3-70b", "dgx-a100,dgx-h200", devices=8, batch=16, **QUICK)
    assert (found.best, [row.feasible for row in found]) == (None, [False, False])
    assert found.notes[-1] == "what would help: crossflow plan --model llama3-70b --on dgx-h200 --devices 8"


def test_the_note_on_ties_says_what_they_are_drawn_from(compared):
    """No two systems of dense training were measured alike: the bands of both."""
    runs = [likeness(row.prediction.scenario) for row in compared.rows]
    order = np.hypot(*(bands.trust_of(run).band.p90 for run in runs))
    told = "no pair of systems was measured for such runs, so their errors are taken as independent"
    assert compared.notes == (f"predictions less than {100 * order:.3g} % apart are tied: {told}",)


def test_two_layouts_are_tied_by_pairs_of_layouts_and_two_chips_by_pairs_of_chips():
    run = bands.Likeness(kind="training of dense language models", seen="device")
    assert bands.spread_of(run, run, same=True)[1] == "layouts of one system"
    wide = bands.Likeness(kind="serving, writing tokens", seen="device")
    spread, between = bands.spread_of(wide, wide)
    assert (between, spread.n > 100) == ("two systems", True)
    assert "pairs of two systems" in bands.order_of_pairs(spread, between)


WRONG = [
    ({"on": "dgx-h100,foo", "devices": 8}, "unknown template 'foo'"),
    ({"on": "dgx-h100", "devices": 8}, "there is only dgx-h100 to compare; name two systems or more, such as on='dgx-h100,dgx-b200'"),
    ({"on": "dgx-h100,dgx-h100", "devices": 8}, "dgx-h100 is there twice; name each system once"),
    ({}, "say how much of each system is compared: devices=64, or budget='500USD/hour' with prices"),
    ({"devices": 8, "budget": 5}, "devices and budget both say how many devices there are; give one of them"),
    ({"budget": 5}, "budget needs a price of each system; give one of dgx-h100: prices='dgx-h100=USD'"),
    ({"budget": "5 W"}, "budget=5 W: expected a quantity in USD/hour, got '5 W'"),
    ({"devices": 8, "prices": "a100=3"}, "prices='a100=3': a100 is none of the systems that are compared; these are dgx-h100, dgx-b200"),
    ({"devices": 8, "prices": "dgx=3"}, "prices='dgx=3': dgx stands for dgx-h100 and dgx-b200; these are dgx-h100, dgx-b200"),
    # An A10's price is none of an A100, and that of a B200 none of a GB200.
    (
        {"on": "dgx-a100,gb200-nvl72", "devices": 8, "prices": "a10=0.5"},
        "prices='a10=0.5': a10 is none of the systems that are compared; did you mean 'dgx-a100'?; these are dgx-a100, gb200-nvl72",
    ),
    ({"on": "dgx-a100,gb200-nvl72", "devices": 8, "prices": "b200=4"}, "prices='b200=4': b200 is none of the systems that are compared"),
    ({"devices": 8, "sequence": "long"}, "workload.sequence: expected a whole number, got 'long'"),
    ({"devices": 8, "prices": "h100"}, "prices: expected SYSTEM=USD with commas between, such as h100=2.2,b200=4.5; got 'h100'"),
    ({"devices": 8, "prices": "h100=-1"}, "prices='h100=-1': expected more than 0 USD/hour, got '-1'"),
    ({"devices": 8, "settings": "workload.foo=3"}, "workload.foo: unknown key 'foo'"),
]


@pytest.mark.parametrize(("given", "message"), WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_wrong_words_get_one_clear_error(given, message):
    with pytest.raises(CrossflowError, match=re.escape(message)):
        crossflow.compare("llama3-8b", given.pop("on", "dgx-h100,dgx-b200"), **given)


def test_the_beginning_of_a_word_names_a_system():
    assert set(prices_of("mi300=2,h100=3", ["mi300x-node", "h100-ib-cluster"])) == {"mi300x-node", "h100-ib-cluster"}


def test_the_page_is_one_file_with_all_systems(compared):
    text = written(compared)
    assert text.count("<!doctype html>") == 1
    assert not re.search(r'(src|href)="', text)
    assert all(row.system in text and row.strategy in text for row in compared)
    assert compared.verdict in text


def test_it_reads_as_a_few_lines_and_as_a_table(compared):
    assert repr(compared).startswith(f"ComparedSystems(llama3-8b, training: {compared.verdict})")
    assert len(repr(compared).splitlines()) == 3
    assert compared._repr_html_().count("<tr>") == 3
    headers, rows = compared.table()
    assert all(len(row) == len(headers) for row in rows)


def test_plans_within_the_spread_of_layouts_are_tied():
    found = crossflow.plan({"system": "dgx-h100", "workload": {"model": "llama3-8b", "global_batch": 16, "sequence": 1024}}, top=20)
    spread, _ = bands.spread_of(run := bands.Likeness(kind="training of dense language models", seen="device"), run, same=True)
    first = found[0]
    near = {one.strategy for one in found[1:] if one.step_time <= first.step_time * (1.0 + spread.order)}
    assert set(first.tied_with) == near
    assert found.to_dict()["plans"][0]["tied_with"] == list(first.tied_with)
    by_memory = crossflow.plan(found.scenario, top=3, objective="memory_needed_bytes")
    assert {one.tied_with for one in by_memory} == {None}
