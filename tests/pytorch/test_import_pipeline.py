"""Pipeline stages of imported models: what each computes, sends and holds, and the step that follows."""

import functools
import json
from collections import Counter
from pathlib import Path

import pytest

import crossflow
from crossflow.base.errors import CrossflowError
from crossflow.evidence.torch import record
from crossflow.program import write_program
from crossflow.program.kernels import Product
from crossflow.program.program import Message

torch = pytest.importorskip("torch")

HERE = Path(__file__).parent / "models.py"
WIDTH, WORDS, TOKENS = 64, 256, 32
IDEAL = {"template": "dgx-h100", "nodes": 1, "devices_per_node": 4}


def staged(parallel="pp=4", microbatches=8, name="deep", world_size=4, **given):
    given = {"batch": microbatches or 4, "sequence": TOKENS if name in ("deep", "tied", "tied_apart", "shared") else None, **given}
    return record(f"{HERE}:{name}", world_size=world_size, parallel=parallel, microbatches=microbatches, **given)


def flops(program, rank=None):
    kernels = [program.kernels[i] for op in program.ops if rank in (None, op.rank) for i in op.kernels]
    return sum(one.flops for one in kernels if isinstance(one, Product))


def sent(program):
    found = Counter()
    for op in program.ops:
        if op.message is not None:
            one = program.messages[op.message]
            found[one.collective, op.rank, op.phase, one.size] += 1
    return found


def predicted(program, folder, **given):
    file = write_program(program, folder / "model.program.json.gz")
    return crossflow.predict(crossflow.from_dict({"system": IDEAL, "workload": str(file), "software": "ideal", **given}))


@pytest.mark.cases(2)
@pytest.mark.parametrize("microbatches", [1, 2, 3, 8])
def test_stages_compute_what_the_whole_model_does(microbatches):
    program = staged(microbatches=microbatches)
    whole = record(f"{HERE}:deep", sequence=TOKENS)
    assert flops(program) == microbatches * flops(whole)
    assert (program.parameters, program.samples, dict(program.axes)) == (whole.parameters, microbatches, {"pp": 4})
    head = 3 * 2 * TOKENS * WIDTH * WORDS * microbatches
    assert flops(program, 0) == flops(program, 1) == flops(program, 2) == flops(program, 3) - head


def test_a_first_stage_that_is_not_trained_has_no_backward_pass():
    """Nothing of it tells where the next microbatch begins: at the first stage all the same."""
    program = staged("pp=2", microbatches=4, name="half_frozen", world_size=2, sequence=TOKENS)
    assert sent(program) == {("send_recv", 0, "forward", 4 * TOKENS * WIDTH): 4}
    layer = 4 * 2 * TOKENS * WIDTH * (4 * WIDTH + 2 * 4 * WIDTH)  # of four microbatches, forward
    assert (flops(program, 0), {op.phase for op in program.ops if op.rank == 0 and op.kernels}) == (2 * layer, {"forward"})
    assert flops(program, 1) == 3 * (2 * layer + 4 * 2 * TOKENS * WIDTH * WORDS)


def test_a_boundary_carries_each_microbatch_once_in_both_directions():
    size = 4 * TOKENS * WIDTH
    down = {("send_recv", rank, "forward", size): 8 for rank in (0, 1, 2)}
    assert sent(staged()) == {**down, **{("send_recv", rank, "backward", size): 8 for rank in (1, 2, 3)}}


def test_replicas_of_a_stage_reduce_its_gradients_once():
    found = sent(staged("pp=4,ddp", world_size=8, dtype="bf16"))
    block = 12 * WIDTH**2 + 4 * WIDTH
    sizes = (block + WORDS * WIDTH, block, block, block + 2 * WIDTH + WORDS * WIDTH)
    assert {rank: size for (kind, rank, _, size), count in found.items() if kind == "all_reduce" and count == 1} == {
        rank: 4 * size for rank, size in enumerate(sizes)
    }


@pytest.mark.thorough
def test_tensor_groups_and_replicas_lie_inside_a_stage():
    program = staged("tp=2,pp=4,ddp", world_size=16)
    assert list(program.axes) == [("tp", 2), ("dp", 2), ("pp", 4)]
    assert program.samples == 2 * 8
    assert flops(program) == 8 * flops(record(f"{HERE}:deep", sequence=TOKENS)) / 2


def test_stages_hold_their_own_weights_and_the_activations_of_1f1b():
    """Stage i keeps those of 4 - i microbatches."""
    held = staged(dtype="bf16").memory
    block = 12 * WIDTH**2 + 4 * WIDTH
    assert [one["weights"] for one in held] == [2 * (block + WORDS * WIDTH), 2 * block, 2 * block, 2 * (block + 2 * WIDTH + WORDS * WIDTH)]
    assert [one["optimizer"] for one in held] == [6 * one["weights"] for one in held]
    assert [one["gradients"] for one in held] == [2 * one["weights"] for one in held]
    first, second, third = (one["activations"] for one in held[:3])
    assert first > second > third
    more = staged(microbatches=16, dtype="bf16").memory
    assert more == held


