"""What is read from traces and measured tables, worked out by hand: names and shapes, where a step goes, conditions of rows."""

import tarfile
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.integrate import trapezoid
from scipy.stats import lognorm

import crossflow
from crossflow.evidence.replay.clocks import _ends
from crossflow.evidence.replay.kernels import _broadcast
from crossflow.evidence.validation.kernels_experts import _exchange_times, read_exchanges
from crossflow.evidence.validation.post_training import CV, _uncut_mean
from crossflow.evidence.validation.power import NODES, _node_watts, _training_runs
from crossflow.evidence.validation.tables import collective_times, device_architecture, fabrics, read_rows, shipped
from tests.test_crowd import job


def test_collectives_whose_ends_tell_the_time_are_known_by_either_name():
    """By the kernel of NCCL, or by the collective's own name; a broadcast ends on one rank before it does on another."""
    names = ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", "all_gather", "broadcast", "ncclKernel_Broadcast_RING_LL_Sum_int8_t")
    matched = SimpleNamespace(ranks=np.array([0, 1]), places=np.array([[0, 1, 2, 3], [3, 2, 1, 0]]), names=names)
    ranks = [SimpleNamespace(end=np.array([1.0, 2.0, 3.0, 4.0])), SimpleNamespace(end=np.array([10.0, 20.0, 30.0, 40.0]))]
    found = _ends(ranks, [matched])
    assert found.rank.tolist() == [0, 0, 1, 1]
    assert found.event.tolist() == [0, 1, 0, 1]
    assert found.time.tolist() == [1.0, 2.0, 40.0, 30.0]


@pytest.mark.parametrize("shapes", [[(3, 1), (4,)], [(0,), (1,)], [(2, 0, 3), (1, 1)], [(), (5,)], [(1, 7), (6, 1), (1,)], [(5,), (1, 5)]])
def test_shapes_are_broadcast_as_numpy_does(shapes):
    assert _broadcast(shapes) == np.broadcast_shapes(*shapes)


@pytest.mark.parametrize("mean", [500.0, 4000.0, 9000.0])
def test_lengths_that_are_cut_have_the_mean_that_is_said(mean):
    """The mean of the least of a length and 16,384, by the density of lognormal lengths: cv of 1 has a spread of sqrt(ln 2)."""
    most, spread = 16384, np.sqrt(np.log(1.0 + CV**2))
    law = lognorm(spread, scale=_uncut_mean(mean, most) / np.exp(spread**2 / 2.0))
    x = np.linspace(0.0, most, 400_001)
    assert trapezoid(x * law.pdf(x), x) + most * law.sf(most) == pytest.approx(mean, rel=1e-5)


def test_ranks_in_an_archive_stand_for_each_other_as_those_of_a_folder_do(tmp_path):
    job(tmp_path / "job")
    with tarfile.open(tmp_path / "job.tar.gz", "w:gz") as archive:
        for path in sorted((tmp_path / "job").iterdir()):
            archive.add(path, arcname=path.name)
    folder, packed = (crossflow.trace(path, whole=6) for path in (tmp_path / "job", tmp_path / "job.tar.gz"))
    assert packed.step_time == folder.step_time
    assert [one.rank for one in packed.graph.traces] == [one.rank for one in folder.graph.traces]


def test_one_rank_alone_sends_nothing():
    fabric = fabrics(shipped() / "systems.csv")[0]["dgx-a100"]
    size = np.array([[1e6]])
    assert np.all(collective_times(fabric, "all_reduce", 1, 1, size) == 0.0)
    assert np.all(collective_times(fabric, "all_reduce", 8, 8, size) > 0.0)
    for ranks, per_node in ((0, 1), (2, 0), (16, 16)):
        assert collective_times(fabric, "all_reduce", ranks, per_node, size) == (
            f"{ranks} ranks, {per_node} a node, do not fit nodes of 8 devices"
        )


def test_behind_the_power_supplies_a_node_draws_less_by_what_they_lose():
    runs = _training_runs(shipped())
    row = next(
        one for one in read_rows(shipped() / "power.csv", NODES) if one["measured"] == "ac" and one["benchmark"] == "llama2_70b_lora"
    )
    at_the_wall, behind = (_node_watts({**row, "measured": where}, 30.0, runs) for where in ("ac", "dc"))
    supply = crossflow.load({"system": "dgx-h100", "workload": "llama3-8b", "strategy": "tp8"}).system.node_load.supply[0]
    assert 0.8 < supply < 1.0
    assert behind / at_the_wall == pytest.approx(supply, rel=1e-12)


@pytest.mark.parametrize(("op", "method", "told"), [("dispatch", "normal", 1), ("combine", "normal", 0), ("dispatch", "low_latency", 0)])
def test_normal_dispatches_of_some_sources_hold_what_ranks_tell_each_other(op, method, told):
    """Nothing else differs between two sources that measured the same kernels."""
    found = read_exchanges(shipped())
    place = next(i for i, row in enumerate(found.rows) if row["source"] == "aic-deepep-2025")
    i = next(i for i, (at, what) in enumerate(zip(found.place, found.op, strict=True)) if at == place and what == op)
    exchange, row, _ = found.some(np.array([i]))
    with_it, without = (
        _exchange_times(exchange, {**row, "method": method, "source": name}, op) for name in ("aic-deepep-2025", "aic-deepep")
    )
    library = device_architecture(row["device"]).execution.libraries.exchange["deepep"]
    assert library.notify[0] > 0
    assert np.all(without > 0)
    assert with_it - without == pytest.approx(told * library.notify)


def test_shares_of_a_predicted_step_are_all_of_it(tmp_path):
    """Of a timeline that is written and read again: what computes, is exchanged, waits, is for the host and idles, on every rank."""
    given = {
        "system": {"template": "dgx-h100", "nodes": 1}, "workload": {"model": "llama3-8b", "layers": 2, "global_batch": 8, "sequence": 256},
        "strategy": "tp2-pp2-dp2", "software": "pytorch-fsdp",
    }  # fmt: skip
    timeline = crossflow.from_dict(given).timeline()
    crossflow.write_timeline(timeline, tmp_path / "step.json")
    found = crossflow.trace(tmp_path / "step.json").ranks
    assert len(found) == 2
    for one in found:
        assert one.time == pytest.approx(timeline.total, rel=1e-6)
        assert sum(one.parts.values()) == pytest.approx(one.time, rel=1e-9)
        assert min(one.parts["busy"], one.parts["exposed_communication"], one.parts["host"], one.parts["idle"]) > 0.0
