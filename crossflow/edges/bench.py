"""The project's own speed figures, measured in CPU time, and how much slower they are than recorded ones.

The machine is not yours alone, and yours is another one: times are compared as multiples of a fixed loop of numpy calls, which is
measured before and after each of them. How many functions a figure calls is the same on every machine with the same versions: what is
done twice shows there, what takes longer inside numpy in the time.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.timelines import simulate
from crossflow.answers.planning.asking import serve
from crossflow.answers.points import variant
from crossflow.answers.prediction import predict
from crossflow.answers.scenario import Scenario, from_dict
from crossflow.answers.search.driver import search
from crossflow.answers.search.goals import Objective
from crossflow.answers.search.problem import SearchProblem
from crossflow.answers.search.settings import GradientSettings
from crossflow.answers.search.shares import SHARES
from crossflow.answers.study.spaces import read_space
from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.base.files import Document
from crossflow.base.paths import value_at
from crossflow.cost.roofline import product_costs
from crossflow.engine.timeline.pipeline import walk_of
from crossflow.engine.timeline.record import Timeline
from crossflow.hardware.architecture.system import architecture, resolve
from crossflow.hardware.mapping.flows import FlowPaths, max_min
from crossflow.parallel.strategy.reading import every_strategy

POINTS, SAMPLED = 8192, 16384
CONVERSATIONS = 600
PRODUCTS = 100_000
FLOWS, ENDPOINTS, LEAF, SPINES = 10_000, 16_384, 32, 8  # that share a fat tree: endpoints on a leaf, with a link to each spine
MORE_CALLS = 1.1  # as recorded that a figure may make, with the least and the newest versions of what crossflow needs
FIRST = ("predict", "--model", "llama3-8b", "--on", "dgx-h100")  # what a person asks first
TRIES = 4  # measurements of a figure that seems slower than recorded, before it is


@dataclass(frozen=True)
class Gauge:
    """A figure of speed: CPU time of `work`, or how many of `count` things it does in a second of it.

    work : what is called, or the words of a command, which runs in a process of its own, start and imports included.
    """

    work: Callable[[], object] | tuple[str, ...]
    meaning: str
    count: int | None = None  # of things in one call; None for a figure that is a time
    repeats: int = 5
    warm: bool = True  # whether a call before the first measured one fills caches


def speeds() -> dict[str, Gauge]:
    """Every figure by its name."""
    case, gpt, service = _case_study(512), _gpt3(64, "tp8-pp8-dp8-v3-z1-sp-selective"), _service()
    asked = serve(service).trace
    many = _gpt3(512, "tp8-pp8-dp64")
    plans, bandwidths = every_strategy(many.workload, many.nodes), dict[str, Any]({BANDWIDTH: np.linspace(10e9, 50e9, POINTS)})
    return {
        "predict_warm": Gauge(lambda: predict(case), "one prediction of the case study (LSTM on 512 nodes) again", repeats=25),
        "predict_first": Gauge(FIRST, f"`crossflow {' '.join(FIRST)}` in a fresh process, its start and its plans included", repeats=5),
        "predict_changed": Gauge(_changing(case, POWER), "the same with another power budget each time", repeats=15),
        "points_per_second": Gauge(
            lambda: evaluate(case, _points(POINTS)), "technology and budget points of the case study", POINTS, repeats=7
        ),
        "study_points_per_second": Gauge(_sampled_study, "random designs of 14 shares, written to disk by a study", SAMPLED, repeats=3),
        "gradient_search": Gauge(_gradient_search, "projected gradient search of 14 shares, S = 10, T = 100", repeats=1, warm=False),
        "transformer_warm": Gauge(
            lambda: evaluate(gpt), "one evaluation of GPT-3 175B on 512 GPUs again, interleaved pipeline and memory included", repeats=25
        ),
        "transformer_changed": Gauge(_changing(gpt, BANDWIDTH), "the same with another bandwidth between nodes each time", repeats=15),
        "transformer_points": Gauge(lambda: evaluate(gpt, bandwidths), "the same with many bandwidths at once", POINTS, repeats=3),
        "plans_per_second": Gauge(
            lambda: evaluate(many, {"strategy": plans}, fitting=True),
            f"all {len(plans):,} plans that divide GPT-3 175B over 4096 GPUs, those that do not fit not timed",
            len(plans),
            repeats=3,
        ),
        "timeline_64_stages": Gauge(
            _deep_pipeline, "timeline of GPT-3 175B in 64 stages with 512 microbatches, 1F1B, its schedule worked out anew", repeats=3
        ),
        "strategy_grid": Gauge(_strategy_grid, "timelines of all 15 strategies of BERT-exLarge on 16 A10", repeats=3),
        "replayed_requests": Gauge(
            lambda: serve(service, asked),
            f"{len(asked):,} requests of {CONVERSATIONS} conversations through eight engines, routed to the one that has most of a prompt",
            len(asked),
            repeats=3,
        ),
        "gemms_100k": Gauge(_products, "100,000 distinct matrix products on a100-80gb", repeats=7),
        "flows_10k": Gauge(
            _fair_rates,
            f"fair rates of {FLOWS:,} hashed flows over the {ENDPOINTS:,} endpoints of a fat tree of 1:{LEAF // SPINES}",
            repeats=7,
        ),
    }


def run() -> dict[str, dict[str, Any]]:
    """Measure every figure: name -> value, unit and meaning; of speeds, how many fixed loops they take and how many calls they make."""
    figures: dict[str, dict[str, Any]] = {name: _measured(speed) for name, speed in speeds().items()}
    alone = {
        "memory_growth": (_memory_growth(_case_study(512)), "B", "peak memory per further point, the score itself included"),
        "scale_65536_over_8": (_scale(), "1", "time of a prediction on 65,536 devices over that on 8"),
        "events_per_second": (_events_per_second(), "1/s", "events of the timeline in 64 stages, built, timed and expanded"),
    }
    return figures | {name: {"value": value, "unit": unit, "meaning": meaning} for name, (value, unit, meaning) in alone.items()}


SpeedFigures = Mapping[str, Mapping[str, Any]]  # by name


def slower(figures: SpeedFigures, recorded: SpeedFigures, within: float) -> dict[str, float]:
    """Figures that take more than `within` times as many loops as recorded, measured again before they are: name -> how many times."""
    times = _times(figures, recorded, "loops")
    every = speeds() if max(times.values(), default=0.0) > within else {}
    for name in every.keys() & times.keys():
        for _ in range(TRIES):
            if times[name] > within:
                times[name] = min(times[name], _measured(every[name])["loops"] / recorded[name]["loops"])
    return {name: often for name, often in times.items() if often > within}


def busier(figures: SpeedFigures, recorded: SpeedFigures) -> dict[str, float]:
    """Figures that call more functions than recorded, by more than other versions of libraries explain: name -> how many times."""
    return {name: often for name, often in _times(figures, recorded, "calls").items() if often > MORE_CALLS}


def _times(figures: SpeedFigures, recorded: SpeedFigures, what: str) -> dict[str, float]:
    """How many times as much of something figures take as recorded, of those that both have. [1]"""
    both = {name: (figures[name], then) for name, then in recorded.items() if what in then and what in figures.get(name, {})}
    return {name: now[what] / then[what] for name, (now, then) in both.items()}


def read(path: Path) -> SpeedFigures:
    """Figures that `crossflow bench --json` wrote; CrossflowError where a file holds something else."""
    held = files.read_json(path, "figures of speed")
    if not isinstance(held, dict) or not all(map(_is_figure, held.values())):
        raise CrossflowError(f"{path}: expected figures of speed, as `crossflow bench --json > {path.name}` writes them")
    return held


def _is_figure(held: Any) -> bool:
    numbers = [held.get(name, 1.0) for name in ("value", "loops", "calls")] if isinstance(held, dict) else [""]
    return all(isinstance(number, (int, float)) and number > 0 for number in numbers)


def _measured(speed: Gauge) -> dict[str, Any]:
    """Value, unit and meaning of a figure, how many times the fixed loop one call takes, and how many calls it makes."""
    work, before = speed.work, _cpu(_loop, repeats=3)
    if isinstance(work, tuple):
        each, calls = min(_apart(work)[0] for _ in range(speed.repeats)), _apart(work, counting=True)[1]
    else:
        each, calls = _cpu(work, repeats=speed.repeats, warm=speed.warm), _calls(work)
    loop = min(before, _cpu(_loop, repeats=3))
    value, unit = (each, "s") if speed.count is None else (speed.count / each, "1/s")
    return {"value": value, "unit": unit, "meaning": speed.meaning, "loops": each / loop, "calls": calls}


# What a process of its own does: it runs the words of a command, and says its CPU time and how many functions it called.
_CHILD = """
import sys, time
calls = 0
def note(frame, event, argument):
    global calls
    calls += event in ("call", "c_call")
