"""Decisions of an explanation: they keep what they promise, the page tells the same ones, and what changes nothing is left out."""

import json
from dataclasses import replace

import pytest
import yaml
from sampled import every

import crossflow
from crossflow.__main__ import main
from crossflow.answers.explanation.answers import DIVIDED, paces
from crossflow.answers.explanation.decisions import KINDS, LEAST, TIMED, in_order, of_the_chip, overrides
from crossflow.answers.explanation.designs import Design
from crossflow.answers.explanation.moves import moves, names_of
from crossflow.answers.explanation.sensitivity import explain
from crossflow.answers.scenario import load
from crossflow.base.errors import SpecError
from crossflow.edges.explore import scenario as page

SERVICE = {"model": "llama3-8b", "prompt": 512, "output": 64}
CASES = {
    "training": {"system": {"template": "h100-ib-cluster", "nodes": 2}, "workload": {"model": "llama3-8b", "global_batch": 64},
                 "strategy": "tp8-dp2"},
    "service": {"system": {"template": "dgx-h100", "devices": 8}, "workload": {**SERVICE, "task": "serving", "global_batch": 512},
                "strategy": "tp2-dp4", "software": {"like": "vllm", "engine": {"requests": 32}}},
    "decode": {"system": {"template": "dgx-h100", "devices": 4}, "workload": {**SERVICE, "task": "decode", "global_batch": 32},
               "strategy": "tp4"},
    "experts": {"system": {"template": "h100-ib-cluster", "nodes": 1}, "strategy": "dp8-ep8",
                "workload": {**SERVICE, "model": "mixtral-8x7b", "task": "decode", "global_batch": 256}},
    "auto": {"system": {"template": "dgx-h100", "devices": 8}, "workload": {"model": "llama3-8b", "global_batch": 64}, "strategy": "auto"},
    "dlrm": {"system": {"template": "zionex"}, "workload": {"model": "dlrm-a"}, "strategy": "dense ddp, embedding mp"},
    "lstm": {"system": {"template": "pathfinder", "devices": 16}, "strategy": "d16",
             "workload": {"model": "lstm", "hidden": 1024, "vocabulary": 1000, "sequence": 8, "global_batch": 64}},
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("short_divisions")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decisions")
    for name, data in CASES.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(data))
    return {name: folder / f"{name}.yaml" for name in CASES}


@pytest.fixture(scope="module")
def explained(files):
    known = {}

    def of(name):
        if name not in known:
            known[name] = explain(crossflow.load(files[name]))
        return known[name]

    return of


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", CASES)
def test_settings_give_exactly_what_is_told(name, files, explained):
    found = explained(name)
    assert found.decisions
    for one in every(8, found.decisions):
        score = crossflow.evaluate(load(files[name], one.overrides))
        assert score.feasible[0]
        assert paces(score)[0] == pytest.approx((one.step_time, one.throughput), rel=1e-9), one.text


@pytest.mark.thorough  # what it runs quicker tests run too
def test_predict_takes_the_settings_of_a_row(files, explained, capsys):
    for one in explained("decode").decisions[:4]:
        assert main(["predict", str(files["decode"]), "--json", *(word for text in one.overrides for word in ("--set", text))]) == 0
        assert json.loads(capsys.readouterr().out)["step_time_s"] == pytest.approx(one.step_time, rel=1e-12)


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["training", "service", "decode"])
def test_the_page_tells_the_same_decisions(name, files, explained):
    scenario, body = crossflow.load(files[name]), {"settings": {}}
    rows = [*page.neighbours(scenario, body), *page.decisions(scenario, body)]
    told = json.loads(json.dumps(explained(name).to_dict()["decisions"]))
    assert [(row["kind"], row["text"], row["settings"], row["set"]) for row in rows] == [
        (row["kind"], row["text"], row["settings"], row["set"]) for row in told
    ]
    for row, other in zip(rows, told, strict=True):
        assert (row["time"], row["rate"]) == pytest.approx((other["time"], other["rate"]), rel=1e-9)


