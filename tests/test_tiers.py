# ruff: noqa: E501  (exact sentences)
"""A second memory: what lies there, what it takes by hand, limits and laws, and what is said where it cannot be."""

import numpy as np
import pytest
from sampled import every

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.base.errors import SpecError, StrategyError

SECOND = {"capacity": "480 GB", "bandwidth": "450 GB/s", "energy": "8 pJ/bit"}
DECODE = {"model": "llama3-70b", "task": "decode", "global_batch": 16, "prompt": 2000, "output": 200}
MIXTURE = {"model": "mixtral-8x7b", "task": "decode", "global_batch": 8, "prompt": 1000, "output": 100}
SERVICE = {"model": "llama3-70b", "task": "serving", "global_batch": 64, "prompt": 2000, "output": 200}
TRAINING = {"model": "llama3-8b", "global_batch": 64, "sequence": 4096}
ALL = "weights+cache"
NEAR = {"bandwidth": "3.35 TB/s", "energy": "0 pJ/bit"}  # main memory of dgx-h100


def scenario(far="weights", second=SECOND, workload=DECODE, plan="tp8", **system):
    given = {"template": "dgx-h100", "devices": 8, **system, **({"second_memory": second} if second else {})}
    strategy = f"{plan}-far:{far}" if far else plan
    return crossflow.from_dict({"system": given, "workload": workload, "strategy": strategy, "software": "ideal"})


def score(far="weights", second=SECOND, workload=DECODE, plan="tp8", **system):
    return evaluate(scenario(far, second, workload, plan, **system))


def changed(**figures):
    return {**SECOND, **figures}


# ------------------------------------------------------------------------------------------ what lies there


def test_weights_leave_main_memory():
    near, far = score(""), score()
    assert far.memory["weights"][0] == pytest.approx(0.0, abs=1.0)
    assert far["second_memory_bytes"][0] == pytest.approx(near.memory["weights"][0])
    assert far.memory["kv_cache"][0] == near.memory["kv_cache"][0]


@pytest.mark.cases(1)
@pytest.mark.parametrize("percent", [25, 50, 100])
def test_a_share_of_the_cache_leaves_main_memory(percent):
    near, far = score(""), score(f"cache-fc{percent}")
    assert far.memory["kv_cache"][0] == pytest.approx((1 - percent / 100) * near.memory["kv_cache"][0])
    assert far["second_memory_bytes"][0] == pytest.approx(percent / 100 * near.memory["kv_cache"][0])


def test_experts_and_other_weights_are_placed_apart():
    near, both, experts, others = (score(far, workload=MIXTURE) for far in ("", "weights+experts", "experts", "weights"))
    whole = near.memory["weights"][0]
    assert both["second_memory_bytes"][0] == pytest.approx(whole)
    assert experts["second_memory_bytes"][0] + others["second_memory_bytes"][0] == pytest.approx(whole)
    assert experts["second_memory_bytes"][0] > 0.9 * whole
    half = score("experts-fe50", workload=MIXTURE)
    assert half["second_memory_bytes"][0] == pytest.approx(experts["second_memory_bytes"][0] / 2)


def test_states_of_the_optimizer_leave_main_memory():
    near, far = score("", workload=TRAINING, plan="dp8-z1"), score("optimizer", workload=TRAINING, plan="dp8-z1")
    assert far.memory["optimizer"][0] == pytest.approx(0.0, abs=1.0)
    assert far["second_memory_bytes"][0] == pytest.approx(near.memory["optimizer"][0])
    for kind in ("weights", "gradients", "activations"):
        assert far.memory[kind][0] == near.memory[kind][0]


def test_staged_weights_have_room_for_two_parts_on_main_memory():
    direct, staged = (score(second=changed(way=way)) for way in ("direct", "staged"))
    added = staged.memory["buffers"][0] - direct.memory["buffers"][0]
    part = 3 * 8192 * 28672 * 2 / 8  # weights of an MLP on one device
    table = 128256 * 8192 * 2 / 8  # the head's table is larger than that
    assert added == pytest.approx(2 * max(part, table), rel=0.01)