sys.setprofile(note if sys.argv[1] == "counting" else None)
sys.argv[1:2] = []
from crossflow.__main__ import main
main()
sys.setprofile(None)
print(time.process_time(), calls, file=sys.stderr)
"""


def _apart(words: tuple[str, ...], *, counting: bool = False) -> tuple[float, int]:
    """CPU time of a command in a process of its own, and how many functions it calls, 0 where they are not counted. [s], [1]"""
    own = str(Path(__file__).parents[2])  # the package that is measured, wherever the process begins
    path = os.pathsep.join([own, *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPATH": path}
    asked = [sys.executable, "-c", _CHILD, "counting" if counting else "", *words]
    said = subprocess.run(asked, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True, text=True).stderr
    spent, calls = said.split()[-2:]
    return float(spent), int(calls)


def _calls(work: Callable[[], object]) -> int:
    """How many functions of Python and of C a call of it calls, itself included."""
    found, before = itertools.count(), sys.getprofile()

    def note(frame: object, event: str, argument: object) -> None:  # noqa: ARG001 - the interpreter gives them
        if event in ("call", "c_call"):
            next(found)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return next(found) - 1  # without the function that ends the count


def _loop() -> None:
    """A fixed loop of numpy calls on short and on long arrays, and of Python's own."""
    short, long, table = np.arange(24.0), np.arange(65536.0), {i: float(i) for i in range(64)}
    for _ in range(300):
        np.maximum(short, short[::-1]).sum()
        np.concatenate([short, short]).reshape(2, -1).argmax(axis=0)
        sum(value for value in table.values() if value > 3.0)
    for _ in range(20):
        np.maximum(long * 1.5, long[::-1]).take(range(0, 65536, 64)).sum()