@pytest.mark.cases(4)
@pytest.mark.parametrize("name", CASES)
def test_rows_stand_kind_by_kind_and_each_brings_something(name, explained):
    found = explained(name)
    assert [one.kind for one in found.decisions] == sorted((one.kind for one in found.decisions), key=KINDS.index)
    timed = found.objective in TIMED
    for one in found.decisions:
        assert (one.rate > LEAST or one.time < -LEAST) if timed else one.gain > LEAST


def test_an_engine_that_takes_few_requests_may_take_more(explained):
    rows = {one.text: one for one in explained("service").decisions if one.kind == "engine"}
    more = rows["requests of a replica 32 to 64"]
    assert more.overrides == ("software.engine.requests=64",)
    assert more.rate > 0.1
    assert not any(text.startswith("requests of a replica 32 to 16") for text in rows)


def test_switches_of_an_engine_are_said_from_what_they_are_to_what_they_are_not():
    given = {"system": {"template": "dgx-h200", "devices": 8}, "workload": {"model": "qwen3-30b-a3b", "task": "decode", "global_batch": 64},
        "strategy": "ep8-dp8-mb8", "software": {"like": "vllm", "engine": {"balances": True}}}  # fmt: skip
    design = Design(settings={}, scenario=crossflow.from_dict(given), quantities={})
    settings = {move.text: move.settings for move in moves(design) if move.kind == "engine"}
    assert settings["balance of experts on to off"] == {"software.engine.balances": False}
    assert settings["two-batch overlap off to on"] == {"software.overlap.experts": True}


def test_software_that_a_scenario_leaves_to_its_default_is_named_with_its_setting(tmp_path):
    file = tmp_path / "service.yaml"
    file.write_text(
        yaml.safe_dump({"system": "dgx-h100", "workload": {**SERVICE, "task": "serving", "global_batch": 8}, "strategy": "tp8"})
    )
    design = Design(settings={}, scenario=crossflow.load(file), quantities={})
    move = next(move for move in moves(design) if "software.engine.requests" in move.settings)
    told = overrides(design, move.settings)
    assert told == ("software.like=vllm", "software.engine.requests=2048")
    assert load(file, told).stack.engine.requests == 2048


TYPES = {"dtype": "weight", "weight_dtype": "weight", "kv_dtype": "cache"}  # with what a type is smaller in


@pytest.mark.cases(3)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp8", "int8"])
@pytest.mark.parametrize("kept", [{}, {"weight_dtype": "int4"}, {"kv_dtype": "fp8"}, {"kv_dtype": "bf16"}])
def test_types_that_are_offered_are_those_that_make_weights_or_the_cache_smaller(dtype, kept):
    """All of them and no others, by the bits that the job itself stores; scales of blocks are less than a bit each."""

    def service(**given):
        workload = {**SERVICE, "task": "serving", "global_batch": 8, "dtype": dtype, **kept, **given}
        data = {"system": {"template": "gb200-nvl72", "devices": 8}, "workload": workload, "strategy": "tp8", "software": "vllm"}
        return crossflow.from_dict(data)

    def bits(scenario, size):
        return int(8 * getattr(scenario.job().own, size))

    scenario = service()
    offered = [move.settings for move in moves(Design(settings={}, scenario=scenario, quantities={})) if move.kind == "type"]
    for name, size in TYPES.items():
        told = {settings[f"workload.{name}"] for settings in offered if f"workload.{name}" in settings}
        own = service(weight_dtype=None) if name == "dtype" else scenario
        narrower, refused = set(), set()
        for other in names_of(type(scenario.workload).model_fields[name].annotation):
            try:
                made = service(**{"weight_dtype": None, name: other})
            except SpecError:  # such as products in which the device does not compute
                refused.add(other)
                continue
            kernels = name != "weight_dtype" or other in scenario.stack.kernels.widening  # an engine without them runs none
            narrower |= {other} if kernels and bits(made, size) < bits(own, size) else set()
        assert told - refused == narrower, name


def test_decisions_about_a_chip_stand_where_their_kind_does(explained):
    chip = [one for one in explained("lstm").decisions if one.spread is not None]
    assert {one.kind for one in chip} >= {"budgets", "network"}
    assert all((one.kind == "budgets") == one.path.startswith("system.budgets") for one in chip)
    assert all((one.kind == "network") == one.path.endswith("_link") for one in chip)
    assert all(one.settings.keys() >= {"system.budgets.area.compute"} for one in chip)


