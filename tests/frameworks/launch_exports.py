"""Launch files of shipped models on several plans each, which the frameworks' own code is asked to take."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import crossflow
from crossflow.answers.scenario import Scenario
from crossflow.answers.sections import presets
from crossflow.base.errors import CrossflowError
from crossflow.edges.launch.launch import TRAINING, write
from crossflow.edges.launch.shell import read_script

NODES, SERVERS = 8, 2  # of eight devices each
# Models that get all plans; all do with ALL_PLANS=1 in the environment.
THOROUGH = {
    "megatron": ("llama3-8b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-120b"), "torchtitan": ("llama3-8b",), "deepspeed": ("llama3-8b",),
    "vllm": ("llama3.1-405b", "deepseek-v3", "gpt-oss-120b"),
    "sglang": ("llama3.1-405b", "deepseek-v3", "gpt-oss-120b", "mixtral-8x7b", "bloom-176b"),
}  # fmt: skip
# Models of DeepSpeed's files, which say nothing of a model but its name.
DESCRIBED = ("llama3-8b", "gpt3-175b", "bert-large", "mixtral-8x7b", "deepseek-v3", "vit-h", "t5-large", "megatron-22b", "mamba2-2.7b")
FEW = 2  # plans of each other model, which are others for each
SERVED = {"task": "serving", "prompt": 512, "output": 128, "global_batch": 64}
# Plans of training on 64 devices: of all models, and of those with experts alone.
PLANS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "megatron": (
        (
            "tp8-dp8-z1-sp", "tp4-dp4-pp4-z1-sp-selective", "tp4-dp4-pp4-v2-z1-sp-full", "tp2-dp8-cp4-z1-sp", "dp64-z3", "dp64-z2",
            "dp64-z3-g8", "dp32-pp2-mb2", "tp8-dp8-z1-offload:optimizer", "tp4-dp4-pp4-z1-sp-full-rl8",
        ),
        ("tp4-dp16-ep8-etp1-z1-sp", "tp2-dp8-pp4-ep4-z1-sp", "dp64-ep8-z1-full", "tp2-dp8-pp4-v2-ep8-etp1-z1-sp", "dp64-ep8-z3"),
    ),
    "torchtitan": (
        ("dp64-z3", "tp8-dp8-z3-sp-full", "tp8-dp2-pp4-z2-sp", "tp4-dp4-pp4-v2-z3-sp", "dp64-z2", "dp64-z3-g8", "dp16-cp4-z3", "dp64"),
        ("dp64-ep8-z3", "tp4-dp16-ep8-etp1-z3-sp", "tp4-dp4-pp4-ep4-z2-sp"),
    ),
    "deepspeed": (
        (
            "dp64-z3", "dp64-z2", "tp8-dp8-z1", "dp64-z3-g8", "dp64-z3-full-offload:optimizer+weights", "dp64-z2-mb2-offload:optimizer",
            "dp64",
        ),
        (),
    ),
    "vllm": (
        ("tp8-dp2", "tp2-dp8", "tp4-dp2-pp2-placed:tp+pp+dp", "tp8-pp2", "dp16"),
        ("tp8-dp2-ep16-etp1-sp", "tp8-dp2-etp16-sp", "dp16-ep16-etp1"),
    ),
    "sglang": (
        ("tp16", "tp8-pp2", "tp4-pp4", "tp8-dp2-sp"),
        ("dp16-ep16", "tp4-dp4-ep16-etp1-sp", "dp16-etp16", "tp16-ep16-etp1-sp", "dp8-ep8-pp2"),
    ),
}  # fmt: skip
# Settings of a run beside the plan, by the plan: data types, and what else changes flags.
RUNS: dict[str, tuple[tuple[str, str, dict[str, Any]], ...]] = {
    "megatron": (
        ("tp8-dp8-z1-sp", "dgx-h100", {"dtype": "fp8"}), ("tp8-dp8-z1-sp", "dgx-h100", {"dtype": "fp8_block"}),
        ("tp8-dp8-z1-sp", "dgx-b200", {"dtype": "mxfp8"}), ("tp8-dp8-z1-sp", "dgx-b200", {"dtype": "nvfp4"}),
        ("tp4-dp16-ep8-etp1-z1-sp", "dgx-h100", {"dtype": "fp8_block"}), ("tp8-dp8-z1-sp", "dgx-h100", {"dropout": True, "dtype": "bf16"}),
        ("tp8-dp8-z1-sp", "dgx-h100", {"optimizer": "sgd"}), ("tp4-dp16-ep8-etp1-z1-sp", "dgx-b200", {"experts": {"capacity": 1.25}}),
        ("tp8-dp8-z1-sp", "dgx-h100", {"dtype": "fp8", "wide_layers": ["layers:0"]}),
        ("dp32-pp2-mb2", "dgx-h100", {"dtype": "fp16"}), ("dp64-z3", "dgx-b200", {"dtype": "mxfp8"}),
    ),
    "torchtitan": (
        ("dp64-z3", "dgx-h100", {"dtype": "fp8"}), ("dp64-z3", "dgx-b200", {"dtype": "mxfp8"}),
        ("tp8-dp8-z3-sp-full", "dgx-h100", {"dtype": "fp8"}),
    ),
    "deepspeed": (("dp64-z3", "dgx-h100", {"dtype": "fp16"}), ("dp64-z2", "dgx-h100", {"optimizer": "sgd"})),
    "vllm": (
        ("tp8-dp2", "dgx-h100", {"dtype": "fp8"}), ("tp8-dp2", "dgx-h100", {"kv_dtype": "fp8"}),
        ("tp8-pp2", "dgx-h100", {"weight_dtype": "int4"}), ("tp8-dp2", "dgx-b200", {"dtype": "nvfp4"}),
        ("tp8-dp2", "dgx-h100", {"serving": {"speculation": {"tokens": 2, "acceptance": 0.7}}}),
        ("tp8-dp2-ep16-etp1-sp", "dgx-h100", {"serving": {"arrival_rate": "2 1/s", "chunk": 4096}}),
    ),
    "sglang": (
        ("tp16", "dgx-h100", {"kv_dtype": "fp8"}), ("tp16", "dgx-h100", {"serving": {"arrival_rate": "2 1/s", "chunk": 4096}}),
        ("tp16", "dgx-h100", {"serving": {"speculation": {"tokens": 2, "acceptance": 0.7}}}),
        ("dp16-ep16", "dgx-h100", {"serving": {"speculation": {"tokens": 3, "acceptance": 0.7}}}),
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Export:
    """A launch file with the scenario that it says."""

    preset: str
    run: str  # plan and settings, for messages
    scenario: Scenario
    text: str


def words_of(export: Export, command: str) -> list[str]:
    """Arguments of a script's command, as crossflow itself reads them."""
    found = next(line for line in read_script(export.text, "x.sh").commands if any(word.text == command for word in line))
    words = [word.text for word in found]
    return words[words.index(command) + 1 :]


