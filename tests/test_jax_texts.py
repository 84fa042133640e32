"""Programs from texts of XLA. How tests/data/jax was made stands in its make.py; nothing here needs JAX."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import crossflow
from crossflow.__main__ import main
from crossflow.base import packages
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.evidence.jax import import_text
from crossflow.evidence.jax.groups import groups_of, moving
from crossflow.evidence.jax.importer import imported, module_of
from crossflow.evidence.jax.partition import annotated, require_jax
from crossflow.evidence.jax.partition import divided as divided_by_compiler
from crossflow.evidence.jax.schedule import reorder
from crossflow.evidence.jax.steps import steps_in
from crossflow.evidence.jax.text import TextError
from crossflow.evidence.jax.trace import _Tracer, trace
from crossflow.program.kernels import Attention, Pass, Product
from crossflow.program.mesh import mesh_of

DATA = Path(__file__).parent / "data" / "jax"
TEXTS = ("decoder.hlo", "llama.mlir", "experts.mlir", "perceptron.hlo")
SAMPLES = {"experts.mlir": 64}


PATHS = [
    # path of the call that an operation stands in, its own, and both together
    ("", "jit(step)/mlp/dot", "jit(step)/mlp/dot"),
    ("", "", ""),
    ("jit(step)/mlp", "", "jit(step)/mlp"),
    ("jit(step)/mlp", "dot", "jit(step)/mlp/dot"),
    ("jit(step)/mlp:", "gate/dot", "jit(step)/mlp/gate/dot"),
    ("jit(step)/mlp", "jit(step)/mlp/dot", "jit(step)/mlp/dot"),  # which says all of it
    ("jit(step)/mlp", "jit(steps)/dot", "jit(step)/mlp/jit(steps)/dot"),
]


@pytest.mark.parametrize(("call", "own", "path"), PATHS)
def test_names_in_a_function_go_on_from_that_of_its_call(call, own, path):
    assert _Tracer._path(SimpleNamespace(inside=call), SimpleNamespace(scope=own)) == path


def of(name, **settings):
    return import_text(DATA / name, samples=SAMPLES.get(name), **settings).program


def running(program, kind=object):
    """Kernels of a kind, each as often as it runs."""
    for op, count in zip(program.ops, program.places.count.tolist(), strict=True):
        yield from ((program.kernels[i], count) for i in op.kernels if isinstance(program.kernels[i], kind))


def multiplied(program):
    return sum(float(one.flops) * count for one, count in running(program, Product))


def moved(program):
    return sum(one.moved * count for one, count in running(program, Pass))


def sent(program):
    """Count and bytes of messages by collective and ranks."""
    found = {}
    for op, copies in zip(program.ops, program.places.count.tolist(), strict=True):
        if op.message is not None:
            one = program.messages[op.message]
            key = one.collective, math.prod(program.ranks[axis] for axis in one.axes)
            count, size = found.get(key, (0, 0.0))
            found[key] = count + copies, size + copies * one.size
    return found


# ------------------------------------------------------------------------------- a second reading of HLO, by lines alone

BYTES = {"bf16": 2, "f32": 4, "s32": 4, "pred": 1, "u32": 4}
SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")


def size_of(text):
    return sum(BYTES[kind] * math.prod(map(int, filter(None, shape.split(",")))) for kind, shape in SHAPE.findall(text))


def by_lines(text, trips):
    """Operations of products and messages (count, bytes), each line of a loop's body so many times; no other call is followed."""
    body, often = set(re.findall(r"body=%([\w.\-]+)", text)), 1
    types, flops, messages = {}, 0, {}
    for line in text.split("\n"):
        if opened := re.match(r"(?:ENTRY )?%([\w.\-]+) \{", line):
            often = trips if opened[1] in body else 1
        found = re.match(r"\s*(?:ROOT )?%([\w.\-]+) = (.*?) ([a-z\-]+)\((.*?)\)(.*)", line)
        if not found:
            continue
        name, kind, op, operands, rest = found.groups()
        types[name] = kind
        given = [types.get(one.strip().lstrip("%"), "") for one in operands.split(",")]
        if op == "dot":
            sizes = list(map(int, SHAPE.search(given[0])[2].split(",")))
            deep = math.prod(sizes[int(i)] for i in re.search(r"lhs_contracting_dims=\{([\d,]*)\}", rest)[1].split(","))
            flops += often * 2 * deep * size_of(kind) // BYTES[kind.split("[")[0].strip("(")]
        if op in ("all-reduce", "all-gather", "all-to-all", "reduce-scatter"):
            groups = groups_of(
                re.search(r"replica_groups=(.*?), (?:dimensions|channel_id|use_global|to_apply|metadata)", rest + ", metadata")[1], 8
            )
            key = op.replace("-", "_"), len(groups[0])
            count, size = messages.get(key, (0, 0))
            messages[key] = count + often, size + often * (size_of(kind) if op == "all-gather" else sum(map(size_of, given)))
    return flops, messages


def test_a_divided_decoder_has_the_products_and_messages_of_its_text():
    """Scan over layers that are computed again, fsdp x tensor on eight devices; its loops run four times."""
    flops, messages = by_lines((DATA / "decoder.hlo").read_text(), 4)
    program = of("decoder.hlo", kernels="eager")
    assert multiplied(program) == flops
    found = sent(program)
    found.pop(("sendrecv", 8), None)  # of permutations, which the lines do not show
    assert found == messages
    assert (program.samples, program.tokens, program.dtype, program.trains) == (8, 32, "bf16", True)


