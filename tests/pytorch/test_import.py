"""PyTorch models as programs: work, messages and memory that are known, and what is refused."""

import gc
import json
import os
import runpy
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import crossflow
from crossflow.base.errors import CrossflowError
from crossflow.evidence.torch import record
from crossflow.program import write_program
from crossflow.program.kernels import Attention, Lookup, Pass, Product

HERE = Path(__file__).parent / "models.py"
WIDTH, WORDS, LAYERS, TOKENS = 64, 256, 2, 32


def imported(name="gpt", **given):
    return record(f"{HERE}:{name}", **({"sequence": TOKENS} if name in ("gpt", "wide") else {}), **given)


def kernels(program, kind, phase=""):
    return [program.kernels[i] for op in program.ops if phase in ("", op.phase) for i in op.kernels if isinstance(program.kernels[i], kind)]


def moved(program):
    return sum(one.moved for phase in ("forward", "backward") for one in kernels(program, Pass, phase))


def sent(program, phase=""):
    """How many messages of each kind go along which axes, and their bytes."""
    found = {}
    for op in program.ops:
        if op.message is not None and phase in ("", op.phase):
            one = program.messages[op.message]
            count, size = found.get((one.collective, one.axes), (0, 0.0))
            found[one.collective, one.axes] = count + 1, size + one.size
    return found


def test_work_is_that_of_the_model():
    """Six operations a weight of a product and token; attention 4 products' worth of causal pairs forward, and 10 backward."""
    program = imported(batch=2)
    weights = LAYERS * 12 * WIDTH**2 + WORDS * WIDTH
    assert sum(one.flops for one in kernels(program, Product)) == 6 * weights * 2 * TOKENS
    assert program.parameters == weights + WORDS * WIDTH + (2 * LAYERS + 1) * 2 * WIDTH
    attention = kernels(program, Attention)
    assert Counter((one.backward, one.samples, one.heads, one.length, one.width) for one in attention) == {
        (backward, 2, 4, TOKENS, 16): LAYERS for backward in (False, True)
    }
    assert all(one.causal for one in attention)
    assert (program.samples, program.tokens, program.trains) == (2, TOKENS, True)


def test_inference_is_the_forward_pass():
    program = imported(task="inference", optimizer="none")
    assert {op.phase for op in program.ops} == {"forward"}
    assert not program.trains
    assert not {"gradients", "optimizer"} & set(program.memory[0])


def test_operations_know_their_layer_in_both_passes():
    layers = {(op.layer, op.phase) for op in imported().ops}
    assert {("blocks.1.up", "forward"), ("blocks.1.up", "backward"), ("optimizer", "update")} <= layers


def test_fused_passes_move_less_and_compute_the_same():
    fused, eager = imported(), imported(kernels="eager")
    assert moved(fused) < 0.9 * moved(eager)
    assert len(fused.ops) < len(eager.ops)
    assert Counter(kernels(fused, Product)) == Counter(kernels(eager, Product))


def test_replicas_reduce_every_gradient_once():
    """In buckets that are reduced when they hold 1 MiB (the first) or 25 MiB, in fp32 as frameworks do, or as the weights are."""
    program = imported("wide", world_size=8, parallel="ddp")
    sizes = [program.messages[op.message].size for op in program.ops if op.message is not None]
    assert set(sent(program)) == {("all_reduce", ("dp",))}
    assert sum(sizes) == 4 * program.parameters
    assert sizes[0] >= 2**20
    assert all(size >= 25 * 2**20 for size in sizes[1:-1])
    assert len(sizes) == 5
    for gradients, size in (("fp32", 4), ("weights", 2)):
        narrow = imported(world_size=8, parallel="ddp", dtype="bf16", gradients=gradients)
        assert sent(narrow)["all_reduce", ("dp",)] == (1, size * narrow.parameters)


