"""A small recommendation model worked out by hand: bytes and operations of every layer, energy, memory, what travels."""

import dataclasses
import functools
from dataclasses import replace

import numpy as np
import pytest

from crossflow.base import files
from crossflow.base.files import Document
from crossflow.cost.machine import Machine
from crossflow.engine.runs.dlrm import _exposed, dlrm_outcome, dlrm_prices, dlrm_step
from crossflow.hardware.architecture.software import load_stack
from crossflow.hardware.architecture.system import architecture, resolve
from crossflow.parallel.dlrm import rank_embeddings
from crossflow.parallel.dlrm_units import Builder
from crossflow.parallel.sharding.pieces import Piece, Sharding, singles
from crossflow.parallel.strategy.hierarchy import hierarchy_of
from crossflow.parallel.strategy.levels import Hierarchies
from crossflow.program.kernels import Attention, Pass, Product
from crossflow.workload.dlrm_spec import DlrmSpec
from crossflow.workload.jobs import dlrm_job

near = functools.partial(pytest.approx, rel=1e-12, abs=0.0)
SMALL = {
    "model": "dlrm", "tables": {"count": 16, "rows": 1000, "width": 32, "pooling": 4}, "dense_features": 13,
    "bottom": [64, 32], "top": [48, 8, 1], "global_batch": 1024, "dtype": "fp16", "table_dtype": "fp16",
    "exchange": {"forward": "fp16", "backward": "fp32", "indices": "int64"},
}  # fmt: skip
REPLICAS = {"dense": ["ddp"], "embedding": ["ddp"]}
ENCODER = {"interaction": {"kind": "transformer", "layers": 1, "heads": 4, "width": 32, "ffn": 64, "sequence": 8}}


def spec_of(**changes):
    return files.validate(DlrmSpec, Document(file="own", data={**SMALL, **changes}))


@functools.cache
def machine(nodes=1, node=1, stack="torchrec"):
    spec, _ = resolve(Document(file="system", data={"template": "zionex", "devices_per_node": node, "nodes": nodes}))
    return Machine(architecture=architecture(spec), network=spec.network, node=node, stack=load_stack(stack)[0])


def plans_of(spec, strategy, nodes=1, node=1):
    return Hierarchies.of([hierarchy_of(strategy)], spec.global_batch, node, nodes)


def units(strategy=REPLICAS, nodes=1, node=1, stack="torchrec", **changes):
    spec = spec_of(**changes)
    built = Builder(job=dlrm_job(spec), plans=plans_of(spec, strategy, nodes, node), stack=machine(stack=stack).stack).build()
    return {unit.name: unit for unit in built.units}


def moved(unit, phase):
    """Bytes of the passes of a unit in a phase, and their launches."""
    passes = [kernel for kernel in unit.kernels.get(phase, ()) if isinstance(kernel, Pass)]
    return sum(float(np.sum(one.moved)) for one in passes), sum(one.launches for one in passes)


def products(unit, phase):
    found = [kernel for kernel in unit.kernels.get(phase, ()) if isinstance(kernel, Product)]
    return [tuple(float(np.max(size)) for size in (one.m, one.n, one.k, one.batch)) for one in found]


def outcome(strategy=REPLICAS, nodes=1, node=1, on=None, **changes):
    spec, on = spec_of(**changes), on or machine(nodes, node)
    job, plans = dlrm_job(spec), plans_of(spec, strategy, nodes, node)
    made = dlrm_step(job, plans, on)
    return dlrm_outcome(job, made, dlrm_prices(made.program, 1, on), on.stack)


# ------------------------------------------------------------------------------------------ layers


def test_layers_of_an_mlp_by_hand():
    """64 of 13 features for 1024 samples in two bytes: activation r1 w1, backward r2 w1, bias r1."""
    first = units()["bottom.0"]
    assert [products(first, phase) for phase in ("forward", "input", "weight")] == [
        [(1024, 64, 13, 1)], [(1024, 13, 64, 1)], [(13, 64, 1024, 1)],
    ]  # fmt: skip
    assert [moved(first, phase) for phase in ("forward", "activation", "weight")] == [
        (2 * 2 * 1024 * 64, 1), (3 * 2 * 1024 * 64, 1), (2 * 1024 * 64, 1),
    ]  # fmt: skip
    assert first.parameters[0] == 13 * 64 + 64
    assert first.kept[0] == 1024 * (13 + 64) * 2


