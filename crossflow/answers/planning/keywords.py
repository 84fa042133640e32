"""Keywords of the Python interface: which setting each stands for, those of other tools, and degrees that leave devices over."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

from crossflow.answers.planning.question import INSTEAD, system_of
from crossflow.answers.scenario_file import ScenarioFile
from crossflow.base.arrays import plain
from crossflow.base.errors import CrossflowError, SpecError, StrategyError, did_you_mean
from crossflow.base.results import public
from crossflow.parallel.strategy.notation import DEGREES, PAPER_KEYS, PLAN_KEYS, parse_any
from crossflow.parallel.strategy.transformers import plan_of
from crossflow.workload.kinds import MODELS

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")
# What flags of Megatron-LM, vLLM, torchtitan, DeepSpeed and launchers, or benchmarks of services, call the same setting.
SAME: Mapping[str, str] = {
    "gpus": "devices", "num_gpus": "devices", "n_gpus": "devices", "ngpus": "devices", "num_devices": "devices", "n_devices": "devices",
    "world_size": "devices", "num_nodes": "nodes", "n_nodes": "nodes", "nnodes": "nodes", "gbs": "batch", "global_batch_size": "batch",
    "micro_batch_size": "micro_batch", "mbs": "micro_batch", "seq_len": "sequence", "seq_length": "sequence", "seqlen": "sequence",
    "sequence_length": "sequence", "input_len": "prompt", "isl": "prompt", "prompt_len": "prompt", "input_tokens": "prompt",
    "output_len": "output", "osl": "output", "output_tokens": "output", "precision": "dtype",
    "tensor_parallel_size": "tp", "tensor_model_parallel_size": "tp", "pipeline_parallel_size": "pp", "data_parallel_size": "dp",
    "pipeline_model_parallel_size": "pp", "expert_parallel_size": "ep", "expert_model_parallel_size": "ep", "context_parallel_size": "cp",
    "zero_stage": "zero", "hardware": "on", "cluster": "on", "machine": "on", "gpu": "on", "chip": "on", "device": "on",
    "parallelism": "strategy", "seq": "sequence", "mode": "task", "phase": "task", "engine": "software", "framework": "software",
    "limit": "top", "top_k": "top", "topk": "top", "n_best": "top", "metric": "objective", "goal": "objective", "sort_by": "objective",
    "model_name": "model", "systems": "on",
    "tensor_parallel": "tp", "pipeline_parallel": "pp", "data_parallel": "dp", "expert_parallel": "ep",
    "context_parallel": "cp", "tp_size": "tp", "pp_size": "pp", "dp_size": "dp", "ep_size": "ep", "cp_size": "cp", "backend": "software",
    "kv_cache_dtype": "kv_dtype", "torch_dtype": "dtype", "train_batch_size": "batch", "train_micro_batch_size_per_gpu": "micro_batch",
    "prompt_length": "prompt", "sp": "sequence_parallel", "input_length": "prompt", "output_length": "output",
}  # fmt: skip
# What other tools call a setting that is nearly the same, for errors alone.
CALLED: Mapping[str, str] = {
    "template": "on", "plan": "strategy", "batch_size": "batch", "bs": "batch", "concurrency": "batch", "max_num_seqs": "batch",
    "max_model_len": "sequence", "context": "sequence", "quantization": "weight_dtype",
    "per_device_train_batch_size": "micro_batch", "max_tokens": "output", "max_new_tokens": "output", "max_concurrency": "batch",
    "max_batch_size": "batch", "max_running_requests": "batch", "users": "batch", "per_gpu_batch_size": "micro_batch",
}  # fmt: skip
_COUPLED = (
    "a sweep takes every combination; crossflow.evaluate(scenario, {'system.nodes': [2, 4], 'workload.global_batch': [64, 128]}) takes one "
    "value a point, and a name couples settings: sweep(scenario, {'size': {'small': {'system.nodes': 2, 'workload.global_batch': 64}}})"
)
_RATE = "requests say how they come: requests={'arrivals': {'law': 'poisson', 'rate': '5 1/s'}, 'count': 200, 'prompt': 500, 'output': 100}"
_LORA = "adapters of fine-tuning describe low-rank layers: adapters={'rank': 16}"
_ACCUMULATED = "the number of microbatches follows from the batch of a step: give batch and micro_batch, with degrees such as tp=8"
_LENGTH = "the length of a run stands in run: run={'tokens': 1e12} or {'steps': 1000}, of which predict(...).run has the days"
_ROOM = "margin=0.2 is the share of memory that a plan leaves"
_AGAIN = "recompute is part of a strategy: recompute='full' or 'selective', with degrees such as tp=8"
_SHARDED = "sharding is part of a strategy: zero=3 (full shard) or zero=2 (gradients and optimizer), with degrees such as dp=16"
TOLD: Mapping[str, str] = {
    **dict.fromkeys(("lora", "lora_rank", "lora_r", "peft"), _LORA),
    **dict.fromkeys(("gradient_accumulation_steps", "grad_accum", "num_microbatches"), _ACCUMULATED),
    **dict.fromkeys(("gradient_checkpointing", "activation_checkpointing"), _AGAIN),
    **dict.fromkeys(("fsdp", "fsdp2"), _SHARDED),
    **dict.fromkeys(("tokens", "train_tokens", "total_tokens", "num_tokens", "train_iters", "max_steps"), _LENGTH),
    **dict.fromkeys(("max_memory", "memory_limit", "gpu_memory_utilization", "memory_margin"), _ROOM),
    **{kind: f"the type of matrix products is dtype='{kind}'" for kind in ("bf16", "fp16", "fp8", "nvfp4", "mxfp4")},
    **dict.fromkeys(("gpus_per_node", "nproc_per_node"), "a system says it: system__devices_per_node=8"),
    **dict.fromkeys(("coupled", "zip", "zipped", "paired", "together", "product", "grid"), _COUPLED),
    **dict.fromkeys(("rate", "qps", "request_rate", "arrival_rate", "arrivals"), _RATE),
}
SHORT: Mapping[str, str] = {"price": "system.operation.price"}  # further keywords, and the paths that they stand for
OF_FILE = tuple(name for name in ScenarioFile.model_fields if name not in INSTEAD)  # sections and fields of a scenario by their own names
OF_WORKLOAD = tuple(dict.fromkeys(name for spec in MODELS.values() for name in spec.model_fields if name not in (*OF_FILE, *INSTEAD)))
OF_STRATEGY = tuple(key for key in (*DEGREES, *PLAN_KEYS) if key not in OF_WORKLOAD)
_ARGUMENT = re.compile(
    r"--(model|on|nodes|devices|batch|task|strategy|budget|price|prices)\b"
    r"(?: ((?=[\w.,/=-]*[\d-])[\w.,/=-]*\w|prefill|decode|serving|training|forward))?(?=(\)|$)?)"
)
_AXES = ("tp", "cp", "pp")  # degrees that take devices, beside dp; ep lies in them


def plain_names(function: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords by their own names; TypeError for a setting that is given twice.

    >>> plain_names("predict", {"num_gpus": 16, "seq_len": 4096, "tp": 8})
    {'devices': 16, 'sequence': 4096, 'tp': 8}
    """
    found: dict[str, Any] = {}
    for key, value in named.items():
        # A system by its name is its template, beside which the number of nodes stays.
        name = "on" if key == "system" and _names(value) else SAME.get(key, key)
        if (name in ("top", "objective") and name not in _own(function)) or (function == "sweep" and isinstance(value, Mapping)):
            name = key  # what changes together in a sweep has a name of its own
        if name in found or (name != key and name in named):
            raise TypeError(f"{function}() was given '{name}' twice, once as '{key}'; give one of them")
        found[name] = plain(value) if name in OF_STRATEGY and getattr(value, "shape", None) == () else value  # a number of NumPy
        if name == "recompute" and isinstance(value, bool):
            found[name] = "full" if value else "none"
    return found


