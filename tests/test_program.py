"""Programs: written by hand or by builders, saved, read back, and the workload of a scenario."""

import gzip
import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from crossflow import evaluate, from_dict, load, predict, simulate
from crossflow.__main__ import main
from crossflow.answers.evaluation.events import events
from crossflow.answers.explanation.sensitivity import explain
from crossflow.answers.search.exhaustive import every
from crossflow.answers.search.goals import Objective
from crossflow.answers.search.problem import SearchProblem
from crossflow.answers.search.space import Options, Space
from crossflow.answers.steps.programs import placed
from crossflow.base.errors import CrossflowError, SpecError, StrategyError
from crossflow.base.formats import DTYPE_BYTES
from crossflow.edges.cli.show import look_up
from crossflow.parallel.blocks import block_program
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.reading import every_strategy
from crossflow.program.builder import ProgramBuilder
from crossflow.program.file import document_of, program_of, read_program, write_program
from crossflow.program.groups import DeviceGroup
from crossflow.program.kernels import Attention, Pass, Product, Timed

MLP = {"tp": 2, "dp": 4}
SCORES = {"kind": "attention", "samples": 1, "heads": 8, "length": 512, "seen": 512, "width": 64}


def mlp(**changes):
    """A layer of a transformer's MLP in training, by hand: forward, backward, two collectives, one of them behind computing."""
    built = ProgramBuilder(name="mlp", dtype="bf16", axes=changes.pop("axes", MLP))
    up = built.compute("up", Product(m=4096, n=8192, k=4096), phase="forward")
    down = built.compute("down", Product(m=4096, n=4096, k=8192), Pass(moved=1e8, flops=1e8), phase="forward", after=[up])
    summed = built.send("all_reduce", 3.4e7, ["tp"], phase="forward", after=[down])
    first = built.compute("down.back", Product(m=4096, n=8192, k=4096), phase="backward", after=[summed])
    built.send("all_reduce", 6.7e7, ["dp"], name="gradients", phase="backward", after=[first])
    built.compute("up.back", Product(m=4096, n=4096, k=8192), phase="backward", after=[first])
    built.hold("weights", 1.3e8)
    built.hold("activations", 6.7e7, made=up, last=first)
    return replace(built.build(samples=16, tokens=2048, parameters=6.7e7), **changes)


def scenario_of(program, folder, system=None, **more):
    path = write_program(program, folder / "step.program.json")
    return from_dict({"system": system or {"template": "dgx-h100", "nodes": 1}, "workload": str(path), **more})


@pytest.mark.parametrize("name", ["step.json", "step.json.gz"])
def test_file_round_trip(tmp_path, name):
    program = mlp()
    read = read_program(write_program(program, tmp_path / name))
    assert document_of(read) == document_of(program)
    assert read.ops == program.ops
    assert read.kernels == program.kernels
    assert (tmp_path / name).read_bytes()[:2] == (b"\x1f\x8b" if name.endswith("gz") else b"{\n")


def test_a_scenario_names_its_program(tmp_path):
    """By a path from its own folder, short or long, plain or compressed: one prediction, with the program's samples and tokens."""
    write_program(mlp(), tmp_path / "mlp.json")
    write_program(mlp(), tmp_path / "mlp.json.gz")
    steps = []
    for written in ("mlp.json", "{model: mlp.json.gz}", "{model: program, file: mlp.json}"):
        path = tmp_path / "scenario.yaml"
        path.write_text(f"system: {{template: dgx-h100, nodes: 1}}\nworkload: {written}\nrun: {{tokens: 3.2768e9}}\n")
        scenario = load(path)
        assert (scenario.workload_batch, scenario.tokens_per_sample, str(scenario.strategy)) == (16, 2048, "tp2-dp4")
        prediction = predict(scenario)
        steps.append(prediction.step_time)
        assert prediction.run["time_s"] == pytest.approx(1e5 * prediction.step_time)
    assert steps[0] > 0
    assert steps == [steps[0]] * 3


@pytest.mark.slow
def test_prediction_explanation_and_timeline_agree(tmp_path):
    scenario = scenario_of(mlp(), tmp_path)
    prediction, timeline = predict(scenario), simulate(scenario)
    assert timeline.total == prediction.step_time
    assert {"up", "down", "up.back"} <= set(timeline.names)
    score = prediction.score
    assert sum(part[0] for part in score.breakdown.values()) == pytest.approx(score.step_time[0])
    assert 0 < score.breakdown["exposed_communication"][0] < sum(value[0] for value in score.communication.values())
    assert score.memory["weights"][0] == 1.3e8
    report = explain(scenario)
    assert max(effect.gain for effect in report.effects if effect.gain is not None) > 0


@pytest.mark.slow
def test_what_must_matter_matters(tmp_path):
    """Links, clocks, sizes, phases and data types each move the step; so does the order in which operations stand."""
    base = predict(scenario_of(mlp(), tmp_path)).step_time
    slower = {"template": "dgx-h100", "nodes": 1, "network": {"intra": {"bandwidth": "100 GB/s"}}}
    assert predict(scenario_of(mlp(), tmp_path, slower)).step_time > 1.2 * base
    narrow = predict(scenario_of(mlp(dtype="fp8"), tmp_path)).step_time
    assert narrow < 0.9 * base
    blocking = mlp()
    *front, back = blocking.ops
    assert predict(scenario_of(replace(blocking, ops=(*front, replace(back, after=(4,)))), tmp_path)).step_time > base
    by_hand = predict(scenario_of(mlp(), tmp_path, software="megatron-core")).step_time
    assert by_hand > base, "products of training steps lose what the software's lose"
    forward = mlp()
    forward = replace(forward, ops=tuple(replace(op, phase="forward") for op in forward.ops))
    assert predict(scenario_of(forward, tmp_path, software="megatron-core")).step_time < by_hand


