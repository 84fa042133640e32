"""Planted mistakes are noticed, and what is no mistake is left alone."""

import resource
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from crossflow.engine.service.sketch import LEAST, MOST
from tests.javascript.node import ASSETS, NODE
from tests.mutation import runner
from tests.mutation.mutants import places_of, planted
from tests.mutation.packages import OTHERS, RECORDED, ROOT, TESTS, files_of, modules_of
from tests.mutation.runner import Runner, _bound_memory, _lacking, _mark, _measures, _plant_constant, in_fork
from tests.mutation.scripts import judged_scripts, script_places

SOURCE = '''
"""A module."""

STEADY = 4


def share(time: float = 1.0, *, ranks: int) -> float:
    """Share of a rank, 2 at most."""
    if ranks < 1:
        raise ValueError(f"{ranks + 1} ranks")
    return max(time - 1.0, 0.0) / ranks
'''
CHANGES = [
    ("STEADY = 4", "STEADY = 5"),
    ("def share(time: float=1.0, *, ranks: int) -> float:", "def share(time: float=1.3, *, ranks: int) -> float:"),
    ("    if ranks < 1:", "    if not ranks < 1:"),
    ("    if ranks < 1:", "    if ranks <= 1:"),
    ("    if ranks < 1:", "    if ranks < 2:"),
    ("    return max(time - 1.0, 0.0) / ranks", "    return max(time - 1.0, 0.0) * ranks"),
    ("    return max(time - 1.0, 0.0) / ranks", "    return max(time - 1.0, 0.0)"),
    ("    return max(time - 1.0, 0.0) / ranks", "    return min(time - 1.0, 0.0) / ranks"),
    ("    return max(time - 1.0, 0.0) / ranks", "    return max(time + 1.0, 0.0) / ranks"),
    ("    return max(time - 1.0, 0.0) / ranks", "    return max(time, 0.0) / ranks"),
    ("    return max(time - 1.0, 0.0) / ranks", "    return max(time - 1.3, 0.0) / ranks"),
    ("    return max(time - 1.0, 0.0) / ranks", "    return max(time - 1.0, 1.0) / ranks"),
]


