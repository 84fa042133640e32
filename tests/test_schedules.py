"""Schedules as data: every pass once, published bubbles and memory, files and what is wrong with them."""

import re

import numpy as np
import pytest
from lags import pipeline_ends, travelling

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.base.errors import SpecError, StrategyError
from crossflow.engine.timeline.pipeline import slot_ends, walk_of
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.mesh import FOLDED
from crossflow.parallel.strategy.schedules import BACKWARD, FORWARD, RULES, WEIGHT, pipeline_order, read_order, schedule_problem, stuck
from crossflow.parallel.strategy.transformers import plan_of

SHAPES = [(2, 4), (4, 4), (4, 8), (8, 32), (6, 12)]
OWN = """\
kind: schedule
name: own
order:
  - F0 F1 B0 F2 B1 F3 B2 B3
  - F0 B0 F1 B1 F2 B2 F3 B3
"""


def chunks_of(rule):
    return 2 if rule in FOLDED else 1


def makespan(rule, p, m, forward=1.0, backward=1.0, weight=1.0, chunks=None):
    """Time of uniform slots; the backward pass has the weight gradient in it where the rule does not part them."""
    order = pipeline_order(rule, p, chunks or chunks_of(rule), m)
    times = [forward, backward, weight] if order.split else [forward, backward + weight]
    durations = np.repeat(times, order.rows)[:, None]
    return slot_ends(walk_of(order), durations, np.zeros_like(durations)).max()


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "own.yaml"
        path.write_text(text)
        return path

    return write


# ------------------------------------------------------------------------------------------ rules


@pytest.mark.parametrize(
    ("rule", "shape"), [(rule, (p, m)) for rule in RULES for p, m in SHAPES if schedule_problem(rule, p, chunks_of(rule), m) is None]
)
def test_every_pass_is_there_once_in_an_order_that_can_run(rule, shape):
    p, m = shape
    order = pipeline_order(rule, p, chunks_of(rule), m)
    passes = np.concatenate(order.slots)
    assert len(np.unique(passes, axis=0)) == len(passes) == p * m * chunks_of(rule) * (3 if order.split else 2)
    for stage, slots in enumerate(order.slots):
        assert (slots[:, 1] % p == stage).all()
    for kind in (FORWARD, BACKWARD):  # each microbatch meets each chunk of the model once
        mine = passes[passes[:, 0] == kind]
        assert len({(int(order.chunk[row]), batch) for _, row, batch in mine.tolist()}) == p * m * chunks_of(rule)
    assert stuck(order) == []


@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 8), (8, 32)])
@pytest.mark.parametrize(("f", "b", "w"), [(1.0, 1.0, 1.0), (2.0, 2.0, 1.0), (1.0, 1.5, 1.0)])
def test_the_bubble_of_zb_h1_is_forward_and_backward_less_weight(p, m, f, b, w):
    """Qi 2024, Table 2: (p - 1) (F + B - W), against (p - 1) (F + B + W) of 1F1B."""
    assert makespan("zb-h1", p, m, f, b, w) == pytest.approx(m * (f + b + w) + (p - 1) * (f + b - w))
    assert makespan("1f1b", p, m, f, b, w) == pytest.approx((m + p - 1) * (f + b + w))


@pytest.mark.parametrize(("p", "m"), [(4, 16), (8, 32)])
def test_zb_h1_keeps_no_more_than_the_first_stage_of_1f1b(p, m):
    assert pipeline_order("zb-h1", p, 1, m).kept().max() == pipeline_order("1f1b", p, 1, m).kept().max() == p


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (4, 8, 2), (4, 8, 4), (8, 32, 2), (3, 6, 3)])
def test_interleaved_zb_h1_has_the_bubble_of_one_chunk_of_it(p, m, v):
    """Chunks of a v-th of a stage, of passes that are alike: p - 1 slots of a v-th, where 1F1B of v chunks has three times that."""
    each = 1.0 / v
    assert makespan("zb-h1", p, m, each, each, each, chunks=v) == pytest.approx(3.0 * m + (p - 1) * each)
    assert makespan("1f1b", p, m, each, each, each, chunks=v) == pytest.approx(3.0 * m + (p - 1) * 3.0 * each)
    order = pipeline_order("zb-h1", p, v, m)
    assert stuck(order) == []
    assert order.kept().sum(axis=0).max() <= pipeline_order("1f1b", p, v, m).kept().sum(axis=0).max()