def test_a_divided_decoder_holds_its_share_of_weights_and_no_second_copy_of_what_it_updates():
    """512 x 64 and four layers of 3 x 64^2 + 64^2 + 2 x 64 x 256; the table is cut over four devices, all else over eight."""
    program = of("decoder.hlo")
    assert program.parameters == 512 * 64 + 4 * (4 * 64**2 + 2 * 64 * 256)
    held = program.memory[0]
    assert held["weights"] == 2 * (512 * 64 // 4 + 4 * (4 * 64**2 + 2 * 64 * 256) // 8)
    kept = imported((DATA / "decoder.hlo").read_text().replace("may-alias", "must-copy"), name="kept").program
    fresh = [sum(one.size for one in each.tensors if one.made is not None and one.last is None) for each in (program, kept)]
    assert fresh == [4, 4 + held["weights"]]  # the loss, and weights that have no memory to go to


def test_phases_and_loops_of_a_decoder():
    program = of("decoder.hlo")
    phases = [op.phase for op in program.ops]
    assert set(phases) == {"forward", "backward", "update"}
    first, second = program.blocks
    assert first.count == second.count == 4
    assert set(phases[first.first : first.last + 1]) == {"forward"}
    assert set(phases[second.first : second.last + 1]) == {"backward"}
    # The next layer begins with what this one ends with.
    assert any(op.carried for op in program.ops[first.first : first.last + 1])


def test_a_llama_has_the_operations_that_xla_counts_and_its_parameters():
    """Products by hand: per token 2 (2 d^2 + 2 d kv + 3 d f) a layer and 4 S d for its scores, 2 d V for the head."""
    reference = json.loads((DATA / "reference.json").read_text())["llama"]
    program = of("llama.mlir")
    tokens, d, kv, f, v = 2 * 128, 256, 128, 512, 1024
    assert multiplied(program) == tokens * (3 * (2 * (2 * d * d + 2 * d * kv + 3 * d * f) + 4 * 128 * d) + 2 * d * v)
    assert program.parameters == reference["parameters"]
    every = multiplied(program) + sum(float(one.flops) * count for one, count in running(program, Pass))
    assert every == pytest.approx(reference["flops"], rel=0.01)
    assert (program.samples, program.tokens, program.trains) == (2, 128, False)


def test_a_llama_agrees_with_the_preset_of_its_sizes():
    """The text multiplies all pairs of scores, of which a causal mask leaves half."""
    sizes = {"layers": 3, "hidden": 256, "heads": 8, "kv_heads": 4, "ffn": 512, "vocabulary": 1024, "sequence": 128, "global_batch": 2}
    workload = {"model": "transformer", "gated": True, "norm": "rmsnorm", "biases": False, "tied_embeddings": False, "positions": "rotary"}
    scenario = crossflow.from_dict(
        {"system": {"template": "dgx-h100", "devices": 1}, "workload": {**workload, **sizes, "task": "forward"}, "strategy": "d1"}
    )
    masked = 3 * 2 * (4 * 128**2 * 256) / 2
    program = of("llama.mlir")
    assert multiplied(program) - masked == pytest.approx(float(crossflow.evaluate(scenario).flops[0]), rel=0.01)


def test_layers_have_the_names_that_the_model_gave():
    layers = {op.layer for op in of("llama.mlir").ops}
    assert {"block/attention", "block/mlp"} <= layers


def test_work_of_each_device_by_itself_is_what_the_text_writes():
    """Two of eight experts, 64 rows each of 128 elements, half of 256 inner ones; shapes by hand."""
    program = of("experts.mlir")
    assert dict(program.axes) == {"tp": 2, "fsdp": 4}
    assert multiplied(program) == 2 * (2 * 2 * 64 * 128 * 128)
    rows = 2 * 64 * 128 * 2  # bytes of a device's rows
    assert sent(program) == {
        ("all_to_all", 4): (2, 2 * rows), ("reduce_scatter", 2): (1, rows), ("sendrecv", 4): (4, 4 * rows / 2),
        ("all_gather", 2): (1, rows),
    }  # fmt: skip
    assert program.memory[0]["weights"] == 2 * (2 * 128 * 128 * 2)


def test_a_compiled_text_says_where_the_compiler_widened_what_it_sends():
    found = import_text(DATA / "perceptron.hlo")
    assert multiplied(found.program) == 5 * 2 * 32 * 64 * 256  # two products forward, three backward, of a quarter of the rows
    assert found.program.dtype == "bf16"  # products of numbers that were widened from bf16
    assert any("spmd-partitioning" in note for note in found.notes)
    # Both gradients in fp32, in one message.
    assert sent(found.program)["all_reduce", 4][1] == pytest.approx(2 * 64 * 256 * 4, abs=64)


# ------------------------------------------------------------------------------- fusion


@pytest.mark.parametrize("name", TEXTS)
def test_joining_passes_changes_no_product_and_no_message_and_moves_less(name):
    fused, eager = of(name), of(name, kernels="eager")
    assert multiplied(fused) == multiplied(eager)
    sums = [sum(size for (kind, _), (_, size) in sent(one).items() if kind in ("all_reduce", "reduce_scatter")) for one in (fused, eager)]
    assert sums[0] == sums[1]
    others = [{key: one for key, one in sent(each).items() if key[0] not in ("all_reduce", "reduce_scatter")} for each in (fused, eager)]
    assert others[0] == others[1]
    assert moved(fused) <= moved(eager)
    assert len(fused.ops) <= len(eager.ops)


def entry(*lines, head="HloModule m, entry_computation_layout={()->f32[]}", before=()):
    return "\n".join([head, "", *before, "ENTRY %main {", *lines, "}", ""])


A = "  %a = f32[1024,64] parameter(0)"
B = "  %b = f32[1024,64] parameter(1)"
SIZE = 1024 * 64 * 4
SUM = ("%sum {", "  %x = f32[] parameter(0)", "  %y = f32[] parameter(1)", "  ROOT %z = f32[] add(%x, %y)", "}")


def passes(*lines, before=()):
    program = imported(entry(*lines, before=before), name="m", samples=1).program
    return [program.kernels[i] for op in program.ops for i in op.kernels]


def test_a_chain_of_pointwise_operations_is_one_pass_that_reads_its_inputs_and_writes_its_result():
    (one,) = passes(A, B, "  %c = f32[1024,64] add(%a, %b)", "  %d = f32[1024,64] tanh(%c)", "  ROOT %e = f32[1024,64] multiply(%d, %a)")
    assert (one.moved, one.flops) == (3 * SIZE, 3 * 1024 * 64)


def test_a_reduction_ends_a_pass_and_what_it_reads_is_made_inside():
    """Softmax without its first pass: the sum reads a and writes rows; the quotient reads a and the rows again."""
    first, second = passes(
        A, "  %zero = f32[] constant(0)", "  %c = f32[1024,64] exponential(%a)",
        "  %d = f32[1024] reduce(%c, %zero), dimensions={1}, to_apply=%sum", "  %e = f32[1024,64] broadcast(%d), dimensions={0}",
        "  ROOT %f = f32[1024,64] divide(%c, %e)", before=SUM,
    )  # fmt: skip
    assert first.moved == pytest.approx(SIZE + 4096, abs=8)
    assert second.moved == pytest.approx(2 * SIZE + 4096, abs=8)


def test_a_result_that_a_product_reads_is_written():
    pointwise, product = passes(
        A, "  %w = f32[64,32] parameter(1)", "  %c = f32[1024,64] tanh(%a)",
        "  ROOT %d = f32[1024,32] dot(%c, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    )  # fmt: skip
    assert pointwise.moved == 2 * SIZE
    assert product.flops == 2 * 1024 * 64 * 32


def test_passes_over_one_tensor_run_together():
    (one,) = passes(
        A, "  %c = f32[1024,64] tanh(%a)", "  %d = f32[1024,64] sine(%a)", "  ROOT %t = (f32[1024,64], f32[1024,64]) tuple(%c, %d)",
    )  # fmt: skip
    assert one.moved == 3 * SIZE


def test_what_would_be_made_of_more_than_it_saves_is_written():
    """Of four tensors, for three sums in passes of their own: 4 + 1 + 3 rather than 12 tensors."""
    given = [f"  %p{i} = f32[1024,64] parameter({i})" for i in range(4)]
    chain = ["  %c = f32[1024,64] add(%p0, %p1)", "  %d = f32[1024,64] add(%c, %p2)", "  %s = f32[1024,64] add(%d, %p3)"]
    readers = [f"  %w{i} = f32[1024,{i + 2}] slice(%s), slice={{[0:1024], [0:{i + 2}]}}" for i in range(3)]
    found = passes(*given, *chain, *readers, "  ROOT %t = (f32[1024,2], f32[1024,3], f32[1024,4]) tuple(%w0, %w1, %w2)")
    small = sum((i + 2) * 4096 for i in range(3))
    assert sum(one.moved for one in found) == pytest.approx(5 * small)  # each slice is made of slices of the four


def test_a_product_writes_what_a_conversion_alone_makes_of_it_and_reads_what_was_widened():
    (one,) = passes(
        "  %a = bf16[128,64] parameter(0)", "  %b = bf16[64,32] parameter(1)", "  %c = f32[128,64] convert(%a)",
        "  %d = f32[64,32] convert(%b)", "  %e = f32[128,32] dot(%c, %d), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "  ROOT %f = bf16[128,32] convert(%e)",
    )[-1:]  # fmt: skip
    assert (one.m, one.k, one.n, one.result) == (128, 64, 32, None)


# ------------------------------------------------------------------------------- texts that compilers for GPUs write

GEMM = (
    'custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"alpha_real":1,"dot_dimension_numbers":'
    '{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[],"rhs_batch_dimensions":[]}}}'
)
ASYNC = entry(
    "  %w = bf16[16,64]{1,0} parameter(0)", "  %x = bf16[128,64]{1,0} parameter(1)",
    "  %s = (bf16[16,64]{1,0}, bf16[64,64]{1,0}) all-gather-start(%w), channel_id=1, replica_groups=[1,4]<=[4], dimensions={0}",
    "  %y = bf16[128,64]{1,0} fusion(%x), kind=kLoop, calls=%fused",
    "  %d = bf16[64,64]{1,0} all-gather-done(%s)",
    f"  %g = (bf16[128,64]{{1,0}}, s8[4194304]{{0}}) custom-call(%y, %d), {GEMM}",
    "  %o = bf16[128,64]{1,0} get-tuple-element(%g), index=0",
    "  %p = (bf16[128,64]{1,0}, bf16[128,64]{1,0}) collective-permute-start(%o), channel_id=2, "
    "source_target_pairs={{0,1},{1,2},{2,3},{3,0}}",
    "  ROOT %q = bf16[128,64]{1,0} collective-permute-done(%p)",
    head="HloModule m, is_scheduled=true, num_partitions=4",
    before=(
        "%fused (a: bf16[128,64]) -> bf16[128,64] {", "  %a = bf16[128,64]{1,0} parameter(0)",
        "  ROOT %t = bf16[128,64]{1,0} tanh(%a)", "}", "",
    ),
)  # fmt: skip


def test_messages_that_start_and_end_and_products_of_a_library():
    """By hand: a gather of 64 x 64 beside a pass, a product of 128 x 64 x 64 that waits for both, a ring of its result."""
    program = imported(ASYNC, name="m", samples=1).program
    assert [op.name for op in program.ops] == ["all_gather", "tanh", "__cublas$gemm", "sendrecv"]
    assert program.ops[2].after == (0, 1)
    assert sent(program) == {("all_gather", 4): (1, 64 * 64 * 2), ("sendrecv", 4): (1, 128 * 64 * 2)}
    assert multiplied(program) == 2 * 128 * 64 * 64


# ------------------------------------------------------------------------------- what compilers do later

WORLD = "HloModule m, num_partitions=4, entry_computation_layout={()->f32[]}"
REDUCED = "  %r = f32[1024,64] all-reduce(%g), channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=%sum"
PLACE = ("  %p = u32[] partition-id()", "  %q = s32[] convert(%p)", "  %zero = s32[] constant(0)")


def divided(size, head=WORLD, **settings):
    """A sum of which each device reads so many of its 1,024 rows."""
    lines = [
        A, "  %g = f32[1024,64] tanh(%a)", REDUCED, *PLACE,
        f"  %s = f32[{size},64] dynamic-slice(%r, %q, %zero), dynamic_slice_sizes={{{size},64}}",
        f"  ROOT %t = f32[{size},64] sine(%s)",
    ]  # fmt: skip
    return imported(entry(*lines, head=head, before=SUM), name="m", samples=1, **settings).program


def test_a_sum_of_which_each_device_reads_its_part_is_a_reduce_scatter():
    assert sent(divided(256)) == {("reduce_scatter", 4): (1, SIZE)}
    assert sent(divided(512)) == sent(divided(128)) == {("all_reduce", 4): (1, SIZE)}  # that is not its part
    assert sent(divided(256, kernels="eager")) == {("all_reduce", 4): (1, SIZE)}  # as the text is
    assert sent(divided(256, head=WORLD + ", is_scheduled=true")) == {("all_reduce", 4): (1, SIZE)}  # the compiler left it so
    assert moved(divided(256)) == 2 * SIZE + 2 * SIZE / 4


def test_what_waits_for_a_message_runs_behind_what_does_not():
    lines = (
        A, B, "  %g = f32[1024,64] tanh(%a)", REDUCED, "  %u = f32[1024,64] sine(%r)", "  %n = f32[1024,64] exponential(%b)",
        "  %w = f32[64,64] dot(%n, %n), lhs_contracting_dims={0}, rhs_contracting_dims={0}",
        "  ROOT %t = (f32[1024,64], f32[64,64]) tuple(%u, %w)",
    )  # fmt: skip
    names = [op.name for op in imported(entry(*lines, head=WORLD, before=SUM), name="m", samples=1).program.ops]
    assert names == ["tanh", "all_reduce", "exponential", "dot", "sine"]
    kept = imported(entry(*lines, head=WORLD + ", is_scheduled=true", before=SUM), name="m", samples=1).program
    assert [op.name for op in kept.ops] == ["tanh", "all_reduce", "sine", "exponential", "dot"]


def sources(items):
    """For each step, who last wrote what it reads."""
    writer, found = {}, {}
    for step in steps_in(items):
        found[id(step)] = {key: writer.get(key) for key in step.reads}
        writer |= dict.fromkeys((*step.writes, *step.carries.values()), id(step))
    return found


@pytest.mark.parametrize("name", TEXTS)
def test_another_order_reads_what_the_text_reads(name):
    text = trace(module_of((DATA / name).read_text()), {})
    before = sources(text.items)
    reorder(text)
    assert sources(text.items) == before


# ------------------------------------------------------------------------------- loops


def loop(start, limit, step, direction, body="tanh"):
    """A loop that counts, and works on a matrix each time."""
    state = "(s32[], f32[1024,64])"
    return entry(
        A, f"  %i = s32[] constant({start})", f"  %t = {state} tuple(%i, %a)",
        f"  ROOT %w = {state} while(%t), condition=%cond, body=%body",
        before=(
            "%body {", f"  %s = {state} parameter(0)", "  %k = s32[] get-tuple-element(%s), index=0",
            "  %m = f32[1024,64] get-tuple-element(%s), index=1", f"  %one = s32[] constant({step})", "  %next = s32[] add(%k, %one)",
            f"  %new = f32[1024,64] {body}(%m)", f"  ROOT %r = {state} tuple(%next, %new)", "}", "",
            "%cond {", f"  %q = {state} parameter(0)", "  %l = s32[] get-tuple-element(%q), index=0", f"  %n = s32[] constant({limit})",
            f"  ROOT %c = pred[] compare(%l, %n), direction={direction}", "}", "",
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("start", "limit", "step", "direction"),
    [(0, 7, 1, "LT"), (0, 7, 2, "LT"), (3, 9, 2, "LE"), (0, 8, 2, "LE"), (9, 0, -3, "GT"), (9, 0, -3, "GE"), (2, 8, 3, "NE")],
)
def test_trips_of_loops_are_those_of_running_them(start, limit, step, direction):
    holds = {"LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal, "NE": np.not_equal}[direction]
    trips, i = 0, start
    while holds(i, limit):
        trips, i = trips + 1, i + step
    program = imported(loop(start, limit, step, direction), name="m", samples=1).program
    assert sum(count for _, count in running(program, Pass)) == trips


def test_a_loop_that_depends_on_data_needs_its_trips():
    text = loop(0, 7, 1, "LT").replace("compare(%l, %n)", "compare(%l, %l)")
    with pytest.raises(CrossflowError, match=r"line \d+: the text does not say how often this loop runs, .* give --trips N"):
        imported(text, name="m", samples=1)
    program = imported(text, name="m", samples=1, trips=5).program
    assert [block.count for block in program.blocks] in ([5], [])
    assert sum(count for _, count in running(program, Pass)) == 5


def test_a_loop_in_a_loop_runs_as_often_as_both():
    text = (DATA / "experts.mlir").read_text()
    assert multiplied(imported(text, name="m", samples=1).program) == 2**23
    inner = loop(0, 3, 1, "LT")
    nested = inner.replace("ENTRY %main {", "%inner {").replace("HloModule m", "HloModule n", 1)
    state = "(s32[], f32[1024,64])"
    outer = "\n".join([
        nested, "%outer {", f"  %s2 = {state} parameter(0)", "  %k2 = s32[] get-tuple-element(%s2), index=0",
        "  %m2 = f32[1024,64] get-tuple-element(%s2), index=1", "  %one2 = s32[] constant(1)", "  %next2 = s32[] add(%k2, %one2)",
        f"  %did = {state} call(%m2), to_apply=%inner", "  %new2 = f32[1024,64] get-tuple-element(%did), index=1",
        f"  ROOT %r2 = {state} tuple(%next2, %new2)", "}", "", "ENTRY %main {", "  %p = f32[1024,64] parameter(0)",
        "  %zero = s32[] constant(0)",
        f"  %t2 = {state} tuple(%zero, %p)", f"  ROOT %w2 = {state} while(%t2), condition=%cond, body=%outer", "}", "",
    ])  # fmt: skip
    program = imported(outer, name="m", samples=1).program
    assert sum(count for _, count in running(program, Pass)) == 9


# ------------------------------------------------------------------------------- single kernels


@pytest.mark.parametrize(
    ("length", "size", "stride", "low", "spread", "apart"),
    [(8, 3, 1, 1, 1, 1), (9, 3, 2, 0, 1, 1), (8, 5, 1, 4, 2, 1), (7, 3, 3, 2, 1, 2), (4, 2, 1, 1, 3, 1)],
)
def test_convolutions_leave_out_padding_and_gaps(length, size, stride, low, spread, apart):
    """Pairs of a place and a tap that meet an element, counted one by one."""
    full = (length - 1) * spread + 1 + 2 * low
    places = (full - ((size - 1) * apart + 1)) // stride + 1
    data = np.zeros(full)
    data[low : low + (length - 1) * spread + 1 : spread] = 1.0
    pairs = sum(data[i * stride + k * apart] for i in range(places) for k in range(size))
    (one,) = passes(
        f"  %a = f32[2,{length},6] parameter(0)", f"  %w = f32[{size},6,10] parameter(1)",
        f"  ROOT %c = f32[2,{places},10] convolution(%a, %w), window={{size={size} stride={stride} pad={low}_{low} lhs_dilate={spread} "
        f"rhs_dilate={apart}}}, dim_labels=b0f_0io->b0f",
    )  # fmt: skip
    assert one.flops == pytest.approx(2 * 2 * 6 * 10 * pairs)


CUDNN = (
    '  ROOT %c = (bf16[2,8,64,32], f32[2,8,64]) custom-call(%q, %k, %v), custom_call_target="__cudnn$fmhaSoftmax", backend_config='
    '{"cudnn_fmha_backend_config": {"intermediate_tensor_shape": {"element_type": "BF16", "dimensions": ["2", "8", "64", "64"]}, '
    '"mask_type": "CAUSAL", "sliding_window_length": 0}}'
)


def test_attention_of_cudnn_is_fused_attention():
    given = [f"  %{name} = bf16[2,64,{heads},32] parameter({i})" for i, (name, heads) in enumerate(zip("qkv", (8, 4, 4), strict=True))]
    (one,) = passes(*given, CUDNN)
    assert one == Attention(samples=2.0, heads=8.0, length=64.0, seen=64.0, width=32.0, kv_heads=4.0, causal=True)


CALL = '  ROOT %c = f32[1024,64] custom-call(%a), custom_call_target="my_kernel"'


def test_a_call_that_nobody_knows_needs_its_cost():
    with pytest.raises(CrossflowError, match="line 5: the call of 'my_kernel' has no known cost; give --cost 'my_kernel=FLOPS,BYTES' or"):
        passes(A, CALL)
    for cost, flops, size in (("my_kernel=2 Gflop,3 MB", 2e9, 3e6), ("my_kernel=5,6", 5, 6), ("my_kernel=pass", 1024 * 64, 2 * SIZE)):
        program = imported(entry(A, CALL), name="m", samples=1, costs=[cost]).program
        ((one, _),) = running(program)
        assert (one.flops, one.moved, one.what) == (flops, size, "my_kernel")


@pytest.mark.parametrize("cost", ["my_kernel", "=pass", "my_kernel=fast", "my_kernel=1,2,3", "my_kernel=-1,2", "my_kernel=3 MB,2 s"])
def test_costs_that_say_nothing_are_refused(cost):
    with pytest.raises(CrossflowError, match="--cost: expected name=FLOPS,BYTES"):
        imported(entry(A, CALL), name="m", samples=1, costs=[cost])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"costs": ["my_kernel=pass", "my_kernal=pass"]}, "--cost my_kernal: the text has no call .* there are: my_kernel; did you mean"),
        ({"costs": ["my_kernel=pass", "tanh=pass"]}, "--cost tanh: the text has no call or unknown operation of that name; there are: my_"),
        ({"costs": ["my_kernel=pass", "my_kernel=1,2"]}, "--cost my_kernel: is given twice; leave one of them out"),
        ({"costs": ["my_kernel=pass"], "trips": 3}, "--trips: all loops of the text say how often they run; leave it out"),
    ],
)
def test_costs_and_trips_that_nothing_asks_for_are_refused(given, sentence):
    with pytest.raises(CrossflowError, match=sentence):
        imported(entry(A, CALL), name="m", samples=1, **given)