def test_mistakes_are_those_that_change_a_result(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    assert [planted(place).diff for place in places_of(path)] == [f"-{before}\n+{after}" for before, after in CHANGES]


def test_conditions_lose_their_last_part(tmp_path):
    path = tmp_path / "module.py"
    path.write_text("def both(a, b, c):\n    return (a and b) or c or a\n")
    after = ["(a and b) and c and a", "a and b or c", "(a or b) or c or a", "a or c or a"]
    assert [planted(place).diff.splitlines()[1].strip("+ ").removeprefix("return ") for place in places_of(path)] == after
    for place in places_of(path):
        compile(planted(place).tree, str(path), "exec")


def test_every_package_has_modules_and_tests():
    assert all(modules_of(package) for package in TESTS)
    assert all(Path(file).exists() for package in TESTS for file in files_of(package))


def test_every_file_of_tests_answers_for_a_package_or_for_none_that_computes():
    """So that a new file of tests is asked about mistakes, or is said to be of what is not mutated."""
    names = {path.stem.removeprefix("test_") for path in (ROOT / "tests").glob("test_*.py")}
    asked = {name for tests in TESTS.values() for name in tests.split() if "/" not in name}
    assert asked <= names
    assert names - asked == set(OTHERS.split()) | {RECORDED}


def test_a_lower_bound_on_memory_is_kept():
    """Raising it fails, which looks as if the mistake had been noticed."""
    bound = 7 * 2**30, 7 * 2**30

    def bounded():
        resource.setrlimit(resource.RLIMIT_AS, bound)
        _bound_memory()
        return resource.getrlimit(resource.RLIMIT_AS)

    assert in_fork(bounded) == bound


def test_functions_that_begin_in_one_line_keep_their_code(tmp_path, monkeypatch):
    """A lambda and the loop in it, as dataclasses have them: tests that call it would fail without any mistake."""
    path = tmp_path / "module.py"
    path.write_text("def one(): return 1\n\nclass Held:\n    many = lambda: [i for i in range(2)]\n")
    module = types.ModuleType("module")
    exec(compile(path.read_text(), str(path), "exec"), vars(module))
    monkeypatch.setitem(sys.modules, "module", module)
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    called = []
    live = {(str(path), 1): [module.one], (str(path), 4): [module.Held.many]}
    _mark({path}, live, called.append)
    assert (module.one(), called, module.Held.many()) == (1, [(str(path), 1)], [0, 1])


def test_constants_that_are_assigned_at_once_are_each_changed(tmp_path, monkeypatch):
    """Also where they were imported; one that could not be planted would count as caught."""
    path = ROOT / "crossflow" / "engine" / "service" / "sketch.py"
    line = next(i for i, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if text.startswith("LEAST, MOST = "))
    place = next(place for place in places_of(path) if place.line == line)
    own, other = (types.SimpleNamespace(LEAST=least, MOST=most, __file__="") for least, most in [(LEAST, MOST)] * 2)
    monkeypatch.setattr(sys, "modules", {"own": own, "other": other})
    _plant_constant(planted(place), own)
    assert [(one.LEAST, one.MOST) for one in (own, other)] == [(1.3e-9, 1e9)] * 2


def test_tests_that_measure_time_are_known():
    """They fail on a busy machine, whatever is planted."""

    def directly():
        return time.process_time()

    def inside():
        return [(lambda: time.perf_counter()) for _ in range(2)]

    assert [_measures(one.__code__) for one in (directly, inside, test_tests_that_measure_time_are_known)] == [True] * 3
    assert not _measures(test_every_package_has_modules_and_tests.__code__)
    assert not _measures(None)


def test_any_test_may_take_the_time_of_its_fixtures(monkeypatch):
    """Of two uses of a fixture one makes it, and which one is not known before."""
    moments = iter([0.0, 4.0, 5.0, 5.0])
    monkeypatch.setattr(runner, "time", types.SimpleNamespace(process_time=lambda: next(moments)))
    asked = Runner(places=[], told=print)
    for _ in range(2):
        made = asked.pytest_fixture_setup(types.SimpleNamespace(argname="slow"))
        next(made)
        with pytest.raises(StopIteration):
            made.send("what it is")
    assert asked.taken == {"slow": 4.0}


def test_what_needs_a_package_that_is_not_there_is_told(monkeypatch):
    """A sample over everything goes on without it."""
    path, other = (ROOT / "crossflow" / "cost" / name for name in ("tiling.py", "price.py"))

    def without(name):
        if name.endswith("tiling"):
            raise ModuleNotFoundError("no torch", name="torch")

    monkeypatch.setattr(runner.importlib, "import_module", without)
    assert _lacking({path, other}) == {path: "torch"}


@pytest.mark.thorough  # a tool's own test, in a process that collects a package's
@pytest.mark.slow
def test_planted_mistakes_are_caught():
    """All that can be done wrong in a line that has a law, shown to one file of tests."""
    path = ROOT / "crossflow" / "cost" / "collectives.py"
    line = next(i for i, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if "fold = 0.0 if" in text)
    words = ["--package", "cost", "--at", f"crossflow/cost/collectives.py:{line}", "--tests", "tests/test_cost_anchors.py"]
    done = subprocess.run([sys.executable, "-m", "tests.mutation", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "all                       4 of 4 caught"


SCRIPT = """import { el } from "./kit.js";

const MOST = 3; // never "more" than `3`
const words = { one: /[/"`]+/g };

/** The size. */
export function size(values, most = MOST) {
  if (values.length > -1 && !values.every((one) => one / 2 < most)) throw new Error(`${most + 1} at most`);
  const told = `${values.map((one) => -one).join(", ")} of ${MOST - 1}`;
  return told.trim();
}

export function shown(value) {
  return el("div", {}, value + 1);
}
"""
SCRIPT_CHANGES = [
    ("3", "4"),
    (
        "if (values.length > -1 && !values.every((one) => one / 2 < most))",
        "if (!(values.length > -1 && !values.every((one) => one / 2 < most)))",
    ),
    (">", ">="),
    ("&&", "||"),
    ("!", ""),
    ("every", "some"),
    ("/", "*"),
    ("2", "3"),
    ("<", "<="),
    ("-", ""),
    ("-", "+"),
    ("1", "2"),
    (".trim()", ""),
]


def test_mistakes_in_scripts_are_those_of_what_computes(tmp_path):
    path = tmp_path / "script.js"
    path.write_text(SCRIPT)
    places = script_places(path)
    assert [(place.old, place.new) for place in places] == SCRIPT_CHANGES
    assert {place.line for place in places} == {3, 8, 9, 10}
    assert places[2].diff == (
        "-  if (values.length > -1 && !values.every((one) => one / 2 < most)) throw new Error(`${most + 1} at most`);\n"
        "+  if (values.length >= -1 && !values.every((one) => one / 2 < most)) throw new Error(`${most + 1} at most`);"
    )


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_a_mistake_in_a_script_is_caught():
    """In the quantile between two neighbours."""
    path = ASSETS / "study-data.js"
    line = next(i for i, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if "return sorted[below] + " in text)
    places = [place for place in script_places(path) if place.line == line]
    assert [(place.old, place.new) for place in places] == [("+", "-"), ("-", "+"), ("*", "/"), ("-", "+")]
    (found,) = judged_scripts(places[:1], lambda _: None)
    assert found.caught
