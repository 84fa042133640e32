"""Software stacks: all that are shipped load, none claims another's name, files build on files, wrong ones are told."""

from collections import Counter

import numpy as np
import pytest

import crossflow
from crossflow.base import files
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.base.files import Document
from crossflow.cost.price import kernel_parts
from crossflow.hardware.architecture.software import load_stack
from crossflow.parallel.blocks import block_program
from crossflow.parallel.strategy.layout import Layout
from crossflow.program.builder import ProgramBuilder
from crossflow.program.kernels import Product

STACKS = sorted(name for name, file in files.catalogue("templates").items() if file.parent.name == "software")


def written(tmp_path, text):
    """A stack in a file of its own."""
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    return file


def lines_of(name):
    return files.find("templates", name).read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", STACKS)
def test_shipped_stacks_load_by_their_name(name):
    stack, document = load_stack(name)
    assert (stack.name, stack.kind) == (name, "software")
    assert stack.title
    assert document.data["name"] == name


@pytest.mark.parametrize("name", STACKS)
def test_every_cost_of_the_host_and_habit_of_memory_is_possible(name):
    stack, _ = load_stack(name)
    for part in (stack.host, stack.memory):
        values = [value for value in part.__dict__.values() if isinstance(value, np.ndarray)]
        assert values
        assert all(np.isfinite(value).all() and (value >= 0).all() for value in values)
    assert 0 < stack.attention.backward_utilisation[0] <= stack.attention.forward_utilisation[0] <= 1


@pytest.mark.parametrize("name", STACKS)
def test_every_number_of_a_shipped_stack_has_a_source(name):
    stack, document = load_stack(name)
    entries = [entry for part in ("attention", "host", "memory") for entry in document.data[part].values() if isinstance(entry, dict)]
    assert entries
    assert {entry["source"] for entry in entries} <= stack.sources.keys()


def test_no_two_stacks_are_known_by_one_name():
    known = Counter(alias.lower() for name in STACKS for alias in (name, *load_stack(name)[0].known_as))
    assert [alias for alias, times in known.items() if times > 1] == []


def test_a_stack_built_on_another_changes_only_what_it_says():
    given = {"like": "megatron-core", "overlap": {"data": False}, "host": {"step": "0 s"}}
    stack, _ = load_stack(Document(file="scenario", data=given))
    below, _ = load_stack("megatron-core")
    assert (stack.overlap.data, below.overlap.data) == (False, True)
    assert (stack.host.step[0], below.host.step[0] > 0) == (0.0, True)
    assert stack.overlap.tensor == below.overlap.tensor
    assert stack.host.layer[0] == below.host.layer[0]
    assert stack.attention == below.attention


def test_lists_are_replaced_and_not_merged():
    stack, _ = load_stack(Document(file="scenario", data={"like": "ideal", "fused": ["norm"]}))
    assert stack.fused == ("norm",)


def test_a_stack_is_read_from_a_path(tmp_path):
    text = "\n".join(lines_of("ideal")).replace("name: ideal", "name: mine")
    stack, _ = load_stack(str(written(tmp_path, text)))
    assert stack.name == "mine"
    assert stack.host.kernel[0] == 0.0


# -------------------------------------------------------------------------------------------- wrong files

WRONG = [
    ("  kernel: {value: 0 us, source: assumed}", "  kernel: {value: 3 GB, source: assumed}", "host.kernel"),
    ("gradient: weight", "gradeint: weight", "gradeint"),
    ("gradient: weight", "gradient: fp8", "gradient"),
    ("stages: even", "stages: uneven", "stages"),
    ("  native: true", "  native: perhaps", "attention.native"),
    (
        "  forward_utilisation: {value: 1, source: assumed}",
        "  forward_utilisation: {value: 1.5, source: assumed}",
        "attention.forward_utilisation",
    ),
]


@pytest.mark.parametrize(("line", "wrong", "path"), WRONG, ids=[path for *_, path in WRONG])
def test_what_is_wrong_is_one_problem_with_its_line(tmp_path, line, wrong, path):
    lines = lines_of("ideal")
    at = lines.index(line)
    file = written(tmp_path, "\n".join([*lines[:at], wrong, *lines[at + 1 :]]))
    with pytest.raises(SpecError) as error:
        load_stack(str(file))
    (problem,) = error.value.problems
    assert (problem.file, problem.line) == (str(file), at + 1)
    assert problem.path.startswith(path)