@pytest.mark.parametrize("p", [2, 4, 8, 16])
@pytest.mark.parametrize(("f", "b"), [(1.0, 1.0), (1.0, 2.0)])
def test_chimeras_critical_path_is_the_papers(p, f, b):
    """Li 2021, Sec. 3.4: of p microbatches C_f = p forward and C_b = 2 p - 2 backward passes (6 and 10 for p = 6)."""
    assert makespan("chimera", p, p, f, b, 0.0) == pytest.approx(p * f + (2 * p - 2) * b)


@pytest.mark.parametrize("p", [4, 8])
def test_chimeras_units_follow_each_other_without_a_gap_where_passes_are_alike(p):
    assert makespan("chimera", p, 4 * p, 1.0, 1.0, 0.0) == pytest.approx(2 * 4 * p + p - 2)


def test_both_directions_of_chimera_hold_the_model():
    order = pipeline_order("chimera", 4, 1, 8)
    assert order.chunk.tolist() == [0, 1, 2, 3, 3, 2, 1, 0]
    assert all((slots[:, 1] // 4 == 0).sum() == (slots[:, 1] // 4 == 1).sum() for slots in order.slots)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (8, 20), (16, 120)])
@pytest.mark.parametrize(("f", "w"), [(1.0, 1.0), (2.0, 1.0), (1.0, 0.5)])
def test_the_bubble_of_dualpipe_is_the_papers(p, m, f, w):
    """DeepSeek-V3, Table 2: (p / 2 - 1) (F&B + B - 3 W), with B = F + W."""
    b = f + w
    assert makespan("dualpipe", p, m, f, f, w) == pytest.approx(m * (f + b) + (p / 2 - 1) * (f + b + b - 3 * w))
    assert makespan("dualpipe", p, m, f, f, w) <= makespan("zb-h1", p, m, f, f, w) <= makespan("1f1b", p, m, f, f, w)


@pytest.mark.parametrize("p", [4, 8, 16])
def test_the_bubble_of_dualpipe_where_forward_and_input_gradient_differ(p):
    """The law is a bound then, off by no more than twice their difference, whatever the stages."""
    f, b, w = 1.0, 1.5, 1.0
    law = 4 * p * (f + b + w) + (p / 2 - 1) * (f + 2 * (b + w) - 3 * w)
    assert law - 2 * (b - f) <= makespan("dualpipe", p, 4 * p, f, b, w) <= law


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (8, 20), (16, 120)])
def test_a_stage_of_dualpipe_keeps_one_microbatch_more_than_stages(p, m):
    """DeepSeek-V3, Table 2: PP + 1, on every stage."""
    assert pipeline_order("dualpipe", p, 1, m).kept().sum(axis=0).tolist() == [p + 1] * p


def test_passes_of_dualpipe_by_hand():
    """Four stages, four microbatches from each end, by the eight steps of `DualPipe.step` (deepseek-ai/DualPipe)."""
    first, second, *_ = pipeline_order("dualpipe", 4, 1, 8).slots
    words = [" ".join(f"{'FBW'[kind]}{batch}" for kind, _, batch in slots.tolist()) for slots in (first, second)]
    assert words[0] == "F0 F1 F2 F4 B4 W4 F5 F3 B5 W5 F6 B0 W0 B6 W6 F7 B1 W1 B7 W7 B2 W2 B3 W3"
    assert words[1] == "F0 F4 F1 F5 F2 B4 W4 F6 B0 W0 F3 B5 W5 F7 B1 W1 B6 W6 B2 W2 B7 B3 W7 W3"


@pytest.mark.parametrize(("p", "m"), [(4, 8), (8, 20), (16, 120)])
def test_forward_passes_of_dualpipe_that_no_backward_pass_is_beside(p, m):
    order = pipeline_order("dualpipe", p, 1, m)
    paired = (order.together[:, 0] // m // order.rows == FORWARD).sum()
    layout = Layout.of([plan_of(f"pp{p}-dualpipe"), plan_of(f"pp{p}")], np.full(2, float(m)), 8)
    assert layout.unpaired.tolist() == [m - paired / p, p]


@pytest.mark.parametrize(("p", "m"), [(2, 3), (4, 8), (8, 32), (6, 11)])
def test_a_stage_of_v_zb_idles_only_before_its_first_pass(p, m):
    """Where passes are alike (Qi et al., NeurIPS 2024, Sec. 4): the last stage begins p - 1 passes late, and 1F1B's memory is enough."""
    assert makespan("zb-v", p, m) == 6 * m + p - 1
    assert pipeline_order("zb-v", p, 2, m).kept().sum(axis=0).tolist() == [2 * p] * p  # of half a stage's layers each


@pytest.mark.parametrize(("p", "m"), [(4, 1), (4, 3), (8, 9)])
def test_v_zb_of_fewer_microbatches_is_no_longer_than_zb_h1_or_1f1b(p, m):
    assert makespan("zb-v", p, m) <= makespan("zb-h1", p, m, 2.0, 2.0, 2.0) <= makespan("1f1b", p, m, 2.0, 2.0, 2.0)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (6, 20)])
