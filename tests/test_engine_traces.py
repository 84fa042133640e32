"""Traces of inference engines: steps by phase as their annotations say, planted ills of engines with their size, the engines' switches."""

import json

import pytest

import crossflow
from crossflow.__main__ import main
from crossflow.evidence.replay.advice import CURES, ENGINE_CURES
from crossflow.evidence.replay.engines import CAPTURED, SGLANG, VLLM, EngineStep, engine_step
from tests.test_advice import GAP, Step

# What the annotations of steps are is from the sources of the engines; no export of a real run was at hand.
DECODE = {VLLM: "execute_context_0(0)_generation_{0}({0})", SGLANG: "step[DECODE bs={0}]"}
PREFILL = {VLLM: "execute_context_{0}({1})_generation_0(0)", SGLANG: "step[EXTEND bs={0} toks={1}]"}
OVERLAP = {VLLM: "--async-scheduling", SGLANG: "leave out --disable-overlap-schedule"}


class Engine(Step):
    """An engine that runs one step after the other. All times in us."""

    def graph(self, kernels):
        """One call launches all kernels of a captured graph."""
        self.number += 1
        start = max(self.now + 10.0, self.free.get(7, 0.0) + GAP)
        self.add("cuda_runtime", "cudaGraphLaunch", 1, self.now + 2.0, 5.0, correlation=self.number)
        for time in kernels:
            self.add("kernel", "gemm", 7, start, time, pid=0, correlation=self.number)
            start += time + GAP
        self.free[7] = start - GAP
        self.now += 10.0

    def step(self, name, run, between=0.0):
        """A step with its annotation, and what the host does behind it."""
        begin = self.now
        run()
        self.wait("cudaStreamSynchronize")
        self.add("user_annotation", name, 1, begin, self.now - begin)
        self.now += between

    def write(self, folder, device=""):
        head = {"distributedInfo": {"rank": self.rank, "world_size": self.world}, "deviceProperties": [{"id": 0, "name": device}]}
        path = folder / f"worker{self.rank}.pt.trace.json"
        path.write_text(json.dumps({**head, "traceEvents": self.events}))
        return path


def served(engine, between=0.0, batches=(30,) * 6, eager=False, row=5.0):
    """Two steps that read prompts, then one for each batch of requests that writes tokens, whose kernels take longer by the row."""
    found = Engine()

    def read():
        for _ in range(4):
            found.launch(500.0)

    def write(batch):
        padded = EngineStep(engine=engine, phase="decode", requests=batch, rows=batch).padded
        kernels = [100.0 + row * padded / 10.0] * 10
        if eager:
            for time in kernels:
                found.launch(time / 10.0, spent=60.0)
        else:
            found.graph(kernels)

    for _ in range(2):
        found.step(PREFILL[engine].format(2, 512), read, between)
    for batch in batches:
        found.step(DECODE[engine].format(batch), lambda batch=batch: write(batch), between)
    return found


@pytest.mark.parametrize(
    ("name", "phase", "requests", "rows"),
    [
        ("execute_context_0(0)_generation_30(30)", "decode", 30, 30),
        ("execute_context_2(512)_generation_0(0)", "prefill", 2, 512),
        ("execute_context_2(512)_generation_30(60)", "mixed", 32, 572),
        ("execute_7_context_3(sq128sk256sqsq1sqsk1)_generation_2(sq2sk300sqsq1sqsk1)", "mixed", 5, 130),
        ("execute_new_0_cached_12", "decode", 12, 12),
        ("execute_new_3_cached_12", "mixed", 15, 0),
        ("step[DECODE bs=16]", "decode", 16, 16),
        ("step[EXTEND bs=2 toks=107]", "prefill", 2, 107),
        ("step[MIXED bs=4]", "mixed", 4, 0),
    ],
)
def test_annotations_of_steps_are_read(name, phase, requests, rows):
    found = engine_step(name)
    assert (found.phase, found.requests, found.rows) == (phase, requests, rows)
    assert found.engine == (SGLANG if name.startswith("step") else VLLM)


@pytest.mark.parametrize(
    "name", ["ProfilerStep#3", "step 4", "step[IDLE bs=0]", "gpu_model_runner: forward", "execute_context_", "aten::mm"]
)
def test_other_annotations_are_no_steps(name):
    assert engine_step(name) is None


@pytest.mark.parametrize("engine", [VLLM, SGLANG])
def test_a_batch_is_padded_to_the_next_captured_size(engine):
    for rows in range(1, 600):
        padded = EngineStep(engine=engine, phase="decode", requests=rows, rows=rows).padded
        if rows <= max(CAPTURED[engine]):
            assert padded == min(size for size in CAPTURED[engine] if size >= rows)
        else:
            assert padded == rows


