"""The project's own speed figures, measured in CPU time; compare ratios, the machine is not yours alone."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from crossflow.architecture import architecture, resolve
from crossflow.cost.roofline import tiled_costs
from crossflow.evaluation import evaluate
from crossflow.files import Document
from crossflow.prediction import predict
from crossflow.scenario import Scenario, from_dict

POINTS = 8192
PRODUCTS = 100_000


def run() -> dict[str, dict[str, Any]]:
    """Measure every figure: name -> value, unit and meaning."""
    case = _case_study(512)
    warm = _cpu(lambda: predict(case), repeats=9)
    figures = {
        "predict_warm": (warm, "s", "one warm prediction of the case study (LSTM language model, 512 nodes)"),
        "points_per_second": (
            POINTS / _cpu(lambda: evaluate(case, _points(POINTS)), repeats=7),
            "1/s",
            "technology and budget points of the case study",
        ),
        "memory_growth": (_memory_growth(case), "B", "peak memory per further point, the score itself included"),
        "scale_65536_over_8": (_scale(), "1", "time of a prediction on 65,536 devices over that on 8"),
        "gemms_100k": (_cpu(_products, repeats=7), "s", "100,000 distinct matrix products on a100-80gb"),
    }
    return {name: {"value": value, "unit": unit, "meaning": meaning} for name, (value, unit, meaning) in figures.items()}


def _case_study(devices: int) -> Scenario:
    return from_dict({"system": {"template": "pathfinder", "devices": devices}, "workload": "lstm-16k", "strategy": f"d{devices}"})


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


def _cpu(work: Callable[[], object], repeats: int) -> float:
    """Least CPU time of a call after one that warms the caches: what disturbs a run only ever adds. [s]"""
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
    small, large = (
        _case_study(8),
        from_dict(
            {
                "system": {"template": "pathfinder", "devices": 65536},
                "workload": {"model": "lstm-16k", "global_batch": 65536},
                "strategy": "d65536",
            }
        ),
    )
    return _cpu(lambda: predict(large), repeats=9) / _cpu(lambda: predict(small), repeats=9)


def _products() -> object:
    spec, _ = resolve(Document(file="bench", data={"template": "a100-80gb"}))
    rng = np.random.default_rng(1)
    m, n, k = (rng.integers(1, 16384, (PRODUCTS, 1)).astype(float) for _ in range(3))
    return tiled_costs(m, n, k, np.zeros_like(m), architecture(spec), "fp16", 2).time