def test_dualpipev_is_one_half_of_dualpipe_of_twice_the_stages(p, m):
    both, half = pipeline_order("dualpipe", 2 * p, 1, 2 * m), pipeline_order("dualpipev", p, 2, m)
    for stage in range(p):
        theirs, mine = both.slots[stage], half.slots[stage]
        up = theirs[:, 1] >= 2 * p
        assert (mine[:, 0] == theirs[:, 0]).all()
        assert (mine[:, 1] == np.where(up, p + stage, stage)).all()
        assert (mine[:, 2] == np.where(up, theirs[:, 2] - m, theirs[:, 2])).all()
    for f, w in ((1.0, 1.0), (2.0, 1.0)):
        assert makespan("dualpipev", p, m, f, f, w) == pytest.approx(makespan("dualpipe", 2 * p, 2 * m, f, f, w))
    layout = Layout.of([plan_of(f"pp{p}-v2-dualpipev")], np.full(1, float(m)), 8)
    pairs = sum(int((np.diff(slots[:, 0]) == BACKWARD - FORWARD).sum()) for slots in half.slots)
    alone = 2 * p * m - sum(len(set(_beside(half, stage))) for stage in range(p))
    assert pairs
    assert float(layout.unpaired[0]) * 2 * p == alone


def _beside(order, stage):
    """Forward passes of a stage that leave together with a backward pass."""
    leaving = {int(a): int(b) for a, b in order.together}
    backward = {
        leaving.get(number, number) for number, slot in zip(order.ids[stage], order.slots[stage], strict=True) if slot[0] != FORWARD
    }
    forward = zip(order.ids[stage].tolist(), order.slots[stage].tolist(), strict=True)
    return [number for number, slot in forward if slot[0] == FORWARD and leaving.get(number) in backward]


def test_microbatches_pass_a_folded_pipeline_there_and_back():
    for rule in FOLDED:
        assert pipeline_order(rule, 4, 2, 8).chains == ((0, 1, 2, 3, 7, 6, 5, 4),)


def test_results_of_passes_together_leave_together():
    """What a later stage needs of a forward pass beside a backward pass is there when both are done; its own stage sees it at once."""
    order = pipeline_order("dualpipe", 4, 1, 8)
    number = lambda kind, row, batch: (kind * order.rows + row) * 8 + batch  # noqa: E731
    assert order.sources[number(FORWARD, 1, 3)] == number(WEIGHT, 4, 5)  # F3 of the first stage runs beside B5, which has W5 in it
    assert order.sources[number(WEIGHT, 4, 5)] == number(BACKWARD, 4, 5)
    assert order.sources[number(FORWARD, 1, 0)] == number(FORWARD, 0, 0)  # alone


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        (("chimera", 3, 1, 6), "schedule: chimera needs an even number of stages, but pp = 3"),
        (("chimera", 4, 1, 6), "schedule: chimera needs a multiple of pp = 4 microbatches, but there are 6"),
        (("pipedream", 4, 2, 8), "schedule: pipedream has one chunk a stage, but virtual_stages = 2"),
        (("zb-h1", 4, 2, 8), None),
        (("pipedream", 1, 1, 8), "schedule: pipedream needs a pipeline, but pp = 1"),
        (("dualpipe", 3, 1, 6), "schedule: dualpipe needs an even number of stages, but pp = 3"),
        (("dualpipe", 4, 2, 8), "schedule: dualpipe has a chunk a stage for each direction, but virtual_stages = 2"),
        (
            ("dualpipe", 4, 1, 6),
            "schedule: dualpipe needs an even number of microbatches, at least 2 x pp = 8, but there are 6",
        ),
        (("dualpipe", 1, 1, 8), "schedule: dualpipe needs a pipeline, but pp = 1"),
        (("zb-v", 1, 2, 8), "schedule: zb-v needs a pipeline, but pp = 1"),
        (("zb-v", 4, 1, 8), "schedule: zb-v has two chunks a stage; give virtual_stages = 2 (v2), not 1"),
        (("dualpipev", 4, 2, 6), "schedule: dualpipev needs at least 2 x pp = 8 microbatches, but there are 6"),
        (("1f1b", 4, 2, 8), None),
    ],
)
def test_what_a_rule_cannot_do_is_told(shape, sentence):
    assert schedule_problem(*shape) == sentence


