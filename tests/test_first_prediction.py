"""What a first prediction in a fresh process imports and does: time that people wait for, told by what does not depend on the machine."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import crossflow

FIRST = ("predict", "--model", "llama3-8b", "--on", "dgx-h100")
# What no training of a plain transformer on devices of one kind takes: other workloads and systems, services, replays, runs of months,
# what searches, draws and explains, and other ways in. Names of modules, or of packages with all that is in them.
OTHERS = (
    "answers.catalogue", "answers.cluster", "answers.evaluation.lasting", "answers.evaluation.remedies", "answers.evaluation.replays",
    "answers.explanation", "answers.fleets", "answers.interactive", "answers.scenario_file", "answers.search", "answers.service",
    "answers.settings", "answers.steps.programs", "answers.steps.recommendation", "answers.study", "answers.uses", "base.drawing.picture",
    "cost.lookups", "cost.nearby", "cost.pools", "cost.tiers", "edges.explore", "edges.launch", "edges.trace", "engine.cluster",
    "engine.lasting", "engine.loops", "engine.runs.apart", "engine.runs.dlrm", "engine.runs.drafting", "engine.runs.service",
    "engine.runs.unlike", "engine.service", "evidence", "hardware.architecture.generator", "hardware.architecture.packaging",
    "hardware.architecture.shaping", "hardware.mapping.congestion", "parallel.dlrm", "parallel.sharding", "parallel.strategy.graphs",
    "parallel.transform", "program.file", "workload.cluster", "workload.dlrm", "workload.gemm", "workload.graph", "workload.huggingface",
    "workload.lstm", "workload.requests", "workload.rwkv",
)  # fmt: skip
MOST = 185  # modules of crossflow
FOREIGN = ("numpy.ma", "pint", "scipy")  # large, and of no use here
CODE = """
import sys
from crossflow.base import files
from crossflow.__main__ import main
parsed, parse = [], files.parse_yaml
files.parse_yaml = lambda text, file: parsed.append(file) or parse(text, file)
main()
print("\\n".join(sys.modules), "", *parsed, sep="\\n", file=sys.stderr)
"""


@pytest.fixture(scope="module")
def done():
    """Names of all modules that the process of a first prediction has imported, and the files that it parsed."""
    found = subprocess.run([sys.executable, "-c", CODE, *FIRST], capture_output=True, text=True, check=True)
    assert "step time" in found.stdout
    modules, _, parsed = found.stderr.partition("\n\n")
    return modules.split(), parsed.split("\n")[:-1]


def within(name, others):
    return any(name == other or name.startswith(f"{other}.") for other in others)


def test_only_what_the_question_needs_is_imported(done):
    ours = [name.removeprefix("crossflow.") for name in done[0] if name.startswith("crossflow.")]
    assert [name for name in ours if within(name, OTHERS)] == []
    assert [name for name in done[0] if within(name, FOREIGN)] == []
    assert len(ours) <= MOST, f"{len(ours)} modules: import those of one kind of question in the functions that use them"


def test_no_file_is_parsed_twice(done):
    parsed = Counter(done[1])
    assert len(parsed) > 5
    assert [file for file, count in parsed.items() if count > 1] == []


def test_what_is_left_out_is_there():
    root = Path(crossflow.__file__).parent
    places = [root.joinpath(*name.split(".")) for name in OTHERS]
    assert [str(place) for place in places if not (place.is_dir() or place.with_suffix(".py").is_file())] == []
