"""Advice on traced steps: an ill that is planted comes first with its size, a step without ills gets none, gains are those of replays."""

import json
from pathlib import Path

import numpy as np
import pytest
from test_execution_traces import execution, node, tensor

import crossflow
from crossflow.__main__ import main
from crossflow.base.errors import CrossflowError
from crossflow.evidence.replay.advice import CURES, advise, ills_of
from crossflow.evidence.replay.graph import graph_of
from crossflow.evidence.replay.ills import TracedSteps, uncovered
from crossflow.evidence.replay.kernels import parts_of
from crossflow.evidence.replay.kineto import read_traces
from crossflow.evidence.replay.modelled import device_architecture, part_times
from crossflow.evidence.replay.tensors import TracedOperation, TracedTensor
from crossflow.program.kernels import Pass

ROOT = Path(__file__).parents[1]
DLRM = ROOT / "docs" / "examples" / "traces" / "dlrm_8xv100.tar.gz"  # see `source` in its files
TRACES = ROOT / "tests" / "data" / "traces"
A100 = TRACES / "train_rank3_step_kineto.json.gz"
DEVICE, TEMPLATE = "NVIDIA A100-SXM4-80GB", "a100-80gb"
LATENCY, GAP = 8.0, 1.0  # of a launch, and between two kernels [us]


class Step:
    """A step of one rank as it is written down: a host that launches, streams that run one kernel after the other. All times in us."""

    def __init__(self, rank=0, world=1, begin=0.0):
        self.rank, self.world, self.began, self.now, self.number = rank, world, begin, begin, 0
        self.free = {}  # when each stream has done what it was given
        self.events = []

    def add(self, category, name, thread, start, length, pid=1, **args):
        self.events.append({"ph": "X", "cat": category, "name": name, "pid": pid, "tid": thread, "ts": start, "dur": length, "args": args})

    def host(self, length, name="", category="user_annotation"):
        """The host does something else."""
        if name:
            self.add(category, name, 1, self.now, length)
        self.now += length

    def launch(self, time, name="gemm", op="aten::op", stream=7, spent=10.0, after=0.0, call="cudaLaunchKernel", kind="kernel", **args):
        """An operation of so much host time launches a kernel, which begins no earlier than some moment; when it ends."""
        self.number += 1
        sizes = {key: args.pop(key) for key in ("Input Dims", "Input type") if key in args}
        blocks = args.pop("blocks", False)
        start = max(self.now + 2.0 + LATENCY, self.free.get(stream, 0.0) + GAP, after)
        returned = start + time + 5.0 if blocks else self.now + 7.0
        self.add("cpu_op", op, 1, self.now, max(spent, returned - self.now), **sizes)
        self.add("cuda_runtime", call, 1, self.now + 2.0, returned - self.now - 2.0, correlation=self.number)
        self.add(kind, name, stream, start, time, pid=0, correlation=self.number, **args)
        self.free[stream] = start + time
        self.now = returned if blocks else self.now + spent
        return start + time

    def waits_for_streams(self):
        """The stream of the next kernel waits for all others."""
        self.add("cuda_runtime", "cudaStreamWaitEvent", 1, self.now, 1.0, correlation=10_000 + self.number)
        self.now += 2.0

    def wait(self, name="cudaDeviceSynchronize"):
        """The host waits for the device."""
        self.number += 1
        until = max([self.now, *self.free.values()]) + 5.0
        self.add("cuda_runtime", name, 1, self.now, until - self.now, correlation=self.number)
        self.now = until

    def write(self, folder, device=""):
        self.wait()
        self.now += 5.0
        self.add("user_annotation", "ProfilerStep#1", 1, self.began, self.now - self.began)
        head = {"distributedInfo": {"rank": self.rank, "world_size": self.world}, "deviceProperties": [{"id": 0, "name": device}]}
        path = folder / f"rank{self.rank}.json"
        path.write_text(json.dumps({**head, "traceEvents": self.events}))
        return path