@pytest.mark.parametrize("system", [{"template": "pathfinder"}, {"template": "a100-80gb"}, {"template": "h100-sxm"}])
def test_one_law(tmp_path, system):
    """The same product costs the same from the builder of graphs and from a program by hand, whatever the device."""
    m, n, k = 4096, 3072, 2048
    graph = from_dict({"system": system, "workload": {"model": "gemm", "m": m, "n": n, "k": k, "dtype": "bf16"}})
    built = ProgramBuilder(dtype="bf16")
    built.compute("product", Product(m=m, n=n, k=k))
    ours, theirs = predict(scenario_of(built.build(), tmp_path, system)).score, predict(graph).score
    assert ours.step_time == pytest.approx(theirs.step_time, rel=1e-9)
    assert ours.energy == pytest.approx(theirs.energy, rel=1e-9)
    assert ours.bound_by == theirs.bound_by


def test_a_graph_is_the_same_through_a_file(tmp_path):
    """Pipeline, collectives and memory of an LSTM come out of its program's file as they come out of its builder."""
    system = {"template": "pathfinder", "devices": 16}
    workload = {"model": "lstm", "hidden": 4096, "vocabulary": 16000, "sequence": 4, "global_batch": 64}
    graph = from_dict({"system": system, "workload": workload, "strategy": "RC-2-2-d2-p2"})
    read = scenario_of(graph.program(), tmp_path, system)
    ours, theirs = predict(read), predict(graph)
    assert ours.step_time == pytest.approx(theirs.step_time, rel=1e-12)
    assert ours.score.energy == pytest.approx(theirs.score.energy, rel=1e-12)
    for kind, held in theirs.score.memory.items():
        assert ours.score.memory[kind] == pytest.approx(held)
    assert simulate(read).total == pytest.approx(simulate(graph).total, rel=1e-12)


def test_budgets_vary_in_one_batch(tmp_path):
    scenario = scenario_of(mlp(), tmp_path, {"template": "pathfinder", "devices": 8})
    watts = np.array([150.0, 300.0, 600.0])
    together = evaluate(scenario, {"system.budgets.power": watts})
    alone = [predict(scenario_of(mlp(), tmp_path, {"template": "pathfinder", "devices": 8, "budgets": {"power": f"{w} W"}})) for w in watts]
    assert together.step_time == pytest.approx([one.step_time for one in alone], rel=1e-12)
    assert np.all(np.diff(together.step_time) < 0)


def test_lower_bound_is_below(tmp_path):
    scenario = scenario_of(mlp(), tmp_path)
    assert evaluate(scenario, least=True).step_time[0] < evaluate(scenario).step_time[0]


def test_memory_is_what_lives_at_once():
    """Two buffers that follow each other count once; with weights on top, at the fullest moment."""
    built = ProgramBuilder()
    ops = [built.compute(str(i), Product(m=8, n=8, k=8)) for i in range(4)]
    built.hold("weights", 100.0)
    built.hold("buffers", 30.0, made=ops[0], last=ops[1])
    built.hold("buffers", 50.0, made=ops[2], last=ops[3])
    assert built.build().memory == ({"weights": 100.0, "buffers": 50.0},)
    built.hold("buffers", 30.0, made=ops[1], last=ops[2])
    assert built.build().memory == ({"weights": 100.0, "buffers": 80.0},)


def test_the_host_waits_in_a_call():
    """What is launched behind a call of the host waits for it."""
    built = ProgramBuilder(dtype="bf16")
    first = built.compute("one", Product(m=64, n=64, k=64))
    built.compute("item", calls=2, after=[first])
    op = built.build().ops[-1]
    assert (op.stream, op.calls, op.after) == ("host", 2, (0,))


def test_host_calls_fill_a_stream_of_their_own(tmp_path):
    """A host that is slower than its kernels sets the pace, and is drawn beside them."""
    built = ProgramBuilder(dtype="bf16")
    data = {**document_of(mlp()), "mesh": {}}
    data["ops"] = [{"name": "launch", "calls": 2000}, {"name": "kernel", "kernels": [0], "after": [0]}]
    data["tensors"], data["messages"] = [], []
    built = program_of(data)
    scenario = scenario_of(built, tmp_path, {"template": "h100-sxm"}, software="megatron-core")
    score = predict(scenario).score
    per_call = scenario.stack.host.kernel
    assert score.breakdown["other"][0] == pytest.approx(2000 * float(np.squeeze(per_call)), rel=0.01)
    assert simulate(scenario).total == score.step_time[0]


def broken(change):
    data = document_of(mlp())
    change(data)
    return data