@functools.cache
def transformers() -> tuple[str, ...]:
    """Shipped models that are transformers."""
    return tuple(name for name, path in presets().items() if path.read_text(encoding="utf-8").startswith("model: transformer"))


def exports(kind: str, preset: str) -> Iterator[Export]:
    """Launch files of one model that crossflow writes for a framework; plans and settings that it refuses are passed over."""
    if kind == "deepspeed" and preset not in DESCRIBED and not os.environ.get("ALL_PLANS"):
        return
    plain, mixed = PLANS[kind]
    runs = [*((plan, "dgx-h100", {}) for plan in (*plain, *mixed)), *RUNS[kind]]
    if preset not in THOROUGH[kind] and not os.environ.get("ALL_PLANS"):
        first = transformers().index(preset) * FEW
        runs = [runs[(first + i) % len(runs)] for i in range(FEW)]
    for plan, system, settings in runs:
        workload = {"model": preset, **({"global_batch": 512} if kind in TRAINING else SERVED), **settings}
        workload |= {"mtp_layers": 0} if kind == "torchtitan" else {}  # which it has not
        nodes = NODES if kind in TRAINING else SERVERS
        try:
            software = {"software": kind} if kind == "sglang" else {}
            system_ = {"template": system, "nodes": nodes}
            scenario = crossflow.from_dict({"system": system_, "workload": workload, "strategy": plan, **software})
            text = write(scenario, kind)
        except CrossflowError:
            continue
        told = "".join(f" {key}={value}" for key, value in settings.items())
        yield Export(preset=preset, run=f"{plan}{told}", scenario=scenario, text=text)
