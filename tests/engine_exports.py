"""Launch files of serving engines for several models and plans, which options as published and the engines' own code are asked to take."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from sampled import every

import crossflow
from crossflow.answers.scenario import Scenario
from crossflow.base.errors import CrossflowError
from crossflow.edges.launch.launch import write

MODELS = ("llama3-70b", "deepseek-v3", "qwen3-235b-a22b", "gpt-oss-120b", "mixtral-8x7b")
PLANS = (
    "tp8", "tp4-dp2", "dp8", "tp4-pp2", "tp8-dp2", "tp8-pp2", "dp8-ep8", "dp16-ep16", "tp8-ep8-etp1-sp",
    "tp4-dp4-ep16-etp1-sp", "dp8-ep8-re8", "dp16-ep8", "tp2-dp4-ep4-sp", "dp16-etp16", "tp16",
)  # fmt: skip
RUNS: tuple[dict[str, Any], ...] = (
    {}, {"dtype": "fp8"}, {"kv_dtype": "fp8"}, {"weight_dtype": "int4"}, {"serving": {"chunk": 4096}},
    {"serving": {"speculation": {"tokens": 3, "acceptance": 0.7}}}, {"serving": {"arrival_rate": "2 1/s"}},
    {"serving": {"prefill": {"strategy": "tp4", "workers": 2}}},
)  # fmt: skip
CHANGES: dict[str, dict[str, Any]] = {
    "sglang": {"overlap": {"experts": True}, "engine": {"balances": True, "memory": 0.85}, "kernels": {"launch": "eager"}},
    "tensorrt-llm": {"engine": {"admits": "written", "cache": 0.8}, "kernels": {"launch": "eager"}}, "vllm": {},
}  # fmt: skip


def software(kind: str) -> tuple[Any, ...]:
    """Stacks that predict what a kind runs, each as it is and with changes that flags say."""
    names = ("vllm", "sglang", "tensorrt-llm") if kind == "dynamo" else (kind,)
    return tuple(one for name in names for one in (name, *([{"like": name, **CHANGES[name]}] if CHANGES[name] else [])))


@functools.cache
def exports(kind: str) -> tuple[tuple[Scenario, str], ...]:
    """Every launch file that crossflow writes of these, by default of a third of plans and runs that differs by model and stack.

    Plans and settings that it refuses are passed over.
    """
    return tuple(_exports(kind))


def _exports(kind: str) -> Iterator[tuple[Scenario, str]]:
    for model in MODELS:
        for turn, stack in enumerate(software(kind)):
            runs = [*((plan, {}) for plan in PLANS), *((plan, run) for run in RUNS for plan in PLANS[::5])]
            for plan, run in every(3, runs, MODELS.index(model) + turn):
                workload = {"model": model, "task": "serving", "prompt": 512, "output": 128, "global_batch": 64, **run}
                try:
                    data = {
                        "system": {"template": "h100-ib-cluster", "nodes": 2},
                        "workload": workload,
                        "strategy": plan,
                        "software": stack,
                    }
                    scenario = crossflow.from_dict(data)
                    yield scenario, write(scenario, kind)
                except CrossflowError:
                    continue