def test_reductions_run_beside_the_backward_pass():
    """A bucket waits for its gradients alone, and no kernel but the optimizer waits for it."""
    ops = imported("wide", world_size=8, parallel="ddp").ops
    buckets = {i for i, op in enumerate(ops) if op.message is not None}
    waiting = [op.phase for op in ops if op.message is None and buckets & set(op.after)]
    assert waiting == ["update"]


def test_shards_are_gathered_twice_and_hold_their_share():
    program = imported(world_size=8, parallel="fsdp2")
    axis = ("fsdp",)
    whole = LAYERS + 2, 4 * program.parameters  # the table, and norm and head, beside the layers
    assert sent(program, "forward") == {("all_gather", axis): whole}
    assert sent(program, "backward") == {("all_gather", axis): whole, ("reduce_scatter", axis): whole}
    assert program.memory[0]["weights"] == 4 * program.parameters / 8


def test_gathers_run_beside_the_kernels_before():
    """The gather of the second block does not wait for the products of the first."""
    program = imported(world_size=8, parallel="fsdp2")
    gathers = [i for i, op in enumerate(program.ops) if op.message is not None and op.phase == "forward"]
    products = [i for i, op in enumerate(program.ops) if op.layer == "blocks.0.up" and op.phase == "forward"]
    assert gathers[2] < products[0]


def test_shards_and_their_replicas_are_two_axes():
    program = imported(world_size=8, parallel="hsdp=4")
    assert dict(program.axes) == {"fsdp": 4, "dp": 2}
    assert sent(program, "backward")["all_reduce", ("dp",)] == (LAYERS + 2, program.parameters)


def test_tensor_parallelism_sends_what_our_own_builder_sends(tmp_path):
    """Two sums a layer and pass, and those of table, head and loss."""
    program = imported(world_size=4, parallel="tp=4")
    workload = {"model": "transformer", "layers": LAYERS, "hidden": WIDTH, "heads": 4, "ffn": 4 * WIDTH, "gated": False,
                "vocabulary": WORDS, "sequence": TOKENS, "positions": "none", "norm": "layernorm",
                "biases": False, "tied_embeddings": False,
                "global_batch": 1, "dtype": "fp32"}  # fmt: skip
    from crossflow.answers.evaluation.events import events

    scenario = crossflow.from_dict(
        {"system": {"template": "dgx-h100", "devices_per_node": 4, "nodes": 1}, "workload": workload, "strategy": {"tp": 4}}
    )
    ours = {one.shape: one.count for one in events(scenario).events if one.op == "all_reduce"}
    theirs = Counter(f"{program.messages[op.message].size:.0f} B" for op in program.ops if op.message is not None)
    whole, loss = f"{4 * TOKENS * WIDTH} B", f"{4 * TOKENS} B"
    assert theirs == {whole: ours[whole], loss: 3}
    assert ours[f"{12 * TOKENS} B"] == 1  # the three numbers of the loss at once
    assert program.memory[0]["weights"] < 4 * program.parameters / 3.5


@pytest.mark.parametrize("name", ["own_replicas", "mapping", "step"])
def test_functions_may_divide_the_model_themselves(name):
    program = imported(name, world_size=8)
    assert sent(program) == {("all_reduce", ("d0",)): (1, 4 * program.parameters)}
    assert sum(op.calls for op in program.ops if op.host == "kernel") == (name == "step")  # loss.item()


def test_samples_of_a_step_are_those_of_its_calls():
    """A step calls its model twice, on four samples each; where its inputs do not agree, it has to be told."""
    model, data = torch.nn.Linear(8, 8), torch.randn(4, 8)
    step = lambda *sizes: [model(torch.randn(size, 8)).sum().backward() for size in sizes] and None  # noqa: E731
    assert record(lambda: lambda: step(4, 4)).samples == 8
    other = torch.nn.MultiheadAttention(8, 2)
    with pytest.raises(CrossflowError, match="runs the step itself, and its inputs do not say how many samples a step has; give --samples"):
        record(lambda: lambda: other(data, torch.randn(6, 8), torch.randn(6, 8))[0].sum().backward())
    assert imported("step", world_size=8).samples == 32


