"""Laws of the whole model: better technology, conservation, lower bounds, published shapes, and devices beyond count."""

import itertools
import time

import numpy as np
import pytest
from laws import LIMIT, TEMPLATES, WORKLOADS, changes
from sampled import every, fewer

from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.scoring import INCONSISTENT
from crossflow.answers.steps.programs import placed
from crossflow.cost.price import price
from crossflow.hardware.architecture.system import architecture
from crossflow.parallel.transform import transform

LOGIC = ["N16", "N12", "N10", "N7", "N5", "N3", "N2", "N1"]
MEMORY = ["HBM2", "HBM2e", "HBM3", "HBM4"]
LINK = ["NDR-x8", "XDR-x8", "GDR-x8"]
STRATEGIES = ["d512", "CR-8-d64", "RC-16-4-d8", "d128-p4", "RC-1-4-d2"]


def grid(scenario, **fixed):
    """Score over every logic node, memory and link, and step times of shape (logic, memory, link)."""
    points = list(itertools.product(LOGIC, MEMORY, LINK))
    names = {"logic": 0, "memory": 1, "inter_link": 2}
    score = evaluate(scenario, {f"system.technology.{role}": [point[i] for point in points] for role, i in names.items()} | fixed)
    return score, score.step_time.reshape(len(LOGIC), len(MEMORY), len(LINK))


@pytest.fixture(scope="module", params=STRATEGIES)
def technology(request, lstm):
    return grid(lstm(request.param))


def test_better_memory_is_never_slower(technology):
    """At equal budgets; one part in 1e9 for rounding."""
    assert (np.diff(technology[1], axis=1) <= 1e-9 * technology[1][:, :-1]).all()


def test_a_better_link_is_never_slower(technology):
    assert (np.diff(technology[1], axis=2) <= 1e-9 * technology[1][:, :, :-1]).all()


def test_a_denser_node_is_never_slower(technology):
    """With everything else kept; a part in a thousand for what the tiling does not find."""
    assert (technology[1][1:] <= 1.001 * technology[1][:-1]).all()


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize(("template", "workload"), every(2, list(itertools.product(TEMPLATES, WORKLOADS))))
def test_a_better_part_makes_no_random_design_slower_nor_dearer(template, workload):
    """Within 0.1 % in time, but where a power limit changes the choice among tilings that are nearly as fast, as docs/model.md says.

    `python tests/laws.py 500` found 9 of 527,748 comparisons with the seeds 1 to 3, by up to 1.3 %. Seven of them are one design of one
    product: 3.4 in 10,000 of its 20,649, the most of the thirty cases. A faster tiling may move more: one in some 1,800 takes more energy.
    """
    count = fewer(100, 40)
    found = list(changes(template, workload, count, seed=11))
    slower = np.concatenate([one.slower for one in found if not one.stacks])
    dearer = np.concatenate([one.dearer for one in found if one.frugal])
    assert len(slower) > 25 * count
    assert (slower > LIMIT).mean() < 4e-4
    assert slower.max() < 15 * LIMIT
    assert (dearer > LIMIT).mean() < 4e-3
    assert np.median(dearer[np.abs(dearer) > 1e-6]) < 0.0


def test_ten_years_of_everything_are_faster(technology):
    assert technology[1][-1, -1, -1] < 0.5 * technology[1][0, 0, 0]


def test_no_result_is_below_its_own_bounds(technology):
    score, _ = technology
    assert INCONSISTENT not in {score.reasons[code] for code in score.reason if code >= 0}


def test_no_device_draws_more_than_its_power(technology):
    """Mean power of the step over all devices, against 300 W each."""
    score, _ = technology
    devices = score.flops / (score.mfu * score.step_time * score.architecture["throughput.fp16"])
    assert (score.power <= 300.0 * devices * (1 + 1e-9)).all()


def test_mfu_is_a_share(technology):
    score, _ = technology
    assert ((score.mfu > 0) & (score.mfu <= 1)).all()


@pytest.mark.parametrize(("template", "watts"), [("v100", 300.0), ("p4", 75.0)])
def test_a_device_at_full_load_stays_within_its_power(gemm, template, watts):
    for size in (64, 512, 4096, 16384):
        assert evaluate(gemm(template, m=size, n=size, k=size)).power[0] <= watts


@pytest.mark.parametrize(
    "path",
    [
        "system.budgets.power_shares.memory",
        "system.budgets.power_shares.inter_link",
        "system.budgets.power_shares.compute",
    ],
)
def test_more_power_for_one_component_is_never_slower(lstm, path):
    shares = np.linspace(0.01, 0.3, 100)
    times = evaluate(lstm("CR-8-d64", technology={"logic": "N7"}), {path: shares}).step_time
    assert (np.diff(times) <= 1e-9 * times[:-1]).all()


def test_flops_do_not_depend_on_how_they_are_divided(lstm):
    """Products of all devices; pointwise work of replicated weights' updates is left within two per cent."""
    flops = evaluate(lstm("d512"), {"strategy": ["d512", "d8", "CR-8-d64", "RC-16-4-d8", "RC-1-4-d2", "d128-p4"]}).flops
    np.testing.assert_allclose(flops, flops[1], rtol=0.02)


