"""Libraries of matrix products: laws that hold for any, limits by hand, and errors on measured rows that no fit has seen."""

import dataclasses
import hashlib

import numpy as np
import pytest

import crossflow
from crossflow.answers.explanation.parameters import parameters
from crossflow.base.errors import SpecError
from crossflow.base.formats import DTYPE_BYTES
from crossflow.cost.roofline import _missed, product_costs
from crossflow.evidence.validation.kernels_products import graph_times, products_table, stack_of, training_kernels_table
from crossflow.evidence.validation.tables import device_architecture, read_rows, shipped
from crossflow.hardware.architecture.model import Repeats

DEVICES = {"a100-80gb": ("bf16",), "h100-80gb": ("bf16", "fp8", "fp8_block"), "l40s": ("bf16", "fp8"), "b200": ("bf16", "fp8", "nvfp4")}
CASES = [(device, framework, dtype) for device, types in DEVICES.items() for dtype in types for framework in ("vllm", "sglang", "trtllm")]
RNG = np.random.default_rng(3)
M, N, K = 2.0 ** RNG.uniform(0, 13, 200) // 1, 64.0 * RNG.integers(1, 200, 200), 64.0 * RNG.integers(1, 200, 200)


@pytest.fixture(params=CASES, ids=" ".join)
def time(request):
    """Times of products of a framework on a device. [s]"""
    device, framework, dtype = request.param
    found = device_architecture(device)
    return lambda m, n, k: graph_times(found, stack_of(framework), dtype, np.stack([m, n, k]))


@pytest.mark.cases(7)
@pytest.mark.slow
def test_more_work_never_takes_less(time):
    """A library that takes its tile by the rows alone may gain where more rows take another tile: there only deeper and wider is told."""
    base = time(M, N, K)
    assert (time(M, N, K + 64) >= base * (1 - 1e-9)).all()
    assert (time(M, N, 2 * K) > base).all()
    assert (time(M, N + 256, K) >= base * 0.95).all()
    assert (time(2 * M, N, K) >= base * 0.8).all()


def test_nothing_beats_the_datasheet(time):
    assert (time(M, N, K) > 1e-6).all()


def test_narrow_weights_are_never_slower_where_they_are_read():
    """One row of a product as large as the cache: half the bytes of B take at most as long, scaling A included."""
    one, large = np.ones(3), np.array([8192.0, 16384.0, 28672.0])
    for device, framework in (("h100-80gb", "vllm"), ("h100-80gb", "trtllm"), ("b200", "sglang"), ("l40s", "trtllm")):
        found, sizes = device_architecture(device), np.stack([one, large, large])
        assert (graph_times(found, stack_of(framework), "fp8", sizes) < graph_times(found, stack_of(framework), "bf16", sizes)).all()


@pytest.mark.parametrize("device", ["l40s", "rtx-pro-6000"])
def test_blocks_are_multiplied_by_the_engine_s_own_kernels_where_deepgemm_does_not_run(device):
    """vLLM and SGLang took those of TensorRT-LLM on Ada, which are slower than its products in 16 bits."""
    found, sizes = device_architecture(device), np.array([[4096.0], [14336.0], [4096.0]])
    for framework in ("vllm", "sglang"):
        wide, narrow, blocks = (graph_times(found, stack_of(framework), dtype, sizes) for dtype in ("bf16", "fp8", "fp8_block"))
        assert blocks < wide
        assert blocks == pytest.approx(narrow, rel=1e-3)  # scales of blocks are bytes more


def test_tensorrt_llm_multiplies_blocks_in_its_own_kernel_on_ada_alone():
    """It was measured on the L40S, slower than products in 16 bits; on compute capability 12.0 TensorRT-LLM has another one."""
    sizes, stack = np.array([[4096.0], [14336.0], [4096.0]]), stack_of("trtllm")
    ada, blackwell = (
        [graph_times(device_architecture(device), stack, dtype, sizes) for dtype in ("bf16", "fp8", "fp8_block")]
        for device in ("l40s", "rtx-pro-6000")
    )
    assert ada[2] > ada[0]
    assert blackwell[2] == pytest.approx(blackwell[1], rel=1e-3)


def test_blocks_go_by_deepgemm_where_it_runs():
    """On the H100, by other numbers than those of the engine's kernels for scales of rows."""
    found, sizes = device_architecture("h100-sxm"), np.array([[4096.0], [14336.0], [4096.0]])
    rows, blocks = (graph_times(found, stack_of("sglang"), dtype, sizes) for dtype in ("fp8", "fp8_block"))
    assert abs(np.log(blocks / rows)) > 0.02


