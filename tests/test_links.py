"""Links between the stages of a pipeline: each boundary by where its two stages lie, and the tied table by where its ends do."""

import numpy as np
import pytest
from routing import devices, hops

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.events import events
from crossflow.answers.evaluation.timelines import simulate as timeline
from crossflow.base.files import Document
from crossflow.hardware.architecture.system import resolve
from crossflow.hardware.mapping.placement import pair_route, place
from crossflow.hardware.mapping.topology import Network, Topology

GPT = {
    "model": "transformer", "layers": 16, "hidden": 1024, "heads": 16, "ffn": 4096, "gated": False, "vocabulary": 32000, "sequence": 512,
    "positions": "learned", "norm": "layernorm", "biases": True, "tied_embeddings": False, "global_batch": 32, "dtype": "bf16",
}  # fmt: skip
MIXED = [
    "tp4-pp4",
    "tp2-pp4-dp2",
    "tp4-pp4-v2",
    "tp2-pp8-gpipe",
    "tp4-pp4-zbh1",
    "tp2-pp4-dp2-chimera",
    "tp2-pp4-dp2-dualpipe",
    "pp16-pipedream",
]
V = "kind: schedule\nname: v\nchunks: [0, 1, 2, 3, 3, 2, 1, 0]\norder:\n" + 4 * "  - F0 F0.1 B0.1 B0\n"
JUMPS = V.replace("0, 1, 2, 3, 3, 2, 1, 0", "0, 2, 1, 3, 0, 2, 1, 3")


def scenario(strategy, inter="50 GB/s", software="pytorch-fsdp", nodes=2, template="dgx-h100", profile=None, wire=None, **workload):
    link = {**({} if inter is None else {"bandwidth": inter}), **({} if wire is None else {"fabric": wire})}
    network = {"network": {"inter": link}} if link else {}
    given = {"system": {"template": template, "nodes": nodes, **network}, "workload": {**GPT, **workload}}
    return crossflow.from_dict({**given, "strategy": strategy, "software": software, **({"profile": str(profile)} if profile else {})})


def step(strategy, *given, **options):
    return crossflow.predict(scenario(strategy, *given, **options)).step_time


def messages(found, op):
    """How often messages of a kind between two ranks are sent in a step by scope, the rarest of each."""
    often = [(event.scope, event.count) for event in found.events if event.op == op and event.ranks == 2]
    return {scope: min(count for where, count in often if where == scope) for scope, _ in often}


# ------------------------------------------------------------------------------------------ which boundaries cross


@pytest.mark.cases(3)
@pytest.mark.slow
@pytest.mark.parametrize("software", ["pytorch-fsdp", "nanotron"])  # stages held up by transfers, or not
@pytest.mark.parametrize("strategy", MIXED)
def test_a_pipeline_over_two_nodes_feels_the_network_between_them(strategy, software):
    """Although its neighbours share nodes."""
    assert step(strategy, "0.01 GB/s", software) > 1.2 * step(strategy, "50 GB/s", software)


@pytest.mark.cases(1)
@pytest.mark.parametrize("task", ["forward", "prefill", "decode"])
def test_passes_forward_alone_feel_it_too(task):
    assert step("tp4-pp4", "0.001 GB/s", task=task, prompt=448, output=64) > 1.2 * step(
        "tp4-pp4", "50 GB/s", task=task, prompt=448, output=64
    )


@pytest.mark.parametrize(("strategy", "intra", "inter"), [("tp4-pp4", 2, 1), ("tp2-pp8", 6, 1), ("tp8-pp2", 0, 1), ("tp4-pp4-v2", 4, 3)])
def test_transfers_are_counted_by_scope(strategy, intra, inter):
    """There and back for each of 32 microbatches and rank; back to the first stage where chunks are interleaved."""
    ranks = int(strategy[2])
    assert messages(events(scenario(strategy)), "send_recv") == {
        scope: 2 * 32 * ranks * often for scope, often in (("intra", intra), ("inter", inter)) if often
    }