def with_other_names(call: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """A function whose own parameters have the names of other tools too: ``plan(scenario, topk=3)`` is ``plan(scenario, top=3)``."""
    own = [name for name in inspect.signature(call).parameters if name != "named"]

    @functools.wraps(call)
    def renamed(*given: Arguments.args, **named: Arguments.kwargs) -> Returned:
        for key in [key for key in named if key not in own and SAME.get(key) in own]:
            if SAME[key] in named:
                raise TypeError(f"{call.__name__}() was given '{SAME[key]}' twice, once as '{key}'; give one of them")
            named[SAME[key]] = named.pop(key)
        return call(*given, **named)

    return renamed


def named_so(call: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """A function whose errors name what was given as Python has it: no option of the command line."""

    @functools.wraps(call)
    def told(*given: Arguments.args, **named: Arguments.kwargs) -> Returned:
        try:
            return call(*given, **named)
        except CrossflowError as error:
            if isinstance(error, SpecError):
                found = [replace(one, file=without_options(one.file), message=without_options(one.message)) for one in error.problems]
                error.problems = tuple(found)
            error.args = tuple(without_options(one) if isinstance(one, str) else one for one in error.args)
            raise

    return told


def without_options(sentence: str) -> str:
    """A sentence in which settings stand for options, but within commands that it quotes.

    >>> without_options("--set software=x: no such stack (with --set software=x); see crossflow show --on x")
    'software=x: no such stack (with software=x); see crossflow show --on x'
    >>> without_options("name two systems, such as --on dgx-h100,dgx-b200; --nodes and --devices both say it")
    "name two systems, such as on='dgx-h100,dgx-b200'; nodes and devices both say it"
    """
    return "".join(
        part if part.startswith("crossflow ") else _ARGUMENT.sub(_argument, re.sub(r"--set (?=\S)", "", part))
        for part in re.split(r"(crossflow [a-z]+[^;)]*)", sentence)
    )


def _argument(found: re.Match[str]) -> str:
    """An option of the command line as an argument: with its value, alone at the end of a sentence, or as a word of it."""
    name, value, more = {"price": "prices"}.get(found[1], found[1]), found[2], found[3]
    if value is None:
        return f"{name}=" if more else name
    return f"{name}={value if value.isdecimal() else repr(value)}"


def _own(function: str) -> list[str]:
    """Names of a function's own parameters."""
    return [one for one in inspect.signature(public(function)).parameters if one != "named"]


def _names(value: Any) -> bool:
    """Whether a value is a name, or a list of names."""
    return isinstance(value, str) or (isinstance(value, list | tuple) and bool(value) and all(isinstance(one, str) for one in value))


def paths(function: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by keyword as settings by path; TypeError for a keyword that is none, with the one that may be meant.

    >>> paths("predict", {"nodes": 4, "sequence": 4096, "tp": 8, "dp": 4, "system__technology__logic": "N5"})
    {'system.nodes': 4, 'workload.sequence': 4096, 'strategy': {'tp': 8, 'dp': 4}, 'system.technology.logic': 'N5'}
    """
    found: dict[str, Any] = {}
    for key, value in plain_names(function, named).items():
        if key in OF_STRATEGY:
            if "strategy" in named:
                raise TypeError(f"{function}() was given strategy={named['strategy']!r} and {key}={value!r}: degrees are a strategy")
            found.setdefault("strategy", {})[key] = value
        else:
            # A price is in USD an hour, as those of `compare`.
            bare = key == "price" and isinstance(value, int | float) and not isinstance(value, bool)
            found[_path(function, key)] = f"{value} USD/hour" if bare else value
    return found


def _path(function: str, key: str) -> str:
    """The path that a keyword means."""
    if key in INSTEAD:
        return INSTEAD[key]
    if key in OF_FILE:
        return key
    if key in OF_WORKLOAD:
        return f"workload.{key}"
    if key in SHORT:
        return SHORT[key]
    if "__" in key or "." in key:
        return key.replace("__", ".")
    if key in TOLD:
        raise TypeError(f"{function}() takes no '{key}': {TOLD[key]}")
    own = _own(function)
    known = (*INSTEAD, *SHORT, *OF_FILE, *OF_WORKLOAD, *OF_STRATEGY, *own)
    called = CALLED.get(key, "")
    meant = f"; did you mean '{called}'?" if called and (called not in ("top", "objective") or called in own) else did_you_mean(key, known)
    raise TypeError(f"{function}() takes no '{key}'{meant} (any path is a keyword too: system__nodes=8)")


def short_paths(function: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by path, of which some stand under keywords, as ``nodes`` for ``system.nodes``; names of what is coupled stay.

    >>> short_paths("sweep", {"nodes": [1, 2], "seq_len": [4096], "hardware": {"a": {"system.nodes": 1}}})
    {'system.nodes': [1, 2], 'workload.sequence': [4096], 'hardware': {'a': {'system.nodes': 1}}}
    """
    short = {key: SAME.get(key, key) for key, value in values.items() if not isinstance(value, Mapping) and "." not in key}
    known = (*INSTEAD, *SHORT, *OF_WORKLOAD)
    found: dict[str, Any] = {}
    for key, value in values.items():
        path = _path(function, short[key]) if short.get(key) in known else key
        if path in found:
            raise TypeError(f"{function}() was given {path} twice, once as '{key}'; give one of them")
        found[path] = value
    return found


def settled(function: str, degrees: Mapping[str, Any], section: Any, strategy: Any) -> dict[str, Any]:
    """Settings that change the `strategy` of a scenario on a system `section`: degrees and options that are not named stay.

    Data parallelism is over the devices that are left, where nothing says `dp`, as frameworks have it.

    >>> settled("predict", {"tp": 8}, {"template": "dgx-h100", "nodes": 4}, None)
    {'strategy': {'tp': 8, 'dp': 4}}
    >>> settled("predict", {"tp": 8}, {"template": "dgx-h100", "nodes": 4}, "tp4-dp8-z1-sp")
    {'strategy': 'tp8-dp4-z1-sp'}
    >>> settled("predict", {"micro_batch": 2}, "dgx-h100", "tp8")
    {'strategy.micro_batch': 2}
    """
    if set(degrees) & set(DEGREES):
        own = own_degrees(strategy)
        if not own or set(degrees) & set(PAPER_KEYS):
            return {"strategy": with_rest(degrees, section)}
        return {"strategy": _text_of(with_rest({**{key: value for key, value in own.items() if key != "dp"}, **degrees}, section))}
    if strategy in (None, "auto"):
        key, value = next(iter(degrees.items()))
        raise CrossflowError(f"{function}: {key}={value!r} is part of a strategy, and none is given; give its degrees too, such as tp=8")
    return {f"strategy.{key}": value for key, value in degrees.items()}


def own_degrees(strategy: Any) -> dict[str, Any]:
    """Degrees and options of a strategy by their names; empty where it has none, as one by layer types, or is wrong."""
    if not strategy or strategy == "auto":
        return {}
    try:
        mesh = parse_any(strategy)
    except StrategyError:
        return {}
    return {} if mesh.own else {**{axis.name: axis.size for axis in mesh.axes}, **dict(mesh.options)}


def with_rest(degrees: Mapping[str, Any], section: Any) -> dict[str, Any]:
    """Degrees, and data parallelism over the devices of a system that they leave over, where they say nothing of it and divide them."""
    system = system_of(section) if not set(degrees) & {"dp", *PAPER_KEYS} else None
    sizes = [degrees.get(axis, 1) for axis in _AXES]
    if system is None or not all(isinstance(size, int) and size > 0 for size in sizes):
        return dict(degrees)
    rest, over = divmod(system.whole_count, math.prod(sizes))
    return {**degrees, "dp": rest} if rest > 1 and not over else dict(degrees)


def varied_degrees(function: str, varied: Mapping[str, Any], section: Any, strategy: Any) -> dict[str, Any]:
    """What is varied, with every combination of degrees as a strategy: ``tp=[2, 4], pp=[1, 2]`` are four.

    What they do not name stays as in the `strategy` of the scenario, as in a prediction.

    >>> varied_degrees("sweep", {"tp": [4, 8], "batch": [64, 128]}, "dgx-h100", None)
    {'batch': [64, 128], 'strategy': ['tp4-dp2', 'tp8']}
    >>> varied_degrees("sweep", {"tp": [4, 8]}, "dgx-h100", "tp2-dp4-z1-sp")
    {'strategy': ['tp4-dp2-z1-sp', 'tp8-z1-sp']}
    """
    degrees = {key: value for key, value in varied.items() if key in OF_STRATEGY}
    rest = {key: value for key, value in varied.items() if key not in degrees}
    if not degrees:
        return rest
    if "strategy" in rest:
        raise TypeError(f"{function}() was given strategy and {', '.join(degrees)}: degrees are a strategy")
    if not set(degrees) & set(DEGREES):
        return {**rest, **{f"strategy.{key}": value for key, value in degrees.items()}}
    if "dp" not in degrees and (moved := [key for key in rest if key in ("nodes", "devices", "on", "system") or key.startswith("system")]):
        raise TypeError(
            f"{function}() varies {moved[0]}, and {', '.join(degrees)} leave dp open; give dp too, or "
            "strategies: strategy=['tp4-dp2', 'tp8']"
        )
    lists = [list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value] for value in degrees.values()]
    singles = [[plain(one) for one in values] for values in lists]
    combined = (dict(zip(degrees, values, strict=True)) for values in itertools.product(*singles))
    each = [settled(function, one, section, strategy)["strategy"] for one in combined]
    return {**rest, "strategy": [one if isinstance(one, str) else _text_of(one) for one in each]}


def _text_of(degrees: Mapping[str, Any]) -> Any:
    """Degrees and options of a transformer as text that reads back as itself; those of graphs of kernels as they are."""
    return dict(degrees) if set(degrees) & set(PAPER_KEYS) else str(plan_of(degrees))
