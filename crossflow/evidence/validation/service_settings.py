"""Settings of an engine as its own flags call them -> the scenario of a service.

Names are those of vLLM's engine arguments [1]_, with ``-`` or ``_`` between words.

References
----------
.. [1] https://docs.vllm.ai/en/latest/configuration/engine_args/
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crossflow.answers.scenario import Scenario, from_dict
from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.evidence.validation.serving import system_of
from crossflow.evidence.validation.serving_runs import kernels_of, one_by_one, stack_of
from crossflow.evidence.validation.tables import shipped, template_of
from crossflow.workload.requests.record import RequestTrace

EngineSettings = Mapping[str, Any]
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
# Types of products and of weights by `quantization`; others have no meaning here.
QUANTISED: Mapping[str | None, Mapping[str, str]] = {
    None: {}, "fp8": {"dtype": "fp8"}, "modelopt": {"dtype": "fp8"}, "fbgemm_fp8": {"dtype": "fp8"}, "mxfp4": {"weight_dtype": "mxfp4"},
    "nvfp4": {"dtype": "nvfp4"}, "modelopt_fp4": {"dtype": "nvfp4"}, "awq": {"weight_dtype": "int4"},
    "awq_marlin": {"weight_dtype": "int4"}, "gptq": {"weight_dtype": "int4"}, "gptq_marlin": {"weight_dtype": "int4"},
}  # fmt: skip
IN_NAME = {"-fp8": "fp8", "-fp8-dynamic": "fp8", "-nvfp4": "nvfp4", "-awq": "awq", "-gptq": "gptq"}  # how checkpoints are called
SHORT = {"tp": "tensor_parallel_size", "dp": "data_parallel_size", "pp": "pipeline_parallel_size"}
# Settings that change nothing of what a replay says.
WITHOUT_EFFECT = (
    "model", "tokenizer", "seed", "max_model_len", "trust_remote_code", "load_format", "download_dir", "served_model_name", "host", "port",
    "disable_log_requests", "disable_log_stats", "distributed_executor_backend",
)  # fmt: skip
TAKEN = (
    "tensor_parallel_size", "data_parallel_size", "pipeline_parallel_size", "enable_expert_parallel", "max_num_seqs",
    "max_num_batched_tokens", "dtype", "quantization", "kv_cache_dtype", "gpu_memory_utilization", "block_size", "enforce_eager",
    "enable_chunked_prefill", "enable_prefix_caching", "async_scheduling",
)  # fmt: skip
BRANDS = ("nvidia", "geforce", "amd", "instinct", "tesla")


def engine_of(settings: EngineSettings) -> dict[str, Any]:
    """Settings of an engine by their whole names; absent and empty ones are left to the stack."""
    given = settings.get("engine_kwargs", settings)
    named = {key.lstrip("-").replace("-", "_"): value for key, value in given.items()}
    found = {SHORT.get(key, key): value for key, value in named.items() if value is not None}
    known = settings.get("kv_cache", {})  # what the engine said that it had found
    share = known.get("gpu_memory_utilization") if isinstance(known, Mapping) else None
    return {**({} if share is None else {"gpu_memory_utilization": share}), **found}


def not_replayed(settings: EngineSettings) -> tuple[str, ...]:
    """Settings of `engine_kwargs` that have no meaning here, in their order."""
    if "engine_kwargs" not in settings:
        return ()
    return tuple(key for key, value in engine_of(settings).items() if value not in (False, "auto") and key not in (*TAKEN, *WITHOUT_EFFECT))


def device_of(settings: EngineSettings, name: str) -> str:
    """The device of a run: what its settings say, or the first word of its name; a template where there is one."""
    hardware = settings.get("hardware")
    told = settings.get("device") or (hardware.get("device_name") if isinstance(hardware, Mapping) else hardware) or ""
    words = [word for word in str(told).lower().replace("_", " ").split() if word not in BRANDS]
    candidates = ["-".join(words), name.removeprefix("llmservingsim_").partition("_")[0]]
    there = {plain(known): known for known in files.catalogue("templates", "devices")}
    found = (there.get(plain(one)) or template_of(one) for one in candidates if one)
    return next((one for one in found if one), candidates[0] or candidates[1])


def plain(name: str) -> str:
    """A name as names are compared: its letters and digits, small.

    >>> plain("RTX PRO 6000")
    'rtxpro6000'
    """
    return "".join(letter for letter in name.lower() if letter.isalnum())


def scenario_of(settings: EngineSettings, device: str, trace: RequestTrace) -> Scenario | None:
    """The service as it was set; None where there is no template of its device or no preset of its model.

    Raises
    ------
    CrossflowError
        Where a setting has a value that has no meaning here.
    """
    asked = engine_of(settings)
    ranks = {word: int(asked.get(key, 1)) for word, key in SHORT.items()}
    devices, model = ranks["tp"] * ranks["dp"] * ranks["pp"], model_of(settings)
    system = _system(device, devices)
    if system is None or model is None:
        return None
    workload = {
        "model": model, "task": "serving", "prompt": max(int(trace.prompt.mean()), 1), "output": max(int(trace.output.mean()), 2),
        "global_batch": int(asked.get("max_num_seqs", 256)) * ranks["dp"], "serving": _serving(settings, asked), **_types(settings, asked),
    }  # fmt: skip
    experts = f"-ep{ranks['tp'] * ranks['dp']}" if asked.get("enable_expert_parallel") else ""
    strategy = "-".join(f"{word}{count}" for word, count in ranks.items() if count > 1) or "tp1"
    return from_dict(
        {"name": device, "system": system, "workload": workload, "strategy": strategy + experts, "software": _software(settings, asked)}
    )


def _serving(settings: EngineSettings, asked: EngineSettings) -> dict[str, Any]:
    known = settings.get("kv_cache", {}).get("num_kv_tokens")
    chunk = asked.get("max_num_batched_tokens")
    return {
        "router": "least_loaded", **({"chunk": int(chunk)} if chunk else {}), **({"cache_tokens": int(known)} if known else {}),
    }  # fmt: skip


def _types(settings: EngineSettings, asked: EngineSettings) -> dict[str, str]:
    """Types of products, weights, and keys and values; those of the checkpoint's name where no setting says them."""
    name = str(settings.get("model", "")).lower()
    told = asked.get("quantization") or next((kind for ending, kind in IN_NAME.items() if name.endswith(ending)), None)
    if told not in QUANTISED:
        raise CrossflowError(f"quantization: {told} is not known; there are {', '.join(filter(None, QUANTISED))}")
    kept = str(asked.get("kv_cache_dtype", "auto"))
    cache = {"kv_dtype": "fp8"} if kept.startswith("fp8") else {"kv_dtype": "bf16"} if QUANTISED[told].get("dtype") else {}
    half = DTYPES.get(str(asked.get("dtype", "auto")), "bf16")
    given = {} if half == "bf16" else {"dtype": half}  # a released checkpoint of narrower weights keeps its own types
    return {**given, **QUANTISED[told], **cache}


