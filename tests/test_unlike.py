"""Devices of several kinds in one training job: stages of a pipeline on a system's own devices and on those of its pools."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from test_pools import figures, together_as_alone

import crossflow
from crossflow.__main__ import main
from crossflow.answers.explanation.designs import read_design
from crossflow.answers.explanation.moves import _nodes
from crossflow.answers.explanation.parameters import parameters
from crossflow.answers.search.shares import choices_of
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.parallel.strategy.balance import StageLoads, balanced_by_time

WORKLOAD = {"model": "llama3-8b", "global_batch": 64, "sequence": 2048}
H100, A100, B200 = ({"template": f"dgx-{name}", "nodes": 1} for name in ("h100", "a100", "b200"))


TORUS = {"network": {"inter": {"topology": "torus2d", "shape": [3, 3]}}}


def trained(own, *pools, strategy="tp4-dp1-pp4", **more):
    """Training of a small model on a system and on pools of it; a pool is its section, or its name and that."""
    named = dict(pool if isinstance(pool, tuple) else (f"p{i}", pool) for i, pool in enumerate(pools))
    workload = {**WORKLOAD, **more.pop("workload", {})}
    return crossflow.from_dict(
        {"system": {**own, **({"pools": named} if named else {})}, "workload": workload, "strategy": strategy, **more}
    )


def time_of(*args, **more):
    return crossflow.predict(trained(*args, **more)).step_time


def layers_of(scenario):
    """Layers of the chunks of every stage."""
    return [one.layers for one in crossflow.predict(scenario).placed_stages]


# ------------------------------------------------------------------------------------------------ laws


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "strategy",
    [
        {"tp": 4, "pp": 4, "stage_layers": "7+9+9+7"},
        {"tp": 2, "dp": 2, "pp": 4, "zero": 1, "sequence_parallel": True, "stage_layers": "8+8+8+8"},
        {"tp": 4, "pp": 4, "virtual_stages": 2, "stage_layers": "3+4+4+4+4+4+4+5"},
        {"tp": 4, "dp": 2, "pp": 2, "zero": 3, "stage_layers": "16+16"},
        {"tp": 4, "pp": 4, "schedule": "gpipe", "recompute": "full", "stage_layers": "8+8+8+8"},
        {"tp": 4, "pp": 4, "schedule": "zb-h1", "stage_layers": "8+8+8+8"},
        {"tp": 4, "pp": 4, "schedule": "pipedream", "stage_layers": "8+8+8+8"},
    ],
)
def test_two_pools_of_the_same_devices_are_one_system(strategy):
    one = figures(trained({**H100, "nodes": 2}, strategy=strategy))
    two = figures(trained(H100, H100, strategy=strategy))
    assert set(one) == set(two)
    for name, values in one.items():
        np.testing.assert_allclose(two[name], values, rtol=1e-12, atol=0.0, err_msg=name)


@pytest.mark.cases(2)
@pytest.mark.parametrize("model", ["deepseek-v2", "gpt2-xl", "qwen3-30b-a3b"])
def test_other_models_are_priced_alike_on_pools_of_the_same_devices(model):
    """Experts, tied tables and layers of several kinds."""
    workload = {"model": model, "sequence": 1024}
    pair = trained(H100, H100, strategy="dp4-pp4-z1", workload=workload)
    listed = "+".join(str(sum(layers)) for layers in layers_of(pair))
    alike = {"dp": 4, "pp": 4, "zero": 1, "stage_layers": listed}
    one = figures(trained({**H100, "nodes": 2}, strategy=alike, workload=workload))
    for name, values in figures(pair).items():
        np.testing.assert_allclose(one[name], values, rtol=1e-12, atol=0.0, err_msg=name)


@pytest.mark.cases(1)
@pytest.mark.parametrize("software", ["nanotron", "torchtitan", "hai-llm"])
def test_software_runs_alike_on_pools_of_the_same_devices(software):
    """Stages by weight, gradients that overlap otherwise, exchange beside another microbatch."""
    strategy = {"tp": 2, "dp": 2, "ep": 2, "pp": 4, "zero": 1, "stage_layers": "7+9+9+7"}
    more = {"strategy": strategy, "software": software, "workload": {"model": "mixtral-8x7b"}}
    one, two = (figures(trained(*systems, **more)) for systems in ([{**H100, "nodes": 2}], [H100, H100]))
    for name, values in one.items():
        np.testing.assert_allclose(two[name], values, rtol=1e-12, atol=0.0, err_msg=name)


@pytest.mark.thorough  # what it runs quicker tests run too
def test_faster_pools_are_never_slower():
    times = [time_of(H100, pool) for pool in (A100, H100, B200)]
    assert times[0] > times[1] > times[2]
    assert times[0] < time_of(A100, A100)
    assert [time_of(pool, H100) for pool in (A100, H100, B200)] == pytest.approx(times, rel=0.02)  # ends hold more than layers


@pytest.mark.thorough  # what it runs quicker tests run too
def test_the_slower_a_pool_the_fewer_layers_it_has():
    rates = ("1000 Tflop/s", "400 Tflop/s", "100 Tflop/s", "10 Tflop/s")
    held = []
    for rate in rates:
        slow = {**H100, "throughput": {"bf16": rate}, "vector_throughput": {"bf16": rate}}
        held.append(sum(map(sum, layers_of(trained(H100, slow))[2:])))
    assert held == sorted(held, reverse=True)
    assert held[-1] == 2  # one a stage, as no stage is left empty
    assert held[0] > 10


def test_layers_by_speed_are_the_best_of_all_lists():
    free = trained(H100, A100, strategy="tp8-pp2")
    lists = [{"tp": 8, "pp": 2, "stage_layers": f"{first}+{32 - first}"} for first in range(1, 32)]
    each = crossflow.evaluate(free, {"strategy": lists}).step_time
    assert crossflow.predict(free).step_time == pytest.approx(each.min(), rel=1e-12)
    assert layers_of(free) == [(each.argmin() + 1,), (31 - each.argmin(),)]


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("pools", "strategy", "batch"),
    [
        ((H100, A100), {"tp": 4, "pp": 4}, 64),
        ((H100, A100), {"tp": 4, "pp": 4}, 2),
        ((A100, H100), {"tp": 4, "pp": 4}, 8),
        ((H100, A100), {"tp": 1, "dp": 4, "pp": 4}, 64),
        ((H100, A100), {"tp": 2, "dp": 2, "pp": 4, "schedule": "gpipe"}, 16),
        ((H100, A100), {"tp": 4, "pp": 4, "schedule": "zb-h1"}, 16),
        ((H100, A100, B200), {"tp": 8, "pp": 3}, 6),
    ],
)
def test_layers_by_the_step_are_the_best_of_all_lists(pools, strategy, batch):
    """Where the bubble and the reductions of gradients count too: by speed alone, steps of two microbatches were 2 % longer."""
    free = trained(*pools, strategy=strategy, workload={"layers": 16, "global_batch": batch})
    cuts = itertools.combinations(range(1, 16), strategy["pp"] - 1)
    lists = ["+".join(map(str, np.diff((0, *cut, 16)))) for cut in cuts]
    every = crossflow.evaluate(free, {"strategy": [{**strategy, "stage_layers": listed} for listed in lists]})
    assert crossflow.predict(free).step_time == pytest.approx(every.step_time[every.feasible].min(), rel=1e-9)


def test_no_layer_moved_to_another_stage_makes_a_step_of_many_layers_shorter():
    """Several layers have moved from where speed alone puts them: steps of two microbatches were 3 % longer there, 2 % after one move."""
    free = trained(H100, A100, strategy={"tp": 4, "pp": 4}, workload={"layers": 64, "global_batch": 2})
    found = np.ravel(layers_of(free))
    moves = [np.eye(4, dtype=int)[taker] - np.eye(4, dtype=int)[giver] for giver, taker in itertools.permutations(range(4), 2)]
    lists = ["+".join(map(str, found + move)) for move in moves if min(found + move) >= 1]  # no stage is left empty
    other = crossflow.evaluate(free, {"strategy": [{"tp": 4, "pp": 4, "stage_layers": listed} for listed in lists]})
    assert (other.step_time[other.feasible] >= crossflow.predict(free).step_time * (1.0 - 1e-9)).all()


@pytest.mark.thorough  # what it runs quicker tests run too
def test_plans_that_list_other_layers_score_as_each_by_itself():
    lists = ["8+8+8+8", "7+9+9+7", "1+15+15+1", "20+4+4+4"]
    strategies = [{"tp": 4, "pp": 4, "zero": 1, "stage_layers": listed} for listed in lists]
    chunks = [{"tp": 4, "pp": 2, "dp": 2, "virtual_stages": 2, "stage_layers": listed} for listed in lists]
    for systems in ([{**H100, "nodes": 2}], [H100, A100]):
        together_as_alone(trained(*systems), {"strategy": strategies + chunks})


def test_every_stage_fits_its_own_memory():
    small = {**A100, "levels": {"memory": {"capacity": "10 GiB"}}}
    scenario, roomy = (trained(A100, pool, strategy="tp4-pp4") for pool in (small, A100))
    prediction = crossflow.predict(scenario)
    held = [sum(kinds.values()) for kinds in prediction.memory_by_stage]
    capacities = [one.capacity for one in prediction.placed_stages]
    assert prediction.feasible
    assert all(size <= room for size, room in zip(held, capacities, strict=True))
    assert capacities[:2] > capacities[2:]
    assert sum(map(sum, layers_of(scenario)[2:])) < sum(map(sum, layers_of(roomy)[2:]))
    assert prediction.step_time > crossflow.predict(roomy).step_time


def test_what_does_not_fit_is_told_by_the_stage_that_lacks_most():
    tiny = {**A100, "levels": {"memory": {"capacity": "2 GiB"}}}
    prediction = crossflow.predict(trained(H100, tiny))
    assert not prediction.feasible
    assert prediction.memory.capacity == pytest.approx(2 * 2**30)
    assert "memory" in prediction.reason


def test_names_of_pools_change_nothing():
    pools = {"one": A100, "other": B200}
    both = [
        trained(H100, *named, strategy="tp8-pp3", workload={"global_batch": 60})
        for named in (pools.items(), [("other", A100), ("one", B200)])
    ]
    first, swapped = map(figures, both)
    for name, values in first.items():
        np.testing.assert_array_equal(swapped[name], values, err_msg=name)
    first, swapped = (crossflow.evaluate(one).columns() for one in both)
    np.testing.assert_array_equal(first["architecture.one.memory.capacity"], swapped["architecture.other.memory.capacity"])


def test_stages_hand_over_at_the_pace_of_the_slower_network():
    def slow(pool):
        return {**pool, "network": {"inter": {"bandwidth": "0.1 GB/s"}}}

    listed = {"tp": 8, "pp": 2, "stage_layers": "16+16"}
    fast = time_of(H100, H100, strategy=listed)
    leaving, arriving, both = (
        time_of(*pair, strategy=listed) for pair in ((slow(H100), H100), (H100, slow(H100)), (slow(H100), slow(H100)))
    )
    assert leaving > 1.01 * fast
    assert arriving == pytest.approx(leaving, rel=1e-12)
    assert both == pytest.approx(leaving, rel=1e-12)


# ------------------------------------------------------------------------------------------------ timelines

TIMED = [
    {"tp": 4, "pp": 4, "stage_layers": "7+9+9+7"},
    {"tp": 2, "dp": 2, "pp": 4, "zero": 1, "virtual_stages": 2, "stage_layers": "4x8"},
    {"tp": 4, "dp": 2, "pp": 2, "zero": 3, "stage_layers": "16+16"},
    {"tp": 4, "pp": 4, "schedule": "zb-h1", "stage_layers": "8+8+8+8"},
]


@pytest.mark.cases(1)
@pytest.mark.parametrize("strategy", TIMED)
def test_timelines_of_two_pools_of_the_same_devices_are_those_of_one_system(strategy):
    one, two = (trained(*systems, strategy=strategy).timeline() for systems in ([{**H100, "nodes": 2}], [H100, H100]))
    assert two.total == pytest.approx(one.total, rel=1e-12)
    for column in ("device", "start", "end", "microbatch"):
        np.testing.assert_allclose(getattr(two.slots, column), getattr(one.slots, column), rtol=1e-12, atol=1e-15, err_msg=column)
    assert [passed.label for passed in two.passes] == [passed.label for passed in one.passes]
    for mine, theirs in zip(two.passes, one.passes, strict=True):
        np.testing.assert_allclose(mine.end, theirs.end, rtol=1e-12)


@pytest.mark.cases(3)
@pytest.mark.parametrize("strategy", [*TIMED, "tp4-pp4", "tp2-dp2-pp4-v2-z1"])
def test_timelines_take_as_long_as_the_step(strategy):
    scenario = trained(H100, A100, strategy=strategy)
    found = scenario.timeline()
    assert found.total == pytest.approx(crossflow.predict(scenario).step_time, rel=1e-9)
    stages = len(found.devices)
    lengths = [(found.slots.end - found.slots.start)[found.slots.device == i] for i in range(stages)]
    assert np.median(lengths[-1]) != pytest.approx(np.median(lengths[0]), rel=1e-3)


# ------------------------------------------------------------------------------------------------ figures of both


def test_rent_energy_and_peak_are_of_both_kinds():
    priced = [{**one, "operation": {"price": f"{price} USD/hour"}} for one, price in ((H100, 2.0), (A100, 1.0))]
    score = crossflow.evaluate(trained(*priced))
    assert score.devices[0] == 16
    assert score.rent[0] * 3600 == pytest.approx(8 * 2.0 + 8 * 1.0)
    assert score.columns()["usd_per_million_tokens"][0] == pytest.approx(score.rent[0] / score.tokens_per_second[0] * 1e6)
    peaks = [
        crossflow.from_dict({"system": one, "workload": WORKLOAD, "strategy": "tp8"}).architecture.throughput["bf16"][0]
        for one in (H100, A100)
    ]
    assert score.hfu[0] == pytest.approx(score.flops[0] / score.step_time[0] / (8 * sum(peaks)))
    powers = [crossflow.evaluate(trained({**one, "nodes": 2})).power[0] for one in (H100, A100)]
    assert min(powers) < score.power[0] < max(powers)


def test_points_score_as_each_by_itself():
    scenario = trained(H100, A100)
    points = {
        "strategy": ["tp4-dp1-pp4", "tp8-pp2-z1-mb2", "tp4-pp6"],
        "system.nodes": [1, 1, 2],
        "system.pools.p0.levels.memory.bandwidth": ["2 TB/s", "1 TB/s", "3 TB/s"],
        "workload.global_batch": [64, 32, 64],
    }
    together_as_alone(scenario, points)


def test_nodes_and_templates_of_a_pool_are_swept():
    found = crossflow.sweep(trained(H100, A100, strategy="any"), {"system.pools.p0.template": ["dgx-a100", "dgx-b200"]})
    assert found.step_time[1] < found.step_time[0]
    more = crossflow.evaluate(
        trained(H100, A100, strategy="tp8-pp2"), {"system.pools.p0.nodes": [1, 2], "strategy": ["tp8-pp2", "tp8-pp3"]}
    )
    assert more.devices.tolist() == [16, 24]
    assert more.step_time[1] < more.step_time[0]


def test_plans_put_whole_stages_on_each_kind():
    scenario = trained(H100, {**A100, "nodes": 2}, strategy="any")
    legal = crossflow.legal(scenario)
    assert legal
    assert all("pp" in text for text in legal)
    plans = crossflow.plan(scenario)
    assert plans.best is not None
    best = scenario.replace({"strategy": plans.best.strategy}).strategy
    assert best.devices == 24
    assert 8 % (best.tp * best.cp * best.dp) == 0


@pytest.mark.thorough
def test_one_search_divides_the_budgets_of_both_chips():
    chip = {"template": "reference-training", "devices": 8}
    scenario = trained(chip, {**chip, "technology": {"memory": "HBM3"}}, strategy="tp4-pp4")
    assert {"system.budgets.area.compute", "system.pools.p0.budgets.area.compute"} <= set(choices_of(scenario))
    space = {"system.budgets.area": "shares", "system.pools.p0.budgets.area": "shares"}
    found = crossflow.optimise(scenario, space, objectives={"step_time_s": "minimise"}, evaluations=300)
    assert found.best["step_time_s"] < crossflow.predict(scenario).step_time


@pytest.mark.thorough
def test_tokens_per_usd_are_searched_under_a_limit_of_time():
    priced = [{**one, "operation": {"price": f"{price} USD/hour"}} for one, price in ((H100, 2.0), (A100, 1.0))]
    scenario = trained(*priced, strategy="any")
    plans = ["tp8-pp2", "tp4-dp2-pp2-z1-sp", "tp2-dp4-pp2-z1-sp", "tp4-pp4-z1-sp", "tp2-dp2-pp4-z1-sp", "tp4-dp2-pp2-v2-z1-sp"]
    space = {"strategy": plans, "system.pools.p0.template": ["dgx-a100", "dgx-b200"]}
    cheap = crossflow.optimise(scenario, space, objectives={"usd_per_million_tokens": "minimise"})
    limit = 0.9 * crossflow.predict(trained(*priced, strategy="tp8-pp2")).step_time
    fast = crossflow.optimise(
        scenario, space, objectives={"usd_per_million_tokens": "minimise"}, constraints={"step_time_s": f"<= {limit} s"}
    )
    assert fast.best["step_time_s"] <= limit
    assert cheap.best["usd_per_million_tokens"] <= fast.best["usd_per_million_tokens"]


# ------------------------------------------------------------------------------------------------ balance


@pytest.mark.parametrize("seed", range(20))
def test_no_division_has_a_faster_slowest_stage(seed):
    rng = np.random.default_rng(seed)
    depth, n = int(rng.integers(4, 10)), 3
    chunks = int(rng.integers(2, min(depth, 5) + 1))
    loads = StageLoads(
        layers=np.repeat(rng.uniform(0.5, 2.0, (3, 1, n)), depth, axis=1), first=rng.uniform(0, 2, n), last=rng.uniform(0, 3, n),
        on=tuple(rng.integers(0, 3, chunks).tolist()), most=rng.integers(1, depth + 1, (chunks, n)),
    )  # fmt: skip
    sizes, roomy = balanced_by_time(loads)
    np.testing.assert_array_equal(sizes.sum(axis=0), depth)
    for p in range(n):
        every = [np.diff((0, *cuts, depth)) for cuts in itertools.combinations(range(1, depth), chunks - 1)]
        allowed = [one for one in every if (one <= loads.most[:, p]).all()]
        slowest = [(one * loads.layers[list(loads.on), 0, p] + loads.beside[:, p]).max() for one in allowed]
        assert roomy[p] == bool(allowed)
        if allowed:
            assert (sizes[:, p] * loads.layers[list(loads.on), 0, p] + loads.beside[:, p]).max() == pytest.approx(min(slowest), rel=1e-9)
            assert (sizes[:, p] <= loads.most[:, p]).all()


def test_equal_stages_have_equal_shares():
    alike = StageLoads(layers=np.ones((1, 80, 1)), first=np.zeros(1), last=np.ones(1), on=(0,) * 16, most=np.full((16, 1), 80))
    sizes = balanced_by_time(alike)[0][:, 0].tolist()
    assert sorted(sizes) == [4, *[5] * 14, 6]
    assert sizes[-1] == 4  # which has the head beside them


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"strategy": "tp8-dp2"}, "replicas on unlike devices are not modelled"),
        ({"strategy": "tp4-dp4-pp2", "system": {**H100, "nodes": 3, "pools": {"p0": A100}}}, "no whole stages of tp x cp x dp = 16"),
        ({"strategy": {"tp": 8, "pp": 2, "placement": ["tp", "pp", "dp"]}}, "put pp last"),
        ({"strategy": {"tp": 8, "pp": 2, "schedule": "chimera"}}, "holds each layer on two stages"),
        ({"strategy": {"tp": 8, "pp": 2, "offload": "activations"}}, "offload is not modelled"),
        ({"strategy": "pp16", "workload": {**WORKLOAD, "layers": 15}}, "need a layer each"),
        ({"strategy": "tp8-pp4"}, "needs 32 devices (tp 8 x cp 1 x dp 1 x pp 4), but the system has 16"),
        ({"strategy": {"transformer": ["tp", "ddp"]}}, "roles by layer type say nothing of stages"),
        ({"workload": {"model": "gemm", "m": 8, "n": 8, "k": 8}, "strategy": "d16"}, "hold stages of a transformer that is trained"),
        ({"workload": {**WORKLOAD, "task": "decode", "prompt": 128, "output": 8}}, "its devices hold stages of a transformer"),
        ({"run": {"samples": 1e6}}, "a whole run is priced on devices of one kind only"),
        ({"system": {**H100, "pools": {"p0": {"template": "reference-training"}}}}, "system.pools.p0: say how many devices it has"),
        ({"system": {"template": "reference-training", "pools": {"p0": A100}}}, "system: say how many devices it has"),
        ({"system": {**H100, "pools": {"a b": A100}}}, "is no name of a pool"),
        ({"system": {**H100, "pools": {"p0": {**A100, "pools": {"p1": H100}}}}}, "a pool has none"),
        ({"system": {**H100, "pools": {"prefill": {"template": "dgx-a100"}}}}, "stages of a pipeline lie on a pool of any other name"),
        ({"workload": {**WORKLOAD, "dtype": "fp8"}}, "dgx-a100 has no throughput for fp8"),
        ({"system": {**H100, "pools": {"p0": {**A100, "nodes": 2, **TORUS}}}, "strategy": "tp8-pp3"}, "system.pools.p0.network.inter"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(data, told):
    whole = {"system": {**H100, "pools": {"p0": A100}}, "workload": WORKLOAD, "strategy": "tp8-pp2", **data}
    with pytest.raises((SpecError, CrossflowError)) as error:
        crossflow.load(whole)
    assert told in str(error.value)


def test_layers_are_told_for_every_stage(tmp_path, capsys):
    path = trained(H100, A100).save(tmp_path / "two.yaml")
    assert main(["predict", str(path)]) == 0
    out = capsys.readouterr().out
    assert "8 devices of dgx-h100 and 8 devices of dgx-a100" in out
    assert "devices of several kinds" in " ".join(out.split())
    rows = [line.split() for line in out.splitlines() if line.rstrip().endswith(("dgx-h100", "dgx-a100")) and line.split()[0].isdigit()]
    assert [row[-1] for row in rows] == ["dgx-h100"] * 2 + ["dgx-a100"] * 2
    assert sum(int(row[-4]) for row in rows) == 32
    assert main(["events", str(path)]) == 2
    assert "devices of one kind only; leave system.pools.p0 out" in capsys.readouterr().err
    with pytest.raises(CrossflowError, match="launch file is for devices of one kind"):
        crossflow.export(path, "megatron")


# ------------------------------------------------------------------------------------------ what explanations say of pools


@pytest.fixture(scope="module")
def generated():
    return crossflow.from_dict({
        "system": {"template": "reference-training", "devices": 16, "pools": {"older": {"template": "reference", "devices": 16}}},
        "workload": {"model": "llama2-7b", "global_batch": 64, "sequence": 2048}, "strategy": "tp4-dp4-pp2-z1-sp",
    })  # fmt: skip


def test_budgets_of_a_pool_are_decisions_as_those_of_the_system(generated):
    numbers = {number.path: number for number in parameters(generated)}
    for own in ("budgets.power", "budgets.chip_area", "network.inter.bandwidth", "network.parameters.launch"):
        system, pool = (numbers.get(f"{place}.{own}") for place in ("system", "system.pools.older"))
        if pool is not None and system is not None:
            assert (pool.kind, pool.group(generated=True)) == (system.kind, system.group(generated=True)), own
    assert numbers["system.pools.older.budgets.power"].kind == "budget"


def test_twice_the_devices_are_those_of_the_first_kind(generated):
    assert {move.settings["system.devices"] for move in _nodes(read_design(generated, {}))} == {8, 32}