@pytest.mark.parametrize(("parallel", "axes"), [("ddp", {"dp": 8}), ("tp=2,ddp", {"tp": 2, "dp": 4})])
def test_axes_along_which_nothing_is_sent_have_their_names(parallel, axes):
    assert dict(imported(world_size=8, parallel=parallel, task="inference").axes) == axes


def test_replicas_send_their_buffers_before_a_step():
    """Running means, variances and counts of batches; not those of replicas that are told not to, nor in inference."""
    program = imported("normed", world_size=8)
    assert sent(program, "forward") == {("broadcast", ("d0",)): (2, 2 * 16 * 4 + 8)}
    assert program.samples == 8 * 4
    place = max(i for i, op in enumerate(program.ops) if op.message is not None and op.phase == "forward")
    assert place in program.ops[place + 1].after
    assert sent(imported("normed", world_size=8, task="inference"), "forward") == {}
    assert sent(imported("without_buffers", world_size=8), "forward") == {}


def test_groups_of_a_device_mesh_are_axes():
    program = imported("own_mesh", world_size=8)
    assert dict(program.axes) == {"tensor": 4, "data": 2}
    assert {axes for _, axes in sent(program)} == {("tensor",), ("data",)}
    assert program.samples == 8


def test_convolutions_are_implicit_products():
    first, second, last = kernels(imported("convolutions"), Product, "forward")
    assert (first.m, first.n, first.k) == (4 * 32 * 32, 16, 27)
    assert (second.m, second.n, second.k, second.batch) == (4 * 15 * 15, 16, 8 * 9, 2)
    assert (last.m, last.n, last.k) == (4, 10, 32)


def test_recurrent_layers_and_tables_are_taken_apart():
    program = imported("recurrent")
    assert len(kernels(program, Product, "forward")) == 11  # inputs of all steps at once
    assert sum(one.flops for one in kernels(program, Product, "backward")) == 2 * sum(
        one.flops for one in kernels(program, Product, "forward")
    )
    (table,) = kernels(imported("pooled"), Lookup, "forward")
    assert (table.samples, table.rows, table.width, table.pooling) == (8, 1000, 16, 4)
    (added,) = kernels(imported("pooled"), Lookup, "backward")
    assert (added.part, added.samples, added.rows, added.pooling) == ("gradient", 8, 1000, 4)


@pytest.mark.parametrize(("kind", "kept"), [(torch.nn.LSTM, 5), (torch.nn.GRU, 4), (torch.nn.RNN, 1)])
def test_recurrent_layers_keep_their_gates_and_cells(kind, kept):
    """As kernels of a GPU do, whatever joins pointwise operations."""
    fused, eager = (record(lambda: (kind(64, 64, 2), torch.randn(10, 4, 64)), kernels=kernels) for kernels in ("fused", "eager"))
    assert fused.memory == eager.memory
    assert 4 * 10 * 4 * 64 * (2 * kept + 1) in {one.size for one in fused.tensors if one.kind == "activations"}
    assert fused.memory[0]["activations"] < 4 * 10 * 4 * 64 * (2 * kept + 1 + 9)
    assert record(lambda: (kind(64, 64, 2), torch.randn(10, 4, 64)), task="inference").memory[0]["activations"] < 4 * 10 * 4 * 64 * 3


def test_scenarios_take_the_file(tmp_path, out):
    file = write_program(imported(world_size=8, parallel="ddp", dtype="bf16"), tmp_path / "gpt.program.json.gz")
    scenario = {"system": {"template": "dgx-h100", "nodes": 1}, "workload": str(file), "software": "megatron-core"}
    path = tmp_path / "gpt.json"
    path.write_text(json.dumps(scenario))
    step = json.loads(out("predict", str(path), "--json"))["step_time_s"]
    assert crossflow.simulate(crossflow.from_dict(scenario)).total == pytest.approx(step, rel=1e-9)
    assert crossflow.explain(crossflow.from_dict(scenario)).limiting is not None
    assert "all_reduce" in out("events", str(path))


