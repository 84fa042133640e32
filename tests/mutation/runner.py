"""Run the tests of a package on each of its mutants, in forks of one process that has imported and collected all.

The files stay as they are: a fork replaces the code of the function that is changed. A first fork notes which functions
every test calls and how long it takes; a mutant is then shown only to the tests that call its function, quickest first, and
to recorded predictions after them, which are no proof.
"""

import ast
import dataclasses
import functools
import gc
import importlib
import itertools
import os
import pickle
import resource
import signal
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.mutants import Mutant, Place, marked, planted
from tests.mutation.packages import ASKED, CASES, LIMIT, LONG, RECORDED, ROOT, files_of

MEMORY = 8 * 2**30  # [B] of address space
FILES = ("base.units", "base.files", "hardware.technology", "program.embedding")  # whose caches hold what was read, and are not mutated
CLOCKS = frozenset({"process_time", "perf_counter", "monotonic"})
Key = tuple[str, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a mutant."""

    place: Any  # a Place or a ScriptPlace
    diff: str
    caught: str  # the test that failed, "time" or "crash"; empty where it survived
    tests: int  # that call what is changed


def is_recorded(test: str) -> bool:
    """Whether a test compares with what was recorded, by its name."""
    return f"test_{RECORDED}.py" in test


def judged(
    package: str,
    places: Iterable[Place],
    files: Sequence[str] | None = None,
    told: Callable[[Verdict], None] = lambda _: None,
    *,
    thorough: bool = False,
) -> list[Verdict]:
    """Verdicts of the tests of a package, or of the files that are named, on mutants of it; each is `told` as it is found."""
    runner = Runner(places=list(places), told=told)
    words = ["-o", "addopts=--strict-markers", "-s", "-p", "no:cacheprovider", "-p", "no:terminal"]
    words += ["--doctest-modules", "--rootdir", str(ROOT), *([] if thorough else ["-m", "not thorough"])]
    asked = [*words, *(files or files_of(package))]
    done = in_fork(lambda: (pytest.main(asked, plugins=[runner]), runner.verdicts, len(runner.places))[1:])
    if not isinstance(done, tuple) or len(done[0]) < done[1]:
        raise RuntimeError(f"the tests of {package} did not run: {done}")
    return list(done[0])


def in_fork(function: Callable[[], Any], *, quiet: bool = False) -> Any:
    """What a function returns in a fork of this process, or the signal that ended it."""
    with tempfile.NamedTemporaryFile() as file:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            status = 1
            try:
                if quiet:
                    _hush()
                Path(file.name).write_bytes(pickle.dumps(function()))
                status = 0
            except BaseException:
                traceback.print_exc()
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return pickle.loads(Path(file.name).read_bytes()) if status == 0 else status


def _hush() -> None:
    """Errors of tests are not printed; those of this module come back as the status."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)


class Runner:
    """A plugin of pytest that runs its mutants where pytest would run the tests."""

    def __init__(self, *, places: list[Place], told: Callable[[Verdict], None]) -> None:
        self.places, self.told = places, told
        self.verdicts: list[Verdict] = []
        self.called: dict[str, set[Key]] = {}  # by fixture
        self.taken: dict[str, float] = {}  # processor time of fixtures, which whichever test comes first to them takes. [s]
        self.noting: list[set[Key]] = []

    def pytest_sessionstart(self) -> None:
        """A counterexample of hypothesis need not be the smallest."""
        import hypothesis  # pytest must have been asked to rewrite it first

        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("mutation", parent=hypothesis.settings.get_profile("crossflow"), phases=phases)
        hypothesis.settings.load_profile("mutation")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Of every test some cases, evenly among all that it has; all that are recorded. None that measures time: it may fail by itself."""
        cases: dict[str, list[pytest.Item]] = {}
        for item in items:
            if _measures(getattr(getattr(item, "function", None), "__code__", None)):
                continue
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
        steps = {name: 1 if is_recorded(name) else -(-len(mine) // CASES) for name, mine in cases.items()}
        items[:] = [item for name, mine in cases.items() for item in mine[:: steps[name]]]

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Any:
        self.noting.append(self.called.setdefault(fixturedef.argname, set()))
        start = time.process_time()
        try:
            return (yield)
        finally:
            self.taken[fixturedef.argname] = max(time.process_time() - start, self.taken.get(fixturedef.argname, 0.0))
            self.noting.pop()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests as they are, then on every mutant."""
        lacking = _lacking({place.path for place in self.places})
        for path, name in lacking.items():
            sys.stderr.write(f"nothing is planted in {path.relative_to(ROOT)}, which needs {name}\n")
        self.places = [place for place in self.places if place.path not in lacking]
        gc.unfreeze()  # what is frozen is not listed
        live = _functions()
        profile = in_fork(lambda: self._profile(session, live), quiet=True)
        if not isinstance(profile, dict):
            raise pytest.UsageError(f"the tests as they are ended with status {profile}")
        left = [item.nodeid for item in session.items if item.nodeid not in profile]
        if left:
            sys.stderr.write(f"{len(left)} tests fail as they are or take {LONG} s and are not asked, {left[0]} first\n")
        for place in self.places:
            self.verdicts.append(self._verdict(session, planted(place), live, profile))
            self.told(self.verdicts[-1])
        return True

    def _profile(self, session: pytest.Session, live: dict[Key, list[Any]]) -> dict[str, tuple[float, set[Key], float]]:
        """Time, called functions, and time of the fixtures of every test that passes and is not long."""
        _mark({place.path for place in self.places}, live, lambda key: self.noting[-1].add(key))
        profile, modules = {}, _modules()
        for item, after in zip(session.items, [*session.items[1:], None], strict=True):
            _forget()
            self.noting = [set()]
            start = time.process_time()
            passed = _passes(session, item, after)
            _bring_back(modules)
            fixtures = getattr(item, "fixturenames", ())
            used = self.noting[0].union(*(self.called.get(name, set()) for name in fixtures))
            taken = time.process_time() - start
            if passed and taken < LONG:
                profile[item.nodeid] = (taken, used, sum(self.taken.get(name, 0.0) for name in fixtures))
        return profile

    def _verdict(self, session: pytest.Session, mutant: Mutant, live: dict[Key, list[Any]], profile: dict[str, Any]) -> Verdict:
        calls = {item: profile[item.nodeid] for item in session.items if _concerns(mutant, profile.get(item.nodeid, (0.0, set()))[1])}
        items = sorted(calls, key=lambda item: (is_recorded(item.nodeid), calls[item][0]))
        taken = itertools.accumulate(calls[item][0] for item in items)
        items = [item for item, so_far in zip(items, taken, strict=True) if so_far <= ASKED]
        limits = [LIMIT + 5 * (calls[item][0] + calls[item][2]) for item in items]
        found = in_fork(lambda: _first_failure(session, mutant, live, items, limits), quiet=True) if items else ""
        caught = found if isinstance(found, str) else "time" if found == -signal.SIGPROF else "crash"
        return Verdict(place=mutant.place, diff=mutant.diff, caught=caught, tests=len(items))


def _measures(code: types.CodeType | None) -> bool:
    """Whether the code of a test asks for the time."""
    return code is not None and (not CLOCKS.isdisjoint(code.co_names) or any(map(_measures, _codes(code))))


def _lacking(paths: set[Path]) -> dict[Path, str]:
    """Import modules; those that need a package which is not installed, and which."""
    lacking = {}
    for path in sorted(paths):
        try:
            importlib.import_module(_dotted(path))
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("crossflow"):
                raise
            lacking[path] = str(error.name)
    return lacking


def _mark(paths: set[Path], live: dict[Key, list[Any]], note: Callable[[Key], None]) -> None:
    """Make the functions of modules say that they are called."""
    for path in paths:
        vars(_module(path))["__called__"] = note
        for code in _codes(compile(marked(path), str(path), "exec")):
            for function in _of_code(live, code):
                function.__code__ = code


def _of_code(live: dict[Key, list[Any]], code: types.CodeType) -> list[Any]:
    """The functions with this code as it was; a lambda and what is repeated in it may begin in one line."""
    there = live.get((code.co_filename, code.co_firstlineno), [])
    return [function for function in there if function.__code__.co_qualname == code.co_qualname]


def _concerns(mutant: Mutant, called: set[Key]) -> bool:
    """Whether a test calls what is changed; a constant, any function of its module."""
    return mutant.key in called if mutant.in_function else any(path == mutant.key[0] for path, _ in called)


def _passes(session: pytest.Session, item: pytest.Item, after: pytest.Item | None) -> bool:
    before = session.testsfailed
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
    return session.testsfailed == before


def _first_failure(
    session: pytest.Session, mutant: Mutant, live: dict[Key, list[Any]], items: list[pytest.Item], limits: list[float]
) -> str:
    """Name of the first test that fails on a mutant, empty where all pass."""
    try:
        _plant(mutant, live)
    except Exception as error:  # a constant of a module that cannot be computed
        return f"import: {error!r}"
    _forget()
    _bound_memory()
    modules = _modules()
    for item, after, limit in zip(items, [*items[1:], None], limits, strict=True):
        signal.setitimer(signal.ITIMER_PROF, limit)  # whose end ends the process
        if not _passes(session, item, after):
            return item.nodeid
        _bring_back(modules)
    return ""


def _bound_memory() -> None:
    """Bound the address space, where no lower bound is set that cannot be raised."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    least = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (least, least))


def _modules() -> dict[str, types.ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.split(".")[0] == "crossflow"}


def _bring_back(modules: dict[str, types.ModuleType]) -> None:
    """Put back modules that a test has imported anew: those of before are marked, or changed."""
    for name, module in modules.items():
        if sys.modules.get(name) is not module:
            sys.modules[name] = module
            holder, _, own = name.rpartition(".")
            if holder in modules:
                setattr(modules[holder], own, module)


def _functions() -> dict[Key, list[Any]]:
    """The functions of crossflow that exist, by file and first line."""
    live: dict[Key, list[Any]] = {}
    for thing in gc.get_objects():
        if type(thing) is types.FunctionType and thing.__code__.co_filename.startswith(str(ROOT / "crossflow")):
            live.setdefault((thing.__code__.co_filename, thing.__code__.co_firstlineno), []).append(thing)
    return live


def _forget() -> None:
    """Empty the caches of functions of crossflow, but for those of files that have been read."""
    for thing in _caches():
        thing.cache_clear()


@functools.cache
def _caches() -> list[Any]:
    wrappers = [thing for thing in gc.get_objects() if type(thing) is functools._lru_cache_wrapper]
    return [thing for thing in wrappers if _mutated(str(thing.__module__))]


def _mutated(module: str) -> bool:
    return module.startswith("crossflow.") and not module.removeprefix("crossflow.").startswith(FILES)


def _plant(mutant: Mutant, live: dict[Key, list[Any]]) -> None:
    """Put the mistake into the modules that are loaded."""
    path, module = str(mutant.place.path), _module(mutant.place.path)
    if not mutant.in_function:
        return _plant_constant(mutant, module)
    codes = _codes(compile(mutant.tree, path, "exec"))
    code = next(item for item in codes if (path, item.co_firstlineno, item.co_name) == (*mutant.key, mutant.holder.name))
    defaults = _defaults(mutant.holder, module)
    for function in _of_code(live, code):
        function.__code__ = code
        function.__defaults__ = defaults[0] or None
        function.__kwdefaults__ = defaults[1] or None
    return None


def _module(path: Path) -> types.ModuleType:
    return sys.modules[_dotted(path)]


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _codes(code: types.CodeType) -> Iterable[types.CodeType]:
    for item in code.co_consts:
        if isinstance(item, types.CodeType):
            yield item
            yield from _codes(item)


def _defaults(holder: Any, module: types.ModuleType) -> tuple[tuple[Any, ...], dict[str, Any]]:
    arguments = holder.args
    by_name = {
        item.arg: _value(default, module) for item, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default
    }
    return tuple(_value(default, module) for default in arguments.defaults), by_name


def _value(node: Any, module: types.ModuleType) -> Any:
    return eval(compile(ast.Expression(node), str(module.__file__), "eval"), vars(module))


def _plant_constant(mutant: Mutant, module: types.ModuleType) -> None:
    """A constant keeps its name where it is imported; several may be assigned at once."""
    found = dict(vars(module))
    exec(compile(ast.Module([mutant.holder], []), str(module.__file__), "exec"), found)
    targets = [node for target in mutant.holder.targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    for name in {target.id for target in targets if isinstance(target.ctx, ast.Store)}:
        old = getattr(module, name)
        for other in list(sys.modules.values()):
            if getattr(other, "__dict__", {}).get(name, None) is old:
                setattr(other, name, found[name])
