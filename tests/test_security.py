"""Files are data: nothing in them is run, and no name in them becomes markup, on no page and in no picture."""

import ast
import base64
import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import yaml

import crossflow
from crossflow.__main__ import main
from crossflow.edges.explore.page import assets, exported, with_policy
from crossflow.edges.explore.study import study_app
from tests.test_layers import MODULES, ROOT, calls

# ------------------------------------------------------------------------------------------ where code can be run

# Calls that run what a text names, or what bytes hold, and all places in crossflow that have one; why it is harmless, or who asked for it.
OWN_NAMES = "names that stand in crossflow's own code"
ALLOWED = {
    ("__init__.py", "importlib.import_module"): OWN_NAMES,
    ("base/moved.py", "importlib.import_module"): OWN_NAMES,
    ("base/packages.py", "importlib.import_module"): OWN_NAMES,
    ("base/packages.py", "importlib.util.find_spec"): OWN_NAMES,
    ("evidence/calibration/learned.py", "importlib.util.find_spec"): OWN_NAMES,
    ("evidence/validation/dropping.py", "yaml.load"): "a safe loader, of files of the package",
    ("evidence/validation/kept.py", "pickle.loads"): "tables that the same script has kept, in a folder that its user names",
    ("evidence/torch/huggingface.py", "importlib.util.find_spec"): OWN_NAMES,
    ("evidence/emulation/checkpoints.py", "pickle.loads"): "plans of checkpoints that the same process has packed",
    ("evidence/emulation/link.py", "ctypes.CDLL"): "the C library of the system",
    ("base/platforms.py", "importlib.import_module"): OWN_NAMES,
    ("base/results.py", "importlib.import_module"): OWN_NAMES,
    ("edges/cli/parser.py", "importlib.import_module"): OWN_NAMES,
    ("program/__init__.py", "importlib.import_module"): OWN_NAMES,
    ("workload/kinds.py", "importlib.import_module"): OWN_NAMES,
    ("base/files.py", "importlib.util.spec_from_file_location"): "python_module, asked for below",
    ("base/files.py", "spec.loader.exec_module"): "python_module, asked for below",
    ("evidence/torch/source.py", "importlib.import_module"): "`crossflow import MODULE:FUNCTION`",
    ("evidence/torch/source.py", "files.python_module"): "`crossflow import SCRIPT.py:FUNCTION`",
    ("evidence/emulation/delays.py", "files.python_module"): "`crossflow emulate --delays`, whose file may name a function",
    ("evidence/emulation/rank.py", "runpy._run_module_as_main"): "`crossflow emulate -- -m MODULE`",
    ("evidence/emulation/rank.py", "exec"): "`crossflow emulate -- SCRIPT`",
    ("evidence/emulation/rank.py", "compile"): "`crossflow emulate -- SCRIPT`",
    ("evidence/emulation/processes.py", "subprocess.Popen"): "`crossflow emulate`, of this Python",
    ("edges/bench.py", "subprocess.run"): "`crossflow bench`, of this Python",
    ("evidence/jax/partition.py", "subprocess.run"): "`crossflow import` of a text that is not divided yet, of this Python",
    ("answers/study/tables.py", "np.load"): "without pickled objects",
}
BY_NAME = {"eval", "exec", "compile", "__import__"}
BY_OWNER = {
    "importlib": {"import_module"}, "importlib.util": {"spec_from_file_location", "find_spec"}, "runpy": set(), "subprocess": set(),
    "pickle": {"load", "loads", "Unpickler"}, "marshal": set(), "shelve": set(), "dill": set(), "cloudpickle": set(), "joblib": {"load"},
    "torch": {"load"}, "np": {"load"}, "numpy": {"load"}, "pd": {"read_pickle", "eval"}, "pandas": {"read_pickle", "eval"},
    "os": {"system", "popen", "execv", "execve", "execl", "spawnv", "spawnl", "startfile", "posix_spawn"},
    "yaml": {"load", "load_all", "unsafe_load", "full_load", "unsafe_load_all", "full_load_all"}, "files": {"python_module"},
    "pty": set(), "ctypes": {"CDLL", "cdll"},
}  # fmt: skip  # an empty set stands for all that is in a module
BY_END = {"exec_module", "load_module", "read_pickle"}
SIGN = re.compile(  # what can be in a module: few are read as a tree
    "|".join(
        [rf"\b{name}\(" for name in BY_NAME | BY_END]
        + [rf"\b{re.escape(owner)}\.(?:{'|'.join(names or [r'[A-Za-z]'])})" for owner, names in BY_OWNER.items()]
    )
)


def running(path):
    """Calls of a module that run what they are given."""
    if not SIGN.search(path.read_text(encoding="utf-8")):
        return
    for node in calls(path):
        owner, _, name = ast.unparse(node.func).rpartition(".")
        if name in (BY_END if owner else BY_NAME) or (owner in BY_OWNER and (not BY_OWNER[owner] or name in BY_OWNER[owner])):
            yield (path.relative_to(ROOT).as_posix(), ast.unparse(node.func)), node