@pytest.mark.parametrize(("far", "workload"), [("weights", DECODE), ("cache", DECODE), ("optimizer", TRAINING)])
def test_what_does_not_fit_there_is_told_with_its_numbers(far, workload):
    found = scenario(far, changed(capacity="100 MB"), workload, "tp8" if workload is DECODE else "dp8-z1")
    reason = crossflow.predict(found).reason
    assert "of second memory per device" in reason
    assert reason.endswith("more than its 95.37 MiB")
    assert not evaluate(found).feasible[0]


def test_a_service_has_room_for_as_many_requests_as_both_memories_hold():
    """Half of the cache lies there: a small second memory bounds the requests, a large one leaves room for more than there was."""
    crowded = {**SERVICE, "global_batch": 2000, "prompt": 4000, "output": 4000}
    near, half, small = (
        score("", workload=crowded),
        score("cache-fc50", workload=crowded),
        score("cache", changed(capacity="4 GB"), crowded),
    )
    assert half["requests_decoding"][0] > 1.3 * near["requests_decoding"][0]
    assert small["requests_decoding"][0] < near["requests_decoding"][0]
    assert (small["second_memory_bytes"] <= 4e9).all()


# ------------------------------------------------------------------------------------------ time, by hand


def test_decoding_from_a_slow_second_memory_takes_its_time():
    """All weights but the table of the embedding, of which rows are looked up, once a step over 450 GB/s."""
    found = score(second=changed(way="direct"))
    size = found["second_memory_bytes"][0] - 128256 * 8192 * 2 / 8
    least = size / 450e9
    kernels = found.breakdown["memory_bound_compute"][0] + found.breakdown["compute"][0]
    assert kernels == pytest.approx(least, rel=0.01)
    assert found.bound_by == ["second_memory"]
    assert found["second_memory_read_bytes"][0] / 8 == pytest.approx(size, rel=1e-3)


def test_a_fast_second_memory_relieves_main_memory_of_what_it_holds():
    """Read directly, weights and cache stream beside each other, no faster than both memories together, nor slower than main memory."""
    near, far = score(""), score(second={**changed(way="direct"), "bandwidth": "3.35 TB/s", "utilisation": 0.9})
    assert near.step_time[0] / 2 < far.step_time[0] < near.step_time[0]


def test_staging_writes_main_memory_and_reads_it_again():
    fast = {"bandwidth": "1000 TB/s"}
    near, direct, staged = score(""), score(second=changed(way="direct", **fast)), score(second=changed(way="staged", **fast))
    assert direct.step_time[0] < near.step_time[0] < staged.step_time[0]
    weights = near.memory["weights"][0] - 128256 * 8192 * 2 / 8
    assert staged.memory_traffic[0] - near.memory_traffic[0] == pytest.approx(8 * weights, rel=1e-3)
    assert near.memory_traffic[0] - direct.memory_traffic[0] == pytest.approx(8 * weights, rel=1e-3)


def test_new_tokens_are_written():
    """Keys and values of one token of each request: 80 layers, 8 heads of 128, two bytes."""
    found = score("cache")
    assert found["second_memory_written_bytes"][0] == pytest.approx(16 * 80 * 2 * 8 * 128 * 2)


def test_an_update_reads_and_writes_states():
    """Two states and fp32 weights of 8.03 billion parameters, each read and written once a step, by all ranks together."""
    found = score("optimizer", workload=TRAINING, plan="dp8-z1")
    states = 8 * found["second_memory_bytes"][0]
    assert found["second_memory_read_bytes"][0] == found["second_memory_written_bytes"][0] == pytest.approx(states)
    near, slow = (score("optimizer", changed(bandwidth=rate), TRAINING, "dp8-z1") for rate in ("100 TB/s", "100 GB/s"))
    assert slow.step_time[0] - near.step_time[0] == pytest.approx(2 * states / 8 / 100e9, rel=0.1)


def test_weights_are_read_for_each_pass_and_written_for_each_update():
    found = score("weights", workload=TRAINING, plan="dp8-z1-mb2")
    held = found["second_memory_bytes"][0]
    table = 128256 * 4096 * 2
    passes = 64 / 2  # microbatches of all ranks, each forward and backward
    assert found["second_memory_read_bytes"][0] == pytest.approx(2 * passes * (held - table), rel=0.01)
    assert found["second_memory_written_bytes"][0] == pytest.approx(held, rel=0.01)