ATTENTION = {"kind": "attention", "samples": 1, "heads": 8, "length": 8, "seen": 8, "width": 8}
BROKEN = [
    (lambda data: data.update(groups={"tp": {"ranks": 2}}), "groups.tp: expected a name that no axis of the mesh has"),
    (lambda data: data.update(groups={"third": {"ranks": 3}}), "groups.third: expected ranks x stride to divide the 8 devices"),
    (lambda data: data.update(groups={"far": {"ranks": 4, "stride": 4}}), "to divide the 8 devices of the mesh, got 4 x 4"),
    (lambda data: data.update(groups={"far": {"ranks": 4, "strid": 2}}), "strid"),
    (lambda data: data.update(version=2), "version: its format is 2, of a later crossflow"),
    (lambda data: data.update(dtype="bf61"), "dtype: expected one of"),
    (lambda data: data.update(meshes={}), "unknown key 'meshes'"),
    (lambda data: data["kernels"][0].pop("m"), "kernels[0]"),
    (lambda data: data["kernels"][0].update(kind="conv"), "kernels[0]"),
    (lambda data: data["kernels"][0].update(m=-1), "kernels[0]"),
    (lambda data: data["ops"][0].update(kernels=[99]), "ops[0].kernels: expected a number from 0 to"),
    (lambda data: data["ops"][1].update(after=[1]), "ops[1].after: operation 1 does not stand before it"),
    (lambda data: data["ops"][0].update(rank=1), "ops[0].rank: expected a number from 0 to 0"),
    (lambda data: data["ops"][2].update(kernels=[0]), "kernels or sends a message, not both"),
    (lambda data: data["messages"][0].update(axes=["pt"]), "'pt' is not an axis of the mesh; axes: tp, dp"),
    (lambda data: data["messages"][0].update(collective="allreduce"), "messages[0].collective"),
    (lambda data: data["messages"][0].update(size="8 parsec"), "messages[0].size"),
    (lambda data: data["tensors"][1].update(last=99), "tensors[1].last: expected a number from 0 to 5"),
    (lambda data: data["kernels"].append(SCORES | {"window": 64, "causal": False}), "window: a window is supported under a causal"),
    (lambda data: data["kernels"].append(SCORES | {"window": 64, "length": 1}), "window: a single query sees what 'seen' says"),
    (lambda data: data["kernels"].append(SCORES | {"window": 64, "seen": 64}), "seen: expected all keys that are read, 512 or more"),
    (lambda data: data["kernels"].append(SCORES | {"chunked": True}), "chunked: chunks need a window, the tokens of a chunk"),
    (lambda data: data.update(ops=[]), "ops"),
    (lambda data: data["messages"][0].update(axes=[""]), "'' is not an axis of the mesh"),
    (lambda data: data["messages"][0].update(axes=["tp", "tp"]), "messages[0].axes: expected each axis once, got tp, tp"),
    (
        lambda data: data["messages"][0].update(between=[0, 2]),
        "messages[0].between: expected two places in order along one axis",
    ),
    (lambda data: data["messages"][1].update(axes=["tp", "dp"], between=[0, 1]), "messages[1].between: expected two places in order"),
    (lambda data: data["tensors"][1].update(made=3, last=1), "tensors[1].last: operation 1 stands before 3, which makes it"),
    (lambda data: data.update(stages="tp"), "ops: expected operations of every class of ranks along 'tp', got none of rank 1"),
    (lambda data: data["kernels"][0].update(n=0), "kernels[0]"),
    (lambda data: data["kernels"][0].update(m="1024"), "kernels[0].m: expected a number, got '1024'; write it without quotes"),
    (lambda data: data["kernels"][0].update(m=True), "kernels[0].m: expected a number, got True"),
    (lambda data: data["kernels"][0].update(adds="yes"), "kernels[0].adds: expected true or false, got 'yes'"),
    (lambda data: data.update(version=True), "version: the number of its format: expected 1, got True"),
    (lambda data: data["mesh"].update(tp=True), "mesh.tp: expected a whole number, got True"),
    (lambda data: data.update(samples=16.5), "samples: expected a whole number, got 16.5"),
    (
        lambda data: data["kernels"].append({**ATTENTION, "kv_heads": 16}),
        "kernels[3].kv_heads: expected at most the 8 heads of queries, got 16",
    ),
    (
        lambda data: data["ops"].append({"name": "nothing"}),
        "ops[6]: it does nothing: give it kernels, a message or calls; one that only joins others names them in 'after'",
    ),
    (lambda data: data.update(kind="progam"), "kind: expected"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("change", "said"), BROKEN)
def test_a_broken_file_names_the_place(tmp_path, change, said):
    path = tmp_path / "step.program.json"
    path.write_text(json.dumps(broken(change)))
    with pytest.raises(SpecError, match=re.escape(said)) as caught:
        from_dict({"system": {"template": "dgx-h100", "nodes": 1}, "workload": str(path)})
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].file == str(path)


def test_files_that_are_no_programs(tmp_path):
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(gzip.compress(json.dumps(document_of(mlp())).encode())[:-20])
    with pytest.raises(SpecError, match=r"cut\.json\.gz: expected a program in JSON"):
        read_program(cut)
    with pytest.raises(SpecError, match=r"none\.json: cannot be read: No such file"):
        read_program(tmp_path / "none.json")