def found(paths):
    return crossflow.trace(paths).advice


def healthy(advice):
    return all(one.gain < 0.01 * advice.step_time for one in advice.findings)


def first(paths, kind, gain):
    """The first finding has a kind and a gain, in us, to 1 %."""
    one = found(paths).findings[0]
    assert one.kind == kind
    assert one.gain == pytest.approx(1e-6 * gain, rel=0.01)
    return one


def sized(*shapes):
    return {"Input Dims": [list(shape) for shape in shapes], "Input type": ["c10::Half"] * len(shapes)}


def modelled(name, *shapes):
    """What the model says of an operation. [us]"""
    args = tuple(TracedTensor(shape, "c10::half", 2) for shape in shapes)
    return 1e6 * float(part_times(parts_of(name, TracedOperation(args)), device_architecture(TEMPLATE))[0])


# ------------------------------------------------------------------------------------------ planted ills


def test_a_step_without_ills_gets_no_advice(tmp_path):
    step = Step()
    for _ in range(20):
        step.launch(modelled("aten::mm", (2048, 2048), (2048, 2048)), op="aten::mm", **sized((2048, 2048), (2048, 2048)))
        step.host(40.0)  # the host runs ahead, and is done a little before the device
    advice = found(step.write(tmp_path, DEVICE))
    assert healthy(advice)
    assert advice.together > 0.99 * advice.step_time


def test_a_slow_kernel_comes_first(tmp_path):
    step, shape = Step(), (4096, 4096)
    usual = modelled("aten::mm", shape, shape)
    for i in range(10):
        step.launch(usual * (3.0 if i == 6 else 1.0), op="aten::mm", **sized(shape, shape))
    one = first(step.write(tmp_path, DEVICE), "slow_kernel", 2.0 * usual)
    assert one.trust == "unknown"
    assert one.proofs[0].said == "3.0 times what the model of a100-80gb says"
    assert one.proofs[0].count == 1


def test_a_kernel_of_a_kind_that_is_not_modelled_so_well_is_slow_by_what_others_of_its_kind_take(tmp_path):
    """Sums of rows that usually take twice what the model says, and one that takes six times as long as it says."""
    step, shape = Step(), (4096, 4096)
    usual = modelled("aten::sum", shape)
    for i in range(10):
        step.launch(usual * (6.0 if i == 6 else 2.0), name="reduce", op="aten::sum", **sized(shape))
        step.launch(500.0, op="aten::own")
    one = first(step.write(tmp_path, DEVICE), "slow_kernel", 4.0 * usual)
    assert one.proofs[0].said == "6.0 times what the model of a100-80gb says; the usual kernel of its kind 2.0 times"


def test_passes_that_could_be_one_come_first(tmp_path):
    step, shape = Step(), (4096, 8192)
    chain = [("aten::mul", 2), ("aten::add", 2), ("aten::sigmoid", 1)]
    times = [modelled(name, *[shape] * number) for name, number in chain]
    for _ in range(5):
        for (name, number), time in zip(chain, times, strict=True):
            step.launch(time, name="elementwise", op=name, **sized(*[shape] * number))
        step.launch(500.0, op="aten::own")
    size = 2.0 * 4096 * 8192
    (part,) = parts_of("aten::sigmoid", TracedOperation((TracedTensor(shape, "c10::half", 2),)))
    whole = type(part)(kind=part.kind, kernels=(Pass(moved=4.0 * size, flops=3.0 * 4096 * 8192),))  # three are read, and one is written
    fused = 1e6 * float(part_times([whole], device_architecture(TEMPLATE))[0])
    one = first(step.write(tmp_path, DEVICE), "unfused_passes", 5 * (sum(times) - fused))
    assert one.proofs[0].said == f"{5 * 4 * size / 1e6:.3g} MB not written and read again; the chains are found by the sizes of tensors"