def test_interaction_reads_pooled_rows_and_the_bottoms_output_and_writes_both():
    """1024 samples of 16 pooled rows of 32, in fp16 forward and fp32 backward on the wire, and of 32 from the bottom, in fp16 here."""
    found = units()["interaction"]
    pooled, bottom = 1024 * 16 * 32, 1024 * 32
    assert moved(found, "forward") == (pooled * (2 + 2) + 2 * bottom * 2, 2)
    assert moved(found, "input") == (pooled * (2 + 4) + 2 * bottom * 2, 2)
    assert found.kept[0] == pooled * (2 + 2)
    assert found.parameters[0] == 0


def test_a_dot_interaction_multiplies_features_pairwise():
    """17 vectors of 32 a sample: 17 x 17 dot products forward, two such products backward, and a pass over their results."""
    found = units(interaction="dot")["interaction"]
    pooled, bottom = 1024 * 16 * 32, 1024 * 32
    assert products(found, "forward") == [(17, 17, 32, 1024)]
    assert products(found, "input") == [(17, 32, 17, 1024)] * 2
    assert moved(found, "forward") == (pooled * 4 + 2 * bottom * 2 + 1024 * 17 * 17 * 2, 3)
    assert moved(found, "input") == (pooled * 6 + 2 * bottom * 2 + 1024 * 17 * 17 * 2, 3)
    assert found.kept[0] == pooled * 4 + 1024 * 17 * 17 * 2


@pytest.mark.parametrize("kernel", ["flash", "unfused"])
def test_attention_of_an_encoder_by_hand(kernel):
    """16 tokens of 32 a sample, 4 heads of 8; norm r1 w1, residual r2 w1, backward r3 w1, r1, r2 w1; scale r1 w1 and softmax r1 w1."""
    own = load_stack("torchrec")[0]
    stack = own.model_copy(update={"attention": own.attention.model_copy(update={"kernel": kernel})})
    spec = spec_of(interaction={**ENCODER["interaction"], "sequence": 16})
    built = Builder(job=dlrm_job(spec), plans=plans_of(spec, REPLICAS), stack=stack).build()
    attention = next(unit for unit in built.units if unit.name == "interaction.0.attention")
    width, tokens, scores, fused = 1024 * 16 * 32, 1024 * 16, 1024 * 4 * 16 * 16, kernel == "flash"
    scored, summed = (16, 16, 8, 4096), (16, 8, 16, 4096)
    assert products(attention, "forward") == [(tokens, 96, 32, 1), (tokens, 32, 32, 1), *([] if fused else [scored, summed])]
    assert products(attention, "input") == [(tokens, 32, 96, 1), (tokens, 32, 32, 1), *([] if fused else [scored, summed, summed, summed])]
    assert moved(attention, "forward") == ((5 * width + (0 if fused else 4 * scores)) * 2, 2 if fused else 4)
    assert moved(attention, "input") == ((0 if fused else 5 * scores) * 2, 0 if fused else 2)
    assert moved(attention, "activation") == (8 * width * 2, 3)
    assert attention.kept[0] == (2 * width + tokens * (96 + 32) + (0 if fused else 2 * scores)) * 2
    found = [one for phase in ("forward", "input") for one in attention.kernels[phase] if isinstance(one, Attention)]
    sizes = [(one.samples[0], one.heads[0], one.length, one.seen, one.width, one.causal, one.backward) for one in found]
    assert sizes == ([(1024, 4, 16, 16, 8, False, backward) for backward in (False, True)] if fused else [])


def test_a_mlp_of_an_encoder_by_hand():
    found = units(**ENCODER)["interaction.0.mlp"]
    width, tokens = 1024 * 8 * 32, 1024 * 8
    assert products(found, "forward") == [(tokens, 64, 32, 1), (tokens, 32, 64, 1)]
    assert moved(found, "forward") == (5 * width * 2 + 2 * tokens * 64 * 2, 3)
    assert moved(found, "activation") == (8 * width * 2 + 3 * tokens * 64 * 2, 4)
    assert moved(found, "weight") == (tokens * 64 * 2, 1)
    assert found.kept[0] == (2 * width + tokens * (64 + 64)) * 2