POWER, BANDWIDTH = "system.budgets.power", "system.network.inter.bandwidth"


def _changing(scenario: Scenario, path: str) -> Callable[[], object]:
    """Evaluation of a scenario with another value of a quantity each time, so that nothing of its step is kept from the last time."""
    own = value_at(scenario.system, path.split(".")[1:])
    assert own is not None  # it is a quantity that the system has
    factors = (1.0 + 1e-7 * i for i in itertools.count())
    return lambda: evaluate(scenario, {path: [float(own[0]) * next(factors)]})


def _case_study(devices: int, **workload: int) -> Scenario:
    system = {"template": "pathfinder", "devices": devices}
    return from_dict({"system": system, "workload": {"model": "lstm-16k", **workload}, "strategy": f"d{devices}"})


def _gpt3(nodes: int, strategy: str) -> Scenario:
    system = {"template": "a100-ib-cluster", "nodes": nodes}
    return from_dict({"system": system, "workload": {"model": "gpt3-175b", "global_batch": 3072}, "strategy": strategy})


def _service() -> Scenario:
    """Conversations with a Llama 3 8B in eight engines, whose prompts begin with all that was said before."""
    lengths = [{"law": "lognormal", "mean": mean, "cv": 1.0, "most": 4000} for mean in (500, 200)]
    requests = {
        "arrivals": {"law": "poisson", "rate": "20 1/s"}, "count": CONVERSATIONS, "prompt": lengths[0], "output": lengths[1],
        "sessions": {"turns": 3, "think": "2 s"},
    }  # fmt: skip
    workload = {"model": "llama3-8b", "task": "serving", "serving": {"router": "prefix"}}
    return from_dict({"system": "dgx-h100", "workload": workload, "strategy": "tp1-dp8", "software": "vllm", "requests": requests})


def _deep_pipeline() -> Timeline:
    walk_of.cache_clear()
    system = {"template": "a100-ib-cluster", "nodes": 64}
    workload = {"model": "gpt3-175b", "global_batch": 512}
    return simulate(from_dict({"system": system, "workload": workload, "strategy": "tp8-pp64-full", "software": "megatron-lm-2022"}))


def _events_per_second() -> float:
    """Events of all classes of devices over the time to build, time and expand them."""
    begin = time.process_time()
    found = _deep_pipeline()
    events = sum(len(part) for device in range(len(found.devices)) for part in found.chunks(device))
    return events / (time.process_time() - begin)


