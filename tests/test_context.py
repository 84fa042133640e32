"""Context parallelism: what the steps of ring attention compute, send and expose, and what a whole step then costs."""

import itertools

import numpy as np
import pytest
from blocks import block_kernels

import crossflow
from crossflow.answers.evaluation.events import events
from crossflow.answers.evaluation.timelines import simulate as timeline
from crossflow.answers.steps.machines import machine
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.cost.passes import steps_of
from crossflow.engine.events import run_tasks
from crossflow.evidence.validation.tables import shipped
from crossflow.evidence.validation.training import training_table
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.tables import OF, tables_of
from crossflow.program.kernels import Attention

GPT = {
    "model": "transformer", "layers": 4, "hidden": 2048, "heads": 16, "kv_heads": 4, "ffn": 8192, "vocabulary": 32000, "sequence": 4096,
    "positions": "rotary", "global_batch": 16, "dtype": "bf16",
}  # fmt: skip
LENGTHS = (512, 4096, 32768)


def scenario(strategy, software="megatron-core", network=None, profile=None, **workload):
    system = {"template": "h100-ib-cluster", "nodes": None, **({"network": network} if network else {})}
    given = {"system": system, "workload": {**GPT, **workload}, "strategy": strategy, "software": software}
    return crossflow.from_dict({**given, **({"profile": str(profile)} if profile else {})})


def step_time(*args, **changes):
    return crossflow.predict(scenario(*args, **changes)).step_time


def kernels_of(given, *plans):
    layout = Layout.of(plans, np.full(len(plans), 16.0), 8)
    return block_kernels(given.job(), layout, given.stack), layout


# -------------------------------------------------------------------------------------------- work


@pytest.mark.parametrize(
    "workload", [{}, {"causal": False}, {"encoder": {"layers": 2, "sequence": 1024}}], ids=["causal", "whole", "cross"]
)
def test_every_rank_does_its_share_of_the_scores_in_as_many_kernels_as_ranks(workload):
    degrees = np.array([1, 2, 4, 8])
    kernels, _ = kernels_of(scenario("dp1", **workload), *(Plan(cp=int(cp)) for cp in degrees))
    unit = {(one.unit, one.phase) for one in kernels.scores}
    for mine in unit:
        flops, number = (sum(part) for part in zip(*((s.flops * s.number, s.number) for s in kernels.scores if s[:2] == mine), strict=True))
        np.testing.assert_allclose(degrees * flops, flops[0], rtol=1e-13)
        np.testing.assert_array_equal(np.broadcast_to(number, 4), degrees)


def test_two_chunks_a_rank_balance_a_causal_mask():
    """Queries and keys of a rank's two of 2 c chunks, one from either end: as many pairs under the mask on every rank and in every step."""
    c, chunk = 4, 8
    tokens = [np.concatenate([np.arange(chunk) + i * chunk for i in (r, 2 * c - 1 - r)]) for r in range(c)]
    pairs = np.array([[(tokens[r][:, None] > tokens[(r - i) % c]).sum() + (i == 0) * chunk for i in range(c)] for r in range(c)])
    assert (pairs == 2 * chunk**2).all()
    own, _, later, _ = kernels_of(scenario("dp1", sequence=2 * c * chunk, layers=1), Plan(cp=c))[0].scores
    assert own.flops[0] == later.flops[0] == 16 * 4 * pairs[0, 0] * 128
    assert later.number[0] == c - 1


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_keys_and_values_travel_as_far_as_gathers_and_scatters_would_take_them(cp):
    """A rank sends c - 1 times the keys and values of one rank, and backward their gradients too."""
    kernels, _ = kernels_of(scenario("dp1"), Plan(cp=cp))
    whole = GPT["sequence"] * 2 * GPT["kv_heads"] * 128 * 2  # bytes of a sample's keys and values in a layer
    for phase, times in (("forward", 1), ("input", 2)):
        sent = sum(float((m.size * m.number)[0]) for m in kernels.messages if m.group == "context" and m.phase == phase)
        assert sent == times * (cp - 1) / cp * whole * len({m.part for m in kernels.messages if m.group == "context"})