def test_parts_of_stacked_weights_cost_nothing_and_other_slices_do():
    stacked = "  %w = f32[4,64,64] parameter(1)"
    lead = "  %s = f32[1,64,64] slice(%w), slice={[1:2], [0:64], [0:64]}"
    product = "  ROOT %d = f32[1024,64] dot(%a, %m), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    (one,) = passes(A, stacked, lead, "  %m = f32[64,64] reshape(%s)", product)
    assert isinstance(one, Product)
    across, _ = passes(A, "  %w = f32[64,256] parameter(1)", "  %m = f32[64,64] slice(%w), slice={[0:64], [64:128]}", product)
    assert across.moved == 2 * 64 * 64 * 4


# ------------------------------------------------------------------------------- groups


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("[4,2]<=[2,2,2]T(2,1,0)", ((0, 4), (2, 6), (1, 5), (3, 7))),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['a'=8] {'a':(2)4}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['a'=2,'b'=2,'c'=2] {'a','c'}", ((0, 1, 4, 5), (2, 3, 6, 7))),
        ("mesh['a'=2] {'z'}", None),
        ("nonsense", None),
    ],
)
def test_groups_of_devices_in_each_way_that_xla_writes_them(text, found):
    assert groups_of(text, 8) == found


def test_a_group_in_two_directions_covers_two_axes():
    mesh = mesh_of({(0, 1): "", (0, 1, 4, 5): "", (0, 2): ""}, 8, {})
    assert mesh.of[0, 1, 4, 5] == ("d0", "d2")
    with pytest.raises(CrossflowError, match="ranks 0, 1, 3 communicate, which lie at no equal distances in the world of 8"):
        mesh_of({(0, 1, 3): ""}, 8, {})