# ------------------------------------------------------------------------------------------ steps


@pytest.fixture(scope="module")
def gpt():
    def score(strategy, software="ideal", **changes):
        workload = {"model": "gpt2-345m", "global_batch": 32, **changes}
        given = {"system": "dgx-a100", "workload": workload, "strategy": strategy, "software": software}
        return evaluate(crossflow.from_dict(given))

    return score


def test_schedules_do_the_same_work_in_less_time(gpt):
    plain, zero, async_ = gpt("pp8"), gpt("pp8-zbh1"), gpt("pp8-pipedream")
    assert zero.flops[0] == plain.flops[0] == async_.flops[0]
    assert zero.step_time[0] < plain.step_time[0]
    assert async_.breakdown["bubble"][0] < plain.breakdown["bubble"][0]
    for score in (plain, zero, async_):
        assert sum(part[0] for part in score.breakdown.values()) == pytest.approx(score.step_time[0], rel=1e-9)


def test_interleaved_zb_h1_ends_before_its_plain_form_and_before_interleaved_1f1b(gpt):
    """Of stages that are nearly equal: the gradient of a large table is added to in each microbatch, and the others wait for its stage."""
    plain, both, interleaved = (gpt(strategy, vocabulary=4096) for strategy in ("pp8-mb1-zbh1", "pp8-v3-mb1-zbh1", "pp8-v3-mb1"))
    assert both.flops[0] == pytest.approx(plain.flops[0])
    assert both.step_time[0] < min(plain.step_time[0], interleaved.step_time[0])
    assert sum(part[0] for part in both.breakdown.values()) == pytest.approx(both.step_time[0], rel=1e-9)


def test_chimera_keeps_weights_twice_and_does_no_more(gpt):
    plain, both = gpt("pp8-mb1"), gpt("pp8-mb1-chimera")
    assert both.flops[0] == pytest.approx(plain.flops[0])
    assert both.memory["weights"][0] == pytest.approx(2.0 * plain.memory["weights"][0], rel=0.35)
    assert sum(part[0] for part in both.breakdown.values()) == pytest.approx(both.step_time[0], rel=1e-9)


@pytest.mark.parametrize("rule", FOLDED)
def test_folded_pipelines_keep_weights_once_and_end_sooner(gpt, rule):
    plain, folded, dual = gpt("pp4-dp2-mb1"), gpt(f"pp4-dp2-v2-mb1-{rule.replace('-', '')}"), gpt("pp4-dp2-mb1-dualpipe")
    assert folded.flops[0] == pytest.approx(plain.flops[0])
    assert sum(part[0] for part in folded.breakdown.values()) == pytest.approx(folded.step_time[0], rel=1e-9)
    assert folded.step_time[0] < plain.step_time[0]
    assert folded.memory["weights"][0] < 0.8 * dual.memory["weights"][0]  # which holds the model twice


def test_a_file_that_writes_v_zb_is_v_zb(written, gpt):
    order = pipeline_order("zb-v", 4, 2, 16)
    words = [" ".join(f"{'FBW'[kind]}{batch}.{row // 4}" for kind, row, batch in slots.tolist()) for slots in order.slots]
    path = written("kind: schedule\nname: own\nchunks: [0, 1, 2, 3, 3, 2, 1, 0]\norder:\n" + "".join(f"  - {word}\n" for word in words))
    own, rule = gpt({"pp": 4, "dp": 2, "virtual_stages": 2, "micro_batch": 1, "schedule": str(path)}), gpt("pp4-dp2-v2-mb1-zbv")
    assert own.step_time[0] == rule.step_time[0]
    assert own.memory["activations"][0] == rule.memory["activations"][0]


def test_dualpipe_keeps_weights_twice_and_does_no_more(gpt):
    plain, both = gpt("pp8-mb1"), gpt("pp8-mb1-dualpipe")
    assert both.flops[0] == pytest.approx(plain.flops[0])
    assert both.memory["weights"][0] == pytest.approx(2.0 * plain.memory["weights"][0], rel=0.35)
    assert both.step_time[0] < plain.step_time[0]
    assert sum(part[0] for part in both.breakdown.values()) == pytest.approx(both.step_time[0], rel=1e-9)


