# ruff: noqa: E501  (exact sentences and tables of cases)
"""Strict files: every problem with its line, nothing silently kept, dropped or retyped."""

import os
from collections.abc import Mapping, Sequence
from typing import Literal

import pytest

import crossflow
from crossflow.base import files
from crossflow.base.errors import CrossflowError, SpecError, with_article
from crossflow.base.files import Document, FileModel, merge, override, parse_yaml, read_yaml, validate, write_text
from crossflow.base.limits import NonNegativeInt
from crossflow.base.units import Bandwidth, Duration, Power


class Part(FileModel):
    bandwidth: Bandwidth
    count: int = 1


class Whole(FileModel):
    name: str
    power: Power
    parts: Mapping[str, Part] = {}
    inner: Sequence[Part] = ()


def problems(function, *given):
    with pytest.raises(SpecError) as caught:
        function(*given)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e9", 1e9), ("1E-3", 1e-3), (".5", 0.5), ("12", 12), ("-3", -3), ("1_000", 1000), ("on", "on"), ("off", "off"), ("yes", "yes"), ("no", "no"), ("y", "y"),
        ("true", True), ("False", False), ("~", None), ("null", None), ("", None), ("'12'", "12"), ('"true"', "true"), ("12:30", "12:30"), ("0x10", "0x10"),
        ("2024-01-01", "2024-01-01"), ("80 GiB", "80 GiB"), (".nan", ".nan"), (".inf", ".inf"), ("NO", "NO"),
    ],
)  # fmt: skip
def test_scalars_are_what_they_look_like(text, value):
    read = parse_yaml(f"a: {text}", "f").data["a"]
    assert read == value
    assert type(read) is type(value)


def test_duplicate_keys_are_told_with_both_lines():
    assert problems(parse_yaml, "a: 1\nb:\n  c: 1\n  c: 2\na: 3\n", "f.yaml") == [
        "f.yaml:4: b.c: duplicate key 'c' (first on line 3)",
        "f.yaml:5: a: duplicate key 'a' (first on line 1)",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1, 2\n", "f.yaml:2: not valid YAML: did not find expected ',' or ']'"),
        ("a: 1\n  b: 2\n", "f.yaml:2: not valid YAML: mapping values are not allowed in this context"),
        (
            "a:\n\tb: 2\n",
            "f.yaml:2: not valid YAML: found character that cannot start any token; the line is indented with a tab, write spaces",
        ),
        ("a: 1\n---\nb: 2\n", "f.yaml:2: not valid YAML: but found another document"),
        ("", "f.yaml: expected a mapping, the file is empty"),
        ("# nothing\n", "f.yaml: expected a mapping, the file is empty"),
    ],
)
def test_what_is_not_yaml_is_told(text, message):
    assert problems(parse_yaml, text, "f.yaml") == [message]


def test_a_node_inside_itself_is_told():
    assert problems(parse_yaml, "a: &x\n  b: *x\n", "f.yaml") == ["f.yaml:2: a.b: the alias stands inside what it names"]


def test_aliases_are_copies():
    assert parse_yaml("a: &x {b: 1}\nc: *x\n", "f").data == {"a": {"b": 1}, "c": {"b": 1}}


def test_unreadable_files_are_told(tmp_path):
    missing, binary = tmp_path / "none.yaml", tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert problems(read_yaml, missing) == [f"{missing}: cannot be read: No such file or directory"]
    assert problems(read_yaml, binary) == [f"{binary}: cannot be read: it is not UTF-8 text (line 1); save it as UTF-8"]
    assert problems(read_yaml, tmp_path) == [f"{tmp_path}: cannot be read: Is a directory"]


def test_a_file_of_json_is_told_as_json():
    assert problems(parse_yaml, '{"a": 1,\n "b": ', "f.json") == ["f.json:2: not valid JSON: expecting value"]
    assert parse_yaml("{'a': 1}", "f.json").data == {"a": 1}