def test_permutations_move_along_their_longest_cycle():
    assert moving([(0, 0), (1, 2), (2, 4), (4, 1)]) == (0, 1, 3)
    assert moving([(0, 1), (1, 2), (2, 3)]) == (0, 1, 2, 3)
    assert moving([(0, 0)]) == ()


SENT = "  ROOT %b = f32[1024,64] {}(%a), channel_id=1, use_global_device_ids=true, {}"


@pytest.mark.parametrize(
    ("op", "given", "sentence"),
    [
        ("all-reduce", "replica_groups={{0,1},{1,2}}", "line 5: the all-reduce contradicts itself: the device 1 is in its groups twice"),
        ("all-reduce", "replica_groups={{0,1},{2,9}}", "line 5: .* the device 9 is in its groups, and there are 0 to 3"),
        ("all-to-all", "replica_groups={{0,1},{2}}", "line 5: .* its groups have 1 and 2 devices, and must be of one size"),
        ("collective-permute", "source_target_pairs={{0,1},{0,2}}", "line 5: .* the device 0 is a source twice"),
        ("collective-permute", "source_target_pairs={{0,1},{2,4}}", "line 5: .* the device 4 is a target, and there are 0 to 3"),
    ],
)
def test_groups_that_contradict_themselves_are_refused(op, given, sentence):
    head = "HloModule m, num_partitions=4, entry_computation_layout={()->f32[]}"
    with pytest.raises(CrossflowError, match=sentence):
        imported(entry(A, SENT.format(op, given), head=head), name="m", samples=1)