def test_few_tokens_reach_few_experts():
    """Of 128 experts a request reaches 8: one reads few of them, many all."""
    reads = []
    for requests in (1, 8, 512):
        workload = {"model": "qwen3-235b-a22b", "task": "decode", "global_batch": requests, "prompt": 100, "output": 10}
        found = score("experts", workload=workload)
        reads.append(found["second_memory_read_bytes"][0] / 8 / found["second_memory_bytes"][0])
    assert reads[0] == pytest.approx(8 / 128, rel=0.01)
    assert reads[1] == pytest.approx(1 - (1 - 8 / 128) ** 8, rel=0.01)
    assert reads[2] == pytest.approx(1.0, rel=0.01)


def test_pages_round_up_what_is_read_in_small_pieces():
    small, large = (score(workload={**DECODE, "global_batch": 8}, second=changed(page=page)) for page in ("1 B", "1 MiB"))
    more = (large["second_memory_read_bytes"][0] - small["second_memory_read_bytes"][0]) / 8
    pieces = 80 * (2 + 2) + 1 + 8  # matrices of attention and MLPs, the head's table, and a row of the table of each request
    assert 8 * 2**19 < more < pieces * 2**20
    assert large.step_time[0] >= small.step_time[0]


def test_pages_round_up_what_is_read_of_the_cache_of_each_request():
    """Each of 16 requests has 2,100 tokens of one head for keys and one for values in a layer, 1.075 MB: one page of 1 MiB holds no more."""
    small, large = (score("cache", second=changed(page=page))["second_memory_read_bytes"][0] for page in ("1 B", "1 MiB"))
    request = small / (16 * 80 * 8)
    assert 2**20 < request < 2 * 2**20
    assert large == pytest.approx(16 * 80 * 8 * 2 * 2**20, rel=1e-9)


def test_a_second_memory_wears_out_by_what_is_written():
    """A cache on flash of 1 TB that stands 1,000 writes lasts for 1,000 TB; half of the writes, twice as long."""
    flash = changed(capacity="1 TB", endurance=1000)
    whole, half = score("cache", flash), score("cache-fc50", flash)
    rate = whole["second_memory_written_bytes"][0] / 8 / whole.step_time[0]
    assert whole["second_memory_lifetime_s"][0] == pytest.approx(1e12 * 1000 / rate)
    slower = half.step_time[0] / whole.step_time[0]
    assert half["second_memory_lifetime_s"][0] == pytest.approx(2 * slower * whole["second_memory_lifetime_s"][0])
    assert np.isinf(score("weights", flash)["second_memory_lifetime_s"][0])
    assert np.isinf(score("cache")["second_memory_lifetime_s"][0])


# ------------------------------------------------------------------------------------------ laws

CASES = [(ALL, DECODE, "tp8"), ("experts", MIXTURE, "tp8"), ("cache", SERVICE, "tp8"), ("weights+optimizer", TRAINING, "tp2-dp4-z1")]


@pytest.mark.cases(1)
@pytest.mark.parametrize(("far", "workload", "plan"), CASES)
def test_a_second_memory_that_holds_nothing_changes_nothing(far, workload, plan):
    with_it, without = score("", workload=workload, plan=plan), score("", second=None, workload=workload, plan=plan)
    ours, theirs = with_it.columns(), without.columns()
    for name, values in theirs.items():
        if isinstance(values, np.ndarray) and not name.startswith("error_band"):  # whose device is changed
            assert np.array_equal(ours[name], values, equal_nan=True), name
    assert with_it["second_memory_bytes"][0] == with_it["second_memory_read_bytes"][0] == 0.0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("far", "workload", "plan", "way"), [(*case, way) for turn, case in enumerate(CASES) for way in every(2, ("direct", "staged"), turn)]
)
def test_better_second_memories_are_never_worse(far, workload, plan, way):
    base = changed(way=way, capacity="2 TB")
    rates = ["50 GB/s", "450 GB/s", "2 TB/s", "3.35 TB/s", "100 TB/s"]
    times = [score(far, {**base, "bandwidth": rate}, workload, plan).step_time[0] for rate in rates]
    assert (np.diff(times) <= 1e-12 * times[0]).all()
    writes = [score(far, {**base, "write_bandwidth": rate}, workload, plan).step_time[0] for rate in ("10 GB/s", "100 GB/s", "450 GB/s")]
    assert (np.diff(writes) <= 1e-12 * writes[0]).all()
    energies = [score(far, {**base, "energy": energy}, workload, plan).energy[0] for energy in ("80 pJ/bit", "8 pJ/bit", "1 pJ/bit")]
    assert (np.diff(energies) <= 1e-12 * energies[0]).all()
    sizes = [score(far, {**base, "capacity": size}, workload, plan) for size in ("1 GB", "400 GB", "2 TB")]
    assert sorted(one.feasible[0] for one in sizes) == [one.feasible[0] for one in sizes]


