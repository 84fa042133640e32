"""Work of calls that texts of XLA make: kernels of Pallas and Triton, TransformerEngine, products of groups of rows."""

import pytest

from crossflow.base.errors import CrossflowError
from crossflow.evidence.jax.importer import imported
from crossflow.program.kernels import Attention, Pass, Product

SIZES = "attn_heads = 8 : i64, input_batch = 2 : i64, kv_max_seqlen = 128 : i64, num_gqa_groups = 4 : i64, q_max_seqlen = 64 : i64"


def program_of(operation, *given, costs=()):
    """The program of one operation in HLO on parameters of the types that are given."""
    lines = [f"  %p{i} = {kind} parameter({i})" for i, kind in enumerate(given)]
    text = "\n".join(["HloModule m, num_partitions=1", "", "ENTRY %main {", *lines, f"  ROOT {operation}", "}"])
    return imported(text, name="m", samples=1, costs=costs)


def kernel_of(operation, *given, costs=()):
    """The only kernel of it, and the type of its program."""
    found = program_of(operation, *given, costs=costs)
    (one,) = found.program.kernels
    return one, found.program.dtype


def engine(part, *said):
    return (
        f'%c = (bf16[2,64,8,32], f32[2,8,64,1], u32[2,4], u8[1]) custom-call(%p0, %p1, %p2, %p3), custom_call_target="te_fused_attn_{part}'
        f'_ffi", api_version=API_VERSION_TYPED_FFI, backend_config={{{", ".join((SIZES, *said))}}}'
    )


QUERIES = ("bf16[2,64,8,32]", "bf16[2,128,4,32]", "bf16[2,128,4,32]", "s32[3]")


def test_attention_of_transformer_engine_has_the_sizes_of_its_attributes():
    said = ("qk_head_dim = 32 : i64", "v_head_dim = 32 : i64", "mask_type = 0 : i64", "window_size_left = -1 : i64")
    one, dtype = kernel_of(engine("forward", *said), *QUERIES)
    assert one == Attention(samples=2.0, heads=8.0, length=64.0, seen=128.0, width=32.0, kv_heads=4.0, causal=False)
    assert dtype == "bf16"
    said = ("head_dim = 32 : i64", "mask_type = 2 : i64", "window_size_left = 15 : i64")
    one, _ = kernel_of(engine("backward", *said), *QUERIES)
    assert (one.causal, one.window, one.backward, one.width) == (True, 16.0, True, 32.0)
    with pytest.raises(CrossflowError, match="line 8: the call of te_fused_attn_forward_ffi does not say its sizes in its backend_config"):
        kernel_of(engine("forward"), *QUERIES)


def test_passes_and_products_of_transformer_engine():
    call = '%c = bf16[512,128] custom-call(%p0), custom_call_target="te_norm_forward_ffi"'
    one, _ = kernel_of(call, "bf16[512,128]")
    assert (one.moved, one.what) == (2 * 2 * 512 * 128, "te_norm_forward_ffi")
    call = '%c = bf16[512,64] custom-call(%p0, %p1), custom_call_target="te_gemm_ffi"'
    one, _ = kernel_of(call, "bf16[512,128]", "bf16[128,64]")
    assert (one.m, one.n, one.k) == pytest.approx((512, 64, 128))


def pallas(name, kind, estimate="", count=3):
    cost = f',"cost_estimate":{{{estimate}}}' if estimate else ""
    given = ", ".join(f"%p{i}" for i in range(count))
    return (
        f'%c = {kind} custom-call({given}), custom_call_target="tpu_custom_call", kernel_name="{name}", '
        f'backend_config={{"custom_call_config":{{"body":"TUzvUg=="{cost}}}}}'
    )


FLAT = ("bf16[2,8,512,128]",) * 3