def test_sums_may_be_over_groups_of_several_sizes_and_all_replicas_are_those_of_one_partition():
    head = "HloModule m, num_partitions=4, entry_computation_layout={()->f32[]}"
    text = entry(A, SENT.format("all-reduce", "replica_groups={{0,1},{2},{3}}"), head=head)
    assert [ranks for _, ranks in sent(imported(text, name="m", samples=1).program)] == [2]
    text = entry(A, "  ROOT %b = f32[1024,64] all-reduce(%a), replica_groups={}", head=head.replace("num", "replica_count=2, num"))
    assert [ranks for _, ranks in sent(imported(text, name="m", samples=1).program)] == [2]


# ------------------------------------------------------------------------------- wrong texts

MAIN = "func.func public @main"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "line 1: expected HLO, which begins with 'HloModule', or StableHLO, which begins with 'module'"),
        ("{}", "line 1: expected HLO"),
        ("HloModule m, num_partitions=99999999999", "line 1: expected 1 to 1,048,576 devices, got 99,999,999,999"),
        (entry("  %a.b = f32[2] dot(%c)", A), "line 4: 'c' is used before it is made"),
        (entry(A, "  ROOT %d = f32[2] dot(%a)"), "line 5: the operation dot lacks something, or its operands do not fit"),
        ("HloModule m", "line 1: there is no ENTRY computation; the text is cut off, or is no module of HLO"),
        (entry("  ROOT %a = f32[<=8,4] parameter(0)"), r"line 4: the shape \[<=8,4\] is dynamic; .* lower the function for one shape"),
        (entry("  ROOT %a = q8[8] parameter(0)"), "line 4: the element type 'q8' is not known"),
        (entry(A, "  ROOT %b = f32[8] tanh(%z)"), "line 5: 'z' is used before it is made, or is missing; the text is not whole"),
        (entry(A, "  ROOT %b = f32[8] frobnicate(%a)"), "line 5: the operation frobnicate has no known cost; give --cost"),
        (entry(A, "  hello"), "line 5: expected an operation '%name = type operation"),
        (entry(A, "  ROOT %b = f32[8] call(%a), to_apply=%gone"), "line 5: the computation 'gone' is not in the text; the text is cut off"),
        (entry(A, "  ROOT %b = f32[1024,64] all-reduce(%a), replica_groups=what, to_apply=%sum"), "line 5: the replica groups what cannot"),
        (f"module @m {{\n  {MAIN}(%arg0: tensor<?x4xf32>) -> tensor<4xf32> {{\n", r"line 2: the shape of tensor<\?x4xf32> is dynamic"),
        ("module @m {\n}\n", "line 3: there is no function @main"),
        (f"module @m {{\n  {MAIN}(%arg0: tensor<4xf32>) -> tensor<4xf32> {{\n    %0 = stablehlo.tanh %arg0", "line 3: the type of"),
    ],
)  # fmt: skip
def test_wrong_texts_are_refused_with_their_line(text, sentence):
    with pytest.raises(CrossflowError, match=sentence):
        imported(text, name="m", samples=1)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.97])