def test_studies_vary_the_hardware_under_an_imported_program(tmp_path, out):
    """Memory and links matter, each in its own measure; a search starts from the scenario as it is."""
    program = write_program(imported("wide", world_size=16, parallel="ddp", dtype="bf16"), tmp_path / "wide.program.json.gz")
    (tmp_path / "wide.json").write_text(json.dumps({"system": {"template": "dgx-h100", "nodes": 2}, "workload": str(program)}))
    hardware = {"system.levels.memory.bandwidth": ["2 TB/s", "8 TB/s"], "system.network.inter.bandwidth": ["5 GB/s", "50 GB/s"]}
    study = {"name": "hardware", "title": "Hardware", "scenario": "wide.json"}
    (tmp_path / "sweep.json").write_text(json.dumps({**study, "sweep": hardware}))
    assert "memory.bandwidth  inter.bandwidth" in out("study", str(tmp_path / "sweep.json"), "--out", str(tmp_path))
    rows = [json.loads(line)["step_time_s"] for line in (tmp_path / "points.jsonl").read_text().splitlines()]
    assert rows[0] > 1.02 * rows[2] > rows[3]
    assert rows[0] > 1.5 * rows[1]
    space = {"placement": "all", "system.levels.memory.bandwidth": hardware["system.levels.memory.bandwidth"]}
    searches = {"as it is": {"searcher": "given"}, "all": {"searcher": "exhaustive"}}
    (tmp_path / "search.json").write_text(json.dumps({**study, "space": space, "searches": searches}))
    text = out("study", str(tmp_path / "search.json"), "--out", str(tmp_path))
    assert "as it is  dp16" in text


def test_timelines_and_explanations_take_an_imported_program(tmp_path, out, recwarn):
    program = write_program(imported(world_size=8, parallel="ddp"), tmp_path / "gpt.program.json.gz")
    (tmp_path / "gpt.json").write_text(json.dumps({"system": {"template": "dgx-h100", "nodes": 1}, "workload": str(program)}))
    timeline = out("timeline", str(tmp_path / "gpt.json"))
    assert "forward" in timeline
    assert "backward" in timeline
    assert "elasticity" in out("explain", str(tmp_path / "gpt.json"))
    assert not recwarn.list


@pytest.mark.thorough
def test_the_example_of_the_guide_runs(tmp_path, capsys, monkeypatch):
    """Three clusters and five ways to divide its model, here with fewer layers."""
    for name in ("model.py", "clusters.py"):
        text = (Path(crossflow.__file__).parents[1] / "docs/examples/own-model" / name).read_text()
        (tmp_path / name).write_text(text.replace("layers=24", "layers=4"))
    monkeypatch.syspath_prepend(tmp_path)
    runpy.run_path(str(tmp_path / "clusters.py"))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9
    assert lines[-1].startswith("best: ")


def test_the_command_writes_a_program_and_says_what_it_holds(tmp_path, out):
    words = ("import", f"{HERE}:gpt", "--world-size", "8", "--parallel", "ddp", "--sequence", "32", "-o", str(tmp_path / "a.program.json"))
    found = json.loads(out(*words, "--json"))
    assert found["mesh"] == {"dp": 8}
    assert found["messages"][0]["count"] == 1
    assert "all_reduce" in out(*words)