def test_both_copies_of_a_stage_share_the_optimizers_states(gpt):
    """A mirrored stage is one more replica: with zero 1 a device keeps as many states as without a second direction."""
    plain, both = gpt("pp4-dp2-mb1-z1"), gpt("pp4-dp2-mb1-z1-dualpipe")
    assert both.memory["optimizer"][0] == pytest.approx(plain.memory["optimizer"][0], rel=0.35)
    with pytest.raises(StrategyError, match="dualpipe keeps all weights twice; zero = 2 is not supported with it, 0 and 1 are"):
        gpt("pp4-dp2-mb1-z2-dualpipe")


@pytest.mark.parametrize("schedule", ["chimera", "dualpipe"])
def test_both_copies_of_a_stage_in_one_node_need_no_network(gpt, schedule):
    """Eight stages on the devices of one node, which has nothing to send to others."""
    slow = {"template": "dgx-a100", "nodes": 1, "network": {"inter": {"bandwidth": "1 MB/s"}}}
    given = {"workload": {"model": "gpt2-345m", "global_batch": 32}, "strategy": f"pp8-mb1-{schedule}", "software": "ideal"}
    assert evaluate(crossflow.from_dict({**given, "system": slow})).step_time[0] == gpt(f"pp8-mb1-{schedule}").step_time[0]


def test_pipedream_keeps_a_version_of_its_weights_for_each_microbatch_in_flight(gpt):
    plain, async_ = gpt("pp8"), gpt("pp8-pipedream")
    assert async_.memory["weights"][0] > 4 * plain.memory["weights"][0]


@pytest.mark.parametrize("software", ["ideal", "megatron-lm-2022"])
@pytest.mark.parametrize("model", ["gpt2-345m", "megatron-1.7b"])
def test_pipedream_takes_no_less_than_its_busiest_stage_computes_or_sends(software, model):
    """On one stream of data: gradients and weights of every microbatch; on a slow network they are all that counts."""
    system = {"template": "dgx-a100", "nodes": 4, "network": {"inter": {"bandwidth": "1 GB/s"}}}
    given = {"system": system, "workload": {"model": model, "global_batch": 64}, "software": software}
    found = evaluate(crossflow.from_dict({**given, "strategy": {"tp": 4, "pp": 2, "dp": 4, "zero": 1, "schedule": "pipedream"}}))
    sent = found.communication["reduce_scatter"][0] + found.communication["all_gather"][0]
    assert found.step_time[0] >= sent
    assert sum(part[0] for part in found.breakdown.values()) == pytest.approx(found.step_time[0], rel=1e-9)


def test_stages_that_are_nearly_alike_keep_pipedreams_step_long_enough():
    workload = {"model": "gpt2-xl", "global_batch": 128, "dtype": "fp8"}
    plan = {"pp": 4, "dp": 2, "micro_batch": 4, "zero": 2, "schedule": "pipedream"}
    given = {"system": {"template": "mi300x-node", "nodes": 1}, "workload": workload, "strategy": plan, "software": "megatron-core"}
    found = evaluate(crossflow.from_dict(given))
    assert sum(part[0] for part in found.breakdown.values()) == pytest.approx(found.step_time[0], rel=1e-9)


@pytest.mark.parametrize("zero", ["", "-z1"])
def test_pipedream_keeps_replicas_in_step_with_every_microbatch(gpt, zero):
    """Gradients, and weights whose states are shared out, go over the links once a microbatch instead of once a step."""
    plain, async_ = (gpt(f"pp2-dp4{schedule}{zero}", "megatron-lm-2022") for schedule in ("", "-pipedream"))
    kinds = ("reduce_scatter", "all_gather") if zero else ("all_reduce",)
    for kind in kinds:
        assert async_.communication[kind][0] > 7 * plain.communication[kind][0]
    assert sum(part[0] for part in async_.breakdown.values()) == pytest.approx(async_.step_time[0], rel=1e-9)
    assert async_.breakdown["bubble"][0] < 1e-9 * async_.step_time[0]