def test_texts_that_are_cut_off_say_so(name, share):
    text, _, _ = (DATA / name).read_text().partition("\n} loc(#loc)\n")  # names stand behind the module
    with pytest.raises(CrossflowError, match=r"^line \d+: .*(cut off|not whole|used before|expected|type of|is missing)"):
        imported(text[: int(share * len(text))], name="m", samples=1)


# A product of which the weights lie on two devices by columns, as `jax.jit(...).lower().as_text()` writes it.
TOGETHER = """module @jit_f attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["rows"=1, "tp"=2]>
  func.func public @main(%arg0: tensor<8x64xf32>, %arg1: tensor<64x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>}) -> \
(tensor<8x32xf32> {jax.result_info = "result", sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, tensor<8x32xf32>) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<8x64xf32>, tensor<64x32xf32>) -> tensor<8x32xf32>
    return %0, %0 : tensor<8x32xf32>, tensor<8x32xf32>
  }
}
"""


def test_sizes_of_all_devices_together_need_jax(monkeypatch):
    monkeypatch.setattr(packages, "there", lambda name: name != "jax")
    with pytest.raises(CrossflowError, match=r"line 4: .* 2 devices together, .*\(pip install 'crossflow\[jax\]'\), .*compile\(\).as_text"):
        imported(TOGETHER, name="m")