def test_several_problems_are_told_at_once_each_with_its_line():
    document = parse_yaml("name: [1]\npowr: 5 W\nparts:\n  a:\n    bandwidth: 5 GB\n    cuont: 2\n  b: {}\n", "f.yaml")
    assert problems(validate, Whole, document) == [
        "f.yaml:1: name: input should be a valid string, got [1]",
        "f.yaml:1: the key 'power' is missing",
        "f.yaml:5: parts.a.bandwidth: expected a quantity in B/s, got '5 GB': 'GB' is not a unit of B/s; did you mean 'GB/s'?",
        "f.yaml:6: parts.a.cuont: unknown key 'cuont'; did you mean 'count'?",
        "f.yaml:7: parts.b: the key 'bandwidth' is missing",
        "f.yaml:2: powr: unknown key 'powr'; did you mean 'power'?",
    ]


def test_places_in_lists_are_told():
    document = parse_yaml("name: x\npower: 5 W\ninner:\n  - bandwidth: 1 GB/s\n  - bandwidth: 2 GB\n", "f.yaml")
    assert problems(validate, Whole, document) == [
        "f.yaml:5: inner[1].bandwidth: expected a quantity in B/s, got '2 GB': 'GB' is not a unit of B/s; did you mean 'GB/s'?"
    ]


def test_a_far_off_key_lists_the_known_ones():
    document = parse_yaml("name: x\npower: 5 W\nzzz: 1\n", "f.yaml")
    assert problems(validate, Whole, document) == ["f.yaml:3: zzz: unknown key 'zzz'; known keys: inner, name, parts, power"]


def test_a_list_where_a_mapping_belongs_is_told():
    (message,) = problems(validate, Whole, parse_yaml("- 1\n- 2\n", "f.yaml"))
    assert message.startswith("f.yaml:1: ")
    assert message.endswith("got [1, 2]")


def test_models_are_frozen():
    model = validate(Whole, parse_yaml("name: x\npower: 5 W\n", "f"))
    with pytest.raises(ValueError, match="frozen"):
        model.name = "y"


# ------------------------------------------------------------------------------------------ merging and overriding


def test_merging_is_key_by_key_and_keeps_lines():
    base, own = (
        parse_yaml("a:\n  b: 1\n  c: 2\nd: [1, 2]\n", "base"),
        parse_yaml("\na: {c: 3}\n\nd: [3]\ne: 4\n", "own"),
    )
    merged = merge(base, own)
    assert merged.data == {"a": {"b": 1, "c": 3}, "d": [3], "e": 4}
    places = {path: merged.lines[path] for path in (("a", "b"), ("a", "c"), ("d",), ("d", 0), ("e",))}
    assert places == {
        ("a", "b"): ("base", 2),
        ("a", "c"): ("own", 2),
        ("d",): ("own", 4),
        ("d", 0): ("own", 4),
        ("e",): ("own", 5),
    }
    assert ("d", 1) not in merged.lines
    assert (base.data["a"]["c"], own.data["a"]) == (2, {"c": 3})


def test_merging_replaces_a_number_with_its_source():
    base = parse_yaml("power: {value: 5 W, source: book, low: 4 W}", "base")
    assert merge(base, parse_yaml("power: {value: 9 W, source: mine}", "own")).data == {"power": {"value": "9 W", "source": "mine"}}
    assert merge(base, parse_yaml("power: 9 W", "own")).data == {"power": "9 W"}


def test_merging_laws():
    base, own = parse_yaml("a: {b: 1}\nc: 2\n", "base"), parse_yaml("a: {d: 3}\n", "own")
    empty = Document(file="none", data={})
    assert merge(base, empty).data == merge(empty, base).data == merge(base, base).data == base.data
    assert merge(merge(base, own), own).data == merge(base, own).data