def test_numbers_that_say_the_same_are_read():
    """A size as text with its unit, a whole number with a point, and an operation that joins two others."""
    data = broken(lambda data: data["ops"].append({"name": "join", "after": [4, 5]}))
    data["tensors"][0]["size"], data["samples"] = "130 MB", 16.0
    assert program_of(data).tensors[0].size == 1.3e8
    assert type(program_of(data).samples) is int


@pytest.mark.parametrize("name", ["step.yaml", "step.gz", "step"])
def test_a_program_has_the_name_of_a_json_file(tmp_path, name):
    path = tmp_path / name
    for call in (lambda: write_program(mlp(), path), lambda: read_program(path)):
        with pytest.raises(SpecError) as caught:
            call()
        assert str(caught.value) == f"{path}: a program is JSON; give its file a name that ends in .json or .json.gz"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"axes": (("tp", 8),)}, "messages[1].axes: 'dp' is not an axis of the mesh; axes: tp"),
        ({"dtype": "bf61"}, f"dtype: expected one of {', '.join(DTYPE_BYTES)}, got 'bf61'; did you mean 'bf16'?"),
        ({"kernels": (Product(m=np.array([8.0, 9.0]), n=8, k=8),) * 4}, "kernels[0].m: expected a number, got an array of shape (2,)"),
    ],
)
def test_nothing_is_written_that_is_not_read(tmp_path, change, said):
    path = tmp_path / "step.json"
    with pytest.raises(SpecError) as caught:
        write_program(replace(mlp(), **change), path)
    assert str(caught.value).splitlines()[0] == f"{path}: {said}"
    assert not path.exists()


def test_numbers_of_numpy_are_written(tmp_path):
    program = mlp(samples=np.int64(16), parameters=np.float32(8.0), axes={"tp": np.int64(2), "dp": 4})
    assert read_program(write_program(program, tmp_path / "step.json")).axes == (("tp", 2), ("dp", 4))


BUILT = ProgramBuilder(axes={"tp": 8})
SMALL = Product(m=8, n=8, k=8)
PLACE = "expected the place of an operation, as compute and send return it"
MISUSED = [
    (lambda: ProgramBuilder(axes=["tp"]), TypeError, "axes: expected sizes of axes by name, such as {'tp': 8}, got ['tp']"),
    (lambda: ProgramBuilder(axes={"tp": "8"}), TypeError, "axes 'tp': expected a whole number of 1 or more, got '8'"),
    (lambda: ProgramBuilder(groups={"far": 8}), TypeError, "groups 'far': expected a DeviceGroup, got 8"),
    (lambda: BUILT.compute("x", "y"), TypeError, "x: expected kernels (Product, Pass, Attention, Lookup, Scan, Experts, Timed), got 'y'"),
    (lambda: BUILT.compute("x", SMALL, after=3), TypeError, "after: expected a list of places of operations, such as [0], got 3"),
    (lambda: BUILT.compute("x", SMALL, after=["a"]), TypeError, f"after: {PLACE}, got 'a'"),
    (lambda: BUILT.compute("x", SMALL, after=[7]), ValueError, "after: there is no operation 7; 0 were added so far, counted from 0"),
    (lambda: BUILT.repeat("3").__enter__(), TypeError, "count: expected a whole number of copies, got '3'"),
    (lambda: BUILT.send("all_reduce", "8 MB", ["tp"]), TypeError, "size: expected bytes as a number, got '8 MB'"),
    (lambda: BUILT.send("all_reduce", 8.0, "tp"), TypeError, "among: expected a list of axes, such as ['tp'], got 'tp'"),
    (lambda: BUILT.send("all_reduce", 8.0, ["tq"]), ValueError, "'tq' is not an axis of the mesh; axes: tp"),
    (lambda: BUILT.hold("weights", "8 MB"), TypeError, "size: expected bytes as a number, got '8 MB'"),
    (lambda: BUILT.hold("weights", 8.0, made="x"), TypeError, f"made: {PLACE}, got 'x'"),
    (lambda: BUILT.carry(1, 0), ValueError, "last: there is no operation 1; 0 were added so far, counted from 0"),
]


@pytest.mark.parametrize(("call", "kind", "said"), MISUSED)
def test_a_wrong_call_says_what_it_expects(call, kind, said, exactly):
    with pytest.raises(kind, match=exactly(said)):
        call()


JSON_TEXTS = [
    ('{"kind": "program", "kind": "program"}', "duplicate key 'kind'"),
    ('{"kind": "program", "parameters": NaN}', "NaN is no number of JSON"),
    ("[" * 100_000, "it is nested too deeply"),
]


@pytest.mark.parametrize(("text", "said"), JSON_TEXTS)
def test_texts_that_are_not_json(tmp_path, text, said):
    path = tmp_path / "step.program.json"
    path.write_text(text)
    with pytest.raises(SpecError, match=re.escape(f"step.program.json: expected a program in JSON, {said}")):
        read_program(path)


LOOKUP = {"kind": "lookup", "samples": 1, "tables": 1, "rows": 1, "width": 1, "pooling": 1}
IMPOSSIBLE = [
    ({"kind": "product", "m": 1e308, "n": 1, "k": 1}, "m: expected at most 1"),
    ({**LOOKUP, "element": 0}, "element: expected more than 0"),
    ({**LOOKUP, "load": 0.5}, "load: expected at least 1"),
]