def _software(settings: EngineSettings, asked: EngineSettings) -> dict[str, Any]:
    """The stack with the engine's habits that settings change."""
    fields = {"max_num_seqs": ("requests", int), "gpu_memory_utilization": ("memory", float), "block_size": ("block", int)}
    engine = {field: kind(asked[key]) for key, (field, kind) in fields.items() if key in asked}
    if asked.get("enable_chunked_prefill") is False:
        engine["chunked"] = False
    if asked.get("enable_prefix_caching") is False:
        engine["prefixes"] = False
    if "async_scheduling" in asked or _one_by_one(settings):
        engine["asynchronous"] = bool(asked.get("async_scheduling", False))
    kernels: dict[str, Any] = {"launch": "eager"} if asked.get("enforce_eager") else {}
    if "vllm_version" in settings:
        shared = 1 if asked.get("enable_expert_parallel") else int(asked.get(SHORT["tp"], 1)) * int(asked.get(SHORT["dp"], 1))
        kernels |= kernels_of("vllm", str(settings["vllm_version"]), shared)
    own = {"kernels": kernels, "engine": engine}
    return {"like": stack_of(str(settings.get("engine", "vllm"))), **{name: given for name, given in own.items() if given}}


def _one_by_one(settings: EngineSettings) -> bool:
    """Whether settings are of a vLLM that schedules steps one after the other unless it is told otherwise."""
    return one_by_one({"engine": "vllm", "engine_version": str(settings.get("vllm_version") or "")})


def _system(device: str, devices: int) -> dict[str, Any] | None:
    """A device by itself, or several of a node of it."""
    known = files.catalogue("templates", "devices")
    found = device if devices == 1 and device in known else system_of(device) if device in known else None
    if found is None and device in files.catalogue("templates", "systems"):
        found = device
    return None if found is None else {"template": found, "devices": devices}


def model_of(settings: EngineSettings) -> str | None:
    """The config.json that settings name, or the preset of a model by its name at Hugging Face, its tuning and the day of its release
    left out; None where there is neither.
    """
    if given := settings.get("config"):
        path = Path(str(settings.get("folder", "."))) / str(given)
        if not path.exists():
            raise CrossflowError(f"{path}: there is no such file; `config` of the settings names the model's config.json beside them")
        return str(path.resolve())
    called = files.read_yaml(shipped() / "models.yaml").data
    words = str(settings.get("model", "")).rpartition("/")[2].lower().split("-")
    presets = files.catalogue("templates", "models")
    for count in range(len(words), 0, -1):
        stem = "-".join(words[:count])
        if (preset := called.get(stem, stem)) in presets:
            return str(preset)
    return None