def test_experts_take_their_samples_there_and_back():
    """Two of four experts for 1024 samples: permutation r1 w2 and a choice among four, and back r2 w1; 512 rows an expert."""
    found = units(experts={"count": 4, "active": 2})
    there, back = 1024 * 544 * 2, 1024 * 2
    assert moved(found["top.dispatch"], "forward") == (there + 2 * there + 1024 * 4 * 2, 4)
    assert moved(found["top.dispatch"], "input") == (3 * there, 4)
    assert moved(found["top.combine"], "forward") == (3 * back, 4)
    assert found["top.dispatch"].kept[0] == 2 * there
    assert products(found["top.0"], "forward") == [(512, 48, 544, 4)]
    assert found["top.0"].parameters[0] == 4 * (544 * 48 + 48)
    assert found["top.0"].kept[0] == 512 * 4 * (544 + 48) * 2


def test_what_two_ranks_exchange_that_share_layers_by_hand():
    """Of 1,024 samples in fp16: pairs of layers sum the second's outputs, and backward the first's inputs; an odd last one is gathered."""
    found = units({"dense": ["tp"], "embedding": ["mp"]}, 1, 2)
    assert [found[f"top.{i}"].after_forward[0].size[0] for i in range(3)] == [0, 1024 * 8 * 2, 1024 * 1 * 2]
    assert [found[f"bottom.{i}"].after_forward[0].size[0] for i in range(2)] == [0, 1024 * 32 * 2]
    assert [found[name].after_input[0].size[0] for name in ("bottom.0", "top.2")] == [1024 * 13 * 2, 1024 * 8 * 2]
    shared = units({"dense": ["ddp"], "embedding": ["mp"], "experts": ["tp"]}, 1, 2, experts={"count": 4, "active": 2})
    assert (shared["top.0"].after_input[0].size[0], shared["top.1"].after_forward[0].size[0]) == (4 * 512 * 544 * 2, 4 * 512 * 8 * 2)
    five = units({"dense": ["tp"], "embedding": ["mp"]}, 1, 2, top=[48, 8, 4, 2, 1])
    sent = [(one.collective, one.size[0]) for i in range(5) for one in five[f"top.{i}"].after_forward if one.size[0]]
    assert sent == [("all_reduce", 1024 * 8 * 2), ("all_reduce", 1024 * 2 * 2), ("all_gather", 1024 * 1 * 2)]


@pytest.mark.parametrize(("top", "size"), [(["tp"], 0.0), (["ddp"], 1024 * 64 * 2)])
def test_gradients_of_an_encoders_outputs_are_gathered_where_the_top_does_not_share_its_ranks(top, size):
    """Two ranks share the encoder: all 1,024 samples, 64 elements in fp16; a top that the same two share gives whole gradients."""
    strategy = {"dense": top, "embedding": ["mp"], "transformer": ["tp"]}
    found = units(strategy, 1, 2, **ENCODER)
    (gather,) = found["transformer.out"].before_backward
    assert (gather.collective, gather.size[0]) == ("all_gather", size)


@pytest.mark.parametrize("before", [["tp"], ["ddp"]])
def test_two_ranks_that_share_the_experts_hold_whole_samples_where_the_layer_before_left_them_whole(before):
    """Behind an encoder of the same two ranks the gradients of samples are summed over both; else inputs are gathered first."""
    strategy = {"dense": ["ddp"], "embedding": ["mp"], "transformer": before, "experts": ["tp"]}
    found = units(strategy, 1, 2, experts={"count": 4, "active": 2}, **ENCODER)["top.dispatch"]
    (gather,), (scatter, total) = found.before_forward, [send for send in found.after_input if send.collective != "all_to_all"]
    copies = 1024 * (32 + 32) * 2  # the bottom's output and the encoder's
    assert [send.size[0] for send in (gather, scatter, total)] == ([0, 0, copies] if before == ["tp"] else [copies, copies, 0])


# ------------------------------------------------------------------------------------------ embeddings


def looked_up(strategy, nodes=1, node=1, **changes):
    spec, on = spec_of(**changes), machine(nodes, node)
    return dlrm_step(dlrm_job(spec), plans_of(spec, strategy, nodes, node), on).tables[0]


def test_tables_on_one_device_by_hand():
    """16 tables of 1000 rows of 32; buffers: indices of 8 bytes and a length a table, twice for the sort, pooled rows both ways."""
    found = looked_up(REPLICAS)
    listed = 1024 * (16 * 4 * 8 + 16 * 4)
    assert found.parameters[0] == 16 * 1000 * 32
    assert found.rows[0] == 16 * 1000
    assert found.buffers[0] == near(2 * listed + 1024 * 16 * 32 * (2 + 4) + 2 * listed)


