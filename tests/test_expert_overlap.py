"""Layers of experts in training: exchange beside another microbatch, launches and waits of the host, modules computed again."""

from statistics import NormalDist

import numpy as np
import pytest

import crossflow
from crossflow.answers.evaluation.events import events
from crossflow.answers.evaluation.timelines import simulate
from crossflow.cost.passes import NODE, slowest

MODEL = {
    "model": "transformer", "layers": 8, "hidden": 1024, "heads": 16, "ffn": 2048, "vocabulary": 32000, "sequence": 4096,
    "global_batch": 64, "experts": {"count": 32, "active": 4},
}  # fmt: skip
GONE = {"host": dict.fromkeys(("kernel", "layer", "microbatch", "step"), "0 us")}


def scenario(plan="dp16-ep8", system=None, workload=None, like="megatron-core", **software):
    machine, model = {"template": "h100-ib-cluster", "nodes": 2, **(system or {})}, {**MODEL, **(workload or {})}
    return crossflow.from_dict({"system": machine, "workload": model, "strategy": plan, "software": {"like": like, **software}})


def time(*plan, **given):
    return crossflow.predict(scenario(*plan, **given)).step_time


@pytest.mark.cases(1)
@pytest.mark.parametrize("plan", ["dp16-ep8", "dp16-ep16-z1", "pp2-dp8-ep8-v2"])
def test_exchange_beside_another_microbatch_hides_no_more_than_it_takes(plan):
    alone = crossflow.predict(scenario(plan, **GONE))
    beside, crowded = (time(plan, **GONE, overlap={"experts": True, "exchange_units": share}) for share in (0.0, 0.3))
    exchange = float(alone.score.exposed_communication["all_to_all"][0])
    assert alone.step_time - exchange <= beside * (1 + 1e-9) < alone.step_time
    assert beside < crowded <= alone.step_time * (1 + 1e-9)  # units that the exchange takes are missed


def test_an_exchange_that_takes_longer_than_all_kernels_decides():
    """Over a slow network both ways take their time; only what lies beside them is hidden."""
    slow = {"system": {"network": {"inter": {"bandwidth": "0.5 GB/s"}}}, **GONE}
    alone, beside = crossflow.predict(scenario("dp16-ep16", **slow)), time("dp16-ep16", **slow, overlap={"experts": True})
    exchange = float(alone.score.exposed_communication["all_to_all"][0])
    assert exchange > 0.9 * alone.step_time
    assert exchange <= beside < alone.step_time


def test_an_exchange_beside_longer_kernels_takes_its_units_for_as_long_as_it_lasts():
    """Of four microbatches the first has no other beside it; of the rest a tenth of the exchange is missed where it takes a tenth."""
    fast = {"system": {"network": {"inter": {"bandwidth": "5 TB/s"}}}, **GONE}
    exchange = float(crossflow.predict(scenario("dp16-ep16", **fast)).score.exposed_communication["all_to_all"][0])
    none, tenth = (time("dp16-ep16", **fast, overlap={"experts": True, "exchange_units": share}) for share in (0.0, 0.1))
    assert tenth - none == pytest.approx(0.1 * (1 - 1 / 4) * exchange, rel=1e-6)


def test_a_lone_microbatch_has_no_other_beside_it():
    few = {"workload": {"global_batch": 16}}
    assert time(**few) == pytest.approx(time(**few, overlap={"experts": True}), rel=1e-12)


def test_kernels_of_each_expert_are_launched_by_the_host():
    """Nothing is launched more where a rank has one expert; the device does as much in any case."""
    slow = {"host": {"kernel": "1 ms"}}
    assert time("dp32-ep32", system={"nodes": 4}, **slow) == time("dp32-ep32", system={"nodes": 4}, **slow, expert_products="each")
    one, each = (time(**slow, expert_products=how) for how in ("one", "each"))
    launches, microbatches = 6 * (32 / 8 - 1), 4  # two products, their gradients, of three more experts
    assert each - one == pytest.approx(launches * MODEL["layers"] * microbatches * 1e-3, rel=1e-9)


def test_a_host_that_waits_for_counts_is_never_ahead():
    many = {"expert_products": "each", "host": {"kernel": "30 us", "layer": "0 us"}}
    ahead, waits = (time(**many, token_counts=where) for where in ("device", "host"))
    assert waits >= ahead
    assert time(**GONE, token_counts="host") == pytest.approx(time(**GONE), rel=1e-9)  # a host that takes no time holds nothing up


def test_graphs_of_parts_take_one_launch():
    slow = {"host": {"kernel": "1 ms", "graph": "0 us"}}
    eager, attention, all_ = (time(**slow, graphs=parts) for parts in ([], ["attention"], ["attention", "experts"]))
    assert eager > attention > all_


@pytest.mark.slow
def test_experts_that_are_computed_again_take_time_and_leave_memory():
    plain, again = (crossflow.predict(scenario(**GONE, recomputed=modules)).to_dict() for modules in ([], ["experts"]))
    assert again["step_time_s"] > plain["step_time_s"]
    assert again["memory"]["activations_bytes"] < plain["memory"]["activations_bytes"]
    assert again["mfu"] < plain["mfu"]
    full = time("dp16-ep8-full", **GONE)
    assert again["step_time_s"] < full  # of which it is a part


