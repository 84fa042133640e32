"""What is read from traces and measured tables, worked out by hand: names and shapes, where a step goes, conditions of rows."""

import tarfile
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.integrate import trapezoid
from scipy.stats import lognorm

import crossflow
from crossflow.base.files import Document
from crossflow.evidence.calibration.calibrate import FITTED, MEASURED, WRITTEN, ScoredRows, _one_curve_each
from crossflow.evidence.calibration.learned import _numbers, _row_of
from crossflow.evidence.calibration.measurements import REUSE, MeasuredCollective, MeasuredKernels, MeasuredProducts, _lookup
from crossflow.evidence.calibration.parameters import DEVICE, parameters
from crossflow.evidence.replay.breakdown import RankShare, RankWorks, mean_shares, share_of
from crossflow.evidence.replay.clocks import _ends
from crossflow.evidence.replay.edges import OVERHEAD_KINDS, HostPieces
from crossflow.evidence.replay.kernels import _broadcast
from crossflow.evidence.replay.kineto import KERNEL
from crossflow.evidence.replay.overheads import overheads_of
from crossflow.evidence.validation.kernels_experts import _exchange_times, read_exchanges
from crossflow.evidence.validation.post_training import CV, _uncut_mean
from crossflow.evidence.validation.power import NODES, _node_watts, _training_runs
from crossflow.evidence.validation.tables import collective_times, device_architecture, fabrics, read_rows, shipped
from crossflow.hardware.architecture.system import resolve
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


@pytest.mark.parametrize("mean", [500.0, 4000.0, 9000.0, 14000.0])
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


def traced(owner, kind, op, length, names, *, source="a.json", edges=4):
    """A graph with such segments of the host."""
    pieces = HostPieces(owner=np.array(owner), kind=np.array(kind), op=np.array(op), length=np.array(length), names=names)
    return SimpleNamespace(pieces=pieces, traces=[SimpleNamespace(source=source)], host=np.array([9.0, 9.0, 9.0, 7.0])[:edges])


def test_overheads_of_a_host_by_hand():
    """Two traces that number their operations in other orders: mean, spread and number of each operation, and of each kind."""
    first = traced([0, 0, 1, 2], [0, 1, 0, 0], [0, 0, 1, 0], [1.0, 5.0, 4.0, 3.0], ("add", "mul"))
    other = traced([0, 1], [0, 1], [1, 0], [5.0, 9.0], ("mul", "add"), source="b.json", edges=2)
    found, (t1, t2) = overheads_of([first, other], "node"), OVERHEAD_KINDS[:2]
    assert found.rows == {
        (t1, ""): (3.25, pytest.approx(np.sqrt(2.1875)), 4),  # 1, 3, 4 and 5
        (t1, "add"): (3.0, pytest.approx(np.sqrt(8 / 3)), 3), (t1, "mul"): (4.0, 0.0, 1),
        (t2, ""): (7.0, 2.0, 2), (t2, "add"): (5.0, 0.0, 1), (t2, "mul"): (9.0, 0.0, 1),
    }  # fmt: skip
    assert (found.host, found.sources) == ("node", ("a.json", "b.json"))
    assert found.host_times(first).tolist() == [3.0 + 5.0, 4.0, 3.0, 7.0]  # the last edge has none, and keeps what it took
    assert found.seen(first) == 1.0
    assert [found.mean(*key) for key in ((t1, "add"), (t1, "div"), (OVERHEAD_KINDS[2], "add"))] == [3.0, 3.25, 5e-6]
    left = overheads_of([first, other], skip=lambda graph: np.arange(len(graph.host)) == 0)
    assert left.rows == {(t1, ""): (3.5, 0.5, 2), (t1, "add"): (3.0, 0.0, 1), (t1, "mul"): (4.0, 0.0, 1), (t2, ""): (9.0, 0.0, 1),
        (t2, "mul"): (9.0, 0.0, 1)}  # fmt: skip
    assert left.seen(first) == 0.75  # but for add of the second kind
    assert left.host_times(first).tolist() == [3.0 + 9.0, 4.0, 3.0, 7.0]


