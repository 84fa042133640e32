"""The studies of MAD-Max's insights: each can be run, and what docs/studies.md says of them holds."""

import csv
import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from crossflow import evaluate, predict
from crossflow.answers.scenario import from_dict
from crossflow.answers.study.reading import read_study
from crossflow.base import files
from crossflow.base.units import show

STUDIES = (
    "dlrm-strategies", "llm-strategies", "variants", "tasks", "context", "cloud", "generations", "hardware", "scaling", "scaling-gpt3",
)  # fmt: skip
SYSTEMS = {
    "as built": {},
    "compute": {"throughput": {"tf32": "1560 Tflop/s"}},
    "network": {"network": {"inter": {"bandwidth": "250 GB/s"}}},
}


def dense(*roles):
    return [f"dense {role}, embedding mp" for role in roles]


def scores(strategies, workload="dlrm-a", system="zionex", **rest):
    scenario = from_dict({"system": system, "workload": workload, "strategy": strategies[0], **rest})
    return evaluate(scenario, {"strategy": strategies})


def fastest(score):
    return float(np.where(score.feasible, score.step_time, np.inf).min())


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_reads(name):
    study = read_study(files.find("studies", f"madmax-{name}"))
    assert study.spec.name == f"madmax-{name}"
    assert study.spec.plots


def test_parts_of_a_node_may_share_a_layer_but_not_all_devices():
    fsdp, hybrid, tensor, everywhere, turned = scores(dense("fsdp", "(fsdp, ddp)", "(tp, ddp)", "tp", "(ddp, tp)")).step_time
    assert hybrid < tensor < fsdp
    assert everywhere > 4 * fsdp
    assert turned > 5 * tensor


def test_tables_fit_only_where_they_are_shared_out_and_dense_copies_fit_then():
    strategies = [*dense("ddp"), "dense ddp, embedding (mp, ddp)", "dense ddp, embedding ddp"]
    score = scores(strategies)
    assert score.feasible.tolist() == [True, False, False]
    assert (score.memory_needed[1:] > [200e9, 1.5e12]).all()


def test_nothing_that_keeps_copies_between_nodes_fits_gpt3():
    plans = ["dp2048-z3-full", "tp8-dp256-mb8-full", "tp8-dp256-mb8-z1-sp-full", "dp2048-full"]
    score = scores(plans, {"model": "gpt3-175b", "global_batch": 2048}, "a100-ib-2048", software="pytorch-fsdp")
    assert score.feasible.tolist() == [True, False, False, False]
    assert (score.step_time[1:] > score.step_time[0]).all()


def test_experts_between_nodes_cost_next_to_nothing():
    plain = scores(dense("(fsdp, ddp)")).step_time[0]
    gathered, shared = scores(["dense fsdp, embedding mp", "dense (fsdp, ddp), embedding mp, experts (fsdp, ep)"], "dlrm-a-moe").step_time
    assert shared < 1.05 * plain < 0.25 * gathered


@pytest.mark.parametrize(
    ("workload", "order"),
    [
        ({"frozen": ["embedding"]}, ["(fsdp, ddp)", "(tp, ddp)", "ddp", "fsdp"]),
        ({"task": "forward"}, ["ddp", "(fsdp, ddp)", "(tp, ddp)", "fsdp"]),
        ({"frozen": ["bottom", "top"]}, ["ddp", "(fsdp, ddp)", "(tp, ddp)", "fsdp"]),
    ],
)
def test_the_order_of_strategies_depends_on_the_task(workload, order):
    times = scores(dense(*order), {"model": "dlrm-a", **workload}).step_time
    assert all(faster < slower for faster, slower in itertools.pairwise(times))


def test_tensor_parallelism_loses_less_the_longer_the_context():
    lost = []
    for length in (4096, 32768):
        workload = {"model": "llama2-70b", "global_batch": 2048, "sequence": length}
        fsdp, tensor = scores(["dp2048-z3-full", "tp8-dp256-z1-sp-full"], workload, "a100-ib-2048", software="pytorch-fsdp").step_time
        lost.append(tensor / fsdp)
    assert lost[0] > lost[1] > 1


def test_the_network_between_nodes_helps_training_more_than_compute():
    times = {
        name: fastest(scores(dense("fsdp", "ddp", "(fsdp, ddp)", "(tp, ddp)"), system={"template": "zionex", **changes}))
        for name, changes in SYSTEMS.items()
    }
    assert times["network"] < 0.65 * times["as built"]
    assert times["compute"] > 0.95 * times["as built"]


# -------------------------------------------------------------------------------------------- its measured points


@pytest.mark.slow
def test_vision_transformers_closer_than_madmax():
    """One stack and one network for all nine rows, no fitted number, against a utilisation fitted to each shape."""
    lines = (Path(__file__).parent / "data" / "madmax_vit.csv").read_text().splitlines()
    errors = []
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        devices, batch = int(row["devices"]), int(row["global_batch"])
        card = {"fabric": "ethernet", "bandwidth": "1.5625 GB/s"}
        system = {"template": "aws-p4d", "nodes": devices // 8, "network": {"inter": card}}
        plain = {"system": system, "workload": {"model": row["model"], "global_batch": batch}, "software": "pytorch-fsdp-2022"}
        plans = [from_dict({**plain, "strategy": f"dp{devices}-mb{batch // devices}-z3{end}"}) for end in ("", "-full")]
        step = next(found.step_time for plan in plans if (found := predict(plan)).feasible)
        ours = 3 * plans[0].job().model.forward_flops() * batch / devices / 1e12 / step
        measured = float(row["measured_tflops_per_device"])
        errors.append([ours / measured - 1, float(row["madmax_tflops_per_device"]) / measured - 1])
    assert len(errors) == 9
    for middle in (np.mean, np.median):
        ours, theirs = middle(np.abs(errors), axis=0)
        assert ours < 0.7 * theirs


@pytest.mark.slow
def test_a_recommendation_model_that_does_not_fit_is_told_what_would():
    given = {"system": "zionex", "workload": "dlrm-a", "strategy": {"dense": ["ddp"], "embedding": ["ddp", "mp"]}}
    found = predict(from_dict(given))
    assert not found.feasible
    times = []
    for sentence in found.remedies:
        strategy, spare, time = re.fullmatch(r"strategy: (.*) fits with (.*) to spare and takes (.*) a step", sentence).groups()
        cured = predict(from_dict({**given, "strategy": strategy}))
        assert cured.feasible
        assert (show(cured.score.memory_capacity[0] - cured.score.memory_needed[0], "B"), show(cured.step_time, "s")) == (spare, time)
        times.append(cured.step_time)
    assert times == sorted(times)
    assert len(times) == 3
    (sentence,) = predict(from_dict({**given, "system": {"template": "zionex", "nodes": 1}, "workload": {"model": "dlrm-c"}})).remedies
    assert re.fullmatch(r"no strategy fits: .* needs least, .* more than there is", sentence)
