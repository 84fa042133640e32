"""Dimensions of a workload on the batch axis: with strategies, devices and quantities, always as one by one."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampled import fewer

import crossflow
from crossflow import evaluate
from crossflow.answers.score import absent
from crossflow.workload.stacked import chosen, stacked, structures

GPT = {
    "system": {"template": "a100-ib-cluster", "nodes": 8},
    "workload": {"model": "gpt3-175b", "global_batch": 64},
    "strategy": "tp8-dp8-z1-sp",
}
MIXTRAL = {
    "system": {"template": "h100-ib-cluster", "nodes": 8},
    "workload": {"model": "mixtral-8x7b", "global_batch": 64},
    "strategy": "tp4-dp16-ep8-z1-sp",
}
SERVED = {
    "system": "dgx-h100",
    "workload": {"model": "llama2-7b", "global_batch": 64, "task": "decode", "prompt": 1024, "output": 512},
    "strategy": "tp8",
    "run": {"tokens": 1e9},
}
SHARDED = {
    "system": {"template": "h100-ib-cluster", "nodes": 8},
    "workload": {"model": "llama2-7b", "global_batch": 512},
    "strategy": "dp64-z3-mb2",
    "software": "pytorch-fsdp",
}
BALANCED = {**GPT, "software": "nanotron"}
GENERATED = {
    "system": {"template": "pathfinder", "devices": 64},
    "workload": {"model": "bert-large", "global_batch": 64},
    "strategy": "dp64",
}
LATENT = {**MIXTRAL, "workload": {"model": "deepseek-v3", "global_batch": 64}}
HYBRID = {
    "system": {"template": "h100-ib-cluster", "nodes": 8},
    "workload": {"model": "nemotron-h-8b", "global_batch": 64},
    "strategy": "tp4-dp16-z1-sp",
}
ANSWERED = {"system": "dgx-h100", "workload": {**HYBRID["workload"], "task": "decode", "prompt": 64, "output": 8}, "strategy": "tp8"}
LOCAL = {**HYBRID, "workload": {"model": "gemma3-27b", "global_batch": 64, "sequence": 4096}}
SLIDING = {**HYBRID, "workload": {"model": "mistral-7b", "global_batch": 64, "sequence": 4096}}
WRITTEN = {"system": "dgx-h100", "workload": {**LOCAL["workload"], "task": "decode", "prompt": 2048, "output": 64}, "strategy": "tp8"}
SLID = {**WRITTEN, "workload": {**WRITTEN["workload"], "model": "mistral-7b"}}
TRANSLATED = {**GPT, "workload": {"model": "t5-11b", "global_batch": 64}, "strategy": "tp8-dp8"}
TABLES = {"system": "zionex", "workload": "dlrm-a", "strategy": {"dense": "ddp", "embedding": "mp"}}
CELLS = {
    "system": {"template": "pathfinder", "devices": 64},
    "workload": {"model": "lstm", "hidden": 1024, "vocabulary": 8192, "sequence": 4, "global_batch": 512},
    "strategy": "RC-4-2-d8",
}
PLANS = ["tp8-dp8-z1-sp", "tp8-pp2-dp4", "tp4-pp4-dp4-mb2-full", "tp8-pp2-v2-dp4", "tp4-cp2-dp8-sp", "tp8-dp8-z3", "tp8-pp8-gpipe"]
MIXES = [
    (GPT, {
        "workload.sequence": [512, 2048, 1000], "workload.layers": [1, 8, 95, 96], "workload.heads": [48, 96, 12],
        "workload.ffn": [1024, 49152], "workload.hidden": [6144, 12288], "workload.vocabulary": [1024, 51200],
        "workload.global_batch": [16, 64, 512], "workload.gated": [True, False], "strategy": PLANS,
    }),
    (MIXTRAL, {
        "workload.experts.count": [8, 16, 64], "workload.experts.active": [1, 2, 4], "workload.experts.shared": [0, 4096],
        "workload.experts.dense_layers": [0, 1, 3], "workload.experts.capacity": [None, 1.0, 1.5], "workload.layers": [4, 33],
        "strategy": ["tp4-dp16-ep8-z1-sp", "tp8-dp8-ep8-z3", "tp2-pp4-dp8-ep4-z1-sp"],
    }),
    (SERVED, {
        "workload.prompt": [128, 512, 5000], "workload.output": [1, 64, 512], "workload.global_batch": [1, 8, 256],
        "workload.kv_heads": [8, 32], "workload.kv_dtype": ["fp8", "bf16"], "strategy": ["tp8", "tp4-dp2", "tp2-pp4"],
    }),
    (SHARDED, {
        "workload.sequence": [512, 8192], "workload.layers": [1, 8, 33], "workload.mtp_layers": [0, 1, 2],
        "workload.frozen": ["layers:0-0", "embedding"], "workload.optimizer": ["adam", "sgd"],
        "strategy": ["dp64-z3-mb2", "tp8-dp8-z3", "dp32-pp2-z3", "dp16-pp4-z2"],
    }),
    (BALANCED, {
        "workload.layers": [8, 95], "workload.ffn": [1024, 49152], "strategy": ["tp8-dp8-z1-sp", "tp8-pp4-dp2", "tp8-pp8"],
    }),
    (GPT, {
        "system.nodes": [1, 2, 8], "strategy": ["tp8-dp8-z1-sp", "tp8", "tp8-pp2", "tp8-dp8"],
        "software": ["megatron-core", "nanotron"],
    }),
    (GENERATED, {
        "workload.sequence": [128, 512], "workload.layers": [4, 24], "strategy": ["dp64", "tp2-dp32", "pp2-dp32"],
        "system.budgets.power": ["200 W", "400 W"], "system.technology.memory": ["HBM2", "HBM3"],
    }),
    (LATENT, {
        "workload.layers": [8, 61], "workload.latent.kv_rank": [256, 512], "workload.latent.query_rank": [1536, 7168],
        "strategy": ["tp4-dp16-ep8-z1-sp", "tp8-pp2-dp4-ep4"],
    }),
    (HYBRID, {
        "workload.ssm.state": [64, 128], "workload.ssm.chunk": [128, 256], "workload.ssm.heads": [64, 128], "workload.ssm.groups": [1, 8],
        "workload.ssm.norm": [True, False], "workload.layers": [8, 52], "strategy": ["tp4-dp16-z1-sp", "tp2-pp2-dp16", "tp4-cp2-dp8-sp"],
    }),
    (ANSWERED, {
        "workload.ssm.state": [64, 128], "workload.prompt": [128, 5000], "workload.output": [1, 64], "workload.task": ["prefill", "decode"],
        "workload.ssm.state_dtype": ["fp32", "bf16"], "strategy": ["tp8", "tp4-dp2"],
    }),
    *((given, {
        "workload.window.size": [1, 64, 1024, 4096, 6000], "workload.sequence": [1024, 4096], "workload.window.chunked": [True, False],
        "strategy": ["tp4-dp16-z1-sp", "tp4-cp2-dp8-sp", "tp2-pp2-dp16"],
    }) for given in (LOCAL, SLIDING)),
    *((given, {
        "workload.window.size": [1, 64, 2048, 2112, 9000], "workload.prompt": [512, 2048], "workload.output": [1, 64],
        "workload.window.chunked": [True, False], "workload.task": ["prefill", "decode"], "strategy": ["tp8", "tp4-dp2"],
    }) for given in (WRITTEN, SLID)),
    (TRANSLATED, {
        "workload.encoder.layers": [12, 24], "workload.encoder.sequence": [512, 1000], "workload.sequence": [512, 1024],
        "strategy": ["tp8-dp8", "tp4-pp2-dp8", "tp8-dp8-z3"],
    }),
    (TABLES, {"workload.global_batch": [1024, 65536], "workload.table_dtype": ["fp32", "fp16"], "system.nodes": [2, 16]}),
    (CELLS, {
        "workload.hidden": [512, 4096], "workload.global_batch": [8, 64, 4096], "workload.projection": [None, 512],
        "workload.sequence": [1, 2, 4, 5, 30], "strategy": ["RC-4-2-d8", "CR-8-d8", "RC-2-2-d4-p4"], "kernels_per_device": [1, 2],
    }),
]  # fmt: skip


def alike(one, other):
    return one == other if isinstance(one, str | None) else one == pytest.approx(other, rel=1e-12, nan_ok=True)


def read(scenario, points):
    """Columns of points, or the sentence that refuses them."""
    try:
        return evaluate(scenario, points).to_dict()
    except crossflow.CrossflowError as error:
        return str(error)


@pytest.mark.cases(2)
@pytest.mark.slow
@settings(max_examples=fewer(7, 2))
@given(data=st.data())
@pytest.mark.parametrize(("given_", "axes"), MIXES)
def test_any_mix_of_dimensions_is_as_one_by_one(given_, axes, data):
    """In every column, with points that do not fit or that cannot be divided among them, which refuse the batch in the same words."""
    scenario = crossflow.from_dict(given_)
    paths = data.draw(st.lists(st.sampled_from(sorted(axes)), min_size=1, unique=True))
    points = [{path: data.draw(st.sampled_from(axes[path])) for path in paths} for _ in range(5)]
    alone = [read(scenario, {path: [value] for path, value in point.items()}) for point in points]
    refused = [one for one in alone if isinstance(one, str)]
    if refused:
        assert read(scenario, {path: [point[path] for point in points] for path in paths}) in refused
    fair = [i for i, one in enumerate(alone) if not isinstance(one, str)]
    if fair:
        together = evaluate(scenario, {path: [points[i][path] for i in fair] for path in paths}).to_dict()
        for place, i in enumerate(fair):
            for name, values in together.items():
                assert alike(values[place], alone[i].get(name, [absent(name)])[0]), (name, points[i])


def test_the_order_of_points_does_not_matter():
    scenario, order = crossflow.from_dict(GPT), np.random.default_rng(0).permutation(12)
    points = {"workload.layers": [8, 95, 24] * 4, "strategy": ["tp8-dp8-z1-sp", "tp8-pp2-dp4", "tp4-pp4-dp4", "tp8-pp8"] * 3}
    straight = evaluate(scenario, points)
    mixed = evaluate(scenario, {path: [values[i] for i in order] for path, values in points.items()})
    assert mixed.step_time == pytest.approx(straight.step_time[order], rel=1e-12)
    assert mixed.memory_needed == pytest.approx(straight.memory_needed[order], rel=1e-12)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("given_", [GPT, CELLS, {**CELLS, "strategy": "RC-2-2-d4-p4"}], ids=["gpt", "lstm", "lstm in stages"])
def test_many_points_cost_little_more_than_one(given_):
    """Each of 48 new points takes less than 0.3 of one evaluated by itself, in the better of two batches."""
    scenario, lengths = crossflow.from_dict(given_), [256 * i for i in range(1, 131)]
    evaluate(scenario, {"workload.sequence": lengths[:2]})

    def took(batches):
        start = time.process_time()
        for batch in batches:
            evaluate(scenario, {"workload.sequence": batch})
        return time.process_time() - start

    alone = took([[length] for length in lengths[2:34]]) / 32
    assert min(took([lengths[34:82]]), took([lengths[82:]])) < 48 * 0.3 * alone


@pytest.mark.cases(2)
@pytest.mark.slow
@pytest.mark.parametrize("given_", [LOCAL, SLIDING, WRITTEN, SLID], ids=["gemma3", "mistral", "gemma3 decode", "mistral decode"])
def test_windows_are_on_the_batch_axis(given_):
    """Windows below, equal to and above the sequence have one structure, and are as one by one; a window of one token has another."""
    sizes = [64, 2048, 4096, 9999]
    scenario = crossflow.from_dict(given_)
    together = evaluate(scenario, {"workload.window.size": sizes}).to_dict()
    for place, size in enumerate(sizes):
        for name, values in evaluate(scenario, {"workload.window.size": [size]}).to_dict().items():
            assert alike(together[name][place], values[0]), (name, size)
    jobs = [crossflow.from_dict({**given_, "workload": {**given_["workload"], "window": {"size": size}}}).job() for size in (*sizes, 1)]
    assert structures(jobs) == [[0, 1, 2, 3], [4]]


def test_layers_alike_share_their_parts():
    """A hybrid model of 52 layers has three different parts, and so has what is stacked of several."""
    jobs = [crossflow.from_dict({**HYBRID, "workload": {**HYBRID["workload"], "sequence": tokens}}).job() for tokens in (512, 1024)]
    whole = chosen(stacked(jobs), np.array([0, 1, 1])).model
    assert len(jobs[0].model.layers) > 40
    assert len(jobs[0].model.parts) == len(whole.parts) == 3
    assert all(one is other for one, other in zip(jobs[0].model.parts, jobs[1].model.parts, strict=True))


def test_models_of_one_structure_are_stacked():
    """A number that becomes 0 or 1 makes another structure, and so does a flag."""

    def job(**workload):
        return crossflow.from_dict({**GPT, "workload": {**GPT["workload"], **workload}}).job()

    jobs = [job(), job(ffn=1024), job(gated=True), job(layers=1), job(layers=8), job(biases=False)]
    assert structures(jobs) == [[0, 1, 4], [2], [3], [5]]
    whole = stacked([jobs[0], jobs[1], jobs[4]])
    layer, mlp = whole.model.layers[0], whole.model.layers[0].parts[1]
    assert (layer.count.tolist(), mlp.inner.tolist(), mlp.width) == ([96, 96, 8], [49152, 1024, 49152], 12288)
    assert chosen(whole, np.array([1])).model.layers[0].parts[1].inner.tolist() == [1024]
    assert whole.model.parameters.tolist() == [jobs[i].model.parameters for i in (0, 1, 4)]


def test_a_strategy_of_none_is_none():
    """A strategy that is left out at a point is missing there, whatever the scenario's own is."""
    with pytest.raises(crossflow.StrategyError, match="missing, and the system has 64 devices"):
        evaluate(crossflow.from_dict(GPT), {"strategy": ["tp8-dp8", None]}, errors="raise")