def test_a_graph_without_segments_of_the_host_is_wholly_seen():
    nothing = overheads_of([])
    none = traced(np.zeros(0, dtype=int), np.zeros(0, dtype=int), np.zeros(0, dtype=int), [], ())
    assert (nothing.rows, nothing.seen(none), nothing.host_times(none).tolist()) == ({}, 1.0, [9.0, 9.0, 9.0, 7.0])


def test_where_a_step_of_a_rank_goes_by_hand():
    """20 s: kernels 0 to 0.5, 1 to 6, 15 to 16 and 18 to 20, a copy that adds 6 to 8, a collective from 7 to 12 whose last rank comes at 9.
    The host launched late what begins at 1 and at 18; from 12 to 15 the device has nothing to do for other reasons.
    """
    copy = KERNEL + 1
    rows = [  # begin, end, when the last rank came, kind, whether a collective, whether launched late
        (-9, 0, -9, KERNEL, False, True), (-3, 0.5, -3, KERNEL, False, True), (1, 4, 1, KERNEL, False, True),
        (3, 6, 3, KERNEL, False, True), (5, 8, 5, copy, False, False), (7, 12, 9, KERNEL, True, False), (15, 16, 15, KERNEL, False, False),
        (18, 25, 18, KERNEL, False, True), (20, 30, 20, KERNEL, False, True),
    ]  # fmt: skip
    starts, ends, come, kind, collective, late = map(np.array, zip(*rows, strict=True))
    found = share_of(3, RankWorks(starts=starts, ends=ends, come=come, kind=kind, collective=collective, late=late), 0.0, 20.0)
    assert (found.rank, found.time) == (3, 20.0)
    assert found.parts == {"busy": 8.5, "copies": 2.0, "exposed_communication": 3.0, "waiting": 1.0, "host": 2.5, "idle": 3.0}
    still = RankWorks(starts=starts[:1], ends=ends[:1], come=come[:1], kind=kind[:1], collective=collective[:1], late=late[:1])
    nothing = share_of(0, still, 0.0, 20.0).parts  # what ended before: the host has the whole step
    assert nothing == {"busy": 0.0, "copies": 0.0, "exposed_communication": 0.0, "waiting": 0.0, "host": 20.0, "idle": 0.0}
    mean = mean_shares([found, RankShare(rank=3, time=10.0, parts=dict.fromkeys(found.parts, 1.0)), share_of(1, still, 0.0, 4.0)])
    assert [(one.rank, one.time, one.parts["busy"], one.parts["host"]) for one in mean] == [(3, 15.0, 4.75, 1.75), (1, 4.0, 0.0, 4.0)]


# ------------------------------------------------------------------------------------------ rows that a system is calibrated to


def curve(collective, ranks, per_node, *, curved=True):
    rows = MeasuredCollective(collective=collective, ranks=ranks, ranks_per_node=per_node, size=np.ones(1), time=np.ones(1))
    laws = {FITTED: np.array([2.0]), MEASURED: np.array([3.0]), WRITTEN: np.array([3.0])}
    return ScoredRows(rows=rows, held_out=np.array([True]), predicted=laws, curve=None, curved=curved)


def test_of_curves_between_nodes_that_of_the_fullest_nodes_is_kept():
    """Of the same collective among as many ranks; inside a node nothing is shared. What has no curve hides none."""
    hidden = [curve("all_reduce", 16, 4), curve("all_reduce", 16, 2)]
    kept = [
        curve("all_reduce", 16, 8), curve("all_reduce", 8, 8), curve("all_reduce", 8, 4), curve("all_gather", 16, 4),
        curve("all_reduce", 32, 4), curve("broadcast", 16, 4),
    ]  # fmt: skip
    found = _one_curve_each([*hidden, *kept, curve("broadcast", 16, 8, curved=False)])
    assert [one.curved for one in found] == [False] * 2 + [True] * 6 + [False]
    assert [one.predicted[WRITTEN][0] for one in found[:3]] == [2.0, 2.0, 3.0]


