"""Every field of requests matters: another value makes other requests."""

import copy

import pytest
from test_switches import leaves

from crossflow.answers.scenario_file import ScenarioFile
from crossflow.base import files
from crossflow.base.files import Document, validate_at
from crossflow.workload.requests.asking import requests_in
from crossflow.workload.requests.spec import RequestsSpec

PLAIN = {"arrivals": {"law": "poisson", "rate": "2 1/s"}, "count": 60, "prompt": 500, "output": 50}
SESSIONS = {"sessions": {"turns": 3, "think": "5 s"}}
TOOLS = {"tools": {"calls": 2, "time": "3 s", "tokens": 40}}
USERS = {"users": {"number": 4, "think": "5 s"}, "count": 60, "prompt": 500, "output": 50, "arrivals": None}
SKEWED = {"law": "lognormal", "median": "5 s", "p95": "9 s"}
POISSON = {"law": "poisson", "rate": "2 1/s"}
PREFIX = {"shared_prefix": {"tokens": 64}}
ANSWERS = {"answers": 2}
BATCH = {"arrivals": None, "count": None, "batch": 9}
TABLE = {"law": "empirical", "file": "lengths.csv", "column": "a"}
# What stands in the place of a law, and the key that is given another value there.
LENGTHS = {
    "law": ({"law": "fixed", "tokens": 60}, {"law": "uniform", "low": 50, "high": 70}), "tokens": ({"law": "fixed", "tokens": 60}, 61),
    "median": ({"law": "lognormal", "median": 60, "p95": 200}, 70), "p95": ({"law": "lognormal", "median": 60, "p95": 200}, 300),
    "mean": ({"law": "lognormal", "mean": 60, "cv": 0.5}, 70), "cv": ({"law": "lognormal", "mean": 60, "cv": 0.5}, 0.7),
    "low": ({"law": "uniform", "low": 50, "high": 70}, 20), "high": ({"law": "uniform", "low": 50, "high": 70}, 90),
    "values": ({"law": "empirical", "values": [50, 60]}, [50, 70]), "most": ({"law": "lognormal", "median": 60, "p95": 200}, 61),
    "column": (TABLE, "b"), "file": (TABLE, "others.csv"),
}  # fmt: skip
TIMES = {
    "law": ({"law": "fixed", "time": "5 s"}, {"law": "exponential", "mean": "5 s"}), "time": ({"law": "fixed", "time": "5 s"}, "6 s"),
    "mean": ({"law": "exponential", "mean": "5 s"}, "6 s"), "cv": ({"law": "lognormal", "mean": "5 s", "cv": 0.5}, 0.7),
    "median": (SKEWED, "6 s"), "p95": (SKEWED, "12 s"),
    "low": ({"law": "uniform", "low": "2 s", "high": "5 s"}, "1 s"), "high": ({"law": "uniform", "low": "2 s", "high": "5 s"}, "6 s"),
}  # fmt: skip
COUNTS = {
    "law": ({"law": "fixed", "number": 3}, {"law": "geometric", "mean": 3}), "number": ({"law": "fixed", "number": 3}, 4),
    "mean": ({"law": "geometric", "mean": 3}, 4), "values": ({"law": "empirical", "values": [2, 3]}, [2, 4]),
    "low": ({"law": "uniform", "low": 2, "high": 4}, 1), "high": ({"law": "uniform", "low": 2, "high": 4}, 6),
    "weights": ({"law": "empirical", "values": [2, 3], "weights": [1, 1]}, [1, 9]),
}  # fmt: skip
BURSTS = {"law": "bursts", "rate": "5 1/s", "on": "9 s", "off": "9 s"}
ARRIVALS = {
    "law": (POISSON, {"law": "deterministic", "rate": "2 1/s"}), "rate": (POISSON, "3 1/s"),
    "cv": ({"law": "gamma", "rate": "2 1/s", "cv": 2}, 3), "on": (BURSTS, "5 s"), "off": (BURSTS, "5 s"), "idle_rate": (BURSTS, "1 1/s"),
    "rates": ({"law": "diurnal", "rates": ["1 1/s", "2 1/s"]}, ["3 1/s", "2 1/s"]),
    "period": ({"law": "diurnal", "rates": ["0.01 1/s", "2 1/s"]}, "1 min"),
}  # fmt: skip
LAWS = [
    ("arrivals", ARRIVALS, {}), ("prompt", LENGTHS, {}), ("output", LENGTHS, {}),
    ("sessions.turns", COUNTS, SESSIONS), ("sessions.think", TIMES, SESSIONS), ("users.think", TIMES, USERS),
    ("tools.calls", COUNTS, TOOLS), ("tools.time", TIMES, TOOLS), ("tools.tokens", LENGTHS, TOOLS),
]  # fmt: skip
SPREAD = {"prompt": {"law": "uniform", "low": 1, "high": 900}, "output": {"law": "uniform", "low": 1, "high": 90}}
OTHERS = {
    "count": ({}, 61), "duration": ({"count": None, "duration": "60 s"}, "70 s"), "batch": (BATCH, 10),
    "correlation": (SPREAD, 0.9), "sessions.history": (SESSIONS, False), "users.number": (USERS, 5), "users.ramp": (USERS, "30 s"),
    "shared_prefix.tokens": (PREFIX, 128), "shared_prefix.number": (PREFIX, 9), "answers": (ANSWERS, 3),
    **{f"targets.{name}": ({}, "1 s") for name in ("ttft", "tpot", "e2e")},
}  # fmt: skip
ALL = {f"{parent}.{key}": ({**more, parent: law}, value) for parent, laws, more in LAWS for key, (law, value) in laws.items()} | OTHERS
CLASSES = {"classes": [{"name": "one", "weight": 1}, {"name": "two", "weight": 1}]}
WHOLE = {"seed": ({}, 1), "rate_scale": ({}, 2.0), "time_scale": ({}, 2.0), "limit": ({}, 30), "block": (PREFIX, 32),
    **{f"classes.0.{key}": (CLASSES, value) for key, value in {"name": "uno", "priority": 2, "weight": 3}.items()},
}  # fmt: skip
ROWS = "when,long,short,who,time\n0,10,5,a,0\n2,20,6,b,1\n1,30,7,a,2\n4,40,0,b,3\n"
TRACE = {
    "trace": "day.csv",
    "columns": {"arrival": "when", "prompt": "long", "output": "short"},
    "time_unit": "s",
    "empty": "drop",
    "unsorted": "sort",
}
OF_A_TRACE = {
    "trace": "night.csv", "columns.arrival": "time", "columns.prompt": "short", "columns.output": "long", "columns.kind": "who",
    "columns.session": "who", "columns.elapsed": "time", "columns.blocks": "who", "time_unit": "ms", "empty": "refuse",
    "unsorted": "refuse", "begin": "1 s", "until": "2 s", "repeat": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("requests")
    (folder / "lengths.csv").write_text("a,b\n50,70\n60,80\n")
    (folder / "others.csv").write_text("a,b\n51,71\n60,80\n")
    (folder / "day.csv").write_text(ROWS)
    (folder / "night.csv").write_text(ROWS.replace("30", "31"))
    return folder


def made(data, folder):
    """All that there is to say of requests; of what is refused its words."""
    try:
        trace = requests_in(validate_at(RequestsSpec, Document(file="f.yaml", data={"requests": data}), "requests"), folder).trace
    except Exception as error:
        return str(error)
    return trace.digest, trace.classes, trace.kind.tolist(), trace.follows.tolist(), trace.pause.tolist()


def changed(data, path, value):
    *above, last = path.split(".")
    return files.replace(data, tuple(int(key) if key.isdigit() else key for key in (*above, last)), value, path)


def cases():
    for path, (more, value) in (ALL | WHOLE).items():
        data = PLAIN | {key: given for key, given in more.items() if "." not in key}
        for key, given in more.items():
            data = changed(copy.deepcopy(data), key, given)
        data = {key: given for key, given in data.items() if given is not None}
        law = path.endswith(".law")
        yield path, data, changed(copy.deepcopy(data), path.removesuffix(".law") if law else path, value)
    for path, value in OF_A_TRACE.items():
        yield path, TRACE, changed(copy.deepcopy(TRACE), path, value)


def in_a_class(data):
    own = {key: value for key, value in data.items() if key != "seed"}
    return {"classes": [{"name": "one", **own}]}


@pytest.mark.parametrize(("path", "before", "after"), [*cases()], ids=lambda given: given if isinstance(given, str) else "")
def test_another_value_makes_other_requests(folder, path, before, after):
    start = made(before, folder)
    assert isinstance(start, tuple), start
    assert made(after, folder) != start
    if path in ALL:
        start = made(in_a_class(before), folder)
        assert isinstance(start, tuple), start
        assert made(in_a_class(after), folder) != start


def test_no_field_is_forgotten():
    known = {leaf.removeprefix("requests.") for leaf in leaves(ScenarioFile) if leaf.startswith("requests.")}
    assert {*ALL, *WHOLE, *OF_A_TRACE, *(f"classes.0.{path}" for path in ALL)} == known