# -------------------------------------------------------------------------------------------- cost


@pytest.mark.cases(1)
@pytest.mark.parametrize("length", LENGTHS)
def test_more_context_ranks_cost_more(length):
    """As many tokens a rank and microbatch: pieces fill the device less, each is launched, and their results are merged."""
    times = [step_time(f"cp{cp}-dp{16 // cp}-mb{cp}", sequence=length) for cp in (1, 2, 4, 8)]
    assert all(one < more for one, more in itertools.pairwise(times)), times


@pytest.mark.slow
def test_long_samples_come_near_the_ideal_ring():
    over = [step_time("cp8-dp2", sequence=length) / step_time("dp16", sequence=length) - 1 for length in (2**13, 2**17, 2**21, 2**25)]
    assert all(more > less > 0 for more, less in itertools.pairwise(over))
    assert over[-1] < 1e-3


def test_what_a_ring_exposes_is_that_of_its_events():
    """Kernels follow each other, transfers follow each other, and both of a step begin together."""
    given = scenario("cp8-dp2", network={"inter": {"bandwidth": "2 GB/s"}, "intra": {"bandwidth": "20 GB/s"}}, kv_heads=16)
    runs_on, job = machine(given, given.architecture), given.job()
    layout = Layout.of([given.strategy], np.array([16.0]), 8)
    steps = steps_of(job, layout, runs_on, tables_of(job, layout, runs_on.stack))
    unit = next(i for i, name in enumerate(steps.times.layers) if name.endswith("attention"))
    fused = [i for i, kernel in enumerate(steps.tables.program.kernels) if isinstance(kernel, Attention)]
    own, own_back, later, later_back = steps.times.each[fused, 0]
    one, two = (float(runs_on.wires.time("send_recv", np.array([n * 512 * 2 * 16 * 128 * 2.0]), layout.context)[0]) for n in (1, 2))
    for way, kernels, transfers in (
        (0, [own] + [later] * 7, [one] * 7),
        (1, [own_back] + [later_back] * 7, [one, *[two] * 6, one]),
    ):  # fmt: skip
        ring, device = [f"t{i}" for i in range(len(transfers))], [f"k{i}" for i in range(8)]
        place = {name: i for i, name in enumerate((*device, *ring))}
        after = [() if i == 0 else (place[f"t{i - 1}"],) for i in range(8)]
        after += [() if i == 0 else (place[f"k{i - 1}"],) for i in range(len(transfers))]
        _, ends = run_tasks([*kernels, *transfers], after, ["device"] * 8 + ["ring"] * len(transfers))
        exposed = steps.passes.blocking[OF["send_recv"], way, unit, 0]
        assert exposed > 0
        assert sum(kernels) + exposed == pytest.approx(ends.max(), rel=1e-12)


@pytest.mark.cases(1)
@pytest.mark.parametrize("strategy", ["cp8-dp1", "cp16-dp1"])
def test_faster_links_never_slow_a_ring_and_slow_ones_are_felt(strategy):
    def at(rate):
        return step_time(strategy, network={level: {"bandwidth": f"{rate} GB/s"} for level in ("intra", "inter")}, sequence=8192)

    times = [at(rate) for rate in (1, 4, 16, 64, 256, 1024)]
    assert all(slow >= fast for slow, fast in itertools.pairwise(times))
    assert times[0] > 1.5 * times[-1]


def test_without_overlap_all_of_a_ring_is_exposed():
    serial = {"like": "megatron-core", "overlap": {"context": False}}
    apart, beside = (crossflow.predict(scenario("cp4-dp2", stack, sequence=65536)).to_dict() for stack in (serial, "megatron-core"))
    sent = apart["communication_s"]["send_recv"]
    assert sent["exposed"] == pytest.approx(sent["total"], rel=1e-12)
    assert sent["total"] == pytest.approx(beside["communication_s"]["send_recv"]["total"], rel=1e-12)
    # The reductions of gradients share the port with a ring that nothing hides.
    hidden = sum(apart["communication_s"][name]["exposed"] - found["exposed"] for name, found in beside["communication_s"].items())
    assert apart["step_time_s"] - beside["step_time_s"] == pytest.approx(hidden, rel=1e-9)