def test_tables_among_eight_devices_by_hand():
    """Two tables a device, no spare; its pooled rows of all samples go to their owners, in fp16 there and in fp32 back."""
    found = looked_up({"dense": ["ddp"], "embedding": ["mp"]}, 1, 8)
    pooled, listed = 1024 * 16 * 32 / 8, 1024 * (16 * 4 * 8 + 16 * 4) / 8
    assert found.parameters[0] == 2 * 1000 * 32
    assert found.rows[0] == 2 * 1000
    assert [(send.collective, send.size[0]) for send in found.forward if send.size[0] and send.group.size[0] > 1] == [
        ("all_to_all", pooled * 2)
    ]
    assert [(send.collective, send.size[0]) for send in found.backward if send.size[0] and send.group.size[0] > 1] == [
        ("all_to_all", pooled * 4)
    ]
    assert [send.size[0] for send in found.indices if send.group.size[0] > 1] == [listed]
    assert found.buffers[0] == near(4 * listed + pooled * 6)


def test_seventeen_tables_leave_one_of_eight_devices_with_three():
    tables = [{"count": 17, "rows": 1000, "width": 32, "pooling": 4}]
    found = looked_up({"dense": ["ddp"], "embedding": ["mp"]}, 1, 8, tables=tables)
    assert found.parameters[0] == near(3 * 1000 * 32)
    assert found.rows[0] == near(3 * 1000)


def test_the_fullest_of_devices_that_share_whole_tables_has_more_of_everything():
    """Half as much again of tables, rows, buffers and bytes that travel; replicas hold all tables alike."""
    among = {"dense": ["ddp"], "embedding": ["mp"]}
    even, fullest = (looked_up(among, 1, 8, uneven=factor) for factor in (1.0, 1.5))
    for name in ("parameters", "rows", "buffers"):
        assert getattr(fullest, name)[0] == near(1.5 * getattr(even, name)[0])
    assert [send.size[0] for send in fullest.forward] == [near(1.5 * send.size[0]) for send in even.forward]
    assert looked_up(REPLICAS, 1, 8, uneven=1.5).parameters[0] == looked_up(REPLICAS, 1, 8).parameters[0]


# ------------------------------------------------------------------------------------------ a step


def energies(dtype="fp16"):
    device = machine().architecture
    return float(device.energy_per_flop[dtype][0]), float(device.memory.energy[0])


def test_the_energy_of_a_step_is_that_of_its_operations_and_its_traffic():
    """Caches of a device whose chip power is known take none of their own; without what units draw while they work."""
    on = machine()
    on = dataclasses.replace(on, architecture=dataclasses.replace(on.architecture, working_power=None))
    found, (flop, byte) = outcome(on=on), energies()
    assert found.energy[0] == near(found.flops[0] * flop + found.traffic[0] * byte)


def test_eight_devices_with_as_many_samples_each_take_eight_times_as_much():
    """Dense part and tables are whole on each, and each has its own 1024 samples; nothing but gradients of tables differs."""
    one, eight = outcome(frozen=["embedding"]), outcome(nodes=1, node=8, global_batch=8192, frozen=["embedding"])
    for figure in ("energy", "flops", "traffic", "model_flops"):
        assert getattr(eight, figure)[0] == near(8 * getattr(one, figure)[0])


def test_operations_of_a_forward_pass_by_hand():
    """Products of 1024 samples, and an operation for each activation."""
    found = outcome(task="forward")
    weights, results = 13 * 64 + 64 * 32 + 544 * 48 + 48 * 8 + 8, 64 + 32 + 48 + 8 + 1
    assert found.model_flops[0] == near(2 * 1024 * weights)
    assert found.flops[0] == near(2 * 1024 * weights + 1024 * results)