@pytest.mark.parametrize("engine", [VLLM, SGLANG])
def test_phases_are_told_apart(tmp_path, engine):
    report = crossflow.trace(served(engine, between=400.0).write(tmp_path))
    decode, prefill = report.phases
    assert (decode.phase, decode.steps, decode.requests, decode.rows, decode.graphs) == ("decode", 6, 30, 30, 1.0)
    assert (prefill.phase, prefill.steps, prefill.rows, prefill.graphs) == ("prefill", 2, 512, 0.0)
    assert decode.padded == pytest.approx(2 / 32)
    assert prefill.between == pytest.approx(400e-6)
    kernels = 10 * (100.0 + 5.0 * 3.2)
    assert decode.parts["busy"] == pytest.approx(1e-6 * kernels, rel=0.01)
    step = 10.0 + kernels + 9 * GAP + 5.0
    assert decode.time == pytest.approx(1e-6 * (step + 400.0 * 5 / 6), rel=0.01)  # nothing follows the last


@pytest.mark.parametrize("engine", [VLLM, SGLANG])
def test_what_an_engine_does_between_steps_has_its_size(tmp_path, engine):
    """It costs as much as the waits that keep the host from running ahead, and both have one cure."""
    advice = crossflow.trace(served(engine, between=900.0).write(tmp_path)).advice
    one, other = sorted(advice.findings[:2], key=lambda each: each.kind)
    assert (one.kind, other.kind) == ("between_steps", "synchronisation")
    assert one.gain == pytest.approx(7 * 900e-6 / 8, rel=0.01)  # of eight steps
    assert OVERLAP[engine] in one.cure.switches
    assert OVERLAP[engine] in other.cure.switches
    assert all(other.kind != "busy_host" for other in advice.findings)


def test_decoding_without_graphs_waits_for_launches(tmp_path):
    report = crossflow.trace(served(VLLM, eager=True, batches=(32,) * 12).write(tmp_path))
    assert report.phases[0].graphs == 0.0
    one = next(each for each in report.advice.findings if each.kind == "launches")
    assert "leave out --enforce-eager" in one.cure.switches


def test_padding_costs_what_its_rows_cost(tmp_path):
    """A row takes 5 us of ten kernels; 33 requests run in graphs of 40."""
    advice = crossflow.trace(served(VLLM, batches=(32, 33, 33, 40)).write(tmp_path)).advice
    one = next(each for each in advice.findings if each.kind == "padding")
    assert one.gain == pytest.approx(2 * 7 * 5e-6 / 6, rel=0.01)  # of six steps
    assert one.trust == "interpolated"
    assert "at most 7 of a step" in one.proofs[0].said
    assert one.cure.switches == ("--cudagraph-capture-sizes",)


@pytest.mark.parametrize(("batches", "row"), [((33, 33), 5.0), ((32, 40), 5.0), ((32, 33, 40), 0.0)])
def test_padding_that_costs_nothing_or_that_one_size_shows_is_no_ill(tmp_path, batches, row):
    advice = crossflow.trace(served(VLLM, batches=batches, row=row).write(tmp_path)).advice
    assert all(one.kind != "padding" for one in advice.findings)


@pytest.mark.parametrize(
    "name", ["void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)"]
)
def test_all_reduces_of_engines_are_collectives(tmp_path, name):
    found = served(VLLM)
    for place in range(8):
        found.launch(300.0, name=name if place % 2 else "gemm", op="own")
    found.wait()
    report = crossflow.trace(found.write(tmp_path))
    assert report.communication["all_reduce"][0] == pytest.approx(4 * 300e-6 / 8)
    one = next(each for each in report.advice.findings if each.kind == "exposed_all_reduce")
    assert "leave out --disable-custom-all-reduce" in one.cure.switches


def test_the_page_and_plain_data_have_the_phases(capsys, tmp_path):
    path = str(served(SGLANG, between=900.0).write(tmp_path))
    assert main(["trace", path, "--advise"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    for text in ("Steps of the engine", "SGLang, mean of each phase", "decode 6", "prefill 2", "leave out --disable-overlap-schedule"):
        assert text in page, text
    assert main(["trace", path, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["engine"] == SGLANG
    assert [one["phase"] for one in data["phases"]] == ["decode", "prefill"]
    assert data["phases"][1]["padded_share"] is None


def test_scopes_of_the_host_are_told(tmp_path):
    found = Engine()

    def run():
        found.host(200.0, "gpu_model_runner: preprocess")
        found.graph([100.0] * 3)
        found.host(50.0, "gpu_model_runner: sample")

    for _ in range(3):
        found.step(DECODE[VLLM].format(8), run)
    (decode,) = crossflow.trace(found.write(tmp_path)).phases
    assert decode.scopes == pytest.approx({"gpu_model_runner: preprocess": 200e-6, "gpu_model_runner: sample": 50e-6})


def test_cures_of_engines_are_those_of_known_ills():
    for cures in ENGINE_CURES.values():
        assert {*cures} <= {*CURES}
        assert all(cure.text and cure.switches for cure in cures.values())