@pytest.mark.cases(2)
@pytest.mark.parametrize(("far", "workload", "plan"), CASES)
def test_a_second_memory_without_limits_costs_nothing_that_main_memory_did_not(far, workload, plan):
    free = changed(bandwidth="1e9 TB/s", latency="0 s", capacity="10 TB")
    near = score("", workload=workload, plan=plan)
    assert score(far, {**free, "way": "direct"}, workload, plan).step_time[0] <= near.step_time[0] * (1 + 1e-9)


def test_all_that_decoding_reads_on_a_memory_like_the_first_takes_as_long():
    """Swap the memories: all weights and all of the cache lie on one with the figures of the other."""
    like = {**changed(way="direct"), "bandwidth": "3.35 TB/s", "utilisation": float(scenario().system.memory_utilisation[0])}
    near, far = score(""), score(ALL, like)
    activations = 0.06  # and what norms move: these stay, and stream beside
    assert near.step_time[0] * (1 - activations) < far.step_time[0] <= near.step_time[0] * (1 + 1e-9)


def test_a_page_of_a_byte_is_none():
    one, none = score(ALL, changed(page="1 B")), score(ALL)
    assert one.step_time[0] == none.step_time[0]


def test_a_batch_is_each_point_by_itself():
    base = scenario(ALL)
    points = {
        "strategy": ["tp8", "tp8-far:weights", "tp8-far:weights+cache-fc30", "tp4-dp2-far:cache"],
        "system.second_memory.bandwidth": [1e11, 2e11, 4e11, 8e11],
    }
    together = evaluate(base, points)
    for i in range(4):
        alone = evaluate(base, {path: [values[i]] for path, values in points.items()})
        assert together.step_time[i] == pytest.approx(alone.step_time[0], rel=1e-12)
        assert together["second_memory_bytes"][i] == pytest.approx(alone["second_memory_bytes"][0], rel=1e-12)


# ------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("strategy", "workload", "sentence"),
    [
        ("tp8-far:optimizer", DECODE, "far: optimizer, but only training has one"),
        ("tp8-far:cache", TRAINING, "far: cache, but only a service keeps one"),
        ("tp8-far:experts", DECODE, "far: experts, but the model has no experts"),
        ("tp8-fc50", DECODE, "far_cache says what share of it lies on the second memory; give far: cache too, or leave it out"),
        ("tp8-far:cache-fc150", DECODE, "far_cache = 150: it is a share in percent, 100 at most"),
        ("dp8-z3-far:weights", TRAINING, "shards are gathered into main memory"),
    ],
)
def test_what_cannot_lie_there_is_refused(strategy, workload, sentence):
    given = {"system": {"template": "dgx-h100", "second_memory": SECOND}, "workload": workload, "strategy": strategy}
    with pytest.raises((SpecError, StrategyError)) as caught:
        evaluate(crossflow.from_dict(given))
    assert sentence in str(caught.value)


def test_a_system_without_one_is_told_how_to_get_one():
    with pytest.raises((SpecError, StrategyError), match="far keeps tensors on a second memory, of which the system has none"):
        evaluate(crossflow.from_dict({"system": "dgx-h100", "workload": DECODE, "strategy": "tp8-far:weights"}))


# ------------------------------------------------------------------------------------------ search and advice


def test_a_plan_that_does_not_fit_is_told_what_would_leave_main_memory():
    """A model of 141 GB on one device of 80 GB: weights leave it."""
    found = crossflow.predict(scenario("", plan="tp1", workload={**DECODE, "global_batch": 1}, devices=1))
    assert any(str(remedy).startswith("far: weights frees") for remedy in found.remedies)