def test_what_runs_code_is_listed_with_who_asked_for_it():
    found = dict(one for path in MODULES for one in running(path))
    assert found.keys() == ALLOWED.keys()
    opened = found["answers/study/tables.py", "np.load"]
    assert [ast.unparse(word.value) for word in opened.keywords if word.arg == "allow_pickle"] == ["False"]


def test_yaml_is_read_by_a_loader_that_makes_plain_data_alone():
    from crossflow.base import files

    assert issubclass(files._LOADER, (yaml.SafeLoader, yaml.CSafeLoader))
    loaders = {ast.unparse(node) for path in MODULES if "_LOADER" in path.read_text(encoding="utf-8") for node in calls(path)}
    assert not [call for call in loaders if "UnsafeLoader" in call or "FullLoader" in call]


# ------------------------------------------------------------------------------------------ files that name code

CANARY = "import pathlib\npathlib.Path(r'{}').touch()\ndef function(*_): pass\n"
SCENARIO = {
    "name": "n", "system": {"template": "dgx-h100"}, "workload": {"model": "llama3-8b", "task": "training", "dtype": "bf16"},
    "strategy": "tp8", "software": "megatron-core",
}  # fmt: skip
STUDY = {
    "name": "n", "scenario": {"system": "v100", "workload": {"model": "gemm", "m": 64, "n": 64, "k": 64}},
    "space": {"workload.m": {"from": 1, "to": 9}}, "objectives": ["step_time_s"],
    "searches": {"a": {"searcher": "random", "evaluations": 3, "storage": None}},
    "plots": [{"kind": "lines", "name": "p", "x": "workload.m", "y": "step_time_s"}],
}  # fmt: skip
CODE = (
    "canary:function", "canary.py:function", "canary", "canary.py", "__import__('canary')", "{canary.py}", "$(touch seen)", "`touch seen`",
    "canary://x", "sqlite+canary:///x", "pkl:canary", "=cmd|' /C touch seen'!A0",
)  # fmt: skip
TAGS = (
    "!!python/object/apply:os.system ['touch seen']", "!!python/name:canary.function", "!!python/module:canary",
    "!!python/object/new:canary.C {}",
)  # fmt: skip


def strings(data, path=()):
    """Paths of all values of plain data."""
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from strings(value, (*path, key))
    else:
        yield path


def with_value(data, path, value):
    if not path:
        return value
    copied = list(data) if isinstance(data, list) else dict(data)
    copied[path[0]] = with_value(data[path[0]], path[1:], value)
    return copied


def hostile(data):
    """Files of which one value names code, in turn."""
    for number, path in enumerate(strings(data)):
        yield yaml.safe_dump(with_value(data, path, CODE[number % len(CODE)]))
        yield yaml.safe_dump(with_value(data, path, "@TAG@")).replace("'@TAG@'", TAGS[number % len(TAGS)])
    yield from (yaml.safe_dump({**data, CODE[0]: code}) for code in CODE[:2])


def forbidden(*words, **named):
    raise AssertionError(f"{words} is run")


@pytest.mark.parametrize(("data", "command"), [(SCENARIO, "predict"), (STUDY, "study")], ids=["scenario", "study"])
def test_a_file_that_describes_runs_nothing(tmp_path, monkeypatch, capsys, data, command):
    seen = tmp_path / "seen"
    (tmp_path / "canary.py").write_text(CANARY.format(seen))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for module, name in ((subprocess, "Popen"), (os, "system"), (os, "popen"), (os, "execv"), (os, "posix_spawn")):
        monkeypatch.setattr(module, name, forbidden)
    texts = list(hostile(data))
    for text in texts:
        (tmp_path / "file.yaml").write_text(text)
        assert main([command, "file.yaml", *(["--out", "out"] if command == "study" else [])]) in (0, 2), text
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert said.count("file.yaml:") > len(texts) // 2  # they were read, and refused at their lines
    assert not seen.exists()
    assert "canary" not in sys.modules


def test_points_with_pickled_objects_are_not_read(tmp_path):
    from crossflow.answers.study import tables

    class Bomb:
        def __reduce__(self):
            return (tmp_path.joinpath("seen").touch, ())

    path = tmp_path / tables.COLUMNS
    np.savez(path, names=np.array([Bomb()], dtype=object))
    assert tables.load(path) is None
    assert not (tmp_path / "seen").exists()


@pytest.mark.parametrize("command", ["import", "emulate"])
def test_what_runs_code_says_so(capsys, command):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "is run as you: name only code that you trust" in " ".join(capsys.readouterr().out.split())


# ------------------------------------------------------------------------------------------ names that look like markup

NAMES = (
    "</script><script>hit=1</script>", "<img src=x onerror=hit=1>", "\"><svg onload=hit=1>", "' onmouseover='hit=1", "<!--<script>",
    "]]>&lt;&amp;",
    "</title></style><b>", "$\\frac{x$ ${hit}", "a\u2028b\u202e`${hit=1}`", "javascript:hit=1",
)  # fmt: skip
PLAIN = "harmless"