@pytest.mark.parametrize(
    ("setting", "data"),
    [
        ("a.b=5", {"a": {"b": 5}, "l": [1, 2]}),
        ("a.b=80 GiB", {"a": {"b": "80 GiB"}, "l": [1, 2]}),
        ("a.c.d=true", {"a": {"b": 1, "c": {"d": True}}, "l": [1, 2]}),
        ("l.1=x", {"a": {"b": 1}, "l": [1, "x"]}),
        ("a={x: 1e9}", {"a": {"x": 1e9}, "l": [1, 2]}),
        ("l=[3]", {"a": {"b": 1}, "l": [3]}),
        ("a.b=c=d", {"a": {"b": "c=d"}, "l": [1, 2]}),
        ("a.b=", {"a": {"b": None}, "l": [1, 2]}),
        ("a.b= 5 ", {"a": {"b": 5}, "l": [1, 2]}),
    ],
)
def test_settings_override_one_place(setting, data):
    document = parse_yaml("a: {b: 1}\nl: [1, 2]\n", "f")
    assert override(document, [setting]).data == data
    assert document.data == {"a": {"b": 1}, "l": [1, 2]}


def test_later_settings_win():
    assert override(parse_yaml("a: 1", "f"), ["a=2", "a=3"]).data == {"a": 3}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("a.b", "--set: expected path=value, got 'a.b'"),
        ("=5", "--set: expected path=value, got '=5'"),
        ("l.2=5", "--set l.2=5: '2' is not an index of a list of 2"),
        ("l.x=5", "--set l.x=5: 'x' is not an index of a list of 2"),
        ("a.b.c=5", "--set a.b.c=5: nothing can be set under 1; it has no key 'c'"),
        ("a={x", "--set a:2: not valid YAML: did not find expected ',' or '}'"),
    ],
)
def test_wrong_settings_are_told(setting, message):
    assert problems(override, parse_yaml("a: {b: 1}\nl: [1, 2]\n", "f"), [setting]) == [message]


def test_a_setting_is_told_as_such_when_its_value_is_wrong():
    """The line of what stood there before is not where the fault is."""
    document = override(parse_yaml("name: x\npower: 5 W\n", "f.yaml"), ["power=5 GB"])
    (message,) = problems(validate, Whole, document)
    assert message.endswith("power: expected a quantity in W, got '5 GB': 'GB' is not a unit of W")
    assert "f.yaml:2" not in message


class Inner(FileModel):
    power: Power = 0.0


class Either(FileModel):
    inner: Inner | Literal["none"] = "none"
    interval: Duration | Literal["auto"] = "auto"
    spares: NonNegativeInt | Literal["auto", "none"] = "auto"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("interval: soon", "interval: expected a quantity in s or auto, got 'soon'"),
        ("interval: 5", "interval: expected a quantity in s or auto, got the bare number 5; write the unit"),
        ("interval: 5 GB", "interval: expected a quantity in s or auto, got '5 GB': 'GB' is not a unit of s"),
        ("interval: Auto", "interval: expected a quantity in s or auto, got 'Auto'; did you mean 'auto'?"),
        ("spares: some", "spares: expected a whole number, or auto or none, got 'some'"),
        ("inner: {power: 4 kg}", "inner.power: expected a quantity in W, got '4 kg': 'kg' is not a unit of W"),
        ("inner: [1]", "inner: expected a mapping or none, got [1]"),
    ],
)
def test_a_value_that_is_neither_a_number_nor_a_word_is_told_once(given, message):
    assert problems(validate, Either, parse_yaml(given, "f")) == [f"f:1: {message}"]


def test_what_a_setting_does_not_set_keeps_its_place():
    """Words of a command line have no line of their own; a setting beside them is not where they are wrong."""
    document = override(Document(file="command line", data={"workload": {"model": "x"}}), ["workload.dtype=fp8", "new.key=1"])
    places = {path: document.problem(path, "m").file for path in (("workload", "model"), ("workload", "dtype"), ("new", "key"), ("new",))}
    assert places == {
        ("workload", "model"): "command line", ("workload", "dtype"): "--set workload.dtype=fp8",
        ("new", "key"): "--set new.key=1", ("new",): "--set new.key=1",
    }  # fmt: skip


def test_a_setting_that_spoils_many_places_of_a_file_is_told_once(tmp_path):
    """The divisions of a reference design take up its budgets, 63 of them, which said so again."""
    path = tmp_path / "s.yaml"
    path.write_text(
        "system: {template: reference-training, devices: 64}\nworkload: {model: llama3-8b, global_batch: 64}\nstrategy: tp8-dp8\n"
    )
    (message,) = problems(crossflow.load, path, "system.budgets.area=800 mm")
    assert message == "system.budgets.area=800 mm: system.budgets.area: expected a mapping, got '800 mm'"