LINES = {"raises": "raise KeyError", "leaves": "raise SystemExit", "routed": "torch.nonzero", "on_device": ".cuda()"}  # where they fail
REFUSED = {
    "nothing": ("", "{0} has no function 'nothing'"),
    "gpt": ("--world-size 8", "{0}:gpt: none of the 8 ranks sends anything to another; give --parallel, or a world of 1"),
    "without_inputs": ("", "{0}:without_inputs returns Conv2d without inputs, and they do not follow from it; return (model, inputs)"),
    "raises": ("", "{0}:raises raised KeyError (line {1} of models.py): 'no such thing'"),
    "leaves": ("", "{0}:leaves raised SystemExit (line {1} of models.py): 3"),
    "number": ("", "{0}:number returns str; expected a model, (model, inputs), (model, inputs, loss), or a step to run"),
    "step": ("--world-size 8 --parallel ddp", "{0}:step runs the step itself; leave --parallel out, or return the model"),
    "own_replicas": ("--world-size 8 --parallel ddp", "the function divides the model itself; leave --parallel out"),
    "pairs": (
        "--world-size 8",
        "ranks 0, 3 communicate, which lie at no equal distances in the world of 8; use groups of a device mesh",
    ),
    "routed": (
        "",
        "{0}:routed: what runs depends on the values of data, which the import does not have; take a routing whose shapes are fixed, such "
        "as grouped products, or return of a detector its backbone and heads, with a loss of what they give (line {1} of models.py)",
    ),
    "on_device": (
        "",
        "{0}:on_device: the import runs on fake tensors of the CPU; choose the device by torch.cuda.is_available() (line {1} of models.py)",
    ),
    "mlp": ("--world-size 6 --parallel tp=4,ddp", "--parallel tp=4,ddp: tp = 4 does not divide the world of 6 ranks"),
}


def state():
    """What an import changes for a while."""
    changed = torch.compile, torch.nn.Module._apply, torch.nn.parallel.DistributedDataParallel, torch.distributed.init_process_group
    changed += torch.distributed.destroy_process_group, torch.distributed.device_mesh.init_device_mesh, gc.get_freeze_count()
    return *changed, torch.get_default_dtype(), torch.distributed.is_initialized(), sys.excepthook, list(sys.path), os.environ.get("RANK")


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_use_is_one_sentence_and_leaves_nothing(name, tmp_path, refused):
    words, sentence = REFUSED[name]
    target, before = tmp_path / "a.program.json", state()
    sequence = ("--sequence", "32") if name == "gpt" else ()
    line = next((i for i, text in enumerate(HERE.read_text().splitlines(), 1) if LINES.get(name, "?") in text), 0)
    said = refused("import", f"{HERE}:{name}", *words.split(), *sequence, "-o", str(target))
    if name == "on_device" and torch.backends.cuda.is_built():  # fails where both meet, in torch
        sentence = sentence.partition(" (line")[0]
    assert said == f"crossflow: {sentence.format(HERE, line)}\n"
    assert not target.exists()
    assert before == state()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("dpd", "--parallel: expected words among ddp, fsdp, fsdp2, hsdp, tp, pp, got 'dpd'; did you mean 'ddp'?"),
        ("pp", "--parallel: expected pp=8, got 'pp'"),
        ("tp", "--parallel: expected tp=8, got 'tp'"),
        ("ddp,fsdp", "--parallel ddp,fsdp: ddp and fsdp exclude each other; give one of them"),
        ("tp=4", "--parallel tp=4: it leaves 2 of 8 ranks without work; add ddp or fsdp, or take a world of 4"),
        ("hsdp=3", "--parallel hsdp=3: 3 shards do not fill the 8 ranks beside tp; `hsdp=K` shards over K of them"),
    ],
)
def test_wrong_words_of_parallelism_are_refused(text, sentence, exactly):
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        imported(world_size=8, parallel=text)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_model_of_7b_at_1024_ranks():
    """Nothing of it is in memory; operations are six a weight and token, and those of attention."""
    program = record(f"{HERE}:large", world_size=1024, parallel="tp=8,fsdp", sequence=2048, dtype="bf16")
    weights = 32 * 12 * 4096**2 + 32000 * 4096
    assert program.parameters == weights + 32000 * 4096 + 65 * 2 * 4096
    assert sum(one.flops for one in kernels(program, Product)) * 8 == pytest.approx(6 * weights * 2048, rel=0.01)
    assert np.prod(list(dict(program.axes).values())) == 1024