@pytest.mark.thorough
@pytest.mark.slow
def test_runs_that_were_measured_with_rings():
    """Megatron-Core with Transformer Engine on 8 B200, 32,768 tokens over 4 and 8 context ranks (SimuMax's table)."""
    table = training_table(shipped())
    rings = [i for i, size in enumerate(table.sizes) if "32768" in size and table.groups["source"][i] == "simumax-b200-2026"]
    assert len(rings) == 2
    np.testing.assert_allclose(table.predicted[rings], table.measured[rings], rtol=0.02)


# -------------------------------------------------------------------------------------------- other views


@pytest.mark.parametrize("strategy", ["cp4-dp2", "tp2-sp-cp4-pp2-full", "cp2-dp2-pp2-z3-v2"])
def test_timelines_take_as_long_as_predicted(strategy):
    given = scenario(strategy)
    assert timeline(given).total == pytest.approx(crossflow.predict(given).step_time, rel=1e-9)


def test_events_of_a_ring_are_counted_one_by_one():
    given = scenario("cp4-dp2")
    found = events(given).events
    attends = [e for e in found if e.op == "attention_forward"]
    rounds = GPT["layers"] * GPT["global_batch"] * 4  # layers, samples, ranks of a sample
    assert {e.shape: e.count for e in attends} == {"16 x 1024x1024x128": rounds, "16 x 512x1024x128": 3 * rounds}
    (one,) = [e for e in found if e.op == "send_recv" and e.shape == f"{1024 * 2 * 4 * 128 * 2} B"]
    (both,) = [e for e in found if e.op == "send_recv" and e is not one]
    assert (one.ranks, one.scope, one.count, both.count) == (2, "intra", (3 + 2) * rounds, 2 * rounds)


def test_a_measured_transfer_is_that_of_a_ring_of_any_size(tmp_path):
    plain = scenario("cp4-dp2")
    rows = "".join(f"{e.op},{e.shape},,,2,intra,{1e3 * e.time}\n" for e in events(plain).events if e.op == "send_recv")
    (tmp_path / "p.csv").write_text("op,shape,dtype,device,ranks,scope,time\n" + rows)
    given = scenario("cp4-dp2", profile=tmp_path / "p.csv")
    before, after = (crossflow.predict(one).to_dict()["communication_s"]["send_recv"]["total"] for one in (plain, given))
    assert after == pytest.approx(1e3 * before, rel=1e-9)


# -------------------------------------------------------------------------------------------- what cannot be


def test_unfused_attention_gathers_keys_and_values_and_waits():
    found = crossflow.predict(scenario("cp4-dp2", "megatron-lm-2022")).to_dict()["communication_s"]
    assert found["send_recv"]["total"] == 0
    assert found["all_gather"]["exposed"] == pytest.approx(found["all_gather"]["total"], rel=1e-9)


def test_a_ring_of_unfused_attention_is_refused(exactly):
    sentence = "unfused attention waits for all keys and values; use attention.kernel: flash, or context: false"
    with pytest.raises(SpecError, match=exactly(f"scenario: software.overlap.context: {sentence}")):
        scenario("cp4-dp2", {"like": "megatron-lm-2022", "overlap": {"context": True}})


def test_a_causal_sample_divides_into_two_chunks_a_rank(exactly):
    sentence = (
        "strategy cp4-dp2: the 4100 tokens of a sample are not divisible by 2 x cp = 8: a context rank of a causal mask has two chunks"
    )
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        crossflow.predict(scenario("cp4-dp2", sequence=4100))
    assert step_time("cp4-dp2", sequence=4100, causal=False) > 0