def _strategy_grid() -> None:
    from crossflow.answers.study.reading import read_study

    study = read_study(files.find("studies", "distsim-bert-exlarge"))
    for strategy in study.spec.sweep["strategy"]:
        simulate(variant(study.scenario, {"strategy": strategy}))


def _points(n: int) -> dict[str, Any]:
    """Random designs: logic node, memory and network, power and how it and the area are divided."""
    rng = np.random.default_rng(0)
    return {
        "system.technology.logic": rng.choice(["N12", "N10", "N7", "N5", "N3", "N2", "N1"], n).tolist(),
        "system.technology.memory": rng.choice(["HBM2", "HBM2e", "HBM3", "HBM4"], n).tolist(),
        "system.technology.inter_link": rng.choice(["NDR-x8", "XDR-x8", "GDR-x8"], n).tolist(),
        "system.budgets.power": rng.uniform(200.0, 400.0, n),
        "system.budgets.area.compute": rng.uniform(0.2, 0.4, n),
        "system.budgets.power_shares.memory": rng.uniform(0.1, 0.32, n),
    }


def _cpu(work: Callable[[], object], repeats: int, *, warm: bool = True) -> float:
    """Least CPU time of a call, after one that warms the caches: what disturbs a run only ever adds. [s]"""
    if warm:
        work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def _memory_growth(case: Scenario) -> float:
    """Further peak memory over further points, from the slope between two sizes. [B]"""
    peaks = []
    for n in (POINTS, 2 * POINTS):
        points = _points(n)
        tracemalloc.start()
        evaluate(case, points)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return (peaks[1] - peaks[0]) / POINTS


def _scale() -> float:
    small, large = _changing(_case_study(8), POWER), _changing(_case_study(65536, global_batch=65536), POWER)
    return _cpu(large, repeats=9) / _cpu(small, repeats=9)


def _shares() -> SearchProblem:
    """Division of the budgets of the case study on its best memory and network: 14 shares."""
    technology = {"memory": "HBM4", "inter_link": "GDR-x8"}
    system = {"template": "pathfinder", "devices": 512, "technology": technology}
    scenario = from_dict({"system": system, "workload": "lstm-16k", "strategy": "d512"})
    entries = dict.fromkeys(SHARES, "shares")
    space = read_space(entries, scenario, Document(file="bench", data={"space": entries}))
    return SearchProblem(scenario=scenario, space=space, objectives=(Objective(name="step_time_s"),))


def _gradient_search() -> object:
    return search(_shares(), GradientSettings())


def _sampled_study() -> None:
    problem = _shares()
    data = {
        "name": "bench",
        "scenario": problem.scenario.document.data,
        "space": dict.fromkeys(SHARES, "shares"),
        "searches": {"random": {"searcher": "random", "evaluations": SAMPLED}},
    }
    from crossflow.answers.study.run import run_study

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.yaml"
        path.write_text(yaml.safe_dump(data), encoding="utf-8", newline="")
        run_study(path, out=Path(folder) / "out")


def _products() -> object:
    spec, _ = resolve(Document(file="bench", data={"template": "a100-80gb"}))
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 16384, (3, PRODUCTS, 1)).astype(float)
    alone = np.concatenate([sizes, np.ones((1, PRODUCTS, 1))])
    return product_costs(alone, np.full((PRODUCTS, 1), 2.0), architecture(spec), "fp16").time


def hashed_flows(spines: int) -> FlowPaths:
    """Flows between random endpoints of a fat tree: over both ports, and up to and down from the spine that a hash chooses."""
    rng, leaves = np.random.default_rng(0), ENDPOINTS // LEAF
    source, target, spine = rng.integers(0, ENDPOINTS, FLOWS), rng.integers(0, ENDPOINTS, FLOWS), rng.integers(0, spines, FLOWS)
    up, down = (2 * ENDPOINTS + (first + end // LEAF) * spines + spine for first, end in ((0, source), (leaves, target)))
    link = np.concatenate([source, ENDPOINTS + target, up, down])
    return FlowPaths.of(np.tile(np.arange(FLOWS), 4), link, np.ones(link.size), flows=FLOWS, links=2 * (ENDPOINTS + leaves * spines))


def _fair_rates() -> object:
    paths = hashed_flows(SPINES)
    return max_min(paths, np.ones((paths.links, 1)))