def test_a_kernel_of_attention_has_the_work_that_its_author_estimates():
    estimate = '"bytes_accessed":8388608,"flops":2160066560,"transcendentals":4194304'
    one, dtype = kernel_of(pallas("_flash_attention_kernel", FLAT[0], estimate), *FLAT)
    assert isinstance(one, Attention)
    assert dtype == "bf16"
    assert one.work[:2] == (2160066560, 8388608)
    assert (one.samples, one.heads, one.length, one.seen, one.width) == (2, 8, 512, 512, 128)


def test_a_kernel_of_attention_without_an_estimate_is_causal_and_says_so():
    """Operands before the queries, as masks, do not count; tokens may stand before or behind heads."""
    masked = ("s8[8,4,4]", *FLAT)
    found = program_of(pallas("splash_mha_fwd", FLAT[0], count=4), *masked)
    (one,) = found.program.kernels
    assert one == Attention(samples=2.0, heads=8.0, length=512.0, seen=512.0, width=128.0, kv_heads=8.0, causal=True)
    assert found.program.dtype == "bf16"  # not that of the mask
    assert any("'splash_mha_fwd' does not say its work" in note for note in found.notes)
    one, _ = kernel_of(pallas("mha_forward", "bf16[2,512,8,128]"), *("bf16[2,512,8,128]",) * 3)
    assert (one.heads, one.length) == (8, 512)


def test_parts_of_a_backward_pass_share_its_products():
    """Gradients of keys and values take four products, those of queries three; each has two operations, half of which the mask leaves."""
    product = 2 * 8 * 512 * 512 * 128
    both = f"({FLAT[0]}, {FLAT[0]})"
    assert kernel_of(pallas("_flash_attention_dkv_kernel", both), *FLAT)[0].work[0] == 4 * product
    assert kernel_of(pallas("_flash_attention_dq_kernel", FLAT[0]), *FLAT)[0].work[0] == 3 * product


def test_a_kernel_with_many_operations_for_each_element_multiplies_matrices():
    """2 m n k of 512 rows, four groups of 128 x 256; a pass where there are few."""
    given = ("bf16[512,128]", "bf16[4,128,256]", "s32[4]")
    one, _ = kernel_of(pallas("gmm", "f32[512,256]", '"flops":33554432,"bytes_accessed":1245184'), *given)
    assert isinstance(one, Product)
    assert (one.m, one.n, one.k, one.batch) == (128, 256, 128, 4)
    one, _ = kernel_of(pallas("swiglu", "f32[512,256]", '"flops":2000000,"bytes_accessed":900000'), *given)
    assert (one.flops, one.moved, one.what) == (2e6, 9e5, "swiglu")
    assert isinstance(one, Pass)


def test_a_kernel_without_estimate_is_refused_by_its_own_name_which_takes_a_cost():
    call = pallas("add_kernel", "f32[64,64]", count=1)
    with pytest.raises(CrossflowError, match=r"the call of 'add_kernel' \(tpu_custom_call\) has no known cost; give --cost 'add_kernel"):
        kernel_of(call, "f32[64,64]")
    for cost in ("add_kernel=5,6", "tpu_custom_call=5,6"):
        assert kernel_of(call, "f32[64,64]", costs=[cost])[0].flops == 5
    with pytest.raises(CrossflowError, match="there are: add_kernel, tpu_custom_call"):
        kernel_of(call, "f32[64,64]", costs=["add_kernel=5,6", "other=pass"])


RAGGED = ("bf16[256,64]", "bf16[8,64,128]", "s32[8]")


def test_products_of_groups_of_rows_multiply_each_row_with_one_matrix():
    call = "%c = bf16[256,128] ragged-dot(%p0, %p1, %p2), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, "
    one, _ = kernel_of(call + "rhs_group_dims={0}", *RAGGED)
    assert (one.m, one.n, one.k, one.batch, one.flops) == (32, 128, 64, 8, 2 * 256 * 64 * 128)
    called = '%c = bf16[256,128] custom-call(%p0, %p1, %p2), custom_call_target="__cublas$lt$groupedMatmul"'
    assert kernel_of(called, *RAGGED)[0].flops == pytest.approx(one.flops)