def test_rows_that_are_sorted_and_padded_move_more():
    plain, sorted_ = (time(**GONE, routed_rows=rows) for rows in ([], ["sorted"]))
    assert plain < sorted_
    assert time(**GONE, routed_rows=["padded"]) == plain  # products of 16 bits need none
    assert time(**GONE, permutation=0.5) > plain


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "software",
    [
        {"overlap": {"experts": True, "exchange_units": 0.2}},
        {"token_counts": "host", "host": {"kernel": "60 us"}},
        {"recomputed": ["experts"]},
    ],
)
@pytest.mark.parametrize("plan", ["dp16-ep8", "pp2-dp8-ep8-v2-z1"])
def test_timelines_take_as_long(plan, software):
    one = scenario(plan, **software)
    assert simulate(one).total == pytest.approx(crossflow.predict(one).step_time, rel=1e-9)


@pytest.mark.slow
def test_fewer_layers_on_the_host_leave_more_on_the_device():
    host = {"template": "h100-ib-cluster", "nodes": 2}
    held = [
        crossflow.predict(scenario(f"dp16-ep8-offload:activations{layers}", system=host)).to_dict()["memory"]
        for layers in ("-ol2", "-ol4", "")
    ]
    assert held[0]["activations_bytes"] > held[1]["activations_bytes"] > held[2]["activations_bytes"]
    assert held[0]["host_bytes"] == pytest.approx(held[2]["host_bytes"] * 2 / MODEL["layers"])


def test_the_slowest_of_many_devices():
    """Blom's quantile: of 1,000 normal numbers the largest is 3.24 standard deviations above the mean."""
    found = slowest(np.array([1.0, 8.0, 1000.0]), np.array([0.02]))
    normal = NormalDist()
    of_node = normal.inv_cdf((NODE - 0.375) / (NODE + 0.25))
    assert found.tolist() == pytest.approx([1.0, 1.0, 1.0 + 0.02 * (3.2414 - of_node)], abs=4e-4)
    plain, spread = (time(system={"execution": {"variation": share}}) for share in (0.0, 0.05))
    assert plain < spread < 1.05 * plain


def test_tokens_that_travel_in_8_bits_take_half_of_the_bytes_on_their_way_there():
    """Both exchanges of a pass have as many bytes in 16 bits; over a slow network the time is theirs."""
    slow = {"system": {"network": {"inter": {"bandwidth": "0.5 GB/s"}}}, "workload": {"dtype": "fp8"}, **GONE}
    wide, narrow = (
        float(crossflow.predict(scenario("dp16-ep16", **slow, narrow_dispatch=given)).score.communication["all_to_all"][0])
        for given in (False, True)
    )
    assert narrow == pytest.approx(0.75 * wide, rel=0.02)
    assert time("dp16-ep16", **{**slow, "workload": {}}, narrow_dispatch=True) == time("dp16-ep16", **{**slow, "workload": {}})


def test_inputs_of_activations_in_8_bits_are_half_as_large():
    """Two branches of 2,048 elements of four experts, of 4,096 tokens, in 8 layers and one microbatch."""
    wide, narrow = (
        crossflow.predict(scenario("dp16-ep8", workload={"dtype": "fp8"}, memory={"narrow_activation": given})).score.memory["activations"][
            0
        ]
        for given in (False, True)
    )
    assert wide - narrow == pytest.approx(8 * 4096 * 4 * 2 * 2048, rel=0.01)


def test_last_biases_of_experts_are_passes_of_their_own_where_each_has_its_own_product():
    """Of 4 samples of 4,096 tokens, four rows each of 1,024 elements in 16 bits: 6 of each forward, 8 backward; a rank has four experts."""

    def passes(products, *, biases):
        given = {"expert_products": products, "workload": {"biases": biases, "global_batch": 64}}
        found = events(scenario("dp16-ep8-mb4", **given)).events
        return {event.shape: event.count for event in found if event.op == "pass"}

    rows = 4 * 4096 * 4 * 1024 * 2
    added = {f"9 kernels of {6 * rows} B", f"17 kernels of {8 * rows} B"}
    assert added <= passes("each", biases=True).keys()
    for others in (passes("each", biases=False), passes("one", biases=True), passes("fused", biases=True)):
        assert not added & others.keys()


QWEN3 = {"model": "qwen3-30b-a3b"}


@pytest.mark.parametrize(("template", "devices", "plan"), [("gb200-nvl72", 16, "ep16-dp16-mb1-z1"), ("dgx-b200", 8, "ep8-dp8-mb1-z1")])
def test_what_recipes_turn_on_makes_experts_no_slower_than_plain_megatron_core(template, devices, plan):
    """Both launch Transformer Engine's products expert by expert; the plain one also sorts rows behind its exchange of copies."""
    made = {
        "system": {"template": template, "devices": devices},
        "workload": {**QWEN3, "sequence": 3312, "global_batch": 512},
        "strategy": plan,
    }
    tuned, plain = (crossflow.predict(crossflow.from_dict({**made, "software": one})).step_time for one in ("nemo", "megatron-core"))
    assert tuned < plain


@pytest.mark.parametrize(("plan", "batch", "rate"), [("ep8-pp2-dp8-mb1-z1", 128, 6325), ("ep4-pp4-dp4-mb1-z1", 256, 6244)])
def test_plain_megatron_core_is_near_what_its_users_measure_of_experts(plan, batch, rate):
    """Qwen3 30B on 16 H800, without a graph and with a capacity factor of 1: issue 643 of Pai-Megatron-Patch. Nothing was fitted to it."""
    model = {**QWEN3, "sequence": 8192, "global_batch": batch}
    made = {"system": {"template": "h800-ib-cluster", "devices": 16}, "workload": model, "strategy": plan}
    time = float(crossflow.evaluate(crossflow.from_dict(made)).step_time[0])
    assert 8192 * batch / time / 16 == pytest.approx(rate, rel=0.15)