def test_a_benchmark_that_repeats_a_kernel_finds_operands_and_a_higher_clock():
    device, stack = device_architecture("h100-80gb"), stack_of("sglang")
    small, large = np.array([[16.0], [1024.0], [1024.0]]), np.array([[8192.0], [8192.0], [8192.0]])
    again = dataclasses.replace(device, repeats=Repeats(copies=np.ones(1)))
    burst = dataclasses.replace(device, repeats=Repeats(copies=np.full(1, 1e9), settling=1.0))
    assert graph_times(again, stack, "bf16", small) < graph_times(device, stack, "bf16", small)
    assert graph_times(burst, stack, "bf16", large) < 0.95 * graph_times(device, stack, "bf16", large)


def test_a_benchmark_that_comes_back_finds_less_the_more_it_moved():
    """Half of the operands where they fill what is kept of the cache; of twice as many 1 / (1 + 1/8) are gone."""
    device = device_architecture("h100-80gb")
    library, cache = device.execution.libraries.products["cublas"], device.levels[-2]
    kept = float((library.kept * cache.capacity * cache.instances).item())
    assert _missed(np.array([kept, 2 * kept, 1e3 * kept]), device, library) == pytest.approx([1 / 2, 8 / 9, 1.0], rel=1e-8)


@pytest.mark.parametrize(("dtype", "second"), [("bf16", 1.0), ("bf16", 0.5), ("fp8", 1.0)])
def test_copies_of_b_that_a_benchmark_goes_through_push_one_another_out_of_the_cache(dtype, second):
    """As many copies as fill, with A and C, what is kept of the cache: half of what a product moves is gone when it comes back."""
    device, m, n, k = device_architecture("h100-80gb"), 16.0, 2048.0, 1024.0
    library, cache = device.execution.libraries.products["cublas"], device.levels[-2]
    kept, b = library.kept * cache.capacity * cache.instances, n * k * DTYPE_BYTES[dtype] * second
    others = m * k * DTYPE_BYTES[dtype] + 2.0 * m * n

    def moved(repeats):
        sizes = np.array([m, n, k, 1.0]).reshape(4, 1, 1)
        again = dataclasses.replace(device, repeats=repeats)
        return product_costs(sizes, np.full((1, 1), 2.0), again, dtype, second=np.full((1, 1), second), library=library).traffic[-1, 0, 0]

    assert moved(None) == pytest.approx(others + b)
    assert moved(Repeats(copies=(kept - others) / b)) == pytest.approx((others + b) / 2)


def test_short_products_take_the_start_of_a_graph():
    """A product of nothing takes the gap before it, and one of a narrower type that of the kernels that scale A besides."""
    for dtype, name in (("bf16", "cublas"), ("fp8", "cutlass-vllm")):
        device, nothing = device_architecture("b200"), np.array([[1.0], [16.0], [32.0]])
        library = device.execution.libraries.products[name]
        starts = library.start + (0.0 if library.quantise is None else library.quantise.start)
        assert graph_times(device, stack_of("vllm"), dtype, nothing) == pytest.approx(starts + library.fill, rel=0.1)


def test_a_service_is_priced_by_the_libraries_of_its_stack():
    def step(**more):
        document = {"system": {"template": "dgx-h100"}, "workload": {"model": "llama2-7b", "task": "decode", "global_batch": 8}, **more}
        return crossflow.predict(crossflow.from_dict({**document, "strategy": {"tp": 1, "dp": 8}})).step_time

    eager = step(software={"like": "vllm", "kernels": {"launch": "eager"}})
    assert step(software="vllm") < eager < step(software={"like": "vllm", "kernels": {"launch": "eager"}, "host": {"kernel": "50 us"}})


def test_limits_of_a_rule_are_one_fewer_than_its_tiles():
    products = {"cutlass-vllm": {"rows_up_to": [16, 128]}}
    with pytest.raises(SpecError, match=r"rows_up_to: expected 3 ascending numbers, one for each of shapes but the last"):
        crossflow.from_dict(
            {"system": {"template": "dgx-h100", "execution": {"libraries": {"products": products}}}, "workload": {"model": "llama2-7b"}}
        )


def test_rows_that_no_fit_has_seen_are_as_near_as_others():
    """Of the excerpt the third that docs/scripts/fit_products.py holds out, by a hash of their sizes."""
    table, rows = products_table(shipped()), read_rows(shipped() / "gemm_graph.csv", ())
    digests = [hashlib.md5(",".join(row[size] for size in "mnk").encode()).hexdigest() for row in rows]
    held, long = np.array([int(digest, 16) % 3 == 0 for digest in digests]), table.measured >= 10e-6
    error = np.abs(table.predicted / table.measured - 1.0)
    assert not table.skipped
    assert np.median(error[long & held]) < 0.065
    assert np.median(error[~long & held]) < 0.085