def test_what_a_text_leaves_open_the_compiler_may_choose():
    """Layouts of the first parameter and of the second result."""
    assert annotated(TOGETHER) == ([False, True], [True, False])


def test_a_text_that_the_compiler_does_not_divide_says_so_in_a_sentence():
    """The compiler runs in a process of its own, whose error is no trace."""
    with pytest.raises(TextError, match=r"^line 1: the compiler does not divide the text over its 2 devices: \S.*$"):
        divided_by_compiler("module {", 2)


def test_a_text_of_several_devices_is_read_as_the_compiler_divides_it(monkeypatch):
    """With the names of its axes, and a note."""
    asked = []
    made = (DATA / "decoder.hlo").read_text()
    monkeypatch.setattr(packages, "there", lambda _: True)
    monkeypatch.setattr("crossflow.evidence.jax.importer.divided", lambda *given: asked.append(given) or made)
    together = TOGETHER.replace("num_partitions = 2", "num_partitions = 8").replace('"rows"=1, "tp"=2', '"rows"=4, "columns"=2')
    found = imported(together, name="m")
    assert asked == [(together, 8)]
    assert found.program.ranks["columns"] == 2
    assert multiplied(found.program) == multiplied(imported(made, name="m").program)
    assert found.notes[0].startswith("the text had the sizes of all 8 devices together")


