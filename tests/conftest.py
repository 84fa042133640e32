"""Scenarios and devices that several test modules start from; hypothesis draws the same examples in every run."""

import gc
import os
import re
import signal
import sys

import hypothesis
import pytest
from sampled import fewer

import crossflow
from crossflow.__main__ import main
from crossflow.answers.explanation import alternatives
from crossflow.base.errors import SpecError
from crossflow.hardware.architecture.system import architecture
from crossflow.hardware.technology.library import load_library

hypothesis.settings.register_profile("crossflow", deadline=None, derandomize=True, database=None, max_examples=60)
hypothesis.settings.load_profile("crossflow")
os.environ.pop("COLUMNS", None)  # pages are as wide as it says
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the many processes that tests start would compile all of the package each
sys.dont_write_bytecode = False
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell: commands that tests interrupt would go on
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart():
    """Some ten thousand tests that are collected are no garbage, and looking at them again and again takes a second."""
    gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Tests that say how many of their cases are enough have these evenly among all; their other cases are thorough."""
    cases = {}
    for item in items:
        if item.get_closest_marker("cases"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for mine in cases.values():
        (enough,) = mine[0].get_closest_marker("cases").args
        kept = {(2 * i + 1) * len(mine) // (2 * enough) for i in range(enough)}
        for i, item in enumerate(mine):
            if i not in kept:
                item.add_marker("thorough")


def pytest_collection_finish():
    """Garbage is rare too: looking for it after every 700 objects takes a tenth of the time of all tests."""
    gc.set_threshold(100_000, 10, 10)
    gc.enable()


@pytest.fixture(scope="session")
def exactly():
    """Pattern that matches one whole sentence, as `pytest.raises(match=...)` takes it."""
    return lambda sentence: f"^{re.escape(sentence)}$"


@pytest.fixture(scope="session")
def problems():
    """Paths and messages of all problems of a specification that is refused."""

    def of(made, *given, **changes):
        with pytest.raises(SpecError) as caught:
            made(*given, **changes)
        return [(problem.path, problem.message) for problem in caught.value.problems]

    return of


@pytest.fixture(scope="module")
def short_divisions():
    """Short searches for other divisions of budgets, where a module explains scenarios."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alternatives, "SEARCHED", fewer(300, 150))
        patch.setattr(alternatives, "REFINED", fewer(40, 20))
        yield


@pytest.fixture(scope="session")
def lstm():
    """The case study's language model, or a smaller one, on the case study's accelerator."""

    def build(strategy="d8", template="pathfinder", workload=None, **system):
        return crossflow.from_dict(
            {
                "system": {"template": template, **system},
                "workload": {"model": "lstm-16k", **(workload or {})},
                "strategy": strategy,
            }
        )

    return build


@pytest.fixture(scope="session")
def gemm():
    """A matrix product on a generated device."""

    def build(template="v100", strategy="d1", m=4096, n=4096, k=4096, system=None, **workload):
        dtype = "fp32" if template == "p4" else "fp16"
        size = {"model": "gemm", "m": m, "n": n, "k": k, "dtype": dtype, **workload}
        return crossflow.from_dict({"system": {"template": template, **(system or {})}, "workload": size, "strategy": strategy})

    return build


@pytest.fixture(scope="session")
def standard():
    return load_library("standard")


@pytest.fixture(scope="session")
def paper():
    return load_library("deepflow-2024")


@pytest.fixture(scope="session")
def v100(gemm):
    return architecture(gemm("v100").system)


@pytest.fixture(scope="session")
def p4(gemm):
    return architecture(gemm("p4").system)


@pytest.fixture
def out(capsys):
    """Run a command that succeeds and return what it printed."""

    def run(*words):
        assert main(words) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(capsys):
    """Run a command that is refused and return its complaint; nothing goes to stdout."""

    def run(*words):
        try:
            status = main(words)
        except SystemExit as end:
            status = end.code
        captured = capsys.readouterr()
        assert (status, captured.out) == (2, "")
        assert "Traceback" not in captured.err
        return captured.err

    return run