def test_ends_that_share_a_table_hold_it_each_and_add_up_its_gradients():
    """As Megatron does: one all-reduce between the ends, after the replicas', before the update."""
    program, alone = staged("pp=4,ddp", name="tied", world_size=8, dtype="bf16"), record(f"{HERE}:tied", sequence=TOKENS)
    assert program.parameters == alone.parameters
    block, table = 12 * WIDTH**2 + 4 * WIDTH, WORDS * WIDTH
    assert [one["weights"] for one in program.memory] == [2 * (block + more) for more in (table, 0, 0, 2 * WIDTH + table)]
    sums = [op for op in program.ops if op.message is not None and program.messages[op.message].between]
    assert [(op.rank, op.phase, op.meets) for op in sums] == [(rank, "update", "sum of table.weight and head.weight") for rank in (0, 3)]
    assert {program.messages[op.message] for op in sums} == {Message(collective="all_reduce", size=4 * table, axes=("pp",), between=(0, 3))}
    assert not any(program.messages[op.message].between for op in staged().ops if op.message is not None)


def test_a_tied_head_that_is_not_called_is_held_where_the_module_around_it_reads_it():
    found, called = (staged("pp=4,ddp", name=name, world_size=8, dtype="bf16") for name in ("tied_apart", "tied"))
    assert [one["weights"] for one in found.memory] == [one["weights"] for one in called.memory]
    assert {op.rank for op in found.ops if op.meets} >= {0, 3}
    assert flops(found) == flops(called)


def test_shards_of_a_stage_are_gathered_as_torch_does():
    """1F1B: blocks before a forward pass unless a backward pass came just before, and before a backward pass that follows a forward.

    `torch.distributed.pipelining` on four real ranks sends as many: 11 gathers and 3 reductions of each of two stages, 4 microbatches.
    """
    program = staged("pp=2,fsdp", world_size=4, batch=8, microbatches=4)
    block, table, head = (4 * one for one in (12 * WIDTH**2 + 4 * WIDTH, WORDS * WIDTH, WORDS * WIDTH + 2 * WIDTH))
    found = {key: count for key, count in sent(program).items() if key[0] != "send_recv"}
    assert found == {
        ("all_gather", 0, "forward", table): 1, ("all_gather", 0, "forward", block): 4, ("all_gather", 0, "backward", block): 6,
        ("all_gather", 1, "forward", head): 1, ("all_gather", 1, "forward", block): 2, ("all_gather", 1, "backward", block): 8,
        **{("reduce_scatter", rank, "update", block): 2 for rank in (0, 1)},
        ("reduce_scatter", 0, "update", table): 1, ("reduce_scatter", 1, "update", head): 1,
    }  # fmt: skip
    assert [one["weights"] for one in program.memory] == [block + table / 2, block + head / 2]
    assert list(staged("tp=2,pp=2,hsdp=2", world_size=16).axes) == [("tp", 2), ("fsdp", 2), ("dp", 2), ("pp", 2)]


def test_shards_and_replicas_of_a_stage_compute_the_same():
    assert flops(staged("pp=4,fsdp", world_size=8)) == flops(staged("pp=4,ddp", world_size=8))


def without_transfers(found):
    """Seconds of a step without the transfers that nothing hides, and of its bubble."""
    parts = found.to_dict()["breakdown_s"]
    return found.step_time - parts["exposed_communication"], parts["bubble"]


def test_one_microbatch_takes_the_sum_of_its_stages(tmp_path):
    program = staged(name="stack", microbatches=1, dtype="bf16", optimizer="none")
    whole = record(f"{HERE}:stack", dtype="bf16", optimizer="none")
    alone = predicted(whole, tmp_path, system={**IDEAL, "devices_per_node": 1})
    assert without_transfers(predicted(program, tmp_path))[0] == pytest.approx(alone.step_time, rel=1e-6)


@pytest.mark.parametrize("microbatches", [4, 12])
def test_the_bubble_is_that_of_equal_stages(microbatches, tmp_path):
    program = staged(name="stack", microbatches=microbatches, dtype="bf16", optimizer="none")
    step, bubble = without_transfers(predicted(program, tmp_path))
    assert bubble / step == pytest.approx(3 / (microbatches + 3), rel=0.03)


def test_inference_goes_one_way(tmp_path):
    program = staged(task="inference", optimizer="none")
    assert set(sent(program)) == {("send_recv", rank, "forward", 4 * TOKENS * WIDTH) for rank in (0, 1, 2)}
    assert {op.phase for op in program.ops} == {"forward"}


def test_commands_take_the_file(tmp_path, out):
    file = tmp_path / "deep.program.json.gz"
    words = ("--world-size", "4", "--parallel", "pp=4", "--batch", "8", "--microbatches", "8", "--sequence", "32", "-o", str(file))
    assert json.loads(out("import", f"{HERE}:deep", *words, "--json"))["mesh"] == {"pp": 4}
    scenario = {"system": IDEAL, "workload": str(file), "software": "megatron-core"}
    path = tmp_path / "deep.json"
    path.write_text(json.dumps(scenario))
    step = json.loads(out("predict", str(path), "--json"))["step_time_s"]
    assert crossflow.simulate(crossflow.from_dict(scenario)).total == pytest.approx(step, rel=1e-9)
    assert crossflow.explain(crossflow.from_dict(scenario)).limiting is not None
    assert "send_recv" in out("events", str(path))


LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 11008, "vocab_size": 32000,
         "max_position_embeddings": 4096, "num_hidden_layers": 8, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}  # fmt: skip


@pytest.mark.cases(1)
@pytest.mark.parametrize(("microbatches", "tied"), [(1, False), (4, True), (16, False)])
def test_the_step_is_that_of_our_own_builder(microbatches, tied, tmp_path):
    pytest.importorskip("transformers")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "tie_word_embeddings": tied}))
    program = record(str(path), world_size=4, parallel="pp=4", batch=microbatches, microbatches=microbatches, sequence=4096)
    ours = crossflow.from_dict({
        "system": IDEAL, "workload": {"model": str(path), "global_batch": microbatches, "sequence": 4096},
        "strategy": {"pp": 4, "micro_batch": 1},
    })  # fmt: skip
    found = predicted(program, tmp_path, software=ours.stack.name)
    assert found.step_time == pytest.approx(crossflow.predict(ours).step_time, rel=0.03)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"parallel": "pp=8", "world_size": 8},
            "--parallel pp=8: the longest list of equal layers of Gpt has 4; take at most as many stages",
        ),
        ({"batch": 6}, "a batch of 6 does not divide into 8 microbatches; give --batch or --microbatches so that it does"),
        ({"microbatches": 0}, "the microbatches are a whole number of 1 or more"),
        (
            {"parallel": "ddp"},
            "microbatches go through the stages of a pipeline; give --parallel pp=K, or leave --microbatches out",
        ),
        ({"parallel": "pp=3"}, "--parallel pp=3: pp = 3 does not divide the world of 4 ranks"),
        (
            {"name": "shared"},
            "--parallel pp=4: stages 0 and 3 share the weights table.weight, which no module of stage 3 holds; give it a module with these "
            "weights, or, where layers run several times, leave pp out",
        ),
    ],
)
def test_stages_that_cannot_be_are_refused(given, sentence, exactly):
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        staged(**given)


OWN_STAGES = 4


def own_stage(known=True):
    """A stage of `torch.distributed.pipelining` of the rank that runs, as a script makes it."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    number, width = torch.distributed.get_rank(), 16
    part = torch.nn.Sequential(torch.nn.Linear(width, width, bias=False), torch.nn.Linear(width, width, bias=False))
    given, made = torch.ones(2, width, requires_grad=number > 0), torch.ones(2, width, requires_grad=True)
    shapes = {"input_args": given, "output_args": made} if known else {}
    stage = PipelineStage(part, number, OWN_STAGES, torch.device("cpu"), **shapes)
    schedule = Schedule1F1B(stage, 8, loss_fn=torch.nn.functional.mse_loss)
    whole = torch.ones(16, width)

    def step():
        schedule.step(*([whole] if number == 0 else []), **({"target": whole} if number == OWN_STAGES - 1 else {}))

    return step


@pytest.mark.parametrize(("rank", "transfers", "products"), [(0, 8, 5), (2, 16, 6), (3, 8, 6)])
def test_a_rank_runs_a_stage_of_its_own(rank, transfers, products):
    """Forward and backward 8 microbatches each come and go; two matrices multiply three times each, the very first has no input to mend."""
    program = record(own_stage, world_size=OWN_STAGES, samples=16, rank=rank)
    sent = Counter((op.phase, program.messages[op.message].collective) for op in program.ops if op.message is not None)
    assert sent == {("forward", "send_recv"): transfers, ("backward", "send_recv"): transfers}
    assert {one.size for one in program.messages} == {2 * 16 * 4}
    assert sum(isinstance(program.kernels[i], Product) for op in program.ops for i in op.kernels) == 8 * products


def test_the_first_stage_needs_no_shapes_and_later_ones_do():
    """What comes back is as large as what it gives."""
    known, asked = (record(functools.partial(own_stage, known=one), world_size=OWN_STAGES, samples=16) for one in (True, False))
    assert len(known.ops) == len(asked.ops)
    with pytest.raises(CrossflowError, match=r"a stage of a pipeline asks the stage before it for shapes, .*give PipelineStage input_args"):
        record(functools.partial(own_stage, known=False), world_size=OWN_STAGES, samples=16, rank=1)


def test_ranks_are_those_of_the_world_and_of_functions():
    with pytest.raises(CrossflowError, match=r"^rank 4: the ranks of a world of 4 are 0 to 3; give another --rank or --world-size$"):
        record(own_stage, world_size=OWN_STAGES, rank=4)
    with pytest.raises(CrossflowError, match="with --parallel crossflow chooses which ranks are run; leave --rank out"):
        record(own_stage, world_size=OWN_STAGES, parallel="ddp", rank=0)