class Outline(HTMLParser):
    """Tags of a page with the names of their attributes, in order, and what its scripts hold."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, *sorted(name for name, _ in attrs)))
        self.attributes += [value for _, value in attrs if value]

    def handle_comment(self, data):
        self.tags.append(("comment",))


def outline(text):
    return Outline(text).tags


def named(name):
    return crossflow.from_dict({"name": name, "system": "v100", "workload": {"model": "gemm", "m": 64, "n": 64, "k": 64, "dtype": "fp16"}})


@pytest.fixture(scope="module")
def study_page(tmp_path_factory):
    """The page of a study as a file, with its pictures, by the names in it."""

    def made(name):
        folder = tmp_path_factory.mktemp("named")
        data = {
            "name": name,
            "scenario": {"name": name, "system": "v100", "workload": {"model": "gemm", "m": 64, "n": 64, "k": 64, "dtype": "fp16"}},
            "sweep": {"workload.m": [64, 128]},
            "plots": [{"kind": "lines", "name": "p", "x": "workload.m", "y": "step_time_s", "title": name}],
        }  # fmt: skip
        (folder / "study.yaml").write_text(yaml.safe_dump(data))
        crossflow.run_study(folder / "study.yaml", out=folder / "out")
        return exported(study_app(folder / "out")), (folder / "out/p.svg").read_text(encoding="utf-8")

    return made


def start_of(page):
    return json.loads(page.partition('id="start">')[2].partition("</script>")[0])


def test_no_name_of_a_scenario_becomes_markup_on_its_page_or_in_a_notebook():
    from crossflow.edges.explore.scenario import scenario_app

    def texts(name):
        scenario = named(name)
        app = scenario_app(scenario)
        try:
            page = exported(app, answers={})
        finally:
            app.close()
        return page, crossflow.predict(scenario)._repr_html_(), scenario._repr_html_()

    page, *notebook = texts(PLAIN)
    outlines = [outline(page), *map(outline, notebook)]
    for name in (*NAMES[:2], "".join(NAMES[2:])):
        found = texts(name)
        assert [*map(outline, found)] == outlines, name
        assert start_of(found[0])["title"] == name


def test_no_name_of_a_study_becomes_markup_on_its_page_or_in_its_pictures(study_page):
    page, picture = study_page(PLAIN)
    for name in ["".join(NAMES)[:200]]:
        found, drawn = study_page(name)
        assert outline(found) == outline(page)
        kinds = {one.tag for one in ET.fromstring(drawn).iter()}
        assert kinds <= {one.tag for one in ET.fromstring(picture).iter()} | {"{http://www.w3.org/2000/svg}use"}
        assert not [one for one in ET.fromstring(drawn).iter() if any(key.lower().startswith("on") for key in one.attrib)]


def test_no_name_becomes_markup_where_systems_are_compared():
    from crossflow.edges.explore.comparison import written

    found = crossflow.compare("llama3-8b", ["dgx-h100", "dgx-a100"], devices=8)

    def page(name):
        rows = [replace(row, system=name, reason=name) for row in found.rows]
        return written(replace(found, model=name, task=name, rows=rows, assumptions=(name,), notes=(name,)))

    like = page(PLAIN)
    assert policy_of(like)["script-src"] == "'none'"
    assert [name for name in NAMES if outline(page(name)) != outline(like)] == []


def test_names_in_traces_are_text(tmp_path):
    for name in NAMES:
        crossflow.timeline(named(name)).save(tmp_path / "t.json.gz")
        found = json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))
        assert found["traceName"].startswith(f"{name}: ")


# ------------------------------------------------------------------------------------------ what pages may do


def policy_of(page):
    return dict(part.split(" ", 1) for part in re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)[1].split("; "))


def test_a_page_as_a_file_runs_its_own_scripts_alone_and_loads_nothing():
    from crossflow.edges.explore.scenario import scenario_app

    app = scenario_app(named("a"))
    page = exported(app, answers={})
    app.close()
    policy = policy_of(page)
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["style-src-attr"] == "'none'"
    assert page.index("Content-Security-Policy") < page.index("<script")
    inline = re.findall(r'<script(?: type="module")?>(.*?)</script>', page, re.DOTALL)
    digests = [f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in inline]
    assert policy["script-src"].split() == digests
    assert len(digests) == 2
    assert "unsafe" not in " ".join(policy.values())
    assert not re.search(r'(?:src|href)="(?!data:)[^"]', page.partition("<body>")[0])


def test_a_script_that_a_page_does_not_hold_is_not_in_its_policy():
    page = with_policy('<meta charset="utf-8">\n<script>1</script>')
    later = page.replace("<script>1", "<script>2")
    digest = base64.b64encode(hashlib.sha256(b"2").digest()).decode()
    assert digest not in policy_of(later)["script-src"]


def test_scripts_of_pages_make_no_markup_from_text():
    makes = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|javascript:|ContextualFragment|DOMParser"
    own = {name: text.decode() for name, (kind, text) in assets().items() if "javascript" in kind and not name.startswith("vendor/")}
    assert len(own) > 10
    assert {name: found for name, text in own.items() if (found := re.findall(makes, text))} == {}