@pytest.mark.parametrize(("kernel", "said"), IMPOSSIBLE)
def test_sizes_that_no_kernel_has(kernel, said):
    with pytest.raises(SpecError, match=re.escape(f"kernels[0].{said}")):
        program_of({**document_of(mlp()), "kernels": [kernel]})


@pytest.mark.slow
def test_what_a_program_says_itself_is_refused_elsewhere(tmp_path):
    with pytest.raises(SpecError, match="a program says by itself how it is divided; leave strategy out"):
        scenario_of(mlp(), tmp_path, strategy="d8")
    with pytest.raises(StrategyError, match="a mesh of 8 devices"):
        scenario_of(mlp(), tmp_path, {"template": "dgx-h100", "nodes": 2})
    path = write_program(mlp(), tmp_path / "mlp.json")
    with pytest.raises(SpecError, match="unknown key 'dtype'"):
        from_dict({"system": {"template": "dgx-h100", "nodes": 1}, "workload": {"model": str(path), "dtype": "fp8"}})
    with pytest.raises(SpecError, match=r"profile: there is no file times\.csv"):
        scenario_of(mlp(), tmp_path, profile="times.csv")
    with pytest.raises(StrategyError, match="a program says by itself"):
        every_strategy(scenario_of(mlp(), tmp_path).workload, (8, 1))
    aside = mlp()
    aside = replace(aside, ops=(*aside.ops[:-1], replace(aside.ops[-1], stream="second")))
    with pytest.raises(CrossflowError, match="kernels on several streams share a device and have no timeline"):
        simulate(scenario_of(aside, tmp_path))