def test_timelines_name_transfers_by_scope():
    found = timeline(scenario("tp4-pp4", tied_embeddings=True))
    assert {"intra send_recv", "inter send_recv", "inter all_reduce"} <= set(found.names)


@pytest.mark.parametrize(("text", "intra", "inter"), [(V, 4, 2), (JUMPS, 0, 7)], ids=["v", "jumps"])
def test_chunks_of_a_file_cross_where_they_lie(text, intra, inter, tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(text)
    own = {"tp": 4, "pp": 4, "virtual_stages": 2, "micro_batch": 32, "schedule": str(path)}
    found = messages(events(scenario(own)), "send_recv")
    assert found == {scope: 2 * 4 * often for scope, often in (("intra", intra), ("inter", inter)) if often}
    assert timeline(scenario(own)).total == pytest.approx(step(own), rel=1e-9)


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "nodes"), [("tp2-pp4", 1), ("tp8-pp2", 2), ("pp2-dp8", 2), ("tp8-pp2-v2", 2)])
def test_where_stages_lie_alike_all_transfers_do(strategy, nodes):
    """All in one node, or each in nodes of its own."""
    found = events(scenario(strategy, nodes=nodes))
    assert set(messages(found, "send_recv")) == {"inter" if nodes > 1 else "intra"}
    assert (step(strategy, "5 GB/s", nodes=nodes) > step(strategy, nodes=nodes)) == (nodes > 1)


# ------------------------------------------------------------------------------------------ the tied table


@pytest.mark.parametrize(
    ("strategy", "nodes", "scope"), [("tp2-pp4", 1, "intra"), ("tp4-pp4", 2, "inter"), ("tp4-pp2", 1, "intra"), ("tp8-pp2", 2, "inter")]
)
def test_the_tied_table_is_summed_over_the_link_between_its_ends(strategy, nodes, scope):
    found = events(scenario(strategy, nodes=nodes, tied_embeddings=True))
    assert messages(found, "all_reduce") == {scope: int(strategy[2])}


def test_ends_on_two_nodes_sum_slower_than_ends_on_one():
    """What tying the table adds to a step of plans that differ only in the order of their ranks."""
    plans = [{"tp": 4, "pp": 2, "dp": 2, "placement": placement} for placement in (["tp", "pp", "dp"], ["tp", "dp", "pp"])]
    near, far = ({tied: step(plan, tied_embeddings=tied) for tied in (True, False)} for plan in plans)
    assert near[True] - near[False] < 0.5 * (far[True] - far[False])


# ------------------------------------------------------------------------------------------ other ways to the same


@pytest.mark.slow
def test_plans_evaluated_together_are_each_alone():
    found = [*MIXED, "dp16", "tp8-pp2", "tp2-dp8", {"tp": 2, "pp": 4, "dp": 2, "placement": ["pp", "tp", "dp"]}]
    together = evaluate(scenario("dp16", tied_embeddings=True), {"strategy": found}).step_time
    np.testing.assert_allclose(together, [step(strategy, tied_embeddings=True) for strategy in found], rtol=1e-9)


@pytest.mark.cases(15)
@pytest.mark.slow
@pytest.mark.parametrize("software", ["pytorch-fsdp", "nanotron"])
@pytest.mark.parametrize("placement", [["pp", "tp", "dp"], ["tp", "pp", "dp"], ["dp", "pp", "tp"]], ids="-".join)
@pytest.mark.parametrize("options", [{}, {"virtual_stages": 2}, {"schedule": "chimera"}, {"schedule": "zb-h1"}], ids=str)
def test_timelines_are_the_predictions(placement, options, software):
    given = scenario({"tp": 2, "pp": 4, "dp": 2, "placement": placement, **options}, "1 GB/s", software, tied_embeddings=True)
    assert timeline(given).total == pytest.approx(crossflow.predict(given).step_time, rel=1e-9)


