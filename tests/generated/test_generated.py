"""Laws over files that are drawn: what is accepted is answered without a warning, and whoever asks in another way is told the same."""

import re
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from sampled import ALL, fewer

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.base.errors import CrossflowError
from tests.generated.drawn_laws import accepted, strictly, swept
from tests.generated.everything import DRAWN, LAWS, QUICK, checks
from tests.generated.physics import MODEL, WITHIN, better_figures, better_parts, exceptions, in_half_seconds, time_exponent


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRAWN)
@hypothesis.settings(max_examples=fewer(100, 1), suppress_health_check=list(hypothesis.HealthCheck))
@given(data=hypothesis.strategies.data())
def test_what_is_accepted_obeys_the_laws(kind, data, tmp_path_factory):
    """All of them with ``ALL_CASES=1``, else one or two of each file; `python -m tests.generated` draws more."""
    folder = tmp_path_factory.mktemp("drawn")
    with strictly():
        held = list(checks(kind, data.draw(DRAWN[kind]), folder, tuple(LAWS) if ALL else QUICK, None if ALL else 1))
        for _, check in held:
            check()


# ------------------------------------------------------------------------------------------ what was found


def test_other_registers_change_the_traffic_of_scans_on_a_generated_chip():
    """A state-space model at several points whose registers differ: it ended in a traceback, as its kernels are the same at all of them."""
    document = {
        "system": {"template": "chip-mi300x", "nodes": 1, "devices_per_node": 1}, "workload": {"model": "mamba2-2.7b", "global_batch": 8},
        "strategy": "dp1", "software": "ideal",
    }  # fmt: skip
    scenario = crossflow.from_dict(document)
    path = "system.budgets.area.on_chip.registers"
    share = float(np.ravel(scenario.system.budgets.area.on_chip["registers"])[0])
    together = evaluate(scenario, {path: [share, 0.5 * share]})
    alone = [evaluate(scenario, {path: [one]}).energy[0] for one in (share, 0.5 * share)]
    np.testing.assert_allclose(together.energy, alone, rtol=1e-12)
    assert alone[1] > alone[0]


# ------------------------------------------------------------------------------------------ the laws themselves

PIPELINE = {
    "system": {"template": "dgx-b200", "nodes": 2, "devices_per_node": 2}, "workload": {"model": "gpt2-345m", "global_batch": 64},
    "strategy": {"pp": 2, "dp": 2}, "software": "megatron-core",
}  # fmt: skip


@pytest.fixture
def pipeline(tmp_path):
    return accepted("transformer", PIPELINE, tmp_path)


@pytest.mark.parametrize(
    ("unit", "exponent"), [("s", 1), ("Hz", -1), ("B/s", -1), ("J/B", 0), ("W/B", -1), ("K*m2/W", 1), ("s/m", 1), ("flop/cycle", 0)]
)
def test_units_have_their_power_of_time(unit, exponent):
    assert time_exponent(unit) == exponent


def test_the_law_of_units_sees_a_rate_that_no_file_holds(pipeline, monkeypatch):
    in_half_seconds(pipeline)
    monkeypatch.setattr("tests.generated.physics.WITHIN", [one for one in WITHIN if one[1] != "PCIE5"])
    with pytest.raises(AssertionError, match="time"):
        in_half_seconds(pipeline)


def test_the_law_of_better_parts_sees_one_that_is_worse(pipeline, monkeypatch):
    better_parts(pipeline)
    monkeypatch.setitem(better_parts.__globals__["BETTER"], "bandwidth", -1)
    with pytest.raises(AssertionError, match="bandwidth"):
        better_parts(pipeline)


def test_more_memory_may_lengthen_the_steps_of_a_service(tmp_path):
    """Weights fill the memory of this one, so that it has no room for a request; with more it writes for all of them."""
    document = {
        "system": {"template": "gaudi2-node", "nodes": 2}, "strategy": "dp16",
        "workload": {"model": "mixtral-8x7b", "task": "serving", "prompt": 256, "output": 32, "global_batch": 64, "serving": {"chunk": 64}},
    }  # fmt: skip
    case = accepted("service", document, tmp_path)
    name = "system.levels.memory.capacity"
    short, large = (evaluate(case.scenario, {name: [size]}).step_time[0] for size in (90e9, 200e9))
    assert name in better_figures(case)
    assert large > 2 * short
    better_parts(case)


def test_the_law_of_sweeps_knows_shares_that_are_too_large(tmp_path, monkeypatch):
    """By themselves they are a wrong file, and in a study a design that cannot be built."""
    document = {
        "system": {"template": "pathfinder", "devices": 1}, "workload": {"model": "llama2-7b", "task": "prefill", "prompt": 256},
        "strategy": "dp1",
    }  # fmt: skip
    monkeypatch.setattr("tests.generated.drawn_laws._some", lambda given, *_: [one for one in given if one.path.endswith("shares.compute")])
    case = accepted("transformer", document, tmp_path)
    with pytest.raises(CrossflowError, match="add up to"):
        crossflow.predict(document, ["system.budgets.power_shares.compute=0.35"])
    swept(case)


def test_every_exception_of_the_notes_names_a_figure_that_is_tried(tmp_path):
    """A row that nothing matches hides nothing, and tells a reader what is not so."""
    text = Path(MODEL).read_text()
    assert len(exceptions()) == len(re.findall(r"^\| `", text.split("## Where a better part", 1)[1].split("\n## ", 1)[0], re.MULTILINE))
    given = {**PIPELINE, "system": {**PIPELINE["system"], "network": {"intra": {"latency": "2 us"}}}}
    names = better_figures(accepted("transformer", given, tmp_path))
    assert all(any(one.figure.fullmatch(name) for name in names) for one in exceptions())


def test_a_longer_latency_never_shortens_a_step_whose_streams_share_links():
    """Gathers that take longer than the passes beside them, tensor-parallel collectives between nodes: what is sent meets as before."""
    document = {
        "system": {"template": "dgx-h100", "nodes": 8, "network": {"intra": {"latency": "2 us"}, "inter": {"latency": "5 us"}}},
        "strategy": "tp16-dp4-z3-sp",
        "workload": {"model": "transformer", "layers": 8, "hidden": 4096, "heads": 32, "ffn": 16384, "vocabulary": 32000, "sequence": 2048,
                     "global_batch": 256}, "software": "ideal",
    }  # fmt: skip
    latencies = [2e-6 * 1.15**i for i in range(25)]
    for strategy, software in (("tp16-dp4-z3-sp", "ideal"), ("tp16-dp4-z3", "ideal"), ("tp16-dp4-z3", "megatron-core")):
        scenario = crossflow.from_dict({**document, "strategy": strategy, "software": software})
        for path in ("system.network.intra.latency", "system.network.inter.latency"):
            times = evaluate(scenario, {path: latencies}).step_time
            assert (np.diff(times) >= -1e-12 * times[1:]).all()