def test_a_step_is_never_shorter_than_compute_at_peak(lstm):
    score = evaluate(lstm("d512"), {"strategy": ["d512", "d8", "CR-8-d64", "RC-16-4-d8", "d128-p4"]})
    devices = np.array([512, 8, 512, 512, 512])
    products = 2 * 3 * 16384 * 20 * (2 * 2 * 4 * 16384**2 + 16384 * 800000)
    assert (score.step_time >= products / (devices * score.architecture["throughput.fp16"])).all()


def test_twice_the_devices_halve_the_work_of_each(lstm):
    """Data parallel without its reductions: the compute of 64 devices is that of 32 halved, but for launches and updates."""
    score = evaluate(lstm("d32", workload={"task": "forward"}), {"strategy": ["d32", "d64"]})
    busy = score.breakdown["compute"] + score.breakdown["memory_bound_compute"]
    assert busy[0] / busy[1] == pytest.approx(2, rel=0.1)
    assert (score.breakdown["exposed_communication"] == 0).all()


def test_forward_alone_is_about_a_third_of_training(lstm):
    training, forward = (evaluate(lstm("d8", workload={"task": task})).step_time[0] for task in ("training", "forward"))
    assert 2.5 < training / forward < 4


def test_a_pipeline_of_unequal_stages_leaves_devices_idle(lstm):
    """The softmax holds most of the work: four times the devices in four stages gain little."""
    score = evaluate(lstm("d8"), {"strategy": ["d8", "d8-p4", "d32"]})
    assert score.breakdown["bubble"][0] == score.breakdown["bubble"][2] == 0 < score.breakdown["bubble"][1]
    assert score.mfu[1] < 0.5 * score.mfu[0]
    assert score.step_time[2] < score.step_time[1] < score.step_time[0]


def test_the_shapes_of_the_case_study(lstm):
    """Paper Sec. 9.1, Fig. 9: at N12 memory beyond its time hardly matters (L2 binds), from N7 on it does."""
    _, times = grid(lstm("d512"))
    gain = times[:, MEMORY.index("HBM2e"), 0] / times[:, -1, 0]
    assert gain[LOGIC.index("N12")] < 1.05
    assert gain[LOGIC.index("N7")] > 1.2
    assert 1.001 * gain[LOGIC.index("N1")] >= gain[LOGIC.index("N5")] > gain[LOGIC.index("N12")]


def test_kernel_parallelism_beats_data_parallelism_in_the_case_study(lstm):
    """deepflow.md 3.3: CR-8-d64 in 1.6 to 1.9 s against 3.1 to 5.5 s of DP-512, at N12 to N14 and 50 GB/s."""
    times = evaluate(lstm("d512"), {"strategy": ["d512", "CR-8-d64"]}).step_time
    assert times[1] < 0.7 * times[0]
    assert 2 < times[0] < 6


def test_devices_beyond_count_cost_what_a_few_do(lstm):
    """65,536 devices against 8, by the processor's time of an evaluation without its caches."""
    few, many = lstm("d8", workload={"global_batch": 65536}), lstm("d65536", workload={"global_batch": 65536})

    def seconds(scenario):
        best = np.inf
        for _ in range(3):
            transform.cache_clear()
            began = time.process_time()
            evaluate(scenario)
            best = min(best, time.process_time() - began)
        return best

    assert seconds(many) < 5 * seconds(few)


def test_many_points_cost_little_more_than_one(lstm):
    """A batch of 500 designs in less than 30 times the time of one."""
    scenario, power = lstm("CR-8-d64"), np.linspace(200.0, 400.0, 500)
    evaluate(scenario, {"system.budgets.power": power[:1]})
    began = time.process_time()
    evaluate(scenario, {"system.budgets.power": power[1:2]})
    one, began = time.process_time() - began, time.process_time()
    evaluate(scenario, {"system.budgets.power": power})
    assert time.process_time() - began < 30 * one


def test_costs_of_parts_are_above_their_lower_bounds(lstm):
    for strategy in ("d512", "CR-8-d64", "RC-16-4-d8"):
        scenario = lstm(strategy)
        graph, device = transform(scenario.graph(), scenario.strategy), architecture(scenario.system)
        made = price(graph, placed(scenario, graph), scenario.system.network, device, 1)
        assert (made.kernels.time >= made.lower_bound * (1 - 1e-12)).all()
        np.testing.assert_allclose(made.kernels.bound_times.sum(axis=0) + made.kernels.launch, made.kernels.time, rtol=1e-12)


def test_endless_links_leave_no_exposed_communication(lstm):
    """A million times the lanes of no latency: the step is that of the devices alone."""
    changes = {
        "maximum_links": 4e6,
        "area_per_link": "1e-9 mm2",
        "links_per_mm": "1e9 1/mm",
        "nominal_energy_per_bit": "1e-9 pJ/bit",
        "latency": "0 s",
    }
    score = evaluate(lstm("CR-8-d64", components={"inter_link": changes}))
    assert score.breakdown["exposed_communication"][0] < 1e-3 * score.step_time[0]


def test_energy_grows_with_the_bytes_that_move(lstm):
    cheap, dear = (
        evaluate(lstm("CR-8-d64", components={"inter_link": {"nominal_energy_per_bit": f"{energy} pJ/bit"}})).energy[0] for energy in (1, 3)
    )
    assert dear > cheap