def test_weights_of_pipedream_are_not_updated_on_the_host():
    given = {"pp": 4, "dp": 2, "schedule": "pipedream", "offload": ["optimizer"]}
    sentence = "offload: pipedream updates the weights after every microbatch, on the device; leave optimizer out"
    with pytest.raises(StrategyError, match=sentence):
        evaluate(crossflow.from_dict({"system": "dgx-a100", "workload": {"model": "gpt2-345m", "global_batch": 32}, "strategy": given}))


# ------------------------------------------------------------------------------------------ files


def test_a_file_that_writes_1f1b_is_1f1b(written, gpt):
    order = read_order(written(OWN))
    rule = pipeline_order("1f1b", 2, 1, 4)
    assert [slots.tolist() for slots in order.slots] == [slots.tolist() for slots in rule.slots]
    own = gpt({"pp": 2, "dp": 4, "micro_batch": 2, "schedule": str(written(OWN))})
    assert own.step_time[0] == pytest.approx(gpt("pp2-dp4-mb2").step_time[0], rel=1e-12)
    assert own.memory_needed[0] == pytest.approx(gpt("pp2-dp4-mb2").memory_needed[0], rel=1e-12)


def test_chunks_may_lie_as_a_v(written):
    """Two chunks a stage, down and up again: the turn hands nothing over."""
    text = "kind: schedule\nname: v\nchunks: [0, 1, 1, 0]\norder:\n  - F0 F0.1 B0.1 B0\n  - F0 F0.1 B0.1 B0\n"
    order = read_order(written(text))
    assert order.chains == ((0, 1, 3, 2),)
    late = travelling(order, np.full(1, 0.5))
    ends = pipeline_ends(np.ones((4, 1)), np.ones((4, 1)), late, stages=2, chunks=2, microbatches=1, schedule=str(written(text)))
    assert ends[:, 0].tolist() == [8 + 4 * 0.5, 7 + 3 * 0.5]


def test_weight_gradients_may_be_slots_of_their_own(written):
    text = OWN.replace("B3\n", "B3 W0 W1 W2 W3\n")
    order = read_order(written(text))
    assert order.split
    assert order.kept()[0].tolist() == [4, 4]
    assert int((order.slots[0][:, 0] == WEIGHT).sum()) == 4


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("F0 F1", "Q2 F1"), "own.yaml:4: order[0]: 'Q2' is not a slot such as F0, B0, W0 or F0.1"),
        (("B2 B3\n  -", "B2\n  -"), "own.yaml:4: order[0]: missing: B3 (of 4 microbatches, each F and B once)"),
        (("B2 B3\n  -", "B2 B3 B3\n  -"), "own.yaml:4: order[0]: there more than once: B3 (of 4 microbatches, each F and B once)"),
        (("F0 F1 B0", "B0 F0 F1"), "own.yaml:3: order: stages wait for each other: stage 0 at B0, stage 1 at F0"),
        (("name: own", "name: own\nchunks: [0, 1, 1]"), "own.yaml:3: chunks: expected each of 2 stages 1 times, got 0, 1, 1"),
        (
            ("name: own", "name: own\nturbo: 1"),
            "own.yaml:3: turbo: unknown key 'turbo'; known keys: chunks, kind, name, notes, order, title",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_told(written, change, sentence):
    with pytest.raises(SpecError) as found:
        read_order(written(OWN.replace(*change)))
    assert str(found.value).endswith(sentence)


def test_a_file_for_another_pipeline_says_so(written):
    path = str(written(OWN))
    sentence = schedule_problem(path, 4, 1, 8)
    assert sentence == (
        f"schedule {path} is of pp = 2, virtual_stages = 1 and 4 microbatches,"
        " but the plan has pp = 4, virtual_stages = 1 and 8 microbatches"
    )


def test_a_changed_file_is_read_again(written):
    path = written(OWN)
    before = read_order(path)
    path.write_text(OWN.replace("F0 F1 B0 F2 B1 F3 B2 B3", "F0 F1 F2 F3 B0 B1 B2 B3"))
    assert read_order(path).slots[0].tolist() != before.slots[0].tolist()


@pytest.mark.parametrize("word", ["F20", "F0.20", "F20.1"])
def test_a_number_beyond_all_slots_is_named_as_it_is_written(written, word):
    """Of two such slots of a stage the first is named, with its chunk where it has one."""
    text = OWN.replace("F0 F1 B0 F2 B1 F3 B2 B3", f"F0 F1 B0 F2 B1 {word} B30 B3")
    with pytest.raises(SpecError, match=re.escape(f"order[0]: {word}: microbatches and chunks are numbered from 0 without gaps")):
        read_order(written(text))
