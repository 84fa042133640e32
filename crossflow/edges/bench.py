"""The project's own speed figures, measured in CPU time; compare ratios, the machine is not yours alone."""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.timelines import simulate
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
from crossflow.base.files import Document
from crossflow.cost.roofline import product_costs
from crossflow.engine.timeline.pipeline import walk_of
from crossflow.engine.timeline.record import Timeline
from crossflow.hardware.architecture.system import architecture, resolve
from crossflow.parallel.strategy.reading import every_strategy

POINTS, SAMPLED = 8192, 16384
PRODUCTS = 100_000


def run() -> dict[str, dict[str, Any]]:
    """Measure every figure: name -> value, unit and meaning."""
    case = _case_study(512)
    warm = _cpu(lambda: predict(case), repeats=9)
    gpt, many = _gpt3(64, "tp8-pp8-dp8-v3-z1-sp-selective"), _gpt3(512, "tp8-pp8-dp64")
    plans = every_strategy(many.workload, many.nodes)
    figures = {
        "predict_warm": (warm, "s", "one warm prediction of the case study (LSTM language model, 512 nodes)"),
        "points_per_second": (
            POINTS / _cpu(lambda: evaluate(case, _points(POINTS)), repeats=7),
            "1/s",
            "technology and budget points of the case study",
        ),
        "memory_growth": (_memory_growth(case), "B", "peak memory per further point, the score itself included"),
        "scale_65536_over_8": (_scale(), "1", "time of a prediction on 65,536 devices over that on 8"),
        "study_points_per_second": (
            SAMPLED / _cpu(_sampled_study, repeats=3),
            "1/s",
            "random designs of 14 shares, written to disk by a study",
        ),
        "gradient_search": (_cpu(_gradient_search, repeats=1, warm=False), "s", "projected gradient search of 14 shares, S = 10, T = 100"),
        "transformer_warm": (
            _cpu(lambda: evaluate(gpt), repeats=25),
            "s",
            "one warm evaluation of GPT-3 175B on 512 GPUs, interleaved pipeline and memory included",
        ),
        "plans_per_second": (
            len(plans) / _cpu(lambda: evaluate(many, {"strategy": plans}, fitting=True), repeats=3),
            "1/s",
            f"all {len(plans):,} plans that divide GPT-3 175B over 4096 GPUs, those that do not fit not timed",
        ),
        "timeline_64_stages": (
            _cpu(_deep_pipeline, repeats=3),
            "s",
            "timeline of GPT-3 175B in 64 stages with 512 microbatches, 1F1B, its schedule worked out anew",
        ),
        "events_per_second": (_events_per_second(), "1/s", "events of that timeline, built, timed and expanded"),
        "strategy_grid": (_cpu(_strategy_grid, repeats=3), "s", "timelines of all 15 strategies of BERT-exLarge on 16 A10"),
        "gemms_100k": (_cpu(_products, repeats=7), "s", "100,000 distinct matrix products on a100-80gb"),
    }
    return {name: {"value": value, "unit": unit, "meaning": meaning} for name, (value, unit, meaning) in figures.items()}


def _case_study(devices: int, **workload: int) -> Scenario:
    system = {"template": "pathfinder", "devices": devices}
    return from_dict({"system": system, "workload": {"model": "lstm-16k", **workload}, "strategy": f"d{devices}"})


def _gpt3(nodes: int, strategy: str) -> Scenario:
    system = {"template": "a100-ib-cluster", "nodes": nodes}
    return from_dict({"system": system, "workload": {"model": "gpt3-175b", "global_batch": 3072}, "strategy": strategy})


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
    small, large = _case_study(8), _case_study(65536, global_batch=65536)
    return _cpu(lambda: predict(large), repeats=9) / _cpu(lambda: predict(small), repeats=9)


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
        path.write_text(yaml.safe_dump(data), encoding="utf-8")
        run_study(path, out=Path(folder) / "out")


def _products() -> object:
    spec, _ = resolve(Document(file="bench", data={"template": "a100-80gb"}))
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 16384, (3, PRODUCTS, 1)).astype(float)
    alone = np.concatenate([sizes, np.ones((1, PRODUCTS, 1))])
    return product_costs(alone, np.full((PRODUCTS, 1), 2.0), architecture(spec), "fp16").time