@pytest.mark.parametrize(("before", "gap"), [(12.0, 1.0), (20.0, 1.75)])
def test_gaps_are_those_between_kernels_that_were_called_long_before_they_could_start(tmp_path, before, gap):
    """Three kernels 1 us behind others, one 4 us behind that was called so long before, and one that something else held for 50 us.

    Called less than two launches of 8 us before the device is free, a kernel may have waited for its launch as well.
    """
    step = Step()
    for _ in range(4):  # the device waits for the host
        step.launch(20.0)
        step.host(100.0)
    step.launch(200.0)
    for _ in range(3):
        ends = step.launch(200.0)
    step.host(ends - before - 2.0 - step.now)
    ends = step.launch(200.0, after=ends + 4.0)
    step.launch(20.0, after=ends + 50.0)
    (edges,) = graph_of(read_traces([step.write(tmp_path)])).edges
    assert edges.launch[0] == pytest.approx(1e-6 * LATENCY)
    assert edges.gap[0] == pytest.approx(1e-6 * gap)


@pytest.mark.parametrize("later", [False, True])
def test_what_lies_between_two_passes_is_written_all_the_same_where_others_read_it_later(tmp_path, later):
    """A product in place, which reads what it writes, and one that reads it: fused, its result is neither written nor read again."""
    step, nodes = Step(), []
    for i in range(5):
        made, last = tensor(2 * i, 4096, 4096), tensor(2 * i + 1, 4096, 4096)
        neg = [("aten::neg", made, last)] if later else []
        for name, *sides in [("aten::mul_", made, made), ("aten::relu", made, last), *neg, ("aten::own",)]:
            step.launch(500.0 if name == "aten::own" else 70.0, name="elementwise", op=name)
            step.host(1.0)
            nodes.append(node(len(nodes) + 2, name, *([side] for side in sides)))
    for number, event in enumerate(event for event in step.events if event["cat"] == "cpu_op"):
        event["args"]["External id"] = number + 2
    path = step.write(tmp_path, DEVICE)
    one = crossflow.trace(path, execution=[execution(tmp_path, *nodes)]).advice.findings[0]
    assert one.kind == "unfused_passes"
    assert one.proofs[0].said == f"{5 * (1 if later else 2) * 4 * 4096**2 / 1e6:.3g} MB not written and read again"


def test_chains_of_an_optimizer_are_told_to_be_fused(tmp_path):
    step, shape = Step(), (4096, 4096)
    begin = step.now
    for name, number in [("aten::mul_", 1), ("aten::add_", 2), ("aten::sqrt", 1)] * 4:
        step.launch(modelled(name, *[shape] * number), op=name, **sized(*[shape] * number))
    step.add("user_annotation", "Optimizer.step#Adam.step", 1, begin, step.now - begin)
    advice = found(step.write(tmp_path, DEVICE))
    assert advice.findings[0].kind == "unfused_optimizer"
    assert "fused=True" in advice.findings[0].cure.switches