def test_one_key_of_a_strategy_as_text_can_be_set():
    given = {"system": "dgx-h100", "workload": {"model": "llama3-8b", "global_batch": 64}, "strategy": "tp4-dp2-sel:norm+mlp"}
    assert crossflow.load(given, "strategy.micro_batch=4").strategy_text == "tp4-dp2-mb4-sel:norm+mlp"
    assert crossflow.load(given, ["strategy.tp=2", "strategy.dp=4"]).strategy_text == "tp2-dp4-sel:norm+mlp"
    swept = crossflow.sweep(given, {"strategy.micro_batch": [1, 4]})
    assert swept.feasible.all()
    assert swept.step_time[1] == crossflow.predict(given, "strategy.micro_batch=4").step_time != swept.step_time[0]


# ------------------------------------------------------------------------------------------ finding and writing


def test_shipped_names_and_paths_are_found(tmp_path):
    own = tmp_path / "mine.yaml"
    own.write_text("a: 1\n")
    assert files.find("techlibs", "standard").name == "standard.yaml"
    assert files.find("techlibs", "techlibs/standard.yaml").name == "standard.yaml"
    assert files.find("techlibs", "mine.yaml", tmp_path) == own
    with pytest.raises(
        CrossflowError,
        match=r"^unknown techlib 'standrad'; did you mean 'standard'\?; known: .*standard.* \(or give the path of a YAML file\)$",
    ):
        files.find("techlibs", "standrad")


def test_shipped_names_are_unique():
    for kind in ("techlibs", "templates"):
        stems = [path.stem for path in files.data_folder(kind).rglob("*.yaml")]
        assert len(stems) == len(set(stems))


def test_files_are_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "folder" / "out.txt"
    write_text(path, "one\n")
    write_text(path, "två\n")
    assert path.read_text(encoding="utf-8") == "två\n"
    assert os.listdir(path.parent) == ["out.txt"]
    with pytest.raises(CrossflowError, match=r"^cannot write .*; choose another folder with --out$"):
        write_text(path / "below", "x")


def test_plain_data_over_a_file_is_told_as_its_own():
    """What a caller changes is not at the first line of the preset that it changes."""
    base = Document(file="preset.yaml", data={"a": {"b": 1, "c": 2}}, lines={(): ("preset.yaml", 1), ("a", "b"): ("preset.yaml", 3)})
    merged = merge(base, Document(file="scenario", data={"a": {"b": "x", "d": 4}}))
    told = [str(merged.problem(path, "wrong")) for path in (("a", "b"), ("a", "d"), ("a", "c"))]
    assert told == ["scenario: a.b: wrong", "scenario: a.d: wrong", "preset.yaml:1: a.c: wrong"]


def test_plain_data_below_a_known_line_is_told_there():
    base = Document(file="preset.yaml", data={"a": {"b": 1}}, lines={("a",): ("preset.yaml", 2), ("a", "b"): ("preset.yaml", 3)})
    merged = merge(base, Document(file="mine.yaml", data={"a": {"b": "x"}}, lines={("a",): ("mine.yaml", 7)}))
    assert str(merged.problem(("a", "b"), "wrong")) == "mine.yaml:7: a.b: wrong"


@pytest.mark.parametrize("word", ["an lstm", "a dlrm", "a gemm", "a transformer", "an int", "a list"])
def test_words_have_their_article(word):
    assert with_article(word.split()[1]) == word


def test_a_part_with_a_field_called_value_merges_key_by_key():
    """Latent attention has one, and is no quantity with a source."""
    workload = {"model": "deepseek-v3", "global_batch": 64, "latent": {"kv_rank": 256}}
    system = {"template": "h100-ib-cluster", "nodes": 8}
    job = crossflow.from_dict({"system": system, "workload": workload, "strategy": "tp4-dp16-ep8"}).job()
    latent = next(part.attention for layer in job.model.layers for part in layer.parts if part.attention)
    assert (latent.latent, latent.cached) == (256, 256 + 64)