def test_memory_of_one_device_by_hand():
    """Weights and gradients of the dense part as the stack keeps them, two states in fp32; tables in fp16 with one state a row."""
    stack, found = machine().stack, outcome(optimizer="adam", table_optimizer="rowwise_adagrad").memory
    dense = 13 * 64 + 64 + 64 * 32 + 32 + 544 * 48 + 48 + 48 * 8 + 8 + 8 + 1
    assert found["weights"][0] == near(dense * stack.weight_size(2) + 16 * 1000 * 32 * 2)
    assert found["optimizer"][0] == near(dense * 4 * 2 + 16 * 1000 * 4)
    kept = 2 * ((13 + 64) + (64 + 32) + (544 + 48) + (48 + 8) + (8 + 1)) + 16 * 32 * (2 + 2)
    assert found["activations"][0] == near(1024 * kept)
    tensors = sum(size[0] for kind, size in found.items() if kind != "framework")
    assert found["framework"][0] == near(stack.memory.context[0] + stack.memory.fragmentation[0] * tensors)


def test_the_optimizer_reads_and_writes_its_states():
    """A step that trains the top alone less one that trains nothing in it: gradient r1, weight r1 w1, two states r1 w1, in fp32."""
    spec, on = spec_of(frozen=["embedding", "bottom"], optimizer="adam"), machine()
    made = dlrm_step(dlrm_job(spec), plans_of(spec, REPLICAS), on)
    updated = [made.program.kernels[i] for op in made.program.ops if op.phase == "optimizer" for i in op.kernels]
    top = 544 * 48 + 48 + 48 * 8 + 8 + 8 + 1
    once = 1 if on.stack.fuses("optimizer", 2) else 3
    assert [float(one.moved[0]) for one in updated] == [near(once * top * 4 * (3 + 2 * 2))]


def test_a_sharding_gives_ranks_their_own_tables():
    """Rank 0 holds table 0 of 1000 x 32 with 4 rows a sample, rank 1 table 1 of 10 x 8 with 1; rank 0 sends the most."""
    tables = [{"count": 1, "rows": 1000, "width": 32, "pooling": 4}, {"count": 1, "rows": 10, "width": 8, "pooling": 1}]
    spec = spec_of(tables=tables, bottom=[64, 32], exchange={"forward": "fp16", "backward": "fp16", "indices": "int64"})
    job = dlrm_job(spec)
    sharding = Sharding(
        name="own", ranks=2, pieces=tuple(Piece.whole(i, table) for i, table in enumerate(singles(job.model.tables))), where=(0, 1)
    )
    first, second = rank_embeddings(job, plans_of(spec, {"dense": ["ddp"], "embedding": ["mp"]}, 1, 2), sharding)
    assert (first.parameters[0], second.parameters[0], first.rows[0], second.rows[0]) == (32000, 80, 1000, 10)
    assert first.forward[0].size[0] == second.forward[0].size[0] == 1024 * 32 * 2
    assert first.indices[0].size[0] == 1024 * (4 * 8 + 4)
    assert second.buffers[0] == 1024 * (4 * (8 + 4) + 8 * (2 + 2))


@pytest.mark.parametrize("ahead", [True, False])
def test_sharded_weights_of_the_next_layer_travel_before_this_one_computes(ahead):
    """Of the interaction, which has none, nothing travels; without overlap every gather stands right before its layer."""
    own = machine(1, 8)
    on = replace(own, stack=own.stack.model_copy(update={"overlap": own.stack.overlap.model_copy(update={"gather": ahead})}))
    spec = spec_of(task="forward")
    made = dlrm_step(dlrm_job(spec), plans_of(spec, {"dense": ["fsdp"], "embedding": ["mp"]}, 1, 8), on)
    names = [op.name.removesuffix(" forward") for op in made.program.ops]
    tables, g = ["all_to_all", "embedding lookups", "all_to_all"], "all_gather"
    early = [g, *tables, g, "bottom.0", "bottom.1", g, "interaction", g, "top.0", g, "top.1", "top.2"]
    late = [*tables, g, "bottom.0", g, "bottom.1", "interaction", g, "top.0", g, "top.1", g, "top.2"]
    assert names == (early if ahead else late)


def test_a_wait_is_for_its_own_collective_and_else_for_those_that_it_queued_behind_by_hand():
    """Of waits of 5 and 1 s for collectives of 3 and 2 s, 2 s are left over; the second and the third have 1 and 3 s of room for them."""
    times = {("a", "all_reduce"): np.array([3.0]), ("b", "all_reduce"): np.array([2.0]), ("b", "all_to_all"): np.array([3.0])}
    waits = {"a.all_reduce": np.array([5.0]), "b.all_reduce": np.array([1.0])}
    assert [one.item() for one in _exposed(times, waits).values()] == [3.0, 1.5, 1.5]