def test_the_new_division_stands_before_what_is_counted_over_it(explained):
    found = explained("lstm")
    divided, *others = found.alternatives
    assert divided.path == DIVIDED
    told = in_order(of_the_chip(found.scenario, crossflow.evaluate(found.scenario), [replace(divided, feasible=True, gain=0.2), *others]))
    assert len(told) > 2
    assert told[0].path == DIVIDED


def test_the_biggest_lever_of_a_generated_design_is_a_number_that_a_reader_decides(explained):
    found = explained("lstm")
    assert found.effect(found.lever.changes[0].path).group == "decision"
    gains = [effect.gain for effect in found.effects if effect.group == "decision" and effect.gain is not None]
    assert found.lever.gain <= max(gains) + 1e-12
    assert found.limiting.gain >= found.lever.gain  # which any number may be, fitted ones too


@pytest.mark.thorough  # what it runs quicker tests run too
def test_what_does_not_fit_is_not_offered():
    data = {"system": {"template": "dgx-h100", "devices": 2}, "strategy": "tp2",
            "workload": {**SERVICE, "model": "llama3-70b", "task": "decode", "global_batch": 8}}  # fmt: skip
    scenario = crossflow.from_dict(data)
    assert crossflow.evaluate(scenario).feasible[0]
    assert not any("devices 2 to 1" in one.text for one in explain(scenario).decisions)


@pytest.mark.thorough  # what it runs quicker tests run too
def test_of_another_objective_what_improves_it_is_told(files):
    scenario = crossflow.load(files["decode"])
    base = crossflow.evaluate(scenario).energy[0]
    found = explain(scenario, "energy_j").decisions
    assert found
    for one in found:
        assert one.value < base
        assert one.gain == pytest.approx(1 - one.value / base)
    assert not [one for one in found if one.kind == "batch"]


@pytest.mark.thorough
def test_the_terminal_has_a_row_for_each(files, explained, capsys):
    assert main(["explain", str(files["training"])]) == 0
    text = capsys.readouterr().out
    table = text.split("What you decide")[1].split("\n\n")[0]
    for one in explained("training").decisions:
        assert one.kind == "strategy" or f"  {one.kind} " in table
    assert "tokens/s/device" in table
    assert "nodes 2 to 4," in table


@pytest.mark.parametrize(("system", "narrow"), [("dgx-h100", False), ("dgx-b200", True)])
def test_a_cache_of_4_bits_is_offered_and_taken_where_devices_multiply_in_them(system, narrow):
    """TensorRT-LLM's support matrix has NVFP4 caches on Blackwell alone; an H100 was told to take one."""
    found = crossflow.from_dict({**CASES["service"], "system": system})
    settings = [move.settings for move in moves(Design(settings={}, scenario=found, quantities={}))]
    offered = {one["workload.kv_dtype"] for one in settings if "workload.kv_dtype" in one}
    assert offered == {"fp8", "int8"} | ({"nvfp4"} if narrow else set())
    taken = crossflow.predict(found, {"workload.kv_dtype": "nvfp4"}).notes
    told = [note for note in taken if note.startswith("workload.kv_dtype: engines keep nvfp4 on devices that multiply in it")]
    assert bool(told) != narrow


def test_weights_are_offered_in_types_that_the_engine_has_kernels_for():
    """No engine keeps weights in mxfp6, which a service on an H100 was told to take; software that lists no kernels leaves none out."""

    def offered(engine):
        found = crossflow.from_dict({**CASES["service"], "software": engine})
        settings = [move.settings for move in moves(Design(settings={}, scenario=found, quantities={}))]
        return {one["workload.weight_dtype"] for one in settings if "workload.weight_dtype" in one}

    kernels = {"int4", "int4_64", "int4_32", "int8", "fp8", "mxfp4", "nvfp4"}
    assert (offered("vllm"), offered("sglang")) == (kernels, kernels)
    assert {"mxfp6", "mxfp8"} <= offered("ideal")