def test_a_profile_replaces_transfers_of_its_scope(tmp_path):
    """Transfers between nodes take ten times as long: twice for each microbatch at most."""
    path, plain = tmp_path / "profile.csv", scenario("tp4-pp4")
    (sent,) = (e for e in events(plain).events if (e.op, e.scope) == ("send_recv", "inter"))
    row = f"{sent.op},{sent.shape},,,2,%s,{10 * sent.time},0,\n"
    path.write_text("op,shape,dtype,device,ranks,scope,time,spread,count\n" + row % "inter")
    measured = step("tp4-pp4", profile=path)
    assert 0 < measured - crossflow.predict(plain).step_time <= 2 * 32 * 9 * sent.time
    path.write_text("op,shape,dtype,device,ranks,scope,time,spread,count\n" + row % "intra")
    assert step("tp4-pp4", profile=path) > measured


# ------------------------------------------------------------------------------------------ other wires


@pytest.mark.cases(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    "template", ["dgx-1", "mi300x-node", "gcp-a2-megagpu-16g", "a40-node", "a100-pcie-pairwise", "gaudi2-node", "gb200-nvl72"]
)
def test_every_fabric_has_both_kinds_of_boundaries(template):
    """Four stages on two nodes: two boundaries inside a node, which do not feel the network, and one between them."""
    system = resolve(Document(file="", data={"template": template}))[0]
    data, wire = system.devices_per_node // 2, "infiniband" if system.network.inter.fabric == "none" else None
    size = {"global_batch": 4 * data, "dtype": "fp16", "template": template, "wire": wire}
    plain, slow = (
        {event.scope: event for event in events(scenario(f"pp4-dp{data}", inter, **size)).events if event.op == "send_recv"}
        for inter in ("12.5 GB/s" if wire else None, "10 MB/s")
    )
    assert plain["intra"].count == 2 * plain["inter"].count
    assert plain["intra"].time == slow["intra"].time < plain["inter"].time < slow["inter"].time


@pytest.mark.parametrize("kind", ["ring", "mesh2d", "torus2d", "torus3d", "switch", "fully-connected"])
@pytest.mark.parametrize("shards", [(0, 1), (0, 7), (1, 4)])
def test_hops_between_any_two_stages_are_those_of_the_longest_route(kind, shards):
    network = Network(package=Topology(kind="switch", nodes=2), cluster=Topology(kind=kind, nodes=16))
    placed = place({"tp": 4, "pp": 8}, network)
    network, where = placed.network, devices(placed)  # tori may have been turned
    ends = [(int(where[rank + 4 * shards[0]]) // 2, int(where[rank + 4 * shards[1]]) // 2) for rank in range(4)]
    found = pair_route(placed, "pp", shards, inside=False)
    assert found.cluster_hops >= max(hops(network.cluster, *pair) for pair in ends)
    if shards != (0, 1):
        assert found.cluster_hops == max(hops(network.cluster, *pair) for pair in ends)
    assert (found.size, found.package_size, found.crosses, found.package_sharing) == (2, 1, True, 0.0)


def test_interleaved_chunks_go_a_long_way_back_on_a_mesh_and_one_hop_on_a_torus():
    """From the last stage to the first, of chips in a row whose links are slow to begin."""
    times = {}
    for kind in ("mesh2d", "torus2d"):
        system = {"template": "tpu-v4-pod", "devices": 8, "network": {"intra": {"topology": kind, "shape": [8, 1], "latency": "1 ms"}}}
        given = {"system": system, "workload": {**GPT, "global_batch": 8}, "software": "pytorch-fsdp", "strategy": "pp8-v2"}
        times[kind] = crossflow.predict(crossflow.from_dict(given)).step_time
    assert times["mesh2d"] > times["torus2d"] + 8 * 6e-3