def grouped(system, folder, axes, among, groups=None):
    """A collective among the axes of a mesh or in groups of devices, with its scenario."""
    built = ProgramBuilder(name="sum", dtype="bf16", axes=axes, groups=groups or {})
    made = built.compute("make", Product(m=4096, n=4096, k=4096))
    built.send("all_reduce", 1e9, [among], after=[made])
    return scenario_of(built.build(), folder, system, placement=[name for name, size in axes.items() if size > 1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "system", [{"template": "dgx-h100", "nodes": 2}, {"template": "pathfinder", "devices": 16}], ids=["switched", "torus"]
)
def test_a_group_of_devices_is_an_axis_of_a_finer_mesh(tmp_path, system):
    devices, seen = 16, set()
    for ranks, stride in ((2, 1), (4, 2), (2, devices // 2)):
        finer = {"near": stride, "group": ranks, "far": devices // (ranks * stride)}
        expected = predict(grouped(system, tmp_path, finer, "group")).score
        group = {"some": DeviceGroup(ranks=ranks, stride=stride)}
        scenario = grouped(system, tmp_path, {"all": devices}, "some", group)
        found = predict(scenario).score
        assert found.step_time == pytest.approx(expected.step_time, rel=1e-12)
        assert found.energy == pytest.approx(expected.energy, rel=1e-12)
        assert simulate(scenario).total == pytest.approx(float(expected.step_time[0]), rel=1e-12)
        assert events(scenario).to_dict() == events(grouped(system, tmp_path, finer, "group")).to_dict()
        seen.add(float(found.step_time[0]))
    assert len(seen) > 1


def test_a_group_stands_alone():
    both = lambda data: data.update(groups={"half": {"ranks": 4}}) or data["messages"][0].update(axes=["tp", "half"])  # noqa: E731
    with pytest.raises(SpecError, match="expected axes of the mesh, or a single group, got tp, half"):
        program_of(broken(both))


def test_placement_is_searched_or_given(tmp_path):
    """The axis that sends most lies closest; an order that is given is kept."""
    built = ProgramBuilder(dtype="bf16", axes={"near": 2, "far": 8})
    one = built.compute("product", Product(m=4096, n=4096, k=4096))
    built.send("all_reduce", 1e9, ["far"], after=[one])
    scenario = scenario_of(built.build(), tmp_path, {"template": "dgx-h100", "nodes": 2})
    assert placed(scenario, scenario.program()).order[0] == "far"
    given = scenario_of(built.build(), tmp_path, {"template": "dgx-h100", "nodes": 2}, placement=["near", "far"])
    assert predict(given).step_time > 1.5 * predict(scenario).step_time


def ends(folder, axes, nodes, **pair):
    """Stages along pp, the first and the last of which add something up."""
    built = ProgramBuilder(axes=axes, stages="pp")
    for rank in range(axes["pp"]):
        one = built.compute("pass", Pass(moved=1e8), rank=rank)
        if rank in (0, axes["pp"] - 1):
            built.send("all_reduce", 1e8, ["pp"], after=[one], rank=rank, meets="sum", **pair)
    return scenario_of(built.build(), folder, {"template": "dgx-h100", "nodes": nodes}, placement=list(axes))


@pytest.mark.parametrize(("nodes", "replicas"), [(1, 2), (4, 8)])
def test_ends_of_a_pipeline_sum_as_two_stages_do(tmp_path, nodes, replicas):
    """What lies between them takes no part and no time; the step of the events and of the timeline is the same."""
    found, plain = ends(tmp_path, {"dp": replicas, "pp": 4}, nodes, between=(0, 3)), tmp_path / "plain"
    plain.mkdir()
    two = ends(plain, {"dp": replicas, "pp": 2} if nodes > 1 else {"dp": 4, "pp": 2}, 2 if nodes > 1 else 1)
    assert predict(found).step_time == pytest.approx(predict(two).step_time, rel=1e-12)
    assert simulate(found).total == pytest.approx(predict(found).step_time, rel=1e-12)
    (mine,), (other,) = ([one for one in events(scenario).events if one.op == "all_reduce"] for scenario in (found, two))
    assert (mine.ranks, mine.scope, mine.time, mine.count) == (2, other.scope, pytest.approx(other.time), replicas)


def test_a_message_between_stages_is_sent_by_these(tmp_path):
    with pytest.raises(SpecError, match=re.escape("messages[0].between: expected the classes that send it, got 0 and 1")):
        ends(tmp_path, {"dp": 2, "pp": 4}, 1, between=(0, 1))


def test_the_best_order_of_a_program_is_that_of_the_least_time_of_its_messages(tmp_path):
    """Replicas leave their node in any order; those that share a node reduce there first, and use all ports of the node."""
    built = ProgramBuilder(axes={"dp": 16, "pp": 2}, stages="pp")
    for rank in range(2):
        built.send("send_recv", 3e7, ["pp"], rank=rank)
        built.send("all_reduce", 1e9, ["dp"], rank=rank)
    orders = [predict(scenario_of(built.build(), tmp_path, {"template": "dgx-h100", "nodes": 4}, **one)).step_time
              for one in ({}, {"placement": ["dp", "pp"]}, {"placement": ["pp", "dp"]})]  # fmt: skip
    assert orders[0] == min(orders[1:]) < 0.9 * max(orders[1:])


def test_attention_of_a_program(tmp_path):
    """A causal half, twice the samples, five products backward instead of two."""

    def step(**changes):
        built = ProgramBuilder(dtype="bf16")
        sizes = {"samples": 2, "heads": 32, "length": 4096, "seen": 4096, "width": 128, "causal": False} | changes
        built.compute("attention", Attention(**sizes))
        return predict(scenario_of(built.build(), tmp_path, {"template": "h100-sxm"})).score

    whole = step()
    assert step(causal=True).flops == pytest.approx(whole.flops / 2, rel=1e-3)
    assert step(samples=4).flops == pytest.approx(2 * whole.flops)
    assert step(backward=True).flops == pytest.approx(2.5 * whole.flops)
    assert step(backward=True).step_time > 2 * whole.step_time


def test_show_counts_what_a_program_holds(tmp_path):
    sheet = look_up(str(write_program(mlp(), tmp_path / "mlp.json.gz")))
    assert (sheet.kind, sheet.settings["ops"], sheet.settings["mesh"]) == ("program", 6, "tp 2 x dp 4")


def test_kernels_on_two_streams_share_their_device(tmp_path):
    """Two at once take as long as one after the other, but for a launch; one beside a collective fills its wait."""

    def step(stream, *, waits):
        built = ProgramBuilder(dtype="bf16", axes={"tp": 8})
        one = built.compute("one", Product(m=8192, n=8192, k=8192))
        sent = [built.send("all_reduce", 1e9, ["tp"], after=[one])] if waits else []
        built.compute("two", Product(m=8192, n=8192, k=8192), after=sent)
        built.compute("beside", Product(m=8192, n=8192, k=8192), after=[one] if waits else [], stream=stream)
        found = predict(scenario_of(built.build(), tmp_path))
        assert found.feasible
        return found.step_time

    product = step("compute", waits=False) / 3
    assert step("second", waits=False) == pytest.approx(3 * product, rel=0.01)
    assert step("compute", waits=True) - step("second", waits=True) == pytest.approx(product, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("seen", "share"), [(4096, 0.5), (8192, 0.75), (1024, 0.25 * 0.875), (1, 1 / 4096)])
def test_causal_attention_counts_the_keys_that_queries_see(tmp_path, seen, share):
    """All of a prompt: half; a prompt behind a cache: more; a window: its area of the triangle, which a single key is less than."""

    def step(causal, keys):
        built = ProgramBuilder(dtype="bf16")
        built.compute("attention", Attention(samples=1, heads=8, length=4096, seen=keys, width=128, causal=causal))
        return predict(scenario_of(built.build(), tmp_path, {"template": "h100-sxm"})).score

    full = step(False, 4096).flops[0] * (seen / 4096 if seen > 4096 else 1.0)
    assert step(True, seen).flops[0] == pytest.approx(share * full, rel=2e-4)


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "system"), [("fp8", "dgx-h100"), ("mxfp8", "dgx-b200"), ("bf16", "dgx-h100")])
def test_events_of_a_transformer_cost_the_same_in_a_program(tmp_path, dtype, system):
    """Products, those that add in 32 bits and those that stay in 16 among them, event by event, but for launches."""
    workload = {"model": "llama2-7b", "global_batch": 16, "sequence": 2048, "dtype": dtype}
    node = {"template": system, "nodes": 1}
    seen = set()
    for event in events(from_dict({"system": node, "workload": workload, "strategy": "tp4-dp2"})).events:
        kernel = kernel_of(event, dtype)
        if kernel is None:
            continue
        seen.add(event.op)
        assert time_alone(kernel, dtype, node, tmp_path) == pytest.approx(event.time, rel=1e-9), (event.op, event.shape)
    assert {"gemm", "gemm_accumulate"} <= seen


def time_alone(kernel, dtype, node, folder):
    """Time of a kernel of a training step without its launch, as the only one of a program on one device of a node. [s]"""
    built = ProgramBuilder(dtype=dtype)
    built.compute("one", kernel, phase="backward")  # which makes it a program that trains
    score = predict(scenario_of(built.build(), folder, node | {"devices_per_node": 1}, software="megatron-core")).score
    return float(score.step_time[0] - score.breakdown["other"][0])


@pytest.mark.cases(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "strategy"),
    [("gemma3-27b", "tp4-dp2"), ("llama4-scout", "tp4-dp2"), ("deepseek-v3", "tp4-dp2"), ("llama2-7b", "cp4-dp2")],
    ids=["windows", "chunks", "latents", "ring"],
)
def test_attention_of_a_transformer_costs_the_same_in_a_file(tmp_path, model, strategy):
    node = {"template": "dgx-h100", "nodes": 1}
    workload = {"model": model, "global_batch": 8, "sequence": 20480}
    scenario = from_dict({"system": node, "workload": workload, "strategy": strategy, "software": "megatron-core"})
    times = [event.time for event in events(scenario).events if event.op.startswith("attention")]
    blocks = block_program(scenario.job(), Layout.of([scenario.strategy], np.array([8.0]), 8), scenario.stack)
    kernels = {id(kernel): kernel for kernel in blocks.kernels if isinstance(kernel, Attention)}.values()
    found, windows = [], 0
    for kernel in kernels:
        found.append(time_alone(kernel, scenario.workload.dtype, node, tmp_path))
        if np.any(kernel.window):  # whose work follows from the sizes too
            own = scenario.job().model.layers[0].parts[0].attention
            plain = replace(kernel, work=None, kv_heads=kernel.heads * own.kv_heads / own.heads)
            assert time_alone(plain, scenario.workload.dtype, node, tmp_path) == pytest.approx(found[-1], rel=1e-12)
            windows += 1
    assert bool(windows) == (model in ("gemma3-27b", "llama4-scout"))
    assert len(set(times)) >= 2
    assert sorted(set(np.round(np.log(found), 9))) == sorted(set(np.round(np.log(times), 9)))


def kernel_of(event, dtype):
    """The kernel of an event's row, as its shape reads; None of those that say too little."""
    if event.op in ("gemm", "gemm_accumulate"):
        m, n, k = (float(part) for part in event.shape.split("x"))
        return Product(m=m, n=n, k=k, wide=event.dtype != dtype, result=8.0 if event.op == "gemm_accumulate" else None)
    return None


def test_a_batch_of_products_pays_latency_once(tmp_path):
    """Equal products of one launch follow each other without waiting for memory in between, on generated devices too."""

    def step(batch):
        built = ProgramBuilder(dtype="bf16")
        built.compute("one", Product(m=64, n=64, k=64, batch=batch))
        return predict(scenario_of(built.build(), tmp_path, {"template": "pathfinder"})).step_time

    assert step(1000) - step(500) < 500 * 100e-9


def test_a_message_of_nothing_takes_no_time(tmp_path):
    built = ProgramBuilder(dtype="bf16", axes={"tp": 8})
    one = built.compute("one", Product(m=64, n=64, k=64))
    alone = predict(scenario_of(built.build(), tmp_path)).step_time
    built.send("all_reduce", 0.0, ["tp"], after=[one])
    assert predict(scenario_of(built.build(), tmp_path)).step_time == alone


def test_collectives_that_hide_each_other_share_what_they_expose(tmp_path):
    """Of two that are as long, side by side, neither gains anything by being left out alone: by time each causes its part."""
    built = ProgramBuilder(dtype="bf16", axes={"tp": 8})
    first = built.compute("one", Product(m=64, n=64, k=64))
    for collective, stream in (("all_reduce", "first"), ("all_gather", "second")):
        built.send(collective, 1e9, ["tp"], after=[first], stream=stream, time=3e-3)
    found = predict(scenario_of(built.build(), tmp_path)).to_dict()
    exposed = {name: one["exposed"] for name, one in found["communication_s"].items() if one["total"]}
    assert found["breakdown_s"]["exposed_communication"] == pytest.approx(3e-3)
    assert exposed == {"all_reduce": pytest.approx(1.5e-3), "all_gather": pytest.approx(1.5e-3)}


@pytest.mark.slow
def test_parts_add_up_where_kernels_share_a_device(tmp_path):
    """Also where messages keep kernels apart that would share the device without them."""
    for order in itertools.permutations(range(3)):
        built = ProgramBuilder(dtype="bf16", axes={"tp": 8})
        sizes = (2e8, 1e7, 5e8)
        for i in order:
            sent = built.send("all_reduce", sizes[i], ["tp"])
            one = built.compute(str(i), Product(m=2048 * (i + 1), n=4096, k=4096), after=[sent])
            built.compute(f"beside {i}", Pass(moved=sizes[i]), after=[one], stream="side")
        for slots in (1, 2):
            score = predict(scenario_of(built.build(), tmp_path, {"template": "pathfinder", "devices": 8}, kernels_per_device=slots)).score
            assert sum(part[0] for part in score.breakdown.values()) == pytest.approx(score.step_time[0], rel=1e-9)
            assert sum(part[0] for part in score.bound.values()) == pytest.approx(1.0, rel=1e-9)


def test_the_page_of_stages_with_tensors_of_their_own(tmp_path, capsys):
    """Kinds of tensors are free words, and classes hold different ones."""
    built = ProgramBuilder(dtype="bf16", axes={"tp": 4, "pp": 2}, stages="pp")
    one = built.compute("first", Product(m=1024, n=1024, k=1024), rank=0)
    sent = built.send("send_recv", 1e6, ["pp"], rank=0, after=[one])
    built.compute("second", Product(m=1024, n=1024, k=1024), rank=1, after=[sent])
    built.hold("weights", 1e9, rank=0)
    built.hold("cache", 2e9, rank=1)
    write_program(built.build(), tmp_path / "two.program.json")
    (tmp_path / "two.yaml").write_text("system: {template: dgx-h100, nodes: 1}\nworkload: two.program.json\n")
    assert main(["predict", str(tmp_path / "two.yaml")]) == 0
    assert "cache 1.863 GiB" in capsys.readouterr().out


def test_a_timeline_of_too_many_copies_is_refused(tmp_path):
    built = ProgramBuilder(name="long", dtype="bf16")
    with built.repeat(10**9):
        built.compute("layer", Product(m=4096, n=4096, k=4096))
    scenario = scenario_of(built.build(), tmp_path, {"template": "dgx-h100", "nodes": 1, "devices_per_node": 1})
    assert predict(scenario).score.step_time[0] > 1e4
    with pytest.raises(CrossflowError, match="here 1,000,000,000 operations, and 100,000 at most; give blocks fewer copies"):
        simulate(scenario)


def test_a_study_is_no_scenario(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text("name: grid\nscenario: {system: dgx-h100, workload: llama2-7b}\nsweep: {workload.global_batch: [8, 16]}\n")
    with pytest.raises(SpecError, match=re.escape(f"grid.yaml:2: scenario: this is a study; run it with: crossflow study {path}")):
        load(path)


def test_a_program_is_no_scenario(tmp_path):
    path = write_program(mlp(), tmp_path / "mlp.program.json")
    with pytest.raises(SpecError, match=r"kind: this is a program; name it as the workload of a scenario") as caught:
        load(path)
    assert len(caught.value.problems) == 1


def test_searches_prune_no_program_whose_kernels_share_a_device(tmp_path):
    """Less work may end later there, so that lower bounds of kernels bound no step."""
    one = scenario_of(mlp(), tmp_path)
    ops = mlp().ops
    several = scenario_of(mlp(ops=(*ops[:-1], replace(ops[-1], stream="second"))), tmp_path)
    assert (one.shares_devices, several.shares_devices) == (False, True)
    for scenario in (one, several):
        space = Space(options=(Options(path="system.clock", values=("1.2 GHz", "1.8 GHz")),))
        problem = SearchProblem(scenario=scenario, space=space, objectives=(Objective(name="step_time_s"),))
        bounds = problem.bound(every(space))
        assert (bounds is None) == scenario.shares_devices


# ------------------------------------------------------------------------------------------ kernels whose time was measured


ONE = {"template": "dgx-h100", "devices": 1}


def timed(*kernels):
    program = ProgramBuilder(name="traced", dtype="bf16")
    for kernel in kernels:
        program.compute(kernel.name, kernel)
    return program.build()


@pytest.mark.parametrize("template", ["dgx-h100", "dgx-a100", "v100"])
def test_a_timed_kernel_takes_its_time_on_every_device(tmp_path, template):
    program = timed(Timed(name="softmax", time=1.2e-5), Timed(name="gather", time=3e-6, moved=1e6))
    found = predict(scenario_of(replace(program, dtype="fp16"), tmp_path, {"template": template, "devices": 1}))
    assert found.step_time == pytest.approx(1.5e-5, rel=1e-12)
    assert found.score.measured_share[0] == 1.0
    assert found.score.bound["compute"][0] == pytest.approx(0.8, rel=1e-9)  # what nothing is known of computes


def test_what_a_timed_kernel_moves_and_computes_counts(tmp_path):
    given = {"m": 4096, "n": 4096, "k": 4096}
    product, moved = Product(**given), 3 * 2 * 4096.0**2
    own = timed(Timed(name="gemm", time=1e-3, flops=product.flops, moved=moved))
    built = ProgramBuilder(dtype="bf16")
    built.compute("gemm", product)
    one, other = (predict(scenario_of(each, tmp_path, ONE)).score for each in (own, built.build()))
    assert (one.flops, one.memory_traffic) == (other.flops, other.memory_traffic)
    assert one.step_time[0] == 1e-3
    impossible = predict(scenario_of(timed(Timed(name="gemm", time=1e-9, flops=product.flops)), tmp_path, ONE))
    assert impossible.reason == "the stated times of these kernels are shorter than the device allows: gemm"


def test_timed_kernels_of_files_have_units_and_are_not_measured_again(tmp_path):
    data = document_of(timed(Timed(name="softmax", time=1.2e-5)))
    data["kernels"][0]["time"] = "12 us"
    assert program_of(data).kernels[0].time == 1.2e-5
    assert events(scenario_of(program_of(data), tmp_path, ONE)).events == ()
    data["kernels"][0]["time"] = "12 GB"
    with pytest.raises(SpecError, match=r"kernels\[0\].time"):
        program_of(data)
