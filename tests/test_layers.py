"""The architecture of the code: who may import whom, and what no library module does."""

import ast
import functools
import importlib
from collections import Counter
from pathlib import Path

import pytest

import crossflow

ROOT = Path(crossflow.__file__).parent
MODULES = sorted(path for path in ROOT.rglob("*.py"))
# The wings from the bottom up, and in each its rooms: sub-packages, modules of wings whose modules are rooms of their own, and "" for the
# other modules of a wing. A module imports only what stands at or below its own line.
HOUSE = {
    "base": (
        ("errors", "arrays", "limits", "moved", "platforms", "stages"),
        ("contents", "names", "units", "files", "formats", "provenance", "versions", "paths", "locks", "signals", "packages", "results"),
        ("rules", "drawing"),
    ),
    "hardware": (("technology",), ("architecture",), ("mapping",)),
    "program": (("embedding",), ("",)),
    "workload": (("",), ("requests",), ("cluster",)),
    "parallel": (("strategy", "sharding", ""),),
    "cost": (("",),),
    "engine": (("",), ("timeline", "service", "lasting", "cluster"), ("runs",)),
    "answers": (
        ("guesses",),
        ("settings", "bands", "requested", "workers"),
        ("scenario_file", "scenario_top", "sections", "meaning", "scenario", "score"),
        ("points",),
        ("steps",),
        ("evaluation",),
        ("uses", "idle"),
        ("prediction", "catalogue", "service"),
        ("search",),
        ("explanation",),
        ("fleets",),
        ("planning",),
        ("cluster",),
        ("study",),
        ("interactive",),
    ),
    "evidence": (("validation",), ("replay",), ("calibration",), ("torch",), ("jax",), ("emulation",), ("measurement",)),
    "edges": (("launch", "trace"), ("explore",), ("bench",), ("cli",)),
}
MOST_WINGS = 10
HOUSE_ORDER = {wing: level for level, wing in enumerate(HOUSE)}
LEVEL = {(wing, room): (level, floor) for level, wing in enumerate(HOUSE) for floor, rooms in enumerate(HOUSE[wing]) for room in rooms}
# Heavy, and needed by few commands: imported inside the functions that use them.
HEAVY = {"scipy", "optuna", "networkx", "matplotlib", "rich", "pandas", "dask", "distributed", "torch", "jax", "sklearn", "pyarrow"}
EDGE = (("__main__", ""), ("edges", "cli"))
# Rooms that exist for an extra, and what they may import.
EXTRAS = {("evidence", "torch"): ("torch", "transformers"), ("evidence", "emulation"): ("torch",), ("evidence", "measurement"): ("torch",)}
EXTRAS_PACKAGES = tuple(f"crossflow.{wing}.{room}" for wing, room in EXTRAS)
LONGEST_FUNCTION = 60  # lines, docstring included

LONGEST_CHAIN = 20


def room_of(parts):
    """Wing and room of a module, from the parts of its name without the package's own."""
    wing, *inner = parts
    return wing, inner[0] if inner and (wing, inner[0]) in LEVEL else ""


def place_of(path):
    return room_of([part for part in path.relative_to(ROOT).with_suffix("").parts if part != "__init__"] or ["__init__"])


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported(node):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [f"{node.module}.{alias.name}" for alias in node.names] if isinstance(node, ast.ImportFrom) and node.module else []


@functools.cache
def nodes_of(path):
    """All nodes of a module, for the laws that look at each."""
    return list(ast.walk(tree_of(path)))


def imports(path):
    return [(node, name) for node in nodes_of(path) for name in imported(node)]