def looked_up(**more):
    row = {"part": "forward", "rows": "900", "width": "8", "samples": "4", "pooling": "2", "time_us": "5"}
    return _lookup({**row, **{name: str(value) for name, value in more.items()}}, 2)[1]


def test_reuse_factors_may_be_counts_or_shares():
    """Half of the look-ups are of rows that are hit once, half of rows hit twice: three rows for four look-ups."""
    (_, one, kernel), (_, other, same) = (looked_up(**dict.fromkeys(REUSE, 0) | dict.fromkeys(REUSE[:2], half)) for half in (0.5, 7))
    assert (one, kernel) == (other, same)
    assert kernel.distinct == pytest.approx(0.75)
    with pytest.raises(ValueError, match="expected 17 shares of the look-ups"):
        looked_up(**dict.fromkeys(REUSE, 1) | {REUSE[3]: -1e-9})
    with pytest.raises(ValueError, match="expected 17 shares of the look-ups"):
        looked_up(**dict.fromkeys(REUSE, 0))


def test_look_ups_of_other_rows_are_of_another_shape():
    shapes = {looked_up(**more)[1] for more in ({}, {"distinct": 0.5}, {"distinct": 0.25}, {"tables": 3}, {"dtype": "fp16"}, {"width": 9})}
    assert len(shapes) == 6


@pytest.mark.parametrize("name", ["tpu-v4", "a100-80gb"])
def test_rates_of_levels_are_fitted_around_those_of_the_datasheet(name):
    """From a tenth to three times, where caches have no parameters of their own; shares stay shares."""
    spec = resolve(Document(file="test", data={"template": name}))[0]
    bounds = {one.name: (one.low, one.high, one.value) for one in parameters(spec, DEVICE)}
    rates = [(low / value, high / value) for path, (low, high, value) in bounds.items() if path.endswith(".bandwidth")]
    assert rates == [pytest.approx((0.1, 3.0))] * len(rates)
    assert bool(rates) == (spec.execution.tiles is None)
    assert bounds["memory_utilisation"][:2] == (0.01, 1.0)
    assert not [path for path in bounds if path.startswith("levels.memory.")]


def test_events_are_asked_of_what_was_learned_as_the_rows_that_measure_them():
    """Nodes of 8: ranks in a node are all of it; 16 across are two full ones, and 4 across leave open which nodes they share."""
    product = _row_of(("gemm", "64x32x16", "fp16", 1, ""), 8)
    assert (type(product), product.dtype, product.sizes[:, 0].tolist()) == (MeasuredProducts, "fp16", [64, 32, 16, 1])
    inside, across = (_row_of(("all_reduce", "1024 B", "", *group), 8) for group in ((4, "intra"), (16, "inter")))
    assert (inside.collective, inside.ranks, inside.ranks_per_node, inside.size[0]) == ("all_reduce", 4, 4, 1024)
    assert (across.ranks, across.ranks_per_node) == (16, 8)
    assert [_row_of(("all_reduce", "1024 B", "", ranks, "inter"), 8) is None for ranks in (4, 8, 9)] == [True, True, False]
    other = _row_of(("pass", "1 gelu of 8 B", "", 1, ""), 8)
    assert (type(other), other.op, other.shapes) == (MeasuredKernels, "pass", ("1 gelu of 8 B",))


def test_numbers_that_a_shape_lacks_are_one():
    rows = MeasuredKernels(op="lookup", dtype="", shapes=("4 x 2 of 3", "5", "6 x 7"), time=np.ones(3), order=np.ones(3))
    assert _numbers(rows).tolist() == [[4, 5, 6], [2, 1, 7], [3, 1, 1]]