def test_auto_places_tensors_where_they_fit():
    base = {"template": "dgx-h100", "devices": 1, "second_memory": changed(capacity="480 GB")}
    workload = {**DECODE, "global_batch": 1}
    found = crossflow.load({"system": base, "workload": workload, "strategy": "auto", "software": "ideal"})
    assert found.strategy.far == ("weights",)
    without = crossflow.load({"system": {**base, "second_memory": None}, "workload": workload, "strategy": "auto", "software": "ideal"})
    assert not evaluate(without).feasible[0]


def test_auto_leaves_tensors_where_they_are_read_fastest():
    found = crossflow.load({"system": {"template": "dgx-h100", "second_memory": SECOND}, "workload": DECODE, "strategy": "auto"})
    assert found.strategy.far == ()


# ------------------------------------------------------------------------------------------ generated devices

HBF = {
    "technology": {"logic": "N3", "memory": "HBM4", "second_memory": "HBF"},
    "budgets": {
        "area": {"memory": 0.12, "second_memory": 0.08, "compute": 0.5},
        "power_shares": {"memory": 0.2, "second_memory": 0.2, "compute": 0.15, "on_chip": {"l1": 0.1}},
        "perimeter": {"second_memory": 0.3},
    },
}


def generated(strategy="dp8-ep8-far:experts", **system):
    workload = {"model": "kimi-k2", "task": "decode", "global_batch": 64, "prompt": 4000, "output": 500, "dtype": "fp8"}
    given = {"template": "reference", "devices": 8, **HBF, **system}
    return crossflow.from_dict({"system": given, "workload": workload, "strategy": strategy, "software": "ideal"})


def test_a_second_memory_takes_its_shares_of_the_budgets():
    """Of 736 mm2 beside the chip half is for flash, two stacks of 140; the other half holds two of HBM4."""
    device = generated().architecture
    assert device.second.capacity[0] == pytest.approx(2 * 512e9)
    assert device.memory.capacity[0] == pytest.approx(2 * 36 * 2**30)
    assert {use.component for use in device.usage} >= {"memory", "second_memory"}
    assert device.cost["second_memory"][0] == pytest.approx(2 * 560)
    assert device.second.write_bandwidth[0] == pytest.approx(0.05 * device.second.bandwidth[0])
    assert device.carbon["second_memory"][0] == pytest.approx(2 * 512 * 0.010)


def test_room_is_divided_between_both_memories():
    """A fifth of 736 mm2 holds one stack of flash; controllers leave room for three of HBM4 beside it, of four."""
    device = generated(second_memory={"room": 0.2}).architecture
    assert device.second.capacity[0] == pytest.approx(512e9)
    assert device.memory.capacity[0] == pytest.approx(3 * 36 * 2**30)


def test_a_trillion_parameters_fit_on_flash_and_not_beside():
    assert evaluate(generated()).feasible[0]
    assert not evaluate(generated("dp8-ep8")).feasible[0]


def test_nothing_changes_without_a_second_memory():
    """A template whose room for it is not named has all of it for main memory."""
    plain = crossflow.from_dict({"system": {"template": "reference", "devices": 8}, "workload": DECODE, "strategy": "tp8"})
    assert plain.architecture.second is None
    assert plain.architecture.memory.capacity[0] == pytest.approx(5 * 24 * 2**30)