def test_sentences_of_wrong_stacks():
    def told(**changes):
        with pytest.raises(SpecError) as error:
            load_stack(Document(file="scenario", data={"like": "ideal", **changes}))
        return [f"{problem.path}: {problem.message}" for problem in error.value.problems]

    assert told(gradeint="weight") == ["gradeint: unknown key 'gradeint'; did you mean 'gradient'?"]
    assert told(host={"step": "3 GB"})[0].startswith("host.step: ")
    alone = told(sharing={"first_bucket": "1 MiB"})
    assert alone == ["sharing: first_bucket is the first of several; give bucket too, or leave it out"]


def test_unknown_stacks_are_told_with_what_was_meant():
    with pytest.raises(CrossflowError, match=r"^unknown software stack 'megatron-cor'; did you mean 'megatron-core'\?"):
        load_stack("megatron-cor")


def test_neither_name_nor_mapping_is_told():
    with pytest.raises(SpecError, match=r"expected the name of a software stack or a mapping, got 3"):
        load_stack(Document(file="scenario", data=3))


# ------------------------------------------------------------------------------------------ products inside a step


def busy(slowdown, **workload):
    """Time of the kernels of a step, without launches. [s]"""
    software = {"like": "ideal", "product_slowdown": slowdown}
    given = {"model": "gpt2-345m", "global_batch": 64, **workload}
    found = crossflow.predict(crossflow.from_dict({"system": "dgx-h100", "workload": given, "strategy": "d8", "software": software}))
    return found.score.breakdown["compute"][0] + found.score.breakdown["memory_bound_compute"][0]


@pytest.mark.parametrize(("system", "sensitivity"), [("dgx-a100", 1.0), ("dgx-h100", 4.0), ("dgx-b200", 4.0)])
def test_each_product_takes_its_share_longer_and_other_kernels_do_not(system, sensitivity):
    scenario = crossflow.from_dict(
        {"system": system, "workload": {"model": "gpt2-345m", "global_batch": 64}, "strategy": "d8", "software": "nanotron"}
    )
    plain = scenario.stack.model_copy(update={"product_slowdown": np.zeros(1)})
    program = block_program(scenario.job(), Layout.of([scenario.strategy], np.array([64.0]), 8), plain)
    slow, fast = ([costs for _, costs, _ in kernel_parts(program, scenario.architecture, stack)] for stack in (scenario.stack, plain))
    longer = (slow[0].time - slow[0].launch) / (fast[0].time - fast[0].launch)
    np.testing.assert_allclose(longer, 1.0 + 0.1 * sensitivity, rtol=1e-12)
    assert all((a.time == b.time).all() for a, b in zip(slow[1:], fast[1:], strict=True))


@pytest.mark.parametrize("workload", [{"task": "forward"}, {"task": "prefill", "prompt": 512}], ids=["forward", "prefill"])
def test_nothing_but_training_is_slowed(workload):
    assert busy(0.5) > busy(0)
    assert busy(0.5, **workload) == busy(0, **workload)


def test_ideal_software_slows_nothing():
    assert load_stack("ideal")[0].product_slowdown == 0


def test_products_of_nemo_are_those_of_measured_libraries():
    """Of aiconfigurator's large ones, those in nvfp4 are 2.4 to 3 times as fast as in bf16; by the datasheet it would be 4."""
    workload = {"model": "llama3-8b", "global_batch": 8}
    device = crossflow.from_dict({"system": "dgx-b200", "workload": workload, "strategy": "dp8"}).architecture

    def time(name, dtype):
        program = ProgramBuilder(name="one", dtype=dtype)
        program.compute("one", Product(m=8192.0, n=7168.0, k=8192.0))
        return next(kernel_parts(program.build(), device, load_stack(name)[0]))[1].time[0, 0]

    for name in ("nemo", "nemo-graphs"):
        assert 2.4 < time(name, "bf16") / time(name, "nvfp4") < 3.3
    assert time("megatron-core", "bf16") / time("megatron-core", "nvfp4") > 3.8
