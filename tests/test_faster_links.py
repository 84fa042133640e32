"""Laws of links and overlaps over random training steps: no faster link, and nothing that runs beside something else, lengthens a step."""

import itertools

import numpy as np
import pytest
from sampled import every, fewer

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.timelines import simulate
from crossflow.parallel.strategy.reading import every_strategy

SYSTEMS = [("dgx-a100", 1), ("dgx-a100", 2), ("dgx-h100", 2), ("gb200-nvl72", 1)]
STACKS = ["megatron-core", "nemo", "pytorch-fsdp", "torchtitan", "nanotron", "ideal", "megatron-lm-2022", "hai-llm"]
SHARED = {"model": "transformer", "vocabulary": 32000, "positions": "rotary", "norm": "rmsnorm", "dtype": "bf16"}
SLOWER = 1e-3  # as large a share of a step may kernels move that are chosen anew
HOST_BOUND = {  # of eight small layers, whose kernels the host does not launch in time
    **SHARED, "layers": 8, "hidden": 2048, "heads": 16, "ffn": 8192, "gated": False, "sequence": 512, "global_batch": 16,
}  # fmt: skip


def drawn(seed, many, most=24):
    """Random systems, workloads and stacks, each with some of the strategies that divide them."""
    rng = np.random.default_rng(seed)
    for _ in range(many):
        (template, nodes), software = SYSTEMS[rng.integers(len(SYSTEMS))], STACKS[rng.integers(len(STACKS))]
        hidden = int(rng.choice([512, 1024, 2048, 4096]))
        workload = {
            **SHARED, "layers": int(rng.choice([2, 4, 8, 16])), "hidden": hidden, "heads": hidden // 128, "ffn": 4 * hidden,
            "sequence": int(rng.choice([256, 512, 2048])), "global_batch": int(rng.choice([32, 64, 128])),
        }  # fmt: skip
        if rng.random() < 0.3:
            workload["experts"] = {"count": 8, "active": 2}
        system = {"template": template, "devices": 16} if template == "gb200-nvl72" else {"template": template, "nodes": nodes}
        strategy = f"dp{16 if template == 'gb200-nvl72' else 8 * nodes}"  # which divides all; those below take its place
        made = crossflow.from_dict({"system": system, "workload": workload, "strategy": strategy, "software": software})
        listed = every_strategy(made.workload, made.nodes, fused=made.fused_attention)
        yield made, list(rng.choice(listed, min(len(listed), most), replace=False))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", every(2, range(4)))
def test_twice_the_bandwidth_of_any_link_lengthens_no_step(seed):
    compared = 0
    for scenario, strategies in drawn(seed, 10, fewer(24, 8)):
        before = evaluate(scenario, {"strategy": strategies}).step_time
        for level in ("intra", "inter"):
            path = f"system.network.{level}.bandwidth"
            rate = float(np.asarray(getattr(scenario.system.network, level).bandwidth).ravel()[0])
            after = evaluate(scenario, {"strategy": strategies, path: [f"{2 * rate:.17g} B/s"] * len(strategies)}).step_time
            worst = int(np.argmax(after / before))
            assert after[worst] <= (1 + SLOWER) * before[worst], (scenario.document.data, strategies[worst], path)
            compared += len(before)
    assert compared > fewer(300, 100)


@pytest.mark.cases(2)
@pytest.mark.parametrize("plan", ["tp4-dp4-z2-sp", "dp16-z2", "dp16-z3", "tp2-dp8-z3-sp", "tp4-pp2-dp2-z2-sp"])
@pytest.mark.parametrize("workload", [HOST_BOUND, {**HOST_BOUND, "layers": 1, "hidden": 512, "ffn": 2048, "heads": 4}], ids=["8", "1"])
def test_a_faster_link_shortens_a_step_that_waits_for_the_host(plan, workload):
    """The gap of the host that takes the place of communication hides reductions as well as that did."""
    if plan == "tp4-pp2-dp2-z2-sp" and workload["layers"] == 1:
        pytest.skip("one layer makes no two stages")
    times = []
    for rate in (150, 300, 600, 1200, 1e6):
        system = {"template": "dgx-a100", "nodes": 2, "network": {"intra": {"bandwidth": f"{rate} GB/s"}}}
        made = crossflow.from_dict({"system": system, "workload": workload, "strategy": plan, "software": "megatron-core"})
        times.append(crossflow.predict(made).step_time)
        assert simulate(made).total == pytest.approx(times[-1], rel=1e-9)
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in itertools.pairwise(times))


OVERLAPS = {
    "tensor": ["none", "backward", "pipelined"],
    **{key: [False, True] for key in ("data", "gather", "pipeline", "optimizer", "context", "experts")},
}


@pytest.mark.thorough
@pytest.mark.parametrize("seed", every(2, [10, 11]))
def test_what_runs_beside_something_lengthens_no_step(seed):
    """Where an exchange of tokens takes no units from kernels; ring attention with unfused attention has nothing to run beside."""
    for scenario, strategies in drawn(seed, 6, fewer(24, 10)):
        own = evaluate(with_overlap(scenario), {"strategy": strategies}).step_time
        for key, ways in OVERLAPS.items():
            if key == "context" and scenario.stack.attention.kernel == "unfused":
                continue
            others = {way: with_overlap(scenario, **{key: way}) for way in ways if way != getattr(scenario.stack.overlap, key)}
            times = [evaluate(others[way], {"strategy": strategies}).step_time if way in others else own for way in ways]
            for less, more in itertools.pairwise(times):
                worst = int(np.argmax(more / less))
                assert more[worst] <= less[worst] * (1 + 1e-9), (scenario.document.data, strategies[worst], key)


def with_overlap(scenario, **ways):
    """The scenario with other overlaps, and exchanges of tokens that leave all units to the kernels beside them."""
    software = scenario.document.data["software"]
    overlap = {**software.get("overlap", {}), **ways, "exchange_units": 0.0}
    return crossflow.from_dict({**scenario.document.data, "software": {**software, "overlap": overlap}})