def is_typing_only(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def module_level(tree):
    """Statements that run at import, without those for type checkers alone."""
    for node in tree.body:
        yield from () if is_typing_only(node) or isinstance(node, ast.FunctionDef | ast.ClassDef) else ast.walk(node)


def calls(path):
    return [node for node in nodes_of(path) if isinstance(node, ast.Call)]


def each(paths):
    """One test of a law for all files: thousands of tests that read a file each would take longer than their laws."""

    def of_all(law):
        def test():
            broken = []
            for path in paths:
                try:
                    law(path)
                except AssertionError as error:
                    broken.append(f"{path.relative_to(ROOT)}: {error}")
            assert not broken, "\n".join(broken)

        test.__name__, test.__doc__ = law.__name__, law.__doc__
        return test

    return of_all


@functools.cache
def needs(path):
    """Line and dotted name of everything of crossflow that a module imports, but for what only type checkers are told of public names.

    A method that is short for a public function says what it gives (`crossflow.base.results.public`).
    """
    told, found = {node for outer in tree_of(path).body if is_typing_only(outer) for node in ast.walk(outer)}, []
    for node, name in imports(path):
        parts = name.split(".")
        if parts[0] == "crossflow" and len(parts) > 1 and not (node in told and crossflow._PUBLIC.get(parts[-1]) == ".".join(parts[1:-1])):
            found.append((node.lineno, name))
    return found


@pytest.mark.slow
@each([path for path in MODULES if path.parent != ROOT])  # `__init__` names everything and imports nothing until asked
def test_rooms_import_only_what_is_below_them(path):
    own = LEVEL.get(place_of(path), (HOUSE_ORDER[place_of(path)[0]], -1))
    for line, name in needs(path):
        parts = name.split(".")[1:]
        if parts[0] in HOUSE:
            assert LEVEL.get(room_of(parts), (HOUSE_ORDER[parts[0]], -1)) <= own, f"{path.name}:{line} imports {name}"


DOORED = tuple(wing for wing in HOUSE if wing not in ("base", "edges"))  # everyone stands on `base`, and nobody on `edges`
MOST_DOORS = 168  # names of a wing that others may import


def entered():
    """For each wing the names that others import from it, by module; "*" for a whole module."""
    modules, found = {dotted(path) for path in MODULES}, {wing: {} for wing in DOORED}
    for path in MODULES:
        for _, name in needs(path) if path.parent != ROOT else ():
            wing = name.split(".")[1]
            if wing in found and wing != place_of(path)[0]:
                module, what = (name, "*") if name in modules else name.rsplit(".", 1)
                found[wing].setdefault(module.removeprefix(f"crossflow.{wing}").lstrip("."), set()).add(what)
    return found


@pytest.mark.slow
def test_wings_are_entered_by_their_doors():
    for wing, names in entered().items():
        doors = {module: set(names) for module, names in importlib.import_module(f"crossflow.{wing}").DOORS.items()}
        assert names == doors, f"DOORS in crossflow/{wing}/__init__.py"
        assert sum(map(len, names.values())) <= MOST_DOORS, wing


def test_every_wing_says_what_it_is_for():
    for wing in HOUSE:
        lines = importlib.import_module(f"crossflow.{wing}").__doc__.strip().splitlines()
        assert 6 <= len(lines) <= 14, wing


def test_every_module_stands_in_a_room_of_a_wing():
    assert len(HOUSE) <= MOST_WINGS
    assert {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(HOUSE)
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py"}
    rooms = {place_of(path) for path in MODULES if (path.parent != ROOT and path.parent.parent != ROOT) or path.name != "__init__.py"}
    assert rooms - {("__init__", ""), ("__main__", "")} == set(LEVEL)


def dotted(path):
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


def floors():
    """The longest chain of imports below each module, itself included; ends of a circle would recurse without end."""
    names = {dotted(path): path for path in MODULES}

    @functools.cache
    def below(module):
        found = {name for node in module_level(tree_of(names[module])) for name in imported(node)}
        needed = {name if name in names else name.rpartition(".")[0] for name in found} & set(names) - {module}
        return 1 + max(map(below, needed), default=0)

    return {name: below(name) for name in names}


@pytest.mark.slow
def test_the_longest_chain_of_imports_is_short():
    highest = max(floors().items(), key=lambda pair: pair[1])
    assert highest[1] <= LONGEST_CHAIN, highest


@pytest.mark.slow
@each(MODULES)
def test_functions_are_short(path):
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef):
            length = node.end_lineno - node.lineno + 1
            assert length <= LONGEST_FUNCTION, f"{path.name}:{node.lineno}: {node.name} has {length} lines"


def types_of(tree):
    """Names of classes, and of aliases of types, which begin with a capital as they do."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        yield from [node.name] if isinstance(node, ast.ClassDef) else [name for name in names if name[0].isupper() and not name.isupper()]


def test_no_type_has_a_name_with_two_meanings():
    found = Counter(name for path in MODULES for name in types_of(tree_of(path)))
    assert not [name for name, count in found.items() if count > 1]


def test_the_map_names_every_wing_and_room():
    page = (ROOT.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip(" `") for line in page.splitlines() if line.startswith("| `")]
    folders = [path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("*/*/__init__.py")]
    assert sorted(rows) == sorted([*HOUSE, *folders, "__main__"])


@pytest.mark.slow
@each(MODULES)
def test_imports_are_absolute(path):
    assert not [node for node in nodes_of(path) if isinstance(node, ast.ImportFrom) and node.level]


@pytest.mark.slow
@each([path for path in MODULES if place_of(path) not in EDGE])
def test_nothing_prints_or_exits_below_the_command_line(path):
    for call in calls(path):
        assert ast.unparse(call.func) not in (
            "print",
            "exit",
            "quit",
            "sys.exit",
            "os._exit",
            "sys.stdout.write",
            "input",
        ), f"{path.name}:{call.lineno}"


@pytest.mark.slow
@each(MODULES)
def test_no_error_is_swallowed_whole(path):
    for node in nodes_of(path):
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"{path.name}:{node.lineno}: bare except"
            assert ast.unparse(node.type) != "BaseException", f"{path.name}:{node.lineno}"


@each([path for path in MODULES if place_of(path) != ("edges", "cli")])  # whose pages are themselves imported when asked for
def test_heavy_packages_are_imported_where_they_are_used(path):
    for node in module_level(tree_of(path)):
        for name in imported(node):
            own = place_of(path)
            assert name.split(".")[0] not in HEAVY - set(EXTRAS.get(own, ())), f"{path.name}:{node.lineno} imports {name}"
            assert own in EXTRAS or not name.startswith(EXTRAS_PACKAGES), f"{path.name}:{node.lineno} imports {name}"


@pytest.mark.slow
@each([path for path in MODULES if place_of(path) not in EDGE])
def test_random_numbers_come_from_a_seeded_generator(path):
    for call in calls(path):
        name = ast.unparse(call.func)
        assert not name.startswith(("random.", "np.random.")) or name in (
            "np.random.default_rng",
            "np.random.Generator",
        ), f"{path.name}:{call.lineno}"
        assert name != "np.random.default_rng" or call.args, f"{path.name}:{call.lineno}: no seed"


STAGES = ("hardware", "workload", "parallel", "cost", "engine/timeline")


@each([path for path in MODULES if path.relative_to(ROOT).as_posix().startswith(STAGES)])
def test_dataclasses_of_the_stages_are_frozen(path):
    """Objects between stages; builders that live inside one function are private."""
    for node in nodes_of(path):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for decorator in node.decorator_list:
                text = ast.unparse(decorator)
                assert not text.startswith("dataclass") or "frozen=True" in text, f"{path.name}:{node.lineno}: {node.name}"


def test_importing_the_package_loads_nothing_heavy():
    import subprocess
    import sys

    code = "import sys, crossflow; print(*sorted(name for name in sys.modules if '.' not in name))"
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())
    assert not loaded & (HEAVY | {"numpy", "pydantic", "pint", "yaml"})