@pytest.mark.parametrize(("computing", "gain"), [(500.0, 2000.0), (100.0, 10 * 100.0)])
def test_an_exposed_collective_comes_first(tmp_path, computing, gain):
    """Perfect overlap hides it, or as much as there is computing."""
    step = Step()
    for _ in range(5):
        ready = step.launch(computing)
    step.launch(2000.0, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL", op="nccl", stream=14, after=ready + GAP)
    step.waits_for_streams()
    step.free[7] = step.free[14]
    for _ in range(5):
        step.launch(computing)
    one = first(step.write(tmp_path), "exposed_all_reduce", gain)
    assert "DDP(bucket_cap_mb=...)" in one.cure.switches


def test_collectives_beside_computing_are_no_ill(tmp_path):
    step = Step()
    ready = step.launch(500.0)
    step.launch(2000.0, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL", op="nccl", stream=14, after=ready + GAP)
    for _ in range(10):
        step.launch(500.0)
    assert healthy(found(step.write(tmp_path)))


def ranks(folder, late=0.0, begins=(0.0, 0.0, 0.0, 0.0)):
    """Four ranks that reduce twice; rank 2 has a kernel that takes longer by so much. [us]"""
    steps = [Step(rank, 4, begin) for rank, begin in enumerate(begins)]
    for slow in (0.0, late):
        for one in steps:
            for i in range(5):
                ready = one.launch(400.0 + (slow if one.rank == 2 and i == 3 else 0.0))
            one.free[14] = ready
        ends = max(one.free[14] for one in steps) + 101.0
        for one in steps:
            start = one.free[14] + GAP
            one.launch(ends - start, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL", op="nccl", stream=14, after=start)
            one.waits_for_streams()
            one.free[7] = ends
    return [one.write(folder) for one in steps]


def test_a_late_rank_comes_first(tmp_path):
    one = first(ranks(tmp_path, late=1500.0), "late_rank", 1500.0)
    assert one.title == "rank 2 comes last to 1 collective"
    assert one.proofs[0].time == pytest.approx(1500e-6, rel=0.01)


def test_ranks_that_begin_apart_come_first(tmp_path):
    one = first(ranks(tmp_path, begins=(0.0, 2000.0, 0.0, 0.0)), "apart", 2000.0)
    assert one.title == "ranks begin the step up to 2 ms apart, rank 1 last"
    assert all(other.kind != "late_rank" for other in found(ranks(tmp_path, begins=(0.0, 2000.0, 0.0, 0.0))).findings)


def test_launches_that_the_device_waits_for_come_first(tmp_path):
    step = Step()
    for _ in range(50):
        step.launch(10.0, spent=50.0)
    before = 50 * 50.0 + 5.0  # the host decides
    after = 2.0 + LATENCY + 50 * 10.0 + 49 * GAP  # kernels follow one another behind the first launch
    one = first(step.write(tmp_path), "launches", before - after)
    assert "torch.cuda.CUDAGraph" in one.cure.switches


def test_a_wait_for_the_device_comes_first(tmp_path):
    step, idle = Step(), []
    for block in range(5):
        for i in range(20):
            done = step.free.get(7, 0.0)
            begun = step.launch(100.0) - 100.0
            idle += [begun - done] if block and not i else []
        step.host(1.0)
        step.wait("cudaStreamSynchronize")
        step.host(300.0)
    behind = 300.0 + 2 * 5.0  # what the host does behind the last wait, which runs beside the device then
    one = first(step.write(tmp_path), "synchronisation", sum(idle) - 4 * GAP + behind)
    assert one.title == "the host waits for the device in cudaStreamSynchronize"


def test_the_last_wait_of_a_step_is_no_ill(tmp_path):
    """The device has to do what was launched, whether the host waits for it or not."""
    step = Step()
    for _ in range(20):
        step.launch(100.0)
    assert healthy(found(step.write(tmp_path)))


@pytest.mark.parametrize(("name", "kind"), [("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "loading"), ("", "busy_host")])
def test_a_host_that_does_something_else_comes_first(tmp_path, name, kind):
    step = Step()
    step.launch(100.0)
    step.wait()
    step.host(3000.0, name)
    for _ in range(30):
        step.launch(100.0)
    advice = found(step.write(tmp_path))
    assert advice.findings[0].kind == kind
    assert len([one for one in advice.findings if one.kind in ("loading", "busy_host")]) == 1
    assert advice.findings[0].gain == pytest.approx(3000e-6, rel=0.01)


def test_memory_that_is_allocated_comes_first(tmp_path):
    step = Step()
    step.launch(100.0)
    step.wait()
    step.add("cuda_runtime", "cudaMalloc", 1, step.now, 2000.0, correlation=5_000)
    step.host(2000.0)
    for _ in range(30):
        step.launch(100.0)
    first(step.write(tmp_path), "allocations", 2000.0)


def test_a_copy_from_pageable_memory_comes_first(tmp_path):
    step = Step()
    for _ in range(3):
        step.launch(1000.0, name="Memcpy HtoD (Pageable -> Device)", op="aten::to", call="cudaMemcpyAsync", kind="gpu_memcpy", blocks=True)
        for _ in range(20):
            step.launch(100.0)
    advice = found(step.write(tmp_path))
    assert advice.findings[0].kind == "copies"
    assert advice.findings[0].gain == pytest.approx(3000e-6, rel=0.03)  # and what the device waits for the host behind each
    assert "pin_memory=True" in advice.findings[0].cure.switches


def test_a_bubble_comes_first(tmp_path):
    step = Step()
    said = {"Collective name": "recv", "In msg nelems": 1000, "dtype": "Float"}
    for i in range(8):
        step.launch(
            950.0 if i % 2 else 50.0, name="ncclDevKernel_SendRecv", op="nccl", stream=20, after=step.free.get(7, 0.0) + GAP, **said
        )
        step.waits_for_streams()
        step.free[7] = step.free[20]
        step.launch(400.0)
    one = first(step.write(tmp_path), "bubble", 4 * 900.0)
    assert "ScheduleInterleaved1F1B" in one.cure.switches


def test_stages_that_hand_on_what_they_computed_lose_their_bubble_alone(tmp_path):
    """The second of two stages waits for the first; without a bubble a step takes what the busier stage has to do."""
    said = {"Collective name": "recv", "In msg nelems": 1000, "dtype": "Float"}
    first_stage, second = Step(0, 2), Step(1, 2)
    for _ in range(6):
        ready = first_stage.launch(500.0)
        sent = first_stage.launch(50.0, name="ncclDevKernel_SendRecv", op="nccl", stream=20, after=ready + GAP, **said)
        first_stage.waits_for_streams()
        first_stage.free[7] = sent
        came = max(second.now + 10.0, second.free.get(7, 0.0) + GAP)
        second.launch(sent - came, name="ncclDevKernel_SendRecv", op="nccl", stream=20, after=came, **said)
        second.waits_for_streams()
        second.free[7] = sent
        second.launch(400.0)
    one = found([each.write(tmp_path) for each in (first_stage, second)]).findings[0]
    assert one.kind == "bubble"
    assert one.gain == pytest.approx(400e-6, rel=0.05)  # the last microbatch of the second stage, which runs beside the first's then


def test_a_trace_without_waits_says_that_the_host_may_wait(tmp_path):
    step = Step()
    step.launch(100.0)
    step.host(3000.0)
    step.launch(100.0)
    step.wait = lambda: None
    (one,) = [one for one in found(step.write(tmp_path)).findings if one.kind == "busy_host"]
    assert one.proofs[0].said == "the trace has no waits of the host for the device, so that it may wait here"


# ------------------------------------------------------------------------------------------ laws on real traces


@pytest.fixture(scope="module", params=[DLRM, A100], ids=["dlrm", "a100"])
def report(request):
    return crossflow.trace(request.param)


@pytest.mark.thorough  # what it runs quicker tests run too
def test_gains_are_those_of_replays(report):
    steps = TracedSteps(graph=report.graph, model=report.model)
    by_title = {ill.title: ill for ill in ills_of(steps)}
    assert len(report.advice.findings) > 3
    for one in report.advice.findings:
        mended = steps.replayed(by_title[one.title].mend)
        assert one.step_time == mended
        assert one.gain == steps.step_time - mended


def test_findings_are_ranked_and_together_bring_no_less_than_one(report):
    gains = [one.gain for one in report.advice.findings]
    assert gains == sorted(gains, reverse=True)
    assert gains[-1] > 1e-3 * report.advice.step_time
    assert gains[0] <= report.advice.gain < report.advice.step_time


def test_the_step_that_is_mended_is_the_one_that_was_measured(report):
    assert report.advice.step_time == pytest.approx(report.measured, rel=0.01)


@pytest.mark.cases(1)
def test_mending_leaves_the_graph_as_it_is(report):
    before = report.graph.time.copy(), report.graph.host.copy(), report.graph.moments.copy()
    advise(report.graph, report.model)
    for one, two in zip(before, (report.graph.time, report.graph.host, report.graph.moments), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.thorough
def test_ranks_of_dlrm_that_begin_together_take_as_long_as_the_slowest_alone():
    """A prototype of another author found 13.4 to 14.3 ms for all ranks starting together."""
    (apart,) = [one for one in crossflow.trace(DLRM).advice.findings if one.kind == "apart"]
    assert apart.step_time == pytest.approx(14.3e-3, rel=0.01)


def test_tensors_of_an_execution_trace_find_chains_without_sizes():
    kineto, execution = TRACES / "dlrm_rank0_kineto.json.gz", TRACES / "dlrm_rank0_et.json.gz"
    report = crossflow.trace(kineto, execution=[execution])
    (ill,) = [ill for ill in ills_of(TracedSteps(graph=report.graph, model=report.model)) if ill.kind == "unfused_passes"]
    assert any("found by the sizes" not in proof.said for proof in ill.proofs)


def test_uncovered_time_is_what_a_fine_grid_counts():
    rng = np.random.default_rng(2)
    spans = np.sort(rng.uniform(0, 100, (20, 2)), axis=1)
    cover = [(10.0, 20.0), (35.0, 36.0), (60.0, 95.0)]
    grid = np.arange(0, 100, 0.001)
    free = ~np.any([(grid >= begin) & (grid < end) for begin, end in cover], axis=0)
    for (begin, end), time in zip(spans, uncovered(spans, cover), strict=True):
        assert time == pytest.approx(((grid >= begin) & (grid < end) & free).sum() * 0.001, abs=0.01)


# ------------------------------------------------------------------------------------------ the command line


@pytest.mark.thorough
def test_the_command_prints_what_python_gives(capsys):
    assert main(["trace", str(A100), "--advise", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["advice"]
    assert data == crossflow.trace(A100).advice.to_dict()
    assert data["together"]["gain_s"] <= data["step_time_s"]
    assert set(data["findings"][0]) == {
        "kind", "title", "time_s", "gain_s", "gain_share", "step_time_s", "trust", "cure", "switches", "evidence"
    }  # fmt: skip


def test_the_page_has_cures_and_what_shows_the_ills(capsys):
    assert main(["trace", str(DLRM), "--advise"]) == 0
    page = capsys.readouterr().out
    for text in ("Why the step is slow", "rank 7 last", "all together bring", "pin_memory=True", "do not add up"):
        assert text in " ".join(page.split()), text


def test_every_kind_has_a_cure_with_switches():
    assert all(cure.text and cure.switches for cure in CURES.values())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--what-if", "compute*0.5"], "--what-if"), (["--on", "dgx-h100"], "--on"), (["--kernels", "model"], "--kernels"),
        (["--compare", str(DLRM)], "--compare"), (["--overheads", "host.json"], "--overheads"),
    ],
)  # fmt: skip
def test_advice_on_a_changed_step_is_refused(capsys, words, said):
    assert main(["trace", str(DLRM), "--advise", *words]) == 2
    assert capsys.readouterr().err == f"crossflow: --advise says why the step is slow as it was measured; leave out {said}\n"


@pytest.mark.thorough
def test_advice_on_changes_is_refused_in_python_too():
    with pytest.raises(CrossflowError, match="advice is of the step as it was measured; leave out the changes"):
        _ = crossflow.trace(DLRM, what_if="compute*0.5").advice


def test_a_trace_without_a_device_has_a_host_alone(tmp_path):
    step = Step()
    step.add("cpu_op", "aten::mm", 1, 0.0, 80.0)
    step.now = 100.0
    (trace,) = read_traces([step.write(tmp_path)])
    assert advise(graph_of([trace]), None).findings == ()
