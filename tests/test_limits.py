# ruff: noqa: E501  (tables of cases)
"""Limits of what files hold: what goes beyond is told at its place before anything is built of it."""

import gzip
import importlib
import io
import os
import pkgutil
import threading
import typing
from collections.abc import Mapping

import numpy as np
import pytest

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.scoring import BEYOND
from crossflow.answers.scenario import from_dict
from crossflow.answers.study.reading import read_study
from crossflow.base import files, limits
from crossflow.base.errors import SpecError, shortened
from crossflow.base.files import FileModel, parse_yaml
from crossflow.evidence.replay.events import EventFile
from crossflow.workload.serving_spec import SpeculationSpec
from crossflow.workload.spec import TransformerSpec

GEMM = "{model: gemm, m: 256, n: 256, k: 256}"
LSTM = "{model: lstm, hidden: 512, vocabulary: 1000, sequence: 4, global_batch: 64}"
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10))
DEEP = "more than 64 lists and mappings stand inside one another here, the most that are read"


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Problems of a scenario's text, or of a study's, beside files by name."""
    monkeypatch.chdir(tmp_path)

    def problems(text, read=crossflow.load, settings=(), **beside):
        (tmp_path / "s.yaml").write_text(text)
        for name, content in beside.items():
            (tmp_path / name.replace("_", ".")).write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(SpecError) as caught:
            read("s.yaml", settings)
        return str(caught.value).splitlines()[0]

    return problems


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: " + "[" * 100_000, f"f.yaml:1: {DEEP}"),
        ("".join(" " * i + f"k{i}:\n" for i in range(3000)), f"f.yaml:66: {DEEP}"),
        (BOMB, "f.yaml:4: the file holds more than 2,000 values once its aliases are written out, the most that are read"),
        ("a: [" + "1, " * 2000 + "]", "f.yaml:1: the file holds more than 2,000 values, the most that are read"),
        ("a: &x [*x]", "f.yaml:1: a[0]: the alias stands inside what it names"),
        ("a: *x", "f.yaml:1: a: not valid YAML: found undefined alias 'x'"),
        ("? [a, b]\n: 1", "f.yaml:1: expected a key as text, got a list; write it out"),
        ("b: 1\n? {a: 1}\n: 1", "f.yaml:2: expected a key as text, got a mapping; write it out"),
        ("name: " + "x" * 30_000, "f.yaml:1: name: a text has 30,000 characters, more than the 20,000 that are read"),
        ("x" * 300 + ": 1", "f.yaml:1: a key has 300 characters, more than the 200 that are read"),
        ("a: 1\nb: \x1b[2J", "f.yaml:2: not valid YAML: it holds the control character U+001B; remove it"),
    ],
)  # fmt: skip
def test_what_goes_beyond_is_told_at_its_line(monkeypatch, text, line):
    monkeypatch.setattr(limits, "YAML_VALUES", 2000)
    with pytest.raises(SpecError) as caught:
        parse_yaml(text, "f.yaml")
    assert str(caught.value) == line


def test_aliases_keep_the_lines_of_what_they_name():
    found = parse_yaml("a: &x\n  b: 1\nc: *x\n", "f")
    assert (found.data["c"], found.lines["c",], found.lines["c", "b"]) == ({"b": 1}, ("f", 3), ("f", 2))


@pytest.mark.parametrize("text", ["9" * 5000, "1e400", "1__0", "-1e999"])
def test_what_no_float_holds_is_text(text):
    assert files.scalar(text) == text


def test_only_files_and_pipes_are_read(tmp_path):
    with pytest.raises(SpecError, match=r"^/dev/zero: cannot be read: it is a device, not a file$"):
        files.read_yaml("/dev/zero")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("a: 1\n",))
    writer.start()
    assert files.read_yaml(pipe).data == {"a": 1}
    writer.join()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a: 1\nb\0: 2\n", "it is not UTF-8 text (line 2 holds a NUL byte); save it as UTF-8"),
        ("a: 1\n".encode("utf-16-le"), "it is not UTF-8 text (line 1 holds a NUL byte); save it as UTF-8"),
        (b"a: 1\nb: \xff\n", "it is not UTF-8 text (line 2); save it as UTF-8"),
        (gzip.compress(b"a: 1\n"), "it is compressed (gzip); unpack it"),
        (b"PK\x03\x04 and more", "it is compressed (zip); unpack it"),
        (b" " * (limits.YAML_BYTES + 1), "it has more than 16 MiB, the most that is read of such a file"),
    ],
)
def test_what_is_no_text_is_told_with_its_line(tmp_path, content, reason):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(SpecError) as caught:
        files.read_yaml(tmp_path / "f")
    assert str(caught.value) == f"{tmp_path / 'f'}: cannot be read: {reason}"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[" * 100_000, "it is nested too deeply: more than 64 lists and mappings inside one another"),
        (b"[" * 65 + b"[]" + b"]" * 65, "it is nested too deeply: more than 64 lists and mappings inside one another"),
        (b"[" + b"9" * 5000 + b"]", "a number has 5,000 digits, more than 100: 99999999999999999999 ..."),
        (b"[1e400]", "1e400 is no number of at most 100 characters and 1.8e308"),
        (b"[[],0]" * limits.DATA_VALUES, "it holds more than 5,000,000 values, the most that are read of a file"),
    ],
)
def test_json_has_limits_too(tmp_path, content, reason):
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(content, 1))
    with pytest.raises(SpecError) as caught:
        files.read_json(path, "a list")
    assert str(caught.value) == f"{path}: expected a list in JSON, {reason}"


def test_a_compressed_file_is_not_unpacked_beyond_its_limit(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b" " * 2_000_000))
    with pytest.raises(limits.LimitError, match="more than 1 MiB, unpacked"):
        limits.unpacked(limits.read(path), 1 << 20)


@pytest.mark.parametrize(("event", "reason"), [("[" * 100_000, "nested too deeply"), ("9" * 5000, "more than 4,300 digits")])
def test_events_of_traces_have_limits(event, reason):
    with pytest.raises(SpecError, match=f"^t: the JSON .*{reason}"):
        list(EventFile(name="t", stream=io.BytesIO(f'{{"traceEvents": [{event}'.encode())).events())


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"system: v100\nworkload: {GEMM}\nfoo[0]: 1\n", "s.yaml:3: foo[0]: unknown key 'foo[0]'; known keys: job, kernels_per_device, name, notes, placement, profile, requests, run, software, strategy, system, techlib, title, workload"),
        (f"system: {{kind: [system]}}\nworkload: {GEMM}\n", "s.yaml:1: system.kind: expected one of generated, datasheet, system, got ['system']; did you mean 'system'?"),
        (f"system: v100\nworkload: {LSTM.replace('512', 'true')}\n", "s.yaml:2: workload.hidden: expected a whole number, got True"),
        (f"system: v100\nworkload: {LSTM.replace('512', repr('8'))}\n", "s.yaml:2: workload.hidden: expected a whole number, got '8'; write it without quotes"),
        (f"system: v100\nworkload: {LSTM.replace('512', '9' * 29)}\n", f"s.yaml:2: workload.hidden: expected at most 1000000000, got {'9' * 29}"),
        (f"system: {{template: dgx-h100, nodes: true}}\nworkload: {GEMM}\n", "s.yaml:1: system.nodes: expected a whole number, got True"),
        ("system: v100\nworkload: {model: lstm, hidden: 1, vocabulary: 1, sequence: 1, layers: 100000000, global_batch: 1}\n", "s.yaml:2: workload.layers: expected at most 2000, got 100000000"),
        ("system: v100\nworkload: {model: dlrm, tables: {count: 1, rows: 1, width: 1}, bottom: {layers: 1000000000, width: 1}, top: [1], global_batch: 1}\n", "s.yaml:2: workload.bottom.layers: expected at most 1000, got 1000000000"),
        (f"system: v100\nworkload: {LSTM}\nrun: {{tokens: inf}}\n", "s.yaml:3: run.tokens: expected a number, got 'inf'"),
        (f"system: v100\nworkload: {LSTM}\nrun: {{tokens: 1e400}}\n", "s.yaml:3: run.tokens: expected a number, got '1e400'"),
        (f"system: v100\nworkload: {LSTM}\nrun: {{tokens: 1e-308}}\n", "s.yaml:3: run.tokens: expected 0 or a magnitude from 1e-30 to 1e+30, got 1e-308"),
        (f"system: {{template: v100, budgets: {{power: 1e308 W}}}}\nworkload: {GEMM}\n", "s.yaml:1: system.budgets.power: expected 0 or a magnitude from 1e-30 to 1e+30, got 1e+308"),
        (f"system: {{template: v100, rates: {{bf61: 1}}}}\nworkload: {GEMM}\n", "s.yaml:1: system.rates.bf61: expected a data type, one of fp64, fp32, tf32, fp16, bf16, int32, int8, fp8, mxfp8, mxfp6, int4, int4_64, int4_32, mxfp4, nvfp4, fp8_block, got 'bf61'; did you mean 'bf16'?"),
        (f"system: {{template: v100, levels: {{l22: {{component: x}}}}}}\nworkload: {GEMM}\n", "s.yaml:1: system.levels.l22: expected a memory level, one of registers, l1, l2, l3, l4, memory, got 'l22'; did you mean 'l2'?"),
        (f"system: {{template: v100, budgets: {{power: {{value: 300 W, source: x, low: -1 W}}}}}}\nworkload: {GEMM}\n", "s.yaml:1: system.budgets.power.low: expected at least 0 W, got '-1 W'"),
        (f"system: {{template: v100, budgets: {{power: {{value: 300 W, source: x, projected: abc}}}}}}\nworkload: {GEMM}\n", "s.yaml:1: system.budgets.power.projected: expected true or false, got 'abc'"),
        (f"system: {{template: v100, budgets: {{power: {{value: 300 W, source: x, note: [1]}}}}}}\nworkload: {GEMM}\n", "s.yaml:1: system.budgets.power.note: expected text, got [1]"),
        (f"system: {{template: v100, budgets: {{power: {{value: 300 W, source: [x]}}}}}}\nworkload: {GEMM}\n", "s.yaml:1: system.budgets.power.source: expected text, got ['x']"),
    ],
)  # fmt: skip
def test_strict_values_are_told_at_their_line(told, text, line):
    assert told(text) == line


def test_circles_of_files_are_told(told):
    scenario = f"system: a.yaml\nworkload: {GEMM}\n"
    itself = told(scenario, a_yaml="kind: system\nname: a\ndevice: a.yaml\n")
    assert itself == "a.yaml:3: system.device: a template cannot stand on itself: a.yaml -> a.yaml"
    two = told(scenario, a_yaml="kind: system\nname: a\ndevice: b.yaml\n", b_yaml="template: a.yaml\n")
    assert two == "b.yaml:1: system.template: a template cannot stand on itself: a.yaml -> b.yaml -> a.yaml"


def test_wrong_values_of_a_device_are_told_where_a_system_replaces_them(told):
    device = (files.data_folder("templates") / "devices" / "h100-sxm.yaml").read_text()
    device = device.replace("value: 450 GB/s", "value: '1,5 GB/s'")
    system = (files.data_folder("templates") / "systems" / "dgx-h100.yaml").read_text().replace("device: h100-sxm", "device: d.yaml")
    line = told(f"system: {{template: y.yaml, devices: 8}}\nworkload: {GEMM}\n", d_yaml=device, y_yaml=system)
    assert line.startswith("d.yaml:")
    assert line.endswith("network.intra.bandwidth: expected a quantity in B/s, got '1,5 GB/s': ',5 GB/s' is not a known unit")


def test_a_preset_that_names_no_model_is_told(told):
    line = told("system: v100\nworkload: {model: p.yaml, global_batch: 2}\n", p_yaml="model: [x]\n")
    assert line == "p.yaml:1: workload.model: expected one of lstm, gemm, transformer, dlrm, program, got ['x']"


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("foo[0]=1", "foo[0]=1: foo[0]: unknown key 'foo[0]'; known keys: "),
        ("workl.x=1", "workl.x=1: workl: unknown key 'workl'; did you mean 'workload'?"),
        ("system.budgets.power=300 W/0", "system.budgets.power=300 W/0: system.budgets.power: expected a quantity in W, got '300 W/0': 'W/0' is not a known unit"),
        (".".join("a" * 20_000) + "=1", "a.a.a."),
        ("workload.m=" + "[" * 50_000, f"workload.m:1: {DEEP}"),
        ("strategy.tp=x", "strategy.tp=x: strategy.tp: tp must be a positive whole number, got 'x'"),
    ],
)  # fmt: skip
def test_settings_are_told_as_such(told, setting, line):
    assert told(f"system: v100\nworkload: {GEMM}\nstrategy: {{dp: 1}}\n", settings=[setting]).startswith(line)


STUDY = "name: s\nscenario: {system: pathfinder, workload: {model: gemm, m: 512, n: 512, k: 512}}\n"
MANY = f"[{', '.join(map(str, range(1, 1001)))}]"
SPACE = "space: {system.budgets.power: {from: 200 W, to: 300 W}}\nsearches: {a: {searcher: SEARCHER}}\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"sweep:\n  workload.m: {MANY}\n  workload.n: {MANY}\n  workload.k: {MANY}\n", "s.yaml:3: sweep: the study has 1,000,000,000 designs to evaluate and takes about 372.5 GiB of memory, more than the 10,000,000 or 1 GiB that a study begins with unasked; make it smaller, or give --yes"),
        ("sweep: {system.budgets.power: {from: 200 W, to: 300 W, count: 1000000000}}\n", "s.yaml:3: sweep: the study has 1,000,000,000 designs"),
        ("uncertainty: {samples: 1000000000000}\n", "s.yaml:3: uncertainty: the study has 1,000,000,000,000 designs"),
        (SPACE.replace("SEARCHER", "tpe, evaluations: 20000000"), "s.yaml:4: searches: the study has 20,000,000 designs"),
        (SPACE.replace("SEARCHER", "gradient, starts: 1000000000"), "s.yaml:4: searches.a.starts: expected at most 100000, got 1000000000"),
        (SPACE.replace("SEARCHER", "nsga2, seed: 4294967296"), "s.yaml:4: searches.a.seed: expected less than 4294967296, got 4294967296"),
        (SPACE.replace("SEARCHER", "random, seed: -1"), "s.yaml:4: searches.a.seed: expected at least 0, got -1"),
        (SPACE.replace("SEARCHER", "random") + "constraints: {power_w: <= 1e400 W}\n", "s.yaml:5: constraints.power_w: expected a finite number, got '1e400 W'"),
    ],
)  # fmt: skip
def test_studies_beyond_limits_are_told_before_they_begin(told, text, line):
    assert told(STUDY + text, read_study).startswith(line)


def test_a_large_study_begins_where_it_is_asked_for(tmp_path):
    values = ", ".join(f"{200 + i / 100} W" for i in range(4000))
    (tmp_path / "s.yaml").write_text(
        f"{STUDY}sweep: {{system.budgets.power: [{values}], workload.m: {{from: 1, to: 4000, count: 4000}}}}\n"
    )
    with pytest.raises(SpecError, match="16,000,000 designs"):
        read_study(tmp_path / "s.yaml")


def models(base=FileModel):
    return [base, *(below for model in base.__subclasses__() for below in models(model))]


def numbers(annotation):
    """Types of numbers in an annotation, with whether each is strict."""
    if typing.get_origin(annotation) is typing.Annotated:
        kind, *metadata = typing.get_args(annotation)
        return [(kind, any(getattr(one, "strict", False) for one in metadata))] if kind in (int, float, bool) else numbers(kind)
    below = typing.get_args(annotation)
    mapped = below[1:] if typing.get_origin(annotation) is Mapping else below
    return [(annotation, False)] if annotation in (int, float, bool) else [found for part in mapped for found in numbers(part)]


def test_no_number_of_a_file_may_be_text_or_true():
    """Every field of every model of a file; keys of mappings are text."""
    lax = []
    for model in models():
        if model.__module__.startswith("crossflow."):
            hints = typing.get_type_hints(model, include_extras=True)
            lax += [f"{model.__name__}.{name}" for name in model.model_fields if any(not strict for _, strict in numbers(hints[name]))]
    assert not lax


def test_rates_near_zero_end_in_an_infeasible_point():
    """Without a warning, which would be an error here, and without a time beyond all measure."""
    data = {"system": "h100-sxm", "workload": {"model": "gemm", "m": 256, "n": 256, "k": 256, "dtype": "bf16"}}
    score = evaluate(from_dict(data), {"system.throughput.bf16": ["1e-29 flop/s", "1e12 flop/s"]})
    assert (score.feasible.tolist(), score.step_time[0]) == ([False, True], np.inf)
    assert score.columns()["reason"][0] == BEYOND


def test_long_words_and_messages_are_cut():
    assert shortened("a" * 100_000 + " b") == "a" * 200 + "... b"
    assert len(shortened("word " * 100_000)) < 3100


def test_numbers_of_numpy_are_numbers():
    """As they come from loops over arrays and from tables."""
    given = {"system": {"template": "dgx-h100", "nodes": np.int64(4)}, "strategy": "tp2-dp16"}
    sizes = [np.int32(256), np.uint16(256), np.float64(256.0), np.float32(256.0), np.array(256)]
    found = {
        crossflow.from_dict({**given, "workload": {"model": "llama2-7b", "global_batch": size}}).workload.global_batch for size in sizes
    }
    assert found == {256}
    with pytest.raises(SpecError, match=r"workload\.global_batch: expected a whole number, got "):
        crossflow.from_dict({**given, "workload": {"model": "llama2-7b", "global_batch": np.bool_(True)}})


@pytest.mark.parametrize("setting", ["workload.²=1", "workload.٣=1"])
def test_digits_of_other_scripts_are_keys(told, setting):
    assert "unknown key" in told("system: v100\nworkload: {model: gemm, m: 256, n: 256, k: 256}\n", settings=[setting])


def test_the_narrower_of_two_limits_of_a_field_holds():
    """Of two limits of one kind the last counts: that of a form of number would undo that of a field."""
    for module in pkgutil.walk_packages(crossflow.__path__, "crossflow."):
        if module.name.startswith(("crossflow.workload", "crossflow.hardware", "crossflow.answers.study", "crossflow.answers.search")):
            importlib.import_module(module.name)
    kinds = {"le": min, "lt": min, "ge": max, "gt": max}
    for model in models():
        for name, field in model.model_fields.items():
            for kind, narrowest in kinds.items():
                limits = [getattr(one, kind) for one in field.metadata if getattr(one, kind, None) is not None]
                assert not limits or limits[-1] == narrowest(limits), f"{model.__name__}.{name}: {kind} {limits}"


@pytest.mark.parametrize(
    ("model", "given", "most"),
    [
        (TransformerSpec, {"mtp_layers": 2001}, "less than or equal to 2000"),
        (SpeculationSpec, {"tokens": 65, "acceptance": 0.5}, "less than or equal to 64"),
    ],
)
def test_layers_that_predict_and_guesses_are_so_many_at_most(model, given, most):
    with pytest.raises(ValueError, match=most):
        model.model_validate(given)