def test_gradients_of_matrices_of_groups_add_up_over_the_rows_of_each():
    call = "%c = bf16[8,64,128] ragged-dot(%p0, %p1, %p2), lhs_contracting_dims={0}, rhs_contracting_dims={0}, lhs_ragged_dims={0}"
    given = ("bf16[256,64]", "bf16[256,128]", "s32[8]")
    one, _ = kernel_of(call, *given)
    assert (one.m, one.n, one.k, one.batch) == (64, 128, 32, 8)
    called = '%c = bf16[8,64,128] custom-call(%p0, %p1, %p2), custom_call_target="__cublas$lt$groupedMatmul"'
    assert kernel_of(called, *given)[0].flops == pytest.approx(one.flops)


def test_products_of_groups_in_stablehlo():
    text = """module @m attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<256x64xbf16>, %arg1: tensor<8x64x128xbf16>, %arg2: tensor<8xi32>) -> (tensor<256x128xbf16>) {
    %0 = "chlo.ragged_dot"(%arg0, %arg1, %arg2) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], """
    text += """rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<256x64xbf16>, """
    text += "tensor<8x64x128xbf16>, tensor<8xi32>) -> tensor<256x128xbf16>\n    return %0 : tensor<256x128xbf16>\n  }\n}\n"
    (one,) = imported(text, name="m", samples=1).program.kernels
    assert (one.m, one.n, one.k, one.batch) == (32, 128, 64, 8)


def test_products_of_scaled_blocks_multiply_in_their_type():
    call = '%c = bf16[1,64,256] custom-call(%p0, %p1, %p2, %p3), custom_call_target="__op$block_scaled_dot"'
    one, dtype = kernel_of(call, "f8e4m3fn[1,64,128]", "f8e4m3fn[1,256,128]", "f8e8m0fnu[1,64,4]", "f8e8m0fnu[1,256,4]")
    assert (one.m, one.n, one.k, one.batch, dtype) == (64, 256, 128, 1, "fp8")


def test_kernels_in_stablehlo_have_the_names_and_estimates_of_their_attributes():
    config = r"{\22custom_call_config\22: {\22body\22: \22TUz\22, \22cost_estimate\22: {\0A\22bytes_accessed\22:96,\0A\22flops\22:64\0A}}}"
    text = f"""module @m attributes {{mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32}} {{
  func.func public @main(%arg0: tensor<8xf32>) -> (tensor<8xf32>) {{
    %0 = stablehlo.custom_call @tpu_custom_call(%arg0) {{backend_config = "{config}", kernel_name = "k"}} : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }}
}}
"""
    (one,) = imported(text, name="m", samples=1).program.kernels
    assert (one.flops, one.moved, one.what) == (64, 96, "k")


def test_attributes_of_calls_in_stablehlo():
    """As foreign functions have them, in braces."""
    kinds = "tensor<2x64x8x32xbf16>, tensor<2x128x4x32xbf16>, tensor<2x128x4x32xbf16>"
    text = f"""module @m attributes {{mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32}} {{
  func.func public @main(%arg0: tensor<2x64x8x32xbf16>, %arg1: tensor<2x128x4x32xbf16>, %arg2: tensor<2x128x4x32xbf16>) -> (tensor<2x64x8x32xbf16>) {{
    %0 = stablehlo.custom_call @te_fused_attn_forward_ffi(%arg0, %arg1, %arg2) {{api_version = 4 : i32, backend_config = {{{SIZES}, head_dim = 32 : i64, mask_type = 2 : i64}}}} : ({kinds}) -> tensor<2x64x8x32xbf16>
    return %0 : tensor<2x64x8x32xbf16>
  }}
}}
"""  # noqa: E501
    (one,) = imported(text, name="m", samples=1).program.kernels
    assert (one.samples, one.heads, one.length, one.seen, one.kv_heads, one.causal) == (2, 8, 64, 128, 4, True)