def test_operators_of_training_are_read(tmp_path):
    """A product that adds to fp32 moves more than one that writes bf16; what is no product is told."""
    head = "device,op,groups,m,n,k,layout,out_dtype,accumulate,time_us,batch,seq,heads,kv_heads,qk_head_dim,v_head_dim\n"
    row = "a100-pcie-80gb,{},1,4096,512,512,TN,{},20,,,,,,\n"
    file = tmp_path / "simumax_kernels.csv"
    file.write_text(head + row.format("matmul", "bf16,0") + row.format("matmul", "fp32,1") + row.format("sdp", ","))
    table = training_kernels_table(tmp_path)
    assert table.predicted[0] < table.predicted[1] < 40e-6
    assert table.skipped == {"operator sdp is neither a matrix product nor attention": 1}


def test_attention_of_training_takes_longer_backward(tmp_path):
    head = "device,op,groups,m,n,k,layout,out_dtype,accumulate,time_us,batch,seq,heads,kv_heads,qk_head_dim,v_head_dim\n"
    rows = "".join(f"a100-pcie-80gb,{op},,,,,,,,700,1,4096,32,8,128,128\n" for op in ("sdp_fwd", "sdp_bwd"))
    (tmp_path / "simumax_kernels.csv").write_text(head + rows)
    forward, backward = training_kernels_table(tmp_path).predicted
    assert 2.0 < backward / forward < 3.5  # five products instead of two


@pytest.mark.parametrize(
    "path", ["levels.l2.capacity", *(f"execution.libraries.products.cublas.{key}" for key in ("rounding", "stored", "reread", "span"))]
)
def test_every_number_of_a_library_can_vary_alone(path):
    """Points may differ in one number that all other arrays of a product lack: the size of the last cache, or one of the library's."""
    workload = {"model": "llama2-7b", "task": "prefill", "global_batch": 1, "prompt": 2048}
    made = crossflow.from_dict({"system": "h100-sxm", "workload": workload, "strategy": "tp1", "software": "vllm"})
    value = next(one.value for one in parameters(made) if one.path == f"system.{path}")
    alone = [crossflow.evaluate(made, {f"system.{path}": [changed]}).step_time[0] for changed in (value, 0.5 * value)]
    assert list(crossflow.evaluate(made, {f"system.{path}": [value, 0.5 * value]}).step_time) == pytest.approx(alone, rel=1e-12)


# Best of square bf16 products of 1024 to 10240 random numbers, 36 calls in a row from PyTorch: database.md and issues 78, 107 of
# github.com/zzc0721/torch-performance-test-data (2025-2026). Nothing was fitted to them. [Tflop/s]
HELD = [("rtx-4090", (160.5, 170.1, 173.3, 162.4, 163.1, 164.8)), ("h20", (141.9,))]
FREE = [("l40s", 269.2), ("a100-80gb", 264.5), ("h100-sxm", 789.2), ("b200", 1696.0), ("rtx-pro-6000", 413.4)]


def square_rate(name, n=8192.0, dtype="bf16"):
    sizes = np.full((3, 1), n)
    return float(2 * n**3 / graph_times(device_architecture(name), stack_of("vllm"), dtype, sizes)[0])


def test_a_workstation_chip_of_blackwell_multiplies_in_4_bits_at_no_more_than_the_half_of_its_sparse_rate():
    """The data sheet of the RTX PRO 6000 has 4 Pflop/s in fp4 with sparsity."""
    found = square_rate("rtx-pro-6000", dtype="nvfp4")
    assert square_rate("rtx-pro-6000", dtype="fp8") < found < 0.5 * 4e15


@pytest.mark.parametrize(("name", "measured"), HELD)
def test_units_that_are_held_to_a_share_of_their_rate_reach_nearly_all_of_it(name, measured):
    device = device_architecture(name)
    found = square_rate(name)
    assert found == pytest.approx(1e12 * np.mean(measured), rel=0.05)
    assert 0.95 < found / device.throughput["bf16"][0] <= 1.0
    free = dataclasses.replace(device, held_to=np.ones(1), fed=device.operand_rate)  # as many operations a second as the whole rate
    assert 2 * 8192.0**3 / graph_times(free, stack_of("vllm"), "bf16", np.full((3, 1), 8192.0))[0] < found


@pytest.mark.parametrize(("name", "measured"), FREE)
def test_rates_of_square_products_are_a_little_below_those_of_short_benchmarks(name, measured):
    """These begin at the boost clock, and the best of five sizes is told: all are 6 to 21 % above what is predicted."""
    assert -0.22 < square_rate(name) / (1e12 * measured) - 1.0 < 0.0