def test_none_gives_the_shares_of_a_second_memory_to_the_first():
    """As a system without one whose main memory has the sum of both shares."""
    shares = {"area": {"memory": 0.2, "compute": 0.5}, "power_shares": {"memory": 0.4, "compute": 0.15, "on_chip": {"l1": 0.1}}}
    alone = {"technology": {"logic": "N3", "memory": "HBM4"}, "budgets": {**shares, "perimeter": {"memory": 0.4 + 0.3}}}
    both = {**HBF["budgets"], "perimeter": {"memory": 0.4, "second_memory": 0.3}}
    none = {"technology": {**HBF["technology"], "second_memory": "None"}, "budgets": both}
    one, other = (
        crossflow.from_dict({"system": {"template": "reference", "devices": 8, **system}, "workload": DECODE, "strategy": "tp8"})
        for system in (alone, none)
    )
    assert other.architecture.second is None
    assert other.architecture.memory.bandwidth[0] == pytest.approx(one.architecture.memory.bandwidth[0], rel=1e-12)
    assert crossflow.predict(other).step_time == pytest.approx(crossflow.predict(one).step_time, rel=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize(("role", "other"), [("memory", "HBM4"), ("second_memory", "HBF")])
def test_none_is_swept_beside_memories_with_and_without_draws(role, other, tmp_path):
    budgets = HBF["budgets"] if role == "second_memory" else {}
    workload = {**DECODE, "model": "llama3-8b", "global_batch": 1}
    technology = {"logic": "N3", "memory": "HBM4", **({"second_memory": "HBF"} if budgets else {})}
    system = {"template": "reference", "devices": 8, "technology": technology, **({"budgets": budgets} if budgets else {})}
    study = {"name": role, "scenario": {"system": system, "workload": workload, "strategy": "tp8"},
             "sweep": {f"system.technology.{role}": [other, "none"]}}  # fmt: skip
    plain = crossflow.run_study(study, out=tmp_path / "plain")
    drawn = crossflow.run_study({**study, "uncertainty": {"samples": 8, "seed": 1}}, out=tmp_path / "drawn")
    capacities = [row["memory_capacity_bytes"] for row in plain.rows]
    assert (capacities[1] > capacities[0]) == (role == "second_memory")  # which has the room of both then
    assert len(drawn) == 16
    assert any(f"techlib.memory.{other}." in path for row in drawn.rows for path in row)


def test_staging_is_told_as_what_binds():
    """Main memory carries what is staged twice, and little else; what is read directly has no staging."""
    direct, staged = (generated(second_memory={"way": way}) for way in ("direct", "staged"))
    assert dict(crossflow.predict(staged).bound_by())["staging"] > 0.5
    assert dict(crossflow.predict(direct).bound_by()).get("staging", 0.0) == 0.0
    total = evaluate(staged)
    assert sum(share[0] for share in total.bound.values()) == pytest.approx(1)


def test_the_second_memory_has_a_row_on_the_page():
    from rich.console import Console

    from crossflow.edges.cli.device import derived

    console = Console(width=120)
    with console.capture() as said:
        console.print(derived(generated().architecture))
    row = next(line for line in said.get().splitlines() if "second memory" in line)
    assert "953.7 GiB" in row
    assert "read directly, writes" in row


@pytest.mark.parametrize(
    ("system", "sentence"),
    [
        ({"template": "reference", "budgets": {"area": {"second_memory": 0.02}}}, "budgets.area.second_memory: there is no second memory; name one as technology.second_memory, or leave it out"),
        ({"template": "reference", "second_memory": {"room": 0.2}}, "second_memory: there is no second memory; name one as technology.second_memory, or leave it out"),
        ({"template": "reference", "technology": {"second_memory": "HBG"}}, "technology library 'standard' has no memory 'HBG'"),
        ({"template": "reference", "technology": {"memory": "none", "second_memory": "HBF"}}, "technology.second_memory: there is no first one"),
    ],
)  # fmt: skip
def test_second_memories_that_cannot_be_are_refused(system, sentence):
    with pytest.raises(SpecError) as caught:
        crossflow.from_dict({"system": {**system, "devices": 8}, "workload": DECODE, "strategy": "tp8"})
    assert sentence in str(caught.value)


def test_flash_is_no_main_memory_and_needs_shares():
    flash = crossflow.from_dict({"system": {"template": "reference", "technology": {"memory": "HBF"}, "devices": 8}, "workload": DECODE, "strategy": "tp8"})  # fmt: skip
    assert "its main memory is flash" in crossflow.predict(flash).reason
    bare = crossflow.from_dict({"system": {"template": "reference", "technology": {"second_memory": "HBF"}, "devices": 8}, "workload": DECODE, "strategy": "tp8"})  # fmt: skip
    assert "not one device of the second memory fits" in crossflow.predict(bare).reason


def test_figures_of_a_second_memory_that_holds_nothing_are_told():
    found = crossflow.predict(scenario("", changed(page="16 KiB", endurance=1000)))
    assert any("system.second_memory" in note and "no strategy.far keeps anything there" in note for note in found.notes)


@pytest.mark.parametrize("word", ["fe0", "fc0"])
def test_a_share_of_nothing_is_refused(word):
    with pytest.raises(SpecError, match="must be a positive whole number"):
        crossflow.from_dict({
            "system": "gb200-nvl72", "workload": {"model": "mixtral-8x7b", "task": "decode", "prompt": 1000, "output": 100, "global_batch": 72},
            "strategy": f"dp72-ep8-far:experts+cache-{word}",
        })  # fmt: skip