def test_the_compiler_divides_a_product():
    """Each device multiplies by its columns, and the first result, which all have whole, is gathered."""
    pytest.importorskip("jax")
    program = imported(TOGETHER, name="m", samples=8).program
    assert multiplied(program) == 2 * 8 * 64 * 32 / 2
    assert sent(program) == {("all_gather", 2): (1, 8 * 32 * 4)}


def test_inputs_that_disagree_need_samples():
    text = entry("  %a = s32[8,4] parameter(0)", "  %b = s32[6] parameter(1)", "  ROOT %c = s32[8,4] add(%a, %a)")
    with pytest.raises(CrossflowError, match=r"the inputs of the text do not say how many samples a step has, .* differ; give --samples N"):
        imported(text, name="m")


def test_kernels_are_fused_or_eager():
    with pytest.raises(CrossflowError, match="kernels: expected one of fused, eager, got 'fuse'; did you mean 'fused'"):
        of("decoder.hlo", kernels="fuse")


def test_lowering_without_jax_names_the_extra(monkeypatch):
    monkeypatch.setattr(packages, "there", lambda name: name != "jax")
    with pytest.raises(CrossflowError, match=r"lowering a function needs jax, which is not installed; run: pip install 'crossflow\[jax\]'"):
        require_jax("lowering a function")


# ------------------------------------------------------------------------------- as a user


def run(capsys, *words):
    status = main([str(word) for word in words])
    return status, *capsys.readouterr()


def test_the_command_imports_and_predict_prices_it(tmp_path, capsys):
    out = tmp_path / "decoder.program.json.gz"
    status, said, _ = run(capsys, "import", DATA / "decoder.hlo", "-o", out, "--json")
    assert status == 0
    assert json.loads(said)["parameters"] == 229376
    messages = json.loads(said)["messages"]
    assert sum(one["count"] for one in messages) == sum(count for count, _ in sent(of("decoder.hlo")).values())
    (tmp_path / "s.yaml").write_text("system: {template: dgx-h100}\nworkload: decoder.program.json.gz\nsoftware: pytorch\n")
    status, said, _ = run(capsys, "predict", tmp_path / "s.yaml", "--json")
    assert status == 0
    assert json.loads(said)["communication_s"]["all_reduce"]["total"] > 0


def test_a_system_of_another_size_is_refused_at_its_place(tmp_path, capsys):
    assert run(capsys, "import", DATA / "llama.mlir", "-o", tmp_path / "llama.program.json")[0] == 0
    (tmp_path / "s.yaml").write_text("workload: llama.program.json\nsoftware: pytorch\nsystem: {template: dgx-h100}\n")
    status, _, said = run(capsys, "predict", tmp_path / "s.yaml")
    assert status == 2
    assert "s.yaml:3: system: the program is written for one device, but the system has 8; give the system devices: 1" in said
    assert run(capsys, "predict", tmp_path / "s.yaml", "--set", "system.devices=1")[0] == 0
    (tmp_path / "study.yaml").write_text("scenario: s.yaml\nspace: {system.node.link.bandwidth: [400 GB/s, 450 GB/s]}\n")
    status, _, said = run(capsys, "study", tmp_path / "study.yaml")
    assert status == 2
    assert "system: the program is written for one device" in said
    assert "strategy" not in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--batch", "4"), "--batch is for models; a text of XLA says it itself"),
        (("--rank", "1"), "--rank is for models and records of crossflow emulate"),
        (
            ("--cost", "all-reduce=pass"),
            "--cost all-reduce: the text has no call or unknown operation of that name, nor any other; leave it out",
        ),
        (("--trips", "3"), "--trips: all loops of the text say how often they run; leave it out"),
        (("--cost", "a"), "--cost: expected name=FLOPS,BYTES"),
        (("--kernels", "none"), "kernels: expected one of fused, eager, got 'none'"),
    ],
)
def test_options_that_a_text_does_not_take_are_refused(tmp_path, capsys, words, sentence):
    status, _, said = run(capsys, "import", DATA / "decoder.hlo", "-o", tmp_path / "a.program.json", *words)
    assert status == 2
    assert sentence in said
    assert not list(tmp_path.iterdir())


def test_the_command_says_file_and_line(tmp_path, capsys):
    wrong = tmp_path / "wrong.mlir"
    wrong.write_text("graph {}\n")
    status, _, said = run(capsys, "import", wrong, "-o", tmp_path / "a.program.json")
    assert status == 2
    assert f"{wrong}:1: expected HLO" in said


def test_errors_of_files_are_spec_errors(tmp_path):
    with pytest.raises(SpecError, match="cannot be read"):
        import_text(tmp_path / "none.hlo")
